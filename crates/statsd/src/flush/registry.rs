//! [`KeyRegistry`]: all metrics of the server between two flushes, and the rules for retaining
//! them.
//!
//! Shards are collected into the registry at every flush, and when the management port or the key
//! log needs the running interval. Readers never wait for the registry.

mod calculation;
mod cell_targets;
mod deletion;
pub(crate) mod handover;
mod interval_merge;
mod key_rules;
pub(crate) mod mergeable;
mod prefix_limits;
mod ranking;
mod retarget;
mod states;
#[cfg(test)]
mod tests;
mod unaggregated;
mod variants;

use std::{
    collections::VecDeque,
    mem,
    sync::Arc,
    time::{Duration, SystemTime},
};

use self::{
    cell_targets::CellTargets, retarget::OrphanedEntries, unaggregated::UnaggregatedInput,
    variants::VariantTables,
};
pub(crate) use self::{
    deletion::DeleteOutcome,
    key_rules::{KeyRules, RuleTally},
    prefix_limits::PrefixTally,
    states::{CounterState, GaugeState, SetState, TimerState},
};
use super::{
    Calculation, FlushSnapshot, JoinLosses, rounded_seconds,
    statistics::PrefixSums,
    table::{MetricEntry, MetricTable},
};
use crate::{
    MetricName,
    aggregate::{RejectedLine, Rejects, ShardInterval, SharedShard, Stamps},
    backends::SnapshotRequirements,
    flush,
    grammar::LineRules,
    ledger::LossAccount,
    self_metrics::{
        self, BAD_LINES_SEEN, ExtraMetrics, METRICS_RECEIVED, PACKETS_RECEIVED, SelfMetrics,
        TIMESTAMP_LAG,
    },
    settings::{StatsdDialect, StatsdSettings},
};

/// Maximum number of recent bad lines stored.
const RECENT_MAX: usize = 64;

/// All metrics of the server.
#[derive(Debug)]
pub struct KeyRegistry {
    settings: StatsdSettings,
    calculation: Arc<Calculation>,
    needs: SnapshotRequirements,
    stamps: Stamps,
    shards: Vec<ShardSource>,
    pub(crate) counters: MetricTable<CounterState>,
    pub(crate) timers: MetricTable<TimerState>,
    pub(crate) gauges: MetricTable<GaugeState>,
    pub(crate) sets: MetricTable<SetState>,
    variants: VariantTables,
    unaggregated: UnaggregatedInput,
    pub(crate) key_rules: KeyRules,
    orphans: OrphanedEntries,
    self_names: SelfMetricNames,
    totals: ReceiveTotals,
    recent: VecDeque<(SystemTime, RejectedLine)>,
    /// Number of flushes so far.
    flushes: u32,
    last_timestamp: Option<i64>,
    overflow_keys: u64,
    /// Number of exact timer samples that other servers have forwarded in the running interval.
    forwarded_exact_samples: usize,
    reset_shards: bool,
    scratch: PrefixSums,
}

/// A shard and the registry entries of its cells.
#[derive(Debug)]
struct ShardSource {
    shard: SharedShard,
    spare: ShardInterval,
    targets: CellTargets,
}

/// Names of etsy's self metrics.
#[derive(Debug)]
struct SelfMetricNames {
    packets: MetricName,
    lines: Option<MetricName>,
    bad: MetricName,
    lag: Option<MetricName>,
}

/// Totals of received data since the start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReceiveTotals {
    /// Received packets.
    pub packets: u64,
    /// Bytes in the received packets.
    pub bytes: u64,
    /// Non-empty lines.
    pub lines: u64,
    /// Parsed samples, including those then rejected because of their key or a limit.
    pub samples: u64,
    /// DogStatsD events.
    pub events: u64,
    /// DogStatsD service checks.
    pub checks: u64,
    /// Events and service checks dropped because of the limit.
    pub messages_dropped: u64,
    /// DogStatsD timestamps that were ignored.
    pub timestamps: u64,
    /// Samples counted under overflow keys.
    pub overflow_samples: u64,
    /// Rejected values, by reason.
    pub rejects: Rejects,
    /// The time at which packets were last collected.
    pub last_packet: Option<SystemTime>,
}

/// The time of a flush, and its delay.
#[derive(Clone, Copy, Debug)]
pub struct FlushTime {
    /// The current time.
    pub now: SystemTime,
    /// The delay after the scheduled time.
    pub lag: Duration,
}

/// Adds requirements of new backends. Values that arrived in the running interval before count as
/// if they were sent with sanitised keys.
pub(crate) fn add_requirements(
    registry: &mut KeyRegistry,
    needs: SnapshotRequirements,
    now: SystemTime,
) {
    let needs = registry.needs.or(needs);
    if needs != registry.needs {
        // The cells of the shards refer to entries for the previous requirements.
        retarget::set_requirements(registry, needs, now);
        if needs.messages {
            registry.shards.iter().for_each(|source| source.shard.store_messages());
        }
        registry.calculation = Calculation::new(&registry.settings, needs.timer_fields);
    }
}

impl KeyRegistry {
    /// Creates a registry with only etsy's own counters, at 0.
    pub fn new(settings: &StatsdSettings, needs: SnapshotRequirements, now: SystemTime) -> Self {
        let mut registry = Self {
            calculation: Calculation::new(settings, needs.timer_fields),
            self_names: SelfMetricNames::new(settings),
            settings: settings.clone(),
            needs,
            stamps: Stamps::default(),
            shards: Vec::new(),
            counters: MetricTable::default(),
            timers: MetricTable::default(),
            gauges: MetricTable::default(),
            sets: MetricTable::default(),
            variants: VariantTables::default(),
            unaggregated: UnaggregatedInput::default(),
            key_rules: KeyRules::new(settings, now),
            orphans: OrphanedEntries::default(),
            totals: ReceiveTotals::default(),
            recent: VecDeque::new(),
            flushes: 0,
            last_timestamp: None,
            overflow_keys: 0,
            forwarded_exact_samples: 0,
            reset_shards: false,
            scratch: PrefixSums::default(),
        };
        registry.count_self_metrics(0, 0, 0, now);
        registry
    }

    /// Adds a shard for a reader.
    pub fn shard(&mut self) -> SharedShard {
        let shard = SharedShard::new(&self.settings, &self.stamps, self.needs.messages);
        self.shards.push(ShardSource {
            shard: shard.clone(),
            spare: ShardInterval::default(),
            targets: CellTargets::default(),
        });
        shard
    }

    /// Applies new rules for keys, calculation, naming and deletion. Stored values are retained.
    pub fn reload(&mut self, settings: &StatsdSettings, now: SystemTime) {
        retarget::retarget(self, settings, now);
        let aggregation = &settings.aggregation;
        self.settings.aggregation = aggregation.clone();
        self.calculation = Calculation::new(&self.settings, self.needs.timer_fields);
        self.self_names = SelfMetricNames::new(&self.settings);
        self.count_self_metrics(0, 0, 0, now);
        if !aggregation.delete_idle_gauges {
            let variants = self.variants.gauges.iter_mut();
            self.gauges.iter_mut().chain(variants).for_each(|gauge| gauge.state.ttl = None);
        }
    }

    /// Moves the values of all shards into the registry, which then reflects the running interval.
    pub fn collect(&mut self, now: SystemTime) {
        let reset = mem::take(&mut self.reset_shards);
        let mut shards = mem::take(&mut self.shards);
        for source in &mut shards {
            let mut interval = source.shard.swap(mem::take(&mut source.spare), reset);
            self.add_interval(&mut interval, &mut source.targets, now);
            interval.clear();
            source.spare = if reset { ShardInterval::default() } else { interval };
            if reset {
                source.targets.clear(&mut self.key_rules);
            }
        }
        self.shards = shards;
        if reset {
            self.compact();
        }
    }

    /// Finishes the interval: returns its snapshot, resets the values, and applies the rules for
    /// idle metrics.
    pub fn flush(&mut self, time: FlushTime, account: LossAccount) -> FlushSnapshot {
        self.collect(time.now);
        let started = std::time::Instant::now();
        self.flushes += 1;
        let timestamp = rounded_seconds(time.now);
        self.record_timestamp_lag(timestamp);
        let timed = self.unaggregated.take_timed(timestamp);
        let mergeable =
            if self.needs.mergeable { mergeable::export(self, &timed) } else { Vec::new() };
        let (counters, variant_counters) = self.counters();
        let (timers, variant_timers) = self.timers();
        let (gauges, variant_gauges) = self.gauges();
        let (sets, variant_sets) = self.sets();
        let rules = LineRules::new(&self.settings);
        let (messages, dropped) = self.unaggregated.take_messages(rules);
        self.totals.messages_dropped += dropped;
        let mut snapshot = FlushSnapshot {
            timestamp,
            time: time.now,
            interval: self.settings.flush_interval,
            counters,
            timers,
            gauges,
            sets,
            variants: flush::MetricVariants {
                counters: variant_counters,
                timers: variant_timers,
                gauges: variant_gauges,
                sets: variant_sets,
            },
            timed,
            messages,
            dropped_by_joins: JoinLosses::default(),
            self_metrics: SelfMetrics::default(),
            percentiles: self.settings.aggregation.percentiles.as_slice().into(),
            mergeable: mergeable.into(),
            calculation: Arc::clone(&self.calculation),
        };
        let limited_prefixes = self.key_rules.prefixes.take_reached();
        snapshot.self_metrics = SelfMetrics {
            prefix: self.settings.aggregation.prefix.as_str().into(),
            processing_ms: started.elapsed().as_millis() as f64,
            num_stats: self.keys() as u64,
            extra: self.settings.aggregation.extra_metrics.then(|| self.extra(time.lag)),
            events_total: self.totals.events,
            checks_total: self.totals.checks,
            messages_dropped_total: self.totals.messages_dropped,
            timestamps_total: self.totals.timestamps,
            capped_set: self.capped_sets().next().cloned(),
            rule_drops: self.key_rules.dropped(),
            prefix_overflows: self.key_rules.prefix_overflows(),
            limited_prefixes,
            account,
            backends: Vec::new(),
        };
        self.clear();
        snapshot
    }

    /// Returns the totals since the start, as of the last [`collect`](Self::collect).
    pub fn totals(&self) -> &ReceiveTotals {
        &self.totals
    }

    /// Returns the most recent bad lines, oldest first, each with the time of its collection.
    pub fn recent(&self) -> impl Iterator<Item = &(SystemTime, RejectedLine)> {
        self.recent.iter()
    }

    /// Returns the number of live metrics of all types.
    pub fn keys(&self) -> usize {
        self.counters.len() + self.timers.len() + self.gauges.len() + self.sets.len()
    }

    /// Records etsy's `timestamp_lag`: the seconds by which `timestamp` is later than the last one
    /// plus the interval.
    fn record_timestamp_lag(&mut self, timestamp: i64) {
        let last = self.last_timestamp.replace(timestamp);
        let (Some(last), Some(name)) = (last, &self.self_names.lag) else { return };
        let index = self.gauges.intern(name);
        let seconds = self.settings.flush_interval.as_secs_f64();
        let (entry, _) = self.gauges.activate(index);
        let lag = (timestamp - last) as f64 - seconds;
        entry.state = GaugeState { before: Some(lag), ..GaugeState::default() };
        if let Some(variant) = entry.linked {
            let (variant, _) = self.variants.gauges.activate(variant);
            variant.state = GaugeState { before: Some(lag), ..GaugeState::default() };
        }
    }

    /// Returns the sets that exceeded the member limit in this interval, and became estimates or
    /// refused members.
    fn capped_sets(&self) -> impl Iterator<Item = &MetricName> {
        let capped = |state: &SetState| state.refused > 0 || state.estimate.is_some();
        self.sets.iter().filter(move |entry| capped(&entry.state)).map(|entry| &entry.name)
    }

    fn extra(&self, flush_lag: Duration) -> ExtraMetrics {
        let sketched = self.timers.iter().filter(|entry| entry.state.sketched.is_some());
        ExtraMetrics {
            overflow_keys: self.overflow_keys,
            sketched_timers: sketched.count() as u64,
            capped_sets: self.capped_sets().count() as u64,
            flush_lag,
        }
    }

    /// Resets values after a flush and removes idle metrics, as etsy's server does.
    fn clear(&mut self) {
        retarget::remove_orphans(self);
        // Before idle metrics are removed, because some settings remove all until they are received
        // again.
        let has_room = prefix_limits::recount(self);
        let rules = &self.settings.aggregation;
        let end = IntervalEnd::new(&self.settings, self.flushes);
        self.overflow_keys = 0;
        self.forwarded_exact_samples = 0;
        let variants = &mut self.variants;
        for counters in [&mut self.counters, &mut variants.counters] {
            counters.retain(|entry| {
                entry.state.value = 0.0;
                end.retains(entry, !rules.delete_idle_counters || is_self_metric(entry.name.key()))
            });
        }
        for timers in [&mut self.timers, &mut variants.timers] {
            timers.retain(|entry| {
                entry.state.clear();
                end.retains(entry, !rules.delete_idle_timers)
            });
        }
        for sets in [&mut self.sets, &mut variants.sets] {
            sets.retain(|entry| {
                entry.state = SetState::default();
                end.retains(entry, !rules.delete_idle_sets)
            });
        }
        for gauges in [&mut self.gauges, &mut variants.gauges] {
            gauges.retain(|entry| {
                let ttl = entry.state.ttl.map(|ttl| ttl.saturating_sub(1));
                entry.state.ttl = ttl;
                end.retains(entry, !rules.delete_idle_gauges || ttl != Some(0))
            });
        }
        // Keys that rules drop or merge have no dead entries, but their cells in a shard can be
        // freed in the same way.
        let idle = self.shards.iter_mut().map(|source| source.targets.take_idle()).max();
        let dead = idle.unwrap_or_default()
            + self.counters.dead_count()
            + self.timers.dead_count()
            + self.gauges.dead_count()
            + self.sets.dead_count()
            + self.variants.dead();
        self.reset_shards = has_room || dead > self.keys() + 4096;
    }
}

/// The end of an interval, which removes metrics.
struct IntervalEnd {
    /// The number of the flush.
    flush: u32,
    /// The number of flushes after which a metric is deleted that was not received.
    ttl: Option<u32>,
}

impl IntervalEnd {
    fn new(settings: &StatsdSettings, flush: u32) -> Self {
        let ttl = settings.aggregation.ttl;
        let flushes = ttl.as_nanos().div_ceil(settings.flush_interval.as_nanos().max(1));
        let flushes = u32::try_from(flushes).unwrap_or(u32::MAX);
        Self { flush, ttl: (!ttl.is_zero()).then_some(flushes) }
    }

    /// Resets the usage count of a metric that the rules for idle metrics keep or delete. Returns
    /// whether it remains.
    fn retains<S>(&self, entry: &mut MetricEntry<S>, mut remains: bool) -> bool {
        if entry.is_idle() {
            let idle = self.flush.saturating_sub(entry.last_flush);
            remains &= self.ttl.is_none_or(|ttl| idle < ttl);
        }
        if entry.hits > 0 || !remains {
            entry.last_flush = self.flush;
        }
        entry.hits = 0;
        remains
    }
}

impl SelfMetricNames {
    fn new(settings: &StatsdSettings) -> Self {
        let key = |metric| self_metrics::key(&settings.aggregation.prefix, metric);
        let etsy = settings.dialect != StatsdDialect::Perl;
        Self {
            packets: key(&PACKETS_RECEIVED),
            lines: etsy.then(|| key(&METRICS_RECEIVED)),
            bad: key(&BAD_LINES_SEEN),
            lag: etsy.then(|| key(&TIMESTAMP_LAG)),
        }
    }

    fn all(&self) -> Vec<MetricName> {
        let optional = [&self.lines, &self.lag].into_iter().flatten();
        [&self.packets, &self.bad].into_iter().chain(optional).cloned().collect()
    }
}

/// Whether etsy's server never deletes this counter, because its key contains the name of one of
/// that server's own counters, regardless of its sender.
fn is_self_metric(key: &str) -> bool {
    ["packets_received", "metrics_received", "bad_lines_seen"].iter().any(|part| key.contains(part))
}
