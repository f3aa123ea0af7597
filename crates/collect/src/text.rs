//! Sanitizes text written by other users.
//!
//! `pg_stat_activity.query` is bytes in the encoding of *that session's* database, which the server
//! neither validates nor converts. It is also untrusted: any user can put a terminal escape
//! sequence into a comment.

use std::{borrow::Cow, sync::Arc};

use encoding_rs::Encoding;

/// Text of a statement, sanitized for display.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SqlText {
    text: Arc<str>,
    /// The text on one line. Every screen and table uses it, so it is computed once.
    line: Arc<str>,
    /// Whether only the beginning of the text was received, or may have been.
    pub is_truncated: bool,
    /// Whether the bytes were valid in their encoding, and sanitizing changed nothing.
    pub is_exact: bool,
}

impl SqlText {
    /// Sanitizes the bytes of a `query` column. `encoding` is that of the session's database;
    /// `bytes_max` is the server's limit, `track_activity_query_size`. If it is unknown, the text
    /// counts as complete.
    pub fn new(bytes: &[u8], encoding: Option<&str>, bytes_max: Option<usize>) -> Self {
        // The server truncates between characters, of which the longest has four bytes.
        let is_truncated = bytes_max.is_some_and(|max| bytes.len() + 4 >= max);
        let (decoded, is_decoded) = decode(bytes, encoding);
        let shown = sanitized(&decoded, LineBreaks::Keep);
        Self::from_sanitized(&shown, is_truncated, is_decoded && shown == decoded)
    }

    /// Restores a text from a file. It is sanitized again, since the file may come from elsewhere.
    pub fn from_recording(text: &str, is_truncated: bool, is_exact: bool) -> Self {
        let shown = sanitized(text, LineBreaks::Keep);
        Self::from_sanitized(&shown, is_truncated, is_exact && shown == text)
    }

    fn from_sanitized(shown: &str, is_truncated: bool, is_exact: bool) -> Self {
        let line = single_line(shown);
        let shown: Arc<str> = shown.into();
        let line = if line == *shown { Arc::clone(&shown) } else { line.into() };
        Self { text: shown, line, is_truncated, is_exact }
    }

    /// Returns the sanitized text. Its only control characters are line feed and tab.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the sanitized text without copying it.
    pub fn to_shared(&self) -> Arc<str> {
        Arc::clone(&self.text)
    }

    /// Returns the text on one line, with each run of white space as a single space.
    pub fn one_line(&self) -> String {
        self.line.as_ref().to_owned()
    }

    /// Returns the text on one line without copying it.
    pub fn to_shared_line(&self) -> Arc<str> {
        Arc::clone(&self.line)
    }
}

/// Joins a text into one line, with each run of white space as a single space.
fn single_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for word in text.split_whitespace() {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    line
}

/// Decodes `bytes`, and returns whether all of them were valid.
fn decode<'a>(bytes: &'a [u8], encoding: Option<&str>) -> (Cow<'a, str>, bool) {
    match encoding.and_then(encoding_for) {
        None => match str::from_utf8(bytes) {
            Ok(text) => (text.into(), true),
            Err(_) => (String::from_utf8_lossy(bytes), false),
        },
        Some(encoding) => {
            let (text, _, had_errors) = encoding.decode(bytes);
            (text, !had_errors)
        }
    }
}

/// Maps a PostgreSQL encoding (manual, "Character Set Support") to its WHATWG counterpart; `None`
/// for UTF-8 and for encodings without one, which are read as UTF-8.
fn encoding_for(name: &str) -> Option<&'static Encoding> {
    let label: &[u8] = match name {
        "LATIN1" => b"iso-8859-1",
        "LATIN2" => b"iso-8859-2",
        "LATIN3" => b"iso-8859-3",
        "LATIN4" => b"iso-8859-4",
        "LATIN5" => b"iso-8859-9",
        "LATIN6" => b"iso-8859-10",
        "LATIN7" => b"iso-8859-13",
        "LATIN8" => b"iso-8859-14",
        "LATIN9" => b"iso-8859-15",
        "LATIN10" => b"iso-8859-16",
        "ISO_8859_5" => b"iso-8859-5",
        "ISO_8859_6" => b"iso-8859-6",
        "ISO_8859_7" => b"iso-8859-7",
        "ISO_8859_8" => b"iso-8859-8",
        "KOI8R" => b"koi8-r",
        "KOI8U" => b"koi8-u",
        "WIN866" => b"ibm866",
        "WIN874" => b"windows-874",
        "WIN1250" => b"windows-1250",
        "WIN1251" => b"windows-1251",
        "WIN1252" => b"windows-1252",
        "WIN1253" => b"windows-1253",
        "WIN1254" => b"windows-1254",
        "WIN1255" => b"windows-1255",
        "WIN1256" => b"windows-1256",
        "WIN1257" => b"windows-1257",
        "WIN1258" => b"windows-1258",
        "EUC_JP" => b"euc-jp",
        "EUC_CN" => b"gbk",
        "EUC_KR" | "UHC" => b"euc-kr",
        "GBK" => b"gbk",
        "GB18030" => b"gb18030",
        "BIG5" => b"big5",
        "SJIS" => b"shift_jis",
        _ => return None,
    };
    Encoding::for_label(label)
}

/// Returns `text` on one line, without terminal control characters.
pub fn sanitized_line(text: &str) -> Cow<'_, str> {
    sanitized(text, LineBreaks::Join)
}

/// The treatment of line feeds and tabs by [`sanitized`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineBreaks {
    /// Keep line feeds and tabs.
    Keep,
    /// Replace each line feed and tab with a space.
    Join,
}

/// Replaces everything in `text` that could move a terminal's cursor, change its state, or reorder
/// what is read: a carriage return becomes a space, other ASCII control characters become their
/// symbols (`␛`), and further control characters, bidirectional controls and zero-width characters
/// become `�`. `lines` determines the treatment of line feeds and tabs. Text without any of these
/// is returned unchanged.
pub(crate) fn sanitized(text: &str, lines: LineBreaks) -> Cow<'_, str> {
    let replacement = |c: char| match c {
        '\n' | '\t' if lines == LineBreaks::Keep => None,
        '\n' | '\t' | '\r' => Some(' '),
        '\0'..='\x1f' => char::from_u32(0x2400 + u32::from(c)),
        '\x7f' => Some('␡'),
        '\u{80}'..='\u{9f}'
        | '\u{61c}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{feff}'
        | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e007f}' => Some('\u{fffd}'),
        _ => None,
    };
    if text.chars().all(|c| replacement(c).is_none()) {
        return text.into();
    }
    text.chars().map(|c| replacement(c).unwrap_or(c)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn escape_sequences_do_not_reach_the_terminal() {
        let text = SqlText::new(b"select 1 /* \x1b]52;c;aGk=\x07 \xc2\x9b2J */", None, None);
        assert_eq!(text.as_str(), "select 1 /* ␛]52;c;aGk=␇ \u{fffd}2J */");
        assert!(!text.is_exact);
        assert_eq!(sanitized("a\u{202e}b", LineBreaks::Keep), "a\u{fffd}b");
    }

    #[test]
    fn text_is_decoded_in_its_own_encoding() {
        let latin = SqlText::new(b"select 'caf\xe9'", Some("LATIN1"), None);
        assert_eq!((latin.as_str(), latin.is_exact), ("select 'café'", true));
        let broken = SqlText::new(b"select 'caf\xe9'", Some("UTF8"), None);
        assert_eq!((broken.as_str(), broken.is_exact), ("select 'caf\u{fffd}'", false));
        let japanese = SqlText::new(b"\x93\xfa\x96\x7b", Some("SJIS"), None);
        assert_eq!(japanese.as_str(), "日本");
    }

    #[test]
    fn text_that_fills_server_buffer_counts_as_truncated() {
        assert!(SqlText::new(&[b'x'; 1023], None, Some(1024)).is_truncated);
        assert!(SqlText::new(&[b'x'; 1020], None, Some(1024)).is_truncated);
        assert!(!SqlText::new(&[b'x'; 1019], None, Some(1024)).is_truncated);
    }

    #[test]
    fn one_line_has_single_spaces() {
        assert_eq!(SqlText::new(b"  select\n\t 1\r\n", None, None).one_line(), "select 1");
    }

    proptest! {
        #[test]
        fn no_control_characters_remain(bytes: Vec<u8>, latin: bool) {
            let text = SqlText::new(&bytes, latin.then_some("LATIN1"), None);
            prop_assert!(text.as_str().chars().all(|c| matches!(c, '\n' | '\t') || !c.is_control()));
            prop_assert!(!text.one_line().contains(['\n', '\t']));
        }
    }
}
