//! Caches how texts of steps are split into name and statement.
//!
//! `S_1: select …` repeats in every session of a driver. The position where its name ends depends
//! only on the text, unless the session has unusual names. So recent texts are cached with their
//! split: one comparison replaces splitting the text and hashing the statement.

use howdah_traffic::Hashed;

use super::names::{normalize_name, unambiguous_statement_len};

/// A cache of recently split texts of all sessions.
#[derive(Debug, Default)]
pub(crate) struct SplitCache {
    slots: Vec<CachedSplit>,
}

#[derive(Clone, Debug, Default)]
struct CachedSplit {
    /// Empty if the slot is free.
    text: Vec<u8>,
    /// Offset of the statement in the text, and its hash.
    sql: usize,
    hash: u64,
}

/// Number of slots; drivers prepare some hundreds of statements.
const SLOTS: usize = 512;

/// Longest text that is cached, in bytes, which limits the cache to a megabyte.
const TEXT_BYTES_MAX: usize = 2048;

impl SplitCache {
    /// Splits an unambiguous text without a portal into name and statement; the name is empty for
    /// the unnamed statement. Returns `None` for other texts and for very short ones.
    #[inline]
    pub(crate) fn split<'a>(&mut self, text: &'a [u8]) -> Option<(&'a [u8], Hashed<'a>)> {
        let slot = slot(text)?;
        if let Some(entry) = self.slots.get(slot)
            && entry.text == text
        {
            let (name, sql) = (&text[..entry.sql - 2], &text[entry.sql..]);
            return Some((normalize_name(name), Hashed::with_hash(sql, entry.hash)));
        }
        self.insert(slot, text)
    }

    /// Splits a text, and caches the result unless the text is too long.
    #[inline(never)]
    fn insert<'a>(&mut self, slot: usize, text: &'a [u8]) -> Option<(&'a [u8], Hashed<'a>)> {
        let name = unambiguous_statement_len(text)?;
        let sql = Hashed::new(text.get(name + 2..)?);
        if text.len() <= TEXT_BYTES_MAX {
            self.slots.resize(SLOTS, CachedSplit::default());
            let entry = &mut self.slots[slot];
            entry.text.clear();
            entry.text.extend_from_slice(text);
            (entry.sql, entry.hash) = (name + 2, sql.hash());
        }
        Some((normalize_name(&text[..name]), sql))
    }
}

/// Returns the slot of a text, computed from its ends and its length; `None` if it has less than
/// eight bytes.
#[inline]
fn slot(text: &[u8]) -> Option<usize> {
    let front = u64::from_le_bytes(*text.first_chunk()?);
    let back = u64::from_le_bytes(*text.last_chunk()?);
    let mixed = front ^ back.rotate_left(29) ^ text.len() as u64;
    Some((mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 55) as usize % SLOTS)
}

#[test]
fn cached_split_equals_first_split() {
    let mut splits = SplitCache::default();
    let long = format!("S_2: select {}", "x".repeat(TEXT_BYTES_MAX));
    for (text, name, sql) in [
        ("S_1: select 1", "S_1", "select 1"),
        ("<unnamed>: select 1", "", "select 1"),
        (long.as_str(), "S_2", &long[5..]),
    ] {
        for _ in 0..2 {
            let expected = (name.as_bytes(), Hashed::new(sql.as_bytes()));
            assert_eq!(splits.split(text.as_bytes()), Some(expected), "{text}");
        }
    }
    for ambiguous in ["S_1/C_1: select 1", "a b: select 1", "S_1: x: select 1", "S_1"] {
        assert_eq!(splits.split(ambiguous.as_bytes()), None, "{ambiguous}");
    }
}
