//! csvlog: rows of 22 to 26 columns, with raw newlines inside quotes.
//!
//! The columns of each row are counted, because a file may span a server upgrade. A row that was
//! cut inside quotes would swallow all rows after it, so the reader checks whether a line inside
//! quotes looks like the start of a row. A client's text rarely looks like one, because its quotes
//! are doubled.
//!
//! Source: manual, Using CSV-Format Log Output; `write_csvlog` in `csvlog.c`.

mod framer;
mod row_columns;

use howdah_log_input::{InputState, LogSeverity, stamp_len};
use howdah_traffic::{SqlState, Timestamp};

pub(crate) use self::framer::CsvFramer;
use self::row_columns::RowColumns;
use super::input_item::InputItem;
use crate::{
    clock::LogClock,
    record::{
        frame::{RecordFrame, SessionFields},
        spans::{
            FieldSpan, function_name, known_name, parse_i64, parse_pid, parse_session_id, parse_u64,
        },
    },
    summary::ProblemReason,
};

/// Reader of csvlog files.
#[derive(Debug)]
pub(crate) struct Csv {
    max_record_bytes: usize,
    /// Number of bytes of the current row that were scanned, and whether the scan stopped inside
    /// quotes.
    scanned: usize,
    in_quotes: bool,
    /// Whether the rest of an overlong row is being skipped.
    is_skipping: bool,
    row: CsvRow,
    /// Number of columns of the last row that was split here and had at most [`COLUMNS_MAX`].
    previous_columns: usize,
}

/// The columns of one row.
#[derive(Clone, Debug)]
struct CsvRow {
    columns: [FieldSpan; COLUMNS_MAX],
    /// Number of columns in the row, which may exceed [`COLUMNS_MAX`].
    len: usize,
}

impl CsvRow {
    const EMPTY: Self = Self { columns: [FieldSpan::ABSENT; COLUMNS_MAX], len: 0 };

    #[inline]
    fn push(&mut self, column: FieldSpan) {
        if let Some(slot) = self.columns.get_mut(self.len) {
            *slot = column;
        }
        self.len += 1;
    }
}

/// Maximum number of columns that are read, as in PostgreSQL 14 to 18. Further columns are ignored.
const COLUMNS_MAX: usize = 26;
/// Number of columns in the oldest format, that of PostgreSQL before 9.0.
const COLUMNS_MIN: usize = 22;

/// Whether a row may have this number of columns. PostgreSQL 13 writes 24 and PostgreSQL 14 writes
/// 26: a row of 25 was changed by another program, so its columns cannot be identified.
#[inline]
const fn is_column_count(columns: usize) -> bool {
    columns >= COLUMNS_MIN && columns != 25
}

/// Indexes of columns, from 0.
mod column {
    pub(super) const TIME: usize = 0;
    pub(super) const USER: usize = 1;
    pub(super) const DATABASE: usize = 2;
    pub(super) const PID: usize = 3;
    pub(super) const REMOTE: usize = 4;
    pub(super) const SESSION_ID: usize = 5;
    pub(super) const LINE: usize = 6;
    pub(super) const TAG: usize = 7;
    pub(super) const VXID: usize = 9;
    pub(super) const SEVERITY: usize = 11;
    pub(super) const SQLSTATE: usize = 12;
    pub(super) const MESSAGE: usize = 13;
    pub(super) const DETAIL: usize = 14;
    pub(super) const CONTEXT: usize = 18;
    pub(super) const STATEMENT: usize = 19;
    pub(super) const LOCATION: usize = 21;
    pub(super) const APPLICATION: usize = 22;
    pub(super) const BACKEND_TYPE: usize = 23;
    pub(super) const LEADER: usize = 24;
    pub(super) const QUERY_ID: usize = 25;
}

impl Csv {
    pub(crate) fn new(max_record_bytes: usize) -> Self {
        Self {
            max_record_bytes,
            scanned: 0,
            in_quotes: false,
            is_skipping: false,
            row: CsvRow::EMPTY,
            previous_columns: 0,
        }
    }

    /// Returns a reader with the same settings, for the beginning of another file.
    pub(crate) fn restarted(&self) -> Self {
        Self::new(self.max_record_bytes)
    }

    /// Returns a framer for chunks of the same file.
    pub(crate) fn framer(&self, clock: LogClock) -> CsvFramer {
        CsvFramer::new(self.max_record_bytes, clock)
    }

    pub(crate) fn step(
        &mut self,
        input: &[u8],
        state: InputState,
        scratch: &mut Vec<u8>,
    ) -> InputItem {
        if self.is_skipping {
            return self.skip(input, state);
        }
        match input {
            [] => return InputItem::More,
            [b'\n', ..] => return InputItem::Skip { len: 1 },
            [b'\r', b'\n', ..] => return InputItem::Skip { len: 2 },
            _ => {}
        }
        if self.scanned == 0 {
            match is_row_start(input, state == InputState::End) {
                None => return InputItem::More,
                Some(true) => {}
                Some(false) => return self.junk_line(input, state),
            }
        }
        let end = self.find_row_end(input, state);
        // The end of a row must not depend on how much of it has arrived. So an overlong row is
        // dropped as far as it was scanned, except for its final newline, whether or not its end
        // has arrived.
        let (settled, rest) = match end {
            RowEnd::Row(len) | RowEnd::Broken(len) => (len, len - 1),
            RowEnd::Unknown => (self.scanned, self.scanned),
        };
        if settled > self.max_record_bytes {
            self.is_skipping = true;
            return InputItem::Junk { len: rest, reason: ProblemReason::TooLong };
        }
        match end {
            RowEnd::Row(len) => self.split(input, len, scratch),
            RowEnd::Broken(len) => InputItem::Junk { len, reason: ProblemReason::CutShort },
            RowEnd::Unknown if state == InputState::End => self.last_row(input, scratch),
            RowEnd::Unknown => InputItem::More,
        }
    }

    /// Handles a line that does not start like a row: it ends at its newline, regardless of quotes.
    fn junk_line(&mut self, input: &[u8], state: InputState) -> InputItem {
        let newline = memchr::memchr(b'\n', input);
        if newline.unwrap_or(input.len()) > self.max_record_bytes {
            self.is_skipping = true;
            return InputItem::Junk {
                len: newline.unwrap_or(input.len()),
                reason: ProblemReason::TooLong,
            };
        }
        match newline {
            Some(newline) => {
                InputItem::Junk { len: newline + 1, reason: ProblemReason::NotARecord }
            }
            None if state == InputState::End => {
                InputItem::Junk { len: input.len(), reason: ProblemReason::CutShort }
            }
            None => InputItem::More,
        }
    }

    /// Skips the rest of a row that was too long, up to a line that starts like a row.
    fn skip(&mut self, input: &[u8], state: InputState) -> InputItem {
        for newline in memchr::memchr_iter(b'\n', input) {
            match is_row_start(&input[newline + 1..], state == InputState::End) {
                Some(true) => {
                    self.is_skipping = false;
                    return InputItem::Skip { len: newline + 1 };
                }
                Some(false) => {}
                None if newline == 0 => return InputItem::More,
                None => return InputItem::Skip { len: newline },
            }
        }
        if input.is_empty() { InputItem::More } else { InputItem::Skip { len: input.len() } }
    }

    /// Handles the last row of a file without a final newline: it is complete only if it has at
    /// least as many columns as the previous row.
    fn last_row(&mut self, input: &[u8], scratch: &mut Vec<u8>) -> InputItem {
        let before = self.previous_columns;
        let is_whole = !self.in_quotes
            && matches!(self.split(input, input.len(), scratch), InputItem::Record { .. })
            && self.row.len >= before;
        if is_whole {
            InputItem::Record { len: input.len() }
        } else {
            InputItem::Junk { len: input.len(), reason: ProblemReason::CutShort }
        }
    }

    fn find_row_end(&mut self, input: &[u8], state: InputState) -> RowEnd {
        while let Some(found) = memchr::memchr2(b'"', b'\n', &input[self.scanned..]) {
            let at = self.scanned + found;
            if input[at] == b'"' {
                self.in_quotes = !self.in_quotes;
            } else if !self.in_quotes {
                return RowEnd::Row(at + 1);
            } else {
                match is_row_start(&input[at + 1..], state == InputState::End) {
                    Some(true) => return RowEnd::Broken(at + 1),
                    Some(false) => {}
                    None => {
                        self.scanned = at;
                        return RowEnd::Unknown;
                    }
                }
            }
            self.scanned = at + 1;
        }
        self.scanned = input.len();
        RowEnd::Unknown
    }

    /// Splits a row into columns.
    fn split(&mut self, input: &[u8], len: usize, scratch: &mut Vec<u8>) -> InputItem {
        self.row = CsvRow::EMPTY;
        let row = &input[..len];
        let row = row.strip_suffix(b"\n").unwrap_or(row);
        let row = row.strip_suffix(b"\r").unwrap_or(row);
        let mut at = 0;
        loop {
            let Some((column, end)) = field(row, at, scratch) else {
                return InputItem::Junk { len, reason: ProblemReason::BadRow };
            };
            self.row.push(column);
            match row.get(end) {
                Some(b',') => at = end + 1,
                Some(_) => return InputItem::Junk { len, reason: ProblemReason::BadRow },
                None => break,
            }
        }
        if !is_column_count(self.row.len) {
            return InputItem::Junk { len, reason: ProblemReason::BadRow };
        }
        // A damaged row may have more columns. Whether it reaches this point depends on how the
        // input is divided into chunks.
        if self.row.len <= COLUMNS_MAX {
            self.previous_columns = self.row.len;
        }
        InputItem::Record { len }
    }

    pub(crate) fn consumed(&mut self, _len: usize) {
        self.scanned = 0;
        self.in_quotes = false;
    }

    /// Decodes the row found by the last step.
    pub(crate) fn frame(
        &self,
        input: &[u8],
        clock: &mut LogClock,
        scratch: &[u8],
    ) -> Result<(RecordFrame, SessionFields), ProblemReason> {
        let time = self.row.columns[column::TIME].text(input, scratch);
        decode(&self.row, clock.read(time), input, clock, scratch)
    }
}

/// Returns the field that starts at `at`, and the offset of its end.
fn field(row: &[u8], at: usize, scratch: &mut Vec<u8>) -> Option<(FieldSpan, usize)> {
    if row.get(at) != Some(&b'"') {
        let end = memchr::memchr(b',', &row[at..]).map_or(row.len(), |comma| at + comma);
        let span = if end == at { FieldSpan::ABSENT } else { FieldSpan::input(at, end) };
        return Some((span, end));
    }
    let from = scratch.len();
    let mut start = at + 1;
    loop {
        let quote = start + memchr::memchr(b'"', &row[start..])?;
        if row.get(quote + 1) == Some(&b'"') {
            scratch.extend_from_slice(&row[start..=quote]);
            start = quote + 2;
            continue;
        }
        if start == at + 1 {
            return Some((FieldSpan::input(start, quote), quote + 1));
        }
        scratch.extend_from_slice(&row[start..quote]);
        return Some((FieldSpan::scratch(from, scratch.len()), quote + 1));
    }
}

/// Decodes a row whose time was already parsed.
fn decode(
    row: &CsvRow,
    time: Option<Timestamp>,
    input: &[u8],
    clock: &mut LogClock,
    scratch: &[u8],
) -> Result<(RecordFrame, SessionFields), ProblemReason> {
    let frame = decode_frame(row, time, input, clock, scratch)?;
    Ok((frame, session_fields(row, input, scratch)))
}

/// Decodes a row without its session fields.
#[inline]
fn decode_frame(
    row: &CsvRow,
    time: Option<Timestamp>,
    input: &[u8],
    clock: &mut LogClock,
    scratch: &[u8],
) -> Result<RecordFrame, ProblemReason> {
    let span = |column: usize| row.columns[column];
    let text = |column: usize| span(column).text(input, scratch);
    let line = parse_u64(text(column::LINE));
    let location = span(column::LOCATION);
    Ok(RecordFrame {
        time: time.ok_or(ProblemReason::BadTime)?,
        vxid: span(column::VXID),
        query_id: parse_i64(text(column::QUERY_ID)),
        tag: span(column::TAG),
        lines: line.map(|line| (line, line)),
        severity: LogSeverity::from_keyword(text(column::SEVERITY))
            .ok_or(ProblemReason::BadSeverity)?,
        sqlstate: SqlState::new(text(column::SQLSTATE)),
        message: span(column::MESSAGE),
        detail: span(column::DETAIL),
        context: span(column::CONTEXT),
        statement: span(column::STATEMENT).unless_empty(),
        function: match location {
            FieldSpan::ABSENT => FieldSpan::ABSENT,
            _ => location.truncated(function_name(location.text(input, scratch)).len()),
        },
        assumption: clock.take_assumption(),
        ..RecordFrame::EMPTY
    })
}

/// Decodes the session fields of a row.
fn session_fields(row: &CsvRow, input: &[u8], scratch: &[u8]) -> SessionFields {
    let span = |column: usize| row.columns[column];
    let text = |column: usize| span(column).text(input, scratch);
    let name = |column: usize| known_name(span(column), input, scratch);
    let id = parse_session_id(text(column::SESSION_ID));
    SessionFields {
        session_id: span(column::SESSION_ID),
        session_start: id.map(|(start, _)| start),
        pid: parse_pid(text(column::PID)).or(id.map(|(_, pid)| pid)),
        remote: span(column::REMOTE),
        user: name(column::USER),
        database: name(column::DATABASE),
        application: name(column::APPLICATION),
        backend_type: span(column::BACKEND_TYPE),
        has_leader: !text(column::LEADER).is_empty(),
    }
}

/// The result of the search for the end of a row.
enum RowEnd {
    Row(usize),
    /// Another row starts inside this row's quotes, at this offset.
    Broken(usize),
    Unknown,
}

/// Whether `bytes` starts like a row: a time, then a user that is empty or in quotes that are not
/// doubled, and for a row without user and database a process id. `None` if there is too little
/// input to decide, but never if `is_all`, which means that no more input follows.
pub(crate) fn is_row_start(bytes: &[u8], is_all: bool) -> Option<bool> {
    // Examine a fixed number of bytes, so that the answer does not change when more arrives.
    let bytes = &bytes[..bytes.len().min(ROW_START_BYTES)];
    let is_short = !is_all && bytes.len() < ROW_START_BYTES;
    if !is_time_prefix(bytes) {
        return Some(false);
    }
    let Some(len) = stamp_len(bytes, true) else {
        return if is_short { None } else { Some(false) };
    };
    is_row_after_time(&bytes[len..], is_short).or(if is_short { None } else { Some(false) })
}

/// Whether the text after a time continues like a row; `None` if undecided. If `is_short`, more may
/// follow.
#[inline]
fn is_row_after_time(rest: &[u8], is_short: bool) -> Option<bool> {
    match rest {
        [b',', rest @ ..] | [b',', b',', rest @ ..] if rest.starts_with(b"\"") => {
            is_opening_quote(rest, is_short)
        }
        [b',', b',', b',', digit, ..] => Some(digit.is_ascii_digit()),
        _ => None,
    }
}

/// Whether the quotes at the front open a text. Quotes inside another text are doubled, so their
/// number is even; a name that begins with a quote starts with three. An odd number before a comma
/// or a line end may instead close a text that ends like the start of a row. Then user, database
/// and a process id must follow, as far as the examined bytes show.
fn is_opening_quote(bytes: &[u8], is_short: bool) -> Option<bool> {
    let quotes = bytes.iter().take_while(|byte| **byte == b'"').count();
    let next = bytes.get(quotes)?;
    if quotes % 2 == 1 && b",\r\n".contains(next) {
        process_id_follows(bytes).or(if is_short { None } else { Some(true) })
    } else {
        Some(quotes % 2 == 1)
    }
}

/// Whether user, database and a process id follow; `None` if there is too little input to decide.
fn process_id_follows(bytes: &[u8]) -> Option<bool> {
    let after_user = after_quoted(bytes)?;
    let [b',', database @ ..] = after_user else { return false_unless_empty(after_user) };
    let after_database = match database {
        [b'"', ..] => after_quoted(database)?,
        _ => database,
    };
    match after_database {
        [b',', process, ..] => Some(process.is_ascii_digit()),
        [b','] => None,
        other => false_unless_empty(other),
    }
}

fn false_unless_empty(rest: &[u8]) -> Option<bool> {
    (!rest.is_empty()).then_some(false)
}

/// Returns the bytes after the quoted text at the front; `None` if its closing quote is missing.
fn after_quoted(bytes: &[u8]) -> Option<&[u8]> {
    let mut at = 1;
    loop {
        at += memchr::memchr(b'"', bytes.get(at..)?)? + 1;
        if bytes.get(at) != Some(&b'"') {
            return Some(&bytes[at..]);
        }
        at += 1;
    }
}

/// Number of bytes that are examined to recognize a row: a time, a zone and the beginning of the
/// next columns.
const ROW_START_BYTES: usize = 64;

/// Whether `bytes` could be the beginning of a time.
fn is_time_prefix(bytes: &[u8]) -> bool {
    bytes.iter().zip(b"dddd-dd-dd dd:dd:dd.d").all(|(byte, shape)| match shape {
        b'd' => byte.is_ascii_digit(),
        _ => byte == shape,
    })
}

#[test]
fn row_starts_are_recognized() {
    let row = b"2026-11-20 12:43:19.577 UTC,\"postgres\",\"postgres\",1,";
    assert_eq!(is_row_start(row, true), Some(true));
    for len in 0..24 {
        assert_eq!(is_row_start(&row[..len], false), None, "{len}");
    }
    assert_eq!(is_row_start(b"2026-11-20 12:43:19.577 UTC,,,18146,,", true), Some(true));
    assert_eq!(is_row_start(b"2026-11-20 12:43:19.577 UTC,\"\"postgres\"\",", true), Some(false));
    assert_eq!(is_row_start(b"2026-11-20 12:43:19.577 UTC,\"\"\"al\",", true), Some(true));
    // These quotes end a text and its column.
    for (rest, expected) in [
        (",\",,,,\"psql\",", false),
        (",\",\"parameters: $1 = 'a'\",", false),
        (",\",\",\"shop\",4711,", true),
        (",\",\"\",,\",\",\",4711,", true),
        (",\",\",,4711,", true),
        (",,\",\",4711", false),
    ] {
        let text = format!("2026-11-20 12:43:19.577 UTC{rest}");
        assert_eq!(is_row_start(text.as_bytes(), true), Some(expected), "{text}");
    }
    assert_eq!(is_row_start(b"select 1", false), Some(false));
    assert_eq!(is_row_start(b"2026-11-20", true), Some(false));
    let long = format!("2026-11-20 12:43:19.577 {},\"al\",\"shop\",1,", "UTC".repeat(16));
    for len in ROW_START_BYTES..long.len() {
        assert_eq!(is_row_start(&long.as_bytes()[..len], false), Some(false), "{len}");
    }
}
