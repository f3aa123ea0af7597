//! Recordings with something in them, and with nothing.

use std::time::Duration;

use howdah_probe::recorder::{
    Extension, Named, PhaseEnded, Record, Recording, RelationWaits, Second, Sweep, WaitRow, Waits,
};

use super::*;

const START_US: i64 = 1_414_072_716_000_000;

/// A second of 100 looks.
fn second(place: i64, waits: &[(u64, u64)], events: &[(&str, u64)]) -> Second {
    let mut extension = Extension::default();
    for (count, us) in waits {
        (0..*count).for_each(|_| extension.waits.add(Duration::from_micros(*us)));
    }
    let total_us = extension.waits.total().as_micros() as u64;
    // Of a hundred parts, 93 are one relation's.
    for (relation, parts) in [(1, 93), (2, 7)] {
        let (waits, total_us) = (extension.waits.count() * parts / 100, total_us * parts / 100);
        let of = RelationWaits { database: 5, relation, waits, total_us, max_us: total_us };
        extension.relations.push(of);
    }
    let row = |(event, samples): &(&str, u64)| WaitRow {
        group: Group::Database,
        kind: "client backend".to_owned(),
        class: event.split(':').next().unwrap_or_default().to_owned(),
        event: (*event).to_owned(),
        samples: *samples,
    };
    Second {
        at_us: START_US + place * 1_000_000,
        elapsed_us: 1_000_000,
        extension: Some(extension),
        waits: Waits { rounds: 100, rows: events.iter().map(row).collect() },
        cpu_us: 15_000,
        ..Second::default()
    }
}

fn phase(phase: Phase, depth: u32, from: i64, seconds: u64) -> Record {
    Record::PhaseEnded(PhaseEnded {
        at_us: START_US + from * 1_000_000,
        duration_us: seconds * 1_000_000,
        phase,
        pid: 7,
        depth,
        buffers: None,
        files: None,
    })
}

/// A minute with a checkpoint that syncs from second 30 to 40, if it is told what seconds are like.
pub(crate) fn minute(quiet: impl Fn(i64) -> Second, syncing: impl Fn(i64) -> Second) -> Recording {
    let mut records = vec![Record::Named(Named {
        database: 5,
        relation: 1,
        name: "shop.public.orders".to_owned(),
    })];
    for place in 0..60 {
        let second = if (30..40).contains(&place) { syncing(place) } else { quiet(place) };
        records.push(Record::Second(second));
    }
    records.push(phase(Phase::Sync, 2, 30, 10));
    records.push(phase(Phase::Checkpoint, 0, 29, 12));
    Recording { records, ..Recording::default() }
}

/// The minute in which waits rise.
pub(crate) fn stall() -> Recording {
    minute(
        |place| second(place, &[(95, 100), (5, 1000)], &[("CPU*", 200), ("Lock:extend", 5)]),
        |place| {
            second(
                place,
                &[(8, 400_000)],
                &[("CPU*", 20), ("Lock:extend", 500), ("IO:DataFileExtend", 90)],
            )
        },
    )
}

fn judged(recording: &Recording) -> Verdict {
    verdict(&Timeline::of(recording))
}

#[test]
fn a_stall_is_named_with_its_phase_its_factor_and_its_relation() {
    let verdict = judged(&stall());
    assert!(
        verdict.headline.starts_with("Waits to extend relations rise 4")
            && verdict
                .headline
                .ends_with("x while files are synced; 93 % of that time is on shop.public.orders"),
        "{verdict:#?}"
    );
    let first = &verdict.findings[0];
    assert!(
        first.evidence.contains("p99 400 ms while files are synced (80 waits in 10 s)"),
        "{first:?}"
    );
    assert!(
        first.evidence.contains("somebody waited longer than 999 µs in 10 of the 10 seconds"),
        "{first:?}"
    );
    // 80 waits of 0.4 s, less what would have been waited anyway.
    assert!((first.cost_s - 31.8).abs() < 0.2, "{first:?}");
    let events: Vec<_> = verdict.findings.iter().map(|finding| &*finding.text).collect();
    assert!(
        events.iter().any(|text| text.starts_with("IO:DataFileExtend is waited for")),
        "{events:?}"
    );
    assert!(!events.iter().any(|text| text.contains("Lock:extend")), "{events:?}");
}

/// Backends that are stopped for five seconds are told of in the sixth.
#[test]
fn a_stall_lasts_as_long_as_its_waits() {
    let quiet = |place| second(place, &[(95, 100), (5, 1000)], &[]);
    let stalled = minute(quiet, |place| match place {
        37 => second(place, &[(40, 6_500_000)], &[]),
        _ => second(place, &[], &[]),
    });
    let verdict = judged(&stalled);
    assert!(verdict.headline.starts_with("Waits to extend relations rise 6"), "{verdict:#?}");
    assert!(verdict.findings[0].evidence.ends_with("in 7 of the 10 seconds"), "{verdict:#?}");
}

#[test]
fn without_exact_waits_samples_say_it() {
    let untraced = |second: Second| Second { extension: None, ..second };
    let recording = minute(
        |place| untraced(second(place, &[], &[("Lock:extend", 5)])),
        |place| untraced(second(place, &[], &[("Lock:extend", 500)])),
    );
    let verdict = judged(&recording);
    assert_eq!(verdict.headline, "Lock:extend rises 100x while files are synced");
    assert!(verdict.findings[0].evidence.starts_with("5.0 sessions on average in 10 s, 0.05"));
}

#[test]
fn what_is_much_the_same_does_not_stand_out() {
    let same = |place| second(place, &[(50, 2000)], &[("CPU*", 300), ("Lock:extend", 100)]);
    let verdict = judged(&minute(same, same));
    assert_eq!(verdict.headline, "Nothing stands out");
    assert!(
        verdict.remarks[0].starts_with("waits to extend relations do not stand out: p99 2.0 ms")
    );
}

#[test]
fn one_slow_second_is_not_a_verdict_on_a_phase() {
    let quiet = |place| second(place, &[(50, 2000)], &[]);
    let verdict = judged(&minute(quiet, |place| match place {
        33 => second(place, &[(50, 900_000)], &[]),
        _ => quiet(place),
    }));
    assert!(!verdict.findings.iter().any(|finding| finding.text.contains("rise")), "{verdict:#?}");
    // It is a slow second all the same.
    assert!(verdict.headline.starts_with("1 second stands out"), "{}", verdict.headline);
    assert!(
        verdict.findings[0].evidence.contains("the worst at 13:59:09: p99 900 ms"),
        "{verdict:#?}"
    );
}

#[test]
fn too_little_carries_no_verdict() {
    let few = judged(&minute(
        |place| second(place, &[(50, 100)], &[]),
        |place| second(place, &[(2, 900_000)], &[]),
    ));
    assert_eq!(few.headline, "Nothing stands out");
    assert!(
        few.remarks[0].contains("too little to compare waits")
            && few.remarks[0].contains("20 in 10 s while files"),
        "{few:#?}"
    );
    let mut idle = minute(|place| second(place, &[], &[]), |place| second(place, &[], &[]));
    idle.records.retain(|record| !matches!(record, Record::PhaseEnded(_)));
    let idle = judged(&idle);
    assert_eq!(idle.remarks, ["no checkpoint wrote or synced anything while it was recorded"]);
    assert_eq!(judged(&Recording::default()).headline, "Nothing stands out");
}

#[test]
fn a_long_sweep_stands_out() {
    let sweeping = |examined| {
        move |place| Second {
            sweep: Some(Sweep { buffers: 2048, examined, allocations: 100, ..Sweep::default() }),
            ..second(place, &[], &[])
        }
    };
    let verdict = judged(&minute(sweeping(200), sweeping(8000)));
    assert_eq!(
        verdict.headline,
        "The sweep looks at 40x as many buffers for one while files are synced"
    );
    let verdict = judged(&minute(sweeping(3000), sweeping(3000)));
    assert_eq!(verdict.headline, "The sweep looks at 30 buffers to find one");
}

/// A minute whose seconds from 12 on are other ones, away from the checkpoint.
fn minute_with(
    usual: impl Fn(i64) -> Second + Copy,
    len: usize,
    other: &[(&str, u64)],
) -> Recording {
    let mut recording = minute(usual, usual);
    let seconds = recording.records.iter_mut().filter_map(|record| match record {
        Record::Second(second) => Some(second),
        _ => None,
    });
    for (changed, place) in seconds.skip(12).take(len).zip(12..) {
        *changed = second(place, &[], other);
    }
    recording
}

/// Seven clients wait for a table lock for nine seconds; its holder sleeps.
#[test]
fn lock_stall_outside_of_checkpoints_makes_the_headline() {
    let usual = |place| second(place, &[], &[("CPU*", 30), ("IO:WALSync", 40)]);
    let blocked = [("Lock:relation", 700), ("Timeout:PgSleep", 100)];
    let verdict = judged(&minute_with(usual, 9, &blocked));
    assert_eq!(
        verdict.headline,
        "No session ran for 9 s while up to 7.0 waited, most of them for Lock:relation"
    );
    assert!(verdict.findings[0].evidence.contains("0.4 sessions wait in the median second"));
    let about_the_lock = |finding: &&Finding| finding.text.contains("Lock:relation");
    assert_eq!(verdict.findings.iter().filter(about_the_lock).count(), 1, "{verdict:#?}");
}

#[test]
fn surge_of_one_event_stands_out_while_others_run() {
    let usual = |place| second(place, &[], &[("CPU*", 300), ("IO:WALSync", 10)]);
    let slow_sync = [("CPU*", 20), ("IO:WALSync", 100), ("LWLock:WALWrite", 550)];
    let verdict = judged(&minute_with(usual, 3, &slow_sync));
    assert_eq!(verdict.headline, "LWLock:WALWrite appears for 3 s: up to 5.5 sessions wait for it");
    let mut texts = verdict.findings.iter().map(|finding| &*finding.text);
    assert!(texts.any(|text| text.starts_with("IO:WALSync rises 10x for 3 s")), "{verdict:#?}");
}

#[test]
fn event_with_most_of_database_time_stands_out_though_it_never_changes() {
    let steady = |place| second(place, &[], &[("CPU*", 100), ("LWLock:WALInsert", 200)]);
    let verdict = judged(&minute(steady, steady));
    assert_eq!(verdict.headline, "67 % of database time is waits for LWLock:WALInsert");
}

#[test]
fn idle_server_and_short_blips_do_not_stand_out() {
    let idle = |place| second(place, &[], &[("IO:DataFileRead", 2)]);
    assert_eq!(judged(&minute(idle, idle)).headline, "Nothing stands out");
    let usual = |place| second(place, &[], &[("CPU*", 300)]);
    let blip = |place| match place {
        35 => second(place, &[], &[("CPU*", 300), ("IO:DataFileRead", 300)]),
        _ => usual(place),
    };
    assert_eq!(judged(&minute(usual, blip)).headline, "Nothing stands out");
}
