//! Converts the kernel's monotonic clock to wall-clock time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Offset from `CLOCK_MONOTONIC`, which BPF programs stamp events with, to the wall clock.
///
/// Measured once. If the wall clock is set afterwards, events are stamped as if it had not been.
#[derive(Clone, Copy, Debug)]
pub struct ClockOffset {
    /// Nanoseconds to add to the monotonic time.
    offset_ns: i128,
}

impl ClockOffset {
    /// Measures the current offset, with the closest of several pairs of readings.
    pub fn measure() -> Self {
        // The two readings should be simultaneous; the closest of several pairs is used.
        let readings = (0..8).map(|_| {
            let before = monotonic_ns();
            let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let after = monotonic_ns();
            (after - before, wall.as_nanos().cast_signed() - i128::from(before.midpoint(after)))
        });
        let difference_ns = readings.min().map_or(0, |(_, difference)| difference);
        Self { offset_ns: difference_ns }
    }

    /// Converts a monotonic time to wall-clock time.
    pub fn to_wall_clock(self, monotonic_ns: u64) -> SystemTime {
        let ns = i128::from(monotonic_ns) + self.offset_ns;
        let ns = u64::try_from(ns).unwrap_or(0);
        UNIX_EPOCH + Duration::from_nanos(ns)
    }
}

/// Returns the time of `CLOCK_MONOTONIC`.
pub(crate) fn monotonic_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let (seconds, ns) = (time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs());
    seconds * 1_000_000_000 + ns
}

#[test]
fn monotonic_now_converts_to_wall_clock_now() {
    let clock = ClockOffset::measure();
    let converted = clock.to_wall_clock(monotonic_ns());
    let now = SystemTime::now();
    let apart = now.duration_since(converted).unwrap_or_else(|error| error.duration());
    assert!(apart < Duration::from_secs(5), "{apart:?}");
}
