//! [`Fingerprinter`]: fingerprints with a memory.

use std::{collections::HashMap, sync::Arc};

use xxhash_rust::xxh3::xxh3_64;

use crate::{Fingerprint, normal::normalize_into};

/// The shape of a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// Names the shape.
    pub fingerprint: Fingerprint,
    /// The normal form.
    pub normal: Arc<str>,
}

/// Finds fingerprints and normal forms, and remembers those of recent texts.
///
/// An application that binds its values sends the same text again and again: then the cost is one
/// hash and one comparison of the text. Texts with literals in them are mostly new each time; their
/// normal forms are still shared.
///
/// Memory is bounded: what is remembered fills two generations of half the limit each; when the
/// young one is full, the old one is forgotten, so a text used at least once per generation stays.
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
    /// By hash of the text. Of two texts with one hash, the later is remembered.
    texts: HashMap<u64, (Box<[u8]>, Known)>,
    shapes: HashMap<Fingerprint, Arc<str>>,
    bytes: usize,
}

/// What an entry costs beside its text: keys, pointers and the table's spare room, roughly.
const ENTRY_BYTES: usize = 96;

impl Default for Fingerprinter {
    /// Remembers up to 16 MiB.
    fn default() -> Self {
        Self::with_capacity(16 << 20)
    }
}

impl Fingerprinter {
    /// Remembers up to about `bytes`. A text of more than a sixteenth of that is not remembered.
    pub fn with_capacity(bytes: usize) -> Self {
        Self {
            young: Generation::default(),
            old: Generation::default(),
            bytes_max: bytes,
            scratch: String::new(),
        }
    }

    /// The shape of `sql`.
    pub fn shape(&mut self, sql: &[u8]) -> Known {
        let hash = xxh3_64(sql);
        if let Some(known) = self.young.text(hash, sql) {
            return known.clone();
        }
        let known = match self.old.text(hash, sql) {
            Some(known) => known.clone(),
            None => self.compute(sql),
        };
        if sql.len() <= self.bytes_max / 16 {
            self.remember(hash, sql, &known);
        }
        known
    }

    fn compute(&mut self, sql: &[u8]) -> Known {
        normalize_into(sql, &mut self.scratch);
        let fingerprint = Fingerprint::of_normal_form(&self.scratch);
        let shared =
            self.young.shapes.get(&fingerprint).or_else(|| self.old.shapes.get(&fingerprint));
        let normal = shared.cloned().unwrap_or_else(|| self.scratch.as_str().into());
        if self.scratch.capacity() > self.bytes_max / 4 {
            self.scratch = String::new();
        }
        Known { fingerprint, normal }
    }

    fn remember(&mut self, hash: u64, sql: &[u8], known: &Known) {
        if self.young.bytes > self.bytes_max / 2 {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(hash, sql, known);
    }
}

impl Generation {
    fn text(&self, hash: u64, sql: &[u8]) -> Option<&Known> {
        self.texts.get(&hash).filter(|(text, _)| **text == *sql).map(|(_, known)| known)
    }

    fn insert(&mut self, hash: u64, sql: &[u8], known: &Known) {
        self.bytes += ENTRY_BYTES + sql.len();
        if let Some((text, _)) = self.texts.insert(hash, (sql.into(), known.clone())) {
            self.bytes -= ENTRY_BYTES + text.len();
        }
        if self.shapes.insert(known.fingerprint, known.normal.clone()).is_none() {
            self.bytes += ENTRY_BYTES + known.normal.len();
        }
    }
}

#[test]
fn a_remembered_shape_is_the_computed_one() {
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
fn memory_stays_bounded() {
    let mut fingerprinter = Fingerprinter::with_capacity(10_000);
    for id in 0..10_000 {
        fingerprinter.shape(format!("select c{id} from t").as_bytes());
        assert!(fingerprinter.young.bytes + fingerprinter.old.bytes < 11_000);
    }
    fingerprinter.shape(&vec![b'a'; 1_000_000]);
    assert!(fingerprinter.young.bytes + fingerprinter.old.bytes < 11_000);
}

#[test]
fn texts_of_one_shape_share_its_normal_form() {
    let mut fingerprinter = Fingerprinter::default();
    let (one, two) = (fingerprinter.shape(b"select 1"), fingerprinter.shape(b"select 2"));
    assert!(Arc::ptr_eq(&one.normal, &two.normal));
}
