//! Checks that a server that has been idle for a long time is still alive before a client gets it
//! (PgBouncer's `server_check_query`).

use howdah_wire::frontend;

use crate::{
    call::CoreCall,
    messages::outstanding::{ReplyTarget, RequestKind},
    peers::Peers,
    pools::Pools,
    session::state::SetKind,
    state::{
        ids::{PoolId, ServerId},
        server::{ServerConnection, ServerState},
        slab::Slab,
    },
    time::Time,
};

/// Returns the idle server for the next client of a pool. Returns `None` if there is none, if
/// that server must be checked first, if the database is paused, or if the worker is suspended.
#[inline]
pub(crate) fn next_idle(
    servers: &Slab<ServerId, ServerConnection>,
    pools: &Pools,
    pool_id: PoolId,
    now: Time,
) -> Option<ServerId> {
    let pool = pools.get(pool_id)?;
    if pool.spec.admin_state.is_paused() || pools.is_suspended {
        return None;
    }
    let id = if pool.spec.is_round_robin { pool.idle.front() } else { pool.idle.back() };
    let id = *id?;
    let is_late = pool.spec.check.as_ref().is_some_and(|check| {
        let server = servers.get(id);
        let is_due = |since| now.since(since) >= check.idle;
        server
            .is_none_or(|server| server.check.passed_at != Some(now) && is_due(server.state_since))
    });
    (!is_late).then_some(id)
}

/// Sends the pool's check query, if it has one, to as many idle servers as there are waiting
/// clients. Servers that pass the check are assigned to clients.
pub(crate) fn check_idle(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    pool_id: PoolId,
) {
    while !pools.is_suspended {
        let pool = pools.pool(pool_id);
        let Some(check) = &pool.spec.check else { return };
        if pool.waiting.len() <= pool.checking as usize || pool.spec.admin_state.is_paused() {
            return;
        }
        let query = check.query.clone();
        let Some(id) = pool.take_idle() else { return };
        pool.checking += 1;
        let now = call.now;
        let server = peers.servers.get_mut(id).expect("idle servers exist");
        server.state = ServerState::Cleaning;
        server.state_since = now;
        server.check.is_running = true;
        server.outstanding.push_for(ReplyTarget::Cleaning, RequestKind::Query(SetKind::NeedsReset));
        peers.to_server.push_with(|buf| {
            frontend::encode::query(buf, &query).expect("settings have no zero byte");
        });
        peers.flush_server(id, &[], call);
    }
}
