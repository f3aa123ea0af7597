//! [`PrimaryDetector`]: determines the primary among several servers from their reports.
//!
//! A server in recovery is a standby. Of the others, the one with the newest timeline is the
//! primary: a promotion starts a timeline, and the replaced primary stays on the old one. This much
//! is certain. The detector must guess whether a primary that was unreachable and returned on the
//! newest known timeline is still the primary: a standby may be about to be promoted, and writes in
//! between would be lost. The returned primary is accepted after a delay, or as soon as a standby
//! reports again that it streams WAL, which a standby that is being promoted does not do. No
//! primary is accepted before all servers were checked, since the newest timeline is unknown until
//! then.
//!
//! A cluster may be restored to a state before a promotion, from the old primary or from a backup.
//! Then no server is on the newest known timeline, and none would ever be the primary again. So if
//! *all* servers reply, only one of them is a primary and standbys stream from it, that one is
//! accepted after the same delay, whatever its timeline. If a server that may be on the newer
//! timeline is unreachable, only an administrator can decide ([`PrimaryDetector::reset`]).
//!
//! All this applies to servers with one *system identifier*, from initdb: timelines of different
//! systems are not comparable. A primary of another system is never accepted, however new its
//! timeline, while any server last reported our primary's system identifier, unless the
//! configuration allows several systems.

use std::time::Duration;

use crate::{cluster::AssignedRole, time::Time};

/// The role of a server as the detector sees it. Only [`ServerStatus::Primary`] gets writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerStatus {
    /// No report of the server is known.
    Unknown,
    /// The server is accepted as the primary, or configured as such.
    Primary,
    /// The server is in recovery, or configured as a replica.
    Replica,
    /// A primary that is not accepted yet: it may have been replaced while it was unreachable, not
    /// all servers were checked, or several primaries conflict.
    Returning,
    /// A primary while another one is accepted or known to be on a newer timeline.
    Stale,
    /// A primary with another system identifier.
    Foreign,
}

impl ServerStatus {
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

/// The facts that a health check has read from a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthReport {
    /// Whether the server is a standby.
    pub is_in_recovery: bool,
    /// The timeline of a primary, or of the WAL that a standby replays; 0 if the standby's timeline
    /// was not queried or is unknown.
    pub timeline: u32,
    /// The last WAL position that the primary has written or the standby has replayed.
    pub lsn: u64,
    /// The end of the WAL that a primary has inserted so far, flushed or not; `None` if it was not
    /// queried.
    pub insert_lsn: Option<u64>,
    /// The start time of the postmaster, which changes when the server restarts.
    pub start_time: String,
    /// For a standby, whether it streams WAL; for a primary, whether a standby streams from it.
    pub is_streaming: bool,
    /// The system identifier from initdb; `None` if unknown.
    pub system_identifier: Option<i64>,
}

/// Determines the status of servers from their last reports.
#[derive(Debug)]
pub(crate) struct PrimaryDetector {
    servers: Vec<ServerObservation>,
    /// Role of each server according to the configuration, by server index.
    roles: Box<[AssignedRole]>,
    /// The newest timeline that a primary of the accepted system has reported. It can also become
    /// older, for example when a primary on an older timeline is accepted.
    timeline: u32,
    last_primary: Option<LastPrimary>,
    /// System identifier of the primary, if known.
    system_identifier: Option<i64>,
    /// Delay before a primary that returned is accepted.
    primary_rejoin_delay: Duration,
    /// Whether a server with another system identifier is excluded from being the primary.
    require_same_system_identifier: bool,
    conflict: Option<PrimaryConflict>,
    /// The only primary, if its timeline is older than one seen before, and the time since which
    /// this has been so.
    sole_primary: Option<(usize, Time)>,
    /// The last acceptance of a primary on an older timeline, until `take_timeline_regression`
    /// returns it.
    timeline_regression: Option<TimelineRegression>,
}

/// The acceptance of a primary although a newer timeline was known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimelineRegression {
    /// Index of the accepted primary.
    pub server: usize,
    /// The timeline that the primary is on.
    pub timeline: u32,
    /// The newest timeline known before the acceptance.
    pub newest_timeline: u32,
}

/// The reason why none of several primaries is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrimaryConflict {
    /// The primaries have different system identifiers.
    SeveralSystems,
    /// Several primaries are on the newest timeline, and no primary was known before.
    SameTimeline,
}

/// The last known primary.
#[derive(Clone, Debug)]
struct LastPrimary {
    server: usize,
    /// Start time of the postmaster, as the server reported it.
    start_time: String,
    system_identifier: Option<i64>,
}

#[derive(Clone, Debug, Default)]
struct ServerObservation {
    is_checked: bool,
    /// Whether the server was unreachable at the last recorded check.
    is_unreachable: bool,
    /// The last report and its time; retained while the server is unreachable.
    last_report: Option<(HealthReport, Time)>,
    /// Time of the server's first report as a primary since its last failed check, restart or
    /// recovery.
    primary_since: Option<Time>,
}

impl PrimaryDetector {
    pub(crate) fn new(
        roles: impl IntoIterator<Item = AssignedRole>,
        primary_rejoin_delay: Duration,
        require_same_system_identifier: bool,
    ) -> Self {
        let roles: Box<[_]> = roles.into_iter().collect();
        let servers = vec![ServerObservation::default(); roles.len()];
        Self {
            servers,
            roles,
            timeline: 0,
            last_primary: None,
            system_identifier: None,
            primary_rejoin_delay,
            require_same_system_identifier,
            conflict: None,
            sole_primary: None,
            timeline_regression: None,
        }
    }

    /// Records a server's report; `None` means that the server is unreachable.
    pub(crate) fn observe(&mut self, server: usize, report: Option<HealthReport>, now: Time) {
        let Some(observation) = self.servers.get_mut(server) else { return };
        observation.is_checked = true;
        observation.is_unreachable = report.is_none();
        let Some(report) = report else {
            // After an outage, the next report may be from another postmaster.
            observation.primary_since = None;
            return;
        };
        let is_another = observation
            .last_report
            .as_ref()
            .is_none_or(|(it, _)| it.start_time != report.start_time);
        if report.is_in_recovery || is_another {
            observation.primary_since = None;
        }
        if !report.is_in_recovery {
            if self.roles[server] != AssignedRole::Replica && self.is_eligible_system(&report) {
                self.timeline = self.timeline.max(report.timeline);
            }
            let observation = &mut self.servers[server];
            observation.primary_since.get_or_insert(now);
        }
        self.servers[server].last_report = Some((report, now));
    }

    /// Whether a server is known to have another system identifier than the primary.
    pub(crate) fn is_foreign(&self, server: usize) -> bool {
        self.report_of(server)
            .is_some_and(|report| systems_differ(report.system_identifier, self.system_identifier))
    }

    /// Whether a server is foreign and the configuration excludes such servers.
    pub(crate) fn is_excluded(&self, server: usize) -> bool {
        self.require_same_system_identifier && self.is_foreign(server)
    }

    /// Returns each server's role according to the configuration, by server index.
    pub(crate) fn roles(&self) -> &[AssignedRole] {
        &self.roles
    }

    /// Returns the reason why none of several primaries is accepted; `None` without such a
    /// conflict.
    pub(crate) fn conflict(&self) -> Option<PrimaryConflict> {
        self.conflict
    }

    /// Returns the system identifier of the primary, if known.
    pub(crate) fn system_identifier(&self) -> Option<i64> {
        self.system_identifier
    }

    /// Determines the status of each server at `now`, by server index.
    pub(crate) fn statuses(&mut self, now: Time) -> Vec<ServerStatus> {
        let all_checked = self.servers.iter().all(|server| server.is_checked);
        let has_system_conflict = all_checked && !self.resolve_system();
        let is_known = all_checked && !has_system_conflict;
        let mut primary = if is_known { self.primary(now) } else { None };
        if is_known && primary.is_none() && self.accept_older_timeline(now) {
            primary = self.primary(now);
        }
        self.conflict = match is_known {
            true if primary.is_none() && self.has_tied_candidates() => {
                Some(PrimaryConflict::SameTimeline)
            }
            false if has_system_conflict => Some(PrimaryConflict::SeveralSystems),
            _ => None,
        };
        if let Some(server) = primary
            && let Some(report) = self.report_of(server)
        {
            let (start_time, system) =
                (report.start_time.clone(), report.system_identifier.or(self.system_identifier));
            self.system_identifier = system;
            self.last_primary = Some(LastPrimary { server, start_time, system_identifier: system });
        }
        let status = |(index, server): (usize, &ServerObservation)| match &server.last_report {
            None => ServerStatus::Unknown,
            Some((report, _)) if report.is_in_recovery => ServerStatus::Replica,
            Some(_) if primary == Some(index) => ServerStatus::Primary,
            Some((report, _)) if !self.is_eligible_system(report) => ServerStatus::Foreign,
            Some(_) if !is_known => ServerStatus::Returning,
            Some((report, _)) if primary.is_some() || report.timeline < self.timeline => {
                ServerStatus::Stale
            }
            Some(_) => ServerStatus::Returning,
        };
        self.servers.iter().enumerate().map(status).collect()
    }

    /// Starts over with the reports of reachable servers only. This is for the case that a newer
    /// timeline is gone for good, which only an administrator can know.
    pub(crate) fn reset(&mut self) {
        for observation in self.servers.iter_mut().filter(|observation| observation.is_unreachable)
        {
            observation.last_report = None;
        }
        (self.last_primary, self.system_identifier, self.sole_primary) = (None, None, None);
        self.timeline = self.candidates().map(|(_, report)| report.timeline).max().unwrap_or(0);
    }

    /// Returns and clears the regression recorded since the last call, if a primary on an older
    /// timeline was accepted.
    pub(crate) fn take_timeline_regression(&mut self) -> Option<TimelineRegression> {
        self.timeline_regression.take()
    }

    /// Accepts the only primary although its timeline is older, if it has been the only one for the
    /// rejoin delay. Returns whether it was accepted.
    fn accept_older_timeline(&mut self, now: Time) -> bool {
        let Some((server, timeline)) = self.find_sole_primary() else {
            self.sole_primary = None;
            return false;
        };
        let (_, since) = *self.sole_primary.get_or_insert((server, now));
        if self.sole_primary.is_some_and(|(known, _)| known != server) {
            self.sole_primary = Some((server, now));
            return false;
        }
        if now.since(since) < self.primary_rejoin_delay {
            return false;
        }
        let before = std::mem::replace(&mut self.timeline, timeline);
        (self.timeline_regression, self.sole_primary) =
            (Some(TimelineRegression { server, timeline, newest_timeline: before }), None);
        true
    }

    /// Returns the only primary and its timeline, if all servers reply, standbys stream from it,
    /// and its timeline is older than one seen before.
    fn find_sole_primary(&self) -> Option<(usize, u32)> {
        let mut candidates = self.candidates();
        let (only, report) = candidates.next().filter(|_| candidates.next().is_none())?;
        let is_behind = report.timeline < self.timeline
            && self.is_eligible_system(report)
            && report.is_streaming;
        let others = || (0..self.servers.len()).filter(|at| *at != only);
        let follows = |at: usize| {
            !self.servers[at].is_unreachable
                && self.report_of(at).is_some_and(|other| {
                    other.is_in_recovery
                        && other.timeline <= report.timeline
                        && self.is_eligible_system(other)
                })
        };
        let all_follow = !self.servers[only].is_unreachable && others().all(follows);
        let any_streams =
            others().any(|at| self.report_of(at).is_some_and(|other| other.is_streaming));
        (is_behind && all_follow && any_streams).then_some((only, report.timeline))
    }

    fn report_of(&self, server: usize) -> Option<&HealthReport> {
        self.servers.get(server)?.last_report.as_ref().map(|(report, _)| report)
    }

    /// Returns the servers whose last report says that they are not in recovery, except those
    /// configured as replicas.
    fn candidates(&self) -> impl Iterator<Item = (usize, &HealthReport)> {
        let all = (0..self.servers.len()).zip(&self.roles);
        let all = all.filter(|(_, role)| **role != AssignedRole::Replica);
        let reports = all.filter_map(|(at, _)| Some((at, self.report_of(at)?)));
        reports.filter(|(_, report)| !report.is_in_recovery)
    }

    /// Returns the candidates on the newest timeline of the primary's system.
    fn newest_candidates(&self) -> impl Iterator<Item = usize> {
        let newest = |report: &HealthReport| {
            report.timeline == self.timeline && self.is_eligible_system(report)
        };
        self.candidates().filter(move |(_, report)| newest(report)).map(|(at, _)| at)
    }

    fn is_eligible_system(&self, report: &HealthReport) -> bool {
        !self.require_same_system_identifier
            || !systems_differ(report.system_identifier, self.system_identifier)
    }

    /// Determines the primary's system identifier: that of the configured primary, or else the
    /// previous one while any server reports it, or else that of the candidates. Returns whether it
    /// is unambiguous: if the candidates have several identifiers, exactly one of these must be
    /// that of a standby too.
    fn resolve_system(&mut self) -> bool {
        let named = self.roles.iter().position(|role| *role == AssignedRole::Primary);
        if let Some(report) = named.and_then(|at| self.report_of(at)) {
            self.system_identifier = report.system_identifier.or(self.system_identifier);
            return true;
        }
        let says = |system, report: &HealthReport| report.system_identifier == Some(system);
        let any_says = |system| {
            (0..self.servers.len())
                .any(|at| self.report_of(at).is_some_and(|report| says(system, report)))
        };
        if !self.require_same_system_identifier || self.system_identifier.is_some_and(any_says) {
            return true;
        }
        let mut systems: Vec<_> =
            self.candidates().filter_map(|(_, report)| report.system_identifier).collect();
        systems.sort_unstable();
        systems.dedup();
        let are_several = systems.len() > 1;
        if are_several {
            systems.retain(|system| {
                let standby =
                    |report: &HealthReport| report.is_in_recovery && says(*system, report);
                (0..self.servers.len()).any(|at| self.report_of(at).is_some_and(standby))
            });
        }
        let [system] = systems[..] else { return !are_several };
        if are_several || self.system_identifier.is_some() {
            let timelines = self
                .candidates()
                .filter(|(_, report)| !systems_differ(report.system_identifier, Some(system)));
            self.timeline = timelines.map(|(_, report)| report.timeline).max().unwrap_or(0);
        }
        self.system_identifier = Some(system);
        true
    }

    /// Whether several candidates are on the newest timeline, no primary was known before, and none
    /// is configured.
    fn has_tied_candidates(&self) -> bool {
        self.newest_candidates().count() > 1
            && self.last_primary.is_none()
            && !self.roles.contains(&AssignedRole::Primary)
    }

    /// Returns the primary, if one is accepted.
    fn primary(&self, now: Time) -> Option<usize> {
        let candidates: Vec<_> = self.newest_candidates().collect();
        let Some(LastPrimary { server: last, start_time, system_identifier: system }) =
            &self.last_primary
        else {
            // Without a previous primary: two primaries on one timeline cannot belong to the same
            // cluster.
            return if let [only] = candidates[..] { Some(only) } else { None };
        };
        if candidates.contains(last) && self.is_same_start(*last, start_time) {
            return Some(*last);
        }
        let promoted = |at: &usize| {
            // The candidate was one of our standbys, and its promotion started the new timeline.
            at != last
                && !candidates.contains(last)
                && (!self.require_same_system_identifier
                    || !systems_differ(*system, self.system_identifier))
        };
        if let Some(at) = candidates.iter().copied().find(promoted) {
            return Some(at);
        }
        candidates.into_iter().find(|at| self.is_accepted_again(*at, now))
    }

    fn is_same_start(&self, server: usize, start_time: &str) -> bool {
        self.report_of(server).is_some_and(|report| report.start_time == start_time)
    }

    /// Whether a primary that was unreachable is accepted again.
    fn is_accepted_again(&self, server: usize, now: Time) -> bool {
        let Some(since) = self.servers[server].primary_since else { return false };
        let own_system = self.report_of(server).and_then(|report| report.system_identifier);
        let is_streaming = |(at, other): (usize, &ServerObservation)| {
            at != server
                && other.last_report.as_ref().is_some_and(|(report, heard)| {
                    report.is_in_recovery
                        && report.is_streaming
                        && *heard > since
                        && !systems_differ(report.system_identifier, own_system)
                })
        };
        self.servers.iter().enumerate().any(is_streaming)
            || now.since(since) >= self.primary_rejoin_delay
    }
}

/// Whether two system identifiers are both known and differ.
fn systems_differ(one: Option<i64>, other: Option<i64>) -> bool {
    matches!((one, other), (Some(one), Some(other)) if one != other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::default() + Duration::from_secs(seconds)
    }

    fn primary(timeline: u32, start_time: &str) -> Option<HealthReport> {
        let (lsn, start_time, system) = (0, start_time.to_owned(), None);
        let (is_in_recovery, insert_lsn, is_streaming) = (false, None, false);
        Some(HealthReport {
            is_in_recovery,
            timeline,
            lsn,
            insert_lsn,
            start_time,
            is_streaming,
            system_identifier: system,
        })
    }

    fn standby(is_streaming: bool) -> Option<HealthReport> {
        let (timeline, lsn, start_time, system) = (0, 0, "s".to_owned(), None);
        let (is_in_recovery, insert_lsn) = (true, None);
        Some(HealthReport {
            is_in_recovery,
            timeline,
            lsn,
            insert_lsn,
            start_time,
            is_streaming,
            system_identifier: system,
        })
    }

    fn from_system(system: i64, report: Option<HealthReport>) -> Option<HealthReport> {
        report.map(|report| HealthReport { system_identifier: Some(system), ..report })
    }

    fn detector_for(servers: usize) -> PrimaryDetector {
        let roles = vec![AssignedRole::Auto; servers];
        PrimaryDetector::new(roles, Duration::from_secs(10), true)
    }

    fn status_line(detector: &mut PrimaryDetector, now: u64) -> String {
        let statuses = detector.statuses(at(now));
        statuses.into_iter().map(ServerStatus::as_str).collect::<Vec<_>>().join(" ")
    }

    fn detector_with_primary() -> PrimaryDetector {
        let mut detector = detector_for(2);
        detector.observe(0, primary(1, "a"), at(1));
        assert_eq!(
            status_line(&mut detector, 1),
            "returning unknown",
            "the other server may be newer"
        );
        detector.observe(1, standby(true), at(1));
        assert_eq!(status_line(&mut detector, 1), "primary replica");
        detector
    }

    #[test]
    fn promoted_standby_replaces_old_primary() {
        let mut detector = detector_with_primary();
        detector.observe(0, None, at(2));
        assert_eq!(
            status_line(&mut detector, 2),
            "primary replica",
            "being unreachable does not change the role"
        );
        detector.observe(1, primary(2, "s"), at(3));
        assert_eq!(status_line(&mut detector, 3), "stale primary");
        detector.observe(0, primary(1, "b"), at(4));
        assert_eq!(status_line(&mut detector, 4), "stale primary");
        detector.observe(1, None, at(5));
        detector.observe(0, primary(1, "b"), at(50));
        assert_eq!(
            status_line(&mut detector, 50),
            "stale primary",
            "however long the new primary is unreachable"
        );
        detector.observe(0, standby(true), at(60));
        assert_eq!(status_line(&mut detector, 60), "replica primary");
    }

    #[test]
    fn returned_primary_is_accepted_when_standby_streams_or_after_delay() {
        let mut detector = detector_with_primary();
        detector.observe(0, None, at(2));
        detector.observe(1, standby(true), at(2));
        detector.observe(0, primary(1, "b"), at(3));
        assert_eq!(
            status_line(&mut detector, 3),
            "returning replica",
            "streaming before the return does not count"
        );
        detector.observe(1, standby(false), at(4));
        assert_eq!(status_line(&mut detector, 4), "returning replica");
        let mut is_streaming = PrimaryDetector {
            servers: detector.servers.clone(),
            roles: detector.roles.clone(),
            last_primary: detector.last_primary.clone(),
            ..detector
        };
        is_streaming.observe(1, standby(true), at(5));
        assert_eq!(status_line(&mut is_streaming, 5), "primary replica");
        // The primary was never seen unreachable, but its restart alone causes the delay.
        let mut delayed = is_streaming;
        delayed.observe(1, standby(false), at(6));
        delayed.observe(0, primary(1, "c"), at(20));
        assert_eq!(status_line(&mut delayed, 29), "returning replica");
        assert_eq!(status_line(&mut delayed, 30), "primary replica");
    }

    /// Returns a detector whose servers have lost a promotion to timeline 2: all servers but the
    /// first are rebuilt from the first.
    fn detector_after_lost_promotion() -> PrimaryDetector {
        let mut detector = detector_for(3);
        detector.observe(0, primary(1, "a"), at(1));
        detector.observe(1, standby(true), at(1));
        detector.observe(2, standby(true), at(1));
        assert_eq!(status_line(&mut detector, 1), "primary replica replica");
        detector.observe(1, primary(2, "s"), at(2));
        detector.observe(0, None, at(2));
        assert_eq!(
            status_line(&mut detector, 2),
            "primary primary replica".replacen("primary", "stale", 1)
        );
        detector.observe(1, None, at(3));
        detector.observe(2, None, at(3));
        detector
    }

    fn with_standby_streaming(report: Option<HealthReport>) -> Option<HealthReport> {
        report.map(|report| HealthReport { is_streaming: true, ..report })
    }

    #[test]
    fn rebuilt_cluster_on_older_timeline_is_accepted_after_delay() {
        let mut detector = detector_after_lost_promotion();
        for seconds in 10..20 {
            detector.observe(0, with_standby_streaming(primary(1, "b")), at(seconds));
            detector.observe(1, standby(true), at(seconds));
            detector.observe(2, standby(seconds > 12), at(seconds));
            assert_eq!(status_line(&mut detector, seconds), "stale replica replica", "{seconds}");
            assert_eq!(detector.take_timeline_regression(), None);
        }
        assert_eq!(status_line(&mut detector, 20), "primary replica replica");
        let regression = TimelineRegression { server: 0, timeline: 1, newest_timeline: 2 };
        assert_eq!(detector.take_timeline_regression(), Some(regression));
        assert_eq!(detector.take_timeline_regression(), None, "taken once");
        // A promotion from here on starts a newer timeline again.
        detector.observe(1, primary(2, "s"), at(30));
        assert_eq!(status_line(&mut detector, 30), "stale primary replica");
    }

    #[test]
    fn older_timeline_is_rejected_while_newer_may_be_alive() {
        type ObserveStep = fn(&mut PrimaryDetector, u64);
        let changes: [(&str, ObserveStep); 6] = [
            ("a server is unreachable", |detector, now| detector.observe(1, None, at(now))),
            ("two primaries", |detector, now| {
                detector.observe(1, with_standby_streaming(primary(1, "x")), at(now));
            }),
            ("no standby streams from it", |detector, now| {
                detector.observe(0, primary(1, "b"), at(now));
            }),
            ("no standby streams", |detector, now| {
                detector.observe(1, standby(false), at(now));
                detector.observe(2, standby(false), at(now));
            }),
            ("a standby is on the newer timeline", |detector, now| {
                let newer = standby(true).map(|report| HealthReport { timeline: 2, ..report });
                detector.observe(2, newer, at(now));
            }),
            ("it restarts repeatedly", |detector, now| {
                if now % 7 == 0 {
                    detector.observe(0, None, at(now));
                }
            }),
        ];
        for (why, change) in changes {
            let mut detector = detector_after_lost_promotion();
            for seconds in 10..100 {
                detector.observe(0, with_standby_streaming(primary(1, "b")), at(seconds));
                detector.observe(1, standby(true), at(seconds));
                detector.observe(2, standby(true), at(seconds));
                change(&mut detector, seconds);
                let line = status_line(&mut detector, seconds);
                assert!(line.starts_with("stale "), "{why}: {line} at {seconds}");
            }
        }
    }

    #[test]
    fn reset_clears_newer_timeline() {
        let mut detector = detector_after_lost_promotion();
        detector.observe(0, primary(1, "b"), at(10));
        detector.observe(2, standby(false), at(10));
        assert_eq!(
            status_line(&mut detector, 60),
            "stale primary replica",
            "the second is unreachable"
        );
        detector.reset();
        assert_eq!(status_line(&mut detector, 60), "primary unknown replica");
        // After the reset the newest timeline wins, and a tie leaves the cluster without a primary.
        detector.observe(1, primary(2, "s"), at(61));
        assert_eq!(status_line(&mut detector, 61), "stale primary replica");
        detector.reset();
        assert_eq!(status_line(&mut detector, 61), "stale primary replica");
    }

    #[test]
    fn primary_that_stayed_up_is_kept() {
        let mut detector = detector_with_primary();
        detector.observe(0, primary(1, "a"), at(2));
        assert_eq!(status_line(&mut detector, 2), "primary replica");
    }

    #[test]
    fn newer_timeline_wins_at_start_and_tie_elects_none() {
        let mut detector = detector_for(2);
        detector.observe(0, primary(1, "a"), at(1));
        detector.observe(1, primary(2, "b"), at(1));
        assert_eq!(status_line(&mut detector, 1), "stale primary");
        let mut detector = detector_for(2);
        detector.observe(0, primary(1, "a"), at(1));
        detector.observe(1, primary(1, "b"), at(1));
        assert_eq!(status_line(&mut detector, 1), "returning returning");
        // A third server on the same timeline does not replace the current primary.
        let mut detector = detector_with_primary();
        detector.observe(1, primary(1, "x"), at(2));
        assert_eq!(status_line(&mut detector, 2), "primary stale");
    }

    #[test]
    fn foreign_primary_is_ignored_while_own_system_is_known() {
        let mut detector = detector_with_primary();
        detector.observe(0, from_system(1, primary(1, "a")), at(2));
        detector.observe(1, from_system(1, standby(true)), at(2));
        assert_eq!(
            (status_line(&mut detector, 2).as_str(), detector.system_identifier()),
            ("primary replica", Some(1))
        );
        // The foreign primary is ignored however new its timeline is, whether or not our primary is
        // reachable.
        detector.observe(1, from_system(2, primary(9, "x")), at(3));
        assert_eq!(status_line(&mut detector, 3), "primary foreign");
        assert!(detector.is_foreign(1) && !detector.is_foreign(0));
        detector.observe(0, None, at(4));
        assert_eq!(status_line(&mut detector, 60), "primary foreign");
        detector.observe(0, from_system(1, primary(1, "b")), at(61));
        assert_eq!(status_line(&mut detector, 61), "returning foreign");
        assert_eq!(
            status_line(&mut detector, 71),
            "primary foreign",
            "timelines of other systems do not count"
        );
        // All servers are of another system now: like a returned primary, this one is accepted
        // after the delay.
        detector.observe(0, from_system(2, standby(false)), at(80));
        detector.observe(1, from_system(2, primary(9, "y")), at(80));
        assert_eq!(status_line(&mut detector, 80), "replica returning");
        assert_eq!(status_line(&mut detector, 90), "replica primary");
        assert_eq!(detector.system_identifier(), Some(2));
    }

    #[test]
    fn same_timeline_primaries_conflict_until_one_is_configured_or_follows() {
        let mut detector = detector_for(2);
        detector.observe(0, primary(1, "a"), at(1));
        detector.observe(1, primary(1, "b"), at(1));
        assert_eq!(status_line(&mut detector, 1), "returning returning");
        assert_eq!(detector.conflict(), Some(PrimaryConflict::SameTimeline));
        detector.observe(1, standby(true), at(2));
        assert_eq!(status_line(&mut detector, 2), "primary replica");
        assert_eq!(detector.conflict(), None);
        let roles = [AssignedRole::Primary, AssignedRole::Auto];
        let mut detector = PrimaryDetector::new(roles, Duration::from_secs(10), true);
        detector.observe(0, primary(1, "a"), at(1));
        detector.observe(1, primary(1, "b"), at(1));
        detector.statuses(at(1));
        assert_eq!(detector.conflict(), None, "the configuration decides");
    }

    #[test]
    fn primary_with_standby_wins_among_several_systems() {
        let mut detector = detector_for(3);
        detector.observe(0, from_system(1, primary(1, "a")), at(1));
        detector.observe(1, from_system(2, primary(3, "b")), at(1));
        detector.observe(2, None, at(1));
        assert_eq!(status_line(&mut detector, 1), "returning returning unknown");
        assert_eq!(detector.conflict(), Some(PrimaryConflict::SeveralSystems));
        detector.observe(2, from_system(1, standby(true)), at(2));
        assert_eq!(status_line(&mut detector, 2), "primary foreign replica");
        assert_eq!(detector.conflict(), None);
        detector.observe(2, from_system(1, primary(2, "c")), at(3));
        assert_eq!(status_line(&mut detector, 3), "stale foreign primary");
        // The third server no longer reports its system identifier.
        detector.observe(2, primary(2, "c"), at(4));
        assert_eq!(status_line(&mut detector, 4), "stale foreign primary");
    }

    #[test]
    fn configured_primary_defines_system_unless_mixed_systems_are_allowed() {
        let roles = [AssignedRole::Replica, AssignedRole::Primary];
        let mut detector = PrimaryDetector::new(roles, Duration::from_secs(10), true);
        detector.observe(0, from_system(2, primary(1, "a")), at(1));
        detector.statuses(at(1));
        assert!(!detector.is_foreign(0), "the primary's system is unknown");
        detector.observe(1, from_system(1, primary(1, "b")), at(1));
        detector.statuses(at(1));
        assert!(detector.is_foreign(0));
        detector.observe(1, from_system(2, primary(1, "c")), at(2));
        detector.statuses(at(2));
        assert!(!detector.is_foreign(0));

        let mut detector =
            PrimaryDetector::new([AssignedRole::Auto; 2], Duration::from_secs(10), false);
        detector.observe(0, from_system(1, primary(1, "a")), at(1));
        detector.observe(1, from_system(2, primary(2, "b")), at(1));
        assert_eq!(status_line(&mut detector, 1), "stale primary", "only timelines count");
        assert!(detector.is_foreign(0), "it is reported nevertheless");
    }
}
