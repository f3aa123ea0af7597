//! The names and the order in which etsy's server sends values.
//!
//! A name is a namespace, the key, the statistic, the suffix, and then the key's tags. Source: the
//! graphite backend of etsy's statsd 0.10.

use std::{
    borrow::Cow,
    fmt::Write as _,
    time::{Duration, Instant},
};

use super::pickle::Pickle;
use crate::{
    Name,
    backends::outbox::{Batch, Sink},
    flush::Snapshot,
    js::Number,
    settings::{self, GraphiteProtocol},
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
    sink: Sink<'s>,
    /// Time spent in the sink: it is not part of the calculation.
    pub(super) sending: Duration,
}

enum Body {
    Text(String),
    Pickle(Pickle),
}

impl<'s> Lines<'s> {
    pub(super) fn new(protocol: GraphiteProtocol, sink: Sink<'s>) -> Self {
        let body = match protocol {
            GraphiteProtocol::Text => Body::Text(String::new()),
            GraphiteProtocol::Pickle => Body::Pickle(Pickle::default()),
        };
        Self { body, name: String::new(), values: 0, sink, sending: Duration::ZERO }
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
        for part in [prefix, &sanitised(name.base()), statistic, suffix, name.tag_text()] {
            line.push_str(part);
        }
        self.add(&line, value, time);
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

/// The key as Graphite can have it, for servers told to leave keys alone: runs of space become `_`,
/// `/` becomes `-`, and what is not a letter, a digit or one of `_-.;=` goes.
fn sanitised(key: &str) -> Cow<'_, str> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ';' | '=');
    if key.chars().all(fits) {
        return Cow::Borrowed(key);
    }
    let mut clean = String::with_capacity(key.len());
    let mut space = false;
    for char in key.chars() {
        let was_space = std::mem::replace(&mut space, char.is_whitespace());
        match char {
            _ if space && was_space => {}
            _ if space => clean.push('_'),
            '/' => clean.push('-'),
            char if fits(char) => clean.push(char),
            _ => {}
        }
    }
    Cow::Owned(clean)
}

#[test]
fn keys_become_fit_for_graphite() {
    assert_eq!(sanitised("a.b-c_d"), "a.b-c_d");
    assert_eq!(sanitised("a  b\t/c/é{d}"), "a_b_-c-d");
    assert_eq!(sanitised("x y"), "x_y");
}
