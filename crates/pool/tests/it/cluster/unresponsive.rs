//! Servers that stop responding: their connections stay open, but nothing is received.

use howdah_lab::wait_until;

use super::{AUTO_ROLES, ClusterFixture, FIXED_ROLES, RawClient, SELECT_PORT, query_value};
use crate::{
    routing::query_reply,
    support::{WAIT_TIMEOUT, signal_all_processes},
};

/// A server whose processes are stopped by SIGSTOP; resumed on drop.
struct StoppedServer(u32);

impl StoppedServer {
    fn new(fixture: &ClusterFixture, server: usize) -> Self {
        let postmaster = fixture.servers[server].pid().unwrap();
        signal_all_processes(postmaster, "-STOP");
        Self(postmaster)
    }
}

impl Drop for StoppedServer {
    fn drop(&mut self) {
        signal_all_processes(self.0, "-CONT");
    }
}

/// Reads until the connection ends, and returns the last error: SQLSTATE and message.
fn read_final_error(raw: &mut RawClient) -> String {
    let mut words = String::new();
    while let Ok((tag, body)) = raw.read_message() {
        if tag == b'E' {
            words = String::from_utf8_lossy(&body).replace('\0', " ");
        }
    }
    words
}

/// A client in a transaction at this server.
fn begin_at_server(fixture: &ClusterFixture, attributes: &str, server: usize) -> RawClient {
    let port = fixture.servers[server].port().to_string();
    let mut found = None;
    wait_until("a transaction at the server", WAIT_TIMEOUT, || {
        let mut raw = fixture.client(attributes);
        query_reply(&mut raw, "begin");
        found = (query_value(&mut raw, SELECT_PORT) == port).then_some(raw);
        found.is_some()
    });
    found.unwrap()
}

const SHORT_INTERVALS: &str = "check-interval = \"100ms\", check-timeout = \"300ms\", ban = \"1s\"";

#[test]
fn requests_at_unresponsive_standby_are_aborted() {
    let more = format!("cluster = {{ {SHORT_INTERVALS}, check-failure-timeout = \"1s\" }}");
    let Some(fixture) = ClusterFixture::start("hung standby", &FIXED_ROLES, &more) else { return };
    let (mut hung, mut idle) =
        (begin_at_server(&fixture, "standby", 1), begin_at_server(&fixture, "standby", 1));
    let mut other = begin_at_server(&fixture, "standby", 2);
    hung.send_query("select pg_sleep(600)");
    let stopped = StoppedServer::new(&fixture, 1);
    for raw in [&mut hung, &mut idle] {
        let words = read_final_error(raw);
        assert!(words.contains(" C08006 ") && words.contains("failed health checks"), "{words}");
    }
    // Clients of other servers are not affected.
    assert_eq!(query_value(&mut other, SELECT_PORT), fixture.servers[2].port().to_string());
    assert!(query_reply(&mut other, "commit").ends_with("COMMIT, I"));
    assert_eq!(query_value(&mut other, SELECT_PORT), fixture.servers[2].port().to_string());
    drop(stopped);
    drop(begin_at_server(&fixture, "standby", 1));
}

/// It is unknown whether running commits succeeded: clients get an error, and nothing is repeated.
#[test]
fn write_at_unresponsive_primary_is_not_repeated() {
    let more = format!(
        "cluster = {{ {SHORT_INTERVALS}, check-failure-timeout = \"1s\", failover-timeout = \"60s\" }}"
    );
    let Some(fixture) = ClusterFixture::start("hung primary", &AUTO_ROLES[..2], &more) else {
        return;
    };
    let mut first = fixture.client("read-write");
    query_reply(&mut first, "create table kept (number int)");
    let mut hang: Vec<_> = (0..4).map(|_| begin_at_server(&fixture, "read-write", 0)).collect();
    for (number, raw) in hang.iter_mut().enumerate() {
        query_reply(raw, &format!("insert into kept values ({number})"));
    }
    let stopped = StoppedServer::new(&fixture, 0);
    for raw in &mut hang {
        raw.send_query("commit");
    }
    for raw in &mut hang {
        let words = read_final_error(raw);
        assert!(words.contains(" C08006 "), "{words}");
    }
    // Reads continue at the standby; a write waits for the primary.
    let mut waits = fixture.client("read-write");
    waits.send_query("insert into kept values (5)");
    assert_eq!(
        query_value(&mut fixture.client("standby"), SELECT_PORT),
        fixture.servers[1].port().to_string()
    );
    drop(stopped);
    let received = crate::routing::read_reply(&mut waits);
    assert_eq!(received, "INSERT 0 1, I");
    let mine = "select count(*) from pg_stat_activity \
                where backend_type = 'client backend' and state <> 'idle' and pid <> pg_backend_pid()";
    wait_until("the end of interrupted statements", WAIT_TIMEOUT, || {
        fixture.query_server(0, mine) == "0"
    });
    let twice = "select count(*) from (select from kept group by number having count(*) > 1) it";
    assert_eq!(fixture.query_server(0, twice), "0");
    assert_eq!(fixture.query_server(0, "select count(*) from kept where number = 5"), "1");
}

/// With check-failure-timeout 0, statements wait as long as their own timeouts allow.
#[test]
fn zero_check_failure_timeout_waits_for_unresponsive_server() {
    let more = format!("cluster = {{ {SHORT_INTERVALS}, check-failure-timeout = 0 }}");
    let Some(fixture) = ClusterFixture::start("hung and waited for", &FIXED_ROLES, &more) else {
        return;
    };
    let mut raw = begin_at_server(&fixture, "standby", 1);
    let stopped = StoppedServer::new(&fixture, 1);
    raw.send_query("select 'late'");
    let port = fixture.servers[1].port();
    // Wait until its ban has ended and it is banned again.
    let mut first = None;
    wait_until("a second ban", WAIT_TIMEOUT, || {
        let bans = fixture.console("show bans");
        let ban = bans.lines().find(|line| line.contains(&format!("|{port}|")));
        let ends = ban.and_then(|ban| Some(ban.split('|').nth(4)?.to_owned()));
        let before = first.get_or_insert_with(|| ends.clone());
        ends.is_some() && std::mem::replace(before, ends.clone()).is_some_and(|it| Some(it) != ends)
    });
    drop(stopped);
    let row = raw.read_until(b'Z').into_iter().find(|(tag, _)| *tag == b'D').unwrap().1;
    assert!(row.ends_with(b"late"));
}

/// A client without routing parameters.
fn client(fixture: &ClusterFixture) -> RawClient {
    let mut raw = RawClient::connect(fixture.address());
    raw.send_startup_for_database("app", "");
    raw.read_until(b'Z');
    raw
}

/// Long before the server counts as failed, other servers serve its reads; a write waits for its
/// own server.
#[test]
fn reads_at_unresponsive_server_move_to_others() {
    let more = format!(
        "cluster = {{ {SHORT_INTERVALS}, check-failure-timeout = \"1h\", role = \"auto\" }}"
    );
    let Some(fixture) = ClusterFixture::start("hung reads", &AUTO_ROLES, &more) else { return };
    let mut writer = client(&fixture);
    query_reply(&mut writer, "create table kept (number int)");
    // Functions that fail on a standby are never sent to one.
    for call in ["pg_current_wal_lsn()", "pg_walfile_name(pg_current_wal_insert_lsn())"] {
        for _ in 0..6 {
            let received = query_reply(&mut writer, &format!("select {call} is not null"));
            assert!(received.ends_with("SELECT 1, I"), "{received}");
        }
    }
    let mut readers: Vec<_> = (0..12).map(|_| client(&fixture)).collect();
    let ports: Vec<_> = fixture.servers.iter().map(|server| server.port().to_string()).collect();
    wait_until("reads at each server", WAIT_TIMEOUT, || {
        let read: std::collections::BTreeSet<_> =
            readers.iter_mut().map(|raw| query_value(raw, SELECT_PORT)).collect();
        read.len() == 3
    });
    let stopped = StoppedServer::new(&fixture, 1);
    for raw in &mut readers[..6] {
        raw.send_query(SELECT_PORT);
    }
    for raw in &mut readers[6..] {
        raw.send(b'P', format!("\0{SELECT_PORT}\0\0\0").as_bytes());
        raw.send(b'B', b"\0\0\0\0\0\0\0\0");
        raw.send(b'E', b"\0\0\0\0\0");
        raw.send(b'S', b"");
    }
    for raw in &mut readers {
        let answers = raw.read_until(b'Z');
        let row = answers.iter().find(|(tag, _)| *tag == b'D').expect("a row").1.clone();
        let port = String::from_utf8_lossy(&row[6..]).into_owned();
        assert!(port == ports[0] || port == ports[2], "{port}");
    }
    drop(stopped);
    // Unresponsive primary: a read goes to a standby, a write is neither repeated nor aborted.
    let stopped = StoppedServer::new(&fixture, 0);
    writer.send_query("insert into kept values (1)");
    for raw in &mut readers {
        raw.send_query(SELECT_PORT);
    }
    for raw in &mut readers {
        let row = raw.read_until(b'Z').into_iter().find(|(tag, _)| *tag == b'D').expect("a row").1;
        assert_ne!(String::from_utf8_lossy(&row[6..]), ports[0].as_str());
    }
    drop(stopped);
    assert_eq!(crate::routing::read_reply(&mut writer), "INSERT 0 1, I");
    assert_eq!(fixture.query_server(0, "select count(*) from kept"), "1");
}
