//! [`HyperLogLog`]: a mergeable estimate of the number of distinct members of a set.
//!
//! A member's hash selects one of 2^14 registers by its first bits; the register stores the longest
//! run of zeros, plus one, that follows in any of its hashes. The standard error is
//! 1.04 / √2^14 = 0.81 % for any number of members: the estimator has no range in which it is
//! biased, and needs no table of corrections.
//!
//! Hashes are the first eight bytes of MD5, so that sketches of different processes can be merged.
//! Senders could choose members whose hashes collide, and make the estimate too low.
//!
//! Sources: Flajolet, Fusy, Gandouet, Meunier: HyperLogLog, 2007, for the registers; Ertl: New
//! cardinality estimation algorithms for HyperLogLog sketches, arXiv 1702.01284, section 4, for the
//! estimator.

use std::fmt;

use md5::{Digest as _, Md5};

/// Number of bits that select a register.
const PRECISION: u32 = 14;
/// Number of registers.
const REGISTERS: usize = 1 << PRECISION;
/// Number of hash bits that determine a register's value.
const RANK_BITS: usize = 64 - PRECISION as usize;
/// Largest value of a register.
const RANK_MAX: u8 = RANK_BITS as u8 + 1;

/// First byte of the byte form: all registers, 6 bits each.
const FORMAT_ALL: u8 = 1;
/// First byte of the byte form: the used registers, 3 bytes each.
const FORMAT_USED: u8 = 2;

/// Largest number of used registers that are stored as a list.
const SPARSE_MAX: usize = REGISTERS / 16;

/// An estimate of the number of distinct members of a set. Takes 4 bytes for each used register,
/// and 16 KiB from 1,025 on.
#[derive(Clone, PartialEq, Eq)]
pub struct HyperLogLog {
    registers: Registers,
}

/// The values of all registers. The form depends only on the number of used ones, so equal
/// estimates have the same form.
#[derive(Clone, PartialEq, Eq)]
enum Registers {
    /// Indexes and values of the used registers, by index.
    Used(Vec<(u16, u8)>),
    /// All registers.
    All(Box<[u8]>),
}

impl Registers {
    /// Raises a register to `rank`, unless it is higher.
    fn raise(&mut self, index: u16, rank: u8) {
        match self {
            Self::All(all) => {
                let register = &mut all[usize::from(index)];
                *register = rank.max(*register);
            }
            Self::Used(used) => match used.binary_search_by_key(&index, |(index, _)| *index) {
                Ok(at) => used[at].1 = rank.max(used[at].1),
                Err(at) if used.len() < SPARSE_MAX => used.insert(at, (index, rank)),
                Err(_) => {
                    self.all()[usize::from(index)] = rank;
                }
            },
        }
    }

    /// Stores all registers and returns them.
    fn all(&mut self) -> &mut [u8] {
        if let Self::Used(used) = self {
            let mut all: Box<[u8]> = vec![0; REGISTERS].into();
            used.iter().for_each(|(index, rank)| all[usize::from(*index)] = *rank);
            *self = Self::All(all);
        }
        match self {
            Self::All(all) => all,
            Self::Used(_) => &mut [],
        }
    }

    /// Returns index and value of each used register, by index.
    fn used(&self) -> impl Iterator<Item = (u16, u8)> {
        let (list, all) = match self {
            Self::Used(used) => (&used[..], &[][..]),
            Self::All(all) => (&[][..], &all[..]),
        };
        let all = (0_u16..).zip(all.iter().copied()).filter(|(_, rank)| *rank > 0);
        list.iter().copied().chain(all)
    }
}

impl HyperLogLog {
    /// Standard error of the estimate, relative to the number of members: two of three estimates
    /// are within it, and 99.7 % are within three times as much.
    pub const RELATIVE_ERROR: f64 = 0.008_125;

    /// Adds a member. Invalid UTF-8 counts as the text in which it is replaced, as in lists of
    /// members.
    pub fn add(&mut self, member: &[u8]) {
        let digest = Md5::digest(String::from_utf8_lossy(member).as_bytes());
        let hash = digest.iter().take(8).fold(0_u64, |hash, byte| hash << 8 | u64::from(*byte));
        let index = (hash >> RANK_BITS) as u16;
        // The bit below the ones used limits the run of zeros.
        let rest = hash << PRECISION | 1 << (PRECISION - 1);
        let rank = rest.leading_zeros() as u8 + 1;
        self.registers.raise(index, rank);
    }

    /// Adds all members of `other`.
    pub fn merge(&mut self, other: &Self) {
        other.registers.used().for_each(|(index, rank)| self.registers.raise(index, rank));
    }

    /// Returns the number of bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        match &self.registers {
            Registers::Used(used) => used.capacity() * size_of::<(u16, u8)>(),
            Registers::All(all) => all.len(),
        }
    }

    /// Estimates the number of distinct members.
    pub fn count(&self) -> f64 {
        let mut counts = [0.0_f64; RANK_MAX as usize + 1];
        let all = REGISTERS as f64;
        let mut used = 0.0;
        for (_, rank) in self.registers.used() {
            counts[usize::from(rank)] += 1.0;
            used += 1.0;
        }
        counts[0] = all - used;
        let mut sum = all * tau(1.0 - counts[usize::from(RANK_MAX)] / all);
        for count in counts[1..usize::from(RANK_MAX)].iter().rev() {
            sum = 0.5 * (sum + count);
        }
        sum += all * sigma(counts[0] / all);
        all * all / (2.0 * std::f64::consts::LN_2 * sum)
    }

    /// Returns the byte form, of at most 12,290 bytes: the format, the precision 14, and the
    /// registers. In format 1, all registers of 6 bits, from the lowest bit of the first byte on.
    /// In format 2, used for few members, the index of each used register as two bytes,
    /// little-endian, and its value.
    pub fn to_bytes(&self) -> Vec<u8> {
        let used = self.registers.used().count();
        if used <= REGISTERS / 8 {
            let mut bytes = Vec::with_capacity(2 + 3 * used);
            bytes.extend([FORMAT_USED, PRECISION as u8]);
            for (index, rank) in self.registers.used() {
                bytes.extend(index.to_le_bytes());
                bytes.push(rank);
            }
            return bytes;
        }
        let mut bytes = Vec::with_capacity(2 + REGISTERS / 4 * 3);
        bytes.extend([FORMAT_ALL, PRECISION as u8]);
        for four in self.registers.clone().all().chunks(4) {
            let bits = four.iter().rev().fold(0_u32, |bits, rank| bits << 6 | u32::from(*rank));
            bytes.extend(&bits.to_le_bytes()[..3]);
        }
        bytes
    }

    /// Reads the byte form; `None` if it is not one.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (&[format, precision], rest) = bytes.split_first_chunk::<2>()?;
        if u32::from(precision) != PRECISION {
            return None;
        }
        let mut sketch = Self::default();
        let mut raise = |index: u16, rank: u8| {
            let is_valid = usize::from(index) < REGISTERS && rank <= RANK_MAX;
            if is_valid && rank > 0 {
                sketch.registers.raise(index, rank);
            }
            is_valid
        };
        let is_valid = match format {
            FORMAT_ALL if rest.len() == REGISTERS / 4 * 3 => {
                (0_u16..).step_by(4).zip(rest.chunks(3)).all(|(first, bytes)| {
                    let bits =
                        bytes.iter().rev().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
                    (0..4).all(|at| raise(first + at, (bits >> (6 * at) & 0x3f) as u8))
                })
            }
            FORMAT_USED if rest.len() % 3 == 0 => {
                rest.chunks(3).all(|used| raise(u16::from_le_bytes([used[0], used[1]]), used[2]))
            }
            _ => false,
        };
        is_valid.then_some(sketch)
    }
}

impl Default for HyperLogLog {
    fn default() -> Self {
        Self { registers: Registers::Used(Vec::new()) }
    }
}

/// Shows the estimate instead of the registers.
impl fmt::Debug for HyperLogLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HyperLogLog({:.0})", self.count())
    }
}

/// σ(x) = x + Σ x^(2^k) · 2^(k-1) over k ≥ 1: the part of the registers that are still 0.
fn sigma(mut x: f64) -> f64 {
    if x >= 1.0 {
        return f64::INFINITY;
    }
    let (mut weight, mut sum) = (1.0, x);
    loop {
        x *= x;
        let before = sum;
        sum += x * weight;
        weight += weight;
        if sum <= before {
            return sum;
        }
    }
}

/// τ(x) = (1 − x − Σ (1 − x^(2^-k))² · 2^-k over k ≥ 1) / 3: the part of the registers at their
/// maximum.
fn tau(mut x: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return 0.0;
    }
    let (mut weight, mut sum) = (1.0, 1.0 - x);
    loop {
        x = x.sqrt();
        let before = sum;
        weight *= 0.5;
        sum -= (1.0 - x).powi(2) * weight;
        if sum >= before {
            return sum / 3.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sketch_of(members: std::ops::Range<u32>) -> HyperLogLog {
        let mut sketch = HyperLogLog::default();
        members.for_each(|member| sketch.add(format!("user-{member}").as_bytes()));
        sketch
    }

    #[test]
    fn estimates_are_within_stated_error() {
        assert_eq!(HyperLogLog::default().count().round(), 0.0);
        let mut start = 0;
        // Around 40,000, the original estimator changes its method.
        for size in [1, 10, 100, 1000, 10_000, 30_000, 40_000, 50_000, 80_000] {
            let mut squares = 0.0;
            let rounds = 8;
            for _ in 0..rounds {
                let count = sketch_of(start..start + size).count();
                start += size;
                let error = count / f64::from(size) - 1.0;
                assert!(error.abs() <= 3.5 * HyperLogLog::RELATIVE_ERROR, "{size}: {count}");
                squares += error * error;
            }
            let error = (squares / f64::from(rounds)).sqrt();
            assert!(error <= 1.7 * HyperLogLog::RELATIVE_ERROR, "{size}: {error}");
        }
        let million = sketch_of(0..1_000_000).count();
        assert!((million / 1e6 - 1.0).abs() <= 3.0 * HyperLogLog::RELATIVE_ERROR, "{million}");
    }

    #[test]
    fn merged_sketch_equals_that_of_union() {
        let mut merged = sketch_of(0..30_000);
        merged.merge(&sketch_of(20_000..50_000));
        assert_eq!(merged, sketch_of(0..50_000));
        let before = merged.clone();
        merged.merge(&sketch_of(10..20));
        assert_eq!(merged, before, "members that are already there");
    }

    #[test]
    fn byte_form_round_trips() {
        for size in [0, 1, 1000, 5000, 100_000] {
            let sketch = sketch_of(0..size);
            let bytes = sketch.to_bytes();
            assert!(bytes.len() <= 12_290, "{}", bytes.len());
            assert_eq!(HyperLogLog::from_bytes(&bytes).as_ref(), Some(&sketch), "{size}");
            assert_eq!(HyperLogLog::from_bytes(&bytes[..bytes.len() - 1]), None);
        }
        assert_eq!(sketch_of(0..10).to_bytes().len(), 32);
    }

    #[test]
    fn few_members_take_little_memory() {
        let few = sketch_of(0..10);
        assert!(few.heap_bytes() <= 64, "{}", few.heap_bytes());
        let read = HyperLogLog::from_bytes(&few.to_bytes()).unwrap();
        assert_eq!((&read, read.heap_bytes() <= 64), (&few, true));
        let mut merged = few.clone();
        merged.merge(&sketch_of(10..1_000));
        assert!(merged.heap_bytes() < REGISTERS / 2);
        assert_eq!(merged, sketch_of(0..1_000));
        merged.merge(&sketch_of(1_000..5_000));
        assert_eq!((&merged, merged.heap_bytes()), (&sketch_of(0..5_000), REGISTERS));
        let mut small = few.clone();
        small.merge(&merged);
        assert_eq!(small, merged, "in any order");
    }

    #[test]
    fn invalid_bytes_are_refused() {
        for bytes in [
            &[][..],
            &[2],
            &[0, 14],
            &[2, 13],
            &[2, 14, 0],
            &[2, 14, 0, 0x40, 1],
            &[2, 14, 0, 0, RANK_MAX + 1],
            &[1, 14, 0, 0, 0],
        ] {
            assert_eq!(HyperLogLog::from_bytes(bytes), None, "{bytes:?}");
        }
        let mut largest = vec![1, 14];
        largest.resize(2 + REGISTERS / 4 * 3, 0xff);
        assert_eq!(HyperLogLog::from_bytes(&largest), None);
        let full = HyperLogLog { registers: Registers::All(vec![RANK_MAX; REGISTERS].into()) };
        assert!(full.count() > 1e18);
    }
}
