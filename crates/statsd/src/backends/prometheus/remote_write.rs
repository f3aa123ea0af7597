//! The remote-write backend: sends the values that a scrape would have to a Prometheus server or
//! another receiver of its protocol, at each flush.
//!
//! A request has up to 2,000 samples with the time of the flush. It is a `WriteRequest` in
//! protobuf, compressed with snappy. Requests that could not be sent are spooled.
//!
//! Source: prometheus.io, "Prometheus Remote-Write Specification 1.0"; prometheus/prometheus,
//! `prompb/remote.proto` and `types.proto`, for the field numbers.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use howdah_codec::protobuf::ProtobufMessage;
use howdah_http::client::{EndpointError, Headers, HttpEndpoint, authorization};
use howdah_stats::MetricHandle;
use parking_lot::Mutex;

use super::{
    PrometheusError, check_settings,
    cursor::ScrapeCursor,
    families::{self, FamilyTable, handover},
    mapping::NameMapping,
    names::{self, label_pairs},
    samples::for_each_sample,
    snappy,
};
use crate::{
    backends::{
        BackendError, BackendSpool, BackendStatus, MetricBackend, ReloadHook, SnapshotRequirements,
        http::{AGENT, HttpSender},
        outbox::{BatchSink, ValueBatch},
    },
    flush::FlushSnapshot,
    settings,
};

/// Maximum number of samples in a request.
const REQUEST_SAMPLES_MAX: u64 = 2000;

/// The backend that sends snapshots by Prometheus' remote write.
pub struct RemoteWriteBackend {
    values: settings::PrometheusSettings,
    families: FamilyTable,
    /// The mapping that the next flush starts to use.
    new_mapping: Arc<Mutex<Option<NameMapping>>>,
    labels: Vec<(String, String)>,
    sender: HttpSender,
}

/// The reason why the backend cannot be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteWriteError {
    /// The mapping file cannot be used, or a setting has an invalid value.
    #[error(transparent)]
    Values(#[from] PrometheusError),
    /// The URL is invalid, a file cannot be used, or TLS cannot be set up.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
}

impl RemoteWriteBackend {
    /// Creates the backend, and reads the mapping file and the token file. The connection is opened
    /// by the first flush.
    ///
    /// # Errors
    ///
    /// See [`RemoteWriteError`].
    pub fn new(settings: &settings::RemoteWriteSettings) -> Result<Self, RemoteWriteError> {
        let values = settings.values();
        check_settings(&values)?;
        let mapping = NameMapping::from_settings(&values).map_err(PrometheusError::from)?;
        let mut headers =
            Headers::from_iter(authorization("Bearer", settings.token_file.as_ref())?);
        headers.push(("Content-Type", "application/x-protobuf".to_owned()));
        headers.push(("Content-Encoding", "snappy".to_owned()));
        headers.push(("X-Prometheus-Remote-Write-Version", "0.1.0".to_owned()));
        let endpoint =
            HttpEndpoint::new(AGENT, &settings.url, settings.ca_file.as_deref(), headers)?;
        let labels = settings.labels.iter();
        Ok(Self {
            families: FamilyTable::new(&values, mapping),
            values,
            new_mapping: Arc::default(),
            labels: labels.map(|(name, value)| (names::label(name), value.clone())).collect(),
            sender: HttpSender::new(endpoint, settings.spool_bytes),
        })
    }
}

impl fmt::Debug for RemoteWriteBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = self.sender.receiver();
        f.debug_struct("RemoteWriteBackend").field("url", &url).finish_non_exhaustive()
    }
}

impl MetricBackend for RemoteWriteBackend {
    fn name(&self) -> &'static str {
        "remote-write"
    }

    fn requirements(&self) -> SnapshotRequirements {
        SnapshotRequirements { names_as_sent: true, ..SnapshotRequirements::MINIMAL }
    }

    fn status(&self) -> BackendStatus {
        self.sender.status()
    }

    /// The mapping file is read again. The next flush uses it.
    fn reload_hook(&self) -> Option<ReloadHook> {
        let path = self.values.mapping.clone()?;
        let (values, new_mapping) = (self.values.clone(), Arc::clone(&self.new_mapping));
        Some(Arc::new(move || {
            let mapping = NameMapping::read(&path, &values)?;
            *new_mapping.lock() = Some(mapping);
            Ok(())
        }))
    }

    fn flush(&mut self, snapshot: &Arc<FlushSnapshot>) -> Result<(), BackendError> {
        let Self { families, labels, sender, .. } = self;
        if let Some(mapping) = self.new_mapping.lock().take() {
            families::set_mapping(families, mapping);
        }
        families.add_snapshot(snapshot);
        families.report(&sender.status());
        let since = snapshot.time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let time_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        sender.flush(snapshot.interval, |sink| encode(families, labels, time_ms, sink))
    }

    fn finish(&mut self, timeout: Duration) -> Result<(), BackendError> {
        self.sender.finish(timeout)
    }

    fn hand_over(
        &mut self,
        timeout: Duration,
        spool: &mut BackendSpool,
    ) -> Result<(), BackendError> {
        self.sender.hand_over(timeout, spool)
    }

    fn adopt(&mut self, spool: BackendSpool) {
        self.sender.adopt(spool);
    }

    fn exports_state(&self) -> bool {
        true
    }

    fn export_state(&mut self) -> Option<Vec<u8>> {
        Some(handover::export(&self.families))
    }

    fn import_state(&mut self, state: &[u8]) -> Result<(), BackendError> {
        handover::import(&mut self.families, state).map_err(|error| BackendError {
            receiver: self.sender.receiver().to_owned(),
            action: "restoring",
            source: error.into(),
        })?;
        self.families.report(&self.sender.status());
        Ok(())
    }
}

/// Encodes all samples as requests. `labels` are added to each series that has no label with the
/// same name.
fn encode(families: &FamilyTable, labels: &[(String, String)], time_ms: u64, sink: BatchSink<'_>) {
    let body = ProtobufMessage::default();
    let mut requests = WriteRequestEncoder { labels, time_ms, sink, body, samples: 0 };
    ScrapeCursor::default().advance(families, |run| {
        for_each_sample(run, |sample| {
            let name = format!("{}{}", run.name, sample.suffix);
            let labels = label_pairs(sample.labels).chain(sample.bound);
            requests.add(&name, labels, sample.value);
        });
        true
    });
    families.for_each_self_metric(|name, family| {
        for (labels, handle) in family.series() {
            let value = match handle {
                MetricHandle::Counter(counter) => counter.value() as f64,
                MetricHandle::Gauge(gauge) => gauge.value(),
                // None of the server's own metrics is a histogram.
                MetricHandle::Histogram(_) => continue,
            };
            requests.add(name, labels, value);
        }
    });
    requests.flush_batch();
}

struct WriteRequestEncoder<'s> {
    labels: &'s [(String, String)],
    time_ms: u64,
    sink: BatchSink<'s>,
    body: ProtobufMessage,
    samples: u64,
}

impl<'s> WriteRequestEncoder<'s> {
    /// Adds a `TimeSeries` with one sample. The protocol requires sorted labels.
    fn add<'l>(
        &mut self,
        name: &'l str,
        labels: impl Iterator<Item = (&'l str, &'l str)>,
        value: f64,
    ) where
        's: 'l,
    {
        let mut all: Vec<(&str, &str)> = vec![("__name__", name)];
        all.extend(labels);
        for (name, value) in self.labels {
            if !all.iter().any(|(other, _)| *other == name.as_str()) {
                all.push((name.as_str(), value.as_str()));
            }
        }
        all.sort_unstable();
        // WriteRequest.timeseries, with .labels (name, value) and .samples (value, timestamp)
        self.body.message(1, |series| {
            for (name, value) in all {
                series.message(1, |label| {
                    label.string(1, name).string(2, value);
                });
            }
            series.message(2, |sample| {
                sample.double(1, value).uint(2, self.time_ms);
            });
        });
        self.samples += 1;
        if self.samples >= REQUEST_SAMPLES_MAX {
            self.flush_batch();
        }
    }

    fn flush_batch(&mut self) {
        let values = std::mem::take(&mut self.samples);
        let body = std::mem::take(&mut self.body);
        if values > 0 {
            (self.sink)(ValueBatch::new(snappy::compress(&body.into_bytes()), values));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        MetricName,
        backends::testing::{TIMESTAMP, snapshot, snapshot_with_timed},
        flush::CounterMetric,
        settings::{ObserverType, PrometheusNames},
    };

    fn settings() -> settings::RemoteWriteSettings {
        settings::RemoteWriteSettings {
            url: "http://127.0.0.1:9/api/v1/write".to_owned(),
            timers: ObserverType::Histogram,
            buckets: vec![0.015],
            ..settings::RemoteWriteSettings::default()
        }
    }

    fn encoded(backend: &mut RemoteWriteBackend, snapshot: &FlushSnapshot) -> Vec<ValueBatch> {
        backend.families.add_snapshot(snapshot);
        let mut batches = Vec::new();
        let time_ms = TIMESTAMP.unsigned_abs() * 1000;
        encode(&backend.families, &backend.labels, time_ms, &mut |batch| batches.push(batch));
        batches
    }

    /// The encoded form of a series.
    fn series(labels: &[(&str, &str)], value: f64) -> Vec<u8> {
        let mut request = ProtobufMessage::default();
        request.message(1, |series| {
            for (name, value) in labels {
                series.message(1, |label| {
                    label.string(1, name).string(2, value);
                });
            }
            series.message(2, |sample| {
                sample.double(1, value).uint(2, TIMESTAMP.unsigned_abs() * 1000);
            });
        });
        request.into_bytes()
    }

    #[test]
    fn series_have_sorted_labels_and_time_of_flush() {
        let labels = [("job", "shop"), ("code", "x"), ("Zone", "a")];
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let settings = settings::RemoteWriteSettings { labels, ..settings() };
        let mut backend = RemoteWriteBackend::new(&settings).unwrap();
        let batches = encoded(&mut backend, &snapshot());
        let [batch] = &batches[..] else { panic!("{batches:?}") };
        let body = snappy::decompress(&batch.bytes);
        let all = [("Zone", "a"), ("__name__", "api_hits_total"), ("code", "500"), ("job", "shop")];
        let latency = "api_latency_seconds";
        let bucket = |le| {
            let bucket = format!("{latency}_bucket");
            move |value| {
                let labels = [
                    ("Zone", "a"),
                    ("__name__", &*bucket),
                    ("code", "x"),
                    ("job", "shop"),
                    ("le", le),
                ];
                series(&labels, value)
            }
        };
        for expected in [series(&all, 2.0), bucket("0.015")(1.0), bucket("+Inf")(3.0)] {
            assert!(body.windows(expected.len()).any(|bytes| bytes == expected), "{body:?}");
        }
        assert!(body.starts_with(&series(
            &[("Zone", "a"), ("__name__", "api_hits_total"), ("code", "x"), ("job", "shop")],
            30.0
        )));
    }

    #[test]
    fn large_snapshot_is_split_and_counters_are_cumulative() {
        let mut backend = RemoteWriteBackend::new(&settings()).unwrap();
        let mut snapshot = FlushSnapshot::clone(&snapshot());
        let counter = snapshot.counters[0].clone();
        let named =
            |n: i32| CounterMetric { name: MetricName::new(&format!("c{n}")), ..counter.clone() };
        snapshot.counters = (0..5000).map(named).collect();
        snapshot.timers = Vec::new();
        encoded(&mut backend, &snapshot);
        let batches = encoded(&mut backend, &snapshot);
        assert!(batches[..2].iter().all(|batch| batch.values == 2000), "{batches:?}");
        let body = snappy::decompress(&batches[0].bytes);
        assert!(body.starts_with(&series(&[("__name__", "c0_total")], 60.0)));
    }

    #[test]
    fn values_with_timestamps_count_and_names_may_be_the_exporters() {
        let settings =
            settings::RemoteWriteSettings { names: PrometheusNames::Exporter, ..settings() };
        let mut backend = RemoteWriteBackend::new(&settings).unwrap();
        let batches = encoded(&mut backend, &snapshot_with_timed());
        let body = snappy::decompress(&batches[0].bytes);
        for expected in [
            series(&[("__name__", "jobs"), ("q", "a/b")], 20.0),
            series(&[("__name__", "load")], 1.5),
        ] {
            assert!(body.windows(expected.len()).any(|bytes| bytes == expected), "{body:?}");
        }
    }

    #[test]
    fn cumulative_values_continue_in_another_process() {
        let mut old = RemoteWriteBackend::new(&settings()).unwrap();
        encoded(&mut old, &snapshot());
        let mut new = RemoteWriteBackend::new(&settings()).unwrap();
        new.import_state(&old.export_state().unwrap()).unwrap();
        let [old, new] = [&mut old, &mut new].map(|backend| encoded(backend, &snapshot()));
        assert_eq!(new, old);
    }

    #[test]
    fn invalid_settings_are_errors() {
        let buckets = settings::RemoteWriteSettings { buckets: vec![2.0, 1.0], ..settings() };
        let error = RemoteWriteBackend::new(&buckets).unwrap_err().to_string();
        assert!(error.starts_with("buckets: must be finite numbers"), "{error}");
        let url = settings::RemoteWriteSettings { url: String::new(), ..settings() };
        assert!(matches!(RemoteWriteBackend::new(&url), Err(RemoteWriteError::Endpoint(_))));
    }
}
