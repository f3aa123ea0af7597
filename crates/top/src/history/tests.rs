//! Tests that histories and recordings are restored, limited, and robust against damaged files.

use std::{collections::BTreeMap, fs, io::Write as _, path::Path};

use howdah_collect::{
    BackendActivity, BackendState, BackendType, BackendWait, Blocker, MissingPrivilege, Overview,
    SqlText, VIEWS, ViewCell, ViewSample, WaitCount, WaitCounts, rates,
};
use proptest::prelude::*;

use super::*;
use crate::{
    ServerSnapshot,
    host::{HostFigures, ProcessFigures},
    sampler::tests::snapshot,
    waits::WaitHistory,
};

const SECOND: i64 = 1_000_000;
const START: i64 = 1_700_000_000 * SECOND;

/// A small deterministic generator of pseudo-random numbers.
struct TestRng(u64);

impl TestRng {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    fn below(&mut self, sides: u64) -> i64 {
        self.roll(sides).cast_signed()
    }
}

/// Returns the sessions of a server that is busy as under pgbench. In each sample, each session has
/// a new statement.
fn busy_backends(rng: &mut TestRng, now_us: i64, sessions: i32) -> Vec<BackendActivity> {
    let session = |pid: i32| {
        let started_us = now_us - rng.below(5_000);
        let waits = [("Client", "ClientRead"), ("LWLock", "WALWrite"), ("Lock", "transactionid")];
        let (class, event) = waits[rng.roll(3) as usize];
        let query = format!(
            "UPDATE pgbench_accounts SET abalance = abalance + {} WHERE aid = {};",
            rng.below(10_000) - 5_000,
            rng.below(10_000_000)
        );
        BackendActivity {
            pid: 10_000 + pid,
            started_us: START - i64::from(pid),
            database: Some("pgbench".into()),
            user: Some("app".into()),
            application: Some("pgbench".into()),
            client: Some("10.0.0.7".into()),
            client_port: Some(40_000 + pid),
            kind: Some(BackendType::Client),
            state: Some(
                [BackendState::Active, BackendState::IdleInTransaction][rng.roll(2) as usize],
            ),
            wait: Some(BackendWait { class: class.into(), event: event.into() }),
            xid_age: (rng.roll(2) == 0).then(|| rng.below(300)),
            xmin_age: Some(rng.below(300)),
            transaction_started_us: Some(started_us - rng.below(3_000)),
            query_started_us: Some(started_us),
            state_changed_us: Some(started_us),
            query_id: Some(i64::MAX - i64::from(pid % 7)),
            query: Some(SqlText::new(query.as_bytes(), None, Some(1024))),
            blockers: if rng.roll(20) == 0 { vec![Blocker::Process(10_000)] } else { Vec::new() },
            is_readable: true,
            ..BackendActivity::default()
        }
    };
    (0..sessions).map(session).collect()
}

/// Creates a snapshot with some data of every kind.
fn full_snapshot(
    rng: &mut TestRng,
    at_us: i64,
    sessions: i32,
    before: Option<&ServerSnapshot>,
) -> ServerSnapshot {
    let overview = Overview {
        taken_us: at_us + 7,
        commits: at_us / 1000,
        wal_bytes: Some(at_us / 10),
        replay_lag_seconds: Some(0.25),
        frozen_age: Some(rng.below(1000)),
        followers_lag_bytes: Some(rng.below(1 << 30)),
        followers_lag_seconds: Some(1.5),
        ..Overview::default()
    };
    let view = &VIEWS[0];
    let cell = |at: usize, rng: &mut TestRng| match at % 4 {
        0 => ViewCell::Integer(at_us / 1000 + rng.below(10)),
        1 => ViewCell::Real(0.5),
        2 => ViewCell::Null,
        _ => ViewCell::Unavailable,
    };
    let row = |name: &str, rng: &mut TestRng| -> Box<[ViewCell]> {
        let rest = (1..view.columns.len()).map(|at| cell(at, rng));
        std::iter::once(ViewCell::from(name)).chain(rest).collect()
    };
    let rows = [row("shop", rng), row("postgres", rng)].into();
    let reading = ViewSample { view, taken_us: at_us, rows };
    let earlier = before.and_then(|before| before.view.as_ref()).map(|rate_view| &rate_view.sample);
    let mut waits = before.map_or_else(WaitHistory::default, |before| (*before.waits).clone());
    waits.add(at_us, &WaitCounts::new([WaitCount { wait: None, sessions: 3 }]));
    let backends = busy_backends(rng, at_us, sessions);
    let mut figures = |backend: &BackendActivity| {
        let cpu_percent = Some(rng.below(100) as f64 / 4.0);
        let memory_bytes = Some(rng.below(1 << 20));
        (backend.pid, ProcessFigures { cpu_percent, memory_bytes, ..ProcessFigures::default() })
    };
    ServerSnapshot {
        processes: Some(backends.iter().step_by(2).map(&mut figures).collect()),
        missing: Arc::new([MissingPrivilege {
            what: "sizes".into(),
            remedy: "GRANT x TO y".to_owned(),
        }]),
        overview,
        previous_overview: before.map(|before| before.overview.clone()),
        view: Some(rates(earlier, &reading)),
        view_error: Some("no \u{1b} here".to_owned()).filter(|_| rng.roll(2) == 0),
        pooled_clients: None,
        host: Some(HostFigures { cpu_percent: Some(12.5), ..HostFigures::default() }),
        sampled_us: at_us,
        waits: Arc::new(waits),
        ..snapshot(at_us, backends)
    }
}

fn snapshots(count: i64, sessions: i32) -> Vec<Arc<ServerSnapshot>> {
    let mut rng = TestRng(42);
    let mut recorded: Vec<Arc<ServerSnapshot>> = Vec::new();
    for at in 0..count {
        let last = recorded.last().map(|last| &**last);
        recorded.push(Arc::new(full_snapshot(&mut rng, START + at * 2 * SECOND, sessions, last)));
    }
    recorded
}

fn history(limits: HistoryLimits) -> SnapshotHistory {
    SnapshotHistory::new(["db1".to_owned()], limits).unwrap()
}

/// Returns all recorded fields of a snapshot, as text.
fn kept_fields(snapshot: &ServerSnapshot) -> String {
    let ServerSnapshot {
        server: identity,
        missing,
        activity,
        overview,
        previous_overview: before,
        view,
        host,
        processes,
        ..
    } = snapshot;
    let processes: Option<BTreeMap<_, _>> = processes.as_ref().map(|them| them.iter().collect());
    let view = view.as_ref().map(|view| (&view.rows, &view.sample.rows, view.seconds));
    format!(
        "{identity:?} {missing:?} {activity:?} {overview:?} {before:?} {view:?} {host:?} {processes:?}"
    )
}

fn expect_snapshot(look: &PastState) -> &ServerSnapshot {
    let ServerHealth::Read(snapshot) = &look.health else { panic!("{look:?}") };
    snapshot
}

#[test]
fn every_moment_is_restored() {
    let history = history(HistoryLimits::MEMORY);
    let recorded = snapshots(300, 20);
    for snapshot in &recorded {
        history.push(0, &ServerHealth::Read(Arc::clone(snapshot)), None).unwrap();
    }
    assert_eq!(history.range(0), Some((START, recorded[299].sampled_us)));
    for at in [0, 1, 119, 120, 121, 299] {
        let look = history.at(0, recorded[at].sampled_us, Some(VIEWS[0].name)).unwrap().unwrap();
        assert_eq!(look.at_us, recorded[at].sampled_us);
        assert_eq!(kept_fields(expect_snapshot(&look)), kept_fields(&recorded[at]), "{at}");
        assert_eq!(expect_snapshot(&look).waits.seconds().count(), at + 1);
    }
    assert!(history.at(0, START - 1, None).unwrap().is_none());
    let between = history.at(0, START + SECOND, None).unwrap().unwrap();
    assert_eq!(between.at_us, START);
}

#[test]
fn latest_earlier_view_sample_is_shown() {
    let history = history(HistoryLimits::MEMORY);
    for (at, snapshot) in snapshots(130, 1).into_iter().enumerate() {
        let view = snapshot.view.clone().filter(|_| at == 100);
        let snapshot = ServerSnapshot { view: None, background_view: view, ..(*snapshot).clone() };
        history.push(0, &ServerHealth::Read(Arc::new(snapshot)), None).unwrap();
    }
    let has_view = |at: i64| {
        let look = history.at(0, START + at * 2 * SECOND, Some(VIEWS[0].name)).unwrap().unwrap();
        expect_snapshot(&look).view.is_some()
    };
    // The last of these is in the next segment.
    assert_eq!([99, 100, 110, 129].map(has_view), [false, true, true, true]);
}

#[test]
fn steps_move_by_samples_and_stop_at_ends() {
    let history = history(HistoryLimits::MEMORY);
    for snapshot in snapshots(5, 1) {
        history.push(0, &ServerHealth::Read(snapshot), None).unwrap();
    }
    let at = |reading: i64| START + reading * 2 * SECOND;
    assert_eq!(history.step(0, at(2), -1), Some(at(1)));
    assert_eq!(history.step(0, at(2) + 1, 1), Some(at(3)));
    assert_eq!(history.step(0, at(2), -9), Some(at(0)));
    assert_eq!(history.step(0, i64::MAX, 0), Some(at(4)));
    assert_eq!(history.step(1, at(2), 1), None);
}

#[test]
fn unreachable_server_is_unreachable_in_its_history() {
    let history = history(HistoryLimits::MEMORY);
    let recorded = snapshots(2, 3);
    let now = std::time::Instant::now();
    let unreachable = |last: &Arc<ServerSnapshot>| ServerHealth::Unreachable {
        reason: "the server \u{1b}[2J closed the connection".to_owned(),
        since: now,
        retry_at: now,
        last: Some(Arc::clone(last)),
    };
    history.push(0, &ServerHealth::Read(Arc::clone(&recorded[0])), None).unwrap();
    // Only one of several consecutive failures is stored.
    for _ in 0..3 {
        history.push(0, &unreachable(&recorded[0]), None).unwrap();
    }
    let (_, last_us) = history.range(0).unwrap();
    let look = history.at(0, last_us, None).unwrap().unwrap();
    let ServerHealth::Unreachable { reason, last, .. } = &look.health else { panic!("{look:?}") };
    assert_eq!(reason, "the server ␛[2J closed the connection");
    assert_eq!(last.as_ref().unwrap().activity.backends.len(), 3);
    assert_eq!(history.step(0, last_us, -1), Some(START));
    assert_eq!(history.step(0, START, 1), Some(last_us));
}

#[test]
fn hour_of_200_busy_sessions_fits_in_64_mb() {
    let history = history(HistoryLimits { bytes: u64::MAX, ..HistoryLimits::MEMORY });
    let mut rng = TestRng(7);
    // One sample every two seconds; all sessions change completely in each.
    for at in 0..1800 {
        let at_us = START + at * 2 * SECOND;
        let snapshot = ServerSnapshot {
            sampled_us: at_us,
            ..snapshot(at_us, busy_backends(&mut rng, at_us, 200))
        };
        history.push(0, &ServerHealth::Read(Arc::new(snapshot)), None).unwrap();
    }
    let memory_bytes = history.memory_bytes();
    assert!(memory_bytes < 64 << 20, "{memory_bytes} bytes");
    assert!(memory_bytes > 1 << 20, "it cannot be that small: {memory_bytes} bytes");
}

#[test]
fn oldest_segments_are_dropped_by_size_and_age() {
    let bytes = 256 << 10;
    let small = history(HistoryLimits { bytes, ..HistoryLimits::MEMORY });
    let young = history(HistoryLimits { age: Duration::from_secs(600), ..HistoryLimits::MEMORY });
    for snapshot in snapshots(1000, 20) {
        small.push(0, &ServerHealth::Read(Arc::clone(&snapshot)), None).unwrap();
        young.push(0, &ServerHealth::Read(snapshot), None).unwrap();
    }
    // One segment over the limit is allowed.
    assert!(small.memory_bytes() < 2 * usize::try_from(bytes).unwrap(), "{}", small.memory_bytes());
    let (first, last) = young.range(0).unwrap();
    assert!((600 * SECOND..900 * SECOND).contains(&(last - first)), "{}", last - first);
}

fn record(path: &Path, limits: HistoryLimits, recorded: &[Arc<ServerSnapshot>]) {
    let history = history(HistoryLimits::MEMORY);
    let recorder = Mutex::new(HistoryRecorder::open(path, limits).unwrap());
    for snapshot in recorded {
        history.push(0, &ServerHealth::Read(Arc::clone(snapshot)), Some(&recorder)).unwrap();
    }
}

fn replayed(path: &Path) -> (Vec<(i64, String)>, RecordingGap) {
    let recording = TopRecording::open(path).unwrap();
    let mut all = Vec::new();
    recording
        .history
        .play(0, Some(VIEWS[0].name), |at_us, health| {
            let look = PastState { at_us, health };
            all.push((at_us, kept_fields(expect_snapshot(&look))));
            true
        })
        .unwrap();
    (all, recording.gap)
}

fn expected(recorded: &[Arc<ServerSnapshot>]) -> Vec<(i64, String)> {
    recorded.iter().map(|snapshot| (snapshot.sampled_us, kept_fields(snapshot))).collect()
}

#[test]
fn recording_round_trips_and_can_be_continued() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("top.rec");
    let recorded = snapshots(200, 5);
    record(&path, HistoryLimits::FILE, &recorded[..150]);
    assert_eq!(replayed(&path), (expected(&recorded[..150]), RecordingGap::default()));
    record(&path, HistoryLimits::FILE, &recorded[150..]);
    let (all, _) = replayed(&path);
    let moments: Vec<_> = all.iter().map(|(at_us, _)| *at_us).collect();
    assert_eq!(moments, recorded.iter().map(|snapshot| snapshot.sampled_us).collect::<Vec<_>>());
    let recording = TopRecording::open(&path).unwrap();
    assert_eq!(recording.history.names(), ["db1"]);
    // The last second of each run may have been incomplete.
    let look = recording.history.at(0, i64::MAX, None).unwrap().unwrap();
    assert_eq!(expect_snapshot(&look).waits.seconds().count(), 199);
}

#[test]
fn truncated_file_is_read_and_appended_to() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("top.rec");
    let recorded = snapshots(12, 2);
    record(&path, HistoryLimits::FILE, &recorded[..8]);
    let whole = fs::read(&path).unwrap();
    let all = expected(&recorded[..8]);
    // All lengths are read, but appending to each would take too long.
    let mut counts = Vec::new();
    for length in (17..whole.len()).rev() {
        fs::write(&path, &whole[..length]).unwrap();
        let Ok(recording) = TopRecording::open(&path) else {
            assert!(length < 4000, "{length}");
            continue;
        };
        let mut count = 0;
        recording
            .history
            .play(0, None, |_, _| {
                count += 1;
                true
            })
            .unwrap();
        if counts.last() != Some(&count) {
            counts.push(count);
        }
        if length % 97 == 0 {
            record(&path, HistoryLimits::FILE, &recorded[8..]);
            let (restored, gap) = replayed(&path);
            assert_eq!(restored[..count], all[..count], "{length}");
            let moments: Vec<_> = restored[count..].iter().map(|(at_us, _)| *at_us).collect();
            let later: Vec<_> = recorded[8..].iter().map(|snapshot| snapshot.sampled_us).collect();
            assert_eq!(moments, later, "{length}");
            assert!(gap.runs <= 1, "{gap:?}");
        }
    }
    assert_eq!(counts, [8, 7, 6, 5, 4, 3, 2, 1]);
}

#[test]
fn corrupt_byte_costs_one_segment() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("top.rec");
    let recorded = snapshots(400, 3);
    record(&path, HistoryLimits::FILE, &recorded);
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    fs::write(&path, &bytes).unwrap();
    let (all, gap) = replayed(&path);
    assert_eq!(gap.runs, 1);
    // The rest of one segment of 120 frames is lost.
    assert!((280..400).contains(&all.len()), "{}", all.len());
    assert_eq!(all.last().map(|(at_us, _)| *at_us), recorded.last().map(|last| last.sampled_us));
}

#[test]
fn recording_stays_within_its_limits() {
    let folder = tempfile::tempdir().unwrap();
    let recorded = snapshots(2000, 4);
    let small = folder.path().join("small.rec");
    let bytes = 128 << 10;
    record(&small, HistoryLimits { bytes, ..HistoryLimits::FILE }, &recorded);
    let length = fs::metadata(&small).unwrap().len();
    // The file is compacted when a segment starts.
    assert!(length < bytes + bytes / 2, "{length}");
    let (all, gap) = replayed(&small);
    assert_eq!(gap, RecordingGap::default());
    assert_eq!(all.last().map(|(at_us, _)| *at_us), recorded.last().map(|last| last.sampled_us));
    assert!(all.len() > 100, "{}", all.len());
    let young = folder.path().join("young.rec");
    record(
        &young,
        HistoryLimits { age: Duration::from_secs(1000), ..HistoryLimits::FILE },
        &recorded,
    );
    let (all, _) = replayed(&young);
    assert!((400..1000).contains(&all.len()), "{}", all.len());
    assert!(!young.with_extension("rec.tmp").exists());
}

#[test]
fn recording_is_locked_and_foreign_files_are_untouched() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("top.rec");
    let first = HistoryRecorder::open(&path, HistoryLimits::FILE).unwrap();
    let error = HistoryRecorder::open(&path, HistoryLimits::FILE).unwrap_err();
    assert!(matches!(error, RecorderError::Busy { .. }), "{error}");
    drop(first);
    HistoryRecorder::open(&path, HistoryLimits::FILE).unwrap();
    assert!(matches!(TopRecording::open(&path), Err(OpenRecordingError::Empty { .. })));
    let other = folder.path().join("notes.txt");
    fs::File::create(&other).unwrap().write_all(b"my notes, nobody else's").unwrap();
    let error = HistoryRecorder::open(&other, HistoryLimits::FILE).unwrap_err();
    assert!(matches!(error, RecorderError::Foreign { .. }), "{error}");
    assert!(matches!(TopRecording::open(&other), Err(OpenRecordingError::Foreign { .. })));
    assert_eq!(fs::read(&other).unwrap(), b"my notes, nobody else's");
}

#[test]
fn full_disk_is_reported_and_memory_survives() {
    let history = history(HistoryLimits::MEMORY);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("top.rec");
    let recorder = Mutex::new(HistoryRecorder::open(&path, HistoryLimits::FILE).unwrap());
    recorder.lock().break_for_test();
    let recorded = snapshots(1, 1);
    let pushed = history.push(0, &ServerHealth::Read(Arc::clone(&recorded[0])), Some(&recorder));
    assert!(pushed.unwrap_err().to_string().starts_with("cannot record to "));
    assert_eq!(history.range(0), Some((START, START)));
}

#[test]
fn samples_after_finish_are_not_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("top.rec");
    let recorded = snapshots(8, 2);
    let history_writer = HistoryWriter::new(
        history(HistoryLimits::MEMORY),
        Some(HistoryRecorder::open(&path, HistoryLimits::FILE).unwrap()),
    );
    // Simulates a sampler that has not been stopped yet.
    let mut keep = history_writer.for_server(0);
    for snapshot in &recorded[..5] {
        assert_eq!(keep(&ServerHealth::Read(Arc::clone(snapshot))), None);
    }
    history_writer.finish().unwrap();
    let ended = fs::read(&path).unwrap();
    for snapshot in &recorded[5..] {
        assert_eq!(keep(&ServerHealth::Read(Arc::clone(snapshot))), None);
    }
    assert_eq!(fs::read(&path).unwrap(), ended);
    assert_eq!(replayed(&path).0.len(), 5);
}

#[test]
fn failed_compaction_leaves_recording_intact() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("top.rec");
    let recorded = snapshots(300, 3);
    record(&path, HistoryLimits::FILE, &recorded[..200]);
    // The copy cannot be created: a directory of that name cannot be removed as a file.
    let copy = folder.path().join("top.rec.tmp");
    fs::create_dir(&copy).unwrap();
    let history = history(HistoryLimits::MEMORY);
    let limits = HistoryLimits { bytes: 4096, ..HistoryLimits::FILE };
    let recorder = Mutex::new(HistoryRecorder::open(&path, limits).unwrap());
    let pushed = history.push(0, &ServerHealth::Read(Arc::clone(&recorded[200])), Some(&recorder));
    assert!(pushed.unwrap_err().to_string().starts_with("cannot record to "));
    assert_eq!(replayed(&path).0.len(), 200);
    fs::remove_dir(&copy).unwrap();
    drop(recorder);
    record(&path, limits, &recorded[201..]);
    assert!(!copy.exists());
    assert_eq!(replayed(&path).0.last().map(|(at_us, _)| *at_us), Some(recorded[299].sampled_us));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn arbitrary_frames_never_panic(bytes: Vec<u8>, at_us: i64) {
        let _ = frame::FrameReader::default().read(at_us, &bytes);
        let _ = file_format::parse_header(&bytes);
        let _ = file_format::parse_waits(&bytes);
    }
}
