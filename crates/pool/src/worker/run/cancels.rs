//! Finds the client of a CancelRequest: in a worker, in the process that is being taken over, or in
//! a peer.

use std::{net::SocketAddr, sync::atomic::Ordering};

use howdah_pool_core::worker_of_key;

use super::PoolWorker;
use crate::worker::{
    cancel_peers::{self, FORWARD_TIMEOUT},
    messages::{CancelSource, RoutedCancel, WorkerMessage},
    pending_login::PendingLogin,
    socket_table::SocketEntry,
    takeover,
};

impl PoolWorker {
    /// Passes a CancelRequest to the next worker that may have the client: the one that the key
    /// names, and then, while there may be clients with keys from another process, all others.
    pub(super) fn cancel(&mut self, mut cancel: RoutedCancel) {
        let workers = self.sockets.mailboxes.len();
        let owner = worker_of_key(&cancel.key).map(|owner| usize::from(owner.0));
        let may_be_foreign = self.shared.predecessor.has_clients.load(Ordering::Relaxed);
        let others = (0..workers).filter(|_| may_be_foreign);
        let mut candidates = owner.into_iter().chain(others);
        let next = candidates.find(|worker| {
            *worker < workers
                && cancel.tried & (1 << worker) == 0
                && !self.sockets.mailboxes[*worker].is_closed()
        });
        let Some(next) = next else { return self.cancel_elsewhere(cancel) };
        cancel.tried |= 1 << next;
        if next == usize::from(self.number.0) {
            self.cancel_here(cancel);
        } else {
            self.sockets.mailboxes[next].send(WorkerMessage::Cancel(Box::new(cancel)));
        }
    }

    /// Executes a CancelRequest if its client is in this worker.
    pub(super) fn cancel_here(&mut self, cancel: RoutedCancel) {
        if !self.core.cancel(&cancel.key, self.now, &mut self.sockets) {
            self.cancel(cancel);
        }
    }

    /// Handles a CancelRequest whose client is in none of the workers.
    fn cancel_elsewhere(&mut self, cancel: RoutedCancel) {
        let RoutedCancel { key, source, .. } = cancel;
        let has_predecessor = takeover::forward_cancel(&key, &self.shared);
        let CancelSource::Client(from) = source else { return };
        if !self.shared.cancel_peers.is_empty() {
            for request in self.shared.cancel_peers.requests(&key) {
                let pending = Box::new(PendingLogin::forward(request));
                let slot = self.sockets.table.insert(SocketEntry::Login(pending));
                self.set_login_timeout(slot, Some(FORWARD_TIMEOUT));
                self.advance(slot);
            }
        } else if !has_predecessor && !self.shared.was_taken_over() {
            // During a takeover the key may belong to a client of the other process.
            self.shared.refusals.record_cancel_key(from);
        }
    }
}

/// Returns a CancelRequest as received over this connection; `None` if it is a forwarded one that
/// is not from a peer, which is ignored like an unknown key.
pub(super) fn received(
    worker: &PoolWorker,
    key: howdah_wire::startup::CancelKey,
    stream: Option<&howdah_net::Stream>,
) -> Option<RoutedCancel> {
    let from: Option<SocketAddr> = stream.and_then(howdah_net::Stream::peer_address);
    let Some(forwarded) = cancel_peers::forwarded_key(&key) else {
        return Some(RoutedCancel::new(key, CancelSource::Client(from)));
    };
    let peers = &worker.shared.cancel_peers;
    if !stream.is_some_and(|stream| peers.is_peer(stream)) {
        worker.shared.refusals.record_cancel_key(from);
        return None;
    }
    peers.count_received();
    Some(RoutedCancel::new(forwarded, CancelSource::Process))
}
