//! Percentiles of durations, in bounded memory.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Durations above one day count as a day, which bounds memory.
const MAX_US: u64 = 24 * 3600 * 1_000_000;

/// A distribution of durations, exact to three significant digits, in bounded memory (about
/// 230 kB). Distributions of several threads or workers can be merged without loss.
#[derive(Clone, Debug)]
pub struct Percentiles {
    histogram: Histogram<u64>,
    sum_us: u128,
}

/// Summary statistics of a [`Percentiles`] distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct PercentileSummary {
    /// Number of recorded durations.
    pub count: u64,
    /// Arithmetic mean, not rounded to three digits like the percentiles.
    pub mean_us: f64,
    /// Median.
    pub p50_us: u64,
    /// 90th percentile.
    pub p90_us: u64,
    /// 95th percentile.
    pub p95_us: u64,
    /// 99th percentile.
    pub p99_us: u64,
    /// 99.9th percentile.
    pub p999_us: u64,
    /// Longest recorded duration, like the percentiles exact to three significant digits.
    pub max_us: u64,
}

impl Default for Percentiles {
    fn default() -> Self {
        Self::new()
    }
}

impl Percentiles {
    /// Creates an empty distribution.
    pub fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, MAX_US, 3);
        Self { histogram: histogram.expect("bounds 1 to a day, three digits"), sum_us: 0 }
    }

    /// Records one duration in microseconds.
    pub fn record_us(&mut self, us: u64) {
        self.histogram.saturating_record(us);
        self.sum_us += u128::from(us.min(MAX_US));
    }

    /// Records one duration; fractions of a microsecond are dropped.
    pub fn record(&mut self, duration: Duration) {
        self.record_us(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX));
    }

    /// Adds everything that `other` has recorded.
    pub fn merge(&mut self, other: &Self) {
        let added = self.histogram.add(&other.histogram);
        added.expect("every histogram here has the same bounds");
        self.sum_us += other.sum_us;
    }

    /// Returns the number of recorded durations.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Returns the duration in microseconds at `quantile` (0 to 1); `None` if nothing was recorded.
    pub fn at_us(&self, quantile: f64) -> Option<u64> {
        (self.count() > 0).then(|| self.histogram.value_at_quantile(quantile).min(self.max_us()))
    }

    /// Returns the summary; `None` if nothing was recorded.
    pub fn summary(&self) -> Option<PercentileSummary> {
        let at = |quantile| self.at_us(quantile);
        Some(PercentileSummary {
            count: self.count(),
            mean_us: self.sum_us as f64 / self.count() as f64,
            p50_us: at(0.5)?,
            p90_us: at(0.9)?,
            p95_us: at(0.95)?,
            p99_us: at(0.99)?,
            p999_us: at(0.999)?,
            max_us: self.max_us(),
        })
    }

    fn max_us(&self) -> u64 {
        self.histogram.max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(actual: u64, expected: u64) -> bool {
        actual.abs_diff(expected) as f64 <= expected as f64 * 0.001
    }

    #[test]
    fn summary_matches_known_distribution() {
        let mut percentiles = Percentiles::new();
        assert_eq!(percentiles.summary(), None);
        (1..=100_000).for_each(|us| percentiles.record_us(us));
        let summary = percentiles.summary().unwrap();
        assert_eq!(summary.count, 100_000);
        assert!((summary.mean_us - 50_000.5).abs() < 1e-6);
        for (actual, expected) in [
            (summary.p50_us, 50_000),
            (summary.p90_us, 90_000),
            (summary.p95_us, 95_000),
            (summary.p99_us, 99_000),
            (summary.p999_us, 99_900),
            (summary.max_us, 100_000),
        ] {
            assert!(near(actual, expected), "{actual} is not close to {expected}");
        }
    }

    #[test]
    fn merged_halves_equal_full_distribution() {
        let (mut odd, mut even, mut all) =
            (Percentiles::new(), Percentiles::new(), Percentiles::new());
        for us in 0..10_000 {
            all.record_us(us * us);
            if us % 2 == 0 { &mut even } else { &mut odd }.record_us(us * us);
        }
        odd.merge(&even);
        assert_eq!(odd.summary(), all.summary());
    }

    #[test]
    fn durations_are_capped_at_one_day() {
        let mut percentiles = Percentiles::new();
        percentiles.record(Duration::MAX);
        let summary = percentiles.summary().unwrap();
        assert!(near(summary.max_us, MAX_US), "{}", summary.max_us);
        assert_eq!(summary.p50_us, summary.max_us);
    }
}
