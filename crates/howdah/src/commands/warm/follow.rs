//! `howdah warm follow`: standbys as warm as their primary.

use std::time::Duration;

use howdah_connect::{Environment, Target, Words};
use howdah_keeper::FollowSettings;
use howdah_warm::load::Options;

use super::{
    dump::Source,
    watch::{load_options, stop},
};
use crate::{
    context::Context,
    logging,
    metrics::MetricsArgs,
    notify::service_state,
    outcome::Outcome,
    values::{DATA_RATE_MAX, data_rate, time},
};

use anyhow::Context as _;

/// Keep standbys as warm as their primary, so that a failover does not begin cold.
///
/// In each round the primary's cache is read, and what a standby lacks of its hottest pages is loaded
/// there. Who is the primary is asked in each round, so it goes on after a promotion; a server that is
/// away is passed over until it is back. Runs until SIGTERM or Ctrl-C.
///
/// Reading needs pg_buffercache or the server's memory, as for `howdah warm dump`, on every server.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The primary: a URI or a keyword string
    #[arg(value_name = "PRIMARY")]
    primary: String,
    /// Its standbys
    #[arg(value_name = "STANDBY", required = true)]
    standbys: Vec<String>,
    /// Time between rounds
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = time)]
    interval: Duration,
    /// Load at most so much a second into each standby
    #[arg(long, value_name = "SIZE", default_value = "16MB", value_parser = data_rate(DATA_RATE_MAX))]
    max_rate: u64,
    /// Percentage of a standby's cache that the primary's pages may take
    #[arg(long, value_name = "PERCENT", default_value_t = 75,
          value_parser = clap::value_parser!(u8).range(1..=100))]
    share: u8,
    /// Load only into free buffers: push nothing out
    #[arg(long)]
    only_free: bool,
    /// Connections that load at once, for each standby
    #[arg(long, value_name = "COUNT", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: u16,
    /// Where the pages are read
    #[arg(long, value_enum, value_name = "SOURCE", default_value_t)]
    source: Source,
    #[command(flatten)]
    metrics: MetricsArgs,
}

const EXAMPLES: &str = "\
Examples:
  howdah warm follow postgresql://db1/shop postgresql://db2/shop postgresql://db3/shop
  howdah warm follow 'host=db1 dbname=shop' 'host=db2 dbname=shop' --interval 5m --max-rate 50MB";

pub(super) fn run(args: &Args, ctx: &Context) -> anyhow::Result<Outcome> {
    let words = std::iter::once(&args.primary).chain(&args.standbys);
    let servers = words.map(|words| target(words)).collect::<anyhow::Result<_>>()?;
    let settings = FollowSettings {
        servers,
        interval: args.interval,
        choice: args.source.into(),
        load: Options { evict: !args.only_free, ..load_options(args.jobs, Some(args.max_rate)) },
        share: f64::from(args.share) / 100.0,
    };
    // What happens is what its log is for.
    let _ = logging::adjust(Some(logging::Level::Info), None);
    let stop = stop(ctx)?;
    let _metrics = args.metrics.serve(ctx)?;
    service_state("READY=1");
    howdah_keeper::follow(&settings, &stop, ctx.registry());
    service_state("STOPPING=1");
    Ok(Outcome::Done)
}

fn target(words: &str) -> anyhow::Result<Target> {
    let target = Target::resolve(&Words::from_conninfo(words), &Environment::from_process())
        .context("cannot make sense of the connection settings")?;
    for warning in target.warnings() {
        tracing::warn!("{warning}");
    }
    Ok(target)
}
