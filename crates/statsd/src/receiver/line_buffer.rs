//! [`LineBuffer`]: splits a byte stream into complete lines.
//!
//! Complete lines are returned at once, as one packet of many lines; an incomplete line is buffered
//! until its end arrives. This module does no I/O and does not parse lines.

use memchr::{memchr, memrchr};

/// A buffer that splits the bytes of one connection into lines, and stores the incomplete last line
/// between reads.
#[derive(Debug, Default)]
pub(crate) struct LineBuffer {
    tail: Vec<u8>,
    /// Whether the current line was too long, so that the rest of it is discarded.
    skipping: bool,
    /// Lines discarded because they were too long, since the last [`Self::take_overlong`].
    overlong: u64,
}

impl LineBuffer {
    /// Maximum length of a line buffered across reads: that of the longest datagram.
    pub(crate) const LINE_BYTES_MAX: usize = 64 << 10;

    /// Copies the incomplete line to the front of `buffer`, which must be longer than
    /// [`LINE_BYTES_MAX`](Self::LINE_BYTES_MAX), and returns the offset at which to read.
    pub(crate) fn restore_tail(&self, buffer: &mut [u8]) -> usize {
        buffer[..self.tail.len()].copy_from_slice(&self.tail);
        self.tail.len()
    }

    /// Returns the complete lines of a buffer that was prepared by
    /// [`restore_tail`](Self::restore_tail) and then filled, and stores the incomplete last line.
    pub(crate) fn split_lines<'b>(&mut self, mut filled: &'b [u8]) -> &'b [u8] {
        self.tail.clear();
        if self.skipping {
            let Some(end) = memchr(b'\n', filled) else { return &[] };
            self.skipping = false;
            filled = &filled[end + 1..];
        }
        let (lines, tail) = filled.split_at(memrchr(b'\n', filled).map_or(0, |end| end + 1));
        if tail.len() > Self::LINE_BYTES_MAX {
            self.skipping = true;
            self.overlong += 1;
        } else {
            self.tail.extend_from_slice(tail);
        }
        lines
    }

    /// Returns the unterminated last line at the end of the stream. It counts as a line, so that
    /// `printf a:1\|c | nc` works.
    pub(crate) fn remainder(&mut self) -> &[u8] {
        &self.tail
    }

    /// Like [`remainder`](Self::remainder), but removes the line.
    pub(crate) fn take_remainder(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.tail)
    }

    /// Returns the state between two reads: the incomplete line, and whether its rest is discarded.
    pub(crate) fn state(&self) -> (&[u8], bool) {
        (&self.tail, self.skipping)
    }

    /// Continues with the [`state`](Self::state) of another buffer; the incomplete line is cut at
    /// [`LINE_BYTES_MAX`](Self::LINE_BYTES_MAX).
    pub(crate) fn continued(tail: &[u8], skipping: bool) -> Self {
        let tail = tail[..tail.len().min(Self::LINE_BYTES_MAX)].to_vec();
        Self { tail, skipping, overlong: 0 }
    }

    /// Returns the number of overlong lines since the last call.
    pub(crate) fn take_overlong(&mut self) -> u64 {
        std::mem::take(&mut self.overlong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `stream` in reads of `read_bytes` and returns the resulting lines and the overlong
    /// count.
    fn lines(stream: &[u8], read_bytes: usize) -> (Vec<Vec<u8>>, u64) {
        let mut lines = LineBuffer::default();
        let mut buffer = vec![0; 2 * LineBuffer::LINE_BYTES_MAX];
        let mut out = Vec::new();
        for read in stream.chunks(read_bytes) {
            let from = lines.restore_tail(&mut buffer);
            buffer[from..from + read.len()].copy_from_slice(read);
            out.extend_from_slice(lines.split_lines(&buffer[..from + read.len()]));
        }
        out.extend_from_slice(lines.remainder());
        let overlong = lines.take_overlong();
        (out.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect(), overlong)
    }

    #[test]
    fn read_sizes_do_not_affect_lines() {
        let stream = b"a:1|c\n\nlonger.name:2|ms\r\ntail:3|g";
        let whole = lines(stream, stream.len());
        assert_eq!(whole.0, [&b"a:1|c"[..], b"", b"longer.name:2|ms\r", b"tail:3|g"]);
        for read_bytes in 1..stream.len() {
            assert_eq!(lines(stream, read_bytes), whole, "reads of {read_bytes} bytes");
        }
    }

    #[test]
    fn overlong_line_is_dropped_and_counted_once() {
        let mut stream = b"a:1|c\n".to_vec();
        stream.extend(std::iter::repeat_n(b'x', 5 * LineBuffer::LINE_BYTES_MAX));
        stream.extend(b"\nb:2|c\n");
        for read_bytes in [7, 1000, LineBuffer::LINE_BYTES_MAX] {
            assert_eq!(
                lines(&stream, read_bytes),
                (vec![b"a:1|c".into(), b"b:2|c".into(), vec![]], 1)
            );
        }
    }
}
