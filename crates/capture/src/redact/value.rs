//! Replaces a value with one of the same shape.
//!
//! The type of a value is unknown, so its shape decides: a replacement is valid for every type of
//! PostgreSQL that the shape may have. `[1,5]` stays a range and JSON, `101` a number and a bit
//! string.

mod address;
mod bracketed;
mod json;
mod keyword;
mod time;

use ring::hmac;

use super::{RedactionKey, stream::KeyedStream};

/// A redactor of single values, with one key.
#[derive(Debug)]
pub(super) struct ValueRedactor {
    key: hmac::Key,
}

impl ValueRedactor {
    pub(super) fn new(key: &RedactionKey) -> Self {
        Self { key: key.0.clone() }
    }

    /// Returns a number derived from the key and a value, to be shown instead of the value.
    pub(super) fn token(&self, value: &[u8]) -> u32 {
        (self.stream(value).next() >> 32) as u32
    }

    /// Returns the replacement of a name, which differs from those of other names.
    pub(super) fn name(&self, name: &[u8]) -> String {
        format!("name_{:016x}", self.stream(name).next())
    }

    /// Returns the replacement of a value.
    ///
    /// A digit is replaced by a digit, an ASCII alphabetic character by one of the same case, and a
    /// byte that is not ASCII by an alphabetic character; everything else is preserved. Numbers
    /// stay in the range of their type. Values of these shapes keep it: dates, times and intervals;
    /// hexadecimal values (UUIDs, `\x…`, MAC addresses, WAL positions); IP addresses with the
    /// length of their network; bit strings; ranges, whose bounds stay in order; arrays, rows and
    /// JSON. Each element of these gets the replacement that it has elsewhere.
    /// [Words](keyword) that have a meaning for a type, such as `true`, are preserved.
    pub(super) fn redact(&self, value: &[u8]) -> Vec<u8> {
        self.redact_nested(value, 0)
    }

    /// Like [`redact`](Self::redact), for a value inside this number of others.
    fn redact_nested(&self, value: &[u8], depth: u32) -> Vec<u8> {
        let core = value.trim_ascii();
        let start = value.len() - value.trim_ascii_start().len();
        let (before, after) = (&value[..start], &value[start + core.len()..]);
        let redacted = self.redact_core(core, depth);
        [before, &redacted, after].concat()
    }

    fn redact_core(&self, value: &[u8], depth: u32) -> Vec<u8> {
        if value.is_empty() || keyword::is_preserved(value) {
            return value.to_vec();
        }
        let mut stream = self.stream(value);
        let mut out = value.to_vec();
        if is_hex(value) {
            out.iter_mut().skip(if value.starts_with(b"\\x") { 2 } else { 0 }).for_each(|byte| {
                *byte = stream.hex(*byte);
            });
            return out;
        }
        if is_bits(value) {
            // The first digit stays, so that a number neither loses nor gains a digit.
            out[1..].iter_mut().for_each(|byte| *byte = b'0' + stream.in_range(0, 1) as u8);
            return out;
        }
        let shaped = redact_float(value, &mut stream)
            .or_else(|| address::redact(value, &mut stream))
            .or_else(|| keyword::redact_zone(value, &mut stream))
            .or_else(|| time::redact(value, &mut stream));
        if let Some(shaped) = shaped {
            return shaped;
        }
        if depth < DEPTH_MAX {
            let redact = |value: &[u8]| self.redact_nested(value, depth + 1);
            let nested = bracketed::redact_range(value, &redact)
                .or_else(|| json::redact(value, &redact))
                .or_else(|| bracketed::redact(value, &redact));
            if let Some(nested) = nested {
                return nested;
            }
        }
        let mut stream = self.stream(value);
        let date = time::redact_date(&mut out, &mut stream);
        stream.text(&mut out[date..], matches!(value.first(), Some(b'{' | b'[' | b'"')));
        out
    }

    /// Returns the replacement of a value in binary form, whose type is unknown. It is redacted as
    /// text if it looks like text, otherwise replaced with random bytes of the same length. A
    /// number keeps its sign, and a single byte becomes a bool.
    pub(super) fn redact_binary(&self, value: &[u8]) -> Vec<u8> {
        let is_text = std::str::from_utf8(value).is_ok_and(|text| {
            !text.chars().any(char::is_control) && text.chars().any(char::is_alphanumeric)
        });
        if is_text && value.len() > 1 {
            return self.redact(value);
        }
        let mut stream = self.stream(value);
        let sign = value.first().map_or(0, |first| first & 0x80);
        let mut out: Vec<u8> = value.iter().map(|_| stream.next() as u8).collect();
        if let [only] = &mut out[..] {
            *only &= 1;
        } else if let Some(first) = out.first_mut() {
            *first = *first & 0x7f | sign;
        }
        out
    }

    /// Returns the replacement of the digits of a bit string, `B'…'` or `X'…'`.
    pub(super) fn redact_digits(&self, value: &[u8], binary: bool) -> Vec<u8> {
        let mut stream = self.stream(value);
        let digit = |byte: &u8| {
            if binary && matches!(byte, b'0' | b'1') {
                b'0' + (stream.next() % 2) as u8
            } else {
                stream.hex(*byte)
            }
        };
        value.iter().map(digit).collect()
    }

    fn stream(&self, value: &[u8]) -> KeyedStream {
        let tag = hmac::sign(&self.key, value);
        let mut seed = [0; 8];
        seed.copy_from_slice(&tag.as_ref()[..8]);
        KeyedStream::new(u64::from_le_bytes(seed))
    }
}

/// Maximum nesting of values in each other that are redacted one by one.
const DEPTH_MAX: u32 = 8;

/// Whether a value is hexadecimal: `\x` with digits, a UUID, a MAC address, or a WAL position.
fn is_hex(value: &[u8]) -> bool {
    let fits = |shape: &str| {
        shape.len() == value.len()
            && shape.bytes().zip(value).all(|(shape, byte)| match shape {
                b'x' => byte.is_ascii_hexdigit(),
                other => *byte == other,
            })
    };
    if let Some(digits) = value.strip_prefix(b"\\x") {
        return digits.iter().all(u8::is_ascii_hexdigit);
    }
    // Digits alone stay digits, whatever they are.
    let has_letter = value.iter().any(u8::is_ascii_alphabetic);
    has_letter && (HEX_SHAPES.into_iter().any(fits) || is_lsn(value))
}

/// UUIDs, and MAC addresses of six and eight bytes, in the forms that PostgreSQL reads.
const HEX_SHAPES: [&str; 17] = [
    "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx",
    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "xxxx-xxxx-xxxx-xxxx-xxxx-xxxx-xxxx-xxxx",
    "xx:xx:xx:xx:xx:xx",
    "xx-xx-xx-xx-xx-xx",
    "xxxxxx:xxxxxx",
    "xxxxxx-xxxxxx",
    "xxxx.xxxx.xxxx",
    "xxxx-xxxx-xxxx",
    "xxxxxxxxxxxx",
    "xx:xx:xx:xx:xx:xx:xx:xx",
    "xx-xx-xx-xx-xx-xx-xx-xx",
    "xxxxxx:xxxxxxxxxx",
    "xxxxxx-xxxxxxxxxx",
    "xxxx.xxxx.xxxx.xxxx",
    "xxxx-xxxx-xxxx-xxxx",
    "xxxxxxxxxxxxxxxx",
];

/// Whether a value is a WAL position, such as `16/B374D848`.
fn is_lsn(value: &[u8]) -> bool {
    let is_half = |half: &[u8]| {
        (1..=8).contains(&half.len())
            && half.iter().all(|byte| byte.is_ascii_digit() || (b'A'..=b'F').contains(byte))
    };
    memchr::memchr(b'/', value).is_some_and(|at| is_half(&value[..at]) && is_half(&value[at + 1..]))
}

/// Returns the replacement of a number with an exponent, such as `1.5e-10`, which keeps its
/// magnitude. Exponents near the limits of a type become smaller ones.
fn redact_float(value: &[u8], stream: &mut KeyedStream) -> Option<Vec<u8>> {
    let at = value.iter().position(|byte| matches!(byte, b'e' | b'E'))?;
    let (mantissa, exponent) = (&value[..at], &value[at + 1..]);
    let sign = usize::from(matches!(exponent.first(), Some(b'+' | b'-')));
    let (sign, digits) = exponent.split_at(sign);
    let is_mantissa = mantissa.iter().all(|byte| byte.is_ascii_digit() || b"+-.".contains(byte));
    let is_number = is_mantissa
        && mantissa.iter().any(u8::is_ascii_digit)
        && (1..=3).contains(&digits.len())
        && digits.iter().all(u8::is_ascii_digit);
    if !is_number {
        return None;
    }
    let mut out = mantissa.to_vec();
    stream.text(&mut out, false);
    out.push(value[at]);
    out.extend_from_slice(sign);
    let size = digits.iter().fold(0, |sum, digit| sum * 10 + u32::from(digit - b'0'));
    match size {
        300.. => out.extend_from_slice(b"290"),
        30..=46 => out.extend_from_slice(b"25"),
        _ => out.extend_from_slice(digits),
    }
    Some(out)
}

/// Whether a value consists of the digits 0 and 1, so that it may be a bit string.
fn is_bits(value: &[u8]) -> bool {
    value.iter().all(|byte| matches!(byte, b'0' | b'1'))
}
