//! The schedule: when a captured event is due.

pub(crate) mod clock;
pub(crate) mod control;
pub(crate) mod lag;

use std::{
    fmt,
    str::FromStr,
    time::{Duration, Instant},
};

use howdah_traffic::{Event, Timestamp};

/// The speed of a replay: a factor on captured time, or as fast as possible.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// 1 keeps the captured pace, 2 is twice as fast, 0.5 half as fast. In [`Rate::RANGE`].
    Times(f64),
    /// Every session sends its next statement as soon as it is free.
    Max,
}

impl Rate {
    /// Accepted factors: at one end a second of traffic takes a microsecond, at the other eleven
    /// days.
    pub const RANGE: std::ops::RangeInclusive<f64> = 0.000_001..=1_000_000.0;
}

impl Default for Rate {
    fn default() -> Self {
        Self::Times(1.0)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Times(rate) => write!(f, "{rate}"),
            Self::Max => f.write_str("max"),
        }
    }
}

/// The error for a text that is neither a number in [`Rate::RANGE`] nor `max`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a rate: use a number from {} to {}, such as 0.5 or 2, or max",
    Rate::RANGE.start(), Rate::RANGE.end()
)]
pub struct ParseRateError {
    text: String,
}

impl FromStr for Rate {
    type Err = ParseRateError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "max" {
            return Ok(Self::Max);
        }
        let number = text.strip_suffix('x').unwrap_or(text);
        match number.parse::<f64>() {
            Ok(rate) if Self::RANGE.contains(&rate) => Ok(Self::Times(rate)),
            _ => Err(ParseRateError { text: text.to_owned() }),
        }
    }
}

/// Maps captured time onto the monotonic clock.
///
/// The schedule is absolute: each due time is computed from the start, or from the latest change of
/// the rate, never from the previous event, so errors do not accumulate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    /// Time at which the first event is due.
    start: Instant,
    /// Captured time of the first event, or that reached when the rate was changed.
    origin: Timestamp,
    /// Time at which an event captured at `origin` is due.
    origin_due: Instant,
    rate: Rate,
}

impl Schedule {
    /// Creates a schedule in which the event captured at `origin` is due at `start`.
    pub(crate) fn new(origin: Timestamp, start: Instant, rate: Rate) -> Self {
        Self { start, origin, origin_due: start, rate }
    }

    /// Returns the schedule that continues this one at another rate from `now` on.
    fn with_rate(&self, now: Instant, rate: f64) -> Self {
        let from = now.max(self.origin_due);
        Self {
            start: self.start,
            origin: self.position(from),
            origin_due: from,
            rate: Rate::Times(rate),
        }
    }

    /// Returns the captured time that the schedule has reached at `now`.
    pub(crate) fn position(&self, now: Instant) -> Timestamp {
        match self.rate {
            Rate::Max => self.origin,
            Rate::Times(rate) => {
                let elapsed = now.saturating_duration_since(self.origin_due).as_secs_f64() * rate;
                let elapsed = Duration::try_from_secs_f64(elapsed).unwrap_or(DELAY_MAX);
                self.origin + elapsed.min(DELAY_MAX)
            }
        }
    }

    /// Returns how long a captured time takes in the replay; nothing at the highest speed.
    pub(crate) fn replayed(&self, captured: Duration) -> Duration {
        match self.rate {
            Rate::Max => Duration::ZERO,
            Rate::Times(rate) => {
                // Capped at a hundred years, because `Instant` must not overflow.
                let replayed = Duration::try_from_secs_f64(captured.as_secs_f64() / rate);
                replayed.unwrap_or(DELAY_MAX).min(DELAY_MAX)
            }
        }
    }

    /// Returns when an event captured at `time` is due. All events at the highest speed are due at
    /// the start. An event of a time before the latest change of the rate is due at that change.
    pub(crate) fn due(&self, time: Timestamp) -> Instant {
        match self.rate {
            Rate::Max => self.start,
            Rate::Times(_) => self.origin_due + self.replayed(time.saturating_since(self.origin)),
        }
    }

    /// Returns the start of the replay: when the first event is due.
    pub(crate) fn start(&self) -> Instant {
        self.start
    }

    /// Whether due times are meaningful, which is not the case at the highest speed.
    pub(crate) fn is_paced(&self) -> bool {
        matches!(self.rate, Rate::Times(_))
    }
}

/// Shortens times of a capture in which no statement ran.
#[derive(Debug)]
pub(crate) struct IdleTimes {
    /// Longest time that remains; `None` to leave all as they are.
    max: Option<Duration>,
    /// Captured time at which the last of the statements so far ended.
    busy_until: Timestamp,
    skipped: Duration,
}

impl IdleTimes {
    pub(crate) fn new(max: Option<Duration>, origin: Timestamp) -> Self {
        Self { max, busy_until: origin, skipped: Duration::ZERO }
    }

    /// Returns the time of the next event on the shortened time line.
    pub(crate) fn scheduled_time(&mut self, event: &Event) -> Timestamp {
        if let Some(max) = self.max {
            let idle = event.time.saturating_since(self.busy_until);
            self.skipped += idle.saturating_sub(max);
            self.busy_until = self.busy_until.max(event.captured_end());
        }
        event.time - self.skipped
    }

    /// Returns the sum of the times that were left out.
    pub(crate) fn skipped(&self) -> Duration {
        self.skipped
    }
}

const DELAY_MAX: Duration = Duration::from_secs(100 * 365 * 86_400);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractional_rates_scale_time_exactly() {
        let start = Instant::now();
        let at = |rate, micros: i64| {
            let schedule = Schedule::new(Timestamp::from_micros(5), start, Rate::Times(rate));
            schedule.due(Timestamp::from_micros(5 + micros)) - start
        };
        assert_eq!(at(0.5, 3_000_000), Duration::from_secs(6));
        assert_eq!(at(1.5, 3_000_000), Duration::from_secs(2));
        assert_eq!(at(1.0, 86_400_000_000), Duration::from_secs(86_400));
        assert_eq!(at(1e-300, 1), DELAY_MAX);
    }

    #[test]
    fn changed_rate_continues_from_the_position_reached() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let at = |seconds: u64| Timestamp::from_micros(5) + seconds as u32 * second;
        let schedule = Schedule::new(Timestamp::from_micros(5), start, Rate::Times(2.0));
        let slower = schedule.with_rate(start + 10 * second, 0.5);
        assert_eq!(slower.position(start + 10 * second), at(20));
        assert_eq!(slower.due(at(21)), start + 12 * second);
        assert_eq!(slower.due(at(3)), start + 10 * second);
        assert_eq!(slower.replayed(second), 2 * second);
        assert_eq!(slower.start(), start);
        // Before the first event, only the rate changes.
        let early = schedule.with_rate(start - second, 1.0);
        assert_eq!(early.due(at(3)), start + 3 * second);
    }

    #[test]
    fn rates_are_positive_numbers_or_max() {
        assert_eq!("1.5".parse(), Ok(Rate::Times(1.5)));
        assert_eq!("2x".parse(), Ok(Rate::Times(2.0)));
        assert_eq!("max".parse(), Ok(Rate::Max));
        for bad in ["0", "-1", "NaN", "inf", "1e-300", "1e300", "1e-7", "1000001", "", "fast"] {
            let refused = bad.parse::<Rate>().unwrap_err().to_string();
            assert!(refused.contains("a number from 0.000001 to 1000000"), "{refused}");
        }
    }

    #[test]
    fn only_time_in_which_nothing_runs_is_shortened() {
        let second = Timestamp::from_micros(1_000_000);
        let mut idle = IdleTimes::new(Some(Duration::from_secs(5)), second);
        let mut at = |start: u64, duration: u64| {
            let mut event = crate::order::sequencer::test_event("s", second, "select 1");
            event.time = second + Duration::from_secs(start);
            event.outcome.duration_us = Some(duration * 1_000_000);
            idle.scheduled_time(&event).saturating_since(second).as_secs()
        };
        // A statement of twenty seconds, a gap of five, and one of a hundred.
        let times = [at(0, 20), at(10, 0), at(25, 1), at(126, 1), at(128, 0)];
        assert_eq!(times, [0, 10, 25, 31, 33]);
        assert_eq!(idle.skipped(), Duration::from_secs(95));
    }

    #[test]
    fn event_before_origin_is_due_at_start() {
        let start = Instant::now();
        let schedule = Schedule::new(Timestamp::from_micros(1_000), start, Rate::default());
        assert_eq!(schedule.due(Timestamp::from_micros(1)), start);
    }
}
