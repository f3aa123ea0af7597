//! Buffers for input that is not parsed yet, and for output that is not sent yet.
//!
//! Both release their memory when they are empty, because most connections are idle most of the
//! time. A buffer of up to [`RETAINED_BYTES`] is retained, so that small exchanges need no
//! allocation.

use std::{fmt, ops::Range};

use howdah_wire::{Header, HeaderError};

/// Maximum capacity that an empty buffer retains, in bytes.
const RETAINED_BYTES: usize = 1024;

/// Received bytes. The first `consumed` of them are parsed; an event may still borrow them.
#[derive(Default)]
pub(crate) struct Input {
    bytes: Vec<u8>,
    consumed: usize,
    /// Remaining bytes of a body that is being discarded.
    discarding: usize,
}

impl Input {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let unwanted = self.discarding.min(bytes.len());
        self.discarding -= unwanted;
        self.release();
        if unwanted < bytes.len() {
            // Consumed bytes are dropped once they are the larger part, so that each byte is moved
            // at most once on average.
            if self.consumed > self.bytes.len() / 2 {
                self.bytes.drain(..self.consumed);
                self.consumed = 0;
            }
            self.bytes.extend_from_slice(&bytes[unwanted..]);
        }
    }

    pub(crate) fn header(&self) -> Result<Option<Header>, HeaderError> {
        Header::parse(&self.bytes[self.consumed..])
    }

    /// Returns the position of the body after `header`, if it has arrived completely; the message
    /// then counts as consumed.
    pub(crate) fn pop(&mut self, header: Header) -> Option<Range<usize>> {
        let start = self.consumed + Header::BYTES;
        let end = start + header.body_bytes as usize;
        (end <= self.bytes.len()).then(|| {
            self.consumed = end;
            start..end
        })
    }

    /// Skips the message with `header`, including the part that has not arrived.
    pub(crate) fn discard(&mut self, header: Header) {
        let message_bytes = Header::BYTES + header.body_bytes as usize;
        let there = message_bytes.min(self.bytes.len() - self.consumed);
        self.consumed += there;
        self.discarding = message_bytes - there;
    }

    pub(crate) fn body(&self, range: Range<usize>) -> &[u8] {
        &self.bytes[range]
    }

    /// If all bytes are consumed, releases the memory, unless it is at most [`RETAINED_BYTES`].
    pub(crate) fn release(&mut self) {
        if self.consumed == self.bytes.len() {
            self.bytes.clear();
            self.consumed = 0;
            return_front(&mut self.bytes);
        }
    }
}

/// Bytes to send; the first `sent` of them have already been sent.
#[derive(Default)]
pub(crate) struct TransmitBuffer {
    bytes: Vec<u8>,
    sent: usize,
}

impl TransmitBuffer {
    /// Returns the buffer to append to.
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        if self.sent > self.bytes.len() / 2 {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
        &mut self.bytes
    }

    pub(crate) fn unsent(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    /// Counts the first `bytes` of [`Self::unsent`], at most all of them, as sent.
    pub(crate) fn advance(&mut self, bytes: usize) {
        self.sent = self.bytes.len().min(self.sent + bytes);
        if self.sent == self.bytes.len() {
            self.bytes.clear();
            self.sent = 0;
            return_front(&mut self.bytes);
        }
    }
}

// Neither buffer shows its bytes: they may be passwords, and are user data in any case.

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Input({} bytes)", self.bytes.len() - self.consumed)
    }
}

impl fmt::Debug for TransmitBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Output({} bytes)", self.unsent().len())
    }
}

fn return_front(empty: &mut Vec<u8>) {
    if empty.capacity() > RETAINED_BYTES {
        *empty = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discarded_body_is_not_buffered() {
        let mut input = Input::default();
        input.push(b"D\0\0\x10\x04");
        let header = input.header().unwrap().unwrap();
        assert_eq!(header.body_bytes, 4096);
        input.discard(header);
        for _ in 0..4 {
            input.push(&[7; 1024]);
            assert_eq!(input.bytes.len(), 0);
        }
        input.push(b"Z\0\0\0\x05I");
        assert_eq!(input.header().unwrap().unwrap().body_bytes, 1);
    }

    #[test]
    fn empty_buffers_release_memory() {
        let mut input = Input::default();
        let message = [b"d\0\x01\0\x04".as_slice(), &[0; 0x10000]].concat();
        input.push(&message);
        let header = input.header().unwrap().unwrap();
        assert_eq!(input.pop(header).map(|body| body.len()), Some(0x10000));
        input.release();
        assert_eq!(input.bytes.capacity(), 0);

        let mut output = TransmitBuffer::default();
        output.buffer().extend_from_slice(&[1; 5000]);
        output.advance(4000);
        output.buffer().extend_from_slice(&[2; 10]);
        assert_eq!(output.unsent().len(), 1010);
        output.advance(1010);
        assert_eq!(output.bytes.capacity(), 0);
    }
}
