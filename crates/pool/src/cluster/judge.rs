//! [`Judge`]: which of several servers is the primary, by what each says of itself.
//!
//! A server that is in recovery is a standby. Of those that are not, the one with the newest timeline is
//! the primary: a standby that is promoted begins a timeline, and the primary that it replaces stays on
//! the old one, whatever it says. So far there is nothing to decide. What has to be guessed is whether a
//! primary that went away and came back on the newest timeline that is known is still the one: a standby
//! may be about to be promoted, and what is written in between is lost. It is believed when a standby has
//! begun to stream from somebody since it came back, which none does that is being promoted, or after
//! a while. And nobody is the primary before everybody has been asked: the newest timeline is not known.

use std::time::Duration;

use crate::time::Time;

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
}

impl Standing {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Primary => "primary",
            Self::Replica => "replica",
            Self::Returning => "returning",
            Self::Stale => "stale",
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
    /// Whether it streams WAL from somebody.
    pub(crate) streams: bool,
}

/// Judges servers by what was last heard of each.
#[derive(Debug)]
pub(crate) struct Judge {
    servers: Vec<Memory>,
    /// The newest timeline of a primary that anybody ever spoke of.
    timeline: u32,
    /// The one that was the primary last, and when it was started.
    trusted: Option<(usize, String)>,
    /// For how long one that is back is not believed.
    primary_return: Duration,
}

#[derive(Clone, Debug, Default)]
struct Memory {
    was_asked: bool,
    /// What it said, and when; kept when it is away.
    said: Option<(Seen, Time)>,
    /// Since when it has said that it is a primary, without being believed.
    back_since: Option<Time>,
}

impl Judge {
    pub(crate) fn new(servers: usize, primary_return: Duration) -> Self {
        let servers = vec![Memory::default(); servers];
        Self { servers, timeline: 0, trusted: None, primary_return }
    }

    /// Takes what a server said, or that it did not answer.
    pub(crate) fn hear(&mut self, server: usize, seen: Option<Seen>, now: Time) {
        let Some(memory) = self.servers.get_mut(server) else { return };
        memory.was_asked = true;
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
            self.timeline = self.timeline.max(seen.timeline);
            memory.back_since.get_or_insert(now);
        }
        memory.said = Some((seen, now));
    }

    /// What each server is.
    pub(crate) fn standings(&mut self, now: Time) -> Vec<Standing> {
        let all_asked = self.servers.iter().all(|server| server.was_asked);
        let primary = if all_asked { self.primary(now) } else { None };
        if let Some(index) = primary
            && let Some((seen, _)) = &self.servers[index].said
        {
            self.trusted = Some((index, seen.started.clone()));
        }
        let standing = |(index, server): (usize, &Memory)| match &server.said {
            None => Standing::Unknown,
            Some((seen, _)) if seen.is_in_recovery => Standing::Replica,
            Some(_) if primary == Some(index) => Standing::Primary,
            Some(_) if !all_asked => Standing::Returning,
            Some((seen, _)) if primary.is_some() || seen.timeline < self.timeline => {
                Standing::Stale
            }
            Some(_) => Standing::Returning,
        };
        self.servers.iter().enumerate().map(standing).collect()
    }

    /// The primary, if one is to be believed.
    fn primary(&self, now: Time) -> Option<usize> {
        let newest = |server: &Memory| {
            let said = server.said.as_ref();
            said.is_some_and(|(it, _)| !it.is_in_recovery && it.timeline == self.timeline)
        };
        let claims: Vec<_> =
            (0..self.servers.len()).filter(|at| newest(&self.servers[*at])).collect();
        let Some((trusted, started)) = &self.trusted else {
            // Nobody was it before: two of one timeline are not servers of one cluster.
            return if let [only] = claims[..] { Some(only) } else { None };
        };
        if claims.contains(trusted) && self.said_by(*trusted, started) {
            return Some(*trusted);
        }
        let promoted = |at: &usize| {
            // It was a standby of ours a moment ago, and began the timeline.
            at != trusted && !claims.contains(trusted)
        };
        if let Some(at) = claims.iter().copied().find(promoted) {
            return Some(at);
        }
        claims.into_iter().find(|at| self.is_back(*at, now))
    }

    fn said_by(&self, server: usize, started: &str) -> bool {
        self.servers[server].said.as_ref().is_some_and(|(seen, _)| seen.started == started)
    }

    /// Whether a primary that was away is believed again.
    fn is_back(&self, server: usize, now: Time) -> bool {
        let Some(since) = self.servers[server].back_since else { return false };
        let streams = |(at, other): (usize, &Memory)| {
            at != server
                && other.said.as_ref().is_some_and(|(seen, heard)| {
                    seen.is_in_recovery && seen.streams && *heard > since
                })
        };
        self.servers.iter().enumerate().any(streams) || now.since(since) >= self.primary_return
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::default() + Duration::from_secs(seconds)
    }

    fn primary(timeline: u32, started: &str) -> Option<Seen> {
        let (lsn, started) = (0, started.to_owned());
        Some(Seen { is_in_recovery: false, timeline, lsn, inserted: None, started, streams: false })
    }

    fn standby(streams: bool) -> Option<Seen> {
        let (timeline, lsn, started) = (0, 0, "s".to_owned());
        Some(Seen { is_in_recovery: true, timeline, lsn, inserted: None, started, streams })
    }

    fn words(judge: &mut Judge, now: u64) -> String {
        let standings = judge.standings(at(now));
        standings.into_iter().map(Standing::as_str).collect::<Vec<_>>().join(" ")
    }

    fn settled() -> Judge {
        let mut judge = Judge::new(2, Duration::from_secs(10));
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
        let mut streams =
            Judge { servers: judge.servers.clone(), trusted: judge.trusted.clone(), ..judge };
        streams.hear(1, standby(true), at(5));
        assert_eq!(words(&mut streams, 5), "primary replica");
        // Nobody saw it go: that it was started anew says as much.
        let mut waits = streams;
        waits.hear(1, standby(false), at(6));
        waits.hear(0, primary(1, "c"), at(20));
        assert_eq!(words(&mut waits, 29), "returning replica");
        assert_eq!(words(&mut waits, 30), "primary replica");
    }

    #[test]
    fn one_that_was_not_away_is_believed_at_once() {
        let mut judge = settled();
        judge.hear(0, primary(1, "a"), at(2));
        assert_eq!(words(&mut judge, 2), "primary replica");
    }

    #[test]
    fn of_two_primaries_at_the_start_the_newer_timeline_wins_and_a_tie_is_nobodys() {
        let mut judge = Judge::new(2, Duration::from_secs(10));
        judge.hear(0, primary(1, "a"), at(1));
        judge.hear(1, primary(2, "b"), at(1));
        assert_eq!(words(&mut judge, 1), "stale primary");
        let mut judge = Judge::new(2, Duration::from_secs(10));
        judge.hear(0, primary(1, "a"), at(1));
        judge.hear(1, primary(1, "b"), at(1));
        assert_eq!(words(&mut judge, 1), "returning returning");
        // A third party of the same timeline does not take the place of the one that is there.
        let mut judge = settled();
        judge.hear(1, primary(1, "x"), at(2));
        assert_eq!(words(&mut judge, 2), "primary stale");
    }
}
