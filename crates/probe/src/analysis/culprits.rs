//! Names the sessions that cause or suffer a finding: root blockers, statements, users,
//! applications and clients in its time span.
//!
//! Sessions are sampled over SQL once a second. A sampled session stands for the time since the
//! previous sample. A **root blocker** is at the end of a chain of sessions that wait for each
//! other: it waits for none itself. It counts only if its transaction has lasted a second, because
//! under contention for a row each session blocks the others for a moment. If several roots block
//! one session, each gets a part of its time.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::window::{RecordingWindow, TimeSpan};
use crate::recorder::{RecordedSession, RecordedSessions};

/// Why a session, or a group of them, is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CulpritRole {
    /// It blocked others, and waited for none.
    Blocker,
    /// It executed one statement for long.
    Query,
    /// Its statement had much of the time.
    Statement,
    /// Its user had most of the time.
    User,
    /// Its application had most of the time.
    Application,
    /// Its client address had most of the time.
    Client,
    /// It is an autovacuum worker that was busy in the same time.
    Autovacuum,
    /// It requested checkpoints.
    Requester,
    /// It sends the WAL to a standby that lags; its application is the standby's name.
    Standby,
}

/// A session or a group of sessions that a finding names. Unknown texts are empty.
#[derive(Clone, Debug, PartialEq)]
pub struct Culprit {
    /// Why it is named.
    pub role: CulpritRole,
    /// The session's process id, 0 for a prepared transaction; `None` for a group.
    pub pid: Option<u32>,
    /// Process ids of a group that executed one statement, those with the most time first.
    pub pids: Vec<u32>,
    /// Type of the backend, as in `pg_stat_activity`.
    pub kind: String,
    /// The statement without literals: what it executes or, for an idle session, executed last.
    pub statement: String,
    /// Name of the session's database.
    pub database: String,
    /// Role.
    pub user: String,
    /// Name of the application.
    pub application: String,
    /// Client address, or `[local]`.
    pub client: String,
    /// Session state, as in `pg_stat_activity`.
    pub state: String,
    /// Greatest age in seconds: of a blocker's transaction, otherwise of the statement.
    pub age_s: Option<f64>,
    /// The relation that most of the blocked sessions waited for.
    pub relation: Option<String>,
    /// Largest number of sessions at one moment: those that a blocker blocked, otherwise those of
    /// the group.
    pub sessions: usize,
    /// Session seconds: of the sessions that a blocker blocked, otherwise of the group.
    pub time_s: f64,
    /// Largest size of the session's temporary files, in bytes.
    pub temp_bytes: u64,
}

/// Minimum age of a transaction that counts as a blocker, in milliseconds.
const BLOCKER_AGE_MIN_MS: u64 = 1000;
/// Maximum number of statements per finding.
const STATEMENTS_SHOWN: usize = 3;
/// Maximum number of blockers per finding.
const BLOCKERS_SHOWN: usize = 3;
/// Share of the time from which a user, an application or a client is named.
const SHARE_MIN: f64 = 0.5;
/// Maximum number of process ids of a group within a line.
const PIDS_SHOWN: usize = 3;
/// Maximum number of process ids of a group.
const PIDS_MAX: usize = 64;
/// Maximum length of a statement within a line, in characters.
const STATEMENT_CHARS: usize = 100;

impl CulpritRole {
    /// Returns the role's name in documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Blocker => "blocker",
            Self::Query => "query",
            Self::Statement => "statement",
            Self::User => "user",
            Self::Application => "application",
            Self::Client => "client",
            Self::Autovacuum => "autovacuum",
            Self::Requester => "requester",
            Self::Standby => "standby",
        }
    }
}

impl Culprit {
    pub(super) fn new(
        role: CulpritRole,
        sessions: &RecordedSessions,
        row: &RecordedSession,
    ) -> Self {
        let name = |index| sessions.name(index).to_owned();
        Self {
            role,
            pid: Some(row.pid),
            pids: Vec::new(),
            kind: name(row.kind),
            statement: String::new(),
            database: name(row.database),
            user: name(row.user),
            application: name(row.application),
            client: name(row.client),
            state: name(row.state),
            age_s: None,
            relation: None,
            sessions: 0,
            time_s: 0.0,
            temp_bytes: 0,
        }
    }

    /// A group of sessions, of which only one property is known.
    fn group(role: CulpritRole, time_s: f64, sessions: usize) -> Self {
        let (rows, row) = (RecordedSessions::default(), RecordedSession::default());
        Self { pid: None, time_s, sessions, ..Self::new(role, &rows, &row) }
    }

    /// Names the process with its statement, application, user and client:
    /// ``pid 4711 (`lock table t`, psql, user bob, 10.0.0.7)``. Of several processes, names the
    /// first: ``pids 11, 12, 13 and 5 more (`copy t from stdin`)``.
    pub fn process(&self) -> String {
        if self.role == CulpritRole::Standby {
            return self.standby();
        }
        let name = match (self.pid, &*self.kind) {
            (Some(0), _) => {
                let text = if self.statement.is_empty() {
                    "a prepared transaction"
                } else {
                    &self.statement
                };
                let owner = if self.user.is_empty() {
                    String::new()
                } else {
                    format!(" (user {})", self.user)
                };
                return format!("{text}{owner}");
            }
            (Some(pid), "" | "client backend") => format!("pid {pid}"),
            (Some(pid), kind) => format!("{kind} {pid}"),
            (None, _) if self.pids.is_empty() => return self.details(),
            (None, _) => {
                let shown: Vec<_> =
                    self.pids.iter().take(PIDS_SHOWN).map(ToString::to_string).collect();
                let more = match self.pids.len() - shown.len() {
                    0 => String::new(),
                    count => format!(" and {count} more"),
                };
                format!("pids {}{more}", shown.join(", "))
            }
        };
        let details = self.details();
        if details.is_empty() { name } else { format!("{name} ({details})") }
    }

    /// Names a standby: `standby replica (walsender 4711, 10.0.0.7)`.
    fn standby(&self) -> String {
        let name = match &*self.application {
            "" => "a standby".to_owned(),
            name => format!("standby {name}"),
        };
        let pid = self.pid.map_or_else(String::new, |pid| format!(" {pid}"));
        let client = match &*self.client {
            "" | "[local]" => String::new(),
            client => format!(", {client}"),
        };
        format!("{name} ({}{pid}{client})", self.kind)
    }

    /// Describes the session without its process id.
    fn details(&self) -> String {
        let mut parts = Vec::new();
        if !self.statement.is_empty() {
            parts.push(format!("`{}`", shortened(&self.statement)));
        }
        if !self.application.is_empty() {
            parts.push(self.application.clone());
        }
        if !self.user.is_empty() {
            parts.push(format!("user {}", self.user));
        }
        if !self.client.is_empty() && self.client != "[local]" {
            parts.push(self.client.clone());
        }
        if self.role == CulpritRole::Blocker && self.state.starts_with("idle") {
            let age = self.age_s.map_or_else(String::new, |age| format!(" for {age:.0} s"));
            parts.push(format!("{}{age}", self.state));
        }
        parts.join(", ")
    }

    /// Describes the lock that others waited for, and its holder:
    /// `a lock on shop.public.orders held by pid 4711 (…)`.
    pub(super) fn lock_phrase(&self) -> String {
        let on = self.relation.as_ref().map_or_else(String::new, |name| format!(" on {name}"));
        format!("a lock{on} held by {}", self.process())
    }

    /// Describes the culprit and its part in one line.
    pub fn line(&self) -> String {
        let time = format!("{:.1} session seconds", self.time_s);
        match self.role {
            CulpritRole::Blocker => {
                let on =
                    self.relation.as_ref().map_or_else(String::new, |name| format!(" on {name}"));
                format!("{} blocked up to {} sessions{on}: {time}", self.process(), self.sessions)
            }
            CulpritRole::Query | CulpritRole::Autovacuum => format!("{}: {time}", self.process()),
            CulpritRole::Requester => {
                format!("{} requested checkpoints: {time}", self.process())
            }
            CulpritRole::Standby => format!("{}: {}", self.process(), self.statement),
            CulpritRole::Statement => match self.pid {
                Some(_) => format!("{time}: {}", self.process()),
                None => format!("{time} in up to {} sessions: {}", self.sessions, self.process()),
            },
            CulpritRole::User => format!("{time} of user {}", self.user),
            CulpritRole::Application => format!("{time} of application {}", self.application),
            CulpritRole::Client => format!("{time} of client {}", self.client),
        }
    }
}

/// Shortens a statement for a line of text.
fn shortened(statement: &str) -> String {
    if statement.chars().count() <= STATEMENT_CHARS {
        return statement.to_owned();
    }
    let text: String = statement.chars().take(STATEMENT_CHARS - 1).collect();
    format!("{}…", text.trim_end_matches('…').trim_end())
}

/// Returns the samples in these spans, which are in time order.
pub(super) fn samples<'a>(
    window: &'a RecordingWindow,
    spans: &'a [TimeSpan],
) -> impl Iterator<Item = &'a RecordedSessions> {
    window.sessions.iter().filter(|sessions| {
        let at = spans.partition_point(|span| span.from_us <= sessions.at_us);
        // Spans of successive seconds may overlap by an instant.
        spans[at.saturating_sub(2)..at].iter().any(|span| sessions.at_us <= span.to_us)
    })
}

pub(super) fn seconds_of(sessions: &RecordedSessions) -> f64 {
    sessions.elapsed_us as f64 / 1e6
}

/// Sums about one root blocker.
#[derive(Debug)]
struct BlockerSums {
    culprit: Culprit,
    statements: HashMap<u64, f64>,
    relations: BTreeMap<(u32, u32), f64>,
    samples: usize,
}

/// Returns the root blockers in these spans, those that cost the most first, and the session
/// seconds that were spent waiting for them.
pub(super) fn blockers(window: &RecordingWindow, spans: &[TimeSpan]) -> (Vec<Culprit>, f64) {
    let mut all: BTreeMap<u32, BlockerSums> = BTreeMap::new();
    let mut blocked_s = 0.0;
    for sessions in samples(window, spans) {
        let rows: HashMap<u32, &RecordedSession> =
            sessions.rows.iter().map(|row| (row.pid, row)).collect();
        let mut victims: BTreeMap<u32, usize> = BTreeMap::new();
        // The lock to extend a relation passes from one session to the next, whatever the age of
        // their transactions.
        let is_blocked = |row: &&RecordedSession| {
            !row.blockers.is_empty() && sessions.name(row.wait) != "Lock:extend"
        };
        for row in sessions.rows.iter().filter(is_blocked) {
            let roots = roots(row, &rows);
            let roots: Vec<_> = roots
                .into_iter()
                .filter(|pid| rows.get(pid).is_some_and(|root| is_lasting(sessions, root)))
                .collect();
            let time_s = seconds_of(sessions) / roots.len().max(1) as f64;
            for pid in roots {
                let Some(root) = rows.get(&pid) else { continue };
                let sums = all.entry(pid).or_insert_with(|| BlockerSums {
                    culprit: Culprit::new(CulpritRole::Blocker, sessions, root),
                    statements: HashMap::new(),
                    relations: BTreeMap::new(),
                    samples: 0,
                });
                *victims.entry(pid).or_default() += 1;
                sums.culprit.time_s += time_s;
                blocked_s += time_s;
                *sums.statements.entry(root.statement).or_default() += time_s;
                if let Some(relation) = row.relation {
                    *sums.relations.entry(relation).or_default() += time_s;
                }
                sums.culprit.state = sessions.name(root.state).to_owned();
                let age_s = root.transaction_ms.unwrap_or(root.age_ms) as f64 / 1e3;
                sums.culprit.age_s = Some(sums.culprit.age_s.unwrap_or(0.0).max(age_s));
            }
        }
        for (pid, count) in victims {
            if let Some(sums) = all.get_mut(&pid) {
                sums.culprit.sessions = sums.culprit.sessions.max(count);
                sums.samples += 1;
            }
        }
    }
    // One sample may have caught a moment.
    let mut culprits: Vec<_> = all
        .into_values()
        .filter(|sums| sums.samples >= 2)
        .map(|BlockerSums { culprit, statements, relations, .. }| Culprit {
            statement: largest(&statements)
                .and_then(|id| window.statement(id))
                .unwrap_or_default()
                .to_owned(),
            relation: largest(&relations)
                .map(|(database, relation)| window.name_of_oids(database, relation)),
            ..culprit
        })
        .collect();
    culprits.sort_by(|one, other| other.time_s.total_cmp(&one.time_s));
    culprits.truncate(BLOCKERS_SHOWN);
    (culprits, blocked_s)
}

/// Whether a blocker's transaction has lasted. That of a session which the role may not see counts
/// as lasting, because its age is unknown.
fn is_lasting(sessions: &RecordedSessions, root: &RecordedSession) -> bool {
    let is_hidden = sessions.name(root.kind).is_empty() && sessions.name(root.state).is_empty();
    is_hidden || root.transaction_ms.unwrap_or(root.age_ms) >= BLOCKER_AGE_MIN_MS
}

/// Returns the ends of the chains of blockers that begin with those of `row`.
fn roots(row: &RecordedSession, rows: &HashMap<u32, &RecordedSession>) -> Vec<u32> {
    let (mut roots, mut visited) = (Vec::new(), HashSet::from([row.pid]));
    let mut pending = row.blockers.clone();
    while let Some(pid) = pending.pop() {
        if !visited.insert(pid) {
            continue;
        }
        match rows.get(&pid) {
            Some(blocker) if !blocker.blockers.is_empty() => pending.extend(&blocker.blockers),
            _ => roots.push(pid),
        }
    }
    roots
}

fn largest<K: Copy + Ord, M>(sums: &M) -> Option<K>
where
    for<'a> &'a M: IntoIterator<Item = (&'a K, &'a f64)>,
{
    let most = sums
        .into_iter()
        .max_by(|one, other| one.1.total_cmp(other.1).then_with(|| other.0.cmp(one.0)));
    most.map(|(key, _)| *key)
}

/// Sums about one statement.
#[derive(Debug, Default)]
struct StatementSums<'a> {
    time_s: f64,
    sessions: usize,
    /// Session seconds by process.
    pids: HashMap<u32, f64>,
    /// Session seconds by database, user, application and client.
    origins: HashMap<[&'a str; 4], f64>,
}

/// Returns the statements, users, applications and clients with the most time of the working
/// sessions that `select` selects by their wait event; empty for no wait.
pub(super) fn busiest(
    window: &RecordingWindow,
    spans: &[TimeSpan],
    select: impl Fn(&str) -> bool,
) -> Vec<Culprit> {
    let mut statements: HashMap<u64, StatementSums<'_>> = HashMap::new();
    let mut groups: [(CulpritRole, BTreeMap<&str, f64>); 3] =
        [CulpritRole::User, CulpritRole::Application, CulpritRole::Client]
            .map(|role| (role, BTreeMap::new()));
    let mut total_s = 0.0;
    for sessions in samples(window, spans) {
        let mut present: HashMap<u64, usize> = HashMap::new();
        for row in sessions.rows.iter().filter(|row| row.is_working(sessions)) {
            if !select(sessions.name(row.wait)) {
                continue;
            }
            let time_s = seconds_of(sessions);
            total_s += time_s;
            let origin = [row.database, row.user, row.application, row.client];
            let origin = origin.map(|index| sessions.name(index));
            let sums = statements.entry(row.statement).or_default();
            sums.time_s += time_s;
            let pid = if row.leader == 0 { row.pid } else { row.leader };
            *sums.pids.entry(pid).or_default() += time_s;
            *sums.origins.entry(origin).or_default() += time_s;
            *present.entry(row.statement).or_default() += 1;
            for ((_, group), name) in groups.iter_mut().zip(&origin[1..]) {
                *group.entry(name).or_default() += time_s;
            }
        }
        for (statement, count) in present {
            let sums = statements.entry(statement).or_default();
            sums.sessions = sums.sessions.max(count);
        }
    }
    let mut sorted: Vec<_> = statements.into_iter().filter(|(id, _)| *id != 0).collect();
    sorted.sort_by(|(id, one), (other_id, other)| {
        other.time_s.total_cmp(&one.time_s).then(id.cmp(other_id))
    });
    let mut culprits: Vec<_> = sorted
        .into_iter()
        .take(STATEMENTS_SHOWN)
        .map(|(id, sums)| {
            let [database, user, application, client] =
                largest(&sums.origins).unwrap_or_default().map(str::to_owned);
            let mut pids: Vec<_> = sums.pids.into_iter().collect();
            pids.sort_by(|(pid, one), (other_pid, other)| {
                other.total_cmp(one).then(pid.cmp(other_pid))
            });
            let mut pids: Vec<_> = pids.into_iter().map(|(pid, _)| pid).take(PIDS_MAX).collect();
            let only = if pids.len() == 1 { pids.pop() } else { None };
            Culprit {
                pid: only,
                pids,
                statement: window.statement(id).unwrap_or_default().to_owned(),
                database,
                user,
                application,
                client,
                ..Culprit::group(CulpritRole::Statement, sums.time_s, sums.sessions)
            }
        })
        .filter(|culprit| !culprit.statement.is_empty())
        .collect();
    for (role, group) in groups {
        let Some(name) = largest(&group).filter(|name| !name.is_empty()) else { continue };
        let time_s = group[name];
        // The only one needs no mention.
        if group.len() < 2 || time_s < SHARE_MIN * total_s {
            continue;
        }
        let mut culprit = Culprit::group(role, time_s, 0);
        match role {
            CulpritRole::User => culprit.user = name.to_owned(),
            CulpritRole::Application => culprit.application = name.to_owned(),
            _ => culprit.client = name.to_owned(),
        }
        culprits.push(culprit);
    }
    culprits
}

/// Returns the culprits of an event in these spans. For a lock these are the root blockers, if they
/// explain at least half of the sampled waits; otherwise the statements that wait for the event, or
/// those that wait at all if the samples did not meet the event.
pub(super) fn of_event(
    window: &RecordingWindow,
    spans: &[TimeSpan],
    event: Option<&str>,
) -> Vec<Culprit> {
    if event.is_none_or(|event| event.starts_with("Lock:") && event != "Lock:extend") {
        let (blockers, blocked_s) = blockers(window, spans);
        let waiting_s: f64 = samples(window, spans)
            .map(|sessions| {
                let waits = |row: &&RecordedSession| {
                    row.is_working(sessions) && is_wait_of(event, sessions.name(row.wait))
                };
                sessions.rows.iter().filter(waits).count() as f64 * seconds_of(sessions)
            })
            .sum();
        if !blockers.is_empty() && blocked_s >= SHARE_MIN * waiting_s {
            return blockers;
        }
    }
    let mut culprits = busiest(window, spans, |wait| is_wait_of(event, wait));
    if culprits.is_empty() {
        culprits = busiest(window, spans, |wait| !wait.is_empty());
    }
    if event.is_some_and(|event| event.starts_with("IO:")) {
        culprits.extend(busy_autovacuum(window, spans));
    }
    culprits
}

fn is_wait_of(event: Option<&str>, wait: &str) -> bool {
    match event {
        Some(event) => wait == event,
        None => !wait.is_empty() && wait != "Timeout:PgSleep" && !wait.starts_with("Client:"),
    }
}

/// Returns the autovacuum worker that worked longest, if one worked in half of the samples.
fn busy_autovacuum(window: &RecordingWindow, spans: &[TimeSpan]) -> Option<Culprit> {
    let mut workers: BTreeMap<u32, (Culprit, usize, u64)> = BTreeMap::new();
    let mut count = 0;
    for sessions in samples(window, spans) {
        count += 1;
        let is_working = |row: &&RecordedSession| {
            sessions.name(row.kind) == "autovacuum worker"
                && sessions.name(row.wait) != "Timeout:VacuumDelay"
        };
        for row in sessions.rows.iter().filter(is_working) {
            let empty = || (Culprit::new(CulpritRole::Autovacuum, sessions, row), 0, row.statement);
            let (culprit, samples, _) = workers.entry(row.pid).or_insert_with(empty);
            culprit.time_s += seconds_of(sessions);
            *samples += 1;
        }
    }
    let (culprit, samples, statement) =
        workers.into_values().max_by_key(|(_, samples, _)| *samples)?;
    let statement = window.statement(statement).unwrap_or_default().to_owned();
    (samples * 2 >= count && samples >= 2).then_some(Culprit { statement, ..culprit })
}
