//! A histogram of durations. It gives percentiles without storing each value.

use std::collections::BTreeMap;

/// Counts of values in buckets. Buckets are exact below 128; above, they are at most 1/64 as wide
/// as their values, so a percentile is off by less than 1 %.
///
/// Only used buckets take memory: at most 3,776, in practice a few hundred.
#[derive(Clone, Debug, Default)]
pub(crate) struct PercentileHistogram {
    buckets: BTreeMap<u16, u64>,
    count: u64,
}

/// Bits of a value that select its bucket within a power of two.
const PRECISION: u32 = 6;

impl PercentileHistogram {
    pub(crate) fn record(&mut self, value: u64) {
        *self.buckets.entry(bucket(value)).or_default() += 1;
        self.count += 1;
    }

    /// Adds the values of another histogram.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (&bucket, &count) in &other.buckets {
            *self.buckets.entry(bucket).or_default() += count;
        }
        self.count += other.count;
    }

    /// Returns the middle of each used bucket with its count, in ascending order.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (u64, u64)> {
        self.buckets.iter().map(|(&bucket, &count)| (middle(bucket), count))
    }

    /// Returns the middle of the bucket that contains the `rank`th smallest value, counting from 1;
    /// 0 if there are fewer values.
    pub(crate) fn at_rank(&self, rank: u64) -> u64 {
        let mut below = 0;
        for (&bucket, &count) in &self.buckets {
            below += count;
            if below >= rank {
                return middle(bucket);
            }
        }
        0
    }
}

fn bucket(value: u64) -> u16 {
    let shift = (u64::BITS - PRECISION - 1).saturating_sub(value.leading_zeros());
    u16::try_from((u64::from(shift) << PRECISION) + (value >> shift)).expect("58 * 64 + 127 fits")
}

fn middle(bucket: u16) -> u64 {
    let shift = u32::from(bucket >> PRECISION).saturating_sub(1);
    let lowest = (u64::from(bucket) - (u64::from(shift) << PRECISION)) << shift;
    lowest + ((1_u64 << shift) >> 1)
}

#[test]
fn every_bucket_contains_its_middle_and_is_narrow() {
    let mut value = 1_u64;
    while value < u64::MAX / 3 {
        let middle = middle(bucket(value));
        assert_eq!(bucket(middle), bucket(value), "{value}");
        assert!(middle.abs_diff(value) * 100 <= value, "{value}: {middle}");
        value += 1 + value / 7;
    }
    assert!(bucket(u64::MAX) < 3_776);
    assert_eq!(bucket(127) + 1, bucket(128));
}

#[test]
fn ranks_match_sorted_values() {
    let mut histogram = PercentileHistogram::default();
    (1..=1000).rev().for_each(|value| histogram.record(value));
    assert_eq!(histogram.at_rank(1), 1);
    assert_eq!(histogram.at_rank(100), 100);
    assert!(histogram.at_rank(500).abs_diff(500) <= 5);
    assert_eq!(PercentileHistogram::default().at_rank(1), 0);
}
