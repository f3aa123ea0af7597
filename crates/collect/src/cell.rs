//! Cells of views: a value, NULL, or the information that the value cannot be read.

use std::{cmp::Ordering, sync::Arc};

/// A cell of a view, as shown on screens, written to files and tested by rules.
#[derive(Clone, Debug, PartialEq)]
pub enum ViewCell {
    /// SQL NULL, or a rate that is unknown: the row does not have a value.
    Null,
    /// The role may not read the value, or this server version lacks it. Shown as `n/a` on screens,
    /// never as zero.
    Unavailable,
    /// Text without control characters other than line feed and tab, which a statement may have.
    Text(Arc<str>),
    /// A whole number in the unit of its column.
    Integer(i64),
    /// A number in the unit of its column.
    Real(f64),
}

impl ViewCell {
    /// Returns the value as a number, if it is numeric.
    pub fn number(&self) -> Option<f64> {
        match *self {
            #[expect(clippy::cast_precision_loss, reason = "for rates and bars, not for money")]
            Self::Integer(value) => Some(value as f64),
            Self::Real(value) => Some(value),
            _ => None,
        }
    }

    /// Returns the value, if it is text.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Whether the cell has a readable value.
    pub fn has_value(&self) -> bool {
        !matches!(self, Self::Null | Self::Unavailable)
    }

    /// Compares two cells for sorting a column: numbers by size, then texts, then cells without a
    /// value.
    pub fn compare(&self, other: &Self) -> Ordering {
        match (self.number(), other.number()) {
            (Some(mine), Some(theirs)) => mine.total_cmp(&theirs),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => match (self.text(), other.text()) {
                (Some(mine), Some(theirs)) => mine.cmp(theirs),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => Ordering::Equal,
            },
        }
    }
}

impl From<&str> for ViewCell {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl<T: Into<ViewCell>> From<Option<T>> for ViewCell {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

impl From<i64> for ViewCell {
    fn from(value: i64) -> Self {
        Self::Integer(value)
    }
}

impl From<f64> for ViewCell {
    fn from(value: f64) -> Self {
        Self::Real(value)
    }
}

impl From<Arc<str>> for ViewCell {
    fn from(text: Arc<str>) -> Self {
        Self::Text(text)
    }
}

/// The unit of a column's values, which determines their format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ColumnUnit {
    /// Text, not a number.
    Text,
    /// A plain count.
    Count,
    /// A size in bytes.
    Bytes,
    /// A duration in milliseconds.
    Milliseconds,
    /// A duration in seconds.
    Seconds,
    /// A percentage, usually 0 to 100.
    Percent,
}

#[test]
fn cells_without_value_sort_last() {
    let mut cells =
        [ViewCell::Null, "b".into(), ViewCell::Real(2.5), ViewCell::Integer(1), "a".into()];
    cells.sort_by(ViewCell::compare);
    let expected =
        [ViewCell::Integer(1), ViewCell::Real(2.5), "a".into(), "b".into(), ViewCell::Null];
    assert_eq!(cells, expected);
}
