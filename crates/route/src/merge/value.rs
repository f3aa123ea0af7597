//! [`Value`]: values of types whose order is known without a server.

use std::cmp::Ordering;

use howdah_wire::ValueFormat;

use super::numeric::Numeric;

/// OIDs of PostgreSQL's built-in types, from `pg_type.dat`.
pub(super) mod oid {
    pub(crate) const BOOL: u32 = 16;
    pub(crate) const BYTEA: u32 = 17;
    pub(crate) const CHAR: u32 = 18;
    pub(crate) const NAME: u32 = 19;
    pub(crate) const INT8: u32 = 20;
    pub(crate) const INT2: u32 = 21;
    pub(crate) const INT4: u32 = 23;
    pub(crate) const TEXT: u32 = 25;
    pub(crate) const OID: u32 = 26;
    pub(crate) const FLOAT4: u32 = 700;
    pub(crate) const FLOAT8: u32 = 701;
    pub(crate) const BPCHAR: u32 = 1042;
    pub(crate) const VARCHAR: u32 = 1043;
    pub(crate) const DATE: u32 = 1082;
    pub(crate) const TIME: u32 = 1083;
    pub(crate) const TIMESTAMP: u32 = 1114;
    pub(crate) const TIMESTAMPTZ: u32 = 1184;
    pub(crate) const NUMERIC: u32 = 1700;
    pub(crate) const UUID: u32 = 2950;
}

/// The type and format of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Type {
    pub(super) oid: u32,
    pub(super) format: ValueFormat,
}

/// A value that is not NULL.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Integer(i64),
    Float(f64),
    Numeric(Numeric),
    Bytes(Vec<u8>),
}

impl Type {
    /// Whether values of the type can be ordered. With `text_by_byte`, text sorts bytewise, as in
    /// the collations `C` and `C.UTF-8`.
    pub(super) fn is_ordered(self, text_by_byte: bool) -> bool {
        match self.oid {
            oid::TEXT | oid::VARCHAR | oid::BPCHAR => text_by_byte,
            oid::BOOL | oid::BYTEA | oid::CHAR | oid::NAME | oid::INT8 | oid::INT2 | oid::INT4 => {
                true
            }
            oid::OID | oid::FLOAT4 | oid::FLOAT8 | oid::DATE | oid::TIME | oid::TIMESTAMP => true,
            oid::TIMESTAMPTZ | oid::NUMERIC | oid::UUID => true,
            _ => false,
        }
    }

    /// Parses a cell of this type and format; `None` if it is not a valid value, or the type's
    /// order is not known here.
    pub(super) fn read(self, cell: &[u8]) -> Option<Value> {
        match self.format {
            ValueFormat::Text => self.read_text(cell),
            ValueFormat::Binary => self.read_binary(cell),
        }
    }

    fn read_text(self, cell: &[u8]) -> Option<Value> {
        let text = || std::str::from_utf8(cell).ok();
        Some(match self.oid {
            oid::BOOL => match cell {
                b"t" => Value::Integer(1),
                b"f" => Value::Integer(0),
                _ => return None,
            },
            oid::INT8 | oid::INT2 | oid::INT4 | oid::OID => Value::Integer(text()?.parse().ok()?),
            oid::FLOAT4 | oid::FLOAT8 => Value::Float(match text()? {
                "NaN" => f64::NAN,
                "Infinity" => f64::INFINITY,
                "-Infinity" => f64::NEG_INFINITY,
                number => number.parse().ok()?,
            }),
            oid::NUMERIC => Value::Numeric(Numeric::read_text(cell)?),
            oid::DATE => Value::Integer(moment(text()?, 1)?),
            oid::TIMESTAMP | oid::TIMESTAMPTZ => Value::Integer(moment(text()?, DAY)?),
            oid::TIME => Value::Integer(time(text()?)?),
            oid::BYTEA => Value::Bytes(bytea(cell)?),
            oid::BPCHAR => Value::Bytes(cell.trim_end_byte(b' ').to_vec()),
            // A UUID sorts by its text as by its value: PostgreSQL writes it in lower-case
            // hexadecimal digits.
            oid::CHAR | oid::NAME | oid::TEXT | oid::VARCHAR | oid::UUID => {
                Value::Bytes(cell.to_vec())
            }
            _ => return None,
        })
    }

    fn read_binary(self, cell: &[u8]) -> Option<Value> {
        Some(match self.oid {
            oid::BOOL => Value::Integer(i8::from_be_bytes(cell.try_into().ok()?).into()),
            oid::INT2 => Value::Integer(i16::from_be_bytes(cell.try_into().ok()?).into()),
            oid::INT4 | oid::DATE => {
                Value::Integer(i32::from_be_bytes(cell.try_into().ok()?).into())
            }
            oid::OID => Value::Integer(u32::from_be_bytes(cell.try_into().ok()?).into()),
            oid::INT8 | oid::TIME | oid::TIMESTAMP | oid::TIMESTAMPTZ => {
                Value::Integer(i64::from_be_bytes(cell.try_into().ok()?))
            }
            oid::FLOAT4 => Value::Float(f32::from_be_bytes(cell.try_into().ok()?).into()),
            oid::FLOAT8 => Value::Float(f64::from_be_bytes(cell.try_into().ok()?)),
            oid::NUMERIC => Value::Numeric(Numeric::read_binary(cell)?),
            oid::BPCHAR => Value::Bytes(cell.trim_end_byte(b' ').to_vec()),
            oid::CHAR | oid::NAME | oid::TEXT | oid::VARCHAR | oid::UUID | oid::BYTEA => {
                Value::Bytes(cell.to_vec())
            }
            _ => return None,
        })
    }
}

impl Value {
    /// Compares two values of one type in PostgreSQL's order: NaN equals itself and is greater than
    /// all others.
    pub(super) fn compare(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Integer(one), Self::Integer(two)) => one.cmp(two),
            (Self::Float(one), Self::Float(two)) => {
                one.partial_cmp(two).unwrap_or_else(|| one.is_nan().cmp(&two.is_nan()))
            }
            (Self::Numeric(one), Self::Numeric(two)) => one.cmp(two),
            (Self::Bytes(one), Self::Bytes(two)) => one.cmp(two),
            _ => Ordering::Equal,
        }
    }
}

trait TrimEnd {
    fn trim_end_byte(&self, byte: u8) -> &[u8];
}

impl TrimEnd for [u8] {
    fn trim_end_byte(&self, byte: u8) -> &[u8] {
        &self[..self.iter().rposition(|it| *it != byte).map_or(0, |last| last + 1)]
    }
}

/// Number of microseconds per day.
const DAY: i64 = 86_400_000_000;

/// Parses a date or a timestamp with or without time zone, in the format of `DateStyle = ISO`. The
/// result counts from 1 March of the year 0; `day` is the number of its units per day: 1 for a
/// date, [`DAY`] for a timestamp.
fn moment(text: &str, day: i64) -> Option<i64> {
    match text {
        "infinity" => return Some(i64::MAX),
        "-infinity" => return Some(i64::MIN),
        _ => {}
    }
    let (text, is_before_christ) = match text.strip_suffix(" BC") {
        Some(text) => (text, true),
        None => (text, false),
    };
    let (date, clock) =
        text.split_once(' ').map_or((text, None), |(date, clock)| (date, Some(clock)));
    let mut parts = date.split('-');
    let (year, month, of_month) = (parts.next()?, parts.next()?, parts.next()?);
    // Other date styles have other separators, or the year at the end.
    if year.len() < 4 || parts.next().is_some() {
        return None;
    }
    let year: i64 = year.parse().ok()?;
    let year = if is_before_christ { 1 - year } else { year };
    let days = days(year, month.parse().ok()?, of_month.parse().ok()?)?;
    let Some(clock) = clock else { return days.checked_mul(day) };
    let zone = clock.find(['+', '-']);
    let (clock, zone) = clock.split_at(zone.unwrap_or(clock.len()));
    days.checked_mul(day)?.checked_add(time(clock)?)?.checked_sub(offset(zone)?)
}

/// Returns days since 1 March of the year 0, in the proleptic Gregorian calendar.
fn days(year: i64, month: i64, of_month: i64) -> Option<i64> {
    if !(1..=12).contains(&month) || !(1..=31).contains(&of_month) || year.abs() > 6_000_000 {
        return None;
    }
    // In years that start in March, the leap day is the last day.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leaps = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    Some(365 * year + leaps + (153 * month + 2) / 5 + of_month - 1)
}

/// Parses `HH:MM:SS` with up to six fractional digits. Returns microseconds.
fn time(text: &str) -> Option<i64> {
    let (clock, part) = text.split_once('.').unwrap_or((text, ""));
    let mut micros: i64 = if part.is_empty() { 0 } else { format!("{part:0<6}").parse().ok()? };
    let mut parts = clock.split(':');
    for unit in [3_600_000_000, 60_000_000, 1_000_000] {
        let part: i64 = parts.next()?.parse().ok().filter(|part| (0..=60).contains(part))?;
        micros += part * unit;
    }
    (parts.next().is_none() && part.len() <= 6).then_some(micros)
}

/// Parses a time zone offset: `+HH`, `+HH:MM`, `+HH:MM:SS`, or an empty text for 0. Returns
/// microseconds.
fn offset(zone: &str) -> Option<i64> {
    let Some(sign) = zone.bytes().next() else { return Some(0) };
    let parts = zone[1..].matches(':').count();
    let micros = time(&format!("{}{}", &zone[1..], &":00:00"[3 * parts.min(2)..]))?;
    Some(if sign == b'-' { -micros } else { micros })
}

/// Parses a `bytea` value in either format of `bytea_output`.
fn bytea(cell: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: &u8, radix| char::from(*byte).to_digit(radix);
    if let Some(hex) = cell.strip_prefix(b"\\x") {
        let pair = |pair: &[u8]| match pair {
            [high, low] => u8::try_from(digit(high, 16)? * 16 + digit(low, 16)?).ok(),
            _ => None,
        };
        return hex.chunks(2).map(pair).collect();
    }
    let mut bytes = Vec::with_capacity(cell.len());
    let mut rest = cell;
    while let [first, behind @ ..] = rest {
        let (byte, behind) = match (first, behind) {
            (b'\\', [b'\\', behind @ ..]) => (b'\\', behind),
            (b'\\', [a, b, c, behind @ ..]) => {
                let number = digit(a, 8)? * 64 + digit(b, 8)? * 8 + digit(c, 8)?;
                (u8::try_from(number).ok()?, behind)
            }
            (b'\\', _) => return None,
            _ => (*first, behind),
        };
        bytes.push(byte);
        rest = behind;
    }
    Some(bytes)
}
