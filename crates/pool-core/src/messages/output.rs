//! Sends gathered bytes, and applies backpressure: while a peer does not read, its counterpart is
//! paused.

use crate::{
    Backlog, Core, CoreIo,
    state::{
        client::ClientKind,
        ids::{ClientId, PeerId, ServerId},
        server::ServerState,
    },
};

impl Core {
    /// Sends the gathered bytes to a server.
    pub(crate) fn flush_server(&mut self, id: ServerId, input: &[u8], io: &mut dyn CoreIo) {
        let Some(backlog) = self.to_server.send(input, PeerId::Server(id), io) else { return };
        let Some(server) = self.servers.get_mut(id) else { return };
        if backlog == Backlog::Waiting && !server.is_backlogged {
            server.is_backlogged = true;
            if let ServerState::Linked(client) = server.state {
                self.update_pause(PeerId::Client(client), io);
            }
        }
    }

    /// Captures and sends the gathered bytes, which the pooler generated, to a client.
    pub(crate) fn flush_client(&mut self, id: ClientId, input: &[u8], io: &mut dyn CoreIo) {
        if self.to_client.is_empty() {
            return;
        }
        self.capture_generated(id);
        self.relay_to_client(id, input, io);
    }

    /// Sends the gathered bytes to a client without capturing them, because they already were.
    /// Replies for a sub-request are merged, and those for a mirror are discarded.
    pub(crate) fn relay_to_client(&mut self, id: ClientId, input: &[u8], io: &mut dyn CoreIo) {
        match self.clients.get(id).map(|client| &client.kind) {
            Some(ClientKind::SubRequest(sub_request)) => {
                let sub_request = *sub_request;
                return self.merge_sub_request_output(sub_request, input, io);
            }
            Some(ClientKind::MirrorClient(mirror_client)) => {
                let queue = mirror_client.queue;
                return self.mirror_client_received(queue);
            }
            Some(ClientKind::Plain | ClientKind::Mirrored(_)) | None => {}
        }
        let Some(backlog) = self.to_client.send(input, PeerId::Client(id), io) else { return };
        let Some(client) = self.clients.get_mut(id) else { return };
        if backlog == Backlog::Waiting && !client.is_backlogged {
            client.is_backlogged = true;
            let server = client.server();
            self.update_pause(PeerId::Client(id), io);
            self.pause_sub_requests(id, io);
            if let Some(server) = server {
                self.update_pause(PeerId::Server(server), io);
            }
        }
    }

    /// Called when a peer's send buffer has become empty: sends a client's pending notifications,
    /// and resumes reading from the peer's counterpart, unless another reason to pause remains.
    pub(crate) fn handle_drained(&mut self, peer: PeerId, io: &mut dyn CoreIo) {
        match peer {
            PeerId::Client(id) => {
                let Some(client) = self.clients.get_mut(id) else { return };
                client.is_backlogged = false;
                let server = client.server();
                self.send_notifications(id, io);
                self.update_pause(peer, io);
                self.pause_sub_requests(id, io);
                if let Some(server) = server {
                    self.update_pause(PeerId::Server(server), io);
                }
            }
            PeerId::Server(id) => {
                let Some(server) = self.servers.get_mut(id) else { return };
                server.is_backlogged = false;
                if let ServerState::Linked(client) = server.state {
                    self.update_pause(PeerId::Client(client), io);
                }
            }
        }
    }

    /// Pauses or resumes reading from a peer. A client is paused while its input must be buffered
    /// (during a fan-out request, only once 64 KiB are buffered), while it does not read its
    /// replies, and while its server, or one of a fan-out request, does not accept more bytes. A
    /// server is paused while its client does not accept more bytes or, for a sub-request, while
    /// its replies must wait for other shards.
    pub(crate) fn update_pause(&mut self, peer: PeerId, io: &mut dyn CoreIo) {
        let (paused, pause) = match peer {
            PeerId::Client(id) => {
                let Some(client) = self.clients.get(id) else { return };
                match client.kind {
                    ClientKind::SubRequest(sub_request) => {
                        return self.update_pause(PeerId::Client(sub_request.parent), io);
                    }
                    // A mirror client has no socket; all its input was passed in at once.
                    ClientKind::MirrorClient(_) => return,
                    ClientKind::Plain | ClientKind::Mirrored(_) => {}
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
                    || client.is_backlogged
                    || server.is_some_and(|server| server.is_backlogged);
                if client.is_paused == pause {
                    return;
                }
                let Some(client) = self.clients.get_mut(id) else { return };
                (&mut client.is_paused, pause)
            }
            PeerId::Server(id) => {
                let Some(server) = self.servers.get_mut(id) else { return };
                let pause = match server.state {
                    ServerState::Linked(client) => {
                        self.clients.get(client).is_some_and(|client| client.is_backlogged)
                    }
                    _ => false,
                };
                (&mut server.is_paused, pause)
            }
        };
        if *paused != pause {
            *paused = pause;
            if pause { io.pause(peer) } else { io.resume(peer) }
        }
    }
}

/// Number of buffered bytes from which a client is paused during a fan-out request.
const READ_AHEAD_BYTES_MAX: usize = 64 << 10;
