//! Mirror clients: internal clients, each of which replays one transaction on a mirror.

use std::sync::Arc;

use howdah_wire::{Frame, Frontend};

use super::{super::Core, commands::after_first_string, is_idle};
use crate::{
    CoreIo, DeferredWork,
    login::{CancelSecret, ClientLogin},
    mirror::target::{
        BufferedTransaction, DropReason, MirrorClient, MirrorQueueId, MirrorResult,
        RunningTransaction,
    },
    prepared::{
        deallocate,
        names::ClientStatements,
        statements::{StatementRegistry, sql_text},
    },
    refusal::ClientRefusal,
    state::{
        client::{ClientConnection, ClientKind, ClientState, InputHold},
        ids::{ClientId, PoolId},
    },
};

impl Core {
    /// Discards a reply to a mirror client, and lets its queue advance.
    pub(crate) fn mirror_client_received(&mut self, queue: MirrorQueueId) {
        self.to_client.clear();
        self.deferred.push(DeferredWork::MirrorQueue(queue));
    }

    /// Records the error with which a mirror client is about to be disconnected.
    pub(crate) fn mirror_client_refused(&mut self, id: MirrorQueueId, refusal: &ClientRefusal) {
        let Some(queue) = self.mirror_queues.get_mut(id) else { return };
        queue.target.mirror.record_failure(refusal);
        if let Some(running) = &mut queue.running {
            running.drop_reason = Some(DropReason::from_refusal(refusal));
        }
    }

    /// Advances a queue as far as possible: starts and finishes mirror clients.
    pub(crate) fn advance_mirror_queue(&mut self, id: MirrorQueueId, io: &mut dyn CoreIo) {
        loop {
            let Some(queue) = self.mirror_queues.get_mut(id) else { return };
            let Some(running) = &queue.running else {
                if queue.is_finished() {
                    self.mirror_queues.remove(id);
                    return;
                }
                if !self.start_mirror_client(id, io) {
                    return;
                }
                continue;
            };
            let mirror_client = running.client;
            match self.clients.get(mirror_client) {
                None => self.abort_mirror_client(id),
                Some(client) if is_idle(client) => self.finish_mirror_client(id, mirror_client),
                Some(client) if self.has_unfinished_work(client) => {
                    self.finish_mirror_client(id, mirror_client);
                    // The disconnect rolls back the transaction on the mirror, and ends a COPY.
                    self.handle_client_disconnect(mirror_client, io);
                }
                Some(_) => return,
            }
        }
    }

    /// Whether a mirror client has sent all its messages and received all replies, but its
    /// transaction or COPY is still open: it ended on the database, but not on the mirror.
    fn has_unfinished_work(&self, client: &ClientConnection) -> bool {
        let Some(server) = client.server().and_then(|server| self.servers.get(server)) else {
            return false;
        };
        client.input.buffered.is_empty()
            && client.input.is_at_boundary()
            && client.input_hold == InputHold::None
            && !server.input.is_inside_forwarded_body()
            && !server.is_quiescent()
            && (server.outstanding.is_empty() || server.is_copying_in)
    }

    /// Starts a mirror client for the oldest waiting transaction. Returns `true` if it started one,
    /// or if the queue is finished.
    fn start_mirror_client(&mut self, id: MirrorQueueId, io: &mut dyn CoreIo) -> bool {
        let Some(queue) = self.mirror_queues.get_mut(id) else { return false };
        let pool = queue.target.pool;
        if !self.pools.get(pool.index()).is_some_and(Option::is_some) {
            queue.drop_waiting(DropReason::Unreachable);
        }
        let Some(transaction) = queue.waiting.pop_front() else { return queue.is_finished() };
        let statements = match &transaction.statements {
            Some(statements) => ClientStatements::clone(statements),
            None => std::mem::take(&mut queue.statements),
        };
        let mut mirror_client = new_mirror_client(pool, &transaction, id);
        mirror_client.statements = statements;
        (mirror_client.connected_at, mirror_client.state_since) = (self.now, self.now);
        let bytes = Arc::clone(&transaction.bytes);
        let mirror_client = self.clients.insert(mirror_client);
        self.mirror_clients += 1;
        queue.running =
            Some(RunningTransaction { transaction, client: mirror_client, drop_reason: None });
        self.process_client_bytes(mirror_client, &bytes, io);
        true
    }

    /// Called when the mirror has answered all messages of a transaction: compares its result with
    /// the database's.
    fn finish_mirror_client(&mut self, id: MirrorQueueId, mirror_client: ClientId) {
        let Some(queue) = self.mirror_queues.get_mut(id) else { return };
        let Some(RunningTransaction { transaction, .. }) = queue.running.take() else { return };
        queue.release(transaction.reservation);
        let mut error = None;
        if let Some(client) = self.clients.get_mut(mirror_client) {
            if let ClientKind::MirrorClient(mirror_client) = &mut client.kind {
                error = mirror_client.error.take();
            }
            let compared = queue.target.mirror.record_result(transaction.error, error.as_deref());
            // The statements prepared on the mirror may now differ from the client's.
            queue.is_out_of_sync |= compared != MirrorResult::Same;
            if is_idle(client) {
                self.remove_client(mirror_client);
            }
        }
        self.drop_orphaned_transactions(id, false);
    }

    /// Called when a mirror client was disconnected in the middle of its transaction: counts the
    /// transaction as dropped.
    fn abort_mirror_client(&mut self, id: MirrorQueueId) {
        let Some(queue) = self.mirror_queues.get_mut(id) else { return };
        let Some(RunningTransaction { transaction, drop_reason: why, .. }) = queue.running.take()
        else {
            return;
        };
        queue.release(transaction.reservation);
        queue
            .target
            .mirror
            .record_drop(why.unwrap_or(DropReason::ConnectionLost), transaction.bytes.len());
        record_statements(&mut queue.statements, &transaction.bytes, &self.statements);
        queue.is_out_of_sync = true;
        self.drop_orphaned_transactions(id, true);
    }

    /// Drops the waiting transactions of a closed queue, on the first failure or after a timeout.
    fn drop_orphaned_transactions(&mut self, id: MirrorQueueId, has_failed: bool) {
        let now = self.now;
        if let Some(queue) = self.mirror_queues.get_mut(id)
            && let Some(left) = queue.closed_at
            && (has_failed || now.since(left) >= queue.target.timeout)
        {
            queue.drop_waiting(DropReason::ClientGone);
        }
    }
}

/// Creates an internal client that replays `transaction`.
fn new_mirror_client(
    pool: PoolId,
    transaction: &BufferedTransaction,
    queue: MirrorQueueId,
) -> ClientConnection {
    // A mirror client has no connection and no cancel key, so version and secret are irrelevant.
    let login = ClientLogin {
        user: None,
        pool,
        version: howdah_wire::startup::ProtocolVersion::V3_0,
        secret: CancelSecret([0; 32]),
        parameters: Vec::new(),
        role: None,
    };
    let mut mirror_client = ClientConnection::new(&login, Arc::clone(&transaction.parameters));
    mirror_client.startup_parameters = Arc::clone(&transaction.startup_parameters);
    mirror_client.state = ClientState::Idle;
    mirror_client.kind = ClientKind::MirrorClient(MirrorClient { queue, error: None });
    mirror_client
}

/// Applies to `known` the Parse, Close and DEALLOCATE requests of a transaction that did not run to
/// its end.
fn record_statements(known: &mut ClientStatements, bytes: &[u8], statements: &StatementRegistry) {
    let mut rest = bytes;
    while let Ok(Some((Frame { tag, body }, later))) = Frame::split(rest, u32::MAX) {
        rest = later;
        match Frontend::from_tag(tag) {
            Some(Frontend::Parse) => {
                let (name, text) = (sql_text(body), after_first_string(body));
                if name.is_empty() {
                    known.set_unnamed(text, false, None);
                } else {
                    known.named.insert(name.into(), statements.intern(text, None));
                }
            }
            Some(Frontend::Close) => {
                if let Some(name) = body.strip_prefix(b"S") {
                    known.named.remove(sql_text(name));
                }
            }
            Some(Frontend::Query) => {
                let sql = sql_text(body);
                known.clear_unnamed();
                match deallocate::name(sql) {
                    Some(name) => drop(known.named.remove(&name[..])),
                    None if deallocate::is_deallocation(sql) => known.named.clear(),
                    None => {}
                }
            }
            _ => {}
        }
    }
}
