//! [`ValueShape`]: the kind of a value in text format, and the type it suggests.

use serde::de::IgnoredAny;

/// The kind of one parameter's values, in the text format in which PostgreSQL logs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueShape {
    /// No evidence yet: all values are NULL or `{}`, which is an empty array or an empty object.
    Unknown,
    One(Scalar),
    /// An array with any number of dimensions; `None` if all elements so far are NULL.
    Array(Option<Scalar>),
}

/// The shape of a value that is not an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scalar {
    // Ordered so that later variants can cover earlier ones.
    Int4,
    Int8,
    Numeric,
    Float8,
    Date,
    Timestamp,
    TimestampTz,
    Time,
    Interval,
    Bool,
    Uuid,
    Bytea,
    Json,
    /// Any other value.
    Text,
}

use Scalar::{
    Bool, Bytea, Date, Float8, Int4, Int8, Interval, Json, Numeric, Text, Time, Timestamp,
    TimestampTz, Uuid,
};

/// Maximum length in bytes of a value that is parsed. Longer values count as text, because parsing
/// them would cost more than it reveals.
const VALUE_BYTES_MAX: usize = 64 << 10;

impl ValueShape {
    pub(crate) fn from_value(value: &[u8]) -> Self {
        match std::str::from_utf8(value) {
            Ok(text) if text.len() <= VALUE_BYTES_MAX => Self::from_text(text),
            _ => Self::One(Text),
        }
    }

    fn from_text(text: &str) -> Self {
        // `{}` is an empty object or an empty array.
        if text == "{}" {
            return Self::Unknown;
        }
        let is_json = |text: &str| serde_json::from_str::<IgnoredAny>(text).is_ok();
        if text.starts_with(['{', '[']) && is_json(text) {
            return Self::One(Json);
        }
        if text.starts_with('{') {
            array(text).map_or(Self::One(Text), Self::Array)
        } else {
            Self::One(Scalar::from_text(text))
        }
    }

    /// Returns the smallest shape that covers `self` and `other`.
    pub(crate) fn join(self, other: Self) -> Self {
        match (self, other) {
            (Self::Unknown, known) | (known, Self::Unknown) => known,
            (Self::One(one), Self::One(other)) => Self::One(one.join(other)),
            (Self::Array(None), array @ Self::Array(_))
            | (array @ Self::Array(_), Self::Array(None)) => array,
            (Self::Array(Some(one)), Self::Array(Some(other))) => {
                Self::Array(Some(one.join(other)))
            }
            _ => Self::One(Text),
        }
    }

    /// Returns the scalar of a value or of an array's elements; `None` if not known yet.
    pub(crate) fn scalar(self) -> Option<Scalar> {
        match self {
            Self::Unknown | Self::Array(None) => None,
            Self::One(scalar) | Self::Array(Some(scalar)) => Some(scalar),
        }
    }

    /// Returns the same shape with its scalar replaced.
    pub(crate) fn with_scalar(self, change: impl Fn(Scalar) -> Scalar) -> Self {
        match self {
            Self::One(scalar) => Self::One(change(scalar)),
            Self::Array(Some(scalar)) => Self::Array(Some(change(scalar))),
            unknown => unknown,
        }
    }

    /// Returns the OID of the shape's type in `pg_type.dat`; 0 if the server should decide. The
    /// type of plain text is left to the server, because text can represent any type.
    pub(crate) fn oid(self) -> u32 {
        match self {
            Self::Unknown | Self::Array(None) | Self::One(Text) => 0,
            Self::One(scalar) => scalar.oids().0,
            Self::Array(Some(scalar)) => scalar.oids().1,
        }
    }
}

impl Scalar {
    fn from_text(text: &str) -> Self {
        let bytes = text.as_bytes();
        let hex = |bytes: &[u8]| bytes.iter().all(u8::is_ascii_hexdigit);
        if let Some(number) = number(text) {
            number
        } else if matches!(text, "t" | "f" | "true" | "false") {
            Bool
        } else if bytes.strip_prefix(b"\\x").is_some_and(|rest| rest.len() % 2 == 0 && hex(rest)) {
            Bytea
        } else if is_uuid(bytes) {
            Uuid
        } else if let Some(moment) = date_and_time(text) {
            moment
        } else if is_time(text) {
            Time
        } else if is_interval(text) {
            Interval
        } else {
            Text
        }
    }

    fn join(self, other: Self) -> Self {
        let (low, high) = (self.min(other), self.max(other));
        match (low, high) {
            _ if low == high => low,
            (Int4 | Int8 | Numeric, Int8 | Numeric | Float8)
            | (Date | Timestamp, Timestamp | TimestampTz)
            | (Time, Interval) => high,
            _ => Text,
        }
    }

    /// Returns the OIDs of the type and of its array type.
    fn oids(self) -> (u32, u32) {
        match self {
            Int4 => (23, 1007),
            Int8 => (20, 1016),
            Numeric => (1700, 1231),
            Float8 => (701, 1022),
            Date => (1082, 1182),
            Timestamp => (1114, 1115),
            TimestampTz => (1184, 1185),
            Time => (1083, 1183),
            Interval => (1186, 1187),
            Bool => (16, 1000),
            Uuid => (2950, 2951),
            Bytea => (17, 1001),
            Json => (3802, 3807),
            Text => (25, 1009),
        }
    }
}

/// Parses a number as PostgreSQL writes it: no plus sign, spaces or superfluous leading zeros, so
/// that the number written back is usually the same text.
fn number(text: &str) -> Option<Scalar> {
    if matches!(text, "NaN" | "Infinity" | "-Infinity") {
        return Some(Float8);
    }
    let digits = text.strip_prefix('-').unwrap_or(text);
    let (mantissa, exponent) = match digits.split_once('e') {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (digits, None),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (mantissa, None),
    };
    let all_digits = |part: &str| !part.is_empty() && part.bytes().all(|it| it.is_ascii_digit());
    let is_whole = all_digits(whole) && (whole == "0" || !whole.starts_with('0'));
    let has_sign = |it: &str| all_digits(it.strip_prefix(['-', '+']).unwrap_or(it));
    if !is_whole || !fraction.is_none_or(all_digits) || !exponent.is_none_or(has_sign) {
        return None;
    }
    Some(match (fraction, exponent) {
        (_, Some(_)) => Float8,
        (Some(_), None) => Numeric,
        (None, None) if text.parse::<i32>().is_ok() => Int4,
        (None, None) if text.parse::<i64>().is_ok() => Int8,
        (None, None) => Numeric,
    })
}

fn is_uuid(bytes: &[u8]) -> bool {
    bytes.len() == 36
        && bytes.iter().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => *byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

/// Recognizes `2026-11-20`, with or without a time of day and a zone.
fn date_and_time(text: &str) -> Option<Scalar> {
    let (date, rest) = text.split_at_checked(10)?;
    let mut parts = date.split('-');
    let mut part = |digits: usize, from: u32, to: u32| {
        let number = parts.next().filter(|part| part.len() == digits)?;
        let number = number.bytes().all(|it| it.is_ascii_digit()).then(|| number.parse::<u32>());
        number?.ok().filter(|number| (from..=to).contains(number))
    };
    part(4, 1, 9999)?;
    part(2, 1, 12)?;
    part(2, 1, 31)?;
    if rest.is_empty() {
        return Some(Date);
    }
    let time = rest.strip_prefix([' ', 'T'])?;
    let zone = time.find(['+', '-', 'Z']);
    let (time, zone) = time.split_at(zone.unwrap_or(time.len()));
    if !is_time(time) {
        return None;
    }
    let is_offset = |zone: &str| {
        let mut parts = zone.split(':');
        parts.all(|part| part.len() == 2 && part.bytes().all(|it| it.is_ascii_digit()))
    };
    match zone {
        "" => Some(Timestamp),
        "Z" => Some(TimestampTz),
        zone if is_offset(&zone[1..]) => Some(TimestampTz),
        _ => None,
    }
}

/// Whether a text is `hh:mm:ss`, with or without a fraction of a second.
fn is_time(text: &str) -> bool {
    let mut parts = text.split(':');
    let mut part = |max: u32| {
        let text = parts.next().filter(|part| part.len() == 2)?;
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse::<u32>().ok().filter(|number| *number <= max)).flatten()
    };
    if part(23).is_none() || part(59).is_none() {
        return false;
    }
    let Some(seconds) = parts.next() else { return false };
    let (whole, fraction) = seconds.split_once('.').unwrap_or((seconds, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    parts.next().is_none() && whole.len() == 2 && digits(whole) && digits(fraction)
}

/// Whether a text is an interval: `1 year 2 mons -3 days +04:05:06.7`, as `IntervalStyle =
/// postgres` writes it, or `1 hour`, as people write it.
fn is_interval(text: &str) -> bool {
    const UNITS: [&str; 9] =
        ["year", "mon", "month", "week", "day", "hour", "min", "minute", "second"];
    let mut words = text.split(' ').peekable();
    let mut any = false;
    while let Some(word) = words.next() {
        let unsigned = word.strip_prefix(['-', '+']).unwrap_or(word);
        let is_number = |part: &str| {
            !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
        };
        if unsigned.contains(':') {
            let mut parts = unsigned.split(':');
            // Hours may exceed a day.
            let fits = parts.by_ref().all(is_number) && unsigned.matches(':').count() == 2;
            if !fits || words.peek().is_some() {
                return false;
            }
        } else {
            let unit = words.next().unwrap_or_default();
            if !is_number(unsigned) || !UNITS.contains(&unit.strip_suffix('s').unwrap_or(unit)) {
                return false;
            }
        }
        any = true;
    }
    any
}

/// Returns the common shape of an array's elements, `Some(None)` if all are NULL or there are none;
/// `None` if the text is not an array.
fn array(text: &str) -> Option<Option<Scalar>> {
    let mut rest = text;
    let mut depth = 0_u32;
    let mut shape: Option<Scalar> = None;
    loop {
        let byte = *rest.as_bytes().first()?;
        match byte {
            b'{' => depth += 1,
            b'}' => {
                depth -= 1;
                if depth == 0 {
                    return (rest.len() == 1).then_some(shape);
                }
            }
            b',' => {}
            _ => {
                let (element, is_quoted, after) = element(rest)?;
                if is_quoted || !element.eq_ignore_ascii_case("null") {
                    let scalar = Scalar::from_text(&element);
                    shape = Some(shape.map_or(scalar, |shape| shape.join(scalar)));
                }
                rest = after;
                continue;
            }
        }
        rest = &rest[1..];
    }
}

/// Splits off the array element at the start of `text`. Returns the element, whether it was quoted,
/// and the rest of the text; `None` if it is malformed.
fn element(text: &str) -> Option<(String, bool, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([',', '}', '{', '"'])?;
        let ends_well = matches!(text.as_bytes()[end], b',' | b'}');
        return ends_well.then(|| (text[..end].to_owned(), false, &text[end..]));
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '\\' => value.push(chars.next()?.1),
            '"' => return Some((value, true, &quoted[at + 1..])),
            char => value.push(char),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_shape_of_their_type() {
        let one = |text: &str| ValueShape::from_value(text.as_bytes());
        for (shape, texts) in [
            (ValueShape::One(Int4), &["0", "-7", "2147483647"][..]),
            (ValueShape::One(Int8), &["2147483648", "-9223372036854775808"]),
            (ValueShape::One(Numeric), &["9223372036854775808", "1.50", "-0.001"]),
            (ValueShape::One(Float8), &["1e+20", "1.5e-07", "NaN", "-Infinity"]),
            (ValueShape::One(Bool), &["t", "false"]),
            (ValueShape::One(Date), &["2026-11-20"]),
            (ValueShape::One(Timestamp), &["2026-11-20 10:00:00", "2026-11-20T10:00:00.123456"]),
            (
                ValueShape::One(TimestampTz),
                &["2026-11-20 10:00:00+01", "2026-11-20 10:00:00.5-03:30"],
            ),
            (ValueShape::One(Time), &["10:00:00", "23:59:59.5"]),
            (
                ValueShape::One(Interval),
                &["1 day", "-3 days +04:05:06", "1 year 2 mons", "100:00:00", "2 hours"],
            ),
            (ValueShape::One(Uuid), &["6f9619ff-8b86-d011-b42d-00c04fc964ff"]),
            (ValueShape::One(Bytea), &["\\x", "\\x00ff"]),
            (ValueShape::One(Json), &["{\"a\": 1}", "[1, 2]", "[]"]),
            (ValueShape::Array(Some(Int4)), &["{1,2}", "{{1,NULL},{3,4}}"]),
            (ValueShape::Array(Some(Numeric)), &["{1,2.5}"]),
            (ValueShape::Array(Some(TimestampTz)), &["{\"2026-11-20 10:00:00+00\"}"]),
            (ValueShape::Array(Some(Text)), &["{a,b}", "{\"1, 2\",x}", "{\"\\\"\"}", "{\"null\"}"]),
            (ValueShape::Array(None), &["{NULL}"]),
            (ValueShape::Unknown, &["{}"]),
            (
                ValueShape::One(Text),
                &[
                    "",
                    "+1",
                    "01",
                    "1.",
                    ".5",
                    "1 2",
                    "0x1",
                    "abc",
                    "day",
                    "1 apple",
                    "2026-13-01",
                    "2026-11-20 25:00:00",
                    "{1,2",
                    "{1,2}x",
                    "{a\"b}",
                    "10:00",
                    "-",
                    "e",
                    "1e",
                    "é",
                ],
            ),
        ] {
            for text in texts {
                assert_eq!(one(text), shape, "{text}");
            }
        }
        assert_eq!(ValueShape::from_value(b"\xff"), ValueShape::One(Text));
    }

    #[test]
    fn join_covers_both_shapes() {
        let join = |one: &str, other: &str| {
            let (one, other) =
                (ValueShape::from_value(one.as_bytes()), ValueShape::from_value(other.as_bytes()));
            assert_eq!(one.join(other), other.join(one));
            one.join(other)
        };
        assert_eq!(join("1", "2147483648"), ValueShape::One(Int8));
        assert_eq!(join("1", "1.5"), ValueShape::One(Numeric));
        assert_eq!(join("1.5", "1e+20"), ValueShape::One(Float8));
        assert_eq!(join("2026-11-20", "2026-11-20 10:00:00+00"), ValueShape::One(TimestampTz));
        assert_eq!(join("10:00:00", "100:00:00"), ValueShape::One(Interval));
        assert_eq!(join("1", "abc"), ValueShape::One(Text));
        assert_eq!(join("1", "2026-11-20"), ValueShape::One(Text));
        assert_eq!(join("{}", "{1}"), ValueShape::Array(Some(Int4)));
        assert_eq!(join("{NULL}", "{1}"), ValueShape::Array(Some(Int4)));
        assert_eq!(join("1", "{1}"), ValueShape::One(Text));
    }
}
