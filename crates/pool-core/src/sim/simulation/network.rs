//! The network: connections that are slow, fragment their data, and break.

use std::collections::VecDeque;

use super::{MS, SimEvent, SimPeer, SimWorker, Simulation};
use crate::{CoreEvent, PeerId, PoolId, sim::faults};

/// A simulated network connection between the pooler and a client or server.
pub(super) struct SimLink {
    pub(super) pool: PoolId,
    /// The process that opened the connection to a server.
    pub(super) process: usize,
    /// Whether a client moves from one process to another.
    pub(super) is_in_transit: bool,
    /// While connected, the worker of the connection and its ID there.
    pub(super) worker: Option<(usize, PeerId)>,
    /// Bytes that were sent to the pooler and not delivered yet.
    pub(super) inbox: VecDeque<Vec<u8>>,
    /// Time in nanoseconds at which the last byte sent to the pooler arrives.
    pub(super) arrives_up: u64,
    /// Time in nanoseconds at which the last byte sent by the pooler arrives.
    pub(super) arrives_down: u64,
    pub(super) is_closed: bool,
    /// Time at which a server's login finished; `u64::MAX` before.
    pub(super) ready_at: u64,
}

impl Default for SimLink {
    fn default() -> Self {
        let (pool, inbox, ready_at) = (PoolId(0), VecDeque::new(), u64::MAX);
        Self {
            pool,
            process: 0,
            is_in_transit: false,
            worker: None,
            inbox,
            arrives_up: 0,
            arrives_down: 0,
            is_closed: false,
            ready_at,
        }
    }
}

impl Simulation {
    pub(super) fn link(&mut self, end: SimPeer) -> &mut SimLink {
        match end {
            SimPeer::Client(client) => &mut self.clients[client].1,
            SimPeer::Backend(backend) => &mut self.backends[backend].1,
        }
    }

    pub(super) fn attach(&mut self, end: SimPeer, worker: usize, peer: PeerId) {
        self.workers[worker].peers.insert(peer, end);
        let link = self.link(end);
        link.worker = Some((worker, peer));
        self.schedule(self.now, SimEvent::ReadInbox(end));
    }

    /// Delivers bytes that could not be delivered when they arrived, in order of arrival.
    pub(super) fn read_inbox(&mut self, end: SimPeer) {
        while let Some(bytes) = self.link(end).inbox.pop_front() {
            if let Some(bytes) = self.try_deliver(end, bytes) {
                return self.link(end).inbox.push_front(bytes);
            }
        }
    }

    /// Sends bytes to the pooler, in fragments; `None` closes the connection.
    pub(super) fn send_to_pooler(&mut self, end: SimPeer, bytes: Option<&[u8]>) {
        let mut rest = bytes.unwrap_or_default();
        while !rest.is_empty() {
            let whole = self.random.percent(60);
            let length = if whole { rest.len() } else { 1 + self.random.below(40) as usize };
            let (piece, later) = rest.split_at(length.min(rest.len()));
            rest = later;
            let at = self.link(end).arrives_up.max(self.now) + 1 + self.random.below(MS);
            self.link(end).arrives_up = at;
            self.schedule(at, SimEvent::ToCore(end, piece.to_vec()));
        }
        if bytes.is_none() {
            let at = self.link(end).arrives_up.max(self.now) + 1;
            self.schedule(at, SimEvent::Closed(end));
        }
    }

    pub(super) fn send_from_pooler(&mut self, end: SimPeer, bytes: Vec<u8>) {
        let at = self.link(end).arrives_down.max(self.now) + 1 + self.random.below(MS);
        self.link(end).arrives_down = at;
        self.schedule(
            at,
            match end {
                SimPeer::Client(client) => SimEvent::ToClient(client, bytes),
                SimPeer::Backend(backend) => SimEvent::ToBackend(backend, bytes),
            },
        );
    }

    /// Delivers bytes to the core, or stores them in the inbox.
    pub(super) fn deliver_to_core(&mut self, end: SimPeer, bytes: Vec<u8>) {
        let is_next = self.link(end).inbox.is_empty();
        let undelivered = if is_next { self.try_deliver(end, bytes) } else { Some(bytes) };
        self.link(end).inbox.extend(undelivered);
    }

    /// Delivers bytes to the core. Returns them if they must wait.
    fn try_deliver(&mut self, end: SimPeer, bytes: Vec<u8>) -> Option<Vec<u8>> {
        let link = self.link(end);
        let Some((worker, peer)) = link.worker else {
            // A server or client that is being handed over has no worker; its bytes are delivered
            // to the new one.
            let is_moving = matches!(end, SimPeer::Backend(_)) || link.is_in_transit;
            return is_moving.then_some(bytes);
        };
        if let PeerId::Client(id) = peer
            && faults::blocks_client(self.fault, &mut self.workers[worker].core, id)
        {
            self.schedule(self.now + MS, SimEvent::ReadInbox(end));
            return Some(bytes);
        }
        if self.workers[worker].io.paused.contains(&peer) {
            return Some(bytes);
        }
        self.current_client = self.client_of(worker, peer);
        let fault = self.fault;
        self.call(worker, |core, now, io| match peer {
            PeerId::Client(id) => core.client_bytes(id, &bytes, now, io),
            PeerId::Server(id) => {
                faults::before_server_bytes(fault, core, id, &bytes, io);
                core.server_bytes(id, &bytes, now, io);
            }
        });
        self.current_client = None;
        None
    }

    /// Returns the number of a client, or of the client that a server is linked to.
    fn client_of(&self, worker: usize, peer: PeerId) -> Option<u32> {
        let SimWorker { core, peers: ends, .. } = &self.workers[worker];
        let client = match peer {
            PeerId::Client(id) => id,
            PeerId::Server(id) => core.engines.peers.clients.external(core.linked_client(id)?),
        };
        match ends.get(&PeerId::Client(client))? {
            SimPeer::Client(client) => Some(self.clients[*client].0.number),
            SimPeer::Backend(_) => None,
        }
    }

    pub(super) fn close(&mut self, end: SimPeer) {
        let Some((worker, peer)) = self.link(end).worker.take() else { return };
        self.workers[worker].io.paused.remove(&peer);
        self.workers[worker].io.backlogged.remove(&peer);
        if let SimPeer::Client(client) = end {
            self.current_client = Some(self.clients[client].0.number);
        }
        // The ID remains in `peers` until the call has returned, so that commands for it are still
        // applied.
        self.call(worker, |core, now, io| match peer {
            PeerId::Client(id) => core.handle(CoreEvent::ClientClosed(id), now, io),
            PeerId::Server(id) => core.handle(CoreEvent::ServerClosed(id), now, io),
        });
        self.current_client = None;
        self.workers[worker].peers.remove(&peer);
    }
}
