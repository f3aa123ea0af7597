//! Replaces a value with one of the same shape.

use ring::hmac;

use super::RedactionKey;

/// A redactor of single values, with one key.
#[derive(Debug)]
pub(super) struct ValueRedactor {
    key: hmac::Key,
}

/// A stream of random numbers that depends on the key and the value (SplitMix64, seeded by the
/// HMAC).
struct KeyedStream(u64);

impl ValueRedactor {
    pub(super) fn new(key: &RedactionKey) -> Self {
        Self { key: key.0.clone() }
    }

    /// Returns a number derived from the key and a value, to be shown instead of the value.
    pub(super) fn token(&self, value: &[u8]) -> u32 {
        (self.stream(value).next() >> 32) as u32
    }

    /// Returns the replacement of a value.
    ///
    /// A digit is replaced by a digit, an ASCII alphabetic character by one of the same case, and a
    /// byte that is not ASCII by an alphabetic character; everything else is preserved. Numbers
    /// stay in the range of their type, dates stay dates, hexadecimal values (UUIDs, `\x…`) stay
    /// hexadecimal, and `true`, `false` and `null` within JSON are preserved.
    pub(super) fn redact(&self, value: &[u8]) -> Vec<u8> {
        let mut stream = self.stream(value);
        let mut out = value.to_vec();
        if is_hex(value) {
            out.iter_mut().skip(if value.starts_with(b"\\x") { 2 } else { 0 }).for_each(|byte| {
                *byte = stream.hex(*byte);
            });
            return out;
        }
        let date = date_len(value);
        if date > 0 {
            stream.date(&mut out[..date]);
        }
        stream.text(&mut out[date..], matches!(value.first(), Some(b'{' | b'[')));
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
        KeyedStream(u64::from_le_bytes(seed))
    }
}

/// Whether a value is `\x` with hexadecimal digits, or a UUID.
fn is_hex(value: &[u8]) -> bool {
    let uuid = value.len() == 36
        && value.iter().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => *byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        });
    let bytea = value.strip_prefix(b"\\x");
    uuid || bytea.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
}

/// Returns the length of the date at the start of a value, `YYYY-MM-DD`, with the time after it,
/// `hh:mm` or `hh:mm:ss`, if there is one; 0 without a date.
fn date_len(value: &[u8]) -> usize {
    let fits = |shape: &[u8]| {
        value.len() >= shape.len()
            && !value.get(shape.len()).is_some_and(u8::is_ascii_digit)
            && shape.iter().zip(value).all(|(expected, byte)| match expected {
                b'0' => byte.is_ascii_digit(),
                b' ' => matches!(byte, b' ' | b'T'),
                other => byte == other,
            })
    };
    [&b"0000-00-00 00:00:00"[..], b"0000-00-00 00:00", b"0000-00-00"]
        .into_iter()
        .find(|shape| fits(shape))
        .map_or(0, <[u8]>::len)
}

/// Replaces the digits of an exponent with zeros if there are more than three. Such an exponent is
/// not valid for any type, so its digits may be a user's value; with zeros, the text stays a valid
/// number. A shorter exponent, as in `1e308` or `1e-324`, is preserved.
pub(super) fn hide_exponent(digits: &mut [u8]) {
    if digits.len() > EXPONENT_DIGITS_MAX {
        digits.iter_mut().filter(|byte| byte.is_ascii_digit()).for_each(|byte| *byte = b'0');
    }
}

const EXPONENT_DIGITS_MAX: usize = 3;

/// Whether an `e` between these bytes is the exponent sign of a number.
fn is_exponent(before: &[u8], after: &[u8]) -> bool {
    let is_number = before.last().is_some_and(u8::is_ascii_digit);
    match after {
        [b'+' | b'-', digit, ..] | [digit, ..] => is_number && digit.is_ascii_digit(),
        [] => false,
    }
}

impl KeyedStream {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Returns a number from `low` to `high`, both inclusive.
    fn in_range(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    fn hex(&mut self, byte: u8) -> u8 {
        let digit = self.in_range(0, 15) as usize;
        match byte {
            b'0'..=b'9' | b'a'..=b'f' => b"0123456789abcdef"[digit],
            b'A'..=b'F' => b"0123456789ABCDEF"[digit],
            other => other,
        }
    }

    /// Writes a valid date in the years 1970 to 2037, and a time of day if `out` has room for it.
    fn date(&mut self, out: &mut [u8]) {
        let parts = [(1970, 2037), (1, 12), (1, 28), (0, 23), (0, 59), (0, 59)];
        let mut at = 0;
        for (index, (low, high)) in parts.into_iter().enumerate() {
            let digits = if index == 0 { 4 } else { 2 };
            let Some(field) = out.get_mut(at..at + digits) else { return };
            let number = format!("{:0digits$}", self.in_range(low, high));
            field.copy_from_slice(number.as_bytes());
            at += digits + 1;
        }
    }

    /// Redacts text that is neither hexadecimal nor a date: each run of digits as a number, and
    /// each alphabetic character. If `json`, preserves exponents of up to three digits, escapes
    /// (except the digits of `\u`), and `true`, `false` and `null`.
    fn text(&mut self, out: &mut [u8], json: bool) {
        let mut at = 0;
        let mut exponent_end = None;
        while at < out.len() {
            let is_digit = |byte: &u8| byte.is_ascii_digit();
            let is_letter = |byte: &u8| byte.is_ascii_alphabetic() || !byte.is_ascii();
            let run = |belongs: &dyn Fn(&u8) -> bool| {
                out[at..].iter().take_while(|byte| belongs(byte)).count()
            };
            let len = match out[at] {
                byte if is_digit(&byte) => {
                    let len = run(&is_digit);
                    self.number(&mut out[at..at + len]);
                    len
                }
                // An exponent keeps its magnitude.
                b'e' | b'E'
                    if json
                        && exponent_end != Some(at)
                        && is_exponent(&out[..at], &out[at + 1..]) =>
                {
                    let sign = usize::from(matches!(out[at + 1], b'+' | b'-'));
                    let digits = &mut out[at + 1 + sign..];
                    let len = digits.iter().take_while(|byte| is_digit(byte)).count();
                    hide_exponent(&mut digits[..len]);
                    // A number has only one exponent.
                    exponent_end = Some(at + 1 + sign + len);
                    1 + sign + len
                }
                byte if is_letter(&byte) => {
                    let len = run(&is_letter);
                    let word = &mut out[at..at + len];
                    if !(json && matches!(&*word, b"true" | b"false" | b"null")) {
                        word.iter_mut().for_each(|byte| *byte = self.letter(*byte));
                    }
                    len
                }
                // An escape of JSON preserves its first characters.
                b'\\' if json => {
                    let len = if out.get(at + 1) == Some(&b'u') { 6 } else { 2 };
                    let digits = out.iter_mut().skip(at + 2).take(len - 2);
                    // Never four zeros, which PostgreSQL rejects in text.
                    digits.for_each(|byte| *byte = self.in_range(1, 9) as u8 + b'0');
                    len
                }
                _ => 1,
            };
            at += len;
        }
    }

    fn letter(&mut self, byte: u8) -> u8 {
        let letter = self.in_range(0, 25) as u8;
        if byte.is_ascii_uppercase() { b'A' + letter } else { b'a' + letter }
    }

    /// Redacts a run of digits. The result has the same number of digits, no leading zero unless
    /// the original had one, and fits into the smallest integer type that holds the original.
    fn number(&mut self, out: &mut [u8]) {
        let highest = match std::str::from_utf8(out).ok().and_then(|text| text.parse::<u64>().ok())
        {
            Some(0) if out.len() == 1 => return,
            Some(10_000..=32_767) if out.len() == 5 => b'2',
            Some(1_000_000_000..=2_147_483_647) if out.len() == 10 => b'1',
            Some(1_000_000_000_000_000_000..=9_223_372_036_854_775_807) if out.len() == 19 => b'8',
            _ => b'9',
        };
        for (at, byte) in out.iter_mut().enumerate() {
            let (low, high) = match at {
                0 if *byte == b'0' => continue,
                0 => (b'1', highest),
                _ => (b'0', b'9'),
            };
            *byte = self.in_range(u64::from(low), u64::from(high)) as u8;
        }
    }
}
