//! A histogram of durations, with summary statistics.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Distribution of durations up to one hour, with three significant digits.
#[derive(Clone, Debug)]
pub struct Distribution {
    ns: Histogram<u64>,
}

/// Summary statistics of durations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DurationStats {
    /// Number of durations.
    pub count: u64,
    /// The shortest duration.
    pub min: Duration,
    /// Arithmetic mean.
    pub mean: Duration,
    /// Median.
    pub p50: Duration,
    /// 99th percentile.
    pub p99: Duration,
    /// The longest duration.
    pub max: Duration,
    /// Sum of all durations, accurate to three digits.
    pub total: Duration,
}

/// One hour in nanoseconds; longer durations are recorded as this.
const DURATION_MAX_NS: u64 = 3_600_000_000_000;

impl Default for Distribution {
    fn default() -> Self {
        // Without a maximum, the histogram starts small and grows on demand.
        Self { ns: Histogram::new(3).expect("3 is a valid precision") }
    }
}

impl Distribution {
    /// Adds a duration. Durations over an hour count as one hour.
    pub fn add(&mut self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX).min(DURATION_MAX_NS);
        if self.ns.record(ns).is_err() {
            self.ns.saturating_record(ns);
        }
    }

    /// Returns the summary statistics; all are zero if there are no durations.
    pub fn stats(&self) -> DurationStats {
        let histogram = &self.ns;
        if histogram.is_empty() {
            return DurationStats::default();
        }
        let (count, mean) = (histogram.len(), histogram.mean());
        let ns = Duration::from_nanos;
        DurationStats {
            count,
            min: ns(histogram.min()),
            mean: ns(mean as u64),
            p50: ns(histogram.value_at_quantile(0.5)),
            p99: ns(histogram.value_at_quantile(0.99)),
            max: ns(histogram.max()),
            total: Duration::from_secs_f64(mean * count as f64 / 1e9),
        }
    }
}

#[test]
fn stats_describe_the_added_durations() {
    let mut distribution = Distribution::default();
    assert_eq!(distribution.stats(), DurationStats::default());
    for ms in 1..=100 {
        distribution.add(Duration::from_millis(ms));
    }
    distribution.add(Duration::MAX);
    let DurationStats { count, min, p50, max, .. } = distribution.stats();
    let near = |duration: Duration, ms: u128| duration.as_micros().abs_diff(1000 * ms) <= ms;
    assert_eq!(count, 101);
    assert!(near(min, 1) && near(p50, 51) && near(max, 3_600_000), "{min:?} {p50:?} {max:?}");
}
