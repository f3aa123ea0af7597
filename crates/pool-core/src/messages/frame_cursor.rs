//! [`FrameCursor`]: the position in the byte stream received from one peer.
//!
//! Bodies that the core need not parse are streamed; only their remaining length is stored. A
//! message that must be complete to be processed, or a partial header, waits in `buffered` for the
//! rest. So an idle peer needs no buffer.

use howdah_wire::{Header, HeaderError};

/// The treatment of the rest of a message body whose start has been processed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum BodyHandling {
    #[default]
    Forward,
    /// Forward it; the receiver executes the message as soon as it is complete, so it must not be
    /// padded.
    ForwardExecutable,
    Drop,
}

/// The position in a peer's stream of messages, with the bytes that could not be processed yet.
#[derive(Debug, Default)]
pub(crate) struct FrameCursor {
    /// Received bytes that could not be processed yet. They start with a message header or, if
    /// `body_left` is not zero, with the rest of a body.
    pub(crate) buffered: Vec<u8>,
    /// Remaining bytes of a body whose start has been processed.
    pub(crate) body_left: u32,
    /// How to handle the `body_left` bytes.
    pub(crate) body_handling: BodyHandling,
    /// Whether complete messages of a batch are buffered, to be analyzed together with the rest of
    /// the batch.
    pub(crate) is_collecting_batch: bool,
}

impl FrameCursor {
    /// Consumes bytes of the current body, at most `available`, and returns their number.
    pub(crate) fn take_body(&mut self, available: usize) -> usize {
        let taken = available.min(self.body_left as usize);
        self.body_left -= body_length(taken);
        taken
    }

    /// Appends `bytes` to the buffered input.
    pub(crate) fn buffer(&mut self, bytes: &[u8]) {
        self.buffered.extend_from_slice(bytes);
    }

    /// Whether only part of a message has been forwarded, so that nothing else may be sent to the
    /// receiver.
    pub(crate) fn is_inside_forwarded_body(&self) -> bool {
        self.body_left > 0 && self.body_handling != BodyHandling::Drop
    }

    /// Returns the number of padding bytes that complete a message whose sender has disconnected;
    /// `None` if there are too many, or if the server would execute the padded message. Padding
    /// other messages is harmless: a string without its final zero byte is an error, and no Execute
    /// follows.
    pub(crate) fn padding_bytes(&self) -> Option<usize> {
        if !self.is_inside_forwarded_body() {
            return Some(0);
        }
        let bytes = self.body_left as usize;
        let may =
            self.body_handling != BodyHandling::ForwardExecutable && bytes <= PADDING_BYTES_MAX;
        may.then_some(bytes)
    }

    /// Whether the last processed message has arrived completely; part of the next one may be
    /// buffered.
    pub(crate) fn is_at_boundary(&self) -> bool {
        self.body_left == 0
    }

    /// Returns how many more bytes to buffer before processing is worthwhile; `usize::MAX` for all
    /// that have arrived.
    pub(crate) fn bytes_needed(&self) -> usize {
        if self.is_collecting_batch { usize::MAX } else { Self::bytes_needed_after(&self.buffered) }
    }

    /// Like [`FrameCursor::bytes_needed`], for bytes buffered elsewhere. Returns the length of the
    /// rest of the header, or of the message, but at most as many bytes as are buffered already (or
    /// [`BUFFER_STEP_BYTES`], if that is more), so that a buffer grows only as bytes arrive.
    /// Returns 0 if the header is invalid.
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

/// Minimum number of bytes requested at a time for an incomplete message, if that many are missing.
const BUFFER_STEP_BYTES: usize = 512;

/// Maximum number of padding bytes that complete an unfinished message: 64 KiB.
const PADDING_BYTES_MAX: usize = 64 * 1024;

/// Converts a body length to `u32`, which always fits: the length comes from a 32-bit field.
pub(crate) fn body_length(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("a body length is a u32")
}

/// Returns the header at `at`, or `None` while it is incomplete.
#[inline]
pub(crate) fn header_at(input: &[u8], at: usize) -> Result<Option<Header>, HeaderError> {
    Header::parse(input.get(at..).unwrap_or_default())
}
