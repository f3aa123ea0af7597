//! A schedule of periodic ticks that does not drift.
//!
//! Ticks are due at the start plus a whole number of periods, so a late tick does not delay later
//! ones. Missed ticks are counted and skipped.

use std::time::{Duration, Instant};

/// A schedule of periodic ticks, which counts missed ones. It reads no clock and does not sleep:
///
/// ```no_run
/// # use std::{thread, time::{Duration, Instant}};
/// use howdah_probe::waits::TickSchedule;
/// let mut schedule = TickSchedule::new(Instant::now(), Duration::from_millis(1));
/// loop {
///     thread::sleep(schedule.next_tick_at().saturating_duration_since(Instant::now()));
///     let now = Instant::now();
///     schedule.advance(now);
///     // take a sample
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TickSchedule {
    period: Duration,
    next_tick_at: Instant,
    missed: u64,
}

impl TickSchedule {
    /// Creates a schedule whose first tick is due at `start`. A period of zero is treated as one
    /// nanosecond.
    pub fn new(start: Instant, period: Duration) -> Self {
        Self { period: period.max(Duration::from_nanos(1)), next_tick_at: start, missed: 0 }
    }

    /// Returns the time at which the next tick is due.
    pub fn next_tick_at(&self) -> Instant {
        self.next_tick_at
    }

    /// Returns the number of missed ticks.
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Records that a tick starts at `now`. Returns the number of missed ticks: those that became
    /// due after this one, up to `now`.
    pub fn advance(&mut self, now: Instant) -> u64 {
        let late = now.saturating_duration_since(self.next_tick_at);
        let missed = u64::try_from(late.as_nanos() / self.period.as_nanos()).unwrap_or(u64::MAX);
        // A delay of 2³² ticks or more means that the clock jumped, so the schedule restarts.
        self.next_tick_at = match u32::try_from(missed) {
            Ok(missed) => self.next_tick_at + self.period * missed + self.period,
            Err(_) => now + self.period,
        };
        self.missed = self.missed.saturating_add(missed);
        missed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn lateness_does_not_accumulate() {
        let start = Instant::now();
        let mut schedule = TickSchedule::new(start, MS);
        for tick in 0..1000 {
            assert_eq!(schedule.next_tick_at(), start + MS * tick);
            assert_eq!(schedule.advance(schedule.next_tick_at() + MS / 2), 0);
        }
        assert_eq!(schedule.missed(), 0);
    }

    #[test]
    fn missed_ticks_are_counted_and_skipped() {
        let start = Instant::now();
        let mut schedule = TickSchedule::new(start, MS);
        assert_eq!(schedule.advance(start + MS * 7 / 2), 3);
        assert_eq!(schedule.next_tick_at(), start + MS * 4);
        assert_eq!(schedule.advance(start + MS * 4), 0);
        assert_eq!((schedule.next_tick_at(), schedule.missed()), (start + MS * 5, 3));
    }

    #[test]
    fn early_tick_is_not_a_miss() {
        let start = Instant::now() + MS;
        let mut schedule = TickSchedule::new(start, MS);
        assert_eq!(schedule.advance(start - MS / 2), 0);
        assert_eq!(schedule.next_tick_at(), start + MS);
    }
}
