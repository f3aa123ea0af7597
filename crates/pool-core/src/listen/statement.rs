//! Parses LISTEN and UNLISTEN as PostgreSQL does, including comments and folded or quoted names.

use crate::listen::channels::{Channel, ListenAction, ListenStatement};

/// Maximum length of a name, in bytes: `NAMEDATALEN - 1`.
const NAME_BYTES_MAX: usize = 63;

/// Whether a text starts with a LISTEN or UNLISTEN statement. Checking the first byte rules out
/// nearly all texts.
#[inline]
pub(crate) fn starts_with_listen(sql: &[u8]) -> bool {
    match sql.first() {
        Some(b'l' | b'L' | b'u' | b'U' | b' ' | b'\t'..=b'\r' | b'-' | b'/') => {
            parse_prefix(sql).is_some()
        }
        _ => false,
    }
}

/// Parses a text that consists of a single LISTEN or UNLISTEN statement; returns `None` otherwise.
pub(crate) fn parse(sql: &[u8]) -> Option<ListenStatement> {
    let found = parse_prefix(sql)?;
    let mut rest = &sql[found.end..];
    loop {
        rest = skip_whitespace(rest)?;
        match rest.strip_prefix(b";") {
            Some(after) => rest = after,
            None => return rest.is_empty().then_some(found),
        }
    }
}

/// Parses the LISTEN or UNLISTEN at the start of a text, which may continue after it.
fn parse_prefix(sql: &[u8]) -> Option<ListenStatement> {
    let rest = skip_whitespace(sql)?;
    let (is_listen, rest) = if let Some(rest) = strip_keyword(rest, b"listen") {
        (true, rest)
    } else {
        (false, strip_keyword(rest, b"unlisten")?)
    };
    let rest = skip_whitespace(rest)?;
    let end = |rest: &[u8]| sql.len() - rest.len();
    if let Some(rest) = rest.strip_prefix(b"*").filter(|_| !is_listen) {
        return Some(ListenStatement { action: ListenAction::UnlistenAll, end: end(rest) });
    }
    let (channel, rest) = parse_name(rest)?;
    let action =
        if is_listen { ListenAction::Listen(channel) } else { ListenAction::Unlisten(channel) };
    Some(ListenStatement { action, end: end(rest) })
}

/// Returns the text after a keyword; `None` if the text does not start with that keyword.
fn strip_keyword<'a>(sql: &'a [u8], word: &[u8]) -> Option<&'a [u8]> {
    let (front, rest) = sql.split_at_checked(word.len())?;
    let is_whole = rest.first().is_none_or(|byte| !is_name_byte(*byte));
    (is_whole && front.eq_ignore_ascii_case(word)).then_some(rest)
}

/// Returns the text after white space and comments; `None` if a comment is not terminated.
fn skip_whitespace(mut sql: &[u8]) -> Option<&[u8]> {
    loop {
        sql = sql.trim_ascii_start();
        if sql.first() == Some(&0x0b) {
            sql = &sql[1..]; // The vertical tab is also white space in PostgreSQL.
        } else if sql.starts_with(b"--") {
            let end = memchr::memchr2(b'\n', b'\r', sql).unwrap_or(sql.len());
            sql = &sql[end..];
        } else if sql.starts_with(b"/*") {
            sql = skip_comment(sql)?;
        } else {
            return Some(sql);
        }
    }
}

/// Returns the text after a `/* */` comment, which may be nested; `None` if it is not terminated.
fn skip_comment(sql: &[u8]) -> Option<&[u8]> {
    let (mut at, mut depth) = (0, 0_usize);
    loop {
        match sql.get(at..at + 2)? {
            b"/*" => (at, depth) = (at + 2, depth + 1),
            b"*/" => {
                (at, depth) = (at + 2, depth - 1);
                if depth == 0 {
                    return Some(&sql[at..]);
                }
            }
            _ => at += 1,
        }
    }
}

/// Parses a name, and returns it with the text after it. Unicode escapes (`U&"…"`) are not
/// supported.
fn parse_name(sql: &[u8]) -> Option<(Channel, &[u8])> {
    let Some(mut rest) = sql.strip_prefix(b"\"") else {
        let end = sql.iter().position(|byte| !is_name_byte(*byte)).unwrap_or(sql.len());
        let (word, rest) = sql.split_at(end);
        let is_valid_start =
            word.first().is_some_and(|byte| is_name_byte(*byte) && !is_not_name_start(*byte));
        let by_code = word.eq_ignore_ascii_case(b"u") && rest.starts_with(b"&");
        let folded = word.to_ascii_lowercase();
        return (is_valid_start && !by_code).then(|| (truncated(&folded), rest));
    };
    let mut channel = Vec::new();
    loop {
        let end = memchr::memchr(b'"', rest)?;
        channel.extend_from_slice(&rest[..end]);
        rest = &rest[end + 1..];
        match rest.strip_prefix(b"\"") {
            Some(after) => {
                channel.push(b'"');
                rest = after;
            }
            None => return (!channel.is_empty()).then(|| (truncated(&channel), rest)),
        }
    }
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | 0x80..)
}

/// Whether a byte may occur in a name, but not at its start.
fn is_not_name_start(byte: u8) -> bool {
    byte.is_ascii_digit() || byte == b'$'
}

/// Truncates a name to at most [`NAME_BYTES_MAX`] bytes, at a UTF-8 character boundary.
fn truncated(name: &[u8]) -> Channel {
    if name.len() <= NAME_BYTES_MAX {
        return name.into();
    }
    let is_inside = |at: &usize| name[*at] & 0xc0 == 0x80;
    let end = (0..=NAME_BYTES_MAX).rev().find(|at| !is_inside(at)).unwrap_or(NAME_BYTES_MAX);
    name[..end].into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(sql: &str) -> Option<String> {
        let text = |channel: Channel| String::from_utf8_lossy(&channel).into_owned();
        Some(match parse(sql.as_bytes())?.action {
            ListenAction::Listen(channel) => format!("+{}", text(channel)),
            ListenAction::Unlisten(channel) => format!("-{}", text(channel)),
            ListenAction::UnlistenAll => "-*".to_owned(),
        })
    }

    #[test]
    fn names_are_folded_quoted_and_truncated_as_in_postgresql() {
        let long = "ä".repeat(40);
        for (sql, expected) in [
            ("listen News", Some("+news".to_owned())),
            (" LISTEN\n\t\"News\" ; ; ", Some("+News".to_owned())),
            ("listen\"a \"\"b\"\"\"", Some("+a \"b\"".to_owned())),
            ("/* a /* b */ */ listen -- c\n x -- d", Some("+x".to_owned())),
            ("unlisten _a$1", Some("-_a$1".to_owned())),
            ("UNLISTEN *", Some("-*".to_owned())),
            ("unlisten*;", Some("-*".to_owned())),
            (&format!("listen {long}"), Some(format!("+{}", "ä".repeat(31)))),
            (&format!("listen {}", "X".repeat(70)), Some(format!("+{}", "x".repeat(63)))),
            (&format!("listen \"{}\"", "€".repeat(21)), Some(format!("+{}", "€".repeat(21)))),
            ("listen *", None),
            ("listen a.b", None),
            ("listen a; select 1", None),
            ("listen \"\"", None),
            ("listen \"a", None),
            ("listen 1a", None),
            ("listen $a", None),
            ("listen U&\"\\0041\"", None),
            ("listening", None),
            ("listen", None),
            ("listen /* a", None),
            ("select 'listen a'", None),
            ("", None),
        ] {
            assert_eq!(read(sql), expected, "{sql}");
        }
        assert!(
            starts_with_listen(b"listen a; select 1")
                && !starts_with_listen(b"select 1")
                && !starts_with_listen(b"update x")
        );
    }
}
