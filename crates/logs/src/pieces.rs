//! Fields of a record before it is built: most lie in the input as they are, some must be unescaped.
//!
//! Unescaped text goes into one scratch buffer that is used again, so reading a record costs no
//! allocation once the buffer has grown.

/// Where a field's bytes are: in the input, in the scratch buffer, or nowhere.
///
/// Eight bytes, because there are a dozen in every record. Offsets are below 2³¹:
/// [`RECORD_BYTES_LIMIT`] sees to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// With the highest bit set: in the scratch buffer.
    start: u32,
    len: u32,
}

/// Longest record that can be asked for: a reader holds at most two of these and a piece of input.
pub(crate) const RECORD_BYTES_LIMIT: usize = 512 << 20;

impl Span {
    /// The log does not have the field.
    pub(crate) const ABSENT: Self = Self { start: u32::MAX, len: 0 };
    const IN_SCRATCH: u32 = 1 << 31;

    /// Bytes of the input, from `start` to before `end`.
    pub(crate) fn input(start: usize, end: usize) -> Self {
        debug_assert!(start <= end && end < Self::IN_SCRATCH as usize);
        Self { start: start as u32, len: (end - start) as u32 }
    }

    /// Bytes of the scratch buffer.
    pub(crate) fn scratch(start: usize, end: usize) -> Self {
        let Self { start, len } = Self::input(start, end);
        Self { start: start | Self::IN_SCRATCH, len }
    }

    /// The bytes, if the log has the field.
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

    /// The bytes, empty if the log does not have the field.
    #[inline]
    pub(crate) fn text<'a>(self, input: &'a [u8], scratch: &'a [u8]) -> &'a [u8] {
        self.get(input, scratch).unwrap_or_default()
    }

    /// Where it is in the input; it must be there.
    pub(crate) fn range(self) -> std::ops::Range<usize> {
        debug_assert!(self.start & Self::IN_SCRATCH == 0);
        self.start as usize..self.start as usize + self.len as usize
    }

    /// Where it begins, if it is in the input.
    #[inline]
    pub(crate) fn start_in_input(self) -> Option<usize> {
        (self.start & Self::IN_SCRATCH == 0).then_some(self.start as usize)
    }

    /// Where it ends, if it is in the input.
    #[inline]
    pub(crate) fn end_in_input(self) -> Option<usize> {
        Some(self.start_in_input()? + self.len as usize)
    }

    /// The same place in the input, `by` bytes farther on.
    #[inline]
    pub(crate) fn moved(self, by: usize) -> Self {
        match self.start & Self::IN_SCRATCH {
            0 => Self { start: self.start + by as u32, ..self },
            _ => self,
        }
    }

    /// The reverse. The place must be as far on as that.
    pub(crate) fn moved_back(self, by: usize) -> Self {
        match self.start & Self::IN_SCRATCH {
            0 => Self { start: self.start - by as u32, ..self },
            _ => self,
        }
    }

    /// The same with the newline behind it, if it is there at all.
    pub(crate) fn with_line_end(self) -> Self {
        if self == Self::ABSENT { self } else { Self { len: self.len + 1, ..self } }
    }

    /// Its first `len` bytes.
    pub(crate) fn shortened(self, len: usize) -> Self {
        Self { len: self.len.min(len as u32), ..self }
    }

    /// What follows its first `len` bytes; it must have as many.
    pub(crate) fn without_first(self, len: usize) -> Self {
        Self { start: self.start + len as u32, len: self.len - len as u32 }
    }

    /// The same, and nothing in place of an empty text.
    pub(crate) fn unless_empty(self) -> Self {
        if self.len == 0 { Self::ABSENT } else { self }
    }
}

/// Where `byte` first is in a text in which it is soon: for a few bytes, a search by [`memchr`] costs more to
/// begin than to do.
#[inline]
pub(crate) fn find_soon(byte: u8, text: &[u8]) -> Option<usize> {
    let mut at = 0;
    while at < SOON_BYTES
        && let Some(word) = text.get(at..).and_then(<[u8]>::first_chunk)
    {
        if let Some(found) = first_of(byte, u64::from_le_bytes(*word)) {
            return Some(at + found);
        }
        at += 8;
    }
    let rest = text.get(at..)?;
    let found = match at {
        SOON_BYTES => memchr::memchr(byte, rest),
        _ => rest.iter().position(|other| *other == byte),
    };
    found.map(|found| at + found)
}

/// The first of eight bytes, the lowest first, that is `byte`.
#[inline]
pub(crate) fn first_of(byte: u8, word: u64) -> Option<usize> {
    const ONES: u64 = u64::MAX / 255;
    // The lowest byte that is zero borrows from the one above it: it is the first.
    let other = word ^ (ONES * u64::from(byte));
    let found = other.wrapping_sub(ONES) & !other & (ONES << 7);
    (found != 0).then(|| found.trailing_zeros() as usize / 8)
}

/// How far it is looked for eight bytes at a time.
const SOON_BYTES: usize = 32;

/// Whether two short texts are equal. Most are shorter than what a comparison of any length is made for.
#[inline]
pub(crate) fn is_same(one: &[u8], other: &[u8]) -> bool {
    type Word = u128;
    const BYTES: usize = size_of::<Word>();
    if one.len() != other.len() {
        return false;
    }
    let (Some(last), Some(other_last)) = (one.last_chunk::<BYTES>(), other.last_chunk()) else {
        return one == other;
    };
    let word = |bytes: &[u8; BYTES]| Word::from_ne_bytes(*bytes);
    let (chunks, _) = one.as_chunks::<BYTES>();
    let (others, _) = other.as_chunks::<BYTES>();
    // The last words overlap those before.
    word(last) == word(other_last)
        && chunks.iter().zip(others).all(|(one, other)| word(one) == word(other))
}

/// Reads decimal digits, or `None` if there is anything else, nothing, or too much.
pub(crate) fn number(text: &[u8]) -> Option<u64> {
    // Nineteen nines fit 64 bits.
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

/// Reads a process id.
pub(crate) fn process(text: &[u8]) -> Option<u32> {
    number(text)?.try_into().ok()
}

/// Reads a number that may be negative.
pub(crate) fn signed(text: &[u8]) -> Option<i64> {
    match text {
        [b'-', digits @ ..] => 0_i64.checked_sub_unsigned(number(digits)?),
        _ => number(text)?.try_into().ok(),
    }
}

/// Start second and process id out of `%c`.
pub(crate) fn session_id(text: &[u8]) -> Option<(i64, u32)> {
    let dot = text.iter().position(|byte| *byte == b'.')?;
    let (start, pid) = (hexadecimal(&text[..dot])?, hexadecimal(&text[dot + 1..])?);
    Some((start.try_into().ok()?, pid.try_into().ok()?))
}

/// The same at the front of `text`, in lower case as the server writes it, with its length. `None` if
/// it is of another shape, or cut off by the end of the text.
#[inline]
pub(crate) fn session_id_at(text: &[u8]) -> Option<(i64, u32, usize)> {
    let (start, dot) = hexadecimal_at(text)?;
    let (pid, len) = hexadecimal_at(text.get(dot + 1..)?)?;
    let is_whole = text.get(dot) == Some(&b'.') && text.len() > dot + 1 + len;
    Some((start.try_into().ok()?, pid.try_into().ok()?, dot + 1 + len)).filter(|_| is_whole)
}

#[inline]
fn hexadecimal_at(text: &[u8]) -> Option<(u64, usize)> {
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

fn hexadecimal(digits: &[u8]) -> Option<u64> {
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

/// The function's name out of `exec_simple_query, postgres.c:1079`.
pub(crate) fn function(location: &[u8]) -> &[u8] {
    memchr::memchr(b',', location).map_or(b"", |comma| &location[..comma])
}

#[test]
fn parts_of_fields() {
    assert_eq!(session_id(b"6b004067.46e2"), Some((0x6b00_4067, 0x46e2)));
    assert_eq!(session_id(b"6b004067"), None);
    assert_eq!(session_id_at(b"6b004067.46e2|x"), Some((0x6b00_4067, 0x46e2, 13)));
    for not in [&b"6b004067.46e2"[..], b"6b004067|", b".46e2 ", b"6b004067.|", b""] {
        assert_eq!(session_id_at(not), None);
    }
    assert_eq!(session_id(b"6b004067."), None);
    assert_eq!(function(b"exec_simple_query, postgres.c:1079"), b"exec_simple_query");
    assert_eq!(process(b"12"), Some(12));
    assert_eq!(process(b"99999999999"), None);
    assert_eq!(signed(b"-9223372036854775808"), Some(i64::MIN));
    assert_eq!(signed(b"9223372036854775807"), Some(i64::MAX));
    assert_eq!(number(b"18446744073709551615"), Some(u64::MAX));
    for not in [&b""[..], b"-", b"1x", b"18446744073709551616"] {
        assert_eq!(number(not), None);
    }
}

#[test]
fn what_is_soon_is_found_where_it_is() {
    for len in 0..80 {
        for at in 0..len {
            // Neighbours by one of the wanted byte, which a carry would mistake.
            let mut text = vec![b'\'' + 1; len];
            text[at] = b'\'';
            assert_eq!(find_soon(b'\'', &text), Some(at), "{at} of {len}");
            text[at] = b'\'' - 1;
            assert_eq!(find_soon(b'\'', &text), None, "{at} of {len}");
        }
    }
}

#[test]
fn spans_are_in_the_input_the_scratch_or_nowhere() {
    let (input, scratch) = (&b"abcdef"[..], &b"xyz"[..]);
    assert_eq!(Span::input(1, 3).get(input, scratch), Some(&b"bc"[..]));
    assert_eq!(Span::scratch(1, 3).get(input, scratch), Some(&b"yz"[..]));
    assert_eq!(Span::ABSENT.get(input, scratch), None);
    assert_eq!(Span::input(1, 3).moved(2).get(input, scratch), Some(&b"de"[..]));
    assert_eq!(Span::ABSENT.moved(2), Span::ABSENT);
    assert_eq!(Span::scratch(1, 3).moved(2), Span::scratch(1, 3));
    assert_eq!(Span::input(2, 2).unless_empty(), Span::ABSENT);
}

#[cfg(test)]
proptest::proptest! {
    #[test]
    fn equal_texts_are_the_same_and_no_others(text in "[a-z]{0,70}", at in 0_usize..70) {
        let (one, mut other) = (text.clone().into_bytes(), text.into_bytes());
        proptest::prop_assert!(is_same(&one, &other));
        if let Some(byte) = other.get_mut(at) {
            *byte ^= 1;
            proptest::prop_assert!(!is_same(&one, &other));
        }
        other.push(b'x');
        proptest::prop_assert!(!is_same(&one, &other));
    }
}
