//! Pools of mirrors. They share no limits with the pools of their database, so that a mirror never
//! uses up the database's connections.

use std::{num::NonZeroU32, sync::Arc};

use howdah_pool_config::{Config, MirrorPool, PoolMode, PoolSettings, UserConfig};
use howdah_pool_core::{
    ConnectionLimit, Mirror, MirrorTarget, PoolSpec, PoolTimeouts, PoolingMode,
};

use super::{
    Directory, DirectoryState, LimitKey, PoolKey, PoolPart,
    spec::{self, MEMBER_RETRY_MAX, entry_name},
};

/// Returns the settings of a pool's mirror; `None` if it has no such mirror.
pub(super) fn mirror_settings(
    config: &Config,
    mut settings: PoolSettings,
    name: &str,
) -> Option<PoolSettings> {
    let mirrors = std::mem::take(&mut settings.mirrors);
    let mirror = mirrors.into_iter().find(|mirror| mirror.name == name)?;
    let login = config.mirror_login(&settings.login, &mirror);
    if let Some(user) = mirror.entry.user.as_ref() {
        let own = config.users.get(user).and_then(UserConfig::secret_source);
        settings.secret_source = own.filter(|_| mirror.entry.secret.is_none());
    }
    let MirrorPool { endpoint, entry, .. } = mirror;
    let timeout = Some(entry.timeout);
    Some(PoolSettings {
        servers: vec![endpoint],
        local_socket: None,
        clusters: Vec::new(),
        login,
        size: Some(entry.pool_size),
        min_size: 0,
        reserve_size: 0,
        weight: NonZeroU32::MIN,
        timeouts: howdah_pool_config::TimeoutConfig {
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

pub(super) fn mirror_spec(
    state: &mut DirectoryState,
    config: &Config,
    key: &PoolKey,
    settings: &PoolSettings,
    occupants: &Arc<ConnectionLimit>,
) -> PoolSpec {
    let own = LimitKey::PoolServers(key.clone());
    let own = state.limit(own, settings.size.map_or(u32::MAX, NonZeroU32::get));
    let times = &settings.timeouts;
    let defaults = PoolSpec::new(0);
    PoolSpec {
        mode: match settings.mode {
            PoolMode::Session => PoolingMode::Session,
            // The pool of a mirror resets its servers after each transaction.
            PoolMode::Transaction | PoolMode::Adaptive => PoolingMode::Transaction,
            PoolMode::Statement => PoolingMode::Statement,
        },
        server_limits: [own, Arc::clone(occupants)].into(),
        // Notifications of a mirror are not delivered.
        listen_bytes: None,
        statements_per_server: config.max_prepared_statements,
        reset: spec::reset(config),
        connect_query: spec::connect_query(settings),
        check: spec::check_query(config, times),
        is_single_use: times.server_lifetime.is_zero(),
        timeouts: PoolTimeouts {
            query_wait: times.query_wait,
            query: times.query,
            transaction: times.transaction,
            client_idle: times.client_idle,
            server_idle: times.server_idle,
            server_lifetime: Some(times.server_lifetime),
            // Transactions are dropped while logins fail, so retry soon.
            login_retry_max: times.server_login_retry.min(MEMBER_RETRY_MAX),
            ..defaults.timeouts.clone()
        },
        ..defaults
    }
}

/// Returns the mirrors of a pool that has clients.
pub(super) fn targets(
    state: &mut DirectoryState,
    config: &Config,
    key: &PoolKey,
    settings: &PoolSettings,
) -> Arc<[MirrorTarget]> {
    let database = entry_name(config, &key.database).to_owned();
    let target = |mirror: &MirrorPool| {
        let part = Some(PoolPart::Mirror(mirror.name.clone()));
        let pool = state.find(&PoolKey { part, ..key.clone() })?;
        let mirror_key = (database.clone(), mirror.name.clone());
        let counted = state.mirrors.entry(mirror_key).or_default();
        Some(MirrorTarget {
            pool,
            mirror: Arc::clone(counted),
            sample_rate: mirror.entry.sample_rate,
            client_bytes: mirror.entry.client_bytes as usize,
            buffer_bytes: mirror.entry.buffer_bytes as usize,
            timeout: mirror.entry.timeout,
        })
    };
    settings.mirrors.iter().filter_map(target).collect()
}

impl Directory {
    /// Returns the database, settings and statistics of each configured mirror. Drops the
    /// statistics of removed mirrors that no worker uses any more.
    pub(in crate::worker) fn mirrors(&self) -> Vec<(String, MirrorPool, Arc<Mirror>)> {
        let mut state = self.state();
        let config = self.config();
        let mut found = Vec::new();
        for (database, entry) in &config.databases {
            for mirror in entry.mirror_pools().unwrap_or_default() {
                let mirror_key = (database.clone(), mirror.name.clone());
                let counted = Arc::clone(state.mirrors.entry(mirror_key).or_default());
                found.push((database.clone(), mirror, counted));
            }
        }
        // The statistics of removed mirrors are kept while workers still use them.
        let is_known = |mirror_key: &(String, String)| {
            found.iter().any(|(database, mirror, _)| {
                *database == mirror_key.0 && mirror.name == mirror_key.1
            })
        };
        state
            .mirrors
            .retain(|mirror_key, mirror| is_known(mirror_key) || Arc::strong_count(mirror) > 1);
        found
    }
}
