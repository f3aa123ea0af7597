//! What became of the events: counted, summed up, and written to the run.
//!
//! This runs on a thread of its own. Fingerprints and files cost time that a worker, which must
//! send the next statement when it is due, does not have.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::mpsc::Receiver,
    time::{Duration, Instant},
};

use howdah_dataset::{Disposition, ReplayOutcome, RunWriter, Statement, WriteError};
use howdah_sql::{Fingerprint, Fingerprinter};
use howdah_stats::Percentiles;
use howdah_traffic::{Action, Event, Kind, Outcome, Timestamp};

use crate::{
    link::Failure,
    metrics::Metrics,
    pace::Schedule,
    player::{End, Finished, Skip},
};

/// Statements that a run describes. A workload with more shapes than this has its values in its
/// texts in a way no normal form can see, and the rest goes without an example.
const STATEMENTS_MAX: usize = 100_000;

/// Statements with deduced types that a report names.
pub const TYPED_STATEMENTS_MAX: usize = 10_000;

/// What a replay did, in numbers.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Tally {
    /// Events by kind, and how they ended.
    pub events: BTreeMap<Kind, Ends>,
    /// Failed executions and logins by SQLSTATE; the empty one is for failures without a code.
    pub errors: BTreeMap<String, Failures>,
    /// Executions that went well here and failed when they were captured.
    pub failed_only_when_captured: u64,
    /// Events that were not sent, by reason.
    pub skipped: BTreeMap<String, u64>,
    /// From sending an execution to its complete answer.
    pub latency: Percentiles,
    /// How late executions were sent although their session was free.
    pub schedule_error: Percentiles,
    /// How long executions were due while their session's previous statement still ran.
    pub dependency_lag: Percentiles,
    /// How late executions came from their source: a live log, or a reader that does not keep up.
    pub input_late: Percentiles,
    /// Captured time of the first and the last event that came to an end other than that of the
    /// whole replay.
    pub played: Option<(Timestamp, Timestamp)>,
    /// Executions whose parameters got types that were deduced from values, because the capture holds
    /// none and the statement needs some.
    pub types_deduced: u64,
    /// The statements they were of, up to [`TYPED_STATEMENTS_MAX`].
    pub typed_statements: BTreeSet<Fingerprint>,
    /// Rows that the target returned or changed.
    pub rows: u64,
    /// First and last send of an execution, since the start.
    pub sends: Option<(Duration, Duration)>,
}

/// Failures of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    /// How many.
    pub count: u64,
    /// Those of them that failed when they were captured, too: in the same way, as far as the
    /// capture tells.
    pub captured_too: u64,
    /// The message of one of them, preferably of one that did not fail when it was captured.
    pub sample: String,
}

/// How many events ended in which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ends {
    /// Answered without an error.
    pub done: u64,
    /// Answered with an error, or lost with the connection.
    pub failed: u64,
    /// Not sent.
    pub skipped: u64,
}

impl Ends {
    /// All of them.
    pub fn total(self) -> u64 {
        self.done + self.failed + self.skipped
    }
}

impl Tally {
    /// All events that ended in any way.
    pub fn total(&self) -> Ends {
        self.sum(|_| true)
    }

    /// Executions: what a client would call a statement.
    pub fn executions(&self) -> Ends {
        self.sum(Kind::is_execution)
    }

    fn sum(&self, wanted: impl Fn(Kind) -> bool) -> Ends {
        let mut sum = Ends::default();
        for (_, ends) in self.events.iter().filter(|(kind, _)| wanted(**kind)) {
            sum.done += ends.done;
            sum.failed += ends.failed;
            sum.skipped += ends.skipped;
        }
        sum
    }
}

pub(crate) struct Recorder {
    writer: Option<RunWriter>,
    schedule: Schedule,
    metrics: Metrics,
    fingerprinter: Fingerprinter,
    described: HashSet<u64>,
    tally: Tally,
    /// The first failure to write: the replay goes on, the run stays as far as it came.
    failure: Option<WriteError>,
}

impl Recorder {
    pub(crate) fn new(writer: Option<RunWriter>, schedule: Schedule, metrics: Metrics) -> Self {
        Self {
            writer,
            schedule,
            metrics,
            fingerprinter: Fingerprinter::default(),
            described: HashSet::new(),
            tally: Tally::default(),
            failure: None,
        }
    }

    /// Takes in everything until all workers are gone.
    pub(crate) fn run(
        mut self,
        finished: &Receiver<Vec<Finished>>,
    ) -> (Tally, Option<RunWriter>, Option<WriteError>) {
        for batch in finished {
            for one in batch {
                self.record(&one);
            }
        }
        (self.tally, self.writer, self.failure)
    }

    fn record(&mut self, one: &Finished) {
        let event = &one.item.event;
        self.count(one);
        self.count_types(one);
        let outcome = self.outcome(one);
        if outcome.sent_us.is_some() && event.action.kind().is_execution() {
            self.measure(one, &outcome);
        }
        if self.writer.is_some() {
            self.write(event, outcome);
        }
    }

    fn count(&mut self, one: &Finished) {
        let event = &one.item.event;
        let kind = event.action.kind();
        let ends = self.tally.events.entry(kind).or_default();
        let word = match &one.end {
            End::Done => {
                ends.done += 1;
                self.tally.failed_only_when_captured += u64::from(event.outcome.failed());
                "done"
            }
            End::Failed(failure) => {
                ends.failed += 1;
                if kind.is_execution() || kind == Kind::Connect {
                    self.count_failure(failure, &event.outcome);
                }
                "failed"
            }
            End::Skipped(skip) => {
                ends.skipped += 1;
                self.metrics.skipped(skip.as_str()).add(1);
                *self.tally.skipped.entry(skip.as_str().to_owned()).or_default() += 1;
                "skipped"
            }
        };
        self.metrics.ended(kind.as_str(), word).add(1);
        if !matches!(one.end, End::Skipped(Skip::Interrupted)) {
            self.metrics.ended_position.set(event.time.as_micros() as f64 / 1e6);
            let (first, last) = self.tally.played.get_or_insert((event.time, event.time));
            *first = event.time.min(*first);
            *last = event.time.max(*last);
        }
    }

    fn count_types(&mut self, one: &Finished) {
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

    fn count_failure(&mut self, failure: &Failure, captured: &Outcome) {
        let code = failure.sqlstate.map(|code| code.to_string()).unwrap_or_default();
        self.metrics.error(&code).add(1);
        // A log need not hold codes; then a failure is as good as the same.
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

    fn outcome(&self, one: &Finished) -> ReplayOutcome {
        let event = &one.item.event;
        let since_start =
            |at: Instant| micros(at.saturating_duration_since(self.schedule.start())).cast_signed();
        let paced = self.schedule.is_paced();
        // Never mixed: late although it was there and its session free is our fault, there while the
        // session was busy the database's.
        let ready = one.item.here.max(one.free);
        let late = |sent: Instant| micros(sent.saturating_duration_since(ready));
        let lag = micros(one.free.saturating_duration_since(one.item.here));
        let input = micros(one.item.here.saturating_duration_since(one.item.due));
        ReplayOutcome {
            time: event.time,
            session: event.session.clone(),
            user: event.user.clone(),
            database: event.database.clone(),
            kind: event.action.kind(),
            fingerprint: None,
            due_us: since_start(one.item.due),
            sent_us: one.sent.map(since_start),
            service_us: one.begun.map(|begun| micros(one.ended.saturating_duration_since(begun))),
            schedule_error_us: one.sent.filter(|_| paced).map(late),
            dependency_lag_us: one.sent.filter(|_| paced).map(|_| lag),
            input_late_us: one.sent.filter(|_| paced).map(|_| input),
            rows: one.rows,
            disposition: match &one.end {
                End::Done => Disposition::Done,
                End::Failed(failure) => Disposition::Failed {
                    sqlstate: failure.sqlstate,
                    message: failure.message.clone(),
                },
                End::Skipped(skip) => Disposition::Skipped { reason: skip.as_str().into() },
            },
            captured_us: event.outcome.duration_us,
        }
    }

    fn measure(&mut self, one: &Finished, outcome: &ReplayOutcome) {
        let Some(sent) = one.sent else { return };
        let at = sent.saturating_duration_since(self.schedule.start());
        let (first, last) = self.tally.sends.get_or_insert((at, at));
        *first = at.min(*first);
        *last = at.max(*last);
        self.tally.rows += one.rows.unwrap_or(0);
        if let (Some(service_us), false) = (outcome.service_us, matches!(one.end, End::Skipped(_)))
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
        if let Some(late) = outcome.input_late_us {
            self.tally.input_late.record_us(late);
            self.metrics.input_late.observe_us(late);
        }
    }

    fn write(&mut self, event: &Event, mut outcome: ReplayOutcome) {
        let mut statement = None;
        if let Some(sql) = event.action.sql() {
            let shape = self.fingerprinter.shape(sql.as_bytes());
            let fingerprint = shape.fingerprint.0;
            outcome.fingerprint = Some(fingerprint);
            // Executions carry the values that make an example worth having.
            if event.action.kind().is_execution()
                && self.described.len() < STATEMENTS_MAX
                && self.described.insert(fingerprint)
            {
                statement = Some(Statement {
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
        let written = statement
            .map_or(Ok(()), |statement| writer.statement(&statement))
            .and_then(|()| writer.write(&outcome));
        if let Err(error) = written {
            tracing::error!(%error, "the run is not written further");
            self.failure = Some(error);
            self.writer = None;
        }
    }
}

/// The values of an example; not if some are binary, which nobody could read.
fn parameters(event: &Event) -> Option<Vec<howdah_traffic::Parameter>> {
    let is_text = |wire: &howdah_traffic::Wire| wire.formats.iter().all(|code| *code == 0);
    match &event.action {
        Action::Execute(bound) | Action::Fetch(bound)
            if event.wire.as_deref().is_none_or(is_text) =>
        {
            bound.parameters.clone()
        }
        _ => None,
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
