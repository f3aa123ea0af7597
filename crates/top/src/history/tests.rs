//! What was kept comes back, within its bounds, and whatever happened to the file.

use std::{fs, io::Write as _, path::Path};

use howdah_collect::{
    Backend, Blocker, Cell, Kind, Missing, Overview, Reading, SqlText, State, VIEWS, Wait,
    WaitCount, WaitCounts, rates,
};
use proptest::prelude::*;

use super::*;
use crate::{Snapshot, host::HostFigures, sampler::tests::snapshot, waits::WaitHistory};

const SECOND: i64 = 1_000_000;
const START: i64 = 1_700_000_000 * SECOND;

/// A small generator, so that a test is the same each time.
struct Dice(u64);

impl Dice {
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

/// Sessions of a busy server, each with another statement in each reading, as pgbench has them.
fn busy(dice: &mut Dice, now_us: i64, sessions: i32) -> Vec<Backend> {
    let session = |pid: i32| {
        let begun = now_us - dice.below(5_000);
        let waits = [("Client", "ClientRead"), ("LWLock", "WALWrite"), ("Lock", "transactionid")];
        let (class, event) = waits[dice.roll(3) as usize];
        let query = format!(
            "UPDATE pgbench_accounts SET abalance = abalance + {} WHERE aid = {};",
            dice.below(10_000) - 5_000,
            dice.below(10_000_000)
        );
        Backend {
            pid: 10_000 + pid,
            started_us: START - i64::from(pid),
            database: Some("pgbench".into()),
            user: Some("app".into()),
            application: Some("pgbench".into()),
            client: Some("10.0.0.7".into()),
            client_port: Some(40_000 + pid),
            kind: Some(Kind::Client),
            state: Some([State::Active, State::IdleInTransaction][dice.roll(2) as usize]),
            wait: Some(Wait { class: class.into(), event: event.into() }),
            xid_age: (dice.roll(2) == 0).then(|| dice.below(300)),
            xmin_age: Some(dice.below(300)),
            transaction_started_us: Some(begun - dice.below(3_000)),
            query_started_us: Some(begun),
            state_changed_us: Some(begun),
            query_id: Some(i64::MAX - i64::from(pid % 7)),
            query: Some(SqlText::new(query.as_bytes(), None, Some(1024))),
            blockers: if dice.roll(20) == 0 { vec![Blocker::Process(10_000)] } else { Vec::new() },
            is_readable: true,
            ..Backend::default()
        }
    };
    (0..sessions).map(session).collect()
}

/// A snapshot with some of everything.
fn rich(dice: &mut Dice, at_us: i64, sessions: i32, before: Option<&Snapshot>) -> Snapshot {
    let overview = Overview {
        taken_us: at_us + 7,
        commits: at_us / 1000,
        wal_bytes: Some(at_us / 10),
        replay_lag_seconds: Some(0.25),
        frozen_age: Some(dice.below(1000)),
        followers_lag_bytes: Some(dice.below(1 << 30)),
        followers_lag_seconds: Some(1.5),
        ..Overview::default()
    };
    let view = &VIEWS[0];
    let cell = |at: usize, dice: &mut Dice| match at % 4 {
        0 => Cell::Integer(at_us / 1000 + dice.below(10)),
        1 => Cell::Real(0.5),
        2 => Cell::Null,
        _ => Cell::Unavailable,
    };
    let row = |name: &str, dice: &mut Dice| -> Box<[Cell]> {
        let rest = (1..view.columns.len()).map(|at| cell(at, dice));
        std::iter::once(Cell::from(name)).chain(rest).collect()
    };
    let rows = [row("shop", dice), row("postgres", dice)].into();
    let reading = Reading { view, taken_us: at_us, rows };
    let earlier = before.and_then(|before| before.view.as_ref()).map(|rated| &rated.reading);
    let mut waits = before.map_or_else(WaitHistory::default, |before| (*before.waits).clone());
    waits.add(at_us, &WaitCounts::new([WaitCount { wait: None, sessions: 3 }]));
    Snapshot {
        missing: Arc::new([Missing { what: "sizes".into(), remedy: "GRANT x TO y".to_owned() }]),
        overview,
        before: before.map(|before| before.overview.clone()),
        view: Some(rates(earlier, &reading)),
        view_error: Some("no \u{1b} here".to_owned()).filter(|_| dice.roll(2) == 0),
        pooled: None,
        host: Some(HostFigures { cpu_percent: Some(12.5), ..HostFigures::default() }),
        seen_us: at_us,
        waits: Arc::new(waits),
        ..snapshot(at_us, busy(dice, at_us, sessions))
    }
}

fn readings(count: i64, sessions: i32) -> Vec<Arc<Snapshot>> {
    let mut dice = Dice(42);
    let mut made: Vec<Arc<Snapshot>> = Vec::new();
    for at in 0..count {
        let last = made.last().map(|last| &**last);
        made.push(Arc::new(rich(&mut dice, START + at * 2 * SECOND, sessions, last)));
    }
    made
}

fn history(limits: Limits) -> History {
    History::new(["db1".to_owned()], limits).unwrap()
}

/// Everything of a snapshot that is kept, as text.
fn told(snapshot: &Snapshot) -> String {
    let Snapshot { identity, missing, activity, overview, before, view, host, .. } = snapshot;
    let view = view.as_ref().map(|view| (&view.rows, &view.reading.rows, view.seconds));
    format!("{identity:?} {missing:?} {activity:?} {overview:?} {before:?} {view:?} {host:?}")
}

fn read(look: &Look) -> &Snapshot {
    let Standing::Read(snapshot) = &look.standing else { panic!("{look:?}") };
    snapshot
}

#[test]
fn every_moment_comes_back_as_it_was() {
    let history = history(Limits::MEMORY);
    let made = readings(300, 20);
    for snapshot in &made {
        history.keep(0, &Standing::Read(Arc::clone(snapshot)), None).unwrap();
    }
    assert_eq!(history.range(0), Some((START, made[299].seen_us)));
    for at in [0, 1, 119, 120, 121, 299] {
        let look = history.look(0, made[at].seen_us, Some(VIEWS[0].name)).unwrap().unwrap();
        assert_eq!(look.at_us, made[at].seen_us);
        assert_eq!(told(read(&look)), told(&made[at]), "{at}");
        assert_eq!(read(&look).waits.seconds().count(), at + 1);
    }
    assert!(history.look(0, START - 1, None).unwrap().is_none());
    let between = history.look(0, START + SECOND, None).unwrap().unwrap();
    assert_eq!(between.at_us, START);
}

#[test]
fn a_view_that_was_not_read_then_is_the_last_that_was() {
    let history = history(Limits::MEMORY);
    for (at, snapshot) in readings(130, 1).into_iter().enumerate() {
        let view = snapshot.view.clone().filter(|_| at == 100);
        let snapshot = Snapshot { view: None, also: view, ..(*snapshot).clone() };
        history.keep(0, &Standing::Read(Arc::new(snapshot)), None).unwrap();
    }
    let has_view = |at: i64| {
        let look = history.look(0, START + at * 2 * SECOND, Some(VIEWS[0].name)).unwrap().unwrap();
        read(&look).view.is_some()
    };
    // The last of these is in the next segment.
    assert_eq!([99, 100, 110, 129].map(has_view), [false, true, true, true]);
}

#[test]
fn steps_go_from_reading_to_reading_and_stop_at_the_ends() {
    let history = history(Limits::MEMORY);
    for snapshot in readings(5, 1) {
        history.keep(0, &Standing::Read(snapshot), None).unwrap();
    }
    let at = |reading: i64| START + reading * 2 * SECOND;
    assert_eq!(history.step(0, at(2), -1), Some(at(1)));
    assert_eq!(history.step(0, at(2) + 1, 1), Some(at(3)));
    assert_eq!(history.step(0, at(2), -9), Some(at(0)));
    assert_eq!(history.step(0, i64::MAX, 0), Some(at(4)));
    assert_eq!(history.step(1, at(2), 1), None);
}

#[test]
fn a_server_that_was_away_is_away_in_its_past_too() {
    let history = history(Limits::MEMORY);
    let made = readings(2, 3);
    let now = std::time::Instant::now();
    let away = |last: &Arc<Snapshot>| Standing::Away {
        reason: "the server \u{1b}[2J closed the connection".to_owned(),
        since: now,
        retry: now,
        last: Some(Arc::clone(last)),
    };
    history.keep(0, &Standing::Read(Arc::clone(&made[0])), None).unwrap();
    // Each attempt that fails tells; one of them is kept.
    for _ in 0..3 {
        history.keep(0, &away(&made[0]), None).unwrap();
    }
    let (_, last_us) = history.range(0).unwrap();
    let look = history.look(0, last_us, None).unwrap().unwrap();
    let Standing::Away { reason, last, .. } = &look.standing else { panic!("{look:?}") };
    assert_eq!(reason, "the server ␛[2J closed the connection");
    assert_eq!(last.as_ref().unwrap().activity.backends.len(), 3);
    assert_eq!(history.step(0, last_us, -1), Some(START));
    assert_eq!(history.step(0, START, 1), Some(last_us));
}

#[test]
fn an_hour_of_two_hundred_busy_sessions_takes_less_than_64_mb() {
    let history = history(Limits { bytes: u64::MAX, ..Limits::MEMORY });
    let mut dice = Dice(7);
    // One reading in two seconds; all sessions change everything in each.
    for at in 0..1800 {
        let at_us = START + at * 2 * SECOND;
        let snapshot = Snapshot { seen_us: at_us, ..snapshot(at_us, busy(&mut dice, at_us, 200)) };
        history.keep(0, &Standing::Read(Arc::new(snapshot)), None).unwrap();
    }
    let held = history.held_bytes();
    assert!(held < 64 << 20, "{held} bytes");
    assert!(held > 1 << 20, "it cannot be that small: {held} bytes");
}

#[test]
fn the_oldest_goes_when_there_is_too_much_or_it_is_too_old() {
    let bytes = 256 << 10;
    let small = history(Limits { bytes, ..Limits::MEMORY });
    let young = history(Limits { age: Duration::from_secs(600), ..Limits::MEMORY });
    for snapshot in readings(1000, 20) {
        small.keep(0, &Standing::Read(Arc::clone(&snapshot)), None).unwrap();
        young.keep(0, &Standing::Read(snapshot), None).unwrap();
    }
    // A segment more than that is allowed.
    assert!(small.held_bytes() < 2 * usize::try_from(bytes).unwrap(), "{}", small.held_bytes());
    let (first, last) = young.range(0).unwrap();
    assert!((600 * SECOND..900 * SECOND).contains(&(last - first)), "{}", last - first);
}

fn record(path: &Path, limits: Limits, made: &[Arc<Snapshot>]) {
    let history = history(Limits::MEMORY);
    let recorder = Mutex::new(Recorder::open(path, limits).unwrap());
    for snapshot in made {
        history.keep(0, &Standing::Read(Arc::clone(snapshot)), Some(&recorder)).unwrap();
    }
}

fn replayed(path: &Path) -> (Vec<(i64, String)>, Gap) {
    let recording = Recording::open(path).unwrap();
    let mut all = Vec::new();
    recording
        .history
        .play(0, Some(VIEWS[0].name), |at_us, standing| {
            let look = Look { at_us, standing };
            all.push((at_us, told(read(&look))));
            true
        })
        .unwrap();
    (all, recording.gap)
}

fn expected(made: &[Arc<Snapshot>]) -> Vec<(i64, String)> {
    made.iter().map(|snapshot| (snapshot.seen_us, told(snapshot))).collect()
}

#[test]
fn a_recording_is_read_as_it_was_written_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("top.rec");
    let made = readings(200, 5);
    record(&path, Limits::FILE, &made[..150]);
    assert_eq!(replayed(&path), (expected(&made[..150]), Gap::default()));
    record(&path, Limits::FILE, &made[150..]);
    let (all, _) = replayed(&path);
    let moments: Vec<_> = all.iter().map(|(at_us, _)| *at_us).collect();
    assert_eq!(moments, made.iter().map(|snapshot| snapshot.seen_us).collect::<Vec<_>>());
    let recording = Recording::open(&path).unwrap();
    assert_eq!(recording.history.names(), ["db1"]);
    // The last second of each run may not have been over.
    let look = recording.history.look(0, i64::MAX, None).unwrap().unwrap();
    assert_eq!(read(&look).waits.seconds().count(), 199);
}

#[test]
fn a_file_that_was_cut_anywhere_is_read_up_to_there_and_can_be_appended_to() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("top.rec");
    let made = readings(12, 2);
    record(&path, Limits::FILE, &made[..8]);
    let whole = fs::read(&path).unwrap();
    let all = expected(&made[..8]);
    // Every length is too many to append to; every length is read.
    let mut seen = Vec::new();
    for length in (17..whole.len()).rev() {
        fs::write(&path, &whole[..length]).unwrap();
        let Ok(recording) = Recording::open(&path) else {
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
        if seen.last() != Some(&count) {
            seen.push(count);
        }
        if length % 97 == 0 {
            record(&path, Limits::FILE, &made[8..]);
            let (told, gap) = replayed(&path);
            assert_eq!(told[..count], all[..count], "{length}");
            let moments: Vec<_> = told[count..].iter().map(|(at_us, _)| *at_us).collect();
            let later: Vec<_> = made[8..].iter().map(|snapshot| snapshot.seen_us).collect();
            assert_eq!(moments, later, "{length}");
            assert!(gap.places <= 1, "{gap:?}");
        }
    }
    assert_eq!(seen, [8, 7, 6, 5, 4, 3, 2, 1]);
}

#[test]
fn a_byte_that_a_disk_lost_costs_what_stands_on_it_and_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("top.rec");
    let made = readings(400, 3);
    record(&path, Limits::FILE, &made);
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    fs::write(&path, &bytes).unwrap();
    let (all, gap) = replayed(&path);
    assert_eq!(gap.places, 1);
    // The rest of one segment of 120.
    assert!((280..400).contains(&all.len()), "{}", all.len());
    assert_eq!(all.last().map(|(at_us, _)| *at_us), made.last().map(|last| last.seen_us));
}

#[test]
fn a_recording_stays_within_its_bounds() {
    let folder = tempfile::tempdir().unwrap();
    let made = readings(2000, 4);
    let small = folder.path().join("small.rec");
    let bytes = 128 << 10;
    record(&small, Limits { bytes, ..Limits::FILE }, &made);
    let length = fs::metadata(&small).unwrap().len();
    // It is made smaller when a segment begins.
    assert!(length < bytes + bytes / 2, "{length}");
    let (all, gap) = replayed(&small);
    assert_eq!(gap, Gap::default());
    assert_eq!(all.last().map(|(at_us, _)| *at_us), made.last().map(|last| last.seen_us));
    assert!(all.len() > 100, "{}", all.len());
    let young = folder.path().join("young.rec");
    record(&young, Limits { age: Duration::from_secs(1000), ..Limits::FILE }, &made);
    let (all, _) = replayed(&young);
    assert!((400..1000).contains(&all.len()), "{}", all.len());
    assert!(!young.with_extension("rec.tmp").exists());
}

#[test]
fn one_file_has_one_writer_and_nothing_else_is_written_to() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("top.rec");
    let first = Recorder::open(&path, Limits::FILE).unwrap();
    let error = Recorder::open(&path, Limits::FILE).unwrap_err();
    assert!(matches!(error, RecordError::Busy { .. }), "{error}");
    drop(first);
    Recorder::open(&path, Limits::FILE).unwrap();
    assert!(matches!(Recording::open(&path), Err(ReadRecordError::Empty { .. })));
    let other = folder.path().join("notes.txt");
    fs::File::create(&other).unwrap().write_all(b"my notes, nobody else's").unwrap();
    let error = Recorder::open(&other, Limits::FILE).unwrap_err();
    assert!(matches!(error, RecordError::Foreign { .. }), "{error}");
    assert!(matches!(Recording::open(&other), Err(ReadRecordError::Foreign { .. })));
    assert_eq!(fs::read(&other).unwrap(), b"my notes, nobody else's");
}

#[test]
fn a_disk_that_is_full_is_told_and_what_is_in_memory_stays() {
    let history = history(Limits::MEMORY);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("top.rec");
    let recorder = Mutex::new(Recorder::open(&path, Limits::FILE).unwrap());
    recorder.lock().unwrap().break_for_test();
    let made = readings(1, 1);
    let kept = history.keep(0, &Standing::Read(Arc::clone(&made[0])), Some(&recorder));
    assert!(kept.unwrap_err().to_string().starts_with("cannot record to "));
    assert_eq!(history.range(0), Some((START, START)));
}

#[test]
fn what_comes_behind_the_end_of_a_recording_is_not_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("top.rec");
    let made = readings(8, 2);
    let keeper =
        Keeper::new(history(Limits::MEMORY), Some(Recorder::open(&path, Limits::FILE).unwrap()));
    // A sampler that was not told yet that it is over.
    let mut keep = keeper.for_server(0);
    for snapshot in &made[..5] {
        assert_eq!(keep(&Standing::Read(Arc::clone(snapshot))), None);
    }
    keeper.finish().unwrap();
    let ended = fs::read(&path).unwrap();
    for snapshot in &made[5..] {
        assert_eq!(keep(&Standing::Read(Arc::clone(snapshot))), None);
    }
    assert_eq!(fs::read(&path).unwrap(), ended);
    assert_eq!(replayed(&path).0.len(), 5);
}

#[test]
fn a_recording_that_cannot_be_made_smaller_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("top.rec");
    let made = readings(300, 3);
    record(&path, Limits::FILE, &made[..200]);
    // Its name is taken by what cannot be removed as a file.
    let copy = folder.path().join("top.rec.tmp");
    fs::create_dir(&copy).unwrap();
    let history = history(Limits::MEMORY);
    let limits = Limits { bytes: 4096, ..Limits::FILE };
    let recorder = Mutex::new(Recorder::open(&path, limits).unwrap());
    let kept = history.keep(0, &Standing::Read(Arc::clone(&made[200])), Some(&recorder));
    assert!(kept.unwrap_err().to_string().starts_with("cannot record to "));
    assert_eq!(replayed(&path).0.len(), 200);
    fs::remove_dir(&copy).unwrap();
    drop(recorder);
    record(&path, limits, &made[201..]);
    assert!(!copy.exists());
    assert_eq!(replayed(&path).0.last().map(|(at_us, _)| *at_us), Some(made[299].seen_us));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_frame_is_read_or_refused(bytes: Vec<u8>, at_us: i64) {
        let _ = frame::FrameReader::default().read(at_us, &bytes);
        let _ = wire::head(&bytes);
        let _ = wire::seconds(&bytes);
    }
}
