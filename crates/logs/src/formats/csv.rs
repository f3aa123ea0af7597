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

use howdah_log_input::{InputState, LogSeverity, SECONDS_LEN, is_stamp_shaped, stamp_len};
use howdah_traffic::{SqlState, Timestamp};

pub(crate) use self::framer::CsvFramer;
use self::row_columns::{RowColumns, RowEnd};
use super::input_item::InputItem;
use crate::{
    clock::LogClock,
    record::{
        frame::{RecordFrame, SessionFields},
        message_fields::MessageFields,
        spans::{
            FieldSpan, function_name, known_name, parse_i64, parse_pid, parse_session_id, parse_u64,
        },
    },
    scan::bitmasks::Bitmasks,
    summary::ProblemReason,
};

/// Reader of csvlog files.
#[derive(Debug)]
pub(crate) struct Csv {
    max_record_bytes: usize,
    /// Quotes, commas and newlines at the front of the input; none if the row was not started.
    masks: Bitmasks,
    row: RowColumns,
    /// Whether the rest of an overlong row is being skipped.
    is_skipping: bool,
    /// Number of columns of the last row that was split here and had at most [`COLUMNS_MAX`].
    previous_columns: usize,
}

/// Number of bytes of a row that are indexed at first; then, as many again as before.
const INDEXED_BYTES_MIN: usize = 256;

/// The bytes that divide the text into rows and columns, in the order of the bitmasks.
const DELIMITERS: [u8; 3] = *b"\",\n";

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
            masks: Bitmasks::default(),
            row: RowColumns::default(),
            is_skipping: false,
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

    pub(crate) fn step(&mut self, input: &[u8], state: InputState) -> InputItem {
        if self.is_skipping {
            return self.skip(input, state);
        }
        match input {
            [] => return InputItem::More,
            [b'\n', ..] => return InputItem::Skip { len: 1 },
            [b'\r', b'\n', ..] => return InputItem::Skip { len: 2 },
            _ => {}
        }
        if self.masks.len() == 0 {
            match is_row_start(input, state == InputState::End) {
                None => return InputItem::More,
                Some(true) => {}
                Some(false) => return self.junk_line(input, state),
            }
        }
        let end = self.split_row(input, state);
        // The end of a row must not depend on how much of it has arrived. So an overlong row is
        // dropped as far as it was split, except for its final newline, whether or not its end
        // has arrived.
        let (settled, rest) = match end {
            RowEnd::Row(len) | RowEnd::Broken(len) => (len, len - 1),
            RowEnd::Undecided(len) => (len, len),
        };
        if settled > self.max_record_bytes {
            self.is_skipping = true;
            return InputItem::Junk { len: rest, reason: ProblemReason::TooLong };
        }
        match end {
            RowEnd::Row(len) => self.whole_row(len),
            RowEnd::Broken(len) => InputItem::Junk { len, reason: ProblemReason::CutShort },
            RowEnd::Undecided(_) if state == InputState::End => self.last_row(input),
            RowEnd::Undecided(_) => InputItem::More,
        }
    }

    /// Starts or continues to split the row at the front of the input.
    fn split_row(&mut self, input: &[u8], state: InputState) -> RowEnd {
        let mut from = match self.masks.len() {
            0 => self.row.start_row(0, 0),
            _ => self.row.progress(),
        };
        loop {
            let len = self.masks.len();
            if len > 0 {
                let end = self.row.split_row(input, &self.masks, from, state == InputState::End);
                if !matches!(end, RowEnd::Undecided(_)) || len == input.len() {
                    return end;
                }
                from = self.row.progress();
            }
            let more = input.len().min(2 * len.max(INDEXED_BYTES_MIN));
            self.masks.extend(&input[..more], DELIMITERS);
        }
    }

    /// Checks the row that was split.
    fn whole_row(&mut self, len: usize) -> InputItem {
        if !is_valid_row(&self.row) {
            return InputItem::Junk { len, reason: ProblemReason::BadRow };
        }
        // A damaged row may have more columns. Whether it reaches this point depends on how the
        // input is divided into chunks.
        if self.row.columns() <= COLUMNS_MAX {
            self.previous_columns = self.row.columns();
        }
        InputItem::Record { len }
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
    fn last_row(&mut self, input: &[u8]) -> InputItem {
        let (len, before) = (input.len(), self.previous_columns);
        self.masks.push_third();
        let from = self.row.progress();
        let is_whole = matches!(self.row.split_row(input, &self.masks, from, true), RowEnd::Row(_))
            && matches!(self.whole_row(len), InputItem::Record { .. })
            && self.row.columns() >= before;
        if is_whole {
            InputItem::Record { len }
        } else {
            InputItem::Junk { len, reason: ProblemReason::CutShort }
        }
    }

    pub(crate) fn consumed(&mut self, _len: usize) {
        self.masks.clear();
    }

    /// Decodes the row found by the last step.
    pub(crate) fn frame(
        &self,
        input: &[u8],
        clock: &mut LogClock,
        scratch: &mut Vec<u8>,
    ) -> Result<(RecordFrame, SessionFields), ProblemReason> {
        let frame = decode_frame(&self.row, None, input, clock, scratch)?;
        Ok((frame, session_fields(&self.row, input, scratch)))
    }
}

/// Whether a row that was split has columns as the server writes them.
#[inline]
fn is_valid_row(row: &RowColumns) -> bool {
    row.has_valid_quotes() && is_column_count(row.columns())
}

/// Decodes a valid row without its session fields, and its time unless that is known.
#[inline(always)]
fn decode_frame(
    row: &RowColumns,
    time: Option<Timestamp>,
    input: &[u8],
    clock: &mut LogClock,
    scratch: &mut Vec<u8>,
) -> Result<RecordFrame, ProblemReason> {
    let time = match time {
        Some(time) => time,
        None => clock
            .read(row.column(column::TIME, input, scratch).text(input, scratch))
            .ok_or(ProblemReason::BadTime)?,
    };
    let mut span = |number: usize| row.column(number, input, scratch);
    let (line, tag, vxid) = (span(column::LINE), span(column::TAG), span(column::VXID));
    let (severity, code) = (span(column::SEVERITY), span(column::SQLSTATE));
    let (message, detail) = (span(column::MESSAGE), span(column::DETAIL));
    let (context, statement) = (span(column::CONTEXT), span(column::STATEMENT));
    let (location, query_id) = (span(column::LOCATION), span(column::QUERY_ID));
    let text = |span: FieldSpan| span.text(input, scratch);
    let line = parse_u64(text(line));
    let severity = match text(severity) {
        b"LOG" => LogSeverity::Log,
        word => LogSeverity::from_keyword(word).ok_or(ProblemReason::BadSeverity)?,
    };
    Ok(RecordFrame {
        time,
        vxid,
        query_id: parse_i64(text(query_id)),
        tag,
        lines: line.map(|line| (line, line)),
        severity,
        message_fields: MessageFields::parse(severity, text(message)),
        sqlstate: match text(code) {
            b"00000" => Some(SqlState::SUCCESS),
            code => SqlState::new(code),
        },
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

/// Decodes the session fields of a row.
fn session_fields(row: &RowColumns, input: &[u8], scratch: &mut Vec<u8>) -> SessionFields {
    let mut span = |number: usize| row.column(number, input, scratch);
    let (id, pid, leader) = (span(column::SESSION_ID), span(column::PID), span(column::LEADER));
    let (remote, backend_type) = (span(column::REMOTE), span(column::BACKEND_TYPE));
    let names = [column::USER, column::DATABASE, column::APPLICATION].map(span);
    let [user, database, application] = names.map(|name| known_name(name, input, scratch));
    let session_id = id;
    let id = parse_session_id(id.text(input, scratch));
    SessionFields {
        session_id,
        session_start: id.map(|(start, _)| start),
        pid: parse_pid(pid.text(input, scratch)).or(id.map(|(_, pid)| pid)),
        remote,
        user,
        database,
        application,
        backend_type,
        has_leader: !leader.text(input, scratch).is_empty(),
    }
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
    let (mut second, len) = (*b"0000-00-00 00:00:00", bytes.len().min(SECONDS_LEN));
    second[..len].copy_from_slice(&bytes[..len]);
    is_stamp_shaped(&second) && matches!(bytes[len..], [] | [b'.'] | [b'.', b'0'..=b'9', ..])
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
