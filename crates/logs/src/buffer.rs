//! The part of the input that is not understood yet, with its place in the file.

/// Bytes in the order they came. Offsets are from the first byte that was not consumed.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    data: Vec<u8>,
    start: usize,
    line: u64,
}

impl Buffer {
    /// Forgets what is left and starts a file.
    pub(crate) fn begin(&mut self) {
        self.data.clear();
        self.start = 0;
        self.line = 1;
    }

    /// Adds input. What was consumed is dropped first, so that the buffer grows only with what is
    /// still needed.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.start > 0 && self.start >= self.data.len() / 2 {
            self.data.copy_within(self.start.., 0);
            self.data.truncate(self.data.len() - self.start);
            self.start = 0;
        }
        self.data.extend_from_slice(bytes);
    }

    /// What was not consumed.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.data[self.start..]
    }

    /// Drops the first `len` bytes.
    pub(crate) fn consume(&mut self, len: usize) {
        let end = (self.start + len).min(self.data.len());
        self.line += memchr::memchr_iter(b'\n', &self.data[self.start..end]).count() as u64;
        self.start = end;
        if self.data.capacity() > KEPT_BYTES && self.data.len() - self.start < KEPT_BYTES / 2 {
            self.data.drain(..self.start);
            self.data.shrink_to(KEPT_BYTES);
            self.start = 0;
        }
    }

    /// Passes over bytes that never came in here. Only while nothing is held.
    pub(crate) fn pass(&mut self, newlines: u64) {
        debug_assert!(self.bytes().is_empty());
        self.line += newlines;
    }

    /// Number of the line that comes next.
    pub(crate) fn line(&self) -> u64 {
        self.line
    }

    /// Number of the line that holds the byte at `offset`, from 1.
    pub(crate) fn line_at(&self, offset: usize) -> u64 {
        let ahead = &self.bytes()[..offset.min(self.bytes().len())];
        self.line + memchr::memchr_iter(b'\n', ahead).count() as u64
    }
}

/// A buffer that grew beyond this for one huge record is given back afterwards.
const KEPT_BYTES: usize = 4 << 20;

#[test]
fn lines_are_counted_as_bytes_go() {
    let mut buffer = Buffer::default();
    buffer.begin();
    buffer.push(b"a\nb\nc");
    assert_eq!(buffer.line_at(2), 2);
    buffer.consume(4);
    assert_eq!((buffer.bytes(), buffer.line_at(0)), (&b"c"[..], 3));
    buffer.push(b"d\n");
    assert_eq!(buffer.bytes(), b"cd\n");
}

#[test]
fn a_huge_record_does_not_keep_its_memory() {
    let mut buffer = Buffer::default();
    buffer.begin();
    buffer.push(&vec![b'x'; 3 * KEPT_BYTES]);
    buffer.consume(3 * KEPT_BYTES);
    assert!(buffer.data.capacity() <= KEPT_BYTES);
}
