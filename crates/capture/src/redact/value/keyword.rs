//! Words that have a meaning for a type or a function, and time zones.

use super::KeyedStream;

/// Whether a value is a word that is preserved: values of `boolean`, special values of numbers,
/// times and ranges, and parts of times, as for `date_trunc`.
pub(super) fn is_preserved(value: &[u8]) -> bool {
    let is = |word: &&str| value.eq_ignore_ascii_case(word.as_bytes());
    PRESERVED_WORDS.iter().any(is) || is_time_unit(value)
}

const PRESERVED_WORDS: [&str; 29] = [
    "true",
    "false",
    "t",
    "f",
    "yes",
    "no",
    "y",
    "n",
    "on",
    "off",
    "null",
    "nan",
    "inf",
    "-inf",
    "+inf",
    "infinity",
    "-infinity",
    "+infinity",
    "epoch",
    "now",
    "today",
    "tomorrow",
    "yesterday",
    "allballs",
    "empty",
    "utc",
    "gmt",
    "dow",
    "doy",
];

/// Whether a word is a unit of `interval`, or a part of a time. Source: manual, Interval Input,
/// and `date_trunc`.
pub(super) fn is_time_unit(word: &[u8]) -> bool {
    UNITS.iter().any(|unit| {
        let stem = word.len().checked_sub(unit.len()).map(|_| word.split_at(unit.len()));
        stem.is_some_and(|(stem, rest)| {
            stem.eq_ignore_ascii_case(unit.as_bytes()) && matches!(rest, b"" | b"s" | b"S")
        })
    }) || ["centuries", "millennia"].iter().any(|unit| word.eq_ignore_ascii_case(unit.as_bytes()))
}

const UNITS: [&str; 18] = [
    "microsecond",
    "millisecond",
    "msec",
    "usec",
    "second",
    "sec",
    "minute",
    "min",
    "hour",
    "hr",
    "day",
    "week",
    "mon",
    "month",
    "quarter",
    "year",
    "decade",
    "century",
];

/// Returns the replacement of the name of a time zone, such as `Europe/Vienna`: another zone.
pub(super) fn redact_zone(value: &[u8], stream: &mut KeyedStream) -> Option<Vec<u8>> {
    let slash = memchr::memchr(b'/', value)?;
    let (area, place) = (&value[..slash], &value[slash + 1..]);
    let is_place = |byte: &u8| byte.is_ascii_alphanumeric() || b"_/+-".contains(byte);
    let is_zone = AREAS.iter().any(|known| known.as_bytes() == area)
        && !place.is_empty()
        && place.iter().all(is_place);
    let zone = stream.in_range(0, ZONES.len() as u64 - 1) as usize;
    is_zone.then(|| ZONES[zone].as_bytes().to_vec())
}

const AREAS: [&str; 11] = [
    "Africa",
    "America",
    "Antarctica",
    "Arctic",
    "Asia",
    "Atlantic",
    "Australia",
    "Etc",
    "Europe",
    "Indian",
    "Pacific",
];

const ZONES: [&str; 6] = [
    "Africa/Cairo",
    "America/New_York",
    "Asia/Tokyo",
    "Australia/Sydney",
    "Europe/Vienna",
    "Etc/UTC",
];
