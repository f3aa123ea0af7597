//! [`ParameterizedCache`]: the results of analyzing recent texts.
//!
//! The first lookup is by the exact text: for an application that sends the same text with bound
//! values, it costs one hash and one comparison. The second lookup is by the [`ParameterizedText`],
//! so that texts that differ only in constants share a result. Entries are found by hash and then
//! compared by text, so two texts are never confused.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

use xxhash_rust::xxh3::xxh3_64;

use crate::ParameterizedText;

/// Results of analyzing texts, in two generations. When the young generation is full, it becomes
/// the old one, and the previous old one is dropped.
#[derive(Debug)]
pub struct ParameterizedCache<V> {
    young: ResultGeneration<V>,
    old: ResultGeneration<V>,
    bytes_max: usize,
    parameterized: ParameterizedText,
}

/// The result of analyzing a text.
#[derive(Clone, Debug)]
pub struct Analyzed<V> {
    /// The result.
    pub value: V,
    /// Whether the result applies to this exact text only, not to texts that differ in constants.
    pub is_exact: bool,
}

#[derive(Debug)]
struct ResultGeneration<V> {
    /// Results by the hash of their text. If two texts have the same hash, the later one replaces
    /// the earlier.
    entries: HashMap<u64, (Box<[u8]>, V), BuildHasherDefault<IdentityHasher>>,
    bytes: usize,
}

/// Approximate bytes of an entry in addition to its text: the result, pointers, unused table
/// capacity.
const ENTRY_BYTES: usize = 512;

impl<V: Clone> ParameterizedCache<V> {
    /// Creates a cache of up to about `bytes` bytes.
    pub fn with_capacity(bytes: usize) -> Self {
        Self {
            young: ResultGeneration::default(),
            old: ResultGeneration::default(),
            bytes_max: bytes,
            parameterized: ParameterizedText::default(),
        }
    }

    /// Returns the result for a text, which `analyze` computes if it is not cached. If the result
    /// refers to constants, [`Self::parameterized`] has their positions in this text afterwards.
    #[inline]
    pub fn get_or_analyze(
        &mut self,
        sql: &[u8],
        analyze: impl FnOnce(&[u8], &ParameterizedText) -> Analyzed<V>,
    ) -> V {
        let hash = xxh3_64(sql);
        if let Some(value) = self.find(hash, sql) {
            // A result cached by exact text refers to no extracted constants.
            self.parameterized.read(b"");
            return value;
        }
        self.parameterized.read(sql);
        let has_constants = !self.parameterized.constants().is_empty();
        let parameterized_hash = xxh3_64(self.parameterized.bytes());
        if has_constants && self.parameterized.is_complete() {
            // A parameterized text contains bytes that a plain text has only inside quotes, so both
            // kinds can share one table.
            let parameterized = std::mem::take(&mut self.parameterized);
            let found = self.find(parameterized_hash, parameterized.bytes());
            self.parameterized = parameterized;
            if let Some(value) = found {
                return value;
            }
        }
        let Analyzed { value, is_exact } = analyze(sql, &self.parameterized);
        if !is_exact && has_constants {
            let parameterized = std::mem::take(&mut self.parameterized);
            self.remember(parameterized_hash, parameterized.bytes(), &value);
            self.parameterized = parameterized;
        } else if !has_constants {
            self.remember(hash, sql, &value);
        }
        value
    }

    /// Returns the parameterized text that the last call of [`Self::get_or_analyze`] has read; it
    /// is empty if the result was found by the exact text.
    pub fn parameterized(&self) -> &ParameterizedText {
        &self.parameterized
    }

    /// Returns the approximate number of bytes in use.
    pub fn bytes(&self) -> usize {
        self.young.bytes + self.old.bytes
    }

    #[inline]
    fn find(&mut self, hash: u64, text: &[u8]) -> Option<V> {
        if let Some(value) = self.young.find(hash, text) {
            return Some(value.clone());
        }
        let value = self.old.find(hash, text)?.clone();
        self.remember(hash, text, &value);
        Some(value)
    }

    fn remember(&mut self, hash: u64, text: &[u8], value: &V) {
        if text.len() > self.bytes_max / 16 {
            return;
        }
        if self.young.bytes > self.bytes_max / 2 {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(hash, text, value);
    }
}

impl<V> Default for ResultGeneration<V> {
    fn default() -> Self {
        Self { entries: HashMap::default(), bytes: 0 }
    }
}

impl<V: Clone> ResultGeneration<V> {
    fn find(&self, hash: u64, text: &[u8]) -> Option<&V> {
        self.entries.get(&hash).filter(|(known, _)| **known == *text).map(|(_, value)| value)
    }

    fn insert(&mut self, hash: u64, text: &[u8], value: &V) {
        // Counting the text several times covers results that are long if their texts are.
        self.bytes += ENTRY_BYTES + text.len() * 8;
        if let Some((text, _)) = self.entries.insert(hash, (text.into(), value.clone())) {
            self.bytes -= ENTRY_BYTES + text.len() * 8;
        }
    }
}

/// A hasher that returns its `u64` key, which is a hash already.
#[derive(Debug, Default)]
struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64(bytes);
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

#[test]
fn cache_memory_is_bounded_and_results_are_stable() {
    let mut cache = ParameterizedCache::with_capacity(100_000);
    let analyze = |sql: &[u8], _: &ParameterizedText| Analyzed {
        value: sql.starts_with(b"delete"),
        is_exact: false,
    };
    for id in 0..1000 {
        let sql = format!("select c{} from t where a = {id}", id % 300);
        assert!(!cache.get_or_analyze(sql.as_bytes(), analyze));
        assert_eq!(cache.parameterized().constants().len(), 1);
        assert!(cache.bytes() < 110_000);
    }
    for sql in [&b"delete from t where a = 1"[..], b"delete from t"] {
        for _ in 0..2 {
            assert!(cache.get_or_analyze(sql, analyze));
        }
    }
}

#[test]
fn results_are_shared_by_texts_that_differ_in_constants_unless_exact() {
    for is_exact in [false, true] {
        let mut analyzed = 0;
        let mut cache = ParameterizedCache::with_capacity(100_000);
        for sql in [&b"select 1"[..], b"select 2", b"select 1"] {
            cache.get_or_analyze(sql, |_, _| {
                analyzed += 1;
                Analyzed { value: (), is_exact }
            });
        }
        assert_eq!(analyzed, if is_exact { 3 } else { 1 });
    }
}
