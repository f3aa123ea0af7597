//! Counters and gauges with a timestamp from their sender.

use hashbrown::HashMap;
use howdah_codec::ByteWriter as _;

use super::names::KeyPair;
use crate::{
    MetricName,
    aggregate::MetricType,
    binary::{BinaryReader, BinaryWriter as _, HandoverFormatError},
};

/// All values of one counter or gauge that were sent with the same timestamp and collected by one
/// flush.
#[derive(Clone, Debug, PartialEq)]
pub struct TimedMetric {
    /// Whether values are added or the last one counts.
    pub kind: TimedType,
    /// The metric's sanitised key.
    pub name: MetricName,
    /// The key as sent; equal to `name` unless a backend requires it.
    pub sent: MetricName,
    /// The timestamp, in seconds since 1970.
    pub time: i64,
    /// The sum of a counter's values, each divided by its sample rate, or the last value of a
    /// gauge.
    pub value: f64,
}

/// The type of a [`TimedMetric`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TimedType {
    /// Values with the same timestamp are added.
    Counter,
    /// The last of the values with the same timestamp counts.
    Gauge,
}

/// Identifies the value of a [`TimedMetric`]; `None` for the time of the next flush.
type TimedKey = (TimedType, MetricName, Option<i64>);

/// The values with timestamps since the last flush.
#[derive(Debug, Default)]
pub(super) struct TimedTable {
    entries: HashMap<TimedKey, TimedEntry>,
}

#[derive(Debug)]
struct TimedEntry {
    name: MetricName,
    value: f64,
    stamp: u64,
}

impl TimedType {
    pub(super) fn from_metric_type(kind: MetricType) -> Self {
        if kind == MetricType::Counter { Self::Counter } else { Self::Gauge }
    }

    fn merge(self, value: &mut f64, later: f64) {
        match self {
            Self::Counter => *value += later,
            Self::Gauge => *value = later,
        }
    }
}

impl TimedMetric {
    /// Appends the binary form, for another server:
    ///
    /// ```text
    /// metric := gauge: bool, key: text, option text key as sent if it differs, signed time, f64
    /// ```
    pub(super) fn write_to(&self, out: &mut Vec<u8>) {
        let Self { kind, name, sent, time, value } = self;
        out.write_bool(*kind == TimedType::Gauge);
        out.write_text(name.key());
        let differs = name != sent;
        out.write_option(differs.then_some(sent), |out, sent| out.write_text(sent.key()));
        out.write_signed(*time);
        out.write_f64(*value);
    }

    /// Reads what [`write_to`](Self::write_to) has written.
    pub(super) fn read_from(from: &mut BinaryReader<'_>) -> Result<Self, HandoverFormatError> {
        let kind = if from.bool()? { TimedType::Gauge } else { TimedType::Counter };
        let name = from.name()?;
        let sent = from.option(BinaryReader::name)?;
        let sent = sent.unwrap_or_else(|| name.clone());
        Ok(Self { kind, name, sent, time: from.signed()?, value: from.f64()? })
    }
}

impl TimedTable {
    /// Adds the value of a metric. Returns whether
    /// it was added; a new key or time is not if there are already `max`.
    pub(super) fn add(
        &mut self,
        kind: TimedType,
        KeyPair { key: name, sent }: KeyPair,
        time: Option<i64>,
        (value, stamp): (f64, u64),
        max: usize,
    ) -> bool {
        let count = self.entries.len();
        let key = (kind, sent, time);
        if let Some(entry) = self.entries.get_mut(&key) {
            if kind == TimedType::Counter || stamp >= entry.stamp {
                kind.merge(&mut entry.value, value);
                entry.stamp = stamp;
            }
            return true;
        }
        if count >= max {
            return false;
        }
        self.entries.insert(key, TimedEntry { name, value, stamp });
        true
    }

    /// Appends all values, for another process.
    pub(super) fn write_to(&self, out: &mut Vec<u8>) {
        out.write_count(self.entries.len());
        for ((kind, sent, time), entry) in &self.entries {
            out.write_bool(*kind == TimedType::Gauge);
            out.write_text(entry.name.key());
            let differs = entry.name != *sent;
            out.write_option(differs.then_some(sent), |out, sent| out.write_text(sent.key()));
            out.write_option(*time, Vec::write_signed);
            out.write_f64(entry.value);
            out.write_varint(entry.stamp);
        }
    }

    /// Reads values that [`write_to`](Self::write_to) has written.
    pub(super) fn read_from(from: &mut BinaryReader<'_>) -> Result<Self, HandoverFormatError> {
        let mut table = Self::default();
        for _ in 0..from.count()? {
            let kind = if from.bool()? { TimedType::Gauge } else { TimedType::Counter };
            let name = from.name()?;
            let sent = from.option(BinaryReader::name)?;
            let key =
                (kind, sent.unwrap_or_else(|| name.clone()), from.option(BinaryReader::signed)?);
            let entry = TimedEntry { name, value: from.f64()?, stamp: from.stamp()? };
            table.entries.insert(key, entry);
        }
        Ok(table)
    }

    /// Returns all values sorted by type, key and time, and empties the table. Values without a
    /// time get that of the flush.
    pub(super) fn take(&mut self, flush_time: i64) -> Vec<TimedMetric> {
        let entries = std::mem::take(&mut self.entries).into_iter();
        let mut metrics: Vec<TimedMetric> = entries
            .map(|((kind, sent, time), TimedEntry { name, value, .. })| {
                let time = time.unwrap_or(flush_time);
                TimedMetric { kind, name, sent, time, value }
            })
            .collect();
        sort(&mut metrics);
        metrics
    }
}

fn sort(metrics: &mut [TimedMetric]) {
    metrics.sort_by(|a, b| {
        (a.kind, &a.name, a.time, &a.sent).cmp(&(b.kind, &b.name, b.time, &b.sent))
    });
}

/// Joins the values of two intervals, up to `max`; also returns how many were dropped.
pub(super) fn join(
    earlier: &[TimedMetric],
    later: &[TimedMetric],
    max: usize,
) -> (Vec<TimedMetric>, u64) {
    let mut all = [earlier, later].concat();
    // The sort is stable, so the later of two equal keys and times comes last.
    sort(&mut all);
    all.dedup_by(|later, earlier| {
        let is_same =
            (later.kind, later.time, &later.sent) == (earlier.kind, earlier.time, &earlier.sent);
        if is_same {
            earlier.kind.merge(&mut earlier.value, later.value);
        }
        is_same
    });
    let max = max.max(later.len());
    let dropped = all.len().saturating_sub(max) as u64;
    all.truncate(max);
    (all, dropped)
}

/// Merges the spellings of each sanitised key and time, in sorted metrics.
pub(super) fn by_key(metrics: &[TimedMetric]) -> impl Iterator<Item = TimedMetric> {
    let is_same =
        |a: &TimedMetric, b: &TimedMetric| (a.kind, &a.name, a.time) == (b.kind, &b.name, b.time);
    metrics.chunk_by(is_same).filter_map(|spellings| {
        let (first, others) = spellings.split_first()?;
        let mut merged = first.clone();
        others.iter().for_each(|other| merged.kind.merge(&mut merged.value, other.value));
        Some(merged)
    })
}
