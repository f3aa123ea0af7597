//! `howdah warm load`: an image into a server's buffer cache.

use std::{
    io::{self, Write},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use howdah_warm::{
    diff::Known,
    load::{self, Event, Loaded, MAX_JOBS, Observer, Options, Outcome as Relation},
    metrics::{Numbers, name_of},
};
use indicatif::{BinaryBytes, ProgressBar};
use serde::Serialize;

use crate::{
    connection::ConnectionArgs,
    context::{Context, Talk},
    errors,
    format::{self, Format},
    metrics::MetricsArgs,
    outcome::Outcome,
    progress::Total,
};

/// Load an image into a server's buffer cache, the hottest pages first.
///
/// Relations are found by name, so the server may be the one the image is from, a standby, or a copy.
/// What is in the cache stays there: loading ends where no buffer is free, unless --evict is given. What
/// is there already is not loaded again, so a load that was stopped goes on where it ended.
///
/// Exits with 0 if enough of the plan is in the cache afterwards, with 3 if less than --min-resident is,
/// with 1 if the server or the image cannot be read.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = EXAMPLES)]
pub(super) struct Args {
    /// The image
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// The server: a URI, a keyword string, or a database's name
    #[arg(value_name = "URI")]
    server: Option<String>,
    /// Connections that load at once
    #[arg(short, long, value_name = "COUNT", default_value_t = 2,
        value_parser = clap::value_parser!(u64).range(1..=MAX_JOBS as u64))]
    jobs: u64,
    /// At most so many megabytes a second
    #[arg(long, value_name = "MB/s", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    rate: Option<u64>,
    /// Slow down while a small query takes longer than so many milliseconds
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    max_latency: Option<u64>,
    /// Push out what is in the cache, if there is no room left
    #[arg(long)]
    evict: bool,
    /// At most so many pages, the hottest
    #[arg(long, value_name = "PAGES")]
    limit: Option<u64>,
    /// Seconds to wait for a server that starts, stops or cannot be reached
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    wait: u64,
    /// Milliseconds to wait for a relation that another session has locked
    #[arg(long, value_name = "MS", default_value_t = 1000,
        value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    lock_timeout: u64,
    /// Percentage of the plan that has to be in the cache afterwards
    #[arg(long, value_name = "PERCENT", default_value_t = 90,
        value_parser = clap::value_parser!(u64).range(0..=100))]
    min_resident: u64,
    /// Load nothing, only look whether it is there
    #[arg(long)]
    check: bool,
    /// How to print the result
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: Format,
    #[command(flatten)]
    metrics: MetricsArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

const EXAMPLES: &str = "\
Examples:
  howdah warm load shop.cache postgresql://standby/shop
  howdah warm load shop.cache -h db1 -d shop --jobs 4 --rate 200 --max-latency 5
  howdah warm load shop.cache -h db1 --check --min-resident 95    # for a readiness probe";

pub(super) fn run(args: &Args, ctx: &Context) -> anyhow::Result<Outcome> {
    let image = super::open(&args.image)?;
    let target = args.connection.target(args.server.as_deref())?;
    let options = Options {
        jobs: usize::try_from(args.jobs).unwrap_or(MAX_JOBS),
        bytes_per_second: args.rate.map(|rate| rate * 1_000_000),
        max_latency: args.max_latency.map(Duration::from_millis),
        evict: args.evict,
        limit: args.limit,
        lock_timeout: Duration::from_millis(args.lock_timeout),
        patience: Duration::from_secs(args.wait),
        only_look: args.check,
        ..Options::default()
    };
    let watcher = Watcher {
        bar: ctx.progress(Total::Bytes(0), "loading"),
        page_bytes: u64::from(image.origin.page_bytes),
        talk: ctx.talk(),
        waits: AtomicBool::new(false),
        interrupted: ctx.interrupted(),
    };
    let _metrics = args.metrics.serve(ctx)?;
    let numbers = Numbers::new(ctx.registry(), &name_of(&target));
    let loaded = load::load(&image, &target, &options, &numbers.progress(&watcher));
    watcher.bar.finish_and_clear();
    match &loaded {
        Ok(loaded) => numbers.loaded(loaded),
        Err(_) => numbers.load_failed(),
    }
    let loaded = loaded.with_context(|| format!("cannot load {}", args.image.display()))?;
    let mut out = ctx.stdout();
    match args.format {
        Format::Table => table(&mut out, &loaded)?,
        Format::Json => format::write_json(&mut out, &document(&loaded))?,
    }
    drop(out);
    if loaded.is_cut_short && !args.check {
        return Err(errors::with_hint(
            anyhow::anyhow!("interrupted before all was loaded"),
            "the same command goes on where it ended",
        ));
    }
    let is_enough = loaded.share() * 100.0 >= args.min_resident as f64;
    if let Err(unseen) = loaded.residency {
        ctx.say(format_args!("{:#}", anyhow::Error::from(unseen)));
    }
    Ok(if is_enough { Outcome::Done } else { Outcome::No })
}

/// Shows the person at the terminal what happens.
struct Watcher {
    bar: ProgressBar,
    page_bytes: u64,
    talk: Talk,
    /// Whether it was said that the server is waited for.
    waits: AtomicBool,
    interrupted: Arc<AtomicBool>,
}

impl Observer for Watcher {
    fn planned(&self, pages: u64) {
        self.bar.set_length(pages * self.page_bytes);
        self.bar.reset();
        self.waits.store(false, Ordering::Relaxed);
    }

    fn advanced(&self, pages: u64) {
        self.bar.inc(pages * self.page_bytes);
    }

    fn said(&self, event: &Event) {
        match event {
            Event::Waiting { failure } if !self.waits.swap(true, Ordering::Relaxed) => {
                self.talk.say(format_args!("waiting for the server: {failure}"));
            }
            Event::Restarted => {
                self.talk.say("the server was restarted and its cache is empty: beginning anew");
            }
            _ => {}
        }
    }

    fn wants_end(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }
}

/// The document of `--format json`. Counts are in pages.
#[derive(Serialize)]
struct Document {
    version: u32,
    page_bytes: u32,
    seconds: f64,
    interrupted: bool,
    share: f64,
    /// Who looked at the cache afterwards; nothing if nobody could.
    seen_by: Option<&'static str>,
    #[serde(flatten)]
    pages: Counts,
    relations: Vec<Row>,
}

#[derive(Clone, Copy, Serialize)]
struct Counts {
    in_image: u64,
    beyond_end: u64,
    wanted: u64,
    resident: u64,
    loaded: u64,
    no_room: u64,
    failed: u64,
}

#[derive(Serialize)]
struct Row {
    database: String,
    relation: String,
    #[serde(flatten)]
    pages: Counts,
    rewritten: bool,
    ways: Vec<&'static str>,
    problem: Option<String>,
}

fn document(loaded: &Loaded) -> Document {
    Document {
        version: 1,
        page_bytes: loaded.page_bytes,
        seconds: loaded.elapsed.as_secs_f64(),
        interrupted: loaded.is_cut_short,
        share: loaded.share(),
        seen_by: loaded.residency.as_ref().ok().map(|seen| seen.source.name()),
        pages: counts(loaded.pages()),
        relations: loaded.outcomes.iter().map(row).collect(),
    }
}

fn counts(pages: load::Pages) -> Counts {
    let load::Pages { in_image, beyond_end, wanted, resident, loaded, no_room, failed } = pages;
    Counts { in_image, beyond_end, wanted, resident, loaded, no_room, failed }
}

fn row(relation: &Relation) -> Row {
    Row {
        database: relation.database.clone().unwrap_or_else(|| "(shared)".to_owned()),
        relation: match &relation.relation {
            Known::Named(name) => name.to_string(),
            Known::File(file) => {
                format!("(file {} in tablespace {})", file.filenode, file.tablespace)
            }
        },
        pages: counts(relation.pages),
        rewritten: relation.is_rewritten,
        ways: relation.ways.iter().map(|way| way.name()).collect(),
        problem: relation.problem.as_ref().map(ToString::to_string),
    }
}

fn table(out: &mut impl Write, loaded: &Loaded) -> io::Result<()> {
    let pages = loaded.pages();
    let bytes = |pages: u64| BinaryBytes(pages * u64::from(loaded.page_bytes));
    let seconds = loaded.elapsed.as_secs_f64();
    writeln!(
        out,
        "loaded    {} in {seconds:.1} s, {}/s",
        bytes(pages.loaded),
        BinaryBytes((bytes(pages.loaded).0 as f64 / seconds.max(0.001)) as u64)
    )?;
    writeln!(out, "resident  {} before", bytes(pages.resident))?;
    for (what, count) in [
        ("no room   ", pages.no_room),
        ("failed    ", pages.failed),
        ("beyond end", pages.beyond_end),
    ] {
        if count > 0 {
            writeln!(out, "{what} {}", bytes(count))?;
        }
    }
    let troubled: Vec<_> =
        loaded.outcomes.iter().filter(|relation| relation.problem.is_some()).map(row).collect();
    if !troubled.is_empty() {
        writeln!(out, "\n{:>10} {:>10}  RELATION", "PAGES", "NOT LOADED")?;
    }
    for Row { database, relation, pages, problem, .. } in &troubled {
        let missing = pages.in_image.saturating_sub(pages.resident + pages.loaded);
        let problem = problem.as_deref().unwrap_or_default();
        writeln!(out, "{:>10} {missing:>10}  {database} {relation}: {problem}", pages.in_image)?;
    }
    if !troubled.is_empty() {
        writeln!(out)?;
    }
    let how = match &loaded.residency {
        Ok(seen) => {
            format!("{} of {} pages, seen by {}", seen.resident, seen.planned, seen.source.name())
        }
        Err(_) => "as counted while loading; nobody could look".to_owned(),
    };
    writeln!(out, "{:.1} % of the plan is resident ({how})", loaded.share() * 100.0)
}
