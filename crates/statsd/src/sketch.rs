//! A mergeable sketch of a distribution with a bounded relative error.
//!
//! Buckets grow by 2^(1/64): bucket `i` holds values in `(2^(i/64), 2^((i+1)/64)]`, so any value
//! told from it is within 0.55 % of one that was there. The same buckets are OpenTelemetry's
//! exponential histogram of scale 6 and Prometheus' native histogram of schema 6 (whose index is one
//! higher), and merging neighbours gives the coarser ones of both exactly.

use std::collections::BTreeMap;

/// Counts per bucket, with exact count, sum, smallest and largest.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sketch {
    positive: BTreeMap<i32, f64>,
    negative: BTreeMap<i32, f64>,
    zeros: f64,
    count: f64,
    sum: f64,
    range: Option<(f64, f64)>,
}

impl Sketch {
    /// 2^scale buckets for each doubling of the value.
    pub const SCALE: u32 = 6;
    /// How far off a value may be: half a bucket's width.
    pub const RELATIVE_ERROR: f64 = 0.0055;
    /// Values nearer to zero count as zero.
    pub const SMALLEST: f64 = 1e-12;
    /// Values further from zero are counted in the outermost bucket.
    pub const LARGEST: f64 = 1e18;

    /// Adds a finite value that stands for `weight` samples.
    pub fn add(&mut self, value: f64, weight: f64) {
        self.count += weight;
        self.sum += value * weight;
        let (lower, upper) = self.range.unwrap_or((value, value));
        self.range = Some((lower.min(value), upper.max(value)));
        match value.abs() {
            small if small < Self::SMALLEST => self.zeros += weight,
            size if value > 0.0 => *self.positive.entry(index(size)).or_default() += weight,
            size => *self.negative.entry(index(size)).or_default() += weight,
        }
    }

    /// Adds all that `other` holds.
    pub fn merge(&mut self, other: &Self) {
        self.merge_weighted(other, 1.0);
    }

    /// Adds all that `other` holds, as if each of its samples were `weight` of them.
    pub fn merge_weighted(&mut self, other: &Self, weight: f64) {
        self.count += other.count * weight;
        self.sum += other.sum * weight;
        self.zeros += other.zeros * weight;
        self.range = match (self.range, other.range) {
            (Some((a, b)), Some((c, d))) => Some((a.min(c), b.max(d))),
            (one, another) => one.or(another),
        };
        for (index, count) in &other.positive {
            *self.positive.entry(*index).or_default() += count * weight;
        }
        for (index, count) in &other.negative {
            *self.negative.entry(*index).or_default() += count * weight;
        }
    }

    /// The value below which a share of `q` (0 to 1) of the samples lies; `None` without samples.
    #[must_use]
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let (lower, upper) = self.range?;
        let mut left = q * self.count;
        for (value, count) in self.ascending() {
            left -= count;
            if left <= 0.0 && count > 0.0 {
                return Some(value.clamp(lower, upper));
            }
        }
        Some(upper)
    }

    /// About the sum, and the sum of squares, of the `samples` smallest.
    #[must_use]
    pub fn lowest(&self, samples: f64) -> (f64, f64) {
        let mut left = samples;
        let (mut sum, mut squares) = (0.0, 0.0);
        for (value, count) in self.ascending() {
            let taken = count.min(left);
            sum += value * taken;
            squares += value * value * taken;
            left -= taken;
            if left <= 0.0 {
                break;
            }
        }
        (sum, squares)
    }

    /// About how many samples are below `bound`.
    #[must_use]
    pub fn below(&self, bound: f64) -> f64 {
        self.ascending().take_while(|(value, _)| *value < bound).map(|(_, count)| count).sum()
    }

    /// A value of each bucket with its count, from the smallest on.
    fn ascending(&self) -> impl Iterator<Item = (f64, f64)> {
        let negative = self.negative.iter().rev().map(|(index, count)| (-middle(*index), *count));
        let positive = self.positive.iter().map(|(index, count)| (middle(*index), *count));
        negative.chain([(0.0, self.zeros)]).chain(positive)
    }

    /// Samples, by weight.
    #[must_use]
    pub fn count(&self) -> f64 {
        self.count
    }

    /// Sum of values times weights.
    #[must_use]
    pub fn sum(&self) -> f64 {
        self.sum
    }

    /// Smallest and largest value.
    #[must_use]
    pub fn range(&self) -> Option<(f64, f64)> {
        self.range
    }

    /// Samples at zero.
    #[must_use]
    pub fn zeros(&self) -> f64 {
        self.zeros
    }

    /// Buckets of values above zero at `scale` (at most [`Self::SCALE`]): index and samples, by index
    /// upwards. Index `i` stands for `(b^i, b^(i+1)]` with `b = 2^(2^-scale)`.
    #[must_use]
    pub fn positive(&self, scale: i32) -> Vec<(i32, f64)> {
        coarser(&self.positive, scale)
    }

    /// The same for values below zero, by their absolute value.
    #[must_use]
    pub fn negative(&self, scale: i32) -> Vec<(i32, f64)> {
        coarser(&self.negative, scale)
    }
}

const PER_DOUBLING: f64 = (1 << Sketch::SCALE) as f64;

/// The bucket of a size above zero.
fn index(size: f64) -> i32 {
    let size = size.clamp(Sketch::SMALLEST, Sketch::LARGEST);
    // Within ±4,000 by the clamp. Upper bounds belong to their bucket, hence ceil.
    (size.log2() * PER_DOUBLING).ceil() as i32 - 1
}

/// A value within the error of all of its bucket.
fn middle(index: i32) -> f64 {
    ((f64::from(index) + 0.5) / PER_DOUBLING).exp2()
}

fn coarser(buckets: &BTreeMap<i32, f64>, scale: i32) -> Vec<(i32, f64)> {
    let shift = (Sketch::SCALE.cast_signed() - scale).clamp(0, 31);
    let mut merged: Vec<(i32, f64)> = Vec::with_capacity(buckets.len());
    for (index, count) in buckets {
        // An arithmetic shift rounds down, which is the enclosing bucket for negative indexes too.
        let index = index >> shift;
        match merged.last_mut() {
            Some((last, sum)) if *last == index => *sum += count,
            _ => merged.push((index, *count)),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: impl IntoIterator<Item = f64>) -> Sketch {
        let mut sketch = Sketch::default();
        values.into_iter().for_each(|value| sketch.add(value, 1.0));
        sketch
    }

    #[test]
    fn quantiles_are_within_the_error() {
        let sketch = of((1..=10_000).map(f64::from));
        for percent in [1.0, 10.0, 50.0, 90.0, 99.0, 99.9] {
            let told = sketch.quantile(percent / 100.0).unwrap();
            let exact = percent * 100.0;
            assert!((told / exact - 1.0).abs() <= Sketch::RELATIVE_ERROR, "{percent}: {told}");
        }
        assert_eq!(sketch.quantile(0.0), Some(1.0));
        assert_eq!(sketch.quantile(1.0), Some(10_000.0));
        assert_eq!(Sketch::default().quantile(0.5), None);
    }

    #[test]
    fn merged_is_as_good_as_one() {
        let mut left = of([-3.0, 0.0, 1.5]);
        left.merge(&of([2.0, 1e30, -1e-30]));
        assert_eq!(left, of([-3.0, 0.0, 1.5, 2.0, 1e30, -1e-30]));
    }

    #[test]
    fn bounds_belong_to_the_bucket_below_and_neighbours_merge() {
        let sketch = of([1.0, 2.0, 4.0, 4.1]);
        assert_eq!(sketch.positive(0), [(-1, 1.0), (0, 1.0), (1, 1.0), (2, 1.0)]);
        assert_eq!(sketch.positive(-1), [(-1, 1.0), (0, 2.0), (1, 1.0)]);
    }
}
