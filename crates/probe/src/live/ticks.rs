//! Waits for the ticks of a probe.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use super::{Pace, ProbeOutput};
use crate::waits::TickSchedule;

/// Ticks at a fixed period until the probe's duration has passed, the probe is stopped, or its
/// output cannot be flushed.
#[derive(Debug)]
pub(super) struct Ticks {
    stop: Arc<AtomicBool>,
    end: Option<Instant>,
    schedule: TickSchedule,
}

impl Ticks {
    /// Starts a ticker with this period.
    pub(super) fn start(pace: &Pace, period: Duration) -> Self {
        let now = Instant::now();
        Self {
            stop: Arc::clone(&pace.stop),
            end: pace.duration.and_then(|duration| now.checked_add(duration)),
            schedule: TickSchedule::new(now + period, period),
        }
    }

    /// Returns the number of ticks skipped because the work in between took too long.
    pub(super) fn missed(&self) -> u64 {
        self.schedule.missed()
    }

    /// Waits for the next tick; returns false at the end, or if the output cannot be flushed.
    pub(super) fn tick<U>(&mut self, output: &mut impl ProbeOutput<U>) -> bool {
        let due = self.schedule.next_tick_at();
        let should_continue = self.wait_until(due, output);
        self.schedule.advance(Instant::now());
        should_continue
    }

    /// Like [`Self::tick`], for callers that determine the time of the tick themselves.
    pub(super) fn wait_until<U>(&mut self, due: Instant, output: &mut impl ProbeOutput<U>) -> bool {
        // Flush, so that a pipe or file is up to date. An error will recur at the next write.
        if output.flush().is_err() {
            return false;
        }
        let until = self.end.map_or(due, |end| end.min(due));
        thread::sleep(until.saturating_duration_since(Instant::now()));
        let now = Instant::now();
        let is_over = self.end.is_some_and(|end| now >= end);
        !is_over && !self.stop.load(Ordering::Relaxed)
    }
}
