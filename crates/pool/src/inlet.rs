//! [`FrameCursor`]: where the core is in the stream of bytes that one peer sends.
//!
//! Bodies without meaning stream through: of them only a count is kept. A message that is needed
//! whole, and a header cut in two, wait in `held` for their rest; so a peer that sends nothing has no
//! buffer.

use howdah_wire::{Header, HeaderError};

/// What happens to a body that streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Fate {
    #[default]
    Forward,
    /// It is forwarded, and whoever gets it acts on it as soon as it is whole.
    Vital,
    Drop,
}

/// Position in a stream of messages.
#[derive(Debug, Default)]
pub(crate) struct FrameCursor {
    /// Bytes that were received and could not be dealt with yet; the front of a message, except
    /// while `body_left` bytes come first.
    pub(crate) held: Vec<u8>,
    /// Bytes to come of a body whose front has been dealt with.
    pub(crate) body_left: u32,
    /// What is to happen to them.
    pub(crate) fate: Fate,
    /// What is held are whole messages, which are looked at with those that are to follow.
    pub(crate) looks_ahead: bool,
}

impl FrameCursor {
    /// Of `available` bytes, those that are of the body under way.
    pub(crate) fn take(&mut self, available: usize) -> usize {
        let taken = available.min(self.body_left as usize);
        self.body_left -= rest(taken);
        taken
    }

    /// Keeps `bytes` for later.
    pub(crate) fn hold(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    /// Whether whoever it is forwarded to has part of a message, and nothing else may be said to it.
    pub(crate) fn is_inside_forwarded(&self) -> bool {
        self.body_left > 0 && self.fate != Fate::Drop
    }

    /// How many bytes are to follow for a message to be whole that its sender will never end; `None` if
    /// that is too many, or if the message would then be acted on. None of those that remain is: a text
    /// without the zero byte at its end is an error, and no Execute follows.
    pub(crate) fn padding(&self) -> Option<usize> {
        let bytes = self.body_left as usize;
        let may = self.fate != Fate::Vital && bytes <= PADDING_BYTES_MAX;
        (bytes == 0 || self.fate == Fate::Drop || may).then_some(bytes)
    }

    /// Whether the last message dealt with was dealt with to its end.
    pub(crate) fn at_boundary(&self) -> bool {
        self.body_left == 0
    }

    /// How many of the next bytes have to join what is held before another look at it pays.
    pub(crate) fn wants(&self) -> usize {
        if self.looks_ahead { usize::MAX } else { Self::wanting(&self.held) }
    }

    /// The same of what is held elsewhere: the rest of a header, or of the message, though not more than
    /// doubles what is held already.
    pub(crate) fn wanting(held: &[u8]) -> usize {
        let Some(rest) = Header::BYTES.checked_sub(held.len()).filter(|rest| *rest > 0) else {
            let total = match Header::parse(held) {
                Ok(Some(header)) => Header::BYTES + header.body_bytes as usize,
                _ => return 0,
            };
            return total.saturating_sub(held.len()).min(held.len().max(HELD_STEP_BYTES));
        };
        rest
    }
}

/// The least that is added to a message that waits for its rest.
const HELD_STEP_BYTES: usize = 512;

/// Of a message that its sender will never end, no more than this is made up.
const PADDING_BYTES_MAX: usize = 64 * 1024;

/// What is left of a body, as it is counted.
pub(crate) fn rest(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("a body's length is a u32")
}

/// The header at `at`, or `None` while it is not all there.
#[inline]
pub(crate) fn header_at(input: &[u8], at: usize) -> Result<Option<Header>, HeaderError> {
    Header::parse(input.get(at..).unwrap_or_default())
}
