use std::path::Path;

use howdah_pool_config::Config;
use howdah_pool_core::Permits;

use super::{
    super::{NoPool, POOLS_MAX, PoolKey},
    *,
};
use crate::worker::HostResolver;

fn directory(timeouts: &str) -> Directory {
    let text = format!(
        "[pool.timeouts]\n{timeouts}\n[pool.databases.named]\n[pool.databases.\"*\"]\n\
         [pool.users.app]\n"
    );
    let config = Config::read_str(&text, Path::new("test.toml")).unwrap().config;
    Directory::new(config, HostResolver::default()).unwrap()
}

fn key(database: &str) -> PoolKey {
    PoolKey { database: database.to_owned(), user: "app".to_owned(), replication: None, part: None }
}

/// Admits a client to a database; returns the ID of its pool, and its permits.
fn admit(directory: &Directory, database: &str) -> (PoolId, Permits) {
    let admitted = directory.admit(&key(database), |_, limits| limits.try_acquire()).unwrap();
    let (entry, permits) = admitted.unwrap();
    (entry.id, permits)
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn pool_is_closed_after_its_idle_timeout() {
    let directory = directory("pool-idle = '10s'\nautodb-idle = '4s'");
    let (named, client) = admit(&directory, "named");
    let (other, _) = admit(&directory, "other");
    let start = Instant::now();
    assert_eq!(directory.close_idle_pools(start), []);
    assert_eq!(directory.close_idle_pools(start + 3 * SECOND), []);
    assert_eq!(
        directory.close_idle_pools(start + 4 * SECOND),
        [other],
        "its database has no entry in the settings"
    );
    directory.remove_pools(vec![(other, PoolStats::default())], start + 4 * SECOND);
    assert_eq!(directory.close_idle_pools(start + 100 * SECOND), [], "it has a client");
    drop(client);
    assert_eq!(directory.close_idle_pools(start + 101 * SECOND), []);
    drop(admit(&directory, "named"));
    assert_eq!(directory.close_idle_pools(start + 112 * SECOND), [], "it was in use meanwhile");
    assert_eq!(directory.close_idle_pools(start + 122 * SECOND), [named]);
}

/// Covers the time between closing a pool and the workers' confirmation.
#[test]
fn client_of_closing_pool_gets_new_pool_with_same_limits() {
    let directory = directory("pool-idle = '1s'");
    let (old, client) = admit(&directory, "named");
    let limits = || {
        let id = directory.state().by_key[&key("named")];
        let entry = directory.by_id(id).unwrap();
        Arc::clone(&entry.spec.server_limits[0])
    };
    let limit = limits();
    drop(client);
    let start = Instant::now();
    directory.close_idle_pools(start);
    assert_eq!(directory.close_idle_pools(start + SECOND), [old]);
    let (new, _client) = admit(&directory, "named");
    assert_ne!(new, old);
    assert!(Arc::ptr_eq(&limit, &limits()));
    // A reload does not reopen the closing pool.
    let config = Config::clone(&directory.config());
    let tls = super::super::ServerTls::new(&config).unwrap();
    directory.apply_config(Arc::new(config), tls);
    assert_eq!(admit(&directory, "named").0, new);
    let tally = PoolStats { queries: 7, ..PoolStats::default() };
    directory.remove_pools(vec![(old, tally)], start + SECOND);
    assert_eq!(directory.pools().iter().map(|pool| pool.id).collect::<Vec<_>>(), [new]);
    assert_eq!(directory.past_totals()[0].0.as_deref(), Some("named"));
    assert_eq!(directory.past_totals()[0].1.queries, 7);
}

#[test]
fn ids_limits_and_admin_states_are_reused_or_dropped() {
    let directory = directory("autodb-idle = '1s'");
    let mut now = Instant::now();
    let mut highest = 0;
    for round in 0..200_u32 {
        let (id, client) = admit(&directory, &format!("tenant_{round}"));
        highest = highest.max(id.0);
        drop(client);
        directory.close_idle_pools(now);
        now += 10 * SECOND;
        let left = directory.close_idle_pools(now);
        let gone = |id: &PoolId| (*id, PoolStats { queries: 1, ..PoolStats::default() });
        directory.remove_pools(left.iter().map(gone).collect(), now);
        // The reuse delay uses the real clock, so it is skipped by hand.
        let mut state = directory.state();
        for (since, _) in &mut state.reaper.free {
            *since = Instant::now().checked_sub(REUSE_DELAY).unwrap();
        }
    }
    let state = directory.state();
    assert_eq!(highest, 0, "the ID is reused");
    assert_eq!(state.pools.iter().flatten().count(), 0);
    assert!(state.limits.is_empty() && state.admin_states.is_empty() && state.by_key.is_empty());
    assert_eq!(state.reaper.past_totals[&None].queries, 200, "statistics of all are kept");
}

#[test]
fn client_without_pool_learns_why() {
    let refusal = |directory: &Directory, database: &str| {
        directory.admit(&key(database), |_, limits| limits.try_acquire()).unwrap_err()
    };
    let config = Config::read_str("[pool.databases.named]\n", Path::new("test.toml")).unwrap();
    let directory = Directory::new(config.config, HostResolver::default()).unwrap();
    assert_eq!(refusal(&directory, "other"), NoPool::UnknownDatabase);
    directory.state().pools.resize_with(POOLS_MAX, || None);
    assert_eq!(refusal(&directory, "named"), NoPool::TooManyPools);
    assert_eq!(refusal(&directory, "other"), NoPool::UnknownDatabase);
}

/// A report on all databases references their admin states for a moment.
#[test]
fn admin_state_still_referenced_is_dropped_later() {
    let directory = directory("autodb-idle = '1s'");
    let (id, client) = admit(&directory, "tenant");
    drop(client);
    let now = Instant::now();
    directory.close_idle_pools(now);
    let held = directory.admin_states();
    assert_eq!(directory.close_idle_pools(now + SECOND), [id]);
    directory.remove_pools(vec![(id, PoolStats::default())], now + SECOND);
    directory.close_idle_pools(now + SECOND);
    assert_eq!(directory.admin_states().len(), 2, "the other has an entry in the settings");
    drop(held);
    directory.close_idle_pools(now + SECOND);
    assert_eq!(directory.admin_states().len(), 1);
}

#[test]
fn disabled_state_outlives_the_pools_of_a_database() {
    let directory = directory("autodb-idle = '1s'");
    let (id, client) = admit(&directory, "tenant");
    directory.admin_state("tenant").unwrap().set_disabled(true);
    drop(client);
    let now = Instant::now();
    directory.close_idle_pools(now);
    assert_eq!(directory.close_idle_pools(now + SECOND), [id]);
    directory.remove_pools(vec![(id, PoolStats::default())], now + SECOND);
    assert!(directory.admin_state("tenant").unwrap().is_disabled());
}
