//! The lines above the table: the server and its figures. Unreadable values are shown as `n/a`.

use std::time::Instant;

use howdah_collect::{BackendState, BackendType, ColumnUnit, Overview, ViewCell};
use ratatui::text::Line;

use super::{
    Theme,
    figure::{self, HeaderFigure},
};
use crate::{
    Model, ServerHealth, ServerSnapshot,
    host::HostFigures,
    troubles::Trouble,
    units::{format_cell, format_duration},
};

/// Maximum number of lines with troubles, and on a narrow screen, where alerts need the space, too.
const TROUBLES_MAX: usize = 3;
const TROUBLES_MAX_NARROW: usize = 1;
/// Width from which a screen is not narrow.
const WIDE: u16 = 60;
/// Height from which there is a line for workers and sizes.
const LOW: u16 = 16;
/// Age of a transaction id from which it needs attention: half of what is possible.
const FROZEN_AGE_WARN: i64 = 1_000_000_000;

/// Returns one line per server if there are several, then the troubles and the figures of the
/// displayed server, and lines for the displayed time, outdated figures, alerts and missing
/// privileges if they apply.
pub(super) fn lines(
    model: &Model,
    theme: &Theme,
    (width, height): (u16, u16),
) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    if model.servers.len() > 1 {
        lines.extend(server_lines(model, theme));
    }
    lines.extend(trouble_lines(model, theme, width));
    match model.snapshot() {
        Some(snapshot) => lines.extend(figures(snapshot, theme, (width, height))),
        None => lines.push(Line::raw("not sampled yet")),
    }
    lines.extend(super::playback::line(model, theme, width));
    if let Some(health) = model.health(model.current) {
        lines.extend(staleness(health, model.past.is_some(), theme, width));
    }
    lines.extend(super::alerts::lines(model, theme, width));
    let missing = model.snapshot().map_or(0, |snapshot| snapshot.missing.len());
    if missing > 0 {
        lines.push(Line::styled("this role lacks privileges: press g", theme.bad));
    }
    lines
}

/// Returns one line for each of the first troubles.
fn trouble_lines(model: &Model, theme: &Theme, width: u16) -> Vec<Line<'static>> {
    let Some(snapshot) = model.snapshot() else { return Vec::new() };
    let troubles = model.caches.troubles.troubles(snapshot);
    let most = if width < WIDE { TROUBLES_MAX_NARROW } else { TROUBLES_MAX };
    let more = troubles.len().saturating_sub(most);
    let line = |(at, trouble): (usize, &Trouble)| {
        let others =
            if at + 1 == most && more > 0 { format!(" (and {more} more)") } else { String::new() };
        let room = usize::from(width).saturating_sub(others.len());
        let style = if at == 0 { theme.bad } else { theme.warn };
        Line::styled(truncated(&format!("▲ {}", trouble.text), room) + &others, style)
    };
    troubles.iter().take(most).enumerate().map(line).collect()
}

/// Returns the beginning of a text that takes at most `width` terminal columns, with an ellipsis if
/// it is cut.
fn truncated(text: &str, width: usize) -> String {
    super::rows::fitted(text, u16::try_from(width).unwrap_or(u16::MAX), false).trim_end().to_owned()
}

/// Returns one line per server, with its health.
fn server_lines(model: &Model, theme: &Theme) -> Vec<Line<'static>> {
    let strip = |(at, watched): (usize, &crate::model::WatchedServer)| {
        let pointer = if at == model.current { "▶ " } else { "  " };
        let words = match model.health(at) {
            Some(ServerHealth::Unreachable { .. }) => "UNREACHABLE".to_owned(),
            Some(ServerHealth::Read(snapshot)) => summary(snapshot),
            Some(ServerHealth::Connecting) if model.past.is_some() => "not sampled yet".to_owned(),
            Some(ServerHealth::Connecting) | None => "connecting".to_owned(),
        };
        let text = format!("{pointer}{:<24} {words}", watched.name);
        Line::styled(text, if at == model.current { theme.strong } else { theme.faint })
    };
    model.servers.iter().enumerate().map(strip).collect()
}

fn summary(snapshot: &ServerSnapshot) -> String {
    let role = if snapshot.overview.is_standby { "standby" } else { "primary" };
    let counts = SessionCounts::from_snapshot(snapshot);
    format!(
        "{role} {} active {} waiting {}",
        snapshot.server.version,
        counts.visible(counts.active),
        counts.blocked
    )
}

/// Numbers of client sessions by state, and of blocked sessions.
#[derive(Default)]
struct SessionCounts {
    clients: usize,
    active: usize,
    idle: usize,
    in_transaction: usize,
    failed: usize,
    blocked: usize,
    /// Clients whose activity the role cannot see.
    hidden: usize,
}

impl SessionCounts {
    fn from_snapshot(snapshot: &ServerSnapshot) -> Self {
        let mut counts = Self::default();
        for backend in &snapshot.activity.backends {
            if backend.may_be_client() {
                counts.clients += 1;
                counts.hidden += usize::from(backend.is_hidden_client());
                match backend.state {
                    Some(BackendState::Active | BackendState::FastPath) => counts.active += 1,
                    Some(BackendState::Idle) => counts.idle += 1,
                    Some(BackendState::IdleInTransaction) => counts.in_transaction += 1,
                    Some(BackendState::IdleInFailedTransaction) => counts.failed += 1,
                    _ => {}
                }
            }
            if !backend.blockers.is_empty() {
                counts.blocked += 1;
            }
        }
        counts
    }

    /// Formats a count of sessions in a state. If some sessions are hidden, zero becomes `n/a`, and
    /// 2 becomes `≥2`.
    fn visible(&self, count: usize) -> String {
        match (self.hidden, count) {
            (0, count) => count.to_string(),
            (_, 0) => "n/a".to_owned(),
            (_, count) => format!("≥{count}"),
        }
    }
}

/// Returns the lines with figures. A low screen has no line for workers and sizes.
fn figures(
    snapshot: &ServerSnapshot,
    theme: &Theme,
    (width, height): (u16, u16),
) -> Vec<Line<'static>> {
    let mut lines = vec![server(snapshot), sessions(snapshot), rates(snapshot)];
    if height >= LOW {
        lines.push(workers(snapshot));
    }
    // An agent's problem has a line of its own, so that its text cannot hide the server's name.
    let problem = snapshot
        .agent_problem
        .as_ref()
        .map(|problem| vec![HeaderFigure::new("agent", problem.to_string()).warn_if(true)]);
    lines.extend(snapshot.host.as_ref().map(host).or(problem));
    lines.into_iter().map(|line| figure::line(line, theme, width)).collect()
}

/// Figures that identify the server.
fn server(snapshot: &ServerSnapshot) -> Vec<HeaderFigure> {
    let ServerSnapshot { server: identity, overview, .. } = snapshot;
    let role = if overview.is_standby { "standby" } else { "primary" };
    #[expect(clippy::cast_precision_loss, reason = "a span of less than a century")]
    let up = (overview.taken_us - identity.started_us) as f64 / 1e6;
    let name = format!(
        "PostgreSQL {} {role} {}:{}/{}",
        identity.version, identity.host, identity.port, identity.database
    );
    let mut figures =
        vec![HeaderFigure::new("", name), HeaderFigure::new("up", format_duration(up))];
    if snapshot.host.is_none() && snapshot.agent_problem.is_none() {
        figures.push(HeaderFigure::new("host", "n/a".to_owned()));
    }
    figures
}

/// Numbers of sessions by state. What may be a trouble ranks above the rest.
fn sessions(snapshot: &ServerSnapshot) -> Vec<HeaderFigure> {
    let counts = SessionCounts::from_snapshot(snapshot);
    let hidden = match counts.hidden {
        0 => String::new(),
        hidden => format!(" ({hidden} not visible)"),
    };
    let max = snapshot.server.max_connections;
    let clients = i64::try_from(counts.clients).unwrap_or(i64::MAX);
    let figure = |label, count| HeaderFigure::new(label, counts.visible(count));
    vec![
        HeaderFigure::new("sessions", format!("{}/{max}{hidden}", counts.clients))
            .level_of_share(clients, max),
        figure("active", counts.active),
        figure("idle", counts.idle).ranked(9),
        figure("in tx", counts.in_transaction),
        figure("failed tx", counts.failed).warn_if(counts.failed > 0),
        HeaderFigure::new("waiting", counts.blocked.to_string()).warn_if(counts.blocked > 0),
    ]
}

/// Rates of all databases since the previous sample, the age of the oldest unfrozen transaction id,
/// and a standby's lag.
fn rates(snapshot: &ServerSnapshot) -> Vec<HeaderFigure> {
    let now = &snapshot.overview;
    let count = |sum| format_cell(&rate(snapshot, sum), ColumnUnit::Count);
    let bytes = |sum| format!("{}/s", format_cell(&rate(snapshot, sum), ColumnUnit::Bytes));
    let of = |sum| rate(snapshot, sum).number();
    let hit = match (of(|o| Some(o.blocks_hit)), of(|o| Some(o.blocks_read))) {
        (Some(hit), Some(read)) if hit + read > 0.0 => {
            format!("{:.1}%", 100.0 * hit / (hit + read))
        }
        _ => "-".to_owned(),
    };
    let mut figures = vec![
        HeaderFigure::new("tps", count(|o| Some(o.commits))),
        HeaderFigure::new("rollback", count(|o| Some(o.rollbacks))).ranked(5),
        HeaderFigure::new("rows", format!("{}/s", count(|o| Some(o.rows_changed)))),
        HeaderFigure::new("cache", hit),
        HeaderFigure::new("temp", bytes(|o| Some(o.temp_bytes))).ranked(4),
        HeaderFigure::new("wal", bytes(|o| o.wal_bytes)),
        HeaderFigure::new("frozen age", format_cell(&now.frozen_age.into(), ColumnUnit::Count))
            .warn_if(now.frozen_age >= Some(FROZEN_AGE_WARN))
            .ranked(6),
    ];
    if now.is_standby {
        let lag = format!(
            "{} {}",
            format_cell(&now.replay_lag_bytes.into(), ColumnUnit::Bytes),
            now.replay_lag_seconds.map_or_else(|| "-".to_owned(), format_duration)
        );
        figures.push(HeaderFigure::new("lag", lag));
    }
    figures
}

/// Returns the growth per second of a sum since the previous sample.
fn rate(snapshot: &ServerSnapshot, sum: fn(&Overview) -> Option<i64>) -> ViewCell {
    let before = snapshot.previous_overview.as_ref();
    before.and_then(|before| snapshot.overview.rate(before, sum)).into()
}

/// Sizes of databases, temporary files, and the server's workers of those allowed.
fn workers(snapshot: &ServerSnapshot) -> Vec<HeaderFigure> {
    let ServerSnapshot { overview, .. } = snapshot;
    let counts = WorkerCounts::from_snapshot(snapshot);
    let limits = &overview.limits;
    let size = format_cell(&overview.database_bytes.into(), ColumnUnit::Bytes);
    let of = |label, used: usize, limit: Option<i64>| {
        let limited = limit.map_or_else(|| "-".to_owned(), |limit| limit.to_string());
        let figure = HeaderFigure::new(label, format!("{}/{limited}", counts.visible(used)));
        figure.level_of_share(i64::try_from(used).unwrap_or(i64::MAX), limit.unwrap_or(0))
    };
    let mut figures = vec![
        HeaderFigure::new("size", size),
        HeaderFigure::new("growth", growth(overview.database_growth)).ranked(2),
        HeaderFigure::new(
            "temp files",
            format!(
                "{}/s",
                format_cell(&rate(snapshot, |o| Some(o.temp_files)), ColumnUnit::Count)
            ),
        )
        .ranked(3),
        of("autovacuum", counts.autovacuum, limits.autovacuum).ranked(1),
        of("parallel", counts.parallel, limits.parallel).ranked(1),
        of("workers", counts.processes, limits.processes).ranked(5),
        of("logical", counts.logical, limits.logical).ranked(6),
        of("walsenders", counts.wal_senders, limits.wal_senders).ranked(4),
    ];
    if let (Some(slots), Some(limit)) = (overview.slots, limits.slots) {
        let slots_of_limit = HeaderFigure::new("slots", format!("{slots}/{limit}")).ranked(5);
        figures.push(slots_of_limit.level_of_share(slots, limit));
    }
    figures
}

/// Formats the growth of the databases in bytes per second, with its sign.
fn growth(bytes: Option<i64>) -> String {
    match bytes {
        None => "-".to_owned(),
        Some(bytes) => {
            let sign = if bytes > 0 { "+" } else { "" };
            format!("{sign}{}/s", format_cell(&ViewCell::Integer(bytes), ColumnUnit::Bytes))
        }
    }
}

/// Numbers of the server's workers by kind.
#[derive(Default)]
struct WorkerCounts {
    autovacuum: usize,
    parallel: usize,
    logical: usize,
    wal_senders: usize,
    /// All background workers, which `max_worker_processes` limits: those for parallel queries and
    /// logical replication, and those of extensions.
    processes: usize,
    /// Processes whose kind the role cannot see.
    hidden: usize,
}

/// Processes that are not background workers (`backend_type` in the manual).
const OTHER_PROCESSES: [&str; 13] = [
    "archiver",
    "autovacuum launcher",
    "background writer",
    "checkpointer",
    "io worker",
    "logger",
    "slotsync worker",
    "standalone backend",
    "startup",
    "walreceiver",
    "walsummarizer",
    "walwriter",
    "dead-end client backend",
];

impl WorkerCounts {
    fn from_snapshot(snapshot: &ServerSnapshot) -> Self {
        let mut counts = Self::default();
        for backend in &snapshot.activity.backends {
            match &backend.kind {
                None => counts.hidden += usize::from(!backend.is_readable),
                Some(BackendType::AutovacuumWorker) => counts.autovacuum += 1,
                Some(BackendType::WalSender) => counts.wal_senders += 1,
                Some(BackendType::Client) => {}
                Some(BackendType::ParallelWorker) => {
                    counts.parallel += 1;
                    counts.processes += 1;
                }
                Some(kind @ BackendType::Other(name)) => {
                    let is_launcher = name.ends_with("launcher");
                    let is_logical = kind.is_logical_replication() && !is_launcher;
                    counts.logical += usize::from(is_logical);
                    counts.processes += usize::from(!OTHER_PROCESSES.contains(&&**name));
                }
            }
        }
        counts
    }

    /// Formats a count as [`SessionCounts::visible`] does.
    fn visible(&self, count: usize) -> String {
        SessionCounts { hidden: self.hidden, ..SessionCounts::default() }.visible(count)
    }
}

/// Figures of the host that the server runs on.
fn host(host: &HostFigures) -> Vec<HeaderFigure> {
    let percent = |share: Option<f64>| format_cell(&share.into(), ColumnUnit::Percent);
    let rate = |bytes: Option<f64>| format!("{}/s", format_cell(&bytes.into(), ColumnUnit::Bytes));
    let bytes = |bytes: Option<i64>| format_cell(&bytes.into(), ColumnUnit::Bytes);
    let is_short = |free: Option<i64>, all: Option<i64>, share: i64| {
        free.zip(all).is_some_and(|(free, all)| free < all / share)
    };
    let mut figures = vec![
        HeaderFigure::new("host cpu", percent(host.cpu_percent))
            .warn_if(host.cpu_percent >= Some(90.0)),
        HeaderFigure::new("io wait", percent(host.io_wait_percent))
            .warn_if(host.io_wait_percent >= Some(30.0)),
        HeaderFigure::new(
            "load",
            host.load.map_or_else(|| "-".to_owned(), |load| format!("{load:.2}")),
        )
        .ranked(4),
        HeaderFigure::new(
            "memory free",
            format!("{} of {}", bytes(host.available_bytes), bytes(host.memory_bytes)),
        )
        .warn_if(is_short(host.available_bytes, host.memory_bytes, 10)),
        HeaderFigure::new("disk read", rate(host.read_bytes)).ranked(3),
        HeaderFigure::new("write", rate(host.write_bytes)).ranked(3),
    ];
    if host.swap_bytes > Some(0) {
        let used = host.swap_used_bytes;
        let free = host.swap_bytes.zip(used).map(|(all, used)| all - used);
        let swap = format!("{} of {}", bytes(used), bytes(host.swap_bytes));
        let figure = HeaderFigure::new("swap", swap).warn_if(is_short(free, host.swap_bytes, 2));
        figures.push(figure.ranked(2));
    }
    figures
}

/// Returns a line with the reason why the figures are outdated, if they are.
fn staleness(
    health: &ServerHealth,
    is_past: bool,
    theme: &Theme,
    width: u16,
) -> Option<Line<'static>> {
    match health {
        ServerHealth::Unreachable { reason, .. } if is_past => {
            let text = format!("unreachable: {reason}");
            Some(Line::styled(text.chars().take(usize::from(width)).collect::<String>(), theme.bad))
        }
        ServerHealth::Read(_) if is_past => None,
        ServerHealth::Unreachable { reason, since, last, .. } => {
            let age = last.as_ref().map_or_else(String::new, |last| {
                format!(
                    ", last sample {} ago",
                    format_duration(last.sampled_at.elapsed().as_secs_f64())
                )
            });
            let text = format!(
                "unreachable for {}{age}: {reason}",
                format_duration(since.elapsed().as_secs_f64())
            );
            let text: String = text.chars().take(usize::from(width)).collect();
            Some(Line::styled(text, theme.bad))
        }
        ServerHealth::Read(snapshot) => {
            // Within ten seconds, several samples should have arrived.
            let age = Instant::now().saturating_duration_since(snapshot.sampled_at).as_secs_f64();
            (age > 10.0).then(|| {
                Line::styled(format!("last sample {} ago", format_duration(age)), theme.bad)
            })
        }
        ServerHealth::Connecting => None,
    }
}
