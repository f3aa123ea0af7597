//! The lines above the table: what the server is, and its figures. What cannot be read is `n/a`.

use std::time::Instant;

use howdah_collect::{Overview, State};
use ratatui::text::{Line, Span};

use super::Theme;
use crate::{
    Model, Snapshot, Standing,
    host::HostFigures,
    units::{shown, span},
};

/// The lines: one for each server if there are several, then the figures of the one that is looked at.
pub(super) fn lines(model: &Model, theme: &Theme, width: u16) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    if model.servers.len() > 1 {
        lines.extend(strips(model, theme));
    }
    match model.snapshot() {
        Some(snapshot) => lines.extend(figures(snapshot, theme, width)),
        None => lines.push(Line::raw("not read yet")),
    }
    lines.extend(super::past::line(model, theme, width));
    if let Some(standing) = model.standing(model.shown) {
        lines.extend(trouble(standing, model.past.is_some(), theme, width));
    }
    lines.extend(super::alerts::lines(model, theme, width));
    let missing = model.snapshot().map_or(0, |snapshot| snapshot.missing.len());
    if missing > 0 {
        lines.push(Line::styled("this role does not see all: press g", theme.bad));
    }
    lines
}

/// A line for each server.
fn strips(model: &Model, theme: &Theme) -> Vec<Line<'static>> {
    let strip = |(at, watched): (usize, &crate::model::Watched)| {
        let pointer = if at == model.shown { "▶ " } else { "  " };
        let words = match model.standing(at) {
            Some(Standing::Away { .. }) => "AWAY".to_owned(),
            Some(Standing::Read(snapshot)) => summary(snapshot),
            Some(Standing::Connecting) if model.past.is_some() => "not read yet".to_owned(),
            Some(Standing::Connecting) | None => "connecting".to_owned(),
        };
        let text = format!("{pointer}{:<24} {words}", watched.name);
        Line::styled(text, if at == model.shown { theme.strong } else { theme.faint })
    };
    model.servers.iter().enumerate().map(strip).collect()
}

fn summary(snapshot: &Snapshot) -> String {
    let role = if snapshot.overview.is_standby { "standby" } else { "primary" };
    let counts = Counts::of(snapshot);
    format!(
        "{role} {} active {} waiting {}",
        snapshot.identity.version,
        counts.visible(counts.active),
        counts.blocked
    )
}

/// Sessions by what they do.
#[derive(Default)]
struct Counts {
    clients: usize,
    active: usize,
    idle: usize,
    in_transaction: usize,
    failed: usize,
    blocked: usize,
    /// Those of `clients` that the role does not see more of.
    hidden: usize,
}

impl Counts {
    fn of(snapshot: &Snapshot) -> Self {
        let mut counts = Self::default();
        for backend in &snapshot.activity.backends {
            if backend.may_be_client() {
                counts.clients += 1;
                counts.hidden += usize::from(backend.is_hidden_client());
                match backend.state {
                    Some(State::Active | State::FastPath) => counts.active += 1,
                    Some(State::Idle) => counts.idle += 1,
                    Some(State::IdleInTransaction) => counts.in_transaction += 1,
                    Some(State::IdleInFailedTransaction) => counts.failed += 1,
                    _ => {}
                }
            }
            if !backend.blockers.is_empty() {
                counts.blocked += 1;
            }
        }
        counts
    }

    /// A count of sessions in a state, as far as the role sees states: `n/a` where all that could be in it are
    /// hidden, `≥2` where some are.
    fn visible(&self, count: usize) -> String {
        match (self.hidden, count) {
            (0, count) => count.to_string(),
            (_, 0) => "n/a".to_owned(),
            (_, count) => format!("≥{count}"),
        }
    }
}

fn figures(snapshot: &Snapshot, theme: &Theme, width: u16) -> Vec<Line<'static>> {
    let Snapshot { identity, overview, .. } = snapshot;
    let role = if overview.is_standby { "standby" } else { "primary" };
    #[expect(clippy::cast_precision_loss, reason = "a span of less than a century")]
    let up = (overview.taken_us - identity.started_us) as f64 / 1e6;
    let counts = Counts::of(snapshot);
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
        span(up)
    );
    let sessions = format!(
        "sessions {}/{}{hidden}  active {}  idle {}  in tx {}  failed tx {}  waiting {}",
        counts.clients,
        identity.connections_max,
        counts.visible(counts.active),
        counts.visible(counts.idle),
        counts.visible(counts.in_transaction),
        counts.visible(counts.failed),
        counts.blocked,
    );
    let mut lines = vec![
        Line::from(Span::styled(fitting(&first, width), theme.strong)),
        Line::raw(fitting(&sessions, width)),
        Line::raw(fitting(&work(snapshot), width)),
    ];
    let host = snapshot.host.as_ref().map(|figures| Line::raw(fitting(&host(figures), width)));
    lines.extend(host);
    lines
}

/// Of figures with two spaces between them those that are whole in a line. A half one looks like another.
fn fitting(figures: &str, width: u16) -> String {
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

/// The host's figures, where the server is here.
fn host(host: &HostFigures) -> String {
    use howdah_collect::Unit;
    let percent = |share: Option<f64>| shown(&share.into(), Unit::Percent);
    let bytes = |bytes: Option<f64>| shown(&bytes.into(), Unit::Bytes);
    format!(
        "host cpu {}  io wait {}  load {}  memory free {} of {}  disk read {}/s  write {}/s",
        percent(host.cpu_percent),
        percent(host.io_wait_percent),
        host.load.map_or_else(|| "-".to_owned(), |load| format!("{load:.2}")),
        shown(&host.available_bytes.into(), Unit::Bytes),
        shown(&host.memory_bytes.into(), Unit::Bytes),
        bytes(host.read_bytes),
        bytes(host.write_bytes),
    )
}

/// What the cluster did between the last two readings.
fn work(snapshot: &Snapshot) -> String {
    use howdah_collect::{Cell, Unit};
    let now = &snapshot.overview;
    let rate = |sum: fn(&Overview) -> Option<i64>| -> Cell {
        snapshot.before.as_ref().and_then(|before| now.rate(before, sum)).into()
    };
    let count = |sum| shown(&rate(sum), Unit::Count);
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
            shown(&bytes.into(), Unit::Bytes),
            seconds.map_or_else(|| "-".to_owned(), span)
        ),
    };
    format!(
        "tps {}  rollback {}  rows {}/s  cache {hit}  temp {}/s  wal {}/s  frozen age {}{lag}",
        count(|o| Some(o.commits)),
        count(|o| Some(o.rollbacks)),
        count(|o| Some(o.rows_changed)),
        shown(&rate(|o| Some(o.temp_bytes)), Unit::Bytes),
        shown(&rate(|o| o.wal_bytes), Unit::Bytes),
        shown(&now.frozen_age.into(), Unit::Count),
    )
}

/// Why the figures are old, if they are.
fn trouble(standing: &Standing, is_past: bool, theme: &Theme, width: u16) -> Option<Line<'static>> {
    match standing {
        Standing::Away { reason, .. } if is_past => {
            let text = format!("away: {reason}");
            Some(Line::styled(text.chars().take(usize::from(width)).collect::<String>(), theme.bad))
        }
        Standing::Read(_) if is_past => None,
        Standing::Away { reason, since, last, .. } => {
            let age = last.as_ref().map_or_else(String::new, |last| {
                format!(", last read {} ago", span(last.read.elapsed().as_secs_f64()))
            });
            let text = format!("away for {}{age}: {reason}", span(since.elapsed().as_secs_f64()));
            let text: String = text.chars().take(usize::from(width)).collect();
            Some(Line::styled(text, theme.bad))
        }
        Standing::Read(snapshot) => {
            // Three readings should have come in that time.
            let age = Instant::now().saturating_duration_since(snapshot.read).as_secs_f64();
            (age > 10.0).then(|| Line::styled(format!("last read {} ago", span(age)), theme.bad))
        }
        Standing::Connecting => None,
    }
}
