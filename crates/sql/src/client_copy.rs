//! Recognizes statements that COPY from or to the client.

use crate::{Lexer, TokenKind};

/// The direction of a COPY from or to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientCopy {
    /// `COPY … FROM STDIN`: the client sends rows.
    FromStdin,
    /// `COPY … TO STDOUT`: the client receives rows.
    ToStdout,
}

impl ClientCopy {
    /// Finds a COPY from or to the client in a query, which may contain several statements.
    ///
    /// Source: `copy_file_name` in `gram.y`, which accepts STDIN and STDOUT for either direction.
    pub fn find(sql: &[u8]) -> Option<Self> {
        if mentions_copy(sql) { Self::read(sql) } else { None }
    }

    /// The same for the text of a prepared statement, which cannot contain several statements: only
    /// its first characters are read unless it may be a COPY.
    #[inline]
    pub fn of_prepared(sql: &[u8]) -> Option<Self> {
        if may_start_with_copy(sql) { Self::read(sql) } else { None }
    }

    fn read(sql: &[u8]) -> Option<Self> {
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
                        _ if is("from") => direction = Some(Self::FromStdin),
                        _ if is("to") => direction = Some(Self::ToStdout),
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
}

/// Whether any possible statement in the text may start with `copy`: a cheap test that most texts
/// fail. Semicolons inside literals only cause needless checks.
fn mentions_copy(sql: &[u8]) -> bool {
    may_start_with_copy(sql)
        || memchr::memchr_iter(b';', sql).any(|end| may_start_with_copy(&sql[end + 1..]))
}

/// Whether a statement may start with `copy`, perhaps after a comment.
#[inline]
fn may_start_with_copy(sql: &[u8]) -> bool {
    match sql.trim_ascii_start() {
        rest @ [b'c' | b'C', ..] => {
            rest.get(..4).is_some_and(|word| word.eq_ignore_ascii_case(b"copy"))
        }
        [letter, ..] => !letter.is_ascii_alphabetic(),
        [] => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ClientCopy::{FromStdin as In, ToStdout as Out};

    #[test]
    fn copy_from_and_to_client_is_recognized() {
        let cases: &[(&str, Option<ClientCopy>)] = &[
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
            assert_eq!(ClientCopy::find(sql.as_bytes()), *expected, "{sql}");
        }
    }

    #[test]
    fn prepared_copy_is_recognized() {
        let of_prepared = |sql: &str| ClientCopy::of_prepared(sql.as_bytes());
        assert_eq!(of_prepared(" /* of orm */ copy t (a) from stdin binary"), Some(In));
        assert_eq!(of_prepared("COPY (select 1) TO STDOUT"), Some(Out));
        assert_eq!(of_prepared("select 1"), None);
    }
}
