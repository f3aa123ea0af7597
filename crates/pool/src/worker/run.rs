//! [`Worker`]: one event loop.
//!
//! # Cost
//!
//! A warm transaction of one message each way costs a `read` and a `write` per side, and its share of
//! an `epoll_wait` that all who are ready have in common. Nothing is registered anew while clients
//! wait, and no read is made to learn that a socket is empty.

mod entrances;
mod letters;

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering, mpsc::Sender},
    time::{Duration, Instant},
};

use howdah_net::{Listener, Poller, Readiness, Received, Timers, Token};
use howdah_wire::startup::CancelKey;

use super::{
    control::Control,
    directory::PoolEntry,
    entrance::{CancelEntrance, PendingLogin, ServerEntrance},
    front::Front,
    helpers::Helpers,
    hub::{Positions, Request},
    mail::{CloseOnDrop, Mailbox, WorkerMessage},
    seats::Seat,
    sockets::{Order, Sockets},
    stillness::Suspended,
    takeover::Outgoing,
    watch,
};
use crate::{
    Backlog, Channel, ClientId, Core, Peer, PoolId, ServerId, Time, WorkerId, worker_of_key,
};

/// Bytes of one read; shared by all connections of the worker.
const RECEIVE_BYTES: usize = 64 << 10;

/// Reads of one connection before others have their turn.
const READS_MAX: usize = 8;

/// How long what was sent last may take to go out.
const LINGER: Duration = Duration::from_secs(5);

/// One event loop.
#[derive(Debug)]
pub(super) struct Worker {
    number: WorkerId,
    pub(super) core: Core,
    pub(super) sockets: Sockets,
    pub(super) front: Arc<Front>,
    helpers: Helpers,
    mailbox: Arc<Mailbox>,
    listeners: Vec<Listener>,
    timers: Timers<(usize, u32)>,
    accept_again: Option<Instant>,
    /// How many connections are taken from a listener that is ready, and the turn in which there were
    /// as many.
    accepts: usize,
    accepted_in: u64,
    turn: u64,
    buffer: Box<[u8]>,
    pub(super) began: Instant,
    pub(super) now: Time,
    pub(super) stage: Stage,
    /// Nothing is read, by an operator's order.
    pub(super) stillness: Option<Suspended>,
    /// The way to another process that takes clients over.
    exit: Option<Exit>,
    /// Clients that listened in another process, until the LISTEN multiplexer has resumed them; with the numbers
    /// of the last notifications that they were given there, until it was asked to.
    resuming: HashMap<ClientId, Positions>,
}

/// The way to another process that takes clients over.
#[derive(Debug)]
struct Exit {
    to: Sender<Outgoing>,
    /// Until when clients that listen wait for the other process to listen, too.
    listens_until: Instant,
    /// The number of the last notification that was given to clients, by database and channel.
    positions: HashMap<Arc<str>, HashMap<Channel, u64>>,
}

/// How long a client that listens waits, at a takeover, for the new process to listen to the same. Beyond it,
/// it goes and is told that notifications may be missing.
const LISTEN_HANDOVER_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Open,
    /// Accepts nobody, and lets clients go to another process. Ends when it is told to.
    Moving,
    /// No new clients; ends when the last has left.
    Leaving,
    /// No new clients; ends with the last one.
    Draining,
    Over,
}

/// What a worker is made of.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) number: WorkerId,
    pub(super) poller: Poller,
    pub(super) mailboxes: Arc<[Arc<Mailbox>]>,
    pub(super) front: Arc<Front>,
    pub(super) helpers: Helpers,
    pub(super) listeners: Vec<Listener>,
}

impl Worker {
    pub(super) fn new(parts: Parts) -> std::io::Result<Self> {
        let Parts { number, poller, mailboxes, front, helpers, listeners } = parts;
        let mailbox = Arc::clone(&mailboxes[usize::from(number.0)]);
        let (log, began) = (front.directory.config().log, front.began);
        let mut worker = Self {
            number,
            core: Core::sharing(number, Arc::clone(&front.statements)),
            sockets: Sockets::new(poller, number, mailboxes, log),
            front,
            helpers,
            mailbox,
            listeners,
            timers: Timers::new(),
            accept_again: None,
            accepts: 1,
            accepted_in: 0,
            turn: 0,
            buffer: vec![0; RECEIVE_BYTES].into(),
            began,
            now: Time::default(),
            stage: Stage::Open,
            stillness: None,
            exit: None,
            resuming: HashMap::new(),
        };
        let workers = worker.sockets.mailboxes.len();
        worker.core.share_minimum(u32::try_from(workers).unwrap_or(1));
        worker.bound_messages();
        worker.watch_listeners()?;
        Ok(worker)
    }

    /// Runs until told to end, or until drained.
    ///
    /// # Errors
    ///
    /// The kernel refused to wait.
    pub(super) fn run(mut self) -> std::io::Result<()> {
        let _mailbox = CloseOnDrop(Arc::clone(&self.mailbox));
        let mut ready = Vec::new();
        self.know_minimum();
        while self.stage != Stage::Over {
            let deadline = self.deadline();
            self.sockets.poller.wait(deadline, &mut ready)?;
            self.turn += 1;
            if self.stillness.is_none() {
                let now = self.began.elapsed();
                self.now = Time(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX));
            }
            for ready in ready.drain(..) {
                self.on_ready(ready);
            }
            self.read_mail();
            self.on_time();
            self.follow_orders();
            self.let_clients_go();
            self.go_on_flushing();
            if self.stage == Stage::Draining {
                self.core.drain(self.now, &mut self.sockets);
            }
            if matches!(self.stage, Stage::Draining | Stage::Leaving)
                && self.core.clients() == 0
                && !self.sockets.seats.any_lingers()
            {
                self.stage = Stage::Over;
            }
        }
        self.core.stop_recording();
        Ok(())
    }

    /// When something is due; at once if there is work that no socket tells of.
    fn deadline(&self) -> Option<Instant> {
        if !self.sockets.orders.is_empty() {
            return Some(self.began);
        }
        let core = match self.core.deadline().min(self.core.tape_due()) {
            Time::NEVER => None,
            Time(nanos) => Some(self.began + Duration::from_nanos(nanos)),
        };
        let flushed = self.stillness.as_ref().and_then(Suspended::deadline);
        let listens = self.exit.as_ref().map(|exit| exit.listens_until);
        let listens = listens.filter(|until| *until > Instant::now());
        [core, self.timers.next_due(), self.accept_again, flushed, listens]
            .into_iter()
            .flatten()
            .min()
    }

    fn watch_listeners(&mut self) -> std::io::Result<()> {
        for (number, listener) in self.listeners.iter().enumerate() {
            let seat = self.sockets.seats.insert(Seat::Listener(number));
            self.sockets.poller.add_listener(listener, self.sockets.seats.token(seat))?;
        }
        Ok(())
    }

    fn on_ready(&mut self, ready: Readiness) {
        let Some(seat) = self.sockets.seats.find(ready.token) else { return };
        match self.sockets.seats.at(seat) {
            Some(Seat::Link(link)) => {
                link.unread |= ready.readable;
                link.hung_up |= ready.hung_up;
                if ready.writable && link.backlog() == Backlog::Waiting {
                    self.flush(seat);
                }
                if ready.readable {
                    self.read(seat, ready.token);
                }
            }
            Some(Seat::Listener(number)) => {
                let number = *number;
                self.accept(number);
            }
            Some(Seat::Entrance(entrance)) => {
                entrance.hung_up |= ready.hung_up;
                entrance.drained = false;
                self.advance(seat);
            }
            Some(Seat::Away { ready: again, hung_up }) => {
                *again = true;
                *hung_up |= ready.hung_up;
            }
            None => {}
        }
    }

    /// Reads what a peer sent and gives it to the core.
    fn read(&mut self, seat: usize, token: Token) {
        // Whoever has bytes unread is looked at when it goes on.
        if self.stillness.is_some() {
            return;
        }
        for _ in 0..READS_MAX {
            // Whatever the core did meanwhile: is it still the same connection?
            if self.sockets.seats.find(token) != Some(seat) {
                return;
            }
            let Some(link) = self.sockets.seats.link(seat) else { return };
            if link.paused || !link.unread {
                return;
            }
            let received = match link.stream.receive(&mut self.buffer) {
                Ok(Received::Drained(some)) => {
                    // One who hung up is read to the end; no readiness will tell of it again.
                    link.unread = link.hung_up && some > 0;
                    some
                }
                Ok(Received::Bytes(some)) => some,
                Ok(Received::Closed) | Err(_) => return self.lost(seat),
            };
            let bytes = &self.buffer[..received];
            match link.peer {
                // The core is through with it: what it says now is for nobody.
                None => {}
                Some(_) if bytes.is_empty() => {}
                Some(Peer::Client(id)) => {
                    self.core.client_bytes(id, bytes, self.now, &mut self.sockets);
                }
                Some(Peer::Server(id)) => {
                    self.core.server_bytes(id, bytes, self.now, &mut self.sockets);
                }
            }
        }
        self.sockets.orders.push_back(Order::Read(token));
    }

    /// Sends what a peer had not taken.
    fn flush(&mut self, seat: usize) {
        let Some(link) = self.sockets.seats.link(seat) else { return };
        match link.flush() {
            Ok(Backlog::Waiting) => {}
            Ok(Backlog::Empty) => {
                let peer = link.peer;
                self.sockets.unwatch_room(seat);
                match peer {
                    Some(peer) => self.core.drained(peer, self.now, &mut self.sockets),
                    None => self.close(seat),
                }
            }
            Err(_) => self.lost(seat),
        }
    }

    /// A connection has ended.
    pub(super) fn lost(&mut self, seat: usize) {
        let peer = self.sockets.seats.link(seat).and_then(|link| link.peer);
        self.sockets.seats.remove(seat);
        let Some(peer) = peer else { return };
        self.sockets.unseat(peer);
        match peer {
            Peer::Client(id) => self.core.client_closed(id, self.now, &mut self.sockets),
            Peer::Server(id) => self.core.server_closed(id, self.now, &mut self.sockets),
        }
    }

    fn close(&mut self, seat: usize) {
        if let Some(Seat::Link(link)) = self.sockets.seats.remove(seat) {
            link.stream.close();
        }
    }

    /// Gives an entrance its time.
    fn limit(&mut self, seat: usize, limit: Option<Duration>) {
        let Some(limit) = limit else { return };
        let due = Instant::now() + limit;
        if let Some(Seat::Entrance(entrance)) = self.sockets.seats.at(seat) {
            entrance.due = Some(due);
        }
        self.watch_deadline(seat, Some(due));
    }

    fn watch_deadline(&mut self, seat: usize, due: Option<Instant>) {
        if let Some(due) = due {
            self.timers.insert(due, (seat, self.sockets.seats.generation(seat)));
        }
    }

    /// Has the poller watch an entrance's stream, unless it does.
    fn register(&mut self, seat: usize) {
        let token = self.sockets.seats.token(seat);
        let Some(Seat::Entrance(entrance)) = self.sockets.seats.at(seat) else { return };
        entrance.waits();
        let interest = entrance.interest();
        let Some(stream) = entrance.stream.as_ref().filter(|_| entrance.watched.is_none()) else {
            return;
        };
        match self.sockets.poller.add_for(stream, token, interest) {
            Ok(()) => entrance.watched = Some(interest),
            Err(error) => {
                tracing::warn!(%error, "cannot watch a connection");
                let over = entrance.timed_out(&self.front);
                self.arrived(seat, over);
            }
        }
    }

    /// Makes a pool known to the core.
    fn know(&mut self, pool: PoolId) {
        if !self.core.has_pool(pool)
            && let Some(entry) = self.front.directory.by_id(pool)
        {
            self.follow(&entry);
            if entry.spec.servers_min > 0 {
                // Each worker keeps its share open, whether clients of the pool come to it or not.
                for (number, mailbox) in self.sockets.mailboxes.iter().enumerate() {
                    if number != usize::from(self.number.0) {
                        mailbox.send(WorkerMessage::KeepMinimum(pool));
                    }
                }
                self.core.open_minimum_of(pool, self.now, &mut self.sockets);
            }
        }
    }

    /// Makes pools known of which servers are to be open before their first client comes.
    pub(super) fn know_minimum(&mut self) {
        for pool in self.front.directory.forced_pools_with_minimum() {
            self.know(pool);
        }
    }

    /// Has the core follow a pool's settings, and know the members of a cluster.
    fn follow(&mut self, entry: &PoolEntry) {
        entry.parts().for_each(|pool| self.know(pool));
        for watched in &entry.watched {
            watch::begin(watched, &self.front, &self.sockets.mailboxes);
        }
        self.core.set_pool(entry.id, Arc::clone(&entry.spec));
    }

    /// Follows a CancelRequest that came in here, from that address.
    fn cancel(&mut self, key: CancelKey, from: Option<SocketAddr>) {
        if self.front.has_foreigners.load(Ordering::Relaxed) {
            let mailboxes = Arc::clone(&self.sockets.mailboxes);
            Control { mailboxes, front: Arc::clone(&self.front) }.cancel_foreign(&key);
        }
        let owner = worker_of_key(&key);
        let owner = owner.filter(|owner| usize::from(owner.0) < self.sockets.mailboxes.len());
        match owner {
            Some(owner) if owner == self.number => self.cancel_own(&key, from),
            Some(owner) => {
                self.sockets.mailboxes[usize::from(owner.0)].send(WorkerMessage::Cancel(key, from));
            }
            None => self.wrong_key(from),
        }
    }

    /// Follows a CancelRequest whose key names this worker.
    fn cancel_own(&mut self, key: &CancelKey, from: Option<SocketAddr>) {
        if !self.core.cancel(key, self.now, &mut self.sockets) {
            self.wrong_key(from);
        }
    }

    fn wrong_key(&self, from: Option<SocketAddr>) {
        // With clients of two processes about, it may be right for the other.
        if !self.front.has_foreigners.load(Ordering::Relaxed) && !self.front.was_taken_over() {
            self.front.refusals.cancel_key(from);
        }
    }

    fn follow_orders(&mut self) {
        // What they lead to is for the next turn, after others had theirs.
        for _ in 0..self.sockets.orders.len() {
            match self.sockets.orders.pop_front() {
                None => return,
                Some(Order::Read(token)) => {
                    if let Some(seat) = self.sockets.seats.find(token) {
                        self.read(seat, token);
                    }
                }
                Some(Order::Lost(token)) => {
                    if let Some(seat) = self.sockets.seats.find(token) {
                        self.lost(seat);
                    }
                }
                Some(Order::Linger(token)) => {
                    if let Some(seat) = self.sockets.seats.find(token) {
                        let key = (seat, self.sockets.seats.generation(seat));
                        self.timers.insert(Instant::now() + LINGER, key);
                    }
                }
                Some(Order::Open(id, pool)) => self.open(id, pool),
                Some(Order::Ask(pool)) => {
                    let entry = self.front.directory.by_id(pool);
                    for watched in entry.iter().flat_map(|entry| &entry.watched) {
                        watched.ask_now();
                    }
                }
                Some(Order::Mark(pool)) => {
                    let entry = self.front.directory.by_id(pool);
                    for watched in entry.iter().flat_map(|entry| &entry.watched) {
                        watched.ask_primary();
                    }
                }
                Some(Order::Listen { client, home, channels, again }) => {
                    let ear = (self.number, client);
                    let again = again.then(|| {
                        self.resuming.get_mut(&client).map(std::mem::take).unwrap_or_default()
                    });
                    self.ask_hub(home, Request::Listen { ear, home, channels, again });
                }
                Some(Order::Unlisten { client, home, channels }) => {
                    let ear = (self.number, client);
                    self.ask_hub(home, Request::Unlisten { ear, channels });
                }
                Some(Order::Cancel(id, pool, key)) => self.dial_cancel(id, pool, key),
            }
        }
    }

    fn ask_hub(&mut self, home: PoolId, request: Request) {
        let Some(entry) = self.front.directory.by_id(home) else { return };
        let database = &entry.key.database;
        self.front.hubs.ask(database, request, &self.front, &self.sockets.mailboxes);
    }

    fn open(&mut self, id: ServerId, pool: PoolId) {
        let Some(entry) = self.front.directory.by_id(pool) else { return };
        let limit = entry.settings.timeouts.server_connect;
        let entrance = Box::new(PendingLogin::server(ServerEntrance::new(id, entry)));
        let seat = self.sockets.seats.insert(Seat::Entrance(entrance));
        self.sockets.seat(Peer::Server(id), seat, None, None);
        self.limit(seat, limit);
        self.advance(seat);
    }

    fn dial_cancel(&mut self, id: ServerId, pool: PoolId, key: CancelKey) {
        let route = self.sockets.route(id);
        let (Some(entry), Some(route)) = (self.front.directory.by_id(pool), route) else {
            return self.core.cancel_finished(id, self.now, &mut self.sockets);
        };
        let limit = entry.settings.timeouts.cancel_wait;
        let entrance = PendingLogin::cancel(CancelEntrance::new(id, entry, route, key));
        let seat = self.sockets.seats.insert(Seat::Entrance(Box::new(entrance)));
        self.limit(seat, limit);
        self.advance(seat);
    }

    fn on_time(&mut self) {
        self.core.hand_over_tape(self.now);
        if self.core.deadline() <= self.now {
            self.core.tick(self.now, &mut self.sockets);
        }
        let Some(due) = [self.timers.next_due(), self.accept_again].into_iter().flatten().min()
        else {
            return;
        };
        let now = Instant::now();
        if due > now {
            return;
        }
        if self.accept_again.take_if(|due| *due <= now).is_some() {
            let _ = self.watch_listeners();
        }
        while let Some((_, (seat, generation))) = self.timers.pop_due(now) {
            if self.sockets.seats.generation(seat) == generation {
                self.give_up(seat);
            }
        }
    }

    /// A login, a CancelRequest or a farewell took too long.
    fn give_up(&mut self, seat: usize) {
        match self.sockets.seats.at(seat) {
            Some(Seat::Entrance(entrance)) => {
                if entrance.extend() {
                    let due = entrance.due;
                    return self.watch_deadline(seat, due);
                }
                let over = entrance.timed_out(&self.front);
                self.arrived(seat, over);
            }
            Some(Seat::Link(link)) if link.peer.is_none() => self.close(seat),
            // A helper will bring it back, and then it is seen that it is late.
            Some(Seat::Away { .. } | Seat::Link(_) | Seat::Listener(_)) | None => {}
        }
    }
}
