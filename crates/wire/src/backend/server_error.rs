//! The fields of an ErrorResponse or a NoticeResponse.

use std::fmt;

use crate::reader::{BodyReader, DecodeError};

/// An error or notice: the fields of an ErrorResponse or a NoticeResponse.
///
/// Layout: per field a code byte and a string; a zero byte at the end. Each accessor scans for its
/// code; there are about ten fields, of which only severity, SQLSTATE and message are always
/// present. Texts are in the client's encoding and the server's language.
#[derive(Clone)]
pub struct ServerError<'a> {
    fields: BodyReader<'a>,
}

impl<'a> ServerError<'a> {
    pub(super) fn read(reader: &mut BodyReader<'a>) -> Result<Self, DecodeError> {
        let fields = reader.clone();
        while reader.u8("field code")? != 0 {
            reader.string("field")?;
        }
        Ok(Self { fields })
    }

    /// Returns the first field with a code byte, including codes that [`ErrorField`] does not list.
    pub fn field(&self, code: u8) -> Option<&'a [u8]> {
        self.fields().find_map(|(found, text)| (found == code).then_some(text))
    }

    /// Returns all fields, in the order sent.
    pub fn fields(&self) -> impl Iterator<Item = (u8, &'a [u8])> + use<'a> {
        let mut rest = self.fields.clone();
        std::iter::from_fn(move || {
            let code = rest.u8("field code").ok().filter(|code| *code != 0)?;
            Some((code, rest.string("field").ok()?))
        })
    }

    /// Returns the five-character SQLSTATE; empty if the server sent none.
    pub fn sqlstate(&self) -> &'a [u8] {
        self.field(ErrorField::Sqlstate.code()).unwrap_or_default()
    }

    /// Returns the primary message, usually one line; empty if the server sent none.
    pub fn message(&self) -> &'a [u8] {
        self.field(ErrorField::Message.code()).unwrap_or_default()
    }

    /// Returns the severity, if it is known: servers before 9.6 and some poolers send it only in
    /// their language.
    pub fn severity(&self) -> Option<Severity> {
        let text = self
            .field(ErrorField::Severity.code())
            .or_else(|| self.field(ErrorField::LocalizedSeverity.code()))?;
        Severity::ALL.iter().copied().find(|severity| severity.as_str().as_bytes() == text)
    }

    /// Returns the detail field, which may have several lines.
    pub fn detail(&self) -> Option<&'a [u8]> {
        self.field(ErrorField::Detail.code())
    }

    /// Returns the hint field, a suggestion.
    pub fn hint(&self) -> Option<&'a [u8]> {
        self.field(ErrorField::Hint.code())
    }

    /// Returns the error's position in the query text, in characters from 1.
    pub fn position(&self) -> Option<u32> {
        let digits = self.field(ErrorField::Position.code())?;
        std::str::from_utf8(digits).ok()?.parse().ok()
    }

    /// Returns the context field: a call stack.
    pub fn context(&self) -> Option<&'a [u8]> {
        self.field(ErrorField::Context.code())
    }
}

impl fmt::Debug for ServerError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields =
            self.fields().map(|(code, text)| (char::from(code), String::from_utf8_lossy(text)));
        f.debug_map().entries(fields).finish()
    }
}

impl fmt::Display for ServerError<'_> {
    /// Writes `SEVERITY: message (SQLSTATE 12345)`, with U+FFFD where the text is not UTF-8.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = self.field(ErrorField::LocalizedSeverity.code()).unwrap_or(b"ERROR");
        write!(
            f,
            "{}: {} (SQLSTATE {})",
            String::from_utf8_lossy(severity),
            String::from_utf8_lossy(self.message()),
            String::from_utf8_lossy(self.sqlstate()),
        )
    }
}

/// The severity of an error or notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Severity {
    /// The statement failed.
    Error,
    /// The session ends.
    Fatal,
    /// Every session of the server ends.
    Panic,
    /// A possible problem.
    Warning,
    /// Information for the user.
    Notice,
    /// Information for developers.
    Debug,
    /// Information that the user requested.
    Info,
    /// Information for the log.
    Log,
}

impl Severity {
    /// All severities.
    pub const ALL: &[Self] = &[
        Self::Error,
        Self::Fatal,
        Self::Panic,
        Self::Warning,
        Self::Notice,
        Self::Debug,
        Self::Info,
        Self::Log,
    ];

    /// Returns the keyword on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "ERROR",
            Self::Fatal => "FATAL",
            Self::Panic => "PANIC",
            Self::Warning => "WARNING",
            Self::Notice => "NOTICE",
            Self::Debug => "DEBUG",
            Self::Info => "INFO",
            Self::Log => "LOG",
        }
    }

    /// Whether the server closes the connection after it has sent such a message.
    pub const fn closes_connection(self) -> bool {
        matches!(self, Self::Fatal | Self::Panic)
    }
}

/// A field of an error or notice, identified by its code byte. All fields that PostgreSQL defines
/// are included.
///
/// Source: PostgreSQL manual, "Error and Notice Message Fields".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ErrorField {
    /// Severity, translated to the server's language.
    LocalizedSeverity = b'S',
    /// Severity in English, sent since 9.6.
    Severity = b'V',
    /// The five-character SQLSTATE.
    Sqlstate = b'C',
    /// Primary message.
    Message = b'M',
    /// Secondary message, with more detail.
    Detail = b'D',
    /// Suggestion for solving the problem.
    Hint = b'H',
    /// Position in the query text, in characters from 1.
    Position = b'P',
    /// Position in the internal query, in characters from 1.
    InternalPosition = b'p',
    /// Text of a query that the server generated.
    InternalQuery = b'q',
    /// Context: a call stack.
    Context = b'W',
    /// Schema of the object that the error concerns.
    Schema = b's',
    /// Table that the error concerns.
    Table = b't',
    /// Column that the error concerns.
    Column = b'c',
    /// Data type that the error concerns.
    DataType = b'd',
    /// Constraint that the error concerns.
    Constraint = b'n',
    /// Source file of the server that raised the error.
    File = b'F',
    /// Line in the source file.
    Line = b'L',
    /// Function in the source file.
    Routine = b'R',
}

impl ErrorField {
    /// Returns the byte on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }
}
