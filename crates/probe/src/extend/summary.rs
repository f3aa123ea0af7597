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
}

impl ExtensionSummary {
    /// Adds a lock to the summary.
    pub fn add(&mut self, lock: &ExtensionLock) {
        self.all.add(lock);
        self.relations.entry((lock.database, lock.relation)).or_default().add(lock);
    }

    /// Returns statistics of the waits for locks requested unconditionally, however short.
    pub fn waits(&self) -> DurationStats {
        self.all.wait.stats()
    }

    /// Returns statistics of the hold times of all locks.
    pub fn holds(&self) -> DurationStats {
        self.all.hold.stats()
    }

    /// Returns statistics of the times from request to release, for locks requested
    /// unconditionally.
    pub fn wait_and_hold(&self) -> DurationStats {
        self.all.both.stats()
    }

    /// Returns the number of locks taken conditionally.
    pub fn conditional(&self) -> u64 {
        self.all.conditional
    }

    /// Returns statistics of waits and holds by database and relation, ordered by total wait,
    /// longest first.
    pub fn relations(&self) -> Vec<((u32, u32), DurationStats, DurationStats)> {
        let mut relations: Vec<_> = self
            .relations
            .iter()
            .map(|(of, histograms)| (*of, histograms.wait.stats(), histograms.hold.stats()))
            .collect();
        relations.sort_by_key(|(of, wait, _)| (std::cmp::Reverse(wait.total), *of));
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
        let waits = summary.waits();
        assert_eq!((waits.count, waits.min.as_micros().next_multiple_of(10)), (3, 100));
        assert_eq!(waits.total.as_micros().div_ceil(100), 24);
        assert_eq!((summary.holds().count, summary.conditional()), (4, 1));
        assert_eq!(summary.wait_and_hold().max.as_micros() / 100, 20);
        let order: Vec<_> = summary.relations().iter().map(|(of, _, _)| *of).collect();
        assert_eq!(order, [(5, 8), (5, 7)]);
        assert_eq!(ExtensionSummary::default().waits(), DurationStats::default());
    }
}
