//! InfluxDB's line protocol over HTTP, for InfluxDB 1, 2, 3 and what else takes it.
//!
//! ```text
//! api.hits,code=500,metric_type=counter count=2,rate=0.2 1772359200000000000
//! api.latency,metric_type=timer count_90=3,mean_90=20,… 1772359200000000000
//! pool.size,metric_type=gauge value=-2.5 1772359200000000000
//! users,metric_type=set count=2 1772359200000000000
//! ```
//!
//! A metric's name is the measurement, as it was sent, its tags are tags, `metric_type` keeps kinds apart that have one
//! key. All fields are floats. The time is in the unit that the URL's `precision` names, or in
//! nanoseconds.

use std::{borrow::Cow, fmt, fmt::Write as _, sync::Arc, time::Duration};

use howdah_post::{Endpoint, EndpointError, PostError, authorization};

use super::{
    Backend, BackendError, Needs, Status,
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
        let poster = Poster::new(endpoint, settings.spool_bytes).refused_by(refused_values);
        Ok(Self { poster, precision })
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

    fn needs(&self) -> Needs {
        Needs { names_as_sent: true, ..Needs::default() }
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
    for counter in snapshot.counters_as_sent() {
        let fields = [("count", counter.value), ("rate", counter.rate)];
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
        // A line that begins with it is a comment.
        if name.base().starts_with('#') {
            self.body.push('_');
        }
        escape(name.base(), &[',', ' '], &mut self.body);
        let mut tags: Vec<(Cow<'_, str>, Cow<'_, str>)> = name.tags().map(legal_tag).collect();
        tags.retain(|(key, _)| key != "metric_type");
        tags.push(("metric_type".into(), kind.into()));
        tags.sort_by(|(one, _), (other, _)| one.cmp(other));
        tags.dedup_by(|(one, _), (other, _)| one == other);
        for (key, value) in &tags {
            self.body.push(',');
            escape(key, &[',', ' ', '='], &mut self.body);
            self.body.push('=');
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

/// A tag as the protocol can have it: no empty value (a bare tag says that something holds), and no key
/// that InfluxDB has a use of its own for.
fn legal_tag<'t>((key, value): (Cow<'t, str>, Cow<'t, str>)) -> (Cow<'t, str>, Cow<'t, str>) {
    let key = match &*key {
        "time" | "_field" | "_measurement" => format!("tag_{key}").into(),
        _ => key,
    };
    (key, if value.is_empty() { "true".into() } else { value })
}

/// How many values of a batch InfluxDB did not write: it writes the rest of a batch when it refuses some
/// of its lines, and says so.
///
/// InfluxDB 1 and 2 name each line that they cannot parse (`unable to parse '…'`) and count the points
/// that do not fit the types of their fields (`dropped=2`); InfluxDB 3 counts all (`"line_number"`). Of
/// which lines those points are is not said: they are taken to have as many values as lines have on
/// average. A reply that says nothing of this kind means the whole batch.
fn refused_values(error: &PostError, batch: &Batch) -> u64 {
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
    // Every line has a value at least.
    (batch.values * refused).div_ceil(lines)
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
        snapshot.gauges = [1e300, f64::INFINITY]
            .map(|value| Gauge { name: name.clone(), merged: false, value })
            .into();
        let text = String::from_utf8(encoded(&snapshot, 1)[0].bytes.clone()).unwrap();
        let gauges: Vec<_> = text.lines().filter(|line| line.contains("=gauge")).collect();
        let line =
            "a\\ b\\,c=d/\\ ,bare=true,k\\ y=v\\,w,metric_type=gauge value=1e+300 1772359200";
        assert_eq!(gauges, [line]);
    }

    #[test]
    fn tags_keep_what_was_sent_and_names_that_influxdb_refuses_are_others() {
        let mut snapshot = Snapshot::clone(&snapshot());
        let gauge = |name: &str| Gauge { name: Name::new(name), merged: false, value: 1.0 };
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
    fn of_a_partial_write_only_the_refused_lines_count_as_lost() {
        let batch = Batch { bytes: b"a v=1,w=2 1\nb v=1,w=2 1\nc v=1,w=2 1\n".to_vec(), values: 6 };
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
    fn much_becomes_several_requests() {
        let mut snapshot = Snapshot::clone(&snapshot());
        let gauge = |n: i32| Gauge {
            name: Name::new(&format!("g{n}")),
            merged: false,
            value: f64::from(n),
        };
        snapshot.gauges = (0..50_000).map(gauge).collect();
        let batches = encoded(&snapshot, 1);
        assert!(batches.len() > 1);
        assert!(batches.iter().all(|batch| batch.bytes.len() < BODY_BYTES + 4096));
        assert_eq!(batches.iter().map(|batch| batch.values).sum::<u64>(), 50_027);
    }
}
