//! Reads and writes durations: seconds, or a number with a unit.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer};

/// Longest valid duration, in seconds: 100 years. A longer one is probably a typing error, and
/// adding it to an `Instant` could overflow.
const SECONDS_MAX: f64 = 100.0 * 365.0 * 86_400.0;

/// Parses seconds, such as `15` or `0.5`: the format of `pgbouncer.ini`.
pub(super) fn parse_seconds(text: &str) -> Option<Duration> {
    let seconds = text.trim().parse::<f64>().ok()?;
    (0.0..=SECONDS_MAX).contains(&seconds).then(|| Duration::from_secs_f64(seconds))
}

/// Deserializes seconds or a number with a unit: `15`, `"250ms"`, `"15s"`, `"1m"`, `"1h"`, `"1d"`.
fn deserialize_duration<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum DurationValue {
        Whole(u32),
        Seconds(f64),
        Text(String),
    }
    let (duration, text) = match DurationValue::deserialize(from) {
        Ok(DurationValue::Whole(whole)) => (parse_seconds(&whole.to_string()), whole.to_string()),
        Ok(DurationValue::Seconds(number)) => {
            (parse_seconds(&number.to_string()), number.to_string())
        }
        Ok(DurationValue::Text(text)) => (parse_with_unit(&text), format!("{text:?}")),
        Err(_) => (None, "this".to_owned()),
    };
    duration.ok_or_else(|| {
        let why = format!("{text} is not a duration: write 250ms, 15s, 1m, 1h, 1d or seconds");
        serde::de::Error::custom(why)
    })
}

/// Serde module for a duration.
pub(super) mod duration {
    use super::{Deserializer, Duration, Serializer};

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        super::deserialize_duration(from)
    }

    pub(crate) fn serialize<S: Serializer>(it: &Duration, to: S) -> Result<S::Ok, S::Error> {
        match it.subsec_nanos() {
            0 => to.serialize_u64(it.as_secs()),
            _ => to.serialize_f64(it.as_secs_f64()),
        }
    }
}

/// Serde module for a timeout; 0 means no timeout.
pub(super) mod timeout {
    use super::{Deserializer, Duration, Serializer};

    pub(crate) fn deserialize<'de, D>(from: D) -> Result<Option<Duration>, D::Error>
    where
        D: Deserializer<'de>,
    {
        super::deserialize_duration(from).map(|found| (!found.is_zero()).then_some(found))
    }

    pub(crate) fn serialize<S: Serializer>(
        it: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        super::duration::serialize(&it.unwrap_or_default(), to)
    }
}

/// Parses a number with the unit `ms`, `s`, `m`, `min`, `h` or `d`; a number without a unit is in
/// seconds.
pub(super) fn parse_with_unit(text: &str) -> Option<Duration> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let factor = match unit.trim() {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return None,
    };
    let seconds = number.parse::<f64>().ok()? * factor;
    (0.0..=SECONDS_MAX).contains(&seconds).then(|| Duration::from_secs_f64(seconds))
}

#[test]
fn duration_has_unit_or_is_seconds() {
    let read = |text: &str| {
        let table: toml::Table = format!("a = {text}").parse().unwrap();
        deserialize_duration(table["a"].clone()).ok()
    };
    assert_eq!(read("15"), Some(Duration::from_secs(15)));
    assert_eq!(read("0.5"), Some(Duration::from_millis(500)));
    assert_eq!(read("'250ms'"), Some(Duration::from_millis(250)));
    assert_eq!(read("'1.5h'"), Some(Duration::from_secs(5400)));
    assert_eq!(read("'2d'"), Some(Duration::from_secs(172_800)));
    for wrong in ["-1", "'10 parsecs'", "''", "'.'", "1e300", "nan", "[1]", "true", "'9999999d'"] {
        assert_eq!(read(wrong), None, "{wrong}");
    }
    assert_eq!(parse_seconds("nan"), None);
    assert_eq!(parse_seconds(" 120.0 "), Some(Duration::from_secs(120)));
}
