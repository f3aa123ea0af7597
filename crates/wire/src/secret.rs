//! Bytes that must not be printed or left in memory.

use std::fmt;

use zeroize::Zeroizing;

/// A password or another secret.
///
/// `Debug` shows a placeholder and `Display` is not implemented; the bytes are accessible only
/// through [`Secret::expose`], which is easy to search for. They are overwritten when the value is
/// dropped. That covers this value and its clones, not copies made elsewhere.
#[derive(Clone)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Returns the bytes.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl From<Vec<u8>> for Secret {
    /// Takes ownership of the bytes, without a copy.
    fn from(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }
}

impl From<String> for Secret {
    /// Takes ownership of the text, without a copy.
    fn from(text: String) -> Self {
        Self::from(text.into_bytes())
    }
}

impl From<&[u8]> for Secret {
    fn from(bytes: &[u8]) -> Self {
        Self::from(bytes.to_vec())
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self::from(text.as_bytes())
    }
}

#[test]
fn debug_hides_secret() {
    let secret = Secret::from("tr0ub4dor");
    assert_eq!(format!("{secret:?}"), "Secret(…)");
    assert_eq!(secret.expose(), b"tr0ub4dor");
}
