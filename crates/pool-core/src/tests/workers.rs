//! Tests of servers that move between workers, and of servers that are restarting.

use std::{sync::Arc, time::Duration};

use super::{CoreHarness, POOL, message};
use crate::{ClientId, CoreEvent, PoolSpec, ServerFailure, ServerId, WorkerId};

fn two_workers(servers_max: u32) -> (CoreHarness, CoreHarness) {
    let spec = Arc::new(PoolSpec::new(servers_max));
    (CoreHarness::for_worker(0, &spec), CoreHarness::for_worker(1, &spec))
}

fn send_query(harness: &mut CoreHarness, client: ClientId) {
    harness.send_from_client(client, &message(b'Q', b"select 1\0"));
}

fn reply(harness: &mut CoreHarness, server: ServerId) {
    let done = [message(b'C', b"SELECT 1\0"), message(b'Z', b"I")].concat();
    harness.send_from_server(server, &done);
}

/// Delivers a server that one worker has handed over to the other.
fn deliver(from: &mut CoreHarness, to: &mut CoreHarness) -> ServerId {
    let (worker, transfer) = from.io.handed_over.pop().expect("a server was handed over");
    assert_eq!(worker, to.core.engines().pools.worker);
    let id = to.core.adopt_server(transfer, to.now).unwrap();
    to.core.handle(CoreEvent::ServersAvailable(POOL), to.now, &mut to.io);
    id
}

fn advance_all(harnesses: &mut [&mut CoreHarness]) {
    for harness in harnesses {
        harness.now = harness.now + Duration::from_millis(1);
    }
}

#[test]
fn worker_without_server_gets_next_free_one() {
    let (mut here, mut there) = two_workers(1);
    let (first, second) = (here.client(), here.client());
    let server = here.log_in_server();
    let remote_client = there.client();
    assert!(
        !there.sent_to_client(remote_client).is_empty(),
        "the login uses parameters learned by the other worker"
    );

    send_query(&mut here, first);
    advance_all(&mut [&mut here, &mut there]);
    send_query(&mut there, remote_client);
    assert_eq!((there.io.server_requests, there.io.opened.len()), (1, 0));
    here.core.handle(CoreEvent::ServerRequested(POOL, WorkerId(1)), here.now, &mut here.io);
    assert_eq!(here.io.handed_over.len(), 0, "the server is in use");
    advance_all(&mut [&mut here, &mut there]);
    send_query(&mut here, second);

    // The other worker's client has waited longer than the second client here.
    reply(&mut here, server);
    let moved = deliver(&mut here, &mut there);
    assert!(there.sent_to_server(moved).ends_with(b"select 1\0"));
    assert_eq!(here.io.server_requests, 1, "this worker must request a server now");
    there.core.handle(CoreEvent::ServerRequested(POOL, WorkerId(0)), there.now, &mut there.io);
    reply(&mut there, moved);
    let back = deliver(&mut there, &mut here);
    assert!(here.sent_to_server(back).ends_with(b"select 1\0"));
}

#[test]
fn local_client_that_waited_longer_is_served_first() {
    let (mut here, mut there) = two_workers(1);
    let (first, second) = (here.client(), here.client());
    let server = here.log_in_server();
    send_query(&mut here, first);
    send_query(&mut here, second);
    advance_all(&mut [&mut here, &mut there]);
    let remote_client = there.client();
    send_query(&mut there, remote_client);
    here.core.handle(CoreEvent::ServerRequested(POOL, WorkerId(1)), here.now, &mut here.io);
    reply(&mut here, server);
    assert!(here.sent_to_server(server).ends_with(b"select 1\0"));
    assert!(here.io.handed_over.is_empty());
    reply(&mut here, server);
    deliver(&mut here, &mut there);
}

#[test]
fn worker_requests_extra_servers_only_for_starved_clients() {
    let (mut here, _) = two_workers(1);
    let (first, second) = (here.client(), here.client());
    here.log_in_server();
    send_query(&mut here, first);
    send_query(&mut here, second);
    assert_eq!(here.io.server_requests, 0);
    here.now = here.now + Duration::from_millis(150);
    here.core.tick(here.now, &mut here.io);
    assert_eq!(here.io.server_requests, 1);
    here.core.tick(here.now, &mut here.io);
    assert_eq!(here.io.server_requests, 1);
}

#[test]
fn request_for_server_expires_unless_repeated() {
    let (mut here, _) = two_workers(1);
    let client = here.client();
    let server = here.log_in_server();
    send_query(&mut here, client);
    here.core.handle(CoreEvent::ServerRequested(POOL, WorkerId(1)), here.now, &mut here.io);
    here.now = here.now + Duration::from_secs(1);
    reply(&mut here, server);
    assert!(here.io.handed_over.is_empty());
}

fn fail_login(harness: &mut CoreHarness, sqlstate: &[u8; 5]) {
    let id = harness.io.opened.pop().expect("a server was ordered");
    let failure = ServerFailure { sqlstate: *sqlstate, message: "not now".to_owned() };
    harness.core.handle(CoreEvent::ServerFailed(id, failure), harness.now, &mut harness.io);
}

#[test]
fn clients_wait_for_restarting_server() {
    let mut harness = CoreHarness::new(PoolSpec::new(2));
    let client = harness.client();
    // The server shuts down, is unreachable, and starts up.
    for sqlstate in [b"57P03", b"08006", b"57P03"] {
        fail_login(&mut harness, sqlstate);
        assert!(harness.io.closed.is_empty() && harness.io.opened.is_empty());
        harness.now = harness.now + Duration::from_secs(15);
        harness.core.tick(harness.now, &mut harness.io);
    }
    harness.log_in_server();
    assert!(harness.sent_to_client(client).ends_with(b"Z\0\0\0\x05I"));
}

#[test]
fn login_fails_at_once_if_server_is_down() {
    let mut harness = CoreHarness::new(PoolSpec::new(2));
    let client = harness.client();
    fail_login(&mut harness, b"08006");
    let received = harness.sent_to_client(client);
    assert!(received.windows(5).any(|five| five == b"08006"));
    assert_eq!(harness.io.closed.len(), 1);
}

/// Tells `to` that `from` asks for idle servers, and `from` that `to` has replied. Returns the
/// servers that `from` now has more.
fn exchange_idle(from: &mut CoreHarness, to: &mut CoreHarness) -> Vec<ServerId> {
    let servers_max = from.io.idle_requests.pop().expect("idle servers were requested");
    let by = from.core.engines().pools.worker;
    let event = CoreEvent::IdleServersRequested { pool: POOL, by, servers_max };
    to.core.handle(event, to.now, &mut to.io);
    let mut moved = Vec::new();
    while !to.io.handed_over.is_empty() {
        moved.push(deliver(to, from));
    }
    assert_eq!(to.io.idle_confirmations, [by]);
    to.io.idle_confirmations.clear();
    from.core.handle(CoreEvent::IdleServersConfirmed(POOL), from.now, &mut from.io);
    moved
}

/// Two workers of one process with a pool of `servers_max`; the first has opened `idle` servers
/// that are all idle.
fn sharing_workers(servers_max: u32, idle: usize) -> (CoreHarness, CoreHarness) {
    let (mut here, mut there) = two_workers(servers_max);
    here.core.set_worker_count(2);
    there.core.set_worker_count(2);
    let clients: Vec<_> = (0..idle).map(|_| here.client()).collect();
    let mut servers = Vec::new();
    for client in clients {
        send_query(&mut here, client);
        // The first one was opened for the login of the first client.
        if here.io.opened.is_empty() {
            here.io.idle_requests.clear();
            here.now = here.now + Duration::from_millis(150);
            here.core.tick(here.now, &mut here.io);
        }
        servers.push(here.log_in_server());
    }
    servers.into_iter().for_each(|server| reply(&mut here, server));
    assert_eq!(here.core.servers(), idle);
    there.now = here.now;
    (here, there)
}

#[test]
fn idle_servers_of_other_workers_are_used_before_the_last_ones_are_opened() {
    let (mut here, mut there) = sharing_workers(3, 2);
    let (first, second) = (there.client(), there.client());
    send_query(&mut there, first);
    assert!(there.io.opened.is_empty(), "it asks first");
    send_query(&mut there, second);
    assert!(there.io.opened.is_empty() && there.io.idle_requests.len() == 1, "it asks once");
    let moved = exchange_idle(&mut there, &mut here);
    assert_eq!(moved.len(), 1, "as many as clients waited when it asked");
    assert!(there.sent_to_server(moved[0]).ends_with(b"select 1\0"));
    assert_eq!(there.io.opened.len(), 1, "and opens one for the client that still waits");
    let own = there.log_in_server();
    assert!(there.sent_to_server(own).ends_with(b"select 1\0"));
}

#[test]
fn worker_opens_server_if_no_other_has_an_idle_one() {
    let (mut here, mut there) = sharing_workers(3, 1);
    let local = here.client();
    send_query(&mut here, local);
    let remote = there.client();
    send_query(&mut there, remote);
    assert!(exchange_idle(&mut there, &mut here).is_empty(), "its server is in use");
    assert_eq!(there.io.opened.len(), 1);
}

#[test]
fn worker_opens_server_if_another_does_not_reply() {
    let (_here, mut there) = sharing_workers(3, 1);
    let remote = there.client();
    send_query(&mut there, remote);
    assert!(there.io.opened.is_empty());
    there.advance(150);
    assert_eq!(there.io.opened.len(), 1);
}

#[test]
fn pool_far_below_its_size_opens_servers_without_asking() {
    let (_here, mut there) = sharing_workers(40, 2);
    let remote = there.client();
    send_query(&mut there, remote);
    assert_eq!((there.io.opened.len(), there.io.idle_requests.len()), (1, 0));
}

#[test]
fn other_workers_are_asked_for_idle_servers_only_now_and_then() {
    let (mut here, mut there) = sharing_workers(4, 2);
    let remote = [there.client(), there.client(), there.client()];
    send_query(&mut there, remote[0]);
    assert_eq!(exchange_idle(&mut there, &mut here).len(), 1);
    send_query(&mut there, remote[1]);
    assert_eq!(
        (there.io.opened.len(), there.io.idle_requests.len()),
        (1, 0),
        "load fills the pool"
    );
    there.log_in_server();
    there.now = there.now + Duration::from_millis(150);
    send_query(&mut there, remote[2]);
    assert_eq!((there.io.opened.len(), there.io.idle_requests.len()), (0, 1));
    assert_eq!(exchange_idle(&mut there, &mut here).len(), 1);
}

#[test]
fn share_of_the_minimum_is_not_handed_over() {
    let mut spec = PoolSpec::new(3);
    spec.servers_min = 2;
    let spec = Arc::new(spec);
    let (mut here, mut there) =
        (CoreHarness::for_worker(0, &spec), CoreHarness::for_worker(1, &spec));
    for harness in [&mut here, &mut there] {
        harness.core.set_worker_count(2);
        harness.core.handle(CoreEvent::FillMinPool(POOL), harness.now, &mut harness.io);
        harness.log_in_server();
    }
    let remote = [there.client(), there.client()];
    remote.iter().for_each(|client| send_query(&mut there, *client));
    assert!(exchange_idle(&mut there, &mut here).is_empty());
    assert_eq!(there.io.opened.len(), 1);
}
