//! What sessions were doing or waiting for over the time watched.

use std::collections::BTreeMap;

use howdah_collect::{Cell, Unit, Wait};

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
    let means = snapshot.waits.means();
    let all: f64 = means.values().sum();
    let mut samples: BTreeMap<Option<&Wait>, i64> = BTreeMap::new();
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
        Row::plain(vec![
            class.into(),
            event.into(),
            (*mean).into(),
            share.into(),
            Cell::Integer(samples.get(&wait.as_ref()).copied().unwrap_or(0)),
        ])
    });
    Table { columns: COLUMNS.to_vec(), rows: rows.map(keyed).collect() }
}

/// Its class and event tell it from others, not its numbers.
fn keyed(row: Row) -> Row {
    let key = row.cells[..2].iter().filter_map(|cell| cell.text().map(str::to_owned)).collect();
    Row { key: super::RowKey::Cells(key), ..row }
}
