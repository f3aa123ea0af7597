//! Tests with replies that a real server cannot be made to send on demand: errors between other
//! messages, and protocol violations.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::fan_out::{SortColumn, SortKey};

fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let bytes = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
    [&[tag], &bytes[..], body].concat()
}

fn description(type_oid: u32) -> Vec<u8> {
    let oid = type_oid.to_be_bytes();
    message(b'T', &[&b"\0\x01v\0\0\0\0\0\0\0"[..], &oid, b"\0\x08\xff\xff\xff\xff\0\0"].concat())
}

fn row(cell: &str) -> Vec<u8> {
    let bytes = u32::try_from(cell.len()).unwrap().to_be_bytes();
    message(b'D', &[b"\0\x01", &bytes[..], cell.as_bytes()].concat())
}

fn done(rows: usize) -> Vec<u8> {
    message(b'C', format!("SELECT {rows}\0").as_bytes())
}

fn error() -> Vec<u8> {
    message(b'E', b"SFATAL\0VFATAL\0C57P01\0Mterminating\0\0")
}

fn ready() -> Vec<u8> {
    message(b'Z', b"I")
}

fn kinds(bytes: &[u8]) -> String {
    let mut rest = bytes;
    let mut kinds = String::new();
    while let Some((frame, behind)) = Frame::split(rest, u32::MAX >> 1).unwrap() {
        kinds.push(char::from(frame.tag.0));
        rest = behind;
    }
    kinds
}

fn merger(fan_out: FanOut) -> Merger {
    let mut merger = Merger::new(2, false, 1000);
    merger.expect_replies(ShardRequest::Query(Arc::new(fan_out)));
    merger
}

#[test]
fn concatenated_rows_are_forwarded_as_they_arrive() {
    let (mut merger, mut out) = (merger(FanOut::Concatenate), Vec::new());
    merger.push(1, &[description(20), row("1"), row("2"), done(2)].concat(), &mut out);
    assert_eq!(kinds(&out), "", "the other shard's columns may differ");
    merger.push(0, &[description(20), row("3")].concat(), &mut out);
    assert_eq!(kinds(&out), "TDDD");
    merger.push(1, &ready(), &mut out);
    merger.push(0, &[done(1), ready()].concat(), &mut out);
    assert_eq!(kinds(&out), "TDDDCZ");
    assert!(out.ends_with(&[done(3), ready()].concat()) && merger.is_done());
}

#[test]
fn shard_error_is_sent_once_and_session_continues() {
    let (mut merger, mut out) = (merger(FanOut::Concatenate), Vec::new());
    merger.push(0, &[description(20), row("1")].concat(), &mut out);
    merger.push(1, &[description(20), row("2"), error()].concat(), &mut out);
    assert_eq!(kinds(&out), "TDDE");
    assert!(memchr::memmem::find(&out, b"SERROR\0VERROR\0C57P01\0").is_some());
    merger.on_disconnect(1, &mut out);
    merger.push(0, &[row("3"), error(), ready()].concat(), &mut out);
    assert_eq!(kinds(&out), "TDDEZ");
    assert!(merger.is_done() && !merger.has_failed());
}

#[test]
fn shard_may_disconnect_at_any_time() {
    let answer = [description(20), row("1"), done(1), ready()];
    for before in 0..answer.len() {
        let (mut merger, mut out) = (merger(FanOut::Concatenate), Vec::new());
        merger.push(0, &answer[..before].concat(), &mut out);
        merger.on_disconnect(0, &mut out);
        assert!(kinds(&out).ends_with('E') && merger.has_failed());
        merger.push(1, &answer.concat(), &mut out);
        assert!(kinds(&out).ends_with("EZ"), "{}", kinds(&out));
        assert!(merger.is_done());
    }
    let (mut merger, mut out) = (merger(FanOut::Concatenate), Vec::new());
    merger.on_disconnect(0, &mut out);
    merger.on_disconnect(1, &mut out);
    assert_eq!(kinds(&out), "EZ");
}

#[test]
fn extended_protocol_error_lasts_until_sync() {
    let mut merger = Merger::new(2, false, 1000);
    let mut out = Vec::new();
    merger.expect_replies(ShardRequest::Parse);
    merger.push(0, &error(), &mut out);
    merger.expect_replies(ShardRequest::Bind);
    merger.expect_replies(ShardRequest::Execute(Arc::new(FanOut::Concatenate)));
    merger.push(1, &message(b'1', b""), &mut out);
    assert_eq!(kinds(&out), "E");
    merger.expect_replies(ShardRequest::Sync);
    merger.push(1, &[message(b'2', b""), done(0), ready()].concat(), &mut out);
    merger.push(0, &ready(), &mut out);
    assert_eq!(kinds(&out), "EZ");
    merger.expect_replies(ShardRequest::Parse);
    merger.expect_replies(ShardRequest::Sync);
    for shard in [0, 1] {
        merger.push(shard, &[message(b'1', b""), ready()].concat(), &mut out);
    }
    assert_eq!(kinds(&out), "EZ1Z");
}

#[test]
fn copy_completes_on_commit() {
    for fails in [false, true] {
        let mut merger = Merger::new(2, false, 1000);
        let mut out = Vec::new();
        let all = |merger: &mut Merger, out: &mut Vec<u8>, bytes: &[u8]| {
            (0..2).for_each(|shard| merger.push(shard, bytes, out));
        };
        merger.expect_replies(ShardRequest::HiddenQuery);
        all(&mut merger, &mut out, &[message(b'C', b"BEGIN\0"), message(b'Z', b"T")].concat());
        merger.expect_replies(ShardRequest::Copy);
        all(&mut merger, &mut out, &message(b'G', b"\0\0\0"));
        assert_eq!(kinds(&out), "G");
        let copied = [message(b'C', b"COPY 21\0"), message(b'Z', b"T")].concat();
        merger.push(0, &copied, &mut out);
        let second = [error(), message(b'Z', b"E")].concat();
        merger.push(1, if fails { &second } else { &copied }, &mut out);
        assert_eq!(merger.has_failed(), fails);
        merger.expect_replies(ShardRequest::Commit);
        let ended: &[u8] = if fails { b"ROLLBACK\0" } else { b"COMMIT\0" };
        all(&mut merger, &mut out, &[message(b'C', ended), ready()].concat());
        assert_eq!(kinds(&out), if fails { "GEZ" } else { "GCZ" });
        assert!(fails || memchr::memmem::find(&out, b"COPY 42\0").is_some());
    }
}

#[test]
fn protocol_violations_are_errors_with_bounded_buffers() {
    let long = [&b"D"[..], &2000_u32.to_be_bytes()].concat();
    let cases = [
        long,
        b"D\0\0\0\x01".to_vec(),
        message(b'D', b"\0\x05"),
        message(b'T', b"?"),
        b"\0".repeat(9),
    ];
    for bytes in cases {
        let (mut merger, mut out) = (merger(FanOut::Aggregate(vec![])), Vec::new());
        merger.push(0, &description(20), &mut out);
        merger.push(1, &description(20), &mut out);
        merger.push(0, &bytes, &mut out);
        merger.push(1, &[row("1"), done(1), ready()].concat(), &mut out);
        merger.push(0, &ready(), &mut out);
        assert!(kinds(&out).ends_with("EZ"), "{}: {}", bytes.escape_ascii(), kinds(&out));
    }
}

#[test]
fn leading_shard_becomes_full() {
    let by = SortKey { column: SortColumn::Position(0), descending: false, nulls_first: false };
    let (mut merger, mut out) = (merger(FanOut::Merge { by: vec![by], limit: None }), Vec::new());
    (0..2).for_each(|shard| merger.push(shard, &description(20), &mut out));
    while !merger.is_full(0) {
        merger.push(0, &row("1").repeat(1000), &mut out);
    }
    assert!(!merger.is_full(1));
    merger.push(1, &[row("2"), done(1)].concat(), &mut out);
    assert!(!merger.is_full(0), "all of them were less");
}

proptest! {
    /// Whatever shards send, the reply finishes once each shard is ready or disconnected.
    #[test]
    fn replies_always_finish(
        pieces in prop::collection::vec((0..2_usize, 0..9_usize), 0..30),
    ) {
        let by = SortKey { column: SortColumn::Position(0), descending: false, nulls_first: false };
        let (mut merger, mut out) = (merger(FanOut::Merge { by: vec![by], limit: Some(3) }), Vec::new());
        let messages = [
            description(20), row("1"), row("2"), row("x"), done(2), error(), message(b'N', b"\0"),
            message(b'1', b""), message(b'I', b""),
        ];
        for (shard, piece) in pieces {
            merger.push(shard, &messages[piece], &mut out);
        }
        merger.on_disconnect(0, &mut out);
        merger.on_disconnect(1, &mut out);
        prop_assert!(merger.is_done());
        prop_assert!(kinds(&out).ends_with('Z'), "{}", kinds(&out));
    }
}
