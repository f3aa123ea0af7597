//! The columns of an exported csvlog: their delimiter, order and form.

use std::fmt;

use super::server_time;
use crate::{label::LogSeverity, stamp_shape::stamp_len};

/// The delimiter and the order of columns of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Dialect {
    delimiter: u8,
    /// For each column of the server, its position in the file; `None` without a header.
    positions: Option<[Option<usize>; COLUMNS]>,
}

/// A column without its quotes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CsvColumn {
    text: Vec<u8>,
    is_quoted: bool,
}

/// The columns of a row in the server's order.
#[derive(Debug)]
pub(super) struct ServerRow(Vec<CsvColumn>);

/// The reason why an exported csvlog cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CsvObstacle {
    /// Times are in a form that has several meanings, or lacks a part.
    Time(String),
    /// Columns are missing, without a header that shows which.
    Columns(usize),
}

impl fmt::Display for CsvObstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Time(time) => write!(
                f,
                "its times, such as {time:?}, have several meanings: export them as \
                 YYYY-MM-DD hh:mm:ss.fff with their time zone"
            ),
            Self::Columns(columns) => write!(
                f,
                "it has {columns} columns and no header, so it is unknown which columns are \
                 missing: export all of them, or a header with the names that PostgreSQL's manual \
                 gives them"
            ),
        }
    }
}

/// The names of columns in the manual's table `postgres_log`, in the server's order.
const NAMES: [&str; COLUMNS] = [
    "log_time",
    "user_name",
    "database_name",
    "process_id",
    "connection_from",
    "session_id",
    "session_line_num",
    "command_tag",
    "session_start_time",
    "virtual_transaction_id",
    "transaction_id",
    "error_severity",
    "sql_state_code",
    "message",
    "detail",
    "hint",
    "internal_query",
    "internal_query_pos",
    "context",
    "query",
    "query_pos",
    "location",
    "application_name",
    "backend_type",
    "leader_pid",
    "query_id",
];

const COLUMNS: usize = 26;

const TIME: usize = 0;
const USER: usize = 1;
const DATABASE: usize = 2;
const PID: usize = 3;
const SEVERITY: usize = 11;
const MESSAGE: usize = 13;

/// Columns that the server writes without quotes.
const UNQUOTED: [usize; 12] = [PID, 5, 6, 8, 9, 10, SEVERITY, 12, 17, 20, 24, 25];

/// Columns that are whole numbers. Some tools write `7.0`, because the column is empty elsewhere.
const NUMBERS: [usize; 6] = [PID, 6, 10, 17, 20, 24];

/// Whether a row without a header may have this number of columns: see the `logs` crate.
const fn is_column_count(columns: usize) -> bool {
    columns >= 22 && columns != 25
}

/// Minimum number of columns of a row that is recognized as one of a csvlog.
const FEWEST: usize = 14;

/// Delimiters that tools use, most common first.
const DELIMITERS: [u8; 3] = *b",;\t";

impl Dialect {
    /// Returns the dialects without a header.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        DELIMITERS.into_iter().map(|delimiter| Self { delimiter, positions: None })
    }

    /// Returns the dialect of a file whose first row this is; `None` if it is neither a header nor
    /// a readable row.
    pub(super) fn detect(row: &[u8]) -> Option<Self> {
        let is_record = |dialect: &Self| {
            dialect.split(row).is_some_and(|columns| dialect.record(columns).is_some())
        };
        Self::detect_header(row).or_else(|| Self::all().find(is_record))
    }

    /// Returns the dialect that a header shows.
    pub(super) fn detect_header(row: &[u8]) -> Option<Self> {
        Self::all().find_map(|dialect| {
            let columns = dialect.split(row)?;
            let position = |name: &str| columns.iter().position(|column| column.is_name(name));
            let positions = NAMES.map(position);
            let is_header = [TIME, SEVERITY, MESSAGE].iter().all(|at| positions[*at].is_some());
            is_header.then_some(Self { positions: Some(positions), ..dialect })
        })
    }

    /// Splits a row; `None` if its quotes are not valid.
    pub(super) fn split(&self, row: &[u8]) -> Option<Vec<CsvColumn>> {
        let mut rest = row.strip_suffix(b"\r").unwrap_or(row);
        let mut columns = Vec::new();
        loop {
            let (column, after) = CsvColumn::split(rest, self.delimiter)?;
            columns.push(column);
            match after {
                [] => return Some(columns),
                [_, after @ ..] => rest = after,
            }
        }
    }

    /// Whether a row repeats the header.
    pub(super) fn is_header(&self, columns: &[CsvColumn]) -> bool {
        let column = |at: usize| columns.get(self.positions.and_then(|known| known[at])?);
        let is_name = |at: usize| column(at).is_some_and(|column| column.is_name(NAMES[at]));
        is_name(TIME) && is_name(MESSAGE)
    }

    /// Returns the columns in the server's order, after the row's time in the server's form; `None`
    /// if the row is not a record.
    pub(super) fn record(&self, columns: Vec<CsvColumn>) -> Option<(String, ServerRow)> {
        if self.positions.is_none() && !is_column_count(columns.len()) {
            return None;
        }
        let row = self.reordered(columns);
        let time = server_time(&row.0.get(TIME)?.text)?;
        row.has_severity().then_some((time, row))
    }

    /// Returns the reason why a row is not readable; `None` if it is not a row of a
    /// csvlog, or is readable.
    pub(super) fn obstacle(&self, columns: &[CsvColumn]) -> Option<CsvObstacle> {
        let count = columns.len();
        let row = self.reordered(columns.to_vec());
        if !row.has_severity() || count < FEWEST && self.positions.is_none() {
            return None;
        }
        let time = &row.0.get(TIME)?.text;
        if server_time(time).is_none() {
            return Some(CsvObstacle::Time(crate::shorten(time)));
        }
        let is_counted = self.positions.is_none() && !is_column_count(count);
        is_counted.then_some(CsvObstacle::Columns(count))
    }

    /// Whether a row is as the server writes it.
    pub(super) fn is_servers(&self, columns: &[CsvColumn]) -> bool {
        let is_text = |at: usize| {
            columns.get(at).is_some_and(|column| column.is_quoted || column.text.is_empty())
        };
        let is_time = columns.first().is_some_and(|time| {
            !time.is_quoted && stamp_len(&time.text, true) == Some(time.text.len())
        });
        let is_text = [USER, DATABASE, MESSAGE].into_iter().all(is_text);
        self.delimiter == b',' && self.positions.is_none() && is_time && is_text
    }

    fn reordered(&self, mut columns: Vec<CsvColumn>) -> ServerRow {
        let Some(positions) = self.positions else {
            columns.truncate(COLUMNS);
            return ServerRow(columns);
        };
        let column = |at: Option<usize>| at.and_then(|at| columns.get(at)).cloned();
        ServerRow(positions.iter().map(|at| column(*at).unwrap_or_default()).collect())
    }
}

impl CsvColumn {
    /// Splits off the first column; what is left begins with the delimiter. `None` if the column's
    /// quotes are not valid.
    fn split(bytes: &[u8], delimiter: u8) -> Option<(Self, &[u8])> {
        let Some(mut rest) = bytes.strip_prefix(b"\"") else {
            let end = memchr::memchr(delimiter, bytes).unwrap_or(bytes.len());
            let (text, after) = bytes.split_at(end);
            // An empty column, as some databases write it.
            let text = if matches!(text, b"NULL" | b"\\N") { b"" } else { text };
            return Some((Self { text: text.to_vec(), is_quoted: false }, after));
        };
        let mut text = Vec::new();
        loop {
            let quote = memchr::memchr(b'"', rest)?;
            text.extend_from_slice(&rest[..quote]);
            rest = &rest[quote + 1..];
            match rest {
                [b'"', after @ ..] => {
                    text.push(b'"');
                    rest = after;
                }
                [] => break,
                [byte, ..] if *byte == delimiter => break,
                _ => return None,
            }
        }
        Some((Self { text, is_quoted: true }, rest))
    }

    fn is_name(&self, name: &str) -> bool {
        self.text.trim_ascii().eq_ignore_ascii_case(name.as_bytes())
    }
}

impl ServerRow {
    fn has_severity(&self) -> bool {
        self.0.get(SEVERITY).is_some_and(|it| LogSeverity::from_keyword(&it.text).is_some())
    }

    /// Returns the texts of the columns.
    #[cfg(test)]
    pub(super) fn texts(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(|column| &column.text[..])
    }

    /// Appends the row as the server writes it, with this time.
    pub(super) fn push(&self, time: &str, out: &mut Vec<u8>) {
        out.extend_from_slice(time.as_bytes());
        for (number, column) in self.0.iter().enumerate().skip(1) {
            out.push(b',');
            let text = match column.text.strip_suffix(b".0") {
                Some(whole) if NUMBERS.contains(&number) => whole,
                _ => &column.text,
            };
            let is_plain = !text.iter().any(|byte| b",\"\r\n".contains(byte));
            if text.is_empty() || UNQUOTED.contains(&number) && is_plain {
                out.extend_from_slice(text);
                continue;
            }
            out.push(b'"');
            for part in text.split_inclusive(|byte| *byte == b'"') {
                out.extend_from_slice(part);
                if part.ends_with(b"\"") {
                    out.push(b'"');
                }
            }
            out.push(b'"');
        }
        out.push(b'\n');
    }
}

/// Whether a line starts like a row in the server's order: with a time, two names and a process id.
pub(super) fn is_row_start(line: &[u8]) -> bool {
    DELIMITERS.into_iter().any(|delimiter| {
        let (mut rest, mut columns) = (line, Vec::new());
        while columns.len() <= PID {
            let Some((column, after)) = CsvColumn::split(rest, delimiter) else { return false };
            columns.push(column);
            let [_, after @ ..] = after else { return false };
            rest = after;
        }
        let pid = columns[PID].text.strip_suffix(b".0").unwrap_or(&columns[PID].text);
        let is_pid = !pid.is_empty() && pid.iter().all(u8::is_ascii_digit);
        is_pid && server_time(&columns[TIME].text).is_some()
    })
}
