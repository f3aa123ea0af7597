//! Shared by all probes: options for server, format and timing; and for tracing probes, options for
//! long events and cost, and the trace loop.

use std::{
    io, thread,
    time::{Duration, Instant},
};

use clap::ValueEnum as _;
use howdah_inspect::RunningServer;
use howdah_probe::{PostmasterIdentity, SampleError};

use super::{
    pace::PaceArgs,
    rows::RowFormat,
    target::{LocalServer, ServerAccess, SqlTarget, TargetArgs},
};
use crate::{context::CommandContext, errors};

/// Options of all probes.
#[derive(Debug, clap::Args)]
pub(super) struct WatchArgs {
    #[command(flatten)]
    pub(super) target: TargetArgs,
    /// Source of the metrics
    #[arg(long, value_enum, value_name = "SOURCE", default_value_t)]
    pub(super) source: SourceName,
    /// Output format; the kinds of rows are described in the reference
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    pub(super) format: RowFormat,
    #[command(flatten)]
    pub(super) pace: PaceArgs,
}

/// Value of `--source`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum SourceName {
    /// The best available source, in this order
    #[default]
    Best,
    /// BPF programs in the kernel
    Bpf,
    /// The server's memory
    Memory,
    /// SQL statements; needs a URI
    Sql,
}

/// A probe opened for a server.
pub(super) enum OpenedProbe<T> {
    /// A local probe, and the server.
    Local(T, Box<LocalServer>),
    /// A local probe is not possible, so SQL must be used.
    Sql(SqlTarget),
}

impl WatchArgs {
    /// Finds the server and opens the probe; if that fails and no source was chosen, falls back to
    /// SQL. `sources` are those that the probe supports.
    pub(super) fn open<T>(
        &self,
        sources: &[SourceName],
        open: impl FnOnce(&RunningServer) -> anyhow::Result<T>,
    ) -> anyhow::Result<OpenedProbe<T>> {
        self.check_source(sources)?;
        let found = match self.target.reach(self.source)? {
            ServerAccess::Local(found) => found,
            ServerAccess::Sql(outside) => return Ok(OpenedProbe::Sql(outside)),
        };
        match open(&found.server) {
            Ok(opened) => Ok(OpenedProbe::Local(opened, found)),
            Err(error) => match found.session {
                Some((target, _)) if self.source == SourceName::Best => {
                    let reason = format!("{error:#}");
                    Ok(OpenedProbe::Sql(SqlTarget { target: Box::new(target), reason }))
                }
                _ => Err(error),
            },
        }
    }

    /// Checks that the probe supports the chosen source.
    pub(super) fn check_source(&self, sources: &[SourceName]) -> anyhow::Result<()> {
        if self.source == SourceName::Best || sources.contains(&self.source) {
            return Ok(());
        }
        let name = |source: &SourceName| {
            source.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
        };
        let supported: Vec<_> = sources.iter().map(name).collect();
        let requested = name(&self.source);
        let supported = supported.join(", ");
        Err(errors::wrong_usage(format_args!(
            "--source {requested}: this probe supports {supported}"
        )))
    }
}

/// Options of probes that trace with BPF programs.
#[derive(Debug, clap::Args)]
pub(super) struct TraceArgs {
    #[command(flatten)]
    pub(super) watch: WatchArgs,
    /// Report each event that took at least this long, such as 100ms
    #[arg(long, value_name = "TIME", value_parser = crate::values::short_time)]
    pub(super) threshold: Option<Duration>,
    /// Print the call stack of each of these events
    #[arg(long, requires = "threshold")]
    pub(super) stacks: bool,
    /// Detach if tracing costs more than this percentage of all CPUs
    #[arg(long, value_name = "PERCENT", default_value_t = 3.0)]
    budget: f64,
}

impl TraceArgs {
    /// Minimum duration of events whose stacks are recorded.
    pub(super) fn stacks_from(&self) -> Option<Duration> {
        self.threshold.filter(|_| self.stacks)
    }
}

/// Collects and reports the events of a tracing probe.
pub(super) trait TraceOutput {
    /// Reads events from the kernel. Returns the number of events since the start.
    fn drain(&mut self) -> u64;
    /// Reports events above the threshold.
    fn report_long_events(&mut self) -> io::Result<()>;
    /// Writes the data since the last report, even if there were no events.
    fn report_interval(&mut self) -> io::Result<()>;
    /// Cost of an event for the traced process.
    fn cost_per_event(&self) -> Duration;
}

/// Result of tracing.
#[derive(Debug)]
pub(super) struct TraceEnd {
    /// Cost as a share of all CPUs.
    pub(super) overhead: f64,
    /// Error if the server stopped.
    pub(super) server: Option<anyhow::Error>,
}

/// Time between reads of the BPF ring buffer.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Traces until the duration is over, the user interrupts, the budget is exceeded, or the server
/// stops.
pub(super) fn trace(
    tracing: &mut impl TraceOutput,
    server: &RunningServer,
    args: &TraceArgs,
    ctx: &CommandContext,
) -> anyhow::Result<TraceEnd> {
    let TraceArgs { watch: WatchArgs { pace, .. }, budget: percent, .. } = args;
    let mut watched = ServerWatch::new(server)?;
    let mut budget = CpuBudget::new(percent / 100.0, tracing.cost_per_event());
    let mut ticks = pace.start(ctx, POLL_INTERVAL);
    let mut due = Instant::now() + pace.interval;
    let mut ended = None;
    // Report it now, because an idle server may print nothing for a long time.
    ctx.report(format_args!(
        "attached to the server with postmaster {}",
        server.postmaster().pid()
    ));
    while ended.is_none() && ticks.tick() {
        let events = tracing.drain();
        tracing.report_long_events()?;
        if Instant::now() >= due {
            due += pace.interval;
            tracing.report_interval()?;
        }
        if let Some(share) = budget.exceeded(events) {
            let share = 100.0 * share;
            ctx.report(format_args!(
                "detached: tracing cost {share:.1} % of the CPUs, {percent} % are allowed (--budget)"
            ));
            break;
        }
        ended = watched.ended();
    }
    let events = tracing.drain();
    tracing.report_long_events()?;
    Ok(TraceEnd { overhead: budget.share(events), server: ended })
}

/// Detects that a server has stopped while it is being probed.
pub(super) struct ServerWatch {
    life: PostmasterIdentity,
    data_dir: std::path::PathBuf,
    looked: Instant,
}

impl ServerWatch {
    pub(super) fn new(server: &RunningServer) -> anyhow::Result<Self> {
        let (life, data_dir) = (PostmasterIdentity::for_server(server)?, server.data_dir()?);
        Ok(Self { life, data_dir, looked: Instant::now() })
    }

    /// The error if the server has stopped; checks at most every half second.
    pub(super) fn ended(&mut self) -> Option<anyhow::Error> {
        if self.looked.elapsed() < Duration::from_millis(500) {
            return None;
        }
        self.looked = Instant::now();
        self.why_gone()
    }

    /// Like [`Self::ended`], but checks immediately.
    pub(super) fn why_gone(&self) -> Option<anyhow::Error> {
        self.life.check().err().map(|error| self.explain(error))
    }

    /// The error if the server stops within a second.
    fn gone_soon(&self) -> Option<SampleError> {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(1) {
            if let Err(error) = self.life.check() {
                return Some(error);
            }
            thread::sleep(Duration::from_millis(10));
        }
        None
    }

    /// Adds a hint to an error.
    pub(super) fn explain(&self, error: SampleError) -> anyhow::Error {
        let error = match error {
            // A stopping server releases its shared memory shortly before it exits.
            SampleError::Reinitialised { .. } => self.gone_soon().unwrap_or(error),
            error => error,
        };
        let is_ended = matches!(error, SampleError::ServerStopped { .. });
        let again = RunningServer::in_data_dir(&self.data_dir).ok().filter(|_| is_ended);
        let error = anyhow::Error::from(error);
        match again {
            Some(server) => {
                let pid = server.postmaster().pid();
                let hint =
                    format!("it was restarted, with postmaster {pid}: start the probe again");
                errors::with_hint(error, hint)
            }
            None => error,
        }
    }
}

/// Limits the cost of tracing.
struct CpuBudget {
    allowed: f64,
    cost_per_event: Duration,
    started_at: Instant,
    /// Time and number of events at the last check.
    counted: (Instant, u64),
}

impl CpuBudget {
    fn new(allowed: f64, cost_per_event: Duration) -> Self {
        let now = Instant::now();
        Self { allowed, cost_per_event, started_at: now, counted: (now, 0) }
    }

    /// Cost of the events since the start, as a share of all CPUs.
    fn share(&self, events: u64) -> f64 {
        self.share_of(events, self.started_at.elapsed())
    }

    fn share_of(&self, events: u64, elapsed: Duration) -> f64 {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let cost = self.cost_per_event.as_secs_f64() * events as f64;
        cost / (elapsed.as_secs_f64() * processors as f64).max(1e-9)
    }

    /// The share since the last check, if above the limit. Checks once per second.
    fn exceeded(&mut self, events: u64) -> Option<f64> {
        let (at, before) = self.counted;
        let elapsed = at.elapsed();
        if elapsed < Duration::from_secs(1) {
            return None;
        }
        self.counted = (Instant::now(), events);
        Some(self.share_of(events - before, elapsed)).filter(|share| *share > self.allowed)
    }
}

#[test]
fn expensive_events_exceed_budget() {
    let mut budget = CpuBudget::new(0.03, Duration::from_millis(1));
    assert_eq!(budget.exceeded(1_000_000), None, "a second has not passed");
    let before = Instant::now().checked_sub(Duration::from_secs(2)).expect("the machine is up");
    budget.counted = (before, 0);
    assert!(budget.exceeded(1_000_000).is_some_and(|share| share > 0.03));
    budget.counted = (before, 1_000_000);
    assert_eq!(budget.exceeded(1_000_001), None);
}
