//! OpenTelemetry's protocol, OTLP, over HTTP with protobuf bodies.
//!
//! Counters are monotonic sums, timers exponential histograms (in seconds where they came in
//! milliseconds), gauges and the sizes of sets are gauges; tags are attributes. Sums and histograms
//! count from when their key was first seen, or, with delta temporality, from the flush before. A
//! counter that somebody decrements looks like a restart to a receiver, as monotonic sums do.
//!
//! Field numbers are those of opentelemetry-proto 1.x: `metrics/v1/metrics.proto`,
//! `common/v1/common.proto`, `collector/metrics/v1/metrics_service.proto`.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use howdah_post::{Endpoint, EndpointError, authorization};

use super::{
    Backend, BackendError, Needs, Status,
    outbox::{Batch, Sink},
    post::{AGENT, Poster},
    protobuf::Message,
};
use crate::{
    Name,
    flush::{Samples, Snapshot, Timer},
    grammar::TimingUnit,
    settings::{self, Temporality},
    sketch::Sketch,
};

/// Data points of one request.
const POINTS_MAX: usize = 5_000;
/// Buckets on one side of a histogram, as OpenTelemetry's own libraries have at most.
const BUCKETS_MAX: usize = 160;
/// The coarsest scale there is.
const SCALE_MIN: i32 = -10;

/// Sends snapshots to an OTLP receiver.
pub struct Otlp {
    poster: Poster,
    temporality: Temporality,
    resource: Vec<(String, String)>,
}

impl Otlp {
    /// A backend for these settings. The token is read now, the connection made by the first flush.
    ///
    /// # Errors
    ///
    /// The URL is none, or a file cannot be read.
    pub fn new(settings: &settings::Otlp) -> Result<Self, EndpointError> {
        let headers = authorization("Bearer", settings.token_file.as_ref())?
            + "Content-Type: application/x-protobuf\r\n";
        let endpoint = Endpoint::new(AGENT, &settings.url, settings.ca_file.as_deref(), headers)?;
        let mut resource = settings.resource.clone();
        resource.entry("service.name".to_owned()).or_insert_with(|| "statsd".to_owned());
        Ok(Self {
            poster: Poster::new(endpoint, settings.spool_bytes),
            temporality: settings.temporality,
            resource: resource.into_iter().collect(),
        })
    }
}

impl fmt::Debug for Otlp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Otlp").field("url", &self.poster.endpoint().shown()).finish()
    }
}

impl Backend for Otlp {
    fn name(&self) -> &'static str {
        "otlp"
    }

    fn needs(&self) -> Needs {
        Needs { distributions: self.temporality == Temporality::Cumulative, names_as_sent: true }
    }

    fn status(&self) -> Status {
        self.poster.status()
    }

    fn flush(&mut self, snapshot: &Arc<Snapshot>) -> Result<(), BackendError> {
        let (temporality, resource) = (self.temporality, &self.resource);
        self.poster.flush(snapshot.interval, |sink| encode(snapshot, temporality, resource, sink))
    }

    fn finish(&mut self, patience: Duration) -> Result<(), BackendError> {
        self.poster.finish(patience)
    }
}

/// All metrics, as requests of about [`POINTS_MAX`] data points.
fn encode(
    snapshot: &Snapshot,
    temporality: Temporality,
    resource: &[(String, String)],
    sink: Sink<'_>,
) {
    let times = Times { temporality, snapshot };
    let mut requests = Requests { resource, sink, scope: Message::default(), points: 0 };
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
                        let start = times.start(counter.since);
                        sum.message(1, |point| {
                            number(point, &counter.name, Some(start), times.end(), value);
                        });
                    }
                    sum.uint(2, times.code()).uint(3, 1);
                });
                counters.len()
            });
        },
    );
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
    let own = &snapshot.own;
    let facts = [("num_stats", own.num_stats as f64), ("processing_time", own.processing_ms)];
    for (fact, value) in facts.into_iter().chain(own.extra.iter().copied()) {
        let name = Name::new(&format!("{}.{fact}", own.prefix));
        requests.gauge(name.base(), &[(&name, value)], &times);
    }
    requests.end();
}

/// Metrics grouped by their key without tags, because that makes one metric with a data point per set
/// of tags; at most [`POINTS_MAX`] at once.
fn for_each_base<'m, T>(
    metrics: impl Iterator<Item = T>,
    name: impl Fn(&T) -> &'m Name,
    mut each: impl FnMut(&'m str, &[T]),
) {
    let mut metrics: Vec<T> = metrics.collect();
    // They come by key, where `a.b` lies between `a` and `a;tag=1`.
    metrics.sort_by(|a, b| name(a).base().cmp(name(b).base()));
    for group in metrics.chunk_by(|a, b| name(a).base() == name(b).base()) {
        for part in group.chunks(POINTS_MAX) {
            each(name(&part[0]).base(), part);
        }
    }
}

/// What a timer's histogram holds; `None` if there is nothing to tell.
fn distribution(timer: &Timer, temporality: Temporality) -> Option<Arc<Sketch>> {
    if temporality == Temporality::Cumulative {
        return timer.cumulative.clone();
    }
    let summary = timer.summary.as_ref()?;
    match &timer.samples {
        Samples::Sketched(sketch) => Some(Arc::clone(sketch)),
        Samples::Exact(values) => {
            // Rates are not kept sample by sample; their mean makes the counts add up.
            let weight = summary.count / summary.samples.max(1) as f64;
            let mut sketch = Sketch::default();
            values.iter().for_each(|value| sketch.add(timer.unit.to_base(*value), weight));
            Some(Arc::new(sketch))
        }
    }
}

struct Times<'s> {
    temporality: Temporality,
    snapshot: &'s Snapshot,
}

impl Times<'_> {
    fn start(&self, since: SystemTime) -> u64 {
        match self.temporality {
            Temporality::Cumulative => nanoseconds(since),
            Temporality::Delta => {
                let interval = u64::try_from(self.snapshot.interval.as_nanos()).unwrap_or(u64::MAX);
                self.end().saturating_sub(interval)
            }
        }
    }

    fn end(&self) -> u64 {
        nanoseconds(self.snapshot.time)
    }

    /// `AggregationTemporality`.
    fn code(&self) -> u64 {
        match self.temporality {
            Temporality::Delta => 1,
            Temporality::Cumulative => 2,
        }
    }
}

fn nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Requests being written.
struct Requests<'r> {
    resource: &'r [(String, String)],
    sink: Sink<'r>,
    /// `ScopeMetrics` of the request being written.
    scope: Message,
    points: usize,
}

impl Requests<'_> {
    /// One `Metric`, whose `write` gives the number of its data points.
    fn metric(&mut self, name: &str, unit: &str, write: impl FnOnce(&mut Message) -> usize) {
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
        if self.points >= POINTS_MAX {
            self.end();
        }
    }

    fn gauge(&mut self, base: &str, values: &[(&Name, f64)], times: &Times<'_>) {
        self.metric(base, "", |metric| {
            // Metric.gauge, with Gauge.data_points
            metric.message(5, |gauge| {
                for (name, value) in values {
                    gauge.message(1, |point| number(point, name, None, times.end(), *value));
                }
            });
            values.len()
        });
    }

    /// The timers of one key that have something to tell.
    fn histogram(&mut self, base: &str, timers: &[&Timer], times: &Times<'_>) {
        let unit = match timers.iter().any(|timer| timer.unit == TimingUnit::Milliseconds) {
            true => "s",
            false => "",
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
                    let start = times.start(timer.since);
                    histogram.message(1, |point| {
                        exponential(point, &timer.name, start, times.end(), sketch);
                    });
                }
                histogram.uint(2, times.code());
            });
            with_values.len()
        });
    }

    /// Ends the request being written.
    fn end(&mut self) {
        if self.points == 0 {
            return;
        }
        let scope = std::mem::take(&mut self.scope).into_bytes();
        let mut request = Message::default();
        // ExportMetricsServiceRequest.resource_metrics, with ResourceMetrics.resource and
        // .scope_metrics
        request.message(1, |metrics| {
            metrics.message(1, |resource| {
                self.resource.iter().for_each(|(key, value)| attribute(resource, 1, key, value));
            });
            metrics.bytes(2, &scope);
        });
        let values = std::mem::take(&mut self.points) as u64;
        (self.sink)(Batch { bytes: request.into_bytes(), values });
    }
}

/// `NumberDataPoint`.
fn number(point: &mut Message, name: &Name, start: Option<u64>, end: u64, value: f64) {
    if let Some(start) = start {
        point.fixed64(2, start);
    }
    point.fixed64(3, end).double(4, value);
    name.tags().for_each(|(key, value)| attribute(point, 7, &key, &value));
}

/// `ExponentialHistogramDataPoint`.
fn exponential(point: &mut Message, name: &Name, start: u64, end: u64, sketch: &Sketch) {
    let scale = scale(sketch);
    let [positive, negative] = [sketch.positive(scale), sketch.negative(scale)]
        .map(|buckets| buckets.into_iter().map(|(index, count)| (index, whole(count))).collect());
    let zeros = whole(sketch.zeros());
    let in_buckets =
        |buckets: &Vec<(i32, u64)>| buckets.iter().map(|(_, count)| count).sum::<u64>();
    // The parts are rounded, so their sum is the count that fits them.
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

/// The finest scale at which neither side has more than [`BUCKETS_MAX`] buckets, gaps included.
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

/// `Buckets`: an offset and the counts from there on, those of empty buckets included.
fn dense(message: &mut Message, buckets: &[(i32, u64)]) {
    let Some((offset, _)) = buckets.first().copied() else { return };
    let mut counts = Vec::new();
    for (index, count) in buckets {
        counts.resize(index.abs_diff(offset) as usize, 0);
        counts.push(*count);
    }
    message.sint(1, offset.into()).packed_uint(2, counts.into_iter());
}

/// `KeyValue`, with `AnyValue.string_value`.
fn attribute(message: &mut Message, field: u32, key: &str, value: &str) {
    message.message(field, |pair| {
        pair.string(1, key).message(2, |any| {
            any.string(1, value);
        });
    });
}

fn whole(count: f64) -> u64 {
    // Casting a double saturates, and counts are not negative.
    count.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::testing::snapshot;

    fn encoded(
        snapshot: &Snapshot,
        temporality: Temporality,
        resource: &[(String, String)],
    ) -> Vec<Batch> {
        let mut batches = Vec::new();
        encode(snapshot, temporality, resource, &mut |batch| batches.push(batch));
        batches
    }

    #[test]
    fn a_small_request_byte_by_byte() {
        let mut snapshot = Snapshot::clone(&snapshot());
        snapshot.counters.truncate(0);
        snapshot.timers.clear();
        snapshot.sets.clear();
        snapshot.gauges[0].name = Name::new("g;a=b");
        snapshot.own.num_stats = 0;
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
    fn much_becomes_several_requests_and_every_point_is_in_one() {
        let mut snapshot = Snapshot::clone(&snapshot());
        let counter = snapshot.counters[0].clone();
        let named =
            |n: i32| crate::flush::Counter { name: Name::new(&format!("c{n}")), ..counter.clone() };
        snapshot.counters = (0..12_000).map(named).collect();
        let batches = encoded(&snapshot, Temporality::Delta, &[]);
        assert_eq!(batches.len(), 3);
        assert_eq!(batches.iter().map(|batch| batch.values).sum::<u64>(), 12_000 + 2 + 1 + 2);
    }

    #[test]
    fn metrics_of_one_key_are_together_whatever_lies_between_them() {
        let names = ["a", "a.b", "a;t=1", "a;t=2", "b"].map(Name::new);
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
    fn a_wide_distribution_gets_a_scale_that_fits() {
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
        let mut message = Message::default();
        dense(&mut message, &[(-2, 1), (1, 300)]);
        assert_eq!(message.into_bytes(), b"\x08\x03\x12\x05\x01\0\0\xac\x02");
    }
}
