//! Reads without a key whose answers can be put together.

use pg_query::{
    NodeEnum,
    protobuf::{
        FuncCall, LimitOption, Node, SelectStmt, SetOperation, SortBy, SortByDir, SortByNulls,
        a_const::Val,
    },
};

use super::{Analysis, scope::Scope, scope::names, survey::Survey, unlisted_are_everywhere};
use crate::{
    fan::{Aggregate, FanOut, SortColumn, SortKey},
    plan::MergePlan,
    refusal::NoShardKey,
};

type Why = &'static str;

/// Functions of PostgreSQL's own, up to 18, that make one row of several, or look at other rows.
const OVER_ROWS: &[&str] = &[
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

/// Whether a function makes one row of several, or looks at other rows.
pub(crate) fn is_over_rows(name: &str) -> bool {
    OVER_ROWS.binary_search(&name).is_ok()
}

impl<'a> Analysis<'a> {
    /// How the answers of several shards to a query become one.
    pub(super) fn fan(&mut self, select: &'a SelectStmt, survey: &Survey) -> MergePlan {
        let table = survey.first_sharded.clone().unwrap_or_default();
        let read = |why| NoShardKey::Read { table: table.clone(), why };
        if survey.writes {
            return Err(NoShardKey::Write(table));
        }
        let answer = self.answer(select, survey).map_err(read)?;
        if let Some(name) = &survey.first_unlisted
            && !unlisted_are_everywhere(self.settings)
        {
            return Err(NoShardKey::Unlisted(name.clone()));
        }
        Ok(answer.into())
    }

    fn answer(&mut self, select: &'a SelectStmt, survey: &Survey) -> Result<FanOut, Why> {
        if select.with_clause.is_some() || select.op() != SetOperation::SetopNone {
            return Err("cannot be put together where there is WITH or UNION");
        }
        if survey.calls_foreign {
            return Err(
                "cannot be put together where functions are called that are not PostgreSQL's own",
            );
        }
        if survey.is_special || !select.window_clause.is_empty() {
            return Err("cannot be put together where rows are looked at from others");
        }
        if !select.distinct_clause.is_empty() {
            return Err("cannot be put together where there is DISTINCT");
        }
        if select.limit_offset.is_some() || select.limit_option() == LimitOption::WithTies {
            return Err("cannot be put together where there is OFFSET or WITH TIES");
        }
        let scope =
            self.level(select).ok_or("cannot be put together in a query as nested as this one")?;
        // Tables within other queries would be met here only if those had keys.
        if scope.instances.len() != survey.sharded {
            return Err("cannot be put together where one query is within another");
        }
        if let Some(fault) = scope.fault {
            return Err(fault);
        }
        if !scope.is_together() {
            return Err("would lack rows that are joined across shards");
        }
        let over_rows = survey.functions.iter().filter(|name| is_over_rows(name)).count();
        let has_key = groups_by_key(select, &scope);
        if over_rows == 0 && select.group_clause.is_empty() && select.having_clause.is_none()
            || has_key
        {
            return self.ordered(select);
        }
        if !select.group_clause.is_empty() || select.having_clause.is_some() {
            return Err("cannot be put together where groups are of several shards");
        }
        if !select.sort_clause.is_empty() || select.limit_count.is_some() {
            return Err("cannot be put together where there are aggregates and an order");
        }
        let aggregates = select.target_list.iter().map(aggregate).collect::<Option<Vec<_>>>();
        // None is hidden in an argument, or beside.
        match aggregates {
            Some(aggregates) if aggregates.len() == over_rows => Ok(FanOut::Aggregate(aggregates)),
            _ => Err("cannot be put together but for plain count, sum, min and max"),
        }
    }

    /// The tables of a query's own level.
    fn level(&mut self, select: &'a SelectStmt) -> Option<Scope<'a, 'a>> {
        let mut scope = Scope::new(None);
        for item in &select.from_clause {
            scope.item(self, item).ok()?;
        }
        scope.conditions(select.where_clause.as_deref(), scope.all());
        scope.solve(self);
        Some(scope)
    }

    /// Rows in the order that is asked for, or in any.
    fn ordered(&mut self, select: &'a SelectStmt) -> Result<FanOut, Why> {
        if select.sort_clause.is_empty() {
            return match select.limit_count {
                Some(_) => Err("cannot be put together where there is LIMIT without ORDER BY"),
                None => Ok(FanOut::Concatenate),
            };
        }
        // Numbers that say which column, and how many rows, are of this text only.
        self.is_exact = true;
        let limit = match select.limit_count.as_deref() {
            None => None,
            Some(count) => {
                Some(number(count).ok_or("cannot be put together unless LIMIT is a number")?)
            }
        };
        let by = select.sort_clause.iter().map(|by| sort_key(by, select)).collect::<Option<_>>();
        let by = by.ok_or("cannot be put together in an order by what is not in the answer")?;
        Ok(FanOut::Merge { by, limit })
    }
}

/// Whether every group is on one shard: the key of a table is among what is grouped by.
fn groups_by_key(select: &SelectStmt, scope: &Scope<'_, '_>) -> bool {
    let grouped: Vec<_> = select.group_clause.iter().filter_map(|by| scope.column(by)).collect();
    scope.has_key(&grouped)
}

/// A column of the answer that is a plain call of one of the aggregates.
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

/// The column of the answer that rows are ordered by: by its number, or by a name that it is called by.
fn sort_column(by: &SortBy, select: &SelectStmt) -> Option<SortColumn> {
    let by = by.node.as_deref()?;
    let targets = || select.target_list.iter().filter_map(target);
    let has_star = targets().count() < select.target_list.len();
    if let Some(place) = number(by) {
        let place = usize::try_from(place).ok()?.checked_sub(1)?;
        return (!has_star).then_some(SortColumn::Position(place));
    }
    let Some(NodeEnum::ColumnRef(column)) = &by.node else { return None };
    let written = names(column)?;
    let place = |is_meant: &dyn Fn(&Target<'_>) -> bool| {
        let mut found = targets().enumerate().filter(|(_, target)| is_meant(target));
        let first = found.next().map(|(place, _)| SortColumn::Position(place));
        // Two of one name may be the same column, or not.
        if found.next().is_none() { Some(first) } else { None }
    };
    match written[..] {
        // The name of a column of the answer comes before that of a column of a table.
        [name] => {
            let found = place(&|target| target.name == Some(name))?;
            match found {
                Some(_) if has_star => None,
                Some(found) => Some(found),
                None if has_star => Some(SortColumn::Named(name.into())),
                None => None,
            }
        }
        // Only if no expression that is called so hides behind the column's own name.
        [_, _] if !has_star => place(&|target| target.column.as_ref() == Some(&written))?,
        _ => None,
    }
}

/// A column of the answer: what it is called, and what column it is.
struct Target<'n> {
    name: Option<&'n str>,
    column: Option<Vec<&'n str>>,
}

/// None for a star.
fn target(node: &Node) -> Option<Target<'_>> {
    let Some(NodeEnum::ResTarget(target)) = &node.node else { return None };
    let column = match &target.val.as_deref()?.node {
        Some(NodeEnum::ColumnRef(column)) => Some(names(column)?),
        _ => None,
    };
    let own = column.as_ref().and_then(|column| column.last().copied());
    let name = if target.name.is_empty() { own } else { Some(target.name.as_str()) };
    Some(Target { name, column })
}
