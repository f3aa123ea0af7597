//! Batches without a connection, for programs that check the reader with arbitrary bytes.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{BatchId, decode_batch, encode_batch};
use crate::{
    backends::SnapshotRequirements,
    binary::HandoverFormatError,
    flush::{FlushSnapshot, FlushTime, ForwardedBatch, KeyRegistry, handover},
    ledger::LossAccount,
    settings::StatsdSettings,
};

/// The reason why a batch is not merged, or not handed over after that.
#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    /// The bytes are not a batch, or it would take too much memory.
    #[error("the batch cannot be read: {0}")]
    Unreadable(String),
    /// The process that takes over from the parent cannot continue with its aggregates.
    #[error("the aggregates cannot be handed over: {0}")]
    NotHandedOver(String),
}

/// A time at which everything happens.
fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_772_359_200)
}

/// Returns the batches that a server with these settings sends after it has received a packet.
pub fn batches_of_packet(packet: &[u8], settings: &StatsdSettings) -> Vec<Vec<u8>> {
    let mut registry = registry(settings);
    registry.shard().lock().apply_packet(packet);
    let parts = flush(&mut registry).mergeable;
    let parts = (1..).zip(parts.iter()).map(|(sequence, part)| {
        let id = BatchId { sender: "child".to_owned(), incarnation: 1, sequence };
        encode_batch(&id, &part.bytes)
    });
    parts.collect()
}

/// Merges a batch twice into a server without other metrics, hands everything over to another one,
/// and returns the next flush of that.
///
/// # Errors
///
/// See [`BatchError`].
pub fn merge_alone(batch: &[u8], settings: &StatsdSettings) -> Result<FlushSnapshot, BatchError> {
    let unreadable = |error: HandoverFormatError| BatchError::Unreadable(error.to_string());
    let (_, part) = decode_batch(batch).map_err(unreadable)?;
    let mut registry = registry(settings);
    for _ in 0..2 {
        ForwardedBatch::read(part).map_err(unreadable)?.add_to(&mut registry, now());
    }
    let bytes = handover::export_registry(&mut registry, now());
    let mut successor = self::registry(settings);
    let imported = handover::import_registry(&mut successor, &bytes, now());
    imported.map_err(|error| BatchError::NotHandedOver(error.to_string()))?;
    Ok(flush(&mut successor))
}

fn registry(settings: &StatsdSettings) -> KeyRegistry {
    let needs = SnapshotRequirements {
        distributions: true,
        names_as_sent: true,
        messages: true,
        mergeable: true,
        ..SnapshotRequirements::default()
    };
    KeyRegistry::new(settings, needs, now())
}

fn flush(registry: &mut KeyRegistry) -> FlushSnapshot {
    registry.flush(FlushTime { now: now(), lag: Duration::ZERO }, LossAccount::default())
}

#[test]
fn batch_of_packet_is_merged_twice() {
    let settings = StatsdSettings::default();
    let batches = batches_of_packet(b"a:3|c\nt:1:2|ms\ng:+2|g\nu:x|s", &settings);
    let [batch] = &batches[..] else { panic!("{batches:?}") };
    let snapshot = merge_alone(batch, &settings).expect("a batch");
    let a = snapshot.counters.iter().find(|counter| counter.name.key() == "a");
    assert_eq!(a.map(|counter| counter.value), Some(6.0));
    assert_eq!((snapshot.gauges[0].value, snapshot.sets[0].count), (4.0, 1));
    let error = merge_alone(&batch[..batch.len() - 1], &settings).expect_err("cut off");
    assert!(error.to_string().starts_with("the batch cannot be read: "), "{error}");
}
