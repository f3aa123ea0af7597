//! Locations of a record's fields.
//!
//! Most fields are verbatim in the input. The others are unescaped into a reused scratch buffer, so
//! reading a record allocates nothing once the buffer has grown.

/// The location of a field: in the input, in the scratch buffer, or absent.
///
/// A span has only eight bytes, because every record has a dozen spans. [`RECORD_BYTES_LIMIT`]
/// keeps offsets below 2³¹.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FieldSpan {
    /// Offset in the input, or in the scratch buffer if the highest bit is set.
    start: u32,
    len: u32,
}

/// Maximum record size that can be configured, in bytes. A reader holds at most two records and a
/// chunk, so offsets fit in 31 bits.
pub(crate) const RECORD_BYTES_LIMIT: usize = 512 << 20;

impl FieldSpan {
    /// The span of a field that the log does not have.
    pub(crate) const ABSENT: Self = Self { start: u32::MAX, len: 0 };
    const IN_SCRATCH: u32 = 1 << 31;

    /// Creates a span of the input from `start` to `end`, exclusive.
    pub(crate) fn input(start: usize, end: usize) -> Self {
        debug_assert!(start <= end && end < Self::IN_SCRATCH as usize);
        Self { start: start as u32, len: (end - start) as u32 }
    }

    /// Creates a span of the scratch buffer from `start` to `end`, exclusive.
    pub(crate) fn scratch(start: usize, end: usize) -> Self {
        let Self { start, len } = Self::input(start, end);
        Self { start: start | Self::IN_SCRATCH, len }
    }

    /// Returns the bytes of the field; `None` if the log does not have it.
    #[inline]
    pub(crate) fn get<'a>(self, input: &'a [u8], scratch: &'a [u8]) -> Option<&'a [u8]> {
        let len = self.len as usize;
        if self.start & Self::IN_SCRATCH == 0 {
            let start = self.start as usize;
            return input.get(start..start + len);
        }
        if self == Self::ABSENT {
            return None;
        }
        let start = (self.start & !Self::IN_SCRATCH) as usize;
        scratch.get(start..start + len)
    }

    /// Returns the bytes of the field, or an empty slice if the log does not have it.
    #[inline]
    pub(crate) fn text<'a>(self, input: &'a [u8], scratch: &'a [u8]) -> &'a [u8] {
        self.get(input, scratch).unwrap_or_default()
    }

    /// Returns the span's range in the input. The span must be in the input.
    pub(crate) fn range(self) -> std::ops::Range<usize> {
        debug_assert!(self.start & Self::IN_SCRATCH == 0);
        self.start as usize..self.start as usize + self.len as usize
    }

    /// Returns the start of the span, if it is in the input.
    #[inline]
    pub(crate) fn input_start(self) -> Option<usize> {
        (self.start & Self::IN_SCRATCH == 0).then_some(self.start as usize)
    }

    /// Returns the end of the span, if it is in the input.
    #[inline]
    pub(crate) fn input_end(self) -> Option<usize> {
        Some(self.input_start()? + self.len as usize)
    }

    /// Returns the same span `by` bytes farther on in the input.
    #[inline]
    pub(crate) fn shifted_right(self, by: usize) -> Self {
        match self.start & Self::IN_SCRATCH {
            0 => Self { start: self.start + by as u32, ..self },
            _ => self,
        }
    }

    /// Returns the same span `by` bytes earlier in the input. It must start at `by` or later.
    pub(crate) fn shifted_left(self, by: usize) -> Self {
        match self.start & Self::IN_SCRATCH {
            0 => Self { start: self.start - by as u32, ..self },
            _ => self,
        }
    }

    /// Returns the span extended by the newline after it, unless absent.
    pub(crate) fn with_newline(self) -> Self {
        if self == Self::ABSENT { self } else { Self { len: self.len + 1, ..self } }
    }

    /// Returns the span's first `len` bytes.
    pub(crate) fn truncated(self, len: usize) -> Self {
        Self { len: self.len.min(len as u32), ..self }
    }

    /// Returns the span without its first `len` bytes. It must have at least `len` bytes.
    pub(crate) fn skip_first(self, len: usize) -> Self {
        Self { start: self.start + len as u32, len: self.len - len as u32 }
    }

    /// Returns the span, or [`ABSENT`](Self::ABSENT) if it is empty.
    pub(crate) fn unless_empty(self) -> Self {
        if self.len == 0 { Self::ABSENT } else { self }
    }
}

/// Finds `byte` in a text where it is expected within a few bytes, so that the setup of [`memchr`]
/// would cost more than the search.
#[inline]
pub(crate) fn find_near(byte: u8, text: &[u8]) -> Option<usize> {
    let mut at = 0;
    while at < NEAR_BYTES
        && let Some(word) = text.get(at..).and_then(<[u8]>::first_chunk)
    {
        if let Some(found) = position_in_word(byte, u64::from_le_bytes(*word)) {
            return Some(at + found);
        }
        at += 8;
    }
    let rest = text.get(at..)?;
    let found = match at {
        NEAR_BYTES => memchr::memchr(byte, rest),
        _ => rest.iter().position(|other| *other == byte),
    };
    found.map(|found| at + found)
}

/// Returns the position of the first of eight bytes, lowest first, that equals `byte`.
#[inline]
pub(crate) fn position_in_word(byte: u8, word: u64) -> Option<usize> {
    const ONES: u64 = u64::MAX / 255;
    // When one is subtracted from each byte, the lowest zero byte is the first to borrow, so it is
    // the match.
    let other = word ^ (ONES * u64::from(byte));
    let found = other.wrapping_sub(ONES) & !other & (ONES << 7);
    (found != 0).then(|| found.trailing_zeros() as usize / 8)
}

/// Number of bytes that are searched in steps of eight before [`memchr`] takes over.
const NEAR_BYTES: usize = 32;

/// Whether two short texts are equal, without the overhead of a general comparison.
#[inline]
pub(crate) fn short_eq(one: &[u8], other: &[u8]) -> bool {
    type WideWord = u128;
    const BYTES: usize = size_of::<WideWord>();
    if one.len() != other.len() {
        return false;
    }
    let (Some(last), Some(other_last)) = (one.last_chunk::<BYTES>(), other.last_chunk()) else {
        return one == other;
    };
    let word = |bytes: &[u8; BYTES]| WideWord::from_ne_bytes(*bytes);
    let (chunks, _) = one.as_chunks::<BYTES>();
    let (others, _) = other.as_chunks::<BYTES>();
    // The last words overlap the preceding ones.
    word(last) == word(other_last)
        && chunks.iter().zip(others).all(|(one, other)| word(one) == word(other))
}

/// Parses decimal digits; `None` for anything else, for an empty text, or on overflow.
pub(crate) fn parse_u64(text: &[u8]) -> Option<u64> {
    // Nineteen nines fit in 64 bits.
    if text.len() > 19 {
        return std::str::from_utf8(text).ok()?.parse().ok();
    }
    if text.is_empty() {
        return None;
    }
    let mut sum = 0_u64;
    for byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        sum = sum * 10 + u64::from(digit);
    }
    Some(sum)
}

/// Parses a process id.
pub(crate) fn parse_pid(text: &[u8]) -> Option<u32> {
    parse_u64(text)?.try_into().ok()
}

/// Parses a number with an optional minus sign.
pub(crate) fn parse_i64(text: &[u8]) -> Option<i64> {
    match text {
        [b'-', digits @ ..] => 0_i64.checked_sub_unsigned(parse_u64(digits)?),
        _ => parse_u64(text)?.try_into().ok(),
    }
}

/// Parses a session id (`%c`). Returns the session's start time in seconds since 1970, and its
/// process id.
pub(crate) fn parse_session_id(text: &[u8]) -> Option<(i64, u32)> {
    let dot = text.iter().position(|byte| *byte == b'.')?;
    let (start, pid) = (parse_hex(&text[..dot])?, parse_hex(&text[dot + 1..])?);
    Some((start.try_into().ok()?, pid.try_into().ok()?))
}

/// Parses `%c` at the front of `text`, in lower case as the server writes it, and returns its
/// length as well. `None` if it has another form, or extends to the end of the text.
#[inline]
pub(crate) fn parse_session_id_at(text: &[u8]) -> Option<(i64, u32, usize)> {
    let (start, dot) = parse_hex_at(text)?;
    let (pid, len) = parse_hex_at(text.get(dot + 1..)?)?;
    let is_whole = text.get(dot) == Some(&b'.') && text.len() > dot + 1 + len;
    Some((start.try_into().ok()?, pid.try_into().ok()?, dot + 1 + len)).filter(|_| is_whole)
}

#[inline]
fn parse_hex_at(text: &[u8]) -> Option<(u64, usize)> {
    let mut sum = 0_u64;
    let mut len = 0;
    for byte in text {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            _ => break,
        };
        sum = sum << 4 | u64::from(digit);
        len += 1;
    }
    (1..=16).contains(&len).then_some((sum, len))
}

fn parse_hex(digits: &[u8]) -> Option<u64> {
    if !(1..=16).contains(&digits.len()) {
        return None;
    }
    let mut sum = 0_u64;
    for byte in digits {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            _ => return None,
        };
        sum = sum << 4 | u64::from(digit);
    }
    Some(sum)
}

/// Returns the span of a name, or an absent span for the server's placeholder for an unknown name.
pub(crate) fn known_name(name: FieldSpan, input: &[u8], scratch: &[u8]) -> FieldSpan {
    if name.text(input, scratch) == b"[unknown]" { FieldSpan::ABSENT } else { name }
}

/// Extracts the function name from a location such as `exec_simple_query, postgres.c:1079`.
pub(crate) fn function_name(location: &[u8]) -> &[u8] {
    memchr::memchr(b',', location).map_or(b"", |comma| &location[..comma])
}

#[test]
fn fields_are_parsed() {
    assert_eq!(parse_session_id(b"6b004067.46e2"), Some((0x6b00_4067, 0x46e2)));
    assert_eq!(parse_session_id(b"6b004067"), None);
    assert_eq!(parse_session_id_at(b"6b004067.46e2|x"), Some((0x6b00_4067, 0x46e2, 13)));
    for not in [&b"6b004067.46e2"[..], b"6b004067|", b".46e2 ", b"6b004067.|", b""] {
        assert_eq!(parse_session_id_at(not), None);
    }
    assert_eq!(parse_session_id(b"6b004067."), None);
    assert_eq!(function_name(b"exec_simple_query, postgres.c:1079"), b"exec_simple_query");
    assert_eq!(parse_pid(b"12"), Some(12));
    assert_eq!(parse_pid(b"99999999999"), None);
    assert_eq!(parse_i64(b"-9223372036854775808"), Some(i64::MIN));
    assert_eq!(parse_i64(b"9223372036854775807"), Some(i64::MAX));
    assert_eq!(parse_u64(b"18446744073709551615"), Some(u64::MAX));
    for not in [&b""[..], b"-", b"1x", b"18446744073709551616"] {
        assert_eq!(parse_u64(not), None);
    }
}

#[test]
fn nearby_byte_is_found_at_its_position() {
    for len in 0..80 {
        for at in 0..len {
            // Bytes that differ by one from the searched byte, which a carry would mistake for it.
            let mut text = vec![b'\'' + 1; len];
            text[at] = b'\'';
            assert_eq!(find_near(b'\'', &text), Some(at), "{at} of {len}");
            text[at] = b'\'' - 1;
            assert_eq!(find_near(b'\'', &text), None, "{at} of {len}");
        }
    }
}

#[test]
fn spans_resolve_in_input_scratch_or_are_absent() {
    let (input, scratch) = (&b"abcdef"[..], &b"xyz"[..]);
    assert_eq!(FieldSpan::input(1, 3).get(input, scratch), Some(&b"bc"[..]));
    assert_eq!(FieldSpan::scratch(1, 3).get(input, scratch), Some(&b"yz"[..]));
    assert_eq!(FieldSpan::ABSENT.get(input, scratch), None);
    assert_eq!(FieldSpan::input(1, 3).shifted_right(2).get(input, scratch), Some(&b"de"[..]));
    assert_eq!(FieldSpan::ABSENT.shifted_right(2), FieldSpan::ABSENT);
    assert_eq!(FieldSpan::scratch(1, 3).shifted_right(2), FieldSpan::scratch(1, 3));
    assert_eq!(FieldSpan::input(2, 2).unless_empty(), FieldSpan::ABSENT);
}

#[cfg(test)]
proptest::proptest! {
    #[test]
    fn short_eq_equals_slice_comparison(text in "[a-z]{0,70}", at in 0_usize..70) {
        let (one, mut other) = (text.clone().into_bytes(), text.into_bytes());
        proptest::prop_assert!(short_eq(&one, &other));
        if let Some(byte) = other.get_mut(at) {
            *byte ^= 1;
            proptest::prop_assert!(!short_eq(&one, &other));
        }
        other.push(b'x');
        proptest::prop_assert!(!short_eq(&one, &other));
    }
}
