//! The protobuf exposition format: length-delimited `io.prometheus.client.MetricFamily` messages.
//! Prometheus scrapes native histograms only in this format.
//!
//! Field numbers are those of prometheus/client_model, `metrics.proto`.

use howdah_codec::protobuf::ProtobufMessage;
use howdah_stats::{MetricFamily, MetricHandle, MetricKind};

use super::{
    cursor::FamilyRun, families::FamilyTable, names::label_pairs, observations::TimerObservations,
    series_names::FamilyType,
};
use crate::sketch::Sketch;

/// The coarsest schema of native histograms.
const SCHEMA_MIN: i32 = -4;

/// Appends a run of series as a message. The series of a large family are in several messages with
/// the same name, so that a message is never larger than a piece of the response.
pub(super) fn write_run(out: &mut Vec<u8>, run: &FamilyRun<'_>) {
    let mut message = ProtobufMessage::default();
    message.string(1, &run.name).string(2, &run.help()).uint(3, run.shape().code());
    for series in run.series() {
        message.message(4, |metric| {
            write_labels(metric, label_pairs(series.labels));
            match (series.observations, run.shape()) {
                (Some(observed), FamilyType::Summary) => summary(metric, observed),
                (Some(observed), _) => histogram(metric, observed),
                (None, shape) => number(metric, shape, series.value),
            }
        });
    }
    message.delimited_into(out);
}

/// Appends the server's own metrics.
pub(super) fn write_self_metrics(out: &mut Vec<u8>, families: &FamilyTable) {
    families.for_each_self_metric(|name, family| {
        self_metric(name, family).delimited_into(out);
    });
}

/// Encodes one of the server's own metrics, none of which is a histogram.
fn self_metric(name: &str, family: &MetricFamily) -> ProtobufMessage {
    let description = family.description();
    let shape = match description.kind() {
        MetricKind::Counter => FamilyType::Counter,
        _ => FamilyType::Gauge,
    };
    let mut message = ProtobufMessage::default();
    message.string(1, name).string(2, description.help()).uint(3, shape.code());
    for (labels, handle) in family.series() {
        let value = match handle {
            MetricHandle::Counter(counter) => counter.value() as f64,
            MetricHandle::Gauge(gauge) => gauge.value(),
            MetricHandle::Histogram(_) => continue,
        };
        message.message(4, |metric| {
            write_labels(metric, labels);
            number(metric, shape, value);
        });
    }
    message
}

fn write_labels<'l>(
    metric: &mut ProtobufMessage,
    labels: impl Iterator<Item = (&'l str, &'l str)>,
) {
    for (name, value) in labels {
        metric.message(1, |pair| {
            pair.string(1, name).string(2, value);
        });
    }
}

impl FamilyType {
    /// Returns the number of the type in the enumeration `MetricType`.
    fn code(self) -> u64 {
        match self {
            Self::Counter => 0,
            Self::Gauge => 1,
            Self::Summary => 2,
            Self::Histogram => 4,
        }
    }
}

/// Writes a value as `Metric.counter` or `Metric.gauge`.
fn number(metric: &mut ProtobufMessage, shape: FamilyType, value: f64) {
    let field = if shape == FamilyType::Counter { 3 } else { 2 };
    metric.message(field, |number| {
        number.double(1, value);
    });
}

/// Writes a timer as `Metric.summary`, with its quantiles.
fn summary(metric: &mut ProtobufMessage, observed: &TimerObservations) {
    metric.message(4, |summary| {
        summary.uint(1, to_count(observed.count)).double(2, observed.sum);
        for (quantile, value) in observed.quantiles() {
            summary.message(3, |message| {
                message.double(1, quantile).double(2, value);
            });
        }
    });
}

/// Writes a timer as `Metric.histogram`, with classic and native buckets.
fn histogram(metric: &mut ProtobufMessage, observed: &TimerObservations) {
    let native = NativeHistogram::new(observed);
    metric.message(7, |histogram| {
        // Native buckets are rounded one by one; the count must be their sum to be consistent.
        histogram.uint(1, native.count()).double(2, observed.sum);
        let bounds = observed.observing.buckets.iter().copied().chain([f64::INFINITY]);
        let mut below = 0.0;
        for (bound, count) in bounds.zip(&observed.buckets) {
            below += count;
            let below = if bound.is_finite() {
                to_count(below).min(native.count())
            } else {
                native.count()
            };
            histogram.message(3, |bucket| {
                bucket.uint(1, below).double(2, bound);
            });
        }
        histogram.sint(5, native.schema.into()).double(6, Sketch::SMALLEST).uint(7, native.zeros);
        spans(histogram, [9, 10], &native.negative);
        spans(histogram, [12, 13], &native.positive);
        if native.positive.is_empty() && native.negative.is_empty() && native.zeros == 0 {
            // An empty span distinguishes an empty native histogram from none.
            histogram.message(12, |span| {
                span.sint(1, 0).uint(2, 0);
            });
        }
    });
}

/// Buckets of a native histogram. Prometheus' indexes are one higher than the sketch's.
struct NativeHistogram {
    schema: i32,
    zeros: u64,
    positive: Vec<(i32, u64)>,
    negative: Vec<(i32, u64)>,
}

impl NativeHistogram {
    fn new(observed: &TimerObservations) -> Self {
        let observing = &observed.observing;
        let finest = Sketch::SCALE.cast_signed();
        // Bucket bounds grow by a factor of 2^(2^-schema).
        let fine_enough =
            |schema: &i32| f64::from(-*schema).exp2().exp2() <= observing.native_factor;
        let finest_needed = (SCHEMA_MIN..=finest).find(fine_enough).unwrap_or(finest);
        let few_enough = |schema: &i32| {
            let buckets =
                observed.native.positive(*schema).len() + observed.native.negative(*schema).len();
            buckets <= observing.native_buckets_max
        };
        let schema = (SCHEMA_MIN..=finest_needed).rev().find(few_enough).unwrap_or(SCHEMA_MIN);
        let whole_buckets = |buckets: Vec<(i32, f64)>| {
            let buckets = buckets.into_iter().map(|(index, count)| (index + 1, to_count(count)));
            buckets.filter(|(_, count)| *count > 0).collect()
        };
        Self {
            schema,
            zeros: to_count(observed.native.zeros()),
            positive: whole_buckets(observed.native.positive(schema)),
            negative: whole_buckets(observed.native.negative(schema)),
        }
    }

    fn count(&self) -> u64 {
        let buckets = self.positive.iter().chain(&self.negative);
        self.zeros + buckets.map(|(_, count)| count).sum::<u64>()
    }
}

/// Writes runs of adjacent buckets as spans, and each count as its difference from the previous
/// one.
fn spans(
    histogram: &mut ProtobufMessage,
    [span_field, delta_field]: [u32; 2],
    buckets: &[(i32, u64)],
) {
    let mut end = 0;
    for run in buckets.chunk_by(|(index, _), (next, _)| index + 1 == *next) {
        let (Some((first, _)), Some((last, _))) = (run.first(), run.last()) else { continue };
        histogram.message(span_field, |span| {
            span.sint(1, (first - end).into()).uint(2, run.len() as u64);
        });
        end = last + 1;
    }
    let mut last = 0;
    for (_, count) in buckets {
        let count = i64::try_from(*count).unwrap_or(i64::MAX);
        histogram.sint(delta_field, count - last);
        last = count;
    }
}

fn to_count(count: f64) -> u64 {
    // Casting a double saturates, and counts are not negative.
    count.round() as u64
}

#[test]
fn bucket_runs_become_spans_and_counts_deltas() {
    let mut message = ProtobufMessage::default();
    spans(&mut message, [12, 13], &[(-1, 5), (0, 3), (4, 3)]);
    let expected = [
        &b"\x62\x04\x08\x01\x10\x02"[..],
        b"\x62\x04\x08\x06\x10\x01",
        b"\x68\x0a\x68\x03\x68\x00",
    ];
    assert_eq!(message.into_bytes(), expected.concat());
}
