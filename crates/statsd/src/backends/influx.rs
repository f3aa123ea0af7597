//! InfluxDB's line protocol over HTTP, for InfluxDB 1, 2, 3 and what else takes it.
//!
//! ```text
//! api.hits,code=500,metric_type=counter count=2,rate=0.2 1772359200000000000
//! api.latency,metric_type=timer count_90=3,mean_90=20,… 1772359200000000000
//! pool.size,metric_type=gauge value=-2.5 1772359200000000000
//! users,metric_type=set count=2 1772359200000000000
//! ```
//!
//! A metric's key is the measurement, its tags are tags, `metric_type` keeps kinds apart that have one
//! key. All fields are floats. The time is in the unit that the URL's `precision` names, or in
//! nanoseconds.

use std::{fmt, fmt::Write as _, sync::Arc, time::Duration};

use howdah_post::{Endpoint, EndpointError, authorization};

use super::{
    Backend, BackendError, Status,
    outbox::{Batch, Sink},
    post::{AGENT, Poster},
};
use crate::{Name, flush::Snapshot, js::Number, settings};

/// Bytes of one request's body.
const BODY_BYTES: usize = 1 << 20;

/// Sends snapshots to InfluxDB.
pub struct Influx {
    poster: Poster,
    /// Units of time in a second.
    precision: i64,
}

impl Influx {
    /// A backend for these settings. The token is read now, the connection made by the first flush.
    ///
    /// # Errors
    ///
    /// The URL is none, or a file cannot be read.
    pub fn new(settings: &settings::Influx) -> Result<Self, EndpointError> {
        let headers = authorization("Token", settings.token_file.as_ref())?
            + "Content-Type: text/plain; charset=utf-8\r\n";
        let endpoint = Endpoint::new(AGENT, &settings.url, settings.ca_file.as_deref(), headers)?;
        let precision = match endpoint.parameter("precision") {
            Some("s" | "second") => 1,
            Some("ms" | "millisecond") => 1_000,
            Some("u" | "us" | "microsecond") => 1_000_000,
            _ => 1_000_000_000,
        };
        Ok(Self { poster: Poster::new(endpoint, settings.spool_bytes), precision })
    }
}

impl fmt::Debug for Influx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Influx").field("url", &self.poster.endpoint().shown()).finish()
    }
}

impl Backend for Influx {
    fn name(&self) -> &'static str {
        "influx"
    }

    fn status(&self) -> Status {
        self.poster.status()
    }

    fn flush(&mut self, snapshot: &Arc<Snapshot>) -> Result<(), BackendError> {
        let precision = self.precision;
        self.poster.flush(snapshot.interval, |sink| encode(snapshot, precision, sink))
    }

    fn finish(&mut self, patience: Duration) -> Result<(), BackendError> {
        self.poster.finish(patience)
    }
}

/// All lines, in bodies of about [`BODY_BYTES`].
fn encode(snapshot: &Snapshot, precision: i64, sink: Sink<'_>) {
    let time = snapshot.timestamp.saturating_mul(precision);
    let mut lines = Lines { time, sink, body: String::new(), values: 0 };
    for counter in &snapshot.counters {
        let fields = [("count", counter.value), ("rate", counter.rate)];
        lines.add(&counter.name, "counter", fields.into_iter());
    }
    for timer in &snapshot.timers {
        let fields = timer.fields.iter().map(|(name, value)| (&**name, *value));
        lines.add(&timer.name, "timer", fields);
    }
    for gauge in &snapshot.gauges {
        lines.add(&gauge.name, "gauge", [("value", gauge.value)].into_iter());
    }
    for set in &snapshot.sets {
        lines.add(&set.name, "set", [("count", set.count as f64)].into_iter());
    }
    let own = &snapshot.own;
    let facts = [("num_stats", own.num_stats as f64), ("processing_time", own.processing_ms)];
    let extra = own.extra.iter().copied();
    lines.add(&Name::new(&own.prefix), "own", facts.into_iter().chain(extra));
    lines.end_batch();
}

struct Lines<'s> {
    time: i64,
    sink: Sink<'s>,
    body: String,
    values: u64,
}

impl Lines<'_> {
    fn add<'f>(&mut self, name: &Name, kind: &str, fields: impl Iterator<Item = (&'f str, f64)>) {
        let start = self.body.len();
        escape(name.base(), &[',', ' '], &mut self.body);
        let mut tags: Vec<_> = name.tags().filter(|(key, _)| *key != "metric_type").collect();
        tags.push(("metric_type", kind));
        tags.sort_by_key(|(key, _)| *key);
        tags.dedup_by_key(|(key, _)| *key);
        for (key, value) in tags {
            self.body.push(',');
            escape(key, &[',', ' ', '='], &mut self.body);
            self.body.push('=');
            // The protocol has no empty value; a bare tag says that something holds.
            let value = if value.is_empty() { "true" } else { value };
            escape(value, &[',', ' ', '='], &mut self.body);
        }
        let mut separator = ' ';
        // InfluxDB has no word for infinity.
        for (field, value) in fields.filter(|(_, value)| value.is_finite()) {
            self.body.push(separator);
            escape(field, &[',', ' ', '='], &mut self.body);
            // Writing into a String cannot fail.
            let _ = write!(self.body, "={}", Number(value));
            self.values += 1;
            separator = ',';
        }
        if separator == ' ' {
            self.body.truncate(start);
            return;
        }
        let _ = writeln!(self.body, " {}", self.time);
        if self.body.len() >= BODY_BYTES {
            self.end_batch();
        }
    }

    fn end_batch(&mut self) {
        if !self.body.is_empty() {
            let bytes = std::mem::take(&mut self.body).into_bytes();
            (self.sink)(Batch { bytes, values: std::mem::take(&mut self.values) });
        }
    }
}

/// A name with what would end it escaped. A backslash before such a character would escape it, and
/// there is no way to write that, so backslashes become slashes.
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
    use crate::{backends::testing::snapshot, flush::Gauge};

    fn encoded(snapshot: &Snapshot, precision: i64) -> Vec<Batch> {
        let mut batches = Vec::new();
        encode(snapshot, precision, &mut |batch| batches.push(batch));
        batches
    }

    #[test]
    fn every_metric_is_a_line() {
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
    fn names_cannot_break_a_line_and_infinity_is_left_out() {
        let mut snapshot = Snapshot::clone(&snapshot());
        let name = Name::new("a b,c=d\\\n;k y=v,w;bare;k y=again");
        snapshot.gauges =
            vec![Gauge { name: name.clone(), value: 1e300 }, Gauge { name, value: f64::INFINITY }];
        let text = String::from_utf8(encoded(&snapshot, 1)[0].bytes.clone()).unwrap();
        let gauges: Vec<_> = text.lines().filter(|line| line.contains("=gauge")).collect();
        let line =
            "a\\ b\\,c=d/\\ ,bare=true,k\\ y=v\\,w,metric_type=gauge value=1e+300 1772359200";
        assert_eq!(gauges, [line]);
    }

    #[test]
    fn much_becomes_several_requests() {
        let mut snapshot = Snapshot::clone(&snapshot());
        let gauge = |n: i32| Gauge { name: Name::new(&format!("g{n}")), value: f64::from(n) };
        snapshot.gauges = (0..50_000).map(gauge).collect();
        let batches = encoded(&snapshot, 1);
        assert!(batches.len() > 1);
        assert!(batches.iter().all(|batch| batch.bytes.len() < BODY_BYTES + 4096));
        assert_eq!(batches.iter().map(|batch| batch.values).sum::<u64>(), 50_027);
    }
}
