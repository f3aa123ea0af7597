//! The statistics of a comparison, computed from plain numbers.
//!
//! Latencies are skewed, heavy in the tail, tied (whole microseconds) and autocorrelated: a
//! checkpoint slows everything for seconds. So the shift is measured on logarithms by ranks
//! ([`shift`]), its variance is taken over blocks of neighbours in time, and metrics that depend on
//! the tail are resampled by such blocks ([`bootstrap`]). With several runs on each side, the
//! variance between runs is measured instead of inferred ([`between_runs`]).

pub(crate) mod between_runs;
pub(crate) mod bootstrap;
pub(crate) mod fdr;
pub(crate) mod gamma;
pub(crate) mod random;
pub(crate) mod shift;
pub(crate) mod student;

/// Number of blocks that a run's executions of one query are split into, in order of time.
///
/// Enough blocks to estimate the effect of slow periods, each long enough to contain a short one.
pub(crate) const BLOCKS: usize = 20;

/// Splits `values` into at most `count` blocks of neighbours whose lengths differ by at most one.
pub(crate) fn blocks<T>(values: &[T], count: usize) -> impl ExactSizeIterator<Item = &[T]> {
    let count = count.min(values.len());
    (0..count)
        .map(move |block| &values[block * values.len() / count..(block + 1) * values.len() / count])
}

/// Returns the median; `None` if there are no values.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        len if len % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

#[test]
fn blocks_cover_everything_once() {
    for len in [0, 1, 19, 20, 21, 399, 4096] {
        let values: Vec<usize> = (0..len).collect();
        let joined: Vec<usize> = blocks(&values, BLOCKS).flatten().copied().collect();
        assert_eq!(joined, values);
        assert_eq!(blocks(&values, BLOCKS).len(), len.min(BLOCKS));
        let lengths = || blocks(&values, BLOCKS).map(<[usize]>::len);
        assert!(lengths().max().unwrap_or(0) <= lengths().min().unwrap_or(0) + 1);
    }
}
