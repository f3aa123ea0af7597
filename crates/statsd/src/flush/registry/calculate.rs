//! The lists of a snapshot, sorted, with what is calculated of each metric.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::{CounterState, GaugeState, Registry, SetState, TimerState};
use crate::{
    aggregate::GaugeCell,
    flush::{
        Counter, Gauge, Samples, Set, Timer,
        statistics::{PrefixSums, Rules},
        table::Table,
    },
};

/// What the timers of one flush are calculated with.
struct Calculator<'r> {
    rules: &'r Rules,
    scratch: &'r mut PrefixSums,
    seconds: f64,
    distributions: bool,
}

impl Registry {
    /// The counters, and the variants of merged ones.
    pub(super) fn counters(&mut self) -> (Vec<Counter>, Vec<Counter>) {
        let (flush, seconds) = (self.flushes, self.settings.flush_interval.as_secs_f64());
        let of = |table: &mut _| counters(table, flush, seconds);
        (of(&mut self.counters), of(&mut self.variants.counters))
    }

    /// The timers, and the variants of merged ones.
    pub(super) fn timers(&mut self) -> (Vec<Timer>, Vec<Timer>) {
        let mut calculator = Calculator {
            rules: &self.calculation.rules,
            scratch: &mut self.scratch,
            seconds: self.settings.flush_interval.as_secs_f64(),
            distributions: self.needs.distributions,
        };
        let mut of = |table: &mut _| timers(table, self.flushes, &mut calculator);
        (of(&mut self.timers), of(&mut self.variants.timers))
    }

    /// The gauges, and the variants of merged ones.
    pub(super) fn gauges(&mut self) -> (Vec<Gauge>, Vec<Gauge>) {
        let of = |table: &mut _| gauges(table, self.flushes);
        (of(&mut self.gauges), of(&mut self.variants.gauges))
    }

    /// The sets, and the variants of merged ones.
    pub(super) fn sets(&mut self) -> (Vec<Set>, Vec<Set>) {
        let of = |table: &mut _| sets(table, self.flushes);
        (of(&mut self.sets), of(&mut self.variants.sets))
    }
}

fn counters(table: &mut Table<CounterState>, flush: u32, seconds: f64) -> Vec<Counter> {
    let mut counters = Vec::with_capacity(table.len());
    table.for_each_sorted(|entry| {
        entry.last_flush = flush;
        entry.state.total += entry.state.value;
        counters.push(Counter {
            name: entry.name.clone(),
            merged: entry.merged,
            value: entry.state.value,
            rate: entry.state.value / seconds,
            total: entry.state.total,
            since: time(entry.state.since_ms),
        });
    });
    counters
}

fn timers(
    table: &mut Table<TimerState>,
    flush: u32,
    calculator: &mut Calculator<'_>,
) -> Vec<Timer> {
    let Calculator { rules, scratch, seconds, distributions } = calculator;
    let mut timers = Vec::with_capacity(table.len());
    table.for_each_sorted(|entry| {
        entry.last_flush = flush;
        let key = entry.name.key();
        let state = &mut entry.state;
        let (fields, summary) = match &state.sketched {
            Some(samples) => rules.sketched(key, samples, state.unit, state.count, *seconds),
            None => rules.exact(key, &mut state.samples, state.count, *seconds, scratch),
        };
        state.count_total += state.count;
        state.sum_total += summary.as_ref().map_or(0.0, |summary| summary.sum);
        if *distributions {
            state.distribute();
        }
        timers.push(Timer {
            name: entry.name.clone(),
            merged: entry.merged,
            unit: state.unit,
            fields,
            summary,
            samples: match &state.sketched {
                Some(samples) => Samples::Sketched(Arc::new(samples.sketch.clone())),
                None => Samples::Exact(state.samples.as_slice().into()),
            },
            cumulative: state.cumulative.clone(),
            count_total: state.count_total,
            sum_total: state.sum_total,
            since: time(state.since_ms),
        });
    });
    timers
}

fn gauges(table: &mut Table<GaugeState>, flush: u32) -> Vec<Gauge> {
    let mut gauges = Vec::with_capacity(table.len());
    table.for_each_sorted(|entry| {
        entry.last_flush = flush;
        let value = entry.state.value();
        entry.state.before = Some(value);
        entry.state.running = GaugeCell::default();
        gauges.push(Gauge { name: entry.name.clone(), merged: entry.merged, value });
    });
    gauges
}

fn sets(table: &mut Table<SetState>, flush: u32) -> Vec<Set> {
    let mut sets = Vec::with_capacity(table.len());
    table.for_each_sorted(|entry| {
        entry.last_flush = flush;
        let members = &entry.state.members;
        let text = |member: &[u8]| Box::<str>::from(String::from_utf8_lossy(member));
        let mut members: Vec<Box<str>> = members.iter().map(|member| text(member)).collect();
        members.sort_unstable();
        sets.push(Set {
            name: entry.name.clone(),
            merged: entry.merged,
            count: members.len() as u64,
            members: members.into(),
        });
    });
    sets
}

fn time(ms: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(ms)
}
