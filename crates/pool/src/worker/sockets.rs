//! [`Sockets`]: the worker's side of [`Io`].

use std::{collections::VecDeque, io::IoSlice, os::fd::AsFd, sync::Arc, time::Instant};

use howdah_net::{Interest, Poller, Stream, Token};
use howdah_wire::startup::CancelKey;

use super::{
    directory::{PoolEntry, Route},
    link::Link,
    mail::{Mailbox, WorkerMessage},
    seats::{Before, Seat, SocketTable},
};
use crate::{
    Backlog, Channel, ClientId, Io, Peer, Permits, Place, PoolId, Refusal, ServerId, Transfer,
    WorkerId, config::Log,
};

/// What the core ordered, or a socket showed, that is done when the running call has returned.
#[derive(Debug)]
pub(super) enum Order {
    Open(ServerId, PoolId),
    Cancel(ServerId, PoolId, CancelKey),
    /// Have the servers of a cluster be asked how they are, of which this is a member.
    Ask(PoolId),
    /// Have its primary be asked how far it is.
    Mark(PoolId),
    /// Have a client hear of channels; again, if it did in another process.
    Listen {
        client: ClientId,
        home: PoolId,
        channels: Vec<Channel>,
        again: bool,
    },
    /// Have it not hear of them any more; of none without them.
    Unlisten {
        client: ClientId,
        home: PoolId,
        channels: Option<Vec<Channel>>,
    },
    /// Read again, if it is still the one.
    Read(Token),
    /// A send failed.
    Lost(Token),
    /// It sends what is left and is not waited for beyond the deadline.
    Linger(Token),
}

/// Sockets of a worker, and who is where.
#[derive(Debug)]
pub(super) struct Sockets {
    pub(super) poller: Poller,
    pub(super) seats: SocketTable,
    pub(super) orders: VecDeque<Order>,
    clients: Vec<Option<SocketRef>>,
    servers: Vec<Option<SocketRef>>,
    worker: WorkerId,
    /// What is to be told of clients.
    pub(super) log: Log,
    /// Every worker's, by number.
    pub(super) mailboxes: Arc<[Arc<Mailbox>]>,
}

/// Where a peer sits.
#[derive(Debug)]
struct SocketRef {
    seat: usize,
    /// How a server was reached.
    route: Option<Route>,
    /// A client's share of limits, given back with the place.
    permits: Option<Permits>,
    /// A client, as the log knows it; nobody where nothing is to be told.
    guest: Option<Box<ClientLogFields>>,
}

impl Sockets {
    pub(super) fn new(
        poller: Poller,
        worker: WorkerId,
        mailboxes: Arc<[Arc<Mailbox>]>,
        log: Log,
    ) -> Self {
        Self {
            poller,
            seats: SocketTable::default(),
            orders: VecDeque::new(),
            clients: Vec::new(),
            servers: Vec::new(),
            worker,
            log,
            mailboxes,
        }
    }

    fn guest(&mut self, client: ClientId) -> Option<&mut ClientLogFields> {
        self.place(Peer::Client(client)).as_mut()?.guest.as_deref_mut()
    }

    fn place(&mut self, peer: Peer) -> &mut Option<SocketRef> {
        let (places, index) = match peer {
            Peer::Client(id) => (&mut self.clients, id.index()),
            Peer::Server(id) => (&mut self.servers, id.index()),
        };
        if places.len() <= index {
            places.resize_with(index + 1, || None);
        }
        &mut places[index]
    }

    /// Says where a peer sits from now on.
    pub(super) fn seat(
        &mut self,
        peer: Peer,
        seat: usize,
        route: Option<Route>,
        permits: Option<Permits>,
    ) {
        *self.place(peer) = Some(SocketRef { seat, route, permits, guest: None });
    }

    /// Tells of a client that is in, as far as that is wanted, and remembers who it is.
    pub(super) fn announce(&mut self, peer: Peer, entry: &Arc<PoolEntry>, user: Option<Arc<str>>) {
        let Log { connections, disconnections, pooler_errors, .. } = self.log;
        if !connections && !disconnections && !pooler_errors {
            return;
        }
        let Some(place) = self.where_is(peer) else { return };
        let from = place.peer.map_or_else(|| "unix".to_owned(), |peer| peer.to_string());
        let entry = Arc::clone(entry);
        let (came, is_told, why) = (Instant::now(), disconnections, None);
        let guest = ClientLogFields { entry, user, from, came, is_told, why };
        if connections {
            let (database, user) = guest.names();
            let tls = place.tls.unwrap_or_default();
            tracing::info!(database, user, from = guest.from, tls, "a client is in");
        }
        if let Some(seating) = self.place(peer) {
            seating.guest = Some(Box::new(guest));
        }
    }

    /// Forgets where a peer sat.
    pub(super) fn unseat(&mut self, peer: Peer) -> Option<(usize, Option<Route>)> {
        let place = self.place(peer).take()?;
        if let Some(guest) = place.guest {
            guest.has_left();
        }
        Some((place.seat, place.route))
    }

    pub(super) fn route(&mut self, server: ServerId) -> Option<Route> {
        self.place(Peer::Server(server)).as_ref()?.route.clone()
    }

    /// Where a peer is, and where its connection came in or goes out.
    pub(super) fn where_is(&mut self, peer: Peer) -> Option<Place> {
        let (_, link) = self.link(peer)?;
        let stream = &link.stream;
        Some(Place {
            peer: stream.peer_address(),
            own: stream.own_address(),
            tls: stream.protection(),
        })
    }

    /// Takes out a client's connection that is to live on elsewhere: one whose bytes are as they are on
    /// the wire, and that has taken all that was sent to it.
    /// With it go its permits: until it is gone for good, its pool is not given up.
    pub(super) fn take_client(&mut self, id: ClientId) -> Option<(Stream, Permits)> {
        let peer = Peer::Client(id);
        let (seat, _) = self.link(peer)?;
        self.poller.remove(&self.seats.link(seat)?.stream).ok()?;
        if let Some(guest) = self.place(peer).as_mut().and_then(|place| place.guest.as_mut()) {
            guest.why = Some("another process serves it".to_owned());
        }
        let permits = self.place(peer).as_mut().and_then(|place| place.permits.take());
        self.unseat(peer);
        match self.seats.remove(seat)? {
            Seat::Link(link) => Some((link.stream, permits.unwrap_or_else(Permits::none))),
            _ => None,
        }
    }

    /// Whether a client's connection could be taken out.
    pub(super) fn may_leave(&mut self, id: ClientId) -> bool {
        self.link(Peer::Client(id)).is_some_and(|(_, link)| {
            !link.stream.is_encrypted() && !link.broken && link.backlog() == Backlog::Empty
        })
    }

    fn link(&mut self, peer: Peer) -> Option<(usize, &mut Link)> {
        let seat = self.place(peer).as_ref()?.seat;
        self.seats.link(seat).map(|link| (seat, link))
    }

    /// Puts a peer that is logged in on a seat.
    pub(super) fn sit(&mut self, seat: usize, stream: Stream, peer: Peer, before: Before) {
        let Before { hung_up, watched, drained } = before;
        let token = self.seats.token(seat);
        let (interest, registered) = match watched {
            None => (Interest::Read, self.poller.add_for(&stream, token, Interest::Read)),
            // A unix socket is watched for room only while something waits to be sent.
            Some(Interest::Both) if stream.is_unix() => {
                (Interest::Read, self.poller.watch_for(&stream, token, Interest::Read))
            }
            Some(interest) => (interest, Ok(())),
        };
        let mut link = Link::new(stream, peer, interest, hung_up);
        link.unread = hung_up || !drained;
        link.broken = registered.is_err();
        match registered {
            Ok(()) if link.unread => self.orders.push_back(Order::Read(token)),
            Ok(()) => {}
            Err(_) => self.orders.push_back(Order::Lost(token)),
        }
        if let Some(place) = self.seats.at(seat) {
            *place = Seat::Link(link);
        }
    }

    /// Watches for room to send, where that is not watched for.
    fn watch_room(&mut self, seat: usize) {
        let token = self.seats.token(seat);
        let Some(link) = self.seats.link(seat) else { return };
        if link.interest == Interest::Read {
            link.interest = Interest::Both;
            if self.poller.watch_for(link.stream.as_fd(), token, Interest::Both).is_err() {
                link.broken = true;
                self.orders.push_back(Order::Lost(token));
            }
        }
    }

    /// Watches for nothing but bytes, where room would be told with every read of the peer.
    pub(super) fn unwatch_room(&mut self, seat: usize) {
        let token = self.seats.token(seat);
        let Some(link) = self.seats.link(seat) else { return };
        if link.interest == Interest::Both && link.stream.is_unix() {
            link.interest = Interest::Read;
            // Failing, it costs some wake-ups.
            let _ = self.poller.watch_for(link.stream.as_fd(), token, Interest::Read);
        }
    }
}

/// A client, as the log knows it.
#[derive(Debug)]
struct ClientLogFields {
    entry: Arc<PoolEntry>,
    /// Its own user, where that is not the pool's.
    user: Option<Arc<str>>,
    from: String,
    came: Instant,
    /// Whether it is to be told that it left.
    is_told: bool,
    /// Why it was closed, if the pooler did it.
    why: Option<String>,
}

impl ClientLogFields {
    fn names(&self) -> (&str, &str) {
        let key = &self.entry.key;
        (&key.database, self.user.as_deref().unwrap_or(&key.user))
    }

    fn has_left(&self) {
        if self.is_told {
            let (database, user) = self.names();
            let why = self.why.as_deref().unwrap_or("the client ended it");
            let age_s = self.came.elapsed().as_secs();
            tracing::info!(database, user, from = self.from, why, age_s, "a client has left");
        }
    }
}

impl Io for Sockets {
    fn refused(&mut self, client: ClientId, refusal: &Refusal) {
        self.told(client, refusal);
        if let Some(guest) = self.guest(client) {
            guest.why = Some(refusal.to_string());
        }
    }

    fn told(&mut self, client: ClientId, error: &dyn std::fmt::Display) {
        let is_told = self.log.pooler_errors;
        if let Some(guest) = self.guest(client).filter(|_| is_told) {
            let (database, user) = guest.names();
            let from = &guest.from;
            tracing::warn!(database, user, from, %error, "error sent to client");
        }
    }

    fn send(&mut self, to: Peer, slices: &[IoSlice<'_>]) -> Backlog {
        let Some((seat, link)) = self.link(to) else { return Backlog::Empty };
        if link.broken {
            return Backlog::Empty;
        }
        match link.send(slices) {
            Ok(Backlog::Empty) => Backlog::Empty,
            Ok(Backlog::Waiting) => {
                self.watch_room(seat);
                Backlog::Waiting
            }
            Err(_) => {
                link.broken = true;
                let token = self.seats.token(seat);
                self.orders.push_back(Order::Lost(token));
                Backlog::Empty
            }
        }
    }

    fn pause(&mut self, peer: Peer) {
        if let Some((_, link)) = self.link(peer) {
            link.paused = true;
        }
    }

    fn resume(&mut self, peer: Peer) {
        let Some((seat, link)) = self.link(peer) else { return };
        link.paused = false;
        if link.unread {
            let token = self.seats.token(seat);
            self.orders.push_back(Order::Read(token));
        }
    }

    fn close(&mut self, peer: Peer) {
        let Some((seat, _)) = self.unseat(peer) else { return };
        if let Some(link) = self.seats.link(seat)
            && !link.broken
            && link.backlog() == Backlog::Waiting
        {
            link.peer = None;
            let token = self.seats.token(seat);
            return self.orders.push_back(Order::Linger(token));
        }
        if let Some(Seat::Link(link)) = self.seats.remove(seat) {
            link.stream.close();
        }
    }

    fn listen(&mut self, client: ClientId, home: PoolId, channels: Vec<Channel>, again: bool) {
        self.orders.push_back(Order::Listen { client, home, channels, again });
    }

    fn unlisten(&mut self, client: ClientId, home: PoolId, channels: Option<Vec<Channel>>) {
        self.orders.push_back(Order::Unlisten { client, home, channels });
    }

    fn open_server(&mut self, server: ServerId, pool: PoolId) {
        self.orders.push_back(Order::Open(server, pool));
    }

    fn doubted(&mut self, pool: PoolId) {
        self.orders.push_back(Order::Ask(pool));
    }

    fn wrote(&mut self, pool: PoolId) {
        self.orders.push_back(Order::Mark(pool));
    }

    fn send_cancel(&mut self, server: ServerId, pool: PoolId, key: &CancelKey) {
        self.orders.push_back(Order::Cancel(server, pool, key.clone()));
    }

    fn want_server(&mut self, pool: PoolId) {
        let by = self.worker;
        for (number, mailbox) in self.mailboxes.iter().enumerate() {
            if number != usize::from(by.0) {
                mailbox.send(WorkerMessage::Wanted { pool, by });
            }
        }
    }

    fn hand_over(&mut self, server: ServerId, to: WorkerId, transfer: Box<Transfer>) {
        let Some((seat, Some(route))) = self.unseat(Peer::Server(server)) else { return };
        let Some(Seat::Link(link)) = self.seats.remove(seat) else { return };
        let Some(mailbox) = self.mailboxes.get(usize::from(to.0)) else { return };
        // Dropping the transfer gives its permits back, so a server that cannot move just ends.
        if self.poller.remove(&link.stream).is_ok() {
            mailbox.send(WorkerMessage::HandOver(transfer, link.stream, route));
        }
    }
}
