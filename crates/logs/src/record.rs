//! One message of the server, in the shape that all three formats are brought to.

use howdah_traffic::{SqlState, Timestamp};
use serde::Serialize;

use crate::{
    frame::{Frame, Owner},
    message::Said,
};

/// A message: a [`Frame`] and its [`Owner`] with the bytes that they were found in. What is asked for is looked up then,
/// because most records are asked for little. Empty bytes stand for what the log does not say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    frame: &'a Frame,
    owner: &'a Owner,
    input: &'a [u8],
    scratch: &'a [u8],
    /// Nothing in it is beyond ASCII, as far as that was looked at.
    is_ascii: bool,
}

macro_rules! accessors {
    ($of:ident: $($(#[$doc:meta])* $name:ident: $type:ty;)*) => {
        $($(#[$doc])* #[inline] pub(crate) fn $name(&self) -> $type { self.$of.$name })*
    };
}

macro_rules! texts {
    ($of:ident: $($(#[$doc:meta])* $name:ident;)*) => {
        $($(#[$doc])* #[inline] pub(crate) fn $name(&self) -> &'a [u8] {
            self.$of.$name.text(self.input, self.scratch)
        })*
    };
}

impl<'a> Record<'a> {
    /// The record of a frame in `input`.
    pub(crate) fn of(
        (frame, owner): (&'a Frame, &'a Owner),
        input: &'a [u8],
        scratch: &'a [u8],
        is_ascii: bool,
    ) -> Self {
        Self { frame, owner, input, scratch, is_ascii }
    }

    accessors! { frame:
        /// When the server wrote it.
        time: Timestamp;
        query_id: Option<i64>;
        /// Number of the message's first line within its session, and of its last.
        lines: Option<(u64, u64)>;
        severity: Severity;
        /// What was read of the message when it was framed.
        said: Said;
        sqlstate: Option<SqlState>;
    }

    accessors! { owner:
        /// When the server process started, in seconds since the Unix epoch.
        session_start: Option<i64>;
        pid: Option<u32>;
        /// It comes from a parallel worker.
        has_leader: bool;
    }

    texts! { frame:
        vxid;
        /// The process title's command tag: of the running statement, or of the step, or `idle`.
        tag;
        message;
        detail;
        context;
        /// The server function that wrote the message.
        function;
    }

    texts! { owner:
        /// `%c`.
        session_id;
        /// Client address, with the port where the log has it.
        remote;
        user;
        database;
        application;
        backend_type;
    }

    /// The statement that was running, if the server named it.
    pub(crate) fn statement(&self) -> Option<&'a [u8]> {
        self.frame.statement.get(self.input, self.scratch)
    }

    /// Whether all its texts are known to be ASCII.
    pub(crate) fn is_ascii(&self) -> bool {
        self.is_ascii
    }
}

/// How much a message matters, in the words of an untranslated log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Severity {
    /// `DEBUG`, whatever its number.
    Debug,
    /// `LOG`.
    Log,
    /// `INFO`.
    Info,
    /// `NOTICE`.
    Notice,
    /// `WARNING`.
    Warning,
    /// `ERROR`: the statement failed.
    Error,
    /// `FATAL`: the session ended.
    Fatal,
    /// `PANIC`: all sessions ended.
    Panic,
}

impl Severity {
    /// Every severity, in the order of declaration.
    pub const ALL: [Self; 8] = [
        Self::Debug,
        Self::Log,
        Self::Info,
        Self::Notice,
        Self::Warning,
        Self::Error,
        Self::Fatal,
        Self::Panic,
    ];

    /// The word in the log.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "DEBUG",
            Self::Log => "LOG",
            Self::Info => "INFO",
            Self::Notice => "NOTICE",
            Self::Warning => "WARNING",
            Self::Error => "ERROR",
            Self::Fatal => "FATAL",
            Self::Panic => "PANIC",
        }
    }

    /// The severity a log's word stands for.
    pub(crate) fn from_word(word: &[u8]) -> Option<Self> {
        Some(match word {
            b"LOG" => Self::Log,
            b"ERROR" => Self::Error,
            b"FATAL" => Self::Fatal,
            b"WARNING" => Self::Warning,
            b"NOTICE" => Self::Notice,
            b"INFO" => Self::Info,
            b"PANIC" => Self::Panic,
            b"DEBUG" | b"DEBUG1" | b"DEBUG2" | b"DEBUG3" | b"DEBUG4" | b"DEBUG5" => Self::Debug,
            _ => return None,
        })
    }
}

/// What a line of a stderr log is to its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Label {
    /// The message itself.
    Main(Severity),
    /// A further field of the message before it.
    Field(Part),
}

/// The further fields of a message, each on a line of its own in a stderr log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Detail,
    Hint,
    Query,
    Context,
    Location,
    Backtrace,
    Statement,
}

impl Label {
    /// Stands where no label was read yet.
    pub(crate) const NONE: Self = Self::Field(Part::Hint);

    /// Reads `WORD:` and two spaces at the front of `bytes`; gives the label and its length.
    ///
    /// Source: `send_message_to_server_log` in `elog.c`.
    pub(crate) fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        if bytes.starts_with(b"LOG:  ") {
            return Some((Self::Main(Severity::Log), 6));
        }
        if bytes.starts_with(b"DETAIL:  ") {
            return Some((Self::Field(Part::Detail), 9));
        }
        if !bytes.first()?.is_ascii_uppercase() {
            return None;
        }
        let colon = memchr::memchr(b':', &bytes[..bytes.len().min(Self::LONGEST + 1)])?;
        if bytes.get(colon + 1..colon + 3)? != b"  " {
            return None;
        }
        let label = match &bytes[..colon] {
            b"DETAIL" => Self::Field(Part::Detail),
            b"STATEMENT" => Self::Field(Part::Statement),
            b"LOCATION" => Self::Field(Part::Location),
            b"CONTEXT" => Self::Field(Part::Context),
            b"HINT" => Self::Field(Part::Hint),
            b"QUERY" => Self::Field(Part::Query),
            b"BACKTRACE" => Self::Field(Part::Backtrace),
            word => Self::Main(Severity::from_word(word)?),
        };
        Some((label, colon + 3))
    }

    /// Bytes of the longest word.
    pub(crate) const LONGEST: usize = "STATEMENT".len();
}

#[test]
fn a_label_needs_its_colon_and_both_spaces() {
    assert_eq!(Label::parse(b"LOG:  x"), Some((Label::Main(Severity::Log), 6)));
    assert_eq!(Label::parse(b"STATEMENT:  "), Some((Label::Field(Part::Statement), 12)));
    for not in [&b"LOG: x"[..], b"LOG:", b"", b"log:  x", b"LOGS:  x", b"FEHLER:  x"] {
        assert_eq!(Label::parse(not), None);
    }
}
