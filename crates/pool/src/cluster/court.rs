//! [`ClusterTopology`]: what servers of a cluster said, and what follows from it for each.

use std::{num::NonZeroU64, sync::Arc, time::Duration};

use super::{
    ClusterState, Dispute, Judge, Marks, MemberState, Question, Seen, Standing, Track, WentBack,
};
use crate::{
    config::{ClusterPool, ConfiguredRole},
    time::Time,
};

/// Takes what servers say, and writes what they are into what workers look at.
#[derive(Debug)]
pub(crate) struct ClusterTopology {
    state: Arc<ClusterState>,
    check_failure_timeout: Option<Duration>,
    max_lag: Option<Duration>,
    max_lag_bytes: Option<NonZeroU64>,
    judge: Judge,
    track: Track,
    marks: Marks,
}

impl ClusterTopology {
    pub(crate) fn new(cluster: &ClusterPool, state: Arc<ClusterState>) -> Self {
        let settings = &cluster.settings;
        let roles = cluster.servers.iter().map(|server| server.role);
        Self {
            state,
            check_failure_timeout: settings.check_failure_timeout,
            max_lag: settings.max_lag,
            max_lag_bytes: settings.max_lag_bytes,
            judge: Judge::new(
                roles,
                settings.primary_rejoin_delay,
                settings.require_same_system_identifier,
            ),
            track: Track::default(),
            marks: Marks::default(),
        }
    }

    /// Takes what a server said of itself, when it was asked this after so many doubts. Gives whether it
    /// still holds.
    pub(crate) fn heard(
        &mut self,
        server: usize,
        (question, doubts): (Question, u32),
        seen: &Seen,
        now: Time,
    ) -> bool {
        self.judge.hear(server, Some(seen.clone()), now);
        let standings = self.standings(now);
        if standings[server] == Standing::Primary && !seen.is_in_recovery {
            self.track.note(server, seen.lsn, now);
            if let Some(inserted) = seen.inserted {
                let of = (server, seen.timeline);
                self.marks.note(of, question, inserted, &self.state.tide);
            }
        }
        // Places in the WAL of another system say nothing, whether it may be here or not.
        let is_of_ours = !self.judge.is_foreign(server);
        let replayed = match seen.is_in_recovery && is_of_ours {
            true => self.marks.replayed(seen.timeline, seen.lsn),
            false => Question::default(),
        };
        let behind = self.track.behind(seen.lsn, now).filter(|_| seen.is_in_recovery && is_of_ours);
        let lags = behind.is_some_and(|(bytes, time)| {
            self.max_lag_bytes.is_some_and(|most| bytes > most.get())
                || self.max_lag.is_some_and(|most| time > most)
        });
        let found = MemberState {
            timeline: seen.timeline,
            lsn: seen.lsn,
            lag_bytes: behind.map(|(bytes, _)| bytes),
            lag: behind.map(|(_, time)| time),
            lags,
            system: seen.system,
            is_foreign: self.judge.must_not_be(server),
            replayed,
        };
        // The others first: there are never two to write to.
        self.tell_others(server, &standings);
        self.state.members[server].check_succeeded(doubts, standings[server], found, now)
    }

    /// Takes that a server did not answer. Gives whether it was news.
    pub(crate) fn unheard(&mut self, server: usize, reason: &str, now: Time) -> bool {
        self.judge.hear(server, None, now);
        // It may have been the last of whom nothing was known.
        let standings = self.standings(now);
        self.tell_others(server, &standings);
        let member = &self.state.members[server];
        member.stands(standings[server], self.judge.must_not_be(server));
        member.check_failed(now, reason, self.check_failure_timeout)
    }

    fn tell_others(&self, server: usize, standings: &[Standing]) {
        let members = self.state.members.iter().zip(standings).enumerate();
        for (at, (member, standing)) in members.filter(|(at, _)| *at != server) {
            member.stands(*standing, self.judge.must_not_be(at));
        }
    }

    /// The identifier of the primary's system, as far as it is known.
    pub(crate) fn system(&self) -> Option<i64> {
        self.judge.system()
    }

    /// A primary of an older timeline that was taken since this was asked for last.
    pub(crate) fn take_went_back(&mut self) -> Option<WentBack> {
        self.judge.take_went_back()
    }

    /// Forgets what servers said that do not answer now, and every timeline of theirs.
    pub(crate) fn forget(&mut self, now: Time) {
        self.judge.forget();
        let standings = self.standings(now);
        for (at, (member, standing)) in self.state.members.iter().zip(&standings).enumerate() {
            member.stands(*standing, self.judge.must_not_be(at));
        }
    }

    /// Why there is no primary, where several servers say that they are.
    pub(crate) fn dispute(&self) -> Option<Dispute> {
        self.judge.dispute()
    }

    fn standings(&mut self, now: Time) -> Vec<Standing> {
        let said = |(standing, role): (Standing, &ConfiguredRole)| match role {
            ConfiguredRole::Auto => standing,
            ConfiguredRole::Primary => Standing::Primary,
            ConfiguredRole::Replica => Standing::Replica,
        };
        let standings = self.judge.standings(now).into_iter();
        standings.zip(self.judge.roles()).map(said).collect()
    }
}
