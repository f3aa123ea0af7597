//! A bounded uniform sample of a query's executions, for the statistics that need values in order
//! of time.

use std::collections::HashSet;

use crate::statistics::random::SeededRandom;

/// Maximum number of executions stored per query and run; later ones replace random earlier ones.
///
/// The median of 4,096 values is usually within one percentile of the true median: more values
/// would cost memory and change no verdict.
pub(crate) const RESERVOIR_SIZE: usize = 4_096;

/// A uniform sample of the recorded durations, each with its time (Vitter's algorithm R).
#[derive(Clone, Debug)]
pub(crate) struct Reservoir {
    samples: Vec<DurationSample>,
    recorded: u64,
    random: SeededRandom,
}

/// The time and duration of an execution. It takes only eight bytes, because a run may have tens of
/// thousands of queries.
#[derive(Clone, Copy, Debug)]
struct DurationSample {
    /// Time since the start of the run, in ms. The range is 24 days in either direction.
    at_ms: i32,
    /// Duration in µs. The range is 71 minutes; longer durations are stored as the maximum.
    service_us: u32,
}

impl Reservoir {
    /// Creates an empty sample. `seed` and the order of the executions determine which are stored.
    pub(crate) fn new(seed: u64) -> Self {
        Self { samples: Vec::new(), recorded: 0, random: SeededRandom::new(seed) }
    }

    pub(crate) fn record(&mut self, at_us: i64, service_us: u64) {
        let at_ms = at_us / 1000;
        let sample = DurationSample {
            at_ms: i32::try_from(at_ms).unwrap_or(if at_ms < 0 { i32::MIN } else { i32::MAX }),
            service_us: u32::try_from(service_us).unwrap_or(u32::MAX),
        };
        self.recorded += 1;
        if self.samples.len() < RESERVOIR_SIZE {
            self.samples.push(sample);
            return;
        }
        let index = self.random.below(self.recorded);
        let slot = usize::try_from(index).ok().and_then(|index| self.samples.get_mut(index));
        if let Some(slot) = slot {
            *slot = sample;
        }
    }

    /// Adds the sample of a later run, as if it had begun right after this one.
    ///
    /// If the two do not fit, each keeps a share of the places proportional to the number of values
    /// it recorded, so the result is still a uniform sample of all of them.
    pub(crate) fn append(&mut self, other: &Self) {
        let end = self.samples.iter().map(|sample| sample.at_ms).max();
        let start = other.samples.iter().map(|sample| sample.at_ms).min();
        let offset = end.unwrap_or(0).saturating_add(1).saturating_sub(start.unwrap_or(0));
        let later = other
            .samples
            .iter()
            .map(|sample| DurationSample { at_ms: sample.at_ms.saturating_add(offset), ..*sample });
        let mut later: Vec<DurationSample> = later.collect();
        let recorded = self.recorded + other.recorded;
        if self.samples.len() + later.len() > RESERVOIR_SIZE {
            let share = self.recorded as f64 / recorded as f64;
            let quota = (share * RESERVOIR_SIZE as f64).round() as usize;
            let quota = quota.clamp(RESERVOIR_SIZE.saturating_sub(later.len()), self.samples.len());
            self.random.truncate_to_sample(&mut self.samples, quota);
            self.random.truncate_to_sample(&mut later, RESERVOIR_SIZE - quota);
        }
        self.samples.append(&mut later);
        self.recorded = recorded;
    }

    /// Whether all executions are stored.
    pub(crate) fn is_complete(&self) -> bool {
        self.recorded == self.samples.len() as u64
    }

    /// Returns the stored durations in microseconds, in order of time.
    pub(crate) fn in_time_order(&self) -> Vec<f64> {
        let mut samples = self.samples.clone();
        samples.sort_by_key(|sample| sample.at_ms);
        samples.into_iter().map(|sample| f64::from(sample.service_us)).collect()
    }

    /// Returns the number of tenths of a second in which stored executions began.
    pub(crate) fn tenths(&self) -> usize {
        let tenths: HashSet<i32> =
            self.samples.iter().map(|sample| sample.at_ms.div_euclid(100)).collect();
        tenths.len()
    }

    /// Returns the stored durations in microseconds, smallest first.
    pub(crate) fn sorted(&self) -> Vec<u32> {
        let mut durations: Vec<u32> = self.samples.iter().map(|sample| sample.service_us).collect();
        durations.sort_unstable();
        durations
    }
}

#[test]
fn all_executions_are_stored_below_limit() {
    let mut reservoir = Reservoir::new(1);
    for at in [3_000, 1_000, 2_000] {
        reservoir.record(at, at.unsigned_abs() * 10);
    }
    assert!(reservoir.is_complete());
    assert_eq!(reservoir.in_time_order(), [10_000.0, 20_000.0, 30_000.0]);
    assert_eq!(reservoir.sorted(), [10_000, 20_000, 30_000]);
}

#[test]
fn executions_of_one_moment_share_its_tenth_of_a_second() {
    let mut reservoir = Reservoir::new(1);
    assert_eq!(reservoir.tenths(), 0);
    for at in [-1_000, 0, 99_999, 100_000, 5_000_000, 5_000_001] {
        reservoir.record(at, 10);
    }
    assert_eq!(reservoir.tenths(), 4);
}

#[test]
fn sample_is_uniform_over_time() {
    let mut reservoir = Reservoir::new(1);
    let total = i64::try_from(RESERVOIR_SIZE * 10).expect("a small number");
    (0..total).for_each(|at| reservoir.record(at * 1000, at.unsigned_abs()));
    assert!(!reservoir.is_complete());
    let sample = reservoir.in_time_order();
    assert_eq!(sample.len(), RESERVOIR_SIZE);
    let early = sample.iter().filter(|at| **at < total as f64 / 2.0).count();
    assert!(early.abs_diff(RESERVOIR_SIZE / 2) < RESERVOIR_SIZE / 20, "{early}");
    assert!(sample.is_sorted());
}

#[test]
fn appended_run_follows_in_time() {
    let mut reservoir = Reservoir::new(1);
    let mut later = Reservoir::new(2);
    for at in [1_000, 2_000] {
        reservoir.record(at, 10);
        later.record(at - 5_000, 20 + at.unsigned_abs() / 1_000);
    }
    reservoir.append(&later);
    assert!(reservoir.is_complete());
    assert_eq!(reservoir.in_time_order(), [10.0, 10.0, 21.0, 22.0]);
}

#[test]
fn appended_runs_keep_their_shares() {
    let mut reservoir = Reservoir::new(1);
    let mut later = Reservoir::new(2);
    (0..3_000).for_each(|at| reservoir.record(at * 1_000, 1));
    (0..9_000).for_each(|at| later.record(at * 1_000, 2));
    reservoir.append(&later);
    let values = reservoir.in_time_order();
    assert_eq!(values.len(), RESERVOIR_SIZE);
    assert_eq!(values.iter().filter(|value| **value == 1.0).count(), RESERVOIR_SIZE / 4);
    assert!(values.is_sorted());
}

#[test]
fn oversized_values_saturate() {
    let mut reservoir = Reservoir::new(1);
    reservoir.record(i64::MIN, u64::MAX);
    reservoir.record(i64::MAX, 1);
    assert_eq!(reservoir.in_time_order(), [f64::from(u32::MAX), 1.0]);
}
