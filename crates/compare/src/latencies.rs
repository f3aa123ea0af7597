//! [`LatencyBins`]: the distribution of a query's executions over latencies, on both sides.

use crate::samples::PercentileHistogram;

/// Numbers of executions by latency, in bins that both sides share.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LatencyBins {
    /// Edges of the bins in microseconds, ascending and above 0; one more than there are bins.
    pub edges_us: Vec<f64>,
    /// Executions of the base, bin by bin.
    pub base: Vec<u64>,
    /// Executions of the assessed runs, bin by bin.
    pub run: Vec<u64>,
}

/// Maximum number of bins, which is what a small chart can show.
const BINS_MAX: f64 = 40.0;

/// Minimum ratio of the two edges of a bin.
const RATIO_MIN: f64 = 1.1;

impl LatencyBins {
    /// Counts the executions of both sides in bins of equal ratio; returns `None` if there are no
    /// executions.
    pub(crate) fn new(base: &PercentileHistogram, run: &PercentileHistogram) -> Option<Self> {
        // A latency of 0 µs counts as 1 µs.
        let values = || base.counts().chain(run.counts()).map(|(value, _)| value.max(1) as f64);
        let low = values().reduce(f64::min)?;
        let high = values().reduce(f64::max)?;
        let ratio = (high / low).powf(1.0 / (BINS_MAX - 1.0)).max(RATIO_MIN);
        let position = |value: f64| ((value / low).ln() / ratio.ln() + 0.5) as usize;
        let bins = position(high) + 1;
        // The edges lie half a bin below the values that define them.
        let edges_us = (0..=bins).map(|bin| low * ratio.powf(bin as f64 - 0.5)).collect();
        let count = |histogram: &PercentileHistogram| {
            let mut counts = vec![0; bins];
            for (value, count) in histogram.counts() {
                counts[position(value.max(1) as f64)] += count;
            }
            counts
        };
        Some(Self { edges_us, base: count(base), run: count(run) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(values: impl IntoIterator<Item = u64>) -> PercentileHistogram {
        let mut histogram = PercentileHistogram::default();
        values.into_iter().for_each(|value| histogram.record(value));
        histogram
    }

    #[test]
    fn every_execution_is_in_the_bin_of_its_latency() {
        let (base, run) = (histogram(1..=1_000), histogram([0, 5, 70_000_000]));
        let bins = LatencyBins::new(&base, &run).expect("values");
        assert_eq!(bins.base.iter().sum::<u64>(), 1_000);
        assert_eq!(bins.run.iter().sum::<u64>(), 3);
        assert_eq!(bins.edges_us.len(), bins.base.len() + 1);
        assert!(bins.edges_us.windows(2).all(|pair| pair[0] < pair[1] && pair[0] > 0.0));
        assert!(bins.base.len() <= BINS_MAX as usize);
        assert!(bins.edges_us[0] <= 1.0 && *bins.edges_us.last().unwrap() >= 70_000_000.0);
        assert_eq!((bins.run[0], *bins.run.last().unwrap()), (1, 1));
    }

    #[test]
    fn equal_latencies_fill_one_bin() {
        let bins = LatencyBins::new(&histogram([200; 9]), &histogram([])).expect("values");
        assert_eq!(bins.base.iter().filter(|count| **count > 0).count(), 1);
        assert_eq!(LatencyBins::new(&histogram([]), &histogram([])), None);
    }
}
