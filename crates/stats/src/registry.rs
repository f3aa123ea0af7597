//! [`Registry`]: all metrics of a process, by name.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
};

use parking_lot::{Mutex, MutexGuard};

use crate::{Counter, Description, Gauge, Histogram, MetricKind, prometheus::PrometheusText};

/// Maximum label combinations of one metric. Further combinations share one series whose label
/// values are all [`OVERFLOW`], so that values chosen by clients cannot exhaust memory.
pub const SERIES_MAX: usize = 512;

/// The label value of combinations beyond [`SERIES_MAX`].
pub const OVERFLOW: &str = "_other";

/// All metrics of a process. Clones share one registry.
#[derive(Clone, Debug, Default)]
pub struct Registry(Arc<Mutex<MetricFamilies>>);

type MetricFamilies = BTreeMap<&'static str, MetricFamily>;

/// A metric and its series, keyed by label values in the order of the description's label names.
#[derive(Debug)]
pub struct MetricFamily {
    description: Description,
    series: BTreeMap<Box<[Box<str>]>, MetricHandle>,
}

/// A handle to one series, of the kind that the description of its family states.
#[derive(Clone, Debug)]
pub enum MetricHandle {
    /// A series of a counter.
    Counter(Counter),
    /// A series of a gauge.
    Gauge(Gauge),
    /// A series of a histogram.
    Histogram(Histogram),
}

impl Registry {
    /// Creates an empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the counter with this description, created on first use.
    ///
    /// # Panics
    ///
    /// In debug builds, if the description has another kind, has labels, or shares its name with a
    /// different description. A release build does not panic, because a wrong metric must not stop
    /// a replay: with another kind, it returns a handle that no registry renders. This applies to
    /// the other getters, too.
    pub fn counter(&self, description: &Description) -> Counter {
        self.counter_with(description, &[])
    }

    /// Returns the counter with these label values. Takes a lock: store the handle on hot paths.
    pub fn counter_with(&self, description: &Description, labels: &[(&str, &str)]) -> Counter {
        match self.handle(description, labels) {
            MetricHandle::Counter(counter) => counter,
            _ => mismatch(description, "counter"),
        }
    }

    /// Returns the gauge with this description, created with value 0 on first use.
    pub fn gauge(&self, description: &Description) -> Gauge {
        self.gauge_with(description, &[])
    }

    /// Returns the gauge with these label values.
    pub fn gauge_with(&self, description: &Description, labels: &[(&str, &str)]) -> Gauge {
        match self.handle(description, labels) {
            MetricHandle::Gauge(gauge) => gauge,
            _ => mismatch(description, "gauge"),
        }
    }

    /// Returns the histogram with this description, created empty on first use.
    pub fn histogram(&self, description: &Description) -> Histogram {
        self.histogram_with(description, &[])
    }

    /// Returns the histogram with these label values.
    pub fn histogram_with(&self, description: &Description, labels: &[(&str, &str)]) -> Histogram {
        match self.handle(description, labels) {
            MetricHandle::Histogram(histogram) => histogram,
            _ => mismatch(description, "histogram"),
        }
    }

    /// Renders all metrics in the Prometheus text format, version 0.0.4, sorted by name and labels.
    ///
    /// Source: <https://prometheus.io/docs/instrumenting/exposition_formats/>.
    pub fn prometheus(&self) -> String {
        let mut text = PrometheusText::default();
        self.for_each_family(|family| text.family(family.description.name(), family));
        text.into_string()
    }

    /// Calls `each` with all metrics that have series, sorted by name. The registry stays locked
    /// until the last call returns.
    pub fn for_each_family(&self, each: impl FnMut(&MetricFamily)) {
        self.families().values().filter(|family| !family.series.is_empty()).for_each(each);
    }

    /// Removes all series of these metrics that have these label values, regardless of their other
    /// labels. Existing handles to them stay valid but are no longer rendered.
    pub fn remove(&self, descriptions: &[Description], labels: &[(&str, &str)]) {
        let mut families = self.families();
        for description in descriptions {
            let Some(family) = families.get_mut(description.name()) else { continue };
            let names = family.description.label_names();
            family.series.retain(|values, _| {
                let has = |(name, value): &(&str, &str)| {
                    let mut labels = names.iter().zip(values);
                    labels.any(|(label, current)| label == name && **current == **value)
                };
                !labels.iter().all(has)
            });
        }
    }

    fn handle(&self, description: &Description, labels: &[(&str, &str)]) -> MetricHandle {
        let mut families = self.families();
        let family = families
            .entry(description.name())
            .or_insert_with(|| MetricFamily { description: *description, series: BTreeMap::new() });
        debug_assert_eq!(family.description, *description, "two metrics have the same name");
        family.handle(key(&family.description, labels))
    }

    fn families(&self) -> MutexGuard<'_, MetricFamilies> {
        // A thread that panicked while holding the lock has left consistent values.
        self.0.lock()
    }
}

impl MetricFamily {
    /// Returns the description of the metric.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// Returns the labels (names and values, in the order of the description) and the handle of
    /// each series, sorted by label values.
    pub fn series(
        &self,
    ) -> impl Iterator<Item = (impl Iterator<Item = (&str, &str)> + Clone, &MetricHandle)> {
        let names = self.description.label_names();
        self.series.iter().map(|(values, handle)| {
            (names.iter().copied().zip(values.iter().map(|value| &**value)), handle)
        })
    }

    fn handle(&mut self, key: Box<[Box<str>]>) -> MetricHandle {
        let is_full = self.series.len() >= SERIES_MAX;
        let key = if is_full && !self.series.contains_key(&key) {
            key.iter().map(|_| OVERFLOW.into()).collect()
        } else {
            key
        };
        match self.series.entry(key) {
            Entry::Occupied(entry) => entry.get().clone(),
            Entry::Vacant(entry) => {
                entry.insert(MetricHandle::new(self.description.kind())).clone()
            }
        }
    }
}

impl MetricHandle {
    fn new(kind: MetricKind) -> Self {
        match kind {
            MetricKind::Counter => Self::Counter(Counter::default()),
            MetricKind::Gauge => Self::Gauge(Gauge::default()),
            MetricKind::Histogram { bounds_us } => Self::Histogram(Histogram::new(bounds_us)),
        }
    }
}

fn key(description: &Description, labels: &[(&str, &str)]) -> Box<[Box<str>]> {
    let names = description.label_names();
    debug_assert!(
        labels.len() == names.len() && labels.iter().all(|(name, _)| names.contains(name)),
        "{} has the labels {names:?}, not {labels:?}",
        description.name(),
    );
    let value = |name: &&str| labels.iter().find(|(label, _)| label == name).map_or("", |(_, v)| v);
    names.iter().map(|name| value(name).into()).collect()
}

fn mismatch<T: Detached>(description: &Description, expected: &str) -> T {
    debug_assert!(false, "{} is not a {expected}", description.name());
    T::detached()
}

/// Creates a handle that belongs to no registry.
trait Detached {
    fn detached() -> Self;
}

impl Detached for Counter {
    fn detached() -> Self {
        Self::default()
    }
}

impl Detached for Gauge {
    fn detached() -> Self {
        Self::default()
    }
}

impl Detached for Histogram {
    fn detached() -> Self {
        Self::new(&[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Description = Description::counter("plain_total", "Plain.");
    const LABELLED: Description =
        Description::counter("labelled_total", "Labelled.").labels(&["a", "b"]);

    #[test]
    fn equal_descriptions_share_one_value() {
        let registry = Registry::new();
        registry.counter(&PLAIN).add(1);
        registry.clone().counter(&PLAIN).add(2);
        assert_eq!(registry.counter(&PLAIN).value(), 3);
        registry.counter_with(&LABELLED, &[("b", "2"), ("a", "1")]).add(5);
        assert_eq!(registry.counter_with(&LABELLED, &[("a", "1"), ("b", "2")]).value(), 5);
        assert_eq!(registry.counter_with(&LABELLED, &[("a", "2"), ("b", "1")]).value(), 0);
    }

    #[test]
    fn label_values_beyond_the_limit_share_one_series() {
        let registry = Registry::new();
        for at in 0..SERIES_MAX + 10 {
            let value = at.to_string();
            registry.counter_with(&LABELLED, &[("a", &value), ("b", "")]).add(1);
        }
        let families = registry.families();
        let series = &families["labelled_total"].series;
        assert_eq!(series.len(), SERIES_MAX + 1);
        let others: Box<[Box<str>]> = [OVERFLOW.into(), OVERFLOW.into()].into();
        assert!(
            matches!(&series[&others], MetricHandle::Counter(counter) if counter.value() == 10)
        );
    }

    #[test]
    fn removed_series_restart_at_zero() {
        let registry = Registry::new();
        for (a, b) in [("1", "x"), ("1", "y"), ("2", "x")] {
            registry.counter_with(&LABELLED, &[("a", a), ("b", b)]).add(7);
        }
        registry.remove(&[PLAIN, LABELLED], &[("a", "1")]);
        assert_eq!(registry.prometheus().matches("labelled_total{").count(), 1);
        assert_eq!(registry.counter_with(&LABELLED, &[("a", "1"), ("b", "x")]).value(), 0);
        assert_eq!(registry.counter_with(&LABELLED, &[("a", "2"), ("b", "x")]).value(), 7);
    }

    #[test]
    #[should_panic(expected = "plain_total is not a gauge")]
    #[cfg(debug_assertions)]
    fn wrong_kind_panics_in_debug() {
        Registry::new().gauge(&PLAIN);
    }
}
