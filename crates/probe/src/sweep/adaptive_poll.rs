//! Chooses when to poll next.
//!
//! Most counters only grow and may be polled slowly. The allocation counter is periodically reset
//! to 0, which loses the allocations since the previous sample. So polls are frequent around the
//! expected reset, which is predicted from the last two.

use std::time::{Duration, Instant};

/// Poll interval while no reset is expected.
const SLOW_POLL_INTERVAL: Duration = Duration::from_millis(40);

/// Poll interval around a reset: allocations in this time may go unseen.
const FAST_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Longest time between two resets that predicts the next one: `bgwriter_delay` is at most 10 s,
/// but an idle background writer sleeps longer.
const RESET_INTERVAL_MAX: Duration = Duration::from_secs(11);

/// Poll interval that adapts to the resets of the allocation counter.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdaptivePoll {
    seldom: Duration,
    often: Duration,
    reset_at: Option<Instant>,
    /// Time between the last two resets; `None` if it is unknown or longer than
    /// [`RESET_INTERVAL_MAX`].
    gap: Option<Duration>,
    /// Recent difference between successive reset intervals.
    jitter: Duration,
    /// Whether buffers are being allocated.
    is_moving: bool,
}

impl AdaptivePoll {
    /// Creates a poll interval that is never longer than `row_length`.
    pub(super) fn new(row_length: Duration) -> Self {
        let (seldom, often) =
            (SLOW_POLL_INTERVAL.min(row_length), FAST_POLL_INTERVAL.min(row_length));
        Self { seldom, often, reset_at: None, gap: None, jitter: Duration::ZERO, is_moving: false }
    }

    /// Records the result of a poll.
    pub(super) fn observe(&mut self, now: Instant, is_reset: bool, is_moving: bool) {
        self.is_moving = is_moving || is_reset;
        if is_reset {
            let gap = self.reset_at.map(|before| now.saturating_duration_since(before));
            let gap = gap.filter(|gap| *gap <= RESET_INTERVAL_MAX);
            if let (Some(gap), Some(before)) = (gap, self.gap) {
                // A reset that came this much earlier than predicted was missed, so the allowance
                // shrinks slowly.
                self.jitter = gap.abs_diff(before).max(self.jitter * 7 / 8);
            } else {
                self.jitter = gap.unwrap_or_default() / 16;
            }
            self.gap = gap;
            self.reset_at = Some(now);
        }
    }

    /// Returns the time to wait after a poll at `now`.
    pub(super) fn next_interval(&self, now: Instant) -> Duration {
        if !self.is_moving {
            // Without allocations, a reset loses nothing.
            return self.seldom;
        }
        let (Some(reset_at), Some(gap)) = (self.reset_at, self.gap) else { return self.often };
        // The background writer sleeps for a fixed time, but its work varies in length.
        let early = 2 * (self.jitter + self.often);
        let poll_fast_from = reset_at + gap.saturating_sub(early);
        let rest = poll_fast_from.saturating_duration_since(now);
        rest.clamp(self.often, self.seldom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Simulates polling for `length` with resets at the given times. Returns the number of polls,
    /// and for each reset the time since the last poll before it.
    fn simulate(resets: &[Duration], length: Duration) -> (u32, Vec<Duration>) {
        let begin = Instant::now();
        let mut rhythm = AdaptivePoll::new(Duration::from_secs(1));
        let (mut count, mut at, mut losses) = (0, Duration::ZERO, Vec::new());
        while at < length {
            count += 1;
            let wait = rhythm.next_interval(begin + at);
            let next = at + wait;
            let reset = resets.iter().find(|reset| (at..next).contains(reset));
            losses.extend(reset.map(|reset| *reset - at));
            rhythm.observe(begin + next, reset.is_some(), true);
            at = next;
        }
        (count, losses)
    }

    #[test]
    fn polls_are_frequent_around_resets() {
        // Every 200 ms, some late.
        let resets: Vec<_> = (1..50).map(|n| 200 * MS * n + MS * (n * 7 % 5)).collect();
        let (count, losses) = simulate(&resets, 10_000 * MS);
        assert_eq!(losses.len(), 49);
        assert!(losses[2..].iter().all(|loss| *loss <= FAST_POLL_INTERVAL), "{losses:?}");
        assert!(count < 900, "five slow polls, and some ten at each reset: {count}");
    }

    #[test]
    fn changed_reset_interval_is_relearnt() {
        let fast = (1..20).map(|n| 200 * MS * n);
        let slow = (1..10).map(|n| 3800 * MS + 1000 * MS * n);
        let then_fast = (1..20).map(|n| 12_800 * MS + 100 * MS * n);
        let resets: Vec<_> = fast.chain(slow).chain(then_fast).collect();
        let (_, losses) = simulate(&resets, 15_000 * MS);
        assert_eq!(losses.len(), 47);
        let late = losses.iter().filter(|loss| **loss > FAST_POLL_INTERVAL).count();
        assert!(late <= 2, "{losses:?}");
    }

    #[test]
    fn idle_server_is_polled_slowly() {
        let now = Instant::now();
        let mut rhythm = AdaptivePoll::new(Duration::from_secs(1));
        rhythm.observe(now, true, true);
        rhythm.observe(now + 200 * MS, true, true);
        rhythm.observe(now + 399 * MS, false, false);
        assert_eq!(rhythm.next_interval(now + 399 * MS), SLOW_POLL_INTERVAL);
        let short = AdaptivePoll::new(3 * MS);
        assert_eq!(short.next_interval(now), 3 * MS, "a row of 3 ms is polled once");
    }
}
