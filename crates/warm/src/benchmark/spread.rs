//! The spread of equal measurements: minimum, median and maximum.

/// The spread of equal measurements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunSpread<T> {
    /// The smallest value.
    pub min: T,
    /// The value in the middle; with an even number of values, the smaller one of the two.
    pub median: T,
    /// The largest value.
    pub max: T,
}

impl<T: Copy> RunSpread<T> {
    /// Returns the spread of `values`, ordered by `compare`; `None` without values.
    pub fn new(
        values: impl IntoIterator<Item = T>,
        compare: impl FnMut(&T, &T) -> std::cmp::Ordering,
    ) -> Option<Self> {
        let mut values: Vec<_> = values.into_iter().collect();
        values.sort_by(compare);
        let (&min, &max) = (values.first()?, values.last()?);
        Some(Self { min, median: values[(values.len() - 1) / 2], max })
    }

    /// Returns the spread of values of a type with a natural order; `None` without values.
    pub fn ordered(values: impl IntoIterator<Item = T>) -> Option<Self>
    where
        T: Ord,
    {
        Self::new(values, T::cmp)
    }

    /// Converts each of the three values.
    pub fn map<U>(self, mut convert: impl FnMut(T) -> U) -> RunSpread<U> {
        RunSpread { min: convert(self.min), median: convert(self.median), max: convert(self.max) }
    }
}

#[test]
fn median_is_the_lower_of_two() {
    let spread = |values: &[u64]| RunSpread::ordered(values.iter().copied());
    assert_eq!(spread(&[]), None);
    assert_eq!(spread(&[4]), Some(RunSpread { min: 4, median: 4, max: 4 }));
    assert_eq!(spread(&[9, 1, 5, 7]), Some(RunSpread { min: 1, median: 5, max: 9 }));
    assert_eq!(
        spread(&[3, 1, 2]).map(|it| it.map(|value| value * 10)).map(|it| it.median),
        Some(20)
    );
}
