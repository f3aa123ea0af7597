//! What a worker does when another thread tells it to.

use std::{collections::HashMap, time::Instant};

use super::{Exit, LISTEN_HANDOVER_TIMEOUT, Stage, Worker};
use crate::{
    Channel, ClientId, Io as _, Peer,
    worker::{
        control::WorkerReport,
        hub::Positions,
        mail::{IncomingClient, WorkerMessage},
        seats::{Before, Seat},
        takeover::{Outgoing, OutgoingClient},
    },
};

impl Worker {
    pub(super) fn read_mail(&mut self) {
        for mail in self.mailbox.take() {
            match mail {
                WorkerMessage::Helped { entrance, progress, seat, generation } => {
                    if self.sockets.seats.generation(seat) == generation {
                        self.come_back(entrance, progress, seat);
                    }
                }
                WorkerMessage::CloseStartup(place) => self.close_startup(place),
                WorkerMessage::Wanted { pool, by } => {
                    // Not known here, it may still need the place of one of our idle servers.
                    self.know(pool);
                    if self.core.has_pool(pool) {
                        self.core.server_wanted(pool, by, self.now, &mut self.sockets);
                    }
                }
                WorkerMessage::KeepMinimum(pool) => self.know(pool),
                WorkerMessage::HandOver(transfer, stream, route) => {
                    let pool = transfer.pool();
                    self.know(pool);
                    let Some(id) = self.core.adopt_server(transfer, self.now) else { continue };
                    let peer = Peer::Server(id);
                    // Any seat will do: it becomes a link at once.
                    let seat =
                        self.sockets.seats.insert(Seat::Away { ready: false, hung_up: false });
                    self.sockets.seat(peer, seat, Some(route), None);
                    self.sockets.sit(seat, stream, peer, Before::default());
                    self.core.serve_waiting(pool, self.now, &mut self.sockets);
                }
                WorkerMessage::Guest(arrival, stream) => {
                    let away = Seat::Away { ready: false, hung_up: false };
                    let seat = self.sockets.seats.insert(away);
                    self.take_in(seat, *arrival, stream, Before::default());
                }
                WorkerMessage::Cancel(key, from) => self.cancel_own(&key, from),
                WorkerMessage::Report { with_peers, to } => {
                    // Who does not wait for it any more needs none.
                    let _ = to.send(self.report(with_peers));
                }
                WorkerMessage::Record { tape, done } => {
                    self.core.record(*tape);
                    let _ = done.send(());
                }
                WorkerMessage::StopRecording => self.core.stop_recording(),
                WorkerMessage::Suspend { until, done } => self.stand_still(until, done),
                WorkerMessage::GoOn => self.go_on(),
                WorkerMessage::Forget { pools, to } => {
                    let _ = to.send(self.core.forget_pools(&pools));
                }
                WorkerMessage::Heard { client, result } => {
                    self.core.heard(client, result, self.now, &mut self.sockets);
                }
                WorkerMessage::Notified(flight) => {
                    for (found, clients) in &flight.notifications {
                        let (channel, message) = (&found.channel, &found.message);
                        let io = &mut self.sockets;
                        self.core.notified(channel, message, clients, self.now, io);
                        if found.position > 0 {
                            self.note_position(&flight.database, channel, found.position);
                        }
                    }
                }
                WorkerMessage::ChannelsMarked(database, channels) => {
                    if let Some(exit) = &mut self.exit {
                        let positions = exit.positions.entry(database).or_default();
                        positions.extend(channels.iter().map(|channel| (channel.clone(), 0)));
                    }
                }
                WorkerMessage::ChannelsUnmarked(database) => {
                    if let Some(exit) = &mut self.exit {
                        exit.positions.remove(&database);
                    }
                }
                WorkerMessage::Resumed(client) => {
                    self.resuming.remove(&client);
                }
                WorkerMessage::Missed(clients) => {
                    self.core.missed(&clients, self.now, &mut self.sockets);
                }
                WorkerMessage::ClustersTurned => {
                    self.core.clusters_turned(self.now, &mut self.sockets);
                    let reads = self.core.take_reads_moved();
                    if reads > 0 {
                        tracing::warn!(
                            reads,
                            "reads that a server did not answer are asked of another"
                        );
                    }
                }
                WorkerMessage::GatesTurned => self.core.gates_turned(self.now, &mut self.sockets),
                WorkerMessage::Settings(done) => {
                    self.follow_settings();
                    // Who does not wait for it any more need not know.
                    let _ = done.send(());
                }
                WorkerMessage::Move(to) => {
                    self.go_on_for_good();
                    if self.stage == Stage::Open {
                        self.forget_listeners();
                        self.accept_again = None;
                        self.stage = Stage::Moving;
                        self.core.keep_no_servers(true, self.now, &mut self.sockets);
                        let listens_until = Instant::now() + LISTEN_HANDOVER_TIMEOUT;
                        self.exit = Some(Exit { to, listens_until, positions: HashMap::new() });
                    }
                }
                WorkerMessage::Stay => {
                    if self.stage == Stage::Moving {
                        self.stage = Stage::Open;
                        self.core.keep_no_servers(false, self.now, &mut self.sockets);
                        if let Err(error) = self.watch_listeners() {
                            tracing::error!(%error, "cannot accept clients any more");
                        }
                    }
                    self.exit = None;
                }
                WorkerMessage::Settle(settler) => self.settle(*settler),
                WorkerMessage::Evict => {
                    for entry in self.front.directory.pools() {
                        self.core.kill_pool(entry.id, self.now, &mut self.sockets);
                    }
                }
                WorkerMessage::CancelForeign(key) => {
                    self.core.cancel_foreign(&key, self.now, &mut self.sockets);
                }
                WorkerMessage::CancelAnywhere(key) => self.cancel(key, None),
                WorkerMessage::Kill(pools) => {
                    for pool in pools.iter() {
                        self.core.kill_pool(*pool, self.now, &mut self.sockets);
                    }
                }
                WorkerMessage::KillClient { client, to } => {
                    let _ = to.send(self.core.kill_client(client, self.now, &mut self.sockets));
                }
                WorkerMessage::Leave => self.close_doors(Stage::Leaving),
                WorkerMessage::Drain => self.close_doors(Stage::Draining),
                WorkerMessage::Stop => self.stage = Stage::Over,
            }
        }
    }

    /// Hands over clients that can go now, if another process takes them.
    pub(super) fn let_clients_go(&mut self) {
        let Some(exit) = &self.exit else { return };
        let listens_in_vain = Instant::now() >= exit.listens_until;
        for client in self.core.migrants() {
            if !self.sockets.may_leave(client) {
                continue;
            }
            let Some(positions) = self.positions_of(client, exit, listens_in_vain) else {
                continue;
            };
            let Some((pool, migrant)) = self.core.emigrate(client, self.now) else { continue };
            let Some((stream, permits)) = self.sockets.take_client(client) else { continue };
            if !migrant.channels.is_empty() {
                self.sockets.unlisten(client, pool, None);
            }
            let worker = self.number;
            let leaver = OutgoingClient { worker, pool, migrant, stream, permits, positions };
            // Who listens takes back what it cannot pass on, and goes last.
            let _ = exit.to.send(Outgoing::Client(Box::new(leaver)));
        }
    }

    /// The last notifications that a client was given, by which another process goes on. `None` if the client
    /// has to wait for that process to listen to its channels, or for what it is still owed here.
    fn positions_of(&self, id: ClientId, exit: &Exit, in_vain: bool) -> Option<Positions> {
        let Some((home, mut channels)) = self.core.listens_to(id) else { return Some(Vec::new()) };
        // The numbers of this worker are not those of a client that has not been given yet what came since it
        // left the process before. Without any, it is told that something may be missing.
        if self.resuming.contains_key(&id) {
            return in_vain.then(Vec::new);
        }
        let entry = self.front.directory.by_id(home);
        let positions = entry.and_then(|entry| exit.positions.get(&*entry.key.database));
        let number = |channel: &Channel| {
            let position = positions.and_then(|positions| positions.get(channel))?;
            Some((channel.clone(), *position))
        };
        if in_vain {
            return Some(channels.filter_map(number).collect());
        }
        channels.try_fold(Vec::new(), |mut found, channel| {
            found.push(number(channel)?);
            Some(found)
        })
    }

    /// Everything of a channel up to this number was given to those clients here that it is for.
    fn note_position(&mut self, database: &str, channel: &Channel, position: u64) {
        let Some(exit) = &mut self.exit else { return };
        let positions = exit.positions.get_mut(database);
        if let Some(known) = positions.and_then(|positions| positions.get_mut(channel)) {
            *known = position;
        }
    }

    /// Takes in a client with its state.
    pub(super) fn settle(&mut self, settler: IncomingClient) {
        let IncomingClient { pool, migrant, stream, permits, positions } = settler;
        self.know(pool);
        let user = migrant.user.clone();
        let Some(id) = self.core.immigrate(pool, migrant, self.now) else { return };
        let peer = Peer::Client(id);
        let seat = self.sockets.seats.insert(Seat::Away { ready: false, hung_up: false });
        self.sockets.seat(peer, seat, None, Some(permits));
        self.sockets.sit(seat, stream, peer, Before::default());
        if let Some(entry) = self.front.directory.by_id(pool) {
            self.sockets.announce(peer, &entry, user);
        }
        if self.core.listens_to(id).is_some() {
            self.resuming.insert(id, positions);
        }
        self.core.listen_again(id, &mut self.sockets);
    }

    /// Has the core follow the directory's settings.
    pub(super) fn follow_settings(&mut self) {
        self.bound_messages();
        self.sockets.log = self.front.directory.config().log;
        for entry in self.front.directory.pools() {
            if self.core.has_pool(entry.id) {
                self.follow(&entry);
            }
        }
        self.know_minimum();
        self.core.pools_changed(self.now, &mut self.sockets);
    }

    pub(super) fn bound_messages(&mut self) {
        let longest = self.front.directory.config().limits.message_bytes;
        // The longest there can be is no limit.
        let longest = if longest < i32::MAX.cast_unsigned() { longest } else { u32::MAX };
        self.core.bound_messages(longest);
    }

    /// Takes no new clients from now on.
    pub(super) fn close_doors(&mut self, stage: Stage) {
        self.go_on_for_good();
        self.forget_listeners();
        // The console stays within reach.
        self.listeners.retain(|listener| listener.tcp_address().is_none());
        if let Err(error) = self.watch_listeners() {
            tracing::warn!(%error, "cannot take new connections to the console");
        }
        self.accept_again = None;
        self.exit = None;
        if matches!(self.stage, Stage::Open | Stage::Moving | Stage::Leaving) {
            self.stage = stage;
        }
    }

    /// Tells about this worker.
    pub(super) fn report(&mut self, with_peers: bool) -> WorkerReport {
        let report = self.core.report(with_peers, self.now);
        let clients = report.clients.iter().map(|client| Peer::Client(client.id));
        let servers = report.servers.iter().map(|server| Peer::Server(server.id));
        let places =
            clients.chain(servers).filter_map(|peer| Some((peer, self.sockets.where_is(peer)?)));
        WorkerReport { worker: self.number, places: places.collect(), report }
    }
}
