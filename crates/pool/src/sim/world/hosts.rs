//! Several servers behind one database: hosts that are killed, promoted and started again, and what is
//! heard of them.
//!
//! Who wants the primary must never be served by a standby, nor by a primary that was killed and is to be
//! replaced, from its next start on; and some moments after it was judged to be replaced, nobody is
//! served there any more. A standby is promoted within the time that a primary that is back is not
//! believed. Hosts also hang for a while: their connections stay, and say nothing. What was opened before such a
//! host was given up is to be closed soon after.

use std::{sync::Arc, time::Duration};

use howdah_route::{HintNames, Settings};

use super::{End, Event, MS, World};
use crate::{
    Cluster, ClusterMember, ClusterState, MemberPlace, PoolId, PoolSpec, ServerRole, Strategy,
    Time,
    cluster::{ClusterTopology, Question, Seen},
    config::{ClusterPool, ClusterServer, ClusterSettings, ConfiguredRole},
    sim::random::Random,
};

/// For how long a primary that is back is not believed.
const PRIMARY_RETURN: u64 = 2_000 * MS;

/// How long after a verdict all of its consequences are there: letters and closes take their time.
const CONSEQUENCES: u64 = 40 * MS;

/// For how long a host may be silent.
const CUT_AFTER: u64 = 300 * MS;

/// A cluster.
pub(super) struct Hosts {
    pub(super) home: PoolId,
    pub(super) hosts: Vec<Host>,
    state: Arc<ClusterState>,
    court: ClusterTopology,
    cluster: Arc<Cluster>,
    timeline: u32,
}

/// A server of it.
pub(super) struct Host {
    pub(super) pool: PoolId,
    pub(super) is_alive: bool,
    /// Before then it says nothing.
    hangs_until: u64,
    is_in_recovery: bool,
    timeline: u32,
    starts: u32,
    streams: bool,
    /// It is the primary, or would be.
    is_right: bool,
    /// It was killed, and another takes its place: what is written here after that is lost.
    is_doomed: bool,
    /// Since when it has been known to be replaced.
    fenced_since: Option<u64>,
    /// Since when it has been known to answer no checks.
    dead_since: Option<u64>,
}

impl Hosts {
    /// Hosts whose pools have the numbers behind that of their home.
    pub(super) fn new(home: PoolId, random: &mut Random) -> Self {
        let count = 2 + random.below(3);
        let entry = |number: u64| ClusterServer {
            endpoint: howdah_connect::Endpoint::in_directory("/tmp", 5000 + number as u16),
            role: ConfiguredRole::Auto,
            weight: std::num::NonZeroU32::MIN,
        };
        let settings = ClusterSettings {
            primary_rejoin_delay: Duration::from_nanos(PRIMARY_RETURN),
            check_failure_timeout: Some(Duration::from_nanos(CUT_AFTER)),
            ..ClusterSettings::default()
        };
        let servers = (0..count).map(entry).collect();
        let pool = ClusterPool { servers, dbname: None, settings };
        let roles = pool.servers.iter().map(|server| server.role);
        let state = ClusterState::new(roles, Duration::from_millis(500));
        let court = ClusterTopology::new(&pool, Arc::clone(&state));
        let host = |number: u64| Host {
            pool: PoolId(home.0 + 1 + number as u32),
            is_alive: true,
            hangs_until: 0,
            is_in_recovery: number > 0,
            timeline: 1,
            starts: 1,
            streams: number > 0,
            is_right: number == 0,
            is_doomed: false,
            fenced_since: None,
            dead_since: None,
        };
        let hosts: Vec<_> = (0..count).map(host).collect();
        let strategies = [
            Strategy::RoundRobin,
            Strategy::Random,
            Strategy::LeastOutstanding,
            Strategy::Weighted,
            Strategy::Latency,
        ];
        let member = |(host, state): (&Host, &Arc<crate::Member>)| ClusterMember {
            pool: host.pool,
            state: Arc::clone(state),
            weight: 1,
        };
        let cluster = Arc::new(Cluster {
            members: hosts.iter().zip(&state.members).map(member).collect(),
            strategy: *random.pick(&strategies),
            failover_timeout: None,
            slow_start: Duration::from_millis(300),
            state: Arc::clone(&state),
        });
        Self { home, hosts, state, court, cluster, timeline: 1 }
    }

    /// The settings of home and members, of which `spec` says the rest.
    pub(super) fn specs(&self, spec: &PoolSpec) -> Vec<PoolSpec> {
        let clusters = [Arc::clone(&self.cluster)].into();
        // With hints every request is looked at, batches up to their end; where it goes is as before.
        let hints = (self.hosts.len() > 2).then(HintNames::default);
        let routing = Some(Arc::new(Settings { hints, ..Settings::default() }));
        let home = PoolSpec { clusters, routing, ..spec.clone() };
        let members = self.cluster.members.iter().map(|member| {
            let state = Arc::clone(&member.state);
            let place = MemberPlace { home: self.home, shard: 0, state, failover_timeout: None };
            let limit = crate::Limit::new(spec.server_limits[0].max());
            PoolSpec { member: Some(place), server_limits: [limit].into(), ..spec.clone() }
        });
        [home].into_iter().chain(members).collect()
    }

    pub(super) fn host(&mut self, pool: PoolId) -> Option<&mut Host> {
        self.hosts.iter_mut().find(|host| host.pool == pool)
    }
}

impl World {
    /// With one seed, what is known of hosts.
    pub(super) fn trace_hosts(&self) {
        for member in self.hosts.iter().flat_map(|hosts| hosts.state.members.iter()) {
            self.trace(&format_args!("{:?}", member.report()), b".");
        }
    }

    /// Begins to ask hosts, and plans what becomes of them.
    pub(super) fn begin_hosts(&mut self) {
        let Some(hosts) = &self.hosts else { return };
        let count = hosts.hosts.len();
        for host in 0..count {
            self.at(0, Event::Ask(host));
        }
        if self.faults {
            let at = self.random.below(200 * MS);
            self.at(at, Event::Fail);
        }
        if self.faults && self.random.percent(70) {
            let (at, host) =
                (self.random.below(250 * MS), self.random.below(count as u64) as usize);
            self.at(at, Event::Hang(host));
        }
    }

    /// A host is asked what it is; the answer takes its time.
    pub(super) fn ask_host(&mut self, number: usize) {
        let Some(hosts) = &self.hosts else { return };
        let (host, doubts) = (&hosts.hosts[number], hosts.state.members[number].doubts());
        let seen = (host.is_alive && self.now >= host.hangs_until).then(|| Seen {
            is_in_recovery: host.is_in_recovery,
            timeline: if host.is_in_recovery { 0 } else { host.timeline },
            lsn: self.now,
            inserted: None,
            started: host.starts.to_string(),
            streams: match host.is_in_recovery {
                true => host.streams,
                // Whose standbys they are, nobody tells: the worst that could be said.
                false => hosts.hosts.iter().any(|other| other.is_in_recovery && other.streams),
            },
            system: Some(1),
        });
        self.soon(Event::Heard(number, doubts, seen));
        let at = self.now + 10 * MS + self.random.below(40 * MS);
        self.at(at, Event::Ask(number));
    }

    pub(super) fn host_heard(&mut self, number: usize, doubts: u32, seen: Option<Seen>) {
        let Some(hosts) = &mut self.hosts else { return };
        let now = Time(self.now);
        match seen {
            Some(seen) => {
                let _ = hosts.court.heard(number, (Question::default(), doubts), &seen, now);
            }
            None => drop(hosts.court.unheard(number, "silence", now)),
        }
        for (host, member) in hosts.hosts.iter_mut().zip(&hosts.state.members) {
            match member.is_fenced() {
                true => drop(host.fenced_since.get_or_insert(self.now)),
                false => host.fenced_since = None,
            }
            match member.is_dead() {
                true => drop(host.dead_since.get_or_insert(self.now)),
                false => host.dead_since = None,
            }
        }
        for worker in 0..self.workers.len() {
            self.soon(Event::Turned(worker));
        }
    }

    /// Something happens to the primary: it is killed and started again, replaced by a standby or not;
    /// or it is replaced while it goes on.
    pub(super) fn fail_host(&mut self) {
        let Some(hosts) = &mut self.hosts else { return };
        let is_standby = |host: &Host| host.is_alive && host.is_in_recovery;
        let primary = hosts.hosts.iter().position(|host| host.is_right && host.is_alive);
        let standby = hosts.hosts.iter().position(is_standby);
        let (Some(primary), Some(standby)) = (primary, standby) else { return };
        let (is_killed, is_replaced) =
            *self.random.pick(&[(true, true), (true, false), (false, true)]);
        let old = &mut hosts.hosts[primary];
        let pool = old.pool;
        if is_killed {
            old.is_alive = false;
            (old.is_right, old.is_doomed) = (!is_replaced, is_replaced);
            hosts.hosts.iter_mut().for_each(|host| host.streams = false);
            self.kill_backends(pool);
            self.soon(Event::Doubted(primary));
            let at = self.now + 10 * MS + self.random.below(600 * MS);
            self.at(at, Event::Start(primary));
        }
        if is_replaced {
            let at = self.now + self.random.below(if is_killed { 600 * MS } else { 50 * MS });
            self.at(at, Event::Promote { old: primary, new: standby });
            let at = self.now + 3_000 * MS + self.random.below(1000 * MS);
            self.at(at, Event::Rejoin(primary));
        }
    }

    /// A host says nothing for a while, which may be longer than anybody waits.
    pub(super) fn hang_host(&mut self, number: usize) {
        let Some(hosts) = &mut self.hosts else { return };
        hosts.hosts[number].hangs_until = self.now + self.random.below(1_500 * MS);
    }

    /// Whether a host hangs now.
    pub(super) fn hangs(&self) -> bool {
        let hosts = self.hosts.iter().flat_map(|hosts| &hosts.hosts);
        hosts.into_iter().any(|host| self.now <= host.hangs_until && host.hangs_until > 0)
    }

    /// Until when what a server is to hear or say has to wait for its host. All waits for the same moment, so
    /// it comes in its order.
    pub(super) fn hangs_until(&mut self, backend: usize) -> Option<u64> {
        let (pool, now) = (self.backends[backend].1.pool, self.now);
        let host = self.hosts.as_mut()?.host(pool)?;
        Some(host.hangs_until).filter(|until| now < *until)
    }

    /// Whether anybody waits for a host that was given up.
    pub(super) fn check_silence(&self) -> Result<(), String> {
        let Some(hosts) = &self.hosts else { return Ok(()) };
        for host in &hosts.hosts {
            let Some(since) = host.dead_since.filter(|it| self.now > it + CONSEQUENCES) else {
                continue;
            };
            let waits = |link: &super::network::Link| {
                link.pool == host.pool && !link.closed && link.at.is_some() && link.ready_at < since
            };
            if let Some(backend) = self.backends.iter().position(|(_, link)| waits(link)) {
                return Err(format!("s{backend} is waited for, and {:?} is dead", host.pool));
            }
        }
        Ok(())
    }

    /// The connection by which a host is asked has ended.
    pub(super) fn host_doubted(&self, number: usize) {
        if let Some(hosts) = &self.hosts {
            hosts.state.members[number].doubt();
        }
    }

    fn kill_backends(&mut self, pool: PoolId) {
        for backend in 0..self.backends.len() {
            let link = &mut self.backends[backend].1;
            if link.pool == pool && !link.closed {
                link.closed = true;
                self.up(End::Backend(backend), None);
            }
        }
    }

    /// A primary that was replaced is made a standby of its successor.
    pub(super) fn rejoin(&mut self, number: usize) {
        let Some(hosts) = &mut self.hosts else { return };
        let host = &mut hosts.hosts[number];
        (host.is_in_recovery, host.streams, host.is_doomed) = (true, true, false);
        (host.is_alive, host.starts) = (true, host.starts + 1);
        let pool = host.pool;
        self.kill_backends(pool);
    }

    pub(super) fn start_host(&mut self, number: usize) {
        let Some(hosts) = &mut self.hosts else { return };
        let host = &mut hosts.hosts[number];
        (host.is_alive, host.starts) = (true, host.starts + 1);
        if host.is_right {
            // Its standbys come back to it.
            let at = self.now + self.random.below(1000 * MS);
            self.at(at, Event::Stream);
        }
    }

    pub(super) fn stream(&mut self) {
        let Some(hosts) = &mut self.hosts else { return };
        for host in hosts.hosts.iter_mut().filter(|host| host.is_in_recovery) {
            host.streams = true;
        }
    }

    pub(super) fn promote(&mut self, old: usize, new: usize) {
        let Some(hosts) = &mut self.hosts else { return };
        if !hosts.hosts[new].is_alive || !hosts.hosts[new].is_in_recovery {
            return;
        }
        hosts.timeline += 1;
        hosts.hosts[old].is_right = false;
        let host = &mut hosts.hosts[new];
        (host.is_in_recovery, host.timeline) = (false, hosts.timeline);
        (host.is_right, host.streams) = (true, false);
    }

    /// Whether a server does what it must not for a client.
    pub(super) fn check_place(&self, backend: usize) -> Result<(), String> {
        let (hearer, link) = &self.backends[backend];
        let Some(hosts) = &self.hosts else { return Ok(()) };
        let Some(host) = hosts.hosts.iter().find(|host| host.pool == link.pool) else {
            return Ok(());
        };
        let Some(owner) = hearer.ran else { return Ok(()) };
        let is_late = |since: u64| self.now > since + CONSEQUENCES;
        if host.fenced_since.is_some_and(is_late) {
            let role = self.clients[owner as usize].0.role;
            return Err(format!(
                "c{owner} ({role:?}) is served by {:?}, which was replaced",
                host.pool
            ));
        }
        let wants = self.clients[owner as usize].0.role;
        if wants == ServerRole::Primary && (host.is_in_recovery || host.is_doomed) {
            return Err(format!("what c{owner} wants of the primary is done by {:?}", host.pool));
        }
        Ok(())
    }
}
