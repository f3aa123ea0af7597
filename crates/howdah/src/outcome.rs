//! How a command can end, and the exit codes scripts see.

use std::process::ExitCode;

/// How a command that did not fail ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It did what it was asked. A replayed statement that failed is a result, not a failure.
    Done,
    /// It did what it was asked, and the answer is "no": a threshold the user set was crossed, a
    /// checked file has mistakes.
    No,
}

/// The command did what it was asked.
pub(crate) const DONE: u8 = 0;
/// The command could not do it.
pub(crate) const FAILED: u8 = 1;
/// The command line makes no sense. The same code as clap's.
pub(crate) const WRONG_USAGE: u8 = 2;
/// The command did it, and the answer is "no".
pub(crate) const NO: u8 = 3;

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        Self::from(match outcome {
            Outcome::Done => DONE,
            Outcome::No => NO,
        })
    }
}
