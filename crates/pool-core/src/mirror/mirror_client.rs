//! Mirror clients: internal clients, each of which replays one transaction on a mirror.

use std::sync::Arc;

use howdah_wire::{Frame, Frontend};

use super::{Mirrors, commands::after_first_string, is_idle};
use crate::{
    call::{CoreCall, Step},
    clients::{Clients, leaving},
    fan_out::active::SubRequest,
    internal_client::InternalClient,
    login::{CancelSecret, ClientLogin},
    mirror::counters::MirrorError,
    mirror::{
        outcome::{DropReason, MirrorResult},
        target::{BufferedTransaction, MirrorClient, MirrorQueueId, RunningTransaction},
    },
    peers::Peers,
    pools::Pools,
    prepared::{
        deallocate,
        names::ClientStatements,
        statements::{StatementRegistry, sql_text},
    },
    refusal::ClientRefusal,
    state::{
        client::{ClientConnection, ClientKind, ClientState, InputHold},
        ids::{ClientId, PoolId, ServerId},
        server::ServerConnection,
        slab::Slab,
    },
    time::Time,
};

impl Mirrors {
    /// Records the error with which a mirror client is about to be disconnected.
    pub(crate) fn client_refused(&mut self, id: MirrorQueueId, refusal: &ClientRefusal) {
        let Some(queue) = self.queues.get_mut(id) else { return };
        queue.target.mirror.record_failure(refusal);
        if let Some(running) = &mut queue.running {
            running.drop_reason = Some(DropReason::from_refusal(refusal));
        }
    }

    /// Keeps the statements that a removed mirror client has prepared, for the queue's next one.
    pub(crate) fn store_statements(&mut self, id: MirrorQueueId, statements: ClientStatements) {
        if let Some(queue) = self.queues.get_mut(id) {
            queue.statements = statements;
        }
    }

    /// Advances a queue as far as possible: starts and finishes mirror clients.
    pub(crate) fn advance(
        &mut self,
        id: MirrorQueueId,
        peers: &mut Peers,
        pools: &mut Pools,
        statements: &StatementRegistry,
        call: &mut CoreCall<'_>,
    ) {
        loop {
            let Some(queue) = self.queues.get_mut(id) else { return };
            let Some(running) = &queue.running else {
                if queue.is_finished() {
                    self.queues.remove(id);
                    return;
                }
                if !self.start_client(id, &mut peers.clients, pools, call) {
                    return;
                }
                continue;
            };
            let mirror_client = running.client;
            match peers.clients.get(mirror_client) {
                None => self.abort(id, statements, call.now),
                Some(client) if is_idle(client) => {
                    self.finish(id, &mut peers.clients, mirror_client, call.now);
                }
                Some(client) if has_unfinished_work(client, &peers.servers) => {
                    self.finish(id, &mut peers.clients, mirror_client, call.now);
                    // The disconnect rolls back the transaction on the mirror, and ends a COPY.
                    leaving::disconnect(peers, pools, call, mirror_client);
                    // The next one starts with the statements of this one.
                    return call.steps.push(Step::MirrorQueue(id));
                }
                Some(_) => return,
            }
        }
    }

    /// Starts a mirror client for the oldest waiting transaction. Returns `true` if it started one,
    /// or if the queue is finished.
    fn start_client(
        &mut self,
        id: MirrorQueueId,
        clients: &mut Clients,
        pools: &Pools,
        call: &mut CoreCall<'_>,
    ) -> bool {
        let Some(queue) = self.queues.get_mut(id) else { return false };
        let pool = queue.target.pool;
        if pools.get(pool).is_none() {
            queue.drop_waiting(DropReason::Unreachable);
        }
        let Some(transaction) = queue.waiting.pop_front() else { return queue.is_finished() };
        let statements = match &transaction.statements {
            Some(statements) => ClientStatements::clone(statements),
            None => std::mem::take(&mut queue.statements),
        };
        let mut mirror_client = new_mirror_client(pool, &transaction, id);
        mirror_client.statements = statements;
        (mirror_client.connected_at, mirror_client.state_since) = (call.now, call.now);
        mirror_client.input.buffer(&transaction.bytes);
        let mirror_client = clients.insert(mirror_client);
        queue.running =
            Some(RunningTransaction { transaction, client: mirror_client, drop_reason: None });
        call.steps.push(Step::Input(mirror_client));
        true
    }

    /// Called when the mirror has answered all messages of a transaction: compares its result with
    /// the database's.
    fn finish(
        &mut self,
        id: MirrorQueueId,
        clients: &mut Clients,
        mirror_client: ClientId,
        now: Time,
    ) {
        let Some(queue) = self.queues.get_mut(id) else { return };
        let Some(RunningTransaction { transaction, .. }) = queue.running.take() else { return };
        queue.release(transaction.reservation);
        let mut error = None;
        if let Some(client) = clients.get_mut(mirror_client) {
            if let ClientKind::Internal(internal) = &mut client.kind {
                error = internal.take_error();
            }
            let compared = queue.target.mirror.record_result(transaction.error, error.as_deref());
            // The statements prepared on the mirror may now differ from the client's.
            queue.is_out_of_sync |= compared != MirrorResult::Same;
            if is_idle(client)
                && let Some(client) = clients.remove(mirror_client)
            {
                queue.statements = client.statements;
            }
        }
        self.drop_orphaned_transactions(id, false, now);
    }

    /// Called when a mirror client was disconnected in the middle of its transaction: counts the
    /// transaction as dropped.
    fn abort(&mut self, id: MirrorQueueId, statements: &StatementRegistry, now: Time) {
        let Some(queue) = self.queues.get_mut(id) else { return };
        let Some(RunningTransaction { transaction, drop_reason: why, .. }) = queue.running.take()
        else {
            return;
        };
        queue.release(transaction.reservation);
        queue
            .target
            .mirror
            .record_drop(why.unwrap_or(DropReason::ConnectionLost), transaction.bytes.len());
        record_statements(&mut queue.statements, &transaction.bytes, statements);
        queue.is_out_of_sync = true;
        self.drop_orphaned_transactions(id, true, now);
    }

    /// Drops the waiting transactions of a closed queue, on the first failure or after a timeout.
    fn drop_orphaned_transactions(&mut self, id: MirrorQueueId, has_failed: bool, now: Time) {
        if let Some(queue) = self.queues.get_mut(id)
            && let Some(left) = queue.closed_at
            && (has_failed || now.since(left) >= queue.target.timeout)
        {
            queue.drop_waiting(DropReason::ClientGone);
        }
    }
}

/// Whether a mirror client has sent all its messages and received all replies, but its
/// transaction or COPY is still open: it ended on the database, but not on the mirror.
fn has_unfinished_work(
    client: &ClientConnection,
    servers: &Slab<ServerId, ServerConnection>,
) -> bool {
    let Some(server) = client.server().and_then(|server| servers.get(server)) else {
        return false;
    };
    client.input.buffered.is_empty()
        && client.input.is_at_boundary()
        && client.input_hold == InputHold::None
        && !server.input.is_inside_forwarded_body()
        && !server.is_quiescent()
        && (server.outstanding.is_empty() || server.batch.is_copying_in)
}

impl InternalClient for MirrorClient {
    fn sub_request(&self) -> Option<SubRequest> {
        None
    }

    fn on_progress(&self) -> Step {
        Step::MirrorQueue(self.queue)
    }

    fn on_refusal(&self, refusal: &ClientRefusal) -> Option<Step> {
        Some(Step::MirrorFailed(self.queue, Box::new(refusal.clone())))
    }

    fn on_removal(&self, statements: &mut ClientStatements) -> Step {
        Step::KeepStatements(self.queue, Box::new(std::mem::take(statements)))
    }

    fn on_error(&mut self, body: &[u8]) {
        self.error.get_or_insert_with(|| Box::new(MirrorError::new(body)));
    }

    fn take_error(&mut self) -> Option<Box<MirrorError>> {
        self.error.take()
    }

    fn is_for_mirror(&self) -> bool {
        true
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
    mirror_client.kind = ClientKind::Internal(Box::new(MirrorClient { queue, error: None }));
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
