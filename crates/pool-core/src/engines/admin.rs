//! Applies what administrators order, and what changes in the settings: PAUSE, RECONNECT, RELOAD,
//! SUSPEND, KILL, and the end of the pooler.

use crate::{
    call::CoreCall,
    clients::leaving,
    listen::notifications,
    peers::Peers,
    pools::Pools,
    refusal::ClientRefusal,
    servers::{assignment, closing, opening},
    state::{
        client::ClientState,
        ids::{ClientId, PoolId},
        server::ServerState,
    },
};

/// Handles a changed [`crate::AdminState`]: closes idle servers that must not be used, and serves
/// waiting clients that may now have a server.
pub(crate) fn state_changed(peers: &mut Peers, pools: &mut Pools, call: &mut CoreCall<'_>) {
    for pool in pools.ids() {
        closing::close_unusable_idle(peers, pools, call, pool);
    }
    for pool in pools.ids() {
        opening::open_for_waiting(peers, pools, call, pool);
        assignment::serve_waiting(peers, pools, call, pool);
    }
}

/// Disconnects the clients of removed databases; those with a request or transaction are
/// disconnected when it ends.
pub(crate) fn disconnect_removed(peers: &mut Peers, pools: &mut Pools, call: &mut CoreCall<'_>) {
    for slot in 0..peers.clients.slots() {
        disconnect_if_removed(peers, pools, call, slot);
    }
}

/// Disconnects the client in a slot if its database was removed and no work is lost by that; see
/// [`Peers::can_disconnect`].
pub(crate) fn disconnect_if_removed(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    slot: usize,
) {
    let Some((id, client)) = peers.clients.occupant(slot) else { return };
    let closes = pools.get(client.owner_pool).is_some_and(|pool| pool.spec.is_closing);
    if closes && client.is_external() && peers.can_disconnect(client) {
        leaving::refuse(peers, pools, call, id, &ClientRefusal::DatabaseRemoved);
    }
}

/// Disconnects all connected clients of a pool, in whatever state they are, and closes its servers,
/// except those that are still being opened or used by an internal client (KILL).
pub(crate) fn kill_pool(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    pool: PoolId,
) {
    for slot in 0..peers.clients.slots() {
        if let Some((id, client)) = peers.clients.occupant(slot)
            && client.is_external()
            && (client.pool == pool || client.owner_pool == pool)
        {
            leaving::refuse(peers, pools, call, id, &ClientRefusal::Killed);
        }
    }
    for slot in 0..peers.servers.slots() {
        if let Some((id, server)) = peers.servers.occupant(slot)
            && server.pool == pool
            && matches!(server.state, ServerState::Idle | ServerState::Cleaning)
        {
            closing::close(peers, pools, call, id);
        }
    }
}

/// Disconnects a client (KILL_CLIENT). Returns whether it existed.
pub(crate) fn kill_client(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    id: ClientId,
) -> bool {
    let is_there = peers.clients.get(id).is_some();
    leaving::refuse(peers, pools, call, id, &ClientRefusal::Killed);
    is_there
}

/// Suspends or resumes the worker; on resuming, waiting clients are served.
pub(crate) fn suspend(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    suspend: bool,
) {
    pools.is_suspended = suspend;
    if !suspend {
        state_changed(peers, pools, call);
        notifications::send_all_pending(peers, pools, call);
    }
}

/// Disconnects all clients that are idle outside a transaction, logging in, or waiting for a
/// server, as PgBouncer does at a shutdown.
pub(crate) fn drain(peers: &mut Peers, pools: &mut Pools, call: &mut CoreCall<'_>) {
    for slot in 0..peers.clients.slots() {
        let Some((id, client)) = peers.clients.occupant(slot) else { continue };
        let waits = client.state == ClientState::Waiting;
        if client.is_external() && (waits || peers.can_disconnect(client)) {
            leaving::refuse(peers, pools, call, id, &ClientRefusal::Shutdown);
        }
    }
}
