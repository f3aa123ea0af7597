//! [`Description`]: one row of the metrics table.

/// What a metric is: its name, its meaning, how it behaves.
///
/// Made as a constant, so that a malformed name does not compile:
///
/// ```compile_fail
/// # use howdah_stats::Description;
/// const WRONG: Description = Description::counter("statements", "A counter ends in _total.");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Description {
    name: &'static str,
    help: &'static str,
    unit: Unit,
    kind: Kind,
    labels: &'static [&'static str],
}

/// How a metric behaves over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// Only grows, from zero at the start of the process.
    Counter,
    /// Goes up and down.
    Gauge,
    /// A distribution of durations, counted below each bound.
    Histogram {
        /// Upper bounds of the buckets in microseconds, ascending. The one above all is implied.
        bounds_us: &'static [u64],
    },
}

impl Kind {
    /// The word of the Prometheus text format.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram { .. } => "histogram",
        }
    }
}

/// What one step of the value stands for. The name carries it as a suffix, as Prometheus asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unit {
    /// Things.
    #[default]
    Count,
    /// Seconds; with [`Kind::Gauge`] and [`Kind::Counter`] fractions are fine.
    Seconds,
    /// Bytes.
    Bytes,
    /// A share of one.
    Ratio,
}

impl Unit {
    /// The suffix that names carry; empty for things.
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Count => "",
            Self::Seconds => "_seconds",
            Self::Bytes => "_bytes",
            Self::Ratio => "_ratio",
        }
    }
}

/// Bounds for latencies of SQL statements: from 100 µs, a primary key in cache, to one minute.
pub const LATENCY_BOUNDS_US: &[u64] = &[
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 5_000_000, 10_000_000, 30_000_000, 60_000_000,
];

impl Description {
    /// A counter; its name ends in `_total`.
    ///
    /// # Panics
    ///
    /// When the name breaks the rules, which for a constant is when it is compiled. So do the other
    /// constructors.
    pub const fn counter(name: &'static str, help: &'static str) -> Self {
        assert!(ends_with(name, "_total"), "a counter ends in _total");
        Self::new(name, help, Unit::Count, Kind::Counter)
    }

    /// A gauge.
    ///
    /// # Panics
    ///
    /// See [`Description::counter`].
    pub const fn gauge(name: &'static str, help: &'static str) -> Self {
        assert!(!ends_with(name, "_total"), "only a counter ends in _total");
        Self::new(name, help, Unit::Count, Kind::Gauge)
    }

    /// A distribution of durations, with bounds fit for SQL statements; its name ends in `_seconds`.
    ///
    /// # Panics
    ///
    /// See [`Description::counter`].
    pub const fn histogram(name: &'static str, help: &'static str) -> Self {
        assert!(ends_with(name, "_seconds"), "a histogram of durations ends in _seconds");
        let kind = Kind::Histogram { bounds_us: LATENCY_BOUNDS_US };
        Self::new(name, help, Unit::Seconds, kind)
    }

    const fn new(name: &'static str, help: &'static str, unit: Unit, kind: Kind) -> Self {
        assert!(
            is_name(name),
            "a metric's name is made of a-z, 0-9 and _, and begins with a letter"
        );
        Self { name, help, unit, kind, labels: &[] }
    }

    /// The same with a unit; the name carries the unit's suffix.
    ///
    /// # Panics
    ///
    /// The name does not end in the suffix (for a counter: before `_total`).
    #[must_use]
    pub const fn unit(mut self, unit: Unit) -> Self {
        let end = match self.kind {
            Kind::Counter => self.name.len() - "_total".len(),
            Kind::Gauge | Kind::Histogram { .. } => self.name.len(),
        };
        assert!(has_suffix_at(self.name, unit.suffix(), end), "the name lacks the unit's suffix");
        self.unit = unit;
        self
    }

    /// The same with labels. Each must have few values: see [`crate::SERIES_MAX`].
    ///
    /// # Panics
    ///
    /// A label's name is malformed, or is `le`, which histograms need for themselves.
    #[must_use]
    pub const fn labels(mut self, labels: &'static [&'static str]) -> Self {
        let mut at = 0;
        while at < labels.len() {
            let label = labels[at];
            assert!(is_name(label), "a label's name is made of a-z, 0-9 and _");
            assert!(label.len() != 2 || !ends_with(label, "le"), "histograms need `le`");
            at += 1;
        }
        self.labels = labels;
        self
    }

    /// The same with other bounds of a histogram's buckets, in microseconds.
    ///
    /// # Panics
    ///
    /// It is no histogram, or the bounds do not ascend.
    #[must_use]
    pub const fn bounds_us(mut self, bounds_us: &'static [u64]) -> Self {
        assert!(matches!(self.kind, Kind::Histogram { .. }), "only a histogram has bounds");
        let mut at = 1;
        while at < bounds_us.len() {
            assert!(bounds_us[at - 1] < bounds_us[at], "bounds ascend");
            at += 1;
        }
        self.kind = Kind::Histogram { bounds_us };
        self
    }

    /// The full name, as Prometheus shows it.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// One sentence on what it counts.
    pub const fn help(&self) -> &'static str {
        self.help
    }

    /// What one step stands for.
    pub const fn unit_of(&self) -> Unit {
        self.unit
    }

    /// How it behaves.
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// Names of its labels.
    pub const fn label_names(&self) -> &'static [&'static str] {
        self.labels
    }
}

const fn is_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'a'..=b'z' => {}
            b'0'..=b'9' | b'_' if at > 0 => {}
            _ => return false,
        }
        at += 1;
    }
    !bytes.is_empty()
}

const fn ends_with(text: &str, suffix: &str) -> bool {
    has_suffix_at(text, suffix, text.len())
}

/// Whether `text[..end]` ends in `suffix`.
const fn has_suffix_at(text: &str, suffix: &str, end: usize) -> bool {
    let (text, suffix) = (text.as_bytes(), suffix.as_bytes());
    if suffix.len() > end {
        return false;
    }
    let mut at = 0;
    while at < suffix.len() {
        if text[end - suffix.len() + at] != suffix[at] {
            return false;
        }
        at += 1;
    }
    true
}

#[test]
fn suffixes_are_judged_where_they_end() {
    assert!(has_suffix_at("a_seconds_total", "_seconds", 9));
    assert!(!has_suffix_at("a_seconds_total", "_bytes", 9));
    assert!(!has_suffix_at("s", "_seconds", 1));
    assert!(is_name("a_1") && !is_name("1a") && !is_name("a-b") && !is_name(""));
}
