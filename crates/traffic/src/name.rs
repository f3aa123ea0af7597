//! Converts names of roles, databases and applications, which are bytes for a server, to text and
//! back.

use std::borrow::Cow;

/// Returns the text form of a name, which is usually the name itself.
///
/// A server compares names byte by byte without an encoding: names of a LATIN1 database need not be
/// UTF-8. A byte that is not valid UTF-8 is written as `\xhh`, with two lower-case hexadecimal
/// digits; a backslash followed by `x` is written as `\x5cx`. So different names have different
/// texts, and [`name_bytes`] restores the name.
///
/// ```
/// use howdah_traffic::{name_bytes, name_text};
///
/// assert_eq!(name_text(b"shop"), "shop");
/// assert_eq!(name_text(b"caf\xe9"), r"caf\xe9");
/// assert_eq!(*name_bytes(r"caf\xe9"), *b"caf\xe9");
/// ```
pub fn name_text(name: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(name)
        && !text.contains(ESCAPE)
    {
        return Cow::Borrowed(text);
    }
    let mut text = String::with_capacity(name.len() + 8);
    for chunk in name.utf8_chunks() {
        text += &chunk.valid().replace(ESCAPE, ESCAPED);
        for byte in chunk.invalid() {
            text += &format!("{ESCAPE}{byte:02x}");
        }
    }
    Cow::Owned(text)
}

/// Returns the name for a text from [`name_text`]. Text that is not an escape is copied.
pub fn name_bytes(text: &str) -> Cow<'_, [u8]> {
    if !text.contains(ESCAPE) {
        return Cow::Borrowed(text.as_bytes());
    }
    let mut name = Vec::with_capacity(text.len());
    let mut parts = text.split(ESCAPE);
    name.extend_from_slice(parts.next().unwrap_or_default().as_bytes());
    for part in parts {
        let digits = part.get(..2).filter(|two| two.bytes().all(|it| it.is_ascii_hexdigit()));
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                name.push(byte);
                name.extend_from_slice(&part.as_bytes()[2..]);
            }
            None => name.extend([ESCAPE.as_bytes(), part.as_bytes()].concat()),
        }
    }
    Cow::Owned(name)
}

const ESCAPE: &str = r"\x";
/// The text form of an [`ESCAPE`] that is part of the name itself.
const ESCAPED: &str = r"\x5cx";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_resembling_escapes_are_escaped() {
        assert_eq!(name_text(br"caf\xe9"), r"caf\x5cxe9");
        assert_eq!(name_text(b"\\\xe9"), r"\\xe9");
        assert_eq!(*name_bytes(r"\\xe9"), *b"\\\xe9");
        assert_eq!(*name_bytes(r"\x+1\xg\x"), *br"\x+1\xg\x");
    }

    proptest! {
        #[test]
        fn names_round_trip(name in prop::collection::vec(
            prop_oneof![any::<u8>(), prop::sample::select(&b"\\x5c\xe9a0"[..])], 0..30)
        ) {
            let text = name_text(&name);
            prop_assert_eq!(name_bytes(&text), &name[..]);
        }
    }
}
