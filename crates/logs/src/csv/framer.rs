//! Rows of a csvlog that are beyond doubt, framed in one pass.
//!
//! A row is beyond doubt from a line that begins like one to a newline outside quotes, with enough columns,
//! no stray quotes, and nothing inside quotes that begins like a row. All else is left to
//! [`Csv`](super::Csv).

use howdah_traffic::Timestamp;

use super::{
    COLUMNS_MIN, ROW_START_BYTES, Row, column, decode_with, owner_of, row_begins, row_goes_on,
};
use crate::{
    clock::Clock,
    frame::{Frame, Frames},
    masks::Masks,
    pieces::Span,
    seen::Seen,
};

/// Frames pieces of a csvlog.
#[derive(Clone, Debug)]
pub(crate) struct CsvFramer {
    max_record_bytes: usize,
    clock: Clock,
    /// Quotes, commas and newlines of the piece that is being framed.
    masks: Masks,
    seen: Seen,
}

/// Where a row begins, and its time if that was read at once.
#[derive(Clone, Copy)]
struct Start {
    at: usize,
    /// With its length.
    time: Option<(Timestamp, usize)>,
}

impl CsvFramer {
    pub(super) fn new(max_record_bytes: usize, clock: Clock) -> Self {
        Self { max_record_bytes, clock, masks: Masks::default(), seen: Seen::default() }
    }

    pub(crate) fn frames(&mut self, piece: &[u8], out: &mut Frames) {
        let mut masks = std::mem::take(&mut self.masks);
        masks.find(piece, *b"\",\n");
        self.seen.begin_piece();
        self.frame_rows(piece, &masks, out);
        self.masks = masks;
    }

    fn frame_rows(&mut self, piece: &[u8], masks: &Masks, out: &mut Frames) {
        let mut row = Row::EMPTY;
        let mut counted = 0;
        let mut newlines = 0;
        let mut start = next_row(piece, 0);
        while let Some(Start { at, time }) = start {
            newlines += masks.count_third(counted, at) as u32;
            counted = at;
            let scratch_len = out.scratch.len();
            let Some(end) = read_row(piece, masks, at, time, &mut row, &mut out.scratch) else {
                out.scratch.truncate(scratch_len);
                self.clock.take_assumption();
                start = next_row(piece, at);
                continue;
            };
            let time = match time {
                Some((time, _)) => Some(time),
                None => self.clock.read(row.columns[column::TIME].text(piece, &out.scratch)),
            };
            match decode_with(&row, time, piece, &mut self.clock, &out.scratch) {
                Ok(frame) if end - at <= self.max_record_bytes => {
                    let head = between(&row, column::TIME, column::LINE);
                    let tail = [column::APPLICATION, column::BACKEND_TYPE, column::LEADER]
                        .map(|column| row.columns[column]);
                    let owner = self.seen.owner(head, tail, piece, out, |out| {
                        out.owner(&owner_of(&row, piece, &out.scratch), piece)
                    });
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
#[inline]
fn read_row(
    piece: &[u8],
    masks: &Masks,
    start: usize,
    time: Option<(Timestamp, usize)>,
    row: &mut Row,
    scratch: &mut Vec<u8>,
) -> Option<usize> {
    row.begin();
    let mut from = start;
    if let Some((_, len)) = time {
        row.push(Span::input(start, start + len));
        // A comma follows, or it would be no row.
        from += len + 1;
    }
    let (behind_time, mut quoted) = (from, 0);
    let mut breaks = Breaks::from(masks, from)?;
    let end = loop {
        let (end, is_inside) = breaks.next()?;
        let is_newline = piece[end] == b'\n';
        if is_inside {
            // Times begin with a digit; what is not all there may be one.
            if piece.get(end + 1)?.is_ascii_digit()
                && row_begins(&piece[end + 1..], false) != Some(false)
            {
                return None;
            }
            continue;
        }
        row.push(match &piece[from..end] {
            [] => Span::ABSENT,
            [b'"', .., b'"'] => {
                quoted += 1;
                Span::input(from + 1, end - 1)
            }
            [b'"', ..] | [.., b'\r'] => return None,
            _ => Span::input(from, end),
        });
        from = end + 1;
        if is_newline {
            break end + 1;
        }
    };
    if row.len < COLUMNS_MIN {
        return None;
    }
    if masks.count_first(behind_time, end) != 2 * quoted {
        // Of more columns than are kept nothing is known.
        if row.len > row.columns.len() {
            return None;
        }
        unescape(piece, masks, row, scratch)?;
    }
    row.end();
    Some(end)
}

/// Takes one of each two quotes inside of columns away. `None` if there is one alone, or one in a column that
/// is not in quotes.
fn unescape(piece: &[u8], masks: &Masks, row: &mut Row, scratch: &mut Vec<u8>) -> Option<()> {
    let next_quote = |from: usize| masks.next(from, |[quotes, _, _]| *quotes);
    for column in row.columns.iter_mut().take(row.len).filter(|column| **column != Span::ABSENT) {
        let range = column.range();
        let is_quoted = range.start > 0 && piece[range.start - 1] == b'"';
        let scratch_from = scratch.len();
        let mut from = range.start;
        while let Some(quote) = next_quote(from).filter(|quote| *quote < range.end) {
            let is_doubled = quote + 1 < range.end && piece[quote + 1] == b'"';
            if !is_quoted || !is_doubled {
                return None;
            }
            scratch.extend_from_slice(&piece[from..=quote]);
            from = quote + 2;
        }
        if from > range.start {
            scratch.extend_from_slice(&piece[from..range.end]);
            *column = Span::scratch(scratch_from, scratch.len());
        }
    }
    Some(())
}

/// The commas and newlines from some place on that is outside of quotes: those outside, and of those inside
/// the newlines.
struct Breaks<'a> {
    masks: &'a Masks,
    block: usize,
    /// All bits, if the block begins inside of quotes.
    carry: u64,
    breaks: u64,
    inside: u64,
}

impl<'a> Breaks<'a> {
    #[inline]
    fn from(masks: &'a Masks, from: usize) -> Option<Self> {
        let mut breaks = Self { masks, block: from / 64, carry: 0, breaks: 0, inside: 0 };
        breaks.load(u64::MAX << (from % 64))?;
        Some(breaks)
    }

    #[inline]
    fn load(&mut self, from: u64) -> Option<()> {
        let [quotes, commas, newlines] = *self.masks.block(self.block)?;
        // Each bit becomes the number of quotes up to there, modulo 2.
        let mut inside = quotes & from;
        for shift in [1, 2, 4, 8, 16, 32] {
            inside ^= inside << shift;
        }
        self.inside = inside ^ self.carry;
        self.carry = 0_u64.wrapping_sub(self.inside >> 63);
        self.breaks = ((commas & !self.inside) | newlines) & from;
        Some(())
    }

    /// The next one, and whether it is inside of quotes.
    #[inline]
    fn next(&mut self) -> Option<(usize, bool)> {
        while self.breaks == 0 {
            self.block += 1;
            self.load(u64::MAX)?;
        }
        let bit = self.breaks.trailing_zeros();
        self.breaks &= self.breaks - 1;
        Some((self.block * 64 + bit as usize, self.inside >> bit & 1 == 1))
    }
}

/// What stands between two columns, which both must be in the piece as they are.
#[inline]
fn between(row: &Row, before: usize, behind: usize) -> Option<Span> {
    let (before, behind) = (row.columns[before], row.columns[behind]);
    let (from, to) = (before.end_in_input()?, behind.start_in_input()?);
    (from <= to).then(|| Span::input(from, to))
}

#[test]
fn a_row_has_nothing_of_the_rows_before() {
    let row = |columns: &str| {
        format!("2026-11-20 12:00:05.000 UTC,\"al\",\"shop\",7,,,1,,,,,LOG,,\"a\"{columns}\n")
    };
    let long = row(",,,,,,,,,\"psql\",\"client backend\",,5");
    let broken = "2026-11-20 12:00:05.000 UTC,\"al\",\"shop\",7,x\"y\n".to_owned();
    let piece = ["\n".to_owned(), long, broken, row(",,,,,,,,"), row(",,,,,,,,,\"psql\"")].concat();
    let mut framer = CsvFramer::new(1000, Clock::new(None).expect("a clock"));
    let mut out = Frames::default();
    framer.frames(piece.as_bytes(), &mut out);
    let told: Vec<_> = out
        .frames
        .iter()
        .map(|frame| {
            let application = out.owners[frame.owner as usize].application;
            (application.text(piece.as_bytes(), &out.scratch), frame.query_id)
        })
        .collect();
    assert_eq!(told, [(&b"psql"[..], Some(5)), (b"", None), (b"psql", None)]);
}
