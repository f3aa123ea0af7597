//! Changes the log level of the process from the console, and opens its log file again.

use std::{io, sync::OnceLock};

use tracing::level_filters::LevelFilter;

/// The functions by which the program lets the pooler control its log.
#[derive(Clone, Copy, Debug)]
pub struct LogControl {
    /// Changes the log level.
    pub set_level: fn(LevelFilter),
    /// Opens the log file again, if there is one, because it may have been renamed.
    pub reopen: fn() -> io::Result<()>,
}

/// The control of the log with the level at process start; unset until [`allow_log_control`] is
/// called.
static LOG: OnceLock<(LogControl, LevelFilter)> = OnceLock::new();

/// The reason why the log level was not changed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LogLevelError {
    #[error("{name}: {value:?} is not {expected}")]
    Value { name: String, value: String, expected: &'static str },
    #[error("parameter {name:?} cannot be changed without a restart")]
    Fixed { name: String },
}

/// Lets the console and reloads control the log of the process. Only the first call has an effect.
pub(crate) fn allow_log_control(control: LogControl) {
    let _ = LOG.set((control, LevelFilter::current()));
}

/// Opens the log file of the process again, after a rotation.
pub(crate) fn reopen_log() {
    if let Some((log, _)) = LOG.get()
        && let Err(error) = (log.reopen)()
    {
        tracing::warn!(%error, "cannot open the log file again");
    }
}

/// Whether a key sets the log level.
pub(crate) fn is_log_level(name: &str) -> bool {
    matches!(name, "verbose" | "log-level")
}

/// Sets the log level by the key `verbose` or `log-level`. Returns the change; `None` if the level
/// stays the same.
///
/// # Errors
///
/// The value is not a level, or changes are not allowed.
pub(crate) fn set_log_level(name: &str, value: &str) -> Result<Option<String>, LogLevelError> {
    let fixed = || LogLevelError::Fixed { name: name.to_owned() };
    let (log, at_start) = LOG.get().ok_or_else(fixed)?;
    let level = parse_level(name, value, *at_start)?;
    let before = LevelFilter::current();
    if level == before {
        return Ok(None);
    }
    (log.set_level)(level);
    let change = format!("log-level: {before} -> {level}");
    tracing::info!("settings: {change}");
    Ok(Some(change))
}

/// Parses a level. `verbose` has PgBouncer's numbers: 0 is the level at start, at most info; 1 is
/// debug; higher numbers are trace.
fn parse_level(
    name: &str,
    value: &str,
    at_start: LevelFilter,
) -> Result<LevelFilter, LogLevelError> {
    let wrong = |expected| {
        let (name, value) = (name.to_owned(), value.to_owned());
        LogLevelError::Value { name, value, expected }
    };
    if name == "verbose" {
        return match value.parse::<u32>() {
            Ok(0) => Ok(at_start.min(LevelFilter::INFO)),
            Ok(1) => Ok(LevelFilter::DEBUG),
            Ok(_) => Ok(LevelFilter::TRACE),
            Err(_) => Err(wrong("a whole number")),
        };
    }
    let is_word = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_lowercase());
    let found = value.parse().ok().filter(|_| is_word);
    found.ok_or_else(|| wrong("one of off, error, warn, info, debug, trace"))
}

/// Returns the value of `verbose` in SHOW CONFIG, and whether it can be changed.
pub(crate) fn verbosity() -> (&'static str, bool) {
    let number = match LevelFilter::current() {
        LevelFilter::TRACE => "2",
        LevelFilter::DEBUG => "1",
        _ => "0",
    };
    (number, LOG.get().is_some())
}

#[test]
fn log_level_accepts_names_and_pgbouncer_numbers() {
    let set = |name, value| parse_level(name, value, LevelFilter::WARN);
    assert_eq!(set("verbose", "0"), Ok(LevelFilter::WARN));
    assert_eq!(parse_level("verbose", "0", LevelFilter::TRACE), Ok(LevelFilter::INFO));
    assert_eq!(set("verbose", "1"), Ok(LevelFilter::DEBUG));
    assert_eq!(set("verbose", "3"), Ok(LevelFilter::TRACE));
    assert_eq!(set("log-level", "error"), Ok(LevelFilter::ERROR));
    assert_eq!(set("log-level", "off"), Ok(LevelFilter::OFF));
    for (name, value) in
        [("verbose", "-1"), ("verbose", "x"), ("log-level", "3"), ("log-level", "")]
    {
        assert!(set(name, value).is_err(), "{name} {value}");
    }
}
