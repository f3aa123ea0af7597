//! Recordings of `howdah probe run`.

use std::{fs, time::Instant};

use howdah_probe::{
    analysis::RecordingWindow,
    recorder::{FlightRecord, FlightRecording},
};
use howdah_report::recording::{page, text};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::Shape;

/// The file header, and fragments of records.
pub const WORDS: &[&[u8]] =
    &[b"HOWDAHFR\x01\0\0\0", b"Lock:extend", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"];

/// A reader holds the slots of a file, and records that are larger than their encoding.
pub const MEMORY: (usize, usize) = (4 << 20, 1 << 14);

/// The smallest slot size.
const SLOT_BYTES: u32 = 32_256;

/// Reads the input as a file.
pub fn file(input: &[u8]) -> Shape {
    read(input)
}

/// Reads the input as frame bodies with valid checksums; a byte before each gives its length.
pub fn frames(input: &[u8]) -> Shape {
    let mut bytes = head();
    // The ring's first slot follows the slots reserved for episodes.
    bytes.resize(bytes.len() + 8 * SLOT_BYTES as usize, 0);
    bytes.extend(slot(input));
    read(&bytes)
}

/// Builds a slot with these frame bodies.
fn slot(mut bodies: &[u8]) -> Vec<u8> {
    const SEQUENCE: u64 = 1;
    let sequence = SEQUENCE.to_le_bytes();
    let mut slot = sequence.to_vec();
    slot.extend(xxh3_64_with_seed(&sequence, 0x7365_7175_656e_6365).to_le_bytes());
    while let Some((length, behind)) = bodies.split_first() {
        let (body, behind) = behind.split_at(behind.len().min(usize::from(*length)));
        slot.extend(u32::try_from(body.len()).expect("it is short").to_le_bytes());
        slot.extend(xxh3_64_with_seed(body, SEQUENCE).to_le_bytes());
        slot.extend(body);
        bodies = behind;
    }
    slot
}

fn head() -> Vec<u8> {
    let mut head = b"HOWDAHFR".to_vec();
    for number in [1, SLOT_BYTES, 8, 24] {
        head.extend(number.to_le_bytes());
    }
    head.extend(xxh3_64(&head).to_le_bytes());
    head.resize(4096, 0);
    head
}

/// Reads a recording and checks that what it prints has no terminal sequences or markup.
fn read(bytes: &[u8]) -> Shape {
    let folder = tempfile::tempdir().expect("there is a folder for temporary files");
    let path = folder.path().join("probe.rec");
    fs::write(&path, bytes).expect("it can be written");
    let recording = match FlightRecording::open(&path) {
        Ok(recording) => recording,
        Err(error) => return Shape::of(std::mem::discriminant(&error)),
    };
    assert!(recording.records.len() <= bytes.len());
    for (first, last) in &recording.episodes {
        assert!(first <= last && *last < recording.records.len());
    }
    let began = Instant::now();
    let timeline = RecordingWindow::from_recording(&recording);
    let (text, page) = (text(&timeline), page(&timeline));
    assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
    assert!(!page.contains("<script") && !page.contains("NaN"));
    assert!(page.len() < (4 << 20) + 64 * bytes.len(), "a picture has an end");
    assert!(began.elapsed().as_secs() < 20, "it ends");
    let kinds = recording.records.iter().map(std::mem::discriminant::<FlightRecord>);
    let mut seen: Vec<_> = kinds.collect();
    seen.dedup();
    Shape::of((seen.len().min(5), recording.unreadable.min(3), text.lines().count().min(40)))
}

/// Returns an empty file, a damaged one, and some with an episode.
pub fn file_seeds() -> Vec<Vec<u8>> {
    let whole = frames_seeds().into_iter().map(|bodies| [head(), slot(&bodies)].concat());
    [head(), head()[..100].to_vec()].into_iter().chain(whole).collect()
}

/// Returns a few hand-made records: number, kind, fields.
pub fn frames_seeds() -> Vec<Vec<u8>> {
    let framed = |bodies: &[&[u8]]| {
        let frame = |body: &&[u8]| {
            let length = u8::try_from(body.len()).expect("it is short");
            [&[length], *body].concat()
        };
        bodies.iter().flat_map(frame).collect::<Vec<_>>()
    };
    // One second (1,000,000 µs) with a relation extension of one wait, a sweep, and one row of
    // waits.
    let second: &[u8] =
        b"\x02\x02\x80\x89\x7a\xc0\x84\x3d\x01\x01\x64\x64\x64\x01\x40\x01\0\0\0\0\0\0\x01\x05\x07\x01\x64\x64\
          \x01\x80\x10\x64\x64\0\0\x64\x01\0\x06client\x04Lock\x0bLock:extend\x32\0\0\0\0\0\0\0\0\x64";
    let began: &[u8] = b"\x03\x03\x80\x89\x7a\x06\x07\x02";
    let ended: &[u8] = b"\x04\x04\x80\x89\x7a\x64\x06\x07\x02\0\0";
    let fired: &[u8] = b"\x05\x05\x80\x89\x7a\0\x64\x64\0";
    let exact: &[u8] =
        b"\x06\x06\x80\x89\x7a\x03wal\x05flush\x01\x64\x64\x64\x01\x40\x01\x01\x01x\x01\x64";
    let note: &[u8] = b"\x07\x07\x80\x89\x7a\0\x04gone";
    let named: &[u8] = b"\x08\x08\x05\x07\x08a.b<i>.c";
    let end: &[u8] = b"\x09\x09\x80\x89\x7a\x04over";
    // One session that blocks a second one (of database 5, relation 7), its statement, counters
    // with a standby, pressure, and a name of a file.
    let text: &[u8] = b"\x0a\x0c\x05\x08lock t<i";
    let sessions: &[u8] = b"\x0b\x0a\x80\x89\x7a\xc0\x84\x3d\x03\0\x06active\x05Lock:\x02\
          \x07\0\0\0\0\0\0\x01\0\x05\x64\x01\xd0\x0f\0\0\0\0\
          \x08\0\0\0\0\0\0\x01\x02\x05\x64\x01\xd0\x0f\x01\x07\x01\x01\x01\x01\x05\x07\0\
          \x02\x01\0\0\0\x01\x03\x01";
    let counters: &[u8] =
        b"\x0c\x0b\x80\x89\x7a\xc0\x84\x3d\x64\0\0\x01\x80\x80\x80\x40\x32\0\x01\x08\x01\x64\x01\x64";
    let pressure: &[u8] = b"\x0d\x0d\x80\x89\x7a\x01\x64\0\x01\x64";
    let file: &[u8] = b"\x0e\x0e\x05\x08\x05a.b.c";
    vec![
        framed(&[second]),
        framed(&[named, text, second, sessions, counters, pressure, file, second, sessions]),
        framed(&[named, second, began, second, ended]),
        framed(&[second, fired, exact, note, end]),
    ]
}
