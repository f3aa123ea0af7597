//! Records as they are found in a piece of input, before anybody knows whose they are.
//!
//! Framing and decoding need the bytes of a piece alone, so pieces can be framed side by side, in any
//! order. What depends on all that came before (sessions, their names, problems) is for the
//! [importer](crate::Importer), which takes frames in the order of the input. A framer gives only
//! records about which there can be no doubt; whatever lies between two frames goes through the
//! format's [reader](crate::reader::Reader), which knows every way a log may be odd.
//!
//! ```text
//! piece    …tail of a record│record│record│junk, or a record to think about│record│head of a reco…
//! frames                     ▔▔▔▔▔▔ ▔▔▔▔▔▔                                  ▔▔▔▔▔▔
//! reader   ▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔               ▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔        ▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔
//! ```
//!
//! So the outcome is what the reader alone would have made of the bytes, whatever the pieces: a frame
//! begins and ends where the reader must begin and end a record in whatever state it comes there.

use howdah_traffic::{SqlState, Timestamp};

use crate::{clock::Assumption, message::Said, pieces::Span, record::Severity};

/// One record: its numbers read, its texts found. See [`Record`](crate::record::Record) for the fields.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    /// Where it begins and ends in its piece.
    pub(crate) start: u32,
    pub(crate) end: u32,
    /// Newlines before it in its piece.
    pub(crate) newlines: u32,
    /// Whose it is: the number of its owner in [`Frames`].
    pub(crate) owner: u32,
    pub(crate) time: Timestamp,
    pub(crate) query_id: Option<i64>,
    pub(crate) lines: Option<(u64, u64)>,
    pub(crate) assumption: Option<Assumption>,
    pub(crate) severity: Severity,
    /// What the message says, as far as that needs nothing but its text.
    pub(crate) said: Said,
    pub(crate) sqlstate: Option<SqlState>,
    pub(crate) vxid: Span,
    pub(crate) tag: Span,
    pub(crate) message: Span,
    pub(crate) detail: Span,
    pub(crate) context: Span,
    pub(crate) statement: Span,
    pub(crate) function: Span,
}

impl Frame {
    /// Nothing yet.
    pub(crate) const EMPTY: Self = Self {
        start: 0,
        end: 0,
        newlines: 0,
        owner: 0,
        time: Timestamp::from_micros(0),
        query_id: None,
        lines: None,
        assumption: None,
        severity: Severity::Log,
        said: Said::Unread,
        sqlstate: None,
        vxid: Span::ABSENT,
        tag: Span::ABSENT,
        message: Span::ABSENT,
        detail: Span::ABSENT,
        context: Span::ABSENT,
        statement: Span::ABSENT,
        function: Span::ABSENT,
    };
}

/// What a record says of whose it is: mostly what the session's records before said.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    pub(crate) session_start: Option<i64>,
    pub(crate) pid: Option<u32>,
    pub(crate) has_leader: bool,
    pub(crate) session_id: Span,
    pub(crate) remote: Span,
    pub(crate) user: Span,
    pub(crate) database: Span,
    pub(crate) application: Span,
    pub(crate) backend_type: Span,
}

impl Owner {
    /// Nothing yet.
    pub(crate) const EMPTY: Self = Self {
        session_start: None,
        pid: None,
        has_leader: false,
        session_id: Span::ABSENT,
        remote: Span::ABSENT,
        user: Span::ABSENT,
        database: Span::ABSENT,
        application: Span::ABSENT,
        backend_type: Span::ABSENT,
    };

    /// The same fields of a prefix that is `by` bytes farther on.
    #[inline]
    pub(crate) fn moved(&self, by: usize) -> Self {
        self.with_spans(|span| span.moved(by))
    }

    /// The reverse.
    pub(crate) fn moved_back(&self, by: usize) -> Self {
        self.with_spans(|span| span.moved_back(by))
    }

    #[inline]
    fn with_spans(&self, change: impl Fn(Span) -> Span) -> Self {
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

    fn spans(&self) -> [Span; 6] {
        let Self { session_id, remote, user, database, application, backend_type, .. } = *self;
        [session_id, remote, user, database, application, backend_type]
    }

    /// Whether two owners in the same bytes say the same.
    #[inline]
    fn is_same(&self, other: &Self, input: &[u8], scratch: &[u8]) -> bool {
        (self.pid, self.session_start, self.has_leader)
            == (other.pid, other.session_start, other.has_leader)
            && self.spans().into_iter().zip(other.spans()).all(|(one, other)| {
                one == other || one.get(input, scratch) == other.get(input, scratch)
            })
    }
}

/// The frames of one piece, in its order.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    pub(crate) frames: Vec<Frame>,
    /// Whose they are. Few pieces have more than some dozens.
    pub(crate) owners: Vec<Owner>,
    /// Where the owner of a process is among them: one more than its number, or 0.
    by_process: Vec<u32>,
    /// Texts that had to be unescaped.
    pub(crate) scratch: Vec<u8>,
    /// The [version](crate::reader::Reader::version) of the reader they were made for.
    pub(crate) version: u32,
    /// The records name their sessions in a way that may be read wrong.
    pub(crate) with_names: bool,
    /// The piece holds nothing beyond ASCII, nor do the texts that were unescaped.
    pub(crate) is_ascii: bool,
}

impl Frames {
    /// Forgets the piece, keeps the memory.
    pub(crate) fn clear(&mut self) {
        (self.version, self.with_names, self.is_ascii) = (0, false, false);
        self.frames.clear();
        self.owners.clear();
        self.by_process.fill(0);
        self.scratch.clear();
        if self.scratch.capacity() > SCRATCH_BYTES_KEPT {
            self.scratch = Vec::new();
        }
    }

    /// Adds an owner, and gives its number.
    #[inline]
    pub(crate) fn add_owner(&mut self, owner: Owner) -> u32 {
        self.owners.push(owner);
        self.owners.len() as u32 - 1
    }

    /// The number of an owner in `piece`, which is added unless one that says the same is there.
    #[inline]
    pub(crate) fn owner(&mut self, owner: &Owner, piece: &[u8]) -> u32 {
        self.by_process.resize(PROCESSES, 0);
        let place = owner.pid.unwrap_or(0) as usize % PROCESSES;
        let known = self.by_process[place].wrapping_sub(1);
        if self.owners.get(known as usize).is_some_and(|k| k.is_same(owner, piece, &self.scratch)) {
            return known;
        }
        let number = self.add_owner(*owner);
        self.by_process[place] = number + 1;
        number
    }
}

/// Processes whose owners are looked for among those that are there.
const PROCESSES: usize = 256;

/// A scratch buffer that grew beyond this for a huge piece is given back afterwards.
const SCRATCH_BYTES_KEPT: usize = 4 << 20;
