//! Probes servers whose binary was stripped, or replaced while running.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Instant,
};

use howdah_inspect::{ExecutableState, RunningServer};
use howdah_lab::{Cluster, skip_without_postgres, wait_until};
use howdah_probe::{
    checkpoints::{CheckpointPhase, CheckpointTracer, PhaseUpdate},
    extend::ExtensionLocks,
    waits::{SamplerOptions, WaitSampler},
};
use tempfile::TempDir;

use crate::support::{TIMEOUT, may_trace, number, session};

/// Copies the installation of a major version, so that it can be modified.
fn copy(test: &str, major: u32) -> Option<(TempDir, PathBuf)> {
    let original = skip_without_postgres(test, Cluster::builder().major(major).start())?;
    let bin = fs::canonicalize(original.binaries().dir()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    // The server's user needs access.
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copied = dir.path().join("installed");
    let from = bin.parent().unwrap();
    let status = Command::new("cp").arg("-a").arg(from).arg(&copied).status().unwrap();
    assert!(status.success(), "{from:?}");
    Some((dir, copied.join("bin")))
}

/// Checks the probes that work on any server: checkpoints, extension locks, waits.
fn assert_probes_work(cluster: &Cluster, server: &RunningServer) {
    let mut client = session(cluster);
    client.query("CREATE TABLE IF NOT EXISTS grown (pad text)").unwrap();
    let relation = number(&mut client, "SELECT 'grown'::regclass::oid");
    let mut locks = may_trace("extension locks").then(|| ExtensionLocks::attach(server).unwrap());
    let insert = "INSERT INTO grown SELECT repeat('x', 900) FROM generate_series(1, 2000)";
    client.query(insert).unwrap();
    if let Some(locks) = &mut locks {
        let mut reported = 0;
        locks.drain(|lock| reported += u32::from(lock.relation == relation));
        assert!(reported > 0, "no extension locks were reported");
    }
    let mut checkpoints = CheckpointTracer::from_stats(server).unwrap();
    let mut phases = Vec::new();
    thread::scope(|scope| {
        let checkpoint = scope.spawn(|| session(cluster).query("CHECKPOINT").unwrap());
        wait_until("a finished checkpoint", TIMEOUT, || {
            let visit = |update| {
                if let PhaseUpdate::Finished(span) = update {
                    phases.push(span.phase);
                }
            };
            checkpoints.poll(visit).unwrap();
            phases.contains(&CheckpointPhase::Checkpoint) && checkpoint.is_finished()
        });
    });
    assert!(
        phases.contains(&CheckpointPhase::Write) && phases.contains(&CheckpointPhase::Sync),
        "{phases:?}"
    );
    let mut sampler = WaitSampler::open(server, SamplerOptions::default()).unwrap();
    let round = sampler.sample(Instant::now()).unwrap();
    assert!(round.counts().processes >= 4);
}

fn start(bin: &Path, major: u32) -> (Cluster, RunningServer) {
    let cluster = Cluster::builder().major(major).bin_dir(bin).start().unwrap();
    let server = RunningServer::in_data_dir(cluster.data_dir()).unwrap();
    (cluster, server)
}

#[test]
fn stripped_server_is_probed() {
    for major in [17, 18] {
        let test = format!("a stripped server, {major}");
        let Some((_dir, bin)) = copy(&test, major) else { continue };
        let postgres = bin.join("postgres");
        let stripped = Command::new("strip").arg("--strip-all").arg(&postgres).status();
        if !stripped.is_ok_and(|status| status.success()) {
            eprintln!("skipped {test}: strip is not installed");
            continue;
        }
        let (cluster, server) = start(&bin, major);
        assert_probes_work(&cluster, &server);
    }
}

#[test]
fn server_with_replaced_binary_is_probed() {
    let test = "a replaced binary";
    let Some((_dir, bin)) = copy(test, 17) else { return };
    let postgres = bin.join("postgres");
    let (cluster, _) = start(&bin, 17);
    let state = |server: &RunningServer| server.postmaster().executable_state().unwrap();
    // As a package manager does: a new file under the same name, the old one unlinked.
    let new = bin.join("postgres.new");
    fs::copy(bin.join("initdb"), &new).unwrap();
    fs::rename(&new, &postgres).unwrap();
    let server = RunningServer::in_data_dir(cluster.data_dir()).unwrap();
    assert_eq!(state(&server), ExecutableState::Replaced);
    assert_probes_work(&cluster, &server);
    fs::remove_file(&postgres).unwrap();
    let server = RunningServer::in_data_dir(cluster.data_dir()).unwrap();
    assert_eq!(state(&server), ExecutableState::Deleted);
    assert_probes_work(&cluster, &server);
}
