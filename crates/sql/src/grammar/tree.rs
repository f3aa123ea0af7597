//! Looking through an expression or a query for what it might do, whatever it is made of.
//!
//! The tree has some 270 kinds of nodes and any of them may hold a function call or a query. A walk
//! written out by kind would miss the next kind that PostgreSQL grows; so the tree is turned into
//! nested maps by `serde`, and every key of every map is looked at.

use pg_query::protobuf::Node;
use serde_json::Value;

use super::{Effect, SideEffectFree};

/// Shows every entry of every map in `node`, whatever it is made of: `("RangeVar", its fields)`,
/// `("relname", "t")`. False if it cannot be looked through.
pub fn visit(node: &Node, see: &mut dyn FnMut(&str, &Value)) -> bool {
    let Ok(tree) = serde_json::to_value(node) else { return false };
    let mut stack = vec![&tree];
    while let Some(value) = stack.pop() {
        match value {
            Value::Array(entries) => stack.extend(entries),
            Value::Object(entries) => {
                for (kind, inner) in entries {
                    see(kind, inner);
                    stack.push(inner);
                }
            }
            _ => {}
        }
    }
    true
}

/// The effect of a query or expression: of everything in it.
pub(super) fn effect_of(node: &Node, harmless: SideEffectFree<'_>) -> Effect {
    let mut worst = Effect::ReadOnly;
    let is_seen = visit(node, &mut |kind, inner| {
        worst = worse(worst, effect_of_entry(kind, inner, harmless));
    });
    if is_seen { worst } else { Effect::Unreadable }
}

/// What a map says by one of its entries: a node by its kind, or a field by its name.
fn effect_of_entry(kind: &str, value: &Value, harmless: SideEffectFree<'_>) -> Effect {
    match kind {
        "SelectStmt" => Effect::ReadOnly,
        "into_clause" if !value.is_null() => Effect::Writes,
        "locking_clause" if value.as_array().is_some_and(|clauses| !clauses.is_empty()) => {
            Effect::Locks
        }
        "FuncCall" => effect_of_call(&value["funcname"], harmless),
        // INSERT, UPDATE, DELETE and MERGE below a WITH; anything else has no place in a query.
        kind if kind.ends_with("Stmt") => Effect::Writes,
        _ => Effect::ReadOnly,
    }
}

/// Of a call by name: `["lower"]` or `["pg_catalog", "lower"]`.
fn effect_of_call(name: &Value, harmless: SideEffectFree<'_>) -> Effect {
    let parts: Vec<&str> = name
        .as_array()
        .map_or(&[][..], Vec::as_slice)
        .iter()
        .filter_map(|part| part["node"]["String"]["sval"].as_str())
        .collect();
    if harmless(&parts) { Effect::ReadOnly } else { Effect::UnknownFunction }
}

/// Of two effects, the one that says more surely that it is not read-only.
fn worse(one: Effect, other: Effect) -> Effect {
    let rank = |effect: Effect| match effect {
        Effect::ReadOnly => 0,
        Effect::UnknownFunction => 1,
        Effect::Unreadable => 2,
        Effect::Locks => 3,
        Effect::Writes => 4,
    };
    if rank(other) > rank(one) { other } else { one }
}
