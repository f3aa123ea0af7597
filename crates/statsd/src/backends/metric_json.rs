//! One JSON object for each metric, for programs and message queues.
//!
//! ```json
//! {"name":"api.hits","type":"counter","tags":{"code":"500"},"timestamp":1772359200,"interval":10,
//!  "fields":{"count":2,"rate":0.2}}
//! ```
//!
//! Names and tags are those that were sent. `fields` are as in PostgreSQL's rows.

use crate::{
    MetricName,
    flush::{FlushSnapshot, TimedMetric, TimedType},
    js::{JsValue, Spacing, json},
};

/// A metric formatted on one line.
#[cfg_attr(not(feature = "kafka"), expect(dead_code, reason = "only messages have keys"))]
pub(super) struct MetricLine<'m> {
    /// The metric's key as sent.
    pub(super) name: &'m MetricName,
    /// Seconds since 1970.
    pub(super) time: i64,
    /// The line, without its line break.
    pub(super) text: &'m str,
    /// Number of values on the line.
    pub(super) values: u64,
}

/// Formats all metrics, and passes each to `take`.
pub(super) fn for_each_json(snapshot: &FlushSnapshot, mut take: impl FnMut(MetricLine<'_>)) {
    let seconds = snapshot.interval.as_secs_f64();
    let mut metric_at = |time: i64, kind: &str, name: &MetricName, fields: Vec<_>| {
        let values = fields.len() as u64;
        let text = json_object((time, seconds), kind, name, fields);
        take(MetricLine { name, time, text: &text, values });
    };
    let number =
        |name: &str, value: f64| -> (Box<str>, JsValue) { (name.into(), JsValue::Number(value)) };
    for TimedMetric { kind, sent, time, value, .. } in &snapshot.timed {
        match kind {
            TimedType::Counter => {
                let fields = vec![number("count", *value), number("rate", value / seconds)];
                metric_at(*time, "counter", sent, fields);
            }
            TimedType::Gauge => metric_at(*time, "gauge", sent, vec![number("value", *value)]),
        }
    }
    let mut metric = |kind: &str, name: &MetricName, fields: Vec<_>| {
        metric_at(snapshot.timestamp, kind, name, fields);
    };
    for counter in snapshot.counters_as_sent() {
        let fields = vec![number("count", counter.value), number("rate", snapshot.rate(counter))];
        metric("counter", &counter.name, fields);
    }
    for timer in snapshot.timers_as_sent() {
        let fields = timer.fields.iter().map(|(name, value)| number(name, *value));
        metric("timer", &timer.name, fields.collect());
    }
    for gauge in snapshot.gauges_as_sent() {
        metric("gauge", &gauge.name, vec![number("value", gauge.value)]);
    }
    for set in snapshot.sets_as_sent() {
        metric("set", &set.name, vec![number("count", set.count as f64)]);
    }
    let own = MetricName::new(&snapshot.self_metrics.prefix);
    let fields = snapshot.self_metrics.values().map(|(name, value)| number(name, value));
    metric("own", &own, fields.collect());
}

fn json_object(
    (timestamp, interval): (i64, f64),
    kind: &str,
    name: &MetricName,
    fields: Vec<(Box<str>, JsValue)>,
) -> String {
    let text = |text: &str| JsValue::Text(text.into());
    let tags = name.tags().map(|(key, value)| (Box::from(&*key), text(&value)));
    let object = JsValue::Object(vec![
        ("name".into(), text(name.base())),
        ("type".into(), text(kind)),
        ("tags".into(), JsValue::Object(tags.collect())),
        ("timestamp".into(), JsValue::Number(timestamp as f64)),
        ("interval".into(), JsValue::Number(interval)),
        ("fields".into(), JsValue::Object(fields)),
    ]);
    json(&object, Spacing::Compact)
}
