//! Dates, times of day, time stamps and intervals.

use super::{
    KeyedStream,
    keyword::{is_time_unit, redact_zone},
};

/// Returns the replacement of a date, a time, both, or an interval: with the same precision and
/// offset from UTC, and the same units.
pub(super) fn redact(value: &[u8], stream: &mut KeyedStream) -> Option<Vec<u8>> {
    redact_timestamp(value, stream)
        .or_else(|| redact_iso_interval(value, stream))
        .or_else(|| redact_interval(value, stream))
}

/// Redacts a date at the front of a value, and returns its length; 0 without a date.
pub(super) fn redact_date(out: &mut [u8], stream: &mut KeyedStream) -> usize {
    let Some(fields) = date_fields(out) else { return 0 };
    let mut end = 0;
    for (at, len, low, high) in fields {
        stream.digits_in(low, high, &mut out[at..at + len]);
        end = end.max(at + len);
    }
    end
}

/// A number in a value: its offset, its digits, and the numbers that may replace it.
type NumberField = (usize, usize, u64, u64);

/// Returns the year, month and day of a date at the front of a value. Days are valid in every
/// month; where the order of month and day is unknown, in both orders.
fn date_fields(value: &[u8]) -> Option<[NumberField; 3]> {
    const YEARS: (u64, u64) = (1970, 2037);
    let digits = |from: usize| digits_at(value, from);
    let separator = |at: usize| value.get(at).filter(|byte| b"-/.".contains(byte));
    let first = digits(0);
    if first == 8 && is_compact_date(&value[..8]) {
        return Some([(0, 4, YEARS.0, YEARS.1), (4, 2, 1, 12), (6, 2, 1, 28)]);
    }
    let between = separator(first)?;
    let second = digits(first + 1);
    let third_at = first + second + 2;
    if separator(third_at - 1)? != between || !(1..=2).contains(&second) {
        return None;
    }
    let third = digits(third_at);
    let upto = |len: usize, high: u64| if len == 1 { 9 } else { high };
    match (first, third) {
        (4, 1..=2) => Some([
            (0, 4, YEARS.0, YEARS.1),
            (5, second, 1, upto(second, 12)),
            (third_at, third, 1, upto(third, 28)),
        ]),
        (1..=2, 4) => Some([
            (0, first, 1, upto(first, 12)),
            (first + 1, second, 1, upto(second, 12)),
            (third_at, 4, YEARS.0, YEARS.1),
        ]),
        _ => None,
    }
}

/// Whether eight digits may be a date, as in `20261120`.
fn is_compact_date(digits: &[u8]) -> bool {
    let number = |range: std::ops::Range<usize>| {
        digits[range].iter().fold(0, |sum, digit| sum * 10 + u32::from(digit - b'0'))
    };
    (1900..2100).contains(&number(0..4))
        && (1..=12).contains(&number(4..6))
        && (1..=31).contains(&number(6..8))
}

fn redact_timestamp(value: &[u8], stream: &mut KeyedStream) -> Option<Vec<u8>> {
    let mut out = value.to_vec();
    let date = redact_date(&mut out, stream);
    let rest = &value[date..];
    match rest {
        [] => return Some(out),
        b" BC" | b" AD" => return Some(out),
        [b' ' | b'T', ..] if date > 0 => {}
        _ if date == 0 => {}
        _ => return None,
    }
    let at = date + usize::from(date > 0);
    let end = redact_clock(&mut out, at, stream)?;
    out.truncate(end);
    out.extend(offset(&value[end..], stream)?);
    Some(out)
}

/// Redacts a time of day at this offset, such as `12:43:19.577` or `9:15 PM`, and returns its end.
fn redact_clock(out: &mut [u8], at: usize, stream: &mut KeyedStream) -> Option<usize> {
    let hours = digits_at(out, at);
    let minutes_at = at + hours + 1;
    let is_clock =
        hours > 0 && out.get(at + hours) == Some(&b':') && digits_at(out, minutes_at) == 2;
    if !is_clock {
        return None;
    }
    let mut end = minutes_at + 2;
    let mut fraction = 0;
    if out.get(end) == Some(&b':') && digits_at(out, end + 1) == 2 {
        end += 3;
        if out.get(end) == Some(&b'.') {
            fraction = digits_at(out, end + 1);
        }
    }
    let tail = end + if fraction > 0 { 1 + fraction } else { 0 };
    // Where the half of the day ends, if it is given.
    let half = {
        let after = out[tail..].trim_ascii_start();
        let is_half = [&b"AM"[..], b"PM", b"am", b"pm"].iter().any(|half| after.starts_with(half));
        is_half.then_some(out.len() - after.len() + 2)
    };
    match hours {
        1 => stream.digits_in(1, 9, &mut out[at..=at]),
        2 if half.is_some() => stream.digits_in(1, 12, &mut out[at..at + 2]),
        2 => stream.digits_in(0, 23, &mut out[at..at + 2]),
        // Only intervals have so many hours.
        _ => stream.number(&mut out[at..at + hours]),
    }
    stream.digits_in(0, 59, &mut out[minutes_at..minutes_at + 2]);
    if end > minutes_at + 2 {
        stream.digits_in(0, 59, &mut out[end - 2..end]);
    }
    out[end..tail].iter_mut().skip(1).for_each(|byte| *byte = b'0' + stream.in_range(0, 9) as u8);
    Some(half.unwrap_or(tail))
}

/// Returns the replacement of the text after a time of day: an offset from UTC and an era stay, and
/// a zone becomes another one. `None` if it is something else.
fn offset(rest: &[u8], stream: &mut KeyedStream) -> Option<Vec<u8>> {
    let (rest, era) = match rest.split_last_chunk::<3>() {
        Some((rest, era)) if matches!(era, b" BC" | b" AD") => (rest, &era[..]),
        _ => (rest, &b""[..]),
    };
    let space = usize::from(rest.first() == Some(&b' '));
    let zone = &rest[space..];
    let is_offset = matches!(zone.first(), Some(b'+' | b'-'))
        && (2..=9).contains(&zone.len())
        && zone[1..].iter().all(|byte| byte.is_ascii_digit() || *byte == b':');
    let is_abbreviation = (2..=5).contains(&zone.len()) && zone.iter().all(u8::is_ascii_alphabetic);
    let zone = match zone {
        b"" if space == 0 => Vec::new(),
        b"Z" | b"z" => zone.to_vec(),
        _ if is_offset => zone.to_vec(),
        _ if is_abbreviation => b"UTC".to_vec(),
        _ => redact_zone(zone, stream)?,
    };
    Some([&rest[..space], &zone, era].concat())
}

/// Redacts the numbers of an interval such as `1 day 02:03:04` or `@ 3 mons ago`.
fn redact_interval(value: &[u8], stream: &mut KeyedStream) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(value.len());
    let (mut has_number, mut has_unit) = (false, false);
    for (index, word) in value.split(|byte| *byte == b' ').enumerate() {
        if index > 0 {
            out.push(b' ');
        }
        let sign = usize::from(matches!(word.first(), Some(b'+' | b'-')));
        let (sign, unsigned) = word.split_at(sign);
        let number = unsigned.iter().take_while(|b| b.is_ascii_digit() || **b == b'.').count();
        let (digits, unit) = unsigned.split_at(number);
        out.extend_from_slice(sign);
        let mut clock = unsigned.to_vec();
        if number > 0 && redact_clock(&mut clock, 0, stream) == Some(unsigned.len()) {
            out.extend(clock);
            (has_number, has_unit) = (true, true);
        } else if number > 0 && (unit.is_empty() || is_interval_unit(unit)) {
            let start = out.len();
            out.extend_from_slice(digits);
            stream.text(&mut out[start..], false);
            out.extend_from_slice(unit);
            has_number = true;
            has_unit |= !unit.is_empty();
        } else if word.is_empty() || word == b"@" || word.eq_ignore_ascii_case(b"ago") {
            out.extend_from_slice(word);
        } else if sign.is_empty() && is_interval_unit(word) {
            out.extend_from_slice(word);
            has_unit = true;
        } else {
            return None;
        }
    }
    (has_number && has_unit).then_some(out)
}

fn is_interval_unit(word: &[u8]) -> bool {
    let is_letter = word.len() == 1 && b"yYmMwWdDhHsS".contains(&word[0]);
    is_letter || is_time_unit(word)
}

/// Redacts the numbers of an interval in ISO 8601, such as `P1Y2M3DT4H5M6.5S`.
fn redact_iso_interval(value: &[u8], stream: &mut KeyedStream) -> Option<Vec<u8>> {
    let rest = value.strip_prefix(b"P")?;
    let is_part = |byte: &u8| byte.is_ascii_digit() || b"YMWDTHS.-".contains(byte);
    let is_interval = rest.iter().any(u8::is_ascii_digit)
        && rest.iter().all(is_part)
        && rest.last().is_some_and(u8::is_ascii_alphabetic);
    if !is_interval {
        return None;
    }
    let mut out = value.to_vec();
    let mut at = 1;
    while at < out.len() {
        let len = digits_at(&out, at);
        stream.number(&mut out[at..at + len]);
        at += len + 1;
    }
    Some(out)
}

/// Returns the number of digits from this offset on.
fn digits_at(value: &[u8], from: usize) -> usize {
    value.get(from..).unwrap_or_default().iter().take_while(|byte| byte.is_ascii_digit()).count()
}
