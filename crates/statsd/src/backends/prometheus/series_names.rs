//! [`SeriesNames`]: the names and labels that keys have at the endpoint.

use std::{sync::Arc, time::Duration};

use super::{
    mapping::{MappingResult, NameMapping, ObserverOptions},
    names::{self, LabelSet},
    placements::SeriesSource,
};
use crate::{
    MetricName,
    aggregate::MetricType,
    self_metrics,
    settings::{ObserverType, PrometheusSettings},
};

/// The rules by which keys get their names, labels and options.
#[derive(Debug)]
pub(super) struct SeriesNames {
    /// The configured prefix of the server's own metrics; empty before the first flush.
    pub(super) self_prefix: Arc<str>,
    mapping: Option<NameMapping>,
    observing: Arc<ObserverOptions>,
    ttl: Duration,
}

/// The metric type of a family, as its `# TYPE` line declares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FamilyType {
    Counter,
    Gauge,
    Summary,
    Histogram,
}

/// The name and labels of a key at the endpoint, unless its name conflicts with another one.
#[derive(Debug)]
pub(super) struct SeriesTarget {
    pub(super) requested: String,
    pub(super) labels: LabelSet,
    pub(super) shape: FamilyType,
    pub(super) help: Option<String>,
    pub(super) treatment: ValueTreatment,
}

/// The rules by which the values of a key are scaled, expired and observed. There are few distinct
/// ones: about one per mapping rule.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ValueTreatment {
    pub(super) scale: f64,
    pub(super) ttl: Duration,
    pub(super) observing: Arc<ObserverOptions>,
}

impl SeriesNames {
    pub(super) fn new(settings: &PrometheusSettings, mapping: Option<NameMapping>) -> Self {
        let observing = match &mapping {
            Some(mapping) => Arc::clone(mapping.defaults()),
            None => Arc::new(ObserverOptions::from_settings(settings)),
        };
        Self { self_prefix: Arc::default(), mapping, observing, ttl: settings.ttl }
    }

    pub(super) fn set_mapping(&mut self, mapping: NameMapping) {
        self.observing = Arc::clone(mapping.defaults());
        self.mapping = Some(mapping);
    }

    /// Returns the name and labels of a key; `None` if a rule drops it.
    pub(super) fn target(
        &self,
        source: SeriesSource,
        name: &MetricName,
        seconds: bool,
    ) -> Option<SeriesTarget> {
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
        Some(SeriesTarget { requested, labels, shape, help, treatment })
    }

    /// Returns a key's name with its labels; `None` if a rule drops it.
    pub(super) fn text(
        &self,
        kind: MetricType,
        name: &MetricName,
        milliseconds: bool,
    ) -> Option<String> {
        let source = match kind {
            MetricType::Counter => SeriesSource::Counter,
            MetricType::Timer => SeriesSource::Timer,
            MetricType::Gauge => SeriesSource::Gauge,
            MetricType::Set => SeriesSource::Set,
        };
        let SeriesTarget { requested, labels, .. } = self.target(source, name, milliseconds)?;
        let labels: Vec<_> = names::label_pairs(labels.as_str())
            .map(|(label, value)| format!("{label}={value:?}"))
            .collect();
        if labels.is_empty() {
            return Some(requested);
        }
        Some(format!("{requested}{{{}}}", labels.join(",")))
    }
}

impl FamilyType {
    /// All non-empty suffixes of sample names.
    pub(super) const ALL_SUFFIXES: [&'static str; 3] = ["_sum", "_count", "_bucket"];

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
    pub(super) fn suffixes(self) -> &'static [&'static str] {
        match self {
            Self::Counter | Self::Gauge => &[""],
            Self::Summary => &["", "_sum", "_count"],
            Self::Histogram => &["", "_bucket", "_sum", "_count"],
        }
    }
}
