//! Adds a shard's interval to the registry.

use std::time::{SystemTime, UNIX_EPOCH};

use super::{
    CounterState, GaugeState, KeyRegistry, RECENT_MAX, SetState, TimerState,
    cell_targets::CellTargets,
    key_rules::TraceNumber,
    variants::{CellTarget, cell_target},
};
use crate::{
    MetricName,
    aggregate::{MetricType, NewName, SetCell, ShardInterval, TimerCell},
    flush::{
        names::{KeyConversion, KeyPair},
        table::{MetricEntry, MetricTable},
    },
    grammar::{BadLine, RejectReason},
    settings::StatsdLimits,
};

/// Determines the entries of the cells that are new in the interval.
pub(super) fn resolve_names(
    registry: &mut KeyRegistry,
    interval: &mut ShardInterval,
    targets: &mut CellTargets,
    now: SystemTime,
) {
    for name in interval.names.iter() {
        let target = registry.cell_target(name, now);
        targets.push(name.kind, target, &registry.key_rules);
    }
    interval.names.clear();
}

impl KeyRegistry {
    /// Adds the values of the interval. `targets` maps the shard's cells to registry entries.
    pub(super) fn add_interval(
        &mut self,
        interval: &mut ShardInterval,
        targets: &mut CellTargets,
        now: SystemTime,
    ) {
        resolve_names(self, interval, targets, now);
        let now_ms = milliseconds(now);
        let flushes = self.flushes;
        let mut find = |kind, cell| targets.find(kind, cell, &mut self.key_rules);
        interval.counters.drain(|cell, counter| {
            let found = find(MetricType::Counter, (cell, counter.hits));
            let Some(CellTarget { key, variant }) = found else { return };
            let entry = self.counters.sum(key, flushes, now_ms);
            entry.state.value += counter.sum;
            entry.hit(counter.hits);
            if let Some(variant) = variant.or(entry.linked) {
                let entry = self.variants.counters.sum(variant, flushes, now_ms);
                entry.state.value += counter.sum;
                entry.hit(counter.hits);
            }
        });
        let exact_max = self.settings.limits.exact_samples;
        interval.timers.drain(|cell, timer| {
            let found = find(MetricType::Timer, (cell, timer.hits));
            let Some(CellTarget { key, variant }) = found else { return };
            if let Some(variant) = variant.or(self.timers.entry(key).linked) {
                let mut copy = timer.clone();
                let variants = &mut self.variants.timers;
                let entry = variants.observe(variant, &mut copy, exact_max, flushes, now_ms);
                entry.hit(timer.hits);
            }
            let entry = self.timers.observe(key, timer, exact_max, flushes, now_ms);
            entry.hit(timer.hits);
        });
        let ttl = self.settings.aggregation.delete_idle_gauges;
        let ttl = ttl.then_some(self.settings.aggregation.gauge_ttl);
        interval.gauges.drain(|cell, gauge| {
            let found = find(MetricType::Gauge, (cell, gauge.hits));
            let Some(CellTarget { key, variant }) = found else { return };
            let entry = self.gauges.touch(key, ttl);
            entry.state.running.merge(gauge);
            entry.hit(gauge.hits);
            if let Some(variant) = variant.or(entry.linked) {
                let entry = self.variants.gauges.touch(variant, ttl);
                entry.state.running.merge(gauge);
                entry.hit(gauge.hits);
            }
        });
        let limits = &self.settings.limits;
        interval.sets.drain(|cell, set| {
            let found = find(MetricType::Set, (cell, set.hits));
            let Some(CellTarget { key, variant }) = found else { return };
            if let Some(variant) = variant.or(self.sets.entry(key).linked) {
                let mut copy = SetCell {
                    members: set.members.clone(),
                    estimate: set.estimate.clone(),
                    refused: set.refused,
                    hits: 0,
                };
                let (entry, _) = self.variants.sets.join(variant, &mut copy, limits);
                entry.hit(set.hits);
            }
            let (entry, refused) = self.sets.join(key, set, limits);
            entry.hit(set.hits);
            let line = entry.name.key().as_bytes();
            interval.rejects.add_many(refused, BadLine { line, reason: RejectReason::SetFull });
        });
        let conversion = KeyConversion::new(&self.settings, self.needs);
        let rules = &mut self.key_rules;
        self.unaggregated.add(interval, &self.settings, (conversion, rules), now);
        self.count(interval, now);
    }

    /// Adds the counts of the interval to the totals and to etsy's own counters, and retains its
    /// rejected lines.
    fn count(&mut self, interval: &ShardInterval, now: SystemTime) {
        let totals = &mut self.totals;
        totals.packets += interval.packets;
        totals.bytes += interval.bytes;
        totals.lines += interval.lines;
        totals.samples += interval.samples;
        totals.events += interval.events;
        totals.checks += interval.checks;
        totals.timestamps += interval.timestamps;
        totals.overflow_samples += interval.overflow_samples;
        totals.rejects.merge(&interval.rejects);
        self.overflow_keys += interval.overflow_keys;
        for recent in &interval.rejects.recent {
            if self.recent.len() == RECENT_MAX {
                self.recent.pop_front();
            }
            self.recent.push_back((now, recent.clone()));
        }
        if interval.packets > 0 {
            totals.last_packet = Some(now);
        }
        self.count_self_metrics(interval.packets, interval.lines, interval.rejects.total(), now);
    }

    pub(super) fn count_self_metrics(
        &mut self,
        packets: u64,
        lines: u64,
        bad: u64,
        now: SystemTime,
    ) {
        let now_ms = milliseconds(now);
        let own = [
            (Some(&self.self_names.bad), bad),
            (Some(&self.self_names.packets), packets),
            (self.self_names.lines.as_ref(), lines),
        ];
        for (name, count) in own {
            if let Some(name) = name {
                let index = self.counters.intern(name);
                let entry = self.counters.sum(index, self.flushes, now_ms);
                entry.state.value += count as f64;
                if let Some(variant) = entry.linked {
                    let entry = self.variants.counters.sum(variant, self.flushes, now_ms);
                    entry.state.value += count as f64;
                }
            }
        }
    }

    /// Returns the registry entries for a new cell, `None` if its samples are to be discarded, and
    /// the outcome of rules and limits.
    pub(super) fn cell_target(
        &mut self,
        name: NewName<'_>,
        now: SystemTime,
    ) -> (Option<CellTarget>, TraceNumber) {
        let conversion = KeyConversion::new(&self.settings, self.needs);
        let is_known = |key: &MetricName| match name.kind {
            MetricType::Counter => self.counters.contains(key),
            MetricType::Timer => self.timers.contains(key),
            MetricType::Gauge => self.gauges.contains(key),
            MetricType::Set => self.sets.contains(key),
        };
        let (keys, trace) = self.key_rules.keys(&name, conversion, is_known, now);
        let Some(KeyPair { key, sent }) = keys else { return (None, trace) };
        let variants = &mut self.variants;
        let target = match name.kind {
            MetricType::Counter => {
                cell_target(&mut self.counters, &mut variants.counters, &key, &sent)
            }
            MetricType::Timer => cell_target(&mut self.timers, &mut variants.timers, &key, &sent),
            MetricType::Gauge => cell_target(&mut self.gauges, &mut variants.gauges, &key, &sent),
            MetricType::Set => cell_target(&mut self.sets, &mut variants.sets, &key, &sent),
        };
        (Some(target), trace)
    }
}

impl MetricTable<CounterState> {
    /// Makes the counter at an index live and returns it. If it was not live, its total restarts,
    /// unless it was the last flush that deleted it.
    fn sum(&mut self, index: u32, flushes: u32, now_ms: u64) -> &mut MetricEntry<CounterState> {
        let (entry, activated) = self.activate(index);
        if activated {
            entry.state.value = 0.0;
            // If the last flush deleted the counter, and it was received again in this interval,
            // its total continues.
            if entry.last_flush == 0 || entry.last_flush != flushes {
                entry.state.total = 0.0;
                entry.state.since_ms = now_ms;
            }
        }
        entry
    }
}

impl MetricTable<TimerState> {
    /// Moves the samples of a cell to the timer at an index.
    fn observe(
        &mut self,
        index: u32,
        cell: &mut TimerCell,
        exact_max: usize,
        flushes: u32,
        now_ms: u64,
    ) -> &mut MetricEntry<TimerState> {
        let (entry, activated) = self.activate(index);
        if activated {
            entry.state.restart(entry.last_flush != 0 && entry.last_flush == flushes, now_ms);
        }
        entry.state.absorb(cell, exact_max);
        entry
    }
}

impl MetricTable<GaugeState> {
    /// Makes the gauge at an index live, sets its time to live, and returns it.
    fn touch(&mut self, index: u32, ttl: Option<u32>) -> &mut MetricEntry<GaugeState> {
        let (entry, activated) = self.activate(index);
        if activated {
            entry.state = GaugeState::default();
        }
        entry.state.ttl = ttl;
        entry
    }
}

impl MetricTable<SetState> {
    /// Adds the members of a cell to the set at an index; also returns how many samples were not
    /// added because the set was full.
    fn join(
        &mut self,
        index: u32,
        cell: &mut SetCell,
        limits: &StatsdLimits,
    ) -> (&mut MetricEntry<SetState>, u64) {
        let (entry, activated) = self.activate(index);
        if activated {
            entry.state = SetState::default();
        }
        let refused = entry.state.absorb(cell, limits);
        (entry, refused)
    }
}

impl<S> MetricEntry<S> {
    fn hit(&mut self, hits: u32) {
        self.hits = self.hits.saturating_add(hits);
        self.key_hits = self.key_hits.saturating_add(hits);
    }
}

fn milliseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
