//! Error output of a failed command: the chain of causes on one line, then hints.
//!
//! ```text
//! howdah: cannot open the capture: old does not exist
//! hint: `howdah capture import LOG -o old` makes a capture
//! ```
//!
//! Commands return `anyhow::Result`. They add facts with [`anyhow::Context`], advice with
//! [`WithHint`], and mark mistakes in the command line with [`wrong_usage`].

use std::{
    error::Error,
    fmt::{self, Write as _},
    io,
    process::ExitCode,
};

use crate::{
    outcome::{self, CommandOutcome},
    printable,
    terminal::{self, StdoutClosed},
};

/// Extension of `Result` that adds advice to an error.
pub(crate) trait WithHint<T> {
    /// Adds a line `hint: …` to be printed after the error. Hints appear in the order they were
    /// added.
    fn hint(self, hint: impl fmt::Display) -> anyhow::Result<T>;
}

impl<T, E: Into<anyhow::Error>> WithHint<T> for Result<T, E> {
    fn hint(self, hint: impl fmt::Display) -> anyhow::Result<T> {
        self.map_err(|error| with_hint(error.into(), hint))
    }
}

/// Adds advice to an error; see [`WithHint::hint`].
pub(crate) fn with_hint(error: anyhow::Error, hint: impl fmt::Display) -> anyhow::Error {
    HintedError { error, hint: hint.to_string() }.into()
}

/// Creates an error for arguments that clap accepts and the command does not, such as options that
/// cannot be combined. The exit code is the one for wrong usage.
pub(crate) fn wrong_usage(message: impl fmt::Display) -> anyhow::Error {
    WrongUsage(message.to_string()).into()
}

/// Returns the exit code of a command, and reports a failure on stderr. It is not a failure if the
/// reader of standard output has closed it.
pub(crate) fn exit_code(result: anyhow::Result<CommandOutcome>) -> ExitCode {
    let error = match result {
        Ok(outcome) => return outcome.into(),
        Err(error) => error,
    };
    let causes = causes(&error);
    if causes.iter().any(|cause| is_closed_stdout(*cause)) {
        return ExitCode::from(outcome::DONE);
    }
    // The text may contain parts of a server's message or of a file: escape control characters.
    terminal::write_stderr(&printable::escape_lines(&report(&error, &causes)));
    ExitCode::from(if causes.iter().any(|cause| cause.is::<WrongUsage>()) {
        outcome::WRONG_USAGE
    } else {
        outcome::FAILED
    })
}

/// An error with advice. Displays like the error it wraps, so that the hint does not show in the
/// chain of causes.
#[derive(Debug)]
struct HintedError {
    error: anyhow::Error,
    hint: String,
}

impl fmt::Display for HintedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl Error for HintedError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.error.source()
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct WrongUsage(String);

/// Returns every error of the chain, including those inside [`HintedError`].
fn causes(error: &anyhow::Error) -> Vec<&(dyn Error + 'static)> {
    let mut found = Vec::new();
    for cause in error.chain() {
        found.push(cause);
        if let Some(hinted) = cause.downcast_ref::<HintedError>() {
            // The wrapped error has the rest of the chain, which the recursion visits.
            found.extend(causes(&hinted.error));
            break;
        }
    }
    found
}

fn is_closed_stdout(cause: &(dyn Error + 'static)) -> bool {
    let inner = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    inner.is_some_and(<dyn Error + Send + Sync>::is::<StdoutClosed>) || cause.is::<StdoutClosed>()
}

/// Formats the error and its hints. A cause is omitted if the preceding text already ends with it.
fn report(error: &anyhow::Error, causes: &[&(dyn Error + 'static)]) -> String {
    let mut line = String::from("howdah");
    for cause in error.chain() {
        let text = one_line(&cause.to_string());
        if !line.ends_with(&text) {
            let _ = write!(line, ": {text}");
        }
    }
    line.push('\n');
    let hints: Vec<_> =
        causes.iter().filter_map(|cause| cause.downcast_ref::<HintedError>()).collect();
    // The innermost hint was added first.
    for hinted in hints.iter().rev() {
        let _ = writeln!(line, "hint: {}", hinted.hint);
    }
    line
}

fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    fn rendered(error: &anyhow::Error) -> String {
        report(error, &causes(error))
    }

    #[test]
    fn chain_is_one_line_and_hints_follow_in_order() {
        let result: anyhow::Result<()> = Err(io::Error::other("disk\nfull"))
            .hint("free some space")
            .context("/tmp/x")
            .hint("or choose another folder")
            .context("cannot write the capture");
        let error = result.expect_err("made to fail");
        assert_eq!(
            rendered(&error),
            "howdah: cannot write the capture: /tmp/x: disk full\n\
             hint: free some space\n\
             hint: or choose another folder\n"
        );
    }

    #[test]
    fn cause_in_parent_text_is_not_repeated() {
        let error = anyhow::Error::from(io::Error::other("disk full")).context("a: disk full");
        assert_eq!(rendered(&error), "howdah: a: disk full\n");
    }

    #[test]
    fn hint_does_not_hide_exit_code_of_wrapped_error() {
        let usage: anyhow::Result<()> = Err(wrong_usage("--a needs --b")).hint("add --b");
        let error = usage.expect_err("made to fail");
        assert!(causes(&error).iter().any(|cause| cause.is::<WrongUsage>()));

        let closed = io::Error::new(io::ErrorKind::BrokenPipe, StdoutClosed);
        let error = Err::<(), _>(closed).hint("no").context("x").expect_err("made to fail");
        assert!(causes(&error).iter().any(|cause| is_closed_stdout(*cause)));
        let peer: anyhow::Error = io::Error::from(io::ErrorKind::BrokenPipe).into();
        assert!(!causes(&peer).iter().any(|cause| is_closed_stdout(*cause)));
    }
}
