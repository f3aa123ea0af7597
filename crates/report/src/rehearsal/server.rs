//! The facts of a server of a rehearsal, and the ways in which two servers differ.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use crate::text;

/// Schema and name of a table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TableName {
    /// Such as `public`.
    pub schema: String,
    /// Without quotes.
    pub name: String,
}

/// `orders`, or `sales.orders` outside of the schema `public`.
impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.schema.as_str() {
            "public" => f.write_str(&self.name),
            schema => write!(f, "{schema}.{}", self.name),
        }
    }
}

/// The facts of one server, and of the database that is rehearsed with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerFacts {
    /// Its address, without a password.
    pub target: String,
    /// The one that is rehearsed with.
    pub database: String,
    /// `server_version`.
    pub version: String,
    /// Identifies the cluster; `None` if the role may not read it.
    pub system_identifier: Option<String>,
    /// The WAL timeline; `None` if the role may not read it.
    pub timeline: Option<u32>,
    /// Settings that differ from their built-in default.
    pub settings: BTreeMap<String, SettingValue>,
    /// Versions of extensions, by name.
    pub extensions: BTreeMap<String, String>,
    /// Size of the database.
    pub database_bytes: u64,
    /// The largest tables.
    pub tables: Vec<TableFacts>,
    /// Whether there are more tables than listed.
    pub is_truncated: bool,
    /// Sessions of other clients that were active within the last minute, in any database.
    pub active_clients: u64,
}

/// The value of a setting, with its unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingValue {
    /// The value in effect.
    pub value: String,
    /// The built-in default.
    pub default: String,
}

/// A table with its indexes and triggers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableFacts {
    /// Where its name is unique: within the database.
    pub name: TableName,
    /// Size of its heap and TOAST, without indexes.
    pub bytes: u64,
    /// As of the first run.
    pub statistics: TableStatistics,
    /// Its valid indexes.
    pub indexes: Vec<IndexFacts>,
    /// Names of its enabled triggers, without those of constraints.
    pub triggers: Vec<String>,
}

/// Counts of rows, and the age of the planner's statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TableStatistics {
    /// `n_live_tup`.
    pub live_rows: u64,
    /// `n_dead_tup`.
    pub dead_rows: u64,
    /// Seconds since the last ANALYZE; `None` if there was none.
    pub analyzed_s: Option<u64>,
}

/// An index of a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IndexFacts {
    /// Without its schema, which is that of the table.
    pub name: String,
    /// Its definition without its name: two indexes with equal definitions serve equal queries.
    pub definition: String,
    /// Its size.
    pub bytes: u64,
}

/// A value of each of two servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BothSides<T> {
    /// The value without the change.
    pub base: T,
    /// The value with it.
    pub change: T,
}

/// A difference between the base and the server with the change.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ServerDifference {
    /// Another version of PostgreSQL.
    Version(BothSides<String>),
    /// A setting has another value.
    SettingDiffers {
        /// As in `pg_settings`.
        name: String,
        /// With units.
        values: BothSides<String>,
    },
    /// An extension has another version, or is missing on one server.
    ExtensionDiffers {
        /// As in `pg_extension`.
        name: String,
        /// `None` where it is not installed.
        versions: BothSides<Option<String>>,
    },
    /// Tables of one name are not alike.
    TableDiffers {
        /// The table, which may exist on one server only.
        table: TableName,
        /// How it differs.
        difference: TableDifference,
    },
}

/// How a table of the server with the change differs from that of the base. Indexes and triggers
/// are given by their names.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum TableDifference {
    /// The base lacks it.
    NewTable,
    /// Only the base has it.
    DroppedTable,
    /// The base lacks this index.
    NewIndex(String),
    /// Only the base has this index.
    DroppedIndex(String),
    /// This index has another definition.
    ChangedIndex(String),
    /// The base lacks this trigger.
    NewTrigger(String),
    /// Only the base has this trigger enabled.
    DroppedTrigger(String),
    /// It has another size, in bytes.
    SizeChanged(BothSides<u64>),
    /// The planner's statistics are missing, or much older than on the base.
    StatisticsOlder,
    /// A larger share of its rows is dead; shares from 0 to 1.
    BloatGrew(BothSides<f64>),
}

impl ServerDifference {
    /// The table it concerns; `None` if it concerns the whole server.
    pub fn table(&self) -> Option<&TableName> {
        match self {
            Self::TableDiffers { table, .. } => Some(table),
            _ => None,
        }
    }

    /// Its name in JSON.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Version(_) => "version",
            Self::SettingDiffers { .. } => "setting_differs",
            Self::ExtensionDiffers { .. } => "extension_differs",
            Self::TableDiffers { difference, .. } => difference.kind(),
        }
    }
}

impl TableDifference {
    /// Its name in JSON.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::NewTable => "new_table",
            Self::DroppedTable => "dropped_table",
            Self::NewIndex(_) => "new_index",
            Self::DroppedIndex(_) => "dropped_index",
            Self::ChangedIndex(_) => "changed_index",
            Self::NewTrigger(_) => "new_trigger",
            Self::DroppedTrigger(_) => "dropped_trigger",
            Self::SizeChanged(_) => "size_changed",
            Self::StatisticsOlder => "statistics_older",
            Self::BloatGrew(_) => "bloat_grew",
        }
    }
}

/// From the base to the change: `index orders_customer_idx on orders is missing`.
impl fmt::Display for ServerDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(BothSides { base, change }) => write!(f, "PostgreSQL {base} → {change}"),
            Self::SettingDiffers { name, values: BothSides { base, change } } => {
                write!(f, "setting {name}: {base} → {change}")
            }
            Self::ExtensionDiffers { name, versions: BothSides { base, change } } => {
                let [base, change] =
                    [base, change].map(|version| version.as_deref().unwrap_or("not installed"));
                write!(f, "extension {name}: {base} → {change}")
            }
            Self::TableDiffers { table, difference } => match difference {
                TableDifference::NewTable => write!(f, "table {table} is new"),
                TableDifference::DroppedTable => write!(f, "table {table} is missing"),
                TableDifference::NewIndex(index) => write!(f, "index {index} on {table} is new"),
                TableDifference::DroppedIndex(index) => {
                    write!(f, "index {index} on {table} is missing")
                }
                TableDifference::ChangedIndex(index) => {
                    write!(f, "index {index} on {table} has another definition")
                }
                TableDifference::NewTrigger(trigger) => {
                    write!(f, "trigger {trigger} on {table} is new")
                }
                TableDifference::DroppedTrigger(trigger) => {
                    write!(f, "trigger {trigger} on {table} is missing or disabled")
                }
                TableDifference::SizeChanged(BothSides { base, change }) => {
                    let [base, change] = [base, change].map(|bytes| text::bytes(*bytes));
                    write!(f, "size of table {table}: {base} → {change}")
                }
                TableDifference::StatisticsOlder => {
                    write!(f, "planner statistics of {table} are missing or older")
                }
                TableDifference::BloatGrew(BothSides { base, change }) => {
                    let [base, change] = [base, change].map(|share| share * 100.0);
                    write!(f, "dead rows of {table}: {base:.0} % → {change:.0} %")
                }
            },
        }
    }
}
