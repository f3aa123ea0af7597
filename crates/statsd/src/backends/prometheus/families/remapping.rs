//! A new mapping for keys that have series.

use super::{FamilyTable, SeriesSource};
use crate::backends::prometheus::{
    mapping::NameMapping,
    placements::{NONE, UNRESOLVED},
};

/// Replaces the mapping. A series remains if one of its keys is still mapped to it with the same
/// options; others are removed, and their keys start new ones.
pub(in crate::backends::prometheus) fn set_mapping(table: &mut FamilyTable, mapping: NameMapping) {
    table.names.set_mapping(mapping);
    let mut remaining = vec![false; table.series.len()];
    let mut changed = Vec::new();
    for (source, place) in table.placements.indexes() {
        if is_mapped(table, source, place) {
            remaining[table.placements.get(place).series as usize] = true;
        } else {
            changed.push(place);
        }
    }
    // Also those of keys that were dropped until now.
    for place in changed {
        table.placements.set(place, UNRESOLVED, NONE);
    }
    table.has_unresolved = true;
    table.remove_series(&remaining);
}

/// Whether the mapping has the series of a key for that key.
fn is_mapped(table: &FamilyTable, source: SeriesSource, place: u32) -> bool {
    let place = table.placements.get(place);
    let Some(series) = table.series.get(place.series as usize) else { return false };
    let family = &table.families[series.family as usize];
    let name = table.name(family);
    // Only the values of a timer show whether they are in milliseconds.
    [false, true].into_iter().any(|seconds| {
        let target = table.names.target(source, &place.name, seconds);
        target.is_some_and(|target| {
            let suffix = name.strip_prefix(&*target.requested);
            let has_name = suffix.is_some_and(|suffix| {
                suffix.is_empty() || suffix.strip_prefix('_') == Some(source.as_str())
            });
            has_name
                && family.shape == target.shape
                && series.labels(&table.label_text) == target.labels.as_str()
                && table.treatments[place.treatment as usize] == target.treatment
        })
    })
}
