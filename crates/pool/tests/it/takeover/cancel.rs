//! Cancel keys remain valid across takeovers.

use std::io::Write as _;

use howdah_lab::wait_until;

use super::TakeoverFixture;
use crate::support::{RawClient, WAIT_TIMEOUT};

/// Logs in, and returns the client with its cancel key.
fn log_in(fixture: &TakeoverFixture, minor: u16) -> (RawClient, Vec<u8>) {
    let mut client = RawClient::connect(fixture.pool.address());
    client.send_startup(minor, "");
    let key = client.read_until(b'Z').into_iter().find(|(tag, _)| *tag == b'K').unwrap().1;
    (client, key)
}

/// Sends a CancelRequest, and waits until its connection is closed without a reply.
fn send_cancel(fixture: &TakeoverFixture, key: &[u8]) {
    let mut request = u32::try_from(8 + key.len()).unwrap().to_be_bytes().to_vec();
    request.extend_from_slice(&80_877_102_u32.to_be_bytes());
    request.extend_from_slice(key);
    let mut raw = RawClient::connect(fixture.pool.address());
    raw.0.write_all(&request).unwrap();
    assert!(raw.is_disconnected());
}

/// Waits until this number of `pg_sleep` statements run on the server.
fn wait_until_running(fixture: &TakeoverFixture, count: usize) {
    let running = "select count(*) from pg_stat_activity where query like 'select pg_sleep%' \
                   and state = 'active'";
    wait_until("running statements", WAIT_TIMEOUT, || {
        fixture.pool.query_server(running) == count.to_string()
    });
}

fn assert_cancelled(client: &mut RawClient) {
    let received = client.read_until(b'E').pop().unwrap().1;
    assert!(memchr::memmem::find(&received, b"C57014\0").is_some(), "{}", received.escape_ascii());
    client.read_until(b'Z');
}

#[test]
fn cancel_reaches_clients_of_both_processes() {
    let Some(mut fixture) = TakeoverFixture::start("cancels") else { return };
    let mut clients = [log_in(&fixture, 0), log_in(&fixture, 2)];
    let mut bystander = log_in(&fixture, 0).0;
    bystander.send_query("select pg_sleep(600)");
    for (client, _) in &mut clients {
        client.send_query("select pg_sleep(600)");
    }
    wait_until_running(&fixture, 3);

    // Their statements run in the old process; cancel requests arrive at the new one.
    let old = fixture.hand_over();
    wait_until("the old process to stop accepting", WAIT_TIMEOUT, || old.was_taken_over());
    for (at, (client, key)) in clients.iter_mut().enumerate() {
        send_cancel(&fixture, key);
        assert_cancelled(client);
        wait_until_running(&fixture, 2 - at);
    }
    // The clients move, and their keys with them.
    wait_until("both clients to move", WAIT_TIMEOUT, || fixture.client_ports().len() == 2);
    for (client, key) in &mut clients {
        client.send_query("select pg_sleep(600)");
        wait_until_running(&fixture, 2);
        send_cancel(&fixture, key);
        assert_cancelled(client);
        wait_until_running(&fixture, 1);
    }
    // An unknown key has no effect.
    send_cancel(&fixture, &[0, 0, 0, 7, 1, 2, 3, 4]);
    wait_until_running(&fixture, 1);
    drop(bystander);
    old.shutdown_waiter().unwrap().wait();
    old.join().unwrap();

    // A second takeover: the keys are from a process that no longer exists.
    fixture.wait_until_reachable();
    clients[0].0.send_query("select pg_sleep(600)");
    wait_until_running(&fixture, 1);
    let old = fixture.hand_over();
    wait_until("the other client to move", WAIT_TIMEOUT, || fixture.client_ports().len() == 1);
    send_cancel(&fixture, &clients[0].1);
    assert_cancelled(&mut clients[0].0);
    old.shutdown_waiter().unwrap().wait();
    old.join().unwrap();
    for (client, key) in &mut clients {
        client.send_query("select pg_sleep(600)");
        wait_until_running(&fixture, 1);
        send_cancel(&fixture, key);
        assert_cancelled(client);
        wait_until_running(&fixture, 0);
    }
}
