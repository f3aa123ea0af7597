//! [`PasswordChecks`]: pass-through authentication. The password of a user whose secret is not
//! known is checked by a login to a server, outside the pools, so that a wrong one affects no pool.
//!
//! A password that a server has accepted is trusted for `auth.pass-through-recheck`. Then the next
//! login with it asks the server again, as does a login with another password. If the server does
//! not answer, its last answer counts, but for [`TRUST_MAX`] at most: clients that reconnect during
//! a failover are not refused.
//!
//! # Brute force
//!
//! Refused attempts are limited for each user and address, and for each user. The second limit is
//! higher, so that a client with a wrong password that reconnects in a loop does not lock out
//! others. A login with the trusted password is never refused because of these limits. All checks
//! of one user run one after the other, see [`super::helpers`].

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, RandomState},
    net::{IpAddr, Ipv6Addr},
    time::{Duration, Instant},
};

use howdah_pool_core::ServerFailure;
use howdah_wire::Secret;
use parking_lot::Mutex;
use subtle::ConstantTimeEq as _;

use crate::auth::{PasswordCheck, PasswordCheckResult};

/// How long an accepted password is trusted while the server cannot be asked.
const TRUST_MAX: Duration = Duration::from_secs(3600);

/// Maximum number of accepted passwords. Those of further users are checked at each login.
const ACCEPTED_MAX: usize = 100_000;

/// Refused attempts of one user from one address: so many at once, then one each second.
const ADDRESS_ATTEMPTS: AttemptLimit = AttemptLimit { burst: 5, per_second: 1 };

/// Refused attempts of one user from all addresses.
const USER_ATTEMPTS: AttemptLimit = AttemptLimit { burst: 50, per_second: 10 };

/// Number of counters for each limit. Keys are hashed with a random key; two with the same hash
/// share a counter.
const COUNTERS: usize = 8192;

/// A database, by the name that clients use, and a user.
pub(super) type DatabaseUser = (String, String);

/// The passwords that servers have accepted, and counts of refused ones.
#[derive(Debug, Default)]
pub(super) struct PasswordChecks {
    accepted: Mutex<HashMap<DatabaseUser, AcceptedPassword>>,
    by_address: AttemptCounters,
    by_user: AttemptCounters,
}

#[derive(Debug)]
struct AcceptedPassword {
    password: Secret,
    checked_at: Instant,
    /// Whether the next login must ask the server, whatever the age.
    must_recheck: bool,
}

/// The answer to a password that the pooler has without asking the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recollection {
    /// The server has accepted it a short time ago.
    Trusted,
    /// The server has accepted it, but must be asked again.
    Aged,
    Unknown,
}

/// The answer of a server to a password.
#[derive(Debug)]
pub(super) enum ServerAnswer {
    Accepted,
    Refused,
    Failed(ServerFailure),
}

impl PasswordChecks {
    /// Whether a password is accepted without asking the server.
    pub(super) fn recall(&self, check: &PasswordCheck, recheck: Duration) -> bool {
        self.recollection(check, recheck) == Recollection::Trusted
    }

    fn recollection(&self, check: &PasswordCheck, recheck: Duration) -> Recollection {
        let accepted = self.accepted.lock();
        let known = accepted.get(&(check.database.clone(), check.user.clone()));
        let Some(known) = known.filter(|known| known.checked_at.elapsed() < TRUST_MAX) else {
            return Recollection::Unknown;
        };
        match known.password.expose().ct_eq(check.password.expose()).into() {
            true if !known.must_recheck && known.checked_at.elapsed() < recheck => {
                Recollection::Trusted
            }
            true => Recollection::Aged,
            false => Recollection::Unknown,
        }
    }

    /// Checks a password of a client at `address` (`None` for a unix socket). `query` asks the
    /// server, and blocks meanwhile.
    pub(super) fn check(
        &self,
        check: PasswordCheck,
        address: Option<IpAddr>,
        recheck: Duration,
        query: impl FnOnce(&PasswordCheck) -> ServerAnswer,
    ) -> PasswordCheckResult {
        let recollection = self.recollection(&check, recheck);
        let PasswordCheck { database, user, .. } = &check;
        let key = (database.clone(), user.clone());
        let address_key = (key.clone(), address.map(network));
        let attempt = self.by_user.begin(&key, USER_ATTEMPTS).then(|| {
            let is_within = self.by_address.begin(&address_key, ADDRESS_ATTEMPTS);
            if !is_within {
                self.by_user.undo(&key);
            }
            is_within
        });
        let result = match (recollection, attempt) {
            (Recollection::Trusted, _) => PasswordCheckResult::Accepted(check.password),
            (Recollection::Aged, None | Some(false)) => {
                return PasswordCheckResult::Accepted(check.password);
            }
            (Recollection::Unknown, None | Some(false)) => return PasswordCheckResult::TooMany,
            (recollection, Some(true)) => {
                self.handle_reply(query(&check), check, key.clone(), recollection)
            }
        };
        // Only refused attempts count.
        if !matches!(result, PasswordCheckResult::Refused) && attempt == Some(true) {
            self.by_user.undo(&key);
            self.by_address.undo(&address_key);
        }
        result
    }

    /// Stores the answer of a server.
    fn handle_reply(
        &self,
        answer: ServerAnswer,
        check: PasswordCheck,
        key: DatabaseUser,
        recollection: Recollection,
    ) -> PasswordCheckResult {
        match answer {
            ServerAnswer::Accepted => {
                self.store(key, check.password.clone(), false);
                PasswordCheckResult::Accepted(check.password)
            }
            ServerAnswer::Refused => {
                if recollection == Recollection::Aged {
                    self.accepted.lock().remove(&key);
                }
                PasswordCheckResult::Refused
            }
            ServerAnswer::Failed(failure)
                if failure.is_transient() && recollection == Recollection::Aged =>
            {
                PasswordCheckResult::Accepted(check.password)
            }
            ServerAnswer::Failed(ServerFailure { sqlstate, message }) => {
                PasswordCheckResult::Failed { sqlstate, message }
            }
        }
    }

    fn store(&self, key: DatabaseUser, password: Secret, must_recheck: bool) {
        let mut accepted = self.accepted.lock();
        if accepted.len() < ACCEPTED_MAX || accepted.contains_key(&key) {
            let checked_at = Instant::now();
            accepted.insert(key, AcceptedPassword { password, checked_at, must_recheck });
        }
    }

    /// Makes the next login of a user ask the server, because a server has refused a login of the
    /// user's pool.
    pub(super) fn recheck(&self, database: &str, user: &str) {
        let key = (database.to_owned(), user.to_owned());
        if let Some(known) = self.accepted.lock().get_mut(&key) {
            known.must_recheck = true;
        }
    }

    /// Whether a server has accepted this password.
    pub(super) fn is_accepted(&self, database: &str, user: &str, password: &Secret) -> bool {
        let accepted = self.accepted.lock();
        let known = accepted.get(&(database.to_owned(), user.to_owned()));
        known.is_some_and(|known| known.password.expose().ct_eq(password.expose()).into())
    }

    /// Adds a password that a server has accepted in the predecessor process. The next login asks
    /// the server.
    pub(super) fn adopt(&self, database: &str, user: &str, password: Secret) {
        let key = (database.to_owned(), user.to_owned());
        if !self.accepted.lock().contains_key(&key) {
            self.store(key, password, true);
        }
    }

    /// Forgets all passwords, because other servers may be responsible now.
    pub(super) fn clear(&self) {
        self.accepted.lock().clear();
    }

    /// Removes passwords that are no longer trusted in any case.
    pub(super) fn remove_expired(&self) {
        self.accepted.lock().retain(|_, known| known.checked_at.elapsed() < TRUST_MAX);
    }
}

/// Returns the address itself for IPv4, and the network of 64 bits for IPv6.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// A limit on attempts: so many at once, and then so many each second.
#[derive(Clone, Copy, Debug)]
struct AttemptLimit {
    burst: u32,
    per_second: u32,
}

/// Counters of attempts, by the hash of a key.
#[derive(Debug, Default)]
struct AttemptCounters {
    hasher: RandomState,
    /// Empty until the first attempt.
    counters: Mutex<Vec<AttemptCounter>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct AttemptCounter {
    attempts: u32,
    /// Time at which `attempts` was last reduced.
    reduced_at: Option<Instant>,
}

impl AttemptCounters {
    fn index(&self, key: &impl std::hash::Hash) -> usize {
        usize::try_from(self.hasher.hash_one(key) % COUNTERS as u64).unwrap_or(0)
    }

    /// Counts an attempt, and returns whether it is within the limit.
    fn begin(&self, key: &impl std::hash::Hash, limit: AttemptLimit) -> bool {
        let mut counters = self.counters.lock();
        counters.resize(COUNTERS, AttemptCounter::default());
        let counter = &mut counters[self.index(key)];
        let now = Instant::now();
        let reduced_at = *counter.reduced_at.get_or_insert(now);
        let seconds = now.saturating_duration_since(reduced_at).as_secs();
        if seconds > 0 {
            let reduction = u32::try_from(seconds).unwrap_or(u32::MAX);
            let reduction = reduction.saturating_mul(limit.per_second);
            counter.attempts = counter.attempts.saturating_sub(reduction);
            counter.reduced_at = Some(reduced_at + Duration::from_secs(seconds));
        }
        let is_within = counter.attempts < limit.burst;
        counter.attempts += u32::from(is_within);
        is_within
    }

    /// Takes back an attempt, which was not refused.
    fn undo(&self, key: &impl std::hash::Hash) {
        if let Some(counter) = self.counters.lock().get_mut(self.index(key)) {
            counter.attempts = counter.attempts.saturating_sub(1);
        }
    }
}

#[test]
fn attempts_beyond_the_burst_are_refused_for_this_key_only() {
    let counters = AttemptCounters::default();
    let limit = AttemptLimit { burst: 3, per_second: 1 };
    let admitted = |key: &str| (0..5).filter(|_| counters.begin(&key, limit)).count();
    assert_eq!(admitted("alice"), 3);
    assert_eq!(admitted("bob"), 3);
    counters.undo(&"alice");
    assert_eq!(admitted("alice"), 1);
}

#[test]
fn addresses_of_one_ipv6_network_count_together() {
    let one = |text: &str| network(text.parse().unwrap());
    assert_eq!(one("2001:db8::1"), one("2001:db8::ffff:1"));
    assert_ne!(one("2001:db8:0:1::1"), one("2001:db8::1"));
    assert_eq!(one("::ffff:10.0.0.1"), one("10.0.0.1"));
    assert_ne!(one("10.0.0.1"), one("10.0.0.2"));
}
