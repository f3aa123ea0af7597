//! [`Description`]: one row of the metrics table.

/// The static description of a metric: name, help text, unit, kind and labels.
///
/// Defined as a constant, so that an invalid name fails to compile:
///
/// ```compile_fail
/// # use howdah_stats::Description;
/// const WRONG: Description = Description::counter("statements", "A counter ends in _total.");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Description {
    name: &'static str,
    help: &'static str,
    unit: MetricUnit,
    kind: MetricKind,
    labels: &'static [&'static str],
}

/// The kind of a metric, which determines how its value changes over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MetricKind {
    /// The value only increases, from zero.
    Counter,
    /// The value increases and decreases.
    Gauge,
    /// A distribution of durations, counted per bucket.
    Histogram {
        /// Upper bounds of the buckets in microseconds, ascending. The last bucket, without a
        /// bound, is implied.
        bounds_us: &'static [u64],
    },
}

impl MetricKind {
    /// Returns the type name of the Prometheus text format.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram { .. } => "histogram",
        }
    }
}

/// The unit of a metric's value. It is the suffix of the metric's name, as Prometheus recommends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MetricUnit {
    /// A plain number, such as a number of sessions.
    #[default]
    Count,
    /// Seconds; gauges and histograms may have fractions.
    Seconds,
    /// Bytes, never kibibytes or bits.
    Bytes,
    /// A fraction from 0 to 1.
    Ratio,
}

impl MetricUnit {
    /// Returns the suffix of metric names in this unit; empty for [`Count`](Self::Count).
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Count => "",
            Self::Seconds => "_seconds",
            Self::Bytes => "_bytes",
            Self::Ratio => "_ratio",
        }
    }
}

/// Bucket bounds for SQL latencies: from 100 µs, a cached primary-key lookup, to one minute.
pub const LATENCY_BOUNDS_US: &[u64] = &[
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 5_000_000, 10_000_000, 30_000_000, 60_000_000,
];

impl Description {
    /// Creates a counter; its name must end in `_total`.
    ///
    /// # Panics
    ///
    /// The name is invalid; for a constant, that is a compile error.
    pub const fn counter(name: &'static str, help: &'static str) -> Self {
        assert!(ends_with(name, "_total"), "the name of a counter must end in _total");
        Self::new(name, help, MetricUnit::Count, MetricKind::Counter)
    }

    /// Creates a gauge; its name must not end in `_total`.
    ///
    /// # Panics
    ///
    /// See [`Description::counter`].
    pub const fn gauge(name: &'static str, help: &'static str) -> Self {
        assert!(!ends_with(name, "_total"), "only the name of a counter may end in _total");
        Self::new(name, help, MetricUnit::Count, MetricKind::Gauge)
    }

    /// Creates a histogram of durations with [`LATENCY_BOUNDS_US`]; its name must end in
    /// `_seconds`.
    ///
    /// # Panics
    ///
    /// See [`Description::counter`].
    pub const fn histogram(name: &'static str, help: &'static str) -> Self {
        assert!(ends_with(name, "_seconds"), "the name of a histogram must end in _seconds");
        let kind = MetricKind::Histogram { bounds_us: LATENCY_BOUNDS_US };
        Self::new(name, help, MetricUnit::Seconds, kind)
    }

    const fn new(
        name: &'static str,
        help: &'static str,
        unit: MetricUnit,
        kind: MetricKind,
    ) -> Self {
        assert!(
            is_name(name),
            "a metric name consists of a-z, 0-9 and _, and starts with a letter"
        );
        Self { name, help, unit, kind, labels: &[] }
    }

    /// Sets the unit; the name must have the unit's suffix.
    ///
    /// # Panics
    ///
    /// The name does not end in the suffix (for a counter: before `_total`).
    #[must_use]
    pub const fn unit(mut self, unit: MetricUnit) -> Self {
        let end = match self.kind {
            MetricKind::Counter => self.name.len() - "_total".len(),
            MetricKind::Gauge | MetricKind::Histogram { .. } => self.name.len(),
        };
        assert!(
            has_suffix_at(self.name, unit.suffix(), end),
            "the name must end in the suffix of its unit"
        );
        self.unit = unit;
        self
    }

    /// Sets the label names. Each label must have few values: see [`crate::SERIES_MAX`].
    ///
    /// # Panics
    ///
    /// A label name is invalid, or is `le`, which is reserved for histograms.
    #[must_use]
    pub const fn labels(mut self, labels: &'static [&'static str]) -> Self {
        let mut at = 0;
        while at < labels.len() {
            let label = labels[at];
            assert!(
                is_name(label),
                "a label name consists of a-z, 0-9 and _, and starts with a letter"
            );
            assert!(
                label.len() != 2 || !ends_with(label, "le"),
                "the label name `le` is reserved for histograms"
            );
            at += 1;
        }
        self.labels = labels;
        self
    }

    /// Replaces the bucket bounds of a histogram, in microseconds.
    ///
    /// # Panics
    ///
    /// The metric is not a histogram, or the bounds are not ascending.
    #[must_use]
    pub const fn bounds_us(mut self, bounds_us: &'static [u64]) -> Self {
        assert!(
            matches!(self.kind, MetricKind::Histogram { .. }),
            "only a histogram has bucket bounds"
        );
        let mut at = 1;
        while at < bounds_us.len() {
            assert!(bounds_us[at - 1] < bounds_us[at], "bucket bounds must be ascending");
            at += 1;
        }
        self.kind = MetricKind::Histogram { bounds_us };
        self
    }

    /// Returns the full name, as exposed to Prometheus.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the text that explains the metric, as in the `# HELP` line of Prometheus.
    pub const fn help(&self) -> &'static str {
        self.help
    }

    /// Returns the unit of the value.
    pub const fn metric_unit(&self) -> MetricUnit {
        self.unit
    }

    /// Returns the kind: counter, gauge or histogram.
    pub const fn kind(&self) -> MetricKind {
        self.kind
    }

    /// Returns the label names, in order.
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
fn suffix_is_checked_at_position() {
    assert!(has_suffix_at("a_seconds_total", "_seconds", 9));
    assert!(!has_suffix_at("a_seconds_total", "_bytes", 9));
    assert!(!has_suffix_at("s", "_seconds", 1));
    assert!(is_name("a_1") && !is_name("1a") && !is_name("a-b") && !is_name(""));
}
