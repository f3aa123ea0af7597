//! [`FrameCursor`]: the position in the byte stream of one peer.
//!
//! Bodies that the core need not understand stream through; only their remaining length is stored.
//! A message that must be complete to be processed, or a header cut in two, waits in `buffered` for
//! the rest. So an idle peer needs no buffer.

use howdah_wire::{Header, HeaderError};

/// How to handle a streamed body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum BodyHandling {
    #[default]
    Forward,
    /// Forwarded; the receiver acts on the message as soon as it is complete.
    ForwardExecutable,
    Drop,
}

/// Position in a peer's stream of messages.
#[derive(Debug, Default)]
pub(crate) struct FrameCursor {
    /// Received bytes that could not be processed yet; they start with a message, unless
    /// `body_left` bytes come first.
    pub(crate) buffered: Vec<u8>,
    /// Remaining bytes of a body whose start has been processed.
    pub(crate) body_left: u32,
    /// How to handle those bytes.
    pub(crate) body_handling: BodyHandling,
    /// Whether complete messages are buffered, to be inspected together with those that follow.
    pub(crate) is_collecting_batch: bool,
}

impl FrameCursor {
    /// Takes the bytes of the current body from `available` bytes, and returns their number.
    pub(crate) fn take_body(&mut self, available: usize) -> usize {
        let taken = available.min(self.body_left as usize);
        self.body_left -= body_length(taken);
        taken
    }

    /// Buffers `bytes` for later.
    pub(crate) fn buffer(&mut self, bytes: &[u8]) {
        self.buffered.extend_from_slice(bytes);
    }

    /// Whether the receiver has been sent only part of a message, so that nothing else may be sent
    /// to it.
    pub(crate) fn is_inside_forwarded_body(&self) -> bool {
        self.body_left > 0 && self.body_handling != BodyHandling::Drop
    }

    /// Returns the number of padding bytes that complete a message whose sender will never finish
    /// it; `None` if there are too many, or if the message would then be executed. Other messages
    /// are harmless: a text without its final zero byte is an error, and no Execute follows.
    pub(crate) fn padding_bytes(&self) -> Option<usize> {
        let bytes = self.body_left as usize;
        let may =
            self.body_handling != BodyHandling::ForwardExecutable && bytes <= PADDING_BYTES_MAX;
        (bytes == 0 || self.body_handling == BodyHandling::Drop || may).then_some(bytes)
    }

    /// Whether the last message was processed to its end.
    pub(crate) fn is_at_boundary(&self) -> bool {
        self.body_left == 0
    }

    /// Returns how many more bytes must arrive before processing is worthwhile.
    pub(crate) fn bytes_needed(&self) -> usize {
        if self.is_collecting_batch { usize::MAX } else { Self::bytes_needed_after(&self.buffered) }
    }

    /// Like [`FrameCursor::bytes_needed`] for bytes buffered elsewhere: returns the length of the
    /// rest of a header, or of the message, but at most as many bytes as are buffered already.
    pub(crate) fn bytes_needed_after(buffered: &[u8]) -> usize {
        let Some(rest) = Header::BYTES.checked_sub(buffered.len()).filter(|rest| *rest > 0) else {
            let total = match Header::parse(buffered) {
                Ok(Some(header)) => Header::BYTES + header.body_bytes as usize,
                _ => return 0,
            };
            return total.saturating_sub(buffered.len()).min(buffered.len().max(BUFFER_STEP_BYTES));
        };
        rest
    }
}

/// Minimum number of bytes requested for an incomplete message.
const BUFFER_STEP_BYTES: usize = 512;

/// Maximum length of an unfinished message that is padded.
const PADDING_BYTES_MAX: usize = 64 * 1024;

/// Converts a body length to `u32`; a limit on messages ensures that it fits.
pub(crate) fn body_length(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("a body length is a u32")
}

/// Returns the header at `at`, or `None` while it is incomplete.
#[inline]
pub(crate) fn header_at(input: &[u8], at: usize) -> Result<Option<Header>, HeaderError> {
    Header::parse(input.get(at..).unwrap_or_default())
}
