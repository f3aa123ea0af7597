//! Helpers for the tests of all codecs.

use proptest::prelude::*;

use crate::{DecodeError, Frame, ValueFormat};

/// Splits `bytes` into exactly one message.
pub(crate) fn only_frame(bytes: &[u8]) -> Frame<'_> {
    let (frame, rest) = Frame::split(bytes, u32::MAX).unwrap().unwrap();
    assert_eq!(rest, b"", "one message and nothing after it");
    frame
}

/// Checks that a truncated message is incomplete or an error, and that a message with extra bytes
/// is an error; unless `open_ended`, where any number of bytes is valid.
pub(crate) fn check_truncation(
    bytes: &[u8],
    open_ended: bool,
    parse: impl Fn(Frame<'_>) -> Result<(), DecodeError>,
) {
    for end in 0..bytes.len() {
        assert_eq!(Frame::split(&bytes[..end], u32::MAX), Ok(None));
    }
    let frame = only_frame(bytes);
    assert_eq!(parse(frame), Ok(()));
    let longer = [frame.body, b"\x01"].concat();
    let shorter = (0..frame.body.len()).map(|end| &frame.body[..end]);
    for body in shorter.chain([&longer[..]]) {
        let parsed = parse(Frame { body, ..frame });
        assert!(open_ended || parsed.is_err(), "{frame:?} with body {body:?}");
    }
}

/// Generates text for a string field.
pub(crate) fn text() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(1..=255_u8, 0..20)
}

pub(crate) fn values() -> impl Strategy<Value = Vec<Option<Vec<u8>>>> {
    prop::collection::vec(prop::option::of(prop::collection::vec(any::<u8>(), 0..20)), 0..10)
}

pub(crate) fn formats() -> impl Strategy<Value = Vec<ValueFormat>> {
    prop::collection::vec(prop_oneof![Just(ValueFormat::Text), Just(ValueFormat::Binary)], 0..10)
}

pub(crate) fn borrowed(values: &[Option<Vec<u8>>]) -> Vec<Option<&[u8]>> {
    values.iter().map(Option::as_deref).collect()
}
