//! Requests to several shards: reads with merged results, and COPY.
//!
//! One server has three databases, each with one partition of the tables, so that a row on the
//! wrong shard is an error, and a fourth database with all rows for the expected results.

mod copies;
mod queries;

use std::{io::Write as _, net::SocketAddr, process::Stdio};

use howdah_connect::Client;
use howdah_lab::{Cluster, skip_without_postgres};
use howdah_pool::Pooler;

use crate::{
    routing::{bind, execute, log_in_to_app, message, parse, query_reply, read_reply, run_batch},
    support::{RawClient, checked_stdout, start_pooler_with},
};

const SHARDS: usize = 3;

/// A server with three shards, and a pooler in front of them.
struct FanOutFixture {
    server: Cluster,
    pooler: Pooler,
}

impl FanOutFixture {
    /// `more` are additional keys of `[pool]`, and tables after them.
    fn start(test: &str, more: &str) -> Option<Self> {
        let server = Cluster::builder().setting("max_connections", "60").start();
        let server = skip_without_postgres(test, server)?;
        let mut admin = connect(&conninfo(server.port(), "postgres"));
        for name in ["whole", "s0", "s1", "s2"] {
            let sql = format!(
                "CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'"
            );
            admin.query(&sql).unwrap();
        }
        for (number, name) in ["whole", "s0", "s1", "s2"].into_iter().enumerate() {
            let mut client = connect(&conninfo(server.port(), name));
            client
                .query("CREATE TABLE orders (id int8, a int, b text) PARTITION BY HASH (id)")
                .unwrap();
            client
                .query("CREATE TABLE items (order_id int8, id int, a int) PARTITION BY HASH (order_id)")
                .unwrap();
            client.query("CREATE TABLE countries AS SELECT c AS code, 'c' || c AS name FROM generate_series(0, 4) c").unwrap();
            for shard in (0..SHARDS).filter(|shard| number == 0 || number == shard + 1) {
                for table in ["orders", "items"] {
                    let partition = format!(
                        "CREATE TABLE {table}_{shard} PARTITION OF {table}
                         FOR VALUES WITH (MODULUS {SHARDS}, REMAINDER {shard})"
                    );
                    client.query(&partition).unwrap();
                }
            }
        }
        let pooler = start_pooler_with(&settings(server.port(), more));
        Some(Self { server, pooler })
    }

    fn address(&self) -> SocketAddr {
        self.pooler.addresses()[0]
    }

    /// A client of the pooler.
    fn client(&self) -> Client {
        connect(&conninfo(self.address().port(), "app"))
    }

    fn raw_client(&self) -> RawClient {
        log_in_to_app(self.address())
    }

    /// A direct connection to a database of the server.
    fn connect_to_server(&self, database: &str) -> Client {
        connect(&conninfo(self.server.port(), database))
    }

    /// The value of a query on each shard.
    fn query_each_shard(&self, sql: &str) -> Vec<String> {
        let one =
            |name: &str| self.connect_to_server(name).one_value(sql).unwrap().unwrap_or_default();
        ["s0", "s1", "s2"].map(one).into()
    }

    /// Inserts the same rows into the whole database and, distributed, into the three shards.
    fn insert_rows(&self) {
        let all = "SELECT n, nullif(n % 5, 3), 'b' || n % 3 FROM generate_series(-20, 40) n";
        let items = "SELECT n % 25, n, nullif(n % 4, 0) FROM generate_series(1, 90) n";
        let mut whole = self.connect_to_server("whole");
        whole.query(&format!("INSERT INTO orders {all}; INSERT INTO items {items}")).unwrap();
        for (shard, name) in ["s0", "s1", "s2"].into_iter().enumerate() {
            let mut client = self.connect_to_server(name);
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

fn conninfo(port: u16, database: &str) -> String {
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
