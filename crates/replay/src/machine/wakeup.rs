//! Measures how late a thread wakes up: the delay that the scheduler adds to each wait of the
//! replay.

use std::time::{Duration, Instant};

use howdah_dataset::{MachineBucket, MachineSeries};

use super::micros;

/// Time between two deadlines.
const INTERVAL: Duration = Duration::from_millis(10);

/// The deadlines at which the thread should wake up. They are absolute, so delays do not
/// accumulate.
#[derive(Debug)]
pub(super) struct WakeupClock {
    start: Instant,
    deadline: Instant,
}

impl WakeupClock {
    pub(super) fn new(start: Instant) -> Self {
        Self { start, deadline: start + INTERVAL }
    }

    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Returns the index of the bucket that the deadline belongs to. A deadline at the end of a
    /// bucket is the last one of that bucket.
    pub(super) fn bucket(&self) -> usize {
        let since_start = micros(self.deadline.saturating_duration_since(self.start));
        let index = since_start.saturating_sub(1) / MachineSeries::BUCKET_US;
        usize::try_from(index).unwrap_or(usize::MAX)
    }

    /// Moves on to the first deadline after `now`. Missed deadlines are skipped, because they would
    /// count one delay several times.
    pub(super) fn advance(&mut self, now: Instant) {
        let since_start = micros(now.saturating_duration_since(self.start));
        let passed = since_start / micros(INTERVAL);
        self.deadline = self.start + Duration::from_micros((passed + 1) * micros(INTERVAL));
    }
}

/// Delays of the wake-ups in one bucket.
#[derive(Debug, Default)]
pub(super) struct WakeupDelays {
    count: u64,
    sum_us: u64,
    max_us: u64,
}

impl WakeupDelays {
    pub(super) fn record(&mut self, delay: Duration) {
        let delay_us = micros(delay);
        self.count += 1;
        self.sum_us = self.sum_us.saturating_add(delay_us);
        self.max_us = self.max_us.max(delay_us);
    }

    pub(super) fn write(&self, bucket: &mut MachineBucket) {
        if let Some(mean_us) = self.sum_us.checked_div(self.count) {
            bucket.wakeup_delay_mean_us = Some(mean_us);
            bucket.wakeup_delay_max_us = Some(self.max_us);
            bucket.wakeup_count = Some(self.count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_have_a_hundred_deadlines() {
        let start = Instant::now();
        let mut clock = WakeupClock::new(start);
        let mut buckets = Vec::new();
        for _ in 0..200 {
            buckets.push(clock.bucket());
            clock.advance(clock.deadline() + Duration::from_micros(60));
        }
        assert_eq!(buckets, [vec![0; 100], vec![1; 100]].concat());
    }

    #[test]
    fn missed_deadlines_are_left_out() {
        let start = Instant::now();
        let mut clock = WakeupClock::new(start);
        clock.advance(start + Duration::from_millis(2_345));
        assert_eq!(clock.deadline(), start + Duration::from_millis(2_350));
        assert_eq!(clock.bucket(), 2);
    }

    #[test]
    fn delays_are_averaged() {
        let mut bucket = MachineBucket::default();
        let mut delays = WakeupDelays::default();
        delays.write(&mut bucket);
        assert_eq!(bucket, MachineBucket::default());
        for millis in [0, 3] {
            delays.record(Duration::from_millis(millis));
        }
        delays.write(&mut bucket);
        assert_eq!(bucket.wakeup_delay_mean_us, Some(1_500));
        assert_eq!(bucket.wakeup_delay_max_us, Some(3_000));
        assert_eq!(bucket.wakeup_count, Some(2));
    }
}
