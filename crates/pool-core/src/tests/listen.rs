//! Tests of LISTEN over shared servers, message by message.

use super::{CoreHarness, message};
use crate::{Channel, ClientId, CoreEvent, PoolSpec, ServerId};

fn query(sql: &str) -> Vec<u8> {
    message(b'Q', format!("{sql}\0").as_bytes())
}

fn tag(tag: &str) -> Vec<u8> {
    message(b'C', format!("{tag}\0").as_bytes())
}

fn ready(status: u8) -> Vec<u8> {
    message(b'Z', &[status])
}

fn row(text: &str) -> Vec<u8> {
    let length = u32::try_from(text.len()).unwrap().to_be_bytes();
    message(b'D', &[&[0, 1], &length[..], text.as_bytes()].concat())
}

/// Returns the reply of a server that listens to these channels.
fn listening_to(channels: &[&str]) -> Vec<u8> {
    let rows: Vec<u8> = channels.iter().flat_map(|channel| row(channel)).collect();
    [message(b'T', b"\0\0"), rows, tag("SELECT 1"), tag("UNLISTEN"), ready(b'I')].concat()
}

fn notification(channel: &str) -> Vec<u8> {
    message(b'A', format!("\0\0\0\x01{channel}\0\0").as_bytes())
}

const QUERY_CHANNELS: &str = "SELECT pg_catalog.pg_listening_channels();UNLISTEN *";

fn client_and_server() -> (CoreHarness, ClientId, ServerId) {
    let mut harness = CoreHarness::new(PoolSpec::new(1));
    let client = harness.client();
    let server = harness.log_in_server();
    harness.sent_to_client(client);
    (harness, client, server)
}

impl CoreHarness {
    fn finish_listen(&mut self, client: ClientId, result: Result<(), String>) {
        self.core.handle(CoreEvent::ListenFinished(client, result), self.now, &mut self.io);
    }

    fn notify(&mut self, client: ClientId, channel: &str) {
        let name: Channel = channel.as_bytes().into();
        let bytes = notification(channel);
        self.core.handle(
            CoreEvent::Notification { channel: &name, message: &bytes, clients: &[client] },
            self.now,
            &mut self.io,
        );
    }

    /// Makes a client listen to a channel with a query.
    fn listen(&mut self, client: ClientId, server: ServerId, channel: &str) {
        self.send_from_client(client, &query(&format!("listen {channel}")));
        self.finish_listen(client, Ok(()));
        self.send_from_server(server, &[tag("LISTEN"), tag("LISTEN"), ready(b'I')].concat());
        self.send_from_server(server, &listening_to(&[channel, "howdah listen 0"]));
        self.sent_to_server(server);
        self.sent_to_client(client);
    }
}

#[test]
fn listen_waits_for_dedicated_connection_and_for_commit() {
    let (mut harness, client, server) = client_and_server();
    harness.send_from_client(client, &query("listen a"));
    assert_eq!(harness.sent_to_server(server), b"", "the dedicated connection does not listen yet");
    assert_eq!(harness.io.listens, [(client, vec![b"a"[..].into()])]);
    harness.finish_listen(client, Ok(()));
    assert_eq!(harness.sent_to_server(server), query("listen a;LISTEN \"howdah listen 0\""));
    harness.notify(client, "a");
    harness.send_from_server(server, &[tag("LISTEN"), tag("LISTEN"), ready(b'I')].concat());
    assert_eq!(harness.sent_to_client(client), tag("LISTEN"));
    assert_eq!(harness.sent_to_server(server), query(QUERY_CHANNELS));
    harness.send_from_server(server, &listening_to(&["a", "howdah listen 0"]));
    let expected = [notification("a"), ready(b'I')].concat();
    assert_eq!(
        harness.sent_to_client(client),
        expected,
        "the notification may have followed the commit"
    );
    assert_eq!(harness.sent_to_server(server), b"", "UNLISTEN has reset the server");
    harness.notify(client, "a");
    assert_eq!(
        harness.sent_to_client(client),
        notification("a"),
        "outside of a transaction it is delivered at once"
    );
    harness.notify(client, "b");
    assert_eq!(harness.sent_to_client(client), b"");
}

#[test]
fn listen_of_rolled_back_transaction_has_no_effect() {
    let (mut harness, client, server) = client_and_server();
    harness.send_from_client(client, &query("begin"));
    harness.send_from_server(server, &[tag("BEGIN"), ready(b'T')].concat());
    harness.send_from_client(client, &query("listen a"));
    harness.finish_listen(client, Ok(()));
    harness.send_from_server(server, &[tag("LISTEN"), tag("LISTEN"), ready(b'T')].concat());
    harness.notify(client, "a");
    harness.sent_to_client(client);
    harness.send_from_client(client, &query("rollback"));
    harness.sent_to_server(server);
    harness.send_from_server(server, &[tag("ROLLBACK"), ready(b'I')].concat());
    assert_eq!(harness.sent_to_server(server), query(QUERY_CHANNELS));
    harness.send_from_server(server, &listening_to(&[]));
    assert_eq!(harness.sent_to_client(client), [tag("ROLLBACK"), ready(b'I')].concat());
    assert_eq!(harness.io.unlistens, [(client, Some(vec![b"a"[..].into()]))]);
    harness.notify(client, "a");
    assert_eq!(harness.sent_to_client(client), b"");
}

#[test]
fn notifications_wait_for_end_of_transaction() {
    let (mut harness, client, server) = client_and_server();
    harness.listen(client, server, "a");
    harness.send_from_client(client, &query("begin"));
    harness.send_from_server(server, &[tag("BEGIN"), ready(b'T')].concat());
    harness.notify(client, "a");
    // The server's own notification is not forwarded.
    harness.send_from_server(server, &notification("a"));
    assert_eq!(harness.sent_to_client(client), [tag("BEGIN"), ready(b'T')].concat());
    harness.send_from_client(client, &query("commit"));
    harness.sent_to_server(server);
    harness.send_from_server(server, &[tag("COMMIT"), ready(b'I')].concat());
    assert_eq!(
        harness.sent_to_client(client),
        [tag("COMMIT"), notification("a"), ready(b'I')].concat()
    );
    assert_eq!(harness.sent_to_server(server), b"", "the transaction had no LISTEN");
}

#[test]
fn impossible_listen_fails_on_server() {
    let (mut harness, client, server) = client_and_server();
    harness.send_from_client(client, &query("listen a"));
    harness.finish_listen(client, Err("no server is available".to_owned()));
    assert_eq!(harness.sent_to_server(server), query("howdah_cannot_listen"));
    let error = message(b'E', b"SERROR\0VERROR\0C42601\0Msyntax error\0\0");
    harness.send_from_server(server, &[error, ready(b'I')].concat());
    let received = harness.sent_to_client(client);
    assert!(
        memchr::memmem::find(&received, b"C55000\0Mcannot listen: no server is available\0")
            .is_some()
    );
    assert!(received.ends_with(&ready(b'I')));
    harness.send_from_client(client, &query("select 1"));
    assert_eq!(harness.sent_to_server(server), query("select 1"));
}

#[test]
fn slow_client_gets_buffered_notifications_when_it_reads() {
    let mut harness = CoreHarness::new(PoolSpec { listen_bytes: Some(30), ..PoolSpec::new(1) });
    let client = harness.client();
    let server = harness.log_in_server();
    harness.listen(client, server, "a");
    harness.io.stuck.push(crate::PeerId::Client(client));
    for _ in 0..5 {
        harness.notify(client, "a"); // Twelve bytes each; the first is sent at once.
    }
    assert_eq!(harness.sent_to_client(client), notification("a"));
    harness.io.stuck.clear();
    harness.core.handle(
        CoreEvent::Drained(crate::PeerId::Client(client)),
        harness.now,
        &mut harness.io,
    );
    let received = harness.sent_to_client(client);
    assert!(received.starts_with(&[notification("a"), notification("a")].concat()));
    assert!(memchr::memmem::find(&received, b"C01N01\0").is_some());
    harness.core.handle(CoreEvent::NotificationsMissed(&[client]), harness.now, &mut harness.io);
    assert!(memchr::memmem::find(&harness.sent_to_client(client), b"C01N02\0").is_some());
    harness.send_from_client(client, &message(b'X', b""));
    assert_eq!(harness.io.unlistens, [(client, None)]);
}

#[test]
fn unlisten_without_listen_is_forwarded_unchanged() {
    let (mut harness, client, server) = client_and_server();
    let sql = "select pg_advisory_unlock_all(); close all; unlisten *; reset all;";
    harness.send_from_client(client, &query(sql));
    assert_eq!(harness.sent_to_server(server), query(sql));
    let tags = ["SELECT 1", "CLOSE CURSOR ALL", "UNLISTEN", "RESET"].map(tag).concat();
    harness.send_from_server(server, &[tags.clone(), ready(b'I')].concat());
    assert_eq!(harness.sent_to_client(client), [tags, ready(b'I')].concat());
}

#[test]
fn listen_right_after_rollback_of_failed_transaction_is_tracked() {
    let (mut harness, client, server) = client_and_server();
    harness.send_from_client(client, &query("begin"));
    harness.send_from_server(server, &[tag("BEGIN"), ready(b'T')].concat());
    harness.send_from_client(client, &query("fail"));
    let error = message(b'E', b"SERROR\0C22012\0Mno\0\0");
    harness.send_from_server(server, &[error, ready(b'E')].concat());
    harness.sent_to_server(server);
    harness.send_from_client(client, &[query("rollback"), query("listen a")].concat());
    assert_eq!(harness.sent_to_server(server), query("rollback"));
    harness.send_from_server(server, &[tag("ROLLBACK"), ready(b'I')].concat());
    harness.finish_listen(client, Ok(()));
    assert_eq!(harness.sent_to_server(server), query("listen a;LISTEN \"howdah listen 0\""));
}
