//! [`Counter`], [`Gauge`], [`Histogram`]: what hot paths hold. All are cheap to clone, share their
//! value among clones, and are updated by relaxed atomics: each number is right, two numbers read
//! at once may be of slightly different moments.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// A number that only grows.
#[derive(Clone, Debug, Default)]
pub struct Counter(Arc<AtomicU64>);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// The sum so far.
    pub fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A number that goes up and down.
#[derive(Clone, Debug)]
pub struct Gauge(Arc<AtomicU64>);

impl Default for Gauge {
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(0f64.to_bits())))
    }
}

impl Gauge {
    /// Sets it.
    pub fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Relaxed);
    }

    /// Adds `by`, which may be negative. Costs a little more than [`Gauge::set`] under contention.
    pub fn add(&self, by: f64) {
        let added = |bits| Some((f64::from_bits(bits) + by).to_bits());
        // It never fails: the closure always gives a value.
        let _ = self.0.fetch_update(Relaxed, Relaxed, added);
    }

    /// The value now.
    pub fn value(&self) -> f64 {
        f64::from_bits(self.0.load(Relaxed))
    }
}

/// A distribution of durations. An observation costs a search among some twenty bounds and two
/// additions.
#[derive(Clone, Debug)]
pub struct Histogram(Arc<Buckets>);

#[derive(Debug)]
struct Buckets {
    bounds_us: &'static [u64],
    /// One per bound, and the last for what is above all.
    counts: Box<[AtomicU64]>,
    sum_us: AtomicU64,
}

impl Histogram {
    pub(crate) fn new(bounds_us: &'static [u64]) -> Self {
        let counts = (0..=bounds_us.len()).map(|_| AtomicU64::new(0)).collect();
        Self(Arc::new(Buckets { bounds_us, counts, sum_us: AtomicU64::new(0) }))
    }

    /// Counts one duration in microseconds. A bucket holds what is equal to its bound, too.
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

    /// Counts durations that were counted elsewhere: how many there are of each bucket, the last of which
    /// has no bound, and their sum. Counts beyond the buckets are left out.
    pub fn add_counted(&self, counts: &[u64], sum_us: u64) {
        for (count, more) in self.0.counts.iter().zip(counts) {
            count.fetch_add(*more, Relaxed);
        }
        self.0.sum_us.fetch_add(sum_us, Relaxed);
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.0.counts.iter().map(|count| count.load(Relaxed)).sum()
    }

    /// Their sum in microseconds.
    pub fn sum_us(&self) -> u64 {
        self.0.sum_us.load(Relaxed)
    }

    /// Each bound with how many were at most that; `None` is the bound above all.
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
    fn an_observation_on_a_bound_is_in_its_bucket() {
        let histogram = Histogram::new(&[10, 20]);
        for us in [0, 10, 11, 20, 21, u64::from(u32::MAX)] {
            histogram.observe_us(us);
        }
        let seen: Vec<_> = histogram.cumulative().collect();
        assert_eq!(seen, [(Some(10), 2), (Some(20), 4), (None, 6)]);
        assert_eq!((histogram.count(), histogram.sum_us()), (6, 62 + u64::from(u32::MAX)));
    }

    #[test]
    fn what_was_counted_elsewhere_is_added() {
        let histogram = Histogram::new(&[10, 20]);
        histogram.observe_us(5);
        histogram.add_counted(&[1, 0, 2], 100);
        let seen: Vec<_> = histogram.cumulative().collect();
        assert_eq!(seen, [(Some(10), 2), (Some(20), 2), (None, 4)]);
        assert_eq!((histogram.count(), histogram.sum_us()), (4, 105));
    }

    #[test]
    fn clones_share_and_threads_lose_nothing() {
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
