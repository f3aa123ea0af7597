//! Assigns servers to clients, in order of arrival.

use crate::{
    call::{CoreCall, Step},
    clients::login,
    peers::Peers,
    pools::Pools,
    servers::{checking, opening, setup},
    session::write_detection::WriteDetection,
    state::{
        client::{ClientConnection, ClientState},
        ids::{ClientId, PeerId, PoolId},
    },
};

/// Links a client to an idle server, if one is available and no other client waits for it, and
/// queues the statements that apply the client's parameters, and its deferred BEGIN. Returns
/// whether the client's messages may follow at once, or `None` if the client gets no server.
pub(crate) fn link_idle_server(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    id: ClientId,
) -> Option<bool> {
    let client = peers.clients.get_mut(id)?;
    let is_queued = client.state == ClientState::Waiting;
    let waits_since = is_queued.then_some(client.state_since);
    let now = call.now;
    let mut pool_id = client.pool;
    // The member of a queued client was selected when it was queued.
    if !is_queued && let Some(member) = pools.select_member(client) {
        pool_id = member;
    }
    // Clients that already wait are served first.
    if !is_queued && !pools.pool(pool_id).waiting.is_empty() {
        return None;
    }
    let server_id = checking::next_idle(&peers.servers, pools, pool_id, call.now)?;
    let pool = pools.pool(pool_id);
    pool.take_idle();
    pool.stats.assignments += 1;
    if let Some(since) = waits_since {
        pool.stats.wait_time.add(since, now);
        peers.capture.server_assigned(client, now);
    }
    let server = peers.servers.get_mut(server_id).expect("idle servers exist");
    server.link(id, call.now);
    server.write_detection = WriteDetection::enabled_if(client.member.has_read_your_writes);
    client.state = ClientState::Linked(server_id);
    client.state_since = call.now;
    client.is_cancel_pending = false;
    let spec = &pools.get(pool_id)?.spec;
    if let Some(routing) = &mut client.routing {
        let shard = spec.member.as_ref().map_or(0, |member| member.shard);
        routing.server_linked(shard, |name| server.parameters.value(name));
    }
    if spec.has_parameters_at_login {
        return Some(true);
    }
    let is_ready = setup::apply_parameters(client, server, &mut peers.to_server);
    if let Some(begun) = client.routing.as_mut().and_then(|it| it.take_deferred_begin()) {
        setup::send_deferred_begin(server, &begun, &mut peers.to_server);
    }
    Some(is_ready)
}

/// Queues a client for a server, and opens one if that is allowed.
pub(crate) fn wait_for_server(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    id: ClientId,
) {
    let Some(client) = peers.clients.get_mut(id) else { return };
    let pool_id = client.pool;
    client.state = ClientState::Waiting;
    client.state_since = call.now;
    client.has_wait_notice = false;
    pools.pool(pool_id).waiting.push_back(id);
    peers.update_pause(PeerId::Client(id), call);
    checking::check_idle(peers, pools, call, pool_id);
    opening::open_for_waiting(peers, pools, call, pool_id);
}

/// Finishes pending logins, then links waiting clients to idle servers, in order of arrival.
pub(crate) fn serve_waiting(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    pool_id: PoolId,
) {
    login::finish_pending(peers, pools, call, pool_id);
    apply_cluster_changes(peers, pools, call, pool_id);
    loop {
        if checking::next_idle(&peers.servers, pools, pool_id, call.now).is_none() {
            return checking::check_idle(peers, pools, call, pool_id);
        }
        let Some(client_id) = pools.pool(pool_id).waiting.pop_front() else { return };
        let waits = peers.clients.get(client_id).is_some_and(|c| c.state == ClientState::Waiting);
        if waits && link_idle_server(peers, pools, call, client_id).is_some() {
            let server = peers.clients.get(client_id).and_then(ClientConnection::server);
            peers.flush_server(server.expect("it was just linked"), &[], call);
            peers.update_pause(PeerId::Client(client_id), call);
            call.steps.push(Step::Input(client_id));
        }
    }
}

/// Moves waiting clients to suitable members if the cluster's state has changed. Called before
/// a member's servers are assigned, because the member may have become unsuitable: a primary
/// may have been demoted during the login to it.
#[inline]
pub(crate) fn apply_cluster_changes(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    pool: PoolId,
) {
    let Some(state) = pools.get(pool) else { return };
    let Some(owner) = state.spec.member.as_ref().map(|member| member.owner) else { return };
    let owner_pool = pools.get(owner);
    let balancers = owner_pool.and_then(|owner| owner.balancers.as_ref());
    if balancers.is_some_and(|balancers| balancers.needs_redirect()) {
        redirect_waiting(peers, pools, call, owner);
    }
}

/// Selects a member anew for each waiting client that may not stay in its queue, and serves the
/// moved clients there.
pub(crate) fn redirect_waiting(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    owner: PoolId,
) {
    let balancers = pools.get_mut(owner).and_then(|pool| pool.balancers.as_mut());
    balancers.into_iter().for_each(|balancers| balancers.mark_redirected());
    let mut gaining_pools = Vec::new();
    let members = pools.member_pools(owner).into_iter().map(|(member, pool)| (Some(member), pool));
    for (member, pool) in [(None, owner)].into_iter().chain(members) {
        let Some(state) = pools.get_mut(pool) else { continue };
        if state.waiting.is_empty() && state.awaiting_welcome.is_empty() {
            continue;
        }
        for id in std::mem::take(&mut state.waiting) {
            let waits = |client: &ClientConnection| {
                client.state == ClientState::Waiting
                    && client.pool == pool
                    && client.owner_pool == owner
            };
            let Some(client) = peers.clients.get_mut(id).filter(|client| waits(client)) else {
                continue;
            };
            if pools.may_stay_queued(owner, member, client, call.now) {
                pools.pool(pool).waiting.push_back(id);
            } else {
                let target = pools.select_member(client).unwrap_or(owner);
                pools.pool(target).waiting.push_back(id);
                gaining_pools.push(target);
            }
        }
        for id in std::mem::take(&mut pools.pool(pool).awaiting_welcome) {
            let waits = |client: &ClientConnection| client.state == ClientState::Welcome;
            let Some(client) = peers.clients.get_mut(id).filter(|client| waits(client)) else {
                continue;
            };
            let is_kept = pools.may_stay_queued(owner, member, client, call.now);
            let target = if is_kept { pool } else { pools.select_member(client).unwrap_or(owner) };
            pools.pool(target).awaiting_welcome.push(id);
            gaining_pools.extend((!is_kept).then_some(target));
        }
    }
    gaining_pools.sort_unstable();
    gaining_pools.dedup();
    for target in gaining_pools {
        call.steps.push(Step::Serve(target));
    }
}
