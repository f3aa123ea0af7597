//! Renders a registry's values for OpenTelemetry's protocol (OTLP) over HTTP, as protocol buffers.
//!
//! Counters become monotonic sums and histograms explicit-bucket histograms, both cumulative since
//! the process started; durations are in seconds. Gauges that are not finite are left out. Labels
//! become attributes.
//!
//! Field numbers are those of opentelemetry-proto 1.x: `metrics/v1/metrics.proto`,
//! `common/v1/common.proto`, `collector/metrics/v1/metrics_service.proto`.

use std::time::{SystemTime, UNIX_EPOCH};

use howdah_codec::protobuf::ProtobufMessage;

use crate::{
    Histogram, MetricUnit, Registry,
    registry::{MetricFamily, MetricHandle},
};

/// `AggregationTemporality` of values counted since the start.
const CUMULATIVE: u64 = 2;

/// Encodes all values as one `ExportMetricsServiceRequest`. `service` is the `service.name` of the
/// resource; `started` is when counting began.
///
/// ```
/// use std::time::UNIX_EPOCH;
/// use howdah_stats::{Description, Registry, otlp};
///
/// const SENT: Description = Description::counter("t_sent_total", "Sent.");
/// let registry = Registry::new();
/// registry.counter(&SENT).add(3);
/// let request = otlp::encode(&registry, "t", UNIX_EPOCH, UNIX_EPOCH);
/// assert!(request.windows(12).any(|bytes| bytes == b"t_sent_total"));
/// ```
pub fn encode(registry: &Registry, service: &str, started: SystemTime, now: SystemTime) -> Vec<u8> {
    let times = SeriesTimes { start_ns: unix_ns(started), end_ns: unix_ns(now) };
    let mut scope = ProtobufMessage::default();
    // ScopeMetrics.scope, with InstrumentationScope.name
    scope.message(1, |of| {
        of.string(1, "howdah");
    });
    registry.for_each_family(|family| {
        // ScopeMetrics.metrics
        scope.message(2, |metric| write_metric(metric, family, times));
    });
    let mut request = ProtobufMessage::default();
    // ExportMetricsServiceRequest.resource_metrics, with ResourceMetrics.resource and
    // .scope_metrics
    request.message(1, |metrics| {
        metrics.message(1, |resource| attribute(resource, 1, "service.name", service));
        metrics.bytes(2, &scope.into_bytes());
    });
    request.into_bytes()
}

#[derive(Clone, Copy)]
struct SeriesTimes {
    start_ns: u64,
    end_ns: u64,
}

/// Writes a `Metric`, with a point for each series.
fn write_metric(metric: &mut ProtobufMessage, family: &MetricFamily, times: SeriesTimes) {
    let description = family.description();
    metric.string(1, description.name()).string(2, description.help());
    match unit(description.metric_unit()) {
        "" => {}
        unit => {
            metric.string(3, unit);
        }
    }
    let points: Vec<_> = family.series().collect();
    // The handles of a family are all of its kind.
    match points.first() {
        Some((_, MetricHandle::Counter(_))) => {
            // Metric.sum, with Sum.data_points, .aggregation_temporality, .is_monotonic
            metric.message(7, |sum| {
                for (labels, handle) in points {
                    if let MetricHandle::Counter(counter) = handle {
                        sum.message(1, |point| {
                            // NumberDataPoint.start_time_unix_nano, .time_unix_nano, .as_int
                            point.fixed64(2, times.start_ns).fixed64(3, times.end_ns);
                            point.fixed64(6, counter.value());
                            labels.for_each(|(key, value)| attribute(point, 7, key, value));
                        });
                    }
                }
                sum.uint(2, CUMULATIVE).uint(3, 1);
            });
        }
        Some((_, MetricHandle::Gauge(_))) => {
            // Metric.gauge, with Gauge.data_points
            metric.message(5, |gauges| {
                for (labels, handle) in points {
                    if let MetricHandle::Gauge(gauge) = handle
                        && gauge.value().is_finite()
                    {
                        gauges.message(1, |point| {
                            point.fixed64(3, times.end_ns).double(4, gauge.value());
                            labels.for_each(|(key, value)| attribute(point, 7, key, value));
                        });
                    }
                }
            });
        }
        Some((_, MetricHandle::Histogram(_))) => {
            // Metric.histogram, with Histogram.data_points, .aggregation_temporality
            metric.message(9, |histograms| {
                for (labels, handle) in points {
                    if let MetricHandle::Histogram(histogram) = handle {
                        histograms.message(1, |point| {
                            write_histogram(point, histogram, times);
                            labels.for_each(|(key, value)| attribute(point, 9, key, value));
                        });
                    }
                }
                histograms.uint(2, CUMULATIVE);
            });
        }
        None => {}
    }
}

/// Writes the values of a `HistogramDataPoint`.
fn write_histogram(point: &mut ProtobufMessage, histogram: &Histogram, times: SeriesTimes) {
    // Read once, so that the count is the sum of the buckets.
    let counts: Vec<u64> = histogram.bucket_counts().collect();
    let bounds = histogram.bounds_us().iter().map(|us| *us as f64 / 1e6);
    point.fixed64(2, times.start_ns).fixed64(3, times.end_ns);
    point.fixed64(4, counts.iter().sum()).double(5, histogram.sum_us() as f64 / 1e6);
    // .bucket_counts and .explicit_bounds, both packed
    point.bytes(6, &counts.into_iter().flat_map(u64::to_le_bytes).collect::<Vec<_>>());
    point.bytes(7, &bounds.flat_map(f64::to_le_bytes).collect::<Vec<_>>());
}

/// Writes a `KeyValue` with `AnyValue.string_value`.
fn attribute(message: &mut ProtobufMessage, field: u32, key: &str, value: &str) {
    message.message(field, |pair| {
        pair.string(1, key).message(2, |any| {
            any.string(1, value);
        });
    });
}

/// Returns the unit in the notation of UCUM, which OpenTelemetry uses.
fn unit(unit: MetricUnit) -> &'static str {
    match unit {
        MetricUnit::Count => "",
        MetricUnit::Seconds => "s",
        MetricUnit::Bytes => "By",
        MetricUnit::Ratio => "1",
    }
}

fn unix_ns(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Description;

    #[test]
    fn request_encodes_exactly() {
        const SENT: Description =
            Description::counter("t_total", "Sent.").unit(MetricUnit::Count).labels(&["a"]);
        const NONE: Description = Description::gauge("t_nan", "Unknown.");
        let registry = Registry::new();
        registry.counter_with(&SENT, &[("a", "b")]).add(5);
        registry.gauge(&NONE).set(f64::NAN);
        let end = UNIX_EPOCH + Duration::from_nanos(7);
        let encoded = encode(&registry, "s", UNIX_EPOCH, end);
        let point = b"\x11\0\0\0\0\0\0\0\0\x19\x07\0\0\0\0\0\0\0\x31\x05\0\0\0\0\0\0\0\
            \x3a\x08\x0a\x01a\x12\x03\x0a\x01b";
        let sum = [&[0x0a, point.len() as u8][..], point, b"\x10\x02\x18\x01"].concat();
        let counter = [b"\x0a\x07t_total\x12\x05Sent.\x3a", &[sum.len() as u8][..], &sum].concat();
        let gauge = b"\x0a\x05t_nan\x12\x08Unknown.\x2a\0";
        let scope = [
            b"\x0a\x08\x0a\x06howdah\x12",
            &[gauge.len() as u8][..],
            gauge,
            &[0x12, counter.len() as u8],
            &counter,
        ]
        .concat();
        let resource = b"\x0a\x15\x0a\x13\x0a\x0cservice.name\x12\x03\x0a\x01s";
        let metrics = [resource, &[0x12, scope.len() as u8][..], &scope].concat();
        let expected = [&[0x0a, metrics.len() as u8][..], &metrics].concat();
        assert_eq!(encoded, expected);
    }

    #[test]
    fn histogram_has_bounds_in_seconds() {
        const TOOK: Description =
            Description::histogram("t_seconds", "Took.").bounds_us(&[500, 1000]);
        let registry = Registry::new();
        registry.histogram(&TOOK).observe_us(700);
        let mut point = ProtobufMessage::default();
        let times = SeriesTimes { start_ns: 1, end_ns: 2 };
        write_histogram(&mut point, &registry.histogram(&TOOK), times);
        let (counts, bounds) = ([0, 1, 0_u64], [0.0005, 0.001_f64]);
        let expected = [
            &b"\x11\x01\0\0\0\0\0\0\0\x19\x02\0\0\0\0\0\0\0\x21\x01\0\0\0\0\0\0\0\x29"[..],
            &0.0007_f64.to_le_bytes(),
            b"\x32\x18",
            &counts.map(u64::to_le_bytes).concat(),
            b"\x3a\x10",
            &bounds.map(f64::to_le_bytes).concat(),
        ];
        assert_eq!(point.into_bytes(), expected.concat());
    }
}
