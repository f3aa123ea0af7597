//! Determines the [`ShardScope`] of a statement from its parse tree.
//!
//! A statement must never be sent to a wrong shard, so there are two passes. [`scan`] collects
//! every table name in the tree, wherever it occurs, without interpreting it. [`scope`] interprets
//! queries, joins and conditions as far as it supports them. Its result is used only if it has
//! accounted for every table that [`scan`] found; otherwise the statement has no known key.

use pg_query::{
    NodeEnum,
    protobuf::{AExprKind, ExplainStmt, Node, RangeVar, TransactionStmtKind as Transaction},
};

use howdah_sql::{Lexer, ParameterizedText, TokenKind};

use crate::{
    copy::CopyFrom,
    keys::{KeySource, KeyValueSource},
    plan::{MergePlan, ShardScope},
    refusal::NoShardKey,
    settings::{DefaultShard, RouteSettings, TableClass},
};

mod copy;
mod fan_out;
mod plan;
mod query;
mod scan;
mod scope;
mod source;
mod write;

pub(crate) use plan::plan;
use scan::StatementScan;
use scope::Scope;

/// The state of the analysis of one statement.
pub(crate) struct Analysis<'a> {
    settings: &'a RouteSettings,
    sql: &'a [u8],
    /// Byte ranges of all constants in `sql`, in order.
    constants: Vec<std::ops::Range<usize>>,
    /// Number of constants that were extracted from `sql` to make the parameterized text.
    extracted: usize,
    keys: Vec<KeySource>,
    /// The parameters that are keys: number from 0, and position in the text.
    parameters: Vec<(u16, i32)>,
    /// Numbers of references found so far: to sharded tables, to unlisted tables, and to CTEs.
    sharded: usize,
    unlisted: usize,
    cte_references: usize,
    /// Names of the CTEs in scope, innermost last.
    cte_names: Vec<String>,
    is_exact: bool,
}

/// The error for a statement whose keys the analysis cannot determine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnsupportedStatement;

type AnalysisResult<T = ()> = Result<T, UnsupportedStatement>;

/// The shards that one statement reaches, and the texts for which this result is valid.
struct StatementScope {
    pub(crate) scope: ShardScope,
    /// Whether the result is valid for this exact text only, not for texts that differ in
    /// constants.
    pub(crate) is_exact: bool,
    /// Whether the statement reads a system catalog.
    pub(crate) reads_catalog: bool,
}

/// Determines the shards that one statement reaches.
fn statement_scope(
    statement: &Node,
    sql: &[u8],
    parameterized: &ParameterizedText,
    settings: &RouteSettings,
) -> StatementScope {
    let unknown = |why| StatementScope {
        scope: ShardScope::Unkeyed(Err(why)),
        is_exact: true,
        reads_catalog: false,
    };
    // Positions in the tree are valid positions in the text only if the text is UTF-8.
    if str::from_utf8(sql).is_err() {
        return unknown(NoShardKey::Encoding);
    }
    let Some(scan) = StatementScan::from_statement(statement, settings) else {
        return unknown(NoShardKey::Unreadable);
    };
    // Find the constants' byte ranges with the lexer, since the tree has only their start
    // positions.
    let mut at = 0;
    let mut constants = Vec::new();
    for token in Lexer::new(sql) {
        if matches!(token.kind, TokenKind::Number | TokenKind::String) {
            constants.push(at..at + token.text.len());
        }
        at += token.text.len();
    }
    let mut analysis = Analysis {
        settings,
        sql,
        constants,
        extracted: parameterized.constants().len(),
        keys: Vec::new(),
        parameters: Vec::new(),
        sharded: 0,
        unlisted: 0,
        cte_references: 0,
        cte_names: Vec::new(),
        is_exact: false,
    };
    let reach = analysis.statement(statement, &scan);
    StatementScope { scope: reach, is_exact: analysis.is_exact, reads_catalog: scan.has_system }
}

impl<'a> Analysis<'a> {
    fn statement(&mut self, statement: &'a Node, scan: &StatementScan) -> ShardScope {
        let Some(node) = &statement.node else {
            return ShardScope::Unkeyed(Err(NoShardKey::Unreadable));
        };
        match node {
            // SELECT INTO is excluded because it creates a table.
            NodeEnum::SelectStmt(select) if select.into_clause.is_none() => {
                let otherwise = |analysis: &mut Self| analysis.merge_plan(select, scan);
                self.keyed_scope(statement, scan, true, otherwise)
            }
            NodeEnum::InsertStmt(_) | NodeEnum::UpdateStmt(_) | NodeEnum::DeleteStmt(_) => {
                let why = self.why_no_key(node, scan);
                self.keyed_scope(statement, scan, false, |_| Err(why))
            }
            NodeEnum::CopyStmt(copy) if copy.is_from => match copy.relation.as_ref() {
                Some(relation) => match self.classify_name(&relation.schemaname, &relation.relname)
                {
                    TableClass::Sharded(table) if copy.filename.is_empty() && !copy.is_program => {
                        match CopyFrom::read(copy, table) {
                            Ok(copy) => ShardScope::Copy(copy.into()),
                            Err(why) => ShardScope::Unkeyed(Err(why)),
                        }
                    }
                    _ => unanalyzed_scope(scan),
                },
                None => unanalyzed_scope(scan),
            },
            NodeEnum::CopyStmt(copy) => match copy.query.as_deref() {
                Some(query) => without_merge(self.statement(query, scan), COPY_TO),
                None if scan.has_replicated && copy.filename.is_empty() && !copy.is_program => {
                    ShardScope::Free
                }
                None => unanalyzed_scope(scan),
            },
            NodeEnum::ExplainStmt(explain) => self.explain_scope(explain, scan),
            NodeEnum::DeclareCursorStmt(declare) => match declare.query.as_deref() {
                Some(query) => without_merge(self.statement(query, scan), CURSOR),
                None => unanalyzed_scope(scan),
            },
            NodeEnum::TransactionStmt(transaction) => match transaction.kind() {
                // A prepared transaction outlives its session, and its name does not identify the
                // shard.
                Transaction::TransStmtPrepare
                | Transaction::TransStmtCommitPrepared
                | Transaction::TransStmtRollbackPrepared => unanalyzed_scope(scan),
                _ => ShardScope::Free,
            },
            NodeEnum::VariableSetStmt(_)
            | NodeEnum::VariableShowStmt(_)
            | NodeEnum::ConstraintsSetStmt(_)
            | NodeEnum::DiscardStmt(_)
            | NodeEnum::DeallocateStmt(_)
            | NodeEnum::FetchStmt(_)
            | NodeEnum::ClosePortalStmt(_)
            | NodeEnum::UnlistenStmt(_) => ShardScope::Free,
            _ => unanalyzed_scope(scan),
        }
    }

    fn explain_scope(&mut self, explain: &'a ExplainStmt, scan: &StatementScan) -> ShardScope {
        match explain.query.as_deref() {
            Some(query) => without_merge(self.statement(query, scan), "is impossible for EXPLAIN"),
            None => unanalyzed_scope(scan),
        }
    }

    /// Returns the scope of a statement that reads or writes rows.
    fn keyed_scope(
        &mut self,
        statement: &'a Node,
        scan: &StatementScan,
        reads: bool,
        otherwise: impl FnOnce(&mut Self) -> MergePlan,
    ) -> ShardScope {
        let reads = reads && !scan.writes;
        let is_analyzed = self.analyze(statement, None).is_ok();
        let is_complete = self.is_complete(scan);
        let unlisted = match &scan.first_unlisted {
            _ if scan.calls_unknown && scan.sharded == 0 => Some(NoShardKey::Function),
            Some(_) if is_analyzed && is_complete && self.unlisted == 0 => None,
            Some(name) => Some(NoShardKey::Unlisted(name.clone())),
            None => None,
        };
        if let Some(name) = &scan.writes_replicated {
            return ShardScope::Unkeyed(Err(NoShardKey::ReplicatedTable(name.clone())));
        }
        let Some(table) = scan.first_sharded.clone() else {
            return match unlisted {
                Some(why) => ShardScope::Unlisted { why, reads: reads && !scan.calls_unknown },
                None if !reads => ShardScope::Unlisted { why: NoShardKey::Kind, reads },
                None => ShardScope::Free,
            };
        };
        let is_keyed = is_analyzed && is_complete && !self.keys.is_empty();
        let rows = std::mem::take(&mut self.keys);
        // Rows written to an unlisted table may belong on other shards than that of the key.
        if !is_keyed || (!reads && scan.writes_unlisted) {
            return ShardScope::Unkeyed(otherwise(self));
        }
        let rows = self.mark_sole_parameters(rows, scan);
        let otherwise = match rows.len() {
            1 => Err(NoShardKey::Value(table.clone())),
            _ => otherwise(self),
        };
        ShardScope::Keyed { table, rows, unlisted, otherwise }
    }

    /// Whether the analysis has accounted for every reference that the scan found.
    fn is_complete(&self, scan: &StatementScan) -> bool {
        self.sharded == scan.sharded && self.unlisted + self.cte_references == scan.unlisted
    }

    fn mark_sole_parameters(
        &self,
        mut rows: Vec<KeySource>,
        scan: &StatementScan,
    ) -> Vec<KeySource> {
        let mut positions = self.parameters.clone();
        positions.sort_unstable();
        positions.dedup();
        for source in rows.iter_mut().flat_map(|row| &mut row.sources) {
            if let KeyValueSource::Parameter { index, is_key_only: is_alone, .. } = source {
                let as_keys = positions.iter().filter(|(parameter, _)| parameter == index).count();
                *is_alone = scan.parameters.get(index) == Some(&as_keys);
            }
        }
        rows
    }

    /// Records a reference to a table where the grammar expects a table.
    fn record_table(&mut self, relation: &RangeVar) -> TableClass<'a> {
        let class = self.classify_name(&relation.schemaname, &relation.relname);
        match class {
            TableClass::Sharded(_) => self.sharded += 1,
            TableClass::Unlisted | TableClass::Temporary => self.unlisted += 1,
            TableClass::Replicated | TableClass::System => {}
        }
        class
    }

    /// Whether a name in FROM refers to a CTE. If so, counts the reference.
    fn is_cte_reference(&mut self, relation: &RangeVar) -> AnalysisResult<bool> {
        let is_query = relation.schemaname.is_empty() && self.cte_names.contains(&relation.relname);
        if is_query {
            match self.classify_name("", &relation.relname) {
                TableClass::Unlisted => self.cte_references += 1,
                // A CTE with the name of a sharded table is not supported.
                _ => return Err(UnsupportedStatement),
            }
        }
        Ok(is_query)
    }

    fn classify_name(&self, schema: &str, name: &str) -> TableClass<'a> {
        self.settings.tables.classify_table(schema, name)
    }

    /// Analyzes a query or a statement that writes, at the top level or nested; `outer` is the
    /// enclosing query level.
    fn analyze(&mut self, statement: &'a Node, outer: Option<&Scope<'a, '_>>) -> AnalysisResult {
        match statement.node.as_ref().ok_or(UnsupportedStatement)? {
            NodeEnum::SelectStmt(select) => self.query(select, outer),
            NodeEnum::InsertStmt(insert) => self.insert(insert),
            NodeEnum::UpdateStmt(update) => self.update(update),
            NodeEnum::DeleteStmt(delete) => self.delete(delete),
            _ => Err(UnsupportedStatement),
        }
    }
}

const COPY_TO: &str = "is not possible for COPY";
const CURSOR: &str = "is not possible for a cursor";

/// Returns the scope of a nested statement whose results cannot be merged.
fn without_merge(scope: ShardScope, why: &'static str) -> ShardScope {
    match scope {
        ShardScope::Unkeyed(Ok(_)) => ShardScope::Unkeyed(Err(NoShardKey::FanOutNotAllowed(why))),
        ShardScope::Keyed { table, rows, unlisted, otherwise: Ok(_) } => ShardScope::Keyed {
            table,
            rows,
            unlisted,
            otherwise: Err(NoShardKey::FanOutNotAllowed(why)),
        },
        other => other,
    }
}

/// Returns the scope of a statement of a kind that is not analyzed for keys.
fn unanalyzed_scope(scan: &StatementScan) -> ShardScope {
    if scan.sharded > 0 || scan.has_replicated || scan.mentions_listed {
        return ShardScope::Unkeyed(Err(NoShardKey::Kind));
    }
    ShardScope::Unlisted { why: NoShardKey::Kind, reads: false }
}

/// Whether an expression of this kind and operator name is `left = right` or `left IN (…)`.
fn is_equality(kind: AExprKind, name: &[Node]) -> bool {
    let is_equal = match name {
        [only] => matches!(&only.node, Some(NodeEnum::String(name)) if name.sval == "="),
        _ => false,
    };
    is_equal && matches!(kind, AExprKind::AexprOp | AExprKind::AexprIn)
}

/// Whether unlisted tables are the same on every shard, so that they can be joined with sharded
/// ones.
fn unlisted_are_everywhere(settings: &RouteSettings) -> bool {
    settings.default_shard == DefaultShard::Any
}
