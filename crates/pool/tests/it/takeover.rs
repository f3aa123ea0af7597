//! A new pooler in the place of an old one, with its clients' connections.

mod cancel;
mod notifications;
mod secrets;

use std::{
    collections::BTreeSet,
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use howdah_dataset::Capture;
use howdah_lab::{Cluster, or_say_why_not};
use howdah_pool::{Pooler, config::Config};

use crate::{
    certificates::Certificates,
    support::{Raw, Stage, connect, said},
};

/// Settings of a pooler at this port; 0 takes one.
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

/// Sections that let `postgres` in without a password.
const TRUST: &str = "[pool.auth]\ntype = 'trust'\n[pool.users.postgres]\nsecret = ''";

/// A pooler that is taken over again and again.
struct Line {
    stage: Stage,
    folder: tempfile::TempDir,
    /// Sections that say who gets in.
    auth: String,
    /// More settings of who takes over.
    heirs: String,
}

impl Line {
    fn start(test: &str) -> Option<Self> {
        Self::start_with(test, "")
    }

    /// The same with more settings.
    fn start_with(test: &str, more: &str) -> Option<Self> {
        let server = Cluster::builder().setting("max_connections", "60").start();
        let server = or_say_why_not(test, server)?;
        Some(Self::start_before(server, more, TRUST))
    }

    /// Starts one before a server, with sections that say who gets in.
    fn start_before(server: Cluster, more: &str, auth: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let pooler = Pooler::start(settings(&server, folder.path(), 0, more, auth)).unwrap();
        let (auth, heirs) = (auth.to_owned(), String::new());
        let line = Self { stage: Stage { server, pooler }, folder, auth, heirs };
        line.until_reachable();
        line
    }

    /// The thread that waits for a new process begins on its own.
    fn until_reachable(&self) {
        until("somebody can knock", || {
            UnixStream::connect(self.folder.path().join("takeover")).is_ok()
        });
    }

    /// Starts another, and waits for the end of the one before.
    fn take_over(&mut self) {
        let old = self.hand_over();
        old.end().unwrap().wait();
        old.join().unwrap();
        self.until_reachable();
    }

    /// Starts another; gives the one before, which goes on for as long as it has clients.
    fn hand_over(&mut self) -> Pooler {
        let port = self.stage.address().port();
        let settings =
            settings(&self.stage.server, self.folder.path(), port, &self.heirs, &self.auth);
        let new = Pooler::take_over(settings, None).unwrap();
        assert_eq!(new.addresses(), self.stage.pooler.addresses());
        std::mem::replace(&mut self.stage.pooler, new)
    }

    /// The ports that clients come from.
    fn ports(&self) -> BTreeSet<u16> {
        let clients = self.stage.pooler.control().view(true).clients;
        clients.iter().filter_map(|client| client.place.peer).map(|peer| peer.port()).collect()
    }
}

/// Waits until something is so.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: not within a minute");
    }
}

fn row(raw: &mut Raw) -> String {
    let row = raw.until(b'Z').into_iter().find(|(tag, _)| *tag == b'D').unwrap().1;
    String::from_utf8_lossy(&row[6..]).into_owned()
}

fn execute(raw: &mut Raw, name: &str) {
    raw.send(b'B', format!("\0{name}\0\0\0\0\0\0\0").as_bytes());
    raw.send(b'E', b"\0\0\0\0\0");
    raw.send(b'S', b"");
}

#[test]
fn a_client_that_listens_is_listened_for_by_the_new_process() {
    let Some(mut line) = Line::start("listens") else { return };
    let mut raw = Raw::log_in(line.stage.address());
    raw.query("listen news; listen \"Other one\"");
    raw.until(b'Z');
    line.take_over();
    line.stage.direct("notify \"Other one\", 'a'; notify news, 'b'");
    for payload in ["Other one\0a\0", "news\0b\0"] {
        let (tag, body) = raw.message().unwrap();
        assert_eq!((tag, &body[4..]), (b'A', payload.as_bytes()));
    }
    raw.query("unlisten news");
    raw.until(b'Z');
    line.stage.direct("notify news, 'c'; notify \"Other one\", 'd'");
    assert!(raw.until(b'A').pop().unwrap().1.ends_with(b"d\0"));
}

/// Real clients at work through ten restarts, by both protocols: no transaction fails, and each keeps its
/// socket.
#[test]
fn ten_restarts_under_load_fail_no_transaction() {
    let Some(mut line) = Line::start("restarts") else { return };
    said(line.stage.run("pgbench", &["-i", "-q", "-s", "1"]));
    let start = |protocol: &str| {
        let mut pgbench = line.stage.command("pgbench");
        pgbench.args(["-n", "-c", "8", "-M", protocol, "-T", "12", "postgres"]);
        pgbench.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        pgbench.spawn().unwrap()
    };
    let runs = ["simple", "prepared"].map(start);
    until("all are there", || line.ports().len() == 16);
    let ports = line.ports();
    for round in 0..10 {
        line.take_over();
        assert_eq!(line.ports(), ports, "after restart {round}");
    }
    for run in runs {
        let output = run.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        let report = said(output);
        let number = |line: &str| {
            let line = report.lines().find(|it| it.contains(line)).unwrap();
            line.rsplit(' ').next().unwrap().trim_end_matches("(0.000%)").to_owned()
        };
        assert!(report.contains("number of failed transactions: 0 (0.000%)"), "{report}{errors}");
        assert!(!errors.contains("abort") && !errors.contains("ERROR"), "{errors}");
        println!("{} transactions, none failed", number("actually processed"));
    }
}

/// What a client has said of servers and shards comes along, and so do commands that it has prepared.
#[test]
fn a_client_keeps_its_role_and_its_shard() {
    // Two databases of one server are shards as good as any.
    let parts = "[pool.databases.parts]\ncluster = { role = 'auto' }\n\
                 sharding = { key = ['bigint'] }\n";
    let shard = |dbname: &str| {
        format!(
            "[[pool.databases.parts.shards]]\ndbname = '{dbname}'\n\
             servers = [{{ host = '127.0.0.1', port = PORT }}]\n"
        )
    };
    let parts = format!("{parts}{}{}", shard("template1"), shard("postgres"));
    let Some(mut line) = Line::start("routing") else { return };
    line.heirs = parts.replace("PORT", &line.stage.server.port().to_string());
    line.take_over();
    let log_in = |more: &str| {
        let mut raw = Raw::connect(line.stage.address());
        raw.start_in("parts", more);
        raw.until(b'Z');
        raw
    };
    let (mut plain, mut said) = (log_in(""), log_in("target_session_attrs\0read-write\0"));
    said.send(b'P', b"role\0show server role\0\0\0");
    said.send(b'S', b"");
    said.until(b'Z');
    for command in ["set shard to 1", "set primary reads to off", "set read your writes to on"] {
        said.query(command);
        said.until(b'Z');
    }
    line.take_over();
    let ask = |raw: &mut Raw, sql: &str| {
        raw.query(sql);
        row(raw)
    };
    assert_eq!(ask(&mut plain, "show server role"), "auto");
    assert_eq!(ask(&mut plain, "show shard"), "unset");
    execute(&mut said, "role");
    assert_eq!(row(&mut said), "primary");
    assert_eq!(ask(&mut said, "show primary reads"), "off");
    assert_eq!(ask(&mut said, "show read your writes"), "on");
    assert_eq!(ask(&mut said, "show shard"), "1");
    assert_eq!(ask(&mut said, "select current_database()"), "postgres");
    said.query("set shard to 0");
    said.until(b'Z');
    said.query("set server role to 'any'");
    said.until(b'Z');
    line.take_over();
    assert_eq!(ask(&mut said, "show server role"), "any");
    assert_eq!(ask(&mut said, "select current_database()"), "template1");
}

#[test]
fn a_client_finds_all_that_was_its_own() {
    let Some(mut line) = Line::start("state") else { return };
    let address = line.stage.address();
    let mut raw = Raw::connect(address);
    raw.start(0, "application_name\0mover\0");
    let greeting = raw.until(b'Z');
    let key = greeting.into_iter().find(|(tag, _)| *tag == b'K').unwrap().1;
    raw.query("set datestyle = 'ISO, MDY'");
    raw.until(b'Z');
    raw.send(b'P', b"second\0select to_char(date '01/02/2026', 'YYYY-MM-DD')\0\0\0");
    raw.send(b'S', b"");
    raw.query("set datestyle = german");
    raw.until(b'Z');
    raw.until(b'Z');
    raw.send(b'P', b"mine\0select current_setting('application_name')\0\0\0");
    raw.send(b'P', b"\0select 'unnamed'\0\0\0");
    raw.send(b'S', b"");
    raw.until(b'Z');
    let mut busy = Raw::log_in(address);
    busy.query("begin; create table kept (a int)");
    busy.until(b'Z');
    let mut unix =
        UnixStream::connect(line.folder.path().join(format!(".s.PGSQL.{}", address.port())));
    let unix = unix.as_mut().unwrap();
    let old = line.hand_over();
    until("it has moved", || line.ports().len() == 1);
    execute(&mut raw, "mine");
    assert_eq!(row(&mut raw), "mover");
    execute(&mut raw, "");
    assert_eq!(row(&mut raw), "unnamed");
    execute(&mut raw, "second");
    assert_eq!(row(&mut raw), "2026-01-02", "as it was read before the date style was changed");
    raw.query("select date '2026-11-22'");
    assert_eq!(row(&mut raw), "22.11.2026");
    // Its key is good for cancels still, and that of one who has not moved yet.
    raw.query("select pg_sleep(600)");
    let cancel = |key: &[u8]| {
        let mut request = vec![0, 0, 0, 16, 4, 210, 22, 46];
        request.extend_from_slice(key);
        Raw::connect(address).0.write_all(&request).unwrap();
    };
    until("it works", || {
        let sql = "select count(*) from pg_stat_activity where query like '%pg_sleep(600)%' and \
                   pid <> pg_backend_pid()";
        line.stage.direct(sql) == "1"
    });
    cancel(&key);
    let told = raw.until(b'Z');
    assert!(told.iter().any(|(_, body)| memchr::memmem::find(body, b"C57014\0").is_some()));
    // The one in a transaction is with the old process, and follows at its end.
    busy.query("insert into kept values (1)");
    busy.until(b'Z');
    assert_eq!(line.ports().len(), 1);
    assert!(!old.is_over());
    busy.query("commit");
    busy.until(b'Z');
    until("the other has moved", || line.ports().len() == 2);
    busy.query("select count(*) from kept");
    assert_eq!(row(&mut busy), "1");
    // Whoever had connected without a word is served by one of them.
    unix.write_all(b"\0\0\0\x08\x04\xd2\x16\x2f").unwrap();
    let mut no = [0];
    unix.read_exact(&mut no).unwrap();
    assert_eq!(no, *b"N");
    let _ = unix.shutdown(std::net::Shutdown::Both);
    old.end().unwrap().wait();
    old.join().unwrap();
    line.take_over();
    execute(&mut raw, "mine");
    assert_eq!(row(&mut raw), "mover");
    line.stage.psql(&["select 1"]);
}

/// A capture ends with its process, whole; what a client does is in one of two captures.
#[test]
fn captures_of_both_processes_have_all_that_a_client_did() {
    let captures = tempfile::tempdir().unwrap();
    let more = format!("capture = {{ path = '{}', start = true }}", captures.path().display());
    let Some(mut line) = Line::start_with("captured", &more) else { return };
    line.heirs = more;
    let mut raw = Raw::log_in(line.stage.address());
    raw.send(b'P', b"mine\0select 'prepared'\0\0\0");
    raw.send(b'S', b"");
    raw.until(b'Z');
    raw.query("set datestyle = german");
    raw.until(b'Z');
    let first = line.stage.pooler.control().capture().unwrap().path;
    line.take_over();
    execute(&mut raw, "mine");
    assert_eq!(row(&mut raw), "prepared");
    let second = line.stage.pooler.control().stop_capture().unwrap().path;
    let told = |path: &Path| {
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
        told(&first),
        ["connect ", "parse select 'prepared'", "simple set datestyle = german", "disconnect "]
    );
    assert_eq!(told(&second), ["connect ", "execute select 'prepared'"]);
}

/// A frame: kind, length, body.
fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&[kind][..], &length, body].concat()
}

#[test]
fn a_new_process_that_dies_leaves_the_old_one_serving() {
    let Some(mut line) = Line::start("dies") else { return };
    let mut clients: Vec<_> = (0..5).map(|_| Raw::log_in(line.stage.address())).collect();
    let ports = line.ports();
    assert_eq!(ports.len(), 5);
    let hello = [&b"howdah pool takeover"[..], &[0, 6]].concat();
    let dies_after = |what: &[u8], answer: usize| {
        let mut socket = UnixStream::connect(line.folder.path().join("takeover")).unwrap();
        socket.write_all(what).unwrap();
        // Descriptors that come with it are closed by the kernel.
        let mut read = vec![0; answer];
        socket.read_exact(&mut read).unwrap();
        read
    };
    let said = dies_after(&frame(1, b"something else"), 5);
    assert_eq!(said[0], 9, "it is told that it is not understood");
    line.until_reachable();
    dies_after(&frame(1, &hello), 10);
    line.until_reachable();
    // Two listeners of TCP, one unix socket, the end of them, and the first client.
    let ready = [frame(1, &hello), frame(4, b"")].concat();
    dies_after(&ready, 60);
    line.until_reachable();
    until("all are back", || line.ports() == ports);
    for client in &mut clients {
        client.query("select 'served'");
        assert_eq!(row(client), "served");
    }
    line.stage.psql(&["select 1"]);
    // Somebody who knows how may take over after that.
    line.take_over();
    assert_eq!(line.ports(), ports);
    for client in &mut clients {
        client.query("select 'served'");
        assert_eq!(row(client), "served");
    }
    thread::yield_now();
}

#[test]
fn who_cannot_go_has_until_the_deadline() {
    let more = "timeouts = { shutdown = '200ms' }";
    let Some(mut line) = Line::start_with("deadline", more) else { return };
    let (mut idle, mut busy) =
        (Raw::log_in(line.stage.address()), Raw::log_in(line.stage.address()));
    busy.query("begin");
    busy.until(b'Z');
    let old = line.hand_over();
    let told = busy.until(b'E').pop().unwrap().1;
    assert!(memchr::memmem::find(&told, b"C57P01\0").is_some(), "{}", told.escape_ascii());
    assert!(busy.is_hung_up_on());
    old.end().unwrap().wait();
    old.join().unwrap();
    idle.query("select 'served'");
    assert_eq!(row(&mut idle), "served");
}

#[test]
fn a_client_with_tls_stays_until_it_leaves() {
    let Some(certificates) = Certificates::new("tls stays") else { return };
    certificates.self_signed("own", "localhost", &[]);
    let path = |file: &str| certificates.path(file).display().to_string();
    let (certificate, key) = (path("own.crt"), path("own.key"));
    let leg = format!("mode = 'allow', certificate = '{certificate}', key = '{key}'");
    let more = format!("tls = {{ client = {{ {leg} }} }}");
    let Some(mut line) = Line::start_with("tls stays", &more) else { return };
    let port = line.stage.address().port();
    let words = format!("host=127.0.0.1 port={port} dbname=postgres user=postgres sslmode=require");
    let mut encrypted = connect(&words).unwrap();
    let mut plain = Raw::log_in(line.stage.address());
    let old = line.hand_over();
    until("the other has moved", || line.ports().len() == 1);
    for _ in 0..3 {
        assert_eq!(encrypted.one_value("select 'served'").unwrap().as_deref(), Some("served"));
    }
    assert!(!old.is_over());
    encrypted.close();
    old.end().unwrap().wait();
    old.join().unwrap();
    plain.query("select 'served'");
    assert_eq!(row(&mut plain), "served");
}

#[test]
fn without_an_old_process_there_is_nothing_to_take_over() {
    let Some(line) = Line::start("nobody") else { return };
    let elsewhere = tempfile::tempdir().unwrap();
    let config = settings(&line.stage.server, elsewhere.path(), 0, "", TRUST);
    let error = Pooler::take_over(config, None).unwrap_err().to_string();
    assert!(error.starts_with("cannot take over: ") && error.contains("takeover: "), "{error}");
}
