//! [`ClusterMonitor`]: health checks of a cluster's servers, with a thread for each server.
//!
//! Each thread has its own connection outside the pools: a full pool says nothing about its server,
//! and pool limits must not prevent checks. A thread checks its server immediately when a worker
//! has lost a connection, and frequently while no primary is known. It stores the result in a few
//! bits that workers read when they select a server, and sends workers a message when the result
//! may affect waiting clients.
//!
//! While clients use read-your-writes, the primary is checked soon after each write, and then each
//! standby that has not replayed the write yet. The interval grows while a standby makes no
//! progress.

mod health_check;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use howdah_connect::Endpoint;
use howdah_net::Waker;
use howdah_pool_config::{ClusterPool, ConfiguredRole};
use howdah_pool_core::{
    CheckSeq, ClusterState, ClusterTopology, HealthReport, MemberHealth, PrimaryConflict,
    ServerStatus, Time, TimelineRegression,
};
use parking_lot::{Mutex, MutexGuard};

use self::health_check::HealthCheck;
pub(super) use self::health_check::{
    BlockingLoginError, ControlConnection, HealthCheckError, log_in_blocking, pending_server,
};
use super::{
    directory::{PoolEntry, topology_settings},
    host_resolver::ResolvedAddresses,
    messages::{Mailbox, WorkerMessage},
    shared_state::SharedState,
};

/// Check interval while no primary is known.
const FAST_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Minimum interval between two checks, however many are requested; `check-interval` may be
/// shorter.
const CHECK_INTERVAL_MIN: Duration = Duration::from_millis(20);

/// Maximum number of times that the check interval doubles while a standby makes no progress in
/// replaying a client's writes.
const BACKOFF_SHIFT_MAX: u32 = 8;

/// Maximum number of consecutive checks at [`FAST_CHECK_INTERVAL`]; about five minutes.
const FAST_CHECKS_MAX: u32 = 3000;

/// Interval at which to check whether the pooler has stopped.
const SHUTDOWN_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The state of a server as last logged.
#[derive(Clone, Copy, Debug, Default)]
struct LoggedStatus {
    role: &'static str,
    is_foreign: bool,
    is_unresponsive: bool,
    /// Whether the server is a primary on an older timeline, while no server is accepted as the
    /// primary.
    is_only_primary: bool,
}

/// The monitor of a cluster: the results of its servers' health checks, and the means to wake the
/// threads that run them.
#[derive(Debug)]
pub(super) struct ClusterMonitor {
    /// The database's name in the settings.
    pub(super) name: String,
    /// Number of the shard; 0 without shards.
    pub(super) shard: u32,
    pub(super) is_sharded: bool,
    pub(super) cluster: ClusterPool,
    pub(super) state: Arc<ClusterState>,
    /// The known roles and timelines. Must be locked before `logged`.
    topology: Mutex<ClusterTopology>,
    /// The state of each server as last logged.
    logged: Mutex<Vec<LoggedStatus>>,
    is_conflict_logged: AtomicBool,
    /// For each server, whether its actual role last differed from the configured one.
    role_conflicts: Box<[AtomicBool]>,
    /// Number of requests so far to check all servers immediately. A thread that sees a new number
    /// runs a check.
    check_requests: AtomicU32,
    /// The wakers of the check threads, by server index; `None` if the thread has not started
    /// or could not create its waker.
    wakers: Mutex<Vec<Option<Waker>>>,
    has_started: AtomicBool,
    is_stopped: AtomicBool,
    /// The version of the state that workers were last notified of.
    notified_version: AtomicU32,
}

impl ClusterMonitor {
    pub(super) fn new(name: &str, (shard, shards): (u32, usize), cluster: ClusterPool) -> Self {
        let settings = topology_settings(&cluster);
        let servers = cluster.servers.len();
        let state = ClusterState::new(settings.roles.iter().copied(), cluster.settings.ban);
        let topology = ClusterTopology::new(settings, Arc::clone(&state));
        Self {
            name: name.to_owned(),
            shard,
            is_sharded: shards > 1,
            state,
            cluster,
            topology: Mutex::new(topology),
            role_conflicts: (0..servers).map(|_| AtomicBool::new(false)).collect(),
            check_requests: AtomicU32::new(0),
            wakers: Mutex::new((0..servers).map(|_| None).collect()),
            has_started: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
            logged: Mutex::new(vec![LoggedStatus::default(); servers]),
            is_conflict_logged: AtomicBool::new(false),
            notified_version: AtomicU32::new(0),
        }
    }

    /// Returns the shard's number, or `None` without shards.
    pub(super) fn shard_label(&self) -> Option<u32> {
        self.is_sharded.then_some(self.shard)
    }

    /// Tells the threads to stop. Does not wait for them.
    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.check_now();
    }

    /// Makes all threads check immediately: if one server has failed, another may have been
    /// promoted.
    pub(super) fn check_now(&self) {
        self.check_requests.fetch_add(1, Ordering::Release);
        self.wakers().iter().flatten().for_each(Waker::wake);
    }

    /// Makes the primary's thread query the WAL position, because a client that uses
    /// read-your-writes has written.
    pub(super) fn check_primary(&self) {
        self.wake(MemberHealth::accepts_writes);
    }

    /// Wakes the threads of the members selected by `is_it`.
    fn wake(&self, is_it: impl Fn(&MemberHealth) -> bool) {
        let members = self.state.members.iter();
        for (waker, _) in self.wakers().iter().zip(members).filter(|(_, member)| is_it(member)) {
            waker.iter().for_each(Waker::wake);
        }
    }

    fn wakers(&self) -> MutexGuard<'_, Vec<Option<Waker>>> {
        self.wakers.lock()
    }

    /// Whether a check of this server may let standbys serve more reads of clients that use
    /// read-your-writes.
    fn is_check_awaited(&self, member: &MemberHealth) -> bool {
        let writes = &self.state.write_tracker;
        if member.accepts_writes() {
            writes.is_primary_check_due()
        } else {
            writes.can_advance(member.replayed())
        }
    }

    /// Returns the servers with this name: a host, a host and port, or the directory or path of a
    /// unix socket.
    pub(super) fn members_at(
        &self,
        name: &str,
    ) -> impl Iterator<Item = (String, &Arc<MemberHealth>)> {
        let is_it = move |endpoint: &Endpoint| match endpoint {
            Endpoint::Tcp { host, .. } => host == name || endpoint.to_string() == name,
            Endpoint::Unix { path } => {
                path.parent().is_some_and(|it| it.as_os_str() == name)
                    || endpoint.to_string() == name
            }
        };
        let members = self.cluster.servers.iter().zip(&self.state.members);
        let found = members.filter(move |(server, _)| is_it(&server.endpoint));
        found.map(|(server, member)| (server.endpoint.to_string(), member))
    }

    fn topology(&self) -> MutexGuard<'_, ClusterTopology> {
        self.topology.lock()
    }

    fn logged(&self) -> MutexGuard<'_, Vec<LoggedStatus>> {
        self.logged.lock()
    }

    /// Handles a server's report. Returns `false` if the report is outdated and the check must be
    /// repeated.
    fn handle_report(
        &self,
        server: usize,
        check: (CheckSeq, u32),
        report: &HealthReport,
        now: Time,
    ) -> bool {
        let (mut topology, mut logged) = (self.topology(), self.logged());
        let is_current = topology.handle_health_report(server, check, report, now);
        self.log_changes(&mut topology, &mut logged);
        if self.cluster.servers[server].role != ConfiguredRole::Auto {
            self.log_role_conflict(server, report);
        }
        is_current
    }

    fn handle_failure(&self, server: usize, reason: &str, now: Time) {
        let (mut topology, mut logged) = (self.topology(), self.logged());
        if topology.handle_check_failure(server, reason, now) {
            let (database, server) = (&self.name, &self.cluster.servers[server].endpoint);
            let shard = self.shard_label();
            tracing::warn!(database, shard, %server, reason, "server not responding");
        }
        self.log_changes(&mut topology, &mut logged);
    }

    /// Discards what is known about unreachable servers, determines the roles and the timeline from
    /// the reports of reachable servers, and checks all servers again.
    pub(super) fn reset(&self, now: Time) {
        let (mut topology, mut logged) = (self.topology(), self.logged());
        topology.reset(now);
        self.log_changes(&mut topology, &mut logged);
        drop((topology, logged));
        self.check_now();
    }

    /// Logs changed states of servers. Two primaries at a time are logged as an error.
    fn log_changes(&self, topology: &mut ClusterTopology, logged: &mut [LoggedStatus]) {
        let database = &self.name;
        if let Some(TimelineRegression { server, timeline, newest_timeline: before }) =
            topology.take_timeline_regression()
        {
            let server = &self.cluster.servers[server].endpoint;
            tracing::error!(
                database, shard = self.shard_label(), %server, timeline, before,
                "the timeline went back: no server is on the newer one any more, standbys stream from \
                 this primary, and writes go to it from now on"
            );
        }
        let mut statuses = self.state.members.iter().map(|member| member.status());
        let has_primary = statuses.any(|status| status == ServerStatus::Primary);
        for (at, logged) in logged.iter_mut().enumerate() {
            let report = self.state.members[at].report();
            let status = self.state.members[at].status();
            let server = &self.cluster.servers[at].endpoint;
            let (role, timeline) = (report.role, report.findings.timeline);
            let is_foreign = report.findings.is_foreign;
            let is_unresponsive = self.state.members[at].is_unresponsive();
            let is_only_primary = status == ServerStatus::Stale && !has_primary;
            let before = std::mem::replace(
                logged,
                LoggedStatus { role, is_foreign, is_unresponsive, is_only_primary },
            );
            if is_unresponsive && !before.is_unresponsive {
                tracing::warn!(
                    database, shard = self.shard_label(), %server,
                    "server passed no health check for cluster.check-failure-timeout: closing its connections"
                );
            }
            if is_foreign && !before.is_foreign {
                let (system, primary) =
                    (report.findings.system_identifier, topology.system_identifier());
                tracing::warn!(
                    database, shard = self.shard_label(), %server, system, primary_system = primary,
                    "server has another system identifier than the primary and gets no clients; set \
                     cluster.require-same-system-identifier = false to allow it"
                );
            }
            if is_only_primary && !before.is_only_primary {
                tracing::error!(
                    database, shard = self.shard_label(), %server, timeline,
                    "the only primary is on an older timeline than a previous one and gets no clients; if \
                     the newer timeline is gone for good, use RESET CLUSTER with the database's name"
                );
            }
            if before.role == role || is_only_primary {
                continue;
            }
            if status == ServerStatus::Stale {
                tracing::error!(
                    database, shard = self.shard_label(), %server, timeline,
                    "two primaries: this one is on an older timeline and gets no clients"
                );
            } else {
                let shard = self.shard_label();
                tracing::info!(database, shard, %server, role, "server role changed");
            }
        }
        let conflict = topology.conflict();
        let was_logged = self.is_conflict_logged.swap(conflict.is_some(), Ordering::Relaxed);
        let shard = self.shard_label();
        match conflict.filter(|_| !was_logged) {
            Some(PrimaryConflict::SeveralSystems) => tracing::error!(
                database,
                shard,
                "primaries with different system identifiers, no writes possible: see SHOW MEMBERS"
            ),
            Some(PrimaryConflict::SameTimeline) => tracing::error!(
                database,
                shard,
                "several primaries on one timeline, no writes possible: remove servers that do not \
                 belong to this database, or configure the primary (role = \"primary\")"
            ),
            None => {}
        }
    }

    /// Logs a server whose role differs from the configured one.
    fn log_role_conflict(&self, server: usize, report: &HealthReport) {
        let entry = &self.cluster.servers[server];
        let is_right = report.is_in_recovery == (entry.role == ConfiguredRole::Replica);
        if self.role_conflicts[server].swap(!is_right, Ordering::Relaxed) == is_right && !is_right {
            let (database, configured_role, server) =
                (&self.name, entry.role.as_str(), &entry.endpoint);
            let is_in_recovery = report.is_in_recovery;
            let shard = self.shard_label();
            tracing::error!(
                database, shard, %server, configured_role, is_in_recovery,
                "server role differs from the configured one"
            );
        }
    }

    fn has_primary(&self) -> bool {
        self.primary().is_some()
    }

    /// Returns the index of the primary in the list of servers, if a primary is known.
    pub(super) fn primary(&self) -> Option<usize> {
        self.state.members.iter().position(|member| member.accepts_writes())
    }
}

/// Starts the check threads of a cluster. If they are already running, makes them check now.
pub(super) fn start(
    monitor: &Arc<ClusterMonitor>,
    shared: &Arc<SharedState>,
    mailboxes: &Arc<[Arc<Mailbox>]>,
) {
    if monitor.has_started.swap(true, Ordering::Relaxed) {
        // The threads may have been waiting for a pool whose login they can use.
        return monitor.check_now();
    }
    for server in 0..monitor.cluster.servers.len() {
        let (monitor, shared, mailboxes) =
            (Arc::clone(monitor), Arc::clone(shared), Arc::clone(mailboxes));
        let run = move || match HealthCheck::new() {
            Ok(check) => run_checks(&monitor, server, check, &shared, &mailboxes),
            Err(error) => tracing::error!(%error, "cannot start a health check"),
        };
        if let Err(error) = thread::Builder::new().name(format!("check-{server}")).spawn(run) {
            tracing::error!(%error, "cannot start a health check thread");
        }
    }
}

fn run_checks(
    monitor: &ClusterMonitor,
    server: usize,
    mut check: HealthCheck,
    shared: &SharedState,
    mailboxes: &[Arc<Mailbox>],
) {
    let settings = &monitor.cluster.settings;
    let member = &monitor.state.members[server];
    match check.waker() {
        Ok(waker) => monitor.wakers()[server] = Some(waker),
        Err(error) => tracing::warn!(%error, "health checks run only at fixed intervals"),
    }
    let (mut attempt, mut fast_checks, mut addresses) = (0, 0, ResolvedAddresses::default());
    let endpoint = &monitor.cluster.servers[server].endpoint;
    let mut current_entry: Option<Arc<PoolEntry>> = None;
    let mut backoff = 0;
    let is_stopped = || shared.is_stopped() || monitor.is_stopped.load(Ordering::Relaxed);
    while !is_stopped() {
        let requests = monitor.check_requests.load(Ordering::Acquire);
        let suspicions = member.suspicions();
        let deadline = Instant::now() + settings.check_timeout;
        let ttl = shared.directory.config().timeouts.dns_max_ttl;
        let names = shared.directory.names();
        if addresses.have_changed(endpoint, names, (ttl, Instant::now())) {
            let database = &monitor.name;
            tracing::info!(database, server = %endpoint, "host name resolves to another address");
            member.handle_address_change();
            check.disconnect();
        }
        // The same pool's login is used until the pool changes.
        let is_current = |entry: &Arc<PoolEntry>| {
            let now = shared.directory.by_id(entry.id);
            now.is_some_and(|now| Arc::ptr_eq(&now, entry))
        };
        let entry = current_entry.take().filter(is_current);
        let entry = entry.or_else(|| shared.directory.health_check_pool(monitor, server, attempt));
        let writes = &monitor.state.write_tracker;
        if member.accepts_writes() {
            writes.start_primary_check();
        }
        let (check_seq, replayed) = (CheckSeq::allocate(), member.replayed());
        let result = match &entry {
            Some(entry) => check.check(entry, shared, deadline, writes.has_writes()),
            None => Err(HealthCheckError::NoUser),
        };
        if let Some(why) = check.take_refusal() {
            let (database, shard) = (&monitor.name, monitor.shard_label());
            tracing::warn!(
                database, shard, server = %endpoint, why,
                "read-your-writes: missing privileges for health checks; reads may stay on the primary"
            );
        }
        let now = shared.now();
        let mut delay = settings.check_interval;
        match result {
            Ok(report) => {
                current_entry.clone_from(&entry);
                if !monitor.handle_report(server, (check_seq, suspicions), &report, now) {
                    delay = CHECK_INTERVAL_MIN;
                }
            }
            Err(HealthCheckError::Unreachable(reason)) => {
                monitor.handle_failure(server, &reason, now);
            }
            Err(HealthCheckError::NoUser) => member.suspect(),
            Err(error) => {
                // The server responds, so it stays available for reads.
                attempt += 1;
                member.handle_refused_check(now);
                let server = &monitor.cluster.servers[server].endpoint;
                let (database, error) = (&monitor.name, error.to_string());
                tracing::debug!(database, %server, error, "health check refused");
            }
        }
        let version = monitor.state.version();
        if monitor.notified_version.swap(version, Ordering::Relaxed) != version {
            mailboxes.iter().for_each(|mailbox| mailbox.send(WorkerMessage::ClusterStateChanged));
        }
        let has_advanced = member.replayed() > replayed;
        if has_advanced && writes.take_replay_request() {
            mailboxes.iter().for_each(|mailbox| mailbox.send(WorkerMessage::ClusterStateChanged));
        }
        if member.accepts_writes() {
            monitor.wake(|other| !other.accepts_writes() && monitor.is_check_awaited(other));
        }
        let is_waiting =
            !has_advanced && !member.accepts_writes() && monitor.is_check_awaited(member);
        backoff = if is_waiting { (backoff + 1).min(BACKOFF_SHIFT_MAX) } else { 0 };
        // A cluster without a primary for this long may consist of standbys only.
        fast_checks = if monitor.has_primary() { 0 } else { fast_checks + 1 };
        if (1..FAST_CHECKS_MAX).contains(&fast_checks) && entry.is_some() {
            delay = delay.min(FAST_CHECK_INTERVAL);
        }
        let checked_at = Instant::now();
        let mut is_requested = false;
        while !is_stopped() {
            is_requested |= monitor.check_requests.load(Ordering::Acquire) != requests;
            let until = match () {
                () if is_requested => checked_at + CHECK_INTERVAL_MIN.min(delay),
                () if monitor.is_check_awaited(member) => {
                    checked_at + delay.min(CHECK_INTERVAL_MIN * (1 << backoff))
                }
                () => checked_at + delay,
            };
            if Instant::now() >= until {
                break;
            }
            if check.wait(until.min(Instant::now() + SHUTDOWN_CHECK_INTERVAL)) {
                // The connection has ended: the server may have been restarted.
                member.suspect();
                monitor.check_now();
            }
        }
    }
}
