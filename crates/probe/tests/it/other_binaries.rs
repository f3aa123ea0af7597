//! Servers whose binary is not as it was installed: stripped, or replaced while it runs.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use howdah_inspect::{ExecutableState, Server};
use howdah_lab::{Cluster, or_say_why_not};
use howdah_probe::{
    checkpoints::{Checkpoints, Phase, Update},
    extend::ExtensionLocks,
    waits::{Options, Sampler},
};
use tempfile::TempDir;

use crate::support::{may_trace, number, session};

/// A copy of the installation of a major, which may be changed. Files are linked, not copied.
fn copy(test: &str, major: u32) -> Option<(TempDir, PathBuf)> {
    let original = or_say_why_not(test, Cluster::builder().major(major).start())?;
    let bin = fs::canonicalize(original.binaries().dir()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    // The server's account has to get in.
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copied = dir.path().join("installed");
    let from = bin.parent().unwrap();
    let status = Command::new("cp").arg("-a").arg(from).arg(&copied).status().unwrap();
    assert!(status.success(), "{from:?}");
    Some((dir, copied.join("bin")))
}

/// What a probe has to tell of any server: checkpoints, extension locks, waits.
fn is_probed(cluster: &Cluster, server: &Server) {
    let mut client = session(cluster);
    client.query("CREATE TABLE IF NOT EXISTS grown (pad text)").unwrap();
    let relation = number(&mut client, "SELECT 'grown'::regclass::oid");
    let mut locks = may_trace("extension locks").then(|| ExtensionLocks::attach(server).unwrap());
    let insert = "INSERT INTO grown SELECT repeat('x', 900) FROM generate_series(1, 2000)";
    client.query(insert).unwrap();
    if let Some(locks) = &mut locks {
        let mut told = 0;
        locks.drain(|lock| told += u32::from(lock.relation == relation));
        assert!(told > 0, "extension locks are told");
    }
    let mut checkpoints = Checkpoints::by_notes(server).unwrap();
    let mut phases = Vec::new();
    thread::scope(|scope| {
        let made = scope.spawn(|| session(cluster).query("CHECKPOINT").unwrap());
        let deadline = Instant::now() + Duration::from_secs(60);
        while !(phases.contains(&Phase::Checkpoint) && made.is_finished()) {
            assert!(Instant::now() < deadline, "{phases:?}");
            let visit = |update| {
                if let Update::Finished(span) = update {
                    phases.push(span.phase);
                }
            };
            checkpoints.poll(visit).unwrap();
            thread::sleep(Duration::from_millis(1));
        }
    });
    assert!(phases.contains(&Phase::Write) && phases.contains(&Phase::Sync), "{phases:?}");
    let mut sampler = Sampler::open(server, Options::default()).unwrap();
    let round = sampler.sample(Instant::now()).unwrap();
    assert!(round.counts().processes >= 4);
}

fn start(bin: &Path, major: u32) -> (Cluster, Server) {
    let cluster = Cluster::builder().major(major).bin_dir(bin).start().unwrap();
    let server = Server::in_data_dir(cluster.data_dir()).unwrap();
    (cluster, server)
}

#[test]
fn a_stripped_server_is_probed_like_any_other() {
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
        is_probed(&cluster, &server);
    }
}

#[test]
fn a_server_whose_binary_was_replaced_is_probed_by_the_one_that_runs() {
    let test = "a replaced binary";
    let Some((_dir, bin)) = copy(test, 17) else { return };
    let postgres = bin.join("postgres");
    let (cluster, _) = start(&bin, 17);
    let state = |server: &Server| server.postmaster().executable_state().unwrap();
    // As a package manager does: another file under the name, the old one without any.
    let new = bin.join("postgres.new");
    fs::copy(bin.join("initdb"), &new).unwrap();
    fs::rename(&new, &postgres).unwrap();
    let server = Server::in_data_dir(cluster.data_dir()).unwrap();
    assert_eq!(state(&server), ExecutableState::Replaced);
    is_probed(&cluster, &server);
    fs::remove_file(&postgres).unwrap();
    let server = Server::in_data_dir(cluster.data_dir()).unwrap();
    assert_eq!(state(&server), ExecutableState::Deleted);
    is_probed(&cluster, &server);
}
