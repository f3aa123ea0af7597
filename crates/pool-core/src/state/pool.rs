//! [`PoolState`]: a worker's part of a pool: its servers, and the clients that wait for them.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use crate::{
    cluster::ShardBalancers,
    login::ServerFailure,
    pinning::pin::StableFunctions,
    spec::PoolSpec,
    state::{
        ids::{ClientId, ServerId, WorkerId},
        pool_stats::PoolStats,
    },
    time::Time,
};

/// A starved worker's request for a server of this worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StarvedWorker {
    pub(crate) worker: WorkerId,
    /// Time of the worker's first request since it last got a server from here or stopped repeating
    /// its requests.
    pub(crate) since: Time,
    /// Time of the worker's last request. The worker repeats the request while it has waiting
    /// clients.
    pub(crate) last_request: Time,
}

/// Whether the other workers were asked for idle servers of a pool.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum IdleServerRequest {
    /// They were never asked.
    #[default]
    None,
    /// They were asked at this time; so many have not replied.
    Pending { since: Time, replies: u32 },
    /// They were asked at this time, and all have replied or had the time to.
    Done { since: Time },
}

/// The state of a worker's part of a pool.
#[derive(Debug)]
pub(crate) struct PoolState {
    pub(crate) spec: Arc<PoolSpec>,
    pub(crate) stats: PoolStats,
    /// Servers available to the next client; the most recently used is at the back.
    pub(crate) idle: VecDeque<ServerId>,
    /// Clients that need a server, in order of arrival. Clients that were served or have
    /// disconnected meanwhile are skipped when they reach the front.
    pub(crate) waiting: VecDeque<ClientId>,
    /// Clients whose login waits for a login to the server, because the server's parameters are
    /// unknown or it was down.
    pub(crate) awaiting_welcome: Vec<ClientId>,
    /// Number of server logins in progress.
    pub(crate) opening: u32,
    /// Number of server connections in this worker, including those being opened.
    pub(crate) servers: u32,
    /// Number of idle servers that are being checked on behalf of waiting clients.
    pub(crate) checking: u32,
    /// Number of failed server logins since the last successful one.
    pub(crate) failures: u32,
    /// The reason for the last failed server login; `None` after a successful one, or once another
    /// worker has handed over a server.
    pub(crate) last_failure: Option<Arc<ServerFailure>>,
    /// Until this time, no server is opened for [`PoolSpec::servers_min`], because one was closed
    /// in favor of another pool.
    pub(crate) fill_at: Time,
    /// Until this time, no server login is attempted.
    pub(crate) retry_at: Time,
    /// Whether the server is restarting: a login failed with SQLSTATE 57P03 (it was starting up or
    /// shutting down). Cleared by the next login that succeeds, or that fails for a reason other
    /// than an outage.
    pub(crate) is_restarting: bool,
    /// Workers that have requested a server from this worker, in order of their first request.
    pub(crate) starved_workers: VecDeque<StarvedWorker>,
    /// Until this time, no server is requested from other workers.
    pub(crate) request_at: Time,
    /// The last request to the other workers for idle servers.
    pub(crate) idle_request: IdleServerRequest,
    /// Whether a limit was exceeded when last checked, so that servers that become free may have to
    /// be closed. Cached here so that releasing a server usually reads no limit.
    pub(crate) has_surplus: bool,
    /// Functions that leave no state in their session, as far as is known.
    pub(crate) stable_functions: StableFunctions,
    /// Load balancers that choose a cluster member for each client; `None` if the pool has no
    /// clusters.
    pub(crate) balancers: Option<Box<ShardBalancers>>,
}

impl PoolState {
    pub(crate) fn new(spec: Arc<PoolSpec>, worker: WorkerId) -> Self {
        let balancers = ShardBalancers::new(&spec.clusters, worker);
        Self {
            spec,
            stats: PoolStats::default(),
            idle: VecDeque::new(),
            waiting: VecDeque::new(),
            awaiting_welcome: Vec::new(),
            opening: 0,
            servers: 0,
            checking: 0,
            failures: 0,
            last_failure: None,
            fill_at: Time::default(),
            retry_at: Time::default(),
            is_restarting: false,
            starved_workers: VecDeque::new(),
            request_at: Time::default(),
            idle_request: IdleServerRequest::default(),
            has_surplus: false,
            stable_functions: StableFunctions::default(),
            balancers,
        }
    }

    /// Replaces the pool's settings with `spec`. If `spec` has no server parameters for the login
    /// of clients yet, it inherits those of the old settings.
    pub(crate) fn update_spec(&mut self, spec: Arc<PoolSpec>) {
        spec.welcome.inherit(&self.spec.welcome);
        if let Some(balancers) = &mut self.balancers {
            balancers.update(&spec.clusters);
        }
        self.spec = spec;
        self.update_surplus();
    }

    /// Returns how long clients wait in this pool for a suitable cluster member, or for a member
    /// that cannot be reached; `None` if only [`crate::PoolTimeouts::query_wait`] limits that time.
    pub(crate) fn failover_timeout(&self) -> Option<Duration> {
        match (self.spec.clusters.first(), &self.spec.member) {
            (Some(cluster), _) => cluster.failover_timeout,
            (None, Some(member)) if self.failures > 0 => member.failover_timeout,
            (None, _) => None,
        }
    }

    /// Returns the reason why the server is unavailable: the last login failed, and this worker has
    /// no connections of the pool except those being opened. Returns `None` for an owner pool of
    /// clusters, and while the server is known to be restarting: clients, including those that log
    /// in, then wait.
    pub(crate) fn outage(&self) -> Option<&ServerFailure> {
        let is_down = self.servers == self.opening && !self.is_restarting;
        self.last_failure.as_deref().filter(|_| is_down && self.spec.clusters.is_empty())
    }

    /// Returns the number of servers that are not idle plus the number of waiting clients, by which
    /// load balancers compare members.
    pub(crate) fn load(&self) -> u64 {
        u64::from(self.servers) - self.idle.len() as u64 + self.waiting.len() as u64
    }

    /// Updates `has_surplus`: whether more servers are open than allowed.
    pub(crate) fn update_surplus(&mut self) {
        let reserve = self.spec.reserve.iter().flat_map(|reserve| reserve.limits.iter());
        self.has_surplus =
            self.spec.server_limits.iter().chain(reserve).any(|limit| limit.is_exceeded());
    }

    /// Removes and returns the server for the next client: the most recently used one, whose caches
    /// are warm, or the least recently used one in round-robin mode.
    #[inline]
    pub(crate) fn take_idle(&mut self) -> Option<ServerId> {
        if self.spec.is_round_robin { self.idle.pop_front() } else { self.idle.pop_back() }
    }
}
