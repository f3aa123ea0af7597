//! SQL text: tokens, normalised text, placeholders, splitting.

use howdah_sql::{
    Fingerprinter, Lexer, SqlCommand, TokenKind, fingerprint, normalize, placeholder_count,
    split_statements,
};

use super::Shape;

/// Fragments that begin, end or nest something.
pub const WORDS: &[&[u8]] = &[
    b"select ",
    b"values ",
    b"in (",
    b"array[",
    b"(",
    b")",
    b"]",
    b"'",
    b"''",
    b"\"",
    b"E'",
    b"e'\\",
    b"U&'",
    b"u&\"",
    b"N'",
    b"b'01'",
    b"$$",
    b"$a$",
    b"$1",
    b"$65536",
    b"?",
    b"--",
    b"\n",
    b"/*",
    b"*/",
    b";",
    b"::",
    b":=",
    b"...",
    b"1.5e-3",
    b"0x1F",
    b"1_000",
    b"-",
    b"+",
    b"@-",
    b"null",
    b"true",
    b"savepoint a",
    b"deallocate p",
    b"create function f() begin atomic ",
    b"end",
    b"case ",
    b"\xff",
    b"\xc3\xa9",
    b"date ",
    b"interval ",
    b", ",
    b" ",
    b"\x0b",
];

/// Checks the properties of one text.
pub fn run(sql: &[u8]) -> Shape {
    let tokens: Vec<_> = Lexer::new(sql).collect();
    let joined: Vec<u8> = tokens.iter().flat_map(|token| token.text).copied().collect();
    assert_eq!(joined, sql, "tokens have gaps");
    assert!(tokens.iter().all(|token| !token.text.is_empty()));

    let normal = normalize(sql);
    assert_eq!(normalize(normal.as_bytes()), normal, "the normal form is not stable");
    let shape = Fingerprinter::with_capacity(1 << 10).shape(sql);
    assert_eq!((shape.fingerprint, &*shape.normal), (fingerprint(sql), &*normal));
    assert_eq!(fingerprint(normal.as_bytes()), shape.fingerprint);
    let highest = tokens.iter().filter(|token| token.kind == TokenKind::Placeholder).count();
    assert_eq!(placeholder_count(sql) > 0, highest > 0 && has_ordinal(sql));

    let other = other_case_and_space(sql);
    assert_eq!(normalize(&other), normal, "{}", other.escape_ascii());
    assert_eq!(placeholder_count(&other), placeholder_count(sql));
    assert_eq!(SqlCommand::from_sql(&other), SqlCommand::from_sql(sql));
    splits(sql);

    let kinds: Vec<_> = tokens.iter().map(|token| token.kind as u8).collect();
    Shape::each(kinds.windows(3)).and((SqlCommand::from_sql(sql).as_str(), normal.contains("...")))
}

/// Whether the text has a placeholder `$n` with n above 0.
fn has_ordinal(sql: &[u8]) -> bool {
    let ordinal = |text: &[u8]| text.iter().skip(1).any(|digit| *digit != b'0');
    Lexer::new(sql).any(|token| token.kind == TokenKind::Placeholder && ordinal(token.text))
}

/// Rewrites the statement with other case and white space.
fn other_case_and_space(sql: &[u8]) -> Vec<u8> {
    let mut other = Vec::with_capacity(sql.len() * 2);
    for token in Lexer::new(sql) {
        match token.kind {
            TokenKind::Word => other.extend(token.text.iter().map(|byte| match byte {
                b'a'..=b'z' => byte.to_ascii_uppercase(),
                other => other.to_ascii_lowercase(),
            })),
            TokenKind::Space => other.extend([token.text, token.text].concat()),
            _ => other.extend_from_slice(token.text),
        }
    }
    other
}

/// Checks that the statements found are disjoint parts of the text, in order, each a single
/// statement.
fn splits(sql: &[u8]) {
    let mut from = 0;
    for part in split_statements(sql) {
        assert!(!part.is_empty());
        let at = sql[from..].windows(part.len()).position(|window| window == part);
        assert!(at.is_some(), "{} is no part of the text", part.escape_ascii());
        from += at.unwrap_or_default() + part.len();
        let again: Vec<_> = split_statements(part).collect();
        assert_eq!(again, [part], "split again");
    }
}

/// Repeats a text many times, to find super-linear work by the time limit.
pub fn long(sql: &[u8]) -> Shape {
    const BYTES: usize = 256 << 10;
    let long = sql.repeat(BYTES / sql.len().max(1));
    let normal = normalize(&long);
    assert!(normal.len() <= 8 * long.len() + 8, "{} bytes of {}", normal.len(), long.len());
    let count = placeholder_count(&long);
    let parts = split_statements(&long).count();
    assert!(parts <= long.len());
    Shape::of((
        SqlCommand::from_sql(&long).as_str(),
        normal.len().checked_ilog2(),
        count > 0,
        parts > 1,
    ))
}
