//! Files as they are written, cut, damaged and gone on with.

use std::fs;

use super::*;
use crate::recorder::{
    record::{Note, NoteKind},
    ring::{RecordError, Ring},
};

const SIZE: u64 = 1 << 20;

fn note(at_us: i64) -> Record {
    Record::Note(Note { at_us, kind: NoteKind::Probes, text: "x".repeat(900) })
}

fn write(ring: &mut Ring, numbers: std::ops::Range<u64>) {
    for number in numbers {
        ring.append(&note(number.cast_signed()).to_bytes(number)).unwrap();
    }
}

fn moments(recording: &Recording) -> Vec<i64> {
    let moment = |record: &Record| match record {
        Record::Note(note) => note.at_us,
        other => panic!("{other:?}"),
    };
    recording.records.iter().map(moment).collect()
}

fn open(path: &Path) -> Ring {
    Ring::open(path, Some(SIZE), SIZE).unwrap()
}

#[test]
fn the_oldest_goes_and_the_file_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.rec");
    let mut ring = open(&path);
    write(&mut ring, 1..3000);
    let recording = Recording::open(&path).unwrap();
    let seen = moments(&recording);
    assert!(fs::metadata(&path).unwrap().len() <= SIZE);
    assert_eq!(*seen.last().unwrap(), 2999);
    // Of 24 slots of some 32 kB, the one that is written may be almost empty.
    assert!(seen.len() > 700, "{} are left", seen.len());
    assert!(seen.windows(2).all(|pair| pair[0] + 1 == pair[1]), "nothing is missing in between");
    assert_eq!((recording.max_bytes, recording.unread), (ring.max_bytes(), 0));
}

#[test]
fn an_episode_outlives_the_ring() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.rec");
    let mut ring = open(&path);
    write(&mut ring, 1..20);
    let bodies: Vec<_> =
        (5..15).map(|number| note(number).to_bytes(number.cast_unsigned())).collect();
    assert_eq!(ring.keep(&bodies).unwrap(), 0);
    let both = Recording::open(&path).unwrap();
    assert_eq!((both.records.len(), &both.episodes[..]), (19, &[(4, 13)][..]));
    write(&mut ring, 20..3000);
    let recording = Recording::open(&path).unwrap();
    let seen = moments(&recording);
    assert_eq!(seen[..11], [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, seen[10]]);
    assert!(seen[10] > 1000);
    assert_eq!(recording.episodes, [(0, 9)]);
    // The ninth takes the place of the first.
    for number in 3000_u64..3008 {
        ring.keep(&[note(number.cast_signed()).to_bytes(number)]).unwrap();
    }
    let recording = Recording::open(&path).unwrap();
    assert!(!moments(&recording).contains(&5));
    assert_eq!(recording.episodes.len(), 8);
    // What is too much for a slot is left out, and said.
    let many: Vec<_> = (0..100).map(|number| note(number).to_bytes(4000)).collect();
    assert!(ring.keep(&many).unwrap() > 50);
}

#[test]
fn what_a_killed_writer_left_is_passed_over_and_gone_on_behind() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.rec");
    write(&mut open(&path), 1..41);
    let whole = fs::read(&path).unwrap();
    // Anywhere in the last record, and anywhere in the head of the file.
    for cut in (whole.len() - 900..whole.len()).step_by(97) {
        fs::write(&path, &whole[..cut]).unwrap();
        assert_eq!(moments(&Recording::open(&path).unwrap()), (1..40).collect::<Vec<_>>());
        let mut ring = open(&path);
        assert_eq!(ring.next_number(), 40);
        write(&mut ring, 40..43);
        assert_eq!(moments(&Recording::open(&path).unwrap()), (1..43).collect::<Vec<_>>());
    }
    for cut in [0, 1, 31, 4000] {
        fs::write(&path, &whole[..cut]).unwrap();
        write(&mut open(&path), 1..3);
        assert_eq!(moments(&Recording::open(&path).unwrap()), [1, 2]);
    }
}

#[test]
fn who_may_write_to_what() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.rec");
    let ring = open(&path);
    assert!(matches!(Ring::open(&path, None, SIZE), Err(RecordError::Busy { .. })));
    assert!(matches!(Recording::open(&path), Err(ReadError::Empty { .. })));
    drop(ring);
    let other = Ring::open(&path, Some(2 * SIZE), SIZE);
    assert!(matches!(other, Err(RecordError::Size { .. })));
    assert!(Ring::open(&path, None, 9 * SIZE).is_ok_and(|ring| ring.max_bytes() <= SIZE));
    fs::write(&path, "a letter").unwrap();
    assert!(matches!(Ring::open(&path, None, SIZE), Err(RecordError::Foreign { .. })));
    assert!(matches!(Recording::open(&path), Err(ReadError::Foreign { .. })));
    assert_eq!(fs::read(&path).unwrap(), b"a letter");
    assert!(matches!(Recording::open(folder.path()), Err(ReadError::Io { .. })));
}
