//! Tests of requests and the server's replies.

use howdah_session::{
    ClientSession, EncodeError, Request, RequestId, SessionError, Severity, TransactionStatus,
    ValueFormat,
};
use howdah_wire::{
    Backend, Frontend,
    backend::encode::{self, Bare, CopyStart},
};
use proptest::prelude::*;

use crate::{
    describe::{describe, events},
    peer::{ServerScript, open, sent},
};

use TransactionStatus::{Failed, Idle, InTransaction};

/// The client's events for `script`, each with the id of the request it belongs to.
fn handle(client: &mut ClientSession, script: ServerScript) -> Vec<(String, Option<RequestId>)> {
    let ServerScript(bytes) = script;
    client.handle_input(&bytes);
    let mut lines = Vec::new();
    while let Some(event) = client.poll_event().unwrap() {
        let line = describe(&event);
        lines.push((line, client.answered()));
    }
    lines
}

fn lines(events: Vec<(String, Option<RequestId>)>) -> Vec<String> {
    events.into_iter().map(|(line, _)| line).collect()
}

#[test]
fn query_may_contain_several_statements() {
    let mut client = open();
    let id = client.query(b"begin; select 1; bad").unwrap();
    assert_eq!(sent(&mut client), [Frontend::Query]);
    let script = ServerScript::default()
        .complete("BEGIN")
        .row(b"1")
        .complete("SELECT 1")
        .error(Severity::Error, "42601")
        .ready(Failed);
    let events = handle(&mut client, script);
    assert!(events.iter().all(|(_, answered)| *answered == Some(id)));
    assert_eq!(
        lines(events),
        [
            "CommandComplete BEGIN",
            "Row 1",
            "CommandComplete SELECT 1",
            "Error 42601",
            "Ready Failed"
        ]
    );
    assert_eq!(client.transaction_status(), Failed);
    assert!(client.is_ready());
}

#[test]
fn replies_are_matched_to_requests() {
    let mut client = open();
    let parse = client.parse(b"s", b"select $1", &[23]).unwrap();
    let describe_statement = client.describe_statement(b"s").unwrap();
    let bind = client.bind(b"p", b"s", [Some(&b"1"[..])]).unwrap();
    let describe_portal = client.describe_portal(b"p").unwrap();
    let first = client.execute(b"p", 1).unwrap();
    let second = client.execute(b"p", 0).unwrap();
    let close = client.close_portal(b"p").unwrap();
    let sync = client.sync();
    use Frontend::{Bind, Close, Describe, Execute, Parse, Sync};
    assert_eq!(sent(&mut client), [Parse, Describe, Bind, Describe, Execute, Execute, Close, Sync]);
    assert_eq!((client.outstanding().count(), client.pending_ready_count()), (8, 1));

    let script = ServerScript::default()
        .bare(Bare::ParseComplete)
        .with(|buf| encode::parameter_description(buf, &[23]))
        .bare(Bare::NoData)
        .bare(Bare::BindComplete)
        .with(|buf| encode::row_description(buf, []))
        .row(b"1")
        .bare(Bare::PortalSuspended)
        .setting("TimeZone", "UTC")
        .complete("SELECT 0")
        .bare(Bare::CloseComplete)
        .ready(InTransaction);
    let expected = [
        ("ParseComplete", Some(parse)),
        ("ParameterDescription [23]", Some(describe_statement)),
        ("NoData", Some(describe_statement)),
        ("BindComplete", Some(bind)),
        ("RowDescription ", Some(describe_portal)),
        ("Row 1", Some(first)),
        ("PortalSuspended", Some(first)),
        ("ParameterStatus TimeZone=UTC", None),
        ("CommandComplete SELECT 0", Some(second)),
        ("CloseComplete", Some(close)),
        ("Ready InTransaction", Some(sync)),
    ];
    let expected: Vec<_> = expected.map(|(line, id)| (line.to_owned(), id)).into();
    assert_eq!(handle(&mut client, script), expected);
    assert!(client.is_ready());
}

#[test]
fn error_skips_rest_of_batch() {
    let mut client = open();
    client.parse(b"", b"bad", &[]).unwrap();
    let skipped = client.bind(b"", b"", []).unwrap();
    client.query(b"select 'skipped too'").unwrap();
    let sync = client.sync();
    let next = client.query(b"select 1").unwrap();
    assert_eq!(client.pending_ready_count(), 3);

    let events = handle(&mut client, ServerScript::default().error(Severity::Error, "42601"));
    assert_eq!(lines(events), ["Error 42601"]);
    let owed: Vec<_> = client.outstanding().collect();
    assert_eq!(owed, [(sync, Request::Sync), (next, Request::Query)]);
    assert_eq!(client.pending_ready_count(), 2);

    let script = ServerScript::default().ready(Idle).complete("SELECT 1").ready(Idle);
    let events = handle(&mut client, script);
    assert_eq!(events[0], ("Ready Idle".to_owned(), Some(sync)));
    assert!(skipped < sync, "a Ready for the Sync means that it was skipped");
    assert_eq!(events[2], ("Ready Idle".to_owned(), Some(next)));
}

#[test]
fn error_without_sync_skips_later_requests() {
    let mut client = open();
    client.parse(b"", b"bad", &[]).unwrap();
    client.flush();
    handle(&mut client, ServerScript::default().error(Severity::Error, "42601"));
    assert!(!client.is_ready(), "the server skips until a Sync");
    client.query(b"select 1").unwrap();
    assert_eq!((client.outstanding().count(), client.pending_ready_count()), (0, 0));
    assert!(!client.is_ready());
    let sync = client.sync();
    assert_eq!(client.pending_ready_count(), 1);
    let events = handle(&mut client, ServerScript::default().ready(Idle));
    assert_eq!(events, [("Ready Idle".to_owned(), Some(sync))]);
    assert!(client.is_ready());
}

#[test]
fn commit_error_belongs_to_sync() {
    let mut client = open();
    client.execute(b"", 0).unwrap();
    let sync = client.sync();
    let script =
        ServerScript::default().complete("INSERT 0 1").error(Severity::Error, "23503").ready(Idle);
    let events = handle(&mut client, script);
    assert_eq!(events[1], ("Error 23503".to_owned(), Some(sync)));
    assert_eq!(events[2], ("Ready Idle".to_owned(), Some(sync)));
}

#[test]
fn function_call_completes_with_ready() {
    let mut client = open();
    let id = client.call_function(1598, [Some(&b"1"[..]), None]).unwrap();
    assert_eq!(sent(&mut client), [Frontend::FunctionCall]);
    let script = ServerScript::default()
        .with(|buf| encode::function_call_response(buf, Some(b"42")))
        .ready(Idle);
    let events = handle(&mut client, script);
    assert_eq!(events[0], ("FunctionResult Some(\"42\")".to_owned(), Some(id)));
    assert_eq!(events[1], ("Ready Idle".to_owned(), Some(id)));
}

#[test]
fn rows_are_discarded_while_streaming() {
    let mut client = open();
    client.discard_rows(true);
    client.query(b"select big; copy big to stdout").unwrap();
    let script = ServerScript::default()
        .row(&[b'x'; 10_000])
        .complete("SELECT 1")
        .with(|buf| encode::copy_response(buf, CopyStart::Out, ValueFormat::Text, &[]))
        .with(|buf| encode::copy_data(buf, &[b'y'; 20_000]))
        .bare(Bare::CopyDone)
        .complete("COPY 1")
        .ready(Idle);
    let mut lines = Vec::new();
    for piece in script.0.chunks(999) {
        client.handle_input(piece);
        lines.extend(events(&mut client).unwrap());
    }
    assert_eq!(
        lines,
        [
            "Row of 10006 bytes",
            "CommandComplete SELECT 1",
            "CopyOut",
            "CopyData of 20000 bytes",
            "CopyDone",
            "CommandComplete COPY 1",
            "Ready Idle"
        ]
    );
}

fn copy_in(script: ServerScript) -> ServerScript {
    script.with(|buf| encode::copy_response(buf, CopyStart::In, ValueFormat::Text, &[]))
}

#[test]
fn query_may_contain_two_copies() {
    let mut client = open();
    client.query(b"copy a from stdin; copy b from stdin").unwrap();
    assert_eq!(lines(handle(&mut client, copy_in(ServerScript::default()))), ["CopyIn"]);
    client.copy_data(b"1\n").unwrap();
    client.copy_done();
    let script = copy_in(ServerScript::default().complete("COPY 1"));
    assert_eq!(lines(handle(&mut client, script)), ["CommandComplete COPY 1", "CopyIn"]);
    client.copy_fail(b"enough").unwrap();
    let script = ServerScript::default().error(Severity::Error, "57014").ready(Idle);
    assert_eq!(lines(handle(&mut client, script)), ["Error 57014", "Ready Idle"]);
    assert!(client.is_ready());
    use Frontend::{CopyData, CopyDone, CopyFail, Query};
    assert_eq!(sent(&mut client), [Query, CopyData, CopyDone, CopyFail]);
}

#[test]
fn sync_during_copy_is_ignored_and_needs_resending() {
    let mut client = open();
    client.execute(b"", 0).unwrap();
    let lost = client.sync();
    assert_eq!(client.pending_ready_count(), 1);
    handle(&mut client, copy_in(ServerScript::default()));
    assert_eq!(client.pending_ready_count(), 0);
    assert!(client.outstanding().all(|(id, _)| id != lost));
    sent(&mut client);

    client.sync();
    assert_eq!(sent(&mut client), [], "the server would ignore it");
    client.copy_done();
    let sync = client.sync();
    let script = ServerScript::default().complete("COPY 0").ready(Idle);
    assert_eq!(handle(&mut client, script)[1], ("Ready Idle".to_owned(), Some(sync)));
    assert!(client.is_ready());
}

#[test]
fn copy_data_may_be_pipelined() {
    let mut client = open();
    client.execute(b"", 0).unwrap();
    client.copy_data(b"1\n").unwrap();
    client.copy_done();
    let sync = client.sync();
    let script = copy_in(ServerScript::default()).complete("COPY 1").ready(Idle);
    let events = handle(&mut client, script);
    assert_eq!(events[2], ("Ready Idle".to_owned(), Some(sync)));
    assert_eq!(client.outstanding().count(), 0);
}

#[test]
fn end_of_failed_copy_is_ignored() {
    let mut client = open();
    // By the simple protocol: the server fails while data is on its way.
    client.query(b"copy a from stdin").unwrap();
    handle(&mut client, copy_in(ServerScript::default()));
    client.copy_done();
    handle(&mut client, ServerScript::default().error(Severity::Error, "22P02").ready(Idle));
    assert!(client.is_ready());
    // The end of the COPY data may even arrive after the Query is complete.
    client.copy_done();
    assert!(client.is_ready());

    // By the extended protocol.
    client.execute(b"", 0).unwrap();
    handle(&mut client, copy_in(ServerScript::default()));
    client.copy_done();
    let sync = client.sync();
    let script = ServerScript::default().error(Severity::Error, "22P02").ready(Idle);
    assert_eq!(handle(&mut client, script)[1], ("Ready Idle".to_owned(), Some(sync)));
    assert!(client.is_ready());
}

#[test]
fn fatal_error_closes_session() {
    let mut client = open();
    let query = client.query(b"select 1").unwrap();
    let script = ServerScript::default().error(Severity::Fatal, "57P01").ready(Idle);
    let events = handle(&mut client, script);
    assert_eq!(events, [("Error 57P01".to_owned(), Some(query))], "nothing after it is processed");
    assert!(client.is_closed() && !client.is_ready());
    assert_eq!(client.handle_eof(), Ok(()));
    sent(&mut client);
    client.query(b"select 2").unwrap();
    assert_eq!(client.transmit(), b"", "requests on a closed connection are dropped");
}

#[test]
fn server_may_terminate_idle_session() {
    let mut client = open();
    let events = handle(&mut client, ServerScript::default().error(Severity::Fatal, "57P05"));
    assert_eq!(events, [("Error 57P05".to_owned(), None)]);
    assert!(client.is_closed());
}

#[test]
fn eof_after_terminate_is_expected() {
    let mut client = open();
    client.terminate();
    assert_eq!(sent(&mut client), [Frontend::Terminate]);
    assert_eq!(client.handle_eof(), Ok(()));
    assert_eq!(open().handle_eof(), Err(SessionError::ConnectionLost));
}

#[test]
fn notices_and_notifications_arrive_at_any_time() {
    let mut client = open();
    let warning = encode::essentials(Severity::Warning, b"01000", b"beware");
    let script = ServerScript::default()
        .with(|buf| encode::notice_response(buf, warning))
        .with(|buf| {
            let it = howdah_session::Notification { process_id: 7, channel: b"ch", payload: b"x" };
            encode::notification_response(buf, it)
        })
        .setting("TimeZone", "UTC");
    assert_eq!(
        lines(handle(&mut client, script)),
        ["Notice beware", "Notification ch=x", "ParameterStatus TimeZone=UTC"]
    );
    assert!(client.is_ready());
}

#[test]
fn unsolicited_reply_is_a_protocol_error() {
    let mut client = open();
    client.handle_input(&ServerScript::default().bare(Bare::ParseComplete).0);
    let message = Backend::ParseComplete;
    let error = SessionError::Unexpected { message, state: "while no reply is outstanding" };
    assert_eq!(events(&mut client), Err(error));

    let mut client = open();
    client.execute(b"", 0).unwrap();
    client.handle_input(&ServerScript::default().bare(Bare::ParseComplete).0);
    let error =
        SessionError::Unexpected { message, state: "while waiting for the reply to Execute" };
    assert_eq!(events(&mut client), Err(error.clone()));
    assert_eq!(events(&mut client), Err(error), "the error persists");
}

#[test]
fn zero_byte_is_refused_with_field_name() {
    let mut client = open();
    let nul = |field| Err(EncodeError::Nul { field });
    assert_eq!(client.query(b"select '\0'"), nul("query"));
    assert_eq!(client.parse(b"s\0", b"", &[]), nul("statement name"));
    assert_eq!(client.bind(b"\0", b"", []), nul("portal name"));
    assert_eq!(client.copy_fail(b"\0"), Err(EncodeError::Nul { field: "reason" }));
    assert!(client.is_ready(), "no reply is outstanding");
    assert_eq!(client.transmit(), b"");
    client.bind(b"", b"", [Some(&b"\0"[..])]).unwrap();
}

proptest! {
    /// Whatever a server sends, in pieces of any size, the client does not panic, and stops at the
    /// same place for the same reason.
    #[test]
    fn arbitrary_bytes_are_events_or_error(
        seed in prop::collection::vec(
            prop_oneof![
                prop::sample::select(Backend::ALL).prop_map(|kind| vec![kind.tag().0, 0, 0, 0, 4]),
                prop::collection::vec(any::<u8>(), 1..6),
                Just(ServerScript::default().row(b"1").complete("SELECT 1").ready(Idle).0),
                Just(ServerScript::default().error(Severity::Error, "42601").0),
            ],
            0..12,
        ),
        piece in 1..40_usize,
        discard: bool,
    ) {
        let bytes = seed.concat();
        let run = |piece| {
            let mut client = open();
            client.discard_rows(discard);
            client.query(b"select 1").unwrap();
            client.execute(b"", 0).unwrap();
            client.sync();
            let mut lines = Vec::new();
            for bytes in bytes.chunks(piece) {
                client.handle_input(bytes);
                loop {
                    match client.poll_event() {
                        Ok(None) => break,
                        Ok(Some(event)) => lines.push(describe(&event)),
                        Err(error) => {
                            lines.push(format!("{error:?}"));
                            return (lines, client.pending_ready_count());
                        }
                    }
                }
            }
            (lines, client.pending_ready_count())
        };
        prop_assert_eq!(run(piece), run(bytes.len().max(1)));
    }
}
