//! Tests of mirroring, message by message: a second pool receives a client's transactions, without
//! any effect on the client.

use std::{sync::Arc, time::Duration};

use super::{CoreHarness, POOL, message};
use crate::{
    ClientId, CoreEvent, Mirror, MirrorReport, MirrorTarget, PeerId, PoolId, PoolSpec,
    PoolTimeouts, ServerFailure, ServerId, mirror::outcome::DropReason,
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

/// Returns a batch that prepares a named statement and runs it.
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

struct MirrorHarness {
    harness: CoreHarness,
    mirror: Arc<Mirror>,
    client: ClientId,
    server: ServerId,
}

impl MirrorHarness {
    /// Creates a client with a server; the mirror's pool has no server yet.
    fn new(client_bytes: usize) -> Self {
        let mirror = Arc::<Mirror>::default();
        let mut harness = CoreHarness::new(mirrored_spec(&[target(&mirror, 1.0, client_bytes)]));
        harness.core.set_pool(MIRROR, Arc::new(mirror_spec()));
        let client = harness.client();
        let server = harness.log_in_server();
        harness.sent_to_client(client);
        Self { harness, mirror, client, server }
    }

    /// Sends a request of the client and the server's reply, and checks that the client gets
    /// exactly that reply.
    fn exchange(&mut self, received: &[u8], answer: &[u8]) {
        self.harness.send_from_client(self.client, received);
        assert!(!self.harness.sent_to_server(self.server).is_empty());
        self.harness.send_from_server(self.server, answer);
        assert_eq!(self.harness.sent_to_client(self.client), answer);
    }

    fn report(&self) -> MirrorReport {
        self.mirror.report()
    }

    fn dropped(&self, why: DropReason) -> u64 {
        self.report().dropped[why as usize]
    }
}

fn mirrored_spec(mirrors: &[MirrorTarget]) -> PoolSpec {
    PoolSpec { mirrors: mirrors.into(), ..PoolSpec::new(1) }
}

fn target(mirror: &Arc<Mirror>, share: f64, client_bytes: usize) -> MirrorTarget {
    MirrorTarget {
        pool: MIRROR,
        mirror: Arc::clone(mirror),
        sample_rate: share,
        client_bytes,
        buffer_bytes: 1 << 20,
        timeout: Duration::from_secs(10),
    }
}

fn mirror_spec() -> PoolSpec {
    let limit = Some(Duration::from_secs(10));
    let timeouts = PoolTimeouts {
        query_wait: limit,
        query: limit,
        transaction: limit,
        ..PoolTimeouts::default()
    };
    PoolSpec { listen_bytes: None, timeouts, ..PoolSpec::new(1) }
}

#[test]
fn transaction_is_mirrored_after_client_has_its_outcome() {
    let mut it = MirrorHarness::new(4096);
    it.exchange(&query("begin"), &done("BEGIN", b'T'));
    it.exchange(&query("insert"), &done("INSERT 0 1", b'T'));
    assert!(it.harness.io.opened.is_empty(), "the outcome is not known yet");
    it.exchange(&query("commit"), &done("COMMIT", b'I'));
    let there = it.harness.log_in_server();
    let all = [query("begin"), query("insert"), query("commit")].concat();
    assert_eq!(it.harness.sent_to_server(there), all);
    assert_eq!(it.report().buffered_bytes, 256 + all.len() as u64);
    it.harness.send_from_server(there, &done("BEGIN", b'T'));
    it.harness.send_from_server(there, &done("INSERT 0 1", b'T'));
    // The next transaction waits.
    it.exchange(&query("select 1"), &done("SELECT 1", b'I'));
    assert_eq!(it.harness.sent_to_server(there), b"");
    it.harness.send_from_server(there, &done("COMMIT", b'I'));
    assert_eq!(it.harness.sent_to_server(there), query("select 1"));
    it.harness.send_from_server(there, &done("SELECT 1", b'I'));
    let report = it.report();
    assert_eq!((report.transactions, report.clients, report.buffered_bytes), (2, 1, 0));
    assert_eq!((report.dropped_total(), report.failed_mirror_only), (0, 0));
    assert_eq!(it.harness.sent_to_client(it.client), b"", "replies of the mirror are discarded");
    assert_eq!((it.harness.core.clients(), it.harness.core.engines().mirrors.len()), (1, 1));
    assert!(it.harness.io.paused.is_empty());
}

#[test]
fn unresponsive_mirror_does_not_affect_its_client() {
    let run = |mirrors: &[MirrorTarget]| {
        let mut harness = CoreHarness::new(mirrored_spec(mirrors));
        harness.core.set_pool(MIRROR, Arc::new(mirror_spec()));
        let client = harness.client();
        let first = *harness.io.opened.first().unwrap();
        harness.io.opened.retain(|id| *id == first);
        let server = harness.log_in_server();
        let mut received = vec![harness.sent_to_client(client)];
        for round in 0..900 {
            let (request, answer) = match round % 5 {
                0 => (query("begin"), done("BEGIN", b'T')),
                1 => (query("insert"), failed("23505", b'E')),
                2 => (query("rollback"), done("ROLLBACK", b'I')),
                3 => (prepare(&format!("s{round}"), &format!("select {round}")), ran(true)),
                _ => (execute(&format!("s{}", round - 1)), ran(false)),
            };
            harness.send_from_client(client, &request);
            received.push(harness.sent_to_server(server));
            harness.send_from_server(server, &answer);
            received.push(harness.sent_to_client(client));
            assert!(harness.io.paused.is_empty(), "reading is never paused");
            harness.advance(1);
            assert!(harness.io.closed.is_empty(), "{round}");
        }
        harness.send_from_client(client, &message(b'X', b""));
        assert!(harness.io.closed.contains(&PeerId::Client(client)));
        received
    };
    let mirror = Arc::<Mirror>::default();
    let alone = run(&[]);
    assert_eq!(run(&[target(&mirror, 1.0, 8192)]), alone);
    let report = mirror.report();
    assert!(report.dropped[DropReason::BufferFull as usize] > 400, "{report:?}");
    assert!(report.buffered_bytes <= 8192, "{report:?}");
    assert_eq!(report.clients, 0);
}

#[test]
fn dropped_transactions_still_register_their_statements() {
    let mut it = MirrorHarness::new(2048);
    it.exchange(&query("first"), &done("SELECT 1", b'I'));
    let there = it.harness.log_in_server();
    it.harness.sent_to_server(there);
    // While the mirror is busy, more bytes arrive than the buffer holds.
    let long = "x".repeat(700);
    it.exchange(&query(&format!("kept {long}")), &done("SELECT 1", b'I'));
    it.exchange(&prepare("p", &format!("select {long}")), &ran(true));
    assert_eq!(it.dropped(DropReason::BufferFull), 1);
    it.exchange(&query(&"x".repeat(4000)), &done("SELECT 1", b'I'));
    assert_eq!((it.dropped(DropReason::BufferFull), it.dropped(DropReason::TooLarge)), (1, 1));
    it.exchange(&execute("p"), &ran(false));
    it.harness.send_from_server(there, &done("SELECT 1", b'I'));
    assert_eq!(it.harness.sent_to_server(there), query(&format!("kept {long}")));
    it.harness.send_from_server(there, &done("SELECT 1", b'I'));
    let received = it.harness.sent_to_server(there);
    assert_eq!(received.first(), Some(&b'P'), "the statement is prepared on the mirror first");
    assert!(received.windows(8).any(|window| window == b"select x"));
    it.harness.send_from_server(there, &ran(true));
    let report = it.report();
    assert_eq!((report.transactions, report.buffered_bytes), (3, 0));
    assert!(report.dropped_bytes > 4700);
}

#[test]
fn incomplete_transaction_is_never_mirrored() {
    let mut it = MirrorHarness::new(4096);
    it.exchange(&query("begin"), &done("BEGIN", b'T'));
    it.exchange(&query("insert"), &done("INSERT 0 1", b'T'));
    it.harness.core.handle(CoreEvent::ClientClosed(it.client), it.harness.now, &mut it.harness.io);
    assert!(it.harness.io.opened.is_empty());
    let report = it.report();
    assert_eq!(
        (it.dropped(DropReason::ClientGone), report.buffered_bytes, report.clients),
        (1, 0, 0)
    );
    assert_eq!(it.harness.core.engines().mirrors.len(), 0);
}

#[test]
fn transactions_of_closed_client_are_mirrored_until_timeout() {
    let mut it = MirrorHarness::new(4096);
    for sql in ["one", "two", "three"] {
        it.exchange(&query(sql), &done("SELECT 1", b'I'));
    }
    let there = it.harness.log_in_server();
    assert_eq!(it.harness.sent_to_server(there), query("one"));
    it.harness.send_from_client(it.client, &message(b'X', b""));
    assert!(
        it.harness.io.closed.contains(&PeerId::Client(it.client)),
        "its close does not wait for the mirror"
    );
    assert_eq!(it.harness.core.clients(), 0, "a shutdown does not wait either");
    it.harness.send_from_server(there, &done("SELECT 1", b'I'));
    assert_eq!(it.harness.sent_to_server(there), query("two"));
    it.harness.advance(10_100);
    let report = it.report();
    assert_eq!((report.transactions, report.buffered_bytes), (1, 0));
    assert_eq!((it.dropped(DropReason::Timeout), it.dropped(DropReason::ClientGone)), (1, 1));
    assert_eq!(it.harness.core.engines().mirrors.len(), 0);
    assert_eq!(it.harness.io.cancels.len(), 1, "the running statement is cancelled");
}

#[test]
fn errors_of_client_and_mirror_are_compared() {
    let mut it = MirrorHarness::new(4096);
    let mut there_is = None;
    let mut pair = |here: &[u8], there: &[u8]| {
        it.exchange(&query("insert"), here);
        if there_is.is_none() {
            there_is = Some(it.harness.log_in_server());
        }
        it.harness.send_from_server(there_is.unwrap(), there);
    };
    let fine = done("INSERT 0 1", b'I');
    pair(&fine, &fine);
    pair(&failed("23505", b'I'), &failed("23505", b'I'));
    pair(&fine, &failed("42P01", b'I'));
    pair(&failed("23505", b'I'), &fine);
    pair(&failed("23505", b'I'), &failed("23503", b'I'));
    let report = it.report();
    let counts = (report.failed_mirror_only, report.failed_client_only, report.sqlstate_differs);
    assert_eq!((report.transactions, counts), (5, (1, 1, 1)));
    assert_eq!(report.classes, [(*b"23", 1), (*b"42", 1)]);
    assert_eq!(report.last_error.as_deref(), Some("23503: no"));
}

#[test]
fn transaction_left_open_on_mirror_is_rolled_back() {
    let mut it = MirrorHarness::new(4096);
    // A single query string, which fails on the mirror after its BEGIN.
    it.exchange(&query("begin; insert; commit"), &done("COMMIT", b'I'));
    it.exchange(&query("next"), &done("SELECT 1", b'I'));
    let there = it.harness.log_in_server();
    it.harness.sent_to_server(there);
    it.harness.send_from_server(there, &failed("42P01", b'E'));
    assert_eq!(it.harness.sent_to_server(there), query("ROLLBACK"));
    it.harness.send_from_server(there, &done("ROLLBACK", b'I'));
    assert_eq!(it.harness.sent_to_server(there), query("next"));
    it.harness.send_from_server(there, &done("SELECT 1", b'I'));
    assert_eq!((it.report().transactions, it.report().failed_mirror_only), (2, 1));
}

#[test]
fn copy_accepted_by_mirror_only_is_ended() {
    let mut it = MirrorHarness::new(4096);
    it.exchange(&query("copy t from stdin"), &failed("42P01", b'I'));
    let there = it.harness.log_in_server();
    it.harness.sent_to_server(there);
    it.harness.send_from_server(there, &message(b'G', b"\0\0\0"));
    assert_eq!(it.harness.sent_to_server(there).first(), Some(&b'f'));
    assert_eq!(it.report().failed_client_only, 1);
    it.harness.send_from_server(there, &failed("57014", b'I'));
    it.harness.core.handle(CoreEvent::CancelFinished(there), it.harness.now, &mut it.harness.io);
    it.exchange(&query("next"), &done("SELECT 1", b'I'));
    assert_eq!(it.harness.sent_to_server(there), query("next"));
}

#[test]
fn cancelled_statement_is_not_mirrored() {
    let mut it = MirrorHarness::new(4096);
    let key = it.harness.core.cancel_key_of(it.client).unwrap();
    it.harness.send_from_client(it.client, &query("select slow"));
    it.harness.core.cancel(&key, it.harness.now, &mut it.harness.io);
    it.harness.send_from_server(it.server, &failed("57014", b'I'));
    it.harness.core.handle(
        CoreEvent::CancelFinished(it.server),
        it.harness.now,
        &mut it.harness.io,
    );
    assert!(it.harness.io.opened.is_empty());
    assert_eq!((it.dropped(DropReason::Cancelled), it.report().buffered_bytes), (1, 0));
}

#[test]
fn unreachable_mirror_drops_transactions_and_is_retried() {
    let mut it = MirrorHarness::new(4096);
    it.exchange(&query("one"), &done("SELECT 1", b'I'));
    let opened = it.harness.io.opened.pop().unwrap();
    let failure = ServerFailure { sqlstate: *b"28P01", message: "wrong password".to_owned() };
    it.harness.core.handle(
        CoreEvent::ServerFailed(opened, failure),
        it.harness.now,
        &mut it.harness.io,
    );
    assert_eq!(it.dropped(DropReason::Unreachable), 1);
    assert_eq!(it.report().last_error.as_deref(), Some("28P01: wrong password"));
    it.exchange(&query("two"), &done("SELECT 1", b'I'));
    assert!(it.harness.io.opened.is_empty(), "the retry pause is not over");
    it.harness.advance(300);
    let there = it.harness.log_in_server();
    assert_eq!(it.harness.sent_to_server(there), query("two"));
    it.harness.core.handle(CoreEvent::ServerClosed(there), it.harness.now, &mut it.harness.io);
    assert_eq!(it.dropped(DropReason::ConnectionLost), 1);
    it.exchange(&query("three"), &done("SELECT 1", b'I'));
    let there = it.harness.log_in_server();
    assert_eq!(it.harness.sent_to_server(there), query("three"));
}

#[test]
fn changed_settings_add_and_remove_mirrors() {
    let mut it = MirrorHarness::new(4096);
    let none = Arc::new(mirrored_spec(&[]));
    it.harness.core.set_pool(POOL, Arc::clone(&none));
    it.harness.core.handle(CoreEvent::PoolsChanged, it.harness.now, &mut it.harness.io);
    assert_eq!((it.report().clients, it.harness.core.engines().mirrors.len()), (0, 0));
    it.exchange(&query("one"), &done("SELECT 1", b'I'));
    assert!(it.harness.io.opened.is_empty());
    // A client inside a transaction is mirrored from its next transaction on.
    it.exchange(&query("begin"), &done("BEGIN", b'T'));
    let some = Arc::new(mirrored_spec(&[target(&it.mirror, 1.0, 4096)]));
    it.harness.core.set_pool(POOL, some);
    it.harness.core.handle(CoreEvent::PoolsChanged, it.harness.now, &mut it.harness.io);
    it.exchange(&query("commit"), &done("COMMIT", b'I'));
    assert!(it.harness.io.opened.is_empty());
    it.exchange(&query("two"), &done("SELECT 1", b'I'));
    let there = it.harness.log_in_server();
    assert_eq!(it.harness.sent_to_server(there), query("two"));
    // A transaction that is running when its mirror is removed still finishes.
    it.harness.core.set_pool(POOL, none);
    it.harness.core.handle(CoreEvent::PoolsChanged, it.harness.now, &mut it.harness.io);
    it.harness.send_from_server(there, &done("SELECT 1", b'I'));
    assert_eq!((it.report().transactions, it.harness.core.engines().mirrors.len()), (1, 0));
    let off = Arc::new(mirrored_spec(&[target(&it.mirror, 0.0, 4096)]));
    it.harness.core.set_pool(POOL, off);
    it.harness.core.handle(CoreEvent::PoolsChanged, it.harness.now, &mut it.harness.io);
    assert_eq!(it.report().clients, 0);
}
