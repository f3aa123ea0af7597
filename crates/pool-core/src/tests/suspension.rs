//! Tests of SUSPEND: no client gets a server, nothing is sent, and no timeout expires, until
//! RESUME.

use std::time::Duration;

use super::{CoreHarness, message};
use crate::{CheckQuery, CoreEvent, PoolSpec, Time};

fn query(sql: &str) -> Vec<u8> {
    message(b'Q', format!("{sql}\0").as_bytes())
}

#[test]
fn suspended_core_assigns_no_servers() {
    let mut spec = PoolSpec::new(2);
    spec.timeouts.query_wait = Some(Duration::from_secs(1));
    spec.check = Some(CheckQuery { query: (*b"").into(), idle: Duration::from_secs(600) });
    let mut harness = CoreHarness::new(spec);
    let first = harness.client();
    let server = harness.log_in_server();
    harness.sent_to_client(first);
    harness.core.handle(CoreEvent::Suspend(true), harness.now, &mut harness.io);
    assert_eq!(harness.core.deadline(), Time::NEVER);

    // A new client can log in, and waits like the other one. No server is used or opened.
    let second = harness.client();
    assert!(!harness.sent_to_client(second).is_empty(), "the login completes");
    harness.send_from_client(first, &query("select 1"));
    harness.send_from_client(second, &query("select 2"));
    harness.advance(10_000);
    assert!(harness.core.is_waiting(first) && harness.core.is_waiting(second));
    assert_eq!(harness.sent_to_server(server), b"");
    assert_eq!((harness.io.opened.len(), harness.sent_to_client(first).len()), (0, 0));

    harness.core.handle(CoreEvent::Suspend(false), harness.now, &mut harness.io);
    assert_eq!(harness.sent_to_server(server), query("select 1"), "the first is served first");
    let other = harness.log_in_server();
    assert_eq!(harness.sent_to_server(other), query("select 2"));
}
