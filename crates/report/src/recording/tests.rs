//! A recording for tests of its renderings.

use std::time::Duration;

use howdah_probe::{
    checkpoints::CheckpointPhase,
    recorder::{
        ExtensionTotals, FlightRecord, FlightRecording, NamedRelation, PhaseEnded, RecordedSecond,
        RelationWaits, WaitRow, WaitSamples,
    },
    waits::TimeCategory,
};

const START_US: i64 = 1_414_072_716_000_000;

/// Returns a minute in which waits to extend relations increase while a checkpoint syncs files,
/// from second 30 to 40.
pub(super) fn stall() -> FlightRecording {
    let mut records = vec![FlightRecord::NamedRelation(NamedRelation {
        database: 5,
        relation: 1,
        name: "shop.public.orders".to_owned(),
    })];
    records.extend((0..60).map(|index| {
        FlightRecord::Second(if (30..40).contains(&index) {
            let events = [("CPU*", 20), ("Lock:extend", 500), ("IO:DataFileExtend", 90)];
            second(index, &[(8, 400_000)], &events)
        } else {
            second(index, &[(95, 100), (5, 1000)], &[("CPU*", 200), ("Lock:extend", 5)])
        })
    }));
    records.push(phase(CheckpointPhase::Sync, 2, 30, 10));
    records.push(phase(CheckpointPhase::Checkpoint, 0, 29, 12));
    FlightRecording { records, ..FlightRecording::default() }
}

/// Returns a second with 100 sampling rounds. `waits` are pairs of a count and microseconds,
/// `events` pairs of a name and a number of samples.
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
