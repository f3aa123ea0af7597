//! Requests and what the server makes of them.

use howdah_session::{
    Client, EncodeError, Error, Format, Request, RequestId, Severity, TransactionStatus,
};
use howdah_wire::{
    Backend, Frontend,
    backend::encode::{self, Bare, CopyStart},
};
use proptest::prelude::*;

use crate::{
    describe::{describe, events},
    peer::{Says, open, sent},
};

use TransactionStatus::{Failed, Idle, InTransaction};

/// What the client makes of `says`, each line with the number of the request it belongs to.
fn hears(client: &mut Client, says: Says) -> Vec<(String, Option<RequestId>)> {
    let Says(bytes) = says;
    client.handle_input(&bytes);
    let mut lines = Vec::new();
    while let Some(event) = client.poll_event().unwrap() {
        let line = describe(&event);
        lines.push((line, client.answered()));
    }
    lines
}

fn lines(heard: Vec<(String, Option<RequestId>)>) -> Vec<String> {
    heard.into_iter().map(|(line, _)| line).collect()
}

#[test]
fn a_query_may_hold_several_statements() {
    let mut client = open();
    let id = client.query(b"begin; select 1; bad").unwrap();
    assert_eq!(sent(&mut client), [Frontend::Query]);
    let says = Says::default()
        .complete("BEGIN")
        .row(b"1")
        .complete("SELECT 1")
        .error(Severity::Error, "42601")
        .ready(Failed);
    let heard = hears(&mut client, says);
    assert!(heard.iter().all(|(_, answered)| *answered == Some(id)));
    assert_eq!(
        lines(heard),
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
fn each_reply_finds_its_request() {
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
    assert_eq!((client.owed().count(), client.ready_owed()), (8, 1));

    let says = Says::default()
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
    assert_eq!(hears(&mut client, says), expected);
    assert!(client.is_ready());
}

#[test]
fn after_an_error_the_rest_of_the_batch_is_not_owed() {
    let mut client = open();
    client.parse(b"", b"bad", &[]).unwrap();
    let skipped = client.bind(b"", b"", []).unwrap();
    client.query(b"select 'skipped too'").unwrap();
    let sync = client.sync();
    let next = client.query(b"select 1").unwrap();
    assert_eq!(client.ready_owed(), 3);

    let heard = hears(&mut client, Says::default().error(Severity::Error, "42601"));
    assert_eq!(lines(heard), ["Error 42601"]);
    let owed: Vec<_> = client.owed().collect();
    assert_eq!(owed, [(sync, Request::Sync), (next, Request::Query)]);
    assert_eq!(client.ready_owed(), 2);

    let says = Says::default().ready(Idle).complete("SELECT 1").ready(Idle);
    let heard = hears(&mut client, says);
    assert_eq!(heard[0], ("Ready Idle".to_owned(), Some(sync)));
    assert!(skipped < sync, "so a Ready for the Sync tells that it was skipped");
    assert_eq!(heard[2], ("Ready Idle".to_owned(), Some(next)));
}

#[test]
fn after_an_error_nothing_is_owed_until_a_sync_is_sent() {
    let mut client = open();
    client.parse(b"", b"bad", &[]).unwrap();
    client.flush();
    hears(&mut client, Says::default().error(Severity::Error, "42601"));
    assert!(!client.is_ready(), "the server skips until a Sync");
    client.query(b"select 1").unwrap();
    assert_eq!((client.owed().count(), client.ready_owed()), (0, 0));
    assert!(!client.is_ready());
    let sync = client.sync();
    assert_eq!(client.ready_owed(), 1);
    let heard = hears(&mut client, Says::default().ready(Idle));
    assert_eq!(heard, [("Ready Idle".to_owned(), Some(sync))]);
    assert!(client.is_ready());
}

#[test]
fn an_error_at_commit_belongs_to_the_sync() {
    let mut client = open();
    client.execute(b"", 0).unwrap();
    let sync = client.sync();
    let says = Says::default().complete("INSERT 0 1").error(Severity::Error, "23503").ready(Idle);
    let heard = hears(&mut client, says);
    assert_eq!(heard[1], ("Error 23503".to_owned(), Some(sync)));
    assert_eq!(heard[2], ("Ready Idle".to_owned(), Some(sync)));
}

#[test]
fn a_function_call_ends_with_ready() {
    let mut client = open();
    let id = client.call_function(1598, [Some(&b"1"[..]), None]).unwrap();
    assert_eq!(sent(&mut client), [Frontend::FunctionCall]);
    let says =
        Says::default().with(|buf| encode::function_call_response(buf, Some(b"42"))).ready(Idle);
    let heard = hears(&mut client, says);
    assert_eq!(heard[0], ("FunctionResult Some(\"42\")".to_owned(), Some(id)));
    assert_eq!(heard[1], ("Ready Idle".to_owned(), Some(id)));
}

#[test]
fn rows_may_be_discarded_as_they_come() {
    let mut client = open();
    client.discard_rows(true);
    client.query(b"select big; copy big to stdout").unwrap();
    let says = Says::default()
        .row(&[b'x'; 10_000])
        .complete("SELECT 1")
        .with(|buf| encode::copy_response(buf, CopyStart::Out, Format::Text, &[]))
        .with(|buf| encode::copy_data(buf, &[b'y'; 20_000]))
        .bare(Bare::CopyDone)
        .complete("COPY 1")
        .ready(Idle);
    let mut heard = Vec::new();
    for piece in says.0.chunks(999) {
        client.handle_input(piece);
        heard.extend(events(&mut client).unwrap());
    }
    assert_eq!(
        heard,
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

fn copy_in(says: Says) -> Says {
    says.with(|buf| encode::copy_response(buf, CopyStart::In, Format::Text, &[]))
}

#[test]
fn a_query_may_copy_twice() {
    let mut client = open();
    client.query(b"copy a from stdin; copy b from stdin").unwrap();
    assert_eq!(lines(hears(&mut client, copy_in(Says::default()))), ["CopyIn"]);
    client.copy_data(b"1\n").unwrap();
    client.copy_done();
    let says = copy_in(Says::default().complete("COPY 1"));
    assert_eq!(lines(hears(&mut client, says)), ["CommandComplete COPY 1", "CopyIn"]);
    client.copy_fail(b"enough").unwrap();
    let says = Says::default().error(Severity::Error, "57014").ready(Idle);
    assert_eq!(lines(hears(&mut client, says)), ["Error 57014", "Ready Idle"]);
    assert!(client.is_ready());
    use Frontend::{CopyData, CopyDone, CopyFail, Query};
    assert_eq!(sent(&mut client), [Query, CopyData, CopyDone, CopyFail]);
}

#[test]
fn a_sync_behind_a_copy_is_lost_and_another_is_needed() {
    let mut client = open();
    client.execute(b"", 0).unwrap();
    let lost = client.sync();
    assert_eq!(client.ready_owed(), 1);
    hears(&mut client, copy_in(Says::default()));
    assert_eq!(client.ready_owed(), 0);
    assert!(client.owed().all(|(id, _)| id != lost));
    sent(&mut client);

    client.sync();
    assert_eq!(sent(&mut client), [], "the server would ignore it");
    client.copy_done();
    let sync = client.sync();
    let says = Says::default().complete("COPY 0").ready(Idle);
    assert_eq!(hears(&mut client, says)[1], ("Ready Idle".to_owned(), Some(sync)));
    assert!(client.is_ready());
}

#[test]
fn a_copy_may_be_sent_without_waiting() {
    let mut client = open();
    client.execute(b"", 0).unwrap();
    client.copy_data(b"1\n").unwrap();
    client.copy_done();
    let sync = client.sync();
    let says = copy_in(Says::default()).complete("COPY 1").ready(Idle);
    let heard = hears(&mut client, says);
    assert_eq!(heard[2], ("Ready Idle".to_owned(), Some(sync)));
    assert_eq!(client.owed().count(), 0);
}

#[test]
fn the_end_of_a_copy_that_failed_is_ignored() {
    let mut client = open();
    // By the simple protocol: the server fails while data is on its way.
    client.query(b"copy a from stdin").unwrap();
    hears(&mut client, copy_in(Says::default()));
    client.copy_done();
    hears(&mut client, Says::default().error(Severity::Error, "22P02").ready(Idle));
    assert!(client.is_ready());
    // Even when it comes after all is over.
    client.copy_done();
    assert!(client.is_ready());

    // By the extended protocol.
    client.execute(b"", 0).unwrap();
    hears(&mut client, copy_in(Says::default()));
    client.copy_done();
    let sync = client.sync();
    let says = Says::default().error(Severity::Error, "22P02").ready(Idle);
    assert_eq!(hears(&mut client, says)[1], ("Ready Idle".to_owned(), Some(sync)));
    assert!(client.is_ready());
}

#[test]
fn a_fatal_error_ends_the_session() {
    let mut client = open();
    let query = client.query(b"select 1").unwrap();
    let says = Says::default().error(Severity::Fatal, "57P01").ready(Idle);
    let heard = hears(&mut client, says);
    assert_eq!(heard, [("Error 57P01".to_owned(), Some(query))], "nothing after it is believed");
    assert!(client.is_closed() && !client.is_ready());
    assert_eq!(client.handle_end(), Ok(()));
    sent(&mut client);
    client.query(b"select 2").unwrap();
    assert_eq!(client.transmit(), b"", "requests on a closed connection are dropped");
}

#[test]
fn a_server_may_end_an_idle_session() {
    let mut client = open();
    let heard = hears(&mut client, Says::default().error(Severity::Fatal, "57P05"));
    assert_eq!(heard, [("Error 57P05".to_owned(), None)]);
    assert!(client.is_closed());
}

#[test]
fn goodbye_makes_the_end_expected() {
    let mut client = open();
    client.terminate();
    assert_eq!(sent(&mut client), [Frontend::Terminate]);
    assert_eq!(client.handle_end(), Ok(()));
    assert_eq!(open().handle_end(), Err(Error::ConnectionLost));
}

#[test]
fn notices_and_notifications_come_at_any_time() {
    let mut client = open();
    let warning = encode::essentials(Severity::Warning, b"01000", b"beware");
    let says = Says::default()
        .with(|buf| encode::notice_response(buf, warning))
        .with(|buf| {
            let it = howdah_session::Notification { process_id: 7, channel: b"ch", payload: b"x" };
            encode::notification_response(buf, it)
        })
        .setting("TimeZone", "UTC");
    assert_eq!(
        lines(hears(&mut client, says)),
        ["Notice beware", "Notification ch=x", "ParameterStatus TimeZone=UTC"]
    );
    assert!(client.is_ready());
}

#[test]
fn a_reply_to_nothing_breaks_the_protocol() {
    let mut client = open();
    client.handle_input(&Says::default().bare(Bare::ParseComplete).0);
    let message = Backend::ParseComplete;
    let error = Error::Unexpected { message, state: "nothing is owed" };
    assert_eq!(events(&mut client), Err(error));

    let mut client = open();
    client.execute(b"", 0).unwrap();
    client.handle_input(&Says::default().bare(Bare::ParseComplete).0);
    let error = Error::Unexpected { message, state: "waiting for the answer to Execute" };
    assert_eq!(events(&mut client), Err(error.clone()));
    assert_eq!(events(&mut client), Err(error), "and stays broken");
}

#[test]
fn a_zero_byte_is_refused_where_it_stands() {
    let mut client = open();
    let nul = |field| Err(EncodeError::Nul { field });
    assert_eq!(client.query(b"select '\0'"), nul("query"));
    assert_eq!(client.parse(b"s\0", b"", &[]), nul("statement name"));
    assert_eq!(client.bind(b"\0", b"", []), nul("portal name"));
    assert_eq!(client.copy_fail(b"\0"), Err(EncodeError::Nul { field: "reason" }));
    assert!(client.is_ready(), "nothing is owed for it");
    assert_eq!(client.transmit(), b"");
    client.bind(b"", b"", [Some(&b"\0"[..])]).unwrap();
}

proptest! {
    /// Whatever a server says, in pieces of whatever size, the client does not panic, and stops at
    /// the same place for the same reason.
    #[test]
    fn any_bytes_are_events_or_an_error(
        seed in prop::collection::vec(
            prop_oneof![
                prop::sample::select(Backend::ALL).prop_map(|kind| vec![kind.tag().0, 0, 0, 0, 4]),
                prop::collection::vec(any::<u8>(), 1..6),
                Just(Says::default().row(b"1").complete("SELECT 1").ready(Idle).0),
                Just(Says::default().error(Severity::Error, "42601").0),
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
                            return (lines, client.ready_owed());
                        }
                    }
                }
            }
            (lines, client.ready_owed())
        };
        prop_assert_eq!(run(piece), run(bytes.len().max(1)));
    }
}
