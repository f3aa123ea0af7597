//! The routing settings of a database, and a check of their consistency.

use std::collections::BTreeMap;

use crate::shard::ShardMap;

use crate::{hint::HintNames, role::RolePreference};

/// The routing settings of one database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteSettings {
    /// The role preference of sessions that do not set one.
    pub role: RolePreference,
    /// Whether reads that are routed automatically may also go to the primary.
    pub primary_reads: bool,
    /// The default of `SET READ YOUR WRITES`: whether a session's reads must see its own writes.
    pub read_your_writes: bool,
    /// Number of shards, at least one.
    pub shards: u32,
    /// The map from sharding keys to shards; `None` if the database has no sharding keys.
    pub map: Option<ShardMap>,
    /// The sharded and replicated tables. If empty, statements are not analyzed for keys.
    pub tables: RoutedTables,
    /// The shard for requests that neither a key, a hint nor a command assigns to a shard.
    pub default_shard: DefaultShard,
    /// Names of hints in comments; `None` disables hints.
    pub hints: Option<HintNames>,
    /// Functions that are known to read or write.
    pub functions: FunctionLists,
    /// Whether text sorts bytewise on every shard, as in the collation `C`; otherwise results
    /// sorted by text are not merged.
    pub text_by_byte: bool,
    /// Maximum length of a text that is analyzed, in bytes. Longer texts count as writes without a
    /// key.
    pub text_bytes_max: usize,
}

impl Default for RouteSettings {
    fn default() -> Self {
        Self {
            role: RolePreference::Any,
            primary_reads: true,
            read_your_writes: false,
            shards: 1,
            map: None,
            tables: RoutedTables::default(),
            default_shard: DefaultShard::Refuse,
            hints: None,
            functions: FunctionLists::default(),
            text_by_byte: false,
            text_bytes_max: 64 << 10,
        }
    }
}

/// The treatment of requests that neither a key, a hint nor a command assigns to a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DefaultShard {
    /// The request is refused. Statements that use no tables, or only replicated ones and the
    /// catalog, may still go to any shard.
    #[default]
    Refuse,
    /// The shard with this number, which has the unlisted tables.
    One(u32),
    /// Any shard; if statements are analyzed, only for requests that only read. Unlisted tables
    /// must be the same on all shards.
    Any,
}

/// Functions that are known to read or write, in addition to PostgreSQL's own. Names are spelled as
/// in the catalog, with or without a schema; a name without a schema applies to functions in any
/// schema.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FunctionLists {
    /// Functions that only read.
    pub read_only: Vec<String>,
    /// Functions that need the primary, even if they are PostgreSQL's own.
    pub writing: Vec<String>,
}

impl FunctionLists {
    /// Whether a function with this name only reads.
    pub(crate) fn only_reads(&self, name: &[&str]) -> bool {
        !has(&self.writing, name)
            && (has(&self.read_only, name) || howdah_sql::is_side_effect_free(name))
    }
}

fn has(names: &[String], name: &[&str]) -> bool {
    let Some((last, schema)) = name.split_last() else { return false };
    names.iter().any(|listed| match listed.split_once('.') {
        Some((of, listed)) => listed == *last && schema == [of],
        None => listed == last,
    })
}

/// The sharded tables, and the tables that are replicated to every shard.
///
/// A name without a schema matches tables in any schema. A name with a schema also matches an
/// unqualified name in a statement, whatever the search path. Names are spelled as in the catalog,
/// so unquoted ones are in lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoutedTables {
    by_name: BTreeMap<Box<str>, Vec<RoutedTable>>,
}

/// A sharded or replicated table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutedTable {
    /// Schema of the table; `None` matches any schema.
    pub schema: Option<String>,
    /// Name of the table, without its schema.
    pub name: String,
    /// The columns of the table's sharding key, in the order of the shard map's columns. If empty,
    /// the table is replicated to every shard.
    pub key: Vec<String>,
}

/// The class of a table, as determined by its name in a statement.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TableClass<'a> {
    Sharded(&'a RoutedTable),
    Replicated,
    System,
    Temporary,
    Unlisted,
}

impl FromIterator<RoutedTable> for RoutedTables {
    fn from_iter<I: IntoIterator<Item = RoutedTable>>(tables: I) -> Self {
        let mut by_name = BTreeMap::<_, Vec<_>>::new();
        for table in tables {
            by_name.entry(table.name.as_str().into()).or_default().push(table);
        }
        Self { by_name }
    }
}

impl RoutedTables {
    /// Whether there are neither sharded nor replicated tables.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Returns the class of `schema.name`; `schema` is empty if the statement gives none.
    pub(crate) fn classify_table(&self, schema: &str, name: &str) -> TableClass<'_> {
        let is_meant = |table: &&RoutedTable| {
            table.schema.as_deref().is_none_or(|listed| schema.is_empty() || schema == listed)
        };
        let is_system = matches!(schema, "pg_catalog" | "information_schema");
        match self.by_name.get(name).and_then(|tables| tables.iter().find(is_meant)) {
            _ if is_temporary(schema) => TableClass::Temporary,
            _ if is_system || (schema.is_empty() && name.starts_with("pg_")) => TableClass::System,
            Some(table) if table.key.is_empty() => TableClass::Replicated,
            Some(table) => TableClass::Sharded(table),
            None => TableClass::Unlisted,
        }
    }
}

/// Whether a schema is for temporary tables.
pub(crate) fn is_temporary(schema: &str) -> bool {
    schema.starts_with("pg_temp")
}

/// The reason why settings are inconsistent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// The number of shards is zero.
    #[error("there are no shards: at least one is needed")]
    NoShards,
    /// The shard map has a different number of shards than the settings.
    #[error("the number of shards is {shards}, but {map} in the shard map")]
    Shards {
        /// Number of shards of the map.
        map: u32,
        /// Number of shards in the settings.
        shards: u32,
    },
    /// The default shard does not exist.
    #[error("shard {shard} does not exist: shards are numbered from 0 to {last}")]
    NoSuchShard {
        /// The configured default shard.
        shard: u32,
        /// The highest shard number.
        last: u32,
    },
    /// The role is `auto`, but the build does not include PostgreSQL's grammar.
    #[error(
        "role 'auto' analyzes statements, which this build cannot do (build with --features grammar)"
    )]
    AutoWithoutGrammar,
    /// Sharded or replicated tables are configured, but the build does not include PostgreSQL's
    /// grammar.
    #[error(
        "sharding keys are found by analyzing statements, which this build cannot do \
         (build with --features grammar)"
    )]
    TablesWithoutGrammar,
    /// A table has a key, but no shard map is configured.
    #[error("the table {0:?} has a sharding key, but there is no shard map")]
    NoMap(String),
    /// A table's key has a different number of columns than the map.
    #[error("the number of key columns of {table:?} is {actual}, but {expected} in the shard map")]
    Columns {
        /// Name of the table.
        table: String,
        /// Number of columns of the table's key.
        actual: usize,
        /// Number of columns in the map.
        expected: usize,
    },
}

impl RouteSettings {
    /// Whether the shard of a request depends on its statement, unless the client has set a shard.
    pub(crate) fn inspects_statements(&self) -> bool {
        let refuses = self.default_shard == DefaultShard::Refuse;
        self.shards > 1 && (refuses || !self.tables.is_empty())
    }

    /// Checks that the settings are consistent.
    ///
    /// # Errors
    ///
    /// The first inconsistency that was found.
    pub fn check(&self) -> Result<(), SettingsError> {
        if !cfg!(feature = "grammar") {
            if self.role == RolePreference::Auto {
                return Err(SettingsError::AutoWithoutGrammar);
            }
            if !self.tables.is_empty() {
                return Err(SettingsError::TablesWithoutGrammar);
            }
        }
        let last = self.shards.checked_sub(1).ok_or(SettingsError::NoShards)?;
        if let DefaultShard::One(shard) = self.default_shard
            && shard > last
        {
            return Err(SettingsError::NoSuchShard { shard, last });
        }
        if let Some(map) = self.map.as_ref().filter(|map| map.shards() != self.shards) {
            return Err(SettingsError::Shards { map: map.shards(), shards: self.shards });
        }
        for table in self.tables.by_name.values().flatten().filter(|table| !table.key.is_empty()) {
            let Some(map) = &self.map else { return Err(SettingsError::NoMap(table.name.clone())) };
            let (actual, expected) = (table.key.len(), map.columns().len());
            if actual != expected {
                return Err(SettingsError::Columns { table: table.name.clone(), actual, expected });
            }
        }
        Ok(())
    }
}

#[test]
fn qualified_name_takes_precedence() {
    let table = |schema: Option<&str>, name: &str, key: &[&str]| RoutedTable {
        schema: schema.map(str::to_owned),
        name: name.to_owned(),
        key: key.iter().map(|column| (*column).to_owned()).collect(),
    };
    let tables: RoutedTables =
        [table(Some("app"), "orders", &["id"]), table(None, "countries", &[])]
            .into_iter()
            .collect();
    let meaning = |schema, name| format!("{:?}", tables.classify_table(schema, name));
    assert!(meaning("", "orders").starts_with("Sharded"));
    assert!(meaning("app", "orders").starts_with("Sharded"));
    assert_eq!(meaning("other", "orders"), "Unlisted");
    assert_eq!(meaning("any", "countries"), "Replicated");
    assert_eq!(meaning("pg_temp", "countries"), "Temporary");
    assert_eq!(meaning("", "pg_class"), "System");
    assert_eq!(meaning("app", "pg_class"), "Unlisted");
    assert_eq!(meaning("information_schema", "tables"), "System");
}

#[test]
fn inconsistent_settings_are_refused() {
    use crate::shard::KeyType;

    let good = RouteSettings { shards: 2, ..RouteSettings::default() };
    assert_eq!(good.check(), Ok(()));
    let none = RouteSettings { shards: 0, ..good.clone() };
    assert_eq!(none.check(), Err(SettingsError::NoShards));
    let beyond = RouteSettings { default_shard: DefaultShard::One(2), ..good.clone() };
    assert_eq!(beyond.check(), Err(SettingsError::NoSuchShard { shard: 2, last: 1 }));
    let map = ShardMap::hash(3, vec![KeyType::Int]).ok();
    let other = RouteSettings { map, ..good.clone() };
    assert_eq!(other.check(), Err(SettingsError::Shards { map: 3, shards: 2 }));
    let key = vec!["a".to_owned(), "b".to_owned()];
    let orders = RoutedTable { schema: None, name: "orders".to_owned(), key };
    let tables = RouteSettings { tables: [orders].into_iter().collect(), ..good };
    assert_eq!(tables.check(), Err(SettingsError::NoMap("orders".to_owned())));
    let map = ShardMap::hash(2, vec![KeyType::Int]).ok();
    let columns = SettingsError::Columns { table: "orders".to_owned(), actual: 2, expected: 1 };
    assert_eq!(RouteSettings { map, ..tables }.check(), Err(columns));
}
