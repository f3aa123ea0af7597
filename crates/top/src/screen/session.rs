//! The page of one session: everything that is known about it.

use howdah_collect::{
    BackendActivity, BackendIo, ColumnUnit, SessionDetails, SessionLock, SqlText, ViewCell,
};
use jiff::{Timestamp, tz::TimeZone};
use ratatui::text::{Line, Span};

use super::{
    Theme,
    rows::{fitted, with_spaces},
};
use crate::{
    Model, ServerSnapshot,
    model::{PagePlan, SessionPage, session_page},
    units::{format_cell, format_duration},
};

/// Maximum number of blockers, and of blocked sessions, with their own line.
const SESSIONS_MAX: usize = 10;

/// Returns the lines of the open page.
pub(super) fn lines(model: &Model, theme: &Theme, width: u16) -> Vec<Line<'static>> {
    let Some(page) = &model.choices.session else { return Vec::new() };
    let Some(snapshot) = model.snapshot() else {
        return vec![Line::styled("not sampled yet", theme.bad)];
    };
    let current = page.backend(snapshot);
    let (backend, now_us) = match current {
        Some(backend) => (backend, snapshot.activity.taken_us),
        None => (&*page.last.0, page.last.1),
    };
    let mut writer = PageWriter { theme, width: width.saturating_sub(2), lines: Vec::new() };
    if current.is_none() {
        let when = if model.past.is_some() { "at this time" } else { "any more" };
        let text = format!("there is no such session {when}; as last seen:");
        writer.lines.push(Line::styled(text, theme.bad));
    }
    writer.identity(backend, now_us);
    writer.process(snapshot, backend);
    writer.profile(model, page);
    if current.is_some() {
        writer.blocking(snapshot, backend);
    }
    let details = page.details(snapshot).filter(|_| current.is_some());
    if let Some(details) = details {
        writer.progress(details);
    }
    writer.statement(backend);
    writer.plan(&page.plan);
    match details {
        Some(details) => {
            writer.locks(details);
            writer.io(details);
        }
        None if current.is_none() => {}
        None if model.past.is_some() => writer.note("locks, progress and I/O are not recorded"),
        None => writer.note("locks, progress and I/O are read with the next sample"),
    }
    writer.lines
}

/// Builds the lines of the page.
struct PageWriter<'a> {
    theme: &'a Theme,
    width: u16,
    lines: Vec<Line<'static>>,
}

impl PageWriter<'_> {
    fn title(&mut self, title: String) {
        self.lines.push(Line::styled(title, self.theme.strong));
    }

    fn note(&mut self, text: &str) {
        self.lines.push(Line::styled(text.to_owned(), self.theme.faint));
    }

    fn text(&mut self, text: &str) {
        self.lines.push(Line::raw(text.to_owned()));
    }

    /// Adds figures, each a label and a value, on as few lines as they need.
    fn figures(&mut self, figures: &[(&str, String)]) {
        let mut spans: Vec<Span<'static>> = Vec::new();
        let mut used = 0;
        for (label, value) in figures {
            let needed = Span::raw(*label).width() + 1 + Span::raw(value.as_str()).width();
            if used > 0 && used + 2 + needed > usize::from(self.width) {
                self.lines.push(Line::from(std::mem::take(&mut spans)));
                used = 0;
            }
            if used > 0 {
                spans.push(Span::raw("  "));
                used += 2;
            }
            spans.push(Span::raw(format!("{label} ")));
            spans.push(Span::styled(value.clone(), self.theme.strong));
            used += needed;
        }
        if !spans.is_empty() {
            self.lines.push(Line::from(spans));
        }
    }

    /// Adds names, times and states.
    fn identity(&mut self, backend: &BackendActivity, now_us: i64) {
        let hidden = || if backend.is_readable { "-" } else { "n/a" }.to_owned();
        let word = |word: Option<&str>| word.map_or_else(hidden, str::to_owned);
        let lasted = |seconds: Option<f64>| seconds.map_or_else(hidden, format_duration);
        let client = match (&backend.client, backend.client_port) {
            (None, Some(-1)) => "a Unix socket".to_owned(),
            (Some(client), Some(port)) => format!("{client} port {port}"),
            (client, _) => word(client.as_deref()),
        };
        let mut figures = vec![
            ("pid", backend.pid.to_string()),
            ("user", word(backend.user.as_deref())),
            ("database", word(backend.database.as_deref())),
            ("application", word(backend.application.as_deref())),
            ("client", client),
            ("kind", word(backend.kind.as_ref().map(howdah_collect::BackendType::as_str))),
        ];
        figures.extend(backend.leader.map(|leader| ("leader", leader.to_string())));
        self.figures(&figures);
        #[expect(clippy::cast_precision_loss, reason = "a span of less than a century")]
        let online = (backend.started_us > 0)
            .then(|| (now_us.saturating_sub(backend.started_us)).max(0) as f64 / 1e6);
        self.figures(&[
            ("connected", format!("{}{}", lasted(online), moment(backend.started_us))),
            ("transaction", lasted(backend.transaction_age(now_us))),
            (
                if backend.is_working() { "statement" } else { "in this state" },
                lasted(backend.duration(now_us)),
            ),
        ]);
        let wait = backend.wait.as_ref().map(ToString::to_string);
        let mut figures = vec![
            ("state", word(backend.state.map(howdah_collect::BackendState::as_str))),
            ("waits for", wait.unwrap_or_else(hidden)),
        ];
        let blocked = backend.blocked_for(now_us);
        figures.extend(blocked.map(|seconds| ("blocked", format_duration(seconds))));
        let ages = [("xid age", backend.xid_age), ("xmin age", backend.xmin_age)];
        figures.extend(ages.into_iter().filter_map(|(label, age)| Some((label, age?.to_string()))));
        figures.extend(backend.query_id.map(|id| ("query id", id.to_string())));
        self.figures(&figures);
    }

    /// Adds figures of its process, and its client according to poolers.
    fn process(&mut self, snapshot: &ServerSnapshot, backend: &BackendActivity) {
        let figures = snapshot.processes.as_ref().and_then(|found| found.get(&backend.pid));
        if let Some(figures) = figures {
            let cell = |value: ViewCell, unit| format_cell(&value, unit);
            let rate = |value: Option<f64>| format!("{}/s", cell(value.into(), ColumnUnit::Bytes));
            self.figures(&[
                ("cpu", cell(figures.cpu_percent.into(), ColumnUnit::Percent)),
                ("memory", cell(figures.memory_bytes.into(), ColumnUnit::Bytes)),
                ("disk read", rate(figures.read_bytes)),
                ("write", rate(figures.write_bytes)),
            ]);
        }
        let pooled = snapshot.pooled_clients.as_ref();
        if let Some(client) = pooled.and_then(|pooled| pooled.client_for(backend)) {
            let client = format!("{}@{} from {}", client.user, client.database, client.address);
            self.figures(&[("pooler's client", client)]);
        }
    }

    /// Adds what the session did in the last minutes.
    fn profile(&mut self, model: &Model, page: &SessionPage) {
        let Some((profile, period_us)) = session_page::profile(model, page) else { return };
        if profile.samples == 0 {
            return;
        }
        #[expect(clippy::cast_precision_loss, reason = "a span of less than a century")]
        let period = format_duration(period_us as f64 / 1e6);
        self.title(format!("last {period}, {} samples", profile.samples));
        let shares: Vec<(&str, String)> = profile
            .shares()
            .into_iter()
            .take(SESSIONS_MAX)
            .map(|(label, share)| (label, format!("{share:.0}%")))
            .collect();
        self.figures(&shares);
    }

    /// Adds the sessions that block this one, and those that it blocks.
    fn blocking(&mut self, snapshot: &ServerSnapshot, backend: &BackendActivity) {
        let now_us = snapshot.activity.taken_us;
        let backends = &snapshot.activity.backends;
        let is_by = |other: &&BackendActivity, by: &BackendActivity| {
            other.blockers.contains(&howdah_collect::Blocker::Process(by.pid))
        };
        let blockers: Vec<_> = backends.iter().filter(|other| is_by(&backend, other)).collect();
        let blocked: Vec<_> = backends.iter().filter(|other| is_by(other, backend)).collect();
        let prepared = backend.blockers.contains(&howdah_collect::Blocker::Prepared);
        for (title, sessions) in [("blocked by", blockers), ("blocks", blocked)] {
            let is_prepared = prepared && title == "blocked by";
            if sessions.is_empty() && !is_prepared {
                continue;
            }
            self.title(format!("{title} {}", sessions.len() + usize::from(is_prepared)));
            if is_prepared {
                self.text("  a prepared transaction");
            }
            for other in sessions.iter().take(SESSIONS_MAX) {
                let text = other_session(other, now_us);
                self.lines.push(Line::raw(fitted(&text, self.width, false)));
            }
            if sessions.len() > SESSIONS_MAX {
                self.note(&format!("  … and {} more", sessions.len() - SESSIONS_MAX));
            }
        }
    }

    fn progress(&mut self, details: &SessionDetails) {
        let Some(progress) = &details.progress else { return };
        let number = |number: Option<i64>| format_cell(&number.into(), ColumnUnit::Count);
        #[expect(clippy::cast_precision_loss, reason = "a share for looking at")]
        let share = match (progress.done, progress.total) {
            (Some(done), Some(total @ 1..)) => {
                format!("{:.1}%", (done as f64 * 100.0 / total as f64).min(100.0))
            }
            _ => "-".to_owned(),
        };
        self.figures(&[
            ("progress of", format!("{} {}", progress.command, progress.relation)),
            ("phase", progress.phase.to_string()),
            ("done", format!("{share} ({} of {})", number(progress.done), number(progress.total))),
        ]);
    }

    fn statement(&mut self, backend: &BackendActivity) {
        self.title(if backend.is_working() { "statement" } else { "last statement" }.to_owned());
        match &backend.query {
            Some(query) => {
                for line in query.as_str().lines() {
                    self.lines.push(Line::raw(with_spaces(line).into_owned()));
                }
                if query.is_truncated {
                    self.note("… (truncated by the server)");
                }
            }
            None if !backend.is_readable => self.note("n/a: press g for the grant"),
            None => {
                self.note("not read: press i on the table to read those of idle sessions");
            }
        }
    }

    fn plan(&mut self, plan: &PagePlan) {
        match plan {
            PagePlan::None => {}
            PagePlan::Requested => self.note("requesting the plan…"),
            PagePlan::Received(Err(reason)) => {
                self.lines.push(Line::styled(format!("no plan: {reason}"), self.theme.bad));
            }
            PagePlan::Received(Ok(plan)) => {
                self.title("generic plan; nothing was executed".to_owned());
                plan.lines.iter().for_each(|line| self.text(line));
            }
        }
    }

    fn locks(&mut self, details: &SessionDetails) {
        if details.locks.is_empty() {
            self.note("no locks");
            return;
        }
        self.title(format!("locks {}, awaited ones first", details.lock_count));
        for lock in &details.locks {
            self.lock(lock);
        }
        let more = details.lock_count - i64::try_from(details.locks.len()).unwrap_or(i64::MAX);
        if more > 0 {
            self.note(&format!("  … and {more} more"));
        }
    }

    fn lock(&mut self, lock: &SessionLock) {
        let text = format!("{} on {}", lock.mode, lock.object);
        if lock.is_granted {
            self.text(&format!("  {text}"));
            return;
        }
        #[expect(clippy::cast_precision_loss, reason = "a span of less than a century")]
        let waited = lock
            .waited_us
            .map_or_else(String::new, |us| format!(" {}", format_duration(us.max(0) as f64 / 1e6)));
        self.lines.push(Line::styled(format!("  waits{waited} for {text}"), self.theme.warn));
    }

    fn io(&mut self, details: &SessionDetails) {
        if let Some(bytes) = details.wal_bytes {
            let bytes = format_cell(&ViewCell::Integer(bytes), ColumnUnit::Bytes);
            self.title(format!("I/O and WAL since it connected; WAL {bytes}"));
        }
        if details.io.as_ref().is_some_and(Vec::is_empty) {
            self.note("  none yet: the server counts them after a transaction");
        }
        for io in details.io.iter().flatten() {
            self.text(&format!("  {}", io_text(io)));
        }
    }
}

/// Formats another session in one line.
fn other_session(other: &BackendActivity, now_us: i64) -> String {
    let name = |name: &Option<std::sync::Arc<str>>| name.as_deref().unwrap_or("-").to_owned();
    let state = match &other.wait {
        Some(wait) if other.is_working() => wait.to_string(),
        _ => other.state.map_or("n/a", howdah_collect::BackendState::as_str).to_owned(),
    };
    let lasted = other.duration(now_us).map(format_duration).unwrap_or_default();
    let query = other.query.as_ref().map(SqlText::one_line).unwrap_or_default();
    let (user, database) = (name(&other.user), name(&other.database));
    format!("  {} {user}@{database} {state} {lasted}: {query}", other.pid)
}

fn io_text(io: &BackendIo) -> String {
    let count = |count: i64| format_cell(&ViewCell::Integer(count), ColumnUnit::Count);
    let pair = |(operations, bytes): (i64, i64)| {
        let bytes = format_cell(&ViewCell::Integer(bytes), ColumnUnit::Bytes);
        format!("{} ({bytes})", count(operations))
    };
    format!(
        "{}: hits {}  reads {}  writes {}  extends {}",
        io.target,
        count(io.hits),
        pair(io.reads),
        pair(io.writes),
        pair(io.extends)
    )
}

/// Formats a time of the server's clock in the local time zone.
fn moment(us: i64) -> String {
    match Timestamp::from_microsecond(us) {
        Ok(moment) if us > 0 => {
            let moment = moment.to_zoned(TimeZone::system());
            format!(" (since {})", moment.strftime("%Y-%m-%d %H:%M:%S"))
        }
        _ => String::new(),
    }
}
