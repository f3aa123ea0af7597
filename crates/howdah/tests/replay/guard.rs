//! Targets that may be in production: they are refused unless the user repeats the database's name.

use std::path::Path;

use howdah_connect::{Client, ConnParams, ConnectTarget, Environment};
use howdah_dataset::{Capture, CapturedServer};
use howdah_lab::{Cluster, skip_without_postgres};

use crate::{
    logs::LogBuilder,
    pooler_capture::CapturePooler,
    support::{TIMEOUT, connect, howdah, text, value},
};

/// Captures reads of the database `bench` through a pooler, in `captures/it`.
fn capture_reads(folder: &Path, cluster: &Cluster) -> CapturedServer {
    let pool = CapturePooler::start(folder, cluster, "");
    pool.psql("bench", "select 1");
    pool.psql("howdah", "capture start it");
    pool.psql("bench", "select count(*) from items");
    pool.psql("howdah", "capture stop");
    pool.signal(rustix::process::Signal::TERM);
    pool.wait();
    let capture = Capture::open(&folder.join("captures/it")).unwrap();
    capture.manifest().origin.server.clone().expect("the manifest names the server")
}

/// Replays `captures/it` against a server; returns the exit code and stderr.
fn replay_capture(folder: &Path, cluster: &Cluster, more: &[&str]) -> (i32, String) {
    let done = howdah(folder)
        .args(["replay", "captures/it", "--target", &cluster.uri("bench"), "--no-calibration"])
        .args(more)
        .assert();
    let output = done.get_output();
    (output.status.code().unwrap(), text(&output.stderr))
}

fn start_with_items(name: &str) -> Option<Cluster> {
    let started = Cluster::builder().name(name).unique_system_identifier(true).start();
    let cluster = skip_without_postgres("replay guard", started)?;
    connect(&cluster, "postgres").query("create database bench").unwrap();
    connect(&cluster, "bench").query("create table items (id int)").unwrap();
    Some(cluster)
}

#[test]
fn captured_server_is_refused_and_its_copy_is_not() {
    let Some(mut cluster) = start_with_items("captured") else { return };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let server = capture_reads(folder, &cluster);
    let identifier = "select system_identifier from pg_control_system()";
    let identifier = value(&mut connect(&cluster, "bench"), identifier);
    assert_eq!(server.system_identifier.as_deref(), Some(&*identifier));

    let (code, messages) = replay_capture(folder, &cluster, &[]);
    assert_eq!(code, 1, "{messages}");
    assert!(messages.contains("the target is the one that was captured"), "{messages}");
    assert!(messages.contains("--allow-production bench"), "{messages}");
    // Reads slow down a server in production, too.
    let (code, messages) = replay_capture(folder, &cluster, &["--read-only"]);
    assert_eq!(code, 1, "{messages}");
    let wrong = ["--allow-production", "postgres"];
    let (code, messages) = replay_capture(folder, &cluster, &wrong);
    assert_eq!(code, 1, "{messages}");
    assert!(messages.contains("--allow-production names postgres, not bench"), "{messages}");
    let right = ["--allow-production", "bench"];
    let (code, messages) = replay_capture(folder, &cluster, &right);
    assert_eq!(code, 0, "{messages}");

    // A physical copy at another address. The captured server does not count its walsender.
    let copy = Cluster::builder().name("copy").standby_of(&cluster).start().unwrap();
    let (code, messages) = replay_capture(folder, &copy, &[]);
    assert_eq!(code, 0, "{messages}");
    drop(copy);

    // A physical copy at the captured address.
    let port = cluster.port();
    cluster.stop().unwrap();
    let at_old_address = Cluster::builder().name("same-address").port(port);
    let copy = cluster.clone_stopped(at_old_address).unwrap();
    let (code, messages) = replay_capture(folder, &copy, &[]);
    assert_eq!(code, 1, "{messages}");
    assert!(messages.contains(&format!("its system identifier is {identifier}")), "{messages}");
}

#[test]
fn captured_server_is_recognized_through_a_pooler() {
    let Some(cluster) = start_with_items("pooled") else { return };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    capture_reads(folder, &cluster);
    let pool = CapturePooler::start(folder, &cluster, "");
    let target = format!("postgresql://postgres@127.0.0.1:{}/bench", pool.port);
    let refused = howdah(folder).args(["replay", "captures/it", "--target", &target]).assert();
    let messages = text(&refused.code(1).get_output().stderr);
    assert!(messages.contains("its postmaster started at the same microsecond"), "{messages}");
    pool.signal(rustix::process::Signal::TERM);
    pool.wait();
}

#[test]
fn server_with_active_clients_is_refused() {
    let Some(cluster) = start_with_items("busy") else { return };
    let _standby = Cluster::builder().name("busys").standby_of(&cluster).start().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut log = LogBuilder::new("bench");
    log.session(1, &["select count(*) from items"]);
    std::fs::write(folder.join("server.log"), &log.text).unwrap();
    let run = |more: &[&str]| {
        let done = howdah(folder)
            .args(["replay", "server.log", "--target", &cluster.uri("bench")])
            .args(more)
            .assert();
        (done.get_output().status.code().unwrap(), text(&done.get_output().stderr))
    };
    // Neither a walsender nor connections of Howdah are clients.
    let _ours = connect(&cluster, "bench");
    let (code, messages) = run(&[]);
    assert_eq!(code, 0, "{messages}");

    let params = ConnParams { conninfo: Some(cluster.uri("postgres")), ..ConnParams::default() };
    let target = ConnectTarget::resolve(&params, &Environment::empty()).unwrap();
    let mut other = Client::connect(&target.with_application_name("howdahshop")).unwrap();
    other.set_timeout(Some(TIMEOUT));
    other.query("select 1").unwrap();
    for more in [&[][..], &["--read-only"], &["--allow-production", "postgres"]] {
        let (code, messages) = run(more);
        assert_eq!(code, 1, "{messages}");
        let client = "howdahshop (role postgres, database postgres)";
        assert!(messages.contains("1 other client was active on the target"), "{messages}");
        assert!(messages.contains(client), "{messages}");
    }
    let (code, messages) = run(&["--allow-production", "bench"]);
    assert_eq!(code, 0, "{messages}");
}
