//! Which events of a session shared a Sync, told by its transactions.
//!
//! Outside of a transaction block the server ends its transaction at each Sync, so the messages of
//! one pipeline share a virtual transaction id and those of two never do. Inside a block Syncs leave no
//! trace. So blocks have to be known, and a log holds their BEGIN only where it holds every statement.
//!
//! Source: `start_xact_command` and `finish_xact_command` in `postgres.c`.

use howdah_sql::{Command, Lexer, TokenKind, split_statements};
use howdah_traffic::{ActionRef, Source};

use super::vxid::Vxid;

/// The pipelines of one session.
#[derive(Debug, Default)]
pub(super) struct Pipelines {
    /// The last one counted.
    number: u32,
    /// Its transaction.
    transaction: Option<Vxid>,
    /// The transaction that is a block.
    block: Option<Vxid>,
    /// The next transaction is a block, too, or may be one.
    block_next: bool,
    /// The log holds every statement of the session, BEGIN included.
    is_whole: bool,
}

/// What a text does to the transaction block around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockChange {
    None,
    /// The transaction that it runs in is a block from now on.
    Begins,
    /// The transaction after its own is, or both are.
    MayLeaveOne,
}

impl Pipelines {
    /// Those of a session that may have been in a block when it was first seen.
    pub(super) fn joined_midway(&mut self) {
        self.block_next = true;
    }

    /// The server logged the end of a step with its text although it took less than the least
    /// threshold that `log_min_duration_statement` can be set to above 0.
    pub(super) fn saw_duration(&mut self, micros: u64) {
        self.is_whole |= micros < LEAST_THRESHOLD_US;
    }

    /// The server logged the end of an action but not that of its Bind: it does not log every step.
    pub(super) fn missed_one(&mut self) {
        self.is_whole = false;
    }

    /// The pipeline of an action, if it can be told.
    #[inline]
    pub(super) fn of(
        &mut self,
        action: &ActionRef<'_>,
        source: Source,
        transaction: Option<Vxid>,
    ) -> Option<u32> {
        self.within(action, source, transaction?)
    }

    fn within(&mut self, action: &ActionRef<'_>, source: Source, transaction: Vxid) -> Option<u32> {
        let transaction = Some(transaction);
        if self.block_next && self.block != transaction {
            self.block = transaction;
            self.block_next = false;
        }
        let sql = action.sql()?.as_bytes();
        let is_extended = !matches!(action, ActionRef::Simple { .. } | ActionRef::Copy { .. });
        let executes = !matches!(action, ActionRef::Parse { .. } | ActionRef::Bind(_));
        if executes {
            self.is_whole = self.is_whole || source == Source::Statement && only_all_logs(sql);
            match block_change(sql) {
                BlockChange::None => {}
                BlockChange::Begins => self.block = transaction,
                BlockChange::MayLeaveOne => {
                    self.block = transaction;
                    self.block_next = true;
                }
            }
        }
        if !is_extended || !self.is_whole || self.block == transaction {
            return None;
        }
        if self.transaction != transaction {
            self.transaction = transaction;
            self.number = self.number.saturating_add(1);
        }
        Some(self.number)
    }
}

/// `log_min_duration_statement` is set in whole milliseconds.
pub(super) const LEAST_THRESHOLD_US: u64 = 1000;

/// Whether a statement is logged at its start only by `log_statement = all`, not by `mod` or `ddl`.
///
/// Source: `GetCommandLogLevel` in `utility.c`. A message of several statements is logged for the
/// sake of any of them, and `SELECT INTO` makes a table.
fn only_all_logs(sql: &[u8]) -> bool {
    let word = |name: &[u8]| {
        Lexer::new(sql)
            .any(|token| token.kind == TokenKind::Word && token.text.eq_ignore_ascii_case(name))
    };
    memchr::memchr(b';', sql.trim_ascii_end().strip_suffix(b";").unwrap_or(sql)).is_none()
        && match Command::of(sql) {
            Command::Begin | Command::Commit | Command::Rollback => true,
            Command::Set | Command::Show => true,
            Command::Select => !word(b"into"),
            _ => false,
        }
}

/// What a text does to transaction blocks.
fn block_change(sql: &[u8]) -> BlockChange {
    let text = sql.trim_ascii();
    let text = text.strip_suffix(b";").unwrap_or(text);
    if memchr::memchr(b';', text).is_none() {
        return if may_change_blocks(text) { change_of(text) } else { BlockChange::None };
    }
    let mut ends = memchr::memchr_iter(b';', text);
    let may_change = |at: usize| may_change_blocks(text[at..].trim_ascii_start());
    if !may_change(0) && !ends.any(|end| may_change(end + 1)) {
        return BlockChange::None;
    }
    let changes = |one| change_of(one) != BlockChange::None;
    if split_statements(text).any(changes) { BlockChange::MayLeaveOne } else { BlockChange::None }
}

fn change_of(statement: &[u8]) -> BlockChange {
    let has =
        |word: &[u8]| Lexer::new(statement).any(|token| token.text.eq_ignore_ascii_case(word));
    match Command::of(statement) {
        Command::Begin => BlockChange::Begins,
        Command::Commit | Command::Rollback if has(b"chain") => BlockChange::MayLeaveOne,
        _ => BlockChange::None,
    }
}

/// A cheap test that most statements fail: by the first letters of the words that begin or end a
/// block, or of a comment.
fn may_change_blocks(text: &[u8]) -> bool {
    match text {
        [b'/' | b'-' | b'(', ..] => true,
        [first, second, ..] => matches!(
            [first.to_ascii_lowercase(), second.to_ascii_lowercase()],
            [b'b', b'e'] | [b's', b't'] | [b'c', b'o'] | [b'e', b'n'] | [b'r', b'o'] | [b'a', b'b']
        ),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use howdah_traffic::{BoundRef, Hashed, Parameters};

    use super::*;

    fn execute(sql: &str) -> ActionRef<'_> {
        ActionRef::Execute(BoundRef {
            statement: b"",
            portal: b"",
            sql: Hashed::new(sql.as_bytes()),
            parameters: Some(Parameters::NONE),
        })
    }

    fn simple(sql: &str) -> ActionRef<'_> {
        ActionRef::Simple { sql: Hashed::new(sql.as_bytes()) }
    }

    /// The pipelines of actions in their transactions.
    fn told(pipelines: &mut Pipelines, actions: &[(&str, ActionRef<'_>)]) -> Vec<Option<u32>> {
        let of = |(vxid, action): &(&str, ActionRef<'_>)| {
            pipelines.of(action, Source::Statement, Vxid::logged(vxid.as_bytes()))
        };
        actions.iter().map(of).collect()
    }

    #[test]
    fn executes_of_one_transaction_outside_of_a_block_shared_a_sync() {
        let actions = [
            ("3/1", execute("select 1")),
            ("3/1", execute("insert into t values (1)")),
            ("3/2", execute("select 2")),
            ("3/3", simple("select 3")),
            ("3/4", execute("select 4")),
        ];
        let told = told(&mut Pipelines::default(), &actions);
        assert_eq!(told, [Some(1), Some(1), Some(2), None, Some(3)]);
    }

    #[test]
    fn nothing_is_told_inside_a_block() {
        for (begin, commit, chained) in [
            ("begin", "commit", None),
            ("/* x */ START TRANSACTION;", "end", None),
            ("select 1; begin", "rollback", None),
            ("begin", "commit and chain", Some("3/2")),
        ] {
            let next = chained.unwrap_or("3/2");
            let actions = [
                ("3/1", simple(begin)),
                ("3/1", execute("select 1")),
                ("3/1", simple(commit)),
                (next, execute("select 2")),
                ("3/3", execute("select 3")),
            ];
            let told = told(&mut Pipelines::default(), &actions);
            assert_eq!(told[1], None, "{begin}");
            let is_doubtful = chained.is_some() || begin.contains("; ");
            assert_eq!(told[3].is_none(), is_doubtful, "{begin} {commit}");
            assert!(told[4].is_some(), "{begin} {commit}");
        }
    }

    #[test]
    fn a_log_that_may_lack_begin_tells_nothing() {
        let mod_only = [("3/1", execute("insert into t values (1)")), ("3/1", execute("delete"))];
        assert_eq!(told(&mut Pipelines::default(), &mod_only), [None, None]);
        let mut midway = Pipelines::default();
        midway.joined_midway();
        let actions = [
            ("3/7", execute("select 1")),
            ("3/7", execute("select 2")),
            ("3/8", execute("select 3")),
        ];
        assert_eq!(told(&mut midway, &actions), [None, None, Some(1)]);
        let into = [("3/1", execute("select 1 into t")), ("3/1", execute("insert"))];
        assert_eq!(told(&mut Pipelines::default(), &into), [None, None]);
    }

    #[test]
    fn a_logged_step_under_a_millisecond_shows_that_there_is_no_threshold() {
        let mut pipelines = Pipelines::default();
        let of = |pipelines: &mut Pipelines| {
            pipelines.of(&execute("insert"), Source::Duration, Vxid::logged(b"3/1"))
        };
        pipelines.saw_duration(1000);
        assert_eq!(of(&mut pipelines), None);
        pipelines.saw_duration(999);
        assert_eq!(of(&mut pipelines), Some(1));
        pipelines.missed_one();
        assert_eq!(of(&mut pipelines), None);
    }
}
