//! Formats numbers for people.

use std::time::Duration;

use howdah_traffic::Timestamp;

/// Formats a duration briefly, with its unit: `35 µs`, `4.2 ms`, `1.50 s`, `95.0 s`.
pub fn duration(duration: Duration) -> String {
    match duration.as_secs_f64() {
        0.0 => "0".to_owned(),
        s if s < 0.000_999_5 => format!("{:.0} µs", s * 1e6),
        s if s < 0.009_95 => format!("{:.1} ms", s * 1e3),
        s if s < 0.999_5 => format!("{:.0} ms", s * 1e3),
        s if s < 9.995 => format!("{s:.2} s"),
        s if s < 99.5 => format!("{s:.1} s"),
        s => format!("{s:.0} s"),
    }
}

/// Formats a number of microseconds like [`duration`].
pub fn micros(us: u64) -> String {
    duration(Duration::from_micros(us))
}

/// Formats a ratio: `3.4x`, `412x`.
pub fn factor(factor: f64) -> String {
    if factor < 10.0 { format!("{factor:.1}x") } else { format!("{factor:.0}x") }
}

/// Formats a part as a percentage of the whole: `93 %`.
pub fn percent(part: f64, whole: f64) -> String {
    format!("{:.0} %", 100.0 * part / whole.max(1e-9))
}

/// Formats microseconds since 1970 as RFC 3339 in UTC, to the second.
pub fn timestamp(at_us: i64) -> String {
    let whole = at_us.div_euclid(1_000_000) * 1_000_000;
    let text = Timestamp::from_micros(whole).to_string();
    match text.split_once('.') {
        Some((seconds, _)) => format!("{seconds}Z"),
        None => text,
    }
}

/// Formats microseconds since 1970 as the time of day in UTC: `13:58:36`.
pub fn time_of_day(at_us: i64) -> String {
    let seconds = at_us.div_euclid(1_000_000).rem_euclid(86_400);
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[test]
fn units_are_formatted_briefly() {
    let us = [0, 35, 4_200, 40_000, 1_500_000, 23_489_000, 527_000_000];
    let shown = us.map(micros);
    assert_eq!(shown, ["0", "35 µs", "4.2 ms", "40 ms", "1.50 s", "23.5 s", "527 s"]);
    assert_eq!((factor(3.44), factor(411.7)), ("3.4x".to_owned(), "412x".to_owned()));
    assert_eq!(timestamp(1_414_072_716_900_000), "2014-10-23T13:58:36Z");
    assert_eq!(time_of_day(1_414_072_716_900_000), "13:58:36");
}
