//! Runs requests on several shards: starts their sub-requests, and merges the replies. See
//! [`crate::fan_out::active`].
//!
//! Work that follows from a sub-request's replies is deferred to the end of the call that delivered
//! them ([`Core::run_deferred`]): during the call, output for other peers may be only partly
//! gathered.

pub(crate) mod active;
mod admission;
mod copy;

use std::time::Duration;

use howdah_route::Merger;

use super::{Core, DeferredWork, cancel::write_cancelled_error};
use crate::{
    CoreIo,
    fan_out::active::{ActiveFanOut, CopyPhase, FanOutCopy, FanOutRequest, SubRequest},
    login::{CancelSecret, ClientLogin},
    messages::frame_cursor::BodyHandling,
    state::{
        client::{ClientConnection, ClientKind, ClientState},
        ids::{ClientId, PeerId},
    },
};

/// Time after which running sub-requests of an aborted request are cancelled again.
const CANCEL_INTERVAL: Duration = Duration::from_secs(1);

impl Core {
    /// Records a client's request to run on several shards. Its sub-requests start at the end of
    /// the current call into the core at the earliest.
    pub(super) fn start_fan_out(
        &mut self,
        id: ClientId,
        request: FanOutRequest,
        io: &mut dyn CoreIo,
    ) {
        let body_bytes_max = self.body_bytes_max;
        let now = self.now;
        let Some(client) = self.clients.get_mut(id) else { return };
        let mut merger =
            Merger::new(request.shards.len(), request.has_byte_collation, body_bytes_max);
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
        self.deferred.push(DeferredWork::Client(id));
        self.update_pause(PeerId::Client(id), io);
    }

    /// Runs all deferred work: fan-out requests and mirror queues advance as far as possible.
    #[inline]
    pub(super) fn run_deferred(&mut self, io: &mut dyn CoreIo) {
        if !self.deferred.is_empty() {
            self.run_all_deferred(io);
        }
    }

    #[cold]
    fn run_all_deferred(&mut self, io: &mut dyn CoreIo) {
        while let Some(unsettled) = self.deferred.pop() {
            match unsettled {
                DeferredWork::Client(id) => {
                    self.advance_fan_out(id, io);
                    self.queue_transaction(id);
                }
                DeferredWork::MirrorQueue(id) => self.advance_mirror_queue(id, io),
            }
        }
    }

    /// Advances a client's fan-out request as far as possible: starts the next sub-request,
    /// continues a COPY, or finishes the request.
    fn advance_fan_out(&mut self, id: ClientId, io: &mut dyn CoreIo) {
        self.collect_sub_requests(id, io);
        let Some(client) = self.clients.get_mut(id) else { return };
        let Some(fan_out) = &mut client.fan_out else { return };
        if fan_out.merger.has_failed() && !fan_out.is_aborting {
            fan_out.is_aborting = true;
            return self.abort_fan_out(id, io);
        }
        if fan_out.acquire_guard.is_none() && !fan_out.is_aborting {
            return self.acquire_connections(id, io);
        }
        let has_begun_all = fan_out.sub_requests.len() == fan_out.request.shards.len();
        if !has_begun_all {
            let last = fan_out.sub_requests.last().copied().flatten();
            // Sub-requests start in shard order, each after the previous one has a server, so two
            // fan-out requests never wait for each other.
            let previous = last.and_then(|sub_request| self.clients.get(sub_request));
            if previous.is_none_or(|sub_request| sub_request.server().is_some()) {
                self.start_sub_request(id, io);
            }
            return;
        }
        if self.advance_copy(id, io) {
            return;
        }
        let Some(client) = self.clients.get_mut(id) else { return };
        let Some(fan_out) = &client.fan_out else { return };
        if fan_out.merger.is_done() && fan_out.sub_requests.iter().all(Option::is_none) {
            if let Some(copying) = &fan_out.copy {
                // Discard the rest of the CopyData that is being received.
                client.input.body_left = copying.data_left;
                client.input.body_handling = BodyHandling::Drop;
            }
            client.fan_out = None;
            client.state = ClientState::Idle;
            client.state_since = self.now;
            let owner = client.owner_pool;
            self.wake_next_fan_out(owner);
            self.update_pause(PeerId::Client(id), io);
            self.process_buffered(id, io);
        }
    }

    /// Starts the next sub-request: creates an internal client and processes the request's messages
    /// for it.
    fn start_sub_request(&mut self, id: ClientId, io: &mut dyn CoreIo) {
        let Some(parent) = self.clients.get_mut(id) else { return };
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
        sub_request.is_clustered = true;
        (sub_request.role, sub_request.can_use_primary) =
            (fan_out.request.role, fan_out.request.can_use_primary);
        sub_request.has_read_your_writes = parent.has_read_your_writes;
        sub_request.causal_token.clone_from(&parent.causal_token);
        sub_request.shard = Some(fan_out.request.shards[index]);
        sub_request.kind = ClientKind::SubRequest(SubRequest { parent: id, index });
        sub_request.connected_at = self.now;
        sub_request.state_since = self.now;
        sub_request.is_backlogged = parent.is_backlogged;
        let request = fan_out.request.messages.clone();
        let sub_request = self.clients.insert(sub_request);
        let fan_out = self.clients.get_mut(id).and_then(|parent| parent.fan_out.as_mut());
        fan_out.expect("its fan-out request is active").sub_requests.push(Some(sub_request));
        self.process_client_bytes(sub_request, &request, io);
        self.deferred.push(DeferredWork::Client(id));
    }

    /// Merges replies for a sub-request with those for the request's other sub-requests, and sends
    /// the result to the client.
    pub(super) fn merge_sub_request_output(
        &mut self,
        sub_request: SubRequest,
        input: &[u8],
        io: &mut dyn CoreIo,
    ) {
        let mut bytes = Vec::new();
        self.to_client.copy_to(input, usize::MAX, &mut bytes);
        self.to_client.clear();
        let Some(parent) = self.clients.get_mut(sub_request.parent).filter(|_| !bytes.is_empty())
        else {
            return;
        };
        let Some(fan_out) = &mut parent.fan_out else { return };
        let mut out = Vec::new();
        fan_out.merger.push(sub_request.index, &bytes, &mut out);
        self.send_merged(sub_request.parent, &out, io);
    }

    /// Sends merged replies to a client, and updates which sub-requests are paused.
    fn send_merged(&mut self, id: ClientId, out: &[u8], io: &mut dyn CoreIo) {
        self.deferred.push(DeferredWork::Client(id));
        if !out.is_empty() {
            self.record_merged_error(id, out);
            self.to_client.push_with(|buf| buf.extend_from_slice(out));
            self.flush_client(id, &[], io);
        }
        self.pause_sub_requests(id, io);
    }

    /// Pauses or resumes reading from the servers of a fan-out request, depending on whether the
    /// client reads its replies, and on how far each server is ahead of the others.
    pub(super) fn pause_sub_requests(&mut self, id: ClientId, io: &mut dyn CoreIo) {
        let Some(parent) = self.clients.get_mut(id) else { return };
        let Some(mut fan_out) = parent.fan_out.take() else { return };
        let is_backlogged = parent.is_backlogged;
        for (index, sub_request) in fan_out.sub_requests.iter().enumerate() {
            let Some(sub_request) =
                sub_request.and_then(|sub_request| self.clients.get_mut(sub_request))
            else {
                continue;
            };
            sub_request.is_backlogged = is_backlogged || fan_out.merger.is_full(index);
            if let Some(server) = sub_request.server() {
                self.update_pause(PeerId::Server(server), io);
            }
        }
        if let Some(parent) = self.clients.get_mut(id) {
            parent.fan_out = Some(fan_out);
        }
    }

    /// Whether any server of a fan-out request has unsent bytes, because its socket did not accept
    /// them.
    pub(super) fn has_backlogged_sub_request(&self, fan_out: &ActiveFanOut) -> bool {
        let servers = fan_out.sub_requests.iter().flatten().filter_map(|sub_request| {
            self.clients.get(*sub_request).and_then(ClientConnection::server)
        });
        servers.filter_map(|id| self.servers.get(id)).any(|server| server.is_backlogged)
    }

    /// Removes sub-requests that have ended, successfully or not, and takes over their causal
    /// tokens and the statements of the first.
    fn collect_sub_requests(&mut self, id: ClientId, io: &mut dyn CoreIo) {
        let count = self
            .clients
            .get(id)
            .and_then(|client| Some(client.fan_out.as_ref()?.sub_requests.len()));
        for index in 0..count.unwrap_or_default() {
            let fan_out = self.clients.get(id).and_then(|client| client.fan_out.as_ref());
            let Some(sub_request) = fan_out.and_then(|fan_out| fan_out.sub_requests[index]) else {
                continue;
            };
            match self.clients.get(sub_request) {
                Some(client) if client.state == ClientState::Idle => {
                    let sub_request = self.remove_client(sub_request);
                    let (statements, floors) = sub_request
                        .map(|sub_request| (sub_request.statements, sub_request.causal_token))
                        .unzip();
                    let Some(parent) = self.clients.get_mut(id) else { return };
                    let Some(fan_out) = &mut parent.fan_out else { return };
                    fan_out.sub_requests[index] = None;
                    if let Some(floors) = floors.flatten() {
                        parent.causal_token.get_or_insert_default().merge(&floors);
                    }
                    // All sub-requests prepare the same statements, so those of the first are
                    // sufficient.
                    if let Some(statements) = statements.filter(|_| index == 0) {
                        parent.statements = statements;
                    }
                }
                Some(_) => {}
                None => {
                    let Some(parent) = self.clients.get_mut(id) else { return };
                    let Some(fan_out) = &mut parent.fan_out else { return };
                    fan_out.sub_requests[index] = None;
                    let mut out = Vec::new();
                    fan_out.merger.on_disconnect(index, &mut out);
                    self.send_merged(id, &out, io);
                }
            }
        }
    }

    /// Aborts a fan-out request whose client has received an error: sub-requests without a server
    /// are dropped, and running ones are cancelled, except those of a COPY.
    fn abort_fan_out(&mut self, id: ClientId, io: &mut dyn CoreIo) {
        let Some(fan_out) = self.clients.get_mut(id).and_then(|it| it.fan_out.as_mut()) else {
            return;
        };
        let mut out = Vec::new();
        for index in fan_out.sub_requests.len()..fan_out.request.shards.len() {
            fan_out.sub_requests.push(None);
            fan_out.merger.on_disconnect(index, &mut out);
        }
        fan_out.cancelled_at = self.now;
        let is_copy = fan_out.copy.is_some();
        let sub_requests: Vec<_> = fan_out.sub_requests.iter().flatten().copied().collect();
        self.send_merged(id, &out, io);
        for sub_request in sub_requests {
            match self.clients.get(sub_request).map(|client| client.state) {
                Some(ClientState::Waiting) => self.handle_client_disconnect(sub_request, io),
                Some(ClientState::Linked(_)) if !is_copy => {
                    self.cancel_client_request(sub_request, io);
                }
                _ => {}
            }
        }
        self.deferred.push(DeferredWork::Client(id));
    }

    /// Cancels the remaining sub-requests of an aborted fan-out request again, except those of a
    /// COPY. A server that had not read its query yet has ignored the previous CancelRequest.
    pub(super) fn repeat_cancels(&mut self, id: ClientId, io: &mut dyn CoreIo) {
        let client = self.clients.get_mut(id);
        let Some(fan_out) = client.and_then(|client| client.fan_out.as_mut()) else { return };
        let is_due = self.now.since(fan_out.cancelled_at) >= CANCEL_INTERVAL;
        if !fan_out.is_aborting || fan_out.copy.is_some() || !is_due {
            return;
        }
        fan_out.cancelled_at = self.now;
        self.cancel_sub_requests(id, io);
    }

    fn cancel_sub_requests(&mut self, id: ClientId, io: &mut dyn CoreIo) {
        let fan_out = self.clients.get(id).and_then(|client| client.fan_out.as_ref());
        let sub_requests: Vec<_> =
            fan_out.iter().flat_map(|it| it.sub_requests.iter().flatten()).copied().collect();
        for sub_request in sub_requests {
            self.cancel_client_request(sub_request, io);
        }
    }

    /// Cancels a client's fan-out request.
    pub(super) fn cancel_fan_out(&mut self, id: ClientId, io: &mut dyn CoreIo) {
        let client = self.clients.get_mut(id);
        let Some(fan_out) = client.and_then(|client| client.fan_out.as_mut()) else { return };
        if fan_out.acquire_guard.is_none() {
            let (mut error, mut out) = (Vec::new(), Vec::new());
            write_cancelled_error(&mut error);
            fan_out.merger.refuse(&error, &mut out);
            return self.send_merged(id, &out, io);
        }
        self.cancel_sub_requests(id, io);
        self.deferred.push(DeferredWork::Client(id));
    }

    /// Ends the sub-requests of a client that has disconnected.
    pub(super) fn drop_sub_requests(&mut self, client: &ClientConnection, io: &mut dyn CoreIo) {
        for sub_request in
            client.fan_out.iter().flat_map(|fan_out| fan_out.sub_requests.iter().flatten())
        {
            self.handle_client_disconnect(*sub_request, io);
        }
        self.deferred.extend(
            client.sub_request().map(|sub_request| DeferredWork::Client(sub_request.parent)),
        );
        if client.fan_out.is_some() {
            self.wake_next_fan_out(client.owner_pool);
        }
    }

    /// Returns the connected client: for a sub-request, the one that sent the request; otherwise
    /// `id` itself.
    pub(super) fn external_client(&self, id: ClientId) -> ClientId {
        self.clients
            .get(id)
            .and_then(ClientConnection::sub_request)
            .map_or(id, |sub_request| sub_request.parent)
    }

    /// Whether a client's fan-out request has failed, so that the client has received an error.
    pub(super) fn has_fan_out_failed(&self, id: ClientId) -> bool {
        let fan_out = self.clients.get(id).and_then(|client| client.fan_out.as_ref());
        fan_out.is_some_and(|fan_out| fan_out.merger.has_failed())
    }

    /// Returns the phase of a client's fan-out COPY, if it runs one.
    fn copy_phase(&self, id: ClientId) -> Option<CopyPhase> {
        let fan_out = self.clients.get(id)?.fan_out.as_ref()?;
        fan_out.copy.as_ref().map(|copying| copying.phase)
    }
}
