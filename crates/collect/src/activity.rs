//! The activity of all sessions: the rows of `pg_stat_activity`, read at low cost.
//!
//! One statement reads all sessions. Blockers are requested only for sessions that wait for a lock,
//! since `pg_blocking_pids` briefly blocks the lock manager. Blockers are visible to every role.

mod cursor;
mod reader;
mod statement;

use std::{fmt, sync::Arc};

pub(crate) use self::reader::ActivityReader;
use crate::{
    SqlText,
    text::{LineBreaks, sanitized},
};

/// All sessions at one moment.
#[derive(Clone, Debug, Default)]
pub struct Activity {
    /// The server's clock, in microseconds since 1970.
    pub taken_us: i64,
    /// The sessions, ordered by process id.
    pub backends: Vec<BackendActivity>,
}

/// One row of `pg_stat_activity`. Times are microseconds since 1970 by the server's clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackendActivity {
    /// Process id of the backend.
    pub pid: i32,
    /// Start time of the process; 0 if the role may not see it. Together with the pid it identifies
    /// a session, because pids are reused.
    pub started_us: i64,
    /// Database that the session is connected to.
    pub database: Option<Arc<str>>,
    /// Role that the session logged in as.
    pub user: Option<Arc<str>>,
    /// `application_name`; `None` if it is empty.
    pub application: Option<Arc<str>>,
    /// Client address; `None` where the role may not see it, for a Unix socket, and for the
    /// server's own processes.
    pub client: Option<Arc<str>>,
    /// Client port; -1 for a Unix socket. `None` where the role may not see it, and for the
    /// server's own processes.
    pub client_port: Option<i32>,
    /// Backend type; `None` where the role may not see it, and before PostgreSQL 10.
    pub kind: Option<BackendType>,
    /// Process id of the leader if this is a parallel worker, of a query or of logical replication
    /// (since PostgreSQL 13).
    pub leader: Option<i32>,
    /// Session state; `None` where the role may not see it, for processes without a session, and
    /// for an unknown state.
    pub state: Option<BackendState>,
    /// Wait event, if the session is waiting and the role may see it.
    pub wait: Option<BackendWait>,
    /// Age of the session's transaction id, in transactions.
    pub xid_age: Option<i64>,
    /// Age in transactions of the session's `backend_xmin`: VACUUM must keep rows deleted since
    /// then.
    pub xmin_age: Option<i64>,
    /// Start time of the current transaction.
    pub transaction_started_us: Option<i64>,
    /// Start time of the current statement; for an idle session, of the last one, if idle texts
    /// were requested.
    pub query_started_us: Option<i64>,
    /// Time at which `state` last changed.
    pub state_changed_us: Option<i64>,
    /// `query_id` of the statement in `query`, if the server computes it (since PostgreSQL 14).
    pub query_id: Option<i64>,
    /// Current statement; for an idle session, the last one, if idle texts were requested.
    pub query: Option<SqlText>,
    /// Processes and prepared transactions that block this session: they hold the lock that it
    /// waits for, or wait for it ahead of this session.
    pub blockers: Vec<Blocker>,
    /// Time at which the session began to wait for a lock (since PostgreSQL 14).
    pub blocked_since_us: Option<i64>,
    /// Whether the session's role is a superuser.
    pub is_superuser: bool,
    /// Whether the session's start time, state and statement are visible to the monitoring role.
    pub is_readable: bool,
}

/// A process or a prepared transaction that blocks a session waiting for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Blocker {
    /// A backend, identified by its process id.
    Process(i32),
    /// A prepared transaction, which has no process.
    Prepared,
}

/// A wait event and its class, as listed in the manual.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackendWait {
    /// `wait_event_type`, such as `Lock`, `LWLock` or `IO`.
    pub class: Arc<str>,
    /// `wait_event`, such as `transactionid` or `WALWrite`.
    pub event: Arc<str>,
}

impl fmt::Display for BackendWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.class, self.event)
    }
}

/// Session states (manual, `pg_stat_activity.state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BackendState {
    /// Executing a statement.
    Active,
    /// Running a fast-path function call.
    FastPath,
    /// In a transaction, waiting for its client.
    IdleInTransaction,
    /// In a failed transaction, waiting for its client.
    IdleInFailedTransaction,
    /// Waiting for its client, outside a transaction.
    Idle,
    /// Unknown: `track_activities` is off for this session.
    Disabled,
    /// Logging in (reported since PostgreSQL 18).
    Starting,
}

impl BackendState {
    /// Parses a state's name in `pg_stat_activity`; `None` if it is unknown.
    pub fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "active" => Self::Active,
            "fastpath function call" => Self::FastPath,
            "idle in transaction" => Self::IdleInTransaction,
            "idle in transaction (aborted)" => Self::IdleInFailedTransaction,
            "idle" => Self::Idle,
            "disabled" => Self::Disabled,
            "starting" => Self::Starting,
            _ => return None,
        })
    }

    /// Returns the state's name in `pg_stat_activity`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::FastPath => "fastpath function call",
            Self::IdleInTransaction => "idle in transaction",
            Self::IdleInFailedTransaction => "idle in transaction (aborted)",
            Self::Idle => "idle",
            Self::Disabled => "disabled",
            Self::Starting => "starting",
        }
    }

    /// Whether the session is in a transaction but waits for its client.
    pub fn is_idle_in_transaction(self) -> bool {
        matches!(self, Self::IdleInTransaction | Self::IdleInFailedTransaction)
    }
}

/// Backend types (manual, `pg_stat_activity.backend_type`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum BackendType {
    /// Serves a client.
    Client,
    /// Executes part of a query of another backend.
    ParallelWorker,
    /// Runs an automatic VACUUM or ANALYZE.
    AutovacuumWorker,
    /// Serves a replication connection, such as that of a standby, a subscriber or `pg_basebackup`.
    WalSender,
    /// Any other type, by the server's name.
    Other(Arc<str>),
}

impl BackendType {
    /// Parses a backend type's name in `pg_stat_activity`.
    pub fn parse(word: &str) -> Self {
        match word {
            "client backend" => Self::Client,
            "parallel worker" => Self::ParallelWorker,
            "autovacuum worker" => Self::AutovacuumWorker,
            "walsender" => Self::WalSender,
            other => Self::Other(sanitized(other, LineBreaks::Join).into()),
        }
    }

    /// Returns the backend type's name in `pg_stat_activity`.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Client => "client backend",
            Self::ParallelWorker => "parallel worker",
            Self::AutovacuumWorker => "autovacuum worker",
            Self::WalSender => "walsender",
            Self::Other(word) => word,
        }
    }

    /// Whether the process belongs to logical replication: its launcher, or one of its workers.
    /// PostgreSQL 17 split the name of the workers into several.
    pub fn is_logical_replication(&self) -> bool {
        self.as_str().starts_with("logical replication")
    }
}

impl BackendActivity {
    /// Returns the pid and the start time, which identify a session among all sessions of its
    /// server.
    pub fn key(&self) -> (i32, i64) {
        (self.pid, self.started_us)
    }

    /// Returns the client's address, or `[local]` for a Unix socket; `None` for the server's own
    /// processes, and where the role may not see it.
    pub fn client_name(&self) -> Option<&str> {
        match (&self.client, self.client_port) {
            (Some(client), _) => Some(client),
            (None, Some(-1)) => Some("[local]"),
            (None, _) => None,
        }
    }

    /// Whether this may be a client's session, as far as the role can tell. The backend type of a
    /// hidden session is hidden, too; a database distinguishes it from the server's own processes,
    /// but not from background workers that are connected to a database.
    pub fn may_be_client(&self) -> bool {
        match &self.kind {
            Some(kind) => *kind == BackendType::Client,
            None => self.database.is_some(),
        }
    }

    /// Whether this may be a client's session whose activity the role cannot see.
    pub fn is_hidden_client(&self) -> bool {
        !self.is_readable && self.may_be_client()
    }

    /// Returns the start of the running statement; for a session that runs none, the time at which
    /// its state last changed.
    pub fn since_us(&self) -> Option<i64> {
        match self.state? {
            BackendState::Active | BackendState::FastPath => self.query_started_us,
            _ => self.state_changed_us.or(self.query_started_us),
        }
    }

    /// Returns the seconds from [`Self::since_us`] to `now_us`; `None` if unknown.
    pub fn duration(&self, now_us: i64) -> Option<f64> {
        self.since_us().map(|since_us| seconds_between(since_us, now_us))
    }

    /// Returns the seconds that the session has been waiting for a lock, at `now_us`; `None` if it
    /// is not waiting, or if its times are unknown. If only the start of the wait is unknown, the
    /// last change of state is used instead.
    pub fn blocked_for(&self, now_us: i64) -> Option<f64> {
        if self.blockers.is_empty() {
            return None;
        }
        let since_us = self.blocked_since_us.or(self.state_changed_us)?;
        Some(seconds_between(since_us, now_us))
    }

    /// Returns the seconds from the start of the transaction to `now_us`; `None` outside a
    /// transaction, and if the role may not see its start.
    pub fn transaction_age(&self, now_us: i64) -> Option<f64> {
        self.transaction_started_us.map(|since_us| seconds_between(since_us, now_us))
    }
}

/// Returns the seconds from one time to another; never negative, although the times may be from
/// different processes.
#[expect(clippy::cast_precision_loss, reason = "a span of less than a century")]
fn seconds_between(since_us: i64, now_us: i64) -> f64 {
    now_us.saturating_sub(since_us).max(0) as f64 / 1e6
}

/// Parses an array such as `{4711,0}`, and removes duplicates. 0 is a prepared transaction.
fn parse_blockers(array: &str) -> Vec<Blocker> {
    let numbers =
        array.trim_matches(['{', '}']).split(',').filter_map(|number| number.parse().ok());
    let mut blockers: Vec<Blocker> = numbers
        .map(|pid| if pid == 0 { Blocker::Prepared } else { Blocker::Process(pid) })
        .collect();
    blockers.sort_unstable();
    blockers.dedup();
    blockers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blockers_are_deduplicated() {
        assert_eq!(parse_blockers("{}"), []);
        assert_eq!(
            parse_blockers("{12,7,12,0}"),
            [Blocker::Process(7), Blocker::Process(12), Blocker::Prepared]
        );
    }

    #[test]
    fn idle_duration_starts_when_last_statement_ended() {
        let mut backend = BackendActivity {
            state: Some(BackendState::Idle),
            query_started_us: Some(1_000_000),
            state_changed_us: Some(4_000_000),
            ..BackendActivity::default()
        };
        assert_eq!(backend.duration(6_000_000), Some(2.0));
        backend.state = Some(BackendState::Active);
        assert_eq!(backend.duration(6_000_000), Some(5.0));
        assert_eq!(backend.duration(0), Some(0.0));
    }

    #[test]
    fn backend_states_round_trip() {
        for state in [
            BackendState::Active,
            BackendState::IdleInFailedTransaction,
            BackendState::Idle,
            BackendState::Disabled,
        ] {
            assert_eq!(BackendState::parse(state.as_str()), Some(state));
        }
        assert_eq!(BackendState::parse("dreaming"), None);
    }
}
