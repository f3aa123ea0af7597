//! Detects that a log, whose statements are logged at their end, is only a sample: transactions are
//! partly or completely missing.
//!
//! With `log_min_duration_sample` the server samples statements, with `log_transaction_sample_rate`
//! transactions. The log does not say so, but its contents are inconsistent: a COMMIT has no BEGIN,
//! or a backend's transaction numbers have gaps.

use howdah_sql::{Lexer, SqlCommand, TokenKind};

use crate::record::spans::parse_u64;

/// A detector of inconsistencies between successive statements of a session.
#[derive(Debug, Default)]
pub(super) struct SamplingDetector {
    /// Whether the session is inside a transaction block; `None` if that is not known.
    in_block: Option<bool>,
    /// Backend and number of the last transaction that was logged.
    last: Option<(u64, u64)>,
    /// Number of statements since `last` without a transaction number, usually logged as `3/0`
    /// because their transaction had committed.
    unnumbered: u64,
}

/// Inconsistencies found in a statement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SamplingEvidence {
    /// Transaction blocks without their beginning or end.
    pub(super) broken_blocks: u64,
    /// Number of transactions that seem to be completely missing.
    pub(super) missing_transactions: u64,
}

impl SamplingDetector {
    /// Observes the next statement of the session, by its text and transaction.
    pub(super) fn observe(&mut self, sql: &[u8], vxid: &[u8]) -> SamplingEvidence {
        SamplingEvidence {
            broken_blocks: u64::from(self.observe_block(sql)),
            missing_transactions: self.count_missing(vxid),
        }
    }

    fn observe_block(&mut self, sql: &[u8]) -> bool {
        match SqlCommand::from_sql(sql) {
            command @ (SqlCommand::Begin | SqlCommand::Commit | SqlCommand::Rollback) => {
                let begins = command == SqlCommand::Begin;
                if !is_simple_block_command(sql) {
                    self.in_block = None;
                    return false;
                }
                self.in_block.replace(begins) == Some(begins)
            }
            _ => false,
        }
    }

    fn count_missing(&mut self, vxid: &[u8]) -> u64 {
        let numbers = memchr::memchr(b'/', vxid)
            .and_then(|at| Some((parse_u64(&vxid[..at])?, parse_u64(&vxid[at + 1..])?)));
        let Some((backend, local)) = numbers.filter(|(_, local)| *local > 0) else {
            self.unnumbered += 1;
            return 0;
        };
        let before = self.last.replace((backend, local));
        let unnumbered = std::mem::take(&mut self.unnumbered);
        match before {
            Some((same, last)) if same == backend && local > last => {
                (local - last - 1).saturating_sub(unnumbered)
            }
            _ => 0,
        }
    }
}

/// Whether a text that starts with BEGIN, COMMIT or ROLLBACK only begins or ends a block: it has no
/// `TO`, `AND CHAIN` or `PREPARED`, and no second statement.
fn is_simple_block_command(sql: &[u8]) -> bool {
    let mut words = Lexer::new(sql)
        .filter(|token| !matches!(token.kind, TokenKind::Space | TokenKind::Comment))
        .map(|token| token.text);
    let is_last = |text: &[u8]| text != b";";
    let more: Vec<_> = words.by_ref().skip(1).take_while(|text| is_last(text)).take(8).collect();
    let is_excluded = |word: &&[u8]| {
        [&b"to"[..], b"and", b"prepared"].iter().any(|odd| odd.eq_ignore_ascii_case(word))
    };
    words.next().is_none() && !more.iter().any(is_excluded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evidence(statements: &[(&str, &str)]) -> SamplingEvidence {
        let mut detector = SamplingDetector::default();
        statements.iter().fold(SamplingEvidence::default(), |sum, (sql, vxid)| {
            let more = detector.observe(sql.as_bytes(), vxid.as_bytes());
            SamplingEvidence {
                broken_blocks: sum.broken_blocks + more.broken_blocks,
                missing_transactions: sum.missing_transactions + more.missing_transactions,
            }
        })
    }

    #[test]
    fn complete_log_has_no_evidence() {
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
        assert_eq!(evidence(&whole), SamplingEvidence::default());
    }

    #[test]
    fn broken_blocks_and_transaction_gaps_are_counted() {
        let blocks = [("begin", ""), ("begin", ""), ("commit", ""), ("end", ""), ("rollback", "")];
        assert_eq!(evidence(&blocks).broken_blocks, 3);
        let gaps = [("select $1", "3/10"), ("select 1", "3/0"), ("select $1", "3/20")];
        assert_eq!(evidence(&gaps), SamplingEvidence { broken_blocks: 0, missing_transactions: 8 });
    }
}
