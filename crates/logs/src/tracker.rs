//! From the server's messages to what each client did.
//!
//! ```text
//!                 authorized, or first action of a session met midway: Connect
//!                        │
//!                        ▼            statement, execute, fastpath (log_statement)
//!            ┌───────► quiet ──────────────────────────────────────► open
//!            │          │ │                                           │
//!            │          │ └─ duration with text: whole action         │ bare duration: done
//!            │          └─── parse, bind; error with STATEMENT        │ error: failed
//!            └────────────────────────────────────────────────────────┤ next action: unknown
//!                        │                                            │
//!                        ▼ disconnection, FATAL, process id used again
//!                     gone: Disconnect
//! ```
//!
//! Source for the order of messages: `postgres.c`; for their times: a message is stamped when it is
//! written, so one that ends an action is later than its start by the duration it names.

mod balance;
mod failure;
mod held;
mod output;
mod pipelines;
mod session;
mod steps;
mod table;
mod vxid;

use howdah_traffic::Timestamp;

pub(crate) use self::{output::EventSink, table::Memo};
use self::{
    output::Output,
    table::{Key, Table},
};
use crate::{
    message::Message,
    options::Emit,
    parameters::{Limit, Values},
    prefix::Names,
    reader::Sessions,
    record::{Record, Severity},
    splits::Splits,
    summary::{Place, Summary},
};

/// All sessions of a log.
#[derive(Debug)]
pub(crate) struct Tracker {
    table: Table,
    emit: Emit,
    texts: Texts,
    watermark: Option<Timestamp>,
    known_messages: u64,
    foreign_messages: u64,
}

/// What values are read with.
#[derive(Debug, Default)]
struct Texts {
    values: Values,
    splits: Splits,
    /// Of the values in `DETAIL`.
    limit: Limit,
    /// Of the values in `CONTEXT`, which have a limit of their own.
    error_limit: Limit,
}

/// What became of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    Yes,
    /// It was left alone: it names its session otherwise than the session is known, so perhaps it has to
    /// be read another way.
    Doubted,
}

impl Tracker {
    pub(crate) fn new(emit: Emit) -> Self {
        Self {
            table: Table::default(),
            emit,
            texts: Texts::default(),
            watermark: None,
            known_messages: 0,
            foreign_messages: 0,
        }
    }

    pub(crate) fn watermark(&self) -> Option<Timestamp> {
        self.watermark
    }

    /// Whether there are statements or durations in another language and nothing in English.
    pub(crate) fn seems_translated(&self) -> bool {
        self.foreign_messages > 0 && self.known_messages == 0
    }

    /// Takes the next record of the log, unless it is `doubtful` whose it is and the names differ. `memo` is
    /// the same for all records that say the same of whose they are.
    #[inline(always)]
    pub(crate) fn take(
        &mut self,
        record: &Record<'_>,
        doubtful: bool,
        memo: &mut Memo,
        summary: &mut Summary,
        place: Place<'_>,
        visit: &mut dyn EventSink,
    ) -> Taken {
        let emit = self.emit;
        let is_ascii = record.is_ascii();
        if self.table.recall(memo).is_none() {
            return self.take_new(record, doubtful, memo, summary, place, visit);
        }
        self.count(record, summary);
        let output = &mut Output { emit, visit, summary, place, is_ascii };
        self.take_recalled(record, *memo, output);
        self.note_limit(summary);
        Taken::Yes
    }

    /// Takes a record of a session that was [recalled](Table::recall).
    #[inline(always)]
    fn take_recalled(&mut self, record: &Record<'_>, memo: Memo, output: &mut Output<'_>) {
        let slot = Some(memo.slot);
        if record.severity() != Severity::Log {
            self.table.see(memo, record, output);
            return self.take_severe(slot, record, output);
        }
        let message = Message::of(record);
        let Self { table, texts, known_messages, .. } = self;
        let Some(session) = table.see(memo, record, output) else { return };
        // As what acts nearly always: a session that is there, and known to be a client's.
        let acts = memo.is_client && session.is_connected && !session.is_replication;
        match message {
            Message::End { micros, step: None } => {
                *known_messages += 1;
                output.summary.facts.bare_durations += 1;
                steps::end_bare(session, micros, record, output);
            }
            Message::Begin(step) if acts => {
                *known_messages += 1;
                steps::begin(session, step, record, texts, output);
            }
            Message::End { micros, step: Some(step) } if acts => {
                *known_messages += 1;
                steps::end(session, step, micros, record, texts, output);
            }
            _ => self.take_message(slot, message, record, output),
        }
    }

    /// Counts a record, whoever's it is.
    #[inline]
    fn count(&mut self, record: &Record<'_>, summary: &mut Summary) {
        let time = record.time();
        if self.watermark.is_none_or(|watermark| watermark < time) {
            self.watermark = Some(time);
        }
        summary.count_record(record.severity());
        summary.facts.verbose += u64::from(!record.function().is_empty());
    }

    /// Tells of the limit of values, where a record has changed what is known of it.
    #[inline]
    fn note_limit(&mut self, summary: &mut Summary) {
        if self.texts.limit.has_changed() {
            summary.facts.parameter_limit_bytes = self.texts.limit.bytes();
        }
    }

    /// The same as [`take`](Self::take) for a record whose session was not recalled.
    #[inline(never)]
    fn take_new(
        &mut self,
        record: &Record<'_>,
        doubtful: bool,
        memo: &mut Memo,
        summary: &mut Summary,
        place: Place<'_>,
        visit: &mut dyn EventSink,
    ) -> Taken {
        let found = self.table.find(&Key::of(record));
        let session = found.and_then(|at| self.table.known(at));
        let is_named = session.is_some_and(|session| session.is_named(record));
        if doubtful && !is_named && session.is_some_and(|session| !session.agrees(record)) {
            return Taken::Doubted;
        }
        self.count(record, summary);
        let mut output =
            Output { emit: self.emit, visit, summary, place, is_ascii: record.is_ascii() };
        let slot = self.table.look_at(found, is_named, record, memo, &mut output);
        match record.severity() {
            Severity::Log => {
                self.take_message(slot, Message::of(record), record, &mut output);
            }
            _ => self.take_severe(slot, record, &mut output),
        }
        self.note_limit(summary);
        Taken::Yes
    }

    /// Takes a record that is no message of the log.
    fn take_severe(&mut self, slot: Option<usize>, record: &Record<'_>, output: &mut Output<'_>) {
        match record.severity() {
            Severity::Error | Severity::Fatal | Severity::Panic => {
                self.table.take_failure(slot, record, &mut self.texts, output);
            }
            Severity::Debug
            | Severity::Log
            | Severity::Info
            | Severity::Notice
            | Severity::Warning => {}
        }
    }

    /// Ends the input: actions that are open stay without an outcome.
    pub(crate) fn finish(
        &mut self,
        summary: &mut Summary,
        place: Place<'_>,
        visit: &mut dyn EventSink,
    ) {
        let mut output = Output { emit: self.emit, visit, summary, place, is_ascii: false };
        self.table.close_all(&mut output);
    }

    fn take_message(
        &mut self,
        slot: Option<usize>,
        message: Message<'_>,
        record: &Record<'_>,
        output: &mut Output<'_>,
    ) {
        let facts = &mut output.summary.facts;
        match message {
            Message::Other => return,
            Message::Foreign(language) => {
                self.foreign_messages += 1;
                facts.translated_messages += 1;
                facts.language = facts.language.or(language);
            }
            Message::Plan => facts.plans += 1,
            Message::Audit => facts.audits += 1,
            _ => self.known_messages += 1,
        }
        let Self { table, texts, .. } = self;
        match message {
            Message::Received => {
                table.replace(slot, record, output);
            }
            Message::Authorized(names) => table.connect(slot, record, names, output),
            Message::ReplicationAuthorized => {
                table.entry(slot, record, output).1.is_replication = true;
            }
            Message::Disconnection => table.disconnect(slot, record, output),
            Message::Restart => table.restart(record, output),
            Message::Died(pid) => {
                if let Some(at) = table.find(&Key::Process(pid)) {
                    table.remove(at, record.time(), output);
                }
            }
            Message::Begin(step) => {
                if let Some((_, session)) = table.acting(slot, record, record.time(), output) {
                    steps::begin(session, step, record, texts, output);
                }
            }
            Message::End { micros, step: None } => {
                output.summary.facts.bare_durations += 1;
                // In a log without connections it may be the first that is seen of a session.
                let slot = match slot {
                    None if begins_session(record) && is_client(record) => {
                        Some(table.entry(None, record, output).0)
                    }
                    slot => slot,
                };
                if let Some(session) = slot.and_then(|at| table.session(at)) {
                    steps::end_bare(session, micros, record, output);
                }
            }
            Message::End { micros, step: Some(step) } => {
                let start = record.time() - std::time::Duration::from_micros(micros);
                if let Some((_, session)) = table.acting(slot, record, start, output) {
                    steps::end(session, step, micros, record, texts, output);
                }
            }
            Message::Known
            | Message::Plan
            | Message::Audit
            | Message::Foreign(_)
            | Message::Other => {}
        }
    }
}

/// Whether a record is the first that its process wrote.
fn begins_session(record: &Record<'_>) -> bool {
    record.lines().is_some_and(|(first, _)| first == 1)
}

/// Whether a record comes from a process that serves a client, as far as the log says.
fn is_client(record: &Record<'_>) -> bool {
    let kind = record.backend_type();
    !record.has_leader()
        && (kind.is_empty() || kind == b"client backend" || kind == b"standalone backend")
}

impl Sessions for Tracker {
    fn names(&self, session_id: &[u8], pid: Option<u32>) -> Names<'_> {
        let pid = pid.or_else(|| crate::pieces::session_id(session_id).map(|(_, pid)| pid));
        let slot = pid.and_then(|pid| self.table.find(&Key::Process(pid)));
        slot.and_then(|at| self.table.known(at)).map(|session| session.names()).unwrap_or_default()
    }
}
