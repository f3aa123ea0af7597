//! [`Time`]: a moment on the worker's clock, passed to the core as an argument.

use std::{
    ops::{Add, Sub},
    time::Duration,
};

/// Nanoseconds since a start that the caller chose, the same for all calls to one core. Never goes
/// back; it may stand still for a whole iteration of the event loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(
    /// The nanoseconds; 64 bits last for 584 years.
    pub u64,
);

impl Time {
    /// A moment that never comes.
    pub const NEVER: Self = Self(u64::MAX);

    /// The time since `earlier`; zero if that lies ahead.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Time {
    type Output = Self;

    fn sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}
