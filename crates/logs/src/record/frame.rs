//! Frames: records found in a chunk of input, before their sessions are known.
//!
//! Framing and decoding need only the bytes of one chunk, so chunks can be framed concurrently and
//! in any order. Everything that depends on earlier input (sessions, their names, problems) belongs
//! to the [importer](crate::Importer), which processes frames in input order. A framer returns only
//! unambiguous records; the format's [reader](crate::formats::reader::LogReader) reads everything
//! between two frames, and handles every irregularity of a log.
//!
//! ```text
//! chunk    …tail of a record│record│record│junk, or an ambiguous record  │record│head of a reco…
//! frames                     ▔▔▔▔▔▔ ▔▔▔▔▔▔                                ▔▔▔▔▔▔
//! reader   ▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔               ▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔        ▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔
//! ```
//!
//! So the result equals that of the reader alone, regardless of the chunks: a frame begins and ends
//! where the reader, in any state, would begin and end a record.

use howdah_log_input::LogSeverity;
use howdah_traffic::{SqlState, Timestamp};

use super::{message_fields::MessageFields, spans::FieldSpan};
use crate::clock::Assumption;

/// One record with decoded numbers and the spans of its texts.
/// [`LogRecord`](crate::record::LogRecord) documents the fields.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordFrame {
    /// Offsets of the record in its chunk.
    pub(crate) start: u32,
    pub(crate) end: u32,
    /// Number of newlines before the record in its chunk.
    pub(crate) newlines: u32,
    /// Index of the session fields in [`ChunkFrames::sessions`].
    pub(crate) session: u32,
    pub(crate) time: Timestamp,
    pub(crate) query_id: Option<i64>,
    pub(crate) lines: Option<(u64, u64)>,
    pub(crate) assumption: Option<Assumption>,
    pub(crate) severity: LogSeverity,
    /// Fields parsed from the message alone, without its session.
    pub(crate) message_fields: MessageFields,
    pub(crate) sqlstate: Option<SqlState>,
    pub(crate) vxid: FieldSpan,
    pub(crate) tag: FieldSpan,
    pub(crate) message: FieldSpan,
    pub(crate) detail: FieldSpan,
    pub(crate) context: FieldSpan,
    pub(crate) statement: FieldSpan,
    pub(crate) function: FieldSpan,
}

impl RecordFrame {
    /// A frame without any field.
    pub(crate) const EMPTY: Self = Self {
        start: 0,
        end: 0,
        newlines: 0,
        session: 0,
        time: Timestamp::from_micros(0),
        query_id: None,
        lines: None,
        assumption: None,
        severity: LogSeverity::Log,
        message_fields: MessageFields::NotRead,
        sqlstate: None,
        vxid: FieldSpan::ABSENT,
        tag: FieldSpan::ABSENT,
        message: FieldSpan::ABSENT,
        detail: FieldSpan::ABSENT,
        context: FieldSpan::ABSENT,
        statement: FieldSpan::ABSENT,
        function: FieldSpan::ABSENT,
    };
}

/// The session fields of a record; usually identical to those of the session's previous record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionFields {
    pub(crate) session_start: Option<i64>,
    pub(crate) pid: Option<u32>,
    pub(crate) has_leader: bool,
    pub(crate) session_id: FieldSpan,
    pub(crate) remote: FieldSpan,
    pub(crate) user: FieldSpan,
    pub(crate) database: FieldSpan,
    pub(crate) application: FieldSpan,
    pub(crate) backend_type: FieldSpan,
}

impl SessionFields {
    /// Session fields that are all absent.
    pub(crate) const EMPTY: Self = Self {
        session_start: None,
        pid: None,
        has_leader: false,
        session_id: FieldSpan::ABSENT,
        remote: FieldSpan::ABSENT,
        user: FieldSpan::ABSENT,
        database: FieldSpan::ABSENT,
        application: FieldSpan::ABSENT,
        backend_type: FieldSpan::ABSENT,
    };

    /// Returns the fields of the same prefix `by` bytes further on in the input.
    #[inline]
    pub(crate) fn shifted_right(&self, by: usize) -> Self {
        self.with_spans(|span| span.shifted_right(by))
    }

    /// Reverts [`shifted_right`](Self::shifted_right).
    pub(crate) fn shifted_left(&self, by: usize) -> Self {
        self.with_spans(|span| span.shifted_left(by))
    }

    #[inline]
    fn with_spans(&self, change: impl Fn(FieldSpan) -> FieldSpan) -> Self {
        Self {
            session_id: change(self.session_id),
            remote: change(self.remote),
            user: change(self.user),
            database: change(self.database),
            application: change(self.application),
            backend_type: change(self.backend_type),
            ..*self
        }
    }

    fn spans(&self) -> [FieldSpan; 6] {
        let Self { session_id, remote, user, database, application, backend_type, .. } = *self;
        [session_id, remote, user, database, application, backend_type]
    }

    /// Whether two sets of session fields are equal, with spans compared by their bytes.
    #[inline]
    fn describes_same_session(&self, other: &Self, input: &[u8], scratch: &[u8]) -> bool {
        (self.pid, self.session_start, self.has_leader)
            == (other.pid, other.session_start, other.has_leader)
            && self.spans().into_iter().zip(other.spans()).all(|(one, other)| {
                one == other || one.get(input, scratch) == other.get(input, scratch)
            })
    }
}

/// The frames of one chunk, in input order.
#[derive(Debug, Default)]
pub(crate) struct ChunkFrames {
    pub(crate) frames: Vec<RecordFrame>,
    /// Session fields of the frames, with few repetitions: in most chunks at most a few dozen.
    pub(crate) sessions: Vec<SessionFields>,
    /// For each process id modulo [`PROCESSES`], the last index into `sessions` plus one, or 0.
    by_process: Vec<u32>,
    /// Unescaped texts.
    pub(crate) scratch: Vec<u8>,
    /// The [version](crate::formats::reader::LogReader::version) of the reader for which the frames
    /// are valid.
    pub(crate) version: u32,
    /// Whether names of sessions may have been misread, so that they must be verified.
    pub(crate) has_ambiguous_names: bool,
    /// Whether the chunk and the unescaped texts are ASCII.
    pub(crate) is_ascii: bool,
}

impl ChunkFrames {
    /// Clears the frames and keeps their memory.
    pub(crate) fn clear(&mut self) {
        (self.version, self.has_ambiguous_names, self.is_ascii) = (0, false, false);
        self.frames.clear();
        self.sessions.clear();
        self.by_process.fill(0);
        self.scratch.clear();
        if self.scratch.capacity() > SCRATCH_BYTES_MAX {
            self.scratch = Vec::new();
        }
    }

    /// Adds session fields and returns their index.
    #[inline]
    pub(crate) fn add_session(&mut self, fields: SessionFields) -> u32 {
        self.sessions.push(fields);
        self.sessions.len() as u32 - 1
    }

    /// Whether the session fields with these two indexes are equal.
    pub(crate) fn is_same_session(&self, one: u32, other: u32, chunk: &[u8]) -> bool {
        let (one, other) = (self.sessions.get(one as usize), self.sessions.get(other as usize));
        one.zip(other)
            .is_some_and(|(one, other)| one.describes_same_session(other, chunk, &self.scratch))
    }

    /// Returns the index of session fields. Adds them unless they equal those last added for the
    /// process.
    #[inline]
    pub(crate) fn session_index(&mut self, fields: &SessionFields, chunk: &[u8]) -> u32 {
        self.by_process.resize(PROCESSES, 0);
        let slot = fields.pid.unwrap_or(0) as usize % PROCESSES;
        let known = self.by_process[slot].wrapping_sub(1);
        if self
            .sessions
            .get(known as usize)
            .is_some_and(|k| k.describes_same_session(fields, chunk, &self.scratch))
        {
            return known;
        }
        let number = self.add_session(*fields);
        self.by_process[slot] = number + 1;
        number
    }
}

/// Number of slots for the last session fields of processes, indexed by process id.
const PROCESSES: usize = 256;

/// Maximum retained capacity; a scratch buffer that a huge chunk made larger is freed.
const SCRATCH_BYTES_MAX: usize = 4 << 20;
