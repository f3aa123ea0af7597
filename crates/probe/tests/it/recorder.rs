//! Records servers under load with the flight recorder.

use std::{
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use howdah_inspect::RunningServer;
use howdah_lab::{Cluster, skip_without_postgres};
use howdah_probe::{
    checkpoints::{CheckpointPhase, ProbeSource},
    recorder::{
        FlightRecord, FlightRecorder, FlightRecording, NoteKind, RecordedSecond, RecorderEvent,
        RecorderOptions, Thresholds, TriggerSetting,
    },
};

use crate::support::{may_trace, number, session};

/// Debian's server with USDT probes, and two builds without.
const MAJORS: [u32; 3] = [15, 17, 18];

fn on_each(test: &str, check: impl Fn(&mut Cluster, &RunningServer)) {
    for major in MAJORS {
        let built = Cluster::builder().major(major).setting("shared_buffers", "16MB").start();
        let Some(mut cluster) = skip_without_postgres(&format!("{test} on {major}"), built) else {
            continue;
        };
        let server = RunningServer::in_data_dir(cluster.data_dir()).unwrap();
        check(&mut cluster, &server);
    }
}

fn start(server: &RunningServer, path: &Path, triggers: &[&str]) -> FlightRecorder {
    let mut thresholds = Thresholds::NONE;
    triggers.iter().for_each(|trigger| thresholds.set(trigger.parse::<TriggerSetting>().unwrap()));
    // Large budgets: the cost on a busy machine is not tested here.
    let (budget, server_budget) = (100.0, 100.0);
    let options =
        RecorderOptions { thresholds, budget, server_budget, ..RecorderOptions::default() };
    FlightRecorder::start(server, path, options, None, Instant::now()).unwrap()
}

/// Ticks on schedule until `condition` holds.
fn tick_until(
    what: &str,
    recorder: &mut FlightRecorder,
    mut condition: impl FnMut(&[RecorderEvent]) -> bool,
) {
    let begin = Instant::now();
    loop {
        thread::sleep(recorder.next_tick_at().saturating_duration_since(Instant::now()));
        if condition(&recorder.tick(Instant::now())) {
            return;
        }
        assert!(begin.elapsed() < Duration::from_secs(120), "waited two minutes for {what}");
    }
}

/// Runs `work` while sessions insert into one table.
fn while_growing(cluster: &Cluster, sessions: usize, work: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..sessions {
            scope.spawn(|| {
                let mut client = session(cluster);
                let pads = "SELECT repeat('x', 2000) FROM generate_series(1, 200)";
                while !stop.load(Ordering::Relaxed) {
                    client.query(&format!("INSERT INTO grown {pads}")).unwrap();
                }
            });
        }
        work();
        stop.store(true, Ordering::Relaxed);
    });
}

fn seconds(recording: &FlightRecording) -> Vec<&RecordedSecond> {
    let seconds = recording.records.iter().filter_map(|record| match record {
        FlightRecord::Second(second) => Some(second),
        _ => None,
    });
    seconds.collect()
}

#[test]
fn server_activity_is_recorded() {
    on_each("a recording", |cluster, server| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.rec");
        let mut client = session(cluster);
        client.query("CREATE TABLE grown (pad text)").unwrap();
        let relation = number(&mut client, "SELECT 'grown'::regclass::oid");
        let mut recorder = start(server, &path, &[]);
        while_growing(cluster, 4, || {
            let mut ticks = 0;
            let is_end = |record: &FlightRecord| matches!(record, FlightRecord::PhaseEnded(ended) if ended.phase == CheckpointPhase::Checkpoint);
            thread::scope(|scope| {
                scope.spawn(|| session(cluster).query("CHECKPOINT").unwrap());
                tick_until("a checkpoint", &mut recorder, |_| {
                    ticks += 1;
                    let read = FlightRecording::open(&path);
                    ticks > 300 && read.is_ok_and(|read| read.records.iter().any(is_end))
                });
            });
        });
        let summary = recorder.finish("enough", Instant::now());
        assert_eq!((summary.trouble, summary.lost.records), (None, 0));
        let recording = FlightRecording::open(&path).unwrap();
        let Some(FlightRecord::Started(started)) = recording.records.first() else { panic!() };
        assert_eq!((started.major, started.rate), (server.major(), 100));
        let sources: Vec<_> = started.sources.iter().map(|of| (&*of.metric, of.source)).collect();
        let (bpf, memory) = (Some(ProbeSource::Bpf), Some(ProbeSource::Memory));
        let exact = if may_trace("exact sources") { bpf } else { memory };
        let phases = if server.major() == 15 { exact } else { memory };
        let figures = [
            ("waits", memory),
            ("sweep", memory),
            ("extend", exact),
            ("checkpoints", phases),
            ("sessions", None),
        ];
        assert_eq!(sources, figures);
        assert!(matches!(recording.records.last(), Some(FlightRecord::Ended(_))));
        let seconds = seconds(&recording);
        assert_eq!(seconds.len() as u64, summary.seconds);
        for pair in seconds.windows(2) {
            let end_us = pair[0].at_us + pair[0].elapsed_us.cast_signed();
            assert!((pair[1].at_us - end_us).abs() < 1000, "{pair:?}");
        }
        let rounds: u32 = seconds.iter().map(|second| second.waits.rounds).sum();
        assert!(u64::from(rounds) <= summary.samples && rounds > 0);
        assert!(
            seconds.iter().any(|second| second.sweep.is_some_and(|sweep| sweep.allocations > 0))
        );
        if exact == bpf {
            let relations = seconds.iter().flat_map(|second| &second.extension);
            let waits: u64 = relations.clone().map(|extension| extension.waits.count()).sum();
            let all = relations.flat_map(|extension| &extension.relations);
            let reported: u64 = all.filter(|of| of.relation == relation).map(|of| of.waits).sum();
            assert!(reported > 0 && reported <= waits, "{reported} of {waits}");
        }
    });
}

#[test]
fn trigger_preserves_an_episode_with_traced_calls() {
    if !may_trace("an episode") {
        return;
    }
    on_each("an episode", |cluster, server| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.rec");
        session(cluster).query("CREATE TABLE grown (pad text)").unwrap();
        let mut recorder = start(server, &path, &["extend-p99=0.001ms"]);
        while_growing(cluster, 4, || {
            tick_until("a trigger", &mut recorder, |events| {
                events.iter().any(|event| matches!(event, RecorderEvent::ThresholdCrossed(_)))
            });
            let mut ticks = 0;
            tick_until("exact calls", &mut recorder, |_| {
                ticks += 1;
                ticks % 100 == 0
                    && FlightRecording::open(&path).is_ok_and(|read| {
                        read.records
                            .iter()
                            .any(|record| matches!(record, FlightRecord::TracedCalls(_)))
                    })
            });
        });
        let summary = recorder.finish("enough", Instant::now());
        assert_eq!((summary.triggered, summary.omitted), (1, 0));
        let recording = FlightRecording::open(&path).unwrap();
        let [(first, last)] = recording.episodes[..] else { panic!("{:?}", recording.episodes) };
        let episode = &recording.records[first..=last];
        let fired = episode.iter().find_map(|record| match record {
            FlightRecord::ThresholdCrossed(fired) => Some(fired),
            _ => None,
        });
        let fired = fired.unwrap();
        assert!(fired.value_milli >= fired.threshold_milli);
        let operations: Vec<_> = episode
            .iter()
            .filter_map(|record| match record {
                FlightRecord::TracedCalls(exact) => {
                    Some((&*exact.metric, &*exact.operation, exact.at_us))
                }
                _ => None,
            })
            .collect();
        assert!(operations.iter().any(|(figure, ..)| *figure == "wal"), "{operations:?}");
        assert!(operations.iter().any(|(_, operation, _)| *operation == "extend"));
        assert!(operations.iter().all(|(.., at_us)| *at_us >= fired.at_us));
    });
}

#[test]
fn restarted_server_is_recorded_again() {
    on_each("a restart", |cluster, server| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.rec");
        let mut recorder = start(server, &path, &[]);
        let mut notes = Vec::new();
        let mut note = |events: &[RecorderEvent]| {
            for event in events {
                if let RecorderEvent::Note(note) = event {
                    notes.push((note.kind, note.text.clone()));
                }
            }
            notes.last().map(|(kind, _)| *kind)
        };
        cluster.stop().unwrap();
        tick_until("the end", &mut recorder, |events| note(events) == Some(NoteKind::ServerEnded));
        assert!(recorder.is_waiting());
        cluster.start().unwrap();
        tick_until("the server", &mut recorder, |events| {
            note(events) == Some(NoteKind::ServerBack)
        });
        let mut ticks = 0;
        tick_until("two seconds", &mut recorder, |_| {
            ticks += 1;
            ticks > 200
        });
        let _ = recorder.finish("enough", Instant::now());
        assert!(notes[0].1.contains("has stopped"), "{notes:?}");
        let recording = FlightRecording::open(&path).unwrap();
        let postmasters: Vec<_> = recording
            .records
            .iter()
            .filter_map(|record| match record {
                FlightRecord::Started(started) => Some(started.postmaster),
                _ => None,
            })
            .collect();
        assert_eq!(postmasters, [server.postmaster().pid(), cluster.pid().unwrap()]);
    });
}

/// A server that does little else than extend relations is traced in some seconds only, and in all
/// of them while sessions wait.
#[test]
fn extension_locks_are_traced_as_long_as_the_server_budget_lasts() {
    if !may_trace("a server budget") {
        return;
    }
    on_each("a server budget", |cluster, server| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.rec");
        session(cluster).query("CREATE TABLE grown (pad text)").unwrap();
        let options = RecorderOptions {
            thresholds: Thresholds::NONE,
            budget: 100.0,
            server_budget: 0.0,
            ..RecorderOptions::default()
        };
        let mut recorder =
            FlightRecorder::start(server, &path, options, None, Instant::now()).unwrap();
        while_growing(cluster, 1, || {
            tick_until("tracing to pause", &mut recorder, |events| {
                events.iter().any(|event| match event {
                    RecorderEvent::Note(note) => note.text.contains("in some seconds only"),
                    _ => false,
                })
            });
            let paused = Instant::now();
            tick_until("two seconds", &mut recorder, |_| paused.elapsed().as_secs() >= 2);
        });
        let is_traced = |path: &Path| {
            let recording = FlightRecording::open(path).unwrap();
            seconds(&recording).iter().map(|second| second.extension.is_some()).collect::<Vec<_>>()
        };
        let traced = is_traced(&path);
        assert!(traced[0] && traced.ends_with(&[false]), "{traced:?}");
        while_growing(cluster, 16, || {
            tick_until("tracing to resume", &mut recorder, |_| is_traced(&path).ends_with(&[true]));
        });
        let _ = recorder.finish("enough", Instant::now());
    });
}

/// The start of the ring is overwritten, but the server is still identified.
#[test]
fn overwritten_ring_still_identifies_its_server() {
    let built = Cluster::builder().start();
    let Some(cluster) = skip_without_postgres("a ring that goes round", built) else { return };
    let server = RunningServer::in_data_dir(cluster.data_dir()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.rec");
    let options = RecorderOptions { max_bytes: Some(1 << 20), ..RecorderOptions::default() };
    let mut recorder =
        FlightRecorder::start(&server, &path, options, None, Instant::now()).unwrap();
    recorder.set_relation_name(5, 7, "shop.public.orders".to_owned(), Instant::now());
    // Names fill the file faster than seconds; the end of a second repeats the header.
    let begin = Instant::now();
    for name in 0..60_000 {
        recorder.set_relation_name(
            5,
            100 + name % 20,
            format!("shop.public.orders_{name}"),
            Instant::now(),
        );
        if name % 500 == 0 {
            // A later second for the recorder; the pause lets the writer thread catch up.
            recorder.tick(begin + Duration::from_secs(u64::from(name / 250)));
            thread::sleep(Duration::from_millis(20));
        }
    }
    let summary = recorder.finish("enough", Instant::now());
    let recording = FlightRecording::open(&path).unwrap();
    let of = |record: &FlightRecord| matches!(record, FlightRecord::Started(of) if of.postmaster == server.postmaster().pid());
    assert!(recording.records.iter().any(of), "{summary:?}");
    assert!(
        !matches!(recording.records.first(), Some(FlightRecord::Started(_))),
        "the first header is overwritten"
    );
}
