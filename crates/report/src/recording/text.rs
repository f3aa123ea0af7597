//! A recording as text for people.

use std::{collections::BTreeMap, fmt::Write as _};

use howdah_probe::{
    analysis::{
        PhaseSpan, RecordingWindow, TimeBucket, TimeDimension, TimeShare, WaitCircle,
        database_time_by, deadlocks, story, summarize,
        units::{self, percent},
    },
    checkpoints::CheckpointPhase,
    recorder::LogHistogram,
    waits::TimeCategory,
};

/// Width of the story's lines, in characters.
const STORY_WIDTH: usize = 100;

/// Renders the headline, the story, the findings, and the details.
pub fn text(window: &RecordingWindow) -> String {
    let summary = summarize(window);
    let mut text = format!("{}.\n\n", summary.headline);
    for paragraph in story(window) {
        write_paragraph(&mut text, &paragraph.text);
        if paragraph.has_news {
            text.push('\n');
        }
    }
    if !text.ends_with("\n\n") {
        text.push('\n');
    }
    // Writing to a String cannot fail, here and below.
    for finding in &summary.findings {
        let _ = writeln!(text, "  - {}\n    {}", finding.text, finding.evidence);
        for culprit in &finding.culprits {
            let _ = writeln!(text, "    {}", culprit.line());
        }
    }
    for remark in &summary.remarks {
        let _ = writeln!(text, "  ({remark})");
    }
    text.push('\n');
    text.push_str(&details(window));
    text
}

/// Writes a text in lines of at most [`STORY_WIDTH`] characters.
fn write_paragraph(text: &mut String, paragraph: &str) {
    let mut length = 0;
    for part in paragraph.split(' ') {
        let part_length = part.chars().count();
        if length > 0 && length + 1 + part_length > STORY_WIDTH {
            text.push('\n');
            length = 0;
        } else if length > 0 {
            text.push(' ');
            length += 1;
        }
        text.push_str(part);
        length += part_length;
    }
    text.push('\n');
}

/// Renders everything except the summary.
pub(super) fn details(window: &RecordingWindow) -> String {
    let mut text = String::new();
    write_overview(&mut text, window);
    let mut whole = TimeBucket::default();
    window.seconds.iter().for_each(|second| whole.add(second));
    write_checkpoints(&mut text, window);
    write_extension(&mut text, window, &whole);
    write_sweep(&mut text, &whole);
    write_waits(&mut text, &whole);
    write_database_time(&mut text, window);
    write_deadlocks(&mut text, window);
    write_traced_calls(&mut text, window);
    write_events(&mut text, window);
    write_losses(&mut text, window);
    text
}

const CHECKPOINTS_SHOWN: usize = 20;
const ROWS_SHOWN: usize = 10;
const EVENTS_SHOWN: usize = 30;
const DEADLOCKS_SHOWN: usize = 20;

fn write_overview(text: &mut String, window: &RecordingWindow) {
    let span = window.span();
    let recorded: u64 = window.seconds.iter().map(|second| second.elapsed_us / 1000).sum();
    let (from, to) = (units::timestamp(span.from_us), units::timestamp(span.to_us));
    let all = span.to_us.saturating_sub(span.from_us) as f64 / 1e6;
    let _ = writeln!(
        text,
        "{from} to {to}: {:.0} s, {:.0} s of them recorded",
        all,
        recorded as f64 / 1e3
    );
    for started in &window.started {
        let (major, process) = (started.major, started.postmaster);
        let _ = writeln!(text, "PostgreSQL {major}, process {process}, {}", started.data_dir);
    }
    if let Some(started) = window.started.last() {
        for source in &started.sources {
            let from = source.source.map_or("none", |source| source.as_str());
            let limitation = if source.limitation.is_empty() {
                String::new()
            } else {
                format!("  {}", source.limitation)
            };
            let _ = writeln!(text, "  {:<12} {from:<7}{limitation}", source.metric);
        }
    }
}

fn write_checkpoints(text: &mut String, window: &RecordingWindow) {
    let whole = window.phases.iter().filter(|phase| phase.phase == CheckpointPhase::Checkpoint);
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
        let within = |phase: CheckpointPhase| {
            let found = window.phases.iter().filter(|other| other.phase == phase);
            let us: i64 = found.map(|other| other.span.overlap_us(checkpoint.span)).sum();
            units::micros(us.cast_unsigned())
        };
        let took = phase_duration(checkpoint);
        let buffers =
            checkpoint.buffers.map_or_else(|| "-".to_owned(), |buffers| buffers.to_string());
        let _ = writeln!(
            text,
            "{:<10} {took:>9} {:>9} {:>9} {buffers:>9}",
            units::time_of_day(checkpoint.span.from_us),
            within(CheckpointPhase::Write),
            within(CheckpointPhase::Sync)
        );
    }
    write_omitted(text, whole.len(), CHECKPOINTS_SHOWN, "checkpoints");
}

fn phase_duration(phase: &PhaseSpan) -> String {
    let us = phase.span.to_us.saturating_sub(phase.span.from_us).max(0).cast_unsigned();
    if phase.is_open { "no end".to_owned() } else { units::micros(us) }
}

fn write_extension(text: &mut String, window: &RecordingWindow, whole: &TimeBucket) {
    let Some(extension) = &whole.extension else { return };
    let (waits, holds) = (&extension.waits, &extension.holds);
    let _ = writeln!(
        text,
        "\nextension locks: {} with waits, {} acquired at once",
        waits.count(),
        extension.conditional,
    );
    for (name, times) in [("wait", waits), ("hold", holds)] {
        if times.count() == 0 {
            continue;
        }
        let [min, mean, p50, p99, max, total] = [
            times.min(),
            times.mean(),
            times.quantile(0.5),
            times.quantile(0.99),
            times.max(),
            times.total(),
        ]
        .map(units::duration);
        let _ = writeln!(
            text,
            "  {name}: min {min}, mean {mean}, p50 {p50}, p99 {p99}, longest {max}, total {total}"
        );
    }
    if waits.count() == 0 {
        return;
    }
    // The holds of locks that were acquired at once are not separate, and have no wait.
    if holds.count() == waits.count() {
        let both = units::duration(waits.mean() + holds.mean());
        let _ = writeln!(text, "  both: mean {both}");
    }
    for of in extension.relations.iter().take(ROWS_SHOWN) {
        let share = percent(of.total_us as f64 / 1e6, waits.total().as_secs_f64());
        let _ = writeln!(
            text,
            "  {share:>6} {:>9} {:>9} waits, longest {:>8}  {}",
            units::micros(of.total_us),
            of.waits,
            units::micros(of.max_us),
            window.relation_name(of)
        );
    }
}

fn write_sweep(text: &mut String, whole: &TimeBucket) {
    let Some(sweep) = &whole.sweep else { return };
    let passes = sweep.examined as f64 / f64::from(sweep.buffers.max(1));
    let each =
        whole.examined_per_allocation().map_or_else(|| "-".to_owned(), |each| format!("{each:.2}"));
    let _ = writeln!(
        text,
        "\nclock sweep: {} buffers allocated, {each} examined per allocation, {passes:.1} passes",
        sweep.allocations
    );
}

fn write_waits(text: &mut String, whole: &TimeBucket) {
    let of_clients = whole.waits.iter().filter(|((group, ..), _)| *group == TimeCategory::Database);
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
    write_omitted(text, events.len(), ROWS_SHOWN, "events");
}

/// Writes the database time by statement, user and so on. A dimension with a single value says
/// nothing and is omitted, except for statements.
fn write_database_time(text: &mut String, window: &RecordingWindow) {
    for (dimension, shares) in database_time_by(window) {
        if shares.len() < 2 && dimension != TimeDimension::Statement || shares.is_empty() {
            continue;
        }
        let _ =
            writeln!(text, "\ndatabase time by {}, from one sample a second:", dimension.as_str());
        for TimeShare { name, seconds, share, main_event } in &shares {
            let name = name.as_deref().unwrap_or("(unknown)");
            let _ = writeln!(
                text,
                "  {:>6} {seconds:>9.1} s  {name}  (most in {main_event})",
                percent(*share, 1.0)
            );
        }
    }
}

/// Writes the sessions of each deadlock, with their waits and statements.
fn write_deadlocks(text: &mut String, window: &RecordingWindow) {
    let history = deadlocks(window);
    if history.counted() > 0 {
        text.push_str("\ndeadlocks:\n");
    }
    write_circles(text, &history.deadlocks, "deadlocks");
    for unseen in history.unseen.iter().take(DEADLOCKS_SHOWN) {
        let _ = writeln!(text, "  {}", unseen.line());
    }
    write_omitted(text, history.unseen.len(), DEADLOCKS_SHOWN, "counts");
    if !history.circles.is_empty() {
        text.push_str("\ncircles of waits for which the server counted no deadlock:\n");
    }
    write_circles(text, &history.circles, "circles");
}

fn write_circles(text: &mut String, circles: &[WaitCircle], name: &str) {
    for circle in circles.iter().take(DEADLOCKS_SHOWN) {
        let time = units::time_of_day(circle.span.to_us);
        let _ = writeln!(text, "  {time}  {}", circle.line());
        for member in &circle.members {
            let _ = writeln!(text, "    {}", member.line());
            if !member.statement.is_empty() {
                let _ = writeln!(text, "      `{}`", member.statement);
            }
        }
    }
    write_omitted(text, circles.len(), DEADLOCKS_SHOWN, name);
}

fn write_traced_calls(text: &mut String, window: &RecordingWindow) {
    let mut operations = BTreeMap::<_, (LogHistogram, BTreeMap<String, u64>)>::new();
    for exact in &window.traced_calls {
        let of = operations.entry((&exact.metric, &exact.operation)).or_default();
        of.0.merge(&exact.calls);
        for (subject, (_, us)) in &exact.subjects {
            let sum = of.1.entry(window.subject_name(subject)).or_default();
            *sum = sum.saturating_add(*us);
        }
    }
    if operations.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "\n{:<15} {:>8} {:>9} {:>9} {:>9}  most on",
        "traced calls", "calls", "p50", "p99", "longest"
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

fn write_events(text: &mut String, window: &RecordingWindow) {
    let fired = window.crossings.iter().map(|fired| (fired.at_us, format!("trigger {fired}")));
    let notes = window.notes.iter().map(|note| (note.at_us, note.text.clone()));
    let mut all: Vec<_> = fired.chain(notes).collect();
    all.sort();
    if all.is_empty() {
        return;
    }
    text.push('\n');
    for (at_us, line) in all.iter().take(EVENTS_SHOWN) {
        let _ = writeln!(text, "{}  {line}", units::time_of_day(*at_us));
    }
    write_omitted(text, all.len(), EVENTS_SHOWN, "events");
    for (number, episode) in window.episodes().iter().enumerate() {
        let (number, from) = (number + 1, units::timestamp(episode.from_us));
        let _ = writeln!(text, "episode {number} is retained from {from} (--episode {number})");
    }
}

fn write_losses(text: &mut String, window: &RecordingWindow) {
    text.push('\n');
    let missed = window.lost.descriptions();
    if missed.is_empty() && window.unreadable == 0 {
        text.push_str("nothing was missed\n");
    }
    for (number, what) in missed {
        let _ = writeln!(text, "missed: {number} {what}");
    }
    if window.unreadable > 0 {
        let _ = writeln!(
            text,
            "missed: {} records of kinds unknown to this version",
            window.unreadable
        );
    }
    let cpu: u64 = window.seconds.iter().map(|second| second.cpu_us).sum();
    let elapsed: u64 = window.seconds.iter().map(|second| second.elapsed_us).sum();
    let share = 100.0 * cpu as f64 / elapsed.max(1) as f64;
    let end = window.ended.as_ref().map_or("not recorded", |ended| &ended.reason);
    let _ = writeln!(
        text,
        "recording used {share:.2} % of one processor; the file is limited to {:.1} MB; end: {end}",
        window.max_bytes as f64 / f64::from(1 << 20)
    );
}

fn write_omitted(text: &mut String, all: usize, shown: usize, what: &str) {
    if all > shown {
        let _ = writeln!(text, "  and {} more {what}", all - shown);
    }
}
