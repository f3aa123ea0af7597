//! Parsers of option values that several commands share, so that an option means the same everywhere.

use std::time::Duration;

use howdah_top::units::parse_span;

/// Reads a time above zero: `500ms`, `90s`, `5m`, `2h`, `1d`, or a bare number of seconds.
///
/// # Errors
///
/// The text is something else; the error shows what to write.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    parse_span(text)
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .filter(|time| !time.is_zero())
        .ok_or_else(|| {
            "write a time such as 500ms, 10s, 5m or 1h (a bare number is seconds)".to_owned()
        })
}

/// Reads a time that is usually shorter than a second, or 0. Any other bare number is refused, since it could be
/// taken for milliseconds.
///
/// # Errors
///
/// See [`time`].
pub(crate) fn short_time(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(0.0) => Ok(Duration::ZERO),
        Ok(_) => Err(format!("write a unit: {text}ms or {text}s")),
        Err(_) => time(text),
    }
}

#[test]
fn times_have_one_notation_and_short_ones_need_a_unit() {
    assert_eq!(time("1.5"), Ok(Duration::from_millis(1500)));
    assert_eq!(time("5m"), Ok(Duration::from_secs(300)));
    for text in ["", "0", "-1", "1y", "s", "1e400", "nan"] {
        assert!(time(text).is_err(), "{text}");
    }
    assert_eq!(short_time("0.5ms"), Ok(Duration::from_micros(500)));
    assert_eq!(short_time("0"), Ok(Duration::ZERO));
    assert_eq!(short_time("100"), Err("write a unit: 100ms or 100s".to_owned()));
}
