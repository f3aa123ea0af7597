//! Mirroring: a sample of clients is selected, their bytes are buffered until the result of a
//! transaction is known, and internal clients ([`mirror_client`]) replay them on the mirror. See
//! [`crate::mirror::target`].
//!
//! On the path of a client's bytes, mirroring costs little more than a copy of them. Mirror clients
//! are started, advanced and finished at the end of a call ([`Core::run_deferred`]), and no client
//! ever waits for one.

mod commands;
pub(crate) mod counters;
mod mirror_client;
pub(crate) mod queue;
pub(crate) mod target;

use std::sync::Arc;

use howdah_wire::{Backend, Frame, Frontend};

use crate::{
    Core, DeferredWork,
    capture::is_between_transactions,
    messages::reply::{ReplyAction, ReplyHandler},
    mirror::target::{
        BufferedTransaction, BufferingState, DropReason, MirrorError, MirrorQueue, MirrorQueueId,
        MirrorTarget, MirroredClient, OpenTransaction, parse_sqlstate,
    },
    prepared::names::ClientStatements,
    state::{
        client::{ClientConnection, ClientKind, ClientState},
        ids::ClientId,
    },
};

/// Bytes counted against the buffer for each transaction in addition to its contents, about the
/// size of its data structures.
const TRANSACTION_OVERHEAD_BYTES: usize = 256;

/// Bytes counted against the buffer for each named prepared statement that is copied with a
/// transaction, in addition to its name. The text is shared, so it does not count.
const STATEMENT_OVERHEAD_BYTES: usize = 64;

/// Whether both lists contain the same mirrors with the same settings.
pub(super) fn have_equal_mirrors(before: &[MirrorTarget], now: &[MirrorTarget]) -> bool {
    before.len() == now.len()
        && before.iter().zip(now).all(|(before, now)| {
            before.samples_like(now)
                && before.client_bytes == now.client_bytes
                && before.buffer_bytes == now.buffer_bytes
                && before.timeout == now.timeout
        })
}

impl Core {
    /// Selects the mirrors that a new client is sampled for, if any.
    pub(super) fn sample_mirrors(&mut self, client: &mut ClientConnection) {
        let Some(Some(pool)) = self.pools.get(client.owner_pool.index()) else { return };
        if pool.spec.mirrors.is_empty() {
            return;
        }
        let targets = Arc::clone(&pool.spec.mirrors);
        let sampled = targets.iter().filter(|target| target.mirror.sample(target.sample_rate));
        let queues = sampled
            .map(|target| self.mirror_queues.insert(MirrorQueue::new(target.clone())))
            .collect();
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
        self.observes_clients = self.capture.is_some() || self.mirrored_clients > 0;
    }

    /// Applies changed mirror settings to connected clients. For a mirror whose sampling is
    /// unchanged, the same clients stay sampled.
    pub(super) fn resample_mirrors(&mut self) {
        for (owner, before) in std::mem::take(&mut self.previous_mirrors) {
            let Some(Some(pool)) = self.pools.get(owner.index()) else { continue };
            let now = Arc::clone(&pool.spec.mirrors);
            for index in 0..self.clients.slots() {
                let is_its =
                    |client: &ClientConnection| client.owner_pool == owner && client.is_external();
                if let Some((id, _)) = self.clients.occupant(index).filter(|(_, it)| is_its(it)) {
                    self.resample_client(id, &before, &now);
                }
            }
        }
    }

    fn resample_client(&mut self, id: ClientId, before: &[MirrorTarget], now: &[MirrorTarget]) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let (mut old_queues, open) = match &mut client.kind {
            ClientKind::Mirrored(mirrored) => {
                (std::mem::take(&mut mirrored.queues), mirrored.open.take())
            }
            _ => (Vec::new(), None),
        };
        let mut queues = Vec::new();
        for target in now {
            let its_queue = |id: &MirrorQueueId| {
                let queue = self.mirror_queues.get(*id);
                queue.is_some_and(|queue| Arc::ptr_eq(&queue.target.mirror, &target.mirror))
            };
            let its_queue = old_queues.iter().position(its_queue).map(|at| old_queues.remove(at));
            let stays = before.iter().any(|before| before.samples_like(target));
            let is_sampled =
                if stays { its_queue.is_some() } else { target.mirror.sample(target.sample_rate) };
            match its_queue {
                Some(its_queue) if is_sampled => {
                    if let Some(queue) = self.mirror_queues.get_mut(its_queue) {
                        queue.target = target.clone();
                    }
                    queues.push(its_queue);
                }
                Some(its_queue) => old_queues.push(its_queue),
                None if is_sampled => {
                    queues.push(self.mirror_queues.insert(MirrorQueue::new(target.clone())));
                }
                None => {}
            }
        }
        for removed in old_queues {
            self.close_mirror_queue(removed, DropReason::ClientGone);
        }
        // The client still exists: closing queues removes no clients.
        if let Some(client) = self.clients.get_mut(id) {
            let kind = std::mem::replace(&mut client.kind, ClientKind::Plain);
            self.mirrored_clients -= usize::from(matches!(kind, ClientKind::Mirrored(_)));
            let open = open.filter(|_| !queues.is_empty());
            if !queues.is_empty() {
                self.mirrored_clients += 1;
                client.kind = ClientKind::Mirrored(Box::new(MirroredClient { queues, open }));
            }
        }
        self.observes_clients = self.capture.is_some() || self.mirrored_clients > 0;
    }

    /// Called when a client or a mirror client is removed: closes the client's queues, or returns
    /// the mirror client's prepared statements to its queue.
    pub(super) fn stop_mirroring(&mut self, client: &mut ClientConnection) {
        match &mut client.kind {
            ClientKind::Plain | ClientKind::SubRequest(_) => {}
            ClientKind::Mirrored(mirrored) => {
                let seen = mirrored.open.take().map(|open| open.total_bytes);
                for id in std::mem::take(&mut mirrored.queues) {
                    if let (Some(seen), Some(queue)) = (seen, self.mirror_queues.get_mut(id)) {
                        queue.stop_buffering(DropReason::ClientGone);
                        queue.finish_transaction(seen);
                    }
                    self.close_mirror_queue(id, DropReason::ClientGone);
                }
                client.kind = ClientKind::Plain;
                self.mirrored_clients -= 1;
                self.observes_clients = self.capture.is_some() || self.mirrored_clients > 0;
            }
            ClientKind::MirrorClient(mirror_client) => {
                self.mirror_clients -= 1;
                self.deferred.push(DeferredWork::MirrorQueue(mirror_client.queue));
                if let Some(queue) = self.mirror_queues.get_mut(mirror_client.queue) {
                    queue.statements = std::mem::take(&mut client.statements);
                }
            }
        }
    }

    /// Closes a queue: the client adds no more transactions, but waiting ones still run.
    fn close_mirror_queue(&mut self, id: MirrorQueueId, why: DropReason) {
        let Some(queue) = self.mirror_queues.get_mut(id) else { return };
        if queue.closed_at.is_none() {
            queue.stop_buffering(why);
            queue.closed_at = Some(self.now);
            queue.target.mirror.remove_client();
        }
        self.deferred.push(DeferredWork::MirrorQueue(id));
    }

    /// Buffers bytes that a client sent, for its mirrors.
    pub(super) fn buffer_for_mirrors(&mut self, id: ClientId, bytes: &[u8]) {
        let Self { clients, servers, mirror_queues: queues, .. } = self;
        let Some(client) = clients.get_mut(id) else { return };
        if !matches!(client.kind, ClientKind::Mirrored(_)) {
            return;
        }
        let begins = is_between_transactions(client, servers);
        let ClientConnection { kind, statements, parameters, .. } = client;
        let ClientKind::Mirrored(mirrored) = kind else { return };
        let streams_of = |queues: &mut crate::state::slab::Slab<MirrorQueueId, MirrorQueue>,
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
    pub(super) fn mirror_buffered_input(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(id) else { return };
        if matches!(client.kind, ClientKind::Mirrored(_)) && !client.input.buffered.is_empty() {
            let held = std::mem::take(&mut client.input.buffered);
            self.buffer_for_mirrors(id, &held);
            if let Some(client) = self.clients.get_mut(id) {
                client.input.buffered = held;
            }
        }
    }

    /// Marks a client's transaction as cancelled: it must not run on mirrors.
    pub(super) fn mark_transaction_cancelled(&mut self, id: ClientId) {
        if let Some(client) = self.clients.get_mut(id)
            && let ClientKind::Mirrored(mirrored) = &mut client.kind
            && let Some(open) = &mut mirrored.open
        {
            open.is_cancelled = true;
        }
    }

    /// Queues a client's finished transaction for its mirrors, if the client is now between two
    /// transactions.
    pub(super) fn queue_transaction(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(id) else { return };
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
            let Some(queue) = self.mirror_queues.get_mut(*id) else { continue };
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
            self.deferred.push(DeferredWork::MirrorQueue(*id));
        }
    }
}

impl Core {
    /// Records the first error among the merged replies of several shards that a client receives
    /// in a transaction, to compare the results.
    pub(super) fn record_merged_error(&mut self, id: ClientId, replies: &[u8]) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let ClientKind::Mirrored(mirrored) = &mut client.kind else { return };
        let Some(open) = &mut mirrored.open else { return };
        let mut rest = replies;
        while let Ok(Some((frame, later))) = Frame::split(rest, u32::MAX) {
            if frame.tag == Backend::ErrorResponse.tag() {
                open.error.get_or_insert_with(|| parse_sqlstate(frame.body));
            }
            rest = later;
        }
    }
}

impl ReplyHandler<'_> {
    /// Records the first error that a client or a mirror client receives in a transaction, to
    /// compare the results.
    pub(super) fn record_error(&mut self, body: &[u8], reply: &ReplyAction) {
        let Some(client) = self.client.as_deref_mut() else { return };
        if !matches!(reply, ReplyAction::Forward | ReplyAction::Replace(_)) {
            return;
        }
        match &mut client.kind {
            ClientKind::Mirrored(mirrored) => {
                if let Some(open) = &mut mirrored.open {
                    open.error.get_or_insert_with(|| parse_sqlstate(body));
                }
            }
            ClientKind::MirrorClient(mirror_client) => {
                mirror_client.error.get_or_insert_with(|| Box::new(MirrorError::new(body)));
            }
            ClientKind::Plain | ClientKind::SubRequest(_) => {}
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
