//! How durations are written: seconds, or a number with its unit.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer};

/// Longest duration that makes sense; a longer one is a slip of the pen, and would overflow when
/// added to a time.
const SECONDS_MAX: f64 = 100.0 * 365.0 * 86_400.0;

/// Reads seconds, such as `15` or `0.5`: the form of `pgbouncer.ini`.
pub(super) fn seconds(text: &str) -> Option<Duration> {
    let seconds = text.trim().parse::<f64>().ok()?;
    (0.0..=SECONDS_MAX).contains(&seconds).then(|| Duration::from_secs_f64(seconds))
}

/// Reads seconds or a number with a unit: `15`, `"250ms"`, `"15s"`, `"1m"`, `"1h"`, `"1d"`.
fn duration<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Whole(u32),
        Seconds(f64),
        Text(String),
    }
    let (found, written) = match Written::deserialize(from) {
        Ok(Written::Whole(whole)) => (seconds(&whole.to_string()), whole.to_string()),
        Ok(Written::Seconds(number)) => (seconds(&number.to_string()), number.to_string()),
        Ok(Written::Text(text)) => (with_unit(&text), format!("{text:?}")),
        Err(_) => (None, "this".to_owned()),
    };
    found.ok_or_else(|| {
        let why = format!("{written} is no duration: write 250ms, 15s, 1m, 1h, 1d or seconds");
        serde::de::Error::custom(why)
    })
}

/// A duration of settings.
pub(super) mod whole {
    use super::{Deserializer, Duration, Serializer};

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        super::duration(from)
    }

    pub(crate) fn serialize<S: Serializer>(it: &Duration, to: S) -> Result<S::Ok, S::Error> {
        match it.subsec_nanos() {
            0 => to.serialize_u64(it.as_secs()),
            _ => to.serialize_f64(it.as_secs_f64()),
        }
    }
}

/// A duration of settings, with 0 for never.
pub(super) mod optional {
    use super::{Deserializer, Duration, Serializer};

    pub(crate) fn deserialize<'de, D>(from: D) -> Result<Option<Duration>, D::Error>
    where
        D: Deserializer<'de>,
    {
        super::duration(from).map(|found| (!found.is_zero()).then_some(found))
    }

    pub(crate) fn serialize<S: Serializer>(
        it: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        super::whole::serialize(&it.unwrap_or_default(), to)
    }
}

/// A duration with its unit; seconds without one.
pub(super) fn with_unit(text: &str) -> Option<Duration> {
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
fn durations_have_units_or_are_seconds() {
    let read = |text: &str| {
        let table: toml::Table = format!("a = {text}").parse().unwrap();
        duration(table["a"].clone()).ok()
    };
    assert_eq!(read("15"), Some(Duration::from_secs(15)));
    assert_eq!(read("0.5"), Some(Duration::from_millis(500)));
    assert_eq!(read("'250ms'"), Some(Duration::from_millis(250)));
    assert_eq!(read("'1.5h'"), Some(Duration::from_secs(5400)));
    assert_eq!(read("'2d'"), Some(Duration::from_secs(172_800)));
    for wrong in ["-1", "'10 parsecs'", "''", "'.'", "1e300", "nan", "[1]", "true", "'9999999d'"] {
        assert_eq!(read(wrong), None, "{wrong}");
    }
    assert_eq!(seconds("nan"), None);
    assert_eq!(seconds(" 120.0 "), Some(Duration::from_secs(120)));
}
