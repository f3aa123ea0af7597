//! Statements that write rows of a sharded table.

use pg_query::{
    NodeEnum,
    protobuf::{DeleteStmt, InsertStmt, Node, UpdateStmt},
};

use super::{Analysis, NotUnderstood, Understood, scope::Scope, survey::Survey};
use crate::{
    keys::Row,
    refusal::NoShardKey,
    settings::{Meaning, Table},
};

impl<'a> Analysis<'a> {
    /// What to tell of a write that tells no key.
    pub(super) fn why_no_key(&self, statement: &NodeEnum, survey: &Survey) -> NoShardKey {
        let table = |table: &Table| Box::from(table.name.as_str());
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
            (None, _) => match (&survey.first_unlisted, &survey.first_sharded) {
                (Some(name), _) => NoShardKey::Unlisted(name.clone()),
                (None, Some(name)) => NoShardKey::Write(name.clone()),
                (None, None) => NoShardKey::Kind,
            },
        }
    }

    /// The sharded table that a statement writes.
    fn target(&self, statement: &NodeEnum) -> Option<&'a Table> {
        let relation = match statement {
            NodeEnum::InsertStmt(insert) => insert.relation.as_ref(),
            NodeEnum::UpdateStmt(update) => update.relation.as_ref(),
            NodeEnum::DeleteStmt(delete) => delete.relation.as_ref(),
            _ => None,
        }?;
        match self.meaning(&relation.schemaname, &relation.relname) {
            Meaning::Sharded(table) => Some(table),
            _ => None,
        }
    }

    pub(super) fn insert(&mut self, insert: &'a InsertStmt) -> Understood {
        let relation = insert.relation.as_ref().ok_or(NotUnderstood)?;
        let queries = self.with(insert.with_clause.as_ref())?;
        let Meaning::Sharded(table) = self.met(relation) else {
            // Rows that are read on one shard and written there.
            let source = insert.select_stmt.as_deref().ok_or(NotUnderstood)?;
            self.any(source, None)?;
            self.queries.truncate(queries);
            return Ok(());
        };
        let source = insert.select_stmt.as_deref().and_then(|source| source.node.as_ref());
        let Some(NodeEnum::SelectStmt(values)) = source else { return Err(NotUnderstood) };
        if values.with_clause.is_some() || values.values_lists.is_empty() {
            return Err(NotUnderstood);
        }
        if let Some(conflict) = &insert.on_conflict_clause
            && changes_key(&conflict.target_list, table)
        {
            return Err(NotUnderstood);
        }
        let columns: Vec<_> =
            insert.cols.iter().map(target_name).collect::<Option<_>>().ok_or(NotUnderstood)?;
        let place = |key: &String| columns.iter().position(|column| column == key);
        let places: Vec<_> =
            table.key.iter().map(place).collect::<Option<_>>().ok_or(NotUnderstood)?;
        for row in &values.values_lists {
            let Some(NodeEnum::List(row)) = &row.node else { return Err(NotUnderstood) };
            let mut sources = Vec::with_capacity(places.len());
            for (column, place) in places.iter().enumerate() {
                let value = row.items.get(*place).ok_or(NotUnderstood)?;
                sources.push(self.source(value, column, true).ok_or(NotUnderstood)?);
            }
            self.rows.push(Row { sources, is_inserted: true });
        }
        self.queries.truncate(queries);
        Ok(())
    }

    pub(super) fn update(&mut self, update: &'a UpdateStmt) -> Understood {
        let relation = update.relation.as_ref().ok_or(NotUnderstood)?;
        let queries = self.with(update.with_clause.as_ref())?;
        let mut scope = Scope::new(None);
        if let Meaning::Sharded(table) = scope.relation(self, relation)?
            && changes_key(&update.target_list, table)
        {
            return Err(NotUnderstood);
        }
        self.written(&mut scope, &update.from_clause, update.where_clause.as_deref())?;
        self.expressions(update.target_list.iter(), &scope)?;
        self.queries.truncate(queries);
        Ok(())
    }

    pub(super) fn delete(&mut self, delete: &'a DeleteStmt) -> Understood {
        let relation = delete.relation.as_ref().ok_or(NotUnderstood)?;
        let queries = self.with(delete.with_clause.as_ref())?;
        let mut scope = Scope::new(None);
        scope.relation(self, relation)?;
        self.written(&mut scope, &delete.using_clause, delete.where_clause.as_deref())?;
        self.queries.truncate(queries);
        Ok(())
    }

    /// What UPDATE and DELETE have in common: tables beside the target, and conditions.
    fn written(
        &mut self,
        scope: &mut Scope<'a, '_>,
        others: &'a [Node],
        conditions: Option<&'a Node>,
    ) -> Understood {
        for other in others {
            scope.item(self, other)?;
        }
        scope.conditions(conditions, scope.all());
        scope.solve(self);
        scope.keys(self)?;
        self.expressions(conditions.into_iter(), scope)
    }
}

/// Whether a column of the key is among those that are set.
fn changes_key(targets: &[Node], table: &Table) -> bool {
    let is_key =
        |name: Option<&str>| name.is_none_or(|name| table.key.iter().any(|key| key == name));
    targets.iter().any(|target| is_key(target_name(target)))
}

/// The column that is set, if it is set as a whole; what is set in a part of it is named all the same.
fn target_name(target: &Node) -> Option<&str> {
    match &target.node {
        Some(NodeEnum::ResTarget(target)) => Some(target.name.as_str()),
        _ => None,
    }
}
