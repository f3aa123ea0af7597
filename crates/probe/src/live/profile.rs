//! The loop that profiles stacks.

use std::{sync::atomic::Ordering, thread, time::Instant};

use super::{LiveError, Pace, ServerLiveness, ServerUnavailable};
use crate::stacks::profile::{StackProfile, StackProfiler};

/// Polls the profiler every [`Pace::interval`] until the duration has passed, the user interrupts,
/// or the monitored server stops. Returns the profile, and the error if the server stopped.
///
/// # Errors
///
/// The server cannot be inspected.
pub fn profile_stacks(
    mut profiler: StackProfiler,
    mut monitor: ServerLiveness,
    pace: &Pace,
) -> Result<(StackProfile, Option<ServerUnavailable>), LiveError> {
    let end = pace.duration.and_then(|duration| Instant::now().checked_add(duration));
    let mut ended = None;
    while ended.is_none() && !pace.stop.load(Ordering::Relaxed) {
        let now = Instant::now();
        if end.is_some_and(|end| now >= end) {
            break;
        }
        let left = end.map_or(pace.interval, |end| end - now);
        thread::sleep(pace.interval.min(left));
        ended = monitor.poll();
        match profiler.poll(Instant::now()) {
            Ok(()) => {}
            // A stopped server has no list of processes.
            Err(error) => match monitor.check() {
                Some(stopped) => ended = Some(stopped),
                None => return Err(error.into()),
            },
        }
    }
    Ok((profiler.finish(), ended))
}
