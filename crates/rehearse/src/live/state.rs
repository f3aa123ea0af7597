//! [`LiveState`]: the progress of a rehearsal, as reported to its observer.

use std::time::{Duration, Instant};

use howdah_replay::ReplayProgress;
use howdah_report::rehearsal::{
    RehearsalReport, RehearsalSide, RehearsalVerdict, RunSummary,
    html::{LivePhase, LivePoint, LiveReplay, LiveRun, LiveSnapshot, LiveStep, LiveStepState},
};

use crate::{
    plan::{Plan, RehearsalStep},
    rehearsal::StepProgress,
};

/// Approximate maximum number of points of a run that lasts as long as estimated. A longer run has
/// up to about twice as many.
const POINTS_MAX: u64 = 1_000;

/// Maximum number of points in one response.
const POINTS_PER_RESPONSE: usize = 20_000;

/// Maximum number of notes; later ones are discarded.
const NOTES_MAX: usize = 1_000;

/// Minimum time between updates that change only the numbers of the current replay.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// The progress of a rehearsal.
#[derive(Debug)]
pub(super) struct LiveState {
    pub(super) revision: u64,
    notes: Vec<String>,
    started: Instant,
    ended: Option<Instant>,
    phase: LivePhase,
    headline: String,
    plan: Plan,
    /// Durations of finished steps.
    durations: Vec<Duration>,
    /// Position and start of the current step.
    step: Option<(usize, Instant)>,
    /// Number of events in the capture; 0 if not known.
    events: u64,
    replay: Option<RunProgress>,
    runs: Vec<LiveRun>,
    bucket: Duration,
    run_time: Duration,
    points: Vec<LivePoint>,
    has_report: bool,
}

/// A replay in progress.
#[derive(Debug)]
struct RunProgress {
    /// Position of the run in the list; `None` for a warm-up, which has no charts.
    run: Option<usize>,
    /// Time of the first report, from which elapsed time is counted; `None` before it.
    first: Option<Instant>,
    /// The newest report.
    newest: Option<(Instant, ReplayProgress)>,
    /// Number of the current bucket, from 0.
    bucket: u64,
    bucket_start: Option<(Instant, ReplayProgress)>,
    /// Time of the last report after which open pages were updated.
    published: Option<Instant>,
}

impl LiveState {
    pub(super) fn new() -> Self {
        Self {
            revision: 0,
            notes: Vec::new(),
            started: Instant::now(),
            ended: None,
            phase: LivePhase::Running,
            headline: "preparing".to_owned(),
            plan: Plan { steps: Vec::new() },
            durations: Vec::new(),
            step: None,
            events: 0,
            replay: None,
            runs: Vec::new(),
            bucket: Duration::from_secs(1),
            run_time: Duration::ZERO,
            points: Vec::new(),
            has_report: false,
        }
    }

    /// Returns the number of points.
    pub(super) fn points(&self) -> usize {
        self.points.len()
    }

    pub(super) fn has_report(&self) -> bool {
        self.has_report
    }

    pub(super) fn add_note(&mut self, text: &str) {
        if self.notes.len() < NOTES_MAX {
            self.notes.push(text.to_owned());
        }
    }

    /// Sets the steps to carry out. Called before the first replay.
    pub(super) fn set_plan(&mut self, plan: Plan) {
        let replays = plan.steps.iter().filter_map(|step| match step.kind {
            RehearsalStep::Replay(run) => Some(waiting_row(run.to_string(), run.side)),
            _ => None,
        });
        self.runs = replays.collect();
        let longest = plan.steps.iter().filter_map(|step| match step.kind {
            RehearsalStep::Replay(_) => step.estimate,
            _ => None,
        });
        self.run_time = longest.max().unwrap_or_default();
        let seconds = self.run_time.as_secs().div_ceil(POINTS_MAX);
        self.bucket = Duration::from_secs(seconds.max(1));
        self.plan = plan;
        self.durations.clear();
        self.step = None;
    }

    pub(super) fn start_step(&mut self, progress: &StepProgress) {
        let now = Instant::now();
        let position = progress.number.saturating_sub(1);
        if let Some((_, started)) = self.step.take() {
            self.durations.push(now.duration_since(started));
        }
        self.step = Some((position, now));
        self.events = progress.events;
        self.headline = format!("{} ({} of {})", progress.step, progress.number, progress.steps);
        let run = match progress.step {
            RehearsalStep::Replay(run) => {
                let name = run.to_string();
                let run = self.runs.iter().position(|row| row.name == name);
                if let Some(row) = run.and_then(|run| self.runs.get_mut(run)) {
                    row.state = LiveStepState::Active;
                }
                run
            }
            _ => None,
        };
        let is_replay =
            matches!(progress.step, RehearsalStep::Replay(_) | RehearsalStep::WarmUp(_));
        self.replay = is_replay.then(|| RunProgress::new(run));
    }

    /// Records a report of the current replay. Returns whether open pages should be updated.
    pub(super) fn record(&mut self, progress: ReplayProgress, now: Instant) -> bool {
        let bucket_time = self.bucket;
        let Some(replay) = &mut self.replay else { return false };
        let first = *replay.first.get_or_insert(now);
        replay.newest = Some((now, progress));
        let start = *replay.bucket_start.get_or_insert((now, progress));
        let elapsed = now.duration_since(first);
        let bucket = (elapsed.as_secs() / bucket_time.as_secs()).min(2 * POINTS_MAX);
        let is_new_bucket = bucket > replay.bucket;
        if is_new_bucket {
            self.points.extend(replay.point(start, (now, progress)));
            replay.bucket = bucket;
            replay.bucket_start = Some((now, progress));
        }
        let is_due = replay
            .published
            .is_none_or(|published| now.duration_since(published) >= PROGRESS_INTERVAL);
        if is_due || is_new_bucket {
            replay.published = Some(now);
            if let Some(row) = replay.run.and_then(|run| self.runs.get_mut(run)) {
                row.elapsed_s = Some(elapsed.as_secs_f64());
                row.executions = Some(progress.latencies.count());
                row.failed = Some(progress.failed);
                set_percentiles(row, &progress);
            }
        }
        is_due || is_new_bucket
    }

    /// Records a finished run: the one that was replayed, or one that the journal contained at the
    /// start.
    pub(super) fn finish_run(&mut self, run: &RunSummary) {
        let position = self.runs.iter().position(|row| row.name == run.name).unwrap_or_else(|| {
            // Runs of earlier calls come first.
            let waiting = |row: &LiveRun| row.state == LiveStepState::Waiting;
            let position = self.runs.iter().position(waiting).unwrap_or(self.runs.len());
            self.runs.insert(position, waiting_row(run.name.clone(), run.side));
            position
        });
        if let Some(replay) = self.replay.take() {
            self.points.extend(replay.last_point(self.bucket));
            if let Some((_, progress)) = &replay.newest {
                set_percentiles(&mut self.runs[position], progress);
            }
        }
        let row = &mut self.runs[position];
        row.state = LiveStepState::Done;
        row.elapsed_s = Some(run.finished.saturating_since(run.started).as_secs_f64());
        row.executions = Some(run.executions);
        row.failed = Some(run.failed);
        row.skipped = Some(run.skipped);
        row.schedule_error_p99_us = run.schedule_error_p99_us;
    }

    /// Records the result, or the error that stopped the rehearsal.
    pub(super) fn finish(&mut self, result: Result<&RehearsalReport, &str>) {
        let now = Instant::now();
        self.ended = Some(now);
        self.replay = None;
        match result {
            Ok(report) => {
                let verdict = report.verdict.as_str();
                let summary = report.summary();
                let prefix = format!("{verdict}: ");
                self.headline = summary.strip_prefix(&prefix).unwrap_or(&summary).to_owned();
                self.phase = match report.verdict {
                    RehearsalVerdict::Passed => LivePhase::Passed,
                    RehearsalVerdict::Failed => LivePhase::Failed,
                    RehearsalVerdict::NotComparable => LivePhase::NotComparable,
                };
                self.has_report = true;
                if let Some((_, started)) = self.step.take() {
                    self.durations.push(now.duration_since(started));
                }
            }
            Err(error) => {
                self.headline = error.to_owned();
                self.phase = LivePhase::Stopped;
                for row in &mut self.runs {
                    if row.state == LiveStepState::Active {
                        row.state = LiveStepState::Waiting;
                    }
                }
            }
        }
    }

    /// Returns the state at the time `now`, or at the end of the rehearsal if that has passed, with
    /// at most [`POINTS_PER_RESPONSE`] points, from index `from` on.
    pub(super) fn snapshot(&self, from: usize, now: Instant) -> LiveSnapshot {
        let now = self.ended.unwrap_or(now);
        let from = from.min(self.points.len());
        let end = self.points.len().min(from.saturating_add(POINTS_PER_RESPONSE));
        let (left, is_left_known) = self.time_left(now);
        let replay = self.replay.as_ref().and_then(|replay| Some((replay, replay.newest?.1)));
        LiveSnapshot {
            revision: self.revision,
            phase: self.phase,
            headline: self.headline.clone(),
            steps: self.steps(now),
            elapsed_s: now.duration_since(self.started).as_secs_f64(),
            left_s: left.as_secs_f64(),
            is_left_known,
            replay: replay.map(|(replay, progress)| LiveReplay {
                is_warm_up: replay.run.is_none(),
                ended: progress.ended,
                // A warm-up replays only the start of the capture.
                events: if replay.run.is_some() { self.events } else { 0 },
                failed: progress.failed,
                connections: progress.connections,
                lag_us: progress.lag.as_secs_f64() * 1e6,
            }),
            runs: self.runs.clone(),
            notes: self.notes.clone(),
            bucket_s: self.bucket.as_secs_f64(),
            run_s: self.run_time.as_secs_f64(),
            points: self.points[from..end].to_vec(),
            points_end: end,
            has_report: self.has_report,
        }
    }

    /// Returns the estimated time left, and whether all estimates are known.
    fn time_left(&self, now: Instant) -> (Duration, bool) {
        if self.phase != LivePhase::Running {
            return (Duration::ZERO, true);
        }
        let Some((position, started)) = self.step else { return self.plan.time_from(0) };
        let (later, _) = self.plan.time_from(position + 1);
        let (_, is_known) = self.plan.time_from(position);
        let estimate = self.plan.steps.get(position).and_then(|step| step.estimate);
        let current = estimate.unwrap_or_default().saturating_sub(now.duration_since(started));
        (later + current, is_known)
    }

    fn steps(&self, now: Instant) -> Vec<LiveStep> {
        let current = self.step.map(|(position, _)| position);
        let steps = self.plan.steps.iter().enumerate().map(|(position, step)| {
            let (state, elapsed) = match (self.durations.get(position), self.step) {
                (Some(duration), _) => (LiveStepState::Done, Some(*duration)),
                (None, Some((_, started))) if current == Some(position) => {
                    (LiveStepState::Active, Some(now.duration_since(started)))
                }
                _ => (LiveStepState::Waiting, None),
            };
            LiveStep {
                text: step.kind.to_string(),
                state,
                estimate_s: step.estimate.map(|estimate| estimate.as_secs_f64()),
                elapsed_s: elapsed.map(|elapsed| elapsed.as_secs_f64()),
            }
        });
        steps.collect()
    }
}

impl RunProgress {
    fn new(run: Option<usize>) -> Self {
        Self { run, first: None, newest: None, bucket: 0, bucket_start: None, published: None }
    }

    /// Returns the figures between two reports; `None` for a warm-up.
    fn point(
        &self,
        (from, before): (Instant, ReplayProgress),
        (to, after): (Instant, ReplayProgress),
    ) -> Option<LivePoint> {
        let run = self.run?;
        let seconds = to.duration_since(from).as_secs_f64().max(1e-3);
        let latencies = after.latencies.since(&before.latencies);
        let values = [
            Some(latencies.count() as f64 / seconds),
            Some(after.failed.saturating_sub(before.failed) as f64 / seconds),
            latencies.quantile_us(0.5),
            latencies.quantile_us(0.95),
            latencies.quantile_us(0.99),
            Some(after.lag.as_secs_f64() * 1e6),
            Some(after.connections as f64),
        ];
        Some(LivePoint(run, self.bucket, values.map(|value| value.map(rounded))))
    }

    /// Returns the point of the last, incomplete bucket; `None` for a warm-up, before the first
    /// report, or if less than half of the bucket has passed and it is not the first of the run.
    fn last_point(&self, bucket_time: Duration) -> Option<LivePoint> {
        let (start, newest) = (self.bucket_start?, self.newest?);
        let length = newest.0.duration_since(start.0);
        (length >= bucket_time / 2 || self.bucket == 0).then(|| self.point(start, newest)).flatten()
    }
}

/// Rounds to four significant digits, which is more than a chart shows.
fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return 0.0;
    }
    let scale = 10_f64.powi(3 - value.abs().log10().floor() as i32);
    (value * scale).round() / scale
}

fn waiting_row(name: String, side: RehearsalSide) -> LiveRun {
    LiveRun {
        name,
        side,
        state: LiveStepState::Waiting,
        elapsed_s: None,
        executions: None,
        failed: None,
        skipped: None,
        p50_us: None,
        p95_us: None,
        p99_us: None,
        schedule_error_p99_us: None,
    }
}

fn set_percentiles(row: &mut LiveRun, progress: &ReplayProgress) {
    row.p50_us = progress.latencies.quantile_us(0.5).map(rounded);
    row.p95_us = progress.latencies.quantile_us(0.95).map(rounded);
    row.p99_us = progress.latencies.quantile_us(0.99).map(rounded);
}

#[cfg(test)]
mod tests {
    use howdah_replay::ProgressReader;
    use howdah_stats::Registry;
    use howdah_traffic::Timestamp;

    use super::*;
    use crate::plan::{PlanStep, RunName};

    fn run(side: RehearsalSide, number: u32) -> RunName {
        RunName { side, number }
    }

    /// A plan of a check and of one replay on each side.
    fn plan(run_s: u64) -> Plan {
        let step = |kind, seconds| PlanStep { kind, estimate: Some(Duration::from_secs(seconds)) };
        let replay = |side| step(RehearsalStep::Replay(run(side, 2)), run_s);
        let check = step(RehearsalStep::Check, 2);
        Plan { steps: vec![check, replay(RehearsalSide::Base), replay(RehearsalSide::Change)] }
    }

    /// A state whose first replay has started.
    fn replaying(run_s: u64) -> LiveState {
        let mut state = LiveState::new();
        let plan = plan(run_s);
        state.set_plan(plan.clone());
        for number in [1, 2] {
            state.start_step(&StepProgress {
                step: plan.steps[number - 1].kind,
                number,
                steps: 3,
                time_left: Duration::ZERO,
                events: 600,
            });
        }
        state
    }

    /// A report after some executions of 300 µs.
    fn progress(executions: u64) -> ReplayProgress {
        let mut progress = ProgressReader::new(&Registry::new()).read();
        (0..executions).for_each(|_| progress.latencies.record_us(300));
        progress.ended = executions;
        progress.failed = executions / 10;
        progress
    }

    fn summary(name: &str, side: RehearsalSide) -> RunSummary {
        RunSummary {
            name: name.to_owned(),
            side,
            started: Timestamp::from_micros(0),
            finished: Timestamp::from_micros(2_500_000),
            executions: 150,
            failed: 15,
            skipped: 1,
            schedule_error_p99_us: Some(20),
            machine: None,
        }
    }

    #[test]
    fn points_have_rates_and_percentiles() {
        let mut state = replaying(10);
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        assert!(state.record(progress(0), start), "the first report is shown");
        assert!(!state.record(progress(40), at(500)), "the next follows a second later");
        assert!(state.record(progress(100), at(1_000)));
        assert!(state.record(progress(150), at(2_000)));
        let snapshot = state.snapshot(0, at(2_100));
        assert_eq!((snapshot.points.len(), snapshot.points_end), (2, 2));
        let [LivePoint(_, 0, first), LivePoint(_, 1, second)] = snapshot.points[..] else {
            panic!("{:?}", snapshot.points)
        };
        assert_eq!((first[0], second[0], second[1]), (Some(100.0), Some(50.0), Some(5.0)));
        assert!(second[2].is_some_and(|p50| (250.0..400.0).contains(&p50)), "{second:?}");
        assert_eq!(snapshot.replay.map(|replay| replay.ended), Some(150));
        assert_eq!(snapshot.runs[0].executions, Some(150));
        // Only new points are sent.
        assert_eq!(state.snapshot(1, at(2_100)).points.len(), 1);
        assert_eq!(state.snapshot(usize::MAX, at(2_100)).points.len(), 0);
    }

    #[test]
    fn finished_run_has_figures_of_its_summary() {
        let mut state = replaying(10);
        let start = Instant::now();
        state.record(progress(0), start);
        state.record(progress(150), start + Duration::from_millis(900));
        state.finish_run(&summary("a2", RehearsalSide::Base));
        let snapshot = state.snapshot(0, start);
        assert_eq!(snapshot.points.len(), 1, "a short run has one point");
        let row = &snapshot.runs[0];
        assert_eq!(
            (row.state, row.skipped, row.elapsed_s),
            (LiveStepState::Done, Some(1), Some(2.5))
        );
        assert!(row.p99_us.is_some() && snapshot.replay.is_none());
        assert!(!state.record(progress(200), start), "a late report changes nothing");
    }

    #[test]
    fn runs_of_an_earlier_call_come_first() {
        let mut state = LiveState::new();
        state.set_plan(plan(10));
        state.finish_run(&summary("a1", RehearsalSide::Base));
        state.finish_run(&summary("b1", RehearsalSide::Change));
        let snapshot = state.snapshot(0, Instant::now());
        let names: Vec<_> = snapshot.runs.iter().map(|run| run.name.as_str()).collect();
        assert_eq!(names, ["a1", "b1", "a2", "b2"]);
        assert_eq!(snapshot.runs[1].state, LiveStepState::Done);
        assert_eq!(snapshot.runs[1].p50_us, None, "its latencies are not known");
    }

    #[test]
    fn time_left_counts_down_and_long_runs_have_longer_buckets() {
        let state = replaying(7_200);
        let now = Instant::now();
        let left = |seconds| state.snapshot(0, now + Duration::from_secs(seconds)).left_s;
        assert!((left(0) - 14_400.0).abs() < 60.0 && (left(200) - 14_200.0).abs() < 60.0);
        assert!((left(9_000) - 7_200.0).abs() < f64::EPSILON, "{}", left(9_000));
        let snapshot = state.snapshot(0, now);
        assert!((snapshot.bucket_s - 8.0).abs() < f64::EPSILON);
        let states: Vec<_> = snapshot.steps.iter().map(|step| step.state).collect();
        assert_eq!(states, [LiveStepState::Done, LiveStepState::Active, LiveStepState::Waiting]);
    }

    #[test]
    fn error_stops_the_clock() {
        let mut state = replaying(10);
        state.finish(Err("interrupted"));
        let snapshot = state.snapshot(0, Instant::now() + Duration::from_secs(100));
        assert_eq!(
            (snapshot.phase, snapshot.headline.as_str()),
            (LivePhase::Stopped, "interrupted")
        );
        assert!(snapshot.elapsed_s < 50.0 && !snapshot.has_report);
    }
}
