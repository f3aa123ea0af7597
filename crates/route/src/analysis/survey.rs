//! A look at everything in a statement, at whatever depth, without understanding.

use std::collections::BTreeMap;

use howdah_sql::grammar;
use pg_query::protobuf::Node;

use crate::settings::{Meaning, Settings};

/// What there is in a statement.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// Names of sharded tables, as often as they stand there.
    pub(super) sharded: usize,
    pub(super) first_sharded: Option<Box<str>>,
    /// Names of tables that are not listed, or of queries in `WITH`.
    pub(super) unlisted: usize,
    pub(super) first_unlisted: Option<Box<str>>,
    /// A table that every shard has whole is named.
    pub(super) has_everywhere: bool,
    /// A table that is not sharded is written.
    pub(super) writes_unlisted: bool,
    /// A table that every shard has whole is written.
    pub(super) writes_everywhere: Option<Box<str>>,
    /// Anything is written or locked.
    pub(super) writes: bool,
    /// A function is called that is not known to only read.
    pub(super) calls_unknown: bool,
    /// A function is called that is not PostgreSQL's own, or one that makes one row of several.
    pub(super) calls_foreign: bool,
    /// How often each parameter stands there, by its number from 0.
    pub(super) parameters: BTreeMap<u16, usize>,
    /// A listed table is named as something else than a table, as DROP does.
    pub(super) speaks_of_listed: bool,
    /// Names of functions, without schemas.
    pub(super) functions: Vec<String>,
    /// Kinds of nodes that make one row of several, or look at other rows, and are no plain calls.
    pub(super) is_special: bool,
    /// A table of the catalog is named.
    pub(super) has_system: bool,
}

impl Survey {
    /// None if it cannot be looked through.
    pub(super) fn of(statement: &Node, settings: &Settings) -> Option<Self> {
        let mut survey = Self::default();
        let is_seen = grammar::visit(statement, &mut |kind, value| {
            let field = |name: &str| value.get(name).and_then(|value| value.as_str());
            match kind {
                "InsertStmt" | "UpdateStmt" | "DeleteStmt" | "MergeStmt" => {
                    survey.writes = true;
                    let relation = &value["relation"];
                    let name = |field: &str| relation[field].as_str().unwrap_or_default();
                    let meaning = settings.tables.meaning(name("schemaname"), name("relname"));
                    match meaning {
                        Meaning::Sharded(_) => {}
                        Meaning::Everywhere => {
                            survey.writes_everywhere = Some(name("relname").into());
                        }
                        _ => survey.writes_unlisted = true,
                    }
                }
                "LockingClause" => survey.writes = true,
                "FuncCall" => survey.call(value, settings),
                "ParamRef" => {
                    let number = value["number"].as_i64().unwrap_or_default();
                    if let Ok(index) = u16::try_from(number - 1) {
                        *survey.parameters.entry(index).or_default() += 1;
                    }
                }
                "GroupingFunc"
                | "JsonObjectAgg"
                | "JsonArrayAgg"
                | "JsonArrayQueryConstructor"
                | "WindowDef"
                | "TableSample"
                | "RangeTableSample" => survey.is_special = true,
                "sval" => {
                    let name = value.as_str().unwrap_or_default();
                    let meaning = settings.tables.meaning("", name);
                    survey.speaks_of_listed |=
                        matches!(meaning, Meaning::Sharded(_) | Meaning::Everywhere);
                }
                _ => {}
            }
            // A table's name, whatever it is a field of.
            if let (Some(schema), Some(name), Some(_)) =
                (field("schemaname"), field("relname"), field("relpersistence"))
            {
                survey.table(schema, name, settings);
            }
        });
        is_seen.then_some(survey)
    }

    fn table(&mut self, schema: &str, name: &str, settings: &Settings) {
        match settings.tables.meaning(schema, name) {
            Meaning::Sharded(_) => {
                self.sharded += 1;
                self.first_sharded.get_or_insert_with(|| name.into());
            }
            Meaning::Unlisted | Meaning::Temporary => {
                self.unlisted += 1;
                self.first_unlisted.get_or_insert_with(|| name.into());
            }
            Meaning::Everywhere => self.has_everywhere = true,
            Meaning::System => self.has_system = true,
        }
    }

    fn call(&mut self, call: &serde_json::Value, settings: &Settings) {
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
