//! Values with a timestamp from their sender, which are not part of the running interval.

use hashbrown::HashMap;

use super::{MetricType, keys::RawKey};

/// Counters and gauges by key and time, in no particular order. Adding to a known key and time does
/// not allocate.
#[derive(Debug, Default)]
pub struct TimedValues {
    cells: HashMap<Box<[u8]>, TimedCell>,
    /// The encoded key of the current value; reused for all values.
    encoded: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct TimedCell {
    value: f64,
    stamp: u64,
    hits: u64,
}

/// The aggregate of all values of one key with the same timestamp.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimedSample<'t> {
    /// A counter, whose values are summed, or a gauge, whose last value counts.
    pub kind: MetricType,
    /// Seconds since 1970; `None` for values that belong to the time of their flush.
    pub time: Option<i64>,
    /// The name as received.
    pub name: &'t [u8],
    /// The tags, as in [`super::NewName`].
    pub tags: &'t [u8],
    /// The sum or the last value.
    pub value: f64,
    /// The stamp of the batch with the last value.
    pub stamp: u64,
    /// Number of samples received, not scaled by their rates.
    pub hits: u64,
}

/// Bytes of an encoded key before the name: the type, the time and the length of the name.
const HEAD_BYTES: usize = 1 + 8 + 4;
/// The encoded time of values without one.
const NO_TIME: i64 = i64::MIN;

impl TimedValues {
    /// Adds one value; returns whether it was added. A new key or time is not added if there are
    /// already `max`.
    pub(super) fn add(
        &mut self,
        kind: MetricType,
        key: RawKey<'_>,
        time: Option<i64>,
        (value, stamp): (f64, u64),
        max: usize,
    ) -> bool {
        self.encoded.clear();
        self.encoded.push(kind as u8);
        self.encoded.extend_from_slice(&time.unwrap_or(NO_TIME).to_le_bytes());
        // The name came in one packet.
        self.encoded.extend_from_slice(&(key.name.len() as u32).to_le_bytes());
        self.encoded.extend_from_slice(key.name);
        key.push_tail(&mut self.encoded);
        if let Some(cell) = self.cells.get_mut(&self.encoded[..]) {
            let value = if kind == MetricType::Counter { cell.value + value } else { value };
            *cell = TimedCell { value, stamp, hits: cell.hits + 1 };
            return true;
        }
        if self.cells.len() >= max {
            return false;
        }
        self.cells.insert(self.encoded[..].into(), TimedCell { value, stamp, hits: 1 });
        true
    }

    /// Returns all aggregates.
    pub fn iter(&self) -> impl Iterator<Item = TimedSample<'_>> {
        self.cells.iter().filter_map(|(encoded, cell)| {
            let (head, text) = encoded.split_first_chunk::<HEAD_BYTES>()?;
            let (kind, rest) = head.split_first()?;
            let (time, name_bytes) = rest.split_first_chunk()?;
            let name_bytes = u32::from_le_bytes(name_bytes.try_into().ok()?);
            let (name, tags) = text.split_at_checked(name_bytes as usize)?;
            let time = i64::from_le_bytes(*time);
            Some(TimedSample {
                kind: if *kind == MetricType::Counter as u8 {
                    MetricType::Counter
                } else {
                    MetricType::Gauge
                },
                time: (time != NO_TIME).then_some(time),
                name,
                tags,
                value: cell.value,
                stamp: cell.stamp,
                hits: cell.hits,
            })
        })
    }

    /// Adds an aggregate of another process, whose key and time are not there yet.
    pub(crate) fn restore(&mut self, sample: TimedSample<'_>) {
        let TimedSample { kind, time, name, tags, value, stamp, hits } = sample;
        let mut encoded = vec![kind as u8];
        encoded.extend_from_slice(&time.unwrap_or(NO_TIME).to_le_bytes());
        // The name came in one packet.
        encoded.extend_from_slice(&(name.len() as u32).to_le_bytes());
        encoded.extend_from_slice(name);
        encoded.extend_from_slice(tags);
        self.cells.insert(encoded.into(), TimedCell { value, stamp, hits });
    }

    /// Returns the number of distinct keys and times.
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// Whether no value was added.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }
}
