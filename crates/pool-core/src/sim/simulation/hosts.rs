//! A database with several servers: hosts that are killed, promoted and restarted, and their health
//! checks.
//!
//! A client that requires the primary must never be served by a standby, nor by a primary that was
//! killed and is to be replaced, once it has restarted. Shortly after a primary is known to be
//! replaced, it must not serve any client. A standby is promoted within the delay in which a
//! returned primary is not accepted. Hosts also hang for a while: their connections stay open and
//! silent. Connections that were opened before such a host was declared unresponsive must be closed
//! soon after.

use std::{sync::Arc, time::Duration};

use howdah_route::{HintNames, RouteSettings};

use super::{MS, SimEvent, SimPeer, Simulation, Situation};
use crate::{
    BalancingStrategy, ClusterMember, ClusterMembership, ClusterSpec, ClusterState, PoolId,
    PoolSpec, TargetRole, Time,
    cluster::{AssignedRole, CheckSeq, ClusterTopology, HealthReport, TopologySettings},
    sim::random::SimRandom,
};

/// Delay in nanoseconds before a returned primary is accepted.
const PRIMARY_REJOIN_DELAY_NS: u64 = 2_000 * MS;

/// Maximum time in nanoseconds for the reaction to a status change, since messages and closes need
/// time.
const REACTION_TIME_NS: u64 = 40 * MS;

/// Time in nanoseconds for which a host may be silent before it is declared unresponsive.
const CHECK_FAILURE_TIMEOUT_NS: u64 = 300 * MS;

/// The hosts of a simulated cluster, and the topology under test.
pub(super) struct SimCluster {
    pub(super) owner_pool: PoolId,
    /// The shard that the cluster serves; 0 without sharding.
    shard: u32,
    pub(super) hosts: Vec<SimHost>,
    state: Arc<ClusterState>,
    topology: ClusterTopology,
    pub(super) cluster: Arc<ClusterSpec>,
    timeline: u32,
}

/// A server of the cluster.
pub(super) struct SimHost {
    pub(super) pool: PoolId,
    pub(super) is_alive: bool,
    /// Time until which the host is silent.
    hangs_until: u64,
    is_in_recovery: bool,
    timeline: u32,
    starts: u32,
    is_streaming: bool,
    /// Whether the host is the primary, or will be once it is up.
    is_true_primary: bool,
    /// Whether the host was killed and has been or will be replaced, so that later writes on it are
    /// lost.
    is_being_replaced: bool,
    /// Time since which the host is known to be replaced.
    fenced_since: Option<u64>,
    /// Time since which the host is known to be unresponsive.
    unresponsive_since: Option<u64>,
}

impl SimCluster {
    /// Creates hosts whose pool numbers follow that of their owner pool.
    pub(super) fn new(owner_pool: PoolId, random: &mut SimRandom) -> Self {
        let count = 2 + random.below(3);
        Self::for_shard(0, owner_pool, owner_pool.0 + 1, count, random)
    }

    /// Creates the hosts of a shard, with pool numbers from `first_pool` on.
    pub(super) fn for_shard(
        shard: u32,
        owner_pool: PoolId,
        first_pool: u32,
        count: u64,
        random: &mut SimRandom,
    ) -> Self {
        let settings = TopologySettings {
            roles: vec![AssignedRole::Auto; count as usize],
            check_failure_timeout: Some(Duration::from_nanos(CHECK_FAILURE_TIMEOUT_NS)),
            max_lag: None,
            max_lag_bytes: None,
            primary_rejoin_delay: Duration::from_nanos(PRIMARY_REJOIN_DELAY_NS),
            require_same_system_identifier: true,
        };
        let roles = settings.roles.iter().copied();
        let state = ClusterState::new(roles, Duration::from_millis(500));
        let topology = ClusterTopology::new(settings, Arc::clone(&state));
        let host = |number: u64| SimHost {
            pool: PoolId(first_pool + number as u32),
            is_alive: true,
            hangs_until: 0,
            is_in_recovery: number > 0,
            timeline: 1,
            starts: 1,
            is_streaming: number > 0,
            is_true_primary: number == 0,
            is_being_replaced: false,
            fenced_since: None,
            unresponsive_since: None,
        };
        let hosts: Vec<_> = (0..count).map(host).collect();
        let strategies = [
            BalancingStrategy::RoundRobin,
            BalancingStrategy::Random,
            BalancingStrategy::LeastOutstanding,
            BalancingStrategy::Weighted,
            BalancingStrategy::Latency,
        ];
        let member = |(host, state): (&SimHost, &Arc<crate::MemberHealth>)| ClusterMember {
            pool: host.pool,
            state: Arc::clone(state),
            weight: 1,
        };
        let cluster = Arc::new(ClusterSpec {
            members: hosts.iter().zip(&state.members).map(member).collect(),
            strategy: *random.pick(&strategies),
            failover_timeout: None,
            slow_start: Duration::from_millis(300),
            state: Arc::clone(&state),
        });
        Self { owner_pool, shard, hosts, state, topology, cluster, timeline: 1 }
    }

    /// Returns the specs of the owner pool and its members, derived from `spec`.
    pub(super) fn specs(&self, spec: &PoolSpec) -> Vec<PoolSpec> {
        let clusters = [Arc::clone(&self.cluster)].into();
        // With hints the router inspects every request, and batches up to their end, but the routes
        // stay the same.
        let hints = (self.hosts.len() > 2).then(HintNames::default);
        let routing = Some(Arc::new(RouteSettings { hints, ..RouteSettings::default() }));
        let owner_pool = PoolSpec { clusters, routing, ..spec.clone() };
        [owner_pool].into_iter().chain(self.member_specs(spec)).collect()
    }

    /// Returns the specs of the members, derived from `spec`.
    pub(super) fn member_specs(&self, spec: &PoolSpec) -> Vec<PoolSpec> {
        let members = self.cluster.members.iter().map(|member| {
            let state = Arc::clone(&member.state);
            let membership = ClusterMembership {
                owner: self.owner_pool,
                shard: self.shard,
                state,
                failover_timeout: None,
            };
            let limit = crate::ConnectionLimit::new(spec.server_limits[0].max());
            PoolSpec { member: Some(membership), server_limits: [limit].into(), ..spec.clone() }
        });
        members.collect()
    }
}

/// Identifies a host by its cluster and its index there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HostId {
    pub(super) cluster: usize,
    pub(super) host: usize,
}

impl Simulation {
    /// Returns the host that serves a pool; `None` if the pool is not that of a cluster member.
    pub(super) fn host_of(&self, pool: PoolId) -> Option<&SimHost> {
        let mut hosts = self.clusters.iter().flat_map(|cluster| &cluster.hosts);
        hosts.find(|host| host.pool == pool)
    }

    fn host_mut(&mut self, id: HostId) -> &mut SimHost {
        &mut self.clusters[id.cluster].hosts[id.host]
    }

    /// Prints the state of hosts, if a single seed is run.
    pub(super) fn trace_hosts(&self) {
        for member in self.clusters.iter().flat_map(|hosts| hosts.state.members.iter()) {
            self.trace(&format_args!("{:?}", member.report()), b".");
        }
    }

    /// Starts checking hosts and schedules their failures. The clusters of several shards fail
    /// independently.
    pub(super) fn schedule_hosts(&mut self) {
        for cluster in 0..self.clusters.len() {
            let count = self.clusters[cluster].hosts.len();
            for host in 0..count {
                self.schedule(0, SimEvent::CheckHost(HostId { cluster, host }));
            }
            if self.has_faults {
                let at = self.random.below(200 * MS);
                self.schedule(at, SimEvent::FailPrimary(cluster));
            }
            if self.has_faults && self.random.percent(70) {
                let (at, host) =
                    (self.random.below(250 * MS), self.random.below(count as u64) as usize);
                self.schedule(at, SimEvent::Hang(HostId { cluster, host }));
            }
        }
    }

    /// Sends a health check to a host, and schedules its result for a later time.
    pub(super) fn check_host(&mut self, id: HostId) {
        let hosts = &self.clusters[id.cluster];
        let (host, suspicions) = (&hosts.hosts[id.host], hosts.state.members[id.host].suspicions());
        let report = (host.is_alive && self.now >= host.hangs_until).then(|| HealthReport {
            is_in_recovery: host.is_in_recovery,
            timeline: if host.is_in_recovery { 0 } else { host.timeline },
            lsn: self.now,
            insert_lsn: None,
            start_time: host.starts.to_string(),
            is_streaming: if host.is_in_recovery {
                host.is_streaming
            } else {
                hosts.hosts.iter().any(|other| other.is_in_recovery && other.is_streaming)
            },
            system_identifier: Some(1),
        });
        self.schedule_soon(SimEvent::CheckResult(id, suspicions, report));
        let at = self.now + 10 * MS + self.random.below(40 * MS);
        self.schedule(at, SimEvent::CheckHost(id));
    }

    pub(super) fn apply_check_result(
        &mut self,
        id: HostId,
        suspicions: u32,
        report: Option<HealthReport>,
    ) {
        let hosts = &mut self.clusters[id.cluster];
        let now = Time(self.now);
        match report {
            Some(report) => {
                let _ = hosts.topology.handle_health_report(
                    id.host,
                    (CheckSeq::default(), suspicions),
                    &report,
                    now,
                );
            }
            None => drop(hosts.topology.handle_check_failure(id.host, "silence", now)),
        }
        for (host, member) in hosts.hosts.iter_mut().zip(&hosts.state.members) {
            if member.is_fenced() {
                host.fenced_since.get_or_insert(self.now);
            } else {
                host.fenced_since = None;
            }
            if member.is_unresponsive() {
                host.unresponsive_since.get_or_insert(self.now);
            } else {
                host.unresponsive_since = None;
            }
        }
        for worker in 0..self.workers.len() {
            self.schedule_soon(SimEvent::ClustersChanged(worker));
        }
    }

    /// Kills and restarts the primary, with or without a promotion, or replaces it while it runs.
    pub(super) fn fail_primary(&mut self, cluster: usize) {
        let hosts = &mut self.clusters[cluster];
        let is_standby = |host: &SimHost| host.is_alive && host.is_in_recovery;
        let primary = hosts.hosts.iter().position(|host| host.is_true_primary && host.is_alive);
        let standby = hosts.hosts.iter().position(is_standby);
        let (Some(primary), Some(standby)) = (primary, standby) else { return };
        let (is_killed, is_replaced) =
            *self.random.pick(&[(true, true), (true, false), (false, true)]);
        let old = &mut hosts.hosts[primary];
        let pool = old.pool;
        if is_killed {
            old.is_alive = false;
            (old.is_true_primary, old.is_being_replaced) = (!is_replaced, is_replaced);
            hosts.hosts.iter_mut().for_each(|host| host.is_streaming = false);
            self.kill_backends(pool);
            self.schedule_soon(SimEvent::Suspect(HostId { cluster, host: primary }));
            let at = self.now + 10 * MS + self.random.below(600 * MS);
            self.schedule(at, SimEvent::StartHost(HostId { cluster, host: primary }));
        }
        if is_replaced {
            let at = self.now + self.random.below(if is_killed { 600 * MS } else { 50 * MS });
            self.schedule(at, SimEvent::Promote { cluster, old: primary, new: standby });
            let at = self.now + 3_000 * MS + self.random.below(1000 * MS);
            self.schedule(at, SimEvent::Rejoin(HostId { cluster, host: primary }));
        }
    }

    /// Makes a host silent for a while, possibly longer than clients wait.
    pub(super) fn hang_host(&mut self, id: HostId) {
        let until = self.now + self.random.below(1_500 * MS);
        self.host_mut(id).hangs_until = until;
    }

    /// Whether any host is silent now.
    pub(super) fn is_any_host_hanging(&self) -> bool {
        let mut hosts = self.clusters.iter().flat_map(|hosts| &hosts.hosts);
        hosts.any(|host| self.now <= host.hangs_until && host.hangs_until > 0)
    }

    /// Returns the time until which messages from or to a server are delayed by its host. All are
    /// delayed to the same moment, which preserves their order.
    pub(super) fn hangs_until(&self, backend: usize) -> Option<u64> {
        let host = self.host_of(self.backends[backend].1.pool)?;
        Some(host.hangs_until).filter(|until| self.now < *until)
    }

    /// Checks that connections opened before their host became unresponsive are closed soon after.
    pub(super) fn check_unresponsive(&self) -> Result<(), String> {
        for host in self.clusters.iter().flat_map(|hosts| &hosts.hosts) {
            let Some(since) = host.unresponsive_since.filter(|it| self.now > it + REACTION_TIME_NS)
            else {
                continue;
            };
            let is_waiting = |link: &super::network::SimLink| {
                link.pool == host.pool
                    && !link.is_closed
                    && link.worker.is_some()
                    && link.ready_at < since
            };
            if let Some(backend) = self.backends.iter().position(|(_, link)| is_waiting(link)) {
                return Err(format!(
                    "s{backend} is still in use, although {:?} is unresponsive",
                    host.pool
                ));
            }
        }
        Ok(())
    }

    /// Marks a host as suspect, because the connection of its health checks has ended.
    pub(super) fn suspect_host(&self, id: HostId) {
        self.clusters[id.cluster].state.members[id.host].suspect();
    }

    fn kill_backends(&mut self, pool: PoolId) {
        for backend in 0..self.backends.len() {
            let link = &mut self.backends[backend].1;
            if link.pool == pool && !link.is_closed {
                link.is_closed = true;
                self.send_to_pooler(SimPeer::Backend(backend), None);
            }
        }
    }

    /// Makes a replaced primary a standby of its successor.
    pub(super) fn rejoin(&mut self, id: HostId) {
        let host = self.host_mut(id);
        (host.is_in_recovery, host.is_streaming, host.is_being_replaced) = (true, true, false);
        (host.is_alive, host.starts) = (true, host.starts + 1);
        let pool = host.pool;
        self.kill_backends(pool);
    }

    pub(super) fn start_host(&mut self, id: HostId) {
        let host = self.host_mut(id);
        (host.is_alive, host.starts) = (true, host.starts + 1);
        if host.is_true_primary {
            // The standbys reconnect to their new primary.
            let at = self.now + self.random.below(1000 * MS);
            self.schedule(at, SimEvent::StartStreaming(id.cluster));
        }
    }

    pub(super) fn start_streaming(&mut self, cluster: usize) {
        let hosts = &mut self.clusters[cluster];
        for host in hosts.hosts.iter_mut().filter(|host| host.is_in_recovery) {
            host.is_streaming = true;
        }
    }

    pub(super) fn promote(&mut self, cluster: usize, old: usize, new: usize) {
        let hosts = &mut self.clusters[cluster];
        if !hosts.hosts[new].is_alive || !hosts.hosts[new].is_in_recovery {
            return;
        }
        hosts.timeline += 1;
        hosts.hosts[old].is_true_primary = false;
        let host = &mut hosts.hosts[new];
        (host.is_in_recovery, host.timeline) = (false, hosts.timeline);
        (host.is_true_primary, host.is_streaming) = (true, false);
        if self.shards.is_some() {
            self.coverage.record(Situation::ShardFailover);
        }
    }

    /// Checks that a server may serve the client whose statement it has received.
    pub(super) fn check_role(&mut self, backend: usize) -> Result<(), String> {
        let (sim_backend, link) = &self.backends[backend];
        let Some(host) = self.host_of(link.pool) else { return Ok(()) };
        let Some(owner) = sim_backend.fed_client else { return Ok(()) };
        let is_late = |since: u64| self.now > since + REACTION_TIME_NS;
        if host.fenced_since.is_some_and(is_late) {
            let role = self.clients[owner as usize].0.role;
            return Err(format!(
                "c{owner} ({role:?}) is served by {:?}, which was replaced",
                host.pool
            ));
        }
        let role = self.clients[owner as usize].0.role;
        let client = &self.clients[owner as usize].0;
        let needs_primary = if client.has_auto_role {
            self.backends[backend].0.fed_write
        } else {
            role == TargetRole::Primary
        };
        if needs_primary && (host.is_in_recovery || host.is_being_replaced) {
            return Err(format!("c{owner} requires the primary, but is served by {:?}", host.pool));
        }
        if host.is_in_recovery && self.shards.is_some() {
            self.coverage.record(Situation::ShardStandbyRead);
        }
        Ok(())
    }
}
