//! `howdah warm benchmark`: measures the benefit of warming on a server that is restarted.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use howdah_lab::BinariesSearch;
use howdah_report::benchmark;
use howdah_warm::benchmark::{
    Benchmark, BenchmarkError, BenchmarkResults, BenchmarkServer, DropCaches, ExistingServer,
    TemporaryServer,
};
use howdah_warm::load::LoadOptions;

use crate::{
    connection::ConnectionArgs,
    context::CommandContext,
    errors::{self, WithHint as _},
    format,
    outcome::CommandOutcome,
    values::time_in_range,
};

/// Measure the benefit of warming: in several runs, a restart with cold caches per method.
///
/// One client reads single rows of a pgbench table as fast as possible, right after the restart:
/// without warming, with contrib's autoprewarm, and with `howdah warm load`, in another order in
/// each run. Reports which method is faster, the time to 90 % of steady throughput, the reads lost
/// until then, p99, and the cost of warming, each as median and range. The folder of -o gets a page
/// with a chart, the steps as CSV, and all results as JSON.
///
/// If the runs differ too much, or other programs disturbed them, the verdict is "not comparable",
/// and the exit code 4. Fewer than 3 runs have no verdict. A benchmark that is interrupted has no
/// results.
///
/// With --lab, the server is a throwaway one. An existing server must be restarted, which needs
/// --restart-command; its caches are dropped, so do not use a production server.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = EXAMPLES)]
pub(super) struct Args {
    /// The server: a URI, a keyword string or a database name
    #[arg(value_name = "URI", conflicts_with = "lab", required_unless_present = "lab")]
    server: Option<String>,
    /// Use a throwaway server
    #[arg(long)]
    lab: bool,
    /// Number of runs, each of which measures every method once
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Size of the table, in units of 100 000 rows (15 MiB)
    #[arg(long, value_name = "N", default_value_t = 30,
          value_parser = clap::value_parser!(u32).range(1..=20_000))]
    scale: u32,
    /// How long the client reads after each restart
    #[arg(long, alias = "seconds", value_name = "TIME", default_value = "25s",
          value_parser = time_in_range(1.0..=86_400.0))]
    duration: Duration,
    /// Length of a step in the results
    #[arg(long, value_name = "TIME", default_value = "250ms",
          value_parser = time_in_range(0.05..=3600.0))]
    step: Duration,
    /// Read rows with a Zipf distribution of this exponent, instead of a uniform one
    #[arg(long, value_name = "EXPONENT", value_parser = exponent)]
    zipf: Option<f64>,
    /// Which caches of the operating system to drop
    #[arg(long, value_enum, value_name = "HOW", default_value_t)]
    cold: DropCachesArg,
    /// Number of connections that load concurrently
    #[arg(long, value_name = "COUNT", default_value_t = 2,
          value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: u16,
    /// Folder for benchmark.html, steps.csv and benchmark.json
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Output format
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: BenchmarkFormat,
    /// Shell command that restarts the server of URI
    #[arg(long, value_name = "COMMAND")]
    restart_command: Option<String>,
    /// shared_buffers of the throwaway server [default: the size of the table plus a quarter]
    #[arg(long, value_name = "SIZE", requires = "lab")]
    shared_buffers: Option<String>,
    /// Major version of the throwaway server [default: the newest installed]
    #[arg(long, value_name = "MAJOR", requires = "lab")]
    pg: Option<u32>,
    /// Folder with the programs of the throwaway server
    #[arg(long, value_name = "DIR", requires = "lab")]
    pg_bin: Option<PathBuf>,
    #[command(flatten)]
    connection: ConnectionArgs,
}

const EXAMPLES: &str = "\
Examples:
  howdah warm benchmark --lab -o benchmark
  howdah warm benchmark --lab --scale 250 --shared-buffers 4GB --duration 10m --step 2s -o benchmark
  howdah warm benchmark postgresql://test1/shop --restart-command 'sudo systemctl restart postgresql'";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum DropCachesArg {
    /// Drop the server's data files from the system's cache
    #[default]
    Files,
    /// Drop the system's whole cache, for all processes on the host; needs root
    System,
    /// Keep the system's cache: only the server's own cache is cold
    Nothing,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum BenchmarkFormat {
    /// A table for people
    #[default]
    Table,
    /// One JSON document
    Json,
    /// One line per step
    Csv,
}

fn exponent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(exponent) if exponent > 0.0 && exponent <= 3.0 => Ok(exponent),
        _ => Err("give a number above 0, at most 3".to_owned()),
    }
}

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let server = server(args)?;
    if let Some(folder) = &args.output {
        // Create the folder now, before minutes are spent on results that could not be saved.
        howdah_files::create_dir_all(folder)
            .with_context(|| format!("cannot create the folder {}", folder.display()))?;
    }
    let experiment = Benchmark {
        server,
        runs: args.runs,
        scale: args.scale,
        duration: args.duration,
        step: args.step,
        skew: args.zipf,
        drop_caches: match args.cold {
            DropCachesArg::Files => DropCaches::Files,
            DropCachesArg::System => DropCaches::System,
            DropCachesArg::Nothing => DropCaches::Nothing,
        },
        load: LoadOptions { jobs: args.jobs.into(), ..LoadOptions::default() },
        stop: ctx.interrupted(),
    };
    let results = experiment.run(|line| ctx.report(line)).map_err(benchmark_error)?;
    if let Some(folder) = &args.output {
        save_files(ctx, folder, &results)?;
    }
    let mut out = ctx.stdout();
    match args.format {
        BenchmarkFormat::Table => write!(out, "{}", benchmark::table(&results))?,
        BenchmarkFormat::Csv => write!(out, "{}", benchmark::steps_csv(&results))?,
        BenchmarkFormat::Json => format::write_json(&mut out, &benchmark::document(&results))?,
    }
    Ok(if results.verdict().overall().is_decided() {
        CommandOutcome::Done
    } else {
        CommandOutcome::NotComparable
    })
}

fn server(args: &Args) -> anyhow::Result<BenchmarkServer> {
    if args.lab {
        let mut search = BinariesSearch::new();
        if let Some(major) = args.pg {
            search = search.major(major);
        }
        if let Some(dir) = &args.pg_bin {
            search = search.dir(dir);
        }
        let shared_buffers = args.shared_buffers.clone();
        return Ok(BenchmarkServer::Temporary(TemporaryServer { search, shared_buffers }));
    }
    let Some(restart_command) = args.restart_command.clone() else {
        let error = errors::wrong_usage(
            "the server must be restarted for each method, and no command for that was given",
        );
        let hint = "give --restart-command, such as 'systemctl restart postgresql', and run on the \
        server's host; or use a throwaway server with --lab";
        return Err(errors::with_hint(error, hint));
    };
    let target = args.connection.target(args.server.as_deref())?;
    Ok(BenchmarkServer::Existing(Box::new(ExistingServer { target, restart_command })))
}

fn benchmark_error(error: BenchmarkError) -> anyhow::Error {
    let hint = match &error {
        BenchmarkError::Lab(_) => {
            Some("`howdah lab start` shows whether a throwaway PostgreSQL can be started here")
        }
        BenchmarkError::DropCaches { .. } => Some("run as root, or use --cold files"),
        BenchmarkError::EvictFiles(_) => {
            Some("run as the server's OS user or root, or use --cold nothing")
        }
        BenchmarkError::NotRestarted { .. } => {
            Some("the command must return after this server has been restarted")
        }
        _ => None,
    };
    let result = Err::<(), _>(error).context("the benchmark failed");
    let result = match hint {
        Some(hint) => result.hint(hint),
        None => result,
    };
    result.expect_err("it is an error")
}

fn save_files(
    ctx: &CommandContext,
    folder: &Path,
    results: &BenchmarkResults,
) -> anyhow::Result<()> {
    let document = serde_json::to_string_pretty(&benchmark::document(results))?;
    let files = [
        ("benchmark.html", benchmark::page(results)),
        ("steps.csv", benchmark::steps_csv(results)),
        ("benchmark.json", format!("{document}\n")),
    ];
    for (name, text) in files {
        let path = folder.join(name);
        howdah_files::write(&path, text)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    ctx.report(format_args!("chart: {}", folder.join("benchmark.html").display()));
    Ok(())
}
