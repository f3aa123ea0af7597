//! Compares the CPU time that tracing costs the server with a limit.

use std::{
    thread,
    time::{Duration, Instant},
};

/// Compares the cost of tracing with the permitted cost, about once per second.
#[derive(Debug)]
pub(super) struct CpuBudget {
    /// The allowed cost, as a share of all CPUs.
    allowed: f64,
    cost_per_event: Duration,
    started_at: Instant,
    /// Time and number of events at the last check.
    checked: (Instant, u64),
}

impl CpuBudget {
    pub(super) fn new(allowed: f64, cost_per_event: Duration) -> Self {
        let now = Instant::now();
        Self { allowed, cost_per_event, started_at: now, checked: (now, 0) }
    }

    /// Returns the cost of the events since the start, as a share of all CPUs.
    pub(super) fn share(&self, events: u64) -> f64 {
        self.share_of(events, self.started_at.elapsed())
    }

    fn share_of(&self, events: u64, elapsed: Duration) -> f64 {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let cost = self.cost_per_event.as_secs_f64() * events as f64;
        cost / (elapsed.as_secs_f64() * processors as f64).max(1e-9)
    }

    /// Returns the cost since the last check, as a share of all CPUs, if it exceeds the limit.
    /// Checks at most once per second.
    pub(super) fn exceeded(&mut self, events: u64) -> Option<f64> {
        let (at, before) = self.checked;
        let elapsed = at.elapsed();
        if elapsed < Duration::from_secs(1) {
            return None;
        }
        self.checked = (Instant::now(), events);
        Some(self.share_of(events - before, elapsed)).filter(|share| *share > self.allowed)
    }
}

#[test]
fn expensive_events_exceed_budget() {
    let mut budget = CpuBudget::new(0.03, Duration::from_millis(1));
    assert_eq!(budget.exceeded(1_000_000), None, "a second has not passed");
    let before = Instant::now().checked_sub(Duration::from_secs(2)).expect("the machine is up");
    budget.checked = (before, 0);
    assert!(budget.exceeded(1_000_000).is_some_and(|share| share > 0.03));
    budget.checked = (before, 1_000_000);
    assert_eq!(budget.exceeded(1_000_001), None);
}
