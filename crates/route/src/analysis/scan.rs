//! Collects facts about a statement by visiting its whole tree, without interpreting its structure.

use std::collections::BTreeMap;

use howdah_sql::grammar;
use pg_query::protobuf::Node;

use crate::settings::{RouteSettings, TableClass};

/// Facts about the tables, functions and parameters that a statement mentions.
#[derive(Debug, Default)]
pub(super) struct StatementScan {
    /// Number of references to sharded tables.
    pub(super) sharded: usize,
    pub(super) first_sharded: Option<Box<str>>,
    /// Number of references to unlisted tables, to temporary tables, and to CTEs.
    pub(super) unlisted: usize,
    pub(super) first_unlisted: Option<Box<str>>,
    /// Whether the statement names a table that is replicated to every shard.
    pub(super) has_replicated: bool,
    /// Whether the statement writes a table that is neither sharded nor replicated.
    pub(super) writes_unlisted: bool,
    /// A replicated table that the statement writes.
    pub(super) writes_replicated: Option<Box<str>>,
    /// Whether the statement writes rows, or locks them with a clause such as `FOR UPDATE`.
    pub(super) writes: bool,
    /// Whether the statement calls a function that is not known to be read-only.
    pub(super) calls_unknown: bool,
    /// Whether the statement calls a function other than PostgreSQL's own side-effect-free ones.
    pub(super) calls_foreign: bool,
    /// Number of occurrences of each parameter, by its number from 0.
    pub(super) parameters: BTreeMap<u16, usize>,
    /// Whether a name or string in the statement, other than that of a relation, is the name of a
    /// listed table, as in DROP.
    pub(super) mentions_listed: bool,
    /// Names of the called functions, without schemas.
    pub(super) functions: Vec<String>,
    /// Whether the statement contains a construct whose results cannot be merged, such as a window
    /// function, an ordered-set aggregate or `TABLESAMPLE`.
    pub(super) is_special: bool,
    /// Whether the statement names a system catalog table.
    pub(super) has_system: bool,
}

impl StatementScan {
    /// Scans a statement; `None` if its tree cannot be searched.
    pub(super) fn from_statement(statement: &Node, settings: &RouteSettings) -> Option<Self> {
        let mut scan = Self::default();
        let is_seen = grammar::visit(statement, &mut |kind, value| {
            let field = |name: &str| value.get(name).and_then(|value| value.as_str());
            match kind {
                "InsertStmt" | "UpdateStmt" | "DeleteStmt" | "MergeStmt" => {
                    scan.writes = true;
                    let relation = &value["relation"];
                    let name = |field: &str| relation[field].as_str().unwrap_or_default();
                    let meaning =
                        settings.tables.classify_table(name("schemaname"), name("relname"));
                    match meaning {
                        TableClass::Sharded(_) => {}
                        TableClass::Replicated => {
                            scan.writes_replicated = Some(name("relname").into());
                        }
                        _ => scan.writes_unlisted = true,
                    }
                }
                "LockingClause" => scan.writes = true,
                "FuncCall" => scan.call(value, settings),
                "ParamRef" => {
                    let number = value["number"].as_i64().unwrap_or_default();
                    if let Ok(index) = u16::try_from(number - 1) {
                        *scan.parameters.entry(index).or_default() += 1;
                    }
                }
                "GroupingFunc"
                | "JsonObjectAgg"
                | "JsonArrayAgg"
                | "JsonArrayQueryConstructor"
                | "WindowDef"
                | "TableSample"
                | "RangeTableSample" => scan.is_special = true,
                "sval" => {
                    let name = value.as_str().unwrap_or_default();
                    let meaning = settings.tables.classify_table("", name);
                    scan.mentions_listed |=
                        matches!(meaning, TableClass::Sharded(_) | TableClass::Replicated);
                }
                _ => {}
            }
            // An object with these fields is a table name, wherever it occurs.
            if let (Some(schema), Some(name), Some(_)) =
                (field("schemaname"), field("relname"), field("relpersistence"))
            {
                scan.table(schema, name, settings);
            }
        });
        is_seen.then_some(scan)
    }

    fn table(&mut self, schema: &str, name: &str, settings: &RouteSettings) {
        match settings.tables.classify_table(schema, name) {
            TableClass::Sharded(_) => {
                self.sharded += 1;
                self.first_sharded.get_or_insert_with(|| name.into());
            }
            TableClass::Unlisted | TableClass::Temporary => {
                self.unlisted += 1;
                self.first_unlisted.get_or_insert_with(|| name.into());
            }
            TableClass::Replicated => self.has_replicated = true,
            TableClass::System => self.has_system = true,
        }
    }

    fn call(&mut self, call: &serde_json::Value, settings: &RouteSettings) {
        let parts: Vec<&str> = call["funcname"]
            .as_array()
            .map_or(&[][..], Vec::as_slice)
            .iter()
            .filter_map(|part| part["node"]["String"]["sval"].as_str())
            .collect();
        self.calls_unknown |= !settings.functions.only_reads(&parts);
        self.calls_foreign |= !howdah_sql::is_side_effect_free(&parts);
        self.functions.extend(parts.last().map(|name| (*name).to_owned()));
        let is_set = |field: &str| {
            !matches!(call[field], serde_json::Value::Null | serde_json::Value::Bool(false))
        };
        self.is_special |= is_set("over") || is_set("agg_within_group");
    }
}
