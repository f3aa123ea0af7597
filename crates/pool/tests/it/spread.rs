//! Requests that are done on several shards: reads whose answers become one, and COPY.
//!
//! One server holds three databases, each with one partition of the tables, and a fourth with everything: a
//! row on the wrong shard is an error, and the fourth says what an answer has to be.

mod copies;
mod queries;

use std::{io::Write as _, net::SocketAddr, process::Stdio};

use howdah_connect::Client;
use howdah_lab::{Cluster, or_say_why_not};
use howdah_pool::Pooler;

use crate::{
    route::{asked, batch, bind, client_at, execute, message, parse, said as answer},
    support::{Raw, pooler_of, said},
};

const SHARDS: usize = 3;

/// A server with three shards, and a pooler before them.
struct Stage {
    server: Cluster,
    pooler: Pooler,
}

impl Stage {
    /// `more` are keys of `[pool]` and tables behind them.
    fn set(test: &str, more: &str) -> Option<Self> {
        let server = Cluster::builder().setting("max_connections", "60").start();
        let server = or_say_why_not(test, server)?;
        let mut admin = connect(&words(server.port(), "postgres"));
        for name in ["whole", "s0", "s1", "s2"] {
            let sql = format!(
                "CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'"
            );
            admin.query(&sql).unwrap();
        }
        for (place, name) in ["whole", "s0", "s1", "s2"].into_iter().enumerate() {
            let mut client = connect(&words(server.port(), name));
            client
                .query("CREATE TABLE orders (id int8, a int, b text) PARTITION BY HASH (id)")
                .unwrap();
            client
                .query("CREATE TABLE items (order_id int8, id int, a int) PARTITION BY HASH (order_id)")
                .unwrap();
            client.query("CREATE TABLE countries AS SELECT c AS code, 'c' || c AS name FROM generate_series(0, 4) c").unwrap();
            for shard in (0..SHARDS).filter(|shard| place == 0 || place == shard + 1) {
                for table in ["orders", "items"] {
                    let partition = format!(
                        "CREATE TABLE {table}_{shard} PARTITION OF {table}
                         FOR VALUES WITH (MODULUS {SHARDS}, REMAINDER {shard})"
                    );
                    client.query(&partition).unwrap();
                }
            }
        }
        let pooler = pooler_of(&settings(server.port(), more));
        Some(Self { server, pooler })
    }

    fn address(&self) -> SocketAddr {
        self.pooler.addresses()[0]
    }

    /// A client of the pooler.
    fn client(&self) -> Client {
        connect(&words(self.address().port(), "app"))
    }

    fn raw(&self) -> Raw {
        client_at(self.address())
    }

    /// A connection to a database of the server itself.
    fn direct(&self, database: &str) -> Client {
        connect(&words(self.server.port(), database))
    }

    /// What a query says on each shard, one after another.
    fn on_each(&self, sql: &str) -> Vec<String> {
        let one = |name: &str| self.direct(name).one_value(sql).unwrap().unwrap_or_default();
        ["s0", "s1", "s2"].map(one).into()
    }

    /// Rows in all tables, on one server or over three shards.
    fn fill(&self) {
        let all = "SELECT n, nullif(n % 5, 3), 'b' || n % 3 FROM generate_series(-20, 40) n";
        let items = "SELECT n % 25, n, nullif(n % 4, 0) FROM generate_series(1, 90) n";
        let mut whole = self.direct("whole");
        whole.query(&format!("INSERT INTO orders {all}; INSERT INTO items {items}")).unwrap();
        for (shard, name) in ["s0", "s1", "s2"].into_iter().enumerate() {
            let mut client = self.direct(name);
            for (table, rows) in [("orders", all), ("items", items)] {
                client
                    .query(&format!(
                        "INSERT INTO {table} SELECT * FROM ({rows}) r (k, x, y)
                         WHERE satisfies_hash_partition('{table}'::regclass, {SHARDS}, {shard}, k::int8)"
                    ))
                    .unwrap();
            }
        }
    }
}

fn words(port: u16, database: &str) -> String {
    format!("host=127.0.0.1 port={port} dbname={database} user=postgres sslmode=disable")
}

fn connect(words: &str) -> Client {
    crate::support::connect(words).unwrap()
}

fn settings(port: u16, more: &str) -> String {
    let shard = |at: usize| {
        format!(
            "[[pool.databases.app.shards]]\ndbname = 's{at}'\n\
             servers = [{{ host = '127.0.0.1', port = {port} }}]\n"
        )
    };
    format!(
        "[pool]\nmode = 'transaction'\nworkers = 2\n{more}\n\
         [pool.listen]\naddresses = ['127.0.0.1']\nport = 0\nunix-directories = []\n\
         [pool.auth]\ntype = 'trust'\n[pool.users.postgres]\nsecret = ''\n\
         [pool.databases.app.sharding]\nkey = ['bigint']\ncollation = 'bytes'\n\
         tables = {{ orders = ['id'], items = ['order_id'], countries = [] }}\n{}",
        (0..SHARDS).map(shard).collect::<String>()
    )
}
