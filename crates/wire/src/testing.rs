//! What the tests of all codecs share.

use proptest::prelude::*;

use crate::{DecodeError, Format, Frame};

/// The one message that `bytes` are.
pub(crate) fn only_frame(bytes: &[u8]) -> Frame<'_> {
    let (frame, rest) = Frame::split(bytes, u32::MAX).unwrap().unwrap();
    assert_eq!(rest, b"", "one message and nothing after it");
    frame
}

/// Checks that a message cut anywhere is either not there yet or an error, and so is one that is too
/// long; unless `open_ended`, where any number of bytes is a message.
pub(crate) fn check_truncation(
    bytes: &[u8],
    open_ended: bool,
    parse: impl Fn(Frame<'_>) -> Result<(), DecodeError>,
) {
    for end in 0..bytes.len() {
        assert_eq!(Frame::split(&bytes[..end], u32::MAX), Ok(None));
    }
    let whole = only_frame(bytes);
    assert_eq!(parse(whole), Ok(()));
    let longer = [whole.body, b"\x01"].concat();
    let shorter = (0..whole.body.len()).map(|end| &whole.body[..end]);
    for body in shorter.chain([&longer[..]]) {
        let parsed = parse(Frame { body, ..whole });
        assert!(open_ended || parsed.is_err(), "{whole:?} with body {body:?}");
    }
}

/// Text that a string field can hold.
pub(crate) fn text() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(1..=255_u8, 0..20)
}

pub(crate) fn values() -> impl Strategy<Value = Vec<Option<Vec<u8>>>> {
    prop::collection::vec(prop::option::of(prop::collection::vec(any::<u8>(), 0..20)), 0..10)
}

pub(crate) fn formats() -> impl Strategy<Value = Vec<Format>> {
    prop::collection::vec(prop_oneof![Just(Format::Text), Just(Format::Binary)], 0..10)
}

pub(crate) fn borrowed(values: &[Option<Vec<u8>>]) -> Vec<Option<&[u8]>> {
    values.iter().map(Option::as_deref).collect()
}
