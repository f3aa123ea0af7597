//! Average sessions per wait event, over up to an hour, as rows.

use std::collections::BTreeMap;

use howdah_collect::{BackendWait, ColumnUnit, ViewCell};

use super::{ScreenTable, TableColumn, TableRow, WaitOptions};
use crate::{
    ServerSnapshot,
    waits::{WaitDimension, WaitProfile},
};

const COLUMNS: [TableColumn; 5] = [
    TableColumn {
        is_key: true,
        ..TableColumn::new(
            "class",
            "Class",
            ColumnUnit::Text,
            12,
            "the wait event class; cpu if running",
        )
        .ranked(2)
        .shrinking()
    },
    TableColumn {
        is_key: true,
        ..TableColumn::new("event", "Event", ColumnUnit::Text, 28, "the wait event")
            .ranked(0)
            .shrinking()
    },
    TableColumn::new("sessions", "Sessions", ColumnUnit::Count, 9, "average active sessions in it")
        .ranked(1),
    TableColumn::new(
        "share",
        "Share",
        ColumnUnit::Percent,
        7,
        "of the time of all active sessions",
    ),
    TableColumn::new("samples", "Samples", ColumnUnit::Count, 9, "number of samples"),
];

/// Returns the columns for a dimension: those of [`COLUMNS`], then the dimension's value.
pub(super) fn columns(dimension: WaitDimension) -> Vec<TableColumn> {
    let mut columns = COLUMNS.to_vec();
    if dimension != WaitDimension::Event {
        let value = TableColumn::new(
            "value",
            dimension.title(),
            ColumnUnit::Text,
            0,
            "the value of the dimension by which waits are shown",
        );
        columns.push(TableColumn { is_key: true, ..value });
    }
    columns
}

pub(super) fn table(snapshot: &ServerSnapshot, options: &WaitOptions) -> ScreenTable {
    match &options.profile {
        Some((dimension, profile)) => by_dimension(*dimension, profile),
        None => by_event(snapshot, options.since_us),
    }
}

/// Returns the average numbers of sessions by wait event and value of a dimension.
fn by_dimension(dimension: WaitDimension, profile: &WaitProfile) -> ScreenTable {
    let samples = f64::from(profile.samples.max(1));
    let all: u64 = profile.counts(dimension).map(|(.., count)| u64::from(count)).sum();
    let rows = profile.counts(dimension).map(|(value, wait, count)| {
        let (class, event) = wait_names(wait);
        #[expect(clippy::cast_precision_loss, reason = "counts of samples")]
        let share = f64::from(count) * 100.0 / all.max(1) as f64;
        let cells = vec![
            class.into(),
            event.into(),
            (f64::from(count) / samples).into(),
            share.into(),
            ViewCell::Integer(count.into()),
            value.into(),
        ];
        let key = [class, event, value].map(str::to_owned).to_vec();
        TableRow { key: super::RowId::Cells(key), ..TableRow::from_cells(cells) }
    });
    ScreenTable { columns: columns(dimension), rows: rows.collect() }
}

fn wait_names(wait: Option<&BackendWait>) -> (&str, &str) {
    wait.map_or(("cpu", "running"), |wait| (&wait.class, &wait.event))
}

fn by_event(snapshot: &ServerSnapshot, since_us: Option<i64>) -> ScreenTable {
    let waits = match since_us {
        Some(since_us) => &snapshot.waits.since(since_us),
        None => &*snapshot.waits,
    };
    let means = waits.means();
    let all: f64 = means.values().sum();
    let mut samples: BTreeMap<Option<&BackendWait>, i64> = BTreeMap::new();
    for second in waits.seconds() {
        for (wait, sum) in &second.sums {
            *samples.entry(wait.as_ref()).or_default() += i64::from(*sum);
        }
    }
    let rows = means.iter().map(|(wait, mean)| {
        let (class, event) = wait_names(wait.as_ref());
        let share = if all > 0.0 { mean / all * 100.0 } else { 0.0 };
        TableRow::from_cells(vec![
            class.into(),
            event.into(),
            (*mean).into(),
            share.into(),
            ViewCell::Integer(samples.get(&wait.as_ref()).copied().unwrap_or(0)),
        ])
    });
    ScreenTable { columns: COLUMNS.to_vec(), rows: rows.map(with_event_key).collect() }
}

/// Identifies the row by its class and event, because its numbers change between samples.
fn with_event_key(row: TableRow) -> TableRow {
    let key = row.cells[..2].iter().filter_map(|cell| cell.text().map(str::to_owned)).collect();
    TableRow { key: super::RowId::Cells(key), ..row }
}
