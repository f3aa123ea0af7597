//! [`Peers`]: the clients and servers of a worker, and the bytes on their way to them.
//!
//! Sends gathered bytes, and applies backpressure: while a peer does not read, its counterpart is
//! paused.

use crate::{
    Backlog,
    call::{CoreCall, Step},
    capture::RunningCapture,
    clients::Clients,
    fan_out::active::{ActiveFanOut, SubRequest},
    messages::gather_buffer::GatherBuffer,
    state::{
        client::{ClientConnection, ClientKind, ClientState},
        ids::{ClientId, PeerId, ServerId},
        server::{ServerConnection, ServerState},
        slab::Slab,
    },
};

/// The connections of a worker. The buffers are empty between calls into the core.
#[derive(Debug)]
pub(crate) struct Peers {
    pub(crate) clients: Clients,
    pub(crate) servers: Slab<ServerId, ServerConnection>,
    pub(crate) to_client: GatherBuffer,
    pub(crate) to_server: GatherBuffer,
    /// The running capture, which copies what clients send and receive.
    pub(crate) capture: RunningCapture,
    /// Maximum length of a message body, in either direction, in bytes.
    pub(crate) body_bytes_max: u32,
}

impl Peers {
    pub(crate) fn new() -> Self {
        Self {
            clients: Clients::new(),
            servers: Slab::new(),
            to_client: GatherBuffer::default(),
            to_server: GatherBuffer::default(),
            capture: RunningCapture::default(),
            body_bytes_max: u32::MAX,
        }
    }

    /// Returns a client's fan-out request, if it has one.
    pub(crate) fn fan_out_mut(&mut self, id: ClientId) -> Option<&mut ActiveFanOut> {
        self.clients.get_mut(id)?.fan_out.as_deref_mut()
    }

    /// Sends the gathered bytes to a server.
    pub(crate) fn flush_server(&mut self, id: ServerId, input: &[u8], call: &mut CoreCall<'_>) {
        let Some(backlog) = self.to_server.send(input, PeerId::Server(id), call.io) else { return };
        let Some(server) = self.servers.get_mut(id) else { return };
        if backlog == Backlog::Waiting && !server.flow.is_backlogged {
            server.flow.is_backlogged = true;
            if let ServerState::Linked(client) = server.state {
                self.update_pause(PeerId::Client(client), call);
            }
        }
    }

    /// Captures and sends the gathered bytes, which the pooler generated, to a client.
    pub(crate) fn flush_client(&mut self, id: ClientId, input: &[u8], call: &mut CoreCall<'_>) {
        if self.to_client.is_empty() {
            return;
        }
        self.capture.generated(&mut self.clients, id, self.to_client.own_bytes(), call.now);
        self.relay_to_client(id, input, call);
    }

    /// Sends the gathered bytes to a client without capturing them, because they already were.
    /// Replies for a sub-request are merged, and those for a mirror are discarded.
    pub(crate) fn relay_to_client(&mut self, id: ClientId, input: &[u8], call: &mut CoreCall<'_>) {
        if let Some(ClientKind::Internal(internal)) = self.clients.get(id).map(|it| &it.kind) {
            if let Some(sub_request) = internal.sub_request() {
                return self.merge_sub_request_output(sub_request, input, call);
            }
            call.steps.push(internal.on_progress());
            return self.to_client.clear();
        }
        let Some(backlog) = self.to_client.send(input, PeerId::Client(id), call.io) else { return };
        let Some(client) = self.clients.get_mut(id) else { return };
        if backlog == Backlog::Waiting && !client.flow.is_backlogged {
            client.flow.is_backlogged = true;
            let server = client.server();
            self.update_pause(PeerId::Client(id), call);
            self.pause_sub_requests(id, call);
            if let Some(server) = server {
                self.update_pause(PeerId::Server(server), call);
            }
        }
    }

    /// Merges replies for a sub-request with those for the request's other sub-requests, and sends
    /// the result to the client.
    pub(crate) fn merge_sub_request_output(
        &mut self,
        sub_request: SubRequest,
        input: &[u8],
        call: &mut CoreCall<'_>,
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
        self.send_merged(sub_request.parent, &out, call);
    }

    /// Sends merged replies to a client, and updates which sub-requests are paused.
    pub(crate) fn send_merged(&mut self, id: ClientId, out: &[u8], call: &mut CoreCall<'_>) {
        call.steps.push(Step::Client(id));
        if !out.is_empty() {
            if let Some(client) = self.clients.get_mut(id)
                && let ClientKind::Mirrored(mirrored) = &mut client.kind
            {
                mirrored.record_errors(out);
            }
            self.to_client.push_with(|buf| buf.extend_from_slice(out));
            self.flush_client(id, &[], call);
        }
        self.pause_sub_requests(id, call);
    }

    /// Called when a peer's send buffer has become empty: resumes reading from the peer's
    /// counterpart, unless another reason to pause remains.
    pub(crate) fn drained(&mut self, peer: PeerId, call: &mut CoreCall<'_>) {
        match peer {
            PeerId::Client(id) => {
                let Some(client) = self.clients.get_mut(id) else { return };
                client.flow.is_backlogged = false;
                let server = client.server();
                self.update_pause(peer, call);
                self.pause_sub_requests(id, call);
                if let Some(server) = server {
                    self.update_pause(PeerId::Server(server), call);
                }
            }
            PeerId::Server(id) => {
                let Some(server) = self.servers.get_mut(id) else { return };
                server.flow.is_backlogged = false;
                if let ServerState::Linked(client) = server.state {
                    self.update_pause(PeerId::Client(client), call);
                }
            }
        }
    }

    /// Pauses or resumes reading from a peer. A client is paused while its input must be buffered
    /// (during a fan-out request, only once 64 KiB are buffered), while it does not read its
    /// replies, and while its server, or one of a fan-out request, does not accept more bytes. A
    /// server is paused while its client does not accept more bytes or, for a sub-request, while
    /// its replies must wait for other shards.
    pub(crate) fn update_pause(&mut self, peer: PeerId, call: &mut CoreCall<'_>) {
        let (paused, pause) = match peer {
            PeerId::Client(id) => {
                let Some(client) = self.clients.get(id) else { return };
                // An internal client has no socket: the client of its request is paused instead.
                if let ClientKind::Internal(internal) = &client.kind {
                    let parent = internal.sub_request().map(|sub_request| sub_request.parent);
                    return parent.into_iter().for_each(|parent| {
                        self.update_pause(PeerId::Client(parent), call);
                    });
                }
                let server = client.server().and_then(|server| self.servers.get(server));
                let waits = match &client.fan_out {
                    Some(fan_out) if self.has_backlogged_sub_request(fan_out) => true,
                    // Read ahead from the client up to a limit, so that its disconnect is noticed.
                    Some(fan_out) if !fan_out.accepts_copy_data() => {
                        client.input.buffered.len() >= READ_AHEAD_BYTES_MAX
                    }
                    _ => client.must_buffer_input(),
                };
                let pause = waits
                    || client.flow.is_backlogged
                    || server.is_some_and(|server| server.flow.is_backlogged);
                if client.flow.is_paused == pause {
                    return;
                }
                let Some(client) = self.clients.get_mut(id) else { return };
                (&mut client.flow.is_paused, pause)
            }
            PeerId::Server(id) => {
                let Some(server) = self.servers.get_mut(id) else { return };
                let pause = match server.state {
                    ServerState::Linked(client) => {
                        self.clients.get(client).is_some_and(|client| client.flow.is_backlogged)
                    }
                    _ => false,
                };
                (&mut server.flow.is_paused, pause)
            }
        };
        if *paused != pause {
            *paused = pause;
            if pause { call.io.pause(peer) } else { call.io.resume(peer) }
        }
    }

    /// Pauses or resumes reading from the servers of a fan-out request, depending on whether the
    /// client reads its replies, and on how far each server is ahead of the others.
    pub(crate) fn pause_sub_requests(&mut self, id: ClientId, call: &mut CoreCall<'_>) {
        let Some(parent) = self.clients.get_mut(id) else { return };
        let Some(mut fan_out) = parent.fan_out.take() else { return };
        let is_backlogged = parent.flow.is_backlogged;
        for (index, sub_request) in fan_out.sub_requests.iter().enumerate() {
            let Some(sub_request) =
                sub_request.and_then(|sub_request| self.clients.get_mut(sub_request))
            else {
                continue;
            };
            sub_request.flow.is_backlogged = is_backlogged || fan_out.merger.is_full(index);
            if let Some(server) = sub_request.server() {
                self.update_pause(PeerId::Server(server), call);
            }
        }
        if let Some(parent) = self.clients.get_mut(id) {
            parent.fan_out = Some(fan_out);
        }
    }

    /// Whether any server of a fan-out request has unsent bytes, because its socket did not accept
    /// them.
    pub(crate) fn has_backlogged_sub_request(&self, fan_out: &ActiveFanOut) -> bool {
        let servers = fan_out.sub_requests.iter().flatten().filter_map(|sub_request| {
            self.clients.get(*sub_request).and_then(ClientConnection::server)
        });
        servers.filter_map(|id| self.servers.get(id)).any(|server| server.flow.is_backlogged)
    }

    /// Sends a CancelRequest for a server connection, if it has outstanding requests and the server
    /// sent a cancel key.
    pub(crate) fn request_cancel(&mut self, id: ServerId, call: &mut CoreCall<'_>) {
        let Some(server) = self.servers.get_mut(id) else { return };
        if server.outstanding.is_empty() {
            return;
        }
        if let Some(key) = &server.cancel_key {
            server.cancels_in_flight += 1;
            call.io.send_cancel(id, server.pool, key);
        }
    }

    /// Whether a client can be disconnected without losing work: it has no request and is outside a
    /// transaction, with or without a server, or its login is not finished.
    pub(crate) fn can_disconnect(&self, client: &ClientConnection) -> bool {
        match client.state {
            ClientState::Welcome => true,
            ClientState::Idle => !client.has_unprocessed_input(),
            ClientState::Waiting | ClientState::FanOut => false,
            ClientState::Linked(server) => {
                let is_settled =
                    self.servers.get(server).is_some_and(ServerConnection::is_quiescent);
                is_settled && !client.has_unprocessed_input()
            }
        }
    }
}

/// Number of buffered bytes from which a client is paused during a fan-out request.
const READ_AHEAD_BYTES_MAX: usize = 64 << 10;
