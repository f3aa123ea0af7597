//! Hashing of small keys, where the standard library's guards against chosen keys cost more than the rest
//! of a look-up. What is hashed here are process ids and hashes; a log that is made to collide is slow to
//! import and nothing else.

use std::hash::{BuildHasherDefault, Hasher};

/// A map from small keys.
pub(crate) type Map<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<Mix>>;

/// One multiplication per number; texts by XXH3.
#[derive(Debug, Default)]
pub(crate) struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        self.write_u64(xxhash_rust::xxh3::xxh3_64(bytes));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        let product = u128::from(self.0 ^ number) * u128::from(ODD);
        self.0 = product as u64 ^ (product >> 64) as u64;
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn write_isize(&mut self, number: isize) {
        self.write_u64(number as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The golden ratio: its bits have no pattern.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

#[test]
fn neighbours_are_apart() {
    use std::hash::BuildHasher as _;
    let hash = |number: u32| BuildHasherDefault::<Mix>::default().hash_one(number);
    let low_bits: std::collections::HashSet<_> = (0..64).map(|n| hash(n) & 0xffff).collect();
    assert!(low_bits.len() > 60, "{}", low_bits.len());
}
