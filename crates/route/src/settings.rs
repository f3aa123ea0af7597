//! What a database's settings say about routing.

use std::collections::BTreeMap;

use howdah_shard::ShardMap;

use crate::{hint::HintNames, role::RolePreference};

/// How the requests of one database are routed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What sessions want that do not say.
    pub role: RolePreference,
    /// Whether reads that are routed automatically may go to the primary, too.
    pub primary_reads: bool,
    /// Whether sessions that do not say read what they wrote, from whichever server.
    pub read_your_writes: bool,
    /// How many shards there are, at least one.
    pub shards: u32,
    /// Which key is on which shard, if there are keys.
    pub map: Option<ShardMap>,
    /// The tables whose keys are looked for in statements; with none, statements are not looked at for keys.
    pub tables: Tables,
    /// Where requests go that nothing else sends somewhere.
    pub default_shard: DefaultShard,
    /// By which words hints in comments are known; none: comments are not looked at.
    pub hints: Option<HintNames>,
    /// What is known about functions.
    pub functions: Functions,
    /// Text is in the order of its bytes on every shard, as in the collation `C`; otherwise answers in the
    /// order of text are not put together.
    pub text_by_byte: bool,
    /// Texts longer than this many bytes are not looked at: they write, and tell no key.
    pub text_bytes_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            role: RolePreference::Any,
            primary_reads: true,
            read_your_writes: false,
            shards: 1,
            map: None,
            tables: Tables::default(),
            default_shard: DefaultShard::Refuse,
            hints: None,
            functions: Functions::default(),
            text_by_byte: false,
            text_bytes_max: 64 << 10,
        }
    }
}

/// Where a request goes that nothing sends somewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DefaultShard {
    /// Nowhere. What uses no table, or the catalog only, may go anywhere.
    #[default]
    Refuse,
    /// To this one: tables that are not listed are there.
    One(u32),
    /// To any, if it only reads: tables that are not listed are the same everywhere.
    Any,
}

/// What is known about functions, beside PostgreSQL's own. Names are as the catalog has them, with their
/// schema or without; without one, a name is that of functions in any schema.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Functions {
    /// They only read.
    pub reading: Vec<String>,
    /// They need the primary, even if they are PostgreSQL's own.
    pub writing: Vec<String>,
}

impl Functions {
    /// Whether a function by this name only reads.
    pub(crate) fn only_reads(&self, name: &[&str]) -> bool {
        !has(&self.writing, name)
            && (has(&self.reading, name) || howdah_sql::is_side_effect_free(name))
    }
}

fn has(names: &[String], name: &[&str]) -> bool {
    let Some((last, schema)) = name.split_last() else { return false };
    names.iter().any(|known| match known.split_once('.') {
        Some((of, known)) => known == *last && schema == [of],
        None => known == last,
    })
}

/// The tables that are spread over shards, and those that every shard has whole.
///
/// A name without a schema is that of a table in any schema; one with a schema is also meant by a statement
/// that leaves the schema to the search path. Names are as the catalog has them: in lower case, mostly.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    by_name: BTreeMap<Box<str>, Vec<Table>>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Its schema, if it is said.
    pub schema: Option<String>,
    /// Its name.
    pub name: String,
    /// The columns of its sharding key, in the map's order; none: it is whole on every shard.
    pub key: Vec<String>,
}

/// What a name in a statement means.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Meaning<'a> {
    Sharded(&'a Table),
    Everywhere,
    System,
    Temporary,
    Unlisted,
}

impl FromIterator<Table> for Tables {
    fn from_iter<I: IntoIterator<Item = Table>>(tables: I) -> Self {
        let mut by_name = BTreeMap::<_, Vec<_>>::new();
        for table in tables {
            by_name.entry(table.name.as_str().into()).or_default().push(table);
        }
        Self { by_name }
    }
}

impl Tables {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// What `schema.name` means; the schema is empty where none is written.
    pub(crate) fn meaning(&self, schema: &str, name: &str) -> Meaning<'_> {
        let is_meant = |table: &&Table| {
            table.schema.as_deref().is_none_or(|known| schema.is_empty() || schema == known)
        };
        let own = matches!(schema, "pg_catalog" | "information_schema");
        match self.by_name.get(name).and_then(|tables| tables.iter().find(is_meant)) {
            _ if is_temporary(schema) => Meaning::Temporary,
            _ if own || (schema.is_empty() && name.starts_with("pg_")) => Meaning::System,
            Some(table) if table.key.is_empty() => Meaning::Everywhere,
            Some(table) => Meaning::Sharded(table),
            None => Meaning::Unlisted,
        }
    }
}

/// Whether a schema is one of temporary tables.
pub(crate) fn is_temporary(schema: &str) -> bool {
    schema.starts_with("pg_temp")
}

/// Why settings do not fit together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// There has to be one.
    #[error("there are no shards: there has to be one at least")]
    NoShards,
    /// The map is of another number of shards.
    #[error("keys are on {map} shards, and there are {shards}")]
    Shards {
        /// Of the map.
        map: u32,
        /// Of the settings.
        shards: u32,
    },
    /// The default is none of them.
    #[error("shard {shard} is not there: shards are numbered from 0 to {last}")]
    NoSuchShard {
        /// The default.
        shard: u32,
        /// The last there is.
        last: u32,
    },
    /// The role `auto` in a build without PostgreSQL's grammar.
    #[error(
        "role 'auto' reads statements, which this build cannot (build with --features grammar)"
    )]
    AutoWithoutGrammar,
    /// Tables with sharding keys in a build without PostgreSQL's grammar.
    #[error(
        "sharding keys are found by reading statements, which this build cannot (build with --features grammar)"
    )]
    TablesWithoutGrammar,
    /// Tables with keys, and nothing that says where keys are.
    #[error("the table {0:?} has a sharding key, and nothing says which key is on which shard")]
    NoMap(String),
    /// A table whose key has more or fewer columns than others'.
    #[error("the key of the table {table:?} has {given} columns, and {wanted} are wanted")]
    Columns {
        /// The table.
        table: String,
        /// Its columns.
        given: usize,
        /// Those of the map.
        wanted: usize,
    },
}

impl Settings {
    /// Whether it is up to statements which shard they go to, where nobody has said one.
    pub(crate) fn asks_statements(&self) -> bool {
        let refuses = self.default_shard == DefaultShard::Refuse;
        self.shards > 1 && (refuses || !self.tables.is_empty())
    }

    /// Whether all of it fits together.
    ///
    /// # Errors
    ///
    /// What does not.
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
            let (given, wanted) = (table.key.len(), map.columns().len());
            if given != wanted {
                return Err(SettingsError::Columns { table: table.name.clone(), given, wanted });
            }
        }
        Ok(())
    }
}

#[test]
fn names_mean_what_is_nearest() {
    let table = |schema: Option<&str>, name: &str, key: &[&str]| Table {
        schema: schema.map(str::to_owned),
        name: name.to_owned(),
        key: key.iter().map(|column| (*column).to_owned()).collect(),
    };
    let tables: Tables = [table(Some("app"), "orders", &["id"]), table(None, "countries", &[])]
        .into_iter()
        .collect();
    let meaning = |schema, name| format!("{:?}", tables.meaning(schema, name));
    assert!(meaning("", "orders").starts_with("Sharded"));
    assert!(meaning("app", "orders").starts_with("Sharded"));
    assert_eq!(meaning("other", "orders"), "Unlisted");
    assert_eq!(meaning("any", "countries"), "Everywhere");
    assert_eq!(meaning("pg_temp", "countries"), "Temporary");
    assert_eq!(meaning("", "pg_class"), "System");
    assert_eq!(meaning("app", "pg_class"), "Unlisted");
    assert_eq!(meaning("information_schema", "tables"), "System");
}

#[test]
fn settings_that_do_not_fit_are_told() {
    use howdah_shard::KeyType;

    let good = Settings { shards: 2, ..Settings::default() };
    assert_eq!(good.check(), Ok(()));
    let none = Settings { shards: 0, ..good.clone() };
    assert_eq!(none.check(), Err(SettingsError::NoShards));
    let beyond = Settings { default_shard: DefaultShard::One(2), ..good.clone() };
    assert_eq!(beyond.check(), Err(SettingsError::NoSuchShard { shard: 2, last: 1 }));
    let map = ShardMap::hash(3, vec![KeyType::Int]).ok();
    let other = Settings { map, ..good.clone() };
    assert_eq!(other.check(), Err(SettingsError::Shards { map: 3, shards: 2 }));
    let key = vec!["a".to_owned(), "b".to_owned()];
    let orders = Table { schema: None, name: "orders".to_owned(), key };
    let tables = Settings { tables: [orders].into_iter().collect(), ..good };
    assert_eq!(tables.check(), Err(SettingsError::NoMap("orders".to_owned())));
    let map = ShardMap::hash(2, vec![KeyType::Int]).ok();
    let columns = SettingsError::Columns { table: "orders".to_owned(), given: 2, wanted: 1 };
    assert_eq!(Settings { map, ..tables }.check(), Err(columns));
}
