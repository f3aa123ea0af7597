//! [`Registry`]: every metric of a process, by name.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{Counter, Description, Gauge, Histogram, Kind, prometheus};

/// Label combinations that one metric may have. Those that come later share one series, whose
/// labels all are [`OVERFLOW`]: a client's words must not be able to fill our memory.
pub const SERIES_MAX: usize = 512;

/// The label value of what came after [`SERIES_MAX`] others.
pub const OVERFLOW: &str = "_other";

/// Every metric of a process. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Registry(Arc<Mutex<Families>>);

pub(crate) type Families = BTreeMap<&'static str, Family>;

/// A metric with its values, by label values in the order of the description's labels.
#[derive(Debug)]
pub(crate) struct Family {
    pub(crate) description: Description,
    pub(crate) series: BTreeMap<Box<[Box<str>]>, Handle>,
}

#[derive(Clone, Debug)]
pub(crate) enum Handle {
    Counter(Counter),
    Gauge(Gauge),
    Histogram(Histogram),
}

impl Registry {
    /// A registry with nothing in it.
    pub fn new() -> Self {
        Self::default()
    }

    /// The counter of this description; the same one every time.
    ///
    /// # Panics
    ///
    /// In debug builds, when the description is of another kind, has labels, or another description
    /// has its name. A release build gives a handle that nobody reads: a wrong metric must not stop
    /// a replay. All the other getters do the same.
    pub fn counter(&self, description: &Description) -> Counter {
        self.counter_with(description, &[])
    }

    /// The counter of these label values. Takes a lock: keep the handle where it matters.
    pub fn counter_with(&self, description: &Description, labels: &[(&str, &str)]) -> Counter {
        match self.handle(description, labels) {
            Handle::Counter(counter) => counter,
            _ => mismatch(description, "counter"),
        }
    }

    /// The gauge of this description.
    pub fn gauge(&self, description: &Description) -> Gauge {
        self.gauge_with(description, &[])
    }

    /// The gauge of these label values.
    pub fn gauge_with(&self, description: &Description, labels: &[(&str, &str)]) -> Gauge {
        match self.handle(description, labels) {
            Handle::Gauge(gauge) => gauge,
            _ => mismatch(description, "gauge"),
        }
    }

    /// The histogram of this description.
    pub fn histogram(&self, description: &Description) -> Histogram {
        self.histogram_with(description, &[])
    }

    /// The histogram of these label values.
    pub fn histogram_with(&self, description: &Description, labels: &[(&str, &str)]) -> Histogram {
        match self.handle(description, labels) {
            Handle::Histogram(histogram) => histogram,
            _ => mismatch(description, "histogram"),
        }
    }

    /// All of it in the Prometheus text format, version 0.0.4, sorted by name and labels.
    ///
    /// Source: <https://prometheus.io/docs/instrumenting/exposition_formats/>.
    pub fn prometheus(&self) -> String {
        prometheus::render(&self.families())
    }

    /// Takes out what these metrics have of these label values, whatever values other labels have.
    /// Handles to it count on for nobody.
    pub fn forget(&self, descriptions: &[Description], labels: &[(&str, &str)]) {
        let mut families = self.families();
        for description in descriptions {
            let Some(family) = families.get_mut(description.name()) else { continue };
            let names = family.description.label_names();
            family.series.retain(|values, _| {
                let has = |(name, value): &(&str, &str)| {
                    let mut own = names.iter().zip(values);
                    own.any(|(own, is)| own == name && **is == **value)
                };
                !labels.iter().all(has)
            });
        }
    }

    fn handle(&self, description: &Description, labels: &[(&str, &str)]) -> Handle {
        let mut families = self.families();
        let family = families
            .entry(description.name())
            .or_insert_with(|| Family { description: *description, series: BTreeMap::new() });
        debug_assert_eq!(family.description, *description, "two metrics of one name");
        family.handle(key(&family.description, labels))
    }

    pub(crate) fn families(&self) -> MutexGuard<'_, Families> {
        // A panic elsewhere leaves whole numbers behind.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Family {
    fn handle(&mut self, key: Box<[Box<str>]>) -> Handle {
        let is_full = self.series.len() >= SERIES_MAX;
        let key = match is_full && !self.series.contains_key(&key) {
            true => key.iter().map(|_| OVERFLOW.into()).collect(),
            false => key,
        };
        match self.series.entry(key) {
            Entry::Occupied(entry) => entry.get().clone(),
            Entry::Vacant(entry) => entry.insert(Handle::new(self.description.kind())).clone(),
        }
    }
}

impl Handle {
    fn new(kind: Kind) -> Self {
        match kind {
            Kind::Counter => Self::Counter(Counter::default()),
            Kind::Gauge => Self::Gauge(Gauge::default()),
            Kind::Histogram { bounds_us } => Self::Histogram(Histogram::new(bounds_us)),
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
    let value = |name: &&str| labels.iter().find(|(given, _)| given == name).map_or("", |(_, v)| v);
    names.iter().map(|name| value(name).into()).collect()
}

fn mismatch<T: Detached>(description: &Description, wanted: &str) -> T {
    debug_assert!(false, "{} is no {wanted}", description.name());
    T::detached()
}

/// A handle that is in no registry.
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
    fn one_description_is_one_value() {
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
        assert!(matches!(&series[&others], Handle::Counter(counter) if counter.value() == 10));
    }

    #[test]
    fn what_is_forgotten_begins_anew() {
        let registry = Registry::new();
        for (a, b) in [("1", "x"), ("1", "y"), ("2", "x")] {
            registry.counter_with(&LABELLED, &[("a", a), ("b", b)]).add(7);
        }
        registry.forget(&[PLAIN, LABELLED], &[("a", "1")]);
        assert_eq!(registry.prometheus().matches("labelled_total{").count(), 1);
        assert_eq!(registry.counter_with(&LABELLED, &[("a", "1"), ("b", "x")]).value(), 0);
        assert_eq!(registry.counter_with(&LABELLED, &[("a", "2"), ("b", "x")]).value(), 7);
    }

    #[test]
    #[should_panic(expected = "plain_total is no gauge")]
    #[cfg(debug_assertions)]
    fn the_wrong_kind_is_noticed() {
        Registry::new().gauge(&PLAIN);
    }
}
