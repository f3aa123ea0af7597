//! `howdah pool advise`: a capture of real traffic, and one of a log.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::{
    howdah,
    pool::{PoolerProcess, settings_without_password, start_cluster},
    text,
};

fn advise_document(folder: &Path, more: &[&str]) -> Value {
    let args = ["pool", "advise", "traffic", "--format", "json"];
    let done = howdah(folder).args(args).args(more).assert().success();
    serde_json::from_str(&text(&done.get_output().stdout)).unwrap()
}

/// The clients with this application name.
fn clients<'a>(document: &'a Value, application: &str) -> &'a Value {
    let all = document["clients"].as_array().unwrap();
    let found = all.iter().find(|it| it["application"] == application);
    found.unwrap_or_else(|| panic!("no {application} in {document:#}"))
}

/// Captures sessions of three applications through a pooler in session mode, in `traffic`.
fn capture_traffic(folder: &Path) -> bool {
    let Some(server) = start_cluster("pool_advise") else { return false };
    let more = "admin-users = ['postgres']\n[pool.capture]\npath = 'captures'\n";
    let settings = settings_without_password(&server, more).replace("'transaction'", "'session'");
    let pooler = PoolerProcess::start(folder, "howdah.toml", &settings);
    let session = |application: &str, texts: &[&str]| {
        let words = format!("user=postgres application_name={application}");
        let mut client = pooler.connect(&words).unwrap();
        texts.iter().for_each(|sql| drop(client.query(sql).unwrap()));
    };
    session(
        "setup",
        &[
            "create sequence s",
            "create function total() returns int volatile language sql as 'select 1'",
        ],
    );
    let words = "user=postgres dbname=howdah";
    let mut console = pooler.connect(words).unwrap();
    console.query("CAPTURE START traffic").unwrap();
    session(
        "plain",
        &["begin", "select 1", "commit", "set application_name = 'plain'", "select 2"],
    );
    session(
        "cart",
        &[
            "begin",
            "create temp table cart (id int)",
            "commit",
            "insert into cart values (1)",
            "drop table cart",
            // State of a transaction that is rolled back.
            "begin",
            "create temp table lost (id int)",
            "rollback",
            "set work_mem = '8MB'",
            "listen jobs",
            "select total()",
            "select pg_sleep(0.3)",
        ],
    );
    session("ids", &["select nextval('s')", "select currval('s')", "select pg_sleep(0.05)"]);
    console.query("CAPTURE STOP").unwrap();
    fs::rename(folder.join("captures/traffic"), folder.join("traffic")).unwrap();
    true
}

#[test]
fn captured_traffic_gets_modes_sizes_and_settings() {
    let folder = tempfile::tempdir().unwrap();
    if !capture_traffic(folder.path()) {
        return;
    }
    let document = advise_document(folder.path(), &["--stateless-function", "total"]);
    assert_eq!(document["format"], "howdah-pool-advice");
    let plain = clients(&document, "plain");
    assert_eq!((&plain["mode"], &plain["reason"]), (&json!("transaction"), &json!("no_state")));
    assert_eq!((&plain["sessions"], &plain["statements"]), (&json!(1), &json!(5)));
    assert_eq!(plain["transactions"], 3);
    assert_eq!(plain["states"], json!([]));

    let cart = clients(&document, "cart");
    assert_eq!((&cart["mode"], &cart["reason"]), (&json!("adaptive"), &json!("partly_pinned")));
    let states = cart["states"].as_array().unwrap();
    let names = |kind: &str| {
        let found = states.iter().find(|it| it["kind"] == kind);
        found.unwrap_or_else(|| panic!("no {kind} in {cart:#}"))["names"].clone()
    };
    assert_eq!(names("temporary_object"), json!({ "cart": 1 }));
    assert_eq!(names("setting"), json!({ "work_mem": 1 }));
    assert_eq!(names("channel"), json!({ "jobs": 1 }));
    assert_eq!(states.len(), 3, "{cart:#}");
    let (pinned, session) = (&cart["pinned_us"], &cart["session_us"]);
    assert!(pinned.as_u64().unwrap() < session.as_u64().unwrap() / 2, "{cart:#}");
    assert_eq!(cart["pinned_sessions"], 1);

    let ids = clients(&document, "ids");
    assert_eq!((&ids["mode"], &ids["sequence_reads"]["count"]), (&json!("session"), &json!(1)));
    let pool = &document["pools"][0];
    assert_eq!((&pool["user"], &pool["mode"]), (&json!("postgres"), &json!("session")));
    assert_eq!(document["functions"], json!([]));

    // Unless it is listed, the function pins its client until the end.
    let document = advise_document(folder.path(), &[]);
    assert_eq!(document["functions"], json!([{ "name": "total", "calls": 1, "sessions": 1 }]));
    assert_eq!(clients(&document, "cart")["states"].as_array().unwrap().len(), 4);

    let done = howdah(folder.path()).args(["pool", "advise", "traffic"]).assert().success();
    let shown = text(&done.get_output().stdout);
    for part in [
        "CLIENTS, those with the longest time in transactions first",
        "temporary objects: once in 1 session",
        "create temp table cart(id int)",
        "currval, lastval: 1 call in 1 session",
        "[pool.users.\"postgres\"]\nmode = \"session\"\n",
        "# stateless-functions = [\"total\"]",
    ] {
        assert!(shown.contains(part), "{part:?} is missing:\n{shown}");
    }
    let settings = shown.split("SETTINGS for howdah.toml\n").nth(1).unwrap();
    fs::write(folder.path().join("advised.toml"), format!("[pool.databases.postgres]\n{settings}"))
        .unwrap();
    let check = ["pool", "--check", "-c", "advised.toml", "--os-user", "root"];
    let checked = howdah(folder.path()).args(check).output().unwrap();
    let messages = text(&checked.stdout) + &text(&checked.stderr);
    assert!(!messages.contains("advised.toml:"), "{messages}");
}

const LOG: &str = "\
2026-11-20 12:00:00.000 UTC [7] app@shop LOG:  connection authorized: user=app database=shop application_name=psql
2026-11-20 12:00:01.000 UTC [7] app@shop LOG:  duration: 1.000 ms  statement: select pg_advisory_lock(7)
2026-11-20 12:00:04.000 UTC [7] app@shop LOG:  duration: 1.000 ms  statement: select pg_advisory_unlock(7)
2026-11-20 12:00:10.000 UTC [7] app@shop LOG:  disconnection: session time: 0:00:10.000 user=app database=shop host=[local]
";

#[test]
fn limits_of_a_log_are_stated() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("server.log"), LOG).unwrap();
    let import = ["capture", "import", "server.log", "-o", "traffic"];
    howdah(folder.path()).args(import).assert().success();
    let document = advise_document(folder.path(), &[]);
    let clients = &document["clients"][0];
    assert_eq!(clients["states"][0]["kind"], "advisory_lock");
    assert_eq!(clients["states"][0]["state_us"], 3_000_000);
    assert_eq!(
        (&clients["pinned_us"], &clients["session_us"]),
        (&json!(3_000_000), &json!(10_000_000))
    );
    assert_eq!(clients["mode"], "adaptive");
    let limits = document["limits"].as_array().unwrap();
    assert!(limits[0].as_str().unwrap().starts_with("The events are from a log."), "{limits:?}");
    let missing = howdah(folder.path()).args(["pool", "advise", "nothing"]).assert().code(1);
    let message = text(&missing.get_output().stderr);
    assert!(message.contains("cannot open the capture"), "{message}");
}
