//! [`ReplyBuffer`]: reply bytes of a shard that have not been merged yet.

use howdah_wire::{Frame, HeaderError, Tag};

/// Number of bytes from which a buffer that has a complete message is full: the caller must stop
/// reading from the shard until some are consumed.
const BYTES_HIGH: usize = 256 << 10;

/// Unmerged bytes of one shard: complete messages and possibly the start of another.
#[derive(Debug, Default)]
pub(super) struct ReplyBuffer {
    bytes: Vec<u8>,
    start: usize,
    /// Length in bytes of the message at the front; 0 until [`Self::peek`] finds it complete.
    front: usize,
    /// Whether further bytes are ignored, because the connection is gone or sent an invalid header.
    pub(super) is_lost: bool,
}

impl ReplyBuffer {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        // Consumed bytes are removed only once they make up half of the buffer, so that the
        // remaining bytes are moved rarely.
        if self.start * 2 >= self.bytes.len() {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the tag of the next message if it is complete. A body longer than `body_bytes_max`
    /// is an error.
    pub(super) fn peek(&mut self, body_bytes_max: u32) -> Result<Option<Tag>, HeaderError> {
        let rest = &self.bytes[self.start..];
        let Some((frame, behind)) = Frame::split(rest, body_bytes_max)? else { return Ok(None) };
        self.front = rest.len() - behind.len();
        Ok(Some(frame.tag))
    }

    /// Returns the message last peeked at, with its header.
    pub(super) fn front(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.front]
    }

    pub(super) fn pop(&mut self) {
        self.start += std::mem::take(&mut self.front);
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        (self.start, self.front) = (0, 0);
    }

    pub(super) fn is_full(&mut self, body_bytes_max: u32) -> bool {
        self.bytes.len() - self.start >= BYTES_HIGH
            && matches!(self.peek(body_bytes_max), Ok(Some(_)))
    }
}
