//! The columns for details that only captures from the wire protocol have.
//!
//! `rows_max` is null if and only if an event has no such details. With them, other columns may
//! still be null.

use arrow_array::{
    Array, ArrayRef, BinaryArray, ListArray, RecordBatch, cast::AsArray, types::Int32Type,
};
use howdah_traffic::{CapturedResult, CopyInData, Text, WireDetail};

use super::Int64Reader;
use crate::error::Corruption;

const DONE: &str = "done";
const FAILED: &str = "failed";

/// Returns the code for the end of a COPY.
pub(crate) fn copy_end_code(copy: &CopyInData) -> &'static str {
    if copy.failed { FAILED } else { DONE }
}

/// The columns of one batch.
pub(crate) struct WireColumns<'a> {
    rows: Int64Reader<'a>,
    rows_max: Int64Reader<'a>,
    types: &'a ListArray,
    formats: &'a ListArray,
    result_formats: &'a ListArray,
    settings: &'a ListArray,
    copy_bytes: Int64Reader<'a>,
    copy_data: &'a ListArray,
    copy_end: &'a ArrayRef,
    /// Added in version 4, like `messages`.
    arguments: Option<&'a ListArray>,
    messages: Option<&'a BinaryArray>,
    /// Added in version 5, like `first_row`.
    result_checksum: Option<Int64Reader<'a>>,
    first_row: Option<&'a ListArray>,
}

impl<'a> WireColumns<'a> {
    /// Returns the columns, or `None` if the file's version does not have them.
    pub(crate) fn new(batch: &'a RecordBatch) -> Option<Self> {
        let list = |name| Some(batch.column_by_name(name)?.as_list::<i32>());
        Some(Self {
            rows: Int64Reader::new_if_present(batch, "rows")?,
            rows_max: Int64Reader::new_if_present(batch, "rows_max")?,
            types: list("types")?,
            formats: list("formats")?,
            result_formats: list("result_formats")?,
            settings: list("settings")?,
            copy_bytes: Int64Reader::new_if_present(batch, "copy_bytes")?,
            copy_data: list("copy_data")?,
            copy_end: batch.column_by_name("copy_end")?,
            arguments: list("arguments"),
            messages: batch.column_by_name("messages").map(AsArray::as_binary),
            result_checksum: Int64Reader::new_if_present(batch, "result_checksum"),
            first_row: list("first_row"),
        })
    }

    pub(crate) fn at(&self, row: usize) -> Result<Option<WireDetail>, Corruption> {
        let Some(rows_max) = self.rows_max.small(row)? else { return Ok(None) };
        Ok(Some(WireDetail {
            rows: self.rows.unsigned(row)?,
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
            result: self.result(row),
        }))
    }

    fn result(&self, row: usize) -> Option<CapturedResult> {
        let checksum = self.result_checksum.as_ref()?.at(row)?.cast_unsigned();
        let first_row = self.first_row.filter(|first_row| first_row.is_valid(row));
        let first_row = first_row.map(|first_row| texts(first_row, row).collect());
        Some(CapturedResult { checksum, first_row })
    }

    fn settings(&self, row: usize) -> Result<Vec<(Text, Text)>, Corruption> {
        let damage = || Corruption::Null { column: "settings" };
        let texts_of_row: Vec<_> =
            texts(self.settings, row).collect::<Option<_>>().ok_or_else(damage)?;
        if !texts_of_row.len().is_multiple_of(2) {
            let (found, wanted) = (texts_of_row.len(), texts_of_row.len() + 1);
            return Err(Corruption::ListLength { column: "settings", found, expected: wanted });
        }
        Ok(texts_of_row.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect())
    }

    fn copy_in(&self, row: usize) -> Result<Option<CopyInData>, Corruption> {
        let Some(bytes) = self.copy_bytes.unsigned(row)? else { return Ok(None) };
        let end = self.copy_end.as_dictionary::<Int32Type>();
        let end = end.key(row).map(|key| end.values().as_string::<i32>().value(key));
        let failed = match end {
            Some(DONE) => false,
            Some(FAILED) => true,
            Some(code) => {
                return Err(Corruption::UnknownCode { column: "copy_end", code: code.to_owned() });
            }
            None => return Err(Corruption::Null { column: "copy_end" }),
        };
        Ok(Some(CopyInData { bytes, data: texts(self.copy_data, row).collect(), failed }))
    }
}

fn entries(list: &ListArray, row: usize) -> impl Iterator<Item = i32> + use<> {
    let values = list.is_valid(row).then(|| list.value(row));
    let values = values.map(|values| values.as_primitive::<Int32Type>().values().to_vec());
    values.into_iter().flatten()
}

fn codes(list: &ListArray, column: &'static str, row: usize) -> Result<Vec<u16>, Corruption> {
    let code = |number: i32| {
        u16::try_from(number).map_err(|_| Corruption::OutOfRange { column, value: number.into() })
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
