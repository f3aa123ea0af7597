//! Spellings of a key, for backends that use names and tags as they were sent.
//!
//! The registry stores metrics by sanitised key, like etsy's server; Graphite requires it and the
//! management port displays it. Most keys are sent in exactly that spelling, and then one entry
//! serves all backends. Once a key is sent in another spelling (`a/b` for `a-b`), its entry is
//! *merged*: it aggregates all spellings, and each spelling, including that of the key itself, gets
//! a separate entry here. So `city=Zürich` and `city=Zrich` remain two series for backends that can
//! distinguish them.

use super::{CounterState, GaugeState, SetState, TimerState};
use crate::{
    MetricName,
    aggregate::MetricType,
    flush::{registry::KeyRegistry, table::MetricTable},
};

/// The spellings of merged keys, by metric type.
#[derive(Debug, Default)]
pub(crate) struct VariantTables {
    pub(crate) counters: MetricTable<CounterState>,
    pub(crate) timers: MetricTable<TimerState>,
    pub(crate) gauges: MetricTable<GaugeState>,
    pub(crate) sets: MetricTable<SetState>,
}

/// The registry entries that receive the values of a shard's cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CellTarget {
    /// The entry of the sanitised key.
    pub(super) key: u32,
    /// The entry of the variant, if the cell's spelling differs from the key. Otherwise the key's
    /// entry is linked to its variant, if it has one.
    pub(super) variant: Option<u32>,
}

impl VariantTables {
    /// Returns the number of entries of removed variants.
    pub(super) fn dead(&self) -> usize {
        self.counters.dead_count()
            + self.timers.dead_count()
            + self.gauges.dead_count()
            + self.sets.dead_count()
    }
}

/// Returns the entries for `key`, which was sent as `sent`. From the first other spelling on, the
/// key's own spelling is also stored separately: its variant starts with a copy of the entry.
pub(super) fn cell_target<S: Default + Clone>(
    table: &mut MetricTable<S>,
    variants: &mut MetricTable<S>,
    key: &MetricName,
    sent: &MetricName,
) -> CellTarget {
    let entries = table.entry_count();
    let index = table.intern(key);
    let is_new = index == entries;
    let was_live = table.is_live(index);
    let entry = table.entry(index);
    let is_own = sent == key;
    if is_own && entry.merged && entry.linked.is_none() {
        let variant = variants.intern(key);
        variants.entry(variant).linked = Some(index);
        entry.linked = Some(variant);
    }
    if is_own {
        return CellTarget { key: index, variant: None };
    }
    if !entry.merged {
        entry.merged = true;
        if !is_new {
            let variant = variants.intern(key);
            if was_live {
                variants.activate(variant);
            }
            let own = variants.entry(variant);
            own.state = entry.state.clone();
            (own.hits, own.last_flush) = (entry.hits, entry.last_flush);
            own.linked = Some(index);
            entry.linked = Some(variant);
        }
    }
    let variant = variants.intern(sent);
    variants.entry(variant).linked = Some(index);
    CellTarget { key: index, variant: Some(variant) }
}

impl KeyRegistry {
    /// Removes the variants of manually deleted keys of one type.
    pub(crate) fn delete_variants(&mut self, kind: MetricType) {
        fn delete<S: Default>(table: &MetricTable<S>, variants: &mut MetricTable<S>) {
            variants.retain(|entry| {
                let keep = entry.linked.is_none_or(|key| table.is_live(key));
                if !keep {
                    entry.last_flush = 0;
                }
                keep
            });
        }
        match kind {
            MetricType::Counter => delete(&self.counters, &mut self.variants.counters),
            MetricType::Timer => delete(&self.timers, &mut self.variants.timers),
            MetricType::Gauge => delete(&self.gauges, &mut self.variants.gauges),
            MetricType::Set => delete(&self.sets, &mut self.variants.sets),
        }
    }

    /// Removes dead entries and updates the links between tables.
    pub(super) fn compact(&mut self) {
        fn compact<S: Default>(table: &mut MetricTable<S>, variants: &mut MetricTable<S>) {
            variants.relink(&table.compact());
            table.relink(&variants.compact());
        }
        compact(&mut self.counters, &mut self.variants.counters);
        compact(&mut self.timers, &mut self.variants.timers);
        compact(&mut self.gauges, &mut self.variants.gauges);
        compact(&mut self.sets, &mut self.variants.sets);
    }
}
