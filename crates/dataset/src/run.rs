//! Runs: what came of replaying a capture, on disk.

mod outcome;
mod reader;
mod statement;
mod writer;

use std::sync::Arc;

use howdah_traffic::{Kind, Parameter, SessionId, SqlState, Text, Timestamp};
pub use reader::{Outcomes, Run};
pub use writer::{RunSettings, RunWriter};

/// What came of one event of a capture.
///
/// All durations are in microseconds. The two clocks are apart: *schedule error* is how late the
/// player was although the session was free, *dependency lag* is how late the session was because
/// its previous statement still ran. What came late from its source is neither: *input late*. The
/// three make up the time from `due_us` to `sent_us`.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayOutcome {
    /// When the captured client began the action.
    pub time: Timestamp,
    /// The captured session.
    pub session: SessionId,
    /// The role as captured; empty if not known.
    pub user: Arc<str>,
    /// The database as captured; empty if not known.
    pub database: Arc<str>,
    /// What was done.
    pub kind: Kind,
    /// The statement's fingerprint, if it has one: the same for all literals and parameters.
    pub fingerprint: Option<u64>,
    /// When it should have been sent, since the run started. Negative if before it.
    pub due_us: i64,
    /// When it was sent, since the run started; nothing if it never was.
    pub sent_us: Option<i64>,
    /// From sending it to the end of the answer.
    pub service_us: Option<u64>,
    /// How much later than due it was sent for which the player is to blame.
    pub schedule_error_us: Option<u64>,
    /// How much later than due, or than it was read if that was later, its session became free.
    pub dependency_lag_us: Option<u64>,
    /// How much later than due it came from its source: a live log, say. Runs of version 1 do not
    /// tell.
    pub input_late_us: Option<u64>,
    /// Rows that the server sent or changed, if it said so.
    pub rows: Option<u64>,
    /// How it ended.
    pub disposition: Disposition,
    /// How long it took when it was captured.
    pub captured_us: Option<u64>,
}

/// How the replay of one event ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// The server answered without an error.
    Done,
    /// The server reported an error, or the connection was lost.
    Failed {
        /// The error's code, if a server said it.
        sqlstate: Option<SqlState>,
        /// The error's message.
        message: Text,
    },
    /// It was not sent.
    Skipped {
        /// Why; one of a short list, so that skips can be counted by it.
        reason: Arc<str>,
    },
}

/// What a fingerprint stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// The fingerprint.
    pub fingerprint: u64,
    /// The text with its constants replaced by placeholders.
    pub query: String,
    /// The text of one execution, as captured.
    pub example_sql: Text,
    /// The parameters of that execution, or nothing when the capture does not hold them.
    pub example_parameters: Option<Vec<Parameter>>,
    /// The role that executed it; empty if not known.
    pub user: Arc<str>,
    /// The database that it was executed in; empty if not known.
    pub database: Arc<str>,
}

/// A fingerprint as files hold it: 16 hexadecimal digits.
///
/// Text, because readers that know no unsigned or no nullable integers would otherwise round it.
fn fingerprint_text(fingerprint: u64) -> String {
    format!("{fingerprint:016x}")
}

fn fingerprint_from_text(text: &str) -> Option<u64> {
    // `from_str_radix` alone would also take a sign.
    let digits = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    digits.then(|| u64::from_str_radix(text, 16).ok())?
}

#[cfg(test)]
mod tests;
