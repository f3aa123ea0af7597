//! Errors: the outcome of the action that is open, or all that is known of one.

use howdah_traffic::{Action, Bound, Outcome, Parameter, Source, Text};
use memchr::memmem;

use super::{
    Key, Texts, Tracker, is_client,
    session::{Session, StepKind},
    steps::{name_steps, no_values, query_id, simple, step_kind, truncated},
};
use crate::{
    message::without_position,
    parameters::{self, Limit},
    record::{Record, Severity},
    summary::{Facts, Summary},
};

impl Tracker {
    /// Takes an error.
    pub(super) fn take_failure(&mut self, key: &Key, record: &Record<'_>, summary: &mut Summary) {
        if !is_client(record) || record.statement.is_some_and(is_replication_command) {
            return;
        }
        let ending = Ending::of(record);
        ending.count(&mut summary.facts);
        let outcome = outcome(record);
        let is_taken = self.conclude_open(key, record, &outcome, summary)
            || self.fail_alone(key, record, &outcome, summary);
        if ending == Ending::Cancel
            && let Some(session) = self.sessions.get_mut(key).filter(|session| session.is_connected)
        {
            let event = session.event(record.time, Action::Cancel, Source::Session, record.vxid);
            self.output.emit_whole(session, event, summary);
        }
        if let Some(session) = self.sessions.get_mut(key) {
            session.stage = None;
            session.unnamed.clear();
            session.floor = record.time;
        }
        if record.severity != Severity::Error {
            self.end_session(key, record, outcome, is_taken, summary);
        }
    }

    /// Whether the error belongs to the open action; if so, the action is done.
    fn conclude_open(
        &mut self,
        key: &Key,
        record: &Record<'_>,
        outcome: &Outcome,
        summary: &mut Summary,
    ) -> bool {
        let Some(session) = self.sessions.get_mut(key) else { return false };
        let Some(open) = &mut session.open else { return false };
        let belongs = match (&open.action, record.statement) {
            (Action::Connect, _) => {
                record.severity == Severity::Fatal
                    && record.statement.is_none()
                    && !is_termination(record)
            }
            (Action::Call { .. }, statement) => statement.is_none(),
            (action, Some(statement)) => {
                action.sql().is_some_and(|sql| sql.as_bytes() == statement)
            }
            // A syntax error is found before log_statement writes the text, so it is that of a later
            // statement; without durations, the open one may be done long since.
            (_, None) => summary.facts.bare_durations > 0 || !is_syntax_error(record),
        };
        if !belongs {
            self.output.close(session, summary);
            return false;
        }
        open.query_id = open.query_id.or(query_id(record));
        self.output.conclude(session, outcome.clone(), summary);
        true
    }

    /// Makes an event of a failed action that the log did not tell of before. Whether there was enough for
    /// one.
    fn fail_alone(
        &mut self,
        key: &Key,
        record: &Record<'_>,
        outcome: &Outcome,
        summary: &mut Summary,
    ) -> bool {
        let stage = self.sessions.get(key).and_then(|session| session.stage.as_ref());
        if record.statement.is_none() && stage.is_none() {
            let is_connected = self.sessions.get(key).is_some_and(|session| session.is_connected);
            let is_lost = is_connected && record.severity == Severity::Error;
            summary.facts.errors_without_statement += u64::from(is_lost);
            return false;
        }
        if !self.sessions.contains_key(key) && self.is_surely_no_client(record) {
            return false;
        }
        let Some((session, rest)) = self.acting(key, record, record.time, summary) else {
            return false;
        };
        let Some(action) = failed_action(session, record, rest.texts, summary) else {
            return false;
        };
        summary.facts.error_form += 1;
        if let Action::Bind(bound) | Action::Execute(bound) = &action {
            name_steps(session, bound, record, rest.output, summary);
        }
        let mut event = session.event(record.time, action, Source::Error, record.vxid);
        event.query_id = query_id(record);
        event.outcome = outcome.clone();
        rest.output.emit_whole(session, event, summary);
        true
    }

    /// Whether an unknown process started when connections were being logged, and yet was not: a
    /// parallel worker, which reports its leader's statement as its own, where the log does not say so.
    fn is_surely_no_client(&self, record: &Record<'_>) -> bool {
        match (self.first_connected, record.session_start) {
            (Some(first), Some(start)) => start > first,
            _ => false,
        }
    }

    /// FATAL ends the session. Its line `disconnection`, if one follows, finds it gone.
    fn end_session(
        &mut self,
        key: &Key,
        record: &Record<'_>,
        outcome: Outcome,
        is_taken: bool,
        summary: &mut Summary,
    ) {
        let Some(mut session) = self.sessions.remove(key) else { return };
        self.output.close(&mut session, summary);
        if session.is_connected {
            let mut event = session.event(record.time, Action::Disconnect, Source::Session, b"");
            if !is_taken {
                event.outcome = outcome;
            }
            self.output.emit_whole(&mut session, event, summary);
        }
    }
}

fn outcome(record: &Record<'_>) -> Outcome {
    Outcome {
        duration_us: None,
        sqlstate: record.sqlstate.filter(|code| !code.is_success()),
        error: Some(Text::from(without_position(record.message))),
    }
}

/// Which action failed, and with what.
fn failed_action(
    session: &Session,
    record: &Record<'_>,
    texts: &mut Texts,
    summary: &mut Summary,
) -> Option<Action> {
    let stage = session
        .stage
        .as_ref()
        .filter(|stage| record.statement.is_none_or(|sql| stage.bound.sql.as_bytes() == sql));
    let sql = match (record.statement, stage) {
        (Some(sql), _) => texts.interner.text(sql),
        (None, Some(stage)) => stage.bound.sql.clone(),
        (None, None) => return None,
    };
    let known = stage.map_or_else(
        || Bound {
            statement: Text::default(),
            portal: Text::default(),
            parameters: no_values(&sql),
            sql: sql.clone(),
        },
        |stage| stage.bound.clone(),
    );
    if let Some(context) = PortalContext::find(record.context) {
        return Some(failed_portal(&context, known, texts, summary));
    }
    let kind = step_kind(record);
    Some(match (kind, stage) {
        (Some(StepKind::Parse), _) => Action::Parse { statement: known.statement, sql },
        (_, Some(stage)) if stage.is_bound => Action::Execute(known),
        (Some(StepKind::Bind), _) | (_, Some(_)) => Action::Bind(known),
        // Only a text log shows no step; a text with placeholders cannot be a simple query.
        _ if session.unnamed.count > 0 => Action::Bind(known),
        _ if howdah_sql::placeholder_count(sql.as_bytes()) > 0 => Action::Execute(known),
        _ => simple(sql.as_bytes(), texts),
    })
}

/// The action that failed according to the portal's own context.
fn failed_portal(
    context: &PortalContext<'_>,
    mut bound: Bound,
    texts: &mut Texts,
    summary: &mut Summary,
) -> Action {
    bound.portal = texts.interner.text(context.portal);
    match context.values {
        PortalValues::All(list) => {
            bound.parameters = parameters::list(list, &mut texts.error_limit);
            let values = bound.parameters.as_deref().unwrap_or_default();
            summary.facts.truncated_values += truncated(values);
            Action::Execute(bound)
        }
        PortalValues::One(one) => {
            bound.parameters = only_value(one, &bound.sql, &mut texts.error_limit);
            Action::Bind(bound)
        }
    }
}

/// The value that a bind failed at, if the statement has no other and the value is whole.
fn only_value(text: &[u8], sql: &Text, limit: &mut Limit) -> Option<Vec<Parameter>> {
    let (number, rest) = parameters::name(text)?;
    let (value, _) = parameters::one(rest, limit, &mut Vec::new())?;
    let is_whole = matches!(value, Parameter::Value(_));
    let is_only = number == 1 && memmem::find(sql.as_bytes(), b"$2").is_none();
    (is_whole && is_only).then(|| vec![value])
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
        let rest = match record.severity {
            Severity::Error => record.message.strip_prefix(b"canceling statement due to "),
            _ => record.message.strip_prefix(b"terminating connection due to "),
        };
        match (record.severity, rest) {
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
    record.message.starts_with(b"terminating connection")
}

fn is_syntax_error(record: &Record<'_>) -> bool {
    match record.sqlstate {
        Some(code) => code.as_str() == "42601",
        None => record.message.starts_with(b"syntax error"),
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
