//! The page of a flight recording in a headless Chromium.

use std::time::Duration;

use howdah_probe::{
    analysis::RecordingWindow,
    checkpoints::CheckpointPhase,
    recorder::{
        ExtensionTotals, FlightRecord, FlightRecording, HostPressure, NamedRelation, PhaseEnded,
        RecordedCounters, RecordedSecond, RecordedSession, RecordedSessions, RelationWaits,
        StatementText, SweepTotals, WaitRow, WaitSamples,
    },
    waits::TimeCategory,
};
use serde_json::json;

use crate::{browser::Browser, folder};

const START_US: i64 = 1_414_072_716_000_000;

/// A minute in which a checkpoint makes sessions wait to extend a relation for ten seconds, and the
/// clock sweep examines many buffers.
fn recording() -> FlightRecording {
    let statement = StatementText::new(
        "insert into a_table_with_a_rather_long_name (column_one, column_two) values (?, ?)",
        false,
    );
    let relation =
        NamedRelation { database: 5, relation: 1, name: "shop.public.orders".to_owned() };
    let mut records =
        vec![FlightRecord::NamedRelation(relation), FlightRecord::StatementText(statement.clone())];
    for index in 0..60 {
        let (at_us, is_slow) = (START_US + index * 1_000_000, (30..40).contains(&index));
        records.push(FlightRecord::Second(second(at_us, is_slow)));
        let commits = if is_slow { 4 } else { 100 };
        records.push(FlightRecord::Counters(RecordedCounters {
            at_us: at_us + 900_000,
            elapsed_us: 1_000_000,
            commits,
            ..RecordedCounters::default()
        }));
        let (cpu, io) = (Some(1_000), Some(if is_slow { 8_000 } else { 0 }));
        let pressure = HostPressure { at_us, cpu, io, ..HostPressure::default() };
        records.push(FlightRecord::Pressure(pressure));
        records.push(FlightRecord::Sessions(sessions(at_us, statement.id, is_slow)));
    }
    for (phase, depth, from, seconds) in [
        (CheckpointPhase::Sync, 2, 30, 10),
        (CheckpointPhase::Write, 1, 28, 2),
        (CheckpointPhase::Checkpoint, 0, 28, 13),
    ] {
        records.push(FlightRecord::PhaseEnded(PhaseEnded {
            at_us: START_US + from * 1_000_000,
            duration_us: seconds * 1_000_000,
            phase,
            pid: 7,
            depth,
            buffers: Some(3120),
            files: None,
        }));
    }
    FlightRecording { records, ..FlightRecording::default() }
}

fn second(at_us: i64, is_slow: bool) -> RecordedSecond {
    let mut extension = ExtensionTotals::default();
    let (count, us) = if is_slow { (8, 400_000) } else { (95, 100) };
    (0..count).for_each(|_| {
        extension.waits.add(Duration::from_micros(us));
        extension.holds.add(Duration::from_micros(us / 5));
    });
    extension.relations.push(RelationWaits {
        database: 5,
        relation: 1,
        waits: count,
        total_us: count * us,
        max_us: us,
    });
    let events: &[(&str, u64)] = if is_slow {
        &[("CPU*", 20), ("Lock:extend", 500), ("IO:DataFileExtend", 90)]
    } else {
        &[("CPU*", 200), ("Lock:extend", 5)]
    };
    let row = |(event, samples): &(&str, u64)| WaitRow {
        group: TimeCategory::Database,
        kind: "client backend".to_owned(),
        class: event.split(':').next().unwrap_or_default().to_owned(),
        event: (*event).to_owned(),
        samples: *samples,
    };
    let allocations = 1000;
    RecordedSecond {
        at_us,
        elapsed_us: 1_000_000,
        extension: Some(extension),
        sweep: Some(SweepTotals {
            buffers: 16_384,
            examined: allocations * if is_slow { 31 } else { 2 },
            allocations,
            ..SweepTotals::default()
        }),
        waits: WaitSamples { rounds: 100, rows: events.iter().map(row).collect() },
        ..RecordedSecond::default()
    }
}

fn sessions(at_us: i64, statement: u64, is_slow: bool) -> RecordedSessions {
    let mut sessions =
        RecordedSessions { at_us, elapsed_us: 1_000_000, ..RecordedSessions::default() };
    for pid in 31..36 {
        let row = RecordedSession {
            pid,
            kind: sessions.index_of("client backend"),
            application: sessions.index_of("import"),
            state: sessions.index_of("active"),
            wait: sessions.index_of(if is_slow { "Lock:extend" } else { "" }),
            statement,
            ..RecordedSession::default()
        };
        sessions.rows.push(row);
    }
    sessions
}

/// Opens the page at this width.
fn open(test: &str, width: u32) -> Browser {
    let file = folder().join(format!("{test}.html"));
    let window = RecordingWindow::from_recording(&recording());
    std::fs::write(&file, howdah_report::recording::page(&window)).unwrap();
    let mut browser = Browser::start(test);
    browser.resize(width, 900);
    browser.open(&file);
    assert_eq!(browser.problems(&file), [""; 0]);
    browser.screenshot(&folder().join(format!("{test}.png")), true);
    browser
}

/// The smallest size of text in pictures, in pixels of the screen.
const SMALLEST_TEXT: &str = "Math.min(...Array.from(document.querySelectorAll('svg text'), (text) => { \
    const svg = text.ownerSVGElement; const scale = svg.getBoundingClientRect().width / \
    svg.viewBox.baseVal.width; return parseFloat(getComputedStyle(text).fontSize) * scale; }))";

/// Pictures and tables scroll within the page instead of being shrunk or cut.
#[test]
fn recording_is_readable_on_a_phone() {
    let mut browser = open("recording-narrow", 390);
    browser.eval(
        "document.querySelectorAll('details').forEach((details) => { details.open = true; })",
    );
    let width = "[document.documentElement.scrollWidth, document.body.scrollWidth]";
    assert_eq!(browser.eval(width), json!([390, 390]));
    assert!(browser.eval(SMALLEST_TEXT).as_f64().unwrap() >= 10.5);
    let scrolling = "Array.from(document.querySelectorAll('.picture, .table'), (box) => \
        [getComputedStyle(box).overflowX, box.scrollWidth > box.clientWidth || \
        box.firstElementChild.getBoundingClientRect().right <= box.getBoundingClientRect().right])";
    let boxes = browser.eval(scrolling);
    let boxes = boxes.as_array().unwrap();
    assert!(boxes.len() > 4 && boxes.iter().all(|of| *of == json!(["auto", true])), "{boxes:?}");
    let last = "document.querySelector('.picture:last-of-type').scrollWidth";
    assert!(browser.eval(last).as_f64().unwrap() > 390.0);
}

/// Each paragraph has its picture at its side.
#[test]
fn story_is_beside_its_pictures_on_a_wide_page() {
    let mut browser = open("recording-wide", 1280);
    let beside = "Array.from(document.querySelectorAll('.story'), (story) => { const [text, picture] = \
        Array.from(story.children, (child) => child.getBoundingClientRect()); \
        return [text.right <= picture.left, Math.abs(text.top - picture.top) < 20]; })";
    assert_eq!(browser.eval(beside), json!([[true, true], [true, true], [true, true]]));
    let text = browser.eval("document.querySelector('main').textContent");
    let text = text.as_str().unwrap();
    for part in [
        "At 13:59:04 a checkpoint began: it wrote 3,120 buffers for 2.00 s, then synced files for \
         10.0 s, and it ended at 13:59:17.",
        "up to 5.0 at once, and 400 ms at most",
        "on shop.public.orders",
        "examined 31 buffers for each that it replaced, and 2.0 in the median second",
        "commits per second",
        "sessions waiting for locks",
        "host pressure",
    ] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
    assert!(browser.eval(SMALLEST_TEXT).as_f64().unwrap() >= 10.0);
}
