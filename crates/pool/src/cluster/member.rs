//! [`Member`]: what is known of one server, whoever learnt it.
//!
//! Written by the thread that checks it, by workers whose connections to it fail, and by operators, all
//! under a lock, since none of them is on the path of a query; read there as a few bits.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use super::{Question, Standing, WriteTracker};
use crate::{config::ConfiguredRole, time::Time};

/// For whom a member would do: bits of what is published.
pub(super) const PRIMARY: u8 = 1;
pub(super) const REPLICA: u8 = 2;
pub(super) const ANY: u8 = 4;
/// It is a primary of an older timeline, or of another system: nobody may go on there.
const FENCED: u8 = 8;
/// It has answered no check for so long that nobody waits for it any more.
const DEAD: u8 = 16;

/// What is known of one server.
#[derive(Debug)]
pub struct Member {
    said: ConfiguredRole,
    ban: Duration,
    fit: AtomicU8,
    /// Servers of another epoch are closed as they become free.
    epoch: AtomicU32,
    /// When its last ban ended, in nanoseconds; 0 for never.
    warm_from: AtomicU64,
    /// Of a standby: it has replayed what the primary had at this question.
    replayed: AtomicU64,
    /// Of its cluster.
    pub(crate) tide: Arc<WriteTracker>,
    version: Arc<AtomicU32>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    standing: Standing,
    /// It could not be reached since it was last heard of.
    is_down: bool,
    /// When the first check failed of those that did since it was last heard of.
    silent_since: Option<Time>,
    is_dead: bool,
    /// A connection to it ended, and it was not heard of since: it may have been started anew.
    is_doubted: bool,
    /// How often it was doubted: an answer to a question from before says nothing.
    doubts: u32,
    ban: Option<Ban>,
    state: MemberState,
}

/// Why and for how long a replica gets nobody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ban {
    /// When it began.
    pub since: Time,
    /// Before this it is not even tried.
    pub until: Time,
    /// Why.
    pub reason: String,
}

/// What a check has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberState {
    /// The timeline, of a primary.
    pub timeline: u32,
    /// How far it is: written, or replayed.
    pub lsn: u64,
    /// How many bytes of WAL it is behind the primary, if that is known.
    pub lag_bytes: Option<u64>,
    /// How long ago the primary was where it is now.
    pub lag: Option<Duration>,
    /// Whether that is more than may be.
    pub lags: bool,
    /// The identifier that initdb gave its system, if it says.
    pub system: Option<i64>,
    /// Whether that is another than the primary's, and must not be.
    pub is_foreign: bool,
    /// Of a standby: it has replayed what the primary had at this question.
    pub(crate) replayed: Question,
}

/// What is told of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberReport {
    /// `primary`, `replica`, `returning`, `stale`, `foreign` or `unknown`.
    pub role: &'static str,
    /// `up`, `down`, `banned`, `foreign` or `lagging`.
    pub state: &'static str,
    /// What the last check that succeeded has found.
    pub found: MemberState,
    /// Its ban.
    pub ban: Option<Ban>,
}

impl Member {
    pub(super) fn new(
        said: ConfiguredRole,
        ban: Duration,
        tide: Arc<WriteTracker>,
        version: Arc<AtomicU32>,
    ) -> Self {
        let standing = match said {
            ConfiguredRole::Auto => Standing::Unknown,
            ConfiguredRole::Primary => Standing::Primary,
            ConfiguredRole::Replica => Standing::Replica,
        };
        let inner = Inner {
            standing,
            is_down: false,
            silent_since: None,
            is_dead: false,
            is_doubted: false,
            doubts: 0,
            ban: None,
            state: MemberState::default(),
        };
        let fit = AtomicU8::new(inner.fit(said));
        let (epoch, warm_from) = (AtomicU32::new(0), AtomicU64::new(0));
        let (replayed, inner) = (AtomicU64::new(0), Mutex::new(inner));
        Self { said, ban, fit, epoch, warm_from, replayed, tide, version, inner }
    }

    /// For whom it would do.
    #[inline]
    pub(super) fn fit(&self) -> u8 {
        self.fit.load(Ordering::Acquire)
    }

    /// The last question by which it has replayed all that the primary had.
    #[inline]
    pub(crate) fn replayed(&self) -> Question {
        Question::numbered(self.replayed.load(Ordering::Acquire))
    }

    /// Whether nobody may go on there.
    pub(crate) fn is_fenced(&self) -> bool {
        self.fit() & FENCED != 0
    }

    /// Whether it has answered no check for so long that what runs there is given up.
    pub(crate) fn is_dead(&self) -> bool {
        self.fit() & DEAD != 0
    }

    /// Whether it has failed a check since it was last heard of.
    pub(crate) fn is_silent(&self) -> bool {
        self.inner().silent_since.is_some()
    }

    /// Whether it is the one to write to.
    pub(crate) fn may_write(&self) -> bool {
        self.fit() & PRIMARY != 0
    }

    #[inline]
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// When its last ban ended.
    pub(super) fn warm_from(&self) -> Option<Time> {
        Some(Time(self.warm_from.load(Ordering::Relaxed))).filter(|time| time.0 > 0)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has workers choose by what is known now. The lock is held until both are written, so that no
    /// older knowledge is published after newer.
    fn publish(&self, inner: &Inner) {
        // First: who finds that it would do finds how far it is.
        self.replayed.store(inner.state.replayed.number(), Ordering::Release);
        let fit = inner.fit(self.said);
        if self.fit.swap(fit, Ordering::Release) != fit {
            self.version.fetch_add(1, Ordering::Release);
        }
    }

    /// Its name means another place: servers are replaced as they become free, and who is there now has
    /// to be heard of first.
    pub(crate) fn is_elsewhere(&self) {
        self.epoch.fetch_add(1, Ordering::Relaxed);
        self.version.fetch_add(1, Ordering::Release);
        self.doubt();
    }

    /// A connection to it has ended, and not because we ended it: if it is a primary that was not
    /// named, it is not written to before it has been heard of again.
    pub(crate) fn doubt(&self) {
        let mut inner = self.inner();
        inner.doubts += 1;
        inner.is_doubted = true;
        inner.state.replayed = Question::default();
        self.publish(&inner);
    }

    /// No connection could be made.
    pub(crate) fn failed(&self, now: Time, reason: &str) {
        let mut inner = self.inner();
        inner.doubts += 1;
        inner.fails(now, self.ban, reason);
        self.publish(&inner);
    }

    /// How often it was doubted: to be asked for before a question is asked.
    pub(crate) fn doubts(&self) -> u32 {
        self.inner().doubts
    }

    /// A check has failed. If none has succeeded for `check_failure_timeout`, what runs there is given up. Gives whether the
    /// failure was news.
    pub(crate) fn check_failed(
        &self,
        now: Time,
        reason: &str,
        check_failure_timeout: Option<Duration>,
    ) -> bool {
        let mut inner = self.inner();
        let is_news = !inner.is_down;
        let since = *inner.silent_since.get_or_insert(now);
        inner.is_dead = check_failure_timeout.is_some_and(|after| now.since(since) >= after);
        inner.fails(now, self.ban, reason);
        self.publish(&inner);
        is_news
    }

    /// A check has succeeded that began when there were so many doubts, and this is what it is by that.
    /// Gives whether it is of use: a doubt that came meanwhile may be about what happened after the
    /// answer. All of it is published at once: what is heard of again may not be what it was.
    pub(crate) fn check_succeeded(
        &self,
        doubts: u32,
        standing: Standing,
        state: MemberState,
        now: Time,
    ) -> bool {
        let mut inner = self.inner();
        if inner.doubts != doubts {
            return false;
        }
        inner.is_doubted = false;
        self.is_back(&mut inner, now);
        self.set(&mut inner, standing, state);
        self.publish(&inner);
        true
    }

    /// It answers, and does not let us ask: so it is there, and nothing more is known than before.
    pub(crate) fn answered(&self, now: Time) {
        let mut inner = self.inner();
        self.is_back(&mut inner, now);
        self.publish(&inner);
    }

    fn is_back(&self, inner: &mut Inner, now: Time) {
        inner.is_down = false;
        (inner.silent_since, inner.is_dead) = (None, false);
        if inner.ban.as_ref().is_some_and(|ban| ban.until <= now) {
            inner.ban = None;
            self.warm_from.store(now.0, Ordering::Relaxed);
        }
    }

    /// Takes what it is by what another has said.
    pub(crate) fn stands(&self, standing: Standing, is_foreign: bool) {
        let mut inner = self.inner();
        let state = MemberState { is_foreign, ..inner.state.clone() };
        self.set(&mut inner, standing, state);
        self.publish(&inner);
    }

    /// A server that is said to be something stays that.
    fn set(&self, inner: &mut Inner, standing: Standing, state: MemberState) {
        let before = inner.standing;
        if self.said == ConfiguredRole::Auto {
            inner.standing = standing;
        }
        inner.state = state;
        if before == Standing::Primary && inner.standing != before {
            self.epoch.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What it is.
    pub(crate) fn standing(&self) -> Standing {
        self.inner().standing
    }

    /// Bans it, for an operator; `false` if it is a primary, which is never banned.
    pub(crate) fn ban(&self, now: Time, lasts: Option<Duration>, reason: &str) -> bool {
        let mut inner = self.inner();
        if inner.standing == Standing::Primary {
            return false;
        }
        let until = now + lasts.unwrap_or(self.ban);
        inner.ban = Some(Ban { since: now, until, reason: reason.to_owned() });
        self.publish(&inner);
        true
    }

    /// Ends its ban, if it has one.
    pub(crate) fn unban(&self) -> bool {
        let mut inner = self.inner();
        let had = inner.ban.take().is_some();
        inner.is_down &= !had;
        self.publish(&inner);
        had
    }

    /// What there is to tell.
    pub(crate) fn report(&self) -> MemberReport {
        let inner = self.inner();
        let state = match () {
            () if inner.ban.is_some() => "banned",
            () if inner.is_down => "down",
            () if inner.state.is_foreign => "foreign",
            () if inner.state.lags => "lagging",
            () => "up",
        };
        let (found, ban) = (inner.state.clone(), inner.ban.clone());
        MemberReport { role: inner.standing.as_str(), state, found, ban }
    }
}

impl Inner {
    fn fails(&mut self, now: Time, ban: Duration, reason: &str) {
        (self.is_down, self.is_doubted) = (true, true);
        // What is there next may have been made anew of an older copy.
        self.state.replayed = Question::default();
        let is_banned = self.ban.as_ref().is_some_and(|ban| ban.until > now);
        if self.standing == Standing::Replica && !is_banned {
            let since = self.ban.as_ref().map_or(now, |ban| ban.since);
            self.ban = Some(Ban { since, until: now + ban, reason: reason.to_owned() });
        }
    }

    fn fit(&self, said: ConfiguredRole) -> u8 {
        let is_primary = self.standing == Standing::Primary;
        let writes =
            is_primary && (said == ConfiguredRole::Primary || !self.is_doubted && !self.is_down);
        let is_held_back = self.state.lags || self.state.is_foreign;
        let serves = self.ban.is_none() && !self.is_down && !is_held_back;
        let reads = serves && self.standing == Standing::Replica;
        let any = serves && (is_primary || reads || self.standing == Standing::Unknown);
        let bits = [
            (writes, PRIMARY),
            (reads, REPLICA),
            (any, ANY),
            (matches!(self.standing, Standing::Stale | Standing::Foreign), FENCED),
            (self.is_dead, DEAD),
        ];
        bits.into_iter().filter(|(is_so, _)| *is_so).map(|(_, bit)| bit).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BAN: Duration = Duration::from_secs(60);

    fn member(said: ConfiguredRole) -> (Member, Arc<AtomicU32>) {
        let version = Arc::new(AtomicU32::new(1));
        (Member::new(said, BAN, Arc::default(), Arc::clone(&version)), version)
    }

    fn at(seconds: u64) -> Time {
        Time::default() + Duration::from_secs(seconds)
    }

    #[test]
    fn a_replica_that_fails_is_banned_until_it_has_been_probed() {
        let (member, version) = member(ConfiguredRole::Replica);
        assert_eq!(member.fit(), REPLICA | ANY);
        member.failed(at(10), "refused");
        assert_eq!((member.fit(), version.load(Ordering::Relaxed)), (0, 2));
        let ban = member.report().ban.unwrap();
        assert_eq!((ban.until, ban.reason.as_str()), (at(70), "refused"));
        // Another failure does not prolong it, and an answer does not end it early.
        member.failed(at(20), "refused");
        let answers = |seconds| {
            let (doubts, found) = (member.doubts(), MemberState::default());
            member.check_succeeded(doubts, Standing::Replica, found, at(seconds))
        };
        assert!(answers(30));
        assert_eq!((member.fit(), member.report().state), (0, "banned"));
        // Its time being over is not enough.
        member.check_failed(at(71), "silent", None);
        assert_eq!(member.report().ban.unwrap().until, at(131));
        assert!(answers(140));
        assert_eq!((member.fit(), member.warm_from()), (REPLICA | ANY, Some(at(140))));
    }

    #[test]
    fn a_primary_is_never_banned_and_one_that_was_found_is_asked_again_before_it_is_written_to() {
        let (named, _) = member(ConfiguredRole::Primary);
        named.failed(at(1), "refused");
        assert_eq!((named.fit(), named.report().ban), (PRIMARY, None), "writes wait there");
        assert!(!named.ban(at(1), None, "by an operator"));

        let (found, _) = member(ConfiguredRole::Auto);
        assert_eq!(found.fit(), ANY);
        found.stands(Standing::Primary, false);
        assert_eq!(found.fit(), PRIMARY | ANY);
        let asked = found.doubts();
        found.doubt();
        assert_eq!(found.fit(), ANY);
        let answers = |doubts| {
            found.check_succeeded(doubts, Standing::Primary, MemberState::default(), at(2))
        };
        assert!(!answers(asked), "it was asked before");
        assert!(answers(found.doubts()));
        assert_eq!(found.fit(), PRIMARY | ANY);
        found.stands(Standing::Stale, false);
        assert!(found.is_fenced() && found.fit() & ANY == 0 && found.epoch() == 1);
    }

    #[test]
    fn one_that_is_silent_for_long_is_given_up_until_it_is_heard_of() {
        let (member, _) = member(ConfiguredRole::Primary);
        let after = Some(Duration::from_secs(60));
        for (seconds, is_dead) in [(100, false), (159, false), (160, true)] {
            member.check_failed(at(seconds), "silent", after);
            assert_eq!(member.is_dead(), is_dead, "{seconds}");
        }
        assert!(member.fit() & PRIMARY != 0, "writes wait there");
        // That it lets nobody ask is an answer.
        member.answered(at(170));
        assert!(!member.is_dead());
        // What workers see of it is no check, and the time is counted anew.
        member.failed(at(300), "reset by peer");
        member.check_failed(at(300), "silent", after);
        assert!(!member.is_dead());
        member.check_failed(at(1000), "silent", None);
        assert!(!member.is_dead(), "for ever");
    }

    #[test]
    fn a_member_of_another_system_gets_no_reads() {
        let (member, version) = member(ConfiguredRole::Replica);
        member.stands(Standing::Replica, true);
        assert_eq!((member.fit(), member.report().state), (0, "foreign"));
        assert_eq!(version.load(Ordering::Relaxed), 2);
        member.stands(Standing::Replica, false);
        assert_eq!((member.fit(), member.report().state), (REPLICA | ANY, "up"));
    }
}
