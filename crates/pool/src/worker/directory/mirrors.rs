//! Pools of mirrors. They have nothing in common with those of their databases that could run out: what a
//! mirror takes is never missing there.

use std::{num::NonZeroU32, sync::Arc};

use super::{
    Directory, Inner, Key, LimitOf, Part,
    spec::{self, MEMBER_RETRY_MAX, entry_name},
};
use crate::{
    Limit, Mirror, MirrorTarget, PoolSpec, Timeouts,
    config::{Config, MirrorPool, PoolMode, PoolSettings},
    spec::Mode,
};

/// What holds at a mirror of a pool; none if it has no such mirror.
pub(super) fn settings(
    config: &Config,
    mut settings: PoolSettings,
    name: &str,
) -> Option<PoolSettings> {
    let mirrors = std::mem::take(&mut settings.mirrors);
    let mirror = mirrors.into_iter().find(|mirror| mirror.name == name)?;
    let login = config.mirror_login(&settings.login, &mirror);
    let MirrorPool { endpoint, entry, .. } = mirror;
    let timeout = Some(entry.timeout);
    Some(PoolSettings {
        servers: vec![endpoint],
        clusters: Vec::new(),
        login,
        size: Some(entry.pool_size),
        min_size: 0,
        reserve_size: 0,
        weight: NonZeroU32::MIN,
        timeouts: crate::config::Timeouts {
            query_wait: timeout,
            query: timeout,
            transaction: timeout,
            client_idle: timeout,
            query_wait_notify: None,
            idle_transaction: None,
            ..settings.timeouts
        },
        ..settings
    })
}

pub(super) fn spec(
    inner: &mut Inner,
    config: &Config,
    key: &Key,
    settings: &PoolSettings,
    occupants: &Arc<Limit>,
) -> PoolSpec {
    let own = LimitOf::PoolServers(key.clone());
    let own = inner.limit(own, settings.size.map_or(u32::MAX, NonZeroU32::get));
    let times = &settings.timeouts;
    let defaults = PoolSpec::new(0);
    PoolSpec {
        mode: match settings.mode {
            PoolMode::Session => Mode::Session,
            PoolMode::Transaction => Mode::Transaction,
            PoolMode::Statement => Mode::Statement,
        },
        server_limits: [own, Arc::clone(occupants)].into(),
        // Nobody is to hear what is notified there.
        listen_bytes: None,
        statements_per_server: config.max_prepared_statements,
        reset: spec::reset(config),
        connect_query: spec::connect_query(settings),
        check: spec::check(config, times),
        servers_once: times.server_lifetime.is_zero(),
        timeouts: Timeouts {
            query_wait: times.query_wait,
            query: times.query,
            transaction: times.transaction,
            client_idle: times.client_idle,
            server_idle: times.server_idle,
            server_lifetime: Some(times.server_lifetime),
            // What is dropped meanwhile is missing there.
            login_retry_max: times.server_login_retry.min(MEMBER_RETRY_MAX),
            ..defaults.timeouts.clone()
        },
        ..defaults
    }
}

/// The mirrors of what clients come to.
pub(super) fn targets(
    inner: &mut Inner,
    config: &Config,
    key: &Key,
    settings: &PoolSettings,
) -> Arc<[MirrorTarget]> {
    let database = entry_name(config, &key.database).to_owned();
    let target = |mirror: &MirrorPool| {
        let part = Some(Part::Mirror(mirror.name.clone()));
        let pool = inner.find(&Key { part, ..key.clone() })?;
        let place = (database.clone(), mirror.name.clone());
        let counted = inner.mirrors.entry(place).or_default();
        Some(MirrorTarget {
            pool,
            mirror: Arc::clone(counted),
            share: mirror.entry.sample_rate,
            client_bytes: mirror.entry.client_bytes as usize,
            buffer_bytes: mirror.entry.buffer_bytes as usize,
            timeout: mirror.entry.timeout,
        })
    };
    settings.mirrors.iter().filter_map(target).collect()
}

impl Directory {
    /// The mirrors that the settings name: of which database, and what is counted.
    pub(in crate::worker) fn mirrors(&self) -> Vec<(String, MirrorPool, Arc<Mirror>)> {
        let mut inner = self.inner();
        let config = self.config();
        let mut found = Vec::new();
        for (database, entry) in &config.databases {
            for mirror in entry.mirror_pools().unwrap_or_default() {
                let place = (database.clone(), mirror.name.clone());
                let counted = Arc::clone(inner.mirrors.entry(place).or_default());
                found.push((database.clone(), mirror, counted));
            }
        }
        // Of those that are gone, what is left to do still counts somewhere, and nobody asks.
        let is_known = |place: &(String, String)| {
            found.iter().any(|(database, mirror, _)| *database == place.0 && mirror.name == place.1)
        };
        inner.mirrors.retain(|place, mirror| is_known(place) || Arc::strong_count(mirror) > 1);
        found
    }
}
