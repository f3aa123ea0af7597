//! `--metrics`: the metrics of a running replay.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
};

use crate::{
    logs::LogBuilder,
    support::{AdvisoryLock, ReplayFixture, ReplayProcess, TIMEOUT},
};

#[test]
fn metrics_of_running_replay_are_current() {
    let Some(fixture) = ReplayFixture::new("watched") else { return };
    let mut log = LogBuilder::new("watched");
    let statements = ["select 1", "select 1/0", "copy pg_class from stdin", "select 2"];
    log.session(1, &statements).query(1_000, 1, "select pg_advisory_lock(6)");
    fixture.write("server.log", &log.text);
    let mut lock = AdvisoryLock::acquire(fixture.client(), 6);
    let words = ["--metrics", "127.0.0.1:0"];
    let mut running =
        ReplayProcess::start(fixture.folder.path(), "server.log", &fixture.uri(), &words);
    let mut lines = BufReader::new(running.child().stderr.take().unwrap()).lines();
    let address = lines
        .find_map(|line| {
            let line = line.unwrap();
            let address = line.strip_prefix("metrics: http://")?.strip_suffix("/metrics")?;
            Some(address.to_owned())
        })
        .expect("no address of metrics was printed");
    lock.wait_for_waiter();
    let numbers = howdah_lab::wait_for("the waiting statement in the metrics", TIMEOUT, || {
        let numbers = scrape(&address);
        numbers.contains("\nhowdah_replay_statements_in_flight 1\n").then_some(numbers)
    });
    let line = |start: &str| {
        let found = numbers.lines().find_map(|line| line.strip_prefix(start));
        found.unwrap_or_else(|| panic!("no {start} in {numbers}")).trim().to_owned()
    };
    let number = |start: &str| line(start).parse::<f64>().unwrap();
    // The last statement that ended was due at 10:00:00.004: the one at 10:00:01 waits for the
    // lock.
    assert_eq!(number("howdah_replay_ended_position_timestamp_seconds"), 1_795_168_800.004);
    assert!(number("howdah_replay_lag_seconds") >= 0.0);
    assert_eq!(number("howdah_replay_connections_active"), 1.0);
    assert_eq!(number("howdah_replay_events_read_total"), 6.0);
    assert_eq!(number(r#"howdah_replay_errors_total{sqlstate="22012"}"#), 1.0);
    let skipped = r#"howdah_replay_skipped_total{reason="rows of COPY FROM STDIN not captured"}"#;
    assert_eq!(number(skipped), 1.0);
    assert_eq!(number(r#"howdah_replay_events_total{kind="simple",end="done"}"#), 2.0);
    assert_eq!(number("howdah_replay_latency_seconds_count"), 3.0);
    lock.release();
    let output = running.child().wait().unwrap();
    assert!(output.success());
}

fn scrape(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer
}

#[test]
fn result_is_sent_to_webhook() {
    let Some(fixture) = ReplayFixture::new("webhook") else { return };
    let mut log = LogBuilder::new("webhook");
    log.session(1, &["select 1", "select 2"]);
    fixture.write("server.log", &log.text);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let receiver = std::thread::spawn(move || {
        // The first request gets no reply and is repeated.
        drop(listener.accept().unwrap());
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut reader = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(reader.read_line(&mut head).unwrap(), 0, "{head}");
        }
        let length = head.lines().find_map(|line| {
            line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok()
        });
        let mut body = vec![0; length.unwrap_or_else(|| panic!("{head}"))];
        reader.read_exact(&mut body).unwrap();
        reader.get_mut().write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
        body
    });
    let mut command = fixture.howdah();
    command
        .args(["replay", "server.log", "--target", &fixture.uri()])
        .env("HOWDAH_REPLAY_WEBHOOK", format!("http://{address}/secret-path"))
        .assert()
        .success();
    let report: serde_json::Value = serde_json::from_slice(&receiver.join().unwrap()).unwrap();
    assert_eq!(report["executions"]["done"], 2, "{report}");
}
