//! Captures that end inside a transaction.

use crate::{
    logs::LogBuilder,
    support::{ReplayFixture, text},
};

/// Session 1 has a row lock in a transaction that never ends, session 2 waits for it, and session 3
/// is idle.
fn log_with_open_transaction(fixture: &ReplayFixture) -> String {
    let mut client = fixture.client();
    client.query("create table lk (id int, v int)").unwrap();
    client.query("insert into lk values (1, 0)").unwrap();
    let mut log = LogBuilder::new(&fixture.database);
    log.connect(0, 1).connect(0, 2).connect(0, 3);
    log.query(20, 1, "begin").query(40, 1, "update lk set v = 1 where id = 1");
    log.query(300, 2, "update lk set v = 2 where id = 1");
    log.text
}

#[test]
fn replay_ends_at_open_transaction_that_blocks_others() {
    let Some(fixture) = ReplayFixture::new("cut_open") else { return };
    let log = log_with_open_transaction(&fixture);
    for words in [&[][..], &["--rate", "max"], &["--rate", "max", "--workers", "4"]] {
        fixture.client().query("update lk set v = 0").unwrap();
        let replayed = fixture.replay(&log, words);
        replayed.assert_all_done();
        assert_eq!(replayed.report["closed_in_transaction"], 1, "{words:?}");
        // The open transaction is rolled back, and the waiting update succeeds.
        assert_eq!(fixture.value("select v from lk"), "2", "{words:?}");
    }
    let mut command = fixture.howdah();
    command.args(["replay", "server.log", "--target", &fixture.uri()]);
    let messages = text(&command.assert().success().get_output().stdout);
    assert!(messages.contains("cut open      1  closed inside a transaction"), "{messages}");
}

#[test]
fn transactions_cut_by_slices_are_counted() {
    let Some(fixture) = ReplayFixture::new("cut_slices") else { return };
    fixture.client().query("create table lk (id int, v int)").unwrap();
    fixture.client().query("insert into lk values (1, 0)").unwrap();
    let mut log = LogBuilder::new("cut_slices");
    log.connect(0, 1).connect(0, 2);
    for round in 0..6 {
        let at = 100 + round * 700;
        log.query(at, 1, "begin").query(at + 10, 1, "update lk set v = v + 1 where id = 1");
        log.query(at + 20, 2, "update lk set v = v + 1 where id = 1");
        log.query(at + 600, 1, "commit");
    }
    log.disconnect(4_400, 1).disconnect(4_400, 2);
    fixture.write("server.log", &log.text);
    let run = |words: &str| {
        let done = fixture.howdah().args(words.split(' ')).assert().success();
        (text(&done.get_output().stdout), text(&done.get_output().stderr))
    };
    run("capture import server.log -o all");
    let open = "transactions still open where the capture ends";
    assert!(!run("capture info all").0.contains(open));
    let (_, messages) = run("capture sample all -o until --until 2026-11-20T10:00:01.000Z");
    assert!(messages.contains(&format!("{open}: 1")), "{messages}");
    assert!(run("capture info until").0.contains(&format!("{open}: 1")));

    let (_, messages) = run("capture split all -o slices --every 1s");
    assert!(messages.contains("events, ends inside 1 transaction\n"), "{messages}");
    let mut slices: Vec<_> = std::fs::read_dir(fixture.path("slices"))
        .unwrap()
        .map(|entry| entry.unwrap().path().display().to_string())
        .collect();
    slices.sort();
    let mut cut = 0;
    for slice in &slices {
        let replayed = crate::support::replay(
            fixture.folder.path(),
            slice,
            &fixture.uri(),
            &["--rate", "max"],
        );
        replayed.assert_all_done();
        cut += replayed.report["closed_in_transaction"].as_u64().unwrap();
    }
    assert!(
        cut > 0 && messages.contains(&format!("{cut} transactions are still open")),
        "{cut} {messages}"
    );
}
