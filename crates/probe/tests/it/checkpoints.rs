//! Compares reported checkpoints with what the server logs.

use std::{fs, thread, time::Duration};

use howdah_lab::{Cluster, wait_for, wait_until};
use howdah_probe::checkpoints::{
    CheckpointPhase, CheckpointTracer, FinishedPhase, PhaseUpdate, ProbeSource,
};

use crate::support::{TIMEOUT, may_trace, on_every_major, session};

/// Dirties some pages.
const WORK: &str = "CREATE TABLE IF NOT EXISTS dirtied (pad text);
    INSERT INTO dirtied SELECT repeat('x', 500) FROM generate_series(1, 5000);";

/// Runs a checkpoint while `checkpoints` is polled, and returns the finished phases.
fn checkpoint_spans(cluster: &Cluster, checkpoints: &mut CheckpointTracer) -> Vec<FinishedPhase> {
    session(cluster).query(WORK).unwrap();
    let mut spans = Vec::new();
    thread::scope(|scope| {
        let checkpoint = scope.spawn(|| session(cluster).query("CHECKPOINT").unwrap());
        wait_until("a finished checkpoint", TIMEOUT, || {
            let visit = |update| {
                if let PhaseUpdate::Finished(span) = update {
                    spans.push(span);
                }
            };
            checkpoints.poll(visit).unwrap();
            spans.iter().any(|span| span.phase == CheckpointPhase::Checkpoint)
                && checkpoint.is_finished()
        });
    });
    spans
}

fn span(spans: &[FinishedPhase], phase: CheckpointPhase) -> FinishedPhase {
    *spans.iter().find(|span| span.phase == phase).unwrap_or_else(|| panic!("{phase:?} {spans:?}"))
}

/// The times of writing, syncing and the whole checkpoint, and the buffers written, from the last
/// checkpoint line of the log.
fn logged_checkpoint(cluster: &Cluster) -> ([Duration; 3], u64) {
    wait_for("a checkpoint in the log", TIMEOUT, || {
        let log = fs::read_to_string(cluster.server_log()).unwrap();
        let line = log.lines().rfind(|line| line.contains("checkpoint complete: wrote"))?;
        let seconds = |name: &str| {
            let (_, rest) = line.split_once(&format!("{name}=")).unwrap();
            let (number, _) = rest.split_once(" s").unwrap();
            Duration::from_secs_f64(number.parse().unwrap())
        };
        let (_, rest) = line.split_once("wrote ").unwrap();
        let (buffers, _) = rest.split_once(' ').unwrap();
        Some((["write", "sync", "total"].map(seconds), buffers.parse().unwrap()))
    })
}

fn is_near(reported: Duration, logged: Duration, by: Duration) -> bool {
    reported.abs_diff(logged) <= by
}

#[test]
fn stats_agree_with_the_server_log() {
    on_every_major("checkpoint statistics", |cluster, server| {
        let mut checkpoints = CheckpointTracer::from_stats(server).unwrap();
        assert_eq!(checkpoints.source(), ProbeSource::Memory);
        let spans = checkpoint_spans(cluster, &mut checkpoints);
        let ([write, sync, total], buffers) = logged_checkpoint(cluster);
        // Times in the log are truncated to milliseconds.
        let by = Duration::from_millis(2);
        for (phase, logged) in [
            (CheckpointPhase::Write, write),
            (CheckpointPhase::Sync, sync),
            (CheckpointPhase::Checkpoint, total),
        ] {
            let reported = span(&spans, phase);
            assert!(is_near(reported.duration, logged, by), "{phase:?} {reported:?} {logged:?}");
            assert_eq!(reported.depth, usize::from(phase != CheckpointPhase::Checkpoint));
        }
        let counts = span(&spans, CheckpointPhase::Checkpoint).counts;
        assert_eq!(counts.buffers_written, Some(buffers), "PostgreSQL {}", server.major());
        assert!(counts.files_synced > Some(0), "{counts:?}");
    });
}

#[test]
fn usdt_probes_agree_with_the_server_log() {
    if !may_trace("checkpoint USDT probes") {
        return;
    }
    on_every_major("checkpoint USDT probes", |cluster, server| {
        if server.binary().usdt_probes().is_empty() {
            let error = CheckpointTracer::from_usdt(server).unwrap_err().to_string();
            assert!(error.contains("checkpoint__start (--enable-dtrace)"), "{error}");
            return;
        }
        let mut checkpoints = CheckpointTracer::from_usdt(server).unwrap();
        assert_eq!(checkpoints.source(), ProbeSource::Bpf);
        let spans = checkpoint_spans(cluster, &mut checkpoints);
        let ([_, sync, total], buffers) = logged_checkpoint(cluster);
        let by = Duration::from_millis(10);
        assert!(
            is_near(span(&spans, CheckpointPhase::Sync).duration, sync, by),
            "{spans:?} {sync:?}"
        );
        assert!(
            is_near(span(&spans, CheckpointPhase::Checkpoint).duration, total, by),
            "{spans:?} {total:?}"
        );
        assert_eq!(span(&spans, CheckpointPhase::Checkpoint).counts.buffers_written, Some(buffers));
        let order: Vec<_> = spans.iter().map(|span| (span.phase, span.depth)).collect();
        let expected = [
            (CheckpointPhase::Clog, 2),
            (CheckpointPhase::Subtrans, 2),
            (CheckpointPhase::Multixact, 2),
            (CheckpointPhase::Write, 2),
            (CheckpointPhase::Sync, 2),
            (CheckpointPhase::Buffers, 1),
            (CheckpointPhase::TwoPhase, 1),
            (CheckpointPhase::Checkpoint, 0),
        ];
        assert_eq!(order, expected);
        let checkpointers = spans.iter().map(|span| span.pid);
        let title = |pid| howdah_inspect::OsProcess::from_pid(pid).unwrap().title().unwrap();
        assert!(checkpointers.into_iter().all(|pid| title(pid).contains("checkpointer")));
        assert_eq!(checkpoints.lost_events().unwrap(), 0);
    });
}
