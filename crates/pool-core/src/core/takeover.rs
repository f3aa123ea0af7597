//! [`Takeover`]: a core's clients on their way to and from another process.

use std::sync::Arc;

use crate::{
    Core, CoreIo,
    clients::handover::{self, ClientHandover},
    engines::Engines,
    state::ids::{ClientId, PoolId},
    time::Time,
};

/// A core, as seen by the takeover of its clients by another process, or of another's clients.
#[derive(Debug)]
pub struct Takeover<'a>(pub(super) &'a mut Core);

impl<'a> Takeover<'a> {
    pub(super) fn new(core: &'a mut Core) -> Self {
        Self(core)
    }

    /// Returns the clients that can be handed over now: they have no server, no unfinished request,
    /// no unsent reply or notification, and prepared statements of at most 16 MiB.
    pub fn candidates(&self) -> Vec<ClientId> {
        handover::candidates(&self.0.engines.peers.clients)
    }

    /// Removes a client without closing its connection, and returns its owner pool and state. Its
    /// slot may then be reused. Returns `None`, without any change, if the client cannot be handed
    /// over now.
    pub fn hand_over(
        &mut self,
        id: ClientId,
        now: Time,
        io: &mut dyn CoreIo,
    ) -> Option<(PoolId, ClientHandover)> {
        self.0.run(now, io, |Engines { peers, pools, .. }, call| {
            handover::hand_over(peers, pools.worker, call, id)
        })
    }

    /// Adds a client that another process handed over. Returns `None` if this worker does not have
    /// the client's pool.
    pub fn adopt(&mut self, pool: PoolId, handover: ClientHandover, now: Time) -> Option<ClientId> {
        let Engines { peers, pools, sessions, routers, mirrors, .. } = &mut self.0.engines;
        let spec = Arc::clone(&pools.get(pool)?.spec);
        let mut client = handover::adopt(pools, routers, sessions, pool, handover, now);
        mirrors.sample(&mut client, &spec.mirrors);
        Some(peers.clients.insert(client))
    }
}
