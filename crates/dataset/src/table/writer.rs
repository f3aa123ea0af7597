//! Writes rows to the numbered files of a table.

use std::{
    io::{self, Write},
    marker::PhantomData,
    num::NonZero,
    sync::Arc,
};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use bytes::Bytes;
use parquet::{
    arrow::{ArrowSchemaConverter, ArrowWriter, arrow_writer::ArrowWriterOptions},
    basic::{Compression, Encoding, ZstdLevel},
    errors::ParquetError,
    file::{
        metadata::{KeyValue, SortingColumn},
        properties::{EnabledStatistics, WriterProperties},
        writer::SerializedFileWriter,
    },
    schema::types::ColumnPath,
};

use super::{Columnar, Encode, FORMAT_KEY, TableRecord, VERSION_KEY, group_encoder::GroupEncoder};
use crate::{
    columns::{StoredType, stored_schema},
    error::WriteError,
    folder::Folder,
    kind::DatasetKind,
    manifest::HOWDAH_VERSION,
};

/// Writes the files of one table, one after another.
#[derive(Debug)]
pub(crate) struct TableWriter<R> {
    schema: SchemaRef,
    properties: WriterProperties,
    files: u32,
    /// Number of threads that encode rows buffered by column.
    threads: NonZero<usize>,
    rows: PhantomData<fn(R)>,
}

impl<R: TableRecord> TableWriter<R> {
    pub(crate) fn new(kind: DatasetKind) -> Self {
        Self {
            schema: stored_schema(R::COLUMNS),
            properties: properties::<R>(kind),
            files: 0,
            threads: NonZero::<usize>::MIN,
            rows: PhantomData,
        }
    }

    /// Sets the number of threads that encode rows buffered by column.
    pub(crate) fn set_threads(&mut self, threads: NonZero<usize>) {
        self.threads = threads;
    }

    /// Returns the number of finished files.
    pub(crate) fn files(&self) -> u32 {
        self.files
    }

    /// Writes one more file with `groups` as its row groups. After an error, the same rows can be
    /// written again. `files_kept` is only used in errors.
    pub(crate) fn write<'a>(
        &mut self,
        folder: &Folder,
        groups: impl Iterator<Item = &'a [R]>,
        files_kept: u32,
    ) -> Result<(), WriteError>
    where
        R: Encode + 'a,
    {
        self.write_unfinished(folder, groups, files_kept)?;
        self.finish_file();
        Ok(())
    }

    /// Writes the next file, but leaves it unfinished: the next write replaces it.
    pub(crate) fn write_unfinished<'a>(
        &self,
        folder: &Folder,
        groups: impl Iterator<Item = &'a [R]>,
        files_kept: u32,
    ) -> Result<(), WriteError>
    where
        R: Encode + 'a,
    {
        self.publish(folder, files_kept, |file| self.encode(file, groups))
    }

    /// Like [`Self::write_unfinished`], for rows buffered by column; groups consist of row numbers.
    pub(crate) fn write_columns<'a>(
        &self,
        folder: &Folder,
        rows: &(impl Columnar + Sync),
        groups: impl Iterator<Item = &'a [u32]>,
        files_kept: u32,
    ) -> Result<(), WriteError> {
        self.publish(folder, files_kept, |file| self.encode_columns(file, rows, groups))
    }

    /// Marks the last written file as finished.
    pub(crate) fn finish_file(&mut self) {
        self.files += 1;
    }

    fn publish(
        &self,
        folder: &Folder,
        files_kept: u32,
        encode: impl FnOnce(&mut (dyn Write + Send)) -> Result<(), EncodeFailure>,
    ) -> Result<(), WriteError> {
        let path = folder.file_path(R::FILE_PREFIX, self.files + 1);
        folder.publish(&path, files_kept, |file| {
            encode(file).map_err(|failure| match failure {
                EncodeFailure::Io(source) => WriteError::from_io(path.clone(), files_kept, source),
                EncodeFailure::Encode(source) => WriteError::Encode { path: path.clone(), source },
            })
        })
    }

    fn encode<'a>(
        &self,
        file: &mut (dyn Write + Send),
        mut groups: impl Iterator<Item = &'a [R]>,
    ) -> Result<(), EncodeFailure>
    where
        R: Encode + 'a,
    {
        let options = ArrowWriterOptions::new()
            .with_properties(self.properties.clone())
            // The Parquet types suffice; an Arrow schema could contradict them.
            .with_skip_arrow_metadata(true);
        let (sink, schema) = (ErrorTrackingFile { file, failure: None }, Arc::clone(&self.schema));
        let mut writer = ArrowWriter::try_new_with_options(sink, schema, options)
            .map_err(EncodeFailure::Encode)?;
        let result = groups
            .try_for_each(|group| {
                for rows in group.chunks(BATCH_ROWS) {
                    let batch = RecordBatch::try_new(Arc::clone(&self.schema), R::encode(rows))?;
                    writer.write(&batch)?;
                }
                writer.flush()
            })
            .and_then(|()| writer.finish());
        EncodeFailure::from_result(result, writer.inner_mut().failure.take())
    }

    fn encode_columns<'a>(
        &self,
        file: &mut (dyn Write + Send),
        rows: &(impl Columnar + Sync),
        groups: impl Iterator<Item = &'a [u32]>,
    ) -> Result<(), EncodeFailure> {
        let sink = ErrorTrackingFile { file, failure: None };
        let properties = Arc::new(self.properties.clone());
        let schema =
            ArrowSchemaConverter::new().convert(&self.schema).map_err(EncodeFailure::Encode)?;
        let mut writer = SerializedFileWriter::new(sink, schema.root_schema_ptr(), properties)
            .map_err(EncodeFailure::Encode)?;
        let encoder = GroupEncoder::new(rows, R::COLUMNS, schema.columns(), self.threads);
        let result = encoder.and_then(|mut encoder| {
            encoder.encode(groups, |group| {
                let mut to = writer.next_row_group()?;
                for (bytes, close) in group {
                    to.append_column(&Bytes::from(bytes), close)?;
                }
                to.close().map(drop)
            })
        });
        let result = result.and_then(|()| writer.finish());
        EncodeFailure::from_result(result, writer.inner_mut().failure.take())
    }
}

/// The reason why a file could not be encoded.
enum EncodeFailure {
    Io(io::Error),
    Encode(ParquetError),
}

impl EncodeFailure {
    fn from_result<T>(
        result: Result<T, ParquetError>,
        file_error: Option<io::Error>,
    ) -> Result<(), Self> {
        match (result, file_error) {
            (Ok(_), _) => Ok(()),
            (Err(_), Some(source)) => Err(Self::Io(source)),
            (Err(source), None) => Err(Self::Encode(source)),
        }
    }
}

/// A file that stores the system's error for a failed write, because the encoder's errors do not
/// always include it.
struct ErrorTrackingFile<'a> {
    file: &'a mut (dyn Write + Send),
    failure: Option<io::Error>,
}

impl Write for ErrorTrackingFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes).inspect_err(|error| {
            self.failure = error.raw_os_error().map(io::Error::from_raw_os_error);
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Returns the settings for encoding columns.
///
/// zstd at level 1 takes less time than writing the bytes that it saves. A dictionary helps texts,
/// which repeat, but not numbers, which are close to their neighbors. `events_between` and other
/// readers select row groups by their statistics; pages are too small to be selected. Statements
/// and values have no statistics: readers never select rows by them, and computing the statistics
/// would compare each value twice.
fn properties<R: TableRecord>(kind: DatasetKind) -> WriterProperties {
    let pair = |key: &str, value: String| KeyValue::new(key.to_owned(), value);
    let sorted_by = R::SORTED_BY.iter().filter_map(|name| {
        let index = R::COLUMNS.iter().position(|column| column.name == *name)?;
        let column_idx = i32::try_from(index).ok()?;
        Some(SortingColumn { column_idx, descending: false, nulls_first: false })
    });
    let mut properties = WriterProperties::builder()
        .set_created_by(format!("{WRITTEN_BY}{HOWDAH_VERSION}"))
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_max_row_group_row_count(None)
        .set_data_page_size_limit(PAGE_BYTES)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_offset_index_disabled(true)
        .set_key_value_metadata(Some(vec![
            pair(FORMAT_KEY, kind.format().to_owned()),
            pair(VERSION_KEY, kind.version().to_string()),
        ]))
        .set_sorting_columns((!R::SORTED_BY.is_empty()).then(|| sorted_by.collect()));
    for column in R::COLUMNS {
        let path = || ColumnPath::from(column.name);
        if matches!(column.column_type, StoredType::Int64 | StoredType::Time) {
            properties = properties
                .set_column_dictionary_enabled(path(), false)
                .set_column_encoding(path(), Encoding::DELTA_BINARY_PACKED);
        }
        if !column.has_statistics() {
            let none = EnabledStatistics::None;
            properties = properties.set_column_statistics_enabled(column.path(), none);
        }
    }
    properties.build()
}

/// The start of the name of the program that a file says it was written by.
pub(super) const WRITTEN_BY: &str = "howdah ";

/// Number of rows encoded at once. Each column visits all of these rows, so they should fit into
/// the processor's caches.
const BATCH_ROWS: usize = 1024;

/// Page size in bytes: a reader holds one page of each column of each row group that it merges.
const PAGE_BYTES: usize = 256 << 10;
