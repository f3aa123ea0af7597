//! Which row is read next: every row alike, or few rows most of the time.

/// A sequence of rows. The same seed gives the same rows, so every way of warming meets the same client.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    state: u64,
    rows: u64,
    /// Exponent of Zipf's law; `None` is every row alike.
    skew: Option<f64>,
}

impl Rows {
    /// Rows 1 to `rows`, at least 1.
    pub(crate) fn new(rows: u64, skew: Option<f64>, seed: u64) -> Self {
        Self { state: seed, rows: rows.max(1), skew }
    }

    /// The next row.
    pub(crate) fn draw(&mut self) -> u64 {
        let unit = self.unit();
        match self.skew {
            None => 1 + ((unit * self.rows as f64) as u64).min(self.rows - 1),
            Some(skew) => scattered(rank(unit, self.rows, skew), self.rows),
        }
    }

    /// A number from 0 to below 1: splitmix64, its upper 53 bits.
    fn unit(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// A rank from 0 on, by the inverse of the continuous law between 1 and `rows` + 1, which has
/// the density `x^-skew`; rounded down it is Zipf's law but for the weight of the first few ranks.
fn rank(unit: f64, rows: u64, skew: f64) -> u64 {
    let end = rows as f64 + 1.0;
    let x = if (skew - 1.0).abs() < 1e-9 {
        (unit * end.ln()).exp()
    } else {
        let power = 1.0 - skew;
        (unit * (end.powf(power) - 1.0) + 1.0).powf(1.0 / power)
    };
    (x as u64).clamp(1, rows) - 1
}

/// Hot rows lie anywhere in the table: neighbours in rank are far apart. A prime that is no factor of
/// `rows` makes it one to one.
fn scattered(rank: u64, rows: u64) -> u64 {
    const PRIMES: [u64; 2] = [2_654_435_761, 2_147_483_647];
    let prime = if rows.is_multiple_of(PRIMES[0]) { PRIMES[1] } else { PRIMES[0] };
    let place = u128::from(rank) * u128::from(prime) % u128::from(rows);
    // Below `rows`, which is 64 bits.
    place as u64 + 1
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_row_is_drawn_alike() {
        let mut rows = Rows::new(10, None, 1);
        let mut counts = [0_u32; 10];
        for _ in 0..100_000 {
            counts[rows.draw() as usize - 1] += 1;
        }
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
    }

    #[test]
    fn skew_prefers_the_first_ranks() {
        let mut rows = Rows::new(1_000_000, Some(1.0), 1);
        let hot = (0..100).map(|rank| scattered(rank, 1_000_000)).collect::<BTreeSet<_>>();
        let hits = (0..100_000).filter(|_| hot.contains(&rows.draw())).count();
        // ln(101) / ln(1 000 001) is 0.334.
        assert!((32_000..35_000).contains(&hits), "{hits}");
    }

    #[test]
    fn scattering_loses_no_row() {
        for rows in [1, 2, 1000, 99_991] {
            let places: BTreeSet<_> = (0..rows).map(|rank| scattered(rank, rows)).collect();
            assert_eq!((places.len() as u64, places.last()), (rows, Some(&rows)));
        }
    }

    #[test]
    fn the_same_seed_reads_the_same_rows() {
        let draw = |seed| {
            let mut rows = Rows::new(1000, Some(0.8), seed);
            (0..50).map(|_| rows.draw()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }
}
