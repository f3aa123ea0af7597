//! Durations and timeouts: `250ms`, `15s`, `1m`, `1h`, `1d`, or seconds.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

/// Longest valid duration, in seconds: 100 years. A longer one is probably a typing error, and
/// adding it to an `Instant` could overflow.
const SECONDS_MAX: f64 = 100.0 * 365.0 * 86_400.0;

/// Parses a number with the unit `ms`, `s`, `m`, `min`, `h` or `d` into seconds; a number without a
/// unit is in seconds.
pub fn parse_seconds(text: &str) -> Option<f64> {
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
    Some(number.parse::<f64>().ok()? * factor)
}

/// Parses a duration of at most 100 years, in the notation of [`parse_seconds`].
///
/// # Errors
///
/// The text is not such a duration; the error shows the notation.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let duration = parse_seconds(text).and_then(duration_from_seconds);
    duration.ok_or_else(|| not_a_duration(&format!("{text:?}"), "seconds"))
}

/// Returns a duration, or `None` if the number is negative or above 100 years.
pub fn duration_from_seconds(seconds: f64) -> Option<Duration> {
    (0.0..=SECONDS_MAX).contains(&seconds).then(|| Duration::from_secs_f64(seconds))
}

/// Returns the error for an invalid value; `bare` is the unit of a number without one.
fn not_a_duration(value: &str, bare: &str) -> String {
    format!("{value} is not a duration: write 250ms, 15s, 1m, 1h, 1d or {bare}")
}

/// A duration as written in TOML.
#[derive(Deserialize)]
#[serde(untagged)]
enum DurationValue {
    Whole(u32),
    Number(f64),
    Text(String),
}

/// Reads a duration whose numbers without a unit have the length `bare`, in seconds, and the name
/// `bare_name`.
fn read<'de, D>(from: D, bare: f64, bare_name: &str) -> Result<Duration, D::Error>
where
    D: Deserializer<'de>,
{
    let (duration, value) = match DurationValue::deserialize(from) {
        Ok(DurationValue::Whole(whole)) => {
            (duration_from_seconds(f64::from(whole) * bare), whole.to_string())
        }
        Ok(DurationValue::Number(number)) => {
            (duration_from_seconds(number * bare), number.to_string())
        }
        Ok(DurationValue::Text(text)) => (parse_duration(&text).ok(), format!("{text:?}")),
        Err(_) => (None, "this".to_owned()),
    };
    duration.ok_or_else(|| D::Error::custom(not_a_duration(&value, bare_name)))
}

/// Serde module for a duration; a number is in seconds.
pub mod duration {
    use super::{Deserializer, Duration, Serializer};

    /// Reads a duration.
    ///
    /// # Errors
    ///
    /// The value is not a duration of at most 100 years.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        super::read(from, 1.0, "seconds")
    }

    /// Writes seconds, whole if possible.
    ///
    /// # Errors
    ///
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
        match duration.subsec_nanos() {
            0 => to.serialize_u64(duration.as_secs()),
            _ => to.serialize_f64(duration.as_secs_f64()),
        }
    }
}

/// Returns a duration in its largest unit without a fraction; `None` if it has a fraction of a
/// millisecond.
fn in_whole_units(duration: Duration) -> Option<String> {
    const UNITS: [(&str, u128); 5] =
        [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];
    let ms = duration.as_millis();
    let (unit, length) =
        UNITS.into_iter().find(|(_, length)| ms > 0 && ms.is_multiple_of(*length))?;
    duration.subsec_nanos().is_multiple_of(1_000_000).then(|| format!("{}{unit}", ms / length))
}

/// Serde module for a duration; a number is in milliseconds. Texts need a unit.
pub mod milliseconds {
    use super::{Deserializer, Duration, Serializer};

    /// Reads a duration.
    ///
    /// # Errors
    ///
    /// The value is not a duration of at most 100 years.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        super::read(from, 0.001, "milliseconds")
    }

    /// Writes the duration in its largest unit without a fraction, or else a number.
    ///
    /// # Errors
    ///
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
        match super::in_whole_units(*duration) {
            Some(text) => to.serialize_str(&text),
            None if duration.is_zero() => to.serialize_u64(0),
            None => to.serialize_f64(duration.as_secs_f64() * 1000.0),
        }
    }
}

/// Serde module for a timeout; 0 means no timeout.
pub mod timeout {
    use super::{Deserializer, Duration, Serializer, duration};

    /// Reads a timeout.
    ///
    /// # Errors
    ///
    /// The value is not a duration of at most 100 years.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        duration::deserialize(from).map(|found| (!found.is_zero()).then_some(found))
    }

    /// Writes seconds, or 0.
    ///
    /// # Errors
    ///
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(it: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        duration::serialize(&it.unwrap_or_default(), to)
    }
}

/// Declares a serde module for a value that may be missing, from the module of the value.
macro_rules! optional {
    ($(#[$doc:meta])* $name:ident, $value:ty, $module:ident) => {
        $(#[$doc])*
        pub mod $name {
            use super::{Deserializer, Duration, Serializer, $module};

            /// Reads a value that is present.
            ///
            /// # Errors
            ///
            /// The value is not a duration of at most 100 years.
            pub fn deserialize<'de, D>(from: D) -> Result<Option<$value>, D::Error>
            where
                D: Deserializer<'de>,
            {
                $module::deserialize(from).map(Some)
            }

            /// Writes the value, if there is one.
            ///
            /// # Errors
            ///
            /// Those of the serializer.
            pub fn serialize<S: Serializer>(it: &Option<$value>, to: S) -> Result<S::Ok, S::Error> {
                match it {
                    Some(it) => $module::serialize(it, to),
                    None => to.serialize_none(),
                }
            }
        }
    };
}

optional!(
    /// Serde module for a duration that may be missing.
    optional_duration,
    Duration,
    duration
);
optional!(
    /// Serde module for a timeout that may be missing; 0 means no timeout.
    optional_timeout,
    Option<Duration>,
    timeout
);

#[test]
fn duration_has_unit_or_is_seconds() {
    let value = |text: &str| toml::Table::deserialize(toml::Deserializer::parse(text).unwrap());
    let read = |text: &str| {
        let table = value(&format!("a = {text}")).unwrap();
        duration::deserialize(table["a"].clone()).ok()
    };
    assert_eq!(read("15"), Some(Duration::from_secs(15)));
    assert_eq!(read("0.5"), Some(Duration::from_millis(500)));
    assert_eq!(read("'250ms'"), Some(Duration::from_millis(250)));
    assert_eq!(read("'1.5h'"), Some(Duration::from_secs(5400)));
    assert_eq!(read("'2d'"), Some(Duration::from_secs(172_800)));
    for wrong in ["-1", "'10 parsecs'", "''", "'.'", "1e300", "nan", "[1]", "true", "'9999999d'"] {
        assert_eq!(read(wrong), None, "{wrong}");
    }
    let table = value("a = 250").unwrap();
    assert_eq!(milliseconds::deserialize(table["a"].clone()), Ok(Duration::from_millis(250)));
    let error = milliseconds::deserialize(toml::Value::Boolean(true)).unwrap_err();
    assert!(error.to_string().contains("1d or milliseconds"), "{error}");
}

#[test]
fn milliseconds_are_written_with_their_largest_unit() {
    #[derive(serde::Serialize, Deserialize)]
    struct Timing {
        #[serde(with = "milliseconds")]
        interval: Duration,
    }
    let cases = [
        (Duration::ZERO, "0"),
        (Duration::from_millis(250), "\"250ms\""),
        (Duration::from_secs(10), "\"10s\""),
        (Duration::from_secs(90), "\"90s\""),
        (Duration::from_secs(300), "\"5m\""),
        (Duration::from_secs(720 * 3600), "\"30d\""),
        (Duration::from_micros(1500), "1.5"),
    ];
    for (interval, expected) in cases {
        let written = toml::to_string(&Timing { interval }).unwrap();
        assert_eq!(written, format!("interval = {expected}\n"));
        assert_eq!(toml::from_str::<Timing>(&written).unwrap().interval, interval);
    }
}
