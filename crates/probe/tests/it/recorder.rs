//! The flight recorder on servers that do something.

use std::{
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use howdah_inspect::Server;
use howdah_lab::{Cluster, or_say_why_not};
use howdah_probe::{
    checkpoints::{Phase, Source},
    recorder::{
        Event, NoteKind, Options, Record, Recorder, Recording, Second, Setting, Thresholds,
    },
};

use crate::support::{may_trace, number, session};

/// Debian's with markers, and two archives without.
const MAJORS: [u32; 3] = [15, 17, 18];

fn on_each(test: &str, check: impl Fn(&mut Cluster, &Server)) {
    for major in MAJORS {
        let built = Cluster::builder().major(major).setting("shared_buffers", "16MB").start();
        let Some(mut cluster) = or_say_why_not(&format!("{test} on {major}"), built) else {
            continue;
        };
        let server = Server::in_data_dir(cluster.data_dir()).unwrap();
        check(&mut cluster, &server);
    }
}

fn begin(server: &Server, path: &Path, triggers: &[&str]) -> Recorder {
    let mut thresholds = Thresholds::NONE;
    triggers.iter().for_each(|trigger| thresholds.set(trigger.parse::<Setting>().unwrap()));
    // What is a lot to pay on a busy machine is not judged here.
    let options = Options { thresholds, budget: 100.0, ..Options::default() };
    Recorder::begin(server, path, options, Instant::now()).unwrap()
}

/// Looks as it is due, until something is so.
fn tick_until(what: &str, recorder: &mut Recorder, mut is_so: impl FnMut(&[Event]) -> bool) {
    let begin = Instant::now();
    loop {
        thread::sleep(recorder.due().saturating_duration_since(Instant::now()));
        if is_so(&recorder.tick(Instant::now())) {
            return;
        }
        assert!(begin.elapsed() < Duration::from_secs(120), "waited two minutes for {what}");
    }
}

/// Sessions that insert into one table, while `work` goes on.
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

fn seconds(recording: &Recording) -> Vec<&Second> {
    let seconds = recording.records.iter().filter_map(|record| match record {
        Record::Second(second) => Some(second),
        _ => None,
    });
    seconds.collect()
}

#[test]
fn what_a_server_does_is_in_the_file() {
    on_each("a recording", |cluster, server| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.rec");
        let mut client = session(cluster);
        client.query("CREATE TABLE grown (pad text)").unwrap();
        let relation = number(&mut client, "SELECT 'grown'::regclass::oid");
        let mut recorder = begin(server, &path, &[]);
        while_growing(cluster, 4, || {
            let mut ticks = 0;
            let is_end = |record: &Record| matches!(record, Record::PhaseEnded(ended) if ended.phase == Phase::Checkpoint);
            thread::scope(|scope| {
                scope.spawn(|| session(cluster).query("CHECKPOINT").unwrap());
                tick_until("a checkpoint", &mut recorder, |_| {
                    ticks += 1;
                    let read = Recording::open(&path);
                    ticks > 300 && read.is_ok_and(|read| read.records.iter().any(is_end))
                });
            });
        });
        let summary = recorder.finish("enough", Instant::now());
        assert_eq!((summary.trouble, summary.lost.records), (None, 0));
        let recording = Recording::open(&path).unwrap();
        let Some(Record::Started(started)) = recording.records.first() else { panic!() };
        assert_eq!((started.major, started.rate), (server.major(), 100));
        let sources: Vec<_> = started.sources.iter().map(|of| (&*of.figure, of.source)).collect();
        let (bpf, memory) = (Some(Source::Bpf), Some(Source::Memory));
        let exact = if may_trace("exact sources") { bpf } else { memory };
        let phases = if server.major() == 15 { exact } else { memory };
        let figures =
            [("waits", memory), ("sweep", memory), ("extend", exact), ("checkpoints", phases)];
        assert_eq!(sources, figures);
        assert!(matches!(recording.records.last(), Some(Record::Ended(_))));
        let seconds = seconds(&recording);
        assert_eq!(seconds.len() as u64, summary.seconds);
        for pair in seconds.windows(2) {
            let end_us = pair[0].at_us + pair[0].elapsed_us.cast_signed();
            assert!((pair[1].at_us - end_us).abs() < 1000, "{pair:?}");
        }
        let rounds: u32 = seconds.iter().map(|second| second.waits.rounds).sum();
        assert!(u64::from(rounds) <= summary.looks && rounds > 0);
        assert!(
            seconds.iter().any(|second| second.sweep.is_some_and(|sweep| sweep.allocations > 0))
        );
        if exact == bpf {
            let relations = seconds.iter().flat_map(|second| &second.extension);
            let waits: u64 = relations.clone().map(|extension| extension.waits.count()).sum();
            let all = relations.flat_map(|extension| &extension.relations);
            let told: u64 = all.filter(|of| of.relation == relation).map(|of| of.waits).sum();
            assert!(told > 0 && told <= waits, "{told} of {waits}");
        }
    });
}

#[test]
fn a_trigger_keeps_an_episode_with_exact_calls() {
    if !may_trace("an episode") {
        return;
    }
    on_each("an episode", |cluster, server| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.rec");
        session(cluster).query("CREATE TABLE grown (pad text)").unwrap();
        let mut recorder = begin(server, &path, &["extend-p99=0.001ms"]);
        while_growing(cluster, 4, || {
            tick_until("a trigger", &mut recorder, |events| {
                events.iter().any(|event| matches!(event, Event::Fired(_)))
            });
            let mut ticks = 0;
            tick_until("exact calls", &mut recorder, |_| {
                ticks += 1;
                ticks % 100 == 0
                    && Recording::open(&path).is_ok_and(|read| {
                        read.records.iter().any(|record| matches!(record, Record::Exact(_)))
                    })
            });
        });
        let summary = recorder.finish("enough", Instant::now());
        assert_eq!((summary.fired, summary.left_out), (1, 0));
        let recording = Recording::open(&path).unwrap();
        let [(first, last)] = recording.episodes[..] else { panic!("{:?}", recording.episodes) };
        let episode = &recording.records[first..=last];
        let fired = episode.iter().find_map(|record| match record {
            Record::Fired(fired) => Some(fired),
            _ => None,
        });
        let fired = fired.unwrap();
        assert!(fired.value_milli >= fired.threshold_milli);
        let operations: Vec<_> = episode
            .iter()
            .filter_map(|record| match record {
                Record::Exact(exact) => Some((&*exact.figure, &*exact.operation, exact.at_us)),
                _ => None,
            })
            .collect();
        assert!(operations.iter().any(|(figure, ..)| *figure == "wal"), "{operations:?}");
        assert!(operations.iter().any(|(_, operation, _)| *operation == "extend"));
        assert!(operations.iter().all(|(.., at_us)| *at_us >= fired.at_us));
    });
}

#[test]
fn a_server_that_comes_back_is_recorded_again() {
    on_each("a restart", |cluster, server| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.rec");
        let mut recorder = begin(server, &path, &[]);
        let mut notes = Vec::new();
        let mut note = |events: &[Event]| {
            for event in events {
                if let Event::Note(note) = event {
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
        assert!(notes[0].1.contains("has ended"), "{notes:?}");
        let recording = Recording::open(&path).unwrap();
        let postmasters: Vec<_> = recording
            .records
            .iter()
            .filter_map(|record| match record {
                Record::Started(started) => Some(started.postmaster),
                _ => None,
            })
            .collect();
        assert_eq!(postmasters, [server.postmaster().pid(), cluster.pid().unwrap()]);
    });
}

/// What the ring begins with is gone, and whom it is of is known all the same.
#[test]
fn a_ring_that_went_round_knows_whom_it_is_of() {
    let built = Cluster::builder().start();
    let Some(cluster) = or_say_why_not("a ring that goes round", built) else { return };
    let server = Server::in_data_dir(cluster.data_dir()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.rec");
    let options = Options { max_bytes: Some(1 << 20), ..Options::default() };
    let mut recorder = Recorder::begin(&server, &path, options, Instant::now()).unwrap();
    recorder.name(5, 7, "shop.public.orders".to_owned(), Instant::now());
    // Names fill it faster than seconds do; a second is what repeats.
    let begin = Instant::now();
    for name in 0..60_000 {
        recorder.name(5, 100 + name % 20, format!("shop.public.orders_{name}"), Instant::now());
        if name % 500 == 0 {
            // A later second, as far as the recorder can tell; who waits is the file.
            recorder.tick(begin + Duration::from_secs(u64::from(name / 250)));
            thread::sleep(Duration::from_millis(20));
        }
    }
    let summary = recorder.finish("enough", Instant::now());
    let recording = Recording::open(&path).unwrap();
    let of = |record: &Record| matches!(record, Record::Started(of) if of.postmaster == server.postmaster().pid());
    assert!(recording.records.iter().any(of), "{summary:?}");
    assert!(!matches!(recording.records.first(), Some(Record::Started(_))), "the first is gone");
}
