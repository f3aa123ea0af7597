//! From server to client: replies are counted off, bytes go on as they are.

use howdah_wire::{Backend, Header};

use super::{
    Core, InjectedFault,
    reply::{Listener, Reply},
};
use crate::{
    Io,
    client::Syncing,
    gather::Gather,
    ids::{Peer, ServerId},
    inlet::{Fate, FrameCursor, header_at, rest},
    owed::ReplyTarget,
    pool::Pool,
    refusal::Refusal,
    server::ServerState,
    spec::Mode,
};

/// Why a walk over a server's bytes ended.
enum End {
    /// Nothing can be done with what is left before more comes.
    Starved,
    /// The client is refused; what follows is not for it.
    Refused(Refusal),
    /// The server cannot be followed.
    Fault(Refusal),
}

impl Core {
    pub(super) fn downstream(&mut self, id: ServerId, bytes: &[u8], io: &mut dyn Io) {
        let Some(server) = self.servers.get(id) else { return };
        if let Some(pool) = &mut self.pools[server.pool.index()] {
            pool.tally.server_bytes += bytes.len() as u64;
        }
        let bytes = match server.inlet.held.is_empty() {
            true => bytes,
            false => self.downstream_held(id, bytes, io),
        };
        if bytes.is_empty() {
            return;
        }
        let consumed = self.run_server(id, bytes, io);
        if consumed < bytes.len()
            && let Some(server) = self.servers.get_mut(id)
        {
            server.inlet.hold(&bytes[consumed..]);
        }
    }

    /// Deals with what was held back of a server's, and gives what is left of `bytes`, which follow it.
    fn downstream_held<'a>(&mut self, id: ServerId, bytes: &'a [u8], io: &mut dyn Io) -> &'a [u8] {
        let mut bytes = bytes;
        while let Some(server) = self.servers.get_mut(id)
            && !server.inlet.held.is_empty()
        {
            let (now, later) =
                bytes.split_at(FrameCursor::wanting(&server.inlet.held).min(bytes.len()));
            if now.is_empty() {
                return &[];
            }
            let mut held = std::mem::take(&mut server.inlet.held);
            held.extend_from_slice(now);
            bytes = later;
            let consumed = self.run_server(id, &held, io);
            if let Some(server) = self.servers.get_mut(id)
                && consumed < held.len()
            {
                held.drain(..consumed);
                server.inlet.held = held;
            }
        }
        bytes
    }

    /// Deals with as much of `input` as can be, and gives how much that was.
    fn run_server(&mut self, id: ServerId, input: &[u8], io: &mut dyn Io) -> usize {
        let twice = self.makes(InjectedFault::DoubleAnswer);
        let Some(server) = self.servers.get_mut(id) else { return input.len() };
        server.unanswered.clear();
        let mut at = 0;
        let linked = match server.state {
            ServerState::Linked(client) => Some(client),
            _ => None,
        };
        let client = linked.and_then(|client| self.clients.get_mut(client));
        let now = self.now;
        let Self { wishes, statements, to_server, pools, tape, .. } = self;
        let tape =
            tape.as_deref_mut().filter(|tape| client.as_ref().is_some_and(|it| tape.has(&it.mark)));
        let Pool { spec, tally, .. } = pools[server.pool.index()].as_mut().expect("it has servers");
        let refuses_blocks = spec.mode == Mode::Statement;
        let listens = spec.mode != Mode::Session && spec.listen_bytes.is_some();
        let mut listener = Listener {
            server,
            client,
            listens,
            refuses_blocks,
            connect_query: spec.connect_query.as_deref(),
            wishes,
            statements,
            to_server,
            tally,
            now,
            tape,
        };
        if twice
            && let Some(entry) = listener.server.owed.front()
            && let Some(reply) = entry.request.reply_here()
        {
            self.to_client.make(|buf| buf.extend_from_slice(&reply));
        }
        let end = walk(&mut listener, &mut self.to_client, self.body_bytes_max, input, &mut at);
        if linked.is_some() && listener.server.owed.is_empty() {
            listener.server.since = self.now; // From now on it waits for the client.
        }
        let listens = listener.client.as_ref().is_some_and(|client| client.listens.is_some());
        match linked {
            Some(client) => {
                self.relay_to_client(client, input, io);
                if listens {
                    self.follow_listens(client, io);
                }
            }
            None => self.to_client.clear(),
        }
        if !self.to_server.is_empty() {
            self.flush_server(id, &[], io);
        }
        match end {
            End::Starved => self.after_replies(id, io),
            End::Refused(refusal) => {
                if let Some(client) = linked {
                    self.refuse(client, &refusal, io);
                }
                return at + self.run_server(id, &input[at..], io);
            }
            End::Fault(refusal) => self.break_up(id, &refusal, io),
        }
        at
    }

    /// What follows from the replies that a server gave.
    fn after_replies(&mut self, id: ServerId, io: &mut dyn Io) {
        let Some(server) = self.servers.get_mut(id) else { return };
        if let ServerState::Linked(client_id) = server.state
            && let Some(client) = self.clients.get_mut(client_id)
        {
            let quiet = server.owed.is_empty() && !server.inlet.is_inside_forwarded();
            let behind = client.syncing == Syncing::Behind && (quiet || server.copying_in);
            if client.syncing == Syncing::Done || behind {
                client.syncing = Syncing::No;
                self.update_pause(Peer::Client(client_id), io);
                return self.replay_held(client_id, io);
            }
            let is_at = |audience| matches!(audience, ReplyTarget::Client | ReplyTarget::Pooler);
            if client.cancel_due && server.owed.front().is_some_and(|front| is_at(front.audience)) {
                client.cancel_due = false;
                self.order_cancel(id, io);
            }
        }
        let Some(server) = self.servers.get_mut(id) else { return };
        if server.is_settled() {
            return self.release_if_settled(id, io);
        }
        match server.state {
            ServerState::Cleaning => self.go_on_cleaning(id, io),
            ServerState::Linked(_) | ServerState::Opening | ServerState::Idle => {}
        }
    }

    /// Closes a server that cannot be followed, and its client.
    pub(super) fn break_up(&mut self, id: ServerId, refusal: &Refusal, io: &mut dyn Io) {
        self.doubt(id, io);
        let Some(server) = self.servers.get_mut(id) else { return };
        let cut_off = server.inlet.is_inside_forwarded();
        let state = std::mem::replace(&mut server.state, ServerState::Cleaning);
        if state == ServerState::Idle {
            let pool = server.pool;
            self.pool(pool).idle.retain(|idle| *idle != id);
        }
        if let ServerState::Linked(client) = state {
            if let Some(client) = self.clients.get_mut(client) {
                client.state = crate::client::ClientState::Idle;
                client.syncing = Syncing::No;
                client.cut_off = cut_off;
            }
            self.refuse(client, refusal, io);
        }
        io.close(Peer::Server(id));
        self.server_left(id, io);
    }
}

fn walk(
    listener: &mut Listener<'_>,
    to_client: &mut Gather,
    body_bytes_max: u32,
    input: &[u8],
    at: &mut usize,
) -> End {
    let inlet = &mut listener.server.inlet;
    if inlet.body_left > 0 {
        let taken = inlet.take(input.len() - *at);
        if inlet.fate == Fate::Forward {
            to_client.input(*at..*at + taken);
        }
        *at += taken;
        if inlet.body_left > 0 {
            return End::Starved;
        }
    }
    loop {
        while let Some(reply) = listener.server.owed.answer_here() {
            listener.overhear_made(&reply);
            to_client.make(|buf| buf.extend_from_slice(&reply));
        }
        let header = match header_at(input, *at) {
            Ok(Some(header)) => header,
            Ok(None) => return End::Starved,
            Err(error) => return End::Fault(Refusal::ServerProtocol(error.to_string())),
        };
        let Some(kind) = Backend::from_tag(header.tag) else {
            let unknown = format!("no message has the tag {}", header.tag);
            return End::Fault(Refusal::ServerProtocol(unknown));
        };
        if let Err(error) = header.within(kind.body_bytes_max().min(body_bytes_max)) {
            return End::Fault(Refusal::ServerProtocol(error.to_string()));
        }
        let start = *at + Header::BYTES;
        let end = start + header.body_bytes as usize;
        let body = match input.get(start..end) {
            Some(body) => body,
            None if listener.needs_body(kind, header.body_bytes) => return End::Starved,
            None => &[],
        };
        let fate = match listener.hear(kind, body) {
            Reply::Forward => {
                if kind == Backend::ReadyForQuery && body == b"I" {
                    listener.tell_news(to_client);
                }
                listener.overhear(kind, body);
                Fate::Forward
            }
            Reply::Swallow => Fate::Drop,
            Reply::Replace(by) => {
                listener.overhear_made(&by);
                to_client.make(|buf| buf.extend_from_slice(&by));
                Fate::Drop
            }
            Reply::Refuse(refusal) => {
                *at = start + body.len();
                return End::Refused(refusal);
            }
            Reply::Break(refusal) => return End::Fault(refusal),
            Reply::Unexpected => {
                let unexpected = format!("{kind} answers nothing it was asked");
                return End::Fault(Refusal::ServerProtocol(unexpected));
            }
        };
        let there = end.min(input.len());
        if fate == Fate::Forward {
            to_client.input(*at..there);
        }
        *at = there;
        listener.server.inlet.fate = fate;
        if there < end {
            listener.server.inlet.body_left = rest(end - there);
            return End::Starved;
        }
    }
}
