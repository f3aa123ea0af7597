//! Wait events of working sessions, second by second, for an hour.
//!
//! Samples are taken once a second, and ten times a second during a storm. A second's value is the
//! mean of its samples, and that of a longer period is the mean of its seconds, so that the more
//! frequent samples of a storm do not weigh more.

mod profile;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use howdah_collect::{BackendWait, WaitCounts};

pub use self::profile::{SessionProfile, WaitDimension, WaitProfile};

/// Number of seconds that a history in memory retains.
pub const SECONDS_MAX: usize = 3600;

/// Sampling interval outside a storm.
pub const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// Sampling interval during a storm.
pub const STORM_SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

/// Time in microseconds that a storm is considered to continue after its last sample, so that its
/// end is sampled at the same rate.
const STORM_LINGER_US: i64 = 10_000_000;

/// Minimum number of waiting sessions in a storm, regardless of their share.
const STORM_SESSIONS_MIN: u32 = 5;

/// Numbers of a server's working sessions by wait event, second by second. Cloning is cheap:
/// seconds are shared.
#[derive(Clone, Debug, Default)]
pub struct WaitHistory {
    seconds: VecDeque<Arc<WaitSecond>>,
    /// Time of the last storm sample, by our clock.
    storm_us: Option<i64>,
}

/// A second with at least one sample.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitSecond {
    /// Seconds since 1970, by our clock.
    pub second: i64,
    /// Number of samples taken in this second.
    pub samples: u32,
    /// Sessions per wait event, summed over the samples; `None` means running.
    pub sums: BTreeMap<Option<BackendWait>, u32>,
}

impl WaitSecond {
    /// Returns the average number of working sessions per wait event.
    pub fn means(&self) -> impl Iterator<Item = (Option<&BackendWait>, f64)> {
        let samples = f64::from(self.samples.max(1));
        self.sums.iter().map(move |(wait, sum)| (wait.as_ref(), f64::from(*sum) / samples))
    }
}

/// Whether so many sessions block each other that sampling should be more frequent: at least five,
/// and at least half of the working sessions, wait for a heavyweight or lightweight lock or for a
/// pinned buffer.
pub fn is_storm(counts: &WaitCounts) -> bool {
    let waiting = counts.waiting_for_others();
    waiting >= STORM_SESSIONS_MIN && u64::from(waiting) * 2 >= u64::from(counts.sessions())
}

impl WaitHistory {
    /// Adds a sample taken at `at_us`, microseconds since 1970 by our clock. A sample older than
    /// the last, after the clock was set back, counts towards the last second.
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

    /// Appends a second, and drops the oldest one if there are more than 3,600. A second that is
    /// not later than the last is ignored.
    pub fn push(&mut self, second: WaitSecond) {
        if self.seconds.back().is_some_and(|last| last.second >= second.second) {
            return;
        }
        self.seconds.push_back(Arc::new(second));
        let oldest = self.seconds.len().saturating_sub(SECONDS_MAX);
        self.seconds.drain(..oldest);
    }

    /// Returns the time until the next sample, at `now_us`.
    pub fn sample_interval(&self, now_us: i64) -> Duration {
        if self.is_in_storm(now_us) { STORM_SAMPLE_INTERVAL } else { SAMPLE_INTERVAL }
    }

    /// Whether a storm is in progress at `now_us`.
    pub fn is_in_storm(&self, now_us: i64) -> bool {
        self.storm_us.is_some_and(|storm_us| (0..STORM_LINGER_US).contains(&(now_us - storm_us)))
    }

    /// Returns all seconds, oldest first.
    pub fn seconds(&self) -> impl DoubleEndedIterator<Item = &WaitSecond> {
        self.seconds.iter().map(|second| &**second)
    }

    /// Returns the history up to and including the second that contains `at_us`, in microseconds
    /// since 1970.
    #[must_use]
    pub fn until(&self, at_us: i64) -> Self {
        let last = at_us.div_euclid(1_000_000);
        let seconds = self.seconds.iter().take_while(|second| second.second <= last);
        Self { seconds: seconds.cloned().collect(), storm_us: self.storm_us }
    }

    /// Returns the history from the second that contains `at_us` on, in microseconds since 1970.
    #[must_use]
    pub fn since(&self, at_us: i64) -> Self {
        let first = at_us.div_euclid(1_000_000);
        let seconds = self.seconds.iter().filter(|second| second.second >= first);
        Self { seconds: seconds.cloned().collect(), storm_us: self.storm_us }
    }

    /// Returns the seconds after `second`, oldest first.
    pub fn after(&self, second: i64) -> impl Iterator<Item = &WaitSecond> {
        let from = self.seconds.partition_point(|known| known.second <= second);
        self.seconds.range(from..).map(|second| &**second)
    }

    /// Returns the average number of working sessions per wait event, over all seconds.
    pub fn means(&self) -> BTreeMap<Option<BackendWait>, f64> {
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

    /// Returns the total number of samples in all seconds.
    pub fn samples(&self) -> u64 {
        self.seconds.iter().map(|second| u64::from(second.samples)).sum()
    }
}

#[cfg(test)]
mod tests {
    use howdah_collect::WaitCount;

    use super::*;

    fn counts(running: u32, locked: u32) -> WaitCounts {
        let wait = BackendWait { class: "Lock".into(), event: "tuple".into() };
        WaitCounts::new([
            WaitCount { wait: None, sessions: running },
            WaitCount { wait: Some(wait), sessions: locked },
        ])
    }

    #[test]
    fn storm_needs_many_sessions_waiting_for_each_other() {
        assert!(is_storm(&counts(5, 5)));
        assert!(!is_storm(&counts(6, 5)), "most of them work");
        assert!(!is_storm(&counts(0, 4)), "a chain of four is no storm");
        assert!(!is_storm(&WaitCounts::default()));
    }

    #[test]
    fn storm_is_sampled_at_ten_hertz_plus_ten_seconds() {
        let mut waits = WaitHistory::default();
        waits.add(1_000_000, &counts(9, 0));
        assert_eq!(waits.sample_interval(1_000_000), SAMPLE_INTERVAL);
        waits.add(2_000_000, &counts(1, 20));
        assert_eq!(waits.sample_interval(11_999_999), STORM_SAMPLE_INTERVAL);
        assert_eq!(waits.sample_interval(12_000_000), SAMPLE_INTERVAL);
    }

    #[test]
    fn frequently_sampled_second_weighs_the_same() {
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
    fn one_hour_is_retained_after_clock_reset() {
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
