//! All metrics of the server between two flushes, and the rules of what is kept after one.
//!
//! Shards are emptied into the registry whenever somebody wants to see the running interval, and at
//! every flush. It belongs to the flush thread; readers never wait for it.

use std::{
    collections::{HashSet, VecDeque},
    mem,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::{
    Counter, Gauge, OwnMetrics, Samples, Set, Snapshot, Timer, names,
    statistics::{PrefixSums, Rules},
    table::{Entry, Table},
};
use crate::{
    Name,
    aggregate::{
        GaugeCell, Interval, KINDS, Kind, NewName, Recent, Rejects, SharedShard, Sketched, Stamps,
        TimerCell,
    },
    backends::Needs,
    grammar::TimingUnit,
    ledger::Account,
    settings::{Aggregation, Dialect, Settings},
    sketch::Sketch,
};

/// So many bad lines can be looked at.
const RECENT_MAX: usize = 64;

/// Everything between two flushes.
#[derive(Debug)]
pub struct Registry {
    settings: Settings,
    rules: Rules,
    needs: Needs,
    stamps: Stamps,
    shards: Vec<Source>,
    pub(crate) counters: Table<CounterState>,
    pub(crate) timers: Table<TimerState>,
    pub(crate) gauges: Table<GaugeState>,
    pub(crate) sets: Table<SetState>,
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
    places: [Vec<u32>; KINDS],
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
    /// Samples that went to overflow keys.
    pub overflow_samples: u64,
    /// What could not be used, by reason.
    pub rejects: Rejects,
    /// When something last arrived.
    pub last_packet: Option<SystemTime>,
}

#[derive(Debug, Default)]
pub(crate) struct CounterState {
    pub(crate) value: f64,
    total: f64,
    since_ms: u64,
}

#[derive(Debug, Default)]
pub(crate) struct TimerState {
    pub(crate) samples: Vec<f64>,
    pub(crate) sketched: Option<Box<Sketched>>,
    count: f64,
    unit: TimingUnit,
    cumulative: Option<Arc<Sketch>>,
    count_total: f64,
    sum_total: f64,
    since_ms: u64,
}

#[derive(Debug, Default)]
pub(crate) struct GaugeState {
    /// The value at the end of the last interval, if there was one.
    before: Option<f64>,
    /// What happened since.
    running: GaugeCell,
    /// Flushes it survives without being touched, once gauges are being deleted.
    ttl: Option<u32>,
}

impl GaugeState {
    /// Its value now.
    pub(crate) fn value(&self) -> f64 {
        self.running.value(self.before)
    }
}

#[derive(Debug, Default)]
pub(crate) struct SetState {
    pub(crate) members: hashbrown::HashSet<Box<[u8]>>,
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
            rules: Rules::new(&settings.aggregation),
            own: Own::new(settings),
            settings: settings.clone(),
            needs,
            stamps: Stamps::default(),
            shards: Vec::new(),
            counters: Table::default(),
            timers: Table::default(),
            gauges: Table::default(),
            sets: Table::default(),
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
        self.rules = Rules::new(aggregation);
        self.own = Own::new(&self.settings);
        self.count_own(0, 0, 0, now);
        if !aggregation.delete_idle_gauges {
            self.gauges.iter_mut().for_each(|gauge| gauge.state.ttl = None);
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
            self.counters.compact();
            self.timers.compact();
            self.gauges.compact();
            self.sets.compact();
        }
    }

    /// Ends the interval: collects, calculates, and keeps what the rules for idle metrics say.
    pub fn flush(&mut self, time: FlushTime, account: Account) -> Snapshot {
        self.collect(time.now);
        let started = std::time::Instant::now();
        self.flushes += 1;
        let timestamp = rounded_seconds(time.now);
        self.note_lag(timestamp);
        let mut snapshot = Snapshot {
            timestamp,
            time: time.now,
            interval: self.settings.flush_interval,
            counters: self.counters(),
            timers: self.timers(),
            gauges: self.gauges(),
            sets: self.sets(),
            own: OwnMetrics::default(),
            percentiles: self.settings.aggregation.percentiles.as_slice().into(),
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
            account,
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

    /// The busiest keys of the running interval, busiest first.
    #[must_use]
    pub fn top(&self, count: usize) -> Vec<(Kind, Name, u64)> {
        self.ranked(count, |hits, _| hits)
    }

    /// Keys with the number of their samples since the last call, busiest first: `percent` of them,
    /// rounded up in etsy's dialect and down in the Perl server's.
    pub fn key_flush(&mut self, percent: f64) -> Vec<(Name, u64)> {
        let ranked = self.ranked(usize::MAX, |_, key_hits| key_hits);
        self.counters.iter_mut().for_each(|entry| entry.key_hits = 0);
        self.timers.iter_mut().for_each(|entry| entry.key_hits = 0);
        self.gauges.iter_mut().for_each(|entry| entry.key_hits = 0);
        self.sets.iter_mut().for_each(|entry| entry.key_hits = 0);
        let share = ranked.len() as f64 * percent / 100.0;
        let shown = match self.settings.dialect {
            Dialect::Etsy => share.ceil(),
            Dialect::Perl => share.floor(),
        };
        ranked.into_iter().take(shown as usize).map(|(_, name, hits)| (name, hits)).collect()
    }

    fn ranked(&self, count: usize, hits: impl Fn(u64, u64) -> u64) -> Vec<(Kind, Name, u64)> {
        fn of<S: Default>(
            kind: Kind,
            table: &Table<S>,
            hits: impl Fn(u64, u64) -> u64,
        ) -> impl Iterator<Item = (Kind, &Name, u64)> {
            let one = move |entry: &Entry<S>| hits(entry.hits, entry.key_hits);
            table.iter().map(move |entry| (kind, &entry.name, one(entry))).filter(|row| row.2 > 0)
        }
        let mut rows: Vec<_> = of(Kind::Counter, &self.counters, &hits)
            .chain(of(Kind::Timer, &self.timers, &hits))
            .chain(of(Kind::Gauge, &self.gauges, &hits))
            .chain(of(Kind::Set, &self.sets, &hits))
            .collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.2));
        rows.into_iter().take(count).map(|(kind, name, hits)| (kind, name.clone(), hits)).collect()
    }

    fn absorb(&mut self, interval: &mut Interval, places: &mut [Vec<u32>; KINDS], now: SystemTime) {
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

    fn count_own(&mut self, packets: u64, lines: u64, bad: u64, now: SystemTime) {
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

    /// Etsy's `timestamp_lag`: how far this timestamp is off the last one plus the interval.
    fn note_lag(&mut self, timestamp: i64) {
        let last = self.last_timestamp.replace(timestamp);
        let (Some(last), Some(name)) = (last, &self.own.lag) else { return };
        let place = self.gauges.place(name);
        let seconds = self.settings.flush_interval.as_secs_f64();
        let (entry, _) = self.gauges.wake(place);
        entry.state = GaugeState {
            before: Some((timestamp - last) as f64 - seconds),
            ..GaugeState::default()
        };
    }

    fn counters(&mut self) -> Vec<Counter> {
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

    fn timers(&mut self) -> Vec<Timer> {
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

    fn gauges(&mut self) -> Vec<Gauge> {
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

    fn sets(&mut self) -> Vec<Set> {
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
            ("flush_lag_ms", (lag.as_secs_f64() * 1000.0).round()),
        ]
    }

    /// What etsy's server does after a flush: sums begin again, idle metrics stay or go.
    fn clear(&mut self) {
        let rules = &self.settings.aggregation;
        self.overflow_keys = 0;
        self.counters.retain(|entry| {
            entry.state.value = 0.0;
            entry.hits = 0;
            !rules.delete_idle_counters || is_own(entry.name.key())
        });
        self.timers.retain(|entry| {
            entry.state.clear();
            entry.hits = 0;
            !rules.delete_idle_timers
        });
        self.sets.retain(|entry| {
            entry.state.members = hashbrown::HashSet::default();
            entry.hits = 0;
            !rules.delete_idle_sets
        });
        self.gauges.retain(|entry| {
            entry.hits = 0;
            let ttl = entry.state.ttl.map(|ttl| ttl.saturating_sub(1));
            entry.state.ttl = ttl;
            !rules.delete_idle_gauges || ttl != Some(0)
        });
        let dead =
            self.counters.dead() + self.timers.dead() + self.gauges.dead() + self.sets.dead();
        self.forget = dead > self.keys() + 4096;
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

impl TimerState {
    /// Begins again after having been deleted; goes on with its totals if that was just now.
    fn restart(&mut self, goes_on: bool, now_ms: u64) {
        self.clear();
        if !goes_on {
            *self = Self { since_ms: now_ms, ..Self::default() };
        }
    }

    fn clear(&mut self) {
        // Memory of a busy interval is given back when it was a rare one.
        let kept = 4 * self.samples.len().max(16);
        self.samples.clear();
        self.samples.shrink_to(kept);
        self.sketched = None;
        self.count = 0.0;
    }

    fn absorb(&mut self, cell: &mut TimerCell, exact_max: usize) {
        self.count += cell.count;
        if self.samples.is_empty() && self.sketched.is_none() {
            self.unit = cell.unit;
            mem::swap(&mut self.samples, &mut cell.samples);
            self.sketched = cell.sketched.take();
            return;
        }
        let exact = self.sketched.is_none() && cell.sketched.is_none();
        if exact && self.samples.len() + cell.samples.len() <= exact_max {
            return self.samples.append(&mut cell.samples);
        }
        let sketched = self.sketched.get_or_insert_default();
        if let Some(other) = &cell.sketched {
            sketched.merge(other);
        }
        for value in self.samples.drain(..).chain(cell.samples.drain(..)) {
            sketched.add(value, self.unit);
        }
    }

    /// Adds the interval to the distribution since the beginning. Samples do not carry their rates
    /// this far: each gets its share of the scaled-up count.
    fn distribute(&mut self) {
        let cumulative = Arc::make_mut(self.cumulative.get_or_insert_default());
        if let Some(sketched) = &self.sketched {
            let weight = self.count / (sketched.samples.max(1)) as f64;
            return cumulative.merge_weighted(&sketched.sketch, weight);
        }
        let weight = self.count / self.samples.len().max(1) as f64;
        for value in &self.samples {
            cumulative.add(value * self.unit.base(), weight);
        }
    }
}

impl Own {
    fn new(settings: &Settings) -> Self {
        let name = |name: &str| match settings.aggregation.prefix.as_str() {
            "" => Name::new(name),
            prefix => Name::new(&format!("{prefix}.{name}")),
        };
        let etsy = settings.dialect == Dialect::Etsy;
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

fn milliseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn time(ms: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(ms)
}

/// What a management command deleted, in the order of its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Deleted {
    /// This key is gone.
    Key(Name),
    /// Nothing was called that.
    NotFound(String),
}

impl<S: Default> Table<S> {
    /// Deletes live metrics by key, with `folders` also those below `folder.*`, in the order they were
    /// first seen.
    pub(crate) fn delete(&mut self, patterns: &[String], folders: bool) -> Vec<Deleted> {
        let mut deleted = Vec::new();
        for pattern in patterns {
            let folder = pattern.strip_suffix(".*").filter(|_| folders);
            let found: HashSet<Name> = match folder {
                Some(front) => {
                    let prefix = format!("{front}.");
                    let names = self.iter().map(|entry| &entry.name);
                    names.filter(|name| name.key().starts_with(&prefix)).cloned().collect()
                }
                None => self.find(pattern).map(|_| Name::new(pattern)).into_iter().collect(),
            };
            if found.is_empty() {
                deleted.push(Deleted::NotFound(pattern.clone()));
                continue;
            }
            self.retain(|entry| {
                let keep = !found.contains(&entry.name);
                if !keep {
                    entry.last_flush = 0;
                    deleted.push(Deleted::Key(entry.name.clone()));
                }
                keep
            });
        }
        deleted
    }
}
