//! Whom a worker lets in: sockets accepted, and logins on their way to being clients and servers.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_net::{Listener, Stream};

use super::{Stage, Worker};
use crate::{
    Peer,
    auth::Rejection,
    worker::{
        control::Control,
        desk,
        entrance::{Arrival, PendingLogin, Progress, refuse_unread},
        helpers::{Errand, Job},
        mail::WorkerMessage,
        seats::{Before, Seat},
        startups::{Full, StartupPlace},
    },
};

/// Most connections taken from one listener before others have their turn. It begins with one, since
/// asking for a second that is not there is a call for nothing, and doubles for as long as the listener
/// is ready again at once.
const ACCEPTS_MAX: usize = 32;

/// After the process ran out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

impl Worker {
    pub(super) fn accept(&mut self, number: usize) {
        if self.turn > self.accepted_in + 1 {
            self.accepts = 1;
        }
        for _ in 0..self.accepts {
            match self.listeners.get(number).map(Listener::accept) {
                Some(Ok(Some(stream))) => self.admit(stream),
                Some(Ok(None)) | None => {
                    self.accepts = 1;
                    return;
                }
                Some(Err(error)) => {
                    tracing::warn!(%error, "cannot accept a client; will try again");
                    return self.pause_accepting();
                }
            }
        }
        self.accepts = ACCEPTS_MAX.min(self.accepts * 2);
        self.accepted_in = self.turn;
    }

    /// Lets a connection begin to log in, if need be in the place of another.
    fn admit(&mut self, stream: Stream) {
        // What it begins with has mostly come with it.
        let has_spoken = !stream.is_unix();
        let address = stream.peer_address().map(|address| address.ip());
        let away = Seat::Away { ready: false, hung_up: false };
        let seat = self.sockets.seats.insert(away);
        let generation = self.sockets.seats.generation(seat);
        let place = StartupPlace { worker: self.number, seat, generation };
        let (startups, max) = (&self.front.startups, self.front.logins_max());
        let entropy = self.front.entropy().ok_or(Rejection::NoRandomness);
        let admitted = entropy.and_then(|entropy| {
            let admitted = startups.admit(address, stream.is_unix(), max, place);
            let (startup, victim) =
                admitted.map_err(|Full| Rejection::TooMany("max_client_conn"))?;
            Ok((startup, victim, entropy))
        });
        let entrance = match admitted {
            Ok((startup, victim, entropy)) => {
                if let Some(victim) = victim {
                    self.make_room(victim);
                }
                PendingLogin::client(stream, startup, entropy, &self.front)
            }
            Err(why) => {
                self.sockets.seats.remove(seat);
                return refuse_unread(stream, &why, &self.front);
            }
        };
        if let Some(place) = self.sockets.seats.at(seat) {
            *place = Seat::Entrance(Box::new(entrance));
        }
        let timeouts = self.front.directory.config().timeouts;
        let startup = timeouts.client_startup.into_iter().chain(timeouts.client_login).min();
        self.limit(seat, startup);
        if has_spoken {
            self.advance(seat);
        } else {
            self.register(seat);
        }
    }

    /// Has a connection closed that keeps the pooler waiting.
    fn make_room(&mut self, victim: StartupPlace) {
        match self.sockets.mailboxes.get(usize::from(victim.worker.0)) {
            Some(mailbox) if victim.worker != self.number => {
                mailbox.send(WorkerMessage::CloseStartup(victim));
            }
            _ => self.close_startup(victim),
        }
    }

    /// Closes a connection that has to make room, if it has not logged in meanwhile.
    pub(super) fn close_startup(&mut self, place: StartupPlace) {
        let StartupPlace { seat, generation, .. } = place;
        if self.sockets.seats.generation(seat) != generation {
            return;
        }
        if let Some(Seat::Entrance(entrance)) = self.sockets.seats.at(seat) {
            let over = entrance.refuse(Rejection::TooMany("max_client_conn"), &self.front);
            self.arrived(seat, over);
        }
    }

    /// A listener is reported for as long as somebody knocks, so it is not watched for a while.
    pub(super) fn pause_accepting(&mut self) {
        self.forget_listeners();
        self.accept_again = Some(Instant::now() + ACCEPT_PAUSE);
    }

    pub(super) fn forget_listeners(&mut self) {
        for seat in self.sockets.seats.indexes() {
            if let Some(Seat::Listener(number)) = self.sockets.seats.at(seat) {
                let listener = &self.listeners[*number];
                let _ = self.sockets.poller.remove(listener);
                self.sockets.seats.remove(seat);
            }
        }
    }

    /// Goes on with an entrance.
    pub(super) fn advance(&mut self, seat: usize) {
        let Some(Seat::Entrance(entrance)) = self.sockets.seats.at(seat) else { return };
        let progress = entrance.advance(&self.front, false);
        self.arrived(seat, progress);
    }

    /// Deals with what came of going on with an entrance.
    pub(super) fn arrived(&mut self, seat: usize, progress: Progress) {
        match progress {
            Progress::Waiting => self.register(seat),
            Progress::Heavy => self.send_away(seat, Errand::Heavy),
            Progress::LookUp => self.send_away(seat, Errand::LookUp),
            Progress::Resolve => self.send_away(seat, Errand::Resolve),
            Progress::Close => drop(self.sockets.seats.remove(seat)),
            Progress::CancelRequest(key) => {
                let from = match self.sockets.seats.remove(seat) {
                    Some(Seat::Entrance(entrance)) => entrance.stream,
                    _ => None,
                };
                let from = from.and_then(|stream| stream.peer_address());
                self.cancel(key, from);
            }
            Progress::Client(arrival) => {
                if let Some((stream, before)) = self.sockets.seats.leave_entrance(seat) {
                    self.take_in(seat, *arrival, stream, before);
                }
            }
            Progress::Visitor(visitor) => {
                if let Some((stream, before)) = self.sockets.seats.leave_entrance(seat) {
                    if before.watched.is_some() {
                        // Failing, its readiness would be nobody's.
                        let _ = self.sockets.poller.remove(&stream);
                    }
                    self.sockets.seats.remove(seat);
                    let mailboxes = Arc::clone(&self.sockets.mailboxes);
                    let control = Control { mailboxes, front: Arc::clone(&self.front) };
                    desk::welcome(*visitor, stream, control);
                }
            }
            Progress::Server(id, ready, route) => {
                let Some((stream, before)) = self.sockets.seats.leave_entrance(seat) else {
                    return;
                };
                let peer = Peer::Server(id);
                self.sockets.seat(peer, seat, Some(route), None);
                self.sockets.sit(seat, stream, peer, before);
                self.core.server_ready(id, ready.login, self.now, &mut self.sockets);
                if !ready.received.is_empty() {
                    self.core.server_bytes(id, &ready.received, self.now, &mut self.sockets);
                }
            }
            Progress::NoServer(id, failure) => {
                let left = self.sockets.seats.remove(seat);
                self.sockets.unseat(Peer::Server(id));
                let error = &failure.message;
                if let Some(Seat::Entrance(entrance)) = &left
                    && let Some((entry, server)) = entrance.aim()
                {
                    let (database, user) = (&entry.key.database, &entry.key.user);
                    tracing::warn!(database, user, server, error, "cannot log in to a server");
                } else {
                    tracing::warn!(error, "cannot log in to a server");
                }
                self.core.server_failed(id, failure, self.now, &mut self.sockets);
            }
            Progress::Cancelled(server) => {
                self.sockets.seats.remove(seat);
                self.core.cancel_finished(server, self.now, &mut self.sockets);
            }
        }
    }

    /// Seats a client that is in.
    pub(super) fn take_in(
        &mut self,
        seat: usize,
        arrival: Arrival,
        stream: Stream,
        before: Before,
    ) {
        let Arrival { login, permits, owed, received, is_told } = arrival;
        let (pool, user) = (login.pool, login.user.clone());
        self.know(pool);
        let may_stay = matches!(self.stage, Stage::Open | Stage::Moving);
        let added = if may_stay { self.core.add_client(login) } else { None };
        let Some(id) = added else {
            if !may_stay {
                let mut farewell = Vec::new();
                Rejection::ShuttingDown.write(&mut farewell);
                let mut stream = stream;
                // Best effort: it is not to be waited for.
                let _ = stream.send(&farewell);
            }
            return drop(self.sockets.seats.remove(seat));
        };
        let peer = Peer::Client(id);
        self.sockets.seat(peer, seat, None, Some(permits));
        self.sockets.sit(seat, stream, peer, before);
        if is_told && let Some(entry) = self.front.directory.by_id(pool) {
            self.sockets.announce(peer, &entry, user);
        }
        self.core.greet_client(id, &owed, self.now, &mut self.sockets);
        if !received.is_empty() {
            self.core.client_bytes(id, &received, self.now, &mut self.sockets);
        }
    }

    pub(super) fn send_away(&mut self, seat: usize, errand: Errand) {
        let generation = self.sockets.seats.generation(seat);
        let Some(place) = self.sockets.seats.at(seat) else { return };
        let away = Seat::Away { ready: false, hung_up: false };
        if let Seat::Entrance(mut entrance) = std::mem::replace(place, away) {
            entrance.is_busy();
            let back = Arc::clone(&self.mailbox);
            self.helpers.submit(errand, Job { entrance, seat, generation, back });
        }
    }

    pub(super) fn come_back(
        &mut self,
        mut entrance: Box<PendingLogin>,
        progress: Progress,
        seat: usize,
    ) {
        let Some(place) = self.sockets.seats.at(seat) else { return };
        let Seat::Away { ready, hung_up } = *place else { return };
        entrance.hung_up |= hung_up;
        // What became ready meanwhile is not told again.
        entrance.drained &= !ready;
        // Its time may have ended while it was away.
        let is_late = progress.is_unfinished() && entrance.is_late(Instant::now());
        let has_more = is_late && entrance.extend();
        let due = entrance.due;
        *place = Seat::Entrance(entrance);
        if has_more {
            self.watch_deadline(seat, due);
        } else if is_late {
            return self.give_up(seat);
        }
        match progress {
            Progress::Waiting if ready => self.advance(seat),
            progress => self.arrived(seat, progress),
        }
    }
}
