//! More clients than servers: waiting, reserves, and pools that share a limit.

use std::{sync::Arc, time::Duration};

use super::{POOL, Stage, message};
use crate::{ClientId, Limit, Peer, PoolId, PoolSpec, Reserve, ServerFailure, ServerId, WorkerId};

const OTHER: PoolId = PoolId(1);

fn query(stage: &mut Stage, client: ClientId) {
    stage.client_says(client, &message(b'Q', b"select 1\0"));
}

fn answer(stage: &mut Stage, server: ServerId) {
    stage.server_says(server, &message(b'Z', b"I"));
}

#[test]
fn the_reserve_is_for_clients_that_have_waited() {
    let mut spec = PoolSpec::new(1);
    let after = Duration::from_secs(2);
    spec.reserve = Some(Reserve { limits: [Limit::new(1)].into(), after });
    let mut stage = Stage::new(spec);
    let clients = [stage.client(), stage.client(), stage.client()];
    stage.server();
    clients.iter().for_each(|client| query(&mut stage, *client));
    stage.wait(1900);
    assert!(stage.io.opened.is_empty());
    stage.wait(200);
    let reserve = stage.server();
    assert_eq!(stage.server_gets(reserve), message(b'Q', b"select 1\0"));
    stage.wait(5000);
    assert!(stage.io.opened.is_empty(), "there is one in reserve");
}

#[test]
fn who_waits_is_told_once() {
    let mut spec = PoolSpec::new(1);
    spec.timeouts.query_wait_notify = Some(Duration::from_secs(1));
    let mut stage = Stage::new(spec);
    let (busy, waits) = (stage.client(), stage.client());
    let server = stage.server();
    query(&mut stage, busy);
    query(&mut stage, waits);
    stage.client_gets(waits);
    stage.wait(500);
    assert_eq!(stage.client_gets(waits), b"");
    stage.wait(600);
    assert_eq!(stage.client_gets(waits)[0], b'N');
    stage.wait(2000);
    assert_eq!(stage.client_gets(waits), b"");
    answer(&mut stage, server);
    answer(&mut stage, server);
    assert_eq!(stage.client_gets(waits), message(b'Z', b"I"));
}

#[test]
fn servers_are_used_in_turn_if_that_is_wished() {
    for round_robin in [true, false] {
        let mut spec = PoolSpec::new(2);
        spec.servers_min = 2;
        spec.round_robin = round_robin;
        let mut stage = Stage::new(spec);
        let client = stage.client();
        let servers = [stage.server(), stage.server()];
        let mut used = Vec::new();
        for _ in 0..4 {
            query(&mut stage, client);
            let server = servers.into_iter().find(|server| !stage.server_gets(*server).is_empty());
            answer(&mut stage, server.unwrap());
            used.push(server);
        }
        assert_eq!(used[0] == used[2] && used[1] == used[3] && used[0] != used[1], round_robin);
        assert_eq!(used.iter().all(|server| *server == used[0]), !round_robin);
    }
}

/// Two pools, each with room for two, and a limit on both together.
fn sharing(both: u32) -> Stage {
    let limit = Limit::new(both);
    let spec = || {
        let mut spec = PoolSpec::new(2);
        spec.server_limits = [Limit::new(2), Arc::clone(&limit)].into();
        spec
    };
    let mut stage = Stage::new(spec());
    stage.core.set_pool(OTHER, Arc::new(spec()));
    stage
}

#[test]
fn an_idle_server_makes_room_for_another_pool() {
    let mut stage = sharing(1);
    let _ = stage.client();
    let idle = stage.server();
    let other = stage.client_in(OTHER, Vec::new());
    assert_eq!(stage.io.closed, [Peer::Server(idle)]);
    stage.server();
    query(&mut stage, other);
    assert_eq!(stage.core.servers(), 1);
}

#[test]
fn a_pool_that_has_none_gets_one_from_a_pool_that_is_always_busy() {
    let mut stage = sharing(1);
    let clients = [stage.client(), stage.client()];
    let server = stage.server();
    clients.iter().for_each(|client| query(&mut stage, *client));
    stage.wait(500);
    stage.client_in(OTHER, Vec::new());
    stage.wait(100);
    answer(&mut stage, server);
    query(&mut stage, clients[0]);
    assert!(stage.io.closed.is_empty(), "the first of its own has waited longer");
    stage.wait(1000);
    answer(&mut stage, server);
    assert_eq!(stage.io.closed, [Peer::Server(server)], "now the other's has");
    let (theirs, asked) = (stage.server(), stage.io.opened.len());
    assert_eq!((stage.core.servers(), asked), (1, 0));
    answer(&mut stage, theirs);
}

#[test]
fn a_limit_of_its_own_takes_nothing_from_others() {
    let mut stage = sharing(4);
    let (a, b, c) = (stage.client(), stage.client(), stage.client());
    stage.server();
    [a, b].iter().for_each(|client| query(&mut stage, *client));
    stage.server();
    let _ = stage.client_in(OTHER, Vec::new());
    stage.server();
    query(&mut stage, c);
    assert!(stage.io.closed.is_empty(), "the pool itself is full");
    assert!(stage.core.is_waiting(c));
    assert!(stage.core.has_pool(POOL));
}

/// Has the login that was ordered last fail.
fn login_fails(stage: &mut Stage, sqlstate: [u8; 5], message: &str) {
    let id = stage.io.opened.pop().expect("a server was ordered");
    let failure = ServerFailure { sqlstate, message: message.to_owned() };
    stage.core.server_failed(id, failure, stage.now, &mut stage.io);
}

/// A pool whose only server has ended, and a client that was greeted before.
fn without_server(spec: PoolSpec) -> (Stage, ClientId) {
    let mut stage = Stage::new(spec);
    let client = stage.client();
    let server = stage.server();
    stage.core.server_closed(server, stage.now, &mut stage.io);
    stage.client_gets(client);
    (stage, client)
}

#[test]
fn established_client_waits_for_a_server_that_cannot_be_reached() {
    for (sqlstate, why) in [(*b"08006", "Connection refused"), (*b"53300", "too many clients")] {
        let (mut stage, client) = without_server(PoolSpec::new(1));
        query(&mut stage, client);
        for pause in [100, 200, 400, 800, 1600] {
            login_fails(&mut stage, sqlstate, why);
            assert!(stage.io.opened.is_empty(), "a failed login has a pause behind it");
            stage.wait(pause);
        }
        assert!(stage.core.is_waiting(client));
        assert_eq!(stage.client_gets(client), b"", "it is told nothing");
        let server = stage.server();
        assert_eq!(stage.server_gets(server), message(b'Q', b"select 1\0"));
        assert!(stage.io.closed.is_empty());
    }
}

#[test]
fn failure_that_needs_somebody_is_final_for_waiting_clients() {
    for sqlstate in [*b"28P01", *b"28000", *b"3D000", *b"42501"] {
        let (mut stage, client) = without_server(PoolSpec::new(1));
        query(&mut stage, client);
        login_fails(&mut stage, sqlstate, "no");
        assert_eq!(stage.io.closed, [Peer::Client(client)]);
        let told = stage.client_gets(client);
        assert!(told.windows(5).any(|it| it == sqlstate), "{}", told.escape_ascii());
    }
}

#[test]
fn client_that_waited_in_vain_is_told_why_logins_failed() {
    let mut spec = PoolSpec::new(1);
    spec.timeouts.query_wait = Some(Duration::from_secs(1));
    let (mut stage, client) = without_server(spec);
    query(&mut stage, client);
    login_fails(&mut stage, *b"08006", "cannot reach the server: db1:5432: Connection refused");
    stage.wait(1100);
    let told = String::from_utf8_lossy(&stage.client_gets(client)).into_owned();
    assert!(told.contains("query_wait_timeout") && told.contains("db1:5432: Connection"), "{told}");
}

#[test]
fn new_login_fails_fast_until_the_next_attempt_is_due() {
    let (mut stage, first) = without_server(PoolSpec::new(1));
    query(&mut stage, first);
    login_fails(&mut stage, *b"08006", "Connection refused");
    // The pause is on: what is known is told at once.
    let early = stage.client();
    assert_eq!(stage.io.closed, [Peer::Client(early)]);
    assert!(stage.io.opened.is_empty());
    // An attempt is due: a client that logs in waits for what comes of it.
    stage.wait(100);
    let (fails, _) = (stage.client(), stage.io.opened[0]);
    assert_eq!(stage.client_gets(fails), b"");
    login_fails(&mut stage, *b"08006", "Connection refused");
    assert_eq!(stage.io.closed, [Peer::Client(early), Peer::Client(fails)]);
    assert!(stage.core.is_waiting(first));
    stage.wait(200);
    let comes = stage.client();
    stage.server();
    assert!(stage.client_gets(comes).ends_with(&message(b'Z', b"I")), "it is in");
    assert!(!stage.core.is_waiting(first));
}

#[test]
fn minimum_of_a_pool_makes_room_for_another_and_takes_none() {
    let limit = Limit::new(2);
    let spec = |servers_min| {
        let mut spec = PoolSpec::new(5);
        spec.server_limits = [Limit::new(5), Arc::clone(&limit)].into();
        spec.servers_min = servers_min;
        spec.timeouts.server_idle = Some(Duration::from_secs(4));
        spec
    };
    let mut stage = Stage::new(spec(5));
    stage.core.set_pool(OTHER, Arc::new(spec(0)));
    let keeps = stage.client();
    let kept = [stage.server(), stage.server()];
    stage.wait(1000);
    let other = stage.client_in(OTHER, Vec::new());
    assert_eq!(stage.io.closed, [Peer::Server(kept[0])]);
    let theirs = stage.server();
    assert_eq!((stage.io.opened.len(), limit.taken()), (0, 2));
    query(&mut stage, other);
    answer(&mut stage, theirs);
    // What the minimum lacks is never taken from a pool that has clients.
    for _ in 0..30 {
        stage.wait(100);
    }
    assert!(stage.io.opened.is_empty());
    assert_eq!(stage.io.closed.len(), 1, "{:?}", stage.io.closed);
    for _ in 0..20 {
        stage.wait(100);
    }
    assert!(stage.io.closed.contains(&Peer::Server(theirs)), "it was idle for long");
    assert_eq!(stage.io.opened.len(), 1, "now there is room");
    query(&mut stage, keeps);
}

#[test]
fn minimum_is_shared_by_workers_and_needs_no_client() {
    let mut spec = PoolSpec::new(9);
    spec.servers_min = 5;
    let spec = Arc::new(spec);
    let mut opened = Vec::new();
    for worker in 0..3 {
        let mut stage = Stage::of_worker(worker, &spec);
        stage.core.share_minimum(3);
        stage.core.set_pool(POOL, Arc::clone(&spec));
        assert!(stage.core.deadline() < crate::Time::NEVER || worker > 4);
        stage.core.open_minimum_of(POOL, stage.now, &mut stage.io);
        opened.push(stage.io.opened.len());
        // A server that cannot be reached is tried again without anybody waiting for it.
        login_fails(&mut stage, *b"08006", "Connection refused");
        stage.wait(200);
        assert_eq!(stage.io.opened.len(), opened[usize::from(worker)], "{:?}", WorkerId(worker));
    }
    assert_eq!(opened, [2, 2, 1]);
}
