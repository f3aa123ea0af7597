//! The protobuf exposition: `io.prometheus.client.MetricFamily`, each after its length. The only form
//! in which Prometheus takes native histograms.
//!
//! Field numbers are those of prometheus/client_model, `metrics.proto`.

use super::{
    families::{Families, Observed, Shape},
    names::Labels,
    own,
};
use crate::{backends::protobuf::Message, sketch::Sketch};

/// The coarsest schema of native histograms.
const SCHEMA_MIN: i32 = -4;

/// All families, delimited.
pub(super) fn render(families: &Families) -> Vec<u8> {
    let mut out = Vec::new();
    for (family, all) in families.iter() {
        let mut message = Message::default();
        let code = match family.shape {
            Shape::Counter => 0,
            Shape::Gauge => 1,
            Shape::Summary => 2,
            Shape::Histogram => 4,
        };
        message.string(1, &family.name).string(2, &family.help()).uint(3, code);
        for series in all {
            message.message(4, |metric| {
                write_labels(metric, &series.labels);
                match (&series.observed, family.shape) {
                    (Some(observed), Shape::Summary) => summary(metric, observed),
                    (Some(observed), _) => histogram(metric, observed),
                    (None, shape) => number(metric, shape, series.value),
                }
            });
        }
        message.delimited_into(&mut out);
    }
    write_own(families, &mut out);
    out
}

fn write_labels(metric: &mut Message, labels: &Labels) {
    for (name, value) in labels.iter() {
        metric.message(1, |pair| {
            pair.string(1, name).string(2, value);
        });
    }
}

/// `Metric.counter` or `Metric.gauge`.
fn number(metric: &mut Message, shape: Shape, value: f64) {
    let field = if shape == Shape::Counter { 3 } else { 2 };
    metric.message(field, |number| {
        number.double(1, value);
    });
}

/// `Metric.summary`.
fn summary(metric: &mut Message, observed: &Observed) {
    metric.message(4, |summary| {
        summary.uint(1, whole(observed.count)).double(2, observed.sum);
        for (quantile, value) in observed.quantiles() {
            summary.message(3, |message| {
                message.double(1, quantile).double(2, value);
            });
        }
    });
}

/// `Metric.histogram`, with classic and native buckets.
fn histogram(metric: &mut Message, observed: &Observed) {
    let native = Native::new(observed);
    metric.message(7, |histogram| {
        // The native buckets are rounded one by one; the count is theirs, or they would not agree.
        histogram.uint(1, native.count()).double(2, observed.sum);
        let bounds = observed.observing.buckets.iter().copied().chain([f64::INFINITY]);
        let mut below = 0.0;
        for (bound, count) in bounds.zip(&observed.buckets) {
            below += count;
            let below = match bound.is_finite() {
                true => whole(below).min(native.count()),
                false => native.count(),
            };
            histogram.message(3, |bucket| {
                bucket.uint(1, below).double(2, bound);
            });
        }
        histogram.sint(5, native.schema.into()).double(6, Sketch::SMALLEST).uint(7, native.zeros);
        spans(histogram, [9, 10], &native.negative);
        spans(histogram, [12, 13], &native.positive);
        if native.positive.is_empty() && native.negative.is_empty() && native.zeros == 0 {
            // An empty span is what tells an empty native histogram from none.
            histogram.message(12, |span| {
                span.sint(1, 0).uint(2, 0);
            });
        }
    });
}

/// Buckets of a native histogram, by Prometheus' index, which is one above the sketch's.
struct Native {
    schema: i32,
    zeros: u64,
    positive: Vec<(i32, u64)>,
    negative: Vec<(i32, u64)>,
}

impl Native {
    fn new(observed: &Observed) -> Self {
        let observing = &observed.observing;
        let finest = Sketch::SCALE.cast_signed();
        // Bounds grow by 2^(2^-schema).
        let fine_enough =
            |schema: &i32| f64::from(-*schema).exp2().exp2() <= observing.native_factor;
        let wanted = (SCHEMA_MIN..=finest).find(fine_enough).unwrap_or(finest);
        let few_enough = |schema: &i32| {
            let buckets =
                observed.native.positive(*schema).len() + observed.native.negative(*schema).len();
            buckets <= observing.native_buckets_max
        };
        let schema = (SCHEMA_MIN..=wanted).rev().find(few_enough).unwrap_or(SCHEMA_MIN);
        let whole_buckets = |buckets: Vec<(i32, f64)>| {
            let buckets = buckets.into_iter().map(|(index, count)| (index + 1, whole(count)));
            buckets.filter(|(_, count)| *count > 0).collect()
        };
        Self {
            schema,
            zeros: whole(observed.native.zeros()),
            positive: whole_buckets(observed.native.positive(schema)),
            negative: whole_buckets(observed.native.negative(schema)),
        }
    }

    fn count(&self) -> u64 {
        let buckets = self.positive.iter().chain(&self.negative);
        self.zeros + buckets.map(|(_, count)| count).sum::<u64>()
    }
}

/// Runs of neighbouring buckets, then each count as the difference to the one before.
fn spans(histogram: &mut Message, [span_field, delta_field]: [u32; 2], buckets: &[(i32, u64)]) {
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

/// The server about itself: drops by socket, and how this endpoint fares.
fn write_own(families: &Families, out: &mut Vec<u8>) {
    for row in own::rows(families) {
        let mut family = Message::default();
        family.string(1, &row.name).string(2, row.help);
        family.uint(3, if row.shape == Shape::Counter { 0 } else { 1 });
        for (label, value) in &row.samples {
            family.message(4, |metric| {
                if let Some((name, value)) = label {
                    metric.message(1, |pair| {
                        pair.string(1, name).string(2, value);
                    });
                }
                number(metric, row.shape, *value);
            });
        }
        family.delimited_into(out);
    }
}

fn whole(count: f64) -> u64 {
    // Casting a double saturates, and counts are not negative.
    count.round() as u64
}

#[test]
fn runs_of_buckets_become_spans_and_counts_differences() {
    let mut message = Message::default();
    spans(&mut message, [12, 13], &[(-1, 5), (0, 3), (4, 3)]);
    let expected = [
        &b"\x62\x04\x08\x01\x10\x02"[..],
        b"\x62\x04\x08\x06\x10\x01",
        b"\x68\x0a\x68\x03\x68\x00",
    ];
    assert_eq!(message.into_bytes(), expected.concat());
}
