//! The little of SQL's lexical structure that an importer must know: where statements and words are,
//! so that a COPY and a placeholder are not mistaken in a comment or a literal.
//!
//! Source: manual, Lexical Structure, with `standard_conforming_strings` on; `copy_file_name` in
//! `gram.y`, which takes STDIN and STDOUT either way.

use howdah_traffic::CopyDirection;

/// Which way the rows go, if one of the statements of a query is a COPY from or to the client.
pub(crate) fn copy_direction(sql: &[u8]) -> Option<CopyDirection> {
    if !mentions_copy(sql) {
        return None;
    }
    let mut depth = 0_u32;
    let mut is_start = true;
    let mut is_copy = false;
    let mut direction = None;
    for token in (Tokens { rest: sql }) {
        match token {
            Token::Symbol(b';') => {
                (depth, is_start, is_copy, direction) = (0, true, false, None);
                continue;
            }
            Token::Symbol(b'(') => depth += 1,
            Token::Symbol(b')') => depth = depth.saturating_sub(1),
            Token::Word(word) if is_start => is_copy = word.eq_ignore_ascii_case(b"copy"),
            Token::Word(word) if is_copy && depth == 0 => {
                let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
                match direction {
                    Some(way) if is("stdin") || is("stdout") => return Some(way),
                    _ if is("from") => direction = Some(CopyDirection::In),
                    _ if is("to") => direction = Some(CopyDirection::Out),
                    _ => direction = None,
                }
            }
            _ if depth == 0 => direction = None,
            _ => {}
        }
        is_start = false;
    }
    None
}

/// A cheap test that most statements fail.
fn mentions_copy(sql: &[u8]) -> bool {
    memchr::memchr2_iter(b'y', b'Y', sql)
        .any(|at| at >= 3 && sql[at - 3..at].eq_ignore_ascii_case(b"cop"))
}

/// Whether a text has placeholders such as `$1`.
pub(crate) fn has_placeholders(sql: &[u8]) -> bool {
    memchr::memchr(b'$', sql).is_some()
        && Tokens { rest: sql }.any(|token| matches!(token, Token::Placeholder))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    /// A keyword or an identifier without quotes.
    Word(&'a [u8]),
    /// A quoted identifier, a string or a number.
    Value,
    Placeholder,
    Symbol(u8),
}

struct Tokens<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        loop {
            let rest = self.rest;
            let first = *rest.first()?;
            let (token, len) = match first {
                byte if byte.is_ascii_whitespace() => (None, 1),
                b'-' if rest.starts_with(b"--") => (None, until(rest, b'\n')),
                b'/' if rest.starts_with(b"/*") => (None, comment(rest)),
                b'\'' => (Some(Token::Value), quoted(rest, b'\'', false)),
                b'"' => (Some(Token::Value), quoted(rest, b'"', false)),
                b'e' | b'E' if rest.get(1) == Some(&b'\'') => {
                    (Some(Token::Value), 1 + quoted(&rest[1..], b'\'', true))
                }
                b'$' => dollar(rest),
                byte if is_word_start(byte) => {
                    let len = rest.iter().take_while(|byte| is_word_part(**byte)).count();
                    (Some(Token::Word(&rest[..len])), len)
                }
                byte if byte.is_ascii_digit() => {
                    let len = rest
                        .iter()
                        .take_while(|b| b.is_ascii_alphanumeric() || **b == b'.')
                        .count();
                    (Some(Token::Value), len)
                }
                byte => (Some(Token::Symbol(byte)), 1),
            };
            self.rest = &rest[len.min(rest.len())..];
            if token.is_some() {
                return token;
            }
        }
    }
}

fn is_word_start(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_' || byte >= 0x80
}

fn is_word_part(byte: u8) -> bool {
    is_word_start(byte) || byte.is_ascii_digit() || byte == b'$'
}

fn until(text: &[u8], end: u8) -> usize {
    memchr::memchr(end, text).map_or(text.len(), |at| at + 1)
}

/// Length of a comment, which may hold comments.
fn comment(text: &[u8]) -> usize {
    let mut depth = 0_u32;
    let mut at = 0;
    while at < text.len() {
        match &text[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] if depth == 1 => return at + 2,
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
    }
    text.len()
}

/// Length of a string that begins with `quote`. A doubled quote belongs to it, and in an escape string
/// so does one after a backslash.
fn quoted(text: &[u8], quote: u8, with_escapes: bool) -> usize {
    let mut at = 1;
    while at < text.len() {
        match text[at] {
            b'\\' if with_escapes => at += 2,
            byte if byte == quote && text.get(at + 1) == Some(&quote) => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    text.len()
}

/// A placeholder, a dollar-quoted string, or a lone dollar sign.
fn dollar<'a>(text: &[u8]) -> (Option<Token<'a>>, usize) {
    let digits = text[1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    if digits > 0 {
        return (Some(Token::Placeholder), 1 + digits);
    }
    let tag = text[1..].iter().take_while(|byte| is_word_part(**byte) && **byte != b'$').count();
    if text.get(1 + tag) != Some(&b'$') {
        return (Some(Token::Symbol(b'$')), 1);
    }
    let delimiter = &text[..tag + 2];
    let body = &text[delimiter.len()..];
    let end =
        memchr::memmem::find(body, delimiter).map_or(text.len(), |at| at + 2 * delimiter.len());
    (Some(Token::Value), end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use CopyDirection::{In, Out};

    #[test]
    fn copies_from_and_to_the_client() {
        let cases: &[(&str, Option<CopyDirection>)] = &[
            ("copy t(id,v) from stdin", Some(In)),
            ("COPY \"from\" (\"to\") TO STDOUT WITH (FORMAT csv)", Some(Out)),
            ("copy (select 1 from stdin) to stdout", Some(Out)),
            ("begin; /* /* copy */ */ -- x\n CoPy t FROM StdIn; commit", Some(In)),
            ("copy t to stdin", Some(Out)),
            ("copy t from '/tmp/stdin'", None),
            ("copy t from program 'cat' -- stdin", None),
            ("select 'copy t from stdin'", None),
            ("select $$;copy t from stdin$$", None),
            ("select copy from stdin", None),
            ("insert into copy select * from stdin", None),
            ("copy t from x stdin", None),
            ("copy t from stdin_file; select 1", None),
            ("/* copy */ select 1", None),
            ("", None),
        ];
        for (sql, expected) in cases {
            assert_eq!(copy_direction(sql.as_bytes()), *expected, "{sql}");
        }
    }

    #[test]
    fn placeholders_are_not_found_in_strings() {
        for yes in
            ["select $1", "select $1::int", "select '$2', $1", "select $a$ $1 $a$, $1", "x=$12"]
        {
            assert!(has_placeholders(yes.as_bytes()), "{yes}");
        }
        for no in [
            "select 1",
            "select '$1'",
            "select $$ $1 $$",
            "select a$1",
            "-- $1",
            "select E'\\'$1'",
            "select \"$1\"",
            "select $q$ $1 $$ $q$",
            "$",
            "select '$1",
        ] {
            assert!(!has_placeholders(no.as_bytes()), "{no}");
        }
    }
}
