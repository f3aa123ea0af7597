//! Tests that write, damage, truncate and read captures.

mod support;

use std::{fs, io, path::Path};

use howdah_traffic::{Action, Bound, Event, EventHash, Kind, Parameter, Timestamp, WireDetail};
use proptest::prelude::*;
use support::{any_event, collect_events, connect, simple_at, write_all};

use super::*;
use crate::{
    CaptureOrigin, CapturedServer, Corruption, DatasetKind, ReadError, WriteError,
    buffer::BufferLimits,
};

/// Limits so small that a few events make several files and row groups.
const SMALL: BufferLimits = BufferLimits {
    file_rows: 8,
    file_bytes: 4096,
    group_rows: 3,
    group_bytes: 1024,
    unsaved_max: std::time::Duration::MAX,
};

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn events_round_trip_ordered_by_time(
        events in proptest::collection::vec(any_event(), 0..60),
    ) {
        let scratch = tempfile::tempdir().unwrap();
        write_all(scratch.path(), SMALL, &events);
        let mut expected = events;
        expected.sort_by_key(|event| event.time);
        let capture = Capture::open(scratch.path()).unwrap();
        prop_assert_eq!(capture.manifest().events, expected.len() as u64);
        prop_assert_eq!(collect_events(capture.events()), expected);
    }

    #[test]
    fn time_range_contains_only_its_events(
        times in proptest::collection::vec(0_i64..40, 0..60),
        from in 0_i64..40,
        to in 0_i64..40,
    ) {
        let scratch = tempfile::tempdir().unwrap();
        let events: Vec<Event> = times.iter().map(|time| simple_at(*time)).collect();
        write_all(scratch.path(), SMALL, &events);
        let (from, to) = (Timestamp::from_micros(from), Timestamp::from_micros(to));
        let mut expected: Vec<Event> =
            events.into_iter().filter(|event| (from..to).contains(&event.time)).collect();
        expected.sort_by_key(|event| event.time);
        let capture = Capture::open(scratch.path()).unwrap();
        prop_assert_eq!(collect_events(capture.events_between(from, to)), expected);
    }
}

/// Writes captures with the given times of events, named after their capture and position.
fn write_captures(dir: &Path, times: &[Vec<i64>]) -> MergedCaptures {
    let mut captures = MergedCaptures::default();
    for (number, times) in times.iter().enumerate() {
        let event = |(at, time): (usize, &i64)| {
            let sql = format!("{} {at}", number + 1).into();
            Event { action: Action::Simple { sql }, ..connect(*time) }
        };
        let events: Vec<Event> = times.iter().enumerate().map(event).collect();
        let dir = dir.join(number.to_string());
        write_all(&dir, SMALL, &events);
        captures.add(Capture::open(&dir).unwrap()).unwrap();
    }
    captures
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn merged_captures_are_ordered_by_time_then_capture_then_arrival(
        times in proptest::collection::vec(proptest::collection::vec(0_i64..10, 0..30), 0..5),
    ) {
        let scratch = tempfile::tempdir().unwrap();
        let captures = write_captures(scratch.path(), &times);
        let mut expected: Vec<(i64, usize, usize)> = times
            .iter()
            .enumerate()
            .flat_map(|(number, times)| {
                times.iter().enumerate().map(move |(at, time)| (*time, number + 1, at))
            })
            .collect();
        expected.sort_unstable();
        prop_assert_eq!(captures.event_count(), expected.len() as u64);
        let expected: Vec<_> = expected
            .into_iter()
            .map(|(time, number, at)| {
                let sql = format!("{number} {at}").into();
                Event {
                    session: format!("{number}/{}", connect(0).session).into(),
                    action: Action::Simple { sql },
                    ..connect(time)
                }
            })
            .collect();
        prop_assert_eq!(collect_events(captures.events(SameNameSessions::Separate)), expected);
    }
}

#[test]
fn joined_captures_keep_session_names() {
    let scratch = tempfile::tempdir().unwrap();
    let captures = write_captures(scratch.path(), &[vec![1, 3], vec![2]]);
    let joined = collect_events(captures.events(SameNameSessions::Joined));
    assert!(joined.iter().all(|event| event.session == connect(0).session));
    let times: Vec<i64> = joined.iter().map(|event| event.time.as_micros()).collect();
    assert_eq!(times, [1, 2, 3]);
}

#[test]
fn captures_with_different_encodings_are_not_merged() {
    let scratch = tempfile::tempdir().unwrap();
    let capture = |file: &str, encoding: &str| {
        let dir = scratch.path().join(file);
        let origin = CaptureOrigin {
            files: vec![file.to_owned()],
            encodings: [("shop".to_owned(), encoding.to_owned())].into(),
            ..CaptureOrigin::default()
        };
        let settings = CaptureSettings { origin, ..CaptureSettings::default() };
        CaptureWriter::create(&dir, settings).unwrap().finish(serde_json::Value::Null).unwrap();
        Capture::open(&dir).unwrap()
    };
    let mut captures = MergedCaptures::default();
    captures.add(capture("a", "LATIN1")).unwrap();
    let error = captures.add(capture("b", "UTF8")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "database \"shop\" has the encoding UTF8 in this capture, but LATIN1 in an earlier one"
    );
    captures.add(capture("c", "LATIN1")).unwrap();
    assert_eq!(captures.origin().files, ["a", "c"]);
}

#[test]
fn server_of_merged_captures_has_the_position_of_the_first() {
    let scratch = tempfile::tempdir().unwrap();
    let capture = |file: &str, identifier: &str, micros: i64| {
        let server = CapturedServer {
            system_identifier: Some(identifier.to_owned()),
            lsn: Some(format!("0/{micros}")),
            ..CapturedServer::default()
        };
        let origin = CaptureOrigin { server: Some(server), ..CaptureOrigin::default() };
        let settings = CaptureSettings { origin, ..CaptureSettings::default() };
        let mut writer = CaptureWriter::create(&scratch.path().join(file), settings).unwrap();
        writer.write(connect(micros)).unwrap();
        writer.finish(serde_json::Value::Null).unwrap();
        Capture::open(&scratch.path().join(file)).unwrap()
    };
    let mut captures = MergedCaptures::default();
    for (file, micros) in [("a", 20), ("b", 10), ("c", 30)] {
        captures.add(capture(file, "7", micros)).unwrap();
    }
    let server = captures.origin().server.as_ref().unwrap();
    assert_eq!(server.lsn.as_deref(), Some("0/10"));
    captures.add(capture("d", "8", 40)).unwrap();
    assert_eq!(captures.origin().server, None);
}

#[test]
fn too_many_captures_are_not_merged() {
    let scratch = tempfile::tempdir().unwrap();
    write_all(scratch.path(), SMALL, &[]);
    let capture = Capture::open(scratch.path()).unwrap();
    let mut captures = MergedCaptures::default();
    for _ in 0..MergedCaptures::CAPTURES_MAX {
        captures.add(capture.clone()).unwrap();
    }
    assert_eq!(captures.add(capture), Err(CaptureMergeError::TooMany));
}

/// Generates texts that fill pages and exceed a dictionary, mixed with repeated texts.
#[test]
fn full_pages_and_dictionaries_round_trip() {
    let scratch = tempfile::tempdir().unwrap();
    let value = |number: usize, index: usize| match (number + index) % 7 {
        0 => Parameter::Null,
        1 => Parameter::Value("the same".into()),
        2 => Parameter::Truncated("".into()),
        3 => Parameter::Value(vec![0xFF; number % 300].into()),
        _ => Parameter::Value(format!("{number}.{index} {}", "x".repeat(number % 500)).into()),
    };
    let event = |number: usize| {
        let values = (0..number % 9).map(|index| value(number, index)).collect();
        let bound = Bound {
            // Half of them repeat.
            statement: format!("{} {}", number / 2, "y".repeat(900)).into(),
            portal: if number < 4000 { "".into() } else { "p".into() },
            sql: format!("select {}", number % 50).into(),
            parameters: (!number.is_multiple_of(11)).then_some(values),
        };
        let mut event = simple_at(i64::try_from(number).unwrap());
        event.action = Action::Execute(bound);
        event.outcome.duration_us = (!number.is_multiple_of(3)).then_some(number as u64);
        event.wire =
            Some(Box::new(WireDetail { types: vec![23; number % 40], ..WireDetail::default() }));
        event
    };
    let events: Vec<Event> = (0..6000).map(event).collect();
    write_all(scratch.path(), BufferLimits::default(), &events);
    let capture = Capture::open(scratch.path()).unwrap();
    assert!(collect_events(capture.events()) == events);
}

#[test]
fn late_events_do_not_keep_row_groups_open() {
    let scratch = tempfile::tempdir().unwrap();
    // Each of 50 files gets one event that started before all others.
    let events: Vec<Event> =
        (0..400).map(|time| simple_at(if time % 8 == 7 { time - 1000 } else { time })).collect();
    write_all(scratch.path(), SMALL, &events);
    let capture = Capture::open(scratch.path()).unwrap();
    let mut stream = capture.events();
    let mut reading_at_once = 0;
    let mut last = Timestamp::from_micros(i64::MIN);
    while let Some(event) = stream.next() {
        let time = event.unwrap().time;
        assert!(time >= last);
        last = time;
        reading_at_once = reading_at_once.max(stream.open_groups());
    }
    assert!(reading_at_once <= 2, "{reading_at_once} row groups were open at once");
}

#[test]
fn manifest_describes_events() {
    let scratch = tempfile::tempdir().unwrap();
    let events = [simple_at(20), connect(10), simple_at(30)];
    let written = write_all(scratch.path(), BufferLimits::default(), &events);
    let capture = Capture::open(scratch.path()).unwrap();
    assert_eq!(capture.manifest(), &written);
    assert_eq!(written.first, Some(Timestamp::from_micros(10)));
    assert_eq!(written.last, Some(Timestamp::from_micros(30)));
    let kinds: Vec<_> = written.kinds.iter().map(|(kind, n)| (kind.as_str(), *n)).collect();
    assert_eq!(kinds, [("connect", 1), ("simple", 2)]);
    assert_eq!((written.files, written.finished), (1, true));
    assert_eq!(written.report["said"], "by the test");
}

#[test]
fn empty_capture_is_valid() {
    let scratch = tempfile::tempdir().unwrap();
    write_all(scratch.path(), SMALL, &[]);
    let capture = Capture::open(scratch.path()).unwrap();
    assert_eq!((capture.manifest().events, capture.manifest().first), (0, None));
    assert!(capture.events().next().is_none());
}

/// Leaves a folder in the state in which a killed writer leaves it: 16 of 20 events, in two files.
fn write_and_crash(dir: &Path) {
    let mut writer = CaptureWriter::with_limits(dir, CaptureSettings::default(), SMALL).unwrap();
    for time in 0..20 {
        writer.write(simple_at(time)).unwrap();
    }
    drop(writer);
}

#[test]
fn killed_writer_leaves_finished_files() {
    let scratch = tempfile::tempdir().unwrap();
    write_and_crash(scratch.path());
    fs::write(scratch.path().join(".events-000003.parquet.tmp"), b"PAR1 half").unwrap();
    let capture = Capture::open(scratch.path()).unwrap();
    assert_eq!((capture.manifest().events, capture.manifest().finished), (16, false));
    assert_eq!(collect_events(capture.events()), (0..16).map(simple_at).collect::<Vec<_>>());
}

#[test]
fn stopped_capture_keeps_events_and_is_unfinished() {
    let scratch = tempfile::tempdir().unwrap();
    let mut writer = CaptureWriter::create(scratch.path(), CaptureSettings::default()).unwrap();
    writer.write(simple_at(1)).unwrap();
    writer.stop(serde_json::json!({ "error": "the disk of the log broke" })).unwrap();
    let capture = Capture::open(scratch.path()).unwrap();
    assert_eq!((capture.manifest().events, capture.manifest().finished), (1, false));
    assert_eq!(capture.manifest().report["error"], "the disk of the log broke");
}

#[test]
fn file_newer_than_manifest_is_counted() {
    let scratch = tempfile::tempdir().unwrap();
    let manifest = scratch.path().join(DatasetKind::Capture.manifest_name());
    let mut writer =
        CaptureWriter::with_limits(scratch.path(), CaptureSettings::default(), SMALL).unwrap();
    for time in 0..9 {
        writer.write(simple_at(time)).unwrap();
    }
    let after_one_file = fs::read(&manifest).unwrap();
    for time in 9..20 {
        writer.write(simple_at(time)).unwrap();
    }
    drop(writer);
    fs::write(&manifest, after_one_file).unwrap();

    let capture = Capture::open(scratch.path()).unwrap();
    assert_eq!((capture.manifest().files, capture.manifest().events), (2, 16));
    assert_eq!(capture.manifest().last, Some(Timestamp::from_micros(15)));
}

#[test]
fn capture_is_overwritten_only_on_request() {
    let scratch = tempfile::tempdir().unwrap();
    write_and_crash(scratch.path());
    let create = |overwrite| {
        let settings = CaptureSettings { overwrite, ..CaptureSettings::default() };
        CaptureWriter::create(scratch.path(), settings)
    };
    let refused = create(false).unwrap_err();
    assert!(matches!(refused, WriteError::Exists { .. }), "{refused}");
    assert_eq!(Capture::open(scratch.path()).unwrap().manifest().events, 16);

    fs::write(scratch.path().join("notes.txt"), "mine").unwrap();
    create(true).unwrap().finish(serde_json::Value::Null).unwrap();
    assert_eq!(Capture::open(scratch.path()).unwrap().manifest().events, 0);
    assert_eq!(fs::read_to_string(scratch.path().join("notes.txt")).unwrap(), "mine");
    assert!(!scratch.path().join("events-000001.parquet").exists());
}

#[test]
fn folder_of_killed_writer_is_usable() {
    let scratch = tempfile::tempdir().unwrap();
    let create = || CaptureWriter::create(scratch.path(), CaptureSettings::default());
    fs::write(scratch.path().join(".capture.json.tmp"), "{").unwrap();
    create().unwrap().finish(serde_json::Value::Null).unwrap();
    assert_eq!(Capture::open(scratch.path()).unwrap().manifest().events, 0);
    assert!(!scratch.path().join(".capture.json.tmp").exists());

    fs::remove_file(scratch.path().join("capture.json")).unwrap();
    fs::write(scratch.path().join("capture.json.tmp"), "mine").unwrap();
    assert!(matches!(create().unwrap_err(), WriteError::NotEmpty { .. }));
}

#[test]
fn foreign_folders_are_never_overwritten() {
    let scratch = tempfile::tempdir().unwrap();
    let create = |dir: &Path| {
        let settings = CaptureSettings { overwrite: true, ..CaptureSettings::default() };
        CaptureWriter::create(dir, settings).unwrap_err()
    };
    fs::write(scratch.path().join("thesis.txt"), "years of work").unwrap();
    let error = create(scratch.path());
    assert!(matches!(error, WriteError::NotEmpty { .. }), "{error}");
    let error = create(&scratch.path().join("thesis.txt"));
    assert!(matches!(error, WriteError::NotADirectory { .. }), "{error}");
    fs::write(scratch.path().join("run.json"), "{}").unwrap();
    let error = create(scratch.path());
    assert!(matches!(error, WriteError::OtherKind { .. }), "{error}");
    assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 2);
}

#[test]
fn invalid_capture_is_reported_with_path() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("capture");
    let open = || Capture::open(&dir).unwrap_err();
    assert!(matches!(open(), ReadError::Missing { dir: d } if d == dir));
    fs::create_dir(&dir).unwrap();
    assert!(matches!(open(), ReadError::NotADataset { .. }));
    fs::write(dir.join("run.json"), "{}").unwrap();
    assert!(matches!(open(), ReadError::OtherKind { .. }));
    fs::write(dir.join("capture.json"), "{\"format\":").unwrap();
    assert!(matches!(open(), ReadError::Damaged { source: Corruption::Manifest(_), .. }));
    fs::write(dir.join("capture.json"), r#"{"format":"howdah-capture","version":6}"#).unwrap();
    let error = open();
    assert!(matches!(error, ReadError::Version { found: 6, supported: 5, .. }));
    assert!(error.to_string().contains("capture.json"), "{error}");
    fs::write(dir.join("capture.json"), r#"{"format":"other","version":4}"#).unwrap();
    assert!(matches!(open(), ReadError::NotADataset { .. }));
    let file = scratch.path().join("a-file");
    fs::write(&file, "text").unwrap();
    assert!(matches!(Capture::open(&file).unwrap_err(), ReadError::NotADataset { .. }));
}

#[test]
fn version_1_capture_is_read_without_new_columns() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let capture = Capture::open(&root.join("tests/fixtures/capture-version-1")).unwrap();
    assert_eq!(capture.manifest().version, 1);
    let events = collect_events(capture.events());
    let kinds: Vec<_> = events.iter().map(|event| event.action.kind()).collect();
    assert_eq!(kinds, [Kind::Connect, Kind::Execute, Kind::Disconnect]);
    assert!(events.iter().all(|event| event.pipeline.is_none()));
    assert_eq!((events[1].vxid.as_deref(), events[1].query_id), (Some("3/2"), Some(77)));
}

#[test]
fn version_3_capture_has_its_wire_details() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let capture = Capture::open(&root.join("tests/fixtures/capture-version-3")).unwrap();
    assert_eq!(capture.manifest().version, 3);
    let events = collect_events(capture.events());
    assert!(events.iter().all(|event| {
        event.wire.as_ref().is_some_and(|wire| wire.messages.is_none() && wire.arguments.is_none())
    }));
    let executed = events.iter().find(|event| event.action.kind() == Kind::Execute).unwrap();
    let wire = executed.wire.as_ref().unwrap();
    assert_eq!((wire.rows, &*wire.result_formats), (Some(1), &[0][..]));
    // The hash written by the recorder of that version matches what is read.
    let mut hash = EventHash::default();
    events.iter().for_each(|event| hash.add(event));
    assert_eq!(capture.manifest().report["hash"], hash.to_string());
}

#[test]
fn missing_or_foreign_file_is_an_error() {
    let scratch = tempfile::tempdir().unwrap();
    let events: Vec<Event> = (0..20).map(simple_at).collect();
    write_all(scratch.path(), SMALL, &events);
    let second = scratch.path().join("events-000002.parquet");
    let copy = fs::read(&second).unwrap();
    fs::write(scratch.path().join("events-000004.parquet"), &copy).unwrap();
    let error = Capture::open(scratch.path()).unwrap_err();
    assert!(
        matches!(error, ReadError::Damaged { source: Corruption::UncountedFile, .. }),
        "{error}"
    );
    fs::remove_file(scratch.path().join("events-000004.parquet")).unwrap();
    fs::remove_file(&second).unwrap();
    match Capture::open(scratch.path()).unwrap_err() {
        ReadError::Damaged { path, source: Corruption::MissingFile } => assert_eq!(path, second),
        error => panic!("{error}"),
    }
}

#[test]
fn truncated_file_is_an_error_with_path() {
    let scratch = tempfile::tempdir().unwrap();
    write_all(scratch.path(), SMALL, &(0..8).map(simple_at).collect::<Vec<_>>());
    let path = scratch.path().join("events-000001.parquet");
    let whole = fs::read(&path).unwrap();
    for end in (0..whole.len()).step_by(97) {
        fs::write(&path, &whole[..end]).unwrap();
        match Capture::open(scratch.path()).unwrap_err() {
            ReadError::Damaged { path: said, .. } => assert_eq!(said, path),
            error => panic!("cut at {end}: {error}"),
        }
    }
}

#[test]
fn damaged_byte_never_panics_and_ends_the_stream() {
    let scratch = tempfile::tempdir().unwrap();
    let events: Vec<Event> = (0..8).map(simple_at).collect();
    write_all(scratch.path(), SMALL, &events);
    let path = scratch.path().join("events-000001.parquet");
    let whole = fs::read(&path).unwrap();
    // Every byte would take a minute; a prime step reaches every column and the footer.
    for at in (0..whole.len()).step_by(13) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x55;
        fs::write(&path, bytes).unwrap();
        let Ok(capture) = Capture::open(scratch.path()) else { continue };
        let mut stream = capture.events();
        let good = stream.by_ref().take_while(Result::is_ok).count();
        assert!(good <= events.len(), "byte {at} made events");
        assert!(stream.next().is_none(), "byte {at}: an error was not the end");
    }
}

#[test]
fn foreign_parquet_file_is_rejected() {
    use std::sync::Arc;

    use arrow_array::{Int64Array, RecordBatch};
    use parquet::arrow::ArrowWriter;

    let scratch = tempfile::tempdir().unwrap();
    write_and_crash(scratch.path());
    let numbers = Arc::new(Int64Array::from(vec![1, 2, 3])) as _;
    let batch = RecordBatch::try_from_iter([("time", numbers)]).unwrap();
    let file = fs::File::create(scratch.path().join("events-000002.parquet")).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let error = Capture::open(scratch.path()).unwrap_err();
    assert!(matches!(error, ReadError::Damaged { source: Corruption::NoVersion, .. }), "{error}");
}

#[test]
fn oversized_event_is_refused_and_next_accepted() {
    let scratch = tempfile::tempdir().unwrap();
    let mut writer = CaptureWriter::create(scratch.path(), CaptureSettings::default()).unwrap();
    let mut large = simple_at(1);
    let sql = vec![b'x'; crate::ROW_BYTES_MAX + 1];
    large.action = Action::Simple { sql: sql.into() };
    let refused = writer.write(large).unwrap_err();
    assert!(matches!(refused, WriteError::RowTooLarge { .. }), "{refused}");
    writer.write(simple_at(2)).unwrap();
    assert_eq!(writer.finish(serde_json::Value::Null).unwrap().events, 1);
}

#[test]
fn event_stream_is_send() {
    fn is_send<T: Send>() {}
    is_send::<Events>();
    is_send::<CaptureWriter>();
}

/// Runs in a separate process. The shell limits the size of its files to 64 KiB, which acts like a
/// full disk for this process only.
#[test]
fn full_disk_keeps_finished_files() {
    let scratch = tempfile::tempdir().unwrap();
    let status = std::process::Command::new("sh")
        // Blocks of 512 bytes or 1 KiB, depending on the shell. Without the trap the signal would
        // kill.
        .args(["-c", r#"trap "" XFSZ; ulimit -f 64; exec "$0" "$@""#])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "capture::tests::fill_the_disk", "--ignored", "--quiet"])
        .env("HOWDAH_TEST_DIR", scratch.path())
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    let capture = Capture::open(scratch.path()).unwrap();
    assert_eq!((capture.manifest().events, capture.manifest().finished), (8, false));
    assert_eq!(collect_events(capture.events()).len(), 8);
    let names: Vec<_> =
        fs::read_dir(scratch.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

#[test]
#[ignore = "started by full_disk_keeps_finished_files with a limit on file sizes"]
fn fill_the_disk() {
    let Some(dir) = std::env::var_os("HOWDAH_TEST_DIR") else { return };
    let limits = BufferLimits { file_bytes: 1 << 20, ..SMALL };
    let mut writer =
        CaptureWriter::with_limits(dir.as_ref(), CaptureSettings::default(), limits).unwrap();
    for time in 0..8 {
        writer.write(simple_at(time)).unwrap();
    }
    let mut noise = 1_u64;
    let mut incompressible = || {
        noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        char::from(b'!' + u8::try_from((noise >> 33) % 90).unwrap())
    };
    for time in 8..16 {
        let sql: String = (0..50_000).map(|_| incompressible()).collect();
        let mut event = simple_at(time);
        event.action = Action::Simple { sql: sql.into() };
        writer.write(event).unwrap();
    }
    for _ in 0..2 {
        match writer.write(simple_at(16)).unwrap_err() {
            WriteError::NoRoom { files_kept, source, path } => {
                assert_eq!(files_kept, 1);
                assert!(path.ends_with("events-000002.parquet"), "{}", path.display());
                assert_eq!(source.kind(), io::ErrorKind::FileTooLarge);
            }
            error => panic!("{error}"),
        }
    }
}

#[test]
fn events_are_saved_before_a_file_is_full() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    let limits = BufferLimits { unsaved_max: std::time::Duration::ZERO, ..SMALL };
    let settings = || CaptureSettings { overwrite: true, ..CaptureSettings::default() };
    let mut writer = CaptureWriter::with_limits(dir, settings(), limits).unwrap();
    for micros in [3, 1, 2] {
        writer.write(connect(micros)).unwrap();
    }
    // As a reader finds it after a crash.
    let found = Capture::open(dir).unwrap();
    assert_eq!((found.manifest().finished, found.manifest().events), (false, 2));
    writer.save_if_due().unwrap();
    let found = Capture::open(dir).unwrap();
    assert_eq!((found.manifest().files, found.manifest().events), (1, 3));
    let times = |capture: &Capture| -> Vec<i64> {
        collect_events(capture.events()).iter().map(|event| event.time.as_micros()).collect()
    };
    assert_eq!(times(&found), [1, 2, 3]);
    for micros in 0..8 {
        writer.write(connect(micros)).unwrap();
    }
    let manifest = writer.finish(serde_json::Value::Null).unwrap();
    assert_eq!((manifest.files, manifest.events, manifest.finished), (2, 11, true));
    assert_eq!(times(&Capture::open(dir).unwrap()).len(), 11);
}
