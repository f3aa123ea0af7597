use std::fs;

use super::*;
use crate::{Config, ConfiguredRole, DefaultShardSetting, PoolMode, StoredSecret};

fn import(text: &str) -> String {
    Config::import_pgcat(text, Path::new("/etc/pgcat.toml"))
        .unwrap_or_else(|error| panic!("{error}"))
}

/// Imports a file and reads the result.
fn settings(text: &str) -> (Config, String) {
    let written = import(text);
    let read = Config::read_str(&written, Path::new("howdah.toml"));
    (read.unwrap_or_else(|error| panic!("{error}\n{written}")).config, written)
}

fn error(text: &str) -> String {
    Config::import_pgcat(text, Path::new("pgcat.toml")).unwrap_err().to_string()
}

const SHARDED: &str = r#"
[general]
host = "0.0.0.0"
port = 6432
connect_timeout = 5000
ban_time = 30
worker_threads = 5
admin_username = "admin_user"
admin_password = "sesame"
autoreload = 15000
enable_prometheus_exporter = true
log_client_connections = true
[pools.sharded_db]
pool_mode = "transaction"
load_balancing_mode = "loc"
default_role = "any"
query_parser_enabled = true
query_parser_read_write_splitting = true
primary_reads_enabled = true
sharding_function = "pg_bigint_hash"
automatic_sharding_key = "data.id"
sharding_key_regex = '/\* sharding_key: (\d+) \*/'
shard_id_regex = '/\* shard_id: (\d+) \*/'
prepared_statements_cache_size = 500
idle_timeout = 40000
default_shard = "shard_1"
[pools.sharded_db.plugins.prewarmer]
enabled = true
queries = ["SELECT 1", "SELECT 2"]
[pools.sharded_db.plugins.table_access]
enabled = true
tables = ["pg_user"]
[pools.sharded_db.users.0]
username = "sharding_user"
password = "sharding_user"
pool_size = 9
min_pool_size = 2
statement_timeout = 1500
[pools.sharded_db.users.1]
username = "other_user"
password = "other_user"
pool_size = 21
server_username = "another"
[pools.sharded_db.shards.0]
servers = [["127.0.0.1", 5432, "primary"], ["localhost", 5433, "replica"]]
database = "shard0"
[pools.sharded_db.shards.1]
servers = [["127.0.0.1", 5434, "primary"], ["localhost", 5435, "replica"]]
mirrors = [["1.2.3.4", 5432, 0]]
database = "shard1"
[pools.simple_db]
pool_mode = "session"
default_role = "primary"
[pools.simple_db.users.0]
username = "simple_user"
password = "simple_user"
pool_size = 5
server_username = "app"
server_password = "app's"
[pools.simple_db.shards.0]
servers = [["127.0.0.1", 5432, "primary"]]
database = "some_db"
"#;

#[test]
fn typical_file_is_converted() {
    let (config, written) = settings(SHARDED);
    assert_eq!((config.listen.port, &config.listen.addresses[..]), (6432, &["*".to_owned()][..]));
    assert_eq!(config.workers.map(std::num::NonZero::get), Some(5));
    assert_eq!((config.mode, config.max_prepared_statements), (PoolMode::Transaction, 500));
    assert_eq!(config.timeouts.query_wait, Some(Duration::from_secs(5)));
    assert_eq!(config.admin_users, ["admin_user"]);
    assert!(config.log.connections && !config.log.disconnections);
    let sharded = &config.databases["sharded_db"];
    assert_eq!(sharded.shards.len(), 2);
    assert_eq!(sharded.shards[1].dbname.as_deref(), Some("shard1"));
    let server = &sharded.shards[1].servers[1];
    assert_eq!((&server.host[..], server.port), ("localhost", Some(5435)));
    assert_eq!(server.role, ConfiguredRole::Replica);
    assert_eq!(sharded.cluster.role, howdah_route::RolePreference::Auto);
    assert_eq!(sharded.cluster.ban, Duration::from_secs(30));
    assert_eq!(sharded.sharding.key, ["bigint"]);
    assert_eq!(sharded.sharding.tables.0["data"], ["id"]);
    assert_eq!(sharded.sharding.default, DefaultShardSetting::Shard(1));
    assert!(sharded.routing.hints && sharded.routing.primary_reads);
    assert_eq!(sharded.routing.hint_names.shard, "shard_id");
    assert_eq!(sharded.routing.hint_names.key, "sharding_key");
    assert_eq!(sharded.routing.hint_names.role, "", "PgCat has no such hints");
    assert_eq!(sharded.connect_query.as_deref(), Some("SELECT 1; SELECT 2"));
    assert_eq!((sharded.min_size, sharded.user.as_deref()), (Some(2), None));
    let user = &config.users["sharding_user"];
    assert_eq!(user.pool_size, Some(9));
    assert_eq!(user.query_timeout, Some(Some(Duration::from_millis(1500))));
    let simple = &config.databases["simple_db"];
    assert_eq!((simple.mode, simple.dbname.as_deref()), (Some(PoolMode::Session), Some("some_db")));
    assert_eq!(simple.user.as_deref(), Some("app"));
    assert_eq!(simple.secret, Some(StoredSecret::parse("app's")));
    assert_eq!(simple.servers[0].role, ConfiguredRole::Primary);
    for line in [
        "#   /etc/pgcat.toml:10: general.autoreload: `RELOAD` at the console",
        "#   /etc/pgcat.toml:25: pools.sharded_db.idle_timeout: applies to all pools",
        "pools.sharded_db.plugins.table_access: tables that it protected are now ACCESSIBLE",
        "pools.sharded_db.users: server_username: \"other_user\" logs in to servers",
        "pools.sharded_db.shards.mirrors: a database of several shards cannot be mirrored",
        "#   ban_time: for every database (databases.NAME.cluster.ban)",
    ] {
        assert!(written.contains(line), "{line}\n{written}");
    }
}

#[test]
fn mirrors_of_one_shard_are_converted() {
    let text = |mode: &str| {
        format!(
            "[general]\nadmin_username = 'a'\nadmin_password = 'b'\n[pools.app]\npool_mode = '{mode}'\n\
             [pools.app.users.0]\nusername = 'me'\npassword = 'x'\npool_size = 5\n\
             [pools.app.shards.0]\nservers = [['db1', 5432, 'primary'], ['db2', 5432, 'replica']]\n\
             mirrors = [['new', 6000, 0], ['new', 6000, 1]]\ndatabase = 'app'\n"
        )
    };
    let written = Config::import_pgcat(&text("transaction"), Path::new("/etc/pgcat.toml")).unwrap();
    let config = Config::read_str(&written, Path::new("h.toml")).unwrap().config;
    let mirrors = config.pool("app", "me").unwrap().mirrors;
    assert_eq!(mirrors.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), ["new:6000"]);
    let written = Config::import_pgcat(&text("session"), Path::new("/etc/pgcat.toml")).unwrap();
    assert!(written.contains("pools.app.shards.mirrors: a database in session mode"), "{written}");
    assert!(Config::read_str(&written, Path::new("h.toml")).is_ok());
}

#[test]
fn defaults_are_those_of_pgcat() {
    let (config, _) = settings(
        "[general]\n[pools.a]\n[pools.a.users.0]\nusername = 'u'\npassword = 'p'\npool_size = 3\n\
         [pools.a.shards.0]\nservers = [['db', 5432, 'Primary']]\ndatabase = 'a'\n",
    );
    assert_eq!((config.listen.port, config.workers.map(std::num::NonZero::get)), (5432, Some(4)));
    assert_eq!(config.timeouts.server_connect, Some(Duration::from_secs(1)));
    assert_eq!(config.tls.server_mode(), howdah_connect::SslMode::Disable);
    assert_eq!(config.databases["a"].cluster.strategy, crate::Strategy::Random);
    assert!(!config.databases["a"].routing.primary_reads && !config.databases["a"].routing.hints);
}

#[test]
fn sha1_hash_is_converted() {
    let (config, written) = settings(&SHARDED.replace("pg_bigint_hash", "sha1"));
    let database = &config.databases["sharded_db"];
    assert_eq!(database.sharding.key, ["bigint"]);
    assert!(written.contains("hash = \"sha1\""), "{written}");
    let key = howdah_route::shard::ShardKey::Int(3);
    let map = database.routing_settings().expect("routes").map;
    let shards = database.shards.len() as u32;
    let sha1 = howdah_route::shard::ShardMap::sha1(shards).expect("shards");
    assert_eq!(map.expect("a map").shard(&[Some(key.clone())]), sha1.shard(&[Some(key)]));
}

#[test]
fn invalid_values_are_reported_with_line_and_key() {
    for (text, expected) in [
        ("[general]\nport = 'x'\n", "pgcat.toml:2: general.port: must be a non-negative number"),
        ("[general]\nport = 70000\n", "pgcat.toml:2: general.port: is too large"),
        ("[general]\nworker_threads = 0\n", "general.worker_threads: must be at least 1"),
        ("general = 1\n", "pgcat.toml:1: general: must be a table"),
        (
            "[pools.a]\npool_mode = 'st'\n",
            "pools.a.pool_mode: \"st\" is not one of transaction, session",
        ),
        ("[pools.a]\nban = [\n", "pgcat.toml:"),
        (
            "[pools.a.users.0]\npool_size = 1\n",
            "pgcat.toml:1: pools.a.users.0: must have a username",
        ),
        ("[pools.a.shards.x]\n", "pools.a.shards.x: name must be a number"),
        ("[pools.a.shards.0]\nservers = [['h', 1]]\n", "must be a list of [\"host\", port,"),
        ("[pools.a]\ndefault_shard = 'all'\n", "is not one of shard_N, random, random_healthy"),
    ] {
        let error = error(text);
        assert!(error.contains(expected), "{error}: {expected}");
    }
    let unknown = import("[general]\nportt = 1\n[poolz]\n");
    assert!(unknown.contains("general.portt: unknown key, which PgCat ignores"), "{unknown}");
}

#[test]
fn each_secret_is_written_once() {
    let written = import(SHARDED);
    for secret in ["sesame", "app's"] {
        assert_eq!(written.matches(secret).count(), 1, "{written}");
    }
}

#[test]
fn file_with_every_key_is_converted() {
    fn lines<T>(rows: &[PgcatKey<T>]) -> String {
        let value = |name: &str| match name {
            "servers" => "[['h', 1, 'replica']]",
            "mirrors" => "[['m', 1, 0]]",
            "host" => "'h'",
            "pool_mode" => "'session'",
            "auth_type" | "admin_auth_type" => "'trust'",
            "load_balancing_mode" => "'random'",
            "default_role" => "'replica'",
            "default_shard" => "'random'",
            "sharding_function" => "'sha1'",
            "automatic_sharding_key" => "'t.c'",
            name if name.ends_with("enabled")
                || name.starts_with("log_")
                || name.starts_with("cleanup")
                || name.ends_with("splitting")
                || name.ends_with("robin")
                || name.ends_with("tls")
                || name.ends_with("config")
                || name.ends_with("routing")
                || name.starts_with("verify") =>
            {
                "true"
            }
            name if name.ends_with("name")
                || name.ends_with("password")
                || name.ends_with("user")
                || name.ends_with("query")
                || name.ends_with("regex")
                || name.starts_with("tls_")
                || name == "database" =>
            {
                "'x'"
            }
            _ => "1000",
        };
        rows.iter().map(|row| format!("{} = {}\n", row.name, value(row.name))).collect()
    }
    let text = format!(
        "[general]\n{}[pools.a]\n{}[pools.a.users.0]\n{}[pools.a.shards.0]\n{}[pools.a.shards.1]\n{}",
        lines(general::KEYS),
        lines(pools::KEYS),
        lines(pools::USERS),
        lines(pools::SHARDS),
        lines(pools::SHARDS),
    );
    let written = import(&text);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("howdah.toml");
    fs::write(&path, &written).unwrap();
    // The only error is the missing CA file, for which PgCat has no key.
    let error = Config::read(&path).unwrap_err().to_string();
    assert!(error.contains("tls.server.ca-file"), "{error}\n{written}");
    assert_eq!(error.lines().count(), 1, "{error}\n{written}");
}

#[test]
fn server_listed_as_primary_and_replica_is_imported_once() {
    let text = "[general]\n[pools.a]\n[pools.a.users.0]\nusername = 'u'\n[pools.a.shards.0]\n\
                servers = [['db', 5432, 'replica'], ['db', 5432, 'primary'], ['db', 5433, 'replica']]\n\
                database = 'a'\n";
    let toml = Config::import_pgcat(text, Path::new("/p/pgcat.toml")).unwrap();
    let remark = "/p/pgcat.toml:6: pools.a.shards.0.servers: db:5432 is listed more than once: it is \
                  imported once, as primary";
    assert!(toml.contains(remark), "{toml}");
    let servers =
        &Config::read_str(&toml, Path::new("h.toml")).unwrap().config.databases["a"].servers;
    let imported: Vec<_> = servers.iter().map(|it| (it.port, it.role)).collect();
    assert_eq!(
        imported,
        [(Some(5432), ConfiguredRole::Primary), (Some(5433), ConfiguredRole::Replica)]
    );
}
