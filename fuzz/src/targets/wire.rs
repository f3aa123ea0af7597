//! Protocol 3: frames, the messages of both sides, startup packets.

mod write;

use std::{fmt::Write as _, mem::discriminant};

use howdah_wire::{
    Backend, DecodeError, Frame, Frontend, Header, Tag, backend, frontend,
    startup::{self, CancelKey, Packet},
};

use super::Shape;

/// Starts of a server's messages, and complete ones.
pub const BACKEND_WORDS: &[&[u8]] = &[
    b"R\0\0\0\x08\0\0\0\0",
    b"R\0\0\0\x0c\0\0\0\x05salt",
    b"R\0\0\0\x17\0\0\0\x0aSCRAM-SHA-256\0\0",
    b"K\0\0\0\x0c\0\0\x01\x02key!",
    b"1\0\0\0\x04",
    b"2\0\0\0\x04",
    b"3\0\0\0\x04",
    b"C\0\0\0\x0dSELECT 1\0",
    b"d\0\0\0\x061\n",
    b"c\0\0\0\x04",
    b"G\0\0\0\x0b\0\0\x02\0\0\0\0",
    b"H\0\0\0\x09\x01\0\x01\0\x01",
    b"W\0\0\0\x07\0\0\0",
    b"D\0\0\0\x14\0\x03\0\0\0\x02ab\xff\xff\xff\xff\0\0\0\0",
    b"I\0\0\0\x04",
    b"E\0\0\0\x1eSERROR\0VERROR\0C22012\0Mno\0\0",
    b"E\0\0\0\x1eSFATAL\0VFATAL\0C57P01\0Mno\0\0",
    b"V\0\0\0\x08\xff\xff\xff\xff",
    b"v\0\0\0\x13\0\x03\0\x02\0\0\0\x01_pq_.x\0",
    b"n\0\0\0\x04",
    b"N\0\0\0\x0bHdo\0?\0\0",
    b"A\0\0\0\x0c\0\0\x01\x02ch\0\0",
    b"t\0\0\0\x0e\0\x02\0\0\0\x17\0\0\0\0",
    b"S\0\0\0\x11TimeZone\0UTC\0",
    b"s\0\0\0\x04",
    b"Z\0\0\0\x05I",
    b"Z\0\0\0\x05E",
    b"T\0\0\0\x1b\0\x01id\0\0\0\x40\0\0\x01\0\0\0\x17\0\x04\xff\xff\xff\xff\0\x01",
];

/// Messages of a client.
pub const FRONTEND_WORDS: &[&[u8]] = &[
    b"B\0\0\0\x1ep\0s\0\0\x01\0\x01\0\x02\0\0\0\x02\0\x01\xff\xff\xff\xff\0\x02\0\0\0\x01",
    b"C\0\0\0\x07Ss\0",
    b"D\0\0\0\x06P\0",
    b"E\0\0\0\x0ap\0\0\0\x01\x02",
    b"F\0\0\0\x13\0\0\x06\x3e\0\0\0\x01\0\0\0\x017\0\x01",
    b"H\0\0\0\x04",
    b"P\0\0\0\x1as\0select $1\0\0\x02\0\0\0\x17\0\0\0\0",
    b"Q\0\0\0\x05\0",
    b"S\0\0\0\x04",
    b"X\0\0\0\x04",
    b"d\0\0\0\x081\t2\n",
    b"f\0\0\0\x07no\0",
    b"p\0\0\0\x07pw\0",
    b"p\0\0\0\x1cSCRAM-SHA-256\0\0\0\0\x06n,,r=x",
];

/// Packets without a tag.
pub const STARTUP_WORDS: &[&[u8]] = &[
    b"\0\0\0\x08\x04\xd2\x16\x2f",
    b"\0\0\0\x08\x04\xd2\x16\x30",
    b"\0\0\0\x10\x04\xd2\x16\x2e\0\0\x01\x02key!",
    b"\0\0\0\x12\0\x03\0\0user\0al\0\0",
    b"\0\0\0\x12\0\x03\0\x02user\0al\0\0",
    b"database\0shop\0",
    b"_pq_.x\0",
];

/// Each message alone, and all as one stream.
pub fn backend_seeds() -> Vec<Vec<u8>> {
    seeds(BACKEND_WORDS)
}

/// Each message alone, and all as one stream.
pub fn frontend_seeds() -> Vec<Vec<u8>> {
    seeds(FRONTEND_WORDS)
}

/// Each startup packet alone.
pub fn startup_seeds() -> Vec<Vec<u8>> {
    seeds(&STARTUP_WORDS[..5])
}

fn seeds(messages: &[&[u8]]) -> Vec<Vec<u8>> {
    let mut seeds: Vec<_> = messages.iter().map(|message| message.to_vec()).collect();
    seeds.push(messages.concat());
    seeds
}

/// Longest body accepted: shorter than the longest input, so that some are refused.
const BODY_BYTES_MAX: u32 = 1000;

/// Parses a stream of messages from a server.
pub fn backend(bytes: &[u8]) -> Shape {
    let mut seen = Vec::new();
    each_frame(bytes, |frame| {
        let message = match backend::BackendMessage::parse(frame) {
            Ok(message) => message,
            Err(error) => return seen.push((frame.tag.0, fault(&error))),
        };
        assert_eq!(Some(message.kind()), Backend::from_tag(frame.tag));
        show(&message);
        if let Some(again) = write::backend(&message) {
            assert_eq!(again, whole(frame), "{message:?}");
        }
        seen.push((frame.tag.0, None));
    });
    Shape::each(seen)
}

/// Parses a stream of messages from a client.
pub fn frontend(bytes: &[u8]) -> Shape {
    let mut seen = Vec::new();
    each_frame(bytes, |frame| {
        let message = match frontend::FrontendMessage::parse(frame) {
            Ok(message) => message,
            Err(error) => return seen.push((frame.tag.0, fault(&error))),
        };
        assert_eq!(Some(message.kind()), Frontend::from_tag(frame.tag));
        show(&message);
        let again = write::frontend(&message);
        match &message {
            // The protocol treats a negative limit like 0, which means no limit.
            frontend::FrontendMessage::Execute { max_rows: 0, .. } => {
                assert_eq!(again[..again.len() - 4], whole(frame)[..again.len() - 4]);
            }
            frontend::FrontendMessage::Authentication(body) => authentication(body, &again),
            _ => assert_eq!(again, whole(frame), "{message:?}"),
        }
        seen.push((frame.tag.0, None));
    });
    Shape::each(seen)
}

/// Parses the body of a `p` message in all three ways, since its meaning depends on the server's
/// authentication request.
fn authentication(body: &[u8], raw: &[u8]) {
    assert_eq!(raw[Header::BYTES..], *body);
    let mut again = Vec::new();
    if let Ok(password) = frontend::PasswordMessage::parse(body) {
        frontend::encode::password(&mut again, password.password)
            .expect("a string has no zero byte");
        assert_eq!(again, raw);
        assert_eq!(format!("{password:?}"), "PasswordMessage(…)");
    }
    again.clear();
    if let Ok(response) = frontend::SaslInitialResponse::parse(body) {
        frontend::encode::sasl_initial_response(&mut again, response.mechanism, response.data)
            .expect("a string has no zero byte");
        assert_eq!(again, raw);
    }
}

/// Splits a stream into frames, up to an incomplete frame or an invalid length. Then the whole
/// input is taken as a tag and a body.
fn each_frame<'a>(bytes: &'a [u8], mut take: impl FnMut(Frame<'a>)) {
    let mut rest = bytes;
    while let Ok(Some((frame, after))) = Frame::split(rest, BODY_BYTES_MAX) {
        let frame_bytes = Header::BYTES + frame.body.len();
        assert_eq!(frame_bytes + after.len(), rest.len());
        for end in [0, 1, 4, frame_bytes / 2, frame_bytes - 1] {
            let cut = &rest[..end.min(frame_bytes - 1)];
            assert_eq!(Frame::split(cut, BODY_BYTES_MAX), Ok(None));
        }
        take(frame);
        rest = after;
    }
    if let Some((tag, body)) = bytes.split_first() {
        take(Frame { tag: Tag(*tag), body });
    }
}

fn whole(frame: Frame<'_>) -> Vec<u8> {
    let length = u32::try_from(frame.body.len() + 4).expect("inputs are short");
    [&[frame.tag.0][..], &length.to_be_bytes(), frame.body].concat()
}

/// Formats a message as for the log, and discards the text.
fn show(message: &impl std::fmt::Debug) {
    struct Nowhere;
    impl std::fmt::Write for Nowhere {
        fn write_str(&mut self, _: &str) -> std::fmt::Result {
            Ok(())
        }
    }
    write!(Nowhere, "{message:?}").expect("nowhere takes everything");
}

/// Reduces an error to its message and field, without the value.
fn fault(error: &DecodeError) -> Option<(u8, &'static str)> {
    Some(match error {
        DecodeError::UnknownTag { .. } => (0, ""),
        DecodeError::Truncated { field, .. } => (1, field),
        DecodeError::Unterminated { field, .. } => (2, field),
        DecodeError::BadValue { field, .. } => (3, field),
        _ => (4, ""),
    })
}

/// Parses a packet without a tag.
pub fn startup(bytes: &[u8]) -> Shape {
    let (packet, rest) = match Packet::split(bytes, BODY_BYTES_MAX) {
        Err(error) => return Shape::of(discriminant(&error)),
        Ok(None) => return Shape::of("more"),
        Ok(Some(split)) => split,
    };
    let own = &bytes[..bytes.len() - rest.len()];
    let mut again = Vec::new();
    let shape = match packet {
        Packet::SslRequest => {
            again.extend_from_slice(&startup::SSL_REQUEST_PACKET);
            Shape::of("ssl")
        }
        Packet::GssEncRequest => {
            again.extend_from_slice(&startup::GSS_ENC_REQUEST_PACKET);
            Shape::of("gss")
        }
        Packet::CancelRequest(key) => {
            assert_eq!(CancelKey::new(key.process_id(), key.secret()).as_ref(), Some(&key));
            startup::cancel_request(&mut again, &key);
            Shape::of(("cancel", key.secret().len()))
        }
        Packet::Startup(it) => {
            show(&it);
            startup::startup(&mut again, it.version, it.parameters.clone())
                .expect("strings have no zero byte");
            Shape::of(("startup", it.version.major == 3, it.parameters.count()))
        }
    };
    assert_eq!(again, own);
    for end in 0..own.len() {
        assert!(matches!(Packet::split(&own[..end], BODY_BYTES_MAX), Ok(None)), "cut at {end}");
    }
    shape
}
