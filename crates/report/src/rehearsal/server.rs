//! The facts of a server in a rehearsal, and the ways in which two servers can differ.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use crate::text;

/// The name of a table or view, with its schema and database.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TableName {
    /// Name of the database; `None` for the main database, [`ServerFacts::database`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub database: Option<String>,
    /// Name of the schema, such as `public`.
    pub schema: String,
    /// Name of the table, without quotes.
    pub name: String,
}

/// Writes `orders`, or `sales.orders` outside of the schema `public`, or `crm.sales.orders` in
/// another database.
impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { database, schema, name } = self;
        match (database, schema.as_str()) {
            (Some(database), schema) => write!(f, "{database}.{schema}.{name}"),
            (None, "public") => f.write_str(name),
            (None, schema) => write!(f, "{schema}.{name}"),
        }
    }
}

/// The facts of one server, and of the rehearsed databases.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerFacts {
    /// Address of the server, without a password.
    pub target: String,
    /// Name of the main database, which the user gave with the server's address.
    pub database: String,
    /// The server's `server_version`.
    pub version: String,
    /// System identifier of the cluster; `None` if the role may not read it.
    pub system_identifier: Option<String>,
    /// The WAL timeline; `None` if the role may not read it.
    pub timeline: Option<u32>,
    /// The settings that are compared. A report has only those that differ or are not at their
    /// default.
    pub settings: BTreeMap<String, SettingValue>,
    /// Versions of extensions, by name; in other databases, by `name in database`.
    pub extensions: BTreeMap<String, String>,
    /// Size of `database` in bytes; 0 if unknown.
    pub database_bytes: u64,
    /// The largest tables of each database.
    pub tables: Vec<TableFacts>,
    /// Whether there are more tables than listed.
    pub is_truncated: bool,
    /// Views over the tables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub views: Vec<ViewFacts>,
    /// Number of other clients' sessions that were active within the last minute, in any database.
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
    /// Name of the table, with its schema and database.
    pub name: TableName,
    /// Size of the heap and TOAST, without indexes, in bytes.
    pub bytes: u64,
    /// Statistics as of the first run.
    pub statistics: TableStatistics,
    /// The valid indexes of the table.
    pub indexes: Vec<IndexFacts>,
    /// Names of the enabled triggers, without those of constraints.
    pub triggers: Vec<String>,
}

/// A view, with the tables that it reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewFacts {
    /// Name of the view.
    pub name: TableName,
    /// The tables that it reads, also through other views.
    pub tables: Vec<TableName>,
}

/// Counts of rows, and the age of the planner's statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TableStatistics {
    /// Number of live rows: `n_live_tup`, or `reltuples` if that is 0.
    pub live_rows: u64,
    /// Number of dead rows, `n_dead_tup`.
    pub dead_rows: u64,
    /// Seconds since the last ANALYZE; `None` if the server does not know of one, as after a
    /// restore.
    pub analyzed_s: Option<u64>,
    /// Whether the table was never vacuumed or analyzed, as after most upgrades: the planner has no
    /// statistics of it.
    #[serde(default)]
    pub is_missing: bool,
}

/// An index of a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IndexFacts {
    /// Name without the schema, which is that of the table.
    pub name: String,
    /// Definition without the name: indexes with equal definitions serve the same queries.
    pub definition: String,
    /// Size of the index in bytes.
    pub bytes: u64,
}

/// One value for each of the two servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BothSides<T> {
    /// The value on the base.
    pub base: T,
    /// The value on the server with the change.
    pub change: T,
}

/// A difference between the base and the server with the change.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ServerDifference {
    /// The servers run different versions of PostgreSQL.
    Version(BothSides<String>),
    /// A setting has different values.
    SettingDiffers {
        /// Name of the setting, as in `pg_settings`.
        name: String,
        /// The values, with units.
        values: BothSides<String>,
    },
    /// An extension has different versions, or is missing on one server.
    ExtensionDiffers {
        /// Name of the extension, as in [`ServerFacts::extensions`].
        name: String,
        /// The versions; `None` where the extension is not installed.
        versions: BothSides<Option<String>>,
    },
    /// The servers behaved differently during the runs.
    ActivityDiffers {
        /// The measured figure.
        figure: ActivityFigure,
        /// Means over the runs of each side, in the unit of the figure.
        values: BothSides<f64>,
    },
    /// A table differs, or exists on one server only.
    TableDiffers {
        /// The table, which may exist on one server only.
        table: TableName,
        /// The kind of difference.
        difference: TableDifference,
    },
}

/// A figure of a server's activity during the runs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ActivityFigure {
    /// Sessions that waited, on average.
    Waiting {
        /// Class of the wait events, as in `pg_stat_activity.wait_event_type`.
        class: String,
    },
    /// Share of page requests that found the page in the buffer cache, from 0 to 1.
    CacheHits,
    /// Bytes per second written to temporary files.
    TemporaryFiles,
    /// Checkpoints per run.
    Checkpoints,
}

impl ActivityFigure {
    /// Returns the name of the difference in JSON.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Waiting { .. } => "waits_differ",
            Self::CacheHits => "cache_hits_differ",
            Self::TemporaryFiles => "temporary_files_differ",
            Self::Checkpoints => "checkpoints_differ",
        }
    }
}

/// A way in which a table on the server with the change differs from that on the base. Triggers are
/// identified by name; an index is new or dropped only if the other server has neither its name nor
/// its definition.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum TableDifference {
    /// The table does not exist on the base.
    NewTable,
    /// The table exists on the base only.
    DroppedTable,
    /// The index does not exist on the base.
    NewIndex(String),
    /// The index exists on the base only.
    DroppedIndex(String),
    /// The index has another definition.
    ChangedIndex(String),
    /// The trigger is enabled on the server with the change only.
    NewTrigger(String),
    /// The trigger is enabled on the base only.
    DroppedTrigger(String),
    /// The table's sizes in bytes, which differ by more than VACUUM or a fill factor explains.
    SizeChanged(BothSides<u64>),
    /// The planner's statistics are missing on the server with the change only, or much older
    /// there.
    StatisticsOlder,
    /// A larger share of the rows is dead; shares from 0 to 1.
    BloatGrew(BothSides<f64>),
}

impl ServerDifference {
    /// Returns the table that differs; `None` if the difference concerns the whole server.
    pub fn table(&self) -> Option<&TableName> {
        match self {
            Self::TableDiffers { table, .. } => Some(table),
            _ => None,
        }
    }

    /// Returns the name of the difference in JSON.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Version(_) => "version",
            Self::SettingDiffers { .. } => "setting_differs",
            Self::ExtensionDiffers { .. } => "extension_differs",
            Self::ActivityDiffers { figure, .. } => figure.kind(),
            Self::TableDiffers { difference, .. } => difference.kind(),
        }
    }
}

impl TableDifference {
    /// Returns the name of the difference in JSON.
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

/// Describes the step from the base to the change: `index orders_customer_idx on orders is
/// missing`.
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
            Self::ActivityDiffers { figure, values: BothSides { base, change } } => match figure {
                ActivityFigure::Waiting { class } => write!(
                    f,
                    "sessions waiting for {class} during the runs: {base:.2} → {change:.2} on average"
                ),
                ActivityFigure::CacheHits => {
                    let [base, change] = [base, change].map(|share| share * 100.0);
                    write!(
                        f,
                        "pages found in the buffer cache during the runs: {base:.1} % → {change:.1} %"
                    )
                }
                ActivityFigure::TemporaryFiles => {
                    let [base, change] = [base, change].map(|bytes| text::bytes(*bytes as u64));
                    write!(f, "temporary files during the runs: {base}/s → {change}/s")
                }
                ActivityFigure::Checkpoints => {
                    write!(f, "checkpoints during the runs: {base:.1} → {change:.1} per run")
                }
            },
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
