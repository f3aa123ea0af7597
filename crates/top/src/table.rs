//! Tables of the screens, shared by interactive and batch mode.

mod activity;
mod blocking;
mod clients;
mod columns;
mod waits;

use std::sync::Arc;

use howdah_collect::{ColumnKind, ColumnUnit, RateView, SqlText, StatsView, VIEWS, ViewCell};

pub use self::columns::{ColumnChoice, ColumnChoices, ParseColumnsError};
use crate::{
    RowFilter, ServerSnapshot,
    waits::{WaitDimension, WaitProfile},
};

/// Description of a column, for the screen, files and filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableColumn {
    /// Name of the column in files and filters.
    pub name: &'static str,
    /// Title of the column on the screen.
    pub title: &'static str,
    /// Unit in which values are stored.
    pub unit: ColumnUnit,
    /// Description of the column, as a phrase.
    pub help: &'static str,
    /// Width in terminal columns, the maximum if the column is shrinkable; zero for the column that
    /// takes the remaining width.
    pub width: u16,
    /// Whether the column shrinks to its widest value. Only for values that rarely change: columns
    /// that move are hard to read.
    pub is_shrinkable: bool,
    /// Display priority if space is scarce: lower ranks first, equal ranks in table order.
    pub rank: u8,
    /// Whether the column is part of a row's identity.
    pub is_key: bool,
}

impl TableColumn {
    /// Creates a column that is not part of the row's identity.
    pub(crate) const fn new(
        name: &'static str,
        title: &'static str,
        unit: ColumnUnit,
        width: u16,
        help: &'static str,
    ) -> Self {
        Self { name, title, unit, help, width, is_shrinkable: false, rank: UNRANKED, is_key: false }
    }

    /// Sets the rank: zero is shown before all others.
    const fn ranked(self, rank: u8) -> Self {
        Self { rank, ..self }
    }

    /// Makes the column shrink to its values.
    const fn shrinking(self) -> Self {
        Self { is_shrinkable: true, ..self }
    }
}

/// Rank of columns without an explicit one.
const UNRANKED: u8 = 100;

/// The rows of a screen, and the description of their columns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScreenTable {
    /// Columns from left to right. A narrow screen shows those with the lowest ranks.
    pub columns: Vec<TableColumn>,
    /// The rows that match the filter, and their ancestors in a tree, in display order.
    pub rows: Vec<TableRow>,
}

/// One line of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct TableRow {
    /// One cell per column.
    pub cells: Vec<ViewCell>,
    /// Identity of the row across snapshots.
    pub key: RowId,
    /// The most notable property of the row.
    pub mark: RowMark,
    /// Number of ancestors of the row in its tree; 0 outside trees.
    pub depth: usize,
    /// Index into the snapshot's backends, if the row is a session.
    pub backend: Option<usize>,
}

/// Identity of a row across snapshots, by which the row stays selected or tagged.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RowId {
    /// A session: process id, and start time in microseconds since 1970.
    Session(i32, i64),
    /// Texts of the cells that identify the row, such as those of a view's key columns.
    Cells(Vec<String>),
}

/// A notable property of a row. The more urgent marks have a symbol, for terminals without colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RowMark {
    /// The row has no notable property.
    #[default]
    None,
    /// Connected, but not executing a statement.
    Idle,
    /// In a transaction, but not executing a statement, which may hold back vacuum.
    IdleInTransaction,
    /// Waiting for a lock.
    Waiting,
    /// Blocking other sessions.
    Blocking,
    /// Running a statement for longer than the slow threshold.
    Slow,
}

impl RowMark {
    /// Returns the symbol of the mark; a space if it has none.
    pub fn letter(self) -> char {
        match self {
            Self::None | Self::Idle => ' ',
            Self::IdleInTransaction => 'x',
            Self::Waiting => 'L',
            Self::Blocking => 'B',
            Self::Slow => '!',
        }
    }
}

/// A table that the user can select, interactively or for a batch.
#[derive(Clone, Copy, Debug)]
pub enum ScreenKind {
    /// Sessions, from `pg_stat_activity`.
    Activity,
    /// Lock wait trees.
    Blocking,
    /// Wait events over time.
    Waits,
    /// Clients of poolers.
    Clients,
    /// A statistics view.
    View(&'static StatsView),
}

impl ScreenKind {
    /// Returns all screens, in the order of their keys.
    pub fn all() -> impl Iterator<Item = Self> {
        [Self::Activity, Self::Blocking, Self::Waits]
            .into_iter()
            .chain(VIEWS.iter().map(Self::View))
            .chain([Self::Clients])
    }

    /// Returns the screen called `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::all().find(|screen| screen.name() == name)
    }

    /// Returns the name of the screen on the command line and in output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Activity => "activity",
            Self::Blocking => "blocking",
            Self::Waits => "waits",
            Self::Clients => "clients",
            Self::View(view) => view.name,
        }
    }

    /// Returns the description of the screen, in one sentence.
    pub fn help(self) -> &'static str {
        match self {
            Self::Activity => {
                "Sessions and their states; parallel workers are listed below their leader."
            }
            Self::Blocking => "Lock wait trees: waiting sessions are listed below their blockers.",
            Self::Waits => "Wait events of active sessions, as a share of the monitored time.",
            Self::Clients => "Clients of poolers, each with its session.",
            Self::View(view) => view.help,
        }
    }

    /// Returns all columns that the screen can have, from left to right.
    pub fn all_columns(self) -> Vec<TableColumn> {
        match self {
            Self::Activity => activity::columns(true, true),
            Self::Blocking => blocking::columns(true),
            Self::Waits => waits::columns(WaitDimension::Statement),
            Self::Clients => clients::COLUMNS.to_vec(),
            Self::View(view) => view_columns(view),
        }
    }

    /// Returns the statistics view that the screen shows, if any.
    pub fn view(self) -> Option<&'static StatsView> {
        match self {
            Self::View(view) => Some(view),
            _ => None,
        }
    }

    /// Returns the reason why a snapshot has no table for the screen, if known.
    pub fn unavailable_reason(self, snapshot: &ServerSnapshot) -> Option<String> {
        let version = snapshot.server.version;
        match self {
            Self::Clients => Some("no pooler is configured: use --pooler URI".to_owned()),
            Self::View(view) if !view.exists_in(version) => {
                Some(format!("PostgreSQL {version} does not have {}", view.name))
            }
            Self::View(_) => snapshot.view_error.clone(),
            Self::Activity | Self::Blocking | Self::Waits => None,
        }
    }

    /// Returns the default sort column, in descending order; `None` if rows have their own order.
    pub fn order(self) -> Option<&'static str> {
        match self {
            Self::Activity => Some("time"),
            Self::Blocking => None,
            Self::Waits => Some("sessions"),
            Self::Clients => Some("waits"),
            Self::View(view) => Some(view.order),
        }
    }
}

impl PartialEq for ScreenKind {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for ScreenKind {}

/// Options for building a table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TableOptions {
    /// Whether to include idle sessions and the server's own processes.
    pub with_idle: bool,
    /// Filter of the rows to include; ancestors of matching rows in a tree are included, too.
    pub filter: RowFilter,
    /// Sort column; `None` for the screen's default.
    pub order: Option<&'static str>,
    /// Whether to sort in ascending order.
    pub is_ascending: bool,
    /// Run time above which a statement is marked as slow, in seconds.
    pub slow_seconds: Option<f64>,
    /// The time that the time column of the activity screen has.
    pub time: TimeMeasure,
    /// Whether statements have their line breaks and tabs, for programs, or are on one line.
    pub full_texts: bool,
    /// The dimension and the period of the waits screen.
    pub waits: WaitOptions,
}

/// The dimension and the period of the waits screen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WaitOptions {
    /// Start of the period, in microseconds since 1970 by our clock; `None` for an hour.
    pub since_us: Option<i64>,
    /// The dimension and the sums of the period, unless waits are shown by event only.
    pub profile: Option<(WaitDimension, Arc<WaitProfile>)>,
}

impl TableOptions {
    /// Returns a statement as it is written in a cell.
    fn statement(&self, query: &SqlText) -> Arc<str> {
        if self.full_texts { query.to_shared() } else { query.to_shared_line() }
    }
}

/// The time that the time column of the activity screen has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeMeasure {
    /// How long the session has run its statement, or idled.
    #[default]
    Statement,
    /// How long its transaction has lasted.
    Transaction,
    /// How long it has been connected.
    Session,
}

impl TimeMeasure {
    /// Returns the measure after this one; after the last, the first.
    #[must_use]
    pub fn next(self) -> Self {
        match self {
            Self::Statement => Self::Transaction,
            Self::Transaction => Self::Session,
            Self::Session => Self::Statement,
        }
    }

    /// Returns the title of the column.
    pub fn title(self) -> &'static str {
        match self {
            Self::Statement => "Time",
            Self::Transaction => "In tx",
            Self::Session => "Online",
        }
    }
}

impl ScreenTable {
    /// Builds the table of a screen. `None` if the snapshot lacks its data: it was not requested,
    /// the server does not have it, or it could not be read.
    pub fn new(
        screen: ScreenKind,
        snapshot: &ServerSnapshot,
        options: &TableOptions,
    ) -> Option<Self> {
        let mut table = match screen {
            ScreenKind::Activity => activity::table(snapshot, options),
            ScreenKind::Blocking => blocking::table(snapshot, options),
            ScreenKind::Waits => waits::table(snapshot, &options.waits),
            ScreenKind::Clients => clients::table(snapshot, options)?,
            ScreenKind::View(view) => {
                let rate_view = snapshot
                    .view
                    .as_ref()
                    .filter(|rate_view| rate_view.sample.view.name == view.name)?;
                Self::from_view(rate_view, options.full_texts)
            }
        };
        table.apply_filter(&options.filter);
        if let Some(order) = options.order.or(screen.order()) {
            table.sort(order, options.is_ascending);
        }
        Some(table)
    }

    fn from_view(rate_view: &RateView, full_texts: bool) -> Self {
        let view = rate_view.sample.view;
        let keys: Vec<usize> = (0..view.columns.len())
            .filter(|&at| view.columns[at].kind == ColumnKind::Key)
            .collect();
        let row = |cells: &[ViewCell]| TableRow {
            key: RowId::Cells(
                keys.iter()
                    .map(|&at| crate::units::format_cell(&cells[at], ColumnUnit::Count))
                    .collect(),
            ),
            cells: if full_texts {
                cells.to_vec()
            } else {
                cells.iter().map(on_one_line).collect()
            },
            mark: RowMark::None,
            depth: 0,
            backend: None,
        };
        Self {
            columns: view_columns(view),
            rows: rate_view.rows.iter().map(|cells| row(cells)).collect(),
        }
    }

    /// Removes the columns for which `is_shown` returns false, unless that leaves none.
    pub(crate) fn retain_columns(&mut self, is_shown: impl Fn(&str) -> bool) {
        let shown: Vec<bool> = self.columns.iter().map(|column| is_shown(column.name)).collect();
        if !shown.contains(&true) {
            return;
        }
        let mut at = 0..;
        self.columns.retain(|_| at.next().is_some_and(|at: usize| shown[at]));
        for row in &mut self.rows {
            let mut at = 0..;
            row.cells.retain(|_| at.next().is_some_and(|at: usize| shown[at]));
        }
    }

    /// Returns the index of the column called `name`.
    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }

    /// Removes rows that do not match, except ancestors of matching ones.
    fn apply_filter(&mut self, filter: &RowFilter) {
        if filter.is_empty() {
            return;
        }
        let mut is_kept = vec![false; self.rows.len()];
        let mut path: Vec<usize> = Vec::new();
        for at in 0..self.rows.len() {
            path.retain(|&above| self.rows[above].depth < self.rows[at].depth);
            path.push(at);
            if filter.passes(self, &self.rows[at].cells) {
                path.iter().for_each(|&above| is_kept[above] = true);
            }
        }
        let mut is_kept = is_kept.into_iter();
        self.rows.retain(|_| is_kept.next().unwrap_or(false));
    }

    /// Sorts by a column, descending unless `is_ascending`. Trees stay together; equal rows are
    /// ordered by key, so that they do not swap places between snapshots.
    pub(crate) fn sort(&mut self, column: &str, is_ascending: bool) {
        let Some(at) = self.column(column) else { return };
        let rows = std::mem::take(&mut self.rows);
        let is_first = |place: &usize| *place == 0 || rows[*place].depth == 0;
        let mut families: Vec<usize> = (0..rows.len()).filter(is_first).collect();
        families.sort_by(|&mine, &theirs| {
            let (mine, theirs) = (&rows[mine], &rows[theirs]);
            let order = mine.cells[at].compare(&theirs.cells[at]);
            let both_have_values = mine.cells[at].has_value() && theirs.cells[at].has_value();
            let order = if !is_ascending && both_have_values { order.reverse() } else { order };
            order.then_with(|| mine.key.cmp(&theirs.key))
        });
        let mut rows: Vec<Option<TableRow>> = rows.into_iter().map(Some).collect();
        self.rows.reserve_exact(rows.len());
        for first in families {
            self.rows.extend(rows[first].take());
            let below = rows[first + 1..].iter_mut();
            let below = below.take_while(|row| row.as_ref().is_some_and(|row| row.depth > 0));
            self.rows.extend(below.filter_map(Option::take));
        }
    }
}

impl TableRow {
    /// Creates a row identified by all its cells.
    pub fn from_cells(cells: Vec<ViewCell>) -> Self {
        let key = RowId::Cells(
            cells.iter().map(|cell| crate::units::format_cell(cell, ColumnUnit::Count)).collect(),
        );
        Self { cells, key, mark: RowMark::None, depth: 0, backend: None }
    }
}

/// Returns the columns of a view's table.
fn view_columns(view: &StatsView) -> Vec<TableColumn> {
    let head = |column: &howdah_collect::ViewColumn| TableColumn {
        name: column.name,
        title: column.title,
        unit: column.unit,
        help: column.help,
        width: width(column),
        // Some keys, such as a progress phase, are wide only at times: their column keeps its
        // width.
        is_shrinkable: matches!(column.name, "query_id" | "user" | "database" | "schema"),
        rank: rank(view, column.name),
        is_key: column.kind == ColumnKind::Key,
    };
    view.columns.iter().map(head).collect()
}

/// Returns a cell whose text is on one line, with each run of white space as a single space.
fn on_one_line(cell: &ViewCell) -> ViewCell {
    match cell.text().filter(|text| text.contains(['\n', '\t'])) {
        Some(text) => text.split_whitespace().collect::<Vec<_>>().join(" ").as_str().into(),
        None => cell.clone(),
    }
}

/// Returns the display priority of a view's column: see [`TableColumn::rank`].
fn rank(view: &StatsView, name: &str) -> u8 {
    let place = view.essential_columns.iter().position(|essential| *essential == name);
    place.and_then(|place| u8::try_from(place).ok()).unwrap_or(UNRANKED)
}

/// Returns the maximum width of a view's column, chosen by its name and unit.
fn width(column: &howdah_collect::ViewColumn) -> u16 {
    match (column.name, column.unit) {
        ("query", _) => 0,
        ("pid" | "type" | "sync" | "level", _) => 8,
        ("object" | "relation" | "table" | "index" | "query_id" | "phase", _) => 24,
        ("figure" | "backend_type" | "command", _) => 19,
        (_, ColumnUnit::Text) => 14,
        // Includes space for the sort arrow.
        _ => u16::try_from(column.title.chars().count() + 1).unwrap_or(12).max(8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: &[(&str, i64, usize)]) -> ScreenTable {
        let head = |name, unit| TableColumn::new(name, name, unit, 8, "");
        let row = |&(name, number, depth): &(&str, i64, usize)| TableRow {
            depth,
            ..TableRow::from_cells(vec![
                name.into(),
                if number < 0 { ViewCell::Null } else { number.into() },
            ])
        };
        ScreenTable {
            columns: vec![head("name", ColumnUnit::Text), head("n", ColumnUnit::Count)],
            rows: rows.iter().map(row).collect(),
        }
    }

    fn names(table: &ScreenTable) -> Vec<&str> {
        table.rows.iter().filter_map(|row| row.cells[0].text()).collect()
    }

    #[test]
    fn sorting_keeps_trees_and_puts_missing_values_last() {
        let mut table =
            table(&[("a", 1, 0), ("none", -1, 0), ("b", 5, 0), ("b1", 9, 1), ("c", 3, 0)]);
        table.sort("n", false);
        assert_eq!(names(&table), ["b", "b1", "c", "a", "none"]);
        table.sort("n", true);
        assert_eq!(names(&table), ["a", "c", "b", "b1", "none"]);
    }

    #[test]
    fn matching_row_keeps_its_ancestors() {
        let mut table =
            table(&[("root", 1, 0), ("wanted", 2, 1), ("other", 3, 1), ("alone", 4, 0)]);
        table.apply_filter(&RowFilter::parse("wanted").unwrap());
        assert_eq!(names(&table), ["root", "wanted"]);
    }

    #[test]
    fn screen_names_are_unique() {
        let mut names: Vec<_> = ScreenKind::all().map(ScreenKind::name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ScreenKind::all().count());
        assert_eq!(ScreenKind::from_name("waiting").map(ScreenKind::name), Some("waiting"));
    }
}
