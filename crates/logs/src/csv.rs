//! csvlog: rows of 22 to 26 columns, newlines raw inside quotes.
//!
//! The number of columns is taken from each row, since a file may span an upgrade of the server. A row
//! that was cut inside quotes would swallow all that follows, so inside quotes each line is checked for
//! looking like a row's beginning; text of a client cannot, because its quotes would be doubled.
//!
//! Source: manual, Using CSV-Format Log Output; `write_csvlog` in `csvlog.c`.

mod cut;
mod framer;

use howdah_traffic::{SqlState, Timestamp};

use self::cut::Cut;
pub(crate) use self::framer::CsvFramer;
use crate::{
    clock::{Clock, stamp_len},
    frame::{Frame, Owner},
    pieces::{Span, function, number, process, session_id, signed},
    reader::{Closing, Step},
    record::Severity,
    stderr::known,
    summary::Reason,
};

/// Reader of csvlog files.
#[derive(Debug)]
pub(crate) struct Csv {
    max_record_bytes: usize,
    /// How far the current row was looked at, and whether that place is inside quotes.
    scanned: usize,
    in_quotes: bool,
    /// Inside a row that is too long.
    skipping: bool,
    row: Row,
    /// Columns of the last whole row.
    columns_before: usize,
}

/// The columns of one row.
#[derive(Clone, Debug)]
struct Row {
    columns: [Span; COLUMNS_MAX],
    /// Columns there are, read or not.
    len: usize,
}

impl Row {
    const EMPTY: Self = Self { columns: [Span::ABSENT; COLUMNS_MAX], len: 0 };

    #[inline]
    fn push(&mut self, column: Span) {
        if let Some(place) = self.columns.get_mut(self.len) {
            *place = column;
        }
        self.len += 1;
    }
}

/// Columns that are read: PostgreSQL 14 to 18 write these. Later ones are passed over.
const COLUMNS_MAX: usize = 26;
/// Columns of the oldest format, PostgreSQL 8.4.
const COLUMNS_MIN: usize = 22;

/// Whether a row may have so many columns. PostgreSQL 13 writes 24 and PostgreSQL 14 writes 26: a row of 25
/// was changed by another program, so the place of a column says nothing.
#[inline]
const fn is_row_of(columns: usize) -> bool {
    columns >= COLUMNS_MIN && columns != 25
}

/// Columns by number.
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
            skipping: false,
            row: Row::EMPTY,
            columns_before: 0,
        }
    }

    /// The same reader at the beginning of another file.
    pub(crate) fn restarted(&self) -> Self {
        Self::new(self.max_record_bytes)
    }

    /// What others need to frame pieces of the same file.
    pub(crate) fn framer(&self, clock: Clock) -> CsvFramer {
        CsvFramer::new(self.max_record_bytes, clock)
    }

    pub(crate) fn step(&mut self, input: &[u8], closing: Closing, scratch: &mut Vec<u8>) -> Step {
        if self.skipping {
            return self.skip(input, closing);
        }
        match input {
            [] => return Step::More,
            [b'\n', ..] => return Step::Skip { len: 1 },
            [b'\r', b'\n', ..] => return Step::Skip { len: 2 },
            _ => {}
        }
        if self.scanned == 0 {
            match row_begins(input, closing == Closing::End) {
                None => return Step::More,
                Some(true) => {}
                Some(false) => return self.junk_line(input, closing),
            }
        }
        let end = self.row_end(input, closing);
        // Where a row ends must not depend on how much of it came at once, so a long one is left at
        // its last newline that is settled, whether its end is there or not.
        let (settled, rest) = match end {
            End::Row(len) | End::Broken(len) => (len, len - 1),
            End::Unknown => (self.scanned, self.scanned),
        };
        if settled > self.max_record_bytes {
            self.skipping = true;
            return Step::Junk { len: rest, reason: Reason::TooLong };
        }
        match end {
            End::Row(len) => self.split(input, len, scratch),
            End::Broken(len) => Step::Junk { len, reason: Reason::CutShort },
            End::Unknown if closing == Closing::End => self.tail(input, scratch),
            End::Unknown => Step::More,
        }
    }

    /// A line that does not begin like a row: it ends at its newline, whatever quotes it has.
    fn junk_line(&mut self, input: &[u8], closing: Closing) -> Step {
        let newline = memchr::memchr(b'\n', input);
        if newline.unwrap_or(input.len()) > self.max_record_bytes {
            self.skipping = true;
            return Step::Junk { len: newline.unwrap_or(input.len()), reason: Reason::TooLong };
        }
        match newline {
            Some(newline) => Step::Junk { len: newline + 1, reason: Reason::NotARecord },
            None if closing == Closing::End => {
                Step::Junk { len: input.len(), reason: Reason::CutShort }
            }
            None => Step::More,
        }
    }

    /// What is left of a row that was too long ends where a line begins like a row.
    fn skip(&mut self, input: &[u8], closing: Closing) -> Step {
        for newline in memchr::memchr_iter(b'\n', input) {
            match row_begins(&input[newline + 1..], closing == Closing::End) {
                Some(true) => {
                    self.skipping = false;
                    return Step::Skip { len: newline + 1 };
                }
                Some(false) => {}
                None if newline == 0 => return Step::More,
                None => return Step::Skip { len: newline },
            }
        }
        if input.is_empty() { Step::More } else { Step::Skip { len: input.len() } }
    }

    /// The last row of a file that lacks its newline is whole if it has as many columns as the row
    /// before.
    fn tail(&mut self, input: &[u8], scratch: &mut Vec<u8>) -> Step {
        let before = self.columns_before;
        let is_whole = !self.in_quotes
            && matches!(self.split(input, input.len(), scratch), Step::Record { .. })
            && self.row.len >= before;
        if is_whole {
            Step::Record { len: input.len() }
        } else {
            Step::Junk { len: input.len(), reason: Reason::CutShort }
        }
    }

    fn row_end(&mut self, input: &[u8], closing: Closing) -> End {
        while let Some(found) = memchr::memchr2(b'"', b'\n', &input[self.scanned..]) {
            let at = self.scanned + found;
            if input[at] == b'"' {
                self.in_quotes = !self.in_quotes;
            } else if !self.in_quotes {
                return End::Row(at + 1);
            } else {
                match row_begins(&input[at + 1..], closing == Closing::End) {
                    Some(true) => return End::Broken(at + 1),
                    Some(false) => {}
                    None => {
                        self.scanned = at;
                        return End::Unknown;
                    }
                }
            }
            self.scanned = at + 1;
        }
        self.scanned = input.len();
        End::Unknown
    }

    /// Finds the columns of a row.
    fn split(&mut self, input: &[u8], len: usize, scratch: &mut Vec<u8>) -> Step {
        self.row = Row::EMPTY;
        let row = &input[..len];
        let row = row.strip_suffix(b"\n").unwrap_or(row);
        let row = row.strip_suffix(b"\r").unwrap_or(row);
        let mut at = 0;
        loop {
            let Some((column, end)) = field(row, at, scratch) else {
                return Step::Junk { len, reason: Reason::BadRow };
            };
            self.row.push(column);
            match row.get(end) {
                Some(b',') => at = end + 1,
                Some(_) => return Step::Junk { len, reason: Reason::BadRow },
                None => break,
            }
        }
        if !is_row_of(self.row.len) {
            return Step::Junk { len, reason: Reason::BadRow };
        }
        // A damaged row may have more. Whether it comes by here depends on the pieces that the log comes in.
        if self.row.len <= COLUMNS_MAX {
            self.columns_before = self.row.len;
        }
        Step::Record { len }
    }

    pub(crate) fn consumed(&mut self, _len: usize) {
        self.scanned = 0;
        self.in_quotes = false;
    }

    /// The record of the row that was found.
    pub(crate) fn frame(
        &self,
        input: &[u8],
        clock: &mut Clock,
        scratch: &[u8],
    ) -> Result<(Frame, Owner), Reason> {
        let time = self.row.columns[column::TIME].text(input, scratch);
        decode(&self.row, clock.read(time), input, clock, scratch)
    }
}

/// The field that begins at `at`, and where it ends.
fn field(row: &[u8], at: usize, scratch: &mut Vec<u8>) -> Option<(Span, usize)> {
    if row.get(at) != Some(&b'"') {
        let end = memchr::memchr(b',', &row[at..]).map_or(row.len(), |comma| at + comma);
        let span = if end == at { Span::ABSENT } else { Span::input(at, end) };
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
            return Some((Span::input(start, quote), quote + 1));
        }
        scratch.extend_from_slice(&row[start..quote]);
        return Some((Span::scratch(from, scratch.len()), quote + 1));
    }
}

/// Reads the fields of a record, whose time was read.
fn decode(
    row: &Row,
    time: Option<Timestamp>,
    input: &[u8],
    clock: &mut Clock,
    scratch: &[u8],
) -> Result<(Frame, Owner), Reason> {
    let frame = decode_with(row, time, input, clock, scratch)?;
    Ok((frame, owner_of(row, input, scratch)))
}

/// The same without whose it is.
#[inline]
fn decode_with(
    row: &Row,
    time: Option<Timestamp>,
    input: &[u8],
    clock: &mut Clock,
    scratch: &[u8],
) -> Result<Frame, Reason> {
    let span = |column: usize| row.columns[column];
    let text = |column: usize| span(column).text(input, scratch);
    let line = number(text(column::LINE));
    let location = span(column::LOCATION);
    Ok(Frame {
        time: time.ok_or(Reason::BadTime)?,
        vxid: span(column::VXID),
        query_id: signed(text(column::QUERY_ID)),
        tag: span(column::TAG),
        lines: line.map(|line| (line, line)),
        severity: Severity::from_word(text(column::SEVERITY)).ok_or(Reason::BadSeverity)?,
        sqlstate: SqlState::new(text(column::SQLSTATE)),
        message: span(column::MESSAGE),
        detail: span(column::DETAIL),
        context: span(column::CONTEXT),
        statement: span(column::STATEMENT).unless_empty(),
        function: match location {
            Span::ABSENT => Span::ABSENT,
            _ => location.shortened(function(location.text(input, scratch)).len()),
        },
        assumption: clock.take_assumption(),
        ..Frame::EMPTY
    })
}

/// Whose a record is.
fn owner_of(row: &Row, input: &[u8], scratch: &[u8]) -> Owner {
    let span = |column: usize| row.columns[column];
    let text = |column: usize| span(column).text(input, scratch);
    let name = |column: usize| known(span(column), input, scratch);
    let id = session_id(text(column::SESSION_ID));
    Owner {
        session_id: span(column::SESSION_ID),
        session_start: id.map(|(start, _)| start),
        pid: process(text(column::PID)).or(id.map(|(_, pid)| pid)),
        remote: span(column::REMOTE),
        user: name(column::USER),
        database: name(column::DATABASE),
        application: name(column::APPLICATION),
        backend_type: span(column::BACKEND_TYPE),
        has_leader: !text(column::LEADER).is_empty(),
    }
}

/// Where a row ends.
enum End {
    Row(usize),
    /// Another row begins inside its quotes.
    Broken(usize),
    Unknown,
}

/// Whether a row begins here: a time, then a user that is empty or in quotes that are not doubled, and
/// in a row without user and database a process id. `None`: too little to tell.
pub(crate) fn row_begins(bytes: &[u8], is_all: bool) -> Option<bool> {
    // No farther, so that the answer does not change when more comes.
    let bytes = &bytes[..bytes.len().min(ROW_START_BYTES)];
    let is_short = !is_all && bytes.len() < ROW_START_BYTES;
    if !looks_like_digits_of_a_time(bytes) {
        return Some(false);
    }
    let Some(len) = stamp_len(bytes, true) else {
        return if is_short { None } else { Some(false) };
    };
    row_goes_on(&bytes[len..], is_short).or(if is_short { None } else { Some(false) })
}

/// Whether what follows the time goes on like a row, if it shows. If `is_short`, more may follow.
#[inline]
fn row_goes_on(rest: &[u8], is_short: bool) -> Option<bool> {
    match rest {
        [b',', rest @ ..] | [b',', b',', rest @ ..] if rest.starts_with(b"\"") => {
            quote_opens(rest, is_short)
        }
        [b',', b',', b',', digit, ..] => Some(digit.is_ascii_digit()),
        _ => None,
    }
}

/// Whether the quotes at the front open a text: those of a text inside of another are doubled, so there
/// is an even number of them. A name that begins with a quote has three. Quotes that close a text, which
/// ends like the beginning of a row, have a comma or a line end behind them, as few names do.
fn quote_opens(bytes: &[u8], is_short: bool) -> Option<bool> {
    let quotes = bytes.iter().take_while(|byte| **byte == b'"').count();
    let next = bytes.get(quotes)?;
    match quotes % 2 == 1 && b",\r\n".contains(next) {
        false => Some(quotes % 2 == 1),
        true => leads_to_process(bytes).or(if is_short { None } else { Some(true) }),
    }
}

/// Whether user, database and a process id stand here; `None`: too little to tell.
fn leads_to_process(bytes: &[u8]) -> Option<bool> {
    let after_user = after_quoted(bytes)?;
    let [b',', database @ ..] = after_user else { return not_if_more(after_user) };
    let after_database = match database {
        [b'"', ..] => after_quoted(database)?,
        _ => database,
    };
    match after_database {
        [b',', process, ..] => Some(process.is_ascii_digit()),
        [b','] => None,
        other => not_if_more(other),
    }
}

fn not_if_more(rest: &[u8]) -> Option<bool> {
    (!rest.is_empty()).then_some(false)
}

/// What stands behind the text in quotes at the front; `None` if that does not end.
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

/// Enough to hold a time, a zone and the beginning of what follows.
const ROW_START_BYTES: usize = 64;

/// Whether what there is of a time looks like one.
fn looks_like_digits_of_a_time(bytes: &[u8]) -> bool {
    bytes.iter().zip(b"dddd-dd-dd dd:dd:dd.d").all(|(byte, shape)| match shape {
        b'd' => byte.is_ascii_digit(),
        _ => byte == shape,
    })
}

#[test]
fn row_beginnings() {
    let row = b"2026-11-20 12:43:19.577 UTC,\"postgres\",\"postgres\",1,";
    assert_eq!(row_begins(row, true), Some(true));
    for len in 0..24 {
        assert_eq!(row_begins(&row[..len], false), None, "{len}");
    }
    assert_eq!(row_begins(b"2026-11-20 12:43:19.577 UTC,,,18146,,", true), Some(true));
    assert_eq!(row_begins(b"2026-11-20 12:43:19.577 UTC,\"\"postgres\"\",", true), Some(false));
    assert_eq!(row_begins(b"2026-11-20 12:43:19.577 UTC,\"\"\"al\",", true), Some(true));
    // The end of a text, and of the column that it is in.
    for (rest, begins) in [
        (",\",,,,\"psql\",", false),
        (",\",\"parameters: $1 = 'a'\",", false),
        (",\",\",\"shop\",4711,", true),
        (",\",\"\",,\",\",\",4711,", true),
        (",\",\",,4711,", true),
        (",,\",\",4711", false),
    ] {
        let text = format!("2026-11-20 12:43:19.577 UTC{rest}");
        assert_eq!(row_begins(text.as_bytes(), true), Some(begins), "{text}");
    }
    assert_eq!(row_begins(b"select 1", false), Some(false));
    assert_eq!(row_begins(b"2026-11-20", true), Some(false));
    let long = format!("2026-11-20 12:43:19.577 {},\"al\",\"shop\",1,", "UTC".repeat(16));
    for len in ROW_START_BYTES..long.len() {
        assert_eq!(row_begins(&long.as_bytes()[..len], false), Some(false), "{len}");
    }
}
