//! A mergeable histogram of durations, for a second, a phase or a whole recording.

use std::{collections::BTreeMap, time::Duration};

use howdah_codec::ByteReader;

use super::bytes::{Packed, RecordDecodeError};

/// A histogram of durations. Quantiles are accurate to about 3 %: sixteen buckets per power of two.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogHistogram {
    count: u64,
    total_ns: u64,
    min_ns: u64,
    max_ns: u64,
    /// Number of durations by bucket index.
    buckets: BTreeMap<u32, u64>,
}

/// Bits after the leading one that determine the bucket.
const SUB_BUCKET_BITS: u32 = 4;
/// Number of buckets. Below 32 ns, each nanosecond has its own.
const BUCKETS: u32 = (64 - SUB_BUCKET_BITS + 1) << SUB_BUCKET_BITS;

impl LogHistogram {
    /// Counts a duration in its bucket, and in the exact sum and range.
    pub fn add(&mut self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.min_ns = if self.count == 0 { ns } else { self.min_ns.min(ns) };
        self.max_ns = self.max_ns.max(ns);
        self.count += 1;
        self.total_ns = self.total_ns.saturating_add(ns);
        *self.buckets.entry(bucket_index(ns)).or_default() += 1;
    }

    /// Adds all durations of another histogram.
    pub fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        self.min_ns = if self.count == 0 { other.min_ns } else { self.min_ns.min(other.min_ns) };
        self.max_ns = self.max_ns.max(other.max_ns);
        self.count = self.count.saturating_add(other.count);
        self.total_ns = self.total_ns.saturating_add(other.total_ns);
        for (bucket, count) in &other.buckets {
            let sum = self.buckets.entry(*bucket).or_default();
            *sum = sum.saturating_add(*count);
        }
    }

    /// Returns the number of durations.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the sum of all durations, exact.
    pub fn total(&self) -> Duration {
        Duration::from_nanos(self.total_ns)
    }

    /// Returns the shortest duration; zero if there are none.
    pub fn min(&self) -> Duration {
        Duration::from_nanos(self.min_ns)
    }

    /// Returns the longest duration; zero if there are none.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max_ns)
    }

    /// Returns the mean duration, exact; zero if there are none.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.total_ns.checked_div(self.count).unwrap_or(0))
    }

    /// Returns the sum of all durations, in whole microseconds.
    pub(super) fn total_us(&self) -> u64 {
        self.total_ns / 1000
    }

    /// Returns the number of durations up to each bound in microseconds and above the one before,
    /// and last those above all bounds. A bucket belongs where its middle is.
    pub(super) fn counts(&self, bounds_us: &[u64]) -> Vec<u64> {
        let mut counts = vec![0_u64; bounds_us.len() + 1];
        for (bucket, count) in &self.buckets {
            let middle = bucket_midpoint(*bucket);
            let at = bounds_us.partition_point(|bound| bound.saturating_mul(1000) < middle);
            counts[at] = counts[at].saturating_add(*count);
        }
        counts
    }

    /// Returns the quantile `share` (0 to 1); zero if there are no durations.
    pub fn quantile(&self, share: f64) -> Duration {
        let rank = (share * self.count as f64).ceil().max(1.0) as u64;
        let mut cumulative = 0_u64;
        for (bucket, count) in &self.buckets {
            cumulative = cumulative.saturating_add(*count);
            if cumulative >= rank {
                // In corrupted data the minimum may exceed the maximum.
                let (least, most) = (self.min_ns.min(self.max_ns), self.max_ns);
                return Duration::from_nanos(bucket_midpoint(*bucket).clamp(least, most));
            }
        }
        self.max()
    }
}

fn bucket_index(ns: u64) -> u32 {
    if ns < 1 << SUB_BUCKET_BITS {
        return ns as u32;
    }
    let shift = ns.ilog2() - SUB_BUCKET_BITS;
    ((shift + 1) << SUB_BUCKET_BITS) + ((ns >> shift) as u32 & ((1 << SUB_BUCKET_BITS) - 1))
}

fn bucket_midpoint(bucket: u32) -> u64 {
    if bucket < 1 << SUB_BUCKET_BITS {
        return bucket.into();
    }
    let shift = (bucket >> SUB_BUCKET_BITS) - 1;
    let front = u64::from(1 << SUB_BUCKET_BITS | bucket & ((1 << SUB_BUCKET_BITS) - 1));
    (front << shift) + ((1_u64 << shift) >> 1)
}

impl Packed for LogHistogram {
    fn pack(&self, out: &mut Vec<u8>) {
        for number in [self.count, self.total_ns, self.min_ns, self.max_ns] {
            number.pack(out);
        }
        let mut last = 0;
        let buckets = self.buckets.iter().map(|(bucket, count)| {
            let step = bucket - last;
            last = *bucket;
            (step, *count)
        });
        buckets.collect::<Vec<_>>().pack(out);
    }

    fn unpack(input: &mut ByteReader<'_>) -> Result<Self, RecordDecodeError> {
        let mut number = || u64::unpack(input);
        let (count, total_ns, min_ns, max_ns) = (number()?, number()?, number()?, number()?);
        let (mut buckets, mut last) = (BTreeMap::new(), 0_u32);
        for (step, count) in Vec::<(u32, u64)>::unpack(input)? {
            last = last
                .checked_add(step)
                .filter(|bucket| *bucket < BUCKETS)
                .ok_or(RecordDecodeError::NumberTooLarge)?;
            buckets.insert(last, count);
        }
        Ok(Self { count, total_ns, min_ns, max_ns, buckets })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn histogram(all_ns: &[u64]) -> LogHistogram {
        let mut spread = LogHistogram::default();
        all_ns.iter().for_each(|ns| spread.add(Duration::from_nanos(*ns)));
        spread
    }

    #[test]
    fn counts_are_by_bounds() {
        let durations = histogram(&[900, 20_000, 20_000, 3_000_000]);
        assert_eq!(durations.counts(&[1, 50, 100]), [1, 2, 0, 1]);
        assert_eq!(durations.total_us(), 3_040);
    }

    proptest! {
        #[test]
        fn quantiles_are_within_their_error_bound(mut all_ns in prop::collection::vec(0_u64..1 << 50, 1..200), share in 0.0_f64..=1.0) {
            let spread = histogram(&all_ns);
            all_ns.sort_unstable();
            let rank = (share * all_ns.len() as f64).ceil().max(1.0) as usize;
            let (exact, estimate) = (all_ns[rank - 1] as f64, spread.quantile(share).as_nanos() as f64);
            prop_assert!((estimate - exact).abs() <= exact / 30.0 + 1.0, "{} {}", estimate, exact);
            prop_assert_eq!(spread.max().as_nanos(), u128::from(*all_ns.last().unwrap()));
        }

        #[test]
        fn merged_histograms_equal_the_combined_one(one in prop::collection::vec(any::<u32>(), 0..50), other in prop::collection::vec(any::<u32>(), 0..50)) {
            let wide = |all: &[u32]| all.iter().map(|ns| u64::from(*ns)).collect::<Vec<_>>();
            let mut merged = histogram(&wide(&one));
            merged.merge(&histogram(&wide(&other)));
            prop_assert_eq!(&merged, &histogram(&wide(&[one, other].concat())));
            let mut bytes = Vec::new();
            merged.pack(&mut bytes);
            prop_assert_eq!(LogHistogram::unpack(&mut ByteReader::new(&bytes)), Ok(merged));
        }
    }

    #[test]
    fn bucket_midpoints_map_to_their_bucket() {
        for ns in [0, 1, 15, 16, 17, 31, 32, 1000, u64::MAX] {
            let bucket = bucket_index(ns);
            assert!(bucket < BUCKETS, "{ns}");
            assert_eq!(bucket_index(bucket_midpoint(bucket)), bucket, "{ns}");
        }
        assert_eq!(LogHistogram::default().quantile(0.99), Duration::ZERO);
    }
}
