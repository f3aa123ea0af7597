//! Rows of a csvlog that another tool has written again: a spreadsheet, a data warehouse, `COPY`
//! from the table `postgres_log` of the manual.
//!
//! Such tools quote every column, or only those that need it. They may add a header, write other
//! line ends or delimiters, and change the form of times and numbers. This layer writes the rows
//! like the server does. With a header, columns are known by their names, and may be in any order
//! or missing; without one, their number must be that of a server's version.
//!
//! Source: manual, Using CSV-Format Log Output; RFC 4180.

mod columns;

pub use self::columns::CsvObstacle;
use self::columns::{Dialect, is_row_start};
use super::{
    layer::{Layer, LayerOutput},
    stamp,
};
use crate::problem::InputProblem;

/// A layer that writes the rows of an exported csvlog like the server.
#[derive(Debug)]
pub(super) struct CsvExport {
    rows: RowSplitter,
    dialect: Option<Dialect>,
}

impl CsvExport {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { rows: RowSplitter::new(bytes_max), dialect: None }
    }
}

impl Layer for CsvExport {
    fn feed(&mut self, bytes: &[u8], output: &mut LayerOutput) {
        let Self { rows, dialect } = self;
        rows.feed(bytes, |row, line| read_row(row, line, dialect, output));
    }

    fn finish(&mut self, output: &mut LayerOutput) {
        let Self { rows, dialect } = self;
        rows.finish(|row, line| read_row(row, line, dialect, output));
    }
}

fn read_row(row: CsvRow<'_>, line: u64, dialect: &mut Option<Dialect>, output: &mut LayerOutput) {
    let (row, problem) = match row {
        CsvRow::Whole(row) => (row, InputProblem::BadEnvelope),
        CsvRow::Broken(row) => return output.add_problem(InputProblem::CutShort, line, row),
        CsvRow::TooLong(row) => return output.add_problem(InputProblem::TooLong, line, row),
    };
    if row.trim_ascii().is_empty() {
        return;
    }
    if dialect.is_none() {
        *dialect = Dialect::detect(row);
    }
    let Some(dialect) = dialect else { return output.add_problem(problem, line, row) };
    let Some(columns) = dialect.split(row) else {
        return output.add_problem(problem, line, row);
    };
    if dialect.is_header(&columns) {
        return;
    }
    match dialect.record(columns) {
        Some((time, record)) => record.push(&time, &mut output.log),
        None => output.add_problem(problem, line, row),
    }
}

/// Whether a log that begins with `sample` is an exported csvlog: it has readable rows, and some of
/// them are not as the server writes them.
pub(super) fn is_export(sample: &[u8]) -> bool {
    let (mut dialect, mut records, mut foreign) = (None::<Dialect>, 0, 0);
    each_row(sample, |row| {
        if dialect.is_none() {
            dialect = Dialect::detect(row);
        }
        let Some(dialect) = &dialect else { return };
        let Some(columns) = dialect.split(row) else { return };
        let is_own = dialect.is_servers(&columns);
        if dialect.record(columns).is_some() {
            records += 1;
            foreign += usize::from(!is_own);
        }
    });
    foreign * FOREIGN_SHARE_MIN > records
}

/// A log is an export if more than one in this many rows is not as the server writes it. Rows of
/// background processes may be the same in both.
const FOREIGN_SHARE_MIN: usize = 20;

/// Returns the reason why an exported csvlog that begins with `sample` cannot be read; `None` if it
/// does not look like one.
pub fn csv_obstacle(sample: &[u8]) -> Option<CsvObstacle> {
    let (mut dialect, mut obstacle) = (None::<Dialect>, None);
    each_row(sample, |row| {
        dialect = dialect.take().or_else(|| Dialect::detect_header(row));
        obstacle = obstacle.take().or_else(|| match &dialect {
            Some(dialect) => dialect.obstacle(&dialect.split(row)?),
            None => Dialect::all().find_map(|dialect| dialect.obstacle(&dialect.split(row)?)),
        });
    });
    obstacle
}

/// Calls `take` with the first rows of a sample, the last of which may be incomplete.
fn each_row(sample: &[u8], mut take: impl FnMut(&[u8])) {
    let mut rows = RowSplitter::new(sample.len());
    let mut count = 0;
    let mut take_row = |row: CsvRow<'_>, _| {
        count += 1;
        if let (CsvRow::Whole(row), 0..=ROWS_MAX) = (row, count) {
            take(row);
        }
    };
    rows.feed(sample, &mut take_row);
    rows.finish(&mut take_row);
}

/// Maximum number of rows that are examined.
const ROWS_MAX: usize = 100;

/// A row of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CsvRow<'a> {
    /// A row without its line end.
    Whole(&'a [u8]),
    /// A row in whose quotes another row starts.
    Broken(&'a [u8]),
    /// The beginning of a row that is too long.
    TooLong(&'a [u8]),
}

/// A splitter of a stream into rows, whose quotes may contain newlines.
#[derive(Debug)]
struct RowSplitter {
    bytes_max: usize,
    /// The beginning of an incomplete row, or its unread rest if `is_skipping`.
    pending: Vec<u8>,
    /// Offset in `pending` up to which quotes and newlines were read.
    scanned: usize,
    is_quoted: bool,
    /// Whether the rest of an overlong row is being skipped, up to a line that starts like a row.
    is_skipping: bool,
    /// Line number of the row that `pending` begins, from 1, and the newlines read after it.
    line: u64,
    newlines: u64,
}

/// Number of bytes that are examined to recognize the start of a row inside quotes.
const ROW_START_BYTES: usize = 512;

impl RowSplitter {
    fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            pending: Vec::new(),
            scanned: 0,
            is_quoted: false,
            is_skipping: false,
            line: 1,
            newlines: 0,
        }
    }

    /// Reads the next bytes; calls `take` with each row that ends in them, and its line number.
    fn feed(&mut self, bytes: &[u8], mut take: impl FnMut(CsvRow<'_>, u64)) {
        self.pending.extend_from_slice(bytes);
        self.scan(false, &mut take);
        self.check_length(0, self.scanned, &mut take);
        if self.is_skipping {
            self.pending.drain(..self.scanned);
            self.scanned = 0;
        }
    }

    /// Calls `take` with a last row that has no newline.
    fn finish(&mut self, mut take: impl FnMut(CsvRow<'_>, u64)) {
        self.scan(true, &mut take);
        self.check_length(0, self.scanned, &mut take);
        let last = std::mem::take(&mut self.pending);
        if self.is_skipping || last.is_empty() {
            return;
        }
        let row = if self.is_quoted { CsvRow::Broken(&last) } else { CsvRow::Whole(&last) };
        take(row, self.line);
    }

    /// Rejects the row that starts at `start` if it is too long up to `end`, whether or not its end
    /// has arrived.
    fn check_length(&mut self, start: usize, end: usize, take: &mut impl FnMut(CsvRow<'_>, u64)) {
        if end - start > self.bytes_max && !self.is_skipping {
            take(CsvRow::TooLong(&self.pending[start..end]), self.line);
            self.is_skipping = true;
        }
    }

    fn scan(&mut self, is_all: bool, take: &mut impl FnMut(CsvRow<'_>, u64)) {
        let mut start = 0;
        while let Some(found) = memchr::memchr2(b'"', b'\n', &self.pending[self.scanned..]) {
            let at = self.scanned + found;
            if self.pending[at] == b'"' {
                self.is_quoted = !self.is_quoted;
                self.scanned = at + 1;
                continue;
            }
            self.check_length(start, at, take);
            let after = &self.pending[at + 1..];
            let is_end = if self.is_quoted || self.is_skipping {
                let window = &after[..after.len().min(ROW_START_BYTES)];
                let newline = memchr::memchr(b'\n', window);
                if newline.is_none() && window.len() < ROW_START_BYTES && !is_all {
                    // The start of the next line decides whether it is another row.
                    self.scanned = at;
                    break;
                }
                is_row_start(&window[..newline.unwrap_or(window.len())])
            } else {
                true
            };
            self.scanned = at + 1;
            self.newlines += 1;
            if !is_end {
                continue;
            }
            let row = &self.pending[start..at];
            match (self.is_skipping, self.is_quoted) {
                (true, _) => {}
                (false, true) => take(CsvRow::Broken(row), self.line),
                (false, false) => take(CsvRow::Whole(row), self.line),
            }
            (self.is_quoted, self.is_skipping) = (false, false);
            self.line += std::mem::take(&mut self.newlines);
            start = at + 1;
        }
        if self.scanned < self.pending.len() && self.pending[self.scanned] != b'\n' {
            self.scanned = self.pending.len();
        }
        self.pending.drain(..start);
        self.scanned -= start;
    }
}

/// Returns a time in the form of `%m`; `None` if it is in no unambiguous form.
fn server_time(text: &[u8]) -> Option<String> {
    stamp::exported(text)
}

#[cfg(test)]
mod tests;
