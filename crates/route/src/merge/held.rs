//! [`Held`]: what a shard has answered and nobody has taken yet.

use howdah_wire::{Frame, HeaderError, Tag};

/// Above this many bytes, a shard is not listened to until some are taken.
const BYTES_HIGH: usize = 256 << 10;

/// Bytes of one shard, in whole messages and the beginning of another.
#[derive(Debug, Default)]
pub(super) struct Held {
    bytes: Vec<u8>,
    start: usize,
    /// How many bytes the message at the front has, once it is all there.
    front: usize,
    /// It is gone, and answers nothing more.
    pub(super) is_lost: bool,
}

impl Held {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        // What has been taken is forgotten when it is at least half, so that each byte moves once or twice.
        if self.start * 2 >= self.bytes.len() {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// What sort of message comes next, if it is all there. A body of more than `body_bytes_max` is an error.
    pub(super) fn peek(&mut self, body_bytes_max: u32) -> Result<Option<Tag>, HeaderError> {
        let rest = &self.bytes[self.start..];
        let Some((frame, behind)) = Frame::split(rest, body_bytes_max)? else { return Ok(None) };
        self.front = rest.len() - behind.len();
        Ok(Some(frame.tag))
    }

    /// The message that has been peeked at, with its header.
    pub(super) fn front(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.front]
    }

    pub(super) fn pass(&mut self) {
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
