//! The form of an interval that another server can merge: see [`crate::forwarding`].
//!
//! ```text
//! part := list of one interval, list of timed, list of message
//! ```
//!
//! The interval is that of [`super::handover`], without counts of packets. Values with timestamps,
//! and those of key-value lines, which get the time of the flush, are those of
//! [`TimedMetric::write_to`]; messages are lines as they were received.
//!
//! The reader does not trust the other server: a part may take only so much memory, and its numbers
//! must be so small that no sum of many parts is infinite.

use std::{collections::HashSet, mem, time::SystemTime};

use howdah_codec::ByteWriter as _;

use super::{
    KeyRegistry,
    cell_targets::CellTargets,
    handover::{
        HandedOver, ImportedInterval, ImportedIntervals, ImportedKey, write_interval_counts,
    },
    unaggregated::{read_messages_list, write_message, write_messages},
};
use crate::{
    MetricName,
    aggregate::{
        CellTable, CounterCell, GaugeCell, KINDS, MessageBuffer, MetricType, Rejects, SetCell,
        ShardInterval, Sketched, TimerCell, WeightTotals,
    },
    binary::{BinaryReader, BinaryWriter as _, HandoverFormatError},
    flush::{
        TimedMetric, TimedType,
        names::{KeyConversion, KeyPair},
        table::MetricTable,
    },
    grammar::{ADDEND_MAX, BadLine, RejectReason},
    settings::StatsdLimits,
};

/// A part of an interval in the form that another server can merge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MergeablePart {
    /// The part, as in the module's documentation.
    pub(crate) bytes: Vec<u8>,
    /// Number of metrics and messages.
    pub(crate) values: u64,
}

/// A part that was received from another server, but not added to a registry yet.
#[derive(Debug)]
pub(crate) struct ForwardedBatch {
    intervals: ImportedIntervals,
    timed: Vec<TimedMetric>,
    messages: MessageBuffer,
}

impl ForwardedBatch {
    /// Maximum memory of a batch, in bytes. One of common metrics takes about 50 MiB.
    pub(crate) const MEMORY_MAX: usize = 256 << 20;

    /// Reads a part.
    ///
    /// # Errors
    ///
    /// The bytes are not those of a [`MergeablePart`], or the part would take more than
    /// [`MEMORY_MAX`](Self::MEMORY_MAX).
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, HandoverFormatError> {
        let mut from = BinaryReader::with_memory(bytes, Self::MEMORY_MAX);
        let intervals = ImportedIntervals::read_from(&mut from)?;
        if !matches!(&intervals.0[..], [one] if has_only_cells(&one.interval)) {
            let invalid = "a batch must have one interval, without counts of packets";
            return Err(HandoverFormatError::Invalid(invalid));
        }
        let timed = from.list(TimedMetric::read_from)?;
        let messages = read_messages_list(&mut from)?;
        from.finish()?;
        Ok(Self { intervals, timed, messages })
    }

    /// Removes the gauges that `retain` returns false for. It gets the key, and whether there is an
    /// absolute value.
    pub(crate) fn retain_gauges(&mut self, mut retain: impl FnMut(&str, bool) -> bool) {
        for ImportedInterval { interval, keys: [_, _, gauges, _] } in &mut self.intervals.0 {
            for ((_, cell), keys) in interval.gauges.iter().zip(gauges) {
                keys.take_if(|keys| !retain(keys.sent.key(), cell.set.is_some()));
            }
        }
    }

    /// Adds the batch to a registry. The limits of the other server may be higher than those of
    /// this one. Its gauge values count as received now; the age of its values with timestamps was
    /// checked when it received them.
    pub(crate) fn add_to(self, registry: &mut KeyRegistry, now: SystemTime) {
        let Self { mut intervals, timed, mut messages } = self;
        let stamp = registry.stamps.next();
        for ImportedInterval { interval, keys } in &mut intervals.0 {
            reject_large(interval, keys);
            limit_cells(registry, interval, stamp);
            apply_rules(registry, interval, keys, now);
            if !registry.needs.names_as_sent {
                let keys = keys.iter_mut().flatten().flatten();
                keys.for_each(|keys| keys.sent.clone_from(&keys.key));
            }
            let overflow = format!("{}.overflow", registry.settings.aggregation.prefix);
            let mut limiter = KeyLimiter {
                limits: &registry.settings.limits,
                overflow: MetricName::new(&overflow),
                overflow_samples: 0,
            };
            let [counters, timers, gauges, sets] = keys;
            let variants = &registry.variants;
            limiter.limit(counters, &registry.counters, &variants.counters);
            limiter.limit(timers, &registry.timers, &variants.timers);
            limiter.limit(gauges, &registry.gauges, &variants.gauges);
            limiter.limit(sets, &registry.sets, &variants.sets);
            interval.overflow_samples = limiter.overflow_samples;
        }
        let mut rejected = ShardInterval::default();
        let limits = &registry.settings.limits;
        let conversion = KeyConversion::new(&registry.settings, registry.needs);
        for TimedMetric { kind, name, sent, time, value } in timed {
            let metric_type = match kind {
                TimedType::Counter => MetricType::Counter,
                TimedType::Gauge => MetricType::Gauge,
            };
            let keys = (metric_type, KeyPair { key: name, sent });
            let rules = &mut registry.key_rules;
            let keys = rules.forwarded_keys(keys, conversion, 1, |_| false, now);
            let Some(mut keys) = keys else { continue };
            if !registry.needs.names_as_sent {
                keys.sent.clone_from(&keys.key);
            }
            let line = keys.key.key().to_owned();
            let input = &mut registry.unaggregated;
            let reason = if line.len().max(keys.sent.key().len()) > limits.key_bytes {
                RejectReason::KeyTooLong
            } else if kind == TimedType::Counter && value.abs() > SUM_MAX {
                RejectReason::TooLarge
            } else if !input.add_timed(kind, keys, Some(time), (value, stamp), limits.keys) {
                RejectReason::TooManyTimestamps
            } else {
                continue;
            };
            rejected.rejects.add_many(1, BadLine { line: line.as_bytes(), reason });
        }
        if registry.needs.messages {
            mem::swap(&mut rejected.messages, &mut messages);
        }
        registry.add_interval(&mut rejected, &mut CellTargets::default(), now);
        intervals.add_to(registry, now);
    }
}

/// Applies the rules and the limits of prefixes of this server to the keys of an interval.
fn apply_rules(
    registry: &mut KeyRegistry,
    interval: &ShardInterval,
    keys: &mut [Vec<ImportedKey>; KINDS],
    now: SystemTime,
) {
    if !registry.key_rules.are_active() {
        return;
    }
    let conversion = KeyConversion::new(&registry.settings, registry.needs);
    let hits: [Vec<u32>; KINDS] = [
        interval.counters.iter().map(|(_, cell)| cell.hits).collect(),
        interval.timers.iter().map(|(_, cell)| cell.hits).collect(),
        interval.gauges.iter().map(|(_, cell)| cell.hits).collect(),
        interval.sets.iter().map(|(_, cell)| cell.hits).collect(),
    ];
    let KeyRegistry { key_rules, counters, timers, gauges, sets, .. } = registry;
    for (kind, (keys, hits)) in MetricType::ALL.into_iter().zip(keys.iter_mut().zip(&hits)) {
        let mut admitted = HashSet::new();
        for (keys, hits) in keys.iter_mut().zip(hits) {
            let Some(pair) = keys.take() else { continue };
            // Several cells may become the same key.
            let is_new = |key: &MetricName| {
                let is_known = match kind {
                    MetricType::Counter => counters.contains(key),
                    MetricType::Timer => timers.contains(key),
                    MetricType::Gauge => gauges.contains(key),
                    MetricType::Set => sets.contains(key),
                };
                !is_known && !admitted.contains(key)
            };
            *keys = key_rules.forwarded_keys((kind, pair), conversion, *hits, is_new, now);
            admitted.extend(keys.as_ref().map(|keys| keys.key.clone()));
        }
    }
}

/// Maximum number of samples of a cell: far more than a server receives in an interval, and many
/// such numbers can be added.
const SAMPLES_MAX: u64 = 1 << 40;
/// Maximum of sums and weights: the sum of so many values.
const SUM_MAX: f64 = ADDEND_MAX * SAMPLES_MAX as f64;
/// Maximum of a sum of squares.
const SQUARES_MAX: f64 = ADDEND_MAX * SUM_MAX;

/// Whether an interval has neither counts nor other content that another server does not send.
fn has_only_cells(interval: &ShardInterval) -> bool {
    let ShardInterval { packets, bytes, lines, samples, events, checks, timestamps, .. } = interval;
    let ShardInterval { overflow_samples, overflow_keys, rejects, timed, messages, .. } = interval;
    let counts = [packets, bytes, lines, samples, events, checks, timestamps];
    counts.into_iter().chain([overflow_samples, overflow_keys]).all(|count| *count == 0)
        && *rejects == Rejects::default()
        && timed.iter().next().is_none()
        && messages.dropped == 0
        && messages.iter().next().is_none()
}

/// A cell that was received from another server.
trait ReceivedCell {
    /// Whether the numbers are so small that those of many servers can be added.
    fn is_bounded(&self) -> bool;
}

impl ReceivedCell for CounterCell {
    fn is_bounded(&self) -> bool {
        self.sum.abs() <= SUM_MAX
    }
}

impl ReceivedCell for TimerCell {
    fn is_bounded(&self) -> bool {
        let WeightTotals { count, excess } = self.weights.totals(0);
        let is_sketch_bounded = |sketched: &Sketched| {
            let Sketched { sketch, samples, sum, sum_squares, range } = sketched;
            sketch.is_bounded(SUM_MAX)
                && *samples <= SAMPLES_MAX
                && sum.abs() <= SUM_MAX
                && (0.0..=SQUARES_MAX).contains(sum_squares)
                && range.is_none_or(|(lower, upper)| lower >= -ADDEND_MAX && upper <= ADDEND_MAX)
        };
        (0.0..=SUM_MAX).contains(&count)
            && excess.abs() <= SUM_MAX
            && self.samples.iter().all(|value| value.abs() <= ADDEND_MAX)
            && self.sketched.as_deref().is_none_or(is_sketch_bounded)
    }
}

impl ReceivedCell for GaugeCell {
    fn is_bounded(&self) -> bool {
        self.changes.iter().all(|(_, by)| by.abs() <= SUM_MAX)
    }
}

impl ReceivedCell for SetCell {
    fn is_bounded(&self) -> bool {
        self.refused <= SAMPLES_MAX
    }
}

/// Rejects the cells whose numbers are too large.
fn reject_large(interval: &mut ShardInterval, keys: &mut [Vec<ImportedKey>; KINDS]) {
    fn reject<C: ReceivedCell>(
        cells: &CellTable<C>,
        keys: &mut [ImportedKey],
        rejects: &mut Rejects,
    ) {
        for ((_, cell), keys) in cells.iter().zip(keys) {
            if !cell.is_bounded()
                && let Some(KeyPair { key, .. }) = keys.take()
            {
                let line = key.key().as_bytes();
                rejects.add_many(1, BadLine { line, reason: RejectReason::TooLarge });
            }
        }
    }
    let [counters, timers, gauges, sets] = keys;
    let rejects = &mut interval.rejects;
    reject(&interval.counters, counters, rejects);
    reject(&interval.timers, timers, rejects);
    reject(&interval.gauges, gauges, rejects);
    reject(&interval.sets, sets, rejects);
}

/// Applies the limits of this server to cells, and gives gauge values a stamp of this server.
fn limit_cells(registry: &mut KeyRegistry, interval: &mut ShardInterval, stamp: u64) {
    let KeyRegistry { settings, forwarded_exact_samples: exact, .. } = registry;
    let limits = &settings.limits;
    for timer in interval.timers.iter_pushed_mut() {
        let room = limits.exact_samples_total.saturating_sub(*exact);
        if timer.samples.len() > limits.exact_samples.min(room) {
            let mut sketched = Box::<Sketched>::default();
            timer.samples.drain(..).for_each(|value| sketched.add(value, timer.unit));
            timer.samples.shrink_to_fit();
            timer.sketched = Some(sketched);
        }
        *exact += timer.samples.len();
    }
    for gauge in interval.gauges.iter_pushed_mut() {
        gauge.set.iter_mut().chain(&mut gauge.changes).for_each(|(at, _)| *at = stamp);
    }
    interval.sets.iter_pushed_mut().for_each(|set| set.limit(limits));
}

/// Moves keys beyond the limits to the overflow key.
struct KeyLimiter<'l> {
    limits: &'l StatsdLimits,
    overflow: MetricName,
    overflow_samples: u64,
}

impl KeyLimiter<'_> {
    fn limit<S: Default>(
        &mut self,
        keys: &mut [ImportedKey],
        table: &MetricTable<S>,
        variants: &MetricTable<S>,
    ) {
        let Self { limits, overflow, overflow_samples } = self;
        let room = limits.keys.saturating_sub(table.len());
        let variants_room = limits.keys.saturating_sub(variants.len());
        // Several cells may have the same key.
        let (mut new_keys, mut new_variants) = (HashSet::new(), HashSet::new());
        for KeyPair { key, sent } in keys.iter_mut().flatten() {
            if table.find(key.key()).is_none() && !new_keys.contains(key) {
                if new_keys.len() >= room || key.key().len() > limits.key_bytes {
                    (*key, *sent) = (overflow.clone(), overflow.clone());
                    *overflow_samples += 1;
                    continue;
                }
                new_keys.insert(key.clone());
            }
            let is_new = |name: &MetricName| {
                variants.find(name.key()).is_none() && !new_variants.contains(name)
            };
            if sent == key || !is_new(sent) {
                continue;
            }
            // The first other spelling of a key adds that of the key itself, too.
            let added = [&*key, &*sent].map(|name| is_new(name).then(|| name.clone()));
            let count = added.iter().flatten().count();
            if new_variants.len() + count > variants_room || sent.key().len() > limits.key_bytes {
                sent.clone_from(key);
            } else {
                new_variants.extend(added.into_iter().flatten());
            }
        }
    }
}

/// Returns the running interval in the form that another server can merge: all metrics that have
/// received samples, except the server's own, the values with timestamps, and the messages.
pub(super) fn export(registry: &mut KeyRegistry, timed: &[TimedMetric]) -> Vec<MergeablePart> {
    let own = registry.self_names.all();
    let variants = &mut registry.variants;
    let mut parts = PartWriter { own, ..PartWriter::default() };
    let (counters, timers) = (&mut registry.counters, &mut registry.timers);
    parts.add_table(0, counters, &mut variants.counters, |state, hits| {
        let is_used = hits > 0 || state.value != 0.0;
        is_used.then_some(CounterCell { sum: state.value, hits: hits.max(1) })
    });
    parts.add_table(1, timers, &mut variants.timers, |state, hits| {
        let is_used = !state.samples.is_empty() || state.sketched.is_some();
        is_used.then(|| TimerCell {
            samples: state.samples.clone(),
            sketched: state.sketched.clone(),
            weights: state.weights.clone(),
            unit: state.unit,
            hits: hits.max(1),
        })
    });
    parts.add_table(2, &mut registry.gauges, &mut variants.gauges, |state, hits| {
        let (GaugeCell { set, changes, .. }, hits) = (&state.running, hits.max(1));
        let change = changes.iter().map(|(_, by)| by).sum::<f64>();
        // An absolute value includes the changes after it.
        match set {
            Some((_, value)) => {
                let set = Some((0, value + change));
                Some(GaugeCell { set, changes: Vec::new(), hits })
            }
            None if changes.is_empty() => None,
            None => Some(GaugeCell { set: None, changes: vec![(0, change)], hits }),
        }
    });
    parts.add_table(3, &mut registry.sets, &mut variants.sets, |state, hits| {
        let is_used = !state.members.is_empty() || state.estimate.is_some() || state.refused > 0;
        is_used.then(|| SetCell {
            members: state.members.clone(),
            estimate: state.estimate.clone(),
            refused: state.refused,
            hits: hits.max(1),
        })
    });
    timed.iter().for_each(|metric| parts.add_timed(metric));
    for (received, line) in registry.unaggregated.messages() {
        parts.add_message(received, line);
    }
    parts.finish_part();
    parts.parts
}

/// Divides an interval into parts.
#[derive(Default)]
struct PartWriter {
    /// Keys that are left out.
    own: Vec<MetricName>,
    counts: [usize; KINDS],
    cells: [Vec<u8>; KINDS],
    /// The values with timestamps, and the messages, with their numbers.
    timed: (usize, Vec<u8>),
    messages: (usize, Vec<u8>),
    parts: Vec<MergeablePart>,
}

impl PartWriter {
    /// Size from which a part is complete.
    const PART_BYTES: usize = 4 << 20;

    /// Adds the metrics of one type. A metric that was sent in several spellings is represented by
    /// its variants.
    fn add_table<S: Default, C: HandedOver>(
        &mut self,
        kind: usize,
        table: &mut MetricTable<S>,
        variants: &mut MetricTable<S>,
        cell: impl Fn(&S, u32) -> Option<C>,
    ) {
        for entry in table.iter().filter(|entry| !entry.merged) {
            if let Some(cell) = cell(&entry.state, entry.hits)
                && !self.own.contains(&entry.name)
            {
                self.add(kind, &entry.name, None, &cell);
            }
        }
        for variant in variants.iter() {
            let Some(linked) = variant.linked else { continue };
            let key = table.entry(linked).name.clone();
            if let Some(cell) = cell(&variant.state, variant.hits)
                && !self.own.contains(&key)
            {
                let sent = (variant.name != key).then_some(&variant.name);
                self.add(kind, &key, sent, &cell);
            }
        }
    }

    fn add<C: HandedOver>(
        &mut self,
        kind: usize,
        key: &MetricName,
        sent: Option<&MetricName>,
        cell: &C,
    ) {
        let out = &mut self.cells[kind];
        out.write_text(key.key());
        out.write_option(sent, |out, sent| out.write_text(sent.key()));
        cell.write_to(out);
        self.counts[kind] += 1;
        self.finish_if_full();
    }

    fn add_timed(&mut self, metric: &TimedMetric) {
        let (count, out) = &mut self.timed;
        *count += 1;
        metric.write_to(out);
        self.finish_if_full();
    }

    fn add_message(&mut self, received: SystemTime, line: &[u8]) {
        let (count, out) = &mut self.messages;
        *count += 1;
        write_message(out, received, line);
        self.finish_if_full();
    }

    fn finish_if_full(&mut self) {
        let others = self.timed.1.len() + self.messages.1.len();
        if self.cells.iter().map(Vec::len).sum::<usize>() + others >= Self::PART_BYTES {
            self.finish_part();
        }
    }

    fn finish_part(&mut self) {
        let (timed, messages) = (mem::take(&mut self.timed), mem::take(&mut self.messages));
        let values = self.counts.iter().sum::<usize>() + timed.0 + messages.0;
        if values == 0 {
            return;
        }
        let mut bytes = Vec::new();
        bytes.write_count(1);
        write_interval_counts(&mut bytes, &ShardInterval::default());
        for (count, cells) in self.counts.iter_mut().zip(&mut self.cells) {
            bytes.write_count(mem::take(count));
            bytes.append(cells);
        }
        // The interval's own values with timestamps and messages, which are in their aggregated
        // form below.
        bytes.write_count(0);
        write_messages(&mut bytes, &MessageBuffer::default());
        for (count, mut list) in [timed, messages] {
            bytes.write_count(count);
            bytes.append(&mut list);
        }
        self.parts.push(MergeablePart { bytes, values: values as u64 });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        backends::SnapshotRequirements,
        flush::{FlushSnapshot, FlushTime, TimerMetric, registry::handover},
        ledger::LossAccount,
        settings::{ExtraTypes, SetOverflow, StatsdSettings},
    };

    const PACKETS: [&str; 3] = [
        "hits:3|c|@0.1\nt:1:2.5|ms\nd:7|d\ng:5|g\ng:+1.5|g\nu:ann|s\nu:bob|s\nbad\na/b:1|c\na-b:2|c\n\
         k:1|kv\nall:100|C\nmany:1|s\nmany:2|s\nmany:3|s\n_e{2,1}:up|x|d:5",
        "hits:0.1|c\nt:4|ms|@0.5\ng:-2|g\nu:ann|s\nu:eve|s\nonly.delta:+3|g\nr\u{e9}s:1|c\nall:130|C\n\
         many:1|s\nmany:2|s\nmany:4|s\n_sc|db|1|d:6",
        "hits:1|c\nnew:1|c\ng:9|g\nt:3|ms\na/b:1|c\nmany:5|s",
    ];

    fn time(ms: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(ms)
    }

    fn settings() -> StatsdSettings {
        let types = ExtraTypes { kv: true, absolute_counter: true };
        let mut settings = StatsdSettings { types, ..StatsdSettings::default() };
        settings.limits.exact_samples = 3;
        settings.limits.set_members = 3;
        settings.limits.set_overflow = SetOverflow::Estimate;
        settings
    }

    fn registry() -> KeyRegistry {
        let needs = SnapshotRequirements {
            distributions: true,
            names_as_sent: true,
            messages: true,
            mergeable: true,
            ..SnapshotRequirements::default()
        };
        KeyRegistry::new(&settings(), needs, time(1_000))
    }

    fn flush(registry: &mut KeyRegistry, ms: u64) -> FlushSnapshot {
        let time = FlushTime { now: time(ms), lag: Duration::ZERO };
        registry.flush(time, LossAccount::default())
    }

    /// Forwards the running interval of a registry to another one.
    fn forward(child: &mut KeyRegistry, parent: &mut KeyRegistry, ms: u64) {
        for part in flush(child, ms).mergeable.iter() {
            ForwardedBatch::read(&part.bytes).unwrap().add_to(parent, time(ms));
        }
    }

    /// Applies packets to a registry as one reader.
    fn receive(registry: &mut KeyRegistry, packets: &[&str]) {
        let shard = registry.shard();
        packets.iter().for_each(|packet| shard.lock().apply_packet(packet.as_bytes()));
    }

    #[test]
    fn forwarded_intervals_add_up_like_received_samples() {
        let (mut one, mut two, mut parent) = (registry(), registry(), registry());
        receive(&mut one, &PACKETS[..2]);
        receive(&mut two, &PACKETS[2..]);
        forward(&mut one, &mut parent, 10_000);
        forward(&mut two, &mut parent, 10_000);
        let merged = flush(&mut parent, 20_000);
        let mut single = registry();
        receive(&mut single, &PACKETS);
        let received = flush(&mut single, 20_000);
        let own = |name: &MetricName| name.key().starts_with("statsd.");
        let counters = |snapshot: &FlushSnapshot| -> Vec<_> {
            let all = snapshot.counters.iter().chain(&snapshot.variants.counters);
            let all = all.filter(|counter| !own(&counter.name));
            all.map(|counter| (counter.name.clone(), counter.value, counter.idle)).collect()
        };
        let expected = counters(&received);
        assert_eq!(counters(&merged).len(), expected.len());
        for ((name, merged, idle), (_, received, _)) in counters(&merged).iter().zip(expected) {
            assert!((merged / received - 1.0).abs() < 1e-12, "{name}: {merged} {received}");
            assert!(!idle, "{name}");
        }
        let timers = |snapshot: &FlushSnapshot| {
            let one = |timer: &TimerMetric| (timer.name.clone(), timer.fields.clone());
            snapshot.timers.iter().map(one).collect::<Vec<_>>()
        };
        assert_eq!(timers(&merged), timers(&received));
        assert_eq!(merged.gauges, received.gauges);
        assert_eq!(merged.sets, received.sets);
        let many = merged.sets.iter().find(|set| set.name.key() == "many").unwrap();
        assert!(many.estimate.is_some() && many.count == 5);
        let contents = |snapshot: &FlushSnapshot| -> Vec<_> {
            snapshot.messages.iter().map(|one| (one.time, one.content.clone())).collect()
        };
        assert_eq!(contents(&merged), contents(&received));
        assert_eq!(contents(&merged).len(), 2);
        let [k] = &merged.timed[..] else { panic!("{:?}", merged.timed) };
        assert_eq!((k.name.key(), k.time, k.value), ("k", 10, 1.0));
        // Idle metrics are not forwarded, and a gauge that was only changed arrives as a change.
        assert!(flush(&mut one, 30_000).mergeable.is_empty());
        receive(&mut one, &["g:+10|g"]);
        forward(&mut one, &mut parent, 40_000);
        let gauges = flush(&mut parent, 40_000).gauges;
        let g = gauges.iter().find(|gauge| gauge.name.key() == "g").unwrap();
        assert_eq!(g.value, 19.0);
    }

    #[test]
    fn limits_of_the_parent_apply_to_forwarded_intervals() {
        let refused = (SetOverflow::Refuse, 2, None);
        let estimated = (SetOverflow::Estimate, 3, Some(3.0));
        for (overflow, members, estimate) in [refused, estimated] {
            let mut settings = settings();
            (settings.limits.keys, settings.limits.set_members) = (6, 2);
            settings.limits.set_overflow = overflow;
            settings.limits.key_bytes = 20;
            let needs = SnapshotRequirements::default();
            let mut parent = KeyRegistry::new(&settings, needs, time(0));
            let mut child = registry();
            let long = format!("{}:1|c", "long".repeat(10));
            receive(
                &mut child,
                &["a:1|c\nb:2|c\nc:3|c\nd:4|c\ne:5|c\nu:1|s\nu:2|s\nu:3|s", long.as_str()],
            );
            receive(&mut child, &["t:1:2:3:4:5|ms\n_e{2,1}:up|x"]);
            receive(&mut child, &["k1:1|kv\nk2:1|kv\nk3:1|kv\nk4:1|kv\nk5:1|kv\nk6:1|kv\nk7:1|kv"]);
            forward(&mut child, &mut parent, 10_000);
            let snapshot = flush(&mut parent, 10_000);
            let counters = snapshot.counters.iter().map(|counter| counter.value).sum::<f64>();
            let bad = 1.0 + 1.0;
            let refused_members = f64::from(u8::from(overflow == SetOverflow::Refuse));
            assert_eq!(counters, 16.0 + bad + refused_members - 1.0, "no increment is lost");
            assert_eq!(snapshot.sets[0].count, members);
            let count = snapshot.sets[0].estimate.as_ref().map(|one| one.count().round());
            assert_eq!(count, estimate);
            assert_eq!(snapshot.timed.len(), 6);
            assert!(snapshot.messages.is_empty(), "no backend requires them");
            assert!(parent.totals().overflow_samples > 0);
            let summary = snapshot.timers[0].summary.clone().unwrap();
            assert_eq!((summary.samples, summary.sum), (5, 15.0));
        }
    }

    #[test]
    fn spellings_samples_and_members_are_limited() {
        let mut settings = settings();
        settings.limits = StatsdLimits {
            keys: 10,
            key_bytes: 20,
            member_bytes: 40,
            exact_samples: 1000,
            exact_samples_total: 5,
            ..StatsdLimits::default()
        };
        let needs = SnapshotRequirements { names_as_sent: true, ..registry().needs };
        let mut parent = KeyRegistry::new(&settings, needs, time(0));
        let mut child = registry();
        let name = |number: u32| format!("{}a", "é".repeat(number as usize));
        for spelling in 0..50 {
            receive(&mut child, &[&format!("{}:1|c\n{}:1|kv", name(spelling), name(spelling))]);
        }
        let member = "m".repeat(100);
        receive(&mut child, &["t:1:2|ms\nu:1:2|ms\nv:1:2|ms", &format!("s:{member}|s")]);
        for _ in 0..2 {
            receive(&mut child, &["a:0|c\nt:1|ms"]);
            forward(&mut child, &mut parent, 10_000);
        }
        assert!(parent.variants.counters.len() <= 10, "{}", parent.variants.counters.len());
        let sketched = parent.timers.iter().filter(|timer| timer.state.sketched.is_some());
        assert_eq!(sketched.count(), 2, "{:?}", parent.timers);
        let snapshot = flush(&mut parent, 10_000);
        let a = snapshot.counters.iter().find(|counter| counter.name.key() == "a").unwrap();
        assert_eq!(a.value, 50.0, "no increment is lost");
        let spelt = snapshot.variants.counters.iter().map(|counter| counter.value);
        assert_eq!(spelt.sum::<f64>(), 50.0);
        assert!(snapshot.timed.iter().all(|timed| timed.sent.key().len() <= 20));
        assert_eq!(snapshot.timed.len(), 10);
        assert_eq!(snapshot.sets[0].members[0].len(), 40);
        assert_eq!(parent.forwarded_exact_samples, 0, "each interval has its limit");
    }

    #[test]
    fn largest_numbers_can_be_merged_and_handed_over_many_times() {
        let mut child = registry();
        receive(&mut child, &["t:1:2:3:4:5|ms\ng:+1|g\ns:1|s"]);
        let part = flush(&mut child, 10_000).mergeable[0].bytes.clone();
        let mut parent = registry();
        for _ in 0..10_000 {
            let mut batch = ForwardedBatch::read(&part).unwrap();
            let interval = &mut batch.intervals.0[0].interval;
            let timer = interval.timers.iter_pushed_mut().next().unwrap();
            let sketched = timer.sketched.as_mut().unwrap();
            (sketched.samples, sketched.sum) = (SAMPLES_MAX, SUM_MAX);
            sketched.sum_squares = SQUARES_MAX;
            interval.gauges.iter_pushed_mut().for_each(|gauge| gauge.changes[0].1 = -SUM_MAX);
            interval.sets.iter_pushed_mut().for_each(|set| set.refused = SAMPLES_MAX);
            batch.add_to(&mut parent, time(10_000));
        }
        assert!(parent.totals().rejects.total() > 1 << 53);
        let bytes = handover::export_registry(&mut parent, time(11_000));
        handover::import_registry(&mut registry(), &bytes, time(11_000)).unwrap();
        let timer = flush(&mut parent, 20_000).timers[0].clone();
        assert!(timer.summary.is_some_and(|summary| summary.sum.is_finite()));
    }

    #[test]
    fn rules_of_the_parent_apply_to_forwarded_intervals() {
        let mut settings: StatsdSettings = toml::from_str(
            r#"
            rules = [
                { id = "gone", name = "gone.*", action = "drop" },
                { id = "new", name = "old.*", rename = "new.$1" },
            ]
            static-tags = { dc = "x" }
            limits.prefix = [{ prefix = "team.", keys = 2 }]
            "#,
        )
        .unwrap();
        settings.types = ExtraTypes { kv: true, absolute_counter: false };
        let mut parent = KeyRegistry::new(&settings, SnapshotRequirements::default(), time(0));
        let mut child = registry();
        receive(
            &mut child,
            &["gone.a:1|c\nold.a:2|c\nold.a:1|ms\nteam.a:1|c\nteam.b:2|c\nteam.c:4|c\n\
               team.d:8|c\ngone.k:1|kv\nold.k:2|kv"],
        );
        forward(&mut child, &mut parent, 10_000);
        let snapshot = flush(&mut parent, 10_000);
        let counters = snapshot.counters.iter().map(|one| (one.name.key(), one.value));
        let counters: Vec<_> = counters.filter(|(key, _)| !key.starts_with("statsd.")).collect();
        assert_eq!(
            counters,
            [
                ("new.a;dc=x", 2.0),
                ("team.a;dc=x", 1.0),
                ("team.b;dc=x", 2.0),
                ("team.overflow", 12.0)
            ]
        );
        assert_eq!(snapshot.timers[0].name.key(), "new.a;dc=x");
        let timed = snapshot.timed.iter().map(|one| one.name.key());
        assert_eq!(timed.collect::<Vec<_>>(), ["new.k;dc=x"]);
        assert_eq!(snapshot.self_metrics.rule_drops, [("gone".into(), 2)]);
        assert_eq!(snapshot.self_metrics.prefix_overflows, [("team.".into(), 2)]);
    }

    #[test]
    fn large_interval_is_divided_and_changed_bytes_do_not_panic() {
        let mut child = registry();
        let shard = child.shard();
        let member = "m".repeat(200);
        for n in 0..30_000 {
            let lines = format!("{member}{n}:1|c\nk{n}:{n}|kv\nt{n}:1:2|ms");
            shard.lock().apply_packet(lines.as_bytes());
        }
        let parts = flush(&mut child, 10_000).mergeable;
        assert!(parts.len() > 1);
        assert_eq!(parts.iter().map(|part| part.values).sum::<u64>(), 90_000);
        let mut parent = registry();
        for part in &*parts {
            ForwardedBatch::read(&part.bytes).unwrap().add_to(&mut parent, time(10_000));
        }
        let snapshot = flush(&mut parent, 10_000);
        assert_eq!((snapshot.timed.len(), snapshot.timers.len()), (30_000, 30_000));
        let mut child = registry();
        receive(&mut child, &PACKETS);
        let part = flush(&mut child, 10_000).mergeable[0].bytes.clone();
        for end in 0..part.len() {
            assert!(ForwardedBatch::read(&part[..end]).is_err(), "{end}");
        }
        for at in 0..part.len() {
            let mut changed = part.clone();
            changed[at] ^= 0x81;
            if let Ok(batch) = ForwardedBatch::read(&changed) {
                let mut parent = registry();
                batch.add_to(&mut parent, time(10_000));
                flush(&mut parent, 20_000);
            }
        }
    }
}
