//! One value of a table.

use std::{cmp::Ordering, sync::Arc};

/// A value as a screen, a file or a rule gets it.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// The server says NULL: there is no value.
    Null,
    /// This role may not read it, or this version does not have it. Shown as `n/a`, never as zero.
    Unavailable,
    /// Text that is safe to show: see [`shown_line`](crate::shown_line).
    Text(Arc<str>),
    /// A whole number in the unit of its column.
    Integer(i64),
    /// A number in the unit of its column.
    Real(f64),
}

impl Cell {
    /// The number it holds, if it holds one.
    pub fn number(&self) -> Option<f64> {
        match *self {
            #[expect(clippy::cast_precision_loss, reason = "for rates and bars, not for money")]
            Self::Integer(value) => Some(value as f64),
            Self::Real(value) => Some(value),
            _ => None,
        }
    }

    /// The text it holds, if it holds text.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Whether there is a value, and it may be read.
    pub fn has_value(&self) -> bool {
        !matches!(self, Self::Null | Self::Unavailable)
    }

    /// The order of a column: numbers by size, texts by letters, what has no value behind both.
    pub fn order(&self, other: &Self) -> Ordering {
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

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

impl From<i64> for Cell {
    fn from(value: i64) -> Self {
        Self::Integer(value)
    }
}

impl From<f64> for Cell {
    fn from(value: f64) -> Self {
        Self::Real(value)
    }
}

impl From<Arc<str>> for Cell {
    fn from(text: Arc<str>) -> Self {
        Self::Text(text)
    }
}

/// What a number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// Words.
    Text,
    /// Things.
    Count,
    /// Bytes.
    Bytes,
    /// Milliseconds.
    Milliseconds,
    /// Seconds, a span.
    Seconds,
    /// Hundredths.
    Percent,
}

#[test]
fn what_has_no_value_sorts_last() {
    let mut cells = [Cell::Null, "b".into(), Cell::Real(2.5), Cell::Integer(1), "a".into()];
    cells.sort_by(Cell::order);
    let expected = [Cell::Integer(1), Cell::Real(2.5), "a".into(), "b".into(), Cell::Null];
    assert_eq!(cells, expected);
}
