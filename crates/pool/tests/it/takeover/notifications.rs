//! Notifications during takeovers: each is delivered exactly once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
};

use howdah_lab::wait_until;

use super::TakeoverFixture;
use crate::support::{RawClient, WAIT_TIMEOUT, connect};

/// The payloads of notifications before one with this payload. Panics on notices.
fn read_payloads_until(raw: &mut RawClient, last: &str) -> Vec<String> {
    let mut payloads = Vec::new();
    loop {
        let (tag, body) = raw.read_message().unwrap();
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
fn notifications_are_delivered_once_during_takeovers() {
    notify_through_takeovers("notified", 3, 50);
}

/// The next takeover starts before the workers have received the clients of the previous one.
#[test]
fn notifications_are_delivered_once_during_rapid_takeovers() {
    notify_through_takeovers("notified at once", 10, 0);
}

/// Notifies continuously during a number of takeovers, with at least `between` notifications
/// between them.
fn notify_through_takeovers(test: &str, takeovers: usize, between: u32) {
    let Some(mut fixture) = TakeoverFixture::start(test) else { return };
    let mut listeners: Vec<_> = (0..6).map(|_| RawClient::log_in(fixture.pool.address())).collect();
    for (number, raw) in listeners.iter_mut().enumerate() {
        raw.send_query(&format!("listen news; listen own_{number}"));
        raw.read_until(b'Z');
    }
    let is_over = Arc::new(AtomicBool::new(false));
    let sent = Arc::new(AtomicU32::new(0));
    let mut notifier = connect(&fixture.pool.server.uri("postgres")).unwrap();
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
    let wait_for_progress = || {
        let before = sent.load(Ordering::Relaxed);
        wait_until("more notifications", WAIT_TIMEOUT, || {
            sent.load(Ordering::Relaxed) >= before + between
        });
    };
    wait_for_progress();
    for _ in 0..takeovers {
        fixture.take_over();
        wait_for_progress();
    }
    is_over.store(true, Ordering::Relaxed);
    notify.join().unwrap();
    let sent = sent.load(Ordering::Relaxed);
    for (own, raw) in (0..).zip(&mut listeners) {
        let expected = (0..sent).filter(|number| number % 3 != 0 || number / 3 % 6 == own);
        let expected: Vec<_> = expected.map(|number| number.to_string()).collect();
        assert_eq!(read_payloads_until(raw, "end"), expected, "listener {own}");
    }
}

/// The LISTEN arrives during the takeover.
#[test]
fn listen_committed_during_takeover_is_handed_over() {
    let Some(mut fixture) = TakeoverFixture::start("late listen") else { return };
    let mut raw = RawClient::log_in(fixture.pool.address());
    raw.send_query("begin");
    raw.read_until(b'Z');
    let old = fixture.hand_over();
    raw.send_query("listen late");
    raw.read_until(b'Z');
    raw.send_query("commit");
    raw.read_until(b'Z');
    fixture.pool.query_server("notify late, '1'");
    old.shutdown_waiter().unwrap().wait();
    old.join().unwrap();
    fixture.pool.query_server("notify late, '2'; notify late, 'end'");
    assert_eq!(read_payloads_until(&mut raw, "end"), ["1", "2"]);
}
