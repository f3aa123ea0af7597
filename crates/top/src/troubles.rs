//! Finds what is wrong with a server at a moment, and should be seen first.
//!
//! A trouble names the process that causes it, or the statement that most of the affected sessions
//! run, if there is one. Thresholds are such that a busy server without a problem has none:
//!
//! - A session blocks others, one of which has waited for [`BLOCKED_SECONDS_MIN`].
//! - [`STUCK_SESSIONS_MIN`] sessions wait for the same event, in statements that have lasted
//!   [`STUCK_SECONDS_MIN`]. Reading and writing relations does not count.
//! - Waits for an event surge: in each of [`SURGE_SECONDS`] seconds [`SURGE_FACTOR`] times the
//!   sessions of the median second before, and at least [`SURGE_SESSIONS_MIN`] on average.
//! - A statement has run for [`RUNAWAY_SECONDS_MIN`], and uses a processor.
//! - [`TEMP_RATE_MIN`] are written to temporary files per second, or they have [`TEMP_BYTES_MIN`].
//! - Less than [`HIT_RATIO_MIN`] of block reads are hits, and [`READ_BLOCKS_MIN`] are not.
//! - [`CHECKPOINTS_MIN`] checkpoints were requested within the last minute.
//! - [`CONNECTIONS_SHARE`] of the connections are in use, or [`STORM_SESSIONS_MIN`] of them, and a
//!   quarter of all, began within [`STORM_SECONDS`].
//! - A standby lags by [`LAG_SECONDS_MIN`] or [`LAG_BYTES_MIN`].
//! - A transaction has idled for [`IDLE_SECONDS_MIN`].

use std::collections::{BTreeMap, HashMap};

use howdah_collect::{
    BackendActivity, BackendState, BackendType, BackendWait, Blocker, BlockingTrees, ColumnUnit,
    Overview, SqlText, ViewCell,
};

use crate::{
    ServerSnapshot,
    units::{format_cell, format_duration},
};

/// Something wrong with a server.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Trouble {
    /// Number of sessions that it affects, by which troubles are ordered.
    pub(crate) sessions: f64,
    /// The trouble in one line, the process and the most important figures first.
    pub(crate) text: String,
}

/// Time that a session has waited for a lock, in seconds, from which its blocker is reported.
const BLOCKED_SECONDS_MIN: f64 = 1.0;
/// Number of sessions that are stuck in the same event.
const STUCK_SESSIONS_MIN: usize = 2;
/// Time that the statement of a stuck session has lasted, in seconds.
const STUCK_SECONDS_MIN: f64 = 1.0;
/// Number of the latest seconds that are compared with those before.
const SURGE_SECONDS: usize = 3;
/// Number of earlier seconds that are needed to tell what is usual, and the largest number used.
const USUAL_SECONDS: (usize, usize) = (10, 120);
/// Ratio of the sessions in an event to those in the median second.
const SURGE_FACTOR: f64 = 3.0;
/// Average number of sessions in an event during a surge.
const SURGE_SESSIONS_MIN: f64 = 3.0;
/// Time that a statement has run, in seconds.
const RUNAWAY_SECONDS_MIN: f64 = 10.0;
/// Share of a processor that a runaway statement uses, in percent, if its process is visible.
const RUNAWAY_CPU_MIN: f64 = 50.0;
/// Bytes written to temporary files per second.
const TEMP_RATE_MIN: f64 = (10 << 20) as f64;
/// Bytes of existing temporary files.
const TEMP_BYTES_MIN: i64 = 256 << 20;
/// Share of block reads that find the block in the cache.
const HIT_RATIO_MIN: f64 = 0.9;
/// Blocks requested from the operating system per second.
const READ_BLOCKS_MIN: f64 = 2000.0;
/// Number of checkpoints that were requested, by WAL or by CHECKPOINT, in the last minute.
const CHECKPOINTS_MIN: i64 = 3;
/// Share of the allowed connections.
const CONNECTIONS_SHARE: f64 = 0.9;
/// Number of sessions that began recently.
const STORM_SESSIONS_MIN: usize = 20;
/// Age of a session that began recently, in seconds.
const STORM_SECONDS: f64 = 3.0;
/// Lag of a standby, in seconds and in bytes.
const LAG_SECONDS_MIN: f64 = 5.0;
const LAG_BYTES_MIN: i64 = 128 << 20;
/// Time that a transaction has idled, in seconds.
const IDLE_SECONDS_MIN: f64 = 300.0;

/// Returns the troubles of a server at the moment of a snapshot, the one with the most affected
/// sessions first.
pub(crate) fn troubles(snapshot: &ServerSnapshot) -> Vec<Trouble> {
    let mut found = Vec::new();
    blocking(snapshot, &mut found);
    stuck(snapshot, &mut found);
    surge(snapshot, &mut found);
    runaway(snapshot, &mut found);
    temporary_files(snapshot, &mut found);
    cache(snapshot, &mut found);
    checkpoints(snapshot, &mut found);
    connections(snapshot, &mut found);
    lag(snapshot, &mut found);
    idle_transaction(snapshot, &mut found);
    found.sort_by(|one, other| other.sessions.total_cmp(&one.sessions));
    found
}

fn blocking(snapshot: &ServerSnapshot, found: &mut Vec<Trouble>) {
    let backends = &snapshot.activity.backends;
    let now_us = snapshot.activity.taken_us;
    let trees = BlockingTrees::from_activity(&snapshot.activity);
    let mut nodes = trees.nodes.iter().peekable();
    while let Some(root) = nodes.next() {
        let mut waits = Vec::new();
        while let Some(node) = nodes.next_if(|node| node.depth > 0) {
            let backend = node.backend.and_then(|at| backends.get(at));
            waits.extend(backend.and_then(|backend| backend.blocked_for(now_us)));
        }
        let longest = waits.into_iter().max_by(f64::total_cmp);
        // Before PostgreSQL 14 the start of a wait is unknown.
        if longest.is_some_and(|longest| longest < BLOCKED_SECONDS_MIN) {
            continue;
        }
        let sessions = root.victims;
        let lasts = longest.map_or_else(String::new, |it| format!(" for {}", format_duration(it)));
        let blocks = format!("blocks {}{lasts}", counted(sessions, "session"));
        let text = match (root.process, root.backend.and_then(|at| backends.get(at))) {
            (Blocker::Prepared, _) => format!("a prepared transaction {blocks}"),
            (Blocker::Process(pid), None) => format!("pid {pid} {blocks}"),
            (Blocker::Process(_), Some(backend)) => with_statement(
                format!("{} {blocks}{}", process(backend), idles(backend, now_us)),
                backend.query.as_ref(),
            ),
        };
        found.push(Trouble { sessions: to_real(sessions), text });
    }
}

/// Adds sessions that wait, and whose statements last.
fn stuck(snapshot: &ServerSnapshot, found: &mut Vec<Trouble>) {
    let now_us = snapshot.activity.taken_us;
    let mut events: BTreeMap<&BackendWait, Vec<&BackendActivity>> = BTreeMap::new();
    for backend in snapshot.activity.backends.iter().filter(|backend| works(backend)) {
        let lasts = backend.duration(now_us).unwrap_or(0.0);
        if let Some(wait) = backend.wait.as_ref().filter(|wait| is_stall(wait))
            && backend.blockers.is_empty()
            && lasts >= STUCK_SECONDS_MIN
        {
            events.entry(wait).or_default().push(backend);
        }
    }
    for (wait, backends) in events {
        if backends.len() < STUCK_SESSIONS_MIN {
            continue;
        }
        let longest = backends.iter().filter_map(|backend| backend.duration(now_us));
        let longest = format_duration(longest.fold(0.0, f64::max));
        let text = format!(
            "{} wait for {wait}{}, up to {longest}",
            counted(backends.len(), "session"),
            meaning(wait)
        );
        let text = with_statement(text, most_frequent_statement(&backends));
        found.push(Trouble { sessions: to_real(backends.len()), text });
    }
}

/// Adds events with many more sessions in the last seconds than usually.
fn surge(snapshot: &ServerSnapshot, found: &mut Vec<Trouble>) {
    let seconds: Vec<_> = snapshot.waits.seconds().rev().take(USUAL_SECONDS.1).collect();
    let Some((latest, before)) = seconds.split_at_checked(SURGE_SECONDS) else { return };
    let sessions_in = |event: &BackendWait, seconds: &[&crate::waits::WaitSecond]| -> Vec<f64> {
        let mean = |second: &&crate::waits::WaitSecond| {
            second.means().filter(|(wait, _)| *wait == Some(event)).map(|(_, mean)| mean).sum()
        };
        seconds.iter().map(mean).collect()
    };
    if before.len() < USUAL_SECONDS.0 {
        return;
    }
    let mut events: Vec<&BackendWait> =
        latest.iter().flat_map(|second| second.means().filter_map(|(wait, _)| wait)).collect();
    events.sort_unstable();
    events.dedup();
    for event in events.into_iter().filter(|event| is_work(event)) {
        let now = sessions_in(event, latest);
        let mut usual = sessions_in(event, before);
        usual.sort_unstable_by(f64::total_cmp);
        let usual = usual[usual.len() / 2];
        let least = now.iter().copied().fold(f64::INFINITY, f64::min);
        let sessions = now.iter().sum::<f64>() / to_real(now.len());
        let is_known = found.iter().any(|trouble| trouble.text.contains(&event.to_string()));
        if least < SURGE_FACTOR * usual || sessions < SURGE_SESSIONS_MIN || is_known {
            continue;
        }
        let backends = snapshot.activity.backends.iter();
        let in_event: Vec<_> = backends.filter(|it| it.wait.as_ref() == Some(event)).collect();
        // Sessions blocked by another are reported with it.
        if !in_event.is_empty() && in_event.iter().all(|backend| !backend.blockers.is_empty()) {
            continue;
        }
        let text = format!(
            "{sessions:.1} sessions wait for {event}{}, usually {usual:.1}",
            meaning(event)
        );
        let text = with_statement(text, most_frequent_statement(&in_event));
        found.push(Trouble { sessions, text });
    }
}

fn runaway(snapshot: &ServerSnapshot, found: &mut Vec<Trouble>) {
    let now_us = snapshot.activity.taken_us;
    let cpu = |pid: i32| snapshot.processes.as_ref()?.get(&pid)?.cpu_percent;
    let running = snapshot.activity.backends.iter().filter_map(|backend| {
        let is_client = matches!(backend.kind, None | Some(BackendType::Client));
        let lasts = backend.duration(now_us).filter(|lasts| *lasts >= RUNAWAY_SECONDS_MIN)?;
        let cpu = cpu(backend.pid);
        let is_running = match cpu {
            Some(cpu) => cpu >= RUNAWAY_CPU_MIN,
            None => backend.wait.is_none(),
        };
        (is_client && works(backend) && is_running).then_some((lasts, cpu, backend))
    });
    let mut running: Vec<_> = running.collect();
    running.sort_by(|one, other| other.0.total_cmp(&one.0));
    let others = running.len().saturating_sub(1);
    let Some((lasts, cpu, backend)) = running.into_iter().next() else { return };
    let used = cpu.map_or_else(String::new, |cpu| format!(" at {cpu:.0}% CPU"));
    let more = if others > 0 { format!(", and {others} more") } else { String::new() };
    let text = format!("{} has run for {}{used}{more}", process(backend), format_duration(lasts));
    let text = with_statement(text, backend.query.as_ref());
    found.push(Trouble { sessions: 1.0 + to_real(others), text });
}

fn temporary_files(snapshot: &ServerSnapshot, found: &mut Vec<Trouble>) {
    let now = &snapshot.overview;
    // The server counts a file when it is removed. Until then, only a list of files shows it.
    let removed = rate(snapshot, |overview| Some(overview.temp_bytes)).unwrap_or(0.0);
    let grown = rate(snapshot, |overview| overview.temp_file_bytes).unwrap_or(0.0);
    let bytes = now.temp_file_bytes.unwrap_or(0);
    if removed.max(grown) < TEMP_RATE_MIN && bytes < TEMP_BYTES_MIN {
        return;
    }
    let size = |bytes: f64| format_cell(&ViewCell::Real(bytes), ColumnUnit::Bytes);
    let mut parts = Vec::new();
    if bytes > 0 {
        parts.push(format!("{} now", format_cell(&now.temp_file_bytes.into(), ColumnUnit::Bytes)));
    }
    if removed.max(grown) >= TEMP_RATE_MIN {
        parts.push(format!("{}/s", size(removed.max(grown))));
    }
    let figures = parts.join(", ");
    let backends = &snapshot.activity.backends;
    let find = |pid: i64| backends.iter().find(|backend| i64::from(backend.pid) == pid);
    let writer = now.temp_file_pid.and_then(find);
    // A parallel worker executes the statement of its leader, and only that can be cancelled.
    let leader = writer.and_then(|writer| find(writer.leader?.into()));
    let text = match (leader, writer) {
        (None, None) => format!("temporary files: {figures}"),
        (Some(leader), _) => with_statement(
            format!("{} and its workers write temporary files: {figures}", process(leader)),
            leader.query.as_ref(),
        ),
        (None, Some(writer)) => with_statement(
            format!("{} writes temporary files: {figures}", process(writer)),
            writer.query.as_ref(),
        ),
    };
    found.push(Trouble { sessions: 1.0, text });
}

fn cache(snapshot: &ServerSnapshot, found: &mut Vec<Trouble>) {
    let hits = rate(snapshot, |overview| Some(overview.blocks_hit));
    let reads = rate(snapshot, |overview| Some(overview.blocks_read));
    let Some((hits, reads)) = hits.zip(reads) else { return };
    let ratio = hits / (hits + reads);
    if reads < READ_BLOCKS_MIN || ratio >= HIT_RATIO_MIN {
        return;
    }
    let reading: Vec<_> = snapshot
        .activity
        .backends
        .iter()
        .filter(|backend| {
            works(backend)
                && backend.wait.as_ref().is_none_or(|wait| &*wait.event == "DataFileRead")
        })
        .collect();
    let text = format!("buffers are too few: {reads:.0} reads/s, {:.0}% hits", ratio * 100.0);
    let text = with_statement(text, most_frequent_statement(&reading));
    found.push(Trouble { sessions: to_real(reading.len().max(1)) / 2.0, text });
}

fn checkpoints(snapshot: &ServerSnapshot, found: &mut Vec<Trouble>) {
    let now = &snapshot.overview;
    let Some(before) = &snapshot.minute_ago else { return };
    let requested = |overview: &Overview| overview.checkpoints_requested;
    let Some((now_count, before_count)) = requested(now).zip(requested(before)) else { return };
    let count = now_count - before_count;
    if count < CHECKPOINTS_MIN {
        return;
    }
    #[expect(clippy::cast_precision_loss, reason = "a duration for display")]
    let seconds = (now.taken_us - before.taken_us) as f64 / 1e6;
    let text = format!(
        "{count} checkpoints were requested in {}: max_wal_size is too small, or by CHECKPOINT",
        format_duration(seconds)
    );
    found.push(Trouble { sessions: 1.0, text });
}

fn connections(snapshot: &ServerSnapshot, found: &mut Vec<Trouble>) {
    let clients: Vec<_> =
        snapshot.activity.backends.iter().filter(|backend| backend.may_be_client()).collect();
    let most = snapshot.server.max_connections;
    #[expect(clippy::cast_precision_loss, reason = "a number of connections")]
    let is_full = most > 0 && to_real(clients.len()) >= CONNECTIONS_SHARE * most as f64;
    let recent_us = snapshot.activity.taken_us - (STORM_SECONDS * 1e6) as i64;
    let recent: Vec<_> =
        clients.iter().copied().filter(|client| client.started_us > recent_us).collect();
    let is_storm = recent.len() >= STORM_SESSIONS_MIN && recent.len() * 4 >= clients.len();
    if !is_full && !is_storm {
        return;
    }
    let mut text = format!("{} of {most} connections are in use", clients.len());
    if is_storm {
        text.push_str(&format!(", {} began in the last {STORM_SECONDS:.0}s", recent.len()));
    }
    let origins = if is_storm { &recent } else { &clients };
    if let Some((origin, count)) = most_frequent(origins.iter().filter_map(|it| origin(it))) {
        text.push_str(&format!(", {count} of them by {origin}"));
    }
    found.push(Trouble { sessions: to_real(origins.len()), text });
}

fn lag(snapshot: &ServerSnapshot, found: &mut Vec<Trouble>) {
    let overview = &snapshot.overview;
    let (seconds, bytes) = if overview.is_standby {
        (overview.replay_lag_seconds, overview.replay_lag_bytes)
    } else {
        (overview.followers_lag_seconds, overview.followers_lag_bytes)
    };
    // A standby that has replayed all WAL has no lag, however old the last transaction is.
    let lags = seconds.is_some_and(|it| it >= LAG_SECONDS_MIN) && bytes.is_none_or(|it| it > 0)
        || bytes.is_some_and(|it| it >= LAG_BYTES_MIN);
    if !lags {
        return;
    }
    let standby = if overview.is_standby { "this standby" } else { "a standby" };
    let seconds = seconds.map(|it| format!(" {}", format_duration(it))).unwrap_or_default();
    let bytes = format_cell(&bytes.into(), ColumnUnit::Bytes);
    found.push(Trouble { sessions: 1.0, text: format!("{standby} lags{seconds}, {bytes} of WAL") });
}

fn idle_transaction(snapshot: &ServerSnapshot, found: &mut Vec<Trouble>) {
    let now_us = snapshot.activity.taken_us;
    let idle = snapshot.activity.backends.iter().filter_map(|backend| {
        let is_idle = backend.state.is_some_and(BackendState::is_idle_in_transaction);
        let lasts = backend.duration(now_us).filter(|lasts| *lasts >= IDLE_SECONDS_MIN)?;
        is_idle.then_some((lasts, backend))
    });
    let Some((lasts, backend)) = idle.max_by(|one, other| one.0.total_cmp(&other.0)) else {
        return;
    };
    // It is known if it blocks others.
    let name = format!("{} ", process(backend));
    if found.iter().any(|trouble| trouble.text.starts_with(&name)) {
        return;
    }
    let text = format!(
        "{} has idled in a transaction for {}; VACUUM cannot remove rows deleted since",
        process(backend),
        format_duration(lasts)
    );
    found.push(Trouble { sessions: 0.5, text });
}

/// Whether a session executes a statement.
fn works(backend: &BackendActivity) -> bool {
    matches!(backend.state, Some(BackendState::Active | BackendState::FastPath))
}

/// Whether a wait is part of executing a statement, and not requested by it.
fn is_work(wait: &BackendWait) -> bool {
    !matches!(&*wait.class, "Client" | "Activity" | "Timeout" | "Extension")
}

/// Whether a wait that lasts is a problem: reading and writing relations takes its time.
fn is_stall(wait: &BackendWait) -> bool {
    let is_file =
        wait.event.starts_with("DataFile") || wait.event.to_lowercase().contains("buffile");
    let is_parallel = matches!(
        &*wait.event,
        "ExecuteGather"
            | "ParallelFinish"
            | "BgWorkerShutdown"
            | "CheckpointDone"
            | "CheckpointStart"
    ) || wait.event.starts_with("Hash")
        || wait.event.starts_with("ParallelCreate");
    is_work(wait) && !is_file && !is_parallel
}

/// Returns what sessions in an event wait for, in parentheses, if its name does not tell.
fn meaning(wait: &BackendWait) -> &'static str {
    match (&*wait.class, &*wait.event) {
        ("IO", "WALSync" | "WalSync") | ("LWLock", "WALWrite") => " (WAL is flushed)",
        ("IO", "WALWrite" | "WalWrite") => " (WAL is written)",
        ("IPC", "SyncRep") => " (a synchronous standby)",
        ("Lock", "extend") => " (a relation is extended)",
        ("LWLock", "WALInsert") => " (WAL is inserted)",
        ("LWLock", "BufferMapping") => " (the buffer table)",
        ("LWLock", "BufferContent" | "buffer_content") => " (one page)",
        _ => "",
    }
}

/// Returns how a process is called: by its id, and its kind unless it is a client's.
fn process(backend: &BackendActivity) -> String {
    match &backend.kind {
        None | Some(BackendType::Client) => format!("pid {}", backend.pid),
        Some(kind) => format!("{} {}", kind.as_str(), backend.pid),
    }
}

/// Returns that a session idles in a transaction, if it does.
fn idles(backend: &BackendActivity, now_us: i64) -> String {
    match backend.state {
        Some(state) if state.is_idle_in_transaction() => {
            let lasts = backend.duration(now_us).map(|it| format!(" {}", format_duration(it)));
            format!(", idle in tx{}", lasts.unwrap_or_default())
        }
        _ => String::new(),
    }
}

/// Returns the application of a client, or else its user.
fn origin(backend: &BackendActivity) -> Option<&str> {
    backend.application.as_deref().or(backend.user.as_deref())
}

fn with_statement(text: String, statement: Option<&SqlText>) -> String {
    match statement.map(SqlText::one_line).filter(|line| !line.is_empty()) {
        Some(line) => format!("{text}: {line}"),
        None => text,
    }
}

/// Returns the statement that most of the sessions run: by its identifier, if the server has one.
fn most_frequent_statement<'a>(backends: &[&'a BackendActivity]) -> Option<&'a SqlText> {
    let key = |backend: &BackendActivity| {
        let text = || backend.query.as_ref().map(|query| query.as_str().to_owned());
        (backend.query_id, if backend.query_id.is_some() { None } else { text() })
    };
    let (wanted, _) = most_frequent(backends.iter().map(|backend| key(backend)))?;
    backends.iter().find(|backend| key(backend) == wanted)?.query.as_ref()
}

/// Returns the most frequent item and how often it occurs; the smallest of several.
fn most_frequent<T: Ord + std::hash::Hash>(items: impl Iterator<Item = T>) -> Option<(T, usize)> {
    let mut counts: HashMap<T, usize> = HashMap::new();
    items.for_each(|item| *counts.entry(item).or_default() += 1);
    counts.into_iter().max_by(|(one, some), (other, more)| some.cmp(more).then(other.cmp(one)))
}

fn rate(snapshot: &ServerSnapshot, sum: impl Fn(&Overview) -> Option<i64>) -> Option<f64> {
    snapshot.overview.rate(snapshot.previous_overview.as_ref()?, sum)
}

fn counted(count: usize, name: &str) -> String {
    format!("{count} {name}{}", if count == 1 { "" } else { "s" })
}

#[expect(clippy::cast_precision_loss, reason = "a number of sessions")]
fn to_real(count: usize) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests;
