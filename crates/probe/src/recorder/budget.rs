//! Tracks the cost of BPF programs against a budget: in each second a share of all processors'
//! time, and in the long run a share of the time that the server itself needs.

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

/// Spreads tracing over time, so that in the long run it costs at most a share of the processor
/// time that the server's processes need. A busy server can be traced all the time, unless most of
/// its work is what is traced.
#[derive(Clone, Copy, Debug)]
pub(super) struct TraceCredit {
    share: f64,
    /// The rest that may be spent, in seconds of a processor; negative if too much was.
    left: f64,
    /// The cost of the current second of tracing, and of the last whole one.
    spent: Duration,
    last: Duration,
    /// The server's processor time when it was last read.
    server: Option<Duration>,
}

impl TraceCredit {
    /// The most that is saved, in seconds of a processor.
    const LEFT_MAX: f64 = 0.02;

    /// Creates a credit. `share` is a fraction of the server's processor time, and `server` that
    /// which its processes have needed so far, if known.
    pub(super) fn new(share: f64, server: Option<Duration>) -> Self {
        let (spent, last) = (Duration::ZERO, Duration::ZERO);
        Self { share, left: 0.0, spent, last, server }
    }

    /// Returns the fraction of the server's processor time.
    pub(super) fn share(&self) -> f64 {
        self.share
    }

    /// Adds the cost of a traced event.
    pub(super) fn spend(&mut self, cost: Duration) {
        self.spent = self.spent.saturating_add(cost);
    }

    /// Ends a second. `server` is the processor time that the server's processes have needed since
    /// they started; `None` if it is unknown, which earns nothing.
    pub(super) fn next_second(&mut self, server: Option<Duration>) {
        if self.spent > Duration::ZERO {
            self.last = std::mem::take(&mut self.spent);
            self.left -= self.last.as_secs_f64();
        }
        if let (Some(before), Some(now)) = (self.server, server) {
            let earned = now.saturating_sub(before).as_secs_f64() * self.share;
            self.left = (self.left + earned).min(Self::LEFT_MAX);
        }
        self.server = server.or(self.server);
    }

    /// Whether more was spent than allowed.
    pub(super) fn is_used_up(&self) -> bool {
        self.left < 0.0
    }

    /// Whether another second like the last can be paid for.
    pub(super) fn is_enough(&self) -> bool {
        self.left >= self.last.as_secs_f64().min(Self::LEFT_MAX)
    }
}

#[test]
fn tracing_costs_a_share_of_what_the_server_needs() {
    let mut credit = TraceCredit::new(0.015, Some(Duration::ZERO));
    let (mut server, mut traced, mut is_traced) = (Duration::ZERO, 0, true);
    // A second of tracing costs 5 ms, and the server needs 100 ms in a second.
    for _ in 0..1000 {
        if is_traced {
            credit.spend(Duration::from_millis(5));
            traced += 1;
        }
        server += Duration::from_millis(100);
        credit.next_second(Some(server));
        is_traced = if is_traced { !credit.is_used_up() } else { credit.is_enough() };
    }
    assert!((290..=310).contains(&traced), "{traced} seconds were traced");
    // Where the server does much else, tracing never rests.
    let mut credit = TraceCredit::new(0.015, Some(Duration::ZERO));
    for second in 1..100 {
        credit.spend(Duration::from_millis(5));
        credit.next_second(Some(Duration::from_secs(second)));
        assert!(!credit.is_used_up());
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
