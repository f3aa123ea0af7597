//! A bounded, fair choice of a query's executions, for the statistics that need values in time.

use crate::statistics::random::Random;

/// Executions that are kept per query and run. All that come after take part by lot.
///
/// Ranks of 4 096 values tell the middle of a distribution to about 1 % of its spread: more would
/// cost memory and change no verdict.
pub(crate) const RESERVOIR: usize = 4_096;

/// A uniform sample of the durations recorded, each with its time (Vitter's algorithm R).
#[derive(Clone, Debug)]
pub(crate) struct Reservoir {
    kept: Vec<Timed>,
    seen: u64,
    random: Random,
}

/// Eight bytes, because a run may have tens of thousands of queries.
#[derive(Clone, Copy, Debug)]
struct Timed {
    /// Since the start of the run. Enough for 24 days either way.
    at_ms: i32,
    /// Enough for 71 minutes; longer executions count as that long here.
    service_us: u32,
}

impl Reservoir {
    /// Which executions are kept depends on `seed` and their order, nothing else.
    pub(crate) fn new(seed: u64) -> Self {
        Self { kept: Vec::new(), seen: 0, random: Random::new(seed) }
    }

    pub(crate) fn record(&mut self, at_us: i64, service_us: u64) {
        let at_ms = at_us / 1000;
        let timed = Timed {
            at_ms: i32::try_from(at_ms).unwrap_or(if at_ms < 0 { i32::MIN } else { i32::MAX }),
            service_us: u32::try_from(service_us).unwrap_or(u32::MAX),
        };
        self.seen += 1;
        if self.kept.len() < RESERVOIR {
            self.kept.push(timed);
            return;
        }
        let place = self.random.below(self.seen);
        if let Some(kept) = usize::try_from(place).ok().and_then(|place| self.kept.get_mut(place)) {
            *kept = timed;
        }
    }

    /// Whether nothing was left out.
    pub(crate) fn is_complete(&self) -> bool {
        self.seen == self.kept.len() as u64
    }

    /// The durations kept, in microseconds, in order of time.
    pub(crate) fn in_time(&self) -> Vec<f64> {
        let mut kept = self.kept.clone();
        kept.sort_by_key(|timed| timed.at_ms);
        kept.into_iter().map(|timed| f64::from(timed.service_us)).collect()
    }

    /// The durations kept, in microseconds, smallest first.
    pub(crate) fn sorted(&self) -> Vec<u32> {
        let mut kept: Vec<u32> = self.kept.iter().map(|timed| timed.service_us).collect();
        kept.sort_unstable();
        kept
    }
}

#[test]
fn all_is_kept_while_there_is_room() {
    let mut reservoir = Reservoir::new(1);
    for at in [3_000, 1_000, 2_000] {
        reservoir.record(at, at.unsigned_abs() * 10);
    }
    assert!(reservoir.is_complete());
    assert_eq!(reservoir.in_time(), [10_000.0, 20_000.0, 30_000.0]);
    assert_eq!(reservoir.sorted(), [10_000, 20_000, 30_000]);
}

#[test]
fn the_choice_is_fair_over_time() {
    let mut reservoir = Reservoir::new(1);
    let total = i64::try_from(RESERVOIR * 10).expect("a small number");
    (0..total).for_each(|at| reservoir.record(at * 1000, at.unsigned_abs()));
    assert!(!reservoir.is_complete());
    let kept = reservoir.in_time();
    assert_eq!(kept.len(), RESERVOIR);
    let early = kept.iter().filter(|at| **at < total as f64 / 2.0).count();
    assert!(early.abs_diff(RESERVOIR / 2) < RESERVOIR / 20, "{early}");
    assert!(kept.is_sorted());
}

#[test]
fn what_does_not_fit_saturates() {
    let mut reservoir = Reservoir::new(1);
    reservoir.record(i64::MIN, u64::MAX);
    reservoir.record(i64::MAX, 1);
    assert_eq!(reservoir.in_time(), [f64::from(u32::MAX), 1.0]);
}
