//! Mirroring: a sample of clients is selected, their bytes are buffered until the result of a
//! transaction is known, and internal clients ([`mirror_client`]) replay them on the mirror. See
//! [`crate::mirror::target`].
//!
//! On the path of a client's bytes, mirroring costs little more than a copy of them. Mirror clients
//! are started, advanced and finished at the end of a call, as [steps](Step), and no client ever
//! waits for one.

mod commands;
pub(crate) mod counters;
mod mirror_client;
pub(crate) mod outcome;
pub(crate) mod queue;
pub(crate) mod target;

use std::sync::Arc;

use howdah_wire::Frontend;

use crate::{
    call::{CoreCall, Step},
    capture::is_between_transactions,
    clients::Clients,
    mirror::{
        outcome::DropReason,
        target::{
            BufferedTransaction, BufferingState, MirrorQueue, MirrorQueueId, MirrorTarget,
            MirroredClient, OpenTransaction,
        },
    },
    peers::Peers,
    pools::Pools,
    prepared::names::ClientStatements,
    state::{
        client::{ClientConnection, ClientKind, ClientState},
        ids::{ClientId, PoolId, ServerId},
        server::ServerConnection,
        slab::Slab,
    },
};

/// Bytes counted against the buffer for each transaction in addition to its contents, about the
/// size of its data structures.
const TRANSACTION_OVERHEAD_BYTES: usize = 256;

/// Bytes counted against the buffer for each named prepared statement that is copied with a
/// transaction, in addition to its name. The text is shared, so it does not count.
const STATEMENT_OVERHEAD_BYTES: usize = 64;

/// The mirroring of a worker's clients.
#[derive(Debug)]
pub(crate) struct Mirrors {
    /// Transactions to run on mirrors, one queue for each client and mirror.
    queues: Slab<MirrorQueueId, MirrorQueue>,
    /// Number of clients that are sampled for at least one mirror.
    mirrored_clients: usize,
    /// Pools whose mirrors changed, with their mirrors before the change.
    changes: Vec<(PoolId, Arc<[MirrorTarget]>)>,
}

impl Mirrors {
    pub(crate) fn new() -> Self {
        Self { queues: Slab::new(), mirrored_clients: 0, changes: Vec::new() }
    }

    /// Returns a queue, if it exists.
    #[cfg(test)]
    pub(crate) fn queue(&self, id: MirrorQueueId) -> Option<&MirrorQueue> {
        self.queues.get(id)
    }

    /// Returns the number of queues.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.queues.len()
    }

    /// Whether input of clients must be buffered for mirrors.
    #[inline]
    pub(crate) fn has_clients(&self) -> bool {
        self.mirrored_clients > 0
    }

    /// Notes that a pool's mirrors have changed, for [`Mirrors::resample`].
    pub(crate) fn pool_changed(&mut self, pool: PoolId, before: Arc<[MirrorTarget]>) {
        self.changes.push((pool, before));
    }

    /// Selects the mirrors that a new client is sampled for, if any.
    pub(crate) fn sample(&mut self, client: &mut ClientConnection, targets: &[MirrorTarget]) {
        let sampled = targets.iter().filter(|target| target.mirror.sample(target.sample_rate));
        let queues =
            sampled.map(|target| self.queues.insert(MirrorQueue::new(target.clone()))).collect();
        self.set_mirrors(client, MirroredClient { queues, open: None });
    }

    /// Sets the mirrors of a client, and updates the number of mirrored clients.
    fn set_mirrors(&mut self, client: &mut ClientConnection, mirrored: MirroredClient) {
        self.mirrored_clients -= usize::from(matches!(client.kind, ClientKind::Mirrored(_)));
        client.kind = if mirrored.queues.is_empty() {
            ClientKind::Plain
        } else {
            self.mirrored_clients += 1;
            ClientKind::Mirrored(Box::new(mirrored))
        };
    }

    /// Applies changed mirror settings to connected clients. For a mirror whose sampling is
    /// unchanged, the same clients stay sampled.
    pub(crate) fn resample(
        &mut self,
        clients: &mut Clients,
        pools: &Pools,
        call: &mut CoreCall<'_>,
    ) {
        for (owner, before) in std::mem::take(&mut self.changes) {
            let Some(pool) = pools.get(owner) else { continue };
            let now = Arc::clone(&pool.spec.mirrors);
            for index in 0..clients.slots() {
                let is_its =
                    |client: &ClientConnection| client.owner_pool == owner && client.is_external();
                let client = clients.occupant(index).filter(|(_, it)| is_its(it)).map(|(id, _)| id);
                if let Some(client) = client.and_then(|id| clients.get_mut(id)) {
                    self.resample_client(client, &before, &now, call);
                }
            }
        }
    }

    fn resample_client(
        &mut self,
        client: &mut ClientConnection,
        before: &[MirrorTarget],
        now: &[MirrorTarget],
        call: &mut CoreCall<'_>,
    ) {
        let (mut old_queues, open) = match &mut client.kind {
            ClientKind::Mirrored(mirrored) => {
                (std::mem::take(&mut mirrored.queues), mirrored.open.take())
            }
            _ => (Vec::new(), None),
        };
        let mut queues = Vec::new();
        for target in now {
            let its_queue = |id: &MirrorQueueId| {
                let queue = self.queues.get(*id);
                queue.is_some_and(|queue| Arc::ptr_eq(&queue.target.mirror, &target.mirror))
            };
            let its_queue = old_queues.iter().position(its_queue).map(|at| old_queues.remove(at));
            let stays = before.iter().any(|before| before.samples_like(target));
            let is_sampled =
                if stays { its_queue.is_some() } else { target.mirror.sample(target.sample_rate) };
            match its_queue {
                Some(its_queue) if is_sampled => {
                    if let Some(queue) = self.queues.get_mut(its_queue) {
                        queue.target = target.clone();
                    }
                    queues.push(its_queue);
                }
                Some(its_queue) => old_queues.push(its_queue),
                None if is_sampled => {
                    queues.push(self.queues.insert(MirrorQueue::new(target.clone())));
                }
                None => {}
            }
        }
        for removed in old_queues {
            self.close_queue(removed, DropReason::ClientGone, call);
        }
        let open = open.filter(|_| !queues.is_empty());
        self.set_mirrors(client, MirroredClient { queues, open });
    }

    /// Closes the queues of a client that has disconnected.
    pub(crate) fn stop(&mut self, mirrored: MirroredClient, call: &mut CoreCall<'_>) {
        let seen = mirrored.open.map(|open| open.total_bytes);
        for id in mirrored.queues {
            if let (Some(seen), Some(queue)) = (seen, self.queues.get_mut(id)) {
                queue.stop_buffering(DropReason::ClientGone);
                queue.finish_transaction(seen);
            }
            self.close_queue(id, DropReason::ClientGone, call);
        }
        self.mirrored_clients -= 1;
    }

    /// Closes a queue: the client adds no more transactions, but waiting ones still run.
    fn close_queue(&mut self, id: MirrorQueueId, why: DropReason, call: &mut CoreCall<'_>) {
        let Some(queue) = self.queues.get_mut(id) else { return };
        if queue.closed_at.is_none() {
            queue.stop_buffering(why);
            queue.closed_at = Some(call.now);
            queue.target.mirror.remove_client();
        }
        call.steps.push(Step::MirrorQueue(id));
    }

    /// Buffers bytes that a client sent, for its mirrors.
    pub(crate) fn buffer(
        &mut self,
        client: &mut ClientConnection,
        servers: &Slab<ServerId, ServerConnection>,
        bytes: &[u8],
    ) {
        let queues = &mut self.queues;
        if !matches!(client.kind, ClientKind::Mirrored(_)) {
            return;
        }
        let begins = is_between_transactions(client, servers);
        let ClientConnection { kind, statements, parameters, .. } = client;
        let ClientKind::Mirrored(mirrored) = kind else { return };
        let streams_of = |queues: &mut Slab<MirrorQueueId, MirrorQueue>,
                          of: &mut dyn FnMut(&mut MirrorQueue)| {
            for id in &mirrored.queues {
                if let Some(queue) = queues.get_mut(*id) {
                    of(queue);
                }
            }
        };
        if mirrored.open.is_none() {
            // Do not start in the middle of a transaction, or with a Terminate.
            if !begins || bytes.first() == Some(&Frontend::Terminate.tag().0) {
                return;
            }
            let mut is_out_of_step = false;
            streams_of(queues, &mut |queue| is_out_of_step |= queue.is_out_of_sync);
            let snapshot = is_out_of_step.then(|| Arc::new(statements.clone()));
            let room = snapshot.as_ref().map_or(0, |it| snapshot_bytes(it));
            streams_of(queues, &mut |queue| {
                queue.buffering = BufferingState::Active;
                queue.reserve_bytes(TRANSACTION_OVERHEAD_BYTES);
                queue.reserve_statements(room);
            });
            mirrored.open = Some(OpenTransaction {
                bytes: Vec::new(),
                total_bytes: 0,
                parameters: Arc::clone(parameters),
                statements: snapshot,
                error: None,
                is_cancelled: false,
            });
        }
        let mut is_taken = false;
        streams_of(queues, &mut |queue| {
            queue.reserve_bytes(bytes.len());
            is_taken |= queue.buffering == BufferingState::Active;
        });
        let Some(open) = &mut mirrored.open else { return };
        open.total_bytes += bytes.len();
        if is_taken { open.bytes.extend_from_slice(bytes) } else { open.bytes = Vec::new() }
    }

    /// Buffers, for its mirrors, the bytes that a client sent before its login was finished.
    pub(crate) fn buffer_earlier_input(&mut self, peers: &mut Peers, id: ClientId) {
        let Some(client) = peers.clients.get_mut(id) else { return };
        if matches!(client.kind, ClientKind::Mirrored(_)) && !client.input.buffered.is_empty() {
            let held = std::mem::take(&mut client.input.buffered);
            self.buffer(client, &peers.servers, &held);
            client.input.buffered = held;
        }
    }

    /// Queues a client's finished transaction for its mirrors, if the client is now between two
    /// transactions.
    pub(crate) fn queue_transaction(
        &mut self,
        client: &mut ClientConnection,
        call: &mut CoreCall<'_>,
    ) {
        if !is_idle(client) {
            return;
        }
        let ClientConnection { kind, statements, startup_parameters: startup, routing, .. } =
            client;
        let ClientKind::Mirrored(mirrored) = kind else { return };
        let Some(open) = mirrored.open.take() else { return };
        let OpenTransaction {
            mut bytes,
            total_bytes: seen,
            parameters,
            statements: snapshot,
            error,
            is_cancelled,
        } = open;
        if routing.is_some() {
            bytes = commands::strip_commands(bytes, statements);
        }
        let bytes = Arc::new(bytes);
        for id in &mirrored.queues {
            let Some(queue) = self.queues.get_mut(*id) else { continue };
            if is_cancelled {
                queue.stop_buffering(DropReason::Cancelled);
            }
            let Some(room) = queue.finish_transaction(seen) else { continue };
            if bytes.is_empty() {
                queue.release(room);
                continue;
            }
            // If the queue dropped a transaction after this one began, this one has no snapshot;
            // the next one will have it.
            let snapshot = snapshot.clone().filter(|_| queue.is_out_of_sync);
            queue.is_out_of_sync &= snapshot.is_none();
            let (parameters, startup) = (Arc::clone(&parameters), Arc::clone(startup));
            let bytes = Arc::clone(&bytes);
            queue.waiting.push_back(BufferedTransaction {
                bytes,
                reservation: room,
                parameters,
                startup_parameters: startup,
                statements: snapshot,
                error,
            });
            call.steps.push(Step::MirrorQueue(*id));
        }
    }
}

/// Whether a client is between two transactions and has no unprocessed input.
fn is_idle(client: &ClientConnection) -> bool {
    client.state == ClientState::Idle && !client.has_unprocessed_input()
}

/// Returns the number of bytes counted against the buffer for a copy of a client's prepared
/// statements.
fn snapshot_bytes(statements: &ClientStatements) -> usize {
    let names = statements.named.keys();
    statements.unnamed.len()
        + names.map(|name| name.len() + STATEMENT_OVERHEAD_BYTES).sum::<usize>()
}
