//! [`CopyRowSplitter`]: splits the data of a COPY into rows and determines the shard of each row.
//!
//! Rows are split as in `CopyReadLine` and `CopyReadAttributes` of `copyfromparse.c`, for lines
//! that end in a line feed, with or without a carriage return before it.

use std::{borrow::Cow, sync::Arc};

use crate::shard::{KeyType, ShardKey, ShardMap};

use super::{CopyFrom, CopyRowFormat};
use crate::{Refusal, refusal::NoShardKey};

/// Splits the data of one COPY into rows. The data may arrive in pieces of any length.
///
/// ```
/// # use howdah_route::*;
/// # use howdah_route::shard::{KeyType, ShardMap};
/// # use std::sync::Arc;
/// # let format = CopyRowFormat::Csv { delimiter: b',', null: "".into(), quote: b'"', escape: b'"' };
/// # let copy = Arc::new(CopyFrom { table: "t".into(), key: vec![1], format, header: false });
/// let map = ShardMap::hash(3, vec![KeyType::Int])?;
/// let mut rows = CopyRowSplitter::new(copy, 1 << 20).expect("not binary");
/// rows.push(b"\"a\nb\",1234\nc,");
/// let (place, row) = rows.next(&map, true)?.expect("one is there");
/// assert_eq!((place, row), (RowTarget::Shard(0), &b"\"a\nb\",1234\n"[..]));
/// assert_eq!(rows.next(&map, true)?, None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct CopyRowSplitter {
    copy: Arc<CopyFrom>,
    buffer: Vec<u8>,
    /// Start of the next row in `buffer`.
    start: usize,
    /// Position up to which `buffer` was searched for the end of the next row, and whether that
    /// position is inside quotes.
    scanned: usize,
    is_quoted: bool,
    row_bytes_max: usize,
    awaits_header: bool,
    is_finished: bool,
}

/// The shards that receive a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowTarget {
    /// The shard of the row's key.
    Shard(u32),
    /// Every shard, because the row is the header.
    All,
}

impl CopyRowSplitter {
    /// Creates a splitter; `None` for the binary format, which is not split. A row longer than
    /// `row_bytes_max` is refused.
    pub fn new(copy: Arc<CopyFrom>, row_bytes_max: usize) -> Option<Self> {
        if copy.format == CopyRowFormat::Binary {
            return None;
        }
        let awaits_header = copy.header;
        Some(Self {
            copy,
            buffer: Vec::new(),
            start: 0,
            scanned: 0,
            is_quoted: false,
            row_bytes_max,
            awaits_header,
            is_finished: false,
        })
    }

    /// Appends the contents of a CopyData message.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.start);
        self.scanned -= self.start;
        self.start = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next row, with its line end, and the shards that receive it; `None` if no
    /// complete row has arrived or the data has ended. `same_encoding` says whether the server
    /// stores text with the same bytes.
    ///
    /// # Errors
    ///
    /// No shard can be determined for the row, it is too long, or it follows the end-of-data line
    /// of a CSV file: the COPY must fail.
    pub fn next(
        &mut self,
        map: &ShardMap,
        same_encoding: bool,
    ) -> Result<Option<(RowTarget, &[u8])>, Refusal> {
        if self.is_finished {
            return self.skip_after_end().map(|()| None);
        }
        let end = self.row_end();
        if end.unwrap_or(self.buffer.len()) - self.start > self.row_bytes_max {
            return Err(Refusal::CopyRow("it is too long"));
        }
        match end {
            Some(end) => self.row(end, map, same_encoding),
            None => Ok(None),
        }
    }

    /// Ends the data, and returns the last row if it lacks a line end.
    ///
    /// # Errors
    ///
    /// As for [`Self::next`], or the row ends inside quotes.
    pub fn finish(
        &mut self,
        map: &ShardMap,
        same_encoding: bool,
    ) -> Result<Option<(RowTarget, &[u8])>, Refusal> {
        if self.is_finished || self.start == self.buffer.len() {
            return self.skip_after_end().map(|()| None);
        }
        if self.is_quoted {
            return Err(Refusal::CopyRow("it ends within quotes"));
        }
        self.row(self.buffer.len(), map, same_encoding)
    }

    fn row(
        &mut self,
        end: usize,
        map: &ShardMap,
        same_encoding: bool,
    ) -> Result<Option<(RowTarget, &[u8])>, Refusal> {
        let begin = std::mem::replace(&mut self.start, end);
        self.scanned = end;
        self.is_quoted = false;
        if trim_line_end(&self.buffer[begin..end]) == b"\\." {
            self.is_finished = true;
            return self.skip_after_end().map(|()| None);
        }
        let row = &self.buffer[begin..end];
        if std::mem::take(&mut self.awaits_header) {
            return Ok(Some((RowTarget::All, row)));
        }
        let key = key(&self.copy, trim_line_end(row), map.columns(), same_encoding)?;
        Ok(Some((RowTarget::Shard(map.shard(&key)?), row)))
    }

    /// Skips everything after the end-of-data line, but refuses it in CSV: PostgreSQL 18 reads that
    /// line as a row there, and older servers read it as the end. As the last line it is accepted,
    /// because psql before 18 sends it.
    fn skip_after_end(&mut self) -> Result<(), Refusal> {
        let is_csv = matches!(self.copy.format, CopyRowFormat::Csv { .. });
        if is_csv && self.start < self.buffer.len() {
            return Err(Refusal::CopyRow(
                "it follows a line with only \\., which some servers read as the end of the data",
            ));
        }
        self.start = self.buffer.len();
        self.scanned = self.start;
        Ok(())
    }

    /// Returns the position after the next row in `buffer`; `None` if the row is incomplete.
    fn row_end(&mut self) -> Option<usize> {
        match self.copy.format {
            CopyRowFormat::Csv { quote, escape, .. } => self.csv_row_end(quote, escape),
            _ => self.text_row_end(),
        }
    }

    /// Finds the end of the next row in text format, where a line feed after a backslash is data.
    fn text_row_end(&mut self) -> Option<usize> {
        while let Some(found) = memchr::memchr2(b'\n', b'\\', &self.buffer[self.scanned..]) {
            let at = self.scanned + found;
            if self.buffer[at] == b'\n' {
                return Some(at + 1);
            }
            // The byte after the backslash belongs to the escape and may not have arrived yet.
            self.buffer.get(at + 1)?;
            self.scanned = at + 2;
        }
        self.scanned = self.buffer.len();
        None
    }

    /// Finds the end of the next row in CSV format, where a line feed inside quotes is data.
    fn csv_row_end(&mut self, quote: u8, escape: u8) -> Option<usize> {
        loop {
            let rest = &self.buffer[self.scanned..];
            let at = self.scanned + memchr::memchr3(b'\n', quote, escape, rest)?;
            let byte = self.buffer[at];
            if byte == b'\n' && !self.is_quoted {
                return Some(at + 1);
            }
            // An escape that is the quote character needs no special case: it closes and reopens
            // the quotes.
            if byte == escape && escape != quote && self.is_quoted {
                let escaped = *self.buffer.get(at + 1)?;
                self.scanned = at + if escaped == quote || escaped == escape { 2 } else { 1 };
                continue;
            }
            if byte == quote {
                self.is_quoted = !self.is_quoted;
            }
            self.scanned = at + 1;
        }
    }
}

/// Returns a row without its line end.
fn trim_line_end(row: &[u8]) -> &[u8] {
    let line = row.strip_suffix(b"\n").unwrap_or(row);
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// Returns the key in a row, given without its line end.
fn key(
    copy: &CopyFrom,
    line: &[u8],
    columns: &[KeyType],
    same_encoding: bool,
) -> Result<Vec<Option<ShardKey>>, Refusal> {
    // A server that takes carriage returns as line ends would read several rows here.
    if has_bare_return(&copy.format, line) {
        return Err(Refusal::CopyRow("it contains a carriage return"));
    }
    let last = copy.key.iter().copied().max().unwrap_or_default();
    let cells = match &copy.format {
        CopyRowFormat::Csv { delimiter, null, quote, escape } => {
            csv(line, *delimiter, null.as_bytes(), (*quote, *escape), last)
        }
        CopyRowFormat::Text { delimiter, null } => text(line, *delimiter, null.as_bytes(), last),
        CopyRowFormat::Binary => Vec::new(),
    };
    let column = |(place, of): (&usize, &KeyType)| {
        let Some(cell) = cells.get(*place) else {
            return Err(Refusal::CopyRow("it has too few columns"));
        };
        let Some(cell) = cell else { return Ok(None) };
        if *of == KeyType::Text {
            if !same_encoding && !cell.is_ascii() {
                return Err(Refusal::UnknownShard(NoShardKey::Encoding));
            }
            // A column of limited length would trim trailing spaces, which changes the key.
            if cell.ends_with(b" ") {
                return Err(Refusal::CopyRow("its key ends in a space"));
            }
        }
        Ok(Some(of.parse(cell)?))
    };
    copy.key.iter().zip(columns).map(column).collect()
}

/// Whether a line contains a carriage return that is neither escaped nor quoted.
fn has_bare_return(format: &CopyRowFormat, line: &[u8]) -> bool {
    if memchr::memchr(b'\r', line).is_none() {
        return false;
    }
    let (mut is_quoted, mut is_escaped) = (false, false);
    line.iter().any(|byte| {
        let was_escaped = std::mem::take(&mut is_escaped);
        match format {
            CopyRowFormat::Csv { quote, escape, .. } if !was_escaped => {
                // An escape that is the quote character closes and reopens the quotes.
                is_escaped = byte == escape && escape != quote && is_quoted;
                is_quoted ^= byte == quote;
            }
            CopyRowFormat::Text { .. } if !was_escaped => is_escaped = *byte == b'\\',
            _ => {}
        }
        *byte == b'\r' && !was_escaped && !is_quoted
    })
}

/// The value of a column; `None` stands for NULL.
type CopyCell<'l> = Option<Cow<'l, [u8]>>;

/// Splits a line in text format into columns, up to column `last`.
fn text<'l>(line: &'l [u8], delimiter: u8, null: &[u8], last: usize) -> Vec<CopyCell<'l>> {
    let mut cells = Vec::new();
    let mut rest = line;
    while cells.len() <= last {
        let mut end = 0;
        while let Some(byte) = rest.get(end)
            && *byte != delimiter
        {
            end += if *byte == b'\\' { 2 } else { 1 };
        }
        let end = end.min(rest.len());
        let cell = &rest[..end];
        cells.push((cell != null).then(|| unescaped(cell)));
        match rest.get(end + 1..) {
            Some(behind) if end < rest.len() => rest = behind,
            _ => break,
        }
    }
    cells
}

fn unescaped(cell: &[u8]) -> Cow<'_, [u8]> {
    if memchr::memchr(b'\\', cell).is_none() {
        return Cow::Borrowed(cell);
    }
    let mut value = Vec::with_capacity(cell.len());
    let mut rest = cell;
    while let [byte, behind @ ..] = rest {
        rest = behind;
        let (b'\\', [escaped, behind @ ..]) = (byte, behind) else {
            value.push(*byte);
            continue;
        };
        rest = behind;
        let digit =
            |byte: Option<&u8>, radix| byte.and_then(|byte| char::from(*byte).to_digit(radix));
        let mut number = |first: u32, more: usize, radix: u32| {
            let mut number = first;
            for _ in 0..more {
                let Some(next) = digit(rest.first(), radix) else { break };
                number = number * radix + next;
                rest = &rest[1..];
            }
            number as u8
        };
        value.push(match escaped {
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'v' => 11,
            b'0'..=b'7' => number(u32::from(escaped - b'0'), 2, 8),
            b'x' if digit(behind.first(), 16).is_some() => number(0, 2, 16),
            other => *other,
        });
    }
    Cow::Owned(value)
}

/// Splits a line in CSV format into columns, up to column `last`.
fn csv<'l>(
    line: &'l [u8],
    delimiter: u8,
    null: &[u8],
    (quote, escape): (u8, u8),
    last: usize,
) -> Vec<CopyCell<'l>> {
    let mut cells = Vec::new();
    let mut bytes = line.iter().copied().peekable();
    while cells.len() <= last {
        let (mut cell, mut was_quoted, mut is_quoted) = (Vec::new(), false, false);
        let mut is_last = true;
        while let Some(byte) = bytes.next() {
            let next = bytes.peek().copied();
            if is_quoted
                && byte == escape
                && next.is_some_and(|next| next == quote || next == escape)
            {
                cell.extend(bytes.next());
            } else if byte == quote {
                is_quoted = !is_quoted;
                was_quoted = true;
            } else if byte == delimiter && !is_quoted {
                is_last = false;
                break;
            } else {
                cell.push(byte);
            }
        }
        let is_null = !was_quoted && cell == null;
        cells.push((!is_null).then_some(Cow::Owned(cell)));
        if is_last {
            break;
        }
    }
    cells
}

#[cfg(test)]
mod tests;
