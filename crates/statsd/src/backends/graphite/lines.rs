//! The names and the order in which etsy's server sends values.
//!
//! A name is a namespace, the key, the statistic, the suffix, and then the key's tags. Source: the
//! graphite backend of etsy's statsd 0.10.

use std::{
    fmt::Write as _,
    time::{Duration, Instant},
};

use super::pickle::Pickle;
use crate::{
    Name,
    backends::outbox::{Batch, Sink},
    flush::{Snapshot, names::sanitised},
    js::Number,
    settings::{self, Dialect, GraphiteProtocol},
};

/// What stands before and after keys. Each prefix ends in a point or is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Namespaces {
    legacy: bool,
    global: String,
    counter: String,
    timer: String,
    gauge: String,
    set: String,
    /// Begins with a point or is empty.
    suffix: String,
}

impl Namespaces {
    pub(super) fn new(settings: &settings::Graphite) -> Self {
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

/// Bytes of a batch of text, about.
const TEXT_BYTES: usize = 1 << 20;

/// Values on their way into batches.
pub(super) struct Lines<'s> {
    body: Body,
    /// The name being put together; kept for its memory.
    name: String,
    values: u64,
    dialect: Dialect,
    /// Values of metrics whose name has nothing that Graphite can have.
    pub(super) nameless: u64,
    sink: Sink<'s>,
    /// Time spent in the sink: it is not part of the calculation.
    pub(super) sending: Duration,
}

enum Body {
    Text(String),
    Pickle(Pickle),
}

impl<'s> Lines<'s> {
    pub(super) fn new(protocol: GraphiteProtocol, dialect: Dialect, sink: Sink<'s>) -> Self {
        let body = match protocol {
            GraphiteProtocol::Text => Body::Text(String::new()),
            GraphiteProtocol::Pickle => Body::Pickle(Pickle::default()),
        };
        let sending = Duration::ZERO;
        Self { body, name: String::new(), values: 0, dialect, nameless: 0, sink, sending }
    }

    /// Gives the batch away that was begun.
    pub(super) fn end_batch(&mut self) {
        let bytes = match &mut self.body {
            Body::Text(text) => std::mem::take(text).into_bytes(),
            Body::Pickle(pickle) => pickle.take_frame(),
        };
        if !bytes.is_empty() {
            let start = Instant::now();
            (self.sink)(Batch { bytes, values: std::mem::take(&mut self.values) });
            self.sending += start.elapsed();
        }
    }

    /// Counters, timers, gauges and sets.
    pub(super) fn metrics(&mut self, snapshot: &Snapshot, spaces: &Namespaces, counts: bool) {
        let time = snapshot.timestamp;
        for counter in &snapshot.counters {
            let (name, rate) = (&counter.name, counter.rate);
            if spaces.legacy {
                self.metric(&spaces.counter, name, "", &spaces.suffix, rate, time);
                if counts {
                    let (value, suffix) = (counter.value, &spaces.suffix);
                    self.metric("stats_counts.", name, "", suffix, value, time);
                }
            } else {
                self.metric(&spaces.counter, name, ".rate", &spaces.suffix, rate, time);
                if counts {
                    let (value, suffix) = (counter.value, &spaces.suffix);
                    self.metric(&spaces.counter, name, ".count", suffix, value, time);
                }
            }
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
    }

    /// The server about itself. The legacy namespace has `numStats` outside `stats`.
    pub(super) fn own(&mut self, snapshot: &Snapshot, spaces: &Namespaces, calculation_ms: f64) {
        let (own, time) = (&snapshot.own, snapshot.timestamp);
        let outer = if spaces.legacy { "" } else { &spaces.global };
        let global = &spaces.global;
        self.plain(&[outer, &own.prefix, ".numStats"], spaces, own.num_stats as f64, time);
        let name = [global, &*own.prefix, ".graphiteStats.calculationtime"];
        self.plain(&name, spaces, calculation_ms, time);
        self.plain(&[global, &own.prefix, ".processing_time"], spaces, own.processing_ms, time);
        for (name, value) in &own.extra {
            self.plain(&[&spaces.gauge, &own.prefix, ".", name], spaces, *value, time);
        }
    }

    /// One of `<ns>.statsd.graphiteStats.*`.
    pub(super) fn about_graphite(
        &mut self,
        snapshot: &Snapshot,
        spaces: &Namespaces,
        name: &str,
        value: f64,
        time: i64,
    ) {
        let name = [&spaces.global, &*snapshot.own.prefix, ".graphiteStats.", name];
        self.plain(&name, spaces, value, time);
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of a line, in the order they stand in")]
    fn metric(
        &mut self,
        prefix: &str,
        name: &Name,
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

    fn plain(&mut self, parts: &[&str], spaces: &Namespaces, value: f64, time: i64) {
        let name = [&parts.concat(), spaces.suffix.as_str()].concat();
        self.add(&name, value, time);
    }

    fn add(&mut self, name: &str, value: f64, time: i64) {
        let full = match &self.body {
            Body::Text(text) => text.len() >= TEXT_BYTES,
            Body::Pickle(pickle) => pickle.is_full_for(name),
        };
        if full {
            self.end_batch();
        }
        self.values += 1;
        match &mut self.body {
            // Writing into a String cannot fail.
            Body::Text(text) => drop(writeln!(text, "{name} {} {time}", Number(value))),
            Body::Pickle(pickle) => pickle.add(name, value, time),
        }
    }
}

/// Appends tags as Carbon takes them: `;key=value`, neither of them empty. A tag without a value gets
/// `true`, and a value of which nothing is left `_`; a tag without a key is left out.
///
/// Source: `TaggedSeries` in Carbon's `util.py`.
fn push_tags(line: &mut String, name: &Name, dialect: Dialect) {
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

    fn line(key: &str, dialect: Dialect) -> String {
        let mut all = Vec::new();
        let mut sink = |batch: Batch| all.extend(batch.bytes);
        let mut lines = Lines::new(GraphiteProtocol::Text, dialect, &mut sink);
        lines.metric("p.", &Name::new(key), ".count", ".s", 1.0, 9);
        lines.end_batch();
        String::from_utf8(all).unwrap()
    }

    #[test]
    fn keys_become_fit_for_graphite() {
        assert_eq!(line("a.b-c_d", Dialect::Etsy), "p.a.b-c_d.count.s 1 9\n");
        assert_eq!(line("a  b\t/c/\u{e9}{d}", Dialect::Etsy), "p.a_b_-c-d.count.s 1 9\n");
        assert_eq!(line("\u{65e5}", Dialect::Etsy), "", "nothing is left of it");
    }

    #[test]
    fn perl_dialect_keeps_commas() {
        let key = "a_test_value,category=web,severity=high";
        assert_eq!(line(key, Dialect::Perl), format!("p.{key}.count.s 1 9\n"));
    }

    #[test]
    fn tags_that_carbon_refuses_are_written_as_it_takes_them() {
        let tags = |key: &str| line(key, Dialect::Etsy).replace("p.a.count.s", "a");
        assert_eq!(tags("a;canary"), "a;canary=true 1 9\n");
        assert_eq!(tags("a;f;;"), "a;f=true 1 9\n");
        assert_eq!(tags("a;k=;=v;x=77 88"), "a;k=_;x=77_88 1 9\n");
    }
}
