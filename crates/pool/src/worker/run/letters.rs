//! What a worker does when another thread tells it to.

use super::{Stage, Worker};
use crate::{
    Io as _, Peer,
    worker::{
        control::WorkerReport,
        mail::{Mail, Settler},
        seats::{Before, Seat},
        takeover::Leaver,
    },
};

impl Worker {
    pub(super) fn read_mail(&mut self) {
        for mail in self.mailbox.take() {
            match mail {
                Mail::Helped { entrance, progress, seat, generation } => {
                    if self.sockets.seats.generation(seat) == generation {
                        self.come_back(entrance, progress, seat);
                    }
                }
                Mail::Wanted { pool, by } => {
                    if self.core.has_pool(pool) {
                        self.core.server_wanted(pool, by, self.now, &mut self.sockets);
                    }
                }
                Mail::HandOver(transfer, stream, route) => {
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
                Mail::Guest(arrival, stream) => {
                    let away = Seat::Away { ready: false, hung_up: false };
                    let seat = self.sockets.seats.insert(away);
                    self.take_in(seat, *arrival, stream, Before::default());
                }
                Mail::Cancel(key) => self.core.cancel(&key, self.now, &mut self.sockets),
                Mail::Report { with_peers, to } => {
                    // Who does not wait for it any more needs none.
                    let _ = to.send(self.report(with_peers));
                }
                Mail::Record { tape, done } => {
                    self.core.record(*tape);
                    let _ = done.send(());
                }
                Mail::StopRecording => self.core.stop_recording(),
                Mail::Suspend { until, done } => self.stand_still(until, done),
                Mail::GoOn => self.go_on(),
                Mail::Forget { pools, to } => {
                    let _ = to.send(self.core.forget_pools(&pools));
                }
                Mail::Heard { client, result } => {
                    self.core.heard(client, result, self.now, &mut self.sockets);
                }
                Mail::Notified(flight) => {
                    for (found, clients) in &flight.notifications {
                        let (channel, message) = (&found.channel, &found.message);
                        let io = &mut self.sockets;
                        self.core.notified(channel, message, clients, self.now, io);
                    }
                }
                Mail::Missed(clients) => {
                    self.core.missed(&clients, self.now, &mut self.sockets);
                }
                Mail::ClustersTurned => self.core.clusters_turned(self.now, &mut self.sockets),
                Mail::GatesTurned => self.core.gates_turned(self.now, &mut self.sockets),
                Mail::Settings(done) => {
                    self.follow_settings();
                    // Who does not wait for it any more need not know.
                    let _ = done.send(());
                }
                Mail::Move(exit) => {
                    self.go_on_for_good();
                    if self.stage == Stage::Open {
                        self.forget_listeners();
                        self.accept_again = None;
                        self.stage = Stage::Moving;
                        self.core.keep_no_servers(true, self.now, &mut self.sockets);
                        self.exit = Some(exit);
                    }
                }
                Mail::Stay => {
                    if self.stage == Stage::Moving {
                        self.stage = Stage::Open;
                        self.core.keep_no_servers(false, self.now, &mut self.sockets);
                        if let Err(error) = self.watch_listeners() {
                            tracing::error!(%error, "cannot accept clients any more");
                        }
                    }
                    self.exit = None;
                }
                Mail::Settle(settler) => self.settle(*settler),
                Mail::Evict => {
                    for entry in self.front.directory.pools() {
                        self.core.kill_pool(entry.id, self.now, &mut self.sockets);
                    }
                }
                Mail::CancelForeign(key) => {
                    self.core.cancel_foreign(&key, self.now, &mut self.sockets);
                }
                Mail::CancelAnywhere(key) => self.cancel(key),
                Mail::Kill(pools) => {
                    for pool in pools.iter() {
                        self.core.kill_pool(*pool, self.now, &mut self.sockets);
                    }
                }
                Mail::KillClient { client, to } => {
                    let _ = to.send(self.core.kill_client(client, self.now, &mut self.sockets));
                }
                Mail::Leave => self.close_doors(Stage::Leaving),
                Mail::Drain => self.close_doors(Stage::Draining),
                Mail::Stop => self.stage = Stage::Over,
            }
        }
    }

    /// Hands over clients that can go now, if another process takes them.
    pub(super) fn let_clients_go(&mut self) {
        let Some(exit) = &self.exit else { return };
        for client in self.core.migrants() {
            if !self.sockets.may_leave(client) {
                continue;
            }
            let Some((pool, migrant)) = self.core.emigrate(client, self.now) else { continue };
            let Some((stream, permits)) = self.sockets.take_client(client) else { continue };
            if !migrant.channels.is_empty() {
                self.sockets.unlisten(client, pool, None);
            }
            let worker = self.number;
            // Who listens takes back what it cannot pass on, and goes last.
            let _ = exit.send(Leaver { worker, pool, migrant, stream, permits });
        }
    }

    /// Takes in a client with its state.
    pub(super) fn settle(&mut self, settler: Settler) {
        let Settler { pool, migrant, stream, permits } = settler;
        self.know(pool);
        let Some(id) = self.core.immigrate(pool, migrant, self.now) else { return };
        let peer = Peer::Client(id);
        let seat = self.sockets.seats.insert(Seat::Away { ready: false, hung_up: false });
        self.sockets.seat(peer, seat, None, Some(permits));
        self.sockets.sit(seat, stream, peer, Before::default());
        if let Some(entry) = self.front.directory.by_id(pool) {
            self.sockets.announce(peer, &entry);
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
        self.listeners.clear();
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
