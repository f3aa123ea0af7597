//! Recordings of `howdah top`.

use std::{fs, sync::Arc};

use howdah_top::{
    ServerHealth,
    history::{HistoryLimits, HistoryRecorder, SnapshotHistory, TopRecording},
};

use super::Shape;

/// The file header, and the marker of a frame.
pub const WORDS: &[&[u8]] = &[HEAD, MARKER, b"\x28\xb5\x2f\xfd", b"\0", b"\x01", b"databases"];

const HEAD: &[u8] = b"HOWDAHTR\x01\0\0\0\0\0\0\0";
const MARKER: &[u8] = b"\xf7HT\xfe";

/// Unpacking holds a frame, the texts of a segment, and rows that are larger than their encoding.
pub const MEMORY: (usize, usize) = (512 << 20, 1 << 12);

/// Reads the input as a file.
pub fn file(input: &[u8]) -> Shape {
    read(input)
}

/// Reads the input as the contents of two frames with valid checksums; the first byte tells where
/// the second begins.
pub fn frames(input: &[u8]) -> Shape {
    let Some((cut, rest)) = input.split_first() else { return Shape::of("empty") };
    let (first, second) = rest.split_at(rest.len() * usize::from(*cut) / 256);
    let mut bytes = HEAD.to_vec();
    frame(&mut bytes, b"\x01", 5, b"\x02db", first);
    frame(&mut bytes, b"\x02", 6, b"\x01", second);
    read(&bytes)
}

fn frame(bytes: &mut Vec<u8>, kind: &[u8], at_us: i64, head: &[u8], inside: &[u8]) {
    let mut body = kind.to_vec();
    body.extend(xxhash_rust::xxh3::xxh3_64(b"db").to_le_bytes());
    body.extend(at_us.to_le_bytes());
    body.extend(head);
    body.extend(zstd::encode_all(inside, 1).expect("memory takes what is written"));
    bytes.extend(MARKER);
    bytes.extend(u32::try_from(body.len()).expect("inputs are short").to_le_bytes());
    bytes.extend(xxhash_rust::xxh3::xxh3_64(&body).to_le_bytes());
    bytes.extend(body);
}

/// Checks that texts have no control characters, and that snapshots survive being recorded again.
fn read(bytes: &[u8]) -> Shape {
    let folder = tempfile::tempdir().expect("there is a folder for temporary files");
    let path = folder.path().join("top.rec");
    fs::write(&path, bytes).expect("it can be written");
    let recording = match TopRecording::open(&path) {
        Ok(recording) => recording,
        Err(error) => return Shape::of(std::mem::discriminant(&error)),
    };
    let (told, outcome) = told(&recording.history);
    let again = SnapshotHistory::new(recording.history.names().to_vec(), HistoryLimits::MEMORY)
        .expect("there is memory to pack in");
    for server in 0..recording.history.names().len() {
        let _ = recording.history.play(server, None, |_, standing| {
            again.push(server, &standing, None).expect("memory takes it");
            true
        });
    }
    // Repeated failures are recorded once, and time stamps never decrease.
    let (again, _) = self::told(&again);
    assert!(again.len() <= told.len(), "{} {}", again.len(), told.len());
    let reads = |told: &[String]| {
        told.iter().filter(|one| one.starts_with("read")).cloned().collect::<Vec<_>>()
    };
    assert_eq!(reads(&again), reads(&told));
    Shape::of((outcome, told.len().min(9), recording.gap.runs.min(3)))
}

fn told(history: &SnapshotHistory) -> (Vec<String>, Option<String>) {
    let mut told = Vec::new();
    let mut outcome = None;
    for server in 0..history.names().len() {
        let played = history.play(server, Some("databases"), |_, standing| {
            told.push(match &standing {
                ServerHealth::Read(snapshot) => {
                    for backend in &snapshot.activity.backends {
                        let texts = [&backend.database, &backend.user, &backend.application];
                        let is_safe = |text: &str| !text.contains(char::is_control);
                        assert!(texts.into_iter().flatten().all(|text| is_safe(text)));
                        let query = backend.query.as_ref().map(howdah_collect::SqlText::one_line);
                        assert!(query.is_none_or(|query| is_safe(&query)));
                    }
                    format!("read {:?} {:?}", snapshot.activity, snapshot.server)
                }
                _ => "away".to_owned(),
            });
            told.len() < 10_000
        });
        outcome = outcome.or(played.err().map(|damage| damage.to_string()));
    }
    (told, outcome)
}

/// Recordings as the recorder writes them.
pub fn file_seeds() -> Vec<Vec<u8>> {
    let folder = tempfile::tempdir().expect("there is a folder for temporary files");
    [0, 1, 5]
        .into_iter()
        .map(|readings| {
            let path = folder.path().join(format!("{readings}.rec"));
            let recorder =
                HistoryRecorder::open(&path, HistoryLimits::FILE).expect("it can be written");
            let recorder = parking_lot::Mutex::new(recorder);
            let history = SnapshotHistory::new(["db".to_owned()], HistoryLimits::MEMORY)
                .expect("there is memory");
            for reading in 0..readings {
                let standing = ServerHealth::Read(Arc::new(snapshot(reading)));
                history.push(0, &standing, Some(&recorder)).expect("the disk takes it");
            }
            fs::read(path).expect("it was just written")
        })
        .collect()
}

/// Frame contents of these recordings, one by one.
pub fn frames_seeds() -> Vec<Vec<u8>> {
    let files = file_seeds();
    let mut seeds = Vec::new();
    for file in &files {
        let places = file.windows(4).enumerate().filter(|(_, four)| *four == MARKER);
        for (at, _) in places {
            // Marker, length, checksum, kind, stream, time, and a name of two characters.
            let unpacked = file.get(at + 33 + 3..).and_then(first_block);
            seeds.extend(unpacked.map(|inside| [&[255], &inside[..]].concat()));
        }
    }
    seeds
}

/// Unpacks the beginning of a stream, ignoring damage later on.
fn first_block(packed: &[u8]) -> Option<Vec<u8>> {
    use std::io::Read as _;
    let mut inside = Vec::new();
    let mut decoder = zstd::stream::read::Decoder::new(packed).ok()?;
    // The stream was flushed but not finished: the data precedes the error.
    let _ = decoder.read_to_end(&mut inside);
    (!inside.is_empty()).then_some(inside)
}

fn snapshot(reading: i32) -> howdah_top::ServerSnapshot {
    use howdah_collect::{
        Activity, BackendActivity, BackendState, BackendWait, Overview, ServerInfo, SqlText,
    };
    let backend = |pid: i32| BackendActivity {
        pid,
        started_us: 7,
        database: Some("shop".into()),
        user: Some("app".into()),
        state: Some(BackendState::Active),
        wait: Some(BackendWait { class: "Lock".into(), event: "tuple".into() }),
        query: Some(SqlText::new(format!("select {pid}, {reading}").as_bytes(), None, None)),
        query_started_us: Some(i64::from(reading) * 1000),
        is_readable: true,
        ..BackendActivity::default()
    };
    let taken_us = 1_700_000_000_000_000 + i64::from(reading) * 2_000_000;
    let activity = Activity { taken_us, backends: (1..4).map(backend).collect() };
    howdah_top::ServerSnapshot::from_activity(ServerInfo::default(), Overview::default(), activity)
}
