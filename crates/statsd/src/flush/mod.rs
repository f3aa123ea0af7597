//! One interval of the whole server: merged, with its statistics calculated.
//!
//! A [`Snapshot`] is built once per flush, on the flush thread, and shared by all backends. It shows
//! each metric twice: as etsy's server names it (`count_90`, `upper_90`), for the graphs people have,
//! and as typed numbers with running totals, for receivers that keep rates themselves.

mod join;
pub(crate) mod names;
mod registry;
mod statistics;
mod table;
#[cfg(test)]
mod tests;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use self::statistics::Rules;
use crate::{Name, grammar::TimingUnit, ledger::Account, settings::Settings, sketch::Sketch};

pub use self::registry::{FlushTime, Registry, Totals};
pub(crate) use self::{registry::Deleted, table::Table};

/// One interval. Every list is sorted by name's key, bytewise.
///
/// The four lists hold metrics by sanitised keys, as etsy's server has them. Receivers that take names
/// and tags as they were sent read the lists by [`counters_as_sent`](Self::counters_as_sent) and its
/// like; that is possible where a backend [needs](crate::backends::Needs) it.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The flush's time in whole seconds since 1970, rounded: the timestamp of every line sent.
    pub timestamp: i64,
    /// When the interval ended, to the clock's precision.
    pub time: SystemTime,
    /// The configured interval. Rates are per second of it, never of the time measured.
    pub interval: Duration,
    /// Sums of the interval. The server's own are among them, under their ordinary names
    /// (`statsd.packets_received`), unless idle rules have removed a key.
    pub counters: Vec<Counter>,
    /// Timers, histograms and distributions.
    pub timers: Vec<Timer>,
    /// Last values.
    pub gauges: Vec<Gauge>,
    /// Distinct members.
    pub sets: Vec<Set>,
    /// The spellings of merged metrics, each by itself.
    pub variants: Variants,
    /// The server about itself.
    pub own: OwnMetrics,
    /// The configured percentiles, in their order: 90, 99.9, -10.
    pub percentiles: Arc<[f64]>,
    /// How timers are calculated, for intervals that are joined later.
    pub(crate) calculation: Arc<Calculation>,
}

/// Metrics that were sent in several spellings which are one key once they are sanitised.
#[derive(Clone, Debug, Default)]
pub struct Variants {
    /// Of counters.
    pub counters: Vec<Counter>,
    /// Of timers.
    pub timers: Vec<Timer>,
    /// Of gauges.
    pub gauges: Vec<Gauge>,
    /// Of sets.
    pub sets: Vec<Set>,
}

impl Snapshot {
    /// Counters by keys as they were sent; in no order.
    pub fn counters_as_sent(&self) -> impl Iterator<Item = &Counter> {
        self.counters.iter().filter(|counter| !counter.merged).chain(&self.variants.counters)
    }

    /// Timers by keys as they were sent; in no order.
    pub fn timers_as_sent(&self) -> impl Iterator<Item = &Timer> {
        self.timers.iter().filter(|timer| !timer.merged).chain(&self.variants.timers)
    }

    /// Gauges by keys as they were sent; in no order.
    pub fn gauges_as_sent(&self) -> impl Iterator<Item = &Gauge> {
        self.gauges.iter().filter(|gauge| !gauge.merged).chain(&self.variants.gauges)
    }

    /// Sets by keys as they were sent; in no order.
    pub fn sets_as_sent(&self) -> impl Iterator<Item = &Set> {
        self.sets.iter().filter(|set| !set.merged).chain(&self.variants.sets)
    }
}

/// What intervals are calculated by, and within which bounds.
#[derive(Debug)]
pub(crate) struct Calculation {
    rules: Rules,
    exact_samples: usize,
    exact_samples_total: usize,
    set_members: usize,
}

impl Calculation {
    pub(crate) fn new(settings: &Settings) -> Arc<Self> {
        let limits = &settings.limits;
        Arc::new(Self {
            rules: Rules::new(&settings.aggregation),
            exact_samples: limits.exact_samples,
            exact_samples_total: limits.exact_samples_total,
            set_members: limits.set_members,
        })
    }
}

/// One counter.
#[derive(Clone, Debug, PartialEq)]
pub struct Counter {
    /// Its key.
    pub name: Name,
    /// Whether other spellings of the key are part of it: see [`Variants`]. A variant never is.
    pub merged: bool,
    /// Sum of the interval, sampled values scaled up. 0 when it was idle.
    pub value: f64,
    /// `value` per second of the configured interval.
    pub rate: f64,
    /// Sum since [`since`](Self::since), this interval included.
    pub total: f64,
    /// When the key was first seen, or seen again after having been deleted.
    pub since: SystemTime,
}

/// One gauge.
#[derive(Clone, Debug, PartialEq)]
pub struct Gauge {
    /// Its key.
    pub name: Name,
    /// Whether other spellings of the key are part of it: see [`Variants`]. A variant never is.
    pub merged: bool,
    /// Its last value.
    pub value: f64,
}

/// One set.
#[derive(Clone, Debug, PartialEq)]
pub struct Set {
    /// Its key.
    pub name: Name,
    /// Whether other spellings of the key are part of it: see [`Variants`]. A variant never is.
    pub merged: bool,
    /// The number of distinct members in the interval.
    pub count: u64,
    /// The members in order, as text; invalid UTF-8 replaced. Bounded by the limit on members.
    pub members: Arc<[Box<str>]>,
}

/// One timer, histogram or distribution.
#[derive(Clone, Debug)]
pub struct Timer {
    /// Its key.
    pub name: Name,
    /// Whether other spellings of the key are part of it: see [`Variants`]. A variant never is.
    pub merged: bool,
    /// What its values are measured in: those of its first sample.
    pub unit: TimingUnit,
    /// What etsy's server calculates, under its names, after the filter for calculated metrics, in
    /// its order: `count_90`, `mean_90`, `upper_90`, …, `std`, `upper`, … `median`, and
    /// `histogram.bin_10` and so on. An idle timer has `count` and `count_ps`, both 0.
    pub fields: Box<[(Arc<str>, f64)]>,
    /// The same numbers, typed, unfiltered. `None` when no sample came in the interval.
    pub summary: Option<Summary>,
    /// The interval's values.
    pub samples: Samples,
    /// All values since `since`, if any backend [needs](crate::backends::Needs) it: in **seconds**
    /// for timers in milliseconds, else as sent. Weighted by sample rate.
    pub cumulative: Option<Arc<Sketch>>,
    /// Scaled-up number of samples since `since`, this interval included.
    pub count_total: f64,
    /// Sum of values since `since`, in the unit they were sent in, not scaled up.
    pub sum_total: f64,
    /// When the key was first seen, or seen again after having been deleted.
    pub since: SystemTime,
}

/// Statistics over all samples of one interval.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Samples that came, not scaled up.
    pub samples: u64,
    /// Samples scaled up by their rates: etsy's `count`.
    pub count: f64,
    /// Smallest.
    pub lower: f64,
    /// Largest.
    pub upper: f64,
    /// Sum.
    pub sum: f64,
    /// Sum of squares.
    pub sum_squares: f64,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub median: f64,
    /// Population standard deviation.
    pub std: f64,
    /// For each configured percentile above zero that the samples suffice for: percent, and the
    /// largest value within it.
    pub quantiles: Vec<(f64, f64)>,
}

/// Values of one timer in one interval.
#[derive(Clone, Debug)]
pub enum Samples {
    /// Every one, ascending, as sent.
    Exact(Arc<[f64]>),
    /// Too many to keep: a sketch, in seconds for timers in milliseconds, else as sent. Count, sum,
    /// smallest and largest are exact, the rest is within [`Sketch::RELATIVE_ERROR`].
    Sketched(Arc<Sketch>),
}

/// The server about itself.
///
/// Etsy's three counters and the `timestamp_lag` gauge are among the snapshot's ordinary metrics as
/// well; [`extra`](Self::extra) are not.
#[derive(Clone, Debug, Default)]
pub struct OwnMetrics {
    /// The configured prefix, `statsd`.
    pub prefix: Arc<str>,
    /// How long the calculation took, in whole milliseconds as etsy's server says it.
    pub processing_ms: f64,
    /// How many metrics there are: counters, timers, gauges and sets.
    pub num_stats: u64,
    /// Facts beyond etsy's: `kernel_drops`, `backlog_drops`, `keys`, `overflow_keys`,
    /// `flush_lag_ms`. To be sent as gauges under the prefix. Empty where exact parity was asked for.
    pub extra: Vec<(&'static str, f64)>,
    /// DogStatsD events since the start. They are counted, their text goes nowhere.
    pub events_total: u64,
    /// DogStatsD service checks since the start; as events.
    pub checks_total: u64,
    /// Fields with a DogStatsD timestamp since the start, which is not used.
    pub timestamps_total: u64,
    /// A set with more members in this interval than the limit allows, if there is one.
    pub capped_set: Option<Name>,
    /// The loss ledger at the time of the flush.
    pub account: Account,
    /// What the backends say about themselves, as of the flush before. Empty in a registry without
    /// a server around it.
    pub backends: Vec<BackendAccount>,
}

/// One backend's account.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BackendAccount {
    /// Its name; the second of a kind is `graphite-2`.
    pub name: String,
    /// What it told, by word: `spool_bytes`, `lost_values`, `flush_time`.
    pub values: Vec<(&'static str, f64)>,
}
