//! [`FlushClock`]: schedules flushes.
//!
//! Etsy's server is phase-locked: its start is rounded to a full second, and flushes are scheduled
//! at full intervals after it, the first 0.5 to 1.5 intervals after the start, so delays never
//! accumulate. The Perl server flushes at full intervals after its start.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::settings::StatsdDialect;

/// The flush schedule. Times are in milliseconds since 1970.
#[derive(Debug)]
pub(super) struct FlushClock {
    phase_ms: u64,
    interval_ms: u64,
    next_flush_ms: u64,
    rounds_start: bool,
}

/// The schedule of a process, for the one that continues it. Times are in milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClockState {
    pub(super) interval_ms: u64,
    pub(super) phase_ms: u64,
    pub(super) next_flush_ms: u64,
}

impl FlushClock {
    pub(super) fn new(dialect: StatsdDialect, interval: Duration, started: SystemTime) -> Self {
        let started_ms = milliseconds(started);
        let (phase_ms, rounds) = match dialect {
            StatsdDialect::Etsy | StatsdDialect::Dogstatsd => {
                ((started_ms + 500) / 1000 * 1000, true)
            }
            StatsdDialect::Perl => (started_ms, false),
        };
        let interval_ms = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX).max(1);
        let mut clock = Self { phase_ms, interval_ms, next_flush_ms: 0, rounds_start: rounds };
        clock.next_flush_ms = clock.next_after(started_ms);
        clock
    }

    /// Continues the schedule of another process. The next flush is when it would have been there,
    /// unless the interval has changed.
    pub(super) fn continued(&self, state: ClockState, now: SystemTime) -> Self {
        let mut clock = Self { phase_ms: state.phase_ms, ..*self };
        clock.next_flush_ms = if state.interval_ms == clock.interval_ms {
            state.next_flush_ms
        } else {
            clock.next_after(milliseconds(now))
        };
        clock
    }

    /// Returns the schedule, for a process that continues it.
    pub(super) fn state(&self) -> ClockState {
        let Self { phase_ms, interval_ms, next_flush_ms, .. } = *self;
        ClockState { interval_ms, phase_ms, next_flush_ms }
    }

    /// Returns the time until the next flush, at most two intervals.
    pub(super) fn time_until_flush(&self, now: SystemTime) -> Duration {
        // If the clock is set back by hours, flushes must not stop for hours.
        let wait = self.next_flush_ms.saturating_sub(milliseconds(now)).min(2 * self.interval_ms);
        Duration::from_millis(wait)
    }

    /// Returns the delay of a flush that is due, and schedules the next one. A flush is also due,
    /// with no delay, if the clock was set back so far that the next one is over two intervals
    /// ahead.
    pub(super) fn poll_flush(&mut self, now: SystemTime) -> Option<Duration> {
        let now_ms = milliseconds(now);
        let set_back = self.next_flush_ms > now_ms + 2 * self.interval_ms;
        if now_ms < self.next_flush_ms && !set_back {
            return None;
        }
        let lag = now_ms.saturating_sub(self.next_flush_ms);
        self.next_flush_ms = self.next_after(now_ms);
        Some(Duration::from_millis(lag))
    }

    /// Returns the next scheduled time after `now_ms`, except in the Perl dialect at least half an
    /// interval after it.
    fn next_after(&self, now_ms: u64) -> u64 {
        let since = now_ms.saturating_sub(self.phase_ms);
        let half = if self.rounds_start { self.interval_ms / 2 } else { 0 };
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
    fn etsy_flushes_are_phase_locked_to_full_second() {
        let mut clock = FlushClock::new(StatsdDialect::Etsy, Duration::from_secs(10), at(1_400));
        assert_eq!(clock.time_until_flush(at(1_400)), Duration::from_millis(9_600));
        assert_eq!(clock.poll_flush(at(10_999)), None);
        assert_eq!(clock.poll_flush(at(11_030)), Some(Duration::from_millis(30)));
        assert_eq!(clock.time_until_flush(at(11_030)), Duration::from_millis(9_970));
        // Very late: one flush, and the next scheduled one at least half an interval later.
        assert_eq!(clock.poll_flush(at(37_000)), Some(Duration::from_secs(16)));
        assert_eq!(clock.time_until_flush(at(37_000)), Duration::from_secs(14));
    }

    #[test]
    fn perl_first_flush_is_one_interval_after_start() {
        let clock = FlushClock::new(StatsdDialect::Perl, Duration::from_secs(10), at(1_400));
        assert_eq!(clock.time_until_flush(at(1_400)), Duration::from_secs(10));
    }

    #[test]
    fn schedule_continues_in_another_process() {
        let seconds = Duration::from_secs;
        let mut old = FlushClock::new(StatsdDialect::Etsy, seconds(10), at(1_400));
        assert!(old.poll_flush(at(11_000)).is_some());
        let new = FlushClock::new(StatsdDialect::Etsy, seconds(10), at(15_700));
        let mut new = new.continued(old.state(), at(15_700));
        assert_eq!(new.time_until_flush(at(15_700)), Duration::from_millis(5_300));
        assert!(new.poll_flush(at(20_999)).is_none() && new.poll_flush(at(21_000)).is_some());
        // A flush that became due during the takeover is late, not left out.
        let late = FlushClock::new(StatsdDialect::Etsy, seconds(10), at(21_500));
        let mut late = late.continued(old.state(), at(21_500));
        assert_eq!(late.poll_flush(at(21_500)), Some(Duration::from_millis(500)));
        // With another interval, only the phase continues.
        let new = FlushClock::new(StatsdDialect::Etsy, seconds(1), at(15_700));
        let new = new.continued(old.state(), at(15_700));
        assert_eq!(new.time_until_flush(at(15_700)), Duration::from_millis(1_300));
    }

    #[test]
    fn clock_set_to_past_does_not_stop_flushes() {
        let mut clock =
            FlushClock::new(StatsdDialect::Etsy, Duration::from_secs(10), at(7_200_000));
        assert!(clock.time_until_flush(at(0)) <= Duration::from_secs(20));
        assert!(clock.poll_flush(at(0)).is_some());
    }
}
