//! The binary form of aggregates, for another process that continues with them.
//!
//! There are two forms. The *registry* is everything that is known at one moment: all metrics with
//! their state, totals, and the position in the sequence of flushes. An *interval* is what shards
//! have aggregated since then; adding it has the same effect as receiving its samples.
//!
//! ```text
//! registry := flushes, last timestamp: option signed, overflow keys, totals, recent bad lines,
//!             table and variant table of counters, of timers, of gauges and of sets,
//!             values with timestamps, messages, orphaned entries: 8 lists of indexes
//! table    := list of (key: text, live: bool, hits, key hits, last flush, merged: bool,
//!                      linked entry: option, state)
//! interval := packets, bytes, lines, samples, events, checks, timestamps, overflow samples,
//!             overflow keys, rejects, cells of counters, of timers, of gauges and of sets,
//!             list of timed, messages
//! cells    := list of (key: text, key as sent: option text if it differs, cell)
//! rejects  := list of (reason: text, count), list of (reason: text, line: text)
//!
//! counter  := f64 value             timer := unit: byte, weights, samples
//! weights  := option (f64 count, f64 excess of the sum), without rates none
//! samples  := 0, list of f64 | 1, sketch, samples, f64 sum, f64 squares, range
//! gauge    := option (stamp, f64) last absolute value, list of (stamp, f64) changes
//! set      := members: list of bytes, estimate: option bytes, refused samples
//! timed    := gauge: bool, option signed time, name: bytes, tags: bytes, f64, stamp, hits
//! messages := see [`super::unaggregated`]
//! ```
//!
//! The encodings of the elements are those of [`crate::binary`]. Reading checks everything that
//! another module relies on, and memory grows only with the bytes that have arrived.

use std::{mem, sync::Arc, time::SystemTime};

use hashbrown::HashMap;
use howdah_codec::ByteWriter as _;
use parking_lot::Mutex;

use super::{
    CounterState, GaugeState, KeyRegistry, ReceiveTotals, SetState, TimerState,
    cell_targets::CellTargets,
    interval_merge::resolve_names,
    prefix_limits,
    retarget::{self, OrphanedEntries},
    unaggregated::{UnaggregatedInput, read_messages, write_messages},
    variants::{CellTarget, VariantTables, cell_target},
};
use crate::{
    MetricName,
    aggregate::{
        CellTable, CounterCell, GaugeCell, InheritedTotals, KINDS, MetricType, RejectedLine,
        Rejects, SampleWeights, SetCell, ShardInterval, Sketched, TimedSample, TimedValues,
        TimerCell,
    },
    binary::{BinaryReader, BinaryWriter as _, HandoverFormatError},
    flush::{names::KeyPair, table::MetricTable},
    grammar::{RejectReason, TimingUnit},
    hyperloglog::HyperLogLog,
    sketch::Sketch,
};

/// Memory that the allocator needs for bytes of variable length, in addition to them.
const ALLOCATION_BYTES: usize = 16;

/// Returns the registry, after collecting everything that shards have aggregated.
pub(crate) fn export_registry(registry: &mut KeyRegistry, now: SystemTime) -> Vec<u8> {
    registry.collect(now);
    let mut out = Vec::new();
    out.write_varint(registry.flushes.into());
    out.write_option(registry.last_timestamp, howdah_codec::ByteWriter::write_signed);
    out.write_total(registry.overflow_keys);
    write_totals(&mut out, &registry.totals);
    out.write_count(registry.recent.len());
    for (time, recent) in &registry.recent {
        out.write_time(*time);
        write_rejected(&mut out, recent);
    }
    let variants = &mut registry.variants;
    write_table(&mut out, &mut registry.counters);
    write_table(&mut out, &mut variants.counters);
    write_table(&mut out, &mut registry.timers);
    write_table(&mut out, &mut variants.timers);
    write_table(&mut out, &mut registry.gauges);
    write_table(&mut out, &mut variants.gauges);
    write_table(&mut out, &mut registry.sets);
    write_table(&mut out, &mut variants.sets);
    registry.unaggregated.write_to(&mut out);
    let OrphanedEntries { keys, variants } = retarget::unused_orphans(registry);
    for indexes in keys.iter().chain(&variants) {
        out.write_count(indexes.len());
        indexes.iter().for_each(|index| out.write_varint((*index).into()));
    }
    out
}

/// Replaces the contents of a registry that has not collected anything yet. The settings stay
/// those of this process.
///
/// # Errors
///
/// The bytes are not those of [`export_registry`]. The registry is unchanged.
pub(crate) fn import_registry(
    registry: &mut KeyRegistry,
    bytes: &[u8],
    now: SystemTime,
) -> Result<(), HandoverFormatError> {
    let mut from = BinaryReader::new(bytes);
    let flushes = from.number()?;
    if flushes > u32::MAX / 2 {
        return Err(HandoverFormatError::Invalid("the number of flushes is too large"));
    }
    let last_timestamp = from.option(BinaryReader::signed)?;
    let overflow_keys = from.total()?;
    let totals = read_totals(&mut from)?;
    let recent = from.list(|from| Ok((from.time()?, read_rejected(from)?)))?;
    let (counters, counter_variants) = read_tables(&mut from)?;
    let (timers, timer_variants) = read_tables(&mut from)?;
    let (gauges, gauge_variants) = read_tables(&mut from)?;
    let (sets, set_variants) = read_tables(&mut from)?;
    let unaggregated = UnaggregatedInput::read_from(&mut from)?;
    let mut orphans = OrphanedEntries::default();
    let counts = [
        [counters.entry_count(), counter_variants.entry_count()],
        [timers.entry_count(), timer_variants.entry_count()],
        [gauges.entry_count(), gauge_variants.entry_count()],
        [sets.entry_count(), set_variants.entry_count()],
    ];
    for (lists, table) in [(&mut orphans.keys, 0), (&mut orphans.variants, 1)] {
        for (list, counts) in lists.iter_mut().zip(&counts) {
            *list = from.list(BinaryReader::number)?.into_iter().collect();
            if list.iter().any(|index| *index >= counts[table]) {
                return Err(HandoverFormatError::Invalid("an orphaned entry does not exist"));
            }
        }
    }
    from.finish()?;
    registry.flushes = flushes;
    registry.last_timestamp = last_timestamp;
    registry.overflow_keys = overflow_keys;
    registry.unaggregated = unaggregated;
    registry.orphans = orphans;
    registry.totals = totals;
    let recent = recent.into_iter().filter_map(|(time, line)| Some((time, line?)));
    registry.recent = recent.take(super::RECENT_MAX).collect();
    registry.counters = counters;
    registry.timers = timers;
    registry.gauges = gauges;
    registry.sets = sets;
    registry.variants = VariantTables {
        counters: counter_variants,
        timers: timer_variants,
        gauges: gauge_variants,
        sets: set_variants,
    };
    // As after a reload of these rules, and for the own counters under a new prefix.
    let settings = registry.settings.clone();
    registry.reload(&settings, now);
    // The keys count towards the limits of prefixes.
    prefix_limits::recount(registry);
    Ok(())
}

/// Takes what the shards have aggregated since the last collection, one interval per shard.
/// [`restore_intervals`] adds the intervals to the registry that they came from.
pub(crate) fn take_intervals(registry: &mut KeyRegistry, now: SystemTime) -> Vec<ShardInterval> {
    let mut shards = mem::take(&mut registry.shards);
    let intervals = shards.iter_mut().map(|source| {
        let mut interval = source.shard.swap(mem::take(&mut source.spare), false);
        resolve_names(registry, &mut interval, &mut source.targets, now);
        interval
    });
    let intervals = intervals.collect();
    registry.shards = shards;
    intervals
}

/// Adds intervals that [`take_intervals`] has returned.
pub(crate) fn restore_intervals(
    registry: &mut KeyRegistry,
    intervals: Vec<ShardInterval>,
    now: SystemTime,
) {
    let mut shards = mem::take(&mut registry.shards);
    for (source, mut interval) in shards.iter_mut().zip(intervals) {
        registry.add_interval(&mut interval, &mut source.targets, now);
    }
    registry.shards = shards;
}

/// Returns the binary form of intervals that [`take_intervals`] has returned, and of what rules and
/// limits have done, including these intervals.
pub(crate) fn export_intervals(
    registry: &mut KeyRegistry,
    intervals: &[ShardInterval],
) -> (Vec<u8>, Vec<u8>) {
    let mut out = Vec::new();
    out.write_count(intervals.len());
    // If the other process fails, these intervals are counted when they are restored.
    let counted = registry.key_rules.counts();
    let mut shards = mem::take(&mut registry.shards);
    let KeyRegistry { variants, key_rules, counters, timers, gauges, sets, .. } = registry;
    for (source, interval) in shards.iter_mut().zip(intervals) {
        let mut find = |kind, cell| source.targets.find(kind, cell, key_rules);
        write_interval_counts(&mut out, interval);
        let mut target = |cell, hits| find(MetricType::Counter, (cell, hits));
        write_cells(&mut out, &interval.counters, &mut target, (counters, &mut variants.counters));
        let mut target = |cell, hits| find(MetricType::Timer, (cell, hits));
        write_cells(&mut out, &interval.timers, &mut target, (timers, &mut variants.timers));
        let mut target = |cell, hits| find(MetricType::Gauge, (cell, hits));
        write_cells(&mut out, &interval.gauges, &mut target, (gauges, &mut variants.gauges));
        let mut target = |cell, hits| find(MetricType::Set, (cell, hits));
        write_cells(&mut out, &interval.sets, &mut target, (sets, &mut variants.sets));
        write_timed(&mut out, &interval.timed);
        write_messages(&mut out, &interval.messages);
    }
    registry.shards = shards;
    let mut rules = Vec::new();
    let definitions = retarget::definitions(&registry.settings.rules);
    registry.key_rules.write_to(&mut rules, &definitions);
    registry.key_rules.undo_counts(counted);
    (out, rules)
}

/// Continues to count what rules and limits do. [`export_intervals`] has returned the bytes.
///
/// # Errors
///
/// The bytes are not those of [`export_intervals`].
pub(crate) fn import_rules(
    registry: &mut KeyRegistry,
    bytes: &[u8],
) -> Result<(), HandoverFormatError> {
    let mut from = BinaryReader::new(bytes);
    let definitions = retarget::definitions(&registry.settings.rules);
    registry.key_rules.restore(&mut from, &definitions)?;
    from.finish()
}

/// Intervals that have been read, but not added to a registry yet.
#[derive(Debug)]
pub(crate) struct ImportedIntervals(pub(super) Vec<ImportedInterval>);

/// An interval with the keys of its cells, by metric type.
#[derive(Debug)]
pub(super) struct ImportedInterval {
    pub(super) interval: ShardInterval,
    pub(super) keys: [Vec<ImportedKey>; KINDS],
}

/// The keys of a cell; `None` if rules drop it.
pub(super) type ImportedKey = Option<KeyPair>;

impl ImportedIntervals {
    /// Reads intervals that [`export_intervals`] has written.
    ///
    /// # Errors
    ///
    /// The bytes are not those of [`export_intervals`].
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, HandoverFormatError> {
        let mut from = BinaryReader::new(bytes);
        let intervals = Self::read_from(&mut from)?;
        from.finish()?;
        Ok(intervals)
    }

    pub(super) fn read_from(from: &mut BinaryReader<'_>) -> Result<Self, HandoverFormatError> {
        let intervals = from.list(|from| {
            let mut interval = ShardInterval::default();
            read_interval_counts(from, &mut interval)?;
            let keys = [
                read_cells(from, &mut interval.counters)?,
                read_cells(from, &mut interval.timers)?,
                read_cells(from, &mut interval.gauges)?,
                read_cells(from, &mut interval.sets)?,
            ];
            read_timed(from, &mut interval.timed)?;
            interval.messages = read_messages(from)?;
            Ok(ImportedInterval { interval, keys })
        })?;
        Ok(Self(intervals))
    }

    /// Adds the intervals to a registry.
    pub(crate) fn add_to(self, registry: &mut KeyRegistry, now: SystemTime) {
        for ImportedInterval { mut interval, keys } in self.0 {
            let [counters, timers, gauges, sets] = &keys;
            let variants = &mut registry.variants;
            let mut targets = CellTargets::determined([
                find_targets(&mut registry.counters, &mut variants.counters, counters),
                find_targets(&mut registry.timers, &mut variants.timers, timers),
                find_targets(&mut registry.gauges, &mut variants.gauges, gauges),
                find_targets(&mut registry.sets, &mut variants.sets, sets),
            ]);
            registry.add_interval(&mut interval, &mut targets, now);
        }
    }
}

fn find_targets<S: Default + Clone>(
    table: &mut MetricTable<S>,
    variants: &mut MetricTable<S>,
    keys: &[ImportedKey],
) -> Vec<Option<CellTarget>> {
    let mut find = |KeyPair { key, sent }: &KeyPair| cell_target(table, variants, key, sent);
    keys.iter().map(|keys| keys.as_ref().map(&mut find)).collect()
}

/// Returns the last totals of counters whose senders report all counts since their start, in the
/// binary form below. `sockets` has the label of the socket of each shard: a sender uses the same
/// socket in the other process. At the end are the totals whose senders have not come back since
/// an earlier process handed over to this one, which does not have their socket.
///
/// ```text
/// totals := list of (socket: text, entries), entries
/// entries := list of (key: bytes, f64 total)
/// ```
pub(crate) fn export_running_totals(registry: &KeyRegistry, sockets: &[String]) -> Vec<u8> {
    let mut out = Vec::new();
    out.write_count(registry.shards.len().min(sockets.len()));
    for (source, socket) in registry.shards.iter().zip(sockets) {
        out.write_text(socket);
        source.shard.with_running_totals(|totals| write_entries(&mut out, totals.iter()));
    }
    // All shards share these.
    let first = registry.shards.first();
    let inherited = first.and_then(|one| one.shard.with_running_totals(|one| one.inherited()));
    let inherited = inherited.unwrap_or_default();
    let inherited = inherited.lock();
    write_entries(&mut out, inherited.iter().map(|(key, total)| (&**key, *total)));
    out
}

fn write_entries<'t>(out: &mut Vec<u8>, entries: impl ExactSizeIterator<Item = (&'t [u8], f64)>) {
    out.write_count(entries.len());
    for (key, total) in entries {
        out.write_bytes(key);
        out.write_f64(total);
    }
}

/// Continues the totals that [`export_running_totals`] has returned: each shard those of its
/// socket. Senders to sockets that this process does not have may now use others, so all shards
/// find their totals.
///
/// # Errors
///
/// The bytes are not those of [`export_running_totals`].
pub(crate) fn import_running_totals(
    registry: &KeyRegistry,
    sockets: &[String],
    bytes: &[u8],
) -> Result<(), HandoverFormatError> {
    let mut from = BinaryReader::new(bytes);
    let read = |from: &mut BinaryReader<'_>| Ok((Box::from(from.bytes()?), from.f64()?));
    let shards = from.list(|from| {
        let socket = from.text()?.to_owned();
        Ok((socket, from.list(read)?.into_iter().collect::<HashMap<_, _>>()))
    })?;
    let mut others: HashMap<Box<[u8]>, f64> = from.list(read)?.into_iter().collect();
    from.finish()?;
    // Several readers of an address have the same label, and the same order in both processes.
    let mut unmatched: Vec<_> = registry.shards.iter().zip(sockets).collect();
    for (socket, read) in shards {
        match unmatched.iter().position(|(_, own)| **own == socket) {
            Some(at) => {
                let (source, _) = unmatched.remove(at);
                source.shard.with_running_totals(|totals| totals.restore(read));
            }
            None => others.extend(read),
        }
    }
    if !others.is_empty() {
        let others: InheritedTotals = Arc::new(Mutex::new(others));
        for source in &registry.shards {
            source.shard.with_running_totals(|totals| totals.inherit(&others));
        }
    }
    Ok(())
}

/// Returns a stamp that is later than those of all gauge values received so far.
pub(crate) fn last_stamp(registry: &KeyRegistry) -> u64 {
    registry.stamps.next()
}

/// Makes the stamps of further gauge values later than `stamp`.
pub(crate) fn continue_stamps(registry: &KeyRegistry, stamp: u64) {
    registry.stamps.raise_to(stamp.saturating_add(1));
}

/// A value that is handed over.
pub(super) trait HandedOver: Default {
    fn write_to(&self, out: &mut Vec<u8>);
    fn read_from(from: &mut BinaryReader<'_>) -> Result<Self, HandoverFormatError>;
}

fn write_table<S: HandedOver>(out: &mut Vec<u8>, table: &mut MetricTable<S>) {
    out.write_count(table.entry_count() as usize);
    for index in 0..table.entry_count() {
        let live = table.is_live(index);
        let entry = table.entry(index);
        out.write_text(entry.name.key());
        out.write_bool(live);
        out.write_varint(entry.hits.into());
        out.write_varint(entry.key_hits.into());
        out.write_varint(entry.last_flush.into());
        out.write_bool(entry.merged);
        out.write_option(entry.linked, |out, linked| out.write_varint(linked.into()));
        entry.state.write_to(out);
    }
}

/// Reads a table and its variant table, and checks the links between them.
fn read_tables<S: HandedOver>(
    from: &mut BinaryReader<'_>,
) -> Result<(MetricTable<S>, MetricTable<S>), HandoverFormatError> {
    let (mut table, mut variants) = (read_table(from)?, read_table(from)?);
    check_links(&mut table, variants.entry_count())?;
    check_links(&mut variants, table.entry_count())?;
    Ok((table, variants))
}

fn read_table<S: HandedOver>(
    from: &mut BinaryReader<'_>,
) -> Result<MetricTable<S>, HandoverFormatError> {
    let mut table = MetricTable::default();
    for _ in 0..from.count()? {
        let entries = table.entry_count();
        let index = table.intern(&MetricName::new(from.text()?));
        if index != entries {
            return Err(HandoverFormatError::Invalid("a key occurs twice"));
        }
        if from.bool()? {
            table.activate(index);
        }
        let entry = table.entry(index);
        entry.hits = from.number()?;
        entry.key_hits = from.number()?;
        entry.last_flush = from.number()?;
        entry.merged = from.bool()?;
        entry.linked = from.option(BinaryReader::number)?;
        entry.state = S::read_from(from)?;
    }
    Ok(table)
}

fn check_links<S: Default>(
    table: &mut MetricTable<S>,
    others: u32,
) -> Result<(), HandoverFormatError> {
    for index in 0..table.entry_count() {
        if table.entry(index).linked.is_some_and(|linked| linked >= others) {
            return Err(HandoverFormatError::Invalid("a key is linked to an unknown one"));
        }
    }
    Ok(())
}

fn write_cells<C: HandedOver + UsedCell, S: Default>(
    out: &mut Vec<u8>,
    cells: &CellTable<C>,
    target: &mut dyn FnMut(usize, u32) -> Option<CellTarget>,
    (table, variants): (&mut MetricTable<S>, &mut MetricTable<S>),
) {
    // Rules may drop the samples of a cell.
    let used = cells.iter().filter_map(|(at, cell)| Some((target(at, cell.hits())?, cell)));
    let used: Vec<(CellTarget, &C)> = used.collect();
    out.write_count(used.len());
    for (CellTarget { key, variant }, cell) in used {
        out.write_text(table.entry(key).name.key());
        out.write_option(variant, |out, sent| out.write_text(variants.entry(sent).name.key()));
        cell.write_to(out);
    }
}

fn read_cells<C: HandedOver>(
    from: &mut BinaryReader<'_>,
    cells: &mut CellTable<C>,
) -> Result<Vec<ImportedKey>, HandoverFormatError> {
    from.list(|from| {
        let key = from.name()?;
        let sent = from.option(BinaryReader::name)?;
        from.charge(size_of::<C>())?;
        cells.push(C::read_from(from)?);
        let sent = sent.unwrap_or_else(|| key.clone());
        Ok(Some(KeyPair { key, sent }))
    })
}

/// A cell that knows its number of samples.
pub(super) trait UsedCell {
    fn hits(&self) -> u32;
}

impl UsedCell for CounterCell {
    fn hits(&self) -> u32 {
        self.hits
    }
}

impl UsedCell for TimerCell {
    fn hits(&self) -> u32 {
        self.hits
    }
}

impl UsedCell for GaugeCell {
    fn hits(&self) -> u32 {
        self.hits
    }
}

impl UsedCell for SetCell {
    fn hits(&self) -> u32 {
        self.hits
    }
}

impl HandedOver for CounterState {
    fn write_to(&self, out: &mut Vec<u8>) {
        out.write_f64(self.value);
        out.write_f64(self.total);
        out.write_total(self.since_ms);
    }

    fn read_from(from: &mut BinaryReader<'_>) -> Result<Self, HandoverFormatError> {
        Ok(Self { value: from.f64()?, total: from.f64()?, since_ms: from.total()? })
    }
}

impl HandedOver for TimerState {
    fn write_to(&self, out: &mut Vec<u8>) {
        write_unit(out, self.unit);
        self.weights.write_to(out);
        write_samples(out, &self.samples, self.sketched.as_deref());
        out.write_option(self.cumulative.as_ref(), |out, sketch| sketch.write_to(out));
        out.write_f64(self.count_total);
        out.write_f64(self.sum_total);
        out.write_total(self.since_ms);
    }

    fn read_from(from: &mut BinaryReader<'_>) -> Result<Self, HandoverFormatError> {
        let unit = read_unit(from)?;
        let weights = SampleWeights::read_from(from)?;
        let (samples, sketched) = read_samples(from)?;
        Ok(Self {
            samples,
            sketched,
            weights,
            unit,
            cumulative: from.option(Sketch::read_from)?.map(Arc::new),
            count_total: from.f64()?,
            sum_total: from.f64()?,
            since_ms: from.total()?,
        })
    }
}

impl HandedOver for GaugeState {
    fn write_to(&self, out: &mut Vec<u8>) {
        out.write_option(self.before, crate::binary::BinaryWriter::write_f64);
        self.running.write_to(out);
        out.write_option(self.ttl, |out, flushes| out.write_varint(flushes.into()));
    }

    fn read_from(from: &mut BinaryReader<'_>) -> Result<Self, HandoverFormatError> {
        Ok(Self {
            before: from.option(BinaryReader::f64)?,
            running: GaugeCell::read_from(from)?,
            ttl: from.option(BinaryReader::number)?,
        })
    }
}

impl HandedOver for SetState {
    fn write_to(&self, out: &mut Vec<u8>) {
        write_members(out, &self.members, self.estimate.as_deref());
        out.write_total(self.refused);
    }

    fn read_from(from: &mut BinaryReader<'_>) -> Result<Self, HandoverFormatError> {
        let (members, estimate) = read_members(from)?;
        Ok(Self { members, estimate, refused: from.total()? })
    }
}

impl HandedOver for CounterCell {
    fn write_to(&self, out: &mut Vec<u8>) {
        out.write_f64(self.sum);
        out.write_varint(self.hits.into());
    }

    fn read_from(from: &mut BinaryReader<'_>) -> Result<Self, HandoverFormatError> {
        Ok(Self { sum: from.f64()?, hits: from.number()? })
    }
}

impl HandedOver for TimerCell {
    fn write_to(&self, out: &mut Vec<u8>) {
        write_unit(out, self.unit);
        self.weights.write_to(out);
        write_samples(out, &self.samples, self.sketched.as_deref());
        out.write_varint(self.hits.into());
    }

    fn read_from(from: &mut BinaryReader<'_>) -> Result<Self, HandoverFormatError> {
        let unit = read_unit(from)?;
        let weights = SampleWeights::read_from(from)?;
        let (samples, sketched) = read_samples(from)?;
        Ok(Self { samples, sketched, weights, unit, hits: from.number()? })
    }
}

impl HandedOver for GaugeCell {
    fn write_to(&self, out: &mut Vec<u8>) {
        let operation = |out: &mut Vec<u8>, (stamp, value): (u64, f64)| {
            out.write_varint(stamp);
            out.write_f64(value);
        };
        out.write_option(self.set, operation);
        out.write_count(self.changes.len());
        self.changes.iter().for_each(|change| operation(out, *change));
        out.write_varint(self.hits.into());
    }

    fn read_from(from: &mut BinaryReader<'_>) -> Result<Self, HandoverFormatError> {
        let operation = |from: &mut BinaryReader<'_>| Ok((from.stamp()?, from.f64()?));
        Ok(Self {
            set: from.option(operation)?,
            changes: from.list(operation)?,
            hits: from.number()?,
        })
    }
}

impl HandedOver for SetCell {
    fn write_to(&self, out: &mut Vec<u8>) {
        write_members(out, &self.members, self.estimate.as_deref());
        out.write_total(self.refused);
        out.write_varint(self.hits.into());
    }

    fn read_from(from: &mut BinaryReader<'_>) -> Result<Self, HandoverFormatError> {
        let (members, estimate) = read_members(from)?;
        Ok(Self { members, estimate, refused: from.total()?, hits: from.number()? })
    }
}

fn write_unit(out: &mut Vec<u8>, unit: TimingUnit) {
    out.push(match unit {
        TimingUnit::Milliseconds => 0,
        TimingUnit::Plain => 1,
    });
}

fn read_unit(from: &mut BinaryReader<'_>) -> Result<TimingUnit, HandoverFormatError> {
    match from.byte()? {
        0 => Ok(TimingUnit::Milliseconds),
        1 => Ok(TimingUnit::Plain),
        _ => Err(HandoverFormatError::Invalid("a timer has an unknown unit")),
    }
}

fn write_samples(out: &mut Vec<u8>, samples: &[f64], sketched: Option<&Sketched>) {
    out.write_bool(sketched.is_some());
    match sketched {
        None => {
            out.write_count(samples.len());
            samples.iter().for_each(|value| out.write_f64(*value));
        }
        Some(sketched) => {
            sketched.sketch.write_to(out);
            out.write_total(sketched.samples);
            out.write_f64(sketched.sum);
            out.write_f64(sketched.sum_squares);
            out.write_option(sketched.range, |out, (lower, upper)| {
                out.write_f64(lower);
                out.write_f64(upper);
            });
        }
    }
}

/// The exact samples of a timer, or its sketch.
type ReadSamples = (Vec<f64>, Option<Box<Sketched>>);

fn read_samples(from: &mut BinaryReader<'_>) -> Result<ReadSamples, HandoverFormatError> {
    if !from.bool()? {
        return Ok((from.list(BinaryReader::f64)?, None));
    }
    from.charge(size_of::<Sketched>())?;
    let sketched = Sketched {
        sketch: Sketch::read_from(from)?,
        samples: from.total()?,
        sum: from.f64()?,
        sum_squares: from.f64()?,
        range: from.option(BinaryReader::range)?,
    };
    if sketched.range.is_none() || sketched.sketch.range().is_none() {
        return Err(HandoverFormatError::Invalid("a sketch has no samples"));
    }
    Ok((Vec::new(), Some(Box::new(sketched))))
}

type MemberSet = hashbrown::HashSet<Box<[u8]>>;

/// The members of a set, or the estimate of their number.
type SetContent = (MemberSet, Option<Box<HyperLogLog>>);

fn write_members(out: &mut Vec<u8>, members: &MemberSet, estimate: Option<&HyperLogLog>) {
    out.write_count(members.len());
    members.iter().for_each(|member| out.write_bytes(member));
    out.write_option(estimate, |out, estimate| out.write_bytes(&estimate.to_bytes()));
}

fn read_members(from: &mut BinaryReader<'_>) -> Result<SetContent, HandoverFormatError> {
    let member = |from: &mut BinaryReader<'_>| {
        let member = from.bytes()?;
        // Once in the list, and once in the table, of which an eighth to half is empty.
        from.charge(member.len() + ALLOCATION_BYTES + 2 * size_of::<Box<[u8]>>())?;
        Ok(member.into())
    };
    let members = from.list(member)?.into_iter().collect();
    let estimate = from.option(|from| {
        let estimate = HyperLogLog::from_bytes(from.bytes()?);
        let estimate =
            estimate.ok_or(HandoverFormatError::Invalid("the estimate of a set is invalid"))?;
        from.charge(size_of::<HyperLogLog>() + estimate.heap_bytes())?;
        Ok(estimate)
    })?;
    match (members, estimate) {
        (members, Some(_)) if !MemberSet::is_empty(&members) => {
            Err(HandoverFormatError::Invalid("a set has members and an estimate"))
        }
        (members, estimate) => Ok((members, estimate.map(Box::new))),
    }
}

fn write_timed(out: &mut Vec<u8>, timed: &TimedValues) {
    out.write_count(timed.len());
    for TimedSample { kind, time, name, tags, value, stamp, hits } in timed.iter() {
        out.write_bool(kind == MetricType::Gauge);
        out.write_option(time, Vec::write_signed);
        out.write_bytes(name);
        out.write_bytes(tags);
        out.write_f64(value);
        out.write_varint(stamp);
        out.write_total(hits);
    }
}

fn read_timed(
    from: &mut BinaryReader<'_>,
    timed: &mut TimedValues,
) -> Result<(), HandoverFormatError> {
    for _ in 0..from.count()? {
        let kind = if from.bool()? { MetricType::Gauge } else { MetricType::Counter };
        let sample = TimedSample {
            kind,
            time: from.option(BinaryReader::signed)?,
            name: from.bytes()?,
            tags: from.bytes()?,
            value: from.f64()?,
            stamp: from.stamp()?,
            hits: from.total()?,
        };
        from.charge(2 * size_of::<TimedSample<'_>>() + sample.name.len() + sample.tags.len())?;
        timed.restore(sample);
    }
    Ok(())
}

pub(super) fn write_interval_counts(out: &mut Vec<u8>, interval: &ShardInterval) {
    for count in [
        interval.packets,
        interval.bytes,
        interval.lines,
        interval.samples,
        interval.events,
        interval.checks,
        interval.timestamps,
        interval.overflow_samples,
        interval.overflow_keys,
    ] {
        out.write_total(count);
    }
    write_rejects(out, &interval.rejects);
}

fn read_interval_counts(
    from: &mut BinaryReader<'_>,
    interval: &mut ShardInterval,
) -> Result<(), HandoverFormatError> {
    for count in [
        &mut interval.packets,
        &mut interval.bytes,
        &mut interval.lines,
        &mut interval.samples,
        &mut interval.events,
        &mut interval.checks,
        &mut interval.timestamps,
        &mut interval.overflow_samples,
        &mut interval.overflow_keys,
    ] {
        *count = from.total()?;
    }
    interval.rejects = read_rejects(from)?;
    Ok(())
}

fn write_totals(out: &mut Vec<u8>, totals: &ReceiveTotals) {
    for count in [
        totals.packets,
        totals.bytes,
        totals.lines,
        totals.samples,
        totals.events,
        totals.checks,
        totals.messages_dropped,
        totals.timestamps,
        totals.overflow_samples,
    ] {
        out.write_total(count);
    }
    write_rejects(out, &totals.rejects);
    out.write_option(totals.last_packet, Vec::write_time);
}

fn read_totals(from: &mut BinaryReader<'_>) -> Result<ReceiveTotals, HandoverFormatError> {
    let mut totals = ReceiveTotals::default();
    for count in [
        &mut totals.packets,
        &mut totals.bytes,
        &mut totals.lines,
        &mut totals.samples,
        &mut totals.events,
        &mut totals.checks,
        &mut totals.messages_dropped,
        &mut totals.timestamps,
        &mut totals.overflow_samples,
    ] {
        *count = from.total()?;
    }
    totals.rejects = read_rejects(from)?;
    totals.last_packet = from.option(BinaryReader::time)?;
    Ok(totals)
}

/// Appends rejects. Reasons are names, because versions differ in them.
fn write_rejects(out: &mut Vec<u8>, rejects: &Rejects) {
    let counts = RejectReason::ALL.map(|reason| (reason, rejects.count(reason)));
    let used = || counts.iter().filter(|(_, count)| *count > 0);
    out.write_count(used().count());
    for (reason, count) in used() {
        out.write_text(reason.as_str());
        out.write_total(*count);
    }
    out.write_count(rejects.recent.len());
    rejects.recent.iter().for_each(|line| write_rejected(out, line));
}

fn read_rejects(from: &mut BinaryReader<'_>) -> Result<Rejects, HandoverFormatError> {
    let mut rejects = Rejects::default();
    for _ in 0..from.count()? {
        let reason = find_reason(from.text()?);
        let count = from.total()?;
        if let Some(reason) = reason {
            rejects.add_count(reason, count);
        }
    }
    for _ in 0..from.count()? {
        rejects.recent.extend(read_rejected(from)?);
    }
    Ok(rejects)
}

fn write_rejected(out: &mut Vec<u8>, rejected: &RejectedLine) {
    out.write_text(rejected.reason.as_str());
    out.write_text(&rejected.line);
}

/// Reads a rejected line; `None` if its reason is not known in this version.
fn read_rejected(from: &mut BinaryReader<'_>) -> Result<Option<RejectedLine>, HandoverFormatError> {
    let (reason, line) = (find_reason(from.text()?), from.text()?);
    from.charge(2 * size_of::<RejectedLine>() + line.len())?;
    Ok(reason.map(|reason| RejectedLine { reason, line: line.to_owned() }))
}

fn find_reason(name: &str) -> Option<RejectReason> {
    RejectReason::ALL.into_iter().find(|reason| reason.as_str() == name)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;
    use crate::{
        backends::SnapshotRequirements,
        flush::{FlushSnapshot, FlushTime, ReceivedMessage},
        ledger::LossAccount,
        settings::{ExtraTypes, SetOverflow, StatsdDialect, StatsdSettings},
    };

    fn time(ms: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(ms)
    }

    const DIALECTS: [StatsdDialect; 2] = [StatsdDialect::Etsy, StatsdDialect::Dogstatsd];

    const PACKETS: [&str; 3] = [
        "hits:3|c|@0.1\nt:1:2.5|ms\nd:7|d\ng:5|g\ng:+1.5|g\nu:ann|s\nu:bob|s\nbad\na/b:1|c\na-b:2|c\n\
         t/d:1|c|T15\nt/d:4|g|T16\nk:1|kv\nall:100|C\n_e{2,1}:up|x|d:5\nmany:1|s\nmany:2|s\nmany:3|s\n\
         gone.a:1|c\nold.a:2|c\nteam.a:1|c\nteam.b:2|c\nteam.c:4|c\ncut.a:1|g\ncut.b:2|g",
        "hits:0.1|c\nt:4|ms|@0.5\ng:-2|g\nu:ann|s\nu:eve|s\nonly.delta:+3|g\nr\u{e9}s:1|c\nmany:4|s\n\
         t/d:2|c|T15\nt/d:6|g|T16\nk:2|kv\nall:130|C\n_sc|db|1|d:6\nmany:1|s\nmany:5|s\nmany:6|s\n\
         gone.a:1|c\ngone.b:1|ms\nold.a:2|c\nteam.c:8|c\nteam.d:16|c\ncut.b:3|g\ngone.t:1|c|T15",
        "hits:1|c\nnew:1|c\ng:9|g\nt:3|ms\na/b:1|c\nt/d:8|c|T15\nall:131|C\nmany:7|s\ngone.b:1|ms\n\
         team.a:32|c\nteam.d:64|c\ncut.a:4|g",
    ];

    fn settings(dialect: StatsdDialect) -> StatsdSettings {
        let mut settings: StatsdSettings = toml::from_str(
            r#"
            rules = [
                { id = "gone", name = "gone.*", action = "drop" },
                { id = "new", name = "old.*", rename = "new.$1" },
            ]
            limits.prefix = [{ prefix = "team.", keys = 2 }, { prefix = "cut.", keys = 1, excess = "drop" }]
            "#,
        )
        .unwrap();
        settings.dialect = dialect;
        settings.types = ExtraTypes { kv: true, absolute_counter: true };
        settings.limits.exact_samples = 3;
        settings.limits.set_members = 2;
        settings.limits.set_overflow = SetOverflow::Estimate;
        settings
    }

    fn registry(dialect: StatsdDialect) -> KeyRegistry {
        let needs = SnapshotRequirements {
            distributions: true,
            names_as_sent: true,
            messages: true,
            mergeable: true,
            ..SnapshotRequirements::default()
        };
        KeyRegistry::new(&settings(dialect), needs, time(1_000))
    }

    fn flush(registry: &mut KeyRegistry, ms: u64) -> FlushSnapshot {
        let time = FlushTime { now: time(ms), lag: Duration::ZERO };
        registry.flush(time, LossAccount::default())
    }

    /// Shows everything that backends see, except times of the real clock.
    fn text(mut snapshot: FlushSnapshot) -> String {
        snapshot.self_metrics.processing_ms = 0.0;
        let messages = snapshot.messages.iter().cloned();
        let untimed = messages.map(|message| ReceivedMessage { received: UNIX_EPOCH, ..message });
        snapshot.messages = untimed.collect();
        snapshot.mergeable = Arc::default();
        format!("{snapshot:#?}")
    }

    /// Applies all packets in turn, with a flush after the first; `hand_over` may replace the
    /// registry after each.
    fn run(dialect: StatsdDialect, hand_over: impl Fn(KeyRegistry) -> KeyRegistry) -> Vec<String> {
        let mut registry = registry(dialect);
        registry.shard();
        let mut snapshots = Vec::new();
        for (at, packet) in (2..).zip(PACKETS) {
            registry.shards[0].shard.lock().apply_packet(packet.as_bytes());
            registry = hand_over(registry);
            if at != 3 {
                snapshots.push(text(flush(&mut registry, at * 10_000)));
            }
        }
        // Idle metrics continue, too.
        snapshots.push(text(flush(&mut registry, 50_000)));
        snapshots
    }

    /// Compares the lines of snapshots.
    fn assert_same(snapshots: &[String], expected: &[String]) {
        for (snapshot, expected) in snapshots.iter().zip(expected) {
            let mut lines = snapshot.lines().zip(expected.lines());
            if let Some(at) = lines.position(|(one, other)| one != other) {
                let part = |text: &str| {
                    let lines = text.lines().skip(at.saturating_sub(20)).take(40);
                    lines.collect::<Vec<_>>().join("\n")
                };
                panic!("{}\ninstead of\n{}", part(snapshot), part(expected));
            }
        }
        assert_eq!(snapshots.len(), expected.len());
    }

    /// The labels of the shards' sockets. Those of another number of shards are other sockets.
    fn sockets(shards: usize) -> Vec<String> {
        (0..shards).map(|number| format!("socket {number} of {shards}")).collect()
    }

    /// A registry with some shards that continues with an exported one.
    fn successor(
        old: &KeyRegistry,
        bytes: &[u8],
        shards: usize,
    ) -> Result<KeyRegistry, HandoverFormatError> {
        let mut successor = registry(old.settings.dialect);
        (0..shards).for_each(|_| drop(successor.shard()));
        import_registry(&mut successor, bytes, time(9_000))?;
        let totals = export_running_totals(old, &sockets(old.shards.len()));
        import_running_totals(&successor, &sockets(shards), &totals)?;
        continue_stamps(&successor, last_stamp(old));
        Ok(successor)
    }

    #[test]
    fn registry_continues_in_another_process() {
        for dialect in DIALECTS {
            let expected = run(dialect, |mut registry| {
                registry.collect(time(9_000));
                registry
            });
            let rules = registry(dialect).settings.rules;
            let definitions = retarget::definitions(&rules);
            assert!(definitions["new"].contains("old.*"), "{definitions:?}");
            let all = expected.concat();
            for part in ["up", "HyperLogLog(3)", "new.a", "team.overflow", "\"cut.\"", "\"gone\""] {
                assert!(all.contains(part), "{part}");
            }
            for shards in [1, 2] {
                let handed_over = run(dialect, |mut registry| {
                    let bytes = export_registry(&mut registry, time(9_000));
                    let intervals = take_intervals(&mut registry, time(9_000));
                    let (_, rules) = export_intervals(&mut registry, &intervals);
                    let mut successor = successor(&registry, &bytes, shards).unwrap();
                    import_rules(&mut successor, &rules).unwrap();
                    successor
                });
                assert_same(&handed_over, &expected);
            }
        }
    }

    #[test]
    fn samples_after_the_export_follow_as_an_interval() {
        for dialect in DIALECTS {
            let run_with = |is_aborted: bool| {
                run(dialect, |mut registry| {
                    let bytes = export_registry(&mut registry, time(9_000));
                    registry.shards[0].shard.lock().apply_packet(PACKETS[1].as_bytes());
                    let intervals = take_intervals(&mut registry, time(9_000));
                    let (last, rules) = export_intervals(&mut registry, &intervals);
                    if is_aborted {
                        restore_intervals(&mut registry, intervals, time(9_000));
                        return registry;
                    }
                    let mut successor = successor(&registry, &bytes, 1).unwrap();
                    let last = ImportedIntervals::read(&last).unwrap();
                    last.add_to(&mut successor, time(9_000));
                    import_rules(&mut successor, &rules).unwrap();
                    successor
                })
            };
            let uninterrupted = run(dialect, |mut registry| {
                registry.collect(time(9_000));
                registry.shards[0].shard.lock().apply_packet(PACKETS[1].as_bytes());
                registry.collect(time(9_000));
                registry
            });
            assert_same(&run_with(true), &uninterrupted);
            assert_same(&run_with(false), &uninterrupted);
        }
    }

    #[test]
    fn running_totals_stay_with_their_socket() {
        /// A process with these sockets that continues the totals of another one.
        fn continued(sockets: &[String], before: Option<(&KeyRegistry, &[String])>) -> KeyRegistry {
            let mut registry = registry(StatsdDialect::Etsy);
            sockets.iter().for_each(|_| drop(registry.shard()));
            if let Some((old, of)) = before {
                let totals = export_running_totals(old, of);
                import_running_totals(&registry, sockets, &totals).unwrap();
            }
            registry
        }
        fn count(registry: &mut KeyRegistry, key: &str) -> Option<f64> {
            let snapshot = flush(registry, 20_000);
            let counter = snapshot.counters.iter().find(|counter| counter.name.key() == key);
            counter.map(|counter| counter.value)
        }
        let send = |registry: &KeyRegistry, shard: usize, packet: &str| {
            registry.shards[shard].shard.lock().apply_packet(packet.as_bytes());
        };
        let [a, b, c] = ["a", "b", "c"].map(str::to_owned);
        let first = [a.clone(), b.clone()];
        let old = continued(&first, None);
        send(&old, 0, "all:100|C");
        send(&old, 1, "all:1000|C\nlate:50|C");
        // The settings name the sockets in the other order.
        let second = [b, a.clone()];
        let mut new = continued(&second, Some((&old, &first)));
        send(&new, 0, "all:1001|C");
        send(&new, 1, "all:102|C");
        assert_eq!(count(&mut new, "all"), Some(3.0));
        // Socket b is gone, and its sender comes back only after one more takeover.
        let third = [a.clone()];
        let without = continued(&third, Some((&new, &second)));
        let fourth = [a, c];
        let mut last = continued(&fourth, Some((&without, &third)));
        send(&last, 1, "late:57|C");
        assert_eq!(count(&mut last, "late"), Some(7.0));
    }

    #[test]
    fn truncated_or_changed_bytes_do_not_panic() {
        let dialect = StatsdDialect::Dogstatsd;
        let mut old = registry(dialect);
        let shard = old.shard();
        shard.lock().apply_packet(PACKETS[0].as_bytes());
        let bytes = export_registry(&mut old, time(9_000));
        shard.lock().apply_packet(PACKETS[1].as_bytes());
        let intervals = take_intervals(&mut old, time(9_000));
        let (last, rules) = export_intervals(&mut old, &intervals);
        let totals = export_running_totals(&old, &sockets(1));
        let imported = |bytes: &[u8]| {
            let mut successor = registry(dialect);
            import_registry(&mut successor, bytes, time(9_000)).map(|()| successor)
        };
        for end in 0..bytes.len() {
            assert!(imported(&bytes[..end]).is_err(), "{end}");
        }
        for end in 0..last.len() {
            assert!(ImportedIntervals::read(&last[..end]).is_err(), "{end}");
        }
        for end in 0..rules.len() {
            assert!(import_rules(&mut registry(dialect), &rules[..end]).is_err(), "{end}");
        }
        for end in 0..totals.len() {
            let imported = import_running_totals(&old, &sockets(1), &totals[..end]);
            assert!(imported.is_err(), "{end}");
        }
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x81;
            if let Ok(mut registry) = imported(&changed) {
                flush(&mut registry, 20_000);
            }
        }
        for at in 0..last.len() {
            let mut changed = last.clone();
            changed[at] ^= 0x81;
            if let Ok(read) = ImportedIntervals::read(&changed) {
                let mut registry = imported(&bytes).unwrap();
                read.add_to(&mut registry, time(9_000));
                flush(&mut registry, 20_000);
            }
        }
    }
}
