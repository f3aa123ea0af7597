//! `howdah probe run`: the flight recorder.

use std::{
    io::Write as _,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use howdah_probe::{
    RelationNamer,
    live::{RecordingLimits, record},
    recorder::{FlightRecorder, RecorderOptions, RecorderStartError, Thresholds, TriggerSetting},
};
use howdah_report::probe::{event_line, started, totals, totals_remarks};

use super::target::{LocalServer, TargetArgs};
use crate::{
    context::CommandContext, errors::WithHint as _, metrics::MetricsArgs, outcome::CommandOutcome,
};

/// Record a server continuously to a file of limited size.
///
/// Cheap data is recorded every second: checkpoints, extension locks, the clock sweep, and waits
/// sampled 100 times per second; with a URI, also the sessions that are not idle, their statements
/// without literal values, their blockers, and the server's counters. When a trigger fires, exact
/// probes of io, wal and locks are attached for ten seconds, and the half minutes before and after
/// are protected from being overwritten. If the server stops, the recorder waits for it. `howdah
/// probe report FILE` shows the result.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    target: TargetArgs,
    /// The recording; an existing one is continued
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Maximum size of the file; the oldest data is overwritten [default: 64MB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    max_size: Option<u64>,
    /// Samples per second
    #[arg(long, value_name = "HZ", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    frequency: u32,
    /// Exit after this time, in seconds or as in 30m [default: run until Ctrl-C or SIGTERM]
    #[arg(long, value_name = "TIME", value_parser = crate::values::time)]
    duration: Option<Duration>,
    /// Threshold for attaching exact probes: extend-p99=100ms, sweep=50, checkpoint-sync=10s,
    /// locks=20, commits-stopped=5s, standby-lag=60s, wal-sync=N, active=N, pressure=P%, or
    /// NAME=off; repeatable
    ///
    /// The values shown are the defaults; the last three are off. extend-p99: the 99th percentile
    /// of at least ten waits for extension locks in a second. sweep: buffers examined per allocated
    /// buffer, over a second with at least 100 allocations. checkpoint-sync: how long a checkpoint
    /// has been syncing files. locks, wal-sync, active: the average number of sessions over a
    /// second that wait for heavyweight locks, wait for the WAL to be written or synced, or execute
    /// statements; 4x means four times the number of CPUs. commits-stopped: how long no transaction
    /// has committed although sessions wait. standby-lag: the replay lag of the slowest standby;
    /// both need a URI. pressure: the share of the last ten seconds in which processes waited for
    /// CPU, I/O or memory (/proc/pressure, where the kernel has it).
    #[arg(long, value_name = "NAME=VALUE")]
    trigger: Vec<TriggerSetting>,
    /// Disable all triggers
    #[arg(long, conflicts_with = "trigger")]
    no_triggers: bool,
    /// Minimum time from the end of an episode until a trigger fires again
    #[arg(long, value_name = "TIME", value_parser = crate::values::time, default_value = "60s")]
    cool_down: Duration,
    /// Maximum cost of BPF programs, in percent of all CPUs; more expensive ones are detached
    #[arg(long, value_name = "PERCENT", default_value_t = 3.0)]
    budget: f64,
    /// Maximum cost of tracing extension locks, in percent of the server's own processor time; if
    /// it is more, only some seconds are traced, except after a trigger and while sessions wait
    #[arg(long, value_name = "PERCENT", default_value_t = 0.1)]
    server_budget: f64,
    /// Exit when the server stops, instead of waiting for it to restart
    #[arg(long)]
    until_server_stops: bool,
    #[command(flatten)]
    metrics: MetricsArgs,
}

const EXAMPLES: &str = "\
Examples:
  howdah probe run postgresql://localhost/shop -o shop.rec
  howdah probe run --data-dir /var/lib/postgresql/17/main -o main.rec --max-size 256MB
  howdah probe run --pid 4711 -o main.rec --duration 30m --trigger extend-p99=20ms --trigger sweep=off";

fn size(text: &str) -> Result<u64, String> {
    howdah_settings::parse_size(text)
        .filter(|bytes| (1 << 20..=4 << 30).contains(bytes))
        .ok_or_else(|| "write a size from 1MB to 4GB, such as 64MB".to_owned())
}

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let LocalServer { server, session } = args.target.find()?;
    let options = args.options();
    let target = session.as_ref().map(|(target, _)| target.clone());
    // Before the first line of output, whose reader may send a signal.
    let stop = ctx.interrupted();
    let opened = FlightRecorder::start(&server, &args.output, options, target, Instant::now());
    let mut recorder = match opened {
        Err(error @ RecorderStartError::Server(_)) => Err(error)
            .context("cannot record")
            .hint("`howdah probe doctor` shows what can be measured here")?,
        opened => opened?,
    };
    let _metrics = args.metrics.serve(ctx)?;
    if args.metrics.is_enabled() {
        recorder.export_to(ctx.registry().clone());
    }
    let namer = session.map(RelationNamer::start).transpose()?;
    let print = |text: &str| {
        let mut out = ctx.stdout();
        out.write_all(text.as_bytes())?;
        out.flush()
    };
    print(&started(&args.output, &options.thresholds, recorder.metric_sources()))?;
    let limits = RecordingLimits {
        duration: args.duration,
        until_server_stops: args.until_server_stops,
        stop,
    };
    let reason = record(&mut recorder, namer.as_ref(), &limits, |event| {
        event_line(event).map_or(Ok(()), |line| print(&line))
    })?;
    let summary = recorder.finish(reason.as_str(), Instant::now());
    print(&totals(&summary, reason))?;
    totals_remarks(&summary).iter().for_each(|remark| ctx.report(remark));
    Ok(CommandOutcome::Done)
}

impl Args {
    fn options(&self) -> RecorderOptions {
        let mut thresholds =
            if self.no_triggers { Thresholds::NONE } else { Thresholds::default() };
        self.trigger.iter().for_each(|setting| thresholds.set(*setting));
        RecorderOptions {
            rate: self.frequency,
            thresholds,
            cool_down: self.cool_down,
            budget: self.budget / 100.0,
            server_budget: self.server_budget / 100.0,
            max_bytes: self.max_size,
        }
    }
}
