//! [`Decoder`]: from the tapes of all workers to events.

use std::{
    collections::HashMap,
    fmt,
    hash::{BuildHasherDefault, Hasher},
    sync::Arc,
};

use howdah_traffic::{Event, SessionId, Text, Timestamp};
use howdah_wire::{Backend, Tag};

use crate::{
    record::{Kind, Reader, Record},
    session::{Beginning, Desk, Names, Prepared, Rows, Session},
    tally::Tally,
    texts::Texts,
};

/// Role and database of a pool, by its number; `None` if there is no such pool any more.
pub type WhoIs = Box<dyn Fn(u32) -> Option<(Arc<str>, Arc<str>)> + Send>;

/// Reads tapes.
pub(crate) struct Decoder {
    /// By their numbers.
    workers: Vec<Worker>,
    texts: Texts,
    who_is: WhoIs,
    rows: Rows,
    /// When time 0 of the tapes was.
    zero: Timestamp,
    /// Begins the names of sessions, so that two captures of one pooler can be merged.
    prefix: String,
    pub(crate) tally: Tally,
}

impl fmt::Debug for Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decoder").field("tally", &self.tally).finish_non_exhaustive()
    }
}

/// What is known of one worker's clients.
#[derive(Debug, Default)]
struct Worker {
    sessions: HashMap<u32, Session, BuildHasherDefault<Spread>>,
    texts: HashMap<u64, Arc<Prepared>>,
}

/// Spreads numbers that a tape has counted: nobody chooses them, so nobody can choose those that collide.
#[derive(Debug, Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32((*byte).into()));
    }

    fn write_u32(&mut self, number: u32) {
        // 2⁶⁴ divided by the golden ratio: neighbours come to lie far apart.
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

impl Decoder {
    pub(crate) fn new(who_is: WhoIs, rows: Rows, zero: Timestamp) -> Self {
        let seconds = Timestamp::now().as_micros() / 1_000_000;
        Self {
            workers: Vec::new(),
            texts: Texts::default(),
            who_is,
            rows,
            zero,
            prefix: format!("{seconds:x}"),
            tally: Tally::default(),
        }
    }

    /// Takes a piece of a worker's tape, and gives the events whose outcome it tells.
    pub(crate) fn take(&mut self, number: usize, bytes: &[u8], give: &mut dyn FnMut(&Event)) {
        let mut reader = Reader::new(bytes);
        while let Some(record) = reader.record() {
            if self.record(number, &record, &mut reader, give).is_none() {
                debug_assert!(false, "a worker wrote half a record");
                return;
            }
        }
    }

    fn record(
        &mut self,
        number: usize,
        record: &Record,
        reader: &mut Reader<'_>,
        give: &mut dyn FnMut(&Event),
    ) -> Option<()> {
        if self.workers.len() <= number {
            self.workers.resize_with(number + 1, Worker::default);
        }
        let worker = self.workers.get_mut(number)?;
        let (tally, texts) = (&mut self.tally, &mut self.texts);
        let mut desk = Desk { rows: self.rows, tally, texts, give, zero: self.zero };
        let now = record.time;
        match record.kind {
            Kind::Text => {
                let id = reader.u64()?;
                if let Some(prepared) = Prepared::of(reader.bytes()?) {
                    worker.texts.insert(id, prepared);
                }
                return Some(());
            }
            Kind::Gap => {
                reader.u64()?;
                worker.sessions.values_mut().for_each(|session| session.cut(&mut desk));
                return Some(());
            }
            Kind::Enter => {
                let is_new = reader.byte()? != 0;
                let pool = reader.u32()?;
                let beginning = beginning(reader, &worker.texts)?;
                if let Some(session) = worker.sessions.get_mut(&record.session) {
                    session.resume(beginning, now, &mut desk);
                } else {
                    let session = format!("{}.{number}.{}", self.prefix, record.session);
                    let names = names(&self.who_is, session.into(), pool, &beginning);
                    let mut session = Session::new(names);
                    session.begin(beginning, is_new, now, &mut desk);
                    worker.sessions.insert(record.session, session);
                }
                return Some(());
            }
            _ => {}
        }
        if record.kind == Kind::Left {
            if let Some(mut session) = worker.sessions.remove(&record.session) {
                session.left(now, &mut desk);
            }
            return Some(());
        }
        let mut session = worker.sessions.get_mut(&record.session);
        match record.kind {
            Kind::Said => {
                let bytes = reader.bytes()?;
                session?.said(bytes, now, &mut desk);
            }
            Kind::LeftOut => {
                let bytes = reader.u32()?;
                session?.left_out(bytes, now, &mut desk);
            }
            Kind::Heard => {
                let tag = reader.byte()?;
                let answered = reader.u16()?;
                let body = reader.bytes()?;
                let kind = Backend::from_tag(Tag(tag))?;
                session?.heard(kind, answered, body, now, &mut desk);
            }
            Kind::Granted => {
                if let Some(session) = &mut session {
                    session.granted(now);
                }
            }
            Kind::Cancelled => session?.cancelled(now, &mut desk),
            Kind::Enter | Kind::Text | Kind::Left | Kind::Gap => {}
        }
        Some(())
    }

    /// The tapes have ended: what is under way stays without an outcome.
    pub(crate) fn end(&mut self, give: &mut dyn FnMut(&Event)) {
        let mut tally = self.tally;
        for session in self.workers.iter_mut().flat_map(|worker| worker.sessions.values_mut()) {
            let mut desk = Desk {
                rows: self.rows,
                tally: &mut tally,
                texts: &mut self.texts,
                give: &mut *give,
                zero: self.zero,
            };
            session.cut(&mut desk);
        }
        // That something was under way at the end is no lack.
        tally.cut_short = self.tally.cut_short;
        self.tally = tally;
        self.workers.clear();
    }
}

fn beginning(reader: &mut Reader<'_>, texts: &HashMap<u64, Arc<Prepared>>) -> Option<Beginning> {
    let mut beginning = Beginning::default();
    let unnamed = reader.bytes()?;
    if let Some(prepared) = Prepared::of(unnamed).filter(|_| !unnamed.is_empty()) {
        beginning.statements.set(Text::default(), Some(prepared));
    }
    for _ in 0..reader.u32()? {
        let (name, value) = (reader.bytes()?, reader.bytes()?);
        beginning.settings.push((name.into(), value.into()));
    }
    for _ in 0..reader.u32()? {
        let (name, id) = (reader.bytes()?, reader.u64()?);
        if let Some(prepared) = texts.get(&id) {
            beginning.statements.set(name.into(), Some(Arc::clone(prepared)));
        }
    }
    Some(beginning)
}

fn names(who_is: &WhoIs, session: SessionId, pool: u32, beginning: &Beginning) -> Names {
    let (user, database) = who_is(pool).unwrap_or_default();
    let is_application =
        |(name, _): &&(Text, Text)| name.as_bytes().eq_ignore_ascii_case(b"application_name");
    let application = beginning.settings.iter().find(is_application);
    let application = application.map_or(Arc::default(), |(_, name)| name.to_str_lossy().into());
    Names { session, user, database, application }
}
