//! Fast hashing of small keys.
//!
//! The standard library's hasher resists chosen keys, but it would take longer than the rest of a
//! lookup. The keys are process ids and hashes: a log crafted to make them collide is slow to
//! import, but does no other harm.

use std::hash::{BuildHasherDefault, Hasher};

/// A map from small keys.
pub(crate) type Map<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<MulHasher>>;

/// A hasher with one multiplication per number; texts are hashed by XXH3.
#[derive(Debug, Default)]
pub(crate) struct MulHasher(u64);

impl Hasher for MulHasher {
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

/// 2⁶⁴ divided by the golden ratio, an odd number whose bits have no pattern.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

#[test]
fn consecutive_numbers_hash_apart() {
    use std::hash::BuildHasher as _;
    let hash = |number: u32| BuildHasherDefault::<MulHasher>::default().hash_one(number);
    let low_bits: std::collections::HashSet<_> = (0..64).map(|n| hash(n) & 0xffff).collect();
    assert!(low_bits.len() > 60, "{}", low_bits.len());
}
