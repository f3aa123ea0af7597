//! A recording as lines for a person.

use std::{collections::BTreeMap, fmt::Write as _};

use howdah_probe::{checkpoints::Phase, recorder::Spread, waits::Group};

use crate::{
    timeline::{PhaseSpan, Step, Timeline},
    units::{self, percent},
    verdict::verdict,
};

/// The verdict, and what it stands on.
#[must_use]
pub fn text(timeline: &Timeline) -> String {
    let verdict = verdict(timeline);
    let mut text = format!("{}.\n", verdict.headline);
    // Writing to a String cannot fail, here and below.
    for finding in &verdict.findings {
        let _ = writeln!(text, "  - {}\n    {}", finding.text, finding.evidence);
    }
    for remark in &verdict.remarks {
        let _ = writeln!(text, "  ({remark})");
    }
    text.push('\n');
    text.push_str(&facts(timeline));
    text
}

/// All but the verdict.
pub(crate) fn facts(timeline: &Timeline) -> String {
    let mut text = String::new();
    about(&mut text, timeline);
    let mut whole = Step::default();
    timeline.seconds.iter().for_each(|second| whole.add(second));
    checkpoints(&mut text, timeline);
    extension(&mut text, timeline, &whole);
    sweep(&mut text, &whole);
    waits(&mut text, &whole);
    exact(&mut text, timeline);
    events(&mut text, timeline);
    missed(&mut text, timeline);
    text
}

const CHECKPOINTS_SHOWN: usize = 20;
const ROWS_SHOWN: usize = 10;
const EVENTS_SHOWN: usize = 30;

fn about(text: &mut String, timeline: &Timeline) {
    let span = timeline.span();
    let recorded: u64 = timeline.seconds.iter().map(|second| second.elapsed_us / 1000).sum();
    let (from, to) = (units::moment(span.from_us), units::moment(span.to_us));
    let all = span.to_us.saturating_sub(span.from_us) as f64 / 1e6;
    let _ = writeln!(
        text,
        "{from} to {to}: {:.0} s, {:.0} s of them recorded",
        all,
        recorded as f64 / 1e3
    );
    for started in &timeline.started {
        let (major, process) = (started.major, started.postmaster);
        let _ = writeln!(text, "PostgreSQL {major}, process {process}, {}", started.data_dir);
    }
    if let Some(started) = timeline.started.last() {
        for source in &started.sources {
            let from = source.source.map_or("none", |source| source.as_str());
            let lacks =
                if source.lacks.is_empty() { String::new() } else { format!("  {}", source.lacks) };
            let _ = writeln!(text, "  {:<12} {from:<7}{lacks}", source.figure);
        }
    }
}

fn checkpoints(text: &mut String, timeline: &Timeline) {
    let whole = timeline.phases.iter().filter(|phase| phase.phase == Phase::Checkpoint);
    let whole: Vec<_> = whole.collect();
    if whole.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "\n{:<10} {:>9} {:>9} {:>9} {:>9}",
        "checkpoint", "took", "write", "sync", "buffers"
    );
    for checkpoint in whole.iter().take(CHECKPOINTS_SHOWN) {
        let within = |phase: Phase| {
            let found = timeline.phases.iter().filter(|other| other.phase == phase);
            let us: i64 = found.map(|other| other.span.overlap_us(checkpoint.span)).sum();
            units::micros(us.cast_unsigned())
        };
        let took = took(checkpoint);
        let buffers =
            checkpoint.buffers.map_or_else(|| "-".to_owned(), |buffers| buffers.to_string());
        let _ = writeln!(
            text,
            "{:<10} {took:>9} {:>9} {:>9} {buffers:>9}",
            units::time_of_day(checkpoint.span.from_us),
            within(Phase::Write),
            within(Phase::Sync)
        );
    }
    more(text, whole.len(), CHECKPOINTS_SHOWN, "checkpoints");
}

fn took(phase: &PhaseSpan) -> String {
    let us = phase.span.to_us.saturating_sub(phase.span.from_us).max(0).cast_unsigned();
    if phase.is_open { "no end".to_owned() } else { units::micros(us) }
}

fn extension(text: &mut String, timeline: &Timeline, whole: &Step) {
    let Some(extension) = &whole.extension else { return };
    let (waits, holds) = (&extension.waits, &extension.holds);
    let _ = writeln!(
        text,
        "\nextension locks: {} waited for, {} taken at once; held {} in all",
        waits.count(),
        extension.at_once,
        units::duration(holds.total())
    );
    if waits.count() == 0 {
        return;
    }
    let [p50, p99, max, total] =
        [waits.quantile(0.5), waits.quantile(0.99), waits.max(), waits.total()]
            .map(units::duration);
    let _ = writeln!(text, "  wait: p50 {p50}, p99 {p99}, longest {max}, in all {total}");
    for of in extension.relations.iter().take(ROWS_SHOWN) {
        let share = percent(of.total_us as f64 / 1e6, waits.total().as_secs_f64());
        let _ = writeln!(
            text,
            "  {share:>6} {:>9} {:>9} waits, longest {:>8}  {}",
            units::micros(of.total_us),
            of.waits,
            units::micros(of.max_us),
            timeline.name(of)
        );
    }
}

fn sweep(text: &mut String, whole: &Step) {
    let Some(sweep) = &whole.sweep else { return };
    let passes = sweep.examined as f64 / f64::from(sweep.buffers.max(1));
    let each = whole.examined_each().map_or_else(|| "-".to_owned(), |each| format!("{each:.2}"));
    let _ = writeln!(
        text,
        "\nclock sweep: {} buffers handed out, {each} looked at for each, {passes:.1} passes",
        sweep.allocations
    );
}

fn waits(text: &mut String, whole: &Step) {
    let of_clients = whole.waits.iter().filter(|((group, ..), _)| *group == Group::Database);
    let mut events: Vec<_> = of_clients.map(|((_, _, event), seconds)| (event, *seconds)).collect();
    events.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    let all: f64 = events.iter().map(|(_, seconds)| seconds).sum();
    let length = whole.seconds().max(1e-9);
    let _ = writeln!(text, "\ndatabase time: {all:.1} s, {:.2} sessions on average", all / length);
    for (event, seconds) in events.iter().take(ROWS_SHOWN) {
        let _ = writeln!(
            text,
            "  {:>6} {:>9.2} sessions  {event}",
            percent(*seconds, all),
            seconds / length
        );
    }
    more(text, events.len(), ROWS_SHOWN, "events");
}

fn exact(text: &mut String, timeline: &Timeline) {
    let mut operations = BTreeMap::<_, (Spread, BTreeMap<String, u64>)>::new();
    for exact in &timeline.exact {
        let of = operations.entry((&exact.figure, &exact.operation)).or_default();
        of.0.merge(&exact.calls);
        for (subject, (_, us)) in &exact.subjects {
            let sum = of.1.entry(timeline.subject(subject)).or_default();
            *sum = sum.saturating_add(*us);
        }
    }
    if operations.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "\n{:<15} {:>8} {:>9} {:>9} {:>9}  most on",
        "exact calls", "calls", "p50", "p99", "longest"
    );
    for ((figure, operation), (calls, subjects)) in operations {
        let [p50, p99, max] =
            [calls.quantile(0.5), calls.quantile(0.99), calls.max()].map(units::duration);
        let first = subjects.iter().max_by_key(|(_, us)| **us);
        let first = first.map_or("", |(subject, _)| subject.as_str());
        let name = format!("{figure} {operation}");
        let _ =
            writeln!(text, "{name:<15} {:>8} {p50:>9} {p99:>9} {max:>9}  {first}", calls.count());
    }
}

fn events(text: &mut String, timeline: &Timeline) {
    let fired = timeline.fired.iter().map(|fired| (fired.at_us, format!("trigger {fired}")));
    let notes = timeline.notes.iter().map(|note| (note.at_us, note.text.clone()));
    let mut all: Vec<_> = fired.chain(notes).collect();
    all.sort();
    if all.is_empty() {
        return;
    }
    text.push('\n');
    for (at_us, line) in all.iter().take(EVENTS_SHOWN) {
        let _ = writeln!(text, "{}  {line}", units::time_of_day(*at_us));
    }
    more(text, all.len(), EVENTS_SHOWN, "events");
    for (number, episode) in timeline.episodes().iter().enumerate() {
        let (number, from) = (number + 1, units::moment(episode.from_us));
        let _ = writeln!(text, "episode {number} is kept from {from} (--episode {number})");
    }
}

fn missed(text: &mut String, timeline: &Timeline) {
    text.push('\n');
    let missed = timeline.lost.in_words();
    if missed.is_empty() && timeline.unread == 0 {
        text.push_str("nothing was missed\n");
    }
    for (number, what) in missed {
        let _ = writeln!(text, "missed: {number} {what}");
    }
    if timeline.unread > 0 {
        let _ =
            writeln!(text, "missed: {} records that this version does not know", timeline.unread);
    }
    let cpu: u64 = timeline.seconds.iter().map(|second| second.cpu_us).sum();
    let elapsed: u64 = timeline.seconds.iter().map(|second| second.elapsed_us).sum();
    let share = 100.0 * cpu as f64 / elapsed.max(1) as f64;
    let end = timeline.ended.as_ref().map_or("its end was not seen", |ended| &ended.reason);
    let _ = writeln!(
        text,
        "recording cost {share:.2} % of one processor; the file is never larger than {:.1} MB; the end: {end}",
        timeline.max_bytes as f64 / f64::from(1 << 20)
    );
}

fn more(text: &mut String, all: usize, shown: usize, what: &str) {
    if all > shown {
        let _ = writeln!(text, "  and {} more {what}", all - shown);
    }
}
