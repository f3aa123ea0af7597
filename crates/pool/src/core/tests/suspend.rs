//! Standing still: nobody gets a server, nothing is sent, nobody waits too long; then all goes on.

use std::time::Duration;

use super::{Stage, message};
use crate::{Check, PoolSpec, Time};

fn query(sql: &str) -> Vec<u8> {
    message(b'Q', format!("{sql}\0").as_bytes())
}

#[test]
fn nothing_is_begun_while_everything_stands_still() {
    let mut spec = PoolSpec::new(2);
    spec.timeouts.query_wait = Some(Duration::from_secs(1));
    spec.check = Some(Check { query: (*b"").into(), idle: Duration::from_secs(600) });
    let mut stage = Stage::new(spec);
    let first = stage.client();
    let server = stage.server();
    stage.client_gets(first);
    stage.core.suspend(true, stage.now, &mut stage.io);
    assert_eq!(stage.core.deadline(), Time::NEVER);

    // One that comes now is let in, and waits like the other; no server is asked, or opened.
    let second = stage.client();
    assert!(!stage.client_gets(second).is_empty(), "it is greeted");
    stage.client_says(first, &query("select 1"));
    stage.client_says(second, &query("select 2"));
    stage.wait(10_000);
    assert!(stage.core.is_waiting(first) && stage.core.is_waiting(second));
    assert_eq!(stage.server_gets(server), b"");
    assert_eq!((stage.io.opened.len(), stage.client_gets(first).len()), (0, 0));

    stage.core.suspend(false, stage.now, &mut stage.io);
    assert_eq!(stage.server_gets(server), query("select 1"), "the first is served first");
    let other = stage.server();
    assert_eq!(stage.server_gets(other), query("select 2"));
}
