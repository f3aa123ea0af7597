//! Columns as Arrow arrays: encodes rows to arrays and decodes rows from arrays.
//!
//! PostgreSQL's texts are bytes in the database's encoding, while Parquet readers expect UTF-8. So
//! a [`Text`](howdah_traffic::Text) takes two columns: `X` is readable, and `X_bytes` has the exact
//! bytes in the rare case that they are not valid UTF-8, and is null otherwise.

mod decode;
mod encode;
mod wire;

use std::sync::Arc;

use arrow_schema::{DataType, Field, Fields, Schema, SchemaRef, TimeUnit};
use parquet::schema::types::ColumnPath;

pub(crate) use decode::{
    Int64Reader, ParameterListReader, StringReader, TextPairReader, TimeReader,
};
pub(crate) use encode::{
    non_empty, numbers, parameter_bytes, parameters, ref_parameter_bytes, strings, texts, times,
    unsigned_numbers,
};
pub(crate) use wire::{WireColumns, copy_end_code};

/// A column of a table, as documented in `capture-format.md`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    pub(crate) name: &'static str,
    pub(crate) column_type: StoredType,
    pub(crate) is_nullable: bool,
    /// The first version of the format that has the column: older files lack it.
    pub(crate) since: u32,
}

/// The type of a column's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoredType {
    /// A number. Usually close to its neighbors, and therefore stored as differences.
    Int64,
    /// Microseconds since the Unix epoch, UTC.
    Time,
    /// UTF-8 text.
    Text,
    /// Arbitrary bytes.
    Bytes,
    /// A list of UTF-8 texts.
    TextList,
    /// A list of arbitrary bytes.
    BytesList,
    /// A list of 32-bit numbers.
    Int32List,
}

impl Column {
    /// Describes a column that always has a value.
    pub(crate) const fn required(name: &'static str, shape: StoredType) -> Self {
        Self { name, column_type: shape, is_nullable: false, since: 1 }
    }

    /// Describes a column that may be null.
    pub(crate) const fn optional(name: &'static str, shape: StoredType) -> Self {
        Self { name, column_type: shape, is_nullable: true, since: 1 }
    }

    /// Whether the file stores the column's minimum and maximum per row group. Readers use them to
    /// select row groups, for example by time or session. Other columns have none, because they
    /// would not help.
    pub(crate) fn has_statistics(&self) -> bool {
        match self.column_type {
            StoredType::Int64 | StoredType::Time => true,
            StoredType::Text => {
                matches!(self.name, "session" | "user" | "database" | "application" | "sqlstate")
            }
            StoredType::Bytes
            | StoredType::TextList
            | StoredType::BytesList
            | StoredType::Int32List => false,
        }
    }

    /// Returns the column's path in a file; for a list, the path of its entries.
    pub(crate) fn path(&self) -> ColumnPath {
        let entries = match self.column_type {
            StoredType::TextList | StoredType::BytesList | StoredType::Int32List => {
                &["list", ENTRY][..]
            }
            StoredType::Int64 | StoredType::Time | StoredType::Text | StoredType::Bytes => &[],
        };
        let parts = [self.name].into_iter().chain(entries.iter().copied());
        ColumnPath::new(parts.map(str::to_owned).collect())
    }

    /// Returns this column, for files of format version `version` and later.
    pub(crate) const fn since(self, version: u32) -> Self {
        Self { since: version, ..self }
    }
}

impl StoredType {
    /// Returns the Arrow type for writing.
    fn stored(self) -> DataType {
        let list_of = |shape: Self| DataType::List(Arc::new(list_entry(shape)));
        match self {
            Self::Int64 => DataType::Int64,
            Self::Time => DataType::Timestamp(TimeUnit::Microsecond, Some(UTC.into())),
            Self::Text => DataType::Utf8,
            Self::Bytes => DataType::Binary,
            Self::TextList => list_of(Self::Text),
            Self::BytesList => list_of(Self::Bytes),
            Self::Int32List => DataType::List(Arc::new(number_entry())),
        }
    }

    /// Returns the Arrow type for reading. Texts are read as a dictionary, so that a repeated text
    /// is decoded once.
    fn decoded(self) -> DataType {
        match self {
            Self::Text => DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)),
            other => other.stored(),
        }
    }
}

/// Returns the schema for writing files.
pub(crate) fn stored_schema(columns: &[Column]) -> SchemaRef {
    schema(columns, StoredType::stored)
}

/// Returns the schema for reading files of format version `version`: without columns added later.
pub(crate) fn decoded_schema(columns: &[Column], version: u32) -> SchemaRef {
    schema(columns.iter().filter(|column| column.since <= version), StoredType::decoded)
}

fn schema<'a>(
    columns: impl IntoIterator<Item = &'a Column>,
    data_type: impl Fn(StoredType) -> DataType,
) -> SchemaRef {
    let field = |column: &Column| {
        Field::new(column.name, data_type(column.column_type), column.is_nullable)
    };
    Arc::new(Schema::new(columns.into_iter().map(field).collect::<Fields>()))
}

fn list_entry(shape: StoredType) -> Field {
    Field::new(ENTRY, shape.stored(), true)
}

fn number_entry() -> Field {
    Field::new(ENTRY, DataType::Int32, false)
}

/// Name of the entries of a list, by the Parquet format's rules for lists.
const ENTRY: &str = "element";
const UTC: &str = "UTC";
