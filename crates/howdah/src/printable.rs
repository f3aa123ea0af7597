//! Text of others made safe to print: whatever a field holds, a line of the log is one line, and a terminal
//! does nothing but show it.
//!
//! Escaped are control characters (C0, DEL, C1), which move cursors, begin lines and switch terminals to
//! other modes, and what Unicode has to turn the direction of text or to separate lines (U+202A to U+202E,
//! U+2066 to U+2069, U+2028, U+2029), by which a line can show other words than it has.

use std::{
    borrow::Cow,
    fmt::{self, Write},
};

/// Whether a character is shown as an escape instead of as it is.
fn is_escaped(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}')
}

/// Writes text with such characters escaped as in Rust's strings: `\n`, `\u{1b}`.
pub(crate) struct Escaping<W>(pub(crate) W);

impl<W: Write> Write for Escaping<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some(at) = rest.find(is_escaped) {
            self.0.write_str(&rest[..at])?;
            let mut behind = rest[at..].chars();
            if let Some(c) = behind.next() {
                write!(self.0, "{}", c.escape_default())?;
            }
            rest = behind.as_str();
        }
        self.0.write_str(rest)
    }
}

/// A text without such characters, but with its line breaks.
pub(crate) fn lines(text: &str) -> Cow<'_, str> {
    if !text.contains(|c| c != '\n' && is_escaped(c)) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for (number, line) in text.split('\n').enumerate() {
        if number > 0 {
            out.push('\n');
        }
        // A string takes everything.
        let _ = Escaping(&mut out).write_str(line);
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn escaped(text: &str) -> String {
        let mut out = String::new();
        Escaping(&mut out).write_str(text).unwrap();
        out
    }

    #[test]
    fn control_and_direction_characters_are_escaped_and_others_are_not() {
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
    fn lines_keeps_line_breaks_only() {
        assert!(matches!(lines("a\nb"), Cow::Borrowed(_)));
        assert_eq!(lines("a\x1b\nb\r\n"), "a\\u{1b}\nb\\r\n");
    }
}
