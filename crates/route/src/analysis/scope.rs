//! One level of a query: its tables, what is known of their keys, and how that follows from conditions.

use pg_query::{
    NodeEnum,
    protobuf::{BoolExprType, ColumnRef, JoinExpr, JoinType, Node, RangeVar},
};

use super::{Analysis, NotUnderstood, Understood, is_equality};
use crate::{
    keys::{Row, Source},
    settings::{Meaning, Table},
};

/// Tables at one level that are followed, at most.
const INSTANCES_MAX: usize = 64;

/// Keys of one statement that are followed, at most: an IN list may be long.
const ROWS_MAX: usize = 10_000;

/// Tables of a level, a bit each.
type Set = u64;

/// A level. `outer` is the level that it is within, if its columns can be seen.
pub(super) struct Scope<'a, 'o> {
    pub(super) instances: Vec<Instance<'a>>,
    /// How everything else is called that has columns.
    others: Vec<String>,
    conditions: Vec<(Condition<'a>, Set)>,
    /// Columns that joins have merged.
    merged: Vec<&'a str>,
    outer: Option<&'o Scope<'a, 'o>>,
    /// Tables whose rows may be missing beside those of others.
    nullable: Set,
    /// Why answers of several shards would not be what one server answers.
    pub(super) fault: Option<&'static str>,
}

/// A sharded table, as often as it is there.
pub(super) struct Instance<'a> {
    alias: &'a str,
    pub(super) table: &'a Table,
    /// For each column of the key, what it is equal to one of.
    bound: Vec<Option<Vec<Source>>>,
    /// All instances of one group are joined by their whole keys.
    group: Vec<usize>,
}

/// A column of a key: of which instance, and which.
pub(super) type Column = (usize, usize);

enum Condition<'a> {
    Equal(&'a Node, &'a Node),
    In(&'a Node, &'a [Node]),
    Same(Column, Column),
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
            fault: None,
        }
    }

    /// All tables that are there by now.
    pub(super) fn all(&self) -> Set {
        set(0..self.instances.len())
    }

    /// Something in FROM, and the tables that it brought.
    pub(super) fn item(&mut self, analysis: &mut Analysis<'a>, item: &'a Node) -> Understood<Set> {
        let before = self.instances.len();
        match item.node.as_ref().ok_or(NotUnderstood)? {
            NodeEnum::RangeVar(relation) => match analysis.query_of(relation)? {
                true => self.others.push(name_of(relation).to_owned()),
                false => drop(self.relation(analysis, relation)?),
            },
            NodeEnum::JoinExpr(join) => self.join(analysis, join)?,
            NodeEnum::RangeSubselect(select) if !select.lateral => {
                let query = select.subquery.as_deref().ok_or(NotUnderstood)?;
                analysis.any(query, None)?;
                self.others.extend(select.alias.as_ref().map(|alias| alias.aliasname.clone()));
            }
            NodeEnum::RangeFunction(function) if !function.lateral => {
                self.others.extend(function.alias.as_ref().map(|alias| alias.aliasname.clone()));
            }
            _ => return Err(NotUnderstood),
        }
        Ok(set(before..self.instances.len()))
    }

    /// A table by its name.
    pub(super) fn relation(
        &mut self,
        analysis: &mut Analysis<'a>,
        relation: &'a RangeVar,
    ) -> Understood<Meaning<'a>> {
        let meaning = analysis.met(relation);
        let alias = name_of(relation);
        let Meaning::Sharded(table) = meaning else {
            self.others.push(alias.to_owned());
            return Ok(meaning);
        };
        let renames = relation.alias.as_ref().is_some_and(|alias| !alias.colnames.is_empty());
        let at = self.instances.len();
        if renames || at == INSTANCES_MAX {
            return Err(NotUnderstood);
        }
        let columns = table.key.len();
        self.instances.push(Instance {
            alias,
            table,
            bound: vec![None; columns],
            group: vec![at; columns],
        });
        Ok(meaning)
    }

    fn join(&mut self, analysis: &mut Analysis<'a>, join: &'a JoinExpr) -> Understood {
        if join.is_natural || join.alias.is_some() || join.join_using_alias.is_some() {
            return Err(NotUnderstood);
        }
        let left = self.item(analysis, join.larg.as_deref().ok_or(NotUnderstood)?)?;
        let right = self.item(analysis, join.rarg.as_deref().ok_or(NotUnderstood)?)?;
        // Of a row that is there whether or not another is found, its conditions say nothing.
        let told = match join.jointype() {
            JoinType::JoinInner => left | right,
            JoinType::JoinLeft => {
                if left == 0 && right != 0 {
                    self.fault = Some("would repeat rows of a table that every shard has");
                }
                self.nullable |= right;
                right
            }
            _ => return Err(NotUnderstood),
        };
        self.conditions(join.quals.as_deref(), told);
        for name in &join.using_clause {
            let Some(NodeEnum::String(name)) = &name.node else { return Err(NotUnderstood) };
            let has = |at: &usize, within: Set| within >> at & 1 == 1;
            let column = |at: usize| {
                let key = &self.instances[at].table.key;
                key.iter().position(|key| *key == name.sval).map(|column| (at, column))
            };
            let all = || 0..self.instances.len();
            let first = all().filter(|at| has(at, left)).find_map(column);
            let others: Vec<_> = all().filter(|at| has(at, right)).filter_map(column).collect();
            if let Some(first) = first {
                let same = |other| (Condition::Same(first, other), told);
                self.conditions.extend(others.into_iter().map(same));
            }
            self.merged.push(&name.sval);
        }
        Ok(())
    }

    /// Conditions that hold together for each row of `told`.
    pub(super) fn conditions(&mut self, expression: Option<&'a Node>, told: Set) {
        match expression.and_then(|expression| expression.node.as_ref()) {
            Some(NodeEnum::BoolExpr(all)) if all.boolop() == BoolExprType::AndExpr => {
                for one in &all.args {
                    self.conditions(Some(one), told);
                }
            }
            Some(NodeEnum::AExpr(compare)) if is_equality(compare.kind(), &compare.name) => {
                let (Some(left), Some(right)) = (&compare.lexpr, &compare.rexpr) else { return };
                let condition = match &right.node {
                    Some(NodeEnum::List(list)) => Condition::In(left, &list.items),
                    _ => Condition::Equal(left, right),
                };
                self.conditions.push((condition, told));
            }
            _ => {}
        }
    }

    /// Follows all conditions, until there is nothing new.
    pub(super) fn solve(&mut self, analysis: &mut Analysis<'a>) {
        let conditions = std::mem::take(&mut self.conditions);
        let mut is_new = true;
        while is_new {
            is_new = false;
            for (condition, told) in &conditions {
                is_new |= self.follow(analysis, condition, *told);
            }
        }
    }

    fn follow(
        &mut self,
        analysis: &mut Analysis<'a>,
        condition: &Condition<'a>,
        told: Set,
    ) -> bool {
        match condition {
            Condition::Same(one, other) => self.same(*one, *other, told),
            Condition::In(left, list) => {
                let Some(column) = self.column(left) else { return false };
                let source = |value| analysis.source(value, column.1, false);
                let sources: Option<Vec<_>> = list.iter().map(source).collect();
                sources.is_some_and(|sources| self.bind(column, sources, told))
            }
            Condition::Equal(left, right) => match (self.column(left), self.column(right)) {
                (Some(one), Some(other)) => self.same(one, other, told),
                (Some(column), None) => self.equal(analysis, column, right, told),
                (None, Some(column)) => self.equal(analysis, column, left, told),
                (None, None) => false,
            },
        }
    }

    /// A column of a key is equal to something that is none of this level.
    fn equal(
        &mut self,
        analysis: &mut Analysis<'a>,
        column: Column,
        to: &'a Node,
        told: Set,
    ) -> bool {
        if self.instances[column.0].bound[column.1].is_some() {
            return false;
        }
        let sources = match analysis.source(to, column.1, false) {
            Some(source) => Some(vec![source]),
            None => self.bound_outside(to),
        };
        sources.is_some_and(|sources| self.bind(column, sources, told))
    }

    fn same(&mut self, one: Column, other: Column, told: Set) -> bool {
        let [a, b] = [one, other].map(|(at, column)| self.instances[at].bound[column].clone());
        let is_bound = match (a, b) {
            (Some(sources), None) => self.bind(other, sources, told),
            (None, Some(sources)) => self.bind(one, sources, told),
            _ => false,
        };
        // To be together it is enough that rows are only joined where keys are the same. A condition of an
        // outer join on two tables of its kept side joins nothing.
        let joins = (told >> one.0 | told >> other.0) & 1 == 1 && one.1 == other.1;
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

    fn bind(&mut self, (at, column): Column, sources: Vec<Source>, told: Set) -> bool {
        let bound = &mut self.instances[at].bound[column];
        let is_told = told >> at & 1 == 1 && bound.is_none() && !sources.is_empty();
        if is_told {
            *bound = Some(sources);
        }
        is_told
    }

    /// Whether all tables are joined by their whole keys.
    pub(super) fn is_together(&self) -> bool {
        self.instances.windows(2).all(|two| two[0].group == two[1].group)
    }

    /// Whether all columns of a table's key are among these, and its rows are always there.
    pub(super) fn has_key(&self, columns: &[Column]) -> bool {
        let has = |at: usize| {
            let mut key = 0..self.instances[at].table.key.len();
            self.nullable >> at & 1 == 0 && key.all(|column| columns.contains(&(at, column)))
        };
        (0..self.instances.len()).any(has)
    }

    /// The column of a key that an expression is.
    pub(super) fn column(&self, expression: &Node) -> Option<Column> {
        let Some(NodeEnum::ColumnRef(column)) = &expression.node else { return None };
        match names(column)?[..] {
            [name] => {
                let mut columns = (0..self.instances.len()).filter_map(|at| self.key_of(at, name));
                let first = columns.next()?;
                (columns.next().is_none() || self.merged.contains(&name)).then_some(first)
            }
            [alias, name] => {
                let is_meant = |at: &usize| self.instances[*at].alias == alias;
                self.key_of((0..self.instances.len()).find(is_meant)?, name)
            }
            _ => None,
        }
    }

    fn key_of(&self, at: usize, name: &str) -> Option<Column> {
        let key = &self.instances[at].table.key;
        key.iter().position(|column| column == name).map(|column| (at, column))
    }

    /// What a column of a level around this one is equal to. Only with its table's name in front: without
    /// one it may be a column of any table here.
    fn bound_outside(&self, expression: &Node) -> Option<Vec<Source>> {
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

    /// The keys of all tables.
    pub(super) fn keys(&self, analysis: &mut Analysis<'a>) -> Understood {
        for instance in &self.instances {
            let mut rows = vec![Vec::new()];
            for bound in &instance.bound {
                let sources = bound.as_ref().ok_or(NotUnderstood)?;
                if rows.len() * sources.len() + analysis.rows.len() > ROWS_MAX {
                    return Err(NotUnderstood);
                }
                let with = |row: &Vec<Source>, source: &Source| {
                    let mut row = row.clone();
                    row.push(source.clone());
                    row
                };
                let each = |row| sources.iter().map(move |source| with(row, source));
                rows = rows.iter().flat_map(each).collect();
            }
            let row = |sources| Row { sources, is_inserted: false };
            analysis.rows.extend(rows.into_iter().map(row));
        }
        Ok(())
    }
}

fn set(instances: std::ops::Range<usize>) -> Set {
    instances.fold(0, |set, at| set | 1 << at)
}

/// What a table is called in its level.
fn name_of(relation: &RangeVar) -> &str {
    relation.alias.as_ref().map_or(&relation.relname, |alias| &alias.aliasname)
}

/// `["t", "id"]`; none if it is no plain name.
pub(super) fn names(column: &ColumnRef) -> Option<Vec<&str>> {
    column.fields.iter().map(text).collect()
}

fn text(field: &Node) -> Option<&str> {
    match &field.node {
        Some(NodeEnum::String(name)) => Some(&name.sval),
        _ => None,
    }
}
