//! The shapes of prefix fields that are not free text.

use super::Field;
use crate::clock::stamp_len;

/// Lengths that a field may have at the front of `bytes`, most likely first. An empty array position
/// means fewer choices; all empty means that the field cannot be here.
pub(super) fn lengths(field: Field, bytes: &[u8]) -> [Option<usize>; 2] {
    match field {
        Field::Millis => [stamp_len(bytes, true), None],
        Field::Seconds | Field::Start => [stamp_len(bytes, false), None],
        Field::Epoch => [epoch(bytes), None],
        Field::Pid | Field::Line | Field::Txid => [digits(bytes), None],
        // Only workers of parallel queries have one.
        Field::LeaderPid => [Some(0), digits(bytes)],
        Field::QueryId => [signed(bytes), None],
        Field::SqlState => [sqlstate(bytes), None],
        Field::SessionId => [session_id(bytes), None],
        Field::Vxid => [vxid(bytes), Some(0)],
        Field::Remote => [address(bytes, true), Some(0)],
        Field::Host | Field::LocalAddress => [address(bytes, false), Some(0)],
        Field::Application | Field::User | Field::Database | Field::BackendType | Field::Tag => {
            [None, None]
        }
    }
}

/// Whether a field has no shape of its own that says where it ends: host names.
pub(super) fn is_open_ended(field: Field) -> bool {
    matches!(field, Field::Remote | Field::Host | Field::LocalAddress)
}

fn run(bytes: &[u8], is_part: impl Fn(u8) -> bool) -> usize {
    bytes.iter().take_while(|byte| is_part(**byte)).count()
}

fn digits(bytes: &[u8]) -> Option<usize> {
    Some(run(bytes, |byte| byte.is_ascii_digit())).filter(|len| *len > 0)
}

fn signed(bytes: &[u8]) -> Option<usize> {
    match bytes {
        [b'-', rest @ ..] => digits(rest).map(|len| len + 1),
        _ => digits(bytes),
    }
}

fn two(bytes: &[u8], separator: u8, is_part: impl Fn(u8) -> bool) -> Option<usize> {
    let first = run(bytes, &is_part);
    if first == 0 || bytes.get(first) != Some(&separator) {
        return None;
    }
    let second = run(&bytes[first + 1..], &is_part);
    (second > 0).then_some(first + 1 + second)
}

fn epoch(bytes: &[u8]) -> Option<usize> {
    two(bytes, b'.', |byte| byte.is_ascii_digit())
}

fn vxid(bytes: &[u8]) -> Option<usize> {
    two(bytes, b'/', |byte| byte.is_ascii_digit())
}

/// `%c`: two lower-case hexadecimal numbers with a dot between.
pub(super) fn session_id(bytes: &[u8]) -> Option<usize> {
    two(bytes, b'.', |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn sqlstate(bytes: &[u8]) -> Option<usize> {
    let code = bytes.get(..5)?;
    code.iter().all(|b| b.is_ascii_digit() || b.is_ascii_uppercase()).then_some(5)
}

/// `[local]`, or an address: with its port in brackets, or numeric, so that its end is certain.
fn address(bytes: &[u8], with_port: bool) -> Option<usize> {
    if bytes.first() == Some(&b'[') {
        let end = memchr::memchr(b']', &bytes[..bytes.len().min(64)])?;
        return Some(end + 1);
    }
    let is_part = |b: u8| b.is_ascii_alphanumeric() || b".:_-%".contains(&b);
    let host = run(bytes, is_part);
    if with_port && host > 0 && bytes.get(host) == Some(&b'(') {
        let port = digits(&bytes[host + 1..])?;
        return (bytes.get(host + 1 + port) == Some(&b')')).then_some(host + port + 2);
    }
    Some(run(bytes, |b| b.is_ascii_digit() || b == b'.')).filter(|len| *len >= SHORTEST_IPV4)
}

/// Bytes of `1.2.3.4`.
const SHORTEST_IPV4: usize = 7;
