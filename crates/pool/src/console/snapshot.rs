//! [`PoolerSnapshot`]: the state of the pooler at one moment, from which tables and metrics are
//! built. It combines the workers' reports, with names instead of ids.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use howdah_connect::Endpoint;
use howdah_pool_config::{Config, PoolSettings};
use howdah_pool_core::{
    ClientPhase, MemberReport, MirrorReport, PinReport, PoolCounts, PoolStats, PoolingMode,
    ServerPhase, Time,
};

use crate::{CancelPeersReport, MultiplexerReport, auth::RefusalReason};

/// The state of the pooler at one moment.
#[derive(Clone, Debug)]
pub struct PoolerSnapshot {
    /// The configuration in effect.
    pub config: Arc<Config>,
    /// The time of the snapshot.
    pub at: SystemTime,
    /// Pools, ordered by id.
    pub pools: Vec<PoolView>,
    /// Counts of removed pools by database; `None` means all databases that are unused and not in
    /// the configuration.
    pub removed: Vec<(Option<String>, PoolStats)>,
    /// Clients of all workers; empty unless requested.
    pub clients: Vec<ClientView>,
    /// Server connections of all workers; empty unless requested.
    pub servers: Vec<ServerView>,
    /// Connections to the console.
    pub admins: Vec<AdminView>,
    /// Number of commands that the console has executed.
    pub admin_commands: u64,
    /// Databases, ordered by name.
    pub databases: Vec<DatabaseView>,
    /// Whether the pooler is suspended.
    pub is_suspended: bool,
    /// The members of all clusters whose databases have been used.
    pub members: Vec<MemberView>,
    /// The configured mirrors.
    pub mirrors: Vec<MirrorView>,
    /// LISTEN multiplexers, one per database that ever had one.
    pub listeners: Vec<MultiplexerReport>,
    /// The time of the snapshot on the workers' clock.
    pub now: Time,
    /// Number of clients that are logging in.
    pub logins: usize,
    /// Number of refused logins and CancelRequests, by reason.
    pub refused: Vec<(RefusalReason, u64)>,
    /// The poolers to which CancelRequests with unknown keys are forwarded, and counts of these.
    pub cancel_peers: CancelPeersReport,
    /// The running capture, or the last one.
    pub capture: Option<crate::recorder::RecorderStatus>,
}

/// A server of a cluster, across all users' pools.
#[derive(Clone, Debug)]
pub struct MemberView {
    /// The database's name in the settings.
    pub database: String,
    /// Number of the shard, if the database has shards.
    pub shard: Option<u32>,
    /// Address and port, or socket path, of the server.
    pub endpoint: Endpoint,
    /// The server's share of the load, relative to the other servers.
    pub weight: u32,
    /// The server's state as known from health checks.
    pub report: MemberReport,
    /// Numbers of server connections in all pools of this server.
    pub counts: PoolCounts,
    /// Number of transactions in all pools of this server.
    pub transactions: u64,
    /// Number of requests in all pools of this server.
    pub queries: u64,
    /// Number of reads redirected to this server because no standby had replayed their client's
    /// writes.
    pub reads_redirected: u64,
}

/// A database that is configured by name or has been used.
#[derive(Clone, Debug)]
pub struct DatabaseView {
    /// The database's name for clients.
    pub name: String,
    /// Whether the database is paused: clients get no server.
    pub is_paused: bool,
    /// Users whose clients are paused.
    pub paused_users: Vec<String>,
    /// Whether logins are refused.
    pub is_disabled: bool,
}

/// A pool, across all workers.
#[derive(Clone, Debug)]
pub struct PoolView {
    /// The database's name for clients.
    pub database: String,
    /// The user of the clients, or the user that the database forces.
    pub user: String,
    /// The pool mode, which determines when a client releases its server connection.
    pub mode: PoolingMode,
    /// Whether the pool gets no new clients, because its database was removed or new settings
    /// require another pool.
    pub is_retired: bool,
    /// Index of the owner pool in [`PoolerSnapshot::pools`], if this is a cluster member's pool.
    /// The owner pool has the clients, and its counts include those of this pool.
    pub owner: Option<usize>,
    /// Whether this is a mirror's pool, which has no clients, and whose counts are those of the
    /// mirror.
    pub is_mirror: bool,
    /// The resolved settings of the pool.
    pub settings: PoolSettings,
    /// Counts since the pool was created.
    pub tally: PoolStats,
    /// Numbers of clients and server connections by state.
    pub counts: PoolCounts,
    /// Counts of the last complete statistics period, and its length.
    pub last_period: Option<(PoolStats, Duration)>,
}

impl PoolView {
    /// Whether the pool can have clients: pools of mirrors and of cluster members have none.
    pub(crate) fn is_owner(&self) -> bool {
        self.owner.is_none() && !self.is_mirror
    }
}

/// A mirror of a database's traffic.
#[derive(Clone, Debug)]
pub struct MirrorView {
    /// The database's name in the settings.
    pub database: String,
    /// The mirror's name: its endpoint, followed by `/` and `dbname` if that is configured.
    pub name: String,
    /// Address and port, or socket path, of the mirror.
    pub endpoint: Endpoint,
    /// The database's name at the mirror, if configured; otherwise it is the name at the database's
    /// own servers.
    pub dbname: Option<String>,
    /// The share of clients that are mirrored, from 0 to 1.
    pub sample_rate: f64,
    /// Counts of transactions mirrored, dropped and compared.
    pub report: MirrorReport,
    /// Numbers of server connections in all pools of this mirror.
    pub counts: PoolCounts,
    /// Number of requests in all pools of this mirror.
    pub queries: u64,
    /// Total duration of the requests in all pools of this mirror.
    pub query_time: Duration,
}

/// A connection to the console, as shown by SHOW CLIENTS.
#[derive(Clone, Debug)]
pub struct AdminView {
    /// Unique id of the connection.
    pub id: ConnectionNumber,
    /// The user that logged in.
    pub user: String,
    /// The client's `application_name`; empty if it has none.
    pub application_name: String,
    /// Time of the login.
    pub connected: SystemTime,
    /// Both addresses of the connection.
    pub addresses: SocketAddresses,
}

/// The id of a connection in the tables of the console: positive, assigned when a table first shows
/// the connection.
pub type ConnectionNumber = i32;

/// A client that has logged in, as shown by SHOW CLIENTS.
#[derive(Clone, Debug)]
pub struct ClientView {
    /// Unique id of the client, for console commands.
    pub id: ConnectionNumber,
    /// Identity of the connection inside of the process, as for its server in [`ServerView`].
    pub pointer: u64,
    /// Index of the client's pool in [`PoolerSnapshot::pools`].
    pub pool: usize,
    /// The user that the client logged in as, if it is not the pool's.
    pub user: Option<Arc<str>>,
    /// Whether the client uses a replication connection.
    pub is_replication: bool,
    /// The client's phase, such as waiting for a server.
    pub phase: ClientPhase,
    /// Time of the client's login.
    pub connected: SystemTime,
    /// Time since the client entered its current state, such as waiting, linked or idle.
    pub since: Duration,
    /// [`ServerView::pointer`] of the server connection linked to the client, if any.
    pub server: Option<u64>,
    /// Process id of the backend that serves the client; 0 if none does.
    pub process_id: i32,
    /// Number of the client's named prepared statements.
    pub statements: usize,
    /// The client's current `application_name`.
    pub application_name: String,
    /// Both addresses of the client's connection.
    pub addresses: SocketAddresses,
}

impl PoolerSnapshot {
    /// Returns the user name that a client logged in with.
    pub fn client_user<'a>(&'a self, client: &'a ClientView) -> &'a str {
        client.user.as_deref().unwrap_or(&self.pools[client.pool].user)
    }
}

/// A server connection, as shown by SHOW SERVERS.
#[derive(Clone, Debug)]
pub struct ServerView {
    /// Unique id of the connection, as in SHOW SERVERS.
    pub id: ConnectionNumber,
    /// Identity of the connection inside of the process.
    pub pointer: u64,
    /// Index of the connection's pool in [`PoolerSnapshot::pools`].
    pub pool: usize,
    /// Whether the connection is for replication.
    pub is_replication: bool,
    /// The phase of the connection, such as idle or in use.
    pub phase: ServerPhase,
    /// Time at which the connection was opened.
    pub connected: SystemTime,
    /// Time since the connection entered its state; while linked, since the server last started or
    /// finished work.
    pub since: Duration,
    /// [`ClientView::pointer`] of the client linked to the connection, if any.
    pub client: Option<u64>,
    /// Number of pending CancelRequests for the connection.
    pub cancels: u32,
    /// Process id of the backend; 0 if the server sent no cancel key.
    pub process_id: i32,
    /// Number of statements prepared on the connection for clients.
    pub statements: usize,
    /// The current `application_name` on the connection.
    pub application_name: String,
    /// Whether the connection will be closed as soon as its client releases it.
    pub is_outdated: bool,
    /// Why its client is pinned to the connection; `None` if it is not.
    pub pin: Option<PinReport>,
    /// Addresses of the connection.
    pub addresses: SocketAddresses,
}

/// Both addresses of a connection, and its encryption.
#[derive(Clone, Debug, Default)]
pub struct SocketAddresses {
    /// The peer's address; `None` for a unix socket, or if it is not known.
    pub peer: Option<SocketAddr>,
    /// The local address; `None` for a unix socket, or if it is not known.
    pub local: Option<SocketAddr>,
    /// TLS version and cipher, if the connection is encrypted.
    pub tls: Option<String>,
}
