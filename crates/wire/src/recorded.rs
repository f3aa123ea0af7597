//! Sessions recorded from PostgreSQL 15, in `testdata`: each message is decoded, compared with its
//! readable snapshot, and encoded again to the same bytes.
//!
//! The recordings are created by `cargo test -p howdah-session record -- --ignored`, the snapshots
//! by `INSTA_UPDATE=always cargo test -p howdah-wire recorded`.

use std::fmt::Write;

use crate::{
    Frame, backend, frontend,
    startup::{self, Packet},
};

#[test]
fn recorded_frontend_messages_round_trip() {
    check("scram.frontend", &frontend_lines(include_bytes!("../testdata/scram.frontend.bin")));
    check("trust.frontend", &frontend_lines(include_bytes!("../testdata/trust.frontend.bin")));
}

#[test]
fn recorded_backend_messages_round_trip() {
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
        let message = frontend::FrontendMessage::parse(frame).unwrap();
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
        let message = backend::BackendMessage::parse(frame).unwrap();
        let again = backend::tests::reencoded(&message).unwrap();
        assert_eq!(again, rest[..rest.len() - after.len()]);
        writeln!(lines, "{} {}{}", frame.tag, message.kind(), backend_fields(message)).unwrap();
        rest = after;
    }
    assert_eq!(rest, b"");
    lines
}

fn frontend_fields(message: frontend::FrontendMessage<'_>) -> String {
    use frontend::FrontendMessage;
    match message {
        FrontendMessage::Parse(it) => {
            format!(" {} = {} {:?}", name(it.statement), it.sql.escape_ascii(), it.types)
        }
        FrontendMessage::Bind(it) => format!(
            " {} to {} with {}, {:?} {:?}",
            name(it.portal),
            name(it.statement),
            cells(it.values),
            it.formats,
            it.result_formats
        ),
        FrontendMessage::Execute { portal, max_rows } => {
            format!(" {} for {max_rows}", name(portal))
        }
        FrontendMessage::Describe(target) | FrontendMessage::Close(target) => match target {
            frontend::DescribeTarget::Statement(it) => format!(" statement {}", name(it)),
            frontend::DescribeTarget::Portal(it) => format!(" portal {}", name(it)),
        },
        FrontendMessage::Query { sql } => format!(" {}", sql.escape_ascii()),
        FrontendMessage::CopyData(data) => format!(" {}", data.escape_ascii()),
        FrontendMessage::CopyFail { reason } => format!(" {}", reason.escape_ascii()),
        FrontendMessage::FunctionCall(it) => format!(" {} {}", it.function, cells(it.arguments)),
        FrontendMessage::Authentication(body) => format!(" {}", body.escape_ascii()),
        _ => String::new(),
    }
}

fn backend_fields(message: backend::BackendMessage<'_>) -> String {
    use backend::{Authentication, BackendMessage};
    match message {
        BackendMessage::Authentication(Authentication::Sasl(mechanisms)) => {
            mechanisms.map(|it| format!(" {}", it.escape_ascii())).collect()
        }
        BackendMessage::Authentication(Authentication::SaslContinue(data)) => {
            format!(" continue {}", data.escape_ascii())
        }
        BackendMessage::Authentication(Authentication::SaslFinal(data)) => {
            format!(" final {}", data.escape_ascii())
        }
        BackendMessage::Authentication(request) => format!(" {request:?}"),
        BackendMessage::CommandComplete(tag) => format!(" {}", tag.as_bytes().escape_ascii()),
        BackendMessage::CopyData(data) => format!(" {}", data.escape_ascii()),
        BackendMessage::CopyInResponse(it) | BackendMessage::CopyOutResponse(it) => {
            format!(" {:?} {:?}", it.format, it.columns)
        }
        BackendMessage::DataRow(row) => format!(" {}", cells(row)),
        BackendMessage::ErrorResponse(it) | BackendMessage::NoticeResponse(it) => it
            .fields()
            .map(|(code, text)| format!("\n    {}: {}", char::from(code), text.escape_ascii()))
            .collect(),
        BackendMessage::FunctionCallResponse(value) => {
            format!(" {}", value.map_or("NULL".to_owned(), |it| it.escape_ascii().to_string()))
        }
        BackendMessage::NotificationResponse(it) => {
            format!(" {} = {}", it.channel.escape_ascii(), it.payload.escape_ascii())
        }
        BackendMessage::ParameterDescription(types) => format!(" {types:?}"),
        BackendMessage::ParameterStatus { name, value } => {
            format!(" {} = {}", name.escape_ascii(), value.escape_ascii())
        }
        BackendMessage::ReadyForQuery(status) => format!(" {status:?}"),
        BackendMessage::RowDescription(fields) => fields
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
