//! A server that is down for a while: established clients wait, new ones get an error.

use std::{thread, time::Duration};

use howdah_lab::wait_until;

use crate::support::{PoolFixture, RawClient, WAIT_TIMEOUT, connect};

/// The number of clients that wait for a server connection.
fn waiting_clients(fixture: &PoolFixture) -> u32 {
    let pools = fixture.pooler.control().snapshot(false).pools;
    pools.iter().map(|pool| pool.counts.clients_waiting).sum()
}

#[test]
fn established_clients_wait_out_a_stopped_server() {
    let more = "timeouts = { server-login-retry = '1s', query-wait = '10m' }";
    let Some(mut fixture) = PoolFixture::start("outage", more) else { return };
    let mut clients: Vec<_> = (0..8).map(|_| RawClient::log_in(fixture.address())).collect();
    for raw in &mut clients {
        raw.send_query("select 1");
        raw.read_until(b'Z');
    }
    fixture.server.stop().unwrap();
    let waiting: Vec<_> = clients
        .into_iter()
        .enumerate()
        .map(|(number, mut raw)| {
            thread::spawn(move || {
                raw.send_query(&format!("select 'answer {number}'"));
                let answers = raw.read_until(b'Z');
                // The client's connection is still usable.
                raw.send_query("select 'next'");
                raw.read_until(b'Z');
                answers.into_iter().find(|(tag, _)| *tag == b'D').unwrap().1
            })
        })
        .collect();
    wait_until("all clients to wait", WAIT_TIMEOUT, || waiting_clients(&fixture) == 8);
    // New clients get an error at once, which does not affect those that wait.
    let address = fixture.address();
    let uri = format!("host=127.0.0.1 port={} dbname=postgres user=postgres", address.port());
    // Each worker refuses them once a login of its own has failed.
    wait_until("new clients to be refused", WAIT_TIMEOUT, || {
        (0..16).all(|_| connect(&uri).is_err())
    });
    let began = std::time::Instant::now();
    while began.elapsed() < Duration::from_secs(3) {
        let error = connect(&uri).unwrap_err();
        assert_eq!(error.sqlstate(), Some("08006"), "{error}");
    }
    assert_eq!(waiting_clients(&fixture), 8);
    fixture.server.start().unwrap();
    for (number, client) in waiting.into_iter().enumerate() {
        let row = client.join().unwrap();
        assert!(row.ends_with(format!("answer {number}").as_bytes()), "{}", row.escape_ascii());
    }
    connect(&uri).unwrap();
}

#[test]
fn wait_timeout_error_names_last_failure() {
    let Some(mut fixture) = PoolFixture::start("wait timeout", "timeouts = { query-wait = '1s' }")
    else {
        return;
    };
    let mut raw = RawClient::log_in(fixture.address());
    fixture.server.stop().unwrap();
    raw.send_query("select 1");
    let received = raw.read_until(b'E').pop().unwrap().1;
    let received = String::from_utf8_lossy(&received).replace('\0', " ");
    assert!(received.contains("query_wait_timeout") && received.contains("refused"), "{received}");
    assert!(raw.is_disconnected());
}
