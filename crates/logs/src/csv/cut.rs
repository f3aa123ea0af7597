//! Where the columns of a row end, by the marks of 64 bytes at a time.
//!
//! A bit for each byte tells whether it is inside of quotes: the number of quotes up to there, modulo 2.
//! Commas outside end columns, a newline outside ends the row. Quotes that are not at an end of a column
//! have to be doubled. So a row is cut, and known to be well formed, without a look at its bytes.

use super::row_begins;
use crate::{masks::Masks, pieces::Span};

/// Columns that can be told; servers write 26.
const PLACES: usize = 64;

/// A row in its piece.
#[derive(Clone, Debug)]
pub(super) struct Cut {
    start: usize,
    /// Where each column ends.
    ends: [u32; PLACES],
    columns: usize,
    /// Doubled quotes inside of columns, each of them.
    doubled: Vec<u32>,
    /// Newlines in the row, with the one that ends it.
    pub(super) newlines: u32,
}

impl Default for Cut {
    fn default() -> Self {
        Self { start: 0, ends: [0; PLACES], columns: 0, doubled: Vec::new(), newlines: 0 }
    }
}

impl Cut {
    /// Cuts the row at `start`, whose time has `time_bytes` and a comma behind it; 0 if that is not known.
    /// `masks` are the quotes, commas and newlines of the piece. Gives the row's end, behind its newline;
    /// `None` if the row is in doubt: not whole, with stray quotes, or with a line that begins like a row
    /// inside of quotes.
    #[inline]
    pub(super) fn row(
        &mut self,
        piece: &[u8],
        masks: &Masks,
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
        // Bits of the row in the block; of the columns that begin there, those behind no break in it; all
        // bits if the block begins inside of quotes.
        let (mut row, mut begins, mut carry) = (u64::MAX << (from % 64), 1 << (from % 64), 0);
        loop {
            let [quotes, commas, newlines] = *masks.block(number)?;
            let (quotes, commas, newlines) = (quotes & row, commas & row, newlines & row);
            let inside = parity(quotes) ^ carry;
            let line_ends = newlines & !inside;
            // Up to the newline that ends the row, or all.
            let part = line_ends ^ line_ends.wrapping_sub(1);
            let breaks = ((commas & !inside) | line_ends) & part;
            let quotes = quotes & part;
            let folds = newlines & inside & part;
            let base = number * 64;
            let edges = breaks << 1 | breaks >> 1 | begins;
            if quotes & !edges != 0 {
                self.add_doubled(piece, base, quotes & !edges, inside)?;
            }
            if folds != 0 {
                lines += folds.count_ones();
                check_folds(piece, base, folds)?;
            }
            let mut rest = breaks;
            while rest != 0 {
                self.ends[columns % PLACES] = base as u32 + rest.trailing_zeros();
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
        // A carriage return there may be part of the line's end.
        let has_return = end > start && piece[end - 1] == b'\r';
        let is_well_formed = self.doubled.len().is_multiple_of(2) && !has_return;
        is_well_formed.then_some(end + 1)
    }

    /// Takes quotes that are not at an end of a column, as far as that shows in their block.
    #[cold]
    fn add_doubled(&mut self, piece: &[u8], base: usize, quotes: u64, inside: u64) -> Option<()> {
        let mut rest = quotes;
        while rest != 0 {
            let bit = rest.trailing_zeros();
            rest &= rest - 1;
            let (at, is_inside) = (base + bit as usize, inside >> bit & 1 == 1);
            if bit == 63 && !is_inside && matches!(piece.get(at + 1)?, b',' | b'\n') {
                // The column ends with the block.
                continue;
            }
            // The first of two seems to close the text, the second to open it again.
            let is_second = !self.doubled.len().is_multiple_of(2);
            let is_behind = self.doubled.last().is_some_and(|first| *first as usize + 1 == at);
            if is_inside != is_second || is_second && !is_behind {
                return None;
            }
            self.doubled.push(at as u32);
        }
        Some(())
    }

    /// Number of columns.
    #[inline]
    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    /// Where a column ends; the row's end if there is no such column.
    #[inline]
    pub(super) fn end_of(&self, column: usize) -> usize {
        self.ends[column.min(self.columns.saturating_sub(1)) % PLACES] as usize
    }

    /// A column without its quotes; with doubled ones, a copy is made in `scratch`.
    #[inline(always)]
    pub(super) fn column(&self, number: usize, piece: &[u8], scratch: &mut Vec<u8>) -> Span {
        if number >= self.columns {
            return Span::ABSENT;
        }
        let start = match number {
            0 => self.start,
            _ => self.ends[number - 1] as usize + 1,
        };
        let end = self.ends[number] as usize;
        if start == end {
            return Span::ABSENT;
        }
        // What begins with a quote ends with another one.
        let is_quoted = usize::from(piece[start] == b'"');
        let (start, end) = (start + is_quoted, end - is_quoted);
        if !self.doubled.is_empty() && is_quoted == 1 {
            return self.unescape(start, end, piece, scratch);
        }
        Span::input(start, end)
    }

    /// Takes one of each two quotes away.
    #[cold]
    fn unescape(&self, start: usize, end: usize, piece: &[u8], scratch: &mut Vec<u8>) -> Span {
        let first = self.doubled.partition_point(|at| (*at as usize) < start);
        let (seconds, _) = self.doubled[first..].as_chunks::<2>();
        let scratch_from = scratch.len();
        let mut from = start;
        for [first, second] in seconds.iter().take_while(|[at, _]| (*at as usize) < end) {
            scratch.extend_from_slice(&piece[from..=*first as usize]);
            from = *second as usize + 1;
        }
        if from == start {
            return Span::input(start, end);
        }
        scratch.extend_from_slice(&piece[from..end]);
        Span::scratch(scratch_from, scratch.len())
    }
}

/// Each bit becomes the number of bits up to it, itself included, modulo 2.
#[inline]
fn parity(bits: u64) -> u64 {
    let mut sum = bits;
    for shift in [1, 2, 4, 8, 16, 32] {
        sum ^= sum << shift;
    }
    sum
}

/// `None` if behind one of these newlines, which are inside of quotes, a row may begin.
#[cold]
fn check_folds(piece: &[u8], base: usize, folds: u64) -> Option<()> {
    let mut rest = folds;
    while rest != 0 {
        let line = base + rest.trailing_zeros() as usize + 1;
        rest &= rest - 1;
        // Times begin with a digit; what is not all there may be one.
        if piece.get(line)?.is_ascii_digit() && row_begins(&piece[line..], false) != Some(false) {
            return None;
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The columns as somebody finds them who looks at one byte after another.
    fn slowly(row: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
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
    fn a_blank_line_at_the_very_beginning_is_a_row() {
        let mut masks = Masks::default();
        masks.find(b"\n", *b"\",\n");
        assert_eq!(Cut::default().row(b"\n", &masks, 0, 0), Some(1));
    }

    proptest! {
        #[test]
        fn rows_are_cut_as_by_whoever_looks_at_each_byte(
            ahead in 0_usize..70,
            parts in prop::collection::vec("[a,\n\"]|\"\"|,\"|\",|aaaaaaaaa", 0..40),
        ) {
            let piece = ["x".repeat(ahead), parts.concat(), "\n,\"".to_owned()].concat();
            let piece = piece.as_bytes();
            let mut masks = Masks::default();
            masks.find(piece, *b"\",\n");
            let mut cut = Cut::default();
            let end = cut.row(piece, &masks, ahead, 0);
            let expected = slowly(&piece[ahead..]);
            prop_assert_eq!(end, expected.as_ref().map(|(_, len)| ahead + len));
            if let Some((columns, _)) = expected {
                let mut scratch = Vec::new();
                let spans: Vec<_> =
                    (0..cut.columns()).map(|at| cut.column(at, piece, &mut scratch)).collect();
                let told: Vec<_> = spans.iter().map(|it| it.text(piece, &scratch).to_vec()).collect();
                prop_assert_eq!(told, columns);
                let row = &piece[ahead..end.unwrap_or(0)];
                let newlines = row.iter().filter(|byte| **byte == b'\n').count();
                prop_assert_eq!(cut.newlines as usize, newlines);
            }
        }
    }
}
