//! Assigns servers to clients, releases them, and hands them over between workers.
//!
//! # Between workers
//!
//! A single message moves an idle server to a worker that needs one. It contains the socket and a
//! [`Transfer`], which owns the rest of the server's state, including its permits. Neither can be
//! copied, and the sender removes both from its own tables before it creates the message. So at
//! every moment exactly one worker, or one message, owns the server, whatever the order of events.
//!
//! Workers also share [`crate::ConnectionLimit`]s and the statement registry. The count of a limit
//! is a single atomic number that protects no other data; the registry's mutex is held only while
//! entries are looked up, added or removed.
//!
//! A request for a server that arrives too late is harmless: at worst, it closes an idle server, or
//! moves one to a worker that no longer needs it, where it stays idle. A message that is never
//! read, because its worker has ended, drops its contents: permits are released and the socket is
//! closed. So relaxed memory ordering is sufficient for the limits; a test with threads exercises
//! this.

use std::sync::Arc;

use howdah_wire::backend::encode;

use super::{Core, server_opening::SERVER_REQUEST_INTERVAL, server_setup};
use crate::{
    CoreIo, TargetRole,
    login::ServerLogin,
    refusal::ClientRefusal,
    session::{
        connect_query::ConnectQuery,
        parameters::{ServerParameters, is_settable},
        state::SessionStateFlags,
        write_detection::WriteDetection,
    },
    spec::PoolingMode,
    state::{
        client::{ClientConnection, ClientState},
        ids::{ClientId, PeerId, PoolId, ServerId, WorkerId},
        pool::{PoolState, StarvedWorker},
        server::{ServerConnection, ServerState},
    },
    time::Time,
};

/// A server that moves from one worker to another: its whole state except the socket.
#[derive(Debug)]
pub struct Transfer {
    server: ServerConnection,
}

impl Transfer {
    /// Returns the pool that the server belongs to.
    pub fn pool(&self) -> PoolId {
        self.server.pool
    }
}

impl Core {
    /// Links a client to an idle server, if one is available and no other client waits for it, and
    /// queues the statements that apply the client's parameters, and its deferred BEGIN. Returns
    /// whether the client's messages may follow at once, or `None` if the client gets no server.
    pub(super) fn link_idle_server(&mut self, id: ClientId) -> Option<bool> {
        let client = self.clients.get(id)?;
        let is_queued = client.state == ClientState::Waiting;
        let waits_since = is_queued.then_some(client.state_since);
        let now = self.now;
        let mut pool_id = client.pool;
        // The member of a queued client was selected when it was queued.
        if client.is_clustered && !is_queued {
            pool_id = if client.causal_token.is_none() {
                self.choose_member(client.owner_pool, client.role, client.shard)
            } else {
                self.choose_causal_member(id)
            };
            self.clients.get_mut(id)?.pool = pool_id;
        }
        // Clients that already wait are served first.
        if !is_queued && !self.pool(pool_id).waiting.is_empty() {
            return None;
        }
        let server_id = self.next_idle_server(pool_id)?;
        let pool = self.pool(pool_id);
        pool.take_idle();
        pool.stats.assignments += 1;
        if let Some(since) = waits_since {
            pool.stats.wait_time.add(since, now);
            self.capture_server_assigned(id);
        }
        let client = self.clients.get_mut(id)?;
        let server = self.servers.get_mut(server_id).expect("idle servers exist");
        server.link(id, self.now);
        server.write_detection = WriteDetection::enabled_if(client.has_read_your_writes);
        client.state = ClientState::Linked(server_id);
        client.state_since = self.now;
        client.is_cancel_pending = false;
        let spec = &self.pools[pool_id.index()].as_ref()?.spec;
        if let Some(routing) = &mut client.routing {
            let shard = spec.member.as_ref().map_or(0, |member| member.shard);
            routing.server_linked(shard, |name| server.parameters.value(name));
        }
        if spec.has_parameters_at_login {
            return Some(true);
        }
        let is_ready = server_setup::apply_parameters(client, server, &mut self.to_server);
        if let Some(begun) = client.routing.as_mut().and_then(|it| it.take_deferred_begin()) {
            server_setup::send_deferred_begin(server, &begun, &mut self.to_server);
        }
        Some(is_ready)
    }

    /// Queues a client for a server, and opens one if that is allowed.
    pub(super) fn wait_for_server(&mut self, id: ClientId, io: &mut dyn CoreIo) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let pool_id = client.pool;
        client.state = ClientState::Waiting;
        client.state_since = self.now;
        client.has_wait_notice = false;
        self.pool(pool_id).waiting.push_back(id);
        self.update_pause(PeerId::Client(id), io);
        self.check_idle_servers(pool_id, io);
        self.open_for_waiting(pool_id, io);
    }

    /// Handles a successful login to a server, then serves waiting clients.
    pub(super) fn handle_server_login(
        &mut self,
        id: ServerId,
        login: ServerLogin,
        io: &mut dyn CoreIo,
    ) {
        let Some(server) = self.servers.get_mut(id) else { return };
        if server.state != ServerState::Opening {
            return;
        }
        server.state = ServerState::Idle;
        server.state_since = self.now;
        server.cancel_key = login.cancel_key;
        server.parameters = ServerParameters::at_login(&login.parameters);
        let (pool_id, parameters) = (server.pool, Arc::from(login.parameters));
        let pool = self.pool(pool_id);
        pool.opening -= 1;
        (pool.failures, pool.last_failure) = (0, None);
        pool.is_restarting = false;
        pool.spec.welcome.set(parameters);
        pool.idle.push_back(id);
        if self.must_close(id) {
            self.close_server(id, io);
        }
        self.serve_waiting_clients(pool_id, io);
    }

    /// Finishes pending logins of clients, if the server's parameters are known and the server is
    /// not down.
    pub(super) fn finish_pending_logins(&mut self, pool_id: PoolId, io: &mut dyn CoreIo) {
        let pool = self.pool(pool_id);
        let admits_clients =
            |pool: &PoolState| pool.spec.welcome.parameters().is_some() && pool.outage().is_none();
        if !pool.awaiting_welcome.is_empty() && admits_clients(pool) {
            for client in std::mem::take(&mut pool.awaiting_welcome) {
                self.finish_login(client, io);
            }
        }
    }

    /// Finishes a client's login: sends its parameters and ReadyForQuery. If the server's
    /// parameters are unknown or the server is down, the client waits for a login to the server
    /// instead; it is refused if the server is down and no login attempt is in progress or due.
    pub(super) fn finish_login(&mut self, id: ClientId, io: &mut dyn CoreIo) {
        let worker = self.worker;
        let Some(client) = self.clients.get_mut(id) else { return };
        let pool_id = client.pool;
        let Some(pool) = self.pools[pool_id.index()].as_mut() else { return };
        // While the server is down, clients are refused at login, so that they can try other hosts.
        let welcome = pool.spec.welcome.parameters().filter(|_| pool.outage().is_none());
        let Some(welcome) = welcome else {
            client.state_since = self.now;
            if let Some(refusal) = self.refusal_at_login(pool_id) {
                return self.refuse(id, &refusal, io);
            }
            let pool_id = self.select_member(id).unwrap_or(pool_id);
            self.pool(pool_id).awaiting_welcome.push(id);
            self.flush_client(id, &[], io);
            self.update_pause(PeerId::Client(id), io);
            return self.open_for_waiting(pool_id, io);
        };
        client.state = ClientState::Idle;
        client.state_since = self.now;
        let key = client.cancel_key(worker, id);
        self.to_client.push_with(|buf| {
            for setting in welcome.iter() {
                let requested =
                    client.parameters.value(&setting.name).filter(|_| is_settable(&setting.name));
                let mut value = requested.unwrap_or(&setting.value);
                if client.is_clustered && &*setting.name == b"in_hot_standby" {
                    // libpq reads this to find a server that matches its `target_session_attrs`.
                    value = if client.role == TargetRole::Replica { b"on" } else { b"off" };
                }
                // Values come from startup packets or servers, so they contain no zero byte.
                let _ = encode::parameter_status(buf, &setting.name, value);
            }
            encode::backend_key_data(buf, &key);
            encode::ready_for_query(buf, howdah_wire::backend::TransactionStatus::Idle);
        });
        self.flush_client(id, &[], io);
        self.capture_login(id);
        self.mirror_buffered_input(id);
        self.update_pause(PeerId::Client(id), io);
        self.process_buffered(id, io);
    }

    /// Finishes pending logins, then links waiting clients to idle servers, in order of arrival.
    pub(super) fn serve_waiting_clients(&mut self, pool_id: PoolId, io: &mut dyn CoreIo) {
        self.finish_pending_logins(pool_id, io);
        self.apply_cluster_changes(pool_id, io);
        self.serve_queue(pool_id, io);
    }

    /// Links the waiting clients in a pool's queue to its idle servers. Unlike
    /// [`Core::serve_waiting_clients`], it moves no clients between the members of a cluster: each
    /// move serves the new member's queue, which could move the clients back, without end.
    pub(super) fn serve_queue(&mut self, pool_id: PoolId, io: &mut dyn CoreIo) {
        loop {
            if self.next_idle_server(pool_id).is_none() {
                return self.check_idle_servers(pool_id, io);
            }
            let Some(client_id) = self.pool(pool_id).waiting.pop_front() else { return };
            let waits =
                self.clients.get(client_id).is_some_and(|c| c.state == ClientState::Waiting);
            if waits && let Some(ready) = self.link_idle_server(client_id) {
                if !ready {
                    let server = self.clients.get(client_id).and_then(ClientConnection::server);
                    self.flush_server(server.expect("it was just linked"), &[], io);
                }
                self.update_pause(PeerId::Client(client_id), io);
                self.process_buffered(client_id, io);
            }
        }
    }

    /// Releases a server from its client if all requests are answered and no transaction or batch
    /// is open, unless the pool is in session mode or the client's last message is incomplete. If
    /// the database was removed, disconnects the client instead. For a server that is being
    /// cleaned, takes the next step.
    pub(super) fn release_if_quiescent(&mut self, server_id: ServerId, io: &mut dyn CoreIo) {
        let Some(server) = self.servers.get_mut(server_id) else { return };
        if !server.is_quiescent() {
            return;
        }
        match server.state {
            ServerState::Linked(client_id) => {
                let pool_id = server.pool;
                let client = self.clients.get_mut(client_id).expect("linked clients exist");
                let spec =
                    &self.pools[pool_id.index()].as_ref().expect("a pool with servers exists").spec;
                let resets = spec.reset.as_ref().is_some_and(|reset| reset.is_always);
                if spec.is_closing && !client.has_unprocessed_input() {
                    return self.refuse(client_id, &ClientRefusal::DatabaseRemoved, io);
                }
                if spec.mode == PoolingMode::Session || !client.input.is_at_boundary() {
                    return;
                }
                client.state = ClientState::Idle;
                client.state_since = self.now;
                self.deferred.extend(client.deferred_work(client_id));
                if let Some(routing) = &mut client.routing {
                    routing.server_released();
                }
                server.state = ServerState::Cleaning;
                server.state_since = self.now;
                server.is_reset_due = resets;
                // The connect query has set parameters that the client may have changed, and that
                // the server does not report. Resetting only changed parameters would not restore
                // them: reset all settings.
                let undone = |query: &Arc<ConnectQuery>| {
                    server.parameters.has_unreported(|it| query.mentions(it))
                };
                if spec.connect_query.as_ref().is_some_and(undone) {
                    server.session_state |= SessionStateFlags::SETTINGS;
                }
                let has_written = server.write_detection == WriteDetection::Written;
                let may_pause =
                    client.is_paused || client.is_backlogged || client.must_buffer_input();
                let is_paused = server.is_paused;
                let is_clean = server.session_state.is_none() && !resets && !server.is_copying_in;
                if has_written {
                    self.record_write(client_id, pool_id, io);
                }
                if may_pause {
                    self.update_pause(PeerId::Client(client_id), io);
                }
                if is_paused {
                    // Reading was paused because the client was slow, but the replies to the reset
                    // must still be read.
                    self.update_pause(PeerId::Server(server_id), io);
                }
                if is_clean {
                    self.return_to_pool(server_id, io);
                } else {
                    self.continue_cleaning(server_id, io);
                }
            }
            ServerState::Cleaning => self.continue_cleaning(server_id, io),
            ServerState::Opening | ServerState::Idle => {}
        }
    }

    /// Returns a clean server to its pool, for the client that has waited longest, here or in
    /// another worker. Closes the server instead if it must not be used again, and keeps it while a
    /// CancelRequest to it is in flight.
    pub(super) fn return_to_pool(&mut self, id: ServerId, io: &mut dyn CoreIo) {
        let Some(server) = self.servers.get_mut(id) else { return };
        server.state_since = self.now;
        // The CancelRequest may still arrive, and would cancel the next client's statement. The
        // release continues in `finish_cancel`.
        if server.cancels_in_flight > 0 {
            server.state = ServerState::Cleaning;
            return;
        }
        server.state = ServerState::Idle;
        let (pool_id, is_checked) = (server.pool, std::mem::take(&mut server.is_in_check));
        if server.is_paused {
            self.update_pause(PeerId::Server(id), io);
        }
        let is_tainted =
            self.servers.get(id).is_some_and(|it| it.parameters.parse_state.is_tainted);
        // A `true` from `must_close` has counted this server against the surplus, so it must be
        // closed.
        let yields = !self.starved_pools.is_empty() && self.must_yield(id) || self.must_close(id);
        let pool = self.pool(pool_id);
        pool.checking -= u32::from(is_checked);
        // A server that has just been checked must be used next: put it at the front of the queue
        // in round-robin order, otherwise at the back.
        if is_checked && pool.spec.is_round_robin {
            pool.idle.push_front(id);
        } else {
            pool.idle.push_back(id);
        }
        if pool.spec.is_single_use || yields || is_tainted {
            return self.close_server(id, io);
        }
        if !pool.starved_workers.is_empty() && self.transfer_to_starved_worker(pool_id, id, io) {
            return;
        }
        if !self.pool(pool_id).waiting.is_empty() {
            // Set only during this call: the next waiting client gets the server without another
            // check.
            self.set_freshly_checked(id, is_checked);
            self.serve_waiting_clients(pool_id, io);
            self.set_freshly_checked(id, false);
        }
    }

    /// Sets whether a server has just passed its check and may be assigned without another one.
    fn set_freshly_checked(&mut self, id: ServerId, is_proven: bool) {
        if let Some(server) = self.servers.get_mut(id) {
            server.has_passed_check = is_proven;
        }
    }

    /// Handles another worker's request for a server: hands an idle one over, closes another pool's
    /// idle server to free a slot for a new one, or queues the request.
    pub(super) fn handle_server_request(
        &mut self,
        pool_id: PoolId,
        by: WorkerId,
        io: &mut dyn CoreIo,
    ) {
        if !self.has_pool(pool_id) || by == self.worker {
            return;
        }
        // A server with unsent bytes cannot move: the bytes are in this worker's buffer.
        let idle = &self.pools[pool_id.index()].as_ref().expect("the pool exists").idle;
        let movable = |id: &ServerId| self.servers.get(*id).is_some_and(|s| !s.is_backlogged);
        let movable_server = idle.iter().copied().find(movable);
        match movable_server {
            Some(id) => self.transfer_server(id, by, io),
            // A free connection slot serves the purpose too: the requesting worker will try again.
            None if self.evict_for(pool_id, io) => {}
            None => {
                let now = self.now;
                let wanted_by = &mut self.pool(pool_id).starved_workers;
                match wanted_by.iter_mut().find(|wanted| wanted.worker == by) {
                    Some(wanted) => wanted.last_request = now,
                    None => wanted_by.push_back(StarvedWorker {
                        worker: by,
                        since: now,
                        last_request: now,
                    }),
                }
            }
        }
    }

    /// Hands a server that has become idle over to a worker that needs one, unless a client here
    /// has waited longer or the server has unsent bytes. Returns whether it did.
    fn transfer_to_starved_worker(
        &mut self,
        pool_id: PoolId,
        id: ServerId,
        io: &mut dyn CoreIo,
    ) -> bool {
        let now = self.now;
        let pool = self.pools[pool_id.index()].as_mut().expect("a pool with servers exists");
        // A worker that got a server elsewhere does not withdraw its request, but stops repeating
        // it.
        pool.starved_workers
            .retain(|wanted| now.since(wanted.last_request) <= 3 * SERVER_REQUEST_INTERVAL);
        let Some(StarvedWorker { worker: by, since, .. }) = pool.starved_workers.front().copied()
        else {
            return false;
        };
        let first = pool.waiting.front().and_then(|first| self.clients.get(*first));
        let backlogged = self.servers.get(id).is_some_and(|server| server.is_backlogged);
        if backlogged || first.is_some_and(|client| client.state_since <= since) {
            return false;
        }
        pool.starved_workers.pop_front();
        self.transfer_server(id, by, io);
        // Clients still wait here: open another server, or request one from the other workers.
        self.open_for_waiting(pool_id, io);
        true
    }

    /// Removes a server from this worker and sends it to another.
    fn transfer_server(&mut self, id: ServerId, to: WorkerId, io: &mut dyn CoreIo) {
        let Some(server) = self.servers.remove(id) else { return };
        let pool = self.pool(server.pool);
        pool.idle.retain(|idle| *idle != id);
        pool.servers -= 1;
        io.hand_over(id, to, Box::new(Transfer { server }));
    }

    /// Adds a server that another worker handed over, as idle. Returns `None` if this worker does
    /// not have the pool.
    pub(super) fn insert_transferred(&mut self, transfer: Box<Transfer>) -> Option<ServerId> {
        let Transfer { mut server } = *transfer;
        let pool_id = server.pool;
        if !self.has_pool(pool_id) {
            return None;
        }
        server.is_paused = false;
        server.state_since = self.now;
        let welcome = server.parameters.login_values();
        let id = self.servers.insert(server);
        let pool = self.pool(pool_id);
        // This worker may never have opened a server of this pool itself, but needs the server's
        // parameters to finish client logins.
        if pool.spec.welcome.parameters().is_none() {
            pool.spec.welcome.set(welcome);
        }
        pool.servers += 1;
        pool.last_failure = None;
        pool.request_at = Time::default();
        pool.idle.push_back(id);
        Some(id)
    }
}
