//! A rhythm that keeps to the clock.
//!
//! Ticks are due at the start plus a whole number of periods, so a round that came late does not push
//! the later ones; ticks that could not be kept are counted and left out, not made up for.

use std::time::{Duration, Instant};

/// When the next round is due, and how many were missed. It reads no clock and does not sleep:
///
/// ```no_run
/// # use std::{thread, time::{Duration, Instant}};
/// let mut pace = howdah_probe::waits::Pace::new(Instant::now(), Duration::from_millis(1));
/// loop {
///     thread::sleep(pace.due().saturating_duration_since(Instant::now()));
///     let now = Instant::now();
///     pace.reached(now);
///     // take a sample
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    period: Duration,
    due: Instant,
    missed: u64,
}

impl Pace {
    /// A rhythm whose first tick is due at `start`. A period of nothing is a nanosecond.
    #[must_use]
    pub fn new(start: Instant, period: Duration) -> Self {
        Self { period: period.max(Duration::from_nanos(1)), due: start, missed: 0 }
    }

    /// When the next tick is due.
    #[must_use]
    pub fn due(&self) -> Instant {
        self.due
    }

    /// How many ticks went by without a round.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// A round begins. Returns how many ticks were missed since the one that was due; 0 is on time.
    pub fn reached(&mut self, now: Instant) -> u64 {
        let late = now.saturating_duration_since(self.due);
        let missed = u64::try_from(late.as_nanos() / self.period.as_nanos()).unwrap_or(u64::MAX);
        // What is later than 2³² ticks is a clock that jumped; then the rhythm begins anew.
        self.due = match u32::try_from(missed) {
            Ok(missed) => self.due + self.period * missed + self.period,
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
    fn lateness_does_not_add_up() {
        let start = Instant::now();
        let mut pace = Pace::new(start, MS);
        for tick in 0..1000 {
            assert_eq!(pace.due(), start + MS * tick);
            assert_eq!(pace.reached(pace.due() + MS / 2), 0);
        }
        assert_eq!(pace.missed(), 0);
    }

    #[test]
    fn what_was_missed_is_counted_and_not_made_up_for() {
        let start = Instant::now();
        let mut pace = Pace::new(start, MS);
        assert_eq!(pace.reached(start + MS * 7 / 2), 3);
        assert_eq!(pace.due(), start + MS * 4);
        assert_eq!(pace.reached(start + MS * 4), 0);
        assert_eq!((pace.due(), pace.missed()), (start + MS * 5, 3));
    }

    #[test]
    fn early_is_no_miss() {
        let start = Instant::now() + MS;
        let mut pace = Pace::new(start, MS);
        assert_eq!(pace.reached(start - MS / 2), 0);
        assert_eq!(pace.due(), start + MS);
    }
}
