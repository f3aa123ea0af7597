//! A table of a dataset: rows of one type in numbered Parquet files.
//!
//! [`TableWriter`] puts rows into files, [`TableFile`] opens one, [`GroupRows`] streams one of its row
//! groups, [`TableRows`] all of several files. What the rows mean is the business of their [`Record`].

mod guard;
mod reader;
mod writer;

use arrow_array::{ArrayRef, RecordBatch};
use parquet::errors::ParquetError;

pub(crate) use reader::{GroupRows, TableFile, TableRows};
pub(crate) use writer::TableWriter;

use crate::{chunk::GroupWriter, columns::Column, error::Damage};

/// A type whose values are the rows of a table.
pub(crate) trait Record: Sized {
    /// First part of the file names.
    const STEM: &'static str;

    /// The columns, in the order of the file.
    const COLUMNS: &'static [Column];

    /// Columns by which the rows of a file are in order, so that the file can say so.
    const SORTED_BY: &'static [&'static str] = &[];

    /// The rows of a batch that has the columns of [`Self::COLUMNS`].
    fn decode(batch: &RecordBatch) -> Result<Vec<Self>, Damage>;
}

/// Rows that are held as they are until they are written.
pub(crate) trait Encode: Record {
    /// The rows as arrays, one per column of [`Record::COLUMNS`], in that order.
    fn encode(rows: &[Self]) -> Vec<ArrayRef>;

    /// Bytes of all texts of the row: what the limits on buffers and row groups count.
    fn text_bytes(&self) -> usize;
}

/// Rows that are held by column until they are written: for those that come by the million.
pub(crate) trait Columnar {
    /// Gives the columns of some rows, in the order of [`Record::COLUMNS`].
    fn encode(&self, rows: &[u32], to: &mut GroupWriter<'_>) -> Result<(), ParquetError>;
}

/// Keys of the files' own metadata.
const FORMAT_KEY: &str = "howdah.format";
const VERSION_KEY: &str = "howdah.version";

#[cfg(test)]
mod tests;
