//! Hands servers over between workers.
//!
//! A single message moves an idle server to a worker that needs one. It contains the socket and a
//! [`Transfer`], which owns the rest of the server's state, including its permits. Neither can be
//! copied, and the sender removes both from its own tables before it creates the message. So at
//! every moment exactly one worker, or one message, owns the server, whatever the order of events.
//!
//! Workers also share [`crate::ConnectionLimit`]s and the statement registry. The count of a limit
//! is a single atomic number that protects no other data; the registry's mutex is held only while
//! entries are looked up, added or removed.
//!
//! A request for a server that arrives too late is harmless: at worst, it closes an idle server, or
//! moves one to a worker that no longer needs it, where it stays idle. A message that is never
//! read, because its worker has ended, drops its contents: permits are released and the socket is
//! closed. So relaxed memory ordering is sufficient for the limits; a test with threads exercises
//! this.

use crate::{
    call::CoreCall,
    peers::Peers,
    pools::Pools,
    servers::opening::{self, SERVER_REQUEST_INTERVAL},
    state::{
        ids::{PoolId, ServerId, WorkerId},
        pool::StarvedWorker,
        server::Transfer,
    },
    time::Time,
};

/// Handles another worker's request for a server: hands an idle one over, closes another pool's
/// idle server to free a slot for a new one, or queues the request.
pub(crate) fn handle_request(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    pool_id: PoolId,
    by: WorkerId,
) {
    if pools.get(pool_id).is_none() || by == pools.worker {
        return;
    }
    // A server with unsent bytes cannot move: the bytes are in this worker's buffer.
    let idle = &pools.get(pool_id).expect("the pool exists").idle;
    let movable = |id: &ServerId| peers.servers.get(*id).is_some_and(|s| !s.flow.is_backlogged);
    let movable_server = idle.iter().copied().find(movable);
    match movable_server {
        Some(id) => to_worker(peers, pools, call, id, by),
        // A free connection slot serves the purpose too: the requesting worker will try again.
        None if opening::evict_for(peers, pools, call, pool_id) => {}
        None => {
            let now = call.now;
            let wanted_by = &mut pools.pool(pool_id).starved_workers;
            match wanted_by.iter_mut().find(|wanted| wanted.worker == by) {
                Some(wanted) => wanted.last_request = now,
                None => {
                    wanted_by.push_back(StarvedWorker {
                        worker: by,
                        since: now,
                        last_request: now,
                    });
                }
            }
        }
    }
}

/// Handles another worker's request for idle servers, and replies. Hands over up to `servers_max`
/// that no client here waits for and that are not part of this worker's share of the pool's
/// minimum, the least recently used first.
pub(crate) fn handle_idle_request(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    pool_id: PoolId,
    by: WorkerId,
    servers_max: u32,
) {
    if let Some(pool) = pools.get(pool_id).filter(|pool| pool.waiting.is_empty()) {
        let spare = pool.servers.saturating_sub(pools.min_servers_here(&pool.spec));
        let can_move = |id| peers.servers.get(id).is_some_and(|it| !it.flow.is_backlogged);
        let idle = pool.idle.iter().copied().filter(|id| can_move(*id));
        let moved: Vec<_> = idle.take(spare.min(servers_max) as usize).collect();
        for id in moved {
            to_worker(peers, pools, call, id, by);
        }
    }
    // The servers were sent before, so they are there when the reply arrives.
    call.io.confirm_idle_servers(pool_id, by);
}

/// Hands a server that has become idle over to a worker that needs one, unless a client here
/// has waited longer or the server has unsent bytes. Returns whether it did.
pub(crate) fn to_starved_worker(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    pool_id: PoolId,
    id: ServerId,
) -> bool {
    let now = call.now;
    let pool = pools.get_mut(pool_id).expect("a pool with servers exists");
    // A worker that got a server elsewhere does not withdraw its request, but stops repeating
    // it.
    pool.starved_workers
        .retain(|wanted| now.since(wanted.last_request) <= 3 * SERVER_REQUEST_INTERVAL);
    let Some(StarvedWorker { worker: by, since, .. }) = pool.starved_workers.front().copied()
    else {
        return false;
    };
    let first = pool.waiting.front().and_then(|first| peers.clients.get(*first));
    let backlogged = peers.servers.get(id).is_some_and(|server| server.flow.is_backlogged);
    if backlogged || first.is_some_and(|client| client.state_since <= since) {
        return false;
    }
    pool.starved_workers.pop_front();
    to_worker(peers, pools, call, id, by);
    // Clients still wait here: open another server, or request one from the other workers.
    opening::open_for_waiting(peers, pools, call, pool_id);
    true
}

/// Removes a server from this worker and sends it to another.
fn to_worker(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    id: ServerId,
    to: WorkerId,
) {
    let Some(server) = peers.servers.remove(id) else { return };
    let pool = pools.pool(server.pool);
    pool.idle.retain(|idle| *idle != id);
    pool.servers -= 1;
    call.io.hand_over(id, to, Box::new(Transfer { server }));
}

/// Adds a server that another worker handed over, as idle. Returns `None` if this worker does
/// not have the pool.
pub(crate) fn insert(
    peers: &mut Peers,
    pools: &mut Pools,
    transfer: Box<Transfer>,
    now: Time,
) -> Option<ServerId> {
    let Transfer { mut server } = *transfer;
    let pool_id = server.pool;
    pools.get(pool_id)?;
    server.flow.is_paused = false;
    server.state_since = now;
    let welcome = server.parameters.login_values();
    let id = peers.servers.insert(server);
    let pool = pools.pool(pool_id);
    // This worker may never have opened a server of this pool itself, but needs the server's
    // parameters to finish client logins.
    if pool.spec.welcome.parameters().is_none() {
        pool.spec.welcome.set(welcome);
    }
    pool.servers += 1;
    pool.last_failure = None;
    pool.request_at = Time::default();
    pool.idle.push_back(id);
    Some(id)
}
