//! Events and service checks, stored as they were received until the next flush.

use std::time::SystemTime;

/// Lines with events and service checks, up to a limit.
#[derive(Debug, Default)]
pub struct MessageBuffer {
    lines: Vec<(SystemTime, Box<[u8]>)>,
    bytes: usize,
    /// Number of lines that did not fit.
    pub dropped: u64,
}

/// Memory of a line besides its text.
const LINE_OVERHEAD: usize = 64;

impl MessageBuffer {
    /// Stores a line, or counts it as dropped if the buffer would then exceed `bytes_max`.
    pub(crate) fn push(&mut self, received: SystemTime, line: Box<[u8]>, bytes_max: usize) {
        let bytes = self.bytes + line.len() + LINE_OVERHEAD;
        if bytes > bytes_max {
            self.dropped += 1;
            return;
        }
        self.bytes = bytes;
        self.lines.push((received, line));
    }

    /// Moves the lines of `other` to the end, as far as they fit.
    pub(crate) fn append(&mut self, other: &mut Self, bytes_max: usize) {
        self.dropped += std::mem::take(&mut other.dropped);
        other.bytes = 0;
        for (received, line) in other.lines.drain(..) {
            self.push(received, line, bytes_max);
        }
    }

    /// Returns all lines, each with the time of its receipt.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = (SystemTime, &[u8])> {
        self.lines.iter().map(|(received, line)| (*received, &**line))
    }

    /// Removes all lines, each with the time of its receipt.
    pub(crate) fn take(&mut self) -> Vec<(SystemTime, Box<[u8]>)> {
        self.bytes = 0;
        std::mem::take(&mut self.lines)
    }
}
