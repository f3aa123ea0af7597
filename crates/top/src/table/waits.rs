//! Average sessions per wait event, over up to an hour, as rows.

use std::collections::BTreeMap;

use howdah_collect::{BackendWait, ColumnUnit, ViewCell};

use super::{ScreenTable, TableColumn, TableRow};
use crate::ServerSnapshot;

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
    },
    TableColumn {
        is_key: true,
        ..TableColumn::new("event", "Event", ColumnUnit::Text, 28, "the wait event")
    },
    TableColumn::new("sessions", "Sessions", ColumnUnit::Count, 9, "average active sessions in it"),
    TableColumn::new(
        "share",
        "Share",
        ColumnUnit::Percent,
        7,
        "of the time of all active sessions",
    ),
    TableColumn::new("samples", "Samples", ColumnUnit::Count, 9, "number of samples"),
];

pub(super) fn table(snapshot: &ServerSnapshot) -> ScreenTable {
    let means = snapshot.waits.means();
    let all: f64 = means.values().sum();
    let mut samples: BTreeMap<Option<&BackendWait>, i64> = BTreeMap::new();
    for second in snapshot.waits.seconds() {
        for (wait, sum) in &second.sums {
            *samples.entry(wait.as_ref()).or_default() += i64::from(*sum);
        }
    }
    let rows = means.iter().map(|(wait, mean)| {
        let (class, event) = match wait {
            Some(wait) => (&*wait.class, &*wait.event),
            None => ("cpu", "running"),
        };
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
