//! Options of an import.

use crate::{
    clock::LogClock, error::OptionsError, prefix::CompiledPrefix,
    server_log_format::ServerLogFormat,
};

/// Options for reading a log. [`ImportOptions::default`] detects everything that can be detected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportOptions {
    /// The log's format, or `None` to detect it from the data.
    pub format: Option<ServerLogFormat>,
    /// `log_line_prefix` of a stderr log, in PostgreSQL's own syntax, or `None` to guess it.
    pub prefix: Option<String>,
    /// `log_timezone`: an IANA name such as `Europe/Vienna`, an offset such as `+05:30`, or an
    /// abbreviation such as `CEST`. It applies to times whose zone in the log is neither UTC nor an
    /// offset. With `None`, abbreviations have the meaning that PostgreSQL gives them by default,
    /// and unknown ones are read as UTC.
    pub timezone: Option<String>,
    /// The time at which the event of an action is emitted.
    pub emit: Emit,
    /// Maximum record size in bytes; more than 512 MiB counts as 512 MiB. Longer records are
    /// rejected and counted.
    pub max_record_bytes: usize,
}

impl Default for ImportOptions {
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

impl ImportOptions {
    /// Checks that the options are usable. The prefix may lack a time, because an envelope such as
    /// syslog may add one.
    ///
    /// # Errors
    ///
    /// The prefix is not valid, or the time zone is not known.
    pub fn check(&self) -> Result<(), OptionsError> {
        LogClock::new(self.timezone.as_deref())?;
        match self.prefix.as_deref().map(CompiledPrefix::compile) {
            Some(Err(error @ OptionsError::PrefixCutShort { .. })) => Err(error),
            _ => Ok(()),
        }
    }
}

/// The time at which the event of an action is emitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Emit {
    /// Emit when the action is known, for replay while the log is still being written. The outcome
    /// is empty unless the log shows the action only at its end, as with
    /// `log_min_duration_statement`.
    Start,
    /// Emit when the outcome is known, or certain to remain unknown: after a duration, an error,
    /// the session's next action or its end, or the end of the input.
    End,
}
