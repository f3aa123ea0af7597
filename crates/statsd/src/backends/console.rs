//! The console backend: prints each interval, in the format of etsy's server or of the Perl server.
//!
//! Etsy's format: a line with the time, then an object with all values as Node prints it; with
//! `pretty`, five levels deep and in colour. Perl's format: a line with the time, then the same
//! object as one line of JSON, both on standard error; values that were never used in a calculation
//! are strings, and `sets` is null.

use std::{
    fmt,
    io::{self, Write},
    sync::Arc,
};

use super::{BackendError, BackendStatus, MetricBackend};
use crate::{
    flush::{FlushSnapshot, TimerMetric, TimerSamples},
    js::{self, InspectOptions, JsDate, JsValue},
    settings::{self, StatsdDialect},
};

/// The backend that prints snapshots to a writer.
pub struct ConsoleOutput {
    dialect: StatsdDialect,
    pretty: bool,
    out: Box<dyn Write + Send>,
    status: BackendStatus,
}

impl ConsoleOutput {
    /// Creates a backend that prints to standard output, or to standard error in the Perl dialect.
    pub fn new(settings: &settings::ConsoleSettings, dialect: StatsdDialect) -> Self {
        let out: Box<dyn Write + Send> = match dialect {
            StatsdDialect::Etsy | StatsdDialect::Dogstatsd => Box::new(io::stdout()),
            StatsdDialect::Perl => Box::new(io::stderr()),
        };
        Self::with_writer(out, settings, dialect)
    }

    /// Creates a backend that prints to `out`.
    pub fn with_writer(
        out: Box<dyn Write + Send>,
        settings: &settings::ConsoleSettings,
        dialect: StatsdDialect,
    ) -> Self {
        let status = BackendStatus::default();
        status.set_now("last_flush");
        status.set_now("last_exception");
        Self { dialect, pretty: settings.pretty, out, status }
    }

    fn text(&self, snapshot: &FlushSnapshot) -> String {
        let date = JsDate(snapshot.timestamp);
        let values = values(snapshot, self.dialect);
        match self.dialect {
            // Two spaces: Node separates arguments by a space, and the first argument ends in one.
            StatsdDialect::Etsy | StatsdDialect::Dogstatsd => {
                let options = if self.pretty {
                    InspectOptions { depth: 5, colors: true }
                } else {
                    InspectOptions::default()
                };
                let object = js::inspect(&values, options);
                format!("Flushing stats at  {date}\n{object}\n")
            }
            StatsdDialect::Perl => {
                format!(
                    "Flushing stats at {}\n{}\n",
                    date.perl(),
                    js::json(&values, js::Spacing::Compact)
                )
            }
        }
    }
}

impl fmt::Debug for ConsoleOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsoleOutput").field("dialect", &self.dialect).finish_non_exhaustive()
    }
}

impl MetricBackend for ConsoleOutput {
    fn name(&self) -> &'static str {
        "console"
    }

    /// Returns false, because each interval is printed with its own time.
    fn joins_intervals(&self) -> bool {
        false
    }

    fn status(&self) -> BackendStatus {
        self.status.clone()
    }

    fn flush(&mut self, snapshot: &Arc<FlushSnapshot>) -> Result<(), BackendError> {
        let text = self.text(snapshot);
        let written = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
        written.map_err(|error| BackendError {
            receiver: "console".to_owned(),
            action: "printing",
            source: error.into(),
        })
    }
}

/// Returns the object to print, with the same keys as etsy's console backend, in the same order.
fn values(snapshot: &FlushSnapshot, dialect: StatsdDialect) -> JsValue {
    let number = |name: &str, value: f64| (name.into(), JsValue::Number(value));
    let counters = snapshot.counters.iter();
    let sets = match dialect {
        StatsdDialect::Etsy | StatsdDialect::Dogstatsd => object(snapshot.sets.iter().map(|set| {
            let members = set.members.iter().cloned().map(JsValue::Text).collect();
            (set.name.key().into(), JsValue::Array(members))
        })),
        StatsdDialect::Perl => JsValue::Null,
    };
    let as_received = |value: JsValue| match dialect {
        StatsdDialect::Etsy | StatsdDialect::Dogstatsd => value,
        StatsdDialect::Perl => value.with_text(),
    };
    let percentiles = JsValue::Numbers(Arc::clone(&snapshot.percentiles));
    JsValue::Object(vec![
        ("counters".into(), object(counters.clone().map(|c| number(c.name.key(), c.value)))),
        (
            "timers".into(),
            as_received(object(
                snapshot.timers.iter().map(|timer| (timer.name.key().into(), samples(timer))),
            )),
        ),
        (
            "gauges".into(),
            as_received(object(snapshot.gauges.iter().map(|g| number(g.name.key(), g.value)))),
        ),
        (
            "timer_data".into(),
            object(
                snapshot.timers.iter().map(|timer| (timer.name.key().into(), calculated(timer))),
            ),
        ),
        ("counter_rates".into(), object(counters.map(|c| number(c.name.key(), snapshot.rate(c))))),
        ("sets".into(), sets),
        ("pctThreshold".into(), as_received(percentiles)),
    ])
}

fn object(entries: impl Iterator<Item = (Box<str>, JsValue)>) -> JsValue {
    JsValue::Object(entries.collect())
}

fn samples(timer: &TimerMetric) -> JsValue {
    match &timer.samples {
        TimerSamples::Exact(values) => JsValue::Numbers(Arc::clone(values)),
        // The samples themselves are no longer available, so their number is printed instead.
        TimerSamples::Sketched(sketch) => {
            JsValue::Text(format!("{} samples", sketch.count()).into())
        }
    }
}

/// Returns the calculated fields of a timer. Histogram bins are a nested object.
fn calculated(timer: &TimerMetric) -> JsValue {
    let mut plain = Vec::new();
    let mut bins = Vec::new();
    for (name, value) in &timer.fields {
        match name.strip_prefix("histogram.") {
            Some(bin) => bins.push((bin.into(), JsValue::Number(*value))),
            None => plain.push((Box::from(&**name), JsValue::Number(*value))),
        }
    }
    if !bins.is_empty() {
        plain.push(("histogram".into(), JsValue::Object(bins)));
    }
    JsValue::Object(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::testing::{SharedWriter, snapshot};

    fn printed(pretty: bool, dialect: StatsdDialect) -> String {
        let out = SharedWriter::default();
        let settings = settings::ConsoleSettings { pretty };
        let mut console = ConsoleOutput::with_writer(Box::new(out.clone()), &settings, dialect);
        console.flush(&snapshot()).unwrap();
        let text = out.text();
        let (first, rest) = text.split_once('\n').unwrap();
        assert!(first.starts_with("Flushing stats at "), "{first}");
        assert!(first.contains("2026"), "{first}");
        rest.to_owned()
    }

    #[test]
    fn etsy_format() {
        assert_eq!(
            printed(false, StatsdDialect::Etsy),
            "{
  counters: {
    'api.hits': 30,
    'api.hits;code=500': 2,
    'statsd.packets_received': 12
  },
  timers: { 'api.latency': [ 10, 20, 30 ], idle: [] },
  gauges: { 'pool.size': -2.5 },
  timer_data: {
    'api.latency': {
      count_90: 3,
      mean_90: 20,
      upper_90: 30,
      sum_90: 60,
      sum_squares_90: 1400,
      std: 8.16496580927726,
      upper: 30,
      lower: 10,
      count: 3,
      count_ps: 0.3,
      sum: 60,
      sum_squares: 1400,
      mean: 20,
      median: 20,
      histogram: [Object]
    },
    idle: { count_ps: 0, count: 0 }
  },
  counter_rates: {
    'api.hits': 3,
    'api.hits;code=500': 0.2,
    'statsd.packets_received': 1.2
  },
  sets: { users: [ 'anna', 'bob' ] },
  pctThreshold: [ 90 ]
}
"
        );
        let pretty = printed(true, StatsdDialect::Etsy);
        assert!(pretty.contains("histogram: { bin_10: \x1b[33m1\x1b[39m"), "{pretty}");
    }

    #[test]
    fn perl_format() {
        let text = printed(false, StatsdDialect::Perl);
        assert_eq!(text.lines().count(), 1);
        let start = "{\"counters\":{\"api.hits\":30,\"api.hits;code=500\":2,";
        assert!(text.starts_with(start), "{text}");
        let timers = "\"timers\":{\"api.latency\":[\"10\",\"20\",\"30\"],\"idle\":[]}";
        assert!(text.contains(timers), "{text}");
        assert!(text.contains("\"gauges\":{\"pool.size\":\"-2.5\"}"), "{text}");
        assert!(text.ends_with("\"sets\":null,\"pctThreshold\":[\"90\"]}\n"), "{text}");
        serde_json::from_str::<serde_json::Value>(&text).unwrap();
    }
}
