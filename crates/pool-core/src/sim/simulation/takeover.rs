//! Takeovers: a new process adopts the clients of the old one, each between two of its
//! transactions. It has its own servers, limits and statements.
//!
//! The client's prepared statements, parameters and cancel key must survive: its next replies, and
//! whether it can cancel a statement that nothing else ends, show it. Its channels and its user are
//! compared with what the client knows.

use super::{MS, SimEvent, SimPeer, Simulation, Situation, faults};
use crate::{ClientHandover, CoreEvent, PeerId, PoolId, Time};

impl Simulation {
    /// Starts a new process, to which the clients of the newest one move.
    pub(super) fn take_over(&mut self) {
        let old = self.processes.len() - 1;
        let process = self.processes[old].successor(&self.specs);
        let workers = self.workers_of(old);
        self.start_process(process, u8::try_from(workers.len()).unwrap());
        for worker in workers {
            self.call(worker, |core, now, io| {
                core.handle(CoreEvent::CloseIdleServers(true), now, io);
            });
        }
        self.schedule_soon(SimEvent::HandOverClients(old));
    }

    /// Hands over most of the clients of a process that can move now, and schedules the next
    /// attempt.
    pub(super) fn hand_over_clients(&mut self, process: usize) {
        for worker in self.workers_of(process) {
            for id in self.workers[worker].core.takeover().candidates() {
                let peer = PeerId::Client(id);
                let Some(&SimPeer::Client(client)) = self.workers[worker].peers.get(&peer) else {
                    continue;
                };
                if self.random.percent(30) {
                    continue;
                }
                let fault = self.fault;
                let handover = self.call(worker, |core, now, io| {
                    let (pool, mut handover) = core.takeover().hand_over(id, now, io)?;
                    faults::alter_handover(fault, &mut handover);
                    Some((pool, handover))
                });
                let (pool, handover) = handover.expect("the client can be handed over");
                self.trace(&format_args!("c{client} is handed over"), b".");
                self.workers[worker].peers.remove(&peer);
                let link = &mut self.clients[client].1;
                (link.worker, link.is_in_transit) = (None, true);
                self.schedule_soon(SimEvent::AdoptClient(client, pool, Box::new(handover)));
            }
        }
        let is_empty = self.workers_of(process).iter().all(|worker| {
            let peers = self.workers[*worker].peers.values();
            peers.into_iter().all(|peer| matches!(peer, SimPeer::Backend(_)))
        });
        if !is_empty {
            let at = self.now + 5 * MS;
            self.schedule(at, SimEvent::HandOverClients(process));
        }
    }

    /// Adds a client to a worker of the newest process.
    pub(super) fn adopt_client(
        &mut self,
        client: usize,
        pool: PoolId,
        handover: ClientHandover,
    ) -> Result<(), String> {
        let workers = self.workers_of(self.processes.len() - 1);
        let worker = *self.random.pick(&workers);
        let has_statements = !handover.statements.is_empty();
        let now = Time(self.now);
        let core = &mut self.workers[worker].core;
        let id = core.takeover().adopt(pool, handover, now).expect("the pool exists");
        self.clients[client].1.is_in_transit = false;
        self.attach(SimPeer::Client(client), worker, PeerId::Client(id));
        self.call(worker, |core, _, io| core.handle(CoreEvent::Relisten(id), now, io));
        if self.clients[client].1.is_closed {
            // The client has disconnected during the handover.
            self.schedule_soon(SimEvent::Closed(SimPeer::Client(client)));
            return Ok(());
        }
        self.coverage.record(Situation::ClientTakenOver);
        let script = &self.clients[client].0;
        if script.is_awaiting_reply() {
            return Ok(()); // Requests that are on their way may change the channels.
        }
        let core = &self.workers[worker].core;
        let channels = core.committed_channels(id).into_iter().flat_map(|(_, channels)| channels);
        let mut channels: Vec<_> = channels.map(|it| String::from_utf8_lossy(it)).collect();
        channels.sort_unstable();
        let expected = script.channels();
        if channels != expected {
            return Err(format!("c{client} listens to {channels:?} instead of {expected:?}"));
        }
        if has_statements {
            self.coverage.record(Situation::StatementsTakenOver);
        }
        if !channels.is_empty() {
            self.coverage.record(Situation::ChannelsTakenOver);
        }
        Ok(())
    }

    /// Sends a CancelRequest of a client to all workers that may know the client's key.
    pub(super) fn cancel(&mut self, client: usize) {
        let (script, link) = &self.clients[client];
        let Some(key) = script.cancel_key.clone() else { return };
        if !script.is_sleeping || link.is_closed {
            return;
        }
        self.current_client = Some(script.number);
        for process in 0..self.processes.len() {
            for worker in self.workers_of(process) {
                self.call(worker, |core, now, io| {
                    core.cancel(&key, now, io);
                });
            }
        }
        self.current_client = None;
    }

    /// Checks that each client is reported with the user that it logged in as, although the
    /// servers of several users' clients are the same.
    pub(super) fn check_users(&mut self) -> Result<(), String> {
        if !self.has_forced_users {
            return Ok(());
        }
        let now = Time(self.now);
        for worker in &mut self.workers {
            for client in worker.core.report(true, now).clients {
                let Some(SimPeer::Client(number)) = worker.peers.get(&PeerId::Client(client.id))
                else {
                    continue;
                };
                let user = &self.clients[*number].0.user;
                if client.user != *user {
                    return Err(format!("c{number} of {user:?} is reported as {:?}", client.user));
                }
            }
        }
        Ok(())
    }
}
