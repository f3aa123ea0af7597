//! [`Router`]: the routing settings and cached plans of a database, shared by a worker's sessions.

use std::sync::Arc;

use crate::{
    Refusal,
    cache::PlanCache,
    dialect::TextDialect,
    fan_out::FanOut,
    keys::{KeyLookup, KeyValues},
    plan::{RoutePlan, ShardScope},
    refusal::NoShardKey,
    route::ShardTarget,
    settings::{DefaultShard, RouteSettings},
};

/// A worker's router for one database, shared by the worker's sessions. It holds the routing
/// settings and caches the plans of statements.
#[derive(Debug)]
pub struct Router {
    pub(crate) settings: Arc<RouteSettings>,
    pub(crate) cache: PlanCache,
}

impl Router {
    /// Creates a router for settings that have been [checked](RouteSettings::check), with a plan
    /// cache of about `cache_bytes`.
    pub fn new(settings: Arc<RouteSettings>, cache_bytes: usize) -> Self {
        Self { settings, cache: PlanCache::with_capacity(cache_bytes) }
    }

    /// Returns the settings that the router was created with.
    pub fn settings(&self) -> &RouteSettings {
        &self.settings
    }

    /// Returns the plan of a text, from the cache if possible. A text that is too long, or that
    /// PostgreSQL may read differently, has a plan without keys that needs the primary.
    pub(crate) fn plan(&mut self, sql: &[u8], dialect: &TextDialect) -> Arc<RoutePlan> {
        if sql.len() > self.settings.text_bytes_max {
            return Arc::new(RoutePlan::unreadable(NoShardKey::Unreadable));
        }
        if !dialect.is_lexed_alike(sql) {
            return Arc::new(RoutePlan::unreadable(NoShardKey::Encoding));
        }
        self.cache.plan(sql, &self.settings)
    }
}

/// Returns the default destination of requests that are not analyzed and have no other route.
pub(crate) fn default_shards(settings: &RouteSettings) -> ShardTarget {
    match settings.default_shard {
        DefaultShard::One(shard) => ShardTarget::One(shard),
        DefaultShard::Any | DefaultShard::Refuse => ShardTarget::Any,
    }
}

/// Returns the shards of a statement according to its plan, its key values and the settings.
pub(crate) fn shards_for(
    settings: &RouteSettings,
    plan: &RoutePlan,
    values: KeyValues<'_>,
) -> Result<ShardTarget, Refusal> {
    let default = settings.default_shard;
    let unlisted = |why: &NoShardKey, reads: bool| match default {
        DefaultShard::One(shard) => Ok(ShardTarget::One(shard)),
        DefaultShard::Any if reads => Ok(ShardTarget::Any),
        _ => Err(Refusal::UnknownShard(why.clone())),
    };
    match &plan.scope {
        ShardScope::Free => Ok(ShardTarget::Any),
        ShardScope::Unlisted { why, reads } => unlisted(why, *reads),
        ShardScope::Unkeyed(Err(why)) => Err(Refusal::UnknownShard(why.clone())),
        ShardScope::Unkeyed(Ok(fan_out)) => {
            Ok(fan_out_target((0..settings.shards).collect(), fan_out))
        }
        ShardScope::Copy(copy) => Ok(ShardTarget::Copy(Arc::clone(copy))),
        ShardScope::Keyed { table, rows, unlisted: beside, otherwise } => {
            let Some(map) = &settings.map else { return Err(Refusal::NoMap) };
            let mut shards = Vec::new();
            for row in rows {
                let key = match row.key(map.columns(), values) {
                    KeyLookup::Key(key) => key,
                    // A comparison with NULL matches no row, so it needs no shard.
                    KeyLookup::NoRows => continue,
                    KeyLookup::Unsupported => {
                        return match otherwise {
                            Ok(fan_out) => {
                                Ok(fan_out_target((0..settings.shards).collect(), fan_out))
                            }
                            Err(_) => Err(Refusal::UnknownShard(NoShardKey::Value(table.clone()))),
                        };
                    }
                };
                let shard = map.shard(&key)?;
                // Sorted and without duplicates, so that each shard receives a fan-out once.
                if let Err(index) = shards.binary_search(&shard) {
                    shards.insert(index, shard);
                }
            }
            match (&shards[..], beside, otherwise) {
                // The unlisted tables must be on the shard of the key.
                (&[shard], Some(why), _) => match unlisted(why, true)? {
                    ShardTarget::One(there) if there != shard => {
                        Err(Refusal::UnknownShard(why.clone()))
                    }
                    _ => Ok(ShardTarget::One(shard)),
                },
                (&[shard], None, _) => Ok(ShardTarget::One(shard)),
                (&[], Some(why), _) => unlisted(why, true),
                (&[], None, _) => Ok(ShardTarget::Any),
                (_, _, Ok(fan_out)) => Ok(fan_out_target(shards, fan_out)),
                (_, _, Err(NoShardKey::FanOutNotAllowed(why))) => {
                    Err(Refusal::UnknownShard(NoShardKey::FanOutNotAllowed(why)))
                }
                (_, _, Err(_)) => Err(Refusal::SeveralShards { shards }),
            }
        }
    }
}

pub(crate) fn fan_out_target(shards: Vec<u32>, fan_out: &Arc<FanOut>) -> ShardTarget {
    ShardTarget::Many { shards, fan_out: Arc::clone(fan_out) }
}
