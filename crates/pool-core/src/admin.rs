//! Applies the admin commands PAUSE, RECONNECT, RELOAD, KILL and KILL_CLIENT.

use super::Core;
use crate::{
    CoreIo,
    refusal::ClientRefusal,
    state::{
        client::{ClientConnection, ClientState},
        ids::{ClientId, PoolId, ServerId},
        server::{ServerConnection, ServerState},
    },
    time::Time,
};

impl Core {
    /// Handles a changed [`crate::AdminState`]: closes idle servers that must not be used, and
    /// serves waiting clients that may now have a server.
    pub fn admin_state_changed(&mut self, now: Time, io: &mut dyn CoreIo) {
        self.now = now;
        for pool in self.known_pools() {
            self.close_unusable_idle(pool, io);
        }
        for pool in self.known_pools() {
            self.open_for_waiting(pool, io);
            self.serve_waiting_clients(pool, io);
        }
        self.run_deferred(io);
    }

    /// Closes a pool's idle servers that must not be used any more; see [`Core::must_close`].
    pub(super) fn close_unusable_idle(&mut self, pool: PoolId, io: &mut dyn CoreIo) {
        let idle = self.pools.get(pool.index()).and_then(Option::as_ref).map(|it| it.idle.clone());
        for id in idle.into_iter().flatten() {
            let server = self.servers.get(id);
            if server.is_some_and(|it| it.state == ServerState::Idle) && self.must_close(id) {
                self.close_server(id, io);
            }
        }
    }

    /// Handles changes made by [`Core::set_pool`]. Applies changed mirrors to connected clients.
    /// Closes outdated or surplus servers; those in use are closed when they are released.
    /// Disconnects clients of removed databases; those with a request or transaction are
    /// disconnected when it ends. Serves waiting clients that may now have a server.
    pub fn pools_changed(&mut self, now: Time, io: &mut dyn CoreIo) {
        self.now = now;
        self.resample_mirrors();
        for index in 0..self.clients.slots() {
            self.disconnect_if_removed(index, io);
        }
        self.admin_state_changed(now, io);
    }

    /// Disconnects the client in slot `index` if its database was removed and no work is lost by
    /// that; see [`Core::can_disconnect`].
    pub(super) fn disconnect_if_removed(&mut self, index: usize, io: &mut dyn CoreIo) {
        let Some((id, client)) = self.clients.occupant(index) else { return };
        let pool = self.pools[client.owner_pool.index()].as_ref();
        let closes = pool.is_some_and(|pool| pool.spec.is_closing);
        if closes && client.is_external() && self.can_disconnect(client) {
            self.refuse(id, &ClientRefusal::DatabaseRemoved, io);
        }
    }

    /// Whether a client can be disconnected without losing work: it has no request and is outside a
    /// transaction, with or without a server, or its login is not finished.
    pub(super) fn can_disconnect(&self, client: &ClientConnection) -> bool {
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

    /// Disconnects all connected clients of a pool, in whatever state they are, and closes its
    /// servers, except those that are still being opened or used by an internal client (KILL).
    pub fn kill_pool(&mut self, pool: PoolId, now: Time, io: &mut dyn CoreIo) {
        self.now = now;
        for index in 0..self.clients.slots() {
            if let Some((id, client)) = self.clients.occupant(index)
                && client.is_external()
                && (client.pool == pool || client.owner_pool == pool)
            {
                self.refuse(id, &ClientRefusal::Killed, io);
            }
        }
        for index in 0..self.servers.slots() {
            if let Some((id, server)) = self.servers.occupant(index)
                && server.pool == pool
                && matches!(server.state, ServerState::Idle | ServerState::Cleaning)
            {
                self.close_server(id, io);
            }
        }
        self.run_deferred(io);
    }

    /// Disconnects a client (KILL_CLIENT). Returns whether it existed.
    pub fn kill_client(&mut self, id: ClientId, now: Time, io: &mut dyn CoreIo) -> bool {
        self.now = now;
        let is_there = self.clients.get(id).is_some();
        self.refuse(id, &ClientRefusal::Killed, io);
        self.run_deferred(io);
        is_there
    }

    /// Whether a free server must be closed because it is outdated or surplus, because clients get
    /// no server (PAUSE), or because no client waits and idle servers are not kept (the database
    /// was removed, or clients are being handed over to another process). If it returns `true`, the
    /// caller must close the server, because this call may have already counted it as closed.
    #[inline]
    pub(super) fn must_close(&mut self, id: ServerId) -> bool {
        let Some(server) = self.servers.get(id) else { return false };
        let Some(pool) = &self.pools[server.pool.index()] else { return false };
        let is_idle = || pool.waiting.is_empty();
        pool.spec.is_paused()
            || (pool.spec.is_closing || self.closes_idle_servers) && is_idle()
            || pool.spec.epoch() != server.epoch
            || pool.has_surplus
                && self.servers.get_mut(id).is_some_and(|it| it.permits.release_surplus())
    }

    /// Whether a server must be replaced because its pool's epoch has changed, as by RECONNECT or a
    /// changed address.
    #[inline]
    pub(super) fn is_outdated(&self, server: &ServerConnection) -> bool {
        let pool = self.pools[server.pool.index()].as_ref();
        pool.is_some_and(|pool| pool.spec.epoch() != server.epoch)
    }

    fn known_pools(&self) -> Vec<PoolId> {
        let pools = (0..).map(PoolId).zip(&self.pools);
        pools.filter(|(_, pool)| pool.is_some()).map(|(id, _)| id).collect()
    }
}
