//! Lines of a stream, however it is cut into pieces.
//!
//! What is complete goes on at once, as one packet of many lines; the beginning of a line stays here
//! until its end has come. Not here: sockets, and what a line means.

use memchr::{memchr, memrchr};

/// What one connection has sent of a line that is not complete yet.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    tail: Vec<u8>,
    /// The line was too long; what is left of it is thrown away as it comes.
    skipping: bool,
    /// Lines that were too long.
    overlong: u64,
}

impl Lines {
    /// Longest line that is kept over several reads: as long as the longest datagram.
    pub(crate) const LINE_BYTES_MAX: usize = 64 << 10;

    /// Copies what was left over to the front of `buffer`, which is longer than
    /// [`LINE_BYTES_MAX`](Self::LINE_BYTES_MAX), and says from where on to read.
    pub(crate) fn begin(&self, buffer: &mut [u8]) -> usize {
        buffer[..self.tail.len()].copy_from_slice(&self.tail);
        self.tail.len()
    }

    /// Takes the buffer, filled from where [`begin`](Self::begin) said, and gives back the complete
    /// lines in it.
    pub(crate) fn take<'b>(&mut self, mut filled: &'b [u8]) -> &'b [u8] {
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

    /// The stream has ended well: what is left over is a line too, though nobody ended it. (So
    /// `printf a:1\|c | nc` counts.)
    pub(crate) fn finish(&mut self) -> &[u8] {
        &self.tail
    }

    /// How many lines were too long since this was last asked.
    pub(crate) fn take_overlong(&mut self) -> u64 {
        std::mem::take(&mut self.overlong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `stream` in pieces of `piece` bytes and gives the lines that came out.
    fn lines(stream: &[u8], piece: usize) -> (Vec<Vec<u8>>, u64) {
        let mut lines = Lines::default();
        let mut buffer = vec![0; 2 * Lines::LINE_BYTES_MAX];
        let mut out = Vec::new();
        for piece in stream.chunks(piece) {
            let from = lines.begin(&mut buffer);
            buffer[from..from + piece.len()].copy_from_slice(piece);
            out.extend_from_slice(lines.take(&buffer[..from + piece.len()]));
        }
        out.extend_from_slice(lines.finish());
        let overlong = lines.take_overlong();
        (out.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect(), overlong)
    }

    #[test]
    fn pieces_give_what_the_whole_gives() {
        let stream = b"a:1|c\n\nlonger.name:2|ms\r\ntail:3|g";
        let whole = lines(stream, stream.len());
        assert_eq!(whole.0, [&b"a:1|c"[..], b"", b"longer.name:2|ms\r", b"tail:3|g"]);
        for piece in 1..stream.len() {
            assert_eq!(lines(stream, piece), whole, "pieces of {piece}");
        }
    }

    #[test]
    fn a_line_without_end_is_dropped_and_counted_once() {
        let mut stream = b"a:1|c\n".to_vec();
        stream.extend(std::iter::repeat_n(b'x', 5 * Lines::LINE_BYTES_MAX));
        stream.extend(b"\nb:2|c\n");
        for piece in [7, 1000, Lines::LINE_BYTES_MAX] {
            assert_eq!(lines(&stream, piece), (vec![b"a:1|c".into(), b"b:2|c".into(), vec![]], 1));
        }
    }
}
