//! Compares routing with a real server: shards of rows, and results of shards.
//!
//! One server holds everything in tables `PARTITION BY HASH` (the schema `whole`), and each
//! partition also as a separate table of the same name in another schema (`s0`, `s1`, `s2`): these
//! are the shards. A statement can thus run on the whole or on the shards it is routed to, by the
//! search path alone, and a row sent to the wrong shard is an error of the server.

#![allow(clippy::panic, clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

#[path = "server/answers.rs"]
mod answers;
#[path = "server/copies.rs"]
mod copies;
#[path = "server/keys.rs"]
mod keys;
#[path = "server/merges.rs"]
mod merges;
#[path = "server/wire.rs"]
mod wire;

use std::sync::Arc;

use howdah_connect::{Client, ConnParams, ConnectTarget, Environment};
use howdah_lab::{Cluster, skip_without_postgres};
use howdah_route::shard::{KeyType, ShardMap};
use howdah_route::{
    PinScope, Refusal, Route, RouteSession, RouteSettings, RoutedRequest, RoutedTable, Router,
};

const SHARDS: u32 = 3;

/// The generator SplitMix64: the same statements in every run.
struct StatementRandom(u64);

impl StatementRandom {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn up_to(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn pick<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.up_to(of.len())]
    }

    fn chance(&mut self, one_in: usize) -> bool {
        self.up_to(one_in) == 0
    }
}

/// A server, if there is one, and a connection to it.
fn server(what: &str) -> Option<(Cluster, Client)> {
    let cluster = skip_without_postgres(what, Cluster::builder().major(15).start())?;
    let words = ConnParams::from_conninfo(cluster.uri("postgres"));
    let target = ConnectTarget::resolve(&words, &Environment::empty()).unwrap();
    let client = Client::connect(&target).unwrap();
    Some((cluster, client))
}

/// A session without overrides, with settings for `tables`.
struct TestRouter {
    router: Router,
    session: RouteSession,
}

impl TestRouter {
    fn new(columns: &[KeyType], tables: &[(&str, &[&str])]) -> Self {
        let table = |(name, key): &(&str, &[&str])| RoutedTable {
            schema: None,
            name: (*name).to_owned(),
            key: key.iter().map(|column| (*column).to_owned()).collect(),
        };
        let settings = RouteSettings {
            shards: SHARDS,
            map: Some(ShardMap::hash(SHARDS, columns.to_vec()).unwrap()),
            tables: tables.iter().map(table).collect(),
            ..RouteSettings::default()
        };
        settings.check().unwrap();
        let mut session = RouteSession::new(PinScope::Transaction, 0);
        session.parameter_status(b"client_encoding", b"UTF8");
        session.parameter_status(b"server_encoding", b"UTF8");
        Self { router: Router::new(Arc::new(settings), 1 << 20), session }
    }

    fn route(&mut self, sql: &str) -> Result<Route, Refusal> {
        match self.session.simple(&mut self.router, sql.as_bytes())? {
            RoutedRequest::Route(route) => Ok(route),
            RoutedRequest::Command(answer) => panic!("{sql} is no command: {answer:?}"),
        }
    }
}

/// The rows of one statement.
type ResultRows = Vec<Vec<Option<String>>>;

/// Column names and rows of the last result, as text, or the server's error. Changes are rolled
/// back.
fn run(client: &mut Client, path: &str, sql: &str) -> Result<(Vec<String>, ResultRows), String> {
    client.query(&format!("BEGIN; SET LOCAL search_path = {path}, public")).unwrap();
    let result = client.query(sql).map_err(|error| error.to_string());
    client.query("ROLLBACK").unwrap();
    let text = |cell: Option<&[u8]>| cell.map(|cell| String::from_utf8(cell.to_vec()).unwrap());
    let last = result?.pop().unwrap_or_default();
    let rows = last.rows.iter().map(|row| row.iter().map(text).collect()).collect();
    Ok((last.columns, rows))
}
