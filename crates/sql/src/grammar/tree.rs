//! Searches an expression or query of any structure for side effects.
//!
//! The tree has some 270 kinds of nodes, and any of them may contain a function call or a query.
//! Code for each kind would miss kinds that PostgreSQL adds later. So `serde` converts the tree to
//! nested maps, and every entry of every map is examined.

use pg_query::protobuf::Node;
use serde_json::Value;

use super::{Effect, SideEffectFree};

/// Calls `see` for every entry of every map in `node`: `("RangeVar", its fields)`, `("relname",
/// "t")`. Returns `false` if `node` cannot be converted to maps.
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

/// Returns the combined effect of everything in a query or expression.
pub(super) fn node_effect(node: &Node, harmless: SideEffectFree<'_>) -> Effect {
    let mut worst = Effect::ReadOnly;
    let is_seen = visit(node, &mut |kind, inner| {
        worst = worse(worst, entry_effect(kind, inner, harmless));
    });
    if is_seen { worst } else { Effect::Unreadable }
}

/// Returns the effect of one map entry, which is a node with its kind, or a field with its name.
fn entry_effect(kind: &str, value: &Value, harmless: SideEffectFree<'_>) -> Effect {
    match kind {
        "SelectStmt" => Effect::ReadOnly,
        "into_clause" if !value.is_null() => Effect::Writes,
        "locking_clause" if value.as_array().is_some_and(|clauses| !clauses.is_empty()) => {
            Effect::Locks
        }
        "FuncCall" => call_effect(&value["funcname"], harmless),
        // An INSERT, UPDATE, DELETE or MERGE in a WITH; a query contains no other statements.
        kind if kind.ends_with("Stmt") => Effect::Writes,
        _ => Effect::ReadOnly,
    }
}

/// Returns the effect of a function call by name: `["lower"]` or `["pg_catalog", "lower"]`.
fn call_effect(name: &Value, harmless: SideEffectFree<'_>) -> Effect {
    let parts: Vec<&str> = name
        .as_array()
        .map_or(&[][..], Vec::as_slice)
        .iter()
        .filter_map(|part| part["node"]["String"]["sval"].as_str())
        .collect();
    if harmless(&parts) { Effect::ReadOnly } else { Effect::UnknownFunction }
}

/// Returns the effect that ranks further from read-only.
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
