//! From the kernel's clock to that of people.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Translates nanoseconds of `CLOCK_MONOTONIC`, which programs in the kernel stamp events with.
///
/// The difference of both clocks is taken once. If the wall clock is set afterwards, events go on as if it
/// had not been.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// What to add, in nanoseconds.
    difference_ns: i128,
}

impl Clock {
    /// The translation that holds now.
    #[must_use]
    pub fn now() -> Self {
        // Between both readings nothing should happen; of a few tries, the closest is taken.
        let readings = (0..8).map(|_| {
            let before = monotonic_ns();
            let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let after = monotonic_ns();
            (after - before, wall.as_nanos().cast_signed() - i128::from(before.midpoint(after)))
        });
        let difference_ns = readings.min().map_or(0, |(_, difference)| difference);
        Self { difference_ns }
    }

    /// The time of day.
    #[must_use]
    pub fn wall(self, monotonic_ns: u64) -> SystemTime {
        let ns = i128::from(monotonic_ns) + self.difference_ns;
        let ns = u64::try_from(ns).unwrap_or(0);
        UNIX_EPOCH + Duration::from_nanos(ns)
    }
}

fn monotonic_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let (seconds, ns) = (time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs());
    seconds * 1_000_000_000 + ns
}

#[test]
fn now_is_now() {
    let clock = Clock::now();
    let told = clock.wall(monotonic_ns());
    let now = SystemTime::now();
    let apart = now.duration_since(told).unwrap_or_else(|error| error.duration());
    assert!(apart < Duration::from_secs(5), "{apart:?}");
}
