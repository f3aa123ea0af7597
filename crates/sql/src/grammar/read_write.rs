//! Detects statements that undo `default_transaction_read_only`, the setting by which a replay
//! prevents writes.
//!
//! ```text
//! begin read write                                   set transaction read write
//! start transaction read write                       set session characteristics as transaction read write
//! set [local] transaction_read_only = off            set default_transaction_read_only = off
//! reset transaction_read_only                        select set_config('transaction_read_only', 'off', true)
//! ```
//!
//! `RESET ALL`, `DISCARD ALL` and `RESET default_transaction_read_only` restore the value set at
//! login, so they do not undo it. `RESET transaction_read_only` sets it to off regardless of the
//! login (PostgreSQL 16 and later refuse it).

use pg_query::protobuf::ParseResult;
use serde_json::Value;

use super::tree::visit;

/// The settings that make transactions read-only, in lower case.
const SETTINGS: [&str; 2] = ["transaction_read_only", "default_transaction_read_only"];

/// Whether the result of [`allows_writes`] may depend on constants, and differ between texts of one
/// shape.
pub(super) fn depends_on_constants(sql: &[u8]) -> bool {
    contains(sql, b"read_only") || contains(sql, b"set_config") || contains(sql, b"u&")
}

/// Whether a text can make transactions read-write in a session that started read-only.
pub(super) fn allows_writes(sql: &[u8], tree: &ParseResult) -> bool {
    // This check saves a second walk through the tree for most texts. `u&` is included because an
    // identifier can be written with Unicode escapes, as in `u&"set\005fconfig"`.
    if !(depends_on_constants(sql) || contains(sql, b"read")) {
        return false;
    }
    let mut found = false;
    for statement in tree.stmts.iter().filter_map(|raw| raw.stmt.as_deref()) {
        let is_seen = visit(statement, &mut |kind, inner| {
            found |= match kind {
                "DefElem" => is_read_write_mode(inner),
                "VariableSetStmt" => sets_read_write(inner),
                "FuncCall" => configures_read_write(inner),
                _ => false,
            };
        });
        found |= !is_seen;
    }
    found
}

fn contains(sql: &[u8], word: &[u8]) -> bool {
    sql.windows(word.len()).any(|part| part.eq_ignore_ascii_case(word))
}

/// Whether an option of a transaction is `READ WRITE`.
fn is_read_write_mode(option: &Value) -> bool {
    option["defname"] == SETTINGS[0] && !is_on(&option["arg"])
}

/// Whether a statement is `SET` or `RESET` of one of the settings, unless its new value is
/// certainly on, or the value set at login.
fn sets_read_write(set: &Value) -> bool {
    // Values of `VariableSetKind`.
    const VALUE: u64 = 1;
    const DEFAULT: u64 = 2;
    const RESET: u64 = 5;
    let Some(name) = set["name"].as_str().and_then(setting) else { return false };
    match set["kind"].as_u64() {
        Some(VALUE) => !set["args"][0].is_object() || !is_on(&set["args"][0]),
        Some(DEFAULT | RESET) => name == SETTINGS[0],
        _ => true,
    }
}

/// Whether a call is `set_config` of one of the settings, or of a setting whose name is not a
/// constant.
fn configures_read_write(call: &Value) -> bool {
    let parts = call["funcname"].as_array().map_or(&[][..], Vec::as_slice);
    if parts.last().is_none_or(|part| part["node"]["String"]["sval"] != "set_config") {
        return false;
    }
    let arguments = call["args"].as_array().map_or(&[][..], Vec::as_slice);
    let named = |argument: &&Value| argument["node"]["NamedArgExpr"]["name"] == "setting_name";
    let name = match arguments.iter().find(named) {
        Some(argument) => &argument["node"]["NamedArgExpr"]["arg"],
        None => arguments.first().unwrap_or(&Value::Null),
    };
    constant(name).is_none_or(|name| setting(name.trim()).is_some())
}

fn setting(name: &str) -> Option<&'static str> {
    SETTINGS.into_iter().find(|setting| name.eq_ignore_ascii_case(setting))
}

/// Returns the text of a string constant, with or without a cast.
fn constant(node: &Value) -> Option<&str> {
    let node = &node["node"];
    match &node["TypeCast"] {
        Value::Null => node["AConst"]["val"]["Sval"]["sval"].as_str(),
        cast => constant(&cast["arg"]),
    }
}

/// Whether a value certainly turns a boolean setting on.
fn is_on(node: &Value) -> bool {
    let word = constant(node).is_some_and(|word| {
        ["on", "true", "yes", "1"].iter().any(|on| word.eq_ignore_ascii_case(on))
    });
    word || node["node"]["AConst"]["val"]["Ival"]["ival"] == 1
}
