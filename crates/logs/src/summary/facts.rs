//! [`LogFacts`]: evidence in a log of the settings it was written with.

use serde::Serialize;

use crate::language::Language;

/// Evidence in the log of the settings it was written with, mostly as counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LogFacts {
    /// Statements, executions, fetches and function calls logged at their start (`log_statement`).
    pub statement_form: u64,
    /// Statements, executions, fetches and function calls logged at their end, with text
    /// (`log_min_duration_statement`).
    pub duration_form: u64,
    /// Durations without a text (`log_duration`, or a text that was logged before).
    pub bare_durations: u64,
    /// Parse and bind steps logged with text.
    pub parse_and_bind: u64,
    /// Failed statements and failed steps of the extended protocol whose only record is that of the
    /// error.
    pub error_form: u64,
    /// Errors of client sessions whose statement the log does not show, usually because of
    /// `log_min_error_statement`.
    pub errors_without_statement: u64,
    /// Messages with a source location (`log_error_verbosity = verbose`).
    pub verbose: u64,
    /// Estimated length in bytes at which the server cut values (`log_parameter_max_length`), if it
    /// did.
    pub parameter_limit_bytes: Option<usize>,
    /// Number of parameter values that the server truncated (`log_parameter_max_length`,
    /// `log_parameter_max_length_on_error`).
    pub truncated_values: u64,
    /// Sessions in the log.
    pub sessions: u64,
    /// Sessions, among `sessions`, whose beginning is not in the log, so that they may have been
    /// open before it.
    pub joined_midway: u64,
    /// Sessions, among `joined_midway`, that were inside a transaction block at their first action,
    /// as shown by its command tag.
    pub joined_in_transaction: u64,
    /// Sessions, among `sessions`, whose user or database was not known when they started.
    pub sessions_without_names: u64,
    /// Lines that the server numbered but that are not in the log.
    pub lost_lines: u64,
    /// Number of times the line numbers of a session go back, because part of the log was given
    /// twice.
    pub repeated_lines: u64,
    /// The shortest duration that was logged with its text, in microseconds. It is never below a
    /// positive `log_min_duration_statement`.
    pub shortest_logged_us: Option<u64>,
    /// Executions logged at their end without the preceding Bind, although durations under a
    /// millisecond are logged: evidence of sampling.
    pub executions_without_bind: u64,
    /// Transaction blocks of which only the beginning or only the end is logged, although durations
    /// under a millisecond are logged. A client may also begin twice by mistake.
    pub broken_blocks: u64,
    /// Transactions missing from the log, by the gaps in their numbers, although durations under a
    /// millisecond are logged. The server uses some of the numbers itself.
    pub missing_transactions: u64,
    /// Executions whose duration and error are both unknown.
    pub executions_without_outcome: u64,
    /// Executions and binds whose parameters are not in the log.
    pub executions_without_values: u64,
    /// Executions and binds with parameters that were cut.
    pub executions_with_cut_values: u64,
    /// Executions with parameters whose values are in the log, even if they were cut.
    pub executions_with_values: u64,
    /// Executions of the extended protocol whose pipeline is unknown: the log does not show their
    /// transaction, or several share one and it may have been a transaction block.
    pub executions_of_unknown_pipeline: u64,
    /// Executions, among `executions_of_unknown_pipeline`, whose transaction the log does not show.
    pub executions_of_unknown_transaction: u64,
    /// Whether a statement was logged at its start that `log_statement = mod` does not log, such as
    /// a SELECT.
    pub every_statement_logged: bool,
    /// Executions whose text or parameters are not UTF-8.
    pub executions_not_utf8: u64,
    /// Number of `COPY … FROM STDIN` statements.
    pub copies_in: u64,
    /// Statements cancelled by a user.
    pub cancels: u64,
    /// Statements ended by `statement_timeout`.
    pub statement_timeouts: u64,
    /// Statements ended by `lock_timeout`.
    pub lock_timeouts: u64,
    /// Sessions ended by `idle_session_timeout`, `idle_in_transaction_session_timeout` or
    /// `transaction_timeout`.
    pub session_timeouts: u64,
    /// Statements or sessions ended by a standby because of a conflict with recovery.
    pub recovery_conflicts: u64,
    /// Messages of auto_explain.
    pub plans: u64,
    /// Messages of pgaudit.
    pub audits: u64,
    /// Messages about statements or durations in a language other than English.
    pub translated_messages: u64,
    /// The language of the first translated message whose language was recognized.
    pub language: Option<Language>,
    /// Whether the line prefix identifies neither session nor process, so that sessions of one user
    /// are merged.
    pub sessions_merged: bool,
}

impl LogFacts {
    /// Returns the number of statements and sessions ended by any timeout.
    pub fn timeouts(&self) -> u64 {
        self.statement_timeouts + self.lock_timeouts + self.session_timeouts
    }

    /// Returns the number of signs that the server logged only a sample of the statements. Signs
    /// that may have another cause count only if there are many.
    pub fn sampling_evidence(&self) -> u64 {
        let logs_only_ends = self.statement_form == 0;
        let many = |count: u64, share: u64| {
            if logs_only_ends && count >= EVIDENCE_MIN && count * share >= self.duration_form {
                count
            } else {
                0
            }
        };
        self.executions_without_bind
            + many(self.broken_blocks, 50)
            + many(self.missing_transactions, 1)
    }

    /// Returns the number of executions in a log that shows statements only at their end, and none
    /// under a millisecond.
    pub fn only_slow_executions(&self) -> u64 {
        let is_fast = |us: u64| us < 1000;
        let is_slow = self.statement_form == 0 && !self.shortest_logged_us.is_none_or(is_fast);
        if is_slow { self.duration_form } else { 0 }
    }
}

/// Minimum number of signs of a sample; fewer may be due to a mistake of a client.
const EVIDENCE_MIN: u64 = 3;
