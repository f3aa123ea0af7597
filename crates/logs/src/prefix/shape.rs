//! Matches prefix fields that are not free text by their shape.

use super::PrefixField;
use howdah_log_input::stamp_len;

/// Returns the possible lengths of a field at the front of `bytes`, most likely first. If there are
/// none, the bytes are not such a field.
pub(super) fn lengths(field: PrefixField, bytes: &[u8]) -> [Option<usize>; 2] {
    match field {
        PrefixField::Millis => [stamp_len(bytes, true), None],
        PrefixField::Seconds | PrefixField::Start => [stamp_len(bytes, false), None],
        PrefixField::Epoch => [epoch(bytes), None],
        PrefixField::Pid | PrefixField::Line | PrefixField::Txid => [digits(bytes), None],
        // Only workers of parallel queries have a leader.
        PrefixField::LeaderPid => [Some(0), digits(bytes)],
        PrefixField::QueryId => [signed(bytes), None],
        PrefixField::SqlState => [sqlstate(bytes), None],
        PrefixField::SessionId => [session_id(bytes), None],
        PrefixField::Vxid => [vxid(bytes), Some(0)],
        PrefixField::Remote => [address(bytes, true), Some(0)],
        PrefixField::Host | PrefixField::LocalAddress => [address(bytes, false), Some(0)],
        PrefixField::Application
        | PrefixField::User
        | PrefixField::Database
        | PrefixField::BackendType
        | PrefixField::Tag => [None, None],
    }
}

/// Whether the shape of a field does not determine its end, as with host names.
pub(super) fn is_open_ended(field: PrefixField) -> bool {
    matches!(field, PrefixField::Remote | PrefixField::Host | PrefixField::LocalAddress)
}

fn run_length(bytes: &[u8], is_part: impl Fn(u8) -> bool) -> usize {
    bytes.iter().take_while(|byte| is_part(**byte)).count()
}

fn digits(bytes: &[u8]) -> Option<usize> {
    Some(run_length(bytes, |byte| byte.is_ascii_digit())).filter(|len| *len > 0)
}

fn signed(bytes: &[u8]) -> Option<usize> {
    match bytes {
        [b'-', rest @ ..] => digits(rest).map(|len| len + 1),
        _ => digits(bytes),
    }
}

fn joined_pair(bytes: &[u8], separator: u8, is_part: impl Fn(u8) -> bool) -> Option<usize> {
    let first = run_length(bytes, &is_part);
    if first == 0 || bytes.get(first) != Some(&separator) {
        return None;
    }
    let second = run_length(&bytes[first + 1..], &is_part);
    (second > 0).then_some(first + 1 + second)
}

fn epoch(bytes: &[u8]) -> Option<usize> {
    joined_pair(bytes, b'.', |byte| byte.is_ascii_digit())
}

fn vxid(bytes: &[u8]) -> Option<usize> {
    joined_pair(bytes, b'/', |byte| byte.is_ascii_digit())
}

/// Returns the length of `%c`: two lower-case hexadecimal numbers separated by a dot.
pub(super) fn session_id(bytes: &[u8]) -> Option<usize> {
    joined_pair(bytes, b'.', |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn sqlstate(bytes: &[u8]) -> Option<usize> {
    let code = bytes.get(..5)?;
    code.iter().all(|b| b.is_ascii_digit() || b.is_ascii_uppercase()).then_some(5)
}

/// Returns the length of `[local]`, or of an address whose end is certain: one with a port in
/// parentheses if `with_port`, or an IPv4 address.
fn address(bytes: &[u8], with_port: bool) -> Option<usize> {
    if bytes.first() == Some(&b'[') {
        let end = memchr::memchr(b']', &bytes[..bytes.len().min(64)])?;
        return Some(end + 1);
    }
    let is_part = |b: u8| b.is_ascii_alphanumeric() || b".:_-%".contains(&b);
    let host = run_length(bytes, is_part);
    if with_port && host > 0 && bytes.get(host) == Some(&b'(') {
        let port = digits(&bytes[host + 1..])?;
        return (bytes.get(host + 1 + port) == Some(&b')')).then_some(host + port + 2);
    }
    Some(run_length(bytes, |b| b.is_ascii_digit() || b == b'.')).filter(|len| *len >= SHORTEST_IPV4)
}

/// Length of the shortest IPv4 address, such as `1.2.3.4`.
const SHORTEST_IPV4: usize = 7;
