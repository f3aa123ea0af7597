//! Spellings of one key: what receivers get that take names and tags as they were sent.
//!
//! The registry keeps metrics by their sanitised keys, because that is what etsy's server does, what
//! Graphite takes and what the management port shows. Most keys are sent in just that spelling: then
//! one entry serves everybody. Once a key is sent in another spelling (`a/b` for `a-b`), its entry is
//! *merged*: it holds all spellings together, and each spelling, that of the key itself included, has
//! an entry of its own here. So `city=Zürich` and `city=Zrich` stay two series for those who can tell
//! them apart.

use super::{CounterState, GaugeState, SetState, TimerState};
use crate::{
    Name,
    aggregate::Kind,
    flush::{registry::Registry, table::Table},
};

/// Entries of the spellings of merged keys, by kind.
#[derive(Debug, Default)]
pub(crate) struct Variants {
    pub(crate) counters: Table<CounterState>,
    pub(crate) timers: Table<TimerState>,
    pub(crate) gauges: Table<GaugeState>,
    pub(crate) sets: Table<SetState>,
}

/// Where the values of one cell of a shard go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Destination {
    /// The entry of the sanitised key.
    pub(super) key: u32,
    /// The variant's entry, if the cell's spelling is not that of the key. If it is, the entry of the
    /// key knows its variant.
    pub(super) variant: Option<u32>,
}

impl Variants {
    /// How many places are taken by forgotten ones.
    pub(super) fn dead(&self) -> usize {
        self.counters.dead() + self.timers.dead() + self.gauges.dead() + self.sets.dead()
    }
}

/// The places of `key`, which was sent as `sent`. From the first other spelling on, the values of the
/// key's own are kept apart: its variant begins with what the entry has so far.
pub(super) fn destination<S: Default + Clone>(
    table: &mut Table<S>,
    variants: &mut Table<S>,
    key: &Name,
    sent: &Name,
) -> Destination {
    let known = table.places();
    let place = table.place(key);
    let is_new = place == known;
    let was_live = table.is_live(place);
    let entry = table.entry(place);
    let is_own = sent == key;
    if is_own && entry.merged && entry.other.is_none() {
        let variant = variants.place(key);
        variants.entry(variant).other = Some(place);
        entry.other = Some(variant);
    }
    if is_own {
        return Destination { key: place, variant: None };
    }
    if !entry.merged {
        entry.merged = true;
        if !is_new {
            let variant = variants.place(key);
            if was_live {
                variants.wake(variant);
            }
            let twin = variants.entry(variant);
            twin.state = entry.state.clone();
            (twin.hits, twin.last_flush) = (entry.hits, entry.last_flush);
            twin.other = Some(place);
            entry.other = Some(variant);
        }
    }
    let variant = variants.place(sent);
    variants.entry(variant).other = Some(place);
    Destination { key: place, variant: Some(variant) }
}

impl Registry {
    /// After keys of one kind were deleted by hand: forgets their variants, too.
    pub(crate) fn delete_variants(&mut self, kind: Kind) {
        fn delete<S: Default>(table: &Table<S>, variants: &mut Table<S>) {
            variants.retain(|entry| {
                let keep = entry.other.is_none_or(|key| table.is_live(key));
                if !keep {
                    entry.last_flush = 0;
                }
                keep
            });
        }
        match kind {
            Kind::Counter => delete(&self.counters, &mut self.variants.counters),
            Kind::Timer => delete(&self.timers, &mut self.variants.timers),
            Kind::Gauge => delete(&self.gauges, &mut self.variants.gauges),
            Kind::Set => delete(&self.sets, &mut self.variants.sets),
        }
    }

    /// Gives the places of forgotten entries away, and mends what pointed at others.
    pub(super) fn compact(&mut self) {
        fn compact<S: Default>(table: &mut Table<S>, variants: &mut Table<S>) {
            variants.relink(&table.compact());
            table.relink(&variants.compact());
        }
        compact(&mut self.counters, &mut self.variants.counters);
        compact(&mut self.timers, &mut self.variants.timers);
        compact(&mut self.gauges, &mut self.variants.gauges);
        compact(&mut self.sets, &mut self.variants.sets);
    }
}
