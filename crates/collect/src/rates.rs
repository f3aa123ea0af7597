//! Computes the rates of counters between two samples of a view.

use std::collections::HashMap;

use crate::{ColumnKind, ViewCell, ViewSample};

/// A sample whose counters are shown as rates.
#[derive(Clone, Debug)]
pub struct RateView {
    /// The sample with its counters unchanged.
    pub sample: ViewSample,
    /// Rows of the sample with each counter replaced by its growth per second. [`ViewCell::Null`]
    /// if the growth is unknown, as for a new row, after a reset, or in the first sample. A counter
    /// that is [`ViewCell::Unavailable`] stays so.
    pub rows: Vec<Box<[ViewCell]>>,
    /// Seconds since the previous sample; zero if there is none.
    pub seconds: f64,
}

/// Computes the rates between a sample and the previous one.
///
/// Rows are matched by their keys. A counter that is smaller than before was reset, by a user or by
/// a crash, so its growth is unknown.
pub fn rates(before: Option<&ViewSample>, now: &ViewSample) -> RateView {
    let view = now.view;
    let keys: Vec<usize> = column_indexes(view, |meaning| meaning == ColumnKind::Key);
    let key = |row: &[ViewCell]| keys.iter().map(|&at| key_text(&row[at])).collect::<Vec<_>>();
    let old: HashMap<_, _> = before.map_or_else(HashMap::new, |before| {
        before.rows.iter().map(|row| (key(row), row)).collect()
    });
    #[expect(clippy::cast_precision_loss, reason = "a span of less than a century")]
    let seconds = before.map_or(0.0, |before| (now.taken_us - before.taken_us) as f64 / 1e6);
    let rate = |old: Option<&ViewCell>, new: &ViewCell| {
        let growth = new.number()? - old?.number()?;
        (growth >= 0.0 && seconds > 0.0).then_some(growth / seconds)
    };
    let counters = column_indexes(view, |meaning| meaning == ColumnKind::Counter);
    let rows = now.rows.iter().map(|row| {
        let old = old.get(&key(row));
        let mut row_rates = row.clone();
        for &at in &counters {
            if row[at] != ViewCell::Unavailable {
                row_rates[at] = rate(old.map(|old| &old[at]), &row[at]).into();
            }
        }
        row_rates
    });
    RateView { sample: now.clone(), rows: rows.collect(), seconds }
}

fn column_indexes(view: &crate::StatsView, wanted: impl Fn(ColumnKind) -> bool) -> Vec<usize> {
    let is_wanted = |&at: &usize| wanted(view.columns[at].kind);
    (0..view.columns.len()).filter(is_wanted).collect()
}

fn key_text(cell: &ViewCell) -> String {
    match cell {
        ViewCell::Null => "\0".to_owned(),
        ViewCell::Unavailable => "\x01".to_owned(),
        ViewCell::Text(text) => text.to_string(),
        ViewCell::Integer(value) => value.to_string(),
        ViewCell::Real(value) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ColumnUnit, StatsView, ViewColumn};

    const VIEW: StatsView = StatsView {
        name: "test",
        help: "",
        columns: &[
            ViewColumn {
                name: "k",
                title: "",
                unit: ColumnUnit::Text,
                kind: ColumnKind::Key,
                sql: &[],
                help: "",
            },
            ViewColumn {
                name: "n",
                title: "",
                unit: ColumnUnit::Count,
                kind: ColumnKind::Counter,
                sql: &[],
                help: "",
            },
            ViewColumn {
                name: "g",
                title: "",
                unit: ColumnUnit::Count,
                kind: ColumnKind::Gauge,
                sql: &[],
                help: "",
            },
        ],
        from: &[],
        order: "n",
        essential_columns: &[],
        is_per_database: false,
        extension: None,
    };

    fn sample(taken_us: i64, rows: &[(&str, i64)]) -> ViewSample {
        let row = |&(key, n): &(&str, i64)| Box::from([key.into(), n.into(), n.into()]);
        ViewSample { view: &VIEW, taken_us, rows: rows.iter().map(row).collect() }
    }

    #[test]
    fn counters_become_rates_and_gauges_stay() {
        let before = sample(1_000_000, &[("a", 10), ("b", 10), ("gone", 1)]);
        let now = sample(3_000_000, &[("new", 7), ("a", 30), ("b", 4)]);
        let rate_view = rates(Some(&before), &now);
        let counters: Vec<_> = rate_view.rows.iter().map(|row| row[1].clone()).collect();
        // b was reset: unknown rather than negative.
        assert_eq!(counters, [ViewCell::Null, ViewCell::Real(10.0), ViewCell::Null]);
        assert_eq!(rate_view.rows[1][2], ViewCell::Integer(30));
        assert!((rate_view.seconds - 2.0).abs() < 1e-9);
    }

    #[test]
    fn first_sample_has_no_rates() {
        let rate_view = rates(None, &sample(1, &[("a", 10)]));
        assert_eq!(rate_view.rows[0][1], ViewCell::Null);
    }
}
