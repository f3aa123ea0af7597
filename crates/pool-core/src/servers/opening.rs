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

use crate::{
    ConnectionLimit,
    call::CoreCall,
    clients::Clients,
    peers::Peers,
    pools::Pools,
    servers::{closing, sharing},
    spec::PoolSpec,
    state::{
        client::ClientState,
        ids::{PoolId, ServerId},
        limits::Permits,
        server::ServerConnection,
    },
    time::Time,
};

/// The age, or idle time, that a server usually needs before it is closed for another pool.
const MIN_SERVER_AGE: Duration = Duration::from_secs(1);

/// How long a client must have waited before a worker that has servers of its own requests one from
/// the other workers, and the interval between such requests.
pub(crate) const SERVER_REQUEST_INTERVAL: Duration = Duration::from_millis(100);

/// Opens servers for waiting clients, as far as limits and retry delays allow; then fills the
/// pool up to [`PoolSpec::servers_min`]. Asks the other workers for idle servers first if few more
/// may be opened (see [`sharing`]). If a limit is reached while clients wait, requests a server
/// from the other workers instead.
pub(crate) fn open_for_waiting(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    pool_id: PoolId,
) {
    pools.starved.retain(|starved| *starved != pool_id);
    // Clients that were served or have disconnected stay in the queue until they reach its
    // front.
    while let Some(first) = pools.pool(pool_id).waiting.front().copied()
        && !peers.clients.is_waiting(first)
    {
        pools.pool(pool_id).waiting.pop_front();
    }
    while pools.needs_server(pool_id, call.now) && !sharing::must_wait(pools, call, pool_id) {
        let Some(permits) = acquire_permits(peers, pools, call, pool_id) else {
            pools.starved.push(pool_id);
            return request_server(peers, pools, call, pool_id);
        };
        open_server(peers, pools, call, pool_id, permits);
    }
    open_min_pool(peers, pools, call, pool_id);
}

/// Opens servers up to [`PoolSpec::servers_min`]. No client waits for these, so they use only
/// free capacity: other pools' idle servers, the reserve, and capacity that a starved pool
/// could use are left alone.
fn open_min_pool(peers: &mut Peers, pools: &mut Pools, call: &mut CoreCall<'_>, pool_id: PoolId) {
    while pools.is_below_min_pool(pool_id, call.now) {
        let spec = Arc::clone(&pools.pool(pool_id).spec);
        let is_needed = pools.starved.iter().any(|starved| {
            let pool = pools.get(*starved);
            pool.is_some_and(|pool| have_shared_limit(&pool.spec, &spec))
        });
        let permits = if is_needed { None } else { Permits::try_acquire(&spec.server_limits) };
        let Some(permits) = permits else { return };
        open_server(peers, pools, call, pool_id, permits);
    }
}

fn open_server(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    pool_id: PoolId,
    permits: Permits,
) {
    let now = call.now;
    let pool = pools.pool(pool_id);
    pool.opening += 1;
    pool.servers += 1;
    let epoch = pool.spec.epoch();
    let server = peers.servers.insert(ServerConnection::opening(pool_id, epoch, permits, now));
    call.io.open_server(server, pool_id);
}

/// Requests a server from the other workers, if a client has waited here for at least
/// [`SERVER_REQUEST_INTERVAL`], or for any time while the pool has no server in this worker.
/// Requests are at least that interval apart, unless a server has arrived in between, because
/// each one wakes every worker.
fn request_server(peers: &mut Peers, pools: &mut Pools, call: &mut CoreCall<'_>, pool_id: PoolId) {
    let (now, first) = (call.now, waiting_since(&peers.clients, pools, pool_id));
    let pool = pools.pool(pool_id);
    let starves =
        first.is_some_and(|since| pool.servers == 0 || now.since(since) >= SERVER_REQUEST_INTERVAL);
    if starves && now >= pool.request_at {
        pool.request_at = now + SERVER_REQUEST_INTERVAL;
        call.io.request_server(pool_id);
    }
}

/// Acquires permits for one more server: within the pool's limits, by closing another pool's
/// idle server, or from the reserve.
fn acquire_permits(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    pool_id: PoolId,
) -> Option<Permits> {
    let spec = Arc::clone(&pools.pool(pool_id).spec);
    let permits = Permits::try_acquire(&spec.server_limits);
    if permits.is_some() {
        return permits;
    }
    if evict_for(peers, pools, call, pool_id) {
        return Permits::try_acquire(&spec.server_limits);
    }
    let reserve = spec.reserve.as_ref()?;
    let waited = call.now.since(waiting_since(&peers.clients, pools, pool_id)?);
    (waited >= reserve.after).then(|| Permits::try_acquire(&reserve.limits)).flatten()
}

/// Returns the time at which the first waiting client of a pool began to wait.
fn waiting_since(clients: &Clients, pools: &Pools, pool: PoolId) -> Option<Time> {
    let pool = pools.get(pool)?;
    let waits = |state| matches!(state, ClientState::Waiting | ClientState::Welcome);
    let mut queue = pool.waiting.iter().chain(&pool.awaiting_welcome);
    queue.find_map(|id| clients.get(*id).filter(|it| waits(it.state))).map(|it| it.state_since)
}

/// Closes an idle server of another pool so that the pool `pool_id` can open one. A server
/// within the other pool's share must have been idle for [`MIN_SERVER_AGE`]. Returns whether a
/// server was closed.
pub(crate) fn evict_for(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    pool_id: PoolId,
) -> bool {
    let limits = Arc::clone(&pools.pool(pool_id).spec.server_limits);
    let Some(claimant) = pools.get(pool_id) else { return false };
    let claimant = &claimant.spec;
    let idle = pools.iter().filter(|(id, _)| *id != pool_id).find_map(|(_, pool)| {
        if !blocks_opening(&pool.spec.server_limits, &limits) {
            return None;
        }
        let first = *pool.idle.front()?;
        let since = peers.servers.get(first)?.state_since;
        let can_evict =
            is_below_share(claimant, &pool.spec) || call.now.since(since) >= MIN_SERVER_AGE;
        can_evict.then_some(first)
    });
    if let Some(server) = idle {
        if let Some(evicted_pool) = peers.servers.get(server).map(|server| server.pool) {
            // Otherwise the other pool would fill up to its minimum at once, with the permit
            // just released.
            pools.pool(evicted_pool).fill_at = call.now + MIN_SERVER_AGE;
        }
        closing::close(peers, pools, call, server);
    }
    idle.is_some()
}

/// Whether a server that has become free must be closed so that a starved pool can open one.
pub(crate) fn must_yield(peers: &Peers, pools: &Pools, now: Time, id: ServerId) -> bool {
    let Some(server) = peers.servers.get(id) else { return false };
    let Some(its_pool) = pools.get(server.pool) else { return false };
    let its_waiting_since = waiting_since(&peers.clients, pools, server.pool);
    pools.starved.iter().any(|starved| {
        let Some(pool) = pools.get(*starved) else { return false };
        let (limits, since) =
            (&pool.spec.server_limits, waiting_since(&peers.clients, pools, *starved));
        let is_first = match (since, its_waiting_since) {
            (None, _) => return false,
            // The server's own pool has no waiting client, but may need the server again soon:
            // see `evict_for`.
            (Some(_), None) => is_below_share(&pool.spec, &its_pool.spec),
            (Some(since), Some(its_waiting_since)) => {
                let is_next =
                    since < its_waiting_since && is_below_share(&pool.spec, &its_pool.spec);
                (is_next || transfer_evens_shares(&pool.spec, &its_pool.spec))
                    && now.since(server.opened_at) >= MIN_SERVER_AGE
            }
        };
        *starved != server.pool && is_first && blocks_opening(&its_pool.spec.server_limits, limits)
    })
}

/// Opens servers for starved pools, after capacity has been released.
pub(crate) fn open_for_starved(peers: &mut Peers, pools: &mut Pools, call: &mut CoreCall<'_>) {
    for pool in std::mem::take(&mut pools.starved) {
        open_for_waiting(peers, pools, call, pool);
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
