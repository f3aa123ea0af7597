//! The effect of whole statements, by kind of statement. Kinds that are not listed here count as
//! writes.

use pg_query::{
    NodeEnum,
    protobuf::{
        CopyStmt, DefElem, DiscardMode, ExplainStmt, LockStmt, Node, ParseResult,
        TransactionStmtKind as Transaction,
    },
};

use super::{
    Effect, NameKind, NameUse, SessionObject, SideEffectFree, StatementEffect, is_side_effect_free,
    tree::node_effect,
};

/// Returns the combined effect of all statements of a text, with `allows_writes` not yet
/// determined.
pub(super) fn classify_all(tree: &ParseResult) -> StatementEffect {
    let mut judgement =
        StatementEffect { effect: Effect::ReadOnly, names: Vec::new(), allows_writes: false };
    for statement in tree.stmts.iter().filter_map(|raw| raw.stmt.as_deref()) {
        let effect = classify_statement(statement, &mut judgement.names, &is_side_effect_free);
        if judgement.effect == Effect::ReadOnly {
            judgement.effect = effect;
        }
    }
    judgement
}

/// Returns the effect of one statement, and appends its uses of names to `names`.
pub(super) fn classify_statement(
    statement: &Node,
    names: &mut Vec<NameUse>,
    harmless: SideEffectFree<'_>,
) -> Effect {
    let Some(kind) = &statement.node else { return Effect::Unreadable };
    match kind {
        NodeEnum::SelectStmt(_) => node_effect(statement, harmless),
        NodeEnum::TransactionStmt(transaction) => match transaction.kind() {
            // A prepared transaction outlives the session.
            Transaction::TransStmtPrepare
            | Transaction::TransStmtCommitPrepared
            | Transaction::TransStmtRollbackPrepared
            | Transaction::Undefined => Effect::Writes,
            _ => Effect::ReadOnly,
        },
        NodeEnum::VariableSetStmt(_)
        | NodeEnum::VariableShowStmt(_)
        | NodeEnum::ConstraintsSetStmt(_) => Effect::ReadOnly,
        NodeEnum::DiscardStmt(discard) => {
            if discard.target() == DiscardMode::DiscardAll {
                names.extend([NameKind::Statement, NameKind::Cursor].map(NameUse::DropsAll));
            }
            Effect::ReadOnly
        }
        NodeEnum::PrepareStmt(prepare) => {
            names.push(NameUse::Creates(name(NameKind::Statement, &prepare.name)));
            prepare
                .query
                .as_deref()
                .map_or(Effect::Unreadable, |query| classify_statement(query, names, harmless))
        }
        NodeEnum::ExecuteStmt(execute) => {
            names.push(NameUse::Uses(name(NameKind::Statement, &execute.name)));
            first_non_read(execute.params.iter().map(|param| node_effect(param, harmless)))
        }
        NodeEnum::DeallocateStmt(deallocate) => {
            names.push(dropped(NameKind::Statement, &deallocate.name));
            Effect::ReadOnly
        }
        NodeEnum::DeclareCursorStmt(declare) => {
            names.push(NameUse::Creates(name(NameKind::Cursor, &declare.portalname)));
            declare
                .query
                .as_deref()
                .map_or(Effect::Unreadable, |query| node_effect(query, harmless))
        }
        NodeEnum::FetchStmt(fetch) => {
            names.push(NameUse::Uses(name(NameKind::Cursor, &fetch.portalname)));
            Effect::ReadOnly
        }
        NodeEnum::ClosePortalStmt(close) => {
            names.push(dropped(NameKind::Cursor, &close.portalname));
            Effect::ReadOnly
        }
        NodeEnum::CopyStmt(copy) => copy_effect(copy, harmless),
        NodeEnum::ExplainStmt(explain) => explain_effect(explain, names, harmless),
        NodeEnum::LockStmt(lock) => lock_effect(lock),
        // The effect of procedures and anonymous code blocks is unknown.
        NodeEnum::CallStmt(_) | NodeEnum::DoStmt(_) => Effect::UnknownFunction,
        _ => Effect::Writes,
    }
}

fn name(sort: NameKind, name: &str) -> SessionObject {
    SessionObject { kind: sort, name: name.into() }
}

/// Returns the use of a name by `DEALLOCATE` or `CLOSE`; an empty `word` stands for `ALL`.
fn dropped(sort: NameKind, word: &str) -> NameUse {
    if word.is_empty() { NameUse::DropsAll(sort) } else { NameUse::Drops(name(sort, word)) }
}

fn first_non_read(effects: impl Iterator<Item = Effect>) -> Effect {
    effects.into_iter().find(|effect| *effect != Effect::ReadOnly).unwrap_or(Effect::ReadOnly)
}

/// Returns the effect of a COPY: `COPY … TO STDOUT` has the effect of its query, or reads a table;
/// COPY to a file or program, or from anywhere, writes.
fn copy_effect(copy: &CopyStmt, harmless: SideEffectFree<'_>) -> Effect {
    if copy.is_from || copy.is_program || !copy.filename.is_empty() {
        return Effect::Writes;
    }
    // The source is a table, a query, or a statement that writes.
    copy.query
        .as_deref()
        .map_or(Effect::ReadOnly, |query| classify_statement(query, &mut Vec::new(), harmless))
}

/// Returns the effect of an `EXPLAIN`, which runs the statement only with `ANALYZE`. `EXPLAIN
/// EXECUTE` counts as `EXECUTE`, because it uses the name of a prepared statement.
fn explain_effect(
    explain: &ExplainStmt,
    names: &mut Vec<NameUse>,
    harmless: SideEffectFree<'_>,
) -> Effect {
    let Some(query) = explain.query.as_deref() else { return Effect::Unreadable };
    let mut options = explain.options.iter().filter_map(|option| match &option.node {
        Some(NodeEnum::DefElem(option)) if option.defname == "analyze" => Some(option),
        _ => None,
    });
    let runs = options.next_back().is_some_and(|option| is_on(option));
    match &query.node {
        Some(NodeEnum::ExecuteStmt(_)) => classify_statement(query, names, harmless),
        _ if runs => classify_statement(query, names, harmless),
        _ => Effect::ReadOnly,
    }
}

/// Returns the value of a boolean option, like `defGetBoolean`; true for an invalid value.
fn is_on(option: &DefElem) -> bool {
    let off = |word: &str| ["false", "off"].iter().any(|no| word.eq_ignore_ascii_case(no));
    match option.arg.as_ref().and_then(|arg| arg.node.as_ref()) {
        Some(NodeEnum::Integer(number)) => number.ival != 0,
        Some(NodeEnum::Boolean(value)) => value.boolval,
        Some(NodeEnum::String(word)) => !off(&word.sval),
        _ => true,
    }
}

/// Returns the effect of a LOCK. `ACCESS SHARE` is the lock that every SELECT takes.
fn lock_effect(lock: &LockStmt) -> Effect {
    const ACCESS_SHARE: i32 = 1;
    if lock.mode == ACCESS_SHARE { Effect::ReadOnly } else { Effect::Locks }
}
