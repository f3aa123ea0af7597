//! The server's way of writing times: `2026-11-20 12:43:19.577 UTC`, in `log_timezone`.
//!
//! An abbreviation such as `CST` does not name one zone, so a log may need the person's help. What
//! had to be assumed is reported, never silent.

mod zones;

use howdah_traffic::Timestamp;
use jiff::{
    civil::{Date, DateTime, Time},
    tz::{AmbiguousOffset, TimeZone},
};

use crate::options::OptionsError;

/// Turns the server's times into points in time.
#[derive(Debug)]
pub(crate) struct Clock {
    /// What the person said.
    zone: Option<TimeZone>,
    /// The minute and zone of the last time read, and the epoch second that minute began:
    /// neighbouring lines nearly always share it. Session starts have their own.
    cached: [Option<(Minute, i64)>; 2],
    assumed: Option<Assumption>,
}

/// `YYYY-MM-DD HH:MM` and the zone's text.
type Minute = ([u8; 16], [u8; 8]);

/// Something about a zone that the log does not settle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Assumption {
    /// An abbreviation nobody here knows: taken as UTC.
    Unknown,
    /// An abbreviation with several meanings: taken as PostgreSQL itself would.
    Ambiguous,
}

impl Clock {
    pub(crate) fn new(timezone: Option<&str>) -> Result<Self, OptionsError> {
        let zone = match timezone {
            None => None,
            Some(text) => Some(
                named(text)
                    .ok_or_else(|| OptionsError::UnknownTimezone { timezone: text.to_owned() })?,
            ),
        };
        Ok(Self { zone, cached: [None; 2], assumed: None })
    }

    /// The point in time that `text` names, or `None` if it is not a time.
    pub(crate) fn read(&mut self, text: &[u8]) -> Option<Timestamp> {
        let civil = Civil::parse(text)?;
        let minute = self.minute(text, &civil, 0)?;
        let micros = minute.checked_add(civil.second)?.checked_mul(1_000_000)?;
        Some(Timestamp::from_micros(micros.checked_add(civil.micros)?))
    }

    /// The epoch second that a session's start names.
    pub(crate) fn read_start(&mut self, text: &[u8]) -> Option<i64> {
        let civil = Civil::parse(text)?;
        self.minute(text, &civil, 1)?.checked_add(civil.second)
    }

    /// What had to be assumed since the last call.
    pub(crate) fn take_assumption(&mut self) -> Option<Assumption> {
        self.assumed.take()
    }

    /// The epoch second at which the minute of `civil` began.
    fn minute(&mut self, text: &[u8], civil: &Civil<'_>, slot: usize) -> Option<i64> {
        let mut key: Minute = ([0; 16], [0; 8]);
        key.0.copy_from_slice(&text[..16]);
        let cachable = civil.zone.len() <= key.1.len();
        if cachable {
            key.1[..civil.zone.len()].copy_from_slice(civil.zone);
            if let Some((cached, minute)) = self.cached[slot]
                && cached == key
            {
                return Some(minute);
            }
        }
        let local = civil.date_time()?;
        let minute = self.resolve(local, civil.zone)?;
        // A guess is not cached, so that each time it matters is counted.
        self.cached[slot] = (cachable && self.assumed.is_none()).then_some((key, minute));
        Some(minute)
    }

    fn resolve(&mut self, local: DateTime, zone: &[u8]) -> Option<i64> {
        let utc = local.to_zoned(TimeZone::UTC).ok()?.timestamp().as_second();
        if let Some(offset) = zones::certain(zone) {
            return Some(utc - i64::from(offset));
        }
        if let Some(chosen) = &self.zone {
            return Some(utc - i64::from(offset_in(chosen, local, zone)));
        }
        let (offset, assumption) = match zones::abbreviation(zone) {
            Some((offset, true)) => (offset, None),
            Some((offset, false)) => (offset, Some(Assumption::Ambiguous)),
            None => (0, Some(Assumption::Unknown)),
        };
        self.assumed = self.assumed.or(assumption);
        Some(utc - i64::from(offset))
    }
}

/// The offset of `zone` at a local time. Where the clock was put back, an hour happens twice: the
/// abbreviation in the log tells which one it is.
fn offset_in(zone: &TimeZone, local: DateTime, abbreviation: &[u8]) -> i32 {
    let ambiguous = zone.to_ambiguous_timestamp(local);
    let offset = match ambiguous.offset() {
        AmbiguousOffset::Unambiguous { offset } => offset,
        AmbiguousOffset::Gap { before, .. } => before,
        AmbiguousOffset::Fold { before, after } => {
            let is_after = after
                .to_timestamp(local)
                .is_ok_and(|t| zone.to_offset_info(t).abbreviation().as_bytes() == abbreviation);
            if is_after { after } else { before }
        }
    };
    offset.seconds()
}

/// The zone a person named.
fn named(text: &str) -> Option<TimeZone> {
    let fixed = zones::certain(text.as_bytes())
        .or_else(|| zones::abbreviation(text.as_bytes()).map(|(offset, _)| offset));
    match fixed {
        Some(seconds) => Some(TimeZone::fixed(jiff::tz::Offset::from_seconds(seconds).ok()?)),
        None => TimeZone::get(text).ok(),
    }
}

/// A time as it stands in the log.
struct Civil<'a> {
    text: &'a [u8],
    second: i64,
    micros: i64,
    zone: &'a [u8],
}

impl<'a> Civil<'a> {
    fn parse(text: &'a [u8]) -> Option<Self> {
        let fixed = text.first_chunk::<SECONDS_LEN>()?;
        if !has_stamp_shape(fixed) {
            return None;
        }
        let (micros, rest) = fraction(&text[SECONDS_LEN..])?;
        let zone = rest.strip_prefix(b" ").unwrap_or(rest);
        Some(Self { text, second: i64::from(two(&fixed[17..])), micros, zone })
    }

    fn date_time(&self) -> Option<DateTime> {
        let year = i16::from(two(self.text)) * 100 + i16::from(two(&self.text[2..]));
        let date = Date::new(year, two(&self.text[5..]), two(&self.text[8..])).ok()?;
        let time = Time::new(two(&self.text[11..]), two(&self.text[14..]), 0, 0).ok()?;
        Some(DateTime::from_parts(date, time))
    }
}

/// Bytes of `YYYY-MM-DD HH:MM:SS`.
const SECONDS_LEN: usize = 19;

/// Two digits, already known to be digits.
fn two(digits: &[u8]) -> i8 {
    ((digits[0] & 0x0f) * 10 + (digits[1] & 0x0f)).cast_signed()
}

/// Microseconds of an optional fraction, and what follows it.
fn fraction(text: &[u8]) -> Option<(i64, &[u8])> {
    let Some(digits) = text.strip_prefix(b".") else { return Some((0, text)) };
    let len = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if !(1..=6).contains(&len) {
        return None;
    }
    let value = digits[..len].iter().fold(0, |sum, digit| sum * 10 + i64::from(digit & 0x0f));
    Some((value * 10_i64.pow(6 - u32::try_from(len).ok()?), &digits[len..]))
}

fn has_stamp_shape(text: &[u8; SECONDS_LEN]) -> bool {
    text.iter().zip(b"dddd-dd-dd dd:dd:dd").all(|(byte, shape)| match shape {
        b'd' => byte.is_ascii_digit(),
        _ => byte == shape,
    })
}

/// Length of the time at the front of `bytes`, zone included, if there is one; with a fraction of a
/// second or without, as asked.
pub(crate) fn stamp_len(bytes: &[u8], with_fraction: bool) -> Option<usize> {
    if !has_stamp_shape(bytes.first_chunk::<SECONDS_LEN>()?) {
        return None;
    }
    let rest = &bytes[SECONDS_LEN..];
    let fraction = match rest {
        [b'.', digits @ ..] if with_fraction => {
            1 + digits.iter().take_while(|byte| byte.is_ascii_digit()).count()
        }
        _ if with_fraction => return None,
        _ => 0,
    };
    let zone = rest[fraction..].strip_prefix(b" ").map_or(0, zone_len);
    (zone > 0).then_some(SECONDS_LEN + fraction + 1 + zone)
}

/// Length of the zone at the front of `bytes`: letters, or a sign and digits.
fn zone_len(bytes: &[u8]) -> usize {
    match bytes.first() {
        Some(b'+' | b'-') => {
            let digits = bytes[1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            if digits >= 2 { 1 + digits } else { 0 }
        }
        _ => bytes.iter().take_while(|byte| byte.is_ascii_alphabetic()).count(),
    }
}

/// Reads `%n`: seconds since the Unix epoch, a dot, milliseconds.
pub(crate) fn read_epoch(text: &[u8]) -> Option<Timestamp> {
    let dot = memchr::memchr(b'.', text)?;
    let seconds: i64 = std::str::from_utf8(&text[..dot]).ok()?.parse().ok()?;
    let (micros, rest) = fraction(&text[dot..])?;
    if !rest.is_empty() {
        return None;
    }
    Some(Timestamp::from_micros(seconds.checked_mul(1_000_000)?.checked_add(micros)?))
}

#[cfg(test)]
mod tests;
