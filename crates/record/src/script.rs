//! [`Script`]: the messages around events, as [`Said`](howdah_traffic::Said) has them.

use howdah_traffic::{Event, Text};

/// Most bytes of messages that are kept while no event comes, or with one.
const BYTES_MAX: usize = 64 << 10;

const FEW_BYTES: usize = 64;

/// Messages that were sent and that no event has yet.
#[derive(Debug, Default)]
pub(crate) struct Script {
    messages: Vec<u8>,
    /// Where the pipeline that is being sent begins in them.
    pipeline_at: usize,
    /// What is sent of this pipeline is not kept from here on.
    is_lost: bool,
    /// Because there was too much of it.
    has_overflown: bool,
}

impl Script {
    /// A message without a name.
    pub(crate) fn add(&mut self, tag: u8) {
        self.put(&[tag], b"", b"");
    }

    /// A message about what has a name.
    pub(crate) fn add_named(&mut self, front: &[u8], name: &[u8]) {
        self.put(front, name, b"\0");
    }

    fn put(&mut self, front: &[u8], name: &[u8], back: &[u8]) {
        if self.is_lost {
            return;
        }
        if self.messages.len() + front.len() + name.len() + back.len() >= BYTES_MAX {
            self.has_overflown = true;
            return self.lose();
        }
        for part in [front, name, back] {
            self.messages.extend_from_slice(part);
        }
    }

    /// The pipeline that is being sent has a message that is not kept. Those behind it may be about what that
    /// made, so they are not told of, up to the Sync: said without it they would fail.
    pub(crate) fn lose(&mut self) {
        self.is_lost = true;
        self.messages.truncate(self.pipeline_at);
    }

    /// A Sync. Gives whether there was room for all that came before it.
    pub(crate) fn add_sync(&mut self, last: Option<Last<'_>>) -> bool {
        let was_lost = std::mem::take(&mut self.is_lost);
        if !was_lost {
            self.messages.push(b'S');
        }
        match last {
            Some(Last::Event(event)) if was_lost => add_sync(event),
            Some(Last::Event(event)) => {
                append(event, &self.messages);
                self.messages.clear();
            }
            Some(Last::Bind(messages)) if was_lost => *messages = Some("S".into()),
            Some(Last::Bind(messages)) => *messages = self.take_rest(),
            None => {}
        }
        // An application that does nothing but this would fill the memory: it starts over.
        if self.messages.len() >= BYTES_MAX {
            self.messages.clear();
            self.has_overflown = true;
        }
        self.pipeline_at = self.messages.len();
        !std::mem::take(&mut self.has_overflown)
    }

    /// An event comes with this message: what was sent up to here. `None` if that is all, and of a kind that
    /// stands for itself, and if it is not known.
    pub(crate) fn take_up_to(&mut self, own: u8) -> Option<Text> {
        let stands_for_itself = matches!(own, b'Q' | b'F');
        if stands_for_itself {
            // It ends the pipeline before it.
            self.is_lost = false;
        }
        if self.is_lost || stands_for_itself && self.messages.is_empty() {
            return None;
        }
        self.messages.push(own);
        self.take_rest()
    }

    /// What was sent; `None` if there is nothing.
    pub(crate) fn take_rest(&mut self) -> Option<Text> {
        let messages = (!self.messages.is_empty()).then(|| self.messages.as_slice().into());
        self.messages.clear();
        self.pipeline_at = 0;
        messages
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// The last event of a pipeline, when its Sync comes.
#[derive(Debug)]
pub(crate) enum Last<'a> {
    /// It is there.
    Event(&'a mut Event),
    /// It will be that of a Bind: its messages.
    Bind(&'a mut Option<Text>),
}

/// A Sync belongs to this event.
pub(crate) fn add_sync(event: &mut Event) {
    append(event, b"S");
}

fn append(event: &mut Event, messages: &[u8]) {
    // Of one whose messages are not known there is nothing to go on with.
    let Some(kept) = event.wire.as_mut().and_then(|wire| wire.messages.as_mut()) else { return };
    let (before, mut few) = (kept.as_bytes(), [0; FEW_BYTES]);
    if before.ends_with(b"S") {
        // The server ignored that one while it waited for the rows of a COPY.
        return;
    }
    let all = before.len() + messages.len();
    // Those of a statement are some seven, which need no memory of their own.
    let all = match few.get_mut(..all) {
        Some(few) => {
            few[..before.len()].copy_from_slice(before);
            few[before.len()..].copy_from_slice(messages);
            Text::from(&*few)
        }
        None => [before, messages].concat().into(),
    };
    *kept = all;
}

#[test]
fn what_stands_behind_a_message_that_is_not_kept_is_not_told() {
    let mut script = Script::default();
    script.add_named(b"CS", b"old");
    assert!(script.add_sync(None));
    script.add_named(b"DP", b"");
    script.lose();
    script.add(b'H');
    assert_eq!(script.take_up_to(b'E'), None);
    let mut messages = None;
    assert!(script.add_sync(Some(Last::Bind(&mut messages))));
    assert_eq!(messages, Some("S".into()));
    // The pipeline before is whole, and so is the one behind.
    script.add_named(b"B", b"");
    assert_eq!(script.take_up_to(b'E'), Some("CSold\0SB\0E".into()));
    script.lose();
    assert_eq!(script.take_up_to(b'Q'), None);
    script.add(b'H');
    assert_eq!(script.take_up_to(b'Q'), Some("HQ".into()));
}

#[test]
fn what_is_too_much_is_not_told_but_said_to_be() {
    let mut script = Script::default();
    for _ in 0..BYTES_MAX {
        script.add(b'H');
    }
    assert_eq!(script.take_up_to(b'E'), None);
    assert!(!script.add_sync(None));
    for _ in 1..BYTES_MAX {
        assert!(script.add_sync(None));
    }
    assert!(!script.add_sync(None));
    assert_eq!(script.take_up_to(b'E'), Some("E".into()));
}
