//! What happened between two readings of a view.

use std::collections::HashMap;

use crate::{Cell, Meaning, Reading};

/// A reading whose counters are rates.
#[derive(Clone, Debug)]
pub struct RateView {
    /// The reading.
    pub reading: Reading,
    /// Its rows again, with each counter as its growth per second. [`Cell::Null`] where the growth is not
    /// known: a row that is new, a counter that was reset, a first reading.
    pub rows: Vec<Box<[Cell]>>,
    /// Seconds between the two readings; zero if there is only one.
    pub seconds: f64,
}

/// Makes of a reading, and of the one before it, the rates between them.
///
/// Rows are the same if their keys are. A counter that is smaller than before was reset, by somebody or by
/// a crash: how much it has grown is not known, and is not guessed.
pub fn rates(before: Option<&Reading>, now: &Reading) -> RateView {
    let view = now.view;
    let keys: Vec<usize> = places(view, |meaning| meaning == Meaning::Key);
    let key = |row: &[Cell]| keys.iter().map(|&at| key_text(&row[at])).collect::<Vec<_>>();
    let old: HashMap<_, _> = before.map_or_else(HashMap::new, |before| {
        before.rows.iter().map(|row| (key(row), row)).collect()
    });
    #[expect(clippy::cast_precision_loss, reason = "a span of less than a century")]
    let seconds = before.map_or(0.0, |before| (now.taken_us - before.taken_us) as f64 / 1e6);
    let rate = |old: Option<&Cell>, new: &Cell| {
        let growth = new.number()? - old?.number()?;
        (growth >= 0.0 && seconds > 0.0).then_some(growth / seconds)
    };
    let counters = places(view, |meaning| meaning == Meaning::Counter);
    let rows = now.rows.iter().map(|row| {
        let old = old.get(&key(row));
        let mut rated = row.clone();
        for &at in &counters {
            if row[at] != Cell::Unavailable {
                rated[at] = rate(old.map(|old| &old[at]), &row[at]).into();
            }
        }
        rated
    });
    RateView { reading: now.clone(), rows: rows.collect(), seconds }
}

fn places(view: &crate::View, wanted: impl Fn(Meaning) -> bool) -> Vec<usize> {
    let is_wanted = |&at: &usize| wanted(view.columns[at].meaning);
    (0..view.columns.len()).filter(is_wanted).collect()
}

fn key_text(cell: &Cell) -> String {
    match cell {
        Cell::Null => "\0".to_owned(),
        Cell::Unavailable => "\x01".to_owned(),
        Cell::Text(text) => text.to_string(),
        Cell::Integer(value) => value.to_string(),
        Cell::Real(value) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Column, Unit, View};

    const VIEW: View = View {
        name: "test",
        help: "",
        columns: &[
            Column {
                name: "k",
                title: "",
                unit: Unit::Text,
                meaning: Meaning::Key,
                sql: &[],
                help: "",
            },
            Column {
                name: "n",
                title: "",
                unit: Unit::Count,
                meaning: Meaning::Counter,
                sql: &[],
                help: "",
            },
            Column {
                name: "g",
                title: "",
                unit: Unit::Count,
                meaning: Meaning::Gauge,
                sql: &[],
                help: "",
            },
        ],
        from: &[],
        order: "n",
        essentials: &[],
        is_of_database: false,
        extension: None,
    };

    fn reading(taken_us: i64, rows: &[(&str, i64)]) -> Reading {
        let row = |&(key, n): &(&str, i64)| Box::from([key.into(), n.into(), n.into()]);
        Reading { view: &VIEW, taken_us, rows: rows.iter().map(row).collect() }
    }

    #[test]
    fn counters_become_rates_and_gauges_stay() {
        let before = reading(1_000_000, &[("a", 10), ("b", 10), ("gone", 1)]);
        let now = reading(3_000_000, &[("new", 7), ("a", 30), ("b", 4)]);
        let rated = rates(Some(&before), &now);
        let counters: Vec<_> = rated.rows.iter().map(|row| row[1].clone()).collect();
        // b was reset: not known, and not negative.
        assert_eq!(counters, [Cell::Null, Cell::Real(10.0), Cell::Null]);
        assert_eq!(rated.rows[1][2], Cell::Integer(30));
        assert!((rated.seconds - 2.0).abs() < 1e-9);
    }

    #[test]
    fn a_first_reading_has_no_rates() {
        let rated = rates(None, &reading(1, &[("a", 10)]));
        assert_eq!(rated.rows[0][1], Cell::Null);
    }
}
