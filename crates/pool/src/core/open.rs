//! Opening servers: as many as clients wait for, as far as limits and pauses allow, and in turn where
//! several pools want what one limit has left.
//!
//! A pool that gets no server because a limit that it shares with others is reached first takes the
//! place of an idle server of theirs. If theirs are all at work, it *starves*, and a server that gets
//! free is closed for it, if that brings both nearer to their shares, which are as their weights are, or
//! if its first client has waited longer than the first of the pool that has the server; and only once
//! the server has worked for [`TENURE`]. So servers move towards the shares, and not faster than once a
//! tenure. What a pool has within its share it keeps while it is idle, for as long: else a pool whose
//! clients always wait would take each server of a pool that is used now and then, which would have to
//! log in anew for each query.

use std::{sync::Arc, time::Duration};

use super::{Core, InjectedFault};
use crate::{
    Io, Limit,
    client::{Client, ClientState},
    ids::{ClientId, PoolId, ServerId},
    limits::Permits,
    login::ServerFailure,
    refusal::Refusal,
    server::{Server, ServerState},
    spec::PoolSpec,
    time::Time,
};

/// For how long a server works for its pool before it can be closed for another.
const TENURE: Duration = Duration::from_secs(1);

/// A worker that has servers of its own asks for another's when somebody has waited this long, and no
/// more often.
pub(super) const STARVED_AFTER: Duration = Duration::from_millis(100);

/// "The database system is starting up", or shutting down.
const CANNOT_CONNECT_NOW: [u8; 5] = *b"57P03";

impl Core {
    /// Opens servers for those who wait, as far as limits and pauses allow.
    pub(super) fn open_for_waiting(&mut self, pool_id: PoolId, io: &mut dyn Io) {
        self.starving.retain(|starving| *starving != pool_id);
        while let Some(first) = self.pool(pool_id).waiting.front().copied()
            && !self.is_waiting(first)
        {
            self.pool(pool_id).waiting.pop_front();
        }
        while self.wants_server(pool_id) {
            let Some(permits) = self.permits(pool_id, io) else {
                self.starving.push(pool_id);
                return self.ask_others(pool_id, io);
            };
            self.open(pool_id, permits, io);
        }
        self.open_minimum(pool_id, io);
    }

    /// Opens what is missing of [`PoolSpec::servers_min`]. Nobody waits for these, so they take what
    /// limits have left and nothing of other pools: no idle server of theirs, no reserve, no turn.
    fn open_minimum(&mut self, pool_id: PoolId, io: &mut dyn Io) {
        while self.lacks_minimum(pool_id) {
            let spec = Arc::clone(&self.pool(pool_id).spec);
            let is_needed = self.starving.iter().any(|starving| {
                let pool = self.pools[starving.index()].as_ref();
                pool.is_some_and(|pool| shares_a_limit(&pool.spec, &spec))
            });
            let permits = if is_needed { None } else { Permits::try_take(&spec.server_limits) };
            let Some(permits) = permits else { return };
            self.open(pool_id, permits, io);
        }
    }

    fn open(&mut self, pool_id: PoolId, permits: Permits, io: &mut dyn Io) {
        let now = self.now;
        let pool = self.pool(pool_id);
        pool.opening += 1;
        pool.servers += 1;
        let epoch = pool.spec.epoch();
        let server = self.servers.insert(Server::opening(pool_id, epoch, permits, now));
        io.open_server(server, pool_id);
    }

    /// Asks other workers for a server, if this one starves: it has none, or those that it has have
    /// left somebody waiting for long. Not at every occasion: each worker is woken by it.
    fn ask_others(&mut self, pool_id: PoolId, io: &mut dyn Io) {
        let (now, first) = (self.now, self.waits_since(pool_id));
        let pool = self.pool(pool_id);
        let starves =
            first.is_some_and(|since| pool.servers == 0 || now.since(since) >= STARVED_AFTER);
        if starves && now >= pool.ask_at {
            pool.ask_at = now + STARVED_AFTER;
            io.want_server(pool_id);
        }
    }

    fn wants_server(&mut self, pool_id: PoolId) -> bool {
        let may_open = self.may_open(pool_id);
        let pool = self.pool(pool_id);
        let waiting = pool.waiting.len() + usize::from(!pool.unwelcomed.is_empty());
        may_open && (pool.opening as usize) < waiting.saturating_sub(pool.checking as usize)
    }

    /// Whether this worker has less than its share of the servers that are kept open.
    fn lacks_minimum(&mut self, pool_id: PoolId) -> bool {
        let may_open = self.may_open(pool_id) && !self.keeps_no_servers;
        let (now, pool) = (self.now, self.pools[pool_id.index()].as_ref());
        may_open
            && pool.is_some_and(|pool| {
                let member = pool.spec.member.as_ref().map(|member| &member.state);
                pool.servers < self.minimum_here(&pool.spec)
                    && now >= pool.fill_at
                    && !member.is_some_and(|member| member.is_fenced() || member.is_dead())
            })
    }

    /// Whether a login of a pool may begin now, limits aside.
    fn may_open(&mut self, pool_id: PoolId) -> bool {
        let (now, is_suspended) = (self.now, self.is_suspended);
        let pool = self.pool(pool_id);
        !pool.spec.is_paused()
            && !is_suspended
            && pool.spec.clusters.is_empty()
            && pool.opening < pool.spec.logins_max.max(1)
            && now >= pool.retry_at
    }

    /// This worker's share of [`PoolSpec::servers_min`]: what is left over goes to the first workers.
    pub(super) fn minimum_here(&self, spec: &PoolSpec) -> u32 {
        let (all, workers) = (spec.servers_min, self.workers.max(1));
        all / workers + u32::from(u32::from(self.worker.0) < all % workers)
    }

    /// Permits for one more server: of the pool's own, or in the place of an idle server of another
    /// pool, or of the reserve.
    fn permits(&mut self, pool_id: PoolId, io: &mut dyn Io) -> Option<Permits> {
        let spec = Arc::clone(&self.pool(pool_id).spec);
        if self.makes(InjectedFault::LimitBreach) {
            return Permits::try_take(&Arc::default());
        }
        let permits = Permits::try_take(&spec.server_limits);
        if permits.is_some() {
            return permits;
        }
        if self.evict_for(pool_id, io) {
            return Permits::try_take(&spec.server_limits);
        }
        let reserve = spec.reserve.as_ref()?;
        let waited = self.now.since(self.waits_since(pool_id)?);
        (waited >= reserve.after).then(|| Permits::try_take(&reserve.limits)).flatten()
    }

    /// Since when the first client of a pool waits.
    fn waits_since(&self, pool: PoolId) -> Option<Time> {
        let pool = self.pools[pool.index()].as_ref()?;
        let waits = |state| matches!(state, ClientState::Waiting | ClientState::Welcome);
        let mut clients = pool.waiting.iter().chain(&pool.unwelcomed);
        clients.find_map(|id| self.clients.get(*id).filter(|it| waits(it.state))).map(|it| it.since)
    }

    /// Closes a server that is idle in another pool, if that makes room for one of this.
    pub(super) fn evict_for(&mut self, pool_id: PoolId, io: &mut dyn Io) -> bool {
        let limits = Arc::clone(&self.pool(pool_id).spec.server_limits);
        let mut others =
            self.pools.iter().enumerate().filter(|(index, _)| *index != pool_id.index());
        let Some(claimant) = self.pools[pool_id.index()].as_ref() else { return false };
        let claimant = &claimant.spec;
        let idle = others.find_map(|(_, pool)| {
            let pool =
                pool.as_ref().filter(|pool| is_in_the_way(&pool.spec.server_limits, &limits))?;
            let first = *pool.idle.front()?;
            let since = self.servers.get(first)?.since;
            let may = is_short(claimant, &pool.spec) || self.now.since(since) >= TENURE;
            may.then_some(first)
        });
        if let Some(server) = idle {
            if let Some(its) = self.servers.get(server).map(|server| server.pool) {
                // Else the pool would open another at once, in the place that was just made.
                self.pool(its).fill_at = self.now + TENURE;
            }
            self.close_server(server, io);
        }
        idle.is_some()
    }

    /// Whether a server that has got free is to make room for a pool that starves.
    pub(super) fn yields(&self, id: ServerId) -> bool {
        let Some(server) = self.servers.get(id) else { return false };
        let Some(own) = self.pools[server.pool.index()].as_ref() else { return false };
        let own_since = self.waits_since(server.pool);
        self.starving.iter().any(|starving| {
            let Some(pool) = self.pools[starving.index()].as_ref() else { return false };
            let (limits, since) = (&pool.spec.server_limits, self.waits_since(*starving));
            let is_first = match (since, own_since) {
                (None, _) => return false,
                // Nobody there waits, but its clients may come back: see `evict_for`.
                (Some(_), None) => is_short(&pool.spec, &own.spec),
                (Some(since), Some(own_since)) => {
                    let is_next = since < own_since && is_short(&pool.spec, &own.spec);
                    (is_next || evens(&pool.spec, &own.spec))
                        && self.now.since(server.opened) >= TENURE
                }
            };
            *starving != server.pool && is_first && is_in_the_way(&own.spec.server_limits, limits)
        })
    }

    /// Lets pools that starve have what has become free.
    pub(super) fn open_for_starving(&mut self, io: &mut dyn Io) {
        for pool in std::mem::take(&mut self.starving) {
            self.open_for_waiting(pool, io);
        }
    }

    pub(super) fn login_failed(&mut self, id: ServerId, failure: ServerFailure, io: &mut dyn Io) {
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
        pool.restarting |= failure.sqlstate == CANNOT_CONNECT_NOW;
        pool.restarting &= failure.is_outage();
        pool.last_failure = Some(Arc::clone(&failure));
        if failure.is_outage() && pool.spec.member.is_some() {
            self.member_failed(pool_id, &failure, io);
            return self.open_for_starving(io);
        }
        if pool.servers == 0 && !pool.restarting {
            self.refuse_for_failure(pool_id, &failure, io);
        }
        self.open_for_starving(io);
    }

    /// Refuses clients of a pool that has no server and could not get one. Those that are logging in
    /// are told at once, so that they may try another host; those that are in wait for as long as
    /// [`crate::Timeouts::query_wait`] lets them, unless it takes somebody to change something before
    /// a login can succeed.
    fn refuse_for_failure(&mut self, pool: PoolId, failure: &ServerFailure, io: &mut dyn Io) {
        let breaks_off = self.makes(InjectedFault::LoginFailureRefusesAll);
        let unwelcomed = std::mem::take(&mut self.pool(pool).unwelcomed);
        let mut refused = std::mem::take(&mut self.pool(pool).waiting);
        if failure.is_transient() && !breaks_off {
            // What is played on a mirror does not wait for it.
            let waits = |id: &ClientId| self.clients.get(*id).is_some_and(Client::is_somebody);
            let (waiting, others) = refused.into_iter().partition(waits);
            self.pool(pool).waiting = waiting;
            refused = others;
        }
        let ServerFailure { sqlstate, message } = failure.clone();
        let refusal = Refusal::ServerLogin { sqlstate, message };
        for client in unwelcomed.into_iter().chain(refused) {
            self.refuse(client, &refusal, io);
        }
    }

    /// Why a client that logs in is refused at once: its pool has no server, and the next attempt to
    /// open one is not due yet. Once it is due, a client waits for it.
    pub(super) fn refusal_at_login(&self, pool: PoolId) -> Option<Refusal> {
        let pool = self.pools[pool.index()].as_ref()?;
        let is_early = pool.opening == 0 && self.now < pool.retry_at;
        let failure = pool.outage().filter(|_| is_early)?;
        let ServerFailure { sqlstate, message } = failure.clone();
        Some(Refusal::ServerLogin { sqlstate, message })
    }
}

/// Servers of a pool in all workers: the first limit is the pool's own.
fn servers_of(spec: &PoolSpec) -> u64 {
    spec.server_limits.first().map_or(0, |own| own.taken().into())
}

/// Whether the first pool has less than the second, for its weight.
fn is_short(first: &PoolSpec, second: &PoolSpec) -> bool {
    servers_of(first) * u64::from(second.weight) < servers_of(second) * u64::from(first.weight)
}

/// Whether both are nearer to their shares if the second gives a server to the first; one that has none
/// is far from any.
fn evens(first: &PoolSpec, second: &PoolSpec) -> bool {
    let (gains, loses) = (servers_of(first) + 1, servers_of(second).saturating_sub(1));
    servers_of(first) == 0 || gains * u64::from(second.weight) <= loses * u64::from(first.weight)
}

/// Whether both have a limit beside their own that they share.
fn shares_a_limit(first: &PoolSpec, second: &PoolSpec) -> bool {
    let is_shared =
        |limit: &Arc<Limit>| second.server_limits.iter().any(|it| Arc::ptr_eq(it, limit));
    first.server_limits.iter().any(is_shared)
}

/// Whether a server under the first limits is what keeps one under the second from being opened.
fn is_in_the_way(its: &[Arc<Limit>], wanted: &[Arc<Limit>]) -> bool {
    let mut full = wanted.iter().filter(|limit| limit.taken() >= limit.max()).peekable();
    full.peek().is_some() && full.all(|limit| its.iter().any(|its| Arc::ptr_eq(its, limit)))
}
