//! [`FailOn`]: a threshold set by the user, such as `p95>1.5x`.

use std::{fmt, str::FromStr};

use howdah_sql::Fingerprint;

use crate::{
    Comparison, Measures, QueryComparison, Samples,
    samples::Query,
    statistics::{
        between_runs::{QueryRuns, RunLevel, run_shifts},
        bootstrap::ratio_interval,
    },
};

/// A condition under which a comparison counts as failed.
///
/// Grammar: *metric* (`>` or `>=`) *limit*, spaces allowed in between.
///
/// | limit | compares | metrics |
/// |---|---|---|
/// | `1.5x` | the run with the base | all |
/// | `20ms`, `800us`, `2s`, `1min` | the run with a fixed time | times |
/// | `10` | the run with a fixed number | `errors`, `calls` |
///
/// With several runs on a side, totals, errors and calls are means per run.
///
/// The condition is violated if any query violates it. For times, a query needs
/// [`CompareSettings::executions_min`](crate::CompareSettings::executions_min) successful
/// executions, for `1.5x` in both runs. A ratio of times of at least 1 must also be significant:
/// resampled blocks of time must show with 99 % confidence that the metric increased. (`max` is a
/// single execution, so this is not tested for it.) With four or more runs in all, the runs must
/// agree on the increase, too. For errors and calls, a single execution is enough; `errors>1x` is
/// violated by any query with more errors than in the base run, even if the base run had none.
#[derive(Clone, Debug, PartialEq)]
pub struct FailOn {
    metric: Metric,
    is_inclusive: bool,
    limit: Limit,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Limit {
    Ratio(f64),
    Micros(f64),
    Count(f64),
}

/// A measure of a query in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Mean time.
    Mean,
    /// Median time.
    P50,
    /// 90th percentile.
    P90,
    /// 95th percentile.
    P95,
    /// 99th percentile.
    P99,
    /// The longest time.
    Max,
    /// Sum of all times.
    Total,
    /// Executions that failed.
    Errors,
    /// Executions that succeeded or failed.
    Calls,
}

/// A query that violates a [`FailOn`].
#[derive(Clone, Debug, PartialEq)]
pub struct Violation {
    /// The violated condition.
    pub condition: FailOn,
    /// Identifies the query.
    pub fingerprint: Fingerprint,
    /// The metric on the side of the base, in microseconds or as a count; `None` if the base does
    /// not contain the query, or not often enough for a time.
    pub base: Option<f64>,
    /// The metric on the assessed side, in the unit of `base`.
    pub run: f64,
}

/// The reason why a text is not a condition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseFailOnError {
    /// The text has no comparison operator.
    #[error(
        "{text:?} has no > or >=: a condition is a metric, > or >=, and a limit, as in p95>1.5x"
    )]
    NoComparator {
        /// The whole text.
        text: String,
    },
    /// The text before the `>` is not a metric.
    #[error("{metric:?} is not a metric: use one of {}", Metric::NAMES.join(", "))]
    UnknownMetric {
        /// The text before the `>`.
        metric: String,
    },
    /// The text after the `>` is not a limit.
    #[error("{limit:?} is not a limit such as 1.5x, 20ms or, for errors and calls, 10")]
    BadLimit {
        /// The text after the `>`.
        limit: String,
    },
    /// The limit is of a different kind than the metric.
    #[error(
        "{metric} cannot be compared with {limit:?}: use 1.5x or 20ms for times, 1.5x or 10 for errors and calls"
    )]
    LimitDoesNotFit {
        /// The metric of the condition.
        metric: Metric,
        /// The text after the `>`.
        limit: String,
    },
}

impl FailOn {
    /// Parses a condition.
    ///
    /// # Errors
    ///
    /// The text is not a condition.
    ///
    /// ```
    /// use howdah_compare::FailOn;
    ///
    /// assert!(FailOn::parse("p95 > 1.5x").is_ok());
    /// assert!(FailOn::parse("errors>=10").is_ok());
    /// assert!(FailOn::parse("p95>10").is_err());
    /// ```
    pub fn parse(text: &str) -> Result<Self, ParseFailOnError> {
        let Some((metric, rest)) = text.split_once('>') else {
            return Err(ParseFailOnError::NoComparator { text: text.to_owned() });
        };
        let metric = Metric::parse(metric.trim())?;
        let (or_equal, limit) = match rest.strip_prefix('=') {
            Some(limit) => (true, limit.trim()),
            None => (false, rest.trim()),
        };
        let parsed = Limit::parse(limit)
            .ok_or_else(|| ParseFailOnError::BadLimit { limit: limit.to_owned() })?;
        match (parsed, metric.is_time()) {
            (Limit::Ratio(_), _) | (Limit::Micros(_), true) | (Limit::Count(_), false) => {
                Ok(Self { metric, is_inclusive: or_equal, limit: parsed })
            }
            _ => Err(ParseFailOnError::LimitDoesNotFit { metric, limit: limit.to_owned() }),
        }
    }

    /// Returns the queries that violate the condition, in the order of the comparison. `base` and
    /// `run` must be the samples that were compared.
    pub fn violations(
        &self,
        comparison: &Comparison,
        base: &[Samples],
        run: &[Samples],
    ) -> Vec<Violation> {
        let executions_min = comparison.settings.executions_min;
        let (base, run) = (Samples::merged(base), Samples::merged(run));
        let crossing = |query: &QueryComparison| {
            let (left, right) = (base.query(query.fingerprint), run.query(query.fingerprint));
            self.violation(query, executions_min).filter(|_| {
                self.is_significant(query.fingerprint, left, right)
                    && self.is_significant_between_runs(query)
            })
        };
        comparison.queries.iter().filter_map(crossing).collect()
    }

    fn violation(&self, query: &QueryComparison, executions_min: u64) -> Option<Violation> {
        let enough = |side: &Measures| !self.metric.is_time() || side.timed >= executions_min;
        let value = |side: Option<Measures>, runs: usize| {
            let scale = if self.metric.is_sum() { runs.max(1) as f64 } else { 1.0 };
            side.filter(enough).map(|side| self.metric.value(&side) / scale)
        };
        let run = value(query.run, query.run_runs.len())?;
        let base = value(query.base, query.base_runs.len());
        let crossed = match self.limit {
            Limit::Micros(limit) | Limit::Count(limit) => self.exceeds(run, limit),
            Limit::Ratio(limit) if self.metric == Metric::Errors => {
                run > 0.0 && self.exceeds(run, limit * base.unwrap_or(0.0))
            }
            Limit::Ratio(limit) => base.is_some_and(|base| self.exceeds(run, limit * base)),
        };
        crossed.then(|| Violation {
            condition: self.clone(),
            fingerprint: query.fingerprint,
            base,
            run,
        })
    }

    fn exceeds(&self, value: f64, limit: f64) -> bool {
        value > limit || self.is_inclusive && value == limit
    }

    /// Whether resampling shows that the metric increased. `true` without a test for `max`, counts,
    /// fixed limits and ratios below 1.
    fn is_significant(
        &self,
        fingerprint: Fingerprint,
        base: Option<&Query>,
        run: Option<&Query>,
    ) -> bool {
        const CONFIDENCE: f64 = 0.99;
        let (Limit::Ratio(limit), Some(base), Some(run)) = (self.limit, base, run) else {
            return true;
        };
        // A limit below 1 requires an improvement, so an increase is not needed.
        if limit < 1.0 || !self.metric.is_time() || self.metric == Metric::Max {
            return true;
        }
        let pair = (&*base.durations_us(), &*run.durations_us());
        let (low, _) = ratio_interval(
            pair,
            |values| self.metric.value_of_durations(values),
            CONFIDENCE,
            fingerprint.0,
        );
        low > 1.0
    }

    /// Whether the runs agree that the metric increased. `true` without a test for counts, fixed
    /// limits, ratios below 1 and fewer than four runs. Only the variance of this query between
    /// runs is used, not that of other queries.
    fn is_significant_between_runs(&self, query: &QueryComparison) -> bool {
        const CONFIDENCE: f64 = 0.99;
        let Limit::Ratio(limit) = self.limit else { return true };
        if limit < 1.0 || !self.metric.is_time() || query.base_runs.len() + query.run_runs.len() < 4
        {
            return true;
        }
        let levels = |side: &[Option<Measures>]| {
            let level = |measures: &Measures| RunLevel {
                level: self.metric.value(measures).max(1.0).ln(),
                variance: 0.0,
            };
            side.iter().map(|run| run.as_ref().map(level)).collect()
        };
        let runs = QueryRuns { base: levels(&query.base_runs), run: levels(&query.run_runs) };
        let [Some(shift)] = run_shifts(&[runs])[..] else { return false };
        shift.absolute.estimate > shift.absolute.half_width(CONFIDENCE)
    }

    /// Returns the metric that the condition limits.
    pub fn metric(&self) -> Metric {
        self.metric
    }
}

impl FromStr for FailOn {
    type Err = ParseFailOnError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

impl fmt::Display for FailOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.metric, if self.is_inclusive { ">=" } else { ">" })?;
        match self.limit {
            Limit::Ratio(ratio) => write!(f, "{ratio}x"),
            Limit::Micros(micros) => {
                // Use the largest unit in which the number is exact.
                let exact =
                    |(_, size): &(&str, f64)| micros >= *size && micros / size * size == micros;
                let units = [("s", 1e6), ("ms", 1e3)].into_iter().find(exact);
                let (unit, size) = units.unwrap_or(("us", 1.0));
                write!(f, "{}{unit}", micros / size)
            }
            Limit::Count(count) => write!(f, "{count}"),
        }
    }
}

impl Limit {
    // Longest suffix first, because `ms` and `us` end in `s`.
    fn parse(text: &str) -> Option<Self> {
        type Unit = (&'static str, fn(f64) -> Limit);
        const UNITS: [Unit; 7] = [
            ("min", |number| Limit::Micros((number * 60e6).round())),
            ("ms", |number| Limit::Micros(number * 1e3)),
            ("us", Limit::Micros),
            ("µs", Limit::Micros),
            ("s", |number| Limit::Micros(number * 1e6)),
            ("x", Limit::Ratio),
            ("", Limit::Count),
        ];
        let text = text.to_ascii_lowercase();
        let (digits, unit) =
            UNITS.iter().find_map(|(unit, make)| Some((text.strip_suffix(unit)?, make)))?;
        let digits = digits.trim();
        // `parse` would also accept `inf`, `nan` and signs.
        let plain = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        digits.parse().ok().filter(|_| plain).map(unit)
    }
}

impl Metric {
    const NAMES: [&str; 9] =
        ["mean", "p50", "p90", "p95", "p99", "max", "total", "errors", "calls"];
    const ALL: [Self; 9] = [
        Self::Mean,
        Self::P50,
        Self::P90,
        Self::P95,
        Self::P99,
        Self::Max,
        Self::Total,
        Self::Errors,
        Self::Calls,
    ];

    fn parse(text: &str) -> Result<Self, ParseFailOnError> {
        let named = |metric: &Self| metric.as_str().eq_ignore_ascii_case(text);
        let found = Self::ALL.into_iter().find(named);
        found.ok_or_else(|| ParseFailOnError::UnknownMetric { metric: text.to_owned() })
    }

    /// Returns the metric's name in conditions and output.
    pub fn as_str(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// Whether the metric is a time in microseconds rather than a count.
    pub fn is_time(self) -> bool {
        !matches!(self, Self::Errors | Self::Calls)
    }

    /// Whether the metric is a sum over a run; for several runs its mean per run is used.
    fn is_sum(self) -> bool {
        matches!(self, Self::Total | Self::Errors | Self::Calls)
    }

    fn value(self, side: &Measures) -> f64 {
        match self {
            Self::Mean => side.mean_us,
            Self::P50 => side.p50_us as f64,
            Self::P90 => side.p90_us as f64,
            Self::P95 => side.p95_us as f64,
            Self::P99 => side.p99_us as f64,
            Self::Max => side.max_us as f64,
            Self::Total => side.total_us as f64,
            Self::Errors => side.errors as f64,
            Self::Calls => side.calls as f64,
        }
    }

    /// Computes the metric from single durations. A total is treated like the mean, because the
    /// number of executions is not random.
    fn value_of_durations(self, values: &mut [f64]) -> f64 {
        let share = match self {
            Self::P50 => 0.5,
            Self::P90 => 0.9,
            Self::P95 => 0.95,
            Self::P99 => 0.99,
            _ => return values.iter().sum::<f64>() / values.len() as f64,
        };
        let rank = ((share * values.len() as f64).ceil() as usize).clamp(1, values.len());
        *values.select_nth_unstable_by(rank - 1, f64::total_cmp).1
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests;
