//! From a statement's tree to its [`ShardScope`].
//!
//! Never wrong is what counts, and to be sure there are two looks. [`survey`] sees every name of a table in
//! the tree, wherever it stands, but not what it is there for. [`scope`] follows queries, joins and conditions
//! as far as it understands them. Only if the second has met every table that the first has seen is what it
//! found believed; in all else the statement tells no key.

use pg_query::{
    NodeEnum,
    protobuf::{AExprKind, ExplainStmt, Node, RangeVar, TransactionStmtKind as Transaction},
};

use howdah_sql::{Lexer, ParameterizedText, TokenKind};

use crate::{
    copy::CopyFrom,
    keys::{Row, Source},
    plan::{MergePlan, ShardScope},
    refusal::NoShardKey,
    settings::{DefaultShard, Meaning, Settings},
};

mod copy;
mod fan;
mod plan;
mod query;
mod scope;
mod source;
mod survey;
mod write;

pub(crate) use plan::plan;
use scope::Scope;
use survey::Survey;

/// What a look at one statement has gathered.
pub(crate) struct Analysis<'a> {
    settings: &'a Settings,
    sql: &'a [u8],
    /// Every constant of the text, in order.
    constants: Vec<std::ops::Range<usize>>,
    /// How many of them were taken out of the skeleton.
    taken: usize,
    rows: Vec<Row>,
    /// Places where parameters are keys.
    parameters: Vec<(u16, i32)>,
    /// Names met: of sharded tables, of unlisted ones, and of queries in `WITH`.
    sharded: usize,
    unlisted: usize,
    of_queries: usize,
    /// Names of queries in `WITH` that can be seen at the moment.
    queries: Vec<String>,
    is_exact: bool,
}

/// That a statement is not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotUnderstood;

type Understood<T = ()> = Result<T, NotUnderstood>;

/// What one statement reaches.
struct Found {
    pub(crate) reach: ShardScope,
    /// It holds for this very text only.
    pub(crate) is_exact: bool,
    /// It reads the catalog.
    pub(crate) reads_catalog: bool,
}

/// Which shards one statement reaches.
fn reach(statement: &Node, sql: &[u8], skeleton: &ParameterizedText, settings: &Settings) -> Found {
    let unknown =
        |why| Found { reach: ShardScope::Keyless(Err(why)), is_exact: true, reads_catalog: false };
    // Places in the tree are places in the text only then.
    if str::from_utf8(sql).is_err() {
        return unknown(NoShardKey::Encoding);
    }
    let Some(survey) = Survey::of(statement, settings) else {
        return unknown(NoShardKey::Unreadable);
    };
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
        taken: skeleton.constants().len(),
        rows: Vec::new(),
        parameters: Vec::new(),
        sharded: 0,
        unlisted: 0,
        of_queries: 0,
        queries: Vec::new(),
        is_exact: false,
    };
    let reach = analysis.statement(statement, &survey);
    Found { reach, is_exact: analysis.is_exact, reads_catalog: survey.has_system }
}

impl<'a> Analysis<'a> {
    fn statement(&mut self, statement: &'a Node, survey: &Survey) -> ShardScope {
        let Some(node) = &statement.node else {
            return ShardScope::Keyless(Err(NoShardKey::Unreadable));
        };
        match node {
            NodeEnum::SelectStmt(select) if select.into_clause.is_none() => {
                let otherwise = |analysis: &mut Self| analysis.fan(select, survey);
                self.rows_of(statement, survey, true, otherwise)
            }
            NodeEnum::InsertStmt(_) | NodeEnum::UpdateStmt(_) | NodeEnum::DeleteStmt(_) => {
                let why = self.why_no_key(node, survey);
                self.rows_of(statement, survey, false, |_| Err(why))
            }
            NodeEnum::CopyStmt(copy) if copy.is_from => match copy.relation.as_ref() {
                Some(relation) => match self.meaning(&relation.schemaname, &relation.relname) {
                    Meaning::Sharded(table) if copy.filename.is_empty() && !copy.is_program => {
                        match CopyFrom::read(copy, table) {
                            Ok(copy) => ShardScope::Copy(copy.into()),
                            Err(why) => ShardScope::Keyless(Err(why)),
                        }
                    }
                    _ => other(survey),
                },
                None => other(survey),
            },
            NodeEnum::CopyStmt(copy) => match copy.query.as_deref() {
                Some(query) => alone(self.statement(query, survey), COPY_TO),
                None if survey.has_everywhere && copy.filename.is_empty() && !copy.is_program => {
                    ShardScope::Free
                }
                None => other(survey),
            },
            NodeEnum::ExplainStmt(explain) => self.explained(explain, survey),
            NodeEnum::DeclareCursorStmt(declare) => match declare.query.as_deref() {
                Some(query) => alone(self.statement(query, survey), CURSOR),
                None => other(survey),
            },
            NodeEnum::TransactionStmt(transaction) => match transaction.kind() {
                Transaction::TransStmtPrepare
                | Transaction::TransStmtCommitPrepared
                | Transaction::TransStmtRollbackPrepared => other(survey),
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
            _ => other(survey),
        }
    }

    fn explained(&mut self, explain: &'a ExplainStmt, survey: &Survey) -> ShardScope {
        match explain.query.as_deref() {
            Some(query) => alone(self.statement(query, survey), "cannot be explained as one"),
            None => other(survey),
        }
    }

    /// Of a statement that reads rows, or writes them.
    fn rows_of(
        &mut self,
        statement: &'a Node,
        survey: &Survey,
        reads: bool,
        otherwise: impl FnOnce(&mut Self) -> MergePlan,
    ) -> ShardScope {
        let reads = reads && !survey.writes;
        let is_understood = self.any(statement, None).is_ok();
        let is_complete = self.is_complete(survey);
        let unlisted = match &survey.first_unlisted {
            _ if survey.calls_unknown && survey.sharded == 0 => Some(NoShardKey::Function),
            Some(_) if is_understood && is_complete && self.unlisted == 0 => None,
            Some(name) => Some(NoShardKey::Unlisted(name.clone())),
            None => None,
        };
        if let Some(name) = &survey.writes_everywhere {
            return ShardScope::Keyless(Err(NoShardKey::Everywhere(name.clone())));
        }
        let Some(table) = survey.first_sharded.clone() else {
            return match unlisted {
                Some(why) => ShardScope::Unlisted { why, reads: reads && !survey.calls_unknown },
                None if !reads => ShardScope::Unlisted { why: NoShardKey::Kind, reads },
                None => ShardScope::Free,
            };
        };
        let is_keyed = is_understood && is_complete && !self.rows.is_empty();
        let rows = std::mem::take(&mut self.rows);
        // What is written to an unlisted table is not where the key is, or not there only.
        if !is_keyed || (!reads && survey.writes_unlisted) {
            return ShardScope::Keyless(otherwise(self));
        }
        let rows = self.with_lone_parameters(rows, survey);
        let otherwise = match rows.len() {
            1 => Err(NoShardKey::Value(table.clone())),
            _ => otherwise(self),
        };
        ShardScope::Keyed { table, rows, unlisted, otherwise }
    }

    /// Whether everything that is there has been met.
    fn is_complete(&self, survey: &Survey) -> bool {
        self.sharded == survey.sharded && self.unlisted + self.of_queries == survey.unlisted
    }

    fn with_lone_parameters(&self, mut rows: Vec<Row>, survey: &Survey) -> Vec<Row> {
        let mut places = self.parameters.clone();
        places.sort_unstable();
        places.dedup();
        for source in rows.iter_mut().flat_map(|row| &mut row.sources) {
            if let Source::Parameter { index, is_alone, .. } = source {
                let met = places.iter().filter(|(parameter, _)| parameter == index).count();
                *is_alone = survey.parameters.get(index) == Some(&met);
            }
        }
        rows
    }

    /// A table stands where tables stand.
    fn met(&mut self, relation: &RangeVar) -> Meaning<'a> {
        let meaning = self.meaning(&relation.schemaname, &relation.relname);
        match meaning {
            Meaning::Sharded(_) => self.sharded += 1,
            Meaning::Unlisted | Meaning::Temporary => self.unlisted += 1,
            Meaning::Everywhere | Meaning::System => {}
        }
        meaning
    }

    /// Whether a name in FROM is that of a query in `WITH`.
    fn query_of(&mut self, relation: &RangeVar) -> Understood<bool> {
        let is_query = relation.schemaname.is_empty() && self.queries.contains(&relation.relname);
        if is_query {
            match self.meaning("", &relation.relname) {
                Meaning::Unlisted => self.of_queries += 1,
                // Whoever calls a query like a sharded table is not followed.
                _ => return Err(NotUnderstood),
            }
        }
        Ok(is_query)
    }

    fn meaning(&self, schema: &str, name: &str) -> Meaning<'a> {
        self.settings.tables.meaning(schema, name)
    }

    /// A query, or a statement that writes, at the top or within another.
    fn any(&mut self, statement: &'a Node, outer: Option<&Scope<'a, '_>>) -> Understood {
        match statement.node.as_ref().ok_or(NotUnderstood)? {
            NodeEnum::SelectStmt(select) => self.query(select, outer),
            NodeEnum::InsertStmt(insert) => self.insert(insert),
            NodeEnum::UpdateStmt(update) => self.update(update),
            NodeEnum::DeleteStmt(delete) => self.delete(delete),
            _ => Err(NotUnderstood),
        }
    }
}

const COPY_TO: &str = "COPY does not put together";
const CURSOR: &str = "a cursor does not put together";

/// Of a statement within one whose answers are not put together.
fn alone(reach: ShardScope, why: &'static str) -> ShardScope {
    match reach {
        ShardScope::Keyless(Ok(_)) => ShardScope::Keyless(Err(NoShardKey::Spread(why))),
        ShardScope::Keyed { table, rows, unlisted, otherwise: Ok(_) } => {
            ShardScope::Keyed { table, rows, unlisted, otherwise: Err(NoShardKey::Spread(why)) }
        }
        other => other,
    }
}

/// Of a statement that is not looked into.
fn other(survey: &Survey) -> ShardScope {
    if survey.sharded > 0 || survey.has_everywhere || survey.speaks_of_listed {
        return ShardScope::Keyless(Err(NoShardKey::Kind));
    }
    ShardScope::Unlisted { why: NoShardKey::Kind, reads: false }
}

/// Whether it is `left = right`, or `left IN (…)`, by the operator of that name.
fn is_equality(kind: AExprKind, name: &[Node]) -> bool {
    let is_equal = match name {
        [only] => matches!(&only.node, Some(NodeEnum::String(name)) if name.sval == "="),
        _ => false,
    };
    is_equal && matches!(kind, AExprKind::AexprOp | AExprKind::AexprIn)
}

/// Whether unlisted tables may stand beside sharded ones on every shard.
fn unlisted_are_everywhere(settings: &Settings) -> bool {
    settings.default_shard == DefaultShard::Any
}
