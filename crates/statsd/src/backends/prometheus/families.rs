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
//! All three are stored in flat tables, because there may be a million of each: an untagged counter
//! takes about 250 bytes plus the text of its key, which it shares with the registry.

use std::{
    collections::VecDeque,
    hash::BuildHasher as _,
    sync::Arc,
    time::{Duration, SystemTime},
};

use hashbrown::{DefaultHashBuilder, HashTable};
use howdah_stats::{MetricFamily, Registry};

use super::{
    mapping::{MappingResult, MatchMetricType, NameMapping, ObserverOptions},
    names::{self, LabelSet},
};
use crate::{
    MetricName,
    backends::BackendStatus,
    flush::{FlushSnapshot, TimerMetric, TimerSamples},
    grammar::TimingUnit,
    self_metrics::{
        self, PROMETHEUS_DROPPED_VALUES, PROMETHEUS_RENAMED_KEYS, PROMETHEUS_SERIES, SelfMetrics,
    },
    settings::{self, ObserverType},
    sketch::Sketch,
};

/// Parts into which the quantile age is divided: one part expires at a time.
const AGE_PARTS: u32 = 5;

/// All families with their series, and the indexes to find them.
#[derive(Debug)]
pub(super) struct FamilyTable {
    families: Vec<PrometheusFamily>,
    /// Index of each family, by name.
    by_name: HashTable<u32>,
    /// Indexes of the families, sorted by name.
    order: Vec<u32>,
    series: Vec<PrometheusSeries>,
    /// Series by family and labels.
    by_labels: HashTable<u32>,
    placements: HashTable<KeyPlacement>,
    treatments: Vec<ValueTreatment>,
    /// Families with series added since the last sort.
    unsorted: Vec<u32>,
    hasher: DefaultHashBuilder,
    /// The server's own metrics, as of the last flush.
    self_metrics: Registry,
    /// The configured prefix of the server's own metrics; empty before the first flush.
    self_prefix: Arc<str>,
    mapping: Option<NameMapping>,
    observing: Arc<ObserverOptions>,
    ttl: Duration,
    series_max: usize,
    /// Values dropped because of the series limit, a mapping rule, or a name that another metric
    /// type uses.
    dropped: u64,
    /// Families created with a type suffix, because another metric type uses their name.
    renamed: u64,
}

/// All series with one name.
#[derive(Debug)]
pub(super) struct PrometheusFamily {
    pub(super) name: Box<str>,
    pub(super) shape: FamilyType,
    source: SeriesSource,
    help: HelpText,
    /// Indexes of the family's series, sorted by labels.
    series: Vec<u32>,
}

/// The source of the `# HELP` text.
#[derive(Debug)]
enum HelpText {
    /// The text of a mapping rule, or of the table of the server's own metrics.
    Given(Box<str>),
    /// The statsd metric that the help text names; formatted when rendered.
    Origin(MetricName),
}

/// The metric type of a family, as its `# TYPE` line declares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FamilyType {
    Counter,
    Gauge,
    Summary,
    Histogram,
}

/// The accumulated values of one combination of name and labels.
#[derive(Debug)]
pub(super) struct PrometheusSeries {
    pub(super) labels: LabelSet,
    pub(super) value: f64,
    pub(super) observations: Option<Box<TimerObservations>>,
    touched: SystemTime,
    family: u32,
    treatment: u32,
}

/// The accumulated observations of a timer.
#[derive(Debug)]
pub(super) struct TimerObservations {
    pub(super) observing: Arc<ObserverOptions>,
    pub(super) count: f64,
    pub(super) sum: f64,
    /// Observations per bucket, not cumulative; the last bucket has no bound.
    pub(super) buckets: Vec<f64>,
    /// All observations of a histogram, for its native buckets.
    pub(super) native: Sketch,
    /// Recent observations of a summary, for quantiles, with the start time of each part.
    recent: VecDeque<(SystemTime, Sketch)>,
}

/// The statsd metric type of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum SeriesSource {
    Counter,
    Gauge,
    Timer,
    Set,
}

impl SeriesSource {
    fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Timer => "timer",
            Self::Set => "set",
        }
    }

    fn kind(self) -> MatchMetricType {
        match self {
            Self::Counter => MatchMetricType::Counter,
            Self::Gauge | Self::Set => MatchMetricType::Gauge,
            Self::Timer => MatchMetricType::Observer,
        }
    }
}

/// A key with its series and treatment, which are determined once.
#[derive(Debug)]
struct KeyPlacement {
    name: MetricName,
    source: SeriesSource,
    /// `None` if a mapping rule drops the key, or other metric types use its names.
    series: Option<u32>,
    treatment: u32,
}

/// The rules by which the values of a key are scaled, expired and observed. There are few distinct
/// ones: about one per mapping rule.
#[derive(Clone, Debug, PartialEq)]
struct ValueTreatment {
    scale: f64,
    ttl: Duration,
    observing: Arc<ObserverOptions>,
}

impl FamilyTable {
    pub(super) fn new(
        settings: &settings::PrometheusSettings,
        mapping: Option<NameMapping>,
    ) -> Self {
        let observing = match &mapping {
            Some(mapping) => Arc::clone(mapping.defaults()),
            None => Arc::new(ObserverOptions::from_settings(settings)),
        };
        let mut table = Self {
            families: Vec::new(),
            by_name: HashTable::new(),
            order: Vec::new(),
            series: Vec::new(),
            by_labels: HashTable::new(),
            placements: HashTable::new(),
            treatments: Vec::new(),
            unsorted: Vec::new(),
            hasher: DefaultHashBuilder::default(),
            self_metrics: Registry::new(),
            self_prefix: Arc::default(),
            mapping,
            observing,
            ttl: settings.ttl,
            series_max: settings.series_max,
            dropped: 0,
            renamed: 0,
        };
        table.record_self_metrics(&SelfMetrics::default());
        table
    }

    /// Adds one interval, removes series that have become idle, and updates the server's own
    /// metrics.
    pub(super) fn add_snapshot(&mut self, snapshot: &FlushSnapshot) {
        let now = snapshot.time;
        self.self_prefix = Arc::clone(&snapshot.self_metrics.prefix);
        for counter in snapshot.counters_as_sent() {
            let moved = counter.value != 0.0;
            self.update(
                SeriesSource::Counter,
                &counter.name,
                false,
                now,
                moved,
                |series, scale| {
                    // A Prometheus counter never decreases.
                    series.value += (counter.value * scale).max(0.0);
                },
            );
        }
        for timer in snapshot.timers_as_sent() {
            let seconds = timer.unit == TimingUnit::Milliseconds;
            let moved = timer.summary.is_some();
            self.update(SeriesSource::Timer, &timer.name, seconds, now, moved, |series, scale| {
                if let Some(observed) = &mut series.observations {
                    observed.add(timer, scale, now);
                }
            });
        }
        for gauge in snapshot.gauges_as_sent() {
            self.update(SeriesSource::Gauge, &gauge.name, false, now, true, |series, scale| {
                series.value = gauge.value * scale;
            });
        }
        for set in snapshot.sets_as_sent() {
            let moved = set.count > 0;
            self.update(SeriesSource::Set, &set.name, false, now, moved, |series, scale| {
                series.value = set.count as f64 * scale;
            });
        }
        self.evict_idle(now);
        self.sort_new();
        self.record_self_metrics(&snapshot.self_metrics);
    }

    fn record_self_metrics(&mut self, values: &SelfMetrics) {
        values.record(&self.self_metrics);
        self.self_metrics.gauge(&PROMETHEUS_SERIES).set(self.series.len() as f64);
        self.self_metrics.counter(&PROMETHEUS_DROPPED_VALUES).raise_to(self.dropped);
        self.self_metrics.counter(&PROMETHEUS_RENAMED_KEYS).raise_to(self.renamed);
    }

    /// Calls `each` with the server's own metrics, each with its name under the configured prefix.
    pub(super) fn for_each_self_metric(&self, mut each: impl FnMut(&str, &MetricFamily)) {
        let prefix = match &*self.self_prefix {
            "" => String::new(),
            prefix => names::metric(prefix),
        };
        self.self_metrics.for_each_family(|family| {
            each(&self_metrics::prometheus_name(&prefix, family.description()), family);
        });
    }

    /// Returns all families sorted by name, each with its series sorted by labels.
    pub(super) fn iter(
        &self,
    ) -> impl Iterator<Item = (&PrometheusFamily, impl Iterator<Item = &PrometheusSeries>)> {
        self.order.iter().map(|family| {
            let family = &self.families[*family as usize];
            (family, family.series.iter().map(|series| &self.series[*series as usize]))
        })
    }

    /// Applies `change` to the series of a key, which is created if needed. Counts a value as
    /// dropped if its key has no series.
    fn update(
        &mut self,
        source: SeriesSource,
        name: &MetricName,
        seconds: bool,
        now: SystemTime,
        moved: bool,
        change: impl FnOnce(&mut PrometheusSeries, f64),
    ) {
        let hash = self.hasher.hash_one((source, name.key()));
        let is_it = |place: &KeyPlacement| place.source == source && place.name == *name;
        let known = self.placements.find(hash, is_it).map(|place| (place.series, place.treatment));
        let (series, treatment) = match known {
            Some(known) => known,
            None => {
                // Placements share the limit on series, so that a flood of keys cannot exhaust
                // memory.
                if self.placements.len() >= self.series_max {
                    self.dropped += 1;
                    return;
                }
                let target = self.find_series(source, name, seconds, now).unwrap_or((None, 0));
                let place = KeyPlacement {
                    name: name.clone(),
                    source,
                    series: target.0,
                    treatment: target.1,
                };
                let hasher = &self.hasher;
                self.placements.insert_unique(hash, place, |place| {
                    hasher.hash_one((place.source, place.name.key()))
                });
                target
            }
        };
        let Some(series) = series else {
            self.dropped += u64::from(moved);
            return;
        };
        let series = &mut self.series[series as usize];
        if moved {
            series.touched = now;
        }
        change(series, self.treatments[treatment as usize].scale);
    }

    /// Returns the series and treatment of a key; `None` if a rule drops it or its names conflict.
    fn find_series(
        &mut self,
        source: SeriesSource,
        name: &MetricName,
        seconds: bool,
        now: SystemTime,
    ) -> Option<(Option<u32>, u32)> {
        let base = name.base();
        let lookup = self.mapping.as_ref().map(|mapping| mapping.map_name(base, source.kind()));
        let tags = name.tags().map(|(tag, value)| {
            // In Prometheus an empty label is the same as none, so a tag without a value becomes
            // `true`.
            let value = if value.is_empty() { "true".to_owned() } else { value.into_owned() };
            (names::label(&tag), value)
        });
        let (requested, labels, help, treatment) = match lookup {
            Some(MappingResult::Drop) => return None,
            Some(MappingResult::Mapped(mapped)) => {
                let given = mapped.labels.into_iter();
                let given = given.map(|(label, value)| (names::label(&label), value));
                // The first of several labels with the same name wins.
                let labels = if mapped.honor_labels {
                    names::labels(tags.chain(given))
                } else {
                    names::labels(given.chain(tags))
                };
                let treatment = ValueTreatment {
                    scale: mapped.scale,
                    ttl: mapped.ttl.unwrap_or(self.ttl),
                    observing: mapped.observing,
                };
                (names::metric(&mapped.name), labels, mapped.help, treatment)
            }
            Some(MappingResult::NoRule) | None => {
                let requested = names::metric(base);
                let requested = match source {
                    SeriesSource::Counter => names::with_suffix(requested, "_total"),
                    SeriesSource::Timer if seconds => names::with_suffix(requested, "_seconds"),
                    _ => requested,
                };
                let observing = Arc::clone(&self.observing);
                let treatment = ValueTreatment { scale: 1.0, ttl: self.ttl, observing };
                let described = self_metrics::find_aggregated(&self.self_prefix, name.key());
                let help = described.map(|metric| metric.help().to_owned());
                (requested, names::labels(tags), help, treatment)
            }
        };
        let shape = match (source, treatment.observing.observer) {
            (SeriesSource::Counter, _) => FamilyType::Counter,
            (SeriesSource::Gauge | SeriesSource::Set, _) => FamilyType::Gauge,
            (SeriesSource::Timer, ObserverType::Summary) => FamilyType::Summary,
            (SeriesSource::Timer, ObserverType::Histogram) => FamilyType::Histogram,
        };
        let help = match help {
            Some(help) => HelpText::Given(help.into()),
            None => HelpText::Origin(name.clone()),
        };
        let family = self.find_or_add_family(requested, shape, source, help)?;
        let treatment = self.intern_treatment(treatment);
        Some((Some(self.find_or_add_series(family, labels, treatment, now)), treatment))
    }

    /// Returns the index of a treatment, added if new.
    fn intern_treatment(&mut self, treatment: ValueTreatment) -> u32 {
        let at = self.treatments.iter().position(|known| *known == treatment);
        let at = at.unwrap_or_else(|| {
            self.treatments.push(treatment);
            self.treatments.len() - 1
        });
        // The index fits: there are at most two treatments per mapping rule.
        at as u32
    }

    /// Returns the series of a family with these labels, created if needed. Called only for new
    /// placements, whose number is limited.
    fn find_or_add_series(
        &mut self,
        family: u32,
        labels: LabelSet,
        treatment: u32,
        now: SystemTime,
    ) -> u32 {
        let Self { series: all, by_labels, hasher, .. } = self;
        let hash = hasher.hash_one((family, &labels));
        let existing = by_labels.find(hash, |series| {
            let series = &all[*series as usize];
            series.family == family && series.labels == labels
        });
        if let Some(series) = existing {
            return *series;
        }
        let parent = &mut self.families[family as usize];
        let observing = &self.treatments[treatment as usize].observing;
        let new = all.len() as u32;
        all.push(PrometheusSeries::new(parent.shape, labels, (family, treatment), observing, now));
        by_labels.insert_unique(hash, new, |series| {
            let series = &all[*series as usize];
            hasher.hash_one((series.family, &series.labels))
        });
        parent.series.push(new);
        self.unsorted.push(family);
        new
    }

    /// Returns the family named `requested`, created if needed; with a type suffix if that name
    /// conflicts, and `None` if both names do.
    fn find_or_add_family(
        &mut self,
        requested: String,
        shape: FamilyType,
        source: SeriesSource,
        help: HelpText,
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
        let name = name.into_boxed_str();
        self.families.push(PrometheusFamily { name, shape, source, help, series: Vec::new() });
        let Self { families, by_name, hasher, .. } = self;
        by_name
            .insert_unique(hash, new, |family| hasher.hash_one(&*families[*family as usize].name));
        Some(new)
    }

    fn by_name(&self, name: &str) -> Option<u32> {
        let hash = self.hasher.hash_one(name);
        self.by_name.find(hash, |family| *self.families[*family as usize].name == *name).copied()
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

    fn evict_idle(&mut self, now: SystemTime) {
        let is_idle = |series: &PrometheusSeries| {
            let ttl = self.treatments[series.treatment as usize].ttl;
            !ttl.is_zero() && now.duration_since(series.touched).unwrap_or_default() >= ttl
        };
        if !self.series.iter().any(is_idle) {
            return;
        }
        // All indexes change. Placements are rebuilt when their keys occur again, and families
        // without series are removed.
        let remaining: Vec<PrometheusSeries> = {
            let idle: Vec<bool> = self.series.iter().map(is_idle).collect();
            let mut idle = idle.into_iter();
            let all = std::mem::take(&mut self.series).into_iter();
            all.filter(|_| !idle.next().unwrap_or_default()).collect()
        };
        let families = std::mem::take(&mut self.families);
        let mut moved = vec![None; families.len()];
        let mut used = vec![false; families.len()];
        remaining.iter().for_each(|series| used[series.family as usize] = true);
        for (at, mut family) in families.into_iter().enumerate() {
            if used[at] {
                moved[at] = Some(self.families.len() as u32);
                family.series = Vec::new();
                self.families.push(family);
            }
        }
        self.series = remaining;
        for (at, series) in self.series.iter_mut().enumerate() {
            series.family = moved[series.family as usize].unwrap_or_default();
            self.families[series.family as usize].series.push(at as u32);
        }
        self.order = Vec::new();
        self.unsorted = (0..self.families.len() as u32).collect();
        self.placements = HashTable::new();
        self.by_name = HashTable::with_capacity(self.families.len());
        self.by_labels = HashTable::with_capacity(self.series.len());
        let Self { families, by_name, by_labels, series, hasher, .. } = self;
        for (at, family) in families.iter().enumerate() {
            by_name.insert_unique(hasher.hash_one(&*family.name), at as u32, |family| {
                hasher.hash_one(&*families[*family as usize].name)
            });
        }
        for (at, one) in series.iter().enumerate() {
            by_labels.insert_unique(hasher.hash_one((one.family, &one.labels)), at as u32, |at| {
                let series = &series[*at as usize];
                hasher.hash_one((series.family, &series.labels))
            });
        }
    }

    /// Sorts new families and series.
    fn sort_new(&mut self) {
        let Self { families, order, series, unsorted, .. } = self;
        if order.len() < families.len() {
            order.extend(order.len() as u32..families.len() as u32);
            // A stable sort, because it is fast on mostly sorted input.
            order.sort_by(|a, b| families[*a as usize].name.cmp(&families[*b as usize].name));
        }
        unsorted.sort_unstable();
        unsorted.dedup();
        for family in unsorted.drain(..) {
            let labels = |at: &u32| &series[*at as usize].labels;
            families[family as usize].series.sort_by(|a, b| labels(a).cmp(labels(b)));
        }
        unsorted.shrink_to(1024);
    }

    pub(super) fn report(&self, status: &BackendStatus) {
        status.set("series", self.series.len() as f64);
        status.set("dropped_values", self.dropped as f64);
        status.set("renamed_keys", self.renamed as f64);
    }
}

impl PrometheusFamily {
    /// Returns the `# HELP` text.
    pub(super) fn help(&self) -> String {
        match &self.help {
            HelpText::Given(text) => text.to_string(),
            HelpText::Origin(name) => {
                format!("The statsd {} {}.", self.source.as_str(), name.base())
            }
        }
    }
}

impl FamilyType {
    /// All non-empty suffixes of sample names.
    const ALL_SUFFIXES: [&'static str; 3] = ["_sum", "_count", "_bucket"];

    /// Returns the name used in `# TYPE`.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Summary => "summary",
            Self::Histogram => "histogram",
        }
    }

    /// Returns the suffixes of sample names in a family of this type.
    fn suffixes(self) -> &'static [&'static str] {
        match self {
            Self::Counter | Self::Gauge => &[""],
            Self::Summary => &["", "_sum", "_count"],
            Self::Histogram => &["", "_bucket", "_sum", "_count"],
        }
    }
}

impl PrometheusSeries {
    fn new(
        shape: FamilyType,
        labels: LabelSet,
        (family, treatment): (u32, u32),
        observing: &Arc<ObserverOptions>,
        now: SystemTime,
    ) -> Self {
        let observed = match shape {
            FamilyType::Counter | FamilyType::Gauge => None,
            FamilyType::Summary | FamilyType::Histogram => Some(Box::new(TimerObservations {
                buckets: match observing.observer {
                    ObserverType::Histogram => vec![0.0; observing.buckets.len() + 1],
                    ObserverType::Summary => Vec::new(),
                },
                observing: Arc::clone(observing),
                count: 0.0,
                sum: 0.0,
                native: Sketch::default(),
                recent: VecDeque::new(),
            })),
        };
        Self { labels, value: 0.0, observations: observed, touched: now, family, treatment }
    }
}

impl TimerObservations {
    /// Adds the samples of an interval. Sample rates are not stored individually; weighting every
    /// sample equally keeps the total count right.
    fn add(&mut self, timer: &TimerMetric, scale: f64, now: SystemTime) {
        let per_base = timer.unit.per_base();
        let Some(summary) = &timer.summary else { return };
        let weight = summary.count / summary.samples.max(1) as f64;
        self.count += summary.count;
        self.sum += summary.sum * weight / per_base * scale;
        match self.observing.observer {
            ObserverType::Histogram => {
                let bounds = Arc::clone(&self.observing);
                for_each_value(timer, scale, weight, |value, weight| {
                    let at = bounds.buckets.partition_point(|bound| *bound < value);
                    if let Some(bucket) = self.buckets.get_mut(at) {
                        *bucket += weight;
                    }
                    self.native.add(value, weight);
                });
            }
            ObserverType::Summary => {
                let recent = self.current_part(now);
                for_each_value(timer, scale, weight, |value, weight| recent.add(value, weight));
            }
        }
    }

    /// Returns the current part of the recent observations; removes expired parts.
    fn current_part(&mut self, now: SystemTime) -> &mut Sketch {
        let age = self.observing.quantile_age;
        let old =
            |since: &SystemTime, limit| now.duration_since(*since).unwrap_or_default() >= limit;
        while self.recent.front().is_some_and(|(since, _)| old(since, age)) {
            self.recent.pop_front();
        }
        if self.recent.back().is_none_or(|(since, _)| old(since, age / AGE_PARTS)) {
            self.recent.push_back((now, Sketch::default()));
        }
        let last = self.recent.len() - 1;
        &mut self.recent[last].1
    }

    /// Returns each configured quantile with its value, which is NaN without recent observations.
    pub(super) fn quantiles(&self) -> Vec<(f64, f64)> {
        let mut all = Sketch::default();
        self.recent.iter().for_each(|(_, part)| all.merge(part));
        let value = |quantile| all.quantile(quantile).unwrap_or(f64::NAN);
        self.observing.quantiles.iter().map(|quantile| (*quantile, value(*quantile))).collect()
    }
}

/// Calls `take` with each scaled value in base units and its weight.
fn for_each_value(timer: &TimerMetric, scale: f64, weight: f64, mut take: impl FnMut(f64, f64)) {
    match &timer.samples {
        TimerSamples::Exact(values) => {
            values.iter().for_each(|value| take(timer.unit.to_base(*value) * scale, weight));
        }
        TimerSamples::Sketched(sketch) => {
            let finest = Sketch::SCALE.cast_signed();
            let middle = |index: i32| ((f64::from(index) + 0.5) / f64::from(1 << finest)).exp2();
            for (index, count) in sketch.negative(finest) {
                take(-middle(index) * scale, count);
            }
            if sketch.zeros() > 0.0 {
                take(0.0, sketch.zeros());
            }
            for (index, count) in sketch.positive(finest) {
                take(middle(index) * scale, count);
            }
        }
    }
}
