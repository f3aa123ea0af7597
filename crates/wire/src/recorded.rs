//! Conversations recorded from PostgreSQL 15, in `testdata`: each message is read, compared with its
//! readable twin, and written again to the same bytes.
//!
//! The recordings are made by `cargo test -p howdah-session record -- --ignored`, the twins by
//! `INSTA_UPDATE=always cargo test -p howdah-wire recorded`.

use std::fmt::Write;

use crate::{
    Frame, backend, frontend,
    startup::{self, Packet},
};

#[test]
fn recorded_frontends() {
    check("scram.frontend", &frontend_lines(include_bytes!("../testdata/scram.frontend.bin")));
    check("trust.frontend", &frontend_lines(include_bytes!("../testdata/trust.frontend.bin")));
}

#[test]
fn recorded_backends() {
    check("scram.backend", &backend_lines(include_bytes!("../testdata/scram.backend.bin")));
    check("trust.backend", &backend_lines(include_bytes!("../testdata/trust.backend.bin")));
}

fn check(name: &str, lines: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../testdata");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, lines));
}

fn frontend_lines(recorded: &[u8]) -> String {
    let mut lines = String::new();
    let (packet, mut rest) = Packet::split(recorded, startup::PACKET_BYTES_MAX).unwrap().unwrap();
    let Packet::Startup(packet) = packet else { panic!("{packet:?}") };
    writeln!(lines, "Startup {}", packet.version).unwrap();
    for (name, value) in packet.parameters {
        writeln!(lines, "    {} = {}", name.escape_ascii(), value.escape_ascii()).unwrap();
    }
    while let Some((frame, after)) = Frame::split(rest, u32::MAX).unwrap() {
        let message = frontend::Message::parse(frame).unwrap();
        assert_eq!(frontend::tests::reencoded(&message), rest[..rest.len() - after.len()]);
        writeln!(lines, "{} {}{}", frame.tag, message.kind(), frontend_fields(message)).unwrap();
        rest = after;
    }
    assert_eq!(rest, b"");
    lines
}

fn backend_lines(mut rest: &[u8]) -> String {
    let mut lines = String::new();
    while let Some((frame, after)) = Frame::split(rest, u32::MAX).unwrap() {
        let message = backend::Message::parse(frame).unwrap();
        let again = backend::tests::reencoded(&message).unwrap();
        assert_eq!(again, rest[..rest.len() - after.len()]);
        writeln!(lines, "{} {}{}", frame.tag, message.kind(), backend_fields(message)).unwrap();
        rest = after;
    }
    assert_eq!(rest, b"");
    lines
}

fn frontend_fields(message: frontend::Message<'_>) -> String {
    use frontend::Message;
    match message {
        Message::Parse(it) => {
            format!(" {} = {} {:?}", name(it.statement), it.sql.escape_ascii(), it.types)
        }
        Message::Bind(it) => format!(
            " {} to {} with {}, {:?} {:?}",
            name(it.portal),
            name(it.statement),
            cells(it.values),
            it.formats,
            it.result_formats
        ),
        Message::Execute { portal, max_rows } => format!(" {} for {max_rows}", name(portal)),
        Message::Describe(target) | Message::Close(target) => match target {
            frontend::Target::Statement(it) => format!(" statement {}", name(it)),
            frontend::Target::Portal(it) => format!(" portal {}", name(it)),
        },
        Message::Query { sql } => format!(" {}", sql.escape_ascii()),
        Message::CopyData(data) => format!(" {}", data.escape_ascii()),
        Message::CopyFail { reason } => format!(" {}", reason.escape_ascii()),
        Message::FunctionCall(it) => format!(" {} {}", it.function, cells(it.arguments)),
        Message::Authentication(body) => format!(" {}", body.escape_ascii()),
        _ => String::new(),
    }
}

fn backend_fields(message: backend::Message<'_>) -> String {
    use backend::{Authentication, Message};
    match message {
        Message::Authentication(Authentication::Sasl(mechanisms)) => {
            mechanisms.map(|it| format!(" {}", it.escape_ascii())).collect()
        }
        Message::Authentication(Authentication::SaslContinue(data)) => {
            format!(" continue {}", data.escape_ascii())
        }
        Message::Authentication(Authentication::SaslFinal(data)) => {
            format!(" final {}", data.escape_ascii())
        }
        Message::Authentication(request) => format!(" {request:?}"),
        Message::CommandComplete(tag) => format!(" {}", tag.as_bytes().escape_ascii()),
        Message::CopyData(data) => format!(" {}", data.escape_ascii()),
        Message::CopyInResponse(it) | Message::CopyOutResponse(it) => {
            format!(" {:?} {:?}", it.format, it.columns)
        }
        Message::DataRow(row) => format!(" {}", cells(row)),
        Message::ErrorResponse(it) | Message::NoticeResponse(it) => it
            .fields()
            .map(|(code, text)| format!("\n    {}: {}", char::from(code), text.escape_ascii()))
            .collect(),
        Message::FunctionCallResponse(value) => {
            format!(" {}", value.map_or("NULL".to_owned(), |it| it.escape_ascii().to_string()))
        }
        Message::NotificationResponse(it) => {
            format!(" {} = {}", it.channel.escape_ascii(), it.payload.escape_ascii())
        }
        Message::ParameterDescription(types) => format!(" {types:?}"),
        Message::ParameterStatus { name, value } => {
            format!(" {} = {}", name.escape_ascii(), value.escape_ascii())
        }
        Message::ReadyForQuery(status) => format!(" {status:?}"),
        Message::RowDescription(fields) => fields
            .map(|it| {
                format!(
                    "\n    {} of {}.{}: type {} ({} bytes, modifier {}), {:?}",
                    it.name.escape_ascii(),
                    it.table,
                    it.column,
                    it.type_oid,
                    it.type_bytes,
                    it.type_modifier,
                    it.format
                )
            })
            .collect(),
        _ => String::new(),
    }
}

fn name(name: &[u8]) -> String {
    if name.is_empty() { "<unnamed>".to_owned() } else { name.escape_ascii().to_string() }
}

fn cells(cells: crate::Cells<'_>) -> String {
    let cells: Vec<_> =
        cells.map(|it| it.map_or("NULL".to_owned(), |it| it.escape_ascii().to_string())).collect();
    format!("({})", cells.join(", "))
}
