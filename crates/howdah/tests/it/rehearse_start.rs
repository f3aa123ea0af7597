//! `howdah rehearse` with a capture that has its server: the guard, the recovery target, and where
//! the copies stand.

use std::path::Path;

use howdah_connect::{Client, ConnParams, ConnectTarget, Environment};
use howdah_dataset::{CaptureOrigin, CaptureSettings, CaptureWriter, CapturedServer};
use howdah_lab::{Cluster, skip_without_postgres, wait_until};
use howdah_traffic::{Action, CapturedOutcome, Event, Source, Timestamp};
use serde_json::Value;

use crate::{howdah, text};

/// How long tests wait for a server.
const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(90);

fn client(cluster: &Cluster) -> Client {
    let conninfo = Some(cluster.uri("postgres"));
    let params = ConnParams { conninfo, ..ConnParams::default() };
    Client::connect(&ConnectTarget::resolve(&params, &Environment::empty()).unwrap()).unwrap()
}

fn value(cluster: &Cluster, sql: &str) -> String {
    client(cluster).one_value(sql).unwrap().unwrap_or_default()
}

/// Queries what a pooler would record of its server.
fn captured_server(cluster: &Cluster) -> CapturedServer {
    let identifier = value(cluster, "select system_identifier from pg_control_system()");
    CapturedServer {
        system_identifier: Some(identifier),
        timeline: Some(1),
        address: Some(format!("127.0.0.1:{}", cluster.port())),
        postmaster_start: None,
        lsn: Some(value(cluster, "select pg_current_wal_lsn()")),
        time: Some(Timestamp::now()),
    }
}

/// Writes a capture of a few reads.
fn write_capture(dir: &Path, server: Option<CapturedServer>) {
    let origin = CaptureOrigin { server, ..CaptureOrigin::default() };
    let settings = CaptureSettings { origin, overwrite: true };
    let mut writer = CaptureWriter::create(dir, settings).unwrap();
    for number in 0..20 {
        let event = Event {
            time: Timestamp::from_micros(1_795_178_599_577_000 + number * 1_000),
            session: "656a1b2c.1".into(),
            user: "".into(),
            database: "postgres".into(),
            application: "".into(),
            action: Action::Simple { sql: "select count(*) from items".into() },
            outcome: CapturedOutcome::default(),
            source: Source::Duration,
            vxid: None,
            query_id: None,
            pipeline: None,
            wire: None,
        };
        writer.write(event).unwrap();
    }
    writer.finish(Value::Null).unwrap();
}

fn start(name: &str) -> Option<Cluster> {
    let started = Cluster::builder().name(name).unique_system_identifier(true).start();
    let cluster = skip_without_postgres("rehearse start", started)?;
    client(&cluster).query("create table items (id int)").unwrap();
    Some(cluster)
}

/// Rehearses with one run on each side; returns the exit code and stderr.
fn rehearse(folder: &Path, base: &Cluster, change: &Cluster, more: &[&str]) -> (i32, String) {
    let [base, change] = [base, change].map(|cluster| cluster.uri("postgres"));
    let done = howdah(folder)
        .args(["rehearse", "capture", "--base", &base, "--change", &change, "-o", "out"])
        .args(["--runs", "1", "--warm-up", "0", "--force"])
        .args(more)
        .assert();
    let output = done.get_output();
    (output.status.code().unwrap(), text(&output.stderr))
}

fn report(folder: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(folder.join("out/report.json")).unwrap()).unwrap()
}

/// Stops a standby, and makes it recover to the target of the capture as the report of a rehearsal
/// describes it.
fn recover(standby: &mut Cluster, settings: &[Value]) {
    standby.stop().unwrap();
    let path = standby.data_dir().join("postgresql.auto.conf");
    let mut conf = std::fs::read_to_string(&path).unwrap();
    settings.iter().for_each(|line| conf.push_str(&format!("{}\n", line.as_str().unwrap())));
    std::fs::write(&path, conf).unwrap();
    standby.start().unwrap();
    wait_until("the end of recovery", TIMEOUT, || {
        value(standby, "select pg_is_in_recovery()") == "f"
    });
}

#[test]
fn copies_restored_to_the_recovery_target_stand_at_the_start() {
    let Some(primary) = start("production") else { return };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let standby = |name: &str| Cluster::builder().name(name).standby_of(&primary).start().unwrap();
    let (mut base, mut change) = (standby("base"), standby("change"));
    client(&primary).query("insert into items values (1)").unwrap();
    for copy in [&base, &change] {
        wait_until("the row on the standby", TIMEOUT, || {
            value(copy, "select count(*) from items") == "1"
        });
    }
    base.stop().unwrap();
    change.stop().unwrap();
    write_capture(&folder.join("capture"), Some(captured_server(&primary)));
    // This is what captured sessions would have written.
    client(&primary).query("insert into items select generate_series(2, 100)").unwrap();

    let plan = howdah(folder)
        .args(["rehearse", "capture", "--base", &base.uri("postgres"), "-o", "out", "--dry-run"])
        .args(["--change", &change.uri("postgres")])
        .assert()
        .success();
    let plan = text(&plan.get_output().stdout);
    let lines: Vec<Value> = plan
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with("recovery_target_"))
        .map(Value::from)
        .collect();
    assert_eq!(lines.len(), 4, "{plan}");
    assert!(plan.contains("pgbackrest restore --type=lsn --target="), "{plan}");
    for copy in [&mut base, &mut change] {
        recover(copy, &lines);
        assert_eq!(value(copy, "select count(*) from items"), "1", "later rows are not there");
    }

    let (code, messages) = rehearse(folder, &base, &change, &[]);
    assert_ne!(code, 1, "{messages}");
    assert!(!messages.contains("of the capture"), "{messages}");
    let start = &report(folder)["start"];
    for side in ["base", "change"] {
        assert_eq!(start[side]["kind"], "distance", "{start}");
        assert_eq!(start[side]["bytes"], 0, "{start}");
    }
    assert_eq!(start["apart_bytes"], 0, "{start}");
    let settings = start["recovery_target"]["settings"].as_array().unwrap();
    assert_eq!(*settings, lines);
    for file in ["report.txt", "report.md", "report.html"] {
        let report = std::fs::read_to_string(folder.join("out").join(file)).unwrap();
        assert!(report.contains("recovery_target_lsn = "), "{file}: {report}");
        assert!(report.contains("stands exactly at the start of the capture"), "{file}: {report}");
    }

    // A capture that starts a gigabyte later: both copies lack its WAL.
    let server = captured_server(&primary);
    let later = format!("select '{}'::pg_lsn + 1073741824", server.lsn.clone().unwrap());
    let later = Some(value(&primary, &later));
    write_capture(&folder.join("capture"), Some(CapturedServer { lsn: later, ..server }));
    let (code, messages) = rehearse(folder, &base, &change, &[]);
    assert_ne!(code, 1, "{messages}");
    let start = report(folder)["start"].clone();
    for side in ["base", "change"] {
        let warning = format!("note: {side} stands 1.00 GiB of WAL before the start");
        assert!(messages.contains(&warning), "{messages}");
        assert_eq!(start[side]["is_unexpected"], true, "{start}");
    }
    assert!(messages.contains("note: --dry-run prints the recovery target"), "{messages}");
}

#[test]
fn captured_server_is_refused_unless_its_database_is_named() {
    let (Some(captured), Some(logical)) = (start("theone"), start("logical")) else { return };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write_capture(&folder.join("capture"), Some(captured_server(&captured)));
    for more in [&[][..], &["--allow-production", "shop"]] {
        let (code, messages) = rehearse(folder, &logical, &captured, more);
        assert_eq!(code, 1, "{messages}");
        let refused = "the change server is the one that was captured";
        assert!(messages.contains(refused), "{messages}");
        assert!(messages.contains("--allow-production postgres"), "{messages}");
        assert!(!folder.join("out/runs").exists(), "nothing was replayed");
    }
    let allowed = ["--allow-production", "postgres"];
    let (code, messages) = rehearse(folder, &logical, &captured, &allowed);
    assert_ne!(code, 1, "{messages}");
    let start = &report(folder)["start"];
    assert_eq!(start["base"]["kind"], "other_system", "{start}");
    assert_eq!(start["change"]["kind"], "distance", "{start}");
}

#[test]
fn sample_without_the_start_has_no_position() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let server = CapturedServer {
        system_identifier: Some("7".to_owned()),
        lsn: Some("0/16B3748".to_owned()),
        time: Some(Timestamp::now()),
        ..CapturedServer::default()
    };
    write_capture(&folder.join("capture"), Some(server));
    let info = |more: &[&str]| {
        let words = ["capture", "sample", "capture", "-o", "sample", "--force"];
        howdah(folder).args(words).args(more).assert().success();
        let info = howdah(folder).args(["capture", "info", "sample"]).assert().success();
        text(&info.get_output().stdout)
    };
    assert!(info(&[]).contains("start     LSN 0/16B3748, "));
    let later = info(&["--from", "2026-11-20T12:43:19.580Z"]);
    assert!(later.contains("system identifier 7") && !later.contains("LSN"), "{later}");
}

#[test]
fn import_records_the_server_that_is_named() {
    let Some(cluster) = start("logged") else { return };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let log = "2026-03-01 10:00:00.250 UTC [7] LOG:  duration: 0.412 ms  statement: select 1\n";
    std::fs::write(folder.join("server.log"), log).unwrap();
    let import = |server: &str| {
        let words = ["capture", "import", "server.log", "-o", "made", "--force"];
        howdah(folder).args(words).args(["--prefix", "%m [%p] ", "--server", server]).assert()
    };
    let made = import(&cluster.uri("postgres")).success();
    let identifier = value(&cluster, "select system_identifier from pg_control_system()");
    let server =
        format!("system identifier {identifier}, timeline 1, at 127.0.0.1:{}", cluster.port());
    let messages = text(&made.get_output().stderr);
    assert!(messages.contains(&format!("captured server: {server}")), "{messages}");
    let info = howdah(folder).args(["capture", "info", "made"]).assert().success();
    let info = text(&info.get_output().stdout);
    assert!(info.contains(&format!("server    {server}\n")), "{info}");
    assert!(!info.contains("LSN"), "{info}");

    client(&cluster)
        .query(
            "create role reader login; \
             revoke execute on function pg_control_system() from public",
        )
        .unwrap();
    let reader = cluster.uri("postgres").replace("postgres@", "reader@");
    let made = import(&reader).success();
    let messages = text(&made.get_output().stderr);
    let grant = "GRANT EXECUTE ON FUNCTION pg_catalog.pg_control_system() TO reader";
    assert!(messages.contains(&format!("hint: {grant}")), "{messages}");
    let secret = "postgresql://nobody:hunter2@127.0.0.1:1/shop";
    let failed = import(secret).failure();
    let messages = text(&failed.get_output().stderr);
    assert!(messages.contains("cannot connect") && !messages.contains("hunter2"), "{messages}");
}
