//! Traffic captured by the pooler: its replay on a copy gives the same tables, and the capture has
//! the same statements as the server's log.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process::{Child, ChildStderr, Command, Stdio},
};

use howdah_connect::{Client, ConnParams, ConnectTarget, Environment};
use howdah_dataset::Capture;
use howdah_lab::{Cluster, client_tool, skip_without_postgres};
use howdah_traffic::{Action, Event, Parameter};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{TIMEOUT, connect, howdah, replay, text, value};

/// A running `howdah pool` that can capture into `captures/it`.
pub(crate) struct CapturePooler {
    child: Child,
    stderr: BufReader<ChildStderr>,
    pub(crate) port: u16,
}

impl CapturePooler {
    pub(crate) fn start(folder: &Path, cluster: &Cluster, capture: &str) -> Self {
        Self::start_for_database(folder, cluster, "bench", capture)
    }

    /// Starts a pooler that maps its database `bench` to `dbname`.
    pub(crate) fn start_for_database(
        folder: &Path,
        cluster: &Cluster,
        dbname: &str,
        capture: &str,
    ) -> Self {
        let settings = format!(
            "[pool]\nmode = 'transaction'\nworkers = 2\nadmin-users = ['postgres']\n\
             capture = {{ path = 'captures'{capture} }}\n\
             [pool.listen]\nport = 0\nunix-directories = []\n\
             [pool.auth]\ntype = 'trust'\n[pool.users.postgres]\nsecret = ''\n\
             [pool.databases.bench]\nhosts = ['127.0.0.1:{}']\n\
             dbname = '{dbname}'\n",
            cluster.port()
        );
        std::fs::write(folder.join("howdah.toml"), settings).unwrap();
        let mut child = Command::new(assert_cmd::cargo::cargo_bin!("howdah"))
            .args(["pool", "--os-user", &this_user(), "-c", "howdah.toml"])
            .current_dir(folder)
            .env("HOME", folder)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut messages = String::new();
        let port = loop {
            let from = messages.len();
            assert_ne!(stderr.read_line(&mut messages).unwrap(), 0, "{messages}");
            if let Some(place) = messages[from..].strip_prefix("listening: ") {
                break place.trim().rsplit_once(':').unwrap().1.parse().unwrap();
            }
        };
        Self { child, stderr, port }
    }

    pub(crate) fn run(&self, program: &str, words: &[&str], stdin: &str) -> String {
        let program = client_tool(program).expect("psql and pgbench are installed");
        let mut command = Command::new(program);
        command
            .args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", "postgres"])
            .args(words)
            .env_remove("PGDATABASE")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(stdin.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{words:?} {output:?}");
        text(&output.stdout)
    }

    pub(crate) fn psql(&self, database: &str, script: &str) -> String {
        self.run("psql", &["-XAtq", "-d", database], script)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the process to exit.
    pub(crate) fn wait(mut self) {
        let mut messages = String::new();
        self.stderr.read_to_string(&mut messages).unwrap();
        self.child.wait().unwrap();
    }

    /// Connects to the database `bench`.
    pub(crate) fn client(&self) -> Client {
        let uri = format!("postgresql://postgres@127.0.0.1:{}/bench", self.port);
        let words = ConnParams { conninfo: Some(uri), ..ConnParams::default() };
        let target = ConnectTarget::resolve(&words, &Environment::empty()).unwrap();
        Client::connect(&target).unwrap()
    }

    pub(crate) fn raw(&self) -> RawConnection {
        RawConnection::connect(self.port, "bench")
    }
}

/// A connection on which tests send raw messages.
pub(crate) struct RawConnection(TcpStream);

impl RawConnection {
    /// Logs in as `postgres` without a password.
    pub(crate) fn connect(port: u16, database: &str) -> Self {
        let mut socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
        socket.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
        let startup =
            [b"\0\x03\0\0user\0postgres\0database\0", database.as_bytes(), b"\0\0"].concat();
        let len = u32::try_from(startup.len() + 4).unwrap().to_be_bytes();
        socket.write_all(&[&len, &startup[..]].concat()).unwrap();
        let mut raw = Self(socket);
        raw.read_until_ready();
        raw
    }

    pub(crate) fn send(&mut self, messages: &[Vec<u8>]) {
        self.0.write_all(&messages.concat()).unwrap();
    }

    /// Reads messages until one with this tag.
    pub(crate) fn read_until(&mut self, tag: u8) {
        loop {
            let mut front = [0; 5];
            self.0.read_exact(&mut front).unwrap();
            let len = u32::from_be_bytes(front[1..].try_into().unwrap());
            let mut body = vec![0; len as usize - 4];
            self.0.read_exact(&mut body).unwrap();
            if front[0] == tag {
                return;
            }
        }
    }

    pub(crate) fn read_until_ready(&mut self) {
        self.read_until(b'Z');
    }
}

pub(crate) fn message(tag: u8, body: &[&[u8]]) -> Vec<u8> {
    let body = body.concat();
    let len = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
    [&[tag][..], &len, &body].concat()
}

/// A Parse whose parameters are int4.
pub(crate) fn parse(name: &str, sql: &str, parameters: u8) -> Vec<u8> {
    let types = [0, 0, 0, 23].repeat(parameters.into());
    message(b'P', &[name.as_bytes(), b"\0", sql.as_bytes(), b"\0\0", &[parameters], &types])
}

/// A Bind of binary int4 values, with a binary result.
pub(crate) fn bind(name: &str, portal: &str, values: &[i32]) -> Vec<u8> {
    let value = |value: &i32| [&[0, 0, 0, 4][..], &value.to_be_bytes()].concat();
    let values: Vec<Vec<u8>> = values.iter().map(value).collect();
    let count = u8::try_from(values.len()).unwrap();
    message(
        b'B',
        &[
            portal.as_bytes(),
            b"\0",
            name.as_bytes(),
            b"\0\0\x01\0\x01\0",
            &[count],
            &values.concat(),
            b"\0\x01\0\x01",
        ],
    )
}

pub(crate) fn execute(portal: &str, rows: u8) -> Vec<u8> {
    message(b'E', &[portal.as_bytes(), b"\0\0\0\0", &[rows]])
}

pub(crate) fn sync() -> Vec<u8> {
    message(b'S', &[])
}

pub(crate) fn query(sql: &str) -> Vec<u8> {
    message(b'Q', &[sql.as_bytes(), b"\0"])
}

const TABLES: &str = "create table kept (who text, a int, b int, primary key (who, a)); \
                      create table copied (a int, b text); create table numbers (a int)";

/// Runs traffic of all kinds. Sessions write different rows, so their relative order does not
/// matter.
fn run_traffic(pool: &CapturePooler, mut open: RawConnection, folder: &Path) {
    for mode in ["simple", "extended", "prepared"] {
        pool.run("pgbench", &["-n", "-M", mode, "-c", "6", "-j", "2", "-t", "40", "bench"], "");
    }
    // Binary values for a statement prepared before the capture started.
    open.send(&[bind("ins", "", &[1, 10]), execute("", 0), sync()]);
    open.read_until_ready();
    // A pipeline that fails in the middle inserts nothing; the next one succeeds.
    let mut raw = pool.raw();
    raw.send(&[
        parse("ins", "insert into kept values ('raw', $1, $2)", 2),
        bind("ins", "", &[1, 1]),
        execute("", 0),
        bind("ins", "", &[1, 2]),
        execute("", 0),
        bind("ins", "", &[2, 2]),
        execute("", 0),
        sync(),
        bind("ins", "", &[3, 3]),
        execute("", 0),
        bind("ins", "", &[4, i32::MIN]),
        execute("", 0),
        sync(),
    ]);
    raw.read_until_ready();
    raw.read_until_ready();
    // A portal that is fetched in parts; its inserted rows show how far it was executed.
    raw.send(&[query("begin")]);
    raw.read_until_ready();
    raw.send(&[
        parse("", "insert into numbers select i from generate_series(1, $1) i returning a", 1),
        bind("", "p", &[5]),
        execute("p", 2),
        sync(),
    ]);
    raw.read_until_ready();
    raw.send(&[execute("p", 0), sync()]);
    raw.read_until_ready();
    raw.send(&[query("commit")]);
    raw.read_until_ready();
    // COPY in the extended protocol, with a Sync before the server requests rows and another after.
    raw.send(&[
        parse("", "copy copied from stdin", 0),
        message(b'B', &[b"\0\0\0\0\0\0\0\0"]),
        execute("", 0),
        sync(),
    ]);
    raw.read_until(b'G');
    raw.send(&[
        message(b'd', &[b"1\text"]),
        message(b'd', &[b"ended\n"]),
        message(b'c', &[]),
        sync(),
    ]);
    raw.read_until_ready();
    raw.send(&[message(b'X', &[])]);
    // COPY by psql: in text and CSV, one that fails, and COPY TO.
    let rows: String = (0..3000).map(|n| format!("{n}\trow {n} \u{e9}\n")).collect();
    pool.psql("bench", &format!("copy copied from stdin;\n{rows}\\.\n"));
    std::fs::write(folder.join("rows.csv"), "7,\"quoted, it is\"\n8,\n").unwrap();
    let file = folder.join("rows.csv");
    pool.psql("bench", &format!("\\copy copied from '{}' with (format csv)\n", file.display()));
    pool.psql(
        "bench",
        "copy copied from stdin;\nnot a number\tx\n\\.\n\\copy copied to '/dev/null'\n",
    );
    // Errors in transactions, savepoints, several statements in one message, settings.
    pool.psql(
        "bench",
        "begin;\ninsert into kept values ('psql', 1, 1);\nsavepoint s;\n\
         insert into kept values ('psql', 1, 2);\nrollback to s;\n\
         insert into kept values ('psql', 2, 2);\ncommit;\n\
         begin;\ninsert into kept values ('psql', 3, 3);\nselect 1/0;\ncommit;\n\
         insert into kept values ('psql', 4, 4)\\; insert into kept values ('psql', 5, 5);\n\
         select nonsense;\nsyntax error;\n\
         set datestyle = 'SQL, DMY';\n\
         insert into kept values ('psql', 6, extract(day from '3/4/2020'::date)::int);\n",
    );
    pool.psql(
        "bench",
        "begin;\nset local statement_timeout = '50ms';\n\
         update kept set b = 0 from pg_sleep(60);\nrollback;\n",
    );
    drop(open);
}

#[test]
fn pooler_capture_replays_to_same_tables_and_matches_log() {
    check_round_trip(15);
}

#[test]
fn pooler_capture_works_with_newer_server() {
    check_round_trip(18);
}

fn check_round_trip(major: u32) {
    let Some((cluster, folder)) = start_cluster(major) else { return };
    let folder = folder.path();
    let mut control = connect(&cluster, "postgres");
    for setting in ["log_statement = 'all'", "log_duration = on"] {
        control.query(&format!("alter database bench set {setting}")).unwrap();
    }
    let pool = CapturePooler::start(folder, &cluster, "");
    let mut open = pool.raw();
    open.send(&[parse("ins", "insert into kept values ('open', $1, $2)", 2), sync()]);
    open.read_until_ready();
    pool.psql("howdah", "capture start it");
    run_traffic(&pool, open, folder);
    let shown = pool.psql("howdah", "show capture");
    assert!(shown.starts_with("active|captures/it|"), "{shown}");
    pool.signal(Signal::TERM);
    pool.wait();

    let capture = Capture::open(&folder.join("captures/it")).unwrap();
    let manifest = capture.manifest();
    assert!(manifest.finished);
    assert_eq!(manifest.report["completeness"], serde_json::json!([]), "{}", manifest.report);
    howdah(folder).args(["capture", "info", "captures/it", "--verify"]).assert().success();

    let mut cluster = cluster;
    drop(control);
    cluster.restart().unwrap();
    let logs = cluster.log_files("csv").unwrap();
    howdah(folder)
        .args(["capture", "import", "-o", "logged", "--database", "bench"])
        .args(&logs)
        .assert()
        .success();
    let logged = Capture::open(&folder.join("logged")).unwrap();
    assert_same_statements(&executions(&capture), &executions(&logged));

    let words = ["--rate", "1", "--workers", "2", "--map-database", "bench=copy"];
    let replayed = replay(folder, "captures/it", &cluster.uri("postgres"), &words);
    assert_eq!(replayed.report["connections_lost"], 0);
    assert_eq!(replayed.report["events"]["skipped"], 0, "{}", replayed.report);
    assert_eq!(table_contents(&cluster, "copy"), table_contents(&cluster, "bench"));
    // Exactly the captured failures fail again.
    let failed = capture.events().filter(|event| event.as_ref().unwrap().outcome.failed()).count();
    assert_eq!(replayed.report["events"]["failed"], failed, "{}", replayed.report);

    // The other commands read it like any capture.
    for words in [
        &["capture", "sample", "captures/it", "-o", "half", "--sample-rate", "0.5"][..],
        &["capture", "cat", "captures/it", "--format", "ndjson"],
        &["compare", "run", "run"],
    ] {
        howdah(folder).args(words).assert().success();
    }
}

/// Starts a server with two databases with the same tables; `None` if the test is skipped.
pub(crate) fn start_cluster(major: u32) -> Option<(Cluster, tempfile::TempDir)> {
    let builder = Cluster::builder()
        .name("wire")
        .major(major)
        .setting("logging_collector", "on")
        .setting("log_destination", "csvlog")
        .setting("log_connections", "on")
        .setting("log_disconnections", "on")
        .setting("log_timezone", "UTC")
        .setting("autovacuum", "off");
    let cluster =
        skip_without_postgres("a server before which traffic is captured", builder.start())?;
    let folder = tempfile::tempdir().unwrap();
    connect(&cluster, "postgres").query("create database bench").unwrap();
    let output = Command::new(client_tool("pgbench").expect("pgbench is installed"))
        .args(["-h", "127.0.0.1", "-p", &cluster.port().to_string(), "-U", "postgres"])
        .args(["-i", "-q", "-s", "1", "bench"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let mut client = connect(&cluster, "bench");
    client.query(TABLES).unwrap();
    drop(client);
    connect(&cluster, "postgres").query("create database copy template bench").unwrap();
    Some((cluster, folder))
}

pub(crate) fn table_contents(cluster: &Cluster, database: &str) -> Vec<String> {
    let mut client = connect(cluster, database);
    let tables = [
        "select aid, abalance from pgbench_accounts where abalance <> 0",
        "select tid, bid, tbalance from pgbench_tellers",
        "select bid, bbalance from pgbench_branches",
        "select tid, bid, aid, delta from pgbench_history",
        "select * from kept",
        "select * from copied",
        "select * from numbers",
    ];
    let sum = "select count(*) || ' ' || coalesce(md5(string_agg(t::text, ' ' order by t)), '')";
    tables.iter().map(|table| value(&mut client, &format!("{sum} from ({table}) t"))).collect()
}

/// Counts of executions by what both captures contain: SQL, values as text, and SQLSTATE.
fn executions(capture: &Capture) -> BTreeMap<String, i64> {
    let mut executions = BTreeMap::new();
    for event in capture.events() {
        let event = event.unwrap();
        let kind = event.action.kind();
        if kind.is_execution() || event.outcome.failed() {
            let sql = event.action.sql().unwrap().to_str_lossy().into_owned();
            let code = event.outcome.sqlstate.map(|code| code.to_string()).unwrap_or_default();
            let key = format!("{sql} {} {code}", values(&event));
            *executions.entry(key).or_default() += 1;
        }
    }
    executions
}

/// Bound values as text, whether they were bound as text or binary.
fn values(event: &Event) -> String {
    let (Action::Bind(bound) | Action::Execute(bound)) = &event.action else {
        return String::new();
    };
    let value = |(index, value): (usize, &Parameter)| match value {
        Parameter::Null => "NULL".to_owned(),
        Parameter::Value(text) | Parameter::Truncated(text) => {
            let is_binary = event.wire.as_ref().is_some_and(|wire| wire.is_binary(index));
            match text.as_bytes().try_into() {
                Ok(bytes) if is_binary => i32::from_be_bytes(bytes).to_string(),
                _ => text.to_str_lossy().into_owned(),
            }
        }
    };
    bound.parameters.iter().flatten().enumerate().map(value).collect::<Vec<_>>().join(",")
}

/// Checks that the log has each captured statement as often; it may also have the pooler's own.
fn assert_same_statements(captured: &BTreeMap<String, i64>, logged: &BTreeMap<String, i64>) {
    let mut differences = BTreeMap::new();
    for (sign, side) in [(1, captured), (-1, logged)] {
        for (key, count) in side {
            *differences.entry(key.as_str()).or_insert(0) += sign * count;
        }
    }
    differences.retain(|key, count| {
        let is_ours = |start: &&str| key.starts_with(start);
        *count != 0 && !(*count < 0 && SENT_BY_POOLER.iter().any(is_ours))
    });
    assert!(differences.is_empty(), "captured more often than logged: {differences:#?}");
}

/// Prefixes of statements that the pooler itself sends.
const SENT_BY_POOLER: [&str; 8] = [
    "SELECT pg_catalog.pg_is_in_recovery(), ",
    "SELECT system_identifier FROM pg_catalog.pg_control_system()",
    "SET SESSION AUTHORIZATION DEFAULT;RESET ALL;",
    "RESET",
    "DISCARD",
    "select pg_catalog.set_config",
    "SELECT pg_catalog.set_config",
    "SELECT pg_catalog.current_setting('client_encoding', true), ",
];

#[test]
fn capture_of_killed_pooler_replays() {
    let Some((cluster, folder)) = start_cluster(15) else { return };
    let folder = folder.path();
    let pool = CapturePooler::start(folder, &cluster, ", file-time = '1s'");
    pool.psql("howdah", "capture start it");
    pool.psql("bench", "insert into kept values ('psql', 1, 1)");
    howdah_lab::wait_until("a finished file", TIMEOUT, || {
        Capture::open(&folder.join("captures/it")).is_ok_and(|capture| capture.manifest().files > 0)
    });
    pool.signal(Signal::KILL);
    pool.wait();
    let info = howdah(folder).args(["capture", "info", "captures/it"]).assert().success();
    let messages = text(&info.get_output().stdout);
    assert!(messages.contains("INCOMPLETE"), "{messages}");
    let replayed = howdah(folder)
        .args(["replay", "captures/it", "--target", &cluster.uri("postgres")])
        // The copy is on the captured server.
        .args(["--map-database", "bench=copy", "-o", "run", "--allow-production", "postgres"])
        .assert()
        .success();
    let messages = text(&replayed.get_output().stderr);
    assert!(messages.contains("incomplete"), "{messages}");
    assert_eq!(table_contents(&cluster, "copy")[4], table_contents(&cluster, "bench")[4]);
}

/// The tests' user. The pooler runs as this user even if it is root.
fn this_user() -> String {
    let name = Command::new("id").arg("-un").output().unwrap();
    String::from_utf8(name.stdout).unwrap().trim().to_owned()
}
