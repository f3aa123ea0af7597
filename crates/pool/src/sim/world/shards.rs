//! A database of several shards, of a server each: clients say by the pooler's commands which one they want,
//! between any two transactions, and their twins, which have one server for everything, are asked the same.
//!
//! Each statement says for which shard it is meant, and a server looks whether that is its own. What is
//! not here: keys in statements, and requests of several shards.

use std::{sync::Arc, time::Duration};

use howdah_route::{DefaultShard, RolePreference, Settings};
use howdah_shard::{Key, KeyType, ShardMap};

use crate::{
    Cluster, ClusterMember, ClusterState, Limit, MemberPlace, Mode, PoolId, PoolSpec, Strategy,
    config::ConfiguredRole, sim::random::Random,
};

/// The shards of a database.
pub(super) struct ShardWorld {
    pub(super) home: PoolId,
    count: u32,
}

/// Which key is where.
pub(in crate::sim) fn shard_of(key: u32, shards: u32) -> u32 {
    let map = ShardMap::hash(shards, vec![KeyType::Int]).expect("there are some");
    map.shard(&[Some(Key::Int(key.into()))]).expect("every key has one")
}

impl ShardWorld {
    /// Shards whose pools have the numbers behind that of their home, which is the last of the specs so far.
    pub(super) fn new(random: &mut Random, specs: &mut Vec<PoolSpec>) -> Option<Self> {
        let home = PoolId(u32::try_from(specs.len()).ok()?.checked_sub(1)?);
        let mut spec = specs.pop()?;
        spec.mode = Mode::Transaction;
        let count = 2 + u32::try_from(random.below(2)).unwrap_or_default();
        let (mut clusters, mut members) = (Vec::new(), Vec::new());
        for shard in 0..count {
            let state = ClusterState::new([ConfiguredRole::Primary], Duration::from_millis(500));
            let member = Arc::clone(&state.members[0]);
            clusters.push(Arc::new(Cluster {
                members: [ClusterMember {
                    pool: PoolId(home.0 + 1 + shard),
                    state: Arc::clone(&member),
                    weight: 1,
                }]
                .into(),
                strategy: Strategy::RoundRobin,
                failover_timeout: None,
                slow_start: Duration::ZERO,
                state,
            }));
            let place = MemberPlace { home, shard, state: member, failover_timeout: None };
            let limit = Limit::new(spec.server_limits[0].max());
            members.push(PoolSpec {
                member: Some(place),
                server_limits: [limit].into(),
                ..spec.clone()
            });
        }
        let routing = Settings {
            role: RolePreference::Primary,
            shards: count,
            map: ShardMap::hash(count, vec![KeyType::Int]).ok(),
            default_shard: DefaultShard::Refuse,
            ..Settings::default()
        };
        spec.routing = Some(Arc::new(routing));
        specs.push(PoolSpec { clusters: clusters.into(), ..spec });
        specs.extend(members);
        Some(Self { home, count })
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// The shard that servers of a pool are of.
    pub(super) fn of(&self, pool: PoolId) -> Option<u32> {
        pool.0.checked_sub(self.home.0 + 1).filter(|shard| *shard < self.count)
    }
}
