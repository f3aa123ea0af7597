//! Recognizes statements that COPY from or to the client.

use howdah_sql::{Lexer, TokenKind};
use howdah_traffic::CopyDirection;

/// Returns the direction of a COPY from or to the client, if a query contains one.
///
/// Source: `copy_file_name` in `gram.y`, which accepts STDIN and STDOUT for either direction.
pub(crate) fn copy_direction(sql: &[u8]) -> Option<CopyDirection> {
    if !mentions_copy(sql) {
        return None;
    }
    let mut depth = 0_u32;
    let mut is_start = true;
    let mut is_copy = false;
    let mut direction = None;
    for token in Lexer::new(sql) {
        match (token.kind, token.text) {
            (TokenKind::Space | TokenKind::Comment, _) => continue,
            (TokenKind::Punctuation, b";") => {
                (depth, is_start, is_copy, direction) = (0, true, false, None);
                continue;
            }
            (TokenKind::Punctuation, b"(") => depth += 1,
            (TokenKind::Punctuation, b")") => depth = depth.saturating_sub(1),
            (TokenKind::Word, word) if is_start => is_copy = word.eq_ignore_ascii_case(b"copy"),
            (TokenKind::Word, word) if is_copy && depth == 0 => {
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

/// Whether any possible statement in the text may start with `copy`: a cheap test that most texts
/// fail. Semicolons inside literals only cause needless checks.
fn mentions_copy(sql: &[u8]) -> bool {
    let may_begin = |text: &[u8]| match text.trim_ascii_start() {
        rest @ [b'c' | b'C', ..] => {
            rest.get(..4).is_some_and(|word| word.eq_ignore_ascii_case(b"copy"))
        }
        [letter, ..] => !letter.is_ascii_alphabetic(),
        [] => false,
    };
    may_begin(sql) || memchr::memchr_iter(b';', sql).any(|end| may_begin(&sql[end + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use CopyDirection::{In, Out};

    #[test]
    fn copy_from_and_to_client_is_recognized() {
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
            ("select 'a; b'; \n\tcopy t from stdin", Some(In)),
            ("select 'a; copy t from stdin'", None),
            ("/* copy */ select 1", None),
            ("", None),
        ];
        for (sql, expected) in cases {
            assert_eq!(copy_direction(sql.as_bytes()), *expected, "{sql}");
        }
    }
}
