//! Reroutes requests from servers that fail health checks.
//!
//! A hung server keeps its connections open and sends nothing. Most requests must wait for it until
//! its connections are closed, because they may have been executed; requests that certainly only
//! read need not.
//!
//! So the pooler buffers the bytes of a small request, in however many pieces they arrive, until
//! the first byte of a reply arrives. If a health check of the server fails meanwhile, the request
//! is withdrawn, as if it had never been processed, and dispatched to another suitable member. If
//! no other member is suitable, the request stays.
//!
//! A request can be rerouted if it is a single query string or batch (up to its Sync) outside a
//! transaction, no part of it was answered, its client has sent nothing after it, and according to
//! PostgreSQL's grammar all its statements only read. In session mode, no request is rerouted.
//!
//! A request that waits for its server to apply or report parameters has not been sent at all, and
//! is rerouted whatever it does. All other requests wait until the connection ends, and the client
//! gets an error.

use howdah_route::{PinScope, RouteSession};
use howdah_wire::{Frame, Frontend, backend::TransactionStatus};

use crate::{
    call::{CoreCall, Step},
    messages::outstanding::{PreviousUnnamed, RollbackAction},
    peers::Peers,
    pools::Pools,
    prepared::statements::sql_text,
    routing::Routers,
    spec::PoolingMode,
    state::{
        client::{ClientConnection, ClientState, InputHold},
        ids::{ClientId, PeerId, PoolId, ServerId},
        server::{ServerConnection, ServerState},
    },
};

/// Maximum length, in bytes, of a request that is buffered for rerouting.
const REQUEST_BYTES_MAX: usize = 16 << 10;

/// Whether the client's next bytes start a request that may have to be rerouted, so that they
/// must be buffered.
#[inline]
pub(crate) fn may_reroute(peers: &Peers, id: ClientId) -> bool {
    peers.clients.get(id).is_some_and(|client| {
        client.member.is_clustered
            && match client.state {
                ClientState::Linked(server) => {
                    let is_fresh = |it: &ServerConnection| {
                        it.is_quiescent() || it.outstanding.is_parameters_only()
                    };
                    peers.servers.get(server).is_some_and(is_fresh)
                }
                _ => true,
            }
    })
}

/// Whether the start of a request is buffered; the client's next bytes may then belong to it.
#[inline]
pub(crate) fn has_buffered_request(peers: &Peers, id: ClientId) -> bool {
    let client = peers.clients.get(id).filter(|client| client.member.is_clustered);
    let server = client.and_then(ClientConnection::server).and_then(|id| peers.servers.get(id));
    server.is_some_and(|server| !server.batch.unanswered_request.is_empty())
}

/// Buffers bytes of a request that were sent to a client's server, after any buffered earlier.
/// Clears the buffer if the request cannot be rerouted: `bytes` is `None`, or the request is
/// too long.
pub(crate) fn buffer_request(peers: &mut Peers, id: ClientId, bytes: Option<&[u8]>) {
    let Some(client) = peers.clients.get(id).filter(|client| client.member.is_clustered) else {
        return;
    };
    let Some(server) = client.server().and_then(|id| peers.servers.get_mut(id)) else { return };
    match bytes {
        Some(bytes) if server.batch.unanswered_request.len() + bytes.len() <= REQUEST_BYTES_MAX => {
            server.batch.unanswered_request.extend_from_slice(bytes);
        }
        _ => server.batch.unanswered_request.clear(),
    }
}

/// Reroutes a request whose last part the client has just sent, if its server has begun to fail
/// health checks meanwhile.
#[cold]
pub(crate) fn if_checks_fail(
    peers: &mut Peers,
    pools: &mut Pools,
    routers: &mut Routers,
    call: &mut CoreCall<'_>,
    id: ClientId,
) {
    let Some(client) = peers.clients.get(id) else { return };
    let pool = pools.get(client.pool);
    let member = pool.and_then(|pool| pool.spec.member.as_ref());
    if let Some(member) = member.filter(|member| member.state.is_failing_checks()) {
        all_of(peers, pools, routers, call, member.owner);
    }
}

/// Reroutes all requests that can be rerouted from the members of a cluster that fail health
/// checks.
pub(crate) fn all_of(
    peers: &mut Peers,
    pools: &mut Pools,
    routers: &mut Routers,
    call: &mut CoreCall<'_>,
    owner: PoolId,
) {
    if let Some(balancers) = pools.get_mut(owner).and_then(|it| it.balancers.as_mut()) {
        balancers.refresh();
    }
    for pool in pools.cluster_pools(owner) {
        let spec = pools.get(pool).map(|pool| &pool.spec);
        let Some(spec) = spec.filter(|spec| spec.mode != PoolingMode::Session) else {
            continue;
        };
        if !spec.member.as_ref().is_some_and(|member| member.state.is_failing_checks()) {
            continue;
        }
        for index in 0..peers.servers.slots() {
            let Some((id, server)) = peers.servers.occupant(index) else { continue };
            if let ServerState::Linked(client) = server.state
                && server.pool == pool
                && can_reroute(peers, pools, routers, client, id)
            {
                reroute_request(peers, pools, call, client, id);
            }
        }
    }
}

/// Whether a client's request can be moved from a server to another member; see the module's
/// documentation.
fn can_reroute(
    peers: &Peers,
    pools: &Pools,
    routers: &mut Routers,
    id: ClientId,
    server_id: ServerId,
) -> bool {
    let (Some(client), Some(server)) = (peers.clients.get(id), peers.servers.get(server_id)) else {
        return false;
    };
    let is_only_request = !server.batch.unanswered_request.is_empty()
        && server.outstanding.is_single_client_request()
        && !server.batch.is_copying_in
        && server.status == TransactionStatus::Idle
        && server.restore.spliced_query.is_none()
        && server.pending_actions.is_none();
    let is_between_messages = client.is_external()
        && client.input.is_at_boundary()
        && !client.has_partial_message
        && !server.batch.is_open
        && !server.input.is_inside_forwarded_body();
    if !is_between_messages || !pools.has_other_member(client, server.pool) {
        return false;
    }
    // No part of the request has been sent yet, because the server must first apply or report
    // parameters.
    let is_unsent =
        matches!(client.input_hold, InputHold::ApplyingParameters | InputHold::AwaitingReplies)
            && server.outstanding.is_preparation_only()
            && server.status == TransactionStatus::Idle
            && server.restore.spliced_query.is_none()
            && server.pending_actions.is_none();
    let is_fully_sent = client.input_hold == InputHold::None && client.input.buffered.is_empty();
    is_unsent
        || is_only_request && is_fully_sent && is_read_only_request(peers, routers, id, server_id)
}

/// Whether every statement of the request buffered for a server certainly only reads.
fn is_read_only_request(
    peers: &Peers,
    routers: &mut Routers,
    id: ClientId,
    server: ServerId,
) -> bool {
    let (Some(client), Some(server)) = (peers.clients.get(id), peers.servers.get(server)) else {
        return false;
    };
    let Some((slot, _)) = routers.for_pool(client.owner_pool) else { return false };
    let default_session = RouteSession::new(PinScope::Transaction, 0);
    let session = client.routing.as_ref().map_or(&default_session, |routing| &routing.session);
    let mut reads = |sql: &[u8]| session.only_reads(&mut slot.router, sql);
    // Statements that the batch itself prepares are checked when their Parse is found.
    let mut prepared: Vec<&[u8]> = Vec::new();
    let mut rest = &server.batch.unanswered_request[..];
    while let Ok(Some((frame, later))) = Frame::split(rest, u32::MAX) {
        rest = later;
        let body = frame.body;
        let is_read = match Frontend::from_tag(frame.tag) {
            Some(Frontend::Query) => reads(body.strip_suffix(b"\0").unwrap_or(body)),
            Some(Frontend::Parse) => {
                let Some(end) = memchr::memchr(0, body) else { return false };
                prepared.push(&body[..end]);
                reads(sql_text(&body[end + 1..]))
            }
            Some(Frontend::Bind) => {
                let Some(name) = body.split(|byte| *byte == 0).nth(1) else { return false };
                let known = match name {
                    b"" => Some(&client.statements.unnamed[..]),
                    name => client.statements.named.get(name).map(|it| &*it.text),
                };
                prepared.contains(&name) || known.is_some_and(|text| reads(sql_text(text)))
            }
            Some(Frontend::Describe | Frontend::Execute | Frontend::Close | Frontend::Sync) => true,
            _ => false,
        };
        if !is_read {
            return false;
        }
    }
    rest.is_empty()
}

/// Withdraws a client's request and dispatches it as if it had just arrived. The request is
/// cancelled on the old server connection, which is closed afterwards.
pub(crate) fn reroute_request(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    id: ClientId,
    server_id: ServerId,
) {
    peers.request_cancel(server_id, call);
    let (Some(client), Some(server)) =
        (peers.clients.get_mut(id), peers.servers.get_mut(server_id))
    else {
        return;
    };
    client.input.buffer(&server.batch.unanswered_request);
    client.input_hold = InputHold::None;
    server.batch.unanswered_request.clear();
    for rollback in server.outstanding.abandon() {
        match rollback {
            RollbackAction::RemoveName(name) | RollbackAction::RemoveNameAndStatement(name, _) => {
                client.statements.named.remove(&name);
            }
            RollbackAction::RestoreName(name, statement) => {
                client.statements.named.insert(name, statement);
            }
            RollbackAction::RestoreUnnamed(PreviousUnnamed::Text(text)) => {
                client.statements.unnamed = text;
                client.statements.unnamed_is_simple = false;
            }
            RollbackAction::RestoreUnnamed(PreviousUnnamed::Any)
            | RollbackAction::RemoveStatement(_)
            | RollbackAction::RestoreStatement(_) => {}
        }
    }
    // Late replies are discarded. After them, or after `timeouts.cleanup`, the connection is
    // closed.
    (server.state, server.state_since) = (ServerState::Cleaning, call.now);
    // An outdated epoch prevents the connection from being used again.
    server.epoch = server.epoch.wrapping_sub(1);
    (client.state, client.state_since) = (ClientState::Idle, call.now);
    if let Some(routing) = &mut client.routing {
        routing.server_released();
    }
    pools.reads_rerouted += 1;
    peers.update_pause(PeerId::Server(server_id), call);
    peers.update_pause(PeerId::Client(id), call);
    call.steps.push(Step::Input(id));
}
