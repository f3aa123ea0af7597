//! Values of sharding keys, parsed from text and binary format.

use std::fmt;

/// The type of a sharding key column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyType {
    /// `bigint`, `integer`, `smallint`: equal numbers are equal keys.
    Int,
    /// `text`, `varchar`: bytes in the server's encoding, under a deterministic collation.
    Text,
    /// `uuid`: 16 bytes, regardless of the notation.
    Uuid,
    /// `bytea`: the bytes, written in hex or escape format.
    Bytea,
}

/// A key value. The order is PostgreSQL's for the type; text is ordered as in the collation `C`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ShardKey {
    /// A value of [`KeyType::Int`].
    Int(i64),
    /// A value of any other type.
    Bytes(Vec<u8>),
}

/// The error for a value that is not valid for the key type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} is not a valid sharding key of type {of}", display_bytes(written))]
pub struct ShardKeyError {
    /// The key type that the value does not match.
    pub of: KeyType,
    written: Vec<u8>,
}

/// Maximum length of a value in an error, in bytes, or in characters for the text of a key.
const SHOWN_MAX: usize = 64;

fn display_bytes(written: &[u8]) -> String {
    let is_cut = written.len() > SHOWN_MAX;
    let text = String::from_utf8_lossy(&written[..written.len().min(SHOWN_MAX)]);
    format!("{text:?}{}", if is_cut { "…" } else { "" })
}

impl fmt::Display for ShardKey {
    /// Writes the key like an SQL constant, shortened if it is long: a number, text in quotes, or
    /// hex format for bytes that are not printable text. UUIDs have no format of their own, since
    /// the key does not have its type.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = match self {
            Self::Int(value) => return write!(f, "{value}"),
            Self::Bytes(bytes) => bytes,
        };
        let text = str::from_utf8(bytes).ok().filter(|text| !text.contains(char::is_control));
        f.write_str("'")?;
        let is_cut = if let Some(text) = text {
            let shown: String = text.chars().take(SHOWN_MAX).collect();
            f.write_str(&shown.replace('\'', "''"))?;
            shown.len() < text.len()
        } else {
            f.write_str("\\x")?;
            bytes.iter().take(SHOWN_MAX).try_for_each(|byte| write!(f, "{byte:02x}"))?;
            bytes.len() > SHOWN_MAX
        };
        f.write_str(if is_cut { "'…" } else { "'" })
    }
}

impl fmt::Display for KeyType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Int => "bigint",
            Self::Text => "text",
            Self::Uuid => "uuid",
            Self::Bytea => "bytea",
        })
    }
}

impl KeyType {
    /// Parses text like PostgreSQL's input function for the type: decimal integers only; `bytea` in
    /// both formats.
    ///
    /// # Errors
    ///
    /// The input function would reject the text, or the text is an integer in another base or with
    /// underscores, which PostgreSQL 16 and later accept.
    pub fn parse(self, text: impl AsRef<[u8]>) -> Result<ShardKey, ShardKeyError> {
        let text = text.as_ref();
        let key = match self {
            Self::Int => int(text).map(ShardKey::Int),
            Self::Text => Some(ShardKey::Bytes(text.to_vec())),
            Self::Uuid => uuid(text).map(ShardKey::Bytes),
            Self::Bytea => bytea(text).map(ShardKey::Bytes),
        };
        key.ok_or_else(|| self.error(text))
    }

    /// Decodes a parameter in binary format: a big-endian integer of 2, 4 or 8 bytes, the 16 bytes
    /// of a UUID, or the bytes of the other types.
    ///
    /// # Errors
    ///
    /// The value has the wrong length.
    pub fn decode(self, bytes: &[u8]) -> Result<ShardKey, ShardKeyError> {
        let key = match self {
            Self::Int => match *bytes {
                [a, b] => Some(i16::from_be_bytes([a, b]).into()),
                [a, b, c, d] => Some(i32::from_be_bytes([a, b, c, d]).into()),
                _ => bytes.try_into().ok().map(i64::from_be_bytes),
            }
            .map(ShardKey::Int),
            Self::Uuid => (bytes.len() == 16).then(|| ShardKey::Bytes(bytes.to_vec())),
            Self::Text | Self::Bytea => Some(ShardKey::Bytes(bytes.to_vec())),
        };
        key.ok_or_else(|| self.error(bytes))
    }

    fn error(self, written: &[u8]) -> ShardKeyError {
        // One additional byte marks the value as truncated.
        ShardKeyError { of: self, written: written[..written.len().min(SHOWN_MAX + 1)].to_vec() }
    }

    /// Whether a key is of this type.
    pub(crate) fn has(self, key: &ShardKey) -> bool {
        match key {
            ShardKey::Int(_) => self == Self::Int,
            ShardKey::Bytes(bytes) => {
                self != Self::Int && (self != Self::Uuid || bytes.len() == 16)
            }
        }
    }
}

fn int(text: &[u8]) -> Option<i64> {
    let text = str::from_utf8(text.trim_ascii()).ok()?;
    text.parse().ok()
}

/// Parses a UUID: digits, optionally in braces, with optional hyphens after each group of four.
fn uuid(text: &[u8]) -> Option<Vec<u8>> {
    let text = text.strip_prefix(b"{").map_or(Some(text), |inner| inner.strip_suffix(b"}"))?;
    let mut bytes = Vec::with_capacity(16);
    let mut rest = text;
    while let [high, low, behind @ ..] = rest {
        bytes.push(pair(*high, *low)?);
        rest = behind;
        let is_group = bytes.len() % 2 == 0 && bytes.len() < 16;
        if let (true, [b'-', behind @ ..]) = (is_group, rest) {
            rest = behind;
        }
        if bytes.len() == 16 {
            break;
        }
    }
    (bytes.len() == 16 && rest.is_empty()).then_some(bytes)
}

/// Parses a `bytea` value: `\x` and pairs of digits, with optional space between pairs; or the
/// escape format with `\\` and `\ooo`.
fn bytea(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    if let Some(mut rest) = text.strip_prefix(b"\\x") {
        while let [first, behind @ ..] = rest {
            if matches!(first, b' ' | b'\n' | b'\t' | b'\r') {
                rest = behind;
                continue;
            }
            let [low, behind @ ..] = behind else { return None };
            bytes.push(pair(*first, *low)?);
            rest = behind;
        }
        return Some(bytes);
    }
    let mut rest = text;
    while let [first, behind @ ..] = rest {
        rest = match (first, behind) {
            (b'\\', [b'\\', behind @ ..]) => {
                bytes.push(b'\\');
                behind
            }
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', behind @ ..]) => {
                bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                behind
            }
            (b'\\', _) => return None,
            (byte, behind) => {
                bytes.push(*byte);
                behind
            }
        };
    }
    Some(bytes)
}

fn pair(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(high)? << 4 | digit(low)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_parsed_like_server() {
        let bytes = |bytes: &[u8]| Ok(ShardKey::Bytes(bytes.to_vec()));
        assert_eq!(KeyType::Int.parse(" -9223372036854775808\n"), Ok(ShardKey::Int(i64::MIN)));
        assert_eq!(KeyType::Int.parse("+7"), Ok(ShardKey::Int(7)));
        let id = (0..16).collect::<Vec<u8>>();
        for text in [
            "00010203-0405-0607-0809-0a0b0c0d0e0f",
            "{000102030405060708090A0B0C0D0E0F}",
            "0001-0203-0405-0607-0809-0a0b-0c0d-0e0f",
        ] {
            assert_eq!(KeyType::Uuid.parse(text), bytes(&id), "{text}");
        }
        assert_eq!(KeyType::Bytea.parse(r"\xDE ad"), bytes(b"\xde\xad"));
        assert_eq!(KeyType::Bytea.parse(r"a\\b\047"), bytes(b"a\\b'"));
        assert_eq!(KeyType::Text.parse(""), bytes(b""));
    }

    #[test]
    fn invalid_keys_are_errors() {
        for text in ["", "1 2", "9223372036854775808", "0x10", "1e3", "--1"] {
            assert!(KeyType::Int.parse(text).is_err(), "{text}");
        }
        for text in [
            "",
            "{",
            "{0",
            "0001020-304050607080-90a0b0c0d0e0f",
            "000102030405060708090a0b0c0d0e0f0",
        ] {
            assert!(KeyType::Uuid.parse(text).is_err(), "{text}");
        }
        for text in [r"\x0", r"\x0g", r"\", r"\400", r"\8", r"\x0 0"] {
            assert!(KeyType::Bytea.parse(text).is_err(), "{text}");
        }
        assert!(KeyType::Int.decode(&[0; 3]).is_err() && KeyType::Uuid.decode(&[0; 15]).is_err());
        let error = KeyType::Int.parse("x".repeat(1000)).expect_err("no number").to_string();
        assert_eq!(
            error,
            format!("\"{}\"… is not a valid sharding key of type bigint", "x".repeat(64))
        );
    }

    #[test]
    fn keys_are_shown_like_sql_constants() {
        let bytes = |bytes: &[u8]| ShardKey::Bytes(bytes.to_vec()).to_string();
        assert_eq!(ShardKey::Int(-8).to_string(), "-8");
        assert_eq!(bytes("d'été".as_bytes()), "'d''été'");
        assert_eq!(bytes(b""), "''");
        assert_eq!(bytes(b"\xff\xad"), r"'\xffad'");
        assert_eq!(bytes(b"\0a"), r"'\x0061'");
        assert_eq!(bytes(&[b'x'; 1000]), format!("'{}'…", "x".repeat(64)));
        assert_eq!(bytes(&[0; 65]), format!(r"'\x{}'…", "00".repeat(64)));
    }

    #[test]
    fn integers_of_all_widths_are_equal() {
        let width = |bytes: &[u8]| KeyType::Int.decode(bytes);
        assert_eq!(width(&[0xff, 0xfe]), Ok(ShardKey::Int(-2)));
        assert_eq!(width(&[0xff, 0xff, 0xff, 0xfe]), Ok(ShardKey::Int(-2)));
        assert_eq!(width(&(-2_i64).to_be_bytes()), Ok(ShardKey::Int(-2)));
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_are_key_or_error(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..80)) {
            for of in [KeyType::Int, KeyType::Text, KeyType::Uuid, KeyType::Bytea] {
                for key in [of.parse(&bytes), of.decode(&bytes)] {
                    assert!(key.map_or_else(|error| error.to_string().len() < 600, |key| of.has(&key)));
                }
            }
        }
    }
}
