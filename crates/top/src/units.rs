//! Formats numbers in few terminal columns.

use howdah_collect::{ColumnUnit, ViewCell};

/// Formats a cell: `-` without a value, `n/a` if it is unreadable.
pub fn format_cell(cell: &ViewCell, unit: ColumnUnit) -> String {
    match cell {
        ViewCell::Null => "-".to_owned(),
        ViewCell::Unavailable => "n/a".to_owned(),
        ViewCell::Text(text) => text.to_string(),
        ViewCell::Integer(_) | ViewCell::Real(_) => {
            format_number(cell.number().unwrap_or(0.0), unit)
        }
    }
}

fn format_number(value: f64, unit: ColumnUnit) -> String {
    match unit {
        ColumnUnit::Seconds => format_duration(value),
        ColumnUnit::Bytes => scaled(value, 1024.0, &["B", "kB", "MB", "GB", "TB", "PB"]),
        ColumnUnit::Percent => format!("{value:.1}%"),
        ColumnUnit::Milliseconds if value != 0.0 && value.abs() < 100.0 => format!("{value:.2}"),
        ColumnUnit::Milliseconds | ColumnUnit::Count | ColumnUnit::Text => format_count(value),
    }
}

/// Formats a count: below a million without a prefix, larger ones with a metric prefix.
fn format_count(value: f64) -> String {
    if value.abs() >= 1e6 {
        return scaled(value, 1000.0, &["", "k", "M", "G", "T", "P"]);
    }
    let is_whole = (value - value.round()).abs() < 0.05 || value.abs() >= 100.0;
    if is_whole { format!("{value:.0}") } else { format!("{value:.1}") }
}

fn scaled(value: f64, step: f64, letters: &[&str]) -> String {
    let mut value = value;
    let mut at = 0;
    while value.abs() >= step && at + 1 < letters.len() {
        value /= step;
        at += 1;
    }
    let decimals = if at > 0 && value.abs() < 100.0 { 1 } else { 0 };
    format!("{value:.decimals$}{}", letters[at])
}

/// Formats a duration, such as `250ms`, `3.2s`, `5m07s` or `2d04h`. A duration of less than 1000
/// days takes at most seven columns.
pub fn format_duration(seconds: f64) -> String {
    #[expect(clippy::cast_possible_truncation, reason = "saturates, and is not negative")]
    #[expect(clippy::cast_sign_loss, reason = "saturates, and is not negative")]
    let whole = seconds.max(0.0) as u64;
    match whole {
        0 => format!("{:.0}ms", seconds.max(0.0) * 1000.0),
        1..60 => format!("{seconds:.1}s"),
        60..3600 => format!("{}m{:02}s", whole / 60, whole % 60),
        3600..86400 => format!("{}h{:02}m", whole / 3600, whole / 60 % 60),
        _ => format!("{}d{:02}h", whole / 86400, whole / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_fit_seven_columns() {
        let table = [
            (0.0, "0ms"),
            (0.0123, "12ms"),
            (5.25, "5.2s"),
            (59.94, "59.9s"),
            (61.0, "1m01s"),
            (3600.0 * 5.5, "5h30m"),
            (86400.0 * 400.0, "400d00h"),
            (-3.0, "0ms"),
        ];
        for (seconds, expected) in table {
            assert_eq!(format_duration(seconds), expected);
        }
    }

    #[test]
    fn cells_without_a_value_are_not_zero() {
        assert_eq!(format_cell(&ViewCell::Null, ColumnUnit::Count), "-");
        assert_eq!(format_cell(&ViewCell::Unavailable, ColumnUnit::Count), "n/a");
        assert_eq!(format_cell(&ViewCell::Integer(0), ColumnUnit::Count), "0");
    }

    #[test]
    fn numbers_keep_significant_digits() {
        let table = [
            (ViewCell::Real(0.25), ColumnUnit::Count, "0.2"),
            (ViewCell::Integer(123_456), ColumnUnit::Count, "123456"),
            (ViewCell::Integer(12_345_678), ColumnUnit::Count, "12.3M"),
            (ViewCell::Integer(1536), ColumnUnit::Bytes, "1.5kB"),
            (ViewCell::Integer(500), ColumnUnit::Bytes, "500B"),
            (ViewCell::Real(99.95), ColumnUnit::Percent, "100.0%"),
            (ViewCell::Real(1.234), ColumnUnit::Milliseconds, "1.23"),
            (ViewCell::Real(1234.5), ColumnUnit::Milliseconds, "1234"),
        ];
        for (cell, unit, expected) in table {
            assert_eq!(format_cell(&cell, unit), expected);
        }
    }
}
