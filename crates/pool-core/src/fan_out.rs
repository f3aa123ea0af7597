//! Runs requests on several shards: starts their sub-requests, and merges the replies. See
//! [`crate::fan_out::active`].
//!
//! Work that follows from a sub-request's replies is a [step](Step) for the end of the call that
//! delivered them: during the call, output for other peers may be only partly gathered.

pub(crate) mod active;
mod admission;
pub(crate) mod copy;
mod plan;

use std::{collections::VecDeque, time::Duration};

use howdah_route::Merger;

use crate::{
    call::{CoreCall, Step},
    clients::{cancel, cancel::write_cancelled_error, leaving},
    fan_out::active::{ActiveFanOut, FanOutCopy, FanOutRequest, SubRequest},
    internal_client::InternalClient,
    login::{CancelSecret, ClientLogin},
    messages::frame_cursor::BodyHandling,
    mirror::counters::MirrorError,
    peers::Peers,
    pools::Pools,
    prepared::names::ClientStatements,
    refusal::ClientRefusal,
    state::{
        client::{ClientConnection, ClientKind, ClientState},
        ids::{ClientId, PeerId, PoolId},
    },
};

/// Time after which running sub-requests of an aborted request are cancelled again.
const CANCEL_INTERVAL: Duration = Duration::from_secs(1);

/// The fan-out requests of a worker that wait for their turn.
#[derive(Debug, Default)]
pub(crate) struct FanOuts {
    /// Requests that wait for their [`AcquireGuard`](crate::state::limits::AcquireGuard), with
    /// their owner pools, in order of arrival.
    awaiting: VecDeque<(PoolId, ClientId)>,
}

impl FanOuts {
    /// Advances a client's fan-out request as far as possible: starts the next sub-request,
    /// continues a COPY, or finishes the request.
    pub(crate) fn advance(
        &mut self,
        peers: &mut Peers,
        pools: &mut Pools,
        call: &mut CoreCall<'_>,
        id: ClientId,
    ) {
        collect_sub_requests(peers, call, id);
        let Some(client) = peers.clients.get_mut(id) else { return };
        let Some(fan_out) = &mut client.fan_out else { return };
        if fan_out.merger.has_failed() && !fan_out.is_aborting {
            fan_out.is_aborting = true;
            return abort(peers, pools, call, id);
        }
        if fan_out.acquire_guard.is_none() && !fan_out.is_aborting {
            return self.acquire_connections(peers, pools, call, id);
        }
        let has_begun_all = fan_out.sub_requests.len() == fan_out.request.shards.len();
        if !has_begun_all {
            let last = fan_out.sub_requests.last().copied().flatten();
            // Sub-requests start in shard order, each after the previous one has a server, so two
            // fan-out requests never wait for each other.
            let previous = last.and_then(|sub_request| peers.clients.get(sub_request));
            if previous.is_none_or(|sub_request| sub_request.server().is_some()) {
                start_sub_request(peers, call, id);
            }
            return;
        }
        if copy::advance(peers, call, id) {
            return;
        }
        let Some(client) = peers.clients.get_mut(id) else { return };
        let Some(fan_out) = &client.fan_out else { return };
        if fan_out.merger.is_done() && fan_out.sub_requests.iter().all(Option::is_none) {
            if let Some(copying) = &fan_out.copy {
                // Discard the rest of the CopyData that is being received.
                client.input.body_left = copying.data_left;
                client.input.body_handling = BodyHandling::Drop;
            }
            client.fan_out = None;
            client.state = ClientState::Idle;
            client.state_since = call.now;
            let owner = client.owner_pool;
            call.steps.push(Step::NextFanOut(owner));
            peers.update_pause(PeerId::Client(id), call);
            call.steps.push(Step::Input(id));
        }
    }
}

/// Records a client's request to run on several shards. Its sub-requests start at the end of
/// the current call into the core at the earliest.
pub(crate) fn start(
    peers: &mut Peers,
    call: &mut CoreCall<'_>,
    id: ClientId,
    request: FanOutRequest,
) {
    let body_bytes_max = peers.body_bytes_max;
    let now = call.now;
    let Some(client) = peers.clients.get_mut(id) else { return };
    let mut merger = Merger::new(request.shards.len(), request.has_byte_collation, body_bytes_max);
    request.expected_replies.iter().cloned().for_each(|asked| merger.expect_replies(asked));
    let copying =
        request.copy.as_ref().and_then(|rows| FanOutCopy::new(rows, request.shards.len()));
    let fan_out = ActiveFanOut {
        request,
        merger,
        sub_requests: Vec::new(),
        copy: copying,
        is_aborting: false,
        cancelled_at: now,
        acquire_guard: None,
    };
    client.fan_out = Some(Box::new(fan_out));
    client.state = ClientState::FanOut;
    client.state_since = now;
    call.steps.push(Step::Client(id));
    peers.update_pause(PeerId::Client(id), call);
}

/// Starts the next sub-request: creates an internal client whose input is the request's messages.
fn start_sub_request(peers: &mut Peers, call: &mut CoreCall<'_>, id: ClientId) {
    let Some(parent) = peers.clients.get_mut(id) else { return };
    let Some(fan_out) = &mut parent.fan_out else { return };
    let index = fan_out.sub_requests.len();
    let secret = CancelSecret([0; 32]);
    let (pool, version) = (parent.owner_pool, parent.version);
    let login =
        ClientLogin { pool, user: None, version, secret, parameters: Vec::new(), role: None };
    let mut sub_request = ClientConnection::new(&login, parent.parameters.clone());
    sub_request.startup_parameters = parent.startup_parameters.clone();
    sub_request.statements = parent.statements.clone();
    sub_request.state = ClientState::Idle;
    sub_request.member.is_clustered = true;
    (sub_request.member.role, sub_request.member.can_use_primary) =
        (fan_out.request.role, fan_out.request.can_use_primary);
    sub_request.member.has_read_your_writes = parent.member.has_read_your_writes;
    sub_request.member.causal_token.clone_from(&parent.member.causal_token);
    sub_request.member.shard = Some(fan_out.request.shards[index]);
    sub_request.kind = ClientKind::Internal(Box::new(SubRequest { parent: id, index }));
    sub_request.connected_at = call.now;
    sub_request.state_since = call.now;
    sub_request.flow.is_backlogged = parent.flow.is_backlogged;
    sub_request.input.buffer(&fan_out.request.messages);
    let sub_request = peers.clients.insert(sub_request);
    let fan_out = peers.clients.get_mut(id).and_then(|parent| parent.fan_out.as_mut());
    fan_out.expect("its fan-out request is active").sub_requests.push(Some(sub_request));
    call.steps.push(Step::Input(sub_request));
    call.steps.push(Step::Client(id));
}

/// Removes sub-requests that have ended, successfully or not, and takes over their causal
/// tokens and the statements of the first.
fn collect_sub_requests(peers: &mut Peers, call: &mut CoreCall<'_>, id: ClientId) {
    let count =
        peers.clients.get(id).and_then(|client| Some(client.fan_out.as_ref()?.sub_requests.len()));
    for index in 0..count.unwrap_or_default() {
        let fan_out = peers.clients.get(id).and_then(|client| client.fan_out.as_ref());
        let Some(sub_request) = fan_out.and_then(|fan_out| fan_out.sub_requests[index]) else {
            continue;
        };
        match peers.clients.get(sub_request) {
            Some(client)
                if client.state == ClientState::Idle && !client.has_unprocessed_input() =>
            {
                let sub_request = leaving::remove(peers, call, sub_request);
                let (statements, floors) = sub_request
                    .map(|sub_request| (sub_request.statements, sub_request.member.causal_token))
                    .unzip();
                let Some(parent) = peers.clients.get_mut(id) else { return };
                let Some(fan_out) = &mut parent.fan_out else { return };
                fan_out.sub_requests[index] = None;
                if let Some(floors) = floors.flatten() {
                    parent.member.causal_token.get_or_insert_default().merge(&floors);
                }
                // All sub-requests prepare the same statements, so those of the first are
                // sufficient.
                if let Some(statements) = statements.filter(|_| index == 0) {
                    parent.statements = statements;
                }
            }
            Some(_) => {}
            None => {
                let Some(parent) = peers.clients.get_mut(id) else { return };
                let Some(fan_out) = &mut parent.fan_out else { return };
                fan_out.sub_requests[index] = None;
                let mut out = Vec::new();
                fan_out.merger.on_disconnect(index, &mut out);
                peers.send_merged(id, &out, call);
            }
        }
    }
}

/// Aborts a fan-out request whose client has received an error: sub-requests without a server
/// are dropped, and running ones are cancelled, except those of a COPY.
fn abort(peers: &mut Peers, pools: &mut Pools, call: &mut CoreCall<'_>, id: ClientId) {
    let Some(fan_out) = peers.clients.get_mut(id).and_then(|it| it.fan_out.as_mut()) else {
        return;
    };
    let mut out = Vec::new();
    for index in fan_out.sub_requests.len()..fan_out.request.shards.len() {
        fan_out.sub_requests.push(None);
        fan_out.merger.on_disconnect(index, &mut out);
    }
    fan_out.cancelled_at = call.now;
    let is_copy = fan_out.copy.is_some();
    let sub_requests: Vec<_> = fan_out.sub_requests.iter().flatten().copied().collect();
    peers.send_merged(id, &out, call);
    for sub_request in sub_requests {
        match peers.clients.get(sub_request).map(|client| client.state) {
            Some(ClientState::Waiting | ClientState::Idle) => {
                leaving::disconnect(peers, pools, call, sub_request);
            }
            Some(ClientState::Linked(_)) if !is_copy => {
                cancel::cancel_request(peers, pools, call, sub_request);
            }
            _ => {}
        }
    }
    call.steps.push(Step::Client(id));
}

/// Cancels the remaining sub-requests of an aborted fan-out request again, except those of a
/// COPY. A server that had not read its query yet has ignored the previous CancelRequest.
pub(crate) fn repeat_cancels(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    id: ClientId,
) {
    let Some(fan_out) = peers.fan_out_mut(id) else { return };
    let is_due = call.now.since(fan_out.cancelled_at) >= CANCEL_INTERVAL;
    if !fan_out.is_aborting || fan_out.copy.is_some() || !is_due {
        return;
    }
    fan_out.cancelled_at = call.now;
    cancel_sub_requests(peers, pools, call, id);
}

fn cancel_sub_requests(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    id: ClientId,
) {
    let fan_out = peers.clients.get(id).and_then(|client| client.fan_out.as_ref());
    let sub_requests: Vec<_> =
        fan_out.iter().flat_map(|it| it.sub_requests.iter().flatten()).copied().collect();
    for sub_request in sub_requests {
        cancel::cancel_request(peers, pools, call, sub_request);
    }
}

/// Cancels a client's fan-out request.
pub(crate) fn cancel_request(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    id: ClientId,
) {
    let Some(fan_out) = peers.fan_out_mut(id) else { return };
    if fan_out.acquire_guard.is_none() {
        let (mut error, mut out) = (Vec::new(), Vec::new());
        write_cancelled_error(&mut error);
        fan_out.merger.refuse(&error, &mut out);
        return peers.send_merged(id, &out, call);
    }
    cancel_sub_requests(peers, pools, call, id);
    call.steps.push(Step::Client(id));
}

impl InternalClient for SubRequest {
    fn sub_request(&self) -> Option<SubRequest> {
        Some(*self)
    }

    fn on_progress(&self) -> Step {
        Step::Client(self.parent)
    }

    fn on_refusal(&self, _: &ClientRefusal) -> Option<Step> {
        None
    }

    fn on_removal(&self, _: &mut ClientStatements) -> Step {
        Step::Client(self.parent)
    }

    fn on_error(&mut self, _: &[u8]) {}

    fn take_error(&mut self) -> Option<Box<MirrorError>> {
        None
    }

    fn is_for_mirror(&self) -> bool {
        false
    }
}
