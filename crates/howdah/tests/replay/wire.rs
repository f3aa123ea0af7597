//! Traffic that the pooler captured on its way: it plays on a copy to the same tables, and tells all that
//! the server's log of the same traffic can tell.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process::{Child, ChildStderr, Command, Stdio},
};

use howdah_dataset::Capture;
use howdah_lab::{Cluster, client_tool, or_say_why_not};
use howdah_traffic::{Action, Event, Parameter};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{connect, howdah, replay, text, value};

/// `howdah pool` before a database, capturing into `captures/it`.
pub(crate) struct Pool {
    child: Child,
    stderr: BufReader<ChildStderr>,
    pub(crate) port: u16,
}

impl Pool {
    pub(crate) fn start(folder: &Path, cluster: &Cluster, capture: &str) -> Self {
        Self::before(folder, cluster, "bench", capture)
    }

    /// Before a database that its clients call `bench`.
    pub(crate) fn before(folder: &Path, cluster: &Cluster, dbname: &str, capture: &str) -> Self {
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
            .args(["pool", "-c", "howdah.toml"])
            .current_dir(folder)
            .env("HOME", folder)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        let port = loop {
            let from = said.len();
            assert_ne!(stderr.read_line(&mut said).unwrap(), 0, "{said}");
            if let Some(place) = said[from..].strip_prefix("listening: ") {
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

    pub(crate) fn send(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for its end.
    pub(crate) fn end(mut self) {
        let mut said = String::new();
        self.stderr.read_to_string(&mut said).unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn raw(&self) -> Raw {
        Raw::connect(self.port, "bench")
    }
}

/// A driver that speaks binary, as bytes.
pub(crate) struct Raw(TcpStream);

impl Raw {
    /// Logs in as `postgres`, who needs no password.
    pub(crate) fn connect(port: u16, database: &str) -> Self {
        let mut socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
        socket.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
        let startup =
            [b"\0\x03\0\0user\0postgres\0database\0", database.as_bytes(), b"\0\0"].concat();
        let len = u32::try_from(startup.len() + 4).unwrap().to_be_bytes();
        socket.write_all(&[&len, &startup[..]].concat()).unwrap();
        let mut raw = Self(socket);
        raw.ready();
        raw
    }

    pub(crate) fn send(&mut self, messages: &[Vec<u8>]) {
        self.0.write_all(&messages.concat()).unwrap();
    }

    /// Reads up to a message of this tag.
    pub(crate) fn until(&mut self, tag: u8) {
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

    pub(crate) fn ready(&mut self) {
        self.until(b'Z');
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

/// A Bind of binary int4s; the result is to be binary too.
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

/// Traffic of every sort. Each session has rows of its own, so their order among each other says nothing.
fn traffic(pool: &Pool, mut open: Raw, folder: &Path) {
    for mode in ["simple", "extended", "prepared"] {
        pool.run("pgbench", &["-n", "-M", mode, "-c", "6", "-j", "2", "-t", "40", "bench"], "");
    }
    // Binary values, by a statement prepared before the capture began.
    open.send(&[bind("ins", "", &[1, 10]), execute("", 0), sync()]);
    open.ready();
    // A pipeline that fails in its middle leaves nothing; the one behind it stays.
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
    raw.ready();
    raw.ready();
    // A portal that is read in parts, which the volatile function in it makes visible.
    raw.send(&[query("begin")]);
    raw.ready();
    raw.send(&[
        parse("", "insert into numbers select i from generate_series(1, $1) i returning a", 1),
        bind("", "p", &[5]),
        execute("p", 2),
        sync(),
    ]);
    raw.ready();
    raw.send(&[execute("p", 0), sync()]);
    raw.ready();
    raw.send(&[query("commit")]);
    raw.ready();
    // COPY by the extended protocol, whose Sync comes before the server asks for rows and again after.
    raw.send(&[
        parse("", "copy copied from stdin", 0),
        message(b'B', &[b"\0\0\0\0\0\0\0\0"]),
        execute("", 0),
        sync(),
    ]);
    raw.until(b'G');
    raw.send(&[
        message(b'd', &[b"1\text"]),
        message(b'd', &[b"ended\n"]),
        message(b'c', &[]),
        sync(),
    ]);
    raw.ready();
    raw.send(&[message(b'X', &[])]);
    // COPY as psql does it, in text and csv, one that fails, and out again.
    let rows: String = (0..3000).map(|n| format!("{n}\trow {n} \u{e9}\n")).collect();
    pool.psql("bench", &format!("copy copied from stdin;\n{rows}\\.\n"));
    std::fs::write(folder.join("rows.csv"), "7,\"quoted, it is\"\n8,\n").unwrap();
    let file = folder.join("rows.csv");
    pool.psql("bench", &format!("\\copy copied from '{}' with (format csv)\n", file.display()));
    pool.psql(
        "bench",
        "copy copied from stdin;\nnot a number\tx\n\\.\n\\copy copied to '/dev/null'\n",
    );
    // Errors inside of transactions, savepoints, several statements in one message, settings.
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
fn what_the_pooler_captured_plays_to_the_same_tables_and_tells_what_the_log_tells() {
    round_trip(15);
}

#[test]
fn the_same_with_a_newer_server() {
    round_trip(18);
}

fn round_trip(major: u32) {
    let Some((cluster, folder)) = cluster(major) else { return };
    let folder = folder.path();
    let mut control = connect(&cluster, "postgres");
    for setting in ["log_statement = 'all'", "log_duration = on"] {
        control.query(&format!("alter database bench set {setting}")).unwrap();
    }
    let pool = Pool::start(folder, &cluster, "");
    let mut open = pool.raw();
    open.send(&[parse("ins", "insert into kept values ('open', $1, $2)", 2), sync()]);
    open.ready();
    pool.psql("howdah", "capture start it");
    traffic(&pool, open, folder);
    let shown = pool.psql("howdah", "show capture");
    assert!(shown.starts_with("active|captures/it|"), "{shown}");
    pool.send(Signal::TERM);
    pool.end();

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
    same_statements(&executions(&capture), &executions(&logged));

    let words = ["--rate", "1", "--workers", "2", "--map-database", "bench=copy"];
    let replayed = replay(folder, "captures/it", &cluster.uri("postgres"), &words);
    assert_eq!(replayed.report["connections_lost"], 0);
    assert_eq!(replayed.report["events"]["skipped"], 0, "{}", replayed.report);
    assert_eq!(contents(&cluster, "copy"), contents(&cluster, "bench"));
    // What failed then fails again, and nothing else.
    let failed = capture.events().filter(|event| event.as_ref().unwrap().outcome.failed()).count();
    assert_eq!(replayed.report["events"]["failed"], failed, "{}", replayed.report);

    // The other commands take it as any capture.
    for words in [
        &["capture", "sample", "captures/it", "-o", "half", "--sample-rate", "0.5"][..],
        &["capture", "cat", "captures/it", "--format", "ndjson"],
        &["compare", "run", "run"],
    ] {
        howdah(folder).args(words).assert().success();
    }
}

/// A server with two databases of the same tables, and a folder; `None` after saying why not.
pub(crate) fn cluster(major: u32) -> Option<(Cluster, tempfile::TempDir)> {
    let builder = Cluster::builder()
        .name("wire")
        .major(major)
        .setting("logging_collector", "on")
        .setting("log_destination", "csvlog")
        .setting("log_connections", "on")
        .setting("log_disconnections", "on")
        .setting("log_timezone", "UTC")
        .setting("autovacuum", "off");
    let cluster = or_say_why_not("a server before which traffic is captured", builder.start())?;
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

pub(crate) fn contents(cluster: &Cluster, database: &str) -> Vec<String> {
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

/// Executions by what both ways can tell of them: text, values as text, and SQLSTATE; with how often.
fn executions(capture: &Capture) -> BTreeMap<String, i64> {
    let mut executions = BTreeMap::new();
    for event in capture.events() {
        let event = event.unwrap();
        let kind = event.action.kind();
        if kind.is_execution() || event.outcome.failed() {
            let sql = event.action.sql().unwrap().to_str_lossy().into_owned();
            let code = event.outcome.sqlstate.map(|code| code.to_string()).unwrap_or_default();
            let word = format!("{sql} {} {code}", values(&event));
            *executions.entry(word).or_default() += 1;
        }
    }
    executions
}

/// Bound values, as text whatever form they were bound in.
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

/// All that clients did stands in the log as often; beside that, the log has what the pooler did.
fn same_statements(captured: &BTreeMap<String, i64>, logged: &BTreeMap<String, i64>) {
    let mut differences = BTreeMap::new();
    for (sign, side) in [(1, captured), (-1, logged)] {
        for (word, count) in side {
            *differences.entry(word.as_str()).or_insert(0) += sign * count;
        }
    }
    differences.retain(|word, count| {
        let is_ours = |start: &&str| word.starts_with(start);
        *count != 0 && !(*count < 0 && POOLERS.iter().any(is_ours))
    });
    assert!(differences.is_empty(), "captured more often than logged: {differences:#?}");
}

/// How texts begin that the pooler itself sends.
const POOLERS: [&str; 6] = [
    "SET SESSION AUTHORIZATION DEFAULT;RESET ALL;",
    "RESET",
    "DISCARD",
    "select pg_catalog.set_config",
    "SELECT pg_catalog.set_config",
    "SELECT pg_catalog.current_setting('client_encoding', true), ",
];

#[test]
fn a_killed_pooler_leaves_a_capture_that_plays() {
    let Some((cluster, folder)) = cluster(15) else { return };
    let folder = folder.path();
    let pool = Pool::start(folder, &cluster, ", file-time = '1s'");
    pool.psql("howdah", "capture start it");
    pool.psql("bench", "insert into kept values ('psql', 1, 1)");
    let finished =
        || Capture::open(&folder.join("captures/it")).is_ok_and(|it| it.manifest().files > 0);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !finished() {
        assert!(std::time::Instant::now() < deadline, "no file was finished");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    pool.send(Signal::KILL);
    pool.end();
    let info = howdah(folder).args(["capture", "info", "captures/it"]).assert().success();
    let said = text(&info.get_output().stdout);
    assert!(said.contains("NOT FINISHED"), "{said}");
    let replayed = howdah(folder)
        .args(["replay", "captures/it", "--target", &cluster.uri("postgres")])
        .args(["--map-database", "bench=copy", "-o", "run"])
        .assert()
        .success();
    let said = text(&replayed.get_output().stderr);
    assert!(said.contains("not finished"), "{said}");
    assert_eq!(contents(&cluster, "copy")[4], contents(&cluster, "bench")[4]);
}
