//! The lines above the table: the server and its figures. Unreadable values are shown as `n/a`.

use std::time::Instant;

use howdah_collect::{BackendState, Overview};
use ratatui::text::{Line, Span};

use super::Theme;
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

/// Returns one line per server if there are several, then the troubles and the figures of the
/// displayed server, and lines for the displayed time, outdated figures, alerts and missing
/// privileges if they apply.
pub(super) fn lines(model: &Model, theme: &Theme, width: u16) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    if model.servers.len() > 1 {
        lines.extend(server_lines(model, theme));
    }
    lines.extend(trouble_lines(model, theme, width));
    match model.snapshot() {
        Some(snapshot) => lines.extend(figures(snapshot, theme, width)),
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
    let troubles = model.trouble_cache.troubles(snapshot);
    let most = if width < WIDE { TROUBLES_MAX_NARROW } else { TROUBLES_MAX };
    let more = troubles.len().saturating_sub(most);
    let line = |(at, trouble): (usize, &Trouble)| {
        let others =
            if at + 1 == most && more > 0 { format!(" (and {more} more)") } else { String::new() };
        let room = usize::from(width).saturating_sub(others.len());
        Line::styled(truncated(&format!("▲ {}", trouble.text), room) + &others, theme.bad)
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

fn figures(snapshot: &ServerSnapshot, theme: &Theme, width: u16) -> Vec<Line<'static>> {
    let ServerSnapshot { server: identity, overview, .. } = snapshot;
    let role = if overview.is_standby { "standby" } else { "primary" };
    #[expect(clippy::cast_precision_loss, reason = "a span of less than a century")]
    let up = (overview.taken_us - identity.started_us) as f64 / 1e6;
    let counts = SessionCounts::from_snapshot(snapshot);
    let hidden = match counts.hidden {
        0 => String::new(),
        hidden => format!(" ({hidden} not visible)"),
    };
    let elsewhere = if snapshot.host.is_none() { "  host n/a" } else { "" };
    let first = format!(
        "PostgreSQL {} {role} {}:{}/{}  up {}{elsewhere}",
        identity.version,
        identity.host,
        identity.port,
        identity.database,
        format_duration(up)
    );
    let sessions = format!(
        "sessions {}/{}{hidden}  active {}  idle {}  in tx {}  failed tx {}  waiting {}",
        counts.clients,
        identity.max_connections,
        counts.visible(counts.active),
        counts.visible(counts.idle),
        counts.visible(counts.in_transaction),
        counts.visible(counts.failed),
        counts.blocked,
    );
    let mut lines = vec![
        Line::from(Span::styled(fit_figures(&first, width), theme.strong)),
        Line::raw(fit_figures(&sessions, width)),
        Line::raw(fit_figures(&rates(snapshot), width)),
    ];
    let host = snapshot.host.as_ref().map(|figures| Line::raw(fit_figures(&host(figures), width)));
    lines.extend(host);
    lines
}

/// Returns the leading figures, separated by two spaces, that fit completely. A truncated figure
/// could be misread.
fn fit_figures(figures: &str, width: u16) -> String {
    let mut fitting = String::new();
    for figure in figures.split("  ") {
        let gap = if fitting.is_empty() { "" } else { "  " };
        let taken = Span::raw(&fitting).width() + gap.len() + Span::raw(figure).width();
        if taken > usize::from(width) && !fitting.is_empty() {
            break;
        }
        fitting.push_str(gap);
        fitting.push_str(figure);
    }
    fitting
}

/// Formats the figures of the host that the server runs on.
fn host(host: &HostFigures) -> String {
    use howdah_collect::ColumnUnit;
    let percent = |share: Option<f64>| format_cell(&share.into(), ColumnUnit::Percent);
    let bytes = |bytes: Option<f64>| format_cell(&bytes.into(), ColumnUnit::Bytes);
    format!(
        "host cpu {}  io wait {}  load {}  memory free {} of {}  disk read {}/s  write {}/s",
        percent(host.cpu_percent),
        percent(host.io_wait_percent),
        host.load.map_or_else(|| "-".to_owned(), |load| format!("{load:.2}")),
        format_cell(&host.available_bytes.into(), ColumnUnit::Bytes),
        format_cell(&host.memory_bytes.into(), ColumnUnit::Bytes),
        bytes(host.read_bytes),
        bytes(host.write_bytes),
    )
}

/// Formats the rates of all databases since the previous sample, the age of the oldest unfrozen
/// transaction id, and a standby's lag.
fn rates(snapshot: &ServerSnapshot) -> String {
    use howdah_collect::{ColumnUnit, ViewCell};
    let now = &snapshot.overview;
    let rate = |sum: fn(&Overview) -> Option<i64>| -> ViewCell {
        snapshot.previous_overview.as_ref().and_then(|before| now.rate(before, sum)).into()
    };
    let count = |sum| format_cell(&rate(sum), ColumnUnit::Count);
    let hit = match (rate(|o| Some(o.blocks_hit)).number(), rate(|o| Some(o.blocks_read)).number())
    {
        (Some(hit), Some(read)) if hit + read > 0.0 => {
            format!("{:.1}%", 100.0 * hit / (hit + read))
        }
        _ => "-".to_owned(),
    };
    let lag = match (now.is_standby, now.replay_lag_bytes, now.replay_lag_seconds) {
        (false, ..) => String::new(),
        (true, bytes, seconds) => format!(
            "  lag {} {}",
            format_cell(&bytes.into(), ColumnUnit::Bytes),
            seconds.map_or_else(|| "-".to_owned(), format_duration)
        ),
    };
    format!(
        "tps {}  rollback {}  rows {}/s  cache {hit}  temp {}/s  wal {}/s  frozen age {}{lag}",
        count(|o| Some(o.commits)),
        count(|o| Some(o.rollbacks)),
        count(|o| Some(o.rows_changed)),
        format_cell(&rate(|o| Some(o.temp_bytes)), ColumnUnit::Bytes),
        format_cell(&rate(|o| o.wal_bytes), ColumnUnit::Bytes),
        format_cell(&now.frozen_age.into(), ColumnUnit::Count),
    )
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
