//! The level of the process's log, as far as an operator may change it at the console.

use std::sync::OnceLock;

use tracing::level_filters::LevelFilter;

use super::control::Control;

/// How the level of the log is changed, if it can be: there is one log in a process, and it is the
/// program's.
static LOG_LEVEL: OnceLock<LogLevel> = OnceLock::new();

/// How the level of the process's log is changed.
#[derive(Debug)]
struct LogLevel {
    /// The level that the process began with.
    at_start: LevelFilter,
    change: fn(LevelFilter),
}

/// The level of the log was not changed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum LogLevelError {
    #[error("{name}: {value:?} is {expected}")]
    Value { name: String, value: String, expected: &'static str },
    #[error("parameter {name:?} cannot be changed without a restart")]
    Fixed { name: String },
}

impl Control {
    /// Has operators change the level of the process's log by `change`: `SET log-level` and `SET verbose`.
    /// Until then they cannot. Once only.
    pub fn let_log_level_change(change: fn(LevelFilter)) {
        let _ = LOG_LEVEL.set(LogLevel { at_start: LevelFilter::current(), change });
    }

    /// Whether a key is about the level of the log.
    pub(super) fn is_log_level(name: &str) -> bool {
        matches!(name, "verbose" | "log-level")
    }

    /// Sets the level by one of these keys. Gives the change, unless it is as it was.
    ///
    /// # Errors
    ///
    /// There is no such level, or no log that could be changed.
    pub(super) fn set_log_level(name: &str, value: &str) -> Result<Option<String>, LogLevelError> {
        let fixed = || LogLevelError::Fixed { name: name.to_owned() };
        let log = LOG_LEVEL.get().ok_or_else(fixed)?;
        let level = level(name, value, log.at_start)?;
        let before = LevelFilter::current();
        if level == before {
            return Ok(None);
        }
        (log.change)(level);
        let change = format!("log-level: {before} -> {level}");
        tracing::info!("settings: {change}");
        Ok(Some(change))
    }
}

/// The level that a value means. PgBouncer counts them: 0 is as the process began, but no more than
/// info; 1 is debug, and whatever is above it trace.
fn level(name: &str, value: &str, at_start: LevelFilter) -> Result<LevelFilter, LogLevelError> {
    let wrong = |expected| {
        let (name, value) = (name.to_owned(), value.to_owned());
        LogLevelError::Value { name, value, expected }
    };
    if name == "verbose" {
        return match value.parse::<u32>() {
            Ok(0) => Ok(at_start.min(LevelFilter::INFO)),
            Ok(1) => Ok(LevelFilter::DEBUG),
            Ok(_) => Ok(LevelFilter::TRACE),
            Err(_) => Err(wrong("no whole number")),
        };
    }
    let is_word = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_lowercase());
    let found = value.parse().ok().filter(|_| is_word);
    found.ok_or_else(|| wrong("none of off, error, warn, info, debug, trace"))
}

/// What SHOW CONFIG has as `verbose`, and whether it can be changed.
pub(crate) fn verbosity() -> (&'static str, bool) {
    let number = match LevelFilter::current() {
        LevelFilter::TRACE => "2",
        LevelFilter::DEBUG => "1",
        _ => "0",
    };
    (number, LOG_LEVEL.get().is_some())
}

#[test]
fn levels_have_pgbouncers_numbers_and_words() {
    let set = |name, value| level(name, value, LevelFilter::WARN);
    assert_eq!(set("verbose", "0"), Ok(LevelFilter::WARN));
    assert_eq!(level("verbose", "0", LevelFilter::TRACE), Ok(LevelFilter::INFO));
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
