//! Builds the [`RoutePlan`] of a text: whether it needs the primary, and which shards it reaches.

use howdah_sql::{
    ParameterizedText,
    grammar::{self, Effect},
};
use pg_query::{
    NodeEnum,
    protobuf::{DiscardMode, Node, TransactionStmt, TransactionStmtKind as Transaction},
};

use super::statement_scope;
use crate::{
    plan::{RoutePlan, ShardScope, Temporary},
    refusal::NoShardKey,
    role::PrimaryReason,
    settings::RouteSettings,
};

/// Analyzes a text and returns its route plan.
pub(crate) fn plan(
    sql: &[u8],
    parameterized: &ParameterizedText,
    settings: &RouteSettings,
) -> RoutePlan {
    let Some(tree) = grammar::tree(sql) else {
        return RoutePlan::unreadable(NoShardKey::Unreadable);
    };
    let mut plan = RoutePlan {
        primary: None,
        is_begin: false,
        temporary: None,
        scope: ShardScope::Free,
        is_exact: !parameterized.is_complete(),
        reads_catalog: false,
    };
    let statements: Vec<_> = tree.stmts.iter().filter_map(|raw| raw.stmt.as_deref()).collect();
    plan.is_begin = matches!(statements[..], [only] if is_begin(only));
    for statement in &statements {
        plan.primary = plan.primary.or(primary_for(statement, settings));
        plan.temporary = temporary_change(statement).or(plan.temporary);
    }
    if !settings.inspects_statements() {
        return plan;
    }
    let mut reaches = Vec::with_capacity(statements.len());
    for statement in &statements {
        let found = statement_scope(statement, sql, parameterized, settings);
        plan.is_exact |= found.is_exact;
        plan.reads_catalog |= found.reads_catalog;
        reaches.push(found.scope);
    }
    plan.scope = reaches.into_iter().reduce(combine).unwrap_or(ShardScope::Free);
    plan
}

/// Combines the scopes of two statements in one text, for which results of several shards cannot be
/// merged.
fn combine(one: ShardScope, other: ShardScope) -> ShardScope {
    const TOGETHER: NoShardKey =
        NoShardKey::FanOutNotAllowed("is not possible for several statements at once");
    let alone = |reach: ShardScope| match reach {
        ShardScope::Unkeyed(Ok(_)) => ShardScope::Unkeyed(Err(TOGETHER)),
        ShardScope::Keyed { table, rows, unlisted, .. } => {
            ShardScope::Keyed { table, rows, unlisted, otherwise: Err(TOGETHER) }
        }
        ShardScope::Copy(_) => ShardScope::Unkeyed(Err(TOGETHER)),
        other => other,
    };
    match (alone(one), alone(other)) {
        (ShardScope::Free, reach) | (reach, ShardScope::Free) => reach,
        (ShardScope::Unkeyed(why), _) | (_, ShardScope::Unkeyed(why)) => ShardScope::Unkeyed(why),
        (ShardScope::Unlisted { why, reads }, ShardScope::Unlisted { reads: also, .. }) => {
            ShardScope::Unlisted { why, reads: reads && also }
        }
        (
            ShardScope::Keyed { table, mut rows, unlisted, otherwise },
            ShardScope::Keyed { rows: more, unlisted: also, .. },
        ) => {
            rows.extend(more);
            ShardScope::Keyed { table, rows, unlisted: unlisted.or(also), otherwise }
        }
        (
            ShardScope::Keyed { table, rows, unlisted, otherwise },
            ShardScope::Unlisted { why, reads },
        )
        | (
            ShardScope::Unlisted { why, reads },
            ShardScope::Keyed { table, rows, unlisted, otherwise },
        ) => {
            if reads {
                ShardScope::Keyed { table, rows, unlisted: unlisted.or(Some(why)), otherwise }
            } else {
                ShardScope::Unkeyed(Err(why))
            }
        }
        (ShardScope::Copy(_), _) | (_, ShardScope::Copy(_)) => ShardScope::Unkeyed(Err(TOGETHER)),
    }
}

/// Returns the reason why a statement needs the primary; `None` if it does not.
fn primary_for(statement: &Node, settings: &RouteSettings) -> Option<PrimaryReason> {
    let node = statement.node.as_ref()?;
    let is_read = match node {
        NodeEnum::SelectStmt(_) | NodeEnum::ExplainStmt(_) | NodeEnum::CopyStmt(_) => true,
        NodeEnum::TransactionStmt(transaction) => return primary_for_transaction(transaction),
        // These statements use or change session state, which other requests must find on the same
        // server: the primary.
        NodeEnum::VariableSetStmt(_)
        | NodeEnum::VariableShowStmt(_)
        | NodeEnum::ConstraintsSetStmt(_)
        | NodeEnum::DiscardStmt(_)
        | NodeEnum::PrepareStmt(_)
        | NodeEnum::ExecuteStmt(_)
        | NodeEnum::DeallocateStmt(_)
        | NodeEnum::DeclareCursorStmt(_)
        | NodeEnum::FetchStmt(_)
        | NodeEnum::ClosePortalStmt(_)
        | NodeEnum::ListenStmt(_)
        | NodeEnum::UnlistenStmt(_)
        | NodeEnum::LoadStmt(_) => return Some(PrimaryReason::Session),
        NodeEnum::LockStmt(_) => return Some(PrimaryReason::Locks),
        _ => false,
    };
    let only_reads = |name: &[&str]| settings.functions.only_reads(name);
    match grammar::statement_effect(statement, &only_reads) {
        Effect::ReadOnly if !is_read => Some(PrimaryReason::Writes),
        Effect::ReadOnly if names_temporary(statement) => Some(PrimaryReason::Temporary),
        // EXPLAIN only reads, but EXPLAIN EXECUTE needs the session's prepared statement.
        Effect::ReadOnly => match node {
            NodeEnum::ExplainStmt(explain) => {
                let inner = explain.query.as_deref().and_then(|query| query.node.as_ref());
                matches!(inner, Some(NodeEnum::ExecuteStmt(_))).then_some(PrimaryReason::Session)
            }
            _ => None,
        },
        Effect::Locks => Some(PrimaryReason::Locks),
        Effect::UnknownFunction => Some(PrimaryReason::Function),
        Effect::Unreadable => Some(PrimaryReason::Unreadable),
        _ => Some(PrimaryReason::Writes),
    }
}

/// Returns the reason why a transaction statement needs the primary. `BEGIN READ ONLY` does not
/// need it, except for serializable transactions, which replicas do not support.
fn primary_for_transaction(transaction: &TransactionStmt) -> Option<PrimaryReason> {
    if !matches!(transaction.kind(), Transaction::TransStmtBegin | Transaction::TransStmtStart) {
        // Within a transaction, these statements go to the transaction's server anyway. `COMMIT AND
        // CHAIN` starts another transaction.
        return Some(PrimaryReason::Transaction);
    }
    let mut reads_only = false;
    let mut is_serializable = false;
    for option in &transaction.options {
        let Some(NodeEnum::DefElem(option)) = &option.node else { continue };
        let constant = option.arg.as_deref().and_then(|arg| match &arg.node {
            Some(NodeEnum::AConst(constant)) => constant.val.as_ref(),
            _ => None,
        });
        use pg_query::protobuf::a_const::Val;
        match (option.defname.as_str(), constant) {
            ("transaction_read_only", Some(Val::Ival(value))) => reads_only = value.ival != 0,
            ("transaction_isolation", Some(Val::Sval(level))) => {
                is_serializable = level.sval == "serializable";
            }
            ("transaction_deferrable", _) => {}
            _ => return Some(PrimaryReason::Transaction),
        }
    }
    (!reads_only || is_serializable).then_some(PrimaryReason::Transaction)
}

fn is_begin(statement: &Node) -> bool {
    matches!(&statement.node, Some(NodeEnum::TransactionStmt(transaction))
        if matches!(transaction.kind(), Transaction::TransStmtBegin | Transaction::TransStmtStart))
}

/// Whether the statement names a schema for temporary tables anywhere.
fn names_temporary(statement: &Node) -> bool {
    let mut found = false;
    let is_seen = grammar::visit(statement, &mut |kind, value| {
        let name = value.as_str().unwrap_or_default();
        found |= matches!(kind, "schemaname" | "sval") && crate::settings::is_temporary(name);
    });
    found || !is_seen
}

/// Returns whether the statement creates a temporary object or discards all of them; `None` if it
/// does neither.
fn temporary_change(statement: &Node) -> Option<Temporary> {
    if let Some(NodeEnum::DiscardStmt(discard)) = &statement.node {
        let forgets =
            matches!(discard.target(), DiscardMode::DiscardAll | DiscardMode::DiscardTemp);
        return forgets.then_some(Temporary::Discards);
    }
    let makes = match statement.node.as_ref()? {
        NodeEnum::CreateStmt(_)
        | NodeEnum::CreateTableAsStmt(_)
        | NodeEnum::CreateSeqStmt(_)
        | NodeEnum::ViewStmt(_)
        | NodeEnum::SelectStmt(_) => {
            let mut is_temporary = false;
            grammar::visit(statement, &mut |kind, value| {
                is_temporary |= kind == "relpersistence" && value == "t";
            });
            is_temporary
        }
        _ => false,
    };
    makes.then_some(Temporary::Creates)
}
