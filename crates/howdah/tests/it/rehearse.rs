//! `howdah rehearse` on two servers.

use std::{
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::Duration,
};

use howdah_connect::{Client, ConnParams, ConnectTarget, Environment};
use howdah_dataset::{Capture, CaptureSettings, CaptureWriter};
use howdah_lab::{Cluster, skip_without_postgres, wait_until};
use howdah_traffic::{Action, CapturedOutcome, Event, Source, Timestamp};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{howdah, text};

/// The index that the change lacks, and the query that needs it.
pub(crate) const INDEX: &str = "orders_customer_idx";

/// Two servers with the same data, and a capture of reads.
pub(crate) struct Fixture {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) base: Cluster,
    pub(crate) change: Cluster,
}

impl Fixture {
    /// `None` if the test is skipped.
    pub(crate) fn new() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let [base, change] = ["rehearse-base", "rehearse-change"]
            .map(|name| skip_without_postgres("rehearse", Cluster::builder().name(name).start()));
        let (base, change) = (base?, change?);
        for cluster in [&base, &change] {
            client(cluster, "postgres").query("create database shop").unwrap();
            client(cluster, "shop")
                .query(&format!(
                    "create table orders (id int primary key, customer int, note text);
                     insert into orders
                         select i, i % 4000, repeat('x', 100) from generate_series(1, 120000) i;
                     create index {INDEX} on orders (customer);"
                ))
                .unwrap();
        }
        let query = |number| {
            [
                ("shop", format!("select count(*) from orders where customer = {}", number * 7)),
                ("shop", format!("select note from orders where id = {}", number * 31 + 1)),
            ]
        };
        write_capture(&folder.path().join("capture"), query);
        Some(Self { folder, base, change })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The arguments of a quick rehearsal into `out`.
    pub(crate) fn arguments(&self, out: &str) -> Vec<String> {
        let (base, change) = (self.base.uri("shop"), self.change.uri("shop"));
        let words = ["rehearse", "capture", "--base", &base, "--change", &change, "-o", out];
        words.map(str::to_owned).into()
    }

    pub(crate) fn report(&self, out: &str) -> Value {
        serde_json::from_slice(&std::fs::read(self.path(out).join("report.json")).unwrap()).unwrap()
    }
}

pub(crate) fn client(cluster: &Cluster, database: &str) -> Client {
    let params = ConnParams { conninfo: Some(cluster.uri(database)), ..ConnParams::default() };
    // Like `howdah top` beside a rehearsal, this client does not count as traffic.
    let target = ConnectTarget::resolve(&params, &Environment::empty()).unwrap();
    Client::connect(&target).unwrap()
}

/// A second of traffic of two sessions. `query` returns the database and the n-th query of each.
fn write_capture(dir: &Path, query: impl Fn(i64) -> [(&'static str, String); 2]) {
    let mut writer = CaptureWriter::create(dir, CaptureSettings::default()).unwrap();
    let start = 1_795_178_599_577_000;
    for number in 0..50 {
        for (session, (database, sql)) in query(number).into_iter().enumerate() {
            let event = Event {
                time: Timestamp::from_micros(start + number * 20_000),
                session: format!("656a1b2c.{session}").as_str().into(),
                user: "".into(),
                database: database.into(),
                application: "".into(),
                action: Action::Simple { sql: sql.into_bytes().into() },
                outcome: CapturedOutcome::default(),
                source: Source::Duration,
                vxid: None,
                query_id: None,
                pipeline: None,
                wire: None,
            };
            writer.write(event).unwrap();
        }
    }
    writer.finish(Value::Null).unwrap();
    assert_eq!(Capture::open(dir).unwrap().manifest().events, 100);
}

#[test]
fn dropped_index_is_found_and_named() {
    let Some(fixture) = Fixture::new() else { return };
    client(&fixture.change, "shop").query(&format!("drop index {INDEX}")).unwrap();
    let plan = howdah(fixture.folder.path())
        .args(fixture.arguments("out"))
        .args(["--runs", "3", "--dry-run"])
        .assert()
        .success();
    let plan = text(&plan.get_output().stdout);
    assert!(plan.contains("replay b2 on change") && plan.contains("in all, about"), "{plan}");
    assert!(!fixture.path("out").exists());

    let done = howdah(fixture.folder.path())
        .args(fixture.arguments("out"))
        .args(["--runs", "3", "--warm-up", "1s"])
        .assert()
        .code(3);
    let shown = text(&done.get_output().stdout);
    assert!(shown.starts_with("rehearsal: failed: "), "{shown}");
    let reason = format!("index {INDEX} on orders is missing");
    assert!(shown.contains(&reason), "{shown}");
    let report = fixture.report("out");
    assert_eq!(report["verdict"], "failed");
    let names: Vec<_> = report["runs"].as_array().unwrap().iter().map(|run| &run["name"]).collect();
    assert_eq!(names, ["a1", "b1", "b2", "a2", "a3", "b3"]);
    let because = report["queries"][0]["plan_change"].as_str().unwrap();
    assert!(because.contains(INDEX), "{because}");
    assert_observed(&fixture.path("out"));
    for file in ["report.txt", "report.md", "report.html", "report.xml"] {
        let report = std::fs::read_to_string(fixture.path("out").join(file)).unwrap();
        let plain = report.replace('\\', "");
        assert!(plain.contains(&reason), "{file}: {report}");
    }
}

/// Asserts that the servers were observed during the runs, and that the page has what was found.
fn assert_observed(out: &Path) {
    let path = out.join("runs/b1/server.json");
    let series: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let buckets = series["buckets"].as_array().unwrap();
    assert!(buckets.iter().any(|bucket| bucket["samples"].as_u64() > Some(0)), "{series}");
    assert!(buckets.iter().any(|bucket| bucket["hits"].as_f64() > Some(0.0)), "{series}");
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&path).unwrap());
    assert_eq!(mode & 0o777, 0o600, "{mode:o}");
    let reference =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/reference/rehearsal.md");
    let reference = std::fs::read_to_string(reference).unwrap();
    for fields in [&series, &buckets[0]].map(|value| value.as_object().unwrap()) {
        for key in fields.keys().filter(|key| !["format", "version"].contains(&key.as_str())) {
            assert!(reference.contains(&format!("| `{key}` |")), "{key} is not documented");
        }
    }
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    // Statements are too short for a session to be found executing in each rehearsal.
    for part in ["Buffer cache hits", "histogram", "Seq Scan"] {
        assert!(page.contains(part), "{part}");
    }
}

#[test]
fn interrupted_run_is_discarded() {
    let Some(fixture) = Fixture::new() else { return };
    let mut child = start(&fixture, &["--runs", "1", "--warm-up", "0", "--rate", "0.1"]);
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("replay a1")), "the first run did not start");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let messages: Vec<String> = lines.collect();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert_eq!(messages[0], "howdah: interrupted");
    assert!(messages[1].starts_with("hint: finished runs are kept"), "{messages:?}");
    assert!(!fixture.path("out/runs/a1").exists());
}

/// Starts a rehearsal in the background.
pub(crate) fn start(fixture: &Fixture, more: &[&str]) -> Child {
    std::process::Command::new(assert_cmd::cargo::cargo_bin!("howdah"))
        .args(fixture.arguments("out"))
        .args(more)
        .current_dir(fixture.folder.path())
        .env("HOME", fixture.folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Starts a rehearsal, and kills it when `step` begins, without a chance to clean up.
fn kill_at(fixture: &Fixture, more: &[&str], step: &str) {
    let mut child = start(fixture, more);
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let has_begun = lines.map_while(Result::ok).any(|line| line.contains(step));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(has_begun, "the rehearsal ended before the step {step}");
}

fn assert_copies_are_dropped(cluster: &Cluster) {
    let copies = "select count(*) from pg_database where datname like '%rehearsal%'";
    let copies = client(cluster, "postgres").one_value(copies).unwrap();
    assert_eq!(copies.as_deref(), Some("0"), "copies are dropped");
}

fn journal(fixture: &Fixture) -> Value {
    let path = fixture.path("out").join("rehearsal.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn rehearsal_killed_at_each_step_continues() {
    let Some(fixture) = Fixture::new() else { return };
    let options = ["--runs", "1", "--warm-up", "300ms", "--reset", "copy"];
    let steps = [
        ("check", 0),
        ("prepare base for a1", 0),
        ("warm up base for a1", 0),
        ("replay a1", 0),
        ("prepare change for b1", 1),
        ("warm up change for b1", 1),
        ("replay b1", 1),
        ("compare", 2),
    ];
    for (step, runs) in steps {
        kill_at(&fixture, &options, step);
        let journal = journal(&fixture);
        assert_eq!(journal["runs"].as_array().unwrap().len(), runs, "{step}: {journal}");
    }
    let done = howdah(fixture.folder.path()).args(fixture.arguments("out")).args(options).assert();
    // One run on each side shows no noise, so the verdict may be that nothing can be compared.
    let code = done.get_output().status.code().unwrap();
    assert!([0, 3, 4].contains(&code), "{code}: {}", text(&done.get_output().stderr));
    assert_eq!(fixture.report("out")["runs"].as_array().unwrap().len(), 2);
    for cluster in [&fixture.base, &fixture.change] {
        assert_copies_are_dropped(cluster);
    }
}

#[test]
fn killed_rehearsal_continues_with_unfinished_runs() {
    let Some(fixture) = Fixture::new() else { return };
    kill_at(&fixture, &["--runs", "2", "--warm-up", "0"], "replay b1");
    let killed = journal(&fixture);
    assert_eq!(killed["runs"].as_array().unwrap().len(), 1, "{killed}");

    let refused = howdah(fixture.folder.path())
        .args(fixture.arguments("out"))
        .args(["--runs", "2", "--warm-up", "0", "--rate", "2"])
        .assert()
        .code(1);
    let message = text(&refused.get_output().stderr);
    assert!(
        message.contains("--rate \"1\", not \"2\"") && message.contains("--force"),
        "{message}"
    );

    let done = howdah(fixture.folder.path())
        .args(fixture.arguments("out"))
        .args(["--runs", "2", "--warm-up", "0"])
        .assert();
    // The servers are equal; a busy machine may find them slower or not comparable.
    let code = done.get_output().status.code().unwrap();
    let message = text(&done.get_output().stderr);
    assert!([0, 3, 4].contains(&code), "{code}: {message}");
    assert!(!message.contains("replay a1") && message.contains("replay b1"), "{message}");
    let finished = journal(&fixture);
    assert_eq!(finished["runs"].as_array().unwrap().len(), 4, "{finished}");
    assert_eq!(finished["runs"][0], killed["runs"][0], "a finished run is kept");
    let verdict = fixture.report("out")["verdict"].clone();
    let expected = ["passed", "", "", "failed", "not comparable"];
    assert_eq!(verdict, expected[usize::try_from(code).unwrap()]);
}

#[test]
fn server_with_other_clients_is_refused() {
    let Some(fixture) = Fixture::new() else { return };
    let params = ConnParams { conninfo: Some(fixture.change.uri("shop")), ..ConnParams::default() };
    let target = ConnectTarget::resolve(&params, &Environment::empty()).unwrap();
    let mut other = Client::connect(&target.with_application_name("shop")).unwrap();
    other.query("select 1").unwrap();
    let refused =
        howdah(fixture.folder.path()).args(fixture.arguments("out")).args(["--runs", "1"]).assert();
    let refused = refused.code(1);
    let message = text(&refused.get_output().stderr);
    assert!(message.contains("1 other client was active on the change server"), "{message}");
    assert!(message.contains("--allow-production shop"), "{message}");
    assert!(!fixture.path("out/runs").exists(), "nothing was replayed");
}

#[test]
fn migration_is_applied_to_a_copy() {
    let Some(fixture) = Fixture::new() else { return };
    std::fs::write(fixture.path("drop.sql"), format!("drop index {INDEX};")).unwrap();
    let base = fixture.base.uri("shop");
    let done = howdah(fixture.folder.path())
        .args(["rehearse", "capture", "--base", &base, "--change-sql", "drop.sql", "-o", "out"])
        .args(["--runs", "1", "--warm-up", "0", "--format", "json"])
        .assert()
        .code(3);
    let report: Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
    assert_eq!(report["differences"][0]["kind"], "dropped_index", "{report}");
    let mut client = client(&fixture.base, "shop");
    let index = client.one_value(&format!("select '{INDEX}'::regclass")).unwrap();
    assert_eq!(index.as_deref(), Some(INDEX), "the original is unchanged");
    assert_copies_are_dropped(&fixture.base);
}

#[test]
fn each_captured_database_is_copied_and_compared() {
    let Some(fixture) = Fixture::new() else { return };
    let query = |number| {
        [
            ("shop", format!("select note from orders where id = {}", number * 31 + 1)),
            ("crm", format!("insert into contacts values ({number})")),
        ]
    };
    write_capture(&fixture.path("two"), query);
    for cluster in [&fixture.base, &fixture.change] {
        client(cluster, "postgres").query("create database crm").unwrap();
        client(cluster, "crm").query("create table contacts (id int primary key)").unwrap();
    }
    client(&fixture.change, "crm").query("create index extra on contacts (id, id)").unwrap();
    let [base, change] = [fixture.base.uri("shop"), fixture.change.uri("shop")];
    let done = howdah(fixture.folder.path())
        .args(["rehearse", "two", "--base", &base, "--change", &change, "-o", "out"])
        .args(["--runs", "2", "--warm-up", "0", "--reset", "copy", "--format", "json"])
        .assert();
    let report: Value = serde_json::from_slice(&done.get_output().stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", text(&done.get_output().stderr)));
    for run in report["runs"].as_array().unwrap() {
        assert_eq!(run["failed"], 0, "each run inserts into an empty table: {run}");
    }
    let texts: Vec<_> =
        report["differences"].as_array().unwrap().iter().map(|it| &it["text"]).collect();
    assert!(texts.contains(&&"index extra on crm.public.contacts is new".into()), "{texts:?}");
    for cluster in [&fixture.base, &fixture.change] {
        let rows = client(cluster, "crm").one_value("select count(*) from contacts").unwrap();
        assert_eq!(rows.as_deref(), Some("0"), "the original is unchanged");
        assert_copies_are_dropped(cluster);
    }
}

/// The share of page requests of a run that did not find the page in the buffer cache.
fn miss_share(out: &Path, run: &str) -> f64 {
    let path = out.join("runs").join(run).join("server.json");
    let series: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let buckets = series["buckets"].as_array().unwrap();
    let sum = |key: &str| buckets.iter().filter_map(|bucket| bucket[key].as_f64()).sum::<f64>();
    let (hits, reads) = (sum("hits"), sum("reads"));
    assert!(hits > 0.0, "{series}");
    reads / (hits + reads)
}

#[test]
fn cache_image_is_loaded_and_examples_are_shown() {
    let Some(mut fixture) = Fixture::new() else { return };
    client(&fixture.base, "shop")
        .query("select count(note) from orders; select count(id) from orders where customer < 4000")
        .unwrap();
    let base = fixture.base.uri("shop");
    howdah(fixture.folder.path())
        .args(["warm", "dump", &base, "-o", "image", "--keep", "1"])
        .assert()
        .success();
    client(&fixture.change, "shop").query(&format!("drop index {INDEX}")).unwrap();
    let rehearse = |fixture: &mut Fixture, out: &str, more: &[&str]| {
        // Buffer caches are empty after a restart.
        fixture.base.restart().unwrap();
        fixture.change.restart().unwrap();
        howdah(fixture.folder.path())
            .args(fixture.arguments(out))
            .args(["--runs", "1", "--no-vacuum"])
            .args(more)
            .assert()
            .code(3)
    };
    rehearse(&mut fixture, "cold", &["--warm-up", "0"]);
    rehearse(&mut fixture, "warm", &["--warm", "image", "--examples"]);
    let [cold, warm] = ["cold", "warm"].map(|out| miss_share(&fixture.path(out), "a1"));
    assert!(warm < cold / 4.0, "{cold} {warm}");

    let example = fixture.report("warm")["queries"][0]["example"].clone();
    let example = example.as_str().unwrap();
    assert!(example.starts_with("select count(*) from orders where customer = "), "{example}");
    assert_eq!(fixture.report("cold")["queries"][0]["example"], Value::Null);
    let has_example = |out: &str, file: &str| {
        std::fs::read_to_string(fixture.path(out).join(file)).unwrap().contains(example)
    };
    for (file, is_shown) in
        [("report.txt", true), ("report.html", true), ("report.md", false), ("report.xml", false)]
    {
        assert_eq!(has_example("warm", file), is_shown, "{file}");
        assert!(!has_example("cold", file), "{file}");
    }

    let missing = howdah(fixture.folder.path())
        .args(fixture.arguments("missing"))
        .args(["--warm", "capture"])
        .assert()
        .code(1);
    let message = text(&missing.get_output().stderr);
    assert!(message.contains("capture"), "{message}");
}

#[test]
fn reset_command_that_takes_too_long_is_killed_with_its_children() {
    let Some(fixture) = Fixture::new() else { return };
    let hook = "echo $HOWDAH_REHEARSAL_SIDE; sleep 600 & echo $! > child; wait";
    let refused = howdah(fixture.folder.path())
        .args(fixture.arguments("out"))
        .args(["--runs", "1", "--warm-up", "0", "--reset-base", hook, "--reset-timeout", "1s"])
        .assert()
        .code(1);
    let message = text(&refused.get_output().stderr);
    assert!(message.contains("reset command of the base server"), "{message}");
    let log = std::fs::read_to_string(fixture.path("out/reset.log")).unwrap();
    assert_eq!(log, "base\n");
    let child = std::fs::read_to_string(fixture.path("child")).unwrap();
    let stat = format!("/proc/{}/stat", child.trim());
    // A zombie has ended, but its new parent has not noticed yet.
    wait_until("the command's child to end", Duration::from_secs(60), || {
        std::fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "))
    });
}

#[test]
fn failed_reset_command_is_named_with_its_output() {
    let Some(fixture) = Fixture::new() else { return };
    let hook = "echo no such snapshot >&2; exit 7";
    let refused = howdah(fixture.folder.path())
        .args(fixture.arguments("out"))
        .args(["--runs", "1", "--warm-up", "0", "--reset-change", hook])
        .assert()
        .code(1);
    let message = text(&refused.get_output().stderr);
    assert!(message.contains("exit code 7") && message.contains("out/reset.log"), "{message}");
    let log = std::fs::read_to_string(fixture.path("out/reset.log")).unwrap();
    assert_eq!(log, "no such snapshot\n");
}
