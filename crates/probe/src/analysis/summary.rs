//! Finds seconds, events and clock sweeps that stand out in a recording, and describes them in
//! text. Findings claim no more than the data supports.
//!
//! # Method
//!
//! A second belongs to a phase of a checkpoint (*write*: buffers are written; *sync*: files are
//! synced) if it touches the phase, and at least half of it lies within the phase or the one second
//! that follows, because a wait is counted when it ends. A second is outside if it touches neither
//! a checkpoint nor the one second that follows a checkpoint. All other seconds are ignored. The
//! seconds of each phase are compared with those outside.
//!
//! * **Waits for extension locks** stand out if there are at least [`WAITS_MIN`] waits and
//!   [`INSIDE_MIN`] seconds inside, and at least [`WAITS_MIN`] waits and [`OUTSIDE_MIN`] seconds
//!   outside; the 99th percentile inside is at least [`FACTOR_MIN`] times that outside and at least
//!   a millisecond; and in at least half of the seconds inside some session waited longer than the
//!   99th percentile of at least nine in ten outside seconds. A wait counts for all seconds that it
//!   lasted, although it is recorded when it ends. A single slow second is not enough.
//! * **Any other event** that client backends wait for stands out if it was sampled [`SAMPLES_MIN`]
//!   times inside, in at least two seconds; on average at least half a session waits for it, which
//!   is at least [`FACTOR_MIN`] times as many as outside; and there are at least [`OUTSIDE_MIN`]
//!   seconds outside.
//! * **The clock sweep** stands out if it examines [`FACTOR_MIN`] times as many buffers per
//!   allocation as outside, and at least five per allocation, with [`ALLOCATIONS_MIN`] allocations
//!   on both sides.
//!
//! Independently of checkpoints, **slow seconds** stand out if their 99th percentile of extension
//! waits is ten times that of the median second and at least 10 ms, among at least ten seconds with
//! at least ten waits each, and if sessions waited a second in all of them. A **clock sweep**
//! stands out if it examines at least ten buffers per allocation over the whole recording, with at
//! least [`ALLOCATIONS_MIN`] allocations.
//!
//! Also independent of checkpoints are events of client sessions, second by second (see
//! [`sessions`]): a **stall** is two seconds or more in which sessions wait and none is on a
//! processor; a **surge** is an event with three times the sessions of its median second, and at
//! least one, for two seconds or more; an event **dominates** if it takes at least 30 % of database
//! time, was sampled [`SAMPLES_MIN`] times, and has at least 0.2 sessions on average. Stalls and
//! surges need a recording of at least ten seconds. The several events of sessions that wait for
//! the WAL to be written count as one.
//!
//! While processes of the host wait for a CPU, I/O or memory at least half of the time, stalls and
//! surges of less than four seconds and three sessions are remarks, unless a blocker explains them:
//! a busy host delays any session.
//!
//! # Sessions and counters
//!
//! If the recording has sessions and counters, which need a connection, a finding also names its
//! *culprits* in its time span (see [`culprits`]): the root blockers of a wait for
//! a lock, if they explain half of it; otherwise the statements, users, applications and clients
//! that waited most. Further findings (see [`load`]), each with its own baseline and minimum:
//!
//! * **Commits stopped**: for two seconds or more, at most a twentieth as many transactions as in
//!   the usual second, or 1.5, commit, and at least one session waits. Usual is the third quartile
//!   of commits per second, and at least five. It replaces a stall in the same seconds. Costs what
//!   the sessions waited.
//! * **A runaway query** ran for ten seconds or more, in 70 % of them on a processor, in I/O or
//!   waiting for its own workers, and took at least 30 % of database time meanwhile. Costs half
//!   of its time, which is an assumption.
//! * **A blocker** cost others at least three session seconds, and no other finding names it.
//!   It may idle in its transaction, be an autovacuum worker or another VACUUM, or a prepared
//!   transaction.
//! * **A connection storm**: in two samples or more, at least twenty new sessions a second, and
//!   five times the median. Costs 10 ms for each session above the median.
//! * **Temporary files** of at least 64 MB, and five times what is written at the median rate.
//!   Costs the time in which a disk writes 200 MB/s.
//! * **Lag of a standby**: in two samples or more, at least 5 s or 64 MB of WAL, and three
//!   times the median. Costs its length in seconds, as one reader of the standby would wait.
//!   The primary names the standby, and the standby the session for which replay waits.
//! * **Repeated checkpoints**: at least three requested within a minute, by sessions whose
//!   statement is `CHECKPOINT`, or else by the amount of WAL. Cost what sessions waited for files
//!   and the WAL above the median second outside of them, plus a second.
//! * **A thrashing buffer cache**: for two seconds or more, the clock sweep replaces at least a
//!   tenth of the cache each second, five times the median, and all of it at least once, while on
//!   average at least half a session more works than in the median second. Costs their time.
//! * **Deadlocks** that the server counted (see [`deadlocks`](super::deadlocks())). They cost what
//!   their sessions were seen waiting if commits stopped meanwhile, otherwise nothing.
//!
//! All but blockers, repeated checkpoints and deadlocks need a recording of at least ten seconds.
//!
//! # Order
//!
//! Findings are ordered by their cost: the seconds that sessions waited in excess of the usual,
//! which is the rate outside, or that of the median second. Slow seconds cost the waits of those
//! outside of checkpoints; clock sweeps and dominant events cost nothing. Findings report
//! coincidence, not causation. The headline also names the statement in which most of the time was
//! spent, with its processes. If nothing stands out, the headline says so, and names an event that
//! has more than half of database time.

mod load;
mod sessions;
mod storage;

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

pub(super) use self::load::median;
use super::{
    culprits::{self, Culprit, CulpritRole},
    units::{self, factor, percent},
    window::{PhaseSpan, RecordingWindow, TimeBucket, TimeSpan},
};
use crate::{checkpoints::CheckpointPhase, recorder::RecordedSecond, waits::TimeCategory};

/// Minimum number of waits for a meaningful 99th percentile.
const WAITS_MIN: u64 = 30;
/// Minimum number of seconds inside a phase.
const INSIDE_MIN: usize = 2;
/// Minimum number of seconds outside of checkpoints.
const OUTSIDE_MIN: usize = 5;
/// Ratio from which a difference is notable.
const FACTOR_MIN: f64 = 3.0;
/// Minimum number of samples of an event.
const SAMPLES_MIN: u64 = 50;
/// Minimum length of a recording, in seconds; a shorter one does not show what is usual.
const RECORDING_MIN: usize = 10;
/// Minimum number of buffer allocations.
const ALLOCATIONS_MIN: u64 = 1000;

/// Pressure on a resource of the host, in percent, from which short stalls are the host's rather
/// than PostgreSQL's.
const PRESSURE_MIN: f64 = 50.0;
/// Minimum session seconds that waits to extend relations cost in seconds that stand out.
const SLOW_SECONDS_COST: f64 = 1.0;

/// Wait events of sessions that wait for a checkpoint which they requested, as by `CHECKPOINT`.
/// They are ignored: they do not show that a checkpoint slows other sessions.
const CHECKPOINT_REQUEST_WAITS: [&str; 2] = ["IPC:CheckpointStart", "IPC:CheckpointDone"];

/// Findings of a recording, as text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecordingSummary {
    /// The most expensive finding in one line, or that nothing stands out.
    pub headline: String,
    /// Notable observations, most expensive first.
    pub findings: Vec<RecordingFinding>,
    /// Checks that found nothing notable or had too little data, each described in one line.
    pub remarks: Vec<String>,
}

/// A notable observation, with its evidence and its cost.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordingFinding {
    /// The finding in one line.
    pub text: String,
    /// The figures that support it.
    pub evidence: String,
    /// Session seconds spent waiting in excess of the usual, as defined in the module
    /// documentation; 0 for findings without a cost.
    pub cost_s: f64,
    /// The time in which it was observed, if it is a part of the recording.
    pub span: Option<TimeSpan>,
    /// Sessions that caused or suffered it, the most important first; empty if they are unknown.
    pub culprits: Vec<Culprit>,
}

/// Aggregated seconds: those of a phase, or those outside of checkpoints.
#[derive(Debug, Default)]
struct SecondsGroup {
    count: usize,
    sum: TimeBucket,
    /// Time spans of the seconds.
    spans: Vec<TimeSpan>,
    /// 99th percentiles of extension waits, for seconds that have any.
    p99s: Vec<Duration>,
    /// Per event of client sessions: number of samples, and number of seconds that have a sample.
    events: BTreeMap<String, (u64, usize)>,
}

/// Compares the recording's seconds by the method in the module documentation, and describes the
/// findings in text.
pub fn summarize(window: &RecordingWindow) -> RecordingSummary {
    let mut summary = RecordingSummary::default();
    let (outside, phases) = group_seconds(window);
    for (phase, inside) in &phases {
        summary.compare_extension(window, *phase, inside, &outside);
        summary.compare_events(window, *phase, inside, &outside);
        summary.compare_sweep(*phase, inside, &outside);
    }
    summary.find_slow_seconds(window);
    summary.find_long_sweeps(window);
    let main_event = sessions::find_all(&mut summary, window);
    if phases.is_empty() {
        summary
            .remarks
            .push("no checkpoint wrote or synced anything while it was recorded".to_owned());
    }
    summary.findings.sort_by(|one, other| other.cost_s.total_cmp(&one.cost_s));
    for finding in &mut summary.findings {
        let pressure = finding.span.and_then(|span| host_pressure(window, span));
        if let Some((resource, percent)) = pressure.filter(|(_, percent)| *percent >= PRESSURE_MIN)
        {
            finding.evidence.push_str(&format!(
                "; processes of the host waited for {resource} up to {percent:.0} % of the time"
            ));
        }
    }
    summary.headline = match (summary.findings.first(), main_event) {
        (Some(finding), _) => finding.headline(),
        (None, None) => "Nothing stands out".to_owned(),
        (None, Some(event)) => format!("Nothing stands out; {event}"),
    };
    summary
}

impl RecordingFinding {
    /// Returns the finding as a sentence that names its main culprit.
    fn headline(&self) -> String {
        let text = capitalized(&self.text);
        match self.culprits.first() {
            Some(culprit)
                if matches!(culprit.role, CulpritRole::Statement)
                    && !self.text.contains(&culprit.process()) =>
            {
                format!("{text}; most of the time in {}", culprit.process())
            }
            _ => text,
        }
    }
}

/// Returns the resource for which processes of the host waited most in a span, and for how much of
/// the time, in percent: the highest average over ten seconds.
fn host_pressure(window: &RecordingWindow, span: TimeSpan) -> Option<(&'static str, f64)> {
    let pressures = window.pressures.iter().filter(|pressure| span.contains(pressure.at_us));
    let all = pressures.flat_map(|of| [("a CPU", of.cpu), ("I/O", of.io), ("memory", of.memory)]);
    let most = all.max_by_key(|(_, hundredths)| *hundredths)?;
    Some((most.0, f64::from(most.1?) / 100.0))
}

/// Returns the seconds outside of checkpoints, and those of each phase.
fn group_seconds(
    window: &RecordingWindow,
) -> (SecondsGroup, BTreeMap<CheckpointPhase, SecondsGroup>) {
    let (mut outside, mut phases) =
        (SecondsGroup::default(), BTreeMap::<CheckpointPhase, SecondsGroup>::new());
    for second in &window.seconds {
        let span = second_span(second);
        let length = span.to_us.saturating_sub(span.from_us);
        let is_near = |phase: &&PhaseSpan| phase.with_next_second().overlap_us(span) > 0;
        if !window.phases.iter().any(|phase| is_near(&phase)) {
            outside.add(second);
            continue;
        }
        let is_within = |which: CheckpointPhase| {
            let own = window.phases.iter().filter(|phase| phase.phase == which);
            let touched = own.filter(|phase| phase.span.overlap_us(span) > 0);
            touched.map(|phase| phase.with_next_second().overlap_us(span)).sum::<i64>() * 2
                >= length
        };
        // A second after the write phase that belongs to the sync phase counts as sync.
        if let Some(phase) = [CheckpointPhase::Sync, CheckpointPhase::Write]
            .into_iter()
            .find(|phase| is_within(*phase))
        {
            phases.entry(phase).or_default().add(second);
        }
    }
    (outside, phases)
}

impl PhaseSpan {
    fn with_next_second(&self) -> TimeSpan {
        TimeSpan { to_us: self.span.to_us.saturating_add(1_000_000), ..self.span }
    }
}

impl SecondsGroup {
    fn add(&mut self, second: &RecordedSecond) {
        self.count += 1;
        self.spans.push(second_span(second));
        self.sum.add(second);
        let waits = second.extension.as_ref().map(|extension| &extension.waits);
        self.p99s.extend(waits.filter(|waits| waits.count() > 0).map(|waits| waits.quantile(0.99)));
        let mut seen = HashSet::new();
        for row in second.waits.rows.iter().filter(|row| row.group == TimeCategory::Database) {
            let (samples, seconds) = self.events.entry(row.event.clone()).or_default();
            *samples = samples.saturating_add(row.samples);
            *seconds += usize::from(seen.insert(&row.event));
        }
    }

    /// Returns the time from the first second to the end of the last.
    fn span(&self) -> Option<TimeSpan> {
        let (first, last) = (self.spans.first()?, self.spans.last()?);
        Some(TimeSpan { from_us: first.from_us, to_us: last.to_us })
    }

    /// Returns the average number of sessions in the selected events.
    fn sessions(&self, class_and_event: impl Fn(&str, &str) -> bool) -> f64 {
        let of_clients =
            self.sum.waits.iter().filter(|((group, ..), _)| *group == TimeCategory::Database);
        let found = of_clients.filter(|((_, class, event), _)| class_and_event(class, event));
        found.fold(0.0, |sum, (_, seconds)| sum + seconds) / self.sum.seconds().max(1e-9)
    }

    /// Returns the quantile `share` (0 to 1) of the seconds' 99th percentiles of extension waits.
    fn p99_of_seconds(&self, share: f64) -> Duration {
        let mut sorted = self.p99s.clone();
        sorted.sort_unstable();
        let index = (share * sorted.len() as f64) as usize;
        sorted.get(index.min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
    }
}

impl RecordingSummary {
    /// Whether the text of a finding already contains `event`.
    fn mentions(&self, event: &str) -> bool {
        self.findings.iter().any(|finding| finding.text.contains(event))
    }

    fn compare_extension(
        &mut self,
        window: &RecordingWindow,
        phase: CheckpointPhase,
        inside: &SecondsGroup,
        outside: &SecondsGroup,
    ) {
        let during = during(phase);
        let (Some(within), Some(without)) = (&inside.sum.extension, &outside.sum.extension) else {
            return;
        };
        let (waits, others) = (&within.waits, &without.waits);
        if waits.count() == 0 && others.count() == 0 {
            return;
        }
        if waits.count() < WAITS_MIN
            || others.count() < WAITS_MIN
            || inside.count < INSIDE_MIN
            || outside.count < OUTSIDE_MIN
        {
            self.remarks.push(format!(
                "too little data to compare waits to extend relations: {} in {} s {during}, {} in {} s outside of \
                 checkpoints ({WAITS_MIN} on each side are needed, {INSIDE_MIN} s inside and {OUTSIDE_MIN} s outside)",
                waits.count(), inside.count, others.count(), outside.count
            ));
            return;
        }
        let (p99, before) = (waits.quantile(0.99), others.quantile(0.99));
        let ratio = p99.as_secs_f64() / before.as_secs_f64().max(1e-9);
        let usual = outside.p99_of_seconds(0.9);
        let slow = slow_spans(window, usual);
        let is_slow = |span: &&TimeSpan| slow.iter().any(|slow| slow.overlap_us(**span) > 0);
        let above = inside.spans.iter().filter(is_slow).count();
        let figures = format!(
            "p99 {} {during} ({} waits in {} s), {} outside of checkpoints ({} in {} s)",
            units::duration(p99),
            waits.count(),
            inside.count,
            units::duration(before),
            others.count(),
            outside.count
        );
        if ratio < FACTOR_MIN || p99 < Duration::from_millis(1) || above * 2 < inside.count {
            self.remarks.push(format!("waits to extend relations do not stand out: {figures}"));
            return;
        }
        let total = waits.total().as_secs_f64();
        let rate = others.total().as_secs_f64() / outside.sum.seconds().max(1e-9);
        let mut text = format!("waits to extend relations rise {} {during}", factor(ratio));
        if let Some(first) = within.relations.first() {
            let share = percent(first.total_us as f64 / 1e6, total);
            text.push_str(&format!("; {share} of that time is on {}", window.relation_name(first)));
        }
        self.findings.push(RecordingFinding {
            text,
            evidence: format!(
                "{figures}; a session waited longer than {} in {above} of the {} seconds",
                units::duration(usual),
                inside.count
            ),
            cost_s: total - rate * inside.sum.seconds(),
            span: inside.span(),
            culprits: culprits::of_event(window, &inside.spans, Some("Lock:extend")),
        });
    }

    fn compare_events(
        &mut self,
        window: &RecordingWindow,
        phase: CheckpointPhase,
        inside: &SecondsGroup,
        outside: &SecondsGroup,
    ) {
        if outside.count < OUTSIDE_MIN {
            return;
        }
        let has_extension = inside.sum.extension.is_some();
        for (event, (samples, seconds)) in &inside.events {
            // Traced extension waits are more precise than samples, and running is not waiting.
            if event == "CPU*"
                || event == "Lock:extend" && has_extension
                || CHECKPOINT_REQUEST_WAITS.contains(&event.as_str())
            {
                continue;
            }
            let is_it = |_: &str, other: &str| other == event;
            let (now, before) = (inside.sessions(is_it), outside.sessions(is_it));
            if *samples < SAMPLES_MIN || *seconds < 2 || now < 0.5 || now < FACTOR_MIN * before {
                continue;
            }
            let text = if before > 0.005 {
                format!("{event} rises {} {}", factor(now / before), during(phase))
            } else {
                format!("{event} appears {}, and hardly ever otherwise", during(phase))
            };
            self.findings.push(RecordingFinding {
                text,
                evidence: format!(
                    "{now:.1} sessions on average in {} s, {before:.2} outside of checkpoints in {} s; seen \
                     {samples} times",
                    inside.count, outside.count
                ),
                cost_s: (now - before) * inside.sum.seconds(),
                span: inside.span(),
                culprits: culprits::of_event(window, &inside.spans, Some(event)),
            });
        }
    }

    fn compare_sweep(
        &mut self,
        phase: CheckpointPhase,
        inside: &SecondsGroup,
        outside: &SecondsGroup,
    ) {
        let enough = |side: &SecondsGroup| {
            side.sum.sweep.is_some_and(|sweep| sweep.allocations >= ALLOCATIONS_MIN)
        };
        let (Some(now), Some(before)) =
            (inside.sum.examined_per_allocation(), outside.sum.examined_per_allocation())
        else {
            return;
        };
        if enough(inside) && enough(outside) && now >= 5.0 && now >= FACTOR_MIN * before {
            self.findings.push(RecordingFinding {
                text: format!(
                    "the clock sweep examines {} as many buffers per allocation {}",
                    factor(now / before.max(1e-3)),
                    during(phase)
                ),
                evidence: format!("{now:.1} buffers, {before:.1} outside of checkpoints"),
                cost_s: 0.0,
                span: inside.span(),
                culprits: Vec::new(),
            });
        }
    }

    fn find_slow_seconds(&mut self, window: &RecordingWindow) {
        let mut p99s = Vec::new();
        for second in &window.seconds {
            let Some(extension) = &second.extension else { continue };
            if extension.waits.count() >= 10 {
                p99s.push((extension.waits.quantile(0.99), second));
            }
        }
        if p99s.len() < 10 {
            return;
        }
        let mut sorted: Vec<_> = p99s.iter().map(|(p99, _)| *p99).collect();
        sorted.sort_unstable();
        let median = sorted[sorted.len() / 2];
        let least = (10 * median).max(Duration::from_millis(10));
        let slow: Vec<_> = p99s.iter().filter(|(p99, _)| *p99 >= least).collect();
        let Some((longest, worst)) = slow.iter().max_by_key(|(p99, _)| *p99) else { return };
        let apart = slow.iter().filter(|(_, second)| !is_in_checkpoint(window, second));
        let (number, in_checkpoints) = (slow.len(), slow.len() - apart.clone().count());
        let total = |second: &RecordedSecond| {
            second.extension.as_ref().map_or(0.0, |of| of.waits.total().as_secs_f64())
        };
        if slow.iter().map(|(_, second)| total(second)).sum::<f64>() < SLOW_SECONDS_COST {
            return;
        }
        let spans: Vec<_> = slow.iter().map(|(_, second)| second_span(second)).collect();
        // Seconds within checkpoints are already covered by the findings of the phases.
        let waited: Duration =
            apart.filter_map(|(_, second)| Some(second.extension.as_ref()?.waits.total())).sum();
        self.findings.push(RecordingFinding {
            text: format!(
                "{number} {} by their waits to extend relations, {in_checkpoints} of them while a \
                 checkpoint ran",
                if number == 1 { "second stands out" } else { "seconds stand out" }
            ),
            evidence: format!(
                "the worst at {}: p99 {}, in the median second {}",
                units::time_of_day(worst.at_us),
                units::duration(*longest),
                units::duration(median)
            ),
            cost_s: waited.as_secs_f64(),
            span: None,
            culprits: culprits::of_event(window, &spans, Some("Lock:extend")),
        });
    }

    fn find_long_sweeps(&mut self, window: &RecordingWindow) {
        let mut whole = TimeBucket::default();
        window.seconds.iter().for_each(|second| whole.add(second));
        let allocations = whole.sweep.map_or(0, |sweep| sweep.allocations);
        match whole.examined_per_allocation() {
            Some(each) if allocations >= ALLOCATIONS_MIN && each >= 10.0 => {
                self.findings.push(RecordingFinding {
                    text: format!("the clock sweep examines {each:.0} buffers per allocation"),
                    evidence: format!("{allocations} allocations; nearly every buffer is in use"),
                    cost_s: 0.0,
                    span: None,
                    culprits: Vec::new(),
                });
            }
            _ => {}
        }
    }
}

fn is_in_checkpoint(window: &RecordingWindow, second: &RecordedSecond) -> bool {
    let span = second_span(second);
    window.phases.iter().any(|phase| phase.span.overlap_us(span) > 0)
}

pub(super) fn second_span(second: &RecordedSecond) -> TimeSpan {
    let length = i64::try_from(second.elapsed_us).unwrap_or(i64::MAX);
    TimeSpan { from_us: second.at_us, to_us: second.at_us.saturating_add(length) }
}

/// Returns the spans in which a session waited longer than usual to extend a relation. The longest
/// wait of a second ended in that second.
fn slow_spans(window: &RecordingWindow, usual: Duration) -> Vec<TimeSpan> {
    let slow = window.seconds.iter().filter_map(|second| {
        let longest = second.extension.as_ref()?.waits.max();
        let us = i64::try_from(longest.as_micros()).unwrap_or(i64::MAX);
        let to_us = second_span(second).to_us;
        (longest > usual).then_some(TimeSpan { from_us: to_us.saturating_sub(us), to_us })
    });
    slow.collect()
}

fn during(phase: CheckpointPhase) -> &'static str {
    match phase {
        CheckpointPhase::Write => "while buffers are written",
        _ => "while files are synced",
    }
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests;
