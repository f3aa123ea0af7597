//! What became of the events: counted, summed up, and written to the run.
//!
//! This runs on a thread of its own. Fingerprints and files cost time that a worker, which must
//! send the next statement when it is due, does not have.

use std::{
    collections::{BTreeMap, HashSet},
    sync::mpsc::Receiver,
    time::{Duration, Instant},
};

use howdah_dataset::{Disposition, ReplayOutcome, RunWriter, Statement, WriteError};
use howdah_sql::Fingerprinter;
use howdah_stats::Percentiles;
use howdah_traffic::{Action, Event, Kind};

use crate::{
    metrics::Metrics,
    pace::Schedule,
    player::{End, Finished},
};

/// Statements that a run describes. A workload with more shapes than this has its values in its
/// texts in a way no normal form can see, and the rest goes without an example.
const STATEMENTS_MAX: usize = 100_000;

/// What a replay did, in numbers.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Tally {
    /// Events by kind, and how they ended.
    pub events: BTreeMap<Kind, Ends>,
    /// Failed executions by SQLSTATE; the empty one is for failures without a code.
    pub errors: BTreeMap<String, u64>,
    /// The message of one such failure, by SQLSTATE.
    pub error_samples: BTreeMap<String, String>,
    /// Events that were not sent, by reason.
    pub skipped: BTreeMap<String, u64>,
    /// From sending an execution to its complete answer.
    pub latency: Percentiles,
    /// How late executions were sent although their session was free.
    pub schedule_error: Percentiles,
    /// How long executions were due while their session's previous statement still ran.
    pub dependency_lag: Percentiles,
    /// Rows that the target returned or changed.
    pub rows: u64,
    /// First and last send of an execution, since the start.
    pub sends: Option<(Duration, Duration)>,
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
        let outcome = self.outcome(one);
        if outcome.sent_us.is_some() && event.action.kind().is_execution() {
            self.measure(one, &outcome);
        }
        if self.writer.is_some() {
            self.write(event, outcome);
        }
    }

    fn count(&mut self, one: &Finished) {
        let kind = one.item.event.action.kind();
        let ends = self.tally.events.entry(kind).or_default();
        let word = match &one.end {
            End::Done => {
                ends.done += 1;
                "done"
            }
            End::Failed(failure) => {
                ends.failed += 1;
                if kind.is_execution() || kind == Kind::Connect {
                    let code = failure.sqlstate.map(|code| code.to_string()).unwrap_or_default();
                    self.metrics.error(&code).add(1);
                    let message = || failure.message.to_string();
                    self.tally.error_samples.entry(code.clone()).or_insert_with(message);
                    *self.tally.errors.entry(code).or_default() += 1;
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
        self.metrics.ended_position.set(one.item.event.time.as_micros() as f64 / 1e6);
    }

    fn outcome(&self, one: &Finished) -> ReplayOutcome {
        let event = &one.item.event;
        let since_start =
            |at: Instant| micros(at.saturating_duration_since(self.schedule.start())).cast_signed();
        let paced = self.schedule.is_paced();
        // Two clocks, never mixed: late although free is our fault, due while busy the database's.
        let ready = one.item.due.max(one.free);
        let late = |sent: Instant| micros(sent.saturating_duration_since(ready));
        let lag = micros(one.free.saturating_duration_since(one.item.due));
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
                    example_parameters: parameters(&event.action),
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

fn parameters(action: &Action) -> Option<Vec<howdah_traffic::Parameter>> {
    match action {
        Action::Execute(bound) | Action::Fetch(bound) => bound.parameters.clone(),
        _ => None,
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
