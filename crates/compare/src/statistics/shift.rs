//! Estimates the shift of one sample against another by ranks.

use crate::statistics::{BLOCKS, blocks, student};

/// The shift of one sample against another, with its uncertainty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Shift {
    /// The Hodges–Lehmann estimate: the median of all differences between a value of the second
    /// sample and one of the first.
    pub(crate) estimate: f64,
    /// Lower end of the confidence interval.
    pub(crate) low: f64,
    /// Upper end of the confidence interval.
    pub(crate) high: f64,
    /// Two-sided p-value of the Mann–Whitney statistic under no shift.
    pub(crate) p: f64,
    /// The p-value of a shift no larger than the margin, in the direction of the estimate: the
    /// probability of such samples if the true shift is within the margin.
    pub(crate) p_beyond_margin: f64,
}

/// Returns the shift of `run` against `base`, both in order of time and not empty.
///
/// `margin` is the largest shift, in either direction, that does not matter.
///
/// The statistic is Mann and Whitney's: the probability θ that a value of `run` exceeds one of
/// `base`, ties counting half. Its textbook variance assumes independent values with equal spread;
/// latencies fulfil neither condition. So the variance is computed from the placements (the share
/// of the other sample below each value), summed over blocks of neighbours in time: neighbours that
/// rise and fall together then count as few observations. The samples are aligned by the estimated
/// shift first, which gives the variance under no shift and keeps it from vanishing when the
/// samples do not overlap. The interval contains the shifts that the same test would not reject.
///
/// Sources: Hodges and Lehmann 1963; DeLong et al. 1988 for placements; Obuchowski 1997 for
/// clusters of them; Welch's degrees of freedom. Costs O(n log n) time.
pub(crate) fn shift(base: &[f64], run: &[f64], confidence: f64, margin: f64) -> Shift {
    let differences = Differences::new(base, run);
    let estimate = differences.median();
    let (error, df) = standard_error(base, run, estimate, &differences);
    let p_under = |shift: f64| {
        let theta = mean(&placements(run, &differences.base, -shift));
        student::p_two_sided((theta - 0.5) / error, df)
    };
    let half_width = student::critical(1.0 - confidence, df) * error;
    let inside = estimate.abs() <= margin;
    Shift {
        estimate,
        low: differences.quantile(0.5 - half_width),
        high: differences.quantile(0.5 + half_width),
        p: p_under(0.0),
        p_beyond_margin: if inside { 1.0 } else { p_under(margin.copysign(estimate)) },
    }
}

/// Returns the Hodges–Lehmann estimate of the center of `values`, which must not be empty: the
/// median of the means of all pairs. Unlike the mean, it resists outliers in the tail, and it is
/// nearly as precise.
pub(crate) fn pseudo_median(values: &[f64]) -> f64 {
    let negative: Vec<f64> = values.iter().map(|value| -value).collect();
    Differences::new(&negative, values).median() / 2.0
}

/// Returns the standard error of θ at the given shift, and its degrees of freedom.
fn standard_error(base: &[f64], run: &[f64], shift: f64, sorted: &Differences) -> (f64, f64) {
    let parts = [placements(base, &sorted.run, shift), placements(run, &sorted.base, -shift)];
    let [(base_var, base_df), (run_var, run_df)] = parts.map(|part| clustered_variance(&part));
    let variance = base_var + run_var;
    // θ moves in steps; when all values are tied, the placements do not show its error.
    let step = 0.5 / base.len().min(run.len()) as f64;
    if variance <= step * step {
        return (step, (BLOCKS - 1) as f64);
    }
    let df = variance * variance
        / (base_var * base_var / base_df.max(1.0) + run_var * run_var / run_df.max(1.0));
    (variance.sqrt(), df)
}

/// For each of `values` plus `offset`, returns the share of `others` (sorted) below it; ties count
/// half.
fn placements(values: &[f64], others: &[f64], offset: f64) -> Vec<f64> {
    // Alignment separates equal values by rounding errors.
    const TIE: f64 = 1e-9;
    let placement = |value: &f64| {
        let value = value + offset;
        let below = others.partition_point(|other| *other < value - TIE);
        let not_above = others.partition_point(|other| *other <= value + TIE);
        (below + not_above) as f64 / (2 * others.len()) as f64
    };
    values.iter().map(placement).collect()
}

/// Returns the variance of the mean of `values` when blocks, not single values, are independent,
/// and its degrees of freedom.
///
/// If there are enough values, a few long blocks are tried too, and the larger variance is used:
/// slow periods that outlast a block make the variance over blocks too small.
fn clustered_variance(values: &[f64]) -> (f64, f64) {
    const LONG_BLOCKS: usize = 8;
    const LONG_BLOCK_MIN: usize = 10;
    let short = variance_over(values, BLOCKS);
    if values.len() < LONG_BLOCKS * LONG_BLOCK_MIN {
        return short;
    }
    let long = variance_over(values, LONG_BLOCKS);
    if long.0 > short.0 { long } else { short }
}

fn variance_over(values: &[f64], count: usize) -> (f64, f64) {
    let mean = mean(values);
    let blocks = blocks(values, count);
    let count = blocks.len() as f64;
    if count < 2.0 {
        return (0.0, 0.0);
    }
    let sums = blocks.map(|block| block.iter().map(|value| value - mean).sum::<f64>());
    let squares: f64 = sums.map(|sum| sum * sum).sum();
    let total = values.len() as f64;
    (squares * count / (count - 1.0) / (total * total), count - 1.0)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// All differences between the values of two samples, computed when needed instead of stored.
struct Differences {
    base: Vec<f64>,
    run: Vec<f64>,
}

impl Differences {
    fn new(base: &[f64], run: &[f64]) -> Self {
        let sorted = |values: &[f64]| {
            let mut values = values.to_vec();
            values.sort_by(f64::total_cmp);
            values
        };
        Self { base: sorted(base), run: sorted(run) }
    }

    fn count(&self) -> usize {
        self.base.len() * self.run.len()
    }

    fn median(&self) -> f64 {
        let count = self.count();
        let lower = self.smallest(count.div_ceil(2));
        if count % 2 == 1 { lower } else { f64::midpoint(lower, self.smallest(count / 2 + 1)) }
    }

    fn quantile(&self, share: f64) -> f64 {
        let rank = (share * self.count() as f64).round().clamp(1.0, self.count() as f64);
        self.smallest(rank as usize)
    }

    /// Returns the `rank`th smallest difference, counting from 1, up to rounding errors.
    ///
    /// Bisects the range of values; each step counts the differences up to a value in one pass.
    fn smallest(&self, rank: usize) -> f64 {
        let [base, run] = [&self.base, &self.run];
        let (mut low, mut high) = (run[0] - base[base.len() - 1], run[run.len() - 1] - base[0]);
        if self.count_at_most(low) >= rank {
            return low;
        }
        for _ in 0..60 {
            let middle = f64::midpoint(low, high);
            if self.count_at_most(middle) >= rank {
                high = middle;
            } else {
                low = middle;
            }
        }
        high
    }

    /// Returns the number of differences that are at most `limit`.
    fn count_at_most(&self, limit: f64) -> usize {
        let mut half_width = 0;
        let count_for = |base: &f64| {
            while self.run.get(half_width).is_some_and(|run| run - base <= limit) {
                half_width += 1;
            }
            half_width
        };
        self.base.iter().map(count_for).sum()
    }
}

#[cfg(test)]
mod tests;
