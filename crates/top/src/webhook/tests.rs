//! A courier and a web server, which says of each request what a script has for it.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::mpsc::{Receiver, channel},
    time::Duration,
};

use serde_json::Value;

use super::{Event, Form, Pace, Webhook, WebhookSender};
use crate::slow::SlowStatement;

/// One request: its head, and its body.
struct Request {
    head: String,
    body: Value,
}

impl Request {
    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

/// A receiver that answers the nth request as `answers` says and the others with 200, and hands on what it
/// got. It ends when nobody can connect any more.
fn receiver(answers: &'static [&'static str]) -> (String, Receiver<Request>) {
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

fn read(stream: &mut TcpStream, answer: &str) -> Result<Request, std::io::Error> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    let end = loop {
        let count = stream.read(&mut buffer)?;
        bytes.extend_from_slice(&buffer[..count]);
        let text = String::from_utf8_lossy(&bytes);
        let Some(end) = text.find("\r\n\r\n") else { continue };
        let length = text.lines().find_map(|line| line.strip_prefix("Content-Length: "));
        if bytes.len() >= end + 4 + length.unwrap().parse::<usize>().unwrap() {
            break end;
        }
    };
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let body = serde_json::from_slice(&bytes[end + 4..]).unwrap();
    write!(stream, "HTTP/1.1 {answer}\r\n")?;
    Ok(Request { head, body })
}

const PACE: Pace = Pace {
    first: Duration::from_millis(1),
    longest: Duration::from_millis(4),
    between: Duration::ZERO,
    give_up: Duration::from_secs(60),
};

fn slow(pid: i32) -> Event {
    Event::Slow(SlowStatement {
        server: "db1".to_owned(),
        database: "shop".to_owned(),
        user: "app".to_owned(),
        pid,
        seconds: 61.0,
        seen_us: 0,
        query: "select '<!channel>'".to_owned(),
    })
}

fn courier(url: &str, form: Form) -> WebhookSender {
    WebhookSender::start(Webhook::new(url, form, None).unwrap(), PACE).unwrap()
}

fn next(requests: &Receiver<Request>) -> Request {
    requests.recv_timeout(Duration::from_secs(30)).unwrap()
}

#[test]
fn a_message_arrives_once() {
    let (url, requests) = receiver(&[]);
    let courier = courier(&url, Form::Slack);
    courier.tell([slow(7)]);
    let request = next(&requests);
    assert!(request.head.starts_with("POST /services/T0/B0/secret HTTP/1.1\r\n"));
    assert_eq!(request.header("Content-Type"), Some("application/json; charset=utf-8"));
    let text = request.body["text"].as_str().unwrap();
    assert!(text.starts_with("Slow postgres query on `db1` database `shop` for user `app`\n"));
    assert!(text.contains("select '&lt;!channel&gt;'"));
    courier.finish(Duration::from_secs(30));
    assert_eq!(courier.trouble(), None);
    assert!(requests.try_recv().is_err(), "once");
}

#[test]
fn what_is_not_taken_is_tried_again_as_the_same_message_and_told_meanwhile() {
    let (url, requests) = receiver(&["503 Busy\r\n", "429 Slow\r\nRetry-After: 0\r\n"]);
    let courier = courier(&url, Form::Slack);
    courier.tell([slow(7)]);
    let (first, second, third) = (next(&requests), next(&requests), next(&requests));
    let id = first.header("Idempotency-Key").unwrap();
    assert_eq!(id.len(), 32);
    assert_eq!(
        (second.header("Idempotency-Key"), third.header("Idempotency-Key")),
        (Some(id), Some(id))
    );
    assert_eq!(first.body, third.body);
    courier.finish(Duration::from_secs(30));
    assert_eq!(courier.trouble(), None, "it got through in the end");
    courier.tell([slow(8)]);
    assert!(requests.try_recv().is_err(), "nothing is sent after the end");
}

#[test]
fn what_comes_while_a_receiver_is_away_is_one_message_later() {
    // Nobody listens at this address any more.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let courier = courier(&format!("http://{address}/secret"), Form::Document { key: None });
    courier.tell([slow(0)]);
    while courier.trouble().is_none() {
        std::thread::yield_now();
    }
    let told = courier.trouble().unwrap();
    assert!(told.starts_with(&format!("webhook http://{address}: not taken")), "{told}");
    assert!(!told.contains("secret"));
    courier.tell((1..=2_000).map(slow));
    let listener = TcpListener::bind(address).unwrap();
    let take = || read(&mut listener.accept().unwrap().0, "200 OK\r\n").unwrap().body;
    let count = |body: &Value| body["events"].as_array().unwrap().len();
    assert_eq!(count(&take()), 1);
    let second = take();
    assert_eq!((count(&second), &second["dropped"]), (200, &1_000.into()));
    let rest: usize = (0..4).map(|_| count(&take())).sum();
    assert_eq!(rest, 800, "the queue is bounded");
    courier.finish(Duration::from_secs(30));
    assert_eq!(courier.trouble(), None);
}

#[test]
fn what_is_refused_is_given_up_and_told() {
    let (url, requests) = receiver(&["400 Bad Request\r\n"]);
    let courier = courier(&url, Form::Slack);
    courier.tell([slow(7)]);
    next(&requests);
    while courier.trouble().is_none() {
        std::thread::yield_now();
    }
    assert!(courier.trouble().unwrap().contains("refused, and given up: status 400"));
    courier.tell([slow(8)]);
    let text = next(&requests).body["text"].as_str().unwrap().to_owned();
    assert!(
        text.contains("Query ID 8") && text.ends_with("1 older events were dropped\n"),
        "{text}"
    );
    courier.finish(Duration::from_secs(30));
    assert_eq!(courier.trouble(), None);
}

#[test]
fn a_receiver_can_check_who_sent_it() {
    let (url, requests) = receiver(&[]);
    let courier = courier(&url, Form::Document { key: Some((*b"key").into()) });
    courier.tell([slow(7)]);
    let request = next(&requests);
    let signature = request.header("Howdah-Signature").unwrap().strip_prefix("sha256=").unwrap();
    let signed = format!("{}.{}", request.header("Howdah-Timestamp").unwrap(), request.body);
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, b"key");
    let tag = ring::hmac::sign(&key, signed.as_bytes());
    let expected: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(signature, expected);
    courier.finish(Duration::from_secs(30));
}

#[test]
fn one_that_never_answers_does_not_keep_the_end_waiting() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let courier = courier(&url, Form::Slack);
    courier.tell([slow(7)]);
    // It is connected, and has nothing to say.
    let _stream = listener.accept().unwrap();
    courier.finish(Duration::from_millis(50));
}

#[test]
fn an_address_is_not_shown() {
    let webhook = Webhook::new("https://hooks.example/services/secret", Form::Slack, None).unwrap();
    assert_eq!(webhook.origin(), "https://hooks.example:443");
    assert!(!format!("{webhook:?}").contains("secret"));
    let error = Webhook::new("hooks.example/secret", Form::Slack, None).unwrap_err();
    assert!(!format!("{error} {error:?}").contains("secret"));
}
