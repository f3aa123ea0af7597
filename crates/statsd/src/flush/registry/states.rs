//! What is kept of one metric between two flushes.

use std::{mem, sync::Arc};

use crate::{
    aggregate::{GaugeCell, Sketched, TimerCell},
    grammar::TimingUnit,
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
    pub(super) count: f64,
    pub(super) unit: TimingUnit,
    pub(super) cumulative: Option<Arc<Sketch>>,
    pub(super) count_total: f64,
    pub(super) sum_total: f64,
    pub(super) since_ms: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct GaugeState {
    /// The value at the end of the last interval, if there was one.
    pub(super) before: Option<f64>,
    /// What happened since.
    pub(super) running: GaugeCell,
    /// Flushes it survives without being touched, once gauges are being deleted.
    pub(super) ttl: Option<u32>,
}

impl GaugeState {
    /// Its value now.
    pub(crate) fn value(&self) -> f64 {
        self.running.value(self.before)
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct SetState {
    pub(crate) members: hashbrown::HashSet<Box<[u8]>>,
    /// Samples whose member did not fit.
    pub(crate) refused: u64,
}

impl TimerState {
    /// Begins again after having been deleted; goes on with its totals if that was just now.
    pub(super) fn restart(&mut self, goes_on: bool, now_ms: u64) {
        self.clear();
        if !goes_on {
            *self = Self { since_ms: now_ms, ..Self::default() };
        }
    }

    pub(super) fn clear(&mut self) {
        // Memory of a busy interval is given back when it was a rare one.
        let kept = 4 * self.samples.len().max(16);
        self.samples.clear();
        self.samples.shrink_to(kept);
        self.sketched = None;
        self.count = 0.0;
    }

    pub(super) fn absorb(&mut self, cell: &mut TimerCell, exact_max: usize) {
        self.count += cell.count;
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

    /// Adds the interval to the distribution since the beginning. Samples do not carry their rates
    /// this far: each gets its share of the scaled-up count.
    pub(super) fn distribute(&mut self) {
        let cumulative = Arc::make_mut(self.cumulative.get_or_insert_default());
        if let Some(sketched) = &self.sketched {
            let weight = self.count / (sketched.samples.max(1)) as f64;
            return cumulative.merge_weighted(&sketched.sketch, weight);
        }
        let weight = self.count / self.samples.len().max(1) as f64;
        for value in &self.samples {
            cumulative.add(self.unit.to_base(*value), weight);
        }
    }
}
