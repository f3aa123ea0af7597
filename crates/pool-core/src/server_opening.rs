//! Opens servers: as many as clients wait for, as far as limits and retry delays allow, and fairly
//! if several pools compete for one limit.
//!
//! If a pool has reached a limit that it shares with other pools, it first closes an idle server of
//! one of them to open its own. If all their servers are busy, the pool is *starved*: when a server
//! of another pool becomes free, it may be closed in favor of the starved pool. If the other pool
//! has no waiting client, this happens if the starved pool is below its weighted share. Otherwise
//! the server must be at least [`MIN_SERVER_AGE`] old, and either closing it brings both pools
//! closer to their shares, or the starved pool is below its share and its first client has waited
//! longer. So servers move towards the shares gradually.
//!
//! Idle servers within a pool's share are also kept for [`MIN_SERVER_AGE`]. Otherwise a pool whose
//! clients always wait would take every server of a pool that is used only now and then, which
//! would need a new login for each query.

use std::{sync::Arc, time::Duration};

use super::Core;
use crate::{
    ConnectionLimit, CoreIo,
    login::ServerFailure,
    refusal::ClientRefusal,
    spec::PoolSpec,
    state::{
        client::{ClientConnection, ClientState},
        ids::{ClientId, PoolId, ServerId},
        limits::Permits,
        server::{ServerConnection, ServerState},
    },
    time::Time,
};

/// The age, or idle time, that a server usually needs before it is closed for another pool.
const MIN_SERVER_AGE: Duration = Duration::from_secs(1);

/// How long a client must have waited before a worker that has servers of its own requests one from
/// the other workers, and the interval between such requests.
pub(super) const SERVER_REQUEST_INTERVAL: Duration = Duration::from_millis(100);

/// SQLSTATE `cannot_connect_now`: the server is starting up or shutting down.
const CANNOT_CONNECT_NOW: [u8; 5] = *b"57P03";

impl Core {
    /// Opens servers for waiting clients, as far as limits and retry delays allow; then fills the
    /// pool up to [`PoolSpec::servers_min`]. If a limit is reached while clients wait, requests a
    /// server from the other workers instead.
    pub(super) fn open_for_waiting(&mut self, pool_id: PoolId, io: &mut dyn CoreIo) {
        self.starved_pools.retain(|starved| *starved != pool_id);
        // Clients that were served or have disconnected stay in the queue until they reach its
        // front.
        while let Some(first) = self.pool(pool_id).waiting.front().copied()
            && !self.is_waiting(first)
        {
            self.pool(pool_id).waiting.pop_front();
        }
        while self.needs_server(pool_id) {
            let Some(permits) = self.acquire_permits(pool_id, io) else {
                self.starved_pools.push(pool_id);
                return self.request_server(pool_id, io);
            };
            self.open_server(pool_id, permits, io);
        }
        self.open_min_pool(pool_id, io);
    }

    /// Opens servers up to [`PoolSpec::servers_min`]. No client waits for these, so they use only
    /// free capacity: other pools' idle servers, the reserve, and capacity that a starved pool
    /// could use are left alone.
    fn open_min_pool(&mut self, pool_id: PoolId, io: &mut dyn CoreIo) {
        while self.is_below_min_pool(pool_id) {
            let spec = Arc::clone(&self.pool(pool_id).spec);
            let is_needed = self.starved_pools.iter().any(|starved| {
                let pool = self.pools[starved.index()].as_ref();
                pool.is_some_and(|pool| have_shared_limit(&pool.spec, &spec))
            });
            let permits = if is_needed { None } else { Permits::try_acquire(&spec.server_limits) };
            let Some(permits) = permits else { return };
            self.open_server(pool_id, permits, io);
        }
    }

    fn open_server(&mut self, pool_id: PoolId, permits: Permits, io: &mut dyn CoreIo) {
        let now = self.now;
        let pool = self.pool(pool_id);
        pool.opening += 1;
        pool.servers += 1;
        let epoch = pool.spec.epoch();
        let server = self.servers.insert(ServerConnection::opening(pool_id, epoch, permits, now));
        io.open_server(server, pool_id);
    }

    /// Requests a server from the other workers, if a client has waited here for at least
    /// [`SERVER_REQUEST_INTERVAL`], or for any time while the pool has no server in this worker.
    /// Requests are at least that interval apart, unless a server has arrived in between, because
    /// each one wakes every worker.
    fn request_server(&mut self, pool_id: PoolId, io: &mut dyn CoreIo) {
        let (now, first) = (self.now, self.waiting_since(pool_id));
        let pool = self.pool(pool_id);
        let starves = first
            .is_some_and(|since| pool.servers == 0 || now.since(since) >= SERVER_REQUEST_INTERVAL);
        if starves && now >= pool.request_at {
            pool.request_at = now + SERVER_REQUEST_INTERVAL;
            io.request_server(pool_id);
        }
    }

    fn needs_server(&mut self, pool_id: PoolId) -> bool {
        let may_open = self.may_open(pool_id);
        let pool = self.pool(pool_id);
        let waiting = pool.waiting.len() + usize::from(!pool.awaiting_welcome.is_empty());
        may_open && (pool.opening as usize) < waiting.saturating_sub(pool.checking as usize)
    }

    /// Whether this worker has fewer servers than its share of [`PoolSpec::servers_min`], and may
    /// open another.
    fn is_below_min_pool(&mut self, pool_id: PoolId) -> bool {
        let may_open = self.may_open(pool_id) && !self.closes_idle_servers;
        let (now, pool) = (self.now, self.pools[pool_id.index()].as_ref());
        may_open
            && pool.is_some_and(|pool| {
                let member = pool.spec.member.as_ref().map(|member| &member.state);
                pool.servers < self.min_servers_here(&pool.spec)
                    && now >= pool.fill_at
                    && !member.is_some_and(|member| member.is_fenced() || member.is_unresponsive())
            })
    }

    /// Whether a pool may start a server login now, regardless of connection limits.
    fn may_open(&mut self, pool_id: PoolId) -> bool {
        let (now, is_suspended) = (self.now, self.is_suspended);
        let pool = self.pool(pool_id);
        !pool.spec.is_paused()
            && !is_suspended
            && pool.spec.clusters.is_empty()
            && pool.opening < pool.spec.logins_max.max(1)
            && now >= pool.retry_at
    }

    /// Returns this worker's share of [`PoolSpec::servers_min`]; the first workers get the
    /// remainder.
    pub(super) fn min_servers_here(&self, spec: &PoolSpec) -> u32 {
        let (all, workers) = (spec.servers_min, self.workers.max(1));
        all / workers + u32::from(u32::from(self.worker.0) < all % workers)
    }

    /// Acquires permits for one more server: within the pool's limits, by closing another pool's
    /// idle server, or from the reserve.
    fn acquire_permits(&mut self, pool_id: PoolId, io: &mut dyn CoreIo) -> Option<Permits> {
        let spec = Arc::clone(&self.pool(pool_id).spec);
        let permits = Permits::try_acquire(&spec.server_limits);
        if permits.is_some() {
            return permits;
        }
        if self.evict_for(pool_id, io) {
            return Permits::try_acquire(&spec.server_limits);
        }
        let reserve = spec.reserve.as_ref()?;
        let waited = self.now.since(self.waiting_since(pool_id)?);
        (waited >= reserve.after).then(|| Permits::try_acquire(&reserve.limits)).flatten()
    }

    /// Returns the time at which the first waiting client of a pool began to wait.
    fn waiting_since(&self, pool: PoolId) -> Option<Time> {
        let pool = self.pools[pool.index()].as_ref()?;
        let waits = |state| matches!(state, ClientState::Waiting | ClientState::Welcome);
        let mut clients = pool.waiting.iter().chain(&pool.awaiting_welcome);
        clients
            .find_map(|id| self.clients.get(*id).filter(|it| waits(it.state)))
            .map(|it| it.state_since)
    }

    /// Closes an idle server of another pool so that the pool `pool_id` can open one. A server
    /// within the other pool's share must have been idle for [`MIN_SERVER_AGE`]. Returns whether a
    /// server was closed.
    pub(super) fn evict_for(&mut self, pool_id: PoolId, io: &mut dyn CoreIo) -> bool {
        let limits = Arc::clone(&self.pool(pool_id).spec.server_limits);
        let mut others =
            self.pools.iter().enumerate().filter(|(index, _)| *index != pool_id.index());
        let Some(claimant) = self.pools[pool_id.index()].as_ref() else { return false };
        let claimant = &claimant.spec;
        let idle = others.find_map(|(_, pool)| {
            let pool =
                pool.as_ref().filter(|pool| blocks_opening(&pool.spec.server_limits, &limits))?;
            let first = *pool.idle.front()?;
            let since = self.servers.get(first)?.state_since;
            let can_evict =
                is_below_share(claimant, &pool.spec) || self.now.since(since) >= MIN_SERVER_AGE;
            can_evict.then_some(first)
        });
        if let Some(server) = idle {
            if let Some(evicted_pool) = self.servers.get(server).map(|server| server.pool) {
                // Otherwise the other pool would fill up to its minimum at once, with the permit
                // just released.
                self.pool(evicted_pool).fill_at = self.now + MIN_SERVER_AGE;
            }
            self.close_server(server, io);
        }
        idle.is_some()
    }

    /// Whether a server that has become free must be closed so that a starved pool can open one.
    pub(super) fn must_yield(&self, id: ServerId) -> bool {
        let Some(server) = self.servers.get(id) else { return false };
        let Some(its_pool) = self.pools[server.pool.index()].as_ref() else { return false };
        let its_waiting_since = self.waiting_since(server.pool);
        self.starved_pools.iter().any(|starved| {
            let Some(pool) = self.pools[starved.index()].as_ref() else { return false };
            let (limits, since) = (&pool.spec.server_limits, self.waiting_since(*starved));
            let is_first = match (since, its_waiting_since) {
                (None, _) => return false,
                // The server's own pool has no waiting client, but may need the server again soon:
                // see `evict_for`.
                (Some(_), None) => is_below_share(&pool.spec, &its_pool.spec),
                (Some(since), Some(its_waiting_since)) => {
                    let is_next =
                        since < its_waiting_since && is_below_share(&pool.spec, &its_pool.spec);
                    (is_next || transfer_evens_shares(&pool.spec, &its_pool.spec))
                        && self.now.since(server.opened_at) >= MIN_SERVER_AGE
                }
            };
            *starved != server.pool
                && is_first
                && blocks_opening(&its_pool.spec.server_limits, limits)
        })
    }

    /// Opens servers for starved pools, after capacity has been released.
    pub(super) fn open_for_starved(&mut self, io: &mut dyn CoreIo) {
        for pool in std::mem::take(&mut self.starved_pools) {
            self.open_for_waiting(pool, io);
        }
    }

    /// Handles a failed server login: schedules the next attempt with exponential backoff, and
    /// disconnects or redirects clients that cannot wait for it.
    pub(super) fn handle_login_failure(
        &mut self,
        id: ServerId,
        failure: ServerFailure,
        io: &mut dyn CoreIo,
    ) {
        let failure = Arc::new(failure);
        let Some(server) = self.servers.remove(id) else { return };
        let now = self.now;
        let pool_id = server.pool;
        let pool = self.pool(pool_id);
        pool.servers -= 1;
        if server.state != ServerState::Opening {
            return;
        }
        drop(server);
        let pool = self.pool(pool_id);
        pool.opening -= 1;
        let timeouts = &pool.spec.timeouts;
        let pause = timeouts.login_retry * (1 << pool.failures.min(16));
        pool.retry_at = now + pause.min(timeouts.login_retry_max);
        pool.failures = pool.failures.saturating_add(1);
        pool.is_restarting |= failure.sqlstate == CANNOT_CONNECT_NOW;
        pool.is_restarting &= failure.is_outage();
        pool.last_failure = Some(Arc::clone(&failure));
        if failure.is_outage() && pool.spec.member.is_some() {
            self.member_failed(pool_id, &failure, io);
            return self.open_for_starved(io);
        }
        if pool.servers == 0 && !pool.is_restarting {
            self.refuse_for_failure(pool_id, &failure, io);
        }
        self.open_for_starved(io);
    }

    /// Disconnects clients of a pool that has no server and could not open one. Clients that are
    /// logging in are refused at once, so that they can try another host. Other external clients
    /// wait as long as [`crate::PoolTimeouts::query_wait`] allows, unless no login can succeed
    /// before an administrator intervenes.
    fn refuse_for_failure(&mut self, pool: PoolId, failure: &ServerFailure, io: &mut dyn CoreIo) {
        let logging_in = std::mem::take(&mut self.pool(pool).awaiting_welcome);
        let mut refused = std::mem::take(&mut self.pool(pool).waiting);
        if failure.is_transient() {
            // Mirror clients and sub-requests do not wait for the next attempt.
            let waits =
                |id: &ClientId| self.clients.get(*id).is_some_and(ClientConnection::is_external);
            let (waiting, others) = refused.into_iter().partition(waits);
            self.pool(pool).waiting = waiting;
            refused = others;
        }
        let ServerFailure { sqlstate, message } = failure.clone();
        let refusal = ClientRefusal::ServerSetup { sqlstate, message };
        for client in logging_in.into_iter().chain(refused) {
            self.refuse(client, &refusal, io);
        }
    }

    /// Returns the reason to refuse a client that is logging in, if its pool's server is down and
    /// no login attempt is in progress or due. Otherwise, clients wait for the result of that
    /// attempt.
    pub(super) fn refusal_at_login(&self, pool: PoolId) -> Option<ClientRefusal> {
        let pool = self.pools[pool.index()].as_ref()?;
        let is_early = pool.opening == 0 && self.now < pool.retry_at;
        let failure = pool.outage().filter(|_| is_early)?;
        let ServerFailure { sqlstate, message } = failure.clone();
        Some(ClientRefusal::ServerSetup { sqlstate, message })
    }
}

/// Returns the number of a pool's servers in all workers, without those of the reserve. The pool's
/// first limit counts exactly these.
fn server_count(spec: &PoolSpec) -> u64 {
    spec.server_limits.first().map_or(0, |its_pool| its_pool.in_use().into())
}

/// Whether the first pool has fewer servers relative to its weight than the second.
fn is_below_share(first: &PoolSpec, second: &PoolSpec) -> bool {
    server_count(first) * u64::from(second.weight) < server_count(second) * u64::from(first.weight)
}

/// Whether moving one server from the second pool to the first brings both closer to their shares.
/// Always `true` if the first pool has no server.
fn transfer_evens_shares(first: &PoolSpec, second: &PoolSpec) -> bool {
    let (gains, loses) = (server_count(first) + 1, server_count(second).saturating_sub(1));
    server_count(first) == 0 || gains * u64::from(second.weight) <= loses * u64::from(first.weight)
}

/// Whether the two pools have a connection limit in common.
fn have_shared_limit(first: &PoolSpec, second: &PoolSpec) -> bool {
    let is_shared =
        |limit: &Arc<ConnectionLimit>| second.server_limits.iter().any(|it| Arc::ptr_eq(it, limit));
    first.server_limits.iter().any(is_shared)
}

/// Whether some of the limits `wanted` are reached, and closing a server that counts against the
/// limits `its` would release a permit of each of these.
fn blocks_opening(its: &[Arc<ConnectionLimit>], wanted: &[Arc<ConnectionLimit>]) -> bool {
    let mut full = wanted.iter().filter(|limit| limit.in_use() >= limit.max()).peekable();
    full.peek().is_some() && full.all(|limit| its.iter().any(|its| Arc::ptr_eq(its, limit)))
}
