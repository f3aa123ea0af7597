//! [`ServerFinder`]: determines which server a capture was made of, and its WAL position at the
//! start.
//!
//! A capture covers all databases of the pooler, but its manifest can name only one server. So each
//! database's server is queried until it replies once, over a separate connection and as the user
//! of a pool: from the start of the capture if there is a pool, otherwise soon after the first
//! client has logged in. If all databases are on one server, the manifest names it, without the
//! properties in which the replies differ; otherwise it names none.

use std::{
    collections::BTreeMap,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use howdah_collect::{Lsn, PhysicalIdentity};
use howdah_dataset::CapturedServer;
use howdah_traffic::Timestamp;

use super::{
    cluster_monitor::{ControlConnection, HealthCheckError},
    directory::{PoolEntry, entry_name},
    shared_state::SharedState,
};
use crate::recorder::CaptureRecorder;

/// Maximum time that the start of a capture waits for replies from servers.
pub(super) const START_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum duration of one search while a capture runs. Servers that are left over are queried in
/// the next search.
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval between searches for new pools, as long as no server has been found.
const FIRST_INTERVAL: Duration = Duration::from_millis(100);

/// Interval between searches once a server has been found. A failed query is retried after twice
/// this time, which doubles with each further failure.
const SEARCH_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum delay before a failed query is retried.
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Identifies a shard of a database, by the name of the database's entry in the settings and the
/// number of the shard (0 without shards).
type DatabaseShard = (String, u32);

/// The servers of a capture's databases, as far as they have been queried.
#[derive(Debug, Default)]
pub(super) struct ServerFinder {
    found: BTreeMap<DatabaseShard, CapturedServer>,
    failed: BTreeMap<DatabaseShard, FailedQuery>,
    is_conflict_logged: bool,
}

#[derive(Debug)]
struct FailedQuery {
    attempts: u32,
    retry_at: Instant,
}

/// A server to query.
struct Candidate {
    key: DatabaseShard,
    entry: Arc<PoolEntry>,
    /// Whether the pool has several hosts, so that it is uncertain which server a login reaches.
    has_several_hosts: bool,
}

impl ServerFinder {
    /// Queries the servers of databases that have pools now, except those that were found already
    /// or whose last query failed recently, for at most `timeout`.
    pub(super) fn search(&mut self, shared: &SharedState, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        for candidate in self.candidates(shared) {
            if Instant::now() >= deadline {
                return; // The others are queried in the next search.
            }
            match query(&candidate, shared, deadline) {
                Ok(server) => {
                    self.failed.remove(&candidate.key);
                    self.found.insert(candidate.key, server);
                }
                Err(error) => self.record_failure(candidate.key, &error),
            }
        }
    }

    fn record_failure(&mut self, key: DatabaseShard, error: &HealthCheckError) {
        tracing::debug!(database = key.0, %error, "cannot query the captured server");
        let attempts = self.failed.get(&key).map_or(0, |failed| failed.attempts) + 1;
        let delay = SEARCH_INTERVAL.saturating_mul(1 << attempts.min(6)).min(RETRY_MAX);
        self.failed.insert(key, FailedQuery { attempts, retry_at: Instant::now() + delay });
    }

    /// Returns the servers to query now: one pool for each database and shard.
    fn candidates(&self, shared: &SharedState) -> Vec<Candidate> {
        let config = shared.directory.config();
        let mut candidates = BTreeMap::new();
        for pool in shared.directory.pools() {
            let key = &pool.key;
            if key.part.is_some() || key.replication.is_some() || pool.is_retired {
                continue;
            }
            let database = entry_name(&config, &key.database);
            let attempt = |shard| {
                let failed = self.failed.get(&(database.to_owned(), shard));
                failed.map_or(0, |failed| failed.attempts as usize)
            };
            if pool.settings.clusters.is_empty() {
                let has_several_hosts = pool.endpoints.len() > 1;
                // After a failure, another user's pool is tried.
                let pools: &mut Vec<_> =
                    candidates.entry((database.to_owned(), 0)).or_insert_with(Vec::new);
                pools.push((Arc::clone(&pool), has_several_hosts));
                continue;
            }
            for monitor in &pool.monitors {
                let shard_key = (database.to_owned(), monitor.shard);
                let Some(primary) = monitor.primary() else { continue };
                let attempt = attempt(monitor.shard);
                let member = shared.directory.health_check_pool(monitor, primary, attempt);
                candidates
                    .entry(shard_key)
                    .or_insert_with(Vec::new)
                    .extend(member.into_iter().map(|member| (member, false)));
            }
        }
        let now = Instant::now();
        let is_due = |key: &DatabaseShard| {
            !self.found.contains_key(key)
                && self.failed.get(key).is_none_or(|failed| failed.retry_at <= now)
        };
        let choose = |(key, pools): (DatabaseShard, Vec<(Arc<PoolEntry>, bool)>)| {
            let attempts = self.failed.get(&key).map_or(0, |failed| failed.attempts as usize);
            let (entry, has_several_hosts) = pools.get(attempts % pools.len().max(1))?.clone();
            Some(Candidate { key, entry, has_several_hosts })
        };
        candidates.into_iter().filter(|(key, _)| is_due(key)).filter_map(choose).collect()
    }

    /// Returns the server that all databases are on, without the properties in which the replies
    /// differ. Returns `None` if no server has been found, or several.
    pub(super) fn server(&mut self) -> Option<CapturedServer> {
        let mut servers = self.found.values();
        let first = servers.next()?.clone();
        let common = servers.try_fold(first, combine);
        if common.is_none() && !std::mem::replace(&mut self.is_conflict_logged, true) {
            tracing::warn!(
                "the captured databases are on several servers: the capture records none of them, \
                 so a replay will not recognize them"
            );
        }
        common
    }

    /// Searches repeatedly until the capture or the pooler has ended, and reports the server to the
    /// recorder whenever a search has found more databases.
    pub(super) fn run(mut self, shared: &SharedState, recorder: &CaptureRecorder) {
        while !recorder.is_finished() && !shared.is_stopped() {
            let found = self.found.len();
            self.search(shared, QUERY_TIMEOUT);
            if self.found.len() > found {
                recorder.set_server(self.server());
            }
            let interval = if self.found.is_empty() { FIRST_INTERVAL } else { SEARCH_INTERVAL };
            let until = Instant::now() + interval;
            while Instant::now() < until && !recorder.is_finished() {
                thread::sleep(FIRST_INTERVAL);
            }
        }
    }
}

/// Combines what is known about the servers of two databases. Returns `None` unless both have the
/// same system identifier or, if an identifier is unknown, the same start time.
fn combine(common: CapturedServer, other: &CapturedServer) -> Option<CapturedServer> {
    let is_same = match (&common.system_identifier, &other.system_identifier) {
        (Some(common), Some(other)) => common == other,
        // Without the identifier, only the very same server is recognized.
        _ => common.postmaster_start.is_some() && common.postmaster_start == other.postmaster_start,
    };
    if !is_same {
        return None;
    }
    fn same<T: PartialEq>(common: Option<T>, other: Option<&T>) -> Option<T> {
        common.filter(|common| Some(common) == other)
    }
    let timeline = same(common.timeline, other.timeline.as_ref());
    let (lsn, time) = earlier_position(&common, other);
    Some(CapturedServer {
        system_identifier: common.system_identifier.or(other.system_identifier.clone()),
        address: same(common.address, other.address.as_ref()),
        postmaster_start: same(common.postmaster_start, other.postmaster_start.as_ref()),
        // A position on another timeline would not be the start of all databases.
        lsn: lsn.filter(|_| timeline == other.timeline),
        time: time.filter(|_| timeline == other.timeline),
        timeline,
    })
}

/// Returns the earlier of two WAL positions, with its time. The servers of two databases may be
/// queried at very different times.
fn earlier_position(
    one: &CapturedServer,
    other: &CapturedServer,
) -> (Option<String>, Option<Timestamp>) {
    let position = |server: &CapturedServer| server.lsn.as_ref()?.parse::<Lsn>().ok();
    let earlier = match (position(one), position(other)) {
        (Some(one_lsn), Some(other_lsn)) if other_lsn.0 < one_lsn.0 => other,
        (None, Some(_)) => other,
        _ => one,
    };
    (earlier.lsn.clone(), earlier.time)
}

/// Queries a server over a separate connection.
fn query(
    candidate: &Candidate,
    shared: &SharedState,
    deadline: Instant,
) -> Result<CapturedServer, HealthCheckError> {
    let Candidate { key, entry, has_several_hosts } = candidate;
    let mut connection = ControlConnection::open(entry, shared, deadline)?;
    let identity = PhysicalIdentity::query_by(|sql| connection.query_row(sql))?;
    connection.close();
    if let Some(grant) = &identity.missing_grant {
        tracing::warn!(
            database = key.0,
            user = entry.settings.login.user,
            grant,
            "capture without the server's system identifier, because the user may not read it"
        );
    }
    let address = entry.endpoints.first().map(ToString::to_string);
    let is_certain = !has_several_hosts;
    // The position of a standby says little about the other servers of a list.
    let has_position = is_certain || !identity.is_in_recovery;
    let time = |micros: Option<i64>| micros.map(Timestamp::from_micros);
    Ok(CapturedServer {
        system_identifier: identity.system_identifier,
        timeline: identity.timeline,
        address: address.filter(|_| is_certain),
        postmaster_start: time(identity.postmaster_start_us).filter(|_| is_certain),
        lsn: identity.lsn.filter(|_| has_position).map(|lsn| lsn.to_string()),
        time: time(identity.time_us).filter(|_| has_position),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(identifier: &str, address: &str) -> CapturedServer {
        CapturedServer {
            system_identifier: Some(identifier.to_owned()),
            timeline: Some(1),
            address: Some(address.to_owned()),
            postmaster_start: Some(Timestamp::from_micros(5)),
            lsn: Some("0/3000060".to_owned()),
            time: Some(Timestamp::from_micros(7)),
        }
    }

    #[test]
    fn databases_of_one_server_are_one_server() {
        let later = CapturedServer {
            lsn: Some("0/4000000".to_owned()),
            time: Some(Timestamp::from_micros(9)),
            ..server("7", "a:5432")
        };
        let combined = combine(server("7", "a:5432"), &later);
        assert_eq!(combined, Some(server("7", "a:5432")));
        assert_eq!(combine(later, &server("7", "a:5432")), combined, "in either order");
        // A member of the same cluster.
        let standby = CapturedServer { postmaster_start: None, ..server("7", "b:5432") };
        let combined = combine(server("7", "a:5432"), &standby).unwrap();
        assert_eq!((combined.address, combined.postmaster_start), (None, None));
        assert_eq!(combined.lsn.as_deref(), Some("0/3000060"));
    }

    #[test]
    fn different_servers_are_none() {
        assert_eq!(combine(server("7", "a:5432"), &server("8", "a:5432")), None);
        let unknown = |start| CapturedServer {
            system_identifier: None,
            postmaster_start: Some(Timestamp::from_micros(start)),
            ..server("7", "a:5432")
        };
        assert_eq!(combine(server("7", "a:5432"), &unknown(6)), None);
        assert!(combine(server("7", "a:5432"), &unknown(5)).is_some());
    }
}
