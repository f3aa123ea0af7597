//! The messages of a batch, and the partition of each.
//!
//! ```text
//! batch   := number (message)*
//! message := key bytes, value bytes, values, milliseconds since 1970, key, value
//! ```
//!
//! Numbers are little-endian, of 64 bits those of the batch and the time, of 32 bits the others.

use super::super::{
    metric_json::MetricLine,
    outbox::{BatchSink, ValueBatch},
};

/// A metric as it is sent, in the bytes of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KafkaMessage<'b> {
    pub(super) key: &'b [u8],
    pub(super) value: &'b [u8],
    /// Number of values that the text has, for counts of lost ones.
    pub(super) values: u64,
    /// Milliseconds since 1970.
    pub(super) time_ms: i64,
}

/// Collects messages into batches.
pub(super) struct KafkaBatchWriter<'s> {
    bytes_max: usize,
    /// Number of batches written so far.
    batches: &'s mut u64,
    sink: BatchSink<'s>,
    bytes: Vec<u8>,
    values: u64,
}

/// Bytes of a message besides its key and value; in Kafka's format they are at most as many.
const OVERHEAD: usize = 4 + 4 + 4 + 8;

impl<'s> KafkaBatchWriter<'s> {
    pub(super) fn new(bytes_max: usize, batches: &'s mut u64, sink: BatchSink<'s>) -> Self {
        Self { bytes_max, batches, sink, bytes: Vec::new(), values: 0 }
    }

    /// Adds a metric, to a new batch if it would exceed the size of the current one.
    pub(super) fn add(&mut self, metric: &MetricLine<'_>) {
        let (key, value) = (metric.name.base().as_bytes(), metric.text.as_bytes());
        // Both came in one packet, or are statistics of one metric.
        let (key_bytes, value_bytes) = (key.len() as u32, value.len() as u32);
        let size = OVERHEAD + key.len() + value.len();
        if self.bytes.len() + size > self.bytes_max {
            self.flush_batch();
        }
        if self.bytes.is_empty() {
            self.bytes.extend_from_slice(&self.batches.to_le_bytes());
            *self.batches += 1;
        }
        let values = u32::try_from(metric.values).unwrap_or(u32::MAX);
        for number in [key_bytes, value_bytes, values] {
            self.bytes.extend_from_slice(&number.to_le_bytes());
        }
        let time_ms = metric.time.saturating_mul(1000);
        self.bytes.extend_from_slice(&time_ms.to_le_bytes());
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        self.values += metric.values;
    }

    pub(super) fn flush_batch(&mut self) {
        if !self.bytes.is_empty() {
            let bytes = std::mem::take(&mut self.bytes);
            (self.sink)(ValueBatch::new(bytes, std::mem::take(&mut self.values)));
        }
    }
}

/// Returns the number of a batch and its messages.
pub(super) fn batch_messages(batch: &[u8]) -> (u64, Vec<KafkaMessage<'_>>) {
    let Some((number, mut rest)) = batch.split_first_chunk() else { return (0, Vec::new()) };
    let mut messages = Vec::new();
    while let Some((message, after)) = first_message(rest) {
        messages.push(message);
        rest = after;
    }
    (u64::from_le_bytes(*number), messages)
}

fn first_message(bytes: &[u8]) -> Option<(KafkaMessage<'_>, &[u8])> {
    let (key_bytes, rest) = bytes.split_first_chunk()?;
    let (value_bytes, rest) = rest.split_first_chunk()?;
    let (values, rest) = rest.split_first_chunk()?;
    let (time_ms, rest) = rest.split_first_chunk()?;
    let (key, rest) = rest.split_at_checked(u32::from_le_bytes(*key_bytes) as usize)?;
    let (value, rest) = rest.split_at_checked(u32::from_le_bytes(*value_bytes) as usize)?;
    let (values, time_ms) = (u32::from_le_bytes(*values).into(), i64::from_le_bytes(*time_ms));
    Some((KafkaMessage { key, value, values, time_ms }, rest))
}

/// Selects one of `count` partitions by key, as Kafka's own clients do. `count` is not 0.
pub(super) fn partition_index(key: &[u8], count: usize) -> usize {
    (murmur2(key) & 0x7fff_ffff) as usize % count
}

/// Source: Appleby: MurmurHash2, 2008, with the seed of Kafka.
fn murmur2(data: &[u8]) -> u32 {
    const MULTIPLIER: u32 = 0x5bd1_e995;
    let mix = |word: u32| {
        let word = word.wrapping_mul(MULTIPLIER);
        (word ^ (word >> 24)).wrapping_mul(MULTIPLIER)
    };
    let mut hash = 0x9747_b28c ^ data.len() as u32;
    let (words, rest) = data.as_chunks::<4>();
    for word in words {
        hash = hash.wrapping_mul(MULTIPLIER) ^ mix(u32::from_le_bytes(*word));
    }
    for (at, byte) in rest.iter().enumerate() {
        hash ^= u32::from(*byte) << (8 * at);
    }
    if !rest.is_empty() {
        hash = hash.wrapping_mul(MULTIPLIER);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(MULTIPLIER);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MetricName;

    #[test]
    fn hash_is_that_of_kafka_clients() {
        for (text, hash) in [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            ("abc", 479_470_107),
        ] {
            assert_eq!(murmur2(text.as_bytes()).cast_signed(), hash, "{text}");
        }
    }

    #[test]
    fn batches_are_limited_and_numbered() {
        let (mut written, mut count) = (Vec::new(), 7);
        let name = MetricName::new("hits;code=500");
        let metric = |text| MetricLine { name: &name, time: 5, text, values: 2 };
        let mut sink = |batch: ValueBatch| written.push(batch);
        let mut writer = KafkaBatchWriter::new(100, &mut count, &mut sink);
        for text in ["one", "two", "three", &"long ".repeat(50), "last"] {
            writer.add(&metric(text));
        }
        writer.flush_batch();
        let numbers: Vec<u64> =
            written.iter().map(|batch| batch_messages(&batch.bytes).0).collect();
        assert_eq!((numbers, count), (vec![7, 8, 9], 10));
        assert_eq!(written.iter().map(|batch| batch.values).collect::<Vec<_>>(), [6, 2, 2]);
        let (_, messages) = batch_messages(&written[0].bytes);
        let expected = KafkaMessage { key: b"hits", value: b"two", values: 2, time_ms: 5000 };
        assert_eq!((messages.len(), messages[1]), (3, expected));
        assert_eq!(batch_messages(&written[0].bytes[..60]).1.len(), 1, "cut");
        assert_eq!(batch_messages(b"").1, []);
    }
}
