//! Protocol messages of drivers: a capture of the replay, taken by a second pooler, has the same
//! messages as the replayed capture.

use std::collections::BTreeMap;

use howdah_dataset::Capture;
use howdah_traffic::{Event, conversation};
use rustix::process::Signal;

use crate::{
    pooler_capture::{
        CapturePooler, bind, execute, message, parse, query, start_cluster, sync, table_contents,
    },
    support::replay,
};

fn describe(sort: char, name: &str) -> Vec<u8> {
    message(b'D', &[sort.to_string().as_bytes(), name.as_bytes(), b"\0"])
}

fn close(sort: char, name: &str) -> Vec<u8> {
    message(b'C', &[sort.to_string().as_bytes(), name.as_bytes(), b"\0"])
}

fn flush() -> Vec<u8> {
    message(b'H', &[])
}

/// A function call with binary arguments, of type int4 each, and a binary result.
fn call(function: u32, arguments: &[i32]) -> Vec<u8> {
    let value = |value: &i32| [&[0, 0, 0, 4][..], &value.to_be_bytes()].concat();
    let values: Vec<Vec<u8>> = arguments.iter().map(value).collect();
    let count = [0, u8::try_from(values.len()).unwrap()];
    message(b'F', &[&function.to_be_bytes(), b"\0\x01\0\x01", &count, &values.concat(), b"\0\x01"])
}

/// `int4pl`, the sum of two numbers.
const INT4PL: u32 = 177;

const INSERT: &str = "insert into kept values ('driver', $1, $2)";

/// Sends the message sequences of several drivers.
fn send_as_drivers(pool: &CapturePooler) {
    // libpq describes the portal. JDBC and tokio-postgres prepare and describe, execute, then
    // close.
    let mut raw = pool.raw();
    raw.send(&[
        parse("", INSERT, 2),
        bind("", "", &[1, 1]),
        describe('P', ""),
        execute("", 0),
        sync(),
    ]);
    raw.read_until_ready();
    raw.send(&[parse("s1", INSERT, 2), describe('S', "s1"), sync()]);
    raw.read_until_ready();
    raw.send(&[bind("s1", "", &[2, 2]), execute("", 0), sync()]);
    raw.read_until_ready();
    raw.send(&[close('S', "s1"), sync()]);
    raw.read_until_ready();
    // asyncpg sends a Flush and waits for the reply before the pipeline continues.
    raw.send(&[parse("s2", INSERT, 2), describe('S', "s2"), flush()]);
    raw.read_until(b'n');
    raw.send(&[bind("s2", "", &[3, 3]), execute("", 0), sync()]);
    raw.read_until_ready();
    // Two portals open at the same time, one closed without a fetch; then a Sync alone.
    raw.send(&[query("begin")]);
    raw.read_until_ready();
    raw.send(&[
        parse("s3", "select * from kept where a = $1", 1),
        bind("s3", "p1", &[1]),
        bind("s3", "p2", &[2]),
        describe('P', "p1"),
        execute("p2", 1),
        execute("p1", 1),
        flush(),
        execute("p1", 0),
        close('P', "p2"),
        sync(),
    ]);
    raw.read_until_ready();
    raw.send(&[sync()]);
    raw.read_until_ready();
    raw.send(&[bind("s3", "unread", &[1]), describe('P', "unread"), sync()]);
    raw.read_until_ready();
    raw.send(&[execute("unread", 0), close('P', "unread"), sync()]);
    raw.read_until_ready();
    raw.send(&[
        bind("s3", "unread", &[1]),
        close('P', "unread"),
        bind("s3", "unread", &[2]),
        describe('P', "unread"),
        sync(),
    ]);
    raw.read_until_ready();
    raw.send(&[query("commit")]);
    raw.read_until_ready();
    // Failures: a statement, a Bind, a Describe of a missing statement. The next pipeline succeeds.
    raw.send(&[parse("s4", "select nonsense", 0), describe('S', "s4"), sync()]);
    raw.read_until_ready();
    raw.send(&[bind("s2", "", &[3, 4]), describe('P', ""), execute("", 0), sync()]);
    raw.read_until_ready();
    raw.send(&[describe('S', "nobody"), sync()]);
    raw.read_until_ready();
    // The failed Bind does not prepare s2 again. As in asyncpg, a Query ends a pipeline.
    raw.send(&[bind("s2", "", &[6, 6]), execute("", 0), sync()]);
    raw.read_until_ready();
    raw.send(&[parse("s5", "select * from copied limit 1", 0), describe('S', "s5"), flush()]);
    raw.read_until(b'T');
    raw.send(&[query("insert into copied values (6, 'six')")]);
    raw.read_until_ready();
    raw.send(&[parse("s6", "select 1", 0), flush(), query("select 1; select 1/0")]);
    raw.read_until_ready();
    raw.send(&[query("insert into kept values ('driver', 4, 4)")]);
    raw.read_until_ready();
    // A FunctionCall, and COPY in the extended protocol.
    raw.send(&[call(INT4PL, &[2, 3])]);
    raw.read_until_ready();
    raw.send(&[parse("", "copy copied from stdin", 0), bind("", "", &[]), execute("", 0), sync()]);
    raw.read_until(b'G');
    raw.send(&[message(b'd', &[b"5\tfive\n"]), message(b'c', &[]), sync()]);
    raw.read_until_ready();
    // The session ends with messages that belong to no execution.
    raw.send(&[close('S', "s2"), close('S', "s3"), sync()]);
    raw.read_until_ready();
    raw.send(&[message(b'X', &[])]);
    drop(raw);
    for mode in ["extended", "prepared"] {
        pool.run("pgbench", &["-n", "-M", mode, "-c", "2", "-t", "10", "bench"], "");
    }
}

#[test]
fn replay_sends_same_messages_as_drivers() {
    check_same_messages(15);
}

#[test]
fn replay_sends_same_messages_to_newer_server() {
    check_same_messages(18);
}

fn check_same_messages(major: u32) {
    let Some((cluster, folder)) = start_cluster(major) else { return };
    let (first, second) = (folder.path().join("first"), folder.path().join("second"));
    let [first, second] = [first, second].map(|path| {
        std::fs::create_dir(&path).unwrap();
        path
    });
    let capture = |path: &std::path::Path| Capture::open(&path.join("captures/it")).unwrap();
    let pool = CapturePooler::start(&first, &cluster, "");
    pool.psql("howdah", "capture start it");
    send_as_drivers(&pool);
    pool.signal(Signal::TERM);
    pool.wait();

    let pool = CapturePooler::start_for_database(&second, &cluster, "copy", "");
    pool.psql("howdah", "capture start it");
    let target = format!("postgresql://postgres@127.0.0.1:{}/bench", pool.port);
    // The pooler's `bench` is the database `copy` of the captured server.
    let words = ["--rate", "1", "--allow-production", "copy"];
    let replayed = replay(&first, "captures/it", &target, &words);
    assert_eq!(replayed.report["events"]["skipped"], 0, "{}", replayed.report);
    pool.signal(Signal::TERM);
    pool.wait();
    assert_eq!(table_contents(&cluster, "copy"), table_contents(&cluster, "bench"));

    let (captured, played) = (capture(&first), capture(&second));
    for capture in [&captured, &played] {
        let report = &capture.manifest().report;
        assert_eq!(report["completeness"], serde_json::json!([]), "{report}");
    }
    let played = conversations(&played);
    for (conversation, sessions) in conversations(&captured) {
        if played.get(&conversation) != Some(&sessions) {
            let alike = |other: &&Vec<String>| common_prefix_len(&conversation, other);
            let nearest = played.keys().max_by_key(alike).unwrap();
            let from = common_prefix_len(&conversation, nearest);
            let rest = |all: &[String]| all.iter().skip(from).take(9).cloned().collect::<Vec<_>>();
            let (messages, replayed_messages) = (rest(&conversation), rest(nearest));
            panic!(
                "after {from} messages of {sessions}: {messages:#?}\nbecame {replayed_messages:#?}"
            );
        }
    }
}

/// The length of the common prefix of two conversations.
fn common_prefix_len(one: &[String], other: &[String]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

/// The messages of each session, with the number of sessions that sent them.
fn conversations(capture: &Capture) -> BTreeMap<Vec<String>, usize> {
    let mut sessions: BTreeMap<String, Vec<Event>> = BTreeMap::new();
    for event in capture.events() {
        let event = event.unwrap();
        sessions.entry(event.session.to_string()).or_default().push(*event);
    }
    let mut conversations = BTreeMap::new();
    for events in sessions.values() {
        *conversations.entry(conversation(events)).or_default() += 1;
    }
    conversations
}
