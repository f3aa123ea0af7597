//! Parses numbers like JavaScript's `Number(text)`, which etsy's clients rely on.
//!
//! Accepted: decimals with or without sign, point and exponent, `0x1f`, `0b1`, `0o7`, surrounding
//! white space. Unlike JavaScript, this parser refuses infinities, and empty or blank text (0 in
//! JavaScript).

use super::{ADDEND_MAX, RejectReason};

/// Parses a whole field. The result is finite.
///
/// # Errors
///
/// [`RejectReason::NotANumber`] or [`RejectReason::NotFinite`].
pub(crate) fn number(text: &[u8]) -> Result<f64, RejectReason> {
    match short_decimal(text) {
        Some(number) => Ok(number),
        None => any_number(text.trim_ascii()),
    }
}

/// Parses a field whose value will be summed.
///
/// # Errors
///
/// The errors of [`number`], or [`RejectReason::TooLarge`].
pub(super) fn addend(text: &[u8]) -> Result<f64, RejectReason> {
    // A short decimal has at most 15 digits, far below the limit, so it needs no check.
    match short_decimal(text) {
        Some(number) => Ok(number),
        None => match any_number(text.trim_ascii())? {
            number if number.abs() > ADDEND_MAX => Err(RejectReason::TooLarge),
            number => Ok(number),
        },
    }
}

/// Parses a decimal as [`LeadingDecimal`] does; `None` for any other text.
fn short_decimal(text: &[u8]) -> Option<f64> {
    let decimal = LeadingDecimal::parse(text)?;
    (decimal.length == text.len()).then_some(decimal.number)
}

/// A decimal at the start of a text, with at most 15 digits and optional sign and point, such as
/// `7`, `-1.5`, `.5` or `1.`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LeadingDecimal {
    pub(super) number: f64,
    /// Whether there is a `+` or a `-`.
    pub(super) is_signed: bool,
    /// The number of bytes.
    pub(super) length: usize,
}

impl LeadingDecimal {
    /// Parses as many bytes as belong to the decimal; `None` if there is none or it has more
    /// digits. Both the digits and the power of ten are exact in a double, so one division gives
    /// the correctly rounded result.
    #[inline]
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let is_signed = matches!(text, [b'+' | b'-', ..]);
        let start = usize::from(is_signed);
        let (mut mantissa, mut at) = (0_u64, start);
        let mut digits = |at: &mut usize| {
            while let Some(byte @ b'0'..=b'9') = text.get(*at) {
                // An overflow implies too many digits.
                mantissa = mantissa.wrapping_mul(10).wrapping_add(u64::from(byte - b'0'));
                *at += 1;
            }
        };
        digits(&mut at);
        let mut decimals = 0;
        let mut count = at - start;
        if text.get(at) == Some(&b'.') {
            at += 1;
            let point = at;
            digits(&mut at);
            decimals = at - point;
            count += decimals;
        }
        if count == 0 || count > 15 {
            return None;
        }
        let number = mantissa as f64;
        // Most values have no decimals, and a division takes longer than all the rest.
        let number = if decimals == 0 { number } else { number / POWERS[decimals] };
        let number = if text[0] == b'-' { -number } else { number };
        Some(Self { number, is_signed, length: at })
    }
}

const POWERS: [f64; 16] =
    [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15];

#[cold]
fn any_number(text: &[u8]) -> Result<f64, RejectReason> {
    let number = match text {
        [b'0', b'x' | b'X', digits @ ..] => radix(digits, 16.0),
        [b'0', b'o' | b'O', digits @ ..] => radix(digits, 8.0),
        [b'0', b'b' | b'B', digits @ ..] => radix(digits, 2.0),
        b"Infinity" | b"+Infinity" | b"-Infinity" => Some(f64::INFINITY),
        _ => decimal(text),
    };
    match number {
        None => Err(RejectReason::NotANumber),
        Some(number) if number.is_finite() => Ok(number),
        Some(_) => Err(RejectReason::NotFinite),
    }
}

fn decimal(text: &[u8]) -> Option<f64> {
    // Rust's parser also accepts `inf` and `nan`; JavaScript's does not.
    let is_decimal = |byte: &u8| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
    if !text.iter().all(is_decimal) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn radix(digits: &[u8], radix: f64) -> Option<f64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0.0, |number, byte| {
        let digit = f64::from(char::from(*byte).to_digit(16)?);
        (digit < radix).then_some(number * radix + digit)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn javascript_syntax_is_accepted() {
        let cases: [(&str, f64); 17] = [
            ("1", 1.0),
            ("-1", -1.0),
            ("+1.5", 1.5),
            (".5", 0.5),
            ("5.", 5.0),
            ("007", 7.0),
            ("1e3", 1000.0),
            ("-1.5E-2", -0.015),
            (" 5 ", 5.0),
            ("\t5\r", 5.0),
            ("0x10", 16.0),
            ("0XfF", 255.0),
            ("0b101", 5.0),
            ("0o17", 15.0),
            ("123456789012345", 123_456_789_012_345.0),
            ("1234567890123456789", 1_234_567_890_123_456_800.0),
            ("0.1234567890123456789", 0.123_456_789_012_345_68),
        ];
        for (text, expected) in cases {
            assert_eq!(number(text.as_bytes()), Ok(expected), "{text}");
        }
    }

    #[test]
    fn invalid_text_reports_reason() {
        for text in
            ["", " ", "-", "+", ".", "abc", "1_000", "0,5", "1e", "0x", "0b2", "-0x1", "nan"]
        {
            assert_eq!(number(text.as_bytes()), Err(RejectReason::NotANumber), "{text:?}");
        }
        for text in ["Infinity", "-Infinity", "1e999", "-1e999"] {
            assert_eq!(number(text.as_bytes()), Err(RejectReason::NotFinite), "{text:?}");
        }
        assert_eq!(number(b"inf"), Err(RejectReason::NotANumber));
    }

    proptest! {
        #[test]
        fn short_decimals_match_full_parser(text in "[+-]?[0-9]{0,12}(\\.[0-9]{0,8})?") {
            let slow: Option<f64> = text.parse().ok();
            prop_assert_eq!(number(text.as_bytes()).ok().map(f64::to_bits), slow.map(f64::to_bits));
        }
    }
}
