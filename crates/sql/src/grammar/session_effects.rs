//! Determines the [`SessionEffects`] of a text from its tree.

use pg_query::{
    NodeEnum,
    protobuf::{DiscardMode, Node, VariableSetKind, VariableSetStmt},
};
use serde_json::Value;

use super::{tree, visit};
use crate::{
    functions::is_builtin,
    session_effects::{FUNCTIONS_MAX, SessionEffects, StateKinds, UndetectableState},
};

/// Returns the state that a text may leave in its session, or remove from it.
///
/// ```
/// use howdah_sql::{StateKinds, grammar::session_effects};
///
/// assert!(session_effects(b"select pg_advisory_xact_lock(1)").is_none());
/// assert_eq!(session_effects(b"select pg_advisory_lock(1)").leaves, StateKinds::LOCKS);
/// assert_eq!(*session_effects(b"set work_mem = '1GB'").settings[0], *"work_mem");
/// ```
pub fn session_effects(sql: &[u8]) -> SessionEffects {
    let Some(tree) = tree(sql) else { return SessionEffects::unknown() };
    let mut effects = SessionEffects::default();
    for statement in tree.stmts.iter().filter_map(|raw| raw.stmt.as_deref()) {
        effects.add_statement(statement);
    }
    effects
}

/// `CURSOR_OPT_HOLD` in PostgreSQL's parsenodes.h.
const CURSOR_HOLD: i32 = 0x20;

impl SessionEffects {
    fn add_statement(&mut self, statement: &Node) {
        let Some(kind) = &statement.node else { return };
        let mut runs_functions = true;
        match kind {
            NodeEnum::TransactionStmt(_)
            | NodeEnum::VariableShowStmt(_)
            | NodeEnum::ConstraintsSetStmt(_)
            | NodeEnum::FetchStmt(_)
            | NodeEnum::NotifyStmt(_) => return,
            NodeEnum::VariableSetStmt(set) => return self.add_set(set),
            NodeEnum::DiscardStmt(discard) => {
                self.removes.insert(match discard.target() {
                    DiscardMode::DiscardAll => StateKinds::ALL,
                    DiscardMode::DiscardTemp => StateKinds::TEMPORARY,
                    _ => StateKinds::NONE,
                });
                return;
            }
            NodeEnum::PrepareStmt(_) => self.leaves.insert(StateKinds::PREPARED),
            // The functions of the prepared statement were seen when it was prepared.
            NodeEnum::ExecuteStmt(_) => {
                self.leaves.insert(StateKinds::LOCKS);
                self.leaves.insert(StateKinds::SETTINGS);
            }
            NodeEnum::DeallocateStmt(_) => self.removes.insert(StateKinds::PREPARED),
            NodeEnum::DeclareCursorStmt(declare) if declare.options & CURSOR_HOLD != 0 => {
                self.leaves.insert(StateKinds::CURSORS);
            }
            NodeEnum::ClosePortalStmt(_) => self.removes.insert(StateKinds::CURSORS),
            NodeEnum::ListenStmt(_) => self.leaves.insert(StateKinds::CHANNELS),
            NodeEnum::UnlistenStmt(_) => self.removes.insert(StateKinds::CHANNELS),
            NodeEnum::LoadStmt(_) => self.add_undetectable(UndetectableState::Library),
            NodeEnum::DoStmt(_) => self.add_function("do".to_owned()),
            NodeEnum::CallStmt(call) => {
                let call =
                    call.funccall.as_deref().and_then(|call| serde_json::to_value(call).ok());
                self.add_call(&call.unwrap_or(Value::Null));
            }
            NodeEnum::DropStmt(_) => self.removes.insert(StateKinds::TEMPORARY),
            // These store expressions without evaluating them.
            NodeEnum::ViewStmt(_)
            | NodeEnum::CreateFunctionStmt(_)
            | NodeEnum::CreateStmt(_)
            | NodeEnum::RuleStmt(_)
            | NodeEnum::CreatePolicyStmt(_)
            | NodeEnum::AlterPolicyStmt(_) => runs_functions = false,
            _ => {}
        }
        let is_seen = visit(statement, &mut |kind, value| match kind {
            "FuncCall" if runs_functions => self.add_call(value),
            "relpersistence" if value == "t" => self.leaves.insert(StateKinds::TEMPORARY),
            "schemaname" | "sval" if value.as_str().is_some_and(is_temporary_schema) => {
                self.leaves.insert(StateKinds::TEMPORARY);
            }
            _ => {}
        });
        if !is_seen {
            *self = Self::unknown();
        }
    }

    fn add_set(&mut self, set: &VariableSetStmt) {
        if set.is_local {
            return;
        }
        match (set.kind(), set.name.as_str()) {
            (VariableSetKind::VarSetMulti, "SESSION CHARACTERISTICS") => {
                for name in ["isolation", "read_only", "deferrable"] {
                    self.add_setting(&format!("default_transaction_{name}"));
                }
            }
            (VariableSetKind::VarSetMulti, _) => {} // SET TRANSACTION
            (VariableSetKind::VarResetAll, _) => self.removes.insert(StateKinds::SETTINGS),
            (VariableSetKind::VarReset | VariableSetKind::VarSetDefault, name) => {
                self.removes.insert(match name {
                    "session_authorization" => StateKinds::AUTHORIZATION,
                    _ => StateKinds::SETTINGS,
                });
            }
            (_, name) => self.add_setting(name),
        }
    }

    fn add_setting(&mut self, name: &str) {
        let name = name.to_ascii_lowercase().into_boxed_str();
        match &*name {
            "session_authorization" => self.leaves.insert(StateKinds::AUTHORIZATION),
            "seed" => self.add_undetectable(UndetectableState::RandomSeed),
            // These end with their transaction.
            "transaction_isolation" | "transaction_read_only" | "transaction_deferrable" => {}
            _ if self.settings.contains(&name) => {}
            _ => self.settings.push(name),
        }
    }

    fn add_undetectable(&mut self, state: UndetectableState) {
        if !self.undetectable.contains(&state) {
            self.undetectable.push(state);
        }
    }

    fn add_function(&mut self, name: String) {
        if self.functions.iter().any(|known| **known == *name) {
            return;
        }
        if self.functions.len() >= FUNCTIONS_MAX {
            return self.add_undetectable(UndetectableState::ManyFunctions);
        }
        self.functions.push(name.into());
    }

    /// Adds the effects of a function call.
    fn add_call(&mut self, call: &Value) {
        let parts: Vec<&str> = call["funcname"]
            .as_array()
            .map_or(&[][..], Vec::as_slice)
            .iter()
            .filter_map(|part| part["node"]["String"]["sval"].as_str())
            .collect();
        match *parts {
            ["pg_catalog", name] => self.add_builtin_call(name, call),
            [name] if is_builtin(name) => self.add_builtin_call(name, call),
            [.., name] if STATELESS_EXTENSION_FUNCTIONS.contains(&name) => {}
            _ => self.add_function(parts.join(".")),
        }
    }

    /// Adds the effects of a call of a function of PostgreSQL's own.
    fn add_builtin_call(&mut self, name: &str, call: &Value) {
        match name {
            "set_config" => self.add_set_config(call),
            "pg_advisory_lock"
            | "pg_advisory_lock_shared"
            | "pg_try_advisory_lock"
            | "pg_try_advisory_lock_shared" => self.leaves.insert(StateKinds::LOCKS),
            "pg_advisory_unlock" | "pg_advisory_unlock_shared" | "pg_advisory_unlock_all" => {
                self.removes.insert(StateKinds::LOCKS);
            }
            "setseed" => self.add_undetectable(UndetectableState::RandomSeed),
            "currval" | "lastval" => self.reads_sequence_state = true,
            "pg_backup_start" | "pg_start_backup" => {
                self.add_undetectable(UndetectableState::Backup);
            }
            "pg_replication_origin_session_setup" => {
                self.add_undetectable(UndetectableState::ReplicationOrigin);
            }
            // With two arguments, the slot is not temporary.
            "pg_create_physical_replication_slot"
            | "pg_create_logical_replication_slot"
            | "pg_copy_physical_replication_slot"
            | "pg_copy_logical_replication_slot"
                if arguments(call).len() > 2 =>
            {
                self.add_undetectable(UndetectableState::ReplicationSlot);
            }
            "query_to_xml"
            | "query_to_xmlschema"
            | "query_to_xml_and_xmlschema"
            | "cursor_to_xml"
            | "ts_stat" => self.add_undetectable(UndetectableState::DynamicSql),
            // With two arguments, the second is a query.
            "ts_rewrite" if arguments(call).len() == 2 => {
                self.add_undetectable(UndetectableState::DynamicSql);
            }
            _ => {}
        }
    }

    fn add_set_config(&mut self, call: &Value) {
        self.depends_on_constants = true;
        let argument = |name: &str, position: usize| {
            let named = arguments(call)
                .iter()
                .map(|argument| &argument["node"]["NamedArgExpr"])
                .find(|argument| argument["name"] == name);
            named.map_or_else(
                || arguments(call).get(position).unwrap_or(&Value::Null),
                |named| &named["arg"],
            )
        };
        if is_true(argument("is_local", 2)) {
            return;
        }
        match string_constant(argument("setting_name", 0)) {
            Some(name) => self.add_setting(name.trim()),
            None => {
                self.leaves.insert(StateKinds::SETTINGS);
                self.add_undetectable(UndetectableState::UnnamedSetting);
            }
        }
    }
}

fn arguments(call: &Value) -> &[Value] {
    call["args"].as_array().map_or(&[][..], Vec::as_slice)
}

/// Returns the text of a string constant, with or without a cast.
fn string_constant(node: &Value) -> Option<&str> {
    let node = &node["node"];
    match &node["TypeCast"] {
        Value::Null => node["AConst"]["val"]["Sval"]["sval"].as_str(),
        cast => string_constant(&cast["arg"]),
    }
}

/// Whether a node is a boolean constant that is certainly true.
fn is_true(node: &Value) -> bool {
    node["node"]["AConst"]["val"]["Boolval"]["boolval"] == true
        || string_constant(node).is_some_and(|word| {
            ["t", "true", "on", "yes", "1"].iter().any(|on| word.eq_ignore_ascii_case(on))
        })
}

/// Whether a name is that of a session's temporary schema.
fn is_temporary_schema(name: &str) -> bool {
    name.starts_with("pg_temp")
}

/// Volatile functions of the extensions that come with PostgreSQL that leave no state.
const STATELESS_EXTENSION_FUNCTIONS: [&str; 15] = [
    "gen_random_bytes",
    "gen_salt",
    "pg_buffercache_pages",
    "pg_prewarm",
    "pg_stat_statements",
    "pg_stat_statements_info",
    "pg_stat_statements_reset",
    "pgp_pub_encrypt",
    "pgp_pub_encrypt_bytea",
    "pgp_sym_encrypt",
    "pgp_sym_encrypt_bytea",
    "uuid_generate_v1",
    "uuid_generate_v1mc",
    "uuid_generate_v4",
    "pgrowlocks",
];
