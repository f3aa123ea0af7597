//! The loop of probes that trace with BPF programs.

use std::time::{Duration, Instant};

use howdah_inspect::RunningServer;

use super::{
    LiveError, Pace, ProbeOutput, ServerLiveness, ServerUnavailable, cpu_budget::CpuBudget,
    ticks::Ticks,
};

/// Time between reads of the BPF ring buffer.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Collects the events of BPF programs.
pub trait TracedProbe {
    /// An event that took at least the threshold, so that it is reported individually.
    type LongEvent;
    /// Aggregated events since the previous report.
    type Interval;

    /// Reads events from the kernel. Returns the number of events since the start.
    fn poll(&mut self) -> u64;
    /// Drains the events that took at least the threshold.
    fn drain_long_events(&mut self) -> Vec<Self::LongEvent>;
    /// Returns the events since the last call, aggregated, and starts over.
    fn drain_interval(&mut self) -> Self::Interval;
    /// Returns the time that tracing an event costs the traced process.
    fn cost_per_event(&self) -> Duration;
}

/// An update of a tracing probe.
#[derive(Debug)]
pub enum TraceUpdate<L, I> {
    /// An event that took at least the threshold.
    LongEvent(L),
    /// The aggregated events of an interval that has ended.
    Interval(I),
}

/// The result of [`trace()`]: the cost, and the reason for the end.
#[derive(Debug)]
pub struct TraceEnd {
    /// Cost since the start, as a share of all CPUs.
    pub overhead: f64,
    /// The cost in about the last second, as a share of all CPUs, if tracing ended because it
    /// exceeded the budget.
    pub over_budget: Option<f64>,
    /// The error, if the server stopped.
    pub stopped: Option<ServerUnavailable>,
}

/// Traces until the duration has passed, the user interrupts, the cost exceeds `budget` (a share of
/// all CPUs), or the server stops.
///
/// # Errors
///
/// The server had already stopped, or the output cannot be written.
pub fn trace<P: TracedProbe>(
    probe: &mut P,
    server: &RunningServer,
    (pace, budget): (&Pace, f64),
    output: &mut impl ProbeOutput<TraceUpdate<P::LongEvent, P::Interval>>,
) -> Result<TraceEnd, LiveError> {
    let mut monitor = ServerLiveness::new(server)?;
    let mut budget = CpuBudget::new(budget, probe.cost_per_event());
    let mut ticks = Ticks::start(pace, POLL_INTERVAL);
    let mut due = Instant::now() + pace.interval;
    let (mut over_budget, mut stopped) = (None, None);
    while stopped.is_none() && over_budget.is_none() && ticks.tick(output) {
        let events = probe.poll();
        for event in probe.drain_long_events() {
            output.write(TraceUpdate::LongEvent(event))?;
        }
        if Instant::now() >= due {
            due += pace.interval;
            output.write(TraceUpdate::Interval(probe.drain_interval()))?;
        }
        over_budget = budget.exceeded(events);
        stopped = monitor.poll().filter(|_| over_budget.is_none());
    }
    let events = probe.poll();
    for event in probe.drain_long_events() {
        output.write(TraceUpdate::LongEvent(event))?;
    }
    Ok(TraceEnd { overhead: budget.share(events), over_budget, stopped })
}
