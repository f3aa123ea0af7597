//! Servers that refuse, or have lost, a statement that the pooler takes for prepared.

use super::{
    Stage, message,
    statements::{bind, parse, says, sync},
};
use crate::{ClientId, PoolSpec, ServerId};

fn describe(what: &str) -> Vec<u8> {
    message(b'D', format!("{what}\0").as_bytes())
}

fn execute() -> Vec<u8> {
    message(b'E', b"\0\0\0\0\0")
}

fn run(name: &str) -> Vec<u8> {
    [bind(name, "x"), describe("P"), execute(), sync()].concat()
}

fn refused(sqlstate: &str) -> Vec<u8> {
    let text = format!("SERROR\0VERROR\0C{sqlstate}\0Mcached plan must not change result type\0\0");
    message(b'E', text.as_bytes())
}

fn ready(status: u8) -> Vec<u8> {
    message(b'Z', &[status])
}

/// A client that has prepared `s`, which is `howdah_1` on its server.
fn prepared() -> (Stage, ClientId, ServerId) {
    let mut stage = Stage::new(PoolSpec::new(1));
    let client = stage.client();
    let server = stage.server();
    stage.client_says(client, &[parse("s", "table t"), sync()].concat());
    says(&mut stage, server, "1Z");
    stage.client_gets(client);
    stage.server_gets(server);
    (stage, client, server)
}

fn renewed() -> Vec<u8> {
    [message(b'C', b"Showdah_1\0"), parse("howdah_1", "table t"), run("howdah_1")].concat()
}

#[test]
fn a_plan_whose_result_has_changed_is_made_anew_and_nobody_hears_of_it() {
    let (mut stage, client, server) = prepared();
    stage.client_says(client, &run("s"));
    assert_eq!(stage.server_gets(server), run("howdah_1"));
    stage.server_says(server, &[refused("0A000"), ready(b'I')].concat());
    assert_eq!(stage.server_gets(server), renewed());
    assert_eq!(stage.client_gets(client), b"");
    says(&mut stage, server, "312nDCZ");
    let told: Vec<u8> = stage.client_gets(client).chunks(5).map(|message| message[0]).collect();
    assert!(told.starts_with(b"2nDC"), "{}", told.escape_ascii());
    stage.client_says(client, &run("s"));
    assert_eq!(stage.server_gets(server), run("howdah_1"), "it is as good as new");
}

#[test]
fn a_text_that_is_prepared_now_is_not_refused_for_what_it_was() {
    let (mut stage, _, server) = prepared();
    let next = stage.client();
    stage.client_gets(next);
    stage.client_says(next, &[parse("n", "table t"), bind("n", "x"), execute(), sync()].concat());
    stage.server_gets(server);
    stage.server_says(server, &[refused("0A000"), ready(b'I')].concat());
    let again = [bind("howdah_1", "x"), execute(), sync()].concat();
    assert!(stage.server_gets(server).ends_with(&again));
    assert_eq!(stage.client_gets(next), message(b'1', b""), "it was told that already");
}

#[test]
fn who_goes_by_an_older_description_is_told() {
    let (mut stage, client, server) = prepared();
    stage.client_says(client, &[bind("s", "x"), execute(), sync()].concat());
    stage.server_gets(server);
    stage.server_says(server, &[refused("0A000"), ready(b'I')].concat());
    assert_eq!(stage.client_gets(client), [refused("0A000"), ready(b'I')].concat());
    assert_eq!(stage.server_gets(server), b"");
    stage.client_says(client, &[parse("s2", "table t"), sync()].concat());
    let sent = [parse("howdah_2", "table t"), sync()].concat();
    assert_eq!(stage.server_gets(server), sent, "prepared again, it is another statement");
}

#[test]
fn in_a_transaction_the_error_stands() {
    let (mut stage, client, server) = prepared();
    stage.client_says(client, &message(b'Q', b"begin\0"));
    stage.server_says(server, &ready(b'T'));
    stage.client_says(client, &run("s"));
    stage.server_gets(server);
    stage.server_says(server, &[refused("0A000"), ready(b'E')].concat());
    assert!(stage.client_gets(client).ends_with(&[refused("0A000"), ready(b'E')].concat()));
    assert_eq!(stage.server_gets(server), b"");
}

#[test]
fn it_is_tried_once() {
    let (mut stage, client, server) = prepared();
    stage.client_says(client, &run("s"));
    stage.server_says(server, &[refused("0A000"), ready(b'I')].concat());
    stage.server_gets(server);
    says(&mut stage, server, "31");
    stage.server_says(server, &[refused("0A000"), ready(b'I')].concat());
    assert_eq!(stage.client_gets(client), [refused("0A000"), ready(b'I')].concat());
    assert_eq!(stage.server_gets(server), b"");
}

#[test]
fn what_ran_before_in_the_batch_is_not_run_again() {
    let (mut stage, client, server) = prepared();
    let first = [parse("", "insert"), bind("", "x"), execute()].concat();
    stage.client_says(client, &[first, run("s")].concat());
    stage.server_gets(server);
    says(&mut stage, server, "12C");
    stage.server_says(server, &[refused("0A000"), ready(b'I')].concat());
    assert!(stage.client_gets(client).ends_with(&[refused("0A000"), ready(b'I')].concat()));
    assert_eq!(stage.server_gets(server), b"");
}

#[test]
fn a_statement_that_a_function_deallocated_is_prepared_again() {
    let (mut stage, client, server) = prepared();
    stage.client_says(client, &run("s"));
    stage.server_gets(server);
    stage.server_says(server, &[refused("26000"), ready(b'I')].concat());
    assert_eq!(stage.server_gets(server), renewed());
    assert_eq!(stage.client_gets(client), b"");
}

#[test]
fn where_that_is_too_late_the_error_has_the_clients_name() {
    let (mut stage, client, server) = prepared();
    stage.client_says(client, &[bind("s", "x"), execute(), sync()].concat());
    stage.server_gets(server);
    stage.server_says(server, &[refused("26000"), ready(b'I')].concat());
    let told = stage.client_gets(client);
    assert!(memchr::memmem::find(&told, b"prepared statement \"s\" does not exist").is_some());
    stage.client_says(client, &run("s"));
    let sent = [parse("howdah_1", "table t"), run("howdah_1")].concat();
    assert_eq!(stage.server_gets(server), sent);
}

#[test]
fn a_prepared_deallocation_means_the_shared_statement() {
    let (mut stage, client, server) = prepared();
    let batch = |sql: &str| [parse("", sql), bind("", "x"), execute(), sync()].concat();
    stage.client_says(client, &batch("DEALLOCATE s"));
    assert_eq!(stage.server_gets(server), batch("DEALLOCATE howdah_1"));
    says(&mut stage, server, "12");
    stage.server_says(server, &[message(b'C', b"DEALLOCATE\0"), ready(b'I')].concat());
    stage.client_says(client, &[bind("s", "x"), sync()].concat());
    assert_eq!(stage.server_gets(server), [bind("s", "x"), sync()].concat(), "nobody has it");
}
