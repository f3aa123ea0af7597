//! [`PoolSpec`]: how a pool is to behave. Plain values; where they come from is the business of the
//! configuration.

use std::{sync::Arc, time::Duration};

use crate::{
    cluster::{Cluster, MemberPlace},
    connect_query::ConnectQuery,
    gate::Gate,
    limits::Limit,
    mirror::MirrorTarget,
    pool::WelcomeMessage,
};

/// For how long a client has a server to itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Until it goes.
    Session,
    /// Until its transaction has ended and everything it sent is answered.
    #[default]
    Transaction,
    /// Like [`Mode::Transaction`], and a transaction of more than one request is refused.
    Statement,
}

/// How a pool is to behave. The same in every worker.
#[derive(Clone, Debug)]
pub struct PoolSpec {
    /// For how long a client has a server to itself.
    pub mode: Mode,
    /// Every server connection takes a permit of each: the pool's size, and whatever else is to
    /// bound it (its database, its user, its host, all). Shared with other pools and workers. The
    /// pool's own comes first.
    pub server_limits: Arc<[Arc<Limit>]>,
    /// Its part, beside that of others, of limits that it shares with them; at least 1.
    pub weight: u32,
    /// How many servers all workers together open without a client that waits. They are closed
    /// where another pool needs their place under a limit that both share.
    pub servers_min: u32,
    /// How many prepared statements are kept on a server for its clients; 0 leaves the names of
    /// statements as clients send them. Only for modes other than [`Mode::Session`].
    pub statements_per_server: u32,
    /// How many logins of this pool may be under way at once in this worker, at least 1.
    pub logins_max: u32,
    /// Whether a server serves one client and is closed after it: replication.
    pub servers_once: bool,
    /// Whether a server begins with the settings of the client that it is for, as part of its login:
    /// nothing is set then. A replication connection takes no other way.
    pub settings_at_login: bool,
    /// What is run when a client leaves its server. Without it what is dirty is reset, and in
    /// [`Mode::Session`] everything.
    pub reset: Option<Reset>,
    /// What was run after a server's login, and has to be run again after each reset.
    pub connect_query: Option<Arc<ConnectQuery>>,
    /// What is asked of a server that was idle for long, before a client gets it.
    pub check: Option<Check>,
    /// Whether the server that was used longest ago is used first, instead of the one used last.
    pub round_robin: bool,
    /// Where servers are shared: how many bytes of notifications are kept for a client that cannot be told
    /// now. `None` leaves LISTEN to the servers, where it ends with the transaction.
    pub listen_bytes: Option<usize>,
    /// Whether clients may use the simple query protocol.
    pub simple_queries: bool,
    /// Servers beyond the pool's size, for when clients have waited too long.
    pub reserve: Option<Reserve>,
    /// What clients are greeted with, once a server of any worker has logged us in.
    pub greeting: Arc<WelcomeMessage>,
    /// What an operator has ordered about the database.
    pub gate: Arc<Gate>,
    /// Whom the pool is for, by the name that `PAUSE` has.
    pub user: Arc<str>,
    /// What takes too long.
    pub timeouts: Timeouts,
    /// Grows whenever servers that were opened before are of no more use: they are elsewhere, or we
    /// are somebody else there.
    pub edition: u32,
    /// Whether clients are let go as soon as they are in no transaction: their database is there no
    /// more.
    pub closes: bool,
    /// The servers that its clients use, which are in pools of their own: then this one has none. A
    /// cluster for each shard; of a database that is not sharded, one.
    pub clusters: Arc<[Arc<Cluster>]>,
    /// Of which cluster it is a member.
    pub member: Option<MemberPlace>,
    /// Where a share of its clients' traffic is run, too.
    pub mirrors: Arc<[MirrorTarget]>,
    /// How requests of its clients are routed, where that is possible.
    pub routing: Option<Arc<howdah_route::Settings>>,
}

/// A query that puts a server's session back to its beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reset {
    /// SQL, without a zero byte; nothing is run if it is empty, and nothing is reset in
    /// [`Mode::Session`].
    pub query: Box<[u8]>,
    /// Whether it is run in every mode, whenever a server changes hands. Else it is for
    /// [`Mode::Session`].
    pub always: bool,
}

/// A query that shows whether a server lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// SQL, without a zero byte; may be empty. One that fails, or is not answered within
    /// [`Timeouts::cleanup`], ends the server.
    pub query: Box<[u8]>,
    /// For how long a server has to have been idle.
    pub idle: Duration,
}

/// Servers beyond a pool's size.
#[derive(Clone, Debug)]
pub struct Reserve {
    /// Each takes a permit of these: the reserve's size, and what else bounds the pool beside its own
    /// size.
    pub limits: Arc<[Arc<Limit>]>,
    /// How long the first client has to have waited.
    pub after: Duration,
}

impl PoolSpec {
    /// Servers of another epoch are closed as they become free. No part ever shrinks, so two
    /// equal sums are equal parts.
    #[inline]
    pub(crate) fn epoch(&self) -> u32 {
        let of_member = self.member.as_ref().map_or(0, |member| member.state.epoch());
        self.gate.epoch().wrapping_add(self.edition).wrapping_add(of_member)
    }

    /// Whether no client gets a server.
    #[inline]
    pub(crate) fn is_paused(&self) -> bool {
        self.gate.is_paused_for(&self.user)
    }

    /// A pool in transaction mode with PgBouncer's customary values and a limit of its own.
    pub fn new(servers_max: u32) -> Self {
        Self {
            mode: Mode::default(),
            server_limits: [Limit::new(servers_max)].into(),
            weight: 1,
            servers_min: 0,
            statements_per_server: 200,
            logins_max: 4,
            servers_once: false,
            settings_at_login: false,
            reset: None,
            connect_query: None,
            check: None,
            round_robin: false,
            listen_bytes: Some(1 << 20),
            simple_queries: true,
            reserve: None,
            greeting: Arc::default(),
            gate: Arc::default(),
            user: Arc::default(),
            timeouts: Timeouts::default(),
            edition: 0,
            closes: false,
            clusters: Arc::default(),
            member: None,
            mirrors: Arc::default(),
            routing: None,
        }
    }
}

/// How long something may take; `None` is for ever. They are kept to a tenth of themselves, or to
/// 10 ms if that is more, never early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// A client waits for a server; then it is told so and closed.
    pub query_wait: Option<Duration>,
    /// A request is unanswered; then client and server are closed, and the query is cancelled.
    pub query: Option<Duration>,
    /// A transaction, or a request outside of one, lasts; then the client is closed, and its server
    /// cancels and rolls back.
    pub transaction: Option<Duration>,
    /// A client waits for a server; then it is told so, once.
    pub query_wait_notify: Option<Duration>,
    /// A client in a transaction sends nothing and is owed nothing; then it is closed, and its
    /// server rolls back.
    pub idle_transaction: Option<Duration>,
    /// A client outside a transaction sends nothing.
    pub client_idle: Option<Duration>,
    /// A server is idle beyond [`PoolSpec::servers_min`]; then it is closed.
    pub server_idle: Option<Duration>,
    /// A server is this old; then it is closed when next idle.
    pub server_lifetime: Option<Duration>,
    /// What a vanished client left running has to end by itself, be cancelled and rolled back within
    /// this; else its server is closed.
    pub cleanup: Duration,
    /// The first pause after a failed login; doubled by each further failure.
    pub login_retry: Duration,
    /// The longest pause after failed logins.
    pub login_retry_max: Duration,
}

impl Default for Timeouts {
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
