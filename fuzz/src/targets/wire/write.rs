//! Encodes parsed messages again, for the round trip.

use howdah_wire::{
    EncodeError, ValueFormat,
    backend::{self, Authentication, CopyFormat, encode as server},
    frontend::{self, encode as client},
};

/// Encodes a server's message; `None` for authentication requests, which are only ever read.
pub(super) fn backend(message: &backend::BackendMessage<'_>) -> Option<Vec<u8>> {
    use backend::BackendMessage;
    use server::{Bare, CopyStart};
    let mut buf = Vec::new();
    let out = &mut buf;
    let written = match message.clone() {
        BackendMessage::Authentication(request) => return authentication(&request),
        BackendMessage::BackendKeyData(key) => {
            server::backend_key_data(out, &key);
            Ok(())
        }
        BackendMessage::BindComplete => bare(out, Bare::BindComplete),
        BackendMessage::CloseComplete => bare(out, Bare::CloseComplete),
        BackendMessage::CommandComplete(tag) => server::command_complete(out, tag.as_bytes()),
        BackendMessage::CopyData(data) => server::copy_data(out, data),
        BackendMessage::CopyDone => bare(out, Bare::CopyDone),
        BackendMessage::CopyInResponse(format) => copy(out, CopyStart::In, format),
        BackendMessage::CopyOutResponse(format) => copy(out, CopyStart::Out, format),
        BackendMessage::CopyBothResponse(format) => copy(out, CopyStart::Both, format),
        BackendMessage::DataRow(cells) => server::data_row(out, cells),
        BackendMessage::EmptyQueryResponse => bare(out, Bare::EmptyQueryResponse),
        BackendMessage::ErrorResponse(error) => server::error_response(out, error.fields()),
        BackendMessage::FunctionCallResponse(value) => server::function_call_response(out, value),
        BackendMessage::NegotiateProtocolVersion(offer) => {
            let names: Vec<_> = offer.unknown_options.collect();
            server::negotiate_protocol_version(out, offer.newest, &names)
        }
        BackendMessage::NoData => bare(out, Bare::NoData),
        BackendMessage::NoticeResponse(notice) => server::notice_response(out, notice.fields()),
        BackendMessage::NotificationResponse(it) => server::notification_response(out, it),
        BackendMessage::ParameterDescription(types) => {
            server::parameter_description(out, &types.collect::<Vec<_>>())
        }
        BackendMessage::ParameterStatus { name, value } => {
            server::parameter_status(out, name, value)
        }
        BackendMessage::ParseComplete => bare(out, Bare::ParseComplete),
        BackendMessage::PortalSuspended => bare(out, Bare::PortalSuspended),
        BackendMessage::ReadyForQuery(status) => {
            server::ready_for_query(out, status);
            Ok(())
        }
        BackendMessage::RowDescription(fields) => server::row_description(out, fields),
        _ => return None,
    };
    written.expect("what was read can be written");
    Some(buf)
}

fn authentication(request: &Authentication<'_>) -> Option<Vec<u8>> {
    use server::AuthenticationRequest as Request;
    let mut buf = Vec::new();
    let mechanisms: Vec<_> = match request {
        Authentication::Sasl(mechanisms) => mechanisms.clone().collect(),
        _ => Vec::new(),
    };
    let request = match request {
        Authentication::Ok => Request::Ok,
        Authentication::CleartextPassword => Request::CleartextPassword,
        Authentication::Md5Password { salt } => Request::Md5Password { salt: *salt },
        Authentication::Sasl(_) => Request::Sasl(&mechanisms),
        Authentication::SaslContinue(data) => Request::SaslContinue(data),
        Authentication::SaslFinal(data) => Request::SaslFinal(data),
        _ => return None,
    };
    server::authentication(&mut buf, request).expect("what was read can be written");
    Some(buf)
}

fn bare(out: &mut Vec<u8>, message: server::Bare) -> Result<(), EncodeError> {
    server::bare(out, message);
    Ok(())
}

fn copy(
    out: &mut Vec<u8>,
    start: server::CopyStart,
    format: CopyFormat<'_>,
) -> Result<(), EncodeError> {
    server::copy_response(out, start, format.format, &format.columns.collect::<Vec<_>>())
}

/// Encodes a client's message.
pub(super) fn frontend(message: &frontend::FrontendMessage<'_>) -> Vec<u8> {
    use frontend::FrontendMessage;
    let mut buf = Vec::new();
    let out = &mut buf;
    let formats =
        |formats: &howdah_wire::Formats<'_>| formats.clone().collect::<Vec<ValueFormat>>();
    let plain = |out: &mut Vec<u8>, write: fn(&mut Vec<u8>)| {
        write(out);
        Ok(())
    };
    let written = match message {
        FrontendMessage::Bind(bind) => client::bind(
            out,
            bind.portal,
            bind.statement,
            &formats(&bind.formats),
            bind.values.clone(),
            &formats(&bind.result_formats),
        ),
        FrontendMessage::Close(target) => client::close(out, *target),
        FrontendMessage::CopyData(data) => client::copy_data(out, data),
        FrontendMessage::CopyDone => plain(out, client::copy_done),
        FrontendMessage::CopyFail { reason } => client::copy_fail(out, reason),
        FrontendMessage::Describe(target) => client::describe(out, *target),
        FrontendMessage::Execute { portal, max_rows } => client::execute(out, portal, *max_rows),
        FrontendMessage::Flush => plain(out, client::flush),
        FrontendMessage::FunctionCall(call) => client::function_call(
            out,
            call.function,
            &formats(&call.formats),
            call.arguments.clone(),
            call.result_format,
        ),
        FrontendMessage::Parse(parse) => {
            client::parse(out, parse.statement, parse.sql, &parse.types.clone().collect::<Vec<_>>())
        }
        FrontendMessage::Authentication(body) => client::sasl_response(out, body),
        FrontendMessage::Query { sql } => client::query(out, sql),
        FrontendMessage::Sync => plain(out, client::sync),
        FrontendMessage::Terminate => plain(out, client::terminate),
        other => unreachable!("{other:?} has no line here"),
    };
    written.expect("what was read can be written");
    buf
}
