//! The OTLP backend: OpenTelemetry's protocol over HTTP with protobuf bodies.
//!
//! Counters become monotonic sums, timers exponential histograms (in seconds if sent in
//! milliseconds), gauges and set sizes gauges; tags become attributes. Sums and histograms start
//! when their key was first collected or, with delta temporality, one interval before their end. A
//! decremented counter looks like a restart to the receiver, as with any monotonic sum.
//!
//! Field numbers are those of opentelemetry-proto 1.x: `metrics/v1/metrics.proto`,
//! `common/v1/common.proto`, `collector/metrics/v1/metrics_service.proto`.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use howdah_codec::protobuf::ProtobufMessage;
use howdah_http::client::{EndpointError, Headers, HttpEndpoint, authorization};

use super::{
    BackendError, BackendSpool, BackendStatus, MetricBackend, SnapshotRequirements,
    http::{AGENT, HttpSender},
    outbox::{BatchSink, ValueBatch},
};
use crate::{
    MetricName,
    flush::{FlushSnapshot, TimedMetric, TimedType, TimerMetric, TimerSamples},
    grammar::TimingUnit,
    settings::{self, Temporality},
    sketch::Sketch,
};

/// Number of data points at which a request is complete, and maximum number of points added to it
/// at once. So it may have almost twice as many.
const POINTS_PER_REQUEST: usize = 5_000;
/// Maximum number of buckets on one side of a histogram, as in OpenTelemetry's own libraries.
const BUCKETS_MAX: usize = 160;
/// The coarsest scale, as in OpenTelemetry's own libraries.
const SCALE_MIN: i32 = -10;

/// The backend that sends snapshots to an OTLP receiver.
pub struct OtlpBackend {
    poster: HttpSender,
    temporality: Temporality,
    resource: Vec<(String, String)>,
}

impl OtlpBackend {
    /// Creates the backend and reads the token file. The connection is opened by the first flush.
    ///
    /// # Errors
    ///
    /// See [`EndpointError`].
    pub fn new(settings: &settings::OtlpSettings) -> Result<Self, EndpointError> {
        let mut headers =
            Headers::from_iter(authorization("Bearer", settings.token_file.as_ref())?);
        headers.push(("Content-Type", "application/x-protobuf".to_owned()));
        let endpoint =
            HttpEndpoint::new(AGENT, &settings.url, settings.ca_file.as_deref(), headers)?;
        let mut resource = settings.resource.clone();
        resource.entry("service.name".to_owned()).or_insert_with(|| "statsd".to_owned());
        Ok(Self {
            poster: HttpSender::new(endpoint, settings.spool_bytes),
            temporality: settings.temporality,
            resource: resource.into_iter().collect(),
        })
    }
}

impl fmt::Debug for OtlpBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OtlpBackend").field("url", &self.poster.receiver()).finish()
    }
}

impl MetricBackend for OtlpBackend {
    fn name(&self) -> &'static str {
        "otlp"
    }

    fn requirements(&self) -> SnapshotRequirements {
        SnapshotRequirements {
            distributions: self.temporality == Temporality::Cumulative,
            names_as_sent: true,
            ..SnapshotRequirements::default()
        }
    }

    fn status(&self) -> BackendStatus {
        self.poster.status()
    }

    fn flush(&mut self, snapshot: &Arc<FlushSnapshot>) -> Result<(), BackendError> {
        let (temporality, resource) = (self.temporality, &self.resource);
        self.poster.flush(snapshot.interval, |sink| encode(snapshot, temporality, resource, sink))
    }

    fn finish(&mut self, timeout: Duration) -> Result<(), BackendError> {
        self.poster.finish(timeout)
    }

    fn hand_over(
        &mut self,
        timeout: Duration,
        spool: &mut BackendSpool,
    ) -> Result<(), BackendError> {
        self.poster.hand_over(timeout, spool)
    }

    fn adopt(&mut self, spool: BackendSpool) {
        self.poster.adopt(spool);
    }
}

/// Encodes all metrics as requests of about [`POINTS_PER_REQUEST`] data points.
fn encode(
    snapshot: &FlushSnapshot,
    temporality: Temporality,
    resource: &[(String, String)],
    sink: BatchSink<'_>,
) {
    let times = PointTimes { temporality, snapshot };
    let mut requests = OtlpEncoder { resource, sink, scope: ProtobufMessage::default(), points: 0 };
    for_each_base(
        snapshot.counters_as_sent(),
        |counter| &counter.name,
        |base, counters| {
            requests.metric(base, "", |metric| {
                // Metric.sum, with Sum.data_points, .aggregation_temporality, .is_monotonic
                metric.message(7, |sum| {
                    for counter in counters {
                        let value = match temporality {
                            Temporality::Cumulative => counter.total,
                            Temporality::Delta => counter.value,
                        };
                        let start = times.start_ns(counter.since());
                        sum.message(1, |point| {
                            number(point, &counter.name, Some(start), times.end_ns(), value);
                        });
                    }
                    sum.uint(2, times.code()).uint(3, 1);
                });
                counters.len()
            });
        },
    );
    encode_timed(snapshot, &mut requests);
    let gauges = snapshot.gauges_as_sent().map(|gauge| (&gauge.name, gauge.value));
    let sets = snapshot.sets_as_sent().map(|set| (&set.name, set.count as f64));
    for_each_base(
        gauges.chain(sets),
        |(name, _)| name,
        |base, values| {
            requests.gauge(base, values, &times);
        },
    );
    for_each_base(
        snapshot.timers_as_sent(),
        |timer| &timer.name,
        |base, timers| {
            requests.histogram(base, timers, &times);
        },
    );
    let self_metrics = &snapshot.self_metrics;
    for (field, value) in self_metrics.values() {
        let name = MetricName::new(&format!("{}.{field}", self_metrics.prefix));
        requests.gauge(name.base(), &[(&name, value)], &times);
    }
    requests.finish_request();
}

/// Encodes the values that were sent with a timestamp, as points of that time. Counters are deltas
/// over one interval whatever the temporality, because a cumulative sum of the past cannot change.
fn encode_timed(snapshot: &FlushSnapshot, requests: &mut OtlpEncoder<'_>) {
    let is_counter = |timed: &&TimedMetric| timed.kind == TimedType::Counter;
    let nanoseconds = |timed: &TimedMetric| timed.time.unsigned_abs().saturating_mul(1_000_000_000);
    let interval = u64::try_from(snapshot.interval.as_nanos()).unwrap_or(u64::MAX);
    for_each_base(
        snapshot.timed.iter().filter(is_counter),
        |timed| &timed.sent,
        |base, counters| {
            requests.metric(base, "", |metric| {
                metric.message(7, |sum| {
                    for counter in counters {
                        let end = nanoseconds(counter);
                        let start = Some(end.saturating_sub(interval));
                        sum.message(1, |point| {
                            number(point, &counter.sent, start, end, counter.value);
                        });
                    }
                    sum.uint(2, DELTA).uint(3, 1);
                });
                counters.len()
            });
        },
    );
    for_each_base(
        snapshot.timed.iter().filter(|timed| !is_counter(timed)),
        |timed| &timed.sent,
        |base, gauges| {
            requests.metric(base, "", |metric| {
                metric.message(5, |all| {
                    for gauge in gauges {
                        let time = nanoseconds(gauge);
                        all.message(1, |point| number(point, &gauge.sent, None, time, gauge.value));
                    }
                });
                gauges.len()
            });
        },
    );
}

/// The number of delta temporality in the enumeration `AggregationTemporality`.
const DELTA: u64 = 1;
/// That of cumulative temporality.
const CUMULATIVE: u64 = 2;

/// Groups metrics by key without tags, because OTLP has one metric with a data point per tag set.
/// Passes at most [`POINTS_PER_REQUEST`] metrics to `each` at once.
fn for_each_base<'m, T>(
    metrics: impl Iterator<Item = T>,
    name: impl Fn(&T) -> &'m MetricName,
    mut each: impl FnMut(&'m str, &[T]),
) {
    let mut metrics: Vec<T> = metrics.collect();
    // Sorted by key, `a.b` would be between `a` and `a;tag=1`.
    metrics.sort_by(|a, b| name(a).base().cmp(name(b).base()));
    for group in metrics.chunk_by(|a, b| name(a).base() == name(b).base()) {
        for part in group.chunks(POINTS_PER_REQUEST) {
            each(name(&part[0]).base(), part);
        }
    }
}

/// Returns the distribution of a timer; `None` if it has no samples.
fn distribution(timer: &TimerMetric, temporality: Temporality) -> Option<Arc<Sketch>> {
    if temporality == Temporality::Cumulative {
        return timer.cumulative.clone();
    }
    let summary = timer.summary.as_ref()?;
    // Sample rates are not stored individually; weighting every sample equally keeps the total
    // count right. The sum is exact.
    let weight = summary.count / summary.samples.max(1) as f64;
    let mut distribution = Sketch::default();
    match &timer.samples {
        TimerSamples::Sketched(sketch) if weight == 1.0 => return Some(Arc::clone(sketch)),
        TimerSamples::Sketched(sketch) => distribution.merge_weighted(sketch, weight),
        TimerSamples::Exact(values) => {
            values.iter().for_each(|value| distribution.add(timer.unit.to_base(*value), weight));
        }
    }
    let difference = summary.weighted_sum - summary.sum * weight;
    distribution.add_to_sum(timer.unit.to_base(difference));
    Some(Arc::new(distribution))
}

struct PointTimes<'s> {
    temporality: Temporality,
    snapshot: &'s FlushSnapshot,
}

impl PointTimes<'_> {
    fn start_ns(&self, since: SystemTime) -> u64 {
        match self.temporality {
            Temporality::Cumulative => nanoseconds(since),
            Temporality::Delta => {
                let interval = u64::try_from(self.snapshot.interval.as_nanos()).unwrap_or(u64::MAX);
                self.end_ns().saturating_sub(interval)
            }
        }
    }

    fn end_ns(&self) -> u64 {
        nanoseconds(self.snapshot.time)
    }

    /// Returns the number of the temporality in the enumeration `AggregationTemporality`.
    fn code(&self) -> u64 {
        match self.temporality {
            Temporality::Delta => DELTA,
            Temporality::Cumulative => CUMULATIVE,
        }
    }
}

fn nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// An encoder that writes requests and passes full ones to the sink.
struct OtlpEncoder<'r> {
    resource: &'r [(String, String)],
    sink: BatchSink<'r>,
    /// `ScopeMetrics` of the request being written.
    scope: ProtobufMessage,
    points: usize,
}

impl OtlpEncoder<'_> {
    /// Adds one `Metric`; `write` returns the number of its data points.
    fn metric(
        &mut self,
        name: &str,
        unit: &str,
        write: impl FnOnce(&mut ProtobufMessage) -> usize,
    ) {
        if self.points == 0 {
            // ScopeMetrics.scope, with InstrumentationScope.name
            self.scope.message(1, |scope| {
                scope.string(1, "howdah-statsd");
            });
        }
        let mut points = 0;
        // ScopeMetrics.metrics, with Metric.name and .unit
        self.scope.message(2, |metric| {
            metric.string(1, name);
            if !unit.is_empty() {
                metric.string(3, unit);
            }
            points = write(metric);
        });
        self.points += points;
        if self.points >= POINTS_PER_REQUEST {
            self.finish_request();
        }
    }

    fn gauge(&mut self, base: &str, values: &[(&MetricName, f64)], times: &PointTimes<'_>) {
        self.metric(base, "", |metric| {
            // Metric.gauge, with Gauge.data_points
            metric.message(5, |gauge| {
                for (name, value) in values {
                    gauge.message(1, |point| number(point, name, None, times.end_ns(), *value));
                }
            });
            values.len()
        });
    }

    /// Adds the timers of one key that have samples.
    fn histogram(&mut self, base: &str, timers: &[&TimerMetric], times: &PointTimes<'_>) {
        let unit = if timers.iter().any(|timer| timer.unit == TimingUnit::Milliseconds) {
            "s"
        } else {
            ""
        };
        let with_values: Vec<_> = timers
            .iter()
            .filter_map(|timer| Some((timer, distribution(timer, times.temporality)?)))
            .collect();
        if with_values.is_empty() {
            return;
        }
        self.metric(base, unit, |metric| {
            // Metric.exponential_histogram, with .data_points and .aggregation_temporality
            metric.message(10, |histogram| {
                for (timer, sketch) in &with_values {
                    let start = times.start_ns(timer.since);
                    histogram.message(1, |point| {
                        exponential(point, &timer.name, start, times.end_ns(), sketch);
                    });
                }
                histogram.uint(2, times.code());
            });
            with_values.len()
        });
    }

    /// Passes the current request to the sink, if it has data points.
    fn finish_request(&mut self) {
        if self.points == 0 {
            return;
        }
        let scope = std::mem::take(&mut self.scope).into_bytes();
        let mut request = ProtobufMessage::default();
        // ExportMetricsServiceRequest.resource_metrics, with ResourceMetrics.resource and
        // .scope_metrics
        request.message(1, |metrics| {
            metrics.message(1, |resource| {
                self.resource.iter().for_each(|(key, value)| attribute(resource, 1, key, value));
            });
            metrics.bytes(2, &scope);
        });
        let values = std::mem::take(&mut self.points) as u64;
        (self.sink)(ValueBatch::new(request.into_bytes(), values));
    }
}

/// Writes a `NumberDataPoint`.
fn number(
    point: &mut ProtobufMessage,
    name: &MetricName,
    start: Option<u64>,
    end: u64,
    value: f64,
) {
    if let Some(start) = start {
        point.fixed64(2, start);
    }
    point.fixed64(3, end).double(4, value);
    name.tags().for_each(|(key, value)| attribute(point, 7, &key, &value));
}

/// Writes an `ExponentialHistogramDataPoint`.
fn exponential(
    point: &mut ProtobufMessage,
    name: &MetricName,
    start: u64,
    end: u64,
    sketch: &Sketch,
) {
    let scale = scale(sketch);
    let [positive, negative] = [sketch.positive(scale), sketch.negative(scale)].map(|buckets| {
        buckets.into_iter().map(|(index, count)| (index, to_count(count))).collect()
    });
    let zeros = to_count(sketch.zeros());
    let in_buckets =
        |buckets: &Vec<(i32, u64)>| buckets.iter().map(|(_, count)| count).sum::<u64>();
    // The parts are rounded, so the count must be their sum to be consistent.
    let count = zeros + in_buckets(&positive) + in_buckets(&negative);
    name.tags().for_each(|(key, value)| attribute(point, 1, &key, &value));
    point.fixed64(2, start).fixed64(3, end).fixed64(4, count).double(5, sketch.sum());
    point.sint(6, scale.into()).fixed64(7, zeros);
    for (field, buckets) in [(8, positive), (9, negative)] {
        if !buckets.is_empty() {
            point.message(field, |message| dense(message, &buckets));
        }
    }
    if let Some((lower, upper)) = sketch.range() {
        point.double(12, lower).double(13, upper);
    }
}

/// Returns the finest scale at which neither side has more than [`BUCKETS_MAX`] buckets, gaps
/// included.
fn scale(sketch: &Sketch) -> i32 {
    let width = |buckets: &[(i32, f64)]| match (buckets.first(), buckets.last()) {
        (Some((first, _)), Some((last, _))) => last.abs_diff(*first) as usize + 1,
        _ => 0,
    };
    let fits = |scale: &i32| {
        width(&sketch.positive(*scale)).max(width(&sketch.negative(*scale))) <= BUCKETS_MAX
    };
    (SCALE_MIN..=Sketch::SCALE.cast_signed()).rev().find(fits).unwrap_or(SCALE_MIN)
}

/// Writes `Buckets`: an offset, and the counts from there on, including empty buckets.
fn dense(message: &mut ProtobufMessage, buckets: &[(i32, u64)]) {
    let Some((offset, _)) = buckets.first().copied() else { return };
    let mut counts = Vec::new();
    for (index, count) in buckets {
        counts.resize(index.abs_diff(offset) as usize, 0);
        counts.push(*count);
    }
    message.sint(1, offset.into()).packed_uint(2, counts.into_iter());
}

/// Writes a `KeyValue` with `AnyValue.string_value`.
fn attribute(message: &mut ProtobufMessage, field: u32, key: &str, value: &str) {
    message.message(field, |pair| {
        pair.string(1, key).message(2, |any| {
            any.string(1, value);
        });
    });
}

fn to_count(count: f64) -> u64 {
    // Casting a double saturates, and counts are not negative.
    count.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::testing::snapshot;

    fn encoded(
        snapshot: &FlushSnapshot,
        temporality: Temporality,
        resource: &[(String, String)],
    ) -> Vec<ValueBatch> {
        let mut batches = Vec::new();
        encode(snapshot, temporality, resource, &mut |batch| batches.push(batch));
        batches
    }

    #[test]
    fn small_request_encodes_exactly() {
        let mut snapshot = FlushSnapshot::clone(&snapshot());
        snapshot.counters.truncate(0);
        snapshot.timers.clear();
        snapshot.sets.clear();
        snapshot.gauges[0].name = MetricName::new("g;a=b");
        snapshot.self_metrics.num_stats = 0;
        let resource = [("service.name".to_owned(), "s".to_owned())];
        let batches = encoded(&snapshot, Temporality::Cumulative, &resource);
        let time = 1_772_359_200_000_000_000u64.to_le_bytes();
        let gauge = |name: &[u8], value: f64, attribute: &[u8]| {
            let mut point = vec![0x19];
            point.extend(time);
            point.push(0x21);
            point.extend(value.to_le_bytes());
            point.extend(attribute);
            let gauge = [&[0x0a, point.len() as u8], &point[..]].concat();
            let metric =
                [&[0x0a, name.len() as u8], name, &[0x2a, gauge.len() as u8], &gauge].concat();
            [&[0x12, metric.len() as u8], &metric[..]].concat()
        };
        let scope = [
            &b"\x0a\x0f\x0a\x0dhowdah-statsd"[..],
            &gauge(b"g", -2.5, b"\x3a\x08\x0a\x01a\x12\x03\x0a\x01b"),
            &gauge(b"statsd.num_stats", 0.0, b""),
            &gauge(b"statsd.processing_time", 4.0, b""),
        ]
        .concat();
        let resource = b"\x0a\x15\x0a\x13\x0a\x0cservice.name\x12\x03\x0a\x01s";
        let length = |len: usize| [(len & 0x7f) as u8 | 0x80, (len >> 7) as u8];
        let metrics = [&resource[..], &[0x12], &length(scope.len()), &scope].concat();
        let expected = [&[0x0a][..], &length(metrics.len()), &metrics].concat();
        assert_eq!(batches[0].bytes, expected);
        assert_eq!((batches.len(), batches[0].values), (1, 3));
    }

    #[test]
    fn values_with_timestamps_are_deltas_of_their_own_time() {
        let mut snapshot = crate::backends::testing::snapshot_with_timed();
        let times = [(3600, 10), (60, 0)].map(|(age, length)| {
            let end = (1_772_359_200 - age) * 1_000_000_000_u64;
            let number = |field: u8, time: u64| [&[field][..], &time.to_le_bytes()].concat();
            let start = number(0x11, end - length * 1_000_000_000);
            if length == 0 { number(0x19, end) } else { [start, number(0x19, end)].concat() }
        });
        for temporality in [Temporality::Cumulative, Temporality::Delta] {
            let batches = encoded(&snapshot, temporality, &[]);
            let bytes = &batches[0].bytes;
            for time in &times {
                assert!(bytes.windows(time.len()).any(|found| found == time), "{temporality:?}");
            }
        }
        let values = encoded(&snapshot, Temporality::Delta, &[])[0].values;
        snapshot.timed.clear();
        assert_eq!(encoded(&snapshot, Temporality::Delta, &[])[0].values, values - 3);
    }

    #[test]
    fn large_snapshot_is_split_without_losing_points() {
        let mut snapshot = FlushSnapshot::clone(&snapshot());
        let counter = snapshot.counters[0].clone();
        let named = |n: i32| crate::flush::CounterMetric {
            name: MetricName::new(&format!("c{n}")),
            ..counter.clone()
        };
        snapshot.counters = (0..12_000).map(named).collect();
        let batches = encoded(&snapshot, Temporality::Delta, &[]);
        assert_eq!(batches.len(), 3);
        assert_eq!(batches.iter().map(|batch| batch.values).sum::<u64>(), 12_000 + 2 + 1 + 2);
    }

    #[test]
    fn metrics_are_grouped_by_base_name() {
        let names = ["a", "a.b", "a;t=1", "a;t=2", "b"].map(MetricName::new);
        let mut groups = Vec::new();
        for_each_base(
            names.iter(),
            |name| name,
            |base, group| {
                groups.push((base.to_owned(), group.len()));
            },
        );
        let expected = [("a", 3), ("a.b", 1), ("b", 1)];
        assert_eq!(groups, expected.map(|(base, count)| (base.to_owned(), count)));
    }

    #[test]
    fn wide_distribution_uses_coarser_scale() {
        let mut sketch = Sketch::default();
        (-9..=9).for_each(|exponent| sketch.add(10f64.powi(exponent), 1.0));
        let scale = scale(&sketch);
        assert!(scale < 6);
        let buckets = sketch.positive(scale);
        assert!(buckets.last().unwrap().0.abs_diff(buckets[0].0) < BUCKETS_MAX as u32);
        assert_eq!(buckets.iter().map(|(_, count)| count).sum::<f64>(), 19.0);
    }

    #[test]
    fn gaps_between_buckets_are_filled() {
        let mut message = ProtobufMessage::default();
        dense(&mut message, &[(-2, 1), (1, 300)]);
        assert_eq!(message.into_bytes(), b"\x08\x03\x12\x05\x01\0\0\xac\x02");
    }
}
