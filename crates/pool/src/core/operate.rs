//! What an operator orders: pausing, replacing servers, ending clients.

use super::Core;
use crate::{
    Io,
    ids::{ClientId, PoolId},
    refusal::Refusal,
    server::{Server, ServerState},
    time::Time,
};

impl Core {
    /// Some [`crate::Gate`] was turned: idle servers that are not to be used are closed, and clients
    /// that may have one are served.
    pub fn gates_turned(&mut self, now: Time, io: &mut dyn Io) {
        self.now = now;
        for index in 0..self.servers.slots() {
            let Some((id, server)) = self.servers.at(index) else { continue };
            if server.state == ServerState::Idle && self.is_barred(server) {
                self.close_server(id, io);
            }
        }
        for pool in self.known_pools() {
            self.open_for_waiting(pool, io);
            self.serve(pool, io);
        }
    }

    /// Ends all clients and servers of a pool, whatever they do.
    pub fn kill_pool(&mut self, pool: PoolId, now: Time, io: &mut dyn Io) {
        self.now = now;
        for index in 0..self.clients.slots() {
            if let Some((id, client)) = self.clients.at(index)
                && client.pool == pool
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
    }

    /// Ends a client. Gives whether it was there.
    pub fn kill_client(&mut self, id: ClientId, now: Time, io: &mut dyn Io) -> bool {
        self.now = now;
        let is_there = self.clients.get(id).is_some();
        self.refuse(id, &Refusal::Killed, io);
        is_there
    }

    /// Whether a server is not to be used any more, or not now.
    #[inline]
    pub(super) fn is_barred(&self, server: &Server) -> bool {
        let pool = self.pools[server.pool.index()].as_ref();
        pool.is_some_and(|pool| pool.spec.gate.is_paused()) || self.is_outdated(server)
    }

    /// Whether a server is to be replaced.
    #[inline]
    pub(super) fn is_outdated(&self, server: &Server) -> bool {
        let pool = self.pools[server.pool.index()].as_ref();
        pool.is_some_and(|pool| pool.spec.gate.epoch() != server.epoch)
    }

    fn known_pools(&self) -> Vec<PoolId> {
        let pools = (0..).map(PoolId).zip(&self.pools);
        pools.filter(|(_, pool)| pool.is_some()).map(|(id, _)| id).collect()
    }
}
