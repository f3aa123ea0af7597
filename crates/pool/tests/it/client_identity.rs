//! The address and name of clients: the PROXY protocol and `application-name`; also
//! `simple-queries`.

use std::io::Write as _;

use howdah_lab::wait_until;
use howdah_pool::Pooler;

use crate::support::{PoolFixture, RawClient, WAIT_TIMEOUT, start_pooler_with};

/// A pooler with trusted proxies and rules that depend on the client's address.
fn start_pooler(
    fixture: &PoolFixture,
    proxy_from: &str,
    more: &str,
    rules: &str,
) -> (Pooler, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let hba = folder.path().join("hba");
    std::fs::write(&hba, rules).unwrap();
    let pooler = start_pooler_with(&format!(
        "[pool]\nmode = 'transaction'\nworkers = 1\n{more}\n\
         [pool.listen]\nport = 0\nunix-directories = []\nproxy-from = [{proxy_from}]\n\
         [pool.auth]\ntype = 'hba'\nhba-file = '{}'\n\
         [pool.users.postgres]\nsecret = ''\n\
         [pool.databases.postgres]\nhosts = ['127.0.0.1:{}']\n",
        hba.display(),
        fixture.server.port()
    ));
    (pooler, folder)
}

/// Sends these bytes and a startup packet, and returns the client if the login succeeds.
fn log_in_after(pooler: &Pooler, header: &[u8]) -> Result<RawClient, String> {
    let mut raw = RawClient::connect(pooler.addresses()[0]);
    raw.0.write_all(header).unwrap();
    raw.send_startup(0, "application_name\0it\0");
    loop {
        match raw.read_message() {
            Ok((b'E', body)) => return Err(body.escape_ascii().to_string()),
            Ok((b'Z', _)) => return Ok(raw),
            Ok(_) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
}

#[test]
fn trusted_proxy_sets_client_address() {
    let Some(fixture) = PoolFixture::start("proxy", "") else { return };
    let rules = "host all all 192.0.2.0/24 trust\nhost all all 127.0.0.1/32 reject\n";
    let name = "application-name = '%a from %h:%p'";
    let (pooler, _folder) = start_pooler(&fixture, "'127.0.0.0/8'", name, rules);
    let v2 = [
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x07\x0a\0\0\x01".as_slice(),
        &4711_u16.to_be_bytes(),
        &6432_u16.to_be_bytes(),
    ]
    .concat();
    for header in [&v2[..], b"PROXY TCP4 192.0.2.7 10.0.0.1 4711 6432\r\n"] {
        let mut client = log_in_after(&pooler, header).unwrap();
        client.send_query(
            "select application_name from pg_stat_activity where pid = pg_backend_pid()",
        );
        let row = client.read_until(b'Z').into_iter().find(|(tag, _)| *tag == b'D').unwrap().1;
        let text = row.escape_ascii().to_string();
        assert!(text.contains("it from 192.0.2.7:4711"), "{text}");
        let view = pooler.control().snapshot(true);
        assert_eq!(view.clients[0].addresses.peer, Some("192.0.2.7:4711".parse().unwrap()));
        assert_eq!(view.clients[0].application_name, "it from 192.0.2.7:4711");
        drop(client);
        wait_until("the client to disconnect", WAIT_TIMEOUT, || {
            pooler.control().snapshot(true).clients.is_empty()
        });
    }
    let other =
        log_in_after(&pooler, b"PROXY TCP4 198.51.100.1 10.0.0.1 4711 6432\r\n").err().unwrap();
    assert!(other.contains("no pg_hba.conf entry for host \\\"198.51.100.1\\\""), "{other}");
    // A connection of the proxy itself, and one without a header.
    let own = log_in_after(&pooler, b"PROXY UNKNOWN\r\n").err().unwrap();
    assert!(own.contains("pg_hba.conf rejects connection for host \\\"127.0.0.1\\\""), "{own}");
    let nothing = log_in_after(&pooler, b"").err().unwrap();
    assert!(!nothing.contains("pg_hba.conf"), "it is disconnected without an error: {nothing}");
}

#[test]
fn header_of_untrusted_peer_is_refused() {
    let Some(fixture) = PoolFixture::start("no proxy", "") else { return };
    let (pooler, _folder) =
        start_pooler(&fixture, "'192.0.2.0/24', 'unix'", "", "host all all all trust\n");
    assert!(log_in_after(&pooler, b"").is_ok());
    let received = log_in_after(&pooler, b"PROXY TCP4 192.0.2.7 10.0.0.1 4711 6432\r\n");
    assert!(received.is_err(), "a header is not a startup packet");
}

#[test]
fn simple_queries_can_be_disabled() {
    let Some(fixture) = PoolFixture::start("simple queries", "simple-queries = false") else {
        return;
    };
    let mut raw = RawClient::log_in(fixture.address());
    raw.send(b'P', b"\0select 1\0\0\0");
    raw.send(b'B', b"\0\0\0\0\0\0\0\0");
    raw.send(b'E', b"\0\0\0\0\0");
    raw.send(b'S', b"");
    assert!(raw.read_until(b'Z').iter().any(|(tag, _)| *tag == b'D'));
    raw.send_query("select 1; select 2");
    let (tag, body) = raw.read_message().unwrap();
    assert_eq!(tag, b'E');
    assert!(body.escape_ascii().to_string().contains("simple query protocol is disabled"));
    assert!(raw.is_disconnected());
    // The server connection is still usable.
    let mut raw = RawClient::log_in(fixture.address());
    raw.send(b'P', b"\0select 1\0\0\0");
    raw.send(b'S', b"");
    raw.read_until(b'Z');
}
