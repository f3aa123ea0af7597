//! Reads the rows of a table's files, one row group at a time.

use std::{
    io,
    marker::PhantomData,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
    vec,
};

use arrow_array::{Array as _, ArrayRef, RecordBatch, new_null_array};
use arrow_schema::{ArrowError, DataType, SchemaRef};
use parquet::{
    arrow::{
        ProjectionMask,
        arrow_reader::{
            ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader,
            ParquetRecordBatchReaderBuilder,
        },
    },
    errors::ParquetError,
    file::{
        metadata::{ColumnChunkMetaData, RowGroupMetaData},
        statistics::Statistics,
    },
};

use super::{
    FORMAT_KEY, TableRecord, VERSION_KEY, guard::catch_decoder_panics, writer::WRITTEN_BY,
};
use crate::{
    columns::decoded_schema,
    error::{Corruption, ReadError},
    kind::DatasetKind,
    storage::DataFile,
};

/// A file of a table, with its footer read and checked.
///
/// The file is not kept open: each row group opens it while it is read, so the number of open files
/// is that of the row groups being merged. Row groups of stores, whose size is limited, are read
/// into memory as they are stored.
#[derive(Clone, Debug)]
pub(crate) struct TableFile<R> {
    path: Arc<Path>,
    footer: ArrowReaderMetadata,
    size: u64,
    /// Whether row groups of local files are read into memory.
    in_memory: bool,
    rows: PhantomData<fn() -> R>,
}

impl<R: TableRecord> TableFile<R> {
    /// Reads and checks the footer of a file.
    pub(crate) fn open(path: &Path, kind: DatasetKind) -> Result<Self, ReadError> {
        let failed = |source| ReadError::from_io(path.to_owned(), source);
        let file = DataFile::open(path).map_err(failed)?;
        let size = file.size().map_err(failed)?;
        let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
        let plain =
            catch_decoder_panics(path, || ArrowReaderMetadata::load(&file, options.clone()))?;
        let version = check_version(path, &plain, kind)?;
        let options = options.with_schema(decoded_schema(R::COLUMNS, version));
        let footer = catch_decoder_panics(path, || {
            ArrowReaderMetadata::try_new(Arc::clone(plain.metadata()), options)
        })?;
        Ok(Self { path: path.into(), footer, size, in_memory: false, rows: PhantomData })
    }

    /// Reads row groups into memory, so that the file does not stay open.
    pub(crate) fn in_memory(self, in_memory: bool) -> Self {
        Self { in_memory, ..self }
    }

    /// Returns the size of the file in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Returns the number of row groups.
    pub(crate) fn groups(&self) -> usize {
        self.footer.metadata().num_row_groups()
    }

    /// Returns the smallest and largest number of a column in a row group, or the widest possible
    /// range if the file does not state it.
    pub(crate) fn range(&self, group: usize, column: &str) -> (i64, i64) {
        let group = self.footer.metadata().row_group(group);
        recorded_range(group, column).unwrap_or((i64::MIN, i64::MAX))
    }

    fn open_group(&self, group: usize) -> Result<DataFile, ReadError> {
        let failed = |source| ReadError::from_io(self.path.to_path_buf(), source);
        // A range may be negative if the footer is damaged.
        let (start, end) = catch_decoder_panics(&self.path, || {
            let chunks = self.footer.metadata().row_group(group).columns().iter();
            let ranges = chunks.map(ColumnChunkMetaData::byte_range);
            let start = ranges.clone().map(|(start, _)| start).min().unwrap_or(0);
            let end = ranges.map(|(start, length)| start.saturating_add(length)).max();
            Ok((start, end.unwrap_or(0)))
        })?;
        if end > self.size {
            return Err(failed(io::ErrorKind::UnexpectedEof.into()));
        }
        DataFile::open_range(&self.path, start..end, self.in_memory).map_err(failed)
    }

    /// Streams the rows of a row group.
    pub(crate) fn read(&self, group: usize) -> Result<GroupRows<R>, ReadError> {
        let rows = self.footer.metadata().row_group(group).num_rows();
        let file = self.open_group(group)?;
        let schema = self.footer.schema();
        let (reader, columns) = catch_decoder_panics(&self.path, || {
            let decoded = self.columns_with_values(group);
            let columns = FilledColumns::new(schema.clone(), &decoded);
            let roots = ProjectionMask::roots(self.footer.parquet_schema(), decoded);
            let reader =
                ParquetRecordBatchReaderBuilder::new_with_metadata(file, self.footer.clone())
                    .with_row_groups(vec![group])
                    .with_batch_size(BATCH_ROWS)
                    .with_projection(roots)
                    .build()?;
            Ok((reader, columns))
        })?;
        Ok(GroupRows {
            path: Arc::clone(&self.path),
            rows_left: usize::try_from(rows).unwrap_or(0),
            reader: Some(reader),
            columns,
            decoded: Vec::new().into_iter(),
        })
    }

    /// Returns the indexes of the columns that have values in a row group, as far as the footer
    /// tells. Most columns are empty, and decoding one takes as long as if it had values.
    pub(super) fn columns_with_values(&self, group: usize) -> Vec<usize> {
        let metadata = self.footer.metadata();
        let is_own = metadata
            .file_metadata()
            .created_by()
            .is_some_and(|writer| writer.starts_with(WRITTEN_BY));
        let group = metadata.row_group(group);
        let rows = u64::try_from(group.num_rows()).ok();
        let with_values = group.columns().iter().enumerate().filter_map(|(leaf, chunk)| {
            let index = self.footer.parquet_schema().get_column_root_idx(leaf);
            let field = self.footer.schema().field(index);
            // Other programs may count an empty list as null.
            let is_reliable = is_own || !matches!(field.data_type(), DataType::List(_));
            let nulls = chunk.statistics().and_then(Statistics::null_count_opt);
            let is_null = field.is_nullable() && is_reliable && nulls.is_some() && nulls == rows;
            (!is_null).then_some(index)
        });
        with_values.collect()
    }
}

/// The columns of a row group, of which those without values are not decoded.
struct FilledColumns {
    schema: SchemaRef,
    /// For each column, [`BATCH_ROWS`] nulls; `None` if the column is decoded.
    nulls: Vec<Option<ArrayRef>>,
}

impl FilledColumns {
    fn new(schema: SchemaRef, decoded: &[usize]) -> Self {
        let nulls = schema.fields().iter().enumerate().map(|(index, field)| {
            let is_decoded = decoded.contains(&index);
            (!is_decoded).then(|| new_null_array(field.data_type(), BATCH_ROWS))
        });
        Self { nulls: nulls.collect(), schema }
    }

    /// Returns the batch with all columns.
    fn fill(&self, decoded: &RecordBatch) -> Result<RecordBatch, ArrowError> {
        let mut decoded_columns = decoded.columns().iter();
        let columns = self.nulls.iter().filter_map(|nulls| match nulls {
            Some(nulls) => Some(nulls.slice(0, decoded.num_rows())),
            None => decoded_columns.next().cloned(),
        });
        RecordBatch::try_new(self.schema.clone(), columns.collect())
    }
}

/// Number of rows decoded at once: enough to amortize the decoder's set-up, few enough that many
/// row groups can be merged.
const BATCH_ROWS: usize = 1024;

/// Checks the format and version of a file, and returns the version.
fn check_version(
    path: &Path,
    footer: &ArrowReaderMetadata,
    kind: DatasetKind,
) -> Result<u32, ReadError> {
    let pairs = footer.metadata().file_metadata().key_value_metadata();
    let value = |key: &str| {
        pairs
            .into_iter()
            .flatten()
            .find(|pair| pair.key == key)
            .and_then(|pair| pair.value.as_deref())
    };
    let version = value(VERSION_KEY).and_then(|version| version.parse::<u32>().ok());
    match version {
        Some(found) if kind.supports(found) && value(FORMAT_KEY) == Some(kind.format()) => {
            Ok(found)
        }
        Some(found) if !kind.supports(found) => {
            Err(ReadError::Version { path: path.to_owned(), found, supported: kind.version() })
        }
        _ => Err(ReadError::Damaged { path: path.to_owned(), source: Corruption::NoVersion }),
    }
}

fn recorded_range(group: &RowGroupMetaData, column: &str) -> Option<(i64, i64)> {
    let chunk = group.columns().iter().find(|chunk| chunk.column_path().string() == column)?;
    match chunk.statistics()? {
        Statistics::Int64(range) => Some((*range.min_opt()?, *range.max_opt()?)),
        _ => None,
    }
}

/// The rows of one row group, decoded in batches.
pub(crate) struct GroupRows<R> {
    path: Arc<Path>,
    rows_left: usize,
    /// The decoder. Dropped as soon as the last batch is decoded, which closes the file.
    reader: Option<ParquetRecordBatchReader>,
    columns: FilledColumns,
    decoded: vec::IntoIter<R>,
}

impl<R: TableRecord> GroupRows<R> {
    fn decode_batch(&mut self) -> Option<Result<(), ReadError>> {
        let reader = self.reader.as_mut()?;
        let batch = match catch_decoder_panics(&self.path, || {
            let batch = reader.next().transpose()?;
            Ok(batch.map(|batch| self.columns.fill(&batch)).transpose()?)
        }) {
            Ok(Some(batch)) => batch,
            Ok(None) => {
                self.reader = None;
                // The footer declares more rows than the pages contain.
                let cut = || Corruption::Parquet(ParquetError::EOF("rows are missing".to_owned()));
                return (self.rows_left > 0)
                    .then(|| Err(ReadError::Damaged { path: self.path(), source: cut() }));
            }
            Err(error) => return Some(Err(error)),
        };
        self.rows_left = self.rows_left.saturating_sub(batch.num_rows());
        if self.rows_left == 0 {
            self.reader = None;
        }
        match R::decode(&batch) {
            Ok(rows) => {
                self.decoded = rows.into_iter();
                Some(Ok(()))
            }
            Err(source) => Some(Err(ReadError::Damaged { path: self.path(), source })),
        }
    }

    fn path(&self) -> PathBuf {
        self.path.to_path_buf()
    }
}

impl<R: TableRecord> Iterator for GroupRows<R> {
    type Item = Result<R, ReadError>;

    /// Returns the next row. The iterator ends after an error.
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(row) = self.decoded.next() {
                return Some(Ok(row));
            }
            if let Err(error) = self.decode_batch()? {
                self.reader = None;
                return Some(Err(error));
            }
        }
    }
}

/// The rows of several files of a table, in the order of the files.
pub(crate) struct TableRows<R> {
    kind: DatasetKind,
    paths: vec::IntoIter<PathBuf>,
    file: Option<(TableFile<R>, Range<usize>)>,
    rows: Option<GroupRows<R>>,
}

impl<R: TableRecord> TableRows<R> {
    pub(crate) fn new(kind: DatasetKind, paths: Vec<PathBuf>) -> Self {
        Self { kind, paths: paths.into_iter(), file: None, rows: None }
    }

    /// Opens the next row group.
    fn next_group(&mut self) -> Option<Result<GroupRows<R>, ReadError>> {
        loop {
            if let Some((file, groups)) = &mut self.file
                && let Some(group) = groups.next()
            {
                return Some(file.read(group));
            }
            match TableFile::open(&self.paths.next()?, self.kind) {
                Ok(file) => {
                    let groups = 0..file.groups();
                    self.file = Some((file, groups));
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }

    fn stop(&mut self) {
        (self.paths, self.file, self.rows) = (Vec::new().into_iter(), None, None);
    }
}

impl<R: TableRecord> Iterator for TableRows<R> {
    type Item = Result<R, ReadError>;

    /// Returns the next row. The iterator ends after an error.
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(row) = self.rows.as_mut().and_then(Iterator::next) {
                if row.is_err() {
                    self.stop();
                }
                return Some(row);
            }
            match self.next_group()? {
                Ok(rows) => self.rows = Some(rows),
                Err(error) => {
                    self.stop();
                    return Some(Err(error));
                }
            }
        }
    }
}
