//! [`PoolSpec`]: the behavior of a pool, as plain values derived from the configuration.

use std::{sync::Arc, time::Duration};

use crate::{
    cluster::{ClusterMembership, ClusterSpec},
    core::{
        mirror::target::MirrorTarget,
        session::connect_query::ConnectQuery,
        state::{admin_state::AdminState, limits::ConnectionLimit, pool::WelcomeMessage},
    },
};

/// How long a client keeps its server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PoolingMode {
    /// Until the client disconnects.
    Session,
    /// Until the client's transaction has ended and everything it sent is answered.
    #[default]
    Transaction,
    /// Like [`PoolingMode::Transaction`], and transactions of more than one request are refused.
    Statement,
}

/// The behavior of a pool, the same in every worker.
#[derive(Clone, Debug)]
pub struct PoolSpec {
    /// How long a client keeps its server.
    pub mode: PoolingMode,
    /// The limits of which every server connection acquires a permit: the pool's size, and other
    /// limits (of its database, user, host, or the total), shared with other pools and workers. The
    /// pool's own limit comes first.
    pub server_limits: Arc<[Arc<ConnectionLimit>]>,
    /// The pool's share of limits that it has in common with other pools; at least 1.
    pub weight: u32,
    /// Number of servers that all workers together open without a waiting client. Such servers are
    /// closed if another pool needs their place under a shared limit.
    pub servers_min: u32,
    /// Maximum number of prepared statements on a server for its clients; with 0, the names of
    /// statements are forwarded unchanged. Not for [`PoolingMode::Session`].
    pub statements_per_server: u32,
    /// Maximum number of concurrent logins of this pool in this worker; at least 1.
    pub logins_max: u32,
    /// Whether a server is closed after one client: for replication.
    pub is_single_use: bool,
    /// Whether the client's parameters are sent with the login to its server, so that none are set
    /// afterwards. Replication connections require it.
    pub has_parameters_at_login: bool,
    /// Query run when a client releases its server. Without it only changed session state is reset,
    /// and in [`PoolingMode::Session`] everything.
    pub reset: Option<ResetQuery>,
    /// Query that is run after a server's login, and again after each reset.
    pub connect_query: Option<Arc<ConnectQuery>>,
    /// Query that checks a server that was idle for long before a client gets it.
    pub check: Option<CheckQuery>,
    /// Whether the least recently used server is used first, instead of the most recently used.
    pub is_round_robin: bool,
    /// Maximum bytes of notifications buffered for a busy client, with shared servers. `None`
    /// leaves LISTEN to the servers, where it ends with the transaction.
    pub listen_bytes: Option<usize>,
    /// Whether clients may use the simple query protocol.
    pub allows_simple_queries: bool,
    /// Additional servers for clients that have waited too long.
    pub reserve: Option<ReservePool>,
    /// The parameters sent to clients at login, once a server of any worker has reported them.
    pub welcome: Arc<WelcomeMessage>,
    /// Administrative state of the database: paused, disabled, or to be reconnected.
    pub admin_state: Arc<AdminState>,
    /// The user of the pool, as named by `PAUSE`.
    pub user: Arc<str>,
    /// Timeouts of clients and servers.
    pub timeouts: PoolTimeouts,
    /// Increases whenever existing servers become unusable, because their address or the pooler's
    /// login has changed.
    pub edition: u32,
    /// Whether clients are disconnected as soon as they are outside a transaction, because their
    /// database was removed.
    pub is_closing: bool,
    /// The clusters that the clients use; then the servers are in pools of their own, and this one
    /// has none. One cluster per shard; one without sharding.
    pub clusters: Arc<[Arc<ClusterSpec>]>,
    /// The cluster that the pool is a member of.
    pub member: Option<ClusterMembership>,
    /// Mirrors of the clients' traffic.
    pub mirrors: Arc<[MirrorTarget]>,
    /// How requests of the clients are routed, where that is possible.
    pub routing: Option<Arc<howdah_route::RouteSettings>>,
}

/// A query that resets a server's session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResetQuery {
    /// SQL text, without a zero byte; if empty, nothing is run, and nothing is reset in
    /// [`PoolingMode::Session`].
    pub query: Box<[u8]>,
    /// Whether the query runs in every mode, whenever a server changes hands, and not only in
    /// [`PoolingMode::Session`].
    pub is_always: bool,
}

/// A query that checks whether a server is alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckQuery {
    /// SQL text, without a zero byte; may be empty. A server whose check fails, or is not answered
    /// within [`PoolTimeouts::cleanup`], is closed.
    pub query: Box<[u8]>,
    /// How long a server must have been idle to be checked.
    pub idle: Duration,
}

/// Servers beyond a pool's size (PgBouncer's `reserve_pool_size`).
#[derive(Clone, Debug)]
pub struct ReservePool {
    /// The limits of which each such server acquires a permit: the reserve's size, and all limits
    /// of the pool except its own size.
    pub limits: Arc<[Arc<ConnectionLimit>]>,
    /// How long the first client must have waited.
    pub after: Duration,
}

impl PoolSpec {
    /// Returns the epoch of new servers. Servers of another epoch are closed as they become free.
    /// The terms never decrease, so equal sums mean equal terms.
    #[inline]
    pub(crate) fn epoch(&self) -> u32 {
        let member_epoch = self.member.as_ref().map_or(0, |member| member.state.epoch());
        self.admin_state.epoch().wrapping_add(self.edition).wrapping_add(member_epoch)
    }

    /// Whether clients get no server because of a pause.
    #[inline]
    pub(crate) fn is_paused(&self) -> bool {
        self.admin_state.is_paused_for_user(&self.user)
    }

    /// Creates a pool in transaction mode with PgBouncer's usual values and its own limit.
    pub fn new(servers_max: u32) -> Self {
        Self {
            mode: PoolingMode::default(),
            server_limits: [ConnectionLimit::new(servers_max)].into(),
            weight: 1,
            servers_min: 0,
            statements_per_server: 200,
            logins_max: 4,
            is_single_use: false,
            has_parameters_at_login: false,
            reset: None,
            connect_query: None,
            check: None,
            is_round_robin: false,
            listen_bytes: Some(1 << 20),
            allows_simple_queries: true,
            reserve: None,
            welcome: Arc::default(),
            admin_state: Arc::default(),
            user: Arc::default(),
            timeouts: PoolTimeouts::default(),
            edition: 0,
            is_closing: false,
            clusters: Arc::default(),
            member: None,
            mirrors: Arc::default(),
            routing: None,
        }
    }
}

/// Timeouts; `None` means unlimited. They are never enforced early, but up to a tenth late, or 10
/// ms if that is more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolTimeouts {
    /// How long a client may wait for a server before it receives an error and is closed.
    pub query_wait: Option<Duration>,
    /// How long a request may be unanswered before client and server are closed and the query is
    /// cancelled.
    pub query: Option<Duration>,
    /// How long a transaction, or a request outside one, may take before the client is closed and
    /// its server is cancelled and rolled back.
    pub transaction: Option<Duration>,
    /// How long a client waits for a server before it receives a notice, once.
    pub query_wait_notify: Option<Duration>,
    /// How long a client in a transaction may send nothing while no reply is outstanding. Then it
    /// is closed, and its server rolled back.
    pub idle_transaction: Option<Duration>,
    /// How long a client outside a transaction may send nothing.
    pub client_idle: Option<Duration>,
    /// How long a server beyond [`PoolSpec::servers_min`] may be idle before it is closed.
    pub server_idle: Option<Duration>,
    /// The age at which a server is closed as soon as it is idle.
    pub server_lifetime: Option<Duration>,
    /// How long the requests of a disconnected client may take to finish, or to be cancelled and
    /// rolled back, before the server is closed.
    pub cleanup: Duration,
    /// The pause after a first failed login; doubled by each further failure.
    pub login_retry: Duration,
    /// The longest pause after failed logins.
    pub login_retry_max: Duration,
}

impl Default for PoolTimeouts {
    fn default() -> Self {
        Self {
            query_wait: Some(Duration::from_secs(120)),
            query: None,
            transaction: None,
            query_wait_notify: None,
            idle_transaction: None,
            client_idle: None,
            server_idle: Some(Duration::from_secs(600)),
            server_lifetime: Some(Duration::from_secs(3600)),
            cleanup: Duration::from_secs(5),
            login_retry: Duration::from_millis(100),
            login_retry_max: Duration::from_secs(15),
        }
    }
}
