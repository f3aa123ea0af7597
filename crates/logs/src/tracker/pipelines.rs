//! Which events of a session shared a Sync, told by its transactions.
//!
//! Outside of a transaction block the server ends its transaction at each Sync, so the messages of
//! one pipeline share a virtual transaction id and those of two never do. Inside a block Syncs leave no
//! trace. So blocks have to be known. A log holds their BEGIN, by its text, where it holds every statement;
//! and where it holds the duration of every step (`log_duration`), by that duration and its command tag.
//!
//! Source: `start_xact_command`, `finish_xact_command` and `check_log_duration` in `postgres.c`.

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
    /// It is not certain that `block` is a block, or that the next transaction is one.
    is_block_doubtful: bool,
    /// The log holds the beginning of every statement of the session, BEGIN included: `log_statement = all`.
    has_all_statements: bool,
    /// The log holds the text of every step of the session with its duration: `log_min_duration_statement = 0`.
    has_all_texts: bool,
    /// The log holds the duration of every step of the session: `log_duration`.
    has_all_durations: bool,
    /// The last execution that may have shared a Sync with the one before or after it.
    ambiguous: Option<Ambiguous>,
}

/// An execution of which the log does not tell which Sync followed it.
#[derive(Clone, Copy, Debug)]
struct Ambiguous {
    transaction: Vxid,
    /// It shares its transaction with another execution, and was counted for that.
    is_counted: bool,
}

/// Where an action stands among the pipelines of its session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Membership {
    /// The action's pipeline, if it can be told.
    pub(super) pipeline: Option<u32>,
    /// Executions, up to this one, that turn out to have Syncs of which the log does not tell.
    pub(super) unknown: u64,
}

/// A step that ended without its text in the log, by what its bare duration says.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnloggedStep<'a> {
    /// Its command tag; empty in a log without `%i`.
    pub(super) tag: &'a [u8],
    /// A Bind came right before it, so it is an Execute and not a Query.
    pub(super) is_bound: bool,
    pub(super) transaction: Option<Vxid>,
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
        self.is_block_doubtful = true;
    }

    /// The log is known to hold every statement of every session.
    #[inline]
    pub(super) fn set_all_statements(&mut self) {
        self.has_all_statements = true;
    }

    /// Whether the log is known to hold every statement of the session.
    #[inline]
    pub(super) fn has_all_statements(&self) -> bool {
        self.has_all_statements
    }

    /// The server logged a bare duration although no execution was open, which it does with `log_duration`
    /// only. `log_min_duration_statement` adds the text to a step that has not been logged.
    pub(super) fn saw_bare_duration(&mut self) {
        self.has_all_durations = true;
    }

    /// A step that ended, of which the log has the duration only.
    pub(super) fn saw_unlogged(&mut self, step: &UnloggedStep<'_>) {
        self.has_all_durations = true;
        // Outside of a block the transaction of a Query is over when its duration is logged, that of an
        // Execute only at the Sync. A block may begin anywhere in a Query of several statements.
        let may_begin = !step.is_bound || changes_blocks(step.tag);
        if may_begin && step.transaction.is_some() {
            self.block = step.transaction;
            self.is_block_doubtful = step.is_bound && step.tag.is_empty();
        }
    }

    /// More steps ended in this transaction than its statements account for, and the log does not tell
    /// which: one of them may have been BEGIN.
    pub(super) fn saw_unexplained(&mut self, transaction: Vxid) {
        (self.block, self.is_block_doubtful) = (Some(transaction), true);
    }

    /// The server logged the end of a step with its text although it took less than the least
    /// threshold that `log_min_duration_statement` can be set to above 0.
    pub(super) fn saw_duration(&mut self, micros: u64) {
        self.has_all_texts |= micros < LEAST_THRESHOLD_US;
    }

    /// The server logged the end of an action but not that of its Bind: it does not log every step.
    pub(super) fn missed_one(&mut self) {
        self.has_all_texts = false;
    }

    /// Where an action stands among the pipelines.
    #[inline]
    pub(super) fn of(
        &mut self,
        action: &ActionRef<'_>,
        source: Source,
        transaction: Option<Vxid>,
    ) -> Membership {
        match transaction {
            Some(transaction) => self.within(action, source, transaction),
            None => {
                Membership { pipeline: None, unknown: u64::from(is_extended_execution(action)) }
            }
        }
    }

    fn within(&mut self, action: &ActionRef<'_>, source: Source, transaction: Vxid) -> Membership {
        let transaction = Some(transaction);
        if self.block_next && self.block != transaction {
            self.block = transaction;
            self.block_next = false;
        }
        if let (ActionRef::Call { .. }, Source::Statement) = (action, source) {
            // Logged at its start by `log_statement = all` only: `HandleFunctionRequest` in `fastpath.c`.
            self.has_all_statements = true;
        }
        let Some(sql) = action.sql() else { return Membership::default() };
        let sql = sql.as_bytes();
        let is_extended = !matches!(action, ActionRef::Simple { .. } | ActionRef::Copy { .. });
        let executes = !matches!(action, ActionRef::Parse { .. } | ActionRef::Bind(_));
        if executes {
            self.has_all_statements =
                self.has_all_statements || source == Source::Statement && only_all_logs(sql);
            match block_change(sql) {
                BlockChange::None => {}
                BlockChange::Begins => {
                    (self.block, self.is_block_doubtful) = (transaction, false);
                }
                BlockChange::MayLeaveOne => {
                    (self.block, self.is_block_doubtful) = (transaction, false);
                    self.block_next = true;
                }
            }
        }
        let is_block = self.block == transaction;
        if !is_extended || is_block && !self.is_block_doubtful {
            return Membership::default();
        }
        let has_begin = self.has_all_statements || self.has_all_texts || self.has_all_durations;
        if is_block || !has_begin {
            let unknown = if executes { self.count_ambiguous(transaction) } else { 0 };
            return Membership { pipeline: None, unknown };
        }
        if self.transaction != transaction {
            self.transaction = transaction;
            self.number = self.number.saturating_add(1);
        }
        let unknown = if self.ambiguous.is_some() { self.end_ambiguous(transaction) } else { 0 };
        Membership { pipeline: Some(self.number), unknown }
    }

    /// Executions that turn out to share a transaction with this one. One that is alone in its transaction
    /// has a Sync of its own, whatever the log lacks.
    fn count_ambiguous(&mut self, transaction: Option<Vxid>) -> u64 {
        let Some(transaction) = transaction else { return 0 };
        let before = self.ambiguous.filter(|before| before.transaction == transaction);
        self.ambiguous = Some(Ambiguous { transaction, is_counted: before.is_some() });
        before.map_or(0, |before| if before.is_counted { 1 } else { 2 })
    }

    /// From here on Syncs are known. Counts an execution of this transaction that came before.
    fn end_ambiguous(&mut self, transaction: Option<Vxid>) -> u64 {
        let before = self.ambiguous.take();
        let is_new =
            |before: &Ambiguous| Some(before.transaction) == transaction && !before.is_counted;
        u64::from(before.as_ref().is_some_and(is_new))
    }
}

/// Whether an action executes a portal, which a Sync ends sooner or later.
fn is_extended_execution(action: &ActionRef<'_>) -> bool {
    matches!(action, ActionRef::Execute(_) | ActionRef::Fetch(_))
}

/// Whether a command of this tag begins a transaction block, or ends one and may begin the next
/// (`COMMIT AND CHAIN`). Without a tag it may.
fn changes_blocks(tag: &[u8]) -> bool {
    matches!(tag, b"" | b"BEGIN" | b"START TRANSACTION" | b"COMMIT" | b"ROLLBACK")
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
            pipelines.of(action, Source::Statement, Vxid::logged(vxid.as_bytes())).pipeline
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
            pipelines.of(&execute("insert"), Source::Duration, Vxid::logged(b"3/1")).pipeline
        };
        pipelines.saw_duration(1000);
        assert_eq!(of(&mut pipelines), None);
        pipelines.saw_duration(999);
        assert_eq!(of(&mut pipelines), Some(1));
        pipelines.missed_one();
        assert_eq!(of(&mut pipelines), None);
    }
    #[test]
    fn unlogged_begin_is_known_by_its_duration() {
        let transaction = Vxid::logged(b"3/1");
        let pipeline = |tag: &[u8], is_bound| {
            let mut pipelines = Pipelines::default();
            pipelines.saw_unlogged(&UnloggedStep { tag, is_bound, transaction });
            pipelines.of(&execute("insert"), Source::Statement, transaction).pipeline
        };
        assert_eq!(pipeline(b"BEGIN", false), None);
        assert_eq!(pipeline(b"BEGIN", true), None);
        assert_eq!(pipeline(b"", true), None);
        // Several statements in a Query, of which one began the transaction that is still open.
        assert_eq!(pipeline(b"SELECT", false), None);
        assert_eq!(pipeline(b"SELECT", true), Some(1));
    }

    #[test]
    fn executions_of_one_transaction_are_counted_where_their_syncs_are_unknown() {
        let unknown = |pipelines: &mut Pipelines, vxids: &[&str]| -> u64 {
            let of = |vxid: &&str| {
                let transaction = Vxid::logged(vxid.as_bytes());
                pipelines.of(&execute("insert"), Source::Statement, transaction).unknown
            };
            vxids.iter().map(of).sum()
        };
        assert_eq!(unknown(&mut Pipelines::default(), &["3/1", "3/2", "3/3"]), 0);
        assert_eq!(unknown(&mut Pipelines::default(), &["3/1", "3/1", "3/1", "3/2"]), 3);
        assert_eq!(unknown(&mut Pipelines::default(), &["", "3/1"]), 1);
        let mut midway = Pipelines::default();
        midway.joined_midway();
        midway.set_all_statements();
        assert_eq!(unknown(&mut midway, &["3/1", "3/1", "3/2", "3/2"]), 2);
    }
}
