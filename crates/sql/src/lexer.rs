//! PostgreSQL's lexical rules: splits bytes into [`SqlToken`]s.
//!
//! Source: manual, section 4.1, and `src/backend/parser/scan.l`. The lexer assumes
//! `standard_conforming_strings = on`, the default since 9.1, so a backslash is special only in
//! `E'…'`. Where the server would report an error (an unterminated string, a stray `\`), the lexer
//! returns a token for the available bytes and continues, because logs also contain rejected
//! statements.

use memchr::{memchr, memchr2, memmem};

/// A token of SQL: its kind and its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SqlToken<'a> {
    /// The kind of token, which determines how `text` is read.
    pub kind: TokenKind,
    /// The token as written, including quotes.
    pub text: &'a [u8],
}

/// The kind of a [`SqlToken`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// White space.
    Space,
    /// `-- …` to the end of the line, or a possibly nested `/* … */`.
    Comment,
    /// A keyword or an identifier without quotes.
    Word,
    /// `"…"` or `U&"…"`.
    QuotedName,
    /// A string or bit-string constant: `'…'`, `E'…'`, `U&'…'`, `N'…'`, `B'…'`, `X'…'`,
    /// `$tag$…$tag$`, with the segments that continue it on further lines.
    String,
    /// A numeric constant, without a sign.
    Number,
    /// A parameter with its number from 1, such as `$1`.
    Placeholder,
    /// An operator: one or more of the characters `+-*/<>=~!@#%^&|?` and `` ` ``.
    Operator,
    /// `::` before a type name.
    Cast,
    /// Brackets, comma, semicolon, period or colon: `( ) [ ] , ; . :`, also `:=`, `..`, `...`.
    Punctuation,
    /// A byte that cannot start a token: `\`, `{`, a lone `$`, a control character.
    Stray,
}

/// Iterates over the tokens of a text, in order and without gaps: concatenating their texts yields
/// the input.
#[derive(Clone, Debug)]
pub struct Lexer<'a> {
    rest: &'a [u8],
}

impl<'a> Lexer<'a> {
    /// Creates a lexer over `sql`.
    pub fn new(sql: &'a [u8]) -> Self {
        Self { rest: sql }
    }
}

impl<'a> Iterator for Lexer<'a> {
    type Item = SqlToken<'a>;

    fn next(&mut self) -> Option<SqlToken<'a>> {
        if self.rest.is_empty() {
            return None;
        }
        let (kind, len) = scan(self.rest);
        let (text, rest) = self.rest.split_at(len);
        self.rest = rest;
        Some(SqlToken { kind, text })
    }
}

/// Returns kind and length (at least 1) of the token at the front of `s`, which is not empty.
fn scan(s: &[u8]) -> (TokenKind, usize) {
    let second = s.get(1).copied();
    match s[0] {
        byte if is_space(byte) => (TokenKind::Space, run(s, 1, is_space)),
        b'-' if second == Some(b'-') => (TokenKind::Comment, line_comment(s)),
        b'/' if second == Some(b'*') => (TokenKind::Comment, block_comment(s)),
        b'\'' => (TokenKind::String, string(s, 1, false)),
        b'"' => (TokenKind::QuotedName, quoted(s, 1, b'"')),
        b'e' | b'E' if second == Some(b'\'') => (TokenKind::String, string(s, 2, true)),
        b'b' | b'B' | b'x' | b'X' | b'n' | b'N' if second == Some(b'\'') => {
            (TokenKind::String, string(s, 2, false))
        }
        b'u' | b'U' if second == Some(b'&') => match s.get(2) {
            Some(b'\'') => (TokenKind::String, string(s, 3, false)),
            Some(b'"') => (TokenKind::QuotedName, quoted(s, 3, b'"')),
            _ => (TokenKind::Word, 1),
        },
        byte if starts_name(byte) => (TokenKind::Word, run(s, 1, continues_name)),
        b'0'..=b'9' => (TokenKind::Number, number(s)),
        b'.' => match second {
            Some(b'0'..=b'9') => (TokenKind::Number, number(s)),
            _ => (TokenKind::Punctuation, run(&s[..s.len().min(3)], 1, |byte| byte == b'.')),
        },
        b'$' => dollar(s),
        b':' => match second {
            Some(b':') => (TokenKind::Cast, 2),
            Some(b'=') => (TokenKind::Punctuation, 2),
            _ => (TokenKind::Punctuation, 1),
        },
        b'(' | b')' | b'[' | b']' | b',' | b';' => (TokenKind::Punctuation, 1),
        byte if is_operator(byte) => (TokenKind::Operator, operator(s)),
        _ => (TokenKind::Stray, 1),
    }
}

/// Returns the end of the run of bytes from `from` on that satisfy `belongs`.
fn run(s: &[u8], from: usize, belongs: impl Fn(u8) -> bool) -> usize {
    s[from..].iter().position(|&byte| !belongs(byte)).map_or(s.len(), |end| from + end)
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

/// Whether a byte may start a name. As in PostgreSQL, any byte with the high bit set counts as
/// alphabetic.
fn starts_name(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_' || byte >= 0x80
}

fn continues_name(byte: u8) -> bool {
    starts_name(byte) || byte.is_ascii_digit() || byte == b'$'
}

fn is_operator(byte: u8) -> bool {
    matches!(byte, b'+' | b'-' | b'*' | b'/' | b'<' | b'>' | b'=') || allows_trailing_sign(byte)
}

/// Whether an operator that contains this character may end in `+` or `-`.
fn allows_trailing_sign(byte: u8) -> bool {
    matches!(byte, b'~' | b'!' | b'@' | b'#' | b'%' | b'^' | b'&' | b'|' | b'`' | b'?')
}

fn line_comment(s: &[u8]) -> usize {
    memchr2(b'\n', b'\r', s).unwrap_or(s.len())
}

fn block_comment(s: &[u8]) -> usize {
    let mut depth = 1_usize;
    let mut at = 2;
    while let Some(found) = memchr2(b'*', b'/', &s[at..]) {
        at += found;
        match (s[at], s.get(at + 1)) {
            (b'*', Some(b'/')) => {
                at += 2;
                depth -= 1;
                if depth == 0 {
                    return at;
                }
            }
            (b'/', Some(b'*')) => {
                at += 2;
                depth += 1;
            }
            _ => at += 1,
        }
    }
    s.len()
}

/// Returns the end of a string whose first quote ends at `from`, including segments on further
/// lines.
fn string(s: &[u8], from: usize, escapes: bool) -> usize {
    let mut end = segment(s, from, escapes);
    while let Some(next) = continuation(s, end) {
        end = segment(s, next, escapes);
    }
    end
}

fn segment(s: &[u8], from: usize, escapes: bool) -> usize {
    if !escapes {
        return quoted(s, from, b'\'');
    }
    let mut at = from;
    while let Some(found) = memchr2(b'\'', b'\\', &s[at..]) {
        at += found;
        match (s[at], s.get(at + 1)) {
            (b'\\', _) | (b'\'', Some(b'\'')) => at = (at + 2).min(s.len()),
            _ => return at + 1,
        }
    }
    s.len()
}

/// Returns the end of the text whose opening `quote` ends at `from`; a doubled quote is an escaped
/// quote.
fn quoted(s: &[u8], from: usize, quote: u8) -> usize {
    let mut at = from;
    while let Some(found) = memchr(quote, &s[at..]) {
        at += found + 1;
        if s.get(at) != Some(&quote) {
            return at;
        }
        at += 1;
    }
    s.len()
}

/// Returns the start of the next segment's text, if the quote that ends at `end` and the next quote
/// are separated only by white space with a line break, possibly with line comments.
///
/// Only a comment that is followed by its line break counts (`special_whitespace` in scan.l). White
/// space is scanned at most twice, so lexing stays linear.
fn continuation(s: &[u8], end: usize) -> Option<usize> {
    let mut at = end;
    let mut line_break = false;
    loop {
        match s.get(at)? {
            b'\n' | b'\r' => {
                line_break = true;
                at += 1;
            }
            byte if is_space(*byte) => at += 1,
            b'-' if s.get(at + 1) == Some(&b'-') => at += line_comment(&s[at..]),
            b'\'' if line_break => return Some(at + 1),
            _ => return None,
        }
    }
}

fn dollar(s: &[u8]) -> (TokenKind, usize) {
    match s.get(1) {
        Some(b'0'..=b'9') => {
            return (TokenKind::Placeholder, run(s, 1, |byte| byte.is_ascii_digit()));
        }
        Some(b'$') => {}
        Some(byte) if starts_name(*byte) => {}
        _ => return (TokenKind::Stray, 1),
    }
    let tag_end = run(s, 1, |byte| continues_name(byte) && byte != b'$');
    if s.get(tag_end) != Some(&b'$') {
        return (TokenKind::Stray, 1);
    }
    let (tag, body) = s.split_at(tag_end + 1);
    let len = memmem::find(body, tag).map_or(s.len(), |close| tag.len() + close + tag.len());
    (TokenKind::String, len)
}

/// Returns the end of a number, which starts with a digit, or with a period and a digit. In `1..2`,
/// the number ends before the two periods.
fn number(s: &[u8]) -> usize {
    if let [b'0', radix, ..] = s {
        let is_digit: fn(u8) -> bool = match radix {
            b'x' | b'X' => |byte| byte.is_ascii_hexdigit(),
            b'o' | b'O' => |byte| matches!(byte, b'0'..=b'7'),
            b'b' | b'B' => |byte| matches!(byte, b'0' | b'1'),
            _ => |_| false,
        };
        let end = digits(s, 2, is_digit);
        if end > 2 {
            return end;
        }
    }
    let is_digit: fn(u8) -> bool = |byte| byte.is_ascii_digit();
    let mut end = digits(s, 0, is_digit);
    if s.get(end) == Some(&b'.') && s.get(end + 1) != Some(&b'.') {
        end = digits(s, end + 1, is_digit);
    }
    if matches!(s.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(s.get(end + 1), Some(b'+' | b'-')));
        if s.get(end + 1 + sign).is_some_and(u8::is_ascii_digit) {
            end = digits(s, end + 1 + sign, is_digit);
        }
    }
    end
}

/// Returns the end of the digits from `from` on; single underscores may separate digits (since
/// PostgreSQL 16).
fn digits(s: &[u8], from: usize, is_digit: fn(u8) -> bool) -> usize {
    let digit_at = |at: usize| s.get(at).is_some_and(|byte| is_digit(*byte));
    let mut at = from;
    loop {
        if digit_at(at) {
            at += 1;
        } else if s.get(at) == Some(&b'_') && digit_at(at + 1) {
            at += 2;
        } else {
            return at;
        }
    }
}

/// Returns the end of an operator, which ends before a comment. It ends in `+` or `-` only if it
/// contains a character that SQL's own operators do not have: `=-1` is `=` and `-1`, but `@-` is
/// one operator.
fn operator(s: &[u8]) -> usize {
    let end = run(&s[..s.len().min(OPERATOR_BYTES_MAX)], 1, is_operator);
    let with_next = &s[..s.len().min(end + 1)];
    let comment = with_next.windows(2).position(|pair| pair == b"--" || pair == b"/*");
    let end = comment.unwrap_or(end);
    if s[..end].iter().any(|byte| allows_trailing_sign(*byte)) {
        return end;
    }
    let signs = s[1..end].iter().rev().take_while(|byte| matches!(byte, b'+' | b'-')).count();
    end - signs
}

/// Maximum number of bytes searched for the end of an operator. The server rejects operators of 64
/// bytes or more (`NAMEDATALEN`). Without the limit, a long run of operator characters could be
/// rescanned for each of them.
const OPERATOR_BYTES_MAX: usize = 64;

#[cfg(test)]
mod tests;
