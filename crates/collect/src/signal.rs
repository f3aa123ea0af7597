//! Cancels statements and terminates sessions, after checking that they are the intended ones.
//!
//! Between a user's decision and the signal, the process may have ended and its id may have been
//! reused. The signalling statement therefore checks in the server that process, start time and, if
//! it is known, statement are unchanged. A short time remains between this check and the signal
//! inside the server, as PostgreSQL itself documents (`pg_signal_backend` in `signalfuncs.c`).

use howdah_connect::{Client, ConnectTarget, QueryError};

use crate::{BackendActivity, CollectError};

/// The action to take on a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SignalAction {
    /// Cancels the running statement. Has no effect on a session that runs none, such as one idle
    /// in transaction.
    Cancel,
    /// Terminates the session and its transaction.
    Terminate,
}

impl SignalAction {
    /// Returns the verb shown to users.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Terminate => "terminate",
        }
    }

    fn function(self) -> &'static str {
        match self {
            Self::Cancel => "pg_cancel_backend",
            Self::Terminate => "pg_terminate_backend",
        }
    }
}

/// Target of a signal: a session, or one statement of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SignalTarget {
    /// Process id of the session's backend.
    pub pid: i32,
    /// Start time of the session, in microseconds since 1970.
    pub started_us: i64,
    /// Start time of the statement; `None` to signal the session regardless of its statement.
    pub query_started_us: Option<i64>,
}

impl SignalTarget {
    /// Targets the statement that this session runs; the session, regardless of its statement, if
    /// the statement's start time is unknown.
    pub fn for_statement(backend: &BackendActivity) -> Self {
        Self { query_started_us: backend.query_started_us, ..Self::for_session(backend) }
    }

    /// Targets this session, regardless of the statement it runs.
    pub fn for_session(backend: &BackendActivity) -> Self {
        Self { pid: backend.pid, started_us: backend.started_us, query_started_us: None }
    }
}

/// Outcome of sending a signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SignalOutcome {
    /// The signal was sent.
    Sent,
    /// The session or statement has ended, or the role cannot see its start time. Nothing was sent.
    Gone,
    /// The server failed to send the signal, usually because the process was just exiting.
    NotSent,
    /// The server refused to send the signal.
    Refused {
        /// The server's message.
        message: String,
        /// SQLSTATE of the server's error; 42501 if a privilege is missing.
        sqlstate: String,
    },
}

/// A separate connection for signals: it works while the sampling connection is stuck.
#[derive(Debug)]
pub struct SignalConnection {
    client: Client,
}

impl SignalConnection {
    /// Connects, and limits each statement to five seconds.
    ///
    /// # Errors
    ///
    /// The connection could not be established, or its settings could not be applied.
    pub fn connect(target: &ConnectTarget) -> Result<Self, CollectError> {
        let mut client = Client::connect(target)?;
        client.set_timeout(Some(std::time::Duration::from_secs(10)));
        // Servers before 12 need extra_float_digits to return exact start times, which identify
        // sessions.
        client
            .query("SET statement_timeout = '5s'; SET extra_float_digits = 3")
            .map_err(CollectError::query("the response to SET"))?;
        Ok(Self { client })
    }

    /// Sends one signal if its target still exists.
    ///
    /// # Errors
    ///
    /// The connection failed; the signal may or may not have been sent.
    pub fn send(
        &mut self,
        action: SignalAction,
        signal_target: SignalTarget,
    ) -> Result<SignalOutcome, CollectError> {
        let sql = format!(
            "SELECT {}(a.pid) FROM pg_stat_activity a WHERE a.pid = $1::int4 \
             AND (date_part('epoch', a.backend_start) * 1e6)::int8 = $2::int8 \
             AND ($3::int8 IS NULL OR (date_part('epoch', a.query_start) * 1e6)::int8 = $3::int8)",
            action.function()
        );
        let pid = signal_target.pid.to_string();
        let started = signal_target.started_us.to_string();
        let query_started = signal_target.query_started_us.map(|us| us.to_string());
        let values = [Some(pid.as_str()), Some(started.as_str()), query_started.as_deref()];
        match self.client.query_with(&sql, &values) {
            Ok(result) => Ok(match result.rows.first().and_then(|row| row.bytes(0)) {
                None => SignalOutcome::Gone,
                Some(b"t") => SignalOutcome::Sent,
                Some(_) => SignalOutcome::NotSent,
            }),
            Err(QueryError::Sql(error)) if !error.closes_connection() => {
                Ok(SignalOutcome::Refused {
                    message: crate::text::sanitized(&error.message, crate::text::LineBreaks::Join)
                        .into_owned(),
                    sqlstate: error.sqlstate.to_string(),
                })
            }
            Err(error) => Err(CollectError::query("the result of the signal")(error)),
        }
    }
}
