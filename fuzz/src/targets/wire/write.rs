//! Messages that were read, written again.

use howdah_wire::{
    EncodeError, Format,
    backend::{self, Authentication, CopyFormat, encode as server},
    frontend::{self, encode as client},
};

/// A server's message; `None` for the requests of authentication that are only ever read.
pub(super) fn backend(message: &backend::Message<'_>) -> Option<Vec<u8>> {
    use backend::Message;
    use server::{Bare, CopyStart};
    let mut buf = Vec::new();
    let out = &mut buf;
    let written = match message.clone() {
        Message::Authentication(request) => return authentication(&request),
        Message::BackendKeyData(key) => {
            server::backend_key_data(out, &key);
            Ok(())
        }
        Message::BindComplete => bare(out, Bare::BindComplete),
        Message::CloseComplete => bare(out, Bare::CloseComplete),
        Message::CommandComplete(tag) => server::command_complete(out, tag.as_bytes()),
        Message::CopyData(data) => server::copy_data(out, data),
        Message::CopyDone => bare(out, Bare::CopyDone),
        Message::CopyInResponse(format) => copy(out, CopyStart::In, format),
        Message::CopyOutResponse(format) => copy(out, CopyStart::Out, format),
        Message::CopyBothResponse(format) => copy(out, CopyStart::Both, format),
        Message::DataRow(cells) => server::data_row(out, cells),
        Message::EmptyQueryResponse => bare(out, Bare::EmptyQueryResponse),
        Message::ErrorResponse(error) => server::error_response(out, error.fields()),
        Message::FunctionCallResponse(value) => server::function_call_response(out, value),
        Message::NegotiateProtocolVersion(offer) => {
            let names: Vec<_> = offer.unknown_options.collect();
            server::negotiate_protocol_version(out, offer.newest, &names)
        }
        Message::NoData => bare(out, Bare::NoData),
        Message::NoticeResponse(notice) => server::notice_response(out, notice.fields()),
        Message::NotificationResponse(it) => server::notification_response(out, it),
        Message::ParameterDescription(types) => {
            server::parameter_description(out, &types.collect::<Vec<_>>())
        }
        Message::ParameterStatus { name, value } => server::parameter_status(out, name, value),
        Message::ParseComplete => bare(out, Bare::ParseComplete),
        Message::PortalSuspended => bare(out, Bare::PortalSuspended),
        Message::ReadyForQuery(status) => {
            server::ready_for_query(out, status);
            Ok(())
        }
        Message::RowDescription(fields) => server::row_description(out, fields),
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

/// A client's message.
pub(super) fn frontend(message: &frontend::Message<'_>) -> Vec<u8> {
    use frontend::Message;
    let mut buf = Vec::new();
    let out = &mut buf;
    let formats = |formats: &howdah_wire::Formats<'_>| formats.clone().collect::<Vec<Format>>();
    let plain = |out: &mut Vec<u8>, write: fn(&mut Vec<u8>)| {
        write(out);
        Ok(())
    };
    let written = match message {
        Message::Bind(bind) => client::bind(
            out,
            bind.portal,
            bind.statement,
            &formats(&bind.formats),
            bind.values.clone(),
            &formats(&bind.result_formats),
        ),
        Message::Close(target) => client::close(out, *target),
        Message::CopyData(data) => client::copy_data(out, data),
        Message::CopyDone => plain(out, client::copy_done),
        Message::CopyFail { reason } => client::copy_fail(out, reason),
        Message::Describe(target) => client::describe(out, *target),
        Message::Execute { portal, max_rows } => client::execute(out, portal, *max_rows),
        Message::Flush => plain(out, client::flush),
        Message::FunctionCall(call) => client::function_call(
            out,
            call.function,
            &formats(&call.formats),
            call.arguments.clone(),
            call.result_format,
        ),
        Message::Parse(parse) => {
            client::parse(out, parse.statement, parse.sql, &parse.types.clone().collect::<Vec<_>>())
        }
        Message::Authentication(body) => client::sasl_response(out, body),
        Message::Query { sql } => client::query(out, sql),
        Message::Sync => plain(out, client::sync),
        Message::Terminate => plain(out, client::terminate),
        other => unreachable!("{other:?} has no line here"),
    };
    written.expect("what was read can be written");
    buf
}
