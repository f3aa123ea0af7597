//! The path from server to client: matches each reply with its outstanding request, and forwards
//! the bytes unchanged where possible.

use howdah_wire::{Backend, Header};

use crate::{
    call::CoreCall,
    clients::leaving,
    listen::notifications,
    messages::{
        MessagePath,
        frame_cursor::{BodyHandling, FrameCursor, body_length, header_at},
        gather_buffer::GatherBuffer,
        outstanding::ReplyTarget,
        reply::{ReplyAction, ReplyHandler},
    },
    peers::Peers,
    refusal::ClientRefusal,
    servers::{cleaning, closing, release},
    spec::PoolingMode,
    state::{
        client::InputHold,
        ids::{PeerId, ServerId},
        pool::PoolState,
        server::ServerState,
    },
};

/// The reason why processing a server's bytes stopped.
enum ServerStop {
    /// The rest of the input, if any, is an incomplete message.
    NeedsMoreInput,
    /// The client must be disconnected with this error; the rest of the input is not for it.
    ClientRefused(ClientRefusal),
    /// Client and server must be disconnected, for example because the server violated the
    /// protocol.
    Fault(ClientRefusal),
}

impl MessagePath<'_> {
    /// Processes bytes that a server sent, after any bytes buffered earlier.
    pub(crate) fn server_bytes(&mut self, id: ServerId, bytes: &[u8], call: &mut CoreCall<'_>) {
        let Some(server) = self.peers.servers.get(id) else { return };
        if let Some(pool) = self.pools.get_mut(server.pool) {
            pool.stats.server_bytes += bytes.len() as u64;
        }
        let bytes = if server.input.buffered.is_empty() {
            bytes
        } else {
            self.process_buffered_replies(id, bytes, call)
        };
        if bytes.is_empty() {
            return;
        }
        let consumed = self.process_replies(id, bytes, call);
        if consumed < bytes.len()
            && let Some(server) = self.peers.servers.get_mut(id)
        {
            server.input.buffer(&bytes[consumed..]);
        }
    }

    /// Processes a server's buffered bytes, which it completes with the start of `bytes` as needed.
    /// Returns the rest of `bytes`.
    fn process_buffered_replies<'a>(
        &mut self,
        id: ServerId,
        bytes: &'a [u8],
        call: &mut CoreCall<'_>,
    ) -> &'a [u8] {
        let mut bytes = bytes;
        while let Some(server) = self.peers.servers.get_mut(id)
            && !server.input.buffered.is_empty()
        {
            let (now, later) = bytes
                .split_at(FrameCursor::bytes_needed_after(&server.input.buffered).min(bytes.len()));
            if now.is_empty() {
                return &[];
            }
            let mut held = std::mem::take(&mut server.input.buffered);
            held.extend_from_slice(now);
            bytes = later;
            let consumed = self.process_replies(id, &held, call);
            if let Some(server) = self.peers.servers.get_mut(id)
                && consumed < held.len()
            {
                held.drain(..consumed);
                server.input.buffered = held;
            }
        }
        bytes
    }

    /// Processes as many bytes of `input` as possible, and returns their number.
    fn process_replies(&mut self, id: ServerId, input: &[u8], call: &mut CoreCall<'_>) -> usize {
        let Peers { clients, servers, to_client, to_server, capture, body_bytes_max } =
            &mut *self.peers;
        let Some(server) = servers.get_mut(id) else { return input.len() };
        // Once the first byte of a reply has arrived, the request cannot be rerouted.
        server.batch.unanswered_request.clear();
        let mut at = 0;
        let linked = match server.state {
            ServerState::Linked(client) => Some(client),
            _ => None,
        };
        let client = linked.and_then(|client| clients.get_mut(client));
        let now = call.now;
        let capture = capture.of_client(client.as_deref());
        let PoolState { spec, stats, stable_functions, .. } = self.pools.pool(server.pool);
        let refuses_blocks = spec.mode == PoolingMode::Statement;
        let listens = spec.mode != PoolingMode::Session && spec.listen_bytes.is_some();
        let mut handler = ReplyHandler {
            server,
            client,
            multiplexes_listen: listens,
            refuses_blocks,
            keeps_server: spec.mode == PoolingMode::Session,
            connect_query: spec.connect_query.as_deref(),
            parameter_sets: self.parameter_sets,
            statements: self.statements,
            to_server,
            stats,
            stable_functions,
            now,
            capture,
        };
        let end = read_replies(&mut handler, to_client, *body_bytes_max, input, &mut at);
        if linked.is_some() && handler.server.outstanding.is_empty() {
            handler.server.state_since = call.now; // The server now waits for the client.
        }
        let listens = handler.client.as_ref().is_some_and(|client| client.channels.is_some());
        match linked {
            Some(client) => {
                self.peers.relay_to_client(client, input, call);
                if listens {
                    notifications::update_listens(&mut self.peers.clients, call, client);
                }
            }
            None => self.peers.to_client.clear(),
        }
        if !self.peers.to_server.is_empty() {
            self.peers.flush_server(id, &[], call);
        }
        match end {
            ServerStop::NeedsMoreInput => self.after_replies(id, call),
            ServerStop::ClientRefused(refusal) => {
                if let Some(client) = linked {
                    leaving::refuse(self.peers, self.pools, call, client, &refusal);
                }
                // The server is now being cleaned: the rest of the input is not for a client.
                return at + self.process_replies(id, &input[at..], call);
            }
            ServerStop::Fault(refusal) => closing::abort(self.peers, self.pools, call, id, refusal),
        }
        at
    }

    /// Called after a server's replies were processed: processes client input that waited for them,
    /// sends a pending CancelRequest, and releases the server or takes the next step of cleaning
    /// it.
    fn after_replies(&mut self, id: ServerId, call: &mut CoreCall<'_>) {
        let Some(server) = self.peers.servers.get_mut(id) else { return };
        if let ServerState::Linked(client_id) = server.state
            && let Some(client) = self.peers.clients.get_mut(client_id)
        {
            let quiet = server.outstanding.is_empty() && !server.input.is_inside_forwarded_body();
            let is_answered = client.input_hold == InputHold::AwaitingReplies
                && (quiet || server.batch.is_copying_in);
            // Process held input before a release: it may need the server again.
            if client.input_hold == InputHold::ParametersApplied || is_answered {
                client.input_hold = InputHold::None;
                self.peers.update_pause(PeerId::Client(client_id), call);
                return self.process_buffered(client_id, call);
            }
            let is_at = |target| matches!(target, ReplyTarget::Client | ReplyTarget::Pooler);
            if client.is_cancel_pending
                && server.outstanding.front().is_some_and(|front| is_at(front.target))
            {
                client.is_cancel_pending = false;
                self.peers.request_cancel(id, call);
            }
        }
        let Some(server) = self.peers.servers.get_mut(id) else { return };
        if server.is_quiescent() {
            return release::release_if_quiescent(self.peers, self.pools, call, id);
        }
        match server.state {
            ServerState::Cleaning => cleaning::resume(self.peers, self.pools, call, id),
            ServerState::Linked(_) | ServerState::Opening | ServerState::Idle => {}
        }
    }
}

fn read_replies(
    handler: &mut ReplyHandler<'_>,
    to_client: &mut GatherBuffer,
    body_bytes_max: u32,
    input: &[u8],
    at: &mut usize,
) -> ServerStop {
    let inlet = &mut handler.server.input;
    if inlet.body_left > 0 {
        let taken = inlet.take_body(input.len() - *at);
        if inlet.body_handling == BodyHandling::Forward {
            to_client.push_input(*at..*at + taken);
        }
        *at += taken;
        if inlet.body_left > 0 {
            return ServerStop::NeedsMoreInput;
        }
    }
    loop {
        while let Some(reply) = handler.server.outstanding.pop_local_reply() {
            handler.capture_generated_reply(&reply);
            to_client.push_with(|buf| buf.extend_from_slice(&reply));
        }
        let header = match header_at(input, *at) {
            Ok(Some(header)) => header,
            Ok(None) => return ServerStop::NeedsMoreInput,
            Err(error) => {
                return ServerStop::Fault(ClientRefusal::ServerProtocol(error.to_string()));
            }
        };
        let Some(kind) = Backend::from_tag(header.tag) else {
            let unknown = format!("no message has the tag {}", header.tag);
            return ServerStop::Fault(ClientRefusal::ServerProtocol(unknown));
        };
        if let Err(error) = header.limited_to(kind.body_bytes_max().min(body_bytes_max)) {
            return ServerStop::Fault(ClientRefusal::ServerProtocol(error.to_string()));
        }
        let start = *at + Header::BYTES;
        let end = start + header.body_bytes as usize;
        let body = match input.get(start..end) {
            Some(body) => body,
            None if handler.needs_body(kind, header.body_bytes) => {
                return ServerStop::NeedsMoreInput;
            }
            None => &[],
        };
        let fate = match handler.handle(kind, body) {
            ReplyAction::Forward => {
                if kind == Backend::ReadyForQuery && body == b"I" {
                    handler.write_pending_notifications(to_client);
                }
                handler.capture_reply(kind, body);
                BodyHandling::Forward
            }
            ReplyAction::Swallow => BodyHandling::Drop,
            ReplyAction::Replace(by) => {
                handler.capture_generated_reply(&by);
                to_client.push_with(|buf| buf.extend_from_slice(&by));
                BodyHandling::Drop
            }
            ReplyAction::Refuse(refusal) => {
                *at = start + body.len();
                return ServerStop::ClientRefused(refusal);
            }
            ReplyAction::Disconnect(refusal) => return ServerStop::Fault(refusal),
            ReplyAction::ProtocolViolation => {
                let unexpected = format!("{kind} is malformed, or answers no outstanding request");
                return ServerStop::Fault(ClientRefusal::ServerProtocol(unexpected));
            }
        };
        let there = end.min(input.len());
        if fate == BodyHandling::Forward {
            to_client.push_input(*at..there);
        }
        *at = there;
        handler.server.input.body_handling = fate;
        if there < end {
            handler.server.input.body_left = body_length(end - there);
            return ServerStop::NeedsMoreInput;
        }
    }
}
