//! [`MemberHealth`]: the shared state of one server.
//!
//! The monitor thread, workers whose connections fail, and administrators update the state under a
//! lock. To route a query, workers normally read only a few bits, without the lock; they take it
//! in exceptional cases, for example to lift all bans if no server is eligible.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};

use super::{CheckSeq, ServerStatus, WriteTracker};
use crate::{cluster::AssignedRole, time::Time};

/// Bit of the eligibility that workers read: the server accepts writes.
pub(super) const PRIMARY: u8 = 1;
/// The server serves reads as a standby.
pub(super) const REPLICA: u8 = 2;
/// The server serves requests that accept any role.
pub(super) const ANY: u8 = 4;
/// The server is [`ServerStatus::Stale`] or [`ServerStatus::Foreign`], a primary that is not the
/// accepted one: clients must not stay connected to it.
const FENCED: u8 = 8;
/// The server has failed checks for so long that requests running on it are aborted.
const UNRESPONSIVE: u8 = 16;

/// The shared state of one server.
#[derive(Debug)]
pub struct MemberHealth {
    configured: AssignedRole,
    ban: Duration,
    eligibility: AtomicU8,
    /// Connections opened in an earlier epoch are closed as soon as they are free.
    epoch: AtomicU32,
    /// Time of the first reply to a check after the last ban expired, in nanoseconds; 0 if there
    /// was none. A ban that was lifted does not count.
    slow_start_from: AtomicU64,
    /// For a standby, the number of the last check whose primary WAL position it has replayed; 0 if
    /// unknown.
    replayed: AtomicU64,
    /// The write tracker of the server's cluster.
    pub(crate) write_tracker: Arc<WriteTracker>,
    version: Arc<AtomicU32>,
    state: Mutex<HealthState>,
}

#[derive(Debug)]
struct HealthState {
    status: ServerStatus,
    /// Whether a connection attempt or health check has failed since the server last replied to a
    /// check. Lifting a ban clears this too.
    is_down: bool,
    /// Time of the first failed check since the server last replied to one.
    failing_since: Option<Time>,
    is_unresponsive: bool,
    /// Whether the server may have restarted or been replaced since the last successful check, for
    /// example because a connection was lost or a check failed.
    is_suspect: bool,
    /// Number of suspicions so far: lost connections, failed connection attempts, address changes,
    /// and checks without a user to log in as. The result of a check is discarded if this number
    /// has grown since the check started.
    suspicions: u32,
    ban: Option<MemberBan>,
    findings: CheckFindings,
}

/// A ban of a server: a period during which it gets no clients, and the reason. A primary cannot be
/// banned; a banned standby that is promoted gets writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberBan {
    /// Time at which the ban started.
    pub since: Time,
    /// Time from which the next reply to a check ends the ban.
    pub until: Time,
    /// The error that caused or last extended the ban, or a text that says that an administrator
    /// requested it.
    pub reason: String,
}

/// The state of a server according to its last successful health check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckFindings {
    /// The timeline that the server reported; 0 if a standby has not reported one.
    pub timeline: u32,
    /// The last WAL position that the primary has written or the standby has replayed.
    pub lsn: u64,
    /// The standby's lag in bytes of WAL, if known.
    pub lag_bytes: Option<u64>,
    /// The standby's lag in time: how long ago the primary passed the position that the standby has
    /// replayed.
    pub lag: Option<Duration>,
    /// Whether the lag exceeds the configured maximum.
    pub is_lagging: bool,
    /// The system identifier from initdb, if known.
    pub system_identifier: Option<i64>,
    /// Whether the system identifier differs from the primary's although they are required to be
    /// the same.
    pub is_foreign: bool,
    /// For a standby, the last check whose primary WAL position it has replayed; 0 if unknown.
    pub(crate) replayed: CheckSeq,
}

/// The state of a member as displayed by the console.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberReport {
    /// `primary`, `replica`, `returning`, `stale`, `foreign` or `unknown`.
    pub role: &'static str,
    /// `up`, `down`, `banned`, `foreign` or `lagging`.
    pub state: &'static str,
    /// The findings of the last successful check.
    pub findings: CheckFindings,
    /// The current ban, if any.
    pub ban: Option<MemberBan>,
}

impl MemberHealth {
    pub(super) fn new(
        configured: AssignedRole,
        ban: Duration,
        write_tracker: Arc<WriteTracker>,
        version: Arc<AtomicU32>,
    ) -> Self {
        let status = match configured {
            AssignedRole::Auto => ServerStatus::Unknown,
            AssignedRole::Primary => ServerStatus::Primary,
            AssignedRole::Replica => ServerStatus::Replica,
        };
        let inner = HealthState {
            status,
            is_down: false,
            failing_since: None,
            is_unresponsive: false,
            is_suspect: false,
            suspicions: 0,
            ban: None,
            findings: CheckFindings::default(),
        };
        let eligibility = AtomicU8::new(inner.eligibility(configured));
        let (epoch, warm_from) = (AtomicU32::new(0), AtomicU64::new(0));
        let (replayed, inner) = (AtomicU64::new(0), Mutex::new(inner));
        Self {
            configured,
            ban,
            eligibility,
            epoch,
            slow_start_from: warm_from,
            replayed,
            write_tracker,
            version,
            state: inner,
        }
    }

    /// Returns the published eligibility bits.
    #[inline]
    pub(super) fn eligibility(&self) -> u8 {
        self.eligibility.load(Ordering::Acquire)
    }

    /// Returns the last check whose primary WAL position this server has replayed.
    #[inline]
    pub fn replayed(&self) -> CheckSeq {
        CheckSeq::from_number(self.replayed.load(Ordering::Acquire))
    }

    /// Whether the server is fenced, so that clients must not stay connected to it.
    pub(crate) fn is_fenced(&self) -> bool {
        self.eligibility() & FENCED != 0
    }

    /// Whether the server has failed checks for so long that running requests are aborted.
    pub fn is_unresponsive(&self) -> bool {
        self.eligibility() & UNRESPONSIVE != 0
    }

    /// Whether a check has failed since the server last replied to one.
    pub(crate) fn is_failing_checks(&self) -> bool {
        self.lock().failing_since.is_some()
    }

    /// Whether writes may be sent to the server: it is the primary, and either configured as such
    /// or not suspect.
    pub fn accepts_writes(&self) -> bool {
        self.eligibility() & PRIMARY != 0
    }

    #[inline]
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Returns the time of the first reply to a check after the last ban expired; `None` if no ban
    /// has expired.
    pub(super) fn slow_start_from(&self) -> Option<Time> {
        Some(Time(self.slow_start_from.load(Ordering::Relaxed))).filter(|time| time.0 > 0)
    }

    fn lock(&self) -> MutexGuard<'_, HealthState> {
        self.state.lock()
    }

    /// Publishes the state for workers. The lock is held until both values are written, so that no
    /// older state is published after a newer one.
    fn publish(&self, inner: &HealthState) {
        // Stored first, so that a worker that sees the server as eligible also sees how far it has
        // replayed.
        self.replayed.store(inner.findings.replayed.get(), Ordering::Release);
        let eligibility = inner.eligibility(self.configured);
        if self.eligibility.swap(eligibility, Ordering::Release) != eligibility {
            self.version.fetch_add(1, Ordering::Release);
        }
    }

    /// Handles a change of the address that the server's name resolves to: connections are replaced
    /// as they become free, and the server at the new address must be checked before it gets
    /// writes, unless it is configured as the primary.
    pub fn handle_address_change(&self) {
        self.epoch.fetch_add(1, Ordering::Relaxed);
        self.version.fetch_add(1, Ordering::Release);
        self.suspect();
    }

    /// Records that the server may have restarted or been replaced, for example because it closed a
    /// connection unexpectedly. Unless it is configured as the primary, it gets no writes until the
    /// next successful check.
    pub fn suspect(&self) {
        let mut inner = self.lock();
        inner.suspicions += 1;
        inner.is_suspect = true;
        inner.findings.replayed = CheckSeq::default();
        self.publish(&inner);
    }

    /// Records a failed attempt to connect. A replica is banned.
    pub(crate) fn connect_failed(&self, now: Time, reason: &str) {
        let mut inner = self.lock();
        inner.suspicions += 1;
        inner.mark_failed(now, self.ban, reason);
        self.publish(&inner);
    }

    /// Returns the number of suspicions so far. A check reads it before it starts, so that its
    /// success does not clear later ones.
    pub fn suspicions(&self) -> u32 {
        self.lock().suspicions
    }

    /// Records a failed check. A replica is banned. If all checks have failed for
    /// `check_failure_timeout`, requests running on the server are aborted. Returns whether the
    /// server was up before.
    pub(crate) fn check_failed(
        &self,
        now: Time,
        reason: &str,
        check_failure_timeout: Option<Duration>,
    ) -> bool {
        let mut inner = self.lock();
        let was_up = !inner.is_down;
        let since = *inner.failing_since.get_or_insert(now);
        inner.is_unresponsive =
            check_failure_timeout.is_some_and(|after| now.since(since) >= after);
        inner.mark_failed(now, self.ban, reason);
        self.publish(&inner);
        was_up
    }

    /// Records a successful check that started after `suspicions` suspicions. Returns whether its
    /// result is valid: it is discarded if a suspicion was raised meanwhile, which may be about an
    /// event after the reply. Status and findings are published together, since a different server
    /// may be replying at this address now.
    pub(crate) fn check_succeeded(
        &self,
        suspicions: u32,
        status: ServerStatus,
        state: CheckFindings,
        now: Time,
    ) -> bool {
        let mut inner = self.lock();
        if inner.suspicions != suspicions {
            return false;
        }
        inner.is_suspect = false;
        self.mark_reachable(&mut inner, now);
        self.update(&mut inner, status, state);
        self.publish(&inner);
        true
    }

    /// Records that the server replies but refuses the check: it is up, and its status and findings
    /// stay the same.
    pub fn handle_refused_check(&self, now: Time) {
        let mut inner = self.lock();
        self.mark_reachable(&mut inner, now);
        self.publish(&inner);
    }

    fn mark_reachable(&self, inner: &mut HealthState, now: Time) {
        inner.is_down = false;
        (inner.failing_since, inner.is_unresponsive) = (None, false);
        if inner.ban.as_ref().is_some_and(|ban| ban.until <= now) {
            inner.ban = None;
            self.slow_start_from.store(now.0, Ordering::Relaxed);
        }
    }

    /// Sets the status that follows from reports of other servers, a failed check or a reset.
    pub(crate) fn set_status(&self, status: ServerStatus, is_foreign: bool) {
        let mut inner = self.lock();
        let state = CheckFindings { is_foreign, ..inner.findings.clone() };
        self.update(&mut inner, status, state);
        self.publish(&inner);
    }

    /// Stores status and findings. A configured role takes precedence over `status`.
    fn update(&self, inner: &mut HealthState, status: ServerStatus, state: CheckFindings) {
        let before = inner.status;
        if self.configured == AssignedRole::Auto {
            inner.status = status;
        }
        inner.findings = state;
        if before == ServerStatus::Primary && inner.status != before {
            self.epoch.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the configured role, or else the status that was determined last.
    pub fn status(&self) -> ServerStatus {
        self.lock().status
    }

    /// Bans the server on behalf of an administrator; returns `false` for a primary, which cannot
    /// be banned.
    pub fn ban(&self, now: Time, lasts: Option<Duration>, reason: &str) -> bool {
        let mut inner = self.lock();
        if inner.status == ServerStatus::Primary {
            return false;
        }
        let until = now + lasts.unwrap_or(self.ban);
        inner.ban = Some(MemberBan { since: now, until, reason: reason.to_owned() });
        self.publish(&inner);
        true
    }

    /// Lifts the ban, if there is one, and then considers the server up until the next failure.
    /// Returns whether there was a ban.
    pub fn unban(&self) -> bool {
        let mut inner = self.lock();
        let had = inner.ban.take().is_some();
        inner.is_down &= !had;
        self.publish(&inner);
        had
    }

    /// Returns the state for display by the console.
    pub fn report(&self) -> MemberReport {
        let inner = self.lock();
        let state = match () {
            () if inner.ban.is_some() => "banned",
            () if inner.is_down => "down",
            () if inner.findings.is_foreign => "foreign",
            () if inner.findings.is_lagging => "lagging",
            () => "up",
        };
        let (findings, ban) = (inner.findings.clone(), inner.ban.clone());
        MemberReport { role: inner.status.as_str(), state, findings, ban }
    }
}

impl HealthState {
    fn mark_failed(&mut self, now: Time, ban: Duration, reason: &str) {
        (self.is_down, self.is_suspect) = (true, true);
        // The server may return after a rebuild from an older copy.
        self.findings.replayed = CheckSeq::default();
        let is_banned = self.ban.as_ref().is_some_and(|ban| ban.until > now);
        if self.status == ServerStatus::Replica && !is_banned {
            let since = self.ban.as_ref().map_or(now, |ban| ban.since);
            self.ban = Some(MemberBan { since, until: now + ban, reason: reason.to_owned() });
        }
    }

    fn eligibility(&self, configured: AssignedRole) -> u8 {
        let is_primary = self.status == ServerStatus::Primary;
        let writes = is_primary
            && (configured == AssignedRole::Primary || !self.is_suspect && !self.is_down);
        let is_held_back = self.findings.is_lagging || self.findings.is_foreign;
        let serves = self.ban.is_none() && !self.is_down && !is_held_back;
        let reads = serves && self.status == ServerStatus::Replica;
        let any = serves && (is_primary || reads || self.status == ServerStatus::Unknown);
        let bits = [
            (writes, PRIMARY),
            (reads, REPLICA),
            (any, ANY),
            (matches!(self.status, ServerStatus::Stale | ServerStatus::Foreign), FENCED),
            (self.is_unresponsive, UNRESPONSIVE),
        ];
        bits.into_iter().filter(|(is_so, _)| *is_so).map(|(_, bit)| bit).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BAN: Duration = Duration::from_secs(60);

    fn member(configured: AssignedRole) -> (MemberHealth, Arc<AtomicU32>) {
        let version = Arc::new(AtomicU32::new(1));
        (MemberHealth::new(configured, BAN, Arc::default(), Arc::clone(&version)), version)
    }

    fn at(seconds: u64) -> Time {
        Time::default() + Duration::from_secs(seconds)
    }

    #[test]
    fn failed_replica_is_banned_until_a_check_succeeds() {
        let (member, version) = member(AssignedRole::Replica);
        assert_eq!(member.eligibility(), REPLICA | ANY);
        member.connect_failed(at(10), "refused");
        assert_eq!((member.eligibility(), version.load(Ordering::Relaxed)), (0, 2));
        let ban = member.report().ban.unwrap();
        assert_eq!((ban.until, ban.reason.as_str()), (at(70), "refused"));
        // Another failure does not prolong the ban, and a successful check does not end it early.
        member.connect_failed(at(20), "refused");
        let answers = |seconds| {
            let (suspicions, findings) = (member.suspicions(), CheckFindings::default());
            member.check_succeeded(suspicions, ServerStatus::Replica, findings, at(seconds))
        };
        assert!(answers(30));
        assert_eq!((member.eligibility(), member.report().state), (0, "banned"));
        // The end of the ban alone does not bring the member back.
        member.check_failed(at(71), "silent", None);
        assert_eq!(member.report().ban.unwrap().until, at(131));
        assert!(answers(140));
        assert_eq!(
            (member.eligibility(), member.slow_start_from()),
            (REPLICA | ANY, Some(at(140)))
        );
    }

    #[test]
    fn primary_is_never_banned_and_is_rechecked_before_writes() {
        let (named, _) = member(AssignedRole::Primary);
        named.connect_failed(at(1), "refused");
        assert_eq!((named.eligibility(), named.report().ban), (PRIMARY, None), "writes wait there");
        assert!(!named.ban(at(1), None, "by an administrator"));

        let (findings, _) = member(AssignedRole::Auto);
        assert_eq!(findings.eligibility(), ANY);
        findings.set_status(ServerStatus::Primary, false);
        assert_eq!(findings.eligibility(), PRIMARY | ANY);
        let before = findings.suspicions();
        findings.suspect();
        assert_eq!(findings.eligibility(), ANY);
        let answers = |suspicions| {
            findings.check_succeeded(
                suspicions,
                ServerStatus::Primary,
                CheckFindings::default(),
                at(2),
            )
        };
        assert!(!answers(before), "the check started before the suspicion");
        assert!(answers(findings.suspicions()));
        assert_eq!(findings.eligibility(), PRIMARY | ANY);
        findings.set_status(ServerStatus::Stale, false);
        assert!(findings.is_fenced() && findings.eligibility() & ANY == 0 && findings.epoch() == 1);
    }

    #[test]
    fn silent_server_is_unresponsive_until_it_answers() {
        let (member, _) = member(AssignedRole::Primary);
        let after = Some(Duration::from_secs(60));
        for (seconds, is_unresponsive) in [(100, false), (159, false), (160, true)] {
            member.check_failed(at(seconds), "silent", after);
            assert_eq!(member.is_unresponsive(), is_unresponsive, "{seconds}");
        }
        assert!(member.eligibility() & PRIMARY != 0, "writes wait there");
        // A refused check shows that the server responds.
        member.handle_refused_check(at(170));
        assert!(!member.is_unresponsive());
        // A failed connection does not count as a failed check, so the timeout starts only with the
        // next check.
        member.connect_failed(at(300), "reset by peer");
        member.check_failed(at(300), "silent", after);
        assert!(!member.is_unresponsive());
        member.check_failed(at(1000), "silent", None);
        assert!(!member.is_unresponsive(), "without a timeout it stays responsive");
    }

    #[test]
    fn foreign_member_gets_no_reads() {
        let (member, version) = member(AssignedRole::Replica);
        member.set_status(ServerStatus::Replica, true);
        assert_eq!((member.eligibility(), member.report().state), (0, "foreign"));
        assert_eq!(version.load(Ordering::Relaxed), 2);
        member.set_status(ServerStatus::Replica, false);
        assert_eq!((member.eligibility(), member.report().state), (REPLICA | ANY, "up"));
    }
}
