//! [`Time`]: a moment on the worker's clock, passed to the core as an argument.

use std::{
    ops::{Add, Sub},
    time::Duration,
};

/// A moment, in nanoseconds since an origin that the caller chooses, the same for all cores that
/// exchange servers. It must not decrease, and may stay the same for a whole iteration of the event
/// loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(
    /// Nanoseconds since the origin; 64 bits are sufficient for 584 years.
    pub u64,
);

impl Time {
    /// A moment that is later than all others.
    pub const NEVER: Self = Self(u64::MAX);

    /// Returns the time since `earlier`; zero if that is later than `self`.
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
