//! [`ShardBalancers`]: selects members for a worker's clients of one database. Each shard is a
//! cluster; without sharding, there is one.

use std::sync::Arc;

use super::{
    CausalToken, ClusterSpec, TargetRole,
    member_balancer::{MemberBalancer, MemberRequirement},
};
use crate::{
    state::{
        ids::{PoolId, WorkerId},
        pool_stats::PoolStats,
    },
    time::Time,
};

/// A worker's load balancers for a database, one per shard.
#[derive(Debug)]
pub(crate) struct ShardBalancers {
    shards: Box<[MemberBalancer]>,
    /// The shard chosen last for a client that may use any shard.
    last_shard: usize,
    /// The members' state when waiting clients were last moved to suitable members.
    redirected_at: u64,
    worker: WorkerId,
}

/// Identifies a member by its shard and its index within the shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemberIndex {
    /// Index of the shard in the configured order.
    pub shard: usize,
    /// Index of the server within the shard.
    pub member: usize,
}

/// The conditions that a server must meet for a client, including the required shard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemberRequest<'a> {
    pub(crate) role: TargetRole,
    /// The required shard; `None` for any.
    pub(crate) shard: Option<u32>,
    /// The client's writes so far, if it reads its own writes.
    pub(crate) causal_token: Option<&'a CausalToken>,
    /// Whether the primary is suitable for role `replica` while no standby has replayed the
    /// client's writes.
    pub(crate) can_use_primary: bool,
}

impl MemberRequest<'_> {
    fn for_shard(&self, shard: usize) -> MemberRequirement {
        let min_replayed =
            self.causal_token.map(|causal_token| causal_token.for_shard(shard)).unwrap_or_default();
        MemberRequirement { role: self.role, min_replayed, can_use_primary: self.can_use_primary }
    }
}

/// The result of a choice for a client that may have written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemberChoice {
    /// A member that is suitable regardless of the client's writes, or has replayed them.
    Chosen(PoolId),
    /// The primary, because no standby has replayed the client's writes.
    Redirected(PoolId),
    /// No member can be used yet: no standby has replayed the client's writes, and no other server
    /// is suitable.
    AwaitReplay,
    /// No member is suitable.
    NoMember,
}

impl ShardBalancers {
    /// Creates balancers for the clusters of a database; `None` without clusters.
    pub(crate) fn new(clusters: &[Arc<ClusterSpec>], worker: WorkerId) -> Option<Box<Self>> {
        let balancer =
            |cluster: &Arc<ClusterSpec>| MemberBalancer::new(Arc::clone(cluster), worker);
        let shards: Box<[MemberBalancer]> = clusters.iter().map(balancer).collect();
        (!shards.is_empty())
            .then(|| Box::new(Self { shards, last_shard: 0, redirected_at: 0, worker }))
    }

    /// Replaces the balancers after a change of the configuration; measured speeds are lost.
    pub(crate) fn update(&mut self, clusters: &[Arc<ClusterSpec>]) {
        if let Some(balancers) = Self::new(clusters, self.worker) {
            *self = *balancers;
        }
    }

    /// Copies the states of members in each shard whose copy may be outdated. Returns whether any
    /// were copied.
    pub(crate) fn refresh(&mut self) -> bool {
        self.shards.iter_mut().fold(false, |has_changed, shard| shard.refresh() | has_changed)
    }

    /// Whether the state of any member has changed since [`Self::mark_redirected`]. The copies may
    /// be newer: each choice of a member refreshes them.
    #[inline]
    pub(crate) fn needs_redirect(&self) -> bool {
        self.redirected_at != self.state_version()
    }

    /// Records that all waiting clients are about to be moved to suitable members.
    pub(crate) fn mark_redirected(&mut self) {
        self.redirected_at = self.state_version();
    }

    /// Returns the sum of the shards' versions, which changes whenever one of them does: versions
    /// only grow.
    fn state_version(&self) -> u64 {
        self.shards.iter().map(|shard| u64::from(shard.cluster.state.version())).sum()
    }

    /// Updates slow starts and measured speeds in all shards.
    pub(crate) fn tick<'a>(&mut self, now: Time, stats: impl Fn(PoolId) -> Option<&'a PoolStats>) {
        for shard in &mut self.shards {
            let cluster = Arc::clone(&shard.cluster);
            shard.tick(now, |at| stats(cluster.members[at].pool));
        }
    }

    /// Returns the indexes and pools of all members of all shards.
    pub(crate) fn members(&self) -> impl Iterator<Item = (MemberIndex, PoolId)> {
        self.shards.iter().enumerate().flat_map(|(shard, balancer)| {
            let members = balancer.cluster.members.iter().enumerate();
            members.map(move |(member, of)| (MemberIndex { shard, member }, of.pool))
        })
    }

    /// Whether a member meets the request's conditions.
    pub(crate) fn satisfies(&mut self, index: MemberIndex, request: &MemberRequest<'_>) -> bool {
        let is_there =
            request.shard.is_none_or(|required| usize::try_from(required) == Ok(index.shard));
        let balancer = self.shards.get_mut(index.shard).filter(|_| is_there);
        balancer.is_some_and(|balancer| {
            balancer.satisfies(index.member, request.for_shard(index.shard))
        })
    }

    /// Whether a suitable member has a pool other than `pool`.
    pub(crate) fn has_other(&self, pool: PoolId, request: &MemberRequest<'_>) -> bool {
        let shards = self.shards.iter().enumerate();
        let mut shards = shards.filter(|(shard, _)| {
            request.shard.is_none_or(|required| usize::try_from(required) == Ok(*shard))
        });
        shards.any(|(shard, balancer)| balancer.has_other(pool, request.for_shard(shard)))
    }

    /// Returns the pool for the next client of a role, if a single member is suitable or all
    /// suitable members simply take turns; otherwise `None`, and [`Self::choose`] is needed.
    #[inline]
    pub(crate) fn choose_fast(&mut self, role: TargetRole, shard: Option<u32>) -> Option<PoolId> {
        let at = match shard {
            Some(shard) => usize::try_from(shard).ok()?,
            None if self.shards.len() == 1 => 0,
            None => self.next_shard(),
        };
        self.shards.get_mut(at)?.choose_fast(role)
    }

    /// Chooses the pool for the next client. `load` returns the current load of a pool in this
    /// worker. For [`MemberChoice::AwaitReplay`], checks of the standbys are requested.
    pub(crate) fn choose(
        &mut self,
        request: &MemberRequest<'_>,
        load: impl Fn(PoolId) -> u64,
    ) -> MemberChoice {
        let count = self.shards.len();
        let (first, tries) = match request.shard.map(usize::try_from) {
            Some(Ok(shard)) => (shard, 1),
            Some(Err(_)) => return MemberChoice::NoMember,
            None => (self.next_shard(), count),
        };
        // If no shard is required, the next shard with a suitable member is used.
        let mut none = MemberChoice::NoMember;
        for more in 0..tries {
            let at = if tries == 1 { first } else { (first + more) % count };
            let Some(balancer) = self.shards.get_mut(at) else { continue };
            let (cluster, required) = (Arc::clone(&balancer.cluster), request.for_shard(at));
            let chosen = balancer.choose(required, |member| load(cluster.members[member].pool));
            let is_behind =
                request.causal_token.is_some() && balancer.standbys_are_behind(required);
            match chosen {
                Some(member) => {
                    let pool = cluster.members[member].pool;
                    let is_redirected = is_behind && balancer.is_primary(member);
                    return if is_redirected {
                        MemberChoice::Redirected(pool)
                    } else {
                        MemberChoice::Chosen(pool)
                    };
                }
                None if is_behind => {
                    cluster.state.write_tracker.request_replay();
                    none = MemberChoice::AwaitReplay;
                }
                None => {}
            }
        }
        none
    }

    /// Returns the next shard, for clients that may use any.
    fn next_shard(&mut self) -> usize {
        self.last_shard = (self.last_shard + 1) % self.shards.len();
        self.last_shard
    }
}
