//! From a text to its [`Plan`]: whether it needs the primary, and which shards it reaches.

use howdah_sql::{
    ParameterizedText,
    grammar::{self, Effect},
};
use pg_query::{
    NodeEnum,
    protobuf::{DiscardMode, Node, TransactionStmt, TransactionStmtKind as Transaction},
};

use super::reach;
use crate::{
    plan::{Plan, ShardScope, Temporary},
    refusal::NoShardKey,
    role::Cause,
    settings::Settings,
};

/// The plan of a text.
pub(crate) fn plan(sql: &[u8], skeleton: &ParameterizedText, settings: &Settings) -> Plan {
    let Some(tree) = grammar::tree(sql) else {
        return Plan::unreadable(NoShardKey::Unreadable);
    };
    let mut plan = Plan {
        primary: None,
        is_begin: false,
        temporary: None,
        reach: ShardScope::Free,
        is_exact: !skeleton.is_whole(),
        reads_catalog: false,
    };
    let statements: Vec<_> = tree.stmts.iter().filter_map(|raw| raw.stmt.as_deref()).collect();
    plan.is_begin = matches!(statements[..], [only] if is_begin(only));
    for statement in &statements {
        plan.primary = plan.primary.or(primary_for(statement, settings));
        plan.temporary = temporary_of(statement).or(plan.temporary);
    }
    if !settings.asks_statements() {
        return plan;
    }
    let mut reaches = Vec::with_capacity(statements.len());
    for statement in &statements {
        let found = reach(statement, sql, skeleton, settings);
        plan.is_exact |= found.is_exact;
        plan.reads_catalog |= found.reads_catalog;
        reaches.push(found.reach);
    }
    plan.reach = reaches.into_iter().reduce(both).unwrap_or(ShardScope::Free);
    plan
}

/// Where two statements of one text go together.
fn both(one: ShardScope, other: ShardScope) -> ShardScope {
    const TOGETHER: NoShardKey =
        NoShardKey::Spread("is not possible for several statements at once");
    let alone = |reach: ShardScope| match reach {
        ShardScope::Keyless(Ok(_)) => ShardScope::Keyless(Err(TOGETHER)),
        ShardScope::Keyed { table, rows, unlisted, .. } => {
            ShardScope::Keyed { table, rows, unlisted, otherwise: Err(TOGETHER) }
        }
        ShardScope::Copy(_) => ShardScope::Keyless(Err(TOGETHER)),
        other => other,
    };
    match (alone(one), alone(other)) {
        (ShardScope::Free, reach) | (reach, ShardScope::Free) => reach,
        (ShardScope::Keyless(why), _) | (_, ShardScope::Keyless(why)) => ShardScope::Keyless(why),
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
        ) => match reads {
            true => ShardScope::Keyed { table, rows, unlisted: unlisted.or(Some(why)), otherwise },
            false => ShardScope::Keyless(Err(why)),
        },
        (ShardScope::Copy(_), _) | (_, ShardScope::Copy(_)) => ShardScope::Keyless(Err(TOGETHER)),
    }
}

/// Why one statement needs the primary.
fn primary_for(statement: &Node, settings: &Settings) -> Option<Cause> {
    let node = statement.node.as_ref()?;
    let is_read = match node {
        NodeEnum::SelectStmt(_) | NodeEnum::ExplainStmt(_) | NodeEnum::CopyStmt(_) => true,
        NodeEnum::TransactionStmt(transaction) => return primary_for_transaction(transaction),
        // What is left in the session has to be found again, so it is all in one place.
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
        | NodeEnum::LoadStmt(_) => return Some(Cause::Session),
        NodeEnum::LockStmt(_) => return Some(Cause::Locks),
        _ => false,
    };
    let only_reads = |name: &[&str]| settings.functions.only_reads(name);
    match grammar::effect_of_statement(statement, &only_reads) {
        Effect::ReadOnly if !is_read => Some(Cause::Writes),
        Effect::ReadOnly if names_temporary(statement) => Some(Cause::Temporary),
        // It is EXPLAIN that reads, and what it explains may be a statement of the session.
        Effect::ReadOnly => match node {
            NodeEnum::ExplainStmt(explain) => {
                let inner = explain.query.as_deref().and_then(|query| query.node.as_ref());
                matches!(inner, Some(NodeEnum::ExecuteStmt(_))).then_some(Cause::Session)
            }
            _ => None,
        },
        Effect::Locks => Some(Cause::Locks),
        Effect::UnknownFunction => Some(Cause::Function),
        Effect::Unreadable => Some(Cause::Unreadable),
        _ => Some(Cause::Writes),
    }
}

/// `BEGIN READ ONLY` promises not to write; but replicas know no serializable transactions.
fn primary_for_transaction(transaction: &TransactionStmt) -> Option<Cause> {
    if !matches!(transaction.kind(), Transaction::TransStmtBegin | Transaction::TransStmtStart) {
        // Where there is a transaction it is where that is, and `COMMIT AND CHAIN` begins another.
        return Some(Cause::Transaction);
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
            _ => return Some(Cause::Transaction),
        }
    }
    (!reads_only || is_serializable).then_some(Cause::Transaction)
}

fn is_begin(statement: &Node) -> bool {
    matches!(&statement.node, Some(NodeEnum::TransactionStmt(transaction))
        if matches!(transaction.kind(), Transaction::TransStmtBegin | Transaction::TransStmtStart))
}

/// Whether a schema of temporary tables is named anywhere.
fn names_temporary(statement: &Node) -> bool {
    let mut found = false;
    let is_seen = grammar::visit(statement, &mut |kind, value| {
        let name = value.as_str().unwrap_or_default();
        found |= matches!(kind, "schemaname" | "sval") && crate::settings::is_temporary(name);
    });
    found || !is_seen
}

/// Whether it makes something temporary that is there after its transaction.
fn temporary_of(statement: &Node) -> Option<Temporary> {
    if let Some(NodeEnum::DiscardStmt(discard)) = &statement.node {
        let forgets =
            matches!(discard.target(), DiscardMode::DiscardAll | DiscardMode::DiscardTemp);
        return forgets.then_some(Temporary::Forgets);
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
    makes.then_some(Temporary::Makes)
}
