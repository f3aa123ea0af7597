//! One query level: its tables, and the key values that the query's conditions determine.

use pg_query::{
    NodeEnum,
    protobuf::{BoolExprType, ColumnRef, JoinExpr, JoinType, Node, RangeVar},
};

use super::{Analysis, AnalysisResult, UnsupportedStatement, is_equality};
use crate::{
    keys::{KeySource, KeyValueSource},
    settings::{RoutedTable, TableClass},
};

/// Maximum number of sharded tables at one level: a [`TableSet`] has one bit for each.
const INSTANCES_MAX: usize = 64;

/// Maximum number of keys that the conditions of a statement may give. It limits the cost of long
/// IN lists.
const ROWS_MAX: usize = 10_000;

/// A bit set of the tables of a level, by index.
type TableSet = u64;

/// A query level. `outer` is the enclosing level if its columns are visible.
pub(super) struct Scope<'a, 'o> {
    pub(super) instances: Vec<TableInstance<'a>>,
    /// Names or aliases of FROM items other than sharded tables.
    others: Vec<String>,
    conditions: Vec<(Condition<'a>, TableSet)>,
    /// Names of columns that joins have merged, as `USING` does.
    merged: Vec<&'a str>,
    outer: Option<&'o Scope<'a, 'o>>,
    /// Tables on the nullable side of an outer join.
    nullable: TableSet,
    /// The reason why results of several shards cannot be merged: the result would differ from that
    /// of one server.
    pub(super) refusal: Option<&'static str>,
}

/// One reference to a sharded table.
pub(super) struct TableInstance<'a> {
    alias: &'a str,
    pub(super) table: &'a RoutedTable,
    /// For each key column, the values that it can have in the rows of the result; `None` if
    /// unknown.
    bound: Vec<Option<Vec<KeyValueSource>>>,
    /// For each key column, a group number. Instances whose columns are in the same group are
    /// joined by equal values of that column.
    group: Vec<usize>,
}

/// Identifies a key column: the index of its instance, and its index in the key.
pub(super) type KeyColumn = (usize, usize);

enum Condition<'a> {
    Equal(&'a Node, &'a Node),
    In(&'a Node, &'a [Node]),
    Same(KeyColumn, KeyColumn),
}

impl<'a, 'o> Scope<'a, 'o> {
    pub(super) fn new(outer: Option<&'o Scope<'a, 'o>>) -> Self {
        Self {
            instances: Vec::new(),
            others: Vec::new(),
            conditions: Vec::new(),
            merged: Vec::new(),
            outer,
            nullable: 0,
            refusal: None,
        }
    }

    /// Returns the set of all sharded tables added so far.
    pub(super) fn all(&self) -> TableSet {
        set(0..self.instances.len())
    }

    /// Adds a FROM item, and returns the set of sharded tables in it.
    pub(super) fn item(
        &mut self,
        analysis: &mut Analysis<'a>,
        item: &'a Node,
    ) -> AnalysisResult<TableSet> {
        let before = self.instances.len();
        match item.node.as_ref().ok_or(UnsupportedStatement)? {
            NodeEnum::RangeVar(relation) => {
                if analysis.is_cte_reference(relation)? {
                    self.others.push(alias(relation).to_owned());
                } else {
                    self.relation(analysis, relation)?;
                }
            }
            NodeEnum::JoinExpr(join) => self.join(analysis, join)?,
            NodeEnum::RangeSubselect(select) if !select.lateral => {
                let query = select.subquery.as_deref().ok_or(UnsupportedStatement)?;
                analysis.analyze(query, None)?;
                self.others.extend(select.alias.as_ref().map(|alias| alias.aliasname.clone()));
            }
            NodeEnum::RangeFunction(function) if !function.lateral => {
                self.others.extend(function.alias.as_ref().map(|alias| alias.aliasname.clone()));
            }
            _ => return Err(UnsupportedStatement),
        }
        Ok(set(before..self.instances.len()))
    }

    /// Adds a table, given by its name, and returns its class.
    pub(super) fn relation(
        &mut self,
        analysis: &mut Analysis<'a>,
        relation: &'a RangeVar,
    ) -> AnalysisResult<TableClass<'a>> {
        let meaning = analysis.record_table(relation);
        let alias = alias(relation);
        let TableClass::Sharded(table) = meaning else {
            self.others.push(alias.to_owned());
            return Ok(meaning);
        };
        let renames = relation.alias.as_ref().is_some_and(|alias| !alias.colnames.is_empty());
        let at = self.instances.len();
        if renames || at == INSTANCES_MAX {
            return Err(UnsupportedStatement);
        }
        let columns = table.key.len();
        self.instances.push(TableInstance {
            alias,
            table,
            bound: vec![None; columns],
            group: vec![at; columns],
        });
        Ok(meaning)
    }

    fn join(&mut self, analysis: &mut Analysis<'a>, join: &'a JoinExpr) -> AnalysisResult {
        if join.is_natural || join.alias.is_some() || join.join_using_alias.is_some() {
            return Err(UnsupportedStatement);
        }
        let left = self.item(analysis, join.larg.as_deref().ok_or(UnsupportedStatement)?)?;
        let right = self.item(analysis, join.rarg.as_deref().ok_or(UnsupportedStatement)?)?;
        // The conditions of an outer join do not restrict rows of the preserved side.
        let applies_to = match join.jointype() {
            JoinType::JoinInner => left | right,
            JoinType::JoinLeft => {
                if left == 0 && right != 0 {
                    self.refusal = Some("would repeat rows of a table that every shard has");
                }
                self.nullable |= right;
                right
            }
            _ => return Err(UnsupportedStatement),
        };
        self.conditions(join.quals.as_deref(), applies_to);
        for name in &join.using_clause {
            let Some(NodeEnum::String(name)) = &name.node else { return Err(UnsupportedStatement) };
            let has = |at: &usize, within: TableSet| within >> at & 1 == 1;
            let column = |at: usize| {
                let key = &self.instances[at].table.key;
                key.iter().position(|key| *key == name.sval).map(|column| (at, column))
            };
            let all = || 0..self.instances.len();
            let first = all().filter(|at| has(at, left)).find_map(column);
            let others: Vec<_> = all().filter(|at| has(at, right)).filter_map(column).collect();
            if let Some(first) = first {
                let same = |other| (Condition::Same(first, other), applies_to);
                self.conditions.extend(others.into_iter().map(same));
            }
            self.merged.push(&name.sval);
        }
        Ok(())
    }

    /// Adds the conditions of an expression, which restrict the rows of the tables in `applies_to`.
    /// The operands of AND are added one by one.
    pub(super) fn conditions(&mut self, expression: Option<&'a Node>, applies_to: TableSet) {
        match expression.and_then(|expression| expression.node.as_ref()) {
            Some(NodeEnum::BoolExpr(all)) if all.boolop() == BoolExprType::AndExpr => {
                for one in &all.args {
                    self.conditions(Some(one), applies_to);
                }
            }
            Some(NodeEnum::AExpr(compare)) if is_equality(compare.kind(), &compare.name) => {
                let (Some(left), Some(right)) = (&compare.lexpr, &compare.rexpr) else { return };
                let condition = match &right.node {
                    Some(NodeEnum::List(list)) => Condition::In(left, &list.items),
                    _ => Condition::Equal(left, right),
                };
                self.conditions.push((condition, applies_to));
            }
            _ => {}
        }
    }

    /// Applies all conditions until nothing new can be derived.
    pub(super) fn solve(&mut self, analysis: &mut Analysis<'a>) {
        let conditions = std::mem::take(&mut self.conditions);
        let mut is_new = true;
        while is_new {
            is_new = false;
            for (condition, applies_to) in &conditions {
                is_new |= self.resolve_condition(analysis, condition, *applies_to);
            }
        }
    }

    fn resolve_condition(
        &mut self,
        analysis: &mut Analysis<'a>,
        condition: &Condition<'a>,
        applies_to: TableSet,
    ) -> bool {
        match condition {
            Condition::Same(one, other) => self.add_equality(*one, *other, applies_to),
            Condition::In(left, list) => {
                let Some(column) = self.column(left) else { return false };
                let source = |value| analysis.source(value, column.1, false);
                let sources: Option<Vec<_>> = list.iter().map(source).collect();
                sources.is_some_and(|sources| self.bind(column, sources, applies_to))
            }
            Condition::Equal(left, right) => match (self.column(left), self.column(right)) {
                (Some(one), Some(other)) => self.add_equality(one, other, applies_to),
                (Some(column), None) => self.equal(analysis, column, right, applies_to),
                (None, Some(column)) => self.equal(analysis, column, left, applies_to),
                (None, None) => false,
            },
        }
    }

    /// Records that a key column equals an expression that does not depend on tables of this level.
    /// Returns whether that is new.
    fn equal(
        &mut self,
        analysis: &mut Analysis<'a>,
        column: KeyColumn,
        to: &'a Node,
        applies_to: TableSet,
    ) -> bool {
        if self.instances[column.0].bound[column.1].is_some() {
            return false;
        }
        let sources = match analysis.source(to, column.1, false) {
            Some(source) => Some(vec![source]),
            None => self.bound_outside(to),
        };
        sources.is_some_and(|sources| self.bind(column, sources, applies_to))
    }

    fn add_equality(&mut self, one: KeyColumn, other: KeyColumn, applies_to: TableSet) -> bool {
        let [a, b] = [one, other].map(|(at, column)| self.instances[at].bound[column].clone());
        let is_bound = match (a, b) {
            (Some(sources), None) => self.bind(other, sources, applies_to),
            (None, Some(sources)) => self.bind(one, sources, applies_to),
            _ => false,
        };
        // Tables are colocated as long as only rows with equal keys are joined. A condition of an
        // outer join between two tables of its preserved side joins no rows.
        let joins = (applies_to >> one.0 | applies_to >> other.0) & 1 == 1 && one.1 == other.1;
        let [a, b] = [one, other].map(|(at, column)| self.instances[at].group[column]);
        if joins && a != b {
            for instance in &mut self.instances {
                let group = &mut instance.group[one.1];
                *group = if *group == a { b } else { *group };
            }
            return true;
        }
        is_bound
    }

    fn bind(
        &mut self,
        (at, column): KeyColumn,
        sources: Vec<KeyValueSource>,
        applies_to: TableSet,
    ) -> bool {
        let bound = &mut self.instances[at].bound[column];
        let is_told = applies_to >> at & 1 == 1 && bound.is_none() && !sources.is_empty();
        if is_told {
            *bound = Some(sources);
        }
        is_told
    }

    /// Whether all sharded tables of the level are joined by their whole keys, so that joined rows
    /// are on one shard.
    pub(super) fn is_together(&self) -> bool {
        self.instances.windows(2).all(|two| two[0].group == two[1].group)
    }

    /// Whether these columns include the whole key of a table that is not on the nullable side of
    /// an outer join.
    pub(super) fn has_key(&self, columns: &[KeyColumn]) -> bool {
        let has = |at: usize| {
            let mut key = 0..self.instances[at].table.key.len();
            self.nullable >> at & 1 == 0 && key.all(|column| columns.contains(&(at, column)))
        };
        (0..self.instances.len()).any(has)
    }

    /// Returns the key column that an expression refers to; `None` for other expressions.
    pub(super) fn column(&self, expression: &Node) -> Option<KeyColumn> {
        let Some(NodeEnum::ColumnRef(column)) = &expression.node else { return None };
        match names(column)?[..] {
            [name] => {
                let mut columns =
                    (0..self.instances.len()).filter_map(|at| self.key_column(at, name));
                let first = columns.next()?;
                (columns.next().is_none() || self.merged.contains(&name)).then_some(first)
            }
            [alias, name] => {
                let is_meant = |at: &usize| self.instances[*at].alias == alias;
                self.key_column((0..self.instances.len()).find(is_meant)?, name)
            }
            _ => None,
        }
    }

    fn key_column(&self, at: usize, name: &str) -> Option<KeyColumn> {
        let key = &self.instances[at].table.key;
        key.iter().position(|column| column == name).map(|column| (at, column))
    }

    /// Returns the known values of a key column of an enclosing level. The column must be qualified
    /// with its table name; otherwise it may be a column of any table at this level.
    fn bound_outside(&self, expression: &Node) -> Option<Vec<KeyValueSource>> {
        let Some(NodeEnum::ColumnRef(column)) = &expression.node else { return None };
        let [alias, _] = names(column)?[..] else { return None };
        let is_here = self.instances.iter().any(|instance| instance.alias == alias)
            || self.others.iter().any(|other| other == alias);
        let outer = self.outer.filter(|_| !is_here)?;
        match outer.column(expression) {
            Some((at, column)) => outer.instances[at].bound[column].clone(),
            None => outer.bound_outside(expression),
        }
    }

    /// Adds the keys of all sharded tables of the level to `analysis`: for each table, one for each
    /// combination of its key columns' values. Fails if a column's values are unknown, or there are
    /// more than [`ROWS_MAX`] keys.
    pub(super) fn keys(&self, analysis: &mut Analysis<'a>) -> AnalysisResult {
        for instance in &self.instances {
            let mut rows = vec![Vec::new()];
            for bound in &instance.bound {
                let sources = bound.as_ref().ok_or(UnsupportedStatement)?;
                if rows.len() * sources.len() + analysis.keys.len() > ROWS_MAX {
                    return Err(UnsupportedStatement);
                }
                let with = |row: &Vec<KeyValueSource>, source: &KeyValueSource| {
                    let mut row = row.clone();
                    row.push(source.clone());
                    row
                };
                let each = |row| sources.iter().map(move |source| with(row, source));
                rows = rows.iter().flat_map(each).collect();
            }
            let row = |sources| KeySource { sources, is_inserted: false };
            analysis.keys.extend(rows.into_iter().map(row));
        }
        Ok(())
    }
}

fn set(instances: std::ops::Range<usize>) -> TableSet {
    instances.fold(0, |set, at| set | 1 << at)
}

/// Returns the name of a table in its level: the alias if it has one.
fn alias(relation: &RangeVar) -> &str {
    relation.alias.as_ref().map_or(&relation.relname, |alias| &alias.aliasname)
}

/// Returns the parts of a column's name, such as `["t", "id"]`; `None` if it is not a plain name.
pub(super) fn names(column: &ColumnRef) -> Option<Vec<&str>> {
    column.fields.iter().map(text).collect()
}

fn text(field: &Node) -> Option<&str> {
    match &field.node {
        Some(NodeEnum::String(name)) => Some(&name.sval),
        _ => None,
    }
}
