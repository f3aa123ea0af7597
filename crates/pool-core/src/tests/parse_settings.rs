//! Tests of the parse settings that a statement is assumed to be parsed under.

use super::{
    CoreHarness, message,
    statements::{bind, parse, sync},
};
use crate::{ClientId, PeerId, PoolSpec, ServerId};

const LITERAL: &str = "select '2024-01-01'::timestamptz";

fn query(sql: &str) -> Vec<u8> {
    message(b'Q', format!("{sql}\0").as_bytes())
}

fn execute() -> Vec<u8> {
    message(b'E', b"\0\0\0\0\0")
}

/// Returns an unnamed batch, without its Sync, that runs `sql`.
fn run(sql: &str) -> Vec<u8> {
    [parse("", sql), bind("", ""), execute()].concat()
}

/// Returns the replies to [`run`] for a SET.
fn set_replies() -> Vec<u8> {
    [message(b'1', b""), message(b'2', b""), message(b'C', b"SET\0")].concat()
}

/// Returns a batch that parses [`LITERAL`] as the pooled statement with this id.
fn parse_of(id: u32) -> Vec<u8> {
    [parse(&format!("howdah_{id}"), LITERAL), sync()].concat()
}

fn report(zone: &str) -> Vec<u8> {
    message(b'S', format!("TimeZone\0{zone}\0").as_bytes())
}

fn ready(status: u8) -> Vec<u8> {
    message(b'Z', &[status])
}

/// A client and its server.
struct SettingsDialogue {
    harness: CoreHarness,
    client: ClientId,
    server: ServerId,
}

impl SettingsDialogue {
    fn new() -> Self {
        let mut harness = CoreHarness::new(PoolSpec::new(1));
        let client = harness.client();
        let server = harness.log_in_server();
        harness.sent_to_client(client);
        Self { harness, client, server }
    }

    /// Creates a client in a transaction block in which it has set its time zone, and has prepared
    /// a statement for which the pooler has queried the settings.
    fn in_block_after_query(zone: &str) -> Self {
        let mut dialogue = Self::new();
        dialogue.run_query("begin", "BEGIN", None);
        dialogue.run_query(&format!("set timezone = '{zone}'"), "SET", Some(zone));
        let sent = dialogue.send(&[parse("a", LITERAL), sync()].concat());
        assert!(queries_settings(&sent));
        assert_eq!(dialogue.reply_to_settings_query(zone, None), parse_of(1));
        dialogue.reply(&[message(b'1', b""), ready(b'T')].concat());
        dialogue
    }

    /// Creates a client that has set its time zone until the end of an implicit transaction, and
    /// has prepared a statement in it. Also returns the reply to the Parse, which has not arrived.
    fn after_local_setting() -> (Self, Vec<u8>) {
        let mut dialogue = Self::new();
        let set = run("set local timezone = 'CET'");
        dialogue.send(&[set, parse("a", LITERAL)].concat());
        assert!(queries_settings(&dialogue.reply(&set_replies())));
        assert_eq!(dialogue.reply_to_settings_query("CET", None), parse("howdah_1", LITERAL));
        (dialogue, message(b'1', b""))
    }

    /// Returns what the server receives after the client has prepared the same text again.
    fn parse_again(&mut self) -> Vec<u8> {
        self.send(&[parse("b", LITERAL), sync()].concat())
    }

    /// Returns what the server receives after the client has sent `bytes`.
    fn send(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.harness.send_from_client(self.client, bytes);
        self.harness.sent_to_server(self.server)
    }

    /// Returns what the server receives after it has sent `bytes`.
    fn reply(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.harness.send_from_server(self.server, bytes);
        self.harness.sent_to_server(self.server)
    }

    /// Runs a query string that starts a transaction block, or that runs in one.
    fn run_query(&mut self, sql: &str, tag: &str, zone: Option<&str>) {
        assert_eq!(self.send(&query(sql)), query(sql));
        let done = message(b'C', format!("{tag}\0").as_bytes());
        self.reply(&[done, zone.map(report).unwrap_or_default(), ready(b'T')].concat());
    }

    /// Replies to the query for the parse settings, of which only `TimeZone` is known; `status` is
    /// that of the ReadyForQuery, if the query is in a separate batch.
    fn reply_to_settings_query(&mut self, zone: &str, status: Option<u8>) -> Vec<u8> {
        let values = (0..14).flat_map(|at| match at {
            3 => [&(zone.len() as u32).to_be_bytes()[..], zone.as_bytes()].concat(),
            _ => (-1i32).to_be_bytes().to_vec(),
        });
        let row = message(b'D', &[&[0, 14][..], &values.collect::<Vec<_>>()].concat());
        let done = [row, message(b'C', b"SELECT 1\0")].concat();
        let before = ["3", "1", "2"].map(|tag| message(tag.as_bytes()[0], b"")).concat();
        let after = [message(b'3', b""), message(b'3', b"")].concat();
        let end = status.map(ready).unwrap_or_default();
        self.reply(&[before, done, after, end].concat())
    }
}

fn queries_settings(sent: &[u8]) -> bool {
    memchr::memmem::find(sent, b"current_setting").is_some()
}

#[test]
fn reported_change_replaces_value_queried_earlier_in_the_transaction() {
    let mut dialogue = SettingsDialogue::in_block_after_query("CET");
    dialogue.run_query("set timezone = 'UTC'", "SET", Some("UTC"));
    assert_eq!(dialogue.parse_again(), parse_of(2), "the other one was parsed under CET");
}

#[test]
fn change_that_only_the_report_shows_replaces_queried_value() {
    let mut dialogue = SettingsDialogue::in_block_after_query("CET");
    dialogue.run_query("select changes_time_zone()", "SELECT 1", Some("UTC"));
    assert_eq!(dialogue.parse_again(), parse_of(2));
}

#[test]
fn value_set_back_without_a_report_replaces_queried_value() {
    let mut dialogue = SettingsDialogue::new();
    dialogue.run_query("begin", "BEGIN", None);
    dialogue.send(&[run("set timezone = 'CET'"), parse("a", LITERAL)].concat());
    assert!(queries_settings(&dialogue.reply(&set_replies())));
    assert_eq!(dialogue.reply_to_settings_query("CET", None), parse("howdah_1", LITERAL));
    dialogue.send(&[run("set timezone = 'UTC'"), sync()].concat());
    dialogue.reply(&[message(b'1', b""), set_replies(), ready(b'T')].concat());
    assert_eq!(dialogue.parse_again(), parse_of(2));
}

/// Outside a transaction block, a Sync undoes SET LOCAL and, after an error, all changes.
#[test]
fn sync_outside_a_block_undoes_local_setting() {
    let (mut dialogue, local) = SettingsDialogue::after_local_setting();
    dialogue.send(&[sync(), parse("b", LITERAL), sync()].concat());
    let sent = dialogue.reply(&[&local[..], &ready(b'I')].concat());
    assert_eq!(sent, parse_of(2), "the other one was parsed under CET");
}

/// A query string after a batch without Sync ends their common implicit transaction.
#[test]
fn query_string_after_a_batch_without_sync_undoes_local_setting() {
    let (mut dialogue, local) = SettingsDialogue::after_local_setting();
    let select = query("select 1");
    dialogue.send(&[select.clone(), parse("b", LITERAL), sync()].concat());
    assert_eq!(dialogue.reply(&local), select);
    let sent = dialogue.reply(&[message(b'C', b"SELECT 1\0"), ready(b'I')].concat());
    assert_eq!(sent, parse_of(2), "the other one was parsed under CET");
}

#[test]
fn report_of_queried_value_does_not_taint_the_server() {
    let mut dialogue = SettingsDialogue::new();
    dialogue.run_query("begin", "BEGIN", None);
    dialogue.send(&[run("set timezone = 'CET'"), parse("a", LITERAL)].concat());
    dialogue.reply(&set_replies());
    dialogue.reply_to_settings_query("CET", None);
    dialogue.send(&sync());
    dialogue.reply(&[message(b'1', b""), report("CET"), ready(b'T')].concat());
    dialogue.run_query("select 1", "SELECT 1", None);
    dialogue.send(&query("commit"));
    dialogue.reply(&[message(b'C', b"COMMIT\0"), ready(b'I')].concat());
    let server = PeerId::Server(dialogue.server);
    assert!(!dialogue.harness.io.closed.contains(&server));
}
