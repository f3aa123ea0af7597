//! From a shard's interval into the registry.

use std::{
    mem,
    time::{SystemTime, UNIX_EPOCH},
};

use super::{
    CounterState, GaugeState, RECENT_MAX, Registry, SetState, TimerState,
    variants::{Destination, destination},
};
use crate::{
    aggregate::{Interval, KINDS, Kind, NewName, SetCell, TimerCell},
    flush::{
        names,
        table::{Entry, Table},
    },
    grammar::{BadLine, Reason},
};

impl Registry {
    /// Adds what the interval holds. `places` says where each of the shard's cells is kept.
    pub(super) fn absorb(
        &mut self,
        interval: &mut Interval,
        places: &mut [Vec<Destination>; KINDS],
        now: SystemTime,
    ) {
        for name in interval.names.iter() {
            let place = self.destination(name);
            places[name.kind as usize].push(place);
        }
        let now_ms = milliseconds(now);
        let flushes = self.flushes;
        let [counters, timers, gauges, sets] = places;
        interval.counters.drain(|cell, counter| {
            let Destination { key, variant } = counters[cell];
            let entry = self.counters.sum(key, flushes, now_ms);
            entry.state.value += counter.sum;
            entry.hit(counter.hits);
            if let Some(variant) = variant.or(entry.other) {
                let entry = self.variants.counters.sum(variant, flushes, now_ms);
                entry.state.value += counter.sum;
            }
        });
        let exact_max = self.settings.limits.exact_samples;
        interval.timers.drain(|cell, timer| {
            let Destination { key, variant } = timers[cell];
            if let Some(variant) = variant.or(self.timers.entry(key).other) {
                let mut copy = timer.clone();
                self.variants.timers.observe(variant, &mut copy, exact_max, flushes, now_ms);
            }
            let entry = self.timers.observe(key, timer, exact_max, flushes, now_ms);
            entry.hit(timer.hits);
        });
        let ttl = self.settings.aggregation.delete_idle_gauges;
        let ttl = ttl.then_some(self.settings.aggregation.gauge_ttl);
        interval.gauges.drain(|cell, gauge| {
            let Destination { key, variant } = gauges[cell];
            let entry = self.gauges.touch(key, ttl);
            entry.state.running.merge(gauge);
            entry.hit(gauge.hits);
            if let Some(variant) = variant.or(entry.other) {
                self.variants.gauges.touch(variant, ttl).state.running.merge(gauge);
            }
        });
        let members_max = self.settings.limits.set_members;
        interval.sets.drain(|cell, set| {
            let Destination { key, variant } = sets[cell];
            if let Some(variant) = variant.or(self.sets.entry(key).other) {
                let mut copy =
                    SetCell { members: set.members.clone(), refused: set.refused, hits: 0 };
                self.variants.sets.join(variant, &mut copy, members_max);
            }
            let (entry, refused) = self.sets.join(key, set, members_max);
            entry.hit(set.hits);
            let line = entry.name.key().as_bytes();
            interval.rejects.add_many(refused, BadLine { line, reason: Reason::SetFull });
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
                let entry = self.counters.sum(place, self.flushes, now_ms);
                entry.state.value += count as f64;
                if let Some(variant) = entry.other {
                    let entry = self.variants.counters.sum(variant, self.flushes, now_ms);
                    entry.state.value += count as f64;
                }
            }
        }
    }

    /// Where the values of a new cell go.
    fn destination(&mut self, name: NewName<'_>) -> Destination {
        let sanitise = self.settings.aggregation.sanitise && !name.overflow;
        let dialect = self.settings.dialect;
        let key = names::canonical(name.name, name.tags, dialect, sanitise);
        // Who needs no names as they were sent has one entry for all spellings.
        let sent = match self.needs.names_as_sent && !name.overflow {
            true => names::as_sent(name.name, name.tags, dialect),
            false => key.clone(),
        };
        let variants = &mut self.variants;
        match name.kind {
            Kind::Counter => destination(&mut self.counters, &mut variants.counters, &key, &sent),
            Kind::Timer => destination(&mut self.timers, &mut variants.timers, &key, &sent),
            Kind::Gauge => destination(&mut self.gauges, &mut variants.gauges, &key, &sent),
            Kind::Set => destination(&mut self.sets, &mut variants.sets, &key, &sent),
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

impl Table<TimerState> {
    /// Adds a cell's samples to the timer at a place; the cell is left empty.
    fn observe(
        &mut self,
        place: u32,
        cell: &mut TimerCell,
        exact_max: usize,
        flushes: u32,
        now_ms: u64,
    ) -> &mut Entry<TimerState> {
        let (entry, woken) = self.wake(place);
        if woken {
            entry.state.restart(entry.last_flush != 0 && entry.last_flush == flushes, now_ms);
        }
        entry.state.absorb(cell, exact_max);
        entry
    }
}

impl Table<GaugeState> {
    /// The gauge at a place, awake, and with a new lease of life.
    fn touch(&mut self, place: u32, ttl: Option<u32>) -> &mut Entry<GaugeState> {
        let (entry, woken) = self.wake(place);
        if woken {
            entry.state = GaugeState::default();
        }
        entry.state.ttl = ttl;
        entry
    }
}

impl Table<SetState> {
    /// Adds a cell's members to the set at a place; gives also how many samples did not fit.
    fn join(
        &mut self,
        place: u32,
        cell: &mut SetCell,
        members_max: usize,
    ) -> (&mut Entry<SetState>, u64) {
        let (entry, woken) = self.wake(place);
        if woken {
            entry.state = SetState::default();
        }
        let mut refused = cell.refused;
        let members = &mut entry.state.members;
        match members.is_empty() {
            true => *members = mem::take(&mut cell.members),
            false => {
                for member in cell.members.drain() {
                    // Several shards may have a part of the limit each.
                    match members.len() < members_max || members.contains(&member) {
                        true => drop(members.insert(member)),
                        false => refused += 1,
                    }
                }
            }
        }
        entry.state.refused += refused;
        (entry, refused)
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
