//! Routing of requests: `[pool.databases.NAME.routing]`, `[pool.databases.NAME.sharding]` and
//! `[[pool.databases.NAME.shards]]`.

use std::{collections::BTreeMap, fmt};

use howdah_route::shard::{KeyType, Range, ShardKey, ShardMap};
use howdah_route::{DefaultShard, FunctionLists, HintNames, RouteSettings, RoutedTable};
use serde::{Deserialize, Serialize};

use super::{DatabaseConfig, ServerEntry};

/// Settings for routing requests to servers: `[pool.databases.NAME.routing]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct RoutingConfig {
    /// Whether automatically routed reads may also go to the primary.
    pub primary_reads: bool,
    /// Whether a client's reads go to a standby only once it has replayed the client's writes.
    pub read_your_writes: bool,
    /// Whether hints in SQL comments are recognized.
    pub hints: bool,
    /// The keywords that introduce hints in SQL comments.
    pub hint_names: HintConfig,
    /// Functions that only read, in addition to PostgreSQL's own.
    pub read_only_functions: Vec<String>,
    /// Functions that must run on the primary; may include PostgreSQL's own.
    pub writing_functions: Vec<String>,
}

impl Default for RoutingConfig {
    fn default() -> Self {
        Self {
            primary_reads: true,
            read_your_writes: false,
            hints: false,
            hint_names: HintConfig::default(),
            read_only_functions: Vec::new(),
            writing_functions: Vec::new(),
        }
    }
}

/// The keywords of hints: `routing.hint-names`. An empty keyword disables the hint.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct HintConfig {
    /// Keyword of the hint whose value is a shard number.
    pub shard: String,
    /// Keyword of the hint whose value is a sharding key.
    pub key: String,
    /// Keyword of the hint whose value is a role.
    pub role: String,
}

impl Default for HintConfig {
    fn default() -> Self {
        let HintNames { shard, key, role } = HintNames::default();
        Self { shard, key, role }
    }
}

/// The distribution of rows over the shards: `[pool.databases.NAME.sharding]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct ShardingConfig {
    /// The SQL types of the sharding key's columns, in order.
    pub key: Vec<String>,
    /// The hash that maps keys to shards, unless the shards have lists or ranges.
    pub hash: ShardHash,
    /// The sharded and replicated tables.
    pub tables: KeyedTables,
    /// The shard for requests that neither a key nor a hint assigns to a shard.
    pub default: DefaultShardSetting,
    /// The sort order of text on all shards.
    pub collation: ShardCollation,
}

/// The hash that maps keys to shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShardHash {
    /// PostgreSQL's hash for `PARTITION BY HASH`.
    #[default]
    Postgresql,
    /// PgCat's `sha1` of a single integer.
    Sha1,
}

/// The sort order of text on all shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShardCollation {
    /// The collation is unknown, so results sorted by text cannot be merged.
    #[default]
    Unknown,
    /// Text is sorted by its bytes, as in the collation `C`.
    Bytes,
}

/// Tables, by name or `schema.name`, with the columns of their sharding keys. A table without such
/// columns has all of its rows on every shard.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(transparent)]
pub struct KeyedTables(pub BTreeMap<String, Vec<String>>);

/// The shard for requests that neither a key nor a hint assigns to a shard: a number, `"any"` or
/// `"refuse"`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(untagged)]
pub enum DefaultShardSetting {
    /// The shard with this number, from 0.
    Shard(u32),
    /// `refuse` refuses requests for tables; `any` lets reads use any shard, and refuses writes if
    /// `tables` is not empty. With both, statements that use no tables may use any shard.
    Keyword(String),
}

impl Default for DefaultShardSetting {
    fn default() -> Self {
        Self::Keyword("refuse".to_owned())
    }
}

/// A shard: an entry of `shards`. Shards are numbered from 0 in configured order.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ShardEntry {
    /// The shard's servers, a primary and its standbys.
    pub servers: Vec<ServerEntry>,
    /// Name of the database on the shard's servers; the `dbname` of the database if `None`.
    pub dbname: Option<String>,
    /// The keys on this shard, for sharding by lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<ShardKeyValue>,
    /// Whether this shard has all keys that no shard lists.
    #[serde(default)]
    pub rest: bool,
    /// Lower bound of the keys, inclusive, for sharding by ranges; unbounded if `None`.
    pub from: Option<ShardKeyValue>,
    /// Upper bound of the keys, exclusive; unbounded if `None`.
    pub to: Option<ShardKeyValue>,
}

/// A value of a sharding key in the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(untagged)]
pub enum ShardKeyValue {
    /// An integer key.
    Number(i64),
    /// A key of another type, in PostgreSQL's text representation.
    Text(String),
}

impl fmt::Display for ShardKeyValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => write!(f, "{text:?}"),
        }
    }
}

impl ShardKeyValue {
    fn to_key(&self, of: KeyType) -> Result<ShardKey, String> {
        let text = match self {
            Self::Number(number) => number.to_string(),
            Self::Text(text) => text.clone(),
        };
        of.parse(text).map_err(|error| error.to_string())
    }
}

/// Returns the key type for the name of an SQL type; `None` if the type cannot be a sharding key.
fn key_type(name: &str) -> Option<KeyType> {
    Some(match name.to_ascii_lowercase().as_str() {
        "bigint" | "integer" | "int" | "smallint" | "int8" | "int4" | "int2" => KeyType::Int,
        "text" | "varchar" => KeyType::Text,
        "uuid" => KeyType::Uuid,
        "bytea" => KeyType::Bytea,
        _ => return None,
    })
}

impl DatabaseConfig {
    /// Whether requests are routed, that is, whether the database has `servers` or `shards`.
    pub fn is_routed(&self) -> bool {
        !self.servers.is_empty() || !self.shards.is_empty()
    }

    /// Converts the database's settings to those of the router.
    ///
    /// # Errors
    ///
    /// The settings are invalid or contradict each other; returns the key below the database, and
    /// the reason.
    pub fn routing_settings(&self) -> Result<RouteSettings, (String, String)> {
        let shards = u32::try_from(self.shards.len().max(1)).unwrap_or(u32::MAX);
        let routing = &self.routing;
        let HintConfig { shard, key, role } = routing.hint_names.clone();
        let table = |(name, key): (&String, &Vec<String>)| {
            let (schema, name) = match name.split_once('.') {
                Some((schema, name)) => (Some(schema.to_owned()), name),
                None => (None, name.as_str()),
            };
            RoutedTable { schema, name: name.to_owned(), key: key.clone() }
        };
        let settings = RouteSettings {
            role: self.cluster.role,
            primary_reads: routing.primary_reads,
            read_your_writes: routing.read_your_writes,
            shards,
            map: self.shard_map(shards)?,
            tables: self.sharding.tables.0.iter().map(table).collect(),
            default_shard: self.default_shard()?,
            hints: routing.hints.then_some(HintNames { shard, key, role }),
            functions: FunctionLists {
                read_only: routing.read_only_functions.clone(),
                writing: routing.writing_functions.clone(),
            },
            text_by_byte: self.sharding.collation == ShardCollation::Bytes,
            ..RouteSettings::default()
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
            DefaultShardSetting::Shard(shard) => Ok(DefaultShard::One(*shard)),
            DefaultShardSetting::Keyword(it) if it == "any" => Ok(DefaultShard::Any),
            DefaultShardSetting::Keyword(it) if it == "refuse" => Ok(DefaultShard::Refuse),
            DefaultShardSetting::Keyword(_) => {
                let why = "must be a shard number, \"any\" or \"refuse\"";
                Err(("sharding.default".to_owned(), why.to_owned()))
            }
        }
    }

    /// Returns the map from keys to shards, built from the shards' lists or ranges if they have
    /// any, otherwise from the hash; `None` if no sharding key is configured.
    fn shard_map(&self, shards: u32) -> Result<Option<ShardMap>, (String, String)> {
        let at_key = |why: &str| ("sharding.key".to_owned(), why.to_owned());
        let at_hash = |why: &str| Err(("sharding.hash".to_owned(), why.to_owned()));
        let is_other = self.sharding.hash != ShardHash::default();
        let mut columns = Vec::new();
        for name in &self.sharding.key {
            let why = format!("{name:?} is not one of bigint, text, uuid, bytea");
            columns.push(key_type(name).ok_or_else(|| at_key(&why))?);
        }
        let lists = self.shards.iter().any(|shard| !shard.values.is_empty() || shard.rest);
        let ranges = self.shards.iter().any(|shard| shard.from.is_some() || shard.to.is_some());
        let at = |number: usize, key: &str, why: String| (format!("shards[{number}].{key}"), why);
        if columns.is_empty() {
            return match lists || ranges || is_other {
                true if is_other => at_hash("needs a key: sharding.key = [\"bigint\"]"),
                true => Err(at_key("is needed: the shards have keys of unknown type")),
                false => Ok(None),
            };
        }
        let map = match (lists, ranges, &columns[..]) {
            (false, false, [KeyType::Int]) if is_other => ShardMap::sha1(shards),
            (false, false, _) if is_other => {
                return at_hash("sha1 needs a key of one bigint column");
            }
            (..) if is_other => {
                return at_hash("must be left out for shards with lists or ranges");
            }
            (false, false, _) => ShardMap::hash(shards, columns),
            (true, true, _) => {
                return Err((
                    "shards".to_owned(),
                    "lists and ranges exclude each other".to_owned(),
                ));
            }
            (true, false, &[of]) => {
                let (mut shards_by_key, mut rest) = (BTreeMap::new(), None);
                for (number, shard) in (0..).zip(&self.shards) {
                    if shard.rest && rest.replace(number).is_some() {
                        let why = "only one shard can have the rest".to_owned();
                        return Err(at(number as usize, "rest", why));
                    }
                    for value in &shard.values {
                        let key =
                            value.to_key(of).map_err(|why| at(number as usize, "values", why))?;
                        if shards_by_key.insert(Some(key), number).is_some() {
                            let why = format!("{value} is listed twice");
                            return Err(at(number as usize, "values", why));
                        }
                    }
                }
                ShardMap::list(shards, of, shards_by_key, rest)
            }
            (false, true, &[of]) => {
                let mut ranges = Vec::new();
                for (number, shard) in (0..).zip(&self.shards) {
                    let bound = |value: &Option<ShardKeyValue>, name| {
                        let key = value.as_ref().map(|value| value.to_key(of)).transpose();
                        key.map_err(|why| at(number as usize, name, why))
                    };
                    let (from, to) = (bound(&shard.from, "from")?, bound(&shard.to, "to")?);
                    ranges.push(Range { from, to, shard: number });
                }
                ShardMap::ranges(shards, of, ranges)
            }
            _ => return Err(at_key("lists and ranges need a key of one column")),
        };
        map.map(Some).map_err(|error| at_key(&error.to_string()))
    }

    /// Returns violated rules about shards and routing: the key below the database, and the reason.
    pub(super) fn routing_errors(&self) -> Vec<(String, String)> {
        let mut errors = Vec::new();
        let mut rule = |is_violated: bool, key: &str, why: &str| {
            if is_violated {
                errors.push((key.to_owned(), why.to_owned()));
            }
        };
        let has_servers = !self.hosts.is_empty() || !self.servers.is_empty();
        rule(
            has_servers && !self.shards.is_empty(),
            "shards",
            "shards have their own servers: remove hosts and servers of the database",
        );
        for (number, shard) in self.shards.iter().enumerate() {
            let key = format!("shards[{number}].servers");
            rule(shard.servers.is_empty(), &key, "a shard needs at least one server");
        }
        let is_unrouted = !self.is_routed();
        let why = "has no effect: the database has no servers or shards";
        rule(is_unrouted && self.routing != RoutingConfig::default(), "routing", why);
        let why = "has no effect: the database has no shards";
        let is_set = self.sharding != ShardingConfig::default();
        rule(self.shards.is_empty() && is_set, "sharding", why);
        if let Err((key, why)) = self.routing_settings() {
            rule(true, &key, &why);
        }
        errors
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
    fn shards_become_clusters_in_configured_order() {
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
        let routes = config.databases["app"].routing_settings().unwrap();
        assert!(routes.shards == 2 && routes.role == RolePreference::Auto && !routes.primary_reads);
        assert!(routes.hints.is_some() && routes.map.is_some() && !routes.tables.is_empty());
        let again = Config::read_str(&config.to_toml(), Path::new("h.toml")).unwrap().config;
        assert_eq!(again, config, "{}", config.to_toml());
    }

    #[test]
    fn sha1_needs_one_bigint_key_column() {
        let of = |sharding: &str, more: &str| {
            read(&format!(
                "sharding = {{ {sharding} hash = 'sha1' }}
                [[pool.databases.app.shards]]\nservers = [{{ host = 'a' }}]\n{more}"
            ))
        };
        assert!(of("key = ['integer'],", "").is_ok());
        for (sharding, more, why) in [
            ("", "", "app.sharding.hash: needs a key"),
            ("key = ['text'],", "", "app.sharding.hash: sha1 needs a key of one"),
            ("key = ['bigint', 'bigint'],", "", "app.sharding.hash: sha1 needs a key of one"),
            ("key = ['bigint'],", "values = [1]", "app.sharding.hash: must be left out"),
        ] {
            let error = of(sharding, more).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn shards_have_lists_or_ranges() {
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
            (
                "bigint",
                "values = ['x']",
                "",
                "app.shards[0].values: \"x\" is not a valid sharding key of type bigint",
            ),
            ("bigint", "values = [1]", "values = [1]", "app.shards[1].values: 1 is listed twice"),
            ("text", "values = ['de', 'de']", "", "app.shards[0].values: \"de\" is listed twice"),
            ("bigint", "rest = true", "rest = true", "app.shards[1].rest: only one"),
            ("bigint", "values = [1]", "from = 1", "app.shards: lists and ranges"),
            ("bigint", "to = 10", "from = 5", "app.sharding.key: the ranges"),
            ("money", "", "", "app.sharding.key: \"money\" is not one of"),
        ] {
            let error = of(key, first, second).unwrap_err();
            assert!(error.contains(why), "{first} {second}: {error}");
        }
    }

    #[test]
    fn invalid_routing_is_reported_with_key() {
        let beside = format!("hosts = ['x']\n{SHARDS}");
        let far = SHARDS.replace("key = ['bigint']", "key = ['bigint'], default = 2");
        let word = SHARDS.replace("key = ['bigint']", "key = ['bigint'], default = 'all'");
        let no_key = SHARDS.replace("key = ['bigint'], ", "");
        let two = SHARDS.replace("['customer']", "['customer', 'day']");
        let twice = SHARDS.replace("host = 'b', port = 7", "host = 'a'");
        for (text, why) in [
            ("routing = { hints = true }", "app.routing: has no effect"),
            (
                "servers = [{ host = 'a' }]\nsharding = { default = 0 }",
                "app.sharding: has no effect",
            ),
            (&beside, "app.shards: shards have their own servers"),
            (&far, "app.sharding.default: shard 2 does not exist"),
            (&word, "app.sharding.default: must be a shard number"),
            (&no_key, "app.sharding.key: the table \"orders\" has a sharding key"),
            (&two, "app.sharding.tables: the number of key columns of \"orders\" is 2"),
            (&twice, "app.shards[0].servers[1].host: the server is listed twice"),
            ("[[pool.databases.app.shards]]\nservers = []", "app.shards[0].servers: a shard needs"),
            ("servers = [{ host = 'a' }]\ncluster = { role = 'boss' }", "must be any, primary"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
