//! Renders a graph of lock waits: as a tree for people, in the language of Graphviz, or as rows.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    io::{self, Write},
    time::SystemTime,
};

use howdah_probe::by_sql::{LockGraph, LockGraphNode, LockWait};
use serde_json::json;

use super::{
    flame_graph::shortened,
    rows::{self, RowFormat, RowWriter},
};

const COLUMNS: &[&str] = &[
    "source",
    "time",
    "pid",
    "depth",
    "victims",
    "blocked_by",
    "is_in_cycle",
    "backend",
    "user",
    "database",
    "application",
    "client",
    "state",
    "transaction_ms",
    "statement",
    "lock",
    "mode",
    "relation",
    "page",
    "tuple",
    "transaction",
    "wait_ms",
];

/// Maximum length of a statement for people, in characters.
const STATEMENT_CHARS: usize = 80;

/// Writes a tree for people, or rows.
///
/// # Errors
///
/// The writer fails.
pub fn write_lock_graph(out: impl Write, format: RowFormat, graph: &LockGraph) -> io::Result<()> {
    let mut rows = RowWriter::new(out, format, COLUMNS);
    if rows.is_table() {
        return write_tree(&mut rows.out, graph);
    }
    let time = rows::time(SystemTime::now());
    for node in &graph.nodes {
        let blockers: Vec<_> = node.blockers.iter().map(|pid| pid.unwrap_or(0)).collect();
        let blockers = blockers.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        let [user, database, application, client] = &node.session;
        let wait = node.wait.as_ref();
        let row = wait.and_then(|wait| wait.row);
        rows.write(&[
            ("source", json!("sql")),
            ("time", json!(time)),
            ("pid", json!(node.pid.unwrap_or(0))),
            ("depth", json!(node.depth)),
            ("victims", json!(node.victims)),
            ("blocked_by", json!(blockers)),
            ("is_in_cycle", json!(node.is_in_cycle)),
            ("backend", json!(node.kind)),
            ("user", json!(user)),
            ("database", json!(database)),
            ("application", json!(application)),
            ("client", json!(client)),
            ("state", json!(node.state)),
            ("transaction_ms", json!(node.transaction_age.map(rows::ms))),
            ("statement", json!(node.statement)),
            ("lock", json!(wait.map(|wait| &wait.kind))),
            ("mode", json!(wait.map(|wait| &wait.mode))),
            ("relation", json!(wait.and_then(|wait| wait.relation.as_ref()))),
            ("page", json!(row.map(|(page, _)| page))),
            ("tuple", json!(row.map(|(_, tuple)| tuple))),
            ("transaction", json!(wait.and_then(|wait| wait.transaction))),
            ("wait_ms", json!(wait.and_then(|wait| wait.age).map(rows::ms))),
        ])?;
    }
    Ok(())
}

fn write_tree(out: &mut impl Write, graph: &LockGraph) -> io::Result<()> {
    if graph.nodes.is_empty() {
        return writeln!(out, "no session waits for a lock");
    }
    for (at, node) in graph.nodes.iter().enumerate() {
        let is_last = |depth: usize| {
            let mut later = graph.nodes[at + 1..].iter();
            later.find(|later| later.depth <= depth).is_none_or(|later| later.depth < depth)
        };
        let mut line = String::new();
        for depth in 1..=node.depth {
            line.push_str(match (depth == node.depth, is_last(depth)) {
                (true, true) => "└─ ",
                (true, false) => "├─ ",
                (false, true) => "   ",
                (false, false) => "│  ",
            });
        }
        let _ = write!(line, "{}  {}", name(node.pid), description(node));
        if let Some(wait) = &node.wait {
            let _ = write!(line, "; waits {}", wait_text(wait));
        }
        let others: Vec<_> =
            node.blockers.iter().skip(usize::from(node.depth > 0)).map(|pid| name(*pid)).collect();
        if !others.is_empty() {
            let _ = write!(line, "; also blocked by {}", others.join(", "));
        }
        if node.depth == 0 && node.is_in_cycle {
            line.push_str("; deadlock: waits in a circle");
        }
        if let Some(statement) = &node.statement {
            let _ = write!(line, "  `{}`", shortened(statement, STATEMENT_CHARS));
        }
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// Writes the graph in the language of Graphviz: an arrow leads from each waiting session to each
/// that blocks it.
///
/// # Errors
///
/// The writer fails.
pub fn write_lock_dot(mut out: impl Write, graph: &LockGraph) -> io::Result<()> {
    writeln!(out, "digraph locks {{\n  rankdir=BT;\n  node [shape=box];")?;
    let mut listed = BTreeSet::new();
    for node in &graph.nodes {
        listed.insert(node.pid);
        let mut label = format!("{}\n{}", name(node.pid), description(node));
        if let Some(statement) = &node.statement {
            let _ = write!(label, "\n{}", shortened(statement, STATEMENT_CHARS));
        }
        writeln!(out, "  {} [label=\"{}\"];", dot_id(node.pid), dot_text(&label))?;
    }
    for node in &graph.nodes {
        let label = node.wait.as_ref().map_or_else(String::new, wait_text);
        for blocker in &node.blockers {
            if listed.insert(*blocker) {
                writeln!(out, "  {} [label=\"{}\"];", dot_id(*blocker), name(*blocker))?;
            }
            let (from, to) = (dot_id(node.pid), dot_id(*blocker));
            writeln!(out, "  {from} -> {to} [label=\"{}\"];", dot_text(&label))?;
        }
    }
    writeln!(out, "}}")?;
    out.flush()
}

fn name(pid: Option<i32>) -> String {
    pid.map_or_else(|| "prepared transaction".to_owned(), |pid| format!("process {pid}"))
}

fn description(node: &LockGraphNode) -> String {
    let [user, database, application, client] = &node.session;
    let mut parts: Vec<String> = Vec::new();
    parts.extend(node.kind.clone());
    match (user, database) {
        (Some(user), Some(database)) => parts.push(format!("{user}@{database}")),
        (user, database) => parts.extend(user.clone().or_else(|| database.clone())),
    }
    parts.extend([application, client].into_iter().flatten().cloned());
    parts.extend(node.state.map(str::to_owned));
    parts.extend(node.transaction_age.map(|age| format!("in tx {}", rows::duration(age))));
    parts.join(" ")
}

/// Describes a wait: `3.10 s for ShareLock on row (0,5) of shop.public.item, transaction 745`.
fn wait_text(wait: &LockWait) -> String {
    let LockWait { kind, mode, relation, row, transaction, age } = wait;
    let mut text = age.map_or_else(String::new, |age| format!("{} ", rows::duration(age)));
    let _ = write!(text, "for {mode} on ");
    match (row, relation) {
        (Some((page, tuple)), Some(relation)) => {
            let _ = write!(text, "row ({page},{tuple}) of {relation}");
        }
        (_, Some(relation)) => {
            let _ = write!(text, "{kind} {relation}");
        }
        (_, None) => text.push_str(kind),
    }
    if let Some(transaction) = transaction {
        let separator = if relation.is_some() { ", transaction" } else { "" };
        let _ = write!(text, "{separator} {transaction}");
    }
    text
}

fn dot_id(pid: Option<i32>) -> String {
    pid.map_or_else(|| "prepared".to_owned(), |pid| format!("p{pid}"))
}

/// Escapes text for a quoted string of Graphviz.
fn dot_text(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn node(pid: i32, depth: usize, blockers: &[i32]) -> LockGraphNode {
        let text = |text: &str| Some(text.to_owned());
        LockGraphNode {
            pid: Some(pid),
            depth,
            victims: 0,
            is_in_cycle: false,
            blockers: blockers.iter().copied().map(Some).collect(),
            session: [text("ann"), text("shop"), None, text("[local]")],
            kind: None,
            state: Some("active"),
            transaction_age: None,
            statement: text("select \"a\""),
            wait: (!blockers.is_empty()).then(|| LockWait {
                kind: "transactionid".to_owned(),
                mode: "ShareLock".to_owned(),
                relation: text("shop.public.item"),
                row: Some((0, 5)),
                transaction: Some(745),
                age: Some(Duration::from_millis(3100)),
            }),
        }
    }

    fn graph() -> LockGraph {
        let nodes = vec![node(1, 0, &[]), node(2, 1, &[1]), node(3, 2, &[2, 1]), node(4, 1, &[1])];
        LockGraph { nodes }
    }

    #[test]
    fn tree_shows_who_waits_for_whom_and_for_what() {
        let mut out = Vec::new();
        write_lock_graph(&mut out, RowFormat::Table, &graph()).expect("a vector takes all");
        let text = String::from_utf8(out).expect("output is UTF-8");
        let wait = "ann@shop [local] active; waits 3.10 s for ShareLock on row (0,5) of \
                    shop.public.item, transaction 745";
        let statement = "  `select \"a\"`";
        assert_eq!(
            text,
            format!(
                "process 1  ann@shop [local] active{statement}\n\
                 ├─ process 2  {wait}{statement}\n\
                 │  └─ process 3  {wait}; also blocked by process 1{statement}\n\
                 └─ process 4  {wait}{statement}\n"
            )
        );
    }

    #[test]
    fn dot_has_an_arrow_for_each_blocker() {
        let mut out = Vec::new();
        write_lock_dot(&mut out, &graph()).expect("a vector takes all");
        let text = String::from_utf8(out).expect("output is UTF-8");
        let arrows = text.lines().filter(|line| line.contains("->")).count();
        assert_eq!(arrows, 4, "{text}");
        assert!(text.contains("p3 -> p1 [label=\"3.10 s for ShareLock on row (0,5)"), "{text}");
        assert!(text.contains(r#"\nselect \"a\"""#), "{text}");
    }
}
