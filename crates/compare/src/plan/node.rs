//! One node of a plan, as `EXPLAIN (FORMAT JSON)` writes it.
//!
//! Source of the keys: `ExplainNode` in `src/backend/commands/explain.c`.

use std::{collections::BTreeSet, fmt};

use serde_json::Value;

/// A node of a plan, as JSON.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlanNode<'a> {
    kind: &'a str,
    value: &'a Value,
}

/// The scan of a relation: its method, direction and indexes, with estimated rows and cost.
#[derive(Clone, Debug)]
pub(super) struct Scan {
    pub(super) alias: String,
    /// The relation's name, with the alias if that differs.
    pub(super) relation: String,
    kind: String,
    backward: bool,
    pub(super) indexes: BTreeSet<String>,
    pub(super) rows: f64,
    pub(super) cost: f64,
}

impl<'a> PlanNode<'a> {
    pub(super) fn new(value: &'a Value) -> Option<Self> {
        Some(Self { kind: value.get("Node Type")?.as_str()?, value })
    }

    pub(super) fn children(self) -> impl Iterator<Item = PlanNode<'a>> {
        let plans = self.value.get("Plans").and_then(Value::as_array);
        plans.into_iter().flatten().filter_map(PlanNode::new)
    }

    /// Returns a line like the node's first one in EXPLAIN's text format, without the estimates:
    /// `Index Scan using orders_pkey on orders o`.
    pub(super) fn title(self) -> String {
        let mut title = String::new();
        if self.value.get("Parallel Aware").and_then(Value::as_bool) == Some(true) {
            title.push_str("Parallel ");
        }
        title.push_str(&self.name());
        if self.text("Scan Direction") == Some("Backward") {
            title.push_str(" Backward");
        }
        if let Some(index) = self.text("Index Name") {
            title.push_str(&format!(" using {index}"));
        }
        let named = ["Relation Name", "Function Name", "CTE Name", "Table Function Name"];
        if let Some(relation) = named.into_iter().find_map(|key| self.text(key)) {
            title.push_str(&format!(" on {relation}"));
            if let Some(alias) = self.text("Alias").filter(|alias| *alias != relation) {
                title.push_str(&format!(" {alias}"));
            }
        }
        title
    }

    /// Returns the name of the node's kind as in EXPLAIN's text format.
    fn name(self) -> String {
        if let Some(join) = self.join() {
            return join;
        }
        let name = match (self.kind, self.text("Strategy")) {
            ("Aggregate", strategy) => aggregate_name(strategy),
            ("SetOp", Some("Hashed")) => "HashSetOp",
            ("ModifyTable", _) => self.text("Operation").unwrap_or(self.kind),
            (kind, _) => kind,
        };
        match self.text("Partial Mode") {
            Some(mode @ ("Partial" | "Finalize")) => format!("{mode} {name}"),
            _ => name.to_owned(),
        }
    }

    /// Returns the estimated costs and rows, in the notation of EXPLAIN's text format.
    pub(super) fn estimates(self) -> String {
        let (startup, total) = (self.number("Startup Cost"), self.number("Total Cost"));
        format!("cost={startup:.2}..{total:.2} rows={:.0}", self.rows())
    }

    /// Returns a list of texts; `None` if the node has none of this name.
    pub(super) fn texts(self, key: &str) -> Option<impl Iterator<Item = &'a str>> {
        Some(self.value.get(key)?.as_array()?.iter().filter_map(Value::as_str))
    }

    pub(super) fn text(self, key: &str) -> Option<&'a str> {
        self.value.get(key)?.as_str()
    }

    fn number(self, key: &str) -> f64 {
        self.value.get(key).and_then(Value::as_f64).unwrap_or(0.0)
    }

    pub(super) fn rows(self) -> f64 {
        self.number("Plan Rows")
    }

    pub(super) fn workers(self) -> u64 {
        self.value.get("Workers Planned").and_then(Value::as_u64).unwrap_or(0)
    }

    pub(super) fn is_subplan(self) -> bool {
        matches!(self.text("Parent Relationship"), Some("SubPlan" | "InitPlan"))
    }

    pub(super) fn is_append(self) -> bool {
        matches!(self.kind, "Append" | "Merge Append")
    }

    pub(super) fn is_bitmap_heap_scan(self) -> bool {
        self.kind == "Bitmap Heap Scan"
    }

    pub(super) fn is_bitmap(self) -> bool {
        matches!(self.kind, "Bitmap Index Scan" | "BitmapAnd" | "BitmapOr")
    }

    /// Returns the node's scan; `None` if the node is not a scan, or only the index part of a
    /// bitmap scan.
    pub(super) fn scan(self) -> Option<Scan> {
        if !self.kind.ends_with("Scan") || self.kind == "Bitmap Index Scan" {
            return None;
        }
        let named = ["Relation Name", "Function Name", "CTE Name", "Table Function Name"];
        let relation = named.into_iter().find_map(|key| self.text(key)).or(self.text("Alias"))?;
        let alias = self.text("Alias").unwrap_or(relation);
        let mut indexes = BTreeSet::new();
        self.collect_indexes(&mut indexes);
        Some(Scan {
            alias: alias.to_owned(),
            relation: if alias == relation {
                alias.to_owned()
            } else {
                format!("{relation} {alias}")
            },
            kind: self.kind.to_owned(),
            backward: self.text("Scan Direction") == Some("Backward"),
            indexes,
            rows: self.rows(),
            cost: self.number("Total Cost"),
        })
    }

    /// Collects the index names of an index scan, or of the bitmap index scans below a bitmap heap
    /// scan.
    fn collect_indexes(self, into: &mut BTreeSet<String>) {
        into.extend(self.text("Index Name").map(str::to_owned));
        for child in self.children().filter(|child| child.is_bitmap()) {
            child.collect_indexes(into);
        }
    }

    /// Returns the method and type of a join, as in EXPLAIN's text format; `None` for other nodes.
    pub(super) fn join(self) -> Option<String> {
        let method = match self.kind {
            "Nested Loop" => "Nested Loop",
            "Hash Join" => "Hash Join",
            "Merge Join" => "Merge Join",
            _ => return None,
        };
        Some(match (method, self.text("Join Type")) {
            (_, None | Some("Inner")) => method.to_owned(),
            ("Nested Loop", Some(kind)) => format!("Nested Loop {kind} Join"),
            (method, Some(kind)) => format!("{} {kind} Join", method.trim_end_matches(" Join")),
        })
    }

    /// Returns the name of a step that is reported when it appears or disappears.
    ///
    /// Hash, Gather and Append are left out: they follow from other nodes, which are reported
    /// themselves.
    pub(super) fn step(self) -> Option<String> {
        match self.kind {
            "Sort" | "Incremental Sort" | "Materialize" | "Memoize" | "Unique" | "WindowAgg"
            | "SetOp" | "Recursive Union" | "LockRows" | "Limit" | "Merge Append" => {
                Some(self.kind.to_owned())
            }
            "Aggregate" => Some(aggregate_name(self.text("Strategy")).to_owned()),
            _ => None,
        }
        // The partial half of an aggregate depends on parallel workers.
        .filter(|_| self.text("Partial Mode") != Some("Partial"))
    }

    /// Returns the sort key. Constants are replaced by `?`, because they may be captured values.
    pub(super) fn sort_key(self) -> Option<String> {
        let normalize = |key: &str| howdah_sql::normalize(key.as_bytes());
        Some(self.texts("Sort Key")?.map(normalize).collect::<Vec<_>>().join(", "))
    }
}

fn aggregate_name(strategy: Option<&str>) -> &'static str {
    match strategy {
        Some("Hashed") => "HashAggregate",
        Some("Sorted") => "GroupAggregate",
        Some("Mixed") => "MixedAggregate",
        _ => "Aggregate",
    }
}

impl Scan {
    /// Whether the relation is scanned by the same method, through the same indexes, in the same
    /// direction.
    pub(super) fn is_same_access(&self, other: &Self) -> bool {
        self.kind == other.kind && self.indexes == other.indexes && self.backward == other.backward
    }
}

/// Formats the scan like EXPLAIN's text format: `Index Scan Backward using orders_pkey on orders
/// o`.
impl fmt::Display for Scan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        if self.backward {
            write!(f, " Backward")?;
        }
        if !self.indexes.is_empty() {
            let indexes: Vec<&str> = self.indexes.iter().map(String::as_str).collect();
            write!(f, " using {}", indexes.join(" and "))?;
        }
        write!(f, " on {}", self.relation)
    }
}
