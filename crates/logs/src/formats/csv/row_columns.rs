//! Finds the column ends of a row, using bitmasks of 64 bytes at a time.
//!
//! One bit for each byte shows whether the byte is inside quotes: the number of quotes up to it,
//! modulo 2. A comma outside quotes ends a column; a newline outside quotes ends the row. Quotes
//! must be doubled unless they are at an end of a column. So a row is split and validated without
//! examining single bytes.

use super::is_row_start;
use crate::{record::spans::FieldSpan, scan::bitmasks::Bitmasks};

/// Maximum number of columns; servers write at most 26.
const COLUMN_SLOTS: usize = 64;

/// The columns of one row, as offsets in its chunk.
#[derive(Clone, Debug)]
pub(super) struct RowColumns {
    start: usize,
    /// Offset of the end of each column.
    ends: [u32; COLUMN_SLOTS],
    columns: usize,
    /// Offsets of both quotes of each doubled quote inside columns.
    doubled: Vec<u32>,
    /// Newlines in the row, including the one that ends it.
    pub(super) newlines: u32,
}

impl Default for RowColumns {
    fn default() -> Self {
        Self { start: 0, ends: [0; COLUMN_SLOTS], columns: 0, doubled: Vec::new(), newlines: 0 }
    }
}

impl RowColumns {
    /// Splits the row at `start` and returns its end, after its newline. `time_bytes` is the length
    /// of the row's time if a comma follows it, or 0 if unknown; `masks` are the quotes, commas and
    /// newlines of the chunk. Returns `None` if the row is ambiguous: incomplete, with stray
    /// quotes, with more than [`COLUMN_SLOTS`] columns, with a carriage return at its end, or with
    /// a line inside quotes that starts like a row.
    #[inline]
    pub(super) fn split_row(
        &mut self,
        chunk: &[u8],
        masks: &Bitmasks,
        start: usize,
        time_bytes: usize,
    ) -> Option<usize> {
        self.start = start;
        self.doubled.clear();
        let mut lines = 1;
        let mut columns = 0;
        let mut from = start;
        if time_bytes > 0 {
            self.ends[0] = (start + time_bytes) as u32;
            columns = 1;
            from += time_bytes + 1;
        }
        let mut number = from / 64;
        // `row` has the bits of this block that belong to the row. `begins` has the starts of
        // columns that do not follow a break in this block. `carry` is all ones if the block starts
        // inside quotes.
        let (mut row, mut begins, mut carry) = (u64::MAX << (from % 64), 1 << (from % 64), 0);
        loop {
            let [quotes, commas, newlines] = *masks.block(number)?;
            let (quotes, commas, newlines) = (quotes & row, commas & row, newlines & row);
            let inside = parity(quotes) ^ carry;
            let line_ends = newlines & !inside;
            // All bits up to the newline that ends the row, or all bits without one.
            let part = line_ends ^ line_ends.wrapping_sub(1);
            let breaks = ((commas & !inside) | line_ends) & part;
            let quotes = quotes & part;
            let folds = newlines & inside & part;
            let base = number * 64;
            let edges = breaks << 1 | breaks >> 1 | begins;
            if quotes & !edges != 0 {
                self.add_doubled(chunk, base, quotes & !edges, inside)?;
            }
            if folds != 0 {
                lines += folds.count_ones();
                check_folds(chunk, base, folds)?;
            }
            let mut rest = breaks;
            while rest != 0 {
                self.ends[columns % COLUMN_SLOTS] = base as u32 + rest.trailing_zeros();
                columns += 1;
                rest &= rest - 1;
            }
            if line_ends != 0 {
                break;
            }
            begins = breaks >> 63;
            carry = 0_u64.wrapping_sub(inside >> 63);
            row = u64::MAX;
            number += 1;
        }
        self.newlines = lines;
        self.columns = columns;
        let end = *self.ends.get(columns.checked_sub(1)?)? as usize;
        // A carriage return here may be part of the line end.
        let has_return = end > start && chunk[end - 1] == b'\r';
        let is_well_formed = self.doubled.len().is_multiple_of(2) && !has_return;
        is_well_formed.then_some(end + 1)
    }

    /// Records the quotes of a block that are not at an end of a column, as parts of doubled
    /// quotes. Returns `None` if one of them is stray.
    #[cold]
    fn add_doubled(&mut self, chunk: &[u8], base: usize, quotes: u64, inside: u64) -> Option<()> {
        let mut rest = quotes;
        while rest != 0 {
            let bit = rest.trailing_zeros();
            rest &= rest - 1;
            let (at, is_inside) = (base + bit as usize, inside >> bit & 1 == 1);
            if bit == 63 && !is_inside && matches!(chunk.get(at + 1)?, b',' | b'\n') {
                // The column ends with the block.
                continue;
            }
            // The first of two quotes seems to close the text, and the second to reopen it.
            let is_second = !self.doubled.len().is_multiple_of(2);
            let is_adjacent = self.doubled.last().is_some_and(|first| *first as usize + 1 == at);
            if is_inside != is_second || is_second && !is_adjacent {
                return None;
            }
            self.doubled.push(at as u32);
        }
        Some(())
    }

    /// Returns the number of columns in the row that was split.
    #[inline]
    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    /// Returns the offset of the end of a column, or of the row if it has fewer columns.
    #[inline]
    pub(super) fn column_end(&self, column: usize) -> usize {
        self.ends[column.min(self.columns.saturating_sub(1)) % COLUMN_SLOTS] as usize
    }

    /// Returns the span of a column without its quotes; one with doubled quotes is copied to
    /// `scratch`.
    #[inline(always)]
    pub(super) fn column(&self, number: usize, chunk: &[u8], scratch: &mut Vec<u8>) -> FieldSpan {
        if number >= self.columns {
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
        if !self.doubled.is_empty() && is_quoted == 1 {
            return self.unescape(start, end, chunk, scratch);
        }
        FieldSpan::input(start, end)
    }

    /// Copies a column with each doubled quote replaced by one.
    #[cold]
    fn unescape(&self, start: usize, end: usize, chunk: &[u8], scratch: &mut Vec<u8>) -> FieldSpan {
        let first = self.doubled.partition_point(|at| (*at as usize) < start);
        let (seconds, _) = self.doubled[first..].as_chunks::<2>();
        let scratch_from = scratch.len();
        let mut from = start;
        for [first, second] in seconds.iter().take_while(|[at, _]| (*at as usize) < end) {
            scratch.extend_from_slice(&chunk[from..=*first as usize]);
            from = *second as usize + 1;
        }
        if from == start {
            return FieldSpan::input(start, end);
        }
        scratch.extend_from_slice(&chunk[from..end]);
        FieldSpan::scratch(scratch_from, scratch.len())
    }
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

/// Returns `None` if a row may start after one of these newlines, which are inside quotes.
#[cold]
fn check_folds(chunk: &[u8], base: usize, folds: u64) -> Option<()> {
    let mut rest = folds;
    while rest != 0 {
        let line = base + rest.trailing_zeros() as usize + 1;
        rest &= rest - 1;
        // Times start with a digit; an incomplete line may be one.
        if chunk.get(line)?.is_ascii_digit() && is_row_start(&chunk[line..], false) != Some(false) {
            return None;
        }
    }
    Some(())
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
        assert_eq!(RowColumns::default().split_row(b"\n", &masks, 0, 0), Some(1));
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
            let end = cut.split_row(chunk, &masks, ahead, 0);
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
                prop_assert_eq!(cut.newlines as usize, newlines);
            }
        }
    }
}
