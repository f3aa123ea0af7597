//! [`RulePreview`]: shows what rules and the names at a Prometheus endpoint make of single metrics,
//! without a server.

use std::{sync::Arc, time::SystemTime};

use crate::{
    MetricName,
    aggregate::{CONTAINER_SEPARATOR, MetricType, NewName},
    backends::{MappingError, PrometheusPreview},
    flush::{KeyConversion, KeyRules},
    grammar::{
        self, BadLine, LineRules, RejectReason, SampleSink, SampleValue, StatsdCheck, StatsdEvent,
        StatsdSample, TimingUnit,
    },
    settings::StatsdSettings,
};

/// The rules of a server, for single metrics.
#[derive(Debug)]
pub struct RulePreview {
    rules: KeyRules,
    conversion: KeyConversion,
    lines: LineRules,
    prometheus: Option<PrometheusPreview>,
}

/// A metric in a line, with the effect of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreviewedMetric {
    /// The metric's type; `Counter` for a name without a value.
    pub kind: MetricType,
    /// The ids of the rules that dropped or changed the metric, or ended the evaluation, in order.
    pub rules: Vec<Arc<str>>,
    /// The keys after the rules; `None` if a rule drops the metric.
    pub keys: Option<PreviewedKeys>,
}

/// The keys of a metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreviewedKeys {
    /// The key as sent, for backends that accept any text.
    pub sent: MetricName,
    /// The sanitised key, for Graphite and others.
    pub sanitised: MetricName,
    /// The name and labels at the Prometheus endpoint, if the settings have one; an inner `None` if
    /// its mapping drops the metric.
    pub prometheus: Option<Option<String>>,
}

impl RulePreview {
    /// Compiles the rules of validated settings, and reads the mapping file for Prometheus.
    ///
    /// # Errors
    ///
    /// The mapping file cannot be used.
    pub fn new(settings: &StatsdSettings) -> Result<Self, MappingError> {
        let prometheus = settings.backends.prometheus.as_ref().map(PrometheusPreview::new);
        Ok(Self {
            rules: KeyRules::new(settings, SystemTime::UNIX_EPOCH),
            conversion: KeyConversion::both(settings),
            lines: LineRules::new(settings),
            prometheus: prometheus.transpose()?,
        })
    }

    /// Returns the metrics of a line: one for each type in a metric line, such as
    /// `name:1|c|#tag:value`. A text without a value, such as `name;tag=value` or
    /// `name|#tag:value`, is the name of a counter.
    ///
    /// # Errors
    ///
    /// The line has no valid value; the reason of the first one.
    pub fn metrics(&self, line: &str) -> Result<Vec<PreviewedMetric>, RejectReason> {
        let (name, tags) = line.split_once("|#").unwrap_or((line, ""));
        if !name.contains([':', '|']) {
            let tags = tags.split('|').next().unwrap_or_default();
            return Ok(vec![self.metric(
                MetricType::Counter,
                name.as_bytes(),
                tags.as_bytes(),
                false,
            )]);
        }
        let mut samples = LineSamples { preview: self, metrics: Vec::new(), bad: None };
        grammar::packet(line.as_bytes(), self.lines, &mut samples);
        match samples.bad {
            Some(reason) if samples.metrics.is_empty() => Err(reason),
            _ => Ok(samples.metrics),
        }
    }

    fn metric(
        &self,
        kind: MetricType,
        name: &[u8],
        tags: &[u8],
        milliseconds: bool,
    ) -> PreviewedMetric {
        let name = NewName { kind, name, tags, overflow: false };
        let (keys, rules) = self.rules.preview(&name, self.conversion);
        let keys = keys.map(|keys| PreviewedKeys {
            prometheus: self
                .prometheus
                .as_ref()
                .map(|names| names.series(kind, &keys.sent, milliseconds)),
            sent: keys.sent,
            sanitised: keys.key,
        });
        PreviewedMetric { kind, rules, keys }
    }
}

/// The metrics of a line, each once.
struct LineSamples<'p> {
    preview: &'p RulePreview,
    metrics: Vec<PreviewedMetric>,
    bad: Option<RejectReason>,
}

impl SampleSink for LineSamples<'_> {
    fn line(&mut self) {}

    fn sample(&mut self, sample: &StatsdSample<'_>) {
        let (kind, milliseconds) = match sample.value {
            SampleValue::Count(_) => (MetricType::Counter, false),
            SampleValue::Timing(_, unit) => (MetricType::Timer, unit == TimingUnit::Milliseconds),
            SampleValue::Set(_) | SampleValue::Change(_) => (MetricType::Gauge, false),
            SampleValue::Member(_) => (MetricType::Set, false),
        };
        let mut tags = sample.tags.to_vec();
        if !sample.container.is_empty() {
            tags.push(CONTAINER_SEPARATOR);
            tags.extend_from_slice(sample.container);
        }
        let metric = self.preview.metric(kind, sample.name, &tags, milliseconds);
        if !self.metrics.contains(&metric) {
            self.metrics.push(metric);
        }
    }

    fn bad(&mut self, bad: BadLine<'_>) {
        self.bad.get_or_insert(bad.reason);
    }

    fn running_total(&mut self, sample: &StatsdSample<'_>) {
        self.sample(sample);
    }

    fn timed_sample(&mut self, sample: &StatsdSample<'_>, _time: Option<i64>) {
        self.sample(sample);
    }

    fn event(&mut self, _event: &StatsdEvent<'_>) {}

    fn check(&mut self, _check: &StatsdCheck<'_>) {}
}

#[test]
fn lines_and_names_are_previewed() {
    let settings: StatsdSettings = toml::from_str(
        "
        [[rules]]
        id = 'debug'
        name = 'debug.**'
        action = 'drop'
        [[rules]]
        name = 'web*.*'
        rename = 'web.$2'
        add-tags = { host = '$1' }
        [static-tags]
        env = 'a/b'
        [backends.prometheus]
        ",
    )
    .unwrap();
    let preview = RulePreview::new(&settings).unwrap();
    let metrics = |line: &str| preview.metrics(line).unwrap();
    let dropped = &metrics("debug.x:1|c|#a:b")[0];
    assert_eq!((dropped.rules.join(","), &dropped.keys), ("debug".to_owned(), &None));
    let [timer] = &metrics("web7.login:1:2|ms|#a:b")[..] else { panic!("one metric") };
    let counter = &metrics("web7.login:5|c|#a:b")[0];
    let keys = timer.keys.as_ref().unwrap();
    assert_eq!(timer.rules.join(","), "rule-2");
    assert_eq!(keys.sent.key(), "web.login;a=b;host=7;env=a/b");
    assert_eq!(keys.sanitised.key(), "web.login;a=b;host=7;env=a-b");
    let series = "web_login_seconds{a=\"b\",env=\"a/b\",host=\"7\"}";
    assert_eq!(keys.prometheus, Some(Some(series.to_owned())));
    let series = counter.keys.as_ref().unwrap().prometheus.clone().flatten().unwrap();
    assert!(series.starts_with("web_login_total{"), "{series}");
    for name in ["x;t=1", "x|#t:1"] {
        let found = &metrics(name)[0];
        assert_eq!((found.kind, found.rules.len()), (MetricType::Counter, 0));
        assert_eq!(found.keys.as_ref().unwrap().sent.key(), "x;t=1;env=a/b");
    }
    assert_eq!(preview.metrics("x:1"), Err(RejectReason::NoType));
}
