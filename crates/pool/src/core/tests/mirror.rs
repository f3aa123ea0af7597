//! Mirrors, message by message: a second pool gets what a client sent, and the client notices nothing.

use std::{sync::Arc, time::Duration};

use super::{POOL, Stage, message};
use crate::{
    ClientId, Mirror, MirrorReport, MirrorTarget, Peer, PoolId, PoolSpec, ServerFailure, ServerId,
    Timeouts, mirror::DropReason,
};

const MIRROR: PoolId = PoolId(1);

fn query(sql: &str) -> Vec<u8> {
    message(b'Q', format!("{sql}\0").as_bytes())
}

fn done(tag: &str, status: u8) -> Vec<u8> {
    [message(b'C', format!("{tag}\0").as_bytes()), message(b'Z', &[status])].concat()
}

fn failed(sqlstate: &str, status: u8) -> Vec<u8> {
    let fields = format!("SERROR\0C{sqlstate}\0Mno\0\0");
    [message(b'E', fields.as_bytes()), message(b'Z', &[status])].concat()
}

/// A batch that prepares a statement by a name and runs it.
fn prepare(name: &str, sql: &str) -> Vec<u8> {
    let parse = message(b'P', format!("{name}\0{sql}\0\0\0").as_bytes());
    [parse, execute(name)].concat()
}

fn execute(name: &str) -> Vec<u8> {
    [
        message(b'B', format!("\0{name}\0\0\0\0\0\0\0").as_bytes()),
        message(b'E', b"\0\0\0\0\0"),
        message(b'S', b""),
    ]
    .concat()
}

fn ran(parses: bool) -> Vec<u8> {
    let parsed = if parses { message(b'1', b"") } else { Vec::new() };
    [parsed, message(b'2', b""), done("SELECT 1", b'I')].concat()
}

struct Scene {
    stage: Stage,
    mirror: Arc<Mirror>,
    client: ClientId,
    server: ServerId,
}

impl Scene {
    /// A client with a server; nobody has asked for one of the mirror.
    fn new(client_bytes: usize) -> Self {
        let mirror = Arc::<Mirror>::default();
        let mut stage = Stage::new(home(&[target(&mirror, 1.0, client_bytes)]));
        stage.core.set_pool(MIRROR, Arc::new(mirror_spec()));
        let client = stage.client();
        let server = stage.server();
        stage.client_gets(client);
        Self { stage, mirror, client, server }
    }

    /// The client asks, its server answers, and it hears just that.
    fn ask(&mut self, said: &[u8], answer: &[u8]) {
        self.stage.client_says(self.client, said);
        assert!(!self.stage.server_gets(self.server).is_empty());
        self.stage.server_says(self.server, answer);
        assert_eq!(self.stage.client_gets(self.client), answer);
    }

    fn report(&self) -> MirrorReport {
        self.mirror.report()
    }

    fn dropped(&self, why: DropReason) -> u64 {
        self.report().dropped[why as usize]
    }
}

fn home(mirrors: &[MirrorTarget]) -> PoolSpec {
    PoolSpec { mirrors: mirrors.into(), ..PoolSpec::new(1) }
}

fn target(mirror: &Arc<Mirror>, share: f64, client_bytes: usize) -> MirrorTarget {
    MirrorTarget {
        pool: MIRROR,
        mirror: Arc::clone(mirror),
        share,
        client_bytes,
        buffer_bytes: 1 << 20,
        timeout: Duration::from_secs(10),
    }
}

fn mirror_spec() -> PoolSpec {
    let limit = Some(Duration::from_secs(10));
    let timeouts =
        Timeouts { query_wait: limit, query: limit, transaction: limit, ..Timeouts::default() };
    PoolSpec { listen_bytes: None, timeouts, ..PoolSpec::new(1) }
}

#[test]
fn a_transaction_is_played_when_its_client_knows_how_it_ended() {
    let mut it = Scene::new(4096);
    it.ask(&query("begin"), &done("BEGIN", b'T'));
    it.ask(&query("insert"), &done("INSERT 0 1", b'T'));
    assert!(it.stage.io.opened.is_empty(), "nothing is known yet of how it ends");
    it.ask(&query("commit"), &done("COMMIT", b'I'));
    let there = it.stage.server();
    let all = [query("begin"), query("insert"), query("commit")].concat();
    assert_eq!(it.stage.server_gets(there), all);
    assert_eq!(it.report().buffered_bytes, 256 + all.len() as u64);
    it.stage.server_says(there, &done("BEGIN", b'T'));
    it.stage.server_says(there, &done("INSERT 0 1", b'T'));
    // The next one waits for its turn.
    it.ask(&query("select 1"), &done("SELECT 1", b'I'));
    assert_eq!(it.stage.server_gets(there), b"");
    it.stage.server_says(there, &done("COMMIT", b'I'));
    assert_eq!(it.stage.server_gets(there), query("select 1"));
    it.stage.server_says(there, &done("SELECT 1", b'I'));
    let report = it.report();
    assert_eq!((report.transactions, report.clients, report.buffered_bytes), (2, 1, 0));
    assert_eq!((report.dropped_in_all(), report.mirror_failed), (0, 0));
    assert_eq!(it.stage.client_gets(it.client), b"", "what the mirror said is for nobody");
    assert_eq!((it.stage.core.clients(), it.stage.core.streams.len()), (1, 1));
    assert!(it.stage.io.paused.is_empty());
}

#[test]
fn a_client_of_a_mirror_that_never_answers_is_told_the_same() {
    let play = |mirrors: &[MirrorTarget]| {
        let mut stage = Stage::new(home(mirrors));
        stage.core.set_pool(MIRROR, Arc::new(mirror_spec()));
        let client = stage.client();
        let first = *stage.io.opened.first().unwrap();
        stage.io.opened.retain(|id| *id == first);
        let server = stage.server();
        let mut heard = vec![stage.client_gets(client)];
        for turn in 0..900 {
            let (said, answer) = match turn % 5 {
                0 => (query("begin"), done("BEGIN", b'T')),
                1 => (query("insert"), failed("23505", b'E')),
                2 => (query("rollback"), done("ROLLBACK", b'I')),
                3 => (prepare(&format!("s{turn}"), &format!("select {turn}")), ran(true)),
                _ => (execute(&format!("s{}", turn - 1)), ran(false)),
            };
            stage.client_says(client, &said);
            heard.push(stage.server_gets(server));
            stage.server_says(server, &answer);
            heard.push(stage.client_gets(client));
            assert!(stage.io.paused.is_empty(), "nobody is held up");
            stage.wait(1);
            assert!(stage.io.closed.is_empty(), "{turn}");
        }
        stage.client_says(client, &message(b'X', b""));
        assert!(stage.io.closed.contains(&Peer::Client(client)));
        heard
    };
    let mirror = Arc::<Mirror>::default();
    let alone = play(&[]);
    assert_eq!(play(&[target(&mirror, 1.0, 8192)]), alone);
    let report = mirror.report();
    assert!(report.dropped[DropReason::Full as usize] > 400, "{report:?}");
    assert!(report.buffered_bytes <= 8192, "{report:?}");
    assert_eq!(report.clients, 0);
}

#[test]
fn what_finds_no_room_is_dropped_whole_and_its_statements_are_known_all_the_same() {
    let mut it = Scene::new(2048);
    it.ask(&query("first"), &done("SELECT 1", b'I'));
    let there = it.stage.server();
    it.stage.server_gets(there);
    // While the mirror is at that, more comes than there is room for.
    let long = "x".repeat(700);
    it.ask(&query(&format!("kept {long}")), &done("SELECT 1", b'I'));
    it.ask(&prepare("p", &format!("select {long}")), &ran(true));
    assert_eq!(it.dropped(DropReason::Full), 1);
    it.ask(&query(&"x".repeat(4000)), &done("SELECT 1", b'I'));
    assert_eq!((it.dropped(DropReason::Full), it.dropped(DropReason::Large)), (1, 1));
    it.ask(&execute("p"), &ran(false));
    it.stage.server_says(there, &done("SELECT 1", b'I'));
    assert_eq!(it.stage.server_gets(there), query(&format!("kept {long}")));
    it.stage.server_says(there, &done("SELECT 1", b'I'));
    let said = it.stage.server_gets(there);
    assert_eq!(said.first(), Some(&b'P'), "it is prepared there before it is bound");
    assert!(said.windows(8).any(|window| window == b"select x"));
    it.stage.server_says(there, &ran(true));
    let report = it.report();
    assert_eq!((report.transactions, report.buffered_bytes), (3, 0));
    assert!(report.dropped_bytes > 4700);
}

#[test]
fn half_a_transaction_is_never_played() {
    let mut it = Scene::new(4096);
    it.ask(&query("begin"), &done("BEGIN", b'T'));
    it.ask(&query("insert"), &done("INSERT 0 1", b'T'));
    it.stage.core.client_closed(it.client, it.stage.now, &mut it.stage.io);
    assert!(it.stage.io.opened.is_empty());
    let report = it.report();
    assert_eq!((it.dropped(DropReason::Left), report.buffered_bytes, report.clients), (1, 0, 0));
    assert_eq!(it.stage.core.streams.len(), 0);
}

#[test]
fn what_a_client_leaves_behind_is_played_within_its_time() {
    let mut it = Scene::new(4096);
    for sql in ["one", "two", "three"] {
        it.ask(&query(sql), &done("SELECT 1", b'I'));
    }
    let there = it.stage.server();
    assert_eq!(it.stage.server_gets(there), query("one"));
    it.stage.client_says(it.client, &message(b'X', b""));
    assert!(it.stage.io.closed.contains(&Peer::Client(it.client)), "it does not wait");
    assert_eq!(it.stage.core.clients(), 0, "nor does the end of the pooler");
    it.stage.server_says(there, &done("SELECT 1", b'I'));
    assert_eq!(it.stage.server_gets(there), query("two"));
    it.stage.wait(10_100);
    let report = it.report();
    assert_eq!((report.transactions, report.buffered_bytes), (1, 0));
    assert_eq!((it.dropped(DropReason::Timeout), it.dropped(DropReason::Left)), (1, 1));
    assert_eq!(it.stage.core.streams.len(), 0);
    assert_eq!(it.stage.io.cancels.len(), 1, "what runs there is cancelled");
}

#[test]
fn errors_are_compared() {
    let mut it = Scene::new(4096);
    let mut there_is = None;
    let mut pair = |here: &[u8], there: &[u8]| {
        it.ask(&query("insert"), here);
        if there_is.is_none() {
            there_is = Some(it.stage.server());
        }
        it.stage.server_says(there_is.unwrap(), there);
    };
    let fine = done("INSERT 0 1", b'I');
    pair(&fine, &fine);
    pair(&failed("23505", b'I'), &failed("23505", b'I'));
    pair(&fine, &failed("42P01", b'I'));
    pair(&failed("23505", b'I'), &fine);
    pair(&failed("23505", b'I'), &failed("23503", b'I'));
    let report = it.report();
    let counts = (report.mirror_failed, report.client_failed, report.different);
    assert_eq!((report.transactions, counts), (5, (1, 1, 1)));
    assert_eq!(report.classes, [(*b"23", 1), (*b"42", 1)]);
    assert_eq!(report.last_error.as_deref(), Some("23503: no"));
}

#[test]
fn what_is_left_open_there_is_rolled_back() {
    let mut it = Scene::new(4096);
    // One string, which fails there behind its begin.
    it.ask(&query("begin; insert; commit"), &done("COMMIT", b'I'));
    it.ask(&query("next"), &done("SELECT 1", b'I'));
    let there = it.stage.server();
    it.stage.server_gets(there);
    it.stage.server_says(there, &failed("42P01", b'E'));
    assert_eq!(it.stage.server_gets(there), query("ROLLBACK"));
    it.stage.server_says(there, &done("ROLLBACK", b'I'));
    assert_eq!(it.stage.server_gets(there), query("next"));
    it.stage.server_says(there, &done("SELECT 1", b'I'));
    assert_eq!((it.report().transactions, it.report().mirror_failed), (2, 1));
}

#[test]
fn a_copy_that_only_the_mirror_takes_is_ended() {
    let mut it = Scene::new(4096);
    it.ask(&query("copy t from stdin"), &failed("42P01", b'I'));
    let there = it.stage.server();
    it.stage.server_gets(there);
    it.stage.server_says(there, &message(b'G', b"\0\0\0"));
    assert_eq!(it.stage.server_gets(there).first(), Some(&b'f'));
    assert_eq!(it.report().client_failed, 1);
    it.stage.server_says(there, &failed("57014", b'I'));
    it.stage.core.cancel_finished(there, it.stage.now, &mut it.stage.io);
    it.ask(&query("next"), &done("SELECT 1", b'I'));
    assert_eq!(it.stage.server_gets(there), query("next"));
}

#[test]
fn a_statement_that_its_client_cancels_does_not_run_elsewhere() {
    let mut it = Scene::new(4096);
    let key = it.stage.core.cancel_key_of(it.client).unwrap();
    it.stage.client_says(it.client, &query("select slow"));
    it.stage.core.cancel(&key, it.stage.now, &mut it.stage.io);
    it.stage.server_says(it.server, &failed("57014", b'I'));
    it.stage.core.cancel_finished(it.server, it.stage.now, &mut it.stage.io);
    assert!(it.stage.io.opened.is_empty());
    assert_eq!((it.dropped(DropReason::Cancelled), it.report().buffered_bytes), (1, 0));
}

#[test]
fn a_mirror_that_is_down_drops_and_is_tried_again() {
    let mut it = Scene::new(4096);
    it.ask(&query("one"), &done("SELECT 1", b'I'));
    let opened = it.stage.io.opened.pop().unwrap();
    let failure = ServerFailure { sqlstate: *b"28P01", message: "wrong password".to_owned() };
    it.stage.core.server_failed(opened, failure, it.stage.now, &mut it.stage.io);
    assert_eq!(it.dropped(DropReason::Unreachable), 1);
    assert_eq!(it.report().last_error.as_deref(), Some("28P01: wrong password"));
    it.ask(&query("two"), &done("SELECT 1", b'I'));
    assert!(it.stage.io.opened.is_empty(), "not so soon");
    it.stage.wait(300);
    let there = it.stage.server();
    assert_eq!(it.stage.server_gets(there), query("two"));
    it.stage.core.server_closed(there, it.stage.now, &mut it.stage.io);
    assert_eq!(it.dropped(DropReason::Lost), 1);
    it.ask(&query("three"), &done("SELECT 1", b'I'));
    let there = it.stage.server();
    assert_eq!(it.stage.server_gets(there), query("three"));
}

#[test]
fn mirrors_come_and_go_with_the_settings() {
    let mut it = Scene::new(4096);
    let none = Arc::new(home(&[]));
    it.stage.core.set_pool(POOL, Arc::clone(&none));
    it.stage.core.pools_changed(it.stage.now, &mut it.stage.io);
    assert_eq!((it.report().clients, it.stage.core.streams.len()), (0, 0));
    it.ask(&query("one"), &done("SELECT 1", b'I'));
    assert!(it.stage.io.opened.is_empty());
    // In the middle of a transaction the client is mirrored from the next one on.
    it.ask(&query("begin"), &done("BEGIN", b'T'));
    let some = Arc::new(home(&[target(&it.mirror, 1.0, 4096)]));
    it.stage.core.set_pool(POOL, some);
    it.stage.core.pools_changed(it.stage.now, &mut it.stage.io);
    it.ask(&query("commit"), &done("COMMIT", b'I'));
    assert!(it.stage.io.opened.is_empty());
    it.ask(&query("two"), &done("SELECT 1", b'I'));
    let there = it.stage.server();
    assert_eq!(it.stage.server_gets(there), query("two"));
    // What is under way when the mirror goes is played to its end.
    it.stage.core.set_pool(POOL, none);
    it.stage.core.pools_changed(it.stage.now, &mut it.stage.io);
    it.stage.server_says(there, &done("SELECT 1", b'I'));
    assert_eq!((it.report().transactions, it.stage.core.streams.len()), (1, 0));
    let off = Arc::new(home(&[target(&it.mirror, 0.0, 4096)]));
    it.stage.core.set_pool(POOL, off);
    it.stage.core.pools_changed(it.stage.now, &mut it.stage.io);
    assert_eq!(it.report().clients, 0);
}
