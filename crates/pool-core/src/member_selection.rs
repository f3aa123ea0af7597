//! Selects the cluster member whose servers each client uses, and reacts when a member fails.
//!
//! A waiting client is in the queue of exactly one pool: the pool of the member selected for it or,
//! while no member is suitable, its owner pool, which has no servers. It may move to another queue
//! when the cluster's state changes or another member has an idle server; its waiting time includes
//! that in earlier queues.

use std::time::Duration;

use super::Core;
use crate::{
    CoreIo, TargetRole,
    cluster::{MemberChoice, MemberIndex, MemberRequest},
    login::ServerFailure,
    refusal::ClientRefusal,
    routing::target_role,
    state::{
        client::{ClientConnection, ClientState},
        ids::{ClientId, PoolId, ServerId},
        pool::PoolState,
        server::ServerState,
    },
    time::Time,
};

/// How long a client waits for one member before it moves to another that has an idle server.
const MOVE_DELAY: Duration = Duration::from_millis(100);

/// Returns what a client requires of a member: role, shard, and replay of its own writes.
pub(super) fn member_request(client: &ClientConnection) -> MemberRequest<'_> {
    let ClientConnection { role, shard, can_use_primary, .. } = *client;
    MemberRequest { role, shard, causal_token: client.causal_token.as_deref(), can_use_primary }
}

impl Core {
    /// Sets the role of the servers that a client uses from its next transaction on. A transaction
    /// that already has a server is not affected. A client with routing state of its own is not
    /// affected either. Returns `false` if the client does not exist or its database is not a
    /// cluster.
    pub fn set_role(&mut self, id: ClientId, role: TargetRole) -> bool {
        let client = self.clients.get_mut(id).filter(|client| client.is_clustered);
        let of_client = |client: &mut ClientConnection| {
            (client.role, client.requested_role) = (role, Some(role.into()));
        };
        client.map(of_client).is_some()
    }

    /// Handles changed states of cluster members: waiting clients and requests that can be rerouted
    /// move to suitable members, servers that must not be used any more are closed, and their
    /// clients are disconnected.
    pub fn cluster_state_changed(&mut self, now: Time, io: &mut dyn CoreIo) {
        self.now = now;
        for owner in self.owner_pools() {
            // Redirect waiting clients first, so that none of them gets a server that is about to
            // be closed.
            self.redirect_waiting(owner, io);
            self.reroute_requests(owner, io);
            self.fence_members(owner, io);
            for pool in self.cluster_pools(owner) {
                self.close_unusable_idle(pool, io);
            }
        }
        self.run_deferred(io);
    }

    /// If a new client's owner pool has clusters, marks the client as clustered and sets its role:
    /// the requested one (`role`), or that of the pool.
    pub(super) fn attach_to_cluster(
        &self,
        client: &mut ClientConnection,
        role: Option<TargetRole>,
    ) {
        let pool = self.pools.get(client.owner_pool.index()).and_then(Option::as_ref);
        if let Some(pool) = pool.filter(|pool| !pool.spec.clusters.is_empty()) {
            let routing = pool.spec.routing.as_ref();
            client.is_clustered = true;
            client.role =
                role.or(routing.map(|routing| target_role(routing.role))).unwrap_or_default();
        }
    }

    /// Selects the member whose servers a client uses next, or its owner pool if none is suitable.
    /// Returns `None` if the client is not clustered.
    pub(super) fn select_member(&mut self, id: ClientId) -> Option<PoolId> {
        let client = self.clients.get(id).filter(|client| client.is_clustered)?;
        let chosen = if client.causal_token.is_none() {
            self.choose_member(client.owner_pool, client.role, client.shard)
        } else {
            self.choose_causal_member(id)
        };
        self.clients.get_mut(id)?.pool = chosen;
        Some(chosen)
    }

    /// Like [`Core::choose_member`], for a client that must see its own writes.
    #[cold]
    pub(super) fn choose_causal_member(&mut self, id: ClientId) -> PoolId {
        let client = self.clients.get(id).expect("the caller has checked that the client exists");
        let owner = client.owner_pool;
        let pool = self.pools[owner.index()].as_mut();
        let Some(mut balancers) = pool.and_then(|pool| pool.balancers.take()) else { return owner };
        let load = |pool: PoolId| self.pools[pool.index()].as_ref().map_or(0, PoolState::load);
        let choice = balancers.choose(&member_request(client), load);
        self.pool(owner).balancers = Some(balancers);
        match choice {
            MemberChoice::Chosen(pool) if self.has_pool(pool) => pool,
            MemberChoice::Redirected(pool) if self.has_pool(pool) => {
                self.pool(pool).stats.reads_redirected += 1;
                pool
            }
            MemberChoice::AwaitReplay => {
                self.pool(owner).stats.reads_waited += 1;
                owner
            }
            _ => owner,
        }
    }

    /// Records that a client's transaction on a member has written data, or may have: the client's
    /// later reads must see it.
    #[cold]
    pub(super) fn record_write(&mut self, id: ClientId, pool: PoolId, io: &mut dyn CoreIo) {
        let spec = self.pools[pool.index()].as_ref().map(|pool| &pool.spec);
        let Some(member) = spec.and_then(|spec| spec.member.as_ref()) else { return };
        let (required_check, is_first) = member.state.write_tracker.record_write();
        if let Some(client) = self.clients.get_mut(id).filter(|client| client.has_read_your_writes)
        {
            client.causal_token.get_or_insert_default().raise(member.shard, required_check);
        }
        if is_first {
            io.check_primary(pool);
        }
    }

    /// Returns the pool of the member that serves the next request for a role and a shard (`None`:
    /// any shard), or the owner pool if no member is suitable.
    #[inline]
    pub(super) fn choose_member(
        &mut self,
        owner: PoolId,
        role: TargetRole,
        shard: Option<u32>,
    ) -> PoolId {
        let pool = self.pools[owner.index()].as_mut();
        if let Some(balancers) = pool.and_then(|pool| pool.balancers.as_mut())
            && let Some(pool) = balancers.choose_fast(role, shard)
            && self.has_pool(pool)
        {
            return pool;
        }
        self.choose_member_by_load(owner, role, shard).unwrap_or(owner)
    }

    /// The slow path of [`Core::choose_member`], for example if members must be compared, or if
    /// none is suitable.
    fn choose_member_by_load(
        &mut self,
        owner: PoolId,
        role: TargetRole,
        shard: Option<u32>,
    ) -> Option<PoolId> {
        let mut balancers = self.pools[owner.index()].as_mut()?.balancers.take()?;
        let load = |pool: PoolId| self.pools[pool.index()].as_ref().map_or(0, PoolState::load);
        let request = MemberRequest { role, shard, causal_token: None, can_use_primary: false };
        let chosen = balancers.choose(&request, load);
        self.pool(owner).balancers = Some(balancers);
        match chosen {
            MemberChoice::Chosen(pool) if self.has_pool(pool) => Some(pool),
            _ => None,
        }
    }

    /// Called when the connection to a server was lost or must be aborted: requests a health check
    /// of its member.
    pub(super) fn suspect_member(&mut self, id: ServerId, io: &mut dyn CoreIo) {
        let Some(server) = self.servers.get(id) else { return };
        let pool = server.pool;
        if server.state == ServerState::Opening {
            return;
        }
        let spec = &self.pools[pool.index()].as_ref().expect("a pool with servers exists").spec;
        if let Some(member) = &spec.member {
            member.state.suspect();
            io.server_suspected(pool);
        }
    }

    /// Called when a login to a member has failed because it is stopped, starting or unreachable:
    /// its waiting clients move to another suitable member, if there is one.
    pub(super) fn member_failed(
        &mut self,
        pool: PoolId,
        failure: &ServerFailure,
        io: &mut dyn CoreIo,
    ) {
        let spec = &self.pools[pool.index()].as_ref().expect("a pool with servers exists").spec;
        let Some(member) = &spec.member else { return };
        let owner = member.owner;
        member.state.connect_failed(self.now, &failure.message);
        io.server_suspected(pool);
        self.redirect_waiting(owner, io);
    }

    /// Updates the load balancers of all clusters, and applies changes of member states that the
    /// worker has not reported.
    pub(super) fn sweep_clusters(&mut self, io: &mut dyn CoreIo) {
        for owner in self.owner_pools() {
            let Some(mut balancers) = self.pool(owner).balancers.take() else { continue };
            let pools = &self.pools;
            balancers.tick(self.now, |pool| pools[pool.index()].as_ref().map(|pool| &pool.stats));
            let has_changed = balancers.refresh();
            self.pool(owner).balancers = Some(balancers);
            self.redirect_waiting(owner, io);
            if has_changed {
                self.reroute_requests(owner, io);
                self.fence_members(owner, io);
            }
        }
    }

    fn owner_pools(&self) -> Vec<PoolId> {
        let pools = (0..).map(PoolId).zip(&self.pools);
        let is_owner =
            |pool: &Option<PoolState>| pool.as_ref().is_some_and(|pool| pool.balancers.is_some());
        pools.filter(|(_, pool)| is_owner(pool)).map(|(id, _)| id).collect()
    }

    /// Returns the owner pool and the pools of all members.
    pub(super) fn cluster_pools(&self, owner: PoolId) -> Vec<PoolId> {
        let members = self.member_pools(owner).into_iter();
        [owner].into_iter().chain(members.map(|(_, pool)| pool)).collect()
    }

    fn member_pools(&self, owner: PoolId) -> Vec<(MemberIndex, PoolId)> {
        let pool = self.pools[owner.index()].as_ref();
        let balancers = pool.and_then(|pool| pool.balancers.as_ref());
        balancers.iter().flat_map(|balancers| balancers.members()).collect()
    }

    /// Moves waiting clients to suitable members if the cluster's state has changed. Called before
    /// a member's servers are assigned, because the member may have become unsuitable: a primary
    /// may have been demoted during the login to it.
    #[inline]
    pub(super) fn apply_cluster_changes(&mut self, pool: PoolId, io: &mut dyn CoreIo) {
        let Some(state) = &self.pools[pool.index()] else { return };
        let Some(owner) = state.spec.member.as_ref().map(|member| member.owner) else { return };
        let owner_pool = self.pools[owner.index()].as_ref();
        let balancers = owner_pool.and_then(|owner| owner.balancers.as_ref());
        if balancers.is_some_and(|balancers| balancers.is_outdated()) {
            self.redirect_waiting(owner, io);
        }
    }

    /// Selects a member anew for each waiting client that may not stay in its queue, and serves the
    /// moved clients there.
    fn redirect_waiting(&mut self, owner: PoolId, io: &mut dyn CoreIo) {
        let mut gaining_pools = Vec::new();
        let members =
            self.member_pools(owner).into_iter().map(|(member, pool)| (Some(member), pool));
        for (member, pool) in [(None, owner)].into_iter().chain(members) {
            let Some(state) = &mut self.pools[pool.index()] else { continue };
            if state.waiting.is_empty() && state.awaiting_welcome.is_empty() {
                continue;
            }
            for id in std::mem::take(&mut state.waiting) {
                let waits = |client: &ClientConnection| {
                    client.state == ClientState::Waiting
                        && client.pool == pool
                        && client.owner_pool == owner
                };
                if !self.clients.get(id).is_some_and(waits) {
                    continue;
                }
                if self.may_stay_queued(owner, member, id) {
                    self.pool(pool).waiting.push_back(id);
                } else {
                    let target = self.select_member(id).unwrap_or(owner);
                    self.pool(target).waiting.push_back(id);
                    gaining_pools.push(target);
                }
            }
            for id in std::mem::take(&mut self.pool(pool).awaiting_welcome) {
                let waits = |client: &ClientConnection| client.state == ClientState::Welcome;
                if !self.clients.get(id).is_some_and(waits) {
                    continue;
                }
                let is_kept = self.may_stay_queued(owner, member, id);
                let target = if is_kept { pool } else { self.select_member(id).unwrap_or(owner) };
                self.pool(target).awaiting_welcome.push(id);
                gaining_pools.extend((!is_kept).then_some(target));
            }
        }
        gaining_pools.sort_unstable();
        gaining_pools.dedup();
        for target in gaining_pools {
            self.finish_pending_logins(target, io);
            self.serve_queue(target, io);
            self.open_for_waiting(target, io);
        }
    }

    /// Whether a waiting client may stay in the queue of `member`. Always `false` if `member` is
    /// `None`: the client is in the queue of its owner pool, so a member is selected anew.
    fn may_stay_queued(
        &mut self,
        owner: PoolId,
        member: Option<MemberIndex>,
        id: ClientId,
    ) -> bool {
        let Some(client) = self.clients.get(id) else { return false };
        let waited = self.now.since(client.state_since);
        let Some(member) = member else { return false };
        let pool = self.pools[owner.index()].as_mut();
        let Some(mut balancers) = pool.and_then(|pool| pool.balancers.take()) else { return true };
        let request = member_request(client);
        let is_suitable = balancers.satisfies(member, &request);
        let has_better = waited >= MOVE_DELAY && {
            let others: Vec<_> =
                balancers.members().filter(|(other, _)| *other != member).collect();
            others.into_iter().any(|(other, pool)| {
                let pool = self.pools[pool.index()].as_ref();
                balancers.satisfies(other, &request)
                    && pool.is_some_and(|it| !it.idle.is_empty() && it.waiting.is_empty())
            })
        };
        self.pool(owner).balancers = Some(balancers);
        is_suitable && !has_better
    }

    /// Closes connections to fenced primaries (replaced, or with another system identifier) and
    /// disconnects their clients: anything written there would be lost. Does the same for
    /// unresponsive members: as with any lost connection, it is unknown whether the last
    /// requests were executed, so the clients get an error and nothing is sent again.
    fn fence_members(&mut self, owner: PoolId, io: &mut dyn CoreIo) {
        for pool in self.cluster_pools(owner) {
            let Some(state) = &self.pools[pool.index()] else { continue };
            let Some(member) = state.spec.member.as_ref().filter(|_| state.servers > 0) else {
                continue;
            };
            let refusal = match () {
                () if member.state.is_fenced() => ClientRefusal::Fenced,
                () if member.state.is_unresponsive() => ClientRefusal::ServerUnresponsive,
                () => continue,
            };
            for index in 0..self.servers.slots() {
                let Some((id, server)) = self.servers.occupant(index) else { continue };
                if server.pool != pool || server.state == ServerState::Opening {
                    continue;
                }
                self.abort_server(id, &refusal, io);
            }
        }
    }
}
