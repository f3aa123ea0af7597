//! When to flush.
//!
//! Etsy's server is phase-locked: with its start rounded to a whole second, flushes are due at whole
//! intervals after it, the first 0.5 to 1.5 intervals after the start, and lateness never adds up.
//! The Perl server flushes at whole intervals after its start.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::settings::Dialect;

/// Times in milliseconds since 1970.
#[derive(Debug)]
pub(super) struct FlushClock {
    phase_ms: u64,
    interval_ms: u64,
    due_ms: u64,
    rounds: bool,
}

impl FlushClock {
    pub(super) fn new(dialect: Dialect, interval: Duration, started: SystemTime) -> Self {
        let started_ms = milliseconds(started);
        let (phase_ms, rounds) = match dialect {
            Dialect::Etsy | Dialect::Dogstatsd => ((started_ms + 500) / 1000 * 1000, true),
            Dialect::Perl => (started_ms, false),
        };
        let interval_ms = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX).max(1);
        let mut clock = Self { phase_ms, interval_ms, due_ms: 0, rounds };
        clock.due_ms = clock.next(started_ms);
        clock
    }

    /// How long until the next flush.
    pub(super) fn until_due(&self, now: SystemTime) -> Duration {
        // A clock that was set back by hours must not stop the flushes for hours.
        let wait = self.due_ms.saturating_sub(milliseconds(now)).min(2 * self.interval_ms);
        Duration::from_millis(wait)
    }

    /// If a flush is due, how late it is; the next one is due later then.
    pub(super) fn take_due(&mut self, now: SystemTime) -> Option<Duration> {
        let now_ms = milliseconds(now);
        let set_back = self.due_ms > now_ms + 2 * self.interval_ms;
        if now_ms < self.due_ms && !set_back {
            return None;
        }
        let lag = now_ms.saturating_sub(self.due_ms);
        self.due_ms = self.next(now_ms);
        Some(Duration::from_millis(lag))
    }

    /// The first time on the grid after `now`, for etsy at least half an interval after it.
    fn next(&self, now_ms: u64) -> u64 {
        let since = now_ms.saturating_sub(self.phase_ms);
        let half = if self.rounds { self.interval_ms / 2 } else { 0 };
        self.phase_ms + ((since + half) / self.interval_ms + 1) * self.interval_ms
    }
}

fn milliseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(ms)
    }

    #[test]
    fn etsys_flushes_are_phase_locked_to_a_whole_second() {
        let mut clock = FlushClock::new(Dialect::Etsy, Duration::from_secs(10), at(1_400));
        assert_eq!(clock.until_due(at(1_400)), Duration::from_millis(9_600));
        assert_eq!(clock.take_due(at(10_999)), None);
        assert_eq!(clock.take_due(at(11_030)), Some(Duration::from_millis(30)));
        assert_eq!(clock.until_due(at(11_030)), Duration::from_millis(9_970));
        // Very late: one flush, and the next on the grid at least half an interval later.
        assert_eq!(clock.take_due(at(37_000)), Some(Duration::from_secs(16)));
        assert_eq!(clock.until_due(at(37_000)), Duration::from_secs(14));
    }

    #[test]
    fn perls_first_flush_is_one_interval_after_the_start() {
        let clock = FlushClock::new(Dialect::Perl, Duration::from_secs(10), at(1_400));
        assert_eq!(clock.until_due(at(1_400)), Duration::from_secs(10));
    }

    #[test]
    fn a_clock_set_back_does_not_stop_the_flushes() {
        let mut clock = FlushClock::new(Dialect::Etsy, Duration::from_secs(10), at(7_200_000));
        assert!(clock.until_due(at(0)) <= Duration::from_secs(20));
        assert!(clock.take_due(at(0)).is_some());
    }
}
