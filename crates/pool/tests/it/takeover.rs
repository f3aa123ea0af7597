//! Takeover: a new pooler process continues the client connections of an old one.

mod cancel;
mod notifications;
mod secrets;

use std::{
    collections::BTreeSet,
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    path::Path,
};

use howdah_dataset::Capture;
use howdah_lab::{Cluster, skip_without_postgres, wait_until};
use howdah_pool::Pooler;
use howdah_pool_config::Config;

use crate::{
    certificates::Certificates,
    support::{PoolFixture, RawClient, WAIT_TIMEOUT, checked_stdout, connect},
};

/// The configuration of a pooler at this port; 0 picks a free one.
fn settings(server: &Cluster, folder: &Path, port: u16, more: &str, auth: &str) -> Config {
    let text = format!(
        "[pool]\nmode = 'transaction'\nworkers = 2\n{more}\n[pool.listen]\nport = {port}\n\
         unix-directories = ['{folder}']\ntakeover = '{folder}/takeover'\n{auth}\n\
         [pool.databases.'*']\nhosts = ['127.0.0.1:{}']\n",
        server.port(),
        folder = folder.display(),
    );
    Config::read_str(&text, Path::new("test.toml")).unwrap().config
}

/// Sections that trust `postgres`.
const TRUST: &str = "[pool.auth]\ntype = 'trust'\n[pool.users.postgres]\nsecret = ''";

/// A pooler that is taken over repeatedly.
struct TakeoverFixture {
    pool: PoolFixture,
    folder: tempfile::TempDir,
    /// The `auth` and `users` sections.
    auth: String,
    /// Additional settings of new processes.
    successor_settings: String,
}

impl TakeoverFixture {
    fn start(test: &str) -> Option<Self> {
        Self::start_with(test, "")
    }

    /// Starts with additional settings.
    fn start_with(test: &str, more: &str) -> Option<Self> {
        let server = Cluster::builder().setting("max_connections", "60").start();
        let server = skip_without_postgres(test, server)?;
        Some(Self::start_for_server(server, more, TRUST))
    }

    /// Starts a pooler in front of a server, with these `auth` and `users` sections.
    fn start_for_server(server: Cluster, more: &str, auth: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let pooler = Pooler::start(settings(&server, folder.path(), 0, more, auth)).unwrap();
        let (auth, successor_settings) = (auth.to_owned(), String::new());
        let fixture =
            Self { pool: PoolFixture { server, pooler }, folder, auth, successor_settings };
        fixture.wait_until_reachable();
        fixture
    }

    /// Waits for the takeover socket, which is opened asynchronously.
    fn wait_until_reachable(&self) {
        wait_until("the takeover socket", WAIT_TIMEOUT, || {
            UnixStream::connect(self.folder.path().join("takeover")).is_ok()
        });
    }

    /// Starts a new process, and waits for the end of the old one.
    fn take_over(&mut self) {
        let old = self.hand_over();
        old.shutdown_waiter().unwrap().wait();
        old.join().unwrap();
        self.wait_until_reachable();
    }

    /// Starts a new process, and returns the old one, which runs for as long as it has clients.
    fn hand_over(&mut self) -> Pooler {
        let port = self.pool.address().port();
        let settings = settings(
            &self.pool.server,
            self.folder.path(),
            port,
            &self.successor_settings,
            &self.auth,
        );
        let new = Pooler::take_over(settings, None).unwrap();
        assert_eq!(new.addresses(), self.pool.pooler.addresses());
        std::mem::replace(&mut self.pool.pooler, new)
    }

    /// The clients' ports.
    fn client_ports(&self) -> BTreeSet<u16> {
        let clients = self.pool.pooler.control().snapshot(true).clients;
        clients.iter().filter_map(|client| client.addresses.peer).map(|peer| peer.port()).collect()
    }
}

fn read_value(raw: &mut RawClient) -> String {
    let row = raw.read_until(b'Z').into_iter().find(|(tag, _)| *tag == b'D').unwrap().1;
    String::from_utf8_lossy(&row[6..]).into_owned()
}

fn execute_prepared(raw: &mut RawClient, name: &str) {
    raw.send(b'B', format!("\0{name}\0\0\0\0\0\0\0").as_bytes());
    raw.send(b'E', b"\0\0\0\0\0");
    raw.send(b'S', b"");
}

#[test]
fn new_process_listens_for_taken_over_clients() {
    let Some(mut fixture) = TakeoverFixture::start("listens") else { return };
    let mut raw = RawClient::log_in(fixture.pool.address());
    raw.send_query("listen news; listen \"Other one\"");
    raw.read_until(b'Z');
    fixture.take_over();
    fixture.pool.query_server("notify \"Other one\", 'a'; notify news, 'b'");
    for payload in ["Other one\0a\0", "news\0b\0"] {
        let (tag, body) = raw.read_message().unwrap();
        assert_eq!((tag, &body[4..]), (b'A', payload.as_bytes()));
    }
    raw.send_query("unlisten news");
    raw.read_until(b'Z');
    fixture.pool.query_server("notify news, 'c'; notify \"Other one\", 'd'");
    assert!(raw.read_until(b'A').pop().unwrap().1.ends_with(b"d\0"));
}

/// pgbench runs through ten restarts, in both protocols: no transaction fails, and each client
/// keeps its socket.
#[test]
fn ten_restarts_under_load_fail_no_transaction() {
    let Some(mut fixture) = TakeoverFixture::start("restarts") else { return };
    checked_stdout(fixture.pool.run_program("pgbench", &["-i", "-q", "-s", "1"]));
    let start = |protocol: &str| {
        let mut pgbench = fixture.pool.command("pgbench");
        pgbench.args(["-n", "-c", "8", "-M", protocol, "-T", "12", "postgres"]);
        pgbench.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        pgbench.spawn().unwrap()
    };
    let runs = ["simple", "prepared"].map(start);
    wait_until("all clients to connect", WAIT_TIMEOUT, || fixture.client_ports().len() == 16);
    let ports = fixture.client_ports();
    for round in 0..10 {
        fixture.take_over();
        assert_eq!(fixture.client_ports(), ports, "after restart {round}");
    }
    for run in runs {
        let output = run.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        let report = checked_stdout(output);
        let number = |line: &str| {
            let line = report.lines().find(|it| it.contains(line)).unwrap();
            line.rsplit(' ').next().unwrap().trim_end_matches("(0.000%)").to_owned()
        };
        assert!(report.contains("number of failed transactions: 0 (0.000%)"), "{report}{errors}");
        assert!(!errors.contains("abort") && !errors.contains("ERROR"), "{errors}");
        println!("{} transactions, none failed", number("actually processed"));
    }
}

/// Routing settings of clients and prepared commands are handed over.
#[test]
fn client_keeps_role_and_shard() {
    // Two databases of one server as shards.
    let parts = "[pool.databases.parts]\ncluster = { role = 'auto' }\n\
                 sharding = { key = ['bigint'] }\n";
    let shard = |dbname: &str| {
        format!(
            "[[pool.databases.parts.shards]]\ndbname = '{dbname}'\n\
             servers = [{{ host = '127.0.0.1', port = PORT }}]\n"
        )
    };
    let parts = format!("{parts}{}{}", shard("template1"), shard("postgres"));
    let Some(mut fixture) = TakeoverFixture::start("routing") else { return };
    fixture.successor_settings = parts.replace("PORT", &fixture.pool.server.port().to_string());
    fixture.take_over();
    let log_in = |more: &str| {
        let mut raw = RawClient::connect(fixture.pool.address());
        raw.send_startup_for_database("parts", more);
        raw.read_until(b'Z');
        raw
    };
    let (mut plain, mut configured) = (log_in(""), log_in("target_session_attrs\0read-write\0"));
    configured.send(b'P', b"role\0show server role\0\0\0");
    configured.send(b'S', b"");
    configured.read_until(b'Z');
    for command in ["set shard to 1", "set primary reads to off", "set read your writes to on"] {
        configured.send_query(command);
        configured.read_until(b'Z');
    }
    fixture.take_over();
    let query_value = |raw: &mut RawClient, sql: &str| {
        raw.send_query(sql);
        read_value(raw)
    };
    assert_eq!(query_value(&mut plain, "show server role"), "auto");
    assert_eq!(query_value(&mut plain, "show shard"), "unset");
    execute_prepared(&mut configured, "role");
    assert_eq!(read_value(&mut configured), "primary");
    assert_eq!(query_value(&mut configured, "show primary reads"), "off");
    assert_eq!(query_value(&mut configured, "show read your writes"), "on");
    assert_eq!(query_value(&mut configured, "show shard"), "1");
    assert_eq!(query_value(&mut configured, "select current_database()"), "postgres");
    configured.send_query("set shard to 0");
    configured.read_until(b'Z');
    configured.send_query("set server role to 'any'");
    configured.read_until(b'Z');
    fixture.take_over();
    assert_eq!(query_value(&mut configured, "show server role"), "any");
    assert_eq!(query_value(&mut configured, "select current_database()"), "template1");
}

#[test]
fn client_keeps_session_state() {
    let Some(mut fixture) = TakeoverFixture::start("state") else { return };
    let address = fixture.pool.address();
    let mut raw = RawClient::connect(address);
    raw.send_startup(0, "application_name\0mover\0");
    let greeting = raw.read_until(b'Z');
    let key = greeting.into_iter().find(|(tag, _)| *tag == b'K').unwrap().1;
    raw.send_query("set datestyle = 'ISO, MDY'");
    raw.read_until(b'Z');
    raw.send(b'P', b"second\0select to_char(date '01/02/2026', 'YYYY-MM-DD')\0\0\0");
    raw.send(b'S', b"");
    raw.send_query("set datestyle = german");
    raw.read_until(b'Z');
    raw.read_until(b'Z');
    raw.send(b'P', b"mine\0select current_setting('application_name')\0\0\0");
    raw.send(b'P', b"\0select 'unnamed'\0\0\0");
    raw.send(b'S', b"");
    raw.read_until(b'Z');
    let mut busy = RawClient::log_in(address);
    busy.send_query("begin; create table kept (a int)");
    busy.read_until(b'Z');
    let mut unix =
        UnixStream::connect(fixture.folder.path().join(format!(".s.PGSQL.{}", address.port())));
    let unix = unix.as_mut().unwrap();
    let old = fixture.hand_over();
    wait_until("the client to move", WAIT_TIMEOUT, || fixture.client_ports().len() == 1);
    execute_prepared(&mut raw, "mine");
    assert_eq!(read_value(&mut raw), "mover");
    execute_prepared(&mut raw, "");
    assert_eq!(read_value(&mut raw), "unnamed");
    execute_prepared(&mut raw, "second");
    assert_eq!(read_value(&mut raw), "2026-01-02", "parsed before the date style was changed");
    raw.send_query("select date '2026-11-22'");
    assert_eq!(read_value(&mut raw), "22.11.2026");
    // Its cancel key is still valid.
    raw.send_query("select pg_sleep(600)");
    let cancel = |key: &[u8]| {
        let mut request = vec![0, 0, 0, 16, 4, 210, 22, 46];
        request.extend_from_slice(key);
        RawClient::connect(address).0.write_all(&request).unwrap();
    };
    wait_until("the statement to run", WAIT_TIMEOUT, || {
        let sql = "select count(*) from pg_stat_activity where query like '%pg_sleep(600)%' and \
                   pid <> pg_backend_pid()";
        fixture.pool.query_server(sql) == "1"
    });
    cancel(&key);
    let received = raw.read_until(b'Z');
    assert!(received.iter().any(|(_, body)| memchr::memmem::find(body, b"C57014\0").is_some()));
    // The client in a transaction stays with the old process, and moves at its end.
    busy.send_query("insert into kept values (1)");
    busy.read_until(b'Z');
    assert_eq!(fixture.client_ports().len(), 1);
    assert!(!old.is_finished());
    busy.send_query("commit");
    busy.read_until(b'Z');
    wait_until("the other client to move", WAIT_TIMEOUT, || fixture.client_ports().len() == 2);
    busy.send_query("select count(*) from kept");
    assert_eq!(read_value(&mut busy), "1");
    // A connection without a startup packet is served by one of the processes.
    unix.write_all(b"\0\0\0\x08\x04\xd2\x16\x2f").unwrap();
    let mut no = [0];
    unix.read_exact(&mut no).unwrap();
    assert_eq!(no, *b"N");
    let _ = unix.shutdown(std::net::Shutdown::Both);
    old.shutdown_waiter().unwrap().wait();
    old.join().unwrap();
    fixture.take_over();
    execute_prepared(&mut raw, "mine");
    assert_eq!(read_value(&mut raw), "mover");
    fixture.pool.psql(&["select 1"]);
}

/// A capture ends with its process; each event of a client is in one of the two captures.
#[test]
fn captures_of_both_processes_are_complete() {
    let captures = tempfile::tempdir().unwrap();
    let more = format!("capture = {{ path = '{}', start = true }}", captures.path().display());
    let Some(mut fixture) = TakeoverFixture::start_with("captured", &more) else { return };
    fixture.successor_settings = more;
    let mut raw = RawClient::log_in(fixture.pool.address());
    raw.send(b'P', b"mine\0select 'prepared'\0\0\0");
    raw.send(b'S', b"");
    raw.read_until(b'Z');
    raw.send_query("set datestyle = german");
    raw.read_until(b'Z');
    let first = fixture.pool.pooler.control().capture().unwrap().path;
    fixture.take_over();
    execute_prepared(&mut raw, "mine");
    assert_eq!(read_value(&mut raw), "prepared");
    let second = fixture.pool.pooler.control().stop_capture().unwrap().path;
    let event_texts = |path: &Path| {
        let capture = Capture::open(path).unwrap();
        assert!(capture.manifest().finished);
        let events: Vec<_> = capture.events().collect::<Result<_, _>>().unwrap();
        events
            .iter()
            .map(|event| {
                let sql = event.action.sql().map(|sql| sql.to_str_lossy().into_owned());
                format!("{} {}", event.action.kind(), sql.unwrap_or_default())
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(
        event_texts(&first),
        ["connect ", "parse select 'prepared'", "simple set datestyle = german", "disconnect "]
    );
    assert_eq!(event_texts(&second), ["connect ", "execute select 'prepared'"]);
}

/// A frame of the takeover protocol: kind, length, body.
fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&[kind][..], &length, body].concat()
}

#[test]
fn old_process_continues_if_new_one_dies() {
    let Some(mut fixture) = TakeoverFixture::start("dies") else { return };
    let mut clients: Vec<_> = (0..5).map(|_| RawClient::log_in(fixture.pool.address())).collect();
    let ports = fixture.client_ports();
    assert_eq!(ports.len(), 5);
    let hello = [&b"howdah pool takeover"[..], &[0, 6]].concat();
    let fail_after = |sent: &[u8], reply_bytes: usize| {
        let mut socket = UnixStream::connect(fixture.folder.path().join("takeover")).unwrap();
        socket.write_all(sent).unwrap();
        // The kernel closes descriptors that arrive with the reply.
        let mut read = vec![0; reply_bytes];
        socket.read_exact(&mut read).unwrap();
        read
    };
    let reply = fail_after(&frame(1, b"something else"), 5);
    assert_eq!(reply[0], 9, "the unknown protocol is refused");
    fixture.wait_until_reachable();
    fail_after(&frame(1, &hello), 10);
    fixture.wait_until_reachable();
    // Two TCP listeners, one unix socket, the end of the list, and the first client.
    let ready = [frame(1, &hello), frame(4, b"")].concat();
    fail_after(&ready, 60);
    fixture.wait_until_reachable();
    wait_until("all clients to return", WAIT_TIMEOUT, || fixture.client_ports() == ports);
    for client in &mut clients {
        client.send_query("select 'served'");
        assert_eq!(read_value(client), "served");
    }
    fixture.pool.psql(&["select 1"]);
    // A regular takeover still works.
    fixture.take_over();
    assert_eq!(fixture.client_ports(), ports);
    for client in &mut clients {
        client.send_query("select 'served'");
        assert_eq!(read_value(client), "served");
    }
}

#[test]
fn client_in_transaction_is_disconnected_at_deadline() {
    let more = "timeouts = { shutdown = '200ms' }";
    let Some(mut fixture) = TakeoverFixture::start_with("deadline", more) else { return };
    let (mut idle, mut busy) =
        (RawClient::log_in(fixture.pool.address()), RawClient::log_in(fixture.pool.address()));
    busy.send_query("begin");
    busy.read_until(b'Z');
    let old = fixture.hand_over();
    let received = busy.read_until(b'E').pop().unwrap().1;
    assert!(memchr::memmem::find(&received, b"C57P01\0").is_some(), "{}", received.escape_ascii());
    assert!(busy.is_disconnected());
    old.shutdown_waiter().unwrap().wait();
    old.join().unwrap();
    idle.send_query("select 'served'");
    assert_eq!(read_value(&mut idle), "served");
}

#[test]
fn tls_client_stays_with_old_process() {
    let Some(certificates) = Certificates::new("tls stays") else { return };
    certificates.self_signed("own", "localhost", &[]);
    let path = |file: &str| certificates.path(file).display().to_string();
    let (certificate, key) = (path("own.crt"), path("own.key"));
    let client = format!("mode = 'allow', certificate = '{certificate}', key = '{key}'");
    let more = format!("tls = {{ client = {{ {client} }} }}");
    let Some(mut fixture) = TakeoverFixture::start_with("tls stays", &more) else { return };
    let port = fixture.pool.address().port();
    let words = format!("host=127.0.0.1 port={port} dbname=postgres user=postgres sslmode=require");
    let mut encrypted = connect(&words).unwrap();
    let mut plain = RawClient::log_in(fixture.pool.address());
    let old = fixture.hand_over();
    wait_until("the other client to move", WAIT_TIMEOUT, || fixture.client_ports().len() == 1);
    for _ in 0..3 {
        assert_eq!(encrypted.one_value("select 'served'").unwrap().as_deref(), Some("served"));
    }
    assert!(!old.is_finished());
    encrypted.close();
    old.shutdown_waiter().unwrap().wait();
    old.join().unwrap();
    plain.send_query("select 'served'");
    assert_eq!(read_value(&mut plain), "served");
}

#[test]
fn takeover_without_old_process_fails() {
    let Some(fixture) = TakeoverFixture::start("no old process") else { return };
    let elsewhere = tempfile::tempdir().unwrap();
    let config = settings(&fixture.pool.server, elsewhere.path(), 0, "", TRUST);
    let error = Pooler::take_over(config, None).unwrap_err().to_string();
    assert!(error.starts_with("cannot take over: ") && error.contains("takeover: "), "{error}");
}
