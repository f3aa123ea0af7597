//! Formats numbers and texts for people.

/// Units of time, smallest first, with their length in microseconds.
const UNITS: [(&str, f64); 3] = [("µs", 1.0), ("ms", 1e3), ("s", 1e6)];

/// Formats a duration with three significant digits or as a whole number: `203 µs`, `2.91 ms`,
/// `14.2 s`.
pub(crate) fn duration(micros: f64) -> String {
    let (unit, scale) = time_unit(micros);
    format!("{} {unit}", digits(micros / scale, scale))
}

/// Formats two durations in the unit of the longer one: `0.20 ms → 2.91 ms`.
pub(crate) fn durations(before: f64, after: f64) -> String {
    let longer = before.max(after);
    format!("{} → {}", duration_in_unit_of(before, longer), duration_in_unit_of(after, longer))
}

/// Formats a duration in the unit of another, usually longer one: `0.20 ms` next to `2.91 ms`.
pub(crate) fn duration_in_unit_of(micros: f64, other: f64) -> String {
    let (unit, scale) = time_unit(other);
    format!("{} {unit}", digits(micros / scale, scale))
}

/// Formats a range in the unit of another duration: `2.88–2.94 ms`.
pub(crate) fn duration_range(low: f64, high: f64, other: f64) -> String {
    let (unit, scale) = time_unit(other);
    format!("{}–{} {unit}", digits(low / scale, scale), digits(high / scale, scale))
}

/// Formats a difference with its sign: `+12.3 s`, `-80 µs`.
pub(crate) fn difference(micros: f64) -> String {
    format!("{}{}", if micros < 0.0 { "-" } else { "+" }, duration(micros.abs()))
}

/// Formats a factor: `142×`, `14.2×`, `0.07×`.
pub(crate) fn factor(factor: f64) -> String {
    format!("{}×", factor_digits(factor))
}

/// Formats a factor without `×`, for ranges such as `13.1–15.0`.
pub(crate) fn factor_digits(factor: f64) -> String {
    match factor {
        factor if factor >= 100.0 => format!("{factor:.0}"),
        factor if factor >= 10.0 => format!("{factor:.1}"),
        factor => format!("{factor:.2}"),
    }
}

fn time_unit(micros: f64) -> (&'static str, f64) {
    // A value that would round to 1000 of a unit is formatted as 1 of the next unit.
    let fits = |unit: &&(&str, f64)| micros / unit.1 < 999.5;
    *UNITS.iter().find(fits).unwrap_or(&UNITS[UNITS.len() - 1])
}

fn digits(value: f64, scale: f64) -> String {
    match value {
        // Means can have fractions of a microsecond, which are not shown.
        value if scale == 1.0 || value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

/// Formats a size: `512 B`, `1.50 KiB`, `3.20 GiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut scaled = bytes as f64;
    let mut shown = format!("{scaled:.0} B");
    for unit in UNITS {
        if scaled < 1024.0 {
            break;
        }
        scaled /= 1024.0;
        shown = format!("{scaled:.2} {unit}");
    }
    shown
}

/// Formats an age in its largest unit, rounded down: `40 s`, `2 min`, `26 h`, `12 days`.
pub(crate) fn age(age: std::time::Duration) -> String {
    match age.as_secs() {
        seconds @ ..120 => format!("{seconds} s"),
        seconds @ ..7200 => format!("{} min", seconds / 60),
        seconds @ ..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

/// Formats a count with its noun: `1 error`, `2 errors`.
pub fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Shortens a text to one line of at most `width` characters, at least 1. Control characters become
/// spaces, because a query must not control the terminal on which it is printed.
pub(crate) fn one_line(text: &str, width: usize) -> String {
    let is_gap = |c: char| c.is_whitespace() || c.is_control();
    let mut line = String::new();
    let mut free = width.max(1);
    for word in text.split(is_gap).filter(|word| !word.is_empty()) {
        let gap = if line.is_empty() { "" } else { " " };
        for char in gap.chars().chain(word.chars()) {
            if free == 0 {
                line.pop();
                line.truncate(line.trim_end().len());
                line.push('…');
                return line;
            }
            line.push(char);
            free -= 1;
        }
    }
    line
}

#[test]
fn durations_have_at_most_three_digits() {
    let cases = [
        (0.0, "0 µs"),
        (0.4, "0 µs"),
        (203.0, "203 µs"),
        (999.4, "999 µs"),
        (999.6, "1.00 ms"),
        (2_910.0, "2.91 ms"),
        (14_200.0, "14.2 ms"),
        (350_000.0, "350 ms"),
        (2_345_000.0, "2.35 s"),
        (86_400e6, "86400 s"),
    ];
    for (micros, shown) in cases {
        assert_eq!(duration(micros), shown);
    }
    assert_eq!(durations(203.0, 2_910.0), "0.20 ms → 2.91 ms");
    assert_eq!(duration_range(203.0, 2_910.0, 2_910.0), "0.20–2.91 ms");
    assert_eq!(difference(-80.0), "-80 µs");
    assert_eq!(factor(14.23), "14.2×");
    assert_eq!(factor(0.071), "0.07×");
    assert_eq!(counted(1, "error"), "1 error");
}

#[test]
fn bytes_use_largest_fitting_unit() {
    assert_eq!(
        [0, 1023, 1024, 38_300 * 8192].map(bytes),
        ["0 B", "1023 B", "1.00 KiB", "299.22 MiB"]
    );
    assert_eq!(bytes(u64::MAX), "16.00 EiB");
}

#[test]
fn ages_are_rounded_down_to_a_unit() {
    let ages = [0, 119, 120, 7199, 7200, 172_799, 172_800, 10 * 86_400 - 1];
    let shown = ages.map(|seconds| age(std::time::Duration::from_secs(seconds)));
    assert_eq!(shown, ["0 s", "119 s", "2 min", "119 min", "2 h", "47 h", "2 days", "9 days"]);
}

#[test]
fn text_is_truncated_to_one_line() {
    assert_eq!(one_line("select\n  1", 20), "select 1");
    assert_eq!(one_line("select column from t", 12), "select colu…");
    assert_eq!(one_line("\x1b[31mred\x07", 20), "[31mred");
    assert_eq!(one_line("abc", 3), "abc");
    assert_eq!(one_line("abc def", 5), "abc…");
    for width in 1..30 {
        let line = one_line("select länge, x from täble where a = ?", width);
        assert!(line.chars().count() <= width, "{width}: {line}");
        assert!(!line.contains("  "));
    }
}
