//! [`Fingerprint`]: the identifier of a statement's shape.

use std::{fmt, str::FromStr};

use xxhash_rust::xxh3::xxh3_64;

use crate::normal::normalize_into;

/// A 64-bit hash (XXH3) of a statement's normal form, shown as 16 hexadecimal digits.
///
/// Equal shapes have equal fingerprints on every machine and in every version that computes the
/// same normal form. Among a million shapes, the chance that two share a fingerprint is about 1 in
/// 40 million.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub u64);

impl Fingerprint {
    /// Returns the fingerprint of a text that is already in normal form.
    pub fn from_normal_form(normal: &str) -> Self {
        Self(xxh3_64(normal.as_bytes()))
    }
}

/// Returns the fingerprint of `sql`'s shape: the hash of [`normalize`](crate::normalize)`(sql)`.
///
/// Builds the normal form on each call; [`Fingerprinter`](crate::Fingerprinter) caches it.
pub fn fingerprint(sql: &[u8]) -> Fingerprint {
    let mut normal = String::new();
    normalize_into(sql, &mut normal);
    Fingerprint::from_normal_form(&normal)
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:016x}", self.0))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Fingerprint {
    type Err = ParseFingerprintError;

    /// Parses the output of `Display`: exactly 16 hexadecimal digits.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        match u64::from_str_radix(text, 16) {
            Ok(hash) if digits => Ok(Self(hash)),
            _ => Err(ParseFingerprintError { text: text.to_owned() }),
        }
    }
}

/// The error for a text that is not a fingerprint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a fingerprint: expected 16 hexadecimal digits")]
pub struct ParseFingerprintError {
    text: String,
}

#[test]
fn display_and_parse_round_trip() {
    let shape = fingerprint(b"select 1");
    assert_eq!(shape.to_string().parse(), Ok(shape));
    assert_eq!(Fingerprint(0x2a).to_string(), "000000000000002a");
    assert!("2a".parse::<Fingerprint>().is_err());
    assert!("+00000000000002a".parse::<Fingerprint>().is_err());
}

/// Stored runs contain fingerprints, so a change of these values is a change of the file format.
#[test]
fn fingerprints_are_stable() {
    assert_eq!(fingerprint(b"select ?"), Fingerprint(xxh3_64(b"select ?")));
    assert_eq!(fingerprint(b"SELECT 7").to_string(), "61a0463a1c92eb55");
}
