//! Names of roles, databases and applications, which are bytes to a server, as texts.

use std::borrow::Cow;

/// The text that stands for a name. Nearly always it is the name.
///
/// A server compares names byte by byte, in no encoding: those of a LATIN1 database need not be UTF-8.
/// A byte that is not is written `\xhh`, with two small hexadecimal digits; a backslash that has an `x`
/// behind it is written `\x5c`. So different names have different texts, and [`name_bytes`] gives the
/// name again.
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

/// The name that a text of [`name_text`] stands for. What is no escape stands for itself.
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
/// What stands for an [`ESCAPE`] that is part of a name.
const ESCAPED: &str = r"\x5cx";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_that_look_like_escapes_are_told_from_them() {
        assert_eq!(name_text(br"caf\xe9"), r"caf\x5cxe9");
        assert_eq!(name_text(b"\\\xe9"), r"\\xe9");
        assert_eq!(*name_bytes(r"\\xe9"), *b"\\\xe9");
        assert_eq!(*name_bytes(r"\x+1\xg\x"), *br"\x+1\xg\x");
    }

    proptest! {
        #[test]
        fn no_name_is_lost(name in prop::collection::vec(
            prop_oneof![any::<u8>(), prop::sample::select(&b"\\x5c\xe9a0"[..])], 0..30)
        ) {
            let text = name_text(&name);
            prop_assert_eq!(name_bytes(&text), &name[..]);
        }
    }
}
