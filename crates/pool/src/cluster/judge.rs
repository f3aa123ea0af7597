//! [`Judge`]: which of several servers is the primary, by what each says of itself.
//!
//! A server that is in recovery is a standby. Of those that are not, the one with the newest timeline is
//! the primary: a standby that is promoted begins a timeline, and the primary that it replaces stays on
//! the old one, whatever it says. So far there is nothing to decide. What has to be guessed is whether a
//! primary that went away and came back on the newest timeline that is known is still the one: a standby
//! may be about to be promoted, and what is written in between is lost. It is believed when a standby has
//! begun to stream from somebody since it came back, which none does that is being promoted, or after
//! a while. And nobody is the primary before everybody has been asked: the newest timeline is not known.
//!
//! A cluster may be put back to before a promotion: made anew from the old primary, or from a backup. Then no
//! server is of the newest timeline that is known, and none would ever be the primary again. So the only primary
//! among servers that *all* answer, from which standbys stream while they say so, is taken after the same while,
//! whatever its timeline is. With a server out of reach that may be of the newer one, only an operator can say so
//! ([`Judge::forget`]).
//!
//! All of this is so among servers of one *system*, by the identifier that initdb gave it: a timeline says nothing
//! beside that of another system. So somebody else's primary is never ours, however new its timeline is, while
//! any server was last heard to be of our primary's system; unless the settings let servers be of several.

use std::time::Duration;

use crate::{config::ConfiguredRole, time::Time};

/// What a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Nobody has asked it.
    Unknown,
    /// It takes writes.
    Primary,
    /// It is in recovery.
    Replica,
    /// It is a primary that was away, and may not be the one any more.
    Returning,
    /// It is a primary, and another is of a newer timeline.
    Stale,
    /// It is the primary of another system.
    Foreign,
}

impl Standing {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Primary => "primary",
            Self::Replica => "replica",
            Self::Returning => "returning",
            Self::Stale => "stale",
            Self::Foreign => "foreign",
        }
    }
}

/// What a server says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) is_in_recovery: bool,
    /// Of a primary; of a standby that of what it replays, 0 if it was not asked or does not say.
    pub(crate) timeline: u32,
    /// How far it has written, or replayed.
    pub(crate) lsn: u64,
    /// Of a primary: where the WAL ends that it has inserted, flushed or not; `None` if it was not asked.
    pub(crate) inserted: Option<u64>,
    /// When its postmaster started: whether it is the same that was asked before.
    pub(crate) started: String,
    /// Of a standby: whether it streams WAL from somebody. Of a primary: whether somebody streams from it.
    pub(crate) streams: bool,
    /// The identifier that initdb gave its system; `None` if it does not say.
    pub(crate) system: Option<i64>,
}

/// Judges servers by what was last heard of each.
#[derive(Debug)]
pub(crate) struct Judge {
    servers: Vec<Memory>,
    /// What they are said to be.
    roles: Box<[ConfiguredRole]>,
    /// The newest timeline of a primary that anybody ever spoke of.
    timeline: u32,
    trusted: Option<Trusted>,
    /// That of the primary, as far as it is known.
    system: Option<i64>,
    /// For how long one that is back is not believed.
    primary_rejoin_delay: Duration,
    /// Whether a server of another system cannot be the primary.
    require_same_system_identifier: bool,
    dispute: Option<Dispute>,
    /// The only primary there is, of an older timeline than one that was known, and since when it has been so.
    lone: Option<(usize, Time)>,
    /// A primary of an older timeline that was taken, until it is asked for.
    went_back: Option<WentBack>,
}

/// A primary was taken although a newer timeline than its own was known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WentBack {
    /// The primary.
    pub(crate) server: usize,
    /// Its timeline.
    pub(crate) timeline: u32,
    /// The newest that was known before.
    pub(crate) before: u32,
}

/// Why none of several primaries is preferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dispute {
    /// They are of several systems.
    Systems,
    /// They are of one timeline, and none was the primary before.
    Timeline,
}

/// The one that was the primary last.
#[derive(Clone, Debug)]
struct Trusted {
    server: usize,
    /// When it was started.
    started: String,
    system: Option<i64>,
}

#[derive(Clone, Debug, Default)]
struct Memory {
    was_asked: bool,
    /// It did not answer when it was asked last.
    is_away: bool,
    /// What it said, and when; kept when it is away.
    said: Option<(Seen, Time)>,
    /// Since when it has said that it is a primary, without being believed.
    back_since: Option<Time>,
}

impl Judge {
    pub(crate) fn new(
        roles: impl IntoIterator<Item = ConfiguredRole>,
        primary_rejoin_delay: Duration,
        require_same_system_identifier: bool,
    ) -> Self {
        let roles: Box<[_]> = roles.into_iter().collect();
        let servers = vec![Memory::default(); roles.len()];
        Self {
            servers,
            roles,
            timeline: 0,
            trusted: None,
            system: None,
            primary_rejoin_delay,
            require_same_system_identifier,
            dispute: None,
            lone: None,
            went_back: None,
        }
    }

    /// Takes what a server said, or that it did not answer.
    pub(crate) fn hear(&mut self, server: usize, seen: Option<Seen>, now: Time) {
        let Some(memory) = self.servers.get_mut(server) else { return };
        memory.was_asked = true;
        memory.is_away = seen.is_none();
        let Some(seen) = seen else {
            // What it says next may be said by another postmaster.
            memory.back_since = None;
            return;
        };
        let is_another = memory.said.as_ref().is_none_or(|(it, _)| it.started != seen.started);
        if seen.is_in_recovery || is_another {
            memory.back_since = None;
        }
        if !seen.is_in_recovery {
            if self.roles[server] != ConfiguredRole::Replica && self.may_be_ours(&seen) {
                self.timeline = self.timeline.max(seen.timeline);
            }
            let memory = &mut self.servers[server];
            memory.back_since.get_or_insert(now);
        }
        self.servers[server].said = Some((seen, now));
    }

    /// Whether a server is known to be of another system than the primary.
    pub(crate) fn is_foreign(&self, server: usize) -> bool {
        self.said(server).is_some_and(|seen| differ(seen.system, self.system))
    }

    /// Whether it is, and must not be here.
    pub(crate) fn must_not_be(&self, server: usize) -> bool {
        self.require_same_system_identifier && self.is_foreign(server)
    }

    /// What servers are said to be.
    pub(crate) fn roles(&self) -> &[ConfiguredRole] {
        &self.roles
    }

    /// Why there is no primary, where several servers say that they are.
    pub(crate) fn dispute(&self) -> Option<Dispute> {
        self.dispute
    }

    /// That of the primary, as far as it is known.
    pub(crate) fn system(&self) -> Option<i64> {
        self.system
    }

    /// What each server is.
    pub(crate) fn standings(&mut self, now: Time) -> Vec<Standing> {
        let all_asked = self.servers.iter().all(|server| server.was_asked);
        let is_torn = all_asked && !self.settle_system();
        let is_known = all_asked && !is_torn;
        let mut primary = if is_known { self.primary(now) } else { None };
        if is_known && primary.is_none() && self.goes_back(now) {
            primary = self.primary(now);
        }
        self.dispute = match is_known {
            true if primary.is_none() && self.are_equal() => Some(Dispute::Timeline),
            false if is_torn => Some(Dispute::Systems),
            _ => None,
        };
        if let Some(server) = primary
            && let Some(seen) = self.said(server)
        {
            let (started, system) = (seen.started.clone(), seen.system.or(self.system));
            self.system = system;
            self.trusted = Some(Trusted { server, started, system });
        }
        let standing = |(index, server): (usize, &Memory)| match &server.said {
            None => Standing::Unknown,
            Some((seen, _)) if seen.is_in_recovery => Standing::Replica,
            Some(_) if primary == Some(index) => Standing::Primary,
            Some((seen, _)) if !self.may_be_ours(seen) => Standing::Foreign,
            Some(_) if !is_known => Standing::Returning,
            Some((seen, _)) if primary.is_some() || seen.timeline < self.timeline => {
                Standing::Stale
            }
            Some(_) => Standing::Returning,
        };
        self.servers.iter().enumerate().map(standing).collect()
    }

    /// Begins anew: all that is known is what those servers say that answer. For an operator who knows that a
    /// newer timeline is gone for good.
    pub(crate) fn forget(&mut self) {
        for memory in self.servers.iter_mut().filter(|memory| memory.is_away) {
            memory.said = None;
        }
        (self.trusted, self.system, self.lone) = (None, None, None);
        self.timeline = self.claims().map(|(_, seen)| seen.timeline).max().unwrap_or(0);
    }

    /// A primary of an older timeline that was taken since this was asked for last.
    pub(crate) fn take_went_back(&mut self) -> Option<WentBack> {
        self.went_back.take()
    }

    /// Whether the only primary there is, of an older timeline, has been that for long enough.
    fn goes_back(&mut self, now: Time) -> bool {
        let Some((server, timeline)) = self.lone_primary() else {
            self.lone = None;
            return false;
        };
        let (_, since) = *self.lone.get_or_insert((server, now));
        if self.lone.is_some_and(|(known, _)| known != server) {
            self.lone = Some((server, now));
            return false;
        }
        if now.since(since) < self.primary_rejoin_delay {
            return false;
        }
        let before = std::mem::replace(&mut self.timeline, timeline);
        (self.went_back, self.lone) = (Some(WentBack { server, timeline, before }), None);
        true
    }

    /// The only primary among servers that all answer, if it is of an older timeline than one that is known and
    /// standbys stream from it; with its timeline.
    fn lone_primary(&self) -> Option<(usize, u32)> {
        let mut claims = self.claims();
        let (only, seen) = claims.next().filter(|_| claims.next().is_none())?;
        let is_behind = seen.timeline < self.timeline && self.may_be_ours(seen) && seen.streams;
        let others = || (0..self.servers.len()).filter(|at| *at != only);
        let follows = |at: usize| {
            !self.servers[at].is_away
                && self.said(at).is_some_and(|other| {
                    other.is_in_recovery
                        && other.timeline <= seen.timeline
                        && self.may_be_ours(other)
                })
        };
        let all_follow = !self.servers[only].is_away && others().all(follows);
        let any_streams = others().any(|at| self.said(at).is_some_and(|other| other.streams));
        (is_behind && all_follow && any_streams).then_some((only, seen.timeline))
    }

    fn said(&self, server: usize) -> Option<&Seen> {
        self.servers.get(server)?.said.as_ref().map(|(seen, _)| seen)
    }

    /// Those that say that they are primaries, and may be.
    fn claims(&self) -> impl Iterator<Item = (usize, &Seen)> {
        let all = (0..self.servers.len()).zip(&self.roles);
        let all = all.filter(|(_, role)| **role != ConfiguredRole::Replica);
        let said = all.filter_map(|(at, _)| Some((at, self.said(at)?)));
        said.filter(|(_, seen)| !seen.is_in_recovery)
    }

    /// Those of them that are of the newest timeline of ours.
    fn newest_claims(&self) -> impl Iterator<Item = usize> {
        let newest = |seen: &Seen| seen.timeline == self.timeline && self.may_be_ours(seen);
        self.claims().filter(move |(_, seen)| newest(seen)).map(|(at, _)| at)
    }

    fn may_be_ours(&self, seen: &Seen) -> bool {
        !self.require_same_system_identifier || !differ(seen.system, self.system)
    }

    /// Finds out of which system the primary has to be: while any server is of that of the last, of that. Gives
    /// whether it is clear: of several systems none can be preferred, unless one has a standby.
    fn settle_system(&mut self) -> bool {
        let named = self.roles.iter().position(|role| *role == ConfiguredRole::Primary);
        if let Some(seen) = named.and_then(|at| self.said(at)) {
            self.system = seen.system.or(self.system);
            return true;
        }
        let says = |system, seen: &Seen| seen.system == Some(system);
        let any_says = |system| {
            (0..self.servers.len()).any(|at| self.said(at).is_some_and(|seen| says(system, seen)))
        };
        if !self.require_same_system_identifier || self.system.is_some_and(any_says) {
            return true;
        }
        let mut systems: Vec<_> = self.claims().filter_map(|(_, seen)| seen.system).collect();
        systems.sort_unstable();
        systems.dedup();
        let are_several = systems.len() > 1;
        if are_several {
            systems.retain(|system| {
                let standby = |seen: &Seen| seen.is_in_recovery && says(*system, seen);
                (0..self.servers.len()).any(|at| self.said(at).is_some_and(standby))
            });
        }
        let [system] = systems[..] else { return !are_several };
        if are_several || self.system.is_some() {
            let timelines = self.claims().filter(|(_, seen)| !differ(seen.system, Some(system)));
            self.timeline = timelines.map(|(_, seen)| seen.timeline).max().unwrap_or(0);
        }
        self.system = Some(system);
        true
    }

    /// Whether there are several primaries of one timeline where nobody was it before, and none is named.
    fn are_equal(&self) -> bool {
        self.newest_claims().count() > 1
            && self.trusted.is_none()
            && !self.roles.contains(&ConfiguredRole::Primary)
    }

    /// The primary, if one is to be believed.
    fn primary(&self, now: Time) -> Option<usize> {
        let claims: Vec<_> = self.newest_claims().collect();
        let Some(Trusted { server: trusted, started, system }) = &self.trusted else {
            // Nobody was it before: two of one timeline are not servers of one cluster.
            return if let [only] = claims[..] { Some(only) } else { None };
        };
        if claims.contains(trusted) && self.said_by(*trusted, started) {
            return Some(*trusted);
        }
        let promoted = |at: &usize| {
            // It was a standby of ours a moment ago, and began the timeline.
            at != trusted
                && !claims.contains(trusted)
                && (!self.require_same_system_identifier || !differ(*system, self.system))
        };
        if let Some(at) = claims.iter().copied().find(promoted) {
            return Some(at);
        }
        claims.into_iter().find(|at| self.is_back(*at, now))
    }

    fn said_by(&self, server: usize, started: &str) -> bool {
        self.said(server).is_some_and(|seen| seen.started == started)
    }

    /// Whether a primary that was away is believed again.
    fn is_back(&self, server: usize, now: Time) -> bool {
        let Some(since) = self.servers[server].back_since else { return false };
        let its = self.said(server).and_then(|seen| seen.system);
        let streams = |(at, other): (usize, &Memory)| {
            at != server
                && other.said.as_ref().is_some_and(|(seen, heard)| {
                    seen.is_in_recovery
                        && seen.streams
                        && *heard > since
                        && !differ(seen.system, its)
                })
        };
        self.servers.iter().enumerate().any(streams)
            || now.since(since) >= self.primary_rejoin_delay
    }
}

/// Whether two systems are known not to be one.
fn differ(one: Option<i64>, other: Option<i64>) -> bool {
    matches!((one, other), (Some(one), Some(other)) if one != other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::default() + Duration::from_secs(seconds)
    }

    fn primary(timeline: u32, started: &str) -> Option<Seen> {
        let (lsn, started, system) = (0, started.to_owned(), None);
        let (is_in_recovery, inserted, streams) = (false, None, false);
        Some(Seen { is_in_recovery, timeline, lsn, inserted, started, streams, system })
    }

    fn standby(streams: bool) -> Option<Seen> {
        let (timeline, lsn, started, system) = (0, 0, "s".to_owned(), None);
        let (is_in_recovery, inserted) = (true, None);
        Some(Seen { is_in_recovery, timeline, lsn, inserted, started, streams, system })
    }

    fn of(system: i64, seen: Option<Seen>) -> Option<Seen> {
        seen.map(|seen| Seen { system: Some(system), ..seen })
    }

    fn judging(servers: usize) -> Judge {
        let roles = vec![ConfiguredRole::Auto; servers];
        Judge::new(roles, Duration::from_secs(10), true)
    }

    fn words(judge: &mut Judge, now: u64) -> String {
        let standings = judge.standings(at(now));
        standings.into_iter().map(Standing::as_str).collect::<Vec<_>>().join(" ")
    }

    fn settled() -> Judge {
        let mut judge = judging(2);
        judge.hear(0, primary(1, "a"), at(1));
        assert_eq!(words(&mut judge, 1), "returning unknown", "the other may be newer");
        judge.hear(1, standby(true), at(1));
        assert_eq!(words(&mut judge, 1), "primary replica");
        judge
    }

    #[test]
    fn a_promoted_standby_is_the_primary_and_the_old_one_is_not() {
        let mut judge = settled();
        judge.hear(0, None, at(2));
        assert_eq!(
            words(&mut judge, 2),
            "primary replica",
            "that it is down is another's business"
        );
        judge.hear(1, primary(2, "s"), at(3));
        assert_eq!(words(&mut judge, 3), "stale primary");
        judge.hear(0, primary(1, "b"), at(4));
        assert_eq!(words(&mut judge, 4), "stale primary");
        judge.hear(1, None, at(5));
        judge.hear(0, primary(1, "b"), at(50));
        assert_eq!(words(&mut judge, 50), "stale primary", "however long the new one is away");
        judge.hear(0, standby(true), at(60));
        assert_eq!(words(&mut judge, 60), "replica primary");
    }

    #[test]
    fn a_primary_that_was_away_is_believed_when_a_standby_streams_or_after_a_while() {
        let mut judge = settled();
        judge.hear(0, None, at(2));
        judge.hear(1, standby(true), at(2));
        judge.hear(0, primary(1, "b"), at(3));
        assert_eq!(words(&mut judge, 3), "returning replica", "that it streamed is old news");
        judge.hear(1, standby(false), at(4));
        assert_eq!(words(&mut judge, 4), "returning replica");
        let mut streams = Judge {
            servers: judge.servers.clone(),
            roles: judge.roles.clone(),
            trusted: judge.trusted.clone(),
            ..judge
        };
        streams.hear(1, standby(true), at(5));
        assert_eq!(words(&mut streams, 5), "primary replica");
        // Nobody saw it go: that it was started anew says as much.
        let mut waits = streams;
        waits.hear(1, standby(false), at(6));
        waits.hear(0, primary(1, "c"), at(20));
        assert_eq!(words(&mut waits, 29), "returning replica");
        assert_eq!(words(&mut waits, 30), "primary replica");
    }

    /// A promotion to timeline 2, of which nothing is left: all servers but the first are made anew from it.
    fn put_back() -> Judge {
        let mut judge = judging(3);
        judge.hear(0, primary(1, "a"), at(1));
        judge.hear(1, standby(true), at(1));
        judge.hear(2, standby(true), at(1));
        assert_eq!(words(&mut judge, 1), "primary replica replica");
        judge.hear(1, primary(2, "s"), at(2));
        judge.hear(0, None, at(2));
        assert_eq!(words(&mut judge, 2), "primary primary replica".replacen("primary", "stale", 1));
        judge.hear(1, None, at(3));
        judge.hear(2, None, at(3));
        judge
    }

    fn sender(seen: Option<Seen>) -> Option<Seen> {
        seen.map(|seen| Seen { streams: true, ..seen })
    }

    #[test]
    fn cluster_made_anew_on_an_older_timeline_is_followed_after_a_while() {
        let mut judge = put_back();
        for seconds in 10..20 {
            judge.hear(0, sender(primary(1, "b")), at(seconds));
            judge.hear(1, standby(true), at(seconds));
            judge.hear(2, standby(seconds > 12), at(seconds));
            assert_eq!(words(&mut judge, seconds), "stale replica replica", "{seconds}");
            assert_eq!(judge.take_went_back(), None);
        }
        assert_eq!(words(&mut judge, 20), "primary replica replica");
        let went_back = WentBack { server: 0, timeline: 1, before: 2 };
        assert_eq!(judge.take_went_back(), Some(went_back));
        assert_eq!(judge.take_went_back(), None, "once");
        // What is promoted from here on is newer again.
        judge.hear(1, primary(2, "s"), at(30));
        assert_eq!(words(&mut judge, 30), "stale primary replica");
    }

    #[test]
    fn older_timeline_is_not_followed_where_a_newer_one_may_be_alive() {
        type Change = fn(&mut Judge, u64);
        let changes: [(&str, Change); 6] = [
            ("a server does not answer", |judge, now| judge.hear(1, None, at(now))),
            ("two primaries", |judge, now| judge.hear(1, sender(primary(1, "x")), at(now))),
            ("nobody streams from it", |judge, now| judge.hear(0, primary(1, "b"), at(now))),
            ("nobody streams", |judge, now| {
                judge.hear(1, standby(false), at(now));
                judge.hear(2, standby(false), at(now));
            }),
            ("a standby is of the newer timeline", |judge, now| {
                let newer = standby(true).map(|seen| Seen { timeline: 2, ..seen });
                judge.hear(2, newer, at(now));
            }),
            ("it is started anew again and again", |judge, now| {
                if now % 7 == 0 {
                    judge.hear(0, None, at(now));
                }
            }),
        ];
        for (why, change) in changes {
            let mut judge = put_back();
            for seconds in 10..100 {
                judge.hear(0, sender(primary(1, "b")), at(seconds));
                judge.hear(1, standby(true), at(seconds));
                judge.hear(2, standby(true), at(seconds));
                change(&mut judge, seconds);
                let told = words(&mut judge, seconds);
                assert!(told.starts_with("stale "), "{why}: {told} at {seconds}");
            }
        }
    }

    #[test]
    fn operator_may_have_a_newer_timeline_forgotten() {
        let mut judge = put_back();
        judge.hear(0, primary(1, "b"), at(10));
        judge.hear(2, standby(false), at(10));
        assert_eq!(words(&mut judge, 60), "stale primary replica", "the second is away");
        judge.forget();
        assert_eq!(words(&mut judge, 60), "primary unknown replica");
        // What is there is judged as at a start: the newest timeline wins, and a tie is nobody's.
        judge.hear(1, primary(2, "s"), at(61));
        assert_eq!(words(&mut judge, 61), "stale primary replica");
        judge.forget();
        assert_eq!(words(&mut judge, 61), "stale primary replica");
    }

    #[test]
    fn one_that_was_not_away_is_believed_at_once() {
        let mut judge = settled();
        judge.hear(0, primary(1, "a"), at(2));
        assert_eq!(words(&mut judge, 2), "primary replica");
    }

    #[test]
    fn of_two_primaries_at_the_start_the_newer_timeline_wins_and_a_tie_is_nobodys() {
        let mut judge = judging(2);
        judge.hear(0, primary(1, "a"), at(1));
        judge.hear(1, primary(2, "b"), at(1));
        assert_eq!(words(&mut judge, 1), "stale primary");
        let mut judge = judging(2);
        judge.hear(0, primary(1, "a"), at(1));
        judge.hear(1, primary(1, "b"), at(1));
        assert_eq!(words(&mut judge, 1), "returning returning");
        // A third party of the same timeline does not take the place of the one that is there.
        let mut judge = settled();
        judge.hear(1, primary(1, "x"), at(2));
        assert_eq!(words(&mut judge, 2), "primary stale");
    }

    #[test]
    fn somebody_elses_primary_is_never_ours_while_a_server_is() {
        let mut judge = settled();
        judge.hear(0, of(1, primary(1, "a")), at(2));
        judge.hear(1, of(1, standby(true)), at(2));
        assert_eq!((words(&mut judge, 2).as_str(), judge.system()), ("primary replica", Some(1)));
        // However new its timeline is, and whether ours is there or not.
        judge.hear(1, of(2, primary(9, "x")), at(3));
        assert_eq!(words(&mut judge, 3), "primary foreign");
        assert!(judge.is_foreign(1) && !judge.is_foreign(0));
        judge.hear(0, None, at(4));
        assert_eq!(words(&mut judge, 60), "primary foreign");
        judge.hear(0, of(1, primary(1, "b")), at(61));
        assert_eq!(words(&mut judge, 61), "returning foreign");
        assert_eq!(
            words(&mut judge, 71),
            "primary foreign",
            "timelines of others count for nothing"
        );
        // All are of another system: as a primary that is back, it is believed after a while.
        judge.hear(0, of(2, standby(false)), at(80));
        judge.hear(1, of(2, primary(9, "y")), at(80));
        assert_eq!(words(&mut judge, 80), "replica returning");
        assert_eq!(words(&mut judge, 90), "replica primary");
        assert_eq!(judge.system(), Some(2));
    }

    #[test]
    fn primaries_of_one_timeline_are_in_dispute_until_one_is_named_or_follows() {
        let mut judge = judging(2);
        judge.hear(0, primary(1, "a"), at(1));
        judge.hear(1, primary(1, "b"), at(1));
        assert_eq!(words(&mut judge, 1), "returning returning");
        assert_eq!(judge.dispute(), Some(Dispute::Timeline));
        judge.hear(1, standby(true), at(2));
        assert_eq!(words(&mut judge, 2), "primary replica");
        assert_eq!(judge.dispute(), None);
        let roles = [ConfiguredRole::Primary, ConfiguredRole::Auto];
        let mut judge = Judge::new(roles, Duration::from_secs(10), true);
        judge.hear(0, primary(1, "a"), at(1));
        judge.hear(1, primary(1, "b"), at(1));
        judge.standings(at(1));
        assert_eq!(judge.dispute(), None, "the settings have decided it");
    }

    #[test]
    fn of_primaries_of_several_systems_one_with_a_standby_is_preferred() {
        let mut judge = judging(3);
        judge.hear(0, of(1, primary(1, "a")), at(1));
        judge.hear(1, of(2, primary(3, "b")), at(1));
        judge.hear(2, None, at(1));
        assert_eq!(words(&mut judge, 1), "returning returning unknown");
        assert_eq!(judge.dispute(), Some(Dispute::Systems));
        judge.hear(2, of(1, standby(true)), at(2));
        assert_eq!(words(&mut judge, 2), "primary foreign replica");
        assert_eq!(judge.dispute(), None);
        judge.hear(2, of(1, primary(2, "c")), at(3));
        assert_eq!(words(&mut judge, 3), "stale foreign primary");
        // It does not say any more of which system it is.
        judge.hear(2, primary(2, "c"), at(4));
        assert_eq!(words(&mut judge, 4), "stale foreign primary");
    }

    #[test]
    fn a_named_primary_says_which_system_it_is_and_servers_may_be_of_several_if_they_are_to() {
        let roles = [ConfiguredRole::Replica, ConfiguredRole::Primary];
        let mut judge = Judge::new(roles, Duration::from_secs(10), true);
        judge.hear(0, of(2, primary(1, "a")), at(1));
        judge.standings(at(1));
        assert!(!judge.is_foreign(0), "nobody knows");
        judge.hear(1, of(1, primary(1, "b")), at(1));
        judge.standings(at(1));
        assert!(judge.is_foreign(0));
        judge.hear(1, of(2, primary(1, "c")), at(2));
        judge.standings(at(2));
        assert!(!judge.is_foreign(0));

        let mut judge = Judge::new([ConfiguredRole::Auto; 2], Duration::from_secs(10), false);
        judge.hear(0, of(1, primary(1, "a")), at(1));
        judge.hear(1, of(2, primary(2, "b")), at(1));
        assert_eq!(words(&mut judge, 1), "stale primary", "by timelines alone");
        assert!(judge.is_foreign(0), "which is known all the same");
    }
}
