//! A pooler's clients and the server connections they use, read from its console: PgBouncer's, or
//! one with the same columns (PgBouncer manual, "SHOW CLIENTS", "SHOW SERVERS").
//!
//! The server sees only the pooler's connections. Only the pooler knows which client uses which
//! connection, and in transaction mode this changes with every transaction. The console runs one
//! simple-protocol command at a time, so clients and servers are two samples: a pair counts only if
//! each names the other.

use std::{collections::HashMap, sync::Arc, time::Duration};

use howdah_connect::{Client, ConnectTarget, ResultRow, ResultSet};

use crate::{CollectError, sanitized_line};

/// Maximum time for a response of the console.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection to a pooler's console.
#[derive(Debug)]
pub struct ConsoleConnection {
    client: Client,
}

/// A pooler's clients at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PoolerClients {
    /// All clients, in the pooler's order.
    pub clients: Vec<PoolerClient>,
}

/// A connection of an application to the pooler.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PoolerClient {
    /// Role that the client logged in as.
    pub user: Arc<str>,
    /// Database requested from the pooler.
    pub database: Arc<str>,
    /// `SHOW CLIENTS` state, such as `active`, `waiting` or `idle`.
    pub state: Arc<str>,
    /// Client address, or `unix`.
    pub address: Arc<str>,
    /// TCP port of the client; 0 if the pooler reports none.
    pub port: i32,
    /// `application_name`, if the pooler reports it.
    pub application: Option<Arc<str>>,
    /// Seconds that the client has waited for a server connection; `None` if it is not waiting.
    pub wait_seconds: Option<f64>,
    /// Server connection that the client is linked to; `None` if there is none, or if
    /// `SHOW CLIENTS` and `SHOW SERVERS` do not identify it.
    pub backend: Option<PooledBackend>,
}

/// A pooler's server connection, identified as the server sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PooledBackend {
    /// Process id of the backend.
    pub pid: i32,
    /// The pooler's port, which the server reports as `client_port`; -1 for a Unix socket.
    pub client_port: i32,
}

impl ConsoleConnection {
    /// Connects to the console, which is the database that `target` names, usually `pgbouncer`.
    ///
    /// # Errors
    ///
    /// The connection could not be established.
    pub fn connect(target: &ConnectTarget) -> Result<Self, CollectError> {
        let mut client = Client::connect(target)?;
        client.set_timeout(Some(RESPONSE_TIMEOUT));
        Ok(Self { client })
    }

    /// Returns the clients with the server connections they use.
    ///
    /// # Errors
    ///
    /// The console refused, the connection failed, or the peer is not a pooler console.
    pub fn clients(&mut self) -> Result<PoolerClients, CollectError> {
        let servers = self.show("SHOW SERVERS", "the pooler's servers")?;
        let clients = self.show("SHOW CLIENTS", "the pooler's clients")?;
        join(&clients, &servers).ok_or(CollectError::NotPooler)
    }

    fn show(&mut self, sql: &str, what: &'static str) -> Result<ResultSet, CollectError> {
        let results = self.client.query(sql).map_err(CollectError::query(what))?;
        results.into_iter().next().ok_or(CollectError::NotPooler)
    }
}

/// Indexes of columns that both `SHOW CLIENTS` and `SHOW SERVERS` have.
struct ConsoleColumns {
    pointer: usize,
    link: usize,
    address: usize,
    port: usize,
}

impl ConsoleColumns {
    fn from_result(result: &ResultSet) -> Option<Self> {
        Some(Self {
            pointer: result.column("ptr")?,
            link: result.column("link")?,
            address: result.column("addr")?,
            port: result.column("port")?,
        })
    }
}

/// Joins the clients with their server connections; `None` if either result lacks a required
/// column.
fn join(clients: &ResultSet, servers: &ResultSet) -> Option<PoolerClients> {
    let linked = linked_servers(servers)?;
    let columns = ConsoleColumns::from_result(clients)?;
    let [user, database, state] = ["user", "database", "state"].map(|name| clients.column(name));
    let (user, database, state) = (user?, database?, state?);
    let [application, wait, wait_us] =
        ["application_name", "wait", "wait_us"].map(|name| clients.column(name));
    let word = |row: &ResultRow, at: usize| -> Arc<str> {
        row.text(at).map_or_else(|| "".into(), |text| sanitized_line(&text).into())
    };
    let number = |row: &ResultRow, at: Option<usize>| row.text(at?)?.parse::<f64>().ok();
    let client = |row: &ResultRow| {
        let state = word(row, state);
        let waits = (&*state == "waiting")
            .then(|| number(row, wait).unwrap_or(0.0) + number(row, wait_us).unwrap_or(0.0) / 1e6);
        let pointer = row.text(columns.pointer).unwrap_or_default();
        let link = row.text(columns.link).unwrap_or_default();
        PoolerClient {
            user: word(row, user),
            database: word(row, database),
            address: word(row, columns.address),
            port: row.text(columns.port).and_then(|port| port.parse().ok()).unwrap_or(0),
            application: application
                .map(|at| word(row, at))
                .filter(|application| !application.is_empty()),
            wait_seconds: waits,
            backend: linked
                .get(&*link)
                .filter(|(client, _)| *client == pointer)
                .map(|(_, linked)| *linked),
            state,
        }
    };
    Some(PoolerClients { clients: clients.rows.iter().map(client).collect() })
}

/// Returns the linked server connections by their `ptr` column, each with the pointer of its
/// client; `None` if a required column is missing.
fn linked_servers(servers: &ResultSet) -> Option<HashMap<String, (String, PooledBackend)>> {
    let columns = ConsoleColumns::from_result(servers)?;
    let (pid, local_port) = (servers.column("remote_pid")?, servers.column("local_port")?);
    let number = |row: &ResultRow, at: usize| row.text(at)?.parse::<i32>().ok();
    let of = |row: &ResultRow| {
        let client = row.text(columns.link).filter(|link| !link.is_empty())?;
        let is_unix = row.text(columns.address).is_some_and(|address| address.starts_with("unix"));
        let client_port = if is_unix { -1 } else { number(row, local_port)? };
        let linked = PooledBackend { pid: number(row, pid)?, client_port };
        Some((row.text(columns.pointer)?.into_owned(), (client.into_owned(), linked)))
    };
    Some(servers.rows.iter().filter_map(of).collect())
}
