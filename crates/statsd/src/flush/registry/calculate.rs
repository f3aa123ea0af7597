//! The lists of a snapshot, sorted, with what is calculated of each metric.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::Registry;
use crate::{
    aggregate::GaugeCell,
    flush::{Counter, Gauge, Samples, Set, Timer},
};

impl Registry {
    pub(super) fn counters(&mut self) -> Vec<Counter> {
        let seconds = self.settings.flush_interval.as_secs_f64();
        let mut counters = Vec::with_capacity(self.counters.len());
        self.counters.for_each_sorted(|entry| {
            entry.last_flush = self.flushes;
            entry.state.total += entry.state.value;
            counters.push(Counter {
                name: entry.name.clone(),
                value: entry.state.value,
                rate: entry.state.value / seconds,
                total: entry.state.total,
                since: time(entry.state.since_ms),
            });
        });
        counters
    }

    pub(super) fn timers(&mut self) -> Vec<Timer> {
        let seconds = self.settings.flush_interval.as_secs_f64();
        let mut timers = Vec::with_capacity(self.timers.len());
        self.timers.for_each_sorted(|entry| {
            entry.last_flush = self.flushes;
            let key = entry.name.key();
            let state = &mut entry.state;
            let (fields, summary) = match &state.sketched {
                Some(samples) => {
                    self.rules.sketched(key, samples, state.unit, state.count, seconds)
                }
                None => self.rules.exact(
                    key,
                    &mut state.samples,
                    state.count,
                    seconds,
                    &mut self.scratch,
                ),
            };
            state.count_total += state.count;
            state.sum_total += summary.as_ref().map_or(0.0, |summary| summary.sum);
            if self.needs.distributions {
                state.distribute();
            }
            timers.push(Timer {
                name: entry.name.clone(),
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

    pub(super) fn gauges(&mut self) -> Vec<Gauge> {
        let mut gauges = Vec::with_capacity(self.gauges.len());
        self.gauges.for_each_sorted(|entry| {
            entry.last_flush = self.flushes;
            let value = entry.state.value();
            entry.state.before = Some(value);
            entry.state.running = GaugeCell::default();
            gauges.push(Gauge { name: entry.name.clone(), value });
        });
        gauges
    }

    pub(super) fn sets(&mut self) -> Vec<Set> {
        let mut sets = Vec::with_capacity(self.sets.len());
        self.sets.for_each_sorted(|entry| {
            entry.last_flush = self.flushes;
            let members = &entry.state.members;
            let text = |member: &[u8]| Box::<str>::from(String::from_utf8_lossy(member));
            let mut members: Vec<Box<str>> = members.iter().map(|member| text(member)).collect();
            members.sort_unstable();
            sets.push(Set {
                name: entry.name.clone(),
                count: members.len() as u64,
                members: members.into(),
            });
        });
        sets
    }
}

fn time(ms: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(ms)
}
