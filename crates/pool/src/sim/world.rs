//! [`World`]: workers with their cores, clients, servers, and a network that is slow and breaks,
//! all on one fake clock.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap, HashSet, VecDeque},
    io::IoSlice,
    sync::Arc,
    time::Duration,
};

use howdah_wire::startup::{CancelKey, ProtocolVersion};

use super::{backend::Backend, random::Random, script::SimClient};
use crate::{
    Backlog, CancelSecret, ClientLogin, Core, Io, Limit, Mode, Peer, PoolId, PoolSpec,
    ServerFailure, ServerId, ServerLogin, Setting, Statements, Time, Transfer, WorkerId,
    core::Mutant,
};

const POOL: PoolId = PoolId(0);
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
    Kill(usize),
    Vanish(usize),
    Cancel(usize),
    CancelArrives { backend: usize, client: u32, server: (usize, ServerId) },
    CancelOver(usize, ServerId),
    Drained(usize, Peer),
    Wanted(usize, WorkerId),
    Adopt(usize, usize, Box<Transfer>),
    Tick,
}

/// An end of a connection to the pooler.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum End {
    Client(usize),
    Backend(usize),
}

/// What a core ordered, to be done when its call has returned.
enum Order {
    Send(Peer, Vec<u8>),
    Resume(Peer),
    Close(Peer),
    Open(ServerId),
    Cancel(ServerId),
    Want,
    HandOver(ServerId, WorkerId, Box<Transfer>),
    Drain(Peer),
}

/// A worker's sockets.
struct Wire {
    orders: Vec<Order>,
    paused: HashSet<Peer>,
    slow: HashSet<Peer>,
    random: Random,
    slow_percent: u64,
}

impl Io for Wire {
    fn send(&mut self, to: Peer, slices: &[IoSlice<'_>]) -> Backlog {
        let bytes = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
        self.orders.push(Order::Send(to, bytes));
        if self.slow.contains(&to) {
            return Backlog::Waiting;
        }
        if self.random.percent(self.slow_percent) {
            self.slow.insert(to);
            self.orders.push(Order::Drain(to));
            return Backlog::Waiting;
        }
        Backlog::Empty
    }

    fn pause(&mut self, peer: Peer) {
        assert!(self.paused.insert(peer), "{peer:?} is paused twice");
    }

    fn resume(&mut self, peer: Peer) {
        assert!(self.paused.remove(&peer), "{peer:?} is resumed and was not paused");
        self.orders.push(Order::Resume(peer));
    }

    fn close(&mut self, peer: Peer) {
        self.orders.push(Order::Close(peer));
    }

    fn open_server(&mut self, server: ServerId, _: PoolId) {
        self.orders.push(Order::Open(server));
    }

    fn send_cancel(&mut self, server: ServerId, _: PoolId, _: &CancelKey) {
        self.orders.push(Order::Cancel(server));
    }

    fn want_server(&mut self, _: PoolId) {
        self.orders.push(Order::Want);
    }

    fn hand_over(&mut self, server: ServerId, to: WorkerId, transfer: Box<Transfer>) {
        self.orders.push(Order::HandOver(server, to, transfer));
    }
}

struct Worker {
    core: Core,
    wire: Wire,
    ends: HashMap<Peer, End>,
}

/// A connection as the network has it.
#[derive(Default)]
struct Link {
    /// Worker and name there, while there is one.
    at: Option<(usize, Peer)>,
    /// Read by nobody yet.
    inbox: VecDeque<Vec<u8>>,
    /// When the last byte on its way arrives, to the pooler and from it.
    up: u64,
    down: u64,
    closed: bool,
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
    limit: Arc<Limit>,
    servers_max: u32,
    /// Client on whose behalf the core is being called.
    acting: Option<u32>,
    faults: bool,
    traced: bool,
}

impl World {
    pub(super) fn new(seed: u64, mutant: Option<Mutant>) -> Self {
        let mut random = Random::new(seed);
        let servers_max = 1 + u32::try_from(random.below(3)).unwrap();
        let limit = Limit::new(servers_max);
        let mut spec = PoolSpec::new(servers_max);
        spec.server_limits = [Arc::clone(&limit)].into();
        spec.mode = if random.percent(15) { Mode::Session } else { Mode::Transaction };
        spec.statements_per_server = 1 + u32::try_from(random.below(3)).unwrap();
        spec.logins_max = 2;
        spec.timeouts.query_wait = None;
        spec.timeouts.login_retry_max = Duration::from_millis(500);
        spec.timeouts.server_idle = Some(Duration::from_millis(400));
        spec.timeouts.server_lifetime = Some(Duration::from_secs(2));
        let spec = Arc::new(spec);
        let statements: Arc<Statements> = Arc::default();
        let slow_percent = *random.pick(&[0, 5, 30]);
        let workers = (0..1 + random.below(2))
            .map(|number| {
                let number = u8::try_from(number).unwrap();
                let mut core = Core::sharing(WorkerId(number), Arc::clone(&statements));
                core.set_pool(POOL, Arc::clone(&spec));
                core.mutant = mutant;
                let random = Random::new(seed ^ u64::from(number) << 32);
                let (orders, paused, slow) = (Vec::new(), HashSet::new(), HashSet::new());
                let wire = Wire { orders, paused, slow, random, slow_percent };
                Worker { core, wire, ends: HashMap::new() }
            })
            .collect();
        let faults = random.percent(60);
        let mut world = Self {
            random,
            now: 0,
            serial: 0,
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            workers,
            clients: Vec::new(),
            backends: Vec::new(),
            limit,
            servers_max,
            acting: None,
            faults,
            traced: std::env::var_os("HOWDAH_POOL_SEED").is_some(),
        };
        for number in 0..2 + world.random.below(4) {
            let number = u32::try_from(number).unwrap();
            let steps = 3 + u32::try_from(world.random.below(12)).unwrap();
            let zone = if world.random.percent(30) { "CET" } else { "UTC" };
            let settings = [("TimeZone", zone), ("application_name", "")];
            world.clients.push((SimClient::new(number, &settings, steps), Link::default()));
            let at = world.random.below(20 * MS);
            world.at(at, Event::Connect(number as usize));
        }
        world.at(0, Event::Tick);
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

    /// Runs until nothing more happens, or something happened that must not.
    pub(super) fn run(mut self) -> Result<(), String> {
        for _ in 0..EVENTS_MAX {
            let Some(Reverse(key)) = self.queue.pop() else { break };
            self.now = key.0;
            let event = self.events.remove(&key).expect("it was queued");
            self.happen(event)?;
            self.check()?;
            if self.now > 20_000 * MS || self.clients.iter().all(|(_, link)| link.closed) {
                break;
            }
        }
        for (client, link) in &self.clients {
            if !link.closed && !client.dismissed && client.waits() {
                return Err(format!("{} for ever", client.owed()));
            }
        }
        Ok(())
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
        let open = self.backends.iter().filter(|(_, link)| !link.closed).count();
        if open > self.servers_max as usize || self.limit.taken() > self.servers_max {
            return Err(format!("{open} servers, the limit is {}", self.servers_max));
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
            Event::Adopt(w, b, _) => self.trace(&format_args!("s{b} adopted by {w}"), b"."),
            _ => {}
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
                }
            }
            Event::ClientCut(client) => self.clients[client].1.closed = true,
            Event::ToBackend(backend, bytes) => {
                if !self.backends[backend].1.closed {
                    self.trace(&format_args!("s{backend} hears"), &bytes);
                    self.backends[backend].0.feed(&bytes);
                    self.backend_says(backend);
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
            Event::Wanted(worker, by) => {
                self.call(worker, |core, now, io| core.server_wanted(POOL, by, now, io));
            }
            Event::Adopt(worker, backend, transfer) => {
                let now = Time(self.now);
                let id = self.workers[worker].core.adopt_server(transfer, now).expect("a pool");
                self.attach(End::Backend(backend), worker, Peer::Server(id));
                if self.backends[backend].1.closed {
                    self.soon(Event::Gone(End::Backend(backend))); // It died on the way.
                }
                self.call(worker, |core, now, io| core.serve_waiting(POOL, now, io));
            }
            Event::Tick => {
                for worker in 0..self.workers.len() {
                    self.call(worker, |core, now, io| core.tick(now, io));
                }
                self.at(self.now + 50 * MS, Event::Tick);
            }
        }
        Ok(())
    }

    /// Calls a core, then does what it ordered.
    fn call<T>(
        &mut self,
        worker: usize,
        call: impl FnOnce(&mut Core, Time, &mut dyn Io) -> T,
    ) -> T {
        let now = Time(self.now);
        let Worker { core, wire, .. } = &mut self.workers[worker];
        let result = call(core, now, wire);
        for order in std::mem::take(&mut self.workers[worker].wire.orders) {
            self.obey(worker, order);
        }
        result
    }

    fn obey(&mut self, worker: usize, order: Order) {
        let end = |world: &Self, peer| world.workers[worker].ends.get(&peer).copied();
        match order {
            Order::Send(peer, bytes) => {
                if let Some(end) = end(self, peer) {
                    self.down(end, bytes);
                }
            }
            Order::Drain(peer) => {
                let at = self.now + 1 + self.random.below(20 * MS);
                self.at(at, Event::Drained(worker, peer));
            }
            Order::Resume(peer) => {
                if let Some(end) = end(self, peer) {
                    let unread = std::mem::take(&mut self.link(end).inbox);
                    for bytes in unread {
                        self.at(self.now, Event::ToCore(end, bytes));
                    }
                }
            }
            Order::Close(peer) => {
                self.trace(&format_args!("{worker} closes {peer:?}"), b".");
                self.workers[worker].wire.slow.remove(&peer);
                self.workers[worker].wire.paused.remove(&peer);
                let Some(end) = self.workers[worker].ends.remove(&peer) else { return };
                let down = self.link(end).down.max(self.now);
                self.link(end).at = None;
                match end {
                    End::Client(client) => self.at(down + 1, Event::ClientCut(client)),
                    End::Backend(backend) => self.backends[backend].1.closed = true,
                }
            }
            Order::Open(server) => {
                self.trace(&format_args!("{worker} opens {server:?}"), b".");
                let backend = self.backends.len();
                self.backends.push((Backend::new(&AT_LOGIN), Link::default()));
                self.attach(End::Backend(backend), worker, Peer::Server(server));
                let succeeds = !(self.faults && self.random.percent(10));
                let at = self.now + self.random.below(20 * MS);
                self.at(at, Event::LoggedIn(backend, succeeds));
                if self.faults && self.random.percent(20) {
                    let at = self.now + self.random.below(300 * MS);
                    self.at(at, Event::Kill(backend));
                }
            }
            Order::Cancel(server) => {
                self.trace(&format_args!("{worker} cancels {server:?}"), b".");
                let Some(End::Backend(backend)) = end(self, Peer::Server(server)) else { return };
                // One that the core ordered by itself is for the client that its server works for.
                let client = self.acting.or_else(|| {
                    let id = self.workers[worker].core.linked_client(server)?;
                    match self.workers[worker].ends.get(&Peer::Client(id)) {
                        Some(End::Client(client)) => Some(self.clients[*client].0.number),
                        _ => None,
                    }
                });
                let client = client.expect("somebody wants it");
                let server = (worker, server);
                let at = self.now + 1 + self.random.below(40 * MS);
                self.at(at, Event::CancelArrives { backend, client, server });
            }
            Order::Want => {
                for other in (0..self.workers.len()).filter(|other| *other != worker) {
                    let by = WorkerId(u8::try_from(worker).unwrap());
                    self.soon(Event::Wanted(other, by));
                }
            }
            Order::HandOver(server, to, transfer) => {
                let peer = Peer::Server(server);
                let Some(End::Backend(backend)) = self.workers[worker].ends.remove(&peer) else {
                    return;
                };
                self.workers[worker].wire.slow.remove(&peer);
                self.backends[backend].1.at = None;
                self.soon(Event::Adopt(usize::from(to.0), backend, transfer));
            }
        }
    }

    fn link(&mut self, end: End) -> &mut Link {
        match end {
            End::Client(client) => &mut self.clients[client].1,
            End::Backend(backend) => &mut self.backends[backend].1,
        }
    }

    fn attach(&mut self, end: End, worker: usize, peer: Peer) {
        self.workers[worker].ends.insert(peer, end);
        let link = self.link(end);
        link.at = Some((worker, peer));
        for bytes in std::mem::take(&mut link.inbox) {
            self.at(self.now, Event::ToCore(end, bytes));
        }
    }

    /// On its way to the pooler, in pieces; `None` is the end.
    fn up(&mut self, end: End, bytes: Option<&[u8]>) {
        let mut rest = bytes.unwrap_or_default();
        while !rest.is_empty() {
            let whole = self.random.percent(60);
            let length = if whole { rest.len() } else { 1 + self.random.below(40) as usize };
            let (piece, later) = rest.split_at(length.min(rest.len()));
            rest = later;
            let at = self.link(end).up.max(self.now) + 1 + self.random.below(MS);
            self.link(end).up = at;
            self.at(at, Event::ToCore(end, piece.to_vec()));
        }
        if bytes.is_none() {
            let at = self.link(end).up.max(self.now) + 1;
            self.at(at, Event::Gone(end));
        }
    }

    fn down(&mut self, end: End, bytes: Vec<u8>) {
        let at = self.link(end).down.max(self.now) + 1 + self.random.below(MS);
        self.link(end).down = at;
        self.at(
            at,
            match end {
                End::Client(client) => Event::ToClient(client, bytes),
                End::Backend(backend) => Event::ToBackend(backend, bytes),
            },
        );
    }

    fn arrives(&mut self, end: End, bytes: Vec<u8>) {
        let link = self.link(end);
        let Some((worker, peer)) = link.at else {
            // A server between two workers.
            if matches!(end, End::Backend(_)) {
                link.inbox.push_back(bytes);
            }
            return;
        };
        if self.workers[worker].wire.paused.contains(&peer) || !self.link(end).inbox.is_empty() {
            return self.link(end).inbox.push_back(bytes);
        }
        self.call(worker, |core, now, io| match peer {
            Peer::Client(id) => core.client_bytes(id, &bytes, now, io),
            Peer::Server(id) => core.server_bytes(id, &bytes, now, io),
        });
    }

    fn gone(&mut self, end: End) {
        let Some((worker, peer)) = self.link(end).at.take() else { return };
        self.workers[worker].wire.paused.remove(&peer);
        self.workers[worker].wire.slow.remove(&peer);
        if let End::Client(client) = end {
            self.acting = Some(self.clients[client].0.number);
        }
        // The name stays until the call has returned: what is ordered for it is still understood.
        self.call(worker, |core, now, io| match peer {
            Peer::Client(id) => core.client_closed(id, now, io),
            Peer::Server(id) => core.server_closed(id, now, io),
        });
        self.acting = None;
        self.workers[worker].ends.remove(&peer);
    }

    fn connect(&mut self, client: usize) {
        let worker = self.random.below(self.workers.len() as u64) as usize;
        let zone = self.clients[client].0.zone.clone();
        let settings =
            if zone == "UTC" { Vec::new() } else { vec![Setting::new("timezone", zone)] };
        let mut secret = [0; 32];
        secret.fill_with(|| self.random.below(256) as u8);
        let secret = CancelSecret(secret);
        let login = ClientLogin { pool: POOL, version: ProtocolVersion::V3_2, secret, settings };
        let id = self.workers[worker].core.add_client(login).expect("the pool is known");
        self.attach(End::Client(client), worker, Peer::Client(id));
        self.call(worker, |core, now, io| core.greet_client(id, now, io));
        self.soon(Event::Step(client));
        if self.faults && self.random.percent(25) {
            let at = self.now + self.random.below(200 * MS);
            self.at(at, Event::Vanish(client));
        }
    }

    fn step(&mut self, client: usize) {
        let (speaker, link) = &mut self.clients[client];
        if link.closed || speaker.dismissed {
            return;
        }
        let said = speaker.speak(&mut self.random);
        let sleeps = speaker.sleeps;
        self.trace(&format_args!("c{client} says"), &said);
        if !said.is_empty() {
            self.up(End::Client(client), Some(&said));
        }
        if sleeps && self.random.percent(30) {
            self.soon(Event::Cancel(client));
        }
        let at = self.now + self.random.below(10 * MS);
        self.at(at, Event::Step(client));
    }

    fn cancel(&mut self, client: usize) {
        let Some((worker, Peer::Client(id))) = self.clients[client].1.at else { return };
        if !self.clients[client].0.sleeps {
            return;
        }
        let Some(key) = self.workers[worker].core.cancel_key_of(id) else { return };
        self.acting = Some(self.clients[client].0.number);
        self.call(worker, |core, now, io| core.cancel(&key, now, io));
        self.acting = None;
    }

    fn backend_says(&mut self, backend: usize) {
        let said = std::mem::take(&mut self.backends[backend].0.output);
        self.trace(&format_args!("s{backend} says"), &said);
        if !said.is_empty() {
            self.up(End::Backend(backend), Some(&said));
        }
        if self.backends[backend].0.sleeping.is_some() {
            let at = self.now + 1 + self.random.below(60 * MS);
            self.at(at, Event::Wake(backend));
        }
        if self.faults && self.random.percent(3) {
            self.soon(Event::Chatter(backend));
        }
    }

    fn logged_in(&mut self, backend: usize, succeeded: bool) {
        let Some((worker, Peer::Server(id))) = self.backends[backend].1.at else { return };
        if succeeded && !self.backends[backend].1.closed {
            let parameters = AT_LOGIN.map(|(name, value)| Setting::new(name, value)).into();
            let cancel_key = CancelKey::new(i32::try_from(backend).unwrap(), b"four");
            let login = ServerLogin { parameters, cancel_key };
            self.call(worker, |core, now, io| core.server_ready(id, login, now, io));
        } else {
            self.backends[backend].1.closed = true;
            self.backends[backend].1.at = None;
            self.workers[worker].ends.remove(&Peer::Server(id));
            let failure = ServerFailure { sqlstate: *b"57P03", message: "starting up".to_owned() };
            self.call(worker, |core, now, io| core.server_failed(id, failure, now, io));
        }
    }
}
