//! [`TrafficDecoder`]: decodes the records of all workers into events.

use std::{
    collections::HashMap,
    fmt,
    hash::{BuildHasherDefault, Hasher},
    sync::Arc,
};

use howdah_traffic::{Event, SessionId, Text, Timestamp};
use howdah_wire::{Backend, Tag};

use crate::live::{
    buffer::BufferChunk,
    counts::RecorderCounts,
    parsed_statement::ParsedStatement,
    record::{BufferRecord, RecordKind, RecordReader},
    session::{
        CopyRowLimits, CopyRows, DecodeContext, ReceivedResult, SessionDecoder, SessionIdentity,
        SessionState,
    },
    statement_cache::StatementCache,
};

/// A function that returns the role and the database of the pool with a given number; `None` if the
/// pool no longer exists.
pub type PoolLookup = Box<dyn Fn(u32) -> Option<(Arc<str>, Arc<str>)> + Send>;

/// A decoder of the chunks of all workers into events, without threads or files.
pub struct TrafficDecoder {
    /// The state of each worker's clients, by worker number.
    workers: Vec<WorkerState>,
    texts: StatementCache,
    pool_lookup: PoolLookup,
    rows: CopyRowLimits,
    /// The wall-clock time of time 0 in the records.
    clock_origin: Timestamp,
    /// Prefix of session names, so that two captures of one pooler can be merged.
    prefix: String,
    tally: RecorderCounts,
}

impl fmt::Debug for TrafficDecoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrafficDecoder").field("tally", &self.tally).finish_non_exhaustive()
    }
}

/// The decoder's state for the clients of one worker.
#[derive(Debug, Default)]
struct WorkerState {
    sessions: HashMap<u32, SessionDecoder, BuildHasherDefault<CounterHasher>>,
    texts: HashMap<u64, Arc<ParsedStatement>>,
}

/// A hasher of numbers that a buffer has assigned. A simple hash is safe, because clients cannot
/// choose these numbers to cause collisions.
#[derive(Debug, Default)]
struct CounterHasher(u64);

impl Hasher for CounterHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32((*byte).into()));
    }

    fn write_u32(&mut self, number: u32) {
        // 2⁶⁴ divided by the golden ratio: spreads consecutive numbers.
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

impl TrafficDecoder {
    /// Creates a decoder. `clock_origin` is the wall-clock time of time 0 of the workers' clock.
    pub fn new(pool_lookup: PoolLookup, copy: CopyRows, clock_origin: Timestamp) -> Self {
        let seconds = Timestamp::now().as_micros() / 1_000_000;
        Self {
            workers: Vec::new(),
            texts: StatementCache::default(),
            pool_lookup,
            rows: copy.into(),
            clock_origin,
            prefix: format!("{seconds:x}"),
            tally: RecorderCounts::default(),
        }
    }

    /// Decodes a chunk of a worker, and emits the events that it completes.
    pub fn decode(&mut self, chunk: &BufferChunk, emit: &mut dyn FnMut(&Event)) {
        let mut reader = RecordReader::new(chunk.bytes());
        let number = chunk.worker();
        while let Some(record) = reader.record() {
            if self.decode_record(number, &record, &mut reader, emit).is_none() {
                debug_assert!(false, "a worker wrote an incomplete record");
                return;
            }
        }
    }

    fn decode_record(
        &mut self,
        number: usize,
        record: &BufferRecord,
        reader: &mut RecordReader<'_>,
        emit: &mut dyn FnMut(&Event),
    ) -> Option<()> {
        if self.workers.len() <= number {
            self.workers.resize_with(number + 1, WorkerState::default);
        }
        let worker = self.workers.get_mut(number)?;
        let (tally, texts) = (&mut self.tally, &mut self.texts);
        let mut context =
            DecodeContext { rows: self.rows, tally, texts, emit, clock_origin: self.clock_origin };
        let now = record.time;
        match record.kind {
            RecordKind::StatementText => {
                let id = reader.u64()?;
                if let Some(prepared) = ParsedStatement::from_parse_body(reader.bytes()?) {
                    worker.texts.insert(id, prepared);
                }
                return Some(());
            }
            // The worker dropped whole chunks, so any session may have lost messages.
            RecordKind::Gap => {
                reader.u64()?;
                worker.sessions.values_mut().for_each(|session| session.interrupt(&mut context));
                return Some(());
            }
            RecordKind::SessionStart => {
                let is_new = reader.byte()? != 0;
                let pool = reader.u32()?;
                let state = read_session_state(reader, &worker.texts)?;
                // After a gap the worker sends the state of each session again.
                if let Some(session) = worker.sessions.get_mut(&record.session) {
                    session.resume(state, now, &mut context);
                } else {
                    let session = format!("{}.{number}.{}", self.prefix, record.session);
                    let names = session_names(&self.pool_lookup, session.into(), pool, &state);
                    let mut session = SessionDecoder::new(names);
                    session.start(state, is_new, now, &mut context);
                    worker.sessions.insert(record.session, session);
                }
                return Some(());
            }
            _ => {}
        }
        if record.kind == RecordKind::SessionEnd {
            if let Some(mut session) = worker.sessions.remove(&record.session) {
                session.on_disconnect(now, &mut context);
            }
            return Some(());
        }
        let mut session = worker.sessions.get_mut(&record.session);
        match record.kind {
            RecordKind::Frontend => {
                let bytes = reader.bytes()?;
                session?.handle_frontend(bytes, now, &mut context);
            }
            RecordKind::Omitted => {
                let bytes = reader.u32()?;
                session?.handle_omitted(bytes, now, &mut context);
            }
            RecordKind::Backend => {
                let tag = reader.byte()?;
                let answered = reader.u16()?;
                let body = reader.bytes()?;
                let kind = Backend::from_tag(Tag(tag))?;
                session?.handle_backend(kind, answered, body, now, &mut context);
            }
            RecordKind::Result => {
                let is_complete = reader.byte()? != 0;
                let checksum = reader.u64()?;
                let first_row = reader.bytes()?;
                session?.result =
                    Some(ReceivedResult::new(is_complete.then_some(checksum), first_row));
            }
            RecordKind::ServerAssigned => {
                if let Some(session) = &mut session {
                    session.on_server_assigned(now);
                }
            }
            RecordKind::Cancel => session?.on_cancel(now, &mut context),
            RecordKind::SessionStart
            | RecordKind::StatementText
            | RecordKind::SessionEnd
            | RecordKind::Gap => {}
        }
        Some(())
    }

    /// Returns the counts of the records decoded so far. The counts of the queues (`gaps`,
    /// `lost_bytes`) and of the written events (`events`, `calls`) are 0.
    pub fn counts(&self) -> RecorderCounts {
        self.tally
    }

    /// Ends decoding, and emits the events of pending requests, whose outcome stays unknown.
    pub fn finish(&mut self, emit: &mut dyn FnMut(&Event)) {
        let mut tally = self.tally;
        for session in self.workers.iter_mut().flat_map(|worker| worker.sessions.values_mut()) {
            let mut context = DecodeContext {
                rows: self.rows,
                tally: &mut tally,
                texts: &mut self.texts,
                emit: &mut *emit,
                clock_origin: self.clock_origin,
            };
            session.interrupt(&mut context);
        }
        // Requests that are pending at the end are not a gap.
        tally.cut_short = self.tally.cut_short;
        self.tally = tally;
        self.workers.clear();
    }
}

fn read_session_state(
    reader: &mut RecordReader<'_>,
    texts: &HashMap<u64, Arc<ParsedStatement>>,
) -> Option<SessionState> {
    let mut state = SessionState::default();
    let unnamed = reader.bytes()?;
    if let Some(prepared) =
        ParsedStatement::from_parse_body(unnamed).filter(|_| !unnamed.is_empty())
    {
        state.statements.set(Text::default(), Some(prepared));
    }
    for _ in 0..reader.u32()? {
        let (name, value) = (reader.bytes()?, reader.bytes()?);
        state.settings.push((name.into(), value.into()));
    }
    for _ in 0..reader.u32()? {
        let (name, id) = (reader.bytes()?, reader.u64()?);
        if let Some(prepared) = texts.get(&id) {
            state.statements.set(name.into(), Some(Arc::clone(prepared)));
        }
    }
    Some(state)
}

fn session_names(
    who_is: &PoolLookup,
    session: SessionId,
    pool: u32,
    state: &SessionState,
) -> SessionIdentity {
    let (user, database) = who_is(pool).unwrap_or_default();
    let is_application =
        |(name, _): &&(Text, Text)| name.as_bytes().eq_ignore_ascii_case(b"application_name");
    let application = state.settings.iter().find(is_application);
    let application = application.map_or(Arc::default(), |(_, name)| name.to_str_lossy().into());
    SessionIdentity { session, user, database, application }
}
