//! [`UnaggregatedInput`]: input that is passed on at the next flush instead of being aggregated.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use howdah_codec::ByteWriter as _;

use super::key_rules::KeyRules;
use crate::{
    aggregate::{MessageBuffer, NewName, ShardInterval, TimedSample},
    binary::{BinaryReader, BinaryWriter as _, HandoverFormatError},
    flush::{
        messages::ReceivedMessage,
        names::{KeyConversion, KeyPair},
        rounded_seconds,
        timed::{TimedMetric, TimedTable, TimedType},
    },
    grammar::{BadLine, LineRules, RejectReason},
    settings::StatsdSettings,
};

/// Maximum number of seconds by which a timestamp may be later than the server's clock, because
/// clocks differ.
const FUTURE_SECONDS_MAX: i64 = 600;

/// Values with timestamps, events and service checks.
#[derive(Debug, Default)]
pub(super) struct UnaggregatedInput {
    timed: TimedTable,
    messages: MessageBuffer,
}

impl UnaggregatedInput {
    /// Adds the content of an interval. Values with a timestamp that is too old, or too far in the
    /// future, are added to the interval's rejects.
    pub(super) fn add(
        &mut self,
        interval: &mut ShardInterval,
        settings: &StatsdSettings,
        (conversion, rules): (KeyConversion, &mut KeyRules),
        now: SystemTime,
    ) {
        let latest = rounded_seconds(now).saturating_add(FUTURE_SECONDS_MAX);
        let age = settings.dogstatsd.timestamp_age.as_secs();
        let earliest = rounded_seconds(now).saturating_sub_unsigned(age);
        for sample in interval.timed.iter() {
            let TimedSample { kind, name, tags, hits, .. } = sample;
            let name = NewName { kind, name, tags, overflow: false };
            let samples = u32::try_from(hits).unwrap_or(u32::MAX);
            let Some(keys) = rules.timed_keys(&name, conversion, samples) else { continue };
            let in_range = sample.time.is_none_or(|time| (earliest..=latest).contains(&time));
            let kind = TimedType::from_metric_type(sample.kind);
            let (value, max) = ((sample.value, sample.stamp), settings.limits.keys);
            let reason = if !in_range {
                RejectReason::BadTimestamp
            } else if !self.timed.add(kind, keys, sample.time, value, max) {
                RejectReason::TooManyTimestamps
            } else {
                continue;
            };
            interval.rejects.add_many(sample.hits, BadLine { line: sample.name, reason });
        }
        self.messages.append(&mut interval.messages, settings.limits.message_bytes);
    }

    /// Adds a value that another server forwards; returns whether it was added, as
    /// [`TimedTable::add`] does.
    pub(super) fn add_timed(
        &mut self,
        kind: TimedType,
        keys: KeyPair,
        time: Option<i64>,
        value: (f64, u64),
        max: usize,
    ) -> bool {
        self.timed.add(kind, keys, time, value, max)
    }

    /// Returns the events and service checks as received, each with the time of its receipt.
    pub(super) fn messages(&self) -> impl Iterator<Item = (SystemTime, &[u8])> {
        self.messages.iter()
    }

    /// Appends everything, for another process: values with timestamps, then messages.
    pub(super) fn write_to(&self, out: &mut Vec<u8>) {
        self.timed.write_to(out);
        write_messages(out, &self.messages);
    }

    /// Reads what [`write_to`](Self::write_to) has written.
    pub(super) fn read_from(from: &mut BinaryReader<'_>) -> Result<Self, HandoverFormatError> {
        Ok(Self { timed: TimedTable::read_from(from)?, messages: read_messages(from)? })
    }

    /// Removes all values with timestamps, sorted; those without a time get that of the flush.
    pub(super) fn take_timed(&mut self, flush_time: i64) -> Vec<TimedMetric> {
        self.timed.take(flush_time)
    }

    /// Removes all events and service checks; also returns how many were dropped.
    pub(super) fn take_messages(&mut self, rules: LineRules) -> (Arc<[ReceivedMessage]>, u64) {
        let dropped = std::mem::take(&mut self.messages.dropped);
        let lines = self.messages.take().into_iter();
        let parse =
            |(time, line): (SystemTime, Box<[u8]>)| ReceivedMessage::parse(time, &line, rules);
        (lines.filter_map(parse).collect(), dropped)
    }
}

/// Appends events and service checks:
///
/// ```text
/// messages := dropped, list of (time of receipt in microseconds, line: bytes)
/// ```
pub(super) fn write_messages(out: &mut Vec<u8>, messages: &MessageBuffer) {
    out.write_total(messages.dropped);
    let lines = messages.iter();
    out.write_count(lines.len());
    lines.for_each(|(received, line)| write_message(out, received, line));
}

pub(super) fn write_message(out: &mut Vec<u8>, received: SystemTime, line: &[u8]) {
    let since = received.duration_since(UNIX_EPOCH).unwrap_or_default();
    out.write_total(u64::try_from(since.as_micros()).unwrap_or_default());
    out.write_bytes(line);
}

pub(super) fn read_messages(
    from: &mut BinaryReader<'_>,
) -> Result<MessageBuffer, HandoverFormatError> {
    let dropped = from.total()?;
    let mut messages = read_messages_list(from)?;
    messages.dropped = dropped;
    Ok(messages)
}

/// Reads messages without the number of dropped ones.
pub(super) fn read_messages_list(
    from: &mut BinaryReader<'_>,
) -> Result<MessageBuffer, HandoverFormatError> {
    let mut messages = MessageBuffer::default();
    for _ in 0..from.count()? {
        let received = UNIX_EPOCH + Duration::from_micros(from.total()?);
        let line = from.bytes()?;
        from.charge(size_of::<(SystemTime, Box<[u8]>)>() + line.len())?;
        // The limit applies once they are added to those of this process.
        messages.push(received, line.into(), usize::MAX);
    }
    Ok(messages)
}
