//! Derives each client's actions from the server's messages.
//!
//! ```text
//!                 authorized, or first action without a logged connection: Connect
//!                        │
//!                        ▼            statement, execute, fastpath (log_statement)
//!            ┌───────► idle ───────────────────────────────────────► open
//!            │          │ │                                           │
//!            │          │ └─ duration with text: complete action      │ bare duration: finished
//!            │          └─── parse, bind; error with STATEMENT        │ error: failed
//!            └────────────────────────────────────────────────────────┤ next action: unknown
//!                        │                                            │
//!                        ▼ disconnection, FATAL, restart, process id reused
//!                     gone: Disconnect
//! ```
//!
//! The order of messages follows `postgres.c`. A message has the time at which it was written, so
//! an action starts earlier than the message about its end, by the logged duration.

mod action_buffer;
mod failure;
mod message;
mod names;
mod output;
mod parameters;
mod pipelines;
mod sampling;
mod session;
mod session_table;
mod split_cache;
mod steps;
mod vxid;

use howdah_log_input::LogSeverity;
use howdah_traffic::Timestamp;

use self::{
    message::LogMessage,
    output::EventOutput,
    parameters::{BoundValues, ValueLimit},
    session_table::{SessionKey, SessionTable},
    split_cache::SplitCache,
};
pub(crate) use self::{output::EventSink, session_table::SessionMemo};
use crate::{
    options::Emit,
    prefix::{SessionLookup, SessionNames},
    record::{LogRecord, spans::parse_session_id},
    summary::{ImportSummary, LogPosition},
};

/// A tracker of all sessions in a log, which derives events from their records.
#[derive(Debug)]
pub(crate) struct Tracker {
    table: SessionTable,
    emit: Emit,
    texts: TextDecoders,
    watermark: Option<Timestamp>,
    known_messages: u64,
    foreign_messages: u64,
}

/// State for parsing step texts and parameter values.
#[derive(Debug, Default)]
struct TextDecoders {
    values: BoundValues,
    splits: SplitCache,
    /// Limit of the values in `DETAIL`.
    limit: ValueLimit,
    /// Limit of the values in `CONTEXT`, which is a separate setting.
    error_limit: ValueLimit,
}

/// The result of handling a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordHandling {
    Accepted,
    /// The record was not handled: its names differ from the session's, so it may have been
    /// misread.
    Ambiguous,
}

impl Tracker {
    pub(crate) fn new(emit: Emit) -> Self {
        Self {
            table: SessionTable::default(),
            emit,
            texts: TextDecoders::default(),
            watermark: None,
            known_messages: 0,
            foreign_messages: 0,
        }
    }

    pub(crate) fn watermark(&self) -> Option<Timestamp> {
        self.watermark
    }

    /// Whether there are statements or durations in another language, and no recognized message in
    /// English.
    pub(crate) fn seems_translated(&self) -> bool {
        self.foreign_messages > 0 && self.known_messages == 0
    }

    /// Handles the next record. If `may_be_misread`, a record whose names contradict its session's
    /// is not handled. `memo` is shared by all records with the same session fields.
    #[inline(always)]
    pub(crate) fn handle_record(
        &mut self,
        record: &LogRecord<'_>,
        may_be_misread: bool,
        memo: &mut SessionMemo,
        summary: &mut ImportSummary,
        position: LogPosition<'_>,
        sink: &mut dyn EventSink,
    ) -> RecordHandling {
        let emit = self.emit;
        let is_ascii = record.is_ascii();
        if self.table.recall(memo).is_none() {
            return self.handle_new(record, may_be_misread, memo, summary, position, sink);
        }
        self.count(record, summary);
        let output = &mut EventOutput { emit, sink, summary, position, is_ascii };
        self.handle_recalled(record, *memo, output);
        self.report_value_limit(summary);
        RecordHandling::Accepted
    }

    /// Handles a record whose session was [recalled](SessionTable::recall).
    #[inline(always)]
    fn handle_recalled(
        &mut self,
        record: &LogRecord<'_>,
        memo: SessionMemo,
        output: &mut EventOutput<'_>,
    ) {
        let slot = Some(memo.slot);
        if record.severity() != LogSeverity::Log {
            self.table.touch(memo, record, output);
            return self.handle_severe(slot, record, output);
        }
        let message = LogMessage::from_record(record);
        let Self { table, texts, known_messages, .. } = self;
        let Some(session) = table.touch(memo, record, output) else { return };
        // The typical case: an existing session that is known to be a client's.
        let acts = memo.is_client && session.is_connected && !session.is_replication;
        match message {
            LogMessage::End { micros, step: None } => {
                *known_messages += 1;
                output.summary.facts.bare_durations += 1;
                steps::finish_bare(session, micros, record, output);
            }
            LogMessage::Begin(step) if acts => {
                *known_messages += 1;
                steps::start(session, step, record, texts, output);
            }
            LogMessage::End { micros, step: Some(step) } if acts => {
                *known_messages += 1;
                steps::finish(session, step, micros, record, texts, output);
            }
            _ => self.handle_message(slot, message, record, output),
        }
    }

    /// Counts a record, regardless of its session.
    #[inline]
    fn count(&mut self, record: &LogRecord<'_>, summary: &mut ImportSummary) {
        let time = record.time();
        if self.watermark.is_none_or(|watermark| watermark < time) {
            self.watermark = Some(time);
        }
        summary.count_record(record.severity());
        summary.facts.verbose += u64::from(!record.function().is_empty());
    }

    /// Reports the length limit of values, if a record has changed its estimate.
    #[inline]
    fn report_value_limit(&mut self, summary: &mut ImportSummary) {
        if self.texts.limit.has_changed() {
            summary.facts.parameter_limit_bytes = self.texts.limit.bytes();
        }
    }

    /// Like [`handle_record`](Self::handle_record) for a record whose session was not recalled.
    #[inline(never)]
    fn handle_new(
        &mut self,
        record: &LogRecord<'_>,
        may_be_misread: bool,
        memo: &mut SessionMemo,
        summary: &mut ImportSummary,
        position: LogPosition<'_>,
        sink: &mut dyn EventSink,
    ) -> RecordHandling {
        let found = self.table.find(&SessionKey::from_record(record));
        let session = found.and_then(|at| self.table.get(at));
        let is_named = session.is_some_and(|session| session.has_names(record));
        if may_be_misread && !is_named && session.is_some_and(|session| !session.agrees(record)) {
            return RecordHandling::Ambiguous;
        }
        self.count(record, summary);
        let mut output =
            EventOutput { emit: self.emit, sink, summary, position, is_ascii: record.is_ascii() };
        let slot = self.table.update_session(found, is_named, record, memo, &mut output);
        match record.severity() {
            LogSeverity::Log => {
                self.handle_message(slot, LogMessage::from_record(record), record, &mut output);
            }
            _ => self.handle_severe(slot, record, &mut output),
        }
        self.report_value_limit(summary);
        RecordHandling::Accepted
    }

    /// Handles a record whose severity is not LOG.
    fn handle_severe(
        &mut self,
        slot: Option<usize>,
        record: &LogRecord<'_>,
        output: &mut EventOutput<'_>,
    ) {
        match record.severity() {
            LogSeverity::Error | LogSeverity::Fatal | LogSeverity::Panic => {
                self.table.handle_failure(slot, record, &mut self.texts, output);
            }
            LogSeverity::Debug
            | LogSeverity::Log
            | LogSeverity::Info
            | LogSeverity::Notice
            | LogSeverity::Warning => {}
        }
    }

    /// Finishes the input; open actions have no outcome.
    pub(crate) fn finish(
        &mut self,
        summary: &mut ImportSummary,
        position: LogPosition<'_>,
        sink: &mut dyn EventSink,
    ) {
        let mut output = EventOutput { emit: self.emit, sink, summary, position, is_ascii: false };
        self.table.close_all(&mut output);
    }

    fn handle_message(
        &mut self,
        slot: Option<usize>,
        message: LogMessage<'_>,
        record: &LogRecord<'_>,
        output: &mut EventOutput<'_>,
    ) {
        let facts = &mut output.summary.facts;
        match message {
            LogMessage::Other => return,
            LogMessage::OtherLanguage(language) => {
                self.foreign_messages += 1;
                facts.translated_messages += 1;
                facts.language = facts.language.or(language);
            }
            LogMessage::Plan => facts.plans += 1,
            LogMessage::Audit => facts.audits += 1,
            _ => self.known_messages += 1,
        }
        let Self { table, texts, .. } = self;
        match message {
            LogMessage::Received => {
                table.replace(slot, record, output);
            }
            LogMessage::Authorized(names) => table.connect(slot, record, names, output),
            LogMessage::ReplicationAuthorized => {
                table.entry(slot, record, output).1.is_replication = true;
            }
            LogMessage::Disconnection => table.disconnect(slot, record, output),
            LogMessage::Restart => table.restart(record, output),
            LogMessage::ProcessExited(pid) => {
                if let Some(at) = table.find(&SessionKey::Process(pid)) {
                    table.remove(at, record.time(), output);
                }
            }
            LogMessage::Begin(step) => {
                if let Some((_, session)) =
                    table.acting_session(slot, record, record.time(), output)
                {
                    steps::start(session, step, record, texts, output);
                }
            }
            LogMessage::End { micros, step: None } => {
                output.summary.facts.bare_durations += 1;
                // In a log without connections this may be the first record of a session.
                let slot = match slot {
                    None if is_first_of_process(record) && is_client(record) => {
                        Some(table.entry(None, record, output).0)
                    }
                    slot => slot,
                };
                if let Some(session) = slot.and_then(|at| table.get_mut(at)) {
                    steps::finish_bare(session, micros, record, output);
                }
            }
            LogMessage::End { micros, step: Some(step) } => {
                // A statement that is logged at its end began earlier, so the session is looked up
                // with the time of that start.
                let start = record.time() - std::time::Duration::from_micros(micros);
                if let Some((_, session)) = table.acting_session(slot, record, start, output) {
                    steps::finish(session, step, micros, record, texts, output);
                }
            }
            LogMessage::Recognized
            | LogMessage::Plan
            | LogMessage::Audit
            | LogMessage::OtherLanguage(_)
            | LogMessage::Other => {}
        }
    }
}

/// Whether a record is the first of its process (line number 1).
fn is_first_of_process(record: &LogRecord<'_>) -> bool {
    record.lines().is_some_and(|(first, _)| first == 1)
}

/// Whether a record comes from a process that serves a client, as far as the log shows.
fn is_client(record: &LogRecord<'_>) -> bool {
    let kind = record.backend_type();
    !record.has_leader()
        && (kind.is_empty() || kind == b"client backend" || kind == b"standalone backend")
}

impl SessionLookup for Tracker {
    fn names(&self, session_id: &[u8], pid: Option<u32>) -> SessionNames<'_> {
        let pid = pid.or_else(|| parse_session_id(session_id).map(|(_, pid)| pid));
        let slot = pid.and_then(|pid| self.table.find(&SessionKey::Process(pid)));
        slot.and_then(|at| self.table.get(at)).map(|session| session.names()).unwrap_or_default()
    }
}
