//! How server connections end: closed by the pooler, lost, or aborted.

use howdah_wire::frontend;

use crate::{
    call::{CoreCall, Step},
    peers::Peers,
    pools::Pools,
    refusal::ClientRefusal,
    state::{
        client::{ClientState, InputHold},
        ids::{ClientId, PeerId, PoolId, ServerId},
        server::ServerState,
    },
};

/// Closes a server that is not linked to a client.
pub(crate) fn close(peers: &mut Peers, pools: &mut Pools, call: &mut CoreCall<'_>, id: ServerId) {
    let Some(server) = peers.servers.get(id) else { return };
    if server.input.is_at_boundary() && server.outstanding.is_empty() {
        peers.to_server.push_with(frontend::encode::terminate);
        peers.flush_server(id, &[], call);
    }
    call.io.close(PeerId::Server(id));
    disconnect(peers, pools, call, id);
}

/// Removes a server whose connection has ended, whatever its state was. If it has a client, the
/// client is disconnected with an error.
pub(crate) fn disconnect(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    id: ServerId,
) {
    let Some(mut server) = peers.servers.remove(id) else { return };
    let pool_id = server.pool;
    let pool = pools.pool(pool_id);
    server.end_pin(&mut pool.stats, call.now);
    pool.servers -= 1;
    pool.checking -= u32::from(server.check.is_running);
    match server.state {
        ServerState::Opening => pool.opening -= 1,
        ServerState::Idle => pool.idle.retain(|idle| *idle != id),
        ServerState::Cleaning => {}
        ServerState::Linked(client) => {
            let is_cut_off = server.input.is_inside_forwarded_body();
            unlink(peers, call, client, is_cut_off, ClientRefusal::ServerLost);
        }
    }
    // Release its permits before looking for pools that can use them.
    drop(server);
    call.steps.push(Step::OpenForStarved);
    call.steps.push(Step::Serve(pool_id));
}

/// Unlinks a client from the server that it loses: it is disconnected with an error later in this
/// call, and must then have no server. Until then, none of its input is processed.
fn unlink(
    peers: &mut Peers,
    call: &mut CoreCall<'_>,
    id: ClientId,
    is_cut_off: bool,
    refusal: ClientRefusal,
) {
    if let Some(client) = peers.clients.get_mut(id) {
        client.state = ClientState::Idle;
        client.input_hold = InputHold::Leaving;
        client.has_partial_message = is_cut_off;
    }
    call.steps.push(Step::Refuse(id, Box::new(refusal)));
}

/// Closes a server that cannot be used any more, and disconnects its client with an error.
pub(crate) fn abort(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    id: ServerId,
    refusal: ClientRefusal,
) {
    suspect_member(peers, pools, call, id);
    let Some(server) = peers.servers.get_mut(id) else { return };
    let cut_off = server.input.is_inside_forwarded_body();
    let state = std::mem::replace(&mut server.state, ServerState::Cleaning);
    if state == ServerState::Idle {
        let pool = server.pool;
        pools.pool(pool).idle.retain(|idle| *idle != id);
    }
    if let ServerState::Linked(client) = state {
        unlink(peers, call, client, cut_off, refusal);
    }
    call.io.close(PeerId::Server(id));
    disconnect(peers, pools, call, id);
}

/// Called when the connection to a server was lost or must be aborted: requests a health check
/// of its member.
pub(crate) fn suspect_member(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    id: ServerId,
) {
    let Some(server) = peers.servers.get(id) else { return };
    let pool = server.pool;
    if server.state == ServerState::Opening {
        return;
    }
    let spec = &pools.get(pool).expect("a pool with servers exists").spec;
    if let Some(member) = &spec.member {
        member.state.suspect();
        call.io.server_suspected(pool);
    }
}

/// Closes a pool's idle servers that must not be used any more; see [`must_close`].
pub(crate) fn close_unusable_idle(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    pool: PoolId,
) {
    let idle = pools.get(pool).map(|it| it.idle.clone());
    for id in idle.into_iter().flatten() {
        let server = peers.servers.get(id);
        if server.is_some_and(|it| it.state == ServerState::Idle) && must_close(peers, pools, id) {
            close(peers, pools, call, id);
        }
    }
}

/// Whether a free server must be closed because it closes the connection itself, because it is
/// outdated or surplus, because clients get no server (PAUSE), or because no client waits and idle
/// servers are not kept (the database was removed, or clients are being handed over to another
/// process). If it returns `true`, the caller must close the server, because this call may have
/// already counted it as closed.
#[inline]
pub(crate) fn must_close(peers: &mut Peers, pools: &Pools, id: ServerId) -> bool {
    let Some(server) = peers.servers.get(id) else { return false };
    let Some(pool) = pools.get(server.pool) else { return false };
    let is_idle = || pool.waiting.is_empty();
    server.is_ending
        || pool.spec.is_paused()
        || (pool.spec.is_closing || pools.closes_idle_servers) && is_idle()
        || pool.spec.epoch() != server.epoch
        || pool.has_surplus
            && peers.servers.get_mut(id).is_some_and(|it| it.permits.release_surplus())
}
