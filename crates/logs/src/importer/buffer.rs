//! The part of the input that is not processed yet, with its position in the file.

/// Unprocessed input. Offsets count from the first byte that was not consumed.
#[derive(Debug, Default)]
pub(crate) struct InputBuffer {
    data: Vec<u8>,
    start: usize,
    line: u64,
}

impl InputBuffer {
    /// Discards unprocessed input and starts a file at line 1.
    pub(crate) fn start_file(&mut self) {
        self.data.clear();
        self.start = 0;
        self.line = 1;
    }

    /// Appends input, after dropping the consumed bytes if they are at least half of the buffer.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.start > 0 && self.start >= self.data.len() / 2 {
            self.data.copy_within(self.start.., 0);
            self.data.truncate(self.data.len() - self.start);
            self.start = 0;
        }
        self.data.extend_from_slice(bytes);
    }

    /// Returns the bytes not consumed yet.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.data[self.start..]
    }

    /// Drops the first `len` bytes.
    pub(crate) fn consume(&mut self, len: usize) {
        let end = (self.start + len).min(self.data.len());
        self.line += memchr::memchr_iter(b'\n', &self.data[self.start..end]).count() as u64;
        self.start = end;
        if self.data.capacity() > RETAINED_BYTES_MAX
            && self.data.len() - self.start < RETAINED_BYTES_MAX / 2
        {
            self.data.drain(..self.start);
            self.data.shrink_to(RETAINED_BYTES_MAX);
            self.start = 0;
        }
    }

    /// Counts the newlines of bytes that bypassed the buffer, which must be empty.
    pub(crate) fn skip_lines(&mut self, newlines: u64) {
        debug_assert!(self.bytes().is_empty());
        self.line += newlines;
    }

    /// Returns the number of the next line, from 1.
    pub(crate) fn line(&self) -> u64 {
        self.line
    }

    /// Returns the number, from 1, of the line that contains the byte at `offset`.
    pub(crate) fn line_at(&self, offset: usize) -> u64 {
        let ahead = &self.bytes()[..offset.min(self.bytes().len())];
        self.line + memchr::memchr_iter(b'\n', ahead).count() as u64
    }
}

/// Maximum retained capacity; a buffer that one huge record made larger is shrunk.
const RETAINED_BYTES_MAX: usize = 4 << 20;

#[test]
fn consumed_lines_are_counted() {
    let mut buffer = InputBuffer::default();
    buffer.start_file();
    buffer.push(b"a\nb\nc");
    assert_eq!(buffer.line_at(2), 2);
    buffer.consume(4);
    assert_eq!((buffer.bytes(), buffer.line_at(0)), (&b"c"[..], 3));
    buffer.push(b"d\n");
    assert_eq!(buffer.bytes(), b"cd\n");
}

#[test]
fn memory_of_huge_record_is_released() {
    let mut buffer = InputBuffer::default();
    buffer.start_file();
    buffer.push(&vec![b'x'; 3 * RETAINED_BYTES_MAX]);
    buffer.consume(3 * RETAINED_BYTES_MAX);
    assert!(buffer.data.capacity() <= RETAINED_BYTES_MAX);
}
