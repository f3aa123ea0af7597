//! Computes a [`Comparison`] of two runs, or of several runs on each side ([`runs`]).
//!
//! For two runs, the shift of the logarithm of service time is estimated for each query that both
//! runs executed often enough, with an interval and a p-value. The p-values are adjusted over all
//! queries. Then [`classify()`] gives the verdict.

mod classify;
mod runs;

use std::{
    collections::{BTreeMap, BTreeSet},
    slice,
};

use howdah_sql::Fingerprint;

use self::{
    classify::{Evidence, classify},
    runs::{RunsVerdict, ShiftsBetweenRuns},
};
use crate::{
    Caveat, Change, CompareSettings, Comparison, Control, ErrorChange, Interval, LatencyBins,
    Measures, Overall, QueryComparison, QueryVerdict, Samples, Side,
    machine::calibration_shift,
    samples::Query,
    statistics::{
        fdr::benjamini_hochberg,
        median,
        shift::{Shift, shift},
    },
};

/// Compares `run` with `base`, query by query.
///
/// A `control` is a second run of the base's setup. Where it differs from the base although nothing
/// changed, `run` must differ twice as much for a verdict. The same input gives the same result.
pub fn compare(
    base: &Samples,
    run: &Samples,
    control: Option<&Samples>,
    settings: &CompareSettings,
) -> Comparison {
    let fingerprints: BTreeSet<Fingerprint> =
        base.fingerprints().chain(run.fingerprints()).collect();
    let shifts = shifts(base, run, &fingerprints, settings);
    let machine = machine_shift(slice::from_ref(base), slice::from_ref(run));
    let estimates = || shifts.values().map(|shift| shift.estimate);
    let drift = median(estimates());
    // Without a measurement, the shift common to all queries is taken as the machine's.
    let factors: Vec<f64> = estimates().map(f64::exp).collect();
    let is_common = |drift: &f64| moved_together(&factors, drift.exp(), settings);
    let common = drift.filter(|drift| machine.is_none() && is_common(drift)).map(f64::abs);
    let noise = control
        .map(|control| Noise::from_shifts(&self::shifts(base, control, &fingerprints, settings)));
    let noise_of = |fingerprint| {
        let control = noise.as_ref().map(|noise| noise.for_query(fingerprint));
        let measured = [control, machine.map(f64::abs), common].into_iter().flatten();
        (control.is_some(), measured.reduce(f64::max))
    };
    let changes = adjusted_changes(&shifts);
    let mut queries: Vec<QueryComparison> = fingerprints
        .into_iter()
        .map(|fingerprint| {
            let change = changes.get(&fingerprint).copied();
            let pair = Pair { base: base.query(fingerprint), run: run.query(fingerprint) };
            let words = run.query_text(fingerprint).or_else(|| base.query_text(fingerprint));
            let (has_control, noise_of_pair) = noise_of(fingerprint);
            let evidence = Evidence { change, noise: noise_of_pair, has_control };
            let mut query = pair.compare(fingerprint, (1, 1), |base, run| {
                let (verdict, mean) = classify(base, run, &evidence, settings, fingerprint.0);
                RunsVerdict { verdict, change, mean_change: mean, detectable: None, largest: None }
            });
            query.noise = noise.as_ref().and_then(|noise| noise.own(fingerprint)).map(f64::exp);
            query.text = words.cloned().unwrap_or_default();
            query.types_deduced =
                base.has_deduced_types(fingerprint) || run.has_deduced_types(fingerprint);
            query
        })
        .collect();
    queries.sort_by(|left, right| right.impact_us.total_cmp(&left.impact_us));
    let drift = drift.map(f64::exp);
    let undecided_share = undecided_share(&queries);
    Comparison {
        settings: *settings,
        base: Side::from_samples(base),
        run: Side::from_samples(run),
        base_runs: vec![Side::from_samples(base)],
        run_runs: vec![Side::from_samples(run)],
        control: control.zip(noise).map(|(control, noise)| Control {
            info: control.info().clone(),
            noise: noise.typical.exp(),
        }),
        verdict: overall(&queries, undecided_share, settings),
        caveats: caveats(&[base, run], drift, machine, &queries, settings),
        undecided_share,
        queries,
        drift,
        machine: machine.map(f64::exp),
    }
}

/// Compares `run`, several runs of one setup, with `base`, several runs of another, query by query.
///
/// The variance between runs is measured, so a machine whose load changes makes queries
/// [`QueryVerdict::Undecided`], not slower. Fewer than four runs in total are too few to measure
/// that variance: then the first run of each side is compared, with the second run of the base as
/// the control if there is one.
///
/// # Panics
///
/// A side has no runs, and there are fewer than four in total.
pub fn compare_runs(base: &[Samples], run: &[Samples], settings: &CompareSettings) -> Comparison {
    if base.len() + run.len() < 4 {
        return compare(&base[0], &run[0], base.get(1), settings);
    }
    let settings = &CompareSettings { change_min: settings.change_min_between_runs, ..*settings };
    let (base_all, run_all) = (Samples::merged(base), Samples::merged(run));
    let fingerprints: BTreeSet<Fingerprint> =
        base_all.fingerprints().chain(run_all.fingerprints()).collect();
    let machine = machine_shift(base, run);
    let shifts =
        ShiftsBetweenRuns::measure(base, run, fingerprints.iter().copied(), machine, settings);
    let each = |runs: &[Samples], fingerprint| -> Vec<Option<Measures>> {
        runs.iter().map(|run| run.query(fingerprint).map(Measures::from_query)).collect()
    };
    let mut queries: Vec<QueryComparison> = fingerprints
        .into_iter()
        .map(|fingerprint| {
            let pair = Pair { base: base_all.query(fingerprint), run: run_all.query(fingerprint) };
            let text = run_all.query_text(fingerprint).or_else(|| base_all.query_text(fingerprint));
            let classify =
                |base: &Query, run: &Query| shifts.classify(fingerprint, base, run, settings);
            QueryComparison {
                text: text.cloned().unwrap_or_default(),
                types_deduced: base_all.has_deduced_types(fingerprint)
                    || run_all.has_deduced_types(fingerprint),
                base_runs: each(base, fingerprint),
                run_runs: each(run, fingerprint),
                ..pair.compare(fingerprint, (base.len(), run.len()), classify)
            }
        })
        .collect();
    queries.sort_by(|left, right| right.impact_us.total_cmp(&left.impact_us));
    let drift = median(shifts.estimates()).map(f64::exp);
    let sides: Vec<&Samples> = base.iter().chain(run).collect();
    let undecided_share = undecided_share(&queries);
    Comparison {
        settings: *settings,
        base: Side::from_samples(&base_all),
        run: Side::from_samples(&run_all),
        base_runs: base.iter().map(Side::from_samples).collect(),
        run_runs: run.iter().map(Side::from_samples).collect(),
        control: None,
        verdict: overall(&queries, undecided_share, settings),
        caveats: caveats(&sides, drift, machine, &queries, settings),
        undecided_share,
        queries,
        drift,
        machine: machine.map(f64::exp),
    }
}

/// Returns the verdict on the workload. Undecided queries do not prevent "no change" if they cannot
/// matter to the total time.
fn overall(
    queries: &[QueryComparison],
    undecided_share: Option<f64>,
    settings: &CompareSettings,
) -> Overall {
    let is_immaterial = |query: &QueryComparison| {
        query.verdict == QueryVerdict::Undecided
            && undecided_share.is_some_and(|share| share <= settings.undecided_share_max)
    };
    let material = queries.iter().filter(|query| !is_immaterial(query));
    match Overall::from_verdicts(material.map(|query| query.verdict)) {
        // All queries with enough executions are undecided.
        Overall::TooFew if queries.iter().any(is_immaterial) => Overall::NotComparable,
        overall => overall,
    }
}

/// Returns how much time the undecided queries may have added, at the upper ends of their
/// intervals, as a fraction of the base's total time; `None` if an interval is not known.
fn undecided_share(queries: &[QueryComparison]) -> Option<f64> {
    let total_us = |query: &QueryComparison| query.base.map_or(0, |base| base.total_us) as f64;
    let undecided = queries.iter().filter(|query| query.verdict == QueryVerdict::Undecided);
    let added_us: Option<Vec<f64>> =
        undecided.map(|query| Some(total_us(query) * (query.largest? - 1.0).max(0.0))).collect();
    let all_us: f64 = queries.iter().map(total_us).sum();
    // Not `sum`, which is −0 without values.
    Some(added_us?.iter().fold(0.0, |sum, added_us| sum + added_us) / all_us.max(1.0))
}

/// Returns the shift of the calibration statement between the sides, in logarithms.
fn machine_shift(base: &[Samples], run: &[Samples]) -> Option<f64> {
    calibration_shift(base.iter().map(Samples::machine), run.iter().map(Samples::machine))
}

type Shifts = BTreeMap<Fingerprint, Shift>;

/// Returns the shift of each query that both runs executed often enough, in logarithms.
fn shifts(
    base: &Samples,
    run: &Samples,
    fingerprints: &BTreeSet<Fingerprint>,
    settings: &CompareSettings,
) -> Shifts {
    let enough = |query: &&Query| query.timed() >= settings.executions_min.max(2);
    let shift_of = |fingerprint: &Fingerprint| {
        let base = base.query(*fingerprint).filter(enough)?;
        let run = run.query(*fingerprint).filter(enough)?;
        let margin = settings.change_min.get().ln() / 2.0;
        let (base, run) = (logarithms(base), logarithms(run));
        Some((*fingerprint, shift(&base, &run, settings.confidence, margin)))
    };
    fingerprints.iter().filter_map(shift_of).collect()
}

/// Converts durations to logarithms. A duration of 0 µs counts as 1 µs.
fn logarithms(query: &Query) -> Vec<f64> {
    query.durations_us().into_iter().map(|duration| duration.max(1.0).ln()).collect()
}

fn adjusted_changes(shifts: &Shifts) -> BTreeMap<Fingerprint, Change> {
    let p_values: Vec<f64> = shifts.values().map(|shift| shift.p_beyond_margin).collect();
    let change = |((fingerprint, shift), q): ((&Fingerprint, &Shift), f64)| {
        let factor = Interval {
            estimate: shift.estimate.exp(),
            low: shift.low.exp(),
            high: shift.high.exp(),
        };
        (*fingerprint, Change { factor, p: shift.p, q })
    };
    shifts.iter().zip(benjamini_hochberg(&p_values)).map(change).collect()
}

/// The differences between two runs of one setup, in logarithms.
struct Noise {
    own: BTreeMap<Fingerprint, f64>,
    /// The median of the noise over all queries.
    typical: f64,
}

impl Noise {
    fn from_shifts(shifts: &Shifts) -> Self {
        let own: BTreeMap<_, _> = shifts
            .iter()
            .map(|(fingerprint, shift)| (*fingerprint, shift.estimate.abs()))
            .collect();
        let typical = median(own.values().copied()).unwrap_or(0.0);
        Self { own, typical }
    }

    fn own(&self, fingerprint: Fingerprint) -> Option<f64> {
        self.own.get(&fingerprint).copied()
    }

    /// Returns the noise of a query: its own noise, but at least the typical noise, because two
    /// runs may agree by chance.
    fn for_query(&self, fingerprint: Fingerprint) -> f64 {
        self.own(fingerprint).unwrap_or(0.0).max(self.typical)
    }
}

/// The executions of one query on both sides; `None` for a side without the query.
struct Pair<'a> {
    base: Option<&'a Query>,
    run: Option<&'a Query>,
}

impl Pair<'_> {
    fn compare(
        &self,
        fingerprint: Fingerprint,
        runs: (usize, usize),
        classify: impl FnOnce(&Query, &Query) -> RunsVerdict,
    ) -> QueryComparison {
        let RunsVerdict { verdict, change, mean_change, detectable, largest } =
            match (self.executed_base(), self.executed_run()) {
                (Some(base), Some(run)) => classify(base, run),
                (Some(_), None) => RunsVerdict::without_change(QueryVerdict::OnlyInBase),
                (None, Some(_)) => RunsVerdict::without_change(QueryVerdict::OnlyInRun),
                (None, None) => RunsVerdict::without_change(QueryVerdict::TooFew),
            };
        let measures = |query: Option<&Query>| query.map(Measures::from_query);
        QueryComparison {
            fingerprint,
            text: crate::QueryText::default(),
            verdict,
            base: measures(self.base),
            run: measures(self.run),
            base_runs: vec![measures(self.base)],
            run_runs: vec![measures(self.run)],
            change,
            mean_change,
            noise: None,
            detectable,
            largest,
            latencies: self.latencies(),
            impact_us: self.impact_us(),
            errors: self.errors(runs),
            plan_change: None,
            plans: None,
            types_deduced: false,
        }
    }

    fn executed_base(&self) -> Option<&Query> {
        self.base.filter(|query| query.calls() > 0)
    }

    fn executed_run(&self) -> Option<&Query> {
        self.run.filter(|query| query.calls() > 0)
    }

    fn latencies(&self) -> Option<LatencyBins> {
        LatencyBins::new(self.base?.histogram(), self.run?.histogram())
    }

    /// Returns the difference of the mean times, multiplied by the executions of the base. If only
    /// one side has timed executions, returns their total time, negative for the base.
    fn impact_us(&self) -> f64 {
        let timed = |query: Option<&Query>| query.map_or(0, Query::timed);
        let mean = |query: Option<&Query>| query.map_or(0.0, Query::mean_us);
        match (timed(self.base), timed(self.run)) {
            (0, run) => run as f64 * mean(self.run),
            (base, 0) => -(base as f64) * mean(self.base),
            (base, _) => base as f64 * (mean(self.run) - mean(self.base)),
        }
    }

    /// Returns the failures by error code, for codes whose count per run differs.
    fn errors(&self, (base_runs, run_runs): (usize, usize)) -> Vec<ErrorChange> {
        let mut changes = BTreeMap::new();
        for (query, in_run) in [(self.base, false), (self.run, true)] {
            for (sqlstate, error) in query.iter().flat_map(|query| &query.errors) {
                let change = changes.entry(*sqlstate).or_insert_with(|| ErrorChange {
                    sqlstate: *sqlstate,
                    message: error.message.clone(),
                    base: 0,
                    run: 0,
                });
                *(if in_run { &mut change.run } else { &mut change.base }) += error.count;
            }
        }
        let differs =
            |change: &ErrorChange| change.base * run_runs as u64 != change.run * base_runs as u64;
        changes.into_values().filter(differs).collect()
    }
}

impl Side {
    fn from_samples(samples: &Samples) -> Self {
        let mut side = Self {
            info: samples.info().clone(),
            unattributed: samples.unattributed(),
            ..Self::default()
        };
        for query in samples.fingerprints().filter_map(|fingerprint| samples.query(fingerprint)) {
            side.calls += query.calls();
            side.errors += query.failed;
            side.skipped += query.skipped;
            side.total_us = side.total_us.saturating_add(query.total_us());
        }
        side
    }
}

fn caveats(
    runs: &[&Samples],
    drift: Option<f64>,
    machine: Option<f64>,
    queries: &[QueryComparison],
    settings: &CompareSettings,
) -> Vec<Caveat> {
    let mut caveats = Vec::new();
    let first = runs[0].info();
    if runs.iter().any(|run| run.info().capture != first.capture) {
        caveats.push(Caveat::DifferentCaptures);
    }
    if runs.iter().any(|run| run.info().rate != first.rate) {
        caveats.push(Caveat::DifferentRates);
    }
    for info in runs.iter().map(|run| run.info()).filter(|info| !info.complete) {
        caveats.push(Caveat::Incomplete {
            name: info.name.clone(),
            missing_workers: info.missing_workers.clone(),
        });
    }
    if machine.is_some_and(|shift| shift.abs() >= settings.change_min.get().ln() / 2.0) {
        caveats.push(Caveat::MachineChanged);
    }
    let undecided = queries.iter().filter(|query| query.verdict == QueryVerdict::Undecided).count();
    if undecided > 0 {
        caveats.push(Caveat::RunsVary { queries: undecided });
    }
    let factors: Vec<f64> = queries
        .iter()
        .filter_map(|query| query.change)
        .map(|change| change.factor.estimate)
        .collect();
    if drift.is_some_and(|drift| moved_together(&factors, drift, settings)) {
        caveats.push(Caveat::EverythingMoved);
    }
    let typed = queries.iter().filter(|query| query.types_deduced).count();
    if typed > 0 {
        caveats.push(Caveat::TypesDeduced { queries: typed });
    }
    caveats
}

/// Minimum number of queries for drift: among fewer, a single changed query has too much weight.
const DRIFT_QUERIES_MIN: usize = 4;

/// Share of the classified queries that must have moved with the drift.
const DRIFT_SHARE_MIN: f64 = 0.8;

/// Whether the drift (the median of the factors) is a change in itself, and nearly all queries
/// changed by about the same factor: their logarithms lie within half of
/// [`CompareSettings::change_min`] of the drift.
fn moved_together(factors: &[f64], drift: f64, settings: &CompareSettings) -> bool {
    let change = settings.change_min.get().ln();
    let near = |factor: &&f64| (factor.ln() - drift.ln()).abs() <= change / 2.0;
    let share = factors.iter().filter(near).count() as f64 / factors.len().max(1) as f64;
    factors.len() >= DRIFT_QUERIES_MIN && drift.ln().abs() >= change && share >= DRIFT_SHARE_MIN
}

#[cfg(test)]
mod tests;
