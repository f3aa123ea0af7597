//! Checkpoints as they are told, beside what the server logs of them.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use howdah_lab::Cluster;
use howdah_probe::checkpoints::{Checkpoints, Phase, Source, Span, Update};

use crate::support::{may_trace, on_every_major, session};

/// Some dirty pages, written and synced.
const WORK: &str = "CREATE TABLE IF NOT EXISTS dirtied (pad text);
    INSERT INTO dirtied SELECT repeat('x', 500) FROM generate_series(1, 5000);";

/// Makes a checkpoint while `checkpoints` is polled, and gives the phases that ended.
fn spans_of_one(cluster: &Cluster, checkpoints: &mut Checkpoints) -> Vec<Span> {
    session(cluster).query(WORK).unwrap();
    let mut spans = Vec::new();
    thread::scope(|scope| {
        let made = scope.spawn(|| session(cluster).query("CHECKPOINT").unwrap());
        let deadline = Instant::now() + Duration::from_secs(60);
        let is_whole = |spans: &[Span]| spans.iter().any(|span| span.phase == Phase::Checkpoint);
        while !(is_whole(&spans) && made.is_finished()) && Instant::now() < deadline {
            let visit = |update| {
                if let Update::Finished(span) = update {
                    spans.push(span);
                }
            };
            checkpoints.poll(visit).unwrap();
            thread::sleep(Duration::from_millis(1));
        }
    });
    spans
}

fn span(spans: &[Span], phase: Phase) -> Span {
    *spans.iter().find(|span| span.phase == phase).unwrap_or_else(|| panic!("{phase:?} {spans:?}"))
}

/// What the last line about a checkpoint says of writing, syncing, and all of it; and buffers written.
fn logged(cluster: &Cluster) -> ([Duration; 3], u64) {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let log = fs::read_to_string(cluster.server_log()).unwrap();
        let complete = log.lines().rfind(|line| line.contains("checkpoint complete: wrote"));
        if let Some(line) = complete {
            let seconds = |name: &str| {
                let (_, rest) = line.split_once(&format!("{name}=")).unwrap();
                let (number, _) = rest.split_once(" s").unwrap();
                Duration::from_secs_f64(number.parse().unwrap())
            };
            let (_, rest) = line.split_once("wrote ").unwrap();
            let (buffers, _) = rest.split_once(' ').unwrap();
            return (["write", "sync", "total"].map(seconds), buffers.parse().unwrap());
        }
        assert!(Instant::now() < deadline, "{log}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn is_near(told: Duration, logged: Duration, by: Duration) -> bool {
    told.abs_diff(logged) <= by
}

#[test]
fn notes_say_what_the_log_says() {
    on_every_major("checkpoint notes", |cluster, server| {
        let mut checkpoints = Checkpoints::by_notes(server).unwrap();
        assert_eq!(checkpoints.source(), Source::Memory);
        let spans = spans_of_one(cluster, &mut checkpoints);
        let ([write, sync, total], buffers) = logged(cluster);
        // A log line rounds to the millisecond, down.
        let by = Duration::from_millis(2);
        for (phase, logged) in
            [(Phase::Write, write), (Phase::Sync, sync), (Phase::Checkpoint, total)]
        {
            let told = span(&spans, phase);
            assert!(is_near(told.duration, logged, by), "{phase:?} {told:?} {logged:?}");
            assert_eq!(told.depth, usize::from(phase != Phase::Checkpoint));
        }
        let counts = span(&spans, Phase::Checkpoint).counts;
        assert_eq!(counts.buffers_written, Some(buffers), "PostgreSQL {}", server.major());
        assert!(counts.files_synced > Some(0), "{counts:?}");
    });
}

#[test]
fn markers_say_what_the_log_says() {
    if !may_trace("checkpoint markers") {
        return;
    }
    on_every_major("checkpoint markers", |cluster, server| {
        if server.binary().markers().is_empty() {
            let error = Checkpoints::by_markers(server).unwrap_err().to_string();
            assert!(error.contains("checkpoint__start (--enable-dtrace)"), "{error}");
            return;
        }
        let mut checkpoints = Checkpoints::by_markers(server).unwrap();
        assert_eq!(checkpoints.source(), Source::Bpf);
        let spans = spans_of_one(cluster, &mut checkpoints);
        let ([_, sync, total], buffers) = logged(cluster);
        let by = Duration::from_millis(10);
        assert!(is_near(span(&spans, Phase::Sync).duration, sync, by), "{spans:?} {sync:?}");
        assert!(
            is_near(span(&spans, Phase::Checkpoint).duration, total, by),
            "{spans:?} {total:?}"
        );
        assert_eq!(span(&spans, Phase::Checkpoint).counts.buffers_written, Some(buffers));
        let order: Vec<_> = spans.iter().map(|span| (span.phase, span.depth)).collect();
        let expected = [
            (Phase::Clog, 2),
            (Phase::Subtrans, 2),
            (Phase::Multixact, 2),
            (Phase::Write, 2),
            (Phase::Sync, 2),
            (Phase::Buffers, 1),
            (Phase::TwoPhase, 1),
            (Phase::Checkpoint, 0),
        ];
        assert_eq!(order, expected);
        let checkpointers = spans.iter().map(|span| span.pid);
        let title = |pid| howdah_inspect::Process::of(pid).unwrap().title().unwrap();
        assert!(checkpointers.into_iter().all(|pid| title(pid).contains("checkpointer")));
        assert_eq!(checkpoints.lost().unwrap(), 0);
    });
}
