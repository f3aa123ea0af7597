use proptest::prelude::*;

use super::*;
use crate::{EncodeError, Tag, testing};
use encode::{AuthenticationRequest, Bare, CopyStart};

/// Returns messages with their bytes, which were encoded by hand from "Message Formats" in the
/// manual.
fn goldens() -> Vec<(Backend, Vec<u8>, &'static [u8])> {
    let written = |write: &dyn Fn(&mut Vec<u8>) -> Result<(), EncodeError>| {
        let mut buf = Vec::new();
        write(&mut buf).unwrap();
        buf
    };
    let bare = |message| {
        written(&|buf| {
            encode::bare(buf, message);
            Ok(())
        })
    };
    let auth = |request| written(&|buf| encode::authentication(buf, request));
    let (text, binary) = (ValueFormat::Text, ValueFormat::Binary);
    let field = FieldDescription {
        name: b"id",
        table: 16384,
        column: 1,
        type_oid: 23,
        type_bytes: 4,
        type_modifier: -1,
        format: binary,
    };
    let notification = Notification { process_id: 258, channel: b"ch", payload: b"" };
    let key = CancelKey::new(258, b"key!").unwrap();
    let essentials = encode::essentials(Severity::Error, b"22012", b"no");
    vec![
        (Backend::Authentication, auth(AuthenticationRequest::Ok), b"R\0\0\0\x08\0\0\0\0"),
        (
            Backend::Authentication,
            auth(AuthenticationRequest::CleartextPassword),
            b"R\0\0\0\x08\0\0\0\x03",
        ),
        (
            Backend::Authentication,
            auth(AuthenticationRequest::Md5Password { salt: *b"salt" }),
            b"R\0\0\0\x0c\0\0\0\x05salt",
        ),
        (
            Backend::Authentication,
            auth(AuthenticationRequest::Sasl(&[b"A", b"B"])),
            b"R\0\0\0\x0d\0\0\0\x0aA\0B\0\0",
        ),
        (
            Backend::Authentication,
            auth(AuthenticationRequest::SaslContinue(b"r=")),
            b"R\0\0\0\x0a\0\0\0\x0br=",
        ),
        (
            Backend::Authentication,
            auth(AuthenticationRequest::SaslFinal(b"v=")),
            b"R\0\0\0\x0a\0\0\0\x0cv=",
        ),
        (
            Backend::BackendKeyData,
            written(&|buf| {
                encode::backend_key_data(buf, &key);
                Ok(())
            }),
            b"K\0\0\0\x0c\0\0\x01\x02key!",
        ),
        (Backend::BindComplete, bare(Bare::BindComplete), b"2\0\0\0\x04"),
        (Backend::CloseComplete, bare(Bare::CloseComplete), b"3\0\0\0\x04"),
        (
            Backend::CommandComplete,
            written(&|buf| encode::command_complete(buf, b"SELECT 1")),
            b"C\0\0\0\x0dSELECT 1\0",
        ),
        (Backend::CopyData, written(&|buf| encode::copy_data(buf, b"1\n")), b"d\0\0\0\x061\n"),
        (Backend::CopyDone, bare(Bare::CopyDone), b"c\0\0\0\x04"),
        (
            Backend::CopyInResponse,
            written(&|buf| encode::copy_response(buf, CopyStart::In, text, &[text, text])),
            b"G\0\0\0\x0b\0\0\x02\0\0\0\0",
        ),
        (
            Backend::CopyOutResponse,
            written(&|buf| encode::copy_response(buf, CopyStart::Out, binary, &[binary])),
            b"H\0\0\0\x09\x01\0\x01\0\x01",
        ),
        (
            Backend::CopyBothResponse,
            written(&|buf| encode::copy_response(buf, CopyStart::Both, text, &[])),
            b"W\0\0\0\x07\0\0\0",
        ),
        (
            Backend::DataRow,
            written(&|buf| encode::data_row(buf, [Some(&b"ab"[..]), None, Some(b"")])),
            b"D\0\0\0\x14\0\x03\0\0\0\x02ab\xff\xff\xff\xff\0\0\0\0",
        ),
        (Backend::EmptyQueryResponse, bare(Bare::EmptyQueryResponse), b"I\0\0\0\x04"),
        (
            Backend::ErrorResponse,
            written(&|buf| encode::error_response(buf, essentials)),
            b"E\0\0\0\x1eSERROR\0VERROR\0C22012\0Mno\0\0",
        ),
        (
            Backend::FunctionCallResponse,
            written(&|buf| encode::function_call_response(buf, Some(b"7"))),
            b"V\0\0\0\x09\0\0\0\x017",
        ),
        (
            Backend::FunctionCallResponse,
            written(&|buf| encode::function_call_response(buf, None)),
            b"V\0\0\0\x08\xff\xff\xff\xff",
        ),
        (
            Backend::NegotiateProtocolVersion,
            written(&|buf| {
                encode::negotiate_protocol_version(buf, ProtocolVersion::V3_2, &[b"_pq_.x"])
            }),
            b"v\0\0\0\x13\0\x03\0\x02\0\0\0\x01_pq_.x\0",
        ),
        (Backend::NoData, bare(Bare::NoData), b"n\0\0\0\x04"),
        (
            Backend::NoticeResponse,
            written(&|buf| encode::notice_response(buf, [(b'H', &b"do"[..]), (b'?', b"")])),
            b"N\0\0\0\x0bHdo\0?\0\0",
        ),
        (
            Backend::NotificationResponse,
            written(&|buf| encode::notification_response(buf, notification)),
            b"A\0\0\0\x0c\0\0\x01\x02ch\0\0",
        ),
        (
            Backend::ParameterDescription,
            written(&|buf| encode::parameter_description(buf, &[23, 0])),
            b"t\0\0\0\x0e\0\x02\0\0\0\x17\0\0\0\0",
        ),
        (
            Backend::ParameterStatus,
            written(&|buf| encode::parameter_status(buf, b"TimeZone", b"UTC")),
            b"S\0\0\0\x11TimeZone\0UTC\0",
        ),
        (Backend::ParseComplete, bare(Bare::ParseComplete), b"1\0\0\0\x04"),
        (Backend::PortalSuspended, bare(Bare::PortalSuspended), b"s\0\0\0\x04"),
        (
            Backend::ReadyForQuery,
            written(&|buf| {
                encode::ready_for_query(buf, TransactionStatus::Failed);
                Ok(())
            }),
            b"Z\0\0\0\x05E",
        ),
        (
            Backend::RowDescription,
            written(&|buf| encode::row_description(buf, [field])),
            b"T\0\0\0\x1b\0\x01id\0\0\0\x40\0\0\x01\0\0\0\x17\0\x04\xff\xff\xff\xff\0\x01",
        ),
    ]
}

#[test]
fn messages_match_manual_layout() {
    let goldens = goldens();
    for (kind, written, bytes) in &goldens {
        assert_eq!(written, bytes, "{kind}");
        let message = BackendMessage::parse(testing::only_frame(bytes)).unwrap();
        assert_eq!(message.kind(), *kind);
        assert_eq!(reencoded(&message).as_deref(), Some(*bytes));
    }
    for kind in Backend::ALL {
        assert!(goldens.iter().any(|(golden, ..)| golden == kind), "{kind} has no golden bytes");
    }
}

#[test]
fn truncated_message_is_an_error() {
    for (kind, _, bytes) in goldens() {
        // A key may have any length from 4 to 256 bytes, and SASL data any length at all.
        let open_ended = matches!(bytes, [b'R', _, _, _, _, _, _, _, 11 | 12, ..])
            || matches!(kind, Backend::CopyData | Backend::BackendKeyData);
        testing::check_truncation(bytes, open_ended, |frame| {
            BackendMessage::parse(frame).map(drop)
        });
    }
    for body in [&b"\0\0\x01\x02key"[..], &[7; 4 + 257]] {
        let frame = Frame { tag: Backend::BackendKeyData.tag(), body };
        assert!(matches!(BackendMessage::parse(frame), Err(DecodeError::BadValue { .. })));
    }
}

#[test]
fn unknown_codes_are_errors() {
    let read = |tag, body| BackendMessage::parse(Frame { tag: Tag(tag), body }).map(drop);
    let bad = |message, field, value| Err(DecodeError::BadValue { message, field, value });
    assert_eq!(read(b'Z', b"X"), bad("ReadyForQuery", "transaction status", b'X'.into()));
    assert_eq!(read(b'R', b"\0\0\0\x63"), bad("Authentication", "code", 99));
    assert_eq!(read(b'G', b"\x02\0\0"), bad("CopyInResponse", "format", 2));
    assert_eq!(read(b'D', b"\0\x01\xff\xff\xff\xfe"), bad("DataRow", "value", -2));
    assert_eq!(read(b'Q', b"\0"), Err(DecodeError::UnknownTag { tag: Tag(b'Q') }));
}

#[test]
fn error_fields_are_accessible() {
    let body = b"SFEHLER\0VERROR\0C42601\0Msyntax error\0P17\0Hthink\0Ddetail\0Wcontext\0Qnew\0\0";
    let frame = Frame { tag: Backend::ErrorResponse.tag(), body };
    let BackendMessage::ErrorResponse(error) = BackendMessage::parse(frame).unwrap() else {
        panic!()
    };
    assert_eq!(error.severity(), Some(Severity::Error));
    assert_eq!(error.sqlstate(), b"42601");
    assert_eq!(error.message(), b"syntax error");
    assert_eq!(error.position(), Some(17));
    assert_eq!(error.hint(), Some(&b"think"[..]));
    assert_eq!(error.detail(), Some(&b"detail"[..]));
    assert_eq!(error.context(), Some(&b"context"[..]));
    assert_eq!(error.field(b'Q'), Some(&b"new"[..]), "a field of the future");
    assert_eq!(error.fields().count(), 9);
    assert_eq!(error.to_string(), "FEHLER: syntax error (SQLSTATE 42601)");
}

#[test]
fn error_without_fields_is_valid() {
    let frame = Frame { tag: Backend::ErrorResponse.tag(), body: b"\0" };
    let BackendMessage::ErrorResponse(error) = BackendMessage::parse(frame).unwrap() else {
        panic!()
    };
    assert_eq!((error.sqlstate(), error.message()), (&b""[..], &b""[..]));
    assert_eq!((error.severity(), error.position()), (None, None));
}

proptest! {
    #[test]
    fn rows_and_columns_round_trip(
        values in testing::values(),
        names in prop::collection::vec(testing::text(), 0..5),
        oid: u32,
        number: i16,
    ) {
        let mut buf = Vec::new();
        let written = testing::borrowed(&values);
        encode::data_row(&mut buf, written.clone()).unwrap();
        let BackendMessage::DataRow(cells) = BackendMessage::parse(testing::only_frame(&buf)).unwrap() else { panic!() };
        prop_assert_eq!(cells.len(), values.len());
        prop_assert_eq!(cells.collect::<Vec<_>>(), written);

        buf.clear();
        let fields: Vec<_> = names.iter().map(|name| FieldDescription {
            name,
            table: oid,
            column: number,
            type_oid: !oid,
            type_bytes: !number,
            type_modifier: i32::from(number) * 7,
            format: ValueFormat::Text,
        }).collect();
        encode::row_description(&mut buf, fields.clone()).unwrap();
        let frame = testing::only_frame(&buf);
        let BackendMessage::RowDescription(read) = BackendMessage::parse(frame).unwrap() else { panic!() };
        prop_assert_eq!(read.len(), fields.len());
        prop_assert_eq!(read.collect::<Vec<_>>(), fields);
    }

    #[test]
    fn errors_round_trip(
        fields in prop::collection::vec((1..=255_u8, testing::text()), 0..8),
    ) {
        let mut buf = Vec::new();
        let written = fields.iter().map(|(code, text)| (*code, &text[..]));
        encode::error_response(&mut buf, written.clone()).unwrap();
        let frame = testing::only_frame(&buf);
        let BackendMessage::ErrorResponse(error) = BackendMessage::parse(frame).unwrap() else { panic!() };
        prop_assert!(error.fields().eq(written));
    }

    /// Every accepted message encodes to the same bytes again.
    #[test]
    fn arbitrary_bytes_are_message_or_error(
        kind in prop::sample::select(Backend::ALL),
        body in prop::collection::vec(prop_oneof![3 => 0..4_u8, 1 => any::<u8>()], 0..40),
    ) {
        if let Ok(message) = BackendMessage::parse(Frame { tag: kind.tag(), body: &body }) {
            prop_assert_eq!(message.kind(), kind);
            if let Some(again) = reencoded(&message) {
                prop_assert_eq!(&again[5..], &body, "{:?}", message);
            }
        }
    }
}

/// Encodes the message again; `None` for authentication requests that can only be decoded.
pub(crate) fn reencoded(message: &BackendMessage<'_>) -> Option<Vec<u8>> {
    let mut buf = Vec::new();
    let out = &mut buf;
    let copy = |out: &mut Vec<u8>, start, format: CopyFormat<'_>| {
        encode::copy_response(out, start, format.format, &format.columns.collect::<Vec<_>>())
    };
    let bare = |out: &mut Vec<u8>, message| {
        encode::bare(out, message);
        Ok(())
    };
    match message.clone() {
        BackendMessage::Authentication(request) => {
            let mechanisms: Vec<_> = match &request {
                Authentication::Sasl(mechanisms) => mechanisms.clone().collect(),
                _ => Vec::new(),
            };
            let request = match request {
                Authentication::Ok => AuthenticationRequest::Ok,
                Authentication::CleartextPassword => AuthenticationRequest::CleartextPassword,
                Authentication::Md5Password { salt } => AuthenticationRequest::Md5Password { salt },
                Authentication::Sasl(_) => AuthenticationRequest::Sasl(&mechanisms),
                Authentication::SaslContinue(data) => AuthenticationRequest::SaslContinue(data),
                Authentication::SaslFinal(data) => AuthenticationRequest::SaslFinal(data),
                _ => return None,
            };
            encode::authentication(out, request)
        }
        BackendMessage::BackendKeyData(key) => {
            encode::backend_key_data(out, &key);
            Ok(())
        }
        BackendMessage::BindComplete => bare(out, Bare::BindComplete),
        BackendMessage::CloseComplete => bare(out, Bare::CloseComplete),
        BackendMessage::CommandComplete(tag) => encode::command_complete(out, tag.as_bytes()),
        BackendMessage::CopyData(data) => encode::copy_data(out, data),
        BackendMessage::CopyDone => bare(out, Bare::CopyDone),
        BackendMessage::CopyInResponse(format) => copy(out, CopyStart::In, format),
        BackendMessage::CopyOutResponse(format) => copy(out, CopyStart::Out, format),
        BackendMessage::CopyBothResponse(format) => copy(out, CopyStart::Both, format),
        BackendMessage::DataRow(cells) => encode::data_row(out, cells),
        BackendMessage::EmptyQueryResponse => bare(out, Bare::EmptyQueryResponse),
        BackendMessage::ErrorResponse(error) => encode::error_response(out, error.fields()),
        BackendMessage::FunctionCallResponse(value) => encode::function_call_response(out, value),
        BackendMessage::NegotiateProtocolVersion(offer) => {
            let names: Vec<_> = offer.unknown_options.collect();
            encode::negotiate_protocol_version(out, offer.newest, &names)
        }
        BackendMessage::NoData => bare(out, Bare::NoData),
        BackendMessage::NoticeResponse(notice) => encode::notice_response(out, notice.fields()),
        BackendMessage::NotificationResponse(it) => encode::notification_response(out, it),
        BackendMessage::ParameterDescription(types) => {
            encode::parameter_description(out, &types.collect::<Vec<_>>())
        }
        BackendMessage::ParameterStatus { name, value } => {
            encode::parameter_status(out, name, value)
        }
        BackendMessage::ParseComplete => bare(out, Bare::ParseComplete),
        BackendMessage::PortalSuspended => bare(out, Bare::PortalSuspended),
        BackendMessage::ReadyForQuery(status) => {
            encode::ready_for_query(out, status);
            Ok(())
        }
        BackendMessage::RowDescription(fields) => encode::row_description(out, fields),
    }
    .unwrap();
    Some(buf)
}
