//! [`PageCompressor`] and [`ChunkBuilder`]: the compressed pages of one column chunk, with their
//! metadata.

use std::io;

use parquet::{
    basic::{Compression, Encoding, ZstdLevel},
    column::{
        page::{CompressedPage, Page, PageWriteSpec, PageWriter},
        writer::ColumnCloseResult,
    },
    errors::ParquetError,
    file::{
        metadata::ColumnChunkMetaData,
        statistics::Statistics,
        writer::{SerializedPageWriter, TrackedWrite},
    },
    schema::types::ColumnDescPtr,
};

use crate::dictionary::DictionaryIndex;

/// Compresses pages. Its buffers are reused for the next column chunk.
pub(crate) struct PageCompressor {
    zstd: zstd::bulk::Compressor<'static>,
    /// For each dictionary index, the position in the column chunk's own dictionary, from 1. All
    /// are 0 between two columns.
    pub(super) indices: Vec<u32>,
    /// Indexes of the strings of the column chunk, each once, in order of first use.
    pub(super) distinct: Vec<DictionaryIndex>,
}

impl PageCompressor {
    /// Creates a compressor with the same compression level as the files of other tables.
    pub(crate) fn new() -> Result<Self, ParquetError> {
        let level = ZstdLevel::default().compression_level();
        let zstd = zstd::bulk::Compressor::new(level).map_err(external)?;
        Ok(Self { zstd, indices: Vec::new(), distinct: Vec::new() })
    }

    fn compress(&mut self, body: &[u8]) -> Result<Vec<u8>, ParquetError> {
        self.zstd.compress(body).map_err(external)
    }
}

fn external(error: io::Error) -> ParquetError {
    ParquetError::External(Box::new(error))
}

fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// A column chunk under construction.
pub(super) struct ChunkBuilder<'a> {
    packer: &'a mut PageCompressor,
    column: ColumnDescPtr,
    sink: TrackedWrite<Vec<u8>>,
    encodings: Vec<Encoding>,
    values: usize,
    compressed_bytes: usize,
    bytes: usize,
    dictionary_at: Option<i64>,
    data_at: Option<i64>,
}

impl<'a> ChunkBuilder<'a> {
    pub(super) fn new(packer: &'a mut PageCompressor, column: ColumnDescPtr) -> Self {
        Self {
            packer,
            column,
            sink: TrackedWrite::new(Vec::new()),
            encodings: vec![Encoding::RLE],
            values: 0,
            compressed_bytes: 0,
            bytes: 0,
            dictionary_at: None,
            data_at: None,
        }
    }

    /// Adds the dictionary page, which must be the first: strings, each preceded by its length.
    pub(super) fn dictionary(&mut self, body: &[u8], words: usize) -> Result<(), ParquetError> {
        let page = Page::DictionaryPage {
            buf: self.packer.compress(body)?.into(),
            num_values: words as u32,
            encoding: Encoding::PLAIN,
            is_sorted: false,
        };
        self.encodings.push(Encoding::PLAIN);
        let spec = self.write(page, body.len())?;
        self.dictionary_at = Some(spec.offset.cast_signed());
        Ok(())
    }

    /// Adds a page of values and nulls, preceded by their levels.
    pub(super) fn data(
        &mut self,
        body: &[u8],
        values: usize,
        encoding: Encoding,
    ) -> Result<(), ParquetError> {
        let page = Page::DataPage {
            buf: self.packer.compress(body)?.into(),
            num_values: values as u32,
            encoding,
            def_level_encoding: Encoding::RLE,
            rep_level_encoding: Encoding::RLE,
            statistics: None,
        };
        if !self.encodings.contains(&encoding) {
            self.encodings.push(encoding);
        }
        self.values += values;
        let spec = self.write(page, body.len())?;
        self.data_at.get_or_insert(spec.offset.cast_signed());
        Ok(())
    }

    fn write(&mut self, page: Page, bytes: usize) -> Result<PageWriteSpec, ParquetError> {
        let page = CompressedPage::new(page, bytes);
        let spec = SerializedPageWriter::new(&mut self.sink).write_page(page)?;
        self.compressed_bytes += spec.compressed_size;
        self.bytes += spec.uncompressed_size;
        Ok(spec)
    }

    /// Returns the chunk's bytes and metadata.
    pub(super) fn finish(
        self,
        rows: usize,
        statistics: Option<Statistics>,
    ) -> Result<(Vec<u8>, ColumnCloseResult), ParquetError> {
        let mut metadata = ColumnChunkMetaData::builder(self.column)
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_encodings(self.encodings)
            .set_total_compressed_size(signed(self.compressed_bytes))
            .set_total_uncompressed_size(signed(self.bytes))
            .set_num_values(signed(self.values))
            .set_data_page_offset(self.data_at.unwrap_or(0))
            .set_dictionary_page_offset(self.dictionary_at);
        if let Some(statistics) = statistics {
            metadata = metadata.set_statistics(statistics);
        }
        let close = ColumnCloseResult {
            bytes_written: self.compressed_bytes as u64,
            rows_written: rows as u64,
            metadata: metadata.build()?,
            bloom_filter: None,
            column_index: None,
            offset_index: None,
        };
        Ok((self.sink.into_inner()?, close))
    }
}
