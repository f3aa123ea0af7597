//! Findings that need no checkpoint to compare with: events that dominate database time, surges of
//! one event, and stalls in which sessions wait and none runs.
//!
//! All three use the samples of client sessions and their parallel workers only, second by second.

use std::collections::BTreeMap;

use super::{
    CHECKPOINT_REQUEST_WAITS, RecordingFinding, RecordingSummary, SAMPLES_MIN, is_in_checkpoint,
};
use crate::{
    analysis::{
        units::{self, factor},
        window::RecordingWindow,
    },
    recorder::RecordedSecond,
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
/// Minimum length of a recording, in seconds; a shorter one does not show what is usual.
const RECORDING_MIN: usize = 10;

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

pub(super) fn find_all(summary: &mut RecordingSummary, window: &RecordingWindow) {
    let seconds: Vec<SessionsByEvent<'_>> = window.seconds.iter().map(sessions_by_event).collect();
    let stall = find_stall(summary, window, &seconds);
    find_surges(summary, window, &seconds, stall);
    find_dominant(summary, window, &seconds);
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

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
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

/// Finds the most expensive run of seconds in which sessions wait and none was sampled on a
/// processor.
fn find_stall(
    summary: &mut RecordingSummary,
    window: &RecordingWindow,
    seconds: &[SessionsByEvent<'_>],
) -> Option<SecondsRun> {
    let runs_ever = seconds.iter().any(|second| second.contains_key(RUNNING));
    let waits: Vec<f64> = seconds.iter().map(waiting).collect();
    let usual = median(waits.clone());
    let stalled: Vec<f64> = seconds
        .iter()
        .zip(&waits)
        .map(|(second, waiting)| if second.contains_key(RUNNING) { 0.0 } else { *waiting })
        .collect();
    // If no session was ever sampled running, stalls cannot be distinguished from other seconds.
    let run = worst_run(window, &stalled, SESSIONS_MIN, usual.min(SESSIONS_MIN))
        .filter(|_| runs_ever && seconds.len() >= RECORDING_MIN)?;
    let mut events = SessionsByEvent::new();
    for second in &seconds[run.first..run.first + run.len] {
        for (event, sessions) in second.iter().filter(|(event, _)| is_wait(event)) {
            *events.entry(event).or_default() += sessions;
        }
    }
    let (event, _) = events.into_iter().max_by(|one, other| one.1.total_cmp(&other.1))?;
    summary.findings.push(RecordingFinding {
        text: format!(
            "no session ran for {} s while up to {:.1} waited, most of them for {event}",
            run.len, run.peak
        ),
        evidence: format!(
            "from {} on; {usual:.1} sessions wait in the median second",
            units::time_of_day(window.seconds[run.first].at_us)
        ),
        cost_s: run.cost_s,
    });
    Some(run)
}

/// Finds, for each event, the most expensive run of seconds with many more sessions than in the
/// event's median second, unless it lies within `stall`.
fn find_surges(
    summary: &mut RecordingSummary,
    window: &RecordingWindow,
    seconds: &[SessionsByEvent<'_>],
    stall: Option<SecondsRun>,
) {
    if seconds.len() < RECORDING_MIN {
        return;
    }
    let has_extension = window.seconds.iter().any(|second| second.extension.is_some());
    for event in events(seconds) {
        // Traced extension waits have findings of their own.
        if event == "Lock:extend" && has_extension || summary.mentions(event) {
            continue;
        }
        let values: Vec<f64> =
            seconds.iter().map(|second| second.get(event).copied().unwrap_or_default()).collect();
        let usual = median(values.clone());
        let least = (SURGE_FACTOR * usual).max(SESSIONS_MIN);
        let Some(run) = worst_run(window, &values, least, usual) else { continue };
        let in_stall = stall.is_some_and(|stall| {
            stall.first <= run.first && run.first + run.len <= stall.first + stall.len
        });
        if in_stall {
            continue;
        }
        let covered = &window.seconds[run.first..run.first + run.len];
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
        summary.findings.push(RecordingFinding {
            text: format!(
                "{event} {rise} for {} s{during}: up to {:.1} sessions wait for it",
                run.len, run.peak
            ),
            evidence: format!(
                "from {} on; {usual:.2} sessions in the median second",
                units::time_of_day(window.seconds[run.first].at_us)
            ),
            cost_s: run.cost_s,
        });
    }
}

/// Finds events with a large share of all database time.
fn find_dominant(
    summary: &mut RecordingSummary,
    window: &RecordingWindow,
    seconds: &[SessionsByEvent<'_>],
) {
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
    for (event, (time_s, samples)) in times {
        let (share, sessions) = (time_s / total_s, time_s / f64::max(lasted_s, 1e-9));
        if !is_wait(event)
            || samples < SAMPLES_MIN
            || share < DOMINANT_SHARE
            || sessions < DOMINANT_SESSIONS_MIN
            || summary.mentions(event)
            || event == "Lock:extend" && has_extension_finding
        {
            continue;
        }
        let evidence = format!(
            "{sessions:.1} sessions on average in {lasted_s:.0} s; sampled {samples} times"
        );
        summary.findings.push(RecordingFinding {
            text: format!("{:.0} % of database time is waits for {event}", share * 100.0),
            evidence,
            // This is the normal state rather than an excess over it, so changes are listed first.
            cost_s: 0.0,
        });
    }
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
