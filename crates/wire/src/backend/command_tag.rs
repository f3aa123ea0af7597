//! Command tags: the result of a statement as short text.

use crate::reader::{BodyReader, DecodeError};

/// A command tag, such as `SELECT 5`, `INSERT 0 1` or `CREATE TABLE`.
///
/// Source: PostgreSQL manual, "CommandComplete"; `cmdtaglist.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandTag<'a>(&'a [u8]);

impl<'a> CommandTag<'a> {
    pub(super) fn read(reader: &mut BodyReader<'a>) -> Result<Self, DecodeError> {
        reader.string("command tag").map(Self)
    }

    /// Returns the whole tag, which is ASCII from every known server.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.0
    }

    /// Returns the command without its numbers: `INSERT` for `INSERT 0 1`.
    pub fn command(&self) -> &'a [u8] {
        let mut command = self.0;
        while let Some((before, _)) = split_number(command) {
            command = before;
        }
        command
    }

    /// Returns the number of rows returned or changed, for commands that report it.
    pub fn rows(&self) -> Option<u64> {
        let (_, digits) = split_number(self.0)?;
        std::str::from_utf8(digits).ok()?.parse().ok()
    }
}

/// Splits at the last space, if only digits follow it.
fn split_number(tag: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = tag.iter().rposition(|byte| *byte == b' ')?;
    let digits = &tag[space + 1..];
    (!digits.is_empty() && digits.iter().all(u8::is_ascii_digit)).then_some((&tag[..space], digits))
}

#[test]
fn tags_contain_command_and_rows() {
    for (tag, command, rows) in [
        ("SELECT 5", "SELECT", Some(5)),
        ("INSERT 0 12", "INSERT", Some(12)),
        ("CREATE TABLE", "CREATE TABLE", None),
        ("COPY 18446744073709551615", "COPY", Some(u64::MAX)),
        ("COPY 18446744073709551616", "COPY", None),
        ("REFRESH MATERIALIZED VIEW", "REFRESH MATERIALIZED VIEW", None),
        ("FETCH ", "FETCH ", None),
        ("", "", None),
    ] {
        let parsed = CommandTag(tag.as_bytes());
        assert_eq!((parsed.command(), parsed.rows()), (command.as_bytes(), rows), "{tag}");
    }
}
