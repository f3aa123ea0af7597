//! A `pgcat.toml` as a `howdah.toml`.

use std::{fmt::Write as _, path::Path};

use super::{
    super::{
        Config, Database, KeyedTables, Place, PoolMode, Routing, ShardEntry, Sharding, User,
        file::Wrong,
    },
    File,
    pools::{DefaultShard, Pool},
};
use crate::config::file::Remark;
use howdah_route::RolePreference;

impl Config {
    /// Writes what a `pgcat.toml` says as a `[pool]` section. What is not carried over, or does something
    /// else, is listed at the top by file, line and key, with the reason.
    ///
    /// # Errors
    ///
    /// It is no TOML, or has values that cannot be.
    pub fn import_pgcat(text: &str, path: &Path) -> Result<String, Wrong> {
        let (mut config, remarks, notes) = read(text, path)?;
        config.find_files(path.parent().unwrap_or(Path::new("")));
        let mut out = format!("# From {}\n", path.display().to_string().replace('\n', " "));
        out.push_str("#\n# Different from PgCat:\n");
        for remark in GENERAL_REMARKS {
            let _ = writeln!(out, "#   {remark}");
        }
        if !remarks.is_empty() {
            out.push_str("#\n# Not carried over, or not quite:\n");
        }
        for remark in &remarks {
            let _ = writeln!(out, "#   {}", remark.to_string().replace('\n', " "));
        }
        if !notes.is_empty() {
            out.push_str("#\n# Carried over, with a difference:\n");
        }
        for (name, ours, note) in notes {
            let _ = writeln!(out, "#   {name}: {note} ({ours})");
        }
        out.push('\n');
        out.push_str(&config.to_toml());
        Ok(out)
    }
}

/// What holds for every file.
const GENERAL_REMARKS: [&str; 3] = [
    "users may come in to every database, unless rules say otherwise (auth.type = \"hba\")",
    "there is a limit on clients: limits.clients",
    "startup parameters that are not followed are refused, unless ignored-startup-parameters has them",
];

const SHARDS_MIRRORED: &str =
    "a database of several shards is not mirrored: a mirror has all of the data";
const SESSIONS_MIRRORED: &str =
    "a database in session mode is not mirrored: transaction mode can be";

/// What is different, by name of the key there and here.
type Notes = std::collections::BTreeSet<(&'static str, &'static str, &'static str)>;

/// The settings, and what is to be said about them.
fn read(text: &str, path: &Path) -> Result<(Config, Vec<Remark>, Notes), Wrong> {
    let file = File::read(text, path)?;
    let mut remarks = file.remarks;
    let mut config = file.general.config();
    for (name, pool) in &file.pools {
        let say = |key: &str, line: usize, text: &str| {
            Remark::new(path, line, &format!("pools.{name}.{key}"), text)
        };
        remarks.extend(
            users(&mut config, pool).into_iter().map(|(line, text)| say("users", line, &text)),
        );
        let database = database(pool, &file.general);
        if database.mirrors.is_empty() && pool.shards.values().any(|it| !it.mirrors.is_empty()) {
            let why = if pool.shards.len() > 1 { SHARDS_MIRRORED } else { SESSIONS_MIRRORED };
            remarks.push(say("shards.mirrors", 0, why));
        }
        config.max_prepared_statements = config.max_prepared_statements.max(pool.statements);
        config.databases.insert(name.clone(), database);
    }
    remarks.sort_by_key(|remark| remark.line);
    Ok((config, remarks, file.notes))
}

fn database(pool: &Pool, general: &super::General) -> Database {
    let mut database = Database {
        mode: Some(pool.mode.0).filter(|mode| *mode != general.config.mode),
        query_wait_timeout: pool.query_wait,
        server_lifetime: pool.server_lifetime,
        auth_query: pool.auth_query.clone(),
        auth_user: pool.auth_user.clone(),
        connect_query: pool.connect_query.clone(),
        min_size: pool.users.iter().filter_map(|user| user.min_size).max(),
        ..Database::default()
    };
    if let [user] = &pool.users[..] {
        database.user.clone_from(&user.server_name);
        if user.server_name.is_some() {
            database.secret = user.server_secret.clone().or_else(|| user.secret.clone());
        }
    }
    let cluster = &mut database.cluster;
    (cluster.ban, cluster.check_timeout) = (general.ban, general.check_timeout);
    cluster.strategy = pool.strategy.unwrap_or(crate::cluster::Strategy::Random);
    cluster.role = match pool.splits {
        true => RolePreference::Auto,
        false => pool.role.unwrap_or_default(),
    };
    let mut routing = Routing { primary_reads: pool.primary_reads, ..Routing::default() };
    routing.hints = pool.shard_hint.is_some() || pool.key_hint.is_some();
    if routing.hints {
        // What was not looked for there is not here.
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
    let entry = |shard: &&super::pools::Shard| ShardEntry {
        servers: shard.servers.clone(),
        dbname: shard.database.clone(),
        values: Vec::new(),
        rest: false,
        from: None,
        to: None,
    };
    database.shards = shards.iter().map(entry).collect();
    let tables = pool.key.iter();
    database.sharding = Sharding {
        key: vec!["bigint".to_owned()],
        hash: pool.hash,
        tables: KeyedTables(
            tables.map(|(table, column)| (table.clone(), vec![column.clone()])).collect(),
        ),
        default: match pool.default_shard {
            DefaultShard::One(shard) => Place::Shard(shard),
            DefaultShard::Any => Place::Word("any".to_owned()),
        },
        ..Sharding::default()
    };
    database
}

/// Adds the users of a pool; gives what of them is not carried over, with lines.
fn users(config: &mut Config, pool: &Pool) -> Vec<(usize, String)> {
    let mut said = Vec::new();
    let is_alone = pool.users.len() == 1;
    for user in &pool.users {
        let name = &user.name;
        if user.server_name.is_some() && !is_alone {
            let text = format!(
                "server_username: {name:?} is itself at servers, since the pool has other users; a \
                 database with `user` is for one"
            );
            said.push((user.line, text));
        }
        let given = User {
            secret: user.secret.clone(),
            mode: user.mode,
            pool_size: user.size,
            query_timeout: user.query_timeout.map(Some),
            query_wait_timeout: user.query_wait,
            ..User::default()
        };
        match config.users.get_mut(name) {
            None => drop(config.users.insert(name.clone(), given)),
            Some(known) => {
                if known.secret.is_some() && given.secret.is_some() && known.secret != given.secret
                {
                    let text =
                        format!("{name:?} has another password elsewhere, which holds here, too");
                    said.push((user.line, text));
                }
                known.secret = known.secret.take().or(given.secret);
                let differs = known.mode != given.mode
                    || known.query_timeout != given.query_timeout
                    || known.query_wait_timeout != given.query_wait_timeout
                    || known.pool_size.is_some() && known.pool_size != given.pool_size;
                if differs {
                    let text = format!(
                        "{name:?} has other settings elsewhere: the larger pool_size holds for all, and \
                         of the others those that are read first"
                    );
                    said.push((user.line, text));
                }
                known.pool_size = known.pool_size.max(given.pool_size);
            }
        }
    }
    if let (Some(name), secret) = (&pool.auth_user, &pool.auth_secret) {
        let asker = config.users.entry(name.clone()).or_default();
        asker.secret = asker.secret.take().or_else(|| secret.clone());
    }
    said
}
