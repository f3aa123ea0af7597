//! Random numbers that depend only on a seed.

/// A generator of 64-bit numbers (splitmix64).
#[derive(Debug)]
pub(super) struct SimRandom(u64);

impl SimRandom {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5eed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number from 0 to `below - 1`.
    pub(super) fn below(&mut self, below: u64) -> u64 {
        self.next() % below.max(1)
    }

    /// Returns `true` with a probability of `percent` in 100.
    pub(super) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(super) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[usize::try_from(self.below(from.len() as u64)).expect("it is less than a usize")]
    }
}
