//! [`ThrottledNotices`]: warnings that are logged only once or at intervals, however often they
//! apply.

use std::time::{Duration, Instant};

use crate::{
    self_metrics::SelfMetrics,
    settings::{SetOverflow, StatsdLimits},
};

/// Minimum time between warnings about sets at their limit.
const REPEAT_INTERVAL: Duration = Duration::from_secs(600);

/// The notices that were already logged, so that each kind is logged only once or at intervals.
#[derive(Debug, Default)]
pub(super) struct ThrottledNotices {
    messages: bool,
    /// The total of dropped events and service checks at the last warning, and its time.
    dropped: Option<(u64, Instant)>,
    timestamps: bool,
    capped: Option<Instant>,
}

impl ThrottledNotices {
    /// Checks the server's own metrics after a flush, and logs notices. `has_receiver` means that a
    /// backend or the repeater accepts events and service checks.
    pub(super) fn flushed(
        &mut self,
        self_metrics: &SelfMetrics,
        limits: &StatsdLimits,
        has_receiver: bool,
    ) {
        let messages = self_metrics.events_total + self_metrics.checks_total;
        if messages > 0 && !has_receiver && !self.messages {
            self.messages = true;
            tracing::warn!(
                events = self_metrics.events_total,
                service_checks = self_metrics.checks_total,
                "DogStatsD events and service checks are counted but their content is dropped: \
                 configure a postgres, webhook or repeater backend"
            );
        }
        let dropped = self_metrics.messages_dropped_total;
        let is_new = self
            .dropped
            .is_none_or(|(before, last)| dropped > before && last.elapsed() >= REPEAT_INTERVAL);
        if dropped > 0 && is_new {
            self.dropped = Some((dropped, Instant::now()));
            tracing::warn!(
                dropped,
                "events and service checks are dropped: raise limits.message-bytes"
            );
        }
        if self_metrics.timestamps_total > 0 && !self.timestamps {
            self.timestamps = true;
            tracing::warn!(
                "DogStatsD timestamps (|T) are ignored: values count in the interval in which they \
                 arrive; dogstatsd.timestamps = true sends counters and gauges with their timestamps"
            );
        }
        for (prefix, limit) in &self_metrics.limited_prefixes {
            tracing::warn!(
                prefix = &**prefix,
                "names with this prefix have {limit} keys, further keys are cut: see `cut` at the \
                 management port, or raise limits.prefix or limits.keys-per-prefix"
            );
        }
        let is_expired = self.capped.is_none_or(|last| last.elapsed() >= REPEAT_INTERVAL);
        if let Some(set) = self_metrics.capped_set.as_ref().filter(|_| is_expired) {
            self.capped = Some(Instant::now());
            let members_max = limits.set_members;
            match limits.set_overflow {
                SetOverflow::Estimate => tracing::info!(
                    set = %set,
                    "a set exceeds {members_max} members in one interval: its number of members is \
                     an estimate"
                ),
                SetOverflow::Refuse => tracing::warn!(
                    set = %set,
                    "a set exceeds {members_max} members in one interval, further members are not \
                     counted: raise limits.set-members"
                ),
            }
        }
    }
}
