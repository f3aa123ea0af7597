//! Waits and holds, added up: for a second, for a relation, for a whole run.

use std::collections::HashMap;

use super::ExtensionLock;
use crate::distribution::{Distribution, Figures};

/// Locks, added up.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    all: Spread,
    relations: HashMap<(u32, u32), Spread>,
}

/// Of some locks: waits, holds, and both together.
#[derive(Clone, Debug, Default)]
struct Spread {
    wait: Distribution,
    hold: Distribution,
    both: Distribution,
    conditional: u64,
}

impl Spread {
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

impl Summary {
    /// Adds a lock.
    pub fn add(&mut self, lock: &ExtensionLock) {
        self.all.add(lock);
        self.relations.entry((lock.database, lock.relation)).or_default().add(lock);
    }

    /// Locks that were asked for and waited for, however shortly.
    #[must_use]
    pub fn waits(&self) -> Figures {
        self.all.wait.figures()
    }

    /// How long locks were held.
    #[must_use]
    pub fn holds(&self) -> Figures {
        self.all.hold.figures()
    }

    /// From asking to letting go.
    #[must_use]
    pub fn both(&self) -> Figures {
        self.all.both.figures()
    }

    /// Locks that were taken only because they could be had at once.
    #[must_use]
    pub fn conditional(&self) -> u64 {
        self.all.conditional
    }

    /// Waits and holds by database and relation, those that were waited for longest first.
    #[must_use]
    pub fn relations(&self) -> Vec<((u32, u32), Figures, Figures)> {
        let mut relations: Vec<_> = self
            .relations
            .iter()
            .map(|(of, spread)| (*of, spread.wait.figures(), spread.hold.figures()))
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
    fn waits_and_holds_are_apart() {
        let mut summary = Summary::default();
        for (relation, wait_us) in [(7, 100), (7, 300), (8, 2000)] {
            summary.add(&lock(relation, wait_us, false));
        }
        summary.add(&lock(7, 0, true));
        let waits = summary.waits();
        assert_eq!((waits.count, waits.min.as_micros().next_multiple_of(10)), (3, 100));
        assert_eq!(waits.total.as_micros().div_ceil(100), 24);
        assert_eq!((summary.holds().count, summary.conditional()), (4, 1));
        assert_eq!(summary.both().max.as_micros() / 100, 20);
        let order: Vec<_> = summary.relations().iter().map(|(of, _, _)| *of).collect();
        assert_eq!(order, [(5, 8), (5, 7)]);
        assert_eq!(Summary::default().waits(), Figures::default());
    }
}
