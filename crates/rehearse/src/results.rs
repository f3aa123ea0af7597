//! Computes the report from finished runs.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
};

use howdah_compare::{
    CompareSettings, Comparison, Overall, QueryComparison, QueryVerdict, Samples, Violation,
    compare, compare_runs,
    explain::{Examples, explain},
};
use howdah_connect::ConnectTarget;
use howdah_dataset::{ReplayRun, StatementInfo};
use howdah_report::rehearsal::{
    Obstacle, OrderEffect, RehearsalSide, RehearsalVerdict, RunSummary,
};
use howdah_sql::Fingerprint;
use howdah_traffic::Parameter;

use crate::error::RehearsalError;

/// Share of failed or unsent statements on one side above which the sides are not comparable,
/// unless the other side exceeds it as well.
const FAILURES_MAX: f64 = 0.5;

/// Maximum length of an example in bytes.
const EXAMPLE_MAX: usize = 2_000;

/// The samples of all runs, by side and in the order in which they ran.
pub(crate) struct RunSamples {
    pub(crate) base: Vec<Samples>,
    pub(crate) change: Vec<Samples>,
}

impl RunSamples {
    /// Reads the runs of both sides in `dir`.
    pub(crate) fn read(dir: &Path, runs: &[RunSummary]) -> Result<Self, RehearsalError> {
        let side = |side: RehearsalSide| -> Result<Vec<Samples>, RehearsalError> {
            let mut runs: Vec<_> = runs.iter().filter(|run| run.side == side).collect();
            runs.sort_by_key(|run| run.started);
            runs.iter().map(|run| Ok(Samples::read(&dir.join(&run.name))?)).collect()
        };
        Ok(Self { base: side(RehearsalSide::Base)?, change: side(RehearsalSide::Change)? })
    }

    /// Compares the base with the change, over all runs.
    ///
    /// # Panics
    ///
    /// A side has no runs; a rehearsal has at least one on each.
    pub(crate) fn compare(&self, settings: &CompareSettings) -> Comparison {
        compare_runs(&self.base, &self.change, settings)
    }

    /// Returns the violations of the user's conditions, on the same runs as [`Self::compare`].
    pub(crate) fn violations(
        &self,
        conditions: &[howdah_compare::FailOn],
        comparison: &Comparison,
    ) -> Vec<Violation> {
        let violations =
            conditions.iter().map(|it| it.violations(comparison, &self.base, &self.change));
        violations.flatten().collect()
    }

    /// Returns the typical change from the first to the last run of each side that has several,
    /// where it is known.
    pub(crate) fn order_effects(&self, settings: &CompareSettings) -> Vec<OrderEffect> {
        let sides = [(RehearsalSide::Base, &self.base), (RehearsalSide::Change, &self.change)];
        let effect = |(side, samples): (RehearsalSide, &Vec<Samples>)| {
            let [first, .., last] = &samples[..] else { return None };
            let factor = compare(first, last, None, settings).drift?;
            Some(OrderEffect { side, factor })
        };
        sides.into_iter().filter_map(effect).collect()
    }
}

/// Returns the reasons why the runs do not show whether the change matters.
pub(crate) fn find_obstacles(comparison: &Comparison, runs: &[RunSummary]) -> Vec<Obstacle> {
    let mut obstacles = Vec::new();
    let shares = RehearsalSide::ALL.map(|side| (side, failed_share(runs, side)));
    let [(_, base), (_, change)] = shares;
    if (base > FAILURES_MAX) != (change > FAILURES_MAX) {
        let failing = shares.into_iter().filter(|(_, share)| *share > FAILURES_MAX);
        obstacles.extend(failing.map(|(side, share)| Obstacle::Failures { side, share }));
    }
    if comparison.verdict == Overall::TooFew {
        obstacles.push(Obstacle::TooFewExecutions);
    }
    let is_undecided = |query: &&QueryComparison| query.verdict == QueryVerdict::Undecided;
    let queries = comparison.queries.iter().filter(is_undecided).count();
    if queries > 0 && comparison.verdict == Overall::NotComparable {
        let machine = comparison.machine.map_or(1.0, |factor| factor.max(1.0 / factor));
        obstacles.push(Obstacle::Undecided { queries, machine });
    }
    let limit = comparison.settings.change_min.get();
    if let Some(control) = comparison.control.as_ref().filter(|control| control.noise >= limit) {
        obstacles.push(Obstacle::Noise { factor: control.noise, limit });
    }
    obstacles
}

/// Returns the verdict. A violated condition always fails the rehearsal. So does a slower query,
/// even if there is noise, because the comparison already accounts for that; but not if failures on
/// only one side make all figures meaningless.
pub(crate) fn decide(
    comparison: &Comparison,
    violations: &[Violation],
    obstacles: &[Obstacle],
) -> RehearsalVerdict {
    let is_meaningless = obstacles.iter().any(|it| matches!(it, Obstacle::Failures { .. }));
    if !violations.is_empty() || (comparison.slower().next().is_some() && !is_meaningless) {
        RehearsalVerdict::Failed
    } else if obstacles.is_empty() {
        RehearsalVerdict::Passed
    } else {
        RehearsalVerdict::NotComparable
    }
}

fn failed_share(runs: &[RunSummary], side: RehearsalSide) -> f64 {
    let runs = || runs.iter().filter(|run| run.side == side);
    let bad: u64 = runs().map(|run| run.failed + run.skipped).sum();
    let all: u64 = runs().map(|run| run.executions + run.skipped).sum();
    bad as f64 / all.max(1) as f64
}

/// Sets the plan changes, and returns the queries without plans, with the reason for each.
pub(crate) fn explain_changes(
    comparison: &mut Comparison,
    run: &Path,
    base: &ConnectTarget,
    change: &ConnectTarget,
) -> Result<BTreeMap<Fingerprint, String>, RehearsalError> {
    let examples = Examples::for_changed(comparison, run)?;
    match explain(comparison, &examples, base, change) {
        Ok(failures) => {
            Ok(failures.into_iter().map(|(query, error)| (query, error.to_string())).collect())
        }
        // Plans are optional: the comparison is valid without them.
        Err(error) => {
            let queries = comparison.slower().chain(comparison.faster());
            Ok(queries.map(|query| (query.fingerprint, error.to_string())).collect())
        }
    }
}

/// Removes error messages, because the server may quote values in them.
pub(crate) fn remove_values(comparison: &mut Comparison) {
    for error in comparison.queries.iter_mut().flat_map(|query| &mut query.errors) {
        error.message.clear();
    }
}

/// Returns one execution, with its values, of each changed query in the run in folder `run`.
pub(crate) fn examples(
    comparison: &Comparison,
    run: &Path,
) -> Result<BTreeMap<Fingerprint, String>, RehearsalError> {
    let statements = ReplayRun::open(run).and_then(|run| run.statements());
    let statements = statements.map_err(RehearsalError::Run)?;
    let statements: HashMap<Fingerprint, StatementInfo> = statements
        .into_iter()
        .map(|statement| (Fingerprint(statement.fingerprint), statement))
        .collect();
    let changed = comparison.slower().chain(comparison.faster());
    let example = |query: &QueryComparison| {
        let statement = statements.get(&query.fingerprint)?;
        Some((query.fingerprint, example_text(statement)))
    };
    Ok(changed.filter_map(example).collect())
}

fn example_text(statement: &StatementInfo) -> String {
    let mut text = statement.example_sql.to_str_lossy().into_owned();
    for (number, parameter) in (1..).zip(statement.example_parameters.iter().flatten()) {
        let value = match parameter {
            Parameter::Null => "NULL".to_owned(),
            Parameter::Value(value) => format!("'{}'", value.to_str_lossy()),
            Parameter::Truncated(value) => format!("'{}…'", value.to_str_lossy()),
        };
        text.push_str(&format!("{} ${number} = {value}", if number == 1 { ";" } else { "," }));
    }
    text.truncate(text.floor_char_boundary(EXAMPLE_MAX));
    text
}
