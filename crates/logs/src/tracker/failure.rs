//! Errors: the outcome of the action that is open, or all that is known of one.

use howdah_traffic::{
    ActionRef, BoundRef, Hashed, OutcomeRef, ParameterRef, Parameters, Source, Timestamp,
};
use memchr::memmem;

use super::{
    Table, Texts, is_client,
    output::Output,
    session::{Session, Stage, StepKind},
    steps::{name_parse, name_steps, no_values, query_id, simple, step_kind},
    vxid::Vxid,
};
use crate::{
    message::without_position,
    parameters,
    record::{Record, Severity},
    summary::{Facts, Summary},
};

impl Table {
    /// Takes an error. `slot` is that of its session, if there is one.
    pub(super) fn take_failure(
        &mut self,
        mut slot: Option<usize>,
        record: &Record<'_>,
        texts: &mut Texts,
        output: &mut Output<'_>,
    ) {
        if !is_client(record) || record.statement().is_some_and(is_replication_command) {
            return;
        }
        // An event may hold texts of records before this one.
        output.is_ascii = false;
        let ending = Ending::of(record);
        ending.count(&mut output.summary.facts);
        let outcome = outcome(record);
        let known = slot.and_then(|at| self.session(at));
        let is_taken = known.is_some_and(|session| conclude_open(session, record, outcome, output))
            || self.fail_alone(&mut slot, record, outcome, texts, output);
        let Some((at, session)) = slot.and_then(|at| Some((at, self.session(at)?))) else { return };
        if ending == Ending::Cancel && session.is_connected {
            let vxid = Vxid::logged(record.vxid());
            let draft = session.draft(record.time(), ActionRef::Cancel, Source::Session, vxid);
            output.emit_whole(session, &draft);
        }
        session.stage.clear();
        session.unnamed.clear();
        session.floor = record.time();
        if record.severity() != Severity::Error {
            let untold = if is_taken { OutcomeRef::default() } else { outcome };
            self.end_session(at, record.time(), untold, output);
        }
    }

    /// Makes an event of a failed action that the log did not tell of before. Whether there was enough for
    /// one.
    fn fail_alone(
        &mut self,
        slot: &mut Option<usize>,
        record: &Record<'_>,
        outcome: OutcomeRef<'_>,
        texts: &mut Texts,
        output: &mut Output<'_>,
    ) -> bool {
        let known = slot.and_then(|at| self.session(at));
        let has_stage = known.as_ref().is_some_and(|session| session.stage.step().is_some());
        if record.statement().is_none() && !has_stage {
            let is_connected = known.is_some_and(|session| session.is_connected);
            let is_lost = is_connected && record.severity() == Severity::Error;
            output.summary.facts.errors_without_statement += u64::from(is_lost);
            return false;
        }
        if known.is_none() && self.is_surely_no_client(record) {
            return false;
        }
        let Some((at, session)) = self.acting(*slot, record, record.time(), output) else {
            return false;
        };
        *slot = Some(at);
        // Whatever becomes of the error, the steps before it are over.
        let stage = std::mem::take(&mut session.stage);
        let Some(action) = failed_action(session, &stage, record, texts, output.summary) else {
            return false;
        };
        output.summary.facts.error_form += 1;
        match &action {
            ActionRef::Execute(bound) => name_steps(session, bound, record, output),
            // The server logs no duration of a step that fails.
            ActionRef::Bind(bound) => name_parse(session, bound, record, output),
            _ => {}
        }
        let vxid = Vxid::logged(record.vxid());
        let mut draft = session.draft(record.time(), action, Source::Error, vxid);
        draft.query_id = query_id(record);
        draft.outcome = outcome;
        output.emit_whole(session, &draft);
        true
    }

    /// Whether an unknown process started when connections were being logged, and yet was not: a
    /// parallel worker, which reports its leader's statement as its own, where the log does not say so.
    fn is_surely_no_client(&self, record: &Record<'_>) -> bool {
        match (self.first_connected, record.session_start()) {
            (Some(first), Some(start)) => start > first,
            _ => false,
        }
    }

    /// FATAL ends the session. Its line `disconnection`, if one follows, finds it gone.
    fn end_session(
        &mut self,
        slot: usize,
        time: Timestamp,
        outcome: OutcomeRef<'_>,
        output: &mut Output<'_>,
    ) {
        let Some(mut session) = self.take_out(slot) else { return };
        output.close(&mut session);
        if session.is_connected {
            let mut draft = session.draft(time, ActionRef::Disconnect, Source::Session, None);
            draft.outcome = outcome;
            output.emit_whole(&mut session, &draft);
        }
    }
}

/// Whether the error belongs to the open action; if so, the action is done.
fn conclude_open(
    session: &mut Session,
    record: &Record<'_>,
    outcome: OutcomeRef<'_>,
    output: &mut Output<'_>,
) -> bool {
    if !session.open.is_open {
        return false;
    }
    let belongs = match (session.open.held.action(), record.statement()) {
        (ActionRef::Connect, _) => {
            record.severity() == Severity::Fatal
                && record.statement().is_none()
                && !is_termination(record)
        }
        (ActionRef::Call { .. }, statement) => statement.is_none(),
        (action, Some(statement)) => action.sql().is_some_and(|sql| sql.as_bytes() == statement),
        // A syntax error is found before log_statement writes the text, so it is that of a later
        // statement; without durations, the open one may be done long since.
        (_, None) => output.summary.facts.bare_durations > 0 || !is_syntax_error(record),
    };
    if !belongs {
        output.close(session);
        return false;
    }
    session.open.query_id = session.open.query_id.or(query_id(record));
    output.conclude(session, outcome);
    true
}

fn outcome<'a>(record: &Record<'a>) -> OutcomeRef<'a> {
    OutcomeRef {
        duration_us: None,
        sqlstate: record.sqlstate().filter(|code| !code.is_success()),
        error: Some(without_position(record.message())),
    }
}

/// Which action failed, and with what.
fn failed_action<'a>(
    session: &Session,
    stage: &'a Stage,
    record: &Record<'a>,
    texts: &'a mut Texts,
    summary: &mut Summary,
) -> Option<ActionRef<'a>> {
    let step = stage
        .step()
        .filter(|_| record.statement().is_none_or(|statement| stage.sql() == statement));
    let known = match (record.statement(), step) {
        (_, Some(_)) => stage.bound(),
        (Some(statement), None) => BoundRef {
            statement: b"",
            portal: b"",
            sql: Hashed::new(statement),
            parameters: no_values(statement),
        },
        (None, None) => return None,
    };
    if let Some(context) = PortalContext::find(record.context()) {
        return Some(failed_portal(&context, known, texts, summary));
    }
    let (statement, sql) = (known.statement, known.sql);
    Some(match (step_kind(record), step) {
        (Some(StepKind::Parse), _) => ActionRef::Parse { statement, sql },
        (_, Some(StepKind::Bind)) => ActionRef::Execute(known),
        (Some(StepKind::Bind), _) | (_, Some(_)) => ActionRef::Bind(known),
        // Only a text log shows no step; a text with placeholders cannot be a simple query.
        _ if session.unnamed.count > 0 => ActionRef::Bind(known),
        _ if howdah_sql::placeholder_count(sql.as_bytes()) > 0 => ActionRef::Execute(known),
        _ => simple(sql),
    })
}

/// The action that failed according to the portal's own context.
fn failed_portal<'a>(
    context: &PortalContext<'a>,
    bound: BoundRef<'a>,
    texts: &'a mut Texts,
    summary: &mut Summary,
) -> ActionRef<'a> {
    let portal = context.portal;
    match context.values {
        PortalValues::All(list) => {
            let parameters = texts.values.list(list, &mut texts.error_limit);
            summary.facts.truncated_values += parameters.map_or(0, |values| values.truncated());
            ActionRef::Execute(BoundRef { portal, parameters, ..bound })
        }
        PortalValues::One(one) => {
            let parameters = only_value(one, bound.sql.as_bytes(), texts);
            ActionRef::Bind(BoundRef { portal, parameters, ..bound })
        }
    }
}

/// The value that a bind failed at, if the statement has no other and the value is whole.
fn only_value<'a>(text: &'a [u8], sql: &[u8], texts: &'a mut Texts) -> Option<Parameters<'a>> {
    let (number, rest) = parameters::name(text)?;
    let value = texts.values.only(rest, &mut texts.error_limit)?;
    let is_whole = matches!(value.at(0), Some(ParameterRef::Value(_)));
    let is_only = number == 1 && memmem::find(sql, b"$2").is_none();
    (is_whole && is_only).then_some(value)
}

/// What the server says of a portal in CONTEXT.
///
/// Source: `ParamsErrorCallback` in `params.c`, `bind_param_error_callback` in `postgres.c`.
struct PortalContext<'a> {
    portal: &'a [u8],
    values: PortalValues<'a>,
}

enum PortalValues<'a> {
    /// `with parameters:` the whole list.
    All(&'a [u8]),
    /// `parameter`: the one that could not be read.
    One(&'a [u8]),
}

impl<'a> PortalContext<'a> {
    /// Finds the context's line about a portal. Lines of functions and statements may come before it.
    fn find(context: &'a [u8]) -> Option<Self> {
        let newlines = memchr::memchr_iter(b'\n', context).map(|at| at + 1);
        std::iter::once(0).chain(newlines).find_map(|at| Self::read(&context[at..]))
    }

    fn read(line: &'a [u8]) -> Option<Self> {
        if let Some(rest) = line.strip_prefix(b"unnamed portal ") {
            return Some(Self { portal: b"", values: PortalValues::read(rest)? });
        }
        let quoted = line.strip_prefix(b"portal \"")?;
        memmem::find_iter(quoted, b"\" ").find_map(|quote| {
            let values = PortalValues::read(&quoted[quote + 2..])?;
            Some(Self { portal: &quoted[..quote], values })
        })
    }
}

impl<'a> PortalValues<'a> {
    fn read(rest: &'a [u8]) -> Option<Self> {
        if let Some(list) = rest.strip_prefix(b"with parameters: ") {
            return Some(Self::All(list));
        }
        rest.strip_prefix(b"parameter ").map(Self::One)
    }
}

/// Why a statement or a session was ended from outside, if it was.
///
/// Source: `ProcessInterrupts` in `postgres.c`. All that end a statement have the SQLSTATE 57014, or
/// 55P03 for locks, so the text has to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// Somebody cancelled the statement: a client's doing.
    Cancel,
    StatementTimeout,
    LockTimeout,
    SessionTimeout,
    RecoveryConflict,
    /// It failed by itself, or an administrator ended it.
    Other,
}

impl Ending {
    fn of(record: &Record<'_>) -> Self {
        let rest = match record.severity() {
            Severity::Error => record.message().strip_prefix(b"canceling statement due to "),
            _ => record.message().strip_prefix(b"terminating connection due to "),
        };
        match (record.severity(), rest) {
            (Severity::Error, Some(b"user request")) => Self::Cancel,
            (Severity::Error, Some(b"statement timeout")) => Self::StatementTimeout,
            (Severity::Error, Some(b"lock timeout")) => Self::LockTimeout,
            (_, Some(b"conflict with recovery")) => Self::RecoveryConflict,
            (_, Some(why)) if why.ends_with(b" timeout") => Self::SessionTimeout,
            _ => Self::Other,
        }
    }

    fn count(self, facts: &mut Facts) {
        let count = match self {
            Self::Cancel => &mut facts.cancels,
            Self::StatementTimeout => &mut facts.statement_timeouts,
            Self::LockTimeout => &mut facts.lock_timeouts,
            Self::SessionTimeout => &mut facts.session_timeouts,
            Self::RecoveryConflict => &mut facts.recovery_conflicts,
            Self::Other => return,
        };
        *count += 1;
    }
}

/// Whether a session was ended that was in order until then.
fn is_termination(record: &Record<'_>) -> bool {
    record.message().starts_with(b"terminating connection")
}

fn is_syntax_error(record: &Record<'_>) -> bool {
    match record.sqlstate() {
        Some(code) => code.as_str() == "42601",
        None => record.message().starts_with(b"syntax error"),
    }
}

/// Commands of the replication protocol that are logged as statements.
fn is_replication_command(statement: &[u8]) -> bool {
    const COMMANDS: [&[u8]; 8] = [
        b"START_REPLICATION",
        b"IDENTIFY_SYSTEM",
        b"BASE_BACKUP",
        b"CREATE_REPLICATION_SLOT",
        b"DROP_REPLICATION_SLOT",
        b"ALTER_REPLICATION_SLOT",
        b"READ_REPLICATION_SLOT",
        b"TIMELINE_HISTORY",
    ];
    COMMANDS.iter().any(|command| statement.starts_with(command))
}
