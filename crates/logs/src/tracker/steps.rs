//! Messages about a client's steps: begun, ended, or both in one.

use howdah_traffic::{ActionRef, BoundRef, Hashed, OutcomeRef, Parameters, Source};

use super::{
    Texts,
    output::Output,
    pipelines::{LEAST_THRESHOLD_US, UnloggedStep},
    session::{Session, StepKind, UnnamedStep},
    vxid::Vxid,
};
use crate::{
    message::Step,
    names::{self, Named},
    record::Record,
    sql,
    summary::{Reason, Summary},
};

/// A step begins: `log_statement` wrote its text.
pub(super) fn begin(
    session: &mut Session,
    step: Step<'_>,
    record: &Record<'_>,
    texts: &mut Texts,
    output: &mut Output<'_>,
) {
    output.summary.facts.statement_form += 1;
    let Some(action) = action(session, step, record, texts, output) else { return };
    // Settings are those of the server, with few exceptions: what one session shows holds for all.
    if output.summary.facts.every_statement_logged {
        session.pipelines.set_all_statements();
    }
    if let ActionRef::Execute(bound) = &action {
        name_steps(session, bound, record, output);
    } else if session.unnamed.count > 0 {
        explain_steps(session, 0, record);
    }
    session.unnamed.clear();
    session.stage.clear();
    let vxid = Vxid::logged(record.vxid());
    let mut draft = session.draft(record.time(), action, Source::Statement, vxid);
    draft.query_id = query_id(record);
    output.open(session, &draft);
    output.summary.facts.every_statement_logged |= session.pipelines.has_all_statements();
    session.floor = record.time();
}

/// A duration without a text: of the open action, or of a parse or bind whose text is still to come.
pub(super) fn end_bare(
    session: &mut Session,
    micros: u64,
    record: &Record<'_>,
    output: &mut Output<'_>,
) {
    if session.is_replication {
        return;
    }
    let kind = step_kind(record);
    let is_open = session.open.is_open && session.open.held.kind().is_execution();
    if is_open && kind.is_none() {
        session.open.query_id = session.open.query_id.or(query_id(record));
        output.conclude(session, OutcomeRef { duration_us: Some(micros), ..OutcomeRef::default() });
    } else if kind.is_some() || !is_other_step(record) {
        let start = session.start_of(record.time(), micros);
        output.close(session);
        let vxid = Vxid::logged(record.vxid());
        session.pipelines.saw_bare_duration();
        session.unnamed.push(UnnamedStep { start, micros, kind, vxid });
    } else {
        // The end of an action that was not logged, and its parse and bind with it.
        session.pipelines.saw_unlogged(&UnloggedStep {
            tag: record.tag(),
            is_bound: session.unnamed.ends_in(StepKind::Bind),
            transaction: Vxid::logged(record.vxid()),
        });
        session.unnamed.clear();
    }
    session.floor = record.time();
}

/// A step ended, and this is the first and last that the log says of it.
pub(super) fn end(
    session: &mut Session,
    step: Step<'_>,
    micros: u64,
    record: &Record<'_>,
    texts: &mut Texts,
    output: &mut Output<'_>,
) {
    let facts = &mut output.summary.facts;
    match step {
        Step::Parse(_) | Step::Bind(_) => facts.parse_and_bind += 1,
        _ => facts.duration_form += 1,
    }
    let Some(action) = action(session, step, record, texts, output) else { return };
    session.unnamed.clear();
    session.pipelines.saw_duration(micros);
    let facts = &mut output.summary.facts;
    let shortest = facts.shortest_logged_us.map_or(micros, |least| least.min(micros));
    facts.shortest_logged_us = Some(shortest);
    if shortest < LEAST_THRESHOLD_US {
        look_for_bind(session, &action, output.summary);
        look_for_gaps(session, &action, record, output.summary);
    }
    session.stage.set(&action);
    let start = session.start_of(record.time(), micros);
    let vxid = Vxid::logged(record.vxid());
    let mut draft = session.draft(start, action, Source::Duration, vxid);
    draft.query_id = query_id(record);
    draft.outcome.duration_us = Some(micros);
    output.emit_whole(session, &draft);
    session.floor = record.time();
}

/// Notices when the Bind of an execution is not in the log, though the log holds durations of any
/// length: the server logs a sample.
///
/// Source: `check_log_duration` in `postgres.c`, which decides for each step anew.
fn look_for_bind(session: &mut Session, action: &ActionRef<'_>, summary: &mut Summary) {
    match action {
        ActionRef::Bind(bound) if bound.portal.is_empty() => session.is_bind_logged = true,
        ActionRef::Execute(bound)
            if bound.portal.is_empty() && !std::mem::take(&mut session.is_bind_logged) =>
        {
            summary.facts.executions_without_bind += 1;
            session.pipelines.missed_one();
        }
        _ => {}
    }
}

/// Notices transactions that are in the log in part or not at all, though no threshold kept them out.
fn look_for_gaps(
    session: &mut Session,
    action: &ActionRef<'_>,
    record: &Record<'_>,
    summary: &mut Summary,
) {
    let sql = match action {
        ActionRef::Simple { sql } => sql.as_bytes(),
        ActionRef::Execute(bound) => bound.sql.as_bytes(),
        _ => return,
    };
    let signs = session.balance.take(sql, record.vxid());
    summary.facts.broken_blocks += signs.broken_blocks;
    summary.facts.missing_transactions += signs.missing_transactions;
}

/// The query id, if the server computed one.
pub(super) fn query_id(record: &Record<'_>) -> Option<i64> {
    record.query_id().filter(|id| *id != 0)
}

/// The action that a step's text tells.
fn action<'a>(
    session: &mut Session,
    step: Step<'a>,
    record: &Record<'a>,
    texts: &'a mut Texts,
    output: &mut Output<'_>,
) -> Option<ActionRef<'a>> {
    let text = match step {
        Step::Statement(sql) => return Some(simple(sql)),
        Step::Call(function) => return Some(ActionRef::Call { function }),
        Step::Parse(text) | Step::Bind(text) | Step::Execute(text) | Step::Fetch(text) => text,
    };
    let simple = if session.known.has_colons() { None } else { texts.splits.of(text) };
    let (statement, portal, sql) = match simple {
        Some((statement, sql)) => (statement, &b""[..], sql),
        None => {
            let named = match step {
                Step::Parse(_) => names::parsed(text, &session.known),
                _ => names::bound(text, &session.known),
            };
            let Some(Named { statement, portal, sql }) = named else {
                output.summary.note(Reason::BadStep, output.place, record.message());
                return None;
            };
            (statement, portal, Hashed::new(sql))
        }
    };
    session.known.insert(statement, sql);
    if let Step::Parse(_) = step {
        return Some(ActionRef::Parse { statement, sql });
    }
    let parameters = parameters(sql.as_bytes(), record, texts, output);
    let bound = BoundRef { statement, portal, sql, parameters };
    Some(match step {
        Step::Bind(_) => ActionRef::Bind(bound),
        Step::Fetch(_) => ActionRef::Fetch(bound),
        _ => ActionRef::Execute(bound),
    })
}

/// A Query message.
pub(super) fn simple(sql: Hashed<'_>) -> ActionRef<'_> {
    match sql::copy_direction(sql.as_bytes()) {
        Some(direction) => ActionRef::Copy { sql, direction },
        None => ActionRef::Simple { sql },
    }
}

/// The values in a record's DETAIL. Where there is none, a statement without placeholders has none.
fn parameters<'a>(
    sql: &[u8],
    record: &Record<'a>,
    texts: &'a mut Texts,
    output: &mut Output<'_>,
) -> Option<Parameters<'a>> {
    // PostgreSQL 17 wrote the first letter large.
    let detail = record.detail();
    let list =
        detail.strip_prefix(b"parameters: ").or_else(|| detail.strip_prefix(b"Parameters: "));
    let Some(list) = list else { return no_values(sql) };
    let values = texts.values.list(list, &mut texts.limit);
    match values {
        Some(values) => output.summary.facts.truncated_values += values.truncated(),
        None => output.summary.note(Reason::BadParameters, output.place, detail),
    }
    values
}

/// The values of a statement of which the log shows none.
pub(super) fn no_values(sql: &[u8]) -> Option<Parameters<'static>> {
    if howdah_sql::placeholder_count(sql) > 0 { None } else { Some(Parameters::NONE) }
}

/// Which step a bare duration belongs to, by the command tag or the server's own function.
#[inline]
pub(super) fn step_kind(record: &Record<'_>) -> Option<StepKind> {
    if !is_other_step(record) {
        return None;
    }
    match (record.tag(), record.function()) {
        (b"PARSE", _) | (_, b"exec_parse_message") => Some(StepKind::Parse),
        (b"BIND", _) | (_, b"exec_bind_message") => Some(StepKind::Bind),
        _ => None,
    }
}

/// Whether a record tells of which step it is; of another than parse or bind if it has no [`step_kind`].
#[inline]
fn is_other_step(record: &Record<'_>) -> bool {
    !record.tag().is_empty() || !record.function().is_empty()
}

/// Makes events of the parse and bind that came before an execute or its failure, now that it names
/// them.
pub(super) fn name_steps(
    session: &mut Session,
    bound: &BoundRef<'_>,
    record: &Record<'_>,
    output: &mut Output<'_>,
) {
    if session.unnamed.count == 0 {
        return;
    }
    let may_parse = may_parse(session, bound);
    explain_steps(session, if may_parse { 2 } else { 1 }, record);
    let (parse, bind) = session.unnamed.take(may_parse);
    if let Some(step) = parse {
        let action = ActionRef::Parse { statement: bound.statement, sql: bound.sql };
        emit_step(session, step, action, record, output);
    }
    if let Some(step) = bind {
        emit_step(session, step, ActionRef::Bind(*bound), record, output);
    }
}

/// The same before a bind that failed: it has no duration, so what came before it is its parse.
pub(super) fn name_parse(
    session: &mut Session,
    bound: &BoundRef<'_>,
    record: &Record<'_>,
    output: &mut Output<'_>,
) {
    if session.unnamed.count == 0 {
        return;
    }
    let may_parse = may_parse(session, bound);
    explain_steps(session, usize::from(may_parse), record);
    let [_, last] = std::mem::take(&mut session.unnamed).last;
    let is_parse = |step: &UnnamedStep| match step.kind {
        Some(kind) => kind == StepKind::Parse,
        None => may_parse,
    };
    if let Some(step) = last.filter(is_parse) {
        let action = ActionRef::Parse { statement: bound.statement, sql: bound.sql };
        emit_step(session, step, action, record, output);
    }
}

/// Whether the statement was not parsed before, as far as is known.
fn may_parse(session: &Session, bound: &BoundRef<'_>) -> bool {
    bound.statement.is_empty() || session.known.is_new()
}

/// Makes an event of a step that its bare duration told of.
fn emit_step(
    session: &mut Session,
    step: UnnamedStep,
    action: ActionRef<'_>,
    record: &Record<'_>,
    output: &mut Output<'_>,
) {
    let mut draft = session.draft(step.start, action, Source::Duration, step.vxid);
    draft.outcome.duration_us = Some(step.micros);
    draft.query_id = query_id(record);
    output.emit_whole(session, &draft);
}

/// Notices when more bare durations than the `own` steps of an action come before it in its transaction.
#[inline]
fn explain_steps(session: &mut Session, own: usize, record: &Record<'_>) {
    if !session.unnamed.is_tagged()
        && let Some(transaction) = Vxid::logged(record.vxid())
        && session.unnamed.untagged_in(transaction) > own
    {
        session.pipelines.saw_unexplained(transaction);
    }
}
