//! [`PoolSpec`]: the settings of a pool, derived from the configuration.

use std::{sync::Arc, time::Duration};

use crate::{
    cluster::{ClusterMembership, ClusterSpec},
    mirror::target::MirrorTarget,
    session::connect_query::ConnectQuery,
    state::{admin_state::AdminState, limits::ConnectionLimit, welcome::WelcomeMessage},
};

/// The pooling mode, which determines when a client releases its server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PoolingMode {
    /// A client keeps its server until it disconnects.
    Session,
    /// A client keeps its server until its transaction has ended and all its requests are answered.
    #[default]
    Transaction,
    /// Like [`PoolingMode::Transaction`], but a client whose session has state that cannot follow
    /// it keeps its server until that state is gone.
    Adaptive,
    /// Like [`PoolingMode::Transaction`], but a client that opens a transaction block is
    /// disconnected.
    Statement,
}

/// The settings of a pool, the same in every worker.
#[derive(Clone, Debug)]
pub struct PoolSpec {
    /// The pooling mode, which determines when a client releases its server.
    pub mode: PoolingMode,
    /// The limits from which every server connection, except those of the reserve, acquires a
    /// permit. The first is the pool's own size; most others, such as those of the database, user
    /// and host, are shared with other pools. All are shared by all workers.
    pub server_limits: Arc<[Arc<ConnectionLimit>]>,
    /// The pool's weight when it competes with other pools for a common limit; at least 1.
    pub weight: u32,
    /// Number of servers that all workers together open without a waiting client. Such a server may
    /// be closed if another pool needs its permit of a shared limit.
    pub servers_min: u32,
    /// Maximum number of shared prepared statements on a server. If 0, statement names are
    /// forwarded unchanged. Ignored in [`PoolingMode::Session`].
    pub statements_per_server: u32,
    /// Maximum number of concurrent server logins for this pool in each worker; at least 1.
    pub logins_max: u32,
    /// Whether a client whose server must be replaced is disconnected between its transactions,
    /// instead of keeping the server until it leaves. Applies to [`PoolingMode::Session`].
    pub closes_outdated_sessions: bool,
    /// Whether a server is closed when its client releases it, as for replication connections.
    pub is_single_use: bool,
    /// Whether the client's parameters are sent in the startup packet to its server, so that none
    /// are set later. Replication connections require this.
    pub has_parameters_at_login: bool,
    /// The query that resets a released server in [`PoolingMode::Session`], or in every mode if
    /// [`ResetQuery::is_always`]. Where it does not run, only the session state that changed is
    /// reset; in session mode without a query, all of it.
    pub reset: Option<ResetQuery>,
    /// The query that runs after a server's login and, if it can be repeated, again after each
    /// reset.
    pub connect_query: Option<Arc<ConnectQuery>>,
    /// The query that checks a long-idle server before a client gets it.
    pub check: Option<CheckQuery>,
    /// Whether the least recently used idle server is used first, instead of the most recently used
    /// one.
    pub is_round_robin: bool,
    /// Maximum bytes of notifications buffered for a busy client, if servers are shared. With
    /// `None`, LISTEN is not multiplexed, and ends when the server is released.
    pub listen_bytes: Option<usize>,
    /// Whether clients may use the simple query protocol.
    pub allows_simple_queries: bool,
    /// How clients are pinned to servers in [`PoolingMode::Adaptive`].
    pub pinning: PinningSpec,
    /// Additional servers for clients that have waited too long, if any.
    pub reserve: Option<ReservePool>,
    /// The parameters that are sent to clients at login, once a server has reported them to any
    /// worker.
    pub welcome: Arc<WelcomeMessage>,
    /// The effect of administrators' commands on the database, such as PAUSE.
    pub admin_state: Arc<AdminState>,
    /// The name of the pool's user, by which an administrator can pause single users.
    pub user: Arc<str>,
    /// Timeouts for the pool's clients and servers.
    pub timeouts: PoolTimeouts,
    /// A number that increases whenever the address or the login changes, so that existing servers
    /// are replaced.
    pub edition: u32,
    /// Whether clients are disconnected as soon as they are outside a transaction, because their
    /// database was removed.
    pub is_closing: bool,
    /// The clusters that the pool's clients use, one for each shard (one without sharding). If
    /// there are any, the servers are in the pools of the members, and this owner pool has none.
    pub clusters: Arc<[Arc<ClusterSpec>]>,
    /// The membership in a cluster, if the pool is that of a cluster member.
    pub member: Option<ClusterMembership>,
    /// The mirrors that replay a sample of the clients' transactions.
    pub mirrors: Arc<[MirrorTarget]>,
    /// How the clients' requests are routed, if the database has several servers.
    pub routing: Option<Arc<howdah_route::RouteSettings>>,
}

/// How clients are pinned to servers in [`PoolingMode::Adaptive`].
#[derive(Clone, Debug, Default)]
pub struct PinningSpec {
    /// Functions that leave no state in their session although they are volatile: `name` in any
    /// schema, `schema.name`, or `schema.*`; `do` for anonymous code blocks.
    pub stateless_functions: Arc<[Box<str>]>,
    /// The limits from which each pinned client acquires a permit.
    pub limits: Arc<[Arc<ConnectionLimit>]>,
    /// How long a pinned client may send nothing, outside a transaction.
    pub idle: Option<Duration>,
    /// How long a client may be pinned; it is disconnected after that, outside a transaction.
    pub lasting: Option<Duration>,
}

/// A query that resets a server's session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResetQuery {
    /// SQL text, without a zero byte. If it is empty, no query runs, and nothing is reset in
    /// [`PoolingMode::Session`].
    pub query: Box<[u8]>,
    /// Whether the query runs in every mode whenever a client releases a server, not only in
    /// [`PoolingMode::Session`].
    pub is_always: bool,
}

/// A query that checks whether a server is alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckQuery {
    /// SQL text, without a zero byte; may be empty. A server whose check fails, or is not answered
    /// within [`PoolTimeouts::cleanup`], is closed.
    pub query: Box<[u8]>,
    /// How long a server must have been idle before it is checked.
    pub idle: Duration,
}

/// The settings of a pool's reserve: servers beyond the pool's size (PgBouncer's
/// `reserve_pool_size`).
#[derive(Clone, Debug)]
pub struct ReservePool {
    /// The limits from which each reserve server acquires a permit: the reserve's size, and all
    /// limits of the pool except its own size.
    pub limits: Arc<[Arc<ConnectionLimit>]>,
    /// How long the first waiting client must have waited before the reserve is used.
    pub after: Duration,
}

impl PoolSpec {
    /// Returns the epoch of new servers. Servers with a different epoch are closed when they become
    /// free. The epoch is a sum of terms that never decrease, so it changes whenever one of them
    /// does.
    #[inline]
    pub fn epoch(&self) -> u32 {
        let member_epoch = self.member.as_ref().map_or(0, |member| member.state.epoch());
        self.admin_state.epoch().wrapping_add(self.edition).wrapping_add(member_epoch)
    }

    /// Whether clients get no server because of PAUSE.
    #[inline]
    pub fn is_paused(&self) -> bool {
        self.admin_state.is_paused_for_user(&self.user)
    }

    /// Creates the settings of a pool in transaction mode, with at most `servers_max` servers and
    /// otherwise default values.
    pub fn new(servers_max: u32) -> Self {
        Self {
            mode: PoolingMode::default(),
            server_limits: [ConnectionLimit::new(servers_max)].into(),
            weight: 1,
            servers_min: 0,
            statements_per_server: 200,
            logins_max: 4,
            closes_outdated_sessions: false,
            is_single_use: false,
            has_parameters_at_login: false,
            reset: None,
            connect_query: None,
            check: None,
            is_round_robin: false,
            listen_bytes: Some(1 << 20),
            allows_simple_queries: true,
            pinning: PinningSpec::default(),
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

/// Timeouts of a pool, and its delays between failed server logins. They are checked every 100 ms,
/// so they take effect up to that much late, but never early. `None` turns a timeout off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolTimeouts {
    /// How long a client may wait for a server before it is disconnected with an error.
    pub query_wait: Option<Duration>,
    /// How long a request may stay unanswered before its client is disconnected and the query is
    /// cancelled.
    pub query: Option<Duration>,
    /// How long a transaction, or a request outside one, may take before its client is disconnected
    /// and the query is cancelled and rolled back.
    pub transaction: Option<Duration>,
    /// How long a client waits for a server before it receives a notice about it.
    pub query_wait_notify: Option<Duration>,
    /// How long a client in a transaction may stay idle (no reply is outstanding, and it sends
    /// nothing) before it is disconnected and the transaction is rolled back.
    pub idle_transaction: Option<Duration>,
    /// How long a client outside a transaction may stay idle before it is disconnected.
    pub client_idle: Option<Duration>,
    /// How long a server beyond [`PoolSpec::servers_min`] may be idle before it is closed.
    pub server_idle: Option<Duration>,
    /// The age from which a server is closed by the first check that finds it idle.
    pub server_lifetime: Option<Duration>,
    /// How long a server may take to finish or cancel the requests of a disconnected client, roll
    /// back and reset its session, or answer a check query, before it is closed.
    pub cleanup: Duration,
    /// The delay before the next login after the first failed one; each further failure doubles it.
    pub login_retry: Duration,
    /// The maximum delay between a failed login and the next one.
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
