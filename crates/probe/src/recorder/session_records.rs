//! Records of what the server reports over SQL, once a second: its sessions, and its counters; and
//! of the pressure on its host.

use howdah_collect::sanitized_line;

use super::{bytes::packed, wait_graph::circles};

/// Maximum number of sessions per record: blockers first, then sessions that wait for locks, then
/// the longest statements.
pub const SESSIONS_MAX: usize = 64;
/// Maximum number of blockers per session.
pub const BLOCKERS_MAX: usize = 16;
/// Maximum length of a recorded statement, in bytes.
pub const STATEMENT_BYTES_MAX: usize = 500;

/// The sessions of a server that were not idle at one moment, or blocked others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedSessions {
    /// Time of the sample, in microseconds since 1970.
    pub at_us: i64,
    /// Time since the previous sample, in microseconds, which the rows stand for.
    pub elapsed_us: u64,
    /// Texts to which the fields of rows and groups refer by their index. The first is empty, for
    /// unknown.
    pub names: Vec<String>,
    /// The sessions, at most [`SESSIONS_MAX`].
    pub rows: Vec<RecordedSession>,
    /// Number of sessions for which there was no room.
    pub omitted: u64,
    /// The largest groups of client sessions, idle ones included; only if their number has changed
    /// much.
    pub groups: Vec<SessionGroup>,
}

/// A session, an autovacuum worker, or a prepared transaction, which has pid 0. Texts are indexes
/// into [`RecordedSessions::names`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedSession {
    /// Process id in the server's namespace; 0 for a prepared transaction.
    pub pid: u32,
    /// Process id of the leader, for a parallel worker; otherwise 0.
    pub leader: u32,
    /// Type of the backend, as in `pg_stat_activity.backend_type`.
    pub kind: u32,
    /// Name of the database.
    pub database: u32,
    /// Role.
    pub user: u32,
    /// Name of the application.
    pub application: u32,
    /// Address of the client; `[local]` for a Unix socket.
    pub client: u32,
    /// State, as in `pg_stat_activity.state`.
    pub state: u32,
    /// Wait event, as `Class:event`; empty for none.
    pub wait: u32,
    /// Id of the present or last statement, as in [`StatementText::id`]; 0 if unknown.
    pub statement: u64,
    /// Age of the statement, or of the state if no statement runs, in milliseconds.
    pub age_ms: u64,
    /// Age of the transaction, in milliseconds; `None` without one.
    pub transaction_ms: Option<u64>,
    /// Processes that the session waits for, 0 for a prepared transaction; at most
    /// [`BLOCKERS_MAX`].
    pub blockers: Vec<u32>,
    /// Type and mode of the lock that the session waits for, as in `pg_locks`.
    pub lock: Option<(u32, u32)>,
    /// Oids of the database and of the relation that the lock is on.
    pub relation: Option<(u32, u32)>,
    /// Bytes of the session's temporary files.
    pub temp_bytes: u64,
}

/// Sessions that waited for each other in circles, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedCircles {
    /// The members of the circles, with other members as their only blockers. The time since the
    /// previous sample is 0.
    pub sessions: RecordedSessions,
    /// The same moment by the server's clock, in microseconds since 1970.
    pub taken_us: i64,
    /// The waits of the members, in the order of their rows.
    pub waits: Vec<MemberWait>,
}

/// The identity of the wait of a member of a circle. Times are microseconds since 1970 by the
/// server's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MemberWait {
    /// Process id in the server's namespace.
    pub pid: u32,
    /// Start time of its transaction.
    pub transaction_us: Option<i64>,
    /// Time at which it began to wait for a lock; that of its statement for the leader of a
    /// parallel worker that waits, and before PostgreSQL 14.
    pub blocked_us: Option<i64>,
}

/// Client sessions of one user, database, application and client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionGroup {
    /// Role.
    pub user: u32,
    /// Name of the database.
    pub database: u32,
    /// Name of the application.
    pub application: u32,
    /// Address of the client.
    pub client: u32,
    /// Number of sessions.
    pub sessions: u64,
    /// Number of these that started since the previous sample.
    pub started: u64,
}

/// Growth of a server's counters between two samples, and present values. Counters are zero if
/// [`elapsed_us`](Self::elapsed_us) is, as in the first sample and after a reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordedCounters {
    /// Time of the sample, in microseconds since 1970.
    pub at_us: i64,
    /// Time since the previous sample, in microseconds; 0 if there is none to compare with.
    pub elapsed_us: u64,
    /// Transactions committed, without the recorder's own.
    pub commits: u64,
    /// Transactions rolled back.
    pub rollbacks: u64,
    /// Transactions that the server ended because of a deadlock.
    pub deadlocks: u64,
    /// Temporary files.
    pub temp_files: u64,
    /// Bytes of temporary files, counted when a file is closed.
    pub temp_bytes: u64,
    /// Sessions started; 0 if the server does not count them.
    pub sessions_started: u64,
    /// Checkpoints started by time.
    pub timed_checkpoints: u64,
    /// Checkpoints requested by the amount of WAL, by `CHECKPOINT` or by a backup.
    pub requested_checkpoints: u64,
    /// Present number of client sessions.
    pub clients: u64,
    /// Bytes of WAL that the slowest standby or subscriber has not replayed; `None` without one.
    pub replay_lag_bytes: Option<u64>,
    /// The same as time, in milliseconds; `None` if unknown.
    pub replay_lag_ms: Option<u64>,
}

/// A statement without its literal values, to which sessions refer by id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatementText {
    /// A hash of the text.
    pub id: u64,
    /// At most [`STATEMENT_BYTES_MAX`] bytes; ends with `…` if it is incomplete.
    pub text: String,
}

/// The share of the last ten seconds in which some process of the host waited for a resource, in
/// hundredths of a percent: `some avg10` of `/proc/pressure`. `None` if the kernel does not report
/// it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostPressure {
    /// Time of the sample, in microseconds since 1970.
    pub at_us: i64,
    /// Waits for a CPU.
    pub cpu: Option<u32>,
    /// Waits for I/O.
    pub io: Option<u32>,
    /// Waits for memory to be reclaimed.
    pub memory: Option<u32>,
}

/// The relation of a file, which traced calls identify by numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFile {
    /// Oid of the database (`pg_database.oid`).
    pub database: u32,
    /// The relation's `pg_relation_filenode()`.
    pub filenode: u32,
    /// Qualified name, such as `shop.public.orders`.
    pub name: String,
}

packed! {
    RecordedSessions { at_us, elapsed_us, names, rows, omitted, groups }
    RecordedSession {
        pid, leader, kind, database, user, application, client, state, wait, statement, age_ms,
        transaction_ms, blockers, lock, relation, temp_bytes,
    }
    RecordedCircles { sessions, taken_us, waits }
    MemberWait { pid, transaction_us, blocked_us }
    SessionGroup { user, database, application, client, sessions, started }
    RecordedCounters {
        at_us, elapsed_us, commits, rollbacks, deadlocks, temp_files, temp_bytes, sessions_started,
        timed_checkpoints, requested_checkpoints, clients, replay_lag_bytes, replay_lag_ms,
    }
    StatementText { id, text }
    HostPressure { at_us, cpu, io, memory }
    NamedFile { database, filenode, name }
}

impl RecordedSessions {
    /// Returns the text of an index; empty for an unknown one.
    pub fn name(&self, index: u32) -> &str {
        self.names.get(index as usize).map_or("", String::as_str)
    }

    /// Returns the circles: groups of sessions in which each waits, directly or through others, for
    /// each; in a group from one to the next that it waits for, as far as possible.
    pub fn circles(&self) -> Vec<Vec<&RecordedSession>> {
        // A prepared transaction waits for none.
        let rows: Vec<_> = self.rows.iter().filter(|row| row.pid != 0).collect();
        let waits: Vec<_> = rows.iter().map(|row| (row.pid, &row.blockers[..])).collect();
        let circles = circles(&waits).into_iter();
        circles.map(|circle| circle.into_iter().map(|at| rows[at]).collect()).collect()
    }

    /// Returns the index of a text, which is added if it is new.
    pub fn index_of(&mut self, name: &str) -> u32 {
        if self.names.is_empty() {
            self.names.push(String::new());
        }
        let known = self.names.iter().position(|known| known == name);
        let index = known.unwrap_or_else(|| {
            self.names.push(name.to_owned());
            self.names.len() - 1
        });
        u32::try_from(index).unwrap_or(0)
    }
}

impl RecordedSession {
    /// Whether a statement is being executed, by a client's session or on its behalf.
    pub fn is_working(&self, sessions: &RecordedSessions) -> bool {
        let is_active = matches!(sessions.name(self.state), "active" | "fastpath function call");
        is_active && matches!(sessions.name(self.kind), "" | "client backend" | "parallel worker")
    }
}

impl StatementText {
    /// Removes the literal values of a statement, and shortens it. The whole of `sql` may be longer
    /// than what was received, as `is_truncated` states.
    pub fn from_sql(sql: &str, is_truncated: bool) -> Self {
        Self::new(&howdah_sql::normalize(sql.as_bytes()), is_truncated)
    }

    /// Shortens a text that has no literal values.
    pub fn new(text: &str, is_truncated: bool) -> Self {
        let mark = "…";
        let line = sanitized_line(text);
        let mut text = line.trim().to_owned();
        if is_truncated || text.len() > STATEMENT_BYTES_MAX {
            let mut end = text.len().min(STATEMENT_BYTES_MAX - mark.len());
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            text.truncate(end);
            text.push_str(mark);
        }
        // A number of 42 bits has six bytes in the file. 0 means unknown.
        let id = (xxhash_rust::xxh3::xxh3_64(text.as_bytes()) >> 22).max(1);
        Self { id, text }
    }
}

#[test]
fn circle_has_its_members_only() {
    let circles = |waits: &[(u32, &[u32])]| -> Vec<Vec<u32>> {
        let row = |(pid, blockers): &(u32, &[u32])| RecordedSession {
            pid: *pid,
            blockers: blockers.to_vec(),
            ..RecordedSession::default()
        };
        let rows = waits.iter().map(row).collect();
        let sessions = RecordedSessions { rows, ..RecordedSessions::default() };
        let pids = |circle: Vec<&RecordedSession>| circle.iter().map(|row| row.pid).collect();
        sessions.circles().into_iter().map(pids).collect()
    };
    // 4 waits for the circle, and 5 is waited for.
    let found = circles(&[(4, &[1]), (1, &[2, 5]), (2, &[3]), (3, &[1]), (5, &[]), (9, &[])]);
    assert_eq!(found, [[1, 2, 3]]);
    assert_eq!(circles(&[(1, &[2]), (2, &[1]), (7, &[8]), (8, &[7, 1])]), [[1, 2], [7, 8]]);
    assert!(circles(&[(1, &[2]), (2, &[3]), (3, &[])]).is_empty());
    // Blockers that are not recorded, and prepared transactions.
    assert!(circles(&[(1, &[0]), (0, &[1]), (2, &[77])]).is_empty());
}

#[test]
fn recorded_statements_have_no_literals_and_a_maximum_length() {
    let text = |sql: &str, is_truncated| StatementText::from_sql(sql, is_truncated).text;
    let sql = "UPDATE t SET pin = '1234' -- of anna\n WHERE id = 7";
    assert_eq!(text(sql, false), "update t set pin = ? where id = ?");
    // A text that ends within a literal.
    for sql in
        ["SELECT 'secr", "SELECT E'secr", "SELECT $$secr", "SELECT $a$secr$a", "SELECT U&'secr"]
    {
        assert!(!text(sql, true).contains("secr"), "{}", text(sql, true));
    }
    assert!(!text("ALTER ROLE anna PASSWORD 'secr'", false).contains("secr"));
    let long = text(&format!("SELECT {}", "é, ".repeat(1000)), false);
    assert!(long.len() <= STATEMENT_BYTES_MAX && long.ends_with('…'), "{long}");
    assert_eq!(StatementText::new("a", false).id, StatementText::new("a", false).id);
}
