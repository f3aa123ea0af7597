//! Giving up pools that nobody uses, and using their numbers again.
//!
//! A pool is used while it has clients or servers in any worker, or on their way from one to another: each
//! has a permit of [`PoolEntry::occupants`]. The first one of a pool comes under the directory's lock. So
//! one that is seen here without any stays so as soon as nobody is led to it any more; what workers still
//! have of it can then be dropped by letter, in any order, while the next client of its key is in a pool of
//! another number. A number is free when every worker has said that it knows nothing of the pool, and some
//! time later, so that nobody's look at all pools takes the one for the other.
//!
//! ```text
//! used ──► unused ──► leaving: nobody is led to it ──► workers forget it ──► number rests ──► free
//!   ▲────────┘
//! ```

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use super::{Directory, Inner, PoolEntry};
use crate::{
    PoolId, Tally,
    config::{Config, Timeouts},
};

/// For how long a number that has become free is not used: longer than anybody waits for workers to tell
/// about pools by their numbers.
const REST: Duration = Duration::from_secs(30);

/// What becomes of pools that nobody uses.
#[derive(Debug, Default)]
pub(super) struct IdlePoolReaper {
    /// Since when nobody has used a pool, as far as somebody has looked.
    unused_since: HashMap<PoolId, Instant>,
    /// Nobody is led to them any more.
    leaving: HashSet<PoolId>,
    /// Numbers without pools, and since when.
    free: VecDeque<(Instant, PoolId)>,
    /// Something was to be dropped that somebody had hold of.
    is_untidy: bool,
    /// What was counted of pools that are gone, by database; of databases that are gone, too, by none.
    past: BTreeMap<Option<String>, Tally>,
}

impl IdlePoolReaper {
    pub(super) fn is_used(&mut self, pool: PoolId) {
        self.unused_since.remove(&pool);
    }

    pub(super) fn is_leaving(&self, pool: PoolId) -> bool {
        self.leaving.contains(&pool)
    }

    /// A number that is free, if one is.
    pub(super) fn number(&mut self, now: Instant) -> Option<PoolId> {
        let is_rested = |(since, _): &(Instant, PoolId)| now.duration_since(*since) >= REST;
        self.free
            .front()
            .is_some_and(is_rested)
            .then(|| self.free.pop_front())
            .flatten()
            .map(|it| it.1)
    }
}

impl Directory {
    /// Leads nobody to pools any more that have not been used for their time; gives all such. Workers
    /// are to forget them.
    pub(in crate::worker) fn leave(&self, now: Instant) -> Vec<PoolId> {
        let mut inner = self.inner();
        let config = self.config();
        if inner.vacancies.is_untidy {
            inner.tidy(&config);
        }
        let Inner { pools, vacancies, by_key, .. } = &mut *inner;
        for entry in pools.iter().flatten() {
            if entry.occupants.taken() > 0 {
                vacancies.unused_since.remove(&entry.id);
                continue;
            }
            let since = *vacancies.unused_since.entry(entry.id).or_insert(now);
            let is_over = |limit| now.duration_since(since) >= limit;
            if time_of(&config, entry).is_some_and(is_over) && vacancies.leaving.insert(entry.id) {
                // A retired one has a successor, which stays.
                if by_key.get(&entry.key) == Some(&entry.id) {
                    by_key.remove(&entry.key);
                }
            }
        }
        vacancies.leaving.iter().copied().collect()
    }

    /// Workers have forgotten these pools; this was counted of each.
    pub(in crate::worker) fn vacate(&self, pools: Vec<(PoolId, Tally)>, now: Instant) {
        let mut inner = self.inner();
        let config = self.config();
        for (id, tally) in pools {
            let place = inner.pools.get_mut(id.index());
            let Some(entry) = place.and_then(Option::take) else { continue };
            let database = Some(entry.key.database.clone());
            let vacancies = &mut inner.vacancies;
            if !entry.key.is_mirror() {
                *vacancies.past.entry(database).or_default() += &tally;
            }
            vacancies.unused_since.remove(&id);
            vacancies.leaving.remove(&id);
            vacancies.free.push_back((now, id));
        }
        inner.tidy(&config);
    }

    /// What was counted of pools that are gone, by database; of databases that are gone, too, by none.
    pub(in crate::worker) fn past(&self) -> Vec<(Option<String>, Tally)> {
        let past = &self.inner().vacancies.past;
        past.iter().map(|(database, tally)| (database.clone(), tally.clone())).collect()
    }
}

impl Inner {
    /// Drops what only pools had that are gone: limits, and of databases without a name in the settings
    /// gates and sums.
    fn tidy(&mut self, config: &Config) {
        self.limits.retain(|_, limit| Arc::strong_count(limit) > 1);
        let used: HashSet<_> =
            self.pools.iter().flatten().map(|entry| &*entry.key.database).collect();
        let stays = |name: &str| config.databases.contains_key(name) || used.contains(name);
        let mut is_untidy = false;
        self.gates.retain(|name, gate| {
            let is_turned = gate.is_paused_for_any() || gate.is_disabled();
            // Whoever looks at all databases has hold of it for a moment.
            let is_held = Arc::strong_count(gate) > 1;
            is_untidy |= is_held && !stays(name) && !is_turned;
            stays(name) || is_turned || is_held
        });
        self.vacancies.is_untidy = is_untidy;
        let past = std::mem::take(&mut self.vacancies.past);
        for (database, tally) in past {
            let database = database.filter(|name| stays(name));
            *self.vacancies.past.entry(database).or_default() += &tally;
        }
    }
}

/// For how long nobody has to have used a pool; `None` if it stays.
fn time_of(config: &Config, entry: &PoolEntry) -> Option<Duration> {
    let Timeouts { pool_idle, autodb_idle, .. } = config.timeouts;
    let is_named = config.databases.contains_key(&entry.key.database);
    match () {
        // Nobody new comes to it.
        () if entry.is_retired => Some(Duration::ZERO),
        // It is to have servers, and cannot only for now.
        () if entry.settings.min_size > 0 => None,
        () if is_named => pool_idle,
        () => [pool_idle, autodb_idle].into_iter().flatten().min(),
    }
}

#[cfg(test)]
mod tests;
