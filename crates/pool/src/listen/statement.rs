//! LISTEN and UNLISTEN as PostgreSQL reads them: words, comments, and names that are folded or quoted.

use super::{Channel, Found, ListenAction};

/// Longest name, in bytes: `NAMEDATALEN - 1`.
const NAME_BYTES_MAX: usize = 63;

/// Whether a text may begin with LISTEN or UNLISTEN. Nearly none does, and that is seen at its first letter.
#[inline]
pub(crate) fn begins(sql: &[u8]) -> bool {
    match sql.first() {
        Some(b'l' | b'L' | b'u' | b'U' | b' ' | b'\t'..=b'\r' | b'-' | b'/') => find(sql).is_some(),
        _ => false,
    }
}

/// The statement, if that is all there is in a text.
pub(crate) fn statement(sql: &[u8]) -> Option<Found> {
    let found = find(sql)?;
    let mut rest = &sql[found.end..];
    loop {
        rest = skip(rest)?;
        match rest.strip_prefix(b";") {
            Some(behind) => rest = behind,
            None => return rest.is_empty().then_some(found),
        }
    }
}

/// The statement that a text begins with.
fn find(sql: &[u8]) -> Option<Found> {
    let rest = skip(sql)?;
    let (listens, rest) = if let Some(rest) = keyword(rest, b"listen") {
        (true, rest)
    } else {
        (false, keyword(rest, b"unlisten")?)
    };
    let rest = skip(rest)?;
    let end = |rest: &[u8]| sql.len() - rest.len();
    if let Some(rest) = rest.strip_prefix(b"*").filter(|_| !listens) {
        return Some(Found { op: ListenAction::UnlistenAll, end: end(rest) });
    }
    let (channel, rest) = name(rest)?;
    let op = if listens { ListenAction::Listen(channel) } else { ListenAction::Unlisten(channel) };
    Some(Found { op, end: end(rest) })
}

/// What follows a keyword.
fn keyword<'a>(sql: &'a [u8], word: &[u8]) -> Option<&'a [u8]> {
    let (front, rest) = sql.split_at_checked(word.len())?;
    let ends = rest.first().is_none_or(|byte| !continues(*byte));
    (ends && front.eq_ignore_ascii_case(word)).then_some(rest)
}

/// What follows white space and comments; `None` if a comment has no end.
fn skip(mut sql: &[u8]) -> Option<&[u8]> {
    loop {
        sql = sql.trim_ascii_start();
        if sql.first() == Some(&0x0b) {
            sql = &sql[1..]; // White space for PostgreSQL, too.
        } else if sql.starts_with(b"--") {
            let end = memchr::memchr2(b'\n', b'\r', sql).unwrap_or(sql.len());
            sql = &sql[end..];
        } else if sql.starts_with(b"/*") {
            sql = comment(sql)?;
        } else {
            return Some(sql);
        }
    }
}

/// What follows a comment; they nest.
fn comment(sql: &[u8]) -> Option<&[u8]> {
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

/// A name, and what follows it. One that is written by code points is not understood.
fn name(sql: &[u8]) -> Option<(Channel, &[u8])> {
    let Some(mut rest) = sql.strip_prefix(b"\"") else {
        let end = sql.iter().position(|byte| !continues(*byte)).unwrap_or(sql.len());
        let (word, rest) = sql.split_at(end);
        let begins = word.first().is_some_and(|byte| continues(*byte) && !is_inner(*byte));
        let by_code = word.eq_ignore_ascii_case(b"u") && rest.starts_with(b"&");
        let folded = word.to_ascii_lowercase();
        return (begins && !by_code).then(|| (clipped(&folded), rest));
    };
    let mut channel = Vec::new();
    loop {
        let end = memchr::memchr(b'"', rest)?;
        channel.extend_from_slice(&rest[..end]);
        rest = &rest[end + 1..];
        match rest.strip_prefix(b"\"") {
            Some(behind) => {
                channel.push(b'"');
                rest = behind;
            }
            None => return (!channel.is_empty()).then(|| (clipped(&channel), rest)),
        }
    }
}

fn continues(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | 0x80..)
}

/// What a name may have, and not begin with.
fn is_inner(byte: u8) -> bool {
    byte.is_ascii_digit() || byte == b'$'
}

/// A name without what is too long of it; of UTF-8, no part of a letter is left.
fn clipped(name: &[u8]) -> Channel {
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
        Some(match statement(sql.as_bytes())?.op {
            ListenAction::Listen(channel) => format!("+{}", text(channel)),
            ListenAction::Unlisten(channel) => format!("-{}", text(channel)),
            ListenAction::UnlistenAll => "-*".to_owned(),
        })
    }

    #[test]
    fn names_are_folded_quoted_and_clipped_as_postgresql_does() {
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
        assert!(begins(b"listen a; select 1") && !begins(b"select 1") && !begins(b"update x"));
    }
}
