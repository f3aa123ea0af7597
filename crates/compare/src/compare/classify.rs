//! Decides the verdict on one query from its statistics.

use crate::{
    Change, ChangedPart, CompareSettings, Interval, QueryVerdict, samples::Query,
    statistics::bootstrap::ratio_interval,
};

/// The statistics of one query on which its verdict is based.
pub(super) struct Evidence {
    /// The shift, if there were enough executions.
    pub(super) change: Option<Change>,
    /// The largest, in logarithms, of the query's noise in the control run, the shift of the
    /// calibration statement and, if that was not measured, a shift that nearly all queries share;
    /// `None` if none of these is known.
    pub(super) noise: Option<f64>,
    /// Whether a control run was compared too.
    pub(super) has_control: bool,
}

/// Minimum executions on each side for a verdict on the tail. With fewer, the tail would consist of
/// only a handful of executions.
pub(super) const TAIL_EXECUTIONS_MIN: u64 = 200;

/// Minimum factor of the mean for a verdict on the tail. A tail is noisier than the median.
pub(super) const TAIL_CHANGE_MIN: f64 = 2.0;

/// Minimum change of the mean for a verdict on the tail, in multiples of [`CompareSettings::floor`]
/// or [`CompareSettings::floor_between_runs`].
pub(super) const TAIL_FLOORS_MIN: f64 = 10.0;

/// Confidence level of the interval of the means' ratio.
pub(super) const TAIL_CONFIDENCE: f64 = 0.99;

/// Factor applied to the floor when there is a control run: the control measures the noise that the
/// floor otherwise guards against.
const FLOOR_SHARE_WITH_CONTROL: f64 = 0.2;

/// Classifies a query that both runs executed; also returns the interval of the means' ratio if it
/// was computed.
///
/// Typical executions have changed if the change is certain (by the adjusted p-value) and at least
/// [`CompareSettings::change_min`] and [`CompareSettings::floor`]. If it is less than twice the
/// noise, the verdict is "undecided". Without such a change, a minority of the executions may still
/// have changed the mean. The tail has changed if the means differ enough ([`TAIL_CHANGE_MIN`],
/// [`TAIL_FLOORS_MIN`]) and the whole confidence interval of their ratio is beyond both
/// [`CompareSettings::change_min`] and twice the noise.
pub(super) fn classify(
    base: &Query,
    run: &Query,
    evidence: &Evidence,
    settings: &CompareSettings,
    seed: u64,
) -> (QueryVerdict, Option<Interval>) {
    let Some(change) = evidence.change else { return (QueryVerdict::TooFew, None) };
    let floor_us = settings.floor.as_secs_f64()
        * 1e6
        * if evidence.has_control { FLOOR_SHARE_WITH_CONTROL } else { 1.0 };
    let minimum = settings.change_min.get().ln();
    let large = minimum.max(2.0 * evidence.noise.unwrap_or(0.0));
    let factor = change.factor.estimate;
    let [p50_us] = base.percentiles_us([0.5]);
    let moved_us = (factor - 1.0).abs() * p50_us as f64;
    let certain = change.q <= settings.false_discoveries_max;
    if certain && factor.ln().abs() >= minimum && moved_us >= floor_us {
        let verdict = if factor.ln().abs() >= large {
            direction(factor, ChangedPart::Typical)
        } else {
            QueryVerdict::Undecided
        };
        return (verdict, None);
    }
    match tail_change(base, run, floor_us, seed) {
        Some(mean) if is_beyond(mean, large) => {
            (direction(mean.estimate, ChangedPart::Tail), Some(mean))
        }
        mean => (QueryVerdict::NoChange, mean),
    }
}

pub(super) fn direction(factor: f64, part: ChangedPart) -> QueryVerdict {
    if factor > 1.0 { QueryVerdict::Slower(part) } else { QueryVerdict::Faster(part) }
}

/// Whether the whole interval is at least `large` (in logarithms) away from 1.
fn is_beyond(interval: Interval, large: f64) -> bool {
    interval.low.ln() >= large || interval.high.ln() <= -large
}

/// Returns the change of the mean with its confidence interval; `None` if there are too few
/// executions, or if the change is too small to examine.
fn tail_change(base: &Query, run: &Query, floor_us: f64, seed: u64) -> Option<Interval> {
    let estimate = run.mean_us() / base.mean_us().max(f64::MIN_POSITIVE);
    let moved_us = (run.mean_us() - base.mean_us()).abs();
    let is_relevant = base.timed().min(run.timed()) >= TAIL_EXECUTIONS_MIN
        && estimate.ln().abs() >= TAIL_CHANGE_MIN.ln()
        && moved_us >= TAIL_FLOORS_MIN * floor_us;
    is_relevant.then(|| {
        let pair = (&*base.durations_us(), &*run.durations_us());
        let (low, high) = ratio_interval(pair, mean, TAIL_CONFIDENCE, seed);
        Interval { estimate, low, high }
    })
}

fn mean(values: &mut [f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}
