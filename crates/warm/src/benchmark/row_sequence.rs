//! Chooses the rows that the client reads: uniformly distributed, or by Zipf's law.

/// A pseudo-random sequence of rows. The same seed yields the same rows, so every method is
/// measured with the same reads.
#[derive(Clone, Debug)]
pub(crate) struct RowSequence {
    state: u64,
    rows: u64,
    /// Exponent of Zipf's law; `None` is a uniform distribution.
    skew: Option<f64>,
}

impl RowSequence {
    /// Creates a sequence of row numbers from 1 to `rows`. A `rows` of 0 is treated as 1.
    pub(crate) fn new(rows: u64, skew: Option<f64>, seed: u64) -> Self {
        Self { state: seed, rows: rows.max(1), skew }
    }

    /// Returns the next row number.
    pub(crate) fn next_row(&mut self) -> u64 {
        let unit = self.next_unit();
        match self.skew {
            None => 1 + ((unit * self.rows as f64) as u64).min(self.rows - 1),
            Some(skew) => scatter(zipf_rank(unit, self.rows, skew), self.rows),
        }
    }

    /// Returns a number in [0, 1): the upper 53 bits of splitmix64.
    fn next_unit(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Returns a rank from 0, by inverse transform sampling from the continuous distribution on 1 to
/// `rows` + 1 with density `x^-skew`. Rounded down, this approximates Zipf's law; mainly the
/// weights of the first few ranks differ.
fn zipf_rank(unit: f64, rows: u64, skew: f64) -> u64 {
    let end = rows as f64 + 1.0;
    let x = if (skew - 1.0).abs() < 1e-9 {
        (unit * end.ln()).exp()
    } else {
        let power = 1.0 - skew;
        (unit * (end.powf(power) - 1.0) + 1.0).powf(1.0 / power)
    };
    (x as u64).clamp(1, rows) - 1
}

/// Spreads the hot rows over the table: neighbours in rank are far apart. Multiplication by a prime
/// that does not divide `rows` is a bijection.
fn scatter(rank: u64, rows: u64) -> u64 {
    const PRIMES: [u64; 2] = [2_654_435_761, 2_147_483_647];
    let prime = if rows.is_multiple_of(PRIMES[0]) { PRIMES[1] } else { PRIMES[0] };
    let position = u128::from(rank) * u128::from(prime) % u128::from(rows);
    // Less than `rows`, so it fits 64 bits.
    position as u64 + 1
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn rows_are_uniform_without_skew() {
        let mut rows = RowSequence::new(10, None, 1);
        let mut counts = [0_u32; 10];
        for _ in 0..100_000 {
            counts[rows.next_row() as usize - 1] += 1;
        }
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
    }

    #[test]
    fn skew_prefers_first_ranks() {
        let mut rows = RowSequence::new(1_000_000, Some(1.0), 1);
        let hot = (0..100).map(|rank| scatter(rank, 1_000_000)).collect::<BTreeSet<_>>();
        let hits = (0..100_000).filter(|_| hot.contains(&rows.next_row())).count();
        // ln(101) / ln(1 000 001) is 0.334.
        assert!((32_000..35_000).contains(&hits), "{hits}");
    }

    #[test]
    fn scattering_is_a_bijection() {
        for rows in [1, 2, 1000, 99_991] {
            let positions: BTreeSet<_> = (0..rows).map(|rank| scatter(rank, rows)).collect();
            assert_eq!((positions.len() as u64, positions.last()), (rows, Some(&rows)));
        }
    }

    #[test]
    fn equal_seeds_yield_equal_rows() {
        let sequence = |seed| {
            let mut rows = RowSequence::new(1000, Some(0.8), seed);
            (0..50).map(|_| rows.next_row()).collect::<Vec<_>>()
        };
        assert_eq!(sequence(7), sequence(7));
        assert_ne!(sequence(7), sequence(8));
    }
}
