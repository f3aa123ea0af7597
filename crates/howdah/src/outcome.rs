//! Outcomes of a command, and the exit codes that scripts see.

use std::process::ExitCode;

/// The outcome of a command that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandOutcome {
    /// The command succeeded. A replayed statement that failed is a result, not a failure.
    Done,
    /// The command succeeded, but a check did not pass: for example, a threshold set by the user
    /// was exceeded, or a checked file has errors.
    CheckFailed,
    /// The command succeeded, but its measurements do not answer the question, because the runs
    /// differ too much to be compared.
    NotComparable,
}

/// The command succeeded.
pub(crate) const DONE: u8 = 0;
/// The command failed.
pub(crate) const FAILED: u8 = 1;
/// The command line is invalid. clap exits with the same code.
pub(crate) const WRONG_USAGE: u8 = 2;
/// The command succeeded, but a check did not pass.
pub(crate) const CHECK_FAILED: u8 = 3;
/// The command succeeded, but its measurements do not answer the question.
pub(crate) const NOT_COMPARABLE: u8 = 4;

impl From<CommandOutcome> for ExitCode {
    fn from(outcome: CommandOutcome) -> Self {
        Self::from(match outcome {
            CommandOutcome::Done => DONE,
            CommandOutcome::CheckFailed => CHECK_FAILED,
            CommandOutcome::NotComparable => NOT_COMPARABLE,
        })
    }
}
