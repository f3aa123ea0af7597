//! Counts the outcomes of events and writes them to the run.
//!
//! A separate thread does this: if a worker computed fingerprints and wrote files, its next
//! statement would be late.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::mpsc::Receiver,
    time::{Duration, Instant},
};

use hashbrown::HashMap;
use howdah_dataset::{
    Disposition, ReplayOutcome, ResultCheck, RunWriter, StatementInfo, WriteError,
};
use howdah_sql::{Fingerprint, Fingerprinter};
use howdah_stats::{Counter, Percentiles};
use howdah_traffic::{Action, CapturedOutcome, Event, Kind, Timestamp};

use crate::{
    activity::SessionActivity,
    link::ReplayFailure,
    metrics::Metrics,
    pace::{Schedule, control::PaceControl},
    player::{EventEnd, FinishedEvent, SkipCause},
    worker::FreeBatches,
};

/// Maximum number of statements that a run describes. A workload with more contains values that
/// normalization cannot detect; the statements beyond this limit are not described.
const STATEMENTS_MAX: usize = 100_000;

/// Maximum number of statements with deduced types that a report lists.
pub const TYPED_STATEMENTS_MAX: usize = 10_000;

/// The totals of a replay: counts and latencies of its events.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ReplayTotals {
    /// Events by kind and outcome.
    pub events: BTreeMap<Kind, EndCounts>,
    /// Failed executions and logins by SQLSTATE; the empty key is for failures without a code.
    pub errors: BTreeMap<String, FailureSummary>,
    /// Events that completed without an error, but failed when captured.
    pub failed_only_when_captured: u64,
    /// Events that were not sent, or were given up when the replay was interrupted, by reason.
    pub skipped: BTreeMap<String, u64>,
    /// Events that were not sent because of the policy for late sessions or a limit on memory, by
    /// policy or limit.
    pub dropped: BTreeMap<String, u64>,
    /// Time from sending an execution, or from the end of the previous one in its pipeline, to the
    /// end of its reply.
    pub latency: Percentiles,
    /// Delays with which executions were sent although their session was free; empty at the highest
    /// speed.
    pub schedule_error: Percentiles,
    /// Times for which executions were due while their session's previous statement or login was
    /// still in progress; empty at the highest speed.
    pub dependency_lag: Percentiles,
    /// Delays with which executions arrived from their source, such as a live log; empty at the
    /// highest speed.
    pub input_late: Percentiles,
    /// Times for which executions were held back until the transactions had committed that they
    /// followed in the capture; only of those that were.
    pub order_wait: Percentiles,
    /// Captured time of the first and the last event that ended, not counting events skipped
    /// because the replay was interrupted.
    pub played: Option<(Timestamp, Timestamp)>,
    /// Executions sent with parameter types deduced from values, because the statement needs types
    /// and the capture has none.
    pub types_deduced: u64,
    /// Fingerprints of the statements whose parameter types were deduced, up to
    /// [`TYPED_STATEMENTS_MAX`].
    pub typed_statements: BTreeSet<Fingerprint>,
    /// Comparison of the numbers of rows with those captured.
    pub row_counts: ComparedCounts,
    /// Comparison of the results with those captured.
    pub results: ComparedCounts,
    /// Sessions and running statements over time.
    pub activity: SessionActivity,
    /// Rows returned or changed, summed over all executions.
    pub rows: u64,
    /// Times since the start at which the first and the last execution were sent.
    pub sends: Option<(Duration, Duration)>,
}

/// Failures with one SQLSTATE.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailureSummary {
    /// Number of failures.
    pub count: u64,
    /// Failures that also occurred when captured, with the same SQLSTATE if the capture has one.
    pub captured_too: u64,
    /// The message of one failure, preferably of one that did not occur when captured.
    pub sample: String,
}

/// The numbers of executions of which a captured figure was compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ComparedCounts {
    /// Executions that were compared.
    pub compared: u64,
    /// Those that differed.
    pub different: u64,
}

impl ComparedCounts {
    fn add(&mut self, is_same: bool) {
        self.compared += 1;
        self.different += u64::from(!is_same);
    }
}

/// Numbers of events by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndCounts {
    /// Events that completed without an error.
    pub done: u64,
    /// Events that failed, for example on the server or because the connection was lost.
    pub failed: u64,
    /// Events that were not sent, or were given up when the replay was interrupted.
    pub skipped: u64,
    /// Events that were not sent because of the policy for late sessions or a limit on memory.
    pub dropped: u64,
}

impl EndCounts {
    /// Returns the number of events, whatever their outcome.
    pub fn total(self) -> u64 {
        self.done + self.failed + self.skipped + self.dropped
    }
}

impl ReplayTotals {
    /// Returns the counts over all events.
    pub fn total(&self) -> EndCounts {
        self.sum(|_| true)
    }

    /// Returns the counts over executions, which a client would call statements.
    pub fn executions(&self) -> EndCounts {
        self.sum(Kind::is_execution)
    }

    fn sum(&self, include: impl Fn(Kind) -> bool) -> EndCounts {
        let mut sum = EndCounts::default();
        for (_, ends) in self.events.iter().filter(|(kind, _)| include(**kind)) {
            sum.done += ends.done;
            sum.failed += ends.failed;
            sum.skipped += ends.skipped;
            sum.dropped += ends.dropped;
        }
        sum
    }
}

pub(crate) struct OutcomeWriter {
    writer: Option<RunWriter>,
    schedule: Schedule,
    pace: PaceControl,
    /// Number of the latest change of the schedule that `schedule` has.
    pace_version: u64,
    metrics: Metrics,
    /// The counters of ended events that were needed so far, by kind and outcome.
    ended: HashMap<(Kind, &'static str), Counter>,
    /// See [`ReplaySettings::checks_results`](crate::ReplaySettings::checks_results).
    checks_results: bool,
    fingerprinter: Fingerprinter,
    described: HashSet<u64>,
    tally: ReplayTotals,
    /// The first write error. The replay continues, but the run contains nothing after it.
    failure: Option<WriteError>,
}

impl OutcomeWriter {
    pub(crate) fn new(
        writer: Option<RunWriter>,
        schedule: Schedule,
        pace: PaceControl,
        metrics: Metrics,
        checks_results: bool,
    ) -> Self {
        Self {
            writer,
            schedule,
            pace,
            pace_version: 0,
            metrics,
            ended: HashMap::new(),
            checks_results,
            fingerprinter: Fingerprinter::default(),
            described: HashSet::new(),
            tally: ReplayTotals::default(),
            failure: None,
        }
    }

    /// Records outcomes until all workers have finished. Returns the totals, the writer of the run
    /// (`None` if there is none or it failed), and its error, if it failed.
    pub(crate) fn run(
        mut self,
        finished: &Receiver<Vec<FinishedEvent>>,
        free_batches: &FreeBatches,
    ) -> (ReplayTotals, Option<RunWriter>, Option<WriteError>) {
        for mut batch in finished {
            if let Some(schedule) = self.pace.changed_since(&mut self.pace_version) {
                self.schedule = schedule;
            }
            for one in batch.drain(..) {
                self.record(&one);
            }
            free_batches.recycle(batch);
        }
        (self.tally, self.writer, self.failure)
    }

    fn record(&mut self, one: &FinishedEvent) {
        let event = &one.item.event;
        self.count(one);
        self.count_types(one);
        let outcome = self.outcome(one);
        self.record_activity(one, &outcome);
        if outcome.sent_us.is_some() && event.action.kind().is_execution() {
            self.measure(one, &outcome);
        }
        if self.writer.is_some() {
            self.write_outcome(event, outcome);
        }
    }

    fn count(&mut self, one: &FinishedEvent) {
        let event = &one.item.event;
        let kind = event.action.kind();
        let ends = self.tally.events.entry(kind).or_default();
        let word = match &one.end {
            EventEnd::Done => {
                ends.done += 1;
                self.tally.failed_only_when_captured += u64::from(event.outcome.failed());
                "done"
            }
            EventEnd::Failed(failure) => {
                ends.failed += 1;
                if kind.is_execution() || kind == Kind::Connect {
                    self.count_failure(failure, &event.outcome);
                }
                "failed"
            }
            EventEnd::Skipped(skip) => {
                ends.skipped += 1;
                self.metrics.skipped(skip.as_str()).add(1);
                *self.tally.skipped.entry(skip.as_str().to_owned()).or_default() += 1;
                "skipped"
            }
            EventEnd::Dropped(cause) => {
                ends.dropped += 1;
                self.metrics.dropped(cause.as_str()).add(1);
                *self.tally.dropped.entry(cause.as_str().to_owned()).or_default() += 1;
                "dropped"
            }
        };
        let metrics = &self.metrics;
        let counter = self.ended.entry((kind, word));
        counter.or_insert_with(|| metrics.ended(kind.as_str(), word)).add(1);
        if !matches!(one.end, EventEnd::Skipped(SkipCause::Interrupted)) {
            self.metrics.ended_position.set(event.time.as_micros() as f64 / 1e6);
            let (first, last) = self.tally.played.get_or_insert((event.time, event.time));
            *first = event.time.min(*first);
            *last = event.time.max(*last);
        }
    }

    fn count_types(&mut self, one: &FinishedEvent) {
        let action = &one.item.event.action;
        let is_typed = one.item.types.is_some() && one.sent.is_some();
        let Some(sql) = action.sql().filter(|_| is_typed && action.kind().is_execution()) else {
            return;
        };
        self.tally.types_deduced += 1;
        if self.tally.typed_statements.len() < TYPED_STATEMENTS_MAX {
            let fingerprint = self.fingerprinter.shape(sql.as_bytes()).fingerprint;
            self.tally.typed_statements.insert(fingerprint);
        }
    }

    fn count_failure(&mut self, failure: &ReplayFailure, captured: &CapturedOutcome) {
        let code = failure.sqlstate.map(|code| code.to_string()).unwrap_or_default();
        self.metrics.error(&code).add(1);
        // Logs may lack SQLSTATEs; then any captured failure counts as the same failure.
        let too = match captured.sqlstate {
            Some(sqlstate) => Some(sqlstate) == failure.sqlstate,
            None => captured.failed(),
        };
        let failures = self.tally.errors.entry(code).or_default();
        if failures.count == 0 || (failures.count == failures.captured_too && !too) {
            failures.sample = failure.message.to_string();
        }
        failures.count += 1;
        failures.captured_too += u64::from(too);
    }

    fn outcome(&self, one: &FinishedEvent) -> ReplayOutcome {
        let event = &one.item.event;
        let since_start =
            |at: Instant| micros(at.saturating_duration_since(self.schedule.start())).cast_signed();
        let paced = self.schedule.is_paced();
        // Each delay has one cause. If the event was available and the session free, the replay is
        // the cause; if the statement waited for its session, the database is.
        let ready = one.item.available.max(one.free_since);
        let ready = one.item.held_until.map_or(ready, |held| held.max(ready));
        let late = |sent: Instant| micros(sent.saturating_duration_since(ready));
        let lag = micros(one.free_since.saturating_duration_since(one.item.available));
        let input = micros(one.item.available.saturating_duration_since(one.item.due));
        ReplayOutcome {
            time: event.time,
            session: event.session.clone(),
            user: event.user.clone(),
            database: event.database.clone(),
            kind: event.action.kind(),
            fingerprint: None,
            due_us: since_start(one.item.due),
            sent_us: one.sent.map(since_start),
            service_us: one.started.map(|begun| micros(one.ended.saturating_duration_since(begun))),
            schedule_error_us: one.sent.filter(|_| paced).map(late),
            dependency_lag_us: one.sent.filter(|_| paced).map(|_| lag),
            input_late_us: one.sent.filter(|_| paced).map(|_| input),
            rows: one.rows,
            disposition: match &one.end {
                EventEnd::Done => Disposition::Done,
                EventEnd::Failed(failure) => Disposition::Failed {
                    sqlstate: failure.sqlstate,
                    message: failure.message.clone(),
                },
                EventEnd::Skipped(skip) => Disposition::Skipped { reason: skip.as_str().into() },
                EventEnd::Dropped(cause) => Disposition::Dropped { reason: cause.as_str().into() },
            },
            captured_us: event.outcome.duration_us,
            order_wait_us: one.sent.filter(|_| paced).and_then(|_| order_wait(one)),
            captured_rows: event.wire.as_ref().and_then(|wire| wire.rows),
            check: self.checks_results.then(|| check_result(one)).flatten(),
        }
    }

    fn measure(&mut self, one: &FinishedEvent, outcome: &ReplayOutcome) {
        let Some(sent) = one.sent else { return };
        let at = sent.saturating_duration_since(self.schedule.start());
        let (first, last) = self.tally.sends.get_or_insert((at, at));
        *first = at.min(*first);
        *last = at.max(*last);
        self.tally.rows += one.rows.unwrap_or(0);
        if let (Some(rows), Some(captured)) = (outcome.rows, outcome.captured_rows)
            && outcome.disposition == Disposition::Done
        {
            self.tally.row_counts.add(rows == captured);
            self.metrics.rows_different.add(u64::from(rows != captured));
        }
        if let Some(check) = outcome.check {
            self.tally.results.add(check == ResultCheck::Same);
            self.metrics.results_different.add(u64::from(check != ResultCheck::Same));
        }
        if let (Some(service_us), false) =
            (outcome.service_us, matches!(one.end, EventEnd::Skipped(_)))
        {
            self.tally.latency.record_us(service_us);
            self.metrics.latency.observe_us(service_us);
        }
        if let (Some(error), Some(lag)) = (outcome.schedule_error_us, outcome.dependency_lag_us) {
            self.tally.schedule_error.record_us(error);
            self.metrics.schedule_error.observe_us(error);
            self.tally.dependency_lag.record_us(lag);
            self.metrics.dependency_lag.observe_us(lag);
        }
        if let Some(wait) = order_wait(one) {
            self.tally.order_wait.record_us(wait);
            self.metrics.order_wait.observe_us(wait);
        }
        if let Some(late) = outcome.input_late_us {
            self.tally.input_late.record_us(late);
            self.metrics.input_late.observe_us(late);
        }
    }

    /// Adds an event to the numbers of sessions and running statements over time.
    fn record_activity(&mut self, one: &FinishedEvent, outcome: &ReplayOutcome) {
        let scheduled = one.item.scheduled.saturating_duration_since(self.schedule.start());
        let scheduled_us = micros(scheduled).cast_signed();
        let activity = &mut self.tally.activity;
        let ended_us = outcome
            .sent_us
            .map(|sent| sent.saturating_add_unsigned(outcome.service_us.unwrap_or(0)));
        match outcome.kind {
            Kind::Connect | Kind::Disconnect => {
                let change = if outcome.kind == Kind::Connect { 1 } else { -1 };
                let replayed = ended_us.filter(|_| outcome.disposition == Disposition::Done);
                activity.record_session(change, scheduled_us, replayed);
            }
            kind if kind.is_execution() => {
                // Without a schedule, captured times have no place in the replay.
                if let Some(us) = outcome.captured_us.filter(|_| self.schedule.is_paced()) {
                    let took = self.schedule.replayed(Duration::from_micros(us));
                    activity.record_captured(scheduled_us, micros(took));
                }
                if let (Some(sent_us), Some(us)) = (outcome.sent_us, outcome.service_us) {
                    activity.record_replayed(sent_us, us);
                }
            }
            _ => {}
        }
    }

    fn write_outcome(&mut self, event: &Event, mut outcome: ReplayOutcome) {
        let mut statement = None;
        if let Some(sql) = event.action.sql() {
            let shape = self.fingerprinter.shape(sql.as_bytes());
            let fingerprint = shape.fingerprint.0;
            outcome.fingerprint = Some(fingerprint);
            // Executions carry the values that make an example useful.
            if event.action.kind().is_execution()
                && self.described.len() < STATEMENTS_MAX
                && self.described.insert(fingerprint)
            {
                statement = Some(StatementInfo {
                    fingerprint,
                    query: shape.normal.to_string(),
                    example_sql: sql.clone(),
                    example_parameters: parameters(event),
                    user: event.user.clone(),
                    database: event.database.clone(),
                });
            }
        }
        let Some(writer) = &mut self.writer else { return };
        let result = statement
            .map_or(Ok(()), |statement| writer.statement(&statement))
            .and_then(|()| writer.write(&outcome));
        if let Err(error) = result {
            tracing::error!(%error, "cannot write to the run; further outcomes are not recorded");
            self.failure = Some(error);
            self.writer = None;
        }
    }
}

/// Returns the values of an example; `None` if they were not captured, or some are in binary
/// format, which is not readable.
fn parameters(event: &Event) -> Option<Vec<howdah_traffic::Parameter>> {
    let is_text = |wire: &howdah_traffic::WireDetail| wire.formats.iter().all(|code| *code == 0);
    match &event.action {
        Action::Execute(bound) | Action::Fetch(bound)
            if event.wire.as_deref().is_none_or(is_text) =>
        {
            bound.parameters.clone()
        }
        _ => None,
    }
}

/// Compares the result of an execution that succeeded with the captured one, if there is one.
fn check_result(one: &FinishedEvent) -> Option<ResultCheck> {
    let captured = one.item.event.wire.as_ref()?.result.as_ref()?;
    if !matches!(one.end, EventEnd::Done) || one.item.event.outcome.failed() {
        return None;
    }
    let replayed = one.result.as_ref().filter(|replayed| !replayed.is_incomplete())?;
    let is_same = replayed.checksum() == captured.checksum;
    Some(if is_same { ResultCheck::Same } else { ResultCheck::Different })
}

/// Returns for how long an event was held back for the order of commits, if it was, in
/// microseconds.
fn order_wait(one: &FinishedEvent) -> Option<u64> {
    let held_until = one.item.held_until?;
    let ready = one.item.available.max(one.free_since);
    Some(micros(held_until.saturating_duration_since(ready)))
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
