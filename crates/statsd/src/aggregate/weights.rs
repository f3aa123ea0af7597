//! The weights of a timer's samples: the inverses of their rates.

use crate::binary::{BinaryReader, BinaryWriter as _, HandoverFormatError};

/// The sums of a timer's weights. They take memory only once a sample had a rate: until then each
/// weighs 1, and nothing is added up.
#[derive(Clone, Debug, Default)]
pub struct SampleWeights(Option<Box<WeightTotals>>);

/// Weighted totals of samples.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WeightTotals {
    /// Number of samples, each counted as the inverse of its rate, added in order of arrival.
    pub count: f64,
    /// The sum of the values, each divided by its rate, minus the sum of the values.
    pub excess: f64,
}

impl SampleWeights {
    /// Adds a sample; `before` returns the number of those before it.
    #[inline]
    pub(super) fn add(&mut self, value: f64, rate: f64, before: impl FnOnce() -> u64) {
        match &mut self.0 {
            Some(totals) => totals.add(value, rate),
            None if rate == 1.0 => {}
            None => self.add_first(value, rate, before()),
        }
    }

    /// Adds the first sample with a rate, which follows `before` others.
    #[cold]
    fn add_first(&mut self, value: f64, rate: f64, before: u64) {
        let unweighted = WeightTotals { count: before as f64, excess: 0.0 };
        self.0.insert(Box::new(unweighted)).add(value, rate);
    }

    /// Adds the weights of `other`. Both come with their number of samples.
    pub fn merge(&mut self, samples: u64, other: &Self, other_samples: u64) {
        if self.0.is_none() && other.0.is_none() {
            return;
        }
        let totals = self.totals(samples).and(other.totals(other_samples));
        **self.0.get_or_insert_default() = totals;
    }

    /// Returns the totals of `samples` samples.
    pub fn totals(&self, samples: u64) -> WeightTotals {
        match &self.0 {
            Some(totals) => **totals,
            None => WeightTotals { count: samples as f64, excess: 0.0 },
        }
    }

    /// Appends the totals, for another process; nothing if no sample had a rate.
    pub(crate) fn write_to(&self, out: &mut Vec<u8>) {
        out.write_option(self.0.as_deref(), |out, totals| {
            out.write_f64(totals.count);
            out.write_f64(totals.excess);
        });
    }

    /// Reads totals that [`write_to`](Self::write_to) has written.
    pub(crate) fn read_from(from: &mut BinaryReader<'_>) -> Result<Self, HandoverFormatError> {
        let totals =
            from.option(|from| Ok(WeightTotals { count: from.f64()?, excess: from.f64()? }))?;
        Ok(Self(totals.map(Box::new)))
    }

    /// Sets the totals to those of no samples; retains the memory.
    pub fn clear(&mut self) {
        if let Some(totals) = &mut self.0 {
            **totals = WeightTotals::default();
        }
    }
}

impl WeightTotals {
    #[inline]
    fn add(&mut self, value: f64, rate: f64) {
        let weight = 1.0 / rate;
        self.count += weight;
        self.excess += value * (weight - 1.0);
    }

    /// Adds the totals of other samples.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { count: self.count + other.count, excess: self.excess + other.excess }
    }
}

#[test]
fn weights_are_those_of_each_sample() {
    let mut weights = SampleWeights::default();
    assert_eq!(weights.totals(3), WeightTotals { count: 3.0, excess: 0.0 });
    weights.add(10.0, 0.5, || 3);
    weights.add(-1.0, 0.25, || 4);
    weights.add(7.0, 1.0, || 5);
    assert_eq!(weights.totals(6), WeightTotals { count: 10.0, excess: 7.0 });
    let mut unweighted = SampleWeights::default();
    unweighted.merge(2, &SampleWeights::default(), 1);
    assert!(unweighted.0.is_none());
    unweighted.merge(2, &weights, 6);
    assert_eq!(unweighted.totals(8), WeightTotals { count: 12.0, excess: 7.0 });
    weights.merge(6, &SampleWeights::default(), 2);
    assert_eq!(weights.totals(8), WeightTotals { count: 12.0, excess: 7.0 });
    weights.clear();
    weights.add(5.0, 1.0, || 0);
    assert_eq!(weights.totals(1), WeightTotals { count: 1.0, excess: 0.0 });
}

#[test]
fn weights_take_memory_of_count_only() {
    assert_eq!(size_of::<SampleWeights>(), size_of::<f64>());
}
