//! Rows waiting to become a file, and how a file's rows are cut into row groups.

use std::time::{Duration, Instant};

use crate::{ROW_BYTES_MAX, error::WriteError, table::Encode};

/// Rows held in memory until there are enough for a file.
#[derive(Debug)]
pub(crate) struct Buffer<R> {
    rows: Vec<R>,
    fill: Fill,
}

/// How full a buffer is, and since when.
#[derive(Debug)]
pub(crate) struct Fill {
    rows: usize,
    bytes: usize,
    limits: Limits,
    /// When the rows on disk were last all there were.
    saved: Instant,
    /// Rows that were on disk then, in a file that is to be replaced.
    saved_rows: usize,
}

/// How much goes into one file and into one of its row groups.
///
/// A limit in bytes counts the texts of the rows as they are in memory; the last row may exceed it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Rows of a file.
    pub(crate) file_rows: usize,
    /// Bytes of a file.
    pub(crate) file_bytes: usize,
    /// Rows of a row group: what a reader skips or decodes at once.
    pub(crate) group_rows: usize,
    /// Bytes of a row group: what a reader holds in memory.
    pub(crate) group_bytes: usize,
    /// How long rows may be in memory alone: what a crash may lose.
    pub(crate) unsaved_max: Duration,
}

/// Rows that come between two looks at the clock, after so many that it was looked at for each.
const ROWS_PER_LOOK: usize = 16;
const ROWS_EACH_LOOKED_AT: usize = 256;

impl Default for Limits {
    fn default() -> Self {
        Self {
            file_rows: 128 << 10,
            file_bytes: 64 << 20,
            group_rows: 16 << 10,
            group_bytes: 8 << 20,
            unsaved_max: Duration::from_secs(5),
        }
    }
}

impl<R: Encode> Buffer<R> {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { rows: Vec::new(), fill: Fill::new(limits) }
    }

    /// Whether the rows make a file.
    pub(crate) fn is_full(&self) -> bool {
        self.fill.is_full()
    }

    /// Whether there are no rows.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Adds a row. The caller empties a full buffer first.
    ///
    /// # Errors
    ///
    /// The row is larger than [`ROW_BYTES_MAX`]; the buffer is as it was.
    pub(crate) fn push(&mut self, row: R) -> Result<(), WriteError> {
        self.fill.add(row.text_bytes())?;
        self.rows.push(row);
        Ok(())
    }

    /// The rows.
    pub(crate) fn rows(&self) -> &[R] {
        &self.rows
    }

    /// Forgets the rows once they are in a file.
    pub(crate) fn clear(&mut self) {
        self.rows.clear();
        self.fill.clear();
    }

    /// Whether rows have waited for so long that a crash should not cost them.
    pub(crate) fn is_overdue(&self) -> bool {
        self.fill.is_overdue()
    }

    /// Takes note that all rows are on disk, though not in a finished file.
    pub(crate) fn set_saved(&mut self) {
        self.fill.set_saved();
    }

    /// Cuts `rows` into row groups.
    pub(crate) fn groups<'a>(&self, rows: &'a [R]) -> impl Iterator<Item = &'a [R]> + use<'a, R> {
        self.fill.limits.groups(rows, R::text_bytes)
    }
}

impl Fill {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { rows: 0, bytes: 0, limits, saved: Instant::now(), saved_rows: 0 }
    }

    /// Whether the rows make a file.
    pub(crate) fn is_full(&self) -> bool {
        self.rows >= self.limits.file_rows || self.bytes >= self.limits.file_bytes
    }

    /// How many rows there are.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Counts a row with so many bytes of text.
    ///
    /// # Errors
    ///
    /// It is larger than [`ROW_BYTES_MAX`] and was not counted.
    pub(crate) fn add(&mut self, bytes: usize) -> Result<(), WriteError> {
        if bytes > ROW_BYTES_MAX {
            return Err(WriteError::RowTooLarge { bytes });
        }
        if self.rows == 0 {
            self.saved = Instant::now(); // Until now there was nothing to be lost.
        }
        self.bytes += bytes;
        self.rows += 1;
        Ok(())
    }

    /// Begins anew, once all is in a file.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.limits);
    }

    /// Whether rows have waited for so long that a crash should not cost them.
    pub(crate) fn is_overdue(&self) -> bool {
        self.rows > self.saved_rows && self.saved.elapsed() >= self.limits.unsaved_max
    }

    /// Whether it is worth asking the clock between two rows: where many come, that takes as long as a few
    /// of them.
    pub(crate) fn may_ask_clock(&self) -> bool {
        self.rows < ROWS_EACH_LOOKED_AT || self.rows.is_multiple_of(ROWS_PER_LOOK)
    }

    /// How long rows have been here alone.
    pub(crate) fn age(&self) -> Duration {
        self.saved.elapsed()
    }

    /// Takes note that all rows are on disk, though not in a finished file.
    pub(crate) fn set_saved(&mut self) {
        (self.saved, self.saved_rows) = (Instant::now(), self.rows);
    }

    /// Changes how many bytes make a file.
    pub(crate) fn limit_bytes(&mut self, bytes: usize) {
        self.limits.file_bytes = self.limits.file_bytes.min(bytes);
    }

    /// See [`Limits::groups`].
    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }
}

impl Limits {
    /// Cuts rows into row groups.
    pub(crate) fn groups<T>(
        self,
        rows: &[T],
        text_bytes: impl Fn(&T) -> usize,
    ) -> impl Iterator<Item = &[T]> {
        let mut rest = rows;
        std::iter::from_fn(move || {
            let mut bytes = 0;
            let rows = rest
                .iter()
                .take(self.group_rows)
                .take_while(|row| {
                    let fits = bytes < self.group_bytes;
                    bytes += text_bytes(row);
                    fits
                })
                .count();
            let (group, after) = rest.split_at(rows);
            rest = after;
            (!group.is_empty()).then_some(group)
        })
    }
}
