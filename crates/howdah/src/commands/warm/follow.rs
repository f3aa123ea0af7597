//! `howdah warm follow`: keeps the caches of standbys as warm as their primary's.

use std::time::Duration;

use howdah_connect::{ConnParams, ConnectTarget, Environment};
use howdah_warm::daemon::FollowSettings;
use howdah_warm::load::LoadOptions;

use super::{
    dump::PageSourceArg,
    watch::{load_options, shutdown_signal},
};
use crate::{
    context::CommandContext,
    logging,
    metrics::MetricsArgs,
    notify::service_state,
    outcome::CommandOutcome,
    values::{DATA_RATE_MAX, data_rate, time},
};

use anyhow::Context as _;

/// Keep standbys as warm as their primary, so that a failover does not start cold.
///
/// Each round reads the primary's cache and loads the hottest pages that a standby is missing. The
/// primary is determined anew in each round, so this continues after a promotion; an unreachable
/// server is skipped until it is back. Runs until SIGTERM or Ctrl-C.
///
/// Every server needs pg_buffercache or readable shared memory, as for `howdah warm dump`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The primary: a URI or a keyword string
    #[arg(value_name = "PRIMARY")]
    primary: String,
    /// Its standbys: URIs or keyword strings
    #[arg(value_name = "STANDBY", required = true)]
    standbys: Vec<String>,
    /// Time between rounds
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = time)]
    interval: Duration,
    /// Maximum rate of loading into each standby, per second
    #[arg(long, value_name = "SIZE", default_value = "16MB", value_parser = data_rate(DATA_RATE_MAX))]
    max_rate: u64,
    /// Maximum percentage of a standby's cache for the primary's pages
    #[arg(long, value_name = "PERCENT", default_value_t = 75,
          value_parser = clap::value_parser!(u8).range(1..=100))]
    share: u8,
    /// Load only into free buffers, without evicting pages
    #[arg(long)]
    only_free: bool,
    /// Number of connections that load concurrently, per standby
    #[arg(long, value_name = "COUNT", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: u16,
    /// Where to read the cached pages from
    #[arg(long, value_enum, value_name = "SOURCE", default_value_t)]
    source: PageSourceArg,
    #[command(flatten)]
    metrics: MetricsArgs,
}

const EXAMPLES: &str = "\
Examples:
  howdah warm follow postgresql://db1/shop postgresql://db2/shop postgresql://db3/shop
  howdah warm follow 'host=db1 dbname=shop' 'host=db2 dbname=shop' --interval 5m --max-rate 50MB";

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let conninfos = std::iter::once(&args.primary).chain(&args.standbys);
    let servers = conninfos.map(|conninfo| target(conninfo)).collect::<anyhow::Result<_>>()?;
    let settings = FollowSettings {
        servers,
        interval: args.interval,
        source: args.source.into(),
        load: LoadOptions {
            evict: !args.only_free,
            // A standby's own pages compete by their own counts.
            raise_resident: false,
            ..load_options(args.jobs, Some(args.max_rate))
        },
        share: f64::from(args.share) / 100.0,
    };
    // A service logs its events, so info is the default level.
    let _ = logging::adjust(Some(logging::Level::Info), None);
    let stop = shutdown_signal(ctx)?;
    let _metrics = args.metrics.serve(ctx)?;
    service_state("READY=1");
    howdah_warm::daemon::follow(&settings, &stop, ctx.registry());
    service_state("STOPPING=1");
    Ok(CommandOutcome::Done)
}

fn target(conninfo: &str) -> anyhow::Result<ConnectTarget> {
    let target =
        ConnectTarget::resolve(&ConnParams::from_conninfo(conninfo), &Environment::from_process())
            .context("invalid connection settings")?;
    for warning in target.warnings() {
        tracing::warn!("{warning}");
    }
    Ok(target)
}
