//! The table of open sessions, by process or client.

use std::sync::Arc;

use howdah_traffic::{ActionRef, Source, Timestamp};

use super::{is_client, message::AuthorizedNames, output::EventOutput, session::TrackedSession};
use crate::{collections::hashing::Map, record::LogRecord};

/// The table of all open sessions. A session keeps its slot as long as it exists.
#[derive(Debug, Default)]
pub(super) struct SessionTable {
    slots: Vec<Option<Box<TrackedSession>>>,
    /// Slots that are empty.
    free: Vec<usize>,
    by_process: Map<u32, usize>,
    by_client: Map<Vec<u8>, usize>,
    /// Start of the first session that was seen connecting, in seconds since the Unix epoch.
    pub(super) first_connected: Option<i64>,
    /// Number of sessions so far, which numbers the next one.
    sessions: u64,
    /// Number of records so far, which measures the age of sessions.
    clock: u64,
    /// The session last removed without a logged end, and its id, to avoid deriving the same id
    /// again.
    last_removed: Option<(SessionKey, Arc<str>)>,
}

/// The key of a session. A process has one session at a time, so keys may repeat later.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum SessionKey {
    Process(u32),
    /// The log shows neither session nor process: one session per client address, user and
    /// database.
    Client(Vec<u8>),
}

impl SessionKey {
    #[inline]
    pub(super) fn from_record(record: &LogRecord<'_>) -> Self {
        match record.pid() {
            Some(pid) => Self::Process(pid),
            None => {
                let names = [record.remote(), record.user(), record.database()];
                Self::Client(names.join(&b'\0'))
            }
        }
    }
}

/// A cached lookup of the session to which some session fields belong, set once the session has
/// stored all of them. Valid until the session ends or its names change.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SessionMemo {
    pub(super) slot: usize,
    /// The session's number and the [version](TrackedSession::version) of its names; 0 if unknown.
    session: u64,
    version: u32,
    /// Whether the records come from a process that serves a client, as far as the log shows.
    pub(super) is_client: bool,
}

/// Maximum number of open sessions, because a log without disconnections would fill memory.
const SESSIONS_MAX: usize = 1 << 16;

impl SessionTable {
    /// Returns the slot of a session.
    #[inline]
    pub(super) fn find(&self, key: &SessionKey) -> Option<usize> {
        match key {
            SessionKey::Process(pid) => self.by_process.get(pid).copied(),
            SessionKey::Client(client) => self.by_client.get(client).copied(),
        }
    }

    /// Returns the session in a slot for changes; `None` if the slot is empty.
    #[inline]
    pub(super) fn get_mut(&mut self, slot: usize) -> Option<&mut TrackedSession> {
        self.slots.get_mut(slot)?.as_deref_mut()
    }

    /// Returns the session in a slot; `None` if the slot is empty.
    pub(super) fn get(&self, slot: usize) -> Option<&TrackedSession> {
        self.slots.get(slot)?.as_deref()
    }

    /// Returns the session of a memo, if it still exists and has not changed.
    #[inline]
    pub(super) fn recall(&self, memo: &SessionMemo) -> Option<&TrackedSession> {
        let session = self.slots.get(memo.slot)?.as_deref()?;
        let is_same = (session.number, session.version) == (memo.session, memo.version);
        (memo.session != 0 && is_same).then_some(session)
    }

    /// Like [`update_session`](Self::update_session) for a session that was
    /// [recalled](Self::recall).
    #[inline]
    pub(super) fn touch(
        &mut self,
        memo: SessionMemo,
        record: &LogRecord<'_>,
        output: &mut EventOutput<'_>,
    ) -> Option<&mut TrackedSession> {
        self.clock += 1;
        let clock = self.clock;
        let session = self.get_mut(memo.slot)?;
        session.last_seen = clock;
        session.count_lines(record, &mut output.summary.facts);
        Some(session)
    }

    /// Updates a session's names and counts lost lines, or removes the session if the record shows
    /// that its process id now belongs to another one. Returns the slot if the session still
    /// exists.
    #[inline]
    pub(super) fn update_session(
        &mut self,
        slot: Option<usize>,
        is_named: bool,
        record: &LogRecord<'_>,
        memo: &mut SessionMemo,
        output: &mut EventOutput<'_>,
    ) -> Option<usize> {
        self.clock += 1;
        let clock = self.clock;
        let slot = slot?;
        let session = self.get_mut(slot)?;
        if !session.matches(record) {
            self.remove(slot, record.time(), output);
            return None;
        }
        session.last_seen = clock;
        session.update_from(record, is_named);
        session.count_lines(record, &mut output.summary.facts);
        if session.is_up_to_date(record) {
            let (number, version) = (session.number, session.version);
            *memo = SessionMemo { slot, session: number, version, is_client: is_client(record) };
        }
        Some(slot)
    }

    /// Returns the slot of the session that performs an action. Emits a Connect if none was logged.
    /// `None` for processes without a client: walsenders, parallel workers, background processes.
    pub(super) fn acting_session(
        &mut self,
        slot: Option<usize>,
        record: &LogRecord<'_>,
        start: Timestamp,
        output: &mut EventOutput<'_>,
    ) -> Option<(usize, &mut TrackedSession)> {
        if !is_client(record) {
            return None;
        }
        let (slot, session) = self.entry(slot, record, output);
        if session.is_replication {
            return None;
        }
        if !session.is_connected {
            session.is_connected = true;
            if !session.started_in_log {
                let facts = &mut output.summary.facts;
                facts.joined_midway += 1;
                facts.joined_in_transaction += u64::from(record.tag() == b"idle in transaction");
                session.pipelines.mark_joined_midway();
            }
            let draft = session.draft(start, ActionRef::Connect, Source::Inferred, None);
            output.emit_complete(session, &draft);
        }
        Some((slot, session))
    }

    /// Returns the session in `slot`, or creates the session of a record if there is none.
    pub(super) fn entry(
        &mut self,
        slot: Option<usize>,
        record: &LogRecord<'_>,
        output: &mut EventOutput<'_>,
    ) -> (usize, &mut TrackedSession) {
        let slot = match slot.filter(|at| self.slots.get(*at).is_some_and(Option::is_some)) {
            Some(slot) => slot,
            None => self.insert(record, output),
        };
        let (clock, slots) = (self.clock, &mut self.slots);
        let new =
            || Box::new(TrackedSession::new(SessionKey::from_record(record), record, clock, None));
        let session = slots[slot].get_or_insert_with(new);
        (slot, session)
    }

    /// Creates a session and returns its slot.
    fn insert(&mut self, record: &LogRecord<'_>, output: &mut EventOutput<'_>) -> usize {
        let key = SessionKey::from_record(record);
        if self.slots.len() - self.free.len() >= SESSIONS_MAX {
            self.evict(record.time(), output);
        }
        output.summary.facts.sessions += 1;
        let previous_id =
            self.last_removed.as_ref().filter(|(process, _)| *process == key).map(|(_, id)| id);
        self.sessions += 1;
        let mut session = TrackedSession::new(key.clone(), record, self.clock, previous_id);
        session.number = self.sessions;
        let session = Box::new(session);
        let slot = self.free.pop().unwrap_or(self.slots.len());
        match self.slots.get_mut(slot) {
            Some(empty) => *empty = Some(session),
            None => self.slots.push(Some(session)),
        }
        match key {
            SessionKey::Process(pid) => self.by_process.insert(pid, slot),
            SessionKey::Client(client) => self.by_client.insert(client, slot),
        };
        slot
    }

    /// Removes the session from a slot and returns it.
    pub(super) fn take(&mut self, slot: usize) -> Option<Box<TrackedSession>> {
        let session = self.slots.get_mut(slot)?.take()?;
        self.free.push(slot);
        match &session.key {
            SessionKey::Process(pid) => self.by_process.remove(pid),
            SessionKey::Client(client) => self.by_client.remove(client),
        };
        Some(session)
    }

    /// Creates a session, after removing the one in `slot`, if any.
    pub(super) fn replace(
        &mut self,
        slot: Option<usize>,
        record: &LogRecord<'_>,
        output: &mut EventOutput<'_>,
    ) {
        if let Some(slot) = slot {
            self.remove(slot, record.time(), output);
        }
        self.entry(None, record, output);
    }

    pub(super) fn connect(
        &mut self,
        mut slot: Option<usize>,
        record: &LogRecord<'_>,
        names: AuthorizedNames<'_>,
        output: &mut EventOutput<'_>,
    ) {
        self.first_connected = self.first_connected.or(record.session_start());
        if let Some(at) = slot
            && self.get_mut(at).is_some_and(|session| session.is_connected)
        {
            self.remove(at, record.time(), output);
            slot = None;
        }
        let (_, session) = self.entry(slot, record, output);
        session.update_names(names.user, names.database, names.application);
        session.is_connected = true;
        // A statement's start is computed from its end and duration. With times in whole seconds it
        // could otherwise precede the Connect.
        session.earliest_start = record.time();
        let draft = session.draft(record.time(), ActionRef::Connect, Source::Session, None);
        output.start_action(session, &draft);
    }

    pub(super) fn disconnect(
        &mut self,
        slot: Option<usize>,
        record: &LogRecord<'_>,
        output: &mut EventOutput<'_>,
    ) {
        // A session whose only record is its disconnection has no actions.
        let Some(mut session) = slot.and_then(|slot| self.take(slot)) else { return };
        output.abandon_action(&mut session);
        if session.is_connected {
            let draft = session.draft(record.time(), ActionRef::Disconnect, Source::Session, None);
            output.emit_complete(&mut session, &draft);
        }
    }

    /// Removes a session whose end was not logged, and emits an inferred Disconnect if it is
    /// connected.
    pub(super) fn remove(&mut self, slot: usize, time: Timestamp, output: &mut EventOutput<'_>) {
        let Some(mut session) = self.take(slot) else { return };
        self.last_removed = Some((session.key.clone(), session.id()));
        output.abandon_action(&mut session);
        if session.is_connected {
            let draft = session.draft(time, ActionRef::Disconnect, Source::Inferred, None);
            output.emit_complete(&mut session, &draft);
        }
    }

    /// Removes all sessions, because the server has restarted.
    pub(super) fn restart(&mut self, record: &LogRecord<'_>, output: &mut EventOutput<'_>) {
        for (_, slot) in self.by_age() {
            self.remove(slot, record.time(), output);
        }
    }

    /// Removes the quarter of all sessions whose last records are oldest.
    fn evict(&mut self, time: Timestamp, output: &mut EventOutput<'_>) {
        let seen = self.by_age();
        for (_, slot) in &seen[..seen.len() / 4] {
            self.remove(*slot, time, output);
        }
    }

    /// Finishes all open actions without an outcome.
    pub(super) fn close_all(&mut self, output: &mut EventOutput<'_>) {
        let sessions = self.slots.iter_mut().flatten();
        let mut open: Vec<_> = sessions.filter(|session| session.open.is_open).collect();
        open.sort_by_key(|session| (session.open.time, session.last_seen));
        for session in open {
            output.abandon_action(session);
        }
    }

    /// Returns the number of each session's last record and the session's slot, in ascending order.
    fn by_age(&self) -> Vec<(u64, usize)> {
        let seen = |(slot, session): (usize, &Option<Box<TrackedSession>>)| {
            session.as_ref().map(|session| (session.last_seen, slot))
        };
        let mut ages: Vec<_> = self.slots.iter().enumerate().filter_map(seen).collect();
        ages.sort_unstable();
        ages
    }
}
