//! Recognizes times in a log by their shape: `2026-11-20 12:43:20.896 UTC`.

/// Length of a time down to the second: `2026-11-20 12:43:20`.
pub const SECONDS_LEN: usize = 19;

/// Whether `text` has digits and separators where `2026-11-20 12:43:20` has them.
#[inline]
pub fn is_stamp_shaped(text: &[u8; SECONDS_LEN]) -> bool {
    let (first, rest) = text.split_at(8);
    let (second, third) = rest.split_at(8);
    let word = |bytes: &[u8]| bytes.first_chunk().map_or(0, |chunk| u64::from_ne_bytes(*chunk));
    matches_shape(word(first), b"dddd-dd-")
        & matches_shape(word(second), b"dd dd:dd")
        & (third[0] == b':' && third[1].is_ascii_digit() && third[2].is_ascii_digit())
}

/// Like [`is_stamp_shaped`] for the front of `text`, with `separator` between date and time of day.
pub(crate) fn is_civil_shaped(text: &[u8], separator: u8) -> bool {
    text.first_chunk().is_some_and(|text: &[u8; SECONDS_LEN]| {
        let mut spaced = *text;
        spaced[10] = b' ';
        text[10] == separator && is_stamp_shaped(&spaced)
    })
}

/// Whether eight bytes match `shape`, where `d` is a digit and any other byte stands for itself.
///
/// Compares all eight at once: a byte that differs where it must be equal, or by more than 9 where
/// it must be a digit, sets its highest bit.
#[inline]
fn matches_shape(bytes: u64, shape: &[u8; 8]) -> bool {
    let expected = u64::from_ne_bytes(shape.map(|byte| if byte == b'd' { b'0' } else { byte }));
    let slack = u64::from_ne_bytes(shape.map(|byte| if byte == b'd' { 0x76 } else { 0x7f }));
    let difference = bytes ^ expected;
    (((difference & LOW_BITS) + slack) | difference) & !LOW_BITS == 0
}

/// All but the highest bit of each byte.
const LOW_BITS: u64 = 0x7f7f_7f7f_7f7f_7f7f;

/// Returns the length of the time at the front of `bytes`, including its zone, with or without a
/// fraction of a second as requested; `None` if the bytes are not such a time.
#[inline]
pub fn stamp_len(bytes: &[u8], with_fraction: bool) -> Option<usize> {
    if !is_stamp_shaped(bytes.first_chunk::<SECONDS_LEN>()?) {
        return None;
    }
    let rest = &bytes[SECONDS_LEN..];
    let fraction = match rest {
        [b'.', digits @ ..] if with_fraction => {
            1 + digits.iter().take_while(|byte| byte.is_ascii_digit()).count()
        }
        _ if with_fraction => return None,
        _ => 0,
    };
    let zone = rest[fraction..].strip_prefix(b" ").map_or(0, zone_len);
    (zone > 0).then_some(SECONDS_LEN + fraction + 1 + zone)
}

/// Returns the length of the zone at the front of `bytes`, which is alphabetic characters, or a
/// sign and digits; 0 if there is none.
fn zone_len(bytes: &[u8]) -> usize {
    match bytes.first() {
        Some(b'+' | b'-') => {
            let digits = bytes[1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            if digits >= 2 { 1 + digits } else { 0 }
        }
        _ => bytes.iter().take_while(|byte| byte.is_ascii_alphabetic()).count(),
    }
}

#[test]
fn stamp_length_includes_the_zone() {
    assert_eq!(stamp_len(b"2026-11-20 12:43:19.577 UTC|x", true), Some(27));
    assert_eq!(stamp_len(b"2026-11-20 12:43:19 +03:1.2.3.4", false), Some(23));
    assert_eq!(stamp_len(b"2026-11-20 12:43:19 UTC", true), None);
    assert_eq!(stamp_len(b"2026-11-20 12:43:19.577 UTC", false), None);
    assert_eq!(stamp_len(b"2026-11-20 12:43:19 ", false), None);
}
