//! JSON: strings, names and numbers are replaced one by one, and all else is preserved.

use serde::de::IgnoredAny;

use super::super::stream::hide_exponent;

/// Returns the replacement of an object, an array or a string of JSON; `None` if the value is not
/// valid JSON of these kinds.
pub(super) fn redact(value: &[u8], redact: &dyn Fn(&[u8]) -> Vec<u8>) -> Option<Vec<u8>> {
    if !matches!(value.first()?, b'{' | b'[' | b'"') {
        return None;
    }
    serde_json::from_slice::<IgnoredAny>(value).ok()?;
    let mut out = Vec::with_capacity(value.len());
    let mut rest = value;
    while let Some(byte) = rest.first() {
        let len = match byte {
            b'"' => string_len(rest)?,
            b'-' | b'0'..=b'9' => {
                rest.iter().take_while(|byte| b"+-.0123456789eE".contains(byte)).count()
            }
            // `true`, `false`, `null`, spaces and punctuation.
            _ => 1,
        };
        let (token, after) = rest.split_at(len);
        match byte {
            b'"' => {
                let text: String = serde_json::from_slice(token).ok()?;
                let redacted = redact(text.as_bytes());
                let text = String::from_utf8_lossy(&redacted);
                out.extend(serde_json::to_vec(&*text).ok()?);
            }
            b'-' | b'0'..=b'9' => push_number(token, redact, &mut out),
            _ => out.extend_from_slice(token),
        }
        rest = after;
    }
    Some(out)
}

/// Returns the length of a string with its quotes.
fn string_len(text: &[u8]) -> Option<usize> {
    let mut at = 1;
    loop {
        match text.get(at)? {
            b'\\' => at += 2,
            b'"' => return Some(at + 1),
            _ => at += 1,
        }
    }
}

/// Redacts a number; an exponent of up to three digits keeps its magnitude.
fn push_number(number: &[u8], redact: &dyn Fn(&[u8]) -> Vec<u8>, out: &mut Vec<u8>) {
    let end = number.iter().position(|byte| b"eE".contains(byte)).unwrap_or(number.len());
    let (mantissa, exponent) = number.split_at(end);
    out.extend(redact(mantissa));
    let start = out.len() + exponent.len().min(1);
    out.extend_from_slice(exponent);
    let sign = usize::from(matches!(exponent.get(1), Some(b'+' | b'-')));
    if let Some(digits) = out.get_mut(start + sign..) {
        hide_exponent(digits);
    }
}
