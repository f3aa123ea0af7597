//! [`CopyRows`]: the data of a COPY, row by row, and where each row goes.
//!
//! Rows are found as `CopyReadLine` and `CopyReadAttributes` of `copyfromparse.c` find them, for lines that end
//! in a line feed, with a carriage return before it or not.

use std::{borrow::Cow, sync::Arc};

use howdah_shard::{Key, KeyType, ShardMap};

use super::{CopyFormat, CopyFrom};
use crate::{Refusal, refusal::NoShardKey};

/// Splits the data of one COPY, which may come in pieces of any length.
///
/// ```
/// # use howdah_route::*;
/// # use howdah_shard::{KeyType, ShardMap};
/// # use std::sync::Arc;
/// # let format = CopyFormat::Csv { delimiter: b',', null: "".into(), quote: b'"', escape: b'"' };
/// # let copy = Arc::new(CopyFrom { table: "t".into(), key: vec![1], format, header: false });
/// let map = ShardMap::hash(3, vec![KeyType::Int])?;
/// let mut rows = CopyRows::new(copy, 1 << 20).expect("not binary");
/// rows.push(b"\"a\nb\",1234\nc,");
/// let (place, row) = rows.next(&map, true)?.expect("one is there");
/// assert_eq!((place, row), (RowPlace::Shard(0), &b"\"a\nb\",1234\n"[..]));
/// assert_eq!(rows.next(&map, true)?, None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct CopyRows {
    copy: Arc<CopyFrom>,
    held: Vec<u8>,
    /// Where in `held` the next row begins.
    start: usize,
    /// Up to where its end has been looked for in vain, and how that stood.
    seen: usize,
    is_quoted: bool,
    row_bytes_max: usize,
    awaits_header: bool,
    is_over: bool,
}

/// Where a row goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowPlace {
    /// To one shard.
    Shard(u32),
    /// The header: to every shard.
    All,
}

impl CopyRows {
    /// None for the binary format, which is not split. A row of more than `row_bytes_max` is refused.
    pub fn new(copy: Arc<CopyFrom>, row_bytes_max: usize) -> Option<Self> {
        if copy.format == CopyFormat::Binary {
            return None;
        }
        let awaits_header = copy.header;
        Some(Self {
            copy,
            held: Vec::new(),
            start: 0,
            seen: 0,
            is_quoted: false,
            row_bytes_max,
            awaits_header,
            is_over: false,
        })
    }

    /// The content of a CopyData, which follows what came before.
    pub fn push(&mut self, bytes: &[u8]) {
        self.held.drain(..self.start);
        self.seen -= self.start;
        self.start = 0;
        self.held.extend_from_slice(bytes);
    }

    /// The next row that is there whole, with the end of its line. `same_encoding`: text is the same bytes on
    /// the server.
    ///
    /// # Errors
    ///
    /// The row has no key, or is too long: the COPY has to fail.
    pub fn next(
        &mut self,
        map: &ShardMap,
        same_encoding: bool,
    ) -> Result<Option<(RowPlace, &[u8])>, Refusal> {
        if self.is_over {
            return self.pass_rest().map(|()| None);
        }
        let end = self.end();
        if end.unwrap_or(self.held.len()) - self.start > self.row_bytes_max {
            return Err(Refusal::CopyRow("it is too long"));
        }
        match end {
            Some(end) => self.row(end, map, same_encoding),
            None => Ok(None),
        }
    }

    /// The last row, if it lacks the end of its line: nothing follows.
    ///
    /// # Errors
    ///
    /// As for [`Self::next`]; or the row ends within quotes.
    pub fn finish(
        &mut self,
        map: &ShardMap,
        same_encoding: bool,
    ) -> Result<Option<(RowPlace, &[u8])>, Refusal> {
        if self.is_over || self.start == self.held.len() {
            return self.pass_rest().map(|()| None);
        }
        if self.is_quoted {
            return Err(Refusal::CopyRow("it ends within quotes"));
        }
        self.row(self.held.len(), map, same_encoding)
    }

    fn row(
        &mut self,
        end: usize,
        map: &ShardMap,
        same_encoding: bool,
    ) -> Result<Option<(RowPlace, &[u8])>, Refusal> {
        let begin = std::mem::replace(&mut self.start, end);
        self.seen = end;
        self.is_quoted = false;
        if without_end(&self.held[begin..end]) == b"\\." {
            self.is_over = true;
            return self.pass_rest().map(|()| None);
        }
        let row = &self.held[begin..end];
        if std::mem::take(&mut self.awaits_header) {
            return Ok(Some((RowPlace::All, row)));
        }
        let key = key(&self.copy, without_end(row), map.columns(), same_encoding)?;
        Ok(Some((RowPlace::Shard(map.shard(&key)?), row)))
    }

    /// Passes over what is behind the line that ends the data. In CSV, PostgreSQL 18 takes that line for a
    /// row, those before for the end, and psql before 18 sends it as the last.
    fn pass_rest(&mut self) -> Result<(), Refusal> {
        let is_csv = matches!(self.copy.format, CopyFormat::Csv { .. });
        if is_csv && self.start < self.held.len() {
            return Err(Refusal::CopyRow(
                "before it is a line of \\. alone, the end to some servers only",
            ));
        }
        self.start = self.held.len();
        self.seen = self.start;
        Ok(())
    }

    /// Where the next row ends.
    fn end(&mut self) -> Option<usize> {
        match self.copy.format {
            CopyFormat::Csv { quote, escape, .. } => self.end_of_csv(quote, escape),
            _ => self.end_of_text(),
        }
    }

    /// A line feed behind a backslash is data.
    fn end_of_text(&mut self) -> Option<usize> {
        while let Some(found) = memchr::memchr2(b'\n', b'\\', &self.held[self.seen..]) {
            let at = self.seen + found;
            if self.held[at] == b'\n' {
                return Some(at + 1);
            }
            // What is behind the backslash is part of it, and may not be there yet. `\.` ends its line.
            self.held.get(at + 1)?;
            self.seen = at + 2;
        }
        self.seen = self.held.len();
        None
    }

    /// A line feed within quotes is data.
    fn end_of_csv(&mut self, quote: u8, escape: u8) -> Option<usize> {
        loop {
            let rest = &self.held[self.seen..];
            let at = self.seen + memchr::memchr3(b'\n', quote, escape, rest)?;
            let byte = self.held[at];
            if byte == b'\n' && !self.is_quoted {
                return Some(at + 1);
            }
            // An escape that is the quote leaves and enters again, which comes to the same.
            if byte == escape && escape != quote && self.is_quoted {
                let escaped = *self.held.get(at + 1)?;
                self.seen = at + if escaped == quote || escaped == escape { 2 } else { 1 };
                continue;
            }
            if byte == quote {
                self.is_quoted = !self.is_quoted;
            }
            self.seen = at + 1;
        }
    }
}

/// A row without the end of its line.
fn without_end(row: &[u8]) -> &[u8] {
    let line = row.strip_suffix(b"\n").unwrap_or(row);
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// The key of a line.
fn key(
    copy: &CopyFrom,
    line: &[u8],
    columns: &[KeyType],
    same_encoding: bool,
) -> Result<Vec<Option<Key>>, Refusal> {
    // Where lines end in a carriage return alone, this is several rows.
    if has_bare_return(&copy.format, line) {
        return Err(Refusal::CopyRow("there is a carriage return in it"));
    }
    let last = copy.key.iter().copied().max().unwrap_or_default();
    let cells = match &copy.format {
        CopyFormat::Csv { delimiter, null, quote, escape } => {
            csv(line, *delimiter, null.as_bytes(), (*quote, *escape), last)
        }
        CopyFormat::Text { delimiter, null } => text(line, *delimiter, null.as_bytes(), last),
        CopyFormat::Binary => Vec::new(),
    };
    let column = |(place, of): (&usize, &KeyType)| {
        let Some(cell) = cells.get(*place) else {
            return Err(Refusal::CopyRow("it has too few columns"));
        };
        let Some(cell) = cell else { return Ok(None) };
        if *of == KeyType::Text {
            if !same_encoding && !cell.is_ascii() {
                return Err(Refusal::Keyless(NoShardKey::Encoding));
            }
            // A column of limited length cuts it.
            if cell.ends_with(b" ") {
                return Err(Refusal::CopyRow("its key ends in a space"));
            }
        }
        Ok(Some(of.parse(cell)?))
    };
    copy.key.iter().zip(columns).map(column).collect()
}

/// Whether a carriage return stands in a line that is neither escaped nor within quotes.
fn has_bare_return(format: &CopyFormat, line: &[u8]) -> bool {
    if memchr::memchr(b'\r', line).is_none() {
        return false;
    }
    let (mut is_quoted, mut is_escaped) = (false, false);
    line.iter().any(|byte| {
        let was_escaped = std::mem::take(&mut is_escaped);
        match format {
            CopyFormat::Csv { quote, escape, .. } if !was_escaped => {
                // An escape that is the quote leaves and enters again.
                is_escaped = byte == escape && escape != quote && is_quoted;
                is_quoted ^= byte == quote;
            }
            CopyFormat::Text { .. } if !was_escaped => is_escaped = *byte == b'\\',
            _ => {}
        }
        *byte == b'\r' && !was_escaped && !is_quoted
    })
}

/// A cell, or NULL.
type Cell<'l> = Option<Cow<'l, [u8]>>;

/// The columns of a line up to the `last`.
fn text<'l>(line: &'l [u8], delimiter: u8, null: &[u8], last: usize) -> Vec<Cell<'l>> {
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

/// The columns of a line up to the `last`.
fn csv<'l>(
    line: &'l [u8],
    delimiter: u8,
    null: &[u8],
    (quote, escape): (u8, u8),
    last: usize,
) -> Vec<Cell<'l>> {
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
