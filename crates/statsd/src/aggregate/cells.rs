//! The values of one interval, by the shard's own numbers for its keys.

use std::mem;

use hashbrown::HashSet;
use md5::{Digest as _, Md5};

use super::{Kind, Rejects};
use crate::{grammar::TimingUnit, settings::Limits, sketch::Sketch};

/// What one shard added up between two swaps.
///
/// The flush reads it, empties it with [`clear`](Self::clear), and gives it back as the next spare:
/// so steady traffic allocates nothing from interval to interval.
#[derive(Debug, Default)]
pub struct Interval {
    /// Packets given to the shard.
    pub packets: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Lines in them that were not empty.
    pub lines: u64,
    /// Samples that were read, those that the limits refused among them.
    pub samples: u64,
    /// DogStatsD events.
    pub events: u64,
    /// DogStatsD service checks.
    pub checks: u64,
    /// Fields with a DogStatsD timestamp.
    pub timestamps: u64,
    /// Samples that went to the overflow keys.
    pub overflow_samples: u64,
    /// About how many keys they had.
    pub overflow_keys: u64,
    /// What could not be used.
    pub rejects: Rejects,
    /// Keys with a new cell since the last swap, in the order of their cells.
    pub names: NewNames,
    /// Sums.
    pub counters: Cells<CounterCell>,
    /// Timer samples.
    pub timers: Cells<TimerCell>,
    /// Gauge changes.
    pub gauges: Cells<GaugeCell>,
    /// Set members.
    pub sets: Cells<SetCell>,
    /// Keys that the shard knows now.
    pub keys: usize,
    /// Exact timer samples in it.
    pub(super) exact_samples: usize,
}

impl Interval {
    /// Makes it the empty spare of a next swap, keeping its memory.
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

/// Keys that got a cell. One text for all of them: a million new keys at once are no rare thing.
#[derive(Debug, Default)]
pub struct NewNames {
    entries: Vec<Entry>,
    text: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    name_bytes: u32,
    tags_bytes: u32,
    kind: Kind,
    overflow: bool,
}

/// A key that got a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewName<'t> {
    /// The kind of its cell.
    pub kind: Kind,
    /// The raw name.
    pub name: &'t [u8],
    /// The raw tags.
    pub tags: &'t [u8],
    /// The server's own name for what does not fit: to be taken as it is.
    pub overflow: bool,
}

impl NewNames {
    /// More than this is no steady traffic, and its memory is given back.
    const KEPT: usize = 4096;

    pub(super) fn push(&mut self, new: NewName<'_>) {
        let NewName { kind, name, tags, overflow } = new;
        // Far from u32::MAX: both came in one packet.
        let (name_bytes, tags_bytes) = (name.len() as u32, tags.len() as u32);
        self.entries.push(Entry { name_bytes, tags_bytes, kind, overflow });
        self.text.extend_from_slice(name);
        self.text.extend_from_slice(tags);
    }

    /// All of them, in the order of their cells.
    pub fn iter(&self) -> impl Iterator<Item = NewName<'_>> {
        let mut rest = self.text.as_slice();
        self.entries.iter().map(move |entry| {
            let (name, behind) = rest.split_at(entry.name_bytes as usize);
            let (tags, behind) = behind.split_at(entry.tags_bytes as usize);
            rest = behind;
            NewName { kind: entry.kind, name, tags, overflow: entry.overflow }
        })
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn clear(&mut self) {
        self.entries.clear();
        self.text.clear();
        self.entries.shrink_to(Self::KEPT);
        self.text.shrink_to(64 * Self::KEPT);
    }
}

/// Cells of one kind, and which of them were used.
#[derive(Debug)]
pub struct Cells<C> {
    cells: Vec<C>,
    touched: Vec<u32>,
}

impl<C> Default for Cells<C> {
    fn default() -> Self {
        Self { cells: Vec::new(), touched: Vec::new() }
    }
}

/// Something that adds up, and can be emptied without giving up its memory.
pub(super) trait Cell: Default {
    /// How many samples it has.
    fn hits(&mut self) -> &mut u32;

    /// Counts one more sample and tells how many there were before.
    #[inline]
    fn hit(&mut self) -> u32 {
        let hits = self.hits();
        let before = *hits;
        *hits = before.saturating_add(1);
        before
    }

    fn reset(&mut self);
}

#[expect(private_bounds, reason = "cells are what this module has; the trait is its own business")]
impl<C: Cell> Cells<C> {
    /// The cell, for one more sample.
    #[inline]
    pub(super) fn touch(&mut self, index: usize) -> &mut C {
        if index >= self.cells.len() {
            self.grow(index);
        }
        let cell = &mut self.cells[index];
        if cell.hit() == 0 {
            // Cells are numbered by u32: see `Shard::cell`.
            self.touched.push(index as u32);
        }
        cell
    }

    /// The cells that were used, each with its number.
    pub fn drain(&mut self, mut take: impl FnMut(usize, &mut C)) {
        for index in self.touched.drain(..) {
            let cell = &mut self.cells[index as usize];
            take(index as usize, cell);
            cell.reset();
        }
    }

    /// How many were used.
    #[must_use]
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

/// One counter.
#[derive(Debug, Default)]
pub struct CounterCell {
    /// Sum, sampled values scaled up, added in the order of arrival.
    pub sum: f64,
    /// Samples.
    pub hits: u32,
}

/// One timer.
#[derive(Clone, Debug, Default)]
pub struct TimerCell {
    /// Samples in the order of arrival, until there are too many.
    pub samples: Vec<f64>,
    /// All samples, once there are too many.
    pub sketched: Option<Box<Sketched>>,
    /// Samples, scaled up by their rates.
    pub count: f64,
    /// The unit of the last sample.
    pub unit: TimingUnit,
    /// Samples.
    pub hits: u32,
}

/// Samples that are not kept one by one.
#[derive(Clone, Debug, Default)]
pub struct Sketched {
    /// Where they lay: in seconds for milliseconds, else as sent.
    pub sketch: Sketch,
    /// How many.
    pub samples: u64,
    /// Their sum, as sent.
    pub sum: f64,
    /// The sum of their squares, as sent.
    pub sum_squares: f64,
    /// The smallest and the largest, as sent.
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

    /// Adds all that `other` holds.
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
    /// Keeps a sample, exactly while `limits` allow it. `exact` counts the shard's exact samples.
    pub(super) fn add(&mut self, value: f64, unit: TimingUnit, limits: &Limits, exact: &mut usize) {
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

/// One gauge: what happened to it, as far as it still matters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GaugeCell {
    /// The last plain value and the stamp of its batch.
    pub set: Option<(u64, f64)>,
    /// Changes since, with theirs; those of one batch in one.
    pub changes: Vec<(u64, f64)>,
    /// Samples.
    pub hits: u32,
}

impl GaugeCell {
    /// So many batches' changes are told apart; later ones are added to the last of them.
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

    /// Takes in what another shard saw of the same gauge.
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

    /// What the gauge is now if it was `before`. A change of a gauge that nobody set begins at 0.
    #[must_use]
    pub fn value(&self, before: Option<f64>) -> f64 {
        let start = self.set.map(|(_, value)| value).or(before).unwrap_or(0.0);
        self.changes.iter().fold(start, |value, (_, by)| value + by)
    }
}

/// One set.
#[derive(Debug, Default)]
pub struct SetCell {
    /// Distinct members.
    pub members: HashSet<Box<[u8]>>,
    /// Samples whose member did not fit.
    pub refused: u64,
    /// Samples.
    pub hits: u32,
}

impl SetCell {
    pub(super) fn add(&mut self, member: &[u8], limits: &Limits) {
        if member.len() > limits.member_bytes {
            let short = shortened(member, limits.member_bytes);
            return self.add_short(&short, limits);
        }
        self.add_short(member, limits);
    }

    fn add_short(&mut self, member: &[u8], limits: &Limits) {
        if self.members.contains(member) {
            return;
        }
        match self.members.len() < limits.set_members {
            true => drop(self.members.insert(member.into())),
            false => self.refused += 1,
        }
    }
}

/// The front of a long member, and the md5 of all of it in its last bytes: two that differ anywhere
/// stay two. The same in every shard and process.
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

impl Cell for CounterCell {
    #[inline]
    fn hits(&mut self) -> &mut u32 {
        &mut self.hits
    }

    fn reset(&mut self) {
        *self = Self::default();
    }
}

impl Cell for TimerCell {
    #[inline]
    fn hits(&mut self) -> &mut u32 {
        &mut self.hits
    }

    fn reset(&mut self) {
        let mut samples = mem::take(&mut self.samples);
        samples.clear();
        *self = Self { samples, ..Self::default() };
    }
}

impl Cell for GaugeCell {
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

impl Cell for SetCell {
    #[inline]
    fn hits(&mut self) -> &mut u32 {
        &mut self.hits
    }

    fn reset(&mut self) {
        *self = Self::default();
    }
}
