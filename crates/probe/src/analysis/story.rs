//! A recording as a story of at most three paragraphs: what checkpoints did, what waiting to extend
//! relations cost, and how the clock sweep found buffers. A paragraph that has nothing to report is
//! one sentence.
//!
//! The paragraphs describe, in the order of time, what findings compare: they claim no causes.

use std::time::Duration;

use super::{
    summary::{median, second_span},
    units::{self, percent},
    window::{PhaseSpan, RecordingWindow, TimeBucket},
};
use crate::{
    checkpoints::CheckpointPhase,
    recorder::{RecordedSecond, is_storage_wait, sessions},
};

/// The subject of a paragraph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoryTopic {
    /// Checkpoints and their phases.
    Checkpoints,
    /// Waits for the lock to extend a relation.
    Extension,
    /// The search for buffers to replace.
    ClockSweep,
}

/// Full sentences about one subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoryParagraph {
    /// Its subject.
    pub topic: StoryTopic,
    /// The sentences, on one line.
    pub text: String,
    /// Whether there is something to tell; otherwise the text is one sentence that says so.
    pub has_news: bool,
}

/// Minimum length of a sync phase that is reported.
const SYNC_MIN_US: i64 = 1_000_000;
/// Number of waiting sessions by which a reported checkpoint's seconds exceed the usual.
const WAITING_MIN: f64 = 0.5;
/// Minimum length of the longest wait to extend a relation that is reported.
const EXTENSION_MIN: Duration = Duration::from_millis(100);
/// Number of sessions that wait to extend a relation, on average over a second, from which it
/// is reported.
const EXTENDING_MIN: f64 = 1.0;
/// Minimum number of buffers examined per allocation that is reported, and of allocations in that
/// second.
const EXAMINED_MIN: f64 = 5.0;
const ALLOCATIONS_MIN: u64 = 100;

/// Tells the story of a recording: its checkpoints, waits to extend relations, and clock sweep.
pub fn story(window: &RecordingWindow) -> [StoryParagraph; 3] {
    let paragraph = |topic, (text, has_news)| StoryParagraph { topic, text, has_news };
    [
        paragraph(StoryTopic::Checkpoints, checkpoints(window)),
        paragraph(StoryTopic::Extension, extension(window)),
        paragraph(StoryTopic::ClockSweep, clock_sweep(window)),
    ]
}

fn length_us(phase: &PhaseSpan) -> i64 {
    phase.span.to_us.saturating_sub(phase.span.from_us).max(0)
}

fn micros(us: i64) -> String {
    units::micros(us.max(0).cast_unsigned())
}

/// Formats a number with separators: `13,046`.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn counted(number: u64, one: &str, several: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{} {several}", thousands(number)) }
}

fn checkpoints(window: &RecordingWindow) -> (String, bool) {
    let of = |which| window.phases.iter().filter(move |phase| phase.phase == which);
    let all: Vec<_> = of(CheckpointPhase::Checkpoint).collect();
    let Some(longest) = all.iter().max_by_key(|phase| length_us(phase)) else {
        return ("No checkpoint ran while this was recorded.".to_owned(), false);
    };
    let within = |which| {
        let parts = of(which).filter(|part| part.span.overlap_us(longest.span) > 0);
        parts.map(length_us).sum::<i64>()
    };
    let (write_us, sync_us) = (within(CheckpointPhase::Write), within(CheckpointPhase::Sync));
    let is_in = |second: &&RecordedSecond| second_span(second).overlap_us(longest.span) > 0;
    let values = |inside: bool| -> Vec<f64> {
        let seconds = window.seconds.iter().filter(|second| is_in(second) == inside);
        seconds.map(|second| sessions(second, |_, event| is_storage_wait(event))).collect()
    };
    let (during, outside) = (values(true), values(false));
    let most = during.iter().copied().fold(0.0, f64::max);
    let usual = median(outside.iter().copied());
    let number = match all.len() {
        1 => "A checkpoint ran".to_owned(),
        count => format!("{} ran; the longest took", counted(count as u64, "", "checkpoints")),
    };
    let took = if longest.is_open {
        "its end was not recorded".to_owned()
    } else {
        format!("it ended at {}", units::time_of_day(longest.span.to_us))
    };
    let has_news = sync_us >= SYNC_MIN_US || median(during.into_iter()) >= usual + WAITING_MIN;
    if !has_news {
        let length = micros(length_us(longest));
        let text = match all.len() {
            1 => format!("A checkpoint ran for {length}, and sessions waited no more than usual."),
            _ => format!("{number} {length}, and sessions waited no more than usual."),
        };
        return (text, false);
    }
    let buffers = window
        .phases
        .iter()
        .filter(|phase| phase.span.overlap_us(longest.span) > 0)
        .find_map(|phase| phase.buffers)
        .map_or_else(|| "buffers".to_owned(), |count| counted(count, "buffer", "buffers"));
    let several = match all.len() {
        1 => String::new(),
        count => format!(" It was the longest of {count}."),
    };
    let wrote = match write_us {
        0 => String::new(),
        us => format!("wrote {buffers} for {}, then ", micros(us)),
    };
    let mut text = format!(
        "At {} a checkpoint began: it {wrote}synced files for {}, and {took}.{several}",
        units::time_of_day(longest.span.from_us),
        micros(sync_us)
    );
    if outside.is_empty() {
        text.push_str(&format!(
            " Meanwhile up to {most:.1} sessions waited for files, for the WAL or to extend a relation."
        ));
    } else {
        text.push_str(&format!(
            " Meanwhile up to {most:.1} sessions waited for files, for the WAL or to extend a \
             relation, and {usual:.1} in the median second without it."
        ));
    }
    (text, true)
}

fn extension(window: &RecordingWindow) -> (String, bool) {
    let mut whole = TimeBucket::default();
    window.seconds.iter().for_each(|second| whole.add(second));
    let extending = |second: &RecordedSecond| sessions(second, |_, event| event == "Lock:extend");
    let most = window.seconds.iter().map(extending).fold(0.0, f64::max);
    let Some(traced) = whole.extension.filter(|traced| traced.waits.count() > 0) else {
        return match most {
            0.0 => ("No session waited to extend a relation.".to_owned(), false),
            most => (
                format!(
                    "Up to {most:.1} sessions waited to extend relations, which was not traced."
                ),
                most >= EXTENDING_MIN,
            ),
        };
    };
    let waits = &traced.waits;
    let count = counted(waits.count(), "time", "times");
    if waits.max() < EXTENSION_MIN && most < EXTENDING_MIN {
        let text = format!(
            "Sessions waited {count} to extend relations, at most {}.",
            units::duration(waits.max())
        );
        return (text, false);
    }
    // The seconds that had a tenth of the longest wait.
    let is_slow = |second: &&RecordedSecond| {
        second.extension.as_ref().is_some_and(|of| of.waits.max() * 10 >= waits.max())
    };
    let slow: Vec<_> = window.seconds.iter().filter(is_slow).collect();
    let from_us = slow.first().map_or(0, |second| {
        let longest = second.extension.as_ref().map_or(Duration::ZERO, |of| of.waits.max());
        let longest_us = i64::try_from(longest.as_micros()).unwrap_or(i64::MAX);
        second_span(second).to_us.saturating_sub(longest_us).min(second.at_us)
    });
    let to_us = slow.last().map_or(0, |second| second_span(second).to_us);
    let on =
        traced.relations.iter().max_by_key(|of| of.total_us).map_or_else(String::new, |first| {
            let share = percent(first.total_us as f64 / 1e6, waits.total().as_secs_f64());
            format!("; {share} of that time was on {}", window.relation_name(first))
        });
    let holds = match traced.holds.count() {
        0 => String::new(),
        _ => format!(
            " Those who had the lock had it for {} in the median, and {} at most: waits and holds \
             are measured apart.",
            units::duration(traced.holds.quantile(0.5)),
            units::duration(traced.holds.max())
        ),
    };
    let missed = window.lost.locks + window.lost.no_start + window.lost.skipped;
    let complete = match missed {
        0 => "No wait was missed.".to_owned(),
        _ => format!("{} missed.", counted(missed, "lock was", "locks were")),
    };
    let text = format!(
        "Between {} and {} sessions waited long to extend relations: up to {most:.1} at once, and \
         {} at most. In all they waited {count}, {} in the median and {} in sum{on}.{holds} {complete}",
        units::time_of_day(from_us),
        units::time_of_day(to_us),
        units::duration(waits.max()),
        units::duration(waits.quantile(0.5)),
        units::duration(waits.total())
    );
    (text, true)
}

fn clock_sweep(window: &RecordingWindow) -> (String, bool) {
    let mut whole = TimeBucket::default();
    window.seconds.iter().for_each(|second| whole.add(second));
    let Some(sweep) = whole.sweep else {
        return ("The clock sweep was not sampled.".to_owned(), false);
    };
    let allocations = counted(sweep.allocations, "buffer was", "buffers were");
    let Some(each) = whole.examined_per_allocation() else {
        return ("No buffer was allocated.".to_owned(), false);
    };
    if sweep.examined == 0 {
        let text = format!("{allocations} allocated, all of them free: no clock sweep was needed.");
        return (text, false);
    }
    let rates: Vec<(f64, &RecordedSecond)> = window
        .seconds
        .iter()
        .filter_map(|second| {
            let sweep = second.sweep.filter(|sweep| sweep.allocations >= ALLOCATIONS_MIN)?;
            Some((sweep.examined as f64 / sweep.allocations as f64, second))
        })
        .collect();
    let worst = rates.iter().max_by(|one, other| one.0.total_cmp(&other.0));
    let Some((most, second)) = worst.filter(|(most, _)| *most >= EXAMINED_MIN) else {
        let text = format!(
            "{allocations} allocated, and the clock sweep examined {each:.1} for each: it found \
             buffers to replace at once."
        );
        return (text, false);
    };
    let usual = median(rates.iter().map(|(rate, _)| *rate));
    let passes = sweep.examined as f64 / f64::from(sweep.buffers.max(1));
    let text = format!(
        "In the second at {} the clock sweep examined {most:.0} buffers for each that it replaced, \
         and {usual:.1} in the median second: most buffers had been used so lately that it had to \
         lower their usage counts first. {allocations} allocated in all, and {each:.1} examined \
         for each; the hand of the clock went {passes:.1} times around the {} buffers.",
        units::time_of_day(second.at_us),
        thousands(u64::from(sweep.buffers))
    );
    (text, true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::{FlightRecord, FlightRecording, SweepTotals};

    fn texts(recording: &FlightRecording) -> [(String, bool); 3] {
        let window = RecordingWindow::from_recording(recording);
        story(&window).map(|paragraph| (paragraph.text, paragraph.has_news))
    }

    #[test]
    fn quiet_recording_has_one_sentence_per_subject() {
        let quiet = [
            "No checkpoint ran while this was recorded.",
            "No session waited to extend a relation.",
            "The clock sweep was not sampled.",
        ];
        let quiet = quiet.map(|text| (text.to_owned(), false));
        assert_eq!(texts(&FlightRecording::default()), quiet);
    }

    #[test]
    fn clock_sweep_is_told_per_buffer_that_it_replaces() {
        let second = |index: i64, examined| {
            FlightRecord::Second(RecordedSecond {
                at_us: index * 1_000_000,
                elapsed_us: 1_000_000,
                sweep: Some(SweepTotals {
                    buffers: 16_384,
                    examined,
                    allocations: 1000,
                    ..SweepTotals::default()
                }),
                ..RecordedSecond::default()
            })
        };
        let sweep = |records| {
            let [_, _, sweep] = texts(&FlightRecording { records, ..FlightRecording::default() });
            sweep
        };
        let (text, has_news) = sweep((0..10).map(|index| second(index, 1500)).collect());
        assert_eq!(
            (&*text, has_news),
            (
                "10,000 buffers were allocated, and the clock sweep examined 1.5 for each: it found \
             buffers to replace at once.",
                false
            )
        );
        let examined = |index| if index == 7 { 31_000 } else { 2000 };
        let (text, has_news) = sweep((0..10).map(|index| second(index, examined(index))).collect());
        assert!(
            has_news
                && text.starts_with(
                    "In the second at 00:00:07 the clock sweep examined 31 buffers for each that it \
                     replaced, and 2.0 in the median second"
                )
                && text.ends_with("the hand of the clock went 3.0 times around the 16,384 buffers."),
            "{text}"
        );
    }

    #[test]
    fn thousands_are_separated() {
        let all = [0, 999, 1000, 13_046, 1_234_567].map(thousands);
        assert_eq!(all, ["0", "999", "1,000", "13,046", "1,234,567"]);
    }
}
