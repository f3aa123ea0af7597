//! What cannot begin: nothing is sent, the reason and advice are on stderr, and no secret is.

use std::{fs, net::TcpListener};

use crate::{
    logs::Log,
    support::{Stage, howdah, text},
};

const SECRET: &str = "hunter2hunter2";

/// Runs a replay that is refused with this code: what it said on stderr.
fn refused(stage: &Stage, code: i32, words: &[&str]) -> String {
    let done = howdah(stage.folder.path())
        .arg("replay")
        .args(words)
        .env("PGPASSWORD", SECRET)
        .assert()
        .code(code);
    assert_eq!(text(&done.get_output().stdout), "", "{words:?}");
    let said = text(&done.get_output().stderr);
    assert!(!said.contains(SECRET), "{said}");
    said
}

fn with_log(database: &str) -> Option<Stage> {
    let stage = Stage::new(database)?;
    stage.client().query("create table t (a int)").unwrap();
    let mut log = Log::new(database);
    log.session(1, &["insert into t values (1)"]);
    stage.write("server.log", &log.text);
    Some(stage)
}

#[test]
fn a_target_that_refuses_is_named_with_the_reason() {
    let Some(stage) = with_log("refusing") else { return };
    // Bound and not listening: nobody else takes the port, and nobody answers.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = closed.local_addr().unwrap().port();
    drop(closed);
    let nobody = format!("postgresql://alice:{SECRET}@127.0.0.1:{port}/shop");
    let said = refused(&stage, 1, &["server.log", "--target", &nobody, "-o", "run"]);
    assert!(said.contains("cannot connect to"), "{said}");
    assert!(said.contains(&port.to_string()) && said.contains("refused"), "{said}");
    assert!(said.contains("\nhint: "), "{said}");

    let missing = stage.cluster.uri("no_such_database");
    let said = refused(&stage, 1, &["server.log", "--target", &missing, "-o", "run"]);
    assert!(said.contains("no_such_database") && said.contains("does not exist"), "{said}");
    assert!(said.contains("\nhint: name a database that is there"), "{said}");
    let role = stage.uri().replace("postgres@", "no_such_role@");
    let said = refused(&stage, 1, &["server.log", "--target", &role, "-o", "run"]);
    assert!(said.contains("no_such_role"), "{said}");
    assert!(said.contains("\nhint: does pg_hba.conf let this role in"), "{said}");
    // No name below .invalid has an address (RFC 6761).
    let unknown = "postgresql://alice@nobody.invalid/shop";
    let said = refused(&stage, 1, &["server.log", "--target", unknown]);
    assert!(said.contains("\nhint: is the host name right"), "{said}");
    assert!(!stage.path("run").exists());
    assert_eq!(stage.value("select count(*) from t"), "0");
}

#[test]
fn a_log_that_is_not_there_is_named_before_any_server_is_asked() {
    let Some(stage) = with_log("log_first") else { return };
    let nobody = "postgresql://127.0.0.1:1/shop";
    let said = refused(&stage, 1, &["server.log", "missing.log", "--target", nobody]);
    assert!(said.starts_with("howdah: cannot read the log missing.log: No such file"), "{said}");
    let said = refused(&stage, 1, &["missing", "--target", nobody]);
    assert!(said.contains("missing") && !said.contains("connect to"), "{said}");
}

#[test]
fn a_wrong_password_is_said_and_not_shown() {
    let built = howdah_lab::Cluster::builder().name("secret").password("right").start();
    let Some(cluster) = howdah_lab::or_say_why_not("secret", built) else { return };
    let Some(stage) = with_log("wrong_password") else { return };
    let words = ["server.log", "--target", &cluster.uri("postgres"), "-o", "run"];
    let said = refused(&stage, 1, &words);
    assert!(said.contains("password authentication failed"), "{said}");
    assert!(said.contains("\nhint: is the password in ~/.pgpass"), "{said}");
    assert!(!stage.path("run").exists());
}

#[test]
fn an_input_that_is_none_is_named_and_replaces_nothing() {
    let Some(stage) = with_log("no_input") else { return };
    let uri = stage.uri();
    let target = ["--target", &uri, "-o", "run", "--force"];
    howdah(stage.folder.path()).args(["replay", "server.log"]).args(target).assert().success();
    let before = fs::read(stage.path("run/run.json")).unwrap();

    stage.write("empty.log", "");
    stage.write("poem.txt", "Tyger Tyger, burning bright\n");
    fs::create_dir(stage.path("pictures")).unwrap();
    let cases: [(&[&str], i32, &str); 7] = [
        (&["missing.log"], 1, "missing.log"),
        (&["pictures"], 1, "pictures"),
        (&["empty.log"], 1, "empty.log"),
        (&["poem.txt"], 1, "poem.txt"),
        (&["server.log", "pictures"], 2, "folder"),
        (&["server.log", "--prefix", "%u@%d "], 2, "has no time"),
        (&["server.log", "--input-format", "xml"], 2, "xml"),
    ];
    for (words, code, told) in cases {
        let said = refused(&stage, code, &[words, &target].concat());
        assert!(said.contains(told), "{words:?}: {said}");
        assert_eq!(fs::read(stage.path("run/run.json")).unwrap(), before, "{words:?}");
    }
    assert_eq!(stage.value("select count(*) from t"), "1");
}

#[test]
fn a_run_is_replaced_only_by_force() {
    let Some(stage) = with_log("by_force") else { return };
    let uri = stage.uri();
    let words = ["server.log", "--target", &uri, "-o", "run"];
    howdah(stage.folder.path()).arg("replay").args(words).assert().success();
    let said = refused(&stage, 1, &words);
    assert!(said.contains("run") && said.contains("hint: --force"), "{said}");
    howdah(stage.folder.path()).arg("replay").args(words).arg("--force").assert().success();
    assert_eq!(stage.value("select count(*) from t"), "2");
}

#[test]
fn words_that_make_no_sense_are_wrong_usage() {
    let Some(stage) = with_log("wrong_words") else { return };
    let uri = stage.uri();
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
        let said = refused(&stage, 2, &[&["server.log", "--target", &uri][..], &words].concat());
        assert!(said.contains(words[0]), "{words:?}: {said}");
        let range =
            said.contains("give a number from 0.000001 to 1000000, such as 0.5 or 2, or max");
        assert_eq!(range, words[0] == "--rate", "{said}");
    }
    assert_eq!(stage.value("select count(*) from t"), "0");
}

#[test]
fn no_server_is_guessed_to_replay_against() {
    let Some(stage) = with_log("no_target") else { return };
    let said = refused(&stage, 2, &["server.log"]);
    assert!(said.contains("no server to replay against was named\nhint: give --target"), "{said}");
}

#[test]
fn people_get_lines_and_where_the_run_is() {
    let Some(stage) = with_log("for_people") else { return };
    let uri = stage.uri();
    let words = ["replay", "server.log", "--target", &uri, "-o", "run", "--rate", "2"];
    let done = howdah(stage.folder.path()).args(words).assert().success();
    let told = text(&done.get_output().stdout);
    assert!(told.contains(", 2 times as fast as captured\n"), "{told}");
    assert!(told.contains("executions      1: 1 done, 0 failed, 0 skipped"), "{told}");
    assert!(told.contains("schedule error") && told.contains("dependency lag"), "{told}");
    assert!(told.ends_with("run: run\n"), "{told}");
}
