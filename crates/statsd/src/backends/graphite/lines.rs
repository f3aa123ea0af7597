//! The names and order of values as sent by etsy's server.
//!
//! A name consists of a namespace, the key, the statistic, the suffix and the key's tags. Source:
//! the graphite backend of etsy's statsd 0.10.

use std::{
    fmt::Write as _,
    time::{Duration, Instant},
};

use super::pickle::Pickle;
use crate::{
    MetricName,
    backends::outbox::{BatchSink, ValueBatch},
    flush::{FlushSnapshot, TimedMetric, TimedType, names::sanitised},
    js::JsNumber,
    settings::{self, GraphiteProtocol, StatsdDialect},
};

/// The prefixes and the suffix that Graphite names are made of. Each prefix ends in a dot or is
/// empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Namespaces {
    legacy: bool,
    global: String,
    counter: String,
    timer: String,
    gauge: String,
    set: String,
    /// Starts with a dot or is empty.
    suffix: String,
}

impl Namespaces {
    pub(super) fn new(settings: &settings::GraphiteSettings) -> Self {
        let suffix = match settings.global_suffix.as_str() {
            "" => String::new(),
            suffix => format!(".{suffix}"),
        };
        if settings.legacy_namespace {
            return Self {
                legacy: true,
                global: "stats.".to_owned(),
                counter: "stats.".to_owned(),
                timer: "stats.timers.".to_owned(),
                gauge: "stats.gauges.".to_owned(),
                set: "stats.sets.".to_owned(),
                suffix,
            };
        }
        let level = |name: &str| match name {
            "" => String::new(),
            name => format!("{name}."),
        };
        let global = level(&settings.global_prefix);
        let under = |name: &str| format!("{global}{}", level(name));
        Self {
            legacy: false,
            counter: under(&settings.prefix_counter),
            timer: under(&settings.prefix_timer),
            gauge: under(&settings.prefix_gauge),
            set: under(&settings.prefix_set),
            suffix,
            global,
        }
    }
}

/// The names of counters, and whether their sums are sent.
#[derive(Clone, Copy)]
struct CounterSpace<'n> {
    spaces: &'n Namespaces,
    counts: bool,
}

/// Approximate size of a text batch in bytes.
const TEXT_BYTES: usize = 1 << 20;

/// An encoder that writes values into batches for Carbon.
pub(super) struct GraphiteEncoder<'s> {
    body: GraphiteBody,
    /// Buffer for the name of the current value, reused for all values.
    name: String,
    values: u64,
    dialect: StatsdDialect,
    /// Number of values omitted because their metric's name is empty once sanitised.
    pub(super) nameless: u64,
    sink: BatchSink<'s>,
    /// Time spent in the sink, which is excluded from the calculation time.
    pub(super) send_time: Duration,
}

enum GraphiteBody {
    Text(String),
    Pickle(Pickle),
}

impl<'s> GraphiteEncoder<'s> {
    pub(super) fn new(
        protocol: GraphiteProtocol,
        dialect: StatsdDialect,
        sink: BatchSink<'s>,
    ) -> Self {
        let body = match protocol {
            GraphiteProtocol::Text => GraphiteBody::Text(String::new()),
            GraphiteProtocol::Pickle => GraphiteBody::Pickle(Pickle::default()),
        };
        let sending = Duration::ZERO;
        Self {
            body,
            name: String::new(),
            values: 0,
            dialect,
            nameless: 0,
            sink,
            send_time: sending,
        }
    }

    /// Passes the current batch to the sink, if it is not empty.
    pub(super) fn flush_batch(&mut self) {
        let bytes = match &mut self.body {
            GraphiteBody::Text(text) => std::mem::take(text).into_bytes(),
            GraphiteBody::Pickle(pickle) => pickle.take_frame(),
        };
        if !bytes.is_empty() {
            let start = Instant::now();
            (self.sink)(ValueBatch::new(bytes, std::mem::take(&mut self.values)));
            self.send_time += start.elapsed();
        }
    }

    /// Adds all counters, timers, gauges and sets. With `counts`, counters have their sums in
    /// addition to their rates.
    pub(super) fn metrics(&mut self, snapshot: &FlushSnapshot, spaces: &Namespaces, counts: bool) {
        let time = snapshot.timestamp;
        let space = CounterSpace { spaces, counts };
        for counter in &snapshot.counters {
            let values = (snapshot.rate(counter), counter.value);
            self.counter(space, &counter.name, values, time);
        }
        let mut statistic = String::new();
        for timer in &snapshot.timers {
            for (field, value) in &timer.fields {
                statistic.clear();
                statistic.push('.');
                statistic.push_str(field);
                let suffix = &spaces.suffix;
                self.metric(&spaces.timer, &timer.name, &statistic, suffix, *value, time);
            }
        }
        for gauge in &snapshot.gauges {
            self.metric(&spaces.gauge, &gauge.name, "", &spaces.suffix, gauge.value, time);
        }
        for set in &snapshot.sets {
            let count = set.count as f64;
            self.metric(&spaces.set, &set.name, ".count", &spaces.suffix, count, time);
        }
        let seconds = snapshot.interval.as_secs_f64();
        for TimedMetric { kind, name, time, value, .. } in snapshot.timed_by_key() {
            match kind {
                TimedType::Counter => self.counter(space, &name, (value / seconds, value), time),
                TimedType::Gauge => {
                    self.metric(&spaces.gauge, &name, "", &spaces.suffix, value, time);
                }
            }
        }
    }

    /// Adds the rate of a counter and, if counts are sent, its sum.
    fn counter(
        &mut self,
        CounterSpace { spaces, counts }: CounterSpace<'_>,
        name: &MetricName,
        (rate, value): (f64, f64),
        time: i64,
    ) {
        let [rate_name, count_name] = if spaces.legacy { ["", ""] } else { [".rate", ".count"] };
        self.metric(&spaces.counter, name, rate_name, &spaces.suffix, rate, time);
        if counts {
            let prefix = if spaces.legacy { "stats_counts." } else { &*spaces.counter };
            self.metric(prefix, name, count_name, &spaces.suffix, value, time);
        }
    }

    /// Adds the server's own metrics. In the legacy namespace, `numStats` is outside `stats`.
    pub(super) fn self_metrics(
        &mut self,
        snapshot: &FlushSnapshot,
        spaces: &Namespaces,
        calculation_ms: f64,
    ) {
        let (own, time) = (&snapshot.self_metrics, snapshot.timestamp);
        let outer = if spaces.legacy { "" } else { &spaces.global };
        let global = &spaces.global;
        self.add_value(&[outer, &own.prefix, ".numStats"], spaces, own.num_stats as f64, time);
        let name = [global, &*own.prefix, ".graphiteStats.calculationtime"];
        self.add_value(&name, spaces, calculation_ms, time);
        self.add_value(&[global, &own.prefix, ".processing_time"], spaces, own.processing_ms, time);
        for (name, value) in own.extra_values() {
            self.add_value(&[&spaces.gauge, &own.prefix, ".", name], spaces, value, time);
        }
    }

    /// Adds one value about this backend, `<global>.<prefix>.graphiteStats.<name>`.
    pub(super) fn graphite_metric(
        &mut self,
        snapshot: &FlushSnapshot,
        spaces: &Namespaces,
        name: &str,
        value: f64,
        time: i64,
    ) {
        let name = [&spaces.global, &*snapshot.self_metrics.prefix, ".graphiteStats.", name];
        self.add_value(&name, spaces, value, time);
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of a line, in order")]
    fn metric(
        &mut self,
        prefix: &str,
        name: &MetricName,
        statistic: &str,
        suffix: &str,
        value: f64,
        time: i64,
    ) {
        let mut line = std::mem::take(&mut self.name);
        line.clear();
        let base = sanitised(name.base(), self.dialect);
        if base.is_empty() {
            self.nameless += 1;
        } else {
            for part in [prefix, &*base, statistic, suffix] {
                line.push_str(part);
            }
            push_tags(&mut line, name, self.dialect);
            self.add(&line, value, time);
        }
        self.name = line;
    }

    fn add_value(&mut self, parts: &[&str], spaces: &Namespaces, value: f64, time: i64) {
        let name = [&parts.concat(), spaces.suffix.as_str()].concat();
        self.add(&name, value, time);
    }

    fn add(&mut self, name: &str, value: f64, time: i64) {
        let full = match &self.body {
            GraphiteBody::Text(text) => text.len() >= TEXT_BYTES,
            GraphiteBody::Pickle(pickle) => pickle.is_full_for(name),
        };
        if full {
            self.flush_batch();
        }
        self.values += 1;
        match &mut self.body {
            // Writing into a String cannot fail.
            GraphiteBody::Text(text) => drop(writeln!(text, "{name} {} {time}", JsNumber(value))),
            GraphiteBody::Pickle(pickle) => pickle.add(name, value, time),
        }
    }
}

/// Appends tags in Carbon's format: `;key=value`, with neither part empty. A tag without a value
/// gets `true`, a value that is empty once sanitised becomes `_`, and a tag without a key is
/// omitted.
///
/// Source: `TaggedSeries` in Carbon's `util.py`.
fn push_tags(line: &mut String, name: &MetricName, dialect: StatsdDialect) {
    for tag in name.tag_text().split(';') {
        let (key, value) = match tag.split_once('=') {
            Some((key, value)) => (key, Some(value)),
            None => (tag, None),
        };
        let key = sanitised(key, dialect);
        if key.is_empty() {
            continue;
        }
        let value = value.map_or("true".into(), |value| sanitised(value, dialect));
        let value = if value.is_empty() { "_" } else { &*value };
        for part in [";", &key, "=", value] {
            line.push_str(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(key: &str, dialect: StatsdDialect) -> String {
        let mut all = Vec::new();
        let mut sink = |batch: ValueBatch| all.extend(batch.bytes);
        let mut lines = GraphiteEncoder::new(GraphiteProtocol::Text, dialect, &mut sink);
        lines.metric("p.", &MetricName::new(key), ".count", ".s", 1.0, 9);
        lines.flush_batch();
        String::from_utf8(all).unwrap()
    }

    #[test]
    fn values_with_timestamps_have_their_own_time() {
        let snapshot = crate::backends::testing::snapshot_with_timed();
        let written = |settings: &settings::GraphiteSettings| {
            let mut all = Vec::new();
            let mut sink = |batch: ValueBatch| all.extend(batch.bytes);
            let mut lines =
                GraphiteEncoder::new(GraphiteProtocol::Text, StatsdDialect::Etsy, &mut sink);
            lines.metrics(&snapshot, &Namespaces::new(settings), settings.flush_counts);
            lines.flush_batch();
            let text = String::from_utf8(all).unwrap();
            let timed = text.lines().skip_while(|line| !line.contains("jobs"));
            timed.map(str::to_owned).collect::<Vec<_>>()
        };
        let legacy = settings::GraphiteSettings::default();
        assert_eq!(
            written(&legacy),
            [
                "stats.jobs;q=a-b 2.5 1772355600",
                "stats_counts.jobs;q=a-b 25 1772355600",
                "stats.gauges.load 1.5 1772359140"
            ]
        );
        let new = settings::GraphiteSettings { legacy_namespace: false, ..legacy };
        let lines = written(&new);
        assert_eq!(
            lines[..2],
            [
                "stats.counters.jobs.rate;q=a-b 2.5 1772355600",
                "stats.counters.jobs.count;q=a-b 25 1772355600"
            ]
        );
    }

    #[test]
    fn keys_are_sanitised() {
        assert_eq!(line("a.b-c_d", StatsdDialect::Etsy), "p.a.b-c_d.count.s 1 9\n");
        assert_eq!(line("a  b\t/c/\u{e9}{d}", StatsdDialect::Etsy), "p.a_b_-c-d.count.s 1 9\n");
        assert_eq!(line("\u{65e5}", StatsdDialect::Etsy), "", "the sanitised name is empty");
    }

    #[test]
    fn perl_dialect_preserves_commas() {
        let key = "a_test_value,category=web,severity=high";
        assert_eq!(line(key, StatsdDialect::Perl), format!("p.{key}.count.s 1 9\n"));
    }

    #[test]
    fn tags_are_made_valid_for_carbon() {
        let tags = |key: &str| line(key, StatsdDialect::Etsy).replace("p.a.count.s", "a");
        assert_eq!(tags("a;canary"), "a;canary=true 1 9\n");
        assert_eq!(tags("a;f;;"), "a;f=true 1 9\n");
        assert_eq!(tags("a;k=;=v;x=77 88"), "a;k=_;x=77_88 1 9\n");
    }
}
