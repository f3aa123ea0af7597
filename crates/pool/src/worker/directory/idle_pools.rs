//! Removes idle pools and reuses their IDs.
//!
//! A pool is in use while it has clients or servers in any worker or in transit between workers:
//! each holds a permit of [`PoolEntry::occupants`]. Clients acquire their permits while the
//! directory is locked, so a pool without permits stays unused once it is closed to new clients.
//! Workers can then drop it in any order, while the next client for its key gets a pool with
//! another ID. The ID becomes free some time after every worker has confirmed the removal, so that
//! a report in progress cannot confuse the two pools.
//!
//! ```text
//! in use ──► unused ──► closing (no clients) ──► removed by all workers ──► delay ──► ID is free
//!    ▲─────────┘
//! ```

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_pool_config::{Config, TimeoutConfig};
use howdah_pool_core::{PoolId, PoolStats};

use super::{Directory, DirectoryState, PoolEntry};

/// Delay before the ID of a removed pool is reused; longer than any wait for a report that contains
/// pool IDs.
const REUSE_DELAY: Duration = Duration::from_secs(30);

/// Tracks idle pools until they are removed and their IDs are reused.
#[derive(Debug, Default)]
pub(super) struct IdlePoolReaper {
    /// Time at which each pool was first seen unused.
    unused_since: HashMap<PoolId, Instant>,
    /// Pools that are closed to new clients, and that not all workers have removed yet.
    closing: HashSet<PoolId>,
    /// IDs without pools, each with the time at which its pool was removed.
    free: VecDeque<(Instant, PoolId)>,
    /// Whether the last pruning kept an admin state only because it was still referenced, so that
    /// another pruning is needed.
    needs_pruning: bool,
    /// The statistics of removed pools, by database; `None` for removed databases.
    past_totals: BTreeMap<Option<String>, PoolStats>,
}

impl IdlePoolReaper {
    pub(super) fn mark_used(&mut self, pool: PoolId) {
        self.unused_since.remove(&pool);
    }

    pub(super) fn is_closing(&self, pool: PoolId) -> bool {
        self.closing.contains(&pool)
    }

    /// Takes a free ID whose delay has passed, if any.
    pub(super) fn take_free_id(&mut self, now: Instant) -> Option<PoolId> {
        let is_rested = |(since, _): &(Instant, PoolId)| now.duration_since(*since) >= REUSE_DELAY;
        self.free
            .front()
            .is_some_and(is_rested)
            .then(|| self.free.pop_front())
            .flatten()
            .map(|it| it.1)
    }
}

impl Directory {
    /// Stops admitting clients to pools that have exceeded their idle timeout. Returns all pools
    /// that were closed in this way and still exist, which the workers must then remove.
    pub(in crate::worker) fn close_idle_pools(&self, now: Instant) -> Vec<PoolId> {
        let mut state = self.state();
        let config = self.config();
        if state.reaper.needs_pruning {
            state.prune(&config);
        }
        let DirectoryState { pools, reaper, by_key, .. } = &mut *state;
        for entry in pools.iter().flatten() {
            if entry.occupants.in_use() > 0 {
                reaper.unused_since.remove(&entry.id);
                continue;
            }
            let since = *reaper.unused_since.entry(entry.id).or_insert(now);
            let has_exceeded = |limit| now.duration_since(since) >= limit;
            if idle_limit(&config, entry).is_some_and(has_exceeded)
                && reaper.closing.insert(entry.id)
            {
                // The key of a retired pool may map to the pool that replaced it, which stays.
                if by_key.get(&entry.key) == Some(&entry.id) {
                    by_key.remove(&entry.key);
                }
            }
        }
        reaper.closing.iter().copied().collect()
    }

    /// Drops the directory's entries for pools that all workers have removed, and keeps the pools'
    /// statistics.
    pub(in crate::worker) fn remove_pools(&self, pools: Vec<(PoolId, PoolStats)>, now: Instant) {
        let mut state = self.state();
        let config = self.config();
        for (id, tally) in pools {
            let slot = state.pools.get_mut(id.index());
            let Some(entry) = slot.and_then(Option::take) else { continue };
            let database = Some(entry.key.database.clone());
            let reaper = &mut state.reaper;
            if !entry.key.is_mirror() {
                *reaper.past_totals.entry(database).or_default() += &tally;
            }
            reaper.unused_since.remove(&id);
            reaper.closing.remove(&id);
            reaper.free.push_back((now, id));
        }
        state.prune(&config);
    }

    /// Returns the statistics of removed pools, by database; `None` for removed databases.
    pub(in crate::worker) fn past_totals(&self) -> Vec<(Option<String>, PoolStats)> {
        let past = &self.state().reaper.past_totals;
        past.iter().map(|(database, tally)| (database.clone(), tally.clone())).collect()
    }
}

impl DirectoryState {
    /// Drops limits that only removed pools used, and the admin states of databases that are
    /// neither configured, in use, paused nor disabled. Merges the statistics of databases that are
    /// neither configured nor in use.
    fn prune(&mut self, config: &Config) {
        self.limits.retain(|_, limit| Arc::strong_count(limit) > 1);
        let used: HashSet<_> =
            self.pools.iter().flatten().map(|entry| &*entry.key.database).collect();
        let stays = |name: &str| config.databases.contains_key(name) || used.contains(name);
        let mut is_untidy = false;
        self.admin_states.retain(|name, admin_state| {
            let is_turned = admin_state.is_paused_for_any_user() || admin_state.is_disabled();
            // A report on all databases may hold a reference for a moment.
            let is_held = Arc::strong_count(admin_state) > 1;
            is_untidy |= is_held && !stays(name) && !is_turned;
            stays(name) || is_turned || is_held
        });
        self.reaper.needs_pruning = is_untidy;
        let past = std::mem::take(&mut self.reaper.past_totals);
        for (database, tally) in past {
            let database = database.filter(|name| stays(name));
            *self.reaper.past_totals.entry(database).or_default() += &tally;
        }
    }
}

/// Returns the idle timeout of a pool; `None` if the pool is never removed.
fn idle_limit(config: &Config, entry: &PoolEntry) -> Option<Duration> {
    let TimeoutConfig { pool_idle, autodb_idle, .. } = config.timeouts;
    let is_named = config.databases.contains_key(&entry.key.database);
    match () {
        // A retired pool gets no new clients.
        () if entry.is_retired => Some(Duration::ZERO),
        // The minimum size keeps servers open, even if the pool has none at the moment.
        () if entry.settings.min_size > 0 => None,
        () if is_named => pool_idle,
        () => [pool_idle, autodb_idle].into_iter().flatten().min(),
    }
}

#[cfg(test)]
mod tests;
