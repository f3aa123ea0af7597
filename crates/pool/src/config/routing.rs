//! How requests are routed: `[pool.databases.NAME.routing]`, `.sharding` and `[[pool.databases.NAME.shards]]`.

use std::collections::BTreeMap;

use howdah_route::{DefaultShard, Functions, HintNames, Settings, Table};
use howdah_shard::{Key, KeyType, Range, ShardMap};
use serde::{Deserialize, Serialize};

use super::{Database, ServerEntry};

/// How requests of clients find their servers: `[pool.databases.NAME.routing]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Routing {
    /// Whether reads that are routed automatically may go to the primary, too.
    pub primary_reads: bool,
    /// Whether a client that wrote gets no standby that has not replayed that.
    pub read_your_writes: bool,
    /// Whether hints in comments are looked for.
    pub hints: bool,
    /// By which words they are known.
    pub hint_names: Hints,
    /// Functions that only read, beside PostgreSQL's own.
    pub read_only_functions: Vec<String>,
    /// Functions that need the primary, even PostgreSQL's own.
    pub writing_functions: Vec<String>,
}

impl Default for Routing {
    fn default() -> Self {
        Self {
            primary_reads: true,
            read_your_writes: false,
            hints: false,
            hint_names: Hints::default(),
            read_only_functions: Vec::new(),
            writing_functions: Vec::new(),
        }
    }
}

/// By which words hints are known: `routing.hint-names`. An empty one is never found.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Hints {
    /// Before a shard's number.
    pub shard: String,
    /// Before a sharding key.
    pub key: String,
    /// Before a role.
    pub role: String,
}

impl Default for Hints {
    fn default() -> Self {
        let HintNames { shard, key, role } = HintNames::default();
        Self { shard, key, role }
    }
}

/// Which row is on which shard: `[pool.databases.NAME.sharding]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Sharding {
    /// The types of the sharding key's columns.
    pub key: Vec<String>,
    /// Which hash says where a key is, where no lists and no ranges do.
    pub hash: ShardHash,
    /// The tables that are spread.
    pub tables: KeyedTables,
    /// Where requests go that nothing sends somewhere.
    pub default: Place,
    /// In which order text is on every shard.
    pub collation: TextOrder,
}

/// Which hash says where a key is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShardHash {
    /// That of `PARTITION BY HASH`.
    #[default]
    Postgresql,
    /// PgCat's `sha1`, of one integer.
    Sha1,
}

/// In which order text is on every shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TextOrder {
    /// Some collation's: answers in the order of text are not put together.
    #[default]
    Unknown,
    /// That of its bytes, as in the collation `C`.
    Bytes,
}

/// Tables, by name or `schema.name`, with the columns of their keys; without columns, every shard has the
/// whole table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(transparent)]
pub struct KeyedTables(pub BTreeMap<String, Vec<String>>);

/// Where requests go that nothing sends somewhere: a number, `"any"` or `"refuse"`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(untagged)]
pub enum Place {
    /// To this shard.
    Shard(u32),
    /// As the word says.
    Word(String),
}

impl Default for Place {
    fn default() -> Self {
        Self::Word("refuse".to_owned())
    }
}

/// One shard: an entry of `shards`. They are numbered from 0 in the order given.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ShardEntry {
    /// Its servers, which hold the same.
    pub servers: Vec<ServerEntry>,
    /// What servers call the database there; the database's own `dbname` if none is given.
    pub dbname: Option<String>,
    /// Keys that are there, where the shards are lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<Value>,
    /// Whether all keys are there that no list has.
    #[serde(default)]
    pub rest: bool,
    /// The least key that is there, where the shards are ranges; none for no bound.
    pub from: Option<Value>,
    /// The least that is not there any more; none for no bound.
    pub to: Option<Value>,
}

/// A key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(untagged)]
pub enum Value {
    /// A number.
    Number(i64),
    /// As PostgreSQL would write it.
    Text(String),
}

impl Value {
    fn key(&self, of: KeyType) -> Result<Key, String> {
        let text = match self {
            Self::Number(number) => number.to_string(),
            Self::Text(text) => text.clone(),
        };
        of.parse(text).map_err(|error| error.to_string())
    }
}

/// A type of keys by its name.
fn key_type(name: &str) -> Option<KeyType> {
    Some(match name.to_ascii_lowercase().as_str() {
        "bigint" | "integer" | "int" | "smallint" | "int8" | "int4" | "int2" => KeyType::Int,
        "text" | "varchar" => KeyType::Text,
        "uuid" => KeyType::Uuid,
        "bytea" => KeyType::Bytea,
        _ => return None,
    })
}

impl Database {
    /// Whether its clients have a choice of servers.
    pub(crate) fn is_routed(&self) -> bool {
        !self.servers.is_empty() || !self.shards.is_empty()
    }

    /// How requests are routed.
    ///
    /// # Errors
    ///
    /// What does not fit together: a key below the database, and why.
    pub(crate) fn routes(&self) -> Result<Settings, (String, String)> {
        let shards = u32::try_from(self.shards.len().max(1)).unwrap_or(u32::MAX);
        let routing = &self.routing;
        let Hints { shard, key, role } = routing.hint_names.clone();
        let table = |(name, key): (&String, &Vec<String>)| {
            let (schema, name) = match name.split_once('.') {
                Some((schema, name)) => (Some(schema.to_owned()), name),
                None => (None, name.as_str()),
            };
            Table { schema, name: name.to_owned(), key: key.clone() }
        };
        let settings = Settings {
            role: self.cluster.role,
            primary_reads: routing.primary_reads,
            read_your_writes: routing.read_your_writes,
            shards,
            map: self.map(shards)?,
            tables: self.sharding.tables.0.iter().map(table).collect(),
            default_shard: self.default_shard()?,
            hints: routing.hints.then_some(HintNames { shard, key, role }),
            functions: Functions {
                reading: routing.read_only_functions.clone(),
                writing: routing.writing_functions.clone(),
            },
            text_by_byte: self.sharding.collation == TextOrder::Bytes,
            ..Settings::default()
        };
        settings.check().map_err(|error| {
            let key = match error {
                howdah_route::SettingsError::NoSuchShard { .. } => "sharding.default",
                howdah_route::SettingsError::NoMap(_) => "sharding.key",
                howdah_route::SettingsError::AutoWithoutGrammar => "cluster.role",
                _ => "sharding.tables",
            };
            (key.to_owned(), error.to_string())
        })?;
        Ok(settings)
    }

    fn default_shard(&self) -> Result<DefaultShard, (String, String)> {
        match &self.sharding.default {
            Place::Shard(shard) => Ok(DefaultShard::One(*shard)),
            Place::Word(word) if word == "any" => Ok(DefaultShard::Any),
            Place::Word(word) if word == "refuse" => Ok(DefaultShard::Refuse),
            Place::Word(_) => {
                let why = "must be the number of a shard, \"any\" or \"refuse\"";
                Err(("sharding.default".to_owned(), why.to_owned()))
            }
        }
    }

    /// Which key is where: by lists or ranges if the shards have such, else by hash.
    fn map(&self, shards: u32) -> Result<Option<ShardMap>, (String, String)> {
        let at_key = |why: &str| ("sharding.key".to_owned(), why.to_owned());
        let at_hash = |why: &str| Err(("sharding.hash".to_owned(), why.to_owned()));
        let is_other = self.sharding.hash != ShardHash::default();
        let mut columns = Vec::new();
        for name in &self.sharding.key {
            let why = format!("{name:?} is none of bigint, text, uuid and bytea");
            columns.push(key_type(name).ok_or_else(|| at_key(&why))?);
        }
        let lists = self.shards.iter().any(|shard| !shard.values.is_empty() || shard.rest);
        let ranges = self.shards.iter().any(|shard| shard.from.is_some() || shard.to.is_some());
        let at = |number: usize, key: &str, why: String| (format!("shards[{number}].{key}"), why);
        if columns.is_empty() {
            return match lists || ranges || is_other {
                true if is_other => at_hash("it needs a key: sharding.key = [\"bigint\"]"),
                true => Err(at_key("shards have keys, and nothing says of which type they are")),
                false => Ok(None),
            };
        }
        let map = match (lists, ranges, &columns[..]) {
            (false, false, [KeyType::Int]) if is_other => ShardMap::sha1(shards),
            (false, false, _) if is_other => {
                return at_hash("sha1 is of keys with one column, a bigint");
            }
            (..) if is_other => {
                return at_hash("shards that have lists or ranges are not found by a hash");
            }
            (false, false, _) => ShardMap::hash(shards, columns),
            (true, true, _) => {
                return Err((
                    "shards".to_owned(),
                    "lists and ranges exclude each other".to_owned(),
                ));
            }
            (true, false, &[of]) => {
                let (mut places, mut otherwise) = (BTreeMap::new(), None);
                for (number, shard) in (0..).zip(&self.shards) {
                    if shard.rest && otherwise.replace(number).is_some() {
                        let why = "only one shard can have the rest".to_owned();
                        return Err(at(number as usize, "rest", why));
                    }
                    for value in &shard.values {
                        let key =
                            value.key(of).map_err(|why| at(number as usize, "values", why))?;
                        if places.insert(Some(key), number).is_some() {
                            let why = format!("{value:?} is there twice");
                            return Err(at(number as usize, "values", why));
                        }
                    }
                }
                ShardMap::list(shards, of, places, otherwise)
            }
            (false, true, &[of]) => {
                let mut ranges = Vec::new();
                for (number, shard) in (0..).zip(&self.shards) {
                    let end = |value: &Option<Value>, name| {
                        let key = value.as_ref().map(|value| value.key(of)).transpose();
                        key.map_err(|why| at(number as usize, name, why))
                    };
                    let (from, to) = (end(&shard.from, "from")?, end(&shard.to, "to")?);
                    ranges.push(Range { from, to, shard: number });
                }
                ShardMap::ranges(shards, of, ranges)
            }
            _ => return Err(at_key("lists and ranges are of keys with one column")),
        };
        map.map(Some).map_err(|error| at_key(&error.to_string()))
    }

    /// What cannot be of shards and routing: key below the database, and reason.
    pub(super) fn wrong_routing(&self) -> Vec<(String, String)> {
        let mut wrong = Vec::new();
        let mut rule = |is_wrong: bool, key: &str, why: &str| {
            if is_wrong {
                wrong.push((key.to_owned(), why.to_owned()));
            }
        };
        let elsewhere = !self.hosts.is_empty() || !self.servers.is_empty();
        rule(
            elsewhere && !self.shards.is_empty(),
            "shards",
            "shards have servers of their own: give no hosts or servers beside them",
        );
        for (number, shard) in self.shards.iter().enumerate() {
            let key = format!("shards[{number}].servers");
            rule(shard.servers.is_empty(), &key, "a shard needs a server");
        }
        let none = !self.is_routed();
        let why = "there are no servers or shards to which it could apply";
        rule(none && self.routing != Routing::default(), "routing", why);
        let why = "there are no shards to which it could apply";
        let is_said = self.sharding != Sharding::default();
        rule(self.shards.is_empty() && is_said, "sharding", why);
        if let Err((key, why)) = self.routes() {
            rule(true, &key, &why);
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use howdah_route::RolePreference;

    use super::super::Config;

    fn read(database: &str) -> Result<Config, String> {
        let text = format!("[pool.databases.app]\n{database}");
        let read = Config::read_str(&text, Path::new("h.toml"));
        read.map(|read| read.config).map_err(|error| error.to_string())
    }

    const SHARDS: &str = "
        cluster = { role = 'auto' }
        sharding = { key = ['bigint'], tables = { 'app.orders' = ['customer'], countries = [] } }
        routing = { hints = true, primary-reads = false }
        [[pool.databases.app.shards]]
        servers = [{ host = 'a' }, { host = 'b', port = 7 }]
        dbname = 'app_0'
        [[pool.databases.app.shards]]
        servers = [{ host = 'c' }]";

    #[test]
    fn shards_are_clusters_in_their_order() {
        let config = read(SHARDS).unwrap();
        let shown: Vec<_> = config
            .pool("app", "me")
            .unwrap()
            .clusters
            .iter()
            .map(|it| (it.servers.len(), it.servers[0].endpoint.to_string(), it.dbname.clone()))
            .collect();
        let own = Some("app_0".to_owned());
        assert_eq!(shown, [(2, "a:5432".to_owned(), own), (1, "c:5432".to_owned(), None)]);
        let routes = config.databases["app"].routes().unwrap();
        assert!(routes.shards == 2 && routes.role == RolePreference::Auto && !routes.primary_reads);
        assert!(routes.hints.is_some() && routes.map.is_some() && !routes.tables.is_empty());
        let again = Config::read_str(&config.to_toml(), Path::new("h.toml")).unwrap().config;
        assert_eq!(again, config, "{}", config.to_toml());
    }

    #[test]
    fn the_other_hash_is_of_one_integer() {
        let of = |sharding: &str, more: &str| {
            read(&format!(
                "sharding = {{ {sharding} hash = 'sha1' }}
                [[pool.databases.app.shards]]\nservers = [{{ host = 'a' }}]\n{more}"
            ))
        };
        assert!(of("key = ['integer'],", "").is_ok());
        for (sharding, more, why) in [
            ("", "", "app.sharding.hash: it needs a key"),
            ("key = ['text'],", "", "app.sharding.hash: sha1 is of keys with one column"),
            ("key = ['bigint', 'bigint'],", "", "app.sharding.hash: sha1 is of keys with one"),
            ("key = ['bigint'],", "values = [1]", "app.sharding.hash: shards that have lists"),
        ] {
            let said = of(sharding, more).unwrap_err();
            assert!(said.contains(why), "{said}");
        }
    }

    #[test]
    fn lists_and_ranges_are_of_shards() {
        let of = |key: &str, first: &str, second: &str| {
            read(&format!(
                "sharding = {{ key = ['{key}'] }}
                [[pool.databases.app.shards]]\nservers = [{{ host = 'a' }}]\n{first}
                [[pool.databases.app.shards]]\nservers = [{{ host = 'b' }}]\n{second}"
            ))
        };
        assert!(of("text", "values = ['de', 'at']", "rest = true").is_ok());
        assert!(of("bigint", "to = 1000", "from = 1000").is_ok());
        for (key, first, second, why) in [
            ("bigint", "values = ['x']", "", "app.shards[0].values: \"x\" is no bigint"),
            (
                "bigint",
                "values = [1]",
                "values = [1]",
                "app.shards[1].values: Number(1) is there twice",
            ),
            ("bigint", "rest = true", "rest = true", "app.shards[1].rest: only one"),
            ("bigint", "values = [1]", "from = 1", "app.shards: lists and ranges"),
            ("bigint", "to = 10", "from = 5", "app.sharding.key: the ranges"),
            ("money", "", "", "app.sharding.key: \"money\" is none of"),
        ] {
            let said = of(key, first, second).unwrap_err();
            assert!(said.contains(why), "{first} {second}: {said}");
        }
    }

    #[test]
    fn what_cannot_be_names_its_key() {
        let beside = format!("hosts = ['x']\n{SHARDS}");
        let far = SHARDS.replace("key = ['bigint']", "key = ['bigint'], default = 2");
        let word = SHARDS.replace("key = ['bigint']", "key = ['bigint'], default = 'all'");
        let no_key = SHARDS.replace("key = ['bigint'], ", "");
        let two = SHARDS.replace("['customer']", "['customer', 'day']");
        let twice = SHARDS.replace("host = 'b', port = 7", "host = 'a'");
        for (text, why) in [
            ("routing = { hints = true }", "app.routing: there are no servers"),
            (
                "servers = [{ host = 'a' }]\nsharding = { default = 0 }",
                "app.sharding: there are no",
            ),
            (&beside, "app.shards: shards have servers of their own"),
            (&far, "app.sharding.default: shard 2 is not there"),
            (&word, "app.sharding.default: must be the number"),
            (&no_key, "app.sharding.key: the table \"orders\" has a sharding key"),
            (&two, "app.sharding.tables: the key of the table \"orders\" has 2 columns"),
            (&twice, "app.shards[0].servers[1].host: the same server is there twice"),
            ("[[pool.databases.app.shards]]\nservers = []", "app.shards[0].servers: a shard needs"),
            ("servers = [{ host = 'a' }]\ncluster = { role = 'boss' }", "must be any, primary"),
        ] {
            let said = read(text).unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
    }
}
