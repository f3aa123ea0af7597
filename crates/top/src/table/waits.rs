//! What sessions were doing or waiting for over the time watched.

use howdah_collect::{Cell, Unit};

use super::{Head, Row, Table};
use crate::Snapshot;

const COLUMNS: [Head; 5] = [
    Head {
        is_key: true,
        ..Head::new(
            "class",
            "Class",
            Unit::Text,
            12,
            "the class of wait event; cpu where it waits for nothing",
        )
    },
    Head { is_key: true, ..Head::new("event", "Event", Unit::Text, 28, "the wait event") },
    Head::new(
        "sessions",
        "Sessions",
        Unit::Count,
        9,
        "active sessions that were in it, on average",
    ),
    Head::new("share", "Share", Unit::Percent, 7, "of the time of all active sessions"),
    Head::new("samples", "Samples", Unit::Count, 9, "how often one was seen in it"),
];

pub(super) fn table(snapshot: &Snapshot) -> Table {
    let waits = &snapshot.waits;
    #[expect(clippy::cast_precision_loss, reason = "shares for looking at")]
    let share = |count: u64, of: u64| if of == 0 { 0.0 } else { count as f64 / of as f64 };
    let all: u64 = waits.counts.values().sum();
    let rows = waits.counts.iter().map(|(wait, count)| {
        let (class, event) = match wait {
            Some(wait) => (&*wait.class, &*wait.event),
            None => ("cpu", "running"),
        };
        Row::plain(vec![
            class.into(),
            event.into(),
            share(*count, waits.readings).into(),
            (share(*count, all) * 100.0).into(),
            Cell::Integer(i64::try_from(*count).unwrap_or(i64::MAX)),
        ])
    });
    Table { columns: COLUMNS.to_vec(), rows: rows.map(keyed).collect() }
}

/// Its class and event tell it from others, not its numbers.
fn keyed(row: Row) -> Row {
    let key = row.cells[..2].iter().filter_map(|cell| cell.text().map(str::to_owned)).collect();
    Row { key: super::RowKey::Cells(key), ..row }
}
