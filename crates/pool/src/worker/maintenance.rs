//! The maintenance thread: removes idle pools, and logs when mirrors cannot keep up.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

use howdah_pool_core::{PoolId, PoolStats};

use super::{
    control::{PoolerHandle, REPLY_TIMEOUT},
    messages::WorkerMessage,
    mirrors,
};

/// Maximum interval between checks. Unused pools that new settings have retired are removed within
/// this time.
const CHECK_INTERVAL_MAX: Duration = Duration::from_secs(1);

/// Minimum interval between checks.
const CHECK_INTERVAL_MIN: Duration = Duration::from_millis(10);

/// Interval at which to check whether the pooler has stopped.
const SHUTDOWN_CHECK_INTERVAL: Duration = Duration::from_millis(100);

impl PoolerHandle {
    /// Removes idle pools and logs the state of mirrors until the pooler ends.
    pub(super) fn run_maintenance(&self, stop: &Receiver<()>) {
        let mut mirrors = mirrors::MirrorLog::default();
        while stop.recv_timeout(self.check_interval()) == Err(RecvTimeoutError::Timeout) {
            mirrors.update(&self.shared.directory, Instant::now());
            self.shared.password_checks.remove_expired();
            // Settings must not change during the removal: pools of a cluster refer to each other
            // by ID, and a worker's old settings may refer to a pool that the new settings close.
            let _alone = self.shared.origin.lock();
            let pools = self.shared.directory.close_idle_pools(Instant::now());
            if !pools.is_empty() {
                self.remove_idle_pools(&pools);
            }
        }
    }

    /// Returns the interval between checks: a quarter of the shortest idle timeout, within fixed
    /// bounds.
    fn check_interval(&self) -> Duration {
        let times = self.config().timeouts;
        let shortest = [times.pool_idle, times.autodb_idle].into_iter().flatten().min();
        let shortest = shortest.unwrap_or(CHECK_INTERVAL_MAX);
        (shortest / 4).clamp(CHECK_INTERVAL_MIN, CHECK_INTERVAL_MAX)
    }

    /// Makes workers remove closing pools. If a worker does not confirm a removal, the next check
    /// tries again.
    fn remove_idle_pools(&self, pools: &[PoolId]) {
        let (to, replies) = mpsc::channel();
        let all: Arc<[PoolId]> = pools.into();
        self.broadcast(|| WorkerMessage::RemovePools { pools: Arc::clone(&all), to: to.clone() });
        drop(to);
        let deadline = Instant::now() + REPLY_TIMEOUT;
        let mut removed: HashMap<PoolId, (usize, PoolStats)> = HashMap::new();
        let mut missing = self.mailboxes.len();
        while missing > 0 && !self.shared.is_stopped() && Instant::now() < deadline {
            match replies.recv_timeout(SHUTDOWN_CHECK_INTERVAL) {
                Ok(reply) => {
                    missing -= 1;
                    for (pool, tally) in reply {
                        let (workers, sum) = removed.entry(pool).or_default();
                        *workers += 1;
                        *sum += &tally;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let everywhere = |(pool, (workers, tally)): (PoolId, (usize, PoolStats))| {
            (workers == self.mailboxes.len()).then_some((pool, tally))
        };
        let removed: Vec<_> = removed.into_iter().filter_map(everywhere).collect();
        tracing::debug!(pools = removed.len(), "idle pools removed");
        let ids: Vec<_> = removed.iter().map(|(id, _)| *id).collect();
        self.shared.history().remove(&ids);
        self.shared.directory.remove_pools(removed, Instant::now());
    }
}
