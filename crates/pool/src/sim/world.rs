//! [`World`]: workers with their cores, clients, servers, and a network that is slow and breaks,
//! all on one fake clock.

mod actors;
mod hosts;
mod mirror;
mod network;
mod orders;
pub(super) mod shards;
mod wire;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use self::{
    hosts::Hosts,
    mirror::{Fate, MirrorWorld},
    network::Link,
    shards::ShardWorld,
    wire::Wire,
};
use super::{backend::Backend, random::Random, script::SimClient};
use crate::{
    Check, ClientId, Core, Limit, MirrorReport, Mode, Peer, PoolId, PoolSpec, Reserve, Reset,
    ServerId, ServerRole, Statements, Time, Transfer, WorkerId, cluster::Seen, core::InjectedFault,
};

const MS: u64 = 1_000_000;
const AT_LOGIN: [(&str, &str); 2] = [("TimeZone", "UTC"), ("application_name", "")];
const EVENTS_MAX: u32 = 200_000;

/// What happens.
enum Event {
    Connect(usize),
    Step(usize),
    ToCore(End, Vec<u8>),
    Gone(End),
    ToClient(usize, Vec<u8>),
    ClientCut(usize),
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
    CancelOver(usize, ServerId),
    Drained(usize, Peer),
    Wanted(usize, PoolId, WorkerId),
    /// A client's channels are listened to.
    Listened(usize, ClientId),
    Adopt(usize, usize, Box<Transfer>),
    Tick,
    Ask(usize),
    Heard(usize, u32, Option<Seen>),
    Turned(usize),
    Fail,
    Start(usize),
    Stream,
    Promote {
        old: usize,
        new: usize,
    },
    Rejoin(usize),
    Hang(usize),
    Doubted(usize),
}

/// An end of a connection to the pooler.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum End {
    Client(usize),
    Backend(usize),
}

struct Worker {
    core: Core,
    wire: Wire,
    ends: HashMap<Peer, End>,
}

/// Everything, from one seed.
pub(super) struct World {
    random: Random,
    now: u64,
    serial: u64,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    events: BTreeMap<(u64, u64), Event>,
    workers: Vec<Worker>,
    clients: Vec<(SimClient, Link)>,
    backends: Vec<(Backend, Link)>,
    /// Of each pool with its reserve, and of all together at last.
    limits: Vec<Arc<Limit>>,
    reserves: Vec<Arc<Limit>>,
    /// Which server of a cluster has run a statement that is to be run once.
    echoes: HashMap<String, usize>,
    /// Client on whose behalf the core is being called.
    acting: Option<u32>,
    faults: bool,
    /// Tables change under prepared statements.
    outdates: bool,
    traced: bool,
    /// Several servers behind one database, in some worlds.
    hosts: Option<Hosts>,
    /// Several shards behind one database, in some worlds.
    shards: Option<ShardWorld>,
    /// Another cluster that gets the same, in some worlds.
    mirror: Option<MirrorWorld>,
}

impl World {
    pub(super) fn new(seed: u64, mutant: Option<InjectedFault>) -> Self {
        let mut random = Random::new(seed);
        let mut specs: Vec<_> = (0..1 + random.below(2)).map(|_| spec(&mut random)).collect();
        // Clients come to these; behind them are the members of the last, if it is a cluster.
        let homes = u32::try_from(specs.len()).unwrap();
        let mut own = Random::new(seed ^ 0x5eed << 40);
        let hosts = own.percent(40).then(|| Hosts::new(PoolId(homes - 1), &mut own));
        if let Some(hosts) = &hosts
            && let Some(last) = specs.pop()
        {
            specs.extend(hosts.specs(&last));
        }
        let mut sharding = Random::new(seed ^ 0x5a4d << 40);
        let shards = match hosts.is_none() && sharding.percent(40) {
            true => ShardWorld::new(&mut sharding, &mut specs),
            false => None,
        };
        let mirror = MirrorWorld::new(seed, &mut specs);
        let mut limits: Vec<_> =
            specs.iter().map(|spec| Arc::clone(&spec.server_limits[0])).collect();
        let all = Limit::new(1 + u32::try_from(random.below(3)).unwrap());
        limits.push(Arc::clone(&all));
        let mut size = || if random.percent(40) { 1 + random.below(2) } else { 0 };
        let reserves: Vec<_> =
            specs.iter().map(|_| Limit::new(u32::try_from(size()).unwrap())).collect();
        let statements: Arc<Statements> = Arc::default();
        let slow_percent = *random.pick(&[0, 5, 30]);
        let workers = (0..1 + random.below(2))
            .map(|number| {
                let number = u8::try_from(number).unwrap();
                let mut core = Core::sharing(WorkerId(number), Arc::clone(&statements));
                for ((pool, spec), reserve) in (0..).map(PoolId).zip(&specs).zip(&reserves) {
                    let mut spec = spec.clone();
                    if mirror.as_ref().is_some_and(|mirror| mirror.pool == pool) {
                        core.set_pool(pool, Arc::new(spec));
                        continue;
                    }
                    spec.reserve = (reserve.max() > 0).then(|| Reserve {
                        limits: [Arc::clone(reserve), Arc::clone(&all)].into(),
                        after: Duration::from_millis(30),
                    });
                    spec.server_limits =
                        [Arc::clone(&spec.server_limits[0]), Arc::clone(&all)].into();
                    core.set_pool(pool, Arc::new(spec));
                }
                core.mutant = mutant;
                let random = Random::new(seed ^ u64::from(number) << 32);
                let (orders, paused, slow) = (Vec::new(), HashSet::new(), HashSet::new());
                let wire = Wire { orders, paused, slow, random, slow_percent };
                Worker { core, wire, ends: HashMap::new() }
            })
            .collect();
        let faults = random.percent(60);
        let outdates = random.percent(30);
        let mut world = Self {
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
            echoes: HashMap::new(),
            acting: None,
            faults,
            outdates,
            traced: std::env::var_os("HOWDAH_POOL_SEED").is_some(),
            hosts,
            shards,
            mirror,
        };
        for number in 0..2 + world.random.below(4) {
            let number = u32::try_from(number).unwrap();
            let steps = 3 + u32::try_from(world.random.below(12)).unwrap();
            let zone = if world.random.percent(30) { "CET" } else { "UTC" };
            let settings = [("TimeZone", zone), ("application_name", "")];
            let pool = number % homes;
            let link = Link { pool: PoolId(pool), ..Link::default() };
            let mut client = SimClient::new(number, &settings, steps);
            if world.hosts.as_ref().is_some_and(|hosts| hosts.home == link.pool) {
                let mostly = [ServerRole::Primary, ServerRole::Primary, ServerRole::Primary];
                client.steps_left += u32::try_from(own.below(30)).unwrap();
                client.role = *own.pick(&[&ServerRole::ALL[..], &mostly].concat());
                client.reads = own.percent(60);
            }
            if let Some(shards) = world.shards.as_ref().filter(|it| it.home == link.pool) {
                client.steps_left += u32::try_from(sharding.below(20)).unwrap();
                client.role = ServerRole::Primary;
                client.shards = shards.count();
            }
            world.clients.push((client, link));
            let at = world.random.below(20 * MS);
            world.at(at, Event::Connect(number as usize));
        }
        world.at(0, Event::Tick);
        world.begin_hosts();
        world
    }

    fn at(&mut self, at: u64, event: Event) {
        self.serial += 1;
        self.queue.push(Reverse((at, self.serial)));
        self.events.insert((at, self.serial), event);
    }

    fn soon(&mut self, event: Event) {
        let delay = 1 + self.random.below(3 * MS);
        self.at(self.now + delay, event);
    }

    /// Runs until nothing more happens, or something happened that must not. Gives what was counted of its
    /// mirror, if it has one.
    pub(super) fn run(mut self) -> Result<Option<MirrorReport>, String> {
        for _ in 0..EVENTS_MAX {
            let Some(Reverse(key)) = self.queue.pop() else { break };
            self.now = key.0;
            let event = self.events.remove(&key).expect("it was queued");
            self.happen(event)?;
            self.check()?;
            self.check_silence()?;
            // What a host that hangs was sent it runs in the end, whoever has left meanwhile.
            let is_over = !self.hangs() && self.clients.iter().all(|(_, link)| link.closed);
            if self.now > 20_000 * MS || is_over {
                break;
            }
        }
        let mirrored = self.check_mirror()?;
        for (client, link) in &self.clients {
            if !link.closed && !client.dismissed && client.waits() {
                return Err(format!("{} for ever", client.owed()));
            }
            let ends_well = client.terminated || client.dismissed || client.gives_up;
            if !self.faults && (client.is_wronged || link.closed && !ends_well) {
                return Err(format!("c{} was sent away, and nothing has failed", client.number));
            }
        }
        Ok(mirrored)
    }

    /// With one seed, the whole dialogue.
    fn trace(&self, who: &dyn std::fmt::Display, bytes: &[u8]) {
        if self.traced && !bytes.is_empty() {
            println!("{:>12} {who} {}", self.now, bytes.escape_ascii());
        }
    }

    fn check(&mut self) -> Result<(), String> {
        for (backend, _) in &mut self.backends {
            if let Some(violation) = backend.violations.pop() {
                return Err(violation);
            }
        }
        let (all, pools) = self.limits.split_last().expect("one of all together");
        let open = |pool: Option<PoolId>| {
            let of = |link: &Link| {
                let counts = !self.is_mirror(link.pool);
                !link.closed && pool.map_or(counts, |pool| link.pool == pool)
            };
            self.backends.iter().filter(|(_, link)| of(link)).count()
        };
        let pools = (0..).map(|pool| Some(PoolId(pool))).zip(pools);
        let reserves = (0..).map(PoolId).zip(&self.reserves);
        let reserves = reserves.map(|(pool, it)| if self.is_mirror(pool) { 0 } else { it.max() });
        let pools = pools.zip(reserves);
        for ((pool, limit), reserve) in pools.chain([((None, all), 0)]) {
            let (open, max) = (open(pool), limit.max());
            if open > (max + reserve) as usize || limit.taken() > max {
                return Err(format!("{open} servers in {pool:?}, the limit is {max}"));
            }
        }
        Ok(())
    }

    /// Whether a server of a cluster runs what another has run: only reads may be asked twice.
    fn check_echoes(&mut self, backend: usize) -> Result<(), String> {
        let pool = self.backends[backend].1.pool;
        let is_of_cluster = self.hosts.as_mut().is_some_and(|hosts| hosts.host(pool).is_some());
        for token in std::mem::take(&mut self.backends[backend].0.echoed) {
            let first = *self.echoes.entry(token.clone()).or_insert(backend);
            if is_of_cluster && first != backend {
                return Err(format!("{token} is run by s{first} and by s{backend}"));
            }
        }
        Ok(())
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        match &event {
            Event::Kill(b) => self.trace(&format_args!("s{b} is killed"), b"."),
            Event::Gone(End::Backend(b)) => self.trace(&format_args!("s{b} is gone"), b"."),
            Event::Gone(End::Client(c)) => self.trace(&format_args!("c{c} is gone"), b"."),
            Event::Vanish(c) => self.trace(&format_args!("c{c} vanishes"), b"."),
            Event::LoggedIn(b, s) => self.trace(&format_args!("s{b} logged in: {s}"), b"."),
            Event::Promote { old, new } => self.trace(&format_args!("h{old} -> h{new}"), b"."),
            Event::Hang(host) => self.trace(&format_args!("h{host} hangs"), b"."),
            Event::Start(host) => self.trace(&format_args!("h{host} starts"), b"."),
            Event::Stream => self.trace(&"standbys stream", b"."),
            Event::Fail => self.trace(&"the primary fails", b"."),
            Event::Heard(host, _, Some(seen)) => {
                self.trace(&format_args!("h{host} is heard: {seen:?}"), b".");
            }
            Event::Adopt(w, b, _) => self.trace(&format_args!("s{b} adopted by {w}"), b"."),
            _ => {}
        }
        if let Event::ToBackend(backend, _)
        | Event::LoggedIn(backend, _)
        | Event::Wake(backend)
        | Event::Chatter(backend)
        | Event::CancelArrives { backend, .. } = &event
            && let Some(until) = self.hangs_until(*backend)
        {
            self.at(until, event);
            return Ok(());
        }
        match event {
            Event::Connect(client) => self.connect(client),
            Event::Step(client) => self.step(client),
            Event::ToCore(end, bytes) => self.arrives(end, bytes),
            Event::Gone(end) => self.gone(end),
            Event::ToClient(client, bytes) => {
                self.trace(&format_args!("c{client} hears"), &bytes);
                let (heard, link) = &mut self.clients[client];
                if !link.closed {
                    heard.hear(&bytes)?;
                    if heard.gives_up {
                        self.soon(Event::Vanish(client));
                    }
                }
            }
            Event::ClientCut(client) => self.clients[client].1.closed = true,
            Event::ToBackend(backend, bytes) => {
                let link = &self.backends[backend].1;
                if !link.closed && self.fate(link.pool) != Some(Fate::Hangs) {
                    self.trace(&format_args!("s{backend} hears"), &bytes);
                    self.backends[backend].0.feed(&bytes);
                    self.check_echoes(backend)?;
                    self.check_place(backend)?;
                    self.backend_says(backend);
                } else if self.hosts.is_some() {
                    // A server runs what it has been sent, though nobody waits for it any more.
                    let left = &mut self.backends[backend].0;
                    left.feed(&bytes);
                    left.output.clear();
                    left.violations.clear();
                    self.check_echoes(backend)?;
                }
            }
            Event::LoggedIn(backend, succeeded) => self.logged_in(backend, succeeded),
            Event::Wake(backend) => {
                self.backends[backend].0.wake();
                self.backend_says(backend);
            }
            Event::Chatter(backend) => {
                let notice = self.random.percent(50);
                let (hearer, link) = &mut self.backends[backend];
                if !link.closed && link.at.is_some() {
                    hearer.chatter(notice);
                    self.backend_says(backend);
                }
            }
            Event::Outdate(backend) => self.backends[backend].0.outdate(),
            Event::Kill(backend) => {
                let link = &mut self.backends[backend].1;
                if !link.closed {
                    link.closed = true;
                    self.up(End::Backend(backend), None);
                }
            }
            Event::Vanish(client) => {
                if !self.clients[client].1.closed {
                    self.clients[client].1.closed = true;
                    self.gone(End::Client(client));
                }
            }
            Event::Cancel(client) => self.cancel(client),
            Event::CancelArrives { backend, client, server } => {
                if !self.backends[backend].1.closed {
                    self.backends[backend].0.cancel(client);
                    self.backend_says(backend);
                }
                self.soon(Event::CancelOver(server.0, server.1));
            }
            Event::CancelOver(worker, server) => {
                self.call(worker, |core, now, io| core.cancel_finished(server, now, io));
            }
            Event::Drained(worker, peer) => {
                self.workers[worker].wire.slow.remove(&peer);
                self.call(worker, |core, now, io| core.drained(peer, now, io));
            }
            Event::Listened(worker, client) => {
                self.call(worker, |core, now, io| core.heard(client, Ok(()), now, io));
            }
            Event::Wanted(worker, pool, by) => {
                self.call(worker, |core, now, io| core.server_wanted(pool, by, now, io));
            }
            Event::Adopt(worker, backend, transfer) => {
                let (now, pool) = (Time(self.now), transfer.pool());
                let id = self.workers[worker].core.adopt_server(transfer, now).expect("a pool");
                self.attach(End::Backend(backend), worker, Peer::Server(id));
                if self.backends[backend].1.closed {
                    self.soon(Event::Gone(End::Backend(backend))); // It died on the way.
                }
                self.call(worker, |core, now, io| core.serve_waiting(pool, now, io));
            }
            Event::Ask(host) => self.ask_host(host),
            Event::Heard(host, doubts, seen) => self.host_heard(host, doubts, seen),
            Event::Turned(worker) => {
                self.call(worker, |core, now, io| core.clusters_turned(now, io));
            }
            Event::Fail => self.fail_host(),
            Event::Start(host) => self.start_host(host),
            Event::Stream => self.stream(),
            Event::Promote { old, new } => self.promote(old, new),
            Event::Rejoin(host) => self.rejoin(host),
            Event::Hang(host) => self.hang_host(host),
            Event::Doubted(host) => self.host_doubted(host),
            Event::Tick => {
                for worker in 0..self.workers.len() {
                    self.call(worker, |core, now, io| core.tick(now, io));
                }
                self.at(self.now + 50 * MS, Event::Tick);
            }
        }
        Ok(())
    }
}

/// A pool's behaviour.
fn spec(random: &mut Random) -> PoolSpec {
    let mut spec = PoolSpec::new(1 + u32::try_from(random.below(3)).unwrap());
    spec.mode = match random.below(100) {
        0..15 => Mode::Session,
        15..25 => Mode::Statement,
        _ => Mode::Transaction,
    };
    spec.statements_per_server = 1 + u32::try_from(random.below(3)).unwrap();
    spec.logins_max = 2;
    spec.round_robin = random.percent(30);
    spec.check =
        random.percent(30).then(|| Check { query: [].into(), idle: Duration::from_millis(20) });
    let always = random.percent(30);
    let reset = || Reset { query: (*b"DISCARD ALL").into(), always };
    spec.reset = random.percent(30).then(reset);
    spec.timeouts.query_wait = None;
    spec.timeouts.login_retry_max = Duration::from_millis(500);
    spec.timeouts.server_idle = Some(Duration::from_millis(400));
    spec.timeouts.server_lifetime = Some(Duration::from_secs(2));
    spec
}
