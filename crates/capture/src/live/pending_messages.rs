//! [`PendingMessages`]: the client messages that are recorded with an event, in the form of
//! [`ClientMessage`](howdah_traffic::ClientMessage).

use howdah_traffic::{Event, Text};

/// Maximum bytes of messages that are recorded before an event, or with one.
const BYTES_MAX: usize = 64 << 10;

const FEW_BYTES: usize = 64;

/// Messages that were sent and are not yet assigned to an event.
#[derive(Debug, Default)]
pub(crate) struct PendingMessages {
    messages: Vec<u8>,
    /// Offset of the first message of the current pipeline.
    pipeline_at: usize,
    /// Whether the rest of the current pipeline is discarded.
    is_discarding: bool,
    /// Whether messages were discarded because there were too many.
    has_overflown: bool,
}

impl PendingMessages {
    /// Adds a message without a name.
    pub(crate) fn add(&mut self, tag: u8) {
        self.push(&[tag], b"", b"");
    }

    /// Adds a message with a name.
    pub(crate) fn add_named(&mut self, front: &[u8], name: &[u8]) {
        self.push(front, name, b"\0");
    }

    fn push(&mut self, front: &[u8], name: &[u8], back: &[u8]) {
        if self.is_discarding {
            return;
        }
        if self.messages.len() + front.len() + name.len() + back.len() >= BYTES_MAX {
            self.has_overflown = true;
            return self.discard_pipeline();
        }
        for part in [front, name, back] {
            self.messages.extend_from_slice(part);
        }
    }

    /// Discards the messages of the current pipeline up to its Sync, because one of them was not
    /// recorded. Later messages may depend on it, and would fail without it.
    pub(crate) fn discard_pipeline(&mut self) {
        self.is_discarding = true;
        self.messages.truncate(self.pipeline_at);
    }

    /// Adds a Sync, and moves the pending messages to the pipeline's last event, if it has one.
    /// Returns false if messages were discarded for lack of room.
    pub(crate) fn add_sync(&mut self, last: Option<LastEvent<'_>>) -> bool {
        let was_lost = std::mem::take(&mut self.is_discarding);
        if !was_lost {
            self.messages.push(b'S');
        }
        match last {
            Some(LastEvent::Event(event)) if was_lost => add_sync(event),
            Some(LastEvent::Event(event)) => {
                append(event, &self.messages);
                self.messages.clear();
            }
            Some(LastEvent::Bind(messages)) if was_lost => *messages = Some("S".into()),
            Some(LastEvent::Bind(messages)) => *messages = self.take_all(),
            None => {}
        }
        // A client that sends nothing but Syncs would fill the memory, so the messages are
        // discarded.
        if self.messages.len() >= BYTES_MAX {
            self.messages.clear();
            self.has_overflown = true;
        }
        self.pipeline_at = self.messages.len();
        !std::mem::take(&mut self.has_overflown)
    }

    /// Takes the messages up to and including the event's own message. `None` if that is the only
    /// one and the event's kind implies it, or if the messages are unknown.
    pub(crate) fn take_through(&mut self, own: u8) -> Option<Text> {
        let stands_for_itself = matches!(own, b'Q' | b'F');
        if stands_for_itself {
            // The event's own message ends the previous pipeline.
            self.is_discarding = false;
        }
        if self.is_discarding || stands_for_itself && self.messages.is_empty() {
            return None;
        }
        self.messages.push(own);
        self.take_all()
    }

    /// Takes all messages; `None` if there are none.
    pub(crate) fn take_all(&mut self) -> Option<Text> {
        let messages = (!self.messages.is_empty()).then(|| self.messages.as_slice().into());
        self.messages.clear();
        self.pipeline_at = 0;
        messages
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// The last event of a pipeline at the time when its Sync arrives.
#[derive(Debug)]
pub(crate) enum LastEvent<'a> {
    /// The event, which already exists.
    Event(&'a mut Event),
    /// The event of a Bind, which is created later; these are its messages.
    Bind(&'a mut Option<Text>),
}

/// Adds a Sync to an event, unless the event's messages are unknown or already end in a Sync.
pub(crate) fn add_sync(event: &mut Event) {
    append(event, b"S");
}

fn append(event: &mut Event, messages: &[u8]) {
    // Messages cannot be added to an event whose messages are unknown.
    let Some(existing) = event.wire.as_mut().and_then(|wire| wire.messages.as_mut()) else {
        return;
    };
    let (before, mut few) = (existing.as_bytes(), [0; FEW_BYTES]);
    if before.ends_with(b"S") {
        // The server ignored the earlier Sync while it waited for the rows of a COPY.
        return;
    }
    let all = before.len() + messages.len();
    // A statement has about seven bytes of messages, which fit into a buffer on the stack.
    let all = match few.get_mut(..all) {
        Some(few) => {
            few[..before.len()].copy_from_slice(before);
            few[before.len()..].copy_from_slice(messages);
            Text::from(&*few)
        }
        None => [before, messages].concat().into(),
    };
    *existing = all;
}

#[test]
fn messages_after_discarded_one_are_omitted() {
    let mut pending = PendingMessages::default();
    pending.add_named(b"CS", b"old");
    assert!(pending.add_sync(None));
    pending.add_named(b"DP", b"");
    pending.discard_pipeline();
    pending.add(b'H');
    assert_eq!(pending.take_through(b'E'), None);
    let mut messages = None;
    assert!(pending.add_sync(Some(LastEvent::Bind(&mut messages))));
    assert_eq!(messages, Some("S".into()));
    // The pipelines before and after this one are complete.
    pending.add_named(b"B", b"");
    assert_eq!(pending.take_through(b'E'), Some("CSold\0SB\0E".into()));
    pending.discard_pipeline();
    assert_eq!(pending.take_through(b'Q'), None);
    pending.add(b'H');
    assert_eq!(pending.take_through(b'Q'), Some("HQ".into()));
}

#[test]
fn excess_messages_are_discarded_and_reported() {
    let mut pending = PendingMessages::default();
    for _ in 0..BYTES_MAX {
        pending.add(b'H');
    }
    assert_eq!(pending.take_through(b'E'), None);
    assert!(!pending.add_sync(None));
    for _ in 1..BYTES_MAX {
        assert!(pending.add_sync(None));
    }
    assert!(!pending.add_sync(None));
    assert_eq!(pending.take_through(b'E'), Some("E".into()));
}
