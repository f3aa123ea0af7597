//! What is known of clients as they come in: for whom a proxy brings them, what servers are told of
//! them, and what they may not say.

use std::io::Write as _;

use howdah_pool::Pooler;

use crate::support::{Raw, Stage, pooler_of};

/// A pooler that believes proxies, where users are told apart by address.
fn proxied(
    stage: &Stage,
    proxy_from: &str,
    more: &str,
    rules: &str,
) -> (Pooler, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let hba = folder.path().join("hba");
    std::fs::write(&hba, rules).unwrap();
    let pooler = pooler_of(&format!(
        "[pool]\nmode = 'transaction'\nworkers = 1\n{more}\n\
         [pool.listen]\nport = 0\nunix-directories = []\nproxy-from = [{proxy_from}]\n\
         [pool.auth]\ntype = 'hba'\nhba-file = '{}'\n\
         [pool.users.postgres]\nsecret = ''\n\
         [pool.databases.postgres]\nhosts = ['127.0.0.1:{}']\n",
        hba.display(),
        stage.server.port()
    ));
    (pooler, folder)
}

/// What the pooler says to a startup packet that comes behind these bytes: whether it lets us in.
fn after(pooler: &Pooler, header: &[u8]) -> Result<Raw, String> {
    let mut raw = Raw::connect(pooler.addresses()[0]);
    raw.0.write_all(header).unwrap();
    raw.start(0, "application_name\0it\0");
    loop {
        match raw.message() {
            Ok((b'E', body)) => return Err(body.escape_ascii().to_string()),
            Ok((b'Z', _)) => return Ok(raw),
            Ok(_) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
}

#[test]
fn a_proxy_that_is_trusted_says_who_comes() {
    let Some(stage) = Stage::set("proxy", "") else { return };
    let rules = "host all all 192.0.2.0/24 trust\nhost all all 127.0.0.1/32 reject\n";
    let name = "application-name = '%a from %h:%p'";
    let (pooler, _folder) = proxied(&stage, "'127.0.0.0/8'", name, rules);
    let v2 = [
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x07\x0a\0\0\x01".as_slice(),
        &4711_u16.to_be_bytes(),
        &6432_u16.to_be_bytes(),
    ]
    .concat();
    for header in [&v2[..], b"PROXY TCP4 192.0.2.7 10.0.0.1 4711 6432\r\n"] {
        let mut client = after(&pooler, header).unwrap();
        client.query("select application_name from pg_stat_activity where pid = pg_backend_pid()");
        let row = client.until(b'Z').into_iter().find(|(tag, _)| *tag == b'D').unwrap().1;
        let text = row.escape_ascii().to_string();
        assert!(text.contains("it from 192.0.2.7:4711"), "{text}");
        let view = pooler.control().view(true);
        assert_eq!(view.clients[0].place.peer, Some("192.0.2.7:4711".parse().unwrap()));
        assert_eq!(view.clients[0].application_name, "it from 192.0.2.7:4711");
        drop(client);
        while !pooler.control().view(true).clients.is_empty() {}
    }
    let other = after(&pooler, b"PROXY TCP4 198.51.100.1 10.0.0.1 4711 6432\r\n").err().unwrap();
    assert!(other.contains("no pg_hba.conf entry for host \\\"198.51.100.1\\\""), "{other}");
    // The proxy's own, and one that says nothing of itself.
    let own = after(&pooler, b"PROXY UNKNOWN\r\n").err().unwrap();
    assert!(own.contains("pg_hba.conf rejects connection for host \\\"127.0.0.1\\\""), "{own}");
    let nothing = after(&pooler, b"").err().unwrap();
    assert!(!nothing.contains("pg_hba.conf"), "it is hung up on without a word: {nothing}");
}

#[test]
fn nobody_else_is_believed() {
    let Some(stage) = Stage::set("no proxy", "") else { return };
    let (pooler, _folder) =
        proxied(&stage, "'192.0.2.0/24', 'unix'", "", "host all all all trust\n");
    assert!(after(&pooler, b"").is_ok());
    let told = after(&pooler, b"PROXY TCP4 192.0.2.7 10.0.0.1 4711 6432\r\n");
    assert!(told.is_err(), "it is no startup packet");
}

#[test]
fn simple_queries_may_be_forbidden() {
    let Some(stage) = Stage::set("simple queries", "simple-queries = false") else { return };
    let mut raw = Raw::log_in(stage.address());
    raw.send(b'P', b"\0select 1\0\0\0");
    raw.send(b'B', b"\0\0\0\0\0\0\0\0");
    raw.send(b'E', b"\0\0\0\0\0");
    raw.send(b'S', b"");
    assert!(raw.until(b'Z').iter().any(|(tag, _)| *tag == b'D'));
    raw.query("select 1; select 2");
    let (tag, body) = raw.message().unwrap();
    assert_eq!(tag, b'E');
    assert!(body.escape_ascii().to_string().contains("simple query protocol is disabled"));
    assert!(raw.is_hung_up_on());
    // The server is none the worse.
    let mut raw = Raw::log_in(stage.address());
    raw.send(b'P', b"\0select 1\0\0\0");
    raw.send(b'S', b"");
    raw.until(b'Z');
}
