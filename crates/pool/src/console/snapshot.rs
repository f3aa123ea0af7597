//! [`PoolerSnapshot`]: the state of the pooler at one moment, from which tables and metrics are
//! built. It combines the workers' reports, with names instead of numbers.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use howdah_connect::Endpoint;

use crate::{
    MemberReport, MirrorReport, MultiplexerReport, Time,
    auth::RefusalReason,
    config::{Config, PoolSettings},
    core::{ClientPhase, PoolCounts, ServerPhase, spec::PoolingMode, state::pool_stats::PoolStats},
};

/// The state of the pooler at one moment.
#[derive(Clone, Debug)]
pub struct PoolerSnapshot {
    /// The configuration.
    pub config: Arc<Config>,
    /// The time of the snapshot.
    pub at: SystemTime,
    /// Pools, ordered by number.
    pub pools: Vec<PoolView>,
    /// Counts of removed pools by database; `None` for databases that are unused and not in the
    /// configuration.
    pub removed: Vec<(Option<String>, PoolStats)>,
    /// Clients of all workers; empty unless requested.
    pub clients: Vec<ClientView>,
    /// Server connections of all workers; empty unless requested.
    pub servers: Vec<ServerView>,
    /// Databases, ordered by name.
    pub databases: Vec<DatabaseView>,
    /// Whether the pooler is suspended.
    pub is_suspended: bool,
    /// Servers of those databases with several servers that have been used.
    pub members: Vec<MemberView>,
    /// The configured mirrors.
    pub mirrors: Vec<MirrorView>,
    /// LISTEN multiplexers, one per database that has had one.
    pub listeners: Vec<MultiplexerReport>,
    /// The time of the snapshot on the workers' clock.
    pub now: Time,
    /// Number of clients that are logging in.
    pub logins: usize,
    /// Number of refused logins by reason.
    pub refused: Vec<(RefusalReason, u64)>,
    /// The running capture, or the last one.
    pub capture: Option<crate::recorder::RecorderStatus>,
}

/// One of several servers of a database.
#[derive(Clone, Debug)]
pub struct MemberView {
    /// The database's name in the settings.
    pub database: String,
    /// The number of its shard, if the database has shards.
    pub shard: Option<u32>,
    /// Its endpoint.
    pub endpoint: Endpoint,
    /// Its share of the load, relative to the other servers.
    pub weight: u32,
    /// Its state as known from health checks.
    pub report: MemberReport,
    /// Numbers of server connections in all its pools.
    pub counts: PoolCounts,
    /// Transactions in all its pools.
    pub transactions: u64,
    /// Requests in all its pools.
    pub queries: u64,
    /// Reads redirected to it because no standby had replayed their client's writes.
    pub reads_redirected: u64,
}

/// A database that is configured by name or has been used.
#[derive(Clone, Debug)]
pub struct DatabaseView {
    /// The name that clients use.
    pub name: String,
    /// Whether it is paused: no client gets a server.
    pub is_paused: bool,
    /// Users whose clients are paused.
    pub paused_users: Vec<String>,
    /// Whether logins are refused.
    pub is_disabled: bool,
}

/// A pool, across all workers.
#[derive(Clone, Debug)]
pub struct PoolView {
    /// The name that clients use.
    pub database: String,
    /// The user of its clients: their own, or the one that the database forces.
    pub user: String,
    /// The pool mode.
    pub mode: PoolingMode,
    /// Whether new clients use another pool: the database was removed or its mode has changed.
    pub is_retired: bool,
    /// Index of its owner pool in [`PoolerSnapshot::pools`], if this is the pool of one of several
    /// servers: the owner pool has the clients, and its counts include those of this pool.
    pub owner: Option<usize>,
    /// Whether it is a mirror's pool: it has no clients, and its counts are those of the mirror.
    pub is_mirror: bool,
    /// Its settings.
    pub settings: PoolSettings,
    /// Counts since the start.
    pub tally: PoolStats,
    /// Numbers of clients and server connections by state.
    pub counts: PoolCounts,
    /// Counts of the last complete statistics period, and its length.
    pub last_period: Option<(PoolStats, Duration)>,
}

impl PoolView {
    /// Whether the pool has clients of its own: it is neither that of one of several servers nor
    /// that of a mirror.
    pub(crate) fn is_owner(&self) -> bool {
        self.owner.is_none() && !self.is_mirror
    }
}

/// A mirror of a database's traffic.
#[derive(Clone, Debug)]
pub struct MirrorView {
    /// The database's name in the settings.
    pub database: String,
    /// The mirror's name: its endpoint, and its database if it has another name there.
    pub name: String,
    /// Its endpoint.
    pub endpoint: Endpoint,
    /// The database's name at the mirror, if it differs from that at the database's servers.
    pub dbname: Option<String>,
    /// The share of clients that is mirrored, from 0 to 1.
    pub sample_rate: f64,
    /// Counts of the mirror.
    pub report: MirrorReport,
    /// Numbers of server connections in all its pools.
    pub counts: PoolCounts,
    /// Requests in all its pools.
    pub queries: u64,
    /// Total duration of those requests.
    pub query_time: Duration,
}

/// A client.
#[derive(Clone, Debug)]
pub struct ClientView {
    /// Unique id, for console commands.
    pub id: u64,
    /// Index of its pool in [`PoolerSnapshot::pools`].
    pub pool: usize,
    /// Its own user, if it is not the pool's.
    pub user: Option<Arc<str>>,
    /// Whether it is a replication connection.
    pub is_replication: bool,
    /// Its state.
    pub phase: ClientPhase,
    /// Time of its login.
    pub connected: SystemTime,
    /// Time since the last change of its state.
    pub since: Duration,
    /// Id of the server connection linked to it.
    pub server: Option<u64>,
    /// Process id of the backend that serves it.
    pub process_id: i32,
    /// Number of its prepared statements.
    pub statements: usize,
    /// Its `application_name`.
    pub application_name: String,
    /// Addresses of its connection.
    pub addresses: SocketAddresses,
}

impl PoolerSnapshot {
    /// The user name that a client logged in with.
    pub fn client_user<'a>(&'a self, client: &'a ClientView) -> &'a str {
        client.user.as_deref().unwrap_or(&self.pools[client.pool].user)
    }
}

/// A server connection.
#[derive(Clone, Debug)]
pub struct ServerView {
    /// Unique id, for console commands.
    pub id: u64,
    /// Index of its pool in [`PoolerSnapshot::pools`].
    pub pool: usize,
    /// Whether it is a replication connection.
    pub is_replication: bool,
    /// Its state.
    pub phase: ServerPhase,
    /// Time when it was opened.
    pub connected: SystemTime,
    /// Time since the last change of its state.
    pub since: Duration,
    /// Id of the client linked to it.
    pub client: Option<u64>,
    /// Number of pending CancelRequests to it.
    pub cancels: u32,
    /// Process id of its backend.
    pub process_id: i32,
    /// Number of statements prepared on it.
    pub statements: usize,
    /// Its `application_name`.
    pub application_name: String,
    /// Whether it will be closed as soon as its client releases it.
    pub is_outdated: bool,
    /// Addresses of the connection.
    pub addresses: SocketAddresses,
}

/// Both addresses of a connection, and its encryption.
#[derive(Clone, Debug, Default)]
pub struct SocketAddresses {
    /// The peer's address; `None` for a unix socket.
    pub peer: Option<SocketAddr>,
    /// The local address; `None` for a unix socket.
    pub local: Option<SocketAddr>,
    /// TLS version and cipher, if the connection is encrypted.
    pub tls: Option<String>,
}
