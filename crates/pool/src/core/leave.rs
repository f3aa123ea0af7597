//! Ends of connections, and pauses of them.

use howdah_wire::{
    backend::{Severity, TransactionStatus},
    frontend::{
        self,
        encode::{bind, execute, parse, sync},
    },
};

use super::{Core, InjectedFault, settle};
use crate::{
    Backlog, Io,
    client::{Client, ClientState, Part, Syncing},
    dirt::{SessionStateFlags, SetKind},
    gather::Gather,
    ids::{ClientId, Peer, ServerId},
    owed::{ReplyTarget, Request},
    pool::Pool,
    refusal::Refusal,
    server::{Server, ServerState},
    spec::Mode,
};

impl Core {
    /// A client is gone: what it leaves behind on its server is ended.
    pub(super) fn client_left(&mut self, id: ClientId, io: &mut dyn Io) {
        let Some(client) = self.remove_client(id) else { return };
        if client.listens.is_some() {
            io.unlisten(id, client.home, None);
        }
        self.end_legs(&client, io);
        if let Some(id) = client.server() {
            let runs = self.servers.get(id).is_some_and(|server| server.owed.is_for_client());
            if runs && client.inlet.at_boundary() {
                self.order_cancel(id, io); // Nobody waits for the answer.
            }
            self.clean_up(id, client.inlet.padding(), io);
        }
    }

    /// A client says goodbye. What it asked for before that is done, as a server would do it.
    pub(super) fn say_goodbye(&mut self, id: ClientId, io: &mut dyn Io) {
        let Some(client) = self.remove_client(id) else { return };
        if client.listens.is_some() {
            io.unlisten(id, client.home, None);
        }
        io.close(Peer::Client(id));
        self.end_legs(&client, io);
        if let Some(server) = client.server() {
            self.clean_up(server, client.inlet.padding(), io);
        }
    }

    /// Ends what a client left behind on its server: waits for what runs, rolls back what is open. If
    /// the client stopped in the middle of a message, that is made whole with `padding`, so that the
    /// server refuses it; without one, only closing helps.
    fn clean_up(&mut self, id: ServerId, padding: Option<usize>, io: &mut dyn Io) {
        let Some(server) = self.servers.get_mut(id) else { return };
        server.state = ServerState::Cleaning;
        server.since = self.now;
        let spec = &self.pools[server.pool.index()].as_ref().expect("it has servers").spec;
        let is_session = spec.mode == Mode::Session;
        match &spec.reset {
            Some(_) if is_session => {
                (server.reset_due, server.dirt) = (true, SessionStateFlags::NONE);
            }
            Some(reset) => server.reset_due = reset.always,
            None if is_session => server.dirt = SessionStateFlags::UNKNOWN,
            None => {}
        }
        let Some(padding) = padding.filter(|_| !spec.servers_once) else {
            return self.close_server(id, io);
        };
        self.to_server.make(|buf| buf.resize(buf.len() + padding, PADDING));
        self.flush_server(id, &[], io);
        self.update_pause(Peer::Server(id), io);
        self.go_on_cleaning(id, io);
    }

    /// The next step of cleaning: end a COPY, then the batch, roll back, reset.
    pub(super) fn go_on_cleaning(&mut self, id: ServerId, io: &mut dyn Io) {
        let careless = self.makes(InjectedFault::DirtyReuse);
        let Some(server) = self.servers.get_mut(id) else { return };
        if server.state != ServerState::Cleaning {
            return;
        }
        if server.copying_in {
            server.copying_in = false;
            server.owed.push_for(ReplyTarget::Cleaning, Request::CopyEnd);
            self.to_server.make(|buf| {
                frontend::encode::copy_fail(buf, b"the client is gone").expect("no zero byte");
            });
            self.flush_server(id, &[], io);
            return self.go_on_cleaning(id, io);
        }
        if server.batch_open || server.skipping {
            end_batch(server, &mut self.to_server);
            return self.flush_server(id, &[], io);
        }
        if !server.owed.is_empty() {
            return;
        }
        let pool = self.pools[server.pool.index()].as_ref();
        let (step, resets) = if server.status != TransactionStatus::Idle {
            (b"ROLLBACK".to_vec(), false)
        } else if std::mem::take(&mut server.reset_due)
            && let Some(reset) = pool.and_then(reset_query)
        {
            (reset, true)
        } else if server.dirt.is_none() || careless {
            return self.put_back(id, io);
        } else {
            (settle::begin_reset(server), true)
        };
        let connect_query = pool.and_then(|pool| pool.spec.connect_query.as_ref());
        let connect_query = connect_query.filter(|_| resets);
        if connect_query.is_some_and(|query| !query.is_repeatable) {
            return self.close_server(id, io);
        }
        // In one write: no other statement runs between a reset and the query that follows it.
        let steps = [Some(&*step), connect_query.map(|query| &*query.query)];
        for step in steps.into_iter().flatten() {
            server.owed.push_for(ReplyTarget::Cleaning, Request::Query(SetKind::Lasting));
            self.to_server.make(|buf| {
                frontend::encode::query(buf, step).expect("it holds no zero byte");
            });
        }
        self.flush_server(id, &[], io);
    }

    /// A server is gone, in the middle of whatever.
    pub(super) fn server_left(&mut self, id: ServerId, io: &mut dyn Io) {
        let Some(server) = self.servers.remove(id) else { return };
        let pool_id = server.pool;
        let pool = self.pool(pool_id);
        pool.servers -= 1;
        pool.checking -= u32::from(server.is_checked);
        match server.state {
            ServerState::Opening => pool.opening -= 1,
            ServerState::Idle => pool.idle.retain(|idle| *idle != id),
            ServerState::Cleaning => {}
            ServerState::Linked(client) => {
                // Gone before the client is told: the client's end must find no server.
                if let Some(client) = self.clients.get_mut(client) {
                    client.state = ClientState::Idle;
                    client.syncing = Syncing::No;
                    client.cut_off = server.inlet.is_inside_forwarded();
                }
                self.refuse(client, &Refusal::ServerLost, io);
            }
        }
        drop(server);
        self.open_for_starving(io);
        self.open_for_waiting(pool_id, io);
    }

    /// Closes a server that is linked to nobody.
    pub(super) fn close_server(&mut self, id: ServerId, io: &mut dyn Io) {
        let Some(server) = self.servers.get(id) else { return };
        if server.inlet.at_boundary() && server.owed.is_empty() {
            self.to_server.make(frontend::encode::terminate);
            self.flush_server(id, &[], io);
        }
        io.close(Peer::Server(id));
        self.server_left(id, io);
    }

    /// Tells a client why, and closes it.
    pub(super) fn refuse(&mut self, id: ClientId, refusal: &Refusal, io: &mut dyn Io) {
        // A client is told the first error of its legs, and only that.
        let leg = self.clients.get(id).and_then(Client::leg);
        if let Some(leg) = leg.filter(|leg| !self.has_failed(leg.parent)) {
            io.told(leg.parent, refusal);
        }
        let Some(client) = self.clients.get(id) else { return };
        let server = client.server().and_then(|server| self.servers.get(server));
        if !client.cut_off && !server.is_some_and(|server| server.inlet.is_inside_forwarded()) {
            self.to_client.make(|buf| refusal.write(buf, Severity::Fatal));
            self.flush_client(id, &[], io);
        }
        match self.clients.get(id).map(|client| &client.part) {
            Some(Part::Whole | Part::Mirrored(_)) => io.refused(id, refusal),
            Some(Part::Shadow(shadow)) => {
                let stream = shadow.stream;
                self.shadow_refused(stream, refusal);
            }
            Some(Part::Leg(_)) | None => {}
        }
        self.close_client(id, io);
    }

    /// Closes a client that has been told whatever it is told.
    pub(super) fn close_client(&mut self, id: ClientId, io: &mut dyn Io) {
        if let Some(client) = self.clients.get(id) {
            if client.is_somebody() {
                io.close(Peer::Client(id));
            }
            self.client_left(id, io);
        }
    }

    /// Sends what was gathered for a server.
    pub(super) fn flush_server(&mut self, id: ServerId, input: &[u8], io: &mut dyn Io) {
        let Some(backlog) = self.to_server.send(input, Peer::Server(id), io) else { return };
        let Some(server) = self.servers.get_mut(id) else { return };
        if backlog == Backlog::Waiting && !server.backlogged {
            server.backlogged = true;
            if let ServerState::Linked(client) = server.state {
                self.update_pause(Peer::Client(client), io);
            }
        }
    }

    /// Sends what was made here for a client.
    pub(super) fn flush_client(&mut self, id: ClientId, input: &[u8], io: &mut dyn Io) {
        if self.to_client.is_empty() {
            return;
        }
        self.tap_made(id);
        self.relay_to_client(id, input, io);
    }

    /// The same of what a server said, which is on the tape already.
    pub(super) fn relay_to_client(&mut self, mut id: ClientId, input: &[u8], io: &mut dyn Io) {
        match self.clients.get(id).map(|client| &client.part) {
            Some(Part::Leg(leg)) => {
                let leg = *leg;
                return self.leg_hears(leg, input, io);
            }
            Some(Part::Shadow(shadow)) => {
                let stream = shadow.stream;
                let tells = self.makes(InjectedFault::MirrorAnswers);
                match tells.then(|| self.client_of(stream)).flatten() {
                    Some(client) => id = client,
                    None => return self.shadow_hears(stream),
                }
            }
            Some(Part::Whole | Part::Mirrored(_)) | None => {}
        }
        let Some(backlog) = self.to_client.send(input, Peer::Client(id), io) else { return };
        let Some(client) = self.clients.get_mut(id) else { return };
        if backlog == Backlog::Waiting && !client.backlogged {
            client.backlogged = true;
            let server = client.server();
            self.update_pause(Peer::Client(id), io);
            self.pause_legs(id, io);
            if let Some(server) = server {
                self.update_pause(Peer::Server(server), io);
            }
        }
    }

    pub(super) fn backlog_gone(&mut self, peer: Peer, io: &mut dyn Io) {
        match peer {
            Peer::Client(id) => {
                let Some(client) = self.clients.get_mut(id) else { return };
                client.backlogged = false;
                let server = client.server();
                self.tell_news(id, io);
                self.update_pause(peer, io);
                self.pause_legs(id, io);
                if let Some(server) = server {
                    self.update_pause(Peer::Server(server), io);
                }
            }
            Peer::Server(id) => {
                let Some(server) = self.servers.get_mut(id) else { return };
                server.backlogged = false;
                if let ServerState::Linked(client) = server.state {
                    self.update_pause(Peer::Client(client), io);
                }
            }
        }
    }

    /// Has the worker read from a peer, or not: not from a client that waits, has not taken its
    /// answers or whose server takes nothing; not from a server whose client takes nothing.
    pub(super) fn update_pause(&mut self, peer: Peer, io: &mut dyn Io) {
        let (paused, pause) = match peer {
            Peer::Client(id) => {
                let Some(client) = self.clients.get(id) else { return };
                match client.part {
                    Part::Leg(leg) => return self.update_pause(Peer::Client(leg.parent), io),
                    Part::Shadow(_) => return, // It has no socket, and has said what it has to say.
                    Part::Whole | Part::Mirrored(_) => {}
                }
                let server = client.server().and_then(|server| self.servers.get(server));
                let waits = match &client.spread {
                    Some(spread) if self.legs_are_behind(spread) => true,
                    // It is listened to all the same, so that its end is heard.
                    Some(spread) if !spread.takes_data() => {
                        client.inlet.held.len() >= HELD_BYTES_HIGH
                    }
                    _ => client.must_wait(),
                };
                let pause =
                    waits || client.backlogged || server.is_some_and(|server| server.backlogged);
                if client.paused == pause {
                    return;
                }
                let Some(client) = self.clients.get_mut(id) else { return };
                (&mut client.paused, pause)
            }
            Peer::Server(id) => {
                let Some(server) = self.servers.get_mut(id) else { return };
                let pause = match server.state {
                    ServerState::Linked(client) => {
                        self.clients.get(client).is_some_and(|client| client.backlogged)
                    }
                    _ => false,
                };
                (&mut server.paused, pause)
            }
        };
        if *paused != pause {
            *paused = pause;
            if pause { io.pause(peer) } else { io.resume(peer) }
        }
    }
}

/// So much a client may send ahead while its request is done on several shards.
const HELD_BYTES_HIGH: usize = 64 << 10;

/// What fills up a message that its client never ended: no zero byte, so that no text in it ends.
const PADDING: u8 = 1;

/// Ends a batch whose Sync never came. A server whose client goes does not commit such a batch, so it
/// is rolled back before the Sync that would.
fn end_batch(server: &mut Server, to: &mut Gather) {
    if !std::mem::take(&mut server.skipping) {
        for request in [Request::Parse(None), Request::Bind(0), Request::Execute] {
            server.owed.push_for(ReplyTarget::Pooler, request);
        }
        to.make(|buf| {
            parse(buf, b"", b"ROLLBACK", &[]).expect("no zero byte");
            bind(buf, b"", b"", &[], [], &[]).expect("no zero byte");
            execute(buf, b"", 0).expect("no zero byte");
        });
    }
    server.batch_open = false;
    server.owed.push_for(ReplyTarget::Cleaning, Request::Sync);
    to.make(sync);
}

/// What is run before another client gets a server, if anything is.
fn reset_query(pool: &Pool) -> Option<Vec<u8>> {
    let query = &pool.spec.reset.as_ref()?.query;
    (!query.is_empty()).then(|| query.to_vec())
}
