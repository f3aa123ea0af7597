//! Makes foreign text safe to print: a log line stays one line, and a terminal only displays it.
//!
//! Control characters (C0, DEL, C1) are escaped, because they move the cursor, start lines and
//! switch terminal modes, as are Unicode's direction overrides and line separators (U+202A to
//! U+202E, U+2066 to U+2069, U+2028, U+2029), with which a line can display other text than it
//! contains.
use std::{
    borrow::Cow,
    fmt::{self, Write},
};

/// Whether a character must be escaped.
fn is_escaped(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}')
}

/// A writer that escapes unsafe characters as in Rust's strings: `\n`, `\u{1b}`.
pub(crate) struct EscapingWriter<W>(pub(crate) W);

impl<W: Write> Write for EscapingWriter<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some(at) = rest.find(is_escaped) {
            self.0.write_str(&rest[..at])?;
            let mut rest_chars = rest[at..].chars();
            if let Some(c) = rest_chars.next() {
                write!(self.0, "{}", c.escape_default())?;
            }
            rest = rest_chars.as_str();
        }
        self.0.write_str(rest)
    }
}

/// Escapes unsafe characters, but keeps line breaks.
pub(crate) fn escape_lines(text: &str) -> Cow<'_, str> {
    if !text.contains(|c| c != '\n' && is_escaped(c)) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for (number, line) in text.split('\n').enumerate() {
        if number > 0 {
            out.push('\n');
        }
        // Writing to a string cannot fail.
        let _ = EscapingWriter(&mut out).write_str(line);
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn escaped(text: &str) -> String {
        let mut out = String::new();
        EscapingWriter(&mut out).write_str(text).unwrap();
        out
    }

    #[test]
    fn only_control_and_direction_characters_are_escaped() {
        assert_eq!(escaped("plain ä 漢 🐘 \\ \""), "plain ä 漢 🐘 \\ \"");
        assert_eq!(escaped("a\nb\rc\td"), "a\\nb\\rc\\td");
        assert_eq!(escaped("\x1b[2J\x07\x7f\u{9b}"), "\\u{1b}[2J\\u{7}\\u{7f}\\u{9b}");
        for c in ['\u{202a}', '\u{202e}', '\u{2066}', '\u{2069}', '\u{2028}', '\u{2029}', '\0'] {
            let shown = escaped(&format!("x{c}y"));
            assert!(!shown.contains(c) && shown.starts_with("x\\u{") && shown.ends_with("}y"));
        }
        assert_eq!(escaped("\u{2065}\u{206a}"), "\u{2065}\u{206a}");
    }

    #[test]
    fn escape_lines_preserves_only_line_breaks() {
        assert!(matches!(escape_lines("a\nb"), Cow::Borrowed(_)));
        assert_eq!(escape_lines("a\x1b\nb\r\n"), "a\\u{1b}\nb\\r\n");
    }
}
