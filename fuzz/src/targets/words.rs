//! Small values of the command line and of files: SQLSTATEs, rates, times, fingerprints.

use std::{fmt::Display, str::FromStr};

use howdah_compare::FailOn;
use howdah_replay::{Rate, Renaming};
use howdah_sql::Fingerprint;
use howdah_traffic::{Kind, Source, SqlState, Timestamp};

use super::Shape;

/// Texts of such values.
pub const WORDS: &[&[u8]] = &[
    b"p95",
    b"mean",
    b"errors",
    b"calls",
    b">",
    b">=",
    b"1.5x",
    b"20ms",
    b"10",
    b"1min",
    b"us",
    b"s",
    b"max",
    b"0.5",
    b"1e-300",
    b"inf",
    b"nan",
    b"-",
    b"=",
    b"OLD=NEW",
    b"2026-11-20T12:43:19.577Z",
    b"9999-12-31T23:59:59.999999999+25:59",
    b"00000000000000ff",
    b"23505",
    b"simple",
    b"duration",
];

/// Parses the input as each of these types.
pub fn run(input: &[u8]) -> Shape {
    let code = SqlState::new(input);
    if let Some(code) = code {
        assert_eq!(code.as_str().as_bytes(), input);
    }
    let Ok(text) = std::str::from_utf8(input) else { return Shape::of(code.is_some()) };
    assert_eq!(Kind::parse(text).is_some(), Kind::ALL.iter().any(|kind| kind.as_str() == text));
    let is_source = Source::ALL.iter().any(|source| source.as_str() == text);
    assert_eq!(Source::parse(text).is_some(), is_source);
    Shape::of((
        code.is_some(),
        round_trip::<FailOn>(text),
        round_trip::<Rate>(text),
        round_trip::<Renaming>(text),
        text.parse::<Timestamp>().is_ok_and(|time| time >= LAST) || round_trip::<Timestamp>(text),
        round_trip::<Fingerprint>(text),
        text.len().min(9),
    ))
}

/// The last day of the calendar; later times are printed as plain microseconds.
const LAST: Timestamp = Timestamp::from_micros(253_402_207_200_000_000);

/// Whether `text` parses as a `T`. If so, checks that it equals the value parsed from its own
/// output.
fn round_trip<T: FromStr<Err: Display> + Display + PartialEq>(text: &str) -> bool {
    let value = match text.parse::<T>() {
        Ok(value) => value,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return false;
        }
    };
    let printed = value.to_string();
    let again = printed.parse::<T>();
    assert!(again.is_ok_and(|again| again == value), "{text:?} is printed as {printed:?}");
    true
}
