//! [`Concurrency`]: how many sessions, transactions and servers are in use at once.
//!
//! The percentiles are over the starts of transactions: `p99` is the number that 99 % of the
//! transactions did not exceed when they started. So times without traffic do not count, and a pool
//! of that many server connections gives 99 % of the transactions a server at once.

use std::collections::BTreeMap;

/// Three numbers that rise and fall over time.
#[derive(Debug, Default)]
pub(crate) struct Concurrency {
    pub(crate) sessions: UseCount,
    pub(crate) transactions: UseCount,
    /// Servers in use in adaptive mode: those of transactions and of pinned sessions.
    pub(crate) servers: UseCount,
}

/// A number in use, its maximum, and its values at the starts of transactions.
#[derive(Debug, Default)]
pub(crate) struct UseCount {
    current: u32,
    max: u32,
    samples: BTreeMap<u32, u64>,
}

/// How many were in use at once. Percentiles are over the starts of transactions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConcurrencyFigures {
    /// The median.
    pub p50: u32,
    /// The number that 99 % of the transactions did not exceed when they started.
    pub p99: u32,
    /// The maximum at any time.
    pub max: u32,
}

impl Concurrency {
    /// Records the numbers at the start of a transaction, which they include.
    pub(crate) fn sample(&mut self) {
        self.transactions.sample();
        self.servers.sample();
    }
}

impl UseCount {
    pub(crate) fn increment(&mut self) {
        self.current += 1;
        self.max = self.max.max(self.current);
    }

    pub(crate) fn decrement(&mut self) {
        self.current = self.current.saturating_sub(1);
    }

    fn sample(&mut self) {
        *self.samples.entry(self.current).or_default() += 1;
    }

    pub(crate) fn figures(&self) -> ConcurrencyFigures {
        ConcurrencyFigures { p50: self.percentile(50), p99: self.percentile(99), max: self.max }
    }

    fn percentile(&self, percent: u64) -> u32 {
        let total: u64 = self.samples.values().sum();
        let mut sum = 0;
        let reached = self.samples.iter().find(|(_, count)| {
            sum += **count;
            sum * 100 >= total * percent
        });
        reached.map_or(0, |(value, _)| *value)
    }
}

#[test]
fn percentiles_are_over_samples() {
    let mut count = UseCount::default();
    for sampled in [1, 98, 1] {
        count.increment();
        (0..sampled).for_each(|_| count.sample());
    }
    count.decrement();
    assert_eq!(count.figures(), ConcurrencyFigures { p50: 2, p99: 2, max: 3 });
    assert_eq!(UseCount::default().figures(), ConcurrencyFigures::default());
}
