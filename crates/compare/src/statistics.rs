//! The statistics of a comparison, on plain numbers: no queries, no runs, no files.
//!
//! Latencies are skewed, heavy in the tail, tied (whole microseconds) and autocorrelated: a
//! checkpoint slows everything for seconds. So the shift is measured on logarithms by ranks
//! ([`shift`]), its variance is taken over blocks of neighbours in time, and metrics that depend on
//! the tail are resampled by such blocks ([`bootstrap`]).

pub(crate) mod bootstrap;
pub(crate) mod fdr;
pub(crate) mod random;
pub(crate) mod shift;
pub(crate) mod student;

/// Number of blocks that a run's executions of one query are split into, in order of time.
///
/// Enough blocks to estimate the effect of slow periods, each long enough to contain a short one.
pub(crate) const BLOCKS: usize = 20;

/// Splits `values` into at most `count` runs of neighbours whose lengths differ by at most one.
pub(crate) fn blocks<T>(values: &[T], count: usize) -> impl ExactSizeIterator<Item = &[T]> {
    let count = count.min(values.len());
    (0..count)
        .map(move |block| &values[block * values.len() / count..(block + 1) * values.len() / count])
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
