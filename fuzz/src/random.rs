//! Pseudorandom numbers that depend only on the seed, on every machine and in every build.

/// The SplitMix64 generator.
///
/// Source: Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", 2014.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Starts the sequence of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// Returns a number below `end`, or 0 if `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        // The modulo bias does not matter here.
        (self.bits() % (end as u64).max(1)) as usize
    }

    /// Returns a byte, uniformly distributed.
    pub fn byte(&mut self) -> u8 {
        self.bits().to_le_bytes()[0]
    }

    /// Returns one of `items`, or `None` if the slice is empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        items.get(self.below(items.len()))
    }
}

#[test]
fn a_seed_gives_one_sequence() {
    let numbers = |seed| {
        let mut random = Random::new(seed);
        [random.bits(), random.bits()]
    };
    // The published values for seed 0.
    assert_eq!(numbers(0), [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]);
    assert_ne!(numbers(1), numbers(0));
    assert_eq!(Random::new(7).below(0), 0);
}
