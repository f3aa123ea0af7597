//! Who does what: the rows of `pg_stat_activity`, read politely.
//!
//! One statement a tick reads all sessions. Blockers are asked for only of sessions that wait
//! for a lock, since `pg_blocking_pids` holds up the lock manager. They are visible to every role.

mod reader;
mod statement;
mod told;

use std::{fmt, sync::Arc};

pub(crate) use self::reader::Reader;
use crate::{
    SqlText,
    text::{Lines, shown},
};

/// All sessions at one moment.
#[derive(Clone, Debug, Default)]
pub struct Activity {
    /// The server's clock, in microseconds since 1970.
    pub taken_us: i64,
    /// The sessions, ordered by process id.
    pub backends: Vec<Backend>,
}

/// A server process and what it does. Times are microseconds since 1970 by the server's clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backend {
    /// Process id.
    pub pid: i32,
    /// When the process began. With the pid it tells a session from another that got its pid later.
    pub started_us: i64,
    /// Its database.
    pub database: Option<Arc<str>>,
    /// Its role.
    pub user: Option<Arc<str>>,
    /// What its client calls itself.
    pub application: Option<Arc<str>>,
    /// Where its client is; `None` for a unix socket and for the server's own processes.
    pub client: Option<Arc<str>>,
    /// The port there; -1 for a unix socket.
    pub client_port: Option<i32>,
    /// What kind of process it is; `None` where the role may not know.
    pub kind: Option<Kind>,
    /// The process whose parallel query it helps with.
    pub leader: Option<i32>,
    /// What it does; `None` where the role may not know, and for processes without sessions.
    pub state: Option<State>,
    /// What it waits for.
    pub wait: Option<Wait>,
    /// Age of its transaction id, in transactions.
    pub xid_age: Option<i64>,
    /// Age of the oldest transaction it still has to see, in transactions.
    pub xmin_age: Option<i64>,
    /// When its transaction began.
    pub transaction_started_us: Option<i64>,
    /// When its statement began; where it is idle, the last one, if texts of idle sessions were asked for.
    pub query_started_us: Option<i64>,
    /// When its state changed.
    pub state_changed_us: Option<i64>,
    /// The server's identifier of that statement.
    pub query_id: Option<i64>,
    /// Its statement; where it is idle, the last one.
    pub query: Option<SqlText>,
    /// What holds the lock it waits for.
    pub blockers: Vec<Blocker>,
    /// Since when it has waited for a lock.
    pub blocked_since_us: Option<i64>,
    /// The role is a superuser.
    pub is_superuser: bool,
    /// Its role, database and state are there to be read.
    pub is_readable: bool,
}

/// What holds a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Blocker {
    /// A process, by its id.
    Process(i32),
    /// A prepared transaction, which has no process.
    Prepared,
}

/// What a wait is for, as the manual lists wait events.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Wait {
    /// `Lock`, `LWLock`, `IO`, …
    pub class: Arc<str>,
    /// `transactionid`, `WALWrite`, …
    pub event: Arc<str>,
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.class, self.event)
    }
}

/// The states of a session (manual, `pg_stat_activity.state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// Runs a statement.
    Active,
    /// Runs a function call of the fast path.
    FastPath,
    /// In a transaction, waits for its client.
    IdleInTransaction,
    /// In a failed transaction, waits for its client.
    IdleInFailedTransaction,
    /// Waits for its client.
    Idle,
    /// Does not say: `track_activities` is off there.
    Disabled,
    /// Logs in (PostgreSQL 18).
    Starting,
}

impl State {
    /// The state that the server has this word for.
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

    /// The server's word for it.
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

    /// Whether it is in a transaction and its client does nothing.
    pub fn is_idle_in_transaction(self) -> bool {
        matches!(self, Self::IdleInTransaction | Self::IdleInFailedTransaction)
    }
}

/// The kinds of server processes (manual, `pg_stat_activity.backend_type`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Serves a client.
    Client,
    /// Helps with a query of another.
    ParallelWorker,
    /// Vacuums or analyzes.
    AutovacuumWorker,
    /// Sends the log to a standby or a subscriber.
    WalSender,
    /// Any other, in the server's words.
    Other(Arc<str>),
}

impl Kind {
    /// The kind that the server has this word for.
    pub fn parse(word: &str) -> Self {
        match word {
            "client backend" => Self::Client,
            "parallel worker" => Self::ParallelWorker,
            "autovacuum worker" => Self::AutovacuumWorker,
            "walsender" => Self::WalSender,
            other => Self::Other(shown(other, Lines::Join).into()),
        }
    }

    /// The server's word for it.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Client => "client backend",
            Self::ParallelWorker => "parallel worker",
            Self::AutovacuumWorker => "autovacuum worker",
            Self::WalSender => "walsender",
            Self::Other(word) => word,
        }
    }

    /// Whether it applies changes of a publisher. 17 gave the one kind of worker three names.
    pub fn is_logical_replication(&self) -> bool {
        self.as_str().starts_with("logical replication")
    }
}

impl Backend {
    /// What tells this session from all others of its server.
    pub fn key(&self) -> (i32, i64) {
        (self.pid, self.started_us)
    }

    /// Whether it is a client's session, as far as the role can tell. The kind of a hidden session is hidden, too;
    /// that it has a database distinguishes it from the server's own processes, but not from workers in a database.
    pub fn may_be_client(&self) -> bool {
        match &self.kind {
            Some(kind) => *kind == Kind::Client,
            None => self.database.is_some(),
        }
    }

    /// Whether the role cannot see what this session does, and it may be a client's.
    pub fn is_hidden_client(&self) -> bool {
        !self.is_readable && self.may_be_client()
    }

    /// Since when it does what it does: runs its statement, or idles.
    pub fn since_us(&self) -> Option<i64> {
        match self.state? {
            State::Active | State::FastPath => self.query_started_us,
            _ => self.state_changed_us.or(self.query_started_us),
        }
    }

    /// How long, in seconds, at `now_us`; `None` where that is not known.
    pub fn duration(&self, now_us: i64) -> Option<f64> {
        self.since_us().map(|since_us| span(since_us, now_us))
    }

    /// How long, in seconds, it has waited for a lock.
    pub fn blocked_for(&self, now_us: i64) -> Option<f64> {
        if self.blockers.is_empty() {
            return None;
        }
        let since_us = self.blocked_since_us.or(self.state_changed_us)?;
        Some(span(since_us, now_us))
    }

    /// How long, in seconds, its transaction has lasted.
    pub fn transaction_age(&self, now_us: i64) -> Option<f64> {
        self.transaction_started_us.map(|since_us| span(since_us, now_us))
    }
}

/// Seconds between two moments, none of them negative: clocks of several processes are compared.
#[expect(clippy::cast_precision_loss, reason = "a span of less than a century")]
fn span(since_us: i64, now_us: i64) -> f64 {
    now_us.saturating_sub(since_us).max(0) as f64 / 1e6
}

/// The processes of an array such as `{4711,0}`, each once.
fn blockers(array: &str) -> Vec<Blocker> {
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
    fn blockers_are_told_once_each() {
        assert_eq!(blockers("{}"), []);
        assert_eq!(
            blockers("{12,7,12,0}"),
            [Blocker::Process(7), Blocker::Process(12), Blocker::Prepared]
        );
    }

    #[test]
    fn an_idle_session_counts_from_its_last_statement_s_end() {
        let mut backend = Backend {
            state: Some(State::Idle),
            query_started_us: Some(1_000_000),
            state_changed_us: Some(4_000_000),
            ..Backend::default()
        };
        assert_eq!(backend.duration(6_000_000), Some(2.0));
        backend.state = Some(State::Active);
        assert_eq!(backend.duration(6_000_000), Some(5.0));
        assert_eq!(backend.duration(0), Some(0.0));
    }

    #[test]
    fn states_of_the_server_are_known_by_its_words() {
        for state in [State::Active, State::IdleInFailedTransaction, State::Idle, State::Disabled] {
            assert_eq!(State::parse(state.as_str()), Some(state));
        }
        assert_eq!(State::parse("dreaming"), None);
    }
}
