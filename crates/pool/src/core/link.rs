//! Who gets which server, and when.

use std::sync::Arc;

use howdah_wire::backend::encode;

use super::{Core, Mutant, settle};
use crate::{
    Io,
    client::{Client, ClientState},
    ids::{ClientId, Peer, PoolId, ServerId, WorkerId},
    limits::Permits,
    login::{ServerFailure, ServerLogin},
    refusal::Refusal,
    server::{Server, ServerState},
    settings::{ServerSettings, is_settable},
    spec::Mode,
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
        let client = self.clients.get_mut(id)?;
        let pool = self.pools[client.pool.index()].as_mut()?;
        if client.state != ClientState::Waiting && !pool.waiting.is_empty() {
            return None;
        }
        let server_id = pool.idle.pop()?;
        let server = self.servers.get_mut(server_id).expect("idle servers exist");
        server.link(id, self.now);
        client.state = ClientState::Linked(server_id);
        client.since = self.now;
        client.cancel_due = false;
        Some(settle::sync_settings(client, server, &mut self.to_server))
    }

    /// Has a client wait for a server, and opens one for it if that is allowed.
    pub(super) fn wait(&mut self, id: ClientId, io: &mut dyn Io) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let pool_id = client.pool;
        client.state = ClientState::Waiting;
        client.since = self.now;
        self.pool(pool_id).waiting.push_back(id);
        self.update_pause(Peer::Client(id), io);
        self.open_for_waiting(pool_id, io);
    }

    /// Opens servers for those who wait, as far as limits and pauses allow.
    pub(super) fn open_for_waiting(&mut self, pool_id: PoolId, io: &mut dyn Io) {
        let now = self.now;
        let unlimited = self.makes(Mutant::LimitBreach);
        while let Some(first) = self.pool(pool_id).waiting.front().copied()
            && !self.is_waiting(first)
        {
            self.pool(pool_id).waiting.pop_front();
        }
        loop {
            let pool = self.pool(pool_id);
            let waiting = pool.waiting.len() + usize::from(!pool.unwelcomed.is_empty());
            let short = pool.spec.servers_min.saturating_sub(pool.servers - pool.opening) as usize;
            let wanted = waiting.max(short);
            if pool.opening as usize >= wanted
                || pool.opening >= pool.spec.logins_max.max(1)
                || now < pool.retry_at
            {
                return;
            }
            let limits = if unlimited { &Arc::default() } else { &pool.spec.server_limits };
            let Some(permits) = Permits::try_take(limits) else {
                return io.want_server(pool_id);
            };
            pool.opening += 1;
            pool.servers += 1;
            let server = self.servers.insert(Server::opening(pool_id, permits, now));
            io.open_server(server, pool_id);
        }
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
        pool.failures = 0;
        pool.greeting = Some(parameters);
        pool.idle.push(id);
        for client in std::mem::take(&mut pool.unwelcomed) {
            self.greet(client, io);
        }
        self.serve(pool_id, io);
    }

    pub(super) fn login_failed(&mut self, id: ServerId, failure: ServerFailure, io: &mut dyn Io) {
        let Some(server) = self.servers.remove(id) else { return };
        let now = self.now;
        let pool = self.pool(server.pool);
        pool.servers -= 1;
        if server.state != ServerState::Opening {
            return;
        }
        pool.opening -= 1;
        let timeouts = &pool.spec.timeouts;
        let pause = timeouts.login_retry * (1 << pool.failures.min(16));
        pool.retry_at = now + pause.min(timeouts.login_retry_max);
        pool.failures = pool.failures.saturating_add(1);
        if pool.servers == 0 {
            let ServerFailure { sqlstate, message } = failure;
            self.refuse_waiting(server.pool, &Refusal::ServerLogin { sqlstate, message }, io);
        }
    }

    /// Refuses everybody who waits in a pool that has no server and gets none.
    fn refuse_waiting(&mut self, pool: PoolId, refusal: &Refusal, io: &mut dyn Io) {
        let pool = self.pool(pool);
        let unwelcomed = std::mem::take(&mut pool.unwelcomed);
        let waiting = std::mem::take(&mut pool.waiting);
        for client in unwelcomed.into_iter().chain(waiting) {
            self.refuse(client, refusal, io);
        }
    }

    pub(super) fn greet(&mut self, id: ClientId, io: &mut dyn Io) {
        let worker = self.worker;
        let Some(client) = self.clients.get_mut(id) else { return };
        let pool_id = client.pool;
        let Some(pool) = self.pools[pool_id.index()].as_mut() else { return };
        let Some(greeting) = &pool.greeting else {
            pool.unwelcomed.push(id);
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
                let value = asked.unwrap_or(&setting.value);
                // A value with a zero byte cannot have come from a startup packet or a server.
                let _ = encode::parameter_status(buf, &setting.name, value);
            }
            encode::backend_key_data(buf, &key);
            encode::ready_for_query(buf, howdah_wire::backend::TransactionStatus::Idle);
        });
        self.flush_client(id, &[], io);
        self.update_pause(Peer::Client(id), io);
        self.replay_held(id, io);
    }

    /// Gives idle servers to those who wait, the first first.
    pub(super) fn serve(&mut self, pool_id: PoolId, io: &mut dyn Io) {
        loop {
            let pool = self.pool(pool_id);
            if pool.idle.is_empty() {
                return;
            }
            let Some(client_id) = pool.waiting.pop_front() else { return };
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
        let early = self.makes(Mutant::CrossTalk);
        let Some(server) = self.servers.get_mut(server_id) else { return };
        if !server.is_settled() && (!early || server.batch_open) {
            return;
        }
        match server.state {
            ServerState::Linked(client_id) => {
                let pool_id = server.pool;
                let client = self.clients.get_mut(client_id).expect("linked clients exist");
                let mode = self.pools[pool_id.index()].as_ref().map(|pool| pool.spec.mode);
                if mode == Some(Mode::Session) || !client.inlet.at_boundary() {
                    return;
                }
                client.state = ClientState::Idle;
                client.since = self.now;
                server.state = ServerState::Cleaning;
                server.since = self.now;
                self.update_pause(Peer::Client(client_id), io);
                // Its client may have been slow; a reset has to be heard all the same.
                self.update_pause(Peer::Server(server_id), io);
                if early {
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
        let unguarded = self.makes(Mutant::StrayCancel);
        let Some(server) = self.servers.get_mut(id) else { return };
        server.since = self.now;
        if server.cancels > 0 && !unguarded {
            server.state = ServerState::Cleaning;
            return;
        }
        server.state = ServerState::Idle;
        let pool_id = server.pool;
        self.update_pause(Peer::Server(id), io);
        let pool = self.pool(pool_id);
        if pool.spec.servers_once {
            return self.close_server(id, io);
        }
        pool.idle.push(id);
        if !pool.waiting.is_empty() {
            self.serve(pool_id, io);
        }
    }

    pub(super) fn wanted_elsewhere(&mut self, pool_id: PoolId, by: WorkerId, io: &mut dyn Io) {
        if !self.has_pool(pool_id) || by == self.worker {
            return;
        }
        // One that has not taken all that was sent to it stays: that is with this worker's socket.
        let idle = &self.pools[pool_id.index()].as_ref().expect("it is there").idle;
        let movable = |id: &ServerId| self.servers.get(*id).is_some_and(|s| !s.backlogged);
        let Some(at) = idle.iter().position(movable) else { return };
        let id = self.pool(pool_id).idle.remove(at);
        if let Some(server) = self.servers.remove(id) {
            self.pool(pool_id).servers -= 1;
            io.hand_over(id, by, Box::new(Transfer { server }));
        }
    }

    pub(super) fn adopt(&mut self, transfer: Box<Transfer>) -> Option<ServerId> {
        let Transfer { mut server } = *transfer;
        let pool_id = server.pool;
        if !self.has_pool(pool_id) {
            return None;
        }
        server.paused = false;
        server.since = self.now;
        let id = self.servers.insert(server);
        let pool = self.pool(pool_id);
        pool.servers += 1;
        pool.idle.push(id);
        Some(id)
    }
}
