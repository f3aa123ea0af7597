//! [`Families`]: the numbers that a scrape shows, added up flush by flush.
//!
//! A family is all series of one name. Which series a key belongs to is worked out once, and
//! remembered; after that a value costs one look-up. Two keys that come to one name and the same labels
//! are one series: counters and timers add up, of gauges the last one counts. A key whose name another
//! kind of metric has already gets its own kind as a suffix.
//!
//! ```text
//!  key ──hash──► Place ──number──► Series ──number──► Family
//! ```
//!
//! All three are rows of flat lists, because there may be a million of each: an untagged counter takes
//! some 250 bytes beside the text of its key, which it shares with the registry.

use std::{
    collections::VecDeque,
    hash::BuildHasher as _,
    sync::Arc,
    time::{Duration, SystemTime},
};

use hashbrown::{DefaultHashBuilder, HashTable};

use super::{
    mapping::{Kind, Lookup, Mapping, Observing},
    names::{self, Labels},
};
use crate::{
    Name,
    backends::Status,
    flush::{OwnMetrics, Samples, Snapshot, Timer},
    grammar::TimingUnit,
    settings::{self, Observer},
    sketch::Sketch,
};

/// Parts that the age of quantiles is kept in: one falls away at a time.
const AGE_PARTS: u32 = 5;

/// All families by name.
#[derive(Debug)]
pub(super) struct Families {
    families: Vec<Family>,
    /// Families by name.
    by_name: HashTable<u32>,
    /// Families in the order of their names.
    order: Vec<u32>,
    series: Vec<Series>,
    /// Series by family and labels.
    by_labels: HashTable<u32>,
    places: HashTable<Place>,
    treatments: Vec<Treatment>,
    /// Families with series that came since they were sorted.
    unsorted: Vec<u32>,
    hasher: DefaultHashBuilder,
    /// The server about itself, as of the last flush.
    pub(super) own: OwnMetrics,
    mapping: Option<Mapping>,
    observing: Arc<Observing>,
    ttl: Duration,
    series_max: usize,
    /// Values without a place: too many series, or a rule says so.
    pub(super) dropped: u64,
    /// Keys that were renamed because of another kind of metric.
    pub(super) renamed: u64,
}

/// All series of one name.
#[derive(Debug)]
pub(super) struct Family {
    pub(super) name: Box<str>,
    pub(super) shape: Shape,
    source: Source,
    help: Help,
    /// By labels.
    series: Vec<u32>,
}

/// What `# HELP` says.
#[derive(Debug)]
enum Help {
    /// A mapping's text.
    Given(Box<str>),
    /// That it is a statsd metric of this name; put together when it is shown.
    Origin(Name),
}

/// What the samples of a family look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Counter,
    Gauge,
    Summary,
    Histogram,
}

/// What one series holds.
#[derive(Debug)]
pub(super) struct Series {
    pub(super) labels: Labels,
    pub(super) value: f64,
    pub(super) observed: Option<Box<Observed>>,
    touched: SystemTime,
    family: u32,
    treatment: u32,
}

/// What a timer has been.
#[derive(Debug)]
pub(super) struct Observed {
    pub(super) observing: Arc<Observing>,
    pub(super) count: f64,
    pub(super) sum: f64,
    /// Observations below each bound and above the one before; the last for the rest.
    pub(super) buckets: Vec<f64>,
    /// All of them, for native histograms.
    pub(super) native: Sketch,
    /// The last ones, for quantiles, by when each part began.
    recent: VecDeque<(SystemTime, Sketch)>,
}

/// What a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Source {
    Counter,
    Gauge,
    Timer,
    Set,
}

impl Source {
    fn word(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Timer => "timer",
            Self::Set => "set",
        }
    }

    fn kind(self) -> Kind {
        match self {
            Self::Counter => Kind::Counter,
            Self::Gauge | Self::Set => Kind::Gauge,
            Self::Timer => Kind::Observer,
        }
    }
}

/// Where a key's values go.
#[derive(Debug)]
struct Place {
    name: Name,
    source: Source,
    /// None if a rule drops them.
    series: Option<u32>,
    treatment: u32,
}

/// What is done with values on their way. Few differ: at most one for each rule of a mapping.
#[derive(Clone, Debug, PartialEq)]
struct Treatment {
    scale: f64,
    ttl: Duration,
    observing: Arc<Observing>,
}

impl Families {
    pub(super) fn new(settings: &settings::Prometheus, mapping: Option<Mapping>) -> Self {
        let observing = match &mapping {
            Some(mapping) => Arc::clone(mapping.defaults()),
            None => Arc::new(Observing::from_settings(settings)),
        };
        Self {
            families: Vec::new(),
            by_name: HashTable::new(),
            order: Vec::new(),
            series: Vec::new(),
            by_labels: HashTable::new(),
            places: HashTable::new(),
            treatments: Vec::new(),
            unsorted: Vec::new(),
            hasher: DefaultHashBuilder::default(),
            own: OwnMetrics::default(),
            mapping,
            observing,
            ttl: settings.ttl,
            series_max: settings.series_max,
            dropped: 0,
            renamed: 0,
        }
    }

    /// Adds one interval.
    pub(super) fn apply(&mut self, snapshot: &Snapshot) {
        let now = snapshot.time;
        for counter in snapshot.counters_as_sent() {
            let moved = counter.value != 0.0;
            self.update(Source::Counter, &counter.name, false, now, moved, |series, scale| {
                // A counter of Prometheus' never goes down.
                series.value += (counter.value * scale).max(0.0);
            });
        }
        for timer in snapshot.timers_as_sent() {
            let seconds = timer.unit == TimingUnit::Milliseconds;
            let moved = timer.summary.is_some();
            self.update(Source::Timer, &timer.name, seconds, now, moved, |series, scale| {
                if let Some(observed) = &mut series.observed {
                    observed.add(timer, scale, now);
                }
            });
        }
        for gauge in snapshot.gauges_as_sent() {
            self.update(Source::Gauge, &gauge.name, false, now, true, |series, scale| {
                series.value = gauge.value * scale;
            });
        }
        for set in snapshot.sets_as_sent() {
            let moved = set.count > 0;
            self.update(Source::Set, &set.name, false, now, moved, |series, scale| {
                series.value = set.count as f64 * scale;
            });
        }
        self.own = snapshot.own.clone();
        self.forget_idle(now);
        self.sort();
    }

    /// Every family, by name, with its series, by labels.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Family, impl Iterator<Item = &Series>)> {
        self.order.iter().map(|family| {
            let family = &self.families[*family as usize];
            (family, family.series.iter().map(|series| &self.series[*series as usize]))
        })
    }

    /// Has `change` made in the series of a key, which is made if it is not there.
    fn update(
        &mut self,
        source: Source,
        name: &Name,
        seconds: bool,
        now: SystemTime,
        moved: bool,
        change: impl FnOnce(&mut Series, f64),
    ) {
        let hash = self.hasher.hash_one((source, name.key()));
        let is_it = |place: &Place| place.source == source && place.name == *name;
        let found = self.places.find(hash, is_it).map(|place| (place.series, place.treatment));
        let (series, treatment) = match found {
            Some(found) => found,
            None => {
                // As many places as series: a flood of keys takes no more memory than they may.
                if self.places.len() >= self.series_max {
                    self.dropped += 1;
                    return;
                }
                let found = self.find_series(source, name, seconds, now).unwrap_or((None, 0));
                let place =
                    Place { name: name.clone(), source, series: found.0, treatment: found.1 };
                let hasher = &self.hasher;
                self.places.insert_unique(hash, place, |place| {
                    hasher.hash_one((place.source, place.name.key()))
                });
                found
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

    /// The series of a key, and how its values are treated; `None` if a rule drops it, or its names are
    /// taken.
    fn find_series(
        &mut self,
        source: Source,
        name: &Name,
        seconds: bool,
        now: SystemTime,
    ) -> Option<(Option<u32>, u32)> {
        let base = name.base();
        let lookup = self.mapping.as_ref().map(|mapping| mapping.look_up(base, source.kind()));
        let tags = name.tags().map(|(tag, value)| {
            // An empty label is none at all; a bare tag says that something holds.
            let value = if value.is_empty() { "true".to_owned() } else { value.into_owned() };
            (names::label(&tag), value)
        });
        let (wanted, labels, help, treatment) = match lookup {
            Some(Lookup::Drop) => return None,
            Some(Lookup::Mapped(mapped)) => {
                let given = mapped.labels.into_iter();
                let given = given.map(|(label, value)| (names::label(&label), value));
                // Of two labels of one name the first stays.
                let labels = match mapped.honor_labels {
                    true => names::labels(tags.chain(given)),
                    false => names::labels(given.chain(tags)),
                };
                let treatment = Treatment {
                    scale: mapped.scale,
                    ttl: mapped.ttl.unwrap_or(self.ttl),
                    observing: mapped.observing,
                };
                (names::metric(&mapped.name), labels, mapped.help, treatment)
            }
            Some(Lookup::NoRule) | None => {
                let wanted = names::metric(base);
                let wanted = match source {
                    Source::Counter => names::with_suffix(wanted, "_total"),
                    Source::Timer if seconds => names::with_suffix(wanted, "_seconds"),
                    _ => wanted,
                };
                let observing = Arc::clone(&self.observing);
                let treatment = Treatment { scale: 1.0, ttl: self.ttl, observing };
                (wanted, names::labels(tags), None, treatment)
            }
        };
        let shape = match (source, treatment.observing.observer) {
            (Source::Counter, _) => Shape::Counter,
            (Source::Gauge | Source::Set, _) => Shape::Gauge,
            (Source::Timer, Observer::Summary) => Shape::Summary,
            (Source::Timer, Observer::Histogram) => Shape::Histogram,
        };
        let help = match help {
            Some(help) => Help::Given(help.into()),
            None => Help::Origin(name.clone()),
        };
        let family = self.family(wanted, shape, source, help)?;
        let treatment = self.treatment(treatment);
        Some((Some(self.series_of(family, labels, treatment, now)), treatment))
    }

    /// The number of a treatment.
    fn treatment(&mut self, treatment: Treatment) -> u32 {
        let at = self.treatments.iter().position(|known| *known == treatment);
        let at = at.unwrap_or_else(|| {
            self.treatments.push(treatment);
            self.treatments.len() - 1
        });
        // At most one for each rule, or two.
        at as u32
    }

    /// The series of a family that has these labels, made if need be. Each belongs to a place, so their
    /// number is bounded by that of places.
    fn series_of(&mut self, family: u32, labels: Labels, treatment: u32, now: SystemTime) -> u32 {
        let Self { series: all, by_labels, hasher, .. } = self;
        let hash = hasher.hash_one((family, &labels));
        let known = by_labels.find(hash, |series| {
            let series = &all[*series as usize];
            series.family == family && series.labels == labels
        });
        if let Some(series) = known {
            return *series;
        }
        let parent = &mut self.families[family as usize];
        let observing = &self.treatments[treatment as usize].observing;
        let new = all.len() as u32;
        all.push(Series::new(parent.shape, labels, (family, treatment), observing, now));
        by_labels.insert_unique(hash, new, |series| {
            let series = &all[*series as usize];
            hasher.hash_one((series.family, &series.labels))
        });
        parent.series.push(new);
        self.unsorted.push(family);
        new
    }

    /// The family for `wanted`, made if need be; one of another name if it is taken.
    fn family(&mut self, wanted: String, shape: Shape, source: Source, help: Help) -> Option<u32> {
        let other = format!("{wanted}_{}", source.word());
        let (name, renamed) = match self.by_name(&wanted) {
            Some(family) if self.families[family as usize].shape == shape => return Some(family),
            None if !self.is_taken(shape, &wanted) => (wanted, false),
            _ => match self.by_name(&other) {
                Some(family) if self.families[family as usize].shape == shape => {
                    return Some(family);
                }
                None if !self.is_taken(shape, &other) => (other, true),
                _ => return None,
            },
        };
        self.renamed += u64::from(renamed);
        let new = self.families.len() as u32;
        let hash = self.hasher.hash_one(&*name);
        let name = name.into_boxed_str();
        self.families.push(Family { name, shape, source, help, series: Vec::new() });
        let Self { families, by_name, hasher, .. } = self;
        by_name
            .insert_unique(hash, new, |family| hasher.hash_one(&*families[*family as usize].name));
        Some(new)
    }

    fn by_name(&self, name: &str) -> Option<u32> {
        let hash = self.hasher.hash_one(name);
        self.by_name.find(hash, |family| *self.families[*family as usize].name == *name).copied()
    }

    /// Whether a sample of such a family would have the name of another family's sample.
    fn is_taken(&self, shape: Shape, family: &str) -> bool {
        shape.suffixes().iter().any(|suffix| {
            let sample = format!("{family}{suffix}");
            self.by_name(&sample).is_some()
                || Shape::ALL_SUFFIXES.iter().any(|suffix| {
                    let other = sample.strip_suffix(suffix).and_then(|name| self.by_name(name));
                    other.is_some_and(|other| {
                        self.families[other as usize].shape.suffixes().contains(suffix)
                    })
                })
        })
    }

    fn forget_idle(&mut self, now: SystemTime) {
        let is_idle = |series: &Series| {
            let ttl = self.treatments[series.treatment as usize].ttl;
            !ttl.is_zero() && now.duration_since(series.touched).unwrap_or_default() >= ttl
        };
        if !self.series.iter().any(is_idle) {
            return;
        }
        // All numbers change. Places are found anew when their keys come again, and series of families
        // that have none any more are the last that is needed of those.
        let kept: Vec<Series> = {
            let idle: Vec<bool> = self.series.iter().map(is_idle).collect();
            let mut idle = idle.into_iter();
            let all = std::mem::take(&mut self.series).into_iter();
            all.filter(|_| !idle.next().unwrap_or_default()).collect()
        };
        let families = std::mem::take(&mut self.families);
        let mut moved = vec![None; families.len()];
        let mut used = vec![false; families.len()];
        kept.iter().for_each(|series| used[series.family as usize] = true);
        for (at, mut family) in families.into_iter().enumerate() {
            if used[at] {
                moved[at] = Some(self.families.len() as u32);
                family.series = Vec::new();
                self.families.push(family);
            }
        }
        self.series = kept;
        for (at, series) in self.series.iter_mut().enumerate() {
            series.family = moved[series.family as usize].unwrap_or_default();
            self.families[series.family as usize].series.push(at as u32);
        }
        self.order = Vec::new();
        self.unsorted = (0..self.families.len() as u32).collect();
        self.places = HashTable::new();
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

    /// Puts new families and series in their order.
    fn sort(&mut self) {
        let Self { families, order, series, unsorted, .. } = self;
        if order.len() < families.len() {
            order.extend(order.len() as u32..families.len() as u32);
            // Stable, because it is quick where most of it is sorted already.
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

    /// How many series there are.
    pub(super) fn series_count(&self) -> usize {
        self.series.len()
    }

    pub(super) fn report(&self, status: &Status) {
        status.set("series", self.series.len() as f64);
        status.set("dropped_values", self.dropped as f64);
        status.set("renamed_keys", self.renamed as f64);
    }
}

impl Family {
    /// The text of `# HELP`.
    pub(super) fn help(&self) -> String {
        match &self.help {
            Help::Given(text) => text.to_string(),
            Help::Origin(name) => format!("The statsd {} {}.", self.source.word(), name.base()),
        }
    }
}

impl Shape {
    /// What any family's samples may end in, beside nothing.
    const ALL_SUFFIXES: [&'static str; 3] = ["_sum", "_count", "_bucket"];

    /// The word of `# TYPE`.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Summary => "summary",
            Self::Histogram => "histogram",
        }
    }

    /// What the names of such a family's samples have after the family's.
    fn suffixes(self) -> &'static [&'static str] {
        match self {
            Self::Counter | Self::Gauge => &[""],
            Self::Summary => &["", "_sum", "_count"],
            Self::Histogram => &["", "_bucket", "_sum", "_count"],
        }
    }
}

impl Series {
    fn new(
        shape: Shape,
        labels: Labels,
        (family, treatment): (u32, u32),
        observing: &Arc<Observing>,
        now: SystemTime,
    ) -> Self {
        let observed = match shape {
            Shape::Counter | Shape::Gauge => None,
            Shape::Summary | Shape::Histogram => Some(Box::new(Observed {
                buckets: match observing.observer {
                    Observer::Histogram => vec![0.0; observing.buckets.len() + 1],
                    Observer::Summary => Vec::new(),
                },
                observing: Arc::clone(observing),
                count: 0.0,
                sum: 0.0,
                native: Sketch::default(),
                recent: VecDeque::new(),
            })),
        };
        Self { labels, value: 0.0, observed, touched: now, family, treatment }
    }
}

impl Observed {
    /// Adds an interval's samples. Rates are not kept sample by sample; their mean makes the counts
    /// add up.
    fn add(&mut self, timer: &Timer, scale: f64, now: SystemTime) {
        let per_base = timer.unit.per_base();
        let Some(summary) = &timer.summary else { return };
        let weight = summary.count / summary.samples.max(1) as f64;
        self.count += summary.count;
        self.sum += summary.sum * weight / per_base * scale;
        match self.observing.observer {
            Observer::Histogram => {
                let bounds = Arc::clone(&self.observing);
                for_each_value(timer, scale, weight, |value, weight| {
                    let at = bounds.buckets.partition_point(|bound| *bound < value);
                    if let Some(bucket) = self.buckets.get_mut(at) {
                        *bucket += weight;
                    }
                    self.native.add(value, weight);
                });
            }
            Observer::Summary => {
                let recent = self.part(now);
                for_each_value(timer, scale, weight, |value, weight| recent.add(value, weight));
            }
        }
    }

    /// The part of the recent observations that is now; older ones fall away.
    fn part(&mut self, now: SystemTime) -> &mut Sketch {
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

    /// Each quantile asked for; NaN where nothing was observed of late.
    pub(super) fn quantiles(&self) -> Vec<(f64, f64)> {
        let mut all = Sketch::default();
        self.recent.iter().for_each(|(_, part)| all.merge(part));
        let value = |quantile| all.quantile(quantile).unwrap_or(f64::NAN);
        self.observing.quantiles.iter().map(|quantile| (*quantile, value(*quantile))).collect()
    }
}

/// Calls `take` with each value in base units, scaled, and what it weighs.
fn for_each_value(timer: &Timer, scale: f64, weight: f64, mut take: impl FnMut(f64, f64)) {
    match &timer.samples {
        Samples::Exact(values) => {
            values.iter().for_each(|value| take(timer.unit.to_base(*value) * scale, weight));
        }
        Samples::Sketched(sketch) => {
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
