//! `howdah agent` and `howdah top --agent`, with real servers, on a terminal and without.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead as _, BufReader},
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use howdah_lab::{Cluster, skip_without_postgres, wait_until};
use rustix::process::Signal;
use serde_json::Value;

use crate::{
    certificates::Certificates,
    howdah,
    report_serve::{get, request},
    text,
    tmux::Tmux,
    top_screen::session,
};

/// Time limit of each wait.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// A running `howdah agent`.
struct Agent {
    child: Child,
    url: String,
}

impl Agent {
    fn start(folder: &Path, cluster: &Cluster, args: &[&str]) -> Self {
        let mut child = Command::new(assert_cmd::cargo::cargo_bin!("howdah"))
            .args(["agent", "--data-dir"])
            .arg(cluster.data_dir())
            .args(args)
            .current_dir(folder)
            .env("HOME", folder)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("agent: ").unwrap_or_else(|| panic!("{line:?}")).into();
        // The rest is read, so that the agent never waits for a full pipe.
        thread::spawn(move || lines.lines().for_each(drop));
        Self { child, url }
    }

    fn address(&self) -> SocketAddr {
        self.url.rsplit('/').next().unwrap().parse().unwrap()
    }

    /// Sends a signal, and returns the exit code.
    fn end(mut self, signal: Signal) -> Option<i32> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
        let mut status = None;
        wait_until("the agent ends", WAIT_TIMEOUT, || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().code()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // An agent that has already ended cannot be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The samples of a `top` without screen, each with its rows, and what it wrote to stderr.
fn top(folder: &Path, cluster: &Cluster, args: &[&str]) -> (Vec<Vec<Value>>, String) {
    let uri = cluster.uri("postgres");
    let output = howdah(folder)
        // A sample waits for the agent for a quarter of the interval.
        .args(["top", &uri, "--format", "json", "--interval", "4s", "--idle"])
        .args(args)
        .timeout(WAIT_TIMEOUT)
        .output()
        .unwrap();
    let messages = text(&output.stderr);
    assert!(output.status.success(), "{messages}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = |sample: &Value| sample["rows"].as_array().unwrap().clone();
    (document["samples"].as_array().unwrap().iter().map(rows).collect(), messages)
}

/// A figure of a process in the last of the samples.
fn figure(samples: &[Vec<Value>], pid: i64, name: &str) -> Option<f64> {
    let row = samples.last().unwrap().iter().find(|row| row["pid"] == pid);
    row.unwrap_or_else(|| panic!("no process {pid} in {samples:?}"))[name].as_f64()
}

/// Occupies a session until the value is dropped; returns its process id.
struct BusySession {
    pid: i64,
    cluster_uri: String,
    thread: Option<thread::JoinHandle<()>>,
}

impl BusySession {
    fn start(cluster: &Cluster) -> Self {
        let mut client = session(cluster);
        let pid = client.one_value("SELECT pg_backend_pid()").unwrap().unwrap().parse().unwrap();
        let thread = thread::spawn(move || {
            // It ends with an error when it is terminated.
            let _ = client.query("SELECT sum(sin(i)) FROM generate_series(1, 100000000000) i");
        });
        Self { pid, cluster_uri: cluster.uri("postgres"), thread: Some(thread) }
    }
}

impl Drop for BusySession {
    fn drop(&mut self) {
        let params = howdah_connect::ConnParams::from_conninfo(&self.cluster_uri);
        let environment = howdah_connect::Environment::empty();
        let target = howdah_connect::ConnectTarget::resolve(&params, &environment).unwrap();
        if let Ok(mut client) = howdah_connect::Client::connect(&target) {
            let _ = client.query(&format!("SELECT pg_terminate_backend({})", self.pid));
        }
        let _ = self.thread.take().map(thread::JoinHandle::join);
    }
}

#[test]
fn figures_of_a_busy_session_are_those_read_locally() {
    let test = "figures_of_a_busy_session_are_those_read_locally";
    for major in [14, 18] {
        let started = Cluster::builder().major(major).start();
        let Some(mut cluster) = skip_without_postgres(test, started) else { continue };
        let folder = tempfile::tempdir().unwrap();
        let agent = Agent::start(folder.path(), &cluster, &["--listen", "127.0.0.1:0"]);
        let busy = BusySession::start(&cluster);
        let (local, _) = top(folder.path(), &cluster, &["--count", "2"]);
        let (remote, messages) =
            top(folder.path(), &cluster, &["--count", "3", "--agent", &agent.url]);
        assert!(!messages.contains("agent"), "{messages}");
        let figures = |name| (figure(&local, busy.pid, name), figure(&remote, busy.pid, name));
        let (local_cpu, remote_cpu) = figures("cpu");
        // Other tests also use the processors.
        assert!(local_cpu > Some(5.0) && remote_cpu > Some(5.0), "{local_cpu:?} {remote_cpu:?}");
        assert!(remote_cpu < Some(110.0), "{remote_cpu:?}");
        let (local_memory, remote_memory) = figures("memory");
        let (local_memory, remote_memory) = (local_memory.unwrap(), remote_memory.unwrap());
        let ratio = remote_memory / local_memory;
        assert!((0.8..1.25).contains(&ratio), "{local_memory} {remote_memory}");
        let (local_read, remote_read) = figures("read");
        assert_eq!(local_read.is_some(), remote_read.is_some());
        // The sets of processes with figures are equal, too.
        let pids = |samples: &[Vec<Value>]| -> BTreeSet<i64> {
            let with_memory = |row: &&Value| row["memory"].is_number() && row["database"].is_null();
            samples
                .last()
                .unwrap()
                .iter()
                .filter(with_memory)
                .filter_map(|row| row["pid"].as_i64())
                .collect()
        };
        let both: BTreeSet<i64> = pids(&local).intersection(&pids(&remote)).copied().collect();
        assert!(both.len() >= 3, "{:?} {:?}", pids(&local), pids(&remote));

        // After a restart of the server, the same agent finds it again.
        drop(busy);
        cluster.restart().unwrap();
        let (remote, messages) =
            top(folder.path(), &cluster, &["--count", "3", "--agent", &agent.url]);
        assert!(!messages.contains("agent"), "{messages}");
        assert!(remote[2].iter().any(|row| row["memory"].is_number()), "{remote:?}");
        cluster.stop().unwrap();
        let reply = get(agent.address(), "/processes");
        assert_eq!((reply.status, &*reply.body), (503, "the server is not running\n"));
        assert_eq!(agent.end(Signal::TERM), Some(0));
    }
}

#[test]
fn reply_has_numbers_of_the_server_only() {
    let test = "reply_has_numbers_of_the_server_only";
    let Some(cluster) = skip_without_postgres(test, Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let agent = Agent::start(folder.path(), &cluster, &["--listen", "127.0.0.1:0"]);
    let mut client = session(&cluster);
    client.query("SELECT 'a secret statement'").unwrap();
    let reply = get(agent.address(), "/processes");
    assert_eq!(reply.status, 200, "{reply:?}");
    let reading: Value = serde_json::from_str(&reply.body).unwrap();
    let keys =
        |value: &Value| -> Vec<String> { value.as_object().unwrap().keys().cloned().collect() };
    assert_eq!(keys(&reading), ["booted_s", "format", "host", "processes", "system_identifier"]);
    let expected =
        ["available_bytes", "counters", "load", "memory_bytes", "swap_bytes", "swap_used_bytes"];
    assert_eq!(keys(&reading["host"]), expected);
    let identifier = client.one_value("SELECT system_identifier FROM pg_control_system()").unwrap();
    assert_eq!(reading["system_identifier"].as_str(), identifier.as_deref());
    let processes = reading["processes"].as_array().unwrap();
    let expected = [
        "at_us",
        "cpu_ticks",
        "memory_bytes",
        "pid",
        "read_bytes",
        "started_ticks",
        "written_bytes",
    ];
    assert_eq!(keys(&processes[0]), expected);
    let postmaster = cluster.pid().unwrap();
    let children = fs::read_to_string(format!("/proc/{postmaster}/task/{postmaster}/children"));
    let children: BTreeSet<i64> =
        children.unwrap().split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    let own = client.one_value("SELECT pg_backend_pid()").unwrap().unwrap().parse().unwrap();
    let found: BTreeSet<i64> =
        processes.iter().filter_map(|process| process["pid"].as_i64()).collect();
    assert!(found.contains(&own));
    // A worker may have started or ended in between.
    assert!(found.difference(&children).count() <= 2, "{found:?} {children:?}");

    let address = agent.address();
    let refused = [
        (format!("POST /processes HTTP/1.1\r\nHost: {address}\r\nContent-Length: 0"), 405),
        ("GET /processes HTTP/1.1\r\nHost: evil.example".to_owned(), 403),
        (format!("GET /processes HTTP/1.1\r\nHost: {address}\r\nOrigin: http://{address}"), 403),
        (format!("GET / HTTP/1.1\r\nHost: {address}"), 404),
        (format!("GET /processes HTTP/1.1\r\nHost: {address}\r\nX: {}", "x".repeat(1 << 20)), 431),
    ];
    for (head, status) in refused {
        let reply = request(address, &head);
        // The reply to a head that is too large can be lost, because the rest is not read.
        let is_lost = status == 431 && reply.status == 0;
        assert!(reply.status == status || is_lost, "{}: {reply:?}", &head[..40]);
        assert!(!reply.body.contains("processes\":"), "{reply:?}");
    }
}

#[test]
fn other_machines_need_a_certificate() {
    let test = "other_machines_need_a_certificate";
    let Some(cluster) = skip_without_postgres(test, Cluster::builder().start()) else { return };
    let Some(certificates) = Certificates::new(test) else { return };
    certificates.self_signed("root", "howdah test root", &[]);
    certificates.self_signed("stranger", "another root", &[]);
    certificates.signed("agent", "unused", "root", "subjectAltName=DNS:localhost\n");
    certificates.signed("client", "top", "root", "extendedKeyUsage=clientAuth\n");
    certificates.signed("intruder", "top", "stranger", "extendedKeyUsage=clientAuth\n");
    let folder = tempfile::tempdir().unwrap();
    let data_dir = cluster.data_dir().to_str().unwrap();
    for address in ["0.0.0.0:0", "[::]:0"] {
        let mut command = howdah(folder.path());
        command.args(["agent", "--data-dir", data_dir, "--listen", address]);
        let output = command.timeout(WAIT_TIMEOUT).output().unwrap();
        let messages = text(&output.stderr);
        assert!(!output.status.success(), "{messages}");
        let parts = ["is not a loopback address", "--tls-client-ca", "SSH tunnel"];
        assert!(parts.iter().all(|part| messages.contains(part)), "{messages}");
    }
    let path = |file: &str| certificates.path(file).to_str().unwrap().to_owned();
    let (certificate, key, root) = (path("agent.crt"), path("agent.key"), path("root.crt"));
    let one_missing = ["agent", "--data-dir", data_dir, "--tls-cert", &certificate];
    let output = howdah(folder.path()).args(one_missing).timeout(WAIT_TIMEOUT).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));

    let tls = ["--tls-cert", &certificate, "--tls-key", &key, "--tls-client-ca", &root];
    let args = [&["--listen", "0.0.0.0:0"][..], &tls].concat();
    let agent = Agent::start(folder.path(), &cluster, &args);
    let url = format!("https://localhost:{}", agent.address().port());
    let ca = ["--count", "3", "--agent", &url, "--agent-ca", &root];
    let has_figures =
        |samples: &[Vec<Value>]| samples.iter().flatten().any(|row| row["memory"].is_number());
    let has_reason = |messages: &str| {
        let of_agent = |line: &&str| line.contains("no figures of the host");
        messages.lines().filter(of_agent).any(|line| !line.contains("no reply yet"))
    };
    let (client, client_key) = (path("client.crt"), path("client.key"));
    let identity = ["--agent-cert", &client, "--agent-key", &client_key];
    let (samples, messages) = top(folder.path(), &cluster, &[&ca[..], &identity].concat());
    assert!(has_figures(&samples), "{messages}");

    let (intruder, intruder_key) = (path("intruder.crt"), path("intruder.key"));
    let identity = ["--agent-cert", &intruder, "--agent-key", &intruder_key];
    for identity in [&[][..], &identity] {
        let (samples, messages) = top(folder.path(), &cluster, &[&ca[..], identity].concat());
        assert!(!has_figures(&samples), "{messages}");
        // The agent ends the connection.
        assert!(has_reason(&messages), "{messages}");
    }
    // Neither is a client served that does not use TLS, nor is an agent with another CA trusted.
    let plain = format!("http://localhost:{}", agent.address().port());
    let (samples, messages) = top(folder.path(), &cluster, &["--count", "3", "--agent", &plain]);
    assert!(!has_figures(&samples) && has_reason(&messages), "{messages}");
    let stranger = path("stranger.crt");
    let other_ca = ["--count", "3", "--agent", &url, "--agent-ca", &stranger];
    let (samples, messages) = top(folder.path(), &cluster, &other_ca);
    assert!(!has_figures(&samples) && messages.contains("certificate"), "{messages}");
}

#[test]
fn screen_shows_that_an_agent_is_away_and_back() {
    let test = "screen_shows_that_an_agent_is_away_and_back";
    let Some(cluster) = skip_without_postgres(test, Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let agent = Agent::start(folder.path(), &cluster, &["--listen", "127.0.0.1:0"]);
    let address = agent.address().to_string();
    let busy = BusySession::start(&cluster);
    let pid = busy.pid.to_string();
    // Options of the configuration file have the same effect.
    let config = folder.path().join("agent.toml");
    fs::write(&config, format!("[top]\nagent = [\"{}\"]\n", agent.url)).unwrap();
    let uri = cluster.uri("postgres");
    let args = ["--config", config.to_str().unwrap(), "top", &uri, "--interval", "300ms"];
    let Some(tmux) = Tmux::start(test, folder.path(), (200, 40), &[], &args) else { return };
    let line = |screen: &str, start: &str| -> String {
        screen.lines().find(|line| line.starts_with(start)).unwrap_or_default().to_owned()
    };
    let has_figures = |screen: &str| {
        let row = screen.lines().skip(1).find(|line| line.contains(&pid)).unwrap_or_default();
        let host = line(screen, "host cpu ");
        host.contains("memory free ") && !host.contains("host cpu -") && row.contains('%')
    };
    tmux.wait_for("figures of the agent", has_figures);
    tmux.press(&["Enter"]);
    tmux.wait_for("figures on the session's page", |screen| {
        screen.contains("cpu ") && screen.contains("disk read")
    });
    tmux.press(&["Escape"]);
    agent.end(Signal::KILL);
    let screen = tmux.wait_for("no figures", |screen| {
        screen.contains("agent away: ") && line(screen, "host cpu ").is_empty()
    });
    let row = screen.lines().skip(1).find(|line| line.contains(&pid)).unwrap_or_default();
    assert!(screen.contains("CPU") && !row.contains('%'), "{screen}");
    let agent = Agent::start(folder.path(), &cluster, &["--listen", &address]);
    tmux.wait_for("figures of the new agent", |screen| {
        has_figures(screen) && !screen.contains("agent away")
    });
    assert_eq!(agent.end(Signal::INT), Some(0));
}

#[test]
fn agent_of_another_server_is_refused() {
    let test = "agent_of_another_server_is_refused";
    let Some(cluster) = skip_without_postgres(test, Cluster::builder().start()) else { return };
    let Some(mut other) = skip_without_postgres(test, Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let agent = Agent::start(folder.path(), &other, &["--listen", "127.0.0.1:0"]);
    let (samples, messages) =
        top(folder.path(), &cluster, &["--count", "3", "--agent", &agent.url]);
    assert!(messages.contains("refused: it reads another server"), "{messages}");
    assert!(samples.iter().flatten().all(|row| row["memory"].is_null()), "{samples:?}");
    drop(agent);

    // A copy has the same system identifier.
    other.stop().unwrap();
    let copy = other.clone_stopped(Cluster::builder()).unwrap();
    other.start().unwrap();
    let agent = Agent::start(folder.path(), &copy, &["--listen", "127.0.0.1:0"]);
    let (samples, messages) = top(folder.path(), &other, &["--count", "3", "--agent", &agent.url]);
    assert!(messages.contains("without the process of our connection"), "{messages}");
    assert!(samples.iter().flatten().all(|row| row["memory"].is_null()), "{samples:?}");
}

#[test]
fn silent_agent_does_not_stop_top() {
    let test = "silent_agent_does_not_stop_top";
    let Some(cluster) = skip_without_postgres(test, Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    // Connections are accepted by the kernel; no program reads or writes.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let (samples, messages) = top(folder.path(), &cluster, &["--count", "3", "--agent", &url]);
    assert!(messages.contains("away: no reply yet"), "{messages}");
    assert!(samples.len() == 3 && samples.iter().all(|rows| !rows.is_empty()), "{samples:?}");
    assert!(samples.iter().flatten().all(|row| row["memory"].is_null()), "{samples:?}");

    // The screen reacts to keys.
    let uri = cluster.uri("postgres");
    let args = ["top", &uri, "--interval", "300ms", "--agent", &url];
    let Some(tmux) = Tmux::start(test, folder.path(), (140, 40), &[], &args) else { return };
    tmux.wait_for_text("agent away: ");
    tmux.press(&["?"]);
    tmux.wait_for_text("Keys");
}

#[test]
fn wrong_options_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let missing: PathBuf = folder.path().join("missing.crt");
    let missing = missing.to_str().unwrap();
    let https = "https://localhost:1";
    for (args, expected) in [
        (&["--agent", "localhost:9190"][..], "not a valid endpoint URL"),
        (&["--agent", "http://a:1", "--agent", "http://b:1"], "more --agent options than servers"),
        (&["--agent", "http://a:1", "--agent-ca", missing], "apply to an --agent https://"),
        (&["--agent", https, "--agent-cert", missing], "--agent-key"),
        (&["--agent", https, "--agent-cert", missing, "--agent-key", missing], "missing.crt"),
        (&["--agent", https, "--agent-ca", missing], "missing.crt"),
    ] {
        let mut command = howdah(folder.path());
        command.args(["top", "host=127.0.0.1 port=1", "--once"]).args(args);
        let output = command.timeout(WAIT_TIMEOUT).output().unwrap();
        let messages = text(&output.stderr);
        assert!(!output.status.success() && messages.contains(expected), "{args:?}: {messages}");
    }
}
