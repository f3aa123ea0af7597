//! Frames the rows of a csvlog in chunks.
//!
//! A row extends from a line that starts like a row to a newline outside quotes. A row whose end is
//! [`Undecided`](RowEnd::Undecided) is left to [`Csv`](super::Csv), as are rows that are broken or
//! not valid, and everything between rows.

use howdah_traffic::Timestamp;

use super::{
    DELIMITERS, ROW_START_BYTES, RowColumns, RowEnd, column, decode_frame, is_row_after_time,
    is_row_start, is_valid_row, session_fields,
};
use crate::{
    clock::LogClock,
    formats::recent_sessions::RecentSessions,
    record::{
        frame::{ChunkFrames, RecordFrame},
        spans::FieldSpan,
    },
    scan::bitmasks::Bitmasks,
};

/// A framer for chunks of a csvlog.
#[derive(Clone, Debug)]
pub(crate) struct CsvFramer {
    max_record_bytes: usize,
    clock: LogClock,
    /// Quotes, commas and newlines of the chunk that is being framed.
    masks: Bitmasks,
    row: RowColumns,
    recent: RecentSessions<1>,
}

/// The start of a row, and its time if that was already parsed.
#[derive(Clone, Copy)]
struct RowStart {
    at: usize,
    /// The time and its length in bytes.
    time: Option<(Timestamp, usize)>,
}

impl CsvFramer {
    pub(super) fn new(max_record_bytes: usize, clock: LogClock) -> Self {
        let (masks, row, recent) =
            (Bitmasks::default(), RowColumns::default(), RecentSessions::default());
        Self { max_record_bytes, clock, masks, row, recent }
    }

    pub(crate) fn frames(&mut self, chunk: &[u8], out: &mut ChunkFrames) {
        let mut masks = std::mem::take(&mut self.masks);
        masks.scan(chunk, DELIMITERS);
        self.recent.start_chunk();
        self.frame_rows(chunk, &masks, out);
        self.masks = masks;
    }

    fn frame_rows(&mut self, chunk: &[u8], masks: &Bitmasks, out: &mut ChunkFrames) {
        // Number of newlines before offset `counted`.
        let (mut newlines, mut counted) = (0, 0);
        let mut start = next_row_start(chunk, 0);
        while let Some(RowStart { at, time }) = start {
            if counted != at {
                newlines += masks.count_third(counted, at) as u32;
                counted = at;
            }
            let first = self.row.start_row(at, time.map_or(0, |(_, len)| len));
            let end = match self.row.split_row(chunk, masks, first, false) {
                RowEnd::Row(end) => end,
                RowEnd::Broken(next) => {
                    self.clock.take_assumption();
                    start = Some(RowStart { at: next, time: None });
                    continue;
                }
                RowEnd::Undecided(_) => break,
            };
            if is_valid_row(&self.row) && end - at <= self.max_record_bytes {
                self.add_frame(chunk, (at, end), time.map(|(time, _)| time), newlines, out);
            } else {
                self.clock.take_assumption();
            }
            (newlines, counted) = (newlines + self.row.newlines(), end);
            start = self.row_start_at(chunk, end).or_else(|| next_row_start(chunk, end - 1));
        }
        self.clock.take_assumption();
    }

    /// Adds the frame of the split row, unless a column is not valid.
    #[inline]
    fn add_frame(
        &mut self,
        chunk: &[u8],
        (start, end): (usize, usize),
        time: Option<Timestamp>,
        newlines: u32,
        out: &mut ChunkFrames,
    ) {
        match decode_frame(&self.row, time, chunk, &mut self.clock, &mut out.scratch) {
            Ok(frame) => {
                let session = self.session_index(chunk, out);
                let (start, end) = (start as u32, end as u32);
                out.frames.push(RecordFrame { start, end, newlines, session, ..frame });
            }
            Err(_) => drop(self.clock.take_assumption()),
        }
    }

    /// Returns the index of the split row's session fields.
    #[inline]
    fn session_index(&mut self, chunk: &[u8], out: &mut ChunkFrames) -> u32 {
        let Self { row, recent, .. } = self;
        // The session fields lie between time and session id, and between location and leader.
        let between = |before: usize, last: usize| {
            FieldSpan::input(row.column_end(before), row.column_end(last))
        };
        let head = between(column::TIME, column::SESSION_ID);
        let tail = between(column::LOCATION, column::LEADER);
        recent.session_index(Some(head), [tail], chunk, out, |out| {
            let fields = session_fields(row, chunk, &mut out.scratch);
            out.session_index(&fields, chunk)
        })
    }

    /// Returns the row that starts at `at`; `None` if that is uncertain.
    #[inline]
    fn row_start_at(&mut self, chunk: &[u8], at: usize) -> Option<RowStart> {
        let rest = chunk.get(at..)?;
        if let Some((time, len)) = self.clock.read_next(rest)
            && let Some([b',', b'"', letter]) = rest.get(len..).and_then(<[u8]>::first_chunk)
            && letter.is_ascii_alphanumeric()
            && len < ROW_START_BYTES - 3
        {
            return Some(RowStart { at, time: Some((time, len)) });
        }
        self.uncommon_row_start_at(chunk, at)
    }

    /// Like [`row_start_at`](Self::row_start_at), for a row with an uncached second, or with an
    /// empty or unusual user name.
    #[inline(never)]
    fn uncommon_row_start_at(&mut self, chunk: &[u8], at: usize) -> Option<RowStart> {
        self.clock.take_assumption();
        let rest = chunk.get(at..)?;
        if let Some((time, len)) = self.clock.read_next(rest)
            && let Some(after) = rest[..rest.len().min(ROW_START_BYTES)].get(len..)
            && is_row_after_time(after, rest.len() < ROW_START_BYTES) == Some(true)
        {
            return Some(RowStart { at, time: Some((time, len)) });
        }
        self.clock.take_assumption();
        (is_row_start(rest, false) == Some(true)).then_some(RowStart { at, time: None })
    }
}

/// Returns the first row that starts after a newline at or after `from`.
fn next_row_start(chunk: &[u8], from: usize) -> Option<RowStart> {
    memchr::memchr_iter(b'\n', &chunk[from..])
        .map(|newline| from + newline + 1)
        .find(|at| is_row_start(&chunk[*at..], false) == Some(true))
        .map(|at| RowStart { at, time: None })
}

#[test]
fn fields_do_not_leak_into_the_next_row() {
    let row = |columns: &str| {
        format!("2026-11-20 12:00:05.000 UTC,\"al\",\"shop\",7,,,1,,,,,LOG,,\"a\"{columns}\n")
    };
    let long = row(",,,,,,,,,\"psql\",\"client backend\",,5");
    let broken = "2026-11-20 12:00:05.000 UTC,\"al\",\"shop\",7,x\"y\n".to_owned();
    let chunk = ["\n".to_owned(), long, broken, row(",,,,,,,,"), row(",,,,,,,,,\"psql\"")].concat();
    let mut framer = CsvFramer::new(1000, LogClock::new(None).expect("a clock"));
    let mut out = ChunkFrames::default();
    framer.frames(chunk.as_bytes(), &mut out);
    let found: Vec<_> = out
        .frames
        .iter()
        .map(|frame| {
            let application = out.sessions[frame.session as usize].application;
            (application.text(chunk.as_bytes(), &out.scratch), frame.query_id)
        })
        .collect();
    assert_eq!(found, [(&b"psql"[..], Some(5)), (b"", None), (b"psql", None)]);
}
