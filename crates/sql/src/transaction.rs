//! [`TransactionBlock`]: whether a text opens or closes a transaction block.

use crate::{Lexer, SqlCommand, split_statements};

/// The effect of a text on the transaction block of its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionBlock {
    /// A block is open afterwards: `BEGIN`, `COMMIT AND CHAIN`, `ROLLBACK AND CHAIN`.
    Opened,
    /// No block is open afterwards: `COMMIT`, `ROLLBACK`, `PREPARE TRANSACTION`.
    Closed,
}

impl TransactionBlock {
    /// Returns the state after all statements in `sql`, as determined by the last one that opens or
    /// closes a block; `None` if no statement does.
    ///
    /// ```
    /// use howdah_sql::TransactionBlock;
    ///
    /// assert_eq!(TransactionBlock::after(b"begin; select 1"), Some(TransactionBlock::Opened));
    /// assert_eq!(TransactionBlock::after(b"rollback to savepoint s"), None);
    /// ```
    pub fn after(sql: &[u8]) -> Option<Self> {
        let single = sql.trim_ascii_end();
        let single = single.strip_suffix(b";").unwrap_or(single);
        // Most texts contain only one statement, which need not be split.
        if !single.contains(&b';') {
            return Self::after_one(single);
        }
        split_statements(sql).filter_map(Self::after_one).last()
    }

    fn after_one(statement: &[u8]) -> Option<Self> {
        if !may_open_or_close(statement) {
            return None;
        }
        let has =
            |word: &[u8]| Lexer::new(statement).any(|token| token.text.eq_ignore_ascii_case(word));
        match SqlCommand::from_sql(statement) {
            SqlCommand::Begin => Some(Self::Opened),
            // AND CHAIN starts another transaction immediately.
            SqlCommand::Commit | SqlCommand::Rollback if has(b"chain") && !has(b"no") => {
                Some(Self::Opened)
            }
            // ROLLBACK TO returns to a savepoint and does not end the block.
            SqlCommand::Rollback if has(b"to") => None,
            SqlCommand::Commit | SqlCommand::Rollback => Some(Self::Closed),
            SqlCommand::Prepare if has(b"transaction") => {
                let mut words = Lexer::new(statement).filter(|token| {
                    !matches!(token.kind, crate::TokenKind::Space | crate::TokenKind::Comment)
                });
                let second = words.nth(1);
                second
                    .is_some_and(|token| token.text.eq_ignore_ascii_case(b"transaction"))
                    .then_some(Self::Closed)
            }
            _ => None,
        }
    }
}

/// Whether a statement may open or close a block, judging by its first two bytes after white space.
/// This saves running the lexer on most statements of an import.
fn may_open_or_close(statement: &[u8]) -> bool {
    match *statement.trim_ascii_start() {
        [first, second, ..] if first.is_ascii_alphabetic() => matches!(
            &[first.to_ascii_lowercase(), second.to_ascii_lowercase()],
            b"be" | b"st" | b"co" | b"en" | b"ro" | b"ab" | b"pr"
        ),
        // A comment or a parenthesis may precede the first keyword.
        [_, _, ..] => true,
        _ => false,
    }
}

#[test]
fn last_block_statement_decides_state() {
    use TransactionBlock::{Closed, Opened};
    for (sql, expected) in [
        ("", None),
        ("select 'begin'", None),
        ("start transaction read only;", Some(Opened)),
        ("begin; insert into t values (';'); commit", Some(Closed)),
        ("commit; begin", Some(Opened)),
        ("commit and chain", Some(Opened)),
        ("commit and no chain", Some(Closed)),
        ("rollback to s", None),
        ("abort", Some(Closed)),
        ("prepare transaction 'x'", Some(Closed)),
        ("prepare p as select 1 as transaction", None),
        ("/* app */ BEGIN", Some(Opened)),
    ] {
        assert_eq!(TransactionBlock::after(sql.as_bytes()), expected, "{sql}");
    }
}
