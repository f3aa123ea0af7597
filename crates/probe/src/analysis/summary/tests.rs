//! Tests with recordings that have findings and others that have none.

use std::time::Duration;

use crate::recorder::{
    ExtensionTotals, FlightRecord, FlightRecording, NamedRelation, PhaseEnded, RecordedSecond,
    RelationWaits, SweepTotals, WaitRow, WaitSamples,
};

use super::*;

const START_US: i64 = 1_414_072_716_000_000;

/// A second with 100 sampling rounds.
fn second(index: i64, waits: &[(u64, u64)], events: &[(&str, u64)]) -> RecordedSecond {
    let mut extension = ExtensionTotals::default();
    for (count, us) in waits {
        (0..*count).for_each(|_| extension.waits.add(Duration::from_micros(*us)));
    }
    let total_us = extension.waits.total().as_micros() as u64;
    // One relation has 93 % of the waits.
    for (relation, parts) in [(1, 93), (2, 7)] {
        let (waits, total_us) = (extension.waits.count() * parts / 100, total_us * parts / 100);
        let of = RelationWaits { database: 5, relation, waits, total_us, max_us: total_us };
        extension.relations.push(of);
    }
    let row = |(event, samples): &(&str, u64)| WaitRow {
        group: TimeCategory::Database,
        kind: "client backend".to_owned(),
        class: event.split(':').next().unwrap_or_default().to_owned(),
        event: (*event).to_owned(),
        samples: *samples,
    };
    RecordedSecond {
        at_us: START_US + index * 1_000_000,
        elapsed_us: 1_000_000,
        extension: Some(extension),
        waits: WaitSamples { rounds: 100, rows: events.iter().map(row).collect() },
        cpu_us: 15_000,
        ..RecordedSecond::default()
    }
}

fn phase(phase: CheckpointPhase, depth: u32, from: i64, seconds: u64) -> FlightRecord {
    FlightRecord::PhaseEnded(PhaseEnded {
        at_us: START_US + from * 1_000_000,
        duration_us: seconds * 1_000_000,
        phase,
        pid: 7,
        depth,
        buffers: None,
        files: None,
    })
}

/// A minute with a checkpoint that syncs from second 30 to 40; the arguments build the seconds.
fn minute(
    quiet: impl Fn(i64) -> RecordedSecond,
    syncing: impl Fn(i64) -> RecordedSecond,
) -> FlightRecording {
    let mut records = vec![FlightRecord::NamedRelation(NamedRelation {
        database: 5,
        relation: 1,
        name: "shop.public.orders".to_owned(),
    })];
    for index in 0..60 {
        let second = if (30..40).contains(&index) { syncing(index) } else { quiet(index) };
        records.push(FlightRecord::Second(second));
    }
    records.push(phase(CheckpointPhase::Sync, 2, 30, 10));
    records.push(phase(CheckpointPhase::Checkpoint, 0, 29, 12));
    FlightRecording { records, ..FlightRecording::default() }
}

/// A minute in which waits rise while files are synced.
fn stall() -> FlightRecording {
    minute(
        |index| second(index, &[(95, 100), (5, 1000)], &[("CPU*", 200), ("Lock:extend", 5)]),
        |index| {
            second(
                index,
                &[(8, 400_000)],
                &[("CPU*", 20), ("Lock:extend", 500), ("IO:DataFileExtend", 90)],
            )
        },
    )
}

fn summarize_recording(recording: &FlightRecording) -> RecordingSummary {
    summarize(&RecordingWindow::from_recording(recording))
}

#[test]
fn stall_headline_names_phase_factor_and_relation() {
    let summary = summarize_recording(&stall());
    assert!(
        summary.headline.starts_with("Waits to extend relations rise 4")
            && summary
                .headline
                .ends_with("x while files are synced; 93 % of that time is on shop.public.orders"),
        "{summary:#?}"
    );
    let first = &summary.findings[0];
    assert!(
        first.evidence.contains("p99 400 ms while files are synced (80 waits in 10 s)"),
        "{first:?}"
    );
    assert!(
        first.evidence.contains("a session waited longer than 999 µs in 10 of the 10 seconds"),
        "{first:?}"
    );
    // 80 waits of 0.4 s, less the usual waits.
    assert!((first.cost_s - 31.8).abs() < 0.2, "{first:?}");
    let events: Vec<_> = summary.findings.iter().map(|finding| &*finding.text).collect();
    assert!(events.iter().any(|text| text.starts_with("IO:DataFileExtend appears")), "{events:?}");
    assert!(!events.iter().any(|text| text.contains("Lock:extend")), "{events:?}");
}

/// Backends blocked for five seconds are recorded in the sixth.
#[test]
fn stall_covers_the_seconds_of_its_waits() {
    let quiet = |index| second(index, &[(95, 100), (5, 1000)], &[]);
    let stalled = minute(quiet, |index| match index {
        37 => second(index, &[(40, 6_500_000)], &[]),
        _ => second(index, &[], &[]),
    });
    let summary = summarize_recording(&stalled);
    assert!(summary.headline.starts_with("Waits to extend relations rise 6"), "{summary:#?}");
    assert!(summary.findings[0].evidence.ends_with("in 7 of the 10 seconds"), "{summary:#?}");
}

#[test]
fn sampled_waits_are_compared_without_tracing() {
    let untraced = |second: RecordedSecond| RecordedSecond { extension: None, ..second };
    let recording = minute(
        |index| untraced(second(index, &[], &[("Lock:extend", 5)])),
        |index| untraced(second(index, &[], &[("Lock:extend", 500)])),
    );
    let summary = summarize_recording(&recording);
    assert_eq!(summary.headline, "Lock:extend rises 100x while files are synced");
    assert!(summary.findings[0].evidence.starts_with("5.0 sessions on average in 10 s, 0.05"));
}

#[test]
fn similar_seconds_do_not_stand_out() {
    let same = |index| second(index, &[(50, 2000)], &[("CPU*", 300), ("Lock:extend", 100)]);
    let summary = summarize_recording(&minute(same, same));
    assert_eq!(summary.headline, "Nothing stands out");
    assert!(
        summary.remarks[0].starts_with("waits to extend relations do not stand out: p99 2.0 ms")
    );
}

#[test]
fn one_slow_second_does_not_blame_a_phase() {
    let quiet = |index| second(index, &[(50, 2000)], &[]);
    let summary = summarize_recording(&minute(quiet, |index| match index {
        33 => second(index, &[(50, 900_000)], &[]),
        _ => quiet(index),
    }));
    assert!(!summary.findings.iter().any(|finding| finding.text.contains("rise")), "{summary:#?}");
    // It is still reported as a slow second.
    assert!(summary.headline.starts_with("1 second stands out"), "{}", summary.headline);
    assert!(
        summary.findings[0].evidence.contains("the worst at 13:59:09: p99 900 ms"),
        "{summary:#?}"
    );
}

#[test]
fn too_few_waits_yield_no_finding() {
    let few = summarize_recording(&minute(
        |index| second(index, &[(50, 100)], &[]),
        |index| second(index, &[(2, 900_000)], &[]),
    ));
    assert_eq!(few.headline, "Nothing stands out");
    assert!(
        few.remarks[0].contains("too little data to compare waits")
            && few.remarks[0].contains("20 in 10 s while files"),
        "{few:#?}"
    );
    let mut idle = minute(|index| second(index, &[], &[]), |index| second(index, &[], &[]));
    idle.records.retain(|record| !matches!(record, FlightRecord::PhaseEnded(_)));
    let idle = summarize_recording(&idle);
    assert_eq!(idle.remarks, ["no checkpoint wrote or synced anything while it was recorded"]);
    assert_eq!(summarize_recording(&FlightRecording::default()).headline, "Nothing stands out");
}

#[test]
fn long_sweep_stands_out() {
    let sweeping = |examined| {
        move |index| RecordedSecond {
            sweep: Some(SweepTotals {
                buffers: 2048,
                examined,
                allocations: 100,
                ..SweepTotals::default()
            }),
            ..second(index, &[], &[])
        }
    };
    let summary = summarize_recording(&minute(sweeping(200), sweeping(8000)));
    assert_eq!(
        summary.headline,
        "The clock sweep examines 40x as many buffers per allocation while files are synced"
    );
    let summary = summarize_recording(&minute(sweeping(3000), sweeping(3000)));
    assert_eq!(summary.headline, "The clock sweep examines 30 buffers per allocation");
}

/// A minute with `len` different seconds from second 12 on, away from the checkpoint.
fn minute_with(
    usual: impl Fn(i64) -> RecordedSecond + Copy,
    len: usize,
    other: &[(&str, u64)],
) -> FlightRecording {
    let mut recording = minute(usual, usual);
    let seconds = recording.records.iter_mut().filter_map(|record| match record {
        FlightRecord::Second(second) => Some(second),
        _ => None,
    });
    for (changed, index) in seconds.skip(12).take(len).zip(12..) {
        *changed = second(index, &[], other);
    }
    recording
}

/// Seven clients wait for a table lock for nine seconds while its holder sleeps.
#[test]
fn lock_stall_outside_of_checkpoints_makes_the_headline() {
    let usual = |index| second(index, &[], &[("CPU*", 30), ("IO:WALSync", 40)]);
    let blocked = [("Lock:relation", 700), ("Timeout:PgSleep", 100)];
    let summary = summarize_recording(&minute_with(usual, 9, &blocked));
    assert_eq!(
        summary.headline,
        "No session ran for 9 s while up to 7.0 sessions waited, most of them for Lock:relation"
    );
    assert!(summary.findings[0].evidence.contains("0.4 sessions wait in the median second"));
    let about_the_lock = |finding: &&RecordingFinding| finding.text.contains("Lock:relation");
    assert_eq!(summary.findings.iter().filter(about_the_lock).count(), 1, "{summary:#?}");
}

#[test]
fn surge_of_one_event_stands_out_while_others_run() {
    let usual = |index| second(index, &[], &[("CPU*", 300), ("IO:WALSync", 10)]);
    let slow_sync = [("CPU*", 20), ("IO:WALSync", 100), ("LWLock:WALWrite", 550)];
    let summary = summarize_recording(&minute_with(usual, 3, &slow_sync));
    // The events of a WAL that is written slowly are one.
    assert_eq!(
        summary.headline,
        "For 3 s up to 6.5 sessions wait for the WAL to be written to disk (IO:WALSync, \
         LWLock:WALWrite)"
    );
    let number = summary.findings.iter().filter(|finding| finding.text.contains("WAL")).count();
    assert_eq!(number, 1, "{summary:#?}");
    let slow = [("CPU*", 20), ("LWLock:BufferContent", 550)];
    let summary = summarize_recording(&minute_with(usual, 3, &slow));
    let headline = "LWLock:BufferContent appears for 3 s: up to 5.5 sessions wait for it";
    assert_eq!(summary.headline, headline);
}

#[test]
fn constant_event_dominating_database_time_stands_out() {
    let steady = |index| second(index, &[], &[("CPU*", 100), ("LWLock:WALInsert", 200)]);
    let summary = summarize_recording(&minute(steady, steady));
    assert_eq!(summary.headline, "67 % of database time is waits for LWLock:WALInsert");
}

#[test]
fn idle_server_and_short_blips_do_not_stand_out() {
    let idle = |index| second(index, &[], &[("IO:DataFileRead", 2)]);
    assert_eq!(
        summarize_recording(&minute(idle, idle)).headline,
        "Nothing stands out; 100 % of database time, 0.02 sessions on average, is waits for \
         IO:DataFileRead"
    );
    let usual = |index| second(index, &[], &[("CPU*", 300)]);
    let blip = |index| match index {
        35 => second(index, &[], &[("CPU*", 300), ("IO:DataFileRead", 300)]),
        _ => usual(index),
    };
    assert_eq!(summarize_recording(&minute(usual, blip)).headline, "Nothing stands out");
}
