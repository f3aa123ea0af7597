//! [`GroupEncoder`]: encodes row groups, several at a time.

use std::{iter, num::NonZero, panic::resume_unwind, thread};

use parquet::{errors::ParquetError, schema::types::ColumnDescPtr};

use super::Columnar;
use crate::{
    chunk::{EncodedGroup, GroupWriter, PageCompressor},
    columns::Column,
};

/// Encodes the row groups of a file.
pub(super) struct GroupEncoder<'a, C> {
    rows: &'a C,
    columns: &'a [Column],
    leaves: &'a [ColumnDescPtr],
    /// One for each thread.
    compressors: Vec<PageCompressor>,
}

impl<'a, C: Columnar + Sync> GroupEncoder<'a, C> {
    /// Creates an encoder for rows with these columns, which are leaves of the file's schema.
    pub(super) fn new(
        rows: &'a C,
        columns: &'a [Column],
        leaves: &'a [ColumnDescPtr],
        threads: NonZero<usize>,
    ) -> Result<Self, ParquetError> {
        let compressors = (0..threads.get()).map(|_| PageCompressor::new());
        Ok(Self { rows, columns, leaves, compressors: compressors.collect::<Result<_, _>>()? })
    }

    /// Encodes row groups, as many at a time as there are threads, and passes them to `append` in
    /// order.
    pub(super) fn encode<'g>(
        &mut self,
        groups: impl Iterator<Item = &'g [u32]>,
        mut append: impl FnMut(EncodedGroup) -> Result<(), ParquetError>,
    ) -> Result<(), ParquetError> {
        let groups: Vec<&[u32]> = groups.collect();
        for wave in groups.chunks(self.compressors.len()) {
            self.encode_wave(wave)?.into_iter().try_for_each(&mut append)?;
        }
        Ok(())
    }

    /// Encodes at most one row group for each thread.
    fn encode_wave(&mut self, groups: &[&[u32]]) -> Result<Vec<EncodedGroup>, ParquetError> {
        let (rows, columns, leaves) = (self.rows, self.columns, self.leaves);
        let mut work = groups.iter().copied().zip(&mut self.compressors);
        let Some((first, compressor)) = work.next() else { return Ok(Vec::new()) };
        thread::scope(|scope| {
            let started: Vec<_> = work
                .map(|(group, compressor)| {
                    let encode = move || encode_group(rows, group, columns, leaves, compressor);
                    let thread = thread::Builder::new().name("encoder".to_owned());
                    (group, thread.spawn_scoped(scope, encode))
                })
                .collect();
            let mut encode = |group| encode_group(rows, group, columns, leaves, compressor);
            let first = encode(first);
            let others = started.into_iter().map(|(group, thread)| match thread {
                Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
                // The system has no more threads.
                Err(_) => encode(group),
            });
            iter::once(first).chain(others).collect()
        })
    }
}

fn encode_group(
    rows: &impl Columnar,
    group: &[u32],
    columns: &[Column],
    leaves: &[ColumnDescPtr],
    compressor: &mut PageCompressor,
) -> Result<EncodedGroup, ParquetError> {
    let mut writer = GroupWriter::new(columns, leaves, group.len(), compressor);
    rows.encode(group, &mut writer)?;
    Ok(writer.finish())
}
