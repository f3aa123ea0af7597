//! [`Router`]: what is known about a database and its statements, whoever sends them.

use std::sync::Arc;

use crate::{
    Refusal,
    cache::Cache,
    dialect::Dialect,
    fan::FanOut,
    keys::{Found, Values},
    plan::{Plan, ShardScope},
    refusal::NoShardKey,
    route::Shards,
    settings::{DefaultShard, Settings},
};

/// The settings of a database, and what has been learnt about its statements. One for each worker: a session
/// is given that of the worker that it is on.
#[derive(Debug)]
pub struct Router {
    pub(crate) settings: Arc<Settings>,
    pub(crate) cache: Cache,
}

impl Router {
    /// With settings that have been [checked](Settings::check), and a memory of about `cache_bytes`.
    pub fn new(settings: Arc<Settings>, cache_bytes: usize) -> Self {
        Self { settings, cache: Cache::with_capacity(cache_bytes) }
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What is known of a text.
    pub(crate) fn plan(&mut self, sql: &[u8], dialect: &Dialect) -> Arc<Plan> {
        if sql.len() > self.settings.text_bytes_max {
            return Arc::new(Plan::unreadable(NoShardKey::Unreadable));
        }
        if !dialect.is_followed(sql) {
            return Arc::new(Plan::unreadable(NoShardKey::Encoding));
        }
        self.cache.plan(sql, &self.settings)
    }
}

/// Where everything goes that is not looked at, and has been sent nowhere.
pub(crate) fn by_default(settings: &Settings) -> Shards {
    match settings.default_shard {
        DefaultShard::One(shard) => Shards::One(shard),
        DefaultShard::Any | DefaultShard::Refuse => Shards::Any,
    }
}

/// Where a statement goes, by what it says and by the settings.
pub(crate) fn anywhere(
    settings: &Settings,
    plan: &Plan,
    values: Values<'_>,
) -> Result<Shards, Refusal> {
    let default = settings.default_shard;
    let unlisted = |why: &NoShardKey, reads: bool| match default {
        DefaultShard::One(shard) => Ok(Shards::One(shard)),
        DefaultShard::Any if reads => Ok(Shards::Any),
        _ => Err(Refusal::Keyless(why.clone())),
    };
    match &plan.reach {
        ShardScope::Free => Ok(Shards::Any),
        ShardScope::Unlisted { why, reads } => unlisted(why, *reads),
        ShardScope::Keyless(Err(why)) => Err(Refusal::Keyless(why.clone())),
        ShardScope::Keyless(Ok(how)) => Ok(many((0..settings.shards).collect(), how)),
        ShardScope::Copy(copy) => Ok(Shards::Copy(Arc::clone(copy))),
        ShardScope::Keyed { table, rows, unlisted: beside, otherwise } => {
            let Some(map) = &settings.map else { return Err(Refusal::NoMap) };
            let mut shards = Vec::new();
            for row in rows {
                let key = match row.key(map.columns(), values) {
                    Found::Key(key) => key,
                    Found::Nothing => continue,
                    Found::NotUnderstood => {
                        return match otherwise {
                            Ok(how) => Ok(many((0..settings.shards).collect(), how)),
                            Err(_) => Err(Refusal::Keyless(NoShardKey::Value(table.clone()))),
                        };
                    }
                };
                let shard = map.shard(&key)?;
                if let Err(place) = shards.binary_search(&shard) {
                    shards.insert(place, shard);
                }
            }
            match (&shards[..], beside, otherwise) {
                // What stands beside has to be on the same shard.
                (&[shard], Some(why), _) => match unlisted(why, true)? {
                    Shards::One(there) if there != shard => Err(Refusal::Keyless(why.clone())),
                    _ => Ok(Shards::One(shard)),
                },
                (&[shard], None, _) => Ok(Shards::One(shard)),
                (&[], Some(why), _) => unlisted(why, true),
                (&[], None, _) => Ok(Shards::Any),
                (_, _, Ok(how)) => Ok(many(shards, how)),
                (_, _, Err(NoShardKey::Spread(why))) => {
                    Err(Refusal::Keyless(NoShardKey::Spread(why)))
                }
                (_, _, Err(_)) => Err(Refusal::SeveralShards { shards }),
            }
        }
    }
}

pub(crate) fn many(shards: Vec<u32>, how: &Arc<FanOut>) -> Shards {
    Shards::Many { shards, how: Arc::clone(how) }
}
