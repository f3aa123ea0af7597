//! SQL text without its constants and comments.

use howdah_sql::{Lexer, Token, TokenKind};

use super::value::{Values, hide_exponent};

/// The text with its constants replaced and its comments gone; `None` if it is not sure which parts of it
/// are constants.
pub(super) fn redact(sql: &[u8], values: &Values) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(sql.len());
    let mut context = Context::default();
    for token in Lexer::new(sql) {
        match token.kind {
            TokenKind::Comment => out.push(b' '),
            // The character that escapes in the constant before. A longer one is no such character.
            TokenKind::String if context.follows("uescape") && token.text.len() == 3 => {
                out.extend(token.text);
            }
            TokenKind::String => string(token.text, values, &mut out)?,
            TokenKind::Number => number(token.text, values, &mut out),
            TokenKind::Word if context.is_value() => out.extend(word(token.text, values)),
            // `{`, `\` and control characters: psql's and other languages', and what lies
            // behind them may follow other rules.
            TokenKind::Stray if token.text != b"$" => return None,
            _ => out.extend(token.text),
        }
        context.step(token);
    }
    Some(out)
}

/// What has come of the statement, as far as it matters.
#[derive(Default)]
struct Context {
    last_word: Vec<u8>,
    words: usize,
    alters: bool,
    sets: bool,
    /// `SET a.b`: the setting of an application.
    custom: bool,
    assigned: bool,
}

impl Context {
    fn follows(&self, word: &str) -> bool {
        self.last_word.eq_ignore_ascii_case(word.as_bytes())
    }

    /// Whether a word here is a value.
    fn is_value(&self) -> bool {
        self.sets && self.custom && self.assigned
    }

    fn step(&mut self, token: Token<'_>) {
        match token.kind {
            TokenKind::Space | TokenKind::Comment => return,
            TokenKind::Punctuation if token.text == b";" => {
                *self = Self::default();
                return;
            }
            TokenKind::Punctuation if token.text == b"." && self.sets => self.custom = true,
            TokenKind::Operator if token.text == b"=" && self.sets => self.assigned = true,
            TokenKind::Word => {
                let is = |word: &str| token.text.eq_ignore_ascii_case(word.as_bytes());
                if self.words == 0 {
                    // ALTER SYSTEM, ALTER ROLE and ALTER DATABASE also give values to settings.
                    (self.sets, self.alters) = (is("set"), is("alter"));
                } else if self.alters && is("set") {
                    (self.sets, self.custom, self.assigned) = (true, false, false);
                } else if self.sets && is("to") {
                    self.assigned = true;
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

fn word(word: &[u8], values: &Values) -> Vec<u8> {
    let is = |known: &str| word.eq_ignore_ascii_case(known.as_bytes());
    if ["default", "on", "off", "true", "false"].into_iter().any(is) {
        return word.to_vec();
    }
    let mut redacted = values.redact(word);
    // Not a keyword by chance.
    redacted.extend(b"_");
    redacted
}

/// A constant in quotes. It is written anew as a plain one, so that no escape of it is left.
fn string(text: &[u8], values: &Values, out: &mut Vec<u8>) -> Option<()> {
    if text.first() == Some(&b'$') {
        let tag = 2 + text[1..].iter().position(|byte| *byte == b'$')?;
        let inner = text.get(tag..text.len().checked_sub(tag)?)?;
        write_plain(b"", &values.redact(inner), out);
        return Some(());
    }
    let (prefix, rest) = text.split_at(text.iter().position(|byte| *byte == b'\'')?);
    let escapes = matches!(prefix, b"e" | b"E");
    let content = content_of(rest, escapes)?;
    match prefix {
        b"b" | b"B" | b"x" | b"X" => {
            let binary = matches!(prefix, b"b" | b"B");
            write_plain(prefix, &values.redact_digits(&content, binary), out);
        }
        b"u&" | b"U&" => {
            // Its own escape character may be any; letters alone need none.
            let redacted = values.redact(&content);
            let letters = redacted.iter().map(|byte| match byte {
                b if b.is_ascii_alphanumeric() || *b == b' ' => *b,
                _ => b'x',
            });
            write_plain(prefix, &letters.collect::<Vec<_>>(), out);
        }
        _ => {
            let redacted = values.redact(&content);
            // A NUL cannot be in a text, and a backslash means itself in a plain constant.
            write_plain(if escapes { b"" } else { prefix }, &redacted, out);
        }
    }
    Some(())
}

/// What a constant says, its segments joined. `None` if its end depends on how the server takes
/// backslashes (`standard_conforming_strings`), or if it has none.
fn content_of(text: &[u8], escapes: bool) -> Option<Vec<u8>> {
    let mut content = Vec::with_capacity(text.len());
    let mut inside = false;
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        at += 1;
        match byte {
            b'\'' if !inside => inside = true,
            _ if !inside => {}
            b'\'' if text.get(at) == Some(&b'\'') => {
                content.push(b'\'');
                at += 1;
            }
            b'\'' => inside = false,
            b'\\' if escapes => {
                content.push(*text.get(at)?);
                at += 1;
            }
            b'\\' if text.get(at) == Some(&b'\'') => return None,
            byte => content.push(byte),
        }
    }
    (!inside).then_some(content)
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

/// A number: digits for digits. What makes it hexadecimal, a fraction or a power of ten stays, as long as
/// that power is one that a type has.
fn number(text: &[u8], values: &Values, out: &mut Vec<u8>) {
    if let [b'0', radix @ (b'x' | b'X' | b'o' | b'O' | b'b' | b'B'), digits @ ..] = text {
        // A digit that is right in every radix, as often as there are digits.
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
