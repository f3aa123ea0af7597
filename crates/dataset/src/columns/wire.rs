//! What only the wire tells of an event, read from its columns.
//!
//! An event has it whole or not at all; that it has it, though nothing of it, is told by `rows_max`, which is
//! null only where there is none.

use arrow_array::{
    Array, ArrayRef, BinaryArray, ListArray, RecordBatch, cast::AsArray, types::Int32Type,
};
use howdah_traffic::{CopyIn, Text, Wire};

use super::Numbers;
use crate::error::Damage;

const DONE: &str = "done";
const FAILED: &str = "failed";

/// How a COPY ended.
pub(crate) fn copy_end_word(copy: &CopyIn) -> &'static str {
    if copy.failed { FAILED } else { DONE }
}

/// The columns of one batch.
pub(crate) struct WireColumns<'a> {
    rows: Numbers<'a>,
    rows_max: Numbers<'a>,
    types: &'a ListArray,
    formats: &'a ListArray,
    result_formats: &'a ListArray,
    settings: &'a ListArray,
    copy_bytes: Numbers<'a>,
    copy_data: &'a ListArray,
    copy_end: &'a ArrayRef,
    /// Of version 4, as are those behind it.
    arguments: Option<&'a ListArray>,
    messages: Option<&'a BinaryArray>,
}

impl<'a> WireColumns<'a> {
    /// The columns, unless the file is of a version before them.
    pub(crate) fn of(batch: &'a RecordBatch) -> Option<Self> {
        let list = |name| Some(batch.column_by_name(name)?.as_list::<i32>());
        Some(Self {
            rows: Numbers::of_added(batch, "rows")?,
            rows_max: Numbers::of_added(batch, "rows_max")?,
            types: list("types")?,
            formats: list("formats")?,
            result_formats: list("result_formats")?,
            settings: list("settings")?,
            copy_bytes: Numbers::of_added(batch, "copy_bytes")?,
            copy_data: list("copy_data")?,
            copy_end: batch.column_by_name("copy_end")?,
            arguments: list("arguments"),
            messages: batch.column_by_name("messages").map(AsArray::as_binary),
        })
    }

    pub(crate) fn at(&self, row: usize) -> Result<Option<Wire>, Damage> {
        let Some(rows_max) = self.rows_max.count(row)? else { return Ok(None) };
        Ok(Some(Wire {
            rows: self.rows.amount(row)?,
            rows_max,
            types: entries(self.types, row).map(i32::cast_unsigned).collect(),
            formats: codes(self.formats, "formats", row)?,
            result_formats: codes(self.result_formats, "result_formats", row)?,
            settings: self.settings(row)?,
            copy_in: self.copy_in(row)?,
            arguments: self
                .arguments
                .filter(|arguments| arguments.is_valid(row))
                .map(|arguments| texts(arguments, row).collect()),
            messages: self
                .messages
                .filter(|messages| messages.is_valid(row))
                .map(|messages| messages.value(row).into()),
        }))
    }

    fn settings(&self, row: usize) -> Result<Vec<(Text, Text)>, Damage> {
        let damage = || Damage::Null { column: "settings" };
        let words: Vec<_> = texts(self.settings, row).collect::<Option<_>>().ok_or_else(damage)?;
        if !words.len().is_multiple_of(2) {
            let (found, wanted) = (words.len(), words.len() + 1);
            return Err(Damage::Length { column: "settings", found, wanted });
        }
        Ok(words.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect())
    }

    fn copy_in(&self, row: usize) -> Result<Option<CopyIn>, Damage> {
        let Some(bytes) = self.copy_bytes.amount(row)? else { return Ok(None) };
        let end = self.copy_end.as_dictionary::<Int32Type>();
        let end = end.key(row).map(|key| end.values().as_string::<i32>().value(key));
        let failed = match end {
            Some(DONE) => false,
            Some(FAILED) => true,
            Some(word) => return Err(Damage::Word { column: "copy_end", word: word.to_owned() }),
            None => return Err(Damage::Null { column: "copy_end" }),
        };
        Ok(Some(CopyIn { bytes, data: texts(self.copy_data, row).collect(), failed }))
    }
}

fn entries(list: &ListArray, row: usize) -> impl Iterator<Item = i32> + use<> {
    let values = list.is_valid(row).then(|| list.value(row));
    let values = values.map(|values| values.as_primitive::<Int32Type>().values().to_vec());
    values.into_iter().flatten()
}

fn codes(list: &ListArray, column: &'static str, row: usize) -> Result<Vec<u16>, Damage> {
    let code = |number: i32| {
        u16::try_from(number).map_err(|_| Damage::Number { column, value: number.into() })
    };
    entries(list, row).map(code).collect()
}

fn texts(list: &ListArray, row: usize) -> impl Iterator<Item = Option<Text>> + use<> {
    let values = list.is_valid(row).then(|| list.value(row));
    let values = values.map(|values| {
        values.as_binary::<i32>().iter().map(|one| one.map(Text::from)).collect::<Vec<_>>()
    });
    values.into_iter().flatten()
}
