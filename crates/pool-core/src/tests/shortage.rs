//! Tests with more clients than servers: waiting, reserve pools, and pools that share a limit.

use std::{sync::Arc, time::Duration};

use super::{CoreHarness, POOL, message};
use crate::{
    ClientId, ConnectionLimit, CoreEvent, PeerId, PoolId, PoolSpec, ReservePool, ServerFailure,
    ServerId, WorkerId,
};

const OTHER: PoolId = PoolId(1);

fn query(harness: &mut CoreHarness, client: ClientId) {
    harness.send_from_client(client, &message(b'Q', b"select 1\0"));
}

fn answer(harness: &mut CoreHarness, server: ServerId) {
    harness.send_from_server(server, &message(b'Z', b"I"));
}

#[test]
fn reserve_pool_serves_clients_that_have_waited() {
    let mut spec = PoolSpec::new(1);
    let after = Duration::from_secs(2);
    spec.reserve = Some(ReservePool { limits: [ConnectionLimit::new(1)].into(), after });
    let mut harness = CoreHarness::new(spec);
    let clients = [harness.client(), harness.client(), harness.client()];
    harness.log_in_server();
    clients.iter().for_each(|client| query(&mut harness, *client));
    harness.advance(1900);
    assert!(harness.io.opened.is_empty());
    harness.advance(200);
    let reserve = harness.log_in_server();
    assert_eq!(harness.sent_to_server(reserve), message(b'Q', b"select 1\0"));
    harness.advance(5000);
    assert!(harness.io.opened.is_empty(), "the reserve has one server");
}

#[test]
fn waiting_client_gets_one_notice() {
    let mut spec = PoolSpec::new(1);
    spec.timeouts.query_wait_notify = Some(Duration::from_secs(1));
    let mut harness = CoreHarness::new(spec);
    let (busy, waits) = (harness.client(), harness.client());
    let server = harness.log_in_server();
    query(&mut harness, busy);
    query(&mut harness, waits);
    harness.sent_to_client(waits);
    harness.advance(500);
    assert_eq!(harness.sent_to_client(waits), b"");
    harness.advance(600);
    assert_eq!(harness.sent_to_client(waits)[0], b'N');
    harness.advance(2000);
    assert_eq!(harness.sent_to_client(waits), b"");
    answer(&mut harness, server);
    answer(&mut harness, server);
    assert_eq!(harness.sent_to_client(waits), message(b'Z', b"I"));
}

#[test]
fn round_robin_uses_servers_in_turn() {
    for round_robin in [true, false] {
        let mut spec = PoolSpec::new(2);
        spec.servers_min = 2;
        spec.is_round_robin = round_robin;
        let mut harness = CoreHarness::new(spec);
        let client = harness.client();
        let servers = [harness.log_in_server(), harness.log_in_server()];
        let mut used = Vec::new();
        for _ in 0..4 {
            query(&mut harness, client);
            let server =
                servers.into_iter().find(|server| !harness.sent_to_server(*server).is_empty());
            answer(&mut harness, server.unwrap());
            used.push(server);
        }
        assert_eq!(used[0] == used[2] && used[1] == used[3] && used[0] != used[1], round_robin);
        assert_eq!(used.iter().all(|server| *server == used[0]), !round_robin);
    }
}

/// Creates two pools with a limit of two servers each, and a shared limit of `both`.
fn pools_with_shared_limit(both: u32) -> CoreHarness {
    let limit = ConnectionLimit::new(both);
    let spec = || {
        let mut spec = PoolSpec::new(2);
        spec.server_limits = [ConnectionLimit::new(2), Arc::clone(&limit)].into();
        spec
    };
    let mut harness = CoreHarness::new(spec());
    harness.core.set_pool(OTHER, Arc::new(spec()));
    harness
}

#[test]
fn idle_server_makes_room_for_another_pool() {
    let mut harness = pools_with_shared_limit(1);
    let _ = harness.client();
    let idle = harness.log_in_server();
    let other = harness.client_in(OTHER, Vec::new());
    assert_eq!(harness.io.closed, [PeerId::Server(idle)]);
    harness.log_in_server();
    query(&mut harness, other);
    assert_eq!(harness.core.servers(), 1);
}

#[test]
fn pool_without_server_gets_one_from_busy_pool() {
    let mut harness = pools_with_shared_limit(1);
    let clients = [harness.client(), harness.client()];
    let server = harness.log_in_server();
    clients.iter().for_each(|client| query(&mut harness, *client));
    harness.advance(500);
    harness.client_in(OTHER, Vec::new());
    harness.advance(100);
    answer(&mut harness, server);
    query(&mut harness, clients[0]);
    assert!(harness.io.closed.is_empty(), "its own first client has waited longer");
    harness.advance(1000);
    answer(&mut harness, server);
    assert_eq!(
        harness.io.closed,
        [PeerId::Server(server)],
        "now the other pool's client has waited longer"
    );
    let (theirs, asked) = (harness.log_in_server(), harness.io.opened.len());
    assert_eq!((harness.core.servers(), asked), (1, 0));
    answer(&mut harness, theirs);
}

#[test]
fn full_pool_does_not_evict_servers_of_others() {
    let mut harness = pools_with_shared_limit(4);
    let (a, b, c) = (harness.client(), harness.client(), harness.client());
    harness.log_in_server();
    [a, b].iter().for_each(|client| query(&mut harness, *client));
    harness.log_in_server();
    let _ = harness.client_in(OTHER, Vec::new());
    harness.log_in_server();
    query(&mut harness, c);
    assert!(harness.io.closed.is_empty(), "the pool itself is full");
    assert!(harness.core.is_waiting(c));
    assert!(harness.core.has_pool(POOL));
}

/// Fails the server login that the core requested last.
fn login_fails(harness: &mut CoreHarness, sqlstate: [u8; 5], message: &str) {
    let id = harness.io.opened.pop().expect("a server was ordered");
    let failure = ServerFailure { sqlstate, message: message.to_owned() };
    harness.core.handle(CoreEvent::ServerFailed(id, failure), harness.now, &mut harness.io);
}

/// Creates a pool whose only server has disconnected, with a client that had logged in before.
fn without_server(spec: PoolSpec) -> (CoreHarness, ClientId) {
    let mut harness = CoreHarness::new(spec);
    let client = harness.client();
    let server = harness.log_in_server();
    harness.core.handle(CoreEvent::ServerClosed(server), harness.now, &mut harness.io);
    harness.sent_to_client(client);
    (harness, client)
}

#[test]
fn established_client_waits_for_a_server_that_cannot_be_reached() {
    for (sqlstate, why) in [(*b"08006", "Connection refused"), (*b"53300", "too many clients")] {
        let (mut harness, client) = without_server(PoolSpec::new(1));
        query(&mut harness, client);
        for pause in [100, 200, 400, 800, 1600] {
            login_fails(&mut harness, sqlstate, why);
            assert!(harness.io.opened.is_empty(), "a pause follows a failed login");
            harness.advance(pause);
        }
        assert!(harness.core.is_waiting(client));
        assert_eq!(harness.sent_to_client(client), b"", "the client gets no message");
        let server = harness.log_in_server();
        assert_eq!(harness.sent_to_server(server), message(b'Q', b"select 1\0"));
        assert!(harness.io.closed.is_empty());
    }
}

#[test]
fn permanent_login_failure_disconnects_waiting_clients() {
    for sqlstate in [*b"28P01", *b"28000", *b"3D000", *b"42501"] {
        let (mut harness, client) = without_server(PoolSpec::new(1));
        query(&mut harness, client);
        login_fails(&mut harness, sqlstate, "no");
        assert_eq!(harness.io.closed, [PeerId::Client(client)]);
        let received = harness.sent_to_client(client);
        assert!(received.windows(5).any(|it| it == sqlstate), "{}", received.escape_ascii());
    }
}

#[test]
fn query_wait_timeout_error_has_reason_of_login_failure() {
    let mut spec = PoolSpec::new(1);
    spec.timeouts.query_wait = Some(Duration::from_secs(1));
    let (mut harness, client) = without_server(spec);
    query(&mut harness, client);
    login_fails(&mut harness, *b"08006", "cannot reach the server: db1:5432: Connection refused");
    harness.advance(1100);
    let received = String::from_utf8_lossy(&harness.sent_to_client(client)).into_owned();
    assert!(
        received.contains("query_wait_timeout") && received.contains("db1:5432: Connection"),
        "{received}"
    );
}

#[test]
fn new_login_fails_fast_until_the_next_attempt_is_due() {
    let (mut harness, first) = without_server(PoolSpec::new(1));
    query(&mut harness, first);
    login_fails(&mut harness, *b"08006", "Connection refused");
    // During the retry delay, the known failure is reported at once.
    let early = harness.client();
    assert_eq!(harness.io.closed, [PeerId::Client(early)]);
    assert!(harness.io.opened.is_empty());
    // When an attempt is due, a client that logs in waits for its result.
    harness.advance(100);
    let (fails, _) = (harness.client(), harness.io.opened[0]);
    assert_eq!(harness.sent_to_client(fails), b"");
    login_fails(&mut harness, *b"08006", "Connection refused");
    assert_eq!(harness.io.closed, [PeerId::Client(early), PeerId::Client(fails)]);
    assert!(harness.core.is_waiting(first));
    harness.advance(200);
    let comes = harness.client();
    harness.log_in_server();
    assert!(harness.sent_to_client(comes).ends_with(&message(b'Z', b"I")), "the login is complete");
    assert!(!harness.core.is_waiting(first));
}

#[test]
fn min_pool_size_yields_to_pools_with_clients() {
    let limit = ConnectionLimit::new(2);
    let spec = |servers_min| {
        let mut spec = PoolSpec::new(5);
        spec.server_limits = [ConnectionLimit::new(5), Arc::clone(&limit)].into();
        spec.servers_min = servers_min;
        spec.timeouts.server_idle = Some(Duration::from_secs(4));
        spec
    };
    let mut harness = CoreHarness::new(spec(5));
    harness.core.set_pool(OTHER, Arc::new(spec(0)));
    let keeps = harness.client();
    let kept = [harness.log_in_server(), harness.log_in_server()];
    harness.advance(1000);
    let other = harness.client_in(OTHER, Vec::new());
    assert_eq!(harness.io.closed, [PeerId::Server(kept[0])]);
    let theirs = harness.log_in_server();
    assert_eq!((harness.io.opened.len(), limit.in_use()), (0, 2));
    query(&mut harness, other);
    answer(&mut harness, theirs);
    // Another pool's servers are never closed to fill the minimum.
    for _ in 0..30 {
        harness.advance(100);
    }
    assert!(harness.io.opened.is_empty());
    assert_eq!(harness.io.closed.len(), 1, "{:?}", harness.io.closed);
    for _ in 0..20 {
        harness.advance(100);
    }
    assert!(harness.io.closed.contains(&PeerId::Server(theirs)), "it exceeded the idle timeout");
    assert_eq!(harness.io.opened.len(), 1, "capacity is free now");
    query(&mut harness, keeps);
}

#[test]
fn min_pool_size_is_split_among_workers_without_clients() {
    let mut spec = PoolSpec::new(9);
    spec.servers_min = 5;
    let spec = Arc::new(spec);
    let mut opened = Vec::new();
    for worker in 0..3 {
        let mut harness = CoreHarness::for_worker(worker, &spec);
        harness.core.set_worker_count(3);
        harness.core.set_pool(POOL, Arc::clone(&spec));
        assert!(harness.core.deadline() < crate::Time::NEVER || worker > 4);
        harness.core.handle(CoreEvent::FillMinPool(POOL), harness.now, &mut harness.io);
        opened.push(harness.io.opened.len());
        // A login to an unreachable server is retried although no client waits.
        login_fails(&mut harness, *b"08006", "Connection refused");
        harness.advance(200);
        assert_eq!(harness.io.opened.len(), opened[usize::from(worker)], "{:?}", WorkerId(worker));
    }
    assert_eq!(opened, [2, 2, 1]);
}
