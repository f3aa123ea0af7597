//! Handles to metrics, for hot paths: [`Counter`], [`Gauge`], [`Histogram`].
//!
//! All are cheap to clone, clones share one value, and updates are relaxed atomics: each value is
//! exact, but two values read together may be from slightly different moments.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// A value that only increases.
#[derive(Clone, Debug, Default)]
pub struct Counter(Arc<AtomicU64>);

impl Counter {
    /// Adds `n`, wrapping around at 2⁶⁴.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// Raises the value to `total`, a sum counted elsewhere. Does nothing if `total` is smaller.
    pub fn raise_to(&self, total: u64) {
        self.0.fetch_max(total, Relaxed);
    }

    /// Returns the current value.
    pub fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A value that increases and decreases.
#[derive(Clone, Debug)]
pub struct Gauge(Arc<AtomicU64>);

impl Default for Gauge {
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(0f64.to_bits())))
    }
}

impl Gauge {
    /// Replaces the value.
    pub fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Relaxed);
    }

    /// Adds `by`, which may be negative. Slightly slower than [`Gauge::set`] under contention.
    pub fn add(&self, by: f64) {
        let added = |bits| Some((f64::from_bits(bits) + by).to_bits());
        // Cannot fail: the closure always returns a value.
        let _ = self.0.fetch_update(Relaxed, Relaxed, added);
    }

    /// Returns the current value.
    pub fn value(&self) -> f64 {
        f64::from_bits(self.0.load(Relaxed))
    }
}

/// A distribution of durations. An observation costs a binary search over about twenty bounds and
/// two additions.
#[derive(Clone, Debug)]
pub struct Histogram(Arc<Buckets>);

#[derive(Debug)]
struct Buckets {
    bounds_us: &'static [u64],
    /// Observations in each bucket; the last bucket has no bound.
    counts: Box<[AtomicU64]>,
    sum_us: AtomicU64,
}

impl Histogram {
    pub(crate) fn new(bounds_us: &'static [u64]) -> Self {
        let counts = (0..=bounds_us.len()).map(|_| AtomicU64::new(0)).collect();
        Self(Arc::new(Buckets { bounds_us, counts, sum_us: AtomicU64::new(0) }))
    }

    /// Counts one duration in microseconds. Bucket bounds are inclusive.
    pub fn observe_us(&self, us: u64) {
        let bucket = self.0.bounds_us.partition_point(|bound| *bound < us);
        if let Some(count) = self.0.counts.get(bucket) {
            count.fetch_add(1, Relaxed);
        }
        self.0.sum_us.fetch_add(us, Relaxed);
    }

    /// Counts one duration; fractions of a microsecond are dropped.
    pub fn observe(&self, duration: Duration) {
        self.observe_us(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX));
    }

    /// Adds durations counted elsewhere: one count per bucket, ending with the unbounded bucket,
    /// and the sum in microseconds. Surplus counts are ignored.
    pub fn add_buckets(&self, counts: &[u64], sum_us: u64) {
        for (count, more) in self.0.counts.iter().zip(counts) {
            count.fetch_add(*more, Relaxed);
        }
        self.0.sum_us.fetch_add(sum_us, Relaxed);
    }

    /// Returns the number of observations.
    pub fn count(&self) -> u64 {
        self.0.counts.iter().map(|count| count.load(Relaxed)).sum()
    }

    /// Returns the number of observations in each bucket, ending with the unbounded bucket.
    pub fn bucket_counts(&self) -> impl Iterator<Item = u64> {
        self.0.counts.iter().map(|count| count.load(Relaxed))
    }

    /// Returns the upper bounds of the buckets in microseconds, without the unbounded bucket.
    pub(crate) fn bounds_us(&self) -> &'static [u64] {
        self.0.bounds_us
    }

    /// Returns the sum of all observations in microseconds.
    pub fn sum_us(&self) -> u64 {
        self.0.sum_us.load(Relaxed)
    }

    /// Returns each bound with the number of observations up to it; `None` is the bucket without a
    /// bound.
    pub(crate) fn cumulative(&self) -> impl Iterator<Item = (Option<u64>, u64)> {
        let bounds = self.0.bounds_us.iter().copied().map(Some).chain([None]);
        bounds.zip(self.0.counts.iter()).scan(0, |below, (bound, count)| {
            *below += count.load(Relaxed);
            Some((bound, *below))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn observation_on_bound_counts_in_bucket() {
        let histogram = Histogram::new(&[10, 20]);
        for us in [0, 10, 11, 20, 21, u64::from(u32::MAX)] {
            histogram.observe_us(us);
        }
        let buckets: Vec<_> = histogram.cumulative().collect();
        assert_eq!(buckets, [(Some(10), 2), (Some(20), 4), (None, 6)]);
        assert_eq!((histogram.count(), histogram.sum_us()), (6, 62 + u64::from(u32::MAX)));
    }

    #[test]
    fn bucket_counts_are_added() {
        let histogram = Histogram::new(&[10, 20]);
        histogram.observe_us(5);
        histogram.add_buckets(&[1, 0, 2], 100);
        let buckets: Vec<_> = histogram.cumulative().collect();
        assert_eq!(buckets, [(Some(10), 2), (Some(20), 2), (None, 4)]);
        assert_eq!((histogram.count(), histogram.sum_us()), (4, 105));
    }

    #[test]
    fn counter_never_decreases() {
        let counter = Counter::default();
        for (total, value) in [(5, 5), (3, 5), (8, 8)] {
            counter.raise_to(total);
            assert_eq!(counter.value(), value);
        }
    }

    #[test]
    fn clones_share_value_across_threads() {
        let (counter, gauge) = (Counter::default(), Gauge::default());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let (counter, gauge) = (counter.clone(), gauge.clone());
                scope.spawn(move || {
                    for _ in 0..1000 {
                        counter.add(2);
                        gauge.add(0.5);
                    }
                });
            }
        });
        assert_eq!(counter.value(), 8000);
        assert!((gauge.value() - 2000.0).abs() < f64::EPSILON);
    }
}
