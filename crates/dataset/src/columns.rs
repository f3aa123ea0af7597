//! Columns of Arrow arrays, made from rows and read back.
//!
//! PostgreSQL's texts are bytes in the database's encoding, while a Parquet reader wants UTF-8. So a
//! [`Text`] takes two columns: `X` holds it readable, and `X_bytes` holds the exact bytes in the
//! rare case that they are not valid UTF-8, and is null otherwise.

use std::sync::Arc;

use arrow::{
    array::{
        Array, ArrayRef, AsArray, BinaryArray, BinaryBuilder, DictionaryArray, Int32Builder,
        Int64Array, ListArray, ListBuilder, RecordBatch, StringArray, StringBuilder,
        TimestampMicrosecondArray,
    },
    datatypes::{
        DataType, Field, Fields, Int32Type, Int64Type, Schema, SchemaRef, TimeUnit,
        TimestampMicrosecondType,
    },
};
use howdah_traffic::{Parameter, Text, Timestamp};

use crate::error::Damage;

/// One column of a table: the row of the format's own description.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    pub(crate) name: &'static str,
    pub(crate) shape: Shape,
    pub(crate) nullable: bool,
}

/// What a column's values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// A number; near its neighbours, so stored as differences.
    Int64,
    /// Microseconds since the Unix epoch, UTC.
    Time,
    /// UTF-8 text.
    Text,
    /// Any bytes.
    Bytes,
    /// UTF-8 texts.
    TextList,
    /// Any bytes, several times.
    BytesList,
    /// Small numbers.
    Int32List,
}

impl Column {
    /// A column that always has a value.
    pub(crate) const fn required(name: &'static str, shape: Shape) -> Self {
        Self { name, shape, nullable: false }
    }

    /// A column that may be null.
    pub(crate) const fn optional(name: &'static str, shape: Shape) -> Self {
        Self { name, shape, nullable: true }
    }
}

impl Shape {
    /// The type in a file.
    fn stored(self) -> DataType {
        let list_of = |shape: Self| DataType::List(Arc::new(list_entry(shape)));
        match self {
            Self::Int64 => DataType::Int64,
            Self::Time => DataType::Timestamp(TimeUnit::Microsecond, Some(UTC.into())),
            Self::Text => DataType::Utf8,
            Self::Bytes => DataType::Binary,
            Self::TextList => list_of(Self::Text),
            Self::BytesList => list_of(Self::Bytes),
            Self::Int32List => DataType::List(Arc::new(Field::new(ENTRY, DataType::Int32, false))),
        }
    }

    /// The type when read back: texts repeat, and a repeated text is then decoded once.
    fn decoded(self) -> DataType {
        match self {
            Self::Text => DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)),
            other => other.stored(),
        }
    }
}

/// The schema that files are written with.
pub(crate) fn stored_schema(columns: &[Column]) -> SchemaRef {
    schema(columns, Shape::stored)
}

/// The schema that files are read with.
pub(crate) fn decoded_schema(columns: &[Column]) -> SchemaRef {
    schema(columns, Shape::decoded)
}

fn schema(columns: &[Column], data_type: impl Fn(Shape) -> DataType) -> SchemaRef {
    let field = |column: &Column| Field::new(column.name, data_type(column.shape), column.nullable);
    Arc::new(Schema::new(columns.iter().map(field).collect::<Fields>()))
}

fn list_entry(shape: Shape) -> Field {
    Field::new(ENTRY, shape.stored(), true)
}

/// Name of a list's entries, by the Parquet format's rules for lists.
const ENTRY: &str = "element";
const UTC: &str = "UTC";

// Rows to arrays. Each function walks the rows once for one column (or for the columns of one
// value), which keeps the builders' branches predictable and the code a list.

/// A column of times.
pub(crate) fn times(values: impl Iterator<Item = Timestamp>) -> ArrayRef {
    let micros = TimestampMicrosecondArray::from_iter_values(values.map(Timestamp::as_micros));
    Arc::new(micros.with_timezone(UTC))
}

/// A column of numbers.
pub(crate) fn numbers(values: impl Iterator<Item = Option<i64>>) -> ArrayRef {
    Arc::new(values.collect::<Int64Array>())
}

/// A column of counts or microseconds. A value beyond `i64` is stored as the largest one: signed
/// numbers are what the tools that read these files subtract without surprises, and 292 thousand
/// years are enough.
pub(crate) fn amounts(values: impl Iterator<Item = Option<u64>>) -> ArrayRef {
    numbers(values.map(|value| value.map(|value| i64::try_from(value).unwrap_or(i64::MAX))))
}

/// A column of UTF-8 texts.
pub(crate) fn strings<'a>(values: impl Iterator<Item = Option<&'a str>>) -> ArrayRef {
    Arc::new(values.collect::<StringArray>())
}

/// The empty text stands for "not known" in an event's session facts; a file says null.
pub(crate) fn known(text: &Arc<str>) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

/// A text's two columns: readable, and exact where that differs.
pub(crate) fn texts<'a>(values: impl Iterator<Item = Option<&'a Text>>) -> [ArrayRef; 2] {
    let (mut readable, mut exact) = (StringBuilder::new(), BinaryBuilder::new());
    for value in values {
        match value.map(|text| (text, text.to_str())) {
            None => {
                readable.append_null();
                exact.append_null();
            }
            Some((_, Some(utf8))) => {
                readable.append_value(utf8);
                exact.append_null();
            }
            Some((text, None)) => {
                readable.append_value(text.to_str_lossy());
                exact.append_value(text.as_bytes());
            }
        }
    }
    [Arc::new(readable.finish()), Arc::new(exact.finish())]
}

/// A parameter list's three columns: readable values, exact values where any differs, and the
/// numbers (from 1, as in `$1`) of those that the server cut.
pub(crate) fn parameters<'a>(rows: impl Iterator<Item = Option<&'a [Parameter]>>) -> [ArrayRef; 3] {
    let mut readable = ListBuilder::new(StringBuilder::new()).with_field(list_entry(Shape::Text));
    let mut exact = ListBuilder::new(BinaryBuilder::new()).with_field(list_entry(Shape::Bytes));
    let mut truncated =
        ListBuilder::new(Int32Builder::new()).with_field(Field::new(ENTRY, DataType::Int32, false));
    for row in rows {
        let values = row.unwrap_or_default();
        for value in values {
            readable.values().append_option(parameter_text(value).map(Text::to_str_lossy));
        }
        readable.append(row.is_some());

        let any_inexact = values.iter().any(|value| inexact_bytes(value).is_some());
        if any_inexact {
            exact.values().extend(values.iter().map(inexact_bytes));
        }
        exact.append(any_inexact);

        let mut any_truncated = false;
        for (number, value) in (1..).zip(values) {
            if matches!(value, Parameter::Truncated(_)) {
                truncated.values().append_value(number);
                any_truncated = true;
            }
        }
        truncated.append(any_truncated);
    }
    [Arc::new(readable.finish()), Arc::new(exact.finish()), Arc::new(truncated.finish())]
}

fn parameter_text(parameter: &Parameter) -> Option<&Text> {
    match parameter {
        Parameter::Null => None,
        Parameter::Value(text) | Parameter::Truncated(text) => Some(text),
    }
}

/// The bytes of a value that is not valid UTF-8.
fn inexact_bytes(parameter: &Parameter) -> Option<&[u8]> {
    parameter_text(parameter).filter(|text| text.to_str().is_none()).map(Text::as_bytes)
}

/// Bytes of all values.
pub(crate) fn parameter_bytes(parameters: Option<&Vec<Parameter>>) -> usize {
    // Each value also costs its place in the lists, which matters when there are thousands of NULLs.
    const PLACE: usize = 8;
    parameters.map_or(0, |values| {
        values.iter().map(|value| parameter_text(value).map_or(0, Text::len) + PLACE).sum()
    })
}

// Arrays to rows. The file was opened with the schema that the columns declare, so a column of that
// name and type is in every batch of it.

const DECLARED: &str = "the reader was given the schema that declares this column";

fn column<'a>(batch: &'a RecordBatch, name: &str) -> &'a ArrayRef {
    batch.column_by_name(name).expect(DECLARED)
}

/// A column of times.
pub(crate) struct Times<'a>(&'a TimestampMicrosecondArray);

impl<'a> Times<'a> {
    pub(crate) fn of(batch: &'a RecordBatch, name: &'static str) -> Self {
        Self(column(batch, name).as_primitive::<TimestampMicrosecondType>())
    }

    pub(crate) fn at(&self, row: usize) -> Timestamp {
        Timestamp::from_micros(self.0.value(row))
    }
}

/// A column of numbers.
pub(crate) struct Numbers<'a> {
    name: &'static str,
    values: &'a Int64Array,
}

impl<'a> Numbers<'a> {
    pub(crate) fn of(batch: &'a RecordBatch, name: &'static str) -> Self {
        Self { name, values: column(batch, name).as_primitive::<Int64Type>() }
    }

    pub(crate) fn at(&self, row: usize) -> Option<i64> {
        self.values.is_valid(row).then(|| self.values.value(row))
    }

    /// The value of a column that is never null.
    pub(crate) fn required(&self, row: usize) -> i64 {
        self.values.value(row)
    }

    /// The value, which must not be negative.
    pub(crate) fn amount(&self, row: usize) -> Result<Option<u64>, Damage> {
        let Some(value) = self.at(row) else { return Ok(None) };
        match u64::try_from(value) {
            Ok(amount) => Ok(Some(amount)),
            Err(_) => Err(Damage::Number { column: self.name, value }),
        }
    }
}

/// A column of texts. Rows with the same text share one allocation, so `T` is a shared pointer.
pub(crate) struct Strings<'a, T> {
    name: &'static str,
    keys: &'a DictionaryArray<Int32Type>,
    values: &'a StringArray,
    shared: Vec<Option<T>>,
}

impl<'a, T: Clone + From<&'a str>> Strings<'a, T> {
    pub(crate) fn of(batch: &'a RecordBatch, name: &'static str) -> Self {
        let keys = column(batch, name).as_dictionary::<Int32Type>();
        let values = keys.values().as_string::<i32>();
        Self { name, keys, values, shared: vec![None; values.len()] }
    }

    pub(crate) fn at(&mut self, row: usize) -> Option<T> {
        let key = self.keys.key(row)?;
        Some(self.shared[key].get_or_insert_with(|| T::from(self.values.value(key))).clone())
    }

    /// The text without sharing.
    pub(crate) fn text(&self, row: usize) -> Option<&'a str> {
        Some(self.values.value(self.keys.key(row)?))
    }

    /// The value that a word of a fixed list stands for.
    pub(crate) fn word<W>(
        &self,
        row: usize,
        parse: impl Fn(&str) -> Option<W>,
    ) -> Result<Option<W>, Damage> {
        let Some(word) = self.text(row) else { return Ok(None) };
        match parse(word) {
            Some(value) => Ok(Some(value)),
            None => Err(Damage::Word { column: self.name, word: word.to_owned() }),
        }
    }

    /// The same, in a row that needs one.
    pub(crate) fn required_word<W>(
        &self,
        row: usize,
        parse: impl Fn(&str) -> Option<W>,
    ) -> Result<W, Damage> {
        self.word(row, parse)?.ok_or_else(|| self.null())
    }

    /// The error for a row that needs a value here.
    pub(crate) fn null(&self) -> Damage {
        Damage::Null { column: self.name }
    }
}

/// A text's two columns.
pub(crate) struct Texts<'a> {
    readable: Strings<'a, Text>,
    exact: &'a BinaryArray,
}

impl<'a> Texts<'a> {
    pub(crate) fn of(batch: &'a RecordBatch, name: &'static str, exact: &'static str) -> Self {
        Self { readable: Strings::of(batch, name), exact: column(batch, exact).as_binary() }
    }

    pub(crate) fn at(&mut self, row: usize) -> Option<Text> {
        if self.exact.is_valid(row) {
            return Some(self.exact.value(row).into());
        }
        self.readable.at(row)
    }

    /// The text, in a row whose kind needs one.
    pub(crate) fn required(&mut self, row: usize) -> Result<Text, Damage> {
        self.at(row).ok_or_else(|| self.readable.null())
    }
}

/// A parameter list's three columns.
pub(crate) struct ParameterLists<'a> {
    readable: &'a ListArray,
    exact: &'a ListArray,
    truncated: &'a ListArray,
}

impl<'a> ParameterLists<'a> {
    pub(crate) fn of(batch: &'a RecordBatch, [readable, exact, truncated]: [&str; 3]) -> Self {
        let list = |name| column(batch, name).as_list::<i32>();
        Self { readable: list(readable), exact: list(exact), truncated: list(truncated) }
    }

    pub(crate) fn at(&self, row: usize) -> Result<Option<Vec<Parameter>>, Damage> {
        if self.readable.is_null(row) {
            return Ok(None);
        }
        let texts = self.readable.value(row);
        let texts = texts.as_string::<i32>();
        let mut parameters: Vec<Parameter> = texts
            .iter()
            .map(|text| text.map_or(Parameter::Null, |text| Parameter::Value(text.into())))
            .collect();
        self.restore_bytes(row, &mut parameters)?;
        self.restore_cuts(row, &mut parameters)?;
        Ok(Some(parameters))
    }

    fn restore_bytes(&self, row: usize, parameters: &mut [Parameter]) -> Result<(), Damage> {
        if self.exact.is_null(row) {
            return Ok(());
        }
        let exact = self.exact.value(row);
        let exact = exact.as_binary::<i32>();
        let (found, wanted) = (exact.len(), parameters.len());
        if found != wanted {
            return Err(Damage::Length { column: "parameters_bytes", found, wanted });
        }
        for (parameter, bytes) in parameters.iter_mut().zip(exact) {
            if let Some(bytes) = bytes {
                *parameter = Parameter::Value(bytes.into());
            }
        }
        Ok(())
    }

    fn restore_cuts(&self, row: usize, parameters: &mut [Parameter]) -> Result<(), Damage> {
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
                return Err(Damage::Number { column, value });
            };
            *parameter = cut;
        }
        Ok(())
    }
}
