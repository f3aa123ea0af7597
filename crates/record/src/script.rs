//! [`Script`]: the messages around events, as [`Said`](howdah_traffic::Said) has them.

use howdah_traffic::{Event, Text};

/// Most bytes of messages that are kept while no event comes, or with one.
const BYTES_MAX: usize = 64 << 10;

const FEW_BYTES: usize = 64;

/// Messages that were sent and that no event has yet.
#[derive(Debug, Default)]
pub(crate) struct Script {
    messages: Vec<u8>,
    /// There were too many.
    has_overflown: bool,
}

impl Script {
    /// A message without a name.
    pub(crate) fn add(&mut self, tag: u8, name: &[u8]) {
        if self.messages.len() + name.len() >= BYTES_MAX {
            self.has_overflown = true;
            return;
        }
        self.messages.push(tag);
        self.messages.extend_from_slice(name);
    }

    /// A message about what has a name.
    pub(crate) fn add_named(&mut self, front: &[u8], name: &[u8]) {
        if self.messages.len() + front.len() + name.len() >= BYTES_MAX {
            self.has_overflown = true;
            return;
        }
        self.messages.extend_from_slice(front);
        self.messages.extend_from_slice(name);
        self.messages.push(0);
    }

    /// A Sync. Gives whether all that came before it was kept.
    pub(crate) fn add_sync(&mut self) -> bool {
        self.messages.push(b'S');
        // An application that does nothing but this would fill the memory: it starts over.
        if self.messages.len() >= BYTES_MAX {
            self.messages.clear();
            self.has_overflown = true;
        }
        !std::mem::take(&mut self.has_overflown)
    }

    /// An event comes with this message: what was sent up to here. `None` if that is all, and of a kind that
    /// stands for itself.
    pub(crate) fn take_up_to(&mut self, own: u8) -> Option<Text> {
        if self.messages.is_empty() && matches!(own, b'Q' | b'F') {
            return None;
        }
        self.messages.push(own);
        self.take_rest()
    }

    /// What was sent; `None` if there is nothing.
    pub(crate) fn take_rest(&mut self) -> Option<Text> {
        let is_known = !self.messages.is_empty() && !self.has_overflown;
        let messages = is_known.then(|| self.messages.as_slice().into());
        self.messages.clear();
        messages
    }

    /// What was sent belongs to this event.
    pub(crate) fn append_to(&mut self, event: &mut Event) {
        match &mut event.wire {
            Some(wire) if self.has_overflown => wire.messages = None,
            _ => append(event, &self.messages),
        }
        self.messages.clear();
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// A Sync belongs to this event.
pub(crate) fn add_sync(event: &mut Event) {
    append(event, b"S");
}

fn append(event: &mut Event, messages: &[u8]) {
    if let Some(wire) = &mut event.wire {
        let before = wire.messages.take().unwrap_or_default();
        if before.as_bytes().ends_with(b"S") {
            // The server ignored that one while it waited for the rows of a COPY.
            wire.messages = Some(before);
            return;
        }
        let (before, mut few) = (before.as_bytes(), [0; FEW_BYTES]);
        let all = before.len() + messages.len();
        // Those of a statement are some seven, which need no memory of their own.
        wire.messages = Some(match few.get_mut(..all) {
            Some(few) => {
                few[..before.len()].copy_from_slice(before);
                few[before.len()..].copy_from_slice(messages);
                (&*few).into()
            }
            None => [before, messages].concat().into(),
        });
    }
}
