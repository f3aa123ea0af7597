//! Events and service checks, as backends receive them.

use std::{
    borrow::Cow,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use super::names;
use crate::grammar::{self, AlertType, CheckStatus, EventPriority, LineRules, MessageOptions};

/// An event or a service check. Invalid UTF-8 in texts is replaced.
#[derive(Clone, Debug, PartialEq)]
pub struct ReceivedMessage {
    /// The time of receipt.
    pub received: SystemTime,
    /// The sender's time or, without one, that of receipt, in seconds since 1970.
    pub time: i64,
    /// The host that the sender names; mostly empty.
    pub host: Box<str>,
    /// The tags in the order sent, each with its value, which may be empty.
    pub tags: Box<[(Box<str>, Box<str>)]>,
    /// The parts that only events or only service checks have.
    pub content: MessageContent,
}

/// The content of an event or a service check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageContent {
    /// Sent as `_e{…}`.
    Event {
        /// The title; not empty.
        title: Box<str>,
        /// The text, which may have several lines.
        text: Box<str>,
        /// Events with the same key belong together; mostly empty.
        aggregation_key: Box<str>,
        /// How important the event is.
        priority: EventPriority,
        /// The type of the source; mostly empty.
        source_type: Box<str>,
        /// The kind of event.
        alert_type: AlertType,
    },
    /// Sent as `_sc|…`.
    Check {
        /// The name; not empty.
        name: Box<str>,
        /// The status of the service.
        status: CheckStatus,
        /// An explanation; may be empty.
        message: Box<str>,
    },
}

impl ReceivedMessage {
    /// Parses a line that the grammar has accepted as an event or a service check.
    pub(super) fn parse(received: SystemTime, line: &[u8], rules: LineRules) -> Option<Self> {
        let (fields, content) = if let Some(event) = grammar::event(line, rules) {
            let fields = event.fields;
            let content = MessageContent::Event {
                title: lines(event.title),
                text: lines(event.text),
                aggregation_key: text(fields.aggregation_key),
                priority: fields.priority,
                source_type: text(fields.source_type),
                alert_type: fields.alert_type,
            };
            (fields, content)
        } else {
            let check = grammar::check(line, rules)?;
            // Clients escape `m:` in a message, because it starts a field.
            let message = lines(check.fields.message).replace("m\\:", "m:").into();
            let (name, status) = (text(check.name), check.status);
            (check.fields, MessageContent::Check { name, status, message })
        };
        Some(Self {
            received,
            time: fields.time.unwrap_or_else(|| super::rounded_seconds(received)),
            host: text(fields.host),
            tags: tags(&fields),
            content,
        })
    }

    /// Returns the approximate size in memory.
    fn bytes(&self) -> usize {
        let tags = self.tags.iter().map(|(key, value)| key.len() + value.len() + 32).sum::<usize>();
        let texts = match &self.content {
            MessageContent::Event { title, text, aggregation_key, source_type, .. } => {
                title.len() + text.len() + aggregation_key.len() + source_type.len()
            }
            MessageContent::Check { name, message, .. } => name.len() + message.len(),
        };
        size_of::<Self>() + self.host.len() + tags + texts
    }

    /// Returns the seconds since 1970 at which the message was received.
    pub fn received_seconds(&self) -> f64 {
        self.received.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
    }
}

fn text(bytes: &[u8]) -> Box<str> {
    String::from_utf8_lossy(bytes).into()
}

/// Returns a text with its line breaks, which clients send as `\n` in two characters.
fn lines(bytes: &[u8]) -> Box<str> {
    String::from_utf8_lossy(bytes).replace("\\n", "\n").into()
}

fn tags(fields: &MessageOptions<'_>) -> Box<[(Box<str>, Box<str>)]> {
    let list = String::from_utf8_lossy(fields.tags);
    let pairs = list.split(',').filter(|tag| !tag.is_empty()).map(|tag| {
        let (key, value) = tag.split_once(':').unwrap_or((tag, ""));
        (key.into(), value.into())
    });
    let container: Cow<'_, str> = String::from_utf8_lossy(fields.container);
    let container = (!container.is_empty())
        .then(|| (names::CONTAINER_TAG.into(), names::container_id(&container).into()));
    pairs.chain(container).collect()
}

/// Joins the messages of two intervals, up to `bytes_max` unless the later ones alone are more;
/// also returns how many were dropped.
pub(super) fn join(
    earlier: &Arc<[ReceivedMessage]>,
    later: &Arc<[ReceivedMessage]>,
    bytes_max: usize,
) -> (Arc<[ReceivedMessage]>, u64) {
    match (earlier.is_empty(), later.is_empty()) {
        (true, _) => return (Arc::clone(later), 0),
        (_, true) => return (Arc::clone(earlier), 0),
        _ => {}
    }
    // The earliest messages are dropped first.
    let mut bytes = later.iter().map(ReceivedMessage::bytes).sum::<usize>();
    let fits = earlier.iter().rev().take_while(|message| {
        bytes += message.bytes();
        bytes <= bytes_max
    });
    let dropped = earlier.len() - fits.count();
    let joined = earlier[dropped..].iter().chain(later.iter()).cloned().collect();
    (joined, dropped as u64)
}
