//! Durations as programs in Go write them.

use std::time::Duration;

/// Parses a duration: `1m20s`, `500ms`, `0`.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text;
    let mut total = Duration::ZERO;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (digits, after) = rest.split_at(end);
        let end = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let seconds = match unit {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        let digits: f64 = digits.parse().ok()?;
        total = total.checked_add(Duration::try_from_secs_f64(digits * seconds).ok()?)?;
        rest = after;
    }
    Some(total)
}

#[test]
fn durations_are_parsed() {
    assert_eq!(duration("1m20s"), Some(Duration::from_secs(80)));
    assert_eq!(duration("1.5ms"), Some(Duration::from_micros(1500)));
    for wrong in ["", "5", "5 s", "-1s", "1x", "s", "99999999999999999999h"] {
        assert_eq!(duration(wrong), None, "{wrong}");
    }
}
