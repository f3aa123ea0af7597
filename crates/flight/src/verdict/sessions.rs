//! Findings that need no checkpoint to compare with: events that dominate database time, surges of one
//! event, and stalls in which sessions wait and none runs.
//!
//! All three look at client sessions only ([`Group::Database`]), sampled second by second.

use std::collections::BTreeMap;

use howdah_probe::{recorder::Second, waits::Group};

use super::{ASKED, Finding, SAMPLES_MIN, Verdict, is_in_checkpoint};
use crate::{
    timeline::Timeline,
    units::{self, factor},
};

/// Sessions on a processor, which wait for nothing.
const RUNNING: &str = "CPU*";
/// Time that a client asked for.
const REQUESTED: &str = "Timeout:PgSleep";
/// Share of database time from which one event dominates.
const DOMINANT_SHARE: f64 = 0.3;
/// Sessions that wait at the event on average, below which a share means little.
const DOMINANT_SESSIONS_MIN: f64 = 0.2;
/// Sessions that wait, from which a second counts as part of a surge or of a stall.
const SESSIONS_MIN: f64 = 1.0;
/// A surge is at least so many times the event's median second.
const SURGE_FACTOR: f64 = 3.0;
/// Seconds in a row; a single one may be an accident of sampling.
const SECONDS_MIN: usize = 2;
/// Seconds of a recording, below which there is no usual second to compare with.
const RECORDING_MIN: usize = 10;

/// Sessions at each event on average, in one second.
type Sessions<'a> = BTreeMap<&'a str, f64>;

/// Seconds in a row, as indexes into the recording's seconds, and what they cost.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    first: usize,
    len: usize,
    /// The most sessions in one of its seconds.
    peak: f64,
    /// Seconds that sessions waited beyond the usual.
    cost_s: f64,
}

pub(super) fn find(verdict: &mut Verdict, timeline: &Timeline) {
    let seconds: Vec<Sessions<'_>> = timeline.seconds.iter().map(sessions_of).collect();
    let stall = find_stall(verdict, timeline, &seconds);
    find_surges(verdict, timeline, &seconds, stall);
    find_dominant(verdict, timeline, &seconds);
}

fn sessions_of(second: &Second) -> Sessions<'_> {
    let rounds = f64::from(second.waits.rounds.max(1));
    let mut sessions = Sessions::new();
    for row in second.waits.rows.iter().filter(|row| row.group == Group::Database) {
        *sessions.entry(&*row.event).or_default() += row.samples as f64 / rounds;
    }
    sessions
}

fn is_wait(event: &str) -> bool {
    event != RUNNING && event != REQUESTED && !ASKED.contains(&event)
}

fn waiting(second: &Sessions<'_>) -> f64 {
    second.iter().filter(|(event, _)| is_wait(event)).map(|(_, sessions)| sessions).sum()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// The most expensive run of seconds whose value is at least `least`. `usual` is what each second would have
/// cost anyway.
fn worst_run(timeline: &Timeline, values: &[f64], least: f64, usual: f64) -> Option<Run> {
    let (mut worst, mut run) = (None::<Run>, Run::default());
    for (place, value) in values.iter().enumerate() {
        if *value < least {
            run = Run::default();
            continue;
        }
        if run.len == 0 {
            run.first = place;
        }
        run.len += 1;
        run.peak = run.peak.max(*value);
        run.cost_s += (value - usual) * timeline.seconds[place].elapsed_us as f64 / 1e6;
        if run.len >= SECONDS_MIN && worst.is_none_or(|worst| worst.cost_s < run.cost_s) {
            worst = Some(run);
        }
    }
    worst
}

/// Seconds in which sessions wait and none is on a processor: nothing commits.
fn find_stall(verdict: &mut Verdict, timeline: &Timeline, seconds: &[Sessions<'_>]) -> Option<Run> {
    let runs_ever = seconds.iter().any(|second| second.contains_key(RUNNING));
    let waits: Vec<f64> = seconds.iter().map(waiting).collect();
    let usual = median(waits.clone());
    let stalled: Vec<f64> = seconds
        .iter()
        .zip(&waits)
        .map(|(second, waiting)| if second.contains_key(RUNNING) { 0.0 } else { *waiting })
        .collect();
    // Where no session was ever seen running there is no other second to tell a stall from.
    let run = worst_run(timeline, &stalled, SESSIONS_MIN, usual.min(SESSIONS_MIN))
        .filter(|_| runs_ever && seconds.len() >= RECORDING_MIN)?;
    let mut events = Sessions::new();
    for second in &seconds[run.first..run.first + run.len] {
        for (event, sessions) in second.iter().filter(|(event, _)| is_wait(event)) {
            *events.entry(event).or_default() += sessions;
        }
    }
    let (event, _) = events.into_iter().max_by(|one, other| one.1.total_cmp(&other.1))?;
    verdict.findings.push(Finding {
        text: format!(
            "no session ran for {} s while up to {:.1} waited, most of them for {event}",
            run.len, run.peak
        ),
        evidence: format!(
            "from {} on; {usual:.1} sessions wait in the median second",
            units::time_of_day(timeline.seconds[run.first].at_us)
        ),
        cost_s: run.cost_s,
    });
    Some(run)
}

/// Each event beside its own median second.
fn find_surges(
    verdict: &mut Verdict,
    timeline: &Timeline,
    seconds: &[Sessions<'_>],
    stall: Option<Run>,
) {
    if seconds.len() < RECORDING_MIN {
        return;
    }
    let has_extension = timeline.seconds.iter().any(|second| second.extension.is_some());
    for event in events(seconds) {
        // Exact waits for extension locks have findings of their own.
        if event == "Lock:extend" && has_extension || verdict.mentions(event) {
            continue;
        }
        let values: Vec<f64> =
            seconds.iter().map(|second| second.get(event).copied().unwrap_or_default()).collect();
        let usual = median(values.clone());
        let least = (SURGE_FACTOR * usual).max(SESSIONS_MIN);
        let Some(run) = worst_run(timeline, &values, least, usual) else { continue };
        let in_stall = stall.is_some_and(|stall| {
            stall.first <= run.first && run.first + run.len <= stall.first + stall.len
        });
        if in_stall {
            continue;
        }
        let covered = &timeline.seconds[run.first..run.first + run.len];
        let during = match covered.iter().all(|second| is_in_checkpoint(timeline, second)) {
            true => " during a checkpoint",
            false => "",
        };
        let rise = match usual > 0.005 {
            true => format!("rises {}", factor(run.peak / usual)),
            false => "appears".to_owned(),
        };
        verdict.findings.push(Finding {
            text: format!(
                "{event} {rise} for {} s{during}: up to {:.1} sessions wait for it",
                run.len, run.peak
            ),
            evidence: format!(
                "from {} on; {usual:.2} sessions in the median second",
                units::time_of_day(timeline.seconds[run.first].at_us)
            ),
            cost_s: run.cost_s,
        });
    }
}

/// Events with a large share of all database time.
fn find_dominant(verdict: &mut Verdict, timeline: &Timeline, seconds: &[Sessions<'_>]) {
    let has_extension_finding = verdict.mentions("extend relations");
    let (mut total_s, mut lasted_s) = (0.0, 0.0);
    let mut times: BTreeMap<&str, (f64, u64)> = BTreeMap::new();
    for (sessions, second) in seconds.iter().zip(&timeline.seconds) {
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
            || verdict.mentions(event)
            || event == "Lock:extend" && has_extension_finding
        {
            continue;
        }
        let evidence = format!(
            "{sessions:.1} sessions on average in {lasted_s:.0} s; sampled {samples} times"
        );
        verdict.findings.push(Finding {
            text: format!("{:.0} % of database time is waits for {event}", share * 100.0),
            evidence,
            // It is the usual state, not beyond it: what changed stands before it.
            cost_s: 0.0,
        });
    }
}

fn events<'a>(seconds: &[Sessions<'a>]) -> Vec<&'a str> {
    let mut events: Vec<&str> = seconds
        .iter()
        .flat_map(|second| second.keys().copied())
        .filter(|event| is_wait(event))
        .collect();
    events.sort_unstable();
    events.dedup();
    events
}
