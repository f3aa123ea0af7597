//! The console: each interval printed, as etsy's server does for people at a terminal, or as the
//! Perl server does.
//!
//! Etsy's: a line with the time, then the object with all values as Node prints it; with `pretty`,
//! five levels deep and in colours. Perl's: the same on one line of JSON, to standard error, where what
//! came as text and was never calculated with is a string.

use std::{
    fmt,
    io::{self, Write},
    sync::Arc,
};

use super::{Backend, BackendError, Status};
use crate::{
    flush::{Samples, Snapshot, Timer},
    js::{self, Date, Inspect, Value},
    settings::{self, Dialect},
};

/// Prints snapshots.
pub struct Console {
    dialect: Dialect,
    pretty: bool,
    out: Box<dyn Write + Send>,
    status: Status,
}

impl Console {
    /// To standard output, or to standard error in the Perl dialect.
    #[must_use]
    pub fn new(settings: &settings::Console, dialect: Dialect) -> Self {
        let out: Box<dyn Write + Send> = match dialect {
            Dialect::Etsy | Dialect::Dogstatsd => Box::new(io::stdout()),
            Dialect::Perl => Box::new(io::stderr()),
        };
        Self::to(out, settings, dialect)
    }

    /// To any writer.
    #[must_use]
    pub fn to(out: Box<dyn Write + Send>, settings: &settings::Console, dialect: Dialect) -> Self {
        let status = Status::default();
        status.set_now("last_flush");
        status.set_now("last_exception");
        Self { dialect, pretty: settings.pretty, out, status }
    }

    fn text(&self, snapshot: &Snapshot) -> String {
        let date = Date(snapshot.timestamp);
        let values = values(snapshot, self.dialect);
        match self.dialect {
            // Two spaces: Node puts one between its arguments, and the first ends in one.
            Dialect::Etsy | Dialect::Dogstatsd => {
                let options = match self.pretty {
                    true => Inspect { depth: 5, colors: true },
                    false => Inspect::default(),
                };
                let object = js::inspect(&values, options);
                format!("Flushing stats at  {date}\n{object}\n")
            }
            Dialect::Perl => {
                format!(
                    "Flushing stats at {}\n{}\n",
                    date.perl(),
                    js::json(&values, js::Spacing::Compact)
                )
            }
        }
    }
}

impl fmt::Debug for Console {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Console").field("dialect", &self.dialect).finish_non_exhaustive()
    }
}

impl Backend for Console {
    fn name(&self) -> &'static str {
        "console"
    }

    /// Each interval is printed with its time.
    fn joins_intervals(&self) -> bool {
        false
    }

    fn status(&self) -> Status {
        self.status.clone()
    }

    fn flush(&mut self, snapshot: &Arc<Snapshot>) -> Result<(), BackendError> {
        let text = self.text(snapshot);
        let written = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
        written.map_err(|error| BackendError {
            receiver: "console".to_owned(),
            action: "printing",
            source: error.into(),
        })
    }
}

/// The object that is printed. Its keys are those of etsy's console, in its order.
fn values(snapshot: &Snapshot, dialect: Dialect) -> Value {
    let number = |name: &str, value: f64| (name.into(), Value::Number(value));
    let counters = snapshot.counters.iter();
    let sets = match dialect {
        Dialect::Etsy | Dialect::Dogstatsd => object(snapshot.sets.iter().map(|set| {
            let members = set.members.iter().cloned().map(Value::Text).collect();
            (set.name.key().into(), Value::Array(members))
        })),
        Dialect::Perl => Value::Null,
    };
    let came = |value: Value| match dialect {
        Dialect::Etsy | Dialect::Dogstatsd => value,
        Dialect::Perl => value.with_text(),
    };
    let percentiles = Value::Numbers(Arc::clone(&snapshot.percentiles));
    Value::Object(vec![
        ("counters".into(), object(counters.clone().map(|c| number(c.name.key(), c.value)))),
        (
            "timers".into(),
            came(object(
                snapshot.timers.iter().map(|timer| (timer.name.key().into(), samples(timer))),
            )),
        ),
        (
            "gauges".into(),
            came(object(snapshot.gauges.iter().map(|g| number(g.name.key(), g.value)))),
        ),
        (
            "timer_data".into(),
            object(
                snapshot.timers.iter().map(|timer| (timer.name.key().into(), calculated(timer))),
            ),
        ),
        ("counter_rates".into(), object(counters.map(|c| number(c.name.key(), c.rate)))),
        ("sets".into(), sets),
        ("pctThreshold".into(), came(percentiles)),
    ])
}

fn object(entries: impl Iterator<Item = (Box<str>, Value)>) -> Value {
    Value::Object(entries.collect())
}

fn samples(timer: &Timer) -> Value {
    match &timer.samples {
        Samples::Exact(values) => Value::Numbers(Arc::clone(values)),
        // They were not kept one by one; said in the place where they would be.
        Samples::Sketched(sketch) => Value::Text(format!("{} samples", sketch.count()).into()),
    }
}

/// What is calculated of a timer. The bins of a histogram are an object of their own.
fn calculated(timer: &Timer) -> Value {
    let mut plain = Vec::new();
    let mut bins = Vec::new();
    for (name, value) in &timer.fields {
        match name.strip_prefix("histogram.") {
            Some(bin) => bins.push((bin.into(), Value::Number(*value))),
            None => plain.push((Box::from(&**name), Value::Number(*value))),
        }
    }
    if !bins.is_empty() {
        plain.push(("histogram".into(), Value::Object(bins)));
    }
    Value::Object(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::testing::{Shared, snapshot};

    fn printed(pretty: bool, dialect: Dialect) -> String {
        let out = Shared::default();
        let settings = settings::Console { pretty };
        let mut console = Console::to(Box::new(out.clone()), &settings, dialect);
        console.flush(&snapshot()).unwrap();
        let text = out.text();
        let (first, rest) = text.split_once('\n').unwrap();
        assert!(first.starts_with("Flushing stats at "), "{first}");
        assert!(first.contains("2026"), "{first}");
        rest.to_owned()
    }

    #[test]
    fn etsys_form() {
        assert_eq!(
            printed(false, Dialect::Etsy),
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
        let pretty = printed(true, Dialect::Etsy);
        assert!(pretty.contains("histogram: { bin_10: \x1b[33m1\x1b[39m"), "{pretty}");
    }

    #[test]
    fn perls_form() {
        let text = printed(false, Dialect::Perl);
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
