//! [`Fingerprinter`]: computes fingerprints and normal forms, with a cache.

use std::{collections::HashMap, sync::Arc};

use xxhash_rust::xxh3::xxh3_64;

use crate::{Fingerprint, normal::normalize_into};

/// The shape of a statement: its fingerprint and normal form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedShape {
    /// Hash of the normal form.
    pub fingerprint: Fingerprint,
    /// The normal form: the statement with literals replaced, and without comments and formatting.
    pub normal: Arc<str>,
}

/// Computes fingerprints and normal forms, and caches those of recent texts.
///
/// For an application that sends the same text with bound values, the cost is one hash and one
/// comparison of the text. Texts with literals are mostly new each time, but their normal forms are
/// stored only once.
///
/// Memory is bounded: the cache consists of two generations of half the limit each. When the young
/// generation is full, it replaces the old one, so a text that is used at least once per generation
/// stays cached.
///
/// ```
/// let mut fingerprinter = howdah_sql::Fingerprinter::with_capacity(1 << 20);
/// let shape = fingerprinter.shape(b"SELECT 1");
/// assert_eq!(&*shape.normal, "select ?");
/// assert_eq!(shape.fingerprint, howdah_sql::fingerprint(b"select 2"));
/// ```
#[derive(Debug)]
pub struct Fingerprinter {
    young: Generation,
    old: Generation,
    bytes_max: usize,
    scratch: String,
}

#[derive(Debug, Default)]
struct Generation {
    /// Shapes by the hash of the text. If two texts have the same hash, the later one replaces the
    /// earlier.
    texts: HashMap<u64, (Box<[u8]>, CachedShape)>,
    shapes: HashMap<Fingerprint, Arc<str>>,
    bytes: usize,
}

/// Approximate bytes of an entry in addition to its text: keys, pointers and unused table capacity.
const ENTRY_BYTES: usize = 96;

impl Default for Fingerprinter {
    /// Creates a cache of up to 16 MiB.
    fn default() -> Self {
        Self::with_capacity(16 << 20)
    }
}

impl Fingerprinter {
    /// Creates a cache of up to about `bytes` bytes. A text longer than a sixteenth of that is not
    /// cached.
    pub fn with_capacity(bytes: usize) -> Self {
        Self {
            young: Generation::default(),
            old: Generation::default(),
            bytes_max: bytes,
            scratch: String::new(),
        }
    }

    /// Returns the shape of `sql`, from the cache if possible.
    pub fn shape(&mut self, sql: &[u8]) -> CachedShape {
        let hash = xxh3_64(sql);
        if let Some(shape) = self.young.text(hash, sql) {
            return shape.clone();
        }
        let shape = match self.old.text(hash, sql) {
            Some(shape) => shape.clone(),
            None => self.compute(sql),
        };
        if sql.len() <= self.bytes_max / 16 {
            self.remember(hash, sql, &shape);
        }
        shape
    }

    fn compute(&mut self, sql: &[u8]) -> CachedShape {
        normalize_into(sql, &mut self.scratch);
        let fingerprint = Fingerprint::from_normal_form(&self.scratch);
        let shared =
            self.young.shapes.get(&fingerprint).or_else(|| self.old.shapes.get(&fingerprint));
        let normal = shared.cloned().unwrap_or_else(|| self.scratch.as_str().into());
        if self.scratch.capacity() > self.bytes_max / 4 {
            self.scratch = String::new();
        }
        CachedShape { fingerprint, normal }
    }

    fn remember(&mut self, hash: u64, sql: &[u8], shape: &CachedShape) {
        if self.young.bytes > self.bytes_max / 2 {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(hash, sql, shape);
    }
}

impl Generation {
    fn text(&self, hash: u64, sql: &[u8]) -> Option<&CachedShape> {
        self.texts.get(&hash).filter(|(text, _)| **text == *sql).map(|(_, shape)| shape)
    }

    fn insert(&mut self, hash: u64, sql: &[u8], shape: &CachedShape) {
        self.bytes += ENTRY_BYTES + sql.len();
        if let Some((text, _)) = self.texts.insert(hash, (sql.into(), shape.clone())) {
            self.bytes -= ENTRY_BYTES + text.len();
        }
        if self.shapes.insert(shape.fingerprint, shape.normal.clone()).is_none() {
            self.bytes += ENTRY_BYTES + shape.normal.len();
        }
    }
}

#[test]
fn cached_shape_equals_computed_shape() {
    let mut fingerprinter = Fingerprinter::with_capacity(4096);
    for round in 0..3 {
        for id in 0..500 {
            let sql = format!("select {id} from t{}", id % 50);
            let shape = fingerprinter.shape(sql.as_bytes());
            assert_eq!(shape.fingerprint, crate::fingerprint(sql.as_bytes()), "round {round}");
            assert_eq!(*shape.normal, crate::normalize(sql.as_bytes()));
        }
    }
}

#[test]
fn cache_memory_is_bounded() {
    let mut fingerprinter = Fingerprinter::with_capacity(10_000);
    for id in 0..10_000 {
        fingerprinter.shape(format!("select c{id} from t").as_bytes());
        assert!(fingerprinter.young.bytes + fingerprinter.old.bytes < 11_000);
    }
    fingerprinter.shape(&vec![b'a'; 1_000_000]);
    assert!(fingerprinter.young.bytes + fingerprinter.old.bytes < 11_000);
}

#[test]
fn texts_of_equal_shape_share_normal_form() {
    let mut fingerprinter = Fingerprinter::default();
    let (one, two) = (fingerprinter.shape(b"select 1"), fingerprinter.shape(b"select 2"));
    assert!(Arc::ptr_eq(&one.normal, &two.normal));
}
