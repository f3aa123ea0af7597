//! [`UnaggregatedInput`]: input that is passed on at the next flush instead of being aggregated.

use std::{sync::Arc, time::SystemTime};

use super::key_rules::KeyRules;
use crate::{
    aggregate::{MessageBuffer, NewName, ShardInterval, TimedSample},
    flush::{
        messages::ReceivedMessage,
        names::KeyConversion,
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
