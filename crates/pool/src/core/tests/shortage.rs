//! More clients than servers: waiting, reserves, and pools that share a limit.

use std::{sync::Arc, time::Duration};

use super::{POOL, Stage, message};
use crate::{ClientId, Limit, Peer, PoolId, PoolSpec, Reserve, ServerId};

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
