//! [`CellTargets`]: the registry entries of a shard's cells.

use super::{
    key_rules::{KeyRules, TraceNumber},
    variants::CellTarget,
};
use crate::aggregate::{KINDS, MetricType};

/// The registry entries of a shard's cells, by metric type and cell.
#[derive(Debug, Default)]
pub(super) struct CellTargets {
    /// `None` for cells of keys that a rule drops.
    entries: [Vec<Option<CellTarget>>; KINDS],
    /// The outcome of the rules for each cell; empty while there are no rules.
    traces: [Vec<TraceNumber>; KINDS],
    /// Number of cells whose keys rules dropped or changed.
    altered: usize,
    /// How many of them were used since the last call of [`CellTargets::take_idle`].
    altered_used: usize,
}

impl CellTargets {
    /// Creates the entries of all cells of an interval from another process, whose keys have been
    /// determined.
    pub(super) fn determined(entries: [Vec<Option<CellTarget>>; KINDS]) -> Self {
        Self { entries, ..Self::default() }
    }

    /// Adds the entry of the next cell.
    pub(super) fn push(
        &mut self,
        kind: MetricType,
        (target, trace): (Option<CellTarget>, TraceNumber),
        rules: &KeyRules,
    ) {
        self.entries[kind as usize].push(target);
        if rules.are_active() {
            self.traces[kind as usize].push(trace);
            self.altered += usize::from(rules.is_altered(trace));
        }
    }

    /// Returns the entry of a cell with this number of samples, and counts them for the rules.
    pub(super) fn find(
        &mut self,
        kind: MetricType,
        (cell, samples): (usize, u32),
        rules: &mut KeyRules,
    ) -> Option<CellTarget> {
        if let Some(trace) = self.traces[kind as usize].get(cell) {
            self.altered_used += usize::from(rules.count(*trace, samples));
        }
        self.entries[kind as usize][cell]
    }

    /// Returns the entries of all cells of a metric type.
    pub(super) fn iter(&self, kind: MetricType) -> impl Iterator<Item = CellTarget> {
        self.entries[kind as usize].iter().copied().flatten()
    }

    /// Returns about how many cells with changed or dropped keys were not used since the last call.
    pub(super) fn take_idle(&mut self) -> usize {
        let idle = self.altered.saturating_sub(self.altered_used);
        self.altered_used = 0;
        idle
    }

    /// Removes all entries, because the shard was reset.
    pub(super) fn clear(&mut self, rules: &mut KeyRules) {
        self.traces.iter().flatten().for_each(|trace| rules.release(*trace));
        *self = Self::default();
    }
}
