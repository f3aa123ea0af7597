//! What differs between two plans, in one sentence.
//!
//! A plan is what `EXPLAIN (FORMAT JSON)` gives. Only what it says is compared, no server is asked:
//! that is [`crate::explain`]'s business. Costs are in units that differ between servers and
//! settings, so they only rank what is found.

mod node;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use self::node::{Node, Scan};

/// Differences that one sentence takes.
const CLAUSES_MAX: usize = 3;

/// An estimate of rows that differs by less than this factor explains nothing.
const ROWS_FACTOR_MIN: f64 = 10.0;

/// Says what changed from one plan to another, most telling first; `None` if they have the same
/// shape, or if one is no plan.
///
/// Looked at, in this order: how each relation is read, how relations are joined, the join order,
/// partitions read, steps that appeared or went (sorts, aggregation, materialisation), parallel
/// workers, estimated rows, just-in-time compilation.
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
    let (base, run) = (Facts::of(base)?, Facts::of(run)?);
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

/// The indexes that the base plan uses and the other does not.
pub fn indexes_given_up(base: &Value, run: &Value) -> Vec<String> {
    let (Some(base), Some(run)) = (Facts::of(base), Facts::of(run)) else { return Vec::new() };
    let indexes = |facts: &Facts| -> BTreeSet<String> {
        facts.scans.values().flatten().flat_map(|scan| scan.indexes.clone()).collect()
    };
    indexes(&base).difference(&indexes(&run)).cloned().collect()
}

/// What is compared of a plan.
#[derive(Debug, Default)]
struct Facts {
    /// By alias, in the order of the plan: one alias may stand in several subqueries.
    scans: BTreeMap<String, Vec<Scan>>,
    /// By the aliases that are joined, the innermost join first.
    joins: BTreeMap<BTreeSet<String>, String>,
    /// How many of each step that is neither scan nor join.
    steps: BTreeMap<String, usize>,
    /// Keys of the sorts.
    sort_keys: BTreeSet<String>,
    /// Children of all Append nodes.
    partitions: usize,
    workers: u64,
    rows: f64,
    jit: bool,
}

impl Facts {
    fn of(explained: &Value) -> Option<Self> {
        let explained = explained.get(0).unwrap_or(explained);
        let root = Node::new(explained.get("Plan")?)?;
        let mut facts = Self { rows: root.rows(), ..Self::default() };
        facts.jit = explained.get("JIT").is_some();
        facts.visit(root);
        Some(facts)
    }

    /// Takes account of a node and all below it; gives the aliases that are read there. The parser's
    /// limit of 128 levels of JSON keeps the recursion short.
    fn visit(&mut self, node: Node<'_>) -> BTreeSet<String> {
        let mut aliases = BTreeSet::new();
        if let Some(scan) = node.scan() {
            aliases.insert(scan.alias.clone());
            self.scans.entry(scan.alias.clone()).or_default().push(scan);
        }
        for child in node.children() {
            if !(node.is_bitmap_heap_scan() && child.is_bitmap()) {
                let below = self.visit(child);
                // What a subplan reads is not joined by the nodes above it.
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

/// Relations that are read in another way, the costliest in the new plan first.
fn scans(base: &Facts, run: &Facts) -> Vec<String> {
    let mut found = Vec::new();
    for (alias, before) in &base.scans {
        let after = run.scans.get(alias).map_or(&[][..], Vec::as_slice);
        for (before, after) in before.iter().zip(after) {
            if !before.same_way(after) {
                found.push((after.cost, format!("{before} became {after}")));
            }
        }
    }
    found.sort_by(|left, right| right.0.total_cmp(&left.0));
    found.into_iter().map(|(_, clause)| clause).collect()
}

fn joins(base: &Facts, run: &Facts) -> Vec<String> {
    let mut found = Vec::new();
    for (aliases, before) in &base.joins {
        if let Some(after) = run.joins.get(aliases).filter(|after| *after != before) {
            let joined: Vec<&str> = aliases.iter().map(String::as_str).collect();
            found.push(format!("{before} of {} became {after}", joined.join(", ")));
        }
    }
    let order = |facts: &Facts| facts.joins.keys().cloned().collect::<BTreeSet<_>>();
    let (before, after) = (order(base), order(run));
    if before != after && before.len() == after.len() {
        found.push("relations are joined in another order".to_owned());
    }
    found
}

fn partitions(base: &Facts, run: &Facts) -> Option<String> {
    let (before, after) = (base.partitions, run.partitions);
    (before != after).then(|| match (before, after) {
        (0, after) => format!("an Append over {after} parts appeared"),
        (before, 0) => format!("the Append over {before} parts went"),
        (before, after) => format!("{after} parts are appended instead of {before}"),
    })
}

fn steps(base: &Facts, run: &Facts) -> Vec<String> {
    let count = |facts: &Facts, step: &str| facts.steps.get(step).copied().unwrap_or(0);
    let names: BTreeSet<&String> = base.steps.keys().chain(run.steps.keys()).collect();
    let changed = |more: &Facts, less: &Facts| -> Vec<String> {
        let names = names.iter().filter(|step| count(more, step) > count(less, step));
        names.map(|step| (*step).clone()).collect()
    };
    let (appeared, went) = (changed(run, base), changed(base, run));
    // `HashAggregate` went and `GroupAggregate` appeared: that is one change, not two.
    let mut found = Vec::new();
    let is_aggregate = |step: &&String| step.ends_with("Aggregate");
    let before = went.iter().find(is_aggregate);
    let after = appeared.iter().find(is_aggregate);
    if let (Some(before), Some(after)) = (before, after) {
        found.push(format!("{before} became {after}"));
    }
    let paired = |step: &&String| before.is_none() || after.is_none() || !is_aggregate(step);
    for step in appeared.iter().filter(paired) {
        let key = run.sort_keys.difference(&base.sort_keys).next();
        found.push(match key {
            Some(key) if step.ends_with("Sort") => format!("a {step} by {key} appeared"),
            _ => format!("a {step} appeared"),
        });
    }
    found.extend(went.iter().filter(paired).map(|step| format!("the {step} went")));
    found
}

fn workers(base: &Facts, run: &Facts) -> Option<String> {
    let plural = |count: u64| match count {
        0 => "no parallel workers".to_owned(),
        1 => "1 parallel worker".to_owned(),
        count => format!("{count} parallel workers"),
    };
    let (before, after) = (base.workers, run.workers);
    (before != after).then(|| format!("{} became {}", plural(before), plural(after)))
}

/// Estimates that are far apart: those of a relation before that of the whole.
fn rows(base: &Facts, run: &Facts) -> Option<String> {
    let apart = |before: f64, after: f64| {
        let (before, after) = (before.max(1.0), after.max(1.0));
        (after / before).max(before / after)
    };
    let relations = base.scans.iter().flat_map(|(alias, before)| {
        let after = run.scans.get(alias).map_or(&[][..], Vec::as_slice);
        before.iter().zip(after).map(|(before, after)| (before, after.rows))
    });
    let worst = relations
        .filter(|(before, after)| apart(before.rows, *after) >= ROWS_FACTOR_MIN)
        .max_by(|left, right| apart(left.0.rows, left.1).total_cmp(&apart(right.0.rows, right.1)));
    match worst {
        Some((scan, after)) => {
            Some(format!("{after} rows of {} are expected instead of {}", scan.relation, scan.rows))
        }
        None => (apart(base.rows, run.rows) >= ROWS_FACTOR_MIN)
            .then(|| format!("{} rows are expected instead of {}", run.rows, base.rows)),
    }
}

fn jit(base: &Facts, run: &Facts) -> Option<String> {
    (base.jit != run.jit).then(|| match run.jit {
        true => "just-in-time compilation appeared".to_owned(),
        false => "just-in-time compilation went".to_owned(),
    })
}

#[cfg(test)]
mod tests;
