//! Statistics views, each described once for all server versions.

use std::{fmt::Write as _, sync::Arc};

use howdah_connect::{ResultRow, ResultSet};

use crate::{
    ColumnUnit, ServerVersion, ViewCell,
    text::{LineBreaks, sanitized},
};

/// The kind of a column, which determines how its values in two samples are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ColumnKind {
    /// Part of the row's identity, by which rows of two samples are matched.
    Key,
    /// A value at the time of the sample.
    Gauge,
    /// A sum since the last statistics reset, shown as a rate per second.
    Counter,
}

/// SQL valid from a major version on. In a list, the last entry not newer than the server applies;
/// empty SQL means that the server does not have the item.
pub(crate) type VersionedSql = (u32, &'static str);

/// A column of a [`StatsView`], with its SQL for each server version.
#[derive(Debug)]
pub struct ViewColumn {
    /// Name of the column in SQL, files and filters.
    pub name: &'static str,
    /// Title of the column on screens.
    pub title: &'static str,
    /// Unit in which values are stored.
    pub unit: ColumnUnit,
    /// The kind of the values: part of the row's key, current, or sums.
    pub kind: ColumnKind,
    /// SQL expression for the column, by server version.
    pub(crate) sql: &'static [VersionedSql],
    /// Description as a phrase, such as `rows inserted`.
    pub help: &'static str,
}

impl ViewColumn {
    /// Describes a column that is part of the row's identity.
    pub(crate) const fn key(
        name: &'static str,
        title: &'static str,
        sql: &'static [VersionedSql],
        help: &'static str,
    ) -> Self {
        Self { name, title, unit: ColumnUnit::Text, kind: ColumnKind::Key, sql, help }
    }

    /// Describes a column whose value is current, not a sum.
    pub(crate) const fn gauge(
        name: &'static str,
        title: &'static str,
        unit: ColumnUnit,
        sql: &'static [VersionedSql],
        help: &'static str,
    ) -> Self {
        Self { name, title, unit, kind: ColumnKind::Gauge, sql, help }
    }

    /// Describes a counter, which is shown as growth per second.
    pub(crate) const fn counter(
        name: &'static str,
        title: &'static str,
        unit: ColumnUnit,
        sql: &'static [VersionedSql],
        help: &'static str,
    ) -> Self {
        Self { name, title, unit, kind: ColumnKind::Counter, sql, help }
    }
}

/// A table that can be read from a server.
#[derive(Debug)]
pub struct StatsView {
    /// Name of the view on the command line.
    pub name: &'static str,
    /// Description in one line.
    pub help: &'static str,
    /// Columns in display order, from left to right.
    pub columns: &'static [ViewColumn],
    /// The FROM clause by server version.
    pub(crate) from: &'static [VersionedSql],
    /// Name of the column by which rows are sorted by default, in descending order.
    pub order: &'static str,
    /// Names of the columns that take precedence on a narrow screen, the most important first. The
    /// other columns follow in display order.
    pub essential_columns: &'static [&'static str],
    /// Whether the view's rows, or its existence, depend on the connected database.
    pub is_per_database: bool,
    /// The extension that provides the view, if any.
    pub(crate) extension: Option<&'static str>,
}

/// A sample of a view: its rows at one moment.
#[derive(Clone, Debug)]
pub struct ViewSample {
    /// The sampled view.
    pub view: &'static StatsView,
    /// The server's clock, in microseconds since 1970; 0 without rows.
    pub taken_us: i64,
    /// Rows with one cell per column of the view.
    pub rows: Arc<[Box<[ViewCell]>]>,
}

impl StatsView {
    /// Returns the index of the column called `name`.
    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }

    /// Whether this server version has the view.
    pub fn exists_in(&self, version: ServerVersion) -> bool {
        self.source_in(version).is_some()
    }

    fn source_in(&self, version: ServerVersion) -> Option<&'static str> {
        sql_for_version(self.from, version)
    }

    /// Builds the statement that reads the view: the server's clock, then the columns that this
    /// version has. `None` if the version lacks the view.
    pub fn sql(&self, version: ServerVersion) -> Option<String> {
        let from = self.source_in(version)?;
        let mut sql =
            "SELECT (date_part('epoch', clock_timestamp()) * 1e6)::int8 AS taken_us".to_owned();
        for column in self.columns {
            if let Some(expression) = sql_for_version(column.sql, version) {
                write!(sql, ", {expression} AS {}", column.name)
                    .expect("writing to a String cannot fail");
            }
        }
        write!(sql, " FROM {from}").expect("writing to a String cannot fail");
        Some(sql)
    }

    /// Builds a sample from the result of [`StatsView::sql`].
    pub(crate) fn sample(&'static self, result: &ResultSet, version: ServerVersion) -> ViewSample {
        let number = |row: &ResultRow| row.text(0)?.parse().ok();
        let taken_us = result.rows.first().and_then(number).unwrap_or(0);
        let rows = result.rows.iter().map(|row| {
            let mut place = 0;
            let cell = |column: &ViewColumn| {
                if sql_for_version(column.sql, version).is_none() {
                    return ViewCell::Unavailable;
                }
                place += 1;
                row.bytes(place).map_or(ViewCell::Null, |bytes| column.unit.parse_cell(bytes))
            };
            self.columns.iter().map(cell).collect()
        });
        ViewSample { view: self, taken_us, rows: rows.collect() }
    }
}

/// Returns the SQL for a server version; `None` if the version does not have the item.
pub(crate) fn sql_for_version(
    list: &'static [VersionedSql],
    version: ServerVersion,
) -> Option<&'static str> {
    let holds = |since: &&VersionedSql| ServerVersion::from_major(since.0) <= version;
    list.iter().rfind(holds).map(|(_, sql)| *sql).filter(|sql| !sql.is_empty())
}

impl ColumnUnit {
    /// Parses a value in the text format of its type. A number that cannot be parsed becomes NULL.
    fn parse_cell(self, bytes: &[u8]) -> ViewCell {
        let text = String::from_utf8_lossy(bytes);
        let number =
            || text.parse().map(ViewCell::Integer).or_else(|_| text.parse().map(ViewCell::Real));
        match self {
            Self::Text => ViewCell::Text(sanitized(&text, LineBreaks::Keep).into()),
            _ => number().unwrap_or(ViewCell::Null),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::VIEWS;

    #[test]
    fn newest_supported_sql_is_used() {
        const LIST: &[VersionedSql] = &[(10, "a"), (14, "b"), (17, "")];
        let of = |major| sql_for_version(LIST, ServerVersion::from_major(major));
        assert_eq!(
            [of(9), of(10), of(13), of(16), of(17)],
            [None, Some("a"), Some("a"), Some("b"), None]
        );
    }

    #[test]
    fn views_have_sort_and_key_columns() {
        for view in VIEWS {
            assert!(view.column(view.order).is_some(), "{}", view.name);
            for name in view.essential_columns {
                assert!(view.column(name).is_some(), "{}: {name}", view.name);
            }
            assert!(
                view.columns.iter().any(|column| column.kind == ColumnKind::Key),
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
