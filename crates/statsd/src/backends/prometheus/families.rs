//! [`Families`]: the numbers that a scrape shows, added up flush by flush.
//!
//! A family is all series of one name. Which family and which labels a key has is worked out once, and
//! remembered. Two keys that come to one name and the same labels are one series: counters and timers
//! add up, of gauges the last one counts. A key whose name another kind of metric has already gets its
//! own kind as a suffix.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
    time::{Duration, SystemTime},
};

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
    pub(super) families: BTreeMap<String, Family>,
    /// The server about itself, as of the last flush.
    pub(super) own: OwnMetrics,
    mapping: Option<Mapping>,
    observing: Arc<Observing>,
    ttl: Duration,
    /// Every name that a sample has, and the family it belongs to.
    sample_names: HashMap<String, String>,
    places: HashMap<(Source, Name), Option<Place>>,
    series: usize,
    series_max: usize,
    /// Values without a place: too many series, or a rule says so.
    pub(super) dropped: u64,
    /// Keys that were renamed because of another kind of metric.
    pub(super) renamed: u64,
}

/// All series of one name.
#[derive(Debug)]
pub(super) struct Family {
    pub(super) shape: Shape,
    pub(super) help: String,
    pub(super) series: BTreeMap<Labels, Series>,
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
    pub(super) value: f64,
    pub(super) observed: Option<Observed>,
    touched: SystemTime,
    ttl: Duration,
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
#[derive(Clone, Debug)]
struct Place {
    family: String,
    labels: Labels,
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
            families: BTreeMap::new(),
            own: OwnMetrics::default(),
            mapping,
            observing,
            ttl: settings.ttl,
            sample_names: HashMap::new(),
            places: HashMap::new(),
            series: 0,
            series_max: settings.series_max,
            dropped: 0,
            renamed: 0,
        }
    }

    /// Adds one interval.
    pub(super) fn apply(&mut self, snapshot: &Snapshot) {
        let now = snapshot.time;
        for counter in &snapshot.counters {
            let moved = counter.value != 0.0;
            self.series(Source::Counter, &counter.name, false, now, moved, |series, place| {
                // A counter of Prometheus' never goes down.
                series.value += (counter.value * place.scale).max(0.0);
            });
        }
        for timer in &snapshot.timers {
            let seconds = timer.unit == TimingUnit::Milliseconds;
            let moved = timer.summary.is_some();
            self.series(Source::Timer, &timer.name, seconds, now, moved, |series, place| {
                if let Some(observed) = &mut series.observed {
                    observed.add(timer, place.scale, now);
                }
            });
        }
        for gauge in &snapshot.gauges {
            self.series(Source::Gauge, &gauge.name, false, now, true, |series, place| {
                series.value = gauge.value * place.scale;
            });
        }
        for set in &snapshot.sets {
            let moved = set.count > 0;
            self.series(Source::Set, &set.name, false, now, moved, |series, place| {
                series.value = set.count as f64 * place.scale;
            });
        }
        self.own = snapshot.own.clone();
        self.forget_idle(now);
    }

    /// Has `change` made in the series of a key, which is made if it is not there.
    fn series(
        &mut self,
        source: Source,
        name: &Name,
        seconds: bool,
        now: SystemTime,
        moved: bool,
        change: impl FnOnce(&mut Series, &Place),
    ) {
        let key = (source, name.clone());
        if !self.places.contains_key(&key) {
            // As many places as series: a flood of keys takes no more memory than they may.
            if self.places.len() >= self.series_max {
                self.dropped += 1;
                return;
            }
            let place = self.place(source, name, seconds);
            self.places.insert(key.clone(), place);
        }
        let Some(Some(place)) = self.places.get(&key) else {
            self.dropped += u64::from(moved);
            return;
        };
        let Some(family) = self.families.get_mut(&place.family) else { return };
        if !family.series.contains_key(&place.labels) {
            if self.series >= self.series_max {
                self.dropped += 1;
                return;
            }
            self.series += 1;
            family.series.insert(Arc::clone(&place.labels), Series::new(family.shape, place, now));
        }
        if let Some(series) = family.series.get_mut(&place.labels) {
            if moved {
                series.touched = now;
            }
            change(series, place);
        }
    }

    /// Works out where a key belongs; `None` if a rule drops it.
    fn place(&mut self, source: Source, name: &Name, seconds: bool) -> Option<Place> {
        let base = name.base();
        let lookup = self.mapping.as_ref().map(|mapping| mapping.look_up(base, source.kind()));
        let tags = name.tags().map(|(tag, value)| (names::label(tag), value.to_owned()));
        let unit_scale = if seconds { 0.001 } else { 1.0 };
        let (wanted, labels, help, scale, ttl, observing) = match lookup {
            Some(Lookup::Drop) => return None,
            Some(Lookup::Mapped(mapped)) => {
                let given = mapped.labels.into_iter();
                let given = given.map(|(label, value)| (names::label(&label), value));
                // Of two labels of one name the first stays.
                let labels = match mapped.honor_labels {
                    true => names::labels(tags.chain(given)),
                    false => names::labels(given.chain(tags)),
                };
                let ttl = mapped.ttl.unwrap_or(self.ttl);
                let name = names::metric(&mapped.name);
                (name, labels, mapped.help, mapped.scale, ttl, mapped.observing)
            }
            Some(Lookup::NoRule) | None => {
                let wanted = names::metric(base);
                let wanted = match source {
                    Source::Counter => names::with_suffix(wanted, "_total"),
                    Source::Timer if seconds => names::with_suffix(wanted, "_seconds"),
                    _ => wanted,
                };
                (wanted, names::labels(tags), None, 1.0, self.ttl, Arc::clone(&self.observing))
            }
        };
        let shape = match (source, observing.observer) {
            (Source::Counter, _) => Shape::Counter,
            (Source::Gauge | Source::Set, _) => Shape::Gauge,
            (Source::Timer, Observer::Summary) => Shape::Summary,
            (Source::Timer, Observer::Histogram) => Shape::Histogram,
        };
        let help = help.unwrap_or_else(|| format!("The statsd {} {base}.", source.word()));
        let family = self.family(wanted, shape, source, help)?;
        Some(Place { family, labels, scale: scale * unit_scale, ttl, observing })
    }

    /// The name of the family for `wanted`, made if need be; another name if it is taken.
    fn family(
        &mut self,
        wanted: String,
        shape: Shape,
        source: Source,
        help: String,
    ) -> Option<String> {
        let other = format!("{wanted}_{}", source.word());
        for (name, renamed) in [(wanted, false), (other, true)] {
            match self.families.get(&name) {
                Some(family) if family.shape == shape => return Some(name),
                Some(_) => {}
                None if shape
                    .sample_names(&name)
                    .any(|name| self.sample_names.contains_key(&name)) => {}
                None => {
                    self.renamed += u64::from(renamed);
                    for sample in shape.sample_names(&name) {
                        self.sample_names.insert(sample, name.clone());
                    }
                    let family = Family { shape, help, series: BTreeMap::new() };
                    self.families.insert(name.clone(), family);
                    return Some(name);
                }
            }
        }
        None
    }

    fn forget_idle(&mut self, now: SystemTime) {
        let mut forgotten = 0;
        for family in self.families.values_mut() {
            family.series.retain(|_, series| {
                let idle = now.duration_since(series.touched).unwrap_or_default();
                let keep = series.ttl.is_zero() || idle < series.ttl;
                forgotten += usize::from(!keep);
                keep
            });
        }
        if forgotten > 0 {
            self.series -= forgotten;
            // Places of forgotten series are found anew when their keys come again.
            self.places.clear();
            self.families.retain(|_, family| !family.series.is_empty());
            let families = &self.families;
            self.sample_names.retain(|_, family| families.contains_key(family));
        }
    }

    /// How many series there are.
    pub(super) fn series_count(&self) -> usize {
        self.series
    }

    pub(super) fn report(&self, status: &Status) {
        status.set("series", self.series as f64);
        status.set("dropped_values", self.dropped as f64);
        status.set("renamed_keys", self.renamed as f64);
    }
}

impl Shape {
    /// The word of `# TYPE`.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Summary => "summary",
            Self::Histogram => "histogram",
        }
    }

    /// Every name that a sample of such a family has.
    fn sample_names(self, family: &str) -> impl Iterator<Item = String> {
        let suffixes: &[&str] = match self {
            Self::Counter | Self::Gauge => &[""],
            Self::Summary => &["", "_sum", "_count"],
            Self::Histogram => &["", "_bucket", "_sum", "_count"],
        };
        let names: Vec<_> = suffixes.iter().map(|suffix| format!("{family}{suffix}")).collect();
        names.into_iter()
    }
}

impl Series {
    fn new(shape: Shape, place: &Place, now: SystemTime) -> Self {
        let observed = match shape {
            Shape::Counter | Shape::Gauge => None,
            Shape::Summary | Shape::Histogram => Some(Observed {
                buckets: vec![0.0; place.observing.buckets.len() + 1],
                observing: Arc::clone(&place.observing),
                count: 0.0,
                sum: 0.0,
                native: Sketch::default(),
                recent: VecDeque::new(),
            }),
        };
        Self { value: 0.0, observed, touched: now, ttl: place.ttl }
    }
}

impl Observed {
    /// Adds an interval's samples. Rates are not kept sample by sample; their mean makes the counts
    /// add up.
    fn add(&mut self, timer: &Timer, scale: f64, now: SystemTime) {
        let Some(summary) = &timer.summary else { return };
        let weight = summary.count / summary.samples.max(1) as f64;
        self.count += summary.count;
        self.sum += summary.sum * weight * scale;
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

/// Calls `take` with each value, scaled, and what it weighs. `scale` holds for values as sent; those of
/// a sketch are in seconds already.
fn for_each_value(timer: &Timer, scale: f64, weight: f64, mut take: impl FnMut(f64, f64)) {
    match &timer.samples {
        Samples::Exact(values) => values.iter().for_each(|value| take(value * scale, weight)),
        Samples::Sketched(sketch) => {
            let scale = match timer.unit {
                TimingUnit::Milliseconds => scale * 1000.0,
                TimingUnit::Plain => scale,
            };
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
