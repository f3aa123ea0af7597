//! Frames the unambiguous rows of a csvlog in one pass.
//!
//! A row extends from a line that starts like a row to a newline outside quotes. It is unambiguous
//! only if it has enough columns, no stray quotes, and no line inside quotes that starts like a
//! row. [`Csv`](super::Csv) reads everything else.

use howdah_log_input::LogSeverity;
use howdah_traffic::{SqlState, Timestamp};

use super::{
    COLUMNS_MAX, COLUMNS_MIN, CsvRow, ROW_START_BYTES, RowColumns, column, is_column_count,
    is_row_after_time, is_row_start, session_fields,
};
use crate::{
    clock::LogClock,
    formats::recent_sessions::RecentSessions,
    record::{
        frame::{ChunkFrames, RecordFrame},
        message_fields::MessageFields,
        spans::{FieldSpan, function_name, parse_i64, parse_u64},
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
    columns: RowColumns,
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
        let (masks, columns, recent) =
            (Bitmasks::default(), RowColumns::default(), RecentSessions::default());
        Self { max_record_bytes, clock, masks, columns, recent }
    }

    pub(crate) fn frames(&mut self, chunk: &[u8], out: &mut ChunkFrames) {
        let mut masks = std::mem::take(&mut self.masks);
        masks.scan(chunk, *b"\",\n");
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
            let time_bytes = time.map_or(0, |(_, len)| len);
            let end = self.columns.split_row(chunk, masks, at, time_bytes);
            let Some(end) = end.filter(|_| self.columns.columns() >= COLUMNS_MIN) else {
                self.clock.take_assumption();
                start = next_row_start(chunk, at);
                continue;
            };
            let time = match time {
                Some((time, _)) => Some(time),
                None => self.clock.read(&chunk[at..self.columns.column_end(column::TIME)]),
            };
            let frame = self.decode(chunk, time, out);
            match frame.filter(|_| end - at <= self.max_record_bytes) {
                Some(frame) => {
                    let session = self.session_index(chunk, out);
                    let (start, end) = (at as u32, end as u32);
                    out.frames.push(RecordFrame { start, end, newlines, session, ..frame });
                }
                // The reader finds the same problem and reports it.
                None => drop(self.clock.take_assumption()),
            }
            (newlines, counted) = (newlines + self.columns.newlines, end);
            start = self.row_start_at(chunk, end).or_else(|| next_row_start(chunk, end - 1));
        }
    }

    /// Decodes the split row except for its session fields; `None` if a field is not valid.
    #[inline]
    fn decode(
        &mut self,
        chunk: &[u8],
        time: Option<Timestamp>,
        out: &mut ChunkFrames,
    ) -> Option<RecordFrame> {
        let Self { columns, clock, .. } = self;
        let scratch = &mut out.scratch;
        let mut span = |number: usize| columns.column(number, chunk, scratch);
        let (line, tag, vxid) = (span(column::LINE), span(column::TAG), span(column::VXID));
        let (severity, code) = (span(column::SEVERITY), span(column::SQLSTATE));
        let (message, detail) = (span(column::MESSAGE), span(column::DETAIL));
        let (context, statement) = (span(column::CONTEXT), span(column::STATEMENT));
        let (location, query_id) = (span(column::LOCATION), span(column::QUERY_ID));
        let text = |span: FieldSpan| span.text(chunk, &out.scratch);
        let line = parse_u64(text(line));
        let severity = match text(severity) {
            b"LOG" => LogSeverity::Log,
            word => LogSeverity::from_keyword(word)?,
        };
        let sqlstate = match text(code) {
            b"00000" => Some(SqlState::SUCCESS),
            code => SqlState::new(code),
        };
        Some(RecordFrame {
            time: time?,
            vxid,
            query_id: match text(query_id) {
                // Few rows reach this check. All other rows with at least the minimum number of
                // columns are valid.
                b"" if !is_column_count(columns.columns()) => return None,
                b"" => None,
                digits => parse_i64(digits),
            },
            tag,
            lines: line.map(|line| (line, line)),
            severity,
            message_fields: MessageFields::parse(severity, text(message)),
            sqlstate,
            message,
            detail,
            context,
            statement: statement.unless_empty(),
            function: match location {
                FieldSpan::ABSENT => FieldSpan::ABSENT,
                _ => location.truncated(function_name(text(location)).len()),
            },
            assumption: clock.take_assumption(),
            ..RecordFrame::EMPTY
        })
    }

    /// Returns the index of the split row's session fields.
    #[inline]
    fn session_index(&mut self, chunk: &[u8], out: &mut ChunkFrames) -> u32 {
        let Self { columns, recent, .. } = self;
        // The session fields lie between time and session id, and between location and leader.
        let between = |before: usize, last: usize| {
            FieldSpan::input(columns.column_end(before), columns.column_end(last))
        };
        let head = between(column::TIME, column::SESSION_ID);
        let tail = between(column::LOCATION, column::LEADER);
        recent.session_index(Some(head), [tail], chunk, out, |out| {
            let mut row = CsvRow::EMPTY;
            (0..columns.columns().min(COLUMNS_MAX))
                .for_each(|number| row.push(columns.column(number, chunk, &mut out.scratch)));
            out.session_index(&session_fields(&row, chunk, &out.scratch), chunk)
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
