//! Captures that end in the middle of something.

use crate::{
    logs::Log,
    support::{Stage, howdah, text},
};

/// Session 1 holds a row lock in a transaction that never ends, session 2 waits for it, and session 3
/// is just there.
fn cut_open(stage: &Stage) -> String {
    let mut client = stage.client();
    client.query("create table lk (id int, v int)").unwrap();
    client.query("insert into lk values (1, 0)").unwrap();
    let mut log = Log::new(&stage.database);
    log.connect(0, 1).connect(0, 2).connect(0, 3);
    log.query(20, 1, "begin").query(40, 1, "update lk set v = 1 where id = 1");
    log.query(300, 2, "update lk set v = 2 where id = 1");
    log.text
}

#[test]
fn replay_ends_where_the_capture_ends_inside_a_transaction_that_others_wait_for() {
    let Some(stage) = Stage::new("cut_open") else { return };
    let log = cut_open(&stage);
    for words in [&[][..], &["--rate", "max"], &["--rate", "max", "--workers", "4"]] {
        stage.client().query("update lk set v = 0").unwrap();
        let replayed = stage.replay(&log, words);
        replayed.assert_all_done();
        assert_eq!(replayed.report["closed_in_transaction"], 1, "{words:?}");
        // What the open transaction did is undone, what waited for it was done.
        assert_eq!(stage.value("select v from lk"), "2", "{words:?}");
    }
    let mut command = howdah(stage.folder.path());
    command.args(["replay", "server.log", "--target", &stage.uri()]);
    let said = text(&command.assert().success().get_output().stdout);
    assert!(said.contains("cut open      1  closed inside a transaction"), "{said}");
}

#[test]
fn transactions_that_a_slice_cuts_are_counted_and_each_slice_replays_to_its_end() {
    let Some(stage) = Stage::new("cut_slices") else { return };
    stage.client().query("create table lk (id int, v int)").unwrap();
    stage.client().query("insert into lk values (1, 0)").unwrap();
    let mut log = Log::new("cut_slices");
    log.connect(0, 1).connect(0, 2);
    for round in 0..6 {
        let at = 100 + round * 700;
        log.query(at, 1, "begin").query(at + 10, 1, "update lk set v = v + 1 where id = 1");
        log.query(at + 20, 2, "update lk set v = v + 1 where id = 1");
        log.query(at + 600, 1, "commit");
    }
    log.disconnect(4_400, 1).disconnect(4_400, 2);
    stage.write("server.log", &log.text);
    let run = |words: &str| {
        let done = howdah(stage.folder.path()).args(words.split(' ')).assert().success();
        (text(&done.get_output().stdout), text(&done.get_output().stderr))
    };
    run("capture import server.log -o all");
    let open = "transactions still open where the capture ends";
    assert!(!run("capture info all").0.contains(open));
    let (_, said) = run("capture sample all -o until --until 2026-11-20T10:00:01.000Z");
    assert!(said.contains(&format!("{open}: 1")), "{said}");
    assert!(run("capture info until").0.contains(&format!("{open}: 1")));

    let (_, said) = run("capture split all -o slices --every 1s");
    assert!(said.contains("events, ends inside 1 transaction\n"), "{said}");
    let mut slices: Vec<_> = std::fs::read_dir(stage.path("slices"))
        .unwrap()
        .map(|entry| entry.unwrap().path().display().to_string())
        .collect();
    slices.sort();
    let mut cut = 0;
    for slice in &slices {
        let replayed =
            crate::support::replay(stage.folder.path(), slice, &stage.uri(), &["--rate", "max"]);
        replayed.assert_all_done();
        cut += replayed.report["closed_in_transaction"].as_u64().unwrap();
    }
    assert!(
        cut > 0 && said.contains(&format!("{cut} transactions are still open")),
        "{cut} {said}"
    );
}
