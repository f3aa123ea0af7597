//! The figures of the machine in a run; captured sessions always get the connections they need.

use std::{io::Write as _, os::unix::fs::PermissionsExt as _};

use howdah_dataset::{CalibrationEndReason, MachineSeries, ReplayRun};
use howdah_lab::{Cluster, skip_without_postgres, wait_for};

use crate::{
    logs::LogBuilder,
    support::{ReplayFixture, ReplayProcess, TIMEOUT, connect, replay, text, value},
};

/// Connections of the calibration.
const CALIBRATIONS: &str =
    "select count(*) from pg_stat_activity where application_name = 'howdah-calibration'";

/// The series stored with the run `run` of a folder.
fn stored_series(folder: &std::path::Path) -> MachineSeries {
    let run = ReplayRun::open(&folder.join("run")).unwrap();
    run.machine().unwrap().expect("the run has a series")
}

/// A log of one session that lasts for three seconds.
fn log_of_three_seconds(user: &str, database: &str) -> String {
    let mut log = LogBuilder::new(database);
    log.user(user).connect(0, 1).query(1, 1, "select 1").query(3_000, 1, CALIBRATIONS);
    log.query(3_001, 1, "select 2").disconnect(3_100, 1).text.clone()
}

#[test]
fn run_has_series_of_machine() {
    let Some(fixture) = ReplayFixture::new("machine") else { return };
    let replayed = fixture.replay(&log_of_three_seconds("postgres", "machine"), &[]);
    replayed.assert_all_done();
    let series = stored_series(fixture.folder.path());
    let seconds = replayed.report["elapsed_s"].as_f64().unwrap().ceil() as usize;
    assert!(series.buckets.len().abs_diff(seconds) <= 1, "{seconds} s: {:?}", series.buckets);
    assert_eq!(series.calibration.end, None);
    assert!(series.is_server_local, "lab servers have local addresses");
    for bucket in &series.buckets {
        let calibration = [bucket.calibration_p50_us, bucket.calibration_max_us];
        assert!(calibration.into_iter().flatten().all(|us| us > 0), "{bucket:?}");
        assert!(bucket.calibration_p50_us <= bucket.calibration_max_us, "{bucket:?}");
        assert!(bucket.wakeup_delay_mean_us <= bucket.wakeup_delay_max_us, "{bucket:?}");
        assert!(bucket.cpu_busy_us <= bucket.cpu_total_us, "{bucket:?}");
    }
    let summary = series.summary();
    assert!(summary.calibration_p50_us > Some(0) && summary.calibration_count > 0, "{summary:?}");
    assert!(summary.wakeup_delay_p99_us.is_some() && summary.replay_processors.is_some());
    let printed = &replayed.report["machine"];
    assert_eq!(printed["calibration_p50_us"].as_u64(), summary.calibration_p50_us);
    assert_eq!(printed["calibration_end"], serde_json::Value::Null);
    let mode = fixture.path("run/machine.json").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    wait_for("the calibration to disconnect", TIMEOUT, || {
        (fixture.value(CALIBRATIONS) == "0").then_some(())
    });
}

#[test]
fn calibration_can_be_switched_off() {
    let Some(fixture) = ReplayFixture::new("uncalibrated") else { return };
    fixture.write("server.log", &log_of_three_seconds("postgres", "uncalibrated"));
    let uri = fixture.uri();
    let words = ["replay", "server.log", "--target", &uri, "--rate", "8", "--no-calibration"];
    let done = fixture.howdah().args(words).assert().success();
    let printed = text(&done.get_output().stdout);
    let line = "  machine         no calibration: it is switched off, ";
    assert!(printed.contains(line), "{printed}");
    assert!(!fixture.path("run").exists());
}

#[test]
fn role_with_connection_limit_is_not_calibrated() {
    let Some(fixture) = ReplayFixture::new("limited") else { return };
    fixture.client().query("create role limited_login login connection limit 3").unwrap();
    let log = log_of_three_seconds("limited_login", "limited");
    fixture.write("server.log", &log);
    let uri = fixture.uri().replace("postgres@", "limited_login@");
    replay(fixture.folder.path(), "server.log", &uri, &["--rate", "8"]).assert_all_done();
    let end = stored_series(fixture.folder.path()).calibration.end.expect("it was left out");
    assert_eq!((end.reason, end.at_us), (CalibrationEndReason::NoFreeSlot, None));
    assert_eq!(end.message, "its role has a connection limit of 3");
}

#[test]
fn target_without_free_slots_replays_all_sessions() {
    let started = Cluster::builder()
        .name("slots")
        .setting("max_connections", "8")
        .setting("max_wal_senders", "0")
        .start();
    let Some(cluster) = skip_without_postgres("slots", started) else { return };
    let folder = tempfile::tempdir().unwrap();
    // Three of the eight slots are reserved for superusers.
    let mut log = LogBuilder::new("postgres");
    log.user("app");
    for pid in 1..=5 {
        log.connect(0, pid).query(1, pid, "select 1").query(1_500, pid, "select 2");
    }
    std::fs::write(folder.path().join("server.log"), log.text).unwrap();
    connect(&cluster, "postgres").query("create role app login").unwrap();
    let replayed = replay(folder.path(), "server.log", &cluster.uri("postgres"), &[]);
    replayed.assert_all_done();
    assert_eq!(replayed.report["connections_max"], 5);
    let series = stored_series(folder.path());
    let end = series.calibration.end.expect("there is no slot for it");
    assert_eq!((end.reason, end.at_us), (CalibrationEndReason::NoFreeSlot, None));
    assert!(end.message.starts_with("too few free connection slots, the target has room for 5 "));
    assert!(series.buckets.iter().all(|bucket| bucket.calibration_count.is_none()));
    assert!(series.buckets.iter().any(|bucket| bucket.wakeup_count.is_some()));
}

#[test]
fn calibration_disconnects_when_more_sessions_connect() {
    let started = Cluster::builder()
        .name("filling")
        .setting("max_connections", "20")
        .setting("max_wal_senders", "0")
        .start();
    let Some(cluster) = skip_without_postgres("filling", started) else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut client = connect(&cluster, "postgres");
    client.query("create role app login").unwrap();
    // How many sessions there will be cannot be known from a pipe.
    let words = ["--input-format", "stderr"];
    let uri = cluster.uri("postgres");
    let mut running = ReplayProcess::start(folder.path(), "-", &uri, &words);
    let mut pipe = running.child().stdin.take().unwrap();
    let mut log = LogBuilder::new("postgres");
    log.user("app").connect(0, 1).query(1, 1, "select 1");
    pipe.write_all(log.text.as_bytes()).unwrap();
    wait_for("the calibration", TIMEOUT, || {
        (value(&mut client, CALIBRATIONS) == "1").then_some(())
    });
    drop(client);
    // With the first one, they need all 17 slots that are not reserved.
    let mut log = LogBuilder::new("postgres");
    log.user("app");
    for pid in 2..=17 {
        log.connect(1_000, pid).query(1_001, pid, "select 1");
    }
    log.query(2_000, 1, "select 2");
    pipe.write_all(log.text.as_bytes()).unwrap();
    drop(pipe);
    let (status, messages, replayed) = running.wait();
    assert_eq!(status.code(), Some(0), "{messages}");
    replayed.assert_all_done();
    assert_eq!(replayed.report["connections_max"], 17);
    let end = stored_series(folder.path()).calibration.end.expect("it has ended");
    assert_eq!(end.reason, CalibrationEndReason::NoFreeSlot, "{end:?}");
    assert_eq!(end.message, "the captured sessions need its connection slot");
}
