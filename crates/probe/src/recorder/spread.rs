//! Durations added up so that they can be added up again: over a second, a phase, a whole recording.

use std::{collections::BTreeMap, time::Duration};

use super::bytes::{Damage, Packed};

/// Any number of durations. Percentiles are true to 3 %: sixteen classes for each doubling.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    count: u64,
    total_ns: u64,
    min_ns: u64,
    max_ns: u64,
    /// How many are in each class.
    classes: BTreeMap<u32, u64>,
}

/// Bits behind the first that tell classes apart.
const BITS: u32 = 4;
/// Classes that there are: of less than 16 ns, each nanosecond has its own.
const CLASSES: u32 = (64 - BITS + 1) << BITS;

impl Spread {
    /// Adds one.
    pub fn add(&mut self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.min_ns = if self.count == 0 { ns } else { self.min_ns.min(ns) };
        self.max_ns = self.max_ns.max(ns);
        self.count += 1;
        self.total_ns = self.total_ns.saturating_add(ns);
        *self.classes.entry(class_of(ns)).or_default() += 1;
    }

    /// Adds all of another.
    pub fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        self.min_ns = if self.count == 0 { other.min_ns } else { self.min_ns.min(other.min_ns) };
        self.max_ns = self.max_ns.max(other.max_ns);
        self.count = self.count.saturating_add(other.count);
        self.total_ns = self.total_ns.saturating_add(other.total_ns);
        for (class, count) in &other.classes {
            let sum = self.classes.entry(*class).or_default();
            *sum = sum.saturating_add(*count);
        }
    }

    /// How many.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// All together.
    #[must_use]
    pub fn total(&self) -> Duration {
        Duration::from_nanos(self.total_ns)
    }

    /// The shortest.
    #[must_use]
    pub fn min(&self) -> Duration {
        Duration::from_nanos(self.min_ns)
    }

    /// The longest.
    #[must_use]
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max_ns)
    }

    /// Their mean.
    #[must_use]
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.total_ns.checked_div(self.count).unwrap_or(0))
    }

    /// Of the whole, this `share` (0 to 1) was not longer. Nothing of none.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Duration {
        let rank = (share * self.count as f64).ceil().max(1.0) as u64;
        let mut below = 0_u64;
        for (class, count) in &self.classes {
            below = below.saturating_add(*count);
            if below >= rank {
                // Damaged bytes may have them the wrong way round.
                let (least, most) = (self.min_ns.min(self.max_ns), self.max_ns);
                return Duration::from_nanos(middle_of(*class).clamp(least, most));
            }
        }
        self.max()
    }
}

fn class_of(ns: u64) -> u32 {
    if ns < 1 << BITS {
        return ns as u32;
    }
    let shift = ns.ilog2() - BITS;
    ((shift + 1) << BITS) + ((ns >> shift) as u32 & ((1 << BITS) - 1))
}

fn middle_of(class: u32) -> u64 {
    if class < 1 << BITS {
        return class.into();
    }
    let shift = (class >> BITS) - 1;
    let front = u64::from(1 << BITS | class & ((1 << BITS) - 1));
    (front << shift) + ((1_u64 << shift) >> 1)
}

impl Packed for Spread {
    fn pack(&self, out: &mut Vec<u8>) {
        for number in [self.count, self.total_ns, self.min_ns, self.max_ns] {
            number.pack(out);
        }
        let mut last = 0;
        let classes = self.classes.iter().map(|(class, count)| {
            let step = class - last;
            last = *class;
            (step, *count)
        });
        classes.collect::<Vec<_>>().pack(out);
    }

    fn unpack(input: &mut &[u8]) -> Result<Self, Damage> {
        let mut number = || u64::unpack(input);
        let (count, total_ns, min_ns, max_ns) = (number()?, number()?, number()?, number()?);
        let (mut classes, mut last) = (BTreeMap::new(), 0_u32);
        for (step, count) in Vec::<(u32, u64)>::unpack(input)? {
            last = last.checked_add(step).filter(|class| *class < CLASSES).ok_or(Damage::Number)?;
            classes.insert(last, count);
        }
        Ok(Self { count, total_ns, min_ns, max_ns, classes })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn spread(all_ns: &[u64]) -> Spread {
        let mut spread = Spread::default();
        all_ns.iter().for_each(|ns| spread.add(Duration::from_nanos(*ns)));
        spread
    }

    proptest! {
        #[test]
        fn percentiles_are_near_those_of_the_durations(mut all_ns in prop::collection::vec(0_u64..1 << 50, 1..200), share in 0.0_f64..=1.0) {
            let spread = spread(&all_ns);
            all_ns.sort_unstable();
            let rank = (share * all_ns.len() as f64).ceil().max(1.0) as usize;
            let (exact, told) = (all_ns[rank - 1] as f64, spread.quantile(share).as_nanos() as f64);
            prop_assert!((told - exact).abs() <= exact / 30.0 + 1.0, "{} {}", told, exact);
            prop_assert_eq!(spread.max().as_nanos(), u128::from(*all_ns.last().unwrap()));
        }

        #[test]
        fn sums_of_parts_are_those_of_the_whole(one in prop::collection::vec(any::<u32>(), 0..50), other in prop::collection::vec(any::<u32>(), 0..50)) {
            let wide = |all: &[u32]| all.iter().map(|ns| u64::from(*ns)).collect::<Vec<_>>();
            let mut merged = spread(&wide(&one));
            merged.merge(&spread(&wide(&other)));
            prop_assert_eq!(&merged, &spread(&wide(&[one, other].concat())));
            let mut bytes = Vec::new();
            merged.pack(&mut bytes);
            prop_assert_eq!(Spread::unpack(&mut &bytes[..]), Ok(merged));
        }
    }

    #[test]
    fn every_class_has_its_place() {
        for ns in [0, 1, 15, 16, 17, 31, 32, 1000, u64::MAX] {
            let class = class_of(ns);
            assert!(class < CLASSES, "{ns}");
            assert_eq!(class_of(middle_of(class)), class, "{ns}");
        }
        assert_eq!(Spread::default().quantile(0.99), Duration::ZERO);
    }
}
