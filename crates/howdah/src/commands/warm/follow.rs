//! `howdah warm follow`: keeps the caches of standbys as warm as their primary's.

use std::time::Duration;

use howdah_connect::{ConnParams, ConnectTarget, Environment};
use howdah_warm::daemon::{DiscoverySettings, DiscoveryTemplate, FollowSettings, HoldOutSettings};
use howdah_warm::load::LoadOptions;

use super::{
    dump::PageSourceArg,
    warm_endpoint::ReadinessArgs,
    watch::{load_options, shutdown_signal},
};
use crate::{
    context::CommandContext,
    errors::WithHint as _,
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
/// More standbys can be discovered, and replicas can be held out of a pooler while they are cold.
///
/// Every server needs pg_buffercache or readable shared memory, as for `howdah warm dump`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The primary: a URI or a keyword string
    #[arg(value_name = "PRIMARY")]
    primary: String,
    /// Its standbys: URIs or keyword strings; optional with --discover or --discover-pooler
    #[arg(value_name = "STANDBY")]
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
    /// Also load standbys that stream from the servers, by pg_stat_replication; the role needs
    /// pg_monitor
    #[arg(long)]
    discover: bool,
    /// Port of discovered standbys [default: that of the server they stream from]
    #[arg(long, value_name = "PORT", requires = "discover", conflicts_with = "discover_uri",
          value_parser = clap::value_parser!(u16).range(1..))]
    discover_port: Option<u16>,
    /// Connection string of discovered standbys, with {host} for their host name or address, or
    /// {name} for their application_name [default: that of the server they stream from, with
    /// another host]
    #[arg(long, value_name = "URI", requires = "discover", value_parser = DiscoveryTemplate::new)]
    discover_uri: Option<DiscoveryTemplate>,
    /// Also load the standbys that the admin console of this pooler lists (howdah pool or
    /// PgBouncer); repeatable
    #[arg(long, value_name = "URI")]
    discover_pooler: Vec<String>,
    /// Time after which a discovered server that is neither listed nor reachable is dropped
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = time)]
    discover_timeout: Duration,
    /// Ban replicas below --warm-min in this pooler until they are warm: the admin console of a
    /// howdah pool; repeatable
    #[arg(long, value_name = "URI")]
    hold_out: Vec<String>,
    /// Maximum time to hold out a replica
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = time)]
    hold_out_max: Duration,
    #[command(flatten)]
    readiness: ReadinessArgs,
    #[command(flatten)]
    metrics: MetricsArgs,
}

const EXAMPLES: &str = "\
Examples:
  howdah warm follow postgresql://db1/shop postgresql://db2/shop postgresql://db3/shop
  howdah warm follow 'host=db1 dbname=shop' 'host=db2 dbname=shop' --interval 5m --max-rate 50MB
  howdah warm follow postgresql://db1/shop --discover --listen 0.0.0.0:9189
  howdah warm follow postgresql://db1/shop --discover-pooler postgresql://dba@pool:6432/howdah \
      --hold-out postgresql://dba@pool:6432/howdah";

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let is_discovering = args.discover || !args.discover_pooler.is_empty();
    if args.standbys.is_empty() && !is_discovering {
        let missing = Err(anyhow::anyhow!("there is no standby to keep warm"));
        return missing.hint("name standbys after the primary, or find them with --discover");
    }
    let targets = |conninfos: &[String]| -> anyhow::Result<Vec<ConnectTarget>> {
        conninfos.iter().map(|conninfo| target(conninfo)).collect()
    };
    let mut servers = targets(std::slice::from_ref(&args.primary))?;
    servers.extend(targets(&args.standbys)?);
    let hold_out = match &args.hold_out[..] {
        [] => None,
        poolers => Some(HoldOutSettings { poolers: targets(poolers)?, max: args.hold_out_max }),
    };
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
        discovery: DiscoverySettings {
            from_replication: args.discover,
            port: args.discover_port,
            uri: args.discover_uri.clone(),
            poolers: targets(&args.discover_pooler)?,
            timeout: args.discover_timeout,
        },
        hold_out,
        readiness: args.readiness.board(),
    };
    // A service logs its events, so info is the default level.
    let _ = logging::adjust(Some(logging::Level::Info), None);
    let stop = shutdown_signal(ctx)?;
    let _serving = args.readiness.serve(ctx, &args.metrics, &settings.readiness)?;
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
