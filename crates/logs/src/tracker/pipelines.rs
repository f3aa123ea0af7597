//! Determines from a session's transactions which of its events shared a Sync.
//!
//! Outside a transaction block the server ends its transaction at each Sync, so the messages of one
//! pipeline share a virtual transaction id, and those of two pipelines never do. Inside a block
//! Syncs leave no trace, so blocks must be known. A log shows their BEGIN by its text, if it
//! contains every statement, or by its duration and command tag, if it contains the duration of
//! every step (`log_duration`).
//!
//! Source: `start_xact_command`, `finish_xact_command` and `check_log_duration` in `postgres.c`.

use howdah_sql::{Lexer, SqlCommand, TokenKind, split_statements};
use howdah_traffic::{ActionRef, Source};

use super::vxid::Vxid;

/// The state by which the actions of one session are assigned to pipelines.
#[derive(Debug, Default)]
pub(super) struct SessionPipelines {
    /// Number of the last pipeline.
    number: u32,
    /// Transaction of the last pipeline.
    transaction: Option<Vxid>,
    /// The transaction that is a block, between BEGIN and COMMIT or ROLLBACK.
    block: Option<Vxid>,
    /// Whether the next transaction is a block too, or may be one.
    block_next: bool,
    /// Whether it is uncertain that `block`, or the next transaction, is a block.
    is_block_uncertain: bool,
    /// Whether the log contains the start of every statement of the session, including BEGIN:
    /// `log_statement = all`.
    has_all_statements: bool,
    /// Whether the log contains every step of the session with text and duration:
    /// `log_min_duration_statement = 0`.
    has_all_texts: bool,
    /// Whether the log contains the duration of every step of the session: `log_duration`.
    has_all_durations: bool,
    /// The last execution that may have shared a Sync with its predecessor or successor.
    ambiguous: Option<AmbiguousExecution>,
}

/// An execution whose Sync is unknown.
#[derive(Clone, Copy, Debug)]
struct AmbiguousExecution {
    transaction: Vxid,
    /// Whether the execution shares its transaction with another one, and was counted as such.
    is_counted: bool,
}

/// The pipeline of an action, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Membership {
    /// The number of the action's pipeline; `None` for a simple query, or if it is not known.
    pub(super) pipeline: Option<u32>,
    /// Number of executions, among this one and earlier ones, whose Sync has just turned out to be
    /// unknown.
    pub(super) unknown: u64,
}

/// A step that ended without its text in the log, with what its bare duration shows.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnloggedStep<'a> {
    /// Command tag of the step; empty in a log without `%i`.
    pub(super) tag: &'a [u8],
    /// Whether the step directly follows a Bind, so that it is an Execute and not a Query.
    pub(super) is_bound: bool,
    pub(super) transaction: Option<Vxid>,
}

/// Effect of a text on the surrounding transaction block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockChange {
    None,
    /// The transaction in which the text runs is a block from now on.
    Begins,
    /// The transaction after the text's own, or both, may be blocks.
    MayLeaveBlock,
}

impl SessionPipelines {
    /// Marks a session that may have been in a block when it was first seen.
    pub(super) fn mark_joined_midway(&mut self) {
        self.block_next = true;
        self.is_block_uncertain = true;
    }

    /// Marks the log as containing every statement.
    #[inline]
    pub(super) fn set_all_statements(&mut self) {
        self.has_all_statements = true;
    }

    /// Whether the log is known to contain every statement of the session.
    #[inline]
    pub(super) fn has_all_statements(&self) -> bool {
        self.has_all_statements
    }

    /// Observes a bare duration without an open execution, which the server logs only with
    /// `log_duration`: `log_min_duration_statement` would add the text.
    pub(super) fn observe_bare_duration(&mut self) {
        self.has_all_durations = true;
    }

    /// Observes the end of a step that the log shows only by its duration.
    pub(super) fn observe_unlogged(&mut self, step: &UnloggedStep<'_>) {
        self.has_all_durations = true;
        // Outside a block the transaction of a Query is over when its duration is logged; that of
        // an Execute ends only at the Sync. A block may begin anywhere in a Query of several
        // statements.
        let may_begin = !step.is_bound || changes_blocks(step.tag);
        if may_begin && step.transaction.is_some() {
            self.block = step.transaction;
            self.is_block_uncertain = step.is_bound && step.tag.is_empty();
        }
    }

    /// Observes that more steps ended in this transaction than its logged statements account for:
    /// one of the steps may have been BEGIN.
    pub(super) fn observe_unexplained(&mut self, transaction: Vxid) {
        (self.block, self.is_block_uncertain) = (Some(transaction), true);
    }

    /// Observes a step logged at its end with its text. If it took less than the lowest positive
    /// `log_min_duration_statement`, the server logs every step in this way.
    pub(super) fn observe_duration(&mut self, micros: u64) {
        self.has_all_texts |= micros < THRESHOLD_US_MIN;
    }

    /// Observes that an action was logged at its end without its Bind: the server does not log
    /// every step.
    pub(super) fn observe_missing_bind(&mut self) {
        self.has_all_texts = false;
    }

    /// Assigns an action to a pipeline.
    #[inline]
    pub(super) fn assign(
        &mut self,
        action: &ActionRef<'_>,
        source: Source,
        transaction: Option<Vxid>,
    ) -> Membership {
        match transaction {
            Some(transaction) => self.assign_in_transaction(action, source, transaction),
            None => {
                Membership { pipeline: None, unknown: u64::from(is_extended_execution(action)) }
            }
        }
    }

    fn assign_in_transaction(
        &mut self,
        action: &ActionRef<'_>,
        source: Source,
        transaction: Vxid,
    ) -> Membership {
        let transaction = Some(transaction);
        if self.block_next && self.block != transaction {
            self.block = transaction;
            self.block_next = false;
        }
        if let (ActionRef::Call { .. }, Source::Statement) = (action, source) {
            // Only `log_statement = all` logs a function call at its start: `HandleFunctionRequest`
            // in `fastpath.c`.
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
                    (self.block, self.is_block_uncertain) = (transaction, false);
                }
                BlockChange::MayLeaveBlock => {
                    (self.block, self.is_block_uncertain) = (transaction, false);
                    self.block_next = true;
                }
            }
        }
        let is_block = self.block == transaction;
        if !is_extended || is_block && !self.is_block_uncertain {
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
        let unknown =
            if self.ambiguous.is_some() { self.resolve_ambiguous(transaction) } else { 0 };
        Membership { pipeline: Some(self.number), unknown }
    }

    /// Returns the number of executions newly known to share a transaction: this one, and the one
    /// before unless it was counted. An execution that is alone in its transaction has its own
    /// Sync, regardless of gaps in the log.
    fn count_ambiguous(&mut self, transaction: Option<Vxid>) -> u64 {
        let Some(transaction) = transaction else { return 0 };
        let before = self.ambiguous.filter(|before| before.transaction == transaction);
        self.ambiguous = Some(AmbiguousExecution { transaction, is_counted: before.is_some() });
        before.map_or(0, |before| if before.is_counted { 1 } else { 2 })
    }

    /// Removes the ambiguous execution, because pipelines are known from now on. Returns the number
    /// of executions to count: 1 if the removed one is of `transaction` and was not counted, else
    /// 0.
    fn resolve_ambiguous(&mut self, transaction: Option<Vxid>) -> u64 {
        let before = self.ambiguous.take();
        let is_new = |before: &AmbiguousExecution| {
            Some(before.transaction) == transaction && !before.is_counted
        };
        u64::from(before.as_ref().is_some_and(is_new))
    }
}

/// Whether an action is an Execute of a portal, which may share its Sync with other actions.
fn is_extended_execution(action: &ActionRef<'_>) -> bool {
    matches!(action, ActionRef::Execute(_) | ActionRef::Fetch(_))
}

/// Whether a command with this tag begins a transaction block, or ends one and may begin the next
/// (`COMMIT AND CHAIN`). True for an empty tag, because the command is then unknown.
fn changes_blocks(tag: &[u8]) -> bool {
    matches!(tag, b"" | b"BEGIN" | b"START TRANSACTION" | b"COMMIT" | b"ROLLBACK")
}

/// The lowest positive `log_min_duration_statement`, which is set in whole milliseconds.
pub(super) const THRESHOLD_US_MIN: u64 = 1000;

/// Whether a statement is certainly logged at its start only by `log_statement = all`, not by `mod`
/// or `ddl`.
///
/// Source: `GetCommandLogLevel` in `utility.c`. A message of several statements is logged if any of
/// them is, and `SELECT INTO` creates a table.
fn only_all_logs(sql: &[u8]) -> bool {
    let word = |name: &[u8]| {
        Lexer::new(sql)
            .any(|token| token.kind == TokenKind::Word && token.text.eq_ignore_ascii_case(name))
    };
    memchr::memchr(b';', sql.trim_ascii_end().strip_suffix(b";").unwrap_or(sql)).is_none()
        && match SqlCommand::from_sql(sql) {
            SqlCommand::Begin | SqlCommand::Commit | SqlCommand::Rollback => true,
            SqlCommand::Set | SqlCommand::Show => true,
            SqlCommand::Select => !word(b"into"),
            _ => false,
        }
}

/// Returns the effect of a text on transaction blocks.
fn block_change(sql: &[u8]) -> BlockChange {
    let text = sql.trim_ascii();
    let text = text.strip_suffix(b";").unwrap_or(text);
    if memchr::memchr(b';', text).is_none() {
        return if may_change_blocks(text) {
            statement_block_change(text)
        } else {
            BlockChange::None
        };
    }
    let mut ends = memchr::memchr_iter(b';', text);
    let may_change = |at: usize| may_change_blocks(text[at..].trim_ascii_start());
    if !may_change(0) && !ends.any(|end| may_change(end + 1)) {
        return BlockChange::None;
    }
    let changes = |one| statement_block_change(one) != BlockChange::None;
    if split_statements(text).any(changes) { BlockChange::MayLeaveBlock } else { BlockChange::None }
}

fn statement_block_change(statement: &[u8]) -> BlockChange {
    let has =
        |word: &[u8]| Lexer::new(statement).any(|token| token.text.eq_ignore_ascii_case(word));
    match SqlCommand::from_sql(statement) {
        SqlCommand::Begin => BlockChange::Begins,
        SqlCommand::Commit | SqlCommand::Rollback if has(b"chain") => BlockChange::MayLeaveBlock,
        _ => BlockChange::None,
    }
}

/// Whether a text starts like a comment, with a parenthesis, or with the first two bytes of a
/// keyword that begins or ends a block: a cheap test that most statements fail.
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
    use howdah_traffic::{BoundRef, Hashed, ParametersRef};

    use super::*;

    fn execute(sql: &str) -> ActionRef<'_> {
        ActionRef::Execute(BoundRef {
            statement: b"",
            portal: b"",
            sql: Hashed::new(sql.as_bytes()),
            parameters: Some(ParametersRef::NONE),
        })
    }

    fn simple(sql: &str) -> ActionRef<'_> {
        ActionRef::Simple { sql: Hashed::new(sql.as_bytes()) }
    }

    /// Returns the pipelines assigned to actions in their transactions.
    fn assigned_pipelines(
        pipelines: &mut SessionPipelines,
        actions: &[(&str, ActionRef<'_>)],
    ) -> Vec<Option<u32>> {
        let of = |(vxid, action): &(&str, ActionRef<'_>)| {
            pipelines.assign(action, Source::Statement, Vxid::parse(vxid.as_bytes())).pipeline
        };
        actions.iter().map(of).collect()
    }

    #[test]
    fn executes_sharing_a_transaction_share_a_pipeline() {
        let actions = [
            ("3/1", execute("select 1")),
            ("3/1", execute("insert into t values (1)")),
            ("3/2", execute("select 2")),
            ("3/3", simple("select 3")),
            ("3/4", execute("select 4")),
        ];
        let assigned = assigned_pipelines(&mut SessionPipelines::default(), &actions);
        assert_eq!(assigned, [Some(1), Some(1), Some(2), None, Some(3)]);
    }

    #[test]
    fn pipelines_inside_a_block_are_unknown() {
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
            let assigned = assigned_pipelines(&mut SessionPipelines::default(), &actions);
            assert_eq!(assigned[1], None, "{begin}");
            let is_uncertain = chained.is_some() || begin.contains("; ");
            assert_eq!(assigned[3].is_none(), is_uncertain, "{begin} {commit}");
            assert!(assigned[4].is_some(), "{begin} {commit}");
        }
    }

    #[test]
    fn pipelines_are_unknown_if_begin_may_be_missing() {
        let mod_only = [("3/1", execute("insert into t values (1)")), ("3/1", execute("delete"))];
        assert_eq!(assigned_pipelines(&mut SessionPipelines::default(), &mod_only), [None, None]);
        let mut midway = SessionPipelines::default();
        midway.mark_joined_midway();
        let actions = [
            ("3/7", execute("select 1")),
            ("3/7", execute("select 2")),
            ("3/8", execute("select 3")),
        ];
        assert_eq!(assigned_pipelines(&mut midway, &actions), [None, None, Some(1)]);
        let into = [("3/1", execute("select 1 into t")), ("3/1", execute("insert"))];
        assert_eq!(assigned_pipelines(&mut SessionPipelines::default(), &into), [None, None]);
    }

    #[test]
    fn submillisecond_step_proves_that_there_is_no_threshold() {
        let mut pipelines = SessionPipelines::default();
        let of = |pipelines: &mut SessionPipelines| {
            pipelines.assign(&execute("insert"), Source::Duration, Vxid::parse(b"3/1")).pipeline
        };
        pipelines.observe_duration(1000);
        assert_eq!(of(&mut pipelines), None);
        pipelines.observe_duration(999);
        assert_eq!(of(&mut pipelines), Some(1));
        pipelines.observe_missing_bind();
        assert_eq!(of(&mut pipelines), None);
    }
    #[test]
    fn unlogged_begin_is_detected_by_its_duration() {
        let transaction = Vxid::parse(b"3/1");
        let pipeline = |tag: &[u8], is_bound| {
            let mut pipelines = SessionPipelines::default();
            pipelines.observe_unlogged(&UnloggedStep { tag, is_bound, transaction });
            pipelines.assign(&execute("insert"), Source::Statement, transaction).pipeline
        };
        assert_eq!(pipeline(b"BEGIN", false), None);
        assert_eq!(pipeline(b"BEGIN", true), None);
        assert_eq!(pipeline(b"", true), None);
        // A Query of several statements, one of which began the transaction that is still open.
        assert_eq!(pipeline(b"SELECT", false), None);
        assert_eq!(pipeline(b"SELECT", true), Some(1));
    }

    #[test]
    fn executions_with_unknown_syncs_are_counted() {
        let unknown = |pipelines: &mut SessionPipelines, vxids: &[&str]| -> u64 {
            let of = |vxid: &&str| {
                let transaction = Vxid::parse(vxid.as_bytes());
                pipelines.assign(&execute("insert"), Source::Statement, transaction).unknown
            };
            vxids.iter().map(of).sum()
        };
        assert_eq!(unknown(&mut SessionPipelines::default(), &["3/1", "3/2", "3/3"]), 0);
        assert_eq!(unknown(&mut SessionPipelines::default(), &["3/1", "3/1", "3/1", "3/2"]), 3);
        assert_eq!(unknown(&mut SessionPipelines::default(), &["", "3/1"]), 1);
        let mut midway = SessionPipelines::default();
        midway.mark_joined_midway();
        midway.set_all_statements();
        assert_eq!(unknown(&mut midway, &["3/1", "3/1", "3/2", "3/2"]), 2);
    }
}
