//! Admission of fan-out requests under limits that several shards share; see [`AcquireGuard`].

use std::sync::Arc;

use howdah_wire::backend::{Severity, encode};

use crate::{
    ConnectionLimit, CoreIo,
    refusal::ClientRefusal,
    state::{
        ids::{ClientId, PoolId},
        limits::{AcquireGuard, TryAcquireError},
    },
};
use crate::{Core, DeferredWork};

impl Core {
    /// Admits a client's fan-out request, queues it until the shared limits allow it, or refuses it
    /// because they never will.
    pub(super) fn acquire_connections(&mut self, id: ClientId, io: &mut dyn CoreIo) {
        let Some(client) = self.clients.get(id) else { return };
        let Some(fan_out) = &client.fan_out else { return };
        let owner = client.owner_pool;
        let needed = self.shared_limits(owner, &fan_out.request.shards);
        let guard = match self.first_awaiting_fan_out(owner) {
            Some(first) if first != id => Err(TryAcquireError::Busy),
            _ => AcquireGuard::try_acquire(needed),
        };
        let client = self.clients.get_mut(id);
        let Some(fan_out) = client.and_then(|client| client.fan_out.as_mut()) else { return };
        match guard {
            Err(TryAcquireError::Busy) => {
                if !self.awaiting_fan_out.contains(&(owner, id)) {
                    self.awaiting_fan_out.push_back((owner, id));
                }
                return;
            }
            Ok(guard) => {
                fan_out.acquire_guard = Some(guard);
                self.deferred.push(DeferredWork::Client(id));
            }
            Err(TryAcquireError::Impossible { needed, max }) => {
                let (mut error, mut out) = (Vec::new(), Vec::new());
                let text = format!(
                    "this request needs server connections to {needed} shards at once, but a limit \
                     that they share allows {max}"
                );
                let fields =
                    encode::essentials(Severity::Error, TOO_MANY_CONNECTIONS, text.as_bytes());
                encode::error_response(&mut error, fields).expect("the text has no zero byte");
                fan_out.merger.refuse(&error, &mut out);
                io.request_failed(id, &text);
                self.send_merged(id, &out, io);
            }
        }
        self.awaiting_fan_out.retain(|is_waiting| is_waiting.1 != id);
        self.wake_next_fan_out(owner);
    }

    /// Called when a fan-out request has been admitted or has ended: lets the next waiting request
    /// of the owner pool try again. Its admission in turn wakes the one after it.
    pub(super) fn wake_next_fan_out(&mut self, owner: PoolId) {
        let first = self.first_awaiting_fan_out(owner);
        self.deferred.extend(first.map(DeferredWork::Client));
    }

    /// Returns the client of an owner pool whose fan-out request has waited longest.
    fn first_awaiting_fan_out(&mut self, owner: PoolId) -> Option<ClientId> {
        let clients = &self.clients;
        let is_waiting = |id: ClientId| {
            let fan_out = clients.get(id).and_then(|client| client.fan_out.as_ref());
            fan_out.is_some_and(|fan_out| fan_out.acquire_guard.is_none() && !fan_out.is_aborting)
        };
        if self.awaiting_fan_out.is_empty() {
            return None;
        }
        self.awaiting_fan_out.retain(|(_, id)| is_waiting(*id));
        self.awaiting_fan_out.iter().find(|is_waiting| is_waiting.0 == owner).map(|(_, id)| *id)
    }

    /// Lets the first waiting request of each owner pool try again, since requests in other workers
    /// or pools may have ended. Disconnects clients that have waited for at least `query_wait`,
    /// unless the database is paused.
    pub(crate) fn sweep_awaiting_fan_outs(&mut self, io: &mut dyn CoreIo) {
        for (owner, id) in Vec::from_iter(self.awaiting_fan_out.iter().copied()) {
            let Some(client) = self.clients.get(id) else { continue };
            let Some(pool) = &self.pools[owner.index()] else { continue };
            let waited = self.now.since(client.state_since);
            let limit =
                pool.spec.timeouts.query_wait.filter(|_| !pool.spec.admin_state.is_paused());
            if limit.is_some_and(|limit| waited >= limit) {
                self.refuse(id, &ClientRefusal::QueryWaitTimeout, io);
            } else {
                self.wake_next_fan_out(owner);
            }
        }
    }

    /// Returns the connection limits that apply to more than one of the `shards`, each with the
    /// number of these shards.
    fn shared_limits(&self, owner: PoolId, shards: &[u32]) -> Vec<(Arc<ConnectionLimit>, u32)> {
        let mut needed: Vec<(Arc<ConnectionLimit>, u32)> = Vec::new();
        for shard in shards {
            let mut shard_limits: Vec<&Arc<ConnectionLimit>> = Vec::new();
            for pool in self.cluster_pools(owner) {
                let Some(spec) = self.pools[pool.index()].as_ref().map(|pool| &pool.spec) else {
                    continue;
                };
                if spec.member.as_ref().is_some_and(|member| member.shard == *shard) {
                    shard_limits.extend(spec.server_limits.iter());
                }
            }
            shard_limits.sort_unstable_by_key(|limit| Arc::as_ptr(limit));
            shard_limits.dedup_by_key(|limit| Arc::as_ptr(limit));
            for limit in shard_limits {
                match needed.iter_mut().find(|(known, _)| Arc::ptr_eq(known, limit)) {
                    Some((_, count)) => *count += 1,
                    None => needed.push((Arc::clone(limit), 1)),
                }
            }
        }
        needed.retain(|(_, count)| *count > 1);
        needed
    }
}

/// SQLSTATE `too_many_connections`.
const TOO_MANY_CONNECTIONS: &[u8] = b"53300";
