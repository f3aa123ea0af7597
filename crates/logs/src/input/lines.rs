//! Lines out of a stream of bytes, none longer than a bound.

/// Cuts a stream into lines.
#[derive(Debug)]
pub(super) struct Lines {
    bytes_max: usize,
    /// The beginning of a line whose end has not come.
    pending: Vec<u8>,
    /// Inside a line that is too long.
    skipping: bool,
    /// Number of the line that `pending` begins, from 1.
    number: u64,
}

/// What stands between two newlines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    /// A line, without its newline.
    Whole(&'a [u8]),
    /// The beginning of one that is too long. The rest of it is dropped.
    TooLong(&'a [u8]),
}

impl Lines {
    /// Nothing was read yet; no line longer than `bytes_max` is kept.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, pending: Vec::new(), skipping: false, number: 1 }
    }

    /// Takes the next bytes; hands over each line that they end, and its number.
    pub(super) fn feed(&mut self, bytes: &[u8], mut take: impl FnMut(Line<'_>, u64)) {
        let mut rest = bytes;
        while let Some(newline) = memchr::memchr(b'\n', rest) {
            let (line, after) = (&rest[..newline], &rest[newline + 1..]);
            rest = after;
            if std::mem::take(&mut self.skipping) {
                self.number += 1;
                continue;
            }
            if self.pending.is_empty() {
                self.hand_over(line, &mut take);
            } else {
                let mut whole = std::mem::take(&mut self.pending);
                whole.extend_from_slice(line);
                self.hand_over(&whole, &mut take);
                whole.clear();
                if whole.capacity() <= KEPT_BYTES {
                    self.pending = whole;
                }
            }
            self.number += 1;
        }
        if self.skipping {
            return;
        }
        self.pending.extend_from_slice(rest);
        if self.pending.len() > self.bytes_max {
            take(Line::TooLong(&self.pending), self.number);
            self.pending = Vec::new();
            self.skipping = true;
        }
    }

    /// Hands over a last line that has no newline.
    pub(super) fn finish(&mut self, mut take: impl FnMut(Line<'_>, u64)) {
        let last = std::mem::take(&mut self.pending);
        if !last.is_empty() {
            self.hand_over(&last, &mut take);
        }
    }

    fn hand_over(&self, line: &[u8], take: &mut impl FnMut(Line<'_>, u64)) {
        let line =
            if line.len() > self.bytes_max { Line::TooLong(line) } else { Line::Whole(line) };
        take(line, self.number);
    }
}

/// A buffer that grew beyond this for one long line is given back afterwards.
const KEPT_BYTES: usize = 1 << 20;

#[test]
fn lines_do_not_depend_on_pieces() {
    let text = b"one\n\ntwo is too long\nlast";
    for piece in 1..text.len() {
        let mut lines = Lines::new(8);
        let mut got = Vec::new();
        let mut take = |line: Line<'_>, number| match line {
            Line::Whole(line) => got.push((number, line.to_vec())),
            Line::TooLong(_) => got.push((number, b"?".to_vec())),
        };
        text.chunks(piece).for_each(|bytes| lines.feed(bytes, &mut take));
        lines.finish(&mut take);
        let expected = [(1, &b"one"[..]), (2, b""), (3, b"?"), (4, b"last")];
        assert!(got.iter().map(|(n, l)| (*n, l.as_slice())).eq(expected), "{piece}: {got:?}");
    }
}
