//! Runs: the outcomes of replaying a capture, on disk.

mod machine;
mod outcome;
mod reader;
mod statement;
mod writer;

use std::sync::Arc;

use howdah_traffic::{Kind, Parameter, SessionId, SqlState, Text, Timestamp};
pub use machine::{
    CalibrationEnd, CalibrationEndReason, CalibrationInfo, MachineBucket, MachineSeries,
    MachineSummary,
};
pub use reader::{Outcomes, ReplayRun};
pub use writer::{RunSettings, RunWriter};

pub(crate) use machine::FILE_NAME as MACHINE_FILE_NAME;

/// The outcome of replaying one event.
///
/// All durations are in microseconds. A delay has up to four parts: *schedule error* is how late
/// the player was although the session was free, *dependency lag* is how long the session's
/// previous statement was still running, *input late* is how late the event arrived from its
/// source, *order wait* is how long it waited for transactions of other sessions. Together they are
/// the time from `due_us` to `sent_us`.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayOutcome {
    /// Time at which the captured client started the action.
    pub time: Timestamp,
    /// Name of the captured session.
    pub session: SessionId,
    /// The role as captured; empty if unknown.
    pub user: Arc<str>,
    /// The database as captured; empty if unknown.
    pub database: Arc<str>,
    /// The kind of the event.
    pub kind: Kind,
    /// The statement's fingerprint, if it has one: the same for all literals and parameters.
    pub fingerprint: Option<u64>,
    /// Time at which the event was due, relative to the start of the replay.
    pub due_us: i64,
    /// Time at which the event was sent, relative to the start of the replay; `None` if it was not
    /// sent.
    pub sent_us: Option<i64>,
    /// Time from the moment at which the server could start on the event, because it was sent and
    /// the events before it in its pipeline were done, to the end of the reply.
    pub service_us: Option<u64>,
    /// The part of the event's delay that the player caused. `None`, like the other two parts, if
    /// the event was not sent, or the replay has no schedule (rate `max`).
    pub schedule_error_us: Option<u64>,
    /// The part of the event's delay during which its session was busy.
    pub dependency_lag_us: Option<u64>,
    /// The part of the event's delay that its source caused, for example a live log. `None` also in
    /// runs of format version 1.
    pub input_late_us: Option<u64>,
    /// Number of rows returned or changed, if the server reported it.
    pub rows: Option<u64>,
    /// How the replay of the event ended.
    pub disposition: Disposition,
    /// Duration of the event when it was captured.
    pub captured_us: Option<u64>,
    /// The part of the event's delay during which it waited for transactions that it followed in
    /// the capture. `None` if it did not wait, and in runs before format version 3.
    pub order_wait_us: Option<u64>,
    /// Number of rows returned or changed when it was captured, if captured.
    pub captured_rows: Option<u64>,
    /// Whether the result was the captured one; `None` if that was not checked.
    pub check: Option<ResultCheck>,
}

/// Whether a statement returned the captured result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultCheck {
    /// The checksums of all rows, in any order, were equal.
    Same,
    /// The checksums of the rows, or their numbers, were different.
    Different,
}

/// The result of replaying one event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// The event was replayed without an error.
    Done,
    /// The server reported an error, the connection was lost, or the event could not be sent.
    Failed {
        /// SQLSTATE of the error, if a server reported one.
        sqlstate: Option<SqlState>,
        /// Message of the error.
        message: Text,
    },
    /// The event was not sent, or it was still running when the replay ended or was interrupted.
    Skipped {
        /// The reason, from a short list, so that skips can be counted by reason.
        reason: Arc<str>,
    },
    /// The event was not sent because of the policy for late sessions or a limit on memory.
    Dropped {
        /// The policy or limit, from a short list.
        reason: Arc<str>,
    },
}

/// A statement of a run, with an example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatementInfo {
    /// Hash of the normal form, which identifies the statement.
    pub fingerprint: u64,
    /// The text with its constants replaced with placeholders.
    pub query: String,
    /// The text of one execution, as captured.
    pub example_sql: Text,
    /// The parameters of that execution; `None` if the capture does not have them.
    pub example_parameters: Option<Vec<Parameter>>,
    /// The role that executed the example; empty if unknown.
    pub user: Arc<str>,
    /// The database that the example was executed in; empty if unknown.
    pub database: Arc<str>,
}

/// Formats a fingerprint as it is stored in files: 16 hexadecimal digits.
///
/// Fingerprints are stored as text, because readers that lack unsigned or nullable integers would
/// round a number.
fn fingerprint_text(fingerprint: u64) -> String {
    format!("{fingerprint:016x}")
}

fn fingerprint_from_text(text: &str) -> Option<u64> {
    // `from_str_radix` alone would also accept a sign.
    let digits = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    digits.then(|| u64::from_str_radix(text, 16).ok())?
}

#[cfg(test)]
mod tests;
