//! Decides how the shards' results of a read without a sharding key can be merged.

use pg_query::{
    NodeEnum,
    protobuf::{
        FuncCall, LimitOption, Node, SelectStmt, SetOperation, SortBy, SortByDir, SortByNulls,
        a_const::Val,
    },
};

use super::{Analysis, scan::StatementScan, scope::Scope, scope::names, unlisted_are_everywhere};
use crate::{
    fan_out::{Aggregate, FanOut, SortColumn, SortKey},
    plan::MergePlan,
    refusal::NoShardKey,
};

type NoMergeReason = &'static str;

/// Built-in functions of PostgreSQL, up to version 18, that aggregate rows or refer to other rows,
/// sorted by name.
const MULTI_ROW_FUNCTIONS: &[&str] = &[
    "any_value",
    "array_agg",
    "avg",
    "bit_and",
    "bit_or",
    "bit_xor",
    "bool_and",
    "bool_or",
    "corr",
    "count",
    "covar_pop",
    "covar_samp",
    "cume_dist",
    "dense_rank",
    "every",
    "first_value",
    "json_agg",
    "json_agg_strict",
    "json_object_agg",
    "json_object_agg_strict",
    "json_object_agg_unique",
    "json_object_agg_unique_strict",
    "jsonb_agg",
    "jsonb_agg_strict",
    "jsonb_object_agg",
    "jsonb_object_agg_strict",
    "jsonb_object_agg_unique",
    "jsonb_object_agg_unique_strict",
    "lag",
    "last_value",
    "lead",
    "max",
    "min",
    "mode",
    "nth_value",
    "ntile",
    "percent_rank",
    "percentile_cont",
    "percentile_disc",
    "range_agg",
    "range_intersect_agg",
    "rank",
    "regr_avgx",
    "regr_avgy",
    "regr_count",
    "regr_intercept",
    "regr_r2",
    "regr_slope",
    "regr_sxx",
    "regr_sxy",
    "regr_syy",
    "row_number",
    "stddev",
    "stddev_pop",
    "stddev_samp",
    "string_agg",
    "sum",
    "var_pop",
    "var_samp",
    "variance",
    "xmlagg",
];

/// Whether a function aggregates rows or refers to other rows.
pub(crate) fn is_multi_row_function(name: &str) -> bool {
    MULTI_ROW_FUNCTIONS.binary_search(&name).is_ok()
}

impl<'a> Analysis<'a> {
    /// Returns the rule for merging the results of several shards for a query, or the reason why
    /// they cannot be merged.
    pub(super) fn merge_plan(&mut self, select: &'a SelectStmt, scan: &StatementScan) -> MergePlan {
        let table = scan.first_sharded.clone().unwrap_or_default();
        let read = |why| NoShardKey::Read { table: table.clone(), why };
        if scan.writes {
            return Err(NoShardKey::Write(table));
        }
        let answer = self.fan_out(select, scan).map_err(read)?;
        if let Some(name) = &scan.first_unlisted
            && !unlisted_are_everywhere(self.settings)
        {
            return Err(NoShardKey::Unlisted(name.clone()));
        }
        Ok(answer.into())
    }

    fn fan_out(
        &mut self,
        select: &'a SelectStmt,
        scan: &StatementScan,
    ) -> Result<FanOut, NoMergeReason> {
        if select.with_clause.is_some() || select.op() != SetOperation::SetopNone {
            return Err("cannot be merged for queries with WITH or UNION");
        }
        if scan.calls_foreign {
            return Err("cannot be merged if the query calls user-defined functions");
        }
        if scan.is_special || !select.window_clause.is_empty() {
            return Err(
                "cannot be merged for window functions, ordered-set aggregates or TABLESAMPLE",
            );
        }
        if !select.distinct_clause.is_empty() {
            return Err("cannot be merged for queries with DISTINCT");
        }
        if select.limit_offset.is_some() || select.limit_option() == LimitOption::WithTies {
            return Err("cannot be merged for queries with OFFSET or WITH TIES");
        }
        let scope = self.level_scope(select).ok_or("cannot be merged for nested queries")?;
        // The scan also counts sharded tables in subqueries, which are not instances of this level.
        if scope.instances.len() != scan.sharded {
            return Err("cannot be merged for queries with subqueries");
        }
        if let Some(fault) = scope.refusal {
            return Err(fault);
        }
        if !scope.is_together() {
            return Err("would lack rows joined across shards");
        }
        let multi_row = scan.functions.iter().filter(|name| is_multi_row_function(name)).count();
        let has_key = groups_by_key(select, &scope);
        if multi_row == 0 && select.group_clause.is_empty() && select.having_clause.is_none()
            || has_key
        {
            return self.row_order(select);
        }
        if !select.group_clause.is_empty() || select.having_clause.is_some() {
            return Err("cannot be merged if groups span several shards");
        }
        if !select.sort_clause.is_empty() || select.limit_count.is_some() {
            return Err("cannot be merged for aggregates with ORDER BY");
        }
        let aggregates = select.target_list.iter().map(aggregate).collect::<Option<Vec<_>>>();
        // An aggregate inside an argument or a larger expression cannot be merged.
        match aggregates {
            Some(aggregates) if aggregates.len() == multi_row => Ok(FanOut::Aggregate(aggregates)),
            _ => Err("cannot be merged for aggregates other than plain count, sum, min and max"),
        }
    }

    /// Returns the scope of the query's own level; `None` if a FROM item is not supported.
    fn level_scope(&mut self, select: &'a SelectStmt) -> Option<Scope<'a, 'a>> {
        let mut scope = Scope::new(None);
        for item in &select.from_clause {
            scope.item(self, item).ok()?;
        }
        scope.conditions(select.where_clause.as_deref(), scope.all());
        scope.solve(self);
        Some(scope)
    }

    /// Returns the merge of rows in the order of ORDER BY, or a concatenation without ORDER BY.
    fn row_order(&mut self, select: &'a SelectStmt) -> Result<FanOut, NoMergeReason> {
        if select.sort_clause.is_empty() {
            return match select.limit_count {
                Some(_) => Err("cannot be merged for LIMIT without ORDER BY"),
                None => Ok(FanOut::Concatenate),
            };
        }
        // Column numbers and row limits apply to this exact text only.
        self.is_exact = true;
        let limit = match select.limit_count.as_deref() {
            None => None,
            Some(count) => Some(number(count).ok_or("cannot be merged unless LIMIT is a number")?),
        };
        let by = select.sort_clause.iter().map(|by| sort_key(by, select)).collect::<Option<_>>();
        let by =
            by.ok_or("cannot be merged if ORDER BY uses an expression outside the select list")?;
        Ok(FanOut::Merge { by, limit })
    }
}

/// Whether every group is on one shard, because the key of a table is among the grouping columns.
fn groups_by_key(select: &SelectStmt, scope: &Scope<'_, '_>) -> bool {
    let grouped: Vec<_> = select.group_clause.iter().filter_map(|by| scope.column(by)).collect();
    scope.has_key(&grouped)
}

/// Returns the aggregate of an output column that is a plain call of a mergeable aggregate
/// function.
fn aggregate(target: &Node) -> Option<Aggregate> {
    let Some(NodeEnum::ResTarget(target)) = &target.node else { return None };
    let Some(NodeEnum::FuncCall(call)) = &target.val.as_deref()?.node else { return None };
    if call.agg_distinct
        || call.agg_within_group
        || call.over.is_some()
        || !call.agg_order.is_empty()
    {
        return None;
    }
    match function(call)? {
        "count" => Some(Aggregate::Count),
        "sum" => Some(Aggregate::Sum),
        "min" => Some(Aggregate::Min),
        "max" => Some(Aggregate::Max),
        _ => None,
    }
}

fn function(call: &FuncCall) -> Option<&str> {
    match &call.funcname.last()?.node {
        Some(NodeEnum::String(name)) => Some(&name.sval),
        _ => None,
    }
}

fn number(node: &Node) -> Option<u64> {
    match &node.node {
        Some(NodeEnum::AConst(constant)) => match constant.val.as_ref()? {
            Val::Ival(value) => u64::try_from(value.ival).ok(),
            _ => None,
        },
        _ => None,
    }
}

fn sort_key(by: &Node, select: &SelectStmt) -> Option<SortKey> {
    let Some(NodeEnum::SortBy(by)) = &by.node else { return None };
    let descending = match by.sortby_dir() {
        SortByDir::SortbyDesc => true,
        SortByDir::SortbyDefault | SortByDir::SortbyAsc => false,
        _ => return None,
    };
    let nulls_first = match by.sortby_nulls() {
        SortByNulls::SortbyNullsFirst => true,
        SortByNulls::SortbyNullsLast => false,
        _ => descending,
    };
    Some(SortKey { column: sort_column(by, select)?, descending, nulls_first })
}

/// Returns the output column that rows are ordered by, given by number or by name; `None` if it
/// cannot be identified.
fn sort_column(by: &SortBy, select: &SelectStmt) -> Option<SortColumn> {
    let by = by.node.as_deref()?;
    let targets = || select.target_list.iter().filter_map(output_column);
    let has_star = targets().count() < select.target_list.len();
    if let Some(place) = number(by) {
        let place = usize::try_from(place).ok()?.checked_sub(1)?;
        return (!has_star).then_some(SortColumn::Position(place));
    }
    let Some(NodeEnum::ColumnRef(column)) = &by.node else { return None };
    let written = names(column)?;
    let place = |is_meant: &dyn Fn(&OutputColumn<'_>) -> bool| {
        let mut found = targets().enumerate().filter(|(_, target)| is_meant(target));
        let first = found.next().map(|(place, _)| SortColumn::Position(place));
        // If two columns have this name, it is unknown which of them is meant.
        if found.next().is_none() { Some(first) } else { None }
    };
    match written[..] {
        // An output column's name takes precedence over the name of a table column.
        [name] => {
            let found = place(&|target| target.name == Some(name))?;
            match found {
                Some(_) if has_star => None,
                Some(found) => Some(found),
                None if has_star => Some(SortColumn::Named(name.into())),
                None => None,
            }
        }
        // A qualified name refers to a table column, so an output column that shows it is needed.
        [_, _] if !has_star => place(&|target| target.column.as_ref() == Some(&written))?,
        _ => None,
    }
}

/// An output column: its name, and the table column that it shows, if it is a plain reference.
struct OutputColumn<'n> {
    name: Option<&'n str>,
    column: Option<Vec<&'n str>>,
}

/// Returns an output column; `None` for `*`.
fn output_column(node: &Node) -> Option<OutputColumn<'_>> {
    let Some(NodeEnum::ResTarget(target)) = &node.node else { return None };
    let column = match &target.val.as_deref()?.node {
        Some(NodeEnum::ColumnRef(column)) => Some(names(column)?),
        _ => None,
    };
    let own = column.as_ref().and_then(|column| column.last().copied());
    let name = if target.name.is_empty() { own } else { Some(target.name.as_str()) };
    Some(OutputColumn { name, column })
}
