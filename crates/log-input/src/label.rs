//! Parses the keyword at the front of a line of a stderr log: `LOG:  `, `DETAIL:  `.

use serde::Serialize;

/// Severity of a message, named as in an untranslated log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum LogSeverity {
    /// `DEBUG`, at any level.
    Debug,
    /// Log messages for administrators, such as logged statements and checkpoints.
    Log,
    /// Information that the client requested, as by `VACUUM VERBOSE`.
    Info,
    /// A notice to the client, such as the truncation of an identifier.
    Notice,
    /// A likely problem, such as COMMIT outside a transaction block.
    Warning,
    /// `ERROR`: the statement failed.
    Error,
    /// `FATAL`: the session ended.
    Fatal,
    /// `PANIC`: all sessions ended.
    Panic,
}

impl LogSeverity {
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

    /// Returns the severity's keyword in the log, in upper case.
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

    /// Parses the keyword of a severity.
    pub fn from_keyword(word: &[u8]) -> Option<Self> {
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

/// Role of a line of a stderr log in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineLabel {
    /// The message itself.
    Main(LogSeverity),
    /// A further field of the preceding message.
    Field(MessageField),
}

/// A further field of a message. In a stderr log, each one is on a separate line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageField {
    /// Details of the message, such as bind parameters.
    Detail,
    /// A suggestion for solving the problem.
    Hint,
    /// An internally generated query that failed, as in a PL/pgSQL function.
    Query,
    /// The context of the message, such as the call stack of PL functions, or the portal whose
    /// parameters were bound.
    Context,
    /// Function, file and line of the server's source.
    Location,
    /// The server's C call stack (`backtrace_functions`).
    Backtrace,
    /// The client's statement during which the message was written.
    Statement,
}

impl LineLabel {
    /// Placeholder before a label is read.
    pub const NONE: Self = Self::Field(MessageField::Hint);

    /// Parses a keyword, a colon and two spaces at the front of `bytes`; returns the label and its
    /// length.
    ///
    /// Source: `send_message_to_server_log` in `elog.c`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        if bytes.starts_with(b"LOG:  ") {
            return Some((Self::Main(LogSeverity::Log), 6));
        }
        if bytes.starts_with(b"DETAIL:  ") {
            return Some((Self::Field(MessageField::Detail), 9));
        }
        if !bytes.first()?.is_ascii_uppercase() {
            return None;
        }
        let colon = memchr::memchr(b':', &bytes[..bytes.len().min(Self::LONGEST + 1)])?;
        if bytes.get(colon + 1..colon + 3)? != b"  " {
            return None;
        }
        let label = match &bytes[..colon] {
            b"DETAIL" => Self::Field(MessageField::Detail),
            b"STATEMENT" => Self::Field(MessageField::Statement),
            b"LOCATION" => Self::Field(MessageField::Location),
            b"CONTEXT" => Self::Field(MessageField::Context),
            b"HINT" => Self::Field(MessageField::Hint),
            b"QUERY" => Self::Field(MessageField::Query),
            b"BACKTRACE" => Self::Field(MessageField::Backtrace),
            word => Self::Main(LogSeverity::from_keyword(word)?),
        };
        Some((label, colon + 3))
    }

    /// Returns the offset at which a keyword that ends before `end` would start.
    pub fn start(text: &[u8], end: usize) -> usize {
        end - text[..end].iter().rev().take_while(|byte| Self::is_keyword_byte(**byte)).count()
    }

    /// Whether a byte may be part of a keyword.
    #[inline]
    pub fn is_keyword_byte(byte: u8) -> bool {
        byte.is_ascii_uppercase() || byte.is_ascii_digit()
    }

    /// Length of the longest keyword.
    pub const LONGEST: usize = "STATEMENT".len();
}

#[test]
fn label_requires_colon_and_two_spaces() {
    assert_eq!(LineLabel::parse(b"LOG:  x"), Some((LineLabel::Main(LogSeverity::Log), 6)));
    assert_eq!(
        LineLabel::parse(b"STATEMENT:  "),
        Some((LineLabel::Field(MessageField::Statement), 12))
    );
    for not in [&b"LOG: x"[..], b"LOG:", b"", b"log:  x", b"LOGS:  x", b"FEHLER:  x"] {
        assert_eq!(LineLabel::parse(not), None);
    }
}
