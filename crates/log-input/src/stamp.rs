//! Converts the time formats of log services to the server's own.

use jiff::{Timestamp, tz::TimeZone};

use crate::stamp_shape::{SECONDS_LEN, is_civil_shaped};

/// A time at the front of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    /// The number of bytes of the line that the time occupies.
    pub(super) len: usize,
    /// The time, formatted like `%m`.
    pub(super) text: String,
}

/// The zone added to times without a zone. The `logs` crate does not know this zone, so it applies
/// the zone given by the user, or assumes UTC and reports that.
pub(super) const UNKNOWN_ZONE: &str = "LOCAL";

/// The year and month in which a log was last written, needed because RFC 3164 has no years.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Calendar {
    year: i16,
    month: i8,
}

impl Calendar {
    /// Creates the calendar from the time at which the log's last line was written, in UTC.
    pub(crate) fn from_system_time(time: std::time::SystemTime) -> Self {
        let time = Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH);
        let date = time.to_zoned(TimeZone::UTC).date();
        Self { year: date.year(), month: date.month() }
    }

    /// Returns the year of a line written in `month`, which is the calendar's month or one of the
    /// eleven months before it.
    fn year_for(self, month: i8) -> i16 {
        self.year - i16::from(month > self.month)
    }
}

/// Parses `2026-11-20T12:43:19.577123Z`, with any fraction and any zone. If `is_spaced`, a space
/// takes the place of the `T`, and another one precedes the zone.
pub(super) fn iso(bytes: &[u8], is_spaced: bool) -> Option<Stamp> {
    if !is_civil_shaped(bytes, if is_spaced { b' ' } else { b'T' }) {
        return None;
    }
    let (civil, rest) = bytes.split_at(SECONDS_LEN);
    let (fraction, rest) = split_fraction(rest);
    let rest = if is_spaced { rest.strip_prefix(b" ")? } else { rest };
    let (zone, zone_len) = split_zone(rest)?;
    let civil = std::str::from_utf8(civil).ok()?.replacen('T', " ", 1);
    let len = bytes.len() - rest.len() + zone_len;
    Some(Stamp { len, text: format!("{civil}.{fraction} {zone}") })
}

/// Parses the whole of a time as databases and data warehouses write it: with a space or a `T`, any
/// fraction, and any zone, which a space may precede, or none.
pub(super) fn exported(bytes: &[u8]) -> Option<String> {
    if !is_civil_shaped(bytes, b' ') && !is_civil_shaped(bytes, b'T') {
        return None;
    }
    let (civil, rest) = bytes.split_at(SECONDS_LEN);
    let (fraction, rest) = split_fraction(rest);
    let rest = rest.strip_prefix(b" ").unwrap_or(rest);
    let zone = match rest {
        [] => UNKNOWN_ZONE.to_owned(),
        _ => split_zone(rest).filter(|(_, len)| *len == rest.len())?.0,
    };
    let civil = std::str::from_utf8(civil).ok()?.replacen('T', " ", 1);
    Some(format!("{civil}.{fraction} {zone}"))
}

/// Parses `Nov 20 12:43:19`, with any fraction, as in RFC 3164 and the output of `journalctl`.
pub(super) fn bsd(bytes: &[u8], calendar: Calendar) -> Option<Stamp> {
    let name = bytes.get(..3)?;
    let month = MONTHS.iter().position(|month| month.as_bytes() == name)?;
    let month = i8::try_from(month).ok()? + 1;
    let day = match bytes.get(3..6)? {
        [b' ', b' ', day] | [b' ', b'0', day] => [b'0', *day],
        [b' ', ten, day] => [*ten, *day],
        _ => return None,
    };
    let time = bytes.get(6..15)?;
    let is_time = time.iter().zip(b" dd:dd:dd").all(|(byte, shape)| match shape {
        b'd' => byte.is_ascii_digit(),
        _ => byte == shape,
    });
    if !is_time || !day.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let (fraction, rest) = split_fraction(&bytes[15..]);
    let time = std::str::from_utf8(&time[1..]).ok()?;
    let day = std::str::from_utf8(&day).ok()?.to_owned();
    let year = calendar.year_for(month);
    let text = format!("{year:04}-{month:02}-{day} {time}.{fraction} {UNKNOWN_ZONE}");
    Some(Stamp { len: bytes.len() - rest.len(), text })
}

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Parses seconds since the Unix epoch with microseconds, `1795178599.577123`.
pub(super) fn unix(bytes: &[u8]) -> Option<Stamp> {
    let digits = bytes.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let micros = bytes.get(digits + 1..digits + 7)?;
    let is_it = digits == 10 && bytes[digits] == b'.' && micros.iter().all(u8::is_ascii_digit);
    let number = |text: &[u8]| std::str::from_utf8(text).ok()?.parse::<i64>().ok();
    let micros = is_it.then(|| number(micros)).flatten()?;
    let text = from_micros(number(&bytes[..digits])?.checked_mul(1_000_000)?.checked_add(micros)?)?;
    Some(Stamp { len: digits + 7, text })
}

/// Returns the length of a time in the form of `%n`, `1795178599.577`, at the front of `bytes`.
pub fn epoch_len(bytes: &[u8]) -> Option<usize> {
    let is_it = bytes.get(..14)?.iter().zip(b"dddddddddd.ddd").all(|(byte, shape)| match shape {
        b'd' => byte.is_ascii_digit(),
        _ => byte == shape,
    });
    is_it.then_some(14)
}

/// Formats microseconds since the Unix epoch like `%m`.
pub(super) fn from_micros(micros: i64) -> Option<String> {
    format_civil(micros).map(|civil| civil + " UTC")
}

/// Formats microseconds since 1970 as a date and a time of day like those of `%m`, without a zone.
pub(super) fn format_civil(micros: i64) -> Option<String> {
    let time = Timestamp::from_microsecond(micros).ok()?.to_zoned(TimeZone::UTC).datetime();
    let (date, time) = (time.date(), time.time());
    let (hour, minute, second) = (time.hour(), time.minute(), time.second());
    let fraction = time.subsec_nanosecond() / 1000;
    Some(format!("{date} {hour:02}:{minute:02}:{second:02}.{fraction:06}"))
}

/// Splits off a fraction of a second as three to six digits; `000` if there is none.
fn split_fraction(bytes: &[u8]) -> (String, &[u8]) {
    let Some(digits) = bytes.strip_prefix(b".").or_else(|| bytes.strip_prefix(b",")) else {
        return ("000".to_owned(), bytes);
    };
    let len = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if len == 0 {
        return ("000".to_owned(), bytes);
    }
    let kept = String::from_utf8_lossy(&digits[..len.min(6)]).into_owned();
    (format!("{kept:0<3}"), &digits[len..])
}

/// Parses a zone at the front of `bytes`; returns it in the server's notation, and its length.
fn split_zone(bytes: &[u8]) -> Option<(String, usize)> {
    if bytes.first() == Some(&b'Z') {
        return Some(("UTC".to_owned(), 1));
    }
    let digit = |at: usize| bytes.get(at).filter(|byte| byte.is_ascii_digit()).copied();
    if matches!(bytes.first(), Some(b'+' | b'-')) {
        let colon = usize::from(bytes.get(3) == Some(&b':'));
        let hours = [digit(1)?, digit(2)?];
        let (minutes, len) = match (digit(3 + colon), digit(4 + colon)) {
            (Some(ten), Some(one)) => ([ten, one], 5 + colon),
            _ => ([b'0', b'0'], 3),
        };
        let text = [&bytes[..1], &hours, &minutes].concat();
        return Some((String::from_utf8(text).ok()?, len));
    }
    let len = bytes.iter().take_while(|byte| byte.is_ascii_alphabetic()).count();
    (len >= 3).then(|| (String::from_utf8_lossy(&bytes[..len]).into_owned(), len))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn november() -> Calendar {
        Calendar { year: 2026, month: 11 }
    }

    #[test]
    fn all_time_formats_are_read() {
        let text = "2026-11-20 12:43:19.577 UTC";
        for (bytes, expected) in [
            ("2026-11-20T12:43:19.577Z x", text),
            ("2026-11-20T12:43:19.577+01:00 x", "2026-11-20 12:43:19.577 +0100"),
            ("2026-11-20T12:43:19-0330 x", "2026-11-20 12:43:19.000 -0330"),
            ("2026-11-20T12:43:19.577123456Z", "2026-11-20 12:43:19.577123 UTC"),
            ("2026-11-20T12:43:19,577Z", text),
        ] {
            assert_eq!(iso(bytes.as_bytes(), false).map(|s| s.text).as_deref(), Some(expected));
        }
        for (bytes, expected) in [
            ("2026-11-20 12:43:19.577 UTC", text),
            ("2026-11-20 12:43:19.577+00", "2026-11-20 12:43:19.577 +0000"),
            ("2026-11-20T12:43:19.577Z", text),
            ("2026-11-20 12:43:19.577 +05:30", "2026-11-20 12:43:19.577 +0530"),
            ("2026-11-20 12:43:19", "2026-11-20 12:43:19.000 LOCAL"),
        ] {
            assert_eq!(exported(bytes.as_bytes()).as_deref(), Some(expected));
        }
        for not in ["2026-11-20 12:43:19.577 UTC,", "11/20/2026 12:43", "2026-11-20 12:43:19 x", ""]
        {
            assert_eq!(exported(not.as_bytes()), None, "{not}");
        }
        let spaced = iso(b"2026-11-20 12:43:19 UTC host", true).map(|s| (s.len, s.text));
        assert_eq!(spaced, Some((23, "2026-11-20 12:43:19.000 UTC".to_owned())));
        let unix = unix(b"1795178599.577123 x").map(|s| (s.len, s.text));
        assert_eq!(unix, Some((17, "2026-11-20 12:43:19.577123 UTC".to_owned())));
        for not in ["2026-11-20 12:43:19.577Z", "2026-11-20T12:43", "Nov 20", "x"] {
            assert_eq!(iso(not.as_bytes(), false), None, "{not}");
        }
    }

    #[test]
    fn year_is_that_of_the_file_or_the_one_before() {
        let year = |text: &str, calendar| bsd(text.as_bytes(), calendar).map(|s| s.text);
        let expected = |text: &str| Some(format!("{text} LOCAL"));
        assert_eq!(year("Nov 20 12:43:19 h", november()), expected("2026-11-20 12:43:19.000"));
        assert_eq!(year("Nov  2 12:43:19 h", november()), expected("2026-11-02 12:43:19.000"));
        assert_eq!(year("Dec 31 23:59:59.5 h", november()), expected("2025-12-31 23:59:59.500"));
        let january = Calendar { year: 2027, month: 1 };
        assert_eq!(year("Dec 31 23:59:59 h", january), expected("2026-12-31 23:59:59.000"));
        assert_eq!(bsd(b"Foo 20 12:43:19 h", november()), None);
        assert_eq!(bsd(b"Nov 20 12:43", november()), None);
    }
}
