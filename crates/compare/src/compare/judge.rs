//! The verdict on one query.

use crate::{
    Change, Interval, Part, Settings, Verdict, samples::Query,
    statistics::bootstrap::ratio_interval,
};

/// What the statistics of all queries together say about one.
pub(super) struct Evidence {
    /// The shift, if there were enough executions.
    pub(super) change: Option<Change>,
    /// What a control run shows as noise, in logarithms.
    pub(super) noise: Option<f64>,
}

/// Executions in both runs below which nothing is said about a tail: it would be a handful of them.
const TAIL_EXECUTIONS_MIN: u64 = 200;

/// By what the mean must change for a verdict on the tail. A tail is noisier than the middle.
const TAIL_CHANGE_MIN: f64 = 2.0;

/// A tail's change is worth a verdict from this many times [`Settings::floor`] per execution on.
const TAIL_FLOORS_MIN: f64 = 10.0;

/// Level of the interval of a mean's ratio.
const TAIL_CONFIDENCE: f64 = 0.99;

/// A control run lowers the floor, since it measures what the floor guards against.
const FLOOR_SHARE_WITH_CONTROL: f64 = 0.2;

/// Judges a query that both runs executed; gives the interval of the mean's ratio where it was
/// looked at.
///
/// A change of typical executions has to be all of: certain (the adjusted p-value), large (the
/// factor beyond [`Settings::change_min`] and twice the noise) and worth mentioning (beyond
/// [`Settings::floor`]). Otherwise the mean may have changed because some executions did: then
/// resampled blocks of time must agree that it did by at least [`Settings::change_min`].
pub(super) fn judge(
    base: &Query,
    run: &Query,
    evidence: &Evidence,
    settings: &Settings,
    seed: u64,
) -> (Verdict, Option<Interval>) {
    let Some(change) = evidence.change else { return (Verdict::TooFew, None) };
    let floor_us = settings.floor.as_secs_f64()
        * 1e6
        * if evidence.noise.is_some() { FLOOR_SHARE_WITH_CONTROL } else { 1.0 };
    let large = settings.change_min.get().ln().max(2.0 * evidence.noise.unwrap_or(0.0));
    let factor = change.factor.estimate;
    let [p50_us] = base.percentiles_us([0.5]);
    let moved_us = (factor - 1.0).abs() * p50_us as f64;
    let certain = change.q <= settings.false_discoveries_max;
    if certain && factor.ln().abs() >= large && moved_us >= floor_us {
        return (direction(factor, Part::Typical), None);
    }
    match tail(base, run, floor_us, seed) {
        Some(mean) if beyond(mean, large) => (direction(mean.estimate, Part::Tail), Some(mean)),
        mean => (Verdict::NoChange, mean),
    }
}

fn direction(factor: f64, part: Part) -> Verdict {
    if factor > 1.0 { Verdict::Slower(part) } else { Verdict::Faster(part) }
}

/// Whether the whole interval lies at least `large` (in logarithms) from 1.
fn beyond(interval: Interval, large: f64) -> bool {
    interval.low.ln() >= large || interval.high.ln() <= -large
}

/// The change of the mean, if it is large enough to be looked at.
fn tail(base: &Query, run: &Query, floor_us: f64, seed: u64) -> Option<Interval> {
    let estimate = run.mean_us() / base.mean_us().max(f64::MIN_POSITIVE);
    let moved_us = (run.mean_us() - base.mean_us()).abs();
    let worth_a_look = base.timed().min(run.timed()) >= TAIL_EXECUTIONS_MIN
        && estimate.ln().abs() >= TAIL_CHANGE_MIN.ln()
        && moved_us >= TAIL_FLOORS_MIN * floor_us;
    worth_a_look.then(|| {
        let pair = (&*base.durations_us(), &*run.durations_us());
        let (low, high) = ratio_interval(pair, mean, TAIL_CONFIDENCE, seed);
        Interval { estimate, low, high }
    })
}

fn mean(values: &mut [f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}
