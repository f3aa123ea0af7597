//! Notifications while a new process takes over: each comes once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
};

use super::{Line, until};
use crate::support::{Raw, connect};

/// Payloads of the notifications up to one with this payload; notices are failures.
fn payloads_until(raw: &mut Raw, last: &str) -> Vec<String> {
    let mut payloads = Vec::new();
    loop {
        let (tag, body) = raw.message().unwrap();
        assert_eq!(tag, b'A', "{}", body.escape_ascii());
        let mut parts = body[4..].split(|byte| *byte == 0).map(String::from_utf8_lossy);
        let payload = parts.nth(1).unwrap().into_owned();
        if payload == last {
            return payloads;
        }
        payloads.push(payload);
    }
}

#[test]
fn clients_receive_each_notification_once_while_processes_take_over() {
    notify_through_takeovers("notified", 3, 50);
}

/// The clients of one takeover are still on their way to the workers when the next begins.
#[test]
fn clients_receive_each_notification_once_when_takeovers_follow_at_once() {
    notify_through_takeovers("notified at once", 10, 0);
}

/// Notifies all the time, while so many processes take over, each after some notifications more.
fn notify_through_takeovers(test: &str, takeovers: usize, between: u32) {
    let Some(mut line) = Line::start(test) else { return };
    let mut listeners: Vec<_> = (0..6).map(|_| Raw::log_in(line.stage.address())).collect();
    for (number, raw) in listeners.iter_mut().enumerate() {
        raw.query(&format!("listen news; listen own_{number}"));
        raw.until(b'Z');
    }
    let is_over = Arc::new(AtomicBool::new(false));
    let sent = Arc::new(AtomicU32::new(0));
    let mut notifier = connect(&line.stage.server.uri("postgres")).unwrap();
    let notify = {
        let (is_over, sent) = (Arc::clone(&is_over), Arc::clone(&sent));
        thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                let number = sent.fetch_add(1, Ordering::Relaxed);
                let channel = match number % 3 {
                    0 => format!("own_{}", number / 3 % 6),
                    _ => "news".to_owned(),
                };
                notifier.query(&format!("notify {channel}, '{number}'")).unwrap();
            }
            for number in 0..6 {
                notifier.query(&format!("notify own_{number}, 'end'")).unwrap();
            }
        })
    };
    let goes_on = || {
        let before = sent.load(Ordering::Relaxed);
        until("more is notified", || sent.load(Ordering::Relaxed) >= before + between);
    };
    goes_on();
    for _ in 0..takeovers {
        line.take_over();
        goes_on();
    }
    is_over.store(true, Ordering::Relaxed);
    notify.join().unwrap();
    let sent = sent.load(Ordering::Relaxed);
    for (own, raw) in (0..).zip(&mut listeners) {
        let expected = (0..sent).filter(|number| number % 3 != 0 || number / 3 % 6 == own);
        let expected: Vec<_> = expected.map(|number| number.to_string()).collect();
        assert_eq!(payloads_until(raw, "end"), expected, "listener {own}");
    }
}

/// Its LISTEN comes when the takeover is under way.
#[test]
fn a_channel_of_a_transaction_that_ends_during_a_takeover_is_handed_over() {
    let Some(mut line) = Line::start("late listen") else { return };
    let mut raw = Raw::log_in(line.stage.address());
    raw.query("begin");
    raw.until(b'Z');
    let old = line.hand_over();
    raw.query("listen late");
    raw.until(b'Z');
    raw.query("commit");
    raw.until(b'Z');
    line.stage.direct("notify late, '1'");
    old.end().unwrap().wait();
    old.join().unwrap();
    line.stage.direct("notify late, '2'; notify late, 'end'");
    assert_eq!(payloads_until(&mut raw, "end"), ["1", "2"]);
}
