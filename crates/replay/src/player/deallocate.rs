//! Reads which prepared statement a DEALLOCATE names.

use std::borrow::Cow;

use howdah_sql::{Lexer, SqlCommand, SqlToken, TokenKind};

/// Returns the name in a query that is a single `DEALLOCATE [PREPARE] name`; `None` for any other
/// query, and for `DEALLOCATE ALL`.
///
/// Source: `DeallocateStmt` in `gram.y`.
pub(super) fn deallocated_name(sql: &[u8]) -> Option<Cow<'_, [u8]>> {
    if !matches!(SqlCommand::from_sql(sql), SqlCommand::Deallocate) {
        return None;
    }
    let is_blank = |kind| matches!(kind, TokenKind::Space | TokenKind::Comment);
    let mut tokens = Lexer::new(sql).filter(|token| !is_blank(token.kind)).skip(1).peekable();
    let is_word = |token: &SqlToken<'_>, word: &[u8]| {
        token.kind == TokenKind::Word && token.text.eq_ignore_ascii_case(word)
    };
    tokens.next_if(|token| is_word(token, b"prepare"));
    let name = tokens.next().filter(|token| !is_word(token, b"all"))?;
    tokens.next_if(|token| token.text == b";");
    if tokens.next().is_some() {
        return None;
    }
    match name.kind {
        TokenKind::Word => Some(name.text.to_ascii_lowercase().into()),
        TokenKind::QuotedName => {
            let inner = name.text.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
            // A doubled quote stands for one.
            let is_plain = !inner.contains(&b'"');
            is_plain.then_some(inner.into())
        }
        _ => None,
    }
}

#[test]
fn name_is_read_from_single_deallocate() {
    let cases = [
        ("DEALLOCATE pdo_stmt_00000001", Some("pdo_stmt_00000001")),
        ("/* x */ deallocate prepare S_1;", Some("s_1")),
        ("deallocate \"S 1\"", Some("S 1")),
        ("deallocate \"S\"\"1\"", None),
        ("deallocate all", None),
        ("DEALLOCATE PREPARE ALL", None),
        ("deallocate s1; select 1", None),
        ("discard all", None),
        ("deallocate", None),
    ];
    for (sql, expected) in cases {
        let name = deallocated_name(sql.as_bytes());
        assert_eq!(name.as_deref(), expected.map(str::as_bytes), "{sql}");
    }
}
