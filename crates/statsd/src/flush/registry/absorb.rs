//! From a shard's interval into the registry.

use std::{
    mem,
    time::{SystemTime, UNIX_EPOCH},
};

use super::{CounterState, GaugeState, RECENT_MAX, Registry};
use crate::{
    aggregate::{Interval, KINDS, Kind, NewName},
    flush::{
        names,
        table::{Entry, Table},
    },
};

impl Registry {
    /// Adds what the interval holds. `places` says where each of the shard's cells is kept.
    pub(super) fn absorb(
        &mut self,
        interval: &mut Interval,
        places: &mut [Vec<u32>; KINDS],
        now: SystemTime,
    ) {
        for name in interval.names.iter() {
            let place = self.place(name);
            places[name.kind as usize].push(place);
        }
        let now_ms = milliseconds(now);
        let flushes = self.flushes;
        let [counters, timers, gauges, sets] = places;
        interval.counters.drain(|cell, counter| {
            let entry = self.counters.sum(counters[cell], flushes, now_ms);
            entry.state.value += counter.sum;
            entry.hit(counter.hits);
        });
        interval.timers.drain(|cell, timer| {
            let (entry, woken) = self.timers.wake(timers[cell]);
            if woken {
                entry.state.restart(entry.last_flush != 0 && entry.last_flush == flushes, now_ms);
            }
            entry.state.absorb(timer, self.settings.limits.exact_samples);
            entry.hit(timer.hits);
        });
        let ttl = self.settings.aggregation.delete_idle_gauges;
        let ttl = ttl.then_some(self.settings.aggregation.gauge_ttl);
        interval.gauges.drain(|cell, gauge| {
            let (entry, woken) = self.gauges.wake(gauges[cell]);
            if woken {
                entry.state = GaugeState::default();
            }
            entry.state.running.merge(gauge);
            entry.state.ttl = ttl;
            entry.hit(gauge.hits);
        });
        let members_max = self.settings.limits.set_members;
        interval.sets.drain(|cell, set| {
            let (entry, woken) = self.sets.wake(sets[cell]);
            if woken {
                entry.state.members.clear();
            }
            let room = members_max.saturating_sub(entry.state.members.len());
            match entry.state.members.is_empty() {
                true => entry.state.members = mem::take(&mut set.members),
                false => entry.state.members.extend(set.members.drain().take(room)),
            }
            entry.hit(set.hits);
        });
        self.count(interval, now);
    }

    /// Adds an interval's totals to ours.
    fn count(&mut self, interval: &Interval, now: SystemTime) {
        let totals = &mut self.totals;
        totals.packets += interval.packets;
        totals.bytes += interval.bytes;
        totals.lines += interval.lines;
        totals.samples += interval.samples;
        totals.events += interval.events;
        totals.checks += interval.checks;
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
        self.count_own(interval.packets, interval.lines, interval.rejects.total(), now);
    }

    pub(super) fn count_own(&mut self, packets: u64, lines: u64, bad: u64, now: SystemTime) {
        let now_ms = milliseconds(now);
        let own = [
            (Some(&self.own.bad), bad),
            (Some(&self.own.packets), packets),
            (self.own.lines.as_ref(), lines),
        ];
        for (name, count) in own {
            if let Some(name) = name {
                let place = self.counters.place(name);
                self.counters.sum(place, self.flushes, now_ms).state.value += count as f64;
            }
        }
    }

    fn place(&mut self, name: NewName<'_>) -> u32 {
        let sanitise = self.settings.aggregation.sanitise && !name.overflow;
        let key = names::canonical(name.name, name.tags, self.settings.dialect, sanitise);
        match name.kind {
            Kind::Counter => self.counters.place(&key),
            Kind::Timer => self.timers.place(&key),
            Kind::Gauge => self.gauges.place(&key),
            Kind::Set => self.sets.place(&key),
        }
    }
}

impl Table<CounterState> {
    /// The counter at a place, awake.
    fn sum(&mut self, place: u32, flushes: u32, now_ms: u64) -> &mut Entry<CounterState> {
        let (entry, woken) = self.wake(place);
        if woken {
            entry.state.value = 0.0;
            // A counter that is deleted with every flush and comes back at once goes on counting.
            if entry.last_flush == 0 || entry.last_flush != flushes {
                entry.state.total = 0.0;
                entry.state.since_ms = now_ms;
            }
        }
        entry
    }
}

impl<S> Entry<S> {
    fn hit(&mut self, hits: u32) {
        self.hits += u64::from(hits);
        self.key_hits += u64::from(hits);
    }
}

fn milliseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
