//! Things that the log says once, or once in a while, however often they happen.

use std::time::{Duration, Instant};

use crate::flush::OwnMetrics;

/// How often a set at its limit is worth a line.
const REPEAT_INTERVAL: Duration = Duration::from_secs(600);

/// What was said already.
#[derive(Debug, Default)]
pub(super) struct Notices {
    events: bool,
    timestamps: bool,
    capped: Option<Instant>,
}

impl Notices {
    /// Looks at a flush's account of the server.
    pub(super) fn flushed(&mut self, own: &OwnMetrics, members_max: usize) {
        if own.events_total + own.checks_total > 0 && !self.events {
            self.events = true;
            tracing::warn!(
                events = own.events_total,
                service_checks = own.checks_total,
                "events and service checks of DogStatsD are counted, and their text is dropped: no \
                 backend takes it"
            );
        }
        if own.timestamps_total > 0 && !self.timestamps {
            self.timestamps = true;
            tracing::warn!(
                "timestamps of DogStatsD (|T) are not used: such values count in the interval in \
                 which they arrive"
            );
        }
        let due = self.capped.is_none_or(|last| last.elapsed() >= REPEAT_INTERVAL);
        if let Some(set) = own.capped_set.as_ref().filter(|_| due) {
            self.capped = Some(Instant::now());
            tracing::warn!(
                set = %set,
                "a set has more than {members_max} members in one interval, and the rest is not \
                 counted: raise limits.set-members"
            );
        }
    }
}
