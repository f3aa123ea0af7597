//! LISTEN where servers are shared, message by message.

use super::{Stage, message};
use crate::{Channel, ClientId, PoolSpec, ServerId};

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

/// What a server says that listens to these.
fn listening_to(channels: &[&str]) -> Vec<u8> {
    let rows: Vec<u8> = channels.iter().flat_map(|channel| row(channel)).collect();
    [message(b'T', b"\0\0"), rows, tag("SELECT 1"), tag("UNLISTEN"), ready(b'I')].concat()
}

fn notification(channel: &str) -> Vec<u8> {
    message(b'A', format!("\0\0\0\x01{channel}\0\0").as_bytes())
}

const ASK: &str = "SELECT pg_catalog.pg_listening_channels();UNLISTEN *";

fn begun() -> (Stage, ClientId, ServerId) {
    let mut stage = Stage::new(PoolSpec::new(1));
    let client = stage.client();
    let server = stage.server();
    stage.client_gets(client);
    (stage, client, server)
}

impl Stage {
    fn heard(&mut self, client: ClientId, result: Result<(), String>) {
        self.core.heard(client, result, self.now, &mut self.io);
    }

    fn notify(&mut self, client: ClientId, channel: &str) {
        let name: Channel = channel.as_bytes().into();
        let bytes = notification(channel);
        self.core.notified(&name, &bytes, &[client], self.now, &mut self.io);
    }

    /// Has a client listen by a query of its own.
    fn listen(&mut self, client: ClientId, server: ServerId, channel: &str) {
        self.client_says(client, &query(&format!("listen {channel}")));
        self.heard(client, Ok(()));
        self.server_says(server, &[tag("LISTEN"), tag("LISTEN"), ready(b'I')].concat());
        self.server_says(server, &listening_to(&[channel, "howdah listen 0"]));
        self.server_gets(server);
        self.client_gets(client);
    }
}

#[test]
fn listen_runs_when_it_is_heard_and_is_answered_when_it_counts() {
    let (mut stage, client, server) = begun();
    stage.client_says(client, &query("listen a"));
    assert_eq!(stage.server_gets(server), b"", "nobody listens yet");
    assert_eq!(stage.io.listens, [(client, vec![b"a"[..].into()])]);
    stage.heard(client, Ok(()));
    assert_eq!(stage.server_gets(server), query("listen a;LISTEN \"howdah listen 0\""));
    stage.notify(client, "a");
    stage.server_says(server, &[tag("LISTEN"), tag("LISTEN"), ready(b'I')].concat());
    assert_eq!(stage.client_gets(client), tag("LISTEN"));
    assert_eq!(stage.server_gets(server), query(ASK));
    stage.server_says(server, &listening_to(&["a", "howdah listen 0"]));
    let expected = [notification("a"), ready(b'I')].concat();
    assert_eq!(stage.client_gets(client), expected, "it may have come after the commit");
    assert_eq!(stage.server_gets(server), b"", "there is nothing left to reset");
    stage.notify(client, "a");
    assert_eq!(stage.client_gets(client), notification("a"), "at once");
    stage.notify(client, "b");
    assert_eq!(stage.client_gets(client), b"");
}

#[test]
fn what_was_rolled_back_is_not_heard() {
    let (mut stage, client, server) = begun();
    stage.client_says(client, &query("begin"));
    stage.server_says(server, &[tag("BEGIN"), ready(b'T')].concat());
    stage.client_says(client, &query("listen a"));
    stage.heard(client, Ok(()));
    stage.server_says(server, &[tag("LISTEN"), tag("LISTEN"), ready(b'T')].concat());
    stage.notify(client, "a");
    stage.client_gets(client);
    stage.client_says(client, &query("rollback"));
    stage.server_gets(server);
    stage.server_says(server, &[tag("ROLLBACK"), ready(b'I')].concat());
    assert_eq!(stage.server_gets(server), query(ASK));
    stage.server_says(server, &listening_to(&[]));
    assert_eq!(stage.client_gets(client), [tag("ROLLBACK"), ready(b'I')].concat());
    assert_eq!(stage.io.unlistens, [(client, Some(vec![b"a"[..].into()]))]);
    stage.notify(client, "a");
    assert_eq!(stage.client_gets(client), b"");
}

#[test]
fn in_a_transaction_notifications_wait() {
    let (mut stage, client, server) = begun();
    stage.listen(client, server, "a");
    stage.client_says(client, &query("begin"));
    stage.server_says(server, &[tag("BEGIN"), ready(b'T')].concat());
    stage.notify(client, "a");
    // What the server itself says of a channel is not for the client.
    stage.server_says(server, &notification("a"));
    assert_eq!(stage.client_gets(client), [tag("BEGIN"), ready(b'T')].concat());
    stage.client_says(client, &query("commit"));
    stage.server_gets(server);
    stage.server_says(server, &[tag("COMMIT"), ready(b'I')].concat());
    assert_eq!(stage.client_gets(client), [tag("COMMIT"), notification("a"), ready(b'I')].concat());
    assert_eq!(stage.server_gets(server), b"", "no statement was about channels");
}

#[test]
fn a_listen_that_cannot_be_fails_at_the_server() {
    let (mut stage, client, server) = begun();
    stage.client_says(client, &query("listen a"));
    stage.heard(client, Err("nobody is there".to_owned()));
    assert_eq!(stage.server_gets(server), query("howdah_cannot_listen"));
    let error = message(b'E', b"SERROR\0VERROR\0C42601\0Msyntax error\0\0");
    stage.server_says(server, &[error, ready(b'I')].concat());
    let said = stage.client_gets(client);
    assert!(memchr::memmem::find(&said, b"C55000\0Mcannot listen: nobody is there\0").is_some());
    assert!(said.ends_with(&ready(b'I')));
    stage.client_says(client, &query("select 1"));
    assert_eq!(stage.server_gets(server), query("select 1"));
}

#[test]
fn a_client_that_takes_nothing_gets_what_is_kept_when_it_does() {
    let mut stage = Stage::new(PoolSpec { listen_bytes: Some(30), ..PoolSpec::new(1) });
    let client = stage.client();
    let server = stage.server();
    stage.listen(client, server, "a");
    stage.io.stuck.push(crate::Peer::Client(client));
    for _ in 0..5 {
        stage.notify(client, "a"); // Twelve bytes each; the first is on its way.
    }
    assert_eq!(stage.client_gets(client), notification("a"));
    stage.io.stuck.clear();
    stage.core.drained(crate::Peer::Client(client), stage.now, &mut stage.io);
    let said = stage.client_gets(client);
    assert!(said.starts_with(&[notification("a"), notification("a")].concat()));
    assert!(memchr::memmem::find(&said, b"C01N01\0").is_some());
    stage.core.missed(&[client], stage.now, &mut stage.io);
    assert!(memchr::memmem::find(&stage.client_gets(client), b"C01N02\0").is_some());
    stage.client_says(client, &message(b'X', b""));
    assert_eq!(stage.io.unlistens, [(client, None)]);
}

#[test]
fn unlisten_by_who_listens_to_nothing_costs_nothing() {
    let (mut stage, client, server) = begun();
    let sql = "select pg_advisory_unlock_all(); close all; unlisten *; reset all;";
    stage.client_says(client, &query(sql));
    assert_eq!(stage.server_gets(server), query(sql));
    let tags = ["SELECT 1", "CLOSE CURSOR ALL", "UNLISTEN", "RESET"].map(tag).concat();
    stage.server_says(server, &[tags.clone(), ready(b'I')].concat());
    assert_eq!(stage.client_gets(client), [tags, ready(b'I')].concat());
}
