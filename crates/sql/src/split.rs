//! Splits a text into statements.

use crate::lexer::{Lexer, SqlToken, TokenKind};

/// Returns the statements of `sql`, in order, without their semicolons. Empty statements are
/// omitted.
///
/// A semicolon separates statements unless it is in parentheses (`CREATE RULE … DO (…; …)`) or in
/// the `BEGIN ATOMIC … END` body of a function, as in psql. Comments and white space inside a
/// statement are preserved; white space at its ends is trimmed.
///
/// ```
/// let statements: Vec<_> = howdah_sql::split_statements(b"begin; select ';'; ;commit").collect();
/// assert_eq!(statements, [&b"begin"[..], b"select ';'", b"commit"]);
/// ```
pub fn split_statements(sql: &[u8]) -> Statements<'_> {
    Statements { rest: sql }
}

/// The iterator that [`split_statements`] returns.
#[derive(Clone, Debug)]
pub struct Statements<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Statements<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        while !self.rest.is_empty() {
            let (statement, substantial) = self.next_statement_len();
            if substantial {
                return Some(statement.trim_ascii());
            }
        }
        None
    }
}

impl<'a> Statements<'a> {
    /// Removes the text up to the next separating semicolon from `self.rest`. Returns it without
    /// the semicolon, and whether it contains more than white space and comments.
    fn next_statement_len(&mut self) -> (&'a [u8], bool) {
        let mut end = 0;
        let mut substantial = false;
        let mut nesting = Nesting::default();
        for token in Lexer::new(self.rest) {
            if token.text == b";" && nesting.is_outermost() {
                let statement = &self.rest[..end];
                self.rest = &self.rest[end + 1..];
                return (statement, substantial);
            }
            end += token.text.len();
            substantial |= !matches!(token.kind, TokenKind::Space | TokenKind::Comment);
            nesting.observe(token);
        }
        (std::mem::take(&mut self.rest), substantial)
    }
}

/// The nesting state of a statement, which determines whether a semicolon separates statements.
#[derive(Default)]
struct Nesting {
    parentheses: usize,
    /// Number of open `BEGIN` and `CASE` in an SQL-standard function body.
    blocks: usize,
    words: usize,
    /// Whether the statement starts with `CREATE`.
    creates: bool,
    /// Whether the statement is `CREATE [OR REPLACE] {FUNCTION | PROCEDURE}`, the only statement
    /// with an SQL-standard body.
    routine: bool,
}

impl Nesting {
    fn is_outermost(&self) -> bool {
        self.parentheses == 0 && self.blocks == 0
    }

    fn observe(&mut self, token: SqlToken<'_>) {
        match (token.kind, token.text) {
            (TokenKind::Punctuation, b"(") => self.parentheses += 1,
            (TokenKind::Punctuation, b")") => self.parentheses = self.parentheses.saturating_sub(1),
            (TokenKind::Word, word) => self.keyword(word),
            _ => {}
        }
    }

    fn keyword(&mut self, word: &[u8]) {
        let is = |keyword: &str| word.eq_ignore_ascii_case(keyword.as_bytes());
        self.words += 1;
        match self.words {
            1 => self.creates = is("create"),
            2..=4 => self.routine |= self.creates && (is("function") || is("procedure")),
            _ => {}
        }
        if !self.routine || self.parentheses > 0 {
            return;
        }
        if is("begin") || self.blocks > 0 && is("case") {
            self.blocks += 1;
        } else if is("end") {
            self.blocks = self.blocks.saturating_sub(1);
        }
    }
}

#[cfg(test)]
fn split(sql: &str) -> Vec<String> {
    split_statements(sql.as_bytes())
        .map(|part| String::from_utf8_lossy(part).into_owned())
        .collect()
}

#[test]
fn semicolons_in_literals_and_bodies_do_not_split() {
    assert_eq!(split("select 1"), ["select 1"]);
    assert_eq!(
        split("select ';', \";\" /* ; */ -- ;\n; select 2;"),
        ["select ';', \";\" /* ; */ -- ;", "select 2"]
    );
    let rule = "create rule r as on insert to t do (delete from a; delete from b)";
    assert_eq!(split(&format!("{rule}; select 1")), [rule, "select 1"]);
    let function = "create or replace function f() returns int begin atomic \
                    select case when true then 1 end; select 2; end";
    assert_eq!(split(&format!("{function}; select 1")), [function, "select 1"]);
    assert_eq!(split("begin; select 1; end"), ["begin", "select 1", "end"]);
}

#[test]
fn empty_statements_are_skipped() {
    assert_eq!(split(";; -- only a comment\n;"), Vec::<String>::new());
    assert_eq!(split(""), Vec::<String>::new());
}
