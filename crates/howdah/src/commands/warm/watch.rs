//! `howdah warm watch`: images of a server at intervals, loaded when it comes back.

use std::{os::unix::net::UnixStream, path::PathBuf, time::Duration};

use anyhow::Context as _;
use howdah_keeper::{Stop, WatchError, WatchSettings};
use howdah_warm::{image::Generations, load::Options};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::dump::Source;
use crate::{
    connection::ConnectionArgs,
    context::Context,
    errors::WithHint as _,
    logging,
    metrics::MetricsArgs,
    notify::service_state,
    outcome::Outcome,
    values::{DATA_RATE_MAX, data_rate, time_or_zero},
};

/// Keep a server warm over restarts: an image at intervals, loaded when the server comes back.
///
/// Runs until SIGTERM or Ctrl-C, which take a last image. On the server's own host, as its user or root,
/// pages are read from its memory, a last time after its shutdown has begun, and its files are read ahead
/// while it recovers. Elsewhere pg_buffercache is asked.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = EXAMPLES)]
pub(super) struct Args {
    /// The server: a URI, a keyword string, or a database's name
    #[arg(value_name = "URI")]
    server: Option<String>,
    /// Folder for the images: newest.cache, and older ones as newest.cache.1, …
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Time between images; 0 takes one only when the server shuts down
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = time_or_zero)]
    interval: Duration,
    /// How many older images to keep
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    keep: u32,
    /// Whether to watch at all: false ends at once, as a service that is switched off
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    enabled: bool,
    /// Where the pages are read
    #[arg(long, value_enum, value_name = "SOURCE", default_value_t)]
    source: Source,
    /// Connections that load at once
    #[arg(long, value_name = "COUNT", default_value_t = 2,
          value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: u16,
    /// Load at most so much a second
    #[arg(long, value_name = "SIZE", value_parser = data_rate(DATA_RATE_MAX))]
    max_rate: Option<u64>,
    /// The server's data directory, for reading its files ahead while it cannot say where it is
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    #[command(flatten)]
    metrics: MetricsArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

const EXAMPLES: &str = "\
Examples:
  howdah warm watch postgresql:///postgres -o /var/lib/howdah/warm
  howdah warm watch postgresql://db1/postgres -o warm --interval 1m --metrics 127.0.0.1:9188";

pub(super) fn run(args: &Args, ctx: &Context) -> anyhow::Result<Outcome> {
    if !args.enabled {
        ctx.say("switched off: enabled is false");
        // A service that ends without having been ready would be a failed one.
        service_state("READY=1");
        return Ok(Outcome::Done);
    }
    let settings = WatchSettings {
        target: args.connection.target(args.server.as_deref())?,
        folder: args.output.clone(),
        interval: Some(args.interval).filter(|interval| !interval.is_zero()),
        keep: Generations(args.keep),
        choice: args.source.into(),
        load: load_options(args.jobs, args.max_rate),
        data_dir: args.data_dir.clone(),
    };
    // What happens is what its log is for.
    let _ = logging::adjust(Some(logging::Level::Info), None);
    let stop = stop(ctx)?;
    let _metrics = args.metrics.serve(ctx)?;
    service_state("READY=1");
    let watched = howdah_keeper::watch(&settings, &stop, ctx.registry());
    service_state("STOPPING=1");
    let hint = match &watched {
        Err(WatchError::NoMemory { .. }) => {
            Some("run as the server's user on its host, or give an --interval")
        }
        Err(WatchError::FolderInUse { .. }) => Some("give each server a folder of its own"),
        _ => None,
    };
    let watched = watched.context("cannot watch the server");
    match hint {
        Some(hint) => watched.hint(hint)?,
        None => watched?,
    }
    Ok(Outcome::Done)
}

/// How a keeper loads.
pub(super) fn load_options(jobs: u16, bytes_per_second: Option<u64>) -> Options {
    Options {
        jobs: jobs.into(),
        bytes_per_second,
        // A server that went away is the keeper's to wait for.
        patience: Duration::from_secs(2),
        ..Options::default()
    }
}

/// Told by SIGTERM and Ctrl-C. A second one stops at once.
pub(super) fn stop(ctx: &Context) -> anyhow::Result<Stop> {
    let _ = ctx.interrupted();
    let (reader, writer) = UnixStream::pair()?;
    for signal in [SIGINT, SIGTERM] {
        signal_hook::low_level::pipe::register(signal, writer.try_clone()?)?;
    }
    Ok(Stop::by(reader))
}
