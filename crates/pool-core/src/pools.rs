//! [`Pools`]: a worker's pools, with their queues of clients and idle servers, and the decisions
//! about them that need no connection: which member of a cluster serves a client, and whether a
//! server may be opened.

use std::{sync::Arc, time::Duration};

use crate::{
    TargetRole,
    cluster::{MemberChoice, MemberIndex, MemberRequest},
    login::ServerFailure,
    mirror::target::{MirrorTarget, have_equal_mirrors},
    refusal::ClientRefusal,
    routing::target_role,
    spec::PoolSpec,
    state::{
        client::{ClientConnection, MemberConditions},
        ids::{PoolId, WorkerId},
        pool::PoolState,
        pool_stats::PoolStats,
        server::ServerConnection,
    },
    time::Time,
};

/// How long a client waits for one member before it moves to another that has an idle server.
const MOVE_DELAY: Duration = Duration::from_millis(100);

/// The pools of a worker, by their ids.
#[derive(Debug)]
pub(crate) struct Pools {
    table: Vec<Option<PoolState>>,
    /// The number of the worker that these pools belong to.
    pub(crate) worker: WorkerId,
    /// Number of workers, among which [`PoolSpec::servers_min`] is divided.
    pub(crate) workers: u32,
    /// Whether a pool has, or once had, a share of [`PoolSpec::servers_min`] here: timers must then
    /// run even without clients and servers.
    pub(crate) has_min_pools: bool,
    /// Whether idle servers are closed as soon as no client waits for one, as during a takeover.
    pub(crate) closes_idle_servers: bool,
    /// Whether the worker is suspended and assigns no servers to clients.
    pub(crate) is_suspended: bool,
    /// Pools with waiting clients that cannot open a server because a limit is reached.
    pub(crate) starved: Vec<PoolId>,
    /// Number of requests that were rerouted from servers that fail health checks, since it was
    /// last read.
    pub(crate) reads_rerouted: u32,
}

impl Pools {
    pub(crate) fn new(worker: WorkerId) -> Self {
        Self {
            table: Vec::new(),
            worker,
            workers: 1,
            has_min_pools: false,
            closes_idle_servers: false,
            is_suspended: false,
            starved: Vec::new(),
            reads_rerouted: 0,
        }
    }

    /// Adds a pool, or gives an existing one new settings. Returns its previous mirrors if they
    /// have changed.
    pub(crate) fn set(&mut self, id: PoolId, spec: Arc<PoolSpec>) -> Option<Arc<[MirrorTarget]>> {
        if self.table.len() <= id.index() {
            self.table.resize_with(id.index() + 1, || None);
        }
        self.has_min_pools |= self.min_servers_here(&spec) > 0;
        match &mut self.table[id.index()] {
            Some(pool) => {
                let before = Arc::clone(&pool.spec.mirrors);
                let is_changed = !have_equal_mirrors(&before, &spec.mirrors);
                pool.update_spec(spec);
                is_changed.then_some(before)
            }
            none => {
                *none = Some(PoolState::new(spec, self.worker));
                None
            }
        }
    }

    /// Removes a pool without servers, unless it `is_occupied` by clients. Returns its statistics,
    /// which are empty if this worker does not have the pool; `None` if it stays.
    pub(crate) fn remove(&mut self, id: PoolId, is_occupied: bool) -> Option<PoolStats> {
        let Some(entry) = self.table.get_mut(id.index()) else { return Some(PoolStats::default()) };
        if entry.as_ref().is_some_and(|pool| pool.servers > 0 || is_occupied) {
            return None;
        }
        self.starved.retain(|starved| *starved != id);
        Some(entry.take().map(|pool| pool.stats).unwrap_or_default())
    }

    /// Returns a pool, if this worker has it.
    #[inline]
    pub(crate) fn get(&self, id: PoolId) -> Option<&PoolState> {
        self.table.get(id.index())?.as_ref()
    }

    /// Returns a pool, if this worker has it.
    #[inline]
    pub(crate) fn get_mut(&mut self, id: PoolId) -> Option<&mut PoolState> {
        self.table.get_mut(id.index())?.as_mut()
    }

    /// Returns a pool that has clients or servers.
    #[inline]
    pub(crate) fn pool(&mut self, id: PoolId) -> &mut PoolState {
        self.get_mut(id).expect("pools that have clients or servers are never removed")
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (PoolId, &PoolState)> {
        let pools = (0..).map(PoolId).zip(&self.table);
        pools.filter_map(|(id, pool)| pool.as_ref().map(|pool| (id, pool)))
    }

    pub(crate) fn ids(&self) -> Vec<PoolId> {
        self.iter().map(|(id, _)| id).collect()
    }

    /// Returns the pools that have clusters.
    pub(crate) fn owner_pools(&self) -> Vec<PoolId> {
        self.iter().filter(|(_, pool)| pool.balancers.is_some()).map(|(id, _)| id).collect()
    }

    /// If a new client's owner pool has clusters, marks the client as clustered and sets its role:
    /// the requested one (`role`), or that of the pool.
    pub(crate) fn attach_to_cluster(
        &self,
        client: &mut ClientConnection,
        role: Option<TargetRole>,
    ) {
        let pool = self.get(client.owner_pool);
        if let Some(pool) = pool.filter(|pool| !pool.spec.clusters.is_empty()) {
            let routing = pool.spec.routing.as_ref();
            client.member.is_clustered = true;
            client.member.role =
                role.or(routing.map(|routing| target_role(routing.role))).unwrap_or_default();
        }
    }

    /// Selects the member whose servers a client uses next, or its owner pool if none is suitable.
    /// Returns `None` if the client is not clustered.
    #[inline]
    pub(crate) fn select_member(&mut self, client: &mut ClientConnection) -> Option<PoolId> {
        if client.member.is_clustered { Some(self.select_member_of_cluster(client)) } else { None }
    }

    fn select_member_of_cluster(&mut self, client: &mut ClientConnection) -> PoolId {
        client.pool = if client.member.causal_token.is_none() {
            self.choose_member(client.owner_pool, client.member.role, client.member.shard)
        } else {
            self.choose_causal_member(client)
        };
        client.pool
    }

    /// Like [`Pools::choose_member`], for a client that must see its own writes.
    #[cold]
    fn choose_causal_member(&mut self, client: &ClientConnection) -> PoolId {
        let owner = client.owner_pool;
        let pool = self.get_mut(owner);
        let Some(mut balancers) = pool.and_then(|pool| pool.balancers.take()) else { return owner };
        let load = |pool: PoolId| self.get(pool).map_or(0, PoolState::load);
        let choice = balancers.choose(&member_request(client), load);
        self.pool(owner).balancers = Some(balancers);
        match choice {
            MemberChoice::Chosen(pool) if self.get(pool).is_some() => pool,
            MemberChoice::Redirected(pool) if self.get(pool).is_some() => {
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

    /// Returns the pool of the member that serves the next request for a role and a shard (`None`:
    /// any shard), or the owner pool if no member is suitable.
    #[inline]
    fn choose_member(&mut self, owner: PoolId, role: TargetRole, shard: Option<u32>) -> PoolId {
        let pool = self.get_mut(owner);
        if let Some(balancers) = pool.and_then(|pool| pool.balancers.as_mut())
            && let Some(pool) = balancers.choose_fast(role, shard)
            && self.get(pool).is_some()
        {
            return pool;
        }
        self.choose_member_by_load(owner, role, shard).unwrap_or(owner)
    }

    /// The slow path of [`Pools::choose_member`], for example if members must be compared, or if
    /// none is suitable.
    fn choose_member_by_load(
        &mut self,
        owner: PoolId,
        role: TargetRole,
        shard: Option<u32>,
    ) -> Option<PoolId> {
        let mut balancers = self.get_mut(owner)?.balancers.take()?;
        let load = |pool: PoolId| self.get(pool).map_or(0, PoolState::load);
        let request = MemberRequest { role, shard, causal_token: None, can_use_primary: false };
        let chosen = balancers.choose(&request, load);
        self.pool(owner).balancers = Some(balancers);
        match chosen {
            MemberChoice::Chosen(pool) if self.get(pool).is_some() => Some(pool),
            _ => None,
        }
    }

    /// Whether a member other than that of `pool` is suitable for a client.
    pub(crate) fn has_other_member(&self, client: &ClientConnection, pool: PoolId) -> bool {
        let owner = self.get(client.owner_pool);
        let balancers = owner.and_then(|owner| owner.balancers.as_ref());
        balancers.is_some_and(|balancers| balancers.has_other(pool, &member_request(client)))
    }

    /// Whether a waiting client may stay in the queue of `member`. Always `false` if `member` is
    /// `None`: the client is in the queue of its owner pool, so a member is selected anew.
    pub(crate) fn may_stay_queued(
        &mut self,
        owner: PoolId,
        member: Option<MemberIndex>,
        client: &ClientConnection,
        now: Time,
    ) -> bool {
        let waited = now.since(client.state_since);
        let Some(member) = member else { return false };
        let pool = self.get_mut(owner);
        let Some(mut balancers) = pool.and_then(|pool| pool.balancers.take()) else { return true };
        let request = member_request(client);
        let is_suitable = balancers.satisfies(member, &request);
        let has_better = waited >= MOVE_DELAY && {
            let others: Vec<_> =
                balancers.members().filter(|(other, _)| *other != member).collect();
            others.into_iter().any(|(other, pool)| {
                let pool = self.get(pool);
                balancers.satisfies(other, &request)
                    && pool.is_some_and(|it| !it.idle.is_empty() && it.waiting.is_empty())
            })
        };
        self.pool(owner).balancers = Some(balancers);
        is_suitable && !has_better
    }

    /// Returns the owner pool and the pools of all members.
    pub(crate) fn cluster_pools(&self, owner: PoolId) -> Vec<PoolId> {
        let members = self.member_pools(owner).into_iter();
        [owner].into_iter().chain(members.map(|(_, pool)| pool)).collect()
    }

    pub(crate) fn member_pools(&self, owner: PoolId) -> Vec<(MemberIndex, PoolId)> {
        let pool = self.get(owner);
        let balancers = pool.and_then(|pool| pool.balancers.as_ref());
        balancers.iter().flat_map(|balancers| balancers.members()).collect()
    }

    /// Returns this worker's share of [`PoolSpec::servers_min`]; the first workers get the
    /// remainder.
    pub(crate) fn min_servers_here(&self, spec: &PoolSpec) -> u32 {
        let (all, workers) = (spec.servers_min, self.workers.max(1));
        all / workers + u32::from(u32::from(self.worker.0) < all % workers)
    }

    /// Whether a pool may start a server login now, regardless of connection limits.
    fn may_open(&self, pool_id: PoolId, now: Time) -> bool {
        let Some(pool) = self.get(pool_id) else { return false };
        !pool.spec.is_paused()
            && !self.is_suspended
            && pool.spec.clusters.is_empty()
            && pool.opening < pool.spec.logins_max.max(1)
            && now >= pool.retry_at
    }

    pub(crate) fn needs_server(&self, pool_id: PoolId, now: Time) -> bool {
        let may_open = self.may_open(pool_id, now);
        let Some(pool) = self.get(pool_id) else { return false };
        let waiting = pool.waiting.len() + usize::from(!pool.awaiting_welcome.is_empty());
        may_open && (pool.opening as usize) < waiting.saturating_sub(pool.checking as usize)
    }

    /// Whether this worker has fewer servers than its share of [`PoolSpec::servers_min`], and may
    /// open another.
    pub(crate) fn is_below_min_pool(&self, pool_id: PoolId, now: Time) -> bool {
        let may_open = self.may_open(pool_id, now) && !self.closes_idle_servers;
        let pool = self.get(pool_id);
        may_open
            && pool.is_some_and(|pool| {
                let member = pool.spec.member.as_ref().map(|member| &member.state);
                pool.servers < self.min_servers_here(&pool.spec)
                    && now >= pool.fill_at
                    && !member.is_some_and(|member| member.is_fenced() || member.is_unresponsive())
            })
    }

    /// Whether a server must be replaced because its pool's epoch has changed, as by RECONNECT or a
    /// changed address.
    #[inline]
    pub(crate) fn is_outdated(&self, server: &ServerConnection) -> bool {
        let pool = self.get(server.pool);
        pool.is_some_and(|pool| pool.spec.epoch() != server.epoch)
    }

    /// Returns the reason to refuse a client that is logging in, if its pool's server is down and
    /// no login attempt is in progress or due. Otherwise, clients wait for the result of that
    /// attempt.
    pub(crate) fn refusal_at_login(&self, pool: PoolId, now: Time) -> Option<ClientRefusal> {
        let pool = self.get(pool)?;
        let is_early = pool.opening == 0 && now < pool.retry_at;
        let failure = pool.outage().filter(|_| is_early)?;
        let ServerFailure { sqlstate, message } = failure.clone();
        Some(ClientRefusal::ServerSetup { sqlstate, message })
    }
}

/// Returns what a client requires of a member: role, shard, and replay of its own writes.
fn member_request(client: &ClientConnection) -> MemberRequest<'_> {
    let MemberConditions { role, shard, can_use_primary, .. } = client.member;
    MemberRequest {
        role,
        shard,
        causal_token: client.member.causal_token.as_deref(),
        can_use_primary,
    }
}
