//! Encodes rows to arrays.
//!
//! Each function visits the rows once for one column (or for the columns of one value), which keeps
//! branches predictable and a table's encoder a simple list. Most columns of most tables are empty.
//! That is checked first, because it takes a fraction of the time of encoding nulls row by row.

use std::sync::Arc;

use arrow_array::{
    ArrayRef, Int64Array, StringArray, TimestampMicrosecondArray,
    builder::{ArrayBuilder, BinaryBuilder, Int32Builder, ListBuilder, StringBuilder},
    new_null_array,
};
use arrow_schema::DataType;
use howdah_traffic::{Parameter, ParametersRef, Text, Timestamp};

use super::{StoredType, UTC, list_entry, number_entry};

/// Encodes a column of times.
pub(crate) fn times(values: impl Iterator<Item = Timestamp>) -> ArrayRef {
    let micros = TimestampMicrosecondArray::from_iter_values(values.map(Timestamp::as_micros));
    Arc::new(micros.with_timezone(UTC))
}

/// Encodes a column of numbers.
pub(crate) fn numbers(values: impl Iterator<Item = Option<i64>> + Clone) -> ArrayRef {
    match count_if_all_null(values.clone()) {
        Some(rows) => new_null_array(&DataType::Int64, rows),
        None => Arc::new(values.collect::<Int64Array>()),
    }
}

/// Returns the number of values, if all of them are null.
fn count_if_all_null<T>(values: impl Iterator<Item = Option<T>>) -> Option<usize> {
    let mut rows = 0;
    for value in values {
        if value.is_some() {
            return None;
        }
        rows += 1;
    }
    Some(rows)
}

/// Encodes a column of counts or microseconds. Values above `i64::MAX` (292 thousand years in
/// microseconds) are stored as `i64::MAX`. Columns are signed, because many tools cannot subtract
/// unsigned numbers.
pub(crate) fn unsigned_numbers(values: impl Iterator<Item = Option<u64>> + Clone) -> ArrayRef {
    numbers(values.map(|value| value.map(|value| i64::try_from(value).unwrap_or(i64::MAX))))
}

/// Encodes a column of UTF-8 texts.
pub(crate) fn strings<'a>(values: impl Iterator<Item = Option<&'a str>> + Clone) -> ArrayRef {
    match count_if_all_null(values.clone()) {
        Some(rows) => new_null_array(&DataType::Utf8, rows),
        None => Arc::new(values.collect::<StringArray>()),
    }
}

/// Returns a session's role or database, or `None` (null in a file) for the empty text, which
/// stands for an unknown one.
pub(crate) fn non_empty(text: &Arc<str>) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

/// Encodes the two columns of a text: readable UTF-8, and the exact bytes where these differ.
pub(crate) fn texts<'a>(values: impl Iterator<Item = Option<&'a Text>> + Clone) -> [ArrayRef; 2] {
    if let Some(rows) = count_if_all_null(values.clone()) {
        return [DataType::Utf8, DataType::Binary].map(|it| new_null_array(&it, rows));
    }
    let mut readable = StringBuilder::new();
    // Nearly all texts are UTF-8, so the column of exact bytes is created only when needed.
    let mut exact: Option<BinaryBuilder> = None;
    let mut rows = 0;
    for value in values {
        let utf8 = value.and_then(Text::to_str);
        let bytes = value.filter(|_| utf8.is_none()).map(Text::as_bytes);
        match (utf8, bytes) {
            (Some(utf8), _) => readable.append_value(utf8),
            (None, Some(bytes)) => readable.append_value(String::from_utf8_lossy(bytes)),
            (None, None) => readable.append_null(),
        }
        if exact.is_some() || bytes.is_some() {
            let exact = exact.get_or_insert_with(|| {
                let mut exact = BinaryBuilder::new();
                exact.append_nulls(rows);
                exact
            });
            exact.append_option(bytes);
        }
        rows += 1;
    }
    let exact = match exact {
        Some(mut exact) => Arc::new(exact.finish()),
        None => new_null_array(&DataType::Binary, rows),
    };
    [Arc::new(readable.finish()), exact]
}

/// Encodes the three columns of a parameter list: readable values, exact values where any differs,
/// and the numbers (from 1, as in `$1`) of values that the server truncated.
pub(crate) fn parameters<'a>(
    values: impl Iterator<Item = Option<&'a [Parameter]>> + Clone,
) -> [ArrayRef; 3] {
    if let Some(rows) = count_if_all_null(values.clone()) {
        return [StoredType::TextList, StoredType::BytesList, StoredType::Int32List]
            .map(|shape| new_null_array(&shape.stored(), rows));
    }
    let mut readable =
        ListBuilder::new(StringBuilder::new()).with_field(list_entry(StoredType::Text));
    let mut exact = SparseListBuilder::new(|| {
        ListBuilder::new(BinaryBuilder::new()).with_field(list_entry(StoredType::Bytes))
    });
    let mut truncated =
        SparseListBuilder::new(|| ListBuilder::new(Int32Builder::new()).with_field(number_entry()));
    for row in values {
        let values = row.unwrap_or_default();
        let (mut any_inexact, mut any_truncated) = (false, false);
        for value in values {
            match parameter_text(value).map(|text| (text, text.to_str())) {
                None => readable.values().append_null(),
                Some((_, Some(utf8))) => readable.values().append_value(utf8),
                Some((text, None)) => {
                    any_inexact = true;
                    readable.values().append_value(text.to_str_lossy());
                }
            }
            any_truncated |= matches!(value, Parameter::Truncated(_));
        }
        readable.append(row.is_some());
        exact.append(any_inexact, |to| to.extend(values.iter().map(inexact_bytes)));
        truncated.append(any_truncated, |to| {
            for (number, value) in (1..).zip(values) {
                if matches!(value, Parameter::Truncated(_)) {
                    to.append_value(number);
                }
            }
        });
    }
    let exact = exact.finish(StoredType::BytesList);
    [Arc::new(readable.finish()), exact, truncated.finish(StoredType::Int32List)]
}

/// Builds a column of lists that are mostly null. Allocates only once a list is not null.
struct SparseListBuilder<B: ArrayBuilder, New> {
    new: New,
    lists: Option<ListBuilder<B>>,
    rows: usize,
}

impl<B: ArrayBuilder, New: Fn() -> ListBuilder<B>> SparseListBuilder<B, New> {
    fn new(new: New) -> Self {
        Self { new, lists: None, rows: 0 }
    }

    /// Adds a list filled by `fill` if `is_known`, and a null otherwise.
    fn append(&mut self, is_known: bool, fill: impl FnOnce(&mut B)) {
        if is_known || self.lists.is_some() {
            let lists = self.lists.get_or_insert_with(|| {
                let mut lists = (self.new)();
                (0..self.rows).for_each(|_| lists.append_null());
                lists
            });
            if is_known {
                fill(lists.values());
            }
            lists.append(is_known);
        }
        self.rows += 1;
    }

    fn finish(self, shape: StoredType) -> ArrayRef {
        match self.lists {
            Some(mut lists) => Arc::new(lists.finish()),
            None => new_null_array(&shape.stored(), self.rows),
        }
    }
}

fn parameter_text(parameter: &Parameter) -> Option<&Text> {
    match parameter {
        Parameter::Null => None,
        Parameter::Value(text) | Parameter::Truncated(text) => Some(text),
    }
}

/// Returns the bytes of a value if they are not valid UTF-8.
fn inexact_bytes(parameter: &Parameter) -> Option<&[u8]> {
    parameter_text(parameter).filter(|text| text.to_str().is_none()).map(Text::as_bytes)
}

/// Returns the size of all values in bytes, with a fixed overhead for each.
pub(crate) fn parameter_bytes(parameters: Option<&Vec<Parameter>>) -> usize {
    parameters.map_or(0, |values| ref_parameter_bytes(ParametersRef::List(values)))
}

/// Like [`parameter_bytes`], for borrowed values.
pub(crate) fn ref_parameter_bytes(parameters: ParametersRef<'_>) -> usize {
    // Each value also costs its entry in the lists, which matters with thousands of NULLs.
    const PLACE: usize = 8;
    parameters.iter().map(|value| value.text().map_or(0, <[u8]>::len) + PLACE).sum()
}
