//! What an operator orders: pausing, replacing servers, ending clients.

use super::Core;
use crate::{
    Io,
    client::{Client, ClientState},
    ids::{ClientId, PoolId, ServerId},
    refusal::Refusal,
    server::{Server, ServerState},
    time::Time,
};

impl Core {
    /// Some [`crate::Gate`] was turned: idle servers that are not to be used are closed, and clients
    /// that may have one are served.
    pub fn gates_turned(&mut self, now: Time, io: &mut dyn Io) {
        self.now = now;
        for pool in self.known_pools() {
            self.close_barred(pool, io);
        }
        for pool in self.known_pools() {
            self.open_for_waiting(pool, io);
            self.serve(pool, io);
        }
        self.follow_spreads(io);
    }

    /// Closes idle servers of a pool that are not to be used.
    pub(super) fn close_barred(&mut self, pool: PoolId, io: &mut dyn Io) {
        let idle = self.pools.get(pool.index()).and_then(Option::as_ref).map(|it| it.idle.clone());
        for id in idle.into_iter().flatten() {
            let server = self.servers.get(id);
            if server.is_some_and(|it| it.state == ServerState::Idle) && self.ends(id) {
                self.close_server(id, io);
            }
        }
    }

    /// Pools were given other settings by [`Core::set_pool`]: servers that are of no use, or too many,
    /// are closed, those in use when they become free; clients of databases that are gone are sent away,
    /// those in a transaction at its end; who may have a server now gets one.
    pub fn pools_changed(&mut self, now: Time, io: &mut dyn Io) {
        self.now = now;
        self.draw_again();
        for index in 0..self.clients.slots() {
            self.let_go(index, io);
        }
        self.gates_turned(now, io);
    }

    /// Sends a client away whose database is gone, if it can be.
    pub(super) fn let_go(&mut self, index: usize, io: &mut dyn Io) {
        let Some((id, client)) = self.clients.at(index) else { return };
        let pool = self.pools[client.home.index()].as_ref();
        let closes = pool.is_some_and(|pool| pool.spec.closes);
        if closes && client.is_somebody() && self.is_at_rest(client) {
            self.refuse(id, &Refusal::DatabaseRemoved, io);
        }
    }

    /// Whether a client asks for nothing and is in no transaction, whoever has its server; or has not
    /// been greeted, or waits for a server that it is not to get.
    pub(super) fn is_at_rest(&self, client: &Client) -> bool {
        match client.state {
            ClientState::Welcome => true,
            ClientState::Idle => !client.asks(),
            ClientState::Waiting | ClientState::Spread => false,
            ClientState::Linked(server) => {
                let is_settled = self.servers.get(server).is_some_and(Server::is_settled);
                is_settled && !client.asks()
            }
        }
    }

    /// Ends all clients and servers of a pool, whatever they do.
    pub fn kill_pool(&mut self, pool: PoolId, now: Time, io: &mut dyn Io) {
        self.now = now;
        for index in 0..self.clients.slots() {
            if let Some((id, client)) = self.clients.at(index)
                && client.is_somebody()
                && (client.pool == pool || client.home == pool)
            {
                self.refuse(id, &Refusal::Killed, io);
            }
        }
        for index in 0..self.servers.slots() {
            if let Some((id, server)) = self.servers.at(index)
                && server.pool == pool
                && matches!(server.state, ServerState::Idle | ServerState::Cleaning)
            {
                self.close_server(id, io);
            }
        }
        self.follow_spreads(io);
    }

    /// Ends a client. Gives whether it was there.
    pub fn kill_client(&mut self, id: ClientId, now: Time, io: &mut dyn Io) -> bool {
        self.now = now;
        let is_there = self.clients.get(id).is_some();
        self.refuse(id, &Refusal::Killed, io);
        self.follow_spreads(io);
        is_there
    }

    /// Whether a server that is free has to be closed, because it is not to be used any more, or not now,
    /// or is one too many. To be asked by who closes it then: another is not one too many any more.
    #[inline]
    pub(super) fn ends(&mut self, id: ServerId) -> bool {
        let Some(server) = self.servers.get(id) else { return false };
        let Some(pool) = &self.pools[server.pool.index()] else { return false };
        let is_idle = || pool.waiting.is_empty();
        pool.spec.is_paused()
            || (pool.spec.closes || self.keeps_no_servers) && is_idle()
            || pool.spec.epoch() != server.epoch
            || pool.shrinks
                && self.servers.get_mut(id).is_some_and(|it| it.permits.give_up_surplus())
    }

    /// Whether a server is to be replaced.
    #[inline]
    pub(super) fn is_outdated(&self, server: &Server) -> bool {
        let pool = self.pools[server.pool.index()].as_ref();
        pool.is_some_and(|pool| pool.spec.epoch() != server.epoch)
    }

    fn known_pools(&self) -> Vec<PoolId> {
        let pools = (0..).map(PoolId).zip(&self.pools);
        pools.filter(|(_, pool)| pool.is_some()).map(|(id, _)| id).collect()
    }
}
