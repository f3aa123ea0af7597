//! A database of several shards, with one server each. Clients select a shard with the pooler's
//! commands, between any two transactions; their reference models, which have one server for
//! everything, receive the same commands.
//!
//! Each statement names its shard, which the server compares with its own. Keys in statements and
//! requests for several shards are not simulated.

use std::{sync::Arc, time::Duration};

use howdah_route::shard::{KeyType, ShardKey, ShardMap};
use howdah_route::{DefaultShard, RolePreference, RouteSettings};

use crate::{
    BalancingStrategy, ClusterMember, ClusterMembership, ClusterSpec, ClusterState,
    ConnectionLimit, PoolId, PoolSpec, PoolingMode, cluster::AssignedRole, sim::random::SimRandom,
};

/// The shards of the simulated database.
pub(super) struct SimShards {
    pub(super) owner_pool: PoolId,
    count: u32,
}

/// Returns the shard of an integer key.
pub(in crate::sim) fn shard_of(key: u32, shards: u32) -> u32 {
    let map = ShardMap::hash(shards, vec![KeyType::Int]).expect("there is a shard");
    map.shard(&[Some(ShardKey::Int(key.into()))]).expect("every key has one")
}

impl SimShards {
    /// Creates shards whose pool numbers follow that of their owner pool, the last of the specs so
    /// far.
    pub(super) fn new(random: &mut SimRandom, specs: &mut Vec<PoolSpec>) -> Option<Self> {
        let owner_pool = PoolId(u32::try_from(specs.len()).ok()?.checked_sub(1)?);
        let mut spec = specs.pop()?;
        spec.mode = PoolingMode::Transaction;
        let count = 2 + u32::try_from(random.below(2)).unwrap_or_default();
        let (mut clusters, mut members) = (Vec::new(), Vec::new());
        for shard in 0..count {
            let state = ClusterState::new([AssignedRole::Primary], Duration::from_millis(500));
            let member = Arc::clone(&state.members[0]);
            clusters.push(Arc::new(ClusterSpec {
                members: [ClusterMember {
                    pool: PoolId(owner_pool.0 + 1 + shard),
                    state: Arc::clone(&member),
                    weight: 1,
                }]
                .into(),
                strategy: BalancingStrategy::RoundRobin,
                failover_timeout: None,
                slow_start: Duration::ZERO,
                state,
            }));
            let membership = ClusterMembership {
                owner: owner_pool,
                shard,
                state: member,
                failover_timeout: None,
            };
            let limit = ConnectionLimit::new(spec.server_limits[0].max());
            members.push(PoolSpec {
                member: Some(membership),
                server_limits: [limit].into(),
                ..spec.clone()
            });
        }
        let routing = RouteSettings {
            role: RolePreference::Primary,
            shards: count,
            map: ShardMap::hash(count, vec![KeyType::Int]).ok(),
            default_shard: DefaultShard::Refuse,
            ..RouteSettings::default()
        };
        spec.routing = Some(Arc::new(routing));
        specs.push(PoolSpec { clusters: clusters.into(), ..spec });
        specs.extend(members);
        Some(Self { owner_pool, count })
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Returns the shard of a pool's servers.
    pub(super) fn shard_of_pool(&self, pool: PoolId) -> Option<u32> {
        pool.0.checked_sub(self.owner_pool.0 + 1).filter(|shard| *shard < self.count)
    }
}
