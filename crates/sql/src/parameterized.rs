//! [`ParameterizedText`]: a statement without its constants, and their positions.

use std::ops::Range;

use crate::lexer::{Lexer, SqlToken, TokenKind};

/// A text with its constants extracted, so that analysis of one text applies to all texts that
/// differ only in constants.
///
/// Unlike the [normal form](crate::normalize), it preserves every other difference: the kind and
/// number of constants, upper case, placeholders, quotes, and the presence of space. Only white
/// space is not preserved: each run of white space and comments becomes one space. So two texts
/// with equal parameterized texts have the same tree in PostgreSQL's grammar, except for the values
/// of constants and for positions, and the `n`-th constant of one is in the same position in the
/// tree as the `n`-th constant of the other.
///
/// Constants are extracted only from statements that begin with SELECT, INSERT, UPDATE, DELETE,
/// WITH or VALUES, up to the first semicolon: in `EXPLAIN (ANALYZE 0)`, for example, a constant
/// decides whether the statement is executed. They are not extracted from a text that contains a
/// name in the form `U&"…"`, because a constant after `UESCAPE` is part of such a name.
///
/// ```
/// let mut one = howdah_sql::ParameterizedText::default();
/// one.read(b"select * from t where id = 42 and name = 'O''Hara'");
/// assert_eq!(one.constants().len(), 2);
/// let mut other = howdah_sql::ParameterizedText::default();
/// other.read(b"select * from t /* hot */ where id = 7 and name = ''");
/// assert_eq!(one.bytes(), other.bytes());
/// ```
#[derive(Clone, Debug, Default)]
pub struct ParameterizedText {
    bytes: Vec<u8>,
    constants: Vec<Range<usize>>,
    is_complete: bool,
}

/// The byte that marks an extracted constant; the class of the constant follows. PostgreSQL's
/// scanner accepts this byte only inside quotes.
const MARK: u8 = 1;

impl ParameterizedText {
    /// Extracts the constants of `sql`, and replaces the previous text with the result, reusing its
    /// memory.
    pub fn read(&mut self, sql: &[u8]) {
        self.bytes.clear();
        self.constants.clear();
        self.is_complete = true;
        let (mut folds, mut has_begun) = (false, false);
        let mut at = 0;
        let mut last = None;
        for token in Lexer::new(sql) {
            match token.kind {
                TokenKind::Space | TokenKind::Comment => self.space(),
                TokenKind::Number | TokenKind::String if folds => {
                    self.bytes.extend([MARK, token_class(token)]);
                    self.constants.push(at..at + token.text.len());
                }
                _ => {
                    match token.kind {
                        TokenKind::Stray => self.is_complete = false,
                        TokenKind::Word if !has_begun => {
                            folds = has_value_constants_only(token.text);
                        }
                        TokenKind::QuotedName if token.text[0] != b'"' => {
                            return self.copy_token(sql);
                        }
                        _ => {}
                    }
                    has_begun |= token.text != b"(";
                    folds &= token.text != b";";
                    self.bytes.extend_from_slice(token.text);
                }
            }
            at += token.text.len();
            last = Some(token);
        }
        self.is_complete &= last.is_none_or(is_terminated) && memchr::memchr(0, sql).is_none();
    }

    /// Returns the text without its constants.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the positions of the extracted constants in the original text.
    pub fn constants(&self) -> &[Range<usize>] {
        &self.constants
    }

    /// Whether the text ends outside quotes and comments, and contains neither a name in the form
    /// `U&"…"` nor a byte that the scanner rejects, such as a zero byte or a stray control
    /// character. No result for an incomplete text may be cached.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Copies a text that contains `U&"…"` unchanged, without extracting constants.
    fn copy_token(&mut self, sql: &[u8]) {
        self.bytes.clear();
        self.constants.clear();
        self.bytes.extend_from_slice(sql);
        // The text may be complete, but such names are too rare to be worth caching.
        self.is_complete = false;
    }

    fn space(&mut self) {
        if self.bytes.last().is_some_and(|byte| *byte != b' ') {
            self.bytes.push(b' ');
        }
    }
}

/// Whether all constants are plain values in a statement whose first keyword is `word`.
fn has_value_constants_only(word: &[u8]) -> bool {
    ["select", "insert", "update", "delete", "with", "values"]
        .iter()
        .any(|keyword| word.eq_ignore_ascii_case(keyword.as_bytes()))
}

/// Returns the class of a constant: `0` for a number, or the first byte of a string in lower case,
/// which determines its quoting.
fn token_class(token: SqlToken<'_>) -> u8 {
    match (token.kind, token.text.first()) {
        (TokenKind::String, Some(first)) => first.to_ascii_lowercase(),
        _ => b'0',
    }
}

/// Whether the last token of a text is complete, that is, text appended to it would not become part
/// of it.
fn is_terminated(token: SqlToken<'_>) -> bool {
    match token.kind {
        TokenKind::String | TokenKind::QuotedName | TokenKind::Comment => {
            let ended = [token.text, b"\n;"].concat();
            Lexer::new(&ended).last().is_some_and(|token| token.text == b";")
        }
        _ => true,
    }
}

#[cfg(test)]
fn parameterized(sql: &str) -> (String, usize, bool) {
    let mut parameterized = ParameterizedText::default();
    parameterized.read(b"select 'another text before'");
    parameterized.read(sql.as_bytes());
    let bytes = String::from_utf8_lossy(parameterized.bytes()).replace('\u{1}', "?");
    (bytes, parameterized.constants().len(), parameterized.is_complete())
}

#[test]
fn value_constants_are_extracted() {
    let cases = [
        ("select 1, -2.5, 'a', E'\\n', $$b$$", "select ?0, -?0, ?', ?e, ?$", 5, true),
        ("  -- first\n (SELECT 1)", "(SELECT ?0)", 1, true),
        ("select 1from t", "select ?0from t", 1, true),
        (
            "select 1; explain (analyze 0) select 1",
            "select ?0; explain (analyze 0) select 1",
            1,
            true,
        ),
        ("explain (analyze 0) select 1", "explain (analyze 0) select 1", 0, true),
        (
            "insert into t values (1,'x'),(2,null)",
            "insert into t values (?0,?'),(?0,null)",
            3,
            true,
        ),
        ("select 'a", "select ?'", 1, false),
        ("select 1 /* a", "select ?0 ", 1, false),
        ("select 1 -- a", "select ?0 ", 1, true),
        ("select \\ 1", "select \\ ?0", 1, false),
        ("select u&\"a!0061\" uescape '!'", "select u&\"a!0061\" uescape '!'", 0, false),
        ("", "", 0, true),
    ];
    for (sql, bytes, constants, is_whole) in cases {
        assert_eq!(parameterized(sql), (bytes.to_owned(), constants, is_whole), "{sql}");
    }
}

#[test]
fn constant_positions_match_original_text() {
    let sql = b"select 'it''s' from t where a = 12 and b in (3, $1)";
    let mut parameterized = ParameterizedText::default();
    parameterized.read(sql);
    let texts: Vec<_> = parameterized.constants().iter().map(|place| &sql[place.clone()]).collect();
    assert_eq!(texts, [&b"'it''s'"[..], b"12", b"3"]);
}
