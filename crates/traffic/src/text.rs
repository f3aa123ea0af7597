//! [`Text`]: text as bytes in the encoding of the database, not necessarily UTF-8.

use std::{
    borrow::Cow,
    cmp::Ordering,
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

/// Bytes that a client or a server sent: usually text, sometimes a value in binary format.
///
/// A PostgreSQL log contains each line in the encoding of its database, so one file may mix
/// encodings and no conversion is safe. The bytes are stored unchanged; [`Text::to_str_lossy`] is
/// for display, [`Text::as_bytes`] is for replay. Cloning shares the bytes, or copies them if they
/// are few.
#[derive(Clone)]
pub struct Text(TextBytes);

/// The bytes of a [`Text`]. Short ones are stored inline, since most values and names are short,
/// and there are millions of them.
#[derive(Clone)]
enum TextBytes {
    Short { len: u8, bytes: [u8; SHORT_BYTES] },
    Long(Arc<[u8]>),
}

/// Maximum length of a text stored inline: it fits, with its length, into three words.
const SHORT_BYTES: usize = 22;

impl Text {
    /// Returns the bytes, unchanged.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            TextBytes::Short { len, bytes } => bytes.get(..usize::from(*len)).unwrap_or_default(),
            TextBytes::Long(bytes) => bytes,
        }
    }

    fn short(text: &[u8]) -> Option<Self> {
        let mut bytes = [0; SHORT_BYTES];
        bytes.get_mut(..text.len())?.copy_from_slice(text);
        Some(Self(TextBytes::Short { len: text.len() as u8, bytes }))
    }

    /// Returns the text, if it is valid UTF-8.
    pub fn to_str(&self) -> Option<&str> {
        std::str::from_utf8(self.as_bytes()).ok()
    }

    /// Returns the text for display, with U+FFFD where the bytes are not UTF-8.
    pub fn to_str_lossy(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(self.as_bytes())
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.as_bytes().len()
    }

    /// Whether the text is empty.
    pub fn is_empty(&self) -> bool {
        self.as_bytes().is_empty()
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

impl Default for Text {
    fn default() -> Self {
        Self(TextBytes::Short { len: 0, bytes: [0; SHORT_BYTES] })
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Text {}

impl PartialOrd for Text {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Text {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl Hash for Text {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl From<&[u8]> for Text {
    fn from(bytes: &[u8]) -> Self {
        Self::short(bytes).unwrap_or_else(|| Self(TextBytes::Long(bytes.into())))
    }
}

impl From<Vec<u8>> for Text {
    fn from(bytes: Vec<u8>) -> Self {
        Self::short(&bytes).unwrap_or_else(|| Self(TextBytes::Long(bytes.into())))
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self::from(text.as_bytes())
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self::from(text.into_bytes())
    }
}

#[test]
fn short_and_long_texts_preserve_content() {
    assert_eq!(size_of::<Text>(), 24);
    for len in 0..40 {
        let text = "x".repeat(len);
        let texts = [Text::from(text.as_str()), Text::from(text.clone()), text.as_bytes().into()];
        for one in &texts {
            assert_eq!((one.as_bytes(), one.len()), (text.as_bytes(), len));
            assert_eq!((one, one.is_empty()), (&texts[0].clone(), len == 0));
            assert!(*one < Text::from(format!("{text}y")));
        }
    }
    assert_eq!(Text::default(), Text::from(""));
}

#[test]
fn invalid_utf8_is_preserved() {
    let text = Text::from(&b"caf\xe9"[..]);
    assert_eq!(text.as_bytes(), b"caf\xe9");
    assert_eq!(text.to_str(), None);
    assert_eq!(text.to_string(), "caf\u{fffd}");
}
