//! What stands out in a recording, in words, and no more than it carries.
//!
//! # Method
//!
//! Every second lies in a phase of a checkpoint (*write*: buffers are written; *sync*: files are synced), if it
//! touches the phase and overlaps at least half with it and the second behind, for a wait is counted when it
//! ends; or outside, if it does not touch a checkpoint at all. Seconds that are neither are left out. Then the seconds
//! of each phase are compared with those outside.
//!
//! * **Waits for extension locks** stand out if there are [`WAITS_MIN`] waits and [`INSIDE_MIN`] seconds
//!   inside, as many waits and [`OUTSIDE_MIN`] seconds outside; the 99th percentile inside is at least
//!   [`FACTOR_MIN`] times that outside, and at least a millisecond; and in at least half of the seconds inside
//!   somebody waited longer than nine of ten seconds outside have for their 99th percentile. A wait counts for
//!   all seconds that it lasted: a stall ends in one. A single slow second does not make a verdict.
//! * **Any other event** that backends of clients wait for stands out if it was seen [`SAMPLES_MIN`] times
//!   inside, in two seconds at least; half a session waits for it on average; and that is [`FACTOR_MIN`] times as
//!   many as outside.
//! * **The sweep** stands out if it looks at [`FACTOR_MIN`] times as many buffers for one as outside, and at five
//!   or more, over [`ALLOCATIONS_MIN`] buffers handed out on both sides.
//!
//! Whatever the checkpoints do, **slow seconds** stand out in which the 99th percentile of extension waits is
//! ten times the median second's and 10 ms at least, and so does a **sweep** of ten buffers and more for one over
//! the whole recording.
//!
//! Independent of checkpoints, too, are events of client sessions, second by second (see [`sessions`]): a **stall**
//! is two seconds or more in which sessions wait and none is on a processor; a **surge** is an event with three times
//! the sessions of its median second, one at least, for two seconds or more; an event **dominates** with 30 % of
//! database time.
//!
//! Findings stand in the order of the time they cost: seconds that sessions waited inside, beyond what they would
//! have at the rate of outside. That two things happen together is what is said; that one is the other's cause is not.

mod sessions;

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use howdah_probe::{checkpoints::Phase, recorder::Second, waits::Group};

use crate::{
    timeline::{PhaseSpan, Span, Step, Timeline},
    units::{self, factor, percent},
};

/// Fewer waits have no 99th percentile to speak of.
const WAITS_MIN: u64 = 30;
/// Seconds of a phase.
const INSIDE_MIN: usize = 2;
/// Seconds outside.
const OUTSIDE_MIN: usize = 5;
/// What is less than so many times as much is much the same.
const FACTOR_MIN: f64 = 3.0;
/// How often an event has to be seen.
const SAMPLES_MIN: u64 = 50;
/// Buffers handed out.
const ALLOCATIONS_MIN: u64 = 1000;

/// Who waits so has asked for the checkpoint, and waits for nothing else.
const ASKED: [&str; 2] = ["IPC:CheckpointStart", "IPC:CheckpointDone"];

/// What can be said.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// In one line.
    pub headline: String,
    /// What stands out, what costs most first.
    pub findings: Vec<Finding>,
    /// What was looked at and does not stand out, or carries no verdict.
    pub remarks: Vec<String>,
}

/// Something that stands out.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// What.
    pub text: String,
    /// By what it is held.
    pub evidence: String,
    /// Seconds that sessions waited beyond what they would have anyway.
    pub cost_s: f64,
}

/// Seconds of one kind.
#[derive(Debug, Default)]
struct Side {
    count: usize,
    sum: Step,
    /// When they were.
    spans: Vec<Span>,
    /// 99th percentiles of extension waits, of seconds that have some.
    p99s: Vec<Duration>,
    /// How often each event was seen, and in how many seconds.
    events: BTreeMap<String, (u64, usize)>,
}

/// Judges a recording.
#[must_use]
pub fn verdict(timeline: &Timeline) -> Verdict {
    let mut verdict = Verdict::default();
    let (outside, phases) = sides(timeline);
    for (phase, inside) in &phases {
        verdict.compare_extension(timeline, *phase, inside, &outside);
        verdict.compare_events(*phase, inside, &outside);
        verdict.compare_sweep(*phase, inside, &outside);
    }
    verdict.find_slow_seconds(timeline);
    verdict.find_long_sweeps(timeline);
    sessions::find(&mut verdict, timeline);
    if phases.is_empty() {
        verdict
            .remarks
            .push("no checkpoint wrote or synced anything while it was recorded".to_owned());
    }
    verdict.findings.sort_by(|one, other| other.cost_s.total_cmp(&one.cost_s));
    verdict.headline = match verdict.findings.first() {
        Some(finding) => sentence(&finding.text),
        None => "Nothing stands out".to_owned(),
    };
    verdict
}

/// The seconds outside of checkpoints, and those of each phase.
fn sides(timeline: &Timeline) -> (Side, BTreeMap<Phase, Side>) {
    let (mut outside, mut phases) = (Side::default(), BTreeMap::<Phase, Side>::new());
    for second in &timeline.seconds {
        let span = span_of(second);
        let length = span.to_us.saturating_sub(span.from_us);
        let is_near = |phase: &&PhaseSpan| phase.and_behind().overlap_us(span) > 0;
        if !timeline.phases.iter().any(|phase| is_near(&phase)) {
            outside.add(second);
            continue;
        }
        let is_within = |which: Phase| {
            let own = timeline.phases.iter().filter(|phase| phase.phase == which);
            let touched = own.filter(|phase| phase.span.overlap_us(span) > 0);
            touched.map(|phase| phase.and_behind().overlap_us(span)).sum::<i64>() * 2 >= length
        };
        // Where the second behind the writing is one of syncing, it is the syncing's.
        if let Some(phase) = [Phase::Sync, Phase::Write].into_iter().find(|phase| is_within(*phase))
        {
            phases.entry(phase).or_default().add(second);
        }
    }
    (outside, phases)
}

impl PhaseSpan {
    fn and_behind(&self) -> Span {
        Span { to_us: self.span.to_us.saturating_add(1_000_000), ..self.span }
    }
}

impl Side {
    fn add(&mut self, second: &Second) {
        self.count += 1;
        self.spans.push(span_of(second));
        self.sum.add(second);
        let waits = second.extension.as_ref().map(|extension| &extension.waits);
        self.p99s.extend(waits.filter(|waits| waits.count() > 0).map(|waits| waits.quantile(0.99)));
        let mut seen = HashSet::new();
        for row in second.waits.rows.iter().filter(|row| row.group == Group::Database) {
            let (samples, seconds) = self.events.entry(row.event.clone()).or_default();
            *samples = samples.saturating_add(row.samples);
            *seconds += usize::from(seen.insert(&row.event));
        }
    }

    /// Sessions that were at each event, on average.
    fn sessions(&self, class_and_event: impl Fn(&str, &str) -> bool) -> f64 {
        let of_clients = self.sum.waits.iter().filter(|((group, ..), _)| *group == Group::Database);
        let found = of_clients.filter(|((_, class, event), _)| class_and_event(class, event));
        found.fold(0.0, |sum, (_, seconds)| sum + seconds) / self.sum.seconds().max(1e-9)
    }

    /// A quantile of the seconds' 99th percentiles.
    fn p99_of_seconds(&self, share: f64) -> Duration {
        let mut sorted = self.p99s.clone();
        sorted.sort_unstable();
        let place = (share * sorted.len() as f64) as usize;
        sorted.get(place.min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
    }
}

impl Verdict {
    /// Whether a finding is about an event already.
    fn mentions(&self, event: &str) -> bool {
        self.findings.iter().any(|finding| finding.text.contains(event))
    }

    fn compare_extension(
        &mut self,
        timeline: &Timeline,
        phase: Phase,
        inside: &Side,
        outside: &Side,
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
                "too little to compare waits to extend relations: {} in {} s {during}, {} in {} s outside of \
                 checkpoints ({WAITS_MIN} on each side are needed, {INSIDE_MIN} s inside and {OUTSIDE_MIN} s outside)",
                waits.count(), inside.count, others.count(), outside.count
            ));
            return;
        }
        let (p99, before) = (waits.quantile(0.99), others.quantile(0.99));
        let ratio = p99.as_secs_f64() / before.as_secs_f64().max(1e-9);
        let usual = outside.p99_of_seconds(0.9);
        let slow = slow_spans(timeline, usual);
        let is_slow = |span: &&Span| slow.iter().any(|slow| slow.overlap_us(**span) > 0);
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
            text.push_str(&format!("; {share} of that time is on {}", timeline.name(first)));
        }
        self.findings.push(Finding {
            text,
            evidence: format!(
                "{figures}; somebody waited longer than {} in {above} of the {} seconds",
                units::duration(usual),
                inside.count
            ),
            cost_s: total - rate * inside.sum.seconds(),
        });
    }

    fn compare_events(&mut self, phase: Phase, inside: &Side, outside: &Side) {
        if outside.count < OUTSIDE_MIN {
            return;
        }
        let has_extension = inside.sum.extension.is_some();
        for (event, (samples, seconds)) in &inside.events {
            // Exact waits say it better; work is no wait.
            if event == "CPU*"
                || event == "Lock:extend" && has_extension
                || ASKED.contains(&event.as_str())
            {
                continue;
            }
            let is_it = |_: &str, other: &str| other == event;
            let (now, before) = (inside.sessions(is_it), outside.sessions(is_it));
            if *samples < SAMPLES_MIN || *seconds < 2 || now < 0.5 || now < FACTOR_MIN * before {
                continue;
            }
            let text = match before > 0.005 {
                true => format!("{event} rises {} {}", factor(now / before), during(phase)),
                false => format!("{event} is waited for {}, and hardly ever else", during(phase)),
            };
            self.findings.push(Finding {
                text,
                evidence: format!(
                    "{now:.1} sessions on average in {} s, {before:.2} outside of checkpoints in {} s; seen \
                     {samples} times",
                    inside.count, outside.count
                ),
                cost_s: (now - before) * inside.sum.seconds(),
            });
        }
    }

    fn compare_sweep(&mut self, phase: Phase, inside: &Side, outside: &Side) {
        let enough =
            |side: &Side| side.sum.sweep.is_some_and(|sweep| sweep.allocations >= ALLOCATIONS_MIN);
        let (Some(now), Some(before)) = (inside.sum.examined_each(), outside.sum.examined_each())
        else {
            return;
        };
        if enough(inside) && enough(outside) && now >= 5.0 && now >= FACTOR_MIN * before {
            self.findings.push(Finding {
                text: format!(
                    "the sweep looks at {} as many buffers for one {}",
                    factor(now / before.max(1e-3)),
                    during(phase)
                ),
                evidence: format!("{now:.1} buffers, {before:.1} outside of checkpoints"),
                cost_s: 0.0,
            });
        }
    }

    fn find_slow_seconds(&mut self, timeline: &Timeline) {
        let mut p99s = Vec::new();
        for second in &timeline.seconds {
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
        let apart = slow.iter().filter(|(_, second)| !is_in_checkpoint(timeline, second));
        let (number, in_checkpoints) = (slow.len(), slow.len() - apart.clone().count());
        // Of those in checkpoints, the phases' own findings say more.
        let waited: Duration =
            apart.filter_map(|(_, second)| Some(second.extension.as_ref()?.waits.total())).sum();
        self.findings.push(Finding {
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
        });
    }

    fn find_long_sweeps(&mut self, timeline: &Timeline) {
        let mut whole = Step::default();
        timeline.seconds.iter().for_each(|second| whole.add(second));
        let allocations = whole.sweep.map_or(0, |sweep| sweep.allocations);
        match whole.examined_each() {
            Some(each) if allocations >= ALLOCATIONS_MIN && each >= 10.0 => {
                self.findings.push(Finding {
                    text: format!("the sweep looks at {each:.0} buffers to find one"),
                    evidence: format!(
                        "{allocations} handed out; nearly everything in shared_buffers is in use"
                    ),
                    cost_s: 0.0,
                });
            }
            _ => {}
        }
    }
}

fn is_in_checkpoint(timeline: &Timeline, second: &Second) -> bool {
    let span = span_of(second);
    timeline.phases.iter().any(|phase| phase.span.overlap_us(span) > 0)
}

fn span_of(second: &Second) -> Span {
    let length = i64::try_from(second.elapsed_us).unwrap_or(i64::MAX);
    Span { from_us: second.at_us, to_us: second.at_us.saturating_add(length) }
}

/// When somebody waited longer than usual to extend a relation: a second's longest wait ended in it.
fn slow_spans(timeline: &Timeline, usual: Duration) -> Vec<Span> {
    let slow = timeline.seconds.iter().filter_map(|second| {
        let longest = second.extension.as_ref()?.waits.max();
        let us = i64::try_from(longest.as_micros()).unwrap_or(i64::MAX);
        let to_us = span_of(second).to_us;
        (longest > usual).then_some(Span { from_us: to_us.saturating_sub(us), to_us })
    });
    slow.collect()
}

fn during(phase: Phase) -> &'static str {
    match phase {
        Phase::Write => "while buffers are written",
        _ => "while files are synced",
    }
}

fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
pub(crate) mod tests;
