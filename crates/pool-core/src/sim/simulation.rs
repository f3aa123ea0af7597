//! [`Simulation`]: workers with their cores, clients, servers, and a slow and unreliable network,
//! all on one fake clock.

mod actors;
mod commands;
mod hosts;
mod io;
mod mirror;
mod network;
mod setup;
pub(super) mod shards;
mod takeover;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap},
};

use self::{
    hosts::{HostId, SimCluster},
    io::SimIo,
    mirror::{MirrorBehavior, SimMirror},
    network::SimLink,
    setup::SimProcess,
    shards::SimShards,
};
use super::{
    SimulationReport,
    backend::SimBackend,
    coverage::{Coverage, Situation},
    faults::{self, InjectedFault},
    random::SimRandom,
    script::SimClient,
};
use crate::{
    ClientHandover, ClientId, Core, CoreEvent, PeerId, PoolId, PoolSpec, PoolingMode, ServerId,
    Time, Transfer, WorkerId, cluster::HealthReport,
};

const MS: u64 = 1_000_000;
const AT_LOGIN: [(&str, &str); 4] = [
    ("TimeZone", "UTC"),
    ("application_name", ""),
    ("DateStyle", "ISO"),
    ("standard_conforming_strings", "on"),
];
const EVENTS_MAX: u32 = 200_000;

/// An event that is scheduled for a time of the fake clock.
enum SimEvent {
    Connect(usize),
    Step(usize),
    ToCore(SimPeer, Vec<u8>),
    Closed(SimPeer),
    ToClient(usize, Vec<u8>),
    ClientClosed(usize),
    /// Bytes that have arrived earlier may be read now.
    ReadInbox(SimPeer),
    ToBackend(usize, Vec<u8>),
    LoggedIn(usize, bool),
    Wake(usize),
    Chatter(usize),
    Outdate(usize),
    Kill(usize),
    Vanish(usize),
    Cancel(usize),
    CancelArrives {
        backend: usize,
        client: Option<u32>,
        server: (usize, ServerId),
    },
    CancelFinished(usize, ServerId),
    Drained(usize, PeerId),
    ServerRequested(usize, PoolId, WorkerId),
    IdleServersRequested(usize, PoolId, WorkerId, u32),
    IdleServersConfirmed(usize, PoolId),
    /// The dedicated connection listens to a client's channels.
    Listened(usize, ClientId),
    Adopt(usize, usize, Box<Transfer>),
    /// A new process takes the clients over.
    TakeOver,
    HandOverClients(usize),
    AdoptClient(usize, PoolId, Box<ClientHandover>),
    Tick,
    CheckHost(HostId),
    CheckResult(HostId, u32, Option<HealthReport>),
    ClustersChanged(usize),
    FailPrimary(usize),
    StartHost(HostId),
    StartStreaming(usize),
    Promote {
        cluster: usize,
        old: usize,
        new: usize,
    },
    Rejoin(HostId),
    Hang(HostId),
    Suspect(HostId),
}

/// The client or server at the other end of one of the pooler's connections.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum SimPeer {
    Client(usize),
    Backend(usize),
}

struct SimWorker {
    /// The index of the worker's process.
    process: usize,
    id: WorkerId,
    core: Core,
    io: SimIo,
    peers: HashMap<PeerId, SimPeer>,
}

/// A simulation: workers, clients, servers, and the queue of scheduled events.
pub(super) struct Simulation {
    seed: u64,
    random: SimRandom,
    now: u64,
    serial: u64,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    events: BTreeMap<(u64, u64), SimEvent>,
    workers: Vec<SimWorker>,
    clients: Vec<(SimClient, SimLink)>,
    backends: Vec<(SimBackend, SimLink)>,
    /// The settings of all pools, from which each process makes its own.
    specs: Vec<PoolSpec>,
    processes: Vec<SimProcess>,
    /// For each statement that may run only once, by token, the first server that ran it.
    executed_once: HashMap<String, usize>,
    /// The client on whose behalf the core is being called.
    current_client: Option<u32>,
    has_faults: bool,
    /// The probability that a send does not empty its buffer, in percent.
    backlog_percent: u64,
    /// The planted bug, in a simulation that must fail.
    fault: Option<InjectedFault>,
    /// Whether a pool's clients log in as several users and share the servers of one.
    has_forced_users: bool,
    /// Whether tables change under prepared statements.
    has_schema_changes: bool,
    is_traced: bool,
    /// The cluster that serves the last database, or one for each of its shards, in some
    /// simulations.
    clusters: Vec<SimCluster>,
    /// The shards of the last database, in some simulations.
    shards: Option<SimShards>,
    /// The mirror of the first pool, in some simulations.
    mirror: Option<SimMirror>,
    /// The rows that COPYs to several shards have committed, and how often.
    copied_rows: HashMap<String, u32>,
    coverage: Coverage,
}

impl Simulation {
    fn schedule(&mut self, at: u64, event: SimEvent) {
        self.serial += 1;
        self.queue.push(Reverse((at, self.serial)));
        self.events.insert((at, self.serial), event);
    }

    fn schedule_soon(&mut self, event: SimEvent) {
        let delay = 1 + self.random.below(3 * MS);
        self.schedule(self.now + delay, event);
    }

    /// Runs until all clients are closed, no event is left, the maximum number of events or time is
    /// reached, or a guarantee is violated. Returns what it has reached.
    pub(super) fn run(mut self) -> Result<SimulationReport, String> {
        for _ in 0..EVENTS_MAX {
            let Some(Reverse(key)) = self.queue.pop() else { break };
            self.now = key.0;
            let event = self.events.remove(&key).expect("every key has an event");
            self.step(event)?;
            self.check()?;
            self.check_unresponsive()?;
            // A hanging host eventually runs what it was sent, even if the client is gone.
            let is_over =
                !self.is_any_host_hanging() && self.clients.iter().all(|(_, link)| link.is_closed);
            if self.now > 20_000 * MS || is_over {
                break;
            }
        }
        let mirror = self.check_mirror()?;
        self.check_copies()?;
        for (client, link) in &self.clients {
            if !link.is_closed && !client.is_disconnected && client.is_awaiting_reply() {
                return Err(format!("{} forever", client.describe_expected()));
            }
            let ends_well = client.is_terminated || client.is_disconnected || client.is_giving_up;
            if !self.has_faults
                && (client.is_disconnected_without_cause || link.is_closed && !ends_well)
            {
                return Err(format!("c{} was disconnected without a failure", client.number));
            }
        }
        Ok(SimulationReport { mirror, coverage: self.coverage })
    }

    /// Prints a part of the dialogue, if a single seed is run.
    fn trace(&self, who: &dyn std::fmt::Display, bytes: &[u8]) {
        if self.is_traced && !bytes.is_empty() {
            println!("{:>12} {who} {}", self.now, bytes.escape_ascii());
        }
    }

    fn check(&mut self) -> Result<(), String> {
        for (backend, _) in &mut self.backends {
            if let Some(violation) = backend.violations.pop() {
                return Err(violation);
            }
        }
        for process in 0..self.processes.len() {
            self.check_limits(process)?;
        }
        self.check_pins()
    }

    /// Checks that in adaptive mode no client at rest has a server whose session has no state.
    fn check_pins(&self) -> Result<(), String> {
        for (number, (backend, link)) in self.backends.iter().enumerate() {
            let Some((worker, PeerId::Server(id))) = link.worker else { continue };
            let is_adaptive = self.specs[link.pool.index()].mode == PoolingMode::Adaptive;
            let is_pinned = || faults::is_linked_at_rest(&self.workers[worker].core, id);
            if is_adaptive && !link.is_closed && !backend.has_lasting_state() && is_pinned() {
                return Err(format!("s{number} is linked to a client without state"));
            }
        }
        Ok(())
    }

    /// Checks that a process has no more servers than its limits allow.
    fn check_limits(&self, number: usize) -> Result<(), String> {
        let process = &self.processes[number];
        let mut open = vec![0; process.limits.len()];
        let mut open_in_all = 0;
        for (_, link) in self.backends.iter().filter(|(_, link)| link.process == number) {
            open[link.pool.index()] += u32::from(!link.is_closed);
            open_in_all += u32::from(!link.is_closed && !self.is_mirror(link.pool));
        }
        for (pool, limit) in (0..).map(PoolId).zip(&process.limits) {
            let reserve = &process.reserves[pool.index()];
            let reserve = if self.is_mirror(pool) { 0 } else { reserve.max() };
            let (open, max) = (open[pool.index()], limit.max());
            if open > max + reserve || limit.in_use() > max {
                return Err(format!("{open} servers in {pool:?}, the limit is {max}"));
            }
        }
        let max = process.all.max();
        if open_in_all > max || process.all.in_use() > max {
            return Err(format!("{open_in_all} servers in all pools, the limit is {max}"));
        }
        Ok(())
    }

    /// Checks that no statement is run by two servers of a cluster; only reads may be repeated.
    fn check_executed_once(&mut self, backend: usize) -> Result<(), String> {
        let pool = self.backends[backend].1.pool;
        let is_of_cluster = self.host_of(pool).is_some();
        for token in std::mem::take(&mut self.backends[backend].0.executed_once) {
            let first = *self.executed_once.entry(token.clone()).or_insert(backend);
            if is_of_cluster && first != backend {
                return Err(format!("{token} is run by s{first} and by s{backend}"));
            }
        }
        Ok(())
    }

    /// Records the situations that a server has reached, and the rows that it has committed.
    fn take_progress(&mut self, backend: usize) {
        let backend = &mut self.backends[backend].0;
        for situation in std::mem::take(&mut backend.situations) {
            self.coverage.record(situation);
        }
        for row in std::mem::take(&mut backend.committed_rows) {
            *self.copied_rows.entry(row).or_default() += 1;
        }
    }

    /// Checks that each COPY to several shards has committed all its rows once, or, if it has
    /// failed, none. A shard that is lost during the commits may break the latter.
    fn check_copies(&self) -> Result<(), String> {
        for copy in self.clients.iter().flat_map(|(client, _)| &client.copies) {
            for row in &copy.rows {
                let count = self.copied_rows.get(row).copied().unwrap_or_default();
                match copy.has_succeeded {
                    Some(true) if count != 1 => {
                        return Err(format!("the COPY of {row:?} has committed it {count} times"));
                    }
                    Some(false) if count > 0 && !self.has_faults => {
                        return Err(format!("the COPY of {row:?} has failed, but committed it"));
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn step(&mut self, event: SimEvent) -> Result<(), String> {
        match &event {
            SimEvent::Kill(b) => self.trace(&format_args!("s{b} is killed"), b"."),
            SimEvent::Closed(SimPeer::Backend(b)) => {
                self.trace(&format_args!("s{b} is gone"), b".");
            }
            SimEvent::Closed(SimPeer::Client(c)) => self.trace(&format_args!("c{c} is gone"), b"."),
            SimEvent::Vanish(c) => self.trace(&format_args!("c{c} vanishes"), b"."),
            SimEvent::LoggedIn(b, s) => self.trace(&format_args!("s{b} logged in: {s}"), b"."),
            SimEvent::Promote { old, new, .. } => {
                self.trace(&format_args!("h{old} -> h{new}"), b".");
            }
            SimEvent::Hang(host) => self.trace(&format_args!("{host:?} hangs"), b"."),
            SimEvent::StartHost(host) => self.trace(&format_args!("{host:?} starts"), b"."),
            SimEvent::StartStreaming(_) => self.trace(&"standbys stream", b"."),
            SimEvent::FailPrimary(_) => self.trace(&"the primary fails", b"."),
            SimEvent::CheckResult(host, _, Some(report)) => {
                self.trace(&format_args!("{host:?} reports {report:?}"), b".");
            }
            SimEvent::Adopt(w, b, _) => self.trace(&format_args!("s{b} adopted by {w}"), b"."),
            _ => {}
        }
        if let SimEvent::ToBackend(backend, _)
        | SimEvent::LoggedIn(backend, _)
        | SimEvent::Wake(backend)
        | SimEvent::Chatter(backend)
        | SimEvent::CancelArrives { backend, .. } = &event
            && let Some(until) = self.hangs_until(*backend)
        {
            self.schedule(until, event);
            return Ok(());
        }
        match event {
            SimEvent::Connect(client) => self.connect(client),
            SimEvent::Step(client) => self.client_step(client),
            SimEvent::ToCore(end, bytes) => self.deliver_to_core(end, bytes),
            SimEvent::Closed(end) => self.close(end),
            SimEvent::ToClient(client, bytes) => {
                self.trace(&format_args!("c{client} hears"), &bytes);
                let (script_client, link) = &mut self.clients[client];
                if !link.is_closed {
                    script_client.receive(&bytes)?;
                    if script_client.is_giving_up {
                        self.schedule_soon(SimEvent::Vanish(client));
                    }
                }
            }
            SimEvent::ClientClosed(client) => self.clients[client].1.is_closed = true,
            SimEvent::ReadInbox(end) => self.read_inbox(end),
            SimEvent::ToBackend(backend, bytes) => {
                let link = &self.backends[backend].1;
                if !link.is_closed && self.mirror_behavior(link.pool) != Some(MirrorBehavior::Hangs)
                {
                    self.trace(&format_args!("s{backend} hears"), &bytes);
                    self.backends[backend].0.feed(&bytes);
                    self.check_executed_once(backend)?;
                    self.check_role(backend)?;
                    self.take_progress(backend);
                    self.forward_output(backend);
                } else if !self.clusters.is_empty() {
                    // A server runs what it was sent even if no client waits for it.
                    let left = &mut self.backends[backend].0;
                    left.feed(&bytes);
                    left.output.clear();
                    left.violations.clear();
                    self.check_executed_once(backend)?;
                    self.take_progress(backend);
                }
            }
            SimEvent::LoggedIn(backend, succeeded) => self.logged_in(backend, succeeded),
            SimEvent::Wake(backend) => {
                self.backends[backend].0.wake();
                self.forward_output(backend);
            }
            SimEvent::Chatter(backend) => {
                let notice = self.random.percent(50);
                let (sim_backend, link) = &mut self.backends[backend];
                if !link.is_closed && link.worker.is_some() {
                    sim_backend.send_unrequested(notice);
                    self.forward_output(backend);
                }
            }
            SimEvent::Outdate(backend) => self.backends[backend].0.outdate_statements(),
            SimEvent::Kill(backend) => {
                let link = &mut self.backends[backend].1;
                if !link.is_closed {
                    link.is_closed = true;
                    self.send_to_pooler(SimPeer::Backend(backend), None);
                }
            }
            SimEvent::Vanish(client) => {
                if !self.clients[client].1.is_closed {
                    self.clients[client].1.is_closed = true;
                    self.close(SimPeer::Client(client));
                }
            }
            SimEvent::Cancel(client) => self.cancel(client),
            SimEvent::CancelArrives { backend, client, server } => {
                if !self.backends[backend].1.is_closed {
                    self.backends[backend].0.cancel(client);
                    self.forward_output(backend);
                }
                self.schedule_soon(SimEvent::CancelFinished(server.0, server.1));
            }
            SimEvent::CancelFinished(worker, server) => {
                self.call(worker, |core, now, io| {
                    core.handle(CoreEvent::CancelFinished(server), now, io);
                });
            }
            SimEvent::Drained(worker, peer) => {
                self.workers[worker].io.backlogged.remove(&peer);
                self.call(worker, |core, now, io| core.handle(CoreEvent::Drained(peer), now, io));
            }
            SimEvent::Listened(worker, client) => {
                self.call(worker, |core, now, io| {
                    core.handle(CoreEvent::ListenFinished(client, Ok(())), now, io);
                });
            }
            SimEvent::ServerRequested(worker, pool, by) => {
                self.call(worker, |core, now, io| {
                    core.handle(CoreEvent::ServerRequested(pool, by), now, io);
                });
            }
            SimEvent::IdleServersRequested(worker, pool, by, servers_max) => {
                self.call(worker, |core, now, io| {
                    let event = CoreEvent::IdleServersRequested { pool, by, servers_max };
                    core.handle(event, now, io);
                });
            }
            SimEvent::IdleServersConfirmed(worker, pool) => {
                self.call(worker, |core, now, io| {
                    core.handle(CoreEvent::IdleServersConfirmed(pool), now, io);
                });
            }
            SimEvent::Adopt(worker, backend, transfer) => {
                let (now, pool) = (Time(self.now), transfer.pool());
                let id =
                    self.workers[worker].core.adopt_server(transfer, now).expect("the pool exists");
                self.attach(SimPeer::Backend(backend), worker, PeerId::Server(id));
                if self.backends[backend].1.is_closed {
                    // The connection was closed during the handover.
                    self.schedule_soon(SimEvent::Closed(SimPeer::Backend(backend)));
                }
                self.call(worker, |core, now, io| {
                    core.handle(CoreEvent::ServersAvailable(pool), now, io);
                });
            }
            SimEvent::TakeOver => self.take_over(),
            SimEvent::HandOverClients(process) => self.hand_over_clients(process),
            SimEvent::AdoptClient(client, pool, handover) => {
                self.adopt_client(client, pool, *handover)?;
            }
            SimEvent::CheckHost(host) => self.check_host(host),
            SimEvent::CheckResult(host, suspicions, report) => {
                self.apply_check_result(host, suspicions, report);
            }
            SimEvent::ClustersChanged(worker) => {
                if !faults::hides_cluster_changes(self.fault, &mut self.workers[worker].core) {
                    self.call(worker, |core, now, io| {
                        core.handle(CoreEvent::ClusterStateChanged, now, io);
                    });
                }
            }
            SimEvent::FailPrimary(cluster) => self.fail_primary(cluster),
            SimEvent::StartHost(host) => self.start_host(host),
            SimEvent::StartStreaming(cluster) => self.start_streaming(cluster),
            SimEvent::Promote { cluster, old, new } => self.promote(cluster, old, new),
            SimEvent::Rejoin(host) => self.rejoin(host),
            SimEvent::Hang(host) => self.hang_host(host),
            SimEvent::Suspect(host) => self.suspect_host(host),
            SimEvent::Tick => {
                for worker in 0..self.workers.len() {
                    self.call(worker, |core, now, io| core.tick(now, io));
                }
                self.check_users()?;
                self.schedule(self.now + 50 * MS, SimEvent::Tick);
            }
        }
        Ok(())
    }
}
