//! Redacts SQL text: replaces constants and removes comments.

use howdah_sql::{Lexer, SqlToken, TokenKind};

use super::{
    names::{NameContext, folded_name},
    stream::hide_exponent,
    value::ValueRedactor,
};

/// Returns the text with its constants replaced and its comments removed; `None` if the constants
/// cannot be identified with certainty. With `redacts_names`, also replaces names of cursors,
/// savepoints, prepared statements and channels.
pub(super) fn redact(sql: &[u8], values: &ValueRedactor, redacts_names: bool) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(sql.len());
    let mut context = StatementContext::default();
    let mut names = NameContext::default();
    for token in Lexer::new(sql) {
        let is_name = names.advance(token) && redacts_names;
        match token.kind {
            TokenKind::Word | TokenKind::QuotedName if is_name => {
                out.extend(values.name(&folded_name(token.text)).into_bytes());
            }
            TokenKind::String if is_name && token.text.first() == Some(&b'\'') => {
                let name = constant_content(token.text, false)?;
                write_plain(b"", values.name(&name).as_bytes(), &mut out);
            }
            TokenKind::Comment => out.push(b' '),
            // The escape character of the preceding Unicode constant, which is a string of one
            // character.
            TokenKind::String if context.follows("uescape") && token.text.len() == 3 => {
                out.extend(token.text);
            }
            TokenKind::String => redact_string(token.text, values, &mut out)?,
            TokenKind::Number => redact_number(token.text, values, &mut out),
            TokenKind::Word if context.is_value() => out.extend(redact_word(token.text, values)),
            // `{`, `\` and control characters belong to psql or other languages, and different
            // rules may apply to the text after them.
            TokenKind::Stray if token.text != b"$" => return None,
            _ => out.extend(token.text),
        }
        context.advance(token);
    }
    Some(out)
}

/// The state of the statement up to the current token.
#[derive(Default)]
struct StatementContext {
    last_word: Vec<u8>,
    words: usize,
    is_alter: bool,
    is_set: bool,
    /// Whether the statement is `SET a.b`: a setting of the application.
    is_custom: bool,
    is_assigned: bool,
}

impl StatementContext {
    fn follows(&self, word: &str) -> bool {
        self.last_word.eq_ignore_ascii_case(word.as_bytes())
    }

    /// Whether a word at this position is a value.
    fn is_value(&self) -> bool {
        self.is_set && self.is_custom && self.is_assigned
    }

    fn advance(&mut self, token: SqlToken<'_>) {
        match token.kind {
            TokenKind::Space | TokenKind::Comment => return,
            TokenKind::Punctuation if token.text == b";" => {
                *self = Self::default();
                return;
            }
            TokenKind::Punctuation if token.text == b"." && self.is_set => self.is_custom = true,
            TokenKind::Operator if token.text == b"=" && self.is_set => self.is_assigned = true,
            TokenKind::Word => {
                let is = |word: &str| token.text.eq_ignore_ascii_case(word.as_bytes());
                if self.words == 0 {
                    // ALTER SYSTEM, ALTER ROLE and ALTER DATABASE also set values.
                    (self.is_set, self.is_alter) = (is("set"), is("alter"));
                } else if self.is_alter && is("set") {
                    (self.is_set, self.is_custom, self.is_assigned) = (true, false, false);
                } else if self.is_set && is("to") {
                    self.is_assigned = true;
                }
                self.words += 1;
            }
            _ => {}
        }
        self.last_word.clear();
        if token.kind == TokenKind::Word {
            self.last_word.extend(token.text);
        }
    }
}

fn redact_word(word: &[u8], values: &ValueRedactor) -> Vec<u8> {
    let is = |known: &str| word.eq_ignore_ascii_case(known.as_bytes());
    if ["default", "on", "off", "true", "false"].into_iter().any(is) {
        return word.to_vec();
    }
    let mut redacted = values.redact(word);
    // The underscore prevents the result from being a keyword by chance.
    redacted.extend(b"_");
    redacted
}

/// Redacts a quoted constant, and writes it without escapes.
fn redact_string(text: &[u8], values: &ValueRedactor, out: &mut Vec<u8>) -> Option<()> {
    if text.first() == Some(&b'$') {
        let tag = 2 + text[1..].iter().position(|byte| *byte == b'$')?;
        let inner = text.get(tag..text.len().checked_sub(tag)?)?;
        write_plain(b"", &values.redact(inner), out);
        return Some(());
    }
    let (prefix, rest) = text.split_at(text.iter().position(|byte| *byte == b'\'')?);
    let escapes = matches!(prefix, b"e" | b"E");
    let content = constant_content(rest, escapes)?;
    match prefix {
        b"b" | b"B" | b"x" | b"X" => {
            let binary = matches!(prefix, b"b" | b"B");
            write_plain(prefix, &values.redact_digits(&content, binary), out);
        }
        b"u&" | b"U&" => {
            // The escape character is not known here, so the result has only alphanumeric
            // characters and spaces, which are hardly ever used as one.
            let redacted = values.redact(&content);
            let plain = redacted.iter().map(|byte| match byte {
                b if b.is_ascii_alphanumeric() || *b == b' ' => *b,
                _ => b'x',
            });
            write_plain(prefix, &plain.collect::<Vec<_>>(), out);
        }
        _ => {
            let redacted = values.redact(&content);
            // The content cannot contain NUL, and a backslash is literal in a plain constant.
            write_plain(if escapes { b"" } else { prefix }, &redacted, out);
        }
    }
    Some(())
}

/// Returns the content of a constant, with its segments joined. `None` if it is unterminated, or if
/// its end depends on how the server treats backslashes (`standard_conforming_strings`).
fn constant_content(text: &[u8], escapes: bool) -> Option<Vec<u8>> {
    let mut content = Vec::with_capacity(text.len());
    let mut is_inside = false;
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        at += 1;
        match byte {
            b'\'' if !is_inside => is_inside = true,
            _ if !is_inside => {}
            b'\'' if text.get(at) == Some(&b'\'') => {
                content.push(b'\'');
                at += 1;
            }
            b'\'' => is_inside = false,
            b'\\' if escapes => {
                content.push(*text.get(at)?);
                at += 1;
            }
            b'\\' if text.get(at) == Some(&b'\'') => return None,
            byte => content.push(byte),
        }
    }
    (!is_inside).then_some(content)
}

fn write_plain(prefix: &[u8], content: &[u8], out: &mut Vec<u8>) {
    out.extend(prefix);
    out.push(b'\'');
    for byte in content {
        if *byte == b'\'' {
            out.push(b'\'');
        }
        out.push(*byte);
    }
    out.push(b'\'');
}

/// Redacts the digits of a number. The radix prefix and the positions of the decimal point and of
/// underscores are preserved, as is an exponent of up to three digits.
fn redact_number(text: &[u8], values: &ValueRedactor, out: &mut Vec<u8>) {
    if let [b'0', radix @ (b'x' | b'X' | b'o' | b'O' | b'b' | b'B'), digits @ ..] = text {
        // A digit that is valid in every radix (0 or 1), repeated.
        let digit = b'1' - (values.token(digits) % 2) as u8;
        out.extend([b'0', *radix]);
        out.extend(digits.iter().map(|byte| if *byte == b'_' { b'_' } else { digit }));
        return;
    }
    let mantissa = text.iter().position(|byte| matches!(byte, b'e' | b'E')).unwrap_or(text.len());
    out.extend(values.redact(&text[..mantissa]));
    out.extend(&text[mantissa..]);
    if let [b'e' | b'E', digits @ ..] = &text[mantissa..] {
        let sign = usize::from(matches!(digits.first(), Some(b'+' | b'-')));
        let from = out.len() - digits.len() + sign;
        hide_exponent(&mut out[from..]);
    }
}
