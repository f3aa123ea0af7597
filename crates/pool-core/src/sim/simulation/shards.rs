//! A database of several shards. Each has a single server or, in some simulations, a primary with
//! standbys that fails over independently of the other shards.
//!
//! Clients select a shard with the pooler's commands, between any two transactions; their reference
//! models, which have one server for everything, receive the same commands. Each statement names
//! its shard, which the server compares with its own. Other clients send statements with keys, and
//! requests for several shards: see [`crate::sim::sharded_table`].

use std::{sync::Arc, time::Duration};

use howdah_route::shard::{KeyType, ShardKey, ShardMap};
use howdah_route::{DefaultShard, RolePreference, RouteSettings, RoutedTable};

use super::hosts::SimCluster;
use crate::{
    BalancingStrategy, ClusterMember, ClusterMembership, ClusterSpec, ClusterState,
    ConnectionLimit, PoolId, PoolSpec, PoolingMode, cluster::AssignedRole, sim::random::SimRandom,
};

/// The shards of the simulated database.
pub(super) struct SimShards {
    pub(super) owner_pool: PoolId,
    count: u32,
    /// Whether each shard has standbys, which may replace its primary.
    pub(super) has_standbys: bool,
    /// Whether statements may contain keys, so that the pooler finds their shards.
    pub(super) has_keys: bool,
    /// Whether the pooler derives the role of the servers from statements.
    pub(super) has_auto_role: bool,
    /// The shards of the pools after the owner pool.
    shard_of_pool: Vec<u32>,
}

/// Returns the shard of an integer key.
pub(in crate::sim) fn shard_of(key: u32, shards: u32) -> u32 {
    let map = ShardMap::hash(shards, vec![KeyType::Int]).expect("there is a shard");
    map.shard(&[Some(ShardKey::Int(key.into()))]).expect("every key has one")
}

impl SimShards {
    /// Creates shards whose pool numbers follow that of their owner pool, the last of the specs so
    /// far. Shards with standbys are appended to `clusters`.
    pub(super) fn new(
        random: &mut SimRandom,
        specs: &mut Vec<PoolSpec>,
        clusters: &mut Vec<SimCluster>,
    ) -> Option<Self> {
        let owner_pool = PoolId(u32::try_from(specs.len()).ok()?.checked_sub(1)?);
        let mut spec = specs.pop()?;
        spec.mode = PoolingMode::Transaction;
        let count = 2 + u32::try_from(random.below(2)).unwrap_or_default();
        let has_standbys = random.percent(50);
        let (mut cluster_specs, mut members, mut shard_of_pool) = (vec![], vec![], vec![]);
        for shard in 0..count {
            let first_pool = owner_pool.0 + 1 + u32::try_from(members.len()).ok()?;
            if has_standbys {
                let hosts = 2 + random.below(2);
                let cluster = SimCluster::for_shard(shard, owner_pool, first_pool, hosts, random);
                cluster_specs.push(Arc::clone(&cluster.cluster));
                members.extend(cluster.member_specs(&spec));
                clusters.push(cluster);
            } else {
                let (cluster, member) = lone_primary(shard, owner_pool, PoolId(first_pool), &spec);
                cluster_specs.push(cluster);
                members.push(member);
            }
            shard_of_pool.resize(members.len(), shard);
        }
        let has_keys = random.percent(60);
        let has_auto_role = has_keys && has_standbys && random.percent(60);
        let table = Some(RoutedTable { schema: None, name: "t".into(), key: vec!["k".to_owned()] });
        let routing = RouteSettings {
            role: if has_auto_role { RolePreference::Auto } else { RolePreference::Primary },
            tables: table.filter(|_| has_keys).into_iter().collect(),
            shards: count,
            map: ShardMap::hash(count, vec![KeyType::Int]).ok(),
            default_shard: DefaultShard::Refuse,
            ..RouteSettings::default()
        };
        spec.routing = Some(Arc::new(routing));
        specs.push(PoolSpec { clusters: cluster_specs.into(), ..spec });
        specs.extend(members);
        Some(Self { owner_pool, count, has_standbys, has_keys, has_auto_role, shard_of_pool })
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Returns the shard of a pool's servers.
    pub(super) fn shard_of_pool(&self, pool: PoolId) -> Option<u32> {
        let index = pool.index().checked_sub(self.owner_pool.index() + 1)?;
        self.shard_of_pool.get(index).copied()
    }
}

/// Creates a shard with a single server: its cluster, and the pool of its only member.
fn lone_primary(
    shard: u32,
    owner: PoolId,
    pool: PoolId,
    spec: &PoolSpec,
) -> (Arc<ClusterSpec>, PoolSpec) {
    let state = ClusterState::new([AssignedRole::Primary], Duration::from_millis(500));
    let health = Arc::clone(&state.members[0]);
    let member = ClusterMember { pool, state: Arc::clone(&health), weight: 1 };
    let cluster = ClusterSpec {
        members: [member].into(),
        strategy: BalancingStrategy::RoundRobin,
        failover_timeout: None,
        slow_start: Duration::ZERO,
        state,
    };
    let membership = ClusterMembership { owner, shard, state: health, failover_timeout: None };
    let limit = ConnectionLimit::new(spec.server_limits[0].max());
    let member =
        PoolSpec { member: Some(membership), server_limits: [limit].into(), ..spec.clone() };
    (Arc::new(cluster), member)
}
