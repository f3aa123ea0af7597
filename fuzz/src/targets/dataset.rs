//! Reads captures and runs that have a damaged file.
//!
//! The first byte of the input selects the file of a small dataset that is replaced; the rest is
//! its new contents.

use std::{fs, mem::discriminant, path::Path};

use howdah_dataset::{
    Capture, CaptureOrigin, CaptureSettings, CaptureWriter, Corruption, Disposition, ReadError,
    ReplayOutcome, ReplayRun, ResultCheck, RunSettings, RunWriter, StatementInfo,
};
use howdah_traffic::{
    Action, Bound, CapturedOutcome, Event, Kind, Parameter, Source, SqlState, Timestamp,
};
use tempfile::TempDir;

use super::Shape;

/// Keys of manifests, and the magic bytes of Parquet.
pub const WORDS: &[&[u8]] = &[
    b"PAR1",
    b"\"version\": 1",
    b"\"version\": 2",
    b"\"events\": 18446744073709551615",
    b"\"files\": 4294967295",
    b"\"finished\": false",
    b"null",
    b"howdah.version",
    b"howdah-run",
    b"howdah-capture",
    b"events",
    b"\x15\x00",
    b"\x15\x02",
    b"\x15\xff\xff\xff\xff\x0f",
    b"\x1c",
    b"\x2c",
    b"\x18",
    b"\x28\xb5\x2f\xfd",
];

/// A damaged length may cause an allocation as large as a page or row group of a valid file.
pub const MEMORY: (usize, usize) = (64 << 20, 64);

const CAPTURE_FILES: [&str; 2] = ["capture.json", "events-000001.parquet"];
const RUN_FILES: [&str; 3] = ["run.json", "outcomes-000001.parquet", "statements-000001.parquet"];

thread_local! {
    // Written once per thread, because writing a dataset flushes to disk, which is slow.
    static CAPTURE: TempDir = sound(write_capture);
    static RUN: TempDir = sound(write_run);
}

fn sound(write: fn(&Path)) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path());
    folder
}

/// The unmodified files of a capture, each with its selector byte.
pub fn capture_seeds() -> Vec<Vec<u8>> {
    CAPTURE.with(|folder| seeds(folder.path(), &CAPTURE_FILES))
}

/// The unmodified files of a run, each with its selector byte.
pub fn run_seeds() -> Vec<Vec<u8>> {
    RUN.with(|folder| seeds(folder.path(), &RUN_FILES))
}

fn seeds(folder: &Path, files: &[&str]) -> Vec<Vec<u8>> {
    let seed = |(number, name): (u8, &&str)| {
        let file = fs::read(folder.join(name)).expect("the writer wrote it");
        [&[number][..], &file].concat()
    };
    (0..).zip(files).map(seed).collect()
}

/// Replaces a file by the input while `read` runs, then restores it.
fn damaged<T>(folder: &Path, files: &[&str], input: &[u8], read: impl FnOnce(&Path) -> T) -> T {
    let (number, contents) = input.split_first().unwrap_or((&0, &[]));
    let path = folder.join(files[usize::from(*number) % files.len()]);
    let kept = fs::read(&path).expect("the writer wrote it");
    let put = |bytes: &[u8]| fs::write(&path, bytes).expect("room for a file");
    put(contents);
    // Restores the file even if `read` panics, for the sake of the next input.
    let restore = Restore(|| put(&kept));
    let result = read(folder);
    drop(restore);
    result
}

struct Restore<F: Fn()>(F);

impl<F: Fn()> Drop for Restore<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Reads a capture: either an error that names a file, or a finite number of events. Damaged times
/// may be out of order.
pub fn capture(input: &[u8]) -> Shape {
    CAPTURE.with(|folder| {
        damaged(folder.path(), &CAPTURE_FILES, input, |dir| {
            let capture = match Capture::open(dir) {
                Ok(capture) => capture,
                Err(error) => return Shape::of((input.first(), fault(&error))),
            };
            let mut count = 0_u64;
            for event in capture.events() {
                if let Err(error) = event {
                    return Shape::of((input.first(), count.min(9), fault(&error)));
                }
                assert!(count < ROWS_MAX, "events without end");
                count += 1;
            }
            let between =
                capture.events_between(Timestamp::from_micros(2), Timestamp::from_micros(5));
            let between = between.map_while(Result::ok).count();
            assert!(between as u64 <= count);
            Shape::of((input.first(), count.min(20), between))
        })
    })
}

/// Most rows read. With run-length encoding, a file of a few kilobytes can hold this many.
const ROWS_MAX: u64 = 100_000_000;

/// Reads a run: either an error that names a file, or a finite number of outcomes.
pub fn run(input: &[u8]) -> Shape {
    RUN.with(|folder| {
        damaged(folder.path(), &RUN_FILES, input, |dir| {
            let run = match ReplayRun::open(dir) {
                Ok(run) => run,
                Err(error) => return Shape::of((input.first(), fault(&error))),
            };
            let mut count = 0_u64;
            let mut error = None;
            for outcome in run.outcomes() {
                assert!(count < ROWS_MAX, "outcomes without end");
                match outcome {
                    Ok(_) => count += 1,
                    Err(found) => error = Some(fault(&found)),
                }
            }
            let statements = run.statements();
            let statements =
                statements.map(|list| list.len().min(9)).map_err(|error| fault(&error));
            Shape::of((input.first(), count.min(9), error, statements))
        })
    })
}

/// Classifies an error, and checks that it names the file.
fn fault(error: &ReadError) -> String {
    let text = error.to_string();
    assert!(text.contains(".json") || text.contains(".parquet"), "{text}");
    let damage = match error {
        ReadError::Damaged { source, .. } => Some(source),
        _ => None,
    };
    let detail = match damage {
        Some(Corruption::Decoder { message }) => letters(message),
        Some(Corruption::Parquet(error)) => letters(&error.to_string()),
        Some(Corruption::Manifest(error)) => format!("{:?}", error.classify()),
        _ => String::new(),
    };
    format!("{:?} {:?} {detail}", discriminant(error), damage.map(discriminant))
}

/// Removes the digits from a message.
fn letters(message: &str) -> String {
    message.chars().filter(|c| c.is_alphabetic()).take(40).collect()
}

fn event(micros: i64, action: Action) -> Event {
    Event {
        time: Timestamp::from_micros(micros),
        session: "656a1b2c.4d2".into(),
        user: "al".into(),
        database: "shop".into(),
        application: "".into(),
        action,
        outcome: CapturedOutcome {
            duration_us: Some(250),
            sqlstate: SqlState::new(b"22012"),
            error: Some("division by zero".into()),
        },
        source: Source::Duration,
        vxid: Some("3/4".into()),
        query_id: Some(-77),
        pipeline: Some(3),
        wire: None,
    }
}

fn write_capture(dir: &Path) {
    let settings = CaptureSettings { origin: CaptureOrigin::default(), overwrite: true };
    let mut writer = CaptureWriter::create(dir, settings).expect("an empty folder");
    let bound = || Bound {
        statement: "s".into(),
        portal: "".into(),
        sql: "select $1, $2".into(),
        parameters: Some(vec![Parameter::Null, Parameter::Value((&b"caf\xe9"[..]).into())]),
    };
    let actions = [
        Action::Connect,
        Action::Simple { sql: "select 1".into() },
        Action::Bind(bound()),
        Action::Execute(bound()),
        Action::Fetch(Bound { parameters: None, ..bound() }),
        Action::Call { function: "f".into() },
        Action::Disconnect,
    ];
    for (micros, action) in (0..).zip(actions) {
        writer.write(event(micros, action)).expect("room for a small file");
    }
    writer.finish(serde_json::json!({ "records": 7 })).expect("room for a small file");
}

fn write_run(dir: &Path) {
    let settings = RunSettings {
        capture: "monday".to_owned(),
        target: "db1:5432".to_owned(),
        rate: "1".to_owned(),
        server_version: "17.1".to_owned(),
        started: Timestamp::from_micros(0),
        overwrite: true,
        part: None,
    };
    let mut writer = RunWriter::create(dir, settings).expect("an empty folder");
    let ends = [
        Disposition::Done,
        Disposition::Failed { sqlstate: SqlState::new(b"22012"), message: "no".into() },
        Disposition::Skipped { reason: "no parameters".into() },
        Disposition::Dropped { reason: "late".into() },
    ];
    for (due_us, disposition) in (0..).zip(ends) {
        writer.write(&outcome(due_us, disposition)).expect("room for a small file");
    }
    let statement = StatementInfo {
        fingerprint: 0x2a,
        query: "select ?".to_owned(),
        example_sql: "select 7".into(),
        example_parameters: Some(vec![Parameter::Truncated("7".into())]),
        user: "al".into(),
        database: "shop".into(),
    };
    writer.statement(&statement).expect("room for a small file");
    writer.finish(serde_json::json!({ "done": 1 }), true).expect("room for a small file");
}

fn outcome(due_us: i64, disposition: Disposition) -> ReplayOutcome {
    ReplayOutcome {
        time: Timestamp::from_micros(due_us),
        session: "656a1b2c.4d2".into(),
        user: "al".into(),
        database: "shop".into(),
        kind: Kind::Simple,
        fingerprint: Some(0x2a),
        due_us,
        sent_us: Some(due_us),
        service_us: Some(250),
        schedule_error_us: Some(1),
        dependency_lag_us: None,
        input_late_us: None,
        rows: Some(1),
        disposition,
        captured_us: Some(240),
        order_wait_us: Some(30),
        captured_rows: Some(2),
        check: Some(ResultCheck::Different),
    }
}
