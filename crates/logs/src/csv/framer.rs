//! Rows of a csvlog that are beyond doubt, framed in one pass.
//!
//! A row is beyond doubt from a line that begins like one to a newline outside quotes, with enough columns,
//! no stray quotes, and nothing inside quotes that begins like a row. All else is left to
//! [`Csv`](super::Csv).

use howdah_traffic::Timestamp;

use super::{COLUMNS_MIN, ROW_START_BYTES, Row, column, decode, row_begins, row_goes_on};
use crate::{
    clock::Clock,
    frame::{Frame, Frames},
    pieces::Span,
};

/// Frames pieces of a csvlog.
#[derive(Clone, Debug)]
pub(crate) struct CsvFramer {
    pub(super) max_record_bytes: usize,
    pub(super) clock: Clock,
}

/// Where a row begins, and its time if that was read at once.
#[derive(Clone, Copy)]
struct Start {
    at: usize,
    /// With its length.
    time: Option<(Timestamp, usize)>,
}

impl CsvFramer {
    pub(crate) fn frames(&mut self, piece: &[u8], out: &mut Frames) {
        let mut row = Row::EMPTY;
        let mut counted = 0;
        let mut newlines = 0;
        let mut start = next_row(piece, 0);
        while let Some(Start { at, time }) = start {
            newlines += memchr::memchr_iter(b'\n', &piece[counted..at]).count() as u32;
            counted = at;
            let scratch_len = out.scratch.len();
            let Some(end) = read_row(piece, at, time, &mut row, &mut out.scratch) else {
                out.scratch.truncate(scratch_len);
                self.clock.take_assumption();
                start = next_row(piece, at);
                continue;
            };
            let time = match time {
                Some((time, _)) => Some(time),
                None => self.clock.read(row.columns[column::TIME].text(piece, &out.scratch)),
            };
            match decode(&row, time, piece, &mut self.clock, &out.scratch) {
                Ok((frame, owner)) if end - at <= self.max_record_bytes => {
                    let owner = out.owner(&owner, piece);
                    let (start, end) = (at as u32, end as u32);
                    out.frames.push(Frame { start, end, newlines, owner, ..frame });
                }
                // The reader will find the same and say so.
                _ => drop(self.clock.take_assumption()),
            }
            start = self.start_at(piece, end).or_else(|| next_row(piece, end - 1));
        }
    }

    /// The row that begins at `at`, if one does for sure.
    #[inline]
    fn start_at(&mut self, piece: &[u8], at: usize) -> Option<Start> {
        let rest = piece.get(at..)?;
        if let Some((time, len)) = self.clock.read_next(rest)
            && let Some(after) = rest[..rest.len().min(ROW_START_BYTES)].get(len..)
            && row_goes_on(after, rest.len() < ROW_START_BYTES) == Some(true)
        {
            return Some(Start { at, time: Some((time, len)) });
        }
        self.clock.take_assumption();
        (row_begins(rest, false) == Some(true)).then_some(Start { at, time: None })
    }
}

/// Where a row begins after the next newline at which one does.
fn next_row(piece: &[u8], from: usize) -> Option<Start> {
    memchr::memchr_iter(b'\n', &piece[from..])
        .map(|newline| from + newline + 1)
        .find(|at| row_begins(&piece[*at..], false) == Some(true))
        .map(|at| Start { at, time: None })
}

/// Reads the columns of the row at `start`; gives its end, if it is beyond doubt.
fn read_row(
    piece: &[u8],
    start: usize,
    time: Option<(Timestamp, usize)>,
    row: &mut Row,
    scratch: &mut Vec<u8>,
) -> Option<usize> {
    row.len = 0;
    let mut at = start;
    if let Some((_, len)) = time {
        row.push(Span::input(start, start + len));
        // A comma follows, or it would be no row.
        at += len + 1;
    }
    loop {
        let (column, end) = match piece.get(at)? {
            b'"' => quoted(piece, at + 1, scratch)?,
            b',' | b'\n' => (Span::ABSENT, at),
            _ => plain(piece, at)?,
        };
        row.push(column);
        at = end + 1;
        match piece.get(end)? {
            b',' => {}
            b'\n' => break,
            _ => return None,
        }
    }
    if row.len < COLUMNS_MIN {
        return None;
    }
    // What is left there of another row is not this one's.
    row.columns.iter_mut().skip(row.len).for_each(|column| *column = Span::ABSENT);
    Some(at)
}

/// A column without quotes, and where it ends.
#[inline]
fn plain(piece: &[u8], start: usize) -> Option<(Span, usize)> {
    let is_end = |byte: &u8| matches!(byte, b',' | b'\n' | b'"' | b'\r');
    let end = start + piece[start..].iter().position(is_end)?;
    Some((Span::input(start, end), end))
}

/// A column that begins behind its quote, and where the one after it ends.
#[inline]
fn quoted(piece: &[u8], start: usize, scratch: &mut Vec<u8>) -> Option<(Span, usize)> {
    let scratch_from = scratch.len();
    let mut from = start;
    let mut at = start;
    loop {
        at += memchr::memchr2(b'"', b'\n', piece.get(at..)?)?;
        if piece[at] == b'\n' {
            at += 1;
            // Times begin with a digit; what is not all there may be one.
            if piece.get(at)?.is_ascii_digit() && row_begins(&piece[at..], false) != Some(false) {
                return None;
            }
        } else if piece.get(at + 1)? == &b'"' {
            scratch.extend_from_slice(&piece[from..=at]);
            at += 2;
            from = at;
        } else if from == start {
            return Some((Span::input(start, at), at + 1));
        } else {
            scratch.extend_from_slice(&piece[from..at]);
            return Some((Span::scratch(scratch_from, scratch.len()), at + 1));
        }
    }
}
