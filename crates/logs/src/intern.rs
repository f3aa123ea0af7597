//! Shared copies of texts that come again and again.

use howdah_traffic::{Hashed, Text};

use crate::hashing::Map;

/// Gives equal texts the same memory, within a bound.
#[derive(Debug, Default)]
pub(crate) struct Interner {
    texts: Map<u64, Text>,
    bytes: usize,
}

impl Interner {
    /// A text with these bytes.
    pub(crate) fn text(&mut self, text: Hashed<'_>) -> Text {
        let (bytes, key) = (text.as_bytes(), text.hash());
        if bytes.len() > TEXT_BYTES_MAX {
            return Text::from(bytes);
        }
        if let Some(text) = self.texts.get(&key)
            && text.as_bytes() == bytes
        {
            return text.clone();
        }
        let text = Text::from(bytes);
        if self.bytes > BYTES_MAX {
            // Statements with literals would fill any store; what is frequent is soon back.
            self.texts.clear();
            self.bytes = 0;
        }
        self.bytes += bytes.len() + ENTRY_BYTES;
        self.texts.insert(key, text.clone());
        text
    }
}

/// Longer texts are rarely repeated enough to be worth keeping.
const TEXT_BYTES_MAX: usize = 16 << 10;
/// About how much is kept.
const BYTES_MAX: usize = 32 << 20;
/// About what an entry costs beside its bytes.
const ENTRY_BYTES: usize = 64;

#[test]
fn equal_texts_share_and_memory_is_bounded() {
    let mut interner = Interner::default();
    let first = interner.text(Hashed::new(b"select 1"));
    let again = interner.text(Hashed::new(b"select 1"));
    assert!(std::ptr::eq(first.as_bytes(), again.as_bytes()));
    for number in 0..10_000 {
        interner.text(Hashed::new(format!("{number}{}", "x".repeat(8000)).as_bytes()));
    }
    assert!(interner.bytes <= BYTES_MAX + TEXT_BYTES_MAX + ENTRY_BYTES);
}
