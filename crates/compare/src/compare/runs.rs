//! Compares several runs on each side.
//!
//! Computes the typical service time ([`Query::run_level`]) and the mean of each query in each run,
//! and from these the shifts between the sides with the variance between runs: see
//! [`between_runs`](crate::statistics::between_runs). A change must be at least
//! [`CompareSettings::change_min`] and exceed a margin, which grows by the shift of the machine
//! between the sides. "No change" is a claim as well: the interval must exclude changes by
//! [`CompareSettings::no_change_max`]. A query for which neither holds is undecided.

use std::collections::BTreeMap;

use howdah_sql::Fingerprint;

use crate::{
    Change, ChangedPart, CompareSettings, Interval, QueryVerdict, Samples,
    samples::Query,
    statistics::{
        between_runs::{QueryRuns, RunLevel, RunShift, ShiftEstimate, ShiftLimits, run_shifts},
        fdr::benjamini_hochberg,
    },
};

use super::classify::{
    TAIL_CHANGE_MIN, TAIL_CONFIDENCE, TAIL_EXECUTIONS_MIN, TAIL_FLOORS_MIN, direction,
};

/// Minimum executions of a query in a run for the run to count; each side must reach
/// [`CompareSettings::executions_min`] with all its runs together.
const EXECUTIONS_PER_RUN_MIN: u64 = 5;

/// The shifts of all queries between the two sides.
pub(super) struct ShiftsBetweenRuns {
    queries: BTreeMap<Fingerprint, QueryShift>,
    /// The shift of the machine between the sides, in logarithms: zero or positive.
    machine: f64,
}

/// The shift of one query's typical executions, its adjusted p-value, and the shift of the mean.
#[derive(Clone, Copy)]
struct QueryShift {
    shift: RunShift,
    q: f64,
    mean: Option<ShiftEstimate>,
}

/// The verdict on a query and the figures that support it.
pub(super) struct RunsVerdict {
    pub(super) verdict: QueryVerdict,
    pub(super) change: Option<Change>,
    pub(super) mean_change: Option<Interval>,
    /// The smallest factor that these runs would have shown to be a change.
    pub(super) detectable: Option<f64>,
    /// The largest factor that these runs do not exclude.
    pub(super) largest: Option<f64>,
}

impl RunsVerdict {
    /// Creates a verdict without supporting figures.
    pub(super) fn without_change(verdict: QueryVerdict) -> Self {
        Self { verdict, change: None, mean_change: None, detectable: None, largest: None }
    }
}

impl ShiftsBetweenRuns {
    /// Measures the shifts. `machine` is the shift of the calibration statement, if it was
    /// measured.
    pub(super) fn measure(
        base: &[Samples],
        run: &[Samples],
        fingerprints: impl Iterator<Item = Fingerprint>,
        machine: Option<f64>,
        settings: &CompareSettings,
    ) -> Self {
        let fingerprints: Vec<Fingerprint> = fingerprints
            .filter(|it| has_enough(base, *it, settings) && has_enough(run, *it, settings))
            .collect();
        let levels = |level: fn(&Query) -> RunLevel, executions_min: u64| -> Vec<QueryRuns> {
            let side = |side: &[Samples], fingerprint| {
                let query = |run: &Samples| {
                    let query = run.query(fingerprint)?;
                    (query.timed() >= executions_min).then(|| level(query))
                };
                side.iter().map(query).collect()
            };
            let query = |it: &Fingerprint| QueryRuns { base: side(base, *it), run: side(run, *it) };
            fingerprints.iter().map(query).collect()
        };
        let typical = run_shifts(&levels(Query::run_level, EXECUTIONS_PER_RUN_MIN));
        let means = run_shifts(&levels(Query::run_mean, TAIL_EXECUTIONS_MIN / 4));
        let machine = machine.map_or_else(|| common_shift(&typical, settings), f64::abs);
        let limits = limits(machine, settings);
        let measured: Vec<(Fingerprint, RunShift, Option<ShiftEstimate>)> = fingerprints
            .into_iter()
            .zip(typical)
            .zip(means)
            .filter_map(|((fingerprint, shift), mean)| {
                Some((fingerprint, shift?, mean.map(|mean| mean.absolute)))
            })
            .collect();
        let p_values: Vec<f64> =
            measured.iter().map(|(_, shift, _)| shift.p_change(limits)).collect();
        let queries = measured
            .into_iter()
            .zip(benjamini_hochberg(&p_values))
            .map(|((fingerprint, shift, mean), q)| (fingerprint, QueryShift { shift, q, mean }))
            .collect();
        Self { queries, machine }
    }

    /// Returns the shifts, in logarithms.
    pub(super) fn estimates(&self) -> impl Iterator<Item = f64> {
        self.queries.values().map(|query| query.shift.absolute.estimate)
    }

    /// Classifies a query that both sides executed; `base` and `run` are all its executions.
    pub(super) fn classify(
        &self,
        fingerprint: Fingerprint,
        base: &Query,
        run: &Query,
        settings: &CompareSettings,
    ) -> RunsVerdict {
        let Some(query) = self.queries.get(&fingerprint) else {
            return RunsVerdict::without_change(QueryVerdict::TooFew);
        };
        let QueryShift { shift: both, q, mean } = *query;
        let shift = both.absolute;
        let interval = interval(shift, settings.confidence);
        let limits = limits(self.machine, settings);
        let [base_us] = base.percentiles_us([0.5]);
        let floor_us = settings.floor_between_runs.as_micros() as f64;
        let moved_us = (interval.estimate - 1.0).abs() * base_us as f64;
        let is_certain = q <= settings.false_discoveries_max;
        let tail = mean.and_then(|mean| self.tail_change(base, run, mean, settings));
        let verdict = if is_certain && moved_us >= floor_us {
            direction(interval.estimate, ChangedPart::Typical)
        } else if let Some(tail) = tail {
            direction(tail.estimate, ChangedPart::Tail)
        } else if self.excludes_change(shift, base_us as f64, settings) {
            QueryVerdict::NoChange
        } else {
            QueryVerdict::Undecided
        };
        let half_width = |it: ShiftEstimate| it.half_width(1.0 - settings.false_discoveries_max);
        let absolute = limits.absolute_margin() + half_width(shift);
        let detectable = both.relative.map_or(absolute, |relative| {
            absolute.min(limits.relative_margin() + half_width(relative))
        });
        RunsVerdict {
            verdict,
            change: Some(Change { factor: interval, p: both.p(), q }),
            mean_change: tail,
            detectable: Some(detectable.max(limits.minimum).exp()),
            largest: Some(self.widened(shift, settings).1),
        }
    }

    /// Whether all changes within the interval of the shift, widened by the shift of the machine,
    /// are at most [`CompareSettings::no_change_max`] or too small to matter.
    fn excludes_change(
        &self,
        shift: ShiftEstimate,
        base_us: f64,
        settings: &CompareSettings,
    ) -> bool {
        let (low, high) = self.widened(shift, settings);
        let limit = settings.no_change_max.get();
        let floor_us = settings.floor_between_runs.as_micros() as f64;
        let is_small = |factor: f64| (factor - 1.0).abs() * base_us < floor_us;
        (low >= 1.0 / limit || is_small(low)) && (high <= limit || is_small(high))
    }

    /// Returns the ends of the interval of the factor, widened by the shift of the machine.
    fn widened(&self, shift: ShiftEstimate, settings: &CompareSettings) -> (f64, f64) {
        let beyond = shift.half_width(settings.confidence) + self.machine;
        ((shift.estimate - beyond).exp(), (shift.estimate + beyond).exp())
    }

    /// Returns the change of the mean, if it is certain and large enough and there are enough
    /// executions.
    fn tail_change(
        &self,
        base: &Query,
        run: &Query,
        mean: ShiftEstimate,
        settings: &CompareSettings,
    ) -> Option<Interval> {
        let floor_us = TAIL_FLOORS_MIN * settings.floor_between_runs.as_micros() as f64;
        let change = interval(mean, TAIL_CONFIDENCE);
        let minimum = settings.change_min.get().ln() + self.machine;
        let is_certain = change.low.ln() >= minimum || change.high.ln() <= -minimum;
        let is_relevant = base.timed().min(run.timed()) >= TAIL_EXECUTIONS_MIN
            && mean.estimate.abs() >= TAIL_CHANGE_MIN.ln() + self.machine
            && (run.mean_us() - base.mean_us()).abs() >= floor_us;
        (is_certain && is_relevant).then_some(change)
    }
}

fn limits(machine: f64, settings: &CompareSettings) -> ShiftLimits {
    ShiftLimits { minimum: settings.change_min.get().ln(), machine }
}

/// Estimates the shift of the machine if no calibration measured it: the absolute median shift of
/// the queries. Returns 0 for too few queries, and for a median that is a change in itself unless
/// nearly all queries share it.
fn common_shift(shifts: &[Option<RunShift>], settings: &CompareSettings) -> f64 {
    let estimates: Vec<f64> =
        shifts.iter().flatten().map(|shift| shift.absolute.estimate).collect();
    let median = crate::statistics::median(estimates.iter().copied()).unwrap_or(0.0);
    let factors: Vec<f64> = estimates.iter().map(|estimate| estimate.exp()).collect();
    let moved = super::moved_together(&factors, median.exp(), settings);
    if moved
        || factors.len() >= super::DRIFT_QUERIES_MIN
            && median.abs() < settings.change_min.get().ln()
    {
        median.abs()
    } else {
        0.0
    }
}

fn has_enough(side: &[Samples], fingerprint: Fingerprint, settings: &CompareSettings) -> bool {
    let timed = |run: &Samples| run.query(fingerprint).map_or(0, Query::timed);
    side.iter().map(timed).sum::<u64>() >= settings.executions_min
}

fn interval(shift: ShiftEstimate, confidence: f64) -> Interval {
    let half_width = shift.half_width(confidence);
    Interval {
        estimate: shift.estimate.exp(),
        low: (shift.estimate - half_width).exp(),
        high: (shift.estimate + half_width).exp(),
    }
}
