//! `howdah warm prove`: what warming brings, measured on a server that is restarted.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use howdah_lab::Search;
use howdah_proof::{Cold, Findings, Given, Place, Proof, ProofError, Run, Throwaway, Way};
use howdah_warm::load::Options;
use indicatif::BinaryBytes;

use crate::{
    connection::ConnectionArgs,
    context::Context,
    errors::{self, WithHint as _},
    outcome::Outcome,
    values::time_within,
};

/// Measure what warming brings: a restart with cold caches, once for each way.
///
/// One client reads single rows of a table like pgbench's as fast as it can, right after the restart:
/// without warming, with contrib's autoprewarm, with `howdah warm load`. Told are the time to 90 % of
/// steady throughput, reads lost until then, p99, and what warming cost. The folder of -o gets a page
/// with a chart, the steps as CSV, and all of it as JSON.
///
/// With --lab the server is a throw-away one. A server that is there has to be restarted, for which
/// --restart-command is needed; its caches are made cold, so it must be one that can stand it.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = EXAMPLES)]
pub(super) struct Args {
    /// The server: a URI, a keyword string, or a database's name
    #[arg(value_name = "URI", conflicts_with = "lab", required_unless_present = "lab")]
    server: Option<String>,
    /// On a throw-away server
    #[arg(long)]
    lab: bool,
    /// Size of the table, in units of 100 000 rows or 15 MiB
    #[arg(long, value_name = "N", default_value_t = 30,
          value_parser = clap::value_parser!(u32).range(1..=20_000))]
    scale: u32,
    /// How long the client reads after each restart
    #[arg(long, alias = "seconds", value_name = "TIME", default_value = "25s",
          value_parser = time_within(1.0..=86_400.0))]
    duration: Duration,
    /// Resolution
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = time_within(0.05..=3600.0))]
    step: Duration,
    /// Read few rows most of the time, by Zipf's law with this exponent, instead of every row alike
    #[arg(long, value_name = "EXPONENT", value_parser = exponent)]
    zipf: Option<f64>,
    /// How caches below the server's own are made cold
    #[arg(long, value_enum, value_name = "HOW", default_value_t)]
    cold: ColdArg,
    /// Connections that load at once
    #[arg(long, value_name = "COUNT", default_value_t = 2,
          value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: u16,
    /// Folder for proof.html, steps.csv and proof.json
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// How to print the numbers
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: Format,
    /// A command of the shell that restarts the server of URI
    #[arg(long, value_name = "COMMAND")]
    restart_command: Option<String>,
    /// shared_buffers of the throw-away server [default: what the table takes and a quarter more]
    #[arg(long, value_name = "SIZE", requires = "lab")]
    shared_buffers: Option<String>,
    /// Major version of the throw-away server; the newest that is installed if not given
    #[arg(long, value_name = "MAJOR", requires = "lab")]
    pg: Option<u32>,
    /// Folder with the programs of the throw-away server
    #[arg(long, value_name = "DIR", requires = "lab")]
    pg_bin: Option<PathBuf>,
    #[command(flatten)]
    connection: ConnectionArgs,
}

const EXAMPLES: &str = "\
Examples:
  howdah warm prove --lab -o proof
  howdah warm prove --lab --scale 250 --shared-buffers 4GB --duration 10m --step 5s -o proof
  howdah warm prove postgresql://test1/shop --restart-command 'sudo systemctl restart postgresql'";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum ColdArg {
    /// The server's data files are thrown out of the system's cache
    #[default]
    Files,
    /// The whole cache of the system is dropped, for everybody on the host; needs root
    System,
    /// The system's cache stays: only the server's own is cold
    Nothing,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// Lines for a person
    #[default]
    Table,
    /// One JSON document
    Json,
    /// A line for each step
    Csv,
}

fn exponent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(exponent) if exponent > 0.0 && exponent <= 3.0 => Ok(exponent),
        _ => Err("a number above 0, at most 3".to_owned()),
    }
}

pub(super) fn run(args: &Args, ctx: &Context) -> anyhow::Result<Outcome> {
    let place = place(args)?;
    if let Some(folder) = &args.output {
        // Before minutes are spent on what could not be kept.
        howdah_files::create_dir_all(folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    }
    let proof = Proof {
        place,
        scale: args.scale,
        duration: args.duration,
        step: args.step,
        skew: args.zipf,
        cold: match args.cold {
            ColdArg::Files => Cold::Files,
            ColdArg::System => Cold::System,
            ColdArg::Nothing => Cold::Nothing,
        },
        load: Options { jobs: args.jobs.into(), ..Options::default() },
        stop: ctx.interrupted(),
    };
    let findings = proof.run(|line| ctx.say(line)).map_err(explained)?;
    if let Some(folder) = &args.output {
        keep(ctx, folder, &findings)?;
    }
    let mut out = ctx.stdout();
    match args.format {
        Format::Table => table(&mut out, &findings)?,
        Format::Csv => out.write_all(howdah_proof::steps_csv(&findings).as_bytes())?,
        Format::Json => {
            let document = howdah_proof::document(&findings);
            serde_json::to_writer_pretty(&mut out, &document).map_err(io::Error::from)?;
            writeln!(out)?;
        }
    }
    Ok(Outcome::Done)
}

fn place(args: &Args) -> anyhow::Result<Place> {
    if args.lab {
        let mut search = Search::new();
        if let Some(major) = args.pg {
            search = search.major(major);
        }
        if let Some(dir) = &args.pg_bin {
            search = search.dir(dir);
        }
        let shared_buffers = args.shared_buffers.clone();
        return Ok(Place::Throwaway(Throwaway { search, shared_buffers }));
    }
    let Some(restart) = args.restart_command.clone() else {
        let error = errors::wrong_usage(
            "the server has to be restarted for each way, and no command for that was given",
        );
        let hint = "give --restart-command 'systemctl restart postgresql' or what does it there, \
                    and run on the server's host; or try it on a throw-away server by --lab";
        return Err(errors::with_hint(error, hint));
    };
    let target = args.connection.target(args.server.as_deref())?;
    Ok(Place::Given(Box::new(Given { target, restart })))
}

fn explained(error: ProofError) -> anyhow::Error {
    let hint = match &error {
        ProofError::Lab(_) => {
            Some("`howdah lab start` shows whether a throw-away PostgreSQL can be had here")
        }
        ProofError::DropCaches { .. } => Some("run as root, or take --cold files"),
        ProofError::Cold(_) => Some("run as the server's user or root, or take --cold nothing"),
        ProofError::NotRestarted { .. } => {
            Some("the command has to return after the restart of this very server")
        }
        _ => None,
    };
    let result = Err::<(), _>(error).context("nothing was proved");
    let result = match hint {
        Some(hint) => result.hint(hint),
        None => result,
    };
    result.expect_err("it is an error")
}

fn keep(ctx: &Context, folder: &Path, findings: &Findings) -> anyhow::Result<()> {
    let document = serde_json::to_string_pretty(&howdah_proof::document(findings))?;
    let files = [
        ("proof.html", howdah_proof::page(findings)),
        ("steps.csv", howdah_proof::steps_csv(findings)),
        ("proof.json", format!("{document}\n")),
    ];
    for (name, text) in files {
        let path = folder.join(name);
        howdah_files::write(&path, text)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    ctx.say(format_args!("chart: {}", folder.join("proof.html").display()));
    Ok(())
}

fn table(out: &mut impl Write, findings: &Findings) -> io::Result<()> {
    writeln!(
        out,
        "PostgreSQL {}, {} in the cache; steady: {:.0} reads a second, p99 {}",
        findings.server,
        BinaryBytes(findings.pages.0 * u64::from(findings.pages.1)),
        findings.steady,
        seconds(Duration::from_micros(findings.steady_p99_us)),
    )?;
    for note in &findings.notes {
        writeln!(out, "{note}")?;
    }
    writeln!(
        out,
        "\n{:12} {:>8} {:>10} {:>8} {:>9} | {:>8} {:>10} {:>8} {:>10} {:>8}",
        "WAY",
        "TO 90 %",
        "LOST",
        "P99",
        "LONGEST",
        "WARMING",
        "SERVER CPU",
        "OWN CPU",
        "READ",
        "RESIDENT"
    )?;
    for run in &findings.runs {
        row(out, run)?;
    }
    for run in &findings.runs {
        if let Some(share) = run.share_after_a_tenth(findings.steady, findings.step) {
            let (name, percent) = (run.way.name(), share * 100.0);
            writeln!(
                out,
                "\n{name}: {percent:.0} % of the steady rate in the step after a tenth was loaded"
            )?;
        }
    }
    Ok(())
}

fn row(out: &mut impl Write, run: &Run) -> io::Result<()> {
    let none = || "-".to_owned();
    let micros = |us| seconds(Duration::from_micros(us));
    write!(
        out,
        "{:12} {:>8} {:>10} {:>8} {:>9} | ",
        run.way.name(),
        run.curve.to_ninety.map_or("never".to_owned(), seconds),
        run.curve.lost,
        micros(run.p99_us),
        micros(run.max_us),
    )?;
    let Some(warming) = run.warming.filter(|_| run.way != Way::Nothing) else {
        return writeln!(out, "{:>8} {:>10} {:>8} {:>10} {:>8}", "-", "-", "-", "-", "-");
    };
    let wall = match warming.is_done {
        true => seconds(warming.wall),
        false => format!(">{}", seconds(warming.wall)),
    };
    writeln!(
        out,
        "{wall:>8} {:>10} {:>8} {:>10} {:>8}",
        warming.server_cpu.map_or_else(none, seconds),
        seconds(warming.own_cpu),
        warming.read_bytes.map_or_else(none, |bytes| BinaryBytes(bytes).to_string()),
        warming.share.map_or_else(none, |share| format!("{:.1}%", share * 100.0)),
    )
}

fn seconds(time: Duration) -> String {
    match time.as_secs_f64() {
        0.0 => "0 s".to_owned(),
        s if s < 0.001 => format!("{:.0} µs", s * 1e6),
        s if s < 1.0 => format!("{:.0} ms", s * 1e3),
        s if s < 100.0 => format!("{s:.1} s"),
        s => format!("{s:.0} s"),
    }
}
