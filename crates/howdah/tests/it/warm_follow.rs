//! `howdah warm watch` and `follow` as processes: `/warm` over HTTP, and cold replicas in a pooler.

use std::{
    io::{BufReader, Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process::{Child, ChildStderr, Command, Stdio},
};

use howdah_connect::Client;
use howdah_lab::{Cluster, skip_without_postgres, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{
    pool::{PoolerProcess, TIMEOUT, connect},
    wait_for_value,
};

const TABLES: &str = "
    CREATE EXTENSION pg_buffercache; CREATE EXTENSION pg_prewarm;
    CREATE TABLE orders AS SELECT n AS id, repeat('x', 200) AS pad FROM generate_series(1, 20000) n";

/// A running `howdah warm watch` or `follow`.
struct WarmProcess {
    child: Child,
    stderr: BufReader<ChildStderr>,
    output: String,
}

impl Drop for WarmProcess {
    fn drop(&mut self) {
        // It may have ended before.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl WarmProcess {
    fn start(folder: &Path, args: &[&str]) -> Self {
        let mut child = Command::new(assert_cmd::cargo::cargo_bin!("howdah"))
            .arg("warm")
            .args(args)
            .args(["--log-format=text"])
            .current_dir(folder)
            .env("HOME", folder)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        Self { child, stderr, output: String::new() }
    }

    fn wait_for_value(&mut self, part: &str) -> String {
        wait_for_value(&mut self.stderr, &mut self.output, part)
    }

    /// Ends the process by SIGTERM, and returns its output.
    fn terminate(mut self) -> String {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        self.stderr.read_to_string(&mut self.output).unwrap();
        assert!(self.child.wait().unwrap().success(), "{}", self.output);
        std::mem::take(&mut self.output)
    }
}

/// The status and the body of a response.
fn get(address: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

fn get_json(address: &str, path: &str) -> (u16, Value) {
    let (status, body) = get(address, path);
    (status, serde_json::from_str(&body).unwrap())
}

fn session(cluster: &Cluster) -> Client {
    connect(&cluster.uri("postgres")).unwrap()
}

fn start(test: &str, builder: howdah_lab::Builder) -> Option<Cluster> {
    skip_without_postgres(test, builder.setting("autovacuum", "off").start())
}

fn read_tables(cluster: &Cluster) {
    for _ in 0..5 {
        session(cluster).query("SELECT count(pad) FROM orders").unwrap();
    }
}

#[test]
fn watch_reports_readiness_over_http() {
    let Some(mut cluster) = start("warm readiness", Cluster::builder()) else { return };
    session(&cluster).query(TABLES).unwrap();
    read_tables(&cluster);
    let folder = tempfile::tempdir().unwrap();
    let uri = cluster.uri("postgres");
    let mut args = vec!["watch", &uri, "-o", "images", "--warm-min", "90", "--warm-min"];
    args.extend(["postgres=95", "--metrics", "127.0.0.1:0", "--listen", "127.0.0.1:0"]);
    let mut watch = WarmProcess::start(folder.path(), &args);
    let url = watch.wait_for_value("metrics: http://");
    let metrics = url.trim_end_matches("/metrics").to_owned();
    let url = watch.wait_for_value("readiness: http://");
    let address = url.trim_end_matches("/warm");

    wait_until("a warm server", TIMEOUT, || get(address, "/warm").0 == 200);
    for path in ["/warm", "/warm?database=postgres"] {
        let (status, document) = get_json(&metrics, path);
        let server = &document["servers"][0];
        assert_eq!((status, &document["warm"]), (200, &Value::Bool(true)), "{document}");
        assert_eq!((&server["state"], &server["role"]), (&"warm".into(), &"watched".into()));
        assert!(server["heat_ratio"].as_f64().unwrap() > 0.9, "{document}");
        assert!(server["image"]["pages"].as_u64().unwrap() > 500, "{document}");
        let databases = server["databases"].as_array().unwrap();
        let own = databases.iter().find(|row| row["database"] == "postgres").unwrap();
        assert_eq!(own["floor"], 0.95);
    }
    let (status, line) = get(address, "/warm?format=text");
    assert_eq!((status, line.contains(" warm ")), (200, true), "{line}");
    assert_eq!(get(address, "/warm?database=shpo").0, 404);
    assert_eq!(get(address, "/warm?server=db9").0, 404);
    assert_eq!(get(address, "/warm?floor=1").0, 400);
    assert_eq!(get(address, "/healthz").0, 200);
    let text = get(&metrics, "/metrics").1;
    assert!(text.contains("\nhowdah_warm_server_warm{"), "{text}");

    cluster.stop().unwrap();
    wait_until("the end of the server", TIMEOUT, || get(address, "/warm").0 == 503);
    let (_, document) = get_json(address, "/warm");
    assert_eq!(document["servers"][0]["state"], "unreachable");
    cluster.start().unwrap();
    wait_until("a warm server again", TIMEOUT, || get(address, "/warm").0 == 200);
    watch.terminate();
}

#[test]
fn slow_and_large_requests_do_not_block_probes() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["watch", "postgresql://127.0.0.1:1/shop", "-o", "images", "--listen"];
    let mut watch = WarmProcess::start(folder.path(), &[&args[..], &["127.0.0.1:0"]].concat());
    let url = watch.wait_for_value("readiness: http://");
    let address = url.trim_end_matches("/warm");
    let slow: Vec<_> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
    wait_until("the state of the server", TIMEOUT, || {
        let (status, body) = get(address, "/warm?format=text");
        assert_eq!(status, 503, "{body}");
        body.contains("unreachable")
    });
    let mut large = TcpStream::connect(address).unwrap();
    let header = format!("GET /warm?server={} HTTP/1.1\r\nHost: t\r\n\r\n", "x".repeat(1 << 20));
    let mut response = String::new();
    // The server may close the connection before it has read everything.
    let _ = large.write_all(header.as_bytes());
    let _ = large.read_to_string(&mut response);
    assert!(!response.starts_with("HTTP/1.1 200"), "{response}");
    drop(slow);
    watch.terminate();
}

/// A primary, a standby and a pooler in front of them. The primary's tables are hot.
struct PooledPair {
    first: Cluster,
    second: Cluster,
    pooler: PoolerProcess,
}

impl PooledPair {
    fn start(test: &str, folder: &Path) -> Option<Self> {
        let first = start(test, Cluster::builder().name("first").trusted_tcp())?;
        session(&first).query(TABLES).unwrap();
        read_tables(&first);
        let builder = Cluster::builder().name("second").trusted_tcp();
        let second = start(test, builder.setting("hot_standby", "on").standby_of(&first))?;
        let servers = [&first, &second]
            .map(|server| format!("{{ host = '127.0.0.1', port = {} }}", server.port()));
        let settings = format!(
            "[pool]\nmode = 'transaction'\nadmin-users = ['postgres']\n\
             [pool.listen]\nport = 0\nunix-directories = []\n\
             [pool.auth]\ntype = 'trust'\n[pool.users.postgres]\nsecret = ''\n\
             [pool.databases.app]\ndbname = 'postgres'\nservers = [{}]\n\
             cluster = {{ check-interval = '200ms' }}\n",
            servers.join(", ")
        );
        let pooler = PoolerProcess::start(folder, "pool.toml", &settings);
        let pair = Self { first, second, pooler };
        // The pooler checks its servers from the first use on.
        let options = "dbname=app user=postgres";
        pair.pooler.connect(options).unwrap().query("SELECT 1").unwrap();
        wait_until("both servers in the pooler", TIMEOUT, || pair.members("up") == 2);
        Some(pair)
    }

    fn console(&self) -> Client {
        self.pooler.connect("dbname=howdah user=postgres").unwrap()
    }

    fn console_uri(&self) -> String {
        format!("postgresql://postgres@127.0.0.1:{}/howdah", self.pooler.port())
    }

    fn members(&self, state: &str) -> usize {
        let results = self.console().query("SHOW MEMBERS").unwrap();
        let column = results[0].column("state").unwrap();
        results[0].rows.iter().filter(|row| row.text(column).as_deref() == Some(state)).count()
    }

    fn bans(&self) -> usize {
        self.console().query("SHOW BANS").unwrap()[0].rows.len()
    }

    /// Restarts the standby, and waits until the pooler uses it again.
    fn restart_standby(&mut self) {
        self.second.restart().unwrap();
        let name = format!("UNBAN \"127.0.0.1:{}\"", self.second.port());
        wait_until("the standby in the pooler", TIMEOUT, || {
            // The pooler may have noticed the restart and banned the standby.
            let _ = self.console().query(&name);
            self.members("up") == 2 && self.bans() == 0
        });
    }

    fn start_daemon(&self, folder: &Path, more: &[&str]) -> WarmProcess {
        let (first, second) = (self.first.uri("postgres"), self.second.uri("postgres"));
        let console = self.console_uri();
        let args = ["follow", &first, &second, "--hold-out", &console];
        WarmProcess::start(folder, &[&args[..], more].concat())
    }
}

#[test]
fn cold_replica_is_held_out_until_it_is_warm() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut pair) = PooledPair::start("warm hold-out", folder.path()) else { return };
    pair.restart_standby();
    // Slow enough that the standby is seen while it is cold.
    let mut follow = pair.start_daemon(folder.path(), &["--max-rate", "1MB", "--interval", "1m"]);
    follow.wait_for_value("cold replica is held out of the pooler");
    wait_until("a ban", TIMEOUT, || pair.bans() == 1);
    follow.wait_for_value("replica is back in the pooler");
    wait_until("the end of the ban", TIMEOUT, || pair.bans() == 0);
    assert_eq!(pair.members("up"), 2);

    // A restart is noticed before the next round, and SIGTERM puts the replica back.
    pair.restart_standby();
    follow.wait_for_value("cold replica is held out of the pooler");
    wait_until("a ban", TIMEOUT, || pair.bans() == 1);
    let output = follow.terminate();
    assert!(output.contains("replica is back in the pooler"), "{output}");
    assert_eq!(pair.bans(), 0);
}

#[test]
fn bans_of_others_and_time_limits_are_respected() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut pair) = PooledPair::start("warm hold-out limits", folder.path()) else { return };
    pair.restart_standby();
    let slow = ["--max-rate", "64kB", "--hold-out-max", "2s"];
    let mut follow = pair.start_daemon(folder.path(), &slow);
    follow.wait_for_value("cold replica is held out of the pooler");
    follow.wait_for_value("replica is back in the pooler, still cold");
    assert_eq!(pair.bans(), 0);
    follow.terminate();

    // Another follow starts while an administrator has banned the standby.
    let ban = format!("BAN \"127.0.0.1:{}\" 600", pair.second.port());
    pair.console().query(&ban).unwrap();
    let more = ["--interval", "2s", "--max-rate", "100MB", "--listen", "127.0.0.1:0"];
    let mut follow = pair.start_daemon(folder.path(), &more);
    let url = follow.wait_for_value("readiness: http://");
    let address = url.trim_end_matches("/warm").to_owned();
    wait_until("a warm standby", TIMEOUT, || get(&address, "/warm").0 == 200);
    follow.terminate();
    assert_eq!(pair.bans(), 1, "the ban of the administrator is left alone");

    // A ban that an administrator lifts is not repeated.
    pair.restart_standby();
    let mut follow = pair.start_daemon(folder.path(), &["--max-rate", "64kB"]);
    follow.wait_for_value("cold replica is held out of the pooler");
    let unban = format!("UNBAN \"127.0.0.1:{}\"", pair.second.port());
    wait_until("the ban", TIMEOUT, || pair.console().query(&unban).is_ok());
    follow.wait_for_value("not held out again");
    assert_eq!(pair.bans(), 0);
    follow.terminate();
}

#[test]
fn replicas_of_a_pooler_are_discovered() {
    let folder = tempfile::tempdir().unwrap();
    let Some(pair) = PooledPair::start("warm discovery", folder.path()) else { return };
    let (uri, console) = (pair.first.uri("postgres"), pair.console_uri());
    let args = ["follow", &uri, "--discover-pooler", &console, "--listen", "127.0.0.1:0"];
    let mut follow =
        WarmProcess::start(folder.path(), &[&args[..], &["--interval", "1s"]].concat());
    let url = follow.wait_for_value("readiness: http://");
    let address = url.trim_end_matches("/warm").to_owned();
    follow.wait_for_value("server discovered");
    let query = format!("/warm?server=127.0.0.1:{}", pair.second.port());
    wait_until("a warm standby", TIMEOUT, || get(&address, &query).0 == 200);
    let (_, document) = get_json(&address, "/warm");
    assert_eq!(document["servers"].as_array().unwrap().len(), 2, "{document}");
    follow.terminate();

    // Without standbys and discovery there is nothing to do.
    let output = Command::new(assert_cmd::cargo::cargo_bin!("howdah"))
        .args(["warm", "follow", &uri])
        .env("HOME", folder.path())
        .output()
        .unwrap();
    assert!(!output.status.success());
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(messages.contains("--discover"), "{messages}");
}
