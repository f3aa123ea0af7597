//! A view: a table that a server can be asked for, described once for every version.

use std::{fmt::Write as _, sync::Arc};

use howdah_connect::{ResultSet, Row};

use crate::{
    Cell, Unit, Version,
    text::{Lines, shown},
};

/// What a column's number means over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Meaning {
    /// Part of what tells one row from another.
    Key,
    /// What holds now.
    Gauge,
    /// A sum since some start: what people want to see is how fast it grows.
    Counter,
}

/// SQL that holds from a major version on. The last of a list whose version is not above the server's
/// counts; an empty text says that the server has no such thing any more.
pub(crate) type Since = (u32, &'static str);

/// A column of a view.
#[derive(Debug)]
pub struct Column {
    /// Its name, in SQL, in files, in filters.
    pub name: &'static str,
    /// What stands above it on a screen.
    pub title: &'static str,
    /// What its numbers count.
    pub unit: Unit,
    /// What they mean over time.
    pub meaning: Meaning,
    /// Where it comes from.
    pub(crate) sql: &'static [Since],
    /// What it is, in a sentence.
    pub help: &'static str,
}

impl Column {
    /// Part of what tells one row from another.
    pub(crate) const fn key(
        name: &'static str,
        title: &'static str,
        sql: &'static [Since],
        help: &'static str,
    ) -> Self {
        Self { name, title, unit: Unit::Text, meaning: Meaning::Key, sql, help }
    }

    /// What holds now.
    pub(crate) const fn gauge(
        name: &'static str,
        title: &'static str,
        unit: Unit,
        sql: &'static [Since],
        help: &'static str,
    ) -> Self {
        Self { name, title, unit, meaning: Meaning::Gauge, sql, help }
    }

    /// A sum, shown as its growth per second.
    pub(crate) const fn counter(
        name: &'static str,
        title: &'static str,
        unit: Unit,
        sql: &'static [Since],
        help: &'static str,
    ) -> Self {
        Self { name, title, unit, meaning: Meaning::Counter, sql, help }
    }
}

/// A table that a server can be asked for.
#[derive(Debug)]
pub struct View {
    /// Its name, as on the command line.
    pub name: &'static str,
    /// What it shows, in a sentence.
    pub help: &'static str,
    /// Its columns, from the left.
    pub columns: &'static [Column],
    /// What stands behind `FROM`.
    pub(crate) from: &'static [Since],
    /// The column to sort by, the greatest first, unless somebody says otherwise.
    pub order: &'static str,
    /// The columns that a narrow screen shows first, the most important first. The others follow by position.
    pub essentials: &'static [&'static str],
    /// It shows the database of the connection, not the whole cluster.
    pub is_of_database: bool,
    /// The extension that it is of, if it is none of the server's own.
    pub(crate) extension: Option<&'static str>,
}

/// What a view said at one moment.
#[derive(Clone, Debug)]
pub struct Reading {
    /// The view.
    pub view: &'static View,
    /// The server's clock, in microseconds since 1970.
    pub taken_us: i64,
    /// A row has a cell for each column of the view.
    pub rows: Arc<[Box<[Cell]>]>,
}

impl View {
    /// The place of a column.
    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }

    /// Whether a server of this version has it.
    pub fn exists_in(&self, version: Version) -> bool {
        self.source(version).is_some()
    }

    fn source(&self, version: Version) -> Option<&'static str> {
        chosen(self.from, version)
    }

    /// The statement that reads it. Its first column is the server's clock; then come those columns that
    /// a server of this version has. `None` if it has none of it.
    pub fn sql(&self, version: Version) -> Option<String> {
        let from = self.source(version)?;
        let mut sql =
            "SELECT (date_part('epoch', clock_timestamp()) * 1e6)::int8 AS taken_us".to_owned();
        for column in self.columns {
            if let Some(expression) = chosen(column.sql, version) {
                write!(sql, ", {expression} AS {}", column.name).expect("a String takes all");
            }
        }
        write!(sql, " FROM {from}").expect("a String takes all");
        Some(sql)
    }

    /// Makes a reading of a result of [`View::sql`].
    pub(crate) fn reading(&'static self, result: &ResultSet, version: Version) -> Reading {
        let number = |row: &Row| row.text(0)?.parse().ok();
        let taken_us = result.rows.first().and_then(number).unwrap_or(0);
        let rows = result.rows.iter().map(|row| {
            let mut place = 0;
            let cell = |column: &Column| {
                if chosen(column.sql, version).is_none() {
                    return Cell::Unavailable;
                }
                place += 1;
                row.bytes(place).map_or(Cell::Null, |bytes| column.unit.cell(bytes))
            };
            self.columns.iter().map(cell).collect()
        });
        Reading { view: self, taken_us, rows: rows.collect() }
    }
}

/// What of a list of SQL holds in this version.
pub(crate) fn chosen(list: &'static [Since], version: Version) -> Option<&'static str> {
    let holds = |since: &&Since| Version::of_major(since.0) <= version;
    list.iter().rfind(holds).map(|(_, sql)| *sql).filter(|sql| !sql.is_empty())
}

impl Unit {
    /// The cell of a value in the text form of its type.
    fn cell(self, bytes: &[u8]) -> Cell {
        let text = String::from_utf8_lossy(bytes);
        let number = || text.parse().map(Cell::Integer).or_else(|_| text.parse().map(Cell::Real));
        match self {
            Self::Text => Cell::Text(shown(&text, Lines::Join).into()),
            _ => number().unwrap_or(Cell::Null),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::VIEWS;

    #[test]
    fn the_last_that_is_not_too_new_counts() {
        const LIST: &[Since] = &[(10, "a"), (14, "b"), (17, "")];
        let of = |major| chosen(LIST, Version::of_major(major));
        assert_eq!(
            [of(9), of(10), of(13), of(16), of(17)],
            [None, Some("a"), Some("a"), Some("b"), None]
        );
    }

    #[test]
    fn every_view_can_be_sorted_and_told_apart() {
        for view in VIEWS {
            assert!(view.column(view.order).is_some(), "{}", view.name);
            for name in view.essentials {
                assert!(view.column(name).is_some(), "{}: {name}", view.name);
            }
            assert!(
                view.columns.iter().any(|column| column.meaning == Meaning::Key),
                "{}",
                view.name
            );
            let mut names: Vec<_> = view.columns.iter().map(|column| column.name).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), view.columns.len(), "{}", view.name);
        }
    }
}
