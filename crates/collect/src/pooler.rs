//! A pooler's clients and the server connections they hold, asked of its console: PgBouncer's, or any with
//! the same columns (manual of PgBouncer, "SHOW CLIENTS", "SHOW SERVERS").
//!
//! A server sees the pooler's connections; who is behind one of them only the pooler knows, and in
//! transaction mode only for as long as a transaction lasts. The console takes commands of the simple
//! protocol, one at a time, so clients and servers are two readings: a pair counts only if each names the
//! other, and so held together over both.

use std::{collections::HashMap, sync::Arc, time::Duration};

use howdah_connect::{Client, ResultSet, Row, Target};

use crate::{CollectError, shown_line};

/// Longest that the console may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection to a pooler's console.
#[derive(Debug)]
pub struct Pooler {
    client: Client,
}

/// What a pooler said of its clients at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PoolerClients {
    /// All of them, as the pooler lists them.
    pub clients: Vec<PoolerClient>,
}

/// A client of a pooler.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PoolerClient {
    /// Its role.
    pub user: Arc<str>,
    /// The database it asked the pooler for.
    pub database: Arc<str>,
    /// `active`, `waiting`, `idle`, …
    pub state: Arc<str>,
    /// Where it is: an address, or `unix`.
    pub address: Arc<str>,
    /// The port there.
    pub port: i32,
    /// What it calls itself, where the pooler says.
    pub application: Option<Arc<str>>,
    /// How long it has waited for a server connection, in seconds, if it waits.
    pub waits: Option<f64>,
    /// The server connection it holds.
    pub holds: Option<Held>,
}

/// A server connection of a pooler, as the server knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Held {
    /// The server's process.
    pub pid: i32,
    /// The pooler's port, which the server has as the client's; -1 for a unix socket.
    pub client_port: i32,
}

impl Pooler {
    /// Connects to the console: to the database `pgbouncer`, or to what the target names.
    ///
    /// # Errors
    ///
    /// No connection could be had.
    pub fn connect(target: &Target) -> Result<Self, CollectError> {
        let mut client = Client::connect(target)?;
        client.set_timeout(Some(ANSWER_TIMEOUT));
        Ok(Self { client })
    }

    /// Its clients, with the server connections they hold.
    ///
    /// # Errors
    ///
    /// The console refused, or the connection failed, or what answers is no pooler's console.
    pub fn clients(&mut self) -> Result<PoolerClients, CollectError> {
        let servers = self.show("SHOW SERVERS", "the pooler's servers")?;
        let clients = self.show("SHOW CLIENTS", "the pooler's clients")?;
        joined(&clients, &servers).ok_or(CollectError::NotPooler)
    }

    fn show(&mut self, sql: &str, what: &'static str) -> Result<ResultSet, CollectError> {
        let results = self.client.query(sql).map_err(CollectError::query(what))?;
        results.into_iter().next().ok_or(CollectError::NotPooler)
    }
}

/// The places of the columns that both lists have.
struct Columns {
    pointer: usize,
    link: usize,
    address: usize,
    port: usize,
}

impl Columns {
    fn of(result: &ResultSet) -> Option<Self> {
        Some(Self {
            pointer: result.column("ptr")?,
            link: result.column("link")?,
            address: result.column("addr")?,
            port: result.column("port")?,
        })
    }
}

/// Joins both lists; `None` if one lacks columns that every console has.
fn joined(clients: &ResultSet, servers: &ResultSet) -> Option<PoolerClients> {
    let held = held(servers)?;
    let columns = Columns::of(clients)?;
    let [user, database, state] = ["user", "database", "state"].map(|name| clients.column(name));
    let (user, database, state) = (user?, database?, state?);
    let [application, wait, wait_us] =
        ["application_name", "wait", "wait_us"].map(|name| clients.column(name));
    let word = |row: &Row, at: usize| -> Arc<str> {
        row.text(at).map_or_else(|| "".into(), |text| shown_line(&text).into())
    };
    let number = |row: &Row, at: Option<usize>| row.text(at?)?.parse::<f64>().ok();
    let client = |row: &Row| {
        let state = word(row, state);
        let waits = (&*state == "waiting")
            .then(|| number(row, wait).unwrap_or(0.0) + number(row, wait_us).unwrap_or(0.0) / 1e6);
        let mine = row.text(columns.pointer).unwrap_or_default();
        let link = row.text(columns.link).unwrap_or_default();
        PoolerClient {
            user: word(row, user),
            database: word(row, database),
            address: word(row, columns.address),
            port: row.text(columns.port).and_then(|port| port.parse().ok()).unwrap_or(0),
            application: application
                .map(|at| word(row, at))
                .filter(|application| !application.is_empty()),
            waits,
            holds: held.get(&*link).filter(|(client, _)| *client == mine).map(|(_, held)| *held),
            state,
        }
    };
    Some(PoolerClients { clients: clients.rows.iter().map(client).collect() })
}

/// Server connections by their pointer, each with the pointer of the client that holds it.
fn held(servers: &ResultSet) -> Option<HashMap<String, (String, Held)>> {
    let columns = Columns::of(servers)?;
    let (pid, local_port) = (servers.column("remote_pid")?, servers.column("local_port")?);
    let number = |row: &Row, at: usize| row.text(at)?.parse::<i32>().ok();
    let of = |row: &Row| {
        let client = row.text(columns.link).filter(|link| !link.is_empty())?;
        let is_unix = row.text(columns.address).is_some_and(|address| address.starts_with("unix"));
        let client_port = if is_unix { -1 } else { number(row, local_port)? };
        let held = Held { pid: number(row, pid)?, client_port };
        Some((row.text(columns.pointer)?.into_owned(), (client.into_owned(), held)))
    };
    Some(servers.rows.iter().filter_map(of).collect())
}
