//! PostgreSQL's hash of a partition key: `hash_bytes_extended` of `common/hashfn.c`, by Bob Jenkins
//! (lookup3, "final" and "mix"), with the seed that partitioning uses (`HASH_PARTITION_SEED` in
//! `catalog/partition.h`). The hash is the same in every version since 11. For byte strings, it is
//! the hash of little-endian servers; big-endian servers compute a different one.
//!
//! Also [`sha1_shard`], the hash of PgCat's `sha1` sharding function.

use sha1::{Digest as _, Sha1};

/// The seed that PostgreSQL uses for hash partitioning: `HASH_PARTITION_SEED`.
const SEED: u64 = 0x7a5b_2236_7996_dcfd;

/// Returns the hash of an integer. Equal numbers of different widths have equal hashes.
pub(crate) fn hash_int(value: i64) -> u64 {
    let [low, high] = [value as u32, (value >> 32) as u32];
    // A value that fits in 32 bits hashes like a 32-bit integer.
    let folded = low ^ if value >= 0 { high } else { !high };
    let mut state = HashState::seeded(4);
    state.a = state.a.wrapping_add(folded);
    state.finish()
}

/// Returns the hash of a byte string: text, the 16 bytes of a UUID, `bytea`.
pub(crate) fn hash_bytes(bytes: &[u8]) -> u64 {
    // The length fits into 32 bits, since a value in PostgreSQL has at most 1 GB.
    let mut state = HashState::seeded(bytes.len() as u32);
    let mut chunks = bytes.chunks_exact(12);
    for chunk in &mut chunks {
        state.add(load_u32(&chunk[..4]), load_u32(&chunk[4..8]), load_u32(&chunk[8..]));
        state.mix();
    }
    let rest = chunks.remainder();
    let part =
        |from: usize, to: usize| load_u32(rest.get(from..to.min(rest.len())).unwrap_or_default());
    // The lowest byte of the last word is reserved for the length.
    state.add(part(0, 4), part(4, 8), part(8, 12) << 8);
    state.finish()
}

/// Returns PgCat's `sha1` hash of a number: the last four bytes, big-endian, of the SHA-1 of its
/// decimal digits.
pub(crate) fn sha1_shard(value: i64) -> u32 {
    let [.., a, b, c, d] = Sha1::digest(value.to_string()).0;
    u32::from_be_bytes([a, b, c, d])
}

/// Combines the hash of the previous columns with that of another column, like `hash_combine64`.
pub(crate) fn combine(row: u64, column: u64) -> u64 {
    let spread =
        column.wrapping_add(0x49a0_f4dd_15e5_a8e3).wrapping_add(row << 54).wrapping_add(row >> 7);
    row ^ spread
}

/// Loads up to four bytes, little-endian.
fn load_u32(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte))
}

struct HashState {
    a: u32,
    b: u32,
    c: u32,
}

impl HashState {
    fn seeded(bytes: u32) -> Self {
        let begin = 0x9e37_79b9_u32.wrapping_add(bytes).wrapping_add(3_923_095);
        let mut state = Self { a: begin, b: begin, c: begin };
        state.add((SEED >> 32) as u32, SEED as u32, 0);
        state.mix();
        state
    }

    fn add(&mut self, a: u32, b: u32, c: u32) {
        self.a = self.a.wrapping_add(a);
        self.b = self.b.wrapping_add(b);
        self.c = self.c.wrapping_add(c);
    }

    fn mix(&mut self) {
        let Self { a, b, c } = self;
        for [one, two, three] in [[4, 6, 8], [16, 19, 4]] {
            *a = a.wrapping_sub(*c) ^ c.rotate_left(one);
            *c = c.wrapping_add(*b);
            *b = b.wrapping_sub(*a) ^ a.rotate_left(two);
            *a = a.wrapping_add(*c);
            *c = c.wrapping_sub(*b) ^ b.rotate_left(three);
            *b = b.wrapping_add(*a);
        }
    }

    fn finish(self) -> u64 {
        let Self { mut a, mut b, mut c } = self;
        c = (c ^ b).wrapping_sub(b.rotate_left(14));
        a = (a ^ c).wrapping_sub(c.rotate_left(11));
        b = (b ^ a).wrapping_sub(a.rotate_left(25));
        c = (c ^ b).wrapping_sub(b.rotate_left(16));
        a = (a ^ c).wrapping_sub(c.rotate_left(4));
        b = (b ^ a).wrapping_sub(a.rotate_left(14));
        c = (c ^ b).wrapping_sub(b.rotate_left(24));
        u64::from(b) << 32 | u64::from(c)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected hashes are those of `hashint8extended(v, 8816678312871386365)` and the like on
    /// PostgreSQL 15.
    #[test]
    fn hashes_match_server() {
        for (value, hash) in [
            (1, 0x52d6_2105_8124_e6d5),
            (-1, 0xba5f_c748_0956_06c2),
            (85, 0xcefe_7fc2_bffb_1c25),
            (i64::MIN, 0xac09_237e_4899_f89c),
            (1 << 31, 0x4489_3a0f_1e94_9193),
            (i64::MAX, 0x4489_3a0f_1e94_9193),
        ] {
            assert_eq!(combine(0, hash_int(value)), combine(0, hash), "{value}");
        }
        for (text, hash) in [
            ("foo", 0xe327_c59f_64c6_e069),
            ("", 0xb0e3_3d0b_543f_bfc3),
            ("abcdefghijklm", 0xa1d4_2895_caa7_86b3),
        ] {
            assert_eq!(hash_bytes(text.as_bytes()), hash, "{text:?}");
        }
        let mut one = [0; 16];
        one[15] = 1;
        assert_eq!(hash_bytes(&one), 0x4902_7b8a_0954_e54a);
    }
}
