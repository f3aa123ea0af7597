//! Analyzes statements that write rows: INSERT, UPDATE and DELETE.

use pg_query::{
    NodeEnum,
    protobuf::{DeleteStmt, InsertStmt, Node, UpdateStmt},
};

use super::{Analysis, AnalysisResult, UnsupportedStatement, scan::StatementScan, scope::Scope};
use crate::{
    keys::KeySource,
    refusal::NoShardKey,
    settings::{RoutedTable, TableClass},
};

impl<'a> Analysis<'a> {
    /// Returns the error for a write without a known key.
    pub(super) fn why_no_key(&self, statement: &NodeEnum, scan: &StatementScan) -> NoShardKey {
        let table = |table: &RoutedTable| Box::from(table.name.as_str());
        match (self.target(statement), statement) {
            (Some(target), NodeEnum::InsertStmt(insert)) if insert.cols.is_empty() => {
                NoShardKey::Columns(table(target))
            }
            (Some(target), NodeEnum::UpdateStmt(update))
                if changes_key(&update.target_list, target) =>
            {
                NoShardKey::ChangesKey(table(target))
            }
            (Some(target), _) => NoShardKey::Write(table(target)),
            (None, _) => match (&scan.first_unlisted, &scan.first_sharded) {
                (Some(name), _) => NoShardKey::Unlisted(name.clone()),
                (None, Some(name)) => NoShardKey::Write(name.clone()),
                (None, None) => NoShardKey::Kind,
            },
        }
    }

    /// Returns the table that a statement writes, if it is sharded.
    fn target(&self, statement: &NodeEnum) -> Option<&'a RoutedTable> {
        let relation = match statement {
            NodeEnum::InsertStmt(insert) => insert.relation.as_ref(),
            NodeEnum::UpdateStmt(update) => update.relation.as_ref(),
            NodeEnum::DeleteStmt(delete) => delete.relation.as_ref(),
            _ => None,
        }?;
        match self.classify_name(&relation.schemaname, &relation.relname) {
            TableClass::Sharded(table) => Some(table),
            _ => None,
        }
    }

    pub(super) fn insert(&mut self, insert: &'a InsertStmt) -> AnalysisResult {
        let relation = insert.relation.as_ref().ok_or(UnsupportedStatement)?;
        let queries = self.with(insert.with_clause.as_ref())?;
        let TableClass::Sharded(table) = self.record_table(relation) else {
            // The target is not sharded, so the keys of the source query determine the shard.
            let source = insert.select_stmt.as_deref().ok_or(UnsupportedStatement)?;
            self.analyze(source, None)?;
            self.cte_names.truncate(queries);
            return Ok(());
        };
        let source = insert.select_stmt.as_deref().and_then(|source| source.node.as_ref());
        let Some(NodeEnum::SelectStmt(values)) = source else { return Err(UnsupportedStatement) };
        if values.with_clause.is_some() || values.values_lists.is_empty() {
            return Err(UnsupportedStatement);
        }
        if let Some(conflict) = &insert.on_conflict_clause
            && changes_key(&conflict.target_list, table)
        {
            return Err(UnsupportedStatement);
        }
        let columns: Vec<_> = insert
            .cols
            .iter()
            .map(target_name)
            .collect::<Option<_>>()
            .ok_or(UnsupportedStatement)?;
        let place = |key: &String| columns.iter().position(|column| column == key);
        let places: Vec<_> =
            table.key.iter().map(place).collect::<Option<_>>().ok_or(UnsupportedStatement)?;
        for row in &values.values_lists {
            let Some(NodeEnum::List(row)) = &row.node else { return Err(UnsupportedStatement) };
            let mut sources = Vec::with_capacity(places.len());
            for (column, place) in places.iter().enumerate() {
                let value = row.items.get(*place).ok_or(UnsupportedStatement)?;
                sources.push(self.source(value, column, true).ok_or(UnsupportedStatement)?);
            }
            self.keys.push(KeySource { sources, is_inserted: true });
        }
        self.cte_names.truncate(queries);
        Ok(())
    }

    pub(super) fn update(&mut self, update: &'a UpdateStmt) -> AnalysisResult {
        let relation = update.relation.as_ref().ok_or(UnsupportedStatement)?;
        let queries = self.with(update.with_clause.as_ref())?;
        let mut scope = Scope::new(None);
        if let TableClass::Sharded(table) = scope.relation(self, relation)?
            && changes_key(&update.target_list, table)
        {
            return Err(UnsupportedStatement);
        }
        self.update_or_delete(&mut scope, &update.from_clause, update.where_clause.as_deref())?;
        self.expressions(update.target_list.iter(), &scope)?;
        self.cte_names.truncate(queries);
        Ok(())
    }

    pub(super) fn delete(&mut self, delete: &'a DeleteStmt) -> AnalysisResult {
        let relation = delete.relation.as_ref().ok_or(UnsupportedStatement)?;
        let queries = self.with(delete.with_clause.as_ref())?;
        let mut scope = Scope::new(None);
        scope.relation(self, relation)?;
        self.update_or_delete(&mut scope, &delete.using_clause, delete.where_clause.as_deref())?;
        self.cte_names.truncate(queries);
        Ok(())
    }

    /// Analyzes the common part of UPDATE and DELETE: additional tables, and conditions.
    fn update_or_delete(
        &mut self,
        scope: &mut Scope<'a, '_>,
        others: &'a [Node],
        conditions: Option<&'a Node>,
    ) -> AnalysisResult {
        for other in others {
            scope.item(self, other)?;
        }
        scope.conditions(conditions, scope.all());
        scope.solve(self);
        scope.keys(self)?;
        self.expressions(conditions.into_iter(), scope)
    }
}

/// Whether an UPDATE or ON CONFLICT DO UPDATE with these targets may assign a key column.
fn changes_key(targets: &[Node], table: &RoutedTable) -> bool {
    let is_key =
        |name: Option<&str>| name.is_none_or(|name| table.key.iter().any(|key| key == name));
    targets.iter().any(|target| is_key(target_name(target)))
}

/// Returns the column that is assigned, even if only a field or an element of it is assigned.
fn target_name(target: &Node) -> Option<&str> {
    match &target.node {
        Some(NodeEnum::ResTarget(target)) => Some(target.name.as_str()),
        _ => None,
    }
}
