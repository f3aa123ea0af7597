//! Notifications of `howdah top`: webhooks, alerts, `--watch`, metrics; and pgtop's file.

use std::{
    fs,
    io::{BufReader, Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    time::Duration,
};

use axum::{Router, body::Bytes, extract::State, http::HeaderMap, routing::post};
use howdah_connect::{Client, ConnParams, ConnectTarget, Environment};
use howdah_lab::{Cluster, skip_without_postgres};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{howdah, text, wait_for_line};

fn session(cluster: &Cluster) -> Client {
    let words = ConnParams::from_conninfo(cluster.uri("postgres"));
    Client::connect(&ConnectTarget::resolve(&words, &Environment::empty()).unwrap()).unwrap()
}

/// A web server that sends each POST to `/services/T0/B0/secret` to a channel.
fn start_webhook_server() -> (String, Receiver<(HeaderMap, Value)>) {
    let (sender, posts) = channel();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let take = async |State(sender): State<std::sync::mpsc::Sender<_>>,
                              headers: HeaderMap,
                              body: Bytes| {
                // Fails only after the test has ended.
                let _ = sender.send((headers, serde_json::from_slice(&body).unwrap()));
                "ok"
            };
            let app = Router::new().route("/services/T0/B0/secret", post(take)).with_state(sender);
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            axum::serve(listener, app).await.unwrap();
        });
    });
    (format!("http://{address}/services/T0/B0/secret"), posts)
}

/// A statement that runs until the value is dropped, which cancels it.
struct SleepingStatement {
    cancel: howdah_connect::CancelHandle,
    thread: Option<std::thread::JoinHandle<String>>,
}

impl SleepingStatement {
    fn start(cluster: &Cluster, sql: &'static str) -> Self {
        let mut client = session(cluster);
        let cancel = client.cancel_handle().unwrap();
        // The statement ends with an error when it is cancelled.
        let run = move || client.query(sql).map(drop).unwrap_err().to_string();
        Self { cancel, thread: Some(std::thread::spawn(run)) }
    }
}

impl Drop for SleepingStatement {
    fn drop(&mut self) {
        self.cancel.cancel().unwrap();
        self.thread.take().unwrap().join().unwrap();
    }
}

#[test]
fn slack_is_notified_once_per_slow_statement() {
    let Some(cluster) = skip_without_postgres("top slack", Cluster::builder().start()) else {
        return;
    };
    let (url, posts) = start_webhook_server();
    let folder = tempfile::tempdir().unwrap();
    let _sleeper = SleepingStatement::start(&cluster, "SELECT pg_sleep(600), '<!channel>'");
    let uri = cluster.uri("postgres");
    let args = ["top", &uri, "--count", "40", "--interval", "100ms", "--format", "ndjson"];
    let slow = ["--slow_threshold", "300ms", "--slack_webhook", &url];
    let output = howdah(folder.path()).args(args).args(slow).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let (headers, body) = posts.try_recv().unwrap();
    assert_eq!(headers["content-type"], "application/json; charset=utf-8");
    let told = body["text"].as_str().unwrap();
    let first = told.lines().next().unwrap();
    assert!(first.starts_with("Slow postgres query on `"), "{told}");
    assert!(first.ends_with("` database `postgres` for user `postgres`"), "{told}");
    assert!(told.contains("\n```\nSELECT pg_sleep(600), '&lt;!channel&gt;'\n```\n"), "{told}");
    assert!(posts.try_recv().is_err(), "once");
}

#[test]
fn invalid_webhook_url_is_refused_and_not_printed() {
    let folder = tempfile::tempdir().unwrap();
    for words in [["--slack-webhook", "hooks/secret"], ["--webhook", "http://me:secret@h/"]] {
        let output = howdah(folder.path()).args(["top", "--once"]).args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let messages = text(&output.stderr);
        assert!(
            messages.contains("not a webhook URL") && !messages.contains("secret"),
            "{messages}"
        );
    }
    // The help does not print a webhook of the configuration file either.
    fs::write(folder.path().join("howdah.toml"), "[top]\nslack-webhook = 'http://h/secret'\n")
        .unwrap();
    let output = howdah(folder.path()).args(["top", "--help"]).output().unwrap();
    assert!(!text(&output.stdout).contains("secret"));
}

/// Takes one sample with an alert; returns exit code and stderr.
fn run_once(folder: &Path, cluster: &Cluster, alert: &str) -> (Option<i32>, String) {
    let uri = cluster.uri("postgres");
    let args = ["top", &uri, "--once", "--format", "ndjson", "--alert", alert];
    let output = howdah(folder).args(args).output().unwrap();
    (output.status.code(), text(&output.stderr))
}

#[test]
fn firing_alert_exits_3() {
    let Some(cluster) = skip_without_postgres("top alert", Cluster::builder().start()) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let mut client = session(&cluster);
    client.query("BEGIN; SELECT 'kept'").unwrap();
    let (code, messages) = run_once(folder.path(), &cluster, "idle-in-transaction > 0s");
    assert_eq!(code, Some(3), "{messages}");
    assert!(
        messages.contains("idle-in-transaction > 0s: ") && messages.contains("SELECT 'kept'"),
        "{messages}"
    );
    assert_eq!(run_once(folder.path(), &cluster, "idle-in-transaction > 1h").0, Some(0));
    assert_eq!(run_once(folder.path(), &cluster, "connections > 0%").0, Some(3));
    let (code, messages) = run_once(folder.path(), &cluster, "connections > 5m");
    assert_eq!(code, Some(2));
    assert!(messages.contains("use a percentage such as 90%"), "{messages}");
}

#[test]
fn unwritable_slow_log_does_not_stop_top() {
    let Some(cluster) = skip_without_postgres("top log", Cluster::builder().start()) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let uri = cluster.uri("postgres");
    let args = ["top", &uri, "--once", "--format", "ndjson", "--slow-log", "missing/slow.log"];
    let output = howdah(folder.path()).args(args).output().unwrap();
    assert!(output.status.success());
    assert_eq!(text(&output.stdout).lines().count(), 1);
    let messages = text(&output.stderr);
    assert!(messages.contains("cannot write slow statements to missing/slow.log"), "{messages}");
}

/// A running `howdah top --watch`.
struct WatchProcess {
    child: Child,
    stderr: BufReader<std::process::ChildStderr>,
}

impl WatchProcess {
    fn start(folder: &Path, words: &[&str]) -> Self {
        let mut child = Command::new(assert_cmd::cargo::cargo_bin!("howdah"))
            .args(["top", "--watch", "--interval", "100ms", "--log-format", "json"])
            .args(words)
            .current_dir(folder)
            .env("HOME", folder)
            .stderr(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        Self { child, stderr }
    }

    /// Reads stderr until a line contains `part`, and returns that line.
    fn wait_for_line(&mut self, part: &str) -> String {
        wait_for_line(&mut self.stderr, &mut String::new(), part).to_owned()
    }

    /// Sends SIGTERM and returns the exit code.
    fn terminate(mut self) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for WatchProcess {
    fn drop(&mut self) {
        // Fails if the process has exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn scrape(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn watch_logs_alerts_and_calls_webhook() {
    let Some(cluster) = skip_without_postgres("top watch", Cluster::builder().start()) else {
        return;
    };
    let (url, posts) = start_webhook_server();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("url"), format!("{url}\n")).unwrap();
    fs::write(folder.path().join("key"), "sesame\n").unwrap();
    let mut client = session(&cluster);
    client.query("BEGIN; SELECT 'kept'").unwrap();
    let uri = cluster.uri("postgres");
    let mut watching = WatchProcess::start(
        folder.path(),
        &[
            &uri,
            "--alert",
            "idle-in-transaction > 200ms",
            "--webhook-file",
            "url",
            "--webhook-key-file",
            "key",
            "--listen",
            "127.0.0.1:0",
        ],
    );
    let messages = watching.wait_for_line("metrics: http://");
    let address = messages.trim().strip_prefix("metrics: http://").unwrap();
    let address = address.strip_suffix("/metrics").unwrap().to_owned();
    let line: Value = serde_json::from_str(&watching.wait_for_line("alert started")).unwrap();
    assert_eq!(line["query"], "BEGIN; SELECT 'kept'");
    assert_eq!(line["level"], "WARN");
    let answer = scrape(&address);
    let line =
        answer.lines().find(|line| line.contains("subject=\"idle-in-transaction\"")).unwrap();
    assert!(line.starts_with("howdah_top_alerts{") && line.ends_with(" 1"), "{answer}");
    assert!(answer.contains("\nhowdah_top_server_up{"), "{answer}");
    client.query("ROLLBACK").unwrap();
    watching.wait_for_line("alert ended");
    assert_eq!(watching.terminate(), Some(0));
    let states: Vec<Value> = posts
        .iter()
        .map(|(headers, body)| {
            assert!(headers["howdah-signature"].to_str().unwrap().starts_with("sha256="));
            body
        })
        .flat_map(|body| body["events"].as_array().unwrap().clone())
        .map(|event| event["state"].clone())
        .take(2)
        .collect();
    assert_eq!(states, ["began", "ended"]);
}

#[test]
fn pgtop_file_is_read_and_command_line_wins() {
    let Some(cluster) = skip_without_postgres("top pgtop", Cluster::builder().start()) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let _sleeper = SleepingStatement::start(&cluster, "SELECT pg_sleep(600)");
    let host = cluster.uri("postgres");
    let host = host.split('@').nth(1).unwrap().split('/').next().unwrap();
    let written = format!(
        "# from the old machine\nhost = {host}\nuser=postgres\ndb=postgres\n\
         delay=0.1 # seconds\nslow_threshold=3600\nprompt=0\n"
    );
    fs::write(folder.path().join("old"), written).unwrap();
    let run = |words: &[&str]| {
        let args = ["top", "--config", "old", "--count", "10", "--format", "ndjson"];
        let output = howdah(folder.path()).args(args).args(words).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        (fs::read_to_string(folder.path().join("pgtop.log")).unwrap(), text(&output.stderr))
    };
    let (log, messages) = run(&[]);
    assert_eq!(log, "", "the threshold of the file applies");
    assert!(messages.contains("old:7: prompt: has no effect"), "{messages}");
    let (log, _) = run(&["--slow_threshold", "50ms"]);
    let fields: Vec<&str> = log.trim_end().split('\t').collect();
    assert_eq!((fields.len(), fields[2], fields[3]), (7, "postgres", "postgres"), "{log}");
    assert_eq!(fields[6], "SELECT pg_sleep(600)");
    fs::write(folder.path().join("old"), "delay=5\nthreshold=3\n").unwrap();
    let output = howdah(folder.path()).args(["top", "--config", "old"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("old:2: threshold: unknown key"),
        "{}",
        text(&output.stderr)
    );
}

/// Maximum time for a scrape while other connections are idle.
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(30);

#[test]
fn metrics_are_served_despite_silent_connections() {
    let Some(cluster) = skip_without_postgres("top scrape", Cluster::builder().start()) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let uri = cluster.uri("postgres");
    let mut watching = WatchProcess::start(folder.path(), &[&uri, "--listen", "127.0.0.1:0"]);
    let messages = watching.wait_for_line("metrics: http://");
    let address = messages.trim().strip_prefix("metrics: http://").unwrap();
    let address = address.strip_suffix("/metrics").unwrap().to_owned();
    let mut silent: Vec<TcpStream> =
        (0..200).map(|_| TcpStream::connect(&address).unwrap()).collect();
    for stream in silent.iter_mut().step_by(2) {
        stream.write_all(b"GET /metrics HTT").unwrap();
    }
    let (sender, scraped) = channel();
    std::thread::spawn(move || sender.send(scrape(&address)));
    let answer = scraped.recv_timeout(SCRAPE_TIMEOUT).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(watching.terminate(), Some(0));
}
