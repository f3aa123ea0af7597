//! The values of one interval, indexed by the shard's cell numbers.

use std::mem;

use hashbrown::HashSet;
use md5::{Digest as _, Md5};

use super::{MessageBuffer, MetricType, Rejects, SampleWeights, TimedValues, keys::RawKey};
use crate::{
    grammar::TimingUnit,
    hyperloglog::HyperLogLog,
    settings::{SetOverflow, StatsdLimits},
    sketch::Sketch,
};

/// The values that one shard aggregated between two swaps.
///
/// The registry reads them, empties the interval with [`clear`](Self::clear), and passes it back as
/// the next spare. So steady traffic needs no allocations.
#[derive(Debug, Default)]
pub struct ShardInterval {
    /// Packets applied to the shard.
    pub packets: u64,
    /// Bytes in the applied packets.
    pub bytes: u64,
    /// Non-empty lines in the applied packets.
    pub lines: u64,
    /// Parsed samples, including those then rejected because of their key or a limit.
    pub samples: u64,
    /// DogStatsD events.
    pub events: u64,
    /// DogStatsD service checks.
    pub checks: u64,
    /// DogStatsD timestamps that were ignored.
    pub timestamps: u64,
    /// Samples counted under the overflow keys.
    pub overflow_samples: u64,
    /// Estimated number of distinct keys among the overflow samples.
    pub overflow_keys: u64,
    /// Values and lines that could not be used.
    pub rejects: Rejects,
    /// Keys that were assigned a cell since the last swap.
    pub names: NewNames,
    /// Counters, indexed by cell number.
    pub counters: CellTable<CounterCell>,
    /// Timers, histograms and distributions.
    pub timers: CellTable<TimerCell>,
    /// Gauges; each cell holds the operations of the interval, not the resulting value.
    pub gauges: CellTable<GaugeCell>,
    /// Sets, with their distinct members.
    pub sets: CellTable<SetCell>,
    /// Counters and gauges with a timestamp from their sender.
    pub timed: TimedValues,
    /// Events and service checks, if they are stored.
    pub messages: MessageBuffer,
    /// Number of keys that the shard knew at the time of the swap.
    pub keys: usize,
    /// Number of timer samples stored exactly, in all timers of the shard.
    pub(super) exact_samples: usize,
}

impl ShardInterval {
    /// Empties the interval for use as the spare of a later swap; retains its memory.
    pub fn clear(&mut self) {
        self.counters.clear();
        self.timers.clear();
        self.gauges.clear();
        self.sets.clear();
        let Self { counters, timers, gauges, sets, mut names, .. } = mem::take(self);
        names.clear();
        *self = Self { counters, timers, gauges, sets, names, ..Self::default() };
    }
}

/// Keys newly assigned a cell. All names share one buffer, because a million new keys may arrive at
/// once.
#[derive(Debug, Default)]
pub struct NewNames {
    entries: Vec<NewNameEntry>,
    text: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct NewNameEntry {
    name_bytes: u32,
    tags_bytes: u32,
    kind: MetricType,
    overflow: bool,
}

/// A key newly assigned a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewName<'t> {
    /// The metric type, which determines the table of the cell.
    pub kind: MetricType,
    /// The name as received.
    pub name: &'t [u8],
    /// The tags as received, followed by `|` and the container if there is one.
    pub tags: &'t [u8],
    /// Whether this is the server's own overflow key, which must not be sanitised.
    pub overflow: bool,
}

/// A key to be assigned a cell.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewKey<'k> {
    pub(super) kind: MetricType,
    pub(super) key: RawKey<'k>,
    /// As in [`NewName`].
    pub(super) overflow: bool,
}

impl NewNames {
    /// Maximum number of entries whose memory is retained: steady traffic has few new keys.
    const RETAINED_ENTRIES: usize = 4096;

    pub(super) fn push(&mut self, new: NewKey<'_>) {
        let NewKey { kind, key, overflow } = new;
        // Both lengths are far below `u32::MAX`, because name and tags came in one packet.
        let (name_bytes, tags_bytes) = (key.name.len() as u32, key.tail_bytes() as u32);
        self.entries.push(NewNameEntry { name_bytes, tags_bytes, kind, overflow });
        self.text.extend_from_slice(key.name);
        key.push_tail(&mut self.text);
    }

    /// Returns all keys in the order in which they were assigned cells.
    pub fn iter(&self) -> impl Iterator<Item = NewName<'_>> {
        let mut rest = self.text.as_slice();
        self.entries.iter().map(move |entry| {
            let (name, after) = rest.split_at(entry.name_bytes as usize);
            let (tags, after) = after.split_at(entry.tags_bytes as usize);
            rest = after;
            NewName { kind: entry.kind, name, tags, overflow: entry.overflow }
        })
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no key was assigned a cell.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Removes all keys.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.text.clear();
        self.entries.shrink_to(Self::RETAINED_ENTRIES);
        self.text.shrink_to(64 * Self::RETAINED_ENTRIES);
    }
}

/// Cells of one metric type, with a list of those used in the interval.
#[derive(Debug)]
pub struct CellTable<C> {
    cells: Vec<C>,
    touched: Vec<u32>,
}

impl<C> Default for CellTable<C> {
    fn default() -> Self {
        Self { cells: Vec::new(), touched: Vec::new() }
    }
}

impl<C> CellTable<C> {
    /// Returns each used cell with its number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &C)> {
        self.touched.iter().map(|index| (*index as usize, &self.cells[*index as usize]))
    }

    /// Like [`iter`](Self::iter), in the same order, but with mutable cells of consecutive numbers
    /// from 0, as added by [`push`](Self::push).
    pub(crate) fn iter_pushed_mut(&mut self) -> impl Iterator<Item = &mut C> {
        self.cells.iter_mut()
    }

    /// Adds a used cell, whose number is one higher than that of the previous one, from 0.
    pub(crate) fn push(&mut self, cell: C) {
        self.touched.push(self.cells.len() as u32);
        self.cells.push(cell);
    }
}

/// A value that aggregates samples and can be reset.
pub(super) trait MetricCell: Default {
    /// Returns a mutable reference to the number of samples in the cell.
    fn hits(&mut self) -> &mut u32;

    /// Counts one more sample and returns the previous number.
    #[inline]
    fn hit(&mut self) -> u32 {
        let hits = self.hits();
        let before = *hits;
        *hits = before.saturating_add(1);
        before
    }

    fn reset(&mut self);
}

#[expect(private_bounds, reason = "callers only name the public cell types; the trait is internal")]
impl<C: MetricCell> CellTable<C> {
    /// Returns the cell and counts one more sample in it.
    #[inline]
    pub(super) fn touch(&mut self, index: usize) -> &mut C {
        if index >= self.cells.len() {
            self.grow(index);
        }
        let cell = &mut self.cells[index];
        if cell.hit() == 0 {
            // Cell numbers fit in a u32: see `SampleShard::cell`.
            self.touched.push(index as u32);
        }
        cell
    }

    /// Passes each used cell with its number to `take`, then resets it.
    pub fn drain(&mut self, mut take: impl FnMut(usize, &mut C)) {
        for index in self.touched.drain(..) {
            let cell = &mut self.cells[index as usize];
            take(index as usize, cell);
            cell.reset();
        }
    }

    /// Returns the number of cells used in the interval.
    pub fn touched(&self) -> usize {
        self.touched.len()
    }

    fn clear(&mut self) {
        self.drain(|_, _| {});
    }

    #[cold]
    fn grow(&mut self, index: usize) {
        self.cells.resize_with(index + 1, C::default);
    }
}

/// The aggregate of one counter.
#[derive(Debug, Default)]
pub struct CounterCell {
    /// Sum of the values, each divided by its rate and added in order of arrival.
    pub sum: f64,
    /// Number of samples received, not scaled by their rates.
    pub hits: u32,
}

/// The aggregate of one timer.
#[derive(Clone, Debug, Default)]
pub struct TimerCell {
    /// Samples in order of arrival, until a limit is exceeded.
    pub samples: Vec<f64>,
    /// A sketch of all samples once a limit is exceeded; `None` until then.
    pub sketched: Option<Box<Sketched>>,
    /// Number and sum of the samples, each scaled by the inverse of its rate.
    pub weights: SampleWeights,
    /// The unit of the last sample.
    pub unit: TimingUnit,
    /// Number of samples received, not scaled by their rates.
    pub hits: u32,
}

/// A sketch of samples, with exact sums and range.
#[derive(Clone, Debug, Default)]
pub struct Sketched {
    /// The distribution: in seconds for samples in milliseconds, otherwise in the unit sent.
    pub sketch: Sketch,
    /// Number of samples received, not scaled by their rates.
    pub samples: u64,
    /// Sum, in the unit sent.
    pub sum: f64,
    /// Sum of squares, in the unit sent.
    pub sum_squares: f64,
    /// Minimum and maximum, in the unit sent.
    pub range: Option<(f64, f64)>,
}

impl Sketched {
    /// Adds a sample in `unit`.
    pub fn add(&mut self, value: f64, unit: TimingUnit) {
        self.sketch.add(unit.to_base(value), 1.0);
        self.samples += 1;
        self.sum += value;
        self.sum_squares += value * value;
        let (lower, upper) = self.range.unwrap_or((value, value));
        self.range = Some((lower.min(value), upper.max(value)));
    }

    /// Adds all samples of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.sketch.merge(&other.sketch);
        self.samples += other.samples;
        self.sum += other.sum;
        self.sum_squares += other.sum_squares;
        self.range = match (self.range, other.range) {
            (Some((a, b)), Some((c, d))) => Some((a.min(c), b.max(d))),
            (one, another) => one.or(another),
        };
    }
}

impl TimerCell {
    /// Returns the number of samples received, each counted as 1.
    pub fn sample_count(&self) -> u64 {
        self.sketched.as_ref().map_or(self.samples.len() as u64, |sketched| sketched.samples)
    }

    /// Adds the weight of a sample that [`add`](Self::add) has not added yet.
    #[inline]
    pub(super) fn weigh(&mut self, value: f64, rate: f64) {
        let Self { samples, sketched, weights, .. } = self;
        weights.add(value, rate, || {
            sketched.as_ref().map_or(samples.len() as u64, |sketched| sketched.samples)
        });
    }

    /// Adds a sample, stored exactly as long as `limits` allow. Updates `exact`, the number of
    /// exact samples in the shard.
    pub(super) fn add(
        &mut self,
        value: f64,
        unit: TimingUnit,
        limits: &StatsdLimits,
        exact: &mut usize,
    ) {
        self.unit = unit;
        if let Some(sketched) = &mut self.sketched {
            return sketched.add(value, unit);
        }
        if self.samples.len() < limits.exact_samples && *exact < limits.exact_samples_total {
            *exact += 1;
            return self.samples.push(value);
        }
        let mut sketched = Box::<Sketched>::default();
        *exact -= self.samples.len();
        self.samples.drain(..).for_each(|sample| sketched.add(sample, unit));
        sketched.add(value, unit);
        self.sketched = Some(sketched);
    }
}

/// The operations on one gauge that affect its value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GaugeCell {
    /// The stamp of the batch with the last absolute value, and that value.
    pub set: Option<(u64, f64)>,
    /// The stamps of the batches with relative changes after `set`, each with the sum of its
    /// changes.
    pub changes: Vec<(u64, f64)>,
    /// Number of samples received, not scaled by their rates.
    pub hits: u32,
}

impl GaugeCell {
    /// Maximum number of batches whose changes one shard stores separately; later changes are added
    /// to the last one.
    pub(super) const CHANGES_MAX: usize = 64;

    pub(super) fn set(&mut self, stamp: u64, value: f64) {
        self.set = Some((stamp, value));
        self.changes.clear();
    }

    pub(super) fn change(&mut self, stamp: u64, by: f64) {
        let full = self.changes.len() >= Self::CHANGES_MAX;
        match self.changes.last_mut() {
            Some((last, sum)) if *last == stamp || full => {
                *last = stamp;
                *sum += by;
            }
            _ => self.changes.push((stamp, by)),
        }
    }

    /// Merges the operations that another shard received for the same gauge.
    pub fn merge(&mut self, other: &Self) {
        self.set = match (self.set, other.set) {
            (Some(one), Some(another)) => Some(if one.0 >= another.0 { one } else { another }),
            (one, another) => one.or(another),
        };
        self.changes.extend_from_slice(&other.changes);
        if let Some((since, _)) = self.set {
            self.changes.retain(|(stamp, _)| *stamp >= since);
        }
        self.changes.sort_unstable_by_key(|(stamp, _)| *stamp);
        if self.changes.len() > 4 * Self::CHANGES_MAX {
            let (stamp, _) = self.changes[self.changes.len() - 1];
            let sum = self.changes.iter().map(|(_, by)| by).sum();
            self.changes = vec![(stamp, sum)];
        }
    }

    /// Returns the gauge's value after the operations, starting from `before`, or from 0 if that is
    /// `None`.
    pub fn value(&self, before: Option<f64>) -> f64 {
        let start = self.set.map(|(_, value)| value).or(before).unwrap_or(0.0);
        self.changes.iter().fold(start, |value, (_, by)| value + by)
    }
}

/// The aggregate of one set.
#[derive(Debug, Default)]
pub struct SetCell {
    /// Distinct members; empty once the set is an estimate.
    pub members: HashSet<Box<[u8]>>,
    /// An estimate of all members once there are too many.
    pub estimate: Option<Box<HyperLogLog>>,
    /// Samples with a new member that were not added because the set was full.
    pub refused: u64,
    /// Number of samples received, not scaled by their rates.
    pub hits: u32,
}

impl SetCell {
    /// Applies limits to the members that another server has sent, whose own may be higher.
    pub(crate) fn limit(&mut self, limits: &StatsdLimits) {
        let longest = self.members.iter().map(|member| member.len()).max().unwrap_or_default();
        if self.members.len() > limits.set_members || longest > limits.member_bytes {
            let members = mem::take(&mut self.members);
            members.iter().for_each(|member| self.add(member, limits));
        }
    }

    pub(super) fn add(&mut self, member: &[u8], limits: &StatsdLimits) {
        if member.len() > limits.member_bytes {
            let short = shortened(member, limits.member_bytes);
            return self.add_short(&short, limits);
        }
        self.add_short(member, limits);
    }

    fn add_short(&mut self, member: &[u8], limits: &StatsdLimits) {
        if let Some(estimate) = &mut self.estimate {
            return estimate.add(member);
        }
        if self.members.contains(member) {
            return;
        }
        if self.members.len() < limits.set_members {
            self.members.insert(member.into());
            return;
        }
        match limits.set_overflow {
            SetOverflow::Refuse => self.refused += 1,
            SetOverflow::Estimate => {
                let mut estimate = Box::<HyperLogLog>::default();
                mem::take(&mut self.members).iter().for_each(|member| estimate.add(member));
                estimate.add(member);
                self.estimate = Some(estimate);
            }
        }
    }
}

/// Shortens a long member to `bytes` bytes: a prefix, `#` and the MD5 of the whole member, so that
/// distinct members remain distinct. If `bytes` is below 33, the MD5 is cut. The result is the same
/// in every shard and process.
#[cold]
fn shortened(member: &[u8], bytes: usize) -> Vec<u8> {
    let digest = Md5::digest(member);
    let hex = digest.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    let hex = hex.map(|digit| b"0123456789abcdef"[usize::from(digit)]);
    let mut short: Vec<u8> = b"#".iter().copied().chain(hex).take(bytes).collect();
    let front = bytes - short.len();
    short.splice(..0, member[..front].iter().copied());
    short
}

impl MetricCell for CounterCell {
    #[inline]
    fn hits(&mut self) -> &mut u32 {
        &mut self.hits
    }

    fn reset(&mut self) {
        *self = Self::default();
    }
}

impl MetricCell for TimerCell {
    #[inline]
    fn hits(&mut self) -> &mut u32 {
        &mut self.hits
    }

    fn reset(&mut self) {
        let (mut samples, mut weights) =
            (mem::take(&mut self.samples), mem::take(&mut self.weights));
        samples.clear();
        weights.clear();
        *self = Self { samples, weights, ..Self::default() };
    }
}

impl MetricCell for GaugeCell {
    #[inline]
    fn hits(&mut self) -> &mut u32 {
        &mut self.hits
    }

    fn reset(&mut self) {
        let mut changes = mem::take(&mut self.changes);
        changes.clear();
        *self = Self { changes, ..Self::default() };
    }
}

impl MetricCell for SetCell {
    #[inline]
    fn hits(&mut self) -> &mut u32 {
        &mut self.hits
    }

    fn reset(&mut self) {
        *self = Self::default();
    }
}
