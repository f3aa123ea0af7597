//! The hot path: adds the samples of a packet to cells.

use std::{mem, time::SystemTime};

use super::{
    MetricType, NewNames, ShardInterval,
    cells::NewKey,
    keys::{KINDS, KeyTable, RawKey},
    totals::RunningTotals,
};
use crate::{
    grammar::{
        self, BadLine, LineRules, RejectReason, SampleSink, SampleValue, StatsdCheck, StatsdEvent,
        StatsdSample,
    },
    settings::{StatsdLimits, StatsdSettings},
};

/// An aggregator of the samples that one reader receives.
#[derive(Debug)]
pub struct SampleShard {
    rules: LineRules,
    limits: StatsdLimits,
    /// The name under which samples beyond the key limit are aggregated.
    overflow_name: Box<[u8]>,
    keys: KeyTable,
    totals: RunningTotals,
    /// Number of allocated cells, by metric type.
    cells: [u32; KINDS],
    /// Cells of the overflow name, by metric type; `None` until the first overflow.
    overflow: [Option<usize>; KINDS],
    overflow_keys: OverflowKeys,
    stamp: u64,
    /// Maximum bytes of events and service checks; `None` if they are only counted.
    message_bytes: Option<usize>,
    interval: ShardInterval,
}

impl SampleShard {
    /// Creates an empty shard.
    pub fn new(settings: &StatsdSettings) -> Self {
        Self {
            rules: LineRules::new(settings),
            limits: settings.limits.clone(),
            overflow_name: format!("{}.overflow", settings.aggregation.prefix).into_bytes().into(),
            keys: KeyTable::default(),
            totals: RunningTotals::default(),
            cells: [0; KINDS],
            overflow: [None; KINDS],
            overflow_keys: OverflowKeys::default(),
            stamp: 0,
            message_bytes: None,
            interval: ShardInterval::default(),
        }
    }

    /// Parses one packet and adds its samples. Never fails: bad lines are counted.
    #[inline]
    pub fn apply_packet(&mut self, packet: &[u8]) {
        self.interval.packets += 1;
        self.interval.bytes += packet.len() as u64;
        grammar::packet(packet, self.rules, self);
    }

    /// Adds one sample to its cell, or counts it as rejected.
    #[inline]
    pub fn apply(&mut self, sample: &StatsdSample<'_>) {
        self.interval.samples += 1;
        let kind = kind(sample.value);
        let key = RawKey::from(sample);
        let slot = self.keys.find(key);
        let cell = slot.and_then(|slot| self.keys.cell(slot, kind));
        let cell = match cell {
            Some(cell) => cell,
            None => match self.new_cell(key, slot, kind) {
                Ok(cell) => cell,
                Err(reason) => {
                    let line = if sample.name.is_empty() { b":" } else { sample.name };
                    return self.bad(BadLine { line, reason });
                }
            },
        };
        self.add(cell, sample.value, sample.rate);
    }

    /// Returns the last totals of counters whose senders report all counts since their start.
    pub(crate) fn running_totals(&mut self) -> &mut RunningTotals {
        &mut self.totals
    }

    /// Stores events and service checks from now on, instead of only counting them.
    pub fn store_messages(&mut self) {
        self.message_bytes = Some(self.limits.message_bytes);
    }

    fn store_message(&mut self, line: &[u8]) {
        if let Some(max) = self.message_bytes {
            // Tags need more memory once they are parsed.
            if memchr::memchr_iter(b',', line).count() > self.limits.tags {
                self.interval.messages.dropped += 1;
                return;
            }
            self.interval.messages.push(SystemTime::now(), line.into(), max);
        }
    }

    /// Sets the arrival stamp of the following samples; it must not decrease. Each value of a gauge
    /// raises it by one, so that the latest of several keys of one gauge can be determined.
    pub fn start_batch(&mut self, stamp: u64) {
        self.stamp = stamp;
    }

    /// Returns the aggregated values and continues with `spare`, which must have been emptied by
    /// [`ShardInterval::clear`].
    pub fn swap(&mut self, spare: ShardInterval) -> ShardInterval {
        self.interval.keys = self.keys.len();
        self.interval.overflow_keys = self.overflow_keys.reset_estimate();
        mem::replace(&mut self.interval, spare)
    }

    /// Like [`swap`](Self::swap), but also discards all keys: cells are numbered from 0 again. Used
    /// when most metrics of the server have been deleted.
    pub fn swap_and_reset(&mut self, spare: ShardInterval) -> ShardInterval {
        let interval = self.swap(spare);
        self.keys = KeyTable::default();
        self.cells = [0; KINDS];
        self.overflow = [None; KINDS];
        interval
    }

    /// Like [`swap`](Self::swap), and also returns all keys that have a cell, those of each metric
    /// type in the order of their cell numbers. Keys that are assigned a cell later are in the
    /// following intervals.
    pub fn swap_and_list(&mut self, spare: ShardInterval) -> (ShardInterval, NewNames) {
        let interval = self.swap(spare);
        let mut names = NewNames::default();
        for kind in MetricType::ALL {
            let mut slots = vec![None; self.cells[kind as usize] as usize];
            for slot in 0..self.keys.len() {
                if let Some(cell) = self.keys.cell(slot, kind) {
                    slots[cell] = Some(slot);
                }
            }
            for slot in slots {
                let key = match slot {
                    Some(slot) => self.keys.key(slot),
                    // The only cell without a slot is that of the overflow name.
                    None => RawKey { name: &self.overflow_name, tags: b"", container: b"" },
                };
                names.push(NewKey { kind, key, overflow: slot.is_none() });
            }
        }
        (interval, names)
    }

    /// Adds a sample with a timestamp, or counts it as rejected.
    fn apply_timed(&mut self, sample: &StatsdSample<'_>, time: Option<i64>) {
        self.interval.samples += 1;
        let key = RawKey::from(sample);
        let (kind, value) = match sample.value {
            SampleValue::Count(value) => (MetricType::Counter, value * (1.0 / sample.rate)),
            SampleValue::Set(value) => (MetricType::Gauge, value),
            // The grammar passes no others.
            SampleValue::Timing(..) | SampleValue::Change(_) | SampleValue::Member(_) => return,
        };
        let (max, value) = (self.limits.keys, (value, self.stamp));
        let added = self.check_key(key).and_then(|()| {
            let added = self.interval.timed.add(kind, key, time, value, max);
            added.then_some(()).ok_or(RejectReason::TooManyTimestamps)
        });
        if let Err(reason) = added {
            let line = if sample.name.is_empty() { b":" } else { sample.name };
            self.bad(BadLine { line, reason });
        }
    }

    #[inline]
    fn add(&mut self, cell: usize, value: SampleValue<'_>, rate: f64) {
        let interval = &mut self.interval;
        match value {
            SampleValue::Count(value) => {
                // Calculated in the same order as in etsy's server, because the order affects the
                // last bit.
                let value = if rate == 1.0 { value } else { value * (1.0 / rate) };
                interval.counters.touch(cell).sum += value;
            }
            SampleValue::Timing(value, unit) => {
                let timer = interval.timers.touch(cell);
                timer.weigh(value, rate);
                timer.add(value, unit, &self.limits, &mut interval.exact_samples);
            }
            SampleValue::Set(value) => {
                self.stamp += 1;
                interval.gauges.touch(cell).set(self.stamp, value);
            }
            SampleValue::Change(by) => interval.gauges.touch(cell).change(self.stamp, by),
            SampleValue::Member(member) => interval.sets.touch(cell).add(member, &self.limits),
        }
    }

    /// Allocates a cell for a key that has none of this type; returns the overflow cell if there
    /// are too many keys. Fails if the key is invalid, too long or has too many tags.
    #[cold]
    fn new_cell(
        &mut self,
        key: RawKey<'_>,
        slot: Option<usize>,
        kind: MetricType,
    ) -> Result<usize, RejectReason> {
        // Only keys without a cell reach this function. An invalid key never gets a cell, so it is
        // rejected here each time.
        self.check_key(key)?;
        if self.cells[kind as usize] as usize >= self.limits.keys {
            return Ok(self.overflow(key, kind));
        }
        let Some(slot) = slot.or_else(|| self.keys.insert(key)) else {
            return Ok(self.overflow(key, kind));
        };
        let cell = self.cell(NewKey { kind, key, overflow: false });
        self.keys.set_cell(slot, kind, cell);
        Ok(cell as usize)
    }

    /// Fails if the key is invalid, too long or has too many tags.
    fn check_key(&self, key: RawKey<'_>) -> Result<(), RejectReason> {
        if matches!(key.name, [] | [b';', ..]) {
            return Err(RejectReason::NoName);
        }
        if key.name.len() + key.tail_bytes() > self.limits.key_bytes {
            return Err(RejectReason::KeyTooLong);
        }
        let tags = if key.tags.is_empty() { 0 } else { key.tags.split(|b| *b == b',').count() };
        if tags + usize::from(!key.container.is_empty()) > self.limits.tags {
            return Err(RejectReason::TooManyTags);
        }
        Ok(())
    }

    fn overflow(&mut self, key: RawKey<'_>, kind: MetricType) -> usize {
        self.interval.overflow_samples += 1;
        self.overflow_keys.add(key);
        if let Some(cell) = self.overflow[kind as usize] {
            return cell;
        }
        let name = self.overflow_name.clone();
        let key = RawKey { name: &name, tags: b"", container: b"" };
        let cell = self.cell(NewKey { kind, key, overflow: true }) as usize;
        self.overflow[kind as usize] = Some(cell);
        cell
    }

    fn cell(&mut self, new: NewKey<'_>) -> u32 {
        self.interval.names.push(new);
        let cell = self.cells[new.kind as usize];
        // The number stays far below `u32::MAX`: `StatsdLimits::keys` is at most 2^30.
        self.cells[new.kind as usize] = cell + 1;
        cell
    }
}

impl<'s> From<&StatsdSample<'s>> for RawKey<'s> {
    #[inline]
    fn from(sample: &StatsdSample<'s>) -> Self {
        Self { name: sample.name, tags: sample.tags, container: sample.container }
    }
}

impl SampleSink for SampleShard {
    #[inline]
    fn line(&mut self) {
        self.interval.lines += 1;
    }

    #[inline]
    fn sample(&mut self, sample: &StatsdSample<'_>) {
        self.apply(sample);
    }

    fn running_total(&mut self, sample: &StatsdSample<'_>) {
        let (SampleValue::Count(total), key) = (sample.value, RawKey::from(sample)) else { return };
        // A key that fails the check is rejected below.
        let counts = match self.check_key(key) {
            Ok(()) => self.totals.difference(key, total, self.limits.keys),
            Err(_) => 0.0,
        };
        self.apply(&StatsdSample { value: SampleValue::Count(counts), ..*sample });
    }

    #[cold]
    fn timed_sample(&mut self, sample: &StatsdSample<'_>, time: Option<i64>) {
        self.apply_timed(sample, time);
    }

    fn bad(&mut self, bad: BadLine<'_>) {
        self.interval.rejects.add(bad);
    }

    #[cold]
    fn event(&mut self, event: &StatsdEvent<'_>) {
        self.interval.events += 1;
        self.store_message(event.line);
    }

    #[cold]
    fn check(&mut self, check: &StatsdCheck<'_>) {
        self.interval.checks += 1;
        self.store_message(check.line);
    }

    fn timestamped(&mut self) {
        self.interval.timestamps += 1;
    }
}

fn kind(value: SampleValue<'_>) -> MetricType {
    match value {
        SampleValue::Count(_) => MetricType::Counter,
        SampleValue::Timing(..) => MetricType::Timer,
        SampleValue::Set(_) | SampleValue::Change(_) => MetricType::Gauge,
        SampleValue::Member(_) => MetricType::Set,
    }
}

/// An estimator of the number of distinct keys beyond the limit, by linear counting. Takes 8 KiB
/// once it is used.
///
/// Source: Whang, Vander-Zanden, Taylor: A linear-time probabilistic counting algorithm, 1990.
#[derive(Debug, Default)]
struct OverflowKeys {
    bits: Vec<u64>,
    hasher: hashbrown::DefaultHashBuilder,
}

impl OverflowKeys {
    const BITMAP_WORDS: usize = 1024;

    fn add(&mut self, key: RawKey<'_>) {
        use std::hash::BuildHasher as _;
        self.bits.resize(Self::BITMAP_WORDS, 0);
        let hash = self.hasher.hash_one((key.name, key.tags, key.container));
        self.bits[(hash >> 6) as usize % Self::BITMAP_WORDS] |= 1 << (hash % 64);
    }

    /// Returns the estimate since the last call and starts over.
    fn reset_estimate(&mut self) -> u64 {
        let zeros: u32 = self.bits.iter().map(|word| word.count_zeros()).sum();
        let bits = (Self::BITMAP_WORDS * 64) as f64;
        let keys =
            if self.bits.is_empty() { 0.0 } else { -bits * (f64::from(zeros.max(1)) / bits).ln() };
        self.bits.clear();
        keys.round() as u64
    }
}
