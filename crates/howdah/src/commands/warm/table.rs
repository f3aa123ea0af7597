//! `howdah warm table`: loads whole relations into the cache, by name.

use std::{
    io::Write as _,
    sync::{Arc, atomic::AtomicBool, atomic::Ordering},
    time::{Duration, Instant},
};

use howdah_warm::{
    image::Fork,
    load::{
        LoadObserver, LoadOptions as Pace, MAX_JOBS, PrewarmMode as Way,
        table::{TableError, TableLoadOptions, TableResult, table},
    },
    metrics::{WarmMetrics, server_label},
};
use indicatif::ProgressBar;
use serde::Serialize;

use crate::{
    connection::ConnectionArgs,
    context::CommandContext,
    errors,
    format::{self, Format},
    metrics::MetricsArgs,
    outcome::CommandOutcome,
    progress::Total,
    values::{DATA_RATE_MAX, data_rate, short_time_above_zero},
};

/// Load whole relations into the cache, with their indexes, TOAST and partitions.
///
/// Prints the number of blocks loaded per relation. Names are patterns as in psql: orders,
/// 'sales.*', '"Odd.Name"'; '*.*' is the whole database. Needs the extension pg_prewarm for --mode
/// read and prefetch, and for blocks that plain queries do not reach. Exits with 3 if a relation
/// could not be loaded.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = EXAMPLES)]
pub(super) struct Args {
    /// The server and database: a URI, a keyword string or a database name
    #[arg(value_name = "URI")]
    server: String,
    /// Tables, indexes, materialized views, sequences
    #[arg(value_name = "REL", required = true)]
    relations: Vec<String>,
    /// Where to load the pages
    #[arg(long, value_enum, value_name = "MODE", default_value_t)]
    mode: LoadModeArg,
    /// Fork to load
    #[arg(long, value_name = "FORK", default_value = "main", value_parser = fork)]
    fork: Fork,
    /// First block to load, for a single relation
    #[arg(long, value_name = "BLOCK")]
    first: Option<u32>,
    /// Last block to load, for a single relation
    #[arg(long, value_name = "BLOCK")]
    last: Option<u32>,
    /// Exclude indexes, TOAST and partitions; implied by --first and --last
    #[arg(long)]
    only: bool,
    /// Number of connections that load concurrently
    #[arg(short, long, value_name = "COUNT", default_value_t = 2,
        value_parser = clap::value_parser!(u64).range(1..=MAX_JOBS as u64))]
    jobs: u64,
    /// Maximum rate of loading, per second
    #[arg(long, value_name = "SIZE", value_parser = data_rate(DATA_RATE_MAX))]
    max_rate: Option<u64>,
    /// How long to wait for a relation locked by another session
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = short_time_above_zero)]
    lock_timeout: Duration,
    /// Output format
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
enum LoadModeArg {
    /// The server's buffers
    #[default]
    Buffer,
    /// The operating system's cache, reading block by block
    Read,
    /// The operating system's cache, by asynchronous prefetch; not on every system
    Prefetch,
}

fn fork(name: &str) -> Result<Fork, String> {
    Fork::from_name(name).ok_or_else(|| "give one of main, fsm, vm, init".to_owned())
}

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let target = args.connection.target(Some(&args.server))?;
    let options = TableLoadOptions {
        mode: match args.mode {
            LoadModeArg::Buffer => Way::Buffer,
            LoadModeArg::Read => Way::Read,
            LoadModeArg::Prefetch => Way::Prefetch,
        },
        fork: args.fork,
        first: args.first,
        last: args.last,
        only: args.only || args.first.is_some() || args.last.is_some(),
        load: Pace {
            jobs: usize::try_from(args.jobs).unwrap_or(MAX_JOBS),
            bytes_per_second: args.max_rate,
            lock_timeout: args.lock_timeout,
            connect_timeout: Duration::ZERO,
            ..Pace::default()
        },
    };
    let progress = TableProgress {
        bar: ctx.progress(Total::Count(0), "loading"),
        interrupted: ctx.interrupted(),
    };
    let _metrics = args.metrics.serve(ctx)?;
    let warm_metrics = WarmMetrics::new(ctx.registry(), &server_label(&target));
    let started_at = Instant::now();
    let warmed = table(&target, &args.relations, &options, &warm_metrics.progress(&progress));
    progress.bar.finish_and_clear();
    let warmed = warmed.inspect_err(|_| warm_metrics.record_load_failure()).map_err(table_error)?;
    let rows: Vec<_> = warmed.iter().map(row).collect();
    let sum = |of: fn(&WarmTableRow) -> u64| rows.iter().map(of).sum::<u64>();
    let (blocks, wanted) = (sum(|row| row.blocks), sum(|row| row.wanted));
    warm_metrics.record_tables(started_at.elapsed(), blocks, blocks as f64 / wanted.max(1) as f64);
    let mut out = ctx.stdout();
    match args.format {
        Format::Json => {
            format::write_json(&mut out, &TableDocument { version: 1, blocks, relations: rows })?;
        }
        Format::Table => {
            for WarmTableRow { relation, blocks, problem, .. } in &rows {
                let problem = problem.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
                writeln!(out, "{blocks:>10}  {relation}{problem}")?;
            }
            if rows.len() != 1 {
                writeln!(out, "{blocks:>10}  total")?;
            }
        }
    }
    Ok(
        if warmed.iter().all(|warmed| warmed.blocks == warmed.requested && warmed.problem.is_none())
        {
            CommandOutcome::Done
        } else {
            CommandOutcome::CheckFailed
        },
    )
}

/// Adds a hint to an error that has a known remedy. Wrong arguments become a usage error.
fn table_error(error: TableError) -> anyhow::Error {
    match &error {
        TableError::NoMatch { .. } => errors::with_hint(
            error.into(),
            "relations are searched in that database; write schema.name for those not on the search path",
        ),
        TableError::NotOneRelation { .. } => errors::wrong_usage(error),
        _ => error.into(),
    }
}

/// The document of `--format json`.
#[derive(Serialize)]
struct TableDocument {
    version: u32,
    blocks: u64,
    relations: Vec<WarmTableRow>,
}

#[derive(Serialize)]
struct WarmTableRow {
    relation: String,
    blocks: u64,
    wanted: u64,
    methods: Vec<&'static str>,
    problem: Option<String>,
}

fn row(warmed: &TableResult) -> WarmTableRow {
    WarmTableRow {
        relation: warmed.name.to_string(),
        blocks: warmed.blocks,
        wanted: warmed.requested,
        methods: warmed.methods.iter().map(|method| method.name()).collect(),
        problem: warmed.problem.as_ref().map(ToString::to_string),
    }
}

struct TableProgress {
    bar: ProgressBar,
    interrupted: Arc<AtomicBool>,
}

impl LoadObserver for TableProgress {
    fn planned(&self, blocks: u64) {
        self.bar.set_length(blocks);
    }

    fn progressed(&self, blocks: u64) {
        self.bar.inc(blocks);
    }

    fn should_stop(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }
}
