//! A comparison for programs: a versioned JSON document.
//!
//! Within a version, fields are never renamed or removed; new ones may be added. Times are in
//! microseconds, factors are run over base, unknown values are `null`.

use howdah_compare::{
    Caveat, Change, ChangedPart, CompareSettings, Comparison, Control, ErrorChange, Interval,
    Measures, QueryComparison, RunInfo, Side, Violation,
};
use serde::Serialize;

use crate::headline;

/// Version of [`ComparisonDocument`], in its `version` field.
pub const DOCUMENT_VERSION: u32 = 1;

/// A comparison as a document. Any serde format can serialise it, but only its JSON form is stable.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct ComparisonDocument {
    /// Always `howdah-comparison`.
    pub format: &'static str,
    /// See [`DOCUMENT_VERSION`].
    pub version: u32,
    /// `slower`, `faster`, `mixed`, `no change`, `not comparable` or `too few`.
    pub verdict: &'static str,
    /// The verdict in one line, for people.
    pub summary: String,
    /// The most important results for people, one line each.
    pub headlines: Vec<String>,
    base: SideDocument,
    run: SideDocument,
    base_runs: Vec<SideDocument>,
    run_runs: Vec<SideDocument>,
    control: Option<ControlDocument>,
    settings: SettingsDocument,
    /// The factor by which the typical query changed.
    drift: Option<f64>,
    /// The factor by which the calibration statement was slower in the assessed runs.
    machine: Option<f64>,
    undecided_share: Option<f64>,
    caveats: Vec<CaveatDocument>,
    fail_on: Vec<ViolationDocument>,
    /// Number of all queries, including those not listed in `queries`.
    queries_total: usize,
    queries: Vec<QueryDocument>,
}

#[derive(Debug, Serialize)]
struct SideDocument {
    #[serde(flatten)]
    run_info: RunInfoDocument,
    calls: u64,
    errors: u64,
    skipped: u64,
    unattributed: u64,
    total_us: u64,
}

#[derive(Debug, Serialize)]
struct RunInfoDocument {
    name: String,
    capture: String,
    target: String,
    rate: String,
    server_version: String,
    complete: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing_workers: Vec<u32>,
}

#[derive(Debug, Serialize)]
struct ControlDocument {
    #[serde(flatten)]
    run_info: RunInfoDocument,
    noise: f64,
}

#[derive(Debug, Serialize)]
struct SettingsDocument {
    change_min: f64,
    undecided_share_max: f64,
    floor_us: u128,
    floor_between_runs_us: u128,
    no_change_max: f64,
    executions_min: u64,
    confidence: f64,
    false_discoveries_max: f64,
}

#[derive(Debug, Serialize)]
struct CaveatDocument {
    /// `different_captures`, `different_rates`, `incomplete`, `everything_moved`,
    /// `machine_changed`, `runs_vary`, `types_deduced`.
    kind: &'static str,
    text: String,
}

#[derive(Debug, Serialize)]
struct ViolationDocument {
    condition: String,
    metric: &'static str,
    fingerprint: String,
    base: Option<f64>,
    run: f64,
}

#[derive(Debug, Serialize)]
struct QueryDocument {
    fingerprint: String,
    query: String,
    user: String,
    database: String,
    /// `slower`, `faster`, `no change`, `undecided`, `too few`, `only in base` or `only in run`.
    verdict: &'static str,
    /// `typical` or `tail` if the query changed, `null` otherwise.
    part: Option<&'static str>,
    /// The change of typical executions.
    change: Option<ChangeDocument>,
    /// The change of the mean, if it was computed; its interval is at 99 %.
    mean_change: Option<IntervalDocument>,
    /// The factor by which the query differed between base and control.
    noise: Option<f64>,
    /// The smallest factor that the runs would have shown to be a change; `null` for fewer than
    /// four runs or too few executions.
    detectable: Option<f64>,
    /// The largest factor that the runs do not exclude; `null` whenever `detectable` is.
    largest: Option<f64>,
    impact_us: f64,
    base: Option<MeasuresDocument>,
    run: Option<MeasuresDocument>,
    base_runs: Vec<Option<MeasuresDocument>>,
    run_runs: Vec<Option<MeasuresDocument>>,
    errors: Vec<ErrorDocument>,
    rows_differ: bool,
    because: Option<String>,
    types_deduced: bool,
}

#[derive(Debug, Serialize)]
struct IntervalDocument {
    ratio: f64,
    low: f64,
    high: f64,
}

#[derive(Debug, Serialize)]
struct ChangeDocument {
    #[serde(flatten)]
    factor: IntervalDocument,
    p: f64,
    q: f64,
}

#[derive(Debug, Serialize)]
struct MeasuresDocument {
    calls: u64,
    errors: u64,
    skipped: u64,
    timed: u64,
    mean_us: f64,
    p50_us: u64,
    p90_us: u64,
    p95_us: u64,
    p99_us: u64,
    max_us: u64,
    total_us: u64,
    rows_mean: Option<f64>,
}

#[derive(Debug, Serialize)]
struct ErrorDocument {
    /// SQLSTATE of the failures; `null` if no server reported one.
    sqlstate: Option<String>,
    message: String,
    base: u64,
    run: u64,
}

/// Converts a comparison and the violated conditions, with at most `queries_max` queries, or all if
/// it is `None`.
pub fn document(
    comparison: &Comparison,
    violations: &[Violation],
    queries_max: Option<usize>,
) -> ComparisonDocument {
    let queries = comparison.queries.iter().take(queries_max.unwrap_or(usize::MAX));
    ComparisonDocument {
        format: "howdah-comparison",
        version: DOCUMENT_VERSION,
        verdict: comparison.verdict.as_str(),
        summary: headline::verdict_line(comparison),
        headlines: headline::headlines(comparison),
        base: (&comparison.base).into(),
        run: (&comparison.run).into(),
        base_runs: comparison.base_runs.iter().map(Into::into).collect(),
        run_runs: comparison.run_runs.iter().map(Into::into).collect(),
        control: comparison.control.as_ref().map(Into::into),
        settings: (&comparison.settings).into(),
        drift: comparison.drift,
        machine: comparison.machine,
        undecided_share: comparison.undecided_share,
        caveats: comparison
            .caveats
            .iter()
            .map(|it| CaveatDocument::from_caveat(it, comparison))
            .collect(),
        fail_on: violations.iter().map(Into::into).collect(),
        queries_total: comparison.queries.len(),
        queries: queries.map(Into::into).collect(),
    }
}

impl From<&Side> for SideDocument {
    fn from(side: &Side) -> Self {
        let Side { info: run_info, calls, errors, skipped, total_us, unattributed } = side;
        Self {
            run_info: run_info.into(),
            calls: *calls,
            errors: *errors,
            skipped: *skipped,
            unattributed: *unattributed,
            total_us: *total_us,
        }
    }
}

impl From<&RunInfo> for RunInfoDocument {
    fn from(run_info: &RunInfo) -> Self {
        let RunInfo { name, capture, target, rate, server_version, complete, missing_workers } =
            run_info.clone();
        Self { name, capture, target, rate, server_version, complete, missing_workers }
    }
}

impl From<&Control> for ControlDocument {
    fn from(control: &Control) -> Self {
        Self { run_info: (&control.info).into(), noise: control.noise }
    }
}

impl From<&CompareSettings> for SettingsDocument {
    fn from(settings: &CompareSettings) -> Self {
        Self {
            change_min: settings.change_min.get(),
            undecided_share_max: settings.undecided_share_max,
            floor_us: settings.floor.as_micros(),
            floor_between_runs_us: settings.floor_between_runs.as_micros(),
            no_change_max: settings.no_change_max.get(),
            executions_min: settings.executions_min,
            confidence: settings.confidence,
            false_discoveries_max: settings.false_discoveries_max,
        }
    }
}

impl CaveatDocument {
    fn from_caveat(caveat: &Caveat, comparison: &Comparison) -> Self {
        let kind = match caveat {
            Caveat::DifferentCaptures => "different_captures",
            Caveat::DifferentRates => "different_rates",
            Caveat::Incomplete { .. } => "incomplete",
            Caveat::EverythingMoved => "everything_moved",
            Caveat::MachineChanged => "machine_changed",
            Caveat::RunsVary { .. } => "runs_vary",
            Caveat::TypesDeduced { .. } => "types_deduced",
            _ => "other",
        };
        Self { kind, text: headline::caveat_text(caveat, comparison) }
    }
}

impl From<&Violation> for ViolationDocument {
    fn from(violation: &Violation) -> Self {
        Self {
            condition: violation.condition.to_string(),
            metric: violation.condition.metric().as_str(),
            fingerprint: violation.fingerprint.to_string(),
            base: violation.base,
            run: violation.run,
        }
    }
}

impl From<&QueryComparison> for QueryDocument {
    fn from(query: &QueryComparison) -> Self {
        Self {
            fingerprint: query.fingerprint.to_string(),
            query: query.text.query.clone(),
            user: query.text.user.clone(),
            database: query.text.database.clone(),
            verdict: query.verdict.as_str(),
            part: query.verdict.part().map(ChangedPart::as_str),
            change: query.change.map(Into::into),
            mean_change: query.mean_change.map(Into::into),
            noise: query.noise,
            detectable: query.detectable,
            largest: query.largest,
            impact_us: query.impact_us,
            base: query.base.map(Into::into),
            run: query.run.map(Into::into),
            base_runs: query.base_runs.iter().map(|it| it.map(Into::into)).collect(),
            run_runs: query.run_runs.iter().map(|it| it.map(Into::into)).collect(),
            errors: query.errors.iter().map(Into::into).collect(),
            rows_differ: query.rows_differ(),
            because: query.plan_change.clone(),
            types_deduced: query.types_deduced,
        }
    }
}

impl From<Interval> for IntervalDocument {
    fn from(interval: Interval) -> Self {
        Self { ratio: interval.estimate, low: interval.low, high: interval.high }
    }
}

impl From<Change> for ChangeDocument {
    fn from(change: Change) -> Self {
        Self { factor: change.factor.into(), p: change.p, q: change.q }
    }
}

impl From<Measures> for MeasuresDocument {
    fn from(side: Measures) -> Self {
        let Measures { calls, errors, skipped, timed, mean_us, p50_us, p90_us, p95_us, .. } = side;
        let Measures { p99_us, max_us, total_us, rows_mean, .. } = side;
        Self {
            calls,
            errors,
            skipped,
            timed,
            mean_us,
            p50_us,
            p90_us,
            p95_us,
            p99_us,
            max_us,
            total_us,
            rows_mean,
        }
    }
}

impl From<&ErrorChange> for ErrorDocument {
    fn from(change: &ErrorChange) -> Self {
        Self {
            sqlstate: change.sqlstate.map(|code| code.to_string()),
            message: change.message.clone(),
            base: change.base,
            run: change.run,
        }
    }
}
