//! Who gets which server, and when.
//!
//! # Between workers
//!
//! An idle server moves to a worker that starves by one message: a [`Transfer`], which owns all that is
//! known of the server, its permits included, and beside it the socket. Neither can be copied, and the
//! sender has taken both out of its own tables before the message exists; so at every moment one worker,
//! or one message, has the server, and no order of events changes that. What else workers share are
//! [`crate::Limit`]s, each one atomic number that guards nothing but itself, and the table of statements,
//! under a mutex and asked for names only. A request for a server that comes too late finds none or finds
//! one not needed any more: it is then idle with the worker that asked. A message that is never read
//! (its worker has ended) drops what it owns: permits are given back, and the socket is closed. There is
//! nothing left that a model of memory orderings could say; a test with threads hammers it.

use std::sync::Arc;

use howdah_wire::backend::encode;

use super::{Core, InjectedFault, open::STARVED_AFTER, settle};
use crate::{
    Io, ServerRole,
    client::{Client, ClientState},
    connect_query::ConnectQuery,
    dirt::SessionStateFlags,
    ids::{ClientId, Peer, PoolId, ServerId, WorkerId},
    login::ServerLogin,
    pool::{Pool, Wanted},
    refusal::Refusal,
    server::{Server, ServerState},
    settings::{ServerSettings, is_settable},
    spec::Mode,
    time::Time,
    writes::Writes,
};

/// A server on its way from one worker to another: everything known of it but its socket.
#[derive(Debug)]
pub struct Transfer {
    server: Server,
}

impl Transfer {
    /// The pool it belongs to.
    pub fn pool(&self) -> PoolId {
        self.server.pool
    }
}

impl Core {
    /// Gives a client an idle server, if there is one and nobody came before, and queues what sets
    /// the settings that the client is to find there. Gives whether the client's messages may follow
    /// at once.
    pub(super) fn link_idle(&mut self, id: ClientId) -> Option<bool> {
        let client = self.clients.get(id)?;
        let is_queued = client.state == ClientState::Waiting;
        let waits_since = is_queued.then_some(client.since);
        let now = self.now;
        let mut pool_id = client.pool;
        if client.roams && !is_queued {
            pool_id = match client.floors.is_none() {
                true => self.choose(client.home, client.role, client.shard),
                false => self.choose_with_writes(id),
            };
            self.clients.get_mut(id)?.pool = pool_id;
        }
        if !is_queued && !self.pool(pool_id).waiting.is_empty() {
            return None;
        }
        let server_id = self.next_idle(pool_id)?;
        let pool = self.pool(pool_id);
        pool.take_idle();
        pool.tally.assignments += 1;
        if let Some(since) = waits_since {
            pool.tally.wait_time.add(since, now);
            self.tap_granted(id);
        }
        let client = self.clients.get_mut(id)?;
        let server = self.servers.get_mut(server_id).expect("idle servers exist");
        server.link(id, self.now);
        server.writes = Writes::watched_if(client.minds_writes);
        client.state = ClientState::Linked(server_id);
        client.since = self.now;
        client.cancel_due = false;
        let spec = &self.pools[pool_id.index()].as_ref()?.spec;
        if let Some(routing) = &mut client.routing {
            let shard = spec.member.as_ref().map_or(0, |member| member.shard);
            routing.linked(shard, |name| server.settings.value(name));
        }
        if spec.settings_at_login {
            return Some(true);
        }
        let is_ready = settle::sync_settings(client, server, &mut self.to_server);
        if let Some(begun) = client.routing.as_mut().and_then(|it| it.take_begun()) {
            settle::begin(server, &begun, &mut self.to_server);
        }
        Some(is_ready)
    }

    /// Has a client wait for a server, and opens one for it if that is allowed.
    pub(super) fn wait(&mut self, id: ClientId, io: &mut dyn Io) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let pool_id = client.pool;
        client.state = ClientState::Waiting;
        client.since = self.now;
        client.notified = false;
        self.pool(pool_id).waiting.push_back(id);
        self.update_pause(Peer::Client(id), io);
        self.check_idle(pool_id, io);
        self.open_for_waiting(pool_id, io);
    }

    pub(super) fn server_logged_in(&mut self, id: ServerId, login: ServerLogin, io: &mut dyn Io) {
        let Some(server) = self.servers.get_mut(id) else { return };
        if server.state != ServerState::Opening {
            return;
        }
        server.state = ServerState::Idle;
        server.since = self.now;
        server.cancel_key = login.cancel_key;
        server.settings = ServerSettings::at_login(&login.parameters);
        let (pool_id, parameters) = (server.pool, Arc::from(login.parameters));
        let pool = self.pool(pool_id);
        pool.opening -= 1;
        (pool.failures, pool.last_failure) = (0, None);
        pool.restarting = false;
        pool.spec.greeting.learn(parameters);
        pool.idle.push_back(id);
        if self.ends(id) {
            self.close_server(id, io);
        }
        self.serve(pool_id, io);
    }

    /// Greets those who wait for it, if there is something to greet them with.
    pub(super) fn welcome(&mut self, pool_id: PoolId, io: &mut dyn Io) {
        let pool = self.pool(pool_id);
        let lets_in = |pool: &Pool| pool.spec.greeting.known().is_some() && pool.outage().is_none();
        if !pool.unwelcomed.is_empty() && lets_in(pool) {
            for client in std::mem::take(&mut pool.unwelcomed) {
                self.greet(client, io);
            }
        }
    }

    pub(super) fn greet(&mut self, id: ClientId, io: &mut dyn Io) {
        let worker = self.worker;
        let Some(client) = self.clients.get_mut(id) else { return };
        let pool_id = client.pool;
        let Some(pool) = self.pools[pool_id.index()].as_mut() else { return };
        // As long as its server cannot be had, a client is not let in: it may have other hosts to try.
        let greeting = pool.spec.greeting.known().filter(|_| pool.outage().is_none());
        let Some(greeting) = greeting else {
            client.since = self.now;
            if let Some(refusal) = self.refusal_at_login(pool_id) {
                return self.refuse(id, &refusal, io);
            }
            let pool_id = self.aim(id).unwrap_or(pool_id);
            self.pool(pool_id).unwelcomed.push(id);
            self.flush_client(id, &[], io);
            self.update_pause(Peer::Client(id), io);
            return self.open_for_waiting(pool_id, io);
        };
        client.state = ClientState::Idle;
        client.since = self.now;
        let key = client.cancel_key(worker, id);
        self.to_client.make(|buf| {
            for setting in greeting.iter() {
                let asked =
                    client.wishes.value(&setting.name).filter(|_| is_settable(&setting.name));
                let mut value = asked.unwrap_or(&setting.value);
                if client.roams && &*setting.name == b"in_hot_standby" {
                    // By this libpq finds out whether it is where `target_session_attrs` wants it.
                    value = if client.role == ServerRole::Replica { b"on" } else { b"off" };
                }
                // A value with a zero byte cannot have come from a startup packet or a server.
                let _ = encode::parameter_status(buf, &setting.name, value);
            }
            encode::backend_key_data(buf, &key);
            encode::ready_for_query(buf, howdah_wire::backend::TransactionStatus::Idle);
        });
        self.flush_client(id, &[], io);
        self.tap_greeted(id);
        self.keep_held(id);
        self.update_pause(Peer::Client(id), io);
        self.replay_held(id, io);
    }

    /// Gives idle servers to those who wait, the first first.
    pub(super) fn serve(&mut self, pool_id: PoolId, io: &mut dyn Io) {
        self.welcome(pool_id, io);
        self.follow_changes(pool_id, io);
        loop {
            if self.next_idle(pool_id).is_none() {
                return self.check_idle(pool_id, io);
            }
            let Some(client_id) = self.pool(pool_id).waiting.pop_front() else { return };
            let waits =
                self.clients.get(client_id).is_some_and(|c| c.state == ClientState::Waiting);
            if waits && let Some(ready) = self.link_idle(client_id) {
                if !ready {
                    let server = self.clients.get(client_id).and_then(Client::server);
                    self.flush_server(server.expect("it was linked"), &[], io);
                }
                self.update_pause(Peer::Client(client_id), io);
                self.replay_held(client_id, io);
            }
        }
    }

    /// Parts a server from its client, if everything is answered and nothing is open.
    pub(super) fn release_if_settled(&mut self, server_id: ServerId, io: &mut dyn Io) {
        let early = self.makes(InjectedFault::CrossTalk);
        let Some(server) = self.servers.get_mut(server_id) else { return };
        if !server.is_settled() && (!early || server.batch_open) {
            return;
        }
        match server.state {
            ServerState::Linked(client_id) => {
                let pool_id = server.pool;
                let client = self.clients.get_mut(client_id).expect("linked clients exist");
                let spec = &self.pools[pool_id.index()].as_ref().expect("it has servers").spec;
                let resets = spec.reset.as_ref().is_some_and(|reset| reset.always);
                if spec.closes && !client.asks() {
                    return self.refuse(client_id, &Refusal::DatabaseRemoved, io);
                }
                if spec.mode == Mode::Session || !client.inlet.at_boundary() {
                    return;
                }
                client.state = ClientState::Idle;
                client.since = self.now;
                self.unsettled.extend(client.concern(client_id));
                if let Some(routing) = &mut client.routing {
                    routing.released();
                }
                server.state = ServerState::Cleaning;
                server.since = self.now;
                server.reset_due = resets;
                // Setting these back to the session's defaults would not restore what the query has set.
                let undone =
                    |query: &Arc<ConnectQuery>| server.settings.gave_any(|it| query.mentions(it));
                if spec.connect_query.as_ref().is_some_and(undone) {
                    server.dirt |= SessionStateFlags::SETTINGS;
                }
                let wrote = server.writes == Writes::Seen;
                let may_pause = client.paused || client.backlogged || client.must_wait();
                let is_paused = server.paused;
                let is_clean = server.dirt.is_none() && !resets && !server.copying_in;
                if wrote {
                    self.follow_writes(client_id, pool_id, io);
                }
                if may_pause {
                    self.update_pause(Peer::Client(client_id), io);
                }
                if is_paused {
                    // Its client may have been slow; a reset has to be heard all the same.
                    self.update_pause(Peer::Server(server_id), io);
                }
                if early || is_clean {
                    self.put_back(server_id, io);
                } else {
                    self.go_on_cleaning(server_id, io);
                }
            }
            ServerState::Cleaning => self.go_on_cleaning(server_id, io),
            ServerState::Opening | ServerState::Idle => {}
        }
    }

    /// Gives a server that is settled to the next, or to its pool.
    pub(super) fn put_back(&mut self, id: ServerId, io: &mut dyn Io) {
        let unguarded = self.makes(InjectedFault::StrayCancel);
        let Some(server) = self.servers.get_mut(id) else { return };
        server.since = self.now;
        if server.cancels > 0 && !unguarded {
            server.state = ServerState::Cleaning;
            return;
        }
        server.state = ServerState::Idle;
        let (pool_id, is_checked) = (server.pool, std::mem::take(&mut server.is_checked));
        if server.paused {
            self.update_pause(Peer::Server(id), io);
        }
        let is_tainted = self.servers.get(id).is_some_and(|it| it.settings.parsing.is_tainted);
        let yields = !self.starving.is_empty() && self.yields(id) || self.ends(id);
        let pool = self.pool(pool_id);
        pool.checking -= u32::from(is_checked);
        match is_checked && pool.spec.round_robin {
            true => pool.idle.push_front(id),
            false => pool.idle.push_back(id),
        }
        if pool.spec.servers_once || yields || is_tainted {
            return self.close_server(id, io);
        }
        if !pool.wanted_by.is_empty() && self.give_away(pool_id, id, io) {
            return;
        }
        if !self.pool(pool_id).waiting.is_empty() {
            self.prove(id, is_checked);
            self.serve(pool_id, io);
            self.prove(id, false);
        }
    }

    /// Notes whether a server has just said that it lives.
    fn prove(&mut self, id: ServerId, is_proven: bool) {
        if let Some(server) = self.servers.get_mut(id) {
            server.is_proven = is_proven;
        }
    }

    pub(super) fn wanted_elsewhere(&mut self, pool_id: PoolId, by: WorkerId, io: &mut dyn Io) {
        if !self.has_pool(pool_id) || by == self.worker {
            return;
        }
        // One that has not taken all that was sent to it stays: that is with this worker's socket.
        let idle = &self.pools[pool_id.index()].as_ref().expect("it is there").idle;
        let movable = |id: &ServerId| self.servers.get(*id).is_some_and(|s| !s.backlogged);
        let found = idle.iter().copied().find(movable);
        match found {
            Some(id) => self.hand_over(id, by, io),
            // Room is as good: who asked will look for it again.
            None if self.evict_for(pool_id, io) => {}
            None => {
                let now = self.now;
                let wanted_by = &mut self.pool(pool_id).wanted_by;
                match wanted_by.iter_mut().find(|wanted| wanted.by == by) {
                    Some(wanted) => wanted.heard = now,
                    None => wanted_by.push_back(Wanted { by, since: now, heard: now }),
                }
            }
        }
    }

    /// Gives a server that has become idle to a worker that starves for it, unless somebody here has
    /// waited for longer.
    fn give_away(&mut self, pool_id: PoolId, id: ServerId, io: &mut dyn Io) -> bool {
        let now = self.now;
        let pool = self.pools[pool_id.index()].as_mut().expect("it has servers");
        // Who has got one elsewhere does not say so, but asks no more.
        pool.wanted_by.retain(|wanted| now.since(wanted.heard) <= 3 * STARVED_AFTER);
        let Some(Wanted { by, since, .. }) = pool.wanted_by.front().copied() else { return false };
        let first = pool.waiting.front().and_then(|first| self.clients.get(*first));
        let backlogged = self.servers.get(id).is_some_and(|server| server.backlogged);
        if backlogged || first.is_some_and(|client| client.since <= since) {
            return false;
        }
        pool.wanted_by.pop_front();
        self.hand_over(id, by, io);
        // Those who wait here take their turn at the other worker's.
        self.open_for_waiting(pool_id, io);
        true
    }

    fn hand_over(&mut self, id: ServerId, to: WorkerId, io: &mut dyn Io) {
        let Some(server) = self.servers.remove(id) else { return };
        let pool = self.pool(server.pool);
        pool.idle.retain(|idle| *idle != id);
        pool.servers -= 1;
        io.hand_over(id, to, Box::new(Transfer { server }));
    }

    pub(super) fn adopt(&mut self, transfer: Box<Transfer>) -> Option<ServerId> {
        let Transfer { mut server } = *transfer;
        let pool_id = server.pool;
        if !self.has_pool(pool_id) {
            return None;
        }
        server.paused = false;
        server.since = self.now;
        let greeting = server.settings.at_login_values();
        let id = self.servers.insert(server);
        let pool = self.pool(pool_id);
        // The worker may never have logged in itself, and its clients are to be greeted all the same.
        if pool.spec.greeting.known().is_none() {
            pool.spec.greeting.learn(greeting);
        }
        pool.servers += 1;
        pool.last_failure = None;
        pool.ask_at = Time::default();
        pool.idle.push_back(id);
        Some(id)
    }
}
