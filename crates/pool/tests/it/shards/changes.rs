//! What changes while clients are there: a shard's primary, and the list of shards.

use howdah_lab::{Cluster, or_say_why_not};
use howdah_pool::{Origin, Pooler, config::Config};

use super::{KEYED, Stage};
use crate::{
    cluster::{direct, settings_of, until},
    route::{asked, client_at},
};

#[test]
fn a_shard_whose_primary_is_lost_goes_on_with_its_standby_and_the_others_meanwhile() {
    let more = format!(
        "cluster = {{ role = \"auto\", check-interval = \"200ms\", failover-timeout = \"60s\" }}\n{KEYED}"
    );
    let Some(mut stage) = Stage::set("shard_failover", 1, &more) else { return };
    let [zero, one] = stage.keys();
    let insert =
        |key: i64, note: &str| format!("insert into orders (id, note) values ({key}, '{note}')");
    let mut raw = stage.client();
    for key in [zero, one] {
        assert_eq!(asked(&mut raw, &insert(key, "before")), "INSERT 0 1, I");
    }
    for shard in &stage.shards {
        let rows = "select count(*) from orders";
        until("the rows are at standbys", || direct(&shard[1], rows) == "1");
    }
    stage.shards[1][0].kill().unwrap();
    // Who was there finds its server gone at most once; then a write waits for a primary.
    let mut waits = stage.client();
    let waiting = std::thread::spawn(move || {
        let mut told = asked(&mut waits, &insert(one, "waited"));
        if !told.starts_with("INSERT") {
            told = asked(&mut waits, &insert(one, "waited"));
        }
        (waits, told)
    });
    let mut other = stage.client();
    for number in 0..20 {
        assert_eq!(asked(&mut other, &insert(zero, &number.to_string())), "INSERT 0 1, I");
    }
    assert!(!waiting.is_finished(), "nobody takes writes of that shard");
    direct(&stage.shards[1][1], "select pg_promote(false)");
    let (mut waits, told) = waiting.join().unwrap();
    assert_eq!(told, "INSERT 0 1, I");
    let notes = format!("select string_agg(note, ',' order by note) from orders where id = {one}");
    assert_eq!(asked(&mut waits, &notes), "before,waited, SELECT 1, I");
    // What is asked of all shards is asked of the new primary.
    assert_eq!(asked(&mut other, "SET SERVER ROLE TO 'primary'"), "SET SERVER ROLE, I");
    assert_eq!(asked(&mut other, "select count(*) from orders"), "23, SELECT 1, I");
}

/// One server with a database for each shard.
struct Parts {
    server: Cluster,
    folder: tempfile::TempDir,
}

impl Parts {
    fn new(test: &str, databases: &[&str]) -> Option<Self> {
        let server = or_say_why_not(test, Cluster::builder().start())?;
        for name in databases {
            direct(&server, &format!("create database {name}"));
        }
        let parts = Self { server, folder: tempfile::tempdir().unwrap() };
        for name in databases {
            parts.at(name, "create table orders (id bigint, country text)");
        }
        Some(parts)
    }

    fn at(&self, database: &str, sql: &str) -> String {
        let mut client = crate::support::connect(&format!(
            "host=127.0.0.1 port={} dbname={database} user=postgres sslmode=disable",
            self.server.port()
        ))
        .unwrap();
        client.one_value(sql).unwrap().unwrap_or_default()
    }

    /// Writes settings: the sharding, and of each shard its database and what else is said of it.
    fn write(&self, sharding: &str, shards: &[(&str, &str)]) {
        let port = self.server.port();
        let shard = |(dbname, keys): &(&str, &str)| {
            format!(
                "[[pool.databases.app.shards]]\ndbname = '{dbname}'\n{keys}\n\
                 servers = [{{ host = '127.0.0.1', port = {port} }}]\n"
            )
        };
        let shards: String = shards.iter().map(shard).collect();
        let text = settings_of(&format!("sharding = {{ {sharding} }}\n{shards}"));
        std::fs::write(self.folder.path().join("howdah.toml"), text).unwrap();
    }

    fn pooler(&self) -> Pooler {
        let file = self.folder.path().join("howdah.toml");
        let config = Config::read(&file).unwrap().config;
        Pooler::start_from(config, Some(Origin { path: file, workers: None })).unwrap()
    }
}

const BY_COUNTRY: &str = "key = ['text'], tables = { orders = ['country'] }";

#[test]
fn keys_are_where_lists_and_ranges_say() {
    let Some(parts) = Parts::new("lists", &["eu", "world", "low", "high"]) else { return };
    parts.write(BY_COUNTRY, &[("eu", "values = ['de', 'at']"), ("world", "rest = true")]);
    let pooler = parts.pooler();
    let mut raw = client_at(pooler.addresses()[0]);
    for (country, database) in [("de", "eu"), ("at", "eu"), ("jp", "world"), ("DE", "world")] {
        let insert = format!("insert into orders (id, country) values (1, '{country}')");
        assert_eq!(asked(&mut raw, &insert), "INSERT 0 1, I");
        let count = format!("select count(*) from orders where country = '{country}'");
        assert_eq!(parts.at(database, &count), "1", "{country}");
        assert_eq!(asked(&mut raw, &count), "1, SELECT 1, I");
    }
    assert_eq!(asked(&mut raw, "select count(*) from orders"), "4, SELECT 1, I");
    assert_eq!(asked(&mut raw, "SET SHARDING KEY TO 'at'"), "SET SHARDING KEY, I");
    assert_eq!(asked(&mut raw, "select current_database()"), "eu, SELECT 1, I");

    let by_id = "key = ['bigint'], tables = { orders = ['id'] }";
    parts.write(by_id, &[("low", "to = 1000"), ("high", "from = 1000\nto = 2000")]);
    let pooler = parts.pooler();
    let mut raw = client_at(pooler.addresses()[0]);
    for (id, database) in [(i64::MIN, "low"), (999, "low"), (1000, "high"), (1999, "high")] {
        let insert = format!("insert into orders (id, country) values ({id}, 'x')");
        assert_eq!(asked(&mut raw, &insert), "INSERT 0 1, I");
        let count = format!("select count(*) from orders where id = {id}");
        assert_eq!(parts.at(database, &count), "1", "{id}");
    }
    let beyond = asked(&mut raw, "insert into orders (id, country) values (2000, 'x')");
    assert!(beyond.starts_with("23514 ") && beyond.ends_with(", I"), "{beyond}");
    assert_eq!(asked(&mut raw, "select max(id), 'x' from orders").split(' ').next(), Some("0A000"));
    assert_eq!(asked(&mut raw, "select max(id) from orders"), "1999, SELECT 1, I");
}

#[test]
fn the_list_of_shards_can_be_changed_while_clients_are_there() {
    let Some(parts) = Parts::new("shard_list", &["a", "b", "c"]) else { return };
    let (de, rest) = ("values = ['de', 'at']", "rest = true");
    parts.write(BY_COUNTRY, &[("a", de), ("b", rest)]);
    let pooler = parts.pooler();
    let mut raw = client_at(pooler.addresses()[0]);
    let mut on = |country: &str| {
        let insert = format!("insert into orders (id, country) values (1, '{country}')");
        assert_eq!(asked(&mut raw, &insert), "INSERT 0 1, I", "{country}");
        let count = format!("select count(*) from orders where country = '{country}'");
        let found = ["a", "b", "c"].into_iter().filter(|name| parts.at(name, &count) != "0");
        let found: Vec<_> = found.collect();
        for name in &found {
            parts.at(name, "delete from orders where id = 1");
        }
        found.join(",")
    };
    assert_eq!([on("de"), on("at"), on("jp")], ["a", "a", "b"]);
    let mut fixed = client_at(pooler.addresses()[0]);
    assert_eq!(asked(&mut fixed, "SET SHARD TO '1'"), "SET SHARD, I");
    let mut inside = client_at(pooler.addresses()[0]);
    assert_eq!(asked(&mut inside, "begin"), "BEGIN, T");
    let insert = "insert into orders (id, country) values (2, 'at')";
    assert_eq!(asked(&mut inside, insert), "INSERT 0 1, T");
    // A key moves to a shard of its own.
    parts.write(BY_COUNTRY, &[("a", "values = ['de']"), ("b", rest), ("c", "values = ['at']")]);
    pooler.control().reload().unwrap();
    until("the key has moved", || on("at") == "c");
    assert_eq!([on("de"), on("jp")], ["a", "b"]);
    assert_eq!(asked(&mut fixed, "select current_database()"), "b, SELECT 1, I");
    // Who was in a transaction ends it where it began.
    assert_eq!(asked(&mut inside, "select current_database()"), "a, SELECT 1, T");
    assert_eq!(asked(&mut inside, "commit"), "COMMIT, I");
    assert_eq!(parts.at("a", "select count(*) from orders where id = 2"), "1");
    parts.at("a", "truncate orders");
    // The last shard goes, and with it what was said of it.
    assert_eq!(asked(&mut fixed, "SET SHARD TO '2'"), "SET SHARD, I");
    assert_eq!(asked(&mut fixed, "select current_database()"), "c, SELECT 1, I");
    parts.write(BY_COUNTRY, &[("a", de), ("b", rest)]);
    pooler.control().reload().unwrap();
    until("the key is back", || on("at") == "a");
    let gone = asked(&mut fixed, "select current_database()");
    assert!(gone.starts_with("58000 ") && gone.ends_with(", I"), "{gone}");
    assert_eq!(asked(&mut fixed, "SET SHARD TO '0'"), "SET SHARD, I");
    assert_eq!(asked(&mut fixed, "select current_database()"), "a, SELECT 1, I");
}
