//! What active sessions were doing or waiting for, second by second, for an hour.
//!
//! Samples come once a second, ten times a second during a storm. A second's figure is the mean of its
//! samples, and that of a longer time the mean of its seconds: so a storm, which is looked at ten times as
//! often, does not weigh ten times as much.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use howdah_collect::{Wait, WaitCounts};

/// How many seconds are kept.
pub const SECONDS_MAX: usize = 3600;

/// From one sample to the next.
pub const PACE: Duration = Duration::from_secs(1);

/// From one sample to the next during a storm.
pub const STORM_PACE: Duration = Duration::from_millis(100);

/// A storm goes on for so long after the last sample that was one, so that its end is seen as closely.
const STORM_HOLD_US: i64 = 10_000_000;

/// Fewer sessions than that are no storm, however large their share is.
const STORM_SESSIONS: u32 = 5;

/// Active sessions of a server by what they waited for. To copy it is cheap: seconds are shared.
#[derive(Clone, Debug, Default)]
pub struct WaitHistory {
    seconds: VecDeque<Arc<WaitSecond>>,
    /// The last sample that was a storm, by our clock.
    storm_us: Option<i64>,
}

/// A second with at least one sample.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitSecond {
    /// Seconds since 1970, by our clock.
    pub second: i64,
    /// How many samples there were.
    pub samples: u32,
    /// Sessions in each wait, added up over the samples; `None` is running.
    pub sums: BTreeMap<Option<Wait>, u32>,
}

impl WaitSecond {
    /// Active sessions in each wait, on average.
    pub fn means(&self) -> impl Iterator<Item = (Option<&Wait>, f64)> {
        let samples = f64::from(self.samples.max(1));
        self.sums.iter().map(move |(wait, sum)| (wait.as_ref(), f64::from(*sum) / samples))
    }
}

/// Whether so many sessions wait for each other that it should be looked at closely: at least five, and at
/// least half of those at work, wait for a lock, a latch or a pinned buffer.
pub fn is_storm(counts: &WaitCounts) -> bool {
    let waiting = counts.waiting_for_others();
    waiting >= STORM_SESSIONS && u64::from(waiting) * 2 >= u64::from(counts.sessions())
}

impl WaitHistory {
    /// Adds a sample that was taken at `at_us`, microseconds since 1970 by our clock. One that is older than
    /// the last, because the clock was set back, counts to the last second.
    pub fn add(&mut self, at_us: i64, counts: &WaitCounts) {
        if is_storm(counts) {
            self.storm_us = Some(at_us);
        }
        let second = at_us.div_euclid(1_000_000);
        if self.seconds.back().is_none_or(|last| last.second < second) {
            self.push(WaitSecond { second, ..WaitSecond::default() });
        }
        let Some(last) = self.seconds.back_mut() else { return };
        let last = Arc::make_mut(last);
        last.samples = last.samples.saturating_add(1);
        for count in counts.iter() {
            let sum = last.sums.entry(count.wait.clone()).or_default();
            *sum = sum.saturating_add(count.sessions);
        }
    }

    /// Adds a whole second, behind all others; one that is not later than the last is left out.
    pub fn push(&mut self, second: WaitSecond) {
        if self.seconds.back().is_some_and(|last| last.second >= second.second) {
            return;
        }
        self.seconds.push_back(Arc::new(second));
        let oldest = self.seconds.len().saturating_sub(SECONDS_MAX);
        self.seconds.drain(..oldest);
    }

    /// How long to wait for the next sample, at `now_us`.
    pub fn pace(&self, now_us: i64) -> Duration {
        if self.is_in_storm(now_us) { STORM_PACE } else { PACE }
    }

    /// Whether it is looked at closely, at `now_us`.
    pub fn is_in_storm(&self, now_us: i64) -> bool {
        self.storm_us.is_some_and(|storm_us| (0..STORM_HOLD_US).contains(&(now_us - storm_us)))
    }

    /// The seconds there are, the oldest first.
    pub fn seconds(&self) -> impl DoubleEndedIterator<Item = &WaitSecond> {
        self.seconds.iter().map(|second| &**second)
    }

    /// The same as it was at `at_us`.
    pub fn until(&self, at_us: i64) -> Self {
        let last = at_us.div_euclid(1_000_000);
        let seconds = self.seconds.iter().take_while(|second| second.second <= last);
        Self { seconds: seconds.cloned().collect(), storm_us: self.storm_us }
    }

    /// The seconds behind `second`, the oldest first.
    pub fn after(&self, second: i64) -> impl Iterator<Item = &WaitSecond> {
        let from = self.seconds.partition_point(|known| known.second <= second);
        self.seconds.range(from..).map(|second| &**second)
    }

    /// Active sessions in each wait, on average over all its seconds.
    pub fn means(&self) -> BTreeMap<Option<Wait>, f64> {
        let mut means = BTreeMap::new();
        for second in &self.seconds {
            for (wait, mean) in second.means() {
                *means.entry(wait.cloned()).or_insert(0.0) += mean;
            }
        }
        #[expect(clippy::cast_precision_loss, reason = "an hour of seconds")]
        let seconds = self.seconds.len().max(1) as f64;
        means.values_mut().for_each(|mean| *mean /= seconds);
        means
    }

    /// How many samples there are in all.
    pub fn samples(&self) -> u64 {
        self.seconds.iter().map(|second| u64::from(second.samples)).sum()
    }
}

#[cfg(test)]
mod tests {
    use howdah_collect::WaitCount;

    use super::*;

    fn counts(running: u32, locked: u32) -> WaitCounts {
        let wait = Wait { class: "Lock".into(), event: "tuple".into() };
        WaitCounts::new([
            WaitCount { wait: None, sessions: running },
            WaitCount { wait: Some(wait), sessions: locked },
        ])
    }

    #[test]
    fn a_storm_is_many_that_wait_for_each_other_and_not_a_few() {
        assert!(is_storm(&counts(5, 5)));
        assert!(!is_storm(&counts(6, 5)), "most of them work");
        assert!(!is_storm(&counts(0, 4)), "a chain of four is no storm");
        assert!(!is_storm(&WaitCounts::default()));
    }

    #[test]
    fn a_storm_is_sampled_at_ten_hertz_until_ten_seconds_after() {
        let mut waits = WaitHistory::default();
        waits.add(1_000_000, &counts(9, 0));
        assert_eq!(waits.pace(1_000_000), PACE);
        waits.add(2_000_000, &counts(1, 20));
        assert_eq!(waits.pace(11_999_999), STORM_PACE);
        assert_eq!(waits.pace(12_000_000), PACE);
    }

    #[test]
    fn a_second_that_is_sampled_often_weighs_no_more() {
        let mut waits = WaitHistory::default();
        waits.add(1_000_000, &counts(2, 0));
        for tenth in 0..10 {
            waits.add(2_000_000 + tenth * 100_000, &counts(0, 10));
        }
        let means: Vec<f64> = waits.means().into_values().collect();
        assert_eq!(means, [1.0, 5.0]);
        assert_eq!(waits.samples(), 11);
    }

    #[test]
    fn an_hour_is_kept_and_a_clock_that_is_set_back_loses_nothing() {
        let mut waits = WaitHistory::default();
        for second in 0..4000 {
            waits.add(second * 1_000_000, &counts(1, 0));
        }
        assert_eq!(waits.seconds().count(), SECONDS_MAX);
        waits.add(10_000_000, &counts(1, 0));
        assert_eq!(waits.seconds().last().map(|last| (last.second, last.samples)), Some((3999, 2)));
        assert_eq!(waits.until(3_990_500_000).seconds().last().map(|last| last.second), Some(3990));
        assert_eq!(waits.after(3997).count(), 2);
    }
}
