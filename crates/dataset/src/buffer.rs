//! Rows waiting to become a file, and how a file's rows are cut into row groups.

use std::time::{Duration, Instant};

use crate::{ROW_BYTES_MAX, error::WriteError, table::Record};

/// Rows held in memory until there are enough for a file.
#[derive(Debug)]
pub(crate) struct Buffer<R> {
    rows: Vec<R>,
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

impl<R: Record> Buffer<R> {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { rows: Vec::new(), bytes: 0, limits, saved: Instant::now(), saved_rows: 0 }
    }

    /// Whether the rows make a file.
    pub(crate) fn is_full(&self) -> bool {
        self.rows.len() >= self.limits.file_rows || self.bytes >= self.limits.file_bytes
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
        let bytes = row.text_bytes();
        if bytes > ROW_BYTES_MAX {
            return Err(WriteError::RowTooLarge { bytes });
        }
        if self.rows.is_empty() {
            self.saved = Instant::now(); // Until now there was nothing to be lost.
        }
        self.bytes += bytes;
        self.rows.push(row);
        Ok(())
    }

    /// The rows, to be sorted in place.
    pub(crate) fn rows_mut(&mut self) -> &mut [R] {
        &mut self.rows
    }

    /// The rows, oldest first unless sorted otherwise.
    pub(crate) fn rows(&self) -> &[R] {
        &self.rows
    }

    /// Forgets the rows once they are in a file.
    pub(crate) fn clear(&mut self) {
        self.rows.clear();
        self.bytes = 0;
        (self.saved, self.saved_rows) = (Instant::now(), 0);
    }

    /// Whether rows have waited for so long that a crash should not cost them.
    pub(crate) fn is_overdue(&self) -> bool {
        self.rows.len() > self.saved_rows && self.saved.elapsed() >= self.limits.unsaved_max
    }

    /// Whether it is worth asking the clock between two rows: where many come, that takes as long as a few
    /// of them.
    pub(crate) fn may_ask_clock(&self) -> bool {
        self.rows.len() < ROWS_EACH_LOOKED_AT || self.rows.len().is_multiple_of(ROWS_PER_LOOK)
    }

    /// How long rows have been here alone.
    pub(crate) fn age(&self) -> Duration {
        self.saved.elapsed()
    }

    /// Takes note that all rows are on disk, though not in a finished file.
    pub(crate) fn set_saved(&mut self) {
        (self.saved, self.saved_rows) = (Instant::now(), self.rows.len());
    }

    /// Changes how many bytes make a file.
    pub(crate) fn limit_bytes(&mut self, bytes: usize) {
        self.limits.file_bytes = self.limits.file_bytes.min(bytes);
    }

    /// Cuts `rows` into row groups.
    pub(crate) fn groups<'a>(&self, rows: &'a [R]) -> impl Iterator<Item = &'a [R]> + use<'a, R> {
        let limits = self.limits;
        let mut rest = rows;
        std::iter::from_fn(move || {
            let mut bytes = 0;
            let rows = rest
                .iter()
                .take(limits.group_rows)
                .take_while(|row| {
                    let fits = bytes < limits.group_bytes;
                    bytes += row.text_bytes();
                    fits
                })
                .count();
            let (group, after) = rest.split_at(rows);
            rest = after;
            (!group.is_empty()).then_some(group)
        })
    }
}
