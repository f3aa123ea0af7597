//! The network: connections that are slow, cut what they carry into pieces, and break.

use std::collections::VecDeque;

use super::{End, Event, MS, Worker, World};
use crate::{Peer, PoolId};

/// A connection as the network has it.
pub(super) struct Link {
    /// Whose it is.
    pub(super) pool: PoolId,
    /// Worker and name there, while there is one.
    pub(super) at: Option<(usize, Peer)>,
    /// Read by nobody yet.
    pub(super) inbox: VecDeque<Vec<u8>>,
    /// When the last byte on its way arrives, to the pooler and from it.
    pub(super) up: u64,
    pub(super) down: u64,
    pub(super) closed: bool,
    /// When a server's login was over; at the end of time, if it is not.
    pub(super) ready_at: u64,
}

impl Default for Link {
    fn default() -> Self {
        let (pool, inbox, ready_at) = (PoolId(0), VecDeque::new(), u64::MAX);
        Self { pool, at: None, inbox, up: 0, down: 0, closed: false, ready_at }
    }
}

impl World {
    pub(super) fn link(&mut self, end: End) -> &mut Link {
        match end {
            End::Client(client) => &mut self.clients[client].1,
            End::Backend(backend) => &mut self.backends[backend].1,
        }
    }

    pub(super) fn attach(&mut self, end: End, worker: usize, peer: Peer) {
        self.workers[worker].ends.insert(peer, end);
        let link = self.link(end);
        link.at = Some((worker, peer));
        for bytes in std::mem::take(&mut link.inbox) {
            self.at(self.now, Event::ToCore(end, bytes));
        }
    }

    /// On its way to the pooler, in pieces; `None` is the end.
    pub(super) fn up(&mut self, end: End, bytes: Option<&[u8]>) {
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

    pub(super) fn down(&mut self, end: End, bytes: Vec<u8>) {
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

    pub(super) fn arrives(&mut self, end: End, bytes: Vec<u8>) {
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
        self.acting = self.works_for(worker, peer);
        self.call(worker, |core, now, io| match peer {
            Peer::Client(id) => core.client_bytes(id, &bytes, now, io),
            Peer::Server(id) => core.server_bytes(id, &bytes, now, io),
        });
        self.acting = None;
    }

    /// The client that a peer is, or works for.
    fn works_for(&self, worker: usize, peer: Peer) -> Option<u32> {
        let Worker { core, ends, .. } = &self.workers[worker];
        let client = match peer {
            Peer::Client(id) => id,
            Peer::Server(id) => core.linked_client(id)?,
        };
        match ends.get(&Peer::Client(client))? {
            End::Client(client) => Some(self.clients[*client].0.number),
            End::Backend(_) => None,
        }
    }

    pub(super) fn gone(&mut self, end: End) {
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
}
