//! What `howdah top` tells: webhooks, alerts, a watch without a screen, metrics, pgtop's file.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    time::Duration,
};

use axum::{Router, body::Bytes, extract::State, http::HeaderMap, routing::post};
use howdah_connect::{Client, Environment, Target, Words};
use howdah_lab::{Cluster, or_say_why_not};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{howdah, text};

fn session(cluster: &Cluster) -> Client {
    let words = Words::from_conninfo(cluster.uri("postgres"));
    Client::connect(&Target::resolve(&words, &Environment::empty()).unwrap()).unwrap()
}

/// A web server that takes what is posted to `/services/T0/B0/secret`, and hands it on.
fn receiver() -> (String, Receiver<(HeaderMap, Value)>) {
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
                // The test is over.
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

/// Runs a statement for as long as the value lives.
struct Sleeper {
    cancel: howdah_connect::CancelHandle,
    thread: Option<std::thread::JoinHandle<String>>,
}

impl Sleeper {
    fn start(cluster: &Cluster, sql: &'static str) -> Self {
        let mut client = session(cluster);
        let cancel = client.cancel_handle().unwrap();
        // It ends by being cancelled.
        let run = move || client.query(sql).map(drop).unwrap_err().to_string();
        Self { cancel, thread: Some(std::thread::spawn(run)) }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.cancel.cancel().unwrap();
        self.thread.take().unwrap().join().unwrap();
    }
}

#[test]
fn a_channel_hears_once_of_a_statement_that_was_slow_before() {
    let Some(cluster) = or_say_why_not("top slack", Cluster::builder().start()) else { return };
    let (url, posts) = receiver();
    let folder = tempfile::tempdir().unwrap();
    let _sleeper = Sleeper::start(&cluster, "SELECT pg_sleep(600), '<!channel>'");
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
fn an_address_that_is_none_is_refused_and_not_shown() {
    let folder = tempfile::tempdir().unwrap();
    for words in [["--slack-webhook", "hooks/secret"], ["--webhook", "http://me:secret@h/"]] {
        let output = howdah(folder.path()).args(["top", "--once"]).args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let said = text(&output.stderr);
        assert!(said.contains("it is no URL to send to") && !said.contains("secret"), "{said}");
    }
    // Nor is one from the file of settings, in the help.
    fs::write(folder.path().join("howdah.toml"), "[top]\nslack-webhook = 'http://h/secret'\n")
        .unwrap();
    let output = howdah(folder.path()).args(["top", "--help"]).output().unwrap();
    assert!(!text(&output.stdout).contains("secret"));
}

/// The exit code and what was said, of one look with an alert.
fn looks(folder: &Path, cluster: &Cluster, alert: &str) -> (Option<i32>, String) {
    let uri = cluster.uri("postgres");
    let args = ["top", &uri, "--once", "--format", "ndjson", "--alert", alert];
    let output = howdah(folder).args(args).output().unwrap();
    (output.status.code(), text(&output.stderr))
}

#[test]
fn an_alert_that_holds_is_exit_3() {
    let Some(cluster) = or_say_why_not("top alert", Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut client = session(&cluster);
    client.query("BEGIN; SELECT 'kept'").unwrap();
    let (code, said) = looks(folder.path(), &cluster, "idle-in-transaction > 0s");
    assert_eq!(code, Some(3), "{said}");
    assert!(
        said.contains("idle-in-transaction > 0s: ") && said.contains("SELECT 'kept'"),
        "{said}"
    );
    assert_eq!(looks(folder.path(), &cluster, "idle-in-transaction > 1h").0, Some(0));
    assert_eq!(looks(folder.path(), &cluster, "connections > 0%").0, Some(3));
    let (code, said) = looks(folder.path(), &cluster, "connections > 5m");
    assert_eq!(code, Some(2));
    assert!(said.contains("is no percentage such as 90%"), "{said}");
}

#[test]
fn a_log_that_cannot_be_written_stops_nothing() {
    let Some(cluster) = or_say_why_not("top log", Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let uri = cluster.uri("postgres");
    let args = ["top", &uri, "--once", "--format", "ndjson", "--slow-log", "missing/slow.log"];
    let output = howdah(folder.path()).args(args).output().unwrap();
    assert!(output.status.success());
    assert_eq!(text(&output.stdout).lines().count(), 1);
    let said = text(&output.stderr);
    assert!(said.contains("cannot write slow statements to missing/slow.log"), "{said}");
}

/// A watch that runs.
struct Watching {
    child: Child,
    stderr: BufReader<std::process::ChildStderr>,
}

impl Watching {
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

    /// Reads lines until one holds `words`.
    fn until(&mut self, words: &str) -> String {
        let mut seen = String::new();
        loop {
            let mut line = String::new();
            assert_ne!(self.stderr.read_line(&mut line).unwrap(), 0, "no {words:?} in:\n{seen}");
            if line.contains(words) {
                return line;
            }
            seen += &line;
        }
    }

    /// SIGTERM; the exit code.
    fn end(mut self) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        // It may have ended long ago.
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
fn a_watch_tells_without_a_screen() {
    let Some(cluster) = or_say_why_not("top watch", Cluster::builder().start()) else { return };
    let (url, posts) = receiver();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("url"), format!("{url}\n")).unwrap();
    fs::write(folder.path().join("key"), "sesame\n").unwrap();
    let mut client = session(&cluster);
    client.query("BEGIN; SELECT 'kept'").unwrap();
    let uri = cluster.uri("postgres");
    let mut watching = Watching::start(
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
    let said = watching.until("metrics: http://");
    let address = said.trim().strip_prefix("metrics: http://").unwrap();
    let address = address.strip_suffix("/metrics").unwrap().to_owned();
    let line: Value = serde_json::from_str(&watching.until("an alert begins")).unwrap();
    assert_eq!(line["query"], "BEGIN; SELECT 'kept'");
    assert_eq!(line["level"], "WARN");
    let answer = scrape(&address);
    let line =
        answer.lines().find(|line| line.contains("subject=\"idle-in-transaction\"")).unwrap();
    assert!(line.starts_with("howdah_top_alerts{") && line.ends_with(" 1"), "{answer}");
    assert!(answer.contains("\nhowdah_top_server_up{"), "{answer}");
    client.query("ROLLBACK").unwrap();
    watching.until("an alert is over");
    assert_eq!(watching.end(), Some(0));
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
fn pgtop_s_file_is_taken_and_the_command_line_wins() {
    let Some(cluster) = or_say_why_not("top pgtop", Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let _sleeper = Sleeper::start(&cluster, "SELECT pg_sleep(600)");
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
    let (log, said) = run(&[]);
    assert_eq!(log, "", "the threshold of the file");
    assert!(said.contains("old:7: prompt: means nothing here"), "{said}");
    let (log, _) = run(&["--slow_threshold", "50ms"]);
    let fields: Vec<&str> = log.trim_end().split('\t').collect();
    assert_eq!((fields.len(), fields[2], fields[3]), (7, "postgres", "postgres"), "{log}");
    assert_eq!(fields[6], "SELECT pg_sleep(600)");
    fs::write(folder.path().join("old"), "delay=5\nthreshold=3\n").unwrap();
    let output = howdah(folder.path()).args(["top", "--config", "old"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("old:2: threshold: no such key"),
        "{}",
        text(&output.stderr)
    );
}

/// Longest that a scrape may take while others hold their connections.
const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn metrics_are_served_while_others_say_nothing() {
    let Some(cluster) = or_say_why_not("top scrape", Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let uri = cluster.uri("postgres");
    let mut watching = Watching::start(folder.path(), &[&uri, "--listen", "127.0.0.1:0"]);
    let said = watching.until("metrics: http://");
    let address = said.trim().strip_prefix("metrics: http://").unwrap();
    let address = address.strip_suffix("/metrics").unwrap().to_owned();
    let mut silent: Vec<TcpStream> =
        (0..200).map(|_| TcpStream::connect(&address).unwrap()).collect();
    for stream in silent.iter_mut().step_by(2) {
        stream.write_all(b"GET /metrics HTT").unwrap();
    }
    let (sender, scraped) = channel();
    std::thread::spawn(move || sender.send(scrape(&address)));
    let answer = scraped.recv_timeout(PATIENCE).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(watching.end(), Some(0));
}
