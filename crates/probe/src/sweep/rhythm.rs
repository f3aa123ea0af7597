//! When to look next.
//!
//! The counters that only grow may be looked at seldom. The count of allocations is set to 0 again and again,
//! and what was handed out since the look before is lost then: so looks are close together around that
//! moment, which keeps to a rhythm of its own that is learnt from the last two.

use std::time::{Duration, Instant};

/// Between two looks while the count is not about to be set to 0.
const SELDOM: Duration = Duration::from_millis(40);

/// Between two looks around that moment: what is handed out meanwhile may go unseen.
const OFTEN: Duration = Duration::from_millis(2);

/// No background writer that has something to do rests for longer: `bgwriter_delay` is at most 10 s.
const GAP_MAX: Duration = Duration::from_secs(11);

#[derive(Clone, Copy, Debug)]
pub(super) struct Rhythm {
    seldom: Duration,
    often: Duration,
    reset_at: Option<Instant>,
    /// From one time that the count was set to 0 to the next.
    gap: Option<Duration>,
    /// By how much a gap differs from the one before it, of late.
    jitter: Duration,
    /// Whether buffers are handed out.
    is_moving: bool,
}

impl Rhythm {
    /// Looks at least once in `row_length`.
    pub(super) fn new(row_length: Duration) -> Self {
        let (seldom, often) = (SELDOM.min(row_length), OFTEN.min(row_length));
        Self { seldom, often, reset_at: None, gap: None, jitter: Duration::ZERO, is_moving: false }
    }

    /// A look saw this.
    pub(super) fn saw(&mut self, now: Instant, is_reset: bool, is_moving: bool) {
        self.is_moving = is_moving || is_reset;
        if is_reset {
            let gap = self.reset_at.map(|before| now.saturating_duration_since(before));
            let gap = gap.filter(|gap| *gap <= GAP_MAX);
            if let (Some(gap), Some(before)) = (gap, self.gap) {
                // One that came early was missed by it; so what is allowed for shrinks slowly.
                self.jitter = gap.abs_diff(before).max(self.jitter * 7 / 8);
            } else {
                self.jitter = gap.unwrap_or_default() / 16;
            }
            self.gap = gap;
            self.reset_at = Some(now);
        }
    }

    /// How long to wait after a look at `now`.
    pub(super) fn wait(&self, now: Instant) -> Duration {
        if !self.is_moving {
            // Nothing is there to be lost.
            return self.seldom;
        }
        let (Some(reset_at), Some(gap)) = (self.reset_at, self.gap) else { return self.often };
        // The background writer's own work takes now more, now less time.
        let early = 2 * (self.jitter + self.often);
        let watch_from = reset_at + gap.saturating_sub(early);
        let rest = watch_from.saturating_duration_since(now);
        rest.clamp(self.often, self.seldom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Looks for `length` at a count that is set to 0 at these times. Gives the looks, and at each time how
    /// long before it the last one was.
    fn looks(resets: &[Duration], length: Duration) -> (u32, Vec<Duration>) {
        let begin = Instant::now();
        let mut rhythm = Rhythm::new(Duration::from_secs(1));
        let (mut count, mut at, mut losses) = (0, Duration::ZERO, Vec::new());
        while at < length {
            count += 1;
            let wait = rhythm.wait(begin + at);
            let next = at + wait;
            let reset = resets.iter().find(|reset| (at..next).contains(reset));
            losses.extend(reset.map(|reset| *reset - at));
            rhythm.saw(begin + next, reset.is_some(), true);
            at = next;
        }
        (count, losses)
    }

    #[test]
    fn looks_are_close_together_where_something_can_be_lost() {
        // Every 200 ms, some late.
        let resets: Vec<_> = (1..50).map(|n| 200 * MS * n + MS * (n * 7 % 5)).collect();
        let (count, losses) = looks(&resets, 10_000 * MS);
        assert_eq!(losses.len(), 49);
        assert!(losses[2..].iter().all(|loss| *loss <= OFTEN), "{losses:?}");
        assert!(count < 900, "five seldom ones, and some ten at each time: {count}");
    }

    #[test]
    fn another_rhythm_is_learnt() {
        let fast = (1..20).map(|n| 200 * MS * n);
        let slow = (1..10).map(|n| 3800 * MS + 1000 * MS * n);
        let then_fast = (1..20).map(|n| 12_800 * MS + 100 * MS * n);
        let resets: Vec<_> = fast.chain(slow).chain(then_fast).collect();
        let (_, losses) = looks(&resets, 15_000 * MS);
        assert_eq!(losses.len(), 47);
        let late = losses.iter().filter(|loss| **loss > OFTEN).count();
        assert!(late <= 2, "{losses:?}");
    }

    #[test]
    fn where_nothing_moves_looks_are_seldom() {
        let now = Instant::now();
        let mut rhythm = Rhythm::new(Duration::from_secs(1));
        rhythm.saw(now, true, true);
        rhythm.saw(now + 200 * MS, true, true);
        rhythm.saw(now + 399 * MS, false, false);
        assert_eq!(rhythm.wait(now + 399 * MS), SELDOM);
        let short = Rhythm::new(3 * MS);
        assert_eq!(short.wait(now), 3 * MS, "a row of 3 ms has a look");
    }
}
