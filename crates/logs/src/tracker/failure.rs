//! Handles errors, which finish the open action or are the only record of an action.

use howdah_log_input::LogSeverity;
use howdah_traffic::{
    ActionRef, BoundRef, Hashed, OutcomeRef, ParameterRef, ParametersRef, Source, Timestamp,
};
use memchr::memmem;

use super::{
    SessionTable, TextDecoders, is_client,
    message::without_position,
    output::EventOutput,
    parameters,
    session::{LastLoggedStep, StepKind, TrackedSession},
    steps::{emit_named_parse, emit_named_steps, no_values, query_id, simple, step_kind},
    vxid::Vxid,
};
use crate::{
    record::LogRecord,
    summary::{ImportSummary, LogFacts},
};

impl SessionTable {
    /// Handles an error. `slot` is that of the session, if the session is known.
    pub(super) fn handle_failure(
        &mut self,
        mut slot: Option<usize>,
        record: &LogRecord<'_>,
        texts: &mut TextDecoders,
        output: &mut EventOutput<'_>,
    ) {
        if !is_client(record) || record.statement().is_some_and(is_replication_command) {
            return;
        }
        // The event may contain texts of earlier records.
        output.is_ascii = false;
        let cause = TerminationCause::from_record(record);
        cause.count(&mut output.summary.facts);
        let outcome = outcome(record);
        let known = slot.and_then(|at| self.get_mut(at));
        let is_handled = known
            .is_some_and(|session| finish_if_open(session, record, outcome, output))
            || self.emit_unannounced(&mut slot, record, outcome, texts, output);
        let Some((at, session)) = slot.and_then(|at| Some((at, self.get_mut(at)?))) else { return };
        if cause == TerminationCause::Cancel && session.is_connected {
            let vxid = Vxid::parse(record.vxid());
            let draft = session.draft(record.time(), ActionRef::Cancel, Source::Session, vxid);
            output.emit_complete(session, &draft);
        }
        session.last_step.clear();
        session.bare_durations.clear();
        session.earliest_start = record.time();
        if record.severity() != LogSeverity::Error {
            let remaining = if is_handled { OutcomeRef::default() } else { outcome };
            self.close_session(at, record.time(), remaining, output);
        }
    }

    /// Emits a failed action that no earlier record contains; returns whether an event was emitted.
    fn emit_unannounced(
        &mut self,
        slot: &mut Option<usize>,
        record: &LogRecord<'_>,
        outcome: OutcomeRef<'_>,
        texts: &mut TextDecoders,
        output: &mut EventOutput<'_>,
    ) -> bool {
        let known = slot.and_then(|at| self.get_mut(at));
        let has_step = known.as_ref().is_some_and(|session| session.last_step.step().is_some());
        if record.statement().is_none() && !has_step {
            let is_connected = known.is_some_and(|session| session.is_connected);
            let is_lost = is_connected && record.severity() == LogSeverity::Error;
            output.summary.facts.errors_without_statement += u64::from(is_lost);
            return false;
        }
        if known.is_none() && self.is_unlogged_process(record) {
            return false;
        }
        let Some((at, session)) = self.acting_session(*slot, record, record.time(), output) else {
            return false;
        };
        *slot = Some(at);
        // The steps before the error are over, even if the error does not become an event.
        let previous_step = std::mem::take(&mut session.last_step);
        let name = stale_plan_name(session, record);
        let Some(action) =
            failed_action(session, &previous_step, record, &name, texts, output.summary)
        else {
            return false;
        };
        output.summary.facts.error_form += 1;
        match &action {
            ActionRef::Execute(bound) => emit_named_steps(session, bound, record, output),
            // The server logs no duration of a failed step.
            ActionRef::Bind(bound) => emit_named_parse(session, bound, record, output),
            _ => {}
        }
        let vxid = Vxid::parse(record.vxid());
        let mut draft = session.draft(record.time(), action, Source::Error, vxid);
        draft.query_id = query_id(record);
        draft.outcome = outcome;
        output.emit_complete(session, &draft);
        true
    }

    /// Whether the unknown process of a record is a parallel worker in a log without leader ids: it
    /// started while connections were logged, but its own connection was not. Workers report their
    /// leader's statement as their own.
    fn is_unlogged_process(&self, record: &LogRecord<'_>) -> bool {
        match (self.first_connected, record.session_start()) {
            (Some(first), Some(start)) => start > first,
            _ => false,
        }
    }

    /// Closes the session after a FATAL or PANIC error. A later `disconnection` message then has no
    /// effect.
    fn close_session(
        &mut self,
        slot: usize,
        time: Timestamp,
        outcome: OutcomeRef<'_>,
        output: &mut EventOutput<'_>,
    ) {
        let Some(mut session) = self.take(slot) else { return };
        output.abandon_action(&mut session);
        if session.is_connected {
            let mut draft = session.draft(time, ActionRef::Disconnect, Source::Session, None);
            draft.outcome = outcome;
            output.emit_complete(&mut session, &draft);
        }
    }
}

/// Finishes the open action with the error and returns true, if it is the action that failed.
/// Otherwise, finishes an open action without an outcome and returns false.
fn finish_if_open(
    session: &mut TrackedSession,
    record: &LogRecord<'_>,
    outcome: OutcomeRef<'_>,
    output: &mut EventOutput<'_>,
) -> bool {
    if !session.open.is_open {
        return false;
    }
    let belongs = match (session.open.action.action(), record.statement()) {
        (ActionRef::Connect, _) => {
            record.severity() == LogSeverity::Fatal
                && record.statement().is_none()
                && !is_termination(record)
        }
        (ActionRef::Call { .. }, statement) => statement.is_none(),
        (action, Some(statement)) => action.sql().is_some_and(|sql| sql.as_bytes() == statement),
        // A syntax error is found before log_statement writes the text, so the error belongs to a
        // later statement; without durations, the open statement may have ended long before.
        (_, None) => output.summary.facts.bare_durations > 0 || !is_syntax_error(record),
    };
    if !belongs {
        output.abandon_action(session);
        return false;
    }
    session.open.query_id = session.open.query_id.or(query_id(record));
    output.finish_action(session, outcome);
    true
}

fn outcome<'a>(record: &LogRecord<'a>) -> OutcomeRef<'a> {
    OutcomeRef {
        duration_us: None,
        sqlstate: record.sqlstate().filter(|code| !code.is_success()),
        error: Some(without_position(record.message())),
    }
}

/// Returns the name of the prepared statement whose Bind failed because its result has changed
/// since it was prepared. The record has only its text; prepared again, it would not fail.
///
/// Source: `RevalidateCachedQuery` in `plancache.c`.
fn stale_plan_name(session: &TrackedSession, record: &LogRecord<'_>) -> Vec<u8> {
    let is_stale = record.message() == b"cached plan must not change result type";
    let sql = record.statement().filter(|_| is_stale);
    let name = sql.and_then(|sql| session.prepared.name_of(Hashed::new(sql)));
    name.unwrap_or_default().to_vec()
}

/// Returns the failed action with its parameters. A statement of which the record has only the text
/// has `name`.
fn failed_action<'a>(
    session: &TrackedSession,
    previous_step: &'a LastLoggedStep,
    record: &LogRecord<'a>,
    name: &'a [u8],
    texts: &'a mut TextDecoders,
    summary: &mut ImportSummary,
) -> Option<ActionRef<'a>> {
    let step = previous_step
        .step()
        .filter(|_| record.statement().is_none_or(|statement| previous_step.sql() == statement));
    let known = match (record.statement(), step) {
        (_, Some(_)) => previous_step.bound(),
        (Some(statement), None) => BoundRef {
            statement: name,
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
        _ if !statement.is_empty() => ActionRef::Execute(known),
        // The step is unknown only in a stderr log without command tags. A text with placeholders
        // cannot be a simple query.
        _ if session.bare_durations.count > 0 => ActionRef::Bind(known),
        _ if howdah_sql::placeholder_count(sql.as_bytes()) > 0 => ActionRef::Execute(known),
        _ => simple(sql),
    })
}

/// Returns the failed action that the portal named in CONTEXT identifies.
fn failed_portal<'a>(
    context: &PortalContext<'a>,
    bound: BoundRef<'a>,
    texts: &'a mut TextDecoders,
    summary: &mut ImportSummary,
) -> ActionRef<'a> {
    let portal = context.portal;
    match context.values {
        PortalValues::All(list) => {
            let parameters = texts.values.parse_list(list, &mut texts.error_limit);
            summary.facts.truncated_values += parameters.map_or(0, |values| values.truncated());
            ActionRef::Execute(BoundRef { portal, parameters, ..bound })
        }
        PortalValues::One(one) => {
            let parameters = single_value(one, bound.sql.as_bytes(), texts);
            ActionRef::Bind(BoundRef { portal, parameters, ..bound })
        }
    }
}

/// Returns the value on which Bind failed, if it is the statement's only value and was not cut.
fn single_value<'a>(
    text: &'a [u8],
    sql: &[u8],
    texts: &'a mut TextDecoders,
) -> Option<ParametersRef<'a>> {
    let (number, rest) = parameters::parse_name(text)?;
    let value = texts.values.parse_single(rest, &mut texts.error_limit)?;
    let is_whole = matches!(value.at(0), Some(ParameterRef::Value(_)));
    let is_only = number == 1 && memmem::find(sql, b"$2").is_none();
    (is_whole && is_only).then_some(value)
}

/// The portal named in CONTEXT.
///
/// Source: `ParamsErrorCallback` in `params.c`, `bind_param_error_callback` in `postgres.c`.
struct PortalContext<'a> {
    portal: &'a [u8],
    values: PortalValues<'a>,
}

enum PortalValues<'a> {
    /// `with parameters:` followed by the whole list.
    All(&'a [u8]),
    /// `parameter` followed by the value that could not be read.
    One(&'a [u8]),
}

impl<'a> PortalContext<'a> {
    /// Finds the line about a portal. Lines about functions and statements may precede it.
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

/// The reason why the server or a user terminated a statement or session, if either did.
///
/// Source: `ProcessInterrupts` in `postgres.c`. Only the text distinguishes all causes: several
/// have the SQLSTATE 57014 (55P03 for locks), and a stderr log may have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TerminationCause {
    /// A user cancelled the statement.
    Cancel,
    StatementTimeout,
    LockTimeout,
    SessionTimeout,
    RecoveryConflict,
    /// Anything else: usually the statement failed by itself.
    Other,
}

impl TerminationCause {
    fn from_record(record: &LogRecord<'_>) -> Self {
        let rest = match record.severity() {
            LogSeverity::Error => record.message().strip_prefix(b"canceling statement due to "),
            _ => record.message().strip_prefix(b"terminating connection due to "),
        };
        match (record.severity(), rest) {
            (LogSeverity::Error, Some(b"user request")) => Self::Cancel,
            (LogSeverity::Error, Some(b"statement timeout")) => Self::StatementTimeout,
            (LogSeverity::Error, Some(b"lock timeout")) => Self::LockTimeout,
            (_, Some(b"conflict with recovery")) => Self::RecoveryConflict,
            (_, Some(why)) if why.ends_with(b" timeout") => Self::SessionTimeout,
            _ => Self::Other,
        }
    }

    fn count(self, facts: &mut LogFacts) {
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

/// Whether the error reports that the server terminates the connection.
fn is_termination(record: &LogRecord<'_>) -> bool {
    record.message().starts_with(b"terminating connection")
}

fn is_syntax_error(record: &LogRecord<'_>) -> bool {
    match record.sqlstate() {
        Some(code) => code.as_str() == "42601",
        None => record.message().starts_with(b"syntax error"),
    }
}

/// Whether a statement is a command of the replication protocol.
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
