//! [`PlacementTable`]: the series of each key.

use std::hash::BuildHasher as _;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::mapping::MatchMetricType;
use crate::MetricName;

/// The index that stands for no element.
pub(super) const NONE: u32 = u32::MAX;
/// The series of a key that must be determined again, because the mapping has changed.
pub(super) const UNRESOLVED: u32 = u32::MAX - 1;

/// The keys of all sources with their series.
#[derive(Debug, Default)]
pub(super) struct PlacementTable {
    placements: Vec<KeyPlacement>,
    /// Placements by key, for each source.
    by_key: [HashTable<u32>; SeriesSource::COUNT],
    hasher: DefaultHashBuilder,
}

/// A key with its series and treatment, which are determined once.
#[derive(Debug)]
pub(super) struct KeyPlacement {
    pub(super) name: MetricName,
    /// `NONE` if a mapping rule drops the key, or other metric types use its names; or
    /// `UNRESOLVED`.
    pub(super) series: u32,
    pub(super) treatment: u32,
}

/// The statsd metric type of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum SeriesSource {
    Counter,
    Gauge,
    Timer,
    Set,
}

impl SeriesSource {
    pub(super) const COUNT: usize = 4;
    /// In the order of their numbers.
    pub(super) const ALL: [Self; Self::COUNT] =
        [Self::Counter, Self::Gauge, Self::Timer, Self::Set];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Timer => "timer",
            Self::Set => "set",
        }
    }

    pub(super) fn kind(self) -> MatchMetricType {
        match self {
            Self::Counter => MatchMetricType::Counter,
            Self::Gauge | Self::Set => MatchMetricType::Gauge,
            Self::Timer => MatchMetricType::Observer,
        }
    }
}

impl PlacementTable {
    /// Returns the number of keys.
    pub(super) fn len(&self) -> usize {
        self.by_key.iter().map(HashTable::len).sum()
    }

    /// Returns the placements of all keys, in the order in which they were added, each with the
    /// source of its key.
    pub(super) fn iter(&self) -> impl Iterator<Item = (SeriesSource, &KeyPlacement)> {
        // Placements from which only names are derived have no key any more.
        let mut sources = vec![None; self.placements.len()];
        for (source, place) in self.indexes() {
            sources[place as usize] = Some(source);
        }
        let placed = sources.into_iter().zip(&self.placements);
        placed.filter_map(|(source, placement)| Some((source?, placement)))
    }

    /// Returns the placement at an index.
    pub(super) fn get(&self, index: u32) -> &KeyPlacement {
        &self.placements[index as usize]
    }

    /// Returns the index of a key's placement, if it has one. From now on it shares the text of
    /// `name`, so that an earlier copy of the text can be freed.
    pub(super) fn find(&mut self, source: SeriesSource, name: &MetricName) -> Option<u32> {
        let hash = self.hasher.hash_one(name.key());
        let is_it = |place: &u32| self.placements[*place as usize].name == *name;
        let found = self.by_key[source as usize].find(hash, is_it).copied()?;
        let known = &mut self.placements[found as usize].name;
        if !known.shares_text(name) {
            *known = name.clone();
        }
        Some(found)
    }

    /// Adds the placement of a new key, without a series, and returns its index.
    pub(super) fn add(&mut self, source: SeriesSource, name: MetricName) -> u32 {
        let Self { by_key, placements, hasher } = self;
        let hash = hasher.hash_one(name.key());
        // The index fits: the registry has at most 2^30 keys for each reader and type.
        let new = placements.len() as u32;
        placements.push(KeyPlacement { name, series: NONE, treatment: NONE });
        by_key[source as usize].insert_unique(hash, new, |place| {
            hasher.hash_one(placements[*place as usize].name.key())
        });
        new
    }

    /// Sets the series and the treatment of a key.
    pub(super) fn set(&mut self, index: u32, series: u32, treatment: u32) {
        let placement = &mut self.placements[index as usize];
        (placement.series, placement.treatment) = (series, treatment);
    }

    /// Returns the source and the index of each key's placement.
    pub(super) fn indexes(&self) -> impl Iterator<Item = (SeriesSource, u32)> {
        let tables = SeriesSource::ALL.into_iter().zip(&self.by_key);
        tables.flat_map(|(source, keys)| keys.iter().map(move |place| (source, *place)))
    }

    /// Makes unresolved keys ones without a series, and returns whether there were any.
    pub(super) fn drop_unresolved(&mut self) -> bool {
        let mut any = false;
        for place in self.placements.iter_mut().filter(|place| place.series == UNRESOLVED) {
            place.series = NONE;
            any = true;
        }
        any
    }

    /// Removes the keys without a series, except unresolved ones, after a removal of series, which
    /// moved the others. Retains the placements in `used`, from which names are derived, and
    /// updates their indexes.
    pub(super) fn remove_unplaced<'u>(
        &mut self,
        series: &[u32],
        used: impl Iterator<Item = &'u mut u32>,
    ) {
        let used: Vec<&mut u32> = used.collect();
        let mut remaining = vec![false; self.placements.len()];
        for (place, remains) in self.placements.iter_mut().zip(&mut remaining) {
            if place.series != UNRESOLVED {
                place.series = moved(place.series, series);
            }
            *remains = place.series != NONE;
        }
        for place in &used {
            remaining[**place as usize] = true;
        }
        let places = new_indexes(remaining.iter().copied());
        let mut old = remaining.iter().copied();
        self.placements.retain(|_| old.next().unwrap_or_default());
        self.placements.shrink_to_fit();
        for place in used {
            *place = moved(*place, &places);
        }
        let Self { by_key, placements, hasher } = self;
        for keys in by_key {
            keys.retain(|place| {
                *place = moved(*place, &places);
                placements.get(*place as usize).is_some_and(|place| place.series != NONE)
            });
            keys.shrink_to_fit(|place| hasher.hash_one(placements[*place as usize].name.key()));
        }
    }
}

/// Returns the new index of each element if those that do not remain are removed, and `NONE` for
/// the removed ones.
pub(super) fn new_indexes(remaining: impl Iterator<Item = bool>) -> Vec<u32> {
    let mut next = 0;
    let new = remaining.map(|remains| {
        next += u32::from(remains);
        if remains { next - 1 } else { NONE }
    });
    new.collect()
}

/// Returns the new index of an element, or `NONE` if it was removed or there was none.
pub(super) fn moved(index: u32, new: &[u32]) -> u32 {
    new.get(index as usize).copied().unwrap_or(NONE)
}
