//! Calls cores and applies their commands.

use super::{
    AT_LOGIN, MS, SimEvent, SimPeer, SimWorker, Simulation, io::IoCommand, mirror::MirrorBehavior,
    network::SimLink,
};
use crate::{
    Core, CoreIo, PeerId, Time,
    sim::{backend::SimBackend, faults, sharded_table::HeldRows},
};

impl Simulation {
    /// Calls a core, then applies its commands.
    pub(super) fn call<T>(
        &mut self,
        worker: usize,
        call: impl FnOnce(&mut Core, Time, &mut dyn CoreIo) -> T,
    ) -> T {
        let now = Time(self.now);
        let SimWorker { core, io, .. } = &mut self.workers[worker];
        let failures = faults::mirror_failures(self.fault, core);
        faults::before_event(self.fault, core, now, io);
        let result = call(core, now, io);
        faults::after_event(self.fault, core, failures, io);
        for command in std::mem::take(&mut self.workers[worker].io.commands) {
            self.apply(worker, command);
        }
        result
    }

    pub(super) fn apply(&mut self, worker: usize, command: IoCommand) {
        let end = |simulation: &Self, peer| simulation.workers[worker].peers.get(&peer).copied();
        match command {
            IoCommand::Send(peer, mut bytes) => {
                faults::alter_sent(self.fault, &self.workers[worker].core, peer, &mut bytes);
                if let Some(end) = end(self, peer) {
                    self.send_from_pooler(end, bytes);
                }
            }
            IoCommand::Drain(peer) => {
                let at = self.now + 1 + self.random.below(20 * MS);
                self.schedule(at, SimEvent::Drained(worker, peer));
            }
            IoCommand::Resume(peer) => {
                if let Some(end) = end(self, peer) {
                    self.schedule(self.now, SimEvent::ReadInbox(end));
                }
            }
            IoCommand::Close(peer) => {
                self.trace(&format_args!("{worker} closes {peer:?}"), b".");
                self.workers[worker].io.backlogged.remove(&peer);
                self.workers[worker].io.paused.remove(&peer);
                let Some(end) = self.workers[worker].peers.remove(&peer) else { return };
                let down = self.link(end).arrives_down.max(self.now);
                self.link(end).worker = None;
                match end {
                    SimPeer::Client(client) => {
                        self.schedule(down + 1, SimEvent::ClientClosed(client));
                    }
                    SimPeer::Backend(backend) => self.backends[backend].1.is_closed = true,
                }
            }
            IoCommand::Open(server, pool) => {
                self.trace(&format_args!("{worker} opens {server:?} of {pool:?}"), b".");
                self.trace_hosts();
                let backend = self.backends.len();
                let process = self.workers[worker].process;
                let link = SimLink { pool, process, ..SimLink::default() };
                let mut opened = SimBackend::new(&AT_LOGIN);
                if let Some(shards) = &self.shards {
                    opened.shard = shards.shard_of_pool(pool);
                    let shards = shards.count();
                    // Mirrors have all rows.
                    opened.table = Some(match opened.shard {
                        Some(shard) => HeldRows::Shard { shard, shards },
                        None => HeldRows::All { shards },
                    });
                }
                self.backends.push((opened, link));
                self.attach(SimPeer::Backend(backend), worker, PeerId::Server(server));
                let behavior = self.mirror_behavior(pool);
                let fails = behavior == Some(MirrorBehavior::Fails);
                let (refuses, kills) = if fails { (50, 60) } else { (10, 20) };
                let succeeds = !((self.has_faults || fails) && self.random.percent(refuses));
                let at = self.now + self.random.below(20 * MS);
                // Half of the hanging mirror's servers do not even finish the login.
                if behavior != Some(MirrorBehavior::Hangs) || self.random.percent(50) {
                    self.schedule(at, SimEvent::LoggedIn(backend, succeeds));
                }
                if self.has_schema_changes {
                    let at = self.now + self.random.below(100 * MS);
                    self.schedule(at, SimEvent::Outdate(backend));
                }
                if (self.has_faults || fails) && self.random.percent(kills) {
                    let at = self.now + self.random.below(300 * MS);
                    self.schedule(at, SimEvent::Kill(backend));
                }
            }
            IoCommand::Cancel(server) => {
                self.trace(&format_args!("{worker} cancels {server:?}"), b".");
                let Some(SimPeer::Backend(backend)) = end(self, PeerId::Server(server)) else {
                    return;
                };
                // A cancel has no client if the pooler itself gives up a mirror's transaction or an
                // unresponsive server.
                let is_mirror = self.is_mirror(self.backends[backend].1.pool);
                let client = self.current_client.filter(|_| !is_mirror);
                let server = (worker, server);
                let at = self.now + 1 + self.random.below(40 * MS);
                self.schedule(at, SimEvent::CancelArrives { backend, client, server });
            }
            IoCommand::Listen(client) => {
                let at = self.now + self.random.below(20 * MS);
                self.schedule(at, SimEvent::Listened(worker, client));
            }
            IoCommand::RequestServer(pool) => {
                let by = self.workers[worker].id;
                let all = self.workers_of(self.workers[worker].process);
                for other in all.into_iter().filter(|other| *other != worker) {
                    self.schedule_soon(SimEvent::ServerRequested(other, pool, by));
                }
            }
            IoCommand::RequestIdleServers(pool, most) => {
                let by = self.workers[worker].id;
                let all = self.workers_of(self.workers[worker].process);
                for other in all.into_iter().filter(|other| *other != worker) {
                    self.schedule_soon(SimEvent::IdleServersRequested(other, pool, by, most));
                }
            }
            IoCommand::ConfirmIdleServers(pool, to) => {
                let to = self.worker_index(worker, to);
                self.schedule_soon(SimEvent::IdleServersConfirmed(to, pool));
            }
            IoCommand::HandOver(server, to, transfer) => {
                let peer = PeerId::Server(server);
                let Some(SimPeer::Backend(backend)) = self.workers[worker].peers.remove(&peer)
                else {
                    return;
                };
                self.workers[worker].io.backlogged.remove(&peer);
                self.backends[backend].1.worker = None;
                let to = self.worker_index(worker, to);
                self.schedule_soon(SimEvent::Adopt(to, backend, transfer));
            }
        }
    }
}
