//! Findings from the sessions and counters that the server reports over SQL: runaway queries,
//! blockers, connection storms, temporary files. A recording without a connection has none of them.

use std::collections::BTreeMap;

use super::{RECORDING_MIN, RecordingFinding, RecordingSummary, second_span};
use crate::{
    analysis::{
        culprits::{self, Culprit, CulpritRole, seconds_of},
        units::{self, factor, percent},
        window::{RecordingWindow, TimeSpan},
    },
    recorder::{RecordedCounters, RecordedSecond, RecordedSession, RecordedSessions},
    waits::TimeCategory,
};

/// Minimum run time of a runaway query, in seconds.
const RUNAWAY_S: f64 = 10.0;
/// Minimum share of database time of a runaway query, while it runs.
const RUNAWAY_SHARE: f64 = 0.3;
/// Minimum share of its time that a runaway query is on a processor or in I/O.
const RUNAWAY_BUSY: f64 = 0.7;
/// Share of its time that a runaway query costs the others, by assumption.
const RUNAWAY_COST: f64 = 0.5;
/// Minimum session seconds that a blocker cost others.
const BLOCKED_S: f64 = 3.0;
/// Minimum number of new sessions per second, and ratio to the median, of a connection storm.
const STORM_RATE: f64 = 20.0;
const STORM_FACTOR: f64 = 5.0;
/// Time that a new session costs, in seconds: a process, its caches, and the login.
const NEW_SESSION_S: f64 = 0.01;
/// Minimum size of temporary files, and ratio to the median second.
const TEMP_BYTES: f64 = (64 << 20) as f64;
const TEMP_FACTOR: f64 = 5.0;
/// Speed of the disk by which temporary files are converted to time, in bytes per second.
const TEMP_BYTES_PER_S: f64 = 200e6;
/// Minimum number of samples of a storm or a lag in succession.
const SAMPLES_RUN: usize = 2;
/// Longest gap between two samples of one statement, in microseconds.
const GAP_US: i64 = 3_500_000;

/// A query that ran long: its session, and when it was seen.
#[derive(Clone, Debug)]
pub(super) struct RunawayQuery {
    culprit: Culprit,
    span: TimeSpan,
    statement: u64,
    /// Session seconds on a processor or in I/O, without those of parallel workers.
    busy_s: f64,
    leader_s: f64,
    last_age_ms: u64,
}

/// Whether a session works without waiting for others.
fn is_busy(wait: &str) -> bool {
    wait.is_empty()
        || wait.starts_with("IO:")
        || wait.starts_with("IPC:")
        || wait.starts_with("BufferPin:")
        || wait.starts_with("LWLock:")
}

impl RunawayQuery {
    fn start(sessions: &RecordedSessions, row: &RecordedSession) -> Self {
        let culprit = Culprit::new(CulpritRole::Query, sessions, row);
        let from_us = sessions.at_us.saturating_sub(age_us(row));
        Self {
            culprit,
            span: TimeSpan { from_us, to_us: sessions.at_us },
            statement: row.statement,
            busy_s: 0.0,
            leader_s: 0.0,
            last_age_ms: 0,
        }
    }

    fn continues_in(&self, sessions: &RecordedSessions, row: &RecordedSession) -> bool {
        row.statement == self.statement
            && row.age_ms >= self.last_age_ms
            && sessions.at_us.saturating_sub(self.span.to_us) <= GAP_US
    }

    fn add(&mut self, sessions: &RecordedSessions, row: &RecordedSession) {
        let time_s = seconds_of(sessions);
        self.span.to_us = sessions.at_us;
        self.last_age_ms = row.age_ms;
        self.leader_s += time_s;
        if is_busy(sessions.name(row.wait)) {
            self.busy_s += time_s;
        }
        self.culprit.time_s += time_s;
        self.culprit.age_s = Some(self.culprit.age_s.unwrap_or(0.0).max(row.age_ms as f64 / 1e3));
        self.culprit.temp_bytes = self.culprit.temp_bytes.max(row.temp_bytes);
    }

    /// Whether most of the time of an event in a span is this query's.
    pub(super) fn explains(&self, window: &RecordingWindow, event: &str, span: TimeSpan) -> bool {
        let (mut own, mut all) = (0, 0);
        for sessions in window.sessions.iter().filter(|sessions| span.contains(sessions.at_us)) {
            for row in sessions.rows.iter().filter(|row| row.is_working(sessions)) {
                if sessions.name(row.wait) == event {
                    all += 1;
                    own += usize::from(
                        self.culprit.pid == Some(row.pid) || self.culprit.pid == Some(row.leader),
                    );
                }
            }
        }
        all > 0 && own * 10 >= all * 7
    }
}

fn age_us(row: &RecordedSession) -> i64 {
    i64::try_from(row.age_ms.saturating_mul(1000)).unwrap_or(i64::MAX)
}

/// Finds queries that ran long, and had a large share of database time. Reports the longest.
pub(super) fn find_runaways(
    summary: &mut RecordingSummary,
    window: &RecordingWindow,
) -> Vec<RunawayQuery> {
    if window.seconds.len() < RECORDING_MIN {
        return Vec::new();
    }
    let mut open: BTreeMap<u32, RunawayQuery> = BTreeMap::new();
    let mut ended = Vec::new();
    for sessions in &window.sessions {
        for row in sessions.rows.iter().filter(|row| row.is_working(sessions)) {
            if row.leader != 0 {
                continue;
            }
            let query = open.remove(&row.pid);
            let mut query = match query {
                Some(query) if query.continues_in(sessions, row) => query,
                other => {
                    ended.extend(other);
                    RunawayQuery::start(sessions, row)
                }
            };
            query.add(sessions, row);
            open.insert(row.pid, query);
        }
        for row in sessions.rows.iter().filter(|row| row.leader != 0) {
            if let Some(query) = open.get_mut(&row.leader)
                && row.is_working(sessions)
            {
                query.culprit.time_s += seconds_of(sessions);
            }
        }
    }
    ended.extend(open.into_values());
    let mut runaways: Vec<_> = ended
        .into_iter()
        .filter(|query| {
            query.culprit.age_s.is_some_and(|age| age >= RUNAWAY_S)
                && query.leader_s >= RUNAWAY_S / 2.0
                && query.busy_s >= RUNAWAY_BUSY * query.leader_s
                && query.culprit.time_s >= RUNAWAY_SHARE * database_time(window, query.span)
        })
        .collect();
    runaways.sort_by(|one, other| other.culprit.time_s.total_cmp(&one.culprit.time_s));
    for query in &mut runaways {
        query.culprit.statement = window.statement(query.statement).unwrap_or_default().to_owned();
    }
    if let Some(RunawayQuery { culprit, span, busy_s, .. }) = runaways.first() {
        let total_s = database_time(window, *span).max(culprit.time_s);
        let temp = match culprit.temp_bytes as f64 {
            bytes if bytes >= TEMP_BYTES => format!(" and {} of temporary files", size(bytes)),
            _ => String::new(),
        };
        summary.findings.push(RecordingFinding {
            text: format!(
                "one query ran for {:.0} s and took {} of database time{temp}: {}",
                culprit.age_s.unwrap_or_default(),
                percent(culprit.time_s, total_s),
                culprit.process()
            ),
            evidence: format!(
                "seen from {} to {}, {busy_s:.0} s of it on a processor, in I/O or waiting for its \
                 workers",
                units::time_of_day(window.span().from_us.max(span.from_us)),
                units::time_of_day(span.to_us)
            ),
            cost_s: culprit.time_s * RUNAWAY_COST,
            span: Some(*span),
            culprits: vec![culprit.clone()],
        });
    }
    runaways
}

/// Returns the time that client sessions worked in a span, from the samples of the server's memory.
fn database_time(window: &RecordingWindow, span: TimeSpan) -> f64 {
    let seconds = window.seconds.iter().filter(|second| span.contains(second.at_us));
    seconds
        .map(|second| {
            let rows = second.waits.rows.iter().filter(|row| row.group == TimeCategory::Database);
            let samples: f64 = rows.map(|row| row.samples as f64).sum();
            samples / f64::from(second.waits.rounds.max(1)) * second.elapsed_us as f64 / 1e6
        })
        .sum()
}

/// Finds sessions that blocked others and that no other finding names.
pub(super) fn find_blockers(summary: &mut RecordingSummary, window: &RecordingWindow) {
    let spans = [window.span()];
    let (blockers, _) = culprits::blockers(window, &spans);
    for culprit in blockers.into_iter().filter(|culprit| culprit.time_s >= BLOCKED_S) {
        let is_named = summary
            .findings
            .iter()
            .flat_map(|finding| &finding.culprits)
            .any(|other| other.role == CulpritRole::Blocker && other.pid == culprit.pid);
        if is_named {
            continue;
        }
        let on = culprit.relation.as_ref().map_or_else(String::new, |name| format!(" on {name}"));
        let sessions = match culprit.sessions {
            1 => "another session".to_owned(),
            count => format!("up to {count} sessions"),
        };
        summary.findings.push(RecordingFinding {
            text: format!("{} blocked {sessions}{on}", culprit.process()),
            evidence: format!("{:.0} session seconds were spent waiting for it", culprit.time_s),
            cost_s: culprit.time_s,
            span: None,
            culprits: vec![culprit],
        });
    }
}

/// Finds seconds with many more new sessions than usual.
pub(super) fn find_storm(summary: &mut RecordingSummary, window: &RecordingWindow) {
    let counters = &window.counters;
    let rate = |counters: &RecordedCounters| per_second(counters, counters.sessions_started as f64);
    let usual = median(counters.iter().filter_map(rate));
    let least = STORM_RATE.max(STORM_FACTOR * usual);
    let Some(run) = longest_run(counters, |counters| rate(counters).filter(|rate| *rate >= least))
        .filter(|_| counters.len() >= RECORDING_MIN)
    else {
        return;
    };
    let span = run_span(&counters[run.clone()]);
    let seconds: f64 = counters[run.clone()].iter().map(|of| of.elapsed_us as f64 / 1e6).sum();
    let started: u64 = counters[run.clone()].iter().map(|of| of.sessions_started).sum();
    let peak = counters[run].iter().filter_map(rate).fold(0.0, f64::max);
    let culprit = largest_group(window, span);
    let of = culprit
        .as_ref()
        .map_or_else(String::new, |culprit| format!(", most of {}", culprit.process()));
    let rise = if usual >= 1.0 {
        format!("{} as many as usual", factor(peak / usual))
    } else {
        "hardly any usually".to_owned()
    };
    summary.findings.push(RecordingFinding {
        text: format!(
            "{started} sessions connected within {seconds:.0} s, up to {peak:.0} a second ({rise}){of}"
        ),
        evidence: format!(
            "from {} on; {usual:.1} new sessions a second in the median",
            units::time_of_day(span.from_us)
        ),
        cost_s: (started as f64 - usual * seconds).max(0.0) * NEW_SESSION_S,
        span: Some(span),
        culprits: culprit.into_iter().collect(),
    });
}

/// Returns the group of sessions that started most sessions in a span; the largest if none did.
fn largest_group(window: &RecordingWindow, span: TimeSpan) -> Option<Culprit> {
    let mut groups: BTreeMap<[&str; 4], (u64, u64)> = BTreeMap::new();
    for sessions in window.sessions.iter().filter(|sessions| span.contains(sessions.at_us)) {
        for group in &sessions.groups {
            let names = [group.database, group.user, group.application, group.client];
            let (started, most) =
                groups.entry(names.map(|index| sessions.name(index))).or_default();
            *started += group.started;
            *most = (*most).max(group.sessions);
        }
    }
    let (names, (_, most)) = groups.into_iter().max_by_key(|(_, counts)| *counts)?;
    let [database, user, application, client] = names.map(str::to_owned);
    let (rows, row) = (RecordedSessions::default(), RecordedSession::default());
    Some(Culprit {
        pid: None,
        database,
        user,
        application,
        client,
        sessions: usize::try_from(most).unwrap_or(usize::MAX),
        ..Culprit::new(CulpritRole::Client, &rows, &row)
    })
}

/// Finds temporary files that are large, and larger than usual.
pub(super) fn find_temp_files(summary: &mut RecordingSummary, window: &RecordingWindow) {
    let counters = &window.counters;
    if counters.len() < RECORDING_MIN {
        return;
    }
    // Bytes are counted when a file is closed, at the end of a statement.
    let usual = median(counters.iter().filter_map(|of| per_second(of, of.temp_bytes as f64)));
    let closed: Vec<_> = counters
        .iter()
        .filter(|of| {
            per_second(of, of.temp_bytes as f64).is_some_and(|rate| rate > TEMP_FACTOR * usual)
        })
        .collect();
    let closed_bytes: f64 = closed.iter().map(|of| of.temp_bytes as f64).sum();
    let open = open_temp_files(window);
    let open_bytes = open.as_ref().map_or(0.0, |(culprit, _)| culprit.temp_bytes as f64);
    let bytes = closed_bytes.max(open_bytes);
    let usual_total = usual * counters.iter().map(|of| of.elapsed_us as f64 / 1e6).sum::<f64>();
    if bytes < TEMP_BYTES || bytes < TEMP_FACTOR * usual_total {
        return;
    }
    let ends = closed.iter().map(|of| of.at_us);
    let span = match (&open, ends.clone().min(), ends.max()) {
        (Some((_, span)), _, Some(to_us)) => TimeSpan { to_us: to_us.max(span.to_us), ..*span },
        (Some((_, span)), ..) => *span,
        // The statement ended in this sample.
        (None, Some(from_us), Some(to_us)) => {
            TimeSpan { from_us: from_us.saturating_sub(5_000_000), to_us }
        }
        _ => window.span(),
    };
    let busiest =
        |is_wait: fn(&str) -> bool| culprits::busiest(window, &[span], is_wait).into_iter().next();
    let seen = open.map(|(culprit, _)| culprit);
    let seen = seen.or_else(|| busiest(|wait| wait.starts_with("IO:BufFile")));
    // Files of parallel workers are in folders that SQL does not list.
    let (culprit, how_sure) = match seen {
        Some(culprit) => (Some(culprit), ""),
        None => (busiest(|_| true), "probably "),
    };
    if summary.findings.iter().any(|finding| {
        finding.text.contains("temporary files")
            && finding
                .culprits
                .iter()
                .any(|other| culprit.as_ref().is_some_and(|culprit| culprit.pid == other.pid))
    }) {
        return;
    }
    let of = culprit
        .as_ref()
        .map_or_else(String::new, |culprit| format!(", {how_sure}most of {}", culprit.process()));
    summary.findings.push(RecordingFinding {
        text: format!("{} of temporary files were written{of}", size(bytes)),
        evidence: format!(
            "{} files until {}; work_mem was too small for a sort, a hash or a result",
            closed.iter().map(|of| of.temp_files).sum::<u64>(),
            units::time_of_day(span.to_us)
        ),
        cost_s: bytes / TEMP_BYTES_PER_S,
        span: Some(span),
        culprits: culprit.into_iter().collect(),
    });
}

/// Returns the session that had the largest temporary files, and when it had any.
fn open_temp_files(window: &RecordingWindow) -> Option<(Culprit, TimeSpan)> {
    let mut most: Option<(&RecordedSessions, &RecordedSession)> = None;
    for sessions in &window.sessions {
        for row in &sessions.rows {
            if row.temp_bytes > most.map_or(0, |(_, row)| row.temp_bytes) {
                most = Some((sessions, row));
            }
        }
    }
    let (sessions, row) = most?;
    let is_it = |other: &RecordedSession| other.pid == row.pid && other.temp_bytes > 0;
    let with_files = window.sessions.iter().filter(|sessions| sessions.rows.iter().any(is_it));
    let span = TimeSpan {
        from_us: with_files.clone().map(|sessions| sessions.at_us).min()?,
        to_us: with_files.map(|sessions| sessions.at_us).max()?,
    };
    let culprit = Culprit {
        statement: window.statement(row.statement).unwrap_or_default().to_owned(),
        age_s: Some(row.age_ms as f64 / 1e3),
        temp_bytes: row.temp_bytes,
        time_s: window
            .sessions
            .iter()
            .filter(|sessions| sessions.rows.iter().any(is_it))
            .map(seconds_of)
            .sum(),
        ..Culprit::new(CulpritRole::Query, sessions, row)
    };
    Some((culprit, span))
}

/// Describes the standbys in a span, for sessions that wait for one (`IPC:SyncRep`).
pub(super) fn standby_evidence(window: &RecordingWindow, span: TimeSpan) -> Option<String> {
    let counters = window.counters.iter().filter(|of| span.contains(of.at_us));
    let mut most_ms = 0;
    let (mut count, mut connected) = (0, 0);
    for of in counters {
        count += 1;
        connected += usize::from(of.replay_lag_bytes.is_some());
        most_ms = most_ms.max(of.replay_lag_ms.unwrap_or(0));
    }
    match (count, connected) {
        (0, _) => None,
        (_, 0) => Some("no standby was connected".to_owned()),
        _ => Some(format!("the slowest standby lagged up to {}", units::micros(most_ms * 1000))),
    }
}

/// Returns the commits per second in each recorded second: the rate of the sample that overlaps it
/// most, because a mixture of two samples would blur the edges of a stall. `None` where it is
/// unknown.
pub(super) fn commit_rates(window: &RecordingWindow) -> Vec<Option<f64>> {
    let mut first = 0;
    let rate = |second: &RecordedSecond| {
        let span = second_span(second);
        while first < window.counters.len() && window.counters[first].at_us < span.from_us {
            first += 1;
        }
        let mut most = (0, None);
        for of in &window.counters[first..] {
            let covered = run_span(std::slice::from_ref(of));
            if covered.from_us > span.to_us {
                break;
            }
            let overlap_us = span.overlap_us(covered);
            if overlap_us > most.0 {
                most = (overlap_us, per_second(of, of.commits as f64));
            }
        }
        most.1
    };
    window.seconds.iter().map(rate).collect()
}

fn per_second(counters: &RecordedCounters, count: f64) -> Option<f64> {
    (counters.elapsed_us > 0).then(|| count * 1e6 / counters.elapsed_us as f64)
}

pub(in crate::analysis) fn median(values: impl Iterator<Item = f64>) -> f64 {
    quantile(values, 0.5)
}

/// Returns the quantile `share`, 0 to 1; 0 without values.
pub(super) fn quantile(values: impl Iterator<Item = f64>, share: f64) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    let index = (share * values.len() as f64) as usize;
    values.get(index.min(values.len().saturating_sub(1))).copied().unwrap_or_default()
}

/// Returns the run of successive samples with a value, and the largest sum of values.
pub(super) fn longest_run(
    counters: &[RecordedCounters],
    value: impl Fn(&RecordedCounters) -> Option<f64>,
) -> Option<std::ops::Range<usize>> {
    let (mut most, mut first, mut sum) = (None::<(f64, std::ops::Range<usize>)>, 0, 0.0);
    for (index, counters) in counters.iter().enumerate() {
        let Some(value) = value(counters) else {
            (first, sum) = (index + 1, 0.0);
            continue;
        };
        sum += value;
        if index + 1 - first >= SAMPLES_RUN && most.as_ref().is_none_or(|(most, _)| *most < sum) {
            most = Some((sum, first..index + 1));
        }
    }
    most.map(|(_, run)| run)
}

/// Returns the time that a run of samples covers.
pub(super) fn run_span(run: &[RecordedCounters]) -> TimeSpan {
    let from_us = run.first().map_or(0, |of| of.at_us.saturating_sub_unsigned(of.elapsed_us));
    TimeSpan { from_us, to_us: run.last().map_or(0, |of| of.at_us) }
}

/// Formats a number of bytes.
pub(super) fn size(bytes: f64) -> String {
    match bytes {
        bytes if bytes >= 1e9 => format!("{:.1} GB", bytes / 1e9),
        bytes if bytes >= 1e6 => format!("{:.0} MB", bytes / 1e6),
        bytes if bytes >= 1e3 => format!("{:.0} kB", bytes / 1e3),
        bytes => format!("{bytes:.0} bytes"),
    }
}

#[cfg(test)]
mod tests;
