//! New rules for keys that the shards already know.

use std::{
    collections::{BTreeMap, HashSet},
    mem,
    time::SystemTime,
};

use super::{KeyRegistry, cell_targets::CellTargets, key_rules::KeyRules};
use crate::{
    MetricName,
    aggregate::{KINDS, MetricType, NewNames},
    backends::SnapshotRequirements,
    flush::{names::KeyConversion, table::MetricTable},
    settings::{RuleSettings, StatsdSettings},
};

/// Entries that new rules do not produce any more. They are removed with the next flush, which
/// still sends the values that were aggregated by the old rules.
#[derive(Clone, Debug, Default)]
pub(super) struct OrphanedEntries {
    /// Indexes of keys, by metric type.
    pub(super) keys: [HashSet<u32>; KINDS],
    /// Indexes of variants, by metric type.
    pub(super) variants: [HashSet<u32>; KINDS],
}

/// Applies the rules of `settings` to all keys, if they differ from the current ones. Samples
/// received so far are aggregated by the old rules.
pub(super) fn retarget(registry: &mut KeyRegistry, settings: &StatsdSettings, now: SystemTime) {
    let current = &registry.settings;
    if current.rules == settings.rules && current.static_tags == settings.static_tags {
        return;
    }
    let names = take_names(registry, now);
    let mut rules = KeyRules::new(settings, now);
    let (old, new) = (by_id(&registry.settings.rules), by_id(&settings.rules));
    rules.inherit(&mut registry.key_rules, |id| old.get(id) == new.get(id));
    let remaining = orphan(registry, &rules, &names);
    rules.prefixes.restart(remaining.iter());
    registry.key_rules = rules;
    registry.settings.rules.clone_from(&settings.rules);
    registry.settings.static_tags.clone_from(&settings.static_tags);
    registry.shards.iter_mut().for_each(|source| source.targets = CellTargets::default());
    assign(registry, &names, now);
}

/// Assigns entries for other requirements to the cells of all shards.
pub(super) fn set_requirements(
    registry: &mut KeyRegistry,
    needs: SnapshotRequirements,
    now: SystemTime,
) {
    let names = take_names(registry, now);
    registry.needs = needs;
    let KeyRegistry { shards, key_rules, .. } = registry;
    shards.iter_mut().for_each(|source| source.targets.clear(key_rules));
    assign(registry, &names, now);
}

/// Collects all values, and returns the names of all cells of each shard.
fn take_names(registry: &mut KeyRegistry, now: SystemTime) -> Vec<NewNames> {
    // A pending reset of the shards would renumber the entries.
    registry.collect(now);
    let mut shards = mem::take(&mut registry.shards);
    let mut names = Vec::with_capacity(shards.len());
    for source in &mut shards {
        let (mut interval, all) = source.shard.swap_and_list(mem::take(&mut source.spare));
        registry.add_interval(&mut interval, &mut source.targets, now);
        interval.clear();
        source.spare = interval;
        names.push(all);
    }
    registry.shards = shards;
    names
}

/// Assigns entries to the cells of all shards, which have none.
fn assign(registry: &mut KeyRegistry, names: &[NewNames], now: SystemTime) {
    let mut shards = mem::take(&mut registry.shards);
    for (source, names) in shards.iter_mut().zip(names) {
        for name in names.iter() {
            let target = registry.cell_target(name, now);
            source.targets.push(name.kind, target, &registry.key_rules);
        }
    }
    registry.shards = shards;
}

/// Returns the orphaned entries, except those that cells use again.
pub(super) fn unused_orphans(registry: &KeyRegistry) -> OrphanedEntries {
    let mut orphans = registry.orphans.clone();
    if orphans.keys.iter().chain(&orphans.variants).all(HashSet::is_empty) {
        return orphans;
    }
    for kind in MetricType::ALL {
        // A key may have got a variant since, because another spelling was sent.
        let keys = orphans.keys[kind as usize].iter();
        let variants = keys.filter_map(|key| linked(registry, kind, *key));
        orphans.variants[kind as usize].extend(variants);
    }
    for source in &registry.shards {
        for kind in MetricType::ALL {
            for target in source.targets.iter(kind) {
                orphans.keys[kind as usize].remove(&target.key);
                let variant = target.variant.or_else(|| linked(registry, kind, target.key));
                if let Some(variant) = variant {
                    orphans.variants[kind as usize].remove(&variant);
                }
            }
        }
    }
    orphans
}

/// Removes the orphaned entries, except those that cells use again.
pub(super) fn remove_orphans(registry: &mut KeyRegistry) {
    let orphans = unused_orphans(registry);
    registry.orphans = OrphanedEntries::default();
    let own = registry.self_names.all();
    let OrphanedEntries { keys, variants } = &orphans;
    let [counters, timers, gauges, sets] = keys;
    remove(&mut registry.counters, counters, &own);
    remove(&mut registry.timers, timers, &own);
    remove(&mut registry.gauges, gauges, &own);
    remove(&mut registry.sets, sets, &own);
    let [counters, timers, gauges, sets] = variants;
    remove(&mut registry.variants.counters, counters, &own);
    remove(&mut registry.variants.timers, timers, &own);
    remove(&mut registry.variants.gauges, gauges, &own);
    remove(&mut registry.variants.sets, sets, &own);
    for kind in MetricType::ALL.into_iter().filter(|kind| !keys[*kind as usize].is_empty()) {
        registry.delete_variants(kind);
    }
}

fn remove<S: Default>(table: &mut MetricTable<S>, orphans: &HashSet<u32>, own: &[MetricName]) {
    for index in orphans {
        if !own.contains(&table.entry(*index).name) {
            table.remove(*index);
        }
    }
}

/// Marks the entries of all cells as orphaned, and entries without a cell if the new rules change
/// or drop them. Returns the names of those that the new rules produce or do not change.
fn orphan(registry: &mut KeyRegistry, rules: &KeyRules, names: &[NewNames]) -> Vec<MetricName> {
    let conversion = KeyConversion::new(&registry.settings, registry.needs);
    let mut produced: [HashSet<MetricName>; KINDS] = Default::default();
    for name in names.iter().flat_map(NewNames::iter) {
        let keys = rules.target(&name, conversion);
        produced[name.kind as usize].extend(keys.map(|keys| keys.key));
    }
    let mut orphans = mem::take(&mut registry.orphans);
    for source in &registry.shards {
        for kind in MetricType::ALL {
            for target in source.targets.iter(kind) {
                let variant = target.variant.or_else(|| linked(registry, kind, target.key));
                orphans.keys[kind as usize].insert(target.key);
                orphans.variants[kind as usize].extend(variant);
            }
        }
    }
    let mut remaining = Vec::new();
    for kind in MetricType::ALL {
        for (index, name) in live_names(registry, kind) {
            let orphans = &mut orphans.keys[kind as usize];
            let remains = produced[kind as usize].contains(name)
                || !orphans.contains(&index) && rules.are_unrelated_to(name, kind);
            if remains {
                remaining.push(name.clone());
            } else {
                orphans.insert(index);
            }
        }
    }
    registry.orphans = orphans;
    remaining
}

/// Returns the live metrics of a type with their indexes.
fn live_names(
    registry: &KeyRegistry,
    kind: MetricType,
) -> Box<dyn Iterator<Item = (u32, &MetricName)> + '_> {
    match kind {
        MetricType::Counter => Box::new(registry.counters.live_names()),
        MetricType::Timer => Box::new(registry.timers.live_names()),
        MetricType::Gauge => Box::new(registry.gauges.live_names()),
        MetricType::Set => Box::new(registry.sets.live_names()),
    }
}

/// Returns the variant of a key that is spelled like the key.
fn linked(registry: &KeyRegistry, kind: MetricType, key: u32) -> Option<u32> {
    match kind {
        MetricType::Counter => registry.counters.linked(key),
        MetricType::Timer => registry.timers.linked(key),
        MetricType::Gauge => registry.gauges.linked(key),
        MetricType::Set => registry.sets.linked(key),
    }
}

/// Returns the rules by id, also those with a default id.
fn by_id(rules: &[RuleSettings]) -> BTreeMap<String, &RuleSettings> {
    let id = |number: usize, rule: &RuleSettings| {
        rule.id.clone().unwrap_or_else(|| format!("rule-{number}"))
    };
    (1..).zip(rules).map(|(number, rule)| (id(number, rule), rule)).collect()
}

/// Returns the definitions of rules as text, by id.
pub(super) fn definitions(rules: &[RuleSettings]) -> BTreeMap<String, String> {
    let text = |rule: &RuleSettings| toml::to_string(rule).unwrap_or_default();
    by_id(rules).into_iter().map(|(id, rule)| (id, text(rule))).collect()
}
