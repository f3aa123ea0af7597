//! Builds the sorted lists of a snapshot and calculates the values of each metric.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::{CounterState, GaugeState, KeyRegistry, SetState, TimerState};
use crate::{
    aggregate::GaugeCell,
    flush::{
        CounterMetric, GaugeMetric, SetMetric, TimerMetric, TimerSamples,
        statistics::{PrefixSums, TimerRules},
        table::{MetricEntry, MetricTable},
    },
};

/// The rules and buffers for the timers of one flush.
struct Calculator<'r> {
    rules: &'r TimerRules,
    scratch: &'r mut PrefixSums,
    seconds: f64,
    distributions: bool,
}

impl KeyRegistry {
    /// Returns all counters, and the variants of merged ones.
    pub(super) fn counters(&mut self) -> (Vec<CounterMetric>, Vec<CounterMetric>) {
        let list = |table: &mut _| counters(table, self.needs.idle_counters);
        (list(&mut self.counters), list(&mut self.variants.counters))
    }

    /// Returns all timers, and the variants of merged ones.
    pub(super) fn timers(&mut self) -> (Vec<TimerMetric>, Vec<TimerMetric>) {
        let mut calculator = Calculator {
            rules: &self.calculation.rules,
            scratch: &mut self.scratch,
            seconds: self.settings.flush_interval.as_secs_f64(),
            distributions: self.needs.distributions,
        };
        let mut list = |table: &mut _| timers(table, &mut calculator);
        (list(&mut self.timers), list(&mut self.variants.timers))
    }

    /// Returns all gauges, and the variants of merged ones.
    pub(super) fn gauges(&mut self) -> (Vec<GaugeMetric>, Vec<GaugeMetric>) {
        (gauges(&mut self.gauges), gauges(&mut self.variants.gauges))
    }

    /// Returns all sets, and the variants of merged ones.
    pub(super) fn sets(&mut self) -> (Vec<SetMetric>, Vec<SetMetric>) {
        (sets(&mut self.sets), sets(&mut self.variants.sets))
    }
}

/// Returns the counters, with or without idle ones.
fn counters(table: &mut MetricTable<CounterState>, with_idle: bool) -> Vec<CounterMetric> {
    let is_included = |entry: &MetricEntry<CounterState>| with_idle || !entry.is_idle();
    let included = table.iter().filter(|entry| is_included(entry)).count();
    let mut counters = Vec::with_capacity(included);
    table.for_each_sorted(|entry| {
        let is_included = is_included(entry);
        if !is_included {
            return;
        }
        entry.state.total += entry.state.value;
        counters.push(CounterMetric {
            name: entry.name.clone(),
            merged: entry.merged,
            value: entry.state.value,
            total: entry.state.total,
            since: compact_time(entry.state.since_ms),
            idle: entry.is_idle(),
        });
    });
    counters
}

fn timers(
    table: &mut MetricTable<TimerState>,
    calculator: &mut Calculator<'_>,
) -> Vec<TimerMetric> {
    let Calculator { rules, scratch, seconds, distributions } = calculator;
    let mut timers = Vec::with_capacity(table.len());
    table.for_each_sorted(|entry| {
        let key = entry.name.key();
        let state = &mut entry.state;
        let weights = state.weight_totals();
        let (fields, summary) = match &state.sketched {
            Some(samples) => rules.sketched(key, samples, state.unit, weights, *seconds),
            None => rules.exact(key, &mut state.samples, weights, *seconds, scratch),
        };
        state.count_total += weights.count;
        state.sum_total += summary.as_ref().map_or(0.0, |summary| summary.sum);
        if *distributions {
            state.distribute();
        }
        timers.push(TimerMetric {
            name: entry.name.clone(),
            merged: entry.merged,
            unit: state.unit,
            fields,
            summary,
            samples: match &state.sketched {
                Some(samples) => TimerSamples::Sketched(Arc::new(samples.sketch.clone())),
                None => TimerSamples::Exact(state.samples.as_slice().into()),
            },
            cumulative: state.cumulative.clone(),
            count_total: state.count_total,
            sum_total: state.sum_total,
            since: time(state.since_ms),
        });
    });
    timers
}

fn gauges(table: &mut MetricTable<GaugeState>) -> Vec<GaugeMetric> {
    let mut gauges = Vec::with_capacity(table.len());
    table.for_each_sorted(|entry| {
        let value = entry.state.value();
        entry.state.before = Some(value);
        entry.state.running = GaugeCell::default();
        gauges.push(GaugeMetric {
            name: entry.name.clone(),
            merged: entry.merged,
            value,
            idle: entry.is_idle(),
        });
    });
    gauges
}

fn sets(table: &mut MetricTable<SetState>) -> Vec<SetMetric> {
    let mut sets = Vec::with_capacity(table.len());
    table.for_each_sorted(|entry| {
        let members = &entry.state.members;
        let text = |member: &[u8]| Box::<str>::from(String::from_utf8_lossy(member));
        let mut members: Vec<Box<str>> = members.iter().map(|member| text(member)).collect();
        members.sort_unstable();
        sets.push(SetMetric {
            name: entry.name.clone(),
            merged: entry.merged,
            count: match &entry.state.estimate {
                Some(estimate) => estimate.count().round() as u64,
                None => members.len() as u64,
            },
            members: members.into(),
            estimate: entry.state.estimate.clone().map(Arc::from),
        });
    });
    sets
}

fn compact_time(ms: u64) -> (u32, u16) {
    (u32::try_from(ms / 1000).unwrap_or(u32::MAX), (ms % 1000) as u16)
}

fn time(ms: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(ms)
}
