//! A server that is down for a while: clients that are in wait for it, and new ones are told.

use std::{thread, time::Duration};

use crate::{
    cluster::until,
    support::{Raw, Stage, connect},
};

/// How many clients of a pooler wait for a server.
fn waiting(stage: &Stage) -> u32 {
    let pools = stage.pooler.control().view(false).pools;
    pools.iter().map(|pool| pool.counts.clients_waiting).sum()
}

#[test]
fn established_clients_wait_out_a_stopped_server() {
    let more = "timeouts = { server-login-retry = '1s', query-wait = '10m' }";
    let Some(mut stage) = Stage::set("outage", more) else { return };
    let mut clients: Vec<_> = (0..8).map(|_| Raw::log_in(stage.address())).collect();
    for raw in &mut clients {
        raw.query("select 1");
        raw.until(b'Z');
    }
    stage.server.stop().unwrap();
    let asked: Vec<_> = clients
        .into_iter()
        .enumerate()
        .map(|(number, mut raw)| {
            thread::spawn(move || {
                raw.query(&format!("select 'answer {number}'"));
                let answers = raw.until(b'Z');
                // Its connection goes on: it is the same client as before.
                raw.query("select 'next'");
                raw.until(b'Z');
                answers.into_iter().find(|(tag, _)| *tag == b'D').unwrap().1
            })
        })
        .collect();
    until("all of them wait", || waiting(&stage) == 8);
    // New clients are told at once, whenever they come; those that wait are not disturbed by it.
    let (address, began) = (stage.address(), std::time::Instant::now());
    let uri = format!("host=127.0.0.1 port={} dbname=postgres user=postgres", address.port());
    while began.elapsed() < Duration::from_secs(3) {
        let error = connect(&uri).unwrap_err();
        assert_eq!(error.sqlstate(), Some("08006"), "{error}");
    }
    assert_eq!(waiting(&stage), 8);
    stage.server.start().unwrap();
    for (number, client) in asked.into_iter().enumerate() {
        let row = client.join().unwrap();
        assert!(row.ends_with(format!("answer {number}").as_bytes()), "{}", row.escape_ascii());
    }
    connect(&uri).unwrap();
}

#[test]
fn wait_that_was_in_vain_names_the_last_failure() {
    let Some(mut stage) = Stage::set("waited in vain", "timeouts = { query-wait = '1s' }") else {
        return;
    };
    let mut raw = Raw::log_in(stage.address());
    stage.server.stop().unwrap();
    raw.query("select 1");
    let told = raw.until(b'E').pop().unwrap().1;
    let told = String::from_utf8_lossy(&told).replace('\0', " ");
    assert!(told.contains("query_wait_timeout") && told.contains("refused"), "{told}");
    assert!(raw.is_hung_up_on());
}
