//! The state of one metric between two flushes.

use std::{mem, sync::Arc};

use crate::{
    aggregate::{GaugeCell, SampleWeights, SetCell, Sketched, TimerCell, WeightTotals},
    grammar::TimingUnit,
    hyperloglog::HyperLogLog,
    settings::{SetOverflow, StatsdLimits},
    sketch::Sketch,
};

#[derive(Clone, Debug, Default)]
pub(crate) struct CounterState {
    pub(crate) value: f64,
    pub(super) total: f64,
    pub(super) since_ms: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct TimerState {
    pub(crate) samples: Vec<f64>,
    pub(crate) sketched: Option<Box<Sketched>>,
    pub(super) weights: SampleWeights,
    pub(super) unit: TimingUnit,
    pub(super) cumulative: Option<Arc<Sketch>>,
    pub(super) count_total: f64,
    pub(super) sum_total: f64,
    pub(super) since_ms: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct GaugeState {
    /// The value at the end of the last interval, if any.
    pub(super) before: Option<f64>,
    /// Operations since the end of the last interval.
    pub(super) running: GaugeCell,
    /// Remaining flushes before the idle gauge is deleted, if deletion is on.
    pub(super) ttl: Option<u32>,
}

impl GaugeState {
    /// Returns the value after the operations so far.
    pub(crate) fn value(&self) -> f64 {
        self.running.value(self.before)
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct SetState {
    /// Distinct members; empty once the set is an estimate.
    pub(crate) members: hashbrown::HashSet<Box<[u8]>>,
    /// An estimate of all members once there are too many.
    pub(crate) estimate: Option<Box<HyperLogLog>>,
    /// Samples with a new member that were not added because the set was full.
    pub(crate) refused: u64,
}

impl SetState {
    /// Adds the members of a cell. Returns how many samples were not added because the set was
    /// full.
    pub(super) fn absorb(&mut self, cell: &mut SetCell, limits: &StatsdLimits) -> u64 {
        let mut refused = cell.refused;
        if self.members.is_empty() && self.estimate.is_none() {
            self.members = mem::take(&mut cell.members);
            self.estimate = cell.estimate.take();
        }
        if let Some(other) = &cell.estimate {
            self.estimate().merge(other);
        }
        for member in cell.members.drain() {
            // Each shard is within the limit, but their union may not be.
            if let Some(estimate) = &mut self.estimate {
                estimate.add(&member);
            } else if self.members.len() < limits.set_members || self.members.contains(&member) {
                self.members.insert(member);
            } else {
                match limits.set_overflow {
                    SetOverflow::Refuse => refused += 1,
                    SetOverflow::Estimate => self.estimate().add(&member),
                }
            }
        }
        self.refused += refused;
        refused
    }

    /// Returns the estimate, which the set becomes if it is none yet.
    fn estimate(&mut self) -> &mut HyperLogLog {
        let members = mem::take(&mut self.members);
        let estimate = self.estimate.get_or_insert_default();
        members.iter().for_each(|member| estimate.add(member));
        estimate
    }
}

impl TimerState {
    /// Restarts a timer that is new, or that was deleted and has received samples again. If
    /// `continues`, its totals are retained, because it was the last flush that deleted it;
    /// otherwise they start at zero.
    pub(super) fn restart(&mut self, continues: bool, now_ms: u64) {
        self.clear();
        if !continues {
            *self = Self { since_ms: now_ms, ..Self::default() };
        }
    }

    pub(super) fn clear(&mut self) {
        // Release the memory of an exceptionally busy interval.
        let capacity = 4 * self.samples.len().max(16);
        self.samples.clear();
        self.samples.shrink_to(capacity);
        self.sketched = None;
        self.weights.clear();
    }

    pub(super) fn absorb(&mut self, cell: &mut TimerCell, exact_max: usize) {
        self.weights.merge(self.sample_count(), &cell.weights, cell.sample_count());
        if self.samples.is_empty() && self.sketched.is_none() {
            self.unit = cell.unit;
            mem::swap(&mut self.samples, &mut cell.samples);
            self.sketched = cell.sketched.take();
            return;
        }
        let exact = self.sketched.is_none() && cell.sketched.is_none();
        if exact && self.samples.len() + cell.samples.len() <= exact_max {
            return self.samples.append(&mut cell.samples);
        }
        let sketched = self.sketched.get_or_insert_default();
        if let Some(other) = &cell.sketched {
            sketched.merge(other);
        }
        for value in self.samples.drain(..).chain(cell.samples.drain(..)) {
            sketched.add(value, self.unit);
        }
    }

    /// Returns the number of samples received, each counted as 1.
    pub(super) fn sample_count(&self) -> u64 {
        self.sketched.as_ref().map_or(self.samples.len() as u64, |sketched| sketched.samples)
    }

    /// Returns number and sum of the samples, scaled by their rates.
    pub(super) fn weight_totals(&self) -> WeightTotals {
        self.weights.totals(self.sample_count())
    }

    /// Adds the interval to the cumulative distribution. Rates of single samples are not stored, so
    /// in the buckets each sample is weighted by its share of the scaled count.
    pub(super) fn distribute(&mut self) {
        let (totals, samples) = (self.weight_totals(), self.sample_count());
        let weight = totals.count / samples.max(1) as f64;
        let cumulative = Arc::make_mut(self.cumulative.get_or_insert_default());
        let sum = if let Some(sketched) = &self.sketched {
            cumulative.merge_weighted(&sketched.sketch, weight);
            sketched.sum
        } else {
            for value in &self.samples {
                cumulative.add(self.unit.to_base(*value), weight);
            }
            self.samples.iter().sum()
        };
        cumulative.add_to_sum(self.unit.to_base(totals.excess - sum * (weight - 1.0)));
    }
}
