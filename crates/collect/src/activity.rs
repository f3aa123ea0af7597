//! Who does what: the rows of `pg_stat_activity`, read politely.
//!
//! One statement a tick reads all sessions. The texts of statements are most of its bytes, and they change
//! far less often than anything else, so the server sends a text once: in the tick that first sees its
//! `query_start`. Blockers are asked for only of sessions that wait for a lock, since `pg_blocking_pids`
//! holds up the lock manager.

use std::{collections::HashMap, fmt, sync::Arc};

use howdah_connect::{Client, ResultSet, Row};

use crate::{
    CollectError, SqlText, Version,
    prepared::Prepared,
    text::{Lines, shown},
    view::{Since, chosen},
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
#[derive(Clone, Debug, Default)]
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
    /// When its statement began; where it is idle, the last one.
    pub query_started_us: Option<i64>,
    /// When its state changed.
    pub state_changed_us: Option<i64>,
    /// The server's identifier of the statement.
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
    fn parse(word: &str) -> Option<Self> {
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
    fn parse(word: &str) -> Self {
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

/// The columns, in the order of [`Place`]. `$1` is the moment, in microseconds, since which a statement
/// must have begun for its text to be sent; `$2` whether texts of idle sessions are wanted.
const COLUMNS: &[&[Since]] = &[
    &[(9, "a.pid")],
    &[(9, "(date_part('epoch', a.backend_start) * 1e6)::int8")],
    &[(9, "a.datname")],
    &[(9, "a.usename")],
    &[(9, "a.application_name")],
    &[(9, "host(a.client_addr)")],
    &[(9, "NULL"), (10, "a.backend_type")],
    &[(9, "NULL"), (13, "a.leader_pid")],
    &[(9, "a.state")],
    &[(9, "a.wait_event_type")],
    &[(9, "a.wait_event")],
    &[(9, "age(a.backend_xid)")],
    &[(9, "age(a.backend_xmin)")],
    &[(9, "(date_part('epoch', a.xact_start) * 1e6)::int8")],
    &[(9, "(date_part('epoch', a.query_start) * 1e6)::int8")],
    &[(9, "(date_part('epoch', a.state_change) * 1e6)::int8")],
    &[(9, "NULL"), (14, "a.query_id")],
    &[(
        9,
        "CASE WHEN (date_part('epoch', a.query_start) * 1e6)::int8 >= $1::int8 \
         AND (a.state <> 'idle' OR $2::bool) THEN a.query END",
    )],
    &[(9, "CASE WHEN a.wait_event_type = 'Lock' THEN pg_blocking_pids(a.pid) END")],
    &[
        (9, "NULL"),
        (
            14,
            "CASE WHEN a.wait_event_type = 'Lock' THEN (SELECT (date_part('epoch', min(l.waitstart)) * 1e6)::int8 \
             FROM pg_locks l WHERE l.pid = a.pid AND NOT l.granted) END",
        ),
    ],
    &[(9, "r.rolsuper")],
    &[(9, "pg_encoding_to_char(d.encoding)")],
    &[(9, "(date_part('epoch', clock_timestamp()) * 1e6)::int8")],
];

/// The places of [`COLUMNS`].
#[derive(Clone, Copy)]
enum Place {
    Pid,
    Started,
    Database,
    User,
    Application,
    Client,
    Kind,
    Leader,
    State,
    WaitClass,
    WaitEvent,
    XidAge,
    XminAge,
    TransactionStarted,
    QueryStarted,
    StateChanged,
    QueryId,
    Query,
    Blockers,
    BlockedSince,
    Superuser,
    Encoding,
    Clock,
}

const FROM: &str = " FROM pg_stat_activity a LEFT JOIN pg_database d ON d.oid = a.datid \
    LEFT JOIN pg_roles r ON r.oid = a.usesysid WHERE a.pid <> pg_backend_pid() ORDER BY a.pid";

/// How long before the last tick a statement may have begun and not have been seen in it: the time between
/// the arrival of a statement and the moment its process tells.
const SLACK_US: i64 = 2_000_000;

fn sql(version: Version) -> String {
    let columns = COLUMNS.iter().map(|list| chosen(list, version).unwrap_or("NULL"));
    format!("SELECT {}{FROM}", columns.collect::<Vec<_>>().join(", "))
}

/// Reads activity, and remembers the texts that were sent.
#[derive(Debug)]
pub(crate) struct Reader {
    statement: Prepared,
    /// The most bytes of a text that the server keeps, if it says.
    query_bytes_max: Option<usize>,
    /// Texts by session, each with the moment its statement began.
    texts: HashMap<(i32, i64), (i64, SqlText)>,
    /// The last reading's clock.
    last_us: i64,
    /// Whether that one had the texts of idle sessions, too.
    had_idle: bool,
    words: Words,
}

impl Reader {
    pub(crate) fn new(version: Version, query_bytes_max: Option<usize>) -> Self {
        Self {
            statement: Prepared::new("activity", sql(version)),
            query_bytes_max,
            texts: HashMap::new(),
            last_us: 0,
            had_idle: false,
            words: Words::default(),
        }
    }

    /// Reads all sessions. `idle_texts`: also what idle ones ran last.
    pub(crate) fn read(
        &mut self,
        client: &mut Client,
        idle_texts: bool,
    ) -> Result<Activity, CollectError> {
        let is_complete = self.had_idle || !idle_texts;
        let since_us = if is_complete { (self.last_us - SLACK_US).max(0) } else { 0 };
        let since = since_us.to_string();
        let values = [Some(since.as_str()), Some(if idle_texts { "t" } else { "f" })];
        let result = self.statement.run(client, &values)?;
        let activity = self.activity(&result, since_us);
        self.last_us = activity.taken_us;
        self.had_idle = idle_texts;
        Ok(activity)
    }

    fn activity(&mut self, result: &ResultSet, since_us: i64) -> Activity {
        let clock = |row: &Row| integer(row, Place::Clock);
        let taken_us = result.rows.iter().filter_map(clock).min().unwrap_or(self.last_us);
        let mut texts = std::mem::take(&mut self.texts);
        let mut backends = Vec::with_capacity(result.rows.len());
        for row in &result.rows {
            let mut backend = self.backend(row);
            let started_us = backend.query_started_us.unwrap_or(0);
            let known = texts.remove(&backend.key()).filter(|(since, _)| *since == started_us);
            let sent = row.bytes(Place::Query as usize).map(|bytes| {
                let encoding = row.text(Place::Encoding as usize);
                (started_us, SqlText::new(bytes, encoding.as_deref(), self.query_bytes_max))
            });
            if let Some(text) = sent.filter(|_| started_us >= since_us).or(known) {
                backend.query = Some(text.1.clone());
                self.texts.insert(backend.key(), text);
            }
            backends.push(backend);
        }
        Activity { taken_us, backends }
    }

    fn backend(&mut self, row: &Row) -> Backend {
        let mut word = |place: Place| row.bytes(place as usize).map(|bytes| self.words.get(bytes));
        let wait_class = word(Place::WaitClass);
        let wait_event = word(Place::WaitEvent);
        let state = row.text(Place::State as usize);
        Backend {
            pid: integer(row, Place::Pid).and_then(|pid| pid.try_into().ok()).unwrap_or(0),
            started_us: integer(row, Place::Started).unwrap_or(0),
            database: word(Place::Database),
            user: word(Place::User),
            application: word(Place::Application).filter(|name| !name.is_empty()),
            client: word(Place::Client),
            kind: row.text(Place::Kind as usize).map(|kind| Kind::parse(&kind)),
            leader: integer(row, Place::Leader).and_then(|pid| pid.try_into().ok()),
            wait: wait_class.zip(wait_event).map(|(class, event)| Wait { class, event }),
            xid_age: integer(row, Place::XidAge),
            xmin_age: integer(row, Place::XminAge),
            transaction_started_us: integer(row, Place::TransactionStarted),
            query_started_us: integer(row, Place::QueryStarted),
            state_changed_us: integer(row, Place::StateChanged),
            query_id: integer(row, Place::QueryId),
            query: None,
            blockers: row
                .text(Place::Blockers as usize)
                .map_or_else(Vec::new, |text| blockers(&text)),
            blocked_since_us: integer(row, Place::BlockedSince),
            is_superuser: row.bytes(Place::Superuser as usize) == Some(b"t"),
            // Where the role may not look, the start is hidden with all else.
            is_readable: row.bytes(Place::Started as usize).is_some(),
            state: state.and_then(|state| State::parse(&state)),
        }
    }
}

fn integer(row: &Row, place: Place) -> Option<i64> {
    row.text(place as usize)?.parse().ok()
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

/// Most different words that are kept. Names of applications can be as many as somebody likes.
const WORDS_MAX: usize = 10_000;

/// Words that come again in every reading, each held once.
#[derive(Debug, Default)]
struct Words(HashMap<Box<[u8]>, Arc<str>>);

impl Words {
    fn get(&mut self, bytes: &[u8]) -> Arc<str> {
        if let Some(word) = self.0.get(bytes) {
            return Arc::clone(word);
        }
        if self.0.len() >= WORDS_MAX {
            self.0.clear();
        }
        let word: Arc<str> = shown(&String::from_utf8_lossy(bytes), Lines::Join).into();
        self.0.insert(bytes.into(), Arc::clone(&word));
        word
    }
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
    fn every_version_has_a_statement_of_the_same_width() {
        for major in [9, 10, 13, 14, 18] {
            let sql = sql(Version::of_major(major));
            assert!(sql.contains("pg_stat_activity"), "{major}");
            assert_eq!(sql.contains("waitstart"), major >= 14, "{major}");
        }
        assert_eq!(COLUMNS.len(), Place::Clock as usize + 1);
    }

    #[test]
    fn states_of_the_server_are_known_by_its_words() {
        for state in [State::Active, State::IdleInFailedTransaction, State::Idle, State::Disabled] {
            assert_eq!(State::parse(state.as_str()), Some(state));
        }
        assert_eq!(State::parse("dreaming"), None);
    }
}
