//! [`Timestamp`]: points in time, at PostgreSQL's resolution.

use std::{
    fmt,
    ops::{Add, Sub},
    str::FromStr,
    time::Duration,
};

/// A point in time, in microseconds since 1970-01-01 00:00:00 UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(i64);

impl Timestamp {
    /// Creates a time from microseconds since the Unix epoch.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Returns the microseconds since the Unix epoch.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// Returns the current time, by the system's wall clock.
    pub fn now() -> Self {
        Self(jiff::Timestamp::now().as_microsecond())
    }

    /// Returns the time since `earlier`; zero if `earlier` is later than this time.
    pub fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

/// Adds a duration, and saturates at the ends of the range.
impl Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(by.as_micros()).unwrap_or(i64::MAX)))
    }
}

/// Subtracts a duration, and saturates at the ends of the range.
impl Sub<Duration> for Timestamp {
    type Output = Self;

    fn sub(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(by.as_micros()).unwrap_or(i64::MAX)))
    }
}

/// Writes RFC 3339 in UTC with six fractional digits: `2026-11-20T12:43:19.577000Z`. A time beyond
/// the years −9999 to 9999 is written as microseconds.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_microsecond(self.0) {
            Ok(time) => f.pad(&format!("{time:.6}")),
            Err(_) => write!(f, "{}us", self.0),
        }
    }
}

impl FromStr for Timestamp {
    type Err = ParseTimestampError;

    /// Parses RFC 3339, with any offset.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse::<jiff::Timestamp>() {
            Ok(time) => Ok(Self(time.as_microsecond())),
            Err(_) => Err(ParseTimestampError { text: text.to_owned() }),
        }
    }
}

/// The error for a text that is not RFC 3339.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a time such as 2026-11-20T12:43:19.577Z")]
pub struct ParseTimestampError {
    text: String,
}

#[test]
fn display_and_parse_round_trip() {
    let time = Timestamp::from_micros(1_795_178_599_577_000);
    assert_eq!(time.to_string(), "2026-11-20T12:43:19.577000Z");
    assert_eq!(time.to_string().parse(), Ok(time));
}
