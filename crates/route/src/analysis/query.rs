//! Analyzes queries, at the top level and nested.

use pg_query::{
    NodeEnum,
    protobuf::{Node, SelectStmt, SetOperation, WithClause},
};

use super::{Analysis, AnalysisResult, UnsupportedStatement, scope::Scope};

impl<'a> Analysis<'a> {
    /// Analyzes a query. Fails if a sharded table in it has no known key, or if it is not
    /// supported.
    pub(super) fn query(
        &mut self,
        select: &'a SelectStmt,
        outer: Option<&Scope<'a, '_>>,
    ) -> AnalysisResult {
        let queries = self.with(select.with_clause.as_ref())?;
        match select.op() {
            SetOperation::SetopNone => self.simple_select(select, outer)?,
            _ => {
                self.query(select.larg.as_deref().ok_or(UnsupportedStatement)?, outer)?;
                self.query(select.rarg.as_deref().ok_or(UnsupportedStatement)?, outer)?;
            }
        }
        self.cte_names.truncate(queries);
        Ok(())
    }

    fn simple_select(
        &mut self,
        select: &'a SelectStmt,
        outer: Option<&Scope<'a, '_>>,
    ) -> AnalysisResult {
        let mut scope = Scope::new(outer);
        for item in &select.from_clause {
            scope.item(self, item)?;
        }
        scope.conditions(select.where_clause.as_deref(), scope.all());
        scope.solve(self);
        scope.keys(self)?;
        let inside = select.target_list.iter().chain(&select.from_clause);
        let inside = inside.chain(&select.group_clause).chain(&select.sort_clause);
        let inside = inside.chain(&select.values_lists).chain(&select.distinct_clause);
        let clauses = [&select.where_clause, &select.having_clause];
        self.expressions(inside.chain(clauses.into_iter().filter_map(Option::as_deref)), &scope)
    }

    /// Analyzes the queries of a `WITH`, and adds their names to the CTEs in scope. Returns the
    /// previous number of CTE names, to which the caller truncates the list.
    pub(super) fn with(&mut self, with: Option<&'a WithClause>) -> AnalysisResult<usize> {
        let before = self.cte_names.len();
        for query in with.map_or(&[][..], |with| &with.ctes) {
            let Some(NodeEnum::CommonTableExpr(query)) = &query.node else {
                return Err(UnsupportedStatement);
            };
            // The name of a recursive query is in scope in its own body.
            let sees_itself = with.is_some_and(|with| with.recursive);
            self.cte_names.extend(sees_itself.then(|| query.ctename.clone()));
            self.analyze(query.ctequery.as_deref().ok_or(UnsupportedStatement)?, None)?;
            self.cte_names.extend((!sees_itself).then(|| query.ctename.clone()));
        }
        Ok(before)
    }

    /// Analyzes queries within expressions. Queries in positions that are not visited do no harm:
    /// the number of references then differs from the scan's, and the statement has no known key.
    pub(super) fn expressions(
        &mut self,
        expressions: impl Iterator<Item = &'a Node>,
        scope: &Scope<'a, '_>,
    ) -> AnalysisResult {
        let mut stack: Vec<&'a Node> = expressions.collect();
        while let Some(expression) = stack.pop() {
            match &expression.node {
                Some(NodeEnum::SubLink(link)) => {
                    stack.extend(link.testexpr.as_deref());
                    self.analyze(
                        link.subselect.as_deref().ok_or(UnsupportedStatement)?,
                        Some(scope),
                    )?;
                }
                Some(NodeEnum::BoolExpr(expression)) => stack.extend(&expression.args),
                Some(NodeEnum::AExpr(expression)) => {
                    stack.extend(expression.lexpr.as_deref());
                    stack.extend(expression.rexpr.as_deref());
                }
                Some(NodeEnum::ResTarget(target)) => stack.extend(target.val.as_deref()),
                Some(NodeEnum::FuncCall(call)) => stack.extend(&call.args),
                Some(NodeEnum::TypeCast(cast)) => stack.extend(cast.arg.as_deref()),
                Some(NodeEnum::CoalesceExpr(coalesce)) => stack.extend(&coalesce.args),
                Some(NodeEnum::NullTest(test)) => stack.extend(test.arg.as_deref()),
                Some(NodeEnum::SortBy(sort)) => stack.extend(sort.node.as_deref()),
                Some(NodeEnum::List(list)) => stack.extend(&list.items),
                Some(NodeEnum::JoinExpr(join)) => {
                    stack.extend(join.larg.as_deref());
                    stack.extend(join.rarg.as_deref());
                    stack.extend(join.quals.as_deref());
                }
                _ => {}
            }
        }
        Ok(())
    }
}
