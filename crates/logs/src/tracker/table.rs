//! The sessions there are, found by what tells them apart.

use std::sync::Arc;

use howdah_traffic::{ActionRef, Source, Timestamp};

use super::{is_client, output::Output, session::Session};
use crate::{hashing::Map, message::Authorized, record::Record};

/// Sessions, each in a slot that stays its own while it lasts.
#[derive(Debug, Default)]
pub(super) struct Table {
    slots: Vec<Option<Box<Session>>>,
    /// Slots that are empty.
    free: Vec<usize>,
    by_process: Map<u32, usize>,
    by_client: Map<Vec<u8>, usize>,
    /// When the first session that the log saw connect had started, in seconds since the Unix epoch.
    pub(super) first_connected: Option<i64>,
    /// Sessions there were: each has its number.
    sessions: u64,
    /// Records taken: the age of sessions is counted in these.
    clock: u64,
    /// The session ended last and its process, in case that a rebuilt id comes again.
    gone: Option<(Key, Arc<str>)>,
}

/// What tells sessions apart at one time: a process has one session at a time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Process(u32),
    /// The log names neither session nor process: one session for each client address and user.
    Client(Vec<u8>),
}

impl Key {
    #[inline]
    pub(super) fn of(record: &Record<'_>) -> Self {
        match record.pid() {
            Some(pid) => Self::Process(pid),
            None => {
                let names = [record.remote(), record.user(), record.database()];
                Self::Client(names.join(&b'\0'))
            }
        }
    }
}

/// That records of some owner belong to a session, which has learnt all that they say of whose they are.
/// It holds until the session ends or takes other names on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Memo {
    pub(super) slot: usize,
    /// The session's number and the [version](Session::version) of its names; 0 if nothing is known.
    session: u64,
    version: u32,
    /// The records come from a process that serves a client, as far as they say.
    pub(super) is_client: bool,
}

/// Most sessions that are kept at a time. A log without disconnections would fill memory.
const SESSIONS_MAX: usize = 1 << 16;

impl Table {
    /// The slot of a session.
    #[inline]
    pub(super) fn find(&self, key: &Key) -> Option<usize> {
        match key {
            Key::Process(pid) => self.by_process.get(pid).copied(),
            Key::Client(client) => self.by_client.get(client).copied(),
        }
    }

    /// The session in a slot.
    #[inline]
    pub(super) fn session(&mut self, slot: usize) -> Option<&mut Session> {
        self.slots.get_mut(slot)?.as_deref_mut()
    }

    /// The same, to look at.
    pub(super) fn known(&self, slot: usize) -> Option<&Session> {
        self.slots.get(slot)?.as_deref()
    }

    /// The session that is remembered, if it is there and has not changed.
    #[inline]
    pub(super) fn recall(&self, memo: &Memo) -> Option<&Session> {
        let session = self.slots.get(memo.slot)?.as_deref()?;
        let is_same = (session.number, session.version) == (memo.session, memo.version);
        (memo.session != 0 && is_same).then_some(session)
    }

    /// Like [`look_at`](Self::look_at) for a session that was [recalled](Self::recall).
    #[inline]
    pub(super) fn see(
        &mut self,
        memo: Memo,
        record: &Record<'_>,
        output: &mut Output<'_>,
    ) -> Option<&mut Session> {
        self.clock += 1;
        let clock = self.clock;
        let session = self.session(memo.slot)?;
        session.seen = clock;
        session.count_lines(record, &mut output.summary.facts);
        Some(session)
    }

    /// Keeps a session's names up to date, counts lost lines, and ends it if its process was started
    /// again. Gives the slot if it is still its own.
    #[inline]
    pub(super) fn look_at(
        &mut self,
        slot: Option<usize>,
        is_named: bool,
        record: &Record<'_>,
        memo: &mut Memo,
        output: &mut Output<'_>,
    ) -> Option<usize> {
        self.clock += 1;
        let clock = self.clock;
        let slot = slot?;
        let session = self.session(slot)?;
        if !session.is_same(record) {
            self.remove(slot, record.time(), output);
            return None;
        }
        session.seen = clock;
        session.learn(record, is_named);
        session.count_lines(record, &mut output.summary.facts);
        if session.has_learnt(record) {
            let (number, version) = (session.number, session.version);
            *memo = Memo { slot, session: number, version, is_client: is_client(record) };
        }
        Some(slot)
    }

    /// The session of a client's action, with a Connect if it was not seen to connect. `None` for what
    /// is no client: walsenders, parallel workers, background processes.
    pub(super) fn acting(
        &mut self,
        slot: Option<usize>,
        record: &Record<'_>,
        start: Timestamp,
        output: &mut Output<'_>,
    ) -> Option<(usize, &mut Session)> {
        if !is_client(record) {
            return None;
        }
        let (slot, session) = self.entry(slot, record, output);
        if session.is_replication {
            return None;
        }
        if !session.is_connected {
            session.is_connected = true;
            if !session.began_in_log {
                let facts = &mut output.summary.facts;
                facts.joined_midway += 1;
                facts.joined_in_transaction += u64::from(record.tag() == b"idle in transaction");
                session.pipelines.joined_midway();
            }
            let draft = session.draft(start, ActionRef::Connect, Source::Inferred, None);
            output.emit_whole(session, &draft);
        }
        Some((slot, session))
    }

    /// The session of a record, made if there is none.
    pub(super) fn entry(
        &mut self,
        slot: Option<usize>,
        record: &Record<'_>,
        output: &mut Output<'_>,
    ) -> (usize, &mut Session) {
        let slot = match slot.filter(|at| self.slots.get(*at).is_some_and(Option::is_some)) {
            Some(slot) => slot,
            None => self.make(record, output),
        };
        let (clock, slots) = (self.clock, &mut self.slots);
        let new = || Box::new(Session::new(Key::of(record), record, clock, None));
        let session = slots[slot].get_or_insert_with(new);
        (slot, session)
    }

    /// A slot with a new session.
    fn make(&mut self, record: &Record<'_>, output: &mut Output<'_>) -> usize {
        let key = Key::of(record);
        if self.slots.len() - self.free.len() >= SESSIONS_MAX {
            self.evict(record.time(), output);
        }
        output.summary.facts.sessions += 1;
        let gone = self.gone.as_ref().filter(|(process, _)| *process == key).map(|(_, id)| id);
        self.sessions += 1;
        let mut session = Session::new(key.clone(), record, self.clock, gone);
        session.number = self.sessions;
        let session = Box::new(session);
        let slot = self.free.pop().unwrap_or(self.slots.len());
        match self.slots.get_mut(slot) {
            Some(place) => *place = Some(session),
            None => self.slots.push(Some(session)),
        }
        match key {
            Key::Process(pid) => self.by_process.insert(pid, slot),
            Key::Client(client) => self.by_client.insert(client, slot),
        };
        slot
    }

    /// Empties a slot.
    pub(super) fn take_out(&mut self, slot: usize) -> Option<Box<Session>> {
        let session = self.slots.get_mut(slot)?.take()?;
        self.free.push(slot);
        match &session.key {
            Key::Process(pid) => self.by_process.remove(pid),
            Key::Client(client) => self.by_client.remove(client),
        };
        Some(session)
    }

    /// A new session in place of whatever was there.
    pub(super) fn replace(
        &mut self,
        slot: Option<usize>,
        record: &Record<'_>,
        output: &mut Output<'_>,
    ) {
        if let Some(slot) = slot {
            self.remove(slot, record.time(), output);
        }
        self.entry(None, record, output);
    }

    pub(super) fn connect(
        &mut self,
        mut slot: Option<usize>,
        record: &Record<'_>,
        names: Authorized<'_>,
        output: &mut Output<'_>,
    ) {
        self.first_connected = self.first_connected.or(record.session_start());
        if let Some(at) = slot
            && self.session(at).is_some_and(|session| session.is_connected)
        {
            self.remove(at, record.time(), output);
            slot = None;
        }
        let (_, session) = self.entry(slot, record, output);
        session.learn_names(names.user, names.database, names.application);
        session.is_connected = true;
        // A statement's start is its end less its duration. Times of whole seconds would put it before.
        session.floor = record.time();
        let draft = session.draft(record.time(), ActionRef::Connect, Source::Session, None);
        output.open(session, &draft);
    }

    pub(super) fn disconnect(
        &mut self,
        slot: Option<usize>,
        record: &Record<'_>,
        output: &mut Output<'_>,
    ) {
        // A session whose only record is its end did nothing that could be told.
        let Some(mut session) = slot.and_then(|slot| self.take_out(slot)) else { return };
        output.close(&mut session);
        if session.is_connected {
            let draft = session.draft(record.time(), ActionRef::Disconnect, Source::Session, None);
            output.emit_whole(&mut session, &draft);
        }
    }

    /// Ends a session that nothing was heard of ending.
    pub(super) fn remove(&mut self, slot: usize, time: Timestamp, output: &mut Output<'_>) {
        let Some(mut session) = self.take_out(slot) else { return };
        self.gone = Some((session.key.clone(), session.id()));
        output.close(&mut session);
        if session.is_connected {
            let draft = session.draft(time, ActionRef::Disconnect, Source::Inferred, None);
            output.emit_whole(&mut session, &draft);
        }
    }

    /// The server began anew: no session of before is left.
    pub(super) fn restart(&mut self, record: &Record<'_>, output: &mut Output<'_>) {
        for (_, slot) in self.by_age() {
            self.remove(slot, record.time(), output);
        }
    }

    /// Ends the quarter of all sessions that was silent longest.
    fn evict(&mut self, time: Timestamp, output: &mut Output<'_>) {
        let seen = self.by_age();
        for (_, slot) in &seen[..seen.len() / 4] {
            self.remove(*slot, time, output);
        }
    }

    /// Actions that are open stay without an outcome.
    pub(super) fn close_all(&mut self, output: &mut Output<'_>) {
        let sessions = self.slots.iter_mut().flatten();
        let mut open: Vec<_> = sessions.filter(|session| session.open.is_open).collect();
        open.sort_by_key(|session| (session.open.time, session.seen));
        for session in open {
            output.close(session);
        }
    }

    /// When each session was last heard of, and its slot, from old to new.
    fn by_age(&self) -> Vec<(u64, usize)> {
        let seen = |(slot, session): (usize, &Option<Box<Session>>)| {
            session.as_ref().map(|session| (session.seen, slot))
        };
        let mut ages: Vec<_> = self.slots.iter().enumerate().filter_map(seen).collect();
        ages.sort_unstable();
        ages
    }
}
