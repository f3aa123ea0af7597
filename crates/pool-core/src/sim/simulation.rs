//! [`Simulation`]: workers with their cores, clients, servers, and a slow and unreliable network,
//! all on one fake clock.

mod actors;
mod commands;
mod hosts;
mod io;
mod mirror;
mod network;
pub(super) mod shards;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use self::{
    hosts::SimCluster,
    io::SimIo,
    mirror::{MirrorBehavior, SimMirror},
    network::SimLink,
    shards::SimShards,
};
use super::{
    backend::SimBackend,
    faults::{self, InjectedFault},
    random::SimRandom,
    script::SimClient,
};
use crate::{
    CheckQuery, ClientId, ConnectionLimit, Core, MirrorReport, PeerId, PoolId, PoolSpec,
    PoolingMode, ReservePool, ResetQuery, ServerId, StatementRegistry, TargetRole, Time, Transfer,
    WorkerId, cluster::HealthReport,
};

const MS: u64 = 1_000_000;
const AT_LOGIN: [(&str, &str); 2] = [("TimeZone", "UTC"), ("application_name", "")];
const EVENTS_MAX: u32 = 200_000;

/// An event that is scheduled for a time of the fake clock.
enum SimEvent {
    Connect(usize),
    Step(usize),
    ToCore(SimPeer, Vec<u8>),
    Closed(SimPeer),
    ToClient(usize, Vec<u8>),
    ClientClosed(usize),
    /// A planted bug stops delaying a client's input, unless it must be delayed further.
    Unblock(SimPeer),
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
    /// The dedicated connection listens to a client's channels.
    Listened(usize, ClientId),
    Adopt(usize, usize, Box<Transfer>),
    Tick,
    CheckHost(usize),
    CheckResult(usize, u32, Option<HealthReport>),
    ClustersChanged(usize),
    FailPrimary,
    StartHost(usize),
    StartStreaming,
    Promote {
        old: usize,
        new: usize,
    },
    Rejoin(usize),
    Hang(usize),
    Suspect(usize),
}

/// The client or server at the other end of one of the pooler's connections.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum SimPeer {
    Client(usize),
    Backend(usize),
}

struct SimWorker {
    core: Core,
    io: SimIo,
    peers: HashMap<PeerId, SimPeer>,
}

/// A simulation: workers, clients, servers, and the queue of scheduled events.
pub(super) struct Simulation {
    random: SimRandom,
    now: u64,
    serial: u64,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    events: BTreeMap<(u64, u64), SimEvent>,
    workers: Vec<SimWorker>,
    clients: Vec<(SimClient, SimLink)>,
    backends: Vec<(SimBackend, SimLink)>,
    /// The connection limit of each pool, and last the limit of all pools together.
    limits: Vec<Arc<ConnectionLimit>>,
    reserves: Vec<Arc<ConnectionLimit>>,
    /// For each statement that may run only once, by token, the first server that ran it.
    executed_once: HashMap<String, usize>,
    /// The client on whose behalf the core is being called.
    current_client: Option<u32>,
    has_faults: bool,
    /// The planted bug, in a simulation that must fail.
    fault: Option<InjectedFault>,
    /// Whether tables change under prepared statements.
    has_schema_changes: bool,
    is_traced: bool,
    /// The cluster whose members serve the last database, in some simulations.
    cluster: Option<SimCluster>,
    /// The shards of the last database, in some simulations.
    shards: Option<SimShards>,
    /// The mirror of the first pool, in some simulations.
    mirror: Option<SimMirror>,
}

impl Simulation {
    pub(super) fn new(seed: u64, fault: Option<InjectedFault>) -> Self {
        let mut random = SimRandom::new(seed);
        let mut specs: Vec<_> =
            (0..1 + random.below(2)).map(|_| random_spec(&mut random)).collect();
        // Clients connect to these pools. If the last one is a cluster, the pools of its members
        // follow.
        let owner_pools = u32::try_from(specs.len()).unwrap();
        let mut own = SimRandom::new(seed ^ 0x5eed << 40);
        let hosts = own.percent(40).then(|| SimCluster::new(PoolId(owner_pools - 1), &mut own));
        if let Some(hosts) = &hosts
            && let Some(last) = specs.pop()
        {
            specs.extend(hosts.specs(&last));
        }
        let mut sharding = SimRandom::new(seed ^ 0x5a4d << 40);
        let shards = if hosts.is_none() && sharding.percent(40) {
            SimShards::new(&mut sharding, &mut specs)
        } else {
            None
        };
        let mirror = SimMirror::new(seed, &mut specs);
        let mut limits: Vec<_> =
            specs.iter().map(|spec| Arc::clone(&spec.server_limits[0])).collect();
        let all = ConnectionLimit::new(1 + u32::try_from(random.below(3)).unwrap());
        limits.push(Arc::clone(&all));
        let mut size = || if random.percent(40) { 1 + random.below(2) } else { 0 };
        let reserves: Vec<_> =
            specs.iter().map(|_| ConnectionLimit::new(u32::try_from(size()).unwrap())).collect();
        let statements: Arc<StatementRegistry> = Arc::default();
        let backlog_percent = *random.pick(&[0, 5, 30]);
        let workers = (0..1 + random.below(2))
            .map(|number| {
                let number = u8::try_from(number).unwrap();
                let mut core = Core::with_statements(WorkerId(number), Arc::clone(&statements));
                for ((pool, spec), reserve) in (0..).map(PoolId).zip(&specs).zip(&reserves) {
                    let mut spec = spec.clone();
                    if mirror.as_ref().is_some_and(|mirror| mirror.pool == pool) {
                        core.set_pool(pool, Arc::new(spec));
                        continue;
                    }
                    spec.reserve = (reserve.max() > 0).then(|| ReservePool {
                        limits: [Arc::clone(reserve), Arc::clone(&all)].into(),
                        after: Duration::from_millis(30),
                    });
                    spec.server_limits =
                        [Arc::clone(&spec.server_limits[0]), Arc::clone(&all)].into();
                    faults::alter_spec(fault, &mut spec);
                    core.set_pool(pool, Arc::new(spec));
                }
                let random = SimRandom::new(seed ^ u64::from(number) << 32);
                let (commands, paused, slow) = (Vec::new(), HashSet::new(), HashSet::new());
                let io = SimIo { commands, paused, backlogged: slow, random, backlog_percent };
                SimWorker { core, io, peers: HashMap::new() }
            })
            .collect();
        let has_faults = random.percent(60);
        let has_schema_changes = random.percent(30);
        let mut simulation = Self {
            random,
            now: 0,
            serial: 0,
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            workers,
            clients: Vec::new(),
            backends: Vec::new(),
            limits,
            reserves,
            executed_once: HashMap::new(),
            current_client: None,
            has_faults,
            fault,
            has_schema_changes,
            is_traced: std::env::var_os("HOWDAH_POOL_SEED").is_some(),
            cluster: hosts,
            shards,
            mirror,
        };
        for number in 0..2 + simulation.random.below(4) {
            let number = u32::try_from(number).unwrap();
            let steps = 3 + u32::try_from(simulation.random.below(12)).unwrap();
            let zone = if simulation.random.percent(30) { "CET" } else { "UTC" };
            let settings = [("TimeZone", zone), ("application_name", "")];
            let pool = number % owner_pools;
            let link = SimLink { pool: PoolId(pool), ..SimLink::default() };
            let mut client = SimClient::new(number, &settings, steps);
            if simulation.cluster.as_ref().is_some_and(|hosts| hosts.owner_pool == link.pool) {
                let mostly = [TargetRole::Primary, TargetRole::Primary, TargetRole::Primary];
                client.steps_left += u32::try_from(own.below(30)).unwrap();
                client.role = *own.pick(&[&TargetRole::ALL[..], &mostly].concat());
                client.is_mostly_reading = own.percent(60);
            }
            if let Some(shards) = simulation.shards.as_ref().filter(|it| it.owner_pool == link.pool)
            {
                client.steps_left += u32::try_from(sharding.below(20)).unwrap();
                client.role = TargetRole::Primary;
                client.shards = shards.count();
            }
            simulation.clients.push((client, link));
            let at = simulation.random.below(20 * MS);
            simulation.schedule(at, SimEvent::Connect(number as usize));
        }
        simulation.schedule(0, SimEvent::Tick);
        simulation.schedule_hosts();
        simulation
    }

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
    /// reached, or a guarantee is violated. Returns the counters of the mirror, if there is one.
    pub(super) fn run(mut self) -> Result<Option<MirrorReport>, String> {
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
        let mirrored = self.check_mirror()?;
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
        Ok(mirrored)
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
        let (all, pools) = self.limits.split_last().expect("the total limit");
        let open = |pool: Option<PoolId>| {
            let of = |link: &SimLink| {
                let counts = !self.is_mirror(link.pool);
                !link.is_closed && pool.map_or(counts, |pool| link.pool == pool)
            };
            self.backends.iter().filter(|(_, link)| of(link)).count()
        };
        let pools = (0..).map(|pool| Some(PoolId(pool))).zip(pools);
        let reserves = (0..).map(PoolId).zip(&self.reserves);
        let reserves = reserves.map(|(pool, it)| if self.is_mirror(pool) { 0 } else { it.max() });
        let pools = pools.zip(reserves);
        for ((pool, limit), reserve) in pools.chain([((None, all), 0)]) {
            let (open, max) = (open(pool), limit.max());
            if open > (max + reserve) as usize || limit.in_use() > max {
                return Err(format!("{open} servers in {pool:?}, the limit is {max}"));
            }
        }
        Ok(())
    }

    /// Checks that no statement is run by two servers of a cluster; only reads may be repeated.
    fn check_executed_once(&mut self, backend: usize) -> Result<(), String> {
        let pool = self.backends[backend].1.pool;
        let is_of_cluster = self.cluster.as_mut().is_some_and(|hosts| hosts.host(pool).is_some());
        for token in std::mem::take(&mut self.backends[backend].0.executed_once) {
            let first = *self.executed_once.entry(token.clone()).or_insert(backend);
            if is_of_cluster && first != backend {
                return Err(format!("{token} is run by s{first} and by s{backend}"));
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
            SimEvent::Promote { old, new } => self.trace(&format_args!("h{old} -> h{new}"), b"."),
            SimEvent::Hang(host) => self.trace(&format_args!("h{host} hangs"), b"."),
            SimEvent::StartHost(host) => self.trace(&format_args!("h{host} starts"), b"."),
            SimEvent::StartStreaming => self.trace(&"standbys stream", b"."),
            SimEvent::FailPrimary => self.trace(&"the primary fails", b"."),
            SimEvent::CheckResult(host, _, Some(report)) => {
                self.trace(&format_args!("h{host} is heard: {report:?}"), b".");
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
            SimEvent::Unblock(end) => {
                let delayed = std::mem::take(&mut self.link(end).inbox);
                for bytes in delayed {
                    self.schedule(self.now, SimEvent::ToCore(end, bytes));
                }
            }
            SimEvent::ToBackend(backend, bytes) => {
                let link = &self.backends[backend].1;
                if !link.is_closed && self.mirror_behavior(link.pool) != Some(MirrorBehavior::Hangs)
                {
                    self.trace(&format_args!("s{backend} hears"), &bytes);
                    self.backends[backend].0.feed(&bytes);
                    self.check_executed_once(backend)?;
                    self.check_role(backend)?;
                    self.forward_output(backend);
                } else if self.cluster.is_some() {
                    // A server runs what it was sent even if no client waits for it.
                    let left = &mut self.backends[backend].0;
                    left.feed(&bytes);
                    left.output.clear();
                    left.violations.clear();
                    self.check_executed_once(backend)?;
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
                self.call(worker, |core, now, io| core.cancel_finished(server, now, io));
            }
            SimEvent::Drained(worker, peer) => {
                self.workers[worker].io.backlogged.remove(&peer);
                self.call(worker, |core, now, io| core.drained(peer, now, io));
            }
            SimEvent::Listened(worker, client) => {
                self.call(worker, |core, now, io| core.listen_finished(client, Ok(()), now, io));
            }
            SimEvent::ServerRequested(worker, pool, by) => {
                self.call(worker, |core, now, io| core.server_requested(pool, by, now, io));
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
                self.call(worker, |core, now, io| core.serve_waiting(pool, now, io));
            }
            SimEvent::CheckHost(host) => self.check_host(host),
            SimEvent::CheckResult(host, suspicions, report) => {
                self.apply_check_result(host, suspicions, report);
            }
            SimEvent::ClustersChanged(worker) => {
                if !faults::hides_cluster_changes(self.fault, &mut self.workers[worker].core) {
                    self.call(worker, |core, now, io| core.cluster_state_changed(now, io));
                }
            }
            SimEvent::FailPrimary => self.fail_primary(),
            SimEvent::StartHost(host) => self.start_host(host),
            SimEvent::StartStreaming => self.start_streaming(),
            SimEvent::Promote { old, new } => self.promote(old, new),
            SimEvent::Rejoin(host) => self.rejoin(host),
            SimEvent::Hang(host) => self.hang_host(host),
            SimEvent::Suspect(host) => self.suspect_host(host),
            SimEvent::Tick => {
                for worker in 0..self.workers.len() {
                    self.call(worker, |core, now, io| core.tick(now, io));
                }
                self.schedule(self.now + 50 * MS, SimEvent::Tick);
            }
        }
        Ok(())
    }
}

/// Returns a pool with random settings.
fn random_spec(random: &mut SimRandom) -> PoolSpec {
    let mut spec = PoolSpec::new(1 + u32::try_from(random.below(3)).unwrap());
    spec.mode = match random.below(100) {
        0..15 => PoolingMode::Session,
        15..25 => PoolingMode::Statement,
        _ => PoolingMode::Transaction,
    };
    spec.statements_per_server = 1 + u32::try_from(random.below(3)).unwrap();
    spec.logins_max = 2;
    spec.is_round_robin = random.percent(30);
    spec.check = random
        .percent(30)
        .then(|| CheckQuery { query: [].into(), idle: Duration::from_millis(20) });
    let always = random.percent(30);
    let reset = || ResetQuery { query: (*b"DISCARD ALL").into(), is_always: always };
    spec.reset = random.percent(30).then(reset);
    spec.timeouts.query_wait = None;
    spec.timeouts.login_retry_max = Duration::from_millis(500);
    spec.timeouts.server_idle = Some(Duration::from_millis(400));
    spec.timeouts.server_lifetime = Some(Duration::from_secs(2));
    spec
}
