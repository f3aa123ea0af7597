//! Stored values of the types that keys usually have, as text.

use jiff::{SignedDuration, civil};

/// A type whose stored values can be written as text without the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyValueType {
    Bool,
    Int2,
    Int4,
    Int8,
    Oid,
    Text,
    Uuid,
    Date,
    Timestamp,
    /// `timestamptz`, written in UTC.
    TimestampTz,
}

impl KeyValueType {
    /// Returns the type with this `pg_type.oid`. The oids of these types never change. Texts are
    /// converted by the server, unless it stores them in UTF-8.
    pub(super) fn from_oid(oid: u32, is_utf8: bool) -> Option<Self> {
        Some(match oid {
            16 => Self::Bool,
            20 => Self::Int8,
            21 => Self::Int2,
            23 => Self::Int4,
            // text, bpchar and varchar
            25 | 1042 | 1043 if is_utf8 => Self::Text,
            26 => Self::Oid,
            1082 => Self::Date,
            1114 => Self::Timestamp,
            1184 => Self::TimestampTz,
            2950 => Self::Uuid,
            _ => return None,
        })
    }

    /// Returns a stored value as text that the server reads as the same value. `None` if it has the
    /// wrong length, is infinite, or not UTF-8.
    pub(super) fn text(self, bytes: &[u8]) -> Option<String> {
        Some(match self {
            Self::Bool => match bytes {
                [0] => "f".to_owned(),
                [1] => "t".to_owned(),
                _ => return None,
            },
            Self::Int2 => i16::from_le_bytes(bytes.try_into().ok()?).to_string(),
            Self::Int4 => i32::from_le_bytes(bytes.try_into().ok()?).to_string(),
            Self::Int8 => i64::from_le_bytes(bytes.try_into().ok()?).to_string(),
            Self::Oid => u32::from_le_bytes(bytes.try_into().ok()?).to_string(),
            Self::Text => std::str::from_utf8(bytes).ok()?.to_owned(),
            Self::Uuid => {
                let number = u128::from_be_bytes(bytes.try_into().ok()?);
                format!("{number:032x}")
            }
            Self::Date => {
                let days = i32::from_le_bytes(bytes.try_into().ok()?);
                let is_infinite = days == i32::MIN || days == i32::MAX;
                let hours = (!is_infinite).then(|| i64::from(days) * 24)?;
                let since = SignedDuration::from_hours(hours);
                let date = EPOCH.checked_add(since).ok()?.date();
                (date.year() > 0).then(|| date.to_string())?
            }
            Self::Timestamp => timestamp(bytes)?.to_string(),
            Self::TimestampTz => format!("{}+00", timestamp(bytes)?),
        })
    }
}

/// The zero of stored dates and times.
const EPOCH: civil::DateTime = civil::datetime(2000, 1, 1, 0, 0, 0, 0);

/// Decodes microseconds since 2000. Times before the year 1 have another text format, and are not
/// decoded.
fn timestamp(bytes: &[u8]) -> Option<civil::DateTime> {
    let us = i64::from_le_bytes(bytes.try_into().ok()?);
    let time = EPOCH.checked_add(SignedDuration::from_micros(us)).ok()?;
    (time.year() > 0).then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_the_server_reads_them() {
        let text = |oid: u32, bytes: &[u8]| KeyValueType::from_oid(oid, true).unwrap().text(bytes);
        assert_eq!(text(20, &(-7_i64).to_le_bytes()).unwrap(), "-7");
        assert_eq!(text(25, "ä".as_bytes()).unwrap(), "ä");
        assert_eq!(text(25, b"\xff"), None);
        assert_eq!(text(1082, &9131_i32.to_le_bytes()).unwrap(), "2024-12-31");
        assert_eq!(text(1082, &i32::MAX.to_le_bytes()), None);
        let half_past = (12 * 3600 + 30 * 60) * 1_000_000_i64 + 5;
        assert_eq!(text(1114, &half_past.to_le_bytes()).unwrap(), "2000-01-01T12:30:00.000005");
        assert_eq!(text(1184, &(-1_000_000_i64).to_le_bytes()).unwrap(), "1999-12-31T23:59:59+00");
        assert_eq!(text(1184, &i64::MIN.to_le_bytes()), None);
        let uuid: Vec<u8> = (0..16).collect();
        assert_eq!(text(2950, &uuid).unwrap(), "000102030405060708090a0b0c0d0e0f");
        assert_eq!(text(23, &[1, 2]), None);
        assert_eq!(text(16, &[1]).unwrap(), "t");
        assert_eq!(KeyValueType::from_oid(1700, true), None, "numeric");
        assert_eq!(KeyValueType::from_oid(25, false), None);
    }
}
