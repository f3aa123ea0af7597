//! A table of a dataset: rows of one type in numbered Parquet files.
//!
//! [`TableWriter`] writes rows to files, [`TableFile`] opens one file, [`GroupRows`] streams a row
//! group of it, and [`TableRows`] streams all row groups of several files. Each row type defines
//! its columns with [`TableRecord`].

mod group_encoder;
mod guard;
mod reader;
mod writer;

use arrow_array::{ArrayRef, RecordBatch};
use parquet::errors::ParquetError;

pub(crate) use reader::{GroupRows, TableFile, TableRows};
pub(crate) use writer::TableWriter;

use crate::{chunk::GroupWriter, columns::Column, error::Corruption};

/// A type whose values are the rows of a table.
pub(crate) trait TableRecord: Sized {
    /// Prefix of the file names.
    const FILE_PREFIX: &'static str;

    /// The columns, in the order of the file.
    const COLUMNS: &'static [Column];

    /// Columns by which the rows of each row group are sorted, declared in the file.
    const SORTED_BY: &'static [&'static str] = &[];

    /// Decodes a batch. It has those of [`Self::COLUMNS`] that existed in the file's version.
    fn decode(batch: &RecordBatch) -> Result<Vec<Self>, Corruption>;
}

/// Rows that are buffered one by one until they are written.
pub(crate) trait Encode: TableRecord {
    /// Encodes the rows as arrays, one per column of [`TableRecord::COLUMNS`], in that order.
    fn encode(rows: &[Self]) -> Vec<ArrayRef>;

    /// Returns the bytes of all texts of the row, which the limits on buffers and row groups count.
    fn text_bytes(&self) -> usize;
}

/// Rows that are buffered by column until they are written, for high rates.
pub(crate) trait Columnar {
    /// Writes the columns of some rows, in the order of [`TableRecord::COLUMNS`].
    fn encode(&self, rows: &[u32], to: &mut GroupWriter<'_>) -> Result<(), ParquetError>;
}

/// Keys of the metadata in the files.
const FORMAT_KEY: &str = "howdah.format";
const VERSION_KEY: &str = "howdah.version";

#[cfg(test)]
mod tests;
