//! What a person may say about a log before it is read.

use serde::Serialize;

use crate::{clock::Clock, prefix::Prefix};

/// How to read a log. [`Options::default`] guesses everything that can be guessed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The log's format, or `None` to tell it from the data.
    pub format: Option<Format>,
    /// `log_line_prefix` of a stderr log, in PostgreSQL's own syntax, or `None` to guess it.
    pub prefix: Option<String>,
    /// `log_timezone`: an IANA name such as `Europe/Vienna`, an offset such as `+05:30`, or an
    /// abbreviation such as `CEST`. Resolves abbreviations that stand for several zones.
    pub timezone: Option<String>,
    /// When an event is handed out.
    pub emit: Emit,
    /// Longest record that is kept, in bytes. A longer one is rejected, and counted. 512 MiB at most.
    pub max_record_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            format: None,
            prefix: None,
            timezone: None,
            emit: Emit::End,
            max_record_bytes: 128 << 20,
        }
    }
}

impl Options {
    /// Whether the options can be acted on. A prefix may lack the time: in a log that comes through
    /// syslog or the journal, they have it.
    ///
    /// # Errors
    ///
    /// The prefix is not one, or the time zone is not known.
    pub fn check(&self) -> Result<(), OptionsError> {
        Clock::new(self.timezone.as_deref())?;
        match self.prefix.as_deref().map(Prefix::compile) {
            Some(Err(error @ OptionsError::PrefixCutShort { .. })) => Err(error),
            _ => Ok(()),
        }
    }
}

/// The three shapes PostgreSQL writes its log in (`log_destination`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Text lines that begin with `log_line_prefix`.
    Stderr,
    /// `csvlog`: 22 to 26 columns.
    Csv,
    /// `jsonlog`: one object in each line, PostgreSQL 15 and later.
    Json,
}

impl Format {
    /// The word for it in `log_destination`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stderr => "stderr",
            Self::Csv => "csvlog",
            Self::Json => "jsonlog",
        }
    }
}

/// When an event is handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Emit {
    /// As soon as the action is known, for replay while the log is still being written. Its outcome
    /// is empty unless the log tells of the action only at its end, as the duration form does.
    Start,
    /// When the outcome is known: a duration or an error was seen, or the session's next action, or
    /// the end of the input.
    End,
}

/// An option that cannot be acted on. The caller's mistake.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// Without a time there is nothing to replay by. Only syslog and the journal have one beside it.
    #[error("log_line_prefix {prefix:?} has no time: it needs %m, %t or %n")]
    PrefixWithoutTime {
        /// The prefix as given.
        prefix: String,
    },
    /// An escape at the very end, as in `%m %`.
    #[error("log_line_prefix {prefix:?} ends inside an escape")]
    PrefixCutShort {
        /// The prefix as given.
        prefix: String,
    },
    /// Neither an IANA zone, nor an offset, nor a known abbreviation.
    #[error(
        "unknown time zone {timezone:?}: give a name such as Europe/Vienna or an offset such as +05:30"
    )]
    UnknownTimezone {
        /// The zone as given.
        timezone: String,
    },
}
