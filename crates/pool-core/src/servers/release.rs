//! Releases servers from their clients when a transaction is over.

use std::sync::Arc;

use crate::{
    call::CoreCall,
    clients::leaving,
    peers::Peers,
    pools::Pools,
    refusal::ClientRefusal,
    servers::{cleaning, session_check},
    session::{
        connect_query::ConnectQuery, state::SessionStateFlags, write_detection::WriteDetection,
    },
    spec::PoolingMode,
    state::{
        client::ClientState,
        ids::{ClientId, PeerId, PoolId, ServerId},
        server::ServerState,
    },
};

/// Releases a server from its client if all requests are answered and no transaction or batch
/// is open, unless the pool is in session mode or the client's last message is incomplete. If
/// the database was removed, disconnects the client instead. For a server that is being
/// cleaned, takes the next step.
pub(crate) fn release_if_quiescent(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    server_id: ServerId,
) {
    let Some(server) = peers.servers.get_mut(server_id) else { return };
    if !server.is_quiescent() {
        return;
    }
    match server.state {
        ServerState::Linked(client_id) => {
            let pool_id = server.pool;
            let client = peers.clients.get_mut(client_id).expect("linked clients exist");
            let spec = &pools.get(pool_id).expect("a pool with servers exists").spec;
            let resets = spec.reset.as_ref().is_some_and(|reset| reset.is_always);
            if spec.is_closing && !client.has_unprocessed_input() {
                return leaving::refuse(
                    peers,
                    pools,
                    call,
                    client_id,
                    &ClientRefusal::DatabaseRemoved,
                );
            }
            if spec.mode == PoolingMode::Session || !client.input.is_at_boundary() {
                return;
            }
            if spec.mode == PoolingMode::Adaptive
                && client.is_external()
                && !session_check::may_release(peers, pools, call, server_id)
            {
                return;
            }
            let Some(server) = peers.servers.get_mut(server_id) else { return };
            let client = peers.clients.get_mut(client_id).expect("linked clients exist");
            let spec = &pools.get(pool_id).expect("a pool with servers exists").spec;
            client.state = ClientState::Idle;
            client.state_since = call.now;
            call.steps.push_if_any(client.step_on_progress(client_id));
            if let Some(routing) = &mut client.routing {
                routing.server_released();
            }
            server.state = ServerState::Cleaning;
            server.state_since = call.now;
            server.is_reset_due = resets;
            // The connect query has set parameters that the client may have changed, and that
            // the server does not report. Resetting only changed parameters would not restore
            // them: reset all settings.
            let undone = |query: &Arc<ConnectQuery>| {
                server.parameters.has_unreported(|it| query.mentions(it))
            };
            if spec.connect_query.as_ref().is_some_and(undone) {
                server.session_state |= SessionStateFlags::SETTINGS;
            }
            let has_written = server.write_detection == WriteDetection::Written;
            let may_pause =
                client.flow.is_paused || client.flow.is_backlogged || client.must_buffer_input();
            let is_paused = server.flow.is_paused;
            let is_clean = server.session_state.is_none() && !resets && !server.batch.is_copying_in;
            if has_written {
                record_write(peers, pools, call, client_id, pool_id);
            }
            if may_pause {
                peers.update_pause(PeerId::Client(client_id), call);
            }
            if is_paused {
                // Reading was paused because the client was slow, but the replies to the reset
                // must still be read.
                peers.update_pause(PeerId::Server(server_id), call);
            }
            if is_clean {
                cleaning::return_to_pool(peers, pools, call, server_id);
            } else {
                cleaning::resume(peers, pools, call, server_id);
            }
        }
        ServerState::Cleaning => cleaning::resume(peers, pools, call, server_id),
        ServerState::Opening | ServerState::Idle => {}
    }
}

/// Records that a client's transaction on a member has written data, or may have: the client's
/// later reads must see it.
#[cold]
pub(crate) fn record_write(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    id: ClientId,
    pool: PoolId,
) {
    let spec = pools.get(pool).map(|pool| &pool.spec);
    let Some(member) = spec.and_then(|spec| spec.member.as_ref()) else { return };
    let (required_check, is_first) = member.state.write_tracker.record_write();
    if let Some(client) =
        peers.clients.get_mut(id).filter(|client| client.member.has_read_your_writes)
    {
        client.member.causal_token.get_or_insert_default().raise(member.shard, required_check);
    }
    if is_first {
        call.io.check_primary(pool);
    }
}
