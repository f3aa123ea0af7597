//! What is decided beside what a server does: shards of rows, and answers of shards.
//!
//! One server holds everything in tables `PARTITION BY HASH` (the schema `whole`), and each partition again
//! by itself, as the table of that name in a schema of its own (`s0`, `s1`, `s2`): these are the shards. So
//! a statement runs on the whole, and where it is sent, by the search path alone; and a row that is sent to
//! the wrong shard is an error of the server.

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

use howdah_connect::{Client, Environment, Target, Words};
use howdah_lab::{Cluster, or_say_why_not};
use howdah_route::{PinScope, Refusal, Request, Route, Router, Session, Settings, Table};
use howdah_shard::{KeyType, ShardMap};

const SHARDS: u32 = 3;

/// The generator SplitMix64: the same statements in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }

    fn is(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }
}

/// A server, if there is one, and a connection to it.
fn server(what: &str) -> Option<(Cluster, Client)> {
    let cluster = or_say_why_not(what, Cluster::builder().major(15).start())?;
    let words = Words::from_conninfo(cluster.uri("postgres"));
    let target = Target::resolve(&words, &Environment::empty()).unwrap();
    let client = Client::connect(&target).unwrap();
    Some((cluster, client))
}

/// A session that has said nothing, and what the settings say of `tables`.
struct Chooser {
    router: Router,
    session: Session,
}

impl Chooser {
    fn new(columns: &[KeyType], tables: &[(&str, &[&str])]) -> Self {
        let table = |(name, key): &(&str, &[&str])| Table {
            schema: None,
            name: (*name).to_owned(),
            key: key.iter().map(|column| (*column).to_owned()).collect(),
        };
        let settings = Settings {
            shards: SHARDS,
            map: Some(ShardMap::hash(SHARDS, columns.to_vec()).unwrap()),
            tables: tables.iter().map(table).collect(),
            ..Settings::default()
        };
        settings.check().unwrap();
        let mut session = Session::new(PinScope::Transaction, 0);
        session.parameter_status(b"client_encoding", b"UTF8");
        session.parameter_status(b"server_encoding", b"UTF8");
        Self { router: Router::new(Arc::new(settings), 1 << 20), session }
    }

    fn route(&mut self, sql: &str) -> Result<Route, Refusal> {
        match self.session.simple(&mut self.router, sql.as_bytes())? {
            Request::Route(route) => Ok(route),
            Request::Command(answer) => panic!("{sql} is no command: {answer:?}"),
        }
    }
}

/// One statement's rows.
type Rows = Vec<Vec<Option<String>>>;

/// Names of columns and rows of the last result, as text; or what the server said. Nothing is left of it.
fn run(client: &mut Client, path: &str, sql: &str) -> Result<(Vec<String>, Rows), String> {
    client.query(&format!("BEGIN; SET LOCAL search_path = {path}, public")).unwrap();
    let result = client.query(sql).map_err(|error| error.to_string());
    client.query("ROLLBACK").unwrap();
    let text = |cell: Option<&[u8]>| cell.map(|cell| String::from_utf8(cell.to_vec()).unwrap());
    let last = result?.pop().unwrap_or_default();
    let rows = last.rows.iter().map(|row| row.iter().map(text).collect()).collect();
    Ok((last.columns, rows))
}
