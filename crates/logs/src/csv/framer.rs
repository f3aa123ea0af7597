//! Rows of a csvlog that are beyond doubt, framed in one pass.
//!
//! A row is beyond doubt from a line that begins like one to a newline outside quotes, with enough columns,
//! no stray quotes, and nothing inside quotes that begins like a row. All else is left to
//! [`Csv`](super::Csv).

use howdah_traffic::{SqlState, Timestamp};

use super::{
    COLUMNS_MAX, COLUMNS_MIN, Cut, ROW_START_BYTES, Row, column, is_row_of, owner_of, row_begins,
    row_goes_on,
};
use crate::{
    clock::Clock,
    frame::{Frame, Frames},
    masks::Masks,
    message::Said,
    pieces::{Span, function, number, signed},
    record::Severity,
    seen::Seen,
};

/// Frames pieces of a csvlog.
#[derive(Clone, Debug)]
pub(crate) struct CsvFramer {
    max_record_bytes: usize,
    clock: Clock,
    /// Quotes, commas and newlines of the piece that is being framed.
    masks: Masks,
    cut: Cut,
    seen: Seen<1>,
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
        let (masks, cut, seen) = (Masks::default(), Cut::default(), Seen::default());
        Self { max_record_bytes, clock, masks, cut, seen }
    }

    pub(crate) fn frames(&mut self, piece: &[u8], out: &mut Frames) {
        let mut masks = std::mem::take(&mut self.masks);
        masks.find(piece, *b"\",\n");
        self.seen.begin_piece();
        self.frame_rows(piece, &masks, out);
        self.masks = masks;
    }

    fn frame_rows(&mut self, piece: &[u8], masks: &Masks, out: &mut Frames) {
        // Newlines before `counted`.
        let (mut newlines, mut counted) = (0, 0);
        let mut start = next_row(piece, 0);
        while let Some(Start { at, time }) = start {
            if counted != at {
                newlines += masks.count_third(counted, at) as u32;
                counted = at;
            }
            let time_bytes = time.map_or(0, |(_, len)| len);
            let end = self.cut.row(piece, masks, at, time_bytes);
            let Some(end) = end.filter(|_| self.cut.columns() >= COLUMNS_MIN) else {
                self.clock.take_assumption();
                start = next_row(piece, at);
                continue;
            };
            let time = match time {
                Some((time, _)) => Some(time),
                None => self.clock.read(&piece[at..self.cut.end_of(column::TIME)]),
            };
            let frame = self.decode(piece, time, out);
            match frame.filter(|_| end - at <= self.max_record_bytes) {
                Some(frame) => {
                    let owner = self.owner(piece, out);
                    let (start, end) = (at as u32, end as u32);
                    out.frames.push(Frame { start, end, newlines, owner, ..frame });
                }
                // The reader will find the same and say so.
                None => drop(self.clock.take_assumption()),
            }
            (newlines, counted) = (newlines + self.cut.newlines, end);
            start = self.start_at(piece, end).or_else(|| next_row(piece, end - 1));
        }
    }

    /// Reads the fields of the row that was cut, but for whose it is; `None` if one is not as it should be.
    #[inline]
    fn decode(&mut self, piece: &[u8], time: Option<Timestamp>, out: &mut Frames) -> Option<Frame> {
        let Self { cut, clock, .. } = self;
        let scratch = &mut out.scratch;
        let mut span = |number: usize| cut.column(number, piece, scratch);
        let (line, tag, vxid) = (span(column::LINE), span(column::TAG), span(column::VXID));
        let (severity, code) = (span(column::SEVERITY), span(column::SQLSTATE));
        let (message, detail) = (span(column::MESSAGE), span(column::DETAIL));
        let (context, statement) = (span(column::CONTEXT), span(column::STATEMENT));
        let (location, query_id) = (span(column::LOCATION), span(column::QUERY_ID));
        let text = |span: Span| span.text(piece, &out.scratch);
        let line = number(text(line));
        let severity = match text(severity) {
            b"LOG" => Severity::Log,
            word => Severity::from_word(word)?,
        };
        let sqlstate = match text(code) {
            b"00000" => Some(SqlState::SUCCESS),
            code => SqlState::new(code),
        };
        Some(Frame {
            time: time?,
            vxid,
            query_id: match text(query_id) {
                // Checked here, where few rows come by: other rows with the least number of columns are fine.
                b"" if !is_row_of(cut.columns()) => return None,
                b"" => None,
                digits => signed(digits),
            },
            tag,
            lines: line.map(|line| (line, line)),
            severity,
            said: Said::by(severity, text(message)),
            sqlstate,
            message,
            detail,
            context,
            statement: statement.unless_empty(),
            function: match location {
                Span::ABSENT => Span::ABSENT,
                _ => location.shortened(function(text(location)).len()),
            },
            assumption: clock.take_assumption(),
            ..Frame::EMPTY
        })
    }

    /// The number of the owner of the row that was cut.
    #[inline]
    fn owner(&mut self, piece: &[u8], out: &mut Frames) -> u32 {
        let Self { cut, seen, .. } = self;
        // Time and session id, and application and leader, stand around what names the owner.
        let between =
            |before: usize, last: usize| Span::input(cut.end_of(before), cut.end_of(last));
        let head = between(column::TIME, column::SESSION_ID);
        let tail = between(column::LOCATION, column::LEADER);
        seen.owner(Some(head), [tail], piece, out, |out| {
            let mut row = Row::EMPTY;
            (0..cut.columns().min(COLUMNS_MAX))
                .for_each(|number| row.push(cut.column(number, piece, &mut out.scratch)));
            out.owner(&owner_of(&row, piece, &out.scratch), piece)
        })
    }

    /// The row that begins at `at`, if one does for sure.
    #[inline]
    fn start_at(&mut self, piece: &[u8], at: usize) -> Option<Start> {
        let rest = piece.get(at..)?;
        if let Some((time, len)) = self.clock.read_next(rest)
            && let Some([b',', b'"', letter]) = rest.get(len..).and_then(<[u8]>::first_chunk)
            && letter.is_ascii_alphanumeric()
            && len < ROW_START_BYTES - 3
        {
            return Some(Start { at, time: Some((time, len)) });
        }
        self.odd_start_at(piece, at)
    }

    /// The same for a row that does not begin as most do.
    #[inline(never)]
    fn odd_start_at(&mut self, piece: &[u8], at: usize) -> Option<Start> {
        self.clock.take_assumption();
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
