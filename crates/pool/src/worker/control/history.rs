//! Periods of statistics: what was counted in the last one, for the console's averages and the log.

use std::{
    collections::HashMap,
    sync::mpsc::{self, RecvTimeoutError},
    time::{Duration, Instant},
};

use super::Control;
use crate::{PoolId, PoolReport, Spans, Tally, tally::micros};

impl Control {
    /// Counts periods of statistics until the pooler ends.
    pub(in crate::worker) fn keep_history(&self, over: &mpsc::Receiver<()>) {
        loop {
            let log = self.front.directory.config().log;
            if over.recv_timeout(log.stats_period) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            let mut sums: HashMap<PoolId, Tally> = HashMap::new();
            let is_mirror = |pool: &PoolReport| {
                let entry = self.front.directory.by_id(pool.pool);
                entry.is_some_and(|entry| entry.key.is_mirror())
            };
            let pools = self.reports(false).into_iter().flat_map(|it| it.report.pools);
            for pool in pools.filter(|pool| !is_mirror(pool)) {
                *sums.entry(pool.pool).or_default() += &pool.tally;
            }
            let mut history = self.front.history();
            history.period_ends(sums, log.stats_period);
            if log.stats {
                history.tell();
            }
        }
    }
}

/// What was counted up to the ends of the last two periods.
#[derive(Debug, Default)]
pub(in crate::worker) struct History {
    began: Option<Instant>,
    lasted: Duration,
    before: HashMap<PoolId, Tally>,
    last: HashMap<PoolId, Tally>,
}

impl History {
    fn period_ends(&mut self, sums: HashMap<PoolId, Tally>, period: Duration) {
        let now = Instant::now();
        self.lasted = self.began.map_or(period, |began| now - began);
        self.began = Some(now);
        self.before = std::mem::replace(&mut self.last, sums);
    }

    /// Forgets pools that are gone: their numbers will be others'.
    pub(in crate::worker) fn forget(&mut self, pools: &[PoolId]) {
        for pool in pools {
            self.before.remove(pool);
            self.last.remove(pool);
        }
    }

    /// Tells the log what all pools together did in the last period.
    fn tell(&self) {
        let mut sum = Tally::default();
        for pool in self.last.keys() {
            if let Some((tally, _)) = self.last(*pool) {
                sum += &tally;
            }
        }
        let seconds = self.lasted.as_secs_f64().max(0.001);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "whole numbers are read"
        )]
        let per_s = |count: u64| (count as f64 / seconds).round() as u64;
        let mean_us = |spans: &Spans| match spans.counts.iter().sum::<u64>() {
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

    /// What was counted of a pool in the last period, and how long that lasted.
    pub(super) fn last(&self, pool: PoolId) -> Option<(Tally, Duration)> {
        let last = self.last.get(&pool)?;
        let nothing = Tally::default();
        Some((last.since(self.before.get(&pool).unwrap_or(&nothing)), self.lasted))
    }
}
