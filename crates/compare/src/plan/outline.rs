//! Renders a plan as text, without values.

use serde_json::Value;

use super::node::PlanNode;

/// Properties of a node that are shown below it if present, by their names in EXPLAIN's JSON.
/// Constants in them are replaced.
const CONDITIONS: [&str; 9] = [
    "Index Cond",
    "Recheck Cond",
    "TID Cond",
    "Hash Cond",
    "Merge Cond",
    "Join Filter",
    "Filter",
    "One-Time Filter",
    "Order By",
];

/// Lists of expressions that are shown below a node if present.
const KEYS: [&str; 3] = ["Sort Key", "Presorted Key", "Group Key"];

/// Maximum number of lines: the plan of a statement on a thousand partitions is cut.
const LINES_MAX: usize = 200;

/// Returns the plan in `explained`, the output of `EXPLAIN (FORMAT JSON)`, as an indented outline
/// with estimated costs and rows; `None` if it is not a plan. Constants are replaced by `?`,
/// because they may be captured values.
///
/// ```
/// use serde_json::json;
///
/// let explained = json!([{ "Plan": { "Node Type": "Index Scan", "Index Name": "orders_pkey",
///     "Relation Name": "orders", "Alias": "orders", "Startup Cost": 0.29, "Total Cost": 8.31,
///     "Plan Rows": 1, "Index Cond": "(id = 7)" } }]);
/// assert_eq!(
///     howdah_compare::plan::outline(&explained).as_deref(),
///     Some(
///         "Index Scan using orders_pkey on orders  (cost=0.29..8.31 rows=1)\n  \
///          Index Cond: (id = ?)\n"
///     ),
/// );
/// ```
pub fn outline(explained: &Value) -> Option<String> {
    let explained = explained.get(0).unwrap_or(explained);
    let root = PlanNode::new(explained.get("Plan")?)?;
    let mut lines = Vec::new();
    add(root, 0, &mut lines);
    if lines.len() > LINES_MAX {
        let cut = lines.len() - LINES_MAX;
        lines.truncate(LINES_MAX);
        lines.push(format!("… {cut} more lines"));
    }
    Some(lines.join("\n") + "\n")
}

/// Adds a node and its descendants. The parser's limit of 128 levels of JSON bounds the recursion.
fn add(node: PlanNode<'_>, depth: usize, lines: &mut Vec<String>) {
    let indent = "  ".repeat(depth);
    let arrow = if depth == 0 { "" } else { "-> " };
    lines.push(format!("{indent}{arrow}{}  ({})", node.title(), node.estimates()));
    for key in CONDITIONS {
        if let Some(condition) = node.text(key) {
            lines.push(format!("{indent}  {key}: {}", without_constants(condition)));
        }
    }
    for key in KEYS {
        if let Some(keys) = node.texts(key) {
            let keys: Vec<String> = keys.map(without_constants).collect();
            lines.push(format!("{indent}  {key}: {}", keys.join(", ")));
        }
    }
    for child in node.children() {
        add(child, depth + 1, lines);
    }
}

fn without_constants(expression: &str) -> String {
    howdah_sql::normalize(expression.as_bytes())
}

#[test]
fn outline_has_no_constants() {
    let explained = serde_json::json!([{ "Plan": {
        "Node Type": "Sort", "Sort Key": ["(lower('geheim'::text))"], "Plan Rows": 3,
        "Startup Cost": 1.0, "Total Cost": 2.5,
        "Plans": [{
            "Node Type": "Seq Scan", "Relation Name": "orders", "Alias": "o",
            "Startup Cost": 0.0, "Total Cost": 2.0, "Plan Rows": 3,
            "Filter": "((note = 'geheim'::text) AND (id = ANY ('{4711,4712}'::integer[])))"
        }]
    } }]);
    let text = outline(&explained).unwrap();
    assert!(!text.contains("geheim") && !text.contains("4711"), "{text}");
    assert!(text.starts_with("Sort  (cost=1.00..2.50 rows=3)\n"), "{text}");
    assert!(text.contains("\n  -> Seq Scan on orders o  (cost=0.00..2.00 rows=3)\n"), "{text}");
    assert_eq!(outline(&serde_json::json!([{}])), None);
}

#[test]
fn nodes_are_named_as_in_explain() {
    for (node, title) in [
        (r#"{"Node Type": "Hash Join", "Join Type": "Left"}"#, "Hash Left Join"),
        (r#"{"Node Type": "Nested Loop", "Join Type": "Anti"}"#, "Nested Loop Anti Join"),
        (r#"{"Node Type": "Merge Join", "Join Type": "Inner"}"#, "Merge Join"),
        (
            r#"{"Node Type": "Hash Join", "Join Type": "Semi", "Parallel Aware": true}"#,
            "Parallel Hash Semi Join",
        ),
        (
            r#"{"Node Type": "Aggregate", "Strategy": "Hashed", "Partial Mode": "Partial"}"#,
            "Partial HashAggregate",
        ),
        (
            r#"{"Node Type": "Aggregate", "Strategy": "Plain", "Partial Mode": "Simple"}"#,
            "Aggregate",
        ),
        (
            r#"{"Node Type": "ModifyTable", "Operation": "Update", "Relation Name": "t"}"#,
            "Update on t",
        ),
        (
            r#"{"Node Type": "Index Scan", "Scan Direction": "Backward", "Index Name": "i"}"#,
            "Index Scan Backward using i",
        ),
    ] {
        let node: Value = serde_json::from_str(node).unwrap();
        assert_eq!(PlanNode::new(&node).unwrap().title(), title);
    }
}
