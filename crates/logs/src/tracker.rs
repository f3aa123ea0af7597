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

mod failure;
mod output;
mod pipelines;
mod session;
mod steps;

use std::sync::Arc;

use howdah_traffic::{Action, Event, Source, Timestamp};

use self::{output::Output, session::Session};
use crate::{
    hashing::Map,
    intern::Interner,
    message::{Authorized, Message},
    options::Emit,
    parameters::Limit,
    prefix::Names,
    reader::Sessions,
    record::{Record, Severity},
    summary::{Place, Summary},
};

/// All sessions of a log.
#[derive(Debug)]
pub(crate) struct Tracker {
    sessions: Map<Key, Session>,
    output: Output,
    texts: Texts,
    watermark: Option<Timestamp>,
    /// When the first session that the log saw connect had started, in seconds since the Unix epoch.
    first_connected: Option<i64>,
    /// Records taken: the age of sessions is counted in these.
    clock: u64,
    /// The session ended last and its process, in case that a rebuilt id comes again.
    gone: Option<(Key, Arc<str>)>,
    known_messages: u64,
    foreign_messages: u64,
}

/// What statements and values are made from.
#[derive(Debug, Default)]
struct Texts {
    interner: Interner,
    /// Of the values in `DETAIL`.
    limit: Limit,
    /// Of the values in `CONTEXT`, which have a limit of their own.
    error_limit: Limit,
}

/// What tells sessions apart at one time: a process has one session at a time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Process(u32),
    /// The log names neither session nor process: one session for each client address and user.
    Client(Vec<u8>),
}

impl Key {
    fn of(record: &Record<'_>) -> Self {
        match record.pid {
            Some(pid) => Self::Process(pid),
            None => Self::Client([record.remote, record.user, record.database].join(&b'\0')),
        }
    }
}

/// Most sessions that are kept at a time. A log without disconnections would fill memory.
const SESSIONS_MAX: usize = 1 << 16;

impl Tracker {
    pub(crate) fn new(emit: Emit) -> Self {
        Self {
            sessions: Map::default(),
            output: Output::new(emit),
            texts: Texts::default(),
            watermark: None,
            first_connected: None,
            clock: 0,
            gone: None,
            known_messages: 0,
            foreign_messages: 0,
        }
    }

    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        self.output.poll()
    }

    pub(crate) fn watermark(&self) -> Option<Timestamp> {
        self.watermark
    }

    /// Whether there are statements or durations in another language and nothing in English.
    pub(crate) fn seems_translated(&self) -> bool {
        self.foreign_messages > 0 && self.known_messages == 0
    }

    /// Takes the next record of the log.
    pub(crate) fn take(&mut self, record: &Record<'_>, summary: &mut Summary, place: Place<'_>) {
        self.watermark = self.watermark.max(Some(record.time));
        self.clock += 1;
        summary.count_record(record.severity);
        summary.facts.verbose += u64::from(!record.function.is_empty());
        let key = Key::of(record);
        self.look_at_session(&key, record, summary);
        match record.severity {
            Severity::Log => self.take_message(&key, record, summary, place),
            Severity::Error | Severity::Fatal | Severity::Panic => {
                self.take_failure(&key, record, summary);
            }
            Severity::Debug | Severity::Info | Severity::Notice | Severity::Warning => {}
        }
        summary.facts.parameter_limit_bytes = self.texts.limit.bytes();
    }

    /// Ends the input: actions that are open stay without an outcome.
    pub(crate) fn finish(&mut self, summary: &mut Summary) {
        let mut open: Vec<_> = self.sessions.values_mut().filter(|s| s.open.is_some()).collect();
        open.sort_by_key(|session| (session.open.as_ref().map(|event| event.time), session.seen));
        for session in open {
            self.output.close(session, summary);
        }
    }

    fn take_message(
        &mut self,
        key: &Key,
        record: &Record<'_>,
        summary: &mut Summary,
        place: Place<'_>,
    ) {
        let message = Message::parse(record.message);
        match message {
            Message::Other => return,
            Message::Foreign(language) => {
                self.foreign_messages += 1;
                summary.facts.translated_messages += 1;
                summary.facts.language = summary.facts.language.or(language);
            }
            Message::Plan => summary.facts.plans += 1,
            Message::Audit => summary.facts.audits += 1,
            _ => self.known_messages += 1,
        }
        match message {
            Message::Received => {
                self.replace(key, record, summary);
            }
            Message::Authorized(names) => self.connect(key, record, names, summary),
            Message::ReplicationAuthorized => {
                let session = self.entry(key, record, summary);
                session.is_replication = true;
            }
            Message::Disconnection => self.disconnect(key, record, summary),
            Message::Restart => self.restart(record, summary),
            Message::Died(pid) => self.remove(&Key::Process(pid), record.time, summary),
            Message::Begin(step) => {
                if let Some((session, rest)) = self.acting(key, record, record.time, summary) {
                    steps::begin(session, step, record, rest, summary, place);
                }
            }
            Message::End { micros, step: None } => {
                summary.facts.bare_durations += 1;
                if let Some(session) = self.sessions.get_mut(key) {
                    steps::end_bare(session, micros, record, &mut self.output, summary);
                }
            }
            Message::End { micros, step: Some(step) } => {
                let start = record.time - std::time::Duration::from_micros(micros);
                if let Some((session, rest)) = self.acting(key, record, start, summary) {
                    steps::end(session, step, micros, record, rest, summary, place);
                }
            }
            Message::Known
            | Message::Plan
            | Message::Audit
            | Message::Foreign(_)
            | Message::Other => {}
        }
    }

    /// Keeps a session's names up to date, counts lost lines, and ends it if its process was started
    /// again.
    fn look_at_session(&mut self, key: &Key, record: &Record<'_>, summary: &mut Summary) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        if !session.is_same(record) {
            self.remove(key, record.time, summary);
            return;
        }
        session.seen = self.clock;
        session.learn(record);
        summary.facts.lost_lines += session.lost_lines(record);
    }

    /// The session of a client's action, with a Connect if it was not seen to connect. `None` for what
    /// is no client: walsenders, parallel workers, background processes.
    fn acting(
        &mut self,
        key: &Key,
        record: &Record<'_>,
        start: Timestamp,
        summary: &mut Summary,
    ) -> Option<(&mut Session, Rest<'_>)> {
        if !is_client(record) {
            return None;
        }
        self.entry(key, record, summary);
        let session = self.sessions.get_mut(key)?;
        if session.is_replication {
            return None;
        }
        if !session.is_connected {
            session.is_connected = true;
            summary.facts.joined_midway += 1;
            session.pipelines.joined_midway();
            if record.tag == b"idle in transaction" {
                summary.facts.joined_in_transaction += 1;
            }
            let connect = session.event(start, Action::Connect, Source::Inferred, b"");
            self.output.emit_whole(session, connect, summary);
        }
        Some((session, Rest { output: &mut self.output, texts: &mut self.texts }))
    }

    /// The session of a record, made if there is none.
    fn entry(&mut self, key: &Key, record: &Record<'_>, summary: &mut Summary) -> &mut Session {
        if self.sessions.len() >= SESSIONS_MAX && !self.sessions.contains_key(key) {
            self.evict(record.time, summary);
        }
        let clock = self.clock;
        let gone = self.gone.as_ref().filter(|(process, _)| process == key).map(|(_, id)| id);
        self.sessions.entry(key.clone()).or_insert_with(|| {
            summary.facts.sessions += 1;
            Session::new(record, clock, gone)
        })
    }

    /// A new session in place of whatever was there.
    fn replace(&mut self, key: &Key, record: &Record<'_>, summary: &mut Summary) -> &mut Session {
        self.remove(key, record.time, summary);
        self.entry(key, record, summary)
    }

    fn connect(
        &mut self,
        key: &Key,
        record: &Record<'_>,
        names: Authorized<'_>,
        summary: &mut Summary,
    ) {
        self.first_connected = self.first_connected.or(record.session_start);
        if self.sessions.get(key).is_some_and(|session| session.is_connected) {
            self.remove(key, record.time, summary);
        }
        self.entry(key, record, summary);
        let Some(session) = self.sessions.get_mut(key) else { return };
        session.learn_names(names.user, names.database, names.application);
        session.is_connected = true;
        let event = session.event(record.time, Action::Connect, Source::Session, b"");
        self.output.open(session, event, summary);
    }

    fn disconnect(&mut self, key: &Key, record: &Record<'_>, summary: &mut Summary) {
        // A session whose only record is its end did nothing that could be told.
        let Some(mut session) = self.sessions.remove(key) else { return };
        let event = session.event(record.time, Action::Disconnect, Source::Session, b"");
        self.output.close(&mut session, summary);
        if session.is_connected {
            self.output.emit_whole(&mut session, event, summary);
        }
    }

    /// Ends a session that nothing was heard of ending.
    fn remove(&mut self, key: &Key, time: Timestamp, summary: &mut Summary) {
        let Some(mut session) = self.sessions.remove(key) else { return };
        self.gone = Some((key.clone(), session.id()));
        self.output.close(&mut session, summary);
        if session.is_connected {
            let event = session.event(time, Action::Disconnect, Source::Inferred, b"");
            self.output.emit_whole(&mut session, event, summary);
        }
    }

    /// The server began anew: no session of before is left.
    fn restart(&mut self, record: &Record<'_>, summary: &mut Summary) {
        let mut keys: Vec<_> = self.sessions.iter().map(|(key, s)| (s.seen, key.clone())).collect();
        keys.sort_by_key(|(seen, _)| *seen);
        for (_, key) in keys {
            self.remove(&key, record.time, summary);
        }
    }

    /// Ends the quarter of all sessions that was silent longest.
    fn evict(&mut self, time: Timestamp, summary: &mut Summary) {
        let mut seen: Vec<_> = self.sessions.iter().map(|(key, s)| (s.seen, key.clone())).collect();
        let quarter = seen.len() / 4;
        seen.select_nth_unstable_by_key(quarter, |(seen, _)| *seen);
        seen.truncate(quarter);
        seen.sort_by_key(|(seen, _)| *seen);
        for (_, key) in seen {
            self.remove(&key, time, summary);
        }
    }
}

/// What a step needs beside its session.
struct Rest<'a> {
    output: &'a mut Output,
    texts: &'a mut Texts,
}

/// Whether a record comes from a process that serves a client, as far as the log says.
fn is_client(record: &Record<'_>) -> bool {
    let kind = record.backend_type;
    !record.has_leader
        && (kind.is_empty() || kind == b"client backend" || kind == b"standalone backend")
}

impl Sessions for Tracker {
    fn names(&self, session_id: &[u8], pid: Option<u32>) -> Names<'_> {
        let pid = pid.or_else(|| crate::pieces::session_id(session_id).map(|(_, pid)| pid));
        match pid.and_then(|pid| self.sessions.get(&Key::Process(pid))) {
            Some(session) => session.names(),
            None => Names::default(),
        }
    }
}
