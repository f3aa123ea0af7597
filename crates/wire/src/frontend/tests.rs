use proptest::prelude::*;

use super::*;
use crate::{EncodeError, Tag, testing};

/// Returns messages with their bytes, which were encoded by hand from "Message Formats" in the
/// manual.
fn goldens() -> Vec<(Frontend, Vec<u8>, &'static [u8])> {
    let written = |write: &dyn Fn(&mut Vec<u8>) -> Result<(), EncodeError>| {
        let mut buf = Vec::new();
        write(&mut buf).unwrap();
        buf
    };
    let bare = |write: fn(&mut Vec<u8>)| {
        let mut buf = Vec::new();
        write(&mut buf);
        buf
    };
    let (text, binary) = (ValueFormat::Text, ValueFormat::Binary);
    vec![
        (
            Frontend::Bind,
            written(&|buf| {
                encode::bind(
                    buf,
                    b"p",
                    b"s",
                    &[binary],
                    [Some(&b"\0\x01"[..]), None],
                    &[text, binary],
                )
            }),
            b"B\0\0\0\x1ep\0s\0\0\x01\0\x01\0\x02\0\0\0\x02\0\x01\xff\xff\xff\xff\0\x02\0\0\0\x01",
        ),
        (
            Frontend::Close,
            written(&|buf| encode::close(buf, DescribeTarget::Statement(b"s"))),
            b"C\0\0\0\x07Ss\0",
        ),
        (
            Frontend::CopyData,
            written(&|buf| encode::copy_data(buf, b"1\t2\n")),
            b"d\0\0\0\x081\t2\n",
        ),
        (Frontend::CopyDone, bare(encode::copy_done), b"c\0\0\0\x04"),
        (Frontend::CopyFail, written(&|buf| encode::copy_fail(buf, b"no")), b"f\0\0\0\x07no\0"),
        (
            Frontend::Describe,
            written(&|buf| encode::describe(buf, DescribeTarget::Portal(b""))),
            b"D\0\0\0\x06P\0",
        ),
        (
            Frontend::Execute,
            written(&|buf| encode::execute(buf, b"p", 258)),
            b"E\0\0\0\x0ap\0\0\0\x01\x02",
        ),
        (Frontend::Flush, bare(encode::flush), b"H\0\0\0\x04"),
        (
            Frontend::FunctionCall,
            written(&|buf| encode::function_call(buf, 1598, &[], [Some(&b"7"[..])], binary)),
            b"F\0\0\0\x13\0\0\x06\x3e\0\0\0\x01\0\0\0\x017\0\x01",
        ),
        (
            Frontend::Parse,
            written(&|buf| encode::parse(buf, b"s", b"select $1", &[23, 0])),
            b"P\0\0\0\x1as\0select $1\0\0\x02\0\0\0\x17\0\0\0\0",
        ),
        (Frontend::Query, written(&|buf| encode::query(buf, b"")), b"Q\0\0\0\x05\0"),
        (Frontend::Sync, bare(encode::sync), b"S\0\0\0\x04"),
        (Frontend::Terminate, bare(encode::terminate), b"X\0\0\0\x04"),
        (
            Frontend::Authentication,
            written(&|buf| encode::password(buf, b"pw")),
            b"p\0\0\0\x07pw\0",
        ),
        (
            Frontend::Authentication,
            written(&|buf| encode::sasl_initial_response(buf, b"M", Some(b"n,,"))),
            b"p\0\0\0\x0dM\0\0\0\0\x03n,,",
        ),
        (
            Frontend::Authentication,
            written(&|buf| encode::sasl_initial_response(buf, b"M", None)),
            b"p\0\0\0\x0aM\0\xff\xff\xff\xff",
        ),
        (
            Frontend::Authentication,
            written(&|buf| encode::sasl_response(buf, b"c=")),
            b"p\0\0\0\x06c=",
        ),
    ]
}

#[test]
fn messages_match_manual_layout() {
    let goldens = goldens();
    for (kind, written, bytes) in &goldens {
        assert_eq!(written, bytes, "{kind}");
        let message = FrontendMessage::parse(testing::only_frame(bytes)).unwrap();
        assert_eq!(message.kind(), *kind);
        assert_eq!(reencoded(&message), *bytes);
    }
    for kind in Frontend::ALL {
        assert!(goldens.iter().any(|(golden, ..)| golden == kind), "{kind} has no golden bytes");
    }
}

#[test]
fn truncated_message_is_an_error() {
    for (kind, _, bytes) in goldens() {
        let open_ended = matches!(kind, Frontend::CopyData | Frontend::Authentication);
        testing::check_truncation(bytes, open_ended, |frame| {
            FrontendMessage::parse(frame).map(drop)
        });
    }
    let password = |frame: Frame<'_>| PasswordMessage::parse(frame.body).map(drop);
    testing::check_truncation(b"p\0\0\0\x07pw\0", false, password);
    let sasl = |frame: Frame<'_>| SaslInitialResponse::parse(frame.body).map(drop);
    testing::check_truncation(b"p\0\0\0\x0dM\0\0\0\0\x03n,,", false, sasl);
}

#[test]
fn fields_are_decoded() {
    let (_, _, bytes) = goldens().remove(0);
    let FrontendMessage::Bind(bind) = FrontendMessage::parse(testing::only_frame(bytes)).unwrap()
    else {
        panic!()
    };
    assert_eq!((bind.portal, bind.statement), (&b"p"[..], &b"s"[..]));
    assert_eq!(bind.formats.collect::<Vec<_>>(), [ValueFormat::Binary]);
    assert_eq!(bind.values.collect::<Vec<_>>(), [Some(&b"\0\x01"[..]), None]);
    assert_eq!(bind.result_formats.collect::<Vec<_>>(), [ValueFormat::Text, ValueFormat::Binary]);

    let sasl = SaslInitialResponse::parse(b"M\0\xff\xff\xff\xff").unwrap();
    assert_eq!(sasl, SaslInitialResponse { mechanism: b"M", data: None });
}

#[test]
fn negative_row_limit_means_no_limit() {
    let frame = testing::only_frame(b"E\0\0\0\x09\0\xff\xff\xff\xfe");
    let FrontendMessage::Execute { max_rows, .. } = FrontendMessage::parse(frame).unwrap() else {
        panic!()
    };
    assert_eq!(max_rows, 0);

    let mut buf = Vec::new();
    encode::execute(&mut buf, b"", u32::MAX).unwrap();
    assert_eq!(buf, b"E\0\0\0\x09\0\x7f\xff\xff\xff");
}

#[test]
fn failed_encoding_leaves_buffer_unchanged() {
    let mut buf = b"rest".to_vec();
    let nul = |field| Err(EncodeError::Nul { field });
    assert_eq!(encode::query(&mut buf, b"select '\0'"), nul("query"));
    assert_eq!(encode::parse(&mut buf, b"\0", b"", &[]), nul("statement name"));
    assert_eq!(encode::bind(&mut buf, b"", b"s\0", &[], [], &[]), nul("statement name"));
    assert_eq!(encode::describe(&mut buf, DescribeTarget::Portal(b"\0")), nul("portal name"));
    assert_eq!(encode::password(&mut buf, b"pass\0word"), nul("password"));
    let values = std::iter::repeat_n(None, 65_536);
    assert_eq!(
        encode::bind(&mut buf, b"", b"", &[], values, &[]),
        Err(EncodeError::TooMany { field: "values", count: 65_536 })
    );
    assert_eq!(buf, b"rest");
}

#[test]
fn maximum_number_of_values_is_encoded() {
    let mut buf = Vec::new();
    let values = std::iter::repeat_n(Some(&b"1"[..]), 65_535);
    encode::bind(&mut buf, b"", b"", &[], values, &[]).unwrap();
    let FrontendMessage::Bind(bind) = FrontendMessage::parse(testing::only_frame(&buf)).unwrap()
    else {
        panic!()
    };
    assert_eq!(bind.values.len(), 65_535);
    assert_eq!(bind.values.filter(|value| *value == Some(b"1")).count(), 65_535);
}

proptest! {
    #[test]
    fn parse_and_bind_round_trip(
        portal in testing::text(),
        statement in testing::text(),
        types in prop::collection::vec(any::<u32>(), 0..10),
        values in testing::values(),
        formats in testing::formats(),
        result_formats in testing::formats(),
    ) {
        let mut buf = Vec::new();
        encode::parse(&mut buf, &statement, &portal, &types).unwrap();
        let FrontendMessage::Parse(parse) = FrontendMessage::parse(testing::only_frame(&buf)).unwrap() else { panic!() };
        prop_assert_eq!((parse.statement, parse.sql), (&statement[..], &portal[..]));
        prop_assert_eq!(parse.types.len(), types.len());
        prop_assert_eq!(parse.types.collect::<Vec<_>>(), types);

        buf.clear();
        let written = testing::borrowed(&values);
        encode::bind(&mut buf, &portal, &statement, &formats, written.clone(), &result_formats).unwrap();
        let FrontendMessage::Bind(bind) = FrontendMessage::parse(testing::only_frame(&buf)).unwrap() else { panic!() };
        prop_assert_eq!((bind.portal, bind.statement), (&portal[..], &statement[..]));
        prop_assert_eq!(bind.formats.collect::<Vec<_>>(), formats);
        prop_assert_eq!(bind.values.len(), values.len());
        prop_assert_eq!(bind.values.collect::<Vec<_>>(), written);
        prop_assert_eq!(bind.result_formats.collect::<Vec<_>>(), result_formats);
    }

    #[test]
    fn texts_round_trip(sql in testing::text(), data: Vec<u8>, max_rows in 0..=i32::MAX as u32) {
        let mut buf = Vec::new();
        encode::query(&mut buf, &sql).unwrap();
        let first = buf.len();
        encode::copy_data(&mut buf, &data).unwrap();
        let second = buf.len();
        encode::execute(&mut buf, &sql, max_rows).unwrap();
        let parse = |bytes| FrontendMessage::parse(testing::only_frame(bytes)).unwrap();
        let FrontendMessage::Query { sql: read } = parse(&buf[..first]) else { panic!() };
        prop_assert_eq!(read, &sql[..]);
        let FrontendMessage::CopyData(read) = parse(&buf[first..second]) else { panic!() };
        prop_assert_eq!(read, &data[..]);
        let FrontendMessage::Execute { portal, max_rows: read } = parse(&buf[second..]) else { panic!() };
        prop_assert_eq!((portal, read), (&sql[..], max_rows));
    }

    /// Every accepted message encodes to the same bytes again.
    #[test]
    fn arbitrary_bytes_are_message_or_error(
        kind in prop::sample::select(Frontend::ALL),
        body in prop::collection::vec(prop_oneof![3 => 0..4_u8, 1 => any::<u8>()], 0..40),
    ) {
        if let Ok(message) = FrontendMessage::parse(Frame { tag: kind.tag(), body: &body }) {
            let negative_limit = matches!(message, FrontendMessage::Execute { max_rows: 0, .. });
            prop_assert!(negative_limit || reencoded(&message)[5..] == body, "{:?}", message);
        }
    }
}

#[test]
fn unknown_tag_is_an_error() {
    let unknown = FrontendMessage::parse(Frame { tag: Tag(b'Z'), body: b"I" });
    assert_eq!(unknown.map(drop), Err(DecodeError::UnknownTag { tag: Tag(b'Z') }));
}

pub(crate) fn reencoded(message: &FrontendMessage<'_>) -> Vec<u8> {
    let mut buf = Vec::new();
    let out = &mut buf;
    match message.clone() {
        FrontendMessage::Bind(it) => {
            let (formats, results): (Vec<_>, Vec<_>) =
                (it.formats.collect(), it.result_formats.collect());
            encode::bind(out, it.portal, it.statement, &formats, it.values, &results)
        }
        FrontendMessage::Close(target) => encode::close(out, target),
        FrontendMessage::CopyData(data) => encode::copy_data(out, data),
        FrontendMessage::CopyDone => {
            encode::copy_done(out);
            Ok(())
        }
        FrontendMessage::CopyFail { reason } => encode::copy_fail(out, reason),
        FrontendMessage::Describe(target) => encode::describe(out, target),
        FrontendMessage::Execute { portal, max_rows } => encode::execute(out, portal, max_rows),
        FrontendMessage::Flush => {
            encode::flush(out);
            Ok(())
        }
        FrontendMessage::FunctionCall(it) => {
            let formats: Vec<_> = it.formats.collect();
            encode::function_call(out, it.function, &formats, it.arguments, it.result_format)
        }
        FrontendMessage::Parse(it) => {
            encode::parse(out, it.statement, it.sql, &it.types.collect::<Vec<_>>())
        }
        FrontendMessage::Authentication(body) => encode::sasl_response(out, body),
        FrontendMessage::Query { sql } => encode::query(out, sql),
        FrontendMessage::Sync => {
            encode::sync(out);
            Ok(())
        }
        FrontendMessage::Terminate => {
            encode::terminate(out);
            Ok(())
        }
    }
    .unwrap();
    buf
}
