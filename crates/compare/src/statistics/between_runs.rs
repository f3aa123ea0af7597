//! The shift of each query between two sides of several runs, with the variance between runs.
//!
//! # The model
//!
//! The run is the unit: executions inside a run resemble each other, so a thousand of them say
//! little about the next run. For query *i* in run *j*, let *x* be the typical logarithm of its
//! service time in that run:
//!
//! ```text
//! x[i, j] = level[i, side of j] + effect[j] + rest[i, j]
//!
//! shift[i] = mean of x[i, j] over the changed runs − mean over the base runs
//! variance of shift[i] = (1 / base runs + 1 / changed runs)
//!                         × (variance of effect + variance of rest[i])
//! ```
//!
//! `effect` is what a run does to all queries alike (a busy host), estimated as the median over the
//! queries of their deviations from the level. Its variance has only *runs − 2* degrees of freedom,
//! however many queries there are, so it is kept apart. It is shrunk towards what is usual on a
//! machine without other load ([`EFFECT_USUAL`]). `rest` is independent between queries; its
//! variance is estimated per query and moderated: shrunk towards the value that is typical of all
//! queries, as far as their variances agree. A query whose variance is exceptionally large keeps
//! it, and does not influence the others. The variance is at least the one that the executions
//! within the runs imply ([`RunLevel::variance`]). The degrees of freedom of the sum are
//! Satterthwaite's.
//!
//! Sources: Smyth 2004, Linear models and empirical Bayes methods (moderated variance, formulas of
//! section 6.2); Phipson, Lee, Majewski, Alexander and Smyth 2016, Robust hyperparameter estimation
//! protects against hypervariable genes (exceptional variances); Satterthwaite 1946.

use crate::statistics::{
    gamma::{digamma, inverse_trigamma, trigamma},
    median, student,
};

/// Minimum number of queries to separate the effect of a run from the rest. With fewer queries, the
/// whole variance of a query between runs is attributed to that query.
const QUERIES_MIN: usize = 5;

/// Standard deviation between runs that even long runs on an idle machine show: 1 % of the time.
const REST_MIN: f64 = 0.01;

/// Standard deviation of the effects of runs that is usual on a machine without other load: 5 % of
/// the time. It counts as much as a measurement with [`EFFECT_USUAL_DF`] degrees of freedom.
const EFFECT_USUAL: f64 = 0.05;
const EFFECT_USUAL_DF: f64 = 4.0;

/// Probability below which a large variance counts as exceptional.
const EXCEPTIONAL_MAX: f64 = 0.01;

/// The levels of one query in the runs of both sides; `None` for runs with too few executions.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueryRuns {
    pub(crate) base: Vec<Option<RunLevel>>,
    pub(crate) run: Vec<Option<RunLevel>>,
}

/// The logarithm of a query's service time in one run: of the typical time, the mean or another
/// metric.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunLevel {
    pub(crate) level: f64,
    /// Variance of `level`, estimated from the executions of this run.
    pub(crate) variance: f64,
}

/// The shift of a query, in logarithms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RunShift {
    pub(crate) absolute: ShiftEstimate,
    /// The shift relative to the typical query, which cancels the effects that a run has on all
    /// queries. `None` with fewer than [`QUERIES_MIN`] queries.
    pub(crate) relative: Option<ShiftEstimate>,
}

/// An estimate of a shift, with its standard error and the degrees of freedom of that error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ShiftEstimate {
    pub(crate) estimate: f64,
    pub(crate) standard_error: f64,
    pub(crate) df: f64,
}

/// The smallest shifts that count as a change, in logarithms.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShiftLimits {
    /// The logarithm of the minimum factor of a change.
    pub(crate) minimum: f64,
    /// The shift of the machine, zero or positive: a query that shifted less has not changed.
    pub(crate) machine: f64,
}

impl ShiftLimits {
    /// Returns the margin of the absolute shift: half of the smallest change, plus twice the shift
    /// of the machine, because a busy machine may slow a query more than the calibration statement.
    pub(crate) fn absolute_margin(self) -> f64 {
        self.minimum / 2.0 + 2.0 * self.machine
    }

    /// Returns the margin of the relative shift, from which the machine's shift is cancelled.
    pub(crate) fn relative_margin(self) -> f64 {
        self.minimum / 4.0
    }
}

impl RunShift {
    /// Returns the p-value under no shift.
    pub(crate) fn p(&self) -> f64 {
        self.absolute.p_beyond(0.0)
    }

    /// Returns the p-value of a shift that does not exceed the limits; 1 if the estimate does not.
    ///
    /// This is the smaller of the absolute and the relative p-value, doubled because there are two
    /// (Bonferroni).
    ///
    /// The relative shift detects a single changed query even when runs differ as a whole; only the
    /// absolute shift detects a change of most queries. A query that shifted only in comparison
    /// with the others must itself have shifted in the same direction, by at least half of the
    /// minimum and at least as much as the machine.
    pub(crate) fn p_change(&self, limits: ShiftLimits) -> f64 {
        let estimate = self.absolute.estimate;
        let is_large = estimate.abs() >= limits.minimum.max(limits.machine);
        let absolute =
            if is_large { self.absolute.p_beyond(limits.absolute_margin()) } else { 1.0 };
        let Some(relative) = self.relative else { return absolute };
        let is_large = relative.estimate.abs() >= limits.minimum
            && estimate * relative.estimate.signum() >= (limits.minimum / 2.0).max(limits.machine);
        let relative = if is_large { relative.p_beyond(limits.relative_margin()) } else { 1.0 };
        (2.0 * absolute.min(relative)).min(1.0)
    }
}

impl ShiftEstimate {
    /// Returns half the width of the confidence interval at the level `confidence`.
    pub(crate) fn half_width(&self, confidence: f64) -> f64 {
        student::critical(1.0 - confidence, self.df) * self.standard_error
    }

    /// Returns the two-sided p-value of a shift within `margin` of zero.
    fn p_beyond(&self, margin: f64) -> f64 {
        let beyond = self.estimate.abs() - margin;
        if beyond <= 0.0 && margin > 0.0 {
            return 1.0;
        }
        student::p_two_sided(beyond / self.standard_error, self.df)
    }
}

/// Computes the shift of each query; `None` for a query that is missing in too many runs.
///
/// A query needs at least one run on each side and four in total: fewer cannot show how much runs
/// differ.
pub(crate) fn run_shifts(queries: &[QueryRuns]) -> Vec<Option<RunShift>> {
    let fits: Vec<Option<QueryFit>> = queries.iter().map(QueryFit::new).collect();
    let effects = RunEffects::estimate(&fits);
    let rests: Vec<Option<Rest>> =
        fits.iter().map(|fit| fit.as_ref().map(|fit| Rest::new(fit, effects.as_ref()))).collect();
    let ratios: Vec<(f64, f64)> =
        rests.iter().flatten().map(|rest| (rest.variance / rest.scale, rest.df)).collect();
    let prior = effects.as_ref().and_then(|_| Prior::fit(&ratios));
    let typical = median(fits.iter().flatten().map(|fit| fit.estimate)).unwrap_or(0.0);
    fits.iter()
        .zip(&rests)
        .map(|(fit, rest)| {
            let (fit, rest) = (fit.as_ref()?, rest.as_ref()?);
            Some(fit.shift(rest, prior, effects.as_ref(), typical))
        })
        .collect()
}

/// The estimated shift of a query, and the deviations of its runs from the mean of their side.
struct QueryFit {
    estimate: f64,
    /// 1 / base runs + 1 / changed runs.
    factor: f64,
    /// By run, base runs first: deviation from the side's mean.
    deviations: Vec<Option<f64>>,
    /// Mean variance within runs.
    within: f64,
    df: f64,
}

impl QueryFit {
    fn new(query: &QueryRuns) -> Option<Self> {
        let level_of = |side: &[Option<RunLevel>]| {
            let levels: Vec<f64> = side.iter().flatten().map(|run| run.level).collect();
            (!levels.is_empty()).then(|| (mean(&levels), levels.len() as f64))
        };
        let ((base, base_runs), (run, run_runs)) = (level_of(&query.base)?, level_of(&query.run)?);
        if base_runs + run_runs < 4.0 {
            return None;
        }
        let sides = [(&query.base, base), (&query.run, run)];
        let deviations = sides
            .into_iter()
            .flat_map(|(side, mean)| side.iter().map(move |run| run.map(|run| run.level - mean)));
        let within: Vec<f64> =
            query.base.iter().chain(&query.run).flatten().map(|run| run.variance).collect();
        Some(Self {
            estimate: run - base,
            factor: 1.0 / base_runs + 1.0 / run_runs,
            deviations: deviations.collect(),
            within: mean(&within),
            df: base_runs + run_runs - 2.0,
        })
    }

    /// Computes the shift. `typical` is the median shift of all queries.
    fn shift(
        &self,
        rest: &Rest,
        prior: Option<Prior>,
        effects: Option<&RunEffects>,
        typical: f64,
    ) -> RunShift {
        let (rest_variance, rest_df) = match prior {
            Some(prior) => {
                let (ratio, df) = prior.moderate(rest.variance / rest.scale, rest.df);
                (ratio * rest.scale, df)
            }
            // The rest contains the effects of the runs.
            None => with_usual_effect(rest.variance * rest.df, rest.df),
        };
        let rest_variance = rest_variance.max(self.within).max(REST_MIN * REST_MIN);
        let (effect_variance, effect_df) =
            effects.map_or((0.0, 1.0), |effects| (effects.variance, effects.df));
        let variance = effect_variance + rest_variance;
        let df = variance * variance
            / (effect_variance * effect_variance / effect_df
                + rest_variance * rest_variance / rest_df);
        RunShift {
            absolute: ShiftEstimate {
                estimate: self.estimate,
                standard_error: (self.factor * variance).sqrt(),
                df: df.clamp(1.0, 1e6),
            },
            relative: effects.map(|effects| ShiftEstimate {
                estimate: self.estimate - typical,
                standard_error: (self.factor * rest_variance * effects.median_share()).sqrt(),
                df: rest_df,
            }),
        }
    }
}

/// The effect of each run, which all queries have in common.
struct RunEffects {
    by_run: Vec<f64>,
    /// Number of queries from which the median is taken.
    queries: usize,
    variance: f64,
    df: f64,
}

impl RunEffects {
    fn estimate(fits: &[Option<QueryFit>]) -> Option<Self> {
        let fits: Vec<&QueryFit> = fits.iter().flatten().collect();
        if fits.len() < QUERIES_MIN {
            return None;
        }
        let runs = fits.iter().map(|fit| fit.deviations.len()).max()?;
        let effect_of = |run: usize| {
            let deviations = fits.iter().filter_map(|fit| fit.deviations.get(run).copied()?);
            median(deviations).unwrap_or(0.0)
        };
        let by_run: Vec<f64> = (0..runs).map(effect_of).collect();
        let df = fits.iter().map(|fit| fit.df).fold(1.0, f64::max);
        let (variance, df) =
            with_usual_effect(by_run.iter().map(|effect| effect * effect).sum(), df);
        Some(Self { by_run, queries: fits.len(), variance, df })
    }

    /// Returns the factor by which the variance of the difference from the median query exceeds
    /// that of the query: the median of n values has π / 2n of the variance of one value.
    fn median_share(&self) -> f64 {
        1.0 + std::f64::consts::FRAC_PI_2 / self.queries as f64
    }
}

/// Returns the variance of a sum of squares with `df` degrees of freedom, shrunk towards
/// [`EFFECT_USUAL`], and its degrees of freedom. An exceptionally large variance is not moderated.
fn with_usual_effect(squares: f64, df: f64) -> (f64, f64) {
    let ratio = squares / df / (EFFECT_USUAL * EFFECT_USUAL);
    if student::p_variance_ratio(ratio, df, EFFECT_USUAL_DF) < EXCEPTIONAL_MAX {
        return (squares / df, df);
    }
    let df_sum = df + EFFECT_USUAL_DF;
    ((squares + EFFECT_USUAL_DF * EFFECT_USUAL * EFFECT_USUAL) / df_sum, df_sum)
}

/// The variance of a query between runs that the effects of the runs do not explain.
struct Rest {
    variance: f64,
    df: f64,
    /// The variance expected of this query: the variance within its runs, plus [`REST_MIN`]
    /// squared.
    scale: f64,
}

impl Rest {
    fn new(fit: &QueryFit, effects: Option<&RunEffects>) -> Self {
        let effect = |run: usize| effects.map_or(0.0, |effects| effects.by_run[run]);
        let deviations = fit.deviations.iter().enumerate();
        let squares = deviations
            .filter_map(|(run, deviation)| deviation.map(|deviation| deviation - effect(run)))
            .map(|rest| rest * rest);
        // Without a floor, a query whose runs agree by chance would have no variance at all.
        const VARIANCE_MIN: f64 = 1e-6;
        let variance = (squares.sum::<f64>() / fit.df).max(VARIANCE_MIN);
        Self { variance, df: fit.df, scale: fit.within + REST_MIN * REST_MIN }
    }
}

/// The distribution of the variance over queries: scaled inverse χ² (Smyth 2004, section 6.2).
#[derive(Clone, Copy, Debug, PartialEq)]
struct Prior {
    variance: f64,
    /// Degrees of freedom of the typical variance: infinite if the variances of queries differ no
    /// more than by chance.
    df: f64,
}

impl Prior {
    /// Fits the prior to pairs of variance and degrees of freedom; `None` if there are fewer than
    /// three. The largest and the smallest variances are limited, so that a few exceptional queries
    /// do not make the variances of all others look uncertain. This makes the variances look a
    /// little more alike than they are.
    fn fit(variances: &[(f64, f64)]) -> Option<Self> {
        if variances.len() < 3 {
            return None;
        }
        let count = variances.len() as f64;
        let logarithm =
            |&(variance, df): &(f64, f64)| variance.ln() - digamma(df / 2.0) + (df / 2.0).ln();
        let mut logarithms: Vec<f64> = variances.iter().map(logarithm).collect();
        limit_extremes(&mut logarithms);
        let center = mean(&logarithms);
        let spread =
            logarithms.iter().map(|value| (value - center).powi(2)).sum::<f64>() / (count - 1.0);
        let expected = variances.iter().map(|(_, df)| trigamma(df / 2.0)).sum::<f64>() / count;
        let df = 2.0 * inverse_trigamma(spread - expected);
        let variance = if df.is_finite() {
            (center + digamma(df / 2.0) - (df / 2.0).ln()).exp()
        } else {
            center.exp()
        };
        Some(Self { variance, df })
    }

    /// Returns the moderated variance and its degrees of freedom, which are at most 100. An
    /// exceptionally large variance is not moderated.
    fn moderate(self, variance: f64, df: f64) -> (f64, f64) {
        const DF_MAX: f64 = 100.0;
        let prior_df = self.df.min(DF_MAX);
        if student::p_variance_ratio(variance / self.variance, df, prior_df) < EXCEPTIONAL_MAX {
            return (variance, df);
        }
        let moderated = (prior_df * self.variance + df * variance) / (prior_df + df);
        (moderated, (prior_df + df).min(DF_MAX))
    }
}

/// Limits values to their 10th and 85th percentiles.
fn limit_extremes(values: &mut [f64]) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |share: f64| sorted[(share * (sorted.len() - 1) as f64).round() as usize];
    let (low, high) = (at(0.1), at(0.85));
    values.iter_mut().for_each(|value| *value = value.clamp(low, high));
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

#[cfg(test)]
mod tests;
