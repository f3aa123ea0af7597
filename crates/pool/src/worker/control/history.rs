//! Statistics periods: the totals from which the console and the log derive averages.

use std::{
    collections::HashMap,
    sync::mpsc::{self, RecvTimeoutError},
    time::{Duration, Instant},
};

use howdah_pool_core::{DurationHistogram, PoolId, PoolReport, PoolStats, micros};

use super::PoolerHandle;

impl PoolerHandle {
    /// Ends a statistics period every `log.stats-period` until the pooler ends, and logs the
    /// averages if configured.
    pub(in crate::worker) fn run_stats_periods(&self, stop: &mpsc::Receiver<()>) {
        loop {
            let log = self.shared.directory.config().log.clone();
            if stop.recv_timeout(log.stats_period) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            let mut sums: HashMap<PoolId, PoolStats> = HashMap::new();
            let is_mirror = |pool: &PoolReport| {
                let entry = self.shared.directory.by_id(pool.pool);
                entry.is_some_and(|entry| entry.key.is_mirror())
            };
            let pools = self.reports(false).into_iter().flat_map(|it| it.report.pools);
            for pool in pools.filter(|pool| !is_mirror(pool)) {
                *sums.entry(pool.pool).or_default() += &pool.stats;
            }
            let mut history = self.shared.history();
            history.finish_period(sums, log.stats_period);
            if log.stats {
                history.log_averages();
            }
        }
    }
}

/// The totals of all pools, except mirrors, at the ends of the last two statistics periods, and the
/// length of the last one.
#[derive(Debug, Default)]
pub(in crate::worker) struct StatsHistory {
    period_start: Option<Instant>,
    period_length: Duration,
    previous: HashMap<PoolId, PoolStats>,
    last: HashMap<PoolId, PoolStats>,
}

impl StatsHistory {
    fn finish_period(&mut self, sums: HashMap<PoolId, PoolStats>, period: Duration) {
        let now = Instant::now();
        self.period_length = self.period_start.map_or(period, |started| now - started);
        self.period_start = Some(now);
        self.previous = std::mem::replace(&mut self.last, sums);
    }

    /// Removes the totals of pools that no longer exist, because their IDs will be reused.
    pub(in crate::worker) fn remove(&mut self, pools: &[PoolId]) {
        for pool in pools {
            self.previous.remove(pool);
            self.last.remove(pool);
        }
    }

    /// Logs the averages of all pools over the last period.
    fn log_averages(&self) {
        let mut sum = PoolStats::default();
        for pool in self.last.keys() {
            if let Some((tally, _)) = self.last_period(*pool) {
                sum += &tally;
            }
        }
        let seconds = self.period_length.as_secs_f64().max(0.001);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "whole numbers are read"
        )]
        let per_s = |count: u64| (count as f64 / seconds).round() as u64;
        let mean_us = |spans: &DurationHistogram| match spans.counts.iter().sum::<u64>() {
            0 => 0,
            count => micros(spans.total()) / count,
        };
        tracing::info!(
            xacts_per_s = per_s(sum.transactions),
            queries_per_s = per_s(sum.queries),
            in_bytes_per_s = per_s(sum.client_bytes),
            out_bytes_per_s = per_s(sum.server_bytes),
            xact_us = mean_us(&sum.transaction_time),
            query_us = mean_us(&sum.query_time),
            wait_us = mean_us(&sum.wait_time),
            logins_per_s = per_s(sum.logins),
            "statistics"
        );
    }

    /// Returns the statistics of a pool in the last period, and the period's length; `None` if the
    /// pool did not exist at the end of that period.
    pub(super) fn last_period(&self, pool: PoolId) -> Option<(PoolStats, Duration)> {
        let last = self.last.get(&pool)?;
        let nothing = PoolStats::default();
        Some((last.since(self.previous.get(&pool).unwrap_or(&nothing)), self.period_length))
    }
}
