//! Text as a server wrote it: bytes in the database's encoding, not necessarily UTF-8.

use std::{borrow::Cow, fmt, sync::Arc};

/// Bytes that a client or a server meant as text.
///
/// A PostgreSQL log holds each line in the encoding of its own database, so one file may mix
/// encodings and no conversion is safe. The bytes are kept as they are; [`Text::to_str_lossy`] is
/// for people, [`Text::as_bytes`] is for replay. Cloning shares the bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Text(Arc<[u8]>);

impl Text {
    /// The bytes, unchanged.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The text, if it is valid UTF-8.
    pub fn to_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }

    /// The text for a person, with U+FFFD where the bytes are not UTF-8.
    pub fn to_str_lossy(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_str_lossy(), f)
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.to_str_lossy())
    }
}

impl From<&[u8]> for Text {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }
}

impl From<Vec<u8>> for Text {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().into())
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self(text.into_bytes().into())
    }
}

#[test]
fn bytes_that_are_not_utf8_survive() {
    let text = Text::from(&b"caf\xe9"[..]);
    assert_eq!(text.as_bytes(), b"caf\xe9");
    assert_eq!(text.to_str(), None);
    assert_eq!(text.to_string(), "caf\u{fffd}");
}
