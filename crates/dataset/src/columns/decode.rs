//! Decodes arrays to rows.
//!
//! Files are opened with the schema that the columns declare, so every batch has a column with the
//! expected name and type. The values are checked here.

use arrow_array::{
    Array, ArrayRef, BinaryArray, DictionaryArray, Int64Array, ListArray, RecordBatch, StringArray,
    TimestampMicrosecondArray,
    cast::AsArray,
    types::{Int32Type, Int64Type, TimestampMicrosecondType},
};
use howdah_traffic::{Parameter, Text, Timestamp};

use crate::error::Corruption;

const DECLARED: &str = "the reader was given the schema that declares this column";

fn column<'a>(batch: &'a RecordBatch, name: &str) -> &'a ArrayRef {
    batch.column_by_name(name).expect(DECLARED)
}

/// Reads a column of times.
pub(crate) struct TimeReader<'a>(&'a TimestampMicrosecondArray);

impl<'a> TimeReader<'a> {
    pub(crate) fn new(batch: &'a RecordBatch, name: &'static str) -> Self {
        Self(column(batch, name).as_primitive::<TimestampMicrosecondType>())
    }

    pub(crate) fn at(&self, row: usize) -> Timestamp {
        Timestamp::from_micros(self.0.value(row))
    }
}

/// Reads a column of numbers.
pub(crate) struct Int64Reader<'a> {
    name: &'static str,
    values: &'a Int64Array,
}

impl<'a> Int64Reader<'a> {
    pub(crate) fn new(batch: &'a RecordBatch, name: &'static str) -> Self {
        Self { name, values: column(batch, name).as_primitive::<Int64Type>() }
    }

    /// Returns the column, or `None` if the file's version is older than the column.
    pub(crate) fn new_if_present(batch: &'a RecordBatch, name: &'static str) -> Option<Self> {
        Some(Self { name, values: batch.column_by_name(name)?.as_primitive::<Int64Type>() })
    }

    pub(crate) fn at(&self, row: usize) -> Option<i64> {
        self.values.is_valid(row).then(|| self.values.value(row))
    }

    /// Returns the value of a column that is never null.
    pub(crate) fn required(&self, row: usize) -> i64 {
        self.values.value(row)
    }

    /// Returns the value, or an error if it does not fit into a `u32`.
    pub(crate) fn small(&self, row: usize) -> Result<Option<u32>, Corruption> {
        let Some(value) = self.at(row) else { return Ok(None) };
        match u32::try_from(value) {
            Ok(count) => Ok(Some(count)),
            Err(_) => Err(Corruption::OutOfRange { column: self.name, value }),
        }
    }

    /// Returns the value, or an error if it is negative.
    pub(crate) fn unsigned(&self, row: usize) -> Result<Option<u64>, Corruption> {
        let Some(value) = self.at(row) else { return Ok(None) };
        match u64::try_from(value) {
            Ok(amount) => Ok(Some(amount)),
            Err(_) => Err(Corruption::OutOfRange { column: self.name, value }),
        }
    }
}

/// Reads a column of texts. Rows with the same text share one allocation, so `T` is a shared
/// pointer.
pub(crate) struct StringReader<'a, T> {
    name: &'static str,
    keys: &'a DictionaryArray<Int32Type>,
    values: &'a StringArray,
    shared: Vec<Option<T>>,
}

impl<'a, T: Clone + From<&'a str>> StringReader<'a, T> {
    pub(crate) fn new(batch: &'a RecordBatch, name: &'static str) -> Self {
        Self::of_array(column(batch, name), name)
    }

    /// Returns a reader, or `None` if the batch has no such column, because it is of an older
    /// version.
    pub(crate) fn new_if_present(batch: &'a RecordBatch, name: &'static str) -> Option<Self> {
        Some(Self::of_array(batch.column_by_name(name)?, name))
    }

    fn of_array(array: &'a ArrayRef, name: &'static str) -> Self {
        let keys = array.as_dictionary::<Int32Type>();
        let values = keys.values().as_string::<i32>();
        Self { name, keys, values, shared: vec![None; values.len()] }
    }

    pub(crate) fn at(&mut self, row: usize) -> Option<T> {
        let key = self.keys.key(row)?;
        Some(self.shared[key].get_or_insert_with(|| T::from(self.values.value(key))).clone())
    }

    /// Returns the text, borrowed from the batch.
    pub(crate) fn text(&self, row: usize) -> Option<&'a str> {
        Some(self.values.value(self.keys.key(row)?))
    }

    /// Parses the row's code; `None` if it is null.
    pub(crate) fn parse_code<W>(
        &self,
        row: usize,
        parse: impl Fn(&str) -> Option<W>,
    ) -> Result<Option<W>, Corruption> {
        let Some(word) = self.text(row) else { return Ok(None) };
        match parse(word) {
            Some(value) => Ok(Some(value)),
            None => Err(Corruption::UnknownCode { column: self.name, code: word.to_owned() }),
        }
    }

    /// Parses a code in a row that must have one.
    pub(crate) fn parse_required<W>(
        &self,
        row: usize,
        parse: impl Fn(&str) -> Option<W>,
    ) -> Result<W, Corruption> {
        self.parse_code(row, parse)?.ok_or_else(|| self.null())
    }

    /// Returns the error for a row that lacks a required value.
    pub(crate) fn null(&self) -> Corruption {
        Corruption::Null { column: self.name }
    }
}

/// Reads the two columns of a text.
pub(crate) struct TextPairReader<'a> {
    readable: StringReader<'a, Text>,
    exact: &'a BinaryArray,
}

impl<'a> TextPairReader<'a> {
    pub(crate) fn new(batch: &'a RecordBatch, name: &'static str, exact: &'static str) -> Self {
        Self { readable: StringReader::new(batch, name), exact: column(batch, exact).as_binary() }
    }

    pub(crate) fn at(&mut self, row: usize) -> Option<Text> {
        if self.exact.is_valid(row) {
            return Some(self.exact.value(row).into());
        }
        self.readable.at(row)
    }

    /// Returns the text, in a row whose kind requires one.
    pub(crate) fn required(&mut self, row: usize) -> Result<Text, Corruption> {
        self.at(row).ok_or_else(|| self.readable.null())
    }
}

/// Reads the three columns of a parameter list.
pub(crate) struct ParameterListReader<'a> {
    readable: &'a ListArray,
    exact: &'a ListArray,
    truncated: &'a ListArray,
}

impl<'a> ParameterListReader<'a> {
    pub(crate) fn new(batch: &'a RecordBatch, [readable, exact, truncated]: [&str; 3]) -> Self {
        let list = |name| column(batch, name).as_list::<i32>();
        Self { readable: list(readable), exact: list(exact), truncated: list(truncated) }
    }

    pub(crate) fn at(&self, row: usize) -> Result<Option<Vec<Parameter>>, Corruption> {
        if self.readable.is_null(row) {
            return Ok(None);
        }
        let texts = self.readable.values().as_string::<i32>();
        let offsets = self.readable.value_offsets();
        let mut parameters: Vec<Parameter> = (offsets[row]..offsets[row + 1])
            .map(|index| {
                let index = index as usize; // Arrow's offsets are not negative.
                let text = texts.is_valid(index).then(|| texts.value(index));
                text.map_or(Parameter::Null, |text| Parameter::Value(text.into()))
            })
            .collect();
        self.restore_bytes(row, &mut parameters)?;
        self.restore_truncated(row, &mut parameters)?;
        Ok(Some(parameters))
    }

    fn restore_bytes(&self, row: usize, parameters: &mut [Parameter]) -> Result<(), Corruption> {
        if self.exact.is_null(row) {
            return Ok(());
        }
        let exact = self.exact.value(row);
        let exact = exact.as_binary::<i32>();
        let (found, wanted) = (exact.len(), parameters.len());
        if found != wanted {
            return Err(Corruption::ListLength {
                column: "parameters_bytes",
                found,
                expected: wanted,
            });
        }
        for (parameter, bytes) in parameters.iter_mut().zip(exact) {
            if let Some(bytes) = bytes {
                *parameter = Parameter::Value(bytes.into());
            }
        }
        Ok(())
    }

    fn restore_truncated(
        &self,
        row: usize,
        parameters: &mut [Parameter],
    ) -> Result<(), Corruption> {
        if self.truncated.is_null(row) {
            return Ok(());
        }
        let numbers = self.truncated.value(row);
        for &number in numbers.as_primitive::<Int32Type>().values() {
            let index = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
            let parameter = index.and_then(|index| parameters.get_mut(index));
            let cut = match &parameter {
                Some(Parameter::Value(text)) => Some(Parameter::Truncated(text.clone())),
                _ => None,
            };
            let (Some(parameter), Some(cut)) = (parameter, cut) else {
                let (column, value) = ("parameters_truncated", i64::from(number));
                return Err(Corruption::OutOfRange { column, value });
            };
            *parameter = cut;
        }
        Ok(())
    }
}
