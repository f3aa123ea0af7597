//! All metrics of the server between two flushes, and the rules of what is kept after one.
//!
//! Shards are emptied into the registry whenever somebody wants to see the running interval, and at
//! every flush. It belongs to the flush thread; readers never wait for it.

mod absorb;
mod calculate;
mod delete;
mod ranking;
mod states;
mod variants;

use std::{
    collections::VecDeque,
    mem,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use self::variants::{Destination, Variants};
pub(crate) use self::{
    delete::Deleted,
    states::{CounterState, GaugeState, SetState, TimerState},
};
use super::{Calculation, OwnMetrics, Snapshot, statistics::PrefixSums, table::Table};
use crate::{
    Name,
    aggregate::{Interval, KINDS, Recent, Rejects, SharedShard, Stamps},
    backends::Needs,
    flush,
    ledger::Account,
    settings::{Aggregation, Dialect, Settings},
};

/// So many bad lines can be looked at.
const RECENT_MAX: usize = 64;

/// Everything between two flushes.
#[derive(Debug)]
pub struct Registry {
    settings: Settings,
    calculation: Arc<Calculation>,
    needs: Needs,
    stamps: Stamps,
    shards: Vec<Source>,
    pub(crate) counters: Table<CounterState>,
    pub(crate) timers: Table<TimerState>,
    pub(crate) gauges: Table<GaugeState>,
    pub(crate) sets: Table<SetState>,
    variants: Variants,
    own: Own,
    totals: Totals,
    recent: VecDeque<(SystemTime, Recent)>,
    /// Flushes so far; 0 before the first.
    flushes: u32,
    last_timestamp: Option<i64>,
    overflow_keys: u64,
    forget: bool,
    scratch: PrefixSums,
}

/// A shard, and where its cells are kept.
#[derive(Debug)]
struct Source {
    shard: SharedShard,
    spare: Interval,
    /// By kind and cell.
    places: [Vec<Destination>; KINDS],
}

/// Etsy's counters about the server itself.
#[derive(Debug)]
struct Own {
    packets: Name,
    lines: Option<Name>,
    bad: Name,
    lag: Option<Name>,
}

/// Totals since the start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Totals {
    /// Packets.
    pub packets: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Lines that were not empty.
    pub lines: u64,
    /// Samples that were read, those that the limits refused among them.
    pub samples: u64,
    /// DogStatsD events.
    pub events: u64,
    /// DogStatsD service checks.
    pub checks: u64,
    /// Fields with a DogStatsD timestamp, which is not used.
    pub timestamps: u64,
    /// Samples that went to overflow keys.
    pub overflow_samples: u64,
    /// What could not be used, by reason.
    pub rejects: Rejects,
    /// When something last arrived.
    pub last_packet: Option<SystemTime>,
}

/// When a flush happens.
#[derive(Clone, Copy, Debug)]
pub struct FlushTime {
    /// Now.
    pub now: SystemTime,
    /// How late it is: now, less the time it was due.
    pub lag: Duration,
}

impl Registry {
    /// An empty one: etsy's own counters are there from the start, at 0.
    #[must_use]
    pub fn new(settings: &Settings, needs: Needs, now: SystemTime) -> Self {
        let mut registry = Self {
            calculation: Calculation::new(settings),
            own: Own::new(settings),
            settings: settings.clone(),
            needs,
            stamps: Stamps::default(),
            shards: Vec::new(),
            counters: Table::default(),
            timers: Table::default(),
            gauges: Table::default(),
            sets: Table::default(),
            variants: Variants::default(),
            totals: Totals::default(),
            recent: VecDeque::new(),
            flushes: 0,
            last_timestamp: None,
            overflow_keys: 0,
            forget: false,
            scratch: PrefixSums::default(),
        };
        registry.count_own(0, 0, 0, now);
        registry
    }

    /// A shard for one more reader.
    #[must_use]
    pub fn shard(&mut self) -> SharedShard {
        let shard = SharedShard::new(&self.settings, &self.stamps);
        self.shards.push(Source {
            shard: shard.clone(),
            spare: Interval::default(),
            places: Default::default(),
        });
        shard
    }

    /// Takes other rules from now on: what is calculated, named and deleted. Kept values stay.
    pub fn reload(&mut self, aggregation: &Aggregation, now: SystemTime) {
        self.settings.aggregation = aggregation.clone();
        self.calculation = Calculation::new(&self.settings);
        self.own = Own::new(&self.settings);
        self.count_own(0, 0, 0, now);
        if !aggregation.delete_idle_gauges {
            let variants = self.variants.gauges.iter_mut();
            self.gauges.iter_mut().chain(variants).for_each(|gauge| gauge.state.ttl = None);
        }
    }

    /// Empties all shards into the registry, so that it shows the running interval.
    pub fn collect(&mut self, now: SystemTime) {
        let forget = mem::take(&mut self.forget);
        let mut shards = mem::take(&mut self.shards);
        for source in &mut shards {
            let mut interval = source.shard.swap(mem::take(&mut source.spare), forget);
            self.absorb(&mut interval, &mut source.places, now);
            interval.clear();
            source.spare = if forget { Interval::default() } else { interval };
            if forget {
                source.places = Default::default();
            }
        }
        self.shards = shards;
        if forget {
            self.compact();
        }
    }

    /// Ends the interval: collects, calculates, and keeps what the rules for idle metrics say.
    pub fn flush(&mut self, time: FlushTime, account: Account) -> Snapshot {
        self.collect(time.now);
        let started = std::time::Instant::now();
        self.flushes += 1;
        let timestamp = rounded_seconds(time.now);
        self.note_lag(timestamp);
        let (counters, variant_counters) = self.counters();
        let (timers, variant_timers) = self.timers();
        let (gauges, variant_gauges) = self.gauges();
        let (sets, variant_sets) = self.sets();
        let mut snapshot = Snapshot {
            timestamp,
            time: time.now,
            interval: self.settings.flush_interval,
            counters,
            timers,
            gauges,
            sets,
            variants: flush::Variants {
                counters: variant_counters,
                timers: variant_timers,
                gauges: variant_gauges,
                sets: variant_sets,
            },
            own: OwnMetrics::default(),
            percentiles: self.settings.aggregation.percentiles.as_slice().into(),
            calculation: Arc::clone(&self.calculation),
        };
        let num_stats = snapshot.counters.len()
            + snapshot.timers.len()
            + snapshot.gauges.len()
            + snapshot.sets.len();
        snapshot.own = OwnMetrics {
            prefix: self.settings.aggregation.prefix.as_str().into(),
            processing_ms: started.elapsed().as_millis() as f64,
            num_stats: num_stats as u64,
            extra: self.extra(num_stats, time.lag, &account),
            events_total: self.totals.events,
            checks_total: self.totals.checks,
            timestamps_total: self.totals.timestamps,
            capped_set: self.capped_sets().next().cloned(),
            account,
            backends: Vec::new(),
        };
        self.clear();
        snapshot
    }

    /// Totals since the start, as of the last [`collect`](Self::collect).
    #[must_use]
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// The last bad lines, oldest first, each with when it was collected.
    pub fn recent(&self) -> impl Iterator<Item = &(SystemTime, Recent)> {
        self.recent.iter()
    }

    /// Live metrics of all kinds.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.counters.len() + self.timers.len() + self.gauges.len() + self.sets.len()
    }

    /// Etsy's `timestamp_lag`: how far this timestamp is off the last one plus the interval.
    fn note_lag(&mut self, timestamp: i64) {
        let last = self.last_timestamp.replace(timestamp);
        let (Some(last), Some(name)) = (last, &self.own.lag) else { return };
        let place = self.gauges.place(name);
        let seconds = self.settings.flush_interval.as_secs_f64();
        let (entry, _) = self.gauges.wake(place);
        let lag = (timestamp - last) as f64 - seconds;
        entry.state = GaugeState { before: Some(lag), ..GaugeState::default() };
        if let Some(variant) = entry.other {
            let (variant, _) = self.variants.gauges.wake(variant);
            variant.state = GaugeState { before: Some(lag), ..GaugeState::default() };
        }
    }

    /// Sets with more members in this interval than the limit allows.
    fn capped_sets(&self) -> impl Iterator<Item = &Name> {
        self.sets.iter().filter(|entry| entry.state.refused > 0).map(|entry| &entry.name)
    }

    fn extra(
        &self,
        num_stats: usize,
        lag: Duration,
        account: &Account,
    ) -> Vec<(&'static str, f64)> {
        if !self.settings.aggregation.extra_metrics {
            return Vec::new();
        }
        let sketched = self.timers.iter().filter(|entry| entry.state.sketched.is_some()).count();
        vec![
            ("kernel_drops", account.drops_total() as f64),
            ("backlog_drops", account.backlog_drops_total as f64),
            ("keys", num_stats as f64),
            ("overflow_keys", self.overflow_keys as f64),
            ("sketched_timers", sketched as f64),
            ("capped_sets", self.capped_sets().count() as f64),
            ("events", self.totals.events as f64),
            ("service_checks", self.totals.checks as f64),
            ("flush_lag_ms", (lag.as_secs_f64() * 1000.0).round()),
        ]
    }

    /// What etsy's server does after a flush: sums begin again, idle metrics stay or go.
    fn clear(&mut self) {
        let rules = &self.settings.aggregation;
        self.overflow_keys = 0;
        let variants = &mut self.variants;
        for counters in [&mut self.counters, &mut variants.counters] {
            counters.retain(|entry| {
                entry.state.value = 0.0;
                entry.hits = 0;
                !rules.delete_idle_counters || is_own(entry.name.key())
            });
        }
        for timers in [&mut self.timers, &mut variants.timers] {
            timers.retain(|entry| {
                entry.state.clear();
                entry.hits = 0;
                !rules.delete_idle_timers
            });
        }
        for sets in [&mut self.sets, &mut variants.sets] {
            sets.retain(|entry| {
                entry.state = SetState::default();
                entry.hits = 0;
                !rules.delete_idle_sets
            });
        }
        for gauges in [&mut self.gauges, &mut variants.gauges] {
            gauges.retain(|entry| {
                entry.hits = 0;
                let ttl = entry.state.ttl.map(|ttl| ttl.saturating_sub(1));
                entry.state.ttl = ttl;
                !rules.delete_idle_gauges || ttl != Some(0)
            });
        }
        let dead = self.counters.dead()
            + self.timers.dead()
            + self.gauges.dead()
            + self.sets.dead()
            + self.variants.dead();
        self.forget = dead > self.keys() + 4096;
    }
}

impl Own {
    fn new(settings: &Settings) -> Self {
        let name = |name: &str| match settings.aggregation.prefix.as_str() {
            "" => Name::new(name),
            prefix => Name::new(&format!("{prefix}.{name}")),
        };
        let etsy = settings.dialect != Dialect::Perl;
        Self {
            packets: name("packets_received"),
            lines: etsy.then(|| name("metrics_received")),
            bad: name("bad_lines_seen"),
            lag: etsy.then(|| name("timestamp_lag")),
        }
    }
}

/// Etsy's server keeps every counter whose key contains one of these, whoever sent it.
fn is_own(key: &str) -> bool {
    ["packets_received", "metrics_received", "bad_lines_seen"].iter().any(|part| key.contains(part))
}

/// Seconds since 1970, halves rounded up as JavaScript does.
fn rounded_seconds(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from((since.as_millis() + 500) / 1000).unwrap_or(i64::MAX)
}
