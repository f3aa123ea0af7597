//! Signs that a log of ended statements is a sample: transactions that are there in part, or not at all.
//!
//! With `log_min_duration_sample` the server draws lots for each statement, with
//! `log_transaction_sample_rate` for each transaction. Neither is told in the log. What is there does
//! not add up, though: a COMMIT has no BEGIN, and a backend's numbers of its transactions have gaps.

use howdah_sql::{Command, Lexer, TokenKind};

use crate::pieces::number;

/// What one session's statements let expect of the next.
#[derive(Debug, Default)]
pub(super) struct Balance {
    /// Inside a transaction block; `None` while that is not known.
    in_block: Option<bool>,
    /// Backend and number of the last transaction that was told.
    last: Option<(u64, u64)>,
    /// Statements since, of which the transaction was not told: `3/0`, already committed.
    untold: u64,
}

/// What does not add up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SamplingEvidence {
    /// Transaction blocks without their beginning or end.
    pub(super) broken_blocks: u64,
    /// Transactions of which nothing is there, at least.
    pub(super) missing_transactions: u64,
}

impl Balance {
    /// Takes the next statement of the session, by its text and transaction.
    pub(super) fn take(&mut self, sql: &[u8], vxid: &[u8]) -> SamplingEvidence {
        SamplingEvidence {
            broken_blocks: u64::from(self.is_broken_by(sql)),
            missing_transactions: self.missing_before(vxid),
        }
    }

    fn is_broken_by(&mut self, sql: &[u8]) -> bool {
        match Command::of(sql) {
            command @ (Command::Begin | Command::Commit | Command::Rollback) => {
                let begins = command == Command::Begin;
                if !is_plain(sql) {
                    self.in_block = None;
                    return false;
                }
                self.in_block.replace(begins) == Some(begins)
            }
            _ => false,
        }
    }

    fn missing_before(&mut self, vxid: &[u8]) -> u64 {
        let numbers = memchr::memchr(b'/', vxid)
            .and_then(|at| Some((number(&vxid[..at])?, number(&vxid[at + 1..])?)));
        let Some((backend, local)) = numbers.filter(|(_, local)| *local > 0) else {
            self.untold += 1;
            return 0;
        };
        let before = self.last.replace((backend, local));
        let untold = std::mem::take(&mut self.untold);
        match before {
            Some((same, last)) if same == backend && local > last => {
                (local - last - 1).saturating_sub(untold)
            }
            _ => 0,
        }
    }
}

/// Whether the text is one statement that begins or ends a block, and nothing else: no
/// `ROLLBACK TO`, no `COMMIT AND CHAIN`, no second statement.
fn is_plain(sql: &[u8]) -> bool {
    let mut words = Lexer::new(sql)
        .filter(|token| !matches!(token.kind, TokenKind::Space | TokenKind::Comment))
        .map(|token| token.text);
    let is_last = |text: &[u8]| text != b";";
    let more: Vec<_> = words.by_ref().skip(1).take_while(|text| is_last(text)).take(8).collect();
    let is_odd = |word: &&[u8]| {
        [&b"to"[..], b"and", b"prepared"].iter().any(|odd| odd.eq_ignore_ascii_case(word))
    };
    words.next().is_none() && !more.iter().any(is_odd)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signs(statements: &[(&str, &str)]) -> SamplingEvidence {
        let mut balance = Balance::default();
        statements.iter().fold(SamplingEvidence::default(), |sum, (sql, vxid)| {
            let more = balance.take(sql.as_bytes(), vxid.as_bytes());
            SamplingEvidence {
                broken_blocks: sum.broken_blocks + more.broken_blocks,
                missing_transactions: sum.missing_transactions + more.missing_transactions,
            }
        })
    }

    #[test]
    fn what_is_whole_shows_no_signs() {
        let whole = [
            ("select 1", ""),
            ("commit", ""),
            ("begin", "3/7"),
            ("insert into t values (1)", "3/7"),
            ("savepoint s", "3/7"),
            ("rollback to s", "3/7"),
            ("COMMIT AND CHAIN", "3/7"),
            ("commit;", "3/0"),
            ("begin; select 1; commit", "3/0"),
            ("select 2", "3/0"),
            ("select $1", "3/10"),
            ("start transaction isolation level serializable", "3/11"),
            ("abort", "3/0"),
            ("select $1", "4/500"),
        ];
        assert_eq!(signs(&whole), SamplingEvidence::default());
    }

    #[test]
    fn blocks_in_part_and_gaps_between_transactions_are_seen() {
        let blocks = [("begin", ""), ("begin", ""), ("commit", ""), ("end", ""), ("rollback", "")];
        assert_eq!(signs(&blocks).broken_blocks, 3);
        let gaps = [("select $1", "3/10"), ("select 1", "3/0"), ("select $1", "3/20")];
        assert_eq!(signs(&gaps), SamplingEvidence { broken_blocks: 0, missing_transactions: 8 });
    }
}
