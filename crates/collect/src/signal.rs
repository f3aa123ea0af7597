//! Ending statements and sessions, and only those that were meant.
//!
//! Between the moment a person decides and the moment a signal is sent a process may have ended and its id
//! gone to another. So the statement that signals looks again, in the server, whether process, start and
//! statement are still the same. What is left is the time between that look and the signal inside the
//! server, which its own source admits (`pg_signal_backend` in `signalfuncs.c`).

use howdah_connect::{Client, QueryError, Target};

use crate::{Backend, CollectError};

/// What to do to a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Action {
    /// End its statement. A session that runs none, one idle in its transaction too, is left alone.
    Cancel,
    /// End the session, with its transaction.
    Terminate,
}

impl Action {
    /// The verb.
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

/// Whom a signal is for: one statement of one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SignalTarget {
    /// Process id.
    pub pid: i32,
    /// When the session began, in microseconds since 1970.
    pub started_us: i64,
    /// When the statement began; `None` if whatever the session does is meant.
    pub query_started_us: Option<i64>,
}

impl SignalTarget {
    /// The statement that this session runs.
    pub fn statement_of(backend: &Backend) -> Self {
        Self { query_started_us: backend.query_started_us, ..Self::session_of(backend) }
    }

    /// This session, whatever it does.
    pub fn session_of(backend: &Backend) -> Self {
        Self { pid: backend.pid, started_us: backend.started_us, query_started_us: None }
    }
}

/// What became of a signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Signalled {
    /// It was sent.
    Sent,
    /// That session, or that statement, is over. Nothing was sent.
    Gone,
    /// The server could not send it: the process ended just then.
    NotSent,
    /// The server refused, in its words, and with its code.
    Refused {
        /// What the server said.
        message: String,
        /// SQLSTATE; 42501 is a missing privilege.
        sqlstate: String,
    },
}

/// A connection of its own for signals: it works when the one that reads is stuck.
#[derive(Debug)]
pub struct Signals {
    client: Client,
}

impl Signals {
    /// Connects.
    ///
    /// # Errors
    ///
    /// No connection could be had.
    pub fn connect(target: &Target) -> Result<Self, CollectError> {
        let mut client = Client::connect(target)?;
        client.set_timeout(Some(std::time::Duration::from_secs(10)));
        // For the exact times that sessions are known by, in servers before 12.
        client
            .query("SET statement_timeout = '5s'; SET extra_float_digits = 3")
            .map_err(CollectError::query("settings of the connection"))?;
        Ok(Self { client })
    }

    /// Sends one signal, if the one it is for is still there.
    ///
    /// # Errors
    ///
    /// The connection failed; whether the signal was sent is not known then.
    pub fn send(
        &mut self,
        action: Action,
        suspect: SignalTarget,
    ) -> Result<Signalled, CollectError> {
        let sql = format!(
            "SELECT {}(a.pid) FROM pg_stat_activity a WHERE a.pid = $1::int4 \
             AND (date_part('epoch', a.backend_start) * 1e6)::int8 = $2::int8 \
             AND ($3::int8 IS NULL OR (date_part('epoch', a.query_start) * 1e6)::int8 = $3::int8)",
            action.function()
        );
        let pid = suspect.pid.to_string();
        let started = suspect.started_us.to_string();
        let query_started = suspect.query_started_us.map(|us| us.to_string());
        let values = [Some(pid.as_str()), Some(started.as_str()), query_started.as_deref()];
        match self.client.query_with(&sql, &values) {
            Ok(result) => Ok(match result.rows.first().and_then(|row| row.bytes(0)) {
                None => Signalled::Gone,
                Some(b"t") => Signalled::Sent,
                Some(_) => Signalled::NotSent,
            }),
            Err(QueryError::Sql(error)) if !error.ends_session() => Ok(Signalled::Refused {
                message: crate::text::shown(&error.message, crate::text::Lines::Join).into_owned(),
                sqlstate: error.sqlstate.to_string(),
            }),
            Err(error) => Err(CollectError::query("the signal")(error)),
        }
    }
}
