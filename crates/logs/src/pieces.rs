//! Fields of a record before it is built: most lie in the input as they are, some must be unescaped.
//!
//! Unescaped text of a whole record goes into one scratch buffer that is used again for the next, so
//! reading a record costs no allocation once the buffer has grown.

/// Where a field's bytes are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Piece {
    /// The log does not have it.
    #[default]
    Absent,
    /// In the input, from the first offset to before the second.
    Input(usize, usize),
    /// In the scratch buffer.
    Scratch(usize, usize),
}

impl Piece {
    /// The bytes, if the log has the field.
    pub(crate) fn get<'a>(self, input: &'a [u8], scratch: &'a [u8]) -> Option<&'a [u8]> {
        match self {
            Self::Absent => None,
            Self::Input(start, end) => input.get(start..end),
            Self::Scratch(start, end) => scratch.get(start..end),
        }
    }
}

/// Reads decimal digits, or `None` if there is anything else, nothing, or too much.
pub(crate) fn number<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Start second and process id out of `%c`.
pub(crate) fn session_id(text: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(text).ok()?;
    let (start, pid) = text.split_once('.')?;
    Some((i64::from_str_radix(start, 16).ok()?, u32::from_str_radix(pid, 16).ok()?))
}

/// The function's name out of `exec_simple_query, postgres.c:1079`.
pub(crate) fn function(location: &[u8]) -> &[u8] {
    memchr::memchr(b',', location).map_or(b"", |comma| &location[..comma])
}

#[test]
fn parts_of_fields() {
    assert_eq!(session_id(b"6b004067.46e2"), Some((0x6b00_4067, 0x46e2)));
    assert_eq!(session_id(b"6b004067"), None);
    assert_eq!(function(b"exec_simple_query, postgres.c:1079"), b"exec_simple_query");
    assert_eq!(number::<u32>(b"12"), Some(12));
    assert_eq!(number::<u32>(b"99999999999"), None);
}
