//! Replays that cannot start: nothing is sent, stderr has the reason and a hint, but no secrets.

use std::{fs, net::TcpListener};

use crate::{
    logs::LogBuilder,
    support::{ReplayFixture, text},
};

const SECRET: &str = "hunter2hunter2";

/// Runs a replay that must fail with this exit code; returns its stderr.
fn assert_refused(fixture: &ReplayFixture, code: i32, words: &[&str]) -> String {
    let done =
        fixture.howdah().arg("replay").args(words).env("PGPASSWORD", SECRET).assert().code(code);
    assert_eq!(text(&done.get_output().stdout), "", "{words:?}");
    let messages = text(&done.get_output().stderr);
    assert!(!messages.contains(SECRET), "{messages}");
    messages
}

fn fixture_with_log(database: &str) -> Option<ReplayFixture> {
    let fixture = ReplayFixture::new(database)?;
    fixture.client().query("create table t (a int)").unwrap();
    let mut log = LogBuilder::new(database);
    log.session(1, &["insert into t values (1)"]);
    fixture.write("server.log", &log.text);
    Some(fixture)
}

#[test]
fn refusing_target_is_reported_with_reason() {
    let Some(fixture) = fixture_with_log("refusing") else { return };
    // A port on which no server listens.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = closed.local_addr().unwrap().port();
    drop(closed);
    let unreachable = format!("postgresql://alice:{SECRET}@127.0.0.1:{port}/shop");
    let messages =
        assert_refused(&fixture, 1, &["server.log", "--target", &unreachable, "-o", "run"]);
    assert!(messages.contains("cannot connect to"), "{messages}");
    assert!(messages.contains(&port.to_string()) && messages.contains("refused"), "{messages}");
    assert!(messages.contains("\nhint: "), "{messages}");

    let missing = fixture.cluster.uri("no_such_database");
    let messages = assert_refused(&fixture, 1, &["server.log", "--target", &missing, "-o", "run"]);
    assert!(
        messages.contains("no_such_database") && messages.contains("does not exist"),
        "{messages}"
    );
    assert!(messages.contains("\nhint: name an existing database"), "{messages}");
    let role = fixture.uri().replace("postgres@", "no_such_role@");
    let messages = assert_refused(&fixture, 1, &["server.log", "--target", &role, "-o", "run"]);
    assert!(messages.contains("no_such_role"), "{messages}");
    assert!(messages.contains("\nhint: check that pg_hba.conf allows this role"), "{messages}");
    // Names in .invalid have no address (RFC 6761).
    let unknown = "postgresql://alice@nobody.invalid/shop";
    let messages = assert_refused(&fixture, 1, &["server.log", "--target", unknown]);
    assert!(messages.contains("\nhint: check the host name"), "{messages}");
    assert!(!fixture.path("run").exists());
    assert_eq!(fixture.value("select count(*) from t"), "0");
}

#[test]
fn missing_log_is_reported_before_connecting() {
    let Some(fixture) = fixture_with_log("log_first") else { return };
    let unreachable = "postgresql://127.0.0.1:1/shop";
    let messages =
        assert_refused(&fixture, 1, &["server.log", "missing.log", "--target", unreachable]);
    assert!(
        messages.starts_with("howdah: cannot read the log missing.log: No such file"),
        "{messages}"
    );
    let messages = assert_refused(&fixture, 1, &["missing", "--target", unreachable]);
    assert!(messages.contains("missing") && !messages.contains("connect to"), "{messages}");
}

#[test]
fn wrong_password_is_reported_but_not_printed() {
    let built = howdah_lab::Cluster::builder().name("secret").password("right").start();
    let Some(cluster) = howdah_lab::skip_without_postgres("secret", built) else { return };
    let Some(fixture) = fixture_with_log("wrong_password") else { return };
    let words = ["server.log", "--target", &cluster.uri("postgres"), "-o", "run"];
    let messages = assert_refused(&fixture, 1, &words);
    assert!(messages.contains("password authentication failed"), "{messages}");
    assert!(messages.contains("\nhint: check that ~/.pgpass"), "{messages}");
    assert!(!fixture.path("run").exists());
}

#[test]
fn invalid_input_is_reported_and_replaces_no_run() {
    let Some(fixture) = fixture_with_log("no_input") else { return };
    let uri = fixture.uri();
    let target = ["--target", &uri, "-o", "run", "--force"];
    fixture.howdah().args(["replay", "server.log"]).args(target).assert().success();
    let before = fs::read(fixture.path("run/run.json")).unwrap();

    fixture.write("empty.log", "");
    fixture.write("poem.txt", "Tyger Tyger, burning bright\n");
    fs::create_dir(fixture.path("pictures")).unwrap();
    let cases: [(&[&str], i32, &str); 7] = [
        (&["missing.log"], 1, "missing.log"),
        (&["pictures"], 1, "pictures"),
        (&["empty.log"], 1, "empty.log"),
        (&["poem.txt"], 1, "poem.txt"),
        (&["server.log", "pictures"], 2, "folder"),
        (&["server.log", "--prefix", "%u@%d "], 2, "has no time"),
        (&["server.log", "--input-format", "xml"], 2, "xml"),
    ];
    for (words, code, expected) in cases {
        let messages = assert_refused(&fixture, code, &[words, &target].concat());
        assert!(messages.contains(expected), "{words:?}: {messages}");
        assert_eq!(fs::read(fixture.path("run/run.json")).unwrap(), before, "{words:?}");
    }
    assert_eq!(fixture.value("select count(*) from t"), "1");
}

#[test]
fn run_is_replaced_only_with_force() {
    let Some(fixture) = fixture_with_log("by_force") else { return };
    let uri = fixture.uri();
    let words = ["server.log", "--target", &uri, "-o", "run"];
    fixture.howdah().arg("replay").args(words).assert().success();
    let messages = assert_refused(&fixture, 1, &words);
    assert!(messages.contains("run") && messages.contains("hint: use --force"), "{messages}");
    fixture.howdah().arg("replay").args(words).arg("--force").assert().success();
    assert_eq!(fixture.value("select count(*) from t"), "2");
}

#[test]
fn invalid_options_are_usage_errors() {
    let Some(fixture) = fixture_with_log("wrong_words") else { return };
    let uri = fixture.uri();
    let cases = [
        ["--rate", "0"],
        ["--rate", "-1"],
        ["--rate", "fast"],
        ["--rate", "NaN"],
        ["--rate", "inf"],
        ["--rate", "1e-300"],
        ["--workers", "0"],
        ["--fetch-rows", "0"],
        ["--backlog", "0"],
        ["--map-user", "alice"],
        ["--map-database", "=shop"],
    ];
    for words in cases {
        let messages =
            assert_refused(&fixture, 2, &[&["server.log", "--target", &uri][..], &words].concat());
        assert!(messages.contains(words[0]), "{words:?}: {messages}");
        let range =
            messages.contains("use a number from 0.000001 to 1000000, such as 0.5 or 2, or max");
        assert_eq!(range, words[0] == "--rate", "{messages}");
    }
    assert_eq!(fixture.value("select count(*) from t"), "0");
}

#[test]
fn missing_target_is_a_usage_error() {
    let Some(fixture) = fixture_with_log("no_target") else { return };
    let messages = assert_refused(&fixture, 2, &["server.log"]);
    assert!(
        messages.contains("no server given to replay against\nhint: give --target"),
        "{messages}"
    );
}

#[test]
fn text_report_has_counts_and_path_of_run() {
    let Some(fixture) = fixture_with_log("for_people") else { return };
    let uri = fixture.uri();
    let words = ["replay", "server.log", "--target", &uri, "-o", "run", "--rate", "2"];
    let done = fixture.howdah().args(words).assert().success();
    let printed = text(&done.get_output().stdout);
    assert!(printed.contains(", 2 times as fast as captured\n"), "{printed}");
    assert!(printed.contains("executions      1: 1 done, 0 failed, 0 skipped"), "{printed}");
    assert!(printed.contains("schedule error") && printed.contains("dependency lag"), "{printed}");
    assert!(printed.ends_with("run: run\n"), "{printed}");
}
