//! Durations, added up.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Any number of durations up to an hour, to three digits.
#[derive(Clone, Debug)]
pub struct Distribution {
    ns: Histogram<u64>,
}

/// What there is to say of some durations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// How many there were.
    pub count: u64,
    /// The shortest.
    pub min: Duration,
    /// Their mean.
    pub mean: Duration,
    /// Half of them were not longer.
    pub p50: Duration,
    /// Of a hundred, 99 were not longer.
    pub p99: Duration,
    /// The longest.
    pub max: Duration,
    /// All together.
    pub total: Duration,
}

/// An hour.
const LONGEST_NS: u64 = 3_600_000_000_000;

impl Default for Distribution {
    fn default() -> Self {
        // It begins small and grows with what comes.
        Self { ns: Histogram::new(3).expect("three digits are allowed") }
    }
}

impl Distribution {
    /// Adds a duration. What is longer than an hour counts as an hour.
    pub fn add(&mut self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX).min(LONGEST_NS);
        if self.ns.record(ns).is_err() {
            self.ns.saturating_record(ns);
        }
    }

    /// What there is to say; all zeros of none.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let histogram = &self.ns;
        if histogram.is_empty() {
            return Figures::default();
        }
        let (count, mean) = (histogram.len(), histogram.mean());
        let ns = Duration::from_nanos;
        Figures {
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
fn figures_are_those_of_what_was_added() {
    let mut distribution = Distribution::default();
    assert_eq!(distribution.figures(), Figures::default());
    for ms in 1..=100 {
        distribution.add(Duration::from_millis(ms));
    }
    distribution.add(Duration::MAX);
    let Figures { count, min, p50, max, .. } = distribution.figures();
    let near = |duration: Duration, ms: u128| duration.as_micros().abs_diff(1000 * ms) <= ms;
    assert_eq!(count, 101);
    assert!(near(min, 1) && near(p50, 51) && near(max, 3_600_000), "{min:?} {p50:?} {max:?}");
}
