//! What a person sees when a command fails: the chain of causes in one line, then what to do.
//!
//! ```text
//! howdah: cannot read the capture old: old/manifest.json: No such file or directory (os error 2)
//! hint: `howdah capture import LOG -o old` makes a capture
//! ```
//!
//! Commands return `anyhow::Result`. They add facts by [`anyhow::Context`], advice by [`WithHint`],
//! and say by [`wrong_usage`] that the mistake is in the command line.

use std::{
    error::Error,
    fmt::{self, Write as _},
    io,
    process::ExitCode,
};

use crate::{
    outcome::{self, Outcome},
    printable, terminal,
};

/// Adds advice to an error.
pub(crate) trait WithHint<T> {
    /// On failure, prints `hint: …` below the error. Hints appear in the order they were added.
    fn hint(self, hint: impl fmt::Display) -> anyhow::Result<T>;
}

impl<T, E: Into<anyhow::Error>> WithHint<T> for Result<T, E> {
    fn hint(self, hint: impl fmt::Display) -> anyhow::Result<T> {
        self.map_err(|error| with_hint(error.into(), hint))
    }
}

/// An error with advice; see [`WithHint::hint`].
pub(crate) fn with_hint(error: anyhow::Error, hint: impl fmt::Display) -> anyhow::Error {
    Hinted { error, hint: hint.to_string() }.into()
}

/// An error for options that cannot be used together, or a value that only the command can judge.
/// The exit code is that of wrong usage.
pub(crate) fn wrong_usage(message: impl fmt::Display) -> anyhow::Error {
    WrongUsage(message.to_string()).into()
}

/// Standard output was closed by its reader, as `howdah … | head` does. Not a failure.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("standard output was closed")]
pub(crate) struct StdoutClosed;

/// Reports a failure on stderr, and gives the code to exit with.
pub(crate) fn exit_code(result: anyhow::Result<Outcome>) -> ExitCode {
    let error = match result {
        Ok(outcome) => return outcome.into(),
        Err(error) => error,
    };
    let causes = causes(&error);
    if causes.iter().any(|cause| is_closed_stdout(*cause)) {
        return ExitCode::from(outcome::DONE);
    }
    // Part of it may be a server's or a file's words.
    terminal::write_stderr(&printable::lines(&report(&error, &causes)));
    ExitCode::from(match causes.iter().any(|cause| cause.is::<WrongUsage>()) {
        true => outcome::WRONG_USAGE,
        false => outcome::FAILED,
    })
}

/// An error with advice. It shows itself as the error it carries, so that a chain reads as if the
/// hint were not there.
#[derive(Debug)]
struct Hinted {
    error: anyhow::Error,
    hint: String,
}

impl fmt::Display for Hinted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl Error for Hinted {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.error.source()
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct WrongUsage(String);

/// Every error of the chain, including those inside [`Hinted`].
fn causes(error: &anyhow::Error) -> Vec<&(dyn Error + 'static)> {
    let mut found = Vec::new();
    for cause in error.chain() {
        found.push(cause);
        if let Some(hinted) = cause.downcast_ref::<Hinted>() {
            // Its chain goes on with its error's own causes, which `causes` visits here.
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

/// The lines for a person. A cause that its parent's text already ends with is not said twice.
fn report(error: &anyhow::Error, causes: &[&(dyn Error + 'static)]) -> String {
    let mut line = String::from("howdah");
    for cause in error.chain() {
        let text = one_line(&cause.to_string());
        if !line.ends_with(&text) {
            let _ = write!(line, ": {text}");
        }
    }
    line.push('\n');
    let hints: Vec<_> = causes.iter().filter_map(|cause| cause.downcast_ref::<Hinted>()).collect();
    // The innermost was added first.
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

    fn shown(error: &anyhow::Error) -> String {
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
            shown(&error),
            "howdah: cannot write the capture: /tmp/x: disk full\n\
             hint: free some space\n\
             hint: or choose another folder\n"
        );
    }

    #[test]
    fn a_cause_its_parent_already_told_is_not_repeated() {
        let error = anyhow::Error::from(io::Error::other("disk full")).context("a: disk full");
        assert_eq!(shown(&error), "howdah: a: disk full\n");
    }

    #[test]
    fn what_a_hint_wraps_still_decides_the_exit_code() {
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
