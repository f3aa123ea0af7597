//! Tracks the cost of BPF programs against a budget, which is a share of all processors' time.

use std::{thread, time::Duration};

/// Compares the cost in each second with the allowed cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct TraceBudget {
    per_second: Duration,
    spent: Duration,
}

impl TraceBudget {
    /// Creates a budget. `share` is a fraction of the time of all processors, 0 to 1.
    pub(super) fn new(share: f64) -> Self {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let a_second = Duration::try_from_secs_f64(share.max(0.0) * processors as f64);
        Self { per_second: a_second.unwrap_or(Duration::MAX), spent: Duration::ZERO }
    }

    /// Adds the cost of a traced event to the current second.
    pub(super) fn spend(&mut self, cost: Duration) {
        self.spent = self.spent.saturating_add(cost);
    }

    /// Whether the current second has exceeded the budget.
    pub(super) fn is_used_up(&self) -> bool {
        self.spent > self.per_second
    }

    /// Starts a new second; returns what the last one cost, as a multiple of the budget.
    pub(super) fn next_second(&mut self) -> f64 {
        let spent = std::mem::take(&mut self.spent);
        spent.as_secs_f64() / self.per_second.as_secs_f64().max(1e-9)
    }
}

#[test]
fn budget_is_renewed_every_second() {
    let mut budget = TraceBudget::new(0.03);
    (0..29).for_each(|_| budget.spend(Duration::from_millis(1)));
    assert!(!budget.is_used_up());
    budget.spend(Duration::from_secs(100));
    assert!(budget.is_used_up());
    assert!(budget.next_second() > 1.0);
    assert!(!budget.is_used_up());
    assert!(!TraceBudget::new(f64::INFINITY).is_used_up());
}
