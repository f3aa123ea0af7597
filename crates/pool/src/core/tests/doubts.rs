//! Requests sent before the answers to those that decide what they mean.

use super::{
    Stage, message,
    statements::{bind, parse, says, sync},
};
use crate::{ClientId, PoolSpec, ServerId};

fn close(name: &str) -> Vec<u8> {
    message(b'C', format!("S{name}\0").as_bytes())
}

fn query(sql: &str) -> Vec<u8> {
    message(b'Q', format!("{sql}\0").as_bytes())
}

fn error(sqlstate: &str) -> Vec<u8> {
    message(b'E', format!("SERROR\0VERROR\0C{sqlstate}\0Mno\0\0").as_bytes())
}

/// A client, its only server, and nothing said yet.
fn pair(spec: PoolSpec) -> (Stage, ClientId, ServerId) {
    let mut stage = Stage::new(spec);
    let client = stage.client();
    let server = stage.server();
    stage.client_gets(client);
    (stage, client, server)
}

#[test]
fn a_name_whose_parse_may_fail_waits_for_the_answer() {
    let (mut stage, client, server) = pair(PoolSpec::new(1));
    let (bad, use_it) = ([parse("s", "wrong"), sync()].concat(), [bind("s", "x"), sync()].concat());
    stage.client_says(client, &[bad, use_it].concat());
    assert_eq!(stage.server_gets(server), [parse("howdah_1", "wrong"), sync()].concat());
    stage.server_says(server, &[error("42601"), message(b'Z', b"I")].concat());
    // The error names the client's statement, which nobody has.
    assert_eq!(stage.server_gets(server), [bind("s", "x"), sync()].concat());
}

#[test]
fn the_same_text_is_judged_again_after_a_parse_that_failed() {
    let (mut stage, client, server) = pair(PoolSpec::new(1));
    stage.client_says(client, &[parse("a", "wrong"), sync(), parse("b", "wrong"), sync()].concat());
    assert_eq!(stage.server_gets(server), [parse("howdah_1", "wrong"), sync()].concat());
    stage.server_says(server, &[error("42601"), message(b'Z', b"I")].concat());
    assert_eq!(stage.server_gets(server), [parse("howdah_2", "wrong"), sync()].concat());
}

#[test]
fn followers_in_the_same_batch_do_not_wait() {
    let (mut stage, client, server) = pair(PoolSpec::new(1));
    stage.client_says(client, &[parse("s", "select $1"), bind("s", "x"), sync()].concat());
    let sent = [parse("howdah_1", "select $1"), bind("howdah_1", "x"), sync()].concat();
    assert_eq!(stage.server_gets(server), sent);
}

#[test]
fn a_skipped_parse_leaves_the_unnamed_statement_before_it() {
    let (mut stage, client, server) = pair(PoolSpec::new(1));
    stage.client_says(client, &[parse("", "select 1"), sync()].concat());
    says(&mut stage, server, "1Z");
    stage.server_gets(server);
    let batch = [bind("none", "x"), parse("", "select 2"), sync()].concat();
    stage.client_says(client, &[batch, [bind("", "x"), sync()].concat()].concat());
    stage.server_gets(server);
    stage.server_says(server, &[error("26000"), message(b'Z', b"I")].concat());
    let sent = [parse("", "select 1"), bind("", "x"), sync()].concat();
    assert_eq!(stage.server_gets(server), sent, "whatever the server holds without a name");
}

#[test]
fn a_query_string_that_the_pooler_answers_ends_the_unnamed_statement_too() {
    let (mut stage, client, server) = pair(PoolSpec::new(1));
    stage.client_says(client, &query("begin"));
    stage.server_says(server, &message(b'Z', b"T"));
    let batch = [parse("s", "select 1"), parse("", "select 2"), sync()].concat();
    stage.client_says(client, &batch);
    stage.server_gets(server);
    says(&mut stage, server, "11");
    stage.server_says(server, &message(b'Z', b"T"));
    stage.client_says(client, &query("deallocate s"));
    assert_eq!(stage.server_gets(server), b"");
    stage.client_says(client, &[bind("", "x"), sync()].concat());
    assert_eq!(stage.server_gets(server), [close(""), bind("", "x"), sync()].concat());
}

#[test]
fn a_deallocation_in_a_batch_waits_for_it_and_ends_it() {
    let (mut stage, client, server) = pair(PoolSpec::new(1));
    stage.client_says(client, &[parse("s", "select 1"), query("deallocate s")].concat());
    let flush = message(b'H', b"");
    assert_eq!(stage.server_gets(server), [parse("howdah_1", "select 1"), flush].concat());
    says(&mut stage, server, "1");
    assert_eq!(stage.server_gets(server), sync());
    says(&mut stage, server, "Z");
    let told = [message(b'1', b""), message(b'C', b"DEALLOCATE\0"), message(b'Z', b"I")].concat();
    assert_eq!(stage.client_gets(client), told);
}

#[test]
fn a_name_whose_close_was_skipped_is_still_there_to_deallocate() {
    let (mut stage, client, server) = pair(PoolSpec::new(1));
    stage.client_says(client, &[parse("s", "select 1"), sync()].concat());
    says(&mut stage, server, "1Z");
    stage.client_gets(client);
    let batch = [bind("none", "x"), close("s"), sync()].concat();
    stage.client_says(client, &[batch, query("deallocate s")].concat());
    stage.server_says(server, &[error("26000"), message(b'Z', b"I")].concat());
    let told = stage.client_gets(client);
    let done = [message(b'C', b"DEALLOCATE\0"), message(b'Z', b"I")].concat();
    assert!(told.ends_with(&done));
}

#[test]
fn a_statement_whose_parse_may_fail_is_not_closed_for_another() {
    let mut spec = PoolSpec::new(1);
    spec.statements_per_server = 1;
    let (mut stage, client, server) = pair(spec);
    let later = [parse("b", "select 2"), sync()].concat();
    stage.client_says(client, &[parse("a", "wrong"), sync(), later].concat());
    let sent = [parse("howdah_1", "wrong"), sync(), parse("howdah_2", "select 2"), sync()].concat();
    assert_eq!(stage.server_gets(server), sent);
}

#[test]
fn nothing_is_taken_for_prepared_behind_what_ends_all_of_it() {
    let (mut stage, client, server) = pair(PoolSpec::new(1));
    stage.client_says(client, &[parse("s", "select 1"), sync()].concat());
    says(&mut stage, server, "1Z");
    stage.server_gets(server);
    let all = query("select 1; deallocate all");
    stage.client_says(client, &[all.clone(), bind("s", "x"), sync()].concat());
    assert_eq!(stage.server_gets(server), all);
    stage.server_says(server, &message(b'C', b"DEALLOCATE ALL\0"));
    says(&mut stage, server, "Z");
    assert_eq!(stage.server_gets(server), [bind("s", "x"), sync()].concat());
}

#[test]
fn a_shared_text_is_judged_where_the_transaction_may_have_failed() {
    let (mut stage, client, server) = pair(PoolSpec::new(1));
    stage.client_says(client, &[parse("a", "select 1"), sync()].concat());
    says(&mut stage, server, "1Z");
    stage.server_gets(server);
    stage.client_says(client, &[query("begin; boom"), parse("b", "select 1"), sync()].concat());
    let sent = [query("begin; boom"), parse("", "select 1"), sync()].concat();
    assert_eq!(stage.server_gets(server), sent, "only the server can say");
}

#[test]
fn a_name_used_again_behind_the_end_of_a_failed_transaction_is_refused() {
    let (mut stage, client, server) = pair(PoolSpec::new(1));
    let other = stage.client();
    stage.client_says(client, &[parse("s", "select 1"), sync()].concat());
    says(&mut stage, server, "1Z");
    stage.client_says(other, &query("deallocate all"));
    stage.server_says(server, &message(b'C', b"DEALLOCATE ALL\0"));
    says(&mut stage, server, "Z");
    stage.client_says(client, &query("begin; boom"));
    stage.server_says(server, &[error("42601"), message(b'Z', b"E")].concat());
    stage.server_gets(server);
    stage.client_says(client, &[query("rollback"), parse("s", "select 2"), sync()].concat());
    assert_eq!(stage.server_gets(server), query("rollback"), "does the server take a Parse then?");
    stage.server_says(server, &message(b'C', b"ROLLBACK\0"));
    says(&mut stage, server, "Z");
    let lacking = parse("howdah_1", "select 1");
    let sent = [lacking, parse("howdah_1", "select 2"), sync()].concat();
    assert_eq!(stage.server_gets(server), sent, "else it would take the second");
}
