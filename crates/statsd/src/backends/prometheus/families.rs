//! [`FamilyTable`]: the values exposed to scrapes, accumulated flush by flush.
//!
//! A family is all series with the same name. The series of a key is determined once and cached;
//! after that a value costs one lookup. Two keys that map to the same name and labels share one
//! series: counters and timers are added, and the last gauge wins. If a name is already used by a
//! different metric type, the key's own type is appended as a suffix.
//!
//! ```text
//!  key ──hash──► KeyPlacement ──index──► PrometheusSeries ──index──► PrometheusFamily
//! ```
//!
//! All three are stored in flat tables that refer to each other by index, because there may be a
//! million of each: an untagged counter takes about 100 bytes. It has no text here. Its key is
//! shared with the registry, and its name and help are derived from the key when they are needed.
//! Labels are stored in one text.

pub(super) mod handover;
mod remapping;

use std::{
    borrow::Cow,
    hash::BuildHasher as _,
    mem,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use hashbrown::{DefaultHashBuilder, HashTable};
use howdah_stats::{MetricFamily, Registry};

pub(super) use self::remapping::set_mapping;
use super::{
    mapping::NameMapping,
    names::{self, LabelSet},
    observations::TimerObservations,
    placements::{NONE, PlacementTable, SeriesSource, UNRESOLVED, moved, new_indexes},
    series_names::{FamilyType, SeriesNames, SeriesTarget, ValueTreatment},
    timed::TimedGauges,
};
use crate::{
    MetricName,
    backends::BackendStatus,
    flush::FlushSnapshot,
    grammar::TimingUnit,
    self_metrics::{
        self, PROMETHEUS_DROPPED_VALUES, PROMETHEUS_RENAMED_KEYS, PROMETHEUS_SERIES, SelfMetrics,
    },
    settings,
};

/// All families with their series, and the indexes to find them.
#[derive(Debug)]
pub(super) struct FamilyTable {
    families: Vec<PrometheusFamily>,
    /// Index of each family, by name.
    by_name: HashTable<u32>,
    series: Vec<PrometheusSeries>,
    /// Series with labels, by family and labels.
    by_labels: HashTable<u32>,
    /// Indexes of the series, sorted by name and labels.
    order: Vec<u32>,
    /// Changes with `order`.
    generation: u64,
    /// Whether idle series were ever removed.
    has_evicted: bool,
    /// Whether the mapping has changed since the last interval.
    has_unresolved: bool,
    /// The labels of all series, in the format of [`LabelSet`].
    label_text: String,
    observations: Vec<TimerObservations>,
    placements: PlacementTable,
    /// Names and help texts that cannot be derived from keys.
    texts: Vec<Box<str>>,
    treatments: Vec<ValueTreatment>,
    hasher: DefaultHashBuilder,
    /// The server's own metrics, as of the last flush.
    self_metrics: Registry,
    names: SeriesNames,
    series_max: usize,
    timed: TimedGauges,
    /// Values dropped because of the series limit, a mapping rule, or a name that another metric
    /// type uses.
    dropped: u64,
    /// Families created with a type suffix, because another metric type uses their name.
    renamed: u64,
}

/// All series with one name.
#[derive(Clone, Copy, Debug)]
pub(super) struct PrometheusFamily {
    /// The placement of the family's first key, from which name and help are derived.
    origin: u32,
    /// Index of the name, or `NONE` if it is the valid form of the origin's name and `suffix`.
    name: u32,
    /// Index of the help text, or `NONE` if it names the origin.
    help: u32,
    /// The series without labels, or `NONE`.
    unlabelled: u32,
    pub(super) shape: FamilyType,
    source: SeriesSource,
    /// Index in [`SUFFIXES`].
    suffix: u8,
}

/// Suffixes of names derived from keys: by convention, and added because of a conflict.
const SUFFIXES: [&str; 8] =
    ["", "_total", "_seconds", "_counter", "_gauge", "_timer", "_total_counter", "_seconds_timer"];

/// The accumulated values of one combination of name and labels.
#[derive(Clone, Copy, Debug)]
struct PrometheusSeries {
    value: f64,
    labels_start: u32,
    labels_bytes: u32,
    /// Index of the observations of a timer.
    observed: u32,
    /// Time of the last value, in seconds since 1970.
    touched: u32,
    family: u32,
    treatment: u32,
}

/// A series as exposed to a scrape.
#[derive(Clone, Copy, Debug)]
pub(super) struct SeriesView<'t> {
    /// The labels, in the format of [`LabelSet`].
    pub(super) labels: &'t str,
    pub(super) value: f64,
    pub(super) observations: Option<&'t TimerObservations>,
}

impl FamilyTable {
    pub(super) fn new(
        settings: &settings::PrometheusSettings,
        mapping: Option<NameMapping>,
    ) -> Self {
        let mut table = Self {
            families: Vec::new(),
            by_name: HashTable::new(),
            series: Vec::new(),
            by_labels: HashTable::new(),
            order: Vec::new(),
            generation: 0,
            has_evicted: false,
            has_unresolved: false,
            label_text: String::new(),
            observations: Vec::new(),
            placements: PlacementTable::default(),
            texts: Vec::new(),
            treatments: Vec::new(),
            hasher: DefaultHashBuilder::default(),
            self_metrics: Registry::new(),
            names: SeriesNames::new(settings, mapping),
            series_max: settings.series_max,
            timed: TimedGauges::new(settings.series_max),
            dropped: 0,
            renamed: 0,
        };
        table.record_self_metrics(&SelfMetrics::default());
        table
    }

    /// Adds one interval, removes series that have become idle, and updates the server's own
    /// metrics.
    pub(super) fn add_snapshot(&mut self, snapshot: &FlushSnapshot) {
        self.names.self_prefix = Arc::clone(&snapshot.self_metrics.prefix);
        if !snapshot.timed.is_empty() {
            let timed = self.timed.current(snapshot);
            self.add_values(&timed);
        }
        self.add_values(snapshot);
        // Keys of an earlier mapping that no longer occur.
        if mem::take(&mut self.has_unresolved) && self.placements.drop_unresolved() {
            self.remove_series(&vec![true; self.series.len()]);
        }
        self.evict_idle(seconds(snapshot.time));
        self.sort_new();
        self.record_self_metrics(&snapshot.self_metrics);
    }

    fn add_values(&mut self, snapshot: &FlushSnapshot) {
        let now = seconds(snapshot.time);
        for counter in snapshot.counters_as_sent() {
            let moved = !counter.idle;
            let located = self.locate(SeriesSource::Counter, &counter.name, false, now, moved);
            if let Some((series, scale)) = located {
                // A Prometheus counter never decreases.
                self.series[series].value += (counter.value * scale).max(0.0);
            }
        }
        for timer in snapshot.timers_as_sent() {
            let in_seconds = timer.unit == TimingUnit::Milliseconds;
            let moved = timer.summary.is_some();
            let located = self.locate(SeriesSource::Timer, &timer.name, in_seconds, now, moved);
            if let Some((series, scale)) = located {
                let observed = self.series[series].observed as usize;
                if let Some(observed) = self.observations.get_mut(observed) {
                    observed.add(timer, scale, snapshot.time);
                }
            }
        }
        for gauge in snapshot.gauges_as_sent() {
            let known = self.series.len();
            let located = self.locate(SeriesSource::Gauge, &gauge.name, false, now, !gauge.idle);
            // A repeated value must not replace a later one that had a timestamp, or came from
            // another key of the series.
            if let Some((series, scale)) = located.filter(|(at, _)| !gauge.idle || *at >= known) {
                self.series[series].value = gauge.value * scale;
            }
        }
        for set in snapshot.sets_as_sent() {
            let moved = set.count > 0;
            let located = self.locate(SeriesSource::Set, &set.name, false, now, moved);
            if let Some((series, scale)) = located {
                self.series[series].value = set.count as f64 * scale;
            }
        }
    }

    fn record_self_metrics(&mut self, values: &SelfMetrics) {
        values.record(&self.self_metrics);
        self.self_metrics.gauge(&PROMETHEUS_SERIES).set(self.series.len() as f64);
        self.self_metrics.counter(&PROMETHEUS_DROPPED_VALUES).raise_to(self.dropped);
        self.self_metrics.counter(&PROMETHEUS_RENAMED_KEYS).raise_to(self.renamed);
    }

    /// Calls `each` with the server's own metrics, each with its name under the configured prefix.
    pub(super) fn for_each_self_metric(&self, mut each: impl FnMut(&str, &MetricFamily)) {
        let prefix = match &*self.names.self_prefix {
            "" => String::new(),
            prefix => names::metric(prefix),
        };
        self.self_metrics.for_each_family(|family| {
            each(&self_metrics::prometheus_name(&prefix, family.description()), family);
        });
    }

    /// Returns a number that changes whenever the positions of series do.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the family of the series at a position of the list sorted by name and labels, and
    /// the end of a run of at most `run_max` series of that family; `None` at the end of the list.
    pub(super) fn run_at(
        &self,
        start: usize,
        run_max: usize,
    ) -> Option<(&PrometheusFamily, usize)> {
        let rest = self.order.get(start..)?;
        let family = self.series[*rest.first()? as usize].family;
        let run = rest.iter().take(run_max);
        let run = run.take_while(|series| self.series[**series as usize].family == family).count();
        Some((&self.families[family as usize], start + run))
    }

    /// Returns the series at a position of the list sorted by name and labels.
    pub(super) fn series_at(&self, position: usize) -> SeriesView<'_> {
        let series = &self.series[self.order[position] as usize];
        SeriesView {
            labels: series.labels(&self.label_text),
            value: series.value,
            observations: self.observations.get(series.observed as usize),
        }
    }

    /// Returns the position of the first series after this name and these labels.
    pub(super) fn position_after(&self, name: &str, labels: &str) -> usize {
        self.order.partition_point(|index| {
            let series = &self.series[*index as usize];
            let family = self.name(&self.families[series.family as usize]);
            (&*family, series.labels(&self.label_text)) <= (name, labels)
        })
    }

    /// Returns the name of a family.
    pub(super) fn name(&self, family: &PrometheusFamily) -> Cow<'_, str> {
        match self.texts.get(family.name as usize) {
            Some(name) => Cow::Borrowed(&**name),
            None => {
                let origin = &self.placements.get(family.origin).name;
                Cow::Owned(names::metric(origin.base()) + SUFFIXES[usize::from(family.suffix)])
            }
        }
    }

    /// Returns the `# HELP` text of a family.
    pub(super) fn help(&self, family: &PrometheusFamily) -> Cow<'_, str> {
        match self.texts.get(family.help as usize) {
            Some(help) => Cow::Borrowed(&**help),
            None => {
                let origin = &self.placements.get(family.origin).name;
                let source = family.source.as_str();
                Cow::Owned(format!("The statsd {source} {}.", origin.base()))
            }
        }
    }

    /// Returns the series of a key, which is created if needed, and the scale of its values. Counts
    /// a value as dropped if its key has no series.
    fn locate(
        &mut self,
        source: SeriesSource,
        name: &MetricName,
        in_seconds: bool,
        now: u32,
        moved: bool,
    ) -> Option<(usize, f64)> {
        let place = match self.placements.find(source, name) {
            Some(place) if self.placements.get(place).series != UNRESOLVED => place,
            // A key that is only repeated does not bring its removed series back.
            None if self.has_evicted && !moved => return None,
            // Placements share the limit on series, so that a flood of keys cannot exhaust memory.
            None if self.placements.len() >= self.series_max => {
                self.dropped += 1;
                return None;
            }
            found => {
                let place = found.unwrap_or_else(|| self.placements.add(source, name.clone()));
                let resolved = self.find_series(source, place, in_seconds, now);
                let (series, treatment) = resolved.unwrap_or((NONE, NONE));
                self.placements.set(place, series, treatment);
                place
            }
        };
        let place = self.placements.get(place);
        let Some(series) = self.series.get_mut(place.series as usize) else {
            self.dropped += u64::from(moved);
            return None;
        };
        if moved {
            series.touched = now;
        }
        Some((place.series as usize, self.treatments[place.treatment as usize].scale))
    }

    /// Returns the series and treatment of a key; `None` if a rule drops it or its names conflict.
    fn find_series(
        &mut self,
        source: SeriesSource,
        place: u32,
        seconds: bool,
        now: u32,
    ) -> Option<(u32, u32)> {
        let target = self.names.target(source, &self.placements.get(place).name, seconds)?;
        let SeriesTarget { requested, labels, shape, help, treatment } = target;
        let family = self.find_or_add_family(requested, shape, source, place, help)?;
        let treatment = intern_treatment(&mut self.treatments, treatment);
        Some((self.find_or_add_series(family, &labels, treatment, now)?, treatment))
    }

    /// Returns the series of a family with these labels, created if needed. Called only for new
    /// placements, whose number is limited. `None` if the labels of all series exceed 4 GiB.
    fn find_or_add_series(
        &mut self,
        family: u32,
        labels: &LabelSet,
        treatment: u32,
        now: u32,
    ) -> Option<u32> {
        let Self { series: all, by_labels, hasher, label_text, .. } = self;
        let labels = labels.as_str();
        let hash = hasher.hash_one((family, labels));
        let parent = &mut self.families[family as usize];
        let existing = match labels {
            "" => Some(parent.unlabelled).filter(|series| *series != NONE),
            _ => by_labels
                .find(hash, |series| {
                    let series = &all[*series as usize];
                    series.family == family && series.labels(label_text) == labels
                })
                .copied(),
        };
        if let Some(series) = existing {
            return Some(series);
        }
        let labels_start = u32::try_from(label_text.len()).ok()?;
        let labels_bytes = u32::try_from(labels.len()).ok()?;
        label_text.push_str(labels);
        let observed = match parent.shape {
            FamilyType::Counter | FamilyType::Gauge => NONE,
            FamilyType::Summary | FamilyType::Histogram => {
                let observing = &self.treatments[treatment as usize].observing;
                self.observations.push(TimerObservations::new(observing));
                (self.observations.len() - 1) as u32
            }
        };
        let new = all.len() as u32;
        all.push(PrometheusSeries {
            value: 0.0,
            labels_start,
            labels_bytes,
            observed,
            touched: now,
            family,
            treatment,
        });
        if labels.is_empty() {
            parent.unlabelled = new;
        } else {
            by_labels.insert_unique(hash, new, |series| {
                let series = &all[*series as usize];
                hasher.hash_one((series.family, series.labels(label_text)))
            });
        }
        Some(new)
    }

    /// Returns the family named `requested`, created if needed; with a type suffix if that name
    /// conflicts, and `None` if both names do. `origin` is the placement of the key.
    fn find_or_add_family(
        &mut self,
        requested: String,
        shape: FamilyType,
        source: SeriesSource,
        origin: u32,
        help: Option<String>,
    ) -> Option<u32> {
        let other = format!("{requested}_{}", source.as_str());
        let (name, renamed) = match self.by_name(&requested) {
            Some(family) if self.families[family as usize].shape == shape => return Some(family),
            None if !self.has_name_conflict(shape, &requested) => (requested, false),
            _ => match self.by_name(&other) {
                Some(family) if self.families[family as usize].shape == shape => {
                    return Some(family);
                }
                None if !self.has_name_conflict(shape, &other) => (other, true),
                _ => return None,
            },
        };
        self.renamed += u64::from(renamed);
        let new = self.families.len() as u32;
        let hash = self.hasher.hash_one(&*name);
        let base = names::metric(self.placements.get(origin).name.base());
        let derived = name.strip_prefix(&*base).and_then(|rest| {
            let suffix = SUFFIXES.iter().position(|suffix| *suffix == rest)?;
            u8::try_from(suffix).ok()
        });
        let (name, suffix) = match derived {
            Some(suffix) => (NONE, suffix),
            None => (push_text(&mut self.texts, name), 0),
        };
        let help = help.map_or(NONE, |help| push_text(&mut self.texts, help));
        let family =
            PrometheusFamily { origin, name, help, unlabelled: NONE, shape, source, suffix };
        self.families.push(family);
        self.index_family(new, hash);
        Some(new)
    }

    /// Adds a family to the index by name.
    fn index_family(&mut self, family: u32, hash: u64) {
        let mut by_name = mem::take(&mut self.by_name);
        by_name.insert_unique(hash, family, |other| {
            self.hasher.hash_one(&*self.name(&self.families[*other as usize]))
        });
        self.by_name = by_name;
    }

    fn by_name(&self, name: &str) -> Option<u32> {
        let hash = self.hasher.hash_one(name);
        let is_it = |family: &u32| self.name(&self.families[*family as usize]) == name;
        self.by_name.find(hash, is_it).copied()
    }

    /// Whether a sample of a family with this type and name would have the same name as a sample of
    /// another family.
    fn has_name_conflict(&self, shape: FamilyType, family: &str) -> bool {
        shape.suffixes().iter().any(|suffix| {
            let sample = format!("{family}{suffix}");
            self.by_name(&sample).is_some()
                || FamilyType::ALL_SUFFIXES.iter().any(|suffix| {
                    let other = sample.strip_suffix(suffix).and_then(|name| self.by_name(name));
                    other.is_some_and(|other| {
                        self.families[other as usize].shape.suffixes().contains(suffix)
                    })
                })
        })
    }

    /// Removes series that have been idle for too long.
    fn evict_idle(&mut self, now: u32) {
        let is_idle = |series: &PrometheusSeries| {
            let ttl = self.treatments[series.treatment as usize].ttl;
            // Times are whole seconds.
            let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
            seconds > 0 && u64::from(now.saturating_sub(series.touched)) >= seconds
        };
        if !self.series.iter().any(is_idle) {
            return;
        }
        let remaining: Vec<bool> = self.series.iter().map(|series| !is_idle(series)).collect();
        self.has_evicted = true;
        self.remove_series(&remaining);
    }

    /// Removes the series that are not to remain, families without series, and keys without series
    /// except unresolved ones.
    fn remove_series(&mut self, remaining: &[bool]) {
        let mut used = vec![false; self.families.len()];
        for (series, remains) in self.series.iter().zip(remaining) {
            used[series.family as usize] |= remains;
        }
        let series = new_indexes(remaining.iter().copied());
        let families = new_indexes(used.iter().copied());
        self.move_families(&families, &series);
        self.move_series(&series, &families);
        let origins = self.families.iter_mut().map(|family| &mut family.origin);
        self.placements.remove_unplaced(&series, origins);
        self.rebuild_indexes();
    }

    /// Drops the families without a new index, and unused texts.
    fn move_families(&mut self, families: &[u32], series: &[u32]) {
        let mut texts = mem::take(&mut self.texts);
        let mut old = 0..;
        let all = &mut self.families;
        all.retain(|_| old.next().is_some_and(|old: usize| families[old] != NONE));
        for family in all {
            family.unlabelled = moved(family.unlabelled, series);
            for text in [&mut family.name, &mut family.help] {
                if let Some(used) = texts.get_mut(*text as usize) {
                    *text = push_text(&mut self.texts, mem::take(used));
                }
            }
        }
        self.families.shrink_to_fit();
    }

    /// Drops the series without a new index, with their labels and observations.
    fn move_series(&mut self, series: &[u32], families: &[u32]) {
        let text = mem::take(&mut self.label_text);
        let mut observations: Vec<Option<TimerObservations>> =
            mem::take(&mut self.observations).into_iter().map(Some).collect();
        let mut old = 0..;
        let all = &mut self.series;
        all.retain(|_| old.next().is_some_and(|old: usize| series[old] != NONE));
        for series in all {
            series.family = moved(series.family, families);
            let labels = series.labels(&text);
            series.labels_start = self.label_text.len() as u32;
            self.label_text.push_str(labels);
            let observed = observations.get_mut(series.observed as usize);
            if let Some(observed) = observed.and_then(Option::take) {
                series.observed = self.observations.len() as u32;
                self.observations.push(observed);
            }
        }
        self.series.shrink_to_fit();
        self.order.retain_mut(|index| {
            *index = moved(*index, series);
            *index != NONE
        });
        self.generation += 1;
    }

    /// Rebuilds the indexes by name and labels after a removal.
    fn rebuild_indexes(&mut self) {
        self.by_name = HashTable::with_capacity(self.families.len());
        for family in 0..self.families.len() {
            let hash = self.hasher.hash_one(&*self.name(&self.families[family]));
            self.index_family(family as u32, hash);
        }
        self.by_labels = HashTable::new();
        let Self { by_labels, series: all, hasher, label_text, .. } = self;
        let hash =
            |series: &PrometheusSeries| hasher.hash_one((series.family, series.labels(label_text)));
        for (index, series) in all.iter().enumerate().filter(|(_, one)| one.labels_bytes > 0) {
            by_labels
                .insert_unique(hash(series), index as u32, |other| hash(&all[*other as usize]));
        }
    }

    /// Sorts new series into the list.
    fn sort_new(&mut self) {
        if self.order.len() == self.series.len() {
            return;
        }
        let mut order = mem::take(&mut self.order);
        let in_order = order.len();
        // Removed series are not in the list any more, so the last ones are the new ones.
        order.extend(in_order as u32..self.series.len() as u32);
        // A stable sort, because it is fast on mostly sorted input.
        let family_name =
            |series: &PrometheusSeries| self.name(&self.families[series.family as usize]);
        order.sort_by(|one, other| {
            let [one, other] = [one, other].map(|index| &self.series[*index as usize]);
            if one.family == other.family {
                return one.labels(&self.label_text).cmp(other.labels(&self.label_text));
            }
            family_name(one).cmp(&family_name(other))
        });
        self.order = order;
        self.generation += 1;
    }

    pub(super) fn report(&self, status: &BackendStatus) {
        status.set("series", self.series.len() as f64);
        status.set("dropped_values", self.dropped as f64);
        status.set("renamed_keys", self.renamed as f64);
    }
}

/// Returns the index of a treatment, added if new.
fn intern_treatment(treatments: &mut Vec<ValueTreatment>, treatment: ValueTreatment) -> u32 {
    let at = treatments.iter().position(|known| *known == treatment);
    let at = at.unwrap_or_else(|| {
        treatments.push(treatment);
        treatments.len() - 1
    });
    // The index fits: there are at most two treatments per mapping rule.
    at as u32
}

/// Adds a text and returns its index. There are at most two texts for each family.
fn push_text(texts: &mut Vec<Box<str>>, text: impl Into<Box<str>>) -> u32 {
    texts.push(text.into());
    (texts.len() - 1) as u32
}

/// Returns the seconds since 1970, which fit until 2106.
fn seconds(time: SystemTime) -> u32 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u32::try_from(since.as_secs()).unwrap_or(u32::MAX)
}

impl PrometheusSeries {
    fn labels<'t>(&self, text: &'t str) -> &'t str {
        let start = self.labels_start as usize;
        text.get(start..start + self.labels_bytes as usize).unwrap_or_default()
    }
}
