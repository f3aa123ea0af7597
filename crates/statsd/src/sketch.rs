//! [`Sketch`]: a mergeable sketch of a distribution with bounded relative error.
//!
//! Buckets grow by 2^(1/64): bucket `i` holds values in `(2^(i/64), 2^((i+1)/64)]`, so any value
//! estimated from it is within 0.55 % of an actual sample. The same buckets are OpenTelemetry's
//! exponential histogram of scale 6 and Prometheus' native histogram of schema 6 (whose index is
//! one higher), and merging neighbours gives the coarser ones of both exactly.

use howdah_codec::ByteWriter as _;

use crate::binary::{BinaryReader, BinaryWriter as _, HandoverFormatError};

/// A sketch of a distribution: counts per bucket, with exact count, sum, minimum and maximum.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sketch {
    positive: SketchBuckets,
    negative: SketchBuckets,
    zeros: f64,
    count: f64,
    sum: f64,
    range: Option<(f64, f64)>,
}

impl Sketch {
    /// The scale of the buckets: there are 2^scale buckets per doubling of the value.
    pub const SCALE: u32 = 6;
    /// Maximum relative error: half of a bucket's width.
    pub const RELATIVE_ERROR: f64 = 0.0055;
    /// The smallest absolute value that has a bucket; values closer to zero count as zero.
    pub const SMALLEST: f64 = 1e-12;
    /// The largest absolute value that has its own bucket; values further from zero are counted in
    /// the outermost bucket.
    pub const LARGEST: f64 = 1e18;

    /// Adds a finite value that represents `weight` samples.
    pub fn add(&mut self, value: f64, weight: f64) {
        self.count += weight;
        self.sum += value * weight;
        let (lower, upper) = self.range.unwrap_or((value, value));
        self.range = Some((lower.min(value), upper.max(value)));
        match value.abs() {
            small if small < Self::SMALLEST => self.zeros += weight,
            size if value > 0.0 => self.positive.add(index(size), weight),
            size => self.negative.add(index(size), weight),
        }
    }

    /// Adds `difference` to the sum, for values whose weights differ from those in the buckets.
    pub fn add_to_sum(&mut self, difference: f64) {
        self.sum += difference;
    }

    /// Adds all samples of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.merge_weighted(other, 1.0);
    }

    /// Adds all samples of `other`, each multiplied by `weight`.
    pub fn merge_weighted(&mut self, other: &Self, weight: f64) {
        self.count += other.count * weight;
        self.sum += other.sum * weight;
        self.zeros += other.zeros * weight;
        self.range = match (self.range, other.range) {
            (Some((a, b)), Some((c, d))) => Some((a.min(c), b.max(d))),
            (one, another) => one.or(another),
        };
        self.positive.merge(&other.positive, weight);
        self.negative.merge(&other.negative, weight);
    }

    /// Estimates the value at quantile `q` (0 to 1), within [`Self::RELATIVE_ERROR`]; `None`
    /// without samples.
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let (lower, upper) = self.range?;
        let mut rank = q * self.count;
        for (value, count) in self.ascending() {
            rank -= count;
            if rank <= 0.0 && count > 0.0 {
                return Some(value.clamp(lower, upper));
            }
        }
        Some(upper)
    }

    /// Estimates the sum and the sum of squares of the `samples` smallest samples.
    pub fn smallest_sums(&self, samples: f64) -> (f64, f64) {
        let mut left = samples;
        let (mut sum, mut squares) = (0.0, 0.0);
        for (value, count) in self.ascending() {
            let used = count.min(left);
            sum += value * used;
            squares += value * value * used;
            left -= used;
            if left <= 0.0 {
                break;
            }
        }
        (sum, squares)
    }

    /// Estimates the number of samples below `bound`.
    pub fn count_below(&self, bound: f64) -> f64 {
        self.ascending().take_while(|(value, _)| *value < bound).map(|(_, count)| count).sum()
    }

    /// Returns a representative value of each bucket with its count, ascending.
    fn ascending(&self) -> impl Iterator<Item = (f64, f64)> {
        let (negative, positive) = (self.negative.0.iter().rev(), self.positive.0.iter());
        let negative = negative.map(|(index, count)| (-middle(*index), *count));
        let positive = positive.map(|(index, count)| (middle(*index), *count));
        negative.chain([(0.0, self.zeros)]).chain(positive)
    }

    /// Appends the sketch to a buffer.
    pub(crate) fn write_to(&self, out: &mut Vec<u8>) {
        for buckets in [&self.positive, &self.negative] {
            out.write_count(buckets.0.len());
            for (index, count) in &buckets.0 {
                out.write_signed((*index).into());
                out.write_f64(*count);
            }
        }
        [self.zeros, self.count, self.sum].iter().for_each(|value| out.write_f64(*value));
        out.write_option(self.range, |out, (lower, upper)| {
            out.write_f64(lower);
            out.write_f64(upper);
        });
    }

    /// Reads a sketch that [`write_to`](Self::write_to) has written.
    pub(crate) fn read_from(from: &mut BinaryReader<'_>) -> Result<Self, HandoverFormatError> {
        let valid = index(Self::SMALLEST)..=index(Self::LARGEST);
        let mut buckets = || {
            let list = from.list(|from| {
                let index = i32::try_from(from.signed()?).ok();
                let index = index.filter(|index| valid.contains(index));
                let index =
                    index.ok_or(HandoverFormatError::Invalid("a sketch has an unknown bucket"))?;
                Ok((index, from.f64()?))
            })?;
            if !list.is_sorted_by(|(one, _), (next, _)| one < next) {
                return Err(HandoverFormatError::Invalid("the buckets of a sketch are unsorted"));
            }
            Ok(SketchBuckets(list))
        };
        let (positive, negative) = (buckets()?, buckets()?);
        let (zeros, count, sum) = (from.f64()?, from.f64()?, from.f64()?);
        let range = from.option(BinaryReader::range)?;
        Ok(Self { positive, negative, zeros, count, sum, range })
    }

    /// Whether each weight is between 0 and `max`, the sum between `-max` and `max`, and each value
    /// between [`-LARGEST`](Self::LARGEST) and [`LARGEST`](Self::LARGEST), so that many such
    /// sketches can be merged.
    pub(crate) fn is_bounded(&self, max: f64) -> bool {
        let Self { positive, negative, zeros, count, sum, range } = self;
        let buckets = positive.0.iter().chain(&negative.0).map(|(_, weight)| *weight);
        let is_large = |(lower, upper): (f64, f64)| lower < -Self::LARGEST || upper > Self::LARGEST;
        buckets.chain([*zeros, *count]).all(|weight| (0.0..=max).contains(&weight))
            && sum.abs() <= max
            && !range.is_some_and(is_large)
    }

    /// Returns the number of samples, weighted.
    pub fn count(&self) -> f64 {
        self.count
    }

    /// Returns the sum of values, weighted.
    pub fn sum(&self) -> f64 {
        self.sum
    }

    /// Returns the minimum and the maximum; `None` without samples.
    pub fn range(&self) -> Option<(f64, f64)> {
        self.range
    }

    /// Returns the weight of the samples counted as zero.
    pub fn zeros(&self) -> f64 {
        self.zeros
    }

    /// Returns the buckets of positive values at `scale` (at most [`Self::SCALE`]): index and
    /// weight, ascending. Index `i` covers `(b^i, b^(i+1)]` with `b = 2^(2^-scale)`.
    pub fn positive(&self, scale: i32) -> Vec<(i32, f64)> {
        coarser(&self.positive, scale)
    }

    /// Like [`positive`](Self::positive), for the absolute values of negative samples.
    pub fn negative(&self, scale: i32) -> Vec<(i32, f64)> {
        coarser(&self.negative, scale)
    }
}

/// The weights of buckets, sorted by index. Most sketches have few buckets, and there may be a
/// million sketches, so the list is a little longer than needed at the most.
#[derive(Clone, Debug, Default, PartialEq)]
struct SketchBuckets(Vec<(i32, f64)>);

impl SketchBuckets {
    fn add(&mut self, index: i32, weight: f64) {
        match self.0.binary_search_by_key(&index, |(index, _)| *index) {
            Ok(at) => self.0[at].1 += weight,
            Err(at) => {
                if self.0.len() == self.0.capacity() {
                    self.0.reserve_exact((self.0.len() / 4).max(1));
                }
                self.0.insert(at, (index, weight));
            }
        }
    }

    /// Adds the weights of `other`, each multiplied by `weight`.
    fn merge(&mut self, other: &Self, weight: f64) {
        if other.0.len() <= self.0.len() / 8 + 1 {
            return other.0.iter().for_each(|(index, count)| self.add(*index, count * weight));
        }
        let mut merged = Vec::with_capacity(self.0.len().max(other.0.len()));
        let mut own = std::mem::take(&mut self.0).into_iter().peekable();
        for (index, count) in &other.0 {
            while let Some(before) = own.next_if(|(own, _)| own < index) {
                merged.push(before);
            }
            let same = own.next_if(|(own, _)| own == index).map_or(0.0, |(_, count)| count);
            merged.push((*index, same + count * weight));
        }
        merged.extend(own);
        self.0 = merged;
    }
}

const PER_DOUBLING: f64 = (1 << Sketch::SCALE) as f64;

/// Returns the bucket of a positive value.
fn index(size: f64) -> i32 {
    let size = size.clamp(Sketch::SMALLEST, Sketch::LARGEST);
    // The clamp limits the index to ±4,000. Upper bounds are inclusive, hence ceil.
    (size.log2() * PER_DOUBLING).ceil() as i32 - 1
}

/// Returns a value within the relative error of all values in the bucket.
fn middle(index: i32) -> f64 {
    ((f64::from(index) + 0.5) / PER_DOUBLING).exp2()
}

fn coarser(buckets: &SketchBuckets, scale: i32) -> Vec<(i32, f64)> {
    let shift = (Sketch::SCALE.cast_signed() - scale).clamp(0, 31);
    let mut merged: Vec<(i32, f64)> = Vec::with_capacity(buckets.0.len());
    for (index, count) in &buckets.0 {
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

    fn sketch_from(values: impl IntoIterator<Item = f64>) -> Sketch {
        let mut sketch = Sketch::default();
        values.into_iter().for_each(|value| sketch.add(value, 1.0));
        sketch
    }

    #[test]
    fn quantiles_respect_error_bound() {
        let sketch = sketch_from((1..=10_000).map(f64::from));
        for percent in [1.0, 10.0, 50.0, 90.0, 99.0, 99.9] {
            let estimate = sketch.quantile(percent / 100.0).unwrap();
            let exact = percent * 100.0;
            assert!(
                (estimate / exact - 1.0).abs() <= Sketch::RELATIVE_ERROR,
                "{percent}: {estimate}"
            );
        }
        assert_eq!(sketch.quantile(0.0), Some(1.0));
        assert_eq!(sketch.quantile(1.0), Some(10_000.0));
        assert_eq!(Sketch::default().quantile(0.5), None);
    }

    #[test]
    fn merged_sketch_equals_single_sketch() {
        let mut left = sketch_from([-3.0, 0.0, 1.5]);
        left.merge(&sketch_from([2.0, 1e30, -1e-30]));
        assert_eq!(left, sketch_from([-3.0, 0.0, 1.5, 2.0, 1e30, -1e-30]));
    }

    #[test]
    fn upper_bounds_are_inclusive_and_neighbours_merge() {
        let sketch = sketch_from([1.0, 2.0, 4.0, 4.1]);
        assert_eq!(sketch.positive(0), [(-1, 1.0), (0, 1.0), (1, 1.0), (2, 1.0)]);
        assert_eq!(sketch.positive(-1), [(-1, 1.0), (0, 2.0), (1, 1.0)]);
    }

    #[test]
    fn merging_few_or_many_buckets_adds_weights() {
        let many: Vec<f64> = (1..=500).map(f64::from).collect();
        for few in [vec![3.0], vec![0.5, 3.0, 700.0], many.iter().map(|v| v * 1.7).collect()] {
            let together = sketch_from(many.iter().chain(&few).copied());
            for (one, other) in [(&many, &few), (&few, &many)] {
                let mut merged = sketch_from(one.iter().copied());
                merged.merge(&sketch_from(other.iter().copied()));
                assert_eq!(merged.positive(6), together.positive(6));
            }
        }
    }
}
