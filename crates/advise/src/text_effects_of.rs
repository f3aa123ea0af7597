//! Determines the [`TextEffects`] of a text by PostgreSQL's grammar.

use std::sync::Arc;

use howdah_sql::{
    SessionEffects, StateKinds,
    grammar::{session_effects, tree, visit},
    split_statements,
};
use pg_query::{
    NodeEnum,
    protobuf::{
        DiscardMode, DropStmt, Node, OnCommitAction, RangeVar, TransactionStmt,
        TransactionStmtKind, VariableSetKind,
    },
};
use serde_json::Value;

use crate::{
    state_kind::StateKind,
    text_effects::{LockArgument, StateName, StateRemoval, TextEffects, TextStep},
};

/// Returns the effects of a text of one or more statements.
pub(crate) fn text_effects(sql: &[u8]) -> TextEffects {
    let mut found = TextEffects { is_readable: true, ..TextEffects::default() };
    for statement in split_statements(sql).take(STATEMENTS_MAX) {
        let effects = session_effects(statement);
        let Some(parsed) = tree(statement) else {
            // The grammar rejects the text, or it was split in the wrong place.
            return TextEffects { is_readable: false, ..TextEffects::default() };
        };
        found.depends_on_constants |= effects.depends_on_constants;
        for raw in &parsed.stmts {
            if let Some(node) = raw.stmt.as_deref() {
                found.add_statement(node, &effects);
            }
        }
    }
    found
}

/// Maximum number of statements of a text that are analyzed.
const STATEMENTS_MAX: usize = 1_000;

/// The settings that servers report to their clients, and that therefore follow a client in every
/// pool mode. Not among them is `search_path`, which only PostgreSQL 18 and later report.
const REPORTED_SETTINGS: [&str; 8] = [
    "application_name",
    "client_encoding",
    "datestyle",
    "default_transaction_read_only",
    "intervalstyle",
    "scram_iterations",
    "standard_conforming_strings",
    "timezone",
];

impl TextEffects {
    /// Adds the effects of a statement. `effects` are what `howdah_sql` knows of it.
    fn add_statement(&mut self, statement: &Node, effects: &SessionEffects) {
        let Some(kind) = &statement.node else { return };
        match kind {
            NodeEnum::TransactionStmt(transaction) => {
                self.steps.extend(transaction_step(transaction));
            }
            NodeEnum::VariableSetStmt(set) if !set.is_local => match set.kind() {
                VariableSetKind::VarResetAll => self.remove_all(StateKind::Setting),
                VariableSetKind::VarReset | VariableSetKind::VarSetDefault => {
                    self.remove(match set.name.as_str() {
                        "session_authorization" => {
                            StateRemoval::AllOfKind(StateKind::Authorization)
                        }
                        name => {
                            StateRemoval::One(StateKind::Setting, fixed(&name.to_ascii_lowercase()))
                        }
                    });
                }
                _ => {}
            },
            NodeEnum::DiscardStmt(discard) => match discard.target() {
                DiscardMode::DiscardAll => self.remove(StateRemoval::Everything),
                DiscardMode::DiscardTemp => self.remove_all(StateKind::Temporary),
                _ => {}
            },
            NodeEnum::PrepareStmt(prepare) => {
                self.add_left(StateKind::PreparedStatement, fixed(&prepare.name));
            }
            NodeEnum::DeallocateStmt(it) if it.isall => {
                self.remove_all(StateKind::PreparedStatement);
            }
            NodeEnum::DeallocateStmt(it) => {
                self.remove(StateRemoval::One(StateKind::PreparedStatement, fixed(&it.name)));
            }
            NodeEnum::DeclareCursorStmt(declare)
                if effects.leaves.intersects(StateKinds::CURSORS) =>
            {
                self.add_left(StateKind::Cursor, fixed(&declare.portalname));
            }
            NodeEnum::ClosePortalStmt(close) if close.portalname.is_empty() => {
                self.remove_all(StateKind::Cursor);
            }
            NodeEnum::ClosePortalStmt(close) => {
                self.remove(StateRemoval::One(StateKind::Cursor, fixed(&close.portalname)));
            }
            NodeEnum::ListenStmt(listen) => {
                self.add_left(StateKind::Channel, fixed(&listen.conditionname));
            }
            NodeEnum::UnlistenStmt(it) if it.conditionname.is_empty() => {
                self.remove_all(StateKind::Channel);
            }
            NodeEnum::UnlistenStmt(it) => {
                self.remove(StateRemoval::One(StateKind::Channel, fixed(&it.conditionname)));
            }
            NodeEnum::DropStmt(drop) => dropped_names(drop).for_each(|name| {
                self.remove(StateRemoval::One(StateKind::Temporary, fixed(name)));
            }),
            _ => {}
        }
        if effects.leaves.intersects(StateKinds::TEMPORARY)
            && let Some(name) = temporary_object(kind)
        {
            self.add_left(StateKind::Temporary, name);
        }
        self.add_effects(effects);
        let lock_kinds = StateKinds::LOCKS;
        if !matches!(kind, NodeEnum::ExecuteStmt(_))
            && (effects.leaves.intersects(lock_kinds) || effects.removes.intersects(lock_kinds))
        {
            self.add_locks(statement);
        }
        self.add_sequences(kind, statement, effects);
    }

    /// Adds the effects that need no names from the tree.
    fn add_effects(&mut self, effects: &SessionEffects) {
        for setting in &effects.settings {
            if !REPORTED_SETTINGS.contains(&&**setting) {
                self.add_left(StateKind::Setting, fixed(setting));
            }
        }
        if effects.leaves.intersects(StateKinds::AUTHORIZATION) {
            self.add_left(StateKind::Authorization, StateName::Unknown);
        }
        for state in &effects.undetectable {
            self.add_left(StateKind::Undetectable(*state), StateName::Unknown);
        }
        for function in &effects.functions {
            self.add_left(StateKind::Function, fixed(function));
        }
    }

    /// Adds the calls of functions for advisory locks.
    fn add_locks(&mut self, statement: &Node) {
        let (mut acquired, mut released) = (Vec::new(), Vec::new());
        visit(statement, &mut |kind, call| {
            if kind != "FuncCall" {
                return;
            }
            let name = call["funcname"].as_array().and_then(|parts| parts.last());
            let name = name.and_then(|part| part["node"]["String"]["sval"].as_str());
            match name.unwrap_or_default() {
                "pg_advisory_lock"
                | "pg_advisory_lock_shared"
                | "pg_try_advisory_lock"
                | "pg_try_advisory_lock_shared" => acquired.push(lock_name(call)),
                "pg_advisory_unlock" | "pg_advisory_unlock_shared" => {
                    released.push(StateRemoval::One(StateKind::AdvisoryLock, lock_name(call)));
                }
                "pg_advisory_unlock_all" => {
                    released.push(StateRemoval::AllOfKind(StateKind::AdvisoryLock));
                }
                _ => {}
            }
        });
        // The keys may be constants.
        self.depends_on_constants = true;
        acquired.into_iter().for_each(|name| self.add_left(StateKind::AdvisoryLock, name));
        released.into_iter().for_each(|removal| self.remove(removal));
    }

    fn add_sequences(&mut self, kind: &NodeEnum, statement: &Node, effects: &SessionEffects) {
        if effects.reads_sequence_state {
            // In one statement, nextval may precede currval.
            if calls(statement, "nextval") {
                self.steps.push(TextStep::MayAdvanceSequence);
            }
            self.steps.push(TextStep::ReadsSequence);
        }
        // A default may call nextval, and so may any function.
        let may_advance = matches!(
            kind,
            NodeEnum::InsertStmt(_)
                | NodeEnum::MergeStmt(_)
                | NodeEnum::CopyStmt(_)
                | NodeEnum::ExecuteStmt(_)
        );
        let may_insert =
            matches!(kind, NodeEnum::SelectStmt(select) if select.with_clause.is_some());
        if may_advance || may_insert || !effects.functions.is_empty() || calls(statement, "nextval")
        {
            self.steps.push(TextStep::MayAdvanceSequence);
        }
    }

    fn add_left(&mut self, kind: StateKind, name: StateName) {
        self.steps.push(TextStep::Leave(kind, name));
    }

    fn remove(&mut self, removal: StateRemoval) {
        self.steps.push(TextStep::Remove(removal));
    }

    fn remove_all(&mut self, kind: StateKind) {
        self.remove(StateRemoval::AllOfKind(kind));
    }
}

fn fixed(name: &str) -> StateName {
    StateName::Fixed(Arc::from(name))
}

fn transaction_step(transaction: &TransactionStmt) -> Option<TextStep> {
    let savepoint = || transaction.savepoint_name.clone().into_boxed_str();
    let chain = transaction.chain;
    Some(match transaction.kind() {
        TransactionStmtKind::TransStmtBegin | TransactionStmtKind::TransStmtStart => {
            TextStep::Begin
        }
        TransactionStmtKind::TransStmtCommit | TransactionStmtKind::TransStmtPrepare => {
            TextStep::Commit { chain }
        }
        TransactionStmtKind::TransStmtRollback => TextStep::Rollback { chain },
        TransactionStmtKind::TransStmtSavepoint => TextStep::Savepoint(savepoint()),
        TransactionStmtKind::TransStmtRelease => TextStep::Release(savepoint()),
        TransactionStmtKind::TransStmtRollbackTo => TextStep::RollbackTo(savepoint()),
        _ => return None,
    })
}

/// Returns the name of the temporary object that a statement creates, unless its transaction drops
/// it at its end.
fn temporary_object(kind: &NodeEnum) -> Option<StateName> {
    let is_dropped = |action: i32| action == OnCommitAction::OncommitDrop as i32;
    let relation = |relation: Option<&RangeVar>| {
        let is_temporary =
            |it: &&RangeVar| it.relpersistence == "t" || it.schemaname.starts_with("pg_temp");
        relation.filter(is_temporary).map(|it| fixed(&it.relname))
    };
    match kind {
        NodeEnum::CreateStmt(it) if !is_dropped(it.oncommit) => relation(it.relation.as_ref()),
        NodeEnum::CreateTableAsStmt(it) => {
            let into = it.into.as_ref().filter(|into| !is_dropped(into.on_commit))?;
            relation(into.rel.as_ref())
        }
        NodeEnum::SelectStmt(it) => {
            let into = it.into_clause.as_ref().filter(|into| !is_dropped(into.on_commit))?;
            relation(into.rel.as_ref())
        }
        NodeEnum::ViewStmt(it) => relation(it.view.as_ref()),
        NodeEnum::CreateSeqStmt(it) => relation(it.sequence.as_ref()),
        NodeEnum::CreateFunctionStmt(it) => {
            Some(last_name(&it.funcname).map_or(StateName::Unknown, fixed))
        }
        NodeEnum::CompositeTypeStmt(it) => relation(it.typevar.as_ref()),
        NodeEnum::CreateEnumStmt(it) => {
            Some(last_name(&it.type_name).map_or(StateName::Unknown, fixed))
        }
        NodeEnum::CreateDomainStmt(it) => {
            Some(last_name(&it.domainname).map_or(StateName::Unknown, fixed))
        }
        _ => None,
    }
}

/// Returns the last part of a name in a list of strings.
fn last_name(parts: &[Node]) -> Option<&str> {
    match &parts.last()?.node {
        Some(NodeEnum::String(part)) => Some(&part.sval),
        _ => None,
    }
}

/// Returns the last part of the names of dropped objects.
fn dropped_names(drop: &DropStmt) -> impl Iterator<Item = &str> {
    drop.objects.iter().filter_map(|object| match object.node.as_ref()? {
        NodeEnum::List(list) => last_name(&list.items),
        NodeEnum::TypeName(name) => last_name(&name.names),
        NodeEnum::ObjectWithArgs(function) => last_name(&function.objname),
        _ => None,
    })
}

/// Whether a statement calls the function.
fn calls(statement: &Node, function: &str) -> bool {
    let mut is_called = false;
    visit(statement, &mut |kind, call| {
        if kind == "FuncCall" {
            let parts = call["funcname"].as_array();
            let name = parts.and_then(|parts| parts.last());
            is_called |= name.is_some_and(|name| name["node"]["String"]["sval"] == function);
        }
    });
    is_called
}

/// Returns the name of an advisory lock: its key.
fn lock_name(call: &Value) -> StateName {
    let arguments = call["args"].as_array().map_or(&[][..], Vec::as_slice);
    let arguments: Option<Box<[LockArgument]>> = arguments.iter().map(lock_argument).collect();
    arguments.map_or(StateName::Unknown, StateName::Arguments)
}

fn lock_argument(node: &Value) -> Option<LockArgument> {
    let node = &node["node"];
    if !node["TypeCast"].is_null() {
        return lock_argument(&node["TypeCast"]["arg"]);
    }
    if let Some(number) = node["ParamRef"]["number"].as_u64() {
        return Some(LockArgument::Parameter(usize::try_from(number).ok()?.checked_sub(1)?));
    }
    // A negative number is an operator and a constant, and hashtext('x') is a call; as texts they
    // identify the lock as well as its key does.
    let text = match &node["AConst"]["val"] {
        Value::Null => constant_text(node)?,
        value => constant_value(value)?,
    };
    Some(LockArgument::Constant(text.into_boxed_str()))
}

fn constant_value(value: &Value) -> Option<String> {
    let integer = value["Ival"]["ival"].as_i64().map(|number| number.to_string());
    let text = |value: &Value| value.as_str().map(str::to_owned);
    integer.or_else(|| text(&value["Fval"]["fval"])).or_else(|| text(&value["Sval"]["sval"]))
}

/// Returns a text for an expression without parameters and columns; `None` for others.
fn constant_text(node: &Value) -> Option<String> {
    let text = without_locations(node).to_string();
    (!text.contains("ParamRef") && !text.contains("ColumnRef") && text.len() <= 500).then_some(text)
}

/// Returns a tree without the positions of its nodes in their text.
fn without_locations(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(without_locations).collect(),
        Value::Object(entries) => entries
            .iter()
            .filter(|(key, _)| *key != "location")
            .map(|(key, value)| (key.clone(), without_locations(value)))
            .collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests;
