//! Findings that need no checkpoint to compare with: events that dominate database time, surges of
//! one event, and stalls in which sessions wait and none runs, or none commits.
//!
//! All use the samples of client sessions and their parallel workers only, second by second.

use std::collections::BTreeMap;

use super::{
    CHECKPOINT_REQUEST_WAITS, PRESSURE_MIN, RECORDING_MIN, RecordingFinding, RecordingSummary,
    SAMPLES_MIN, host_pressure, is_in_checkpoint,
    load::{self, RunawayQuery},
    second_span, storage,
};
use crate::{
    analysis::{
        culprits::{self, Culprit, CulpritRole},
        deadlocks::{WaitCircle, deadlocks},
        units::{self, factor},
        window::{RecordingWindow, TimeSpan},
    },
    recorder::{RecordedSecond, is_storage_wait, is_wal_wait},
    waits::TimeCategory,
};

/// The event recorded for sessions without a wait event, which are assumed to be on a processor.
const RUNNING: &str = "CPU*";
/// Event of a sleep that a client requested with `pg_sleep`.
const REQUESTED: &str = "Timeout:PgSleep";
/// Share of database time from which one event dominates.
const DOMINANT_SHARE: f64 = 0.3;
/// Minimum average number of sessions that wait for a dominant event: with fewer, a share means
/// little.
const DOMINANT_SESSIONS_MIN: f64 = 0.2;
/// Number of waiting sessions from which a second counts as part of a surge or stall.
const SESSIONS_MIN: f64 = 1.0;
/// Minimum ratio of a surge to the event's median second.
const SURGE_FACTOR: f64 = 3.0;
/// Minimum number of consecutive seconds of a surge or stall; a single one may be a sampling
/// artefact.
const SECONDS_MIN: usize = 2;
/// Share of database time from which an event is mentioned although it does not stand out.
const MAIN_SHARE: f64 = 0.5;
/// Quantile of the commits per second that counts as usual: stalls may fill half of a recording.
const USUAL_COMMITS: f64 = 0.75;
/// Minimum usual number of commits per second.
const COMMITS_MIN: f64 = 5.0;
/// Share of the usual commits, or their number per second, up to which commits have stopped:
/// monitors and background workers commit, too.
const STOPPED_SHARE: f64 = 0.05;
const STOPPED_RATE: f64 = 1.5;

/// Length in seconds and number of sessions below which a stall or surge may be due to a busy host.
const HOST_SECONDS_MAX: usize = 4;
const HOST_SESSIONS_MAX: f64 = 3.0;

/// Average number of sessions per event in one second.
type SessionsByEvent<'a> = BTreeMap<&'a str, f64>;

/// Consecutive seconds, as indexes into the recording's seconds.
#[derive(Clone, Copy, Debug, Default)]
struct SecondsRun {
    first: usize,
    len: usize,
    /// The largest number of sessions in one second of the run.
    peak: f64,
    /// Session seconds spent waiting, in excess of the usual.
    cost_s: f64,
}

impl SecondsRun {
    fn end(self) -> usize {
        self.first + self.len
    }

    /// Whether another run describes the same trouble: it lies in this one, up to a second at each
    /// end, because a stall begins and ends in the middle of a second; or two thirds of it do,
    /// because a single commit ends a stall while the others still wait.
    fn covers(self, other: Self) -> bool {
        let is_inside = self.first <= other.first + 1 && other.end() <= self.end() + 1;
        let common = self.end().min(other.end()).saturating_sub(self.first.max(other.first));
        is_inside || 3 * common >= 2 * other.len
    }

    fn overlaps(self, other: Self) -> bool {
        self.first < other.end() && other.first < self.end()
    }

    /// Whether it is small enough to be due to a busy host, and the host was busy.
    fn is_of_host(self, window: &RecordingWindow) -> bool {
        let pressure = host_pressure(window, self.span(window));
        self.len < HOST_SECONDS_MAX
            && self.peak < HOST_SESSIONS_MAX
            && pressure.is_some_and(|(_, percent)| percent >= PRESSURE_MIN)
    }

    fn span(self, window: &RecordingWindow) -> TimeSpan {
        let (first, last) = (&window.seconds[self.first], &window.seconds[self.end() - 1]);
        TimeSpan { from_us: first.at_us, to_us: second_span(last).to_us }
    }
}

/// Adds the findings. Returns a description of the event with more than half of database time, if
/// there is one.
pub(super) fn find_all(summary: &mut RecordingSummary, window: &RecordingWindow) -> Option<String> {
    let seconds: Vec<SessionsByEvent<'_>> = window.seconds.iter().map(sessions_by_event).collect();
    let stopped = find_commit_stop(summary, window, &seconds);
    let stall = find_stall(summary, window, &seconds, stopped);
    let runaways = load::find_runaways(summary, window);
    let stalls: Vec<_> = stopped.into_iter().chain(stall).collect();
    find_surges(summary, window, &seconds, &stalls, &runaways);
    storage::find_standby_lag(summary, window);
    load::find_blockers(summary, window);
    find_deadlocks(summary, window, stopped.map(|run| run.span(window)));
    load::find_storm(summary, window);
    load::find_temp_files(summary, window);
    let sum = |select: fn(&str) -> bool| -> Vec<f64> {
        let selected = |second: &SessionsByEvent<'_>| {
            second.iter().filter(|(event, _)| select(event)).map(|(_, sessions)| sessions).sum()
        };
        seconds.iter().map(selected).collect()
    };
    storage::find_checkpoint_storm(summary, window, &sum(is_storage_wait));
    storage::find_thrash(summary, window, &sum(|event| !event.starts_with("Lock:")));
    find_dominant(summary, window, &seconds, &runaways)
}

fn sessions_by_event(second: &RecordedSecond) -> SessionsByEvent<'_> {
    let rounds = f64::from(second.waits.rounds.max(1));
    let mut sessions = SessionsByEvent::new();
    for row in second.waits.rows.iter().filter(|row| row.group == TimeCategory::Database) {
        *sessions.entry(&*row.event).or_default() += row.samples as f64 / rounds;
    }
    sessions
}

fn is_wait(event: &str) -> bool {
    event != RUNNING && event != REQUESTED && !CHECKPOINT_REQUEST_WAITS.contains(&event)
}

fn waiting(second: &SessionsByEvent<'_>) -> f64 {
    second.iter().filter(|(event, _)| is_wait(event)).map(|(_, sessions)| sessions).sum()
}

/// Finds the most expensive run of at least [`SECONDS_MIN`] seconds whose values are at least
/// `least`. `usual` is subtracted from each second's value.
fn worst_run(
    window: &RecordingWindow,
    values: &[f64],
    least: f64,
    usual: f64,
) -> Option<SecondsRun> {
    let (mut worst, mut run) = (None::<SecondsRun>, SecondsRun::default());
    for (index, value) in values.iter().enumerate() {
        if *value < least {
            run = SecondsRun::default();
            continue;
        }
        if run.len == 0 {
            run.first = index;
        }
        run.len += 1;
        run.peak = run.peak.max(*value);
        run.cost_s += (value - usual) * window.seconds[index].elapsed_us as f64 / 1e6;
        if run.len >= SECONDS_MIN && worst.is_none_or(|worst| worst.cost_s < run.cost_s) {
            worst = Some(run);
        }
    }
    worst
}

/// Finds the most expensive run of seconds in which sessions wait and hardly any transaction
/// commits.
fn find_commit_stop(
    summary: &mut RecordingSummary,
    window: &RecordingWindow,
    seconds: &[SessionsByEvent<'_>],
) -> Option<SecondsRun> {
    let rates = load::commit_rates(window);
    let known = rates.iter().flatten().copied();
    if known.clone().count() < RECORDING_MIN {
        return None;
    }
    let usual = load::quantile(known, USUAL_COMMITS);
    if usual < COMMITS_MIN {
        return None;
    }
    let waits: Vec<f64> = seconds.iter().map(waiting).collect();
    let usual_waits = load::median(waits.iter().copied());
    let least = STOPPED_RATE.max(STOPPED_SHARE * usual);
    let has_stopped = |rate: &Option<f64>| rate.is_some_and(|rate| rate <= least);
    let stopped: Vec<f64> = rates
        .iter()
        .zip(&waits)
        .map(|(rate, waiting)| if has_stopped(rate) { *waiting } else { 0.0 })
        .collect();
    let run = worst_run(window, &stopped, SESSIONS_MIN, usual_waits.min(SESSIONS_MIN))?;
    let finding = stall_finding(window, seconds, run, |sessions, waited_for| {
        format!("commits stopped for {} s: {sessions} waited{waited_for}", run.len)
    })?;
    let evidence = format!("{}; {usual:.0} commits a second usually", finding.evidence);
    summary.add_of_run(window, run, RecordingFinding { evidence, ..finding });
    Some(run)
}

impl RecordingSummary {
    /// Adds a finding about a run, or a remark if the run may be due to a busy host.
    fn add_of_run(&mut self, window: &RecordingWindow, run: SecondsRun, finding: RecordingFinding) {
        if blocker(&finding.culprits).is_none() && run.is_of_host(window) {
            self.remarks.push(format!(
                "{}, while processes of the host waited for resources; {}",
                finding.text, finding.evidence
            ));
        } else {
            self.findings.push(finding);
        }
    }
}

/// Describes a stall: the sessions that waited, and what for.
fn stall_finding(
    window: &RecordingWindow,
    seconds: &[SessionsByEvent<'_>],
    run: SecondsRun,
    text: impl Fn(&str, &str) -> String,
) -> Option<RecordingFinding> {
    let mut events = SessionsByEvent::new();
    for second in &seconds[run.first..run.end()] {
        for (event, sessions) in second.iter().filter(|(event, _)| is_wait(event)) {
            *events.entry(event).or_default() += sessions;
        }
    }
    let wal = WalWaits::from_events(&events);
    let (event, most) = events.into_iter().max_by(|one, other| one.1.total_cmp(&other.1))?;
    let span = run.span(window);
    if wal.sessions >= most {
        let evidence = format!(
            "from {} on; {:.1} sessions wait in the median second",
            units::time_of_day(span.from_us),
            load::median(seconds.iter().map(waiting))
        );
        let (by, culprits) = wal_writers(window, span);
        let waited_for = format!(" for the WAL to be written to disk ({}){by}", wal.names);
        let text = text(&format!("up to {:.1} sessions", run.peak), &waited_for);
        return Some(RecordingFinding {
            text,
            evidence,
            cost_s: run.cost_s,
            span: Some(span),
            culprits,
        });
    }
    let lock = event.starts_with("Lock:") && event != EXTEND;
    let culprits = culprits::of_event(window, &[span], (!lock).then_some(event));
    let usual = load::median(seconds.iter().map(waiting));
    let mut evidence = format!(
        "from {} on; {usual:.1} sessions wait in the median second",
        units::time_of_day(span.from_us)
    );
    let text = match blocker(&culprits) {
        Some(blocker) => {
            evidence = format!("most of them for {event}, {evidence}");
            text(&count_of_sessions(blocker.sessions), &format!(" for {}", blocker.lock_phrase()))
        }
        None => {
            if event == SYNC_REP {
                evidence
                    .extend(load::standby_evidence(window, span).map(|text| format!("; {text}")));
            }
            let on = extended_relation(window, span)
                .filter(|_| event == EXTEND)
                .map_or_else(String::new, |name| format!(" on {name}"));
            let waited_for = format!(", most of them for {event}{on}");
            text(&format!("up to {:.1} sessions", run.peak), &waited_for)
        }
    };
    Some(RecordingFinding { text, evidence, cost_s: run.cost_s, span: Some(span), culprits })
}

/// Waits for the WAL to be written, under their several names.
struct WalWaits {
    sessions: f64,
    names: String,
}

impl WalWaits {
    fn from_events(events: &SessionsByEvent<'_>) -> Self {
        let waits = events.iter().filter(|(event, _)| is_wal_wait(event));
        let sessions = waits.clone().map(|(_, sessions)| sessions).sum();
        let names: Vec<_> = waits.map(|(event, _)| *event).collect();
        Self { sessions, names: names.join(", ") }
    }
}

/// Names the processes that wrote or synced the WAL while others waited for them: the disk is slow,
/// rather than they. Without samples of them, the statements that waited are the culprits.
fn wal_writers(window: &RecordingWindow, span: TimeSpan) -> (String, Vec<Culprit>) {
    let writers =
        culprits::busiest(window, &[span], |wait| is_wal_wait(wait) && wait.starts_with("IO:"));
    match writers.first() {
        Some(writer) => (format!(", which {} wrote", writer.process()), writers),
        None => (String::new(), culprits::busiest(window, &[span], is_wal_wait)),
    }
}

/// The event of sessions that wait for the lock to extend a relation.
const EXTEND: &str = "Lock:extend";

/// The event of sessions that wait for a synchronous standby.
const SYNC_REP: &str = "IPC:SyncRep";

/// Returns the main culprit if it is a blocker.
fn blocker(culprits: &[Culprit]) -> Option<&Culprit> {
    culprits.first().filter(|culprit| culprit.role == CulpritRole::Blocker)
}

fn count_of_sessions(count: usize) -> String {
    if count == 1 { "1 session".to_owned() } else { format!("{count} sessions") }
}

/// Finds the most expensive run of seconds in which sessions wait and none was sampled on a
/// processor, unless it overlaps the seconds in which commits stopped.
fn find_stall(
    summary: &mut RecordingSummary,
    window: &RecordingWindow,
    seconds: &[SessionsByEvent<'_>],
    stopped: Option<SecondsRun>,
) -> Option<SecondsRun> {
    let runs_ever = seconds.iter().any(|second| second.contains_key(RUNNING));
    let waits: Vec<f64> = seconds.iter().map(waiting).collect();
    let usual = load::median(waits.iter().copied());
    let stalled: Vec<f64> = seconds
        .iter()
        .zip(&waits)
        .map(|(second, waiting)| if second.contains_key(RUNNING) { 0.0 } else { *waiting })
        .collect();
    // If no session was ever sampled running, stalls cannot be distinguished from other seconds.
    let run = worst_run(window, &stalled, SESSIONS_MIN, usual.min(SESSIONS_MIN))
        .filter(|_| runs_ever && seconds.len() >= RECORDING_MIN)?;
    if stopped.is_some_and(|stopped| stopped.overlaps(run)) {
        return None;
    }
    let finding = stall_finding(window, seconds, run, |sessions, waited_for| {
        format!("no session ran for {} s while {sessions} waited{waited_for}", run.len)
    })?;
    summary.add_of_run(window, run, finding);
    Some(run)
}

/// Finds, for each event, the most expensive run of seconds with many more sessions than in the
/// event's median second, unless it lies within a stall, or is that of a runaway query.
fn find_surges(
    summary: &mut RecordingSummary,
    window: &RecordingWindow,
    seconds: &[SessionsByEvent<'_>],
    stalls: &[SecondsRun],
    runaways: &[RunawayQuery],
) {
    if seconds.len() < RECORDING_MIN {
        return;
    }
    find_wal_surge(summary, window, seconds, stalls);
    let has_extension_finding = summary.mentions("extend relations");
    for event in events(seconds) {
        // Traced waits that rise during a checkpoint have a finding of their own.
        if event == EXTEND && has_extension_finding || summary.mentions(event) {
            continue;
        }
        let values: Vec<f64> =
            seconds.iter().map(|second| second.get(event).copied().unwrap_or_default()).collect();
        let usual = load::median(values.iter().copied());
        let least = (SURGE_FACTOR * usual).max(SESSIONS_MIN);
        let Some(run) = worst_run(window, &values, least, usual) else { continue };
        let span = run.span(window);
        if stalls.iter().any(|stall| stall.covers(run))
            || runaways.iter().any(|query| query.explains(window, event, span))
        {
            continue;
        }
        let covered = &window.seconds[run.first..run.end()];
        let during = if covered.iter().all(|second| is_in_checkpoint(window, second)) {
            " during a checkpoint"
        } else {
            ""
        };
        let rise = if usual > 0.005 {
            format!("rises {}", factor(run.peak / usual))
        } else {
            "appears".to_owned()
        };
        let culprits = culprits::of_event(window, &[span], Some(event));
        let what = match blocker(&culprits) {
            Some(blocker) => format!("for {}", blocker.lock_phrase()),
            None if event == EXTEND => extended_relation(window, span)
                .map_or_else(|| "for it".to_owned(), |name| format!("to extend {name}")),
            None => "for it".to_owned(),
        };
        let mut evidence = format!(
            "from {} on; {usual:.2} sessions in the median second",
            units::time_of_day(span.from_us)
        );
        if event == SYNC_REP {
            evidence.extend(load::standby_evidence(window, span).map(|text| format!("; {text}")));
        }
        summary.add_of_run(
            window,
            run,
            RecordingFinding {
                text: format!(
                    "{event} {rise} for {} s{during}: up to {:.1} sessions wait {what}",
                    run.len, run.peak
                ),
                evidence,
                cost_s: run.cost_s,
                span: Some(span),
                culprits,
            },
        );
    }
}

/// Finds the most expensive run of seconds in which many more sessions than usual wait for the WAL.
fn find_wal_surge(
    summary: &mut RecordingSummary,
    window: &RecordingWindow,
    seconds: &[SessionsByEvent<'_>],
    stalls: &[SecondsRun],
) {
    let waits: Vec<WalWaits> = seconds.iter().map(WalWaits::from_events).collect();
    let values: Vec<f64> = waits.iter().map(|waits| waits.sessions).collect();
    let usual = load::median(values.iter().copied());
    let least = (SURGE_FACTOR * usual).max(SESSIONS_MIN);
    let Some(run) = worst_run(window, &values, least, usual)
        .filter(|run| !stalls.iter().any(|stall| stall.covers(*run)))
    else {
        return;
    };
    let mut events = SessionsByEvent::new();
    for second in &seconds[run.first..run.end()] {
        second.iter().for_each(|(event, sessions)| {
            *events.entry(event).or_default() += sessions;
        });
    }
    let span = run.span(window);
    let (by, culprits) = wal_writers(window, span);
    summary.add_of_run(
        window,
        run,
        RecordingFinding {
            text: format!(
                "for {} s up to {:.1} sessions wait for the WAL to be written to disk ({}){by}",
                run.len,
                run.peak,
                WalWaits::from_events(&events).names
            ),
            evidence: format!(
                "from {} on; {usual:.2} sessions in the median second",
                units::time_of_day(span.from_us)
            ),
            cost_s: run.cost_s,
            span: Some(span),
            culprits,
        },
    );
}

/// Maximum number of deadlocks that a finding names.
const DEADLOCKS_NAMED: usize = 3;

/// Finds deadlocks. They cost what their sessions waited if commits stopped meanwhile, as `stopped`
/// states; otherwise nothing: how much work one of the sessions must repeat is not known.
fn find_deadlocks(
    summary: &mut RecordingSummary,
    window: &RecordingWindow,
    stopped: Option<TimeSpan>,
) {
    let history = deadlocks(window);
    let counted = history.counted();
    let circles = &history.deadlocks;
    if counted == 0 {
        return;
    }
    let mut parts: Vec<_> = circles
        .iter()
        .take(DEADLOCKS_NAMED)
        .map(|circle| format!("{} {}", units::time_of_day(circle.span.to_us), circle.line()))
        .collect();
    if circles.len() > DEADLOCKS_NAMED {
        parts.push(format!("{} more", circles.len() - DEADLOCKS_NAMED));
    }
    let unseen = counted - circles.len() as u64;
    if unseen > 0 {
        parts.push(format!("{unseen} that no sample saw"));
    }
    let cost_s = |circle: &WaitCircle| {
        let has_stopped = stopped.is_some_and(|span| {
            circle.span.from_us <= span.to_us && span.from_us <= circle.span.to_us
        });
        let us = circle.span.to_us.saturating_sub(circle.span.from_us);
        if has_stopped { circle.members.len() as f64 * us as f64 / 1e6 } else { 0.0 }
    };
    let text = match circles.first() {
        Some(circle) if counted == 1 => format!("a deadlock of {}", circle.line()),
        _ => format!("{counted} {}", if counted == 1 { "deadlock" } else { "deadlocks" }),
    };
    summary.findings.push(RecordingFinding {
        text,
        evidence: parts.join("; "),
        cost_s: circles.iter().map(cost_s).sum(),
        span: None,
        culprits: Vec::new(),
    });
}

/// Returns the name of the relation that sessions waited longest to extend: of traced waits, or of
/// sampled sessions.
fn extended_relation(window: &RecordingWindow, span: TimeSpan) -> Option<String> {
    let mut times: BTreeMap<(u32, u32), u64> = BTreeMap::new();
    for second in window.seconds.iter().filter(|of| second_span(of).overlap_us(span) > 0) {
        for of in second.extension.iter().flat_map(|extension| &extension.relations) {
            *times.entry((of.database, of.relation)).or_default() += of.total_us;
        }
    }
    if times.is_empty() {
        for sessions in culprits::samples(window, &[span]) {
            let rows = sessions.rows.iter().filter(|row| sessions.name(row.wait) == EXTEND);
            rows.filter_map(|row| row.relation)
                .for_each(|relation| *times.entry(relation).or_default() += sessions.elapsed_us);
        }
    }
    let ((database, relation), _) = times.into_iter().max_by_key(|(_, time)| *time)?;
    Some(window.name_of_oids(database, relation))
}

/// Finds events with a large share of all database time, except those of a runaway query. Returns a
/// description of one that has more than half, however little that is.
fn find_dominant(
    summary: &mut RecordingSummary,
    window: &RecordingWindow,
    seconds: &[SessionsByEvent<'_>],
    runaways: &[RunawayQuery],
) -> Option<String> {
    let has_extension_finding = summary.mentions("extend relations");
    let (mut total_s, mut lasted_s) = (0.0, 0.0);
    let mut times: BTreeMap<&str, (f64, u64)> = BTreeMap::new();
    for (sessions, second) in seconds.iter().zip(&window.seconds) {
        let elapsed_s = second.elapsed_us as f64 / 1e6;
        lasted_s += elapsed_s;
        for (event, sessions) in sessions {
            let (time_s, samples) = times.entry(event).or_default();
            *time_s += sessions * elapsed_s;
            *samples += (sessions * f64::from(second.waits.rounds)).round() as u64;
            total_s += sessions * elapsed_s;
        }
    }
    let mut main_event = None;
    let span = window.span();
    for (event, (time_s, samples)) in times {
        let (share, sessions) = (time_s / total_s, time_s / f64::max(lasted_s, 1e-9));
        if is_wait(event) && share > MAIN_SHARE {
            main_event = Some(format!(
                "{:.0} % of database time, {sessions:.2} sessions on average, is waits for {event}",
                share * 100.0
            ));
        }
        if !is_wait(event)
            || samples < SAMPLES_MIN
            || share < DOMINANT_SHARE
            || sessions < DOMINANT_SESSIONS_MIN
            || summary.mentions(event)
            || event == "Lock:extend" && has_extension_finding
            || runaways.iter().any(|query| query.explains(window, event, span))
        {
            continue;
        }
        let culprits = culprits::of_event(window, &[span], Some(event));
        let on = extended_relation(window, span)
            .filter(|_| event == EXTEND)
            .map_or_else(String::new, |name| format!(" on {name}"));
        let evidence = format!(
            "{sessions:.1} sessions on average in {lasted_s:.0} s; sampled {samples} times"
        );
        summary.findings.push(RecordingFinding {
            text: format!("{:.0} % of database time is waits for {event}{on}", share * 100.0),
            evidence,
            // This is the normal state rather than an excess over it, so changes are listed first.
            cost_s: 0.0,
            span: None,
            culprits,
        });
    }
    main_event
}

fn events<'a>(seconds: &[SessionsByEvent<'a>]) -> Vec<&'a str> {
    let mut events: Vec<&str> = seconds
        .iter()
        .flat_map(|second| second.keys().copied())
        .filter(|event| is_wait(event))
        .collect();
    events.sort_unstable();
    events.dedup();
    events
}
