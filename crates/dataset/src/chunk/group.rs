//! [`GroupWriter`]: writes the columns of a row group, one after another.

use std::slice;

use parquet::{
    basic::{Encoding, Type},
    column::writer::ColumnCloseResult,
    data_type::ByteArray,
    errors::ParquetError,
    file::statistics::Statistics,
    schema::types::ColumnDescPtr,
};

use super::{
    delta,
    hybrid::{self, bit_width},
    pages::{ChunkBuilder, PageCompressor},
};
use crate::{
    columns::Column,
    dictionary::{DictionaryIndex, StringDictionary},
};

/// Page size in bytes: a reader holds one page of each column of each row group that it merges.
const PAGE_BYTES: usize = 256 << 10;

/// Maximum size of a dictionary in bytes: a reader holds that of each column, too. Strings that
/// would need a larger one hardly repeat.
const DICTIONARY_BYTES_MAX: usize = 1 << 20;

/// Maximum length of a string in statistics, in bytes: longer ones are useless for finding rows.
const STATISTIC_BYTES_MAX: usize = 64;

/// Writes the columns of a row group, in the order of the schema.
pub(crate) struct GroupWriter<'a> {
    columns: slice::Iter<'a, Column>,
    leaves: slice::Iter<'a, ColumnDescPtr>,
    rows: usize,
    packer: &'a mut PageCompressor,
    chunks: EncodedGroup,
}

/// The column chunks of a row group: the bytes of each, and its metadata for the footer.
pub(crate) type EncodedGroup = Vec<(Vec<u8>, ColumnCloseResult)>;

/// The repetition and definition levels of a column, with their maximums.
struct Levels {
    repetition: Vec<u8>,
    /// Definition levels; an empty list stands for the maximum in every row.
    definition: Vec<u8>,
    repetition_max: u32,
    definition_max: u32,
}

/// A position at which a page starts or ends.
#[derive(Clone, Copy)]
struct PageBoundary {
    levels: usize,
    values: usize,
}

impl<'a> GroupWriter<'a> {
    /// Creates a writer for `rows` rows of these columns, which are leaves of the file's schema.
    pub(crate) fn new(
        columns: &'a [Column],
        leaves: &'a [ColumnDescPtr],
        rows: usize,
        packer: &'a mut PageCompressor,
    ) -> Self {
        let chunks = Vec::with_capacity(leaves.len());
        Self { columns: columns.iter(), leaves: leaves.iter(), rows, packer, chunks }
    }

    /// Returns the columns that were written.
    pub(crate) fn finish(self) -> EncodedGroup {
        self.chunks
    }

    /// Writes a column where every row is null.
    pub(crate) fn nulls(&mut self) -> Result<(), ParquetError> {
        let (_, leaf) = self.next()?;
        let mut body = Vec::new();
        for max in [leaf.max_rep_level(), leaf.max_def_level()] {
            write_level_run(&mut body, max as u32, 0, self.rows);
        }
        let mut pages = ChunkBuilder::new(self.packer, leaf.clone());
        pages.data(&body, self.rows, Encoding::PLAIN)?;
        let nulls = Some(self.rows as u64);
        // A reader skips the column because of them.
        let statistics = match leaf.physical_type() {
            Type::INT64 => Statistics::int64(None, None, None, nulls, false),
            Type::INT32 => Statistics::int32(None, None, None, nulls, false),
            _ => Statistics::byte_array(None, None, None, nulls, false),
        };
        let chunk = pages.finish(self.rows, Some(statistics))?;
        self.chunks.push(chunk);
        Ok(())
    }

    /// Writes a column of numbers or times without nulls.
    pub(crate) fn all_numbers(
        &mut self,
        numbers: impl Iterator<Item = i64>,
    ) -> Result<(), ParquetError> {
        self.write_numbers(&numbers.collect::<Vec<_>>(), Vec::new())
    }

    /// Writes a column of numbers.
    pub(crate) fn numbers(
        &mut self,
        values: impl Iterator<Item = Option<i64>> + Clone,
    ) -> Result<(), ParquetError> {
        let definition = values.clone().map(|value| value.is_some().into()).collect();
        self.write_numbers(&values.flatten().collect::<Vec<_>>(), definition)
    }

    fn write_numbers(&mut self, numbers: &[i64], definition: Vec<u8>) -> Result<(), ParquetError> {
        let (column, leaf) = self.next()?;
        let levels = Levels { definition, ..Levels::new(leaf) };
        let mut body = Vec::with_capacity(self.rows * 2);
        levels.encode(&mut body, PageBoundary::START, levels.end(numbers.len()));
        delta::encode(&mut body, numbers);
        let mut pages = ChunkBuilder::new(self.packer, leaf.clone());
        pages.data(&body, self.rows, Encoding::DELTA_BINARY_PACKED)?;
        let statistics = column.has_statistics().then(|| {
            let nulls = Some((self.rows - numbers.len()) as u64);
            let (min, max) = (numbers.iter().min().copied(), numbers.iter().max().copied());
            Statistics::int64(min, max, None, nulls, false)
        });
        let chunk = pages.finish(self.rows, statistics)?;
        self.chunks.push(chunk);
        Ok(())
    }

    /// Writes a column of strings.
    pub(crate) fn strings(
        &mut self,
        words: &StringDictionary,
        slots: impl Iterator<Item = DictionaryIndex>,
    ) -> Result<(), ParquetError> {
        let (column, leaf) = self.next()?;
        let mut levels = Levels::new(leaf);
        let mut slots: Vec<DictionaryIndex> = slots.collect();
        if slots.contains(&0) {
            levels.definition.extend(slots.iter().map(|slot| u8::from(*slot != 0)));
            slots.retain(|slot| *slot != 0);
        }
        self.write_strings(column, leaf, words, &levels, slots)
    }

    /// Writes a column of lists of strings.
    pub(crate) fn string_lists<'l>(
        &mut self,
        words: &StringDictionary,
        lists: impl Iterator<Item = Option<&'l [DictionaryIndex]>>,
    ) -> Result<(), ParquetError> {
        let (column, leaf) = self.next()?;
        let mut levels = Levels::new(leaf);
        let mut present = Vec::with_capacity(self.rows);
        for list in lists {
            // Levels: null list, empty list, null entry, string entry.
            levels.start_row(list.map(<[DictionaryIndex]>::len));
            for slot in list.into_iter().flatten() {
                levels.definition.push(if *slot == 0 { 2 } else { 3 });
                if *slot != 0 {
                    present.push(*slot);
                }
            }
        }
        self.write_strings(column, leaf, words, &levels, present)
    }

    /// Writes a column of lists of numbers.
    pub(crate) fn number_lists<'l>(
        &mut self,
        lists: impl Iterator<Item = Option<&'l [i32]>>,
    ) -> Result<(), ParquetError> {
        let (_, leaf) = self.next()?;
        let mut levels = Levels::new(leaf);
        let mut numbers = Vec::new();
        for list in lists {
            levels.start_row(list.map(<[i32]>::len));
            for number in list.into_iter().flatten() {
                levels.definition.push(2);
                numbers.extend_from_slice(&number.to_le_bytes());
            }
        }
        const BYTES: usize = size_of::<i32>();
        let mut pages = ChunkBuilder::new(self.packer, leaf.clone());
        let mut from = PageBoundary::START;
        for to in levels.page_boundaries(numbers.len() / BYTES, numbers.len(), |_| BYTES) {
            let mut body = Vec::new();
            levels.encode(&mut body, from, to);
            body.extend_from_slice(&numbers[from.values * BYTES..to.values * BYTES]);
            pages.data(&body, to.levels - from.levels, Encoding::PLAIN)?;
            from = to;
        }
        let chunk = pages.finish(self.rows, None)?;
        self.chunks.push(chunk);
        Ok(())
    }

    /// Writes strings with these dictionary indexes, and nulls where the levels have them.
    fn write_strings(
        &mut self,
        column: &Column,
        leaf: &ColumnDescPtr,
        words: &StringDictionary,
        levels: &Levels,
        mut slots: Vec<DictionaryIndex>,
    ) -> Result<(), ParquetError> {
        let (indices, distinct) = (&mut self.packer.indices, &mut self.packer.distinct);
        distinct.clear();
        if indices.len() <= words.len() {
            indices.resize(words.len() + 1, 0);
        }
        // The used dictionary entries in order of first use, and the position of each string in
        // them.
        let is_one = slots.first().is_some_and(|first| slots.iter().all(|slot| slot == first));
        for slot in if is_one { &slots[..1] } else { &slots[..] } {
            if let Some(index @ 0) = indices.get_mut(*slot as usize) {
                distinct.push(*slot);
                *index = distinct.len() as u32;
            }
        }
        let bytes_of = |slot: DictionaryIndex| size_of::<u32>() + words.get(slot).len();
        let dictionary_bytes: usize = distinct.iter().map(|slot| bytes_of(*slot)).sum();
        // A dictionary of strings that hardly repeat is larger than the strings themselves.
        let do_repeat = !distinct.is_empty() && distinct.len() * 4 <= slots.len() * 3;
        let is_unique = !distinct.iter().any(|slot| words.may_be_duplicate(*slot));
        let has_dictionary = do_repeat && is_unique && dictionary_bytes <= DICTIONARY_BYTES_MAX;
        if has_dictionary && is_one {
            slots.fill(0);
        } else if has_dictionary {
            for slot in &mut slots {
                *slot = indices.get(*slot as usize).map_or(0, |index| index - 1);
            }
        }
        for slot in &*distinct {
            indices[*slot as usize] = 0;
        }
        let statistics = column.has_statistics().then(|| {
            let is_short = |word: &[u8]| word.len() <= STATISTIC_BYTES_MAX;
            let all = || distinct.iter().map(|slot| words.get(*slot));
            let bound = |word: Option<&[u8]>| Some(ByteArray::from(word?.to_vec()));
            let (min, max) = if all().all(is_short) {
                (bound(all().min()), bound(all().max()))
            } else {
                (None, None)
            };
            let nulls = Some((self.rows - slots.len()) as u64);
            Statistics::byte_array(min, max, None, nulls, false)
        });
        let distinct = std::mem::take(distinct);
        let mut pages = ChunkBuilder::new(self.packer, leaf.clone());
        if has_dictionary {
            let mut body = Vec::with_capacity(dictionary_bytes);
            distinct.iter().for_each(|slot| write_string(&mut body, words.get(*slot)));
            pages.dictionary(&body, distinct.len())?;
        }
        let width = bit_width(distinct.len().saturating_sub(1) as u32);
        let cuts = if has_dictionary {
            let bytes = width.div_ceil(8) as usize;
            levels.page_boundaries(slots.len(), slots.len() * bytes, |_| bytes)
        } else {
            let bytes = slots.iter().map(|slot| bytes_of(*slot)).sum();
            levels.page_boundaries(slots.len(), bytes, |value| bytes_of(slots[value]))
        };
        let mut from = PageBoundary::START;
        for to in cuts {
            let mut body = Vec::new();
            levels.encode(&mut body, from, to);
            let values = &slots[from.values..to.values];
            let encoding = if has_dictionary {
                body.push(width as u8);
                if is_one {
                    hybrid::encode_run(&mut body, 0, values.len(), width);
                } else {
                    hybrid::encode(&mut body, values, width);
                }
                Encoding::RLE_DICTIONARY
            } else {
                values.iter().for_each(|slot| write_string(&mut body, words.get(*slot)));
                Encoding::PLAIN
            };
            pages.data(&body, to.levels - from.levels, encoding)?;
            from = to;
        }
        let chunk = pages.finish(self.rows, statistics)?;
        self.packer.distinct = distinct;
        self.chunks.push(chunk);
        Ok(())
    }

    fn next(&mut self) -> Result<(&'a Column, &'a ColumnDescPtr), ParquetError> {
        let next = self.columns.next().zip(self.leaves.next());
        next.ok_or_else(|| ParquetError::General("the row group has no more columns".to_owned()))
    }
}

impl PageBoundary {
    const START: Self = Self { levels: 0, values: 0 };
}

impl Levels {
    fn new(leaf: &ColumnDescPtr) -> Self {
        Self {
            repetition: Vec::new(),
            definition: Vec::new(),
            repetition_max: leaf.max_rep_level() as u32,
            definition_max: leaf.max_def_level() as u32,
        }
    }

    /// Starts a row whose list has this many entries; the caller adds the definition levels of the
    /// entries.
    #[inline]
    fn start_row(&mut self, entries: Option<usize>) {
        match entries {
            None => self.definition.push(0),
            Some(0) => self.definition.push(1),
            Some(_) => {}
        }
        self.repetition.push(0);
        for _ in 1..entries.unwrap_or(0) {
            self.repetition.push(1);
        }
    }

    /// Returns the end of a column with this many values.
    fn end(&self, values: usize) -> PageBoundary {
        PageBoundary { levels: self.definition.len().max(values), values }
    }

    /// Returns the ends of pages. A page ends before the start of a row, after about
    /// [`PAGE_BYTES`]. `all_bytes` is the size of all values together.
    fn page_boundaries(
        &self,
        values: usize,
        all_bytes: usize,
        bytes_of: impl Fn(usize) -> usize,
    ) -> Vec<PageBoundary> {
        let end = self.end(values);
        if all_bytes <= PAGE_BYTES {
            return vec![end];
        }
        let mut cuts = Vec::new();
        let (mut at, mut bytes) = (PageBoundary::START, 0);
        while at.levels < end.levels {
            let begins_row = self.repetition.get(at.levels).is_none_or(|level| *level == 0);
            if bytes >= PAGE_BYTES && begins_row {
                cuts.push(at);
                bytes = 0;
            }
            let definition = self.definition.get(at.levels);
            if definition.is_none_or(|level| u32::from(*level) == self.definition_max) {
                bytes += bytes_of(at.values);
                at.values += 1;
            }
            at.levels += 1;
        }
        cuts.push(end);
        cuts
    }

    /// Appends the levels of a page.
    fn encode(&self, out: &mut Vec<u8>, from: PageBoundary, to: PageBoundary) {
        if self.repetition_max > 0 {
            let levels = &self.repetition[from.levels..to.levels];
            write_levels(out, |out| hybrid::encode(out, levels, bit_width(self.repetition_max)));
        }
        if self.definition.is_empty() {
            write_level_run(out, self.definition_max, self.definition_max, to.levels - from.levels);
        } else {
            let levels = &self.definition[from.levels..to.levels];
            write_levels(out, |out| hybrid::encode(out, levels, bit_width(self.definition_max)));
        }
    }
}

/// Appends `count` equal levels, or nothing if `max` is 0: then the column has no such levels.
fn write_level_run(out: &mut Vec<u8>, max: u32, level: u32, count: usize) {
    if max > 0 {
        write_levels(out, |out| hybrid::encode_run(out, level, count, bit_width(max)));
    }
}

/// Appends levels, preceded by their length in bytes.
fn write_levels(out: &mut Vec<u8>, put: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.extend_from_slice(&[0; size_of::<u32>()]);
    put(out);
    let bytes = (out.len() - at - size_of::<u32>()) as u32;
    out[at..at + size_of::<u32>()].copy_from_slice(&bytes.to_le_bytes());
}

fn write_string(out: &mut Vec<u8>, word: &[u8]) {
    out.extend_from_slice(&(word.len() as u32).to_le_bytes());
    out.extend_from_slice(word);
}
