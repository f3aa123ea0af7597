//! Servers that go from worker to worker, and servers that nobody gets for now.

use std::{sync::Arc, time::Duration};

use super::{POOL, Stage, message};
use crate::{ClientId, PoolSpec, ServerFailure, ServerId, WorkerId};

fn two_workers(servers_max: u32) -> (Stage, Stage) {
    let spec = Arc::new(PoolSpec::new(servers_max));
    (Stage::of_worker(0, &spec), Stage::of_worker(1, &spec))
}

fn asks(stage: &mut Stage, client: ClientId) {
    stage.client_says(client, &message(b'Q', b"select 1\0"));
}

fn answers(stage: &mut Stage, server: ServerId) {
    let done = [message(b'C', b"SELECT 1\0"), message(b'Z', b"I")].concat();
    stage.server_says(server, &done);
}

/// Delivers what one ordered to be handed to the other.
fn deliver(from: &mut Stage, to: &mut Stage) -> ServerId {
    let (worker, transfer) = from.io.handed_over.pop().expect("a server was handed over");
    assert_eq!(worker, to.core.worker);
    let id = to.core.adopt_server(transfer, to.now).unwrap();
    to.core.serve_waiting(POOL, to.now, &mut to.io);
    id
}

fn later(stages: &mut [&mut Stage]) {
    for stage in stages {
        stage.now = stage.now + Duration::from_millis(1);
    }
}

#[test]
fn a_worker_without_a_server_gets_the_next_one_that_is_free_elsewhere() {
    let (mut here, mut there) = two_workers(1);
    let (first, second) = (here.client(), here.client());
    let server = here.server();
    let stranger = there.client();
    assert!(!there.client_gets(stranger).is_empty(), "greeted by what the other worker learned");

    asks(&mut here, first);
    later(&mut [&mut here, &mut there]);
    asks(&mut there, stranger);
    assert_eq!((there.io.wants, there.io.opened.len()), (1, 0));
    here.core.server_wanted(POOL, WorkerId(1), here.now, &mut here.io);
    assert_eq!(here.io.handed_over.len(), 0, "it is in use");
    later(&mut [&mut here, &mut there]);
    asks(&mut here, second);

    // The stranger has waited longer than the second here.
    answers(&mut here, server);
    let moved = deliver(&mut here, &mut there);
    assert!(there.server_gets(moved).ends_with(b"select 1\0"));
    assert_eq!(here.io.wants, 1, "whoever waits here has to ask now");
    there.core.server_wanted(POOL, WorkerId(0), there.now, &mut there.io);
    answers(&mut there, moved);
    let back = deliver(&mut there, &mut here);
    assert!(here.server_gets(back).ends_with(b"select 1\0"));
}

#[test]
fn who_waits_longer_where_the_server_is_comes_first() {
    let (mut here, mut there) = two_workers(1);
    let (first, second) = (here.client(), here.client());
    let server = here.server();
    asks(&mut here, first);
    asks(&mut here, second);
    later(&mut [&mut here, &mut there]);
    let stranger = there.client();
    asks(&mut there, stranger);
    here.core.server_wanted(POOL, WorkerId(1), here.now, &mut here.io);
    answers(&mut here, server);
    assert!(here.server_gets(server).ends_with(b"select 1\0"));
    assert!(here.io.handed_over.is_empty());
    answers(&mut here, server);
    deliver(&mut here, &mut there);
}

#[test]
fn a_worker_that_has_servers_asks_only_for_those_who_wait_long() {
    let (mut here, _) = two_workers(1);
    let (first, second) = (here.client(), here.client());
    here.server();
    asks(&mut here, first);
    asks(&mut here, second);
    assert_eq!(here.io.wants, 0);
    here.now = here.now + Duration::from_millis(150);
    here.core.tick(here.now, &mut here.io);
    assert_eq!(here.io.wants, 1);
    here.core.tick(here.now, &mut here.io);
    assert_eq!(here.io.wants, 1);
}

#[test]
fn a_wish_that_is_not_repeated_is_forgotten() {
    let (mut here, _) = two_workers(1);
    let client = here.client();
    let server = here.server();
    asks(&mut here, client);
    here.core.server_wanted(POOL, WorkerId(1), here.now, &mut here.io);
    here.now = here.now + Duration::from_secs(1);
    answers(&mut here, server);
    assert!(here.io.handed_over.is_empty());
}

fn fails(stage: &mut Stage, sqlstate: &[u8; 5]) {
    let id = stage.io.opened.pop().expect("a server was ordered");
    let failure = ServerFailure { sqlstate: *sqlstate, message: "not now".to_owned() };
    stage.core.server_failed(id, failure, stage.now, &mut stage.io);
}

#[test]
fn a_server_that_is_restarted_is_waited_for() {
    let mut stage = Stage::new(PoolSpec::new(2));
    let client = stage.client();
    // It shuts down; it is gone; it starts.
    for sqlstate in [b"57P03", b"08006", b"57P03"] {
        fails(&mut stage, sqlstate);
        assert!(stage.io.closed.is_empty() && stage.io.opened.is_empty());
        stage.now = stage.now + Duration::from_secs(15);
        stage.core.tick(stage.now, &mut stage.io);
    }
    stage.server();
    assert!(stage.client_gets(client).ends_with(b"Z\0\0\0\x05I"));
}

#[test]
fn a_server_that_is_not_there_is_not_waited_for() {
    let mut stage = Stage::new(PoolSpec::new(2));
    let client = stage.client();
    fails(&mut stage, b"08006");
    let told = stage.client_gets(client);
    assert!(told.windows(5).any(|five| five == b"08006"));
    assert_eq!(stage.io.closed.len(), 1);
}
