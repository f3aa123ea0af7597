//! Tests with files that are written, truncated, damaged and appended to.

use std::fs;

use super::*;
use crate::recorder::{
    record::{NoteKind, RecordingNote},
    ring::{RecordingFileError, SlotRing},
};

const SIZE: u64 = 1 << 20;

fn note(at_us: i64) -> FlightRecord {
    FlightRecord::Note(RecordingNote { at_us, kind: NoteKind::Probes, text: "x".repeat(900) })
}

fn write(ring: &mut SlotRing, numbers: std::ops::Range<u64>) {
    for number in numbers {
        ring.append(&note(number.cast_signed()).to_bytes(number)).unwrap();
    }
}

fn moments(recording: &FlightRecording) -> Vec<i64> {
    let moment = |record: &FlightRecord| match record {
        FlightRecord::Note(note) => note.at_us,
        other => panic!("{other:?}"),
    };
    recording.records.iter().map(moment).collect()
}

fn open(path: &Path) -> SlotRing {
    SlotRing::open(path, Some(SIZE), SIZE).unwrap()
}

#[test]
fn ring_overwrites_the_oldest_records() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.rec");
    let mut ring = open(&path);
    write(&mut ring, 1..3000);
    let recording = FlightRecording::open(&path).unwrap();
    let seen = moments(&recording);
    assert!(fs::metadata(&path).unwrap().len() <= SIZE);
    assert_eq!(*seen.last().unwrap(), 2999);
    // The ring has 24 slots of some 32 kB, and the current one may be almost empty.
    assert!(seen.len() > 700, "{} records remain", seen.len());
    assert!(seen.windows(2).all(|pair| pair[0] + 1 == pair[1]), "no record is missing in between");
    assert_eq!((recording.max_bytes, recording.unreadable), (ring.max_bytes(), 0));
}

#[test]
fn episode_survives_ring_overwrite() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.rec");
    let mut ring = open(&path);
    write(&mut ring, 1..20);
    let bodies: Vec<_> =
        (5..15).map(|number| note(number).to_bytes(number.cast_unsigned())).collect();
    assert_eq!(ring.write_episode(&bodies).unwrap(), 0);
    let both = FlightRecording::open(&path).unwrap();
    assert_eq!((both.records.len(), &both.episodes[..]), (19, &[(4, 13)][..]));
    write(&mut ring, 20..3000);
    let recording = FlightRecording::open(&path).unwrap();
    let seen = moments(&recording);
    assert_eq!(seen[..11], [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, seen[10]]);
    assert!(seen[10] > 1000);
    assert_eq!(recording.episodes, [(0, 9)]);
    // The ninth episode replaces the first.
    for number in 3000_u64..3008 {
        ring.write_episode(&[note(number.cast_signed()).to_bytes(number)]).unwrap();
    }
    let recording = FlightRecording::open(&path).unwrap();
    assert!(!moments(&recording).contains(&5));
    assert_eq!(recording.episodes.len(), 8);
    // Records that do not fit into a slot are omitted and counted.
    let many: Vec<_> = (0..100).map(|number| note(number).to_bytes(4000)).collect();
    assert!(ring.write_episode(&many).unwrap() > 50);
}

#[test]
fn truncated_record_is_skipped_and_writing_resumes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.rec");
    write(&mut open(&path), 1..41);
    let whole = fs::read(&path).unwrap();
    // Anywhere in the last record, and anywhere in the header.
    for cut in (whole.len() - 900..whole.len()).step_by(97) {
        fs::write(&path, &whole[..cut]).unwrap();
        assert_eq!(moments(&FlightRecording::open(&path).unwrap()), (1..40).collect::<Vec<_>>());
        let mut ring = open(&path);
        assert_eq!(ring.next_number(), 40);
        write(&mut ring, 40..43);
        assert_eq!(moments(&FlightRecording::open(&path).unwrap()), (1..43).collect::<Vec<_>>());
    }
    for cut in [0, 1, 31, 4000] {
        fs::write(&path, &whole[..cut]).unwrap();
        write(&mut open(&path), 1..3);
        assert_eq!(moments(&FlightRecording::open(&path).unwrap()), [1, 2]);
    }
}

#[test]
fn foreign_busy_and_resized_files_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.rec");
    let ring = open(&path);
    assert!(matches!(SlotRing::open(&path, None, SIZE), Err(RecordingFileError::Busy { .. })));
    assert!(matches!(FlightRecording::open(&path), Err(RecordingReadError::Empty { .. })));
    drop(ring);
    let other = SlotRing::open(&path, Some(2 * SIZE), SIZE);
    assert!(matches!(other, Err(RecordingFileError::Size { .. })));
    assert!(SlotRing::open(&path, None, 9 * SIZE).is_ok_and(|ring| ring.max_bytes() <= SIZE));
    fs::write(&path, "not a recording").unwrap();
    assert!(matches!(SlotRing::open(&path, None, SIZE), Err(RecordingFileError::Foreign { .. })));
    assert!(matches!(FlightRecording::open(&path), Err(RecordingReadError::Foreign { .. })));
    assert_eq!(fs::read(&path).unwrap(), b"not a recording");
    assert!(matches!(FlightRecording::open(folder.path()), Err(RecordingReadError::Io { .. })));
}
