//! The effect of whole statements, kind by kind. What is not named here writes.

use pg_query::{
    NodeEnum,
    protobuf::{
        CopyStmt, DefElem, DiscardMode, ExplainStmt, LockStmt, Node, ParseResult,
        TransactionStmtKind as Transaction,
    },
};

use super::{
    Effect, Judgement, Name, NameKind, NameUse, SideEffectFree, is_side_effect_free,
    tree::effect_of,
};

/// Of all statements of a text.
pub(super) fn judge_all(tree: &ParseResult) -> Judgement {
    let mut judgement =
        Judgement { effect: Effect::ReadOnly, names: Vec::new(), allows_writes: false };
    for statement in tree.stmts.iter().filter_map(|raw| raw.stmt.as_deref()) {
        let effect = judge_one(statement, &mut judgement.names, &is_side_effect_free);
        if judgement.effect == Effect::ReadOnly {
            judgement.effect = effect;
        }
    }
    judgement
}

/// Of one, whose uses of names are added.
pub(super) fn judge_one(
    statement: &Node,
    names: &mut Vec<NameUse>,
    harmless: SideEffectFree<'_>,
) -> Effect {
    let Some(kind) = &statement.node else { return Effect::Unreadable };
    match kind {
        NodeEnum::SelectStmt(_) => effect_of(statement, harmless),
        NodeEnum::TransactionStmt(transaction) => match transaction.kind() {
            // Two-phase commit outlives the session.
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
            names.push(NameUse::Makes(name(NameKind::Statement, &prepare.name)));
            prepare
                .query
                .as_deref()
                .map_or(Effect::Unreadable, |query| judge_one(query, names, harmless))
        }
        NodeEnum::ExecuteStmt(execute) => {
            names.push(NameUse::Uses(name(NameKind::Statement, &execute.name)));
            first_of(execute.params.iter().map(|param| effect_of(param, harmless)))
        }
        NodeEnum::DeallocateStmt(deallocate) => {
            names.push(dropped(NameKind::Statement, &deallocate.name));
            Effect::ReadOnly
        }
        NodeEnum::DeclareCursorStmt(declare) => {
            names.push(NameUse::Makes(name(NameKind::Cursor, &declare.portalname)));
            declare.query.as_deref().map_or(Effect::Unreadable, |query| effect_of(query, harmless))
        }
        NodeEnum::FetchStmt(fetch) => {
            names.push(NameUse::Uses(name(NameKind::Cursor, &fetch.portalname)));
            Effect::ReadOnly
        }
        NodeEnum::ClosePortalStmt(close) => {
            names.push(dropped(NameKind::Cursor, &close.portalname));
            Effect::ReadOnly
        }
        NodeEnum::CopyStmt(copy) => copied(copy, harmless),
        NodeEnum::ExplainStmt(explain) => explained(explain, names, harmless),
        NodeEnum::LockStmt(lock) => locked(lock),
        // What they run is in the server, or in a language that is not SQL.
        NodeEnum::CallStmt(_) | NodeEnum::DoStmt(_) => Effect::UnknownFunction,
        _ => Effect::Writes,
    }
}

fn name(sort: NameKind, name: &str) -> Name {
    Name { sort, name: name.into() }
}

/// `DEALLOCATE` and `CLOSE`: without a name they mean all.
fn dropped(sort: NameKind, word: &str) -> NameUse {
    if word.is_empty() { NameUse::DropsAll(sort) } else { NameUse::Drops(name(sort, word)) }
}

fn first_of(effects: impl Iterator<Item = Effect>) -> Effect {
    effects.into_iter().find(|effect| *effect != Effect::ReadOnly).unwrap_or(Effect::ReadOnly)
}

/// `COPY … TO STDOUT` reads; to a file or a program, or from anywhere, it writes.
fn copied(copy: &CopyStmt, harmless: SideEffectFree<'_>) -> Effect {
    if copy.is_from || copy.is_program || !copy.filename.is_empty() {
        return Effect::Writes;
    }
    // What is copied is a query, or a writing statement.
    copy.query
        .as_deref()
        .map_or(Effect::ReadOnly, |query| judge_one(query, &mut Vec::new(), harmless))
}

/// `EXPLAIN` plans, and runs only with `ANALYZE`.
fn explained(
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
        Some(NodeEnum::ExecuteStmt(_)) => judge_one(query, names, harmless),
        _ if runs => judge_one(query, names, harmless),
        _ => Effect::ReadOnly,
    }
}

/// The value of an option that is on or off, as `defGetBoolean` has it; on if in doubt.
fn is_on(option: &DefElem) -> bool {
    let off = |word: &str| ["false", "off"].iter().any(|no| word.eq_ignore_ascii_case(no));
    match option.arg.as_ref().and_then(|arg| arg.node.as_ref()) {
        Some(NodeEnum::Integer(number)) => number.ival != 0,
        Some(NodeEnum::Boolean(value)) => value.boolval,
        Some(NodeEnum::String(word)) => !off(&word.sval),
        _ => true,
    }
}

/// `ACCESS SHARE` is what every SELECT takes.
fn locked(lock: &LockStmt) -> Effect {
    const ACCESS_SHARE: i32 = 1;
    if lock.mode == ACCESS_SHARE { Effect::ReadOnly } else { Effect::Locks }
}
