//! Summarises extension locks, overall and by relation.

use std::collections::HashMap;

use super::ExtensionLock;
use crate::distribution::{Distribution, DurationStats};

/// Distributions of waits and holds, overall and by relation.
#[derive(Clone, Debug, Default)]
pub struct ExtensionSummary {
    all: LockHistograms,
    relations: HashMap<(u32, u32), LockHistograms>,
}

/// Statistics of the waits for extension locks, of their holds, and of both together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockStats {
    /// From request to acquisition, for locks requested unconditionally, however short.
    pub wait: DurationStats,
    /// From acquisition to release, for all locks. The hold of a lock includes those of the locks
    /// taken inside it.
    pub hold: DurationStats,
    /// From request to release, for locks requested unconditionally.
    pub both: DurationStats,
}

/// Histograms of waits, holds, and their sum.
#[derive(Clone, Debug, Default)]
struct LockHistograms {
    wait: Distribution,
    hold: Distribution,
    both: Distribution,
    conditional: u64,
}

impl LockHistograms {
    fn add(&mut self, lock: &ExtensionLock) {
        self.hold.add(lock.hold);
        if lock.is_conditional {
            self.conditional += 1;
            return;
        }
        self.wait.add(lock.wait);
        self.both.add(lock.wait + lock.hold);
    }

    fn stats(&self) -> LockStats {
        LockStats { wait: self.wait.stats(), hold: self.hold.stats(), both: self.both.stats() }
    }
}

impl ExtensionSummary {
    /// Adds a lock to the summary.
    pub fn add(&mut self, lock: &ExtensionLock) {
        self.all.add(lock);
        self.relations.entry((lock.database, lock.relation)).or_default().add(lock);
    }

    /// Returns statistics of all locks.
    pub fn stats(&self) -> LockStats {
        self.all.stats()
    }

    /// Returns the number of locks taken conditionally.
    pub fn conditional(&self) -> u64 {
        self.all.conditional
    }

    /// Returns statistics by database and relation, ordered by total wait, longest first.
    pub fn relations(&self) -> Vec<((u32, u32), LockStats)> {
        let stats = |(of, histograms): (&(u32, u32), &LockHistograms)| (*of, histograms.stats());
        let mut relations: Vec<_> = self.relations.iter().map(stats).collect();
        relations.sort_by_key(|(of, stats)| (std::cmp::Reverse(stats.wait.total), *of));
        relations
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    fn lock(relation: u32, wait_us: u64, is_conditional: bool) -> ExtensionLock {
        ExtensionLock {
            pid: 1,
            database: 5,
            relation,
            released_at: SystemTime::UNIX_EPOCH,
            wait: Duration::from_micros(wait_us),
            hold: Duration::from_micros(10),
            is_conditional,
            stack: None,
        }
    }

    #[test]
    fn waits_and_holds_are_summed_separately() {
        let mut summary = ExtensionSummary::default();
        for (relation, wait_us) in [(7, 100), (7, 300), (8, 2000)] {
            summary.add(&lock(relation, wait_us, false));
        }
        summary.add(&lock(7, 0, true));
        let LockStats { wait, hold, both } = summary.stats();
        assert_eq!((wait.count, wait.min.as_micros().next_multiple_of(10)), (3, 100));
        assert_eq!(wait.total.as_micros().div_ceil(100), 24);
        assert_eq!((hold.count, both.count, summary.conditional()), (4, 3, 1));
        let both_us = [both.min, both.mean, both.max].map(|of| (of.as_micros() + 5) / 10);
        assert_eq!(both_us, [11, 81, 201]);
        let order: Vec<_> = summary.relations().iter().map(|(of, _)| *of).collect();
        assert_eq!(order, [(5, 8), (5, 7)]);
        assert_eq!(ExtensionSummary::default().stats(), LockStats::default());
    }
}
