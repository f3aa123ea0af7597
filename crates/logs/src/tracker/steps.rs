//! Messages about a client's steps: begun, ended, or both in one.

use howdah_traffic::{Action, Bound, Event, Outcome, Parameter, Source, Text};

use super::{
    Rest, Texts,
    output::Output,
    pipelines::LEAST_THRESHOLD_US,
    session::{Session, Stage, StepKind, UnnamedStep},
};
use crate::{
    message::Step,
    names::{self, Named},
    parameters,
    record::Record,
    sql,
    summary::{Place, Reason, Summary},
};

/// A step begins: `log_statement` wrote its text.
pub(super) fn begin(
    session: &mut Session,
    step: Step<'_>,
    record: &Record<'_>,
    rest: Rest<'_>,
    summary: &mut Summary,
    place: Place<'_>,
) {
    summary.facts.statement_form += 1;
    let Rest { output, texts } = rest;
    let Some(action) = action(session, step, record, texts, summary, place) else { return };
    if let Action::Execute(bound) = &action {
        name_steps(session, bound, record, output, summary);
    }
    session.unnamed.clear();
    session.stage = None;
    let mut event = session.event(record.time, action, Source::Statement, record.vxid);
    event.query_id = query_id(record);
    output.open(session, event, summary);
    session.floor = record.time;
}

/// A duration without a text: of the open action, or of a parse or bind whose text is still to come.
pub(super) fn end_bare(
    session: &mut Session,
    micros: u64,
    record: &Record<'_>,
    output: &mut Output,
    summary: &mut Summary,
) {
    if session.is_replication {
        return;
    }
    let kind = step_kind(record);
    let is_open = session.open.as_ref().is_some_and(|event| event.action.kind().is_execution());
    if is_open && kind.is_none() {
        if let Some(event) = &mut session.open {
            event.query_id = event.query_id.or(query_id(record));
        }
        let outcome = Outcome { duration_us: Some(micros), ..Outcome::default() };
        output.conclude(session, outcome, summary);
    } else if kind.is_some() || !is_other_step(record) {
        let start = session.start_of(record.time, micros);
        output.close(session, summary);
        let vxid = session.vxid(record.vxid);
        session.unnamed.push(UnnamedStep { start, micros, kind, vxid });
    } else {
        // The end of an action that was not logged, and its parse and bind with it.
        session.unnamed.clear();
    }
    session.floor = record.time;
}

/// A step ended, and this is the first and last that the log says of it.
pub(super) fn end(
    session: &mut Session,
    step: Step<'_>,
    micros: u64,
    record: &Record<'_>,
    rest: Rest<'_>,
    summary: &mut Summary,
    place: Place<'_>,
) {
    match step {
        Step::Parse(_) | Step::Bind(_) => summary.facts.parse_and_bind += 1,
        _ => summary.facts.duration_form += 1,
    }
    let Rest { output, texts } = rest;
    let Some(action) = action(session, step, record, texts, summary, place) else { return };
    session.unnamed.clear();
    session.pipelines.saw_duration(micros);
    let shortest = summary.facts.shortest_logged_us.map_or(micros, |least| least.min(micros));
    summary.facts.shortest_logged_us = Some(shortest);
    if shortest < LEAST_THRESHOLD_US {
        look_for_bind(session, &action, summary);
    }
    session.stage = stage(&action);
    let start = session.start_of(record.time, micros);
    let mut event = session.event(start, action, Source::Duration, record.vxid);
    event.query_id = query_id(record);
    event.outcome.duration_us = Some(micros);
    output.emit_whole(session, event, summary);
    session.floor = record.time;
}

/// Notices when the Bind of an execution is not in the log, though the log holds durations of any
/// length: the server logs a sample.
///
/// Source: `check_log_duration` in `postgres.c`, which decides for each step anew.
fn look_for_bind(session: &mut Session, action: &Action, summary: &mut Summary) {
    match action {
        Action::Bind(bound) if bound.portal.is_empty() => session.is_bind_logged = true,
        Action::Execute(bound)
            if bound.portal.is_empty() && !std::mem::take(&mut session.is_bind_logged) =>
        {
            summary.facts.executions_without_bind += 1;
            session.pipelines.missed_one();
        }
        _ => {}
    }
}

/// The query id, if the server computed one.
pub(super) fn query_id(record: &Record<'_>) -> Option<i64> {
    record.query_id.filter(|id| *id != 0)
}

/// The action that a step's text tells.
fn action(
    session: &mut Session,
    step: Step<'_>,
    record: &Record<'_>,
    texts: &mut Texts,
    summary: &mut Summary,
    place: Place<'_>,
) -> Option<Action> {
    let text = match step {
        Step::Statement(sql) => return Some(simple(sql, texts)),
        Step::Call(function) => {
            return Some(Action::Call { function: texts.interner.text(function) });
        }
        Step::Parse(text) | Step::Bind(text) | Step::Execute(text) | Step::Fetch(text) => text,
    };
    let named = match step {
        Step::Parse(_) => names::parsed(text, &session.known),
        _ => names::bound(text, &session.known),
    };
    let Some(Named { statement, portal, sql }) = named else {
        summary.note(Reason::BadStep, place, record.message);
        return None;
    };
    let mut intern = |bytes| texts.interner.text(bytes);
    let (statement, portal, sql) = (intern(statement), intern(portal), intern(sql));
    session.known.insert(&statement, &sql);
    if let Step::Parse(_) = step {
        return Some(Action::Parse { statement, sql });
    }
    let parameters = parameters(&sql, record, texts, summary, place);
    let bound = Bound { statement, portal, sql, parameters };
    Some(match step {
        Step::Bind(_) => Action::Bind(bound),
        Step::Fetch(_) => Action::Fetch(bound),
        _ => Action::Execute(bound),
    })
}

/// A Query message.
pub(super) fn simple(sql: &[u8], texts: &mut Texts) -> Action {
    let text = texts.interner.text(sql);
    match sql::copy_direction(sql) {
        Some(direction) => Action::Copy { sql: text, direction },
        None => Action::Simple { sql: text },
    }
}

/// The values in a record's DETAIL. Where there is none, a statement without placeholders has none.
fn parameters(
    sql: &Text,
    record: &Record<'_>,
    texts: &mut Texts,
    summary: &mut Summary,
    place: Place<'_>,
) -> Option<Vec<Parameter>> {
    // PostgreSQL 17 wrote the first letter large.
    let detail = record.detail;
    let list =
        detail.strip_prefix(b"parameters: ").or_else(|| detail.strip_prefix(b"Parameters: "));
    let Some(list) = list else { return no_values(sql) };
    let values = parameters::list(list, &mut texts.limit);
    match &values {
        Some(values) => summary.facts.truncated_values += truncated(values),
        None => summary.note(Reason::BadParameters, place, detail),
    }
    values
}

pub(super) fn truncated(values: &[Parameter]) -> u64 {
    values.iter().filter(|value| matches!(value, Parameter::Truncated(_))).count() as u64
}

/// The values of a statement of which the log shows none.
pub(super) fn no_values(sql: &Text) -> Option<Vec<Parameter>> {
    if howdah_sql::placeholder_count(sql.as_bytes()) > 0 { None } else { Some(Vec::new()) }
}

fn stage(action: &Action) -> Option<Stage> {
    match action {
        Action::Parse { statement, sql } => {
            let bound = Bound {
                statement: statement.clone(),
                portal: Text::default(),
                sql: sql.clone(),
                parameters: no_values(sql),
            };
            Some(Stage { is_bound: false, bound })
        }
        Action::Bind(bound) => Some(Stage { is_bound: true, bound: bound.clone() }),
        _ => None,
    }
}

/// Which step a bare duration belongs to, by the command tag or the server's own function.
pub(super) fn step_kind(record: &Record<'_>) -> Option<StepKind> {
    match (record.tag, record.function) {
        (b"PARSE", _) | (_, b"exec_parse_message") => Some(StepKind::Parse),
        (b"BIND", _) | (_, b"exec_bind_message") => Some(StepKind::Bind),
        _ => None,
    }
}

/// Whether a record certainly tells of another step than parse or bind.
fn is_other_step(record: &Record<'_>) -> bool {
    !record.tag.is_empty() || !record.function.is_empty()
}

/// Makes events of the parse and bind that came before an execute or its failure, now that it names
/// them.
pub(super) fn name_steps(
    session: &mut Session,
    bound: &Bound,
    record: &Record<'_>,
    output: &mut Output,
    summary: &mut Summary,
) {
    let may_parse = bound.statement.is_empty() || session.known.is_new();
    let (parse, bind) = session.unnamed.take(may_parse);
    let mut emit = |step: UnnamedStep, action: Action| {
        let mut event: Event = session.event_in(step.start, action, Source::Duration, step.vxid);
        event.outcome.duration_us = Some(step.micros);
        event.query_id = query_id(record);
        output.emit_whole(session, event, summary);
    };
    if let Some(step) = parse {
        let (statement, sql) = (bound.statement.clone(), bound.sql.clone());
        emit(step, Action::Parse { statement, sql });
    }
    if let Some(step) = bind {
        emit(step, Action::Bind(bound.clone()));
    }
}
