use std::path::Path;

use super::{super::Key, *};
use crate::{Permits, config::Config, worker::Names};

fn directory(timeouts: &str) -> Directory {
    let text = format!(
        "[pool.timeouts]\n{timeouts}\n[pool.databases.named]\n[pool.databases.\"*\"]\n\
         [pool.users.app]\n"
    );
    let config = Config::read_str(&text, Path::new("test.toml")).unwrap().config;
    Directory::new(config, Names::default()).unwrap()
}

fn key(database: &str) -> Key {
    Key { database: database.to_owned(), user: "app".to_owned(), replication: None, part: None }
}

/// A client comes in.
fn enter(directory: &Directory, database: &str) -> (PoolId, Permits) {
    let entered = directory.enter(&key(database), |_, limits| limits.try_take()).unwrap();
    let (entry, permits) = entered.unwrap();
    (entry.id, permits)
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_pool_is_left_when_its_time_is_over_and_not_before() {
    let directory = directory("pool-idle = '10s'\nautodb-idle = '4s'");
    let (named, client) = enter(&directory, "named");
    let (other, _) = enter(&directory, "other");
    let start = Instant::now();
    assert_eq!(directory.leave(start), []);
    assert_eq!(directory.leave(start + 3 * SECOND), []);
    assert_eq!(directory.leave(start + 4 * SECOND), [other], "no settings name its database");
    directory.vacate(vec![(other, Tally::default())], start + 4 * SECOND);
    assert_eq!(directory.leave(start + 100 * SECOND), [], "it has a client");
    drop(client);
    assert_eq!(directory.leave(start + 101 * SECOND), []);
    drop(enter(&directory, "named"));
    assert_eq!(directory.leave(start + 112 * SECOND), [], "somebody was there meanwhile");
    assert_eq!(directory.leave(start + 122 * SECOND), [named]);
}

/// The moment between leaving a pool and the workers' answers is not special to who comes then.
#[test]
fn who_comes_while_a_pool_is_left_gets_another_under_the_same_limits() {
    let directory = directory("pool-idle = '1s'");
    let (old, client) = enter(&directory, "named");
    let limits = || {
        let id = directory.inner().by_key[&key("named")];
        let entry = directory.by_id(id).unwrap();
        Arc::clone(&entry.spec.server_limits[0])
    };
    let limit = limits();
    drop(client);
    let start = Instant::now();
    directory.leave(start);
    assert_eq!(directory.leave(start + SECOND), [old]);
    let (new, _client) = enter(&directory, "named");
    assert_ne!(new, old);
    assert!(Arc::ptr_eq(&limit, &limits()));
    // Settings that are read again lead nobody back.
    let config = Config::clone(&directory.config());
    let tls = super::super::ServerTls::new(&config).unwrap();
    directory.change(Arc::new(config), tls);
    assert_eq!(enter(&directory, "named").0, new);
    let tally = Tally { queries: 7, ..Tally::default() };
    directory.vacate(vec![(old, tally)], start + SECOND);
    assert_eq!(directory.pools().iter().map(|pool| pool.id).collect::<Vec<_>>(), [new]);
    assert_eq!(directory.past()[0].0.as_deref(), Some("named"));
    assert_eq!(directory.past()[0].1.queries, 7);
}

#[test]
fn numbers_limits_and_gates_do_not_grow_for_ever() {
    let directory = directory("autodb-idle = '1s'");
    let mut now = Instant::now();
    let mut highest = 0;
    for round in 0..200_u32 {
        let (id, client) = enter(&directory, &format!("tenant_{round}"));
        highest = highest.max(id.0);
        drop(client);
        directory.leave(now);
        now += 10 * SECOND;
        let left = directory.leave(now);
        let gone = |id: &PoolId| (*id, Tally { queries: 1, ..Tally::default() });
        directory.vacate(left.iter().map(gone).collect(), now);
        // Numbers rest by the real clock; here it stands nearly still.
        let mut inner = directory.inner();
        for (since, _) in &mut inner.vacancies.free {
            *since = Instant::now().checked_sub(REST).unwrap();
        }
    }
    let inner = directory.inner();
    assert_eq!(highest, 0, "the number is used again and again");
    assert_eq!(inner.pools.iter().flatten().count(), 0);
    assert!(inner.limits.is_empty() && inner.gates.is_empty() && inner.by_key.is_empty());
    assert_eq!(inner.vacancies.past[&None].queries, 200, "sums of all stay");
}

/// Whoever looks at all databases has hold of their gates for a moment.
#[test]
fn what_somebody_had_hold_of_is_dropped_later() {
    let directory = directory("autodb-idle = '1s'");
    let (id, client) = enter(&directory, "tenant");
    drop(client);
    let now = Instant::now();
    directory.leave(now);
    let held = directory.gates();
    assert_eq!(directory.leave(now + SECOND), [id]);
    directory.vacate(vec![(id, Tally::default())], now + SECOND);
    directory.leave(now + SECOND);
    assert_eq!(directory.gates().len(), 2, "the other is named");
    drop(held);
    directory.leave(now + SECOND);
    assert_eq!(directory.gates().len(), 1);
}

#[test]
fn an_operators_order_outlives_the_pools_of_a_database() {
    let directory = directory("autodb-idle = '1s'");
    let (id, client) = enter(&directory, "tenant");
    directory.gate("tenant").unwrap().set_disabled(true);
    drop(client);
    let now = Instant::now();
    directory.leave(now);
    assert_eq!(directory.leave(now + SECOND), [id]);
    directory.vacate(vec![(id, Tally::default())], now + SECOND);
    assert!(directory.gate("tenant").unwrap().is_disabled());
}
