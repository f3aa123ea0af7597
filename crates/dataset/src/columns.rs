//! Columns of Arrow arrays, made from rows and read back.
//!
//! PostgreSQL's texts are bytes in the database's encoding, while a Parquet reader wants UTF-8. So a
//! [`Text`](howdah_traffic::Text) takes two columns: `X` holds it readable, and `X_bytes` holds the exact bytes in the
//! rare case that they are not valid UTF-8, and is null otherwise.

mod decode;
mod encode;
mod wire;

use std::sync::Arc;

use arrow_schema::{DataType, Field, Fields, Schema, SchemaRef, TimeUnit};
use parquet::schema::types::ColumnPath;

pub(crate) use decode::{Numbers, ParameterLists, Strings, Texts, Times};
pub(crate) use encode::{
    amounts, known, numbers, parameter_bytes, parameters, ref_parameter_bytes, strings, texts,
    times,
};
pub(crate) use wire::{WireColumns, copy_end_word};

/// One column of a table: the row of the format's own description.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    pub(crate) name: &'static str,
    pub(crate) shape: Shape,
    pub(crate) nullable: bool,
    /// The version of the format that brought it: files of older ones lack it.
    pub(crate) since: u32,
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
        Self { name, shape, nullable: false, since: 1 }
    }

    /// A column that may be null.
    pub(crate) const fn optional(name: &'static str, shape: Shape) -> Self {
        Self { name, shape, nullable: true, since: 1 }
    }

    /// Whether readers look for rows by the least and the greatest of its values: numbers, and who it was.
    /// Which words there are says nothing of a row group, as nearly all have all of them.
    pub(crate) fn is_searched(&self) -> bool {
        match self.shape {
            Shape::Int64 | Shape::Time => true,
            Shape::Text => {
                matches!(self.name, "session" | "user" | "database" | "application" | "sqlstate")
            }
            Shape::Bytes | Shape::TextList | Shape::BytesList | Shape::Int32List => false,
        }
    }

    /// Where its values are in a file.
    pub(crate) fn path(&self) -> ColumnPath {
        let entries = match self.shape {
            Shape::TextList | Shape::BytesList | Shape::Int32List => &["list", ENTRY][..],
            Shape::Int64 | Shape::Time | Shape::Text | Shape::Bytes => &[],
        };
        let parts = [self.name].into_iter().chain(entries.iter().copied());
        ColumnPath::new(parts.map(str::to_owned).collect())
    }

    /// The same, in files of `version` and later.
    pub(crate) const fn since(self, version: u32) -> Self {
        Self { since: version, ..self }
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
            Self::Int32List => DataType::List(Arc::new(number_entry())),
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

/// The schema that files of a version are read with.
pub(crate) fn decoded_schema(columns: &[Column], version: u32) -> SchemaRef {
    schema(columns.iter().filter(|column| column.since <= version), Shape::decoded)
}

fn schema<'a>(
    columns: impl IntoIterator<Item = &'a Column>,
    data_type: impl Fn(Shape) -> DataType,
) -> SchemaRef {
    let field = |column: &Column| Field::new(column.name, data_type(column.shape), column.nullable);
    Arc::new(Schema::new(columns.into_iter().map(field).collect::<Fields>()))
}

fn list_entry(shape: Shape) -> Field {
    Field::new(ENTRY, shape.stored(), true)
}

fn number_entry() -> Field {
    Field::new(ENTRY, DataType::Int32, false)
}

/// Name of a list's entries, by the Parquet format's rules for lists.
const ENTRY: &str = "element";
const UTC: &str = "UTC";
