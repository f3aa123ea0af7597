//! The hot path: a packet's samples into cells.

use std::mem;

use super::{Interval, Kind, NewName, keys::KINDS, keys::Keys};
use crate::{
    grammar::{self, BadLine, Reason, Sample, Sink, Value},
    settings::{Dialect, Limits, Settings},
};

/// Adds up what one reader receives.
#[derive(Debug)]
pub struct Shard {
    dialect: Dialect,
    limits: Limits,
    /// The name, without kind, under which samples of too many keys are added up.
    overflow_name: Box<[u8]>,
    keys: Keys,
    /// Cells given out, by kind.
    cells: [u32; KINDS],
    /// Cells of the overflow name, by kind, once it is needed.
    overflow: [Option<usize>; KINDS],
    seen: OverflowKeys,
    stamp: u64,
    interval: Interval,
}

impl Shard {
    /// An empty one.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        Self {
            dialect: settings.dialect,
            limits: settings.limits.clone(),
            overflow_name: format!("{}.overflow", settings.aggregation.prefix).into_bytes().into(),
            keys: Keys::default(),
            cells: [0; KINDS],
            overflow: [None; KINDS],
            seen: OverflowKeys::default(),
            stamp: 0,
            interval: Interval::default(),
        }
    }

    /// Parses one packet and adds up what it says. Never fails: bad lines are counted.
    #[inline]
    pub fn apply_packet(&mut self, packet: &[u8]) {
        self.interval.packets += 1;
        self.interval.bytes += packet.len() as u64;
        grammar::packet(packet, self.dialect, self);
    }

    /// Adds up one sample.
    #[inline]
    pub fn apply(&mut self, sample: &Sample<'_>) {
        self.interval.samples += 1;
        let kind = kind(sample.value);
        let known = self.keys.find(sample.name, sample.tags);
        let cell = known.and_then(|slot| self.keys.cell(slot, kind));
        let cell = match cell {
            Some(cell) => cell,
            None => match self.new_cell(sample, known, kind) {
                Ok(cell) => cell,
                Err(reason) => {
                    let line = if sample.name.is_empty() { b":" } else { sample.name };
                    return self.bad(BadLine { line, reason });
                }
            },
        };
        self.add(cell, sample.value, sample.rate);
    }

    /// Says that what comes now arrived at `stamp`, no earlier than what came before.
    pub fn begin_batch(&mut self, stamp: u64) {
        self.stamp = stamp;
    }

    /// Takes out what was added up, leaving `spare` (emptied by [`Interval::clear`]) in its place.
    #[must_use]
    pub fn swap(&mut self, spare: Interval) -> Interval {
        self.interval.keys = self.keys.len();
        self.interval.overflow_keys = self.seen.take();
        mem::replace(&mut self.interval, spare)
    }

    /// Takes out what was added up, and forgets all keys: cells are numbered from 0 again. For when
    /// most keys are no longer sent.
    #[must_use]
    pub fn swap_and_forget(&mut self, spare: Interval) -> Interval {
        let interval = self.swap(spare);
        self.keys = Keys::default();
        self.cells = [0; KINDS];
        self.overflow = [None; KINDS];
        interval
    }

    #[inline]
    fn add(&mut self, cell: usize, value: Value<'_>, rate: f64) {
        let interval = &mut self.interval;
        match value {
            Value::Count(value) => {
                // The order of etsy's operations: it decides the last bit.
                let value = if rate == 1.0 { value } else { value * (1.0 / rate) };
                interval.counters.touch(cell).sum += value;
            }
            Value::Timing(value, unit) => {
                let timer = interval.timers.touch(cell);
                timer.count += 1.0 / rate;
                timer.add(value, unit, &self.limits, &mut interval.exact_samples);
            }
            Value::Set(value) => interval.gauges.touch(cell).set(self.stamp, value),
            Value::Change(by) => interval.gauges.touch(cell).change(self.stamp, by),
            Value::Member(member) => interval.sets.touch(cell).add(member, &self.limits),
        }
    }

    /// A cell for a key that has none of that kind, or the overflow's.
    #[cold]
    fn new_cell(
        &mut self,
        sample: &Sample<'_>,
        known: Option<usize>,
        kind: Kind,
    ) -> Result<usize, Reason> {
        let (name, tags) = (sample.name, sample.tags);
        // Tested here, where only keys without a cell come by: such a key never gets one.
        if matches!(name, [] | [b';', ..]) {
            return Err(Reason::NoName);
        }
        if name.len() + tags.len() > self.limits.key_bytes {
            return Err(Reason::KeyTooLong);
        }
        if !tags.is_empty() && tags.split(|byte| *byte == b',').count() > self.limits.tags {
            return Err(Reason::TooManyTags);
        }
        if self.cells[kind as usize] as usize >= self.limits.keys {
            return Ok(self.overflow(name, tags, kind));
        }
        let Some(slot) = known.or_else(|| self.keys.insert(name, tags)) else {
            return Ok(self.overflow(name, tags, kind));
        };
        let cell = self.cell(NewName { kind, name, tags, overflow: false });
        self.keys.set_cell(slot, kind, cell);
        Ok(cell as usize)
    }

    fn overflow(&mut self, name: &[u8], tags: &[u8], kind: Kind) -> usize {
        self.interval.overflow_samples += 1;
        self.seen.add(name, tags);
        if let Some(cell) = self.overflow[kind as usize] {
            return cell;
        }
        let name = self.overflow_name.clone();
        let cell = self.cell(NewName { kind, name: &name, tags: b"", overflow: true }) as usize;
        self.overflow[kind as usize] = Some(cell);
        cell
    }

    fn cell(&mut self, new: NewName<'_>) -> u32 {
        self.interval.names.push(new);
        let cell = self.cells[new.kind as usize];
        // Far from u32::MAX: `Limits::keys` is checked against it.
        self.cells[new.kind as usize] = cell + 1;
        cell
    }
}

impl Sink for Shard {
    #[inline]
    fn line(&mut self) {
        self.interval.lines += 1;
    }

    #[inline]
    fn sample(&mut self, sample: &Sample<'_>) {
        self.apply(sample);
    }

    fn bad(&mut self, bad: BadLine<'_>) {
        self.interval.rejects.add(bad);
    }

    fn event(&mut self) {
        self.interval.events += 1;
    }

    fn check(&mut self) {
        self.interval.checks += 1;
    }

    fn timestamped(&mut self) {
        self.interval.timestamps += 1;
    }
}

fn kind(value: Value<'_>) -> Kind {
    match value {
        Value::Count(_) => Kind::Counter,
        Value::Timing(..) => Kind::Timer,
        Value::Set(_) | Value::Change(_) => Kind::Gauge,
        Value::Member(_) => Kind::Set,
    }
}

/// About how many different keys did not fit: linear counting, 8 KiB once there is one.
///
/// Source: Whang, Vander-Zanden, Taylor: A linear-time probabilistic counting algorithm, 1990.
#[derive(Debug, Default)]
struct OverflowKeys {
    bits: Vec<u64>,
    hasher: hashbrown::DefaultHashBuilder,
}

impl OverflowKeys {
    const WORDS: usize = 1024;

    fn add(&mut self, name: &[u8], tags: &[u8]) {
        use std::hash::BuildHasher as _;
        self.bits.resize(Self::WORDS, 0);
        let hash = self.hasher.hash_one((name, tags));
        self.bits[(hash >> 6) as usize % Self::WORDS] |= 1 << (hash % 64);
    }

    /// The estimate since the last call.
    fn take(&mut self) -> u64 {
        let zeros: u32 = self.bits.iter().map(|word| word.count_zeros()).sum();
        let bits = (Self::WORDS * 64) as f64;
        let keys = match self.bits.is_empty() {
            true => 0.0,
            false => -bits * (f64::from(zeros.max(1)) / bits).ln(),
        };
        self.bits.clear();
        keys.round() as u64
    }
}
