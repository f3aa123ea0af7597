//! [`ClusterTopology`]: derives the state of each member from the health reports of all members.

use std::{num::NonZeroU64, sync::Arc, time::Duration};

use super::{
    AssignedRole, CheckFindings, CheckSeq, ClusterState, HealthReport, LagHistory, LsnHistory,
    PrimaryConflict, PrimaryDetector, ServerStatus, TimelineRegression,
};
use crate::time::Time;

/// The settings of a cluster that decide which of its servers are eligible.
#[derive(Clone, Debug)]
pub struct TopologySettings {
    /// The roles of the servers, in configured order.
    pub roles: Vec<AssignedRole>,
    /// How long health checks may fail before connections to the server are closed; `None` means
    /// for ever.
    pub check_failure_timeout: Option<Duration>,
    /// Maximum replication lag of a replica that serves reads; `None` means any.
    pub max_lag: Option<Duration>,
    /// Maximum replication lag in bytes of WAL; `None` means any.
    pub max_lag_bytes: Option<NonZeroU64>,
    /// How long a primary that was unreachable gets no writes, unless a standby streams from it.
    pub primary_rejoin_delay: Duration,
    /// Whether servers with another system identifier than the primary's are excluded.
    pub require_same_system_identifier: bool,
}

/// Receives health reports and updates the member states that workers read.
#[derive(Debug)]
pub struct ClusterTopology {
    state: Arc<ClusterState>,
    check_failure_timeout: Option<Duration>,
    max_lag: Option<Duration>,
    max_lag_bytes: Option<NonZeroU64>,
    detector: PrimaryDetector,
    lag_history: LagHistory,
    lsn_history: LsnHistory,
}

impl ClusterTopology {
    /// Creates a topology for the servers of `state`, of which none has been checked yet.
    pub fn new(settings: TopologySettings, state: Arc<ClusterState>) -> Self {
        Self {
            state,
            check_failure_timeout: settings.check_failure_timeout,
            max_lag: settings.max_lag,
            max_lag_bytes: settings.max_lag_bytes,
            detector: PrimaryDetector::new(
                settings.roles,
                settings.primary_rejoin_delay,
                settings.require_same_system_identifier,
            ),
            lag_history: LagHistory::default(),
            lsn_history: LsnHistory::default(),
        }
    }

    /// Handles the report of `server` from the check numbered `check`, which started after
    /// `suspicions` suspicions. Returns whether the report is still valid.
    pub fn handle_health_report(
        &mut self,
        server: usize,
        (check, suspicions): (CheckSeq, u32),
        report: &HealthReport,
        now: Time,
    ) -> bool {
        self.detector.observe(server, Some(report.clone()), now);
        let statuses = self.statuses(now);
        if statuses[server] == ServerStatus::Primary && !report.is_in_recovery {
            self.lag_history.record(server, report.lsn, now);
            if let Some(inserted) = report.insert_lsn {
                let of = (server, report.timeline);
                self.lsn_history.record(of, check, inserted, &self.state.write_tracker);
            }
        }
        // WAL positions of different systems are not comparable, even where several systems are
        // allowed.
        let is_own_system = !self.detector.is_foreign(server);
        let replayed = if report.is_in_recovery && is_own_system {
            self.lsn_history.replayed(report.timeline, report.lsn)
        } else {
            CheckSeq::default()
        };
        let lag = self
            .lag_history
            .lag_at(report.lsn, now)
            .filter(|_| report.is_in_recovery && is_own_system);
        let is_lagging = lag.is_some_and(|(bytes, time)| {
            self.max_lag_bytes.is_some_and(|max| bytes > max.get())
                || self.max_lag.is_some_and(|max| time > max)
        });
        let findings = CheckFindings {
            timeline: report.timeline,
            lsn: report.lsn,
            lag_bytes: lag.map(|(bytes, _)| bytes),
            lag: lag.map(|(_, time)| time),
            is_lagging,
            system_identifier: report.system_identifier,
            is_foreign: self.detector.is_excluded(server),
            replayed,
        };
        // The other servers are updated first, so that workers never see two primaries.
        self.update_others(server, &statuses);
        self.state.members[server].check_succeeded(suspicions, statuses[server], findings, now)
    }

    /// Handles a failed check. Returns whether the server was reachable before.
    pub fn handle_check_failure(&mut self, server: usize, reason: &str, now: Time) -> bool {
        self.detector.observe(server, None, now);
        // If this was the last server to be checked for the first time, the statuses of the others
        // may change.
        let statuses = self.statuses(now);
        self.update_others(server, &statuses);
        let member = &self.state.members[server];
        member.set_status(statuses[server], self.detector.is_excluded(server));
        member.check_failed(now, reason, self.check_failure_timeout)
    }

    fn update_others(&self, server: usize, statuses: &[ServerStatus]) {
        let members = self.state.members.iter().zip(statuses).enumerate();
        for (at, (member, status)) in members.filter(|(at, _)| *at != server) {
            member.set_status(*status, self.detector.is_excluded(at));
        }
    }

    /// Returns the system identifier of the primary, if known.
    pub fn system_identifier(&self) -> Option<i64> {
        self.detector.system_identifier()
    }

    /// Returns and clears the regression recorded since the last call, if a primary on an older
    /// timeline was accepted.
    pub fn take_timeline_regression(&mut self) -> Option<TimelineRegression> {
        self.detector.take_timeline_regression()
    }

    /// Discards the reports of unreachable servers, and determines the statuses of all servers
    /// anew.
    pub fn reset(&mut self, now: Time) {
        self.detector.reset();
        let statuses = self.statuses(now);
        for (at, (member, status)) in self.state.members.iter().zip(&statuses).enumerate() {
            member.set_status(*status, self.detector.is_excluded(at));
        }
    }

    /// Returns the reason why none of several primaries is accepted; `None` without such a
    /// conflict.
    pub fn conflict(&self) -> Option<PrimaryConflict> {
        self.detector.conflict()
    }

    fn statuses(&mut self, now: Time) -> Vec<ServerStatus> {
        let configured = |(status, role): (ServerStatus, &AssignedRole)| match role {
            AssignedRole::Auto => status,
            AssignedRole::Primary => ServerStatus::Primary,
            AssignedRole::Replica => ServerStatus::Replica,
        };
        let statuses = self.detector.statuses(now).into_iter();
        statuses.zip(self.detector.roles()).map(configured).collect()
    }
}
