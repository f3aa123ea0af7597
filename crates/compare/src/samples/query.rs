//! The summary of one query's executions in one run.

use std::collections::BTreeMap;

use howdah_dataset::{Disposition, ReplayOutcome};
use howdah_sql::Fingerprint;
use howdah_traffic::SqlState;

use crate::statistics::{BLOCKS, between_runs::RunLevel, blocks, median, shift::pseudo_median};

use super::{histogram::PercentileHistogram, reservoir::Reservoir};

/// Failures by error code. The code is `None` if no server reported one, as for lost connections.
pub type Errors = BTreeMap<Option<SqlState>, ErrorCount>;

/// Failures with one error code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorCount {
    /// Number of failures.
    pub count: u64,
    /// The message of the first failure, or its first 500 bytes.
    pub message: String,
}

/// Maximum number of error codes per query; PostgreSQL has about 260.
const ERRORS_MAX: usize = 300;

/// Standard deviation of the logarithm of a short query's time between moments: a factor of 2.
///
/// The inserts with which pgbench fills its small tables, a hundred within milliseconds, took 14 to
/// 105 µs in 24 runs on an idle server, a spread of 0.67.
const MOMENT_SPREAD: f64 = std::f64::consts::LN_2;

/// Maximum bytes of an error message.
const MESSAGE_MAX: usize = 500;

/// The summary of the executions of one query in one run.
///
/// Durations cover only successful executions: the time until an error says nothing about the speed
/// of the query.
#[derive(Clone, Debug)]
pub(crate) struct Query {
    pub(crate) done: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
    pub(crate) errors: Errors,
    /// Rows of all successful executions that reported them.
    pub(crate) rows: u64,
    pub(crate) rows_known: u64,
    timed: u64,
    total_us: u64,
    max_us: u64,
    histogram: PercentileHistogram,
    reservoir: Reservoir,
}

impl Query {
    pub(crate) fn new(fingerprint: Fingerprint) -> Self {
        Self {
            done: 0,
            failed: 0,
            skipped: 0,
            errors: Errors::new(),
            rows: 0,
            rows_known: 0,
            timed: 0,
            total_us: 0,
            max_us: 0,
            histogram: PercentileHistogram::default(),
            reservoir: Reservoir::new(fingerprint.0),
        }
    }

    pub(crate) fn record(&mut self, outcome: &ReplayOutcome) {
        match &outcome.disposition {
            Disposition::Done => self.record_done(outcome),
            Disposition::Failed { sqlstate, message } => {
                self.failed += 1;
                if self.errors.len() >= ERRORS_MAX && !self.errors.contains_key(sqlstate) {
                    return;
                }
                let error = self.errors.entry(*sqlstate).or_default();
                error.count += 1;
                if error.count == 1 {
                    error.message = message.to_str_lossy().into_owned();
                    error.message.truncate(error.message.floor_char_boundary(MESSAGE_MAX));
                }
            }
            Disposition::Skipped { .. } | Disposition::Dropped { .. } => self.skipped += 1,
        }
    }

    fn record_done(&mut self, outcome: &ReplayOutcome) {
        self.done += 1;
        if let Some(rows) = outcome.rows {
            self.rows = self.rows.saturating_add(rows);
            self.rows_known += 1;
        }
        if let Some(service_us) = outcome.service_us {
            self.timed += 1;
            self.total_us = self.total_us.saturating_add(service_us);
            self.max_us = self.max_us.max(service_us);
            self.histogram.record(service_us);
            self.reservoir.record(outcome.sent_us.unwrap_or(outcome.due_us), service_us);
        }
    }

    /// Adds the executions of a later run.
    pub(crate) fn append(&mut self, other: &Self) {
        self.done += other.done;
        self.failed += other.failed;
        self.skipped += other.skipped;
        for (sqlstate, error) in &other.errors {
            if self.errors.len() >= ERRORS_MAX && !self.errors.contains_key(sqlstate) {
                continue;
            }
            let sum = self.errors.entry(*sqlstate).or_insert_with(|| ErrorCount {
                message: error.message.clone(),
                ..ErrorCount::default()
            });
            sum.count += error.count;
        }
        self.rows = self.rows.saturating_add(other.rows);
        self.rows_known += other.rows_known;
        self.timed += other.timed;
        self.total_us = self.total_us.saturating_add(other.total_us);
        self.max_us = self.max_us.max(other.max_us);
        self.histogram.merge(&other.histogram);
        self.reservoir.append(&other.reservoir);
    }

    /// Returns the number of executions that succeeded or failed.
    pub(crate) fn calls(&self) -> u64 {
        self.done + self.failed
    }

    /// Returns the number of executions whose duration is known.
    pub(crate) fn timed(&self) -> u64 {
        self.timed
    }

    pub(crate) fn total_us(&self) -> u64 {
        self.total_us
    }

    pub(crate) fn max_us(&self) -> u64 {
        self.max_us
    }

    pub(crate) fn mean_us(&self) -> f64 {
        if self.timed == 0 { 0.0 } else { self.total_us as f64 / self.timed as f64 }
    }

    /// Returns percentiles by nearest rank, for `shares` such as 0.95. They are exact if all
    /// executions were stored in full, otherwise within 1 %.
    pub(crate) fn percentiles_us<const N: usize>(&self, shares: [f64; N]) -> [u64; N] {
        let rank = |share: f64| ((share * self.timed as f64).ceil() as u64).max(1);
        if !self.reservoir.is_complete() || self.max_us > u64::from(u32::MAX) {
            return shares.map(|share| self.histogram.at_rank(rank(share)).min(self.max_us));
        }
        let sorted = self.reservoir.sorted();
        shares.map(|share| sorted.get(rank(share) as usize - 1).copied().unwrap_or(0).into())
    }

    /// Returns the histogram of the durations.
    pub(crate) fn histogram(&self) -> &PercentileHistogram {
        &self.histogram
    }

    /// Returns a sample of the durations in microseconds, in order of time.
    pub(crate) fn durations_us(&self) -> Vec<f64> {
        self.reservoir.in_time_order()
    }

    /// Returns the typical logarithm of the service time in this run, with its variance. The run
    /// must have timed executions.
    pub(crate) fn run_level(&self) -> RunLevel {
        let logarithms: Vec<f64> =
            self.durations_us().into_iter().map(|duration| duration.max(1.0).ln()).collect();
        let blocks: Vec<f64> =
            blocks(&logarithms, BLOCKS).filter_map(|block| median(block.iter().copied())).collect();
        RunLevel { level: pseudo_median(&logarithms), variance: self.variance_of_mean(&blocks) }
    }

    /// Returns the logarithm of the mean service time in this run, with its variance. The run must
    /// have timed executions.
    pub(crate) fn run_mean(&self) -> RunLevel {
        let durations = self.durations_us();
        let mean = self.mean_us().max(1.0);
        let blocks: Vec<f64> = blocks(&durations, BLOCKS)
            .map(|block| block.iter().sum::<f64>() / block.len() as f64 / mean)
            .collect();
        RunLevel { level: mean.ln(), variance: self.variance_of_mean(&blocks) }
    }

    /// Returns the variance of the mean of `blocks` of executions in order of time, which are
    /// assumed to be independent.
    ///
    /// Executions of the same moment are not: a hundred in five milliseconds tell how fast the
    /// server was then. So the variance is at least ([`MOMENT_SPREAD`] / n)², where n is the number
    /// of tenths of a second in which executions began.
    fn variance_of_mean(&self, blocks: &[f64]) -> f64 {
        let moments = self.reservoir.tenths().max(1) as f64;
        variance_of_mean(blocks).max((MOMENT_SPREAD / moments).powi(2))
    }

    /// Returns the mean number of rows per execution, over those for which the server reported it.
    pub(crate) fn rows_mean(&self) -> Option<f64> {
        (self.rows_known > 0).then(|| self.rows as f64 / self.rows_known as f64)
    }
}

/// Returns the variance of the mean of `values`, assuming they are independent; 0 for one value.
fn variance_of_mean(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    squares / (count * (count - 1.0).max(1.0))
}
