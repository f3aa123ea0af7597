//! Timeouts and other periodic work. None of it is on the path of a query: an operation with a
//! timeout only records when it started, and periodic sweeps check it.

use std::time::Duration;

use howdah_wire::backend::{Severity, encode};

use crate::{
    PoolingMode, TargetRole,
    call::CoreCall,
    clients::leaving,
    cluster::ServerStatus,
    fan_out,
    peers::Peers,
    pools::Pools,
    refusal::ClientRefusal,
    servers::closing,
    state::{
        client::ClientState,
        ids::ClientId,
        pool::PoolState,
        server::{ServerConnection, ServerState},
    },
    time::Time,
};

/// The current activity of a linked server.
#[derive(Clone, Copy)]
enum LinkedState {
    /// The server has requests to answer.
    Active,
    /// The server waits for the client, inside a transaction or batch.
    IdleInTransaction,
    /// The server waits for the client, outside a transaction, as in session mode.
    Idle,
}

fn linked_state(server: &ServerConnection) -> LinkedState {
    match () {
        () if !server.outstanding.is_empty() => LinkedState::Active,
        () if server.is_quiescent() => LinkedState::Idle,
        () => LinkedState::IdleInTransaction,
    }
}

/// Whether the time since `since` has reached a limit, if there is one.
fn is_reached(limit: Option<Duration>, since: Time, now: Time) -> bool {
    limit.is_some_and(|limit| now.since(since) >= limit)
}

/// The text of the notice for a client that has waited longer than `query_wait_notify`.
const QUERY_WAIT_NOTICE: &[u8] = b"no server connection is available yet: waiting for one";

/// Returns the error for a client that has waited too long for a server, with the reason if the
/// last login failed.
fn query_wait_refusal(pool: &PoolState) -> ClientRefusal {
    match &pool.last_failure {
        Some(failure) => ClientRefusal::NoServerInTime { reason: failure.message.clone() },
        None => ClientRefusal::QueryWaitTimeout,
    }
}

/// Whether a client needs a primary, and a server that accepts writes is fenced, because another
/// primary is accepted or a newer timeline is known.
fn has_only_stale_primary(role: TargetRole, owner: &PoolState) -> bool {
    let mut members = owner.spec.clusters.iter().flat_map(|cluster| cluster.members.iter());
    role == TargetRole::Primary
        && members.any(|member| member.state.status() == ServerStatus::Stale)
}

pub(crate) fn sweep_client(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    index: usize,
) {
    let Some((id, client)) = peers.clients.occupant(index) else { return };
    let Some(pool) = pools.get(client.pool) else { return };
    let timeouts = &pool.spec.timeouts;
    let notify = timeouts.query_wait_notify;
    let (limit, refusal) = match client.state {
        ClientState::Waiting | ClientState::Welcome => {
            let waited = call.now.since(client.state_since);
            if client.state == ClientState::Waiting
                && !client.has_wait_notice
                && notify.is_some_and(|notify| waited >= notify)
            {
                return send_wait_notice(peers, call, id);
            }
            // During PAUSE, clients may wait without limit.
            let limit = timeouts.query_wait.filter(|_| !pool.spec.admin_state.is_paused());
            match pool.failover_timeout().filter(|_| !pool.spec.admin_state.is_paused()) {
                Some(wait) if limit.is_none_or(|limit| wait < limit) => {
                    let is_behind = client.member.causal_token.is_some()
                        && client.member.role != TargetRole::Primary;
                    let refusal = match is_behind && client.pool == client.owner_pool {
                        true => ClientRefusal::NotReplayed,
                        false if has_only_stale_primary(client.member.role, pool) => {
                            ClientRefusal::StalePrimary
                        }
                        false => ClientRefusal::NoMember(client.member.role),
                    };
                    (Some(wait), refusal)
                }
                _ => (limit, query_wait_refusal(pool)),
            }
        }
        ClientState::Idle if client.has_deferred_begin() => {
            let limits = [timeouts.idle_transaction, timeouts.transaction];
            (limits.into_iter().flatten().min(), ClientRefusal::IdleTransactionTimeout)
        }
        ClientState::Idle => (timeouts.client_idle, ClientRefusal::ClientIdleTimeout),
        // The timeouts apply to its sub-requests.
        ClientState::FanOut => return fan_out::repeat_cancels(peers, pools, call, id),
        ClientState::Linked(server) => {
            let Some(server) = peers.servers.get(server) else { return };
            let (since, state) = (server.state_since, linked_state(server));
            if let Some(pin) = &server.pin
                && let Some(pinned_since) = pin.pinned_since()
                && server.is_quiescent()
            {
                let refusal = match () {
                    () if is_reached(pool.spec.pinning.idle, since, call.now) => {
                        Some(ClientRefusal::PinnedIdle { reasons: pin.reasons() })
                    }
                    () if is_reached(pool.spec.pinning.lasting, pinned_since, call.now) => {
                        Some(ClientRefusal::PinnedTime { reasons: pin.reasons() })
                    }
                    () => None,
                };
                if let Some(refusal) = refusal {
                    return leaving::refuse(peers, pools, call, id, &refusal);
                }
            }
            let is_late = is_reached(timeouts.transaction, server.work_started, call.now);
            if is_late && !server.is_quiescent() {
                return leaving::refuse(peers, pools, call, id, &ClientRefusal::TransactionTimeout);
            }
            let is_outdated = pools.is_outdated(server);
            return sweep_linked_client(peers, pools, call, id, (since, state), is_outdated);
        }
    };
    if is_reached(limit, client.state_since, call.now) {
        leaving::refuse(peers, pools, call, id, &refusal);
    }
}

fn send_wait_notice(peers: &mut Peers, call: &mut CoreCall<'_>, id: ClientId) {
    let Some(client) = peers.clients.get_mut(id) else { return };
    client.has_wait_notice = true;
    if !client.has_partial_message {
        peers.to_client.push_with(|buf| {
            let fields = encode::essentials(Severity::Notice, b"00000", QUERY_WAIT_NOTICE);
            encode::notice_response(buf, fields).expect("the text has no zero byte");
        });
        peers.flush_client(id, &[], call);
    }
}

/// Applies timeouts to a client whose server has been in `state` since `since`, and disconnects it
/// if it may not keep an outdated server.
fn sweep_linked_client(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    id: ClientId,
    (since, state): (Time, LinkedState),
    is_outdated: bool,
) {
    let Some(pool) = peers.clients.get(id).and_then(|c| pools.get(c.pool)) else {
        return;
    };
    if pool.spec.closes_outdated_sessions
        && pool.spec.mode == PoolingMode::Session
        && matches!(state, LinkedState::Idle)
        && is_outdated
    {
        return leaving::refuse(peers, pools, call, id, &ClientRefusal::ServerOutdated);
    }
    let timeouts = &pool.spec.timeouts;
    let (limit, refusal) = match state {
        LinkedState::Active => (timeouts.query, ClientRefusal::QueryTimeout),
        LinkedState::IdleInTransaction => {
            (timeouts.idle_transaction, ClientRefusal::IdleTransactionTimeout)
        }
        LinkedState::Idle => (timeouts.client_idle, ClientRefusal::ClientIdleTimeout),
    };
    if is_reached(limit, since, call.now) {
        leaving::refuse(peers, pools, call, id, &refusal);
    }
}

pub(crate) fn sweep_server(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    index: usize,
) {
    let Some((id, server)) = peers.servers.occupant(index) else { return };
    let Some(pool) = pools.get(server.pool) else { return };
    let timeouts = &pool.spec.timeouts;
    let spare = pool.servers > pools.min_servers_here(&pool.spec);
    let close = match server.state {
        ServerState::Idle => {
            is_reached(timeouts.server_lifetime, server.opened_at, call.now)
                || spare && is_reached(timeouts.server_idle, server.state_since, call.now)
        }
        ServerState::Cleaning => is_reached(Some(timeouts.cleanup), server.state_since, call.now),
        ServerState::Opening | ServerState::Linked(_) => false,
    };
    if close {
        closing::close(peers, pools, call, id);
    }
}
