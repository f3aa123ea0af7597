//! A small random number generator with the same sequence on every machine: a repeated comparison
//! must have the same result.

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
#[derive(Clone, Debug)]
pub(crate) struct SeededRandom(u64);

impl SeededRandom {
    /// Starts a sequence that depends on `seed` only.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `bound`, which must not be 0. The bias is below 2⁻⁶⁴ × `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.next_u64()) * u128::from(bound);
        (wide >> 64) as u64
    }

    /// Shortens `values` to `count` of them, drawn without replacement (Fisher and Yates).
    pub(crate) fn truncate_to_sample<T>(&mut self, values: &mut Vec<T>, count: usize) {
        for index in 0..count.min(values.len()) {
            let left = (values.len() - index) as u64;
            values.swap(index, index + self.below(left) as usize);
        }
        values.truncate(count);
    }

    /// Returns a number in [0, 1).
    #[cfg(test)]
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a number with the standard normal distribution (Box and Muller).
    #[cfg(test)]
    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

#[test]
fn sequence_matches_published_values() {
    let mut random = SeededRandom::new(1_234_567);
    assert_eq!(random.next_u64(), 6_457_827_717_110_365_317);
    assert_eq!(random.next_u64(), 3_203_168_211_198_807_973);
}

#[test]
fn bounded_numbers_cover_the_range() {
    let mut random = SeededRandom::new(7);
    let mut seen = [0_u32; 10];
    for _ in 0..10_000 {
        seen[random.below(10) as usize] += 1;
    }
    assert!(seen.iter().all(|count| (850..1150).contains(count)), "{seen:?}");
}
