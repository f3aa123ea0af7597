//! What programs in the kernel may cost, of all processors' time.

use std::{thread, time::Duration};

/// Counts what was spent in a second against what may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    a_second: Duration,
    spent: Duration,
}

impl Budget {
    /// `share`: of all processors, 0 to 1.
    pub(super) fn new(share: f64) -> Self {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let a_second = Duration::try_from_secs_f64(share.max(0.0) * processors as f64);
        Self { a_second: a_second.unwrap_or(Duration::MAX), spent: Duration::ZERO }
    }

    /// A hit that costs so much.
    pub(super) fn spend(&mut self, cost: Duration) {
        self.spent = self.spent.saturating_add(cost);
    }

    /// Whether all of a second's is spent: there is no need to wait for its end.
    pub(super) fn is_used_up(&self) -> bool {
        self.spent > self.a_second
    }

    /// How much was spent, as a multiple of what may be; a new second begins.
    pub(super) fn next_second(&mut self) -> f64 {
        let spent = std::mem::take(&mut self.spent);
        spent.as_secs_f64() / self.a_second.as_secs_f64().max(1e-9)
    }
}

#[test]
fn a_budget_is_for_a_second() {
    let mut budget = Budget::new(0.03);
    (0..29).for_each(|_| budget.spend(Duration::from_millis(1)));
    assert!(!budget.is_used_up());
    budget.spend(Duration::from_secs(100));
    assert!(budget.is_used_up());
    assert!(budget.next_second() > 1.0);
    assert!(!budget.is_used_up());
    assert!(!Budget::new(f64::INFINITY).is_used_up());
}
