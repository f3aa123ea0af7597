//! `howdah warm watch`: saves images of a server at intervals, and loads them after a restart.

use std::{os::unix::net::UnixStream, path::PathBuf, time::Duration};

use anyhow::Context as _;
use howdah_warm::daemon::{ShutdownSignal, WatchError, WatchSettings};
use howdah_warm::{image::Generations, load::LoadOptions};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::{dump::PageSourceArg, warm_endpoint::ReadinessArgs};
use crate::{
    connection::ConnectionArgs,
    context::CommandContext,
    errors::WithHint as _,
    logging,
    metrics::MetricsArgs,
    notify::service_state,
    outcome::CommandOutcome,
    values::{DATA_RATE_MAX, data_rate, time_or_zero},
};

/// Keep a server warm across restarts: save images at intervals and load them after a restart.
///
/// Runs until SIGTERM or Ctrl-C, which save a last image. On the server's host, as its OS user or
/// root, pages are read from shared memory, a last time when the server is shutting down, and its
/// files are read ahead while it recovers. Elsewhere pg_buffercache is used.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = EXAMPLES)]
pub(super) struct Args {
    /// The server: a URI, a keyword string or a database name
    #[arg(value_name = "URI")]
    server: Option<String>,
    /// Folder for the images: newest.cache, and older ones as newest.cache.1, …
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Time between images; 0 saves one only when the server shuts down
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = time_or_zero)]
    interval: Duration,
    /// Number of older images to keep
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    keep: u32,
    /// Whether to run at all: with false, exits at once, to disable the service
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    enabled: bool,
    /// Where to read the cached pages from
    #[arg(long, value_enum, value_name = "SOURCE", default_value_t)]
    source: PageSourceArg,
    /// Do not save keys of rows, by which pages are found again in rewritten tables
    #[arg(long)]
    no_keys: bool,
    /// Number of connections that load concurrently
    #[arg(long, value_name = "COUNT", default_value_t = 2,
          value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: u16,
    /// Maximum rate of loading, per second
    #[arg(long, value_name = "SIZE", value_parser = data_rate(DATA_RATE_MAX))]
    max_rate: Option<u64>,
    /// The server's data directory, to read its files ahead while it cannot be queried
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    #[command(flatten)]
    readiness: ReadinessArgs,
    #[command(flatten)]
    metrics: MetricsArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

const EXAMPLES: &str = "\
Examples:
  howdah warm watch postgresql:///postgres -o /var/lib/howdah/warm
  howdah warm watch postgresql://db1/postgres -o warm --interval 1m --metrics 127.0.0.1:9188
  howdah warm watch postgresql:///postgres -o warm --listen 0.0.0.0:9189 --warm-min 90 --warm-min shop=95";

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    if !args.enabled {
        ctx.report("disabled: enabled is false");
        // systemd considers a service failed if it exits without having been ready.
        service_state("READY=1");
        return Ok(CommandOutcome::Done);
    }
    let settings = WatchSettings {
        target: args.connection.target(args.server.as_deref())?,
        folder: args.output.clone(),
        interval: Some(args.interval).filter(|interval| !interval.is_zero()),
        keep: Generations(args.keep),
        source: args.source.into(),
        row_keys: !args.no_keys,
        load: load_options(args.jobs, args.max_rate),
        data_dir: args.data_dir.clone(),
        readiness: args.readiness.board(),
    };
    // A service logs its events, so info is the default level.
    let _ = logging::adjust(Some(logging::Level::Info), None);
    let stop = shutdown_signal(ctx)?;
    let _serving = args.readiness.serve(ctx, &args.metrics, &settings.readiness)?;
    service_state("READY=1");
    let watched = howdah_warm::daemon::watch(&settings, &stop, ctx.registry());
    service_state("STOPPING=1");
    let hint = match &watched {
        Err(WatchError::UnreadableMemory { .. }) => {
            Some("run as the server's OS user on its host, or give an --interval")
        }
        Err(WatchError::FolderInUse { .. }) => Some("use a separate folder for each server"),
        _ => None,
    };
    let watched = watched.context("cannot watch the server");
    match hint {
        Some(hint) => watched.hint(hint)?,
        None => watched?,
    }
    Ok(CommandOutcome::Done)
}

/// Returns the load options of `warm watch` and `warm follow`.
pub(super) fn load_options(jobs: u16, bytes_per_second: Option<u64>) -> LoadOptions {
    LoadOptions {
        jobs: jobs.into(),
        bytes_per_second,
        // The daemon itself waits for a server that is down.
        connect_timeout: Duration::from_secs(2),
        ..LoadOptions::default()
    }
}

/// Returns a shutdown signal triggered by SIGTERM and Ctrl-C. A second such signal stops the
/// process immediately.
pub(super) fn shutdown_signal(ctx: &CommandContext) -> anyhow::Result<ShutdownSignal> {
    let _ = ctx.interrupted();
    let (reader, writer) = UnixStream::pair()?;
    for signal in [SIGINT, SIGTERM] {
        signal_hook::low_level::pipe::register(signal, writer.try_clone()?)?;
    }
    Ok(ShutdownSignal::from_stream(reader))
}
