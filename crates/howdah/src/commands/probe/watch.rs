//! What all probes share: the words that name the server, the form and the pace; and of those that trace in
//! the kernel, the words for long events and cost, and the loop.

use std::{
    io, thread,
    time::{Duration, Instant},
};

use clap::ValueEnum as _;
use howdah_inspect::Server;
use howdah_probe::{Life, SampleError};

use super::{
    pace::PaceArgs,
    rows::Format,
    target::{Found, Outside, Reached, TargetArgs},
};
use crate::{context::Context, errors};

/// Options of all probes.
#[derive(Debug, clap::Args)]
pub(super) struct WatchArgs {
    #[command(flatten)]
    pub(super) target: TargetArgs,
    /// Where figures come from
    #[arg(long, value_enum, value_name = "SOURCE", default_value_t)]
    pub(super) source: SourceName,
    /// Lines for a person, or rows, whose kinds the reference lists
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    pub(super) format: Format,
    #[command(flatten)]
    pub(super) pace: PaceArgs,
}

/// Value of `--source`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum SourceName {
    /// The best that is to be had here, in this order
    #[default]
    Best,
    /// Programs in the kernel
    Bpf,
    /// The server's memory
    Memory,
    /// Statements, which needs a URI
    Sql,
}

/// What was opened of a server.
pub(super) enum Opened<T> {
    /// Something that looks inside, and where names can be asked for.
    Inside(T, Box<Found>),
    /// Nothing: it is asked by SQL.
    Outside(Outside),
}

impl WatchArgs {
    /// Finds the server and opens what looks inside; where that cannot be had, and the source was not
    /// chosen, the server is asked by SQL. `sources` are those that the probe has.
    pub(super) fn open<T>(
        &self,
        sources: &[SourceName],
        open: impl FnOnce(&Server) -> anyhow::Result<T>,
    ) -> anyhow::Result<Opened<T>> {
        self.check_source(sources)?;
        let found = match self.target.reach(self.source)? {
            Reached::Inside(found) => found,
            Reached::Outside(outside) => return Ok(Opened::Outside(outside)),
        };
        match open(&found.server) {
            Ok(opened) => Ok(Opened::Inside(opened, found)),
            Err(error) => match found.session {
                Some((target, _)) if self.source == SourceName::Best => {
                    let reason = format!("{error:#}");
                    Ok(Opened::Outside(Outside { target: Box::new(target), reason }))
                }
                _ => Err(error),
            },
        }
    }

    /// Whether the probe has the source that is wanted.
    pub(super) fn check_source(&self, sources: &[SourceName]) -> anyhow::Result<()> {
        if self.source == SourceName::Best || sources.contains(&self.source) {
            return Ok(());
        }
        let name = |source: &SourceName| {
            source.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
        };
        let had: Vec<_> = sources.iter().map(name).collect();
        let wanted = name(&self.source);
        let had = had.join(", ");
        Err(errors::wrong_usage(format_args!("--source {wanted}: this probe has {had}")))
    }
}

/// Options of probes that trace in the kernel.
#[derive(Debug, clap::Args)]
pub(super) struct TraceArgs {
    #[command(flatten)]
    pub(super) watch: WatchArgs,
    /// Report each event that took at least this long, such as 100ms
    #[arg(long, value_name = "TIME", value_parser = crate::values::short_time)]
    pub(super) threshold: Option<Duration>,
    /// Where in the server's code each of these was
    #[arg(long, requires = "threshold")]
    pub(super) stacks: bool,
    /// Detach when it costs the machine more than so many percent of its processors
    #[arg(long, value_name = "PERCENT", default_value_t = 3.0)]
    budget: f64,
}

impl TraceArgs {
    /// From how long on an event gets its stack.
    pub(super) fn stacks_from(&self) -> Option<Duration> {
        self.threshold.filter(|_| self.stacks)
    }
}

/// What a probe traces, on its way out.
pub(super) trait Tracing {
    /// Takes in what the kernel has to tell. Gives the number of events since the beginning.
    fn drain(&mut self) -> u64;
    /// Tells of events above the threshold.
    fn tell_long(&mut self) -> io::Result<()>;
    /// Tells of an interval.
    fn tell_interval(&mut self) -> io::Result<()>;
    /// What an event costs the process that makes it.
    fn cost_of_event(&self) -> Duration;
}

/// How tracing ended.
#[derive(Debug)]
pub(super) struct Ended {
    /// What it cost, as a share of all processors.
    pub(super) overhead: f64,
    /// The server ended under it.
    pub(super) server: Option<anyhow::Error>,
}

/// From one look at the kernel's ring to the next.
const EVERY: Duration = Duration::from_millis(20);

/// Traces until the time is over, somebody wants to end, the budget is used up, or the server ends.
pub(super) fn trace(
    tracing: &mut impl Tracing,
    server: &Server,
    args: &TraceArgs,
    ctx: &Context,
) -> anyhow::Result<Ended> {
    let TraceArgs { watch: WatchArgs { pace, .. }, budget: percent, .. } = args;
    let mut watched = Watched::new(server)?;
    let mut budget = Budget::new(percent / 100.0, tracing.cost_of_event());
    let mut ticks = pace.begin(ctx, EVERY);
    let mut due = Instant::now() + pace.interval;
    let mut ended = None;
    // Where nothing happens there is no line for long.
    ctx.say(format_args!("attached to the server of process {}", server.postmaster().pid()));
    while ended.is_none() && ticks.tick() {
        let events = tracing.drain();
        tracing.tell_long()?;
        if Instant::now() >= due {
            due += pace.interval;
            tracing.tell_interval()?;
        }
        if let Some(share) = budget.exceeded(events) {
            let share = 100.0 * share;
            ctx.say(format_args!(
                "detached: it cost {share:.1} % of the processors, {percent} % are allowed (--budget)"
            ));
            break;
        }
        ended = watched.ended();
    }
    let events = tracing.drain();
    tracing.tell_long()?;
    Ok(Ended { overhead: budget.share(events), server: ended })
}

/// A server that may end while it is looked at.
pub(super) struct Watched {
    life: Life,
    data_dir: std::path::PathBuf,
    looked: Instant,
}

impl Watched {
    pub(super) fn new(server: &Server) -> anyhow::Result<Self> {
        let (life, data_dir) = (Life::of(server)?, server.data_dir()?);
        Ok(Self { life, data_dir, looked: Instant::now() })
    }

    /// Why it is not there any more; looks every half second.
    pub(super) fn ended(&mut self) -> Option<anyhow::Error> {
        if self.looked.elapsed() < Duration::from_millis(500) {
            return None;
        }
        self.looked = Instant::now();
        self.why_gone()
    }

    /// The same, looking at once.
    pub(super) fn why_gone(&self) -> Option<anyhow::Error> {
        self.life.check().err().map(|error| self.explain(error))
    }

    /// Whether it is gone within a second.
    fn gone_soon(&self) -> Option<SampleError> {
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(1) {
            if let Err(error) = self.life.check() {
                return Some(error);
            }
            thread::sleep(Duration::from_millis(10));
        }
        None
    }

    /// What to do about it.
    pub(super) fn explain(&self, error: SampleError) -> anyhow::Error {
        let error = match error {
            // A server that stops gives its memory back a moment before it is gone.
            SampleError::Reinitialised { .. } => self.gone_soon().unwrap_or(error),
            error => error,
        };
        let is_ended = matches!(error, SampleError::Ended { .. });
        let again = Server::in_data_dir(&self.data_dir).ok().filter(|_| is_ended);
        let error = anyhow::Error::from(error);
        match again {
            Some(server) => {
                let pid = server.postmaster().pid();
                let hint = format!("it was started again, as process {pid}: begin the probe anew");
                errors::with_hint(error, hint)
            }
            None => error,
        }
    }
}

/// What programs may cost.
struct Budget {
    allowed: f64,
    cost_of_event: Duration,
    began: Instant,
    /// When events were counted last, and how many there were.
    counted: (Instant, u64),
}

impl Budget {
    fn new(allowed: f64, cost_of_event: Duration) -> Self {
        let now = Instant::now();
        Self { allowed, cost_of_event, began: now, counted: (now, 0) }
    }

    /// The share of all processors that events cost since the beginning.
    fn share(&self, events: u64) -> f64 {
        self.share_of(events, self.began.elapsed())
    }

    fn share_of(&self, events: u64, elapsed: Duration) -> f64 {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let cost = self.cost_of_event.as_secs_f64() * events as f64;
        cost / (elapsed.as_secs_f64() * processors as f64).max(1e-9)
    }

    /// The share of the last second, if it is more than is allowed.
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
fn a_budget_is_exceeded_by_events_that_cost_too_much() {
    let mut budget = Budget::new(0.03, Duration::from_millis(1));
    assert_eq!(budget.exceeded(1_000_000), None, "a second has not passed");
    let before = Instant::now().checked_sub(Duration::from_secs(2)).expect("the machine is up");
    budget.counted = (before, 0);
    assert!(budget.exceeded(1_000_000).is_some_and(|share| share > 0.03));
    budget.counted = (before, 1_000_000);
    assert_eq!(budget.exceeded(1_000_001), None);
}
