//! Asking another server for what one does not answer.
//!
//! A server that hangs keeps its connections and says nothing. Whatever runs there has to wait until the server
//! is given up, for it may have been done; but not what is sure to only read. So the bytes of a small request
//! are kept, as the client sent them and in however many pieces, until the first byte of an answer is there. When checks find that the
//! server does not answer, such a request is taken back, as if it had never been looked at, and goes the way of
//! any request that has just come: to another member that would do. If there is none it stays where it is.
//!
//! What is taken back is one query string or one batch up to its Sync, outside of a transaction, of which
//! nothing was answered, behind which its client has sent nothing, and whose texts all only read by PostgreSQL's
//! grammar. A request that waits for its server to accept settings, or to say which are in force, has not been sent
//! at all, and is taken back whatever it is. Everything else is left to the end of the connection, and its client is told.

use howdah_route::{PinScope, Session};
use howdah_wire::{Frame, Frontend, backend::TransactionStatus};

use super::{Core, InjectedFault, aim::request};
use crate::{
    Io,
    client::{Client, ClientState, Syncing},
    ids::{ClientId, Peer, PoolId, ServerId},
    owed::{RollbackAction, UnnamedBefore},
    server::{Server, ServerState},
    spec::Mode,
    statements::sql_of,
};

/// Requests with more bytes are not kept.
const KEPT_BYTES_MAX: usize = 16 << 10;

impl Core {
    /// Whether what a client sends next begins a request that could be asked elsewhere.
    #[inline]
    pub(super) fn may_ask_elsewhere(&self, id: ClientId) -> bool {
        self.clients.get(id).is_some_and(|client| {
            client.roams
                && match client.state {
                    ClientState::Linked(server) => {
                        let is_fresh = |it: &Server| it.is_settled() || it.owed.is_settings_only();
                        self.servers.get(server).is_some_and(is_fresh)
                    }
                    _ => true,
                }
        })
    }

    /// Whether the beginning of a request is kept, so that what the client sends next may belong to it.
    #[inline]
    pub(super) fn has_kept_request(&self, id: ClientId) -> bool {
        let client = self.clients.get(id).filter(|client| client.roams);
        let server = client.and_then(Client::server).and_then(|id| self.servers.get(id));
        server.is_some_and(|server| !server.unanswered.is_empty())
    }

    /// A client's server has been sent these bytes of a request, which are kept with those before; or something
    /// that cannot be asked elsewhere, and nothing is kept.
    pub(super) fn keep_request(&mut self, id: ClientId, bytes: Option<&[u8]>) {
        let Some(client) = self.clients.get(id).filter(|client| client.roams) else { return };
        let Some(server) = client.server().and_then(|id| self.servers.get_mut(id)) else { return };
        match bytes {
            Some(bytes) if server.unanswered.len() + bytes.len() <= KEPT_BYTES_MAX => {
                server.unanswered.extend_from_slice(bytes);
            }
            _ => server.unanswered.clear(),
        }
    }

    /// A client has sent the rest of a request: if its server was found not to answer meanwhile, that goes to
    /// another.
    #[cold]
    pub(super) fn ask_elsewhere_if_silent(&mut self, id: ClientId, io: &mut dyn Io) {
        let Some(client) = self.clients.get(id) else { return };
        let pool = self.pools[client.pool.index()].as_ref();
        let member = pool.and_then(|pool| pool.spec.member.as_ref());
        if let Some(member) = member.filter(|member| member.state.is_silent()) {
            self.ask_elsewhere(member.home, io);
        }
    }

    /// Takes back what can be from members of a cluster that do not answer, and sends it to others.
    pub(super) fn ask_elsewhere(&mut self, home: PoolId, io: &mut dyn Io) {
        if let Some(balance) = self.pools[home.index()].as_mut().and_then(|it| it.balance.as_mut())
        {
            balance.refresh();
        }
        for pool in self.family(home) {
            let spec = self.pools[pool.index()].as_ref().map(|pool| &pool.spec);
            let Some(spec) = spec.filter(|spec| spec.mode != Mode::Session) else { continue };
            if !spec.member.as_ref().is_some_and(|member| member.state.is_silent()) {
                continue;
            }
            for index in 0..self.servers.slots() {
                let Some((id, server)) = self.servers.at(index) else { continue };
                if let ServerState::Linked(client) = server.state
                    && server.pool == pool
                    && self.is_readily_asked_elsewhere(client, id)
                {
                    self.take_back_request(client, id, io);
                }
            }
        }
    }

    fn is_readily_asked_elsewhere(&mut self, id: ClientId, server_id: ServerId) -> bool {
        let (Some(client), Some(server)) = (self.clients.get(id), self.servers.get(server_id))
        else {
            return false;
        };
        let is_alone = !server.unanswered.is_empty()
            && server.owed.is_one_request()
            && !server.copying_in
            && server.status == TransactionStatus::Idle
            && server.woven.is_none()
            && server.listening.is_none();
        let is_at_rest = client.is_somebody()
            && client.inlet.at_boundary()
            && !client.cut_off
            && !server.batch_open
            && !server.inlet.is_inside_forwarded();
        if !is_at_rest || !self.has_other_member(client, server.pool) {
            return false;
        }
        // The server is to accept settings first, or to say which are in force, and has seen nothing of the
        // request, whatever that is.
        let is_unsent = matches!(client.syncing, Syncing::Waiting | Syncing::Behind)
            && server.owed.is_preparation_only()
            && server.status == TransactionStatus::Idle
            && server.woven.is_none()
            && server.listening.is_none();
        let is_whole = client.syncing == Syncing::No && client.inlet.held.is_empty();
        is_unsent
            || is_alone
                && is_whole
                && (self.only_reads(id, server_id) || self.makes(InjectedFault::WritesElsewhere))
    }

    /// Whether another member than that of a pool would do for a client.
    fn has_other_member(&self, client: &Client, pool: PoolId) -> bool {
        let home = self.pools[client.home.index()].as_ref();
        let balance = home.and_then(|home| home.balance.as_ref());
        balance.is_some_and(|balance| balance.has_other(pool, &request(client)))
    }

    /// Whether every text of the request that is kept for a server is sure to only read.
    fn only_reads(&mut self, id: ClientId, server: ServerId) -> bool {
        let (Some(client), Some(server)) = (self.clients.get(id), self.servers.get(server)) else {
            return false;
        };
        let Some((slot, _)) = self.routers.of(client.home) else { return false };
        let unknown = Session::new(PinScope::Transaction, 0);
        let session = client.routing.as_ref().map_or(&unknown, |routing| &routing.session);
        let mut reads = |sql: &[u8]| session.only_reads(&mut slot.router, sql);
        // A statement that the batch itself prepares is looked at where it does, before it is bound.
        let mut prepared: Vec<&[u8]> = Vec::new();
        let mut rest = &server.unanswered[..];
        while let Ok(Some((frame, behind))) = Frame::split(rest, u32::MAX) {
            rest = behind;
            let body = frame.body;
            let is_read = match Frontend::from_tag(frame.tag) {
                Some(Frontend::Query) => reads(body.strip_suffix(b"\0").unwrap_or(body)),
                Some(Frontend::Parse) => {
                    let Some(end) = memchr::memchr(0, body) else { return false };
                    prepared.push(&body[..end]);
                    reads(sql_of(&body[end + 1..]))
                }
                Some(Frontend::Bind) => {
                    let Some(name) = body.split(|byte| *byte == 0).nth(1) else { return false };
                    let known = match name {
                        b"" => Some(&client.statements.unnamed[..]),
                        name => client.statements.named.get(name).map(|it| &*it.text),
                    };
                    prepared.contains(&name) || known.is_some_and(|text| reads(sql_of(text)))
                }
                Some(Frontend::Describe | Frontend::Execute | Frontend::Close | Frontend::Sync) => {
                    true
                }
                _ => false,
            };
            if !is_read {
                return false;
            }
        }
        rest.is_empty()
    }

    /// Has a client's request be as if it had just come, and gives its server up.
    fn take_back_request(&mut self, id: ClientId, server_id: ServerId, io: &mut dyn Io) {
        self.order_cancel(server_id, io);
        let (Some(client), Some(server)) =
            (self.clients.get_mut(id), self.servers.get_mut(server_id))
        else {
            return;
        };
        client.inlet.hold(&server.unanswered);
        client.syncing = Syncing::No;
        server.unanswered.clear();
        for undo in server.owed.give_up() {
            match undo {
                RollbackAction::Named(name) | RollbackAction::NamedAndHeld(name, _) => {
                    client.statements.named.remove(&name);
                }
                RollbackAction::Closed(name, statement) => {
                    client.statements.named.insert(name, statement);
                }
                RollbackAction::Unnamed(UnnamedBefore::Text(text)) => {
                    client.statements.unnamed = text;
                    client.statements.unnamed_is_plain = false;
                }
                RollbackAction::Unnamed(UnnamedBefore::Any)
                | RollbackAction::Held(_)
                | RollbackAction::Evicted(_) => {}
            }
        }
        // What it may still say is for nobody. It is closed then, or when its time for cleaning is over.
        (server.state, server.since) = (ServerState::Cleaning, self.now);
        server.epoch = server.epoch.wrapping_sub(1); // Outdated.
        (client.state, client.since) = (ClientState::Idle, self.now);
        if let Some(routing) = &mut client.routing {
            routing.released();
        }
        self.reads_moved += 1;
        self.update_pause(Peer::Server(server_id), io);
        self.update_pause(Peer::Client(id), io);
        self.replay_held(id, io);
    }
}
