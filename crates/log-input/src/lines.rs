//! Splits a stream of bytes into lines of bounded length.

/// A splitter of a stream into lines of bounded length.
#[derive(Debug)]
pub(super) struct LineSplitter {
    bytes_max: usize,
    /// The beginning of an incomplete line.
    pending: Vec<u8>,
    /// Whether the rest of an overlong line is being skipped.
    is_skipping: bool,
    /// Number of the line that `pending` begins, from 1.
    number: u64,
}

/// A line of an envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WrappedLine<'a> {
    /// A line without its newline.
    Whole(&'a [u8]),
    /// The beginning of a line that is too long. The rest of it is dropped.
    TooLong(&'a [u8]),
}

impl LineSplitter {
    /// Creates a splitter that rejects lines longer than `bytes_max`.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, pending: Vec::new(), is_skipping: false, number: 1 }
    }

    /// Reads the next bytes; calls `take` with each line that ends in them or becomes too long, and
    /// with its number.
    pub(super) fn feed(&mut self, bytes: &[u8], mut take: impl FnMut(WrappedLine<'_>, u64)) {
        let mut rest = bytes;
        while let Some(newline) = memchr::memchr(b'\n', rest) {
            let (line, after) = (&rest[..newline], &rest[newline + 1..]);
            rest = after;
            if std::mem::take(&mut self.is_skipping) {
                self.number += 1;
                continue;
            }
            if self.pending.is_empty() {
                self.emit(line, &mut take);
            } else {
                let mut whole = std::mem::take(&mut self.pending);
                whole.extend_from_slice(line);
                self.emit(&whole, &mut take);
                whole.clear();
                if whole.capacity() <= RETAINED_BYTES_MAX {
                    self.pending = whole;
                }
            }
            self.number += 1;
        }
        if self.is_skipping {
            return;
        }
        self.pending.extend_from_slice(rest);
        if self.pending.len() > self.bytes_max {
            take(WrappedLine::TooLong(&self.pending), self.number);
            self.pending = Vec::new();
            self.is_skipping = true;
        }
    }

    /// Calls `take` with a last line that has no newline.
    pub(super) fn finish(&mut self, mut take: impl FnMut(WrappedLine<'_>, u64)) {
        let last = std::mem::take(&mut self.pending);
        if !last.is_empty() {
            self.emit(&last, &mut take);
        }
    }

    fn emit(&self, line: &[u8], take: &mut impl FnMut(WrappedLine<'_>, u64)) {
        let line = if line.len() > self.bytes_max {
            WrappedLine::TooLong(line)
        } else {
            WrappedLine::Whole(line)
        };
        take(line, self.number);
    }
}

/// Maximum retained capacity; a buffer that one long line made larger is freed.
const RETAINED_BYTES_MAX: usize = 1 << 20;

#[test]
fn lines_do_not_depend_on_chunks() {
    let text = b"one\n\ntwo is too long\nlast";
    for chunk in 1..text.len() {
        let mut lines = LineSplitter::new(8);
        let mut got = Vec::new();
        let mut take = |line: WrappedLine<'_>, number| match line {
            WrappedLine::Whole(line) => got.push((number, line.to_vec())),
            WrappedLine::TooLong(_) => got.push((number, b"?".to_vec())),
        };
        text.chunks(chunk).for_each(|bytes| lines.feed(bytes, &mut take));
        lines.finish(&mut take);
        let expected = [(1, &b"one"[..]), (2, b""), (3, b"?"), (4, b"last")];
        assert!(got.iter().map(|(n, l)| (*n, l.as_slice())).eq(expected), "{chunk}: {got:?}");
    }
}
