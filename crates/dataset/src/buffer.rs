//! The rows buffered for a file, and how they are split into row groups.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use crate::{ROW_BYTES_MAX, error::WriteError, storage::is_store_url, table::Encode};

/// A buffer for rows until there are enough for a file.
#[derive(Debug)]
pub(crate) struct Buffer<R> {
    rows: Vec<R>,
    fill: FillLevel,
}

/// The fill level of a buffer, and the age of its unsaved rows.
#[derive(Debug)]
pub(crate) struct FillLevel {
    rows: usize,
    bytes: usize,
    limits: BufferLimits,
    /// Time at which all rows were last on disk, or at which the first row was added.
    saved: Instant,
    /// Number of rows that are on disk, in a file that will be replaced.
    saved_rows: usize,
}

/// The limits of a file and of its row groups.
///
/// Byte limits count the texts of the rows in memory; the last row may exceed a limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BufferLimits {
    /// Maximum number of rows in a file.
    pub(crate) file_rows: usize,
    /// Maximum bytes of text in a file.
    pub(crate) file_bytes: usize,
    /// Maximum number of rows in a row group, the unit that a reader reads or skips.
    pub(crate) group_rows: usize,
    /// Maximum bytes of text in a row group.
    pub(crate) group_bytes: usize,
    /// Time after which rows that exist only in memory, where a crash would lose them, should be
    /// saved.
    pub(crate) unsaved_max: Duration,
}

/// Number of rows between two clock checks, once [`CLOCK_CHECKED_ROWS`] rows are buffered.
const ROWS_PER_CLOCK_CHECK: usize = 16;
const CLOCK_CHECKED_ROWS: usize = 256;

impl Default for BufferLimits {
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

impl BufferLimits {
    /// Returns the limits for a folder. In a store, rows are saved less often, because each save
    /// uploads the unfinished file again.
    pub(crate) fn for_dir(dir: &Path) -> Self {
        let limits = Self::default();
        if is_store_url(dir) {
            Self { unsaved_max: Duration::from_secs(30), ..limits }
        } else {
            limits
        }
    }
}

impl<R: Encode> Buffer<R> {
    pub(crate) fn new(limits: BufferLimits) -> Self {
        Self { rows: Vec::new(), fill: FillLevel::new(limits) }
    }

    /// Whether the rows fill a file.
    pub(crate) fn is_full(&self) -> bool {
        self.fill.is_full()
    }

    /// Whether the buffer has no rows.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Adds a row. The caller must empty a full buffer first.
    ///
    /// # Errors
    ///
    /// The row is larger than [`ROW_BYTES_MAX`]; the buffer is unchanged.
    pub(crate) fn push(&mut self, row: R) -> Result<(), WriteError> {
        self.fill.add(row.text_bytes())?;
        self.rows.push(row);
        Ok(())
    }

    /// Returns the buffered rows, in order of arrival.
    pub(crate) fn rows(&self) -> &[R] {
        &self.rows
    }

    /// Clears the rows after they were written to a file.
    pub(crate) fn clear(&mut self) {
        self.rows.clear();
        self.fill.clear();
    }

    /// Whether there are unsaved rows, and the limit has passed since rows were last saved or the
    /// first one was added.
    pub(crate) fn is_overdue(&self) -> bool {
        self.fill.is_overdue()
    }

    /// Records that all rows are on disk, although in a file that will be replaced.
    pub(crate) fn mark_saved(&mut self) {
        self.fill.mark_saved();
    }

    /// Splits `rows` into row groups.
    pub(crate) fn groups<'a>(&self, rows: &'a [R]) -> impl Iterator<Item = &'a [R]> + use<'a, R> {
        self.fill.limits.groups(rows, R::text_bytes)
    }
}

impl FillLevel {
    pub(crate) fn new(limits: BufferLimits) -> Self {
        Self { rows: 0, bytes: 0, limits, saved: Instant::now(), saved_rows: 0 }
    }

    /// Whether the rows fill a file.
    pub(crate) fn is_full(&self) -> bool {
        self.rows >= self.limits.file_rows || self.bytes >= self.limits.file_bytes
    }

    /// Returns the number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Counts a row with this many bytes of text.
    ///
    /// # Errors
    ///
    /// The row is larger than [`ROW_BYTES_MAX`] and was not counted.
    pub(crate) fn add(&mut self, bytes: usize) -> Result<(), WriteError> {
        if bytes > ROW_BYTES_MAX {
            return Err(WriteError::RowTooLarge { bytes });
        }
        if self.rows == 0 {
            self.saved = Instant::now(); // Until now, a crash would have lost nothing.
        }
        self.bytes += bytes;
        self.rows += 1;
        Ok(())
    }

    /// Resets the level after the rows were written to a file.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.limits);
    }

    /// Whether there are unsaved rows, and the limit has passed since rows were last saved or the
    /// first one was added.
    pub(crate) fn is_overdue(&self) -> bool {
        self.rows > self.saved_rows && self.saved.elapsed() >= self.limits.unsaved_max
    }

    /// Whether the clock should be read before the next row: at high rates, reading it costs as
    /// much as a few rows.
    pub(crate) fn should_check_clock(&self) -> bool {
        self.rows < CLOCK_CHECKED_ROWS || self.rows.is_multiple_of(ROWS_PER_CLOCK_CHECK)
    }

    /// Returns the time since the first row was added or all rows were last saved.
    pub(crate) fn age(&self) -> Duration {
        self.saved.elapsed()
    }

    /// Records that all rows are on disk, although in a file that will be replaced.
    pub(crate) fn mark_saved(&mut self) {
        (self.saved, self.saved_rows) = (Instant::now(), self.rows);
    }

    /// Lowers the limit on a file's bytes.
    pub(crate) fn limit_bytes(&mut self, bytes: usize) {
        self.limits.file_bytes = self.limits.file_bytes.min(bytes);
    }

    /// Lowers the limit on a file's rows.
    pub(crate) fn limit_rows(&mut self, rows: usize) {
        self.limits.file_rows = self.limits.file_rows.min(rows);
    }

    /// Returns the limits, with the lowered limit on a file's bytes.
    pub(crate) fn limits(&self) -> BufferLimits {
        self.limits
    }
}

impl BufferLimits {
    /// Splits rows into row groups.
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
