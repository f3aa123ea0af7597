//! Findings about buffers, checkpoints and WAL beyond single wait events: a buffer cache that is
//! replaced again and again, repeated checkpoints with the sessions that request them, and standbys
//! that lag.

use std::collections::BTreeMap;

use super::{
    CHECKPOINT_REQUEST_WAITS, RECORDING_MIN, RecordingFinding, RecordingSummary,
    load::{longest_run, median, run_span, size},
    second_span,
};
use crate::{
    analysis::{
        culprits::{self, Culprit, CulpritRole},
        units,
        window::{RecordingWindow, TimeSpan},
    },
    recorder::{RecordedCounters, RecordedSecond, RecordedSession, RecordedSessions, is_wal_wait},
};

/// Minimum share of the buffer cache that is replaced in a second, and ratio to the median second.
const REPLACED_SHARE: f64 = 0.1;
const REPLACED_FACTOR: f64 = 5.0;
/// Minimum number of times that the whole cache is replaced, and length in seconds.
const REPLACED_TIMES: f64 = 1.0;
const REPLACED_SECONDS: usize = 2;
/// Minimum number of working sessions meanwhile above those of the median second: cheap reads are
/// no trouble.
const REPLACED_SESSIONS: f64 = 0.5;
/// Minimum number of requested checkpoints within [`CHECKPOINTS_SPAN_US`].
const CHECKPOINTS_MIN: u64 = 3;
const CHECKPOINTS_SPAN_US: i64 = 60_000_000;
/// Time before and after repeated checkpoints in which their requesters may be sampled.
const REQUEST_MARGIN_US: i64 = 1_500_000;
/// Minimum lag of a standby, as time or as WAL, and ratio to the median.
const LAG_MS: f64 = 5000.0;
const LAG_BYTES: f64 = (64 << 20) as f64;
const LAG_FACTOR: f64 = 3.0;

/// Finds seconds in which the clock sweep replaces much of the buffer cache. `working` is the
/// number of working sessions in each second.
pub(super) fn find_thrash(
    summary: &mut RecordingSummary,
    window: &RecordingWindow,
    working: &[f64],
) {
    if window.seconds.len() < RECORDING_MIN {
        return;
    }
    let replaced: Vec<f64> = window.seconds.iter().map(replaced_share).collect();
    let usual = median(replaced.iter().copied());
    let least = REPLACED_SHARE.max(REPLACED_FACTOR * usual);
    let usual_working = median(working.iter().copied());
    let mut worst: Option<(f64, std::ops::Range<usize>)> = None;
    let mut first = 0;
    for index in 0..=replaced.len() {
        if replaced.get(index).is_some_and(|share| *share >= least) {
            continue;
        }
        let run = first..index;
        first = index + 1;
        let elapsed_s = |index: usize| window.seconds[index].elapsed_us as f64 / 1e6;
        let cost_s: f64 = run.clone().map(|at| (working[at] - usual_working) * elapsed_s(at)).sum();
        let lasted_s: f64 = run.clone().map(elapsed_s).sum();
        if run.len() >= REPLACED_SECONDS
            && run.clone().map(|at| replaced[at] * elapsed_s(at)).sum::<f64>() >= REPLACED_TIMES
            && cost_s >= REPLACED_SESSIONS * lasted_s
            && worst.as_ref().is_none_or(|(most, _)| *most < cost_s)
        {
            worst = Some((cost_s, run));
        }
    }
    let Some((cost_s, run)) = worst else { return };
    let seconds = &window.seconds[run.clone()];
    let times: f64 = seconds.iter().map(|of| replaced_share(of) * of.elapsed_us as f64 / 1e6).sum();
    let sweeps = || seconds.iter().filter_map(|second| second.sweep.as_ref());
    let allocations: u64 = sweeps().map(|sweep| sweep.allocations).sum();
    let examined: u64 = sweeps().map(|sweep| sweep.examined).sum();
    let span = TimeSpan {
        from_us: seconds.first().map_or(0, |second| second.at_us),
        to_us: seconds.last().map_or(0, |second| second_span(second).to_us),
    };
    let culprits = culprits::busiest(window, &[span], |wait| {
        wait.is_empty() || wait.starts_with("IO:") || wait.starts_with("LWLock:Buffer")
    });
    summary.findings.push(RecordingFinding {
        text: format!(
            "the whole buffer cache was replaced {times:.1} times within {} s ({:.1} times usually)",
            run.len(),
            usual * run.len() as f64
        ),
        evidence: format!(
            "from {} on; {allocations} buffers were allocated, and {:.1} examined for each; \
             {usual_working:.1} sessions work in the median second",
            units::time_of_day(span.from_us),
            examined as f64 / allocations.max(1) as f64
        ),
        cost_s,
        span: Some(span),
        culprits,
    });
}

/// Returns the share of the buffer cache that the clock sweep replaced, per second. 0 while free
/// buffers are left, as after a start.
fn replaced_share(second: &RecordedSecond) -> f64 {
    match second.sweep {
        Some(sweep) if sweep.examined >= sweep.allocations && second.elapsed_us > 0 => {
            let each = sweep.allocations as f64 / f64::from(sweep.buffers.max(1));
            each * 1e6 / second.elapsed_us as f64
        }
        _ => 0.0,
    }
}

/// Finds checkpoints that were requested again and again, and by which sessions. `storage` is the
/// number of sessions in each second that wait for files or for the WAL.
pub(super) fn find_checkpoint_storm(
    summary: &mut RecordingSummary,
    window: &RecordingWindow,
    storage: &[f64],
) {
    let Some((count, span)) = most_requested(window) else { return };
    let seconds = span.to_us.saturating_sub(span.from_us) as f64 / 1e6;
    let all: u64 =
        window.counters.iter().map(|of| of.requested_checkpoints).fold(0, u64::saturating_add);
    let timed: u64 =
        window.counters.iter().map(|of| of.timed_checkpoints).fold(0, u64::saturating_add);
    let around = TimeSpan {
        from_us: span.from_us.saturating_sub(REQUEST_MARGIN_US),
        to_us: span.to_us.saturating_add(REQUEST_MARGIN_US),
    };
    let requesters = requesters(window, around);
    let (by, why, culprits) = match &requesters[..] {
        [first, others @ ..] => {
            let more = match others.len() {
                0 => String::new(),
                1 => " and another session".to_owned(),
                count => format!(" and {count} other sessions"),
            };
            (format!(" by {}{more}", first.process()), "", requesters)
        }
        [] if has_request_waits(window, around) => {
            (" by sessions too short to be sampled".to_owned(), "", Vec::new())
        }
        [] => {
            let writers = writers(window, around);
            let written = writers
                .first()
                .filter(|writer| writer.role == CulpritRole::Statement)
                .map_or_else(String::new, |writer| {
                    format!(", which {} may have written", writer.process())
                });
            let by = format!(", most likely by the amount of WAL{written}");
            let why = "; max_wal_size is too small for the WAL that is written, unless a backup \
                       requested them";
            (by, why, writers)
        }
    };
    summary.findings.push(RecordingFinding {
        text: format!("{count} checkpoints were requested within {:.0} s{by}", seconds.max(1.0)),
        evidence: format!("{all} requested, {timed} by time in the whole recording{why}"),
        cost_s: excess(window, storage, around),
        span: Some(span),
        culprits,
    });
}

/// Returns the largest number of checkpoints requested within a minute, and when.
fn most_requested(window: &RecordingWindow) -> Option<(u64, TimeSpan)> {
    let requested: Vec<_> =
        window.counters.iter().filter(|of| of.requested_checkpoints > 0).collect();
    let mut most: Option<(u64, TimeSpan)> = None;
    let (mut first, mut count) = (0, 0_u64);
    for last in &requested {
        count = count.saturating_add(last.requested_checkpoints);
        while last.at_us.saturating_sub(requested[first].at_us) > CHECKPOINTS_SPAN_US {
            count = count.saturating_sub(requested[first].requested_checkpoints);
            first += 1;
        }
        if most.is_none_or(|(most, _)| most < count) {
            most = Some((count, TimeSpan { from_us: requested[first].at_us, to_us: last.at_us }));
        }
    }
    most.filter(|(count, _)| *count >= CHECKPOINTS_MIN)
}

/// Returns the session seconds in a span above those of the median second outside of it, and at
/// least one: the same seconds have findings about single events.
fn excess(window: &RecordingWindow, sessions: &[f64], span: TimeSpan) -> f64 {
    let is_in = |second: &RecordedSecond| second_span(second).overlap_us(span) > 0;
    let outside = window.seconds.iter().zip(sessions).filter(|(second, _)| !is_in(second));
    let usual = median(outside.map(|(_, sessions)| *sessions));
    let inside = window.seconds.iter().zip(sessions).filter(|(second, _)| is_in(second));
    let above: f64 =
        inside.map(|(second, sessions)| (sessions - usual) * second.elapsed_us as f64 / 1e6).sum();
    above.max(0.0) + 1.0
}

/// Returns the sessions that requested checkpoints in a span, those seen most often first.
fn requesters(window: &RecordingWindow, span: TimeSpan) -> Vec<Culprit> {
    let mut all: BTreeMap<u32, (usize, Culprit)> = BTreeMap::new();
    for sessions in culprits::samples(window, &[span]) {
        for row in &sessions.rows {
            let statement = window.statement(row.statement).unwrap_or_default();
            let waits = CHECKPOINT_REQUEST_WAITS.contains(&sessions.name(row.wait));
            if !waits && !statement.starts_with("checkpoint") {
                continue;
            }
            let (samples, culprit) = all.entry(row.pid).or_insert_with(|| {
                let culprit = Culprit::new(CulpritRole::Requester, sessions, row);
                (0, Culprit { sessions: 1, ..culprit })
            });
            *samples += 1;
            culprit.statement = statement.to_owned();
            culprit.time_s += culprits::seconds_of(sessions);
        }
    }
    let mut all: Vec<_> = all.into_values().collect();
    all.sort_by_key(|(samples, _)| std::cmp::Reverse(*samples));
    all.into_iter().map(|(_, culprit)| culprit).collect()
}

/// Whether any session waited for a checkpoint that it requested.
fn has_request_waits(window: &RecordingWindow, span: TimeSpan) -> bool {
    let seconds = window.seconds.iter().filter(|of| second_span(of).overlap_us(span) > 0);
    let mut rows = seconds.flat_map(|second| &second.waits.rows);
    rows.any(|row| CHECKPOINT_REQUEST_WAITS.contains(&&*row.event))
}

/// Returns the statements that may have written WAL, those first that worked most per process: a
/// bulk load, rather than the many small transactions that it delays.
fn writers(window: &RecordingWindow, span: TimeSpan) -> Vec<Culprit> {
    let mut culprits =
        culprits::busiest(window, &[span], |wait| !wait.starts_with("Lock:") && !is_wal_wait(wait));
    let rank = |culprit: &Culprit| {
        let text = culprit.statement.to_ascii_lowercase();
        let reads = ["select", "table", "values", "fetch", "show", "set"];
        let is_read = reads.iter().any(|word| text.starts_with(word));
        (culprit.role != CulpritRole::Statement, is_read)
    };
    let time = |culprit: &Culprit| culprit.time_s / culprit.pids.len().max(1) as f64;
    culprits.sort_by(|one, other| {
        rank(one).cmp(&rank(other)).then_with(|| time(other).total_cmp(&time(one)))
    });
    culprits
}

/// Finds samples in which the slowest standby lags much more than usual.
pub(super) fn find_standby_lag(summary: &mut RecordingSummary, window: &RecordingWindow) {
    let counters = &window.counters;
    let is_known = counters.iter().any(|of| of.replay_lag_bytes.is_some());
    if counters.len() < RECORDING_MIN || !is_known {
        return;
    }
    // No time means that everything is replayed.
    let ms = |of: &RecordedCounters| of.replay_lag_ms.unwrap_or(0) as f64;
    let bytes = |of: &RecordedCounters| of.replay_lag_bytes.unwrap_or(0) as f64;
    let (usual_ms, usual_bytes) =
        (median(counters.iter().map(ms)), median(counters.iter().map(bytes)));
    let lags = |of: &RecordedCounters| {
        let is_late = ms(of) >= LAG_MS.max(LAG_FACTOR * usual_ms);
        let is_far = bytes(of) >= LAG_BYTES.max(LAG_FACTOR * usual_bytes);
        (is_late || is_far).then(|| ms(of).max(1.0))
    };
    let Some(run) = longest_run(counters, lags) else { return };
    let (span, run) = (run_span(&counters[run.clone()]), &counters[run]);
    let most_ms = run.iter().map(ms).fold(0.0, f64::max);
    let most_bytes = run.iter().map(bytes).fold(0.0, f64::max);
    let time = match most_ms {
        ms if ms >= 1000.0 => format!("{:.0} s", ms / 1e3),
        _ => "an unknown time".to_owned(),
    };
    // The standby has replayed nothing since then.
    let from_us = span.from_us.saturating_sub((ms(&run[0]) * 1e3) as i64);
    let StandbyCause { standby, reason, culprits } =
        standby_cause(window, TimeSpan { from_us, ..span });
    summary.findings.push(RecordingFinding {
        text: format!("{standby} lags up to {time} ({} of WAL){reason}", size(most_bytes)),
        evidence: format!(
            "from {} to {}; {} and {} in the median second",
            units::time_of_day(span.from_us),
            units::time_of_day(span.to_us),
            units::micros((usual_ms * 1000.0) as u64),
            size(usual_bytes)
        ),
        // An assumption: a reader of the standby waits for what it has not replayed.
        cost_s: most_ms / 1e3,
        span: Some(span),
        culprits,
    });
}

/// Which standby lags, and why, as far as the recorded server can tell.
struct StandbyCause {
    standby: String,
    reason: String,
    culprits: Vec<Culprit>,
}

fn standby_cause(window: &RecordingWindow, span: TimeSpan) -> StandbyCause {
    // The last row of a kind in the span.
    let last = |kind: &str| {
        let samples = window.sessions.iter().filter(|sessions| span.contains(sessions.at_us));
        let mut rows =
            samples.flat_map(|sessions| sessions.rows.iter().map(move |row| (sessions, row)));
        rows.rfind(|(sessions, row)| sessions.name(row.kind) == kind)
    };
    if let Some((sessions, row)) = last("startup") {
        return replay_cause(window, span, sessions.name(row.wait));
    }
    let Some((sessions, row)) = last("walsender") else {
        let standby = "the slowest standby".to_owned();
        return StandbyCause { standby, reason: String::new(), culprits: Vec::new() };
    };
    let statement = window.statement(row.statement).unwrap_or_default().to_owned();
    let culprit = Culprit { statement, ..Culprit::new(CulpritRole::Standby, sessions, row) };
    let reason = format!(": {}", culprit.statement);
    let mut culprits = vec![culprit];
    culprits.extend(writers(window, span));
    StandbyCause { standby: culprits[0].process(), reason, culprits }
}

/// Explains the lag of the recorded server, which is a standby: its startup process replays the
/// WAL.
fn replay_cause(window: &RecordingWindow, span: TimeSpan, wait: &str) -> StandbyCause {
    let standby = "this standby".to_owned();
    let (blockers, _) = culprits::blockers(window, &[span]);
    if let Some(blocker) = blockers.first() {
        let reason = format!(": replay waits for {}", blocker.lock_phrase());
        return StandbyCause { standby, reason, culprits: blockers };
    }
    let (reason, culprit) = if wait.ends_with("RecoveryPause") {
        (": replay is paused".to_owned(), None)
    } else if wait.contains("RecoveryConflict") || wait.starts_with("BufferPin:") {
        match oldest_transaction(window, span) {
            Some(culprit) => (
                format!(": replay waits ({wait}), most likely for {}", culprit.process()),
                Some(culprit),
            ),
            None => (format!(": replay waits ({wait})"), None),
        }
    } else {
        (String::new(), None)
    };
    StandbyCause { standby, reason, culprits: culprit.into_iter().collect() }
}

/// Returns the client session with the oldest transaction.
fn oldest_transaction(window: &RecordingWindow, span: TimeSpan) -> Option<Culprit> {
    let samples = window.sessions.iter().filter(|sessions| span.contains(sessions.at_us));
    let rows = samples.flat_map(|sessions| sessions.rows.iter().map(move |row| (sessions, row)));
    let age = |row: &RecordedSession| row.transaction_ms.unwrap_or(0);
    let is_client = |(sessions, row): &(&RecordedSessions, &RecordedSession)| {
        sessions.name(row.kind) == "client backend"
    };
    let (sessions, row) = rows.filter(is_client).max_by_key(|(_, row)| age(row))?;
    Some(Culprit {
        statement: window.statement(row.statement).unwrap_or_default().to_owned(),
        age_s: Some(age(row) as f64 / 1e3),
        ..Culprit::new(CulpritRole::Query, sessions, row)
    })
}
