//! Tests with a web server whose responses follow a script.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::mpsc::{Receiver, channel},
    time::Duration,
};

use howdah_lab::wait_until;
use serde_json::Value;

use super::{RetryPolicy, Webhook, WebhookEvent, WebhookFormat, WebhookSender};
use crate::slow_statements::SlowStatement;

/// A received request.
struct ReceivedRequest {
    head: String,
    body: Value,
}

impl ReceivedRequest {
    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (header, value) = line.split_once(": ")?;
            header.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

/// Starts a receiver that responds to the nth request with the nth of `answers`, then with 200, and
/// that forwards the requests. It ends when the test drops the receiving side.
fn receiver(answers: &'static [&'static str]) -> (String, Receiver<ReceivedRequest>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/services/T0/B0/secret", listener.local_addr().unwrap());
    let (sender, requests) = channel();
    std::thread::spawn(move || {
        let answers = answers.iter().copied().map(Some).chain(std::iter::repeat(None));
        for (stream, answer) in listener.incoming().zip(answers) {
            let Ok(request) = read(&mut stream.unwrap(), answer.unwrap_or("200 OK\r\n")) else {
                continue;
            };
            if sender.send(request).is_err() {
                return;
            }
        }
    });
    (url, requests)
}

fn read(stream: &mut TcpStream, answer: &str) -> Result<ReceivedRequest, std::io::Error> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    let end = loop {
        let count = stream.read(&mut buffer)?;
        bytes.extend_from_slice(&buffer[..count]);
        let text = String::from_utf8_lossy(&bytes);
        let Some(end) = text.find("\r\n\r\n") else { continue };
        let length = text.lines().find_map(|line| line.strip_prefix("content-length: "));
        if bytes.len() >= end + 4 + length.unwrap().parse::<usize>().unwrap() {
            break end;
        }
    };
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let body = serde_json::from_slice(&bytes[end + 4..]).unwrap();
    write!(stream, "HTTP/1.1 {answer}\r\n")?;
    Ok(ReceivedRequest { head, body })
}

const RETRY_POLICY: RetryPolicy = RetryPolicy {
    initial_delay: Duration::from_millis(1),
    max_delay: Duration::from_millis(4),
    message_interval: Duration::ZERO,
    give_up_after: Duration::from_secs(60),
};

fn slow(pid: i32) -> WebhookEvent {
    WebhookEvent::Slow(SlowStatement {
        server: "db1".to_owned(),
        database: "shop".to_owned(),
        user: "app".to_owned(),
        pid,
        seconds: 61.0,
        sampled_us: 0,
        query: "select '<!channel>'".to_owned(),
    })
}

fn start_sender(url: &str, form: WebhookFormat) -> WebhookSender {
    WebhookSender::start(Webhook::new(url, form, None).unwrap(), RETRY_POLICY).unwrap()
}

fn next(requests: &Receiver<ReceivedRequest>) -> ReceivedRequest {
    requests.recv_timeout(Duration::from_secs(30)).unwrap()
}

#[test]
fn message_is_delivered_once() {
    let (url, requests) = receiver(&[]);
    let webhook_sender = start_sender(&url, WebhookFormat::Slack);
    webhook_sender.notify([slow(7)]);
    let request = next(&requests);
    assert!(request.head.starts_with("POST /services/T0/B0/secret HTTP/1.1\r\n"));
    assert_eq!(request.header("Content-Type"), Some("application/json; charset=utf-8"));
    let text = request.body["text"].as_str().unwrap();
    assert!(text.starts_with("Slow postgres query on `db1` database `shop` for user `app`\n"));
    assert!(text.contains("select '&lt;!channel&gt;'"));
    webhook_sender.finish(Duration::from_secs(30));
    assert_eq!(webhook_sender.problem(), None);
    assert!(requests.try_recv().is_err(), "once");
}

#[test]
fn rejected_message_is_retried_with_the_same_id() {
    let (url, requests) = receiver(&["503 Busy\r\n", "429 Slow\r\nRetry-After: 0\r\n"]);
    let webhook_sender = start_sender(&url, WebhookFormat::Slack);
    webhook_sender.notify([slow(7)]);
    let (first, second, third) = (next(&requests), next(&requests), next(&requests));
    let id = first.header("Idempotency-Key").unwrap();
    assert_eq!(id.len(), 32);
    assert_eq!(
        (second.header("Idempotency-Key"), third.header("Idempotency-Key")),
        (Some(id), Some(id))
    );
    assert_eq!(first.body, third.body);
    webhook_sender.finish(Duration::from_secs(30));
    assert_eq!(webhook_sender.problem(), None, "it got through in the end");
    webhook_sender.notify([slow(8)]);
    assert!(requests.try_recv().is_err(), "nothing is sent after the end");
}

#[test]
fn events_queued_during_outage_are_batched() {
    // The listener is dropped at once, so that connections to its port are refused.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let webhook_sender =
        start_sender(&format!("http://{address}/secret"), WebhookFormat::Document { key: None });
    webhook_sender.notify([slow(0)]);
    wait_until("a failed delivery", Duration::from_secs(30), || webhook_sender.problem().is_some());
    let problem = webhook_sender.problem().unwrap();
    assert!(
        problem.starts_with(&format!("webhook http://{address}: delivery failed")),
        "{problem}"
    );
    assert!(!problem.contains("secret"));
    webhook_sender.notify((1..=2_000).map(slow));
    let listener = TcpListener::bind(address).unwrap();
    let take = || read(&mut listener.accept().unwrap().0, "200 OK\r\n").unwrap().body;
    let count = |body: &Value| body["events"].as_array().unwrap().len();
    assert_eq!(count(&take()), 1);
    let second = take();
    assert_eq!((count(&second), &second["dropped"]), (200, &1_000.into()));
    let rest: usize = (0..4).map(|_| count(&take())).sum();
    assert_eq!(rest, 800, "the queue is bounded");
    webhook_sender.finish(Duration::from_secs(30));
    assert_eq!(webhook_sender.problem(), None);
}

#[test]
fn refused_message_is_dropped_and_reported() {
    let (url, requests) = receiver(&["400 Bad Request\r\n"]);
    let webhook_sender = start_sender(&url, WebhookFormat::Slack);
    webhook_sender.notify([slow(7)]);
    next(&requests);
    wait_until("a failed delivery", Duration::from_secs(30), || webhook_sender.problem().is_some());
    assert!(webhook_sender.problem().unwrap().contains("given up: HTTP status 400"));
    webhook_sender.notify([slow(8)]);
    let text = next(&requests).body["text"].as_str().unwrap().to_owned();
    assert!(
        text.contains("Query ID 8") && text.ends_with("1 other events were dropped\n"),
        "{text}"
    );
    webhook_sender.finish(Duration::from_secs(30));
    assert_eq!(webhook_sender.problem(), None);
}

#[test]
fn signature_can_be_verified_by_receiver() {
    let (url, requests) = receiver(&[]);
    let webhook_sender =
        start_sender(&url, WebhookFormat::Document { key: Some((*b"key").into()) });
    webhook_sender.notify([slow(7)]);
    let request = next(&requests);
    let signature = request.header("Howdah-Signature").unwrap().strip_prefix("sha256=").unwrap();
    let signed = format!("{}.{}", request.header("Howdah-Timestamp").unwrap(), request.body);
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, b"key");
    let tag = ring::hmac::sign(&key, signed.as_bytes());
    let expected: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(signature, expected);
    webhook_sender.finish(Duration::from_secs(30));
}

#[test]
fn unresponsive_receiver_does_not_delay_shutdown() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let webhook_sender = start_sender(&url, WebhookFormat::Slack);
    webhook_sender.notify([slow(7)]);
    // The connection is accepted but never answered.
    let _stream = listener.accept().unwrap();
    webhook_sender.finish(Duration::from_millis(50));
}

#[test]
fn webhook_url_is_not_shown() {
    let webhook =
        Webhook::new("https://hooks.example/services/secret", WebhookFormat::Slack, None).unwrap();
    assert_eq!(webhook.origin(), "https://hooks.example:443");
    assert!(!format!("{webhook:?}").contains("secret"));
    let error = Webhook::new("hooks.example/secret", WebhookFormat::Slack, None).unwrap_err();
    assert!(!format!("{error} {error:?}").contains("secret"));
}
