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
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    /// What the person said.
    zone: Option<TimeZone>,
    /// What the last times were read as: neighbouring lines nearly always share the second. Session
    /// starts have their own.
    cached: [Option<Second>; 2],
    assumed: Option<Assumption>,
}

/// A second that was read.
#[derive(Clone, Copy, Debug)]
struct Second {
    /// `YYYY-MM-DD HH:MM:SS`.
    text: [u8; SECONDS_LEN],
    zone: [u8; ZONE_LEN_MAX],
    zone_len: usize,
    /// The same as numbers, to compare times by.
    words: Words,
    /// Seconds since the Unix epoch.
    epoch: i64,
    /// What had to be assumed of the zone: it holds for each time again.
    assumed: Option<Assumption>,
}

/// A second and its zone as numbers whose lowest byte comes first.
#[derive(Clone, Copy, Debug)]
struct Words {
    /// `YYYY-MM-DD HH:MM`.
    minute: u128,
    /// `:SS.`.
    second: u32,
    zone: u64,
    /// Bits of the zone in its word, and how many there are; none if the zone is empty, or as long as the word.
    zone_mask: u64,
    zone_bits: u32,
    /// Microseconds since the Unix epoch.
    epoch_us: i64,
}

impl Words {
    fn of(text: &[u8; SECONDS_LEN], zone: [u8; ZONE_LEN_MAX], zone_len: usize, epoch: i64) -> Self {
        let (minute, second) = text.split_at(16);
        let zone_bits = if zone_len < ZONE_LEN_MAX { 8 * zone_len as u32 } else { 0 };
        let epoch_us = epoch.checked_mul(1_000_000);
        Self {
            minute: minute.first_chunk().map_or(0, |chunk| u128::from_le_bytes(*chunk)),
            second: u32::from_le_bytes([second[0], second[1], second[2], b'.']),
            zone: u64::from_le_bytes(zone),
            zone_mask: (1 << zone_bits) - 1,
            // A time that is no number of microseconds is for others to refuse.
            zone_bits: if epoch_us.is_some() { zone_bits } else { 0 },
            epoch_us: epoch_us.unwrap_or(0),
        }
    }
}

/// Longer zones are not cached.
const ZONE_LEN_MAX: usize = 8;

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
        let (epoch, micros) = self.second(text, 0)?;
        Some(Timestamp::from_micros(epoch.checked_mul(1_000_000)?.checked_add(micros)?))
    }

    /// The time at the front of `text` and its length, if it is of the same second and zone as the one
    /// read last and nothing can make it longer.
    #[inline]
    pub(crate) fn read_next(&mut self, text: &[u8]) -> Option<(Timestamp, usize)> {
        let second = self.cached[0].as_ref()?;
        let Words { minute, second: seconds, zone, zone_mask, zone_bits, epoch_us } = second.words;
        // The second, `.`, three digits, a space; a zone and what follows it, in eight bytes.
        let stamp: &[u8; SECONDS_LEN + 5 + ZONE_LEN_MAX] = text.first_chunk()?;
        let (to_minute, rest) = stamp.split_first_chunk()?;
        let (to_second, rest) = rest.split_first_chunk()?;
        let (millis, rest) = rest.split_first_chunk()?;
        let behind = u64::from_le_bytes(*rest.first_chunk()?);
        if u128::from_le_bytes(*to_minute) != minute
            || u32::from_le_bytes(*to_second) != seconds
            || (behind ^ zone) & zone_mask != 0
            || zone_bits == 0
            || ((behind >> zone_bits) as u8).is_ascii_alphanumeric()
        {
            return None;
        }
        // Each byte less what it must be, or the least it may be; of the digits no more than 9 is left.
        let digits = u32::from_le_bytes(*millis) ^ u32::from_le_bytes(*b"000 ");
        if (digits.wrapping_add(0x0076_7676) | digits) & 0xff80_8080 != 0 {
            return None;
        }
        let [a, b, c, _] = digits.to_le_bytes().map(i64::from);
        if let Some(assumed) = second.assumed {
            self.assumed = self.assumed.or(Some(assumed));
        }
        let micros = (a * 100 + b * 10 + c) * 1000;
        let len = SECONDS_LEN + ".000 ".len() + zone_bits as usize / 8;
        Some((Timestamp::from_micros(epoch_us.checked_add(micros)?), len))
    }

    /// The epoch second that a session's start names.
    pub(crate) fn read_start(&mut self, text: &[u8]) -> Option<i64> {
        self.second(text, 1).map(|(epoch, _)| epoch)
    }

    /// What had to be assumed since the last call.
    pub(crate) fn take_assumption(&mut self) -> Option<Assumption> {
        self.assumed.take()
    }

    /// The epoch second that `text` names, and the microseconds after it.
    fn second(&mut self, text: &[u8], slot: usize) -> Option<(i64, i64)> {
        if let Some(second) = &self.cached[slot]
            && text.first_chunk() == Some(&second.text)
            && let Some((micros, zone)) = fraction_and_zone(&text[SECONDS_LEN..])
            && zone == &second.zone[..second.zone_len]
        {
            self.assumed = self.assumed.or(second.assumed);
            return Some((second.epoch, micros));
        }
        let civil = Civil::parse(text)?;
        let (minute, assumed) = self.resolve(civil.date_time()?, civil.zone)?;
        let epoch = minute.checked_add(civil.second)?;
        self.assumed = self.assumed.or(assumed);
        self.cached[slot] = (civil.zone.len() <= ZONE_LEN_MAX).then(|| {
            let mut zone = [0; ZONE_LEN_MAX];
            zone[..civil.zone.len()].copy_from_slice(civil.zone);
            let zone_len = civil.zone.len();
            let words = Words::of(civil.text, zone, zone_len, epoch);
            Second { text: *civil.text, zone, zone_len, words, epoch, assumed }
        });
        Some((epoch, civil.micros))
    }

    /// The epoch second of a local time, and what had to be assumed for it.
    fn resolve(&self, local: DateTime, zone: &[u8]) -> Option<(i64, Option<Assumption>)> {
        let utc = local.to_zoned(TimeZone::UTC).ok()?.timestamp().as_second();
        if let Some(offset) = zones::certain(zone) {
            return Some((utc - i64::from(offset), None));
        }
        if let Some(chosen) = &self.zone {
            return Some((utc - i64::from(offset_in(chosen, local, zone)), None));
        }
        let (offset, assumption) = match zones::abbreviation(zone) {
            Some((offset, true)) => (offset, None),
            Some((offset, false)) => (offset, Some(Assumption::Ambiguous)),
            None => (0, Some(Assumption::Unknown)),
        };
        Some((utc - i64::from(offset), assumption))
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
    text: &'a [u8; SECONDS_LEN],
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
        let (micros, zone) = fraction_and_zone(&text[SECONDS_LEN..])?;
        Some(Self { text: fixed, second: i64::from(two(&fixed[17..])), micros, zone })
    }

    fn date_time(&self) -> Option<DateTime> {
        let year = i16::from(two(&self.text[..])) * 100 + i16::from(two(&self.text[2..]));
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

/// Microseconds of an optional fraction, and the zone after it.
fn fraction_and_zone(text: &[u8]) -> Option<(i64, &[u8])> {
    let (micros, rest) = match text {
        // Milliseconds, as the server writes them.
        &[b'.', a @ b'0'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9', b' ', ref zone @ ..] => {
            let millis = [a, b, c].iter().fold(0, |sum, digit| sum * 10 + i64::from(digit & 0x0f));
            return Some((millis * 1000, zone));
        }
        _ => fraction(text)?,
    };
    Some((micros, rest.strip_prefix(b" ").unwrap_or(rest)))
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
    let (first, rest) = text.split_at(8);
    let (second, third) = rest.split_at(8);
    let word = |bytes: &[u8]| bytes.first_chunk().map_or(0, |chunk| u64::from_ne_bytes(*chunk));
    has_shape(word(first), b"dddd-dd-")
        & has_shape(word(second), b"dd dd:dd")
        & (third[0] == b':' && third[1].is_ascii_digit() && third[2].is_ascii_digit())
}

/// Whether eight bytes are as `shape` wants them: `d` is a digit, all else stands for itself.
///
/// All eight at once: what differs from the shape in a byte that must be equal, or by more than 9 in one
/// that must be a digit, reaches that byte's highest bit.
#[inline]
fn has_shape(bytes: u64, shape: &[u8; 8]) -> bool {
    let expected = u64::from_ne_bytes(shape.map(|byte| if byte == b'd' { b'0' } else { byte }));
    let slack = u64::from_ne_bytes(shape.map(|byte| if byte == b'd' { 0x76 } else { 0x7f }));
    let difference = bytes ^ expected;
    (((difference & LOW_BITS) + slack) | difference) & !LOW_BITS == 0
}

/// All but the highest bit of each byte.
const LOW_BITS: u64 = 0x7f7f_7f7f_7f7f_7f7f;

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
