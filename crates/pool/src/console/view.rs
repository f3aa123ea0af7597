//! [`View`]: the pooler at one moment, as tables are made of it: the workers' reports put together, with
//! names in the place of numbers.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use howdah_connect::Endpoint;

use crate::{
    HubReport, MemberReport, MirrorReport, Time,
    auth::RefusalReason,
    config::{Config, PoolSettings},
    core::{ClientPhase, Counts, ServerPhase},
    spec::Mode,
    tally::Tally,
};

/// The pooler at one moment.
#[derive(Clone, Debug)]
pub struct View {
    /// What it was told to be.
    pub config: Arc<Config>,
    /// When this was.
    pub at: SystemTime,
    /// In the order of their numbers.
    pub pools: Vec<PoolView>,
    /// What was counted of pools that were given up, by database; of databases that nobody uses any
    /// more and that the settings do not name, by none.
    pub past: Vec<(Option<String>, Tally)>,
    /// Those of all workers; empty if nobody asked for them.
    pub clients: Vec<ClientView>,
    /// Those of all workers; empty if nobody asked for them.
    pub servers: Vec<ServerView>,
    /// By name, in order.
    pub databases: Vec<DatabaseView>,
    /// Everything stands still, by an operator's order.
    pub is_suspended: bool,
    /// Servers of databases that have several, of those that somebody has used.
    pub members: Vec<MemberView>,
    /// Mirrors that the settings name.
    pub mirrors: Vec<MirrorView>,
    /// Dedicated connections that listen for clients, of databases for which there was one.
    pub listeners: Vec<HubReport>,
    /// The same moment on the workers' clock.
    pub now: Time,
    /// How many clients are on their way in.
    pub logins: usize,
    /// Logins that were refused, by reason.
    pub refused: Vec<(RefusalReason, u64)>,
    /// The capture under way, or the last.
    pub capture: Option<howdah_record::Status>,
}

/// One of several servers of a database.
#[derive(Clone, Debug)]
pub struct MemberView {
    /// The database's name in the settings.
    pub database: String,
    /// Of which shard it is, if the database has shards.
    pub shard: Option<u32>,
    /// Where it is.
    pub endpoint: Endpoint,
    /// Its part, beside that of others.
    pub weight: u32,
    /// What is known of it.
    pub report: MemberReport,
    /// Server connections of all its pools.
    pub counts: Counts,
    /// Transactions in all its pools.
    pub transactions: u64,
    /// Requests in all its pools.
    pub queries: u64,
    /// Reads that came to it because no standby had what their client wrote.
    pub reads_kept: u64,
}

/// A database that has a name of its own, or that somebody has used.
#[derive(Clone, Debug)]
pub struct DatabaseView {
    /// The name that clients use.
    pub name: String,
    /// No client gets a server.
    pub is_paused: bool,
    /// No client of these users gets one.
    pub paused_users: Vec<String>,
    /// No new client is let in.
    pub is_disabled: bool,
}

/// A pool, over all workers.
#[derive(Clone, Debug)]
pub struct PoolView {
    /// The name that clients use.
    pub database: String,
    /// The user of its clients: their own, or the one that the database forces.
    pub user: String,
    /// For how long clients have servers.
    pub mode: Mode,
    /// Whether new clients go elsewhere: its database is gone, or has another mode.
    pub is_retired: bool,
    /// Index of its home in [`View::pools`], if it is of one server of several: what was counted there
    /// is in its home's numbers, too, and its home has the clients.
    pub home: Option<usize>,
    /// Whether its servers are a mirror's: it has no clients, and what was counted there is the mirror's.
    pub is_mirror: bool,
    /// What holds for it.
    pub settings: PoolSettings,
    /// What was counted since the start.
    pub tally: Tally,
    /// How many there are of what.
    pub counts: Counts,
    /// What was counted in the last whole period of statistics, and how long that was.
    pub last_period: Option<(Tally, Duration)>,
}

impl PoolView {
    /// Whether clients come to it, or have.
    pub(crate) fn is_home(&self) -> bool {
        self.home.is_none() && !self.is_mirror
    }
}

/// Another cluster on which a share of a database's traffic is run, too.
#[derive(Clone, Debug)]
pub struct MirrorView {
    /// The database's name in the settings.
    pub database: String,
    /// What the mirror is known by: where it is, and its database if that has a name of its own.
    pub name: String,
    /// Where it is.
    pub endpoint: Endpoint,
    /// What it calls the database, if that is not what the database's servers do.
    pub dbname: Option<String>,
    /// Which part of clients is mirrored.
    pub share: f64,
    /// What was counted.
    pub report: MirrorReport,
    /// Server connections of all its pools.
    pub counts: Counts,
    /// Requests in all its pools.
    pub queries: u64,
    /// How long they took there.
    pub query_time: Duration,
}

/// A client.
#[derive(Clone, Debug)]
pub struct ClientView {
    /// Names it, for an operator.
    pub id: u64,
    /// Index of its pool in [`View::pools`].
    pub pool: usize,
    /// Its own user, where that is not its pool's.
    pub user: Option<Arc<str>>,
    /// Whether it is for replication.
    pub is_replication: bool,
    /// What it is at.
    pub phase: ClientPhase,
    /// When it logged in.
    pub connected: SystemTime,
    /// For how long it has been where it is.
    pub since: Duration,
    /// The server that it has.
    pub server: Option<u64>,
    /// The process that works for it.
    pub process_id: i32,
    /// How many statements it has prepared.
    pub statements: usize,
    /// Its `application_name`.
    pub application_name: String,
    /// Where it comes from and where it came in.
    pub place: Place,
}

impl View {
    /// The user by whose name a client logged in.
    pub fn client_user<'a>(&'a self, client: &'a ClientView) -> &'a str {
        client.user.as_deref().unwrap_or(&self.pools[client.pool].user)
    }
}

/// A server.
#[derive(Clone, Debug)]
pub struct ServerView {
    /// Names it, for an operator.
    pub id: u64,
    /// Index of its pool in [`View::pools`].
    pub pool: usize,
    /// Whether it is for replication.
    pub is_replication: bool,
    /// What it is at.
    pub phase: ServerPhase,
    /// When it was opened.
    pub connected: SystemTime,
    /// For how long it has been where it is.
    pub since: Duration,
    /// The client that it works for.
    pub client: Option<u64>,
    /// CancelRequests under way to it.
    pub cancels: u32,
    /// Its process there.
    pub process_id: i32,
    /// How many statements are prepared on it.
    pub statements: usize,
    /// Its `application_name`.
    pub application_name: String,
    /// It is closed as soon as its client leaves it.
    pub is_outdated: bool,
    /// Where it is, and our end of the connection.
    pub place: Place,
}

/// Both ends of a connection.
#[derive(Clone, Debug, Default)]
pub struct Place {
    /// Theirs; `None` for a unix socket.
    pub peer: Option<SocketAddr>,
    /// Ours; `None` for a unix socket.
    pub own: Option<SocketAddr>,
    /// Version and cipher of TLS, if it is encrypted.
    pub tls: Option<String>,
}
