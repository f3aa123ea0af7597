//! Handles messages about the start of a step, its end, or both.

use howdah_sql::ClientCopy;
use howdah_traffic::{
    ActionRef, BoundRef, CopyDirection, Hashed, OutcomeRef, ParametersRef, Source,
};

use super::{
    TextDecoders,
    message::ProtocolStep,
    names::{self, StepText},
    output::EventOutput,
    pipelines::{THRESHOLD_US_MIN, UnloggedStep},
    session::{BareStep, StepKind, TrackedSession},
    vxid::Vxid,
};
use crate::{
    record::LogRecord,
    summary::{ImportSummary, ProblemReason},
};

/// Handles the start of a step, whose text `log_statement` logged.
pub(super) fn start(
    session: &mut TrackedSession,
    step: ProtocolStep<'_>,
    record: &LogRecord<'_>,
    texts: &mut TextDecoders,
    output: &mut EventOutput<'_>,
) {
    output.summary.facts.statement_form += 1;
    let Some(action) = parse_action(session, step, record, texts, output) else { return };
    // Settings are usually server-wide, so evidence from one session applies to all.
    if output.summary.facts.every_statement_logged {
        session.pipelines.set_all_statements();
    }
    if let ActionRef::Execute(bound) = &action {
        emit_named_steps(session, bound, record, output);
    } else if session.bare_durations.count > 0 {
        check_bare_durations(session, 0, record);
    }
    session.bare_durations.clear();
    session.last_step.clear();
    let vxid = Vxid::parse(record.vxid());
    let mut draft = session.draft(record.time(), action, Source::Statement, vxid);
    draft.query_id = query_id(record);
    output.start_action(session, &draft);
    output.summary.facts.every_statement_logged |= session.pipelines.has_all_statements();
    session.earliest_start = record.time();
}

/// Handles a duration without a text, which belongs to the open action, to a parse or bind whose
/// text follows, or to an action that is not logged.
pub(super) fn finish_bare(
    session: &mut TrackedSession,
    micros: u64,
    record: &LogRecord<'_>,
    output: &mut EventOutput<'_>,
) {
    if session.is_replication {
        return;
    }
    let kind = step_kind(record);
    let is_open = session.open.is_open && session.open.action.kind().is_execution();
    if is_open && kind.is_none() {
        session.open.query_id = session.open.query_id.or(query_id(record));
        output.finish_action(
            session,
            OutcomeRef { duration_us: Some(micros), ..OutcomeRef::default() },
        );
    } else if kind.is_some() || !is_other_step(record) {
        let start = session.start_time(record.time(), micros);
        output.abandon_action(session);
        let vxid = Vxid::parse(record.vxid());
        session.pipelines.observe_bare_duration();
        session.bare_durations.push(BareStep { start, micros, kind, vxid });
    } else {
        // An unlogged action has ended, and so have its parse and bind.
        session.pipelines.observe_unlogged(&UnloggedStep {
            tag: record.tag(),
            is_bound: session.bare_durations.is_last(StepKind::Bind),
            transaction: Vxid::parse(record.vxid()),
        });
        session.bare_durations.clear();
    }
    session.earliest_start = record.time();
}

/// Handles a step that is logged only at its end.
pub(super) fn finish(
    session: &mut TrackedSession,
    step: ProtocolStep<'_>,
    micros: u64,
    record: &LogRecord<'_>,
    texts: &mut TextDecoders,
    output: &mut EventOutput<'_>,
) {
    let facts = &mut output.summary.facts;
    match step {
        ProtocolStep::Parse(_) | ProtocolStep::Bind(_) => facts.parse_and_bind += 1,
        _ => facts.duration_form += 1,
    }
    let Some(action) = parse_action(session, step, record, texts, output) else { return };
    session.bare_durations.clear();
    session.pipelines.observe_duration(micros);
    let facts = &mut output.summary.facts;
    let shortest = facts.shortest_logged_us.map_or(micros, |least| least.min(micros));
    facts.shortest_logged_us = Some(shortest);
    if shortest < THRESHOLD_US_MIN {
        check_bind(session, &action, output.summary);
        check_transactions(session, &action, record, output.summary);
    }
    session.last_step.set(&action);
    let start = session.start_time(record.time(), micros);
    let vxid = Vxid::parse(record.vxid());
    let mut draft = session.draft(start, action, Source::Duration, vxid);
    draft.query_id = query_id(record);
    draft.outcome.duration_us = Some(micros);
    output.emit_complete(session, &draft);
    session.earliest_start = record.time();
}

/// Detects that the Bind of an execution is missing although durations of any length are logged:
/// the server logs a sample.
///
/// Source: `check_log_duration` in `postgres.c`, which samples each step anew.
fn check_bind(session: &mut TrackedSession, action: &ActionRef<'_>, summary: &mut ImportSummary) {
    match action {
        ActionRef::Bind(bound) if bound.portal.is_empty() => session.is_bind_logged = true,
        ActionRef::Execute(bound)
            if bound.portal.is_empty() && !std::mem::take(&mut session.is_bind_logged) =>
        {
            summary.facts.executions_without_bind += 1;
            session.pipelines.observe_missing_bind();
        }
        _ => {}
    }
}

/// Detects transactions that are missing, partly or completely, although no duration threshold
/// explains it.
fn check_transactions(
    session: &mut TrackedSession,
    action: &ActionRef<'_>,
    record: &LogRecord<'_>,
    summary: &mut ImportSummary,
) {
    let sql = match action {
        ActionRef::Simple { sql } => sql.as_bytes(),
        ActionRef::Execute(bound) => bound.sql.as_bytes(),
        _ => return,
    };
    let evidence = session.sampling.observe(sql, record.vxid());
    summary.facts.broken_blocks += evidence.broken_blocks;
    summary.facts.missing_transactions += evidence.missing_transactions;
}

/// Returns the query id, if the server computed one.
pub(super) fn query_id(record: &LogRecord<'_>) -> Option<i64> {
    record.query_id().filter(|id| *id != 0)
}

/// Parses a step's text into an action; counts a problem and returns `None` if the text has no
/// name.
fn parse_action<'a>(
    session: &mut TrackedSession,
    step: ProtocolStep<'a>,
    record: &LogRecord<'a>,
    texts: &'a mut TextDecoders,
    output: &mut EventOutput<'_>,
) -> Option<ActionRef<'a>> {
    let text = match step {
        ProtocolStep::Statement(sql) => return Some(simple(sql)),
        ProtocolStep::Call(function) => return Some(ActionRef::Call { function }),
        ProtocolStep::Parse(text)
        | ProtocolStep::Bind(text)
        | ProtocolStep::Execute(text)
        | ProtocolStep::Fetch(text) => text,
    };
    // The log writes `name: sql` and `name/portal: sql` without quoting. While no known name has a
    // colon, the first colon ends the name, and the split of a text can be cached.
    let simple = if session.prepared.has_colons() { None } else { texts.splits.split(text) };
    let (statement, portal, sql) = match simple {
        Some((statement, sql)) => (statement, &b""[..], sql),
        None => {
            let named = match step {
                ProtocolStep::Parse(_) => names::split_parse(text, &session.prepared),
                _ => names::split_bind(text, &session.prepared),
            };
            let Some(StepText { statement, portal, sql }) = named else {
                output.summary.add_problem(
                    ProblemReason::BadStep,
                    output.position,
                    record.message(),
                );
                return None;
            };
            (statement, portal, Hashed::new(sql))
        }
    };
    session.prepared.insert(statement, sql);
    if let ProtocolStep::Parse(_) = step {
        return Some(ActionRef::Parse { statement, sql });
    }
    let parameters = parameters(sql.as_bytes(), record, texts, output);
    let bound = BoundRef { statement, portal, sql, parameters };
    Some(match step {
        ProtocolStep::Bind(_) => ActionRef::Bind(bound),
        ProtocolStep::Fetch(_) => ActionRef::Fetch(bound),
        _ => ActionRef::Execute(bound),
    })
}

/// Returns the action of a Query message.
pub(super) fn simple(sql: Hashed<'_>) -> ActionRef<'_> {
    let direction = match ClientCopy::find(sql.as_bytes()) {
        Some(ClientCopy::FromStdin) => CopyDirection::In,
        Some(ClientCopy::ToStdout) => CopyDirection::Out,
        None => return ActionRef::Simple { sql },
    };
    ActionRef::Copy { sql, direction }
}

/// Returns the values in a record's DETAIL. Without any, a statement without placeholders has no
/// parameters.
fn parameters<'a>(
    sql: &[u8],
    record: &LogRecord<'a>,
    texts: &'a mut TextDecoders,
    output: &mut EventOutput<'_>,
) -> Option<ParametersRef<'a>> {
    // PostgreSQL 17 capitalized `Parameters`.
    let detail = record.detail();
    let list =
        detail.strip_prefix(b"parameters: ").or_else(|| detail.strip_prefix(b"Parameters: "));
    let Some(list) = list else { return no_values(sql) };
    let values = texts.values.parse_list(list, &mut texts.limit);
    match values {
        Some(values) => output.summary.facts.truncated_values += values.truncated(),
        None => output.summary.add_problem(ProblemReason::BadParameters, output.position, detail),
    }
    values
}

/// Returns the parameters of a statement without logged values: none if it has no placeholders,
/// else unknown.
pub(super) fn no_values(sql: &[u8]) -> Option<ParametersRef<'static>> {
    if howdah_sql::placeholder_count(sql) > 0 { None } else { Some(ParametersRef::NONE) }
}

/// Returns the step that a record is about, if the command tag or the server function shows that it
/// is a parse or a bind.
#[inline]
pub(super) fn step_kind(record: &LogRecord<'_>) -> Option<StepKind> {
    if !is_other_step(record) {
        return None;
    }
    match (record.tag(), record.function()) {
        (b"PARSE", _) | (_, b"exec_parse_message") => Some(StepKind::Parse),
        (b"BIND", _) | (_, b"exec_bind_message") => Some(StepKind::Bind),
        _ => None,
    }
}

/// Whether a record identifies its step by a command tag or a server function. If so, and
/// [`step_kind`] returns `None`, the step is neither parse nor bind.
#[inline]
fn is_other_step(record: &LogRecord<'_>) -> bool {
    !record.tag().is_empty() || !record.function().is_empty()
}

/// Emits the parse and bind before an execute or its failure, whose record contains their names.
pub(super) fn emit_named_steps(
    session: &mut TrackedSession,
    bound: &BoundRef<'_>,
    record: &LogRecord<'_>,
    output: &mut EventOutput<'_>,
) {
    if session.bare_durations.count == 0 {
        return;
    }
    let may_parse = may_parse(session, bound);
    check_bare_durations(session, if may_parse { 2 } else { 1 }, record);
    let (parse, bind) = session.bare_durations.take_parse_and_bind(may_parse);
    if let Some(step) = parse {
        let action = ActionRef::Parse { statement: bound.statement, sql: bound.sql };
        emit_step(session, step, action, record, output);
    }
    if let Some(step) = bind {
        emit_step(session, step, ActionRef::Bind(*bound), record, output);
    }
}

/// Emits the parse before a failed bind. The bind has no duration of its own, so a bare duration
/// before it is the parse's.
pub(super) fn emit_named_parse(
    session: &mut TrackedSession,
    bound: &BoundRef<'_>,
    record: &LogRecord<'_>,
    output: &mut EventOutput<'_>,
) {
    if session.bare_durations.count == 0 {
        return;
    }
    let may_parse = may_parse(session, bound);
    check_bare_durations(session, usize::from(may_parse), record);
    let [_, last] = std::mem::take(&mut session.bare_durations).last;
    let is_parse = |step: &BareStep| match step.kind {
        Some(kind) => kind == StepKind::Parse,
        None => may_parse,
    };
    if let Some(step) = last.filter(is_parse) {
        let action = ActionRef::Parse { statement: bound.statement, sql: bound.sql };
        emit_step(session, step, action, record, output);
    }
}

/// Whether a parse of the statement may precede: the statement is unnamed, or new in the log.
fn may_parse(session: &TrackedSession, bound: &BoundRef<'_>) -> bool {
    bound.statement.is_empty() || session.prepared.is_new()
}

/// Emits a step known from its bare duration.
fn emit_step(
    session: &mut TrackedSession,
    step: BareStep,
    action: ActionRef<'_>,
    record: &LogRecord<'_>,
    output: &mut EventOutput<'_>,
) {
    let mut draft = session.draft(step.start, action, Source::Duration, step.vxid);
    draft.outcome.duration_us = Some(step.micros);
    draft.query_id = query_id(record);
    output.emit_complete(session, &draft);
}

/// Detects steps that the log does not explain: more bare durations in the action's transaction
/// than its `own` steps account for.
#[inline]
fn check_bare_durations(session: &mut TrackedSession, own: usize, record: &LogRecord<'_>) {
    if !session.bare_durations.is_tagged()
        && let Some(transaction) = Vxid::parse(record.vxid())
        && session.bare_durations.untagged_in(transaction) > own
    {
        session.pipelines.observe_unexplained(transaction);
    }
}
