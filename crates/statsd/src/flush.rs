//! Flushing: merges the shards' intervals and calculates statistics.
//!
//! A [`FlushSnapshot`] is built once per flush, on the flush thread, and shared by all backends. It
//! holds statistics under the names of etsy's server (`count_90`, `upper_90`), for existing graphs,
//! and typed numbers with running totals, for receivers that calculate rates themselves.

mod interval_join;
mod messages;
pub(crate) mod names;
mod registry;
mod statistics;
mod table;
#[cfg(test)]
mod tests;
mod timed;

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use self::statistics::TimerRules;
use crate::{
    MetricName,
    grammar::TimingUnit,
    hyperloglog::HyperLogLog,
    self_metrics::SelfMetrics,
    settings::{SetOverflow, StatsdSettings},
    sketch::Sketch,
};

pub use self::{
    messages::{MessageContent, ReceivedMessage},
    registry::{FlushTime, KeyRegistry, ReceiveTotals},
    timed::{TimedMetric, TimedType},
};
pub(crate) use self::{
    names::KeyConversion,
    registry::{
        DeleteOutcome, KeyRules, PrefixTally, RuleTally, add_requirements, handover,
        mergeable::{ForwardedBatch, MergeablePart},
    },
    table::MetricTable,
};

/// The values of one interval, as passed to backends. All lists are sorted by key, bytewise.
///
/// The four lists hold metrics by sanitised keys, as etsy's server does. Backends that use names
/// and tags as they were sent read [`counters_as_sent`](Self::counters_as_sent) and its siblings,
/// and must [require](crate::backends::SnapshotRequirements) them.
#[derive(Clone, Debug)]
pub struct FlushSnapshot {
    /// Time of the flush in seconds since 1970, rounded: the timestamp of the values that backends
    /// send.
    pub timestamp: i64,
    /// End of the interval, with the clock's precision.
    pub time: SystemTime,
    /// The configured interval, or the sum of several joined ones. Rates are based on it, not on
    /// the measured time.
    pub interval: Duration,
    /// Counters, including the server's own under their usual names (`statsd.packets_received`).
    /// Idle ones are included until the rules for idle metrics remove them, if a backend requires
    /// it.
    pub counters: Vec<CounterMetric>,
    /// Timers, histograms and distributions.
    pub timers: Vec<TimerMetric>,
    /// Gauges with their last value, including those that were idle in the interval.
    pub gauges: Vec<GaugeMetric>,
    /// Sets with their number of distinct members.
    pub sets: Vec<SetMetric>,
    /// The separate spellings of merged metrics.
    pub variants: MetricVariants,
    /// Counters and gauges with a timestamp from their sender, sorted by type, key and time. They
    /// are in none of the other lists.
    pub timed: Vec<TimedMetric>,
    /// Events and service checks in order of receipt for each reader, if a backend
    /// [requires](crate::backends::SnapshotRequirements) them.
    pub messages: Arc<[ReceivedMessage]>,
    /// The content that was dropped when intervals were joined.
    pub dropped_by_joins: JoinLosses,
    /// The server's own metrics.
    pub self_metrics: SelfMetrics,
    /// The configured percentiles, in order, such as 90, 99.9, -10.
    pub percentiles: Arc<[f64]>,
    /// The interval in the form that another server can merge, if a backend requires it. Empty in
    /// joined intervals.
    pub(crate) mergeable: Arc<[MergeablePart]>,
    /// The rules for timers, used when intervals are joined.
    pub(crate) calculation: Arc<Calculation>,
}

/// Numbers of items that exceeded a limit when intervals were joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JoinLosses {
    /// Values of [`FlushSnapshot::timed`].
    pub values: u64,
    /// Events and service checks.
    pub messages: u64,
}

/// Metrics sent in several spellings that have the same sanitised key.
#[derive(Clone, Debug, Default)]
pub struct MetricVariants {
    /// Spellings of counters.
    pub counters: Vec<CounterMetric>,
    /// Spellings of timers.
    pub timers: Vec<TimerMetric>,
    /// Spellings of gauges.
    pub gauges: Vec<GaugeMetric>,
    /// Spellings of sets.
    pub sets: Vec<SetMetric>,
}

impl FlushSnapshot {
    /// Returns the counters with their keys as sent, unordered.
    pub fn counters_as_sent(&self) -> impl Iterator<Item = &CounterMetric> {
        self.counters.iter().filter(|counter| !counter.merged).chain(&self.variants.counters)
    }

    /// Returns the value of a counter per second of [`interval`](Self::interval).
    pub fn rate(&self, counter: &CounterMetric) -> f64 {
        counter.value / self.interval.as_secs_f64()
    }

    /// Returns the timers with their keys as sent, unordered.
    pub fn timers_as_sent(&self) -> impl Iterator<Item = &TimerMetric> {
        self.timers.iter().filter(|timer| !timer.merged).chain(&self.variants.timers)
    }

    /// Returns the gauges with their keys as sent, unordered.
    pub fn gauges_as_sent(&self) -> impl Iterator<Item = &GaugeMetric> {
        self.gauges.iter().filter(|gauge| !gauge.merged).chain(&self.variants.gauges)
    }

    /// Returns the sets with their keys as sent, unordered.
    pub fn sets_as_sent(&self) -> impl Iterator<Item = &SetMetric> {
        self.sets.iter().filter(|set| !set.merged).chain(&self.variants.sets)
    }

    /// Returns the counters and gauges with a timestamp by sanitised key, with the spellings of a
    /// key merged.
    pub fn timed_by_key(&self) -> impl Iterator<Item = TimedMetric> {
        timed::by_key(&self.timed)
    }

    /// Returns the number of metrics, which determines the size in memory.
    pub(crate) fn metric_count(&self) -> u64 {
        self.self_metrics.num_stats + self.timed.len() as u64
    }
}

/// Rules and limits for calculating intervals.
#[derive(Debug)]
pub(crate) struct Calculation {
    rules: TimerRules,
    exact_samples: usize,
    exact_samples_total: usize,
    set_members: usize,
    set_overflow: SetOverflow,
    timed: usize,
    message_bytes: usize,
}

impl Calculation {
    pub(crate) fn new(settings: &StatsdSettings, timer_fields: bool) -> Arc<Self> {
        let limits = &settings.limits;
        Arc::new(Self {
            rules: TimerRules::new(&settings.aggregation, timer_fields),
            exact_samples: limits.exact_samples,
            exact_samples_total: limits.exact_samples_total,
            set_members: limits.set_members,
            set_overflow: limits.set_overflow,
            timed: limits.keys,
            message_bytes: limits.message_bytes,
        })
    }
}

/// A counter of one interval.
#[derive(Clone, Debug, PartialEq)]
pub struct CounterMetric {
    /// The metric's key.
    pub name: MetricName,
    /// Whether other spellings of the key are merged into this metric; see [`MetricVariants`].
    /// False for variants.
    pub merged: bool,
    /// Sum of the interval's values, each divided by its sample rate. 0 if idle.
    pub value: f64,
    /// Sum since [`since`](Self::since), including this interval.
    pub total: f64,
    /// Start of `total`, in seconds since 1970 and milliseconds: there may be millions of counters.
    pub(crate) since: (u32, u16),
    /// Whether the counter was not received in the interval.
    pub idle: bool,
}

impl CounterMetric {
    /// Returns the start of `total`: the time at which the key was first collected from a reader,
    /// or first collected again after a deletion that discarded its total.
    pub fn since(&self) -> SystemTime {
        let (seconds, milliseconds) = self.since;
        SystemTime::UNIX_EPOCH + Duration::new(seconds.into(), u32::from(milliseconds) * 1_000_000)
    }
}

/// A gauge of one interval.
#[derive(Clone, Debug, PartialEq)]
pub struct GaugeMetric {
    /// The metric's key.
    pub name: MetricName,
    /// Whether other spellings of the key are merged into this metric; see [`MetricVariants`].
    /// False for variants.
    pub merged: bool,
    /// The value at the end of the interval.
    pub value: f64,
    /// Whether the gauge was not received in the interval.
    pub idle: bool,
}

/// A set of one interval.
#[derive(Clone, Debug, PartialEq)]
pub struct SetMetric {
    /// The metric's key.
    pub name: MetricName,
    /// Whether other spellings of the key are merged into this metric; see [`MetricVariants`].
    /// False for variants.
    pub merged: bool,
    /// Number of distinct members in the interval, exact or estimated.
    pub count: u64,
    /// The members, sorted, with invalid UTF-8 replaced. Limited by `limits.set-members`; empty if
    /// the number is an estimate.
    pub members: Arc<[Box<str>]>,
    /// The estimate, if the set had too many members.
    pub estimate: Option<Arc<HyperLogLog>>,
}

/// A timer, histogram or distribution of one interval.
#[derive(Clone, Debug)]
pub struct TimerMetric {
    /// The metric's key.
    pub name: MetricName,
    /// Whether other spellings of the key are merged into this metric; see [`MetricVariants`].
    /// False for variants.
    pub merged: bool,
    /// The unit of the values. If senders mix units, that of one of the samples.
    pub unit: TimingUnit,
    /// The statistics of etsy's server, with its names and order, after the filter for calculated
    /// metrics: `count_90`, `mean_90`, `upper_90`, …, `std`, `upper`, … `median`, and
    /// `histogram.bin_10` and so on. An idle timer has `count` and `count_ps`, both 0. Empty unless
    /// a backend requires them.
    pub fields: Box<[(Arc<str>, f64)]>,
    /// Typed statistics, which the filter for calculated metrics does not affect. `None` if the
    /// interval has no samples.
    pub summary: Option<TimerSummary>,
    /// The samples of the interval.
    pub samples: TimerSamples,
    /// All values since `since`, if a backend [requires](crate::backends::SnapshotRequirements)
    /// them: in **seconds** for timers in milliseconds, otherwise as sent. In the sum, each value
    /// is divided by its sample rate; in the buckets, it is weighted by the mean inverse sample
    /// rate of its interval.
    pub cumulative: Option<Arc<Sketch>>,
    /// Number of samples since `since`, each counted as the inverse of its rate, including this
    /// interval.
    pub count_total: f64,
    /// Sum of values since `since`, in the unit sent, not divided by sample rates.
    pub sum_total: f64,
    /// Start of the totals: the time at which the key was first collected from a reader, or first
    /// collected again after a deletion that discarded its totals.
    pub since: SystemTime,
}

/// Statistics over all samples of one interval, in the unit sent.
#[derive(Clone, Debug, PartialEq)]
pub struct TimerSummary {
    /// Number of received samples.
    pub samples: u64,
    /// Number of samples, each counted as the inverse of its rate: etsy's `count`.
    pub count: f64,
    /// Smallest value.
    pub lower: f64,
    /// Largest value.
    pub upper: f64,
    /// Sum of the values, not divided by sample rates.
    pub sum: f64,
    /// Sum of the values, each divided by its sample rate.
    pub weighted_sum: f64,
    /// Sum of the squared values.
    pub sum_squares: f64,
    /// Arithmetic mean of the values.
    pub mean: f64,
    /// Middle value, or the mean of the two middle ones.
    pub median: f64,
    /// Population standard deviation.
    pub std: f64,
    /// For each configured positive percentile with enough samples: the percentile, and the largest
    /// value within it.
    pub quantiles: Vec<(f64, f64)>,
}

/// The samples of a timer in one interval.
#[derive(Clone, Debug)]
pub enum TimerSamples {
    /// All samples, ascending, in the unit sent.
    Exact(Arc<[f64]>),
    /// A sketch of too many samples, in seconds for timers in milliseconds, otherwise as sent.
    /// Count, sum, minimum and maximum are exact, other values are within
    /// [`Sketch::RELATIVE_ERROR`].
    Sketched(Arc<Sketch>),
}

/// Returns the seconds since 1970, with halves rounded up as in JavaScript.
fn rounded_seconds(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from((since.as_millis() + 500) / 1000).unwrap_or(i64::MAX)
}
