//! Converts a `pgcat.toml` to a `howdah.toml`.

use std::{fmt::Write as _, path::Path};

use howdah_route::RolePreference;
use howdah_settings::{Diagnostic, SettingsErrors};

use super::{
    super::{
        Config, DatabaseConfig, DefaultShardSetting, KeyedTables, PoolMode, RoutingConfig,
        ShardEntry, ShardingConfig, UserConfig,
    },
    PgcatFile,
    pools::{PgcatDefaultShard, PgcatPool},
};

impl Config {
    /// Converts a `pgcat.toml` to a `[pool]` section. Comments at the top list the keys that are
    /// not converted, by file, line and key, with the reason, and those that behave differently.
    ///
    /// # Errors
    ///
    /// The file is not valid TOML, or has invalid or missing values.
    pub fn import_pgcat(text: &str, path: &Path) -> Result<String, SettingsErrors> {
        let (mut config, remarks, differences) = read(text, path)?;
        config.resolve_paths(path.parent().unwrap_or(Path::new("")));
        let mut out = format!("# From {}\n", path.display().to_string().replace('\n', " "));
        out.push_str("#\n# General differences from PgCat:\n");
        for remark in GENERAL_REMARKS {
            let _ = writeln!(out, "#   {remark}");
        }
        if !remarks.is_empty() {
            out.push_str("#\n# Not or only partly converted:\n");
        }
        for remark in &remarks {
            let _ = writeln!(out, "#   {}", remark.to_string().replace('\n', " "));
        }
        if !differences.is_empty() {
            out.push_str("#\n# Converted, with a difference:\n");
        }
        for (name, ours, text) in differences {
            let _ = writeln!(out, "#   {name}: {text} ({ours})");
        }
        out.push('\n');
        out.push_str(&config.to_toml());
        Ok(out)
    }
}

/// Remarks that apply to every conversion.
const GENERAL_REMARKS: [&str; 3] = [
    "users can log in to every database, unless rules restrict them (auth.type = \"hba\")",
    "the number of clients is limited: limits.clients",
    "startup parameters that are not tracked are refused, unless in ignored-startup-parameters",
];

const SHARDS_MIRRORED: &str =
    "a database of several shards cannot be mirrored: a mirror has all of the data";
const SESSIONS_MIRRORED: &str =
    "a database in session mode cannot be mirrored, only one in transaction mode";

/// Keys that behave differently: PgCat's key, the key of `[pool]`, and the difference.
type KeyDifferences = std::collections::BTreeSet<(&'static str, &'static str, &'static str)>;

/// Reads a `pgcat.toml`. Returns the settings, remarks on keys that are not converted exactly, and
/// differences.
fn read(
    text: &str,
    path: &Path,
) -> Result<(Config, Vec<Diagnostic>, KeyDifferences), SettingsErrors> {
    let file = PgcatFile::read(text, path)?;
    let mut remarks = file.remarks;
    let mut config = file.general.config();
    for (name, pool) in &file.pools {
        let remark = |key: &str, line: usize, text: &str| {
            Diagnostic::new(path, line, &format!("pools.{name}.{key}"), text)
        };
        remarks.extend(
            users(&mut config, pool).into_iter().map(|(line, text)| remark("users", line, &text)),
        );
        let database = database(pool, &file.general);
        if database.mirrors.is_empty() && pool.shards.values().any(|it| !it.mirrors.is_empty()) {
            let why = if pool.shards.len() > 1 { SHARDS_MIRRORED } else { SESSIONS_MIRRORED };
            remarks.push(remark("shards.mirrors", 0, why));
        }
        config.max_prepared_statements = config.max_prepared_statements.max(pool.statements);
        config.databases.insert(name.clone(), database);
    }
    remarks.sort_by_key(|remark| remark.line);
    Ok((config, remarks, file.differences))
}

fn database(pool: &PgcatPool, general: &super::General) -> DatabaseConfig {
    let mut database = DatabaseConfig {
        mode: Some(pool.mode.0).filter(|mode| *mode != general.config.mode),
        query_wait_timeout: pool.query_wait,
        server_lifetime: pool.server_lifetime,
        auth_query: pool.auth_query.clone(),
        auth_user: pool.auth_user.clone(),
        connect_query: pool.connect_query.clone(),
        min_size: pool.users.iter().filter_map(|user| user.min_size).max(),
        ..DatabaseConfig::default()
    };
    if let [user] = &pool.users[..] {
        database.user.clone_from(&user.server_name);
        if user.server_name.is_some() {
            database.secret = user.server_secret.clone().or_else(|| user.secret.clone());
        }
    }
    let cluster = &mut database.cluster;
    (cluster.ban, cluster.check_timeout) = (general.ban, general.check_timeout);
    cluster.strategy = pool.strategy.unwrap_or(crate::Strategy::Random);
    cluster.role = if pool.splits { RolePreference::Auto } else { pool.role.unwrap_or_default() };
    let mut routing =
        RoutingConfig { primary_reads: pool.primary_reads, ..RoutingConfig::default() };
    routing.hints = pool.shard_hint.is_some() || pool.key_hint.is_some();
    if routing.hints {
        // Hints without a configured keyword in PgCat stay disabled.
        routing.hint_names.shard = pool.shard_hint.clone().unwrap_or_default();
        routing.hint_names.key = pool.key_hint.clone().unwrap_or_default();
        routing.hint_names.role = String::new();
    }
    database.routing = routing;
    let mut shards: Vec<_> = pool.shards.values().collect();
    if shards.len() <= 1 {
        if let Some(shard) = shards.pop() {
            database.dbname.clone_from(&shard.database);
            database.servers.clone_from(&shard.servers);
            if pool.mode.0 != PoolMode::Session {
                database.mirrors.clone_from(&shard.mirrors);
            }
        }
        return database;
    }
    let entry = |shard: &&super::pools::PgcatShard| ShardEntry {
        servers: shard.servers.clone(),
        dbname: shard.database.clone(),
        values: Vec::new(),
        rest: false,
        from: None,
        to: None,
    };
    database.shards = shards.iter().map(entry).collect();
    let tables = pool.key.iter();
    database.sharding = ShardingConfig {
        key: vec!["bigint".to_owned()],
        hash: pool.hash,
        tables: KeyedTables(
            tables.map(|(table, column)| (table.clone(), vec![column.clone()])).collect(),
        ),
        default: match pool.default_shard {
            PgcatDefaultShard::One(shard) => DefaultShardSetting::Shard(shard),
            PgcatDefaultShard::Any => DefaultShardSetting::Keyword("any".to_owned()),
        },
        ..ShardingConfig::default()
    };
    database
}

/// Adds the users of a pool. Returns remarks on settings that are not converted, each with its
/// line.
fn users(config: &mut Config, pool: &PgcatPool) -> Vec<(usize, String)> {
    let mut remarks = Vec::new();
    let is_alone = pool.users.len() == 1;
    for user in &pool.users {
        let name = &user.name;
        if user.server_name.is_some() && !is_alone {
            let text = format!(
                "server_username: {name:?} logs in to servers under its own name, since the pool has other \
                 users; a database with `user` has one role for all"
            );
            remarks.push((user.line, text));
        }
        let given = UserConfig {
            secret: user.secret.clone(),
            mode: user.mode,
            pool_size: user.size,
            query_timeout: user.query_timeout.map(Some),
            query_wait_timeout: user.query_wait,
            ..UserConfig::default()
        };
        match config.users.get_mut(name) {
            None => drop(config.users.insert(name.clone(), given)),
            Some(known) => {
                if known.secret.is_some() && given.secret.is_some() && known.secret != given.secret
                {
                    let text = format!(
                        "{name:?} has another password in another pool, which is used here as well"
                    );
                    remarks.push((user.line, text));
                }
                known.secret = known.secret.take().or(given.secret);
                let differs = known.mode != given.mode
                    || known.query_timeout != given.query_timeout
                    || known.query_wait_timeout != given.query_wait_timeout
                    || known.pool_size.is_some() && known.pool_size != given.pool_size;
                if differs {
                    let text = format!(
                        "{name:?} has other settings in another pool: the largest pool_size is used, and the \
                         first value of all other settings"
                    );
                    remarks.push((user.line, text));
                }
                known.pool_size = known.pool_size.max(given.pool_size);
            }
        }
    }
    if let (Some(name), secret) = (&pool.auth_user, &pool.auth_secret) {
        let role = config.users.entry(name.clone()).or_default();
        role.secret = role.secret.take().or_else(|| secret.clone());
    }
    remarks
}
