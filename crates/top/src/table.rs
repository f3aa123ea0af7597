//! What a screen shows, as rows: the same for a person and for a program.

mod activity;
mod blocking;
mod clients;
mod waits;

use howdah_collect::{Cell, Meaning, RateView, Unit, VIEWS, View};

use crate::{Filter, Snapshot};

/// A column of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Its name, in files and filters.
    pub name: &'static str,
    /// What stands above it.
    pub title: &'static str,
    /// What its numbers count.
    pub unit: Unit,
    /// What it is.
    pub help: &'static str,
    /// How many columns of a terminal it takes at most; zero for what is left over.
    pub width: u16,
    /// It takes no more than its widest value needs. For what rarely changes: columns that move are hard to read.
    pub shrinks: bool,
    /// Where there is no room for all, columns of a lower rank are shown first, those of the same by position.
    pub rank: u8,
    /// It tells one row from another.
    pub is_key: bool,
}

impl Head {
    /// A column that does not tell rows apart.
    pub(crate) const fn new(
        name: &'static str,
        title: &'static str,
        unit: Unit,
        width: u16,
        help: &'static str,
    ) -> Self {
        Self { name, title, unit, help, width, shrinks: false, rank: UNRANKED, is_key: false }
    }

    /// With a rank: zero for what is shown before all others.
    const fn ranked(self, rank: u8) -> Self {
        Self { rank, ..self }
    }

    /// As narrow as its values allow.
    const fn shrinking(self) -> Self {
        Self { shrinks: true, ..self }
    }
}

/// The rank of columns that have none of their own.
const UNRANKED: u8 = 100;

/// Rows under heads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// The columns, from the left. A narrow screen shows those of the lowest ranks.
    pub columns: Vec<Head>,
    /// The rows.
    pub rows: Vec<Row>,
}

/// A row.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// A cell for each column.
    pub cells: Vec<Cell>,
    /// What tells it from others, from one snapshot to the next.
    pub key: RowKey,
    /// What a person should notice.
    pub mark: Mark,
    /// How many rows stand above it in its tree.
    pub depth: usize,
    /// Its place among the backends of the snapshot, if it is one.
    pub backend: Option<usize>,
}

/// What tells a row from others.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RowKey {
    /// A session: process id, and when it began.
    Session(i32, i64),
    /// The cells of a view's key columns.
    Cells(Vec<String>),
}

/// What a person should notice about a row. A letter stands for it where colours do not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mark {
    /// Nothing.
    #[default]
    None,
    /// Does nothing now.
    Idle,
    /// Does nothing, in a transaction.
    IdleInTransaction,
    /// Waits for a lock.
    Waits,
    /// Others wait for it.
    Blocks,
    /// Has run longer than the threshold.
    Slow,
}

impl Mark {
    /// The letter.
    pub fn letter(self) -> char {
        match self {
            Self::None | Self::Idle => ' ',
            Self::IdleInTransaction => 'x',
            Self::Waits => 'L',
            Self::Blocks => 'B',
            Self::Slow => '!',
        }
    }
}

/// Something that can be looked at.
#[derive(Clone, Copy, Debug)]
pub enum Screen {
    /// Sessions.
    Activity,
    /// Who waits for whom.
    Blocking,
    /// What sessions waited for, over time.
    Waits,
    /// The clients of poolers.
    Clients,
    /// A view of the server.
    View(&'static View),
}

impl Screen {
    /// All there are, in the order of their keys.
    pub fn all() -> impl Iterator<Item = Self> {
        [Self::Activity, Self::Blocking, Self::Waits]
            .into_iter()
            .chain(VIEWS.iter().map(Self::View))
            .chain([Self::Clients])
    }

    /// The one with that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|screen| screen.name() == name)
    }

    /// Its name, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Activity => "activity",
            Self::Blocking => "blocking",
            Self::Waits => "waits",
            Self::Clients => "clients",
            Self::View(view) => view.name,
        }
    }

    /// What it shows, in a sentence.
    pub fn help(self) -> &'static str {
        match self {
            Self::Activity => {
                "Sessions and what they do; helpers of a parallel query stand under its leader."
            }
            Self::Blocking => {
                "Who waits for whose lock: those that wait stand under what they wait for."
            }
            Self::Waits => {
                "What sessions were doing or waiting for, as a share of the time watched."
            }
            Self::Clients => "The clients of poolers, each with the session it holds.",
            Self::View(view) => view.help,
        }
    }

    /// The view of the server that it shows, if it shows one.
    pub fn view(self) -> Option<&'static View> {
        match self {
            Self::View(view) => Some(view),
            _ => None,
        }
    }

    /// Why there is no table of it in what was read of a server, if that is known.
    pub fn why_not(self, snapshot: &Snapshot) -> Option<String> {
        let version = snapshot.identity.version;
        match self {
            Self::Clients => Some("no pooler was named: --pooler URI".to_owned()),
            Self::View(view) if !view.exists_in(version) => {
                Some(format!("PostgreSQL {version} has no {}", view.name))
            }
            Self::View(_) => snapshot.view_error.clone(),
            Self::Activity | Self::Blocking | Self::Waits => None,
        }
    }

    /// The column to sort by at first, the greatest first; `None` where rows have an order of their own.
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

impl PartialEq for Screen {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Screen {}

/// How a table is made of a snapshot.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choice {
    /// Idle sessions and the server's own processes, too.
    pub with_idle: bool,
    /// Which rows.
    pub filter: Filter,
    /// The column to sort by; the screen's own order if there is none.
    pub order: Option<&'static str>,
    /// The smallest first.
    pub is_ascending: bool,
    /// From how many seconds on a statement is slow.
    pub slow_seconds: Option<f64>,
}

impl Table {
    /// The table of a screen. `None` where the snapshot does not have what it shows: it was not asked for,
    /// or the server does not have it.
    pub fn of(screen: Screen, snapshot: &Snapshot, choice: &Choice) -> Option<Self> {
        let mut table = match screen {
            Screen::Activity => activity::table(snapshot, choice),
            Screen::Blocking => blocking::table(snapshot, choice),
            Screen::Waits => waits::table(snapshot),
            Screen::Clients => clients::table(snapshot, choice)?,
            Screen::View(view) => {
                let rated =
                    snapshot.view.as_ref().filter(|rated| rated.reading.view.name == view.name)?;
                Self::of_view(rated)
            }
        };
        table.sift(&choice.filter);
        if let Some(order) = choice.order.or(screen.order()) {
            table.sort(order, choice.is_ascending);
        }
        Some(table)
    }

    fn of_view(rated: &RateView) -> Self {
        let view = rated.reading.view;
        let head = |column: &howdah_collect::Column| Head {
            name: column.name,
            title: column.title,
            unit: column.unit,
            help: column.help,
            width: width(column),
            // A key such as a progress phase is wide at times only: its column keeps its width.
            shrinks: matches!(column.name, "query_id" | "user" | "database" | "schema"),
            rank: rank(view, column.name),
            is_key: column.meaning == Meaning::Key,
        };
        let keys: Vec<usize> = (0..view.columns.len())
            .filter(|&at| view.columns[at].meaning == Meaning::Key)
            .collect();
        let row = |cells: &[Cell]| Row {
            key: RowKey::Cells(
                keys.iter().map(|&at| crate::units::shown(&cells[at], Unit::Count)).collect(),
            ),
            cells: cells.to_vec(),
            mark: Mark::None,
            depth: 0,
            backend: None,
        };
        Self {
            columns: view.columns.iter().map(head).collect(),
            rows: rated.rows.iter().map(|cells| row(cells)).collect(),
        }
    }

    /// The place of a column.
    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }

    /// Keeps the rows that pass, and those above them in their trees.
    fn sift(&mut self, filter: &Filter) {
        if filter.is_empty() {
            return;
        }
        let mut kept = vec![false; self.rows.len()];
        let mut path: Vec<usize> = Vec::new();
        for at in 0..self.rows.len() {
            path.retain(|&above| self.rows[above].depth < self.rows[at].depth);
            path.push(at);
            if filter.passes(self, &self.rows[at].cells) {
                path.iter().for_each(|&above| kept[above] = true);
            }
        }
        let mut kept = kept.into_iter();
        self.rows.retain(|_| kept.next().unwrap_or(false));
    }

    /// Sorts by a column, the greatest first unless ascending. What stands under a row stays there; rows
    /// that are equal are ordered by their keys, so that none dance from one snapshot to the next.
    pub(crate) fn sort(&mut self, column: &str, is_ascending: bool) {
        let Some(at) = self.column(column) else { return };
        let rows = std::mem::take(&mut self.rows);
        let is_first = |place: &usize| *place == 0 || rows[*place].depth == 0;
        let mut families: Vec<usize> = (0..rows.len()).filter(is_first).collect();
        families.sort_by(|&mine, &theirs| {
            let (mine, theirs) = (&rows[mine], &rows[theirs]);
            let order = mine.cells[at].order(&theirs.cells[at]);
            let both_have_values = mine.cells[at].has_value() && theirs.cells[at].has_value();
            let order = if !is_ascending && both_have_values { order.reverse() } else { order };
            order.then_with(|| mine.key.cmp(&theirs.key))
        });
        let mut rows: Vec<Option<Row>> = rows.into_iter().map(Some).collect();
        self.rows.reserve_exact(rows.len());
        for first in families {
            self.rows.extend(rows[first].take());
            let below = rows[first + 1..].iter_mut();
            let below = below.take_while(|row| row.as_ref().is_some_and(|row| row.depth > 0));
            self.rows.extend(below.filter_map(Option::take));
        }
    }
}

impl Row {
    /// A row of cells and nothing else.
    pub fn plain(cells: Vec<Cell>) -> Self {
        let key = RowKey::Cells(
            cells.iter().map(|cell| crate::units::shown(cell, Unit::Count)).collect(),
        );
        Self { cells, key, mark: Mark::None, depth: 0, backend: None }
    }
}

/// The rank of a view's column.
fn rank(view: &View, name: &str) -> u8 {
    let place = view.essentials.iter().position(|essential| *essential == name);
    place.and_then(|place| u8::try_from(place).ok()).unwrap_or(UNRANKED)
}

/// How wide a column of a view is.
fn width(column: &howdah_collect::Column) -> u16 {
    match (column.name, column.unit) {
        ("query", _) => 0,
        ("pid" | "type" | "sync" | "level", _) => 8,
        ("object" | "relation" | "table" | "index" | "query_id" | "phase", _) => 24,
        ("figure" | "backend_type" | "command", _) => 19,
        (_, Unit::Text) => 14,
        // With room for the arrow of the order.
        _ => u16::try_from(column.title.chars().count() + 1).unwrap_or(12).max(8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: &[(&str, i64, usize)]) -> Table {
        let head = |name, unit| Head::new(name, name, unit, 8, "");
        let row = |&(name, number, depth): &(&str, i64, usize)| Row {
            depth,
            ..Row::plain(vec![name.into(), if number < 0 { Cell::Null } else { number.into() }])
        };
        Table {
            columns: vec![head("name", Unit::Text), head("n", Unit::Count)],
            rows: rows.iter().map(row).collect(),
        }
    }

    fn names(table: &Table) -> Vec<&str> {
        table.rows.iter().filter_map(|row| row.cells[0].text()).collect()
    }

    #[test]
    fn families_stay_together_and_what_has_no_value_comes_last() {
        let mut table =
            table(&[("a", 1, 0), ("none", -1, 0), ("b", 5, 0), ("b1", 9, 1), ("c", 3, 0)]);
        table.sort("n", false);
        assert_eq!(names(&table), ["b", "b1", "c", "a", "none"]);
        table.sort("n", true);
        assert_eq!(names(&table), ["a", "c", "b", "b1", "none"]);
    }

    #[test]
    fn a_row_that_passes_keeps_those_above_it() {
        let mut table =
            table(&[("root", 1, 0), ("wanted", 2, 1), ("other", 3, 1), ("alone", 4, 0)]);
        table.sift(&Filter::parse("wanted").unwrap());
        assert_eq!(names(&table), ["root", "wanted"]);
    }

    #[test]
    fn every_screen_has_a_name_of_its_own() {
        let mut names: Vec<_> = Screen::all().map(Screen::name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Screen::all().count());
        assert_eq!(Screen::named("waiting").map(Screen::name), Some("waiting"));
    }
}
