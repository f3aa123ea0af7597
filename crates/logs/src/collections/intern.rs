//! Stores repeated texts once, and shares them.

use howdah_traffic::{Hashed, Text};

use super::hashing::Map;

/// A cache that lets equal texts share memory, for callers that store [borrowed
/// events](howdah_traffic::EventRef::to_event). It is cleared when it exceeds 32 MiB.
#[derive(Debug, Default)]
pub struct Interner {
    texts: Map<u64, Text>,
    bytes: usize,
}

impl Interner {
    /// Returns a shared text with these bytes, from the cache if it is there.
    pub fn text(&mut self, text: Hashed<'_>) -> Text {
        let (bytes, key) = (text.as_bytes(), text.hash());
        // Short texts have no heap memory to share.
        if bytes.len() < TEXT_BYTES_MIN || bytes.len() > TEXT_BYTES_MAX {
            return Text::from(bytes);
        }
        if let Some(text) = self.texts.get(&key)
            && text.as_bytes() == bytes
        {
            return text.clone();
        }
        let text = Text::from(bytes);
        if self.bytes > BYTES_MAX {
            // Clearing everything is enough: statements with literals would fill any cache, and
            // frequent texts soon return.
            self.texts.clear();
            self.bytes = 0;
        }
        self.bytes += bytes.len() + ENTRY_BYTES;
        self.texts.insert(key, text.clone());
        text
    }
}

/// Minimum length of a cached text, in bytes. Shorter ones have hardly any heap memory to share.
const TEXT_BYTES_MIN: usize = 24;
/// Maximum length of a cached text, in bytes. Longer ones rarely repeat.
const TEXT_BYTES_MAX: usize = 16 << 10;
/// Approximate maximum size of the cache, in bytes.
const BYTES_MAX: usize = 32 << 20;
/// Approximate overhead of an entry, in bytes.
const ENTRY_BYTES: usize = 64;

#[test]
fn equal_texts_share_bounded_memory() {
    let mut interner = Interner::default();
    let first = interner.text(Hashed::new(b"select balance from accounts"));
    let again = interner.text(Hashed::new(b"select balance from accounts"));
    assert!(std::ptr::eq(first.as_bytes(), again.as_bytes()));
    for number in 0..10_000 {
        interner.text(Hashed::new(format!("{number}{}", "x".repeat(8000)).as_bytes()));
    }
    assert!(interner.bytes <= BYTES_MAX + TEXT_BYTES_MAX + ENTRY_BYTES);
}
