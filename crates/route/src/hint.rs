//! Hints in comments: `/* shard_id: 1 */ select …`.
//!
//! Only `/* … */` comments before the first keyword of a text and one at its very end are examined,
//! so that text inside a string is never mistaken for a hint. At each end, at most
//! [`SEARCH_BYTES_MAX`] bytes are searched.

use memchr::memmem;

use crate::{Refusal, role::RolePreference};

/// Maximum number of bytes at each end of a text that are searched for hints.
pub(crate) const SEARCH_BYTES_MAX: usize = 1000;

/// The names of hints. An empty name disables the hint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HintNames {
    /// Name of the hint that selects a shard by number: `/* shard_id: 1 */`.
    pub shard: String,
    /// Name of the hint that selects the shard of a key: `/* sharding_key: 'x' */`.
    pub key: String,
    /// Name of the hint that sets the role preference: `/* role: replica */`.
    pub role: String,
}

impl Default for HintNames {
    fn default() -> Self {
        let [shard, key, role] = ["shard_id", "sharding_key", "role"].map(str::to_owned);
        Self { shard, key, role }
    }
}

/// The values of hints found in a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hints {
    pub(crate) shard: Option<u32>,
    pub(crate) key: Option<String>,
    pub(crate) role: Option<RolePreference>,
}

impl Hints {
    /// Reads the hints of a text. If a hint occurs twice, the later one applies.
    pub(crate) fn read(sql: &[u8], names: &HintNames) -> Result<Self, Refusal> {
        let mut hints = Self::default();
        let mut rest = sql[..sql.len().min(SEARCH_BYTES_MAX)].trim_ascii_start();
        while let Some(inside) = rest.strip_prefix(b"/*") {
            let Some(end) = memmem::find(inside, b"*/") else { return Ok(hints) };
            hints.comment(&inside[..end], names)?;
            rest = inside[end + 2..].trim_ascii_start();
        }
        let is_past = |byte: &u8| byte.is_ascii_whitespace() || *byte == b';';
        let end = sql.iter().rposition(|byte| !is_past(byte)).map_or(0, |last| last + 1);
        let tail = &sql[end.saturating_sub(SEARCH_BYTES_MAX)..end];
        if let Some(inside) = tail.strip_suffix(b"*/")
            && let Some(start) = memmem::rfind(inside, b"/*")
        {
            hints.comment(&inside[start + 2..], names)?;
        }
        Ok(hints)
    }

    /// Reads the pairs in a comment, each a name, `:` or `=`, and a value. Other text is ignored.
    fn comment(&mut self, text: &[u8], names: &HintNames) -> Result<(), Refusal> {
        let mut rest = text;
        while let Some(start) = rest.iter().position(|byte| is_name_byte(*byte)) {
            let (name, behind) = bare(&rest[start..]);
            rest = behind;
            let behind = behind.trim_ascii_start();
            let Some((b':' | b'=', behind)) = behind.split_first() else { continue };
            let is = |expected: &str| !expected.is_empty() && name == expected.as_bytes();
            if !(is(&names.shard) || is(&names.key) || is(&names.role)) {
                continue;
            }
            let (value, behind) = value(behind.trim_ascii_start());
            rest = behind;
            let value = String::from_utf8_lossy(value).into_owned();
            if is(&names.shard) {
                let Ok(shard) = value.parse() else {
                    return Err(Refusal::Value {
                        parameter: "the shard",
                        value,
                        expected: "a number",
                    });
                };
                self.shard = Some(shard);
            } else if is(&names.key) {
                self.key = Some(value);
            } else if let Some(role) = RolePreference::parse(&value) {
                self.role = Some(role);
            } else {
                let expected = "primary, replica, prefer-replica, any or auto";
                return Err(Refusal::Value { parameter: "the server role", value, expected });
            }
        }
        Ok(())
    }
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.') || byte >= 0x80
}

fn bare(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|byte| !is_name_byte(*byte)).unwrap_or(text.len());
    text.split_at(end)
}

/// Parses a value with or without single or double quotes. Returns the value and the remaining
/// text.
fn value(text: &[u8]) -> (&[u8], &[u8]) {
    if let [quote @ (b'\'' | b'"'), inside @ ..] = text
        && let Some(end) = memchr::memchr(*quote, inside)
    {
        return (&inside[..end], &inside[end + 1..]);
    }
    bare(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(sql: &str) -> Result<Hints, Refusal> {
        Hints::read(sql.as_bytes(), &HintNames::default())
    }

    #[test]
    fn hints_are_read_before_and_after_statement() {
        let hints =
            |shard, key: Option<&str>, role| Ok(Hints { shard, key: key.map(str::to_owned), role });
        for sql in [
            "/* shard_id: 1 */ select 1",
            "  /*app*/ /*shard_id=1*/select 1",
            "select 1 /* shard_id: '1', note: none */",
            "select 1 /*shard_id:1*/ ; ",
        ] {
            assert_eq!(read(sql), hints(Some(1), None, None), "{sql}");
        }
        let all = "/* role: replica, sharding_key: \"a b\" */ select 1";
        assert_eq!(read(all), hints(None, Some("a b"), Some(RolePreference::Replica)));
        for sql in [
            "",
            "select '/* shard_id: 1 */'",
            "select 1 /* shard_id: 1 */, 2",
            "-- shard_id: 1\nselect 1",
            "/* my_shard_id: 1 */ select 1",
            "/* shard_id 1 */ select 1",
            "/* shard_id: 1 select 1",
            "*/",
            "/*/",
        ] {
            assert_eq!(read(sql), hints(None, None, None), "{sql}");
        }
    }

    #[test]
    fn invalid_hints_are_refused() {
        for sql in ["/* shard_id: x */", "/* shard_id: */", "/* shard_id: -1 */", "/* role: 7 */"] {
            assert!(read(sql).is_err(), "{sql}");
        }
    }
}
