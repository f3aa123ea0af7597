//! Admission of fan-out requests under limits that several shards share; see [`AcquireGuard`].

use std::sync::Arc;

use howdah_wire::backend::{Severity, encode};

use super::FanOuts;
use crate::{
    ConnectionLimit,
    call::{CoreCall, Step},
    clients::{Clients, leaving},
    peers::Peers,
    pools::Pools,
    refusal::ClientRefusal,
    state::{
        ids::{ClientId, PoolId},
        limits::{AcquireGuard, TryAcquireError},
    },
};

impl FanOuts {
    /// Admits a client's fan-out request, queues it until the shared limits allow it, or refuses it
    /// because they never will.
    pub(super) fn acquire_connections(
        &mut self,
        peers: &mut Peers,
        pools: &Pools,
        call: &mut CoreCall<'_>,
        id: ClientId,
    ) {
        let Some(client) = peers.clients.get(id) else { return };
        let Some(fan_out) = &client.fan_out else { return };
        let owner = client.owner_pool;
        let needed = shared_limits(pools, owner, &fan_out.request.shards);
        let guard = match self.first(&peers.clients, owner) {
            Some(first) if first != id => Err(TryAcquireError::Busy),
            _ => AcquireGuard::try_acquire(needed),
        };
        let Some(fan_out) = peers.fan_out_mut(id) else { return };
        match guard {
            Err(TryAcquireError::Busy) => {
                if !self.awaiting.contains(&(owner, id)) {
                    self.awaiting.push_back((owner, id));
                }
                return;
            }
            Ok(guard) => {
                fan_out.acquire_guard = Some(guard);
                call.steps.push(Step::Client(id));
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
                call.io.request_failed(id, &text);
                peers.send_merged(id, &out, call);
            }
        }
        self.awaiting.retain(|is_waiting| is_waiting.1 != id);
        call.steps.push(Step::NextFanOut(owner));
    }

    /// Lets the next waiting request of an owner pool try again, because one has been admitted or
    /// has ended. Its admission in turn wakes the one after it.
    pub(crate) fn wake_next(&mut self, clients: &Clients, call: &mut CoreCall<'_>, owner: PoolId) {
        call.steps.push_if_any(self.first(clients, owner).map(Step::Client));
    }

    /// Returns the client of an owner pool whose fan-out request has waited longest.
    fn first(&mut self, clients: &Clients, owner: PoolId) -> Option<ClientId> {
        let is_waiting = |id: ClientId| {
            let fan_out = clients.get(id).and_then(|client| client.fan_out.as_ref());
            fan_out.is_some_and(|fan_out| fan_out.acquire_guard.is_none() && !fan_out.is_aborting)
        };
        if self.awaiting.is_empty() {
            return None;
        }
        self.awaiting.retain(|(_, id)| is_waiting(*id));
        self.awaiting.iter().find(|is_waiting| is_waiting.0 == owner).map(|(_, id)| *id)
    }

    /// Lets the first waiting request of each owner pool try again, since requests in other workers
    /// or pools may have ended. Disconnects clients that have waited for at least `query_wait`,
    /// unless the database is paused.
    pub(crate) fn sweep(&mut self, peers: &mut Peers, pools: &mut Pools, call: &mut CoreCall<'_>) {
        for (owner, id) in Vec::from_iter(self.awaiting.iter().copied()) {
            let Some(client) = peers.clients.get(id) else { continue };
            let Some(pool) = pools.get(owner) else { continue };
            let waited = call.now.since(client.state_since);
            let limit =
                pool.spec.timeouts.query_wait.filter(|_| !pool.spec.admin_state.is_paused());
            if limit.is_some_and(|limit| waited >= limit) {
                leaving::refuse(peers, pools, call, id, &ClientRefusal::QueryWaitTimeout);
            } else {
                self.wake_next(&peers.clients, call, owner);
            }
        }
    }
}

/// Returns the connection limits that apply to more than one of the `shards`, each with the
/// number of these shards.
fn shared_limits(pools: &Pools, owner: PoolId, shards: &[u32]) -> Vec<(Arc<ConnectionLimit>, u32)> {
    let mut needed: Vec<(Arc<ConnectionLimit>, u32)> = Vec::new();
    for shard in shards {
        let mut shard_limits: Vec<&Arc<ConnectionLimit>> = Vec::new();
        for pool in pools.cluster_pools(owner) {
            let Some(spec) = pools.get(pool).map(|pool| &pool.spec) else {
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

/// SQLSTATE `too_many_connections`.
const TOO_MANY_CONNECTIONS: &[u8] = b"53300";
