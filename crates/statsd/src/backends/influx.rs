//! The InfluxDB backend: line protocol over HTTP, for InfluxDB 1, 2, 3 and compatible receivers.
//!
//! ```text
//! api.hits,code=500,metric_type=counter count=2,rate=0.2 1772359200000000000
//! api.latency,metric_type=timer count_90=3,mean_90=20,… 1772359200000000000
//! pool.size,metric_type=gauge value=-2.5 1772359200000000000
//! users,metric_type=set count=2 1772359200000000000
//! ```
//!
//! The measurement is the metric's name as sent, and statsd tags become InfluxDB tags. The tag
//! `metric_type` distinguishes metrics of different types with the same key. All fields are floats.
//! The timestamp is in the unit of the URL's `precision` parameter, by default nanoseconds.

use std::{borrow::Cow, fmt, fmt::Write as _, sync::Arc, time::Duration};

use howdah_http::client::{EndpointError, Headers, HttpEndpoint, PostError, authorization};

use super::{
    BackendError, BackendSpool, BackendStatus, MetricBackend, SnapshotRequirements,
    http::{AGENT, HttpSender},
    metric_json::MetricLine,
    outbox::{BatchSink, ValueBatch},
};
use crate::{
    MetricName,
    flush::{FlushSnapshot, TimedMetric, TimedType},
    js::JsNumber,
    settings,
};

/// Approximate size of a request body in bytes.
const BODY_BYTES: usize = 1 << 20;

/// The backend that sends snapshots to InfluxDB.
pub struct InfluxBackend {
    poster: HttpSender,
    /// Timestamp units per second.
    precision: i64,
}

impl InfluxBackend {
    /// Creates the backend and reads the token file. The connection is opened by the first flush.
    ///
    /// # Errors
    ///
    /// See [`EndpointError`].
    pub fn new(settings: &settings::InfluxSettings) -> Result<Self, EndpointError> {
        let mut headers = Headers::from_iter(authorization("Token", settings.token_file.as_ref())?);
        headers.push(("Content-Type", "text/plain; charset=utf-8".to_owned()));
        let endpoint =
            HttpEndpoint::new(AGENT, &settings.url, settings.ca_file.as_deref(), headers)?;
        let precision = match endpoint.parameter("precision") {
            Some("s" | "second") => 1,
            Some("ms" | "millisecond") => 1_000,
            Some("u" | "us" | "microsecond") => 1_000_000,
            _ => 1_000_000_000,
        };
        let poster = HttpSender::new(endpoint, settings.spool_bytes).refused_by(refused_values);
        Ok(Self { poster, precision })
    }
}

impl fmt::Debug for InfluxBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InfluxBackend").field("url", &self.poster.receiver()).finish()
    }
}

impl MetricBackend for InfluxBackend {
    fn name(&self) -> &'static str {
        "influx"
    }

    fn requirements(&self) -> SnapshotRequirements {
        SnapshotRequirements { names_as_sent: true, ..SnapshotRequirements::default() }
    }

    fn status(&self) -> BackendStatus {
        self.poster.status()
    }

    fn flush(&mut self, snapshot: &Arc<FlushSnapshot>) -> Result<(), BackendError> {
        let precision = self.precision;
        self.poster.flush(snapshot.interval, |sink| encode(snapshot, precision, sink))
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

/// Encodes all lines, in bodies of about [`BODY_BYTES`].
fn encode(snapshot: &FlushSnapshot, precision: i64, sink: BatchSink<'_>) {
    let (mut body, mut values) = (String::new(), 0);
    for_each_line(snapshot, precision, |metric| {
        body += metric.text;
        body.push('\n');
        values += metric.values;
        if body.len() >= BODY_BYTES {
            let bytes = std::mem::take(&mut body).into_bytes();
            sink(ValueBatch::new(bytes, std::mem::take(&mut values)));
        }
    });
    if !body.is_empty() {
        sink(ValueBatch::new(body.into_bytes(), values));
    }
}

/// Formats all metrics as lines of the protocol, with timestamps of `precision` units per second,
/// and passes each to `take`.
pub(super) fn for_each_line(
    snapshot: &FlushSnapshot,
    precision: i64,
    take: impl FnMut(MetricLine<'_>),
) {
    let flush_time = snapshot.timestamp;
    let mut lines = LineProtocolEncoder { time: flush_time, precision, line: String::new(), take };
    for counter in snapshot.counters_as_sent() {
        let fields = [("count", counter.value), ("rate", snapshot.rate(counter))];
        lines.add(&counter.name, "counter", fields.into_iter());
    }
    for timer in snapshot.timers_as_sent() {
        let fields = timer.fields.iter().map(|(name, value)| (&**name, *value));
        lines.add(&timer.name, "timer", fields);
    }
    for gauge in snapshot.gauges_as_sent() {
        lines.add(&gauge.name, "gauge", [("value", gauge.value)].into_iter());
    }
    for set in snapshot.sets_as_sent() {
        lines.add(&set.name, "set", [("count", set.count as f64)].into_iter());
    }
    let seconds = snapshot.interval.as_secs_f64();
    for TimedMetric { kind, sent, time, value, .. } in &snapshot.timed {
        lines.time = *time;
        match kind {
            TimedType::Counter => {
                let fields = [("count", *value), ("rate", value / seconds)];
                lines.add(sent, "counter", fields.into_iter());
            }
            TimedType::Gauge => lines.add(sent, "gauge", [("value", *value)].into_iter()),
        }
    }
    lines.time = flush_time;
    let self_metrics = &snapshot.self_metrics;
    lines.add(&MetricName::new(&self_metrics.prefix), "own", self_metrics.values());
}

struct LineProtocolEncoder<T> {
    /// Seconds since 1970.
    time: i64,
    precision: i64,
    /// The current line; reused for all.
    line: String,
    take: T,
}

impl<T: FnMut(MetricLine<'_>)> LineProtocolEncoder<T> {
    fn add<'f>(
        &mut self,
        name: &MetricName,
        kind: &str,
        fields: impl Iterator<Item = (&'f str, f64)>,
    ) {
        let line = &mut self.line;
        line.clear();
        // A line that starts with # is a comment.
        if name.base().starts_with('#') {
            line.push('_');
        }
        escape(name.base(), &[',', ' '], line);
        let mut tags: Vec<(Cow<'_, str>, Cow<'_, str>)> = name.tags().map(legal_tag).collect();
        tags.retain(|(key, _)| key != "metric_type");
        tags.push(("metric_type".into(), kind.into()));
        tags.sort_by(|(one, _), (other, _)| one.cmp(other));
        tags.dedup_by(|(one, _), (other, _)| one == other);
        for (key, value) in &tags {
            line.push(',');
            escape(key, &[',', ' ', '='], line);
            line.push('=');
            escape(value, &[',', ' ', '='], line);
        }
        let (mut separator, mut values) = (' ', 0);
        // The line protocol cannot express infinity.
        for (field, value) in fields.filter(|(_, value)| value.is_finite()) {
            line.push(separator);
            escape(field, &[',', ' ', '='], line);
            // Writing into a String cannot fail.
            let _ = write!(line, "={}", JsNumber(value));
            values += 1;
            separator = ',';
        }
        if values > 0 {
            let _ = write!(line, " {}", self.time.saturating_mul(self.precision));
            (self.take)(MetricLine { name, time: self.time, text: line, values });
        }
    }
}

/// Makes a tag valid: an empty value becomes `true`, and a key reserved by InfluxDB gets a prefix.
fn legal_tag<'t>((key, value): (Cow<'t, str>, Cow<'t, str>)) -> (Cow<'t, str>, Cow<'t, str>) {
    let key = match &*key {
        "time" | "_field" | "_measurement" => format!("tag_{key}").into(),
        _ => key,
    };
    (key, if value.is_empty() { "true".into() } else { value })
}

/// Returns the number of values of a batch that InfluxDB did not write. When it refuses some lines,
/// it still writes the others and reports a partial write.
///
/// InfluxDB 1 and 2 quote each line that they cannot parse (`unable to parse '…'`) and count the
/// points with conflicting field types (`dropped=2`); InfluxDB 3 lists all (`"line_number"`). The
/// reply does not identify the dropped points, so each counts as the average number of values per
/// line. Any other reply means that the whole batch was refused.
fn refused_values(error: &PostError, batch: &ValueBatch) -> u64 {
    let PostError::Status { body, .. } = error else { return batch.values };
    let reply = String::from_utf8_lossy(body);
    if !reply.contains("partial write") {
        return batch.values;
    }
    let dropped = reply.rsplit_once("dropped=").map_or("", |(_, dropped)| dropped);
    let digits = dropped.find(|c: char| !c.is_ascii_digit()).unwrap_or(dropped.len());
    let dropped: u64 = dropped[..digits].parse().unwrap_or_default();
    let named = reply.matches("unable to parse '").count() as u64;
    let numbered = reply.matches("\"line_number\"").count() as u64;
    let lines = memchr::memchr_iter(b'\n', &batch.bytes).count().max(1) as u64;
    let refused = (dropped + named + numbered).clamp(1, lines);
    // Every line has at least one value.
    (batch.values * refused).div_ceil(lines)
}

/// Appends a name with special characters escaped. The protocol cannot express a backslash before a
/// special character, so backslashes become slashes. Line breaks become spaces.
fn escape(text: &str, special: &[char], out: &mut String) {
    for char in text.chars() {
        match char {
            '\\' => out.push('/'),
            '\n' | '\r' => out.push_str("\\ "),
            char if special.contains(&char) => {
                out.push('\\');
                out.push(char);
            }
            char => out.push(char),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        backends::testing::{snapshot, snapshot_with_timed},
        flush::GaugeMetric,
    };

    fn encoded(snapshot: &FlushSnapshot, precision: i64) -> Vec<ValueBatch> {
        let mut batches = Vec::new();
        encode(snapshot, precision, &mut |batch| batches.push(batch));
        batches
    }

    #[test]
    fn every_metric_becomes_one_line() {
        let batches = encoded(&snapshot(), 1_000_000_000);
        let text = std::str::from_utf8(&batches[0].bytes).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "api.hits,metric_type=counter count=30,rate=3 1772359200000000000");
        assert_eq!(
            lines[1],
            "api.hits,code=500,metric_type=counter count=2,rate=0.2 1772359200000000000"
        );
        assert!(lines[3].starts_with("api.latency,metric_type=timer count_90=3,mean_90=20,"));
        assert_eq!(lines[4], "idle,metric_type=timer count_ps=0,count=0 1772359200000000000");
        assert_eq!(lines[5], "pool.size,metric_type=gauge value=-2.5 1772359200000000000");
        assert_eq!(lines[6], "users,metric_type=set count=2 1772359200000000000");
        assert_eq!(
            lines[7],
            "statsd,metric_type=own num_stats=7,processing_time=4 1772359200000000000"
        );
        assert_eq!((batches.len(), batches[0].values), (1, 6 + 16 + 2 + 1 + 1 + 2));
    }

    #[test]
    fn values_with_timestamps_have_their_own_time() {
        let text = String::from_utf8(encoded(&snapshot_with_timed(), 1)[0].bytes.clone()).unwrap();
        let lines: Vec<_> = text.lines().skip(7).collect();
        assert_eq!(
            lines[..3],
            [
                "jobs,metric_type=counter,q=a/b count=20,rate=2 1772355600",
                "jobs,metric_type=counter,q=a:b count=5,rate=0.5 1772355600",
                "load,metric_type=gauge value=1.5 1772359140"
            ]
        );
        assert!(lines[3].starts_with("statsd,") && lines[3].ends_with(" 1772359200"));
    }

    #[test]
    fn names_are_escaped_and_infinity_is_omitted() {
        let mut snapshot = FlushSnapshot::clone(&snapshot());
        let name = MetricName::new("a b,c=d\\\n;k y=v,w;bare;k y=again");
        snapshot.gauges = [1e300, f64::INFINITY]
            .map(|value| GaugeMetric { name: name.clone(), merged: false, value, idle: false })
            .into();
        let text = String::from_utf8(encoded(&snapshot, 1)[0].bytes.clone()).unwrap();
        let gauges: Vec<_> = text.lines().filter(|line| line.contains("=gauge")).collect();
        let line =
            "a\\ b\\,c=d/\\ ,bare=true,k\\ y=v\\,w,metric_type=gauge value=1e+300 1772359200";
        assert_eq!(gauges, [line]);
    }

    #[test]
    fn reserved_names_are_prefixed_and_tag_values_unchanged() {
        let mut snapshot = FlushSnapshot::clone(&snapshot());
        let gauge = |name: &str| GaugeMetric {
            name: MetricName::new(name),
            merged: false,
            value: 1.0,
            idle: false,
        };
        snapshot.gauges =
            vec![gauge("#a;city=Z\u{fc}rich;time=1;url=http://x/y?z"), gauge("b;k=50%")];
        let text = String::from_utf8(encoded(&snapshot, 1)[0].bytes.clone()).unwrap();
        let gauges: Vec<_> = text.lines().filter(|line| line.contains("=gauge")).collect();
        assert_eq!(
            gauges,
            [
                "_#a,city=Z\u{fc}rich,metric_type=gauge,tag_time=1,url=http://x/y?z value=1 1772359200",
                "b,k=50%,metric_type=gauge value=1 1772359200"
            ]
        );
    }

    #[test]
    fn partial_write_counts_only_refused_lines() {
        let batch = ValueBatch::new(b"a v=1,w=2 1\nb v=1,w=2 1\nc v=1,w=2 1\n".to_vec(), 6);
        let refused = |reply: &str| {
            let body = reply.as_bytes().into();
            let status =
                PostError::Status { code: 400, quote: String::new(), body, retry_after: None };
            refused_values(&status, &batch)
        };
        let unparsed =
            "{\"error\":\"partial write: unable to parse ',v=1': missing measurement dropped=0\"}";
        assert_eq!(refused(unparsed), 2);
        assert_eq!(refused("partial write: field type conflict: input field x dropped=2"), 4);
        assert_eq!(
            refused(
                "partial write of line protocol occurred [{\"line_number\":1},{\"line_number\":2}]"
            ),
            4
        );
        assert_eq!(refused("database not found"), 6);
        assert_eq!(refused("partial write: dropped=99999999999999999999"), 2);
    }

    #[test]
    fn large_snapshot_is_split_into_requests() {
        let mut snapshot = FlushSnapshot::clone(&snapshot());
        let gauge = |n: i32| GaugeMetric {
            name: MetricName::new(&format!("g{n}")),
            merged: false,
            idle: false,
            value: f64::from(n),
        };
        snapshot.gauges = (0..50_000).map(gauge).collect();
        let batches = encoded(&snapshot, 1);
        assert!(batches.len() > 1);
        assert!(batches.iter().all(|batch| batch.bytes.len() < BODY_BYTES + 4096));
        assert_eq!(batches.iter().map(|batch| batch.values).sum::<u64>(), 50_027);
    }
}
