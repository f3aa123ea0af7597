//! Reads the server's times: `2026-11-20 12:43:19.577 UTC`, in `log_timezone`.
//!
//! An abbreviation such as `CST` can stand for several zones, so the user may have to name the zone
//! of a log. Assumptions about the zone are reported.

mod zones;

use howdah_log_input::{SECONDS_LEN, is_stamp_shaped};
use howdah_traffic::Timestamp;
use jiff::{
    civil::{Date, DateTime, Time},
    tz::{AmbiguousOffset, TimeZone},
};

use crate::error::OptionsError;

/// A converter from the server's times to points in time.
#[derive(Clone, Debug)]
pub(crate) struct LogClock {
    /// The zone given by the user.
    zone: Option<TimeZone>,
    /// Recently parsed seconds, because neighbouring lines usually share one. Session starts use
    /// the second slot, so that they do not evict the time of the line.
    cached: [Option<CachedSecond>; 2],
    assumption: Option<Assumption>,
}

/// A parsed second, with everything that [`LogClock::read`] would compute again.
#[derive(Clone, Copy, Debug)]
struct CachedSecond {
    /// The text, `YYYY-MM-DD HH:MM:SS`.
    text: [u8; SECONDS_LEN],
    zone: [u8; ZONE_LEN_MAX],
    zone_len: usize,
    /// The text and zone as integers, for fast comparison.
    words: PackedSecond,
    /// Seconds since the Unix epoch.
    epoch: i64,
    /// The assumption about the zone, which applies to each time in this second.
    assumption: Option<Assumption>,
}

/// A second and its zone as little-endian numbers.
#[derive(Clone, Copy, Debug)]
struct PackedSecond {
    /// The bytes of `YYYY-MM-DD HH:MM`.
    minute: u128,
    /// The bytes of `:SS.`.
    second: u32,
    zone: u64,
    /// Mask for the zone's bits, and their number. Both are 0 if the zone is empty or fills all
    /// bytes of `zone`; the number is also 0 if the microseconds of the time overflow.
    zone_mask: u64,
    zone_bits: u32,
    /// Microseconds since the Unix epoch.
    epoch_us: i64,
}

impl PackedSecond {
    fn new(
        text: &[u8; SECONDS_LEN],
        zone: [u8; ZONE_LEN_MAX],
        zone_len: usize,
        epoch: i64,
    ) -> Self {
        let (minute, second) = text.split_at(16);
        let zone_bits = if zone_len < ZONE_LEN_MAX { 8 * zone_len as u32 } else { 0 };
        let epoch_us = epoch.checked_mul(1_000_000);
        Self {
            minute: minute.first_chunk().map_or(0, |chunk| u128::from_le_bytes(*chunk)),
            second: u32::from_le_bytes([second[0], second[1], second[2], b'.']),
            zone: u64::from_le_bytes(zone),
            zone_mask: (1 << zone_bits) - 1,
            // The fast path must not accept a time whose microseconds overflow.
            zone_bits: if epoch_us.is_some() { zone_bits } else { 0 },
            epoch_us: epoch_us.unwrap_or(0),
        }
    }
}

/// Longest zone that is cached, in bytes.
const ZONE_LEN_MAX: usize = 8;

/// An assumption about an ambiguous or unknown zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Assumption {
    /// An unknown abbreviation, read as UTC.
    Unknown,
    /// An abbreviation with several meanings, read as PostgreSQL reads it by default.
    Ambiguous,
}

impl LogClock {
    pub(crate) fn new(timezone: Option<&str>) -> Result<Self, OptionsError> {
        let zone = match timezone {
            None => None,
            Some(text) => Some(
                parse_timezone(text)
                    .ok_or_else(|| OptionsError::UnknownTimezone { timezone: text.to_owned() })?,
            ),
        };
        Ok(Self { zone, cached: [None; 2], assumption: None })
    }

    /// Parses a time; `None` if `text` is not one.
    pub(crate) fn read(&mut self, text: &[u8]) -> Option<Timestamp> {
        let (epoch, micros) = self.epoch_second(text, 0)?;
        Some(Timestamp::from_micros(epoch.checked_mul(1_000_000)?.checked_add(micros)?))
    }

    /// Parses the time at the front of `text` and returns its length as well. Returns `None` unless
    /// the second and zone are those of the last time that [`read`](Self::read) parsed, the
    /// fraction has three digits, and the end of the zone is certain.
    #[inline]
    pub(crate) fn read_next(&mut self, text: &[u8]) -> Option<(Timestamp, usize)> {
        let second = self.cached[0].as_ref()?;
        let PackedSecond { minute, second: seconds, zone, zone_mask, zone_bits, epoch_us } =
            second.words;
        // The second, `.`, three digits, a space; the zone and the byte after it are within eight
        // bytes.
        let stamp: &[u8; SECONDS_LEN + 5 + ZONE_LEN_MAX] = text.first_chunk()?;
        let (to_minute, rest) = stamp.split_first_chunk()?;
        let (to_second, rest) = rest.split_first_chunk()?;
        let (millis, rest) = rest.split_first_chunk()?;
        let after = u64::from_le_bytes(*rest.first_chunk()?);
        if u128::from_le_bytes(*to_minute) != minute
            || u32::from_le_bytes(*to_second) != seconds
            || (after ^ zone) & zone_mask != 0
            || zone_bits == 0
            || ((after >> zone_bits) as u8).is_ascii_alphanumeric()
        {
            return None;
        }
        // XOR with the expected bytes leaves 0 to 9 for each digit and 0 for the space.
        let digits = u32::from_le_bytes(*millis) ^ u32::from_le_bytes(*b"000 ");
        if (digits.wrapping_add(0x0076_7676) | digits) & 0xff80_8080 != 0 {
            return None;
        }
        let [a, b, c, _] = digits.to_le_bytes().map(i64::from);
        if let Some(assumption) = second.assumption {
            self.assumption = self.assumption.or(Some(assumption));
        }
        let micros = (a * 100 + b * 10 + c) * 1000;
        let len = SECONDS_LEN + ".000 ".len() + zone_bits as usize / 8;
        Some((Timestamp::from_micros(epoch_us.checked_add(micros)?), len))
    }

    /// Parses a session's start as an epoch second.
    pub(crate) fn read_start(&mut self, text: &[u8]) -> Option<i64> {
        self.epoch_second(text, 1).map(|(epoch, _)| epoch)
    }

    /// Returns and clears the assumption made since the last call, if any.
    pub(crate) fn take_assumption(&mut self) -> Option<Assumption> {
        self.assumption.take()
    }

    /// Parses a time into an epoch second and the microseconds after it.
    fn epoch_second(&mut self, text: &[u8], slot: usize) -> Option<(i64, i64)> {
        if let Some(second) = &self.cached[slot]
            && text.first_chunk() == Some(&second.text)
            && let Some((micros, zone)) = fraction_and_zone(&text[SECONDS_LEN..])
            && zone == &second.zone[..second.zone_len]
        {
            self.assumption = self.assumption.or(second.assumption);
            return Some((second.epoch, micros));
        }
        let civil = CivilTime::parse(text)?;
        let (minute, assumption) = self.resolve(civil.date_time()?, civil.zone)?;
        let epoch = minute.checked_add(civil.second)?;
        self.assumption = self.assumption.or(assumption);
        self.cached[slot] = (civil.zone.len() <= ZONE_LEN_MAX).then(|| {
            let mut zone = [0; ZONE_LEN_MAX];
            zone[..civil.zone.len()].copy_from_slice(civil.zone);
            let zone_len = civil.zone.len();
            let words = PackedSecond::new(civil.text, zone, zone_len, epoch);
            CachedSecond { text: *civil.text, zone, zone_len, words, epoch, assumption }
        });
        Some((epoch, civil.micros))
    }

    /// Resolves a local time to an epoch second, with the assumption made for it.
    fn resolve(&self, local: DateTime, zone: &[u8]) -> Option<(i64, Option<Assumption>)> {
        let utc = local.to_zoned(TimeZone::UTC).ok()?.timestamp().as_second();
        if let Some(offset) = zones::unambiguous_offset(zone) {
            return Some((utc - i64::from(offset), None));
        }
        if let Some(chosen) = &self.zone {
            return Some((utc - i64::from(offset_in(chosen, local, zone)), None));
        }
        let (offset, assumption) = match zones::abbreviation_offset(zone) {
            Some((offset, true)) => (offset, None),
            Some((offset, false)) => (offset, Some(Assumption::Ambiguous)),
            None => (0, Some(Assumption::Unknown)),
        };
        Some((utc - i64::from(offset), assumption))
    }
}

/// Returns the offset of `zone` from UTC at a local time, in seconds. When clocks are set back, one
/// hour occurs twice: the abbreviation in the log shows which of the two it is.
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

/// Parses a zone given by the user.
fn parse_timezone(text: &str) -> Option<TimeZone> {
    let fixed = zones::unambiguous_offset(text.as_bytes())
        .or_else(|| zones::abbreviation_offset(text.as_bytes()).map(|(offset, _)| offset));
    match fixed {
        Some(seconds) => Some(TimeZone::fixed(jiff::tz::Offset::from_seconds(seconds).ok()?)),
        None => TimeZone::get(text).ok(),
    }
}

/// The fields of a time in the log, before its zone is resolved.
struct CivilTime<'a> {
    text: &'a [u8; SECONDS_LEN],
    second: i64,
    micros: i64,
    zone: &'a [u8],
}

impl<'a> CivilTime<'a> {
    fn parse(text: &'a [u8]) -> Option<Self> {
        let fixed = text.first_chunk::<SECONDS_LEN>()?;
        if !is_stamp_shaped(fixed) {
            return None;
        }
        let (micros, zone) = fraction_and_zone(&text[SECONDS_LEN..])?;
        Some(Self { text: fixed, second: i64::from(two_digits(&fixed[17..])), micros, zone })
    }

    fn date_time(&self) -> Option<DateTime> {
        let year =
            i16::from(two_digits(&self.text[..])) * 100 + i16::from(two_digits(&self.text[2..]));
        let date =
            Date::new(year, two_digits(&self.text[5..]), two_digits(&self.text[8..])).ok()?;
        let time =
            Time::new(two_digits(&self.text[11..]), two_digits(&self.text[14..]), 0, 0).ok()?;
        Some(DateTime::from_parts(date, time))
    }
}

/// Returns the value of two ASCII digits, 0 to 99.
fn two_digits(digits: &[u8]) -> i8 {
    ((digits[0] & 0x0f) * 10 + (digits[1] & 0x0f)).cast_signed()
}

/// Splits an optional fraction, in microseconds, from the zone after it.
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

/// Splits an optional fraction, in microseconds, from the text after it.
fn fraction(text: &[u8]) -> Option<(i64, &[u8])> {
    let Some(digits) = text.strip_prefix(b".") else { return Some((0, text)) };
    let len = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if !(1..=6).contains(&len) {
        return None;
    }
    let value = digits[..len].iter().fold(0, |sum, digit| sum * 10 + i64::from(digit & 0x0f));
    Some((value * 10_i64.pow(6 - u32::try_from(len).ok()?), &digits[len..]))
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
