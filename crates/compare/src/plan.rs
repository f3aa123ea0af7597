//! Describes the differences between two plans in one sentence.
//!
//! A plan is the output of `EXPLAIN (FORMAT JSON)`. Only plans are compared here;
//! [`crate::explain`] queries the servers. Cost units differ between servers and settings, so costs
//! only rank the differences.

mod node;
mod outline;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use self::node::{PlanNode, Scan};
pub use self::outline::outline;

/// Maximum number of differences in a sentence.
const CLAUSES_MAX: usize = 3;

/// Minimum factor between two row estimates to report: smaller differences explain nothing.
const ROWS_FACTOR_MIN: f64 = 10.0;

/// Describes up to three differences between two plans, most important first; `None` if nothing
/// that is compared differs, or if one is not a plan.
///
/// Compared, in this order: how each relation is scanned, how relations are joined, the join order,
/// subplans of Append, steps that appeared or disappeared (sorts, aggregation, materialisation),
/// parallel workers, estimated rows, just-in-time compilation.
///
/// ```
/// use serde_json::json;
///
/// let base = json!([{ "Plan": { "Node Type": "Index Scan", "Index Name": "orders_customer_idx",
///     "Relation Name": "orders", "Alias": "orders", "Plan Rows": 5 } }]);
/// let run = json!([{ "Plan": { "Node Type": "Seq Scan",
///     "Relation Name": "orders", "Alias": "orders", "Plan Rows": 5 } }]);
/// assert_eq!(
///     howdah_compare::plan::difference(&base, &run).as_deref(),
///     Some("Index Scan using orders_customer_idx on orders became Seq Scan on orders"),
/// );
/// ```
pub fn difference(base: &Value, run: &Value) -> Option<String> {
    let (base, run) = (PlanShape::from_explain(base)?, PlanShape::from_explain(run)?);
    let mut clauses = Vec::new();
    clauses.extend(scans(&base, &run));
    clauses.extend(joins(&base, &run));
    clauses.extend(partitions(&base, &run));
    clauses.extend(steps(&base, &run));
    clauses.extend(workers(&base, &run));
    clauses.extend(rows(&base, &run));
    clauses.extend(jit(&base, &run));
    clauses.truncate(CLAUSES_MAX);
    (!clauses.is_empty()).then(|| clauses.join("; "))
}

/// Returns the indexes that only the base plan uses.
pub fn dropped_indexes(base: &Value, run: &Value) -> Vec<String> {
    let (Some(base), Some(run)) = (PlanShape::from_explain(base), PlanShape::from_explain(run))
    else {
        return Vec::new();
    };
    let indexes = |facts: &PlanShape| -> BTreeSet<String> {
        facts.scans.values().flatten().flat_map(|scan| scan.indexes.clone()).collect()
    };
    indexes(&base).difference(&indexes(&run)).cloned().collect()
}

/// The properties of a plan that are compared.
#[derive(Debug, Default)]
struct PlanShape {
    /// Scans by alias, in the order of the plan; an alias may occur in several subqueries.
    scans: BTreeMap<String, Vec<Scan>>,
    /// Joins by the set of aliases that are joined.
    joins: BTreeMap<BTreeSet<String>, String>,
    /// Count of each step that is neither a scan nor a join.
    steps: BTreeMap<String, usize>,
    /// Sort keys of all sorts, without their order.
    sort_keys: BTreeSet<String>,
    /// Number of children of all Append and Merge Append nodes.
    partitions: usize,
    workers: u64,
    rows: f64,
    jit: bool,
}

impl PlanShape {
    fn from_explain(explained: &Value) -> Option<Self> {
        let explained = explained.get(0).unwrap_or(explained);
        let root = PlanNode::new(explained.get("Plan")?)?;
        let mut facts = Self { rows: root.rows(), ..Self::default() };
        facts.jit = explained.get("JIT").is_some();
        facts.visit(root);
        Some(facts)
    }

    /// Adds a node and its descendants; returns the aliases scanned there. The parser's limit of
    /// 128 levels of JSON bounds the recursion.
    fn visit(&mut self, node: PlanNode<'_>) -> BTreeSet<String> {
        let mut aliases = BTreeSet::new();
        if let Some(scan) = node.scan() {
            aliases.insert(scan.alias.clone());
            self.scans.entry(scan.alias.clone()).or_default().push(scan);
        }
        for child in node.children() {
            if !(node.is_bitmap_heap_scan() && child.is_bitmap()) {
                let below = self.visit(child);
                // Relations scanned in a subplan are not joined by the nodes above it.
                if !child.is_subplan() {
                    aliases.extend(below);
                }
            }
        }
        if let Some(join) = node.join() {
            self.joins.insert(aliases.clone(), join);
        } else if let Some(step) = node.step() {
            *self.steps.entry(step).or_default() += 1;
        }
        self.sort_keys.extend(node.sort_key());
        self.partitions += if node.is_append() { node.children().count() } else { 0 };
        self.workers += node.workers();
        aliases
    }
}

/// Lists relations that are scanned differently, the most expensive in the new plan first.
fn scans(base: &PlanShape, run: &PlanShape) -> Vec<String> {
    let mut changes = Vec::new();
    for (alias, before) in &base.scans {
        let after = run.scans.get(alias).map_or(&[][..], Vec::as_slice);
        for (before, after) in before.iter().zip(after) {
            if !before.is_same_access(after) {
                changes.push((after.cost, format!("{before} became {after}")));
            }
        }
    }
    changes.sort_by(|left, right| right.0.total_cmp(&left.0));
    changes.into_iter().map(|(_, clause)| clause).collect()
}

fn joins(base: &PlanShape, run: &PlanShape) -> Vec<String> {
    let mut changes = Vec::new();
    for (aliases, before) in &base.joins {
        if let Some(after) = run.joins.get(aliases).filter(|after| *after != before) {
            let joined: Vec<&str> = aliases.iter().map(String::as_str).collect();
            changes.push(format!("{before} of {} became {after}", joined.join(", ")));
        }
    }
    let order = |facts: &PlanShape| facts.joins.keys().cloned().collect::<BTreeSet<_>>();
    let (before, after) = (order(base), order(run));
    if before != after && before.len() == after.len() {
        changes.push("the join order changed".to_owned());
    }
    changes
}

fn partitions(base: &PlanShape, run: &PlanShape) -> Option<String> {
    let (before, after) = (base.partitions, run.partitions);
    (before != after).then(|| match (before, after) {
        (0, after) => format!("an Append over {after} subplans appeared"),
        (before, 0) => format!("the Append over {before} subplans disappeared"),
        (before, after) => format!("{after} subplans are appended instead of {before}"),
    })
}

fn steps(base: &PlanShape, run: &PlanShape) -> Vec<String> {
    let count = |facts: &PlanShape, step: &str| facts.steps.get(step).copied().unwrap_or(0);
    let names: BTreeSet<&String> = base.steps.keys().chain(run.steps.keys()).collect();
    let changed = |more: &PlanShape, less: &PlanShape| -> Vec<String> {
        let names = names.iter().filter(|step| count(more, step) > count(less, step));
        names.map(|step| (*step).clone()).collect()
    };
    let (appeared, disappeared) = (changed(run, base), changed(base, run));
    // `HashAggregate` replaced by `GroupAggregate` is one change, not two.
    let mut changes = Vec::new();
    let is_aggregate = |step: &&String| step.ends_with("Aggregate");
    let before = disappeared.iter().find(is_aggregate);
    let after = appeared.iter().find(is_aggregate);
    if let (Some(before), Some(after)) = (before, after) {
        changes.push(format!("{before} became {after}"));
    }
    let paired = |step: &&String| before.is_none() || after.is_none() || !is_aggregate(step);
    for step in appeared.iter().filter(paired) {
        let key = run.sort_keys.difference(&base.sort_keys).next();
        changes.push(match key {
            Some(key) if step.ends_with("Sort") => format!("a {step} by {key} appeared"),
            _ => format!("a {step} appeared"),
        });
    }
    changes.extend(disappeared.iter().filter(paired).map(|step| format!("the {step} disappeared")));
    changes
}

fn workers(base: &PlanShape, run: &PlanShape) -> Option<String> {
    let plural = |count: u64| match count {
        0 => "no parallel workers".to_owned(),
        1 => "1 parallel worker".to_owned(),
        count => format!("{count} parallel workers"),
    };
    let (before, after) = (base.workers, run.workers);
    (before != after).then(|| format!("{} became {}", plural(before), plural(after)))
}

/// Describes row estimates that differ widely, preferring those of a relation to that of the whole
/// plan.
fn rows(base: &PlanShape, run: &PlanShape) -> Option<String> {
    let ratio = |before: f64, after: f64| {
        let (before, after) = (before.max(1.0), after.max(1.0));
        (after / before).max(before / after)
    };
    let relations = base.scans.iter().flat_map(|(alias, before)| {
        let after = run.scans.get(alias).map_or(&[][..], Vec::as_slice);
        before.iter().zip(after).map(|(before, after)| (before, after.rows))
    });
    let worst = relations
        .filter(|(before, after)| ratio(before.rows, *after) >= ROWS_FACTOR_MIN)
        .max_by(|left, right| ratio(left.0.rows, left.1).total_cmp(&ratio(right.0.rows, right.1)));
    match worst {
        Some((scan, after)) => {
            Some(format!("{after} rows of {} are expected instead of {}", scan.relation, scan.rows))
        }
        None => (ratio(base.rows, run.rows) >= ROWS_FACTOR_MIN)
            .then(|| format!("{} rows are expected instead of {}", run.rows, base.rows)),
    }
}

fn jit(base: &PlanShape, run: &PlanShape) -> Option<String> {
    (base.jit != run.jit).then(|| {
        if run.jit {
            "just-in-time compilation appeared".to_owned()
        } else {
            "just-in-time compilation disappeared".to_owned()
        }
    })
}

#[cfg(test)]
mod tests;
