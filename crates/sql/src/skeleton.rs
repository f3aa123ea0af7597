//! [`ParameterizedText`]: a statement without its constants, and where each of them stands.

use std::ops::Range;

use crate::lexer::{Lexer, Token, TokenKind};

/// A text whose constants are taken out, so that what was learnt of one text holds for all that differ in
/// constants only.
///
/// Unlike the [normal form](crate::normalize) it tells every other difference: which sort each constant is of
/// and how many there are, letters in upper case, placeholders, quotes, whether there is space. Only white
/// space and comments are one space each. So two texts of one skeleton have one tree in PostgreSQL's grammar,
/// but for the values of constants and for places; and the `n`-th constant of one stands where the `n`-th of
/// the other does.
///
/// Constants are taken out of queries and of statements that write rows only, up to their first semicolon:
/// in `EXPLAIN (ANALYZE 0)`, say, a constant decides what is done. And not where `U&"…" UESCAPE '…'` makes a
/// name of one.
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
    is_whole: bool,
}

/// Stands before the sort of a constant. Outside quotes it is nothing that the scanner takes.
const MARK: u8 = 1;

impl ParameterizedText {
    /// Reads another text; the memory of the one before is reused.
    pub fn read(&mut self, sql: &[u8]) {
        self.bytes.clear();
        self.constants.clear();
        self.is_whole = true;
        let (mut folds, mut has_begun) = (false, false);
        let mut at = 0;
        let mut last = None;
        for token in Lexer::new(sql) {
            match token.kind {
                TokenKind::Space | TokenKind::Comment => self.space(),
                TokenKind::Number | TokenKind::String if folds => {
                    self.bytes.extend([MARK, sort_of(token)]);
                    self.constants.push(at..at + token.text.len());
                }
                _ => {
                    match token.kind {
                        TokenKind::Stray => self.is_whole = false,
                        TokenKind::Word if !has_begun => folds = begins_folding(token.text),
                        TokenKind::QuotedName if token.text[0] != b'"' => return self.keep(sql),
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
        self.is_whole &= last.is_none_or(is_ended) && memchr::memchr(0, sql).is_none();
    }

    /// The text without its constants.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Where the constants stand that were taken out, in the text that was read.
    pub fn constants(&self) -> &[Range<usize>] {
        &self.constants
    }

    /// Whether the text ends outside of quotes and comments, and holds nothing that the scanner refuses at
    /// first sight: a zero byte, a stray control character. If not, nothing may be remembered of it.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Everything stays as it is.
    fn keep(&mut self, sql: &[u8]) {
        self.bytes.clear();
        self.constants.clear();
        self.bytes.extend_from_slice(sql);
        // It may be, but who writes such names can wait.
        self.is_whole = false;
    }

    fn space(&mut self) {
        if self.bytes.last().is_some_and(|byte| *byte != b' ') {
            self.bytes.push(b' ');
        }
    }
}

/// Whether constants are no more than values in a statement that begins with `word`.
fn begins_folding(word: &[u8]) -> bool {
    ["select", "insert", "update", "delete", "with", "values"]
        .iter()
        .any(|known| word.eq_ignore_ascii_case(known.as_bytes()))
}

/// What sort of constant it is: a number, or a string by how it is quoted.
fn sort_of(token: Token<'_>) -> u8 {
    match (token.kind, token.text.first()) {
        (TokenKind::String, Some(first)) => first.to_ascii_lowercase(),
        _ => b'0',
    }
}

/// Whether a token at the end of a text is complete: what is added does not become part of it.
fn is_ended(token: Token<'_>) -> bool {
    match token.kind {
        TokenKind::String | TokenKind::QuotedName | TokenKind::Comment => {
            let ended = [token.text, b"\n;"].concat();
            Lexer::new(&ended).last().is_some_and(|token| token.text == b";")
        }
        _ => true,
    }
}

#[cfg(test)]
fn skeleton(sql: &str) -> (String, usize, bool) {
    let mut skeleton = ParameterizedText::default();
    skeleton.read(b"select 'another text before'");
    skeleton.read(sql.as_bytes());
    let bytes = String::from_utf8_lossy(skeleton.bytes()).replace('\u{1}', "?");
    (bytes, skeleton.constants().len(), skeleton.is_whole())
}

#[test]
fn constants_are_taken_out_where_they_are_values() {
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
        assert_eq!(skeleton(sql), (bytes.to_owned(), constants, is_whole), "{sql}");
    }
}

#[test]
fn constants_stand_where_they_are_said_to() {
    let sql = b"select 'it''s' from t where a = 12 and b in (3, $1)";
    let mut skeleton = ParameterizedText::default();
    skeleton.read(sql);
    let texts: Vec<_> = skeleton.constants().iter().map(|place| &sql[place.clone()]).collect();
    assert_eq!(texts, [&b"'it''s'"[..], b"12", b"3"]);
}
