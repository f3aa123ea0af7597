//! Changes while clients are connected: failover of a shard, and the list of shards.

use howdah_lab::{Cluster, skip_without_postgres, wait_until};
use howdah_pool::{ConfigOrigin, Pooler};
use howdah_pool_config::Config;

use super::{KEYED_SHARDING, ShardFixture};
use crate::support::WAIT_TIMEOUT;
use crate::{
    cluster::{app_settings, query_server},
    routing::{log_in_to_app, query_reply},
};

#[test]
fn failover_of_one_shard_does_not_affect_others() {
    let more = format!(
        "cluster = {{ role = \"auto\", check-interval = \"200ms\", failover-timeout = \"60s\" }}\n{KEYED_SHARDING}"
    );
    let Some(mut fixture) = ShardFixture::start("shard_failover", 1, &more) else { return };
    let [zero, one] = fixture.keys();
    let insert =
        |key: i64, note: &str| format!("insert into orders (id, note) values ({key}, '{note}')");
    let mut raw = fixture.client();
    for key in [zero, one] {
        assert_eq!(query_reply(&mut raw, &insert(key, "before")), "INSERT 0 1, I");
    }
    for shard in &fixture.shards {
        let rows = "select count(*) from orders";
        wait_until("the rows at standbys", WAIT_TIMEOUT, || query_server(&shard[1], rows) == "1");
    }
    fixture.shards[1][0].kill().unwrap();
    // The client loses its server at most once; then the write waits for a new primary.
    let mut waits = fixture.client();
    let waiting = std::thread::spawn(move || {
        let mut received = query_reply(&mut waits, &insert(one, "waited"));
        if !received.starts_with("INSERT") {
            received = query_reply(&mut waits, &insert(one, "waited"));
        }
        (waits, received)
    });
    let mut other = fixture.client();
    for number in 0..20 {
        assert_eq!(query_reply(&mut other, &insert(zero, &number.to_string())), "INSERT 0 1, I");
    }
    assert!(!waiting.is_finished(), "no server accepts writes for that shard");
    query_server(&fixture.shards[1][1], "select pg_promote(false)");
    let (mut waits, received) = waiting.join().unwrap();
    assert_eq!(received, "INSERT 0 1, I");
    let notes = format!("select string_agg(note, ',' order by note) from orders where id = {one}");
    assert_eq!(query_reply(&mut waits, &notes), "before,waited, SELECT 1, I");
    // Requests for all shards include the new primary.
    assert_eq!(query_reply(&mut other, "SET SERVER ROLE TO 'primary'"), "SET SERVER ROLE, I");
    assert_eq!(query_reply(&mut other, "select count(*) from orders"), "23, SELECT 1, I");
}

/// One server with one database per shard.
struct DatabaseShards {
    server: Cluster,
    folder: tempfile::TempDir,
}

impl DatabaseShards {
    fn start(test: &str, databases: &[&str]) -> Option<Self> {
        let server = skip_without_postgres(test, Cluster::builder().start())?;
        for name in databases {
            query_server(&server, &format!("create database {name}"));
        }
        let parts = Self { server, folder: tempfile::tempdir().unwrap() };
        for name in databases {
            parts.query_value(name, "create table orders (id bigint, country text)");
        }
        Some(parts)
    }

    fn query_value(&self, database: &str, sql: &str) -> String {
        let mut client = crate::support::connect(&format!(
            "host=127.0.0.1 port={} dbname={database} user=postgres sslmode=disable",
            self.server.port()
        ))
        .unwrap();
        client.one_value(sql).unwrap().unwrap_or_default()
    }

    /// Writes the configuration: the sharding, and for each shard its database and further keys.
    fn write(&self, sharding: &str, shards: &[(&str, &str)]) {
        let port = self.server.port();
        let shard = |(dbname, keys): &(&str, &str)| {
            format!(
                "[[pool.databases.app.shards]]\ndbname = '{dbname}'\n{keys}\n\
                 servers = [{{ host = '127.0.0.1', port = {port} }}]\n"
            )
        };
        let shards: String = shards.iter().map(shard).collect();
        let text = app_settings(&format!("sharding = {{ {sharding} }}\n{shards}"));
        std::fs::write(self.folder.path().join("howdah.toml"), text).unwrap();
    }

    fn pooler(&self) -> Pooler {
        let file = self.folder.path().join("howdah.toml");
        let config = Config::read(&file).unwrap().config;
        Pooler::start_from_source(config, Some(ConfigOrigin { path: file, workers: None })).unwrap()
    }
}

const BY_COUNTRY: &str = "key = ['text'], tables = { orders = ['country'] }";

#[test]
fn keys_follow_lists_and_ranges() {
    let Some(parts) = DatabaseShards::start("lists", &["eu", "world", "low", "high"]) else {
        return;
    };
    parts.write(BY_COUNTRY, &[("eu", "values = ['de', 'at']"), ("world", "rest = true")]);
    let pooler = parts.pooler();
    let mut raw = log_in_to_app(pooler.addresses()[0]);
    for (country, database) in [("de", "eu"), ("at", "eu"), ("jp", "world"), ("DE", "world")] {
        let insert = format!("insert into orders (id, country) values (1, '{country}')");
        assert_eq!(query_reply(&mut raw, &insert), "INSERT 0 1, I");
        let count = format!("select count(*) from orders where country = '{country}'");
        assert_eq!(parts.query_value(database, &count), "1", "{country}");
        assert_eq!(query_reply(&mut raw, &count), "1, SELECT 1, I");
    }
    assert_eq!(query_reply(&mut raw, "select count(*) from orders"), "4, SELECT 1, I");
    assert_eq!(query_reply(&mut raw, "SET SHARDING KEY TO 'at'"), "SET SHARDING KEY, I");
    assert_eq!(query_reply(&mut raw, "select current_database()"), "eu, SELECT 1, I");

    let by_id = "key = ['bigint'], tables = { orders = ['id'] }";
    parts.write(by_id, &[("low", "to = 1000"), ("high", "from = 1000\nto = 2000")]);
    let pooler = parts.pooler();
    let mut raw = log_in_to_app(pooler.addresses()[0]);
    for (id, database) in [(i64::MIN, "low"), (999, "low"), (1000, "high"), (1999, "high")] {
        let insert = format!("insert into orders (id, country) values ({id}, 'x')");
        assert_eq!(query_reply(&mut raw, &insert), "INSERT 0 1, I");
        let count = format!("select count(*) from orders where id = {id}");
        assert_eq!(parts.query_value(database, &count), "1", "{id}");
    }
    let beyond = query_reply(&mut raw, "insert into orders (id, country) values (2000, 'x')");
    assert!(beyond.starts_with("23514 ") && beyond.ends_with(", I"), "{beyond}");
    assert_eq!(
        query_reply(&mut raw, "select max(id), 'x' from orders").split(' ').next(),
        Some("0A000")
    );
    assert_eq!(query_reply(&mut raw, "select max(id) from orders"), "1999, SELECT 1, I");
}

#[test]
fn reload_changes_shards_for_connected_clients() {
    let Some(parts) = DatabaseShards::start("shard_list", &["a", "b", "c"]) else { return };
    let (de, rest) = ("values = ['de', 'at']", "rest = true");
    parts.write(BY_COUNTRY, &[("a", de), ("b", rest)]);
    let pooler = parts.pooler();
    let mut raw = log_in_to_app(pooler.addresses()[0]);
    let mut shards_with = |country: &str| {
        let insert = format!("insert into orders (id, country) values (1, '{country}')");
        assert_eq!(query_reply(&mut raw, &insert), "INSERT 0 1, I", "{country}");
        let count = format!("select count(*) from orders where country = '{country}'");
        let found =
            ["a", "b", "c"].into_iter().filter(|name| parts.query_value(name, &count) != "0");
        let found: Vec<_> = found.collect();
        for name in &found {
            parts.query_value(name, "delete from orders where id = 1");
        }
        found.join(",")
    };
    assert_eq!([shards_with("de"), shards_with("at"), shards_with("jp")], ["a", "a", "b"]);
    let mut fixed = log_in_to_app(pooler.addresses()[0]);
    assert_eq!(query_reply(&mut fixed, "SET SHARD TO '1'"), "SET SHARD, I");
    let mut inside = log_in_to_app(pooler.addresses()[0]);
    assert_eq!(query_reply(&mut inside, "begin"), "BEGIN, T");
    let insert = "insert into orders (id, country) values (2, 'at')";
    assert_eq!(query_reply(&mut inside, insert), "INSERT 0 1, T");
    // A key moves to a new shard.
    parts.write(BY_COUNTRY, &[("a", "values = ['de']"), ("b", rest), ("c", "values = ['at']")]);
    pooler.control().reload().unwrap();
    wait_until("the key to move", WAIT_TIMEOUT, || shards_with("at") == "c");
    assert_eq!([shards_with("de"), shards_with("jp")], ["a", "b"]);
    assert_eq!(query_reply(&mut fixed, "select current_database()"), "b, SELECT 1, I");
    // An open transaction ends on its old shard.
    assert_eq!(query_reply(&mut inside, "select current_database()"), "a, SELECT 1, T");
    assert_eq!(query_reply(&mut inside, "commit"), "COMMIT, I");
    assert_eq!(parts.query_value("a", "select count(*) from orders where id = 2"), "1");
    parts.query_value("a", "truncate orders");
    // A shard is removed while a session has set it.
    assert_eq!(query_reply(&mut fixed, "SET SHARD TO '2'"), "SET SHARD, I");
    assert_eq!(query_reply(&mut fixed, "select current_database()"), "c, SELECT 1, I");
    parts.write(BY_COUNTRY, &[("a", de), ("b", rest)]);
    pooler.control().reload().unwrap();
    wait_until("the key to move back", WAIT_TIMEOUT, || shards_with("at") == "a");
    let gone = query_reply(&mut fixed, "select current_database()");
    assert!(gone.starts_with("58000 ") && gone.ends_with(", I"), "{gone}");
    assert_eq!(query_reply(&mut fixed, "SET SHARD TO '0'"), "SET SHARD, I");
    assert_eq!(query_reply(&mut fixed, "select current_database()"), "a, SELECT 1, I");
}
