//! Splits a row into columns, using bitmasks of 64 bytes at a time.
//!
//! One bit for each byte shows whether the byte is inside quotes: the number of quotes up to it,
//! modulo 2. A comma outside quotes ends a column; a newline outside quotes ends the row. Quotes
//! must be doubled unless they are at an end of a column. So a row is split and validated without
//! examining single bytes.

use super::is_row_start;
use crate::{record::spans::FieldSpan, scan::bitmasks::Bitmasks};

/// Number of columns whose ends are stored; servers write at most 26.
const COLUMN_SLOTS: usize = 64;

/// The columns of one row, as offsets in its chunk.
#[derive(Clone, Debug)]
pub(super) struct RowColumns {
    start: usize,
    /// Offset of the end of each column.
    ends: [u32; COLUMN_SLOTS],
    /// Whether columns contain doubled quotes.
    has_doubled_quotes: bool,
    /// Whether a quote is neither doubled nor at an end of a column.
    has_stray_quote: bool,
    /// The state at the end of the row, or at the block at which its split continues.
    progress: RowProgress,
}

/// The state of splitting a row, before a block of 64 bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RowProgress {
    block: usize,
    columns: usize,
    newlines: u32,
    /// Offset of the first of two quotes, if the second was not seen yet, or [`NO_QUOTE`].
    first_quote: usize,
    /// The bits of the block that belong to the row.
    row: u64,
    /// The starts of columns that do not follow a break in the block.
    begins: u64,
    /// All ones if the block starts inside quotes.
    carry: u64,
}

const NO_QUOTE: usize = usize::MAX;

/// The end of a row, as far as the text shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowEnd {
    /// The row ends before this offset, after its newline.
    Row(usize),
    /// Another row starts inside this row's quotes, at this offset.
    Broken(usize),
    /// The end of the row is not before this offset, and depends on bytes after the text.
    Undecided(usize),
}

impl Default for RowColumns {
    fn default() -> Self {
        Self {
            start: 0,
            ends: [0; COLUMN_SLOTS],
            has_doubled_quotes: false,
            has_stray_quote: false,
            progress: RowProgress::default(),
        }
    }
}

impl RowColumns {
    /// Starts the row at `start`, and returns where its split starts. `time_bytes` is the length of
    /// the row's time if a comma follows it, or 0 if unknown.
    #[inline(always)]
    pub(super) fn start_row(&mut self, start: usize, time_bytes: usize) -> RowProgress {
        self.start = start;
        (self.has_doubled_quotes, self.has_stray_quote) = (false, false);
        let (mut from, mut columns) = (start, 0);
        if time_bytes > 0 {
            self.ends[0] = (start + time_bytes) as u32;
            columns = 1;
            from += time_bytes + 1;
        }
        let (row, begins) = (u64::MAX << (from % 64), 1 << (from % 64));
        let block = from / 64;
        RowProgress { block, columns, newlines: 1, first_quote: NO_QUOTE, row, begins, carry: 0 }
    }

    /// Returns where an [undecided](RowEnd::Undecided) split continues.
    pub(super) fn progress(&self) -> RowProgress {
        self.progress
    }

    /// Splits the started row from `now` on. `masks` are the quotes, commas and newlines of the
    /// chunk, as far as they are known; an [`Undecided`](RowEnd::Undecided) split can be continued
    /// with more of them. `is_all` means that nothing follows the chunk.
    // The progress is an argument, to stay in registers: loaded from `self`, where it would have
    // just been stored, it takes several percent of the time for a row.
    #[inline(always)]
    pub(super) fn split_row(
        &mut self,
        chunk: &[u8],
        masks: &Bitmasks,
        mut now: RowProgress,
        is_all: bool,
    ) -> RowEnd {
        // The last two blocks may change, or depend on bytes after them.
        let certain = masks.blocks().saturating_sub(2);
        loop {
            let Some([quotes, commas, newlines]) = masks.block(now.block) else {
                // The last block is split again, with what follows it.
                return RowEnd::Undecided(masks.len());
            };
            if now.block >= certain {
                self.progress = now;
            }
            let (quotes, commas, newlines) =
                (quotes & now.row, commas & now.row, newlines & now.row);
            let inside = parity(quotes) ^ now.carry;
            let line_ends = newlines & !inside;
            // All bits up to the newline that ends the row, or all bits without one.
            let part = line_ends ^ line_ends.wrapping_sub(1);
            let breaks = ((commas & !inside) | line_ends) & part;
            let quotes = quotes & part;
            let folds = newlines & inside & part;
            let base = now.block * 64;
            let edges = breaks << 1 | breaks >> 1 | now.begins;
            if quotes & !edges != 0
                && !self.add_quotes(chunk, &mut now, quotes & !edges, inside, is_all)
            {
                return RowEnd::Undecided(chunk.len());
            }
            if folds != 0 {
                now.newlines += folds.count_ones();
                if let Some(end) = check_folds(chunk, base, folds, is_all) {
                    return end;
                }
            }
            let mut rest = breaks;
            while rest != 0 {
                if let Some(end) = self.ends.get_mut(now.columns) {
                    *end = base as u32 + rest.trailing_zeros();
                }
                now.columns += 1;
                rest &= rest - 1;
            }
            if line_ends != 0 {
                self.progress = now;
                return self.end_row(chunk, base + line_ends.trailing_zeros() as usize);
            }
            now.begins = breaks >> 63;
            now.carry = 0_u64.wrapping_sub(inside >> 63);
            now.row = u64::MAX;
            now.block += 1;
        }
    }

    /// Ends the row with the newline at `newline`, which a carriage return may precede.
    #[inline]
    fn end_row(&mut self, chunk: &[u8], newline: usize) -> RowEnd {
        if newline > self.start
            && chunk[newline - 1] == b'\r'
            && let Some(end) = self.ends.get_mut(self.progress.columns - 1)
        {
            *end -= 1;
        }
        RowEnd::Row(newline + 1)
    }

    /// Records the quotes of a block that are not next to a break, which are doubled quotes, or end
    /// a column at the end of the block or before a carriage return. Returns false if that depends
    /// on bytes after the chunk.
    #[cold]
    fn add_quotes(
        &mut self,
        chunk: &[u8],
        now: &mut RowProgress,
        quotes: u64,
        inside: u64,
        is_all: bool,
    ) -> bool {
        self.has_doubled_quotes = true;
        let (mut rest, base) = (quotes, now.block * 64);
        while rest != 0 {
            let bit = rest.trailing_zeros();
            rest &= rest - 1;
            let (at, is_inside) = (base + bit as usize, inside >> bit & 1 == 1);
            if !is_inside && chunk.get(at + 1) != Some(&b'"') {
                match &chunk[at + 1..] {
                    [] | [b'\r'] if !is_all => return false,
                    [] | [b'\r'] | [b',' | b'\n', ..] | [b'\r', b'\n', ..] => continue,
                    _ => {}
                }
            }
            // The first of two quotes seems to close the text, and the second to reopen it.
            let first = std::mem::replace(&mut now.first_quote, NO_QUOTE);
            if is_inside {
                self.has_stray_quote |= first.wrapping_add(1) != at;
            } else {
                self.has_stray_quote |= first != NO_QUOTE;
                now.first_quote = at;
            }
        }
        true
    }

    /// Whether all quotes of the row that was split are doubled or at an end of a column.
    #[inline]
    pub(super) fn has_valid_quotes(&self) -> bool {
        !self.has_stray_quote && self.progress.first_quote == NO_QUOTE
    }

    /// Returns the number of newlines in the row that was split, including the one that ends it.
    #[inline]
    pub(super) fn newlines(&self) -> u32 {
        self.progress.newlines
    }

    /// Returns the number of columns in the row that was split.
    #[inline]
    pub(super) fn columns(&self) -> usize {
        self.progress.columns
    }

    /// Returns the offset of the end of a column, or of the row if it has fewer columns.
    #[inline]
    pub(super) fn column_end(&self, column: usize) -> usize {
        self.ends[column.min(self.columns().saturating_sub(1)) % COLUMN_SLOTS] as usize
    }

    /// Returns the span of a column without its quotes; one with doubled quotes is copied to
    /// `scratch`.
    #[inline(always)]
    pub(super) fn column(&self, number: usize, chunk: &[u8], scratch: &mut Vec<u8>) -> FieldSpan {
        if number >= self.columns() {
            return FieldSpan::ABSENT;
        }
        let start = match number {
            0 => self.start,
            _ => self.ends[number - 1] as usize + 1,
        };
        let end = self.ends[number] as usize;
        if start == end {
            return FieldSpan::ABSENT;
        }
        // A column that begins with a quote also ends with one.
        let is_quoted = usize::from(chunk[start] == b'"');
        let (start, end) = (start + is_quoted, end - is_quoted);
        if self.has_doubled_quotes && is_quoted == 1 {
            return unescape(start, end, chunk, scratch);
        }
        FieldSpan::input(start, end)
    }
}

/// Copies a column with each doubled quote replaced by one, if it has any.
#[cold]
fn unescape(start: usize, end: usize, chunk: &[u8], scratch: &mut Vec<u8>) -> FieldSpan {
    let (scratch_from, mut from) = (scratch.len(), start);
    while let Some(found) = memchr::memchr(b'"', &chunk[from..end]) {
        scratch.extend_from_slice(&chunk[from..=from + found]);
        from += found + 2;
    }
    if from == start {
        return FieldSpan::input(start, end);
    }
    scratch.extend_from_slice(&chunk[from..end]);
    FieldSpan::scratch(scratch_from, scratch.len())
}

/// Replaces each bit by the parity of the bits up to and including it.
#[inline]
fn parity(bits: u64) -> u64 {
    let mut sum = bits;
    for shift in [1, 2, 4, 8, 16, 32] {
        sum ^= sum << shift;
    }
    sum
}

/// Returns the end of the row if another row starts, or may start, after one of these newlines,
/// which are inside quotes.
#[cold]
fn check_folds(chunk: &[u8], base: usize, folds: u64, is_all: bool) -> Option<RowEnd> {
    let mut rest = folds;
    while rest != 0 {
        let line = base + rest.trailing_zeros() as usize + 1;
        rest &= rest - 1;
        match is_row_start(chunk.get(line..).unwrap_or_default(), is_all) {
            Some(true) => return Some(RowEnd::Broken(line)),
            Some(false) => {}
            None => return Some(RowEnd::Undecided(line - 1)),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Splits a row byte by byte.
    fn columns_bytewise(row: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
        let mut columns = Vec::new();
        let mut at = 0;
        loop {
            let mut column = Vec::new();
            if row.get(at) == Some(&b'"') {
                at += 1;
                loop {
                    match (row.get(at)?, row.get(at + 1)) {
                        (b'"', Some(b'"')) => {
                            column.push(b'"');
                            at += 2;
                        }
                        (b'"', _) => break at += 1,
                        (byte, _) => {
                            column.push(*byte);
                            at += 1;
                        }
                    }
                }
            } else {
                while !matches!(row.get(at)?, b',' | b'\n') {
                    if row[at] == b'"' {
                        return None;
                    }
                    column.push(row[at]);
                    at += 1;
                }
            }
            columns.push(column);
            match row.get(at)? {
                b',' => at += 1,
                b'\n' => return Some((columns, at + 1)),
                _ => return None,
            }
        }
    }

    #[test]
    fn blank_first_line_is_a_row() {
        let mut masks = Bitmasks::default();
        masks.scan(b"\n", *b"\",\n");
        let mut row = RowColumns::default();
        let start = row.start_row(0, 0);
        assert_eq!(row.split_row(b"\n", &masks, start, false), RowEnd::Row(1));
    }

    proptest! {
        #[test]
        fn split_equals_bytewise_split(
            ahead in 0_usize..70,
            parts in prop::collection::vec("[a,\n\"]|\"\"|,\"|\",|aaaaaaaaa", 0..40),
        ) {
            let chunk = ["x".repeat(ahead), parts.concat(), "\n,\"".to_owned()].concat();
            let chunk = chunk.as_bytes();
            let mut masks = Bitmasks::default();
            masks.scan(chunk, *b"\",\n");
            let mut cut = RowColumns::default();
            let start = cut.start_row(ahead, 0);
            let end = match cut.split_row(chunk, &masks, start, true) {
                RowEnd::Row(end) if cut.has_valid_quotes() => Some(end),
                _ => None,
            };
            let expected = columns_bytewise(&chunk[ahead..]);
            prop_assert_eq!(end, expected.as_ref().map(|(_, len)| ahead + len));
            if let Some((columns, _)) = expected {
                let mut scratch = Vec::new();
                let spans: Vec<_> =
                    (0..cut.columns()).map(|at| cut.column(at, chunk, &mut scratch)).collect();
                let found: Vec<_> = spans.iter().map(|it| it.text(chunk, &scratch).to_vec()).collect();
                prop_assert_eq!(found, columns);
                let row = &chunk[ahead..end.unwrap_or(0)];
                let newlines = row.iter().filter(|byte| **byte == b'\n').count();
                prop_assert_eq!(cut.newlines() as usize, newlines);
            }
        }
    }
}
