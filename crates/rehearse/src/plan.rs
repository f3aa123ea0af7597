//! [`Plan`]: the steps of a rehearsal, with time estimates. Planning does not contact any server.

use std::{fmt, time::Duration};

use howdah_replay::Rate;
use howdah_report::rehearsal::RehearsalSide;

/// The name of a run: `a1` is the first on the base, `b1` the first with the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunName {
    /// The side whose server is replayed against.
    pub side: RehearsalSide,
    /// Number of the run on its side, from 1.
    pub number: u32,
}

impl fmt::Display for RunName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = match self.side {
            RehearsalSide::Base => 'a',
            RehearsalSide::Change => 'b',
        };
        write!(f, "{letter}{}", self.number)
    }
}

/// A step of a plan, with its estimated duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanStep {
    /// The step to carry out.
    pub kind: RehearsalStep,
    /// The estimated duration; `None` if it cannot be known in advance.
    pub estimate: Option<Duration>,
}

/// A step of a rehearsal, with the run that it prepares, warms up or replays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RehearsalStep {
    /// Imports the logs into a capture.
    Import,
    /// Refuses servers that may be in production, and compares the servers.
    Check,
    /// Prepares the server of a run: if the options ask for it, resets the data, applies the
    /// migration, vacuums and loads the cache image. Always requests a checkpoint and waits for
    /// autovacuum.
    Prepare(RunName),
    /// Replays the start of the capture read-only, to warm the caches of a run's server.
    WarmUp(RunName),
    /// Replays the capture.
    Replay(RunName),
    /// Compares the runs and writes the reports.
    Compare,
}

impl RehearsalStep {
    /// Returns the run that the step prepares, warms up or replays; `None` for other steps.
    pub fn run(self) -> Option<RunName> {
        match self {
            Self::Prepare(run) | Self::WarmUp(run) | Self::Replay(run) => Some(run),
            _ => None,
        }
    }
}

impl fmt::Display for RehearsalStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Import => f.write_str("import the log"),
            Self::Check => f.write_str("check both servers"),
            Self::Prepare(run) => write!(f, "prepare {} for {run}", run.side),
            Self::WarmUp(run) => write!(f, "warm up {} for {run}", run.side),
            Self::Replay(run) => write!(f, "replay {run} on {}", run.side),
            Self::Compare => f.write_str("compare and report"),
        }
    }
}

/// The properties of a rehearsal that determine its plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlanInput {
    pub(crate) is_log: bool,
    pub(crate) runs: u32,
    pub(crate) rate: Rate,
    /// Captured time and number of events, if the capture already exists.
    pub(crate) capture: Option<CaptureLength>,
    /// Captured time replayed to warm up; zero for none.
    pub(crate) warm_up: Duration,
    /// Whether every run is warmed up, because a reset empties the caches. Otherwise only the first
    /// run of each side is.
    pub(crate) has_reset: bool,
}

/// The length of a capture, in time and in events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CaptureLength {
    pub(crate) time: Duration,
    pub(crate) events: u64,
}

/// The steps of a rehearsal, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The steps to carry out; the comparison is the last.
    pub steps: Vec<PlanStep>,
}

impl Plan {
    pub(crate) fn new(input: &PlanInput) -> Self {
        let mut steps = Vec::new();
        let mut add = |kind, estimate| steps.push(PlanStep { kind, estimate });
        if input.is_log {
            add(RehearsalStep::Import, None);
        }
        add(RehearsalStep::Check, Some(CHECK_ESTIMATE));
        for run in run_order(input.runs) {
            add(RehearsalStep::Prepare(run), Some(PREPARE_ESTIMATE));
            if !input.warm_up.is_zero() && (input.has_reset || run.number == 1) {
                add(
                    RehearsalStep::WarmUp(run),
                    input.capture.map(|capture| input.warm_up_time(capture)),
                );
            }
            add(
                RehearsalStep::Replay(run),
                input.capture.map(|capture| input.replay_time(capture)),
            );
        }
        let outcomes = input.capture.map(|it| it.events.saturating_mul(2 * u64::from(input.runs)));
        add(
            RehearsalStep::Compare,
            outcomes.map(|outcomes| Duration::from_secs(1 + outcomes / OUTCOMES_PER_SECOND)),
        );
        Self { steps }
    }

    /// Returns the sum of the estimates of the steps from position `start` on, and whether every
    /// step has one.
    pub fn time_from(&self, start: usize) -> (Duration, bool) {
        let rest = self.steps.get(start..).unwrap_or_default();
        let known = rest.iter().filter_map(|step| step.estimate).sum();
        (known, rest.iter().all(|step| step.estimate.is_some()))
    }
}

/// Writes one line per step with its estimate, then the sum.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, step) in (1..).zip(&self.steps) {
            let estimate = step.estimate.map_or_else(|| "?".to_owned(), time_text);
            writeln!(f, "{number:>3}  {:<28} {estimate:>9}", step.kind.to_string())?;
        }
        let (time, is_complete) = self.time_from(0);
        let prefix = if is_complete { "about" } else { "at least" };
        writeln!(f, "     {:<28} {:>9}", format!("in all, {prefix}"), time_text(time))
    }
}

/// Formats a duration: `45 s`, `12 min`, `3 h 20 min`.
pub fn time_text(time: Duration) -> String {
    let seconds = time.as_secs_f64().ceil() as u64;
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
    }
}

/// Returns the order of runs: A B, B A, A B, … In each group of four, the runs of both sides have
/// the same mean position, so a machine that slowly gets faster or slower affects both sides
/// equally.
pub(crate) fn run_order(runs: u32) -> impl Iterator<Item = RunName> {
    (1..=runs).flat_map(|number| {
        let mut pair = RehearsalSide::ALL;
        if number % 2 == 0 {
            pair.reverse();
        }
        pair.map(|side| RunName { side, number })
    })
}

impl PlanInput {
    fn replay_time(&self, capture: CaptureLength) -> Duration {
        match self.rate {
            Rate::Times(rate) => Duration::try_from_secs_f64(capture.time.as_secs_f64() / rate)
                .unwrap_or(Duration::MAX / 1_000_000),
            Rate::Max => Duration::from_secs(1 + capture.events / MAX_RATE_EVENTS_PER_SECOND),
        }
    }

    fn warm_up_time(&self, capture: CaptureLength) -> Duration {
        let share = if capture.time.is_zero() {
            1.0
        } else {
            (self.warm_up.as_secs_f64() / capture.time.as_secs_f64()).min(1.0)
        };
        self.replay_time(capture).mul_f64(share)
    }
}

/// Assumed duration of the checks; the real one depends on the servers.
const CHECK_ESTIMATE: Duration = Duration::from_secs(2);
const PREPARE_ESTIMATE: Duration = Duration::from_secs(15);

/// Number of outcomes that can be read and summarised per second.
const OUTCOMES_PER_SECOND: u64 = 300_000;

/// Assumed events per second at the rate `max`, for a server of modest size.
const MAX_RATE_EVENTS_PER_SECOND: u64 = 2_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn input(runs: u32) -> PlanInput {
        PlanInput {
            is_log: false,
            runs,
            rate: Rate::Times(2.0),
            capture: Some(CaptureLength { time: Duration::from_secs(120), events: 1_000 }),
            warm_up: Duration::from_secs(30),
            has_reset: false,
        }
    }

    fn names(runs: u32) -> String {
        run_order(runs).map(|run| run.to_string()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn sides_alternate_as_abba() {
        assert_eq!(names(1), "a1 b1");
        assert_eq!(names(3), "a1 b1 b2 a2 a3 b3");
        assert_eq!(names(4), "a1 b1 b2 a2 a3 b3 b4 a4");
        // More runs extend the order, so a finished rehearsal can be continued with more.
        assert!(names(5).starts_with(&names(4)));
    }

    #[test]
    fn steps_have_estimates_from_capture_and_rate() {
        let plan = Plan::new(&input(1));
        let estimate = |kind| {
            let step = plan.steps.iter().find(|step| step.kind == kind).unwrap();
            step.estimate.unwrap().as_secs()
        };
        let a1 = RunName { side: RehearsalSide::Base, number: 1 };
        assert_eq!(estimate(RehearsalStep::Replay(a1)), 60);
        assert_eq!(estimate(RehearsalStep::WarmUp(a1)), 15);
        let (time, is_complete) = plan.time_from(0);
        assert!(is_complete && time > Duration::from_secs(150), "{time:?}");
        assert_eq!(plan.time_from(plan.steps.len()), (Duration::ZERO, true));
    }

    #[test]
    fn each_run_warms_up_after_a_reset() {
        let warm_ups = |input: &PlanInput| {
            let steps = Plan::new(input).steps;
            steps.iter().filter(|step| matches!(step.kind, RehearsalStep::WarmUp(_))).count()
        };
        assert_eq!(warm_ups(&input(3)), 2);
        assert_eq!(warm_ups(&PlanInput { has_reset: true, ..input(3) }), 6);
        assert_eq!(warm_ups(&PlanInput { warm_up: Duration::ZERO, ..input(3) }), 0);
    }

    #[test]
    fn log_of_unknown_length_gives_lower_bound() {
        let plan = Plan::new(&PlanInput { is_log: true, capture: None, ..input(2) });
        assert_eq!(plan.steps[0], PlanStep { kind: RehearsalStep::Import, estimate: None });
        let text = plan.to_string();
        assert!(
            text.contains("replay b2 on change") && text.contains("in all, at least"),
            "{text}"
        );
    }

    #[test]
    fn times_are_rounded_up() {
        let text = |seconds| time_text(Duration::from_secs_f64(seconds));
        assert_eq!([text(0.2), text(119.5), text(121.0)], ["1 s", "2 min", "3 min"]);
        assert_eq!(text(12_000.0), "3 h 20 min");
    }
}
