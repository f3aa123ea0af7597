//! `howdah warm table`: whole relations into the cache, by name.

use std::{
    io::Write as _,
    sync::{Arc, atomic::AtomicBool, atomic::Ordering},
    time::{Duration, Instant},
};

use howdah_warm::{
    image::Fork,
    load::{
        MAX_JOBS, Mode as Way, Observer, Options as Pace,
        table::{Options, TableError, Warmed, table},
    },
    metrics::{Numbers, name_of},
};
use indicatif::ProgressBar;
use serde::Serialize;

use crate::{
    connection::ConnectionArgs,
    context::Context,
    errors,
    format::{self, Format},
    metrics::MetricsArgs,
    outcome::Outcome,
    progress::Total,
    values::{DATA_RATE_MAX, data_rate, short_time_above_zero},
};

/// Load whole relations into the cache, with their indexes, TOAST and partitions.
///
/// Prints the blocks that were loaded of each. Names are patterns as in psql: orders, 'sales.*',
/// '"Odd.Name"'; '*.*' is the whole database. Needs the extension pg_prewarm for --mode read and
/// prefetch, and for what plain queries do not reach. Exits with 3 if a relation could not be loaded.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = EXAMPLES)]
pub(super) struct Args {
    /// The server and database: a URI, a keyword string, or a database's name
    #[arg(value_name = "URI")]
    server: String,
    /// Tables, indexes, materialised views, sequences
    #[arg(value_name = "REL", required = true)]
    relations: Vec<String>,
    /// Where pages go
    #[arg(long, value_enum, value_name = "MODE", default_value_t)]
    mode: Mode,
    /// Which fork
    #[arg(long, value_name = "FORK", default_value = "main", value_parser = fork)]
    fork: Fork,
    /// First block, of a single relation
    #[arg(long, value_name = "BLOCK")]
    first: Option<u32>,
    /// Last block, of a single relation
    #[arg(long, value_name = "BLOCK")]
    last: Option<u32>,
    /// Without indexes, TOAST and partitions; --first and --last are so, too
    #[arg(long)]
    only: bool,
    /// Connections that load at once
    #[arg(short, long, value_name = "COUNT", default_value_t = 2,
        value_parser = clap::value_parser!(u64).range(1..=MAX_JOBS as u64))]
    jobs: u64,
    /// Load at most so much a second
    #[arg(long, value_name = "SIZE", value_parser = data_rate(DATA_RATE_MAX))]
    max_rate: Option<u64>,
    /// How long to wait for a relation that another session has locked
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = short_time_above_zero)]
    lock_timeout: Duration,
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
  howdah warm table postgresql://localhost/shop orders 'sales.*'
  howdah warm table shop orders --first 0 --last 9999
  howdah warm table shop '*.*' --mode prefetch --jobs 4";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Mode {
    /// The server's buffers
    #[default]
    Buffer,
    /// The operating system's cache, one block after another
    Read,
    /// The operating system's cache, as it likes; not on every system
    Prefetch,
}

fn fork(name: &str) -> Result<Fork, String> {
    Fork::from_name(name).ok_or_else(|| "one of main, fsm, vm, init".to_owned())
}

pub(super) fn run(args: &Args, ctx: &Context) -> anyhow::Result<Outcome> {
    let target = args.connection.target(Some(&args.server))?;
    let options = Options {
        mode: match args.mode {
            Mode::Buffer => Way::Buffer,
            Mode::Read => Way::Read,
            Mode::Prefetch => Way::Prefetch,
        },
        fork: args.fork,
        first: args.first,
        last: args.last,
        only: args.only || args.first.is_some() || args.last.is_some(),
        pace: Pace {
            jobs: usize::try_from(args.jobs).unwrap_or(MAX_JOBS),
            bytes_per_second: args.max_rate,
            lock_timeout: args.lock_timeout,
            patience: Duration::ZERO,
            ..Pace::default()
        },
    };
    let watcher =
        Watcher { bar: ctx.progress(Total::Count(0), "loading"), interrupted: ctx.interrupted() };
    let _metrics = args.metrics.serve(ctx)?;
    let numbers = Numbers::new(ctx.registry(), &name_of(&target));
    let began = Instant::now();
    let warmed = table(&target, &args.relations, &options, &numbers.progress(&watcher));
    watcher.bar.finish_and_clear();
    let warmed = warmed.inspect_err(|_| numbers.load_failed()).map_err(explained)?;
    let rows: Vec<_> = warmed.iter().map(row).collect();
    let sum = |of: fn(&Row) -> u64| rows.iter().map(of).sum::<u64>();
    let (blocks, wanted) = (sum(|row| row.blocks), sum(|row| row.wanted));
    numbers.warmed(began.elapsed(), blocks, blocks as f64 / wanted.max(1) as f64);
    let mut out = ctx.stdout();
    match args.format {
        Format::Json => {
            format::write_json(&mut out, &Document { version: 1, blocks, relations: rows })?;
        }
        Format::Table => {
            for Row { relation, blocks, problem, .. } in &rows {
                let problem = problem.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
                writeln!(out, "{blocks:>10}  {relation}{problem}")?;
            }
            if rows.len() != 1 {
                writeln!(out, "{blocks:>10}  in all")?;
            }
        }
    }
    Ok(
        match warmed.iter().all(|warmed| warmed.blocks == warmed.wanted && warmed.problem.is_none())
        {
            true => Outcome::Done,
            false => Outcome::No,
        },
    )
}

/// The error, with what to do about it.
fn explained(error: TableError) -> anyhow::Error {
    match &error {
        TableError::NoMatch { .. } => errors::with_hint(
            error.into(),
            "names are looked for in that database; write schema.name for what is not on the search path",
        ),
        TableError::SeveralRanges { .. } => errors::wrong_usage(error),
        _ => error.into(),
    }
}

/// The document of `--format json`.
#[derive(Serialize)]
struct Document {
    version: u32,
    blocks: u64,
    relations: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    relation: String,
    blocks: u64,
    wanted: u64,
    ways: Vec<&'static str>,
    problem: Option<String>,
}

fn row(warmed: &Warmed) -> Row {
    Row {
        relation: warmed.name.to_string(),
        blocks: warmed.blocks,
        wanted: warmed.wanted,
        ways: warmed.ways.iter().map(|way| way.name()).collect(),
        problem: warmed.problem.as_ref().map(ToString::to_string),
    }
}

struct Watcher {
    bar: ProgressBar,
    interrupted: Arc<AtomicBool>,
}

impl Observer for Watcher {
    fn planned(&self, blocks: u64) {
        self.bar.set_length(blocks);
    }

    fn advanced(&self, blocks: u64) {
        self.bar.inc(blocks);
    }

    fn wants_end(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }
}
